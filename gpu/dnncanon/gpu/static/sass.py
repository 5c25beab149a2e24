"""SASS, the machine code of NVIDIA's GPUs, as instructions and loops: read from nvdisasm's JSON."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

BYTES = 16
"""Of an instruction, on every architecture since Volta."""

_BRANCHES = ("BRA", "JMP")
_ENDS = ("EXIT", "RET", *_BRANCHES)
_OF_LIBRARIES = re.compile(r"cudaCG|__cuda_sm|__nv_static_.*_cuda_device_runtime_")
_ADDRESS = re.compile(r"0x[0-9a-f]+$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``opcode`` with all its modifiers, as in ``LDG.E.128``."""

    opcode: str
    operands: str = ""
    predicate: str = ""

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    def matches(self, opcode: str) -> bool:
        """Whether ``opcode`` names this instruction: ``HMMA`` and ``HMMA.16816`` both name
        ``HMMA.16816.F32``; ``LDS`` does not name ``LDSM``."""
        return f"{self.opcode}.".startswith(f"{opcode}.")

    @property
    def target(self) -> int | None:
        """The address that a branch goes to; None for everything else and for computed branches."""
        if self.base not in _BRANCHES:
            return None
        address = _ADDRESS.search(self.operands)
        return int(address.group(), 16) if address else None

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow: not after an unconditional jump or exit."""
        conditional = bool(self.predicate) or "," in self.operands
        return self.base not in _ENDS or (conditional and self.base != "RET")

    def __str__(self) -> str:
        return " ".join(filter(None, (self.predicate, self.opcode, self.operands)))


class Code(Sequence[Instruction]):
    """Some instructions in the order of their addresses: a kernel, or one of its loops."""

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        self._instructions = tuple(instructions)

    def __len__(self) -> int:
        return len(self._instructions)

    def __getitem__(self, index: Any) -> Any:
        return self._instructions[index]

    def count(self, *opcodes: Any) -> int:
        """How many instructions any of ``opcodes`` names, as :meth:`Instruction.matches` says."""
        return sum(any(i.matches(opcode) for opcode in opcodes) for i in self)

    def share(self, *opcodes: str) -> float:
        """The part of all instructions that ``opcodes`` name, 0 to 1."""
        return self.count(*opcodes) / len(self) if len(self) else 0.0

    def instructions_per(self, *opcodes: str) -> float:
        """All instructions for each one that ``opcodes`` name; infinite where there is none."""
        count = self.count(*opcodes)
        return len(self) / count if count else float("inf")

    def mix(self) -> dict[str, int]:
        """Counts by opcode with its modifiers, the most frequent first."""
        counts: dict[str, int] = defaultdict(int)
        for instruction in self:
            counts[instruction.opcode] += 1
        return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


class Program(Code):
    """All instructions of a kernel, the subroutines that it calls included, without padding."""

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The natural loops, in the order of their first instructions.

        A branch back to an earlier instruction, the header, closes a loop if the header comes before
        every instruction of it on every way; the loop's are those that reach the branch without
        passing the header. Loops of one header are one; a branch to itself, behind the last exit, is none.
        """
        before = self._predecessors
        bodies: dict[int, set[int]] = defaultdict(set)
        for position, instruction in enumerate(self):
            target = instruction.target
            if target is not None and target // BYTES < position:
                body = self._reaching(position, target // BYTES)
                entered = {at for at in body if at == 0 or not before[at]}
                if entered <= {target // BYTES}:
                    bodies[target // BYTES] |= body
        return tuple(
            Loop(header, (self[at] for at in sorted(body)))
            for header, body in sorted(bodies.items())
        )

    @cached_property
    def _predecessors(self) -> list[set[int]]:
        before: list[set[int]] = [set() for _ in self]
        for position, instruction in enumerate(self):
            if instruction.falls_through and position + 1 < len(self):
                before[position + 1].add(position)
            target = instruction.target
            if target is not None and target // BYTES < len(self):
                before[target // BYTES].add(position)
        return before

    def _reaching(self, tail: int, header: int) -> set[int]:
        """The positions from which ``tail`` is reached without passing ``header``; both included."""
        found, open_ends = {header, tail}, [tail]
        while open_ends:
            for position in self._predecessors[open_ends.pop()] - found:
                found.add(position)
                open_ends.append(position)
        return found


class Loop(Code):
    """The instructions of a loop, of all the ways through it, inner loops included."""

    def __init__(self, header: int, instructions: Iterable[Instruction]) -> None:
        super().__init__(instructions)
        self.header = header
        """The position of its first instruction in the program."""


def read_json(text: str) -> Program:
    """The program in what ``nvdisasm -json`` prints of a file that holds one kernel.

    Functions of libraries may be there too. ValueError where it holds no kernel, or several.
    """
    _, everything = json.loads(text)
    functions = [f for f in everything if not _OF_LIBRARIES.match(str(f.get("function-name")))]
    if len(functions) != 1:
        names = ", ".join(str(f.get("function-name")) for f in functions) or "none"
        raise ValueError(f"the binary holds {len(functions)} kernels ({names}), not one")
    instructions = [
        Instruction(row["opcode"], row.get("operands", ""), row.get("predicate", ""))
        for row in functions[0]["sass-instructions"]
    ]
    while instructions and instructions[-1].opcode == "NOP":
        instructions.pop()
    return Program(instructions)
