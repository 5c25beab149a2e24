"""Normalization: batch, layer, RMS, group and instance norm, and response normalization over windows.

A norm makes of each set of m elements x̂ = (x − μ)·r, with the mean μ and r = 1/√(σ² + ε), the variance σ²
being the biased one; r is what cuDNN calls inverse variance, and is called ``inv_std`` here. Symbols:
N batch, C channels, I spatial extents, G groups, D normalised dims.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dnncanon.spec import norm_domain as domain
from dnncanon.spec.attributes import Choice, Flag, Integer, Real
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.norm_problem import (
    ACTIVATION,
    ACTIVATIONS,
    AVERAGE_FACTOR,
    AXIS,
    BIAS_GRADIENT,
    EPSILON,
    MODE,
    MODES,
    SAVE_STATISTICS,
    STATISTICS,
    ZERO_CENTERED,
    BatchNormProblem,
    FinalizeProblem,
    FusedNormProblem,
    GenstatsProblem,
    NormProblem,
    WindowNormProblem,
    batch_parameter_shape,
    first_shape,
    group_statistics_shape,
    layer_parameter_shape,
    layer_statistics_shape,
    resolve_batch,
    resolve_divisive,
    resolve_finalize,
    resolve_genstats,
    resolve_group,
    resolve_instance,
    resolve_layer,
    resolve_lrn,
    resolve_rms,
)
from dnncanon.spec.norm_rules import (
    adaptive_keeps_the_batch,
    count_covers_shards,
    groups_divide_channels,
    integer_in,
    legal_axis,
    norm_dtypes,
    nothing_empty,
    rank_between,
    real_in,
    shaped,
    statistics_for_fixed,
    together,
    truth_value,
    y_for_relu,
)
from dnncanon.spec.primitive import (
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.values import POSITIVE

__all__ = [
    "BatchNormProblem",
    "FinalizeProblem",
    "FusedNormProblem",
    "GenstatsProblem",
    "NormProblem",
    "WindowNormProblem",
]

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math")),
)
_WIDE_DTYPES = DTYPES[:2]

# --- What several declarations share --------------------------------------------------------------

_DECISIONS = (
    "σ² is the mean of (x − μ)², the biased variance, not the mean of x² less μ²: with μ far larger than σ "
    "the difference of two large numbers has no correct digit, and may be negative. cuDNN does not say.",
    "A set has at least one element: the mean of none is an error, not NaN. Other zero sizes are legal.",
    "ε >= 0, cuDNN's limit since version 9. A set whose elements are all alike has x̂ = 0, so that y is the "
    "bias; with ε = 0 it is 0·Inf, NaN.",
    "x, y, z and their gradients have one dtype. scale, bias and their gradients are float32 as in cuDNN, "
    "or of that dtype, as frameworks keep them; statistics are float32. With float64 all are float64.",
    "There is no alpha and beta: functions are pure.",
    "Each result is rounded once; overflow gives ±Inf, subnormals are kept.",
    "NaN in x makes its set NaN and no other, and so does Inf: Inf − Inf is NaN.",
    "What Inf, NaN and subnormals do in scale, inv_std and variance, and backward in x, is left open: where a "
    "product is rounded to 0, Inf becomes NaN, and in which order factors meet is the backend's choice.",
)
_RELU_GRADIENT = (
    "The gradient of relu is 0 where y = 0, and where y is NaN: it passes where y > 0, as cuDNN's bit mask "
    "has it."
)
_BATCH_DECISIONS = (
    *_DECISIONS,
    "scale, bias and statistics have the shape (C,), or a sample's per activation; cuDNN's have "
    "extents 1 besides. SPATIAL_PERSISTENT is an algorithm for the same result.",
)
_LAYER_DECISIONS = (
    *_DECISIONS,
    "The normalised dims are the last ones, from ``axis`` on; cuDNN takes those in which scale is not of "
    "extent 1, which says nothing about a dim of extent 1.",
    "zero_centered_scale adds 1 to scale in float32, so that γ near 1 keeps its digits in a narrow scale; "
    "with it an absent scale is γ = 1 still. dscale is the same with and without.",
)

_X = TensorSpec("x", "N C *I", "input")
_DY = TensorSpec("dy", "N C *I", "gradient of the loss by y")
_X_THEN = replace(_X, special_values=False)
_Z = TensorSpec("z", "N C *I", "residual; absent means none", optional=True)
_Y_THEN = TensorSpec("y", "N C *I", "output of the forward pass, for relu", optional=True)
_DZ = TensorSpec("dz", "N C *I", "gradient of the loss by the residual", optional=True)
_RESIDUAL_GRADIENT = Attribute("residual_gradient", Flag(), "Whether dz is put out.", False)
_MEAN = TensorSpec("mean", "C", "mean of each channel")
_INV_STD = TensorSpec(
    "inv_std", "C", "1/√(σ² + ε) of each channel", special_values=False, values=POSITIVE
)
_SCALE = TensorSpec("scale", "C", "γ of each channel", special_values=False)
_BIAS = TensorSpec("bias", "C", "β of each channel")
_RUNNING = (
    TensorSpec("running_mean", "C", "running mean before the batch", optional=True),
    TensorSpec(
        "running_var", "C", "running variance before the batch", optional=True, values=POSITIVE
    ),
)
_NEW_RUNNING = (
    TensorSpec("new_running_mean", "C", "running mean with the batch", optional=True),
    TensorSpec("new_running_var", "C", "running variance with the batch", optional=True),
)


def _optional(tensor: TensorSpec, dims: str | None = None) -> TensorSpec:
    return replace(tensor, optional=True, dims=dims or tensor.dims)


def _channels(a: Arguments) -> Shape:
    return first_shape(a)[1:2]


def _sets_of_a_batch(a: Arguments) -> Shape:
    shape = first_shape(a)
    return shape[:1] if a.attributes.get("mode") == "per_activation" else (shape[0], *shape[2:])


_BATCH_RANK = rank_between(2, 5, "batch, channels and 0 to 3 spatial dims")
_BATCH_SETS = nothing_empty("batch, and space with mode spatial", _sets_of_a_batch)
_PARAMETERS = "(C,), or with mode per_activation (C, I…),"


def _batch_shapes(*names: str) -> tuple[Constraint, ...]:
    return tuple(shaped(name, _PARAMETERS, batch_parameter_shape) for name in names)


def _like_x(*names: str) -> tuple[Constraint, ...]:
    return tuple(shaped(name, "x.shape", first_shape) for name in names)


def _outputs_of(p: NormProblem, names: int) -> tuple[TensorType | None, ...]:
    """The statistics, if they are saved."""
    statistics = TensorType(p.statistics_dtype, p.statistics_shape)
    return (statistics if p.save_statistics else None,) * names


def _gradients_of(p: NormProblem) -> tuple[TensorType | None, ...]:
    """dx, dscale, dbias."""
    parameter = TensorType(p.parameter_dtype, p.parameter_shape)
    return (
        TensorType(p.dtype, p.x_shape),
        parameter if p.has_scale else None,
        parameter if p.bias_gradient else None,
    )


def _size(shape: Shape) -> int:
    return int(np.prod(shape, dtype=object))


def _longest(p: NormProblem) -> int:
    return max(p.count, p.shared)


# --- Batch norm -----------------------------------------------------------------------------------


def _infer_training(p: BatchNormProblem) -> tuple[TensorType | None, ...]:
    running = TensorType(p.norm.statistics_dtype, p.norm.statistics_shape)
    return (
        TensorType(p.norm.dtype, p.norm.x_shape),
        *_outputs_of(p.norm, 2),
        *((running if p.has_running else None,) * 2),
    )


batch_norm_forward_training = declare(
    Primitive(
        name="batch_norm_forward_training",
        family="norm",
        summary="Batch norm by the statistics of the batch, with running ones; residual and ReLU fused.",
        formula="""\
