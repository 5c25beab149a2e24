"""Expected values and error bounds of a case, from running the reference on error-carrying arrays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import (
    SIGMAS,
    ErrorArray,
    Precision,
    Undecided,
    quantum_of,
    unit_of,
)
from dnncanon.reference import definitions
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, NUMERICS, Call, DType, NumericsClass

Floats = NDArray[np.float64]

# From so many terms on, the last rounding of a sum is as good as random. That of a single product is
# not: with a short operand such as 1.5 it is a tie every time.
RANDOM_TERMS = 8

# Of values spread over so many spacings of the subnormal numbers, those beyond are evenly spread within one:
# a normal density falls by 1/16 of itself at most, which moves the mean error by 0.02 of its deviation.
_FEW_SPACINGS = 16.0


@dataclass(frozen=True)
class Sharing:
    """How much of an output's errors its elements have in common; all of it relative to their deviations.

    ``independent`` is the share of an element's variance that the model has for its own, and ``fan`` over
    how many elements such an error may show. ``common`` are pairs of a sensitivity and the number of the
    error, by element, of which elements with the same number share one.
    """

    fan: float
    independent: Floats
    common: tuple[tuple[Floats, NDArray[np.int64]], ...]


@dataclass(frozen=True)
class Expected:
    """What one output should be: value, standard deviation of its error, and bound, by element.

    ``bound`` = SIGMAS·σ + the output's own rounding, half a unit in the last place at most; where the
    computation is exact both are 0 and the output must be equal. ``sigma`` is the standard deviation of the
    whole error, the last rounding included, and ``deviation`` the same, but 0 where statistics over
    elements would mislead: errors are no random ones, or sums in less than float32 lose small terms for good.
    ``centre`` is the mean of the error: what the last rounding does to the value, as far as that is known.
    ``may_be_nan`` marks results that a class may turn into NaN: infinite ones where an operand that is flushed,
    or a partial product that underflows in some order, makes it Inf·0, and finite ones, which may become
    infinite too, where a transform mixes in a neighbour's Inf or NaN, or rounding makes an operand Inf or 0.
    ``sharing`` says which errors elements have in common; None, where they have none. ``undecided`` marks what
    is Inf, of either sign, or NaN: where Inf meets what may be 0 or not, such as x − mean of equal x.
    """

    value: Floats
    bound: Floats
    deviation: Floats
    may_be_nan: NDArray[np.bool_]
    dtype: DType
    sharing: Sharing | None = None
    sigma: Floats | None = None
    centre: Floats | float = 0.0
    undecided: NDArray[np.bool_] | None = None


def expectations(
    call: Call[Any], tensors: Mapping[str, NDArray[Any]], numerics: str
) -> tuple[Expected, ...]:
    """Expected outputs of ``call`` for these inputs, computed in the numerics class ``numerics``.

    Every output is rounded to its dtype once, unless the class accumulates in that very dtype.
    """
    numerics_class = NUMERICS[numerics]
    carried = {
        name: _operand(tensor.astype(np.float64), numerics_class, call.dtype)
        for name, tensor in tensors.items()
    }
    few = call.primitive.reduction_length(call.problem) < RANDOM_TERMS
    with np.errstate(all="ignore"):
        results = evaluated(call, carried, numerics_class)
        transformed = _transformed(call, tensors, numerics_class, results)
        lost = _lost(call, tensors, numerics_class, results)
        return tuple(
            _expected(result, DTYPES[output.dtype], numerics_class, added, gone, statistics=not few)
            for result, output, added, gone in zip(
                results, call.outputs, transformed, lost, strict=True
            )
        )


def evaluated(
    call: Call[Any], carried: Mapping[str, ErrorArray], numerics: NumericsClass
) -> tuple[ErrorArray, ...]:
    """The reference's results on error-carrying arrays; what does not depend on them has no error."""
    precision = precision_of(numerics, call.dtype)

    def lift(value: NDArray[Any]) -> ErrorArray:
        still = _still(value, precision)
        still.quantum = quantum_of(still.value)
        return still

    results = definitions()[call.primitive.name].evaluate(call, dict(carried), lift)
    carried_results = (r.carried() if isinstance(r, Undecided) else r for r in results)
    return tuple(r if isinstance(r, ErrorArray) else lift(r) for r in carried_results)


def precision_of(numerics: NumericsClass, dtype: str) -> Precision:
    """The format in which the class computes with tensors of ``dtype``."""
    return Precision.of(
        numerics.accumulator(dtype),
        flushes_subnormals=numerics.flushes_subnormals,
        functions=numerics.functions,
        transforms=numerics.spread == "channel",
    )


