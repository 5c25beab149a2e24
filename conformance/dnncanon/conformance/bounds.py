"""Expected values and error bounds of a case, from running the reference on error-carrying arrays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import ErrorArray, Precision, quantum_of, unit_of
from dnncanon.reference import definitions
from dnncanon.spec import DTYPES, NUMERICS, Call, DType, NumericsClass

Floats = NDArray[np.float64]

# How many standard deviations an element may be off. The model adds variances as if a backend summed in
# the worst common order; measured on NumPy in float32, sequential, blocked and pairwise sums stay below 2.
SIGMAS = 8.0

# From so many terms on, the last rounding of a sum is as good as random. That of a single product is
# not: with a short operand such as 1.5 it is a tie every time.
RANDOM_TERMS = 8


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
    ``may_be_nan`` marks results that a class may turn into NaN: infinite ones where a flushed operand makes
    it Inf·0, and finite ones, which may become infinite too, where a transform mixes in a neighbour's
    Inf or NaN. ``sharing`` says which errors elements
    have in common; None, where they have none.
    """

    value: Floats
    bound: Floats
    deviation: Floats
    may_be_nan: NDArray[np.bool_]
    dtype: DType
    sharing: Sharing | None = None
    sigma: Floats | None = None


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
        results = evaluated(call, carried)
        transformed = _transformed(call, tensors, numerics_class, results)
        return tuple(
            _expected(result, DTYPES[output.dtype], numerics_class, added, statistics=not few)
            for result, output, added in zip(results, call.outputs, transformed, strict=True)
        )


def evaluated(call: Call[Any], carried: Mapping[str, ErrorArray]) -> tuple[ErrorArray, ...]:
    """The reference's results on error-carrying arrays."""
    results: tuple[ErrorArray, ...] = definitions()[call.primitive.name].evaluate(
        call, dict(carried)
    )
    return results


def precision_of(numerics: NumericsClass, dtype: str) -> Precision:
    """The format in which the class computes with tensors of ``dtype``."""
    return Precision.of(
        numerics.accumulator(dtype),
        flushes_subnormals=numerics.flushes_subnormals,
        functions=numerics.functions,
    )


def _operand(value: Floats, numerics: NumericsClass, dtype: str) -> ErrorArray:
    """An input, with the error of bringing it to the class's operand format."""
    with np.errstate(all="ignore"):
        precision = precision_of(numerics, dtype)
        quantum, unit = quantum_of(value), unit_of(value, precision)
        squares, variance = np.square(value / unit), np.zeros_like(value)
        if numerics.input_digits is not None:
            held = np.abs(value) <= quantum * 2.0 ** (
                numerics.exact_digits or numerics.input_digits
            )
            rounding = squares * numerics.input_variance
            variance = np.where(np.isfinite(value) & ~held, rounding, 0.0)
        if numerics.flushes_subnormals:
            subnormal = np.abs(value) < DTYPES[dtype].smallest_normal
            variance = np.where(subnormal, squares, variance)
        return ErrorArray(value, precision, variance, quantum=quantum, unit=unit)


def _expected(
    result: ErrorArray,
    dtype: DType,
    numerics: NumericsClass,
    added: "_Transformed",
    *,
    statistics: bool,
) -> Expected:
    settled = result.settled()
    sigma = settled.deviation()
    may_be_nan = np.isinf(settled.value) & numerics.flushes_subnormals
    if added is not _UNTRANSFORMED:
        may_be_nan = may_be_nan | added.mixed
        sigma = np.hypot(sigma, added.deviation)
    held = Precision.of(dtype).holds(np.abs(settled.value), settled.quantum)
    # Granted also where the accumulator is of the same dtype and its roundings are all counted: a
    # backend may compute more precisely and round once.
    last = np.where(held & (sigma == 0.0), 0.0, half_spacing(settled.value, dtype))
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
    sharing = _sharing(settled, deviation) if deviation.any() else None
    return Expected(settled.value, bound, deviation, may_be_nan, dtype, sharing, whole)


def _sharing(settled: ErrorArray, deviation: Floats) -> Sharing | None:
    if settled.fan <= 1.0 and not settled.common:
        return None
    whole = np.where(deviation > 0.0, deviation, np.inf) / settled.unit
    return Sharing(
        settled.fan,
        np.square(np.sqrt(settled.variance) / whole),
        tuple((np.abs(c.sensitivity) / whole, c.group) for c in settled.common.values()),
    )


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
    """
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
    deviations = [
        np.hypot(factor * np.hypot(amplification * near, np.nan_to_num(result.value)), underflow)
        for near, result in zip(nearby, results, strict=True)
    ]
    if all(np.isfinite(values[name]).all() for name in names):
        return [_Transformed(deviation, False) for deviation in deviations]
    reached = _nearby(call, values, names, numerics)
    return [
        _Transformed(deviation, ~np.isfinite(reach))
        for reach, deviation in zip(reached, deviations, strict=True)
    ]


def _nearby(
    call: Call[Any], values: Mapping[str, Floats], names: list[str], numerics: NumericsClass
) -> list[Floats]:
    """√(Σ x̂²·ŵ²) of each output, for the two operands of these names."""
    precision = precision_of(numerics, call.dtype)
    carried = {name: _still(np.zeros(v.shape), precision) for name, v in values.items()}
    first, second = (_typical(values[name], numerics) for name in names)
    carried[names[0]] = _still(first, precision)
    unit = unit_of(second, precision)
    carried[names[1]] = ErrorArray(
        np.zeros(second.shape), precision, np.square(second / unit), unit=unit
    )
    return [_over_space(result.deviation(), numerics) for result in evaluated(call, carried)]


def _still(value: Floats, precision: Precision) -> ErrorArray:
    """An operand without error."""
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
