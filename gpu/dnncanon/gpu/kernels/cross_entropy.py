"""Cross entropy: what is combined of a row of logits, and what each row makes of it at its target.

The state of a part of a row is (m, s), its maximum and Σ e^(x − m), as in softmax; with smoothing also
d = Σ w·(m − x) and W = Σ w. Where a maximum grows by g, s is scaled by e^−g, and d grows by W·g: all terms
of d have one sign, and no large x is subtracted from another after they were added up.
"""

from collections.abc import Sequence
from functools import cache
from math import exp, inf, log, nan
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.integers import integer_at
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.row_map import RowMap
from dnncanon.gpu.kernels.rows import add, larger
from dnncanon.gpu.kernels.softmax import combine
from dnncanon.gpu.kernels.strided import Space
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places

THREADS = 128
_RANK = 4
"""Dims that are walked at least, so that few kernels are compiled."""
IGNORED, NO_CLASS = -2, -1
"""What stands in the place of a target."""

_int64, _uint64 = types.int64, types.uint64


# --- A row of logits ------------------------------------------------------------------------------


@cache
def logarithms(dtype: str) -> Monoid:
    """m and ln s of the row; NaN for both where m is infinite: such rows have no limit."""
    one = ELEMENTS[dtype].sum(1)

    @device_function
    def lift(x: Any) -> Any:
        return x, one

    @device_function
    def finish(state: Any) -> Any:
        return state[0], log(state[1]) + (state[0] - state[0])

    return Monoid(("sum", "sum"), (-inf, 0.0), lift, combine, finish)


@device_function
def combine_spread(a: Any, b: Any) -> Any:
    """Of (m, s, d, W). A part of nothing, with s = 0, has no maximum that could be subtracted."""
    if a[1] == 0:
        return b
    if b[1] == 0:
        return a
    top = larger(a[0], b[0])
    if a[0] == b[0]:
        return top, a[1] + b[1], a[2] + b[2], a[3] + b[3]
    gap = abs(a[0] - b[0])
    power = exp(-gap)
    if a[0] > b[0]:
        return top, a[1] + b[1] * power, a[2] + (b[2] + b[3] * gap), a[3] + b[3]
    return top, a[1] * power + b[1], (a[2] + a[3] * gap) + b[2], a[3] + b[3]


@cache
def spread_logarithms(dtype: str, *, weighted: bool) -> Monoid:
    """m, ln s, and Σ w·(ln s − (x − m)) of the row; elements are x and, if ``weighted``, w."""
    zero, one = ELEMENTS[dtype].sum(0), ELEMENTS[dtype].sum(1)

    @device_function
    def lift(x: Any) -> Any:
        return x, one, zero, one

    @device_function
    def weighted_lift(x: Any, weight: Any) -> Any:
        return x, one, zero, weight

    @device_function
    def finish(state: Any) -> Any:
        power = log(state[1]) + (state[0] - state[0])
        return state[0], power, state[2] + state[3] * power

    chosen = weighted_lift if weighted else lift
    return Monoid(("sum",) * 4, (-inf, 0.0, 0.0, 0.0), chosen, combine_spread, finish)


# --- All rows together ----------------------------------------------------------------------------


@device_function
def _both(loss: Any, weight: Any, mean: Any) -> Any:
    return loss, weight