def _operand(value: Floats, numerics: NumericsClass, dtype: str) -> ErrorArray:
    """An input, with the error of bringing it to the class's operand format."""
    with np.errstate(all="ignore"):
        precision = precision_of(numerics, dtype)
        quantum, unit = quantum_of(value), unit_of(value, precision)
        squares, variance = np.square(value / unit), np.zeros_like(value)
        if numerics.input_digits is not None:
            digits = numerics.exact_digits or numerics.input_digits
            least = _least_operand(numerics, dtype)
            grain = max(quantum, least)
            held = (np.abs(value) <= grain * 2.0**digits) & (np.fmod(value, least) == 0.0)
            # Subnormal numbers of the format have fewer digits: half a spacing is off, whatever their size.
            size = np.maximum(squares * numerics.input_variance, np.square(least / unit) / 12.0)
            variance = np.where(np.isfinite(value) & ~held, size, 0.0)
        if numerics.flushes_subnormals:
            subnormal = np.abs(value) < DTYPES[dtype].smallest_normal
            variance = np.where(subnormal, squares, variance)
        return ErrorArray(value, precision, variance, quantum=quantum, unit=unit)


def _least_operand(numerics: NumericsClass, dtype: str) -> float:
    """The least number of the operand format, with the exponents of ``dtype``: what is below it may be 0."""
    digits = numerics.exact_digits or numerics.input_digits or 1
    return float(DTYPES[dtype].smallest_normal * 2.0 ** (1 - digits))


def _lost(
    call: Call[Any],
    tensors: Mapping[str, NDArray[Any]],
    numerics: NumericsClass,
    results: tuple[ErrorArray, ...],
) -> list[NDArray[np.bool_] | bool]:
    """Where results may be NaN, or infinite, by what the class does to operands before they are multiplied.

    An operand that is flushed, or below the least number of the format, may be 0, and Inf·0 is NaN; one that is
    rounded up beyond the largest number is infinite. A sum of two numbers has a rest: that of Inf may be NaN,
    and that of the other operand, by which Inf is multiplied too, 0. What that comes to, behind an activation
    as well, the reference says of such operands.
    """
    rounds = numerics.input_digits is not None
    if not rounds and not numerics.flushes_subnormals:
        return [False] * len(results)
    values = {name: t.astype(np.float64) for name, t in tensors.items()}
    operands = [spec.name for spec in call.primitive.inputs if spec.name in values]
    changed = dict(values)
    for name in operands[:2] if rounds else operands:
        changed[name] = _at_worst(values[name], numerics, call.dtype)
    if all(np.isfinite(value).all() for value in changed.values()):
        return [False] * len(results)
    reached = definitions()[call.primitive.name].evaluate(call, changed)
    return [
        np.isnan(part) | (np.isinf(part) & np.isfinite(result.value))
        for part, result in zip(reached, results, strict=True)
    ]


def _at_worst(value: Floats, numerics: NumericsClass, dtype: str) -> Floats:
    """An operand as the class may take it, where that makes most of the difference."""
    if numerics.input_digits is None:
        return np.where(np.abs(value) < DTYPES[dtype].smallest_normal, 0.0, value)
    size, digits = np.abs(value), numerics.exact_digits or numerics.input_digits
    largest = DTYPES[dtype].max * (1.0 - 2.0**-digits)  # to where half a spacing is above it
    if numerics.exact_digits is not None:
        return np.where(size > largest, np.nan, value)
    overflowed = np.where(size > largest, np.copysign(np.inf, value), value)
    return np.where(size < _least_operand(numerics, dtype), 0.0, overflowed)


