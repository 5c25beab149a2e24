"""How many blocks of a kernel an SM holds at once: the arithmetic of ``cuda_occupancy.h``."""

from __future__ import annotations

from dataclasses import dataclass

from dnncanon.gpu.static.architecture import PARTITIONS, WARP, Limits

REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of it."""

SHARED_UNIT = 128
"""Shared memory is allocated to a block in multiples of so many bytes."""

RESERVED_SHARED = 1024
"""Bytes of each block's shared memory that the system takes."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks resident on an SM, the part of its warps that they are, and what limits them."""

    blocks: int
    fraction: float
    limited_by: str


def occupancy(limits: Limits, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Of a kernel with ``threads`` a block, ``registers`` a thread, and static and dynamic shared memory.

    0 blocks where one does not fit.
    """
    warps = -(-threads // WARP)
    most = {
        "blocks": limits.blocks,
        "warps": limits.warps // warps,
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared memory": _blocks_by_shared_memory(limits, shared_bytes),
    }
    limited_by = min(most, key=lambda name: most[name])
    blocks = most[limited_by]
    return Occupancy(blocks, blocks * warps / limits.warps, limited_by)


def _blocks_by_registers(limits: Limits, warps: int, registers: int) -> int:
    """Each partition has its own registers; a launch is checked as if a block filled all of them alike."""
    per_warp = _rounded_up(max(1, registers) * WARP, REGISTER_UNIT)
    if per_warp * _rounded_up(warps, PARTITIONS) > limits.registers:
        return 0
    return limits.registers // PARTITIONS // per_warp * PARTITIONS // warps


def _blocks_by_shared_memory(limits: Limits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_per_block:
        return 0
    return limits.shared // _rounded_up(shared_bytes + RESERVED_SHARED, SHARED_UNIT)


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
