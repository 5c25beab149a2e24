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
from dnncanon.gpu.runtime.device_code import cuda, device_function, generated, types
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


@device_function
def _class_among(target: Any, ignore_index: Any, classes: Any) -> Any:
    """A target, or what stands in its place."""
    if target == ignore_index:
        return _int64(IGNORED)
    return _int64(target) if 0 <= target < classes else _int64(NO_CLASS)


@device_function
def _with_element(a: Any, b: Any) -> Any:
    """Of (m, s, x at the target), which one of the parts has."""
    top, total = combine((a[0], a[1]), (b[0], b[1]))
    return top, total, a[2] + b[2]


@device_function
def _spread_with_element(a: Any, b: Any) -> Any:
    """Of (m, s, x at the target, d, W)."""
    top, total, spread, weights = combine_spread((a[0], a[1], a[3], a[4]), (b[0], b[1], b[3], b[4]))
    return top, total, a[2] + b[2], spread, weights


@cache
def losses(dtype: str, *, weighted: bool, smooth: bool, reduced: bool, stats: bool) -> Monoid:
    """The loss of a row, with ``reduced`` its weight, and with ``stats`` m + ln s.

    Elements are x and, if it is ``weighted`` and ``smooth``, w; of the row there is its target and, if
    ``weighted``, the weight of that. Scalars: the index that is ignored, C, 1 − ε and ε/C. Stats are m where
    it is infinite.
    """
    number = ELEMENTS[dtype].sum
    takes_w = weighted and smooth
    given = f"x, {'w, ' if takes_w else ''}target, {'weight, ' if weighted else ''}"
    scalars = "ignore_index, classes, kept, share"
    spread = f", zero, {'w' if takes_w else 'one'}" if smooth else ""
    lift = f"""
def lift({given}{scalars}, index):
    return x, one, x if index == target else zero{spread}
"""
    smoothing = """
        rest = state[3] + state[4] * power
        loss = loss * kept + rest * share
"""
    results = "loss", *(["count"] if reduced else []), *(["stats"] if stats else [])
    finish = f"""
def finish(state, target, {"weight, " if weighted else ""}{scalars}):
    top = state[0]
    power = log(state[1]) + (top - top)
    label = class_among(target, ignore_index, classes)
    loss, count = zero, zero
    if label >= 0:
        count = {"weight" if weighted else "one"}
        loss = count * (power - (state[2] - top))
{smoothing if smooth else ""}
    elif label == {NO_CLASS}:
        loss = no_number
    stats = top if top - top != zero else top + power
    return {", ".join(results)}
"""
    scope = {
        "log": log,
        "class_among": _class_among,
        "zero": number(0),
        "one": number(1),
        "no_number": number(nan),
    }
    functions = (device_function(generated(text, scope)) for text in (lift, finish))
    (lifted, finished), combined = functions, _spread_with_element if smooth else _with_element
    identity = (-inf, 0.0, 0.0, *((0.0, 0.0) if smooth else ()))
    return Monoid(("sum",) * len(identity), identity, lifted, combined, finished, index=True)


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
    return _class_among(integer_at(words, at, is_long), ignore_index, classes)


@cache
def target_weights(wide: str) -> Kernel:
    """The weight of each row's target; 0 of rows that are ignored or have no class."""
    zero = ELEMENTS[wide].sum(0)

    @kernel
    def cross_entropy_weights(arrays: Any, walk: Any, scalars: Any) -> None:
        target, weight, counted = arrays
        size, extents, strides, origins = walk
        is_long, ignore_index, classes, weight_stride = scalars
        row = _int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        while row < size:
            at = places(digits_of(row, extents), strides, origins)
            label = _class_of(target, at[0], is_long, ignore_index, classes)
            count = zero
            if label >= 0:
                count = weight[_uint64(at[1] + label * weight_stride)]
            counted[_uint64(at[2])] = count
            row += _int64(cuda.gridDim.x) * THREADS

    return cross_entropy_weights


@cache
def class_count(wide: str) -> Monoid:
    """How many targets are classes, and not ignored. Scalars: the index that is ignored, and C."""
    zero, one = ELEMENTS[wide].sum(0), ELEMENTS[wide].sum(1)

    @device_function
    def lift(target: Any, ignore_index: Any, classes: Any) -> Any:
        return one if _class_among(target, ignore_index, classes) >= 0 else zero

    @device_function
    def finish(count: Any, ignore_index: Any, classes: Any) -> Any:
        return count

    return Monoid((wide,), (0.0,), lift, add, finish)


@cache
def gradient(dtype: str, *, weighted: bool, mean: bool) -> RowMap:
    """dlogits from x and, if ``weighted``, w. Scalars: 1 − ε, ε/C, C, and the index that is ignored.

    Of a row: stats, the gradient by its loss, its target, then for the ``mean`` the sum of all weights, and if
    ``weighted`` w_t and Σ w.
    """
    number = ELEMENTS[dtype].sum
    zero, one, no_number = number(0), number(1), number(nan)
    others = (*(["whole"] if mean else []), *(["weight", "total"] if weighted else []))
    states = ("stats", "dloss", "target", *others)

    @device_function
    def of_element(x: Any, w: Any, known: Any, kept: Any, share: Any, index: Any) -> Any:
        if known[3] < 0:
            return zero if known[3] == IGNORED else no_number
        power = exp(x - known[0])
        value = known[1] * (power - one if index == known[3] else power)
        if share > zero:
            value = value * kept + (power * known[4] - w) * share
        return known[2] * value

    @device_function
    def apply(
        x: Any, known: Any, kept: Any, share: Any, classes: Any, ignore_index: Any, index: Any
    ) -> Any:
        return of_element(x, one, known, kept, share, index)

    @device_function
    def weighted_apply(
        x: Any,
        w: Any,
        known: Any,
        kept: Any,
        share: Any,
        classes: Any,
        ignore_index: Any,
        index: Any,
    ) -> Any:
        return of_element(x, w, known, kept, share, index)

    # stats, w_t, the gradient by the row's share of the loss, the class, Σ w
    source = f"""
def finish(state, kept, share, classes, ignore_index):
    {", ".join(states)} = state
    label = class_among(target, ignore_index, int64(classes))
    return (
        stats, {"weight" if weighted else "one"}, {"dloss / whole" if mean else "dloss"}, label,
        {"total" if weighted else "classes"},
    )
"""
    scope = {"class_among": _class_among, "one": one, "int64": types.int64}
    finish = device_function(generated(source, scope))
    kinds = tuple("int64" if name == "target" else "sum" for name in states)
    monoid = Monoid(kinds, (0.0,) * len(kinds), finish, add, finish, index=True)
    return RowMap(monoid, weighted_apply if weighted else apply)
