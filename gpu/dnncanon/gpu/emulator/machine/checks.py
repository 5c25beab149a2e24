# mypy: ignore-errors
"""Run time of check and profile mode: what happens at every memory access of a kernel.

`touch` finds the buffer that an access falls into and examines it: bounds, alignment, gaps between
strides, writes to read-only memory; then, against a shadow of every element, races, reads of what
nothing wrote, and use of memory whose asynchronous copy has not been waited for. A bad access is
recorded and redirected to a scratch area, so the kernel runs on safely.

Two accesses to an element, at least one of them a write and not both atomic, race unless ordered:
within a block by a barrier (`Block.epoch`), within a warp by __syncwarp (`Thread.epoch`), and
anywhere by a release of the first thread's side after its access and an acquire of the second's
before its own (mbarriers, named barriers, fences with atomics). The last rule does not prove that
the acquire saw that release, so it can miss races; it does not invent any.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.access import ASYNC, ASYNC_PROXY, ATOMIC, READ, WRITE
from dnncanon.gpu.emulator.machine.fibers import next_random, resume_next
from dnncanon.gpu.emulator.machine.findings import Kind, report
from dnncanon.gpu.emulator.machine.profiling import profile_access, touch_sectors
from dnncanon.gpu.emulator.machine.state import (
    Buffer,
    LocalArray,
    Shadow,
    Thread,
)
from dnncanon.gpu.emulator.native import (
    i1,
    memory_set,
    native,
    ptr,
    u8,
    u32,
    u64,
    void,
)

READ_KIND, WRITE_KIND = READ, WRITE


OUT_OF_BOUNDS_READ, OUT_OF_BOUNDS_WRITE = (
    int(Kind.OUT_OF_BOUNDS_READ),
    int(Kind.OUT_OF_BOUNDS_WRITE),
)
MISALIGNED, GAP, READ_ONLY = int(Kind.MISALIGNED), int(Kind.GAP), int(Kind.READ_ONLY)
RACE_READ_WRITE, RACE_WRITE_WRITE = int(Kind.RACE_READ_WRITE), int(Kind.RACE_WRITE_WRITE)
RACE_WRITE_READ = int(Kind.RACE_WRITE_READ)
UNINITIALISED_SHARED = int(Kind.UNINITIALISED_SHARED)
UNINITIALISED_GLOBAL = int(Kind.UNINITIALISED_GLOBAL)
PROXY_FENCE = int(Kind.PROXY_FENCE)
UNINITIALISED_LOCAL = int(Kind.UNINITIALISED_LOCAL)
ASYNC_IN_FLIGHT = int(Kind.ASYNC_IN_FLIGHT)
ASYNC_NEVER_AWAITED = int(Kind.ASYNC_NEVER_AWAITED)

# Flags of a Buffer
SHARED, CHECK_WRITTEN, CONSTANT = 1, 2, 4
# Flags of a Shadow's writer
BY_ATOMIC, IN_FLIGHT, BY_PROXY = 1, 2, 4
RED_ZONE = 64  # bytes on both sides of a local array
PREEMPT_MASK = 15  # with a seed, one access in 16 lets another thread run first


@native("emu.find_buffer")
def find_buffer(thread: ptr(Thread), address: u64, size: u32) -> ptr(Buffer):
    """The buffer that holds [address, address + size), or null."""
    worker = thread.worker
    block = thread.block
    window = u64(block.shared)
    offset = address - window
    in_shared = offset < block.shared_bytes
    buffers = ptr(Buffer)(worker.buffers)
    for i in range(worker.buffer_count):
        each = buffers[i]
        start = address
        if each.flags & SHARED != 0:
            if not in_shared:
                continue
            start = offset
        distance = start - each.base
        if distance < each.size and distance + u64(size) <= each.size:
            return each
    return ptr(Buffer)(0)


@native("emu.touch", attributes="noinline")
def touch(thread: ptr(Thread), place: ptr(u8), size: u32, site: u32, how: u32) -> ptr(u8):
    """Examine an access and return the pointer to use for it."""
    worker = thread.worker
    proxy = how & ASYNC_PROXY != 0
    kind = how & ~u32(ASYNC_PROXY)
    address = u64(place)
    if worker.seed != 0 and worker.checks != 0:
        preempt(thread)
    stack = address - u64(worker.stacks)
    if stack < worker.stacks_size:
        return touch_local(thread, place, size, site, kind)
    buffer = find_buffer(thread, address, size)
    if u64(buffer) == 0:
        wrong = OUT_OF_BOUNDS_READ if kind == READ_KIND else u32(OUT_OF_BOUNDS_WRITE)
        report(thread, wrong, site, address, u32(0))
        return worker.scratch
    shared = buffer.flags & SHARED != 0
    offset = address - buffer.base
    if shared:
        offset = offset - u64(thread.block.shared)
    if worker.profile_on != 0:
        profile_access(thread, address, size, site, kind, u32(shared))
        if u64(buffer.sectors) != 0:
            touch_sectors(buffer, address, size, kind)
    if worker.checks == 0:
        return place
    if address & u64(natural_alignment(size) - 1) != 0:
        report(thread, u32(MISALIGNED), site, address, u32(0))
    if kind != READ_KIND and buffer.flags & CONSTANT != 0:
        report(thread, u32(READ_ONLY), site, address, u32(0))
        return worker.scratch
    if in_gap(buffer, offset, size):
        report(thread, u32(GAP), site, address, u32(0))
        return worker.scratch
    if u64(buffer.shadow) != 0:
        shadows = buffer.shadow
        if shared:
            shadows = shadows + thread.block.slot * buffer.shadow_bytes
        touch_shadow(thread, buffer, ptr(Shadow)(shadows), offset, size, site, kind, address, proxy)
    return place


@native("emu.in_gap", inline=True)
def in_gap(buffer: ptr(Buffer), offset: u64, size: u32) -> i1:
    if u64(buffer.valid) == 0:
        return False
    return buffer.valid[offset] == 0 or buffer.valid[offset + u64(size) - 1] == 0


@native("emu.alignment")
def natural_alignment(size: u32) -> u32:
    """The alignment that an access of `size` bytes needs: its size, for powers of two up to 16."""
    if size & (size - 1) != 0:
        return u32(1)
    return size if size <= 16 else u32(16)


@native("emu.preempt", attributes="noinline")
def preempt(thread: ptr(Thread)) -> void:
    thread.random = next_random(thread.random)
    if thread.random & PREEMPT_MASK == 0 and thread.worker.fibers != 0:
        thread.worker.idle = 0
        resume_next(thread)


# ---- Local arrays: [header, red zone | data | red zone | one byte per byte: written?]
@native("emu.extent_of", inline=True)
def extent_of(size: u32) -> u64:
    """Bytes of a local array with all that is around it."""
    return u64(size) * 2 + 2 * RED_ZONE


@native("emu.local_array", attributes="noinline")
def local_array(thread: ptr(Thread), memory: ptr(u8), size: u32) -> ptr(u8):
    """Enter a local array into the thread's list; everything in it becomes unwritten.

    Arrays that lay where it lies now are no more: LLVM gives the same memory to arrays that are not needed
    at the same time, and in a loop to one after the other again and again.
    """
    header = ptr(LocalArray)(memory)
    behind = u64(memory) + extent_of(size)
    before = ptr(LocalArray)(0)
    each = thread.locals
    while u64(each) != 0:
        if u64(each) < behind and u64(memory) < u64(each) + extent_of(each.size):
            if u64(before) == 0:
                thread.locals = each.next
            else:
                before.next = each.next
        else:
            before = each
        each = each.next
    header.next = thread.locals
    thread.locals = header
    header.size = size
    memory_set(memory + RED_ZONE, 0xFF, size)
    memory_set(memory + 2 * RED_ZONE + size, 0, size)
    return memory + RED_ZONE


@native("emu.touch_local")
def touch_local(thread: ptr(Thread), place: ptr(u8), size: u32, site: u32, kind: u32) -> ptr(u8):
    address = u64(place)
    worker = thread.worker
    each = thread.locals
    while u64(each) != 0:
        distance = address - u64(each) - RED_ZONE
        if distance < u64(each.size) and distance + u64(size) <= u64(each.size):
            if address & u64(natural_alignment(size) - 1) != 0:
                report(thread, u32(MISALIGNED), site, address, u32(0))
            written = ptr(u8)(each) + 2 * RED_ZONE + each.size
            for i in range(size):
                if kind == READ_KIND:
                    if written[distance + u64(i)] == 0:
                        report(thread, u32(UNINITIALISED_LOCAL), site, address, u32(0))
                        break
                else:
                    written[distance + u64(i)] = 1
            return place
        if address - u64(each) < extent_of(each.size):
            wrong = OUT_OF_BOUNDS_READ if kind == READ_KIND else u32(OUT_OF_BOUNDS_WRITE)
            report(thread, wrong, site, address, u32(0))
            return worker.scratch
        each = each.next
    index = (address - u64(worker.stacks)) // worker.stack_size
    if worker.fibers != 0 and worker.blocks.threads[index] != thread:
        report(thread, u32(OUT_OF_BOUNDS_WRITE), site, address, u32(0))
        return worker.scratch
    return place


# ---- Shadows
@native("emu.ordered")
def ordered(thread: ptr(Thread), tag: u32, mine: u32, epoch: u32, warp_epoch: u32, time: u32) -> i1:
    """Does the earlier access (tag, epoch, …) happen before what the thread does now?"""
    if tag == 0 or tag == mine:
        return True
    block = thread.block
    worker = thread.worker
    if tag >> 10 == mine >> 10:
        if epoch != block.epoch:
            return True
        if tag >> 5 == mine >> 5 and warp_epoch < thread.epoch:
            return True
        owner = block.threads[tag & 1023]
        return owner.released_at > time and thread.acquired_at > time
    released = worker.block_released[u64((tag >> 10) - 1)]
    return released > time and block.acquired_at > time


@native("emu.unordered", inline=True)
def unordered(thread: ptr(Thread), shadow: ptr(Shadow), mine: u32, matters: i1) -> i1:
    """Is the last write to an element unordered with what the thread does now?"""
    if not matters:
        return False
    time = shadow.time
    return not ordered(thread, shadow.writer, mine, shadow.epoch, shadow.warp_epoch, time)


@native("emu.unfenced", inline=True)
def unfenced(thread: ptr(Thread), shadow: ptr(Shadow)) -> i1:
    """Has the writer of an element executed no fence.proxy.async since it wrote?"""
    if shadow.flags & BY_PROXY != 0 or shadow.writer == 0:
        return False
    return thread.block.threads[shadow.writer & 1023].proxy_fences == shadow.fences


@native("emu.touch_shadow", attributes="noinline")
def touch_shadow(
    thread: ptr(Thread), buffer: ptr(Buffer), shadows: ptr(Shadow), offset: u64, size: u32,
    site: u32, kind: u32, address: u64, proxy: i1,
) -> void:  # fmt: skip
    block = thread.block
    shared = buffer.flags & SHARED != 0
    mine = ((u32(block.linear) + 1) << 10) | thread.linear
    first = offset >> u64(buffer.granule)
    last = (offset + u64(size) - 1) >> u64(buffer.granule)
    whole = size >= u32(1) << buffer.granule
    element = first
    while element <= last:
        shadow = shadows[element]
        if kind == READ_KIND:
            note_read(thread, buffer, shadow, mine, shared, whole, site, address, proxy)
        else:
            note_write(thread, shadow, mine, kind, shared, whole, site, address)
            if proxy:
                shadow.flags = shadow.flags | BY_PROXY
        element += 1


@native("emu.note_read")
def note_read(
    thread: ptr(Thread), buffer: ptr(Buffer), shadow: ptr(Shadow), mine: u32, shared: i1,
    whole: i1, site: u32, address: u64, proxy: i1,
) -> void:  # fmt: skip
    writer = shadow.writer
    stale = shared and writer >> 10 != mine >> 10
    if shadow.flags & IN_FLIGHT != 0 and not stale:
        report(thread, u32(ASYNC_IN_FLIGHT), site, address, writer)
    elif buffer.flags & CHECK_WRITTEN != 0 and (writer == 0 or stale):
        unwritten = UNINITIALISED_SHARED if shared else u32(UNINITIALISED_GLOBAL)
        report(thread, unwritten, site, address, u32(0))
    elif unordered(thread, shadow, mine, whole and not stale):
        report(thread, u32(RACE_READ_WRITE), site, address, writer)
    elif proxy and not stale and unfenced(thread, shadow):
        report(thread, u32(PROXY_FENCE), site, address, writer)
    current = shadow.reader >> 10 == mine >> 10 and shadow.reader_epoch == thread.block.epoch
    if current and shadow.reader != mine:
        shadow.other_reader = mine
        shadow.other_time = thread.worker.clock
        shadow.other_warp_epoch = thread.epoch
        return
    if shadow.other_reader >> 10 == mine >> 10:
        shadow.other_reader = u32(0)  # it read before a barrier that is behind this thread
    if shadow.reader >> 10 != mine >> 10 and shadow.reader != 0 and not shared:
        shadow.other_reader = shadow.reader
        shadow.other_time = shadow.reader_time
        shadow.other_warp_epoch = shadow.reader_warp_epoch
    shadow.reader = mine
    shadow.reader_epoch = thread.block.epoch
    shadow.reader_warp_epoch = thread.epoch
    shadow.reader_time = thread.worker.clock


@native("emu.note_write")
def note_write(
    thread: ptr(Thread), shadow: ptr(Shadow), mine: u32, kind: u32, shared: i1, whole: i1,
    site: u32, address: u64,
) -> void:  # fmt: skip
    writer = shadow.writer
    stale = shared and writer >> 10 != mine >> 10
    atomic = kind == ATOMIC
    both = atomic and shadow.flags & BY_ATOMIC != 0
    landing = shadow.flags & IN_FLIGHT != 0 and writer == mine
    if whole and not stale and not both and not landing:
        if shadow.flags & IN_FLIGHT != 0:
            report(thread, u32(ASYNC_IN_FLIGHT), site, address, writer)
        elif unordered(thread, shadow, mine, i1(True)):
            report(thread, u32(RACE_WRITE_WRITE), site, address, writer)
    if whole:
        check_reader(
            thread, shadow.reader, mine, shadow.reader_epoch, shadow.reader_warp_epoch,
            shadow.reader_time, shared, site, address,
        )  # fmt: skip
        check_reader(
            thread, shadow.other_reader, mine, shadow.reader_epoch, shadow.other_warp_epoch,
            shadow.other_time, shared, site, address,
        )  # fmt: skip
    shadow.writer = mine
    shadow.epoch = thread.block.epoch
    shadow.warp_epoch = thread.epoch
    shadow.time = thread.worker.clock
    shadow.fences = thread.proxy_fences
    flags = u32(BY_ATOMIC) if atomic else u32(0)
    shadow.flags = flags | (u32(IN_FLIGHT) if kind == WRITE + ASYNC else u32(0))


@native("emu.check_reader")
def check_reader(
    thread: ptr(Thread), reader: u32, mine: u32, epoch: u32, warp_epoch: u32, time: u32,
    shared: i1, site: u32, address: u64,
) -> void:  # fmt: skip
    """Report a write to what another thread has read and may still be reading."""
    if shared and reader >> 10 != mine >> 10:
        return
    if not ordered(thread, reader, mine, epoch, warp_epoch, time):
        report(thread, u32(RACE_WRITE_READ), site, address, reader)


ROOTS = [touch, local_array]
