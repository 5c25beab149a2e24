"""The domain of data movement that cases are drawn from, and its boundaries."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from dnncanon.spec.elementwise import boundary_shapes, drawn_shape
from dnncanon.spec.movement_problem import (
    MOST_TENSORS,
    ORDERS,
    BandProblem,
    BlockProblem,
    ConcatProblem,
    PadProblem,
    SliceProblem,
    slicing,
)
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides

# --- Arguments at random --------------------------------------------------------------------------
# Whatever is drawn, as many draws are made: of a sequence as many as the largest rank has entries.

_RANK = 5


def _entries(draw: Draw, rank: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_RANK)][:rank])


def _some_shape(draw: Draw, scale: Scale) -> Shape:
    """A shape of up to five dims, of a quarter of the elements that the scale allows a tensor."""
    shape = list(drawn_shape(draw, scale))
    while math.prod(shape) > scale.multiplications // 32:
        largest = shape.index(max(shape))
        shape[largest] //= 2
    return tuple(shape)


def _shape_or_matrix(draw: Draw, scale: Scale) -> Shape:
    """Some shape, or matrices that are long both ways, such as kernels transpose in tiles."""
    shape, is_matrix = _some_shape(draw, scale), draw.choice((False, False, True))
    matrix = (draw.integer(1, 3), *(draw.integer(8, 40) for _ in range(2)))
    return matrix if is_matrix else shape


def _images(draw: Draw, scale: Scale) -> Shape:
    """N, C and up to three spatial dims, small."""
    dims = draw.choice((1, 2, 3))
    n, c = draw.choice((1, 2, 3, 0)), draw.integer(1, max(1, scale.channels // 2))
    longest = max(2, round(math.pow(scale.extent, 2 / (dims + 1)) / 1.5))
    return (n, c, *_entries(draw, dims, 1, longest))


def _only(dtype: str, extents: Shape, /, **attributes: Any) -> Arguments:
    return Arguments({"x": TensorType(dtype, extents)}, attributes)


def _draw_layout(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _only(dtype, _shape_or_matrix(draw, scale))


def _draw_into_vectors(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    n, c, *space = _images(draw, scale)
    width = draw.choice((2, 4, 32, 3))
    return _only(dtype, (n, c * width, *space), width=width)


def _draw_from_vectors(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    n, c, *space = _images(draw, scale)
    return _only(dtype, (n, c, *space, draw.choice((2, 4, 32, 3))))


def _draw_pad(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = _some_shape(draw, scale)
    pre, post = (_narrow(_entries(draw, len(shape), 0, 3), shape) for _ in range(2))
    value = draw.choice((0.0, 0.0, 1.0, -2.5, 0.1))
    value = value if math.prod(shape) else 1.0  # nothing but zeros would tell nothing
    for dim in range(len(shape)):  # of many dims the last ones are padded, and none so much
        if math.prod(PadProblem(dtype, shape, pre, post).padded_shape) > scale.multiplications // 4:
            pre, post = (_without(widths, dim) for widths in (pre, post))
    return _only(dtype, shape, pre=pre, post=post, value=value)


def _without(widths: Shape, dim: int) -> Shape:
    return (*widths[:dim], 0, *widths[dim + 1 :])


def _narrow(widths: Shape, shape: Shape) -> Shape:
    """The widths, of which only the last two may exceed 1."""
    return tuple(w if d >= len(shape) - 2 else w % 2 for d, w in enumerate(widths))


def _draw_crop(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """Of dims that have an element one is left."""
    shape = _some_shape(draw, scale)
    pre, post = (_narrow(_entries(draw, len(shape), 0, 3), shape) for _ in range(2))
    pre = tuple(min(b, n // 2) for b, n in zip(pre, shape, strict=True))
    post = tuple(min(e, max(0, n - b - 1)) for e, n, b in zip(post, shape, pre, strict=True))
    return _only(dtype, shape, pre=pre, post=post)


def _drawn_blocks(draw: Draw, scale: Scale, dtype: str) -> BlockProblem:
    n, c, *space = _images(draw, scale)
    block, order = _entries(draw, len(space), 1, 3), draw.choice(ORDERS)
    spread = tuple(i * b for i, b in zip(space, block, strict=True))
    return BlockProblem(dtype, (n, c, *spread), block, order)


def _draw_into_channels(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p = _drawn_blocks(draw, scale, dtype)
    return _only(dtype, p.shape, block=p.block, order=p.order)


def _draw_into_space(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p = _drawn_blocks(draw, scale, dtype)
    return _only(dtype, p.folded_shape, block=p.block, order=p.order)


def _drawn_parts(draw: Draw, scale: Scale, dtype: str) -> ConcatProblem:
    """A tensor in up to four parts, now and then in eight; some may be empty."""
    shape, count = _some_shape(draw, scale), draw.choice((2, 3, 1, 2, 4, MOST_TENSORS))
    axis = draw.integer(0, _RANK - 1) % len(shape)
    eighths = sorted([draw.integer(0, 8) for _ in range(MOST_TENSORS)][: count - 1])
    cuts = (0, *(shape[axis] * eighth // 8 for eighth in eighths), shape[axis])
    return ConcatProblem(dtype, shape, axis, tuple(b - a for a, b in pairwise(cuts)))


def _written(draw: Draw, axis: int, rank: int) -> int:
    """An axis as counted from the front or from the back."""
    return axis - rank if draw.choice((False, False, True)) else axis


def _draw_concat(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p = _drawn_parts(draw, scale, dtype)
    return _concatenated(p, _written(draw, p.axis, len(p.shape)))


def _concatenated(p: ConcatProblem, axis: int) -> Arguments:
    tensors = {f"x{k}": TensorType(p.dtype, part) for k, part in enumerate(p.parts)}
    return Arguments(tensors, {"axis": axis})


def _draw_split(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p = _drawn_parts(draw, scale, dtype)
    axis = _written(draw, p.axis, len(p.shape))
    return Arguments({"dy": TensorType(dtype, p.shape)}, {"axis": axis, "sizes": p.sizes})


def _drawn_slice(draw: Draw, scale: Scale, dtype: str) -> tuple[SliceProblem, dict[str, Any]]:
    """A slice, and its attributes; some are left at their defaults."""
    shape = _some_shape(draw, scale)
    front, back, stride = (_entries(draw, len(shape), low, 3) for low in (0, 0, 1))
    whole, plain = draw.choice((False, False, True)), draw.choice((False, True))
    start = tuple(min(f, n // 3) for f, n in zip(front, shape, strict=True))
    limit = tuple(n - min(b, n // 3) for b, n in zip(back, shape, strict=True))
    stride = tuple(s if n > 3 else 1 for s, n in zip(stride, shape, strict=True))
    given = {
        "start": start,
        "limit": None if whole else limit,
        "stride": None if plain else stride,
    }
    attributes = {**given, "input_size": shape}
    p = slicing(Arguments({"dy": TensorType(dtype, ())}, attributes))
    return p, given


def _draw_slice(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p, given = _drawn_slice(draw, scale, dtype)
    return _only(dtype, p.shape, **given)


def _draw_slice_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p, given = _drawn_slice(draw, scale, dtype)
    dy = TensorType(dtype, p.sliced_shape)
    return Arguments({"dy": dy}, {"input_size": p.shape, **given})


def _draw_transpose(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = _shape_or_matrix(draw, scale)
    keys = _entries(draw, len(shape), 0, 9)
    # Turned round, so that the simplest choice, equal keys, is no copy.
    permutation = sorted(range(len(shape)), key=lambda dim: (keys[dim], -dim))
    return _only(dtype, shape, permutation=tuple(permutation))


def _draw_reshape(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """Dims are joined, and one is divided by a factor; or all are joined and divided anew."""
    shape = _some_shape(draw, scale)
    kind, factor = draw.choice(("flat", "joined", "divided", "reversed")), draw.choice((2, 3, 5))
    at = draw.integer(0, _RANK - 1) % len(shape)
    to = {
        "flat": (math.prod(shape),),
        "joined": (*shape[:at], math.prod(shape[at : at + 2]), *shape[at + 2 :]),
        "divided": _divided(shape, at, factor),
        "reversed": shape[::-1],
    }[kind]
    return _only(dtype, shape, shape=to)


def _divided(shape: Shape, at: int, factor: int) -> Shape:
    divisor = math.gcd(shape[at], factor) or 1
    return (*shape[:at], shape[at] // divisor, divisor, *shape[at + 1 :])


def _drawn_band(draw: Draw, scale: Scale, dtype: str) -> BandProblem:
    batch = draw.choice(((1,), (2,), (3,), (2, 3), (0,)))
    rows, columns = (draw.integer(1, 2 * scale.extent) for _ in range(2))
    lower, upper = (draw.integer(0, 5) for _ in range(2))
    value = draw.choice((0.0, 0.0, -1.0, 0.1))
    return BandProblem(dtype, (*batch, rows, columns), lower, upper, value)


def _draw_contract(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    p = _drawn_band(draw, scale, dtype)
    return _only(dtype, p.shape, lower=p.lower, upper=p.upper, value=p.value)


def _draw_expand(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _expanded(_drawn_band(draw, scale, dtype))


def _expanded(p: BandProblem) -> Arguments:
    attributes = {"columns": p.shape[-1], "lower": p.lower, "upper": p.upper, "value": p.value}
    return _only(p.dtype, p.band_shape, **attributes)


# --- Boundaries -----------------------------------------------------------------------------------


_MATRICES = (
    ("32 by 32", (32, 32), None),
    ("33 by 31", (33, 31), None),
    ("matrices of 40 by 70", (3, 40, 70), None),
)
"""Around the tiles in which a matrix is transposed."""


def _each_shape(
    made: Callable[[str, Shape], Arguments], more: tuple[tuple[str, Shape, Shape | None], ...] = ()
) -> Callable[[str], Iterator[Boundary]]:
    """A call for each shape around a limit; the first tensor has the strides that go with it."""

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, strides in (*more, *boundary_shapes(unusual=dtype == "float32")):
            arguments = made(dtype, shape)
            first, tensor = next(iter(arguments.tensors.items()))
            if tensor.shape == shape:
                arguments = arguments.with_tensor(first, strides=strides)
            yield Boundary(name, arguments)

    return of_dtype


def _around(dtype: str, shape: Shape) -> dict[str, Shape]:
    rank = len(shape)
    return {"pre": (*(0,) * (rank - 1), 3), "post": (1, *(0,) * (rank - 1))}


def _padded(dtype: str, shape: Shape) -> Arguments:
    return _only(dtype, shape, **_around(dtype, shape), value=1.0)


def _cropped(dtype: str, shape: Shape) -> Arguments:
    """Without three of the last dim, from the front, or half of it; and without the last of the first."""
    zeros = (0,) * (len(shape) - 1)
    pre = (*zeros, min(3, shape[-1] // 2))
    post = (int(shape[0] - pre[0] > 1), *zeros)
    return _only(dtype, shape, pre=pre, post=post)


def _two_parts(dtype: str, shape: Shape) -> Arguments:
    first, *rest = shape
    p = ConcatProblem(dtype, (first + 1, *rest), 0, (first, 1))
    return _concatenated(p, 0)


def _parted(dtype: str, shape: Shape) -> Arguments:
    sizes = (shape[-1] // 3, shape[-1] - shape[-1] // 3)
    return Arguments({"dy": TensorType(dtype, shape)}, {"axis": -1, "sizes": sizes})


def _every_other(dtype: str, shape: Shape) -> Arguments:
    rank = len(shape)
    start = tuple(min(1, n) for n in shape)
    return _only(dtype, shape, start=start, limit=shape, stride=(*(1,) * (rank - 1), 2))


def _slice_boundaries(dtype: str) -> Iterator[Boundary]:
    aside = _only(dtype, (4, 64), start=(0, 1), limit=(4, 33), stride=None)
    yield Boundary("32 columns behind the first one", aside)
    yield from _each_shape(_every_other)(dtype)


def _spread(dtype: str, shape: Shape) -> Arguments:
    """dy of the shape, to every third place."""
    size = (*shape[:-1], 3 * shape[-1])
    dy = TensorType(dtype, shape)
    stride = (*(1,) * (len(shape) - 1), 3)
    return Arguments(
        {"dy": dy}, {"input_size": size, "start": None, "limit": None, "stride": stride}
    )


def _turned(dtype: str, shape: Shape) -> Arguments:
    return _only(dtype, shape, permutation=tuple(reversed(range(len(shape)))))


def _flattened(dtype: str, shape: Shape) -> Arguments:
    return _only(dtype, shape, shape=(1, math.prod(shape)))


def _image_boundaries(
    made: Callable[[str, Shape], Arguments],
) -> Callable[[str], Iterator[Boundary]]:
    """Images whose channels and extents are around widths of vectors and tiles, in both layouts."""

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for shape in (*_IMAGES, *((1, channels, 3) for channels in (7, 9, 32, 127, 128, 129))):
            arguments = made(dtype, shape)
            yield Boundary(f"image of {shape}", arguments)
            last = channels_last_strides(arguments.tensors["x"].shape)
            arguments = arguments.with_tensor("x", strides=last)
            yield Boundary(f"image of {shape}, channels last", arguments)
        if dtype == "float32":
            yield Boundary("batch above 65,535", made(dtype, (2**16 + 1, 1, 2)))
            yield Boundary("more than 2^31 elements", made(dtype, (1, 1, 2**29 + 1)))

    return of_dtype


_IMAGES: tuple[Shape, ...] = (
    (0, 2, 3),
    (1, 8, 3, 5),
    (2, 31, 1, 33),
    (1, 33, 32, 2),
    (1, 2, 2, 2, 65),
)


def _vectors_of(dtype: str, shape: Shape) -> Arguments:
    n, c, *space = shape
    return _only(dtype, (n, 4 * c, *space), width=4)


def _from_vectors_of(dtype: str, shape: Shape) -> Arguments:
    return _only(dtype, (*shape, 4))


def _blocks_of(dtype: str, shape: Shape) -> Arguments:
    n, c, *space = shape
    return _only(dtype, (n, c, *(2 * i for i in space)), block=2, order="DCR")


def _space_of(dtype: str, shape: Shape) -> Arguments:
    n, c, *space = shape
    return _only(dtype, (n, c * 2 ** len(space), *space), block=2, order="DCR")


_BANDS = (
    ("no rows", (0, 3), 1, 1),
    ("no columns", (3, 0), 1, 1),
    ("diagonal only", (5, 5), 0, 0),
    ("wider than the matrix", (3, 2), 6, 7),
    ("below the matrix", (70, 3), 1, 1),
    ("33 diagonals", (33, 40), 16, 16),
    ("rows 65,537", (2**16 + 1, 4), 1, 2),
)


def _band_boundaries(
    made: Callable[[BandProblem], Arguments],
) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, lower, upper in _BANDS:
            yield Boundary(name, made(BandProblem(dtype, shape, lower, upper, 1.0)))
        for size in (1, 7, 8, 9, 31, 33, 127, 129):
            yield Boundary(f"{size} rows", made(BandProblem(dtype, (size, 5), 1, 2, 1.0)))
            yield Boundary(f"{size} columns", made(BandProblem(dtype, (3, size), 2, 1, 1.0)))

    return of_dtype


def _contracted(p: BandProblem) -> Arguments:
    return _only(p.dtype, p.shape, lower=p.lower, upper=p.upper, value=p.value)


# --- By primitive ---------------------------------------------------------------------------------

DOMAINS: dict[str, Callable[[Draw, Scale, str], Arguments]] = {
    "transform_tensor": _draw_layout,
    "vectorize_channels": _draw_into_vectors,
    "unvectorize_channels": _draw_from_vectors,
    "pad": _draw_pad,
    "crop": _draw_crop,
    "space_to_depth": _draw_into_channels,
    "depth_to_space": _draw_into_space,
    "concat_forward": _draw_concat,
    "concat_backward": _draw_split,
    "slice_forward": _draw_slice,
    "slice_backward": _draw_slice_backward,
    "transpose": _draw_transpose,
    "reshape": _draw_reshape,
    "contract_band_matrix": _draw_contract,
    "expand_band_matrix": _draw_expand,
}

BOUNDARIES: dict[str, Callable[[str], Iterator[Boundary]]] = {
    "transform_tensor": _each_shape(lambda dtype, shape: _only(dtype, shape)),
    "vectorize_channels": _image_boundaries(_vectors_of),
    "unvectorize_channels": _image_boundaries(_from_vectors_of),
    "pad": _each_shape(_padded),
    "crop": _each_shape(_cropped),
    "space_to_depth": _image_boundaries(_blocks_of),
    "depth_to_space": _image_boundaries(_space_of),
    "concat_forward": _each_shape(_two_parts),
    "concat_backward": _each_shape(_parted),
    "slice_forward": _slice_boundaries,
    "slice_backward": _each_shape(_spread),
    "transpose": _each_shape(_turned, _MATRICES),
    "reshape": _each_shape(_flattened),
    "contract_band_matrix": _band_boundaries(_contracted),
    "expand_band_matrix": _band_boundaries(_expanded),
}
