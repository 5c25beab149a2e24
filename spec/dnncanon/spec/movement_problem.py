"""What data movement is called with, and the problems that follow from calls."""

import math
from dataclasses import dataclass

from dnncanon.spec.attributes import as_integer, as_real, per_dim
from dnncanon.spec.constraints import spatial_dims
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.tensors import Shape

MOST_TENSORS = 8
"""That are concatenated by one call."""
ORDERS = ("DCR", "CRD")
"""Of the channels of blocks, ONNX's names: depth (the place in the block) before channel, or behind it."""


# --- Problems --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """A tensor in another layout."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class VectorProblem:
    """Channels in vectors of ``width``: ``shape`` is that without vectors, N, C, spatial."""

    dtype: str
    shape: Shape
    width: int

    @property
    def vector_shape(self) -> Shape:
        n, c, *space = self.shape
        return (n, c // self.width, *space, self.width)


@dataclass(frozen=True, slots=True)
class PadProblem:
    """Elements around a tensor: ``shape`` is that without them. ``value`` is what pad fills in."""

    dtype: str
    shape: Shape
    pre: Shape
    post: Shape
    value: float = 0.0

    @property
    def padded_shape(self) -> Shape:
        return tuple(map(sum, zip(self.shape, self.pre, self.post, strict=True)))


@dataclass(frozen=True, slots=True)
class BlockProblem:
    """Blocks of space in channels: ``shape`` is that with the blocks in space, N, C, spatial."""

    dtype: str
    shape: Shape
    block: Shape
    order: str

    @property
    def folded_shape(self) -> Shape:
        n, c, *space = self.shape
        return (
            n,
            c * math.prod(self.block),
            *(i // b for i, b in zip(space, self.block, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class ConcatProblem:
    """Tensors along an axis: ``shape`` is that of all together, ``sizes`` are the extents there of each."""

    dtype: str
    shape: Shape
    axis: int
    sizes: Shape

    @property
    def parts(self) -> tuple[Shape, ...]:
        """The shapes of the tensors."""
        front, behind = self.shape[: self.axis], self.shape[self.axis + 1 :]
        return tuple((*front, size, *behind) for size in self.sizes)

    @property
    def starts(self) -> Shape:
        """Where each begins along the axis."""
        return tuple(sum(self.sizes[:k]) for k in range(len(self.sizes)))


@dataclass(frozen=True, slots=True)
class SliceProblem:
    """A slice: ``shape`` is that of the whole tensor."""

    dtype: str
    shape: Shape
    start: Shape
    limit: Shape
    stride: Shape

    @property
    def sliced_shape(self) -> Shape:
        dims = zip(self.start, self.limit, self.stride, strict=True)
        return tuple(-(-(limit - start) // stride) for start, limit, stride in dims)


@dataclass(frozen=True, slots=True)
class TransposeProblem:
    """A permutation of dims: ``shape`` is that of x."""

    dtype: str
    shape: Shape
    permutation: Shape


@dataclass(frozen=True, slots=True)
class ReshapeProblem:
    """The same elements in another shape: ``shape`` is that of x, ``to`` that of y."""

    dtype: str
    shape: Shape
    to: Shape


@dataclass(frozen=True, slots=True)
class BandProblem:
    """A band of matrices: ``shape`` is that of the matrices, …, M, N. ``value`` is what is filled in."""

    dtype: str
    shape: Shape
    lower: int
    upper: int
    value: float

    @property
    def width(self) -> int:
        """Diagonals in the band."""
        return self.lower + self.upper + 1

    @property
    def band_shape(self) -> Shape:
        return (*self.shape[:-1], self.width)


# --- From arguments to a problem -------------------------------------------------------------------


def integers(a: Arguments, name: str, default: Shape) -> Shape:
    """A legal sequence of integers, or the default for None."""
    given = a.attributes[name]
    return default if given is None else tuple(map(as_integer, given))


def layout(a: Arguments) -> LayoutProblem:
    """Of transform_tensor."""
    return LayoutProblem(a.tensors["x"].dtype, a.tensors["x"].shape)


def into_vectors(a: Arguments) -> VectorProblem:
    """Of vectorize_channels."""
    x = a.tensors["x"]
    return VectorProblem(x.dtype, x.shape, as_integer(a.attributes["width"]))


def from_vectors(a: Arguments) -> VectorProblem:
    """Of unvectorize_channels."""
    x = a.tensors["x"]
    n, groups, *space, width = x.shape
    return VectorProblem(x.dtype, (n, groups * width, *space), width)


def padding(a: Arguments) -> PadProblem:
    """Of pad."""
    x = a.tensors["x"]
    pre, post = (integers(a, name, ()) for name in ("pre", "post"))
    return PadProblem(x.dtype, x.shape, pre, post, as_real(a.attributes["value"]))


def cropping(a: Arguments) -> PadProblem:
    """Of crop."""
    x = a.tensors["x"]
    pre, post = (integers(a, name, ()) for name in ("pre", "post"))
    inner = tuple(n - b - e for n, b, e in zip(x.shape, pre, post, strict=True))
    return PadProblem(x.dtype, inner, pre, post)


def into_channels(a: Arguments) -> BlockProblem:
    """Of space_to_depth."""
    x = a.tensors["x"]
    return BlockProblem(x.dtype, x.shape, block_of(a), a.attributes["order"])


def into_space(a: Arguments) -> BlockProblem:
    """Of depth_to_space."""
    x, block = a.tensors["x"], block_of(a)
    n, c, *space = x.shape
    spread = tuple(i * b for i, b in zip(space, block, strict=True))
    shape = (n, c // math.prod(block), *spread)
    return BlockProblem(x.dtype, shape, block, a.attributes["order"])


def block_of(a: Arguments) -> Shape:
    """Extents of a block, for each spatial dim."""
    return per_dim(a.attributes["block"], spatial_dims(a))


def joining(a: Arguments) -> ConcatProblem:
    """Of concat_forward."""
    parts = list(a.tensors.values())
    axis = as_integer(a.attributes["axis"]) % parts[0].rank
    sizes = tuple(part.shape[axis] for part in parts)
    shape = parts[0].shape
    return ConcatProblem(
        parts[0].dtype, (*shape[:axis], sum(sizes), *shape[axis + 1 :]), axis, sizes
    )


def splitting(a: Arguments) -> ConcatProblem:
    """Of concat_backward."""
    dy = a.tensors["dy"]
    axis = as_integer(a.attributes["axis"]) % dy.rank
    return ConcatProblem(dy.dtype, dy.shape, axis, integers(a, "sizes", ()))


def slicing(a: Arguments) -> SliceProblem:
    """Of slice_forward or, with ``input_size``, slice_backward."""
    first = next(iter(a.tensors.values()))
    shape = integers(a, "input_size", ()) if "input_size" in a.attributes else first.shape
    return SliceProblem(
        first.dtype,
        shape,
        integers(a, "start", (0,) * len(shape)),
        integers(a, "limit", shape),
        integers(a, "stride", (1,) * len(shape)),
    )


def transposing(a: Arguments) -> TransposeProblem:
    """Of transpose."""
    x = a.tensors["x"]
    return TransposeProblem(x.dtype, x.shape, integers(a, "permutation", ()))


def reshaping(a: Arguments) -> ReshapeProblem:
    """Of reshape."""
    x = a.tensors["x"]
    return ReshapeProblem(x.dtype, x.shape, integers(a, "shape", ()))


def contracting(a: Arguments) -> BandProblem:
    """Of contract_band_matrix."""
    x = a.tensors["x"]
    return BandProblem(x.dtype, x.shape, *bandwidths(a), as_real(a.attributes["value"]))


def expanding(a: Arguments) -> BandProblem:
    """Of expand_band_matrix."""
    x = a.tensors["x"]
    shape = (*x.shape[:-1], as_integer(a.attributes["columns"]))
    return BandProblem(x.dtype, shape, *bandwidths(a), as_real(a.attributes["value"]))


def bandwidths(a: Arguments) -> tuple[int, int]:
    """l and u."""
    return as_integer(a.attributes["lower"]), as_integer(a.attributes["upper"])
