"""Convolution, defined: forward, its three gradients, and the fused bias-activation form.

A convolution is a sum over the taps f of its filter. At one tap every output o meets the input at
o·u + f·l − pre, so the tap's share is a matrix product; the three directions are the same product,
solved for another operand. Arrays are split into groups: x[n, g, C/G, …], w[g, K/G, C/G, …].
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.conv import BiasProblem, ConvProblem, FusedConvProblem

# An index whose leading dims are all taken: (..., *one entry for each spatial dim)
Index = tuple[Any, ...]


@defines(spec.conv_forward)
def conv_forward(p: ConvProblem, x: Array, w: Array) -> Array:
    """y[n, g] = Σ_f w[g, f] · x[n, g, at f]"""
    x, w = _padded(x, p), _filters(w, p)
    y = np.zeros_like(
        x, shape=(p.batch, p.groups, p.out_channels // p.groups, _size(p.output_size))
    )
    for tap, window in _taps(p):
        y += np.matmul(w[tap], _flat(x[window], p))
    return y.reshape(p.y_shape)


@defines(spec.conv_backward_data)
def conv_backward_data(p: ConvProblem, dy: Array, w: Array) -> Array:
    """dx[n, g, at f] += w[g, f]ᵀ · dy[n, g]"""
    dy, w = _grouped_outputs(dy, p), _filters(w, p)
    dx = np.zeros_like(dy, shape=_padded_shape(p))
    for tap, window in _taps(p):
        share = np.matmul(np.swapaxes(w[tap], -1, -2), dy)
        dx[window] += share.reshape(*share.shape[:3], *p.output_size)
    return _cropped(dx, p).reshape(p.x_shape)


@defines(spec.conv_backward_filter)
def conv_backward_filter(p: ConvProblem, x: Array, dy: Array) -> Array:
    """dw[g, f] = Σ_n dy[n, g] · x[n, g, at f]ᵀ"""
    x, dy = _padded(x, p), _grouped_outputs(dy, p)
    k, c = p.out_channels // p.groups, p.in_channels // p.groups
    dw = np.zeros_like(x, shape=(p.groups, k, c, *p.filter_size))
    for tap, window in _taps(p):
        x_tap = np.swapaxes(_flat(x[window], p), -1, -2)
        dw[tap] = np.sum(np.matmul(dy, x_tap), axis=0)
    return dw.reshape(p.w_shape)


@defines(spec.conv_backward_bias)
def conv_backward_bias(p: BiasProblem, dy: Array) -> Array:
    """db[k] = Σ_{n, o} dy[n, k, o]"""
    return np.sum(dy, axis=(0, *range(2, len(p.dy_shape))))


@defines(spec.conv_bias_activation_forward)
def conv_bias_activation_forward(
    p: FusedConvProblem, x: Array, w: Array, bias: Array, z: Array | None = None
) -> Array:
    """y = activation(alpha1·conv_forward(x, w) + alpha2·z + bias)"""
    y = p.alpha1 * conv_forward.definition(p.conv, x, w)
    if z is not None and p.alpha2 != 0:
        y = y + p.alpha2 * z
    y = y + bias.reshape(-1, *(1,) * p.conv.spatial_dims)
    return np.maximum(y, 0.0) if p.activation == "relu" else y


# --- Helpers --------------------------------------------------------------------------------------


def _taps(p: ConvProblem) -> Iterator[tuple[Index, Index]]:
    """Each tap f of the filter, and where in the padded input the outputs meet it, as indices."""
    for tap in np.ndindex(*p.filter_size):
        window = map(_window, tap, p.dilation, p.stride, p.output_size)
        yield (..., *_filter_index(tap, p)), (..., *window)


def _window(f: int, dilation: int, stride: int, outputs: int) -> slice:
    first = f * dilation
    return slice(first, first + (outputs - 1) * stride + 1, stride)


def _filter_index(tap: tuple[int, ...], p: ConvProblem) -> tuple[int, ...]:
    """The filter's entry at a tap: mode="convolution" takes the taps in reverse."""
    if p.mode == "cross_correlation":
        return tap
    return tuple(extent - 1 - f for f, extent in zip(tap, p.filter_size, strict=True))


def _padded(x: Array, p: ConvProblem) -> Array:
    """x[n, g, C/G, …] with its zeros around."""
    grouped = x.reshape(p.batch, p.groups, p.in_channels // p.groups, *p.input_size)
    return np.pad(grouped, ((0, 0),) * 3 + p.padding)


def _padded_shape(p: ConvProblem) -> tuple[int, ...]:
    padded = (i + pre + post for i, (pre, post) in zip(p.input_size, p.padding, strict=True))
    return (p.batch, p.groups, p.in_channels // p.groups, *padded)


def _cropped(x: Array, p: ConvProblem) -> Array:
    """The inverse of padding: what fell on the zeros is dropped."""
    inside = (slice(pre, pre + i) for i, (pre, _) in zip(p.input_size, p.padding, strict=True))
    index: Index = (..., *inside)
    return x[index]


def _filters(w: Array, p: ConvProblem) -> Array:
    """w[g, K/G, C/G, …]"""
    return w.reshape(p.groups, p.out_channels // p.groups, *w.shape[1:])


def _grouped_outputs(dy: Array, p: ConvProblem) -> Array:
    """dy[n, g, K/G, O flattened]"""
    return dy.reshape(p.batch, p.groups, p.out_channels // p.groups, _size(p.output_size))


def _flat(x: Array, p: ConvProblem) -> Array:
    """x[n, g, C/G, spatial dims flattened]"""
    return x.reshape(*x.shape[:3], _size(p.output_size))


def _size(extents: tuple[int, ...]) -> int:
    return int(np.prod(extents))
