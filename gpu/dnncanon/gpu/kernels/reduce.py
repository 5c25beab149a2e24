"""What the reductions combine, as monoids of the reduction engine, and their gradients as row maps.

Reductions that differ in one step share a kernel, in which a scalar tells them apart: the choice is the same
for all threads, and memory is what they wait for. The scalar is the place in the tuple of names.
"""

from functools import cache
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.row_map import RowMap
from dnncanon.gpu.kernels.rows import add, larger
from dnncanon.gpu.kernels.softmax import combine as combine_exponentials
from dnncanon.gpu.runtime.device_code import device_function, types

SUMS = ("add", "avg", "norm1")
EXTREMA = ("max", "min", "amax")
PRODUCTS = ("mul", "mul_no_zeros")

NOWHERE = 2**62
"""The index of no element: larger than any."""

_int64, _float64 = types.int64, types.float64


# --- Sums -----------------------------------------------------------------------------------------


@device_function
def _term(x: Any, code: Any, count: Any) -> Any:
    return abs(x) if code == 2 else x


@device_function
def _total_or_mean(total: Any, code: Any, count: Any) -> Any:
    return total / count if code == 1 else total


@device_function
def _total(total: Any, code: Any, count: Any) -> Any:
    return total


FLOAT_SUMS = Monoid(("sum",), (0,), _term, add, _total_or_mean)
"""Scalars: the place in SUMS, and n as a float."""

INTEGER_SUMS = Monoid(("sum",), (0,), _term, add, _total)


# --- Extrema --------------------------------------------------------------------------------------
# The largest key is looked for: x, −x or |x|.


@device_function
def _key(x: Any, code: Any) -> Any:
    if code == 0:
        return x
    return -x if code == 1 else abs(x)


@device_function
def _extremum(key: Any, code: Any) -> Any:
    if code == 2 and key < 0:
        return 0  # no element has such a magnitude: the set is empty
    return -key if code == 1 else key


@device_function
def _indexed_key(x: Any, code: Any, index: Any) -> Any:
    return _key(x, code), index


@device_function
def _larger_or_first(a: Any, b: Any) -> Any:
    """The state with the larger key, NaN being the largest, and of equal ones that with the lower index."""
    a_is_nan, b_is_nan = a[0] != a[0], b[0] != b[0]
    if a[0] == b[0] or (a_is_nan and b_is_nan):
        return a if a[1] < b[1] else b
    return b if b_is_nan or b[0] > a[0] else a


@device_function
def _extremum_and_index(state: Any, code: Any) -> Any:
    return _extremum(state[0], code), -1 if state[1] == NOWHERE else state[1]


def extrema(dtype: str, *, indices: bool) -> Monoid:
    """The extremum of a set, and with ``indices`` where it is first. Scalar: the place in EXTREMA."""
    least = -inf if ELEMENTS[dtype].sum_dtype.kind == "f" else -(2**63 - 1)
    if indices:
        state, ends = ("sum", "int64"), (least, NOWHERE)
        return Monoid(state, ends, _indexed_key, _larger_or_first, _extremum_and_index, index=True)
    return Monoid(("sum",), (least,), _key, larger, _extremum)


@device_function
def _indexed_key_beside_dy(x: Any, dy: Any, code: Any, index: Any) -> Any:
    return _key(x, code), index


@device_function
def _index(state: Any, code: Any) -> Any:
    return state[1]


@cache
def extremum_gradient(dtype: str) -> RowMap:
    """dx from x and dy: dy where the extremum is. Scalar: the place in EXTREMA."""
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def apply(x: Any, dy: Any, winner: Any, code: Any, index: Any) -> Any:
        if index != winner or (code == 2 and x == zero):
            return zero
        if code == 2:
            return x if x != x else (-dy if x < zero else dy)
        return dy

    state, ends = ("sum", "int64"), (-inf, NOWHERE)
    monoid = Monoid(state, ends, _indexed_key_beside_dy, _larger_or_first, _index, index=True)
    return RowMap(monoid, apply)


# --- Products -------------------------------------------------------------------------------------
# In float64: what overflows in float32 half-way need not do so at the end.


@device_function
def _factor(x: Any, code: Any) -> Any:
    return _float64(1.0) if code == 1 and x == 0 else _float64(x)


@device_function
def _times(a: Any, b: Any) -> Any:
    return a * b


@device_function
def _product(state: Any, code: Any) -> Any:
    return state


FLOAT_PRODUCTS = Monoid(("float64",), (1,), _factor, _times, _product)
"""Scalar: the place in PRODUCTS."""


@device_function
def _factor_and_zero(x: Any, dy: Any, code: Any) -> Any:
    if x == 0:
        return _float64(1.0), _int64(1)
    return _float64(x), _int64(0)


@device_function
def _times_and_plus(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] + b[1]


