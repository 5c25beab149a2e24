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
It is fitted to sequential float16 sums of all fills, n = 16 … 36,864 (tests/test_accuracy.py).

*Products* inside a sum may or may not be rounded (FMA), so they count as rounded.

*Exactness.* If all terms are multiples of a quantum q and Σ|t| <= q·2^p, every partial sum in any order
is a multiple of q that p bits can hold: nothing is rounded, and the bound is 0. Σ|t| <= sqrt(n·Σt²).
The quantum must not be below η, the spacing of the subnormal numbers.

*Underflow.* Each rounding may also lose half of η: + η²/12. Where subnormal results may be flushed to
zero it may lose the smallest normal number m instead: + m²/3. In float64 both vanish, as all variances
below 2^-1074 do; results below some 1e-145 are then held to their last rounding alone.

The bound itself is made in :mod:`dnncanon.conformance.bounds`.
"""

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

    @property
    def underflow(self) -> float:
        """Variance of the absolute error of one rounding of a subnormal result: η²/12, or m²/3."""
        return max(self.subnormal**2 / 12.0, self.flushed**2 / 3.0)

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
    that there is none. ``quantum`` divides every value exactly; 0 means unknown.
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
    ) -> None:
        self.value = np.asarray(value, np.float64)
        self.precision = precision
        self.variance = np.broadcast_to(np.asarray(variance, np.float64), self.value.shape)
        self.terms = np.broadcast_to(np.asarray(terms, np.float64), self.value.shape)
        squares = np.square(self.value) if squares is None else squares
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
        new = self._lift(other)
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
        v2 = np.square(self.value)
        rounding = u2 * (v2 + rest * (self.squares + v2)) + self.terms * self.precision.underflow
        rounding += v2 * np.square(self.precision.absorbed(self.terms))
        # Σ|t| <= sqrt(n·Σt²)
        exact = self.precision.holds(np.sqrt(self.terms * self.squares), self.quantum)
        rounding = np.where((self.terms < 2.0) | exact, 0.0, rounding)
        return ErrorArray(
            self.value, self.precision, self.variance + rounding, quantum=self.quantum
        )

    def rounded(self) -> "ErrorArray":
        """The array as the result of one operation: its rounding counted, unless it is exact."""
        rounding = self.precision.variance * np.square(self.value) + self.precision.underflow
        exact = self.precision.holds(np.abs(self.value), self.quantum)
        variance = self.variance + np.where(exact, 0.0, rounding)
        return ErrorArray(self.value, self.precision, variance, quantum=self.quantum)

    def _lift(self, other: Any) -> "ErrorArray":
        """A constant as an array; it is rounded to the format unless that can hold it."""
        if isinstance(other, ErrorArray):
            return other
        value = np.asarray(other, np.float64)
        return ErrorArray(value, self.precision, quantum=quantum_of(value)).rounded()

    def _moved(self, move: Callable[[Floats], Floats]) -> "ErrorArray":
        """The result of an operation that only moves elements."""
        return ErrorArray(
            move(self.value),
            self.precision,
            move(self.variance),
            terms=move(self.terms),
            squares=move(self.squares),
            quantum=self.quantum,
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


# --- Rules: one for each function of the vocabulary -----------------------------------------------


def _add(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a), like._lift(b)
    return ErrorArray(
        a.value + b.value,
        like.precision,
        a.variance + b.variance,
        terms=a.terms + b.terms,
        squares=a.squares + b.squares,
        quantum=min(a.quantum, b.quantum),
    )


def _negative(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    moved = a._moved(lambda part: part)
    moved.value = -moved.value
    return moved


def _subtract(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    return _add(like, a, _negative(like, like._lift(b)))


def _multiply(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a).settled(), like._lift(b).settled()
    variance = _scaled(a.variance, b.value) + _scaled(b.variance, a.value)
    product = ErrorArray(a.value * b.value, like.precision, variance, quantum=a.quantum * b.quantum)
    return product.rounded()


def _maximum(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a).settled(), like._lift(b).settled()
    value = np.maximum(a.value, b.value)
    variance = np.where(a.value >= b.value, a.variance, b.variance)
    # Near a tie either operand may win, so the smaller one's error must not be lost.
    distance = np.abs(a.value - b.value)
    near = np.isfinite(distance) & (np.square(distance) <= 64.0 * (a.variance + b.variance))
    variance = np.where(near, np.maximum(a.variance, b.variance), variance)
    return ErrorArray(value, like.precision, variance, quantum=min(a.quantum, b.quantum))


def _matmul(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = like._lift(a).settled(), like._lift(b).settled()
    squares = np.matmul(np.square(a.value), np.square(b.value))
    variance = np.zeros_like(squares)
    if a.variance.any():
        variance = variance + np.matmul(a.variance, np.square(b.value))
    if b.variance.any():
        variance = variance + np.matmul(np.square(a.value), b.variance)
    length = a.value.shape[-1]
    quantum = a.quantum * b.quantum
    roundings = like.precision.variance * squares + length * like.precision.underflow
    exact = like.precision.holds(np.sqrt(squares), quantum)
    return ErrorArray(
        np.matmul(a.value, b.value),
        like.precision,
        variance + np.where(exact, 0.0, roundings),
        terms=float(length),
        squares=squares,
        quantum=quantum,
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
    )


def _zeros_like(a: ErrorArray, *, shape: tuple[int, ...] | None = None) -> ErrorArray:
    """A sum of no terms, exact in every quantum."""
    shape = a.shape if shape is None else shape
    return ErrorArray(np.zeros(shape), a.precision, terms=0.0, squares=0.0, quantum=np.inf)


def _pad(a: ErrorArray, width: Any) -> ErrorArray:
    return a._moved(lambda part: np.pad(part, width))


def _swapaxes(a: ErrorArray, first: int, second: int) -> ErrorArray:
    return a._moved(lambda part: np.swapaxes(part, first, second))


def _scaled(variance: Floats, by: Floats) -> Floats:
    """variance·by², 0 where there is no variance, whatever ``by`` is."""
    return np.where(variance == 0.0, 0.0, variance * np.square(by))


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
