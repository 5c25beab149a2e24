"""Rotary position embedding, defined: one rotation, there and back."""

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.rope import RopeProblem


@defines(spec.rope_forward)
def rope_forward(p: RopeProblem, x: Array, angles: Array) -> Array:
    """a′ = α·(a·cos θ − b·sin θ), b′ = α·(b·cos θ + a·sin θ)"""
    return _turned(p, x, np.cos(angles), np.sin(angles))


@defines(spec.rope_backward)
def rope_backward(p: RopeProblem, dy: Array, angles: Array) -> Array:
    """a′ = α·(a·cos θ + b·sin θ), b′ = α·(b·cos θ − a·sin θ)"""
    return _turned(p, dy, np.cos(angles), -np.sin(angles))


def _turned(p: RopeProblem, x: Array, cosine: Array, sine: Array) -> Array:
    """Every pair turned, and all elements scaled."""
    first, second = (x[..., slots] for slots in p.turned)
    pairs = [first * cosine - second * sine, second * cosine + first * sine]
    if p.interleaved:
        turned = np.stack(pairs, axis=-1).reshape(*p.shape[:-1], 2 * p.pairs)
    else:
        turned = np.concatenate(pairs, axis=-1)
    others = x[..., p.others]
    parts = [others, turned] if p.rotated_slots == "last" else [turned, others]
    y = np.concatenate(parts, axis=-1)
    return y if p.output_scale == 1.0 else y * p.output_scale
