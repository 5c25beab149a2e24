"""Activation functions as device functions, by mode, for computation in float32 or float64.

Each takes, behind its operands, the one parameter that its mode has. e = exp(−|x|) keeps results accurate
and finite in the tails; where a factor x would meet a 0 it is cut, for Inf·0 is NaN. Comparisons are
written so that a NaN goes the way that the specification says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.choosing import chosen
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec.activation import GELU_TANH_CUBIC, SELU_ALPHA, SELU_SCALE

Function = Callable[..., Any]

COMMON = ("relu", "gelu", "gelu_tanh", "swish")
"""Modes that have kernels of their own; the others share two, one for straight and one for smooth functions."""

_BEYOND_EXP, _BEYOND_NORMAL = 1000.0, 40.0
"""Where exp(−x) and the normal distribution of −x are 0 in float64."""


@dataclass(frozen=True)
class Functions:
    """f(x, parameter), f(dy, x, parameter) and, of the output, f(dy, y, parameter), by mode."""

    forward: dict[str, Function]
    backward: dict[str, Function]
    backward_from_output: dict[str, Function]

    @property
    def tables(self) -> dict[str, dict[str, Function]]:
        """By name."""
        return dict(vars(self))


def functions(dtype: str) -> Functions:
    """The functions for tensors of ``dtype``."""
    return _functions(ELEMENTS[dtype].sum_dtype.name)


@cache
def _functions(kind: str) -> Functions:
    forward, backward = _smooth(kind)
    cornered, cornered_backward, from_output = _cornered(kind)
    return Functions(
        {**cornered, **forward},
        {**cornered_backward, **backward},
        {**from_output, **_of_output(kind)},
    )


def selected(dtype: str, table: str, mode: str) -> tuple[Function, tuple[int, ...]]:
    """The function to launch for a mode of a table, and the scalars that go behind its parameter."""
    kind = ELEMENTS[dtype].sum_dtype.name
    if mode in COMMON:
        return _functions(kind).tables[table][mode], ()
    function, codes = _shared(kind, table, mode in _smooth(kind)[0])
    return function, (codes[mode],)


@cache
def _shared(kind: str, table: str, smooth: bool) -> tuple[Function, dict[str, int]]:
    rare = {
        mode: function
        for mode, function in _functions(kind).tables[table].items()
        if mode not in COMMON and (mode in _smooth(kind)[0]) == smooth
    }
    return chosen(rare, 2 if table == "forward" else 3)


# --- Smooth functions -----------------------------------------------------------------------------


@cache
def _smooth(kind: str) -> tuple[dict[str, Function], dict[str, Function]]:
    number = ELEMENTS[kind].sum
    zero, one, two, half = number(0), number(1), number(2), number(0.5)
    four, third, sixth = number(4), number(1 / 3), number(1 / 6)
    root_half, density_at_0 = number(0.5**0.5), number((2.0 * math.pi) ** -0.5)
    cubic, cubic_slope = number(GELU_TANH_CUBIC), number(3 * GELU_TANH_CUBIC)
    twice_root = number(2 * (2.0 / math.pi) ** 0.5)
    beyond_exp, beyond_normal, three = number(_BEYOND_EXP), number(_BEYOND_NORMAL), number(3)

    @device_function
    def cut(x: Any, limit: Any) -> Any:
        return -limit if x < -limit else (limit if x > limit else x)

    @device_function
    def cut_below(x: Any, limit: Any) -> Any:
        return -limit if x < -limit else x

    @device_function
    def sigmoid_of(x: Any) -> Any:
        e = math.exp(-abs(x))
        return (e if x < zero else one) / (one + e)

    # tanh(softplus(x)) is n/d, and one minus its square 4·q·(1 + e)²/d², with e = exp(−|x|).

    @device_function
    def mish(x: Any, parameter: Any) -> Any:
        e = math.exp(-abs(x))
        if x < zero:
            n, d = e * (e + two), e * (e + two) + two
        else:
            n, d = one + two * e, one + two * e * (one + e)
        return cut_below(x, beyond_exp) * (n / d)

    @device_function
    def mish_backward(dy: Any, given: Any, parameter: Any) -> Any:
        x = cut(given, beyond_exp)
        e = math.exp(-abs(x))
        if x < zero:
            n, d, q = e * (e + two), e * (e + two) + two, e
        else:
            n, d, q = one + two * e, one + two * e * (one + e), e * e
        return dy * (n / d + x * (four * q * (one + e)) / (d * d))

    @device_function
    def sigmoid(x: Any, parameter: Any) -> Any:
        return sigmoid_of(x)

    @device_function
    def sigmoid_backward(dy: Any, x: Any, parameter: Any) -> Any:
        e = math.exp(-abs(x))
        return dy * (e / ((one + e) * (one + e)))

    @device_function
    def tanh(x: Any, parameter: Any) -> Any:
        return math.tanh(x)

    @device_function
    def tanh_backward(dy: Any, x: Any, parameter: Any) -> Any:
        e = math.exp(-two * abs(x))
        return dy * (four * e / ((one + e) * (one + e)))

    @device_function
    def softplus(x: Any, beta: Any) -> Any:
        return (x if x > zero else zero) + math.log1p(math.exp(-abs(beta * x))) / beta

    @device_function
    def softplus_backward(dy: Any, x: Any, beta: Any) -> Any:
        return dy * sigmoid_of(beta * x)

    @device_function
    def swish(x: Any, beta: Any) -> Any:
        return cut_below(x, beyond_exp / beta) * sigmoid_of(beta * x)

    @device_function
    def swish_backward(dy: Any, x: Any, beta: Any) -> Any:
        bx = cut(beta * x, beyond_exp)
        e = math.exp(-abs(bx))
        positive, negative = (e, one) if bx < zero else (one, e)
        return dy * (positive / (one + e) * (one + bx * (negative / (one + e))))

    @device_function
    def gelu(x: Any, parameter: Any) -> Any:
        return cut_below(x, beyond_normal) * (half * math.erfc(-root_half * x))

    @device_function
    def gelu_backward(dy: Any, given: Any, parameter: Any) -> Any:
        x = cut(given, beyond_normal)
        density = density_at_0 * math.exp(-half * (x * x))
        return dy * (half * math.erfc(-root_half * x) + x * density)

    @device_function
    def gelu_tanh(x: Any, parameter: Any) -> Any:
        two_u = twice_root * x * (one + cubic * (x * x))
        return cut_below(x, beyond_normal) * sigmoid_of(two_u)

    @device_function
    def gelu_tanh_backward(dy: Any, given: Any, parameter: Any) -> Any:
        x = cut(given, beyond_normal)
        two_u = twice_root * x * (one + cubic * (x * x))
        slope = twice_root * (one + cubic_slope * (x * x))
        return dy * (sigmoid_of(two_u) * (one + x * slope * sigmoid_of(-two_u)))

    @device_function
    def elu(x: Any, alpha: Any) -> Any:
        return x if x > zero else alpha * math.expm1(x)

    @device_function
    def elu_backward(dy: Any, x: Any, alpha: Any) -> Any:
        return dy if x > zero else dy * (alpha * math.exp(x))

    scale, scaled_alpha = number(SELU_SCALE), number(SELU_SCALE * SELU_ALPHA)

    @device_function
    def selu(x: Any, parameter: Any) -> Any:
        return scale * x if x > zero else scaled_alpha * math.expm1(x)

    @device_function
    def selu_backward(dy: Any, x: Any, parameter: Any) -> Any:
        return dy * (scale if x > zero else scaled_alpha * math.exp(x))

    @device_function
    def hard_swish(x: Any, parameter: Any) -> Any:
        inner = x * sixth + half
        inner = zero if inner < zero else (one if inner > one else inner)
        return cut_below(x, three) * inner

    @device_function
    def hard_swish_backward(dy: Any, x: Any, parameter: Any) -> Any:
        if x <= -three:
            return zero
        return dy if x >= three else dy * (x * third + half)

    forward = {
        "elu": elu,
        "selu": selu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "swish": swish,
        "softplus": softplus,
        "sigmoid": sigmoid,
        "tanh": tanh,
        "mish": mish,
        "hard_swish": hard_swish,
    }
    backward = {
        "elu": elu_backward,
        "selu": selu_backward,
        "gelu": gelu_backward,
        "gelu_tanh": gelu_tanh_backward,
        "swish": swish_backward,
        "softplus": softplus_backward,
        "sigmoid": sigmoid_backward,
        "tanh": tanh_backward,
        "mish": mish_backward,
        "hard_swish": hard_swish_backward,
    }
    return forward, backward


# --- Functions of straight pieces -----------------------------------------------------------------


@cache
def _cornered(kind: str) -> tuple[dict[str, Function], ...]:
    """Forward, backward, and backward from the output."""
    number = ELEMENTS[kind].sum
    zero, one, half, three, sixth = (number(v) for v in (0, 1, 0.5, 3, 1 / 6))

    @device_function
    def identity(x: Any, parameter: Any) -> Any:
        return x

    @device_function
    def relu(x: Any, parameter: Any) -> Any:
        return zero if x < zero else x

    @device_function
    def relu_of_numbers(x: Any, parameter: Any) -> Any:
        return x if x > zero else zero

    @device_function
    def clipped_relu(x: Any, ceiling: Any) -> Any:
        return zero if x < zero else (ceiling if x > ceiling else x)

    @device_function
    def clipped_relu_of_numbers(x: Any, ceiling: Any) -> Any:
        return (ceiling if x > ceiling else x) if x > zero else zero

    @device_function
    def leaky_relu(x: Any, slope: Any) -> Any:
        return x if x > zero else slope * x

    @device_function
    def hard_sigmoid(x: Any, parameter: Any) -> Any:
        y = x * sixth + half
        return zero if y < zero else (one if y > one else y)

    @device_function
    def hard_tanh(x: Any, parameter: Any) -> Any:
        return -one if x < -one else (one if x > one else x)

    @device_function
    def identity_backward(dy: Any, x: Any, parameter: Any) -> Any:
        return dy

    @device_function
    def relu_backward(dy: Any, x: Any, parameter: Any) -> Any:
        return dy if x > zero else zero

    @device_function
    def clipped_relu_backward(dy: Any, x: Any, ceiling: Any) -> Any:
        return dy if x > zero and x < ceiling else zero

    @device_function
    def leaky_relu_backward(dy: Any, x: Any, slope: Any) -> Any:
        return dy if x > zero else slope * dy

    @device_function
    def hard_sigmoid_backward(dy: Any, x: Any, parameter: Any) -> Any:
        return dy * sixth if x > -three and x < three else zero

    @device_function
    def hard_sigmoid_from_output(dy: Any, y: Any, parameter: Any) -> Any:
        return dy * sixth if y > zero and y < one else zero

    @device_function
    def hard_tanh_backward(dy: Any, x: Any, parameter: Any) -> Any:
        return dy if x > -one and x < one else zero

    forward = {
        "identity": identity,
        "relu": relu,
        "relu_of_numbers": relu_of_numbers,
        "clipped_relu": clipped_relu,
        "clipped_relu_of_numbers": clipped_relu_of_numbers,
        "leaky_relu": leaky_relu,
        "hard_sigmoid": hard_sigmoid,
        "hard_tanh": hard_tanh,
    }
    backward = {
        "identity": identity_backward,
        "relu": relu_backward,
        "clipped_relu": clipped_relu_backward,
        "leaky_relu": leaky_relu_backward,
        "hard_sigmoid": hard_sigmoid_backward,
        "hard_tanh": hard_tanh_backward,
    }
    # Of the output these are the same, but for the ends of hard_sigmoid.
    return forward, backward, {**backward, "hard_sigmoid": hard_sigmoid_from_output}


@cache
def _of_output(kind: str) -> dict[str, Function]:
    """Slopes of smooth functions by their output."""
    number = ELEMENTS[kind].sum
    zero, one = number(0), number(1)
    scale, scaled_alpha = number(SELU_SCALE), number(SELU_SCALE * SELU_ALPHA)

    @device_function
    def elu(dy: Any, y: Any, alpha: Any) -> Any:
        return dy if y > zero else dy * (y + alpha)

    @device_function
    def selu(dy: Any, y: Any, parameter: Any) -> Any:
        return dy * (scale if y > zero else y + scaled_alpha)

    @device_function
    def softplus(dy: Any, y: Any, beta: Any) -> Any:
        return dy * -math.expm1(-beta * y)

    @device_function
    def sigmoid(dy: Any, y: Any, parameter: Any) -> Any:
        return dy * (y * (one - y))

    @device_function
    def tanh(dy: Any, y: Any, parameter: Any) -> Any:
        return dy * (one - y * y)

    return {"elu": elu, "selu": selu, "softplus": softplus, "sigmoid": sigmoid, "tanh": tanh}
