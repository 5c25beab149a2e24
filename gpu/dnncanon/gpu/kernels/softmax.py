"""Softmax as a row map: the maximum and the sum of a row in one reading, then its elements.

The state of a part of a row is (m, s), its maximum and Σ e^(x − m). Two parts are combined by one exponential,
e^−|m − m′|, by which the sum below the larger maximum is scaled (Milakov and Gimelshein 2018). Nothing is
−Inf with the sum 0.
"""

from functools import cache
from math import exp, inf, log
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.row_map import RowMap
from dnncanon.gpu.kernels.rows import add, larger
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec.softmax import stats_dtype


@device_function
def combine(a: Any, b: Any) -> Any:
    """The maximum of both, and the sum of both below it. Equal maxima may be infinite."""
    top = larger(a[0], b[0])
    if a[0] == b[0]:
        return top, a[1] + b[1]
    power = exp(-abs(a[0] - b[0]))
    total = a[1] + b[1] * power if a[0] > b[0] else a[1] * power + b[1]
    return top, total


@cache
def exponentials(kind: str) -> Monoid:
    """(m, s) of a row, as it is; ``kind`` is the type of sums."""
    number = ELEMENTS[kind].sum
    one = number(1)

    @device_function
    def lift(x: Any) -> Any:
        return x, one

    return Monoid(("sum", "sum"), (-inf, 0.0), lift, combine, as_it_is)


@device_function
def as_it_is(state: Any) -> Any:
    return state


@device_function
def logarithm_of_sum(state: Any) -> Any:
    """m + ln s"""
    return state[0] + log(state[1])


@cache
def forward(dtype: str, *, masked: bool) -> RowMap:
    """y from x and, if it is ``masked``, a mask; of the row m + ln s. Scalar: whether the logarithm is wanted.

    m − m is 0, or NaN where m is infinite, as is then every y.
    """
    number = ELEMENTS[dtype].sum
    zero, one, least = number(0), number(1), number(-inf)
    plain = exponentials(ELEMENTS[dtype].sum_dtype.name)

    @device_function
    def unmasked_lift(x: Any, logarithm: Any) -> Any:
        return x, one

    @device_function
    def masked_lift(x: Any, mask: Any, logarithm: Any) -> Any:
        return (x, one) if mask != 0 else (least, zero)

    @device_function
    def finish(state: Any, logarithm: Any) -> Any:
        power = log(state[1])
        known = power if logarithm else state[1]
        return state[0], known + (state[0] - state[0]), state[0] + power

    @device_function
    def softmax(x: Any, known: Any, logarithm: Any) -> Any:
        shifted = x - known[0]
        return shifted - known[1] if logarithm else exp(shifted) / known[1]

    @device_function
    def masked_softmax(x: Any, mask: Any, known: Any, logarithm: Any) -> Any:
        if mask == 0:
            return least if logarithm else zero
        return softmax(x, known, logarithm)

    @device_function
    def stats(known: Any) -> Any:
        return known[2]

    lift, apply = (masked_lift, masked_softmax) if masked else (unmasked_lift, softmax)
    monoid = Monoid(plain.state, plain.identity, lift, combine, finish)
    return RowMap(monoid, apply, stats, stats_dtype(dtype))


@cache
def backward(dtype: str, *, masked: bool) -> RowMap:
    """dx from y, dy and, if it is ``masked``, a mask. Scalar: whether y is the logarithm."""
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def term(y: Any, dy: Any, logarithm: Any) -> Any:
        return dy if logarithm else y * dy

    @device_function
    def gradient(y: Any, dy: Any, total: Any, logarithm: Any) -> Any:
        return dy - exp(y) * total if logarithm else y * (dy - total)

    @device_function
    def masked_term(y: Any, dy: Any, mask: Any, logarithm: Any) -> Any:
        return term(y, dy, logarithm) if mask != 0 else zero

    @device_function
    def masked_gradient(y: Any, dy: Any, mask: Any, total: Any, logarithm: Any) -> Any:
        return gradient(y, dy, total, logarithm) if mask != 0 else zero

    @device_function
    def finish(total: Any, logarithm: Any) -> Any:
        return total

    lift, apply = (masked_term, masked_gradient) if masked else (term, gradient)
    return RowMap(Monoid(("sum",), (0.0,), lift, add, finish), apply)
