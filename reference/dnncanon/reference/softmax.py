"""Softmax and its logarithm, defined, and their gradients.

What a mask leaves out is −Inf, the exponential of which is 0: so it takes no part in maxima and sums.
"""

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.softmax import SoftmaxProblem


@defines(spec.softmax_forward)
def softmax_forward(
    p: SoftmaxProblem, x: Array, mask: Array | None = None
) -> tuple[Array, Array | None]:
    """y = e^(x − m) / s, with m = max x and s = Σ e^(x − m); log: x − m − ln s; stats = m + ln s"""
    x = _where_unmasked(mask, x, -np.inf)
    largest = np.max(x, axis=p.axes, keepdims=True, initial=-np.inf)
    shifted = x - largest
    powers = np.exp(shifted)
    total = np.sum(powers, axis=p.axes, keepdims=True)
    y = shifted - np.log(total) if p.log else powers / total
    y = _where_unmasked(mask, y, -np.inf if p.log else 0.0)
    return y, _stats(p, x, largest) if p.stats else None


def _stats(p: SoftmaxProblem, x: Array, largest: Array) -> Array:
    """m + ln Σ e^(x − m); ±Inf are not subtracted."""
    shift = np.where(np.isinf(largest), 0.0, largest)
    return shift + np.log(np.sum(np.exp(x - shift), axis=p.axes, keepdims=True))


@defines(spec.softmax_backward)
def softmax_backward(p: SoftmaxProblem, dy: Array, y: Array, mask: Array | None = None) -> Array:
    """dx = y·(dy − Σ dy·y); log: dx = dy − e^y·Σ dy"""
    dy, y = _where_unmasked(mask, dy, 0.0), _where_unmasked(mask, y, 0.0)
    if p.log:
        dx = dy - np.exp(y) * np.sum(dy, axis=p.axes, keepdims=True)
    else:
        dx = y * (dy - np.sum(dy * y, axis=p.axes, keepdims=True))
    return _where_unmasked(mask, dx, 0.0)


def _where_unmasked(mask: Array | None, x: Array, other: float) -> Array:
    return x if mask is None else np.where(mask != 0.0, x, other)
