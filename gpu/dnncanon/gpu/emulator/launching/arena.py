"""Arenas: the memory in which one operating-system thread runs blocks.

Stacks (with an inaccessible page below each), the structures of `state.py`, shared memory between
guard zones. Arenas are kept between launches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dnncanon.gpu.emulator.launching.memory import (
    PAGE,
    PROT_NONE,
    PROT_READ_WRITE,
    Region,
    libc,
    map_memory,
)
from dnncanon.gpu.emulator.machine.fibers import SIGNAL_STACK_BYTES
from dnncanon.gpu.emulator.machine.state import WARP_SIZE, Block, Thread, View, Warp, Worker

__all__ = ["Arena", "Shape", "arenas"]

GUARDED_STACKS = 8192  # beyond that, guard pages would exhaust the kernel's memory mappings
SHARED_POISON = 0xFF  # a NaN in every floating-point format


@dataclass(frozen=True)
class Shape:
    """What an arena must hold."""

    block: tuple[int, int, int]
    resident: int
    fibers: bool
    stack_bytes: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


def _aligned(count: int, alignment: int = 256) -> npt.NDArray[np.uint8]:
    raw = np.zeros(count + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + count]


class Arena:
    """Memory for one worker."""

    def __init__(self) -> None:
        self._stacks = 0
        self._stack_key: tuple[int, int] = (0, 0)
        self._stacks_mapped = 0
        self._structure_key: tuple[object, ...] = ()
        self._shared: list[Region] = []
        self._shared_base: list[int] = []
        self._signal_stack = _aligned(SIGNAL_STACK_BYTES)

    def prepare(self, shape: Shape) -> None:
        """Lay everything out for a launch of this shape and reset it."""
        count = shape.threads * shape.resident
        self._prepare_stacks(count if shape.fibers else 1, shape.stack_bytes)
        if self._structure_key != (shape.block, shape.resident):
            self._prepare_structures(shape)
            self._structure_key = (shape.block, shape.resident)
        self._prepare_shared(shape)
        self._reset_worker(shape)

    # ---- stacks
    def _prepare_stacks(self, count: int, size: int) -> None:
        held, held_size = self._stack_key
        if held_size == size and held >= count:
            return
        if self._stacks:
            libc.munmap(self._stacks, self._stacks_mapped)
        count = max(count, 256 if count > 1 else 1)
        self._stacks_mapped = count * size
        self._stacks = map_memory(self._stacks_mapped, PROT_READ_WRITE)
        if count <= GUARDED_STACKS:
            for i in range(count):
                libc.mprotect(self._stacks + i * size, PAGE, PROT_NONE)
        self._stack_key = (count, size)

    # ---- structures
    def _prepare_structures(self, shape: Shape) -> None:
        per_block, resident = shape.threads, shape.resident
        warps_per_block = -(-per_block // WARP_SIZE)
        count = per_block * resident
        self._memory = {
            "worker": _aligned(Worker.size),
            "blocks": _aligned(Block.size * resident),
            "threads": _aligned(Thread.size * count),
            "warps": _aligned(Warp.size * warps_per_block * resident),
            "order": _aligned(4 * count),
        }
        self.worker = View(Worker, self._memory["worker"])
        self.blocks = View(Block, self._memory["blocks"])
        self.threads = View(Thread, self._memory["threads"])
        warps = View(Warp, self._memory["warps"])
        index = np.arange(per_block)
        x, y, _ = shape.block
        worker_at, blocks_at, threads_at, warps_at = (
            self._memory[n].ctypes.data for n in ("worker", "blocks", "threads", "warps")
        )
        number = np.arange(count)
        warp_of = number // per_block * warps_per_block + number % per_block // WARP_SIZE
        fields: dict[str, npt.ArrayLike] = {
            "tid_x": np.tile(index % x, resident),
            "tid_y": np.tile(index // x % y, resident),
            "tid_z": np.tile(index // (x * y), resident),
            "lane": np.tile(index % WARP_SIZE, resident),
            "linear": np.tile(index, resident),
            "block": blocks_at + number // per_block * Block.size,
            "worker": worker_at,
            "warp": warps_at + warp_of * Warp.size,
        }
        for name, value in fields.items():
            self.threads[name] = value
        in_warp = np.minimum(WARP_SIZE, per_block - WARP_SIZE * np.arange(warps_per_block))
        warps["exist"] = np.tile((1 << in_warp) - 1, resident)
        first = np.arange(resident)[:, None] * per_block + np.arange(warps_per_block) * WARP_SIZE
        warps["first"] = threads_at + first.ravel() * Thread.size
        blocks = np.arange(resident)
        self.blocks["worker"] = worker_at
        self.blocks["threads"] = threads_at + blocks * per_block * Thread.size
        self.blocks["warps"] = warps_at + blocks * warps_per_block * Warp.size
        self.blocks["warp_count"] = warps_per_block
        self.blocks["thread_count"] = per_block
        for axis, extent in zip("xyz", shape.block, strict=True):
            self.blocks[f"ntid_{axis}"] = extent

    # ---- shared memory
    def _prepare_shared(self, shape: Shape) -> None:
        """Shared memory ends where a guard zone begins, so that an overrun faults."""
        pages = max(1, -(-(shape.shared_bytes + 256) // PAGE))
        if len(self._shared) < shape.resident or self._shared[0].pages != pages:
            for region in self._shared:
                region.release()
            self._shared = [Region(pages) for _ in range(shape.resident)]
        size = -(-shape.shared_bytes // 256) * 256
        self._shared_base = []
        for region in self._shared[: shape.resident]:
            region.bytes[:] = SHARED_POISON
            self._shared_base.append(region.address + region.size - size)
        self.blocks["shared"] = np.array(self._shared_base, np.uint64)
        self.blocks["shared_bytes"] = shape.shared_bytes

    def shared_base(self, block: int = 0) -> int:
        return self._shared_base[block]

    # ---- worker
    def _reset_worker(self, shape: Shape) -> None:
        self._memory["worker"][:] = 0
        worker = self.worker
        worker["stacks"] = self._stacks
        worker["stack_size"] = shape.stack_bytes
        worker["stacks_size"] = self._stack_key[0] * shape.stack_bytes
        worker["blocks"] = self._memory["blocks"].ctypes.data
        worker["order"] = self._memory["order"].ctypes.data
        worker["signal_stack"] = self._signal_stack.ctypes.data
        worker["resident"] = shape.resident
        worker["fibers"] = int(shape.fibers)

    @property
    def worker_address(self) -> int:
        return int(self._memory["worker"].ctypes.data)

    def thread_index(self, address: int) -> int:
        """Index of a thread structure from its address."""
        return int(address - self._memory["threads"].ctypes.data) // Thread.size


_lock = threading.Lock()
_idle: list[Arena] = []


@contextmanager
def arenas(count: int) -> Iterator[list[Arena]]:
    """Borrow `count` arenas."""
    with _lock:
        taken = [_idle.pop() if _idle else Arena() for _ in range(count)]
    try:
        yield taken
    finally:
        with _lock:
            _idle.extend(taken)
