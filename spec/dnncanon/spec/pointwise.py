"""Pointwise operations: all modes of cuDNN's graph operation POINTWISE, on one, two or three tensors.

``MODES`` is their only list: operands, formula, element types, and whether α1 and α2 scale the operands.
Names are cuDNN's, CUDNN_POINTWISE_… in lower case.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Integer, Real, as_integer, as_real, is_word, shown
from dnncanon.spec.constraints import finite
from dnncanon.spec.elementwise import (
    any_rank,
    boundary_shapes,
    broadcast_shape,
    broadcastable,
    drawn_broadcast,
    drawn_shape,
    legal_axis,
    positive,
    sprinkled,
)
from dnncanon.spec.errors import AttributeValueError, DTypeError
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
from dnncanon.spec.values import BOOLEAN

FLOATS = ("float64", "float32", "float16", "bfloat16")
NUMBERS = (*FLOATS, "int32", "int8")
ANYTHING = (*NUMBERS, "bool")
TRUTH = ("bool",)


@dataclass(frozen=True, slots=True)
class Mode:
    """One operation: its operands in order, the formula, the element types of x, the one of y.

    ``y`` is empty where y has the type of x. ``scaled`` says that α1·x and α2·b stand for x and b.
    """

    name: str
    operands: tuple[str, ...]
    formula: str
    dtypes: tuple[str, ...] = FLOATS
    y: str = ""
    scaled: bool = False


def _unary(
    name: str, formula: str, dtypes: tuple[str, ...] = FLOATS, y: str = "", *, scaled: bool = False
) -> Mode:
    return Mode(name, ("x",), formula, dtypes, y, scaled)


def _binary(
    name: str, formula: str, dtypes: tuple[str, ...] = FLOATS, y: str = "", *, scaled: bool = False
) -> Mode:
    return Mode(name, ("x", "b"), formula, dtypes, y, scaled)


MODES = {
    row.name: row
    for row in (
        # Arithmetic of two operands.
        _binary("add", "x + b", NUMBERS, scaled=True),
        _binary("sub", "x − b", NUMBERS, scaled=True),
        _binary("mul", "x · b", NUMBERS, scaled=True),
        _binary("div", "x / b", scaled=True),
        _binary("add_square", "x + b²", NUMBERS, scaled=True),
        _binary("min", "min(x, b)", NUMBERS, scaled=True),
        _binary("max", "max(x, b)", NUMBERS, scaled=True),
        _binary("mod", "x − b·trunc(x/b), of the sign of x", NUMBERS),
        _binary("floor_mod", "x − b·⌊x/b⌋, of the sign of b", NUMBERS),
        _binary("pow", "x^b"),
        _binary("atan2", "the angle of the point (b, x), in −π…π"),
        # Functions of one operand.
        _unary("identity", "x", ANYTHING, scaled=True),
        _unary("abs", "|x|", NUMBERS, scaled=True),
        _unary("neg", "−x", NUMBERS, scaled=True),
        _unary("ceil", "⌈x⌉"),
        _unary("floor", "⌊x⌋"),
        _unary("sqrt", "√x", scaled=True),
        _unary("rsqrt", "1/√x", scaled=True),
        _unary("reciprocal", "1/x", scaled=True),
        _unary("exp", "e^x", scaled=True),
        _unary("log", "ln x", scaled=True),
        _unary("erf", "2/√π · ∫ e^(−t²) dt over 0…x", scaled=True),
        _unary("sin", "sin x", scaled=True),
        _unary("cos", "cos x", scaled=True),
        _unary("tan", "tan x", scaled=True),
        # Activations. σ(x) = 1/(1 + e^−x), Φ(x) = erfc(−x/√2)/2, φ(x) = e^(−x²/2)/√(2π).
        _unary("relu_fwd", "x < L ? L + s·(x − L) : min(x, U)"),
        _unary("tanh_fwd", "tanh x"),
        _unary("sigmoid_fwd", "σ(x)"),
        _unary("elu_fwd", "x > 0 ? x : elu_alpha·(e^x − 1)"),
        _unary("gelu_fwd", "x·Φ(x)"),
        _unary("gelu_approx_tanh_fwd", "x·σ(2u), u = √(2/π)·(x + 0.044715·x³)"),
        _unary("softplus_fwd", "ln(1 + e^(β·x))/β, β = softplus_beta"),
        _unary("swish_fwd", "x·σ(β·x), β = swish_beta"),
        # Their gradients: x is dy, b the input of the function.
        _binary("relu_bwd", "b <= L ? s·x : b < U ? x : 0"),
        _binary("tanh_bwd", "x/cosh²(b)"),
        _binary("sigmoid_bwd", "x·σ(b)·σ(−b)"),
        _binary("elu_bwd", "b > 0 ? x : x·elu_alpha·e^b"),
        _binary("gelu_bwd", "x·(Φ(b) + b·φ(b))"),
        _binary("gelu_approx_tanh_bwd", "x·(σ(2u) + 2b·σ(2u)·σ(−2u)·u′), u of b"),
        _binary("softplus_bwd", "x·σ(β·b)"),
        _binary("swish_bwd", "x·σ(β·b)·(1 + β·b·σ(−β·b))"),
        # Comparisons and logic.
        _binary("cmp_eq", "x = b", NUMBERS, "bool"),
        _binary("cmp_neq", "x ≠ b", NUMBERS, "bool"),
        _binary("cmp_gt", "x > b", NUMBERS, "bool"),
        _binary("cmp_ge", "x >= b", NUMBERS, "bool"),
        _binary("cmp_lt", "x < b", NUMBERS, "bool"),
        _binary("cmp_le", "x <= b", NUMBERS, "bool"),
        _binary("logical_and", "x and b", TRUTH),
        _binary("logical_or", "x or b", TRUTH),
        _unary("logical_not", "not x", TRUTH),
        Mode("binary_select", ("x", "b", "t"), "t ? x : b", ANYTHING),
        _unary("gen_index", "the index along axis; x gives the shape", ANYTHING, "int32"),
    )
}
NAMES = tuple(MODES)

_SUBSET = ("ieee", "ftz", "fast_math", "saturating")
DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", _SUBSET),
    DTypeRow("float16", _SUBSET),
    DTypeRow("bfloat16", _SUBSET),
    DTypeRow("int32", ("exact",)),
    DTypeRow("int8", ("exact",)),
    DTypeRow("bool", ("exact",)),
)

ATTRIBUTES = (
    Attribute("mode", Choice(NAMES), "The operation.", REQUIRED),
    Attribute("alpha1", Real(), "Factor of x.", 1.0),
    Attribute("alpha2", Real(), "Factor of b.", 1.0),
    Attribute("axis", Integer(), "The dim that gen_index counts along.", 0),
    Attribute("relu_lower_clip", Real(), "L, below which relu is flat, or of slope s.", 0.0),
    Attribute("relu_upper_clip", Real(), "U, the largest value of relu. Default: none.", None),
    Attribute("relu_lower_clip_slope", Real(), "s, the slope of relu below L.", 0.0),
    Attribute("elu_alpha", Real(), "The limit of elu is −elu_alpha.", 1.0),
    Attribute("softplus_beta", Real(), "β of softplus.", 1.0),
    Attribute("swish_beta", Real(), "β of swish.", 1.0),
)


@dataclass(frozen=True, slots=True)
class PointwiseProblem:
    """One pointwise operation; ``shape`` is that of the result."""

    dtype: str
    shape: Shape
    mode: str
    axis: int
    alpha1: float
    alpha2: float
    relu_lower_clip: float
    relu_upper_clip: float
    relu_lower_clip_slope: float
    elu_alpha: float
    softplus_beta: float
    swish_beta: float


# --- From arguments to a problem ------------------------------------------------------------------


def _upper_clip(a: Arguments) -> float:
    value = a.attributes["relu_upper_clip"]
    return math.inf if value is None else as_real(value)


def resolve(a: Arguments) -> PointwiseProblem:
    """The operation that legal arguments describe."""
    x = a.tensors["x"]
    reals = ("alpha1", "alpha2", "relu_lower_clip", "relu_lower_clip_slope", "elu_alpha")
    return PointwiseProblem(
        dtype=x.dtype,
        shape=broadcast_shape(a),
        mode=a.attributes["mode"],
        axis=as_integer(a.attributes["axis"]) % x.rank,
        relu_upper_clip=_upper_clip(a),
        **{n: as_real(a.attributes[n]) for n in (*reals, "softplus_beta", "swish_beta")},
    )


def _infer(p: PointwiseProblem) -> tuple[TensorType]:
    return (TensorType(MODES[p.mode].y or p.dtype, p.shape),)


# --- Constraints ----------------------------------------------------------------------------------


def _known_mode() -> Constraint:
    def check(a: Arguments) -> str | None:
        mode = a.attributes["mode"]
        if is_word(mode, NAMES):
            return None
        near = get_close_matches(mode[:40], NAMES) if isinstance(mode, str) else []
        return f"mode={shown(mode)}; pass one of those in the definition, {', '.join(near or NAMES[:3])}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(mode="no_such_mode")

    return Constraint("mode is one of the definition's.", AttributeValueError, check, violate)


def _operands() -> Constraint:
    text = (
        "b and t are given where the mode has them: b for two operands, b and t for binary_select."
    )

    def check(a: Arguments) -> str | None:
        mode = MODES[a.attributes["mode"]]
        if tuple(a.tensors) == mode.operands:
            return None
        takes, given = ", ".join(mode.operands), ", ".join(a.tensors)
        return f"mode={mode.name!r} takes {takes}, and is given {given}; pass just {takes}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        x, count = a.tensors["x"], len(a.tensors)
        for others in ((), ("b",), ("b", "t")):
            if len(others) + 1 != count:
                yield Arguments(dict.fromkeys(("x", *others), x), a.attributes)

    return Constraint(text, AttributeValueError, check, violate)


def _mode_has_dtype() -> Constraint:
    text = (
        f"x has an element type that the mode has: {', '.join(FLOATS)}; int32 and int8 for arithmetic "
        "without division, comparisons and choices; bool for logic, identity, binary_select, gen_index."
    )

    def check(a: Arguments) -> str | None:
        mode, dtype = MODES[a.attributes["mode"]], a.tensors["x"].dtype
        if dtype in mode.dtypes:
            return None
        return (
            f"x is {dtype}; with mode={mode.name!r} convert it to one of {', '.join(mode.dtypes)}"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for dtype in ("int64", "bool", "float32"):
            yield a.with_tensor("x", dtype=dtype)

    return Constraint(text, DTypeError, check, violate)


def _other_dtypes() -> Constraint:
    def check(a: Arguments) -> str | None:
        expected = {"b": a.tensors["x"].dtype, "t": "bool"}
        for name, tensor in a.tensors.items():
            if name != "x" and tensor.dtype != expected[name]:
                return f"{name} is {tensor.dtype}; convert it to {expected[name]}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in a.tensors:
            if name != "x":
                yield a.with_tensor(name, dtype="uint8")

    return Constraint("b has the dtype of x, and t is bool.", DTypeError, check, violate)


def _scaling() -> Constraint:
    scaled = ", ".join(name for name, mode in MODES.items() if mode.scaled)
    text = f"alpha1 and alpha2 are 1 but for floating-point x and b of {scaled}."

    def check(a: Arguments) -> str | None:
        mode, dtype = MODES[a.attributes["mode"]], a.tensors["x"].dtype
        scales = {"alpha1": mode.scaled, "alpha2": mode.scaled and "b" in a.tensors}
        for name, legal in scales.items():
            if as_real(a.attributes[name]) != 1.0 and not (legal and dtype in FLOATS):
                return (
                    f"{name}={a.attributes[name]!r} with mode={mode.name!r} of {dtype}; "
                    f"pass {name}=1 and scale the tensor before"
                )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(alpha1=2.0)
        yield a.with_attributes(alpha2=0.5)

    return Constraint(text, AttributeValueError, check, violate)


def _clips_in_order() -> Constraint:
    text = "relu_upper_clip is None or a finite number >= relu_lower_clip."

    def check(a: Arguments) -> str | None:
        try:
            upper = _upper_clip(a)
        except ValueError as wrong:
            return f"relu_upper_clip={wrong}; pass None or a number"
        if upper >= as_real(a.attributes["relu_lower_clip"]):
            return None
        return (
            f"relu_upper_clip={shown(a.attributes['relu_upper_clip'])} is below "
            f"relu_lower_clip={shown(a.attributes['relu_lower_clip'])}; pass a larger relu_upper_clip"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        lower = a.attributes["relu_lower_clip"]
        for value in (lower - 1.0, math.inf, "1"):
            yield a.with_attributes(relu_upper_clip=value)

    return Constraint(text, AttributeValueError, check, violate)


PARAMETER_RULES = (
    finite("relu_lower_clip"),
    _clips_in_order(),
    finite("relu_lower_clip_slope"),
    finite("elu_alpha"),
    positive("softplus_beta"),
    positive("swish_beta"),
)
"""What the attributes may be that are about one function, whatever the tensors are."""

_CONSTRAINTS = (
    _known_mode(),
    _operands(),
    any_rank("x", "b", "t"),
    _mode_has_dtype(),
    _other_dtypes(),
    broadcastable(),
    finite("alpha1"),
    finite("alpha2"),
    _scaling(),
    legal_axis("x"),
    *PARAMETER_RULES,
)


# --- Test data ------------------------------------------------------------------------------------

_POSITIVE = ("sqrt", "rsqrt", "log", "pow")


def _telling(p: PointwiseProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Data that tell operations apart: mostly positive ones where others give NaN, kinks, equal numbers."""
    if p.mode in _POSITIVE:
        return {**data, "x": np.where(_every(4, data["x"]), data["x"], np.abs(data["x"]))}
    if p.mode == "relu_bwd":
        clips = (p.relu_lower_clip, p.relu_upper_clip)
        return {**data, "b": sprinkled(data["b"], tuple(c for c in clips if c < math.inf))}
    if p.mode == "elu_bwd":
        return {**data, "b": sprinkled(data["b"], (0.0,))}
    if p.mode.startswith("cmp_"):
        return {name: np.where(_every(2, v), _coarse(v), v) for name, v in data.items()}
    return data


