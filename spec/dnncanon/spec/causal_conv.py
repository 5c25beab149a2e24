"""Causal depthwise convolution in one dim, as state-space and long-convolution models have it: no output
depends on a later input.

Symbols: B batch, D channels, T steps, K taps of a channel's filter.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dnncanon.spec.attributes import Choice
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.conv_problem import MODES
from dnncanon.spec.elementwise import same_shape
from dnncanon.spec.errors import ShapeError
from dnncanon.spec.primitive import (
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

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "saturating", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "saturating", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "saturating", "fast_math")),
)
ACTIVATIONS = ("identity", "silu")


@dataclass(frozen=True, slots=True)
class CausalConvProblem:
    """A filter of ``taps`` for each of ``shape``'s D channels, over its T steps; ``shape`` is (B, D, T)."""

    dtype: str
    shape: Shape
    taps: int
    activation: str
    mode: str
    has_bias: bool

    @property
    def flips(self) -> bool:
        """Whether the last tap, not the first, meets the present step."""
        return self.mode == "cross_correlation"

    @property
    def terms(self) -> int:
        """Products of the longest sum over taps."""
        return min(self.taps, self.shape[2])


def _resolve(a: Arguments) -> CausalConvProblem:
    x, w = a.tensors["x"], a.tensors["w"]
    return CausalConvProblem(
        dtype=x.dtype,
        shape=x.shape,
        taps=w.shape[1],
        activation=a.attributes["activation"],
        mode=a.attributes["mode"],
        has_bias="bias" in a.tensors,
    )


def _infer_backward(p: CausalConvProblem) -> tuple[TensorType | None, ...]:
    channels = p.shape[1]
    dbias = TensorType(p.dtype, (channels,)) if p.has_bias else None
    return TensorType(p.dtype, p.shape), TensorType(p.dtype, (channels, p.taps)), dbias


# --- Constraints ----------------------------------------------------------------------------------


def _sequences() -> Constraint:
    def check(a: Arguments) -> str | None:
        shape = a.tensors["x"].shape
        return None if len(shape) == 3 else f"x has shape {shape}; pass [B, D, T]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(*shape, 1), strides=None)
        yield a.with_tensor("x", shape=shape[1:], strides=None)

    return Constraint("x has the shape [B, D, T].", ShapeError, check, violate)


def _filters() -> Constraint:
    def check(a: Arguments) -> str | None:
        shape, channels = a.tensors["w"].shape, a.tensors["x"].shape[1]
        if len(shape) == 2 and shape[0] == channels and shape[1] >= 1:
            return None
        return f"w has shape {shape}, but x has D={channels}; pass [D, K], K >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        channels, taps = a.tensors["w"].shape
        for shape in ((channels + 1, taps), (channels, 0), (channels, 1, taps)):
            yield a.with_tensor("w", shape=shape, strides=None)

    return Constraint("w has the shape [D, K], K >= 1.", ShapeError, check, violate)


def _bias() -> Constraint:
    def check(a: Arguments) -> str | None:
        if "bias" not in a.tensors:
            return None
        shape, channels = a.tensors["bias"].shape, a.tensors["x"].shape[1]
        return None if shape == (channels,) else f"bias has shape {shape}; pass [D] = ({channels},)"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "bias" in a.tensors:
            (channels,) = a.tensors["bias"].shape
            yield a.with_tensor("bias", shape=(channels + 1,), strides=None)
            yield a.with_tensor("bias", shape=(channels, 1), strides=None)

    return Constraint("bias has the shape [D].", ShapeError, check, violate)


# --- The domain -----------------------------------------------------------------------------------

_TAPS = (1, 2, 3, 4, 4, 5, 7, 8, 16, 33)
_LONG = ("nothing", "nothing", "steps", "channels")


