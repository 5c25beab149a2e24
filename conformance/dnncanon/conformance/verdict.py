"""From outputs to a verdict: every element within its bound, and no bias over all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.bounds import Expected, Sharing, spacing
from dnncanon.conformance.ulps import together, units_of
from dnncanon.reports import Verdict

Floats = NDArray[np.float64]

# Statistics over a tensor. A case has at most a handful of outputs, so that with these limits a correct
# backend fails by chance in less than one case of 10^9.
#
# Let z_i be the errors divided by the model's deviations; for the bias less their means, as far as these are
# known (Expected.centre). An error of one rounding is uniform, and like a normal one it is sub-Gaussian
# with its variance for proxy: E exp(t·z) <= exp(t²/2). The R_i below are
# such that Var(Σ s_i·z_i) <= Σ R_i·s_i² for all s; they are 1 where errors are independent.
#
# Bias: Σ ±z_i is then sub-Gaussian with proxy Σ R_i, and P(|Σ ±z_i| >= 8·√(Σ R_i)) <= 2·exp(−32) = 2.6e-14.
#
# Mean square: for Σ z_i² = Σ λ_k·χ²_k with the eigenvalues λ of the covariances, Laurent and Massart (2000,
# lemma 1) have P(Σ z_i² − n >= 2·√(x·Σ λ²) + 2·x·max λ) <= exp(−x). Here max λ <= max R, and Σ λ² <= max λ·Σ λ
# = n·max R. Sub-Gaussian errors have no heavier tails than normal ones: E exp(t·z²) <= (1−2t)^−½.
# With x = 23 that is 1.1e-10.
#
# The model's deviations are more often too large than too small, which is on the safe side.
BIAS_LIMIT = 8.0
MEAN_SQUARE_EXPONENT = 23.0
MIN_SAMPLE = 64
MAX_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case, with the figures that led to it."""

    verdict: Verdict
    message: str
    max_error: float
    p99_error: float
    bias: float | None
    mean_square: float | None
    sampled: int
    max_ulp: float | None
    ulp_histogram: tuple[int, ...]
    wrong_elements: int | None
    elements: int


def judge(
    names: Sequence[str],
    outputs: Sequence[NDArray[Any]],
    expected: Sequence[Expected],
    inputs: Sequence[NDArray[Any]],
) -> Judgement:
    """Hold outputs to their expectations; ``inputs`` tell whether a mere copy would have passed."""
    parts = [_Comparison(n, o, e) for n, o, e in zip(names, outputs, expected, strict=True)]
    wrong = [part.complaint for part in parts if part.complaint]
    verdict = Verdict.FAILED if wrong else Verdict.PASSED
    if not wrong:
        vacuous = _vacuous(expected, inputs)
        if vacuous:
            verdict, wrong = Verdict.MISTRUSTED, [vacuous]
    biases = [part.bias for part in parts if part.bias is not None]
    squares = [(s.mean_square, s.count) for s in (part.statistics for part in parts) if s]
    sampled = sum(count for _, count in squares)
    units = together([part.units for part in parts])
    return Judgement(
        verdict=verdict,
        message="\n".join(wrong),
        max_error=max(part.max_error for part in parts),
        p99_error=_percentile([part.ratio for part in parts], 99),
        bias=max(biases, key=abs) if biases else None,
        mean_square=sum(mean * n for mean, n in squares) / sampled if sampled else None,
        sampled=sampled,
        max_ulp=units.largest,
        ulp_histogram=units.histogram,
        wrong_elements=units.wrong,
        elements=sum(part.got.size for part in parts),
    )


class _Comparison:
    """One output against its expectation."""

    def __init__(self, name: str, output: NDArray[Any], expected: Expected) -> None:
        self.name = name
        self.expected = expected
        with np.errstate(all="ignore"):
            self.got: Floats = np.asarray(output).astype(np.float64)
            self.error = self.got - expected.value
            self.ratio = _ratio(self.got, self.error, expected)
            self.max_error = float(self.ratio.max(initial=0.0))
            self.units = units_of(self.got, self.error, self.ratio, expected)
            self.statistics = _statistics(self.error, self.got, expected)
        self.bias = None if self.statistics is None else self.statistics.bias
        self.complaint = self._complaint()

    def _complaint(self) -> str:
        out = self.ratio > 1.0
        if out.any():
            return self._worst_element(int(out.sum()))
        statistics = self.statistics
        if statistics is None:
            return ""
        if abs(statistics.bias) > BIAS_LIMIT:
            side = "too large" if statistics.bias > 0 else "too small"
            return (
                f"{self.name}: every element is within its bound, but in magnitude they are {side} on "
                f"the whole: bias {statistics.bias:+.1f} standard deviations, limit {BIAS_LIMIT:g}"
            )
        if statistics.mean_square > statistics.mean_square_limit:
            return (
                f"{self.name}: every element is within its bound, but the errors are too large on the "
                f"whole: their mean square is {statistics.mean_square:.2f} times the model's, "
                f"limit {statistics.mean_square_limit:.2f}"
            )
        return ""

    def _worst_element(self, count: int) -> str:
        flat = int(np.argmax(self.ratio))
        index = tuple(map(int, np.unravel_index(flat, self.ratio.shape)))
        value, bound = self.expected.value.flat[flat], self.expected.bound.flat[flat]
        got, ratio = self.got.flat[flat], self.ratio.flat[flat]
        exact = bound == 0 or not np.isfinite(value)
        allowed = "exactly" if exact else f"± {bound:.3g}"
        unbounded = "no error is allowed here" if exact else "not a finite number"
        size = f"{ratio:.3g} × bound" if np.isfinite(ratio) else unbounded
        place = f"{self.name}{list(index)}"
        return (
            f"{place} is {got:.9g}, expected {value:.9g} {allowed} ({size}); "
            f"{count} of {self.ratio.size} elements are wrong"
        )


