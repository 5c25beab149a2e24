"""Activation functions, defined: each function with its derivative by the input and by the output.

The functions are stable: no intermediate result overflows where the function does not, and small results
keep their relative accuracy. What makes them so is e = exp(−|x|), which is in (0, 1].
"""

from collections.abc import Callable

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.activation import GELU_TANH_CUBIC, SELU_ALPHA, SELU_SCALE, ActivationProblem

# Where e^x and Φ(x), for x below minus that, are 0 in float64. There x is cut: Inf·0 would be NaN.
BEYOND_EXP, BEYOND_NORMAL = 1000.0, 40.0
ROOT_HALF, ROOT_2_OVER_PI = 0.5**0.5, (2.0 / np.pi) ** 0.5
ONE_OVER_ROOT_2_PI = (2.0 * np.pi) ** -0.5


@defines(spec.activation_forward)
def activation_forward(p: ActivationProblem, x: Array) -> Array:
    """y = f(x)"""
    if not p.propagate_nan:
        x = np.where(np.isnan(x), 0.0, x)
    return FORWARD[p.mode](p, x)


@defines(spec.activation_backward)
def activation_backward(p: ActivationProblem, dy: Array, x: Array) -> Array:
    """dx = dy·f′(x), the derivative told by x or, with from_output, by y in its place."""
    table = BACKWARD_FROM_OUTPUT if p.from_output else BACKWARD
    return table[p.mode](p, dy, x)


# --- The functions that others are made of --------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """1/(1 + e^−x), which for x < 0 is e^x/(1 + e^x)"""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, e) / (1.0 + e)


def sech_squared(x: Array) -> Array:
    """1/cosh²(x) = 4·e^−2|x| / (1 + e^−2|x|)²"""
    e = np.exp(-2.0 * np.abs(x))
    return 4.0 * e / np.square(1.0 + e)


def softplus(x: Array, beta: float = 1.0) -> Array:
    """ln(1 + e^(β·x))/β = max(x, 0) + ln(1 + e^−|β·x|)/β"""
    bx = _cut(_times(beta, x), BEYOND_EXP)
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(bx))) / beta


def softplus_backward(dy: Array, x: Array, beta: float = 1.0) -> Array:
    return dy * sigmoid(_cut(_times(beta, x), BEYOND_EXP))


def elu(x: Array, alpha: float) -> Array:
    """x > 0 ? x : α·(e^x − 1)"""
    return np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def elu_backward(dy: Array, x: Array, alpha: float) -> Array:
    return np.where(x > 0.0, dy, dy * (alpha * np.exp(np.minimum(x, 0.0))))


def swish(x: Array, beta: float = 1.0) -> Array:
    """x·σ(βx)"""
    gate = sigmoid(_cut(_times(beta, x), BEYOND_EXP))
    return np.maximum(x, -BEYOND_EXP / beta) * gate


def swish_backward(dy: Array, x: Array, beta: float = 1.0) -> Array:
    """d/dx x·σ(βx) = σ(βx) + x·β·σ(βx)·σ(−βx)"""
    bx = _cut(_times(beta, x), BEYOND_EXP)
    return dy * (sigmoid(bx) * (1.0 + bx * sigmoid(-bx)))


def gelu(x: Array) -> Array:
    """x·Φ(x)"""
    gate = 0.5 * erfc(-ROOT_HALF * _cut(x, BEYOND_NORMAL))
    return np.maximum(x, -BEYOND_NORMAL) * gate


def gelu_backward(dy: Array, x: Array) -> Array:
    """d/dx x·Φ(x) = Φ(x) + x·φ(x)"""
    x = _cut(x, BEYOND_NORMAL)
    density = ONE_OVER_ROOT_2_PI * np.exp(-0.5 * np.square(x))
    return dy * (0.5 * erfc(-ROOT_HALF * x) + x * density)


def gelu_tanh(x: Array) -> Array:
    """x·(1 + tanh u)/2 = x·σ(2u)"""
    gate = sigmoid(_twice_u(_cut(x, BEYOND_NORMAL)))
    return np.maximum(x, -BEYOND_NORMAL) * gate


def gelu_tanh_backward(dy: Array, x: Array) -> Array:
    """d/dx x·σ(2u) = σ(2u) + x·σ(2u)·σ(−2u)·2u′"""
    x = _cut(x, BEYOND_NORMAL)
    two_u = _twice_u(x)
    slope = 2.0 * ROOT_2_OVER_PI * (1.0 + 3.0 * GELU_TANH_CUBIC * np.square(x))
    return dy * (sigmoid(two_u) * (1.0 + x * slope * sigmoid(-two_u)))


def _twice_u(x: Array) -> Array:
    return 2.0 * ROOT_2_OVER_PI * x * (1.0 + GELU_TANH_CUBIC * np.square(x))


def mish(x: Array) -> Array:
    """x·tanh(ln(1 + e^x))"""
    return np.maximum(x, -BEYOND_EXP) * np.tanh(softplus(x))


def mish_backward(dy: Array, x: Array) -> Array:
    """d/dx x·tanh(s) = tanh(s) + x·σ(x)/cosh²(s), s being softplus(x)"""
    x = _cut(x, BEYOND_EXP)
    s = softplus(x)
    return dy * (np.tanh(s) + x * sigmoid(x) * sech_squared(s))


