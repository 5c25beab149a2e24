"""Pointwise operations as device functions, by mode: of floats, with their factors, and of integers in int64.

Modes that networks use all the time have kernels of their own; the others of a kind share one.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels import activation
from dnncanon.gpu.kernels.choosing import chosen
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec.pointwise import MODES

Function = Callable[..., Any]
Table = dict[str, Function]

COMMON = ("add", "mul", "max")
"""Modes that have kernels of their own, beside those activations that have."""

ACTIVATIONS = {
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "elu": "elu",
    "gelu": "gelu",
    "gelu_approx_tanh": "gelu_tanh",
    "softplus": "softplus",
    "swish": "swish",
}
"""Activation modes, without _fwd and _bwd, and what the activation family calls them."""


@cache
def _shared(kind: str, operands: int) -> tuple[Function, dict[str, int]]:
    """The kernel function of all modes of one or two operands that have none of their own."""
    table = {1: unary, 2: binary}[operands](kind)
    rare = {mode: function for mode, function in table.items() if mode not in COMMON}
    return chosen(rare, 2 * operands)


def selected(dtype: str, mode: str) -> tuple[Function, tuple[int, ...]]:
    """The function to launch for a mode, and the scalars that go behind its factors and parameters."""
    kind = ELEMENTS[dtype].sum_dtype.name
    operands = len(MODES[mode].operands)
    if mode in OTHERS:
        return OTHERS[mode], ()
    if mode.startswith("relu"):
        return relu(kind)[mode], ()
    if (name := mode[: -len("_fwd")]) in ACTIVATIONS:
        table = "forward" if mode.endswith("_fwd") else "backward"
        return activation.selected(dtype, table, ACTIVATIONS[name])
    if mode.startswith("cmp_"):
        return _compared()[0], (_compared()[1][mode],)
    if kind == "int64":
        return _of_integers(operands)[0], (_of_integers(operands)[1][mode],)
    if mode in COMMON:
        return binary(kind)[mode], ()
    function, codes = _shared(kind, operands)
    return function, (codes[mode],)


def plain(kind: str, mode: str, *, truths: bool = False) -> Function:
    """The function of one mode alone, for numbers of ``kind`` or for truth values.

    Behind its operands it takes what ``dnncanon.gpu.pointwise.scalars`` lists.
    """
    if mode in OTHERS:
        return OTHERS[mode]
    if mode in COMPARISONS:
        return COMPARISONS[mode]
    if truths:
        return INTEGERS[len(MODES[mode].operands)][mode]
    if mode in relu(kind):
        return relu(kind)[mode]
    if (name := mode[: -len("_fwd")]) in ACTIVATIONS:
        found = activation.functions(kind)
        return (found.forward if mode.endswith("_fwd") else found.backward)[ACTIVATIONS[name]]
    return (unary(kind) | binary(kind))[mode]


# --- Floats: f(x, α1) and f(x, b, α1, α2) ---------------------------------------------------------


@cache
def unary(kind: str) -> Table:
    one = ELEMENTS[kind].sum(1)

    @device_function
    def identity(x: Any, alpha: Any) -> Any:
        return alpha * x

    @device_function
    def absolute(x: Any, alpha: Any) -> Any:
        return abs(alpha * x)

    @device_function
    def negative(x: Any, alpha: Any) -> Any:
        return -alpha * x

    @device_function
    def ceil(x: Any, alpha: Any) -> Any:
        return math.ceil(x)

    @device_function
    def floor(x: Any, alpha: Any) -> Any:
        return math.floor(x)

    @device_function
    def sqrt(x: Any, alpha: Any) -> Any:
        return math.sqrt(alpha * x)

    @device_function
    def rsqrt(x: Any, alpha: Any) -> Any:
        return one / math.sqrt(alpha * x)

    @device_function
    def reciprocal(x: Any, alpha: Any) -> Any:
        return one / (alpha * x)

    @device_function
    def exp(x: Any, alpha: Any) -> Any:
        return math.exp(alpha * x)

    @device_function
    def log(x: Any, alpha: Any) -> Any:
        return math.log(alpha * x)

    @device_function
    def erf(x: Any, alpha: Any) -> Any:
        return math.erf(alpha * x)

    @device_function
    def sin(x: Any, alpha: Any) -> Any:
        return math.sin(alpha * x)

    @device_function
    def cos(x: Any, alpha: Any) -> Any:
        return math.cos(alpha * x)

    @device_function
    def tan(x: Any, alpha: Any) -> Any:
        return math.tan(alpha * x)

    return {
        "identity": identity,
        "abs": absolute,
        "neg": negative,
        "ceil": ceil,
        "floor": floor,
        "sqrt": sqrt,
        "rsqrt": rsqrt,
        "reciprocal": reciprocal,
        "exp": exp,
        "log": log,
        "erf": erf,
        "sin": sin,
        "cos": cos,
        "tan": tan,
    }


@cache
def binary(kind: str) -> Table:
    zero = ELEMENTS[kind].sum(0)

    @device_function
    def add(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return alpha1 * x + alpha2 * b

    @device_function
    def sub(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return alpha1 * x - alpha2 * b

    @device_function
    def mul(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return (alpha1 * x) * (alpha2 * b)

    @device_function
    def div(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return (alpha1 * x) / (alpha2 * b)

    @device_function
    def add_square(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        scaled = alpha2 * b
        return alpha1 * x + scaled * scaled

    @device_function
    def minimum(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        first, second = alpha1 * x, alpha2 * b
        return first if first < second or first != first else second

    @device_function
    def maximum(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        first, second = alpha1 * x, alpha2 * b
        return first if first > second or first != first else second

    @device_function
    def mod(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return math.fmod(x, b)

    @device_function
    def floor_mod(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        remainder = math.fmod(x, b)
        other_sign = remainder != zero and (remainder < zero) != (b < zero)
        return remainder + b if other_sign else remainder

    @device_function
    def power(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return math.pow(x, b)

    @device_function
    def atan2(x: Any, b: Any, alpha1: Any, alpha2: Any) -> Any:
        return math.atan2(x, b)

    return {
        "add": add,
        "sub": sub,
        "mul": mul,
        "div": div,
        "add_square": add_square,
        "min": minimum,
        "max": maximum,
        "mod": mod,
        "floor_mod": floor_mod,
        "pow": power,
        "atan2": atan2,
    }


@cache
def relu(kind: str) -> Table:
    """f(x, L, U, s) and f(dy, x, L, U, s); where s is 0 nothing is multiplied, for Inf·0 is NaN."""
    zero = ELEMENTS[kind].sum(0)

    @device_function
    def forward(x: Any, lower: Any, upper: Any, slope: Any) -> Any:
        if x < lower:
            return lower if slope == zero else lower + slope * (x - lower)
        return upper if x > upper else x

    @device_function
    def backward(dy: Any, x: Any, lower: Any, upper: Any, slope: Any) -> Any:
        if x > lower:
            return dy if x < upper else zero
        return zero if slope == zero else slope * dy

    return {"relu_fwd": forward, "relu_bwd": backward}


# --- Integers: f(x) and f(x, b) in int64, which the results fit into ------------------------------


@device_function
def _identity(x: Any) -> Any:
    return x


@device_function
def _absolute(x: Any) -> Any:
    return abs(x)


@device_function
def _negative(x: Any) -> Any:
    return -x


@device_function
def _not(x: Any) -> Any:
    return 1 - x


@device_function
def _add(x: Any, b: Any) -> Any:
    return x + b


@device_function
def _sub(x: Any, b: Any) -> Any:
    return x - b


@device_function
def _mul(x: Any, b: Any) -> Any:
    return x * b


@device_function
def _add_square(x: Any, b: Any) -> Any:
    return x + b * b


@device_function
def _min(x: Any, b: Any) -> Any:
    return min(x, b)


@device_function
def _max(x: Any, b: Any) -> Any:
    return max(x, b)


@device_function
def _floor_mod(x: Any, b: Any) -> Any:
    return x * 0 if b == 0 else x % b


@device_function
def _mod(x: Any, b: Any) -> Any:
    if b == 0:
        return b
    remainder = x % b
    return remainder - b if remainder != 0 and (x < 0) != (b < 0) else remainder


@device_function
def _and(x: Any, b: Any) -> Any:
    return x & b


@device_function
def _or(x: Any, b: Any) -> Any:
    return x | b


INTEGERS: dict[int, Table] = {
    1: {"identity": _identity, "abs": _absolute, "neg": _negative, "logical_not": _not},
    2: {
        "add": _add,
        "sub": _sub,
        "mul": _mul,
        "add_square": _add_square,
        "min": _min,
        "max": _max,
        "mod": _mod,
        "floor_mod": _floor_mod,
        "logical_and": _and,
        "logical_or": _or,
    },
}


@cache
def _of_integers(operands: int) -> tuple[Function, dict[str, int]]:
    return chosen(INTEGERS[operands], operands)


# --- Comparisons and choices, of any type ---------------------------------------------------------


@device_function
def _equal(x: Any, b: Any) -> Any:
    return x == b


@device_function
def _not_equal(x: Any, b: Any) -> Any:
    return x != b


@device_function
def _greater(x: Any, b: Any) -> Any:
    return x > b


@device_function
def _greater_equal(x: Any, b: Any) -> Any:
    return x >= b


@device_function
def _less(x: Any, b: Any) -> Any:
    return x < b


@device_function
def _less_equal(x: Any, b: Any) -> Any:
    return x <= b


COMPARISONS: Table = {
    "cmp_eq": _equal,
    "cmp_neq": _not_equal,
    "cmp_gt": _greater,
    "cmp_ge": _greater_equal,
    "cmp_lt": _less,
    "cmp_le": _less_equal,
}


@cache
def _compared() -> tuple[Function, dict[str, int]]:
    return chosen(COMPARISONS, 2)


@device_function
def _select(x: Any, b: Any, t: Any) -> Any:
    return x if t != 0 else b


@device_function
def _index_along(inner: Any, extent: Any, index: Any) -> Any:
    """The digit of a linear index in a dim of this extent, with so many elements in the dims behind it."""
    return index // inner % extent


OTHERS: Table = {"binary_select": _select, "gen_index": _index_along}
