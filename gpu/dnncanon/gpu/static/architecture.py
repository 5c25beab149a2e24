"""The architectures: what an SM holds, and how much of each kind of work it does in a clock.

Sources, by the names that the tables use:

- *Limits*: CUDA C++ Programming Guide 13, compute capabilities, technical specifications; units of
  allocation: ``cuda_occupancy.h`` of the CUDA toolkit 13.5.
- *Rates*: CUDA C++ Best Practices Guide 13, "Throughput of Native Arithmetic Instructions"; tensor cores,
  clocks and memory: NVIDIA's white papers on the A100 (v1.0), the H100 (v1.04) and the Blackwell
  architecture (technical brief), for A100 80 GB SXM, H100 SXM5 and B200.
- *mma.sync*: Luo et al. 2024, arXiv:2402.13499: 62.9 % of the peak of an H100 on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

WARP = 32
"""Threads."""

PARTITIONS = 4
"""Of an SM: each has a warp scheduler that issues one instruction a clock, and a quarter of everything."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an SM holds at most; shared memory in bytes."""

    blocks: int
    warps: int
    registers: int
    shared: int
    shared_per_block: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What an SM does in a clock.

    ``pipes`` are thread instructions; ``tensor`` multiply-adds by element type, of which ``mma.sync``
    reaches the part ``mma_sync`` (None: nobody has published it); ``shared`` and ``memory`` bytes of
    shared memory and, the GPU's bandwidth shared among its SMs, of DRAM.
    """

    pipes: Mapping[str, int]
    tensor: Mapping[str, int]
    mma_sync: float | None
    shared: int
    memory: float


@dataclass(frozen=True, slots=True)
class Architecture:
    """A compute capability, as the GPU that is named here has it."""

    gpu: str
    limits: Limits
    rates: Rates


def _pipes(fp32: int, fp64: int, half: int) -> Mapping[str, int]:
    """``half`` are instructions on pairs. Loads, stores and shuffles share the load/store units."""
    return MappingProxyType(
        {"float32": fp32, "float64": fp64, "half": half, "integer": 64, "imad": 64, "special": 16,
         "load/store": 32}
    )  # fmt: skip


def _tensor(float16: int, float64: int) -> Mapping[str, int]:
    return MappingProxyType(
        {"float16": float16, "tf32": float16 // 2, "8-bit": 2 * float16, "float64": float64}
    )


_KB = 1024

ARCHITECTURES: Mapping[tuple[int, int], Architecture] = MappingProxyType(
    {
        (8, 0): Architecture(
            "A100",
            Limits(32, 64, 65536, 164 * _KB, 163 * _KB),
            # 2,039 GB/s to 108 SMs at 1.41 GHz
            Rates(_pipes(64, 32, 128), _tensor(1024, 64), 1.0, 128, 13.4),
        ),
        (9, 0): Architecture(
            "H100",
            Limits(32, 64, 65536, 228 * _KB, 227 * _KB),
            # 3,352 GB/s to 132 SMs at 1.98 GHz
            Rates(_pipes(128, 64, 128), _tensor(2048, 128), 0.629, 128, 12.8),
        ),
        (10, 0): Architecture(
            "B200",
            Limits(32, 64, 65536, 228 * _KB, 227 * _KB),
            # 8,000 GB/s to 148 SMs at 1.965 GHz
            Rates(_pipes(128, 64, 64), _tensor(4096, 64), None, 128, 27.5),
        ),
    }
)
"""By compute capability."""


def architecture(capability: tuple[int | str, ...]) -> Architecture:
    """The architecture of (9, 0) or (9, 0, "a"); KeyError for one that has no row here."""
    major, minor = capability[:2]
    assert isinstance(major, int)
    assert isinstance(minor, int)
    return ARCHITECTURES[major, minor]