def hard_sigmoid(x: Array) -> Array:
    return np.minimum(np.maximum(x / 6.0 + 0.5, 0.0), 1.0)


def hard_swish(x: Array) -> Array:
    return np.maximum(x, -3.0) * hard_sigmoid(x)


def hard_swish_backward(dy: Array, x: Array) -> Array:
    middle = np.where(x >= 3.0, dy, dy * (x / 3.0 + 0.5))
    return np.where(x <= -3.0, 0.0, middle)


def erf(x: Array) -> Array:
    """2/√π · ∫ e^(−t²) dt over 0…x. SciPy is imported on the first call: all else needs NumPy alone."""
    from scipy import special

    return special.erf(x)


def erfc(x: Array) -> Array:
    """1 − erf(x), accurate for large x."""
    from scipy import special

    return special.erfc(x)


def _times(factor: float, x: Array) -> Array:
    """factor·x, without a rounding where it is 1."""
    return x if factor == 1.0 else factor * x


def _cut(x: Array, limit: float) -> Array:
    """x within ±limit."""
    return np.minimum(np.maximum(x, -limit), limit)


def _inside(dy: Array, x: Array, low: float, high: float) -> Array:
    """dy where low < x < high, and 0 elsewhere."""
    return np.where((x > low) & (x < high), dy, 0.0)


# --- By mode --------------------------------------------------------------------------------------

P = ActivationProblem

FORWARD: dict[str, Callable[[P, Array], Array]] = {
    "identity": lambda p, x: x,
    "relu": lambda p, x: np.maximum(x, 0.0),
    "clipped_relu": lambda p, x: np.minimum(np.maximum(x, 0.0), p.ceiling),
    "leaky_relu": lambda p, x: np.where(x > 0.0, x, p.negative_slope * x),
    "elu": lambda p, x: elu(x, p.alpha),
    "selu": lambda p, x: SELU_SCALE * elu(x, SELU_ALPHA),
    "gelu": lambda p, x: gelu(x),
    "gelu_tanh": lambda p, x: gelu_tanh(x),
    "swish": lambda p, x: swish(x, p.beta),
    "softplus": lambda p, x: softplus(x, p.beta),
    "sigmoid": lambda p, x: sigmoid(x),
    "tanh": lambda p, x: np.tanh(x),
    "mish": lambda p, x: mish(x),
    "hard_sigmoid": lambda p, x: hard_sigmoid(x),
    "hard_swish": lambda p, x: hard_swish(x),
    "hard_tanh": lambda p, x: np.minimum(np.maximum(x, -1.0), 1.0),
}

BACKWARD: dict[str, Callable[[P, Array, Array], Array]] = {
    "identity": lambda p, dy, x: dy,
    "relu": lambda p, dy, x: np.where(x > 0.0, dy, 0.0),
    "clipped_relu": lambda p, dy, x: _inside(dy, x, 0.0, p.ceiling),
    "leaky_relu": lambda p, dy, x: np.where(x > 0.0, dy, p.negative_slope * dy),
    "elu": lambda p, dy, x: elu_backward(dy, x, p.alpha),
    "selu": lambda p, dy, x: SELU_SCALE * elu_backward(dy, x, SELU_ALPHA),
    "gelu": lambda p, dy, x: gelu_backward(dy, x),
    "gelu_tanh": lambda p, dy, x: gelu_tanh_backward(dy, x),
    "swish": lambda p, dy, x: swish_backward(dy, x, p.beta),
    "softplus": lambda p, dy, x: softplus_backward(dy, x, p.beta),
    "sigmoid": lambda p, dy, x: dy * (sigmoid(x) * sigmoid(-x)),
    "tanh": lambda p, dy, x: dy * sech_squared(x),
    "mish": lambda p, dy, x: mish_backward(dy, x),
    "hard_sigmoid": lambda p, dy, x: _inside(dy, x, -3.0, 3.0) / 6.0,
    "hard_swish": lambda p, dy, x: hard_swish_backward(dy, x),
    "hard_tanh": lambda p, dy, x: _inside(dy, x, -1.0, 1.0),
}

BACKWARD_FROM_OUTPUT: dict[str, Callable[[P, Array, Array], Array]] = {
    "identity": lambda p, dy, y: dy,
    "relu": lambda p, dy, y: np.where(y > 0.0, dy, 0.0),
    "clipped_relu": lambda p, dy, y: _inside(dy, y, 0.0, p.ceiling),
    "leaky_relu": lambda p, dy, y: np.where(y > 0.0, dy, p.negative_slope * dy),
    "elu": lambda p, dy, y: np.where(y > 0.0, dy, dy * (y + p.alpha)),
    "selu": lambda p, dy, y: np.where(y > 0.0, SELU_SCALE * dy, dy * (y + SELU_SCALE * SELU_ALPHA)),
    "softplus": lambda p, dy, y: -dy * np.expm1(_times(-p.beta, y)),
    "sigmoid": lambda p, dy, y: dy * (y * (1.0 - y)),
    "tanh": lambda p, dy, y: dy * (1.0 - np.square(y)),
    "hard_sigmoid": lambda p, dy, y: _inside(dy, y, 0.0, 1.0) / 6.0,
    "hard_tanh": lambda p, dy, y: _inside(dy, y, -1.0, 1.0),
}