def _expected(
    result: ErrorArray,
    dtype: DType,
    numerics: NumericsClass,
    added: "_Transformed",
    lost: NDArray[np.bool_] | bool,
    *,
    statistics: bool,
) -> Expected:
    settled = result.settled()
    sigma = settled.deviation()
    undecided = ~np.isfinite(settled.value) & np.isinf(sigma)
    if not dtype.is_float:
        return _discrete(settled.value, sigma, dtype)
    may_be_nan = (np.isinf(settled.value) & numerics.flushes_subnormals) | lost
    if result.may_be_nan is not None:
        may_be_nan = may_be_nan | result.may_be_nan
    if added is not _UNTRANSFORMED:
        may_be_nan = may_be_nan | added.mixed
        sigma = np.hypot(sigma, added.deviation)
    held = Precision.of(dtype).holds(np.abs(settled.value), settled.quantum)
    # A number of the type, by whatever it was made: codes and scales are multiples of no common quantum.
    held |= rounded(settled.value, dtype.name).astype(np.float64) == settled.value
    # Granted also where the accumulator is of the same dtype and its roundings are all counted: a
    # backend may compute more precisely and round once.
    last = np.where(held & (sigma == 0.0), 0.0, half_spacing(settled.value, dtype))
    last = np.maximum(last, _lost_underflow(settled, dtype))
    if numerics.flushes_subnormals:
        tiny = np.abs(settled.value) - SIGMAS * sigma < dtype.smallest_normal
        last = np.where(tiny & (settled.value != 0.0), dtype.smallest_normal, last)
    bound = SIGMAS * sigma + last
    deviation = whole = np.hypot(sigma, last / math.sqrt(3.0))
    if (
        not statistics
        or numerics.input_digits is not None
        or numerics.spread is not None
        or result.precision.digits < DTYPES["float32"].digits
    ):
        deviation = np.zeros_like(deviation)
    if numerics.flushes_subnormals:
        # Flushing is no random error: where it can be felt, statistics say nothing.
        felt = np.abs(settled.value) < dtype.smallest_normal * 2.0**result.precision.digits
        deviation = np.where(felt, 0.0, deviation)
    # Nor is the last rounding where numbers are few spacings apart from 0: more of them lie nearer to it, so
    # that it goes towards 0 more often, and always below half a spacing.
    few = np.abs(settled.value) < _FEW_SPACINGS * dtype.smallest_subnormal
    deviation = np.where(few, 0.0, deviation)
    known = _known_share(sigma, settled.value, dtype)
    rounding = last / math.sqrt(3.0) * (1.0 - known)
    sharing = _sharing(settled, deviation, rounding, dtype) if deviation.any() else None
    centre = known * _last_rounding(settled.value, dtype)
    return Expected(
        settled.value, bound, deviation, may_be_nan, dtype, sharing, whole, centre, undecided
    )


def _last_rounding(value: Floats, dtype: DType) -> Floats:
    """What rounding to the dtype adds to the exact value; 0 where that is not finite."""
    with np.errstate(invalid="ignore"):  # Inf − Inf
        added = rounded(value, dtype.name).astype(np.float64) - value
    return np.where(np.isfinite(added), added, 0.0)


def _known_share(sigma: Floats, value: Floats, dtype: DType) -> Floats:
    """How much of that rounding is left in the mean if the value is off by errors of deviation ``sigma``.

    The rounding is a periodic function of the value, the period being the spacing h: a normal error leaves
    exp(−2·(π·σ/h)²) of its first harmonic. Values that crowd on one side of a number are all rounded to the
    other, and those that lie equally far above one all by the same amount; neither is a bias.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        share: Floats = np.exp(-2.0 * np.square(np.pi * sigma / spacing(value, dtype)))
    return np.nan_to_num(share)


def _lost_underflow(settled: ErrorArray, dtype: DType) -> Floats:
    """What underflows of float64 may be off by, whose variances are no float64 any more.

    A product of factors of no common quantum that should be 0, or nearly so, may be the smallest number in
    one order and 0 in another.
    """
    smallest = dtype.smallest_subnormal
    if smallest**2 > 0.0 or settled.quantum > 0.0:
        return np.zeros_like(settled.value)
    return np.where(np.abs(settled.value) < dtype.smallest_normal, SIGMAS * smallest, 0.0)


def _discrete(value: Floats, sigma: Floats, dtype: DType) -> Expected:
    """Indices, masks and codes: exact, but for steps over which an argument's error reaches."""
    inside = np.clip(np.nan_to_num(value), dtype.min, dtype.max)
    nothing = np.zeros_like(inside)
    never = np.zeros(inside.shape, np.bool_)
    return Expected(inside, np.rint(SIGMAS * sigma), nothing, never, dtype, None, nothing)


def _sharing(
    settled: ErrorArray, deviation: Floats, rounding: Floats, dtype: DType
) -> Sharing | None:
    alike = _alike_roundings(settled.value, dtype)
    if settled.fan <= 1.0 and not settled.common and alike is None:
        return None
    whole = np.where(deviation > 0.0, deviation, np.inf)
    common = [(np.abs(c.sensitivity) * settled.unit, c.group) for c in settled.common.values()]
    if alike is not None:
        shared, group = alike
        common.append((np.where(shared, rounding, 0.0), group))
    return Sharing(
        settled.fan,
        np.square(np.sqrt(settled.variance) * settled.unit / whole),
        tuple((sensitivity / whole, group) for sensitivity, group in common),
    )


