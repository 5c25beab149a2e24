"""The domain of quantization that cases are drawn from, its test data, and its boundaries."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnncanon.spec.dtypes import DTYPES, DType
from dnncanon.spec.elementwise import boundary_shapes, drawn_shape, sprinkled
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.quantize_problem import (
    BLOCK_SCALES,
    CODES,
    FORMATS,
    LAYOUTS,
    MAX_TILED_RANK,
    SAMPLED_FORMATS,
    WIDE,
    WITH_ZERO_POINT,
    BlockProblem,
    LinearProblem,
    resolve_block,
)
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides

# --- Test data ------------------------------------------------------------------------------------


def ties(row: DType) -> tuple[float, ...]:
    """Numbers half-way between two of a type's: to round to even is to go down and up."""
    halves = (0.5, 1.5, 2.5, -0.5, -1.5, -2.5)
    if not row.is_float:
        return halves
    even = 2.0**row.digits
    normal = (even + 1.0, even + 3.0, -even - 1.0, -even - 3.0)
    return (*normal, *(half * row.smallest_subnormal for half in halves))


def telling_codes(p: LinearProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Codes from few steps to beyond the ends, ties of scales that are powers of two, and near ties of others.

    These are coarse/t for a tie t: x = coarse has a quotient that is off t by the rounding of the scale.
    """
    tie, size = ties(DTYPES[p.output]), math.prod(p.shape)
    finite = np.isfinite(data["scale"])
    mantissa, exponent = np.frexp(np.where(finite, data["scale"], 1.0))
    power = np.ldexp(1.0, exponent - size % 8)
    coarse = np.ceil(16.0 * mantissa) / 16.0 * power
    number = np.arange(power.size).reshape(power.shape)
    even = (number + size // 8) % 2 == 0
    scale = np.where(even, power, coarse / abs(tie[2]))
    chosen = sprinkled(np.zeros(p.shape), tie)
    spread = power.reshape(p.scales_shape), coarse.reshape(p.scales_shape)
    near = np.where(even.reshape(p.scales_shape), chosen * spread[0], np.sign(chosen) * spread[1])
    return {
        **data,
        "x": np.where((chosen != 0.0) & finite.reshape(p.scales_shape), near, data["x"]),
        "scale": np.where(finite, scale, data["scale"]),
    }


def telling_scales(p: LinearProblem, data: dict[str, Any]) -> dict[str, Any]:
    """No scale of 1, with which y would be a copy of x, and none with which y is all 0 in float16."""
    scale = data["scale"] * 0.375
    return {**data, "scale": np.maximum(scale, 2.0**-8) if p.output == "float16" else scale}


def telling_blocks(p: BlockProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Blocks of several magnitudes, some of them zero, some with an amax at which the scale steps."""
    blocks = data["x"].reshape(p.blocked_shape)
    number, place = _numbered(p)
    blocks = np.where(number % 7 == 3, 0.0, np.ldexp(blocks, number % 5 - 2))
    edge = DTYPES[p.output].max * 2.0 ** -(number % 3)
    above = edge * (1.0 + 2.0 ** (1 - DTYPES[p.dtype].digits))
    peak = np.where(number % 8 == 1, edge, above)
    stepped = np.where(place == 0, peak, np.clip(blocks, -edge, edge))
    return {**data, "x": np.where(number % 4 == 1, stepped, blocks).reshape(p.shape)}


def telling_block_scales(p: BlockProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Scales of several magnitudes."""
    number = np.arange(data["scale"].size).reshape(data["scale"].shape)
    return {**data, "scale": np.ldexp(data["scale"], number % 5 - 3)}


def _numbered(p: BlockProblem) -> tuple[Any, Any]:
    """The number of each block, and the place in it of each element; both broadcast to blocks."""
    inner = [1] * len(p.blocked_shape)
    inner[p.axis + 1] = p.block_size
    kept = [n for dim, n in enumerate(p.blocked_shape) if dim != p.axis + 1]
    number = np.expand_dims(np.arange(math.prod(kept)).reshape(kept), p.axis + 1)
    return number, np.arange(p.block_size).reshape(inner)


# --- The domain: linear ---------------------------------------------------------------------------


def _drawn_axis(draw: Draw, rank: int) -> int:
    """A dim, mostly the second or the last; now and then written negatively."""
    kind, negative = draw.choice(("second", "last", "first", "third")), draw.choice((False, True))
    place = {"first": 0, "second": 1, "third": 2, "last": rank - 1}[kind] % rank
    return place - rank if negative else place


def _scales(
    tensors: dict[str, TensorType], axis: int | None, dtype: str, zero: str | None
) -> dict[str, TensorType]:
    """The tensors with scales of one dtype and, where there are any, zero points of another."""
    x = tensors["x"]
    shape = (1,) if axis is None else (x.shape[axis],)
    added = {"scale": TensorType(dtype, shape)}
    if zero is not None:
        added["zero_point"] = TensorType(zero, shape)
    return {**tensors, **added}


def draw_quantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    axis = _drawn_axis(draw, len(shape))
    given = None if draw.choice((False, False, True)) else axis
    scale_dtype, code = draw.choice(("float32", "float32", dtype)), draw.choice(CODES)
    zero = draw.choice((True, False)) and code in WITH_ZERO_POINT
    x = {"x": TensorType(dtype, shape)}
    tensors = _scales(x, given, scale_dtype, code if zero else None)
    return Arguments(tensors, {"dtype": code, "axis": given})


def draw_dequantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    axis = _drawn_axis(draw, len(shape))
    given = None if draw.choice((False, False, True)) else axis
    scale_dtype, wide = draw.choice(WIDE), draw.choice(WIDE)
    zero = draw.choice((True, False)) and dtype in WITH_ZERO_POINT
    x = {"x": TensorType(dtype, shape)}
    tensors = _scales(x, given, scale_dtype, dtype if zero else None)
    return Arguments(tensors, {"dtype": wide, "axis": given})


def linear_boundaries(outputs: tuple[str, ...], scales: tuple[str, ...]) -> Any:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        unusual = dtype in ("float32", "int8")
        for number, (name, shape, strides) in enumerate(boundary_shapes(unusual=unusual)):
            axis = (None, 0, -1)[number % 3]
            output = outputs[number % len(outputs)]
            code = dtype if dtype in CODES else output
            zero = code if code in WITH_ZERO_POINT and number % 2 else None
            x = {"x": TensorType(dtype, shape, strides)}
            tensors = _scales(x, axis, scales[number % len(scales)], zero)
            yield Boundary(name, Arguments(tensors, {"dtype": output, "axis": axis}))
        scalar = {"x": TensorType(dtype, (4, 6)), "scale": TensorType(scales[0], ())}
        attributes = {"dtype": outputs[0], "axis": None}
        yield Boundary("a scale without dims", Arguments(scalar, attributes))

    return of_dtype


# --- The domain: blocks ---------------------------------------------------------------------------


def _drawn_blocks(draw: Draw, scale: Scale, size: int) -> tuple[Shape, dict[str, Any]]:
    """A shape whose axis has whole blocks, and the attributes that both ways share."""
    shape = drawn_shape(draw, scale)
    axis, layout = _drawn_axis(draw, len(shape)), draw.choice(LAYOUTS)
    size = draw.choice((1, *(size,) * 6, 5))
    place = axis % len(shape)
    if place == 0:  # the batch is small: it is one block
        size = max(1, shape[0])
    blocks = max(1, shape[place] // size) if shape[place] else 0
    extents = [*shape[:place], blocks * size, *shape[place + 1 :]]
    while math.prod(extents) > scale.multiplications // 4:
        largest = max((d for d in range(len(shape)) if d != place), key=extents.__getitem__)
        extents[largest] //= 2
    shape, given = tuple(extents), {"axis": axis, "block_size": size, "scale_layout": layout}
    p = BlockProblem("", shape, "", place, size, "", tiled=True)
    if place < max(1, len(shape) - 2) or 2 * math.prod(p.scale_shape) > scale.multiplications:
        given["scale_layout"] = "plain"  # there are no tiles, or they are mostly padding
    return shape, given


def draw_block_quantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    code, scale_dtype, size = draw.choice(SAMPLED_FORMATS)
    shape, attributes = _drawn_blocks(draw, scale, size)
    given = {"dtype": code, "scale_dtype": scale_dtype, **attributes}
    return Arguments({"x": TensorType(dtype, shape)}, given)


def draw_block_dequantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    scale_dtype, wide = draw.choice(BLOCK_SCALES), draw.choice(WIDE)
    shape, attributes = _drawn_blocks(draw, scale, draw.choice((32, 16)))
    x = TensorType(dtype, shape)
    return _with_block_scales(x, scale_dtype, {"dtype": wide, **attributes})


def _with_block_scales(x: TensorType, scale_dtype: str, given: dict[str, Any]) -> Arguments:
    p = resolve_block(Arguments({"x": x}, {**given, "scale_dtype": scale_dtype}))
    return Arguments({"x": x, "scale": TensorType(scale_dtype, p.scale_shape)}, given)


def _block_layouts() -> Iterator[tuple[str, Shape, int, Shape | None]]:
    """Name, shape, axis and strides, in blocks of 32, or of 16, the cheapest first."""
    yield "no blocks", (3, 0), -1, None
    yield "no rows of blocks", (0, 32), -1, None
    yield "one block", (32,), 0, None
    yield "first dim", (64, 3), 0, None
    yield "channels last", (2, 64, 3, 2), 1, channels_last_strides((2, 64, 3, 2))
    yield "eight dims", (2, 1, 32, 2, 1, 2, 1, 2), 2, None
    yield "gaps everywhere", (2, 3, 64), 2, (2 * 7 * 131, 2 * 131, 2)
    yield "one element repeated", (3, 64), 1, (0, 0)
    yield "rows repeated", (3, 64), 1, (0, 1)
    for blocks in (3, 4, 5, 8, 9, 31, 33):
        yield f"{blocks} blocks in a row", (3, 32 * blocks), 1, None
    for rows in (31, 32, 33, 127, 128, 129, 257):
        yield f"{rows} rows", (rows, 64), 1, None
        yield f"{rows} rows, blocks in the first dim", (64, rows), 0, None
    yield "three times 129 rows", (3, 129, 160), 2, None
    yield "batch above 65,535", (2**16 + 1, 1, 32), 2, None
    yield "offsets beyond 32 bits", (2, 32), 1, (2**31 + 5, 1)
    yield "more than 2^31 elements", (2**31 + 32,), 0, None


def _block_cases() -> Iterator[tuple[str, TensorType, int, dict[str, Any]]]:
    """Name, x of any dtype, number and attributes."""
    for number, (name, shape, axis, strides) in enumerate(_block_layouts()):
        tiled = 2 <= len(shape) <= MAX_TILED_RANK and axis % len(shape) >= len(shape) - 2
        layout = LAYOUTS[tiled and ("rows" in name or number % 2)]
        attributes = {"axis": axis, "block_size": 32, "scale_layout": layout}
        yield name, TensorType("float32", shape, strides), number, attributes


def boundaries_block_quantize(dtype: str) -> Iterator[Boundary]:
    for name, x, number, attributes in _block_cases():
        code, scale_dtype, size = FORMATS[number % len(FORMATS)]
        given = {**attributes, "dtype": code, "scale_dtype": scale_dtype, "block_size": size}
        yield Boundary(name, Arguments({"x": TensorType(dtype, x.shape, x.strides)}, given))


def boundaries_block_dequantize(dtype: str) -> Iterator[Boundary]:
    for name, x, number, attributes in _block_cases():
        given = {**attributes, "dtype": WIDE[number % 3]}
        codes = TensorType(dtype, x.shape, x.strides)
        yield Boundary(name, _with_block_scales(codes, BLOCK_SCALES[number % 2], given))
