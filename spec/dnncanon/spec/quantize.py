"""Quantization: from floating-point numbers to codes of few bits with a scale, and back.

*Linear*: one scale for a tensor, or one for each index of an axis, given by the caller; codes are integers
with a zero point, or 8-bit floats (ONNX's QuantizeLinear and DequantizeLinear).

*Block scaling*: one scale for each block of adjacent elements along an axis, found from the block's largest
magnitude (OCP's microscaling formats, NVFP4; cuDNN's block_scale_quantize and block_scale_dequantize).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Integer, as_integer, shown
from dnncanon.spec.constraints import one_of
from dnncanon.spec.dtypes import DTYPES, FLOATS, DType
from dnncanon.spec.elementwise import (
    any_rank,
    boundary_shapes,
    drawn_shape,
    legal_axis,
    sprinkled,
)
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Boundary,
    Constraint,
    Draw,
    DTypeRow,
    Primitive,
    Scale,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides
from dnncanon.spec.values import POSITIVE

WITH_ZERO_POINT = ("int8", "uint8")
"""Codes that may have a zero point."""
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
CODES = (*WITH_ZERO_POINT, *FLOAT8)
BLOCK_CODES = (*FLOAT8, "float4_e2m1fn")
BLOCK_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
WIDE = ("float32", "float16", "bfloat16")
"""What codes are dequantized to."""

LAYOUTS = ("plain", "128x4")
TILE_ROWS, TILE_COLUMNS = 128, 4
"""Scales of a tile in the layout "128x4"; it has the shape [32, 4, 4]: row % 32, row // 32, column."""
MAX_TILED_RANK = 5

