"""From the codes that an abandoned launch leaves behind to an exception that reads well."""

from __future__ import annotations

import numpy as np

from dnncanon.gpu.emulator.compiler.compiling import Compiled
from dnncanon.gpu.emulator.errors import KernelError
from dnncanon.gpu.emulator.launching.arena import Arena
from dnncanon.gpu.emulator.machine.state import Failure, State

__all__ = ["block_index", "failure_error", "thread_index", "unknown_line"]

Index = tuple[int, int, int]

_WHAT = {
    Failure.DEADLOCK: "deadlock: no thread can make progress",
    Failure.EXIT_AT_BARRIER: "thread exited while other threads wait at a barrier",
    Failure.BARRIER_AFTER_EXIT: "barrier reached after some threads of the block had exited",
    Failure.BARRIER_DIVERGED: "threads of one block wait at different barriers",
    Failure.LANE_NOT_IN_MASK: "warp operation by a lane that is not in its own member mask",
    Failure.LANES_DISAGREE: "warp operation whose lanes disagree about mask or operation",
    Failure.MASK_NAMES_EXITED: "warp operation whose mask names a lane that has exited",
    Failure.SHUFFLE_OUTSIDE_MASK: "shuffle from a lane outside the member mask",
    Failure.LIVELOCK: "threads spin without progress (a lock never released, or a wait for "
    "a block that is not resident)",
    Failure.MEMORY_FAULT: "invalid memory access",
    Failure.DIVISION_FAULT: "integer division by zero or overflow",
    Failure.STACK_OVERFLOW: "stack overflow (local arrays or recursion)",
    Failure.BAD_OPERAND: "operand that the instruction does not allow",
    Failure.CHECK_LIMIT: "too many errors",
    Failure.MISSING_WGMMA_FENCE: "wgmma.mma_async without a wgmma.fence since the last wait",
    Failure.BAD_MBARRIER: "mbarrier that was not initialised, or received too many arrivals",
}
_FAULTS = {Failure.MEMORY_FAULT, Failure.DIVISION_FAULT, Failure.STACK_OVERFLOW}
_WAITING = {
    State.AT_BARRIER: "at a barrier",
    State.IN_COLLECTIVE: "in a warp operation",
    State.SPINNING: "in a spin loop",
    State.AT_MBARRIER: "at an mbarrier",
    State.AT_GRID_SYNC: "at a grid-wide barrier",
    State.AT_ACTIVEMASK: "in activemask",
}


def unknown_line() -> str:
    """What stands for the line of a fault in fast mode."""
    return "an unknown line (check mode tells it)"


def thread_index(linear: int, block: Index) -> Index:
    return linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1])


def block_index(linear: int, grid: Index) -> Index:
    return linear % grid[0], linear // grid[0] % grid[1], linear // (grid[0] * grid[1])


def failure_error(arena: Arena, compiled: Compiled, block: Index) -> KernelError:
    """The exception for the error recorded in an arena."""
    worker = arena.worker
    failure = Failure(int(worker["error"][0]))
    number = arena.thread_index(int(worker["error_thread"][0]))
    linear = int(arena.threads["linear"][number])
    which = number // (block[0] * block[1] * block[2])
    where = tuple(int(arena.blocks[f"ctaid_{a}"][which]) for a in "xyz")
    site = int(worker["error_site"][0])
    line = unknown_line() if failure in _FAULTS else _line(compiled, site)
    what = _WHAT[failure]
    if failure is Failure.MEMORY_FAULT:
        what += f" at address {int(worker['error_address'][0]):#x}"
    return KernelError(
        compiled.name, what, (where[0], where[1], where[2]), thread_index(linear, block), line,
        _detail(arena, compiled, failure, which, block),
    )  # fmt: skip


def _line(compiled: Compiled, site: int) -> str:
    return compiled.sites[site] if 0 <= site < len(compiled.sites) else compiled.sites[0]


def _detail(arena: Arena, compiled: Compiled, failure: Failure, which: int, block: Index) -> str:
    """Where the other threads of the block are."""
    if failure in _FAULTS or not compiled.fibers:
        return ""
    per_block = block[0] * block[1] * block[2]
    mine = slice(which * per_block, (which + 1) * per_block)
    states, sites = arena.threads["state"][mine], arena.threads["site"][mine]
    lines = []
    if failure is Failure.BARRIER_DIVERGED:
        other = int(arena.worker["error_detail"][0])
        lines.append(f"  the others wait at {_line(compiled, other)}")
    for state, words in _WAITING.items():
        for site in np.unique(sites[states == state]):
            who = np.flatnonzero((states == state) & (sites == site))
            first = ", ".join(str(thread_index(int(w), block)) for w in who[:3])
            more = ", …" if len(who) > 3 else ""
            lines.append(
                f"  {len(who)} threads wait {words} at {_line(compiled, int(site))}: {first}{more}"
            )
    gone = int((states == State.EXITED).sum())
    if gone:
        lines.append(f"  {gone} threads have exited")
    return "\n".join(lines)
