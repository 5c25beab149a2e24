"""What a thread has read of a row, kept in shared memory for the next time that it goes over it.

A thread keeps the first columns that it visits, in slots of its own. Nobody else reads them, so that there is
no barrier; those of a warp lie side by side, so that no banks conflict. What has no slot is read again. The
memory is dynamic: a launch has as many slots as its rows need, as far as there is room.

    kept = Kept.of({0: "float16"})            operands by number, with their dtypes
    room = kept.room(slots)                   an argument of the launch, with shared_bytes=kept.nbytes(slots)
    {kept.declared}                           once in the kernel, which has ``room`` for an argument
    slot = 0                                  before each loop over the columns
    w0 = x0[…]; {kept.keep("w{k}")}           in the first loop
    {kept.recall("w{k}", "x{k}[…]")}          in later ones
    slot += 1                                 at the end of each turn
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.gpu.kernels.rows import THREADS
from dnncanon.gpu.runtime.device_code import types
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

BYTES = 384
"""Of each thread at most: 96 KiB for a block, which an sm_80 and its successors have; an sm_90 has it twice."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The operands that are kept, as (number, type of a word, words of a column).

    Where they are read in ``chunked`` form, a column is a pair of uint64 (``ptx.load_chunk``), of which the
    second is kept where there is something in it.
    """

    operands: tuple[tuple[int, str, int], ...]
    chunked: bool = False

    @classmethod
    def of(cls, dtypes: Mapping[int, str], count: int = 1) -> "Kept":
        """Operands of these dtypes, ``count`` elements a column."""
        words = {k: storage_of(DTYPES[name].numpy) for k, name in dtypes.items()}
        return cls(tuple((k, word.name, count) for k, word in words.items()))

    @classmethod
    def chunks(cls, nbytes: Mapping[int, int]) -> "Kept":
        """Operands that are read in chunks of so many bytes."""
        operands = tuple((k, "uint64", 1 + (size > 8)) for k, size in nbytes.items())
        return cls(operands, chunked=True)

    @property
    def column(self) -> int:
        """Bytes of a slot."""
        return sum(np.dtype(word).itemsize * words for _, word, words in self.operands)

    def slots(self, columns: int, nbytes: int = BYTES) -> int:
        """Of a thread that visits so many columns, and has so many bytes."""
        return min(columns, nbytes // self.column) if self.operands else 0

    def nbytes(self, slots: int) -> int:
        """Of a block."""
        return slots * self.column * THREADS

    def room(self, slots: int, start: int = 0) -> tuple[int, ...]:
        """The slots, and the word at which each operand begins, behind ``start`` bytes of other things."""
        firsts, end = [], start
        for _, word, words in self.operands:
            size = np.dtype(word).itemsize
            firsts.append(end // size)
            end += slots * words * THREADS * size
        return slots, *firsts

    @property
    def declared(self) -> str:
        lines = ["slots = room[0]"]
        for place, (k, _, _) in enumerate(self.operands):
            lines += [
                f"kept{k} = cuda.shared.array(0, kept_word{k})",
                f"first{k} = room[{1 + place}]",
            ]
        return "; ".join(lines)

    @property
    def scope(self) -> dict[str, Any]:
        """What the names in the lines mean."""
        return {f"kept_word{k}": getattr(types, name) for k, name, _ in self.operands}

    def keep(self, name: str, element: str = "0") -> str:
        """The statement that keeps ``name`` of each operand: its column, or that element of it."""
        puts = []
        for k, _, words in self.operands:
            places = self._places(k, words, element)
            values = [f"{name}[{half}]" for half in range(words)] if self.chunked else [name]
            puts += [f"{at} = {_named(v, k)}" for at, v in zip(places, values, strict=True)]
        return f"if slot < slots: {'; '.join(puts)}" if puts else "pass"

    def recall(self, name: str, read: str, element: str = "0") -> str:
        """The lines that set ``name`` of each operand to what was kept, or else to what ``read`` reads."""
        kept, reads = [], []
        for k, _, words in self.operands:
            places = self._places(k, words, element)
            if self.chunked:
                places = [f"({places[0]}, {places[1] if words > 1 else 'uint64(0)'})"]
            kept.append(f"{_named(name, k)} = {places[0]}")
            reads.append(f"{_named(name, k)} = {_named(read, k)}")
        if not kept:
            return "pass"
        return f"if slot < slots: {'; '.join(kept)}\nelse: {'; '.join(reads)}"

    def _places(self, k: int, words: int, element: str) -> list[str]:
        """Where a column lies, both of its halves, or one element of it."""
        elements = [str(half) for half in range(words)] if self.chunked else [element]
        return [
            f"kept{k}[first{k} + (slot * {words} + {e}) * {THREADS} + thread]" for e in elements
        ]


def _named(text: str, k: int) -> str:
    return text.replace("{k}", str(k))
