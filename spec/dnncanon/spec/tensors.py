"""Tensor types: shape, dtype and strides, without data; and the layouts that strides express."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dnncanon.spec.attributes import as_integer, shown
from dnncanon.spec.dtypes import DTYPES, dtype_name
from dnncanon.spec.errors import LayoutError, MissingTensorError, ShapeError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """What is known of a tensor without its data.

    ``shape`` is in logical order (N, C, spatial…); ``strides`` count elements. ``strides=None``
    means dense in logical order (C order).
    """

    dtype: str
    shape: Shape
    strides: Shape | None = None

    @classmethod
    def of(cls, tensor: object, name: str = "tensor") -> "TensorType":
        """The type of an array of any library: it needs ``shape`` and ``dtype``.

        Raises MissingTensorError when ``tensor`` is no array, ShapeError when its extents are not
        integers >= 0.
        """
        if isinstance(tensor, TensorType):
            _extents(name, tensor.shape)
            return tensor
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        if shape is None or dtype is None:
            raise MissingTensorError(
                f"{name} is {type(tensor).__name__}, not an array; "
                f"pass an array with shape and dtype, such as numpy.asarray({name})"
            )
        return cls(dtype_name(dtype), _extents(name, shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements themselves, gaps not counted."""
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def element_strides(self) -> Shape:
        return dense_strides(self.shape) if self.strides is None else self.strides


def _extents(name: str, shape: Iterable[object]) -> Shape:
    try:
        extents = tuple(as_integer(extent) for extent in shape)
    except (TypeError, ValueError):
        extents = (-1,)
    if min(extents, default=0) < 0:
        raise ShapeError(f"{name} has shape {shown(shape)}; pass an array of extents >= 0")
    return extents


def dense_strides(shape: Sequence[int]) -> Shape:
    """Strides, in elements, of a C-ordered tensor: the last dim is the fastest."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= max(1, shape[dim])
    return tuple(strides)


def channels_last_strides(shape: Sequence[int]) -> Shape:
    """Strides of a dense tensor whose channel, dim 1, is the fastest: NHWC behind (N, C, H, W)."""
    order = (0, *range(2, len(shape)), 1)
    dense = dense_strides([shape[dim] for dim in order])
    return tuple(dense[order.index(dim)] for dim in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory a tensor reaches over: from its first to behind its last one."""
    if math.prod(shape) == 0:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def check_output_layout(name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raise LayoutError unless each element has an address of its own.

    The test is that of nested dims: ordered by stride, each dim must step over all smaller ones.
    It refuses some exotic layouts that do not overlap, as cuDNN does. An output without elements
    may have any strides.
    """
    if math.prod(shape) == 0:
        return
    reach = 1
    dims = [(s, e) for s, e in zip(strides, shape, strict=True) if e > 1]
    for stride, extent in sorted(dims):
        if stride < reach:
            raise LayoutError(
                f"output {name} of shape {tuple(shape)} has strides {tuple(strides)}, by which elements "
                f"overlap; pass an output in which each element has an address of its own"
            )
        reach = stride * (extent - 1) + reach
