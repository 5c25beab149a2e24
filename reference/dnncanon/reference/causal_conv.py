"""Causal convolution, defined: a sum over the taps, each of which moves the sequence so many steps."""

import numpy as np

from dnncanon import spec
from dnncanon.reference.activation import swish, swish_backward
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.causal_conv import CausalConvProblem


@defines(spec.causal_conv_forward)
def causal_conv_forward(
    p: CausalConvProblem, x: Array, w: Array, bias: Array | None = None
) -> Array:
    """y = f(bias + Σ_j x[t − j]·w_j)"""
    a = _sums(p, x, w, bias)
    return swish(a) if p.activation == "silu" else a


@defines(spec.causal_conv_backward)
def causal_conv_backward(
    p: CausalConvProblem, dy: Array, x: Array, w: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    """g = dy·f′(a);  dx = Σ_j g[t + j]·w_j,  dw_j = Σ g[t]·x[t − j],  dbias = Σ g"""
    g = swish_backward(dy, _sums(p, x, w, bias)) if p.activation == "silu" else dy
    w = _by_distance(p, w)
    dx = [_earlier(p, g, j) * w[:, j, None] for j in range(p.taps)]
    dw = [_products(p, g, x, j) for j in range(p.taps)]
    dbias = np.sum(g, axis=(0, 2)) if p.has_bias else None
    return np.sum(np.stack(dx), axis=0), _by_distance(p, np.stack(dw, axis=1)), dbias


def _sums(p: CausalConvProblem, x: Array, w: Array, bias: Array | None) -> Array:
    w = _by_distance(p, w)
    terms = [_later(p, x, j) * w[:, j, None] for j in range(p.taps)]
    if bias is not None:
        terms.append(np.broadcast_to(bias[:, None], p.shape))
    return np.sum(np.stack(terms), axis=0)


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
