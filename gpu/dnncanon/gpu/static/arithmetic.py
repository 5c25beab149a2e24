"""What an instruction computes and moves, for a whole warp: operations and bytes."""

from __future__ import annotations

import re

from dnncanon.gpu.static.architecture import WARP
from dnncanon.gpu.static.sass import Instruction

OPERATIONS = {
    "FFMA": 2,
    "FADD": 1,
    "FMUL": 1,
    "DFMA": 2,
    "DADD": 1,
    "DMUL": 1,
    "HFMA2": 4,
    "HADD2": 2,
    "HMUL2": 2,
    "FFMA2": 4,
    "FADD2": 2,
    "FMUL2": 2,
    "MUFU": 1,
    "IDP": 8,
}
"""Of a thread, a fused multiply-add counted as two. …2 computes on pairs, IDP four products of int8."""

TENSOR = ("HMMA", "IMMA", "DMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA")
"""Instructions of the tensor cores that name their shape. Blackwell's tcgen05 do not: they count nothing."""

_WARPGROUP = 4
"""Warps that issue a …GMMA together."""

# .16816 or .16x8x16 of a warp, .64x256x16 of a warpgroup: rows, columns, depth.
_WARP_SHAPE = re.compile(r"\.(8|16)x?(8)x?(4|8|16|32|64|128|256)(?:\.|$)")
_GROUP_SHAPE = re.compile(r"\.(64)x(\d+)x(\d+)(?:\.|$)")

_WIDTHS = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}

GLOBAL = ("LDG", "STG", "LDGSTS", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG")
"""Instructions that move global memory; LD and ST take an address of any kind, mostly of this one."""

SHARED = ("LDS", "STS", "LDSM", "STSM", "LDGSTS", "ATOMS")
LOCAL = ("LDL", "STL")


def operations(instruction: Instruction) -> int:
    """Operations of a warp that count as arithmetic: none for addresses, comparisons and moves."""
    if instruction.base in TENSOR:
        return _tensor_operations(instruction)
    return 0 if _only_moves(instruction) else WARP * OPERATIONS.get(instruction.base, 0)


def _only_moves(instruction: Instruction) -> bool:
    """Compilers load constants by HFMA2 of zeros, and widen a float16 by HADD2.F32."""
    if instruction.base == "HFMA2":
        return "RZ,RZ" in instruction.operands
    return instruction.base == "HADD2" and "F32" in instruction.modifiers


def _tensor_operations(instruction: Instruction) -> int:
    """2·rows·columns·depth; of a warpgroup's instruction the part of one of its warps."""
    group = _GROUP_SHAPE.search(instruction.opcode)
    shape = group or _WARP_SHAPE.search(instruction.opcode)
    if shape is None:
        return 0
    rows, columns, depth = map(int, shape.groups())
    return 2 * rows * columns * depth // (_WARPGROUP if group else 1)


def access_bytes(instruction: Instruction) -> int:
    """Bytes that a load or store moves for each thread: 4 unless a modifier says so.

    LDSM and STSM move 8 × 8 matrices of 16 bits, 4 bytes a thread each.
    """
    if instruction.base in ("LDSM", "STSM"):
        count = instruction.modifiers[-1]
        return 4 * int(count) if count in ("2", "4") else 4
    return next((_WIDTHS[m] for m in instruction.modifiers if m in _WIDTHS), 4)


def global_bytes(instruction: Instruction) -> int:
    """Bytes of global memory that a warp reads or writes."""
    return WARP * access_bytes(instruction) if instruction.base in GLOBAL else 0


def shared_bytes(instruction: Instruction) -> int:
    """Bytes of shared memory that a warp reads or writes, each lane its own."""
    return WARP * access_bytes(instruction) if instruction.base in SHARED else 0
