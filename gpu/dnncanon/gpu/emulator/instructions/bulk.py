# mypy: ignore-errors
"""How the emulator executes mbarriers, bulk copies (TMA), named barriers and memory-model hints.

An mbarrier is one 64-bit word in shared memory: bits 0–19 arrivals pending in this phase, 20–39
arrivals per phase, 40–62 transaction bytes outstanding (biased), bit 63 the phase's parity. (The
hardware's own layout is undocumented; kernels may only use the instructions.)

A bulk load waits in its block's queue until somebody tests or waits for its mbarrier: then it
lands. A bulk store lands when its issuing thread waits for its group. So a missing wait shows.
"""

from __future__ import annotations

from functools import cache

from dnncanon.gpu.emulator.instructions.copies import reallocate
from dnncanon.gpu.emulator.instructions.scalar import f32_to_bf16, f32_to_f16
from dnncanon.gpu.emulator.machine.access import (
    ASYNC_PROXY,
    ATOMIC,
    READ,
    WRITE,
    shared_pointer,
    touch,
)
from dnncanon.gpu.emulator.machine.collectives import FULL_MASK, warp_sync
from dnncanon.gpu.emulator.machine.fibers import (
    barrier,
    count_idle,
    fail,
    named_barrier,
    progress,
    resume_next,
    yield_now,
)
from dnncanon.gpu.emulator.machine.findings import acquire_now, release_now
from dnncanon.gpu.emulator.machine.state import Failure, State, Thread
from dnncanon.gpu.emulator.native import (
    Array,
    NativeFunction,
    Struct,
    atomic_add,
    atomic_load,
    atomic_store,
    bitcast,
    compare_exchange,
    f16,
    f32,
    i1,
    i32,
    i64,
    memory_copy,
    memory_set,
    native,
    ptr,
    trailing_zeros,
    u8,
    u16,
    u32,
    u64,
    void,
)

AT_MBARRIER, RUNNING = int(State.AT_MBARRIER), int(State.RUNNING)
DEADLOCK, BAD_MBARRIER = int(Failure.DEADLOCK), int(Failure.BAD_MBARRIER)
BAD_OPERAND = int(Failure.BAD_OPERAND)
COUNT_MASK = (1 << 20) - 1
BYTES_BIAS = 1 << 21
BYTES_MASK = (1 << 23) - 1
PARITY = 1 << 63

# ---- Descriptors of tensors in global memory (128 bytes, like CUtensorMap; our own layout)
TensorDescriptor = Struct("TensorDescriptor")
TensorDescriptor.define(
    round_to=128,
    address=u64,
    strides=Array(u64, 5),  # bytes; dimension 0 is the innermost
    extents=Array(u32, 5),
    box=Array(u32, 5),
    rank=u32,
    element=u32,  # bytes
    swizzle=u32,  # 0, 32, 64 or 128 bytes
    magic=u32,
)
MAGIC = 0x544D4150

Bulk = Struct("Bulk")
Bulk.define(
    round_to=16,
    descriptor=ptr(TensorDescriptor),  # null: a plain run of bytes
    source=ptr(u8),
    destination=ptr(u8),
    barrier=ptr(u64),
    owner=ptr(Thread),
    coordinates=Array(i32, 5),
    size=u32,
    group=u32,
    store=u32,
    site=u32,
    done=u32,
)
BULK_BYTES = Bulk.size


# ---- mbarriers
@native("emu.mbarrier_make", inline=True)
def mbarrier_make(pending: u64, expected: u64, bytes_due: u64, parity: u64) -> u64:
    return pending | (expected << 20) | (bytes_due << 40) | parity


@native("emu.mbarrier_word", inline=True)
def mbarrier_word(thread: ptr(Thread), site: u32, address: u32) -> ptr(u64):
    place = shared_pointer(thread, address)
    return ptr(u64)(touch(thread, place, u32(8), site, u32(ATOMIC)))


@native("emu.mbarrier_init")
def mbarrier_init(thread: ptr(Thread), site: u32, address: u32, count: u32) -> void:
    word = mbarrier_word(thread, site, address)
    word[0] = mbarrier_make(u64(count), u64(count), u64(BYTES_BIAS), u64(0))


