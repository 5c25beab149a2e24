"""Profiles: the figures of a launch, in all and by source line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dnncanon.gpu.emulator.launching.inspection import Inspection
from dnncanon.gpu.emulator.machine import profiling

if TYPE_CHECKING:
    from dnncanon.gpu.emulator.launching.launch import LaunchReport

__all__ = ["Access", "Profile", "make_profile"]


@dataclass(frozen=True)
class Access:
    """One memory instruction (or one side of a copy), over the whole launch.

    `units` are 32-byte sectors in global memory, wavefronts in shared memory; `least` is how many
    would do if the lanes' addresses lay side by side without bank conflicts.
    """

    line: str
    space: str
    operation: str
    requests: int
    bytes: int
    units: int
    least: int

    @property
    def units_per_request(self) -> float:
        return self.units / self.requests

    @property
    def efficiency(self) -> float:
        """least / units: 1 is perfect."""
        return self.least / self.units if self.units else 1.0


@dataclass
class Profile:
    """Figures of one launch. Deterministic: the same launch gives the same figures."""

    counts: dict[str, int] = field(default_factory=dict)
    """Instructions by kind, flops by kind, executed by all threads."""
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    """The same by source line."""
    accesses: list[Access] = field(default_factory=list)
    barriers: int = 0
    warp_operations: int = 0
    dram_bytes_read: int = 0
    """Bytes that DRAM has to deliver if caches keep all: 32 for each sector read before it is written.
    Nsight Compute's ``dram__bytes_read.sum`` is the same or more, unless another launch has filled L2."""
    dram_bytes_written: int = 0
    """The same of ``dram__bytes_write.sum``: 32 bytes for each sector that is written."""

    def _sum(self, space: str, operation: str | None, figure: str) -> int:
        return sum(
            getattr(a, figure)
            for a in self.accesses
            if a.space == space and operation in (None, a.operation)
        )

    @property
    def global_bytes_loaded(self) -> int:
        """Bytes that lanes asked for."""
        return self._sum("global", "load", "bytes")

    @property
    def global_bytes_stored(self) -> int:
        return self._sum("global", "store", "bytes")

    @property
    def global_sectors(self) -> int:
        """32-byte sectors that requests touch, each its own: what the L1 is asked for.

        Nsight Compute's ``l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum`` plus ``…_op_st.sum``.
        """
        return self._sum("global", None, "units")

    @property
    def shared_wavefronts(self) -> int:
        return self._sum("shared", None, "units")

    @property
    def flops(self) -> int:
        """Floating-point operations of every kind; a fused multiply-add is two."""
        return sum(n for kind, n in self.counts.items() if kind.startswith("flops"))

    def bytes_over_least(self, least_bytes: int) -> float:
        """Bytes of the sectors requested, over the least that the primitive could do with."""
        return profiling.SECTOR_BYTES * self.global_sectors / least_bytes

    @property
    def dram_bytes(self) -> int:
        """Bytes that DRAM delivers and takes."""
        return self.dram_bytes_read + self.dram_bytes_written

    def as_dict(self) -> dict[str, Any]:
        """For results files."""
        return {
            "counts": dict(self.counts),
            "global_bytes_loaded": self.global_bytes_loaded,
            "global_bytes_stored": self.global_bytes_stored,
            "global_sectors": self.global_sectors,
            "dram_bytes_read": self.dram_bytes_read,
            "dram_bytes_written": self.dram_bytes_written,
            "shared_wavefronts": self.shared_wavefronts,
            "flops": self.flops,
            "barriers": self.barriers,
            "warp_operations": self.warp_operations,
        }


def make_profile(inspection: Inspection, report: LaunchReport) -> Profile:
    """The figures that the run time has gathered."""
    profile = Profile(barriers=report.barriers, warp_operations=report.warp_operations)
    total: Counter[str] = Counter()
    lines: dict[str, Counter[str]] = {}
    blocks = inspection.compiled.blocks
    for executions, block in zip(inspection.block_counts.tolist(), blocks, strict=False):
        for line, kinds in block.items():
            for kind, amount in kinds.items():
                total[kind] += executions * amount
                lines.setdefault(line, Counter())[kind] += executions * amount
    profile.counts = dict(sorted(total.items()))
    profile.lines = {line: dict(sorted(c.items())) for line, c in lines.items() if c.total()}
    profile.accesses = _accesses(inspection)
    profile.dram_bytes_read = _dram_bytes(inspection, profiling.DRAM_READ)
    profile.dram_bytes_written = _dram_bytes(inspection, profiling.DRAM_WRITTEN)
    return profile


def _dram_bytes(inspection: Inspection, flag: int) -> int:
    """Bytes of the sectors that have the flag."""
    marked = sum(int(np.count_nonzero(touched & flag)) for touched in inspection.sectors)
    return profiling.SECTOR_BYTES * marked


def _accesses(inspection: Inspection) -> list[Access]:
    figures = inspection.traffic.reshape(-1, profiling.FIGURES)
    accesses = []
    for slot in range(len(figures)):
        requests, size, units, least = (int(v) for v in figures[slot])
        if requests:
            site, way = divmod(slot, profiling.SLOTS_PER_SITE)
            accesses.append(
                Access(
                    line=inspection.compiled.sites[site],
                    space="shared" if way & 2 else "global",
                    operation="store" if way & 1 else "load",
                    requests=requests,
                    bytes=size,
                    units=units,
                    least=least,
                )
            )
    return accesses
