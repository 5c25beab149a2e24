"""Arithmetic on whole tensors: cuDNN's tensor operators, and casts between element types.

``OPS`` is the only list of the operators of op_tensor. What moves elements without computing is the family
``movement``; operations of one element type with many more modes are ``pointwise``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Flag, Integers, Real, as_integer, as_real
from dnncanon.spec.constraints import finite, one_dtype, one_of
from dnncanon.spec.dtypes import DTYPES as ALL_DTYPES
from dnncanon.spec.elementwise import (
    any_rank,
    boundary_shapes,
    drawn_broadcast,
    drawn_shape,
    legal_shape,
    same_shape,
    sprinkled,
    true_or_false,
)
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.numerics import NUMERICS
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
from dnncanon.spec.tensors import Shape, TensorType

FLOATS = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)
CASTABLE = tuple(name for name in ALL_DTYPES if name not in ("float8_e8m0fnu", "float4_e2m1fn"))
"""All but those of block scaling, which have no zero or no NaN: quantization makes them."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: its operands in order, and the formula of A = α1·a and B = α2·b."""

    name: str
    operands: tuple[str, ...]
    formula: str


OPS = {
    row.name: row
    for row in (
        Op("add", ("a", "b"), "A + B"),
        Op("mul", ("a", "b"), "A·B"),
        Op("min", ("a", "b"), "min(A, B)"),
        Op("max", ("a", "b"), "max(A, B)"),
        Op("sqrt", ("a",), "√A"),
        Op("not", ("a",), "1 − A"),
    )
}
NAMES = tuple(OPS)
PROPAGATION = ("propagate", "not_propagate")


@dataclass(frozen=True, slots=True)
class OpTensorProblem:
    """One op_tensor; ``shape`` is that of a, c and y. ``propagates_nan`` is of min and max."""

    dtype: str
    shape: Shape
    op: str
    alpha1: float
    alpha2: float
    beta: float
    propagates_nan: bool


@dataclass(frozen=True, slots=True)
class AddTensorProblem:
    """One add_tensor; ``shape`` is that of c and y."""

    dtype: str
    shape: Shape
    alpha: float
    beta: float


@dataclass(frozen=True, slots=True)
class ScaleProblem:
    """One scale_tensor."""

    dtype: str
    shape: Shape
    alpha: float


@dataclass(frozen=True, slots=True)
class SetProblem:
    """One set_tensor; ``dtype`` is that of y."""

    dtype: str
    shape: Shape
    value: float


@dataclass(frozen=True, slots=True)
class CastProblem:
    """One cast, from ``dtype`` to ``to``."""

    dtype: str
    shape: Shape
    to: str
    saturate: bool


# --- From arguments to a problem ------------------------------------------------------------------


def _op_tensor(a: Arguments) -> OpTensorProblem:
    tensor, given = a.tensors["a"], a.attributes
    return OpTensorProblem(
        dtype=tensor.dtype,
        shape=tensor.shape,
        op=given["op"],
        alpha1=as_real(given["alpha1"]),
        alpha2=as_real(given["alpha2"]),
        beta=as_real(given["beta"]),
        propagates_nan=given["nan_propagation"] == "propagate",
    )


def _add_tensor(a: Arguments) -> AddTensorProblem:
    alpha, beta = (as_real(a.attributes[name]) for name in ("alpha", "beta"))
    return AddTensorProblem(a.tensors["c"].dtype, a.tensors["c"].shape, alpha, beta)


def _scale(a: Arguments) -> ScaleProblem:
    x = a.tensors["x"]
    return ScaleProblem(x.dtype, x.shape, as_real(a.attributes["alpha"]))


def _set(a: Arguments) -> SetProblem:
    shape = tuple(map(as_integer, a.attributes["shape"]))
    return SetProblem(a.attributes["dtype"], shape, as_real(a.attributes["value"]))


def _cast(a: Arguments) -> CastProblem:
    x, given = a.tensors["x"], a.attributes
    return CastProblem(x.dtype, x.shape, given["dtype"], given["saturate"])


Problem = OpTensorProblem | AddTensorProblem | ScaleProblem | SetProblem | CastProblem


def _alike(p: Problem) -> tuple[TensorType]:
    return (TensorType(p.to if isinstance(p, CastProblem) else p.dtype, p.shape),)


def _elements(p: Problem) -> int:
    return math.prod(p.shape)


# --- Constraints ----------------------------------------------------------------------------------