@native("emu.valid_count", inline=True)
def valid_count(expected: u64) -> i1:
    """Fresh shared memory holds all ones, which is not a count that kernels use."""
    return expected != 0 and expected != COUNT_MASK


@native("emu.mbarrier_update")
def mbarrier_update(
    thread: ptr(Thread), site: u32, word: ptr(u64), arrivals: u64, more_bytes: i64
) -> void:
    """Count arrivals and transaction bytes; the phase ends when nothing is pending."""
    old = word[0]
    pending = old & COUNT_MASK
    expected = (old >> 20) & COUNT_MASK
    bytes_due = u64(i64((old >> 40) & BYTES_MASK) + more_bytes)
    parity = old & PARITY
    if arrivals > pending or not valid_count(expected) or bytes_due > BYTES_MASK:
        fail(thread, BAD_MBARRIER, site, 0)
    pending = pending - arrivals
    if pending == 0 and bytes_due == BYTES_BIAS:
        pending = expected
        parity = parity ^ PARITY
        progress(thread.worker)
    word[0] = mbarrier_make(pending, expected, bytes_due, parity)


@native("emu.mbarrier_arrive")
def mbarrier_arrive(thread: ptr(Thread), site: u32, address: u32) -> void:
    release_now(thread)
    mbarrier_update(thread, site, mbarrier_word(thread, site, address), u64(1), i64(0))


@native("emu.mbarrier_expect")
def mbarrier_expect(thread: ptr(Thread), site: u32, address: u32, count: u32) -> void:
    """arrive.expect_tx."""
    release_now(thread)
    mbarrier_update(thread, site, mbarrier_word(thread, site, address), u64(1), i64(count))


@native("emu.mbarrier_expect_only")
def mbarrier_expect_only(thread: ptr(Thread), site: u32, address: u32, count: u32) -> void:
    mbarrier_update(thread, site, mbarrier_word(thread, site, address), u64(0), i64(count))


@native("emu.mbarrier_try")
def mbarrier_try(thread: ptr(Thread), site: u32, address: u32, parity: u32) -> u32:
    """test_wait.parity: 1 when the phase of that parity is complete."""
    word = mbarrier_word(thread, site, address)
    land_bulk_loads(thread, word)
    done = u32((word[0] >> 63) != u64(parity & 1))
    if done != 0:
        acquire_now(thread)
    return done


@native("emu.mbarrier_poll")
def mbarrier_poll(thread: ptr(Thread), site: u32, address: u32, parity: u32) -> u32:
    done = mbarrier_try(thread, site, address, parity)
    if done == 0:
        yield_now(thread, site)
    return done


@native("emu.mbarrier_wait", attributes="noinline")
def mbarrier_wait(thread: ptr(Thread), site: u32, address: u32, parity: u32) -> void:
    """try_wait.parity in a loop."""
    thread.site = site
    while mbarrier_try(thread, site, address, parity) == 0:
        thread.state = AT_MBARRIER
        if count_idle(thread):
            fail(thread, DEADLOCK, site, 0)
        resume_next(thread)
    thread.state = RUNNING


# ---- Bulk copies
@native("emu.swizzled", inline=True)
def swizzled(address: u64, swizzle: u32) -> u64:
    """Shared-window address with its 16-byte chunk number xored by bits 7…9."""
    mask = u64((swizzle >> 4) - 1) if swizzle != 0 else u64(0)
    return address ^ (((address >> 7) & mask) << 4)


