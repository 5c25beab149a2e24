"""Activation functions, forward and backward: cuDNN's seven, and those that networks use beside them.

``MODES`` is their only list: what each computes, its derivative by the input and, where the output tells
it as well, by the output. σ(x) = 1/(1 + e^−x) throughout.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Flag, Real, as_real, shown
from dnncanon.spec.constraints import finite, one_dtype, one_of
from dnncanon.spec.elementwise import (
    any_rank,
    boundary_shapes,
    drawn_shape,
    positive,
    same_shape,
    sprinkled,
    true_or_false,
)
from dnncanon.spec.errors import AttributeValueError
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

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
"""Klambauer, Unterthiner, Mayr and Hochreiter 2017: the fixed point of mean 0 and variance 1."""

GELU_TANH_CUBIC = 0.044715


@dataclass(frozen=True, slots=True)
class ActivationProblem:
    """One activation, forward or backward: the function and its parameters."""

    dtype: str
    shape: Shape
    mode: str
    ceiling: float
    negative_slope: float
    alpha: float
    beta: float
    propagate_nan: bool = True
    from_output: bool = False


Numbers = Callable[[ActivationProblem], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Mode:
    """One function: y of x, and dy/dx of x or, where that is possible, of y.

    ``range`` is the least and the largest y. ``edges`` are x that test data hold: where the slope jumps, and
    where the result is a subnormal float32.
    """

    name: str
    y: str
    derivative: str
    by_output: str = ""
    range: Numbers = lambda p: (-math.inf, math.inf)
    edges: Numbers = lambda p: (0.0, -95.0)


MODES = {
    row.name: row
    for row in (
        Mode("identity", "x", "1", "1"),
        Mode("relu", "max(x, 0)", "[x > 0]", "[y > 0]", lambda p: (0.0, math.inf)),
        Mode(
            "clipped_relu",
            "min(max(x, 0), ceiling)",
            "[0 < x < ceiling]",
            "[0 < y < ceiling]",
            lambda p: (0.0, p.ceiling),
            lambda p: (0.0, p.ceiling),
        ),
        Mode(
            "leaky_relu",
            "x > 0 ? x : negative_slope·x",
            "x > 0 ? 1 : negative_slope",
            "y > 0 ? 1 : negative_slope",
        ),
        Mode(
            "elu",
            "x > 0 ? x : alpha·(e^x − 1)",
            "x > 0 ? 1 : alpha·e^x",
            "y > 0 ? 1 : y + alpha",
            lambda p: (-p.alpha, math.inf),
        ),
        Mode(
            "selu",
            "s·(x > 0 ? x : a·(e^x − 1)), s = 1.0507…, a = 1.6732…",
            "s·(x > 0 ? 1 : a·e^x)",
            "y > 0 ? s : y + s·a",
            lambda p: (-SELU_SCALE * SELU_ALPHA, math.inf),
        ),
        Mode(
            "gelu",
            "x·Φ(x), Φ(x) = erfc(−x/√2)/2",
            "Φ(x) + x·φ(x), φ(x) = e^(−x²/2)/√(2π)",
            edges=lambda p: (0.0, -13.0),
        ),
        Mode(
            "gelu_tanh",
            "x·(1 + tanh u)/2 = x·σ(2u), u = √(2/π)·(x + 0.044715·x³)",
            "σ(2u) + 2x·σ(2u)·σ(−2u)·u′, u′ = √(2/π)·(1 + 0.134145·x²)",
        ),
        Mode("swish", "x·σ(beta·x)", "σ(beta·x)·(1 + beta·x·σ(−beta·x))"),
        Mode(
            "softplus",
            "ln(1 + e^(beta·x))/beta",
            "σ(beta·x)",
            "1 − e^(−beta·y)",
            lambda p: (0.0, math.inf),
        ),
        Mode("sigmoid", "σ(x)", "σ(x)·σ(−x)", "y·(1 − y)", lambda p: (0.0, 1.0)),
        Mode("tanh", "tanh(x)", "1/cosh²(x)", "1 − y²", lambda p: (-1.0, 1.0)),
        Mode(
            "mish",
            "x·tanh(s), s = ln(1 + e^x)",
            "tanh(s) + x·σ(x)/cosh²(s)",
        ),
        Mode(
            "hard_sigmoid",
            "min(max(x/6 + 1/2, 0), 1)",
            "[−3 < x < 3]/6",
            "[0 < y < 1]/6",
            lambda p: (0.0, 1.0),
            lambda p: (-3.0, 3.0),
        ),
        Mode(
            "hard_swish",
            "x·min(max(x/6 + 1/2, 0), 1)",
            "x <= −3 ? 0 : x >= 3 ? 1 : x/3 + 1/2",
            edges=lambda p: (-3.0, 3.0),
        ),
        Mode(
            "hard_tanh",
            "min(max(x, −1), 1)",
            "[−1 < x < 1]",
            "[−1 < y < 1]",
            lambda p: (-1.0, 1.0),
            lambda p: (-1.0, 1.0),
        ),
    )
}
NAMES = tuple(MODES)
FROM_OUTPUT = tuple(name for name, mode in MODES.items() if mode.by_output)
CLIPPING = ("relu", "clipped_relu")
"""The functions that a NaN can be clipped by: those that cuDNN's reluNanOpt is about."""

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math", "saturating")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math", "saturating")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math", "saturating")),
)
PARAMETERS = (
    Attribute("mode", Choice(NAMES), "The function.", REQUIRED),
    Attribute("ceiling", Real(), "Largest value of clipped_relu.", 6.0),
    Attribute("negative_slope", Real(), "Slope of leaky_relu for x <= 0.", 0.01),
    Attribute("alpha", Real(), "Factor α of elu: its limit is −α.", 1.0),
    Attribute("beta", Real(), "Factor β of the argument of swish and softplus.", 1.0),
)


