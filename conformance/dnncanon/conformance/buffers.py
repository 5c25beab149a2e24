"""Guarded buffers: every tensor of a case lies between margins, and nothing but it may change.

A buffer is one flat array: margin, the tensor with its gaps, margin. Margins, gaps and unwritten
outputs hold a poison, all bits set, which is a NaN in every floating-point type. Inputs must come back
bit for bit; of an output's buffer only the output's own elements may differ.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, LayoutError, TensorType, check_output_layout, span

MARGIN = 64  # elements on either side: beyond any vector access of 128 bits, and a few more
WORKSPACE_MARGIN = 512  # bytes on either side, so that what lies between stays aligned
_POISON = 0xFF
_PIECE = 1 << 20  # elements that are compared at once

Buffer = NDArray[Any]


@dataclass(frozen=True)
class Guarded:
    """A tensor inside its flat, poisoned buffer, on the host."""

    name: str
    type: TensorType
    buffer: Buffer
    margin: int = MARGIN

    @classmethod
    def poisoned(cls, name: str, tensor: TensorType, margin: int = MARGIN) -> "Guarded":
        """A tensor no element of which has been written; MemoryError where there is no room for it."""
        row = DTYPES.get(tensor.dtype)
        dtype = row.numpy if row else np.dtype(tensor.dtype)
        count = 2 * margin + span(tensor.shape, tensor.element_strides)
        if count * dtype.itemsize > sys.maxsize:
            raise MemoryError(f"{name} reaches over {count} elements")
        raw = np.full(count * dtype.itemsize, _POISON, np.uint8)
        return cls(name, tensor, raw.view(dtype), margin)

    @classmethod
    def workspace(cls, count: int) -> "Guarded":
        """So many poisoned bytes, aligned as device memory is, and not one more."""
        return cls.poisoned("workspace", TensorType("uint8", (count,)), WORKSPACE_MARGIN)

    @classmethod
    def holding(
        cls, name: str, tensor: TensorType, data: NDArray[np.float64], margin: int = MARGIN
    ) -> "Guarded":
        """A tensor with the given values, each rounded once to its dtype.

        Where strides make elements share an address, the last of them in logical order stays.
        """
        guarded = cls.poisoned(name, tensor, margin)
        values = rounded(data, tensor.dtype)
        if _overlaps(tensor):
            guarded.buffer[guarded.addresses().ravel()] = values.ravel()
        else:
            guarded.view()[...] = values
        return guarded

    def view(self) -> NDArray[Any]:
        """The tensor as a strided view of its buffer."""
        return view(self.buffer, self.type.shape, self.type.element_strides, self.margin)

    def addresses(self) -> NDArray[np.int64]:
        """Where in the buffer each element lies."""
        index = np.full(self.type.shape, self.margin, np.int64)
        for dim, (extent, stride) in enumerate(
            zip(self.type.shape, self.type.element_strides, strict=True)
        ):
            along = [1] * self.type.rank
            along[dim] = extent
            index += (np.arange(extent) * stride).reshape(along)
        return index

    def damage(self, after: Buffer, *, written: bool) -> str | None:
        """What else changed in the buffer ``after`` the call; None if nothing did.

        ``written`` says that the tensor's own elements were to be written.
        """
        changed = _changed(self.buffer, after)
        if written:
            # Both are unique. Told so, NumPy 2.4 needs 0.2 s for 11 million addresses, otherwise 98 s.
            changed = np.setdiff1d(changed, self.addresses().ravel(), assume_unique=True)
        if not changed.size:
            return None
        where = int(changed[0])
        return f"{self.name}: {self._place(where)} was written ({changed.size} elements in all)"

    def _place(self, position: int) -> str:
        if position < self.margin:
            return f"memory {self.margin - position} elements before its first"
        end = self.buffer.size - self.margin
        if position >= end:
            return f"memory {position - end + 1} elements behind its last"
        own = np.argwhere(self.addresses() == position)
        if len(own):
            return f"input element {tuple(map(int, own[0]))}"
        return f"a gap between its strides, {position - self.margin} elements behind its first,"


def _overlaps(tensor: TensorType) -> bool:
    """Whether elements share an address; now and then said of an exotic layout in which none do."""
    try:
        check_output_layout("", tensor.shape, tensor.element_strides)
    except LayoutError:
        return True
    return False


def view(buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Buffer:
    """A strided view of a flat host buffer; shape, strides and offset count elements."""
    steps = tuple(stride * buffer.itemsize for stride in strides)
    # Not by as_strided, which asks for a name in NumPy's own letters, and float8_e5m2 has none.
    memory = buffer.view(np.uint8)
    return np.ndarray(shape, buffer.dtype, memory, offset * buffer.itemsize, steps)


def _changed(before: Buffer, after: Buffer) -> NDArray[np.int64]:
    """Where two buffers differ in any bit; piece by piece, for they may fill the memory."""
    found = []
    for start in range(0, before.size, _PIECE):
        one, other = _bytes(before[start : start + _PIECE]), _bytes(after[start : start + _PIECE])
        found.append(start + np.flatnonzero((one != other).any(axis=1)))
    return np.concatenate(found)


def _bytes(buffer: Buffer) -> NDArray[np.uint8]:
    return buffer.view(np.uint8).reshape(buffer.size, buffer.itemsize)
