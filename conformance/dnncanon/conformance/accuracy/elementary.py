"""Rules of the accuracy model for elementary functions, selections, and results without error."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.accuracy.arithmetic import negative, square
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
    scaled,
    unit_of,
)
from dnncanon.conformance.accuracy.undecided import Undecided

# --- f(x) with its derivative, of x and f(x) ------------------------------------------------------

Derivative = Callable[[Floats, Floats], Floats]
_LN2 = float(np.log(2.0))
_DERIVATIVES: dict[str, Derivative] = {
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * _LN2,
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: 1.0 / (x * _LN2),
    "log1p": lambda x, y: 1.0 / (1.0 + x),
    "tanh": lambda x, y: 1.0 - np.square(y),
    "sinh": lambda x, y: np.cosh(x),
    "cosh": lambda x, y: np.sinh(x),
    "sin": lambda x, y: np.cos(x),
    "cos": lambda x, y: -np.sin(x),
    "tan": lambda x, y: 1.0 + np.square(y),
    "erf": lambda x, y: 2.0 / np.sqrt(np.pi) * np.exp(-np.square(x)),
    "erfc": lambda x, y: -2.0 / np.sqrt(np.pi) * np.exp(-np.square(x)),
}

# Values that every library returns exactly.
_EXACT = {"exp": 0.0, "exp2": 0.0, "expm1": 0.0, "log": 1.0, "log2": 1.0, "log1p": 0.0, "tanh": 0.0}
_EXACT.update(sinh=0.0, cosh=0.0, sin=0.0, cos=0.0, tan=0.0, erf=0.0, erfc=0.0)


def _elementary(name: str, derivative: Derivative) -> Callable[..., ErrorArray]:
    def rule(like: ErrorArray, x: ErrorArray) -> ErrorArray:
        x = x.settled()
        value = _UFUNC[name](x.value)
        unit = unit_of(value, like.precision)
        with np.errstate(all="ignore"):  # a derivative may be infinite where the function is not
            result = combined(value, ((x, derivative(x.value, value)),), unit)
        rounded = result.rounded(name, x.value)
        # Where the argument is exact and the result is one that nobody gets wrong.
        sure = (x.value == _EXACT[name]) & (x.total_variance() == 0.0)
        rounded.variance = np.where(sure, 0.0, rounded.variance)
        return rounded

    return rule


_UFUNC: dict[str, Any] = {
    name: getattr(np, name) for name in _DERIVATIVES if not name.startswith("erf")
}


def _scipy(name: str) -> Callable[..., ErrorArray]:
    """SciPy's function. SciPy is no requirement: a reference that calls this has imported it already."""
    rule = _elementary(name, _DERIVATIVES[name])

    def load(like: ErrorArray, x: ErrorArray) -> ErrorArray:
        _UFUNC[name] = getattr(sys.modules["scipy.special"], name)
        return rule(like, x)

    return load


def sqrt(like: ErrorArray, x: ErrorArray) -> ErrorArray:
    x = x.settled()
    value = np.sqrt(x.value)
    unit = unit_of(value, like.precision)
    with np.errstate(all="ignore"):
        result = combined(value, ((x, 0.5 / value),), unit)
    rounded = _limited_by_root(result, x, 0.5).rounded("sqrt")
    if not rounded.has_errors or x.quantum:
        whole = (value == np.rint(value)) & (np.square(value) == x.value)
        rounded.variance = np.where(whole & (x.total_variance() == 0), 0.0, rounded.variance)
    return rounded


def _limited_by_root(result: ErrorArray, x: ErrorArray, exponent: float) -> ErrorArray:
    """|(x + δ)^e − x^e| <= |δ|^e for 0 < e < 1, which counts where the derivative has no bound."""
    result = result.folded() if not np.all(result.value > 0.0) else result
    limit = np.square(np.power(x.deviation(), exponent) / result.unit)
    result.variance = np.where(result.variance > limit, limit, result.variance)
    return result


