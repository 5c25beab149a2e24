"""What a thread has read of a row, kept in shared memory for the next time that it goes over it.

A thread keeps the first columns that it visits, in slots of its own. Nobody else reads them, so that there is
no barrier; those of a warp lie side by side, so that no banks conflict. What has no slot is read again.

    kept = Kept.of({0: "float16"})            operands by number, with their dtypes
    {kept.declared}                           once in the kernel
    slot = 0                                  before each loop over the columns
    w0 = x0[…]; {kept.keep("w{k}")}           in the first loop
    {kept.recall("w{k}", "x{k}[…]")}          in later ones
    slot += 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnncanon.gpu.kernels.rows import THREADS
from dnncanon.gpu.runtime.device_code import types
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

BYTES = 128
"""Of each thread: 32 KiB for a block, of which an sm_90 holds 7, with 1792 of at most 2048 threads."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The operands that are kept, as (number, type of a word, words of a column); and how many columns."""

    operands: tuple[tuple[int, str, int], ...]
    slots: int

    @classmethod
    def of(cls, dtypes: Mapping[int, str], count: int = 1) -> "Kept":
        """Operands of these dtypes, ``count`` elements a column."""
        words = {k: storage_of(DTYPES[name].numpy) for k, name in dtypes.items()}
        column = count * sum(word.itemsize for word in words.values())
        operands = tuple((k, word.name, count) for k, word in words.items())
        return cls(operands, BYTES // column if column else 0)

    @classmethod
    def chunks(cls, nbytes: Mapping[int, int]) -> "Kept":
        """Operands that are read in chunks of so many bytes, each a pair of uint64 (``ptx.load_chunk``)."""
        operands = tuple((k, "uint64", 1 + (size > 8)) for k, size in nbytes.items())
        column = 8 * sum(words for _, _, words in operands)
        return cls(operands, BYTES // column if column else 0)

    @property
    def declared(self) -> str:
        lines = [
            f"kept{k} = cuda.shared.array({self.slots * words * THREADS}, kept_word{k})"
            for k, _, words in self.operands
        ]
        return "; ".join(lines) or "pass"

    @property
    def scope(self) -> dict[str, Any]:
        """What the names in the lines mean."""
        return {f"kept_word{k}": getattr(types, name) for k, name, _ in self.operands}

    def keep(self, word: str, element: str = "0") -> str:
        """The statement that keeps ``word`` of each operand, the ``element``-th of the column."""
        puts = [
            f"kept{k}[{self._at(words, element)}] = {_named(word, k)}"
            for k, _, words in self.operands
        ]
        return f"if slot < {self.slots}: {'; '.join(puts)}" if puts else "pass"

    def recall(self, word: str, read: str, element: str = "0") -> str:
        """The lines that set ``word`` of each operand to what is kept, or else to what ``read`` reads."""
        kept = [
            f"{_named(word, k)} = kept{k}[{self._at(words, element)}]"
            for k, _, words in self.operands
        ]
        reads = [f"{_named(word, k)} = {_named(read, k)}" for k, _, _ in self.operands]
        if not kept:
            return "pass"
        return f"if slot < {self.slots}: {'; '.join(kept)}\nelse: {'; '.join(reads)}"

    def keep_chunk(self, chunk: str) -> str:
        puts = [
            f"kept{k}[{self._at(words, str(half))}] = {_named(chunk, k)}[{half}]"
            for k, _, words in self.operands
            for half in range(words)
        ]
        return f"if slot < {self.slots}: {'; '.join(puts)}" if puts else "pass"

    def recall_chunk(self, chunk: str, read: str) -> str:
        kept, reads = [], []
        for k, _, words in self.operands:
            low, high = (f"kept{k}[{self._at(words, half)}]" for half in "01")
            kept.append(f"{_named(chunk, k)} = ({low}, {high if words > 1 else 'uint64(0)'})")
            reads.append(f"{_named(chunk, k)} = {_named(read, k)}")
        if not kept:
            return "pass"
        return f"if slot < {self.slots}: {'; '.join(kept)}\nelse: {'; '.join(reads)}"

    @staticmethod
    def _at(words: int, element: str) -> str:
        column = "slot" if words == 1 else f"(slot * {words} + {element})"
        return f"{column} * {THREADS} + thread"


def _named(text: str, k: int) -> str:
    return text.replace("{k}", str(k))