y = activation(scale·(x − μ)·r + bias + z)        μ = mean of x,  σ² = mean of (x − μ)²,  r = 1/√(σ² + ε)
over N and I for each channel, or over N for each element of a sample (per_activation);
new_running_mean = (1 − f)·running_mean + f·μ        f = exponential_average_factor
new_running_var  = (1 − f)·running_var + f·σ²·m/(m − 1)""",
        inputs=(_X, _SCALE, _BIAS, *_RUNNING, _Z),
        outputs=(
            TensorSpec("y", "N C *I", "output"),
            _optional(_MEAN),
            _optional(_INV_STD),
            *_NEW_RUNNING,
        ),
        attributes=(MODE, EPSILON, AVERAGE_FACTOR, ACTIVATION, SAVE_STATISTICS),
        dtypes=DTYPES,
        constraints=(
            _BATCH_RANK,
            norm_dtypes(DTYPES, ("x", "z"), ("scale", "bias"), ("running_mean", "running_var")),
            one_of("mode", MODES),
            real_in("epsilon", 0.0),
            real_in("exponential_average_factor", 0.0, 1.0),
            one_of("activation", ACTIVATIONS),
            truth_value("save_statistics"),
            together("running_mean", "running_var"),
            _BATCH_SETS,
            *_batch_shapes("scale", "bias", "running_mean", "running_var"),
            *_like_x("z"),
        ),
        decisions=(
            *_BATCH_DECISIONS,
            "Running statistics are put out, not updated in place.",
            "The running variance takes the unbiased estimate, as cuDNN's. Of a single element there is none: "
            "with m = 1 it takes the biased one, 0, where cuDNN's is NaN.",
            "relu keeps NaN.",
            "f is in [0, 1]; cuDNN sets no limit, but beyond it is no average.",
        ),
        resolve=resolve_batch,
        infer=_infer_training,
        flops=lambda p: 9 * _size(p.norm.x_shape),
        reduction_length=lambda p: p.norm.count,
        domain=domain.batch_forward_training,
        boundaries=domain.boundaries(domain.at_batch_training),
        source="cuDNN cudnnBatchNormalizationForwardTraining(Ex); graph API NORM_FORWARD, BATCH_NORM",
    )
)

batch_norm_inference = declare(
    Primitive(
        name="batch_norm_inference",
        family="norm",
        summary="Batch norm by given statistics; residual and ReLU fused.",
        formula="y = activation(scale·(x − mean)/√(variance + ε) + bias + z)",
        inputs=(
            _X,
            _SCALE,
            _BIAS,
            _MEAN,
            TensorSpec(
                "variance", "C", "variance of each channel", special_values=False, values=POSITIVE
            ),
            _Z,
        ),
        outputs=(TensorSpec("y", "N C *I", "output"),),
        attributes=(MODE, EPSILON, ACTIVATION),
        dtypes=DTYPES,
        constraints=(
            _BATCH_RANK,
            norm_dtypes(DTYPES, ("x", "z"), ("scale", "bias"), ("mean", "variance")),
            one_of("mode", MODES),
            real_in("epsilon", 0.0),
            one_of("activation", ACTIVATIONS),
            *_batch_shapes("scale", "bias", "mean", "variance"),
            *_like_x("z"),
        ),
        decisions=(
            *_BATCH_DECISIONS[2:],
            "The variance is given, as to cuDNN's function; its graph node takes r.",
            "A negative variance + ε gives NaN, zero gives Inf.",
            "relu keeps NaN.",
        ),
        resolve=resolve_batch,
        infer=lambda p: (TensorType(p.norm.dtype, p.norm.x_shape),),
        flops=lambda p: 6 * _size(p.norm.x_shape),
        reduction_length=lambda p: 4,
        domain=domain.batch_inference,
        boundaries=domain.boundaries(domain.at_batch_inference, empty=True),
        source="cuDNN cudnnBatchNormalizationForwardInference; graph API NORM_FORWARD, inference",
    )
)


def _infer_batch_backward(p: BatchNormProblem) -> tuple[TensorType | None, ...]:
    dz = TensorType(p.norm.dtype, p.norm.x_shape) if p.has_residual else None
    return (*_gradients_of(p.norm), dz)


batch_norm_backward = declare(
    Primitive(
        name="batch_norm_backward",
        family="norm",
        summary="Gradient of batch norm by x, scale, bias and the residual, ReLU included.",
        formula="""\
