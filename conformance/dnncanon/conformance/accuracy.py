"""The accuracy model: arrays that carry the rounding error a correct computation may have.

The reference is run on :class:`ErrorArray` in place of NumPy arrays. Each element carries its value in
float64 and the variance of the error that a backend may have accumulated, and every operation passes
both on. So each reference yields its own error bound; no primitive has a formula for it.

Derivation
----------
*Rounding.* A correctly rounded operation with result v in a format of unit roundoff u has an error of
at most u·|v|. Taken as uniform in that interval its variance is (u·v)²/3 (Higham and Mary 2019 justify
the probabilistic view; TOSA takes the same third).

*Propagation* is of first order: Var f(a, b) = (∂f/∂a)²·Var a + (∂f/∂b)²·Var b, errors of operands taken
as independent.

*Sums.* A sum of n terms t_i rounds n−1 times, each time by u·|s_j| of a partial sum s_j, and the order
is the backend's choice. In a random order E s_j² <= Σt² + v², the first for what fluctuates, the second
for what drifts, and the last partial sum is v itself. Hence Var = u²/3·(v² + (n−2)·(Σt² + v²)). To
be independent of the order in which the *reference* happens to add, a sum remembers n and Σt² until it
is used as something else than a term: partial sums of the reference are never rounded.

*Absorption.* Once a sum is so large that u·|s| exceeds its small terms, these are lost one and all: no
independent errors describe that. Sums of n terms of one sign may drift by a share of |v|, for which a
standard deviation of |v|·min(2·(n·u)², n·u/32, 1/8) is added: nothing to speak of while n·u is small.
It is fitted to sequential float16 sums of all fills, n = 16 … 36,864 (tests/test_calibration.py).

*Products* inside a sum may or may not be rounded (FMA), so they count as rounded.

*Exactness.* If all terms are multiples of a quantum q and Σ|t| <= q·2^p, every partial sum in any order
is a multiple of q that p bits can hold: nothing is rounded, and the bound is 0. Σ|t| <= sqrt(n·Σt²).
The quantum must not be below η, the spacing of the subnormal numbers.

*Underflow.* Each rounding may also lose half of η: + η²/12. Where subnormal results may be flushed to
zero it may lose the smallest normal number m instead: + m²/3.

*Units.* The variance of a float64 near its underflow is no float64 any more. So an array keeps its squares
in a unit of its own, a power of two near its largest value; units of products multiply.

The bound itself is made in :mod:`dnncanon.conformance.bounds`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from dnncanon.spec import DType

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Precision:
    """The format in which a backend computes: precision p in bits, and spacing of its subnormals.

    ``flushed`` is the largest result that may become zero, 0 where subnormals are kept.
    """

    digits: int
    subnormal: float
    flushed: float = 0.0

    @classmethod
    def of(cls, dtype: DType, *, flushes_subnormals: bool = False) -> "Precision":
        flushed = dtype.smallest_normal if flushes_subnormals else 0.0
        return cls(dtype.digits, dtype.smallest_subnormal, flushed)

    @property
    def variance(self) -> float:
        """Of a relative rounding error: u²/3."""
        return float(4.0**-self.digits / 3.0)

    def underflow(self, unit: float) -> float:
        """Variance, in unit², of the error of one rounding of a subnormal result: η²/12, or m²/3."""
        return max((self.subnormal / unit) ** 2 / 12.0, (self.flushed / unit) ** 2 / 3.0)

    def absorbed(self, terms: Floats) -> Floats:
        """Standard deviation of the share of a sum of so many terms that absorption may cost it."""
        nu = terms * 2.0**-self.digits
        return np.minimum(np.minimum(2.0 * np.square(nu), nu / 32.0), 1.0 / 8.0)

    def holds(self, magnitude: Floats, quantum: float) -> NDArray[np.bool_]:
        """Where multiples of ``quantum`` up to ``magnitude`` are numbers of the format."""
        limit = quantum * 2.0**self.digits if quantum >= self.subnormal else 0.0
        return magnitude <= limit


class ErrorArray(NDArrayOperatorsMixin):
    """A float64 array with the variance of its error, for NumPy's vocabulary of the reference.

    ``terms`` and ``squares`` are n and Σt² of a sum whose roundings are not counted yet; n <= 1 means
    that there is none. ``variance`` and ``squares`` are in ``unit``², a power of two. ``quantum``
    divides every value exactly; 0 means unknown.
    """

    __array_priority__ = 100

    def __init__(
        self,
        value: Floats,
        precision: Precision,
        variance: Floats | float = 0.0,
        *,
        terms: Floats | float = 1.0,
        squares: Floats | float | None = None,
        quantum: float = 0.0,
        unit: float = 1.0,
    ) -> None:
        self.value = np.asarray(value, np.float64)
        self.precision = precision
        self.unit = unit
        self.variance = np.broadcast_to(np.asarray(variance, np.float64), self.value.shape)
        self.terms = np.broadcast_to(np.asarray(terms, np.float64), self.value.shape)
        squares = self._squared() if squares is None else squares
        self.squares = np.broadcast_to(np.asarray(squares, np.float64), self.value.shape)
        self.quantum = quantum

    # --- What NumPy arrays have ---

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def dtype(self) -> np.dtype[np.float64]:
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> "ErrorArray":
        return self._moved(lambda part: part[index])

    def __setitem__(self, index: Any, other: Any) -> None:
        mine, new = _in_one_unit(self, self._lift(other))
        self.__dict__.update(mine.__dict__)
        for name in ("variance", "terms", "squares"):
            part = getattr(self, name)
            if not part.flags.writeable:
                part = part.copy()
                setattr(self, name, part)
            part[index] = getattr(new, name)
        self.value[index] = new.value
        self.quantum = min(self.quantum, new.quantum)

    def reshape(self, *shape: Any) -> "ErrorArray":
        return self._moved(lambda part: part.reshape(*shape))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if method == "reduce":
            rule = _REDUCTIONS.get(ufunc)
        else:
            rule = _UFUNCS.get(ufunc) if method == "__call__" else None
        if rule is None:
            raise UnsupportedByModel(
                f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
            )
        result = rule(self, *inputs, **kwargs)
        if out is None:
            return result
        if out[0].shape != result.shape:
            raise ValueError(f"a result of shape {result.shape} does not fit into {out[0].shape}")
        out[0].__dict__.update(result.__dict__)
        return out[0]

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        rule = _FUNCTIONS.get(function)
        if rule is None:
            raise UnsupportedByModel(f"numpy.{function.__name__}")
        return rule(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        raise UnsupportedByModel("numpy.asarray")

    # --- The model ---

    def settled(self) -> "ErrorArray":
        """The array with the roundings of its pending sum counted."""
        u2, rest = self.precision.variance, np.maximum(self.terms - 2.0, 0.0)
        v2 = self._squared()
        rounding = u2 * (v2 + rest * (self.squares + v2))
        rounding += self.terms * self.precision.underflow(self.unit)
        rounding += v2 * np.square(self.precision.absorbed(self.terms))
        # Σ|t| <= sqrt(n·Σt²)
        exact = self.precision.holds(np.sqrt(self.terms * self.squares) * self.unit, self.quantum)
        return self._with_variance(
            self.variance + np.where((self.terms < 2.0) | exact, 0.0, rounding)
        )

    def rounded(self) -> "ErrorArray":
        """The array as the result of one operation: its rounding counted, unless it is exact."""
        rounding = self.precision.variance * self._squared()
        rounding += self.precision.underflow(self.unit)
        exact = self.precision.holds(np.abs(self.value), self.quantum)
        return self._with_variance(self.variance + np.where(exact, 0.0, rounding))

    def deviation(self) -> Floats:
        """Standard deviation of the error."""
        result: Floats = np.sqrt(self.variance) * self.unit
        return result

    def _with_variance(self, variance: Floats) -> "ErrorArray":
        """The same values with another error, and no sum pending."""
        return ErrorArray(
            self.value, self.precision, variance, quantum=self.quantum, unit=self.unit
        )

    def _squared(self) -> Floats:
        """The squares of the values, in unit²."""
        result: Floats = np.square(self.value / self.unit)
        return result

    def in_unit(self, unit: float) -> "ErrorArray":
        """The same array with its squares in another unit."""
        factor = (self.unit / unit) ** 2
        return ErrorArray(
            self.value,
            self.precision,
            _scaled(self.variance, factor),
            terms=self.terms,
            squares=_scaled(self.squares, factor),
            quantum=self.quantum,
            unit=unit,
        )

    def _lift(self, other: Any) -> "ErrorArray":
        """A constant as an array; it is rounded to the format unless that can hold it."""
        if isinstance(other, ErrorArray):
            return other
        value = np.asarray(other, np.float64)
        unit = unit_of(value, self.precision)
        return ErrorArray(value, self.precision, quantum=quantum_of(value), unit=unit).rounded()

    def _moved(self, move: Callable[[Floats], Floats]) -> "ErrorArray":
        """The result of an operation that only moves elements."""
        return ErrorArray(
            move(self.value),
            self.precision,
            move(self.variance),
            terms=move(self.terms),
            squares=move(self.squares),
            quantum=self.quantum,
            unit=self.unit,
        )


class UnsupportedByModel(TypeError):
    """A reference used something of NumPy that the accuracy model does not know."""

    def __init__(self, name: str) -> None:
        known = sorted(f.__name__ for f in (*_UFUNCS, *_FUNCTIONS))
        super().__init__(
            f"{name} has no rule in the accuracy model; write the reference with {', '.join(known)}, "
            f"or add a rule to dnncanon.conformance.accuracy"
        )


def quantum_of(value: Floats) -> float:
    """The largest power of two, down to 2^-40, that divides every value; 0 if there is none."""
    for exponent in (0, -1, -2, -4, -10, -40):
        scaled = np.ldexp(value, -exponent)
        if np.array_equal(scaled, np.rint(scaled)):
            return float(2.0**exponent)
    return 0.0


def unit_of(value: Floats, precision: Precision) -> float:
    """The power of two at the largest finite magnitude, but not below the spacing of the subnormals."""
    magnitude = np.abs(value)
    largest = float(magnitude.max(initial=0.0, where=np.isfinite(magnitude)))
    power = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 0.0
    return max(power, precision.subnormal)


def _in_one_unit(a: ErrorArray, b: ErrorArray) -> tuple[ErrorArray, ErrorArray]:
    """Both in the larger unit: what vanishes in it is nothing beside the other's."""
    if a.unit == b.unit:
        return a, b
    unit = max(a.unit, b.unit)
    return (a.in_unit(unit), b) if a.unit < unit else (a, b.in_unit(unit))


