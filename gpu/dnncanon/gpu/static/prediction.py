"""How near to the hardware's peak a hot loop can come: an upper bound from its instructions.

A partition of an SM is taken to run nothing but the loop, with warps enough to hide every latency. An
iteration of a warp then occupies each resource for so many clocks, and the loop takes as long as the one
that is occupied longest:

    issue           instructions
    each pipe       32 · instructions of the pipe / (rate / 4)
    tensor cores    multiply-adds / (rate · part that mma.sync reaches / 4)
    shared memory   bytes / (rate / 4)
    memory          bytes / (rate / 4)

The rates are an SM's, by :mod:`~dnncanon.gpu.static.architecture`, and a partition has a quarter.
``gpu/docs/static.md`` says what this ignores.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dnncanon.gpu.static.architecture import PARTITIONS, WARP, Rates
from dnncanon.gpu.static.arithmetic import (
    GLOBAL,
    LOCAL,
    SHARED,
    TENSOR,
    global_bytes,
    operations,
    shared_bytes,
)
from dnncanon.gpu.static.sass import Code, Instruction

_PIPES = {
    "float32": ("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"),
    "float64": ("DFMA", "DADD", "DMUL", "DSETP", "DMNMX"),
    "half": ("HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSETP2", "HSET2"),
    "imad": ("IMAD", "IDP"),
    "special": ("MUFU", "I2F", "F2I", "F2F", "I2I", "FRND", "POPC", "FLO", "BREV"),
    "load/store": (*GLOBAL, *SHARED, *LOCAL, "SHFL"),
    "integer": (
        *("IADD3", "IADD", "VIADD", "LEA", "LOP3", "SHF", "SHL", "SHR", "SEL", "PRMT", "ISETP"),
        *("IMNMX", "VIMNMX", "IABS", "PLOP3", "FMNMX", "FSETP", "FSEL", "FSET", "F2FP", "MOV"),
    ),
}
_PIPE_OF = {opcode: pipe for pipe, opcodes in _PIPES.items() for opcode in opcodes}


@dataclass(frozen=True, slots=True)
class Prediction:
    """``fraction`` of the peak of ``peak`` that the loop may reach, and the resource that keeps it there.

    ``peak`` is an arithmetic, such as float32, or memory, whichever the loop would need longer for if
    everything else cost nothing. ``clocks`` are those of each resource for an iteration of a warp.
    """

    fraction: float
    peak: str
    bound_by: str
    clocks: dict[str, float]


def predict(loop: Code, rates: Rates) -> Prediction | None:
    """None where the loop computes and moves nothing, or where a rate that it needs is not known."""
    if rates.mma_sync is None and loop.count(*_MMA_SYNC):
        return None
    clocks = _clocks(loop, rates)
    at_peak = _clocks_at_peak(loop, rates)
    if not at_peak:
        return None
    bound_by = max(clocks, key=lambda name: clocks[name])
    peak = max(at_peak, key=lambda name: at_peak[name])
    return Prediction(at_peak[peak] / clocks[bound_by], peak, bound_by, clocks)


_MMA_SYNC = tuple(opcode for opcode in TENSOR if "GMMA" not in opcode)


def _clocks(loop: Code, rates: Rates) -> dict[str, float]:
    """Of each resource that the loop occupies."""
    clocks: dict[str, float] = defaultdict(float)
    for instruction in loop:
        clocks["issue"] += 1
        pipe = _PIPE_OF.get(instruction.base)
        if pipe is not None:
            clocks[f"{pipe} pipe"] += WARP * PARTITIONS / rates.pipes[pipe]
        if instruction.base in TENSOR:
            clocks["tensor cores"] += _tensor_clocks(instruction, rates, sustained=True)
        clocks["shared memory"] += PARTITIONS * shared_bytes(instruction) / rates.shared
        clocks["memory"] += PARTITIONS * global_bytes(instruction) / rates.memory
    return {name: count for name, count in clocks.items() if count}


def _clocks_at_peak(loop: Code, rates: Rates) -> dict[str, float]:
    """Of the arithmetic and of the memory, were they all that there is and every operation half of an FMA.

    Beside tensor cores only their work counts: what a loop feeds them comes from the L2 cache as often
    as from memory.
    """
    clocks: dict[str, float] = defaultdict(float)
    for instruction in loop:
        if instruction.base in TENSOR:
            clocks[_tensor_type(instruction)] += _tensor_clocks(instruction, rates, sustained=False)
    if clocks:
        return dict(clocks)
    for instruction in loop:
        pipe = _PIPE_OF.get(instruction.base)
        if pipe in ("float32", "float64", "half"):
            pair = 2 if pipe == "half" or instruction.base.endswith("2") else 1
            work = operations(instruction) / (2 * pair)
            clocks[pipe] += PARTITIONS * work / rates.pipes[pipe]
        clocks["memory"] += PARTITIONS * global_bytes(instruction) / rates.memory
    return {name: count for name, count in clocks.items() if count}


def _tensor_clocks(instruction: Instruction, rates: Rates, *, sustained: bool) -> float:
    """At the peak rate, or at the one that the instruction reaches."""
    rate = rates.tensor[_tensor_type(instruction)]
    part = (rates.mma_sync or 1.0) if sustained and instruction.base in _MMA_SYNC else 1.0
    return PARTITIONS * operations(instruction) / 2 / (rate * part)


def _tensor_type(instruction: Instruction) -> str:
    if instruction.base == "DMMA":
        return "float64"
    if instruction.base in ("HMMA", "HGMMA"):
        return "tf32" if "TF32" in instruction.modifiers else "float16"
    return "8-bit"
