"""Scaled dot-product attention, defined, and its gradient: with the whole matrix of scores.

What a row does not see has a score of −Inf, the exponential of which is 0. Behind the ends of sequences
nothing is read: keys, values and gradients are 0 there.
"""

import math

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, Lift, defines, kept
from dnncanon.reference.philox import words
from dnncanon.spec.attention_problem import AttentionProblem, alibi_slopes
from dnncanon.spec.dropout import threshold
from dnncanon.spec.softmax import stats_dtype

Optional = Array | None


@defines(spec.sdpa_forward, lifts=True)
def sdpa_forward(
    p: AttentionProblem,
    lift: Lift,
    q: Array,
    k: Array,
    v: Array,
    bias: Optional = None,
    sink: Optional = None,
) -> tuple[Array, Optional]:
    """o = softmax(scores)·v, and m + ln z"""
    scores, _ = _scores(p, lift, q, k, bias)
    probabilities, stats = _softmax(p, scores, sink)
    values = _of_heads(p, _columns(p, v))
    o = kept(_dropped(p, probabilities), p.dtype) @ values
    return o, stats if p.return_stats else None


@defines(spec.sdpa_backward, lifts=True)
def sdpa_backward(
    p: AttentionProblem,
    lift: Lift,
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    stats: Array,
    bias: Optional = None,
    sink: Optional = None,
) -> tuple[Optional, ...]:
    """dq, dk, dv and, of those that there are, dbias and dsink"""
    q, do, o = _rows(p, q), _rows(p, do), _rows(p, o)
    scores, capped = _scores(p, lift, q, k, bias)
    probabilities = np.where(_is_seen(p, scores), np.exp(scores - stats[..., None]), 0.0)
    delta = np.sum(o * do, axis=-1)

    dv = _by_heads(kept(_dropped(p, probabilities), p.dtype).mT @ do, p.v_heads)
    dp = do @ _of_heads(p, _columns(p, v)).mT
    ds = probabilities * (_dropped(p, dp) - delta[..., None])
    dbias = None if p.bias_shape is None else _summed(ds, p.bias_shape)
    if p.soft_cap:
        ds = ds * (1.0 - np.square(capped / p.soft_cap))
    ds = kept(ds, p.dtype)
    dq = p.scale * (ds @ _of_heads(p, _columns(p, k)))
    dk = p.scale * _by_heads(ds.mT @ q, p.k_heads)
    return dq, dk, dv, dbias, None if sink is None else _by_sink(p, sink, stats, delta)


# --- Scores ---------------------------------------------------------------------------------------


def _scores(
    p: AttentionProblem, lift: Lift, q: Array, k: Array, bias: Optional
) -> tuple[Array, Array]:
    """[B, Hq, Sq, Skv] with −Inf for what is not seen; and what a soft cap made of scale·q·k."""
    s = p.scale * (_rows(p, q) @ _of_heads(p, _columns(p, k)).mT)
    if p.soft_cap:
        s = p.soft_cap * np.tanh(s / p.soft_cap)
    capped = s
    if bias is not None:
        s = s + bias
    if p.alibi:
        slopes = kept(lift(np.array(alibi_slopes(p.heads))), stats_dtype(p.dtype))
        s = s + slopes[:, None, None] * p.distances
    return np.where(p.visible, s, -np.inf), capped


def _is_seen(p: AttentionProblem, scores: Array) -> Array:
    return p.visible & (scores != -np.inf)


def _softmax(p: AttentionProblem, scores: Array, sink: Optional) -> tuple[Array, Array]:
    """e^(s − m)/z, 0 where z is, and m + ln z: m = max s, z = Σ e^(s − m), of all columns and the sink."""
    largest = np.max(scores, axis=-1, initial=-np.inf)
    if sink is not None:
        sink = np.where(p.is_row, sink[:, None], -np.inf)
        largest = np.maximum(largest, sink)
    shift = np.where(largest == -np.inf, 0.0, largest)
    powers = np.exp(scores - shift[..., None])
    total = np.sum(powers, axis=-1)
    if sink is not None:
        total = total + np.exp(sink - shift)
    stats = shift + np.log(total)
    return powers / np.where(total == 0.0, 1.0, total)[..., None], stats


def _dropped(p: AttentionProblem, probabilities: Array) -> Array:
    """0, or divided by 1 − dropout: the probabilities, or the gradient by them."""
    if p.dropout == 0.0:
        return probabilities
    bits = words(p.stream, math.prod(p.scores_shape)).reshape(p.scores_shape)
    scale = 1.0 if p.dropout == 1.0 else 1.0 / (1.0 - p.dropout)
    return np.where(bits >= np.uint64(threshold(p.dropout)), scale * probabilities, 0.0)


# --- Sequences and heads --------------------------------------------------------------------------


def _rows(p: AttentionProblem, x: Array) -> Array:
    """[B, H, Sq, ·] with 0 behind the ends."""
    return x if p.is_row.all() else np.where(p.is_row[..., None], x, 0.0)


def _columns(p: AttentionProblem, x: Array) -> Array:
    """[B, H, Skv, ·] with 0 behind the ends."""
    return x if p.is_column.all() else np.where(p.is_column[..., None], x, 0.0)


def _of_heads(p: AttentionProblem, x: Array) -> Array:
    """[B, Hq, …] of [B, Hk, …]: that of the group for each query head."""
    return np.repeat(x, p.heads // max(1, x.shape[1]), axis=1)


def _by_heads(x: Array, heads: int) -> Array:
    """[B, heads, …] of [B, Hq, …]: the sums of groups."""
    batch, count, *rest = x.shape
    return np.sum(x.reshape(batch, heads, count // max(1, heads), *rest), axis=2)


def _summed(ds: Array, shape: tuple[int, ...]) -> Array:
    """Over the dims in which the bias is broadcast."""
    axes = tuple(d for d, n in enumerate(shape) if n == 1 and ds.shape[d] != 1)
    return np.sum(ds, axis=axes, keepdims=True) if axes else ds


def _by_sink(p: AttentionProblem, sink: Array, stats: Array, delta: Array) -> Array:
    """−Σ e^(sink − stats)·δ"""
    probability = np.where(p.is_row, np.exp(sink[:, None] - stats), 0.0)
    return -np.sum(probability * delta, axis=(0, 2))