@native("emu.copy_tile", attributes="noinline")
def copy_tile(thread: ptr(Thread), entry: ptr(Bulk)) -> u32:
    """Copy a box between global and shared memory; returns its bytes. Elements of the box that lie
    outside the tensor are zero in shared memory, and are not stored."""
    tensor = entry.descriptor
    if tensor.magic != MAGIC:
        fail(thread, BAD_OPERAND, entry.site, 0)
    shared = entry.source if entry.store != 0 else entry.destination
    window = u64(thread.block.shared)
    offset = u64(shared) - window
    element = tensor.element
    count = u32(1)
    for d in range(tensor.rank):
        count = count * tensor.box[d]
    for n in range(count):
        rest = n
        inside = i1(True)
        place = u64(0)
        for k in range(tensor.rank):
            c = entry.coordinates[k] + i32(rest % tensor.box[k])
            rest = rest // tensor.box[k]
            if c < 0 or c >= i32(tensor.extents[k]):
                inside = False
            place += u64(i64(c)) * tensor.strides[k]
        spot = ptr(u8)(window + swizzled(offset + u64(n * element), tensor.swizzle))
        outer = ptr(u8)(tensor.address + place)
        if entry.store != 0:
            if inside:
                source = touch(thread, spot, element, entry.site, u32(READ + ASYNC_PROXY))
                memory_copy(touch(thread, outer, element, entry.site, u32(WRITE)), source, element)
        else:
            target = touch(thread, spot, element, entry.site, u32(WRITE + ASYNC_PROXY))
            if inside:
                origin = touch(thread, outer, element, entry.site, u32(READ))
                memory_copy(target, origin, element)
            else:
                memory_set(target, 0, element)
    return count * element


@native("emu.land_bulk_loads", attributes="noinline")
def land_bulk_loads(thread: ptr(Thread), word: ptr(u64)) -> void:
    """Land the loads that signal this mbarrier."""
    block = thread.block
    queue = ptr(Bulk)(block.bulk)
    open_entries = u32(0)
    for i in range(block.bulk_count):
        entry = queue[i]
        if entry.done == 0 and entry.store == 0 and entry.barrier == word:
            entry.done = 1
            size = entry.size
            if u64(entry.descriptor) != 0:
                size = copy_tile(entry.owner, entry)
            else:
                source = touch(entry.owner, entry.source, size, entry.site, u32(READ))
                target = touch(
                    entry.owner, entry.destination, size, entry.site, u32(WRITE + ASYNC_PROXY)
                )
                memory_copy(target, source, size)
            release_now(entry.owner)
            mbarrier_update(thread, entry.site, word, u64(0), -i64(size))
        open_entries += u32(entry.done == 0)
    if open_entries == 0:
        block.bulk_count = 0


@native("emu.new_bulk", attributes="noinline")
def new_bulk(thread: ptr(Thread), site: u32) -> ptr(Bulk):
    block = thread.block
    if block.bulk_count == block.bulk_capacity:
        capacity = block.bulk_capacity * 2
        if capacity == 0:
            capacity = u32(64)
        block.bulk = reallocate(block.bulk, u64(capacity) * BULK_BYTES)
        block.bulk_capacity = capacity
    entry = ptr(Bulk)(block.bulk)[block.bulk_count]
    block.bulk_count += 1
    entry.descriptor = ptr(TensorDescriptor)(0)
    entry.barrier = ptr(u64)(0)
    entry.owner = thread
    entry.group = thread.bulk_group
    entry.store = 0
    entry.site = site
    entry.done = 0
    return entry


@native("emu.bulk_load")
def bulk_load(
    thread: ptr(Thread), site: u32, destination: u32, source: u64, size: u32, address: u32
) -> void:
    """cp.async.bulk.shared.global: `size` bytes, signalled on the mbarrier at `address`."""
    entry = new_bulk(thread, site)
    entry.source = ptr(u8)(source)
    entry.destination = shared_pointer(thread, destination)
    entry.barrier = ptr(u64)(shared_pointer(thread, address))
    entry.size = size


@cache
def tensor_load(rank: int) -> NativeFunction:
    """cp.async.bulk.tensor.{rank}d.shared.global: coordinates innermost first."""
    return _with_coordinates("load", rank, ["to: u32", "tensor: u64"], "barrier: u32", set_load)


@cache
def tensor_store(rank: int) -> NativeFunction:
    """cp.async.bulk.tensor.{rank}d.global.shared: joins the thread's current bulk group."""
    return _with_coordinates("store", rank, ["tensor: u64"], "source: u32", set_store)