@device_function
def _add_both(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


@device_function
def _reduced(state: Any, mean: Any) -> Any:
    return state[0] / state[1] if mean else state[0]


LOSS = Monoid(("sum", "sum"), (0.0, 0.0), _both, _add_both, _reduced)
"""Σ losses, or Σ losses / Σ weights. Scalar: whether it is the mean."""


# --- A row at its target: one thread for each -----------------------------------------------------


def launch_over_rows(
    chosen: Kernel,
    arrays: Sequence[DeviceArray],
    strides: Sequence[Sequence[int]],
    shape: Sequence[int],
    scalars: tuple[Any, ...],
    stream: object,
) -> None:
    """Launch a kernel of ``arrays``, each with a stride for every dim of the rows."""
    space = Space.of(shape, strides)
    space = space.with_rank(max(space.rank, _RANK))
    if space.size == 0:
        return
    origins = tuple(origin(array) for array in arrays)
    walk = space.size, space.extents, space.flat_strides, origins
    args = (tuple(array.argument for array in arrays), walk, scalars)
    launch(chosen, blocks_for(space.size, THREADS), THREADS, args, stream=stream)


@device_function
def _class_of(words: Any, at: Any, is_long: Any, ignore_index: Any, classes: Any) -> Any:
    """The target at a place, or what stands in its place."""
    target = integer_at(words, at, is_long)
    if target == ignore_index:
        return _int64(IGNORED)
    return target if 0 <= target < classes else _int64(NO_CLASS)


@cache
def losses(dtype: str) -> Kernel:
    """The loss of each row, of what is left at its target; also its weight, and stats, if asked for."""
    number, to_sum = ELEMENTS[dtype].sum, ELEMENTS[dtype].to_sum
    zero, one, no_number = number(0), number(1), number(nan)

    @kernel
    def cross_entropy_losses(arrays: Any, walk: Any, scalars: Any) -> None:
        logits, target, weight, top, power, spread, loss, counted, stats = arrays
        size, extents, strides, origins = walk
        is_long, ignore_index, classes, weight_stride, class_stride, flags, shares = scalars
        is_weighted, is_smooth, is_reduced, has_stats = flags
        row = _int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        while row < size:
            at = places(digits_of(row, extents), strides, origins)
            m, ln_s = top[_uint64(at[3])], power[_uint64(at[4])]
            label = _class_of(target, at[1], is_long, ignore_index, classes)
            value, count = zero, zero
            if label >= 0:
                count = weight[_uint64(at[2] + label * weight_stride)] if is_weighted else one
                x = to_sum(logits[_uint64(at[0] + label * class_stride)])
                value = count * (ln_s - (x - m))
                if is_smooth:
                    rest = spread[_uint64(at[5])]
                    value = value * number(shares[0]) + rest * number(shares[1])
            elif label == NO_CLASS:
                value = no_number
            loss[_uint64(at[6])] = value
            if is_reduced:
                counted[_uint64(at[7])] = count
            if has_stats:
                # m is +-Inf where ln s is NaN because of that; so are the stats.
                stats[_uint64(at[8])] = m if m - m != zero else m + ln_s
            row += _int64(cuda.gridDim.x) * THREADS

    return cross_entropy_losses


@cache
def target_weights(wide: str) -> Kernel:
    """The weight of each row's target; 0 of rows that are ignored or have no class."""
    number = ELEMENTS[wide].sum
    zero, one = number(0), number(1)

    @kernel
    def cross_entropy_weights(arrays: Any, walk: Any, scalars: Any) -> None:
        target, weight, counted = arrays
        size, extents, strides, origins = walk
        is_long, ignore_index, classes, weight_stride, is_weighted = scalars
        row = _int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        while row < size:
            at = places(digits_of(row, extents), strides, origins)
            label = _class_of(target, at[0], is_long, ignore_index, classes)
            count = zero
            if label >= 0:
                count = weight[_uint64(at[1] + label * weight_stride)] if is_weighted else one
            counted[_uint64(at[2])] = count
            row += _int64(cuda.gridDim.x) * THREADS

    return cross_entropy_weights


@cache
def coefficients(wide: str) -> Kernel:
    """What the gradient of a row's elements needs to know: see :func:`gradient`."""
    one = ELEMENTS[wide].sum(1)

    @kernel
    def cross_entropy_coefficients(arrays: Any, walk: Any, scalars: Any) -> None:
        target, weight, dloss, whole, factor, scale, labels = arrays
        size, extents, strides, origins = walk
        is_long, ignore_index, classes, weight_stride, is_weighted, is_mean = scalars
        row = _int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        while row < size:
            at = places(digits_of(row, extents), strides, origins)
            label = _class_of(target, at[0], is_long, ignore_index, classes)
            value = one
            if label >= 0 and is_weighted:
                value = weight[_uint64(at[1] + label * weight_stride)]
            given = dloss[_uint64(at[2])]
            if is_mean:
                given = given / whole[_uint64(at[3])]
            factor[_uint64(at[4])] = value
            scale[_uint64(at[5])] = given
            labels[_uint64(at[6])] = label
            row += _int64(cuda.gridDim.x) * THREADS

    return cross_entropy_coefficients


@cache
def gradient(dtype: str, *, weighted: bool) -> RowMap:
    """dlogits from x and, if ``weighted``, w. Scalars: 1 − ε, ε/C, and C.

    Of a row: stats, w_t, g, the target, of which IGNORED gives 0 and NO_CLASS NaN, and if ``weighted`` Σ w.
    """
    number = ELEMENTS[dtype].sum
    zero, one, no_number = number(0), number(1), number(nan)

    @device_function
    def of_element(
        x: Any, w: Any, total: Any, known: Any, kept: Any, share: Any, index: Any
    ) -> Any:
        if known[3] < 0:
            return zero if known[3] == IGNORED else no_number
        power = exp(x - known[0])
        value = known[1] * (power - one if index == known[3] else power)
        if share > zero:
            value = value * kept + (power * total - w) * share
        return known[2] * value

    @device_function
    def apply(x: Any, known: Any, kept: Any, share: Any, classes: Any, index: Any) -> Any:
        return of_element(x, one, classes, known, kept, share, index)

    @device_function
    def weighted_apply(
        x: Any, w: Any, known: Any, kept: Any, share: Any, classes: Any, index: Any
    ) -> Any:
        return of_element(x, w, known[4], known, kept, share, index)

    @device_function
    def finish(state: Any, kept: Any, share: Any, classes: Any) -> Any:
        return state

    kinds = ("sum", "sum", "sum", "int64", *(("sum",) if weighted else ()))
    monoid = Monoid(kinds, (0.0,) * len(kinds), finish, add, finish, index=True)
    return RowMap(monoid, weighted_apply if weighted else apply)
