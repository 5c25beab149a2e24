"""One kernel, compiled and taken apart: what the compiler made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.static.architecture import architecture
from dnncanon.gpu.static.arithmetic import TENSOR, global_bytes, operations
from dnncanon.gpu.static.occupancy import Occupancy, occupancy
from dnncanon.gpu.static.prediction import Prediction, predict
from dnncanon.gpu.static.sass import Code, Program
from dnncanon.gpu.static.toolchain import (
    Binary,
    Capability,
    architecture_name,
    compile_kernel,
    disassemble,
)

HOPPER: Capability = (9, 0, "a")


@dataclass(frozen=True)
class Inspection:
    """A kernel on an architecture, in blocks of ``threads`` with so much dynamic shared memory."""

    name: str
    capability: Capability
    threads: int
    dynamic_shared_bytes: int
    binary: Binary
    program: Program

    @property
    def architecture(self) -> str:
        return architecture_name(self.capability)

    @property
    def registers(self) -> int:
        """Of a thread."""
        return self.binary.registers

    @property
    def spill_bytes(self) -> int:
        """Bytes that the spills of a thread store and load, counted in the code, not in time."""
        return self.binary.spill_store_bytes + self.binary.spill_load_bytes

    @property
    def stack_bytes(self) -> int:
        """Local memory of a thread: spills, and arrays that are not kept in registers."""
        return self.binary.stack_bytes

    @property
    def local_accesses(self) -> int:
        """Loads and stores of local memory in the code: spills too."""
        return self.program.count("LDL", "STL")

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, static and dynamic."""
        return self.binary.shared_bytes + self.dynamic_shared_bytes

    @property
    def barriers(self) -> int:
        return self.binary.barriers

    @cached_property
    def occupancy(self) -> Occupancy:
        return occupancy(
            architecture(self.capability).limits,
            threads=self.threads,
            registers=self.registers,
            shared_bytes=self.shared_bytes,
        )

    @cached_property
    def loops(self) -> tuple[Code, ...]:
        return self.program.loops

    @cached_property
    def hot_loop(self) -> Code:
        """The loop with the most arithmetic for each of its instructions; without loops, all of the kernel.

        Where less than half of every loop is arithmetic, a loop that moves global memory is hotter than
        one that does not: it goes over the data, the other over a few partial results. What tensor cores
        multiply may have been moved by others.
        """
        return max(self.loops, key=_heat, default=self.program)

    @cached_property
    def prediction(self) -> Prediction | None:
        """How near to the peak of its architecture the hot loop may come."""
        return predict(self.hot_loop, architecture(self.capability).rates)

    def __str__(self) -> str:
        full, binary = self.occupancy, self.binary
        local = f"{self.stack_bytes} B stack, {self.local_accesses} LDL/STL"
        where = "hot loop" if self.loops else "no loop; whole kernel"
        return "\n".join(
            [
                f"{self.name} on {self.architecture}: {len(self.program)} instructions",
                f"  {self.registers} registers, {self.spill_bytes} B spilled ({local}), "
                f"{binary.shared_bytes} + {self.dynamic_shared_bytes} B shared memory, "
                f"{self.barriers} barriers",
                f"  {full.blocks} blocks of {self.threads} threads on an SM: {full.fraction:.0%} of its "
                f"warps, limited by {full.limited_by}",
                f"  {where} ({len(self.loops)} loops): {len(self.hot_loop)} instructions",
                f"    {_words(self.hot_loop.mix().items())}",
            ]
        )


def _heat(loop: Code) -> tuple[bool, bool, float, float]:
    work, moved = sum(map(operations, loop)), sum(map(global_bytes, loop))
    arithmetic = sum(operations(instruction) > 0 for instruction in loop)
    multiplies = loop.count(*TENSOR) > 0
    computes = 2 * arithmetic >= len(loop) or multiplies
    return computes, multiplies or moved > 0, work / len(loop), moved / len(loop)


def _words(mix: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{opcode} {count}" for opcode, count in mix)


def inspect(
    kernel: Kernel,
    signature: tuple[Any, ...],
    cc: Capability = HOPPER,
    *,
    threads: int = 256,
    dynamic_shared_bytes: int = 0,
) -> Inspection:
    """Compile ``kernel`` for arguments of Numba types and take it apart; needs no GPU.

    ``cc`` is as in (8, 0) or (9, 0, "a"). Raises :class:`ToolchainError`.
    """
    binary = compile_kernel(kernel, signature, cc)
    return Inspection(
        kernel.name, cc, threads, dynamic_shared_bytes, binary, disassemble(binary.cubin)
    )
