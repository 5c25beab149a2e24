"""Descriptors of tensors for bulk copies (what cuTensorMapEncodeTiled makes for a GPU)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncanon.gpu.emulator.errors import LaunchError
from dnncanon.gpu.emulator.instructions.bulk import MAGIC, TensorDescriptor
from dnncanon.gpu.emulator.machine.state import View

__all__ = ["TensorMap"]


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A launch argument that a kernel sees as a uint8 array of 128 bytes: the descriptor of `array`.

    box: extents of the tile that one copy moves, in the order of the array's axes. The innermost
    axis must be contiguous, the other strides multiples of 16 bytes, the box's rows multiples of 16
    bytes. swizzle: 0, 32, 64 or 128 bytes; the box's rows must then fit into it.
    """

    array: npt.NDArray[Any]
    box: Sequence[int]
    swizzle: int = 0

    def __post_init__(self) -> None:
        array, box = self.array, tuple(self.box)
        row = box[-1] * array.itemsize
        problems = {
            f"{array.ndim} axes, 1 to 5 are possible": not 1 <= array.ndim <= 5,
            f"a box of {len(box)} axes for {array.ndim}": len(box) != array.ndim,
            f"extents {box} outside 1 … 256": not all(1 <= b <= 256 for b in box),
            "the innermost axis is not contiguous": array.strides[-1] != array.itemsize,
            f"strides {array.strides[:-1]}: not multiples of 16 bytes": any(
                s % 16 or s <= 0 for s in array.strides[:-1]
            ),
            f"rows of {row} bytes: not a multiple of 16": row % 16 != 0,
            f"swizzle {self.swizzle}": self.swizzle not in (0, 32, 64, 128),
            f"rows of {row} bytes exceed the swizzle": bool(self.swizzle) and row > self.swizzle,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise LaunchError(f"TensorMap: {problem}")

    def encode(self, address: int, out: npt.NDArray[np.uint8]) -> None:
        """Write the descriptor for the array's data at `address` into 128 bytes."""
        view = View(TensorDescriptor, out)
        view["address"] = address
        view["rank"] = self.array.ndim
        view["element"] = self.array.itemsize
        view["swizzle"] = self.swizzle
        view["magic"] = MAGIC
        for name, values in (
            ("strides", self.array.strides), ("extents", self.array.shape), ("box", self.box),
        ):  # fmt: skip
            padded = [*reversed(values), *[0] * (5 - self.array.ndim)]
            view[name] = np.array(padded)
