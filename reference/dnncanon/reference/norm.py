"""Normalization, defined: batch, layer, RMS, group and instance norm, and normalization over windows.

All but the last are one computation: x is reshaped to a view, in which the elements of a set are those
along some axes, and scale, bias and statistics are reshaped so that they broadcast against the view.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.norm import (
    BatchNormProblem,
    FinalizeProblem,
    FusedNormProblem,
    GenstatsProblem,
    NormProblem,
    WindowNormProblem,
)

# --- Batch norm -----------------------------------------------------------------------------------


@defines(spec.batch_norm_forward_training)
def batch_norm_forward_training(
    p: BatchNormProblem,
    x: Array,
    scale: Array,
    bias: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    z: Array | None = None,
) -> tuple[Array | None, ...]:
    """y = activation(scale·(x − μ)·r + bias + z), by the statistics of the batch"""
    norm = p.norm
    mean, variance = _statistics(norm, x)
    inv_std = 1.0 / np.sqrt(variance + norm.epsilon)
    y = _scaled(norm, x - mean, inv_std, scale) + bias.reshape(norm.parameter_view)
    batch_mean, batch_variance = (part.reshape(norm.statistics_shape) for part in (mean, variance))
    return (
        _activated(p, y if z is None else y + z),
        *_saved(norm, mean, inv_std),
        _running(p, running_mean, batch_mean),
        _running(p, running_var, batch_variance * _unbiased(norm.count)),
    )


@defines(spec.batch_norm_inference)
def batch_norm_inference(
    p: BatchNormProblem,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    z: Array | None = None,
) -> Array:
    """y = activation(scale·(x − mean)/√(variance + ε) + bias + z)"""
    norm = p.norm
    inv_std = (1.0 / np.sqrt(variance + norm.epsilon)).reshape(norm.statistics_view)
    centred = x - mean.reshape(norm.statistics_view)
    y = _scaled(norm, centred, inv_std, scale) + bias.reshape(norm.parameter_view)
    return _activated(p, y if z is None else y + z)


@defines(spec.batch_norm_backward)
def batch_norm_backward(
    p: BatchNormProblem,
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array | None = None,
    inv_std: Array | None = None,
    y: Array | None = None,
) -> tuple[Array | None, ...]:
    """dx = scale·inv_std·(g − dbias/m − x̂·dscale/m), with the gradient g that relu passes on"""
    g = _passed_on(dy, y)
    mean, inv_std = _given_statistics(p.norm, x, mean, inv_std)
    dscale, dbias = _parameter_gradients(p.norm, g, x - mean, inv_std)
    rest = g if p.fixed_statistics else _without_moments(p.norm, g, x - mean, inv_std)
    dx = _scaled(p.norm, rest, inv_std, scale)
    return dx, dscale, dbias, g if p.has_residual else None


# --- Batch norm in parts --------------------------------------------------------------------------


@defines(spec.batch_norm_genstats)
def batch_norm_genstats(p: GenstatsProblem, x: Array, shift: Array | None = None) -> Any:
    """Σ (x − K) and Σ (x − K)² of each channel"""
    rest = (0, *range(2, len(p.x_shape)))
    if shift is not None:
        x = x - shift.reshape(1, -1, *(1,) * (len(p.x_shape) - 2))
    return np.sum(x, axis=rest), np.sum(np.square(x), axis=rest)


@defines(spec.batch_norm_finalize)
def batch_norm_finalize(
    p: FinalizeProblem,
    sums: Array,
    sq_sums: Array,
    scale: Array,
    bias: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    shift: Array | None = None,
) -> tuple[Array | None, ...]:
    """μ = K + d, σ² = max(Σ sq_sum/m − d², 0), with d = Σ sum/m"""
    distance = np.sum(sums, axis=0) / p.count
    mean = distance if shift is None else shift + distance
    variance = np.maximum(np.sum(sq_sums, axis=0) / p.count - np.square(distance), 0.0)
    inv_std = 1.0 / np.sqrt(variance + p.epsilon)
    eq_scale = scale * inv_std
    return (
        mean,
        inv_std,
        eq_scale,
        bias - mean * eq_scale,
        _running(p, running_mean, mean),
        _running(p, running_var, variance * _unbiased(p.count)),
    )


@defines(spec.batch_norm_backward_weights)
def batch_norm_backward_weights(
    p: BatchNormProblem, dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array
) -> tuple[Array, ...]:
    """dscale, dbias, and A, B, C of dx = A·dy + B·x + C"""
    view, m = p.norm.statistics_view, p.norm.count
    centred = x - mean.reshape(view)
    dscale, dbias = _parameter_gradients(p.norm, dy, centred, inv_std.reshape(view))
    dy_factor = scale * inv_std
    x_factor = -dy_factor * inv_std * dscale / m
    return dscale, dbias, dy_factor, x_factor, -dy_factor * dbias / m - x_factor * mean


# --- Layer, RMS, group and instance norm ----------------------------------------------------------


def _norm_forward(
    p: NormProblem, x: Array, scale: Array | None = None, bias: Array | None = None
) -> tuple[Array | None, ...]:
    """y = γ·(x − μ)·r + bias over each set of the view"""
    x = x.reshape(p.view)
    mean, variance = _statistics(p, x)
    inv_std = 1.0 / np.sqrt(variance + p.epsilon)
    y = _affine(p, (x - mean) * inv_std, scale, bias)
    return y.reshape(p.x_shape), *_saved(p, mean, inv_std)


def _norm_backward(
    p: NormProblem,
    dy: Array,
    x: Array,
    scale: Array | None = None,
    mean: Array | None = None,
    inv_std: Array | None = None,
) -> tuple[Array | None, ...]:
    """dx = r·(g − mean of g − x̂·(mean of g·x̂)) with g = γ·dy, over each set of the view"""
    dy, x = dy.reshape(p.view), x.reshape(p.view)
    mean, inv_std = _given_statistics(p, x, mean, inv_std)
    dscale, dbias = _parameter_gradients(p, dy, x - mean, inv_std)
    g = dy if scale is None else _gamma(p, scale) * dy
    dx = inv_std * _without_moments(p, g, x - mean, inv_std)
    return dx.reshape(p.x_shape), dscale, dbias


layer_norm_forward = defines(spec.layer_norm_forward)(_norm_forward)
layer_norm_backward = defines(spec.layer_norm_backward)(_norm_backward)
group_norm_forward = defines(spec.group_norm_forward)(_norm_forward)
group_norm_backward = defines(spec.group_norm_backward)(_norm_backward)


@defines(spec.instance_norm_forward)
def instance_norm_forward(
    p: FusedNormProblem,
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    z: Array | None = None,
) -> tuple[Array | None, ...]:
    """y = activation(γ·(x − μ)·r + bias + z)"""
    y, *statistics = _norm_forward(p.norm, x, scale, bias)
    return _activated(p, y if z is None else y + z), *statistics


@defines(spec.instance_norm_backward)
def instance_norm_backward(
    p: FusedNormProblem,
    dy: Array,
    x: Array,
    scale: Array | None = None,
    mean: Array | None = None,
    inv_std: Array | None = None,
    y: Array | None = None,
) -> tuple[Array | None, ...]:
    """That of the norm, for the gradient g that relu passes on;  dz = g"""
    g = _passed_on(dy, y)
    return *_norm_backward(p.norm, g, x, scale, mean, inv_std), g if p.has_residual else None


@defines(spec.rms_norm_forward)
def rms_norm_forward(
    p: NormProblem, x: Array, scale: Array | None = None, bias: Array | None = None
) -> tuple[Array | None, ...]:
    """y = γ·x·q + bias, with q = 1/√(mean of x² + ε)"""
    inv_rms = _inverse_rms(p, x)
    statistic = inv_rms.reshape(p.statistics_shape) if p.save_statistics else None
    return _affine(p, x * inv_rms, scale, bias), statistic


@defines(spec.rms_norm_backward)
def rms_norm_backward(
    p: NormProblem,
    dy: Array,
    x: Array,
    scale: Array | None = None,
    inv_rms: Array | None = None,
) -> tuple[Array | None, ...]:
    """dx = q·(g − x̂·(mean of g·x̂)) with g = γ·dy"""
    q = _inverse_rms(p, x) if inv_rms is None else inv_rms.reshape(p.statistics_view)
    dscale, dbias = _parameter_gradients(p, dy, x, q)
    g = dy if scale is None else _gamma(p, scale) * dy
    slope = q * np.mean(g * x, axis=p.axes, keepdims=True)
    dx = q * (g - x * q * slope)
    return dx, dscale, dbias


# --- Normalization over windows -------------------------------------------------------------------


@defines(spec.lrn_forward)
def lrn_forward(p: WindowNormProblem, x: Array) -> Array:
    """y = x·s^−β, with s = k + α/n·Σ x² over a window of channels"""
    return x * np.power(_spread(p, x), -p.beta)


@defines(spec.lrn_backward)
def lrn_backward(p: WindowNormProblem, dy: Array, x: Array) -> Array:
    """dx = dy·s^−β − 2·α·β/n·x·Σ dy·x·s^(−β−1) over the windows that hold x"""
    s = _spread(p, x)
    return dy * np.power(s, -p.beta) - _through_spread(p, dy, x, x, s)


@defines(spec.divisive_norm_forward)
def divisive_norm_forward(p: WindowNormProblem, x: Array, means: Array | None = None) -> Array:
    """y = x·s^−β, with s = k + α/n^d·Σ (x − means)² over a spatial window"""
    return x * np.power(_spread(p, x if means is None else x - means), -p.beta)


@defines(spec.divisive_norm_backward)
def divisive_norm_backward(
    p: WindowNormProblem, dy: Array, x: Array, means: Array | None = None
) -> tuple[Array | None, ...]:
    """dx = dy·s^−β − dmeans, dmeans = 2·α·β/n^d·(x − means)·Σ dy·x·s^(−β−1)"""
    centred = x if means is None else x - means
    s = _spread(p, centred)
    dmeans = _through_spread(p, dy, x, centred, s)
    return dy * np.power(s, -p.beta) - dmeans, dmeans if p.has_means else None


# --- Helpers: means and what follows from them ----------------------------------------------------


def _statistics(p: NormProblem, x: Array) -> tuple[Array, Array]:
    """Mean and biased variance of each set, with the extents of its dims 1."""
    mean = np.mean(x, axis=p.axes, keepdims=True)
    return mean, np.mean(np.square(x - mean), axis=p.axes, keepdims=True)


def _inverse_rms(p: NormProblem, x: Array) -> Array:
    return 1.0 / np.sqrt(np.mean(np.square(x), axis=p.axes, keepdims=True) + p.epsilon)


def _given_statistics(
    p: NormProblem, x: Array, mean: Array | None, inv_std: Array | None
) -> tuple[Array, Array]:
    """Those of the forward pass, or else those of x."""
    if mean is None or inv_std is None:
        mean, variance = _statistics(p, x)
        return mean, 1.0 / np.sqrt(variance + p.epsilon)
    return mean.reshape(p.statistics_view), inv_std.reshape(p.statistics_view)


def _saved(p: NormProblem, mean: Array, inv_std: Array) -> tuple[Array | None, Array | None]:
    if not p.save_statistics:
        return None, None
    return mean.reshape(p.statistics_shape), inv_std.reshape(p.statistics_shape)


def _running(p: BatchNormProblem | FinalizeProblem, before: Array | None, batch: Array) -> Array:
    """The exponential average with the batch in it; None where there is none."""
    if before is None:
        return None
    return (1.0 - p.average_factor) * before + p.average_factor * batch


def _unbiased(count: int) -> float:
    """From the biased variance to the unbiased one, which a single element does not have."""
    return count / max(1, count - 1)


def _gamma(p: NormProblem, scale: Array) -> Array:
    """The factor of the normalised elements, to broadcast against the view."""
    gamma = scale.reshape(p.parameter_view)
    return 1.0 + gamma if p.zero_centered_scale else gamma


def _scaled(p: NormProblem, centred: Array, inv_std: Array, scale: Array) -> Array:
    """scale·inv_std·centred, where both factors are the same for the whole set, and so is their product."""
    return scale.reshape(p.parameter_view) * inv_std * centred


def _affine(p: NormProblem, normalised: Array, scale: Array | None, bias: Array | None) -> Array:
    y = normalised if scale is None else _gamma(p, scale) * normalised
    return y if bias is None else y + bias.reshape(p.parameter_view)


def _activated(p: FusedNormProblem, y: Array) -> Array:
    return np.maximum(y, 0.0) if p.activation == "relu" else y


def _passed_on(dy: Array, y: Array | None) -> Array:
    """What relu passes on of the gradient by its output y; all of it if there is no relu."""
    return dy if y is None else np.where(y > 0.0, dy, 0.0)


def _parameter_gradients(
    p: NormProblem, dy: Array, centred: Array, inv_std: Array
) -> tuple[Array | None, Array | None]:
    """dscale = Σ dy·x̂ and dbias = Σ dy over the elements that share an entry of scale and bias.

    x̂ is not rounded by itself: of many elements that are alike all would be rounded in the same way.
    """
    dscale = np.sum(dy * centred * inv_std, axis=p.parameter_axes).reshape(p.parameter_shape)
    dbias = np.sum(dy, axis=p.parameter_axes).reshape(p.parameter_shape)
    return dscale if p.has_scale else None, dbias if p.bias_gradient else None


def _without_moments(p: NormProblem, g: Array, centred: Array, inv_std: Array) -> Array:
    """g − mean of g − x̂·(mean of g·x̂)"""
    mean = np.mean(g, axis=p.axes, keepdims=True)
    slope = inv_std * np.mean(g * centred, axis=p.axes, keepdims=True)
    return g - mean - centred * inv_std * slope


# --- Helpers: windows -----------------------------------------------------------------------------


def _spread(p: WindowNormProblem, x: Array) -> Array:
    """s = k + α/n^d·Σ x² over the window around each element."""
    return p.k + p.weight * _window_sum(p, np.square(x), p.before)


def _through_spread(p: WindowNormProblem, dy: Array, x: Array, centred: Array, s: Array) -> Array:
    """2·α·β/n^d·centred·Σ dy·x·s^(−β−1), over the elements whose window holds this one."""
    shares = dy * x * np.power(s, -p.beta - 1.0)
    # These elements are a window too, with as many of them before its centre as a window has behind it.
    around = _window_sum(p, shares, p.window - 1 - p.before)
    # The weight comes last: times it a subnormal element would be 0, and 0·Inf is NaN.
    return centred * around * (2.0 * p.beta * p.weight)


def _window_sum(p: WindowNormProblem, terms: Array, before: int) -> Array:
    """The sum over windows that begin ``before`` elements before each one, along each axis."""
    around = [(0, 0)] * len(p.x_shape)
    for axis in p.axes:
        around[axis] = (before, p.window - 1 - before)
    windows = sliding_window_view(np.pad(terms, around), (p.window,) * len(p.axes), axis=p.axes)
    return np.sum(windows, axis=tuple(range(-len(p.axes), 0)))