def power(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    """a^b; constant exponents 1, 2 and ½ are what they mean."""
    if not isinstance(b, ErrorArray) and np.ndim(b) == 0 and float(b) in _POWERS:
        return _POWERS[float(b)](like, a)
    a, b = like.lift(a).settled(), like.lift(b).settled()
    value = np.power(a.value, b.value)
    constant = b.value == 0.0  # 0⁰ = 1 too, whose derivatives are 0·∞
    with np.errstate(all="ignore"):
        # x^±Inf is 0, 1 or ±Inf, and 1^NaN and NaN^0 are 1, whatever the error of x.
        settled = np.broadcast_to(constant | ~np.isfinite(b.value), value.shape)
        slope = np.where(settled, 0.0, b.value * np.power(a.value, b.value - 1.0))
        felt = _only(a, ~settled) if a.has_errors else a
        slopes: list[tuple[ErrorArray, Any]] = [(felt, slope)]
        if b.has_errors:
            # x^b·log x is 0 at 0, where it reads 0·∞.
            slopes.append((b, np.where(value == 0.0, 0.0, value * np.log(a.value))))
        # By what the error grows of a power computed as 2^(b·log2(a)): by that of b·log2(a), which near
        # a = 1 is what the logarithm is off absolutely.
        argument = np.abs(b.value) * np.maximum(_LN2, np.abs(np.log(np.abs(a.value))))
        argument = np.where(constant | ~np.isfinite(argument), 0.0, argument)
    result = combined(value, slopes, unit_of(value, like.precision))
    if b.size == 1 and 0.0 < b.value.item() < 1.0:
        result = _limited_by_root(result, a, b.value.item())
    return result.rounded("power", argument)


_POWERS: dict[float, Callable[..., ErrorArray]] = {
    1.0: lambda like, a: a,
    2.0: square,
    0.5: sqrt,
}


def logaddexp(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    """ln(e^a + e^b) = m + ln(1 + e^−d), with m the larger one and d = |a − b|.

    Its error is a mean of the operands' errors, with weights that add up to 1. Operands that come of sums
    of the same terms, step after step, have errors in common; so deviations are averaged, not variances.
    """
    a, b = in_one_unit(like.lift(a).settled().folded(), like.lift(b).settled().folded())
    value = np.logaddexp(a.value, b.value)
    with np.errstate(invalid="ignore"):  # Inf − Inf, where nothing is passed on
        shares = [np.nan_to_num(np.exp(x.value - value)) for x in (a, b)]
    passed_on = scaled(np.sqrt(a.variance), shares[0]) + scaled(np.sqrt(b.variance), shares[1])
    unit = max(a.unit, unit_of(value, like.precision), 1.0)
    variance = scaled(np.square(passed_on), (a.unit / unit) ** 2)
    variance = variance + _rounding_of_logaddexp(like, a.value, b.value, value) / unit**2
    # An error of an operand shows in all that is made of the sum later.
    return ErrorArray(value, like.precision, variance, unit=unit, fan=a.fan + b.fan)


def _rounding_of_logaddexp(like: ErrorArray, a: Floats, b: Floats, value: Floats) -> Floats:
    """Variance of what is computed of exact operands; nothing is rounded where one of them is −Inf."""
    precision = like.precision
    with np.errstate(all="ignore"):
        distance = np.abs(a - b)
        power = np.exp(-distance)
        inner, outer = 1.0 + power, np.log1p(power)
        # d is rounded, and so is the power; their errors are relative to the power.
        of_power = precision.function_variance("exp", distance, np.square(power), 1.0)
        of_power = of_power + precision.variance * np.square(power) * (1.0 + np.square(distance))
        of_sum = of_power + precision.variance * np.square(inner)
        of_log = precision.function_variance("log", inner, np.square(outer), 1.0)
        of_log = of_log + precision.variance * np.square(outer) + of_sum / np.square(inner)
        variance = of_log + precision.variance * np.square(value)
    return np.where(np.isfinite(distance) & np.isfinite(value), variance, 0.0)


def logaddexp_of(
    like: ErrorArray, a: ErrorArray, axis: int = 0, keepdims: bool = False
) -> ErrorArray:
    """Pairs, pairs of pairs and so on: the order makes no difference to the errors that are passed on."""
    rest = FUNCTIONS[np.moveaxis](a, axis, -1)
    if rest.shape[-1] == 0:
        return a.lift(np.max(a.value, axis=axis, keepdims=keepdims, initial=-np.inf))
    while rest.shape[-1] > 1:
        half = rest.shape[-1] // 2
        pairs = logaddexp(like, rest[..., :half], rest[..., half : 2 * half])
        odd = rest[..., 2 * half :]
        rest = FUNCTIONS[np.concatenate]([pairs, odd], axis=-1) if odd.size else pairs
    return FUNCTIONS[np.moveaxis](rest, -1, axis) if keepdims else rest[..., 0]


def arctan2(like: ErrorArray, y: Any, x: Any) -> ErrorArray:
    y, x = like.lift(y).settled(), like.lift(x).settled()
    value = np.arctan2(y.value, x.value)
    with np.errstate(all="ignore"):
        radius = np.hypot(x.value, y.value)
        far = np.isinf(radius)  # where the angle stays as it is
        slope_y, slope_x = x.value / radius / radius, -y.value / radius / radius
        slopes = ((y, np.where(far, 0.0, slope_y)), (x, np.where(far, 0.0, slope_x)))
    rounded = combined(value, slopes, unit_of(value, like.precision)).rounded("arctan2")
    sure = (value == 0.0) & (y.total_variance() == 0.0)
    rounded.variance = np.where(sure, 0.0, rounded.variance)
    return rounded


def fmod(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    """a − b·trunc(a/b), which is exact; where operands' errors may reach a multiple of b, off by b."""
    a, b = like.lift(a).settled(), like.lift(b).settled()
    value = np.fmod(a.value, b.value)
    if not a.has_errors and not b.has_errors:
        quantum = min(a.quantum, b.quantum)
        return ErrorArray(value, like.precision, quantum=quantum, unit=max(a.unit, b.unit))
    with np.errstate(all="ignore"):
        times = np.trunc(a.value / b.value)
        result = combined(value, ((a, 1.0), (b, -times)), max(a.unit, b.unit)).folded()
        reach, step = SIGMAS * result.deviation(), np.abs(b.value)
        near = (np.abs(value) <= reach) | (np.abs(value) + reach >= step)
        jump = np.square(step / SIGMAS / result.unit)
    result.variance = np.where(near, result.variance + jump, result.variance)
    return result


# --- Selections -----------------------------------------------------------------------------------


def absolute(like: ErrorArray, a: ErrorArray) -> ErrorArray:
    a = a.settled()
    sign = np.where(a.value < 0.0, -1.0, 1.0)
    result = combined(np.abs(a.value), ((a, sign),), a.unit, a.quantum)
    return result


def maximum(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = in_one_unit(like.lift(a).settled(), like.lift(b).settled())
    value = np.maximum(a.value, b.value)
    first = a.value >= b.value
    quantum = min(a.quantum, b.quantum)
    if not (a.common or b.common):
        variance = np.where(first, a.variance, b.variance)
        near = _near(a.value - b.value, a.variance + b.variance, a.unit)
        variance = np.where(near, np.maximum(a.variance, b.variance), variance)
        fan = max(a.fan, b.fan)
        return ErrorArray(value, like.precision, variance, quantum=quantum, unit=a.unit, fan=fan)
    result = combined(value, ((a, _share(first)), (b, _share(~first))), a.unit, quantum)
    near = _near(a.value - b.value, a.total_variance() + b.total_variance(), a.unit)
    # Near a tie either operand may win, so the other one's error must not be lost.
    lost = np.where(first, b.total_variance(), a.total_variance())
    result.variance = np.where(near, np.maximum(result.variance, lost), result.variance)
    return result


def _share(chosen: NDArray[np.bool_]) -> Floats:
    """The derivative by an operand that is chosen or not: 1 or 0."""
    return chosen.astype(np.float64)


def _near(difference: Floats, variance: Floats, unit: float) -> NDArray[np.bool_]:
    """Where errors may decide which of two values is larger: within 8 standard deviations."""
    distance = difference / unit
    return np.isfinite(distance) & (np.square(distance) <= 64.0 * variance)


def minimum(like: ErrorArray, a: Any, b: Any) -> ErrorArray:
    a, b = negative(like, like.lift(a)), negative(like, like.lift(b))
    return negative(like, maximum(like, a, b))


def clip(
    a: ErrorArray,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> ErrorArray:
    if out is not None:
        raise TypeError("the accuracy model has no rule for the argument out")
    low, high = a_min if min is None else min, a_max if max is None else max
    result = a if low is None else maximum(a, a, low)
    return result if high is None else minimum(a, result, high)


def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    if a is None and b is None:
        return np.where(condition)
    like = next((x for x in (a, b) if isinstance(x, ErrorArray)), None)
    if like is None and isinstance(condition, Undecided):
        like = condition.carried()
    if like is None:
        raise TypeError("the condition of where carries errors; use a comparison as condition")
    a, b = like.lift(a).settled(), like.lift(b).settled()
    holds = np.asarray(condition, np.bool_)
    value = np.where(holds, a.value, b.value)
    chosen = np.broadcast_to(holds, value.shape)
    quantum = min(a.quantum, b.quantum)
    operands = ((_only(a, chosen), 1.0), (_only(b, ~chosen), 1.0))
    # Not the larger operand's unit: where it is not chosen, the square of a small error would vanish in it.
    result = combined(value, operands, unit_of(value, like.precision), quantum)
    if isinstance(condition, Undecided):
        other = where(~chosen, a, b)
        return _either(result, other, np.broadcast_to(condition.undecided, value.shape))
    return result


def _either(result: ErrorArray, other: ErrorArray, undecided: NDArray[np.bool_]) -> ErrorArray:
    """The result with an error that reaches to the other one, and over its error, where that may come.

    Of a number and one that is not finite it is the number that anything may come for.
    """
    with np.errstate(all="ignore"):  # Inf − Inf
        reach = np.square(np.nan_to_num(other.value - result.value) / result.unit / SIGMAS)
        reach = reach + scaled(other.total_variance(), (other.unit / result.unit) ** 2)
    finite = np.isfinite(result.value)
    reach = np.where(finite == np.isfinite(other.value), reach, np.inf)
    chosen = result.with_variance(result.variance + np.where(undecided, reach, 0.0))
    chosen.value = np.where(undecided & ~finite, other.value, result.value)
    return chosen


def _only(a: ErrorArray, chosen: NDArray[np.bool_]) -> ErrorArray:
    """The array where it is chosen, with no error elsewhere: what is left out may have had any, or none."""
    shared = a.shared(chosen.size / max(1, a.size))
    spread = shared.moved(lambda part: np.broadcast_to(part, chosen.shape))
    spread.variance = np.where(chosen, spread.variance, 0.0)
    spread.common = {
        number: Common(np.where(chosen, c.sensitivity, 0.0), c.group)
        for number, c in spread.common.items()
    }
    return spread


def largest(
    a: ErrorArray,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
) -> ErrorArray:
    """The maximum: of elements near a tie the largest error."""
    if out is not None:
        raise TypeError("the accuracy model has no rule for the argument out")
    if initial is not None and a.size == 0:
        return a.lift(np.max(a.value, axis=axis, keepdims=keepdims, initial=initial))
    if initial is not None:
        return maximum(a, largest(a, axis, None, keepdims), initial)
    a = a.settled().folded()
    value = np.max(a.value, axis=axis, keepdims=True)
    winner = np.where(a.value == value, a.variance, 0.0).max(axis=axis, keepdims=True)
    near = (a.value == value) | _near(value - a.value, a.variance + winner, a.unit)
    variance = np.where(near, a.variance, 0.0).max(axis=axis, keepdims=True)
    shape = np.max(a.value, axis=axis, keepdims=keepdims).shape
    return ErrorArray(
        value.reshape(shape),
        a.precision,
        variance.reshape(shape),
        quantum=a.quantum,
        unit=a.unit,
        fan=a.fan,
    )


def smallest(
    a: ErrorArray, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None
) -> ErrorArray:
    initial = None if initial is None else -initial
    return negative(a, largest(negative(a, a), axis, out, keepdims, initial))


# --- Results without error ------------------------------------------------------------------------


def _values(a: Any) -> Any:
    return a.value if isinstance(a, ErrorArray) else a


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A discrete function of the values: its result is a plain array."""
    return lambda like, *inputs: function(*map(_values, inputs))


def _discrete(function: Callable[..., Any]) -> Callable[..., ErrorArray]:
    """A step function: exact, except where the argument's error reaches over a step.

    There the whole height of the step is allowed.
    """

    def rule(like: ErrorArray, a: ErrorArray) -> ErrorArray:
        value = function(a.value)
        unit = unit_of(value, a.precision)
        reach = SIGMAS * a.settled().deviation()
        above, below = function(a.value + reach), function(a.value - reach)
        height = np.nan_to_num(np.maximum(above - value, value - below))
        variance = np.square(height / SIGMAS / unit)
        return ErrorArray(value, a.precision, variance, quantum=1.0, unit=unit)

    return rule


def _comparison(function: Any) -> Callable[..., Any]:
    """A plain array of what holds of the values; Undecided if operands' errors may make it otherwise."""

    def rule(like: ErrorArray, a: Any, b: Any) -> Any:
        plain = function(_values(a), _values(b))
        if not any(isinstance(x, ErrorArray) and x.has_errors for x in (a, b)):
            return plain
        a, b = in_one_unit(like.lift(a).settled(), like.lift(b).settled())
        variance = a.total_variance() + b.total_variance()
        with np.errstate(invalid="ignore"):
            near = _near(a.value - b.value, variance, a.unit) & (variance > 0.0)
        return Undecided(plain, near, like.precision) if near.any() else plain

    return rule


_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_TESTS = (np.isnan, np.isfinite, np.isinf, np.signbit, np.logical_not)
_LOGIC = (np.logical_and, np.logical_or, np.logical_xor)

UFUNCS.update(
    {name: _elementary(name, derivative) for name, derivative in _DERIVATIVES.items()},
    erf=_scipy("erf"),
    erfc=_scipy("erfc"),
    sqrt=sqrt,
    power=power,
    float_power=power,
    logaddexp=logaddexp,
    arctan2=arctan2,
    fmod=fmod,
    absolute=absolute,
    fabs=absolute,
    maximum=maximum,
    minimum=minimum,
    clip=lambda like, a, low, high: clip(a, low, high),
)
UFUNCS.update({f.__name__: _comparison(f) for f in _COMPARISONS})
UFUNCS.update({f.__name__: _plain(f) for f in (*_TESTS, *_LOGIC)})
UFUNCS.update({f.__name__: _discrete(f) for f in (np.sign, np.floor, np.ceil, np.trunc, np.rint)})
REDUCTIONS.update(
    logaddexp=logaddexp_of,
    maximum=lambda like, a, axis=0, keepdims=False, initial=None: largest(
        a, axis, None, keepdims, initial
    ),
    minimum=lambda like, a, axis=0, keepdims=False, initial=None: smallest(
        a, axis, None, keepdims, initial
    ),
)
FUNCTIONS.update(
    {
        np.where: where,
        np.clip: clip,
        np.max: largest,
        np.amax: largest,
        np.min: smallest,
        np.amin: smallest,
        np.argmax: lambda a, axis=None, out=None, *, keepdims=False: np.argmax(
            a.value, axis, out, keepdims=keepdims
        ),
        np.argmin: lambda a, axis=None, out=None, *, keepdims=False: np.argmin(
            a.value, axis, out, keepdims=keepdims
        ),
    }
)