x̂ = (x − mean)·inv_std        g = dy, or with relu dy where y > 0 and else 0
dbias = Σ g        dscale = Σ g·x̂        dz = g
dx = scale·inv_std·(g − dbias/m − x̂·dscale/m);    statistics="fixed": dx = scale·inv_std·g
with the sums over N and I for each channel, or over N (per_activation).""",
        inputs=(
            _DY,
            _X_THEN,
            _SCALE,
            _optional(_MEAN),
            _optional(_INV_STD),
            _Y_THEN,
        ),
        outputs=(
            TensorSpec("dx", "N C *I", "gradient of the loss by x"),
            TensorSpec("dscale", "C", "gradient of the loss by scale"),
            TensorSpec("dbias", "C", "gradient of the loss by bias"),
            _DZ,
        ),
        attributes=(
            MODE,
            EPSILON,
            ACTIVATION,
            Attribute(
                "statistics",
                Choice(STATISTICS),
                "batch: they depend on x, as in training; fixed: they do not, as in inference.",
                STATISTICS[0],
            ),
            _RESIDUAL_GRADIENT,
        ),
        dtypes=DTYPES,
        constraints=(
            _BATCH_RANK,
            norm_dtypes(DTYPES, ("dy", "x", "y"), ("scale",), ("mean", "inv_std")),
            one_of("mode", MODES),
            real_in("epsilon", 0.0),
            one_of("activation", ACTIVATIONS),
            one_of("statistics", STATISTICS),
            truth_value("residual_gradient"),
            together("mean", "inv_std"),
            y_for_relu(),
            statistics_for_fixed(),
            _BATCH_SETS,
            shaped("x", "dy.shape", first_shape),
            *_batch_shapes("scale", "mean", "inv_std"),
            shaped("y", "dy.shape", first_shape),
        ),
        decisions=(
            *_BATCH_DECISIONS,
            "mean and inv_std are those of the forward pass; without them they are computed from x and ε, "
            "which is not used otherwise.",
            _RELU_GRADIENT,
            "cuDNN has no backward pass for inference; statistics='fixed' is that, for frozen batch norms.",
        ),
        resolve=resolve_batch,
        infer=_infer_batch_backward,
        flops=lambda p: 14 * _size(p.norm.x_shape),
        reduction_length=lambda p: p.norm.count,
        domain=domain.batch_backward,
        boundaries=domain.boundaries(domain.at_batch_backward),
        source="cuDNN cudnnBatchNormalizationBackward(Ex); graph API NORM_BACKWARD, DReluForkDNorm",
    )
)

# --- Batch norm in parts, for several devices -----------------------------------------------------

_SHIFT = TensorSpec("shift", "C", "K, near the mean of each channel; absent means 0", optional=True)
_SYNCHRONISATION = (
    "Over several devices a batch norm is: batch_norm_genstats of each shard; the sums of all shards, stacked "
    "or added up, to batch_norm_finalize with the count of all; batch_norm_inference by its statistics, or "
    "eq_scale·x + eq_bias. That is the sum of the parts, so there is no primitive of its own for it.",
    "shift, which cuDNN does not have, is the same for all shards, such as the running mean. Without it, "
    "Σ x²/m − μ² cancels where μ is far larger than σ.",
)

batch_norm_genstats = declare(
    Primitive(
        name="batch_norm_genstats",
        family="norm",
        summary="Sums of x and of its squares for each channel, of a batch or a shard of it.",
        formula="sum[c] = Σ_{n, i} (x[n, c, i] − K[c])        sq_sum[c] = Σ_{n, i} (x[n, c, i] − K[c])²",
        inputs=(_X, _SHIFT),
        outputs=(
            TensorSpec("sum", "C", "sum of each channel"),
            TensorSpec("sq_sum", "C", "sum of squares of each channel"),
        ),
        attributes=(),
        dtypes=DTYPES,
        constraints=(
            _BATCH_RANK,
            norm_dtypes(DTYPES, ("x",), (), ("shift",)),
            shaped("shift", "(C,)", _channels),
        ),
        decisions=(
            *_SYNCHRONISATION,
            "Sums of nothing are 0: a shard may be empty.",
            *_DECISIONS[3:6],
        ),
        resolve=resolve_genstats,
        infer=lambda p: (TensorType(p.statistics_dtype, p.x_shape[1:2]),) * 2,
        flops=lambda p: 4 * _size(p.x_shape),
        reduction_length=lambda p: p.count,
        domain=domain.genstats,
        boundaries=domain.boundaries(domain.at_genstats, empty=True),
        source="cuDNN graph API GEN_STATS (SUM_SQSUM)",
    )
)


def _sums_of_one_sample(p: FinalizeProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Sums of squares that are no smaller than the squares of the sums allow."""
    with np.errstate(all="ignore"):
        least = np.square(data["sum"]) * (p.shards / p.count)
        return {**data, "sq_sum": data["sq_sum"] + least}


def _infer_finalize(p: FinalizeProblem) -> tuple[TensorType | None, ...]:
    one = TensorType(p.dtype, (p.channels,))
    return (one,) * 4 + (one if p.has_running else None,) * 2


