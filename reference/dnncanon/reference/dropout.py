"""Dropout and random numbers, defined: each element by its own words of a stream."""

import math

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, Lift, defines
from dnncanon.reference.philox import fractions, words
from dnncanon.spec.dropout import DropoutProblem, RandomProblem, threshold

# --- Dropout --------------------------------------------------------------------------------------


@defines(spec.dropout_forward)
def dropout_forward(p: DropoutProblem, x: Array) -> tuple[Array, Array | None]:
    """y = mask ? x/(1 − p) : 0"""
    keep = kept(p)
    return np.where(keep, _times(p.scale, x), 0.0), keep if p.return_mask else None


@defines(spec.dropout_backward)
def dropout_backward(p: DropoutProblem, dy: Array) -> Array:
    """dx = mask ? dy/(1 − p) : 0"""
    return np.where(kept(p), _times(p.scale, dy), 0.0)


def kept(p: DropoutProblem) -> Array:
    """mask: which words are at least p·2^32."""
    return words(p.stream, math.prod(p.shape)).reshape(p.shape) >= np.uint64(p.threshold)


def _times(factor: float, x: Array) -> Array:
    """factor·x, without a rounding where it is 1."""
    return x if factor == 1.0 else factor * x


# --- Random numbers -------------------------------------------------------------------------------


@defines(spec.rng_bernoulli)
def rng_bernoulli(p: RandomProblem) -> Array:
    """y = word < p·2^32 ? 1 : 0"""
    ones = words(p.stream, math.prod(p.shape)) < np.uint64(threshold(p["probability"]))
    return ones.reshape(p.shape).astype(np.float64)


@defines(spec.rng_uniform, lifts=True)
def rng_uniform(p: RandomProblem, lift: Lift) -> Array:
    """y = low + (high − low)·U"""
    low, high = p["low"], p["high"]
    u = lift(fractions(p.stream, math.prod(p.shape), p.dtype).reshape(p.shape))
    return u if (low, high) == (0.0, 1.0) else low + (high - low) * u


@defines(spec.rng_normal, lifts=True)
def rng_normal(p: RandomProblem, lift: Lift) -> Array:
    """y = mean + std·r·(cos θ, sin θ) with r = √(−2·ln U) and θ = 2π·U′, U in (0, 1] and U′ in [0, 1)"""
    count = math.prod(p.shape)
    computed = "float64" if p.dtype == "float64" else "float32"
    step = spec.DTYPES[computed].unit_roundoff
    u = fractions(p.stream, count + count % 2, computed)
    r, theta = np.sqrt(-2.0 * np.log(lift(u[0::2] + step))), 2.0 * np.pi * lift(u[1::2])
    pairs = np.stack([r * np.cos(theta), r * np.sin(theta)], axis=-1)
    return p["mean"] + p["std"] * pairs.reshape(-1)[:count].reshape(p.shape)
