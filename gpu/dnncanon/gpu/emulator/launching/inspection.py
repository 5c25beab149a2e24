"""Check and profile mode around a launch: tables for the run time before it, findings after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncanon.gpu.emulator.compiler.compiling import Compiled
from dnncanon.gpu.emulator.errors import KernelError
from dnncanon.gpu.emulator.launching.arena import Arena
from dnncanon.gpu.emulator.launching.memory import Image, key_name, libc
from dnncanon.gpu.emulator.launching.reporting import block_index, thread_index
from dnncanon.gpu.emulator.machine import checks, profiling
from dnncanon.gpu.emulator.machine.findings import KINDS, Kind
from dnncanon.gpu.emulator.machine.state import Buffer, Finding, Requests, Shadow, View

__all__ = ["CheckError", "Inspection", "Report"]

Index = tuple[int, int, int]
MAX_FINDINGS = 1000
SCRATCH_BYTES = 4096

_WORDS = {
    Kind.OUT_OF_BOUNDS_READ: "out-of-bounds read",
    Kind.OUT_OF_BOUNDS_WRITE: "out-of-bounds write",
    Kind.MISALIGNED: "misaligned access",
    Kind.GAP: "access to a gap between an array's strides",
    Kind.READ_ONLY: "write to read-only memory",
    Kind.RACE_READ_WRITE: "race: reads what another thread wrote, with no barrier between",
    Kind.RACE_WRITE_WRITE: "race: writes what another thread wrote, with no barrier between",
    Kind.RACE_WRITE_READ: "race: writes what another thread has read, with no barrier between",
    Kind.UNINITIALISED_SHARED: "read of shared memory that nothing wrote",
    Kind.UNINITIALISED_GLOBAL: "read of global memory that nothing wrote",
    Kind.UNINITIALISED_LOCAL: "read of local memory that nothing wrote",
    Kind.ASYNC_IN_FLIGHT: "use of memory whose asynchronous copy has not been waited for",
    Kind.ASYNC_NEVER_AWAITED: "thread exits without waiting for its asynchronous copies",
    Kind.PROXY_FENCE: "asynchronous proxy reads a write that no fence.proxy.async made visible",
}


@dataclass(frozen=True)
class Report:
    """One finding: the first of its kind at its line, and how often it happened in all."""

    kind: Kind
    line: str
    block: Index
    thread: Index
    where: str
    """The memory concerned."""
    times: int
    other_block: Index | None = None
    other_thread: Index | None = None

    def __str__(self) -> str:
        other = ""
        if self.other_thread is not None:
            other = f"; the other is thread {self.other_thread} of block {self.other_block}"
        often = f" ({self.times} times)" if self.times > 1 else ""
        return (
            f"{_WORDS[self.kind]}{often}: block {self.block}, thread {self.thread}, at {self.line}: "
            f"{self.where}{other}"
        )


class CheckError(KernelError):
    """Check mode found something; `findings` is all of it."""

    def __init__(self, kernel: str, findings: list[Report]) -> None:
        first = findings[0]
        shown = "\n".join(f"  {f}" for f in findings[:20])
        more = f"\n  … and {len(findings) - 20} more" if len(findings) > 20 else ""
        self.findings = findings
        super().__init__(
            kernel, _WORDS[first.kind], first.block, first.thread, first.line, shown + more
        )


@dataclass
class _Area:
    """A buffer as Python knows it."""

    name: str
    base: int
    size: int
    shared: bool
    array: npt.NDArray[Any] | None = None


@dataclass
class Inspection:
    """Tables of one launch."""

    compiled: Compiled
    image: Image
    args: Sequence[Any]
    grid: Index
    block: Index
    shared_bytes: int
    check: bool
    profile: bool
    uninitialised: frozenset[int] = frozenset()
    stacks: tuple[int, int] = (0, 0)
    areas: list[_Area] = field(default_factory=list)
    keep: list[npt.NDArray[Any]] = field(default_factory=list)
    sectors: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    """In profile mode, of each buffer in global memory: what each of its sectors cost DRAM."""

    def prepare(self, arena: Arena, resident: int) -> None:
        """Point the worker to buffers, shadows, and room for findings and figures."""
        worker = arena.worker
        total = self.grid[0] * self.grid[1] * self.grid[2]
        count = self._count()
        buffers = View(Buffer, self._zeros(count * Buffer.size, np.uint8))
        self._describe_arguments(buffers)
        self._describe_shared(buffers, resident)
        self._describe_globals(buffers)
        self.findings = View(Finding, self._zeros(MAX_FINDINGS * Finding.size, np.uint8))
        sites = len(self.compiled.sites)
        self.counts = self._zeros(sites * KINDS, np.int64)
        values: dict[str, int] = {
            "checks": int(self.check),
            "profile_on": int(self.profile),
            "buffers": buffers.memory.ctypes.data,
            "buffer_count": count,
            "findings": self.findings.memory.ctypes.data,
            "finding_capacity": MAX_FINDINGS,
            "counts": self.counts.ctypes.data,
            "block_released": self._zeros(total + 1, np.uint32).ctypes.data,
            "scratch": self._zeros(SCRATCH_BYTES, np.uint8).ctypes.data,
            "site_count": sites,
        }
        for name, value in values.items():
            worker[name] = value
        arena.blocks["slot"] = np.arange(resident)
        if self.profile:
            self._prepare_profile(arena, resident)

    def _zeros(self, count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        array = np.zeros(max(1, count), dtype)
        self.keep.append(array)
        return array

    # ---- buffers
    def _count(self) -> int:
        return len(self.image.buffers) + len(self.compiled.shared) + len(self.compiled.globals)

    def _describe_arguments(self, buffers: View) -> None:
        arrays = self.image.arrays
        for buffer in self.image.buffers:
            owners = [arrays[i] for i in buffer.arguments]
            first = buffer.arguments[0]
            name = f"argument {key_name(first)} {owners[0].dtype}{list(owners[0].shape)}"
            unwritten = bool(set(buffer.arguments) & self.uninitialised)
            flags = checks.CHECK_WRITTEN * unwritten | checks.CONSTANT * (not buffer.writable)
            granule = min(min(a.itemsize for a in owners), 4)
            array = owners[0] if len(owners) == 1 else None
            area = _Area(name, buffer.address, buffer.size, False, array)
            valid = self._valid_bytes(buffer.low, buffer.size, owners)
            self._add(buffers, area, granule, flags, 1, valid)

    def _valid_bytes(
        self, low: int, size: int, arrays: Sequence[npt.NDArray[Any]]
    ) -> npt.NDArray[np.uint8] | None:
        """Which bytes of a buffer belong to one of its arrays; None when all do."""
        if any(a.flags.c_contiguous or a.flags.f_contiguous for a in arrays) and len(arrays) == 1:
            return None
        valid = self._zeros(size, np.uint8)
        for array in arrays:
            if array.size:
                start = array.ctypes.data - low
                shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
                np.ndarray(shape, np.uint8, valid.data, start, strides)[...] = 1
        return None if valid.all() else valid

    def _describe_shared(self, buffers: View, resident: int) -> None:
        for shared in self.compiled.shared:
            size = self.shared_bytes if shared.size < 0 else shared.size
            area = _Area(f"shared array {shared.name} of {size} bytes", shared.offset, size, True)
            flags = checks.SHARED | checks.CHECK_WRITTEN
            self._add(buffers, area, min(shared.element, 4), flags, resident, None)

    def _describe_globals(self, buffers: View) -> None:
        for name, size in self.compiled.globals.items():
            base = self.compiled.global_address(name)
            area = _Area(f"constant {name}", base, size, False)
            self._add(buffers, area, 0, checks.CONSTANT, 0, None)

    def _add(
        self,
        buffers: View,
        area: _Area,
        granule: int,
        flags: int,
        copies: int,
        valid: npt.NDArray[np.uint8] | None,
    ) -> None:
        """Enter a buffer; `copies` shadows of it are made."""
        number = len(self.areas)
        self.areas.append(area)
        shift = max(0, granule.bit_length() - 1)
        shadow_bytes = ((area.size >> shift) + 1) * Shadow.size
        shadow = 0
        if self.check and copies:
            shadow = self._zeros(shadow_bytes * copies, np.uint8).ctypes.data
        sectors = 0
        if self.profile and not area.shared:
            touched = self._zeros(area.size // profiling.SECTOR_BYTES + 2, np.uint8)
            self.sectors.append(touched)
            sectors = touched.ctypes.data
        values = {
            "base": area.base, "size": area.size, "shadow": shadow, "shadow_bytes": shadow_bytes,
            "granule": shift, "flags": flags, "number": number,
            "valid": 0 if valid is None else valid.ctypes.data, "sectors": sectors,
        }  # fmt: skip
        for name, value in values.items():
            buffers[name][number] = value

    # ---- findings
    def results(self, arena: Arena) -> list[Report]:
        """What the run time has found."""
        low = int(arena.worker["stacks"][0])
        self.stacks = (low, low + int(arena.worker["stacks_size"][0]))
        count = int(arena.worker["finding_count"][0])
        return [self._report(i) for i in range(count)]

    def _report(self, i: int) -> Report:
        def get(name: str) -> int:
            return int(self.findings[name][i])

        kind, site, other = Kind(get("kind")), get("site"), get("other")
        address = get("address")
        where = "" if kind is Kind.ASYNC_NEVER_AWAITED else self._where(address, get("shared"))
        return Report(
            kind=kind,
            line=self.compiled.sites[site],
            block=block_index(get("block"), self.grid),
            thread=thread_index(get("thread"), self.block),
            where=where,
            times=int(self.counts[site * KINDS + kind]),
            other_block=block_index((other >> 10) - 1, self.grid) if other else None,
            other_thread=thread_index(other & 1023, self.block) if other else None,
        )

    def _where(self, address: int, window: int) -> str:
        """The nearest buffer to an address, and the place in it."""

        def distance(area: _Area) -> int:
            start = area.base + (window if area.shared else 0)
            if address < start:
                return start - address
            return max(0, address - start - area.size + 1)

        if self.stacks[0] <= address < self.stacks[1]:
            return "a local array"
        if not self.areas:
            return f"address {address:#x}"
        area = min(self.areas, key=distance)
        offset = address - area.base - (window if area.shared else 0)
        if distance(area) > 1 << 24:
            return f"address {address:#x}, far from every array"
        if offset < 0:
            return f"{-offset} bytes before {area.name}"
        if offset >= area.size:
            return f"{offset - area.size} bytes after the end of {area.name}"
        array = area.array
        if array is not None and array.flags.c_contiguous and array.ndim:
            element = np.unravel_index(offset // array.itemsize, array.shape)
            return f"{area.name}, element [{', '.join(str(int(e)) for e in element)}]"
        return f"{area.name}, byte {offset}"

    # ---- profile
    def _prepare_profile(self, arena: Arena, resident: int) -> None:
        threads = self.block[0] * self.block[1] * self.block[2]
        warps = -(-threads // 32)
        slots = len(self.compiled.sites) * profiling.SLOTS_PER_SITE
        blocks = self.compiled.blocks
        self.requests = View(
            Requests, self._zeros(resident * warps * slots * Requests.size, np.uint8)
        )
        self.traffic = self._zeros(slots * profiling.FIGURES, np.int64)
        self.block_counts = self._zeros(len(blocks), np.int64)
        worker = arena.worker
        worker["requests"] = self.requests.memory.ctypes.data
        worker["executions"] = self._zeros(resident * threads * slots, np.uint32).ctypes.data
        worker["traffic"] = self.traffic.ctypes.data
        worker["block_counts"] = self.block_counts.ctypes.data

    def release(self) -> None:
        """Free what the run time allocated."""
        if self.profile and hasattr(self, "requests"):
            for pointer in self.requests["addresses"]:
                if int(pointer):
                    libc.free(int(pointer))