batch_norm_finalize = declare(
    Primitive(
        name="batch_norm_finalize",
        family="norm",
        summary="From the sums of all shards to the statistics of the batch and an equivalent scale and bias.",
        formula="""\
d = Σ_s sum[s]/m        μ = K + d        σ² = max(Σ_s sq_sum[s]/m − d², 0)        r = 1/√(σ² + ε)
mean = μ        inv_std = r        eq_scale = scale·r        eq_bias = bias − μ·scale·r
new_running_mean = (1 − f)·running_mean + f·μ
new_running_var  = (1 − f)·running_var + f·σ²·m/(m − 1)        m = count""",
        inputs=(
            TensorSpec("sum", "S C", "sum of each channel, of each shard"),
            TensorSpec("sq_sum", "S C", "sum of squares of each channel", values=POSITIVE),
            _SCALE,
            _BIAS,
            *_RUNNING,
            _SHIFT,
        ),
        outputs=(
            _MEAN,
            _INV_STD,
            TensorSpec("eq_scale", "C", "factor of x"),
            TensorSpec("eq_bias", "C", "summand"),
            *_NEW_RUNNING,
        ),
        attributes=(
            Attribute("count", Integer(), "Elements of a channel in all shards, m."),
            EPSILON,
            AVERAGE_FACTOR,
        ),
        dtypes=_WIDE_DTYPES,
        constraints=(
            rank_between(2, 2, "shards, channels"),
            one_dtype(_WIDE_DTYPES),
            integer_in("count", 1),
            real_in("epsilon", 0.0),
            real_in("exponential_average_factor", 0.0, 1.0),
            together("running_mean", "running_var"),
            shaped("sq_sum", "sum.shape", first_shape),
            count_covers_shards(),
            *(
                shaped(name, "(C,)", _channels)
                for name in ("scale", "bias", "running_mean", "running_var", "shift")
            ),
        ),
        decisions=(
            *_SYNCHRONISATION,
            "A variance that rounding has made negative counts as 0; NaN stays NaN.",
            "With m = 1 the running variance takes the biased variance: see batch_norm_forward_training.",
            *_DECISIONS[4:6],
        ),
        resolve=resolve_finalize,
        infer=_infer_finalize,
        flops=lambda p: (2 * p.shards + 16) * p.channels,
        reduction_length=lambda p: p.shards,
        domain=domain.finalize,
        boundaries=domain.boundaries(domain.at_finalize),
        consistent=_sums_of_one_sample,
        source="cuDNN graph API BN_FINALIZE; cudnnFusedOps BN_FINALIZE_STATISTICS_TRAINING",
    )
)

batch_norm_backward_weights = declare(
    Primitive(
        name="batch_norm_backward_weights",
        family="norm",
        summary="Gradients of batch norm by scale and bias, and the coefficients of the one by x.",
        formula="""\
x̂ = (x − mean)·inv_std        dbias = Σ dy        dscale = Σ dy·x̂
dx = dy_factor·dy + x_factor·x + offset with
dy_factor = scale·inv_std        x_factor = −scale·inv_std²·dscale/m
offset = −dy_factor·dbias/m − x_factor·mean""",
        inputs=(_DY, _X_THEN, _SCALE, _MEAN, _INV_STD),
        outputs=(
            TensorSpec("dscale", "C", "gradient of the loss by scale"),
            TensorSpec("dbias", "C", "gradient of the loss by bias"),
            TensorSpec("dy_factor", "C", "A in dx = A·dy + B·x + C"),
            TensorSpec("x_factor", "C", "B"),
            TensorSpec("offset", "C", "C"),
        ),
        attributes=(),
        dtypes=DTYPES,
        constraints=(
            _BATCH_RANK,
            norm_dtypes(DTYPES, ("dy", "x"), ("scale",), ("mean", "inv_std")),
            nothing_empty("batch and space", _sets_of_a_batch),
            shaped("x", "dy.shape", first_shape),
            *(shaped(name, "(C,)", _channels) for name in ("scale", "mean", "inv_std")),
        ),
        decisions=(
            *_BATCH_DECISIONS[1:],
            "The coefficients are statistics, float32. dx from them cancels where the mean is far larger than "
            "the spread: batch_norm_backward is the accurate way.",
        ),
        resolve=resolve_batch,
        infer=lambda p: (
            *(TensorType(p.norm.parameter_dtype, p.norm.parameter_shape),) * 2,
            *(TensorType(p.norm.statistics_dtype, p.norm.statistics_shape),) * 3,
        ),
        flops=lambda p: 6 * _size(p.norm.x_shape),
        reduction_length=lambda p: p.norm.count,
        domain=domain.backward_weights,
        boundaries=domain.boundaries(domain.at_backward_weights),
        source="cuDNN graph API BN_BWD_WEIGHTS",
    )
)

# --- Layer, RMS, group and instance norm ----------------------------------------------------------

_LAYER_X = TensorSpec("x", "*R *D", "input; D are the dims from axis on, the normalised ones")
_LAYER_X_THEN = replace(_LAYER_X, special_values=False)
_LAYER_DY = TensorSpec("dy", "*R *D", "gradient of the loss by y")
_GAMMA = TensorSpec(
    "scale", "*D", "γ, or γ − 1; absent means γ = 1", optional=True, special_values=False
)
_BETA = TensorSpec("bias", "*D", "β; absent means 0", optional=True)
_ADAPTIVE = Attribute(
    "adaptive", Flag(), "Whether each sample has a scale and bias of its own, (N, D…).", False
)
_LAYER_RANK = rank_between(1, 8, "any dims, and the normalised ones behind them")
_GROUP_RANK = rank_between(3, 5, "batch, channels and 1 to 3 spatial dims")


def _normalised_dims(a: Arguments) -> Shape:
    shape = first_shape(a)
    return shape[len(layer_statistics_shape(a)) :]


