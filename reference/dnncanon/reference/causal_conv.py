"""Causal convolution, plain and gated, defined: a sum over the taps, each of which moves the sequence so many
steps."""

import numpy as np

from dnncanon import spec
from dnncanon.reference.activation import swish, swish_backward
from dnncanon.reference.definition import Array, convolution, defines
from dnncanon.spec.causal_conv_problem import PROJECTIONS, CausalConvProblem, GatedCausalConvProblem


@defines(spec.causal_conv_forward, convolves=True)
def causal_conv_forward(
    p: CausalConvProblem, x: Array, w: Array, bias: Array | None = None
) -> Array:
    """y = f(bias + Σ_j x[t − j]·w_j)"""
    a = _sums(p, x, w, bias)
    return swish(a) if p.activation == "silu" else a


@defines(spec.causal_conv_backward, convolves=True)
def causal_conv_backward(
    p: CausalConvProblem, dy: Array, x: Array, w: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    """g = dy·f′(a);  dx = Σ_j g[t + j]·w_j,  dw_j = Σ g[t]·x[t − j],  dbias = Σ g"""
    g = swish_backward(dy, _sums(p, x, w, bias)) if p.activation == "silu" else dy
    dbias = np.sum(g, axis=(0, 2)) if p.has_bias else None
    return _input_gradient(p, g, w), _weight_gradient(p, g, x), dbias


@defines(spec.gated_causal_conv_forward)
def gated_causal_conv_forward(
    p: GatedCausalConvProblem, x: Array, projection: Array, mixer: Array, skip: Array | None = None
) -> tuple[Array, Array]:
    """v = p₁·p₂,  y = Σ_j v[t − j]·m_j + skip·v,  gated = p₀·y"""
    gate, first, second = _projected(p, x, projection)
    v = first * second
    y = _with_skip(_sums(p.mixer, v, mixer, None), v, skip)
    return y, gate * y


@defines(spec.gated_causal_conv_backward)
def gated_causal_conv_backward(
    p: GatedCausalConvProblem,
    dgated: Array,
    y: Array,
    x: Array,
    projection: Array,
    mixer: Array,
    skip: Array | None = None,
) -> tuple[Array | None, ...]:
    """g = dgated·p₀,  dv = Σ_j g[t + j]·m_j + skip·g,  and on through the gates and the projections"""
    gate, first, second = _projected(p, x, projection)
    v, g = first * second, dgated * gate
    dv = _with_skip(_input_gradient(p.mixer, g, mixer), g, skip)
    slopes = (dgated * y, dv * second, dv * first)
    dx = [_input_gradient(p.projection, s, projection[:, i]) for i, s in enumerate(slopes)]
    dw = [_weight_gradient(p.projection, s, x[:, :, i]) for i, s in enumerate(slopes)]
    dskip = np.sum(g * v, axis=(0, 2)) if p.has_skip else None
    return np.stack(dx, axis=2), np.stack(dw, axis=1), _weight_gradient(p.mixer, g, v), dskip


def _projected(p: GatedCausalConvProblem, x: Array, projection: Array) -> list[Array]:
    """p₀, p₁ and p₂"""
    return [_sums(p.projection, x[:, :, i], projection[:, i], None) for i in range(PROJECTIONS)]


def _with_skip(mixed: Array, direct: Array, skip: Array | None) -> Array:
    return mixed if skip is None else mixed + skip[:, None] * direct


def _sums(p: CausalConvProblem, x: Array, w: Array, bias: Array | None) -> Array:
    w = _by_distance(p, w)
    terms = [_later(p, x, j) * w[:, j, None] for j in range(p.taps)]
    if bias is not None:
        terms.append(np.broadcast_to(bias[:, None], p.shape))
    return convolution(np.sum(np.stack(terms), axis=0), x, w)


def _input_gradient(p: CausalConvProblem, g: Array, w: Array) -> Array:
    """Σ_j g[t + j]·w_j"""
    w = _by_distance(p, w)
    terms = [_earlier(p, g, j) * w[:, j, None] for j in range(p.taps)]
    return convolution(np.sum(np.stack(terms), axis=0), g, w)


def _weight_gradient(p: CausalConvProblem, g: Array, x: Array) -> Array:
    """Σ g[t]·x[t − j] for each tap"""
    dw = np.stack([_products(p, g, x, j) for j in range(p.taps)], axis=1)
    return _by_distance(p, convolution(dw, g, x))


def _products(p: CausalConvProblem, g: Array, x: Array, j: int) -> Array:
    """Σ g[t]·x[t − j] of each channel"""
    steps = p.shape[2]
    j = min(j, steps)
    return np.einsum("bdt,bdt->d", g[:, :, j:], x[:, :, : steps - j])


def _by_distance(p: CausalConvProblem, w: Array) -> Array:
    """The taps, the one that meets the present step first; and back."""
    return np.flip(w, axis=1) if p.flips else w


def _later(p: CausalConvProblem, x: Array, j: int) -> Array:
    """x[t − j], and 0 where there is none."""
    j = min(j, p.shape[2])
    nothing = np.zeros_like(x[:, :, :j])
    return np.concatenate([nothing, x[:, :, : p.shape[2] - j]], axis=2)


def _earlier(p: CausalConvProblem, x: Array, j: int) -> Array:
    """x[t + j], and 0 where there is none."""
    j = min(j, p.shape[2])
    nothing = np.zeros_like(x[:, :, :j])
    return np.concatenate([x[:, :, j:], nothing], axis=2)
