"""Causal depthwise convolution in one dim, as state-space and long-convolution models have it: no output
depends on a later input.

Symbols: B batch, D channels, T steps, K taps of a channel's filter; P taps of a projection's.
"""

import math
from typing import Any

import numpy as np

from dnncanon.spec import causal_conv_domain as domain
from dnncanon.spec.attributes import Choice
from dnncanon.spec.causal_conv_problem import (
    ACTIVATIONS,
    PROJECTIONS,
    CausalConvProblem,
    GatedCausalConvProblem,
    infer_backward,
    infer_gated,
    infer_gated_backward,
    resolve,
    resolve_gated,
)
from dnncanon.spec.causal_conv_rules import (
    filters,
    filters_of_projections,
    one_per_channel,
    one_sequence_per_channel,
    sequences,
    triples_of_sequences,
)
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.conv_problem import MODES
from dnncanon.spec.dtypes import DTYPES as TYPES
from dnncanon.spec.elementwise import same_shape
from dnncanon.spec.primitive import Attribute, DTypeRow, Primitive, TensorSpec, declare
from dnncanon.spec.tensors import TensorType

__all__ = ["ACTIVATIONS", "CausalConvProblem", "GatedCausalConvProblem"]

DTYPES = (
    DTypeRow("float64", ("ieee", "fft")),
    *(
        DTypeRow(name, ("ieee", "ftz", "saturating", "fast_math", "fft"))
        for name in ("float32", "float16", "bfloat16")
    ),
)
_GATED_DTYPES = (
    DTypeRow("float64", ("ieee",)),
    *(DTypeRow(name, ("ieee", "ftz")) for name in ("float32", "float16", "bfloat16")),
)

_MODE = Attribute(
    "mode", Choice(MODES), "Whether the last tap, or the first, meets step t.", MODES[0]
)

# --- One convolution ------------------------------------------------------------------------------

_X = TensorSpec("x", "B D T", "sequences")
_W = TensorSpec("w", "D K", "a filter for each channel", special_values=False)
_BIAS = TensorSpec("bias", "D", "added to each channel; absent means 0", optional=True)
_ATTRIBUTES = (
    Attribute("activation", Choice(ACTIVATIONS), "What a becomes: itself, or a·σ(a).", "identity"),
    _MODE,
)
_RULES = (
    sequences(),
    one_dtype(DTYPES),
    filters("w"),
    one_per_channel("bias"),
    one_of("activation", ACTIVATIONS),
    one_of("mode", MODES),
)
_NOT_THERE = (
    "Steps before the first are not there: their products are left out. (cuDNN calls those steps 0; but 0 "
    "times an infinite weight would be NaN.)"
)
_DECISIONS = (
    _NOT_THERE,
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
        resolve=resolve,
        infer=lambda p: (TensorType(p.dtype, p.shape),),
        flops=lambda p: 2 * p.taps * math.prod(p.shape),
        reduction_length=lambda p: p.terms,
        domain=domain.domain("x"),
        boundaries=domain.boundaries("x"),
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
        resolve=resolve,
        infer=infer_backward,
        flops=lambda p: 6 * p.taps * math.prod(p.shape),
        reduction_length=lambda p: max(p.terms, p.shape[0] * p.shape[2]),
        domain=domain.domain("dy"),
        boundaries=domain.boundaries("dy"),
        source="cuDNN cudnnCausalConv1dBackward; calculus",
    )
)

# --- Gated ----------------------------------------------------------------------------------------

_SEQUENCES = TensorSpec("x", "B D 3 T", "three sequences for each channel")
_PROJECTION = TensorSpec(
    "projection", "D 3 P", "a short filter for each of them", special_values=False
)
_MIXER = TensorSpec("mixer", "D K", "a filter for each channel", special_values=False)
_SKIP = TensorSpec(
    "skip",
    "D",
    "factor of what goes past the mixer; absent means 0",
    optional=True,
    special_values=False,
)
_Y = TensorSpec("y", "B D T", "what the mixer and the skip make, before the gate")
_GATED_RULES = (
    triples_of_sequences(),
    one_dtype(_GATED_DTYPES),
    filters_of_projections(),
    filters("mixer"),
    one_per_channel("skip"),
    one_of("mode", MODES),
)
_GATED_DECISIONS = (
    "cuDNN says projection, elementwise gating, mixer, y + skip and y·projX1, but not what is multiplied by "
    "what. It is Hyena's recurrence of order two: projections are x1, x2 and v in this order, the product of "
    "the last two is mixed, and the first is the gate.",
    "skip is a factor of what is mixed, v, as the D of a state-space model and the bias of Hyena's filter are: "
    "y + skip·v. A bias that is added as it is would not be called a skip.",
    "Of projection 0 nothing goes through the mixer; it has a short filter of its own, like the others.",
    _NOT_THERE,
    "mode holds for all four filters; K and P may exceed T, and any is legal from 1 on. The layout is a "
    "matter of strides.",
    "Projections, their product and y before the gate are kept at float32 or better; y and gated are rounded "
    "once each, gated from the unrounded y.",
    "There is no activation: cuDNN's function has none.",
    "What Inf times a projection becomes that is so small that it may be rounded to 0 is left open.",
    "B, D and T may be 0; sums of nothing are 0.",
)
_PROJECTED = """\
p_i[b, d, t] = Σ_j x[b, d, i, t − j]·projection[d, i, j′] over 0 <= j < P with j <= t, for i = 0, 1, 2
v = p_1·p_2        j′ counts from the filter's last tap, or from its first with mode convolution
"""