def _every(step: int, values: Any) -> Any:
    return np.arange(values.size).reshape(values.shape) % step == 0


def _coarse(values: Any) -> Any:
    """Each finite value as one of −m, 0 and m, a power of two: many of them are equal."""
    finite_values = np.where(np.isfinite(values), np.abs(values), 0.0)
    largest = float(finite_values.max(initial=0.0))
    m = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
    return np.where(np.isfinite(values), np.rint(np.clip(values / m, -1.0, 1.0)) * m, values)


_SMALL = 1 << 17
"""Products, up to which a scale is that of a quick run."""


def _modes_to_draw(dtype: str, scale: Scale) -> tuple[str, ...]:
    """Those that the type has; in a quick run a third of them for each of three types that share code."""
    names = tuple(name for name in NAMES if dtype in MODES[name].dtypes)
    thirds = ("float64", "float16", "bfloat16")
    if dtype not in thirds or scale.multiplications > _SMALL:
        return names
    return names[thirds.index(dtype) :: 3]


def _draw(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    mode = MODES[draw.choice(_modes_to_draw(dtype, scale))]
    shape = drawn_shape(draw, scale)
    broadcast = {name: drawn_broadcast(draw, shape) for name in ("x", "b", "t")}
    axis = draw.integer(0, 4) % len(shape)
    alphas = draw.choice((1.0, 1.0, 0.5, -1.5)), draw.choice((1.0, 1.0, 0.75, -1.0))
    attributes = {
        "mode": mode.name,
        "alpha1": alphas[0] if mode.scaled and dtype in FLOATS else 1.0,
        "alpha2": alphas[1] if mode.scaled and dtype in FLOATS and "b" in mode.operands else 1.0,
        "axis": axis if shape[axis] > 1 else shape.index(max(shape)) - len(shape),
        "relu_lower_clip": draw.choice((0.0, -0.5, 0.25)),
        "relu_upper_clip": draw.choice((None, 1.0, 6.0)),
        "relu_lower_clip_slope": draw.choice((0.0, 0.125, -0.5)),
        "elu_alpha": draw.choice((1.0, 0.5, -1.75)),
        "softplus_beta": draw.choice((1.0, 0.25, 3.0)),
        "swish_beta": draw.choice((1.0, 1.702, 0.25)),
    }
    if len(mode.operands) == 1:
        broadcast["x"] = shape
    return Arguments(_tensors(mode, dtype, broadcast), attributes)


def _tensors(mode: Mode, dtype: str, shapes: dict[str, Shape]) -> dict[str, TensorType]:
    return {
        name: TensorType("bool" if name == "t" else dtype, shapes[name]) for name in mode.operands
    }


def _boundaries(dtype: str) -> Iterator[Boundary]:
    """Each mode, with b and t broadcast and on special values, and shapes around limits."""
    defaults = {a.name: a.default for a in ATTRIBUTES}
    shapes: dict[str, Shape] = {"x": (2, 5, 9), "b": (2, 1, 9), "t": (1, 5, 9)}
    whole: dict[str, Shape] = dict.fromkeys(shapes, (4, 8, 16))
    for mode in MODES.values():
        attributes = {**defaults, "mode": mode.name, "axis": 1}
        if dtype in mode.dtypes and dtype in ("float32", "int32", "bool"):
            yield Boundary(mode.name, Arguments(_tensors(mode, dtype, shapes), attributes))
        if dtype in mode.dtypes and dtype == "float32":
            special = Arguments(_tensors(mode, dtype, whole), attributes)
            yield Boundary(f"{mode.name} of special values", special, special_values=True)
    plain = MODES["binary_select" if dtype == "bool" else "max"]
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        tensors = _tensors(plain, dtype, dict.fromkeys(("x", "b", "t"), shape))
        tensors["x"] = TensorType(dtype, shape, strides)
        yield Boundary(name, Arguments(tensors, {**defaults, "mode": plain.name}))


# --- Declaration ----------------------------------------------------------------------------------

pointwise_operation = declare(
    Primitive(
        name="pointwise_operation",
        family="pointwise",
        summary="An operation on each element, or on each pair or triple of elements of several tensors.",
        formula="y = f(x), f(x, b) or f(x, b, t), by mode:\n"
        + "\n".join(f"{row.name:21} {row.formula}" for row in MODES.values())
        + "\nσ(x) = 1/(1 + e^−x), Φ(x) = erfc(−x/√2)/2, φ(x) = e^(−x²/2)/√(2π)"
        "\nL = relu_lower_clip, U = relu_upper_clip, s = relu_lower_clip_slope",
        inputs=(
            TensorSpec("x", "*I", "first operand; of a mode …_bwd the gradient dy"),
            TensorSpec("b", "*I", "second operand; of a mode …_bwd the input x", optional=True),
            TensorSpec("t", "*I", "condition of binary_select", optional=True, values=BOOLEAN),
        ),
        outputs=(TensorSpec("y", "*I", "result"),),
        attributes=ATTRIBUTES,
        dtypes=DTYPES,
        constraints=_CONSTRAINTS,
        decisions=(
            "y has the dtype of x; comparisons give bool and gen_index int32. A cast is no part of this.",
            "alpha1 and alpha2 scale where the operation is continuous: of a rounded product, ⌊α1·x⌋ or a "
            "comparison may differ by 1 from one backend to the next.",
            "Any operand is broadcast in dims of extent 1, x and the three of binary_select included; ranks "
            "are equal. cuDNN broadcasts one of two operands, and none of three.",
            "Integer results that do not fit saturate, as −(−128) = 127 in int8; a remainder by 0 is NaN, "
            "which in an integer type is 0.",
            "min and max give NaN where an operand is NaN, cuDNN's only rule for these modes; which zero "
            "max(0, −0) is, is left open. A comparison with NaN is false, but cmp_neq true.",
            "pow, mod and atan2 treat NaN, Inf and zeros as the C functions do: NaN^0 = 1, x mod ±Inf = x.",
            "At kinks slopes are those of activation_backward: relu_bwd s at L and 0 at U, elu_bwd elu_alpha "
            "at 0. A slope of 0 gives 0 whatever dy is, NaN and Inf included; with s = 0, relu_fwd(−Inf) is L.",
            "Activations lose nothing in their tails, and take their limits at ±Inf; see activation_forward.",
            "gen_index does not read x. An index that int32 cannot hold saturates.",
            "In a bool tensor everything but 0 is true.",
        ),
        resolve=resolve,
        infer=_infer,
        flops=lambda p: math.prod(p.shape),
        reduction_length=lambda p: 1,
        domain=_draw,
        boundaries=_boundaries,
        consistent=_telling,
        may_copy=True,
        source="cuDNN graph API POINTWISE, cudnnPointwiseMode_t",
    )
)