def _alike_roundings(
    value: Floats, dtype: DType
) -> tuple[NDArray[np.bool_], NDArray[np.int64]] | None:
    """Which elements share their last rounding, and with whom; None where none do.

    Values that lie equally far above a number of the dtype, such as x − c with x of few bits and one c, are
    all rounded by the same amount. What is a number already is not rounded.
    """
    with np.errstate(invalid="ignore"):  # Inf and NaN
        fraction = np.remainder(value / spacing(value, dtype), 1.0)
    known = np.nan_to_num(fraction)
    group = np.rint(known * 2.0**20).astype(np.int64)
    _, number, counts = np.unique(group, return_inverse=True, return_counts=True)
    shared = (counts[number.reshape(value.shape)] > 1) & (known != 0.0)
    return (shared, group) if shared.any() else None


# --- Convolution by transforms --------------------------------------------------------------------


@dataclass(frozen=True)
class _Transformed:
    """What transforms do to an output: errors of this deviation, and where they mix in Inf or NaN."""

    deviation: Floats | float
    mixed: NDArray[np.bool_] | bool


_UNTRANSFORMED = _Transformed(0.0, False)


def _transformed(
    call: Call[Any],
    tensors: Mapping[str, NDArray[Any]],
    numerics: NumericsClass,
    results: tuple[ErrorArray, ...],
) -> list[_Transformed]:
    """The errors that Winograd's or Fourier's transforms add to each output.

    An error is relative to the operands nearby, whether they are the output's own or not. So
    the reference is run once more on operands that have, everywhere, the root mean square of their channel
    (Fourier), or the largest of those of the tiles that an element is in (Winograd): Σ x̂²·ŵ² over the n
    terms of an output, of which the largest nearby counts. With that,
    Var = u²/3·n·(amplification²·Σ x̂²·ŵ² + y²): the sums over channels have at most n terms, and are of a
    random order as in any other sum; what drifts in them is not amplified, for it is in few of
    the products. Products that underflow are added.

    On the way back from frequencies an error is spread over fewer and fewer outputs; the last passes of a
    Fourier transform are off in proportion to the outputs themselves, and spread that along one row. By Cauchy
    and Schwarz no output of a channel is larger than √(n·max Σ x²·w²), which is added to Σ x̂²·ŵ²: it counts
    where few outputs are larger than all others.
    """
    if numerics.spread == "channel" and definitions()[call.primitive.name].convolves:
        return _mixed_in(call, tensors, results)
    names = [spec.name for spec in call.primitive.inputs if spec.name in tensors][:2]
    if len(names) < 2 or numerics.spread is None:
        return [_UNTRANSFORMED] * len(results)
    precision = precision_of(numerics, call.dtype)
    terms = call.primitive.reduction_length(call.problem)
    spatial = [t.shape[2:] for t in tensors.values() if t.ndim > 2]
    dims = len(spatial[0]) if spatial else 0
    points = 2 * max((math.prod(extents) for extents in spatial), default=1)
    amplification = numerics.amplification(dims, points)
    factor = math.sqrt(precision.variance * terms)
    underflow = numerics.underflow_amplification(dims) * math.sqrt(terms * precision.underflow(1.0))
    values = {name: t.astype(np.float64) for name, t in tensors.items()}
    finite = {n: np.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0) for n, v in values.items()}
    nearby = _nearby(call, finite, names, numerics)
    if numerics.spread == "channel":
        largest = _nearby(call, finite, names, numerics, itself=True)
        nearby = [np.hypot(near, most) for near, most in zip(nearby, largest, strict=True)]
    deviations = [
        np.hypot(factor * np.hypot(amplification * near, np.nan_to_num(result.value)), underflow)
        for near, result in zip(nearby, results, strict=True)
    ]
    if all(np.isfinite(values[name]).all() for name in names):
        return [_Transformed(deviation, False) for deviation in deviations]
    for name in names:  # to where NaN nearby comes, transforms may bring NaN
        near = _typical(values[name], numerics)
        values[name] = np.where(np.isfinite(near), values[name], np.nan)
    reached = definitions()[call.primitive.name].evaluate(call, values)
    mixed = [_over_space(np.where(np.isnan(part), np.inf, 0.0), numerics) > 0.0 for part in reached]
    return [_Transformed(*each) for each in zip(deviations, mixed, strict=True)]


