# mypy: ignore-errors
"""How the emulator executes wgmma: asynchronous matrix products of a warpgroup (sm_90a).

The accumulators that `wgmma.mma_async` returns are not the result yet: each is a NaN whose payload
names an entry of the thread's ring of pending values. A later wgmma that accumulates onto them
looks the values up; `wgmma.wait_group`, which takes and returns the accumulators, replaces those
whose group is complete. Accumulators used without the wait are NaN, and show.

Operands in shared memory are addressed by descriptors: start address, leading and stride byte
offsets in units of 16 bytes, and a swizzle. In 16-byte units, row (or column) i and chunk j along k:
K-major  (i mod 8)·P + (i div 8)·SBO + j·(1, or LBO without swizzle);
MN-major, chunk c of 8 rows:  (c mod P)·1 + (c div P)·LBO + (k mod 8)·P + (k div 8)·SBO, or without
swizzle c·SBO + (k mod 8) + (k div 8)·LBO; with P = 1, 2, 4, 8 for swizzles of 0, 32, 64, 128 bytes.
The swizzle then permutes the 16-byte chunks of the address.
"""

from __future__ import annotations

from functools import cache

from dnncanon.gpu.emulator.instructions.bulk import swizzled
from dnncanon.gpu.emulator.instructions.copies import reallocate
from dnncanon.gpu.emulator.instructions.tensor import ELEMENTS
from dnncanon.gpu.emulator.machine.access import ASYNC_PROXY, READ, shared_pointer, touch
from dnncanon.gpu.emulator.machine.collectives import FULL_MASK, warp_sync
from dnncanon.gpu.emulator.machine.fibers import count_idle, fail, progress, resume_next
from dnncanon.gpu.emulator.machine.state import Failure, State, Thread
from dnncanon.gpu.emulator.native import (
    NativeFunction,
    bitcast,
    f32,
    f32x8,
    fma,
    native,
    ptr,
    splat,
    stack_array,
    u8,
    u16,
    u32,
    u64,
    void,
)

DEADLOCK, BAD_OPERAND = int(Failure.DEADLOCK), int(Failure.BAD_OPERAND)
LANES_DISAGREE = int(Failure.LANES_DISAGREE)
MISSING_FENCE = int(Failure.MISSING_WGMMA_FENCE)
IN_COLLECTIVE, RUNNING = int(State.IN_COLLECTIVE), int(State.RUNNING)
RING = 8192
TAG, TAG_MASK = 0x7FE00000, 0xFFFFE000


@native("emu.warpgroup_sync", attributes="noinline")
def warpgroup_sync(thread: ptr(Thread), site: u32, operation: ptr(u8), mask: u32) -> void:
    """All 128 threads of a warpgroup arrive; the last executes the operation for all."""
    block = thread.block
    group = thread.linear >> 7
    thread.operation = operation
    thread.site = site
    if (group + 1) * 128 > block.thread_count:
        fail(thread, BAD_OPERAND, site, 0)
    generation = block.group_generation[group]
    block.group_arrived[group] += 1
    first = block.threads[group << 7]
    if block.group_arrived[group] == 128:
        block.group_arrived[group] = 0
        block.group_generation[group] += 1
        thread.worker.warp_operations += 4
        progress(thread.worker)
        from_operation(thread, first, operation)
        return
    thread.state = IN_COLLECTIVE
    while block.group_generation[group] == generation:
        resume_next(thread)
        if block.group_generation[group] == generation and count_idle(thread):
            fail(thread, DEADLOCK, site, 0)
    thread.state = RUNNING


@native("emu.group_operation")
def from_operation(thread: ptr(Thread), first: ptr(Thread), operation: ptr(u8)) -> void:
    for i in range(128):
        if first[i].operation != operation:
            fail(thread, LANES_DISAGREE, thread.site, first[i].site)
    call_operation(thread, first, operation)


call_operation = NativeFunction(
    "emu.call_operation",
    [("thread", ptr(Thread)), ("first", ptr(Thread)), ("operation", ptr(u8))],
    void,
    text="define void @emu.call_operation(ptr %thread, ptr %first, ptr %operation) nounwind {\n"
    "  call void %operation(ptr %thread, ptr %first, i32 -1)\n  ret void\n}",
)