def _with_coordinates(name, rank, before, after, common):
    """An executor of `rank` coordinates, which calls `common` with five; as IR text, since a native
    function has a fixed number of parameters."""
    kinds = {"u32": "i32", "u64": "i64"}
    parameters = ["ptr %thread", "i32 %site"]
    parameters += [f"{kinds[p.split()[1]]} %{p.split(':')[0]}" for p in before]
    given = [f"i32 %c{i}" for i in range(rank)]
    last = f"i32 %{after.split(':')[0]}"
    passed = [*parameters, *given, *["i32 0"] * (5 - rank), last]
    symbol = f"emu.tensor_{name}.{rank}"
    return NativeFunction(
        symbol, [], void, calls=[common],
        text=f"define void @{symbol}({', '.join([*parameters, *given, last])}) alwaysinline nounwind "
        f"{{\n  call void @{common.symbol}({', '.join(passed)})\n  ret void\n}}",
    )  # fmt: skip


@native("emu.set_load")
def set_load(
    thread: ptr(Thread), site: u32, to: u32, tensor: u64, c0: i32, c1: i32, c2: i32, c3: i32,
    c4: i32, address: u32,
) -> void:  # fmt: skip
    entry = new_bulk(thread, site)
    entry.descriptor = ptr(TensorDescriptor)(tensor)
    entry.destination = shared_pointer(thread, to)
    entry.barrier = ptr(u64)(shared_pointer(thread, address))
    set_coordinates(entry, c0, c1, c2, c3, c4)


@native("emu.set_store")
def set_store(
    thread: ptr(Thread), site: u32, tensor: u64, c0: i32, c1: i32, c2: i32, c3: i32, c4: i32,
    source: u32,
) -> void:  # fmt: skip
    entry = new_bulk(thread, site)
    entry.descriptor = ptr(TensorDescriptor)(tensor)
    entry.source = shared_pointer(thread, source)
    entry.store = 1
    set_coordinates(entry, c0, c1, c2, c3, c4)


@native("emu.set_coordinates", inline=True)
def set_coordinates(entry: ptr(Bulk), c0: i32, c1: i32, c2: i32, c3: i32, c4: i32) -> void:
    entry.coordinates[0] = c0
    entry.coordinates[1] = c1
    entry.coordinates[2] = c2
    entry.coordinates[3] = c3
    entry.coordinates[4] = c4


@native("emu.bulk_commit", inline=True)
def bulk_commit(thread: ptr(Thread), site: u32) -> void:
    thread.bulk_group += 1


@native("emu.land_bulk_stores", attributes="noinline")
def land_bulk_stores(thread: ptr(Thread), before: u32) -> void:
    queue = ptr(Bulk)(thread.block.bulk)
    for i in range(thread.block.bulk_count):
        entry = queue[i]
        mine = entry.owner == thread and entry.store != 0 and entry.done == 0
        if mine and entry.group < before:
            copy_tile(thread, entry)
            entry.done = 1


@cache
def bulk_wait(pending: int) -> NativeFunction:
    @native(f"emu.bulk_wait.{pending}", inline=True)
    def execute(thread: ptr(Thread), site: u32) -> void:
        if thread.bulk_group > pending:
            land_bulk_stores(thread, thread.bulk_group - pending)

    return execute


# ---- Barriers beside __syncthreads
@native("emu.bar_sync", inline=True)
def bar_sync(thread: ptr(Thread), site: u32, number: u32, count: u32) -> void:
    named_barrier(thread, site, number & 15, count, u32(1))


@native("emu.bar_arrive", inline=True)
def bar_arrive(thread: ptr(Thread), site: u32, number: u32, count: u32) -> void:
    named_barrier(thread, site, number & 15, count, u32(0))


@native("emu.cluster_sync", inline=True)
def cluster_sync(thread: ptr(Thread), site: u32) -> void:
    """A cluster of one block."""
    barrier(thread, site, u32(0))


@native("emu.proxy_fence", inline=True)
def proxy_fence(thread: ptr(Thread), site: u32) -> void:
    """fence.proxy.async: the thread's writes become visible to TMA and wgmma."""
    thread.proxy_fences += 1


@native("emu.tensor_map_fence", inline=True)
def tensor_map_fence(thread: ptr(Thread), site: u32, address: u64) -> void:
    """fence.proxy.tensormap: descriptors are written before a launch, so here they are always seen."""


