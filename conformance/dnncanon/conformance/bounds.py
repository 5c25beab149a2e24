"""Expected values and error bounds of a case, from running the reference on error-carrying arrays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
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
class Expected:
    """What one output should be: value, standard deviation of its error, and bound, by element.

    ``bound`` = SIGMAS·σ + the output's own rounding, half a unit in the last place at most; where the
    computation is exact both are 0 and the output must be equal. ``deviation`` is the standard
    deviation of the whole error, the last rounding included; 0 where statistics over elements would
    mislead, because errors are not independent: a rounded operand's shows in many elements, and sums in
    less than float32 lose small terms for good. ``may_be_nan`` marks infinite results that a flushed
    operand turns into NaN: Inf·0.
    """

    value: Floats
    bound: Floats
    deviation: Floats
    may_be_nan: NDArray[np.bool_]
    dtype: DType


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
        results = definitions()[call.primitive.name].evaluate(call, carried)
        return tuple(
            _expected(result, DTYPES[output.dtype], numerics_class, statistics=not few)
            for result, output in zip(results, call.outputs, strict=True)
        )


def _operand(value: Floats, numerics: NumericsClass, dtype: str) -> ErrorArray:
    """An input, with the error of bringing it to the class's operand format."""
    with np.errstate(all="ignore"):
        precision = Precision.of(
            numerics.accumulator(dtype), flushes_subnormals=numerics.flushes_subnormals
        )
        quantum, unit = quantum_of(value), unit_of(value, precision)
        squares, variance = np.square(value / unit), np.zeros_like(value)
        if numerics.input_digits is not None:
            held = np.abs(value) <= quantum * 2.0**numerics.input_digits
            rounding = squares * 4.0**-numerics.input_digits / 3.0
            variance = np.where(np.isfinite(value) & ~held, rounding, 0.0)
        if numerics.flushes_subnormals:
            subnormal = np.abs(value) < DTYPES[dtype].smallest_normal
            variance = np.where(subnormal, squares, variance)
        return ErrorArray(value, precision, variance, quantum=quantum, unit=unit)


def _expected(
    result: ErrorArray, dtype: DType, numerics: NumericsClass, *, statistics: bool
) -> Expected:
    settled = result.settled()
    sigma = settled.deviation()
    held = Precision.of(dtype).holds(np.abs(settled.value), settled.quantum)
    # Granted also where the accumulator is of the same dtype and its roundings are all counted: a
    # backend may compute more precisely and round once.
    last = np.where(held & (settled.variance == 0.0), 0.0, half_spacing(settled.value, dtype))
    if numerics.flushes_subnormals:
        tiny = np.abs(settled.value) - SIGMAS * sigma < dtype.smallest_normal
        last = np.where(tiny & (settled.value != 0.0), dtype.smallest_normal, last)
    bound = SIGMAS * sigma + last
    deviation = np.hypot(sigma, last / math.sqrt(3.0))
    if (
        not statistics
        or numerics.input_digits is not None
        or result.precision.digits < DTYPES["float32"].digits
    ):
        deviation = np.zeros_like(deviation)
    if numerics.flushes_subnormals:
        # Flushing is no random error: where it can be felt, statistics say nothing.
        felt = np.abs(settled.value) < dtype.smallest_normal * 2.0**result.precision.digits
        deviation = np.where(felt, 0.0, deviation)
    may_be_nan = np.isinf(settled.value) & numerics.flushes_subnormals
    return Expected(settled.value, bound, deviation, may_be_nan, dtype)


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
