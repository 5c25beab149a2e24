"""Pointwise operations, defined: one line for each mode. Activations are those of the family of that name."""

from collections.abc import Callable

import numpy as np

from dnncanon import spec
from dnncanon.reference import activation as act
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.pointwise import PointwiseProblem


@defines(spec.pointwise_operation)
def pointwise_operation(
    p: PointwiseProblem, x: Array, b: Array | None = None, t: Array | None = None
) -> Array:
    """y = f(α1·x, α2·b, t)"""
    x = x if p.alpha1 == 1.0 else p.alpha1 * x
    b = b if b is None or p.alpha2 == 1.0 else p.alpha2 * b
    return applied(p, *(operand for operand in (x, b, t) if operand is not None))


def applied(p: PointwiseProblem, *operands: Array) -> Array:
    """f(x), f(x, b) or f(x, b, t), of operands that are scaled already"""
    table = (UNARY, BINARY, TERNARY)[len(operands) - 1]
    return table[p.mode](p, *operands)


def floor_mod(x: Array, b: Array) -> Array:
    """x − b·⌊x/b⌋: the remainder of truncated division, brought to the sign of b."""
    remainder = np.fmod(x, b)
    other_sign = (remainder != 0.0) & ((remainder < 0.0) != (b < 0.0))
    return np.where(other_sign, remainder + b, remainder)


def relu(p: PointwiseProblem, x: Array) -> Array:
    """x < L ? L + s·(x − L) : min(x, U), where s = 0 means L, for x = −Inf as well."""
    low, slope = p.relu_lower_clip, p.relu_lower_clip_slope
    below = low if slope == 0.0 else low + slope * (x - low)
    return np.where(x < low, below, np.minimum(x, p.relu_upper_clip))


def relu_backward(p: PointwiseProblem, dy: Array, x: Array) -> Array:
    """x <= L ? s·dy : x < U ? dy : 0"""
    slope = p.relu_lower_clip_slope
    below = 0.0 if slope == 0.0 else slope * dy
    above = np.where(x < p.relu_upper_clip, dy, 0.0)
    return np.where(x > p.relu_lower_clip, above, below)


def index_along(p: PointwiseProblem) -> Array:
    """0, 1, 2, … along the axis"""
    extents = [n if dim == p.axis else 1 for dim, n in enumerate(p.shape)]
    return np.broadcast_to(np.arange(p.shape[p.axis]).reshape(extents), p.shape)


# --- By mode --------------------------------------------------------------------------------------

P = PointwiseProblem

UNARY: dict[str, Callable[..., Array]] = {
    "identity": lambda p, x: x,
    "abs": lambda p, x: np.abs(x),
    "neg": lambda p, x: -x,
    "ceil": lambda p, x: np.ceil(x),
    "floor": lambda p, x: np.floor(x),
    "sqrt": lambda p, x: np.sqrt(x),
    "rsqrt": lambda p, x: 1.0 / np.sqrt(x),
    "reciprocal": lambda p, x: 1.0 / x,
    "exp": lambda p, x: np.exp(x),
    "log": lambda p, x: np.log(x),
    "erf": lambda p, x: act.erf(x),
    "sin": lambda p, x: np.sin(x),
    "cos": lambda p, x: np.cos(x),
    "tan": lambda p, x: np.tan(x),
    "relu_fwd": relu,
    "tanh_fwd": lambda p, x: np.tanh(x),
    "sigmoid_fwd": lambda p, x: act.sigmoid(x),
    "elu_fwd": lambda p, x: act.elu(x, p.elu_alpha),
    "gelu_fwd": lambda p, x: act.gelu(x),
    "gelu_approx_tanh_fwd": lambda p, x: act.gelu_tanh(x),
    "softplus_fwd": lambda p, x: act.softplus(x, p.softplus_beta),
    "swish_fwd": lambda p, x: act.swish(x, p.swish_beta),
    "logical_not": lambda p, x: np.logical_not(x),
    "gen_index": lambda p, x: index_along(p),
}

BINARY: dict[str, Callable[..., Array]] = {
    "add": lambda p, x, b: x + b,
    "sub": lambda p, x, b: x - b,
    "mul": lambda p, x, b: x * b,
    "div": lambda p, x, b: x / b,
    "add_square": lambda p, x, b: x + np.square(b),
    "min": lambda p, x, b: np.minimum(x, b),
    "max": lambda p, x, b: np.maximum(x, b),
    "mod": lambda p, x, b: np.fmod(x, b),
    "floor_mod": lambda p, x, b: floor_mod(x, b),
    "pow": lambda p, x, b: np.power(x, b),
    "atan2": lambda p, x, b: np.arctan2(x, b),
    "relu_bwd": relu_backward,
    "tanh_bwd": lambda p, dy, x: dy * act.sech_squared(x),
    "sigmoid_bwd": lambda p, dy, x: dy * (act.sigmoid(x) * act.sigmoid(-x)),
    "elu_bwd": lambda p, dy, x: act.elu_backward(dy, x, p.elu_alpha),
    "gelu_bwd": lambda p, dy, x: act.gelu_backward(dy, x),
    "gelu_approx_tanh_bwd": lambda p, dy, x: act.gelu_tanh_backward(dy, x),
    "softplus_bwd": lambda p, dy, x: act.softplus_backward(dy, x, p.softplus_beta),
    "swish_bwd": lambda p, dy, x: act.swish_backward(dy, x, p.swish_beta),
    "cmp_eq": lambda p, x, b: x == b,
    "cmp_neq": lambda p, x, b: x != b,
    "cmp_gt": lambda p, x, b: x > b,
    "cmp_ge": lambda p, x, b: x >= b,
    "cmp_lt": lambda p, x, b: x < b,
    "cmp_le": lambda p, x, b: x <= b,
    "logical_and": lambda p, x, b: np.logical_and(x, b),
    "logical_or": lambda p, x, b: np.logical_or(x, b),
}

TERNARY: dict[str, Callable[..., Array]] = {
    "binary_select": lambda p, x, b, t: np.where(t != 0.0, x, b),
}
