"""Memory for kernels: copies of the caller's arrays between inaccessible pages.

A kernel never touches the caller's memory. Arrays that share bytes are copied together, so that
aliases stay aliases; each copy lies in a region of its own, with guard zones of a gigabyte on both
sides, so that nearly any wild access faults (and is reported) instead of corrupting the process.
The slack of a region's first and last page holds a pattern that is verified after the launch.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

__all__ = ["Image", "Key", "Region", "key_name", "libc"]

PAGE = 4096
GUARD = 1 << 30
ALIGNMENT = 256  # what cudaMalloc promises
PATTERN = 0xA5
POOL_BYTES = 512 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
PROT_NONE, PROT_READ, PROT_READ_WRITE = 0, 1, 3
_MAP_PRIVATE_ANONYMOUS_NORESERVE = 0x02 | 0x20 | 0x4000


def map_memory(size: int, protection: int) -> int:
    """Address of `size` fresh bytes."""
    address = libc.mmap(None, size, protection, _MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"mmap of {size} bytes failed")
    return int(address)


class Region:
    """`pages` accessible pages between two guard zones."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.size = pages * PAGE
        self._base = map_memory(self.size + 2 * GUARD, PROT_NONE)
        self.address = self._base + GUARD
        self.protect(PROT_READ_WRITE)
        memory = (ctypes.c_uint8 * self.size).from_address(self.address)
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)

    def protect(self, protection: int) -> None:
        if libc.mprotect(self.address, self.size, protection) != 0:
            raise MemoryError("mprotect failed")

    def release(self) -> None:
        libc.munmap(self._base, self.size + 2 * GUARD)


class _Pool:
    """Regions kept for reuse, by number of pages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[Region]] = {}
        self._bytes = 0

    def take(self, pages: int) -> Region:
        with self._lock:
            free = self._free.get(pages)
            if free:
                self._bytes -= pages * PAGE
                return free.pop()
        return Region(pages)

    def give(self, region: Region) -> None:
        with self._lock:
            if self._bytes + region.size <= POOL_BYTES:
                self._bytes += region.size
                self._free.setdefault(region.pages, []).append(region)
                return
        region.release()


_pool = _Pool()


Key = int | tuple[Any, int]
"""An argument's number, or (the tuple's key, the number in it)."""


def key_name(key: Key) -> str:
    """As messages show it: 2, or 2[0]."""
    return str(key) if isinstance(key, int) else f"{key_name(key[0])}[{key[1]}]"


@dataclass
class Buffer:
    """One run of the caller's bytes, [low, high), and its copy."""

    low: int
    high: int
    arguments: list[Key] = field(default_factory=list)
    writable: bool = False
    region: Region | None = None
    address: int = 0

    @property
    def size(self) -> int:
        return self.high - self.low


def _record_memory(record: np.void) -> npt.NDArray[Any]:
    """The memory of a record, which kernels take by address."""
    address = record.__array_interface__["data"][0]
    memory = (ctypes.c_uint8 * record.dtype.itemsize).from_address(address)
    return np.ndarray((), record.dtype, np.ctypeslib.as_array(memory))


class Image:
    """The copies of all array arguments of one launch."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        """Arrays are known by their argument's number; in tuples, by the chain of numbers."""
        self.arrays: dict[Key, npt.NDArray[Any]] = {}
        for i, argument in enumerate(arguments):
            self._collect(i, argument)
        self.buffers = self._merged()
        self._of_argument = {i: b for b in self.buffers for i in b.arguments}
        for number, buffer in enumerate(self.buffers):
            self._fill(buffer, number)

    def _collect(self, key: Key, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.arrays[key] = value
        elif isinstance(value, np.void):
            self.arrays[key] = _record_memory(value)
        elif isinstance(value, tuple):
            for k, element in enumerate(value):
                self._collect((key, k), element)

    def _merged(self) -> list[Buffer]:
        """Byte ranges of the arguments, overlapping ones joined."""
        spans = []
        for i, array in self.arrays.items():
            low, high = byte_bounds(array) if array.size else (0, 0)
            spans.append((low, high, i))
        buffers: list[Buffer] = []
        for low, high, i in sorted(spans, key=lambda span: span[:2]):
            writable = bool(self.arrays[i].flags.writeable)
            if buffers and low < buffers[-1].high and high > low:
                last = buffers[-1]
                last.high = max(last.high, high)
                last.writable |= writable
                last.arguments.append(i)
            else:
                buffers.append(Buffer(low, high, [i], writable))
        return buffers

    def _fill(self, buffer: Buffer, number: int) -> None:
        # Regions start at different cache sets, or arrays of one size would evict one another.
        lead = number * ALIGNMENT * 3 % PAGE
        pages = max(1, -(-(lead + buffer.size) // PAGE))
        region = _pool.take(pages)
        buffer.region = region
        buffer.address = region.address + lead
        end = lead + buffer.size
        region.bytes[:lead] = PATTERN
        region.bytes[end:] = PATTERN
        if buffer.size:
            ctypes.memmove(buffer.address, buffer.low, buffer.size)
        if not buffer.writable:
            region.protect(PROT_READ)

    def address(self, argument: Key) -> int:
        """Where the kernel finds the first element of an array argument."""
        buffer = self._of_argument[argument]
        array = self.arrays[argument]
        return buffer.address + (array.ctypes.data - buffer.low if array.size else 0)

    def bytes_of(self, argument: int) -> npt.NDArray[np.uint8]:
        """The copy of a contiguous array argument, as bytes."""
        buffer = self._of_argument[argument]
        assert buffer.region is not None
        start = self.address(argument) - buffer.region.address
        return buffer.region.bytes[start : start + self.arrays[argument].nbytes]

    def damaged(self) -> list[Key]:
        """Arguments beside which the kernel wrote, just outside their memory."""
        bad = []
        for buffer in self.buffers:
            assert buffer.region is not None
            lead = buffer.address - buffer.region.address
            around = (buffer.region.bytes[:lead], buffer.region.bytes[lead + buffer.size :])
            if any((slack != PATTERN).any() for slack in around):
                bad.append(buffer.arguments[0])
        return bad

    def write_back(self) -> None:
        """Copy what the kernel may have written to the caller's arrays."""
        for buffer in self.buffers:
            if buffer.writable and buffer.size:
                ctypes.memmove(buffer.low, buffer.address, buffer.size)

    def release(self) -> None:
        for buffer in self.buffers:
            if buffer.region is not None:
                if not buffer.writable:
                    buffer.region.protect(PROT_READ_WRITE)
                _pool.give(buffer.region)
                buffer.region = None