# ---- Reductions and elections over a warp
@cache
def redux(operation: str) -> NativeFunction:
    """redux.sync.{operation}: value, mask -> the reduction over the lanes of the mask."""
    signed = operation.endswith(".s32")
    name = operation.split(".")[0]
    kind = i32 if signed else u32
    is_add, is_and, is_or, is_xor = (name == n for n in ("add", "and", "or", "xor"))
    is_max = name == "max"

    @native(f"emu.redux_all.{operation}", attributes="noinline")
    def execute_all(thread: ptr(Thread), first: ptr(Thread), members: u32) -> void:
        total = kind(first[trailing_zeros(members)].arguments[0])
        rest = members & (members - 1)
        while rest != 0:
            value = kind(first[trailing_zeros(rest)].arguments[0])
            rest = rest & (rest - 1)
            if is_add:
                total = total + value
            elif is_and:
                total = total & value
            elif is_or:
                total = total | value
            elif is_xor:
                total = total ^ value
            elif is_max:
                total = value if value > total else total
            else:
                total = value if value < total else total
        rest = members
        while rest != 0:
            first[trailing_zeros(rest)].results[0] = u32(total)
            rest = rest & (rest - 1)

    @native(f"emu.redux.{operation}", inline=True)
    def execute(thread: ptr(Thread), site: u32, value: u32, mask: u32) -> u32:
        thread.arguments[0] = value
        warp_sync(thread, site, execute_all, mask)
        return thread.results[0]

    return execute


@native("emu.elect", inline=True)
def elect(thread: ptr(Thread), site: u32) -> u32:
    """elect.sync: 1 in the lowest lane of the full warp."""
    warp_sync(thread, site, ptr(u8)(0), u32(FULL_MASK))
    return u32(trailing_zeros(thread.mask) == thread.lane)


# ---- Memory order between blocks
@native("emu.load_acquire", inline=True)
def load_acquire(thread: ptr(Thread), site: u32, address: u64) -> u32:
    yield_now(thread, site)
    acquire_now(thread)
    return atomic_load(ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(ATOMIC))))


@native("emu.store_release", inline=True)
def store_release(thread: ptr(Thread), site: u32, address: u64, value: u32) -> void:
    release_now(thread)
    place = ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(ATOMIC)))
    atomic_store(place, value)


@native("emu.add_release", inline=True)
def add_release(thread: ptr(Thread), site: u32, address: u64, value: u32) -> u32:
    release_now(thread)
    acquire_now(thread)
    return atomic_add(ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(ATOMIC))), value)


# ---- Packed 16-bit atomics
@native("emu.add_pair_f16", inline=True)
def add_pair_f16(a: u32, b: u32) -> u32:
    low = f32_to_f16(f32(bitcast(f16, u16(a))) + f32(bitcast(f16, u16(b))))
    high = f32_to_f16(f32(bitcast(f16, u16(a >> 16))) + f32(bitcast(f16, u16(b >> 16))))
    return (u32(high) << 16) | u32(low)


@native("emu.add_pair_bf16", inline=True)
def add_pair_bf16(a: u32, b: u32) -> u32:
    low = f32_to_bf16(bitcast(f32, a << 16) + bitcast(f32, b << 16))
    high = f32_to_bf16(bitcast(f32, a & 0xFFFF0000) + bitcast(f32, b & 0xFFFF0000))
    return (u32(high) << 16) | u32(low)


@cache
def atomic_add_pair(element: str) -> NativeFunction:
    """atom.global.add.noftz.{element}x2: both halves are added, each atomically."""
    add = {"f16": add_pair_f16, "bf16": add_pair_bf16}[element]

    @native(f"emu.atomic_add_pair.{element}")
    def execute(thread: ptr(Thread), site: u32, address: u64, value: u32) -> u32:
        place = ptr(u32)(touch(thread, ptr(u8)(address), u32(4), site, u32(ATOMIC)))
        while True:
            old = atomic_load(place)
            if compare_exchange(place, old, add(old, value)) == old:
                return old

    return execute