def _operands() -> Constraint:
    text = "b is given for add, mul, min and max, and for no other; c is given if beta is not 0, and only then."

    def check(a: Arguments) -> str | None:
        op, beta = OPS[a.attributes["op"]], as_real(a.attributes["beta"])
        takes = (*op.operands, *(("c",) if beta != 0.0 else ()))
        if tuple(a.tensors) == takes:
            return None
        listed, given = ", ".join(takes), ", ".join(a.tensors)
        return f"op={op.name!r} with beta={beta:g} takes {listed}, and is given {given}; pass just {listed}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        first = a.tensors["a"]
        for others in ((), ("b",), ("c",), ("b", "c")):
            if ("a", *others) != tuple(a.tensors):
                yield Arguments(dict.fromkeys(("a", *others), first), a.attributes)

    return Constraint(text, AttributeValueError, check, violate)


def _broadcasts(name: str, to: str) -> Constraint:
    """In each dim a tensor, if it is there, has the extent of another one, or 1."""

    def check(a: Arguments) -> str | None:
        if name not in a.tensors:
            return None
        got, whole = a.tensors[name].shape, a.tensors[to].shape
        if all(n in (1, want) for n, want in zip(got, whole, strict=True)):
            return None
        return f"{name} has shape {got}, and {to} {whole}; pass {name} with extents of {to}, or 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if name in a.tensors:
            shape = tuple(n + 2 for n in a.tensors[to].shape)
            yield a.with_tensor(name, shape=shape, strides=None)

    text = f"In each dim {name} has the extent of {to}, or 1."
    return Constraint(text, ShapeError, check, violate)


def _if_given(name: str, rule: Constraint) -> Constraint:
    """The rule where an optional tensor is there."""
    return replace(
        rule,
        check=lambda a: rule.check(a) if name in a.tensors else None,
        violate=lambda a: rule.violate(a) if name in a.tensors else iter(()),
    )


def _castable() -> Constraint:
    def check(a: Arguments) -> str | None:
        dtype = a.tensors["x"].dtype
        return None if dtype in CASTABLE else f"x is {dtype}; pass {', '.join(CASTABLE)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("float8_e8m0fnu", "complex64"):
            yield a.with_tensor("x", dtype=dtype)

    return Constraint(f"x is one of {', '.join(CASTABLE)}.", DTypeError, check, violate)


# --- Test data ------------------------------------------------------------------------------------


def _rooted(p: OpTensorProblem, data: dict[str, Any]) -> dict[str, Any]:
    """For sqrt, operands of which three in four have a root."""
    if p.op != "sqrt":
        return data
    a = data["a"]
    every_fourth = np.arange(a.size).reshape(a.shape) % 4 == 0
    return {**data, "a": np.where(every_fourth, a, np.copysign(a, p.alpha1))}