def _call(
    dtype: str, shape: Shape, taps: int, *, biased: bool, first: str, **attributes: str
) -> Arguments:
    """``first`` is "x", or "dy" for the gradients, which x then follows."""
    tensors = {"dy": TensorType(dtype, shape)} if first == "dy" else {}
    tensors |= {"x": TensorType(dtype, shape), "w": TensorType(dtype, (shape[1], taps))}
    if biased:
        tensors["bias"] = TensorType(dtype, (shape[1],))
    return Arguments(tensors, {"activation": "identity", "mode": MODES[0], **attributes})


def _domain(first: str) -> Callable[[Draw, Scale, str], Arguments]:
    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 6, 0))
        channels, steps = draw.integer(1, scale.channels), draw.integer(1, 2 * scale.extent)
        taps, biased = draw.choice(_TAPS), draw.choice((False, True))
        activation, mode = draw.choice(ACTIVATIONS), draw.choice(MODES)
        long, odd = draw.choice(_LONG), draw.integer(0, 15)
        batch = min(batch, scale.batch)
        # Backward: three sums over the taps.
        budget = scale.multiplications // (8 * taps)
        if long == "steps":
            steps = max(steps, min(40 * steps, budget // max(1, batch * channels)) - odd)
        if long == "channels":
            channels = max(channels, min(20 * channels, budget // max(1, batch * steps)) - odd)
        while batch * channels * steps > max(1, budget):
            channels, steps = (
                (max(1, channels // 2), steps) if channels > steps else (channels, steps // 2)
            )
        shape = (batch, channels, steps)
        return _call(
            dtype, shape, taps, biased=biased, first=first, activation=activation, mode=mode
        )

    return domain


def _all_boundaries() -> Iterator[tuple[str, Shape, int, Mapping[str, str]]]:
    """Name, shape, taps and attributes, the cheapest first."""
    silu = {"activation": "silu"}
    yield "empty batch", (0, 2, 5), 3, {}
    yield "no channels", (2, 0, 5), 3, {}
    yield "no steps", (2, 3, 0), 3, {}
    yield "one tap", (2, 3, 5), 1, silu
    yield "as many taps as steps", (2, 3, 7), 7, {}
    yield "more taps than steps", (2, 3, 4), 9, {"mode": "convolution"}
    for taps in (2, 3, 4, 8, 16, 32, 64, 128, 256):
        yield f"{taps} taps, as cuDNN has them", (1, 2, taps + 3), taps, silu
    for channels in (7, 8, 9, 31, 32, 33):
        yield f"{channels} channels", (1, channels, 9), 4, silu
    for steps in (127, 128, 129, 1023, 1024, 1025):
        yield f"{steps} steps", (1, 2, steps), 4, silu
    yield "65,537 steps", (1, 1, 2**16 + 1), 2, {}
    yield "65,537 channels", (1, 2**16 + 1, 2), 2, {}
    yield "batch 65,537", (2**16 + 1, 1, 2), 2, {}
    yield "more than 2^31 elements", (2, 2**14, 2**16 + 1), 4, {}


def _boundaries(first: str) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, taps, attributes in _all_boundaries():
            yield Boundary(name, _call(dtype, shape, taps, biased=True, first=first, **attributes))
        plain = _call(dtype, (2, 6, 9), 4, biased=True, first=first, activation="silu")
        layouts = {
            "channels adjacent, as cuDNN's NWH": (54, 1, 6),
            "one sequence for the batch": (0, 9, 1),
            "gaps": (400, 40, 3),
            "channels 2^29 apart": (6 * 2**29, 2**29, 1),
        }
        for name, strides in layouts.items():
            yield Boundary(name, plain.with_tensor("x", strides=strides))

    return of_dtype


# --- Declarations ---------------------------------------------------------------------------------

_X = TensorSpec("x", "B D T", "sequences")
_W = TensorSpec("w", "D K", "a filter for each channel", special_values=False)
_BIAS = TensorSpec("bias", "D", "added to each channel; absent means 0", optional=True)
_ATTRIBUTES = (
    Attribute("activation", Choice(ACTIVATIONS), "What a becomes: itself, or a·σ(a).", "identity"),
    Attribute("mode", Choice(MODES), "Whether the last tap, or the first, meets step t.", MODES[0]),
)
_RULES = (
    _sequences(),
    one_dtype(DTYPES),
    _filters(),
    _bias(),
    one_of("activation", ACTIVATIONS),
    one_of("mode", MODES),
)
_DECISIONS = (
    "Steps before the first are not there: their products are left out. (cuDNN calls those steps 0; but 0 "
    "times an infinite weight would be NaN.)",
    "mode is that of convolution: with cross_correlation the last tap meets step t, as in cuDNN's "
    "CausalConv1d, with convolution the first one, as in its FFTCausalConv1d and LongFFTCausalConv1d.",
    "K may exceed T: the taps beyond meet nothing.",
    "bias is optional, any K >= 1 is legal, and the layout is a matter of strides: cuDNN demands a bias, lists "
    "the K it has, and calls [B, T, D] in memory NWH.",
    "Sums are kept at float32 or better; a is not rounded before the activation.",
    "B, D and T may be 0; sums of nothing are 0.",
)
_SUM = """\
a[b, d, t] = bias[d] + Σ_j x[b, d, t − j]·w[d, j′] over 0 <= j < K with j <= t
j′ = K − 1 − j, or j with mode convolution"""

causal_conv_forward = declare(
    Primitive(
        name="causal_conv_forward",
        family="causal_conv",
        summary="Causal depthwise convolution of sequences, with bias and SiLU.",
        formula=_SUM + "\ny = a        or a·σ(a) with activation silu",
        inputs=(_X, _W, _BIAS),
        outputs=(TensorSpec("y", "B D T", "result"),),
        attributes=_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=_RULES,
        decisions=_DECISIONS,
        resolve=_resolve,
        infer=lambda p: (TensorType(p.dtype, p.shape),),
        flops=lambda p: 2 * p.taps * math.prod(p.shape),
        reduction_length=lambda p: p.terms,
        domain=_domain("x"),
        boundaries=_boundaries("x"),
        source="cuDNN cudnnCausalConv1dForward; Poli et al. 2023 (Hyena), Gu and Dao 2023 (Mamba)",
    )
)

causal_conv_backward = declare(
    Primitive(
        name="causal_conv_backward",
        family="causal_conv",
        summary="Gradients of a causal depthwise convolution by its input, its filters and its bias.",
        formula=_SUM
        + """
g = dy        or dy·σ(a)·(1 + a·(1 − σ(a))) with activation silu
dx[b, d, t] = Σ_j g[b, d, t + j]·w[d, j′] over 0 <= j < K with t + j < T
dw[d, j′] = Σ_{b, t >= j} g[b, d, t]·x[b, d, t − j]        dbias[d] = Σ_{b, t} g[b, d, t]""",
        inputs=(TensorSpec("dy", "B D T", "gradient of the loss by y"), _X, _W, _BIAS),
        outputs=(
            TensorSpec("dx", "B D T", "gradient of the loss by x"),
            TensorSpec("dw", "D K", "gradient of the loss by w"),
            TensorSpec(
                "dbias", "D", "gradient of the loss by bias, if there is one", optional=True
            ),
        ),
        attributes=_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(*_RULES, same_shape("dy", "x")),
        decisions=(
            *_DECISIONS,
            "Gradients are written, not added to what is there, and have the dtype of their tensors: cuDNN "
            "adds those of w and bias to float32, atomically.",
            "SiLU and its slope are the activation family's swish with beta 1, limits at ±Inf included.",
        ),
        resolve=_resolve,
        infer=_infer_backward,
        flops=lambda p: 6 * p.taps * math.prod(p.shape),
        reduction_length=lambda p: max(p.terms, p.shape[0] * p.shape[2]),
        domain=_domain("dy"),
        boundaries=_boundaries("dy"),
        source="cuDNN cudnnCausalConv1dBackward; calculus",
    )
)
