# mypy: ignore-errors
"""Run time of profile mode: memory requests of warps, grouped as a GPU would group them.

The k-th execution of an access by each lane of a warp is one request: exact as long as control
flow is uniform in the warp. Addresses are kept until the block ends; then each request's global
sectors of 32 bytes are counted, or its shared-memory wavefronts: the most distinct 4-byte words
that fall into one of 32 banks, over the whole warp for accesses of up to 4 bytes, half warps for 8,
quarter warps for 16. Those figures know no cache: they are what the L1 is asked for. What reaches
DRAM is counted under a cache without limits that is empty before the launch and written back after it:
each sector is read once, unless the kernel had written to it before, and written once. There is no time
in the model.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.access import READ, WRITE
from dnncanon.gpu.emulator.machine.state import Block, Buffer, Requests, Thread, Worker
from dnncanon.gpu.emulator.native import (
    external,
    i64,
    memory_set,
    native,
    popcount,
    ptr,
    stack_array,
    u8,
    u32,
    u64,
    void,
)

READ_KIND, WRITE_KIND = READ, WRITE
reallocate = external("realloc", ptr(u8), ptr(u8), u64)
SLOTS_PER_SITE = 4  # shared or global, read or write
FIGURES = 4  # requests, bytes, sectors or wavefronts, the least number of those
LANE_BYTES = 8 * 32
SECTOR_BYTES = 32
MOST_SECTORS = 192  # of a request
# Flags of a sector
DRAM_READ, DRAM_WRITTEN = 1, 2


@native("emu.profile_access", attributes="noinline")
def profile_access(
    thread: ptr(Thread), address: u64, size: u32, site: u32, kind: u32, shared: u32
) -> void:
    """Enter an access into its request."""
    worker = thread.worker
    block = thread.block
    slots = worker.site_count * SLOTS_PER_SITE
    slot = site * SLOTS_PER_SITE + shared * 2 + u32(kind != READ_KIND)
    number = block.slot * u64(block.thread_count) + u64(thread.linear)
    warp = block.slot * u64(block.warp_count) + u64(thread.linear >> 5)
    counter = number * u64(slots) + u64(slot)
    k = worker.executions[counter]
    worker.executions[counter] = k + 1
    entry = worker.requests[warp * u64(slots) + u64(slot)]
    if k >= entry.capacity:
        grow(entry, k)
    entry.size = size
    entry.addresses[u64(k) * 32 + u64(thread.lane)] = address


@native("emu.touch_sectors", inline=True)
def touch_sectors(buffer: ptr(Buffer), address: u64, size: u32, kind: u32) -> void:
    """Note what an access to global memory costs DRAM: nothing where the cache holds its sectors."""
    first = buffer.base >> 5
    sector = (address >> 5) - first
    last = ((address + u64(size) - 1) >> 5) - first
    while sector <= last:
        flags = u32(buffer.sectors[sector])
        if flags == 0 and kind & WRITE_KIND == 0:  # a load or an atomic operation
            flags = u32(DRAM_READ)
        if kind != READ_KIND:
            flags = flags | u32(DRAM_WRITTEN)
        buffer.sectors[sector] = u8(flags)
        sector += 1


@native("emu.grow_requests", attributes="noinline")
def grow(entry: ptr(Requests), k: u32) -> void:
    capacity = entry.capacity * 2
    if capacity <= k:
        capacity = k + 8
    bytes_now = u64(capacity) * LANE_BYTES
    bytes_before = u64(entry.capacity) * LANE_BYTES
    entry.addresses = ptr(u64)(reallocate(ptr(u8)(entry.addresses), bytes_now))
    memory_set(ptr(u8)(entry.addresses) + bytes_before, 0, bytes_now - bytes_before)
    entry.capacity = capacity


@native("emu.flush_profile", attributes="noinline")
def flush_profile(worker: ptr(Worker)) -> void:
    """Evaluate and clear the requests of the blocks that have just ended."""
    for b in range(worker.resident):
        flush_block(worker, worker.blocks[b])


@native("emu.flush_block")
def flush_block(worker: ptr(Worker), block: ptr(Block)) -> void:
    slots = worker.site_count * SLOTS_PER_SITE
    first_warp = block.slot * u64(block.warp_count)
    executions = worker.executions + block.slot * u64(block.thread_count) * u64(slots)
    for w in range(block.warp_count):
        for slot in range(slots):
            entry = worker.requests[(first_warp + u64(w)) * u64(slots) + u64(slot)]
            count = u32(0)
            lanes = block.thread_count - w * 32
            if lanes > 32:
                lanes = u32(32)
            for lane in range(lanes):
                done = executions[u64(w * 32 + lane) * u64(slots) + u64(slot)]
                if done > count:
                    count = done
            for k in range(count):
                addresses = entry.addresses + u64(k) * LANE_BYTES
                evaluate(worker, slot, addresses, entry.size, block.shared)
            memory_set(ptr(u8)(entry.addresses), 0, u64(count) * LANE_BYTES)
    total = u64(block.thread_count) * u64(slots) * 4
    memory_set(ptr(u8)(executions), 0, total)


@native("emu.evaluate_request")
def evaluate(
    worker: ptr(Worker), slot: u32, addresses: ptr(u64), size: u32, window: ptr(u8)
) -> void:
    figures = worker.traffic + u64(slot) * (8 * FIGURES)
    lanes = i64(0)
    for lane in range(32):
        if addresses[lane] != 0:
            lanes += 1
    figures[0] += 1
    figures[1] += lanes * i64(size)
    if slot & 2 == 0:
        count_sectors(figures, addresses, size)
    else:
        figures[2] += wavefronts(addresses, size, u64(window))
        figures[3] += least_wavefronts(addresses, size)


@native("emu.count_sectors")
def count_sectors(figures: ptr(i64), addresses: ptr(u64), size: u32) -> void:
    """Distinct 32-byte sectors that a request touches, and how many its distinct bytes would fill."""
    seen = stack_array(u64, MOST_SECTORS)
    used = stack_array(u64, MOST_SECTORS)  # of each, one bit per byte
    count = i64(0)
    for lane in range(32):
        address = addresses[lane]
        if address == 0:
            continue
        end = address + u64(size)
        sector = address >> 5
        while sector << 5 < end:
            place = count
            for i in range(count):
                if seen[i] == sector:
                    place = i64(i)
            if place < MOST_SECTORS:
                if place == count:
                    seen[place] = sector
                    used[place] = u64(0)
                    count += 1
                used[place] = used[place] | bytes_within(sector << 5, address, end)
            sector += 1
    wanted = i64(0)
    for i in range(count):
        wanted += i64(popcount(used[i]))
    figures[2] += count
    figures[3] += (wanted + 31) // 32


@native("emu.bytes_within", inline=True)
def bytes_within(start: u64, address: u64, end: u64) -> u64:
    """One bit for each byte of the sector from ``start`` that is in [address, end)."""
    low = address - start if address > start else u64(0)
    high = end - start if end < start + 32 else u64(32)
    return ((u64(1) << high) - 1) & ~((u64(1) << low) - 1)


@native("emu.lanes_per_pass")
def lanes_per_pass(size: u32) -> u32:
    if size <= 4:
        return u32(32)
    return u32(16) if size <= 8 else u32(8)


@native("emu.count_wavefronts")
def wavefronts(addresses: ptr(u64), size: u32, window: u64) -> i64:
    """Sum over the passes of a request of the most distinct words in one bank."""
    seen = stack_array(u64, 64)
    per_bank = stack_array(u32, 32)
    step = lanes_per_pass(size)
    words = u64((size + 3) // 4)
    total = i64(0)
    start = u32(0)
    while start < 32:
        memory_set(ptr(u8)(per_bank), 0, u64(128))
        count = u32(0)
        most = u32(0)
        for lane in range(start, start + step):
            address = addresses[lane]
            if address == 0:
                continue
            for j in range(words):
                word = ((address - window) >> 2) + j
                known = u32(0)
                for i in range(count):
                    known = known | u32(seen[i] == word)
                if known == 0 and count < 64:
                    seen[count] = word
                    count += 1
                    bank = word & 31
                    per_bank[bank] += 1
                    if per_bank[bank] > most:
                        most = per_bank[bank]
        total += i64(most)
        start += step
    return total


@native("emu.least_wavefronts")
def least_wavefronts(addresses: ptr(u64), size: u32) -> i64:
    """One for each pass in which a lane takes part."""
    step = lanes_per_pass(size)
    total = i64(0)
    start = u32(0)
    while start < 32:
        busy = i64(0)
        for lane in range(start, start + step):
            if addresses[lane] != 0:
                busy = i64(1)
        total += busy
        start += step
    return total


ROOTS = [flush_profile]