def _channels_of_a_group(a: Arguments) -> Shape:
    shape, (_, groups) = first_shape(a), group_statistics_shape(a)
    return (shape[1] // max(1, groups), *shape[2:])


def _layer_attributes(*, adaptive: bool, backward: bool) -> tuple[Attribute, ...]:
    last = BIAS_GRADIENT if backward else SAVE_STATISTICS
    return (AXIS, EPSILON, ZERO_CENTERED, *((_ADAPTIVE,) if adaptive else ()), last)


def _layer_rules(*, adaptive: bool, backward: bool, statistics: tuple[str, ...]) -> Any:
    data = ("dy", "x") if backward else ("x",)
    parameters = ("scale",) if backward else ("scale", "bias")
    dims = "x.shape[axis:], behind the batch if adaptive," if adaptive else "x.shape[axis:]"
    return (
        _LAYER_RANK,
        norm_dtypes(DTYPES, data, parameters, statistics),
        legal_axis(),
        real_in("epsilon", 0.0),
        truth_value("zero_centered_scale"),
        *((truth_value("adaptive"), adaptive_keeps_the_batch()) if adaptive else ()),
        truth_value("bias_gradient" if backward else "save_statistics"),
        *((together("mean", "inv_std"),) if len(statistics) == 2 else ()),
        nothing_empty("the dims from axis on", _normalised_dims),
        *((shaped("x", "dy.shape", first_shape),) if backward else ()),
        *(shaped(name, dims, layer_parameter_shape) for name in parameters),
        *(shaped(name, "x.shape[:axis]", layer_statistics_shape) for name in statistics),
    )


def _layer_outputs(*statistics: str) -> tuple[TensorSpec, ...]:
    docs = {"mean": "mean of each row", "inv_std": "1/√(σ² + ε)", "inv_rms": "1/√(mean of x² + ε)"}
    return (
        TensorSpec("y", "*R *D", "output"),
        *(TensorSpec(name, "*R", docs[name], optional=True) for name in statistics),
    )


_LAYER_GRADIENTS = (
    TensorSpec("dx", "*R *D", "gradient of the loss by x"),
    TensorSpec("dscale", "*D", "gradient of the loss by scale", optional=True),
    TensorSpec("dbias", "*D", "gradient of the loss by bias", optional=True),
)
_SAVED = (
    _optional(_MEAN, "*R"),
    _optional(_INV_STD, "*R"),
)
_SAVED_OR_NOT = (
    "The statistics are those of the forward pass; without them they are computed from x and ε, which is not "
    "used otherwise. dscale is there if scale is given, dbias if bias_gradient asks for it."
)

layer_norm_forward = declare(
    Primitive(
        name="layer_norm_forward",
        family="norm",
        summary="Layer norm over the last dims, also with a scale and bias for each sample (adaptive).",
        formula="""\
y = γ·(x − μ)·r + bias        μ = mean of x,  σ² = mean of (x − μ)²,  r = 1/√(σ² + ε)
over the dims from axis on; γ = scale, 1 + scale with zero_centered_scale, or 1.""",
        inputs=(_LAYER_X, _GAMMA, _BETA),
        outputs=_layer_outputs("mean", "inv_std"),
        attributes=_layer_attributes(adaptive=True, backward=False),
        dtypes=DTYPES,
        constraints=_layer_rules(adaptive=True, backward=False, statistics=()),
        decisions=_LAYER_DECISIONS,
        resolve=resolve_layer,
        infer=lambda p: (TensorType(p.dtype, p.x_shape), *_outputs_of(p, 2)),
        flops=lambda p: 8 * _size(p.x_shape),
        reduction_length=lambda p: p.count,
        domain=domain.layer_forward,
        boundaries=domain.boundaries(domain.at_layer_forward, empty=True),
        source="cuDNN graph API NORM_FORWARD, LAYER_NORM and ADA_LAYER_NORM; Ba, Kiros and Hinton 2016",
    )
)

layer_norm_backward = declare(
    Primitive(
        name="layer_norm_backward",
        family="norm",
        summary="Gradient of layer norm by x, scale and bias.",
        formula="""\
x̂ = (x − mean)·inv_std        g = γ·dy
dx = inv_std·(g − mean of g − x̂·(mean of g·x̂)) over the dims from axis on
dscale = Σ dy·x̂        dbias = Σ dy over the other dims, those of one sample if adaptive""",
        inputs=(_LAYER_DY, _LAYER_X_THEN, _GAMMA, *_SAVED),
        outputs=_LAYER_GRADIENTS,
        attributes=_layer_attributes(adaptive=True, backward=True),
        dtypes=DTYPES,
        constraints=_layer_rules(adaptive=True, backward=True, statistics=("mean", "inv_std")),
        decisions=(*_LAYER_DECISIONS, _SAVED_OR_NOT),
        resolve=resolve_layer,
        infer=_gradients_of,
        flops=lambda p: 14 * _size(p.x_shape),
        reduction_length=_longest,
        domain=domain.layer_backward,
        boundaries=domain.boundaries(domain.at_layer_backward, empty=True),
        source="cuDNN graph API NORM_BACKWARD, LAYER_NORM and ADA_LAYER_NORM",
    )
)

rms_norm_forward = declare(
    Primitive(
        name="rms_norm_forward",
        family="norm",
        summary="RMS norm over the last dims.",
        formula="""\
y = γ·x·q + bias        q = 1/√(mean of x² + ε)
over the dims from axis on; γ = scale, 1 + scale with zero_centered_scale, or 1.""",
        inputs=(_LAYER_X, _GAMMA, _BETA),
        outputs=_layer_outputs("inv_rms"),
        attributes=_layer_attributes(adaptive=False, backward=False),
        dtypes=DTYPES,
        constraints=_layer_rules(adaptive=False, backward=False, statistics=()),
        decisions=(
            *_LAYER_DECISIONS[1:6],
            "NaN in x makes its set NaN and no other. Inf makes q = 0, so that finite elements become their "
            "bias, and Inf itself NaN.",
            *_LAYER_DECISIONS[7:],
        ),
        resolve=resolve_rms,
        infer=lambda p: (TensorType(p.dtype, p.x_shape), *_outputs_of(p, 1)),
        flops=lambda p: 5 * _size(p.x_shape),
        reduction_length=lambda p: p.count,
        domain=domain.rms_forward,
        boundaries=domain.boundaries(domain.at_rms_forward, empty=True),
        source="cuDNN graph API NORM_FORWARD, RMS_NORM; Zhang and Sennrich 2019",
    )
)

rms_norm_backward = declare(
    Primitive(
        name="rms_norm_backward",
        family="norm",
        summary="Gradient of RMS norm by x, scale and bias.",
        formula="""\
x̂ = x·inv_rms        g = γ·dy
dx = inv_rms·(g − x̂·(mean of g·x̂)) over the dims from axis on
dscale = Σ dy·x̂        dbias = Σ dy over the other dims""",
        inputs=(
            _LAYER_DY,
            _LAYER_X_THEN,
            _GAMMA,
            TensorSpec(
                "inv_rms",
                "*R",
                "1/√(mean of x² + ε)",
                optional=True,
                special_values=False,
                values=POSITIVE,
            ),
        ),
        outputs=_LAYER_GRADIENTS,
        attributes=_layer_attributes(adaptive=False, backward=True),
        dtypes=DTYPES,
        constraints=_layer_rules(adaptive=False, backward=True, statistics=("inv_rms",)),
        decisions=(*_LAYER_DECISIONS[1:], _SAVED_OR_NOT),
        resolve=resolve_rms,
        infer=_gradients_of,
        flops=lambda p: 11 * _size(p.x_shape),
        reduction_length=_longest,
        domain=domain.rms_backward,
        boundaries=domain.boundaries(domain.at_rms_backward, empty=True),
        source="cuDNN graph API NORM_BACKWARD, RMS_NORM",
    )
)

_GROUP_SCALE = replace(_GAMMA, dims="C", doc="γ of each channel; absent means 1")
_GROUP_BIAS = replace(_BETA, dims="C", doc="β of each channel; absent means 0")
_GROUPS = Attribute("groups", Integer(), "Groups G of neighbouring channels.")


def _group_rules(*, grouped: bool, backward: bool) -> tuple[Constraint, ...]:
    fused = () if grouped else ("y",) if backward else ("z",)
    data = (*(("dy", "x") if backward else ("x",)), *fused)
    parameters = ("scale",) if backward else ("scale", "bias")
    statistics = ("mean", "inv_std") if backward else ()
    return (
        _GROUP_RANK,
        norm_dtypes(DTYPES, data, parameters, statistics),
        *((integer_in("groups", 1), groups_divide_channels()) if grouped else ()),
        real_in("epsilon", 0.0),
        truth_value("bias_gradient" if backward else "save_statistics"),
        *((together("mean", "inv_std"),) if backward else ()),
        nothing_empty("the channels of a group and space", _channels_of_a_group)
        if grouped
        else nothing_empty("space", lambda a: first_shape(a)[2:]),
        *((shaped("x", "dy.shape", first_shape),) if backward else ()),
        *(shaped(name, "(C,)", _channels) for name in parameters),
        *(
            shaped(name, "(N, G)" if grouped else "(N, C)", group_statistics_shape)
            for name in statistics
        ),
    )


_FORWARD_FUSION = (one_of("activation", ACTIVATIONS), *_like_x("z"))
_BACKWARD_FUSION = (
    one_of("activation", ACTIVATIONS),
    truth_value("residual_gradient"),
    y_for_relu(),
    shaped("y", "dy.shape", first_shape),
)


def _group_outputs(sets: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("y", "N C *I", "output"),
        replace(_optional(_MEAN, sets), doc="mean of each set"),
        replace(_optional(_INV_STD, sets), doc="1/√(σ² + ε) of each set"),
    )


_GROUP_GRADIENTS = (
    TensorSpec("dx", "N C *I", "gradient of the loss by x"),
    TensorSpec("dscale", "C", "gradient of the loss by scale", optional=True),
    TensorSpec("dbias", "C", "gradient of the loss by bias", optional=True),
)
_FORWARD_FORMULA = """\
y = scale·(x − μ)·r + bias        μ = mean of x,  σ² = mean of (x − μ)²,  r = 1/√(σ² + ε)
"""
_FUSED_FORWARD_FORMULA = """\
y = activation(scale·(x − μ)·r + bias + z)        μ = mean of x,  σ² = mean of (x − μ)²,  r = 1/√(σ² + ε)
"""
_BACKWARD_FORMULA = """\
x̂ = (x − mean)·inv_std        g = scale·dy        dscale = Σ dy·x̂        dbias = Σ dy over N and I
dx = inv_std·(g − mean of g − x̂·(mean of g·x̂))
"""
_FUSED_BACKWARD_FORMULA = """\
x̂ = (x − mean)·inv_std        dz = dy, or with relu dy where y > 0 and else 0
g = scale·dz        dscale = Σ dz·x̂        dbias = Σ dz over N and I
dx = inv_std·(g − mean of g − x̂·(mean of g·x̂))
"""


def _group_norm(
    name: str,
    summary: str,
    sets: str,
    *,
    grouped: bool,
    backward: bool,
    drawn: Callable[..., Arguments],
    at: Callable[..., Arguments],
    source: str,
) -> Primitive[NormProblem]:
    """One of four declarations that differ in direction and in whether there are groups."""
    saved = tuple(replace(t, dims="N G" if grouped else "N C") for t in _SAVED)
    last = BIAS_GRADIENT if backward else SAVE_STATISTICS
    forward_outputs = _group_outputs("N G" if grouped else "N C")
    return Primitive(
        name=name,
        family="norm",
        summary=summary,
        formula=(_BACKWARD_FORMULA if backward else _FORWARD_FORMULA) + sets,
        inputs=(_DY, _X_THEN, _GROUP_SCALE, *saved)
        if backward
        else (_X, _GROUP_SCALE, _GROUP_BIAS),
        outputs=_GROUP_GRADIENTS if backward else forward_outputs,
        attributes=(*((_GROUPS,) if grouped else ()), EPSILON, last),
        dtypes=DTYPES,
        constraints=_group_rules(grouped=grouped, backward=backward),
        decisions=(*_DECISIONS, _SAVED_OR_NOT) if backward else _DECISIONS,
        resolve=resolve_group,
        infer=_gradients_of
        if backward
        else lambda p: (TensorType(p.dtype, p.x_shape), *_outputs_of(p, 2)),
        flops=lambda p: (14 if backward else 8) * _size(p.x_shape),
        reduction_length=_longest if backward else lambda p: p.count,
        domain=drawn,
        boundaries=domain.boundaries(at, empty=True),
        source=source,
    )


def _fused(
    norm: Primitive[NormProblem], formula: str, *, backward: bool
) -> Primitive[FusedNormProblem]:
    """The norm with a residual and a ReLU behind it, which cuDNN fuses to batch and instance norm alone."""
    made: Primitive[Any] = norm
    inner_infer, inner_flops, inner_length = norm.infer, norm.flops, norm.reduction_length

    def infer(p: FusedNormProblem) -> tuple[TensorType | None, ...]:
        dz = TensorType(p.norm.dtype, p.norm.x_shape) if p.has_residual else None
        return (*inner_infer(p.norm), *((dz,) if backward else ()))

    return replace(
        made,
        formula=formula + _OVER_SPACE,
        inputs=(*norm.inputs, _Y_THEN if backward else _Z),
        outputs=(*norm.outputs, *((_DZ,) if backward else ())),
        attributes=(*norm.attributes, ACTIVATION, *((_RESIDUAL_GRADIENT,) if backward else ())),
        constraints=(*norm.constraints, *(_BACKWARD_FUSION if backward else _FORWARD_FUSION)),
        decisions=(*norm.decisions, _RELU_GRADIENT if backward else "relu keeps NaN."),
        resolve=resolve_instance,
        infer=infer,
        flops=lambda p: inner_flops(p.norm) + 2 * _size(p.norm.x_shape),
        reduction_length=lambda p: inner_length(p.norm),
    )


_OVER_GROUPS = "over the C/G channels of a group and all of space, for each sample and group."
_OVER_SPACE = "over space, for each sample and channel."

group_norm_forward = declare(
    _group_norm(
        "group_norm_forward",
        "Group norm: over groups of channels and space.",
        _OVER_GROUPS,
        grouped=True,
        backward=False,
        drawn=domain.group_forward,
        at=domain.at_group_forward,
        source="Wu and He 2018; cuDNN declares GROUP_NORM and does not compute it",
    )
)
group_norm_backward = declare(
    _group_norm(
        "group_norm_backward",
        "Gradient of group norm by x, scale and bias.",
        _OVER_GROUPS,
        grouped=True,
        backward=True,
        drawn=domain.group_backward,
        at=domain.at_group_backward,
        source="Wu and He 2018; cuDNN declares GROUP_NORM and does not compute it",
    )
)
instance_norm_forward = declare(
    _fused(
        _group_norm(
            "instance_norm_forward",
            "Instance norm: over space; residual and ReLU fused.",
            _OVER_SPACE,
            grouped=False,
            backward=False,
            drawn=domain.instance_forward,
            at=domain.at_instance_forward,
            source="cuDNN graph API NORM_FORWARD, INSTANCE_NORM, NormAddRelu; Ulyanov, Vedaldi and Lempitsky "
            "2016",
        ),
        _FUSED_FORWARD_FORMULA,
        backward=False,
    )
)
instance_norm_backward = declare(
    _fused(
        _group_norm(
            "instance_norm_backward",
            "Gradient of instance norm by x, scale, bias and the residual, ReLU included.",
            _OVER_SPACE,
            grouped=False,
            backward=True,
            drawn=domain.instance_backward,
            at=domain.at_instance_backward,
            source="cuDNN graph API NORM_BACKWARD, INSTANCE_NORM, DReluForkDNorm",
        ),
        _FUSED_BACKWARD_FORMULA,
        backward=True,
    )
)

# --- Response normalization over windows ----------------------------------------------------------

_WINDOW_ATTRIBUTES = (
    Attribute("window", Integer(), "Elements n of a window in each of its dims, 1 to 16.", 5),
    Attribute("alpha", Real(), "Weight α of the mean square, >= 0.", 1e-4),
    Attribute("beta", Real(), "Exponent β, >= 0.01.", 0.75),
    Attribute("k", Real(), "Summand k, >= 1e-5.", 2.0),
)
_WINDOW_RULES = (
    integer_in("window", 1, 16),
    real_in("alpha", 0.0),
    real_in("beta", 0.01),
    real_in("k", 1e-5),
)
_WINDOW_DECISIONS = (
    "α is divided by the n^d elements of a whole window, also at the border, where fewer are inside.",
    "The limits of n, β and k are cuDNN's; α >= 0, so that s >= k > 0.",
    "Of an even n, one more element is behind the centre than before it, as in cuDNN.",
    "All tensors have one dtype; sums and powers are of float32, or float64.",
    *_DECISIONS[4:6],
    "NaN spreads to the windows that hold it; Inf makes s infinite and s^−β = 0, so that finite elements "
    "become 0 and Inf itself NaN.",
    "Zero sizes are legal and give an empty result.",
)
_LRN_RANK = rank_between(2, 5, "batch, channels and 0 to 3 spatial dims")
_MEANS = TensorSpec("means", "N C *I", "local means; absent means 0", optional=True)
_GRADIENT_OF_X = TensorSpec("dx", "N C *I", "gradient of the loss by x")


def _like_data(p: WindowNormProblem) -> TensorType:
    return TensorType(p.dtype, p.x_shape)


def _window_flops(p: WindowNormProblem) -> int:
    return (2 * p.elements + 8) * _size(p.x_shape)


lrn_forward = declare(
    Primitive(
        name="lrn_forward",
        family="norm",
        summary="Local response normalization across channels.",
        formula="""\
y[c] = x[c]·s[c]^−β        s[c] = k + α/n·Σ_j x[j]²
with j over the n channels from c − ⌊(n−1)/2⌋ on that exist; n = window""",
        inputs=(_X,),
        outputs=(TensorSpec("y", "N C *I", "output"),),
        attributes=_WINDOW_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(_LRN_RANK, one_dtype(DTYPES), *_WINDOW_RULES),
        decisions=_WINDOW_DECISIONS,
        resolve=resolve_lrn,
        infer=lambda p: (_like_data(p),),
        flops=_window_flops,
        reduction_length=lambda p: p.elements,
        domain=domain.lrn_forward,
        boundaries=domain.boundaries(domain.at_window_forward, empty=True),
        source="cuDNN cudnnLRNCrossChannelForward; Krizhevsky, Sutskever and Hinton 2012, §3.3",
    )
)

lrn_backward = declare(
    Primitive(
        name="lrn_backward",
        family="norm",
        summary="Gradient of local response normalization across channels.",
        formula="""\
dx[i] = dy[i]·s[i]^−β − 2·α·β/n·x[i]·Σ_c dy[c]·x[c]·s[c]^(−β−1)
with c over the channels whose window holds i, and s as in lrn_forward""",
        inputs=(_DY, _X),
        outputs=(_GRADIENT_OF_X,),
        attributes=_WINDOW_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(
            _LRN_RANK,
            one_dtype(DTYPES),
            *_WINDOW_RULES,
            shaped("x", "dy.shape", first_shape),
        ),
        decisions=(
            *_WINDOW_DECISIONS,
            "y, which cuDNN is given, follows from x and is not needed.",
        ),
        resolve=resolve_lrn,
        infer=lambda p: (_like_data(p),),
        flops=lambda p: 2 * _window_flops(p),
        reduction_length=lambda p: 2 * p.elements,
        domain=domain.lrn_backward,
        boundaries=domain.boundaries(domain.at_window_backward, empty=True),
        source="cuDNN cudnnLRNCrossChannelBackward",
    )
)

_DIVISIVE_DECISIONS = (
    *_WINDOW_DECISIONS,
    "cuDNN publishes no formula, but a descriptor of n, α, β and k, α divided by n^d, and means that are "
    "given: this is the local contrast normalization that has them all. means are subtracted under the "
    "root only: the caller subtracts them from x, if at all.",
)
_SPATIAL_RANK = rank_between(3, 5, "batch, channels and 1 to 3 spatial dims")

divisive_norm_forward = declare(
    Primitive(
        name="divisive_norm_forward",
        family="norm",
        summary="Divisive normalization over spatial windows of each channel.",
        formula="""\
y[i] = x[i]·s[i]^−β        s[i] = k + α/n^d·Σ_j (x[j] − means[j])²
with j over the n^d elements of the window from i − ⌊(n−1)/2⌋ on, in each of the d spatial dims, that exist""",
        inputs=(_X, _MEANS),
        outputs=(TensorSpec("y", "N C *I", "output"),),
        attributes=_WINDOW_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(
            _SPATIAL_RANK,
            one_dtype(DTYPES),
            *_WINDOW_RULES,
            shaped("means", "x.shape", first_shape),
        ),
        decisions=_DIVISIVE_DECISIONS,
        resolve=resolve_divisive,
        infer=lambda p: (_like_data(p),),
        flops=_window_flops,
        reduction_length=lambda p: p.elements,
        domain=domain.divisive_forward,
        boundaries=domain.boundaries(domain.at_window_forward, empty=True),
        source="cuDNN cudnnDivisiveNormalizationForward; Jarrett et al. 2009",
    )
)

divisive_norm_backward = declare(
    Primitive(
        name="divisive_norm_backward",
        family="norm",
        summary="Gradient of divisive normalization by x and by the means.",
        formula="""\
t[i] = 2·α·β/n^d·(x[i] − means[i])·Σ_c dy[c]·x[c]·s[c]^(−β−1)
dx[i] = dy[i]·s[i]^−β − t[i]        dmeans[i] = t[i]
with c over the elements whose window holds i, and s as in divisive_norm_forward""",
        inputs=(_DY, _X, _MEANS),
        outputs=(
            _GRADIENT_OF_X,
            TensorSpec(
                "dmeans", "N C *I", "gradient of the loss by means, if given", optional=True
            ),
        ),
        attributes=_WINDOW_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(
            _SPATIAL_RANK,
            one_dtype(DTYPES),
            *_WINDOW_RULES,
            shaped("x", "dy.shape", first_shape),
            shaped("means", "dy.shape", first_shape),
        ),
        decisions=_DIVISIVE_DECISIONS,
        resolve=resolve_divisive,
        infer=lambda p: (_like_data(p), _like_data(p) if p.has_means else None),
        flops=lambda p: 2 * _window_flops(p),
        reduction_length=lambda p: 2 * p.elements,
        domain=domain.divisive_backward,
        boundaries=domain.boundaries(domain.at_window_backward, empty=True),
        source="cuDNN cudnnDivisiveNormalizationBackward",
    )
)
