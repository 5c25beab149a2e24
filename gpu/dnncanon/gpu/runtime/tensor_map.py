"""Tensor maps: what bulk copies (TMA) are told of a tensor in global memory, as arguments of kernels."""

from dataclasses import dataclass
from typing import Any

from dnncanon.gpu.runtime.array import DeviceArray

ALIGNMENT = 16
"""Bytes of which the first element's address and all strides but the innermost one are multiples."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """All that a map says but for the address. Dims go from the slowest to the fastest.

    ``strides`` count elements of ``itemsize`` bytes, of which the last are adjacent. A copy moves a ``box``;
    of what it has outside the ``extents``, zeros arrive. In shared memory 16-byte chunks are exchanged within
    ``swizzle`` bytes: 0, 32, 64 or 128, and no row of a box is longer.
    """

    itemsize: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An argument of which a kernel receives the descriptor: 128 bytes in global memory.

    The array's first element is the tensor's; that the tensor lies within the array is up to the caller.
    """

    array: DeviceArray
    layout: TensorLayout

    @property
    def argument(self) -> Any:
        return self.array.device.tensor_map(self.array.pointer, self.layout)