def _nothing_subnormal_beside_infinity(
    p: GatedCausalConvProblem, data: dict[str, Any]
) -> dict[str, Any]:
    """0·Inf is NaN, so that an underflow would decide between Inf and NaN: subnormal numbers become 0."""
    if all(np.isfinite(array).all() for array in data.values()):
        return data
    least = TYPES[p.dtype].smallest_normal
    return {name: np.where(np.abs(a) < least, np.copysign(0.0, a), a) for name, a in data.items()}


gated_causal_conv_forward = declare(
    Primitive(
        name="gated_causal_conv_forward",
        family="causal_conv",
        summary="Three short causal convolutions, a long one of the product of two, gated by the third.",
        formula=_PROJECTED
        + """\
y[b, d, t] = Σ_j v[b, d, t − j]·mixer[d, j′] + skip[d]·v[b, d, t] over 0 <= j < K with j <= t
gated = p_0·y""",
        inputs=(_SEQUENCES, _PROJECTION, _MIXER, _SKIP),
        outputs=(_Y, TensorSpec("gated", "B D T", "y behind the gate")),
        attributes=(_MODE,),
        dtypes=_GATED_DTYPES,
        constraints=_GATED_RULES,
        decisions=_GATED_DECISIONS,
        resolve=resolve_gated,
        infer=infer_gated,
        flops=lambda p: (
            (2 * PROJECTIONS * p.projection.taps + 2 * p.mixer.taps + 4) * math.prod(p.shape)
        ),
        reduction_length=lambda p: p.terms,
        domain=domain.gated_domain(backward=False),
        boundaries=domain.gated_boundaries(backward=False),
        consistent=_nothing_subnormal_beside_infinity,
        source="cuDNN cudnnB2BCausalConv1dForward; Poli et al. 2023 (Hyena), §3",
    )
)

gated_causal_conv_backward = declare(
    Primitive(
        name="gated_causal_conv_backward",
        family="causal_conv",
        summary="Gradients of a gated causal convolution by its input, its filters and its skip.",
        formula=_PROJECTED
        + """\
g = dgated·p_0        dv[b, d, t] = Σ_j g[b, d, t + j]·mixer[d, j′] + skip[d]·g[b, d, t]
s_0 = dgated·y        s_1 = dv·p_2        s_2 = dv·p_1        dskip[d] = Σ_{b, t} g·v
dx[b, d, i, t] = Σ_j s_i[b, d, t + j]·projection[d, i, j′]
dprojection[d, i, j′] = Σ_{b, t >= j} s_i[b, d, t]·x[b, d, i, t − j]
dmixer[d, j′] = Σ_{b, t >= j} g[b, d, t]·v[b, d, t − j]""",
        inputs=(
            TensorSpec("dgated", "B D T", "gradient of the loss by gated"),
            _Y,
            _SEQUENCES,
            _PROJECTION,
            _MIXER,
            _SKIP,
        ),
        outputs=(
            TensorSpec("dx", "B D 3 T", "gradient of the loss by x"),
            TensorSpec("dprojection", "D 3 P", "gradient of the loss by projection"),
            TensorSpec("dmixer", "D K", "gradient of the loss by mixer"),
            TensorSpec(
                "dskip", "D", "gradient of the loss by skip, if there is one", optional=True
            ),
        ),
        attributes=(_MODE,),
        dtypes=_GATED_DTYPES,
        constraints=(
            *_GATED_RULES,
            one_sequence_per_channel("dgated"),
            one_sequence_per_channel("y"),
        ),
        decisions=(
            *_GATED_DECISIONS,
            "y is the forward pass's, which cuDNN saves for this; the loss depends on it through gated alone.",
            "Gradients are written, not added to what is there, and have the dtype of their tensors.",
        ),
        resolve=resolve_gated,
        infer=infer_gated_backward,
        flops=lambda p: (
            (6 * PROJECTIONS * p.projection.taps + 4 * p.mixer.taps + 9) * math.prod(p.shape)
        ),
        reduction_length=lambda p: max(p.terms, p.shape[0] * p.shape[2]),
        domain=domain.gated_domain(backward=True),
        boundaries=domain.gated_boundaries(backward=True),
        consistent=_nothing_subnormal_beside_infinity,
        source="cuDNN cudnnB2BCausalConv1dBackward; calculus",
    )
)