# ---- Pending accumulators
@native("emu.resolve")
def resolve(thread: ptr(Thread), bits: u32, before: u32) -> u32:
    """The value behind an accumulator, if it is a tag whose group is below `before`."""
    if bits & TAG_MASK != TAG or u64(thread.wgmma_values) == 0:
        return bits
    entry = thread.wgmma_values[bits & (RING - 1)]
    if u32(entry >> 32) >= before:
        return bits
    return u32(entry)


@native("emu.pend")
def pend(thread: ptr(Thread), bits: u32) -> u32:
    """Enter a value into the ring; returns its tag."""
    if u64(thread.wgmma_values) == 0:
        thread.wgmma_values = ptr(u64)(reallocate(ptr(u8)(0), u64(RING * 8)))
    slot = thread.wgmma_next & (RING - 1)
    thread.wgmma_next += 1
    thread.wgmma_values[slot] = u64(bits) | (u64(thread.wgmma_group) << 32)
    return u32(TAG) | slot


# ---- Operands in shared memory
@native("emu.chunk_address")
def chunk_address(descriptor: u64, row: u32, chunk: u32) -> u64:
    """K-major: shared address of 16-byte chunk `chunk` (along k) of row `row`."""
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    mode = u32(descriptor >> 62)
    width = u32(0) if mode == 0 else u32(256) >> mode
    pitch = u64(16) if mode == 0 else u64(width)
    step = leading if mode == 0 else u64(16)
    place = start + u64(row & 7) * pitch + u64(row >> 3) * stride + u64(chunk) * step
    return swizzled(place, width)


