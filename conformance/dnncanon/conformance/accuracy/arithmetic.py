"""Rules of the accuracy model for sums, products and quotients, and what is made of them."""

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.accuracy.array import (
    FUNCTIONS,
    REDUCTIONS,
    SIGMAS,
    UFUNCS,
    Common,
    ErrorArray,
    Floats,
    combined,
    in_one_unit,
    product_unit,
    quantum_of,
    scaled,
    unit_of,
)

# --- Sums -----------------------------------------------------------------------------------------


def add(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like.lift(a), like.lift(b)
    value = a.value + b.value
    a, b = in_one_unit(_as_term(a, value.size), _as_term(b, value.size))
    result = ErrorArray(
        value,
        like.precision,
        a.variance + b.variance,
        terms=a.terms + b.terms,
        squares=a.squares + b.squares,
        quantum=min(a.quantum, b.quantum),
        unit=a.unit,
        fan=max(a.fan, b.fan),
    )
    if a.common or b.common:
        result.common = combined(value, ((_commons(a), 1.0), (_commons(b), 1.0)), a.unit).common
    return result


def _as_term(a: ErrorArray, size: int) -> ErrorArray:
    """A term of a sum of ``size`` elements: what is broadcast is one result that all of them share."""
    times = size / max(1, a.size)
    return a.shared(times) if times > 1 else a


def _commons(a: ErrorArray) -> ErrorArray:
    """The array with nothing but its common errors."""
    return a.moved(lambda part: part, common=a.common, variance=0.0)


def negative(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    # Copies: an assignment to one array must not change the other.
    moved = a.moved(np.copy)
    moved.value = -moved.value
    moved.common = {k: Common(-c.sensitivity, c.group) for k, c in moved.common.items()}
    return moved


def subtract(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    return add(like, a, negative(like, like.lift(b)))


def sum_of(
    a: ErrorArray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> ErrorArray:
    _refuse(dtype=dtype, out=out)

    def total(part: Floats) -> Floats:
        return np.asarray(np.sum(part, axis=axis, keepdims=keepdims))

    variance, common, fan = total(a.variance), {}, a.fan
    for number, errors in a.common.items():
        # Errors that terms share add up with their signs; those of several groups then as squares.
        group = np.asarray(np.min(errors.group, axis=axis, keepdims=True, initial=2**62))
        if (group == errors.group).all():
            squeezed = group if keepdims else group.reshape(variance.shape)
            common[number] = Common(total(errors.sensitivity), squeezed)
        else:
            mixed = _mixed(errors, axis)
            variance = variance + mixed.reshape(variance.shape)
            _, counts = np.unique(errors.group, return_counts=True)
            fan = max(fan, min(float(counts.max(initial=1)), float(max(1, variance.size))))
    result = ErrorArray(
        total(a.value),
        a.precision,
        variance,
        terms=total(a.terms * _counting(a) if _mostly_zero(a) else a.terms),
        squares=total(a.squares),
        quantum=a.quantum,
        unit=a.unit,
        common=common,
        fan=fan,
    )
    result.variance = result.variance + _of_alike_terms(a, axis, result)
    return result


def _mixed(errors: Common, axis: Any) -> Floats:
    """The variance of each sum over terms that share an error with some of the others."""
    sensitivity, group = _summed_last(errors.sensitivity, axis), _summed_last(errors.group, axis)
    rows, columns = sensitivity.shape
    _, number = np.unique(group, return_inverse=True)
    count = int(number.max(initial=0)) + 1
    row = np.repeat(np.arange(rows), columns)
    pairs, pair = np.unique(row * count + number.ravel(), return_inverse=True)
    shared = np.bincount(pair.ravel(), sensitivity.ravel(), len(pairs))
    return np.asarray(np.bincount(pairs // count, np.square(shared), rows), np.float64)


def _of_alike_terms(a: ErrorArray, axis: Any, result: ErrorArray) -> Floats:
    """Variance by which a sum is less certain because some of its terms are equal, or end in the same bits.

    Equal ones come of equal computations, whose errors are one error; and all alike are rounded in one way.
    """
    rows = _summed_last(a.value, axis)
    if rows.shape[1] < _FEW_TERMS:
        return np.zeros(result.shape)
    values = np.nan_to_num(rows, posinf=0.0, neginf=0.0)
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    equal = _run_lengths(values)
    errors = np.take_along_axis(_summed_last(a.variance, axis), order, axis=1)
    variance = np.sum(scaled(errors, equal - 1.0), axis=1)
    # Equal terms that follow each other make a partial sum of k times their size.
    largest = np.sqrt(np.square(values.sum(axis=1)) + np.sum(equal * np.square(values), axis=1))
    _, exponent = np.frexp(largest)
    grid = np.maximum(np.ldexp(1.0, exponent - a.precision.digits), a.precision.subnormal)
    drift, count = _drift(values, grid[:, None])
    grows = 2.0 * np.abs(values.sum(axis=1)) > np.abs(values).sum(axis=1)
    most = np.where(grows, count * largest * 2.0**-a.precision.digits / 4.0, np.inf)
    deviation = np.minimum(np.sqrt(np.sum(np.square(drift), axis=1)), most) / 2.0
    variance += np.square(deviation / result.unit)
    return np.asarray(variance.reshape(result.shape))


def _of_equal_terms(result: ErrorArray, count: int) -> Floats:
    """What :func:`_of_alike_terms` says of sums of so many terms that are all equal."""
    term = np.abs(np.nan_to_num(result.value, posinf=0.0, neginf=0.0)) / count
    largest = math.sqrt(2.0) * count * term
    _, exponent = np.frexp(largest)
    digits = result.precision.digits
    grid = np.maximum(np.ldexp(1.0, exponent - digits), result.precision.subnormal)
    drift = count * np.abs(term - np.rint(term / grid) * grid)
    deviation = np.minimum(drift, count * largest * 2.0**-digits / 4.0) / 2.0
    return np.asarray(np.square(deviation / result.unit))


_FEW_TERMS = 16
"""Of fewer, 8 deviations of independent roundings, 8·u·√n/3 of the sum, are more than n·u/2 in any case."""


def _drift(values: Floats, grid: Floats) -> tuple[Floats, Floats]:
    """By how much the terms of each kind that a grid rounds by the same amount, up or down, move a sum.

    Row by row: the drift stands at one element of its kind, and 0 at the others and where nothing is
    rounded; and how many terms are not made up for by others of their kind. A single term is not alike to
    any; half a spacing is rounded up or down by what the partial sum is, and all such terms may go one way.
    """
    rest = values - np.rint(values / grid) * grid
    sign = np.where(2.0 * np.abs(rest) == grid, 1.0, np.sign(rest))
    size = np.abs(rest)
    order = np.argsort(size, axis=1)
    size = np.take_along_axis(size, order, axis=1)
    number, first = _numbered_runs(size)
    more = np.abs(np.bincount(number, np.take_along_axis(sign, order, axis=1).ravel()))
    more = more[number].reshape(size.shape)
    more = np.where(first & (more > 1.0), more, 0.0)
    return more * size, np.sum(more, axis=1)


def _numbered_runs(rows: Floats) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The run of equal elements of its sorted row to which each belongs, flat; and which are its first."""
    starts = np.ones(rows.shape, np.bool_)
    starts[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.cumsum(starts.ravel()) - 1, starts


def _run_lengths(rows: Floats) -> Floats:
    """How many elements of its sorted row are equal to each element."""
    number, _ = _numbered_runs(rows)
    return np.asarray(np.bincount(number).astype(np.float64)[number].reshape(rows.shape))


def _summed_last(value: NDArray[Any], axis: Any) -> NDArray[Any]:
    """The terms of each sum as a row."""
    axes = range(value.ndim) if axis is None else np.atleast_1d(axis) % max(1, value.ndim)
    summed = [int(i) for i in axes]
    kept = [i for i in range(value.ndim) if i not in summed]
    count = math.prod(value.shape[i] for i in kept)
    terms = math.prod(value.shape[i] for i in summed)
    return value.transpose(*kept, *summed).reshape(count, terms)


def _mostly_zero(a: ErrorArray) -> bool:
    """Whether it is worth while to tell terms that are 0 from those that are rounded."""
    return bool(2 * np.count_nonzero(a.value) < a.size)


def _counting(a: ErrorArray) -> Floats:
    """1 where an element is a term that adding may round, 0 where it is an exact 0."""
    exactly_zero = (a.value == 0.0) & (a.squares == 0.0) & (a.variance == 0.0)
    return np.where(exactly_zero, 0.0, 1.0)


def mean(
    a: ErrorArray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> ErrorArray:
    _refuse(dtype=dtype, out=out)
    total = sum_of(a, axis=axis, keepdims=keepdims)
    return divide(total, total, a.size // max(1, total.size))


def cumsum(
    a: ErrorArray, axis: int | None = None, dtype: Any = None, out: Any = None
) -> ErrorArray:
    """Each a sum of its own: their partial sums may be the same, so an error may show in all."""
    _refuse(dtype=dtype, out=out)
    a = a.folded()
    length = a.size if axis is None else a.shape[axis]
    result = a.moved(lambda part: np.cumsum(part, axis=axis))
    result.fan = max(1.0, a.fan * length)
    return result


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise TypeError(f"the accuracy model has no rule for the argument {name}={value!r}")


# --- Products -------------------------------------------------------------------------------------


def multiply(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    if a is b:
        return square(like, a)
    a, b = like.lift(a).settled(), like.lift(b).settled()
    value, unit, quantum = a.value * b.value, product_unit(a, b), a.quantum * b.quantum
    if not a.has_errors and not b.has_errors:
        return ErrorArray(value, like.precision, quantum=quantum, unit=unit).rounded()
    result = combined(value, ((a, b.value), (b, a.value)), unit, quantum)
    if not np.isfinite(value).all():
        result.decide_specials(_undecided_product(a, b))
    return result.rounded()


def _undecided_product(a: ErrorArray, b: ErrorArray) -> NDArray[np.bool_]:
    """Where a product that is Inf or NaN may be the other of them, or of the other sign.

    So it is with Inf times what should be 0, such as x − mean where all x are equal, or may be of either sign.
    """
    found: NDArray[np.bool_] = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_)
    for one, other in ((a, b), (b, a)):
        found |= np.isinf(one.total_variance()) | (np.isinf(one.value) & other.may_be_zero())
    return found & ~_is_certainly_nan(a) & ~_is_certainly_nan(b)


def _is_certainly_nan(a: ErrorArray) -> NDArray[np.bool_]:
    return np.isnan(a.value) & ~np.isinf(a.total_variance())


def square(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    a = a.settled()
    value, unit = np.square(a.value), product_unit(a, a)
    result = combined(value, ((a, 2.0 * a.value),), unit, a.quantum * a.quantum)
    if a.has_errors:
        # (x + δ)² has δ² too, which counts where x is no larger: that of 8 deviations within 8 of them.
        ratio = a.unit / result.unit * a.unit
        result.variance = result.variance + np.square(SIGMAS * scaled(a.total_variance(), ratio))
    return result.rounded()


def divide(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    if not isinstance(b, ErrorArray) and np.ndim(b) == 0 and _is_power_of_two(float(b)):
        return multiply(like, a, 1.0 / float(b))
    a, b = like.lift(a).settled(), like.lift(b).settled()
    value = a.value / b.value
    unit = unit_of(value, like.precision)
    slopes = ((a, 1.0 / b.value), (b, -value / b.value))
    quotient = combined(value, slopes, unit)
    if not np.isfinite(value).all():
        quotient.decide_specials(_undecided_quotient(a, b))
    rounded = quotient.rounded("divide")
    if "divide" not in like.precision.functions:
        exact = _moves_the_point(b) & (np.abs(value) >= like.precision.smallest_normal)
        rounded.variance = np.where(exact, quotient.variance, rounded.variance)
    return rounded


def _undecided_quotient(a: ErrorArray, b: ErrorArray) -> NDArray[np.bool_]:
    """Where a quotient that is Inf or NaN may be otherwise: of, or by, what may be 0 or not."""
    unbounded = np.isinf(a.total_variance()) | np.isinf(b.total_variance())
    found: NDArray[np.bool_] = unbounded | b.may_be_zero() | ((b.value == 0.0) & a.may_be_zero())
    return found & ~_is_certainly_nan(a) & ~_is_certainly_nan(b)


def _moves_the_point(b: ErrorArray) -> NDArray[np.bool_]:
    """Where a divisor is a power of two for certain: no digit of the quotient is lost."""
    mantissa, _ = np.frexp(b.value)
    return np.asarray((np.abs(mantissa) == 0.5) & (b.total_variance() == 0.0))


def reciprocal(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    a = a.settled()
    value = 1.0 / a.value
    result = combined(value, ((a, -np.square(value)),), unit_of(value, like.precision))
    return result.rounded("reciprocal")


def _is_power_of_two(number: float) -> bool:
    return number > 0 and np.isfinite(number) and bool(np.frexp(number)[0] == 0.5)


def prod(
    a: ErrorArray, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
) -> ErrorArray:
    """Pairs, pairs of pairs and so on: n−1 roundings, each of the relative size of any other order's."""
    _refuse(dtype=dtype, out=out)
    value = np.asarray(np.prod(a.value, axis=axis, keepdims=keepdims))
    axes = tuple(range(a.ndim)) if axis is None else np.atleast_1d(axis)
    axes = tuple(int(i) % max(1, a.ndim) for i in axes)
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    if a.size == 0:
        return a.lift(value)
    rest = a.transpose((*kept, *axes)).reshape(*(a.shape[i] for i in kept), -1)
    while rest.shape[-1] > 1:
        half = rest.shape[-1] // 2
        pairs = multiply(rest, rest[..., :half], rest[..., half : 2 * half])
        odd = rest[..., 2 * half :]
        rest = FUNCTIONS[np.concatenate]([pairs, odd], axis=-1) if odd.size else pairs
    result: ErrorArray = rest.reshape(value.shape)
    result.value = value
    added, vanishes = _of_partial_products(a, axis, result)
    infinite = np.isinf(value)
    final = result.with_variance(np.where(infinite, 0.0, result.variance + added))
    final.may_be_nan = infinite & vanishes  # 0·Inf
    return final


def _of_partial_products(
    a: ErrorArray, axis: Any, result: ErrorArray
) -> tuple[Floats, NDArray[np.bool_]]:
    """Variance of a product some of whose partial products, in some order, leave the format's range.

    The largest of them is that of all factors above 1, the smallest that of all below. Where the largest
    overflows but the product does not, there is no bound; where the smallest is subnormal it loses digits,
    at most all. And where it is so small that it may be 0.
    """
    rows = np.abs(_summed_last(a.value, axis))
    logarithms = np.log2(np.where((rows == 0.0) | ~np.isfinite(rows), 1.0, rows))
    up = np.sum(np.maximum(logarithms, 0.0), axis=1).reshape(result.shape)
    down = np.sum(np.minimum(logarithms, 0.0), axis=1).reshape(result.shape)
    precision = a.precision
    lost = math.log2(max(precision.subnormal, 2.0 * precision.flushed)) - 1.0
    loses = down - precision.digits < lost
    share = np.where(loses, np.exp2(np.minimum(lost - down, 0.0)), 0.0)
    variance = result.squared() * np.square(share) / 3.0
    overflows = (up > math.log2(precision.largest)) & (np.abs(result.value) <= precision.largest)
    return np.where(overflows, np.inf, variance), down < lost


# --- Matrix products ------------------------------------------------------------------------------


def matmul(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like.lift(a).settled(), like.lift(b).settled()
    if a.common or b.common:
        left, right = _matmul_letters(a.ndim, b.ndim)
        return _contracted(a, b, left, right, _matmul_result(left, right))
    value, length = np.matmul(a.value, b.value), a.shape[-1]
    result = _sum_of_products(a, b, value, np.matmul, length)
    if length > 1 and b.ndim > 1 and _all_alike(a.value, -1) and _all_alike(b.value, -2):
        # Equal products come of equal factors: their errors are one error.
        result.variance = result.variance * length + _of_equal_terms(result, length)
    return result


def _all_alike(value: Floats, axis: int) -> bool:
    """Whether elements differ along no more than the other axes, as those of stride 0 do."""
    return np.array_equal(value, np.broadcast_to(np.take(value, [0], axis), value.shape))


def _sum_of_products(
    a: ErrorArray, b: ErrorArray, value: Floats, product: Callable[..., Floats], length: int
) -> ErrorArray:
    """The sums of products that ``product`` makes of two arrays, of ``length`` terms each."""
    unit, quantum, precision = product_unit(a, b), a.quantum * b.quantum, a.precision
    a_squares, b_squares = a.squared(), b.squared()
    squares = product(a_squares, b_squares)
    variance, fan = np.zeros_like(squares), 1.0
    for operand, factors in ((a, (a.variance, b_squares)), (b, (a_squares, b.variance))):
        if operand.variance.any():
            with np.errstate(invalid="ignore"):  # 0·∞, which is infinite: see scaled
                passed_on = product(*factors)
            variance = variance + np.where(np.isnan(passed_on), np.inf, passed_on)
            # Each of its elements shows in so many sums.
            fan = max(fan, operand.fan * value.size * length / max(1, operand.size))
    terms: Floats | float = float(length)
    if _mostly_zero(a) or _mostly_zero(b):
        terms = product(_counting(a), _counting(b))
    roundings = precision.variance * squares + terms * precision.underflow(unit)
    exact = precision.holds(np.sqrt(squares) * unit, quantum)
    variance = variance + np.where(exact, 0.0, roundings)
    if not np.isfinite(value).all():
        undecided = _undecided_sum(a, b, product)
        variance = np.where(np.isfinite(value), variance, np.where(undecided, np.inf, 0.0))
    return ErrorArray(
        value,
        precision,
        variance,
        terms=terms,
        squares=squares,
        quantum=quantum,
        unit=unit,
        fan=min(fan, float(max(1, value.size))),
    )


def _undecided_sum(
    a: ErrorArray, b: ErrorArray, product: Callable[..., Floats]
) -> NDArray[np.bool_]:
    """Where a sum of products has one that is undecided: see :func:`_undecided_product`."""
    found: Floats | float = 0.0
    for one, other, swapped in ((a, b, False), (b, a, True)):
        pairs = (
            (np.isinf(one.total_variance()), np.ones(other.shape)),
            (np.isinf(one.value), other.may_be_zero()),
        )
        for mine, its in pairs:
            first, second = (its, mine) if swapped else (mine, its)
            found = found + product(first.astype(np.float64), second.astype(np.float64))
    return np.asarray(found) > 0.0


def _matmul_letters(a: int, b: int) -> tuple[str, str]:
    """Subscripts of both operands of a matrix product of these ranks."""
    batch = string.ascii_lowercase[: max(a, b, 2) - 2]
    left = "Z" if a == 1 else batch[len(batch) - (a - 2) :] + "YZ"
    right = "Z" if b == 1 else batch[len(batch) - (b - 2) :] + "ZX"
    return left, right


def _matmul_result(left: str, right: str) -> str:
    batch = max(left.strip("YZ"), right.strip("ZX"), key=len)
    return batch + ("Y" if "Y" in left else "") + ("X" if "X" in right else "")


def dot(a: Any, b: Any, out: Any = None) -> ErrorArray:
    _refuse(out=out)
    like = a if isinstance(a, ErrorArray) else b
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return multiply(like, a, b)
    if np.ndim(b) > 2:
        raise TypeError("the accuracy model has no rule for dot of more than two dims; use matmul")
    return matmul(like, a, b)


# --- einsum ---------------------------------------------------------------------------------------


def einsum(subscripts: str, *operands: Any, optimize: Any = False, out: Any = None) -> ErrorArray:
    _refuse(out=out)
    like = next(o for o in operands if isinstance(o, ErrorArray))
    arrays = [like.lift(o) for o in operands]
    letters, result = _parsed(subscripts, [a.ndim for a in arrays])
    while len(arrays) > 2:
        # Operands are contracted from the left; what later ones need is kept.
        needed = set(result).union(*letters[2:])
        between = "".join(dict.fromkeys(x for x in letters[0] + letters[1] if x in needed))
        first = _contracted(
            arrays[0].settled(), arrays[1].settled(), letters[0], letters[1], between
        )
        arrays, letters = [first.settled(), *arrays[2:]], [between, *letters[2:]]
    if len(arrays) == 1:
        return _einsum_of_one(arrays[0], letters[0], result)
    a, b = arrays
    return _contracted(a.settled(), b.settled(), letters[0], letters[1], result)


def _parsed(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of the operands and of the result, with an ellipsis written out."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ValueError(f"einsum {subscripts!r} is for {len(parts)} operands, not {len(ranks)}")
    free = [x for x in string.ascii_letters if x not in subscripts]
    rests = [r - len(p.replace("...", "")) for p, r in zip(parts, ranks, strict=True)]
    dots = "".join(free[: max([0, *(n for p, n in zip(parts, rests, strict=True) if "..." in p)])])
    letters = [
        p.replace("...", dots[len(dots) - n :]) if "..." in p else p
        for p, n in zip(parts, rests, strict=True)
    ]
    if arrow:
        return letters, right.replace("...", dots)
    every = "".join(letters)
    once = sorted(x for x in set(every) if every.count(x) == 1 and x not in dots)
    return letters, dots + "".join(once)


def _einsum_of_one(a: ErrorArray, letters: str, result: str) -> ErrorArray:
    a = a.folded()
    return a.moved(lambda part: np.asarray(np.einsum(f"{letters}->{result}", part)))


def _contracted(a: ErrorArray, b: ErrorArray, left: str, right: str, result: str) -> ErrorArray:
    """The einsum of two settled operands: products, and sums over the letters not in the result."""
    extents = dict.fromkeys(left + right, 1)
    for letters, array in ((left, a), (right, b)):
        for x, extent in zip(letters, array.shape, strict=True):
            extents[x] = max(extents[x], extent) if extent else 0
    length = int(np.prod([n for x, n in extents.items() if x not in result]))

    def product(first: Floats, second: Floats) -> Floats:
        return np.asarray(np.einsum(f"{left},{right}->{result}", first, second, optimize=True))

    value = product(a.value, b.value)
    commons = {**_shared_in(a, left, result), **_shared_in(b, right, result)}
    plain_a, plain_b = (_without(x, commons) for x in (a, b))
    made = _sum_of_products(plain_a, plain_b, value, product, length)
    for number in commons:
        sensitivity: Floats | float = 0.0
        group: Any = 0
        if number in a.common:
            errors = a.common[number]
            sensitivity = sensitivity + product(errors.sensitivity, b.value)
            group = product(errors.group.astype(np.float64), np.ones(b.shape)) / max(1, length)
        if number in b.common:
            errors = b.common[number]
            sensitivity = sensitivity + product(a.value, errors.sensitivity)
            group = product(np.ones(a.shape), errors.group.astype(np.float64)) / max(1, length)
        factor = a.unit * b.unit / made.unit / (b.unit if number in a.common else a.unit)
        felt = np.where(np.isfinite(value), np.asarray(sensitivity) * factor, 0.0)
        made.common[number] = Common(felt, np.rint(group).astype(np.int64))
    return made


def _shared_in(a: ErrorArray, letters: str, result: str) -> dict[int, Common]:
    """The common errors of an operand that all terms of each sum share."""
    axes = tuple(i for i, x in enumerate(letters) if x not in result)
    found = {}
    for number, errors in a.common.items():
        lowest = errors.group.min(axis=axes, keepdims=True, initial=2**62)
        if (lowest == errors.group).all():
            found[number] = errors
    return found


def _without(a: ErrorArray, commons: dict[int, Common]) -> ErrorArray:
    """The array with these common errors left out and its others folded."""
    rest = {number: errors for number, errors in a.common.items() if number not in commons}
    return a.moved(lambda part: part, common=rest).folded()


# --- Sums of nothing ------------------------------------------------------------------------------


def zeros_like(a: ErrorArray, dtype: Any = None, *, shape: Any = None) -> ErrorArray:
    """A sum of no terms, exact in every quantum."""
    _refuse(dtype=dtype)
    shape = a.shape if shape is None else shape
    least = a.precision.subnormal  # zeros fit in any unit
    return ErrorArray(
        np.zeros(shape), a.precision, terms=0.0, squares=0.0, quantum=np.inf, unit=least
    )


def full_like(
    a: ErrorArray, fill_value: Any, dtype: Any = None, *, shape: Any = None
) -> ErrorArray:
    _refuse(dtype=dtype)
    value = np.full(a.shape if shape is None else shape, fill_value, np.float64)
    unit = unit_of(value, a.precision)
    return ErrorArray(value, a.precision, quantum=quantum_of(value), unit=unit).rounded()


def ones_like(a: ErrorArray, dtype: Any = None, *, shape: Any = None) -> ErrorArray:
    return full_like(a, 1.0, dtype, shape=shape)


UFUNCS.update(
    add=add,
    subtract=subtract,
    negative=negative,
    positive=lambda like, a: a,
    multiply=multiply,
    square=square,
    divide=divide,
    true_divide=divide,
    reciprocal=reciprocal,
    matmul=matmul,
)
REDUCTIONS.update(
    add=lambda like, a, axis=0, dtype=None, keepdims=False: sum_of(a, axis, dtype, None, keepdims),
    multiply=lambda like, a, axis=0, dtype=None, keepdims=False: prod(
        a, axis, dtype, None, keepdims
    ),
)
FUNCTIONS.update(
    {
        np.sum: sum_of,
        np.mean: mean,
        np.cumsum: cumsum,
        np.prod: prod,
        np.dot: dot,
        np.einsum: einsum,
        np.zeros_like: zeros_like,
        np.empty_like: zeros_like,
        np.ones_like: ones_like,
        np.full_like: full_like,
    }
)