def _mixed_in(
    call: Call[Any], tensors: Mapping[str, NDArray[Any]], results: tuple[ErrorArray, ...]
) -> list[_Transformed]:
    """Where Fourier transforms mix in Inf or NaN if the reference's own convolutions have their errors already.

    That is where they come to if a whole channel of each operand that has one is NaN.
    """
    values = {name: t.astype(np.float64) for name, t in tensors.items()}
    if all(np.isfinite(value).all() for value in values.values()):
        return [_UNTRANSFORMED] * len(results)
    everywhere = {
        name: np.where(_over_channel(~np.isfinite(v)), np.nan, v) for name, v in values.items()
    }
    reached = definitions()[call.primitive.name].evaluate(call, everywhere)
    return [_Transformed(0.0, _over_channel(np.isnan(part))) for part in reached]


def _over_channel(marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """All of a channel in which one element is marked; a tensor of one dim has an element for each channel."""
    axes = tuple(range(min(2, marked.ndim - 1), marked.ndim)) if marked.ndim > 1 else ()
    return (
        np.broadcast_to(np.any(marked, axis=axes, keepdims=True), marked.shape) if axes else marked
    )


def _nearby(
    call: Call[Any],
    values: Mapping[str, Floats],
    names: list[str],
    numerics: NumericsClass,
    *,
    itself: bool = False,
) -> list[Floats]:
    """√(Σ x̂²·ŵ²) of each output, for the two operands of these names; of x and w if ``itself``."""
    precision = precision_of(numerics, call.dtype)
    carried = {name: _still(np.zeros(v.shape), precision) for name, v in values.items()}
    first, second = (
        np.abs(values[name]) if itself else _typical(values[name], numerics) for name in names
    )
    carried[names[0]] = _still(first, precision)
    unit = unit_of(second, precision)
    carried[names[1]] = ErrorArray(
        np.zeros(second.shape), precision, np.square(second / unit), unit=unit
    )
    return [
        _over_space(result.deviation(), numerics) for result in evaluated(call, carried, numerics)
    ]


def _still(value: NDArray[Any], precision: Precision) -> ErrorArray:
    """An operand without error."""
    value = np.asarray(value, np.float64)
    return ErrorArray(value, precision, unit=unit_of(value, precision))


def _typical(value: Floats, numerics: NumericsClass) -> Floats:
    """The magnitude that the operand has around each element: see :func:`_transformed`."""
    axes = tuple(range(2, value.ndim))
    squares = np.square(value)
    if value.size == 0 or not axes:
        return np.abs(value)
    tile = numerics.tile
    if tile is None or max(value.shape[2:]) <= tile:
        mean = np.mean(squares, axis=axes, keepdims=True)
        return np.broadcast_to(np.sqrt(mean), value.shape)
    for axis in axes:
        squares = np.mean(_windows(squares, axis, tile, tile - 1), axis=-1)
    for axis in axes:
        squares = np.max(_windows(squares, axis, tile, 0), axis=-1)
    result: Floats = np.sqrt(squares)
    return result


def _windows(values: Floats, axis: int, size: int, around: int) -> Floats:
    """All windows of so many elements along an axis, with zeros around it, as a last axis."""
    width = [(0, 0)] * values.ndim
    width[axis] = (around, around)
    return sliding_window_view(np.pad(values, width), size, axis=axis)


def _over_space(deviation: Floats, numerics: NumericsClass) -> Floats:
    """The largest nearby: at the border, or in the padding, an output has fewer terms than its tile."""
    axes = tuple(range(2, deviation.ndim))
    if deviation.size == 0 or not axes:
        return deviation
    if numerics.tile is None:
        largest = np.max(deviation, axis=axes, keepdims=True)
        return np.broadcast_to(largest, deviation.shape)
    for axis in axes:
        reach = numerics.tile - 1
        deviation = np.max(_windows(deviation, axis, 2 * reach + 1, reach), axis=-1)
    return deviation


def spacing(value: Floats, dtype: DType) -> Floats:
    """The distance of neighbouring numbers of ``dtype`` at ``value``, its unit in the last place.

    At Inf and NaN, where there is none, that of the largest numbers.
    """
    magnitude = np.minimum(np.nan_to_num(np.abs(value), nan=np.inf), dtype.max)
    _, exponent = np.frexp(np.maximum(magnitude, dtype.smallest_normal))
    result: Floats = np.ldexp(1.0, exponent - dtype.digits)
    return result


def half_spacing(value: Floats, dtype: DType) -> Floats:
    """Half the distance of neighbouring numbers of ``dtype`` at ``value``: the largest rounding error.

    Among float64's subnormals half a unit is no number; it is a whole one there.
    """
    smallest = float(np.finfo(np.float64).smallest_subnormal)
    half: Floats = np.maximum(0.5 * spacing(value, dtype), smallest)
    return half