def _ratio(got: Floats, error: Floats, expected: Expected) -> Floats:
    """|error| / bound; 0 where equal, infinite where equality was required and is missing."""
    value, bound = expected.value, expected.bound
    ratio = np.abs(error) / bound
    ratio = np.where(bound == 0.0, np.where(error == 0.0, 0.0, np.inf), ratio)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    ratio = np.where(np.isnan(value), np.where(np.isnan(got), 0.0, np.inf), ratio)
    ratio = np.where(np.isinf(value), np.where(got == value, 0.0, np.inf), ratio)
    lost = np.isnan(got) | (np.isinf(got) & np.isfinite(value))
    ratio = np.where(expected.may_be_nan & lost, 0.0, ratio)
    # What lies half a unit beyond the largest number rounds to infinity. The bound holds another half
    # unit, for the last rounding, which is the one that overflows: it must not count twice.
    overflow = expected.dtype.max + spacing(np.asarray(expected.dtype.max), expected.dtype)
    may_overflow = np.isfinite(value) & (np.abs(value) + bound >= overflow)
    rightly = may_overflow & np.isinf(got) & (np.sign(got) == np.sign(value))
    if expected.undecided is not None:
        ratio = np.where(expected.undecided & ~np.isfinite(got), 0.0, ratio)
    # An infinite bound says that partial sums may overflow, after which anything may come out.
    return np.where(rightly | (np.isfinite(value) & np.isinf(bound)), 0.0, ratio)


def _percentile(ratios: Sequence[Floats], percent: float) -> float:
    """The smallest ratio that so many percent of the elements of all outputs do not exceed."""
    every = np.concatenate([ratio.ravel() for ratio in ratios])
    if every.size == 0:
        return 0.0
    rank = math.ceil(percent / 100 * every.size) - 1
    return float(np.partition(every, rank)[rank])


@dataclass(frozen=True)
class _Statistics:
    """Of ``count`` errors of one output: both figures are as the model has them at 0 and 1."""

    count: int
    bias: float
    mean_square: float
    mean_square_limit: float


def _statistics(error: Floats, got: Floats, expected: Expected) -> _Statistics | None:
    """Bias and mean square of normalised errors over the distinct elements; None of too few.

    The sign is taken towards the expected value's, or truncation to zero would cancel out, and the errors
    are those beyond what the last rounding is known to do. Equal elements come from equal computations
    (stride 0, padding), whose errors are one error.
    """
    value, deviation = expected.value.ravel(), expected.deviation.ravel()
    usable = np.isfinite(value) & np.isfinite(got.ravel())
    usable &= (deviation > 0.0) & np.isfinite(deviation)
    positions = np.flatnonzero(usable)[:MAX_SAMPLE]
    _, distinct = np.unique(value[positions], return_index=True)
    positions = positions[distinct]
    if positions.size < MIN_SAMPLE:
        return None
    normalised = error.ravel()[positions] / deviation[positions]
    covariances = _covariances(expected.sharing, positions)
    centre = np.broadcast_to(expected.centre, expected.value.shape).ravel()[positions]
    beyond = normalised - centre / deviation[positions]
    signed = float(np.sum(beyond * np.sign(value[positions])))
    return _Statistics(
        count=positions.size,
        bias=signed / math.sqrt(float(np.sum(covariances))),
        mean_square=float(np.mean(np.square(normalised))),
        mean_square_limit=mean_square_limit(positions.size, float(np.max(covariances))),
    )


def mean_square_limit(count: int, largest: float = 1.0) -> float:
    """What the mean square of ``count`` errors of variance 1 exceeds once in 10^10 tensors at most.

    ``largest`` is the largest R_i above: 1 for independent errors.
    """
    share = MEAN_SQUARE_EXPONENT * largest / count
    return 1.0 + 2.0 * math.sqrt(share) + 2.0 * share


def _covariances(sharing: Sharing | None, positions: NDArray[np.int64]) -> Floats:
    """R_i, by which the variance of any weighted sum of the errors is bounded: Σ R_i·s_i²."""
    count = positions.size
    if sharing is None:
        return np.ones(count)
    # An error of the variance shows in ``fan`` elements at most: Cauchy and Schwarz.
    fan = min(sharing.fan, float(count))
    result = 1.0 + (fan - 1.0) * sharing.independent.ravel()[positions]
    for sensitivity, group in sharing.common:
        mine = sensitivity.ravel()[positions]
        _, number = np.unique(group.ravel()[positions], return_inverse=True)
        together = np.bincount(number, weights=mine)[number]
        result = result + mine * together * fan - np.square(mine)
    return np.minimum(result, float(count))


def _vacuous(expected: Sequence[Expected], inputs: Sequence[NDArray[Any]]) -> str:
    """Why the comparison proves nothing, if so: zeros, or a copy of an input, would have passed."""
    if all(e.value.size == 0 for e in expected):
        return ""
    with np.errstate(all="ignore"):
        if all(_would_pass(np.zeros_like(e.value), e) for e in expected):
            return "an output of zeros would have passed as well"
        for tensor in inputs:
            if all(_would_pass(tensor, e) for e in expected):
                return "a copy of an input would have passed as well"
    return ""


def _would_pass(tensor: NDArray[Any], expected: Expected) -> bool:
    if tensor.shape != expected.value.shape:
        return False
    got = tensor.astype(np.float64)
    return bool((_ratio(got, got - expected.value, expected) <= 1.0).all())