@native("emu.column_address")
def column_address(descriptor: u64, chunk: u32, k: u32) -> u64:
    """MN-major: shared address of the chunk of eight rows `chunk` at depth k."""
    start = (descriptor & 0x3FFF) << 4
    leading = ((descriptor >> 16) & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    mode = u32(descriptor >> 62)
    if mode == 0:
        return start + u64(chunk) * stride + u64(k & 7) * 16 + u64(k >> 3) * leading
    width = u32(256) >> mode
    per = width >> 4
    place = start + u64(chunk % per) * 16 + u64(chunk // per) * leading
    return swizzled(place + u64(k & 7) * u64(width) + u64(k >> 3) * stride, width)


@cache
def load_operand(element: str, depth: int, transposed: bool) -> NativeFunction:
    """operand[k · rows + i] = element (i, k) of a matrix in shared memory, as float32."""
    bits, decode = ELEMENTS[element]
    per_chunk = 128 // bits
    chunks = depth * bits // 128

    @native(f"emu.load_operand.{element}.{depth}.{transposed}", attributes="noinline")
    def execute(
        thread: ptr(Thread), descriptor: u64, rows: u32, operand: ptr(f32), site: u32
    ) -> void:
        if transposed:
            for k in range(depth):
                for c in range(rows >> 3):
                    where = column_address(descriptor, c, u32(k))
                    place = shared_pointer(thread, u32(where))
                    column = ptr(u16)(touch(thread, place, u32(16), site, u32(READ + ASYNC_PROXY)))
                    for e in range(8):
                        operand[u32(k) * rows + c * 8 + u32(e)] = decode(u32(column[e]))
        else:
            for i in range(rows):
                for j in range(chunks):
                    at = chunk_address(descriptor, i, u32(j))
                    spot = shared_pointer(thread, u32(at))
                    words = ptr(u32)(touch(thread, spot, u32(16), site, u32(READ + ASYNC_PROXY)))
                    for h in range(per_chunk):
                        word = words[h * bits // 32]
                        value = decode(word >> u32(h * bits % 32))
                        operand[u32(j * per_chunk + h) * rows + i] = value

    return execute


@cache
def mma_async(
    columns: int, element: str, depth: int, a_in_registers: bool, trans_a: bool, trans_b: bool
) -> NativeFunction:
    """Executor of wgmma.mma_async.m64n`columns`k`depth` with float32 accumulators.

    Inputs of a thread: A (a descriptor, or four registers), descriptor of B, whether to keep D,
    then columns / 2 accumulators; outputs as many.
    """
    bits, decode = ELEMENTS[element]
    per_word = 32 // bits
    span = 4 * per_word
    load_a, load_b = load_operand(element, depth, trans_a), load_operand(element, depth, trans_b)
    size_a, size_b, size_d = 64 * depth, columns * depth, 64 * columns
    first_b = 4 if a_in_registers else 1
    count = columns // 2
    vectors = columns // 8
    name = f"{columns}.{element}.{depth}.{int(a_in_registers)}{int(trans_a)}{int(trans_b)}"

    @native(f"emu.wgmma.{name}", attributes="noinline")
    def execute(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        a = stack_array(f32, size_a)
        b = stack_array(f32, size_b)
        d = stack_array(f32, size_d)
        site = thread.site
        if a_in_registers:
            for t in range(128):
                lane = t & 31
                inputs = first[t].inputs
                for i in range(4):
                    row = (t >> 5) * 16 + (lane >> 2) + 8 * (i & 1)
                    k = (i >> 1) * span + (lane & 3) * per_word
                    for e in range(per_word):
                        a[(k + e) * 64 + row] = decode(u32(inputs[i]) >> u32(e * bits))
        else:
            load_a(first, first.inputs[0], u32(64), a, site)
        load_b(first, first.inputs[first_b], u32(columns), b, site)
        for t in range(128):
            me = first[t]
            if me.wgmma_fenced == 0 and me.worker.strict != 0:
                fail(me, MISSING_FENCE, site, 0)
            keep = u32(me.inputs[first_b + 1]) != 0
            base = ((t >> 5) * 16 + ((t & 31) >> 2)) * columns + 2 * (t & 3)
            for n in range(count):
                value = f32(0.0)
                if keep:
                    pending = u32(me.inputs[first_b + 2 + n])
                    value = bitcast(f32, resolve(me, pending, u32(0xFFFFFFFF)))
                d[base + ((n >> 1) & 1) * 8 * columns + (n >> 2) * 8 + (n & 1)] = value
        rows = ptr(f32x8)(d)
        columns_b = ptr(f32x8)(b)
        for m in range(64):
            for v in range(vectors):
                total = rows[m * vectors + v]
                for x in range(depth):
                    total = fma(splat(f32x8, a[x * 64 + m]), columns_b[x * vectors + v], total)
                rows[m * vectors + v] = total
        for t in range(128):
            me = first[t]
            base = ((t >> 5) * 16 + ((t & 31) >> 2)) * columns + 2 * (t & 3)
            for n in range(count):
                spot = base + ((n >> 1) & 1) * 8 * columns + (n >> 2) * 8 + (n & 1)
                me.outputs[n] = u64(pend(me, bitcast(u32, d[spot])))

    return execute


@native("emu.wgmma_fence", inline=True)
def wgmma_fence(thread: ptr(Thread), site: u32) -> void:
    warp_sync(thread, site, ptr(u8)(0), u32(FULL_MASK))
    thread.wgmma_fenced = 1


@native("emu.wgmma_commit", inline=True)
def wgmma_commit(thread: ptr(Thread), site: u32) -> void:
    warp_sync(thread, site, ptr(u8)(0), u32(FULL_MASK))
    thread.wgmma_group += 1


@cache
def wgmma_wait(pending: int, count: int) -> NativeFunction:
    """wait_group: executed by a warp; inputs and outputs are `count` accumulators."""

    @native(f"emu.wgmma_wait.{pending}.{count}", attributes="noinline")
    def execute(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        for lane in range(32):
            me = first[lane]
            if me.wgmma_group > pending:
                me.wgmma_landed = me.wgmma_group - pending
            me.wgmma_fenced = 0
            for n in range(count):
                me.outputs[n] = u64(resolve(me, u32(me.inputs[n]), me.wgmma_landed))

    return execute
