"""Reductions over any axes of a tensor, and their gradients: cuDNN's nine, and logsumexp.

A *set* holds the elements that lie along the axes, n of them, in C order. ``OPS`` is the only list of the
reductions: what each computes, its value for an empty set, and its gradient.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Flag, shown
from dnncanon.spec.axes import (
    axes_attribute,
    drawn_axes,
    kept_shape,
    legal_axes,
    resolved_axes,
    row_length,
    with_long_rows,
)
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.dtypes import DTYPES as ALL_DTYPES
from dnncanon.spec.elementwise import any_rank, drawn_shape, true_or_false
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

MAX_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ReduceProblem:
    """One reduction, forward or backward: ``shape`` is that of x, ``axes`` are ascending, none negative."""

    dtype: str
    shape: Shape
    op: str
    axes: Shape
    keepdims: bool
    indices: bool = False

    @property
    def length(self) -> int:
        """n, the elements of a set."""
        return row_length(self.shape, self.axes)

    @property
    def kept_shape(self) -> Shape:
        """The shape of y with keepdims: extent 1 in the axes."""
        return kept_shape(self.shape, self.axes)

    @property
    def y_shape(self) -> Shape:
        if self.keepdims:
            return self.kept_shape
        return tuple(n for dim, n in enumerate(self.shape) if dim not in self.axes)


@dataclass(frozen=True, slots=True)
class Op:
    """One reduction: y of the set, y of the empty set, and dx_i; ``integers`` says whether it takes them."""

    name: str
    y: str
    empty: str
    dx: str
    integers: bool = False


OPS = {
    row.name: row
    for row in (
        Op("add", "Σ x_i", "0", "dy", integers=True),
        Op("mul", "Π x_i", "1", "dy·Π_{j≠i} x_j"),
        Op("min", "min x_i", "Inf", "i = indices ? dy : 0", integers=True),
        Op("max", "max x_i", "−Inf", "i = indices ? dy : 0", integers=True),
        Op("amax", "max |x_i|", "0", "i = indices ? sign(x_i)·dy : 0", integers=True),
        Op("avg", "Σ x_i / n", "NaN", "dy / n"),
        Op("norm1", "Σ |x_i|", "0", "sign(x_i)·dy"),
        Op("norm2", "√(Σ x_i²)", "0", "y = 0 ? 0 : dy·x_i/y"),
        Op("mul_no_zeros", "Π_{x_i≠0} x_i", "1", "x_i = 0 ? 0 : dy·Π_{j≠i, x_j≠0} x_j"),
        Op(
            "logsumexp",
            "m + ln Σ e^(x_i − m), m = max x_i",
            "−Inf",
            "m = −Inf ? 0 : dy·e^(x_i − m) / Σ_j e^(x_j − m)",
        ),
    )
}
NAMES = tuple(OPS)
EXTREMA = ("min", "max", "amax")
OF_INTEGERS = tuple(name for name, op in OPS.items() if op.integers)
PRODUCTS = ("mul", "mul_no_zeros")
INTEGERS = ("int8", "uint8", "int32")

_FLOATS = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math")),
)
DTYPES = (*_FLOATS, *(DTypeRow(name, ("exact",)) for name in INTEGERS))


# --- From arguments to a problem ------------------------------------------------------------------


def resolve(a: Arguments) -> ReduceProblem:
    """The reduction that legal arguments describe."""
    x, given = a.tensors["x"], a.attributes
    return ReduceProblem(
        dtype=x.dtype,
        shape=x.shape,
        op=given["op"],
        axes=resolved_axes(given["axes"], x.rank),
        keepdims=given["keepdims"],
        indices=given.get("return_indices", False),
    )


def _outputs(p: ReduceProblem) -> tuple[TensorType | None, ...]:
    return (
        TensorType(p.dtype, p.y_shape),
        TensorType("int32", p.y_shape) if p.indices else None,
    )


def _extreme_norms(p: ReduceProblem, data: dict[str, Any]) -> dict[str, Any]:
    """For norm2, of two problems in three, x so large or so small that its squares leave the range of p.dtype.

    Those of float16 do not leave that of float32, in which sums are kept.
    """
    least = ALL_DTYPES[p.dtype].min_exponent
    exponent = (0, -least // 2, least * 9 // 16)[p.length % 3]
    if p.op != "norm2" or p.dtype == "float16":
        return data
    return {**data, "x": np.ldexp(data["x"], exponent)}


def _told_gradients(p: ReduceProblem, data: dict[str, Any]) -> dict[str, Any]:
    """For products no Inf: it meets products of the others, which may underflow to 0 in some order."""
    if p.op in ("mul", "mul_no_zeros"):
        return {name: np.where(np.isinf(values), 1.0, values) for name, values in data.items()}
    return _extreme_norms(p, data)


# --- Constraints ----------------------------------------------------------------------------------


def _supported() -> Constraint:
    supported = [row.dtype for row in DTYPES]

    def check(a: Arguments) -> str | None:
        dtype = a.tensors["x"].dtype
        if dtype in supported:
            return None
        return f"x is {dtype}; convert it to one of {', '.join(supported)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int64", "bool"):
            yield a.with_tensor("x", dtype=dtype)

    return Constraint(f"x is one of {', '.join(supported)}.", DTypeError, check, violate)


def _exact_ops() -> Constraint:
    text = f"Of integers ({', '.join(INTEGERS)}) there are {', '.join(OF_INTEGERS)}."

    def check(a: Arguments) -> str | None:
        op, dtype = a.attributes["op"], a.tensors["x"].dtype
        if dtype not in INTEGERS or op in OF_INTEGERS:
            return None
        options = Choice(OF_INTEGERS).describes
        return f"op={op!r} of {dtype}; convert x to a floating-point type, or pass {options}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor("x", dtype="int8").with_attributes(op="avg", return_indices=False)

    return Constraint(text, DTypeError, check, violate)


def _indexed_ops() -> Constraint:
    text = f"return_indices is True or False; True only with {', '.join(EXTREMA)}."

    def check(a: Arguments) -> str | None:
        value, op = a.attributes["return_indices"], a.attributes["op"]
        if not isinstance(value, bool):
            return f"return_indices={shown(value)}; pass True or False"
        if not value or op in EXTREMA:
            return None
        return f"return_indices=True, but op={op!r} chooses no element; pass {Choice(EXTREMA).describes}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(return_indices=2)
        yield a.with_attributes(op="add", return_indices=True)

    return Constraint(text, AttributeValueError, check, violate)


def _indexable() -> Constraint:
    text = f"Indices are int32: with return_indices a set has at most {MAX_INDEX} elements."

    def check(a: Arguments) -> str | None:
        p = resolve(a)
        if not p.indices or p.length <= MAX_INDEX:
            return None
        return (
            f"a set has {p.length} elements, more than int32 can number; pass return_indices=False"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        # A set of so many, none of which is there: the other dims are empty, and it needs no memory.
        yield a.with_tensor("x", shape=(0, MAX_INDEX + 1), strides=None).with_attributes(
            op="max", axes=(1,), return_indices=True
        )

    return Constraint(text, ShapeError, check, violate)


def _dy_is_reduced() -> Constraint:
    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["dy"].shape, resolve(a).y_shape
        if got == expected:
            return None
        return f"dy has shape {got}, but x is reduced to {expected}; pass dy of that shape"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(*shape, 1), strides=None)
        if shape:
            yield a.with_tensor("dy", shape=(shape[0] + 1, *shape[1:]), strides=None)
        yield a.with_attributes(keepdims=not a.attributes["keepdims"])

    return Constraint("dy has the shape of the reduction's output.", ShapeError, check, violate)


# --- The domain -----------------------------------------------------------------------------------

_LONGEST_PRODUCT = 24
"""Elements of a sampled product: those of more are 0 or Inf, which tells nothing."""


def _drawn(draw: Draw, scale: Scale, dtype: str) -> tuple[TensorType, dict[str, Any]]:
    op, shape = draw.choice(NAMES), drawn_shape(draw, scale)
    axes, keepdims = drawn_axes(draw, len(shape)), draw.choice((False, False, True))
    if dtype in INTEGERS:
        op = OF_INTEGERS[NAMES.index(op) % len(OF_INTEGERS)]
    longest = _LONGEST_PRODUCT if op in PRODUCTS else scale.multiplications
    x = TensorType(dtype, with_long_rows(shape, axes, longest))
    return x, {"op": op, "axes": None if len(axes) == len(shape) else axes, "keepdims": keepdims}


def _draw_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    indices = draw.choice((False, True, True))
    x, attributes = _drawn(draw, scale, dtype)
    return Arguments(
        {"x": x}, {**attributes, "return_indices": indices and attributes["op"] in EXTREMA}
    )


def _draw_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _backward(*_drawn(draw, scale, dtype))


def _backward(x: TensorType, attributes: dict[str, Any]) -> Arguments:
    dy = TensorType(x.dtype, resolve(Arguments({"x": x}, attributes)).y_shape)
    return Arguments({"dy": dy, "x": x}, attributes)


def _layouts() -> Iterator[tuple[str, Shape, Shape, Shape | None]]:
    """Name, shape, axes and strides around the limits of implementations, the cheapest first."""
    yield "no sets", (0, 3), (1,), None
    yield "no sets of nothing", (0, 0), (1,), None
    yield "sets of one", (3, 1, 5), (1,), None
    yield "no axes", (3, 5), (), None
    yield "eight dims", (2, 1, 2, 3, 1, 2, 2, 2), (0, 3, 5, 7), None
    yield "eight dims, transposed", (2,) * 8, (0, 2, 4, 6), (1, 2, 4, 8, 16, 32, 64, 128)
    yield "gaps everywhere", (2, 3, 5), (0, 2), (2 * 7 * 13, 2 * 13, 2)
    yield "one element repeated", (3, 20), (1,), (0, 0)
    yield "rows repeated", (3, 20), (0,), (0, 1)
    yield "channels last, channels", (2, 19, 3, 4), (1,), channels_last_strides((2, 19, 3, 4))
    yield "channels last, space", (2, 8, 5, 4), (2, 3), channels_last_strides((2, 8, 5, 4))
    for size in (7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025):
        yield f"sets of {size}", (3, size), (1,), None
        yield f"sets of {size}, {size} apart", (size, 3), (0,), None
        if size < 256:
            yield f"sets of {size} with gaps", (2, size), (1,), (size + 3, 1)
    yield "one set of 4099", (4099,), (0,), None
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield f"one set of {size}", (size,), (0,), None
        yield f"{size} sets", (size, 2), (1,), None
        yield f"{size} sets in the last dim", (2, size), (0,), None
    yield "offsets beyond 32 bits", (2, 3), (1,), (2**31 + 5, 1)
    yield "one set of more than 2^31", (2**31 + 1,), (0,), None
    yield "more than 2^31 sets", (2**30 + 1, 2), (1,), None


def _boundary_calls(dtype: str) -> Iterator[tuple[str, TensorType, dict[str, Any]]]:
    ops = OF_INTEGERS if dtype in INTEGERS else NAMES
    for op in ops:
        attributes = {"op": op, "axes": (-1, 0), "keepdims": False}
        yield op, TensorType(dtype, (3, 4, 5)), attributes
        yield f"{op} of nothing", TensorType(dtype, (2, 0)), {**attributes, "axes": (1,)}
    for number, (name, shape, axes, strides) in enumerate(_layouts()):
        op = (
            ("add", "max")[number % 2]
            if dtype in INTEGERS
            else ("add", "norm2", "max", "logsumexp")[number % 4]
        )
        op = "amax" if name in ("no axes", "sets of one") else op  # the others would be copies
        attributes = {"op": op, "axes": axes, "keepdims": number % 3 == 0}
        yield name, TensorType(dtype, shape, strides), attributes


def _boundaries_forward(dtype: str) -> Iterator[Boundary]:
    for name, x, attributes in _boundary_calls(dtype):
        given = {**attributes, "return_indices": attributes["op"] in EXTREMA and x.size < MAX_INDEX}
        yield Boundary(name, Arguments({"x": x}, given))


def _boundaries_backward(dtype: str) -> Iterator[Boundary]:
    for name, x, attributes in _boundary_calls(dtype):
        yield Boundary(name, _backward(x, attributes))


# --- Declarations ---------------------------------------------------------------------------------

_FORMULAS = "\n".join(f"{op.name:13} {op.y}" for op in OPS.values())
_GRADIENTS = "\n".join(f"{op.name:13} {op.dx}" for op in OPS.values())
_ATTRIBUTES = (
    Attribute("op", Choice(NAMES), "The reduction.", REQUIRED),
    axes_attribute("The dims that are reduced; None for all, () for none.", None),
    Attribute("keepdims", Flag(), "Whether the axes stay, with extent 1.", False),
)
_X = TensorSpec("x", "*I", "input")
_RULES = (one_of("op", NAMES), legal_axes("x", may_be_none=True), true_or_false("keepdims"))

_DECISIONS = (
    "The dims to reduce are given as axes, as in NumPy, not by the extents of the output, as in cuDNN, where a "
    "dim of extent 1 cannot say whether it is reduced. No axes are legal, sets of one element: cuDNN refuses "
    "an output as large as the input.",
    "There is no scaling of the result and no sum with the old one, cuDNN's alpha and beta: functions are "
    "pure.",
    "logsumexp is none of cuDNN's reductions; it is what its softmax calls stats.",
    "Sums and products are kept at float32 or better, in any order, and rounded once. norm2 and logsumexp "
    "neither overflow nor underflow where their result does not: squares are scaled, and the maximum is "
    "subtracted. (A sum of squares in float32 loses everything below 2^-75 and beyond 2^64.) Partial products "
    "may overflow or underflow, in an order that is not specified.",
    "Sets may be empty: "
    + ", ".join(f"{op.name} {op.empty}" for op in OPS.values())
    + "; of integers min and max give the type's largest and smallest number.",
    "mul_no_zeros of a set of zeros is 1, the product of nothing.",
    "min, max and amax of a set with a NaN are NaN (cuDNN's PROPAGATE_NAN); −0 and 0 are equal.",
)

reduce_forward = declare(
    Primitive(
        name="reduce_forward",
        family="reduce",
        summary="A reduction over some axes, for extrema also with the index of the element that won.",
        formula="y of the set of x_i, i = 0 … n − 1, by op:\n" + _FORMULAS,
        inputs=(_X,),
        outputs=(
            TensorSpec("y", "*O", "the reduced tensor"),
            TensorSpec(
                "indices",
                "*O",
                "place of the extremum in its set in C order, −1 for none",
                optional=True,
            ),
        ),
        attributes=(
            *_ATTRIBUTES,
            Attribute("return_indices", Flag(), "Whether indices are put out.", False),
        ),
        dtypes=DTYPES,
        constraints=(
            any_rank("x"),
            _supported(),
            *_RULES,
            _exact_ops(),
            _indexed_ops(),
            _indexable(),
        ),
        decisions=(
            *_DECISIONS,
            "Of several equal extrema indices names the first in C order of the axes, and of several NaN the "
            "first NaN; of an empty set it is −1. cuDNN does not say.",
            "Integers are summed without overflow and saturate at the end; amax of −128 is 127 in int8.",
        ),
        resolve=resolve,
        infer=_outputs,
        flops=lambda p: math.prod(p.shape),
        reduction_length=lambda p: max(1, p.length),
        domain=_draw_forward,
        boundaries=_boundaries_forward,
        consistent=_extreme_norms,
        source="cuDNN cudnnReduceTensor, cudnnReduceTensorOp_t",
    )
)

reduce_backward = declare(
    Primitive(
        name="reduce_backward",
        family="reduce",
        summary="Gradient of a reduction by its input.",
        formula="dx_i of the set's one dy, by op:\n" + _GRADIENTS,
        inputs=(TensorSpec("dy", "*O", "gradient of the loss by y"), _X),
        outputs=(TensorSpec("dx", "*I", "gradient of the loss by x"),),
        attributes=_ATTRIBUTES,
        dtypes=_FLOATS,
        constraints=(any_rank("x"), one_dtype(_FLOATS), *_RULES, _dy_is_reduced()),
        decisions=(
            *_DECISIONS[:3],
            "cuDNN has no gradients of reductions. These need x and not y: what they need of y is computed "
            "anew, for y is rounded. add and avg read nothing of x but its shape.",
            "The gradient of an extremum goes to one element, the first of equal ones, the first NaN if "
            "there is one: that which reduce_forward names in indices. (PyTorch divides amax's among all.)",
            "sign(0) = 0, and sign(NaN) = NaN. Where the norm is 0 its gradient is 0, not 0/0.",
            "The product of the others is Π x / x_i where no x is 0. Where one element is 0 its gradient is "
            "the product of the others and theirs is 0; where several are, all are 0. At an infinite x_i it is "
            "Inf/Inf, NaN. What Inf gives where the product of the others underflows depends on the order of "
            "factors: Inf or NaN.",
            "logsumexp of a set of −Inf has the gradient 0; one with +Inf or NaN has gradients NaN throughout.",
            "Where a gradient is 0 by a comparison dy is not multiplied: NaN or Inf in dy do not show.",
        ),
        resolve=resolve,
        infer=lambda p: (TensorType(p.dtype, p.shape),),
        flops=lambda p: math.prod(p.shape),
        reduction_length=lambda p: max(1, p.length),
        domain=_draw_backward,
        boundaries=_boundaries_backward,
        consistent=_told_gradients,
        source="calculus; NumPy's and PyTorch's reductions for the edge cases",
    )
)