# --- From arguments to a problem ------------------------------------------------------------------


def resolve(a: Arguments) -> ActivationProblem:
    """The activation that legal arguments describe."""
    first, given = next(iter(a.tensors.values())), a.attributes
    return ActivationProblem(
        dtype=first.dtype,
        shape=first.shape,
        mode=given["mode"],
        ceiling=as_real(given["ceiling"]),
        negative_slope=as_real(given["negative_slope"]),
        alpha=as_real(given["alpha"]),
        beta=as_real(given["beta"]),
        propagate_nan=given.get("propagate_nan", True),
        from_output=given.get("from_output", False),
    )


def _output(p: ActivationProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.shape),)


def _with_edges(p: ActivationProblem, data: dict[str, Any]) -> dict[str, Any]:
    """x at edges here and there; with ``from_output``, x holds what the function can put out."""
    mode, x = MODES[p.mode], data["x"]
    if not p.from_output:
        # Inf times a slope that underflows may be NaN; and an x of stride 0 meets many a dy.
        met = np.isfinite(data.get("dy", x)).all()
        return {**data, "x": sprinkled(x, mode.edges(p))} if met else data
    low, high = mode.range(p)
    ends = tuple(end for end in (low, high) if math.isfinite(end))
    return {**data, "x": sprinkled(np.clip(x, low, high), (0.0, *ends))}


# --- Constraints ----------------------------------------------------------------------------------


def _clips_nan() -> Constraint:
    text = (
        f"propagate_nan is True or False; False only where the mode clips: {', '.join(CLIPPING)}."
    )

    def check(a: Arguments) -> str | None:
        mode, value = a.attributes["mode"], a.attributes["propagate_nan"]
        if not isinstance(value, bool):
            return f"propagate_nan={shown(value)}; pass True or False"
        if value or mode in CLIPPING:
            return None
        return f"propagate_nan=False, but mode={mode!r} clips no NaN; pass propagate_nan=True"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(propagate_nan=2)
        yield a.with_attributes(propagate_nan=False, mode="tanh")

    return Constraint(text, AttributeValueError, check, violate)


def _output_tells() -> Constraint:
    text = (
        f"from_output=True needs a function whose output tells its slope: {', '.join(FROM_OUTPUT)}."
    )

    def check(a: Arguments) -> str | None:
        mode = a.attributes["mode"]
        if not a.attributes["from_output"] or mode in FROM_OUTPUT:
            return None
        return f"from_output=True with mode={mode!r}; pass the input x and from_output=False"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(from_output=True, mode="gelu")

    return Constraint(text, AttributeValueError, check, violate)