FORMATS = (
    ("float8_e4m3fn", "float8_e8m0fnu", 32),
    ("float8_e5m2", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e4m3fn", 16),
    ("float4_e2m1fn", "float8_e8m0fnu", 32),
)
"""Codes, scales and block size of MXFP8 (two of them), NVFP4 and MXFP4."""
_SAMPLED = (*FORMATS, ("float8_e5m2", "float8_e4m3fn", 16))
"""And codes that have a NaN with scales that have a 0."""


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """Linear quantization of x, or of codes x back; ``axis`` is not negative, None for one scale."""

    dtype: str
    shape: Shape
    output: str
    axis: int | None

    @property
    def scales_shape(self) -> Shape:
        """The shape in which scales and zero points broadcast to x."""
        return tuple(n if dim == self.axis else 1 for dim, n in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class BlockProblem:
    """Block scaling of x, or of codes x back; ``axis`` is not negative."""

    dtype: str
    shape: Shape
    output: str
    axis: int
    block_size: int
    scale_dtype: str
    tiled: bool

    @property
    def blocked_shape(self) -> Shape:
        """The shape with the axis divided into blocks and their elements."""
        blocks = self.shape[self.axis] // self.block_size
        return (*self.shape[: self.axis], blocks, self.block_size, *self.shape[self.axis + 1 :])

    @property
    def plain_shape(self) -> Shape:
        """One scale for each block, in place of the axis."""
        blocks = self.shape[self.axis] // self.block_size
        return (*self.shape[: self.axis], blocks, *self.shape[self.axis + 1 :])

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """Of the scales that tiles are made of: a column for each block, a row for each of their neighbours."""
        rows = self.shape[-2] if self.axis == len(self.shape) - 1 else self.shape[-1]
        return rows, self.shape[self.axis] // self.block_size

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles rows and columns take."""
        rows, columns = self.rows_and_columns
        return -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)

    @property
    def scale_shape(self) -> Shape:
        if not self.tiled:
            return self.plain_shape
        return (*self.shape[:-2], *self.tiles, 32, 4, 4)


# --- From arguments to a problem ------------------------------------------------------------------


def _linear(a: Arguments) -> LinearProblem:
    x, axis = a.tensors["x"], a.attributes["axis"]
    place = None if axis is None else as_integer(axis) % x.rank
    return LinearProblem(x.dtype, x.shape, a.attributes["dtype"], place)


def _block(a: Arguments) -> BlockProblem:
    x, given = a.tensors["x"], a.attributes
    scale = a.tensors.get("scale")
    return BlockProblem(
        dtype=x.dtype,
        shape=x.shape,
        output=given["dtype"],
        axis=as_integer(given["axis"]) % x.rank,
        block_size=as_integer(given["block_size"]),
        scale_dtype=given["scale_dtype"] if scale is None else scale.dtype,
        tiled=given["scale_layout"] == "128x4",
    )


def _like_x(p: LinearProblem | BlockProblem) -> tuple[TensorType]:
    return (TensorType(p.output, p.shape),)


def _codes_and_scales(p: BlockProblem) -> tuple[TensorType, TensorType]:
    return TensorType(p.output, p.shape), TensorType(p.scale_dtype, p.scale_shape)


def _elements(p: LinearProblem | BlockProblem) -> int:
    return math.prod(p.shape)


# --- Test data ------------------------------------------------------------------------------------


def ties(row: DType) -> tuple[float, ...]:
    """Numbers half-way between two of a type's: to round to even is to go down and up."""
    halves = (0.5, 1.5, 2.5, -0.5, -1.5, -2.5)
    if not row.is_float:
        return halves
    even = 2.0**row.digits
    normal = (even + 1.0, even + 3.0, -even - 1.0, -even - 3.0)
    return (*normal, *(half * row.smallest_subnormal for half in halves))


def _telling_codes(p: LinearProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Codes from few steps to beyond the ends, ties of scales that are powers of two, and near ties of others.

    These are coarse/t for a tie t: x = coarse has a quotient that is off t by the rounding of the scale.
    """
    tie, size = ties(DTYPES[p.output]), math.prod(p.shape)
    mantissa, exponent = np.frexp(data["scale"])
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
        "x": np.where((chosen != 0.0) & np.isfinite(near), near, data["x"]),
        "scale": np.where(np.isfinite(data["scale"]), scale, data["scale"]),
    }


def _telling_scales(p: LinearProblem, data: dict[str, Any]) -> dict[str, Any]:
    """No scale of 1, with which y would be a copy of x, and none with which y is all 0 in float16."""
    scale = data["scale"] * 0.375
    return {**data, "scale": np.maximum(scale, 2.0**-8) if p.output == "float16" else scale}


def _telling_blocks(p: BlockProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Blocks of several magnitudes, some of them zero, some with an amax at which the scale steps."""
    blocks = data["x"].reshape(p.blocked_shape)
    number, place = _numbered(p)
    blocks = np.where(number % 7 == 3, 0.0, np.ldexp(blocks, number % 5 - 2))
    edge = DTYPES[p.output].max * 2.0 ** -(number % 3)
    above = edge * (1.0 + 2.0 ** (1 - DTYPES[p.dtype].digits))
    peak = np.where(number % 8 == 1, edge, above)
    stepped = np.where(place == 0, peak, np.clip(blocks, -edge, edge))
    return {**data, "x": np.where(number % 4 == 1, stepped, blocks).reshape(p.shape)}


def _telling_block_scales(p: BlockProblem, data: dict[str, Any]) -> dict[str, Any]:
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


# --- Constraints ----------------------------------------------------------------------------------


def _dtype_of(name: str, supported: tuple[str, ...]) -> Constraint:
    def check(a: Arguments) -> str | None:
        dtype = a.tensors[name].dtype
        if dtype in supported:
            return None
        return f"{name} is {dtype}; convert it to one of {', '.join(supported)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int64", "bool"):
            yield a.with_tensor(name, dtype=dtype)

    return Constraint(f"{name} is one of {', '.join(supported)}.", DTypeError, check, violate)


def _scale_like_x() -> Constraint:
    text = "scale is float32, or has the dtype of x."

    def check(a: Arguments) -> str | None:
        scale, x = a.tensors["scale"].dtype, a.tensors["x"].dtype
        if scale in ("float32", x):
            return None
        return f"scale is {scale} and x is {x}; convert scale to float32"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int32", "float16" if a.tensors["x"].dtype != "float16" else "float64"):
            yield a.with_tensor("scale", dtype=dtype)

    return Constraint(text, DTypeError, check, violate)


def _axis_or_none() -> Constraint:
    rule = legal_axis("x")

    def check(a: Arguments) -> str | None:
        return None if a.attributes["axis"] is None else rule.check(a)

    text = f"{rule.text} None means one scale for all of x."
    return Constraint(text, AttributeValueError, check, rule.violate)


def _scale_for_each() -> Constraint:
    text = "scale has one element (shape () or (1,)) without axis, else one for each index of that dim."

    def check(a: Arguments) -> str | None:
        p, shape = _linear(a), a.tensors["scale"].shape
        expected = ((), (1,)) if p.axis is None else ((p.shape[p.axis],),)
        if shape in expected:
            return None
        return f"scale has shape {shape}, but axis={a.attributes['axis']}; pass {expected[-1]}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        extent = a.tensors["scale"].size
        for shape in ((extent + 1,), (extent, 1)):
            yield a.with_tensor("scale", shape=shape, strides=None)

    return Constraint(text, ShapeError, check, violate)


def _zero_point(codes: str) -> Constraint:
    """The rule about zero points; ``codes`` says whose dtype they have."""
    text = f"zero_point has the dtype of {codes}; there is none unless that is int8 or uint8."

    def check(a: Arguments) -> str | None:
        if "zero_point" not in a.tensors:
            return None
        got = a.tensors["zero_point"].dtype
        wanted = a.attributes["dtype"] if codes == "y" else a.tensors["x"].dtype
        if wanted not in WITH_ZERO_POINT:
            return f"zero_point is {got}, but {codes} is {wanted}, which has none; pass None"
        return None if got == wanted else f"zero_point is {got}; convert it to {wanted}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "zero_point" in a.tensors:
            yield a.with_tensor("zero_point", dtype="int32")
        else:
            scale = a.tensors["scale"].shape
            yield Arguments({**a.tensors, "zero_point": TensorType("int32", scale)}, a.attributes)

    return Constraint(text, DTypeError, check, violate)


def _zero_point_like_scale() -> Constraint:
    def check(a: Arguments) -> str | None:
        if "zero_point" not in a.tensors:
            return None
        got, expected = a.tensors["zero_point"].shape, a.tensors["scale"].shape
        if got == expected:
            return None
        return f"zero_point has shape {got}, but scale has {expected}; pass one for each scale"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "zero_point" in a.tensors:
            shape = (a.tensors["scale"].size + 1,)
            yield a.with_tensor("zero_point", shape=shape, strides=None)

    return Constraint("zero_point has the shape of scale.", ShapeError, check, violate)


def _divides_axis() -> Constraint:
    text = "block_size is an integer >= 1 that divides the extent of x along axis."

    def check(a: Arguments) -> str | None:
        value = a.attributes["block_size"]
        extent = a.tensors["x"].shape[as_integer(a.attributes["axis"])]
        try:
            size = as_integer(value)
        except (TypeError, ValueError):
            size = 0
        if size < 1:
            return f"block_size={shown(value)}; pass an integer >= 1"
        if extent % size == 0:
            return None
        return f"block_size={size} does not divide {extent}; pass x padded to {-(-extent // size) * size}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0, -16, 1.5, a.tensors["x"].shape[as_integer(a.attributes["axis"])] + 1):
            yield a.with_attributes(block_size=value)

    return Constraint(text, AttributeValueError, check, violate)


def _tiled_rank() -> Constraint:
    text = (
        'With scale_layout="128x4" x has 2 to 5 dims, and axis is one of the last two; the other one has '
        "the rows."
    )

    def check(a: Arguments) -> str | None:
        rank = a.tensors["x"].rank
        if a.attributes["scale_layout"] != "128x4":
            return None
        axis = as_integer(a.attributes["axis"]) % rank
        if 2 <= rank <= MAX_TILED_RANK and axis >= rank - 2:
            return None
        return f'x has {rank} dims, axis={axis}; pass scale_layout="plain", or reshape x'

    def violate(a: Arguments) -> Iterator[Arguments]:
        if a.tensors["x"].rank > MAX_TILED_RANK or as_integer(a.attributes["axis"]) == 0:
            yield a.with_attributes(scale_layout="128x4")

    return Constraint(text, AttributeValueError, check, violate)


def _scale_for_each_block() -> Constraint:
    text = "scale has the shape of x with one element for each block, or that of the tiles."

    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["scale"].shape, _block(a).scale_shape
        if got == expected:
            return None
        return f"scale has shape {got}, not {expected}; pass one for each block of x"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["scale"].shape
        yield a.with_tensor("scale", shape=(shape[0] + 1, *shape[1:]), strides=None)
        yield a.with_tensor("scale", shape=(*shape, 1), strides=None)

    return Constraint(text, ShapeError, check, violate)


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


def _draw_quantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    axis = _drawn_axis(draw, len(shape))
    given = None if draw.choice((False, False, True)) else axis
    scale_dtype, code = draw.choice(("float32", "float32", dtype)), draw.choice(CODES)
    zero = draw.choice((True, False)) and code in WITH_ZERO_POINT
    x = {"x": TensorType(dtype, shape)}
    tensors = _scales(x, given, scale_dtype, code if zero else None)
    return Arguments(tensors, {"dtype": code, "axis": given})


def _draw_dequantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    axis = _drawn_axis(draw, len(shape))
    given = None if draw.choice((False, False, True)) else axis
    scale_dtype, wide = draw.choice(WIDE), draw.choice(WIDE)
    zero = draw.choice((True, False)) and dtype in WITH_ZERO_POINT
    x = {"x": TensorType(dtype, shape)}
    tensors = _scales(x, given, scale_dtype, dtype if zero else None)
    return Arguments(tensors, {"dtype": wide, "axis": given})


def _linear_boundaries(outputs: tuple[str, ...], scales: tuple[str, ...]) -> Any:
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


def _draw_block_quantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    code, scale_dtype, size = draw.choice(_SAMPLED)
    shape, attributes = _drawn_blocks(draw, scale, size)
    given = {"dtype": code, "scale_dtype": scale_dtype, **attributes}
    return Arguments({"x": TensorType(dtype, shape)}, given)


def _draw_block_dequantize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    scale_dtype, wide = draw.choice(BLOCK_SCALES), draw.choice(WIDE)
    shape, attributes = _drawn_blocks(draw, scale, draw.choice((32, 16)))
    x = TensorType(dtype, shape)
    return _with_block_scales(x, scale_dtype, {"dtype": wide, **attributes})


def _with_block_scales(x: TensorType, scale_dtype: str, given: dict[str, Any]) -> Arguments:
    p = _block(Arguments({"x": x}, {**given, "scale_dtype": scale_dtype}))
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


def _boundaries_block_quantize(dtype: str) -> Iterator[Boundary]:
    for name, x, number, attributes in _block_cases():
        code, scale_dtype, size = FORMATS[number % len(FORMATS)]
        given = {**attributes, "dtype": code, "scale_dtype": scale_dtype, "block_size": size}
        yield Boundary(name, Arguments({"x": TensorType(dtype, x.shape, x.strides)}, given))


def _boundaries_block_dequantize(dtype: str) -> Iterator[Boundary]:
    for name, x, number, attributes in _block_cases():
        given = {**attributes, "dtype": WIDE[number % 3]}
        codes = TensorType(dtype, x.shape, x.strides)
        yield Boundary(name, _with_block_scales(codes, BLOCK_SCALES[number % 2], given))


# --- Declarations: linear -------------------------------------------------------------------------

_QUANTIZED = tuple(DTypeRow(dtype, ("ieee",)) for dtype in FLOATS)

_X = TensorSpec("x", "*I", "numbers")
_X_CODES = TensorSpec("x", "*I", "codes")
_SCALE = TensorSpec("scale", "*S", "the distance of codes, > 0", values=POSITIVE)
_AXIS = Attribute(
    "axis", Integer(), "The dim with a scale for each index; None for one scale.", None
)
_INTO_CODES = "the arithmetic is float32's, float64's of float64 x"
_TIES = (
    "Which code a quotient rounds to is decided by the quotient, not by its last bits: x/scale may be off by "
    f"the roundings of a division, or of a product with 1/scale ({_INTO_CODES}). Where that reaches over the "
    "middle between two codes either is right; anywhere else there is one right code. With a scale that is a "
    "power of two the quotient is exact, and so is every code, ties included: they go to the even one."
)

_LINEAR_DECISIONS = (
    "ONNX's QuantizeLinear and DequantizeLinear, but that one scale for all and one for each channel are "
    "told apart by axis, which is None or a dim, not by the rank of scale. Blocks are block_scale_quantize's.",
    "A zero point is a code, that of 0. 8-bit floats have none, for they have a 0 of their own (ONNX allows "
    "an array of zeros).",
)

quantize_linear = declare(
    Primitive(
        name="quantize_linear",
        family="quantize",
        summary="Integers or 8-bit floats, and a scale that the caller gives, for numbers.",
        formula="""integers: y = clamp(round(x/scale) + zero_point, least code, largest code)
8-bit floats: y = round(clamp(x/scale, −largest, largest))
round: to the nearest number of the type, ties to even""",
        inputs=(
            _X,
            _SCALE,
            TensorSpec("zero_point", "*S", "the code of 0, of y's dtype", optional=True),
        ),
        outputs=(TensorSpec("y", "*I", "codes"),),
        attributes=(
            Attribute("dtype", Choice(CODES), "Element type of the codes.", REQUIRED),
            _AXIS,
        ),
        dtypes=_QUANTIZED,
        constraints=(
            any_rank("x"),
            one_of("dtype", CODES),
            _dtype_of("x", tuple(FLOATS)),
            _scale_like_x(),
            _axis_or_none(),
            _scale_for_each(),
            _zero_point("y"),
            _zero_point_like_scale(),
        ),
        decisions=(
            *_LINEAR_DECISIONS,
            _TIES,
            "The zero point is added to what is rounded already, as in ONNX: with an odd zero point ties go to "
            "odd codes.",
            "Codes saturate, Inf included, and so do 8-bit floats (ONNX's saturate=1): large numbers do not "
            "become the Inf or NaN of a conversion.",
            "NaN gives NaN in 8-bit floats, and the code 0 in integers, as in every conversion to an integer "
            "here, whatever the zero point.",
            "scale is not looked at: x/0 is ±Inf and saturates, 0/0 and x/NaN are NaN, a negative scale "
            "changes signs. No test asks for one that is not > 0.",
            "The largest magnitude from which a scale is made is reduce_forward's, op amax, which cuDNN puts "
            "out beside 8-bit floats.",
        ),
        resolve=_linear,
        infer=_like_x,
        flops=lambda p: 2 * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_quantize,
        boundaries=_linear_boundaries(CODES, ("float32",)),
        consistent=_telling_codes,
        source="ONNX QuantizeLinear, opset 23",
    )
)

dequantize_linear = declare(
    Primitive(
        name="dequantize_linear",
        family="quantize",
        summary="The numbers that integers or 8-bit floats and their scale stand for.",
        formula="y = (x − zero_point)·scale",
        inputs=(
            _X_CODES,
            _SCALE,
            TensorSpec("zero_point", "*S", "the code of 0, of x's dtype", optional=True),
        ),
        outputs=(TensorSpec("y", "*I", "numbers"),),
        attributes=(Attribute("dtype", Choice(WIDE), "Element type of y.", "float32"), _AXIS),
        dtypes=tuple(DTypeRow(dtype, ("widened",)) for dtype in CODES),
        constraints=(
            any_rank("x"),
            one_of("dtype", WIDE),
            _dtype_of("x", CODES),
            _dtype_of("scale", WIDE),
            _axis_or_none(),
            _scale_for_each(),
            _zero_point("x"),
            _zero_point_like_scale(),
        ),
        decisions=(
            *_LINEAR_DECISIONS,
            "y has the dtype that is asked for, float32 by default, whatever that of scale is (ONNX's "
            "output_dtype). The arithmetic is float32's, rounded once to y's dtype.",
            "x − zero_point has 9 bits and is exact. ONNX's x of int32 is left out: float32 does not hold it.",
            "NaN and Inf of x or scale give what a product of floating-point numbers gives: 0·Inf is NaN.",
        ),
        resolve=_linear,
        infer=_like_x,
        flops=lambda p: 2 * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_dequantize,
        boundaries=_linear_boundaries(WIDE, WIDE),
        consistent=_telling_scales,
        source="ONNX DequantizeLinear, opset 23",
    )
)

# --- Declarations: blocks -------------------------------------------------------------------------

_BLOCK_ATTRIBUTES = (
    Attribute("axis", Integer(), "The dim that is divided into blocks.", -1),
    Attribute("block_size", Integer(), "Elements of a block: 32 (MX), 16 (NVFP4).", REQUIRED),
    Attribute(
        "scale_layout",
        Choice(LAYOUTS),
        "One scale in place of each block, or tiles of 128×4 scales, as tensor cores read them.",
        "plain",
    ),
)
_BLOCK_RULES = (legal_axis("x"), _divides_axis(), one_of("scale_layout", LAYOUTS), _tiled_rank())
_BLOCK_DECISIONS = (
    "Any codes may go with any scales and block size. MXFP8 is float8_e4m3fn or float8_e5m2 with "
    "float8_e8m0fnu and 32, MXFP4 float4_e2m1fn with float8_e8m0fnu and 32, NVFP4 float4_e2m1fn with "
    "float8_e4m3fn and 16. A 4-bit number takes a byte of its own here.",
    "Blocks lie along one axis, whose extent is a multiple of their size, as cuDNN has it. Its blocks of two "
    "dims (dequantization only) are left out, and so is NEG_SCALE, of which nothing but the name is "
    "documented. Its transpose is a layout of y: strides say so.",
    'scale_layout="128x4" is cuDNN\'s F8_128x4: rows padded to 128 and blocks to 4, a tile of 512 bytes '
    "after the other. Its shape says so: [*batch, tiles of rows, tiles of blocks, 32, 4, 4], with row r and "
    "block c of a tile at [r % 32, r // 32, c]. Rows are the other one of the last two dims. What pads is the "
    "code 0, and is not read.",
)

block_scale_quantize = declare(
    Primitive(
        name="block_scale_quantize",
        family="quantize",
        summary="8-bit or 4-bit floats with a scale for each block, found from its largest magnitude.",
        formula="""scale = the least number s >= 0 of its type with max |x| <= largest·s, over the block
y = round(clamp(x/scale, −largest, largest)), and 0 where scale is 0
largest: 448 (e4m3), 57344 (e5m2), 6 (e2m1)
round: to the nearest number of the type, ties to even""",
        inputs=(_X,),
        outputs=(
            TensorSpec("y", "*I", "codes"),
            TensorSpec("scale", "*S", "a scale for each block"),
        ),
        attributes=(
            Attribute("dtype", Choice(BLOCK_CODES), "Element type of the codes.", REQUIRED),
            Attribute("scale_dtype", Choice(BLOCK_SCALES), "Element type of the scales.", REQUIRED),
            *_BLOCK_ATTRIBUTES,
        ),
        dtypes=_QUANTIZED,
        constraints=(
            any_rank("x"),
            _dtype_of("x", tuple(FLOATS)),
            one_of("dtype", BLOCK_CODES),
            one_of("scale_dtype", BLOCK_SCALES),
            *_BLOCK_RULES,
        ),
        decisions=(
            *_BLOCK_DECISIONS,
            "The scale is max |x| / largest rounded up, as in cuDNN, so that nothing saturates. (OCP's "
            "specification suggests the power of two below, by which up to half of the largest numbers "
            "saturate; for NVFP4 others round to nearest.) The rule compares max |x|, which is exact, "
            "with numbers of few bits: there is one right scale. A division in float32 that is rounded "
            "correctly, and then up, finds it too.",
            _TIES,
            "Where no scale is large enough, for Inf and for what is beyond 448·6 with scales of e4m3, it is "
            "the largest finite one, and the codes saturate. A scale for the whole tensor, as NVFP4 has it, "
            "is a product with x before and with y after.",
            "A block of zeros, or of what is less than any scale, has the least scale: 2^-127 for e8m0, which "
            "has no 0, and 0 for e4m3. With the scale 0 codes are 0, not 0/0.",
            "A NaN makes the scale of its block NaN, and so what the block stands for: 4-bit floats have no "
            "NaN of their own. Its codes are NaN too, of 4-bit floats 0.",
            "Subnormal x count as what they are.",
        ),
        resolve=_block,
        infer=_codes_and_scales,
        flops=lambda p: 3 * _elements(p),
        reduction_length=lambda p: p.block_size,
        domain=_draw_block_quantize,
        boundaries=_boundaries_block_quantize,
        consistent=_telling_blocks,
        source="cuDNN graph API, BLOCK_SCALE_QUANTIZE; OCP Microscaling Formats (MX) 1.0",
    )
)

block_scale_dequantize = declare(
    Primitive(
        name="block_scale_dequantize",
        family="quantize",
        summary="The numbers that codes and the scales of their blocks stand for.",
        formula="y = x·scale of the block",
        inputs=(_X_CODES, TensorSpec("scale", "*S", "a scale for each block")),
        outputs=(TensorSpec("y", "*I", "numbers"),),
        attributes=(
            Attribute("dtype", Choice(WIDE), "Element type of y.", "float32"),
            *_BLOCK_ATTRIBUTES,
        ),
        dtypes=tuple(DTypeRow(dtype, ("widened",)) for dtype in BLOCK_CODES),
        constraints=(
            any_rank("x"),
            _dtype_of("x", BLOCK_CODES),
            _dtype_of("scale", BLOCK_SCALES),
            one_of("dtype", WIDE),
            *_BLOCK_RULES,
            _scale_for_each_block(),
        ),
        decisions=(
            *_BLOCK_DECISIONS,
            "The product is exact in float32 but where it leaves float32's range, and is rounded once to y's "
            "dtype.",
            "A scale that is NaN (code 255 of e8m0) makes its block NaN. Scales of e4m3 may be negative or 0.",
        ),
        resolve=_block,
        infer=_like_x,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_block_dequantize,
        boundaries=_boundaries_block_dequantize,
        consistent=_telling_block_scales,
        source="cuDNN graph API, BLOCK_SCALE_DEQUANTIZE; OCP Microscaling Formats (MX) 1.0",
    )
)
