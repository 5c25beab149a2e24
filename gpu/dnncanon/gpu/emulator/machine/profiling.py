# mypy: ignore-errors
"""Run time of profile mode: memory requests of warps, grouped as a GPU would group them.

The k-th execution of an access by each lane of a warp is one request: exact as long as control
flow is uniform in the warp. Addresses are kept until the block ends; then each request's global
sectors of 32 bytes are counted, or its shared-memory wavefronts: the most distinct 4-byte words
that fall into one of 32 banks, over the whole warp for accesses of up to 4 bytes, half warps for 8,
quarter warps for 16. There is no cache in the model, and no time.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.access import READ
from dnncanon.gpu.emulator.machine.state import Requests, Thread, Worker
from dnncanon.gpu.emulator.native import (
    external,
    i64,
    memory_set,
    native,
    ptr,
    stack_array,
    u8,
    u32,
    u64,
    void,
)

READ_KIND = READ
reallocate = external("realloc", ptr(u8), ptr(u8), u64)
SLOTS_PER_SITE = 4  # shared or global, read or write
FIGURES = 4  # requests, bytes, sectors or wavefronts, the least number of those
LANE_BYTES = 8 * 32


@native("emu.profile_access", attributes="noinline")
def profile_access(
    thread: ptr(Thread), address: u64, size: u32, site: u32, kind: u32, shared: u32
) -> void:
    """Enter an access into its request."""
    worker = thread.worker
    slots = worker.site_count * SLOTS_PER_SITE
    slot = site * SLOTS_PER_SITE + shared * 2 + u32(kind != READ_KIND)
    counter = u64(thread.linear) * u64(slots) + u64(slot)
    k = worker.executions[counter]
    worker.executions[counter] = k + 1
    entry = worker.requests[u64(thread.linear >> 5) * u64(slots) + u64(slot)]
    if k >= entry.capacity:
        grow(entry, k)
    entry.size = size
    entry.addresses[u64(k) * 32 + u64(thread.lane)] = address


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
    """Evaluate and clear the requests of the block that has just ended."""
    block = worker.blocks
    slots = worker.site_count * SLOTS_PER_SITE
    for w in range(block.warp_count):
        for slot in range(slots):
            entry = worker.requests[u64(w) * u64(slots) + u64(slot)]
            count = u32(0)
            lanes = block.thread_count - w * 32
            if lanes > 32:
                lanes = u32(32)
            for lane in range(lanes):
                done = worker.executions[u64(w * 32 + lane) * u64(slots) + u64(slot)]
                if done > count:
                    count = done
            for k in range(count):
                addresses = entry.addresses + u64(k) * LANE_BYTES
                evaluate(worker, slot, addresses, entry.size, block.shared)
            memory_set(ptr(u8)(entry.addresses), 0, u64(count) * LANE_BYTES)
    total = u64(block.thread_count) * u64(slots) * 4
    memory_set(ptr(u8)(worker.executions), 0, total)


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
        figures[2] += sectors(addresses, size)
        figures[3] += (lanes * i64(size) + 31) // 32
    else:
        figures[2] += wavefronts(addresses, size, u64(window))
        figures[3] += least_wavefronts(addresses, size)


@native("emu.count_sectors")
def sectors(addresses: ptr(u64), size: u32) -> i64:
    """Distinct 32-byte sectors that a request touches."""
    seen = stack_array(u64, 192)
    count = i64(0)
    for lane in range(32):
        address = addresses[lane]
        if address == 0:
            continue
        sector = address >> 5
        last = (address + u64(size) - 1) >> 5
        while sector <= last:
            known = u32(0)
            for i in range(count):
                known = known | u32(seen[i] == sector)
            if known == 0 and count < 192:
                seen[count] = sector
                count += 1
            sector += 1
    return count


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