@device_function
def _product_gradient(x: Any, dy: Any, known: Any, code: Any) -> Any:
    """dy·Π_{j≠i} x_j: known are the product without zeros, and how many zeros there are."""
    if x == 0:
        return dy * known[0] if code == 0 and known[1] == 1 else _float64(0.0)
    return _float64(0.0) if code == 0 and known[1] > 0 else dy * (known[0] / x)


PRODUCT_GRADIENT = RowMap(
    Monoid(("float64", "int64"), (1, 0), _factor_and_zero, _times_and_plus, _product),
    _product_gradient,
)
"""dx from x and dy. Scalar: the place in PRODUCTS."""


# --- The Euclidean norm ---------------------------------------------------------------------------
# Blue (1978) and LAPACK's dnrm2: three sums of squares, of large elements scaled down, of small ones scaled
# up, and of those between. The scales are powers of two, so that scaling is exact.


@device_function
def _add_three(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@cache
def _squares(kind: str) -> tuple[Any, Any]:
    """lift(x), the three sums of one element; root(sums): (r, f) such that the norm is r/f."""
    number, info = ELEMENTS[kind].sum, np.finfo(kind)
    low, high, digits = int(info.minexp) + 1, int(info.maxexp), int(info.nmant) + 1
    small, large = number(2.0 ** -((1 - low) // 2)), number(2.0 ** ((high - digits + 1) // 2))
    up, down = number(2.0 ** -((low - digits) // 2)), number(2.0 ** -((high + digits) // 2))
    zero, one = number(0), number(1)

    @device_function
    def lift(x: Any) -> Any:
        size = abs(x)
        if size > large:
            return (size * down) * (size * down), zero, zero
        if size < small:
            return zero, zero, (size * up) * (size * up)
        return zero, size * size, zero

    @device_function
    def root(sums: Any) -> Any:
        if sums[0] > zero:
            return sqrt(sums[0] + (sums[1] * down) * down), down
        if sums[1] == zero:
            return sqrt(sums[2]), up
        return sqrt(sums[1] + (sums[2] / up) / up), one

    return lift, root


@cache
def norm(dtype: str) -> Monoid:
    """√(Σ x²)"""
    lift, root = _squares(ELEMENTS[dtype].sum_dtype.name)

    @device_function
    def finish(state: Any) -> Any:
        found = root(state)
        return found[0] / found[1]

    return Monoid(("sum",) * 3, (0, 0, 0), lift, _add_three, finish)


@cache
def norm_gradient(dtype: str) -> RowMap:
    """dx from x and dy: dy·x/‖x‖"""
    lift, root = _squares(ELEMENTS[dtype].sum_dtype.name)
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def lift_x(x: Any, dy: Any) -> Any:
        return lift(x)

    @device_function
    def apply(x: Any, dy: Any, known: Any) -> Any:
        return zero if known[0] == zero else dy * (x * known[1] / known[0])

    return RowMap(Monoid(("sum",) * 3, (0, 0, 0), lift_x, _add_three, root), apply)


# --- logsumexp ------------------------------------------------------------------------------------


@cache
def logsumexp(dtype: str) -> Monoid:
    """m + ln Σ e^(x − m)"""
    one = ELEMENTS[dtype].sum(1)

    @device_function
    def lift(x: Any) -> Any:
        return x, one

    @device_function
    def finish(state: Any) -> Any:
        return state[0] + log(state[1])

    return Monoid(("sum", "sum"), (-inf, 0), lift, combine_exponentials, finish)


@cache
def logsumexp_gradient(dtype: str) -> RowMap:
    """dx from x and dy: dy·e^(x − m)/s. m − m is NaN where m is +Inf; where it is −Inf dx is 0."""
    zero, one, least = (ELEMENTS[dtype].sum(value) for value in (0, 1, -inf))

    @device_function
    def lift(x: Any, dy: Any) -> Any:
        return x, one

    @device_function
    def finish(state: Any) -> Any:
        return state[0], state[1] + (state[0] - state[0])

    @device_function
    def apply(x: Any, dy: Any, known: Any) -> Any:
        return zero if known[0] == least else dy * (exp(x - known[0]) / known[1])

    return RowMap(Monoid(("sum", "sum"), (-inf, 0), lift, combine_exponentials, finish), apply)


# --- Gradients that need no set -------------------------------------------------------------------


@device_function
def shared(dy: Any, count: Any) -> Any:
    """dy/n: of add, with n = 1, and of avg."""
    return dy / count


@cache
def signed(dtype: str) -> Any:
    """sign(x)·dy, 0 where x is 0, and NaN where it is NaN."""
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def signed_dy(x: Any, dy: Any) -> Any:
        if x != x:
            return x
        return zero if x == zero else (-dy if x < zero else dy)

    return signed_dy