def _product_unit(a: ErrorArray, b: ErrorArray) -> float:
    return min(max(a.unit * b.unit, a.precision.subnormal), 2.0**1023)


# --- Rules: one for each function of the vocabulary -----------------------------------------------


def _add(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = _in_one_unit(like._lift(a), like._lift(b))
    return ErrorArray(
        a.value + b.value,
        like.precision,
        a.variance + b.variance,
        terms=a.terms + b.terms,
        squares=a.squares + b.squares,
        quantum=min(a.quantum, b.quantum),
        unit=a.unit,
    )


def _negative(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    moved = a._moved(lambda part: part)
    moved.value = -moved.value
    return moved


def _subtract(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    return _add(like, a, _negative(like, like._lift(b)))


def _multiply(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a).settled(), like._lift(b).settled()
    variance = _scaled(a.variance, b._squared()) + _scaled(b.variance, a._squared())
    return ErrorArray(
        a.value * b.value,
        like.precision,
        variance,
        quantum=a.quantum * b.quantum,
        unit=_product_unit(a, b),
    ).rounded()


def _maximum(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = _in_one_unit(like._lift(a).settled(), like._lift(b).settled())
    value = np.maximum(a.value, b.value)
    variance = np.where(a.value >= b.value, a.variance, b.variance)
    # Near a tie either operand may win, so the smaller one's error must not be lost.
    distance = np.abs(a.value - b.value) / a.unit
    near = np.isfinite(distance) & (np.square(distance) <= 64.0 * (a.variance + b.variance))
    variance = np.where(near, np.maximum(a.variance, b.variance), variance)
    quantum = min(a.quantum, b.quantum)
    return ErrorArray(value, like.precision, variance, quantum=quantum, unit=a.unit)


def _matmul(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a).settled(), like._lift(b).settled()
    unit = _product_unit(a, b)
    a_squares, b_squares = a._squared(), b._squared()
    squares = np.matmul(a_squares, b_squares)
    variance = np.zeros_like(squares)
    if a.variance.any():
        variance = variance + np.matmul(a.variance, b_squares)
    if b.variance.any():
        variance = variance + np.matmul(a_squares, b.variance)
    length = a.value.shape[-1]
    quantum = a.quantum * b.quantum
    roundings = like.precision.variance * squares + length * like.precision.underflow(unit)
    exact = like.precision.holds(np.sqrt(squares) * unit, quantum)
    return ErrorArray(
        np.matmul(a.value, b.value),
        like.precision,
        variance + np.where(exact, 0.0, roundings),
        terms=float(length),
        squares=squares,
        quantum=quantum,
        unit=unit,
    )


def _sum(a: ErrorArray, axis: Any = None, keepdims: bool = False) -> ErrorArray:
    def total(part: Floats) -> Floats:
        return np.asarray(np.sum(part, axis=axis, keepdims=keepdims))

    return ErrorArray(
        total(a.value),
        a.precision,
        total(a.variance),
        terms=total(a.terms),
        squares=total(a.squares),
        quantum=a.quantum,
        unit=a.unit,
    )


def _zeros_like(a: ErrorArray, *, shape: tuple[int, ...] | None = None) -> ErrorArray:
    """A sum of no terms, exact in every quantum."""
    shape = a.shape if shape is None else shape
    least = a.precision.subnormal  # zeros fit in any unit
    return ErrorArray(
        np.zeros(shape), a.precision, terms=0.0, squares=0.0, quantum=np.inf, unit=least
    )


def _pad(a: ErrorArray, width: Any) -> ErrorArray:
    return a._moved(lambda part: np.pad(part, width))


def _swapaxes(a: ErrorArray, first: int, second: int) -> ErrorArray:
    return a._moved(lambda part: np.swapaxes(part, first, second))


def _scaled(variance: Floats, by: Floats | float) -> Floats:
    """variance·by, 0 where there is no variance, whatever ``by`` is."""
    return np.where(variance == 0.0, 0.0, variance * by)


_UFUNCS: dict[Any, Callable[..., ErrorArray]] = {
    np.add: _add,
    np.subtract: _subtract,
    np.negative: _negative,
    np.multiply: _multiply,
    np.maximum: _maximum,
    np.matmul: _matmul,
}
_REDUCTIONS: dict[Any, Callable[..., ErrorArray]] = {
    np.add: lambda like, a, axis=0, keepdims=False: _sum(a, axis, keepdims),
}
_FUNCTIONS: dict[Any, Callable[..., ErrorArray]] = {
    np.sum: _sum,
    np.zeros_like: _zeros_like,
    np.pad: _pad,
    np.swapaxes: _swapaxes,
}
