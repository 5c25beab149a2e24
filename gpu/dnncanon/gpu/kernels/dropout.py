"""Dropout and random numbers as device functions of an element's block of random words and its linear index.

Before these two each takes its operands, its parameters, and the three numbers of the stream, which only
the block is made of. Words are compared as integers; a fraction is made of the upper bits of a word, or of
two, and is exact.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.philox import word
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec import DTYPES

Function = Callable[..., Any]
_int64 = types.int64


# --- Dropout --------------------------------------------------------------------------------------


@cache
def kept(dtype: str) -> Function:
    """x·scale where the word is not below the threshold, else 0."""
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def function(
        x: Any, scale: Any, threshold: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any
    ) -> Any:
        return x * scale if word(block, index) >= threshold else zero

    return function


@cache
def kept_and_mask(dtype: str) -> Function:
    """The same, and whether it was kept."""
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def function(
        x: Any, scale: Any, threshold: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any
    ) -> Any:
        keep = word(block, index) >= threshold
        return (x * scale if keep else zero), keep

    return function


# --- Random numbers -------------------------------------------------------------------------------


@device_function
def bernoulli(threshold: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any) -> Any:
    """Whether the word is below the threshold, as 0 or 1."""
    return _int64(word(block, index) < threshold)


@device_function
def _whole(upper: Any, lower: Any) -> Any:
    """The upper 53 bits of two words."""
    return types.float64(_int64(upper) << 21 | _int64(lower) >> 11)


@cache
def uniform(dtype: str) -> Function:
    """low + width·U(index)"""
    digits = DTYPES[dtype].digits
    kind, shift = ELEMENTS[dtype].sum, 32 - digits
    unit = kind(2.0**-digits)

    @device_function
    def of_a_word(low: Any, width: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any) -> Any:
        return low + width * (kind(word(block, index) >> shift) * unit)

    @device_function
    def of_two_words(
        low: Any, width: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any
    ) -> Any:
        w0, w1, w2, w3 = block
        whole = _whole(w2, w3) if index & 1 else _whole(w0, w1)
        return low + width * (whole * unit)

    return of_two_words if dtype == "float64" else of_a_word


@cache
def normal(kind: str) -> Function:
    """mean + std·r·cos θ of the even one in a pair of elements, and with sin θ of the odd one."""
    number = ELEMENTS[kind].sum
    one, minus_two, full_turn = number(1), number(-2), number(2.0 * math.pi)
    unit, unit_in_word = number(2.0**-53), number(2.0**-24)

    @device_function
    def of_polar(mean: Any, std: Any, u: Any, turn: Any, index: Any) -> Any:
        r, theta = math.sqrt(minus_two * math.log(u)), full_turn * turn
        return mean + std * (r * (math.sin(theta) if index & 1 else math.cos(theta)))

    @device_function
    def of_two_words(mean: Any, std: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any) -> Any:
        w0, w1, w2, w3 = block
        first, second = (w2, w3) if index & 2 else (w0, w1)
        u = (number(first >> 8) + one) * unit_in_word
        return of_polar(mean, std, u, number(second >> 8) * unit_in_word, index)

    @device_function
    def of_four_words(
        mean: Any, std: Any, _1: Any, _2: Any, _3: Any, block: Any, index: Any
    ) -> Any:
        w0, w1, w2, w3 = block
        u, turn = (_whole(w0, w1) + one) * unit, _whole(w2, w3) * unit
        return of_polar(mean, std, u, turn, index)

    return of_four_words if kind == "float64" else of_two_words
