# mypy: ignore-errors
"""Run time: recording what check mode finds, and the order between threads without a barrier."""

from __future__ import annotations

from enum import IntEnum

from dnncanon.gpu.emulator.machine.state import Finding, Thread
from dnncanon.gpu.emulator.native import native, ptr, u32, u64, void


class Kind(IntEnum):
    """Kinds of findings."""

    OUT_OF_BOUNDS_READ = 0
    OUT_OF_BOUNDS_WRITE = 1
    MISALIGNED = 2
    GAP = 3
    READ_ONLY = 4
    RACE_READ_WRITE = 5
    RACE_WRITE_WRITE = 6
    RACE_WRITE_READ = 7
    UNINITIALISED_SHARED = 8
    UNINITIALISED_GLOBAL = 9
    UNINITIALISED_LOCAL = 10
    ASYNC_IN_FLIGHT = 11
    ASYNC_NEVER_AWAITED = 12
    PROXY_FENCE = 13


KINDS = 16
ASYNC_NEVER_AWAITED = int(Kind.ASYNC_NEVER_AWAITED)


@native("emu.report", attributes="noinline cold")
def report(thread: ptr(Thread), kind: u32, site: u32, address: u64, other: u32) -> void:
    """Count a finding; record the first of its kind at its line."""
    worker = thread.worker
    slot = site * KINDS + kind
    worker.counts[slot] += 1
    if worker.counts[slot] != 1 or worker.finding_count >= worker.finding_capacity:
        return
    entry = ptr(Finding)(worker.findings)[worker.finding_count]
    worker.finding_count += 1
    entry.kind = kind
    entry.site = site
    entry.thread = thread.linear
    entry.block = thread.block.linear
    entry.other = other
    entry.address = address
    entry.shared = u64(thread.block.shared)


@native("emu.check_exit")
def check_exit(thread: ptr(Thread)) -> void:
    """A thread must have waited for its copies when it exits."""
    if thread.copy_first < thread.copy_count:
        report(thread, u32(ASYNC_NEVER_AWAITED), thread.copy_site, u64(0), u32(0))


# ---- Order between threads that do not meet at a barrier
@native("emu.release_now")
def release_now(thread: ptr(Thread)) -> void:
    """The thread's accesses so far may be seen by whoever acquires from now on."""
    worker = thread.worker
    if worker.checks == 0:
        return
    worker.clock += 1
    thread.released_at = worker.clock
    worker.block_released[u64(thread.block.linear)] = worker.clock
    worker.clock += 1


@native("emu.acquire_now")
def acquire_now(thread: ptr(Thread)) -> void:
    worker = thread.worker
    if worker.checks == 0:
        return
    worker.clock += 1
    thread.acquired_at = worker.clock
    thread.block.acquired_at = worker.clock


ROOTS = [report, check_exit, release_now, acquire_now]
