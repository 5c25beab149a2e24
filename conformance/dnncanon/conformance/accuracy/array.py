"""The error-carrying array: what one element knows, and how NumPy's calls find their rules."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from dnncanon.spec import DTYPES, DType
from dnncanon.spec.numerics import LIBRARY, FunctionError

Floats = NDArray[np.float64]

# How many standard deviations an element may be off. The model adds variances as if a backend summed in
# the worst common order; measured on NumPy in float32, sequential, blocked and pairwise sums stay below 2.
SIGMAS = 8.0

Move = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Precision:
    """The format in which a backend computes: precision p in bits, and spacing of its subnormals.

    ``flushed`` is the largest result that may become zero, 0 where subnormals are kept; ``largest`` the
    largest number; ``functions`` how accurate its elementary functions are; ``transforms`` says that
    convolutions are made by Fourier transforms.
    """

    digits: int
    subnormal: float
    flushed: float = 0.0
    largest: float = math.inf
    functions: Mapping[str, FunctionError] = field(default_factory=lambda: LIBRARY, hash=False)
    transforms: bool = False

    @classmethod
    def of(
        cls,
        dtype: DType,
        *,
        flushes_subnormals: bool = False,
        functions: Mapping[str, FunctionError] = LIBRARY,
        transforms: bool = False,
    ) -> "Precision":
        flushed = dtype.smallest_normal if flushes_subnormals else 0.0
        return cls(
            dtype.digits, dtype.smallest_subnormal, flushed, dtype.max, functions, transforms
        )

    @property
    def smallest_normal(self) -> float:
        """2^emin, from which on numbers have all their digits."""
        return math.ldexp(self.subnormal, self.digits - 1)

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

    def function_variance(
        self, name: str, argument: Floats, squares: Floats, unit: float
    ) -> Floats:
        """Variance, in unit², of what function ``name`` may be off by, beyond its rounding."""
        row = self.functions.get(name)
        if row is None:
            return np.zeros_like(squares)
        ulps: Floats | float = row.ulps
        if row.ulps_per_argument:  # else 0·Inf would be NaN
            ulps = ulps + row.ulps_per_argument * np.abs(argument)
        relative = np.maximum(ulps * 2.0**-self.digits, row.relative)
        variance: Floats = scaled(squares, np.square(relative) / 3.0)
        if row.absolute:
            variance = variance + (row.absolute / unit) ** 2 / 3.0
        return variance


@dataclass(frozen=True, slots=True)
class Common:
    """Errors that several elements share: element i has ``sensitivity[i]``·ξ[``group[i]``].

    The ξ are independent and of variance 1; sensitivities are in the array's unit.
    """

    sensitivity: Floats
    group: NDArray[np.int64]


_numbers = itertools.count()


class ErrorArray(NDArrayOperatorsMixin):
    """A float64 array with the variance of its error, for NumPy's vocabulary of the reference.

    ``terms`` and ``squares`` are n and Σt² of a sum whose roundings are not counted yet; n <= 1 means
    that there is none. ``variance`` and ``squares`` are in ``unit``², a power of two. ``quantum``
    divides every value exactly; 0 means unknown. ``common`` are errors shared by elements, by number,
    and not part of the variance. ``fan`` is over how many elements an error in the variance may show.
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
        common: dict[int, Common] | None = None,
        fan: float = 1.0,
    ) -> None:
        self.value = np.asarray(value, np.float64)
        self.precision = precision
        self.unit = unit
        shape = self.value.shape
        self.variance = _filled(variance, shape)
        self.terms = _filled(terms, shape)
        self.squares = _filled(self.squared() if squares is None else squares, shape)
        self.quantum = quantum
        self.common = common or {}
        self.fan = fan
        self.may_be_nan: NDArray[np.bool_] | None = (
            None  # of infinite products: see arithmetic.prod
        )

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

    @property
    def T(self) -> "ErrorArray":
        return self.moved(np.transpose)

    @property
    def mT(self) -> "ErrorArray":
        return self.moved(lambda part: np.swapaxes(part, -1, -2))

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> "ErrorArray":
        return self.moved(lambda part: part[index])

    def __setitem__(self, index: Any, other: Any) -> None:
        mine, new = in_one_unit(self.folded(), self.lift(other).folded())
        self.__dict__.update(mine.__dict__)
        for name in ("variance", "terms", "squares"):
            part = getattr(self, name)
            if not part.flags.writeable:
                part = part.copy()
                setattr(self, name, part)
            part[index] = getattr(new, name)
        self.value[index] = new.value
        self.quantum = min(self.quantum, new.quantum)
        self.fan = max(self.fan, new.fan)

    def reshape(self, *shape: Any, **options: Any) -> "ErrorArray":
        return self.moved(lambda part: part.reshape(*shape, **options))

    def transpose(self, *axes: Any) -> "ErrorArray":
        return self.moved(lambda part: part.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> "ErrorArray":
        return self.moved(lambda part: np.swapaxes(part, first, second))

    def squeeze(self, axis: Any = None) -> "ErrorArray":
        return self.moved(lambda part: np.squeeze(part, axis))

    def ravel(self) -> "ErrorArray":
        return self.reshape(-1)

    flatten = ravel

    def copy(self) -> "ErrorArray":
        return self.moved(np.copy)

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Whole numbers to count with, such as a cell: plain, as comparisons are."""
        if np.dtype(dtype).kind != "i":
            raise TypeError(f"the accuracy model has no rule for astype({np.dtype(dtype)})")
        return self.value.astype(dtype)

    def sum(self, *args: Any, **options: Any) -> Any:
        return FUNCTIONS[np.sum](self, *args, **options)

    def mean(self, *args: Any, **options: Any) -> Any:
        return FUNCTIONS[np.mean](self, *args, **options)

    def max(self, *args: Any, **options: Any) -> Any:
        return FUNCTIONS[np.max](self, *args, **options)

    def min(self, *args: Any, **options: Any) -> Any:
        return FUNCTIONS[np.min](self, *args, **options)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        if method == "reduce":
            rule = REDUCTIONS.get(ufunc.__name__)
        else:
            rule = UFUNCS.get(ufunc.__name__) if method == "__call__" else None
        if rule is None:
            raise UnsupportedByModel(ufunc.__name__, "" if method == "__call__" else method)
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
        rule = FUNCTIONS.get(function)
        if rule is None:
            raise UnsupportedByModel(function.__name__)
        return rule(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        raise UnsupportedByModel("asarray")

    def __bool__(self) -> bool:
        return bool(self.value)

    # --- The model ---

    @property
    def has_errors(self) -> bool:
        """Whether any element has an error so far, the roundings of a pending sum apart."""
        return bool(self.common) or bool(self.variance.any())

    def settled(self) -> "ErrorArray":
        """The array with the roundings of its pending sum counted."""
        u2, rest = self.precision.variance, np.maximum(self.terms - 2.0, 0.0)
        v2 = self.squared()
        rounding = u2 * (v2 + rest * (self.squares + v2))
        rounding += self.terms * self.precision.underflow(self.unit)
        rounding += v2 * np.square(self.precision.absorbed(self.terms))
        # Σ|t| <= sqrt(n·Σt²)
        exact = self.precision.holds(np.sqrt(self.terms * self.squares) * self.unit, self.quantum)
        exact |= (self.terms < 2.0) | ~np.isfinite(self.value)
        variance = self.variance + np.where(exact, 0.0, rounding)
        if self.unit * 2.0**20 > self.precision.largest:
            variance = np.where(self._may_overflow(), np.inf, variance)
        result = self.with_variance(variance)
        once = ~exact & (np.broadcast_to(self.terms, exact.shape) <= 2.0)
        result.fan = max(result.fan, _most_alike(self.value[once], self.precision))
        return result

    def _may_overflow(self) -> NDArray[np.bool_]:
        """Where a partial sum in some order may exceed the format, though the sum does not.

        Partial sums of a random order have the standard deviation sqrt(Σt²) and the drift |v| at most;
        those of two terms are the terms, products that may overflow themselves.
        """
        spread = np.sqrt(self.squares) * self.unit
        partial = np.where(self.terms > 2.0, np.abs(self.value) + 4.0 * spread, spread)
        may_overflow: NDArray[np.bool_] = partial > self.precision.largest
        return may_overflow & (self.terms >= 2.0) & np.isfinite(self.value)

    def rounded(self, function: str = "", argument: Floats | None = None) -> "ErrorArray":
        """The array as the result of one operation: its rounding counted, unless it is exact.

        The operation may be an elementary function, less accurate than a rounding.
        """
        squares = self.squared()
        rounding = self.precision.variance * squares
        rounding += self.precision.underflow(self.unit)
        exact = self.precision.holds(np.abs(self.value), self.quantum)
        exact |= ~np.isfinite(self.value)
        if function:
            argument = np.zeros(()) if argument is None else argument
            rounding = rounding + self.precision.function_variance(
                function, argument, squares, self.unit
            )
            overflown = np.abs(self.value) > self.precision.largest
            rounding = np.where(overflown, squares, rounding)
        result = self.with_variance(self.variance + np.where(exact, 0.0, rounding))
        result.fan = max(result.fan, _most_alike(self.value[~exact], self.precision))
        return result

    def deviation(self) -> Floats:
        """Standard deviation of the error."""
        result: Floats = np.sqrt(self.total_variance()) * self.unit
        return result

    def total_variance(self) -> Floats:
        """The variance with the common errors in it, in unit²."""
        total = self.variance
        for common in self.common.values():
            total = total + np.square(common.sensitivity)
        return total

    def decide_specials(self, undecided: NDArray[np.bool_]) -> None:
        """Of values that are Inf or NaN: they are so for certain, or ``undecided``, with no bound.

        An infinite slope times an error is no error: Inf times what is 3, or nearly so, is Inf.
        """
        finite = np.isfinite(self.value)
        self.variance = np.where(finite, self.variance, np.where(undecided, np.inf, 0.0))
        self.common = {
            number: Common(np.where(finite, c.sensitivity, 0.0), c.group)
            for number, c in self.common.items()
        }

    def may_be_zero(self) -> NDArray[np.bool_]:
        """Where the error reaches from the value to 0, or a subnormal number may be flushed to it."""
        magnitude, variance = np.abs(self.value), self.total_variance()
        near: NDArray[np.bool_] = magnitude <= SIGMAS * np.sqrt(variance) * self.unit
        near &= variance > 0.0
        return near | ((self.value != 0.0) & (magnitude < self.precision.flushed))

    def folded(self) -> "ErrorArray":
        """The array with its common errors in the variance, as if they were independent."""
        if not self.common:
            return self
        fan = max([self.fan, *(_largest_group(c.group) for c in self.common.values())])
        return self.moved(_same, common={}, variance=self.total_variance(), fan=fan)

    def shared(self, times: float) -> "ErrorArray":
        """The array for a result in which each element shows ``times`` times.

        Its error becomes a common one. A sum must be complete by then.
        """
        array = self.settled() if bool((self.terms > 1.0).any()) else self
        if times <= 1 or not array.variance.any():
            return array
        group = np.arange(array.size).reshape(array.shape)
        new = Common(np.sqrt(array.variance), group)
        return array.moved(_same, common={**array.common, next(_numbers): new}, variance=0.0)

    def as_convolution(self, first: "ErrorArray", second: "ErrorArray") -> "ErrorArray":
        """The array, of which the reference says that it is the convolution of two along their last axes."""
        if not self.precision.transforms:
            return self
        from dnncanon.conformance.accuracy.transforms import convolved

        return convolved(self, first, second)

    def kept_as(self, dtype: str) -> "ErrorArray":
        """The array, of which the reference says that a backend may keep it in ``dtype`` and read it again."""
        narrow = Precision.of(DTYPES[dtype])
        if narrow.digits >= self.precision.digits:
            return self
        array = self.settled()
        held = narrow.holds(np.abs(array.value), array.quantum) & (array.total_variance() == 0.0)
        rounding = narrow.variance * array.squared() + narrow.underflow(array.unit)
        variance = array.variance + np.where(held | ~np.isfinite(array.value), 0.0, rounding)
        reach = np.abs(array.value) + SIGMAS * np.sqrt(array.total_variance()) * array.unit
        with np.errstate(invalid="ignore"):
            overflows = np.isfinite(array.value) & (reach > narrow.largest)
        return array.with_variance(np.where(overflows, np.inf, variance))

    def with_variance(self, variance: Floats) -> "ErrorArray":
        """The same values with another error, and no sum pending."""
        return ErrorArray(
            self.value,
            self.precision,
            variance,
            quantum=self.quantum,
            unit=self.unit,
            common=self.common,
            fan=self.fan,
        )

    def squared(self) -> Floats:
        """The squares of the values, in unit².

        Those of values below 2^-450 units, times a variance u²/3, are no float64 any more: they count as much.
        """
        ratio = np.abs(self.value / self.unit)
        result: Floats = np.square(
            np.where(self.value == 0.0, 0.0, np.maximum(ratio, _LEAST_RATIO))
        )
        return result

    def in_unit(self, unit: float) -> "ErrorArray":
        """The same array with its squares in another unit."""
        ratio = self.unit / unit
        return ErrorArray(
            self.value,
            self.precision,
            scaled(scaled(self.variance, ratio), ratio),  # ratio² may be too large
            terms=self.terms,
            squares=scaled(scaled(self.squares, ratio), ratio),
            quantum=self.quantum,
            unit=unit,
            common={
                number: Common(scaled(c.sensitivity, ratio), c.group)
                for number, c in self.common.items()
            },
            fan=self.fan,
        )

    def in_needed_unit(self) -> "ErrorArray":
        """The same array in the unit of its largest value or error.

        That of a product is the product of the operands' units, though the values may have met zeros only.
        """
        parts = (self.variance, self.squares, *(c.sensitivity**2 for c in self.common.values()))
        root = max(math.sqrt(part.max(initial=0.0, where=np.isfinite(part))) for part in parts)
        power = math.frexp(root)[1] + _exponent(self.unit) - 1 if root else -1074
        return self.in_unit(max(math.ldexp(1.0, min(power, 1023)), self.precision.subnormal))

    def lift(self, other: Any) -> "ErrorArray":
        """A constant as an array; it is rounded to the format unless that can hold it."""
        if isinstance(other, ErrorArray):
            return other
        if hasattr(other, "carried"):  # truth values that errors may decide: see undecided
            carried: ErrorArray = other.carried()
            return carried
        value = np.asarray(other, np.float64)
        unit = unit_of(value, self.precision)
        return ErrorArray(value, self.precision, quantum=quantum_of(value), unit=unit).rounded()

    def moved(
        self,
        move: Move,
        *,
        common: dict[int, Common] | None = None,
        variance: Floats | float | None = None,
        fan: float | None = None,
    ) -> "ErrorArray":
        """The result of an operation that only moves elements; what is given replaces what is moved."""
        if common is None:
            common = {
                number: Common(move(c.sensitivity), move(c.group))
                for number, c in self.common.items()
            }
        result = ErrorArray(
            move(self.value),
            self.precision,
            move(self.variance) if variance is None else variance,
            terms=move(self.terms),
            squares=move(self.squares),
            quantum=self.quantum,
            unit=self.unit,
            common=common,
            fan=self.fan if fan is None else fan,
        )
        if self.may_be_nan is not None:
            result.may_be_nan = move(self.may_be_nan)
        return result


_LEAST_RATIO = 2.0**-450


class UnsupportedByModel(TypeError):
    """A reference used something of NumPy that the accuracy model does not know."""

    def __init__(self, name: str, method: str = "") -> None:
        known = sorted({*UFUNCS, *(f.__name__ for f in FUNCTIONS)})
        full = f"{name}.{method}" if method else name
        instead = INSTEAD.get(full) or INSTEAD.get(name)
        hint = f"use {instead}; " if instead else ""
        super().__init__(
            f"numpy.{full} has no rule in the accuracy model; {hint}write the reference with "
            f"{', '.join(known)}, or add a rule to dnncanon.conformance.accuracy"
        )


INSTEAD = {
    "asarray": "the array as it is: a definition must work on any array",
    "array": "the array as it is: a definition must work on any array",
    "std": "np.sqrt of the mean of squares, so that the definition says which variance it means",
    "var": "the mean of np.square(x − mean), so that the definition says which variance it means",
    "tensordot": "np.einsum",
    "inner": "np.einsum",
    "outer": "np.einsum or broadcasting",
    "vdot": "np.einsum",
    "linalg.norm": "np.sqrt(np.sum(np.square(x)))",
    "norm": "np.sqrt(np.sum(np.square(x)))",
    "add.accumulate": "np.cumsum",
    "add.at": "a matrix product with a mask, or slices",
    "multiply.accumulate": "np.prod of slices",
    "cumprod": "np.prod of slices",
    "average": "np.mean, or np.sum and a division",
    "sort": "np.max, np.min or np.argmax",
    "median": "np.max, np.min or np.argmax",
    "hypot": "np.sqrt of a sum of squares",
    "floor_divide": "integers, outside the arrays",
    "remainder": "integers, outside the arrays",
    "convolve": "sliding_window_view and np.einsum",
    "nan_to_num": "np.where and np.isfinite",
    "any": "a comparison, whose result is a plain array",
    "all": "a comparison, whose result is a plain array",
}


# --- Helpers of the rules -------------------------------------------------------------------------


def _same(part: Any) -> Any:
    return part


def _filled(part: Floats | float, shape: tuple[int, ...]) -> Floats:
    if isinstance(part, np.ndarray) and part.shape == shape:
        return part
    return np.broadcast_to(np.asarray(part, np.float64), shape)


def _largest_group(group: NDArray[np.int64]) -> float:
    _, counts = np.unique(group, return_counts=True)
    return float(counts.max(initial=1))


def _most_alike(value: Floats, precision: Precision) -> float:
    """The most elements that lie between the same two numbers of the format, and are rounded alike.

    So are those of 1 + e^−x for large x. Only where elements are so crowded that there must be such pairs.
    """
    if value.size < 2:
        return 1.0
    low, high = float(value.min()), float(value.max())
    spacing = math.ldexp(1.0, math.frexp(max(abs(low), abs(high)))[1] - precision.digits)
    if high - low >= value.size * spacing:
        return 1.0
    return _largest_group(np.floor(value / spacing).astype(np.int64))


def quantum_of(value: Floats) -> float:
    """The largest power of two, down to 2^-40, that divides every value; 0 if there is none."""
    for exponent in (0, -1, -2, -4, -10, -40):
        scaled_value = np.ldexp(value, -exponent)
        if np.array_equal(scaled_value, np.rint(scaled_value)):
            return float(2.0**exponent)
    return 0.0


def unit_of(value: Floats, precision: Precision) -> float:
    """The power of two at the largest finite magnitude, but not below the spacing of the subnormals."""
    magnitude = np.abs(value)
    largest = float(magnitude.max(initial=0.0, where=np.isfinite(magnitude)))
    power = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 0.0
    return max(power, precision.subnormal)


_FAR_APART = 200
"""Binades between units from which on squares in the smaller one may be no float64 in the larger."""


def in_one_unit(a: ErrorArray, b: ErrorArray) -> tuple[ErrorArray, ErrorArray]:
    """Both in the larger unit: what vanishes in it is nothing beside the other's."""
    if a.unit == b.unit:
        return a, b
    if abs(_exponent(a.unit) - _exponent(b.unit)) > _FAR_APART:
        a, b = a.in_needed_unit(), b.in_needed_unit()
    unit = max(a.unit, b.unit)
    return (a.in_unit(unit), b) if a.unit < unit else (a, b.in_unit(unit))


def product_unit(a: ErrorArray, b: ErrorArray) -> float:
    return min(max(a.unit * b.unit, a.precision.subnormal), 2.0**1023)


def scaled(variance: Floats, by: Floats | float) -> Floats:
    """variance·by, but 0 where there is no variance, and infinite where it is, whatever ``by`` is.

    What may be infinite has no bound after multiplication by 0 either: it may be NaN.
    """
    with np.errstate(invalid="ignore"):  # 0·∞, which is replaced
        product = np.where(variance == 0.0, 0.0, variance * by)
    return np.where(np.isinf(variance), np.inf, product)


def combined(
    value: Floats,
    operands: Sequence[tuple[ErrorArray, Floats | float]],
    unit: float,
    quantum: float = 0.0,
) -> ErrorArray:
    """A function of arrays, with ∂f/∂a for each of them; its own rounding is not counted.

    Operands are settled. The error of one that is broadcast becomes a common error of the result.
    """
    precision = operands[0][0].precision
    variance: Floats | float = 0.0
    common: dict[int, Common] = {}
    fan = 1.0
    felt = [(operand, np.asarray(slope)) for operand, slope in operands if operand.has_errors]
    unit = max([unit, *(_least_unit(operand, slope) for operand, slope in felt)])
    for operand, slope in felt:
        array = operand.shared(value.size / max(1, operand.size))
        fan = max(fan, array.fan)
        step = np.ldexp(slope, _exponent(array.unit) - _exponent(unit))
        if array.variance.any():
            variance = variance + scaled(array.variance, np.square(step))
        _add_common(common, array, step, value.shape)
    result = ErrorArray(
        value, precision, variance, quantum=quantum, unit=unit, common=common, fan=fan
    )
    if felt and not np.isfinite(value).all():
        result.decide_specials(_any_unbounded([operand for operand, _ in felt], value.shape))
    return result


def _any_unbounded(operands: Sequence[ErrorArray], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Where an operand's error has no bound."""
    found = np.zeros(shape, np.bool_)
    for operand in operands:
        found |= np.isinf(operand.total_variance())
    return found


def _least_unit(operand: ErrorArray, slope: Floats) -> float:
    """The smallest unit in which the operand's error, with this slope, has a square that is a float64.

    Values may be far smaller than their errors, such as those of x − x or 0/x.
    """
    magnitude = np.abs(slope)
    largest = float(magnitude.max(initial=0.0, where=np.isfinite(magnitude)))
    exponent = _exponent(largest) + _exponent(operand.unit) - _LARGEST_STEP
    return math.ldexp(1.0, min(exponent, 1023)) if largest else 0.0


_LARGEST_STEP = 400
"""The exponent of the largest error in its unit: it leaves room for squares, and for sums of them."""


def _exponent(number: float) -> int:
    return math.frexp(number)[1]


def _add_common(
    common: dict[int, Common], array: ErrorArray, step: Floats, shape: tuple[int, ...]
) -> None:
    for number, mine in array.common.items():
        sensitivity = _filled(scaled(mine.sensitivity, step), shape)
        if number in common:
            sensitivity = sensitivity + common[number].sensitivity
        common[number] = Common(sensitivity, np.broadcast_to(mine.group, shape))


Rule = Callable[..., Any]
UFUNCS: dict[str, Rule] = {}
"""By the name of the ufunc, so that SciPy's are known without being imported; rule(array, *inputs)."""
REDUCTIONS: dict[str, Rule] = {}
FUNCTIONS: dict[Any, Rule] = {}
