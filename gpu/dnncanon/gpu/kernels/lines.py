"""Kernels for any number of operands: the lines of their source that have a part for each of them.

Numba can neither loop over a tuple of differently typed arrays nor inline a call with a star, so such kernels
are written as templates, and ``device_code.generated`` makes functions of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.runtime.device_code import cuda, types

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Dtypes of the inputs and outputs, and which scalars are floats: what a kernel is made for.

    Inputs of the numbers ``still`` have one element for all, which is in wk.
    """

    inputs: Names
    outputs: Names
    floats: tuple[bool, ...] = ()
    still: tuple[int, ...] = ()

    @property
    def number(self) -> str:
        """The type of scalars that are floats: float64 where an operand is."""
        return "float64" if "float64" in self.inputs + self.outputs else "float32"

    # Of operand k: array xk or yk, number vk or rk, scalar sk.

    @property
    def unpack(self) -> str:
        """The operands and scalars, out of the tuples ``inputs``, ``outputs`` and ``given``."""
        kinds = [self.number if is_float else "int64" for is_float in self.floats]
        scalars = "; ".join(f"s{k} = {kind}(given[{k}])" for k, kind in enumerate(kinds))
        arrays = self.each_input("x{k} = inputs[{k}]"), self.each_output("y{k} = outputs[{k}]")
        return "; ".join(filter(None, (*arrays, scalars)))

    def with_still(self, still: tuple[int, ...]) -> "Signature":
        return replace(self, still=still)

    def each_input(self, text: str) -> str:
        return each(len(self.inputs), text) or "pass"

    def each_moving(self, text: str) -> str:
        """For the inputs that are not still."""
        moving = (k for k in range(len(self.inputs)) if k not in self.still)
        return "; ".join(text.replace("{k}", str(k)) for k in moving) or "pass"

    def each_still(self, text: str) -> str:
        return "; ".join(text.replace("{k}", str(k)) for k in self.still) or "pass"

    def each_output(self, text: str) -> str:
        return each(len(self.outputs), text)

    def arguments(self, word: str, index: str | None) -> str:
        """The elements, whose words are ``word``, as numbers; the scalars; the index if there is one."""
        words = ("w{k}" if k in self.still else word for k in range(len(self.inputs)))
        numbered = (text.replace("{k}", str(k)) for k, text in enumerate(words))
        elements = ", ".join(f"to_sum{k}({text})" for k, text in enumerate(numbered))
        return ", ".join(filter(None, (elements, self.scalars, index)))

    @property
    def scalars(self) -> str:
        return each(len(self.floats), "s{k}", ", ")

    @property
    def scope(self) -> dict[str, Any]:
        """What the names in the lines mean."""
        readers = {f"to_sum{k}": ELEMENTS[name].to_sum for k, name in enumerate(self.inputs)}
        writers = {f"from_sum{k}": ELEMENTS[name].from_sum for k, name in enumerate(self.outputs)}
        numbers = {name: getattr(types, name) for name in ("float32", "float64", "int64", "uint64")}
        return {"cuda": cuda, **numbers, **readers, **writers}


def each(count: int, text: str, separator: str = "; ") -> str:
    """``text`` for k = 0, 1, …, with {k} filled in."""
    return separator.join(text.replace("{k}", str(k)) for k in range(count))


def tuple_of(count: int, text: str) -> str:
    """As an expression or a target: the only item itself, or a tuple."""
    listed = each(count, text, ", ")
    return listed if count == 1 else f"({listed})"


def numbers(scalars: Sequence[float]) -> tuple[float, ...]:
    """Scalars as Python's ints and floats."""
    return tuple(
        int(s) if isinstance(s, int | np.integer | np.bool_) else float(s) for s in scalars
    )


def signature_of(
    inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray], scalars: Sequence[float]
) -> Signature:
    return Signature(
        tuple(array.dtype.name for array in inputs),
        tuple(array.dtype.name for array in outputs),
        tuple(isinstance(scalar, float) for scalar in numbers(scalars)),
    )