def _around_ends(p: CastProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Ties, and what lies just within and beyond the range of the target, as far as x can hold it.

    For integers the others are of up to three digits: most data are so small that they would be 0.
    """
    source, target = ALL_DTYPES[p.dtype], ALL_DTYPES[p.to]
    most, least = target.max, target.min
    ends = (most, least, most * 1.03125, least * 1.03125, most * 1.5, most * 4.0)
    fitting = tuple(end for end in ends if source.min <= end <= source.max)
    ties = (0.5, -1.5, 2.5, 1.0 + target.unit_roundoff, 1.0 + 3.0 * target.unit_roundoff)
    x = data["x"]
    if source.is_float and target.kind == "integer":
        finite_values = np.where(np.isfinite(x), np.abs(x), 0.0)
        x = np.ldexp(x, 8 - np.frexp(finite_values.max(initial=0.0))[1])
    return {"x": sprinkled(x, (0.0, *fitting, *(ties if source.is_float else ())))}


# --- The domain -----------------------------------------------------------------------------------

_ALPHAS = (1.0, 1.0, 0.5, -1.5, 0.7)
"""None so small that a subnormal number of the test data would vanish, and Inf times it be NaN."""


def _draw_op_tensor(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    op, shape = OPS[draw.choice(NAMES)], drawn_shape(draw, scale)
    beta, b_shape = draw.choice((0.0, 0.0, 1.0, -0.75)), drawn_broadcast(draw, shape)
    attributes = {
        "op": op.name,
        "alpha1": draw.choice(_ALPHAS),
        "alpha2": draw.choice(_ALPHAS),
        "beta": beta,
        "nan_propagation": draw.choice(PROPAGATION),
    }
    return _of_op(op, dtype, shape, b_shape, attributes)


def _of_op(
    op: Op, dtype: str, shape: Shape, b_shape: Shape, attributes: dict[str, Any]
) -> Arguments:
    shapes = {"a": shape, "b": b_shape, "c": shape}
    names = (*op.operands, *(("c",) if attributes["beta"] else ()))
    return Arguments({name: TensorType(dtype, shapes[name]) for name in names}, attributes)


def _draw_add_tensor(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    tensors = {
        "a": TensorType(dtype, drawn_broadcast(draw, shape)),
        "c": TensorType(dtype, shape),
    }
    attributes = {"alpha": draw.choice(_ALPHAS), "beta": draw.choice((1.0, 1.0, -0.75, 0.3, 0.0))}
    return Arguments(tensors, attributes)


def _draw_scale(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    x = TensorType(dtype, drawn_shape(draw, scale))
    return Arguments({"x": x}, {"alpha": draw.choice((2.0, 0.5, -1.5, 0.1, 1e-3))})


def _draw_set(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    value = draw.choice((1.0, 0.6, 2.5, 3.5, 300.7, 1e9, 7.0))
    negative = draw.choice((False, True)) and ALL_DTYPES[dtype].signed
    attributes = {"dtype": dtype, "value": -value if negative else value}
    return Arguments({}, {"shape": drawn_shape(draw, scale), **attributes})


_SMALL = 1 << 17
"""Products, up to which a scale is that of a quick run."""


def _targets(dtype: str, scale: Scale) -> tuple[str, ...]:
    """The types to cast to; in a quick run only float32 is cast to all, others to a third of them."""
    if dtype == "float32" or scale.multiplications > _SMALL:
        return CASTABLE
    return CASTABLE[CASTABLE.index(dtype) % 3 :: 3]


def _draw_cast(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    x = TensorType(dtype, drawn_shape(draw, scale))
    to, saturate = draw.choice(_targets(dtype, scale)), draw.choice((False, True))
    return Arguments({"x": x}, {"dtype": to, "saturate": saturate})


def _op_tensor_boundaries(dtype: str) -> Iterator[Boundary]:
    """Each operator, on special values too, and shapes around limits."""
    attributes = {"alpha1": 1.0, "alpha2": 1.0, "beta": 0.0, "nan_propagation": "propagate"}
    for op in OPS.values():
        if dtype == "float32":
            whole = _of_op(op, dtype, (4, 8, 16), (4, 8, 16), {**attributes, "op": op.name})
            yield Boundary(f"{op.name} of special values", whole, special_values=True)
            quiet = whole.with_attributes(nan_propagation="not_propagate")
            yield Boundary(f"{op.name}, NaN not propagated", quiet, special_values=True)
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        arguments = _of_op(
            OPS["max"], dtype, shape, shape, {**attributes, "op": "max", "beta": 1.0}
        )
        yield Boundary(name, arguments.with_tensor("a", strides=strides))


def _add_tensor_boundaries(dtype: str) -> Iterator[Boundary]:
    attributes = {"alpha": 0.5, "beta": 0.0}
    whole = {"a": TensorType(dtype, (1, 8, 1)), "c": TensorType(dtype, (4, 8, 16))}
    unread = Arguments(whole, attributes)
    yield Boundary("c is not read", unread, special_values=True)
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        tensors = {"a": TensorType(dtype, shape, strides), "c": TensorType(dtype, shape)}
        yield Boundary(name, Arguments(tensors, {"alpha": 0.5, "beta": 1.0}))


def _scale_boundaries(dtype: str) -> Iterator[Boundary]:
    for alpha in (0.0, -0.0):
        whole = Arguments({"x": TensorType(dtype, (4, 8, 16))}, {"alpha": alpha})
        yield Boundary(f"times {alpha}", whole, special_values=True)
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        yield Boundary(name, Arguments({"x": TensorType(dtype, shape, strides)}, {"alpha": 0.1}))


def _set_boundaries(dtype: str) -> Iterator[Boundary]:
    row = ALL_DTYPES[dtype]
    for value in (0.1, 0.5, 1.5, 2.5, row.max, row.min, 1e300, -1e300):
        if value > 0.5 or row.is_float or (value < 0.0 and row.signed):  # others are 0
            attributes = {"shape": (5,), "dtype": dtype, "value": value}
            yield Boundary(f"value {value:g}", Arguments({}, attributes))
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        if strides is None:
            yield Boundary(name, Arguments({}, {"shape": shape, "dtype": dtype, "value": 1.0}))


def _cast_boundaries(dtype: str) -> Iterator[Boundary]:
    """Every target, with and without saturation, and shapes around limits."""
    for to in CASTABLE:
        if dtype == "float32":
            x = TensorType(dtype, (4, 37))
            for saturate in (False, True):
                arguments = Arguments({"x": x}, {"dtype": to, "saturate": saturate})
                name = f"to {to}, saturated" if saturate else f"to {to}"
                yield Boundary(name, arguments, special_values=True)
    to = "float16" if dtype == "float32" else "float32"
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        x = TensorType(dtype, shape, strides)
        yield Boundary(name, Arguments({"x": x}, {"dtype": to, "saturate": False}))


# --- Declarations ---------------------------------------------------------------------------------

_PURE = "The result is a new tensor; cuDNN writes it over c."

op_tensor = declare(
    Primitive(
        name="op_tensor",
        family="transform",
        summary="An operator on one or two scaled tensors, and a third one added.",
        formula="y = op(α1·a, α2·b) + β·c, with A = α1·a and B = α2·b:\n"
        + "\n".join(f"{row.name:5} {row.formula}" for row in OPS.values()),
        inputs=(
            TensorSpec("a", "*I", "first operand"),
            TensorSpec("b", "*I", "second operand, broadcast in dims of extent 1", optional=True),
            TensorSpec("c", "*I", "what is added, scaled by beta", optional=True),
        ),
        outputs=(TensorSpec("y", "*I", "result"),),
        attributes=(
            Attribute("op", Choice(NAMES), "The operator.", REQUIRED),
            Attribute("alpha1", Real(), "α1, factor of a.", 1.0),
            Attribute("alpha2", Real(), "α2, factor of b; without b it has no effect.", 1.0),
            Attribute("beta", Real(), "β, factor of c.", 0.0),
            Attribute(
                "nan_propagation",
                Choice(PROPAGATION),
                "What a NaN in min and max does.",
                "propagate",
            ),
        ),
        dtypes=FLOATS,
        constraints=(
            one_of("op", NAMES),
            finite("beta"),
            _operands(),
            any_rank("a", "b", "c"),
            one_dtype(FLOATS),
            _broadcasts("b", "a"),
            _if_given("c", same_shape("c", "a")),
            finite("alpha1"),
            finite("alpha2"),
            one_of("nan_propagation", PROPAGATION),
        ),
        decisions=(
            "With beta = 0 there is no c: cuDNN leaves it unread, so that NaN in it do not show.",
            "b is broadcast, a is not: y has the shape of a, as in cuDNN.",
            "not is 1 − α1·a for all numbers, not only for 0 and 1; sqrt and not take no b.",
            "With not_propagate a NaN in min or max gives way to the other operand, as in IEEE 754's "
            "minimumNumber; of two NaN the result is NaN. Everywhere else NaN propagate. Which zero "
            "max(0, −0) is, is left open.",
            "One element type for all tensors. cuDNN also mixes int8 with float; a cast does that here.",
            "Computed in float32 (float64 for float64), and rounded once.",
            _PURE,
        ),
        resolve=_op_tensor,
        infer=_alike,
        flops=lambda p: (2 if p.beta else 1) * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_op_tensor,
        boundaries=_op_tensor_boundaries,
        consistent=_rooted,
        may_copy=True,
        source="cuDNN cudnnOpTensor, cudnnOpTensorOp_t",
    )
)

add_tensor = declare(
    Primitive(
        name="add_tensor",
        family="transform",
        summary="A scaled tensor, broadcast, added to another scaled one.",
        formula="y = α·a + β·c",
        inputs=(
            TensorSpec("a", "*I", "what is added, broadcast in dims of extent 1: a bias"),
            TensorSpec("c", "*I", "what it is added to"),
        ),
        outputs=(TensorSpec("y", "*I", "sum, of the shape of c"),),
        attributes=(
            Attribute("alpha", Real(), "α, factor of a.", 1.0),
            Attribute("beta", Real(), "β, factor of c.", 1.0),
        ),
        dtypes=FLOATS,
        constraints=(
            any_rank("a", "c"),
            one_dtype(FLOATS),
            _broadcasts("a", "c"),
            finite("alpha"),
            finite("beta"),
        ),
        decisions=(
            "a may be broadcast in any dims. cuDNN says so, and supports some of them.",
            "With beta = 0 c is not read: it only gives the shape, and NaN in it do not show.",
            "cudnnTransformTensor with α and β is this, of two tensors of one shape.",
            _PURE,
        ),
        resolve=_add_tensor,
        infer=_alike,
        flops=lambda p: 2 * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_add_tensor,
        boundaries=_add_tensor_boundaries,
        may_copy=True,
        source="cuDNN cudnnAddTensor, cudnnTransformTensor",
    )
)

scale_tensor = declare(
    Primitive(
        name="scale_tensor",
        family="transform",
        summary="A tensor times a number.",
        formula="y = α·x",
        inputs=(TensorSpec("x", "*I", "input"),),
        outputs=(TensorSpec("y", "*I", "product"),),
        attributes=(Attribute("alpha", Real(), "α, the factor.", REQUIRED),),
        dtypes=FLOATS,
        constraints=(any_rank("x"), one_dtype(FLOATS), finite("alpha")),
        decisions=(
            "α = 0 multiplies like any other factor: NaN and Inf give NaN. Only set_tensor clears.",
            "cuDNN scales in place; functions are pure.",
        ),
        resolve=_scale,
        infer=_alike,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_scale,
        boundaries=_scale_boundaries,
        may_copy=True,
        source="cuDNN cudnnScaleTensor",
    )
)

_EXACT = tuple(DTypeRow(name, ("exact",)) for name in CASTABLE)
_ROUNDED = tuple(
    DTypeRow(
        name, ("ieee",) if row.is_float and name in NUMERICS["ieee"].accumulators else ("exact",)
    )
    for name, row in ALL_DTYPES.items()
    if name in CASTABLE
)
_CONVERSION = (
    "Numbers are rounded to nearest, ties to even, once, whatever the pair of types: 2.5 is 2 in an integer "
    "type. (C truncates.)",
    "Integer types saturate, and a NaN is 0 in them; in bool everything but 0 is true, a NaN as well.",
)

set_tensor = declare(
    Primitive(
        name="set_tensor",
        family="transform",
        summary="A tensor of one number.",
        formula="y[i] = value",
        inputs=(),
        outputs=(TensorSpec("y", "*I", "the number everywhere"),),
        attributes=(
            Attribute("shape", Integers(), "Extents of the result.", REQUIRED),
            Attribute("dtype", Choice(CASTABLE), "Element type of the result.", "float32"),
            Attribute("value", Real(), "The number.", REQUIRED),
        ),
        dtypes=_EXACT,
        constraints=(legal_shape(), one_of("dtype", CASTABLE), finite("value")),
        decisions=(
            *_CONVERSION,
            "Beyond the range of a floating-point type the value is ±Inf, or NaN where there is none.",
            "cuDNN sets an existing tensor; shape and dtype take its place here.",
        ),
        resolve=_set,
        infer=_alike,
        flops=lambda p: 0,
        reduction_length=lambda p: 1,
        domain=_draw_set,
        boundaries=_set_boundaries,
        source="cuDNN cudnnSetTensor",
    )
)

cast = declare(
    Primitive(
        name="cast",
        family="transform",
        summary="A tensor in another element type.",
        formula="y = round(x) to the numbers of dtype",
        inputs=(TensorSpec("x", "*I", "input"),),
        outputs=(TensorSpec("y", "*I", "the numbers in the other type"),),
        attributes=(
            Attribute("dtype", Choice(CASTABLE), "Element type of the result.", REQUIRED),
            Attribute(
                "saturate",
                Flag(),
                "Whether what is beyond a floating-point type's range becomes its end, ±max.",
                False,
            ),
        ),
        dtypes=_ROUNDED,
        constraints=(
            any_rank("x"),
            _castable(),
            one_of("dtype", CASTABLE),
            true_or_false("saturate"),
        ),
        decisions=(
            *_CONVERSION,
            "Without saturate a float beyond the range is ±Inf, or NaN in float8_e4m3fn, which has no Inf, as "
            "in IEEE 754 and OCP's FP8. With it, it is ±max, Inf included, which is what NVIDIA's conversion "
            "instructions to 8 bits do; a NaN stays NaN.",
            "float8_e8m0fnu and float4_e2m1fn, the types of block scaling, are the business of block-scaled "
            "quantization: of one number alone such a cast says little.",
        ),
        resolve=_cast,
        infer=_alike,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_cast,
        boundaries=_cast_boundaries,
        consistent=_around_ends,
        may_copy=True,
        source="cuDNN graph API, POINTWISE IDENTITY between data types; OCP 8-bit Floating Point, 1.0",
    )
)