def _sign_survives() -> Constraint:
    text = "from_output=True needs negative_slope >= 0 (leaky_relu) and alpha >= 0 (elu)."
    names = {"leaky_relu": "negative_slope", "elu": "alpha"}

    def check(a: Arguments) -> str | None:
        name = names.get(a.attributes["mode"], "")
        if not a.attributes["from_output"] or not name or as_real(a.attributes[name]) >= 0.0:
            return None
        return (
            f"{name}={a.attributes[name]!r} makes outputs of both signs positive; "
            f"pass {name} >= 0, or the input x and from_output=False"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for mode, name in names.items():
            yield a.with_attributes(from_output=True, mode=mode, **{name: -0.5})

    return Constraint(text, AttributeValueError, check, violate)


_SCALARS = (
    one_of("mode", NAMES),
    positive("ceiling"),
    finite("negative_slope"),
    finite("alpha"),
    positive("beta"),
)


# --- The domain -----------------------------------------------------------------------------------


def _scalars(draw: Draw) -> dict[str, Any]:
    return {
        "ceiling": draw.choice((6.0, 1.0, 0.5)),
        "negative_slope": draw.choice((0.01, 0.25, -0.5, 0.0)),
        "alpha": draw.choice((1.0, 0.5, 1.75, -0.25)),
        "beta": draw.choice((1.0, 1.702, 0.25, 3.0)),
    }


def _draw_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    mode, clip = draw.choice(NAMES), draw.choice((True, False))
    attributes = {"mode": mode, **_scalars(draw), "propagate_nan": clip or mode not in CLIPPING}
    return Arguments({"x": TensorType(dtype, drawn_shape(draw, scale))}, attributes)


def _draw_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    mode, by_output = draw.choice(NAMES), draw.choice((False, True))
    attributes = {"mode": mode, **_scalars(draw), "from_output": by_output and mode in FROM_OUTPUT}
    if attributes["from_output"]:
        attributes |= {n: abs(attributes[n]) for n in ("negative_slope", "alpha")}
    tensor = TensorType(dtype, drawn_shape(draw, scale))
    return Arguments({"dy": tensor, "x": tensor}, attributes)


def _boundaries(*tensors: str, **flags: bool) -> Callable[[str], Iterator[Boundary]]:
    """Each function, on special values too, and shapes around the limits of implementations."""
    defaults = {a.name: a.default for a in PARAMETERS}

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        def made(mode: str, shape: Shape, strides: Shape | None) -> Arguments:
            types = {name: TensorType(dtype, shape) for name in tensors}
            types[tensors[0]] = TensorType(dtype, shape, strides)
            return Arguments(types, {**defaults, "mode": mode, **flags})

        for mode in NAMES if dtype == "float32" else ():
            yield Boundary(mode, made(mode, (2, 5, 9), None))
            special = made(mode, (4, 8, 16), None)
            yield Boundary(f"{mode} of special values", special, special_values=True)
        if "from_output" in flags and dtype == "float32":
            for mode in FROM_OUTPUT:
                arguments = made(mode, (2, 9, 5), None).with_attributes(from_output=True)
                yield Boundary(f"{mode} from its output", arguments)
        for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
            yield Boundary(name, made("leaky_relu", shape, strides))

    return of_dtype


# --- Declarations ---------------------------------------------------------------------------------


def _formula(text: Callable[[Mode], str]) -> str:
    return "\n".join(f"{row.name:13} {text(row)}" for row in MODES.values() if text(row))


_DECISIONS = (
    "There is no scaling of the result and no sum with the old one, cuDNN's alpha and beta: functions "
    "are pure.",
    "Any rank from 1 to 8 and any strides: cuDNN's 4 and 5 dims are special cases, and so is its rule "
    "that x and y have one layout.",
    "identity is a function of its own; cuDNN has it inside of a fused convolution only.",
    "beta is positive, for swish as well as for softplus: beta = 0 is the identity halved, and a negative "
    "beta a mirror image.",
    "Definitions are those that lose nothing in the tails: Φ(x) by erfc, 1 + tanh(u) as 2σ(2u). Who computes "
    "1 + erf, 1 + tanh or 1 − tanh² states the numerics class saturating.",
    "f(±Inf) and f′(±Inf) are limits: swish, gelu, gelu_tanh, mish and hard_swish of −Inf are 0, and slopes "
    "0 or 1. (Where libraries multiply −Inf by 0 they give NaN.)",
)

activation_forward = declare(
    Primitive(
        name="activation_forward",
        family="activation",
        summary="An activation function of each element.",
        formula="y = f(x), by mode:\n" + _formula(lambda row: row.y),
        inputs=(TensorSpec("x", "*I", "input"),),
        outputs=(TensorSpec("y", "*I", "output"),),
        attributes=(
            *PARAMETERS,
            Attribute(
                "propagate_nan",
                Flag(),
                "Whether relu and clipped_relu of NaN are NaN; otherwise they are 0.",
                True,
            ),
        ),
        dtypes=DTYPES,
        constraints=(any_rank("x"), one_dtype(DTYPES), *_SCALARS, _clips_nan()),
        decisions=(
            *_DECISIONS,
            "propagate_nan=False is cuDNN's NOT_PROPAGATE_NAN: max(NaN, 0) = 0, which the ceiling leaves "
            "as it is.",
        ),
        resolve=resolve,
        infer=_output,
        flops=lambda p: math.prod(p.shape),
        reduction_length=lambda p: 1,
        domain=_draw_forward,
        consistent=_with_edges,
        boundaries=_boundaries("x", propagate_nan=True),
        may_copy=True,
        source="cuDNN cudnnActivationForward; Hendrycks and Gimpel 2016 (gelu), Misra 2019 (mish), "
        "Howard et al. 2019 (hard_swish)",
    )
)

activation_backward = declare(
    Primitive(
        name="activation_backward",
        family="activation",
        summary="Gradient of an activation function by its input.",
        formula=(
            "dx = dy·f′(x), by mode:\n"
            + _formula(lambda row: row.derivative)
            + "\nor, with from_output=True, of y = f(x):\n"
            + _formula(lambda row: row.by_output)
        ),
        inputs=(
            TensorSpec("dy", "*I", "gradient of the loss by y"),
            TensorSpec("x", "*I", "input x of the function; with from_output its output y"),
        ),
        outputs=(TensorSpec("dx", "*I", "gradient of the loss by x"),),
        attributes=(
            *PARAMETERS,
            Attribute("from_output", Flag(), "Whether x holds the function's output.", False),
        ),
        dtypes=DTYPES,
        constraints=(
            any_rank("dy", "x"),
            one_dtype(DTYPES),
            *_SCALARS,
            true_or_false("from_output"),
            same_shape("x", "dy"),
            _output_tells(),
            _sign_survives(),
        ),
        decisions=(
            *_DECISIONS,
            "At a kink the slope is that of the flat piece, or of the left one: relu 0 at 0, clipped_relu 0 at "
            "both ends, leaky_relu negative_slope, elu alpha and selu s·a at 0, hard_sigmoid and hard_tanh "
            "0 at both ends, hard_swish 0 at −3 and 1 at 3.",
            "Where the slope is 0 by a comparison, dx is 0 whatever dy is, NaN and Inf included: dy is "
            "chosen, not multiplied.",
            "A comparison with NaN is false: where x is NaN relu, clipped_relu, hard_sigmoid and hard_tanh "
            "give 0, leaky_relu negative_slope·dy, and the others NaN. So propagate_nan has no part here.",
            "1 − y² and y·(1 − y) are taken of y as it is, rounded to its dtype; from x the slope is accurate "
            "in the tails as well.",
            "Whether an infinite dy times a slope that underflows is infinite or NaN is left open.",
        ),
        resolve=resolve,
        infer=_output,
        flops=lambda p: math.prod(p.shape),
        reduction_length=lambda p: 1,
        domain=_draw_backward,
        boundaries=_boundaries("dy", "x", from_output=False),
        consistent=_with_edges,
        may_copy=True,
        source="cuDNN cudnnActivationBackward",
    )
)
