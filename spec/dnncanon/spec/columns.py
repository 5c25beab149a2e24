"""Columns of windows: im2col, which makes a convolution of a matrix product, and its adjoint col2im.

Symbols: N batch, C channels, I input extents, F window extents, O output extents, one of each for every
spatial dim; stride u, dilation l, padding (pre, post). Geometry is that of convolution.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import (
    Integers,
    Padding,
    PerDim,
    as_integer,
    is_sequence,
    per_dim,
    shown,
)
from dnncanon.spec.constraints import (
    Dims,
    legal_padding,
    one_dtype,
    positive_per_dim,
    spatial_dims,
    spatial_ranks,
)
from dnncanon.spec.errors import AttributeValueError, ShapeError
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
from dnncanon.spec.windows import Windows, effective_extent, output_extents, resolve_padding

_MOVED = tuple(
    DTypeRow(name, ("exact",)) for name in ("float64", "float32", "float16", "bfloat16", "int8")
)
_ADDED = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)


@dataclass(frozen=True, slots=True)
class ColumnsProblem:
    """The columns of the windows over an image, or an image of columns."""

    dtype: str
    batch: int
    channels: int
    windows: tuple[Windows, ...]

    @property
    def input_size(self) -> Shape:
        return tuple(w.inputs for w in self.windows)

    @property
    def output_size(self) -> Shape:
        return tuple(w.outputs for w in self.windows)

    @property
    def filter_size(self) -> Shape:
        return tuple(w.taps for w in self.windows)

    @property
    def taps(self) -> int:
        """Cells of a window."""
        return math.prod(self.filter_size)

    @property
    def image_shape(self) -> Shape:
        return (self.batch, self.channels, *self.input_size)

    @property
    def columns_shape(self) -> Shape:
        return (self.batch, self.channels * self.taps, math.prod(self.output_size))

    @property
    def overlap(self) -> int:
        """At most so many windows have a cell in common."""
        return math.prod(w.overlap for w in self.windows)


# --- From arguments to a problem ------------------------------------------------------------------


def _dims(a: Arguments) -> int:
    """Spatial dims of the image, that there is or that is asked for."""
    if "input_size" in a.attributes:
        return len(a.attributes["input_size"])
    return spatial_dims(a)


def _input_size(a: Arguments) -> Shape:
    if "input_size" in a.attributes:
        return per_dim(a.attributes["input_size"], _dims(a))
    return a.tensors["x"].shape[2:]


def _windows(a: Arguments) -> tuple[Windows, ...]:
    size, dims = _input_size(a), _dims(a)
    taps, stride, dilation = (
        per_dim(a.attributes[name], dims) for name in ("filter_size", "stride", "dilation")
    )
    padding = resolve_padding(a.attributes["padding"], size, taps, stride, dilation)
    outputs = output_extents(size, taps, padding, stride, dilation)
    rows: Any = zip(size, outputs, taps, stride, dilation, padding, strict=True)
    # A window of one cell has nothing to dilate, however far apart its cells would be.
    return tuple(Windows(i, o, f, u, dil if f > 1 else 1, *p) for i, o, f, u, dil, p in rows)


def _into_columns(a: Arguments) -> ColumnsProblem:
    x = a.tensors["x"]
    return ColumnsProblem(x.dtype, x.shape[0], x.shape[1], _windows(a))


def _into_image(a: Arguments) -> ColumnsProblem:
    x, windows = a.tensors["x"], _windows(a)
    channels = x.shape[1] // math.prod(w.taps for w in windows)
    return ColumnsProblem(x.dtype, x.shape[0], channels, windows)


# --- Constraints ----------------------------------------------------------------------------------


def _columns_have_three_dims() -> Constraint:
    def check(a: Arguments) -> str | None:
        shape = a.tensors["x"].shape
        if len(shape) == 3:
            return None
        return f"x has shape {shape}; pass columns of three dims: batch, C·ΠF, ΠO"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["x"].shape
        yield a.with_tensor("x", shape=shape[:2], strides=None)
        yield a.with_tensor("x", shape=(*shape, 1), strides=None)

    return Constraint("x has three dims: batch, C·ΠF, ΠO.", ShapeError, check, violate)


def _legal_input_size() -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes["input_size"]
        try:
            extents = [as_integer(extent) for extent in value] if is_sequence(value) else []
        except (TypeError, ValueError):
            extents = []
        if 1 <= len(extents) <= 3 and min(extents) >= 0:
            return None
        return f"input_size={shown(value)}; pass 1 to 3 integers >= 0, one for each spatial dim"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in ((), (1,) * 4, (-1,), (1.5,), 3):
            yield a.with_attributes(input_size=value)

    text = "input_size is a sequence of 1 to 3 integers >= 0."
    return Constraint(text, AttributeValueError, check, violate)


def _windows_fit() -> Constraint:
    def check(a: Arguments) -> str | None:
        windows = _windows(a)
        if min(w.outputs for w in windows) >= 1:
            return None
        covers = tuple(effective_extent(w.taps, w.dilation) for w in windows)
        padding = tuple((w.pre, w.post) for w in windows)
        return (
            f"filter_size={shown(a.attributes['filter_size'])} covers {covers}, more than "
            f"I={_input_size(a)} with padding={padding}; pad more, dilate less or pass a smaller filter_size"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        far = 4 * max(1, *_input_size(a)) + 1000
        yield a.with_attributes(filter_size=far, padding=0, dilation=1)
        yield a.with_attributes(filter_size=2, dilation=far, padding="valid")

    text = "l·(F−1)+1 <= I + pre + post, so that O >= 1."
    return Constraint(text, ShapeError, check, violate)


def _fits_memory(resolve: Callable[[Arguments], ColumnsProblem]) -> Constraint:
    def check(a: Arguments) -> str | None:
        p = resolve(a)
        if max(math.prod(p.columns_shape), math.prod(p.image_shape)) < 2**63:
            return None
        taps, columns = shown(a.attributes["filter_size"]), shown(p.columns_shape)
        return (
            f"filter_size={taps} makes columns of shape {columns} of an image of shape "
            f"{shown(p.image_shape)}, 2^63 elements or more; pass smaller windows or extents"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(filter_size=1, padding=2**62)
        if "input_size" in a.attributes:
            yield a.with_attributes(input_size=(2**62,) * _dims(a), filter_size=1)

    text = "Image and columns have less than 2^63 elements."
    return Constraint(text, ShapeError, check, violate)


def _columns_of_the_windows() -> Constraint:
    def check(a: Arguments) -> str | None:
        p, (_, rows, columns) = _into_image(a), a.tensors["x"].shape
        if rows % p.taps == 0 and columns == math.prod(p.output_size):
            return None
        return (
            f"x has {rows} rows and {columns} columns, but F={p.filter_size} and O={p.output_size} make "
            f"multiples of {p.taps} rows and {math.prod(p.output_size)} columns; pass x of these"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, rows, columns = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n, rows, columns + 1), strides=None)
        yield a.with_tensor("x", shape=(n, rows + 1, columns), strides=None)

    text = "x has C·ΠF rows and ΠO columns."
    return Constraint(text, ShapeError, check, violate)


def _geometry_rules(dims_of: Dims) -> tuple[Constraint, ...]:
    return (
        positive_per_dim("filter_size", dims_of),
        positive_per_dim("stride", dims_of),
        legal_padding(dims_of),
        positive_per_dim("dilation", dims_of),
        _windows_fit(),
    )


# --- The domain -----------------------------------------------------------------------------------

_MAX_DIMS = 3
_LONGEST_FILTER = {1: 5, 2: 3, 3: 3}


def _entries(draw: Draw, dims: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_MAX_DIMS)][:dims])


def _drawn(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """The arguments of an im2col, in which windows meet the image."""
    dims = draw.choice((1, 2, 3))
    batch, channels = draw.choice((1, 2, 3, 0)), draw.integer(1, scale.channels)
    size = _entries(draw, dims, 1, max(2, round(math.pow(scale.extent, 2 / (dims + 1)))))
    taps = _entries(draw, dims, 1, _LONGEST_FILTER[dims])
    stride, dilation = _entries(draw, dims, 1, 3), _entries(draw, dims, 1, 3)
    padding = _padding(draw, dims)
    rows = zip(size, taps, dilation, strict=True)
    size = tuple(max(i, effective_extent(f, dil)) for i, f, dil in rows)
    attributes = {"filter_size": taps, "stride": stride, "padding": padding, "dilation": dilation}
    arguments = _met(Arguments({"x": TensorType(dtype, (batch, channels, *size))}, attributes))
    while math.prod(_into_columns(arguments).columns_shape) > scale.multiplications // 4:
        batch, channels = (batch // 2, channels) if batch > 1 else (batch, channels // 2)
        if channels == 0:
            break
        arguments = arguments.with_tensor("x", shape=(batch, channels, *size))
    return arguments


def _met(a: Arguments) -> Arguments:
    """With stride and dilation 1 in dims where every window would step over the image, onto padding."""
    met = [
        any(
            0 <= w.first(o) + t * w.dilation < w.inputs
            for o in range(w.outputs)
            for t in range(w.taps)
        )
        for w in _windows(a)
    ]
    return a.with_attributes(
        **{
            name: tuple(n if one else 1 for n, one in zip(a.attributes[name], met, strict=True))
            for name in ("stride", "dilation")
        }
    )


def _padding(draw: Draw, dims: int) -> Any:
    kind = draw.choice(("valid", "symmetric", "asymmetric", "same"))
    pre, post = _entries(draw, dims, 0, 2), _entries(draw, dims, 0, 3)
    if kind in ("valid", "same"):
        return kind
    return tuple(zip(pre, pre if kind == "symmetric" else post, strict=True))


def _draw_into_columns(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn(draw, scale, dtype)


def _draw_into_image(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _adjoint(_drawn(draw, scale, dtype))


def _adjoint(of: Arguments) -> Arguments:
    """The arguments of the col2im that takes what an im2col makes."""
    p = _into_columns(of)
    attributes = {"input_size": p.input_size, **of.attributes}
    return Arguments({"x": TensorType(p.dtype, p.columns_shape)}, attributes)


_DEFAULTS = {"filter_size": 1, "stride": 1, "padding": 0, "dilation": 1}
_GEOMETRIES: tuple[tuple[str, Shape, dict[str, Any]], ...] = (
    ("empty batch", (0, 2, 3), {"filter_size": 2}),
    ("no channels", (1, 0, 3), {"filter_size": 2}),
    ("empty image in padding", (1, 2, 0), {"filter_size": 2, "padding": 1}),
    ("one column", (2, 3, 4, 5), {"filter_size": (4, 5)}),
    ("stride beyond window", (1, 2, 11), {"filter_size": 2, "stride": 5}),
    ("windows in padding", (1, 2, 2, 3), {"filter_size": 2, "padding": 3}),
    (
        "stride and dilation with a common divisor",
        (1, 2, 15),
        {"filter_size": 3, "stride": 4, "dilation": 6, "padding": 2},
    ),
    ("stride and dilation without", (1, 2, 16), {"filter_size": 4, "stride": 3, "dilation": 4}),
    ("same", (1, 2, 7, 6), {"filter_size": (3, 2), "stride": 2, "padding": "same"}),
    ("three dims", (2, 2, 3, 4, 5), {"filter_size": (1, 3, 2), "padding": 1, "stride": (1, 2, 1)}),
    ("33 channels", (1, 33, 3, 4), {"filter_size": 2}),
    ("128 outputs", (1, 2, 129), {"filter_size": 2}),
    ("dilation 2^31 − 1", (1, 1, 3, 4), {"filter_size": (1, 2), "dilation": (2**31 - 1, 1)}),
    ("batch 65,537", (2**16 + 1, 1, 2), {"filter_size": 2}),
    ("extent 65,537", (1, 1, 2**16 + 1), {"filter_size": 2}),
    ("more than 2^31 elements in columns", (1, 1, 2**30 + 1), {"filter_size": 3, "padding": 1}),
)


def _boundaries(made: Callable[[Arguments], Arguments]) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, geometry in _GEOMETRIES:
            of = Arguments({"x": TensorType(dtype, shape)}, {**_DEFAULTS, **geometry})
            arguments = made(of)
            yield Boundary(name, arguments)
            if "x" in arguments.tensors and len(shape) == 4:
                last = channels_last_strides(arguments.tensors["x"].shape)
                yield Boundary(f"{name}, channels last", arguments.with_tensor("x", strides=last))

    return of_dtype


# --- Declarations ---------------------------------------------------------------------------------

_GEOMETRY = (
    Attribute("filter_size", PerDim(), "Extents F of a window.", REQUIRED),
    Attribute("stride", PerDim(), "Step u between windows.", 1),
    Attribute("padding", Padding(), "Zeros around the image.", 0),
    Attribute("dilation", PerDim(), "Distance l between a window's cells.", 1),
)
_DECISIONS = (
    "Columns are a matrix for each image, [C·ΠF, ΠO], as Caffe's and PyTorch's unfold make it, rows and "
    "columns in logical order. cuDNN documents no order for cudnnIm2Col, of which one matrix [N·ΠO, C·ΠF] is "
    "known: the same by strides.",
    "Windows over the padding read zeros. There is no flipped filter here; turn the rows round instead.",
    'Windows are those of convolution, and so is "same".',
)

im2col = declare(
    Primitive(
        name="im2col",
        family="columns",
        summary="The windows over an image as columns of a matrix.",
        formula="y[n, c·ΠF + f, o] = x[n, c, o·u + f·l − pre] where that is in x, else 0;"
        "  f and o numbered in logical order",
        inputs=(TensorSpec("x", "N C *I", "image"),),
        outputs=(TensorSpec("y", "N R P", "columns: R = C·ΠF rows, P = ΠO of them"),),
        attributes=_GEOMETRY,
        dtypes=_MOVED,
        constraints=(
            spatial_ranks("x"),
            one_dtype(_MOVED),
            *_geometry_rules(spatial_dims),
            _fits_memory(_into_columns),
        ),
        decisions=_DECISIONS,
        resolve=_into_columns,
        infer=lambda p: (TensorType(p.dtype, p.columns_shape),),
        flops=lambda p: 0,
        reduction_length=lambda p: 1,
        domain=_draw_into_columns,
        boundaries=_boundaries(lambda of: of),
        may_copy=True,
        source="cuDNN cudnnIm2Col; Chellapilla, Puri and Simard 2006",
    )
)

col2im = declare(
    Primitive(
        name="col2im",
        family="columns",
        summary="Columns added up to an image: the adjoint of im2col, and its gradient.",
        formula="y[n, c, i] = Σ_{o, f : o·u + f·l − pre = i} x[n, c·ΠF + f, o]",
        inputs=(TensorSpec("x", "N R P", "columns: R = C·ΠF rows, P = ΠO of them"),),
        outputs=(TensorSpec("y", "N C *I", "image"),),
        attributes=(
            Attribute("input_size", Integers(), "Spatial extents I of the image.", REQUIRED),
            *_GEOMETRY,
        ),
        dtypes=_ADDED,
        constraints=(
            _columns_have_three_dims(),
            one_dtype(_ADDED),
            _legal_input_size(),
            *_geometry_rules(_dims),
            _fits_memory(_into_image),
            _columns_of_the_windows(),
        ),
        decisions=(
            *_DECISIONS,
            "What belongs to cells of the padding is dropped. A cell that no window has is 0.",
            "Sums are kept at float32 or better, in any order, and rounded once.",
        ),
        resolve=_into_image,
        infer=lambda p: (TensorType(p.dtype, p.image_shape),),
        flops=lambda p: math.prod(p.columns_shape),
        reduction_length=lambda p: max(1, p.overlap),
        domain=_draw_into_image,
        boundaries=_boundaries(_adjoint),
        may_copy=True,
        source="calculus; PyTorch's fold",
    )
)
