"""From outputs to a verdict: every element within its bound, and no bias over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.bounds import Expected, spacing
from dnncanon.reports import ULP_BINS, ULP_EDGES, Verdict

Floats = NDArray[np.float64]

# Statistics over a tensor, both in standard deviations of the model. For independent normal errors a
# limit of 8 has a false-alarm probability a tensor of 1.3e-15 for the bias and, chi-squared being skewed,
# of 1.9e-9 for the mean square of 64 elements, 1.3e-11 of 256, 1.6e-15 of 65,536. Real errors are
# correlated and the model's deviations too large, the first for the worse, the second for the better.
BIAS_LIMIT = 8.0
MEAN_SQUARE_LIMIT = 8.0
MIN_SAMPLE = 64
MAX_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Judgement:
    """The verdict on one case, with the figures that led to it."""

    verdict: Verdict
    message: str
    max_error: float
    bias: float | None
    max_ulp: float
    ulp_histogram: tuple[int, ...]
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
    histogram = np.sum([part.histogram for part in parts], axis=0)
    return Judgement(
        verdict=verdict,
        message="\n".join(wrong),
        max_error=max(part.max_error for part in parts),
        bias=max(biases, key=abs) if biases else None,
        max_ulp=max(part.max_ulp for part in parts),
        ulp_histogram=tuple(int(count) for count in histogram),
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
            self.histogram, self.max_ulp = self._ulps()
            self.bias, self.mean_square_excess = _statistics(self.error, self.got, expected)
        self.complaint = self._complaint()

    def _ulps(self) -> tuple[NDArray[np.int64], float]:
        """Errors in units in the last place of the expected value, counted by power of two."""
        finite = np.isfinite(self.expected.value) & np.isfinite(self.got)
        error = np.abs(self.error[finite])
        ulps = error / spacing(self.expected.value[finite], self.expected.dtype)
        counts = np.bincount(np.searchsorted(ULP_EDGES, ulps), minlength=ULP_BINS)
        return counts, float(ulps.max(initial=0.0))

    def _complaint(self) -> str:
        out = self.ratio > 1.0
        if out.any():
            return self._worst_element(int(out.sum()))
        if self.bias is not None and abs(self.bias) > BIAS_LIMIT:
            side = "too large" if self.bias > 0 else "too small"
            return (
                f"{self.name}: every element is within its bound, but in magnitude they are {side} on "
                f"the whole: bias {self.bias:+.1f} standard deviations, limit {BIAS_LIMIT:g}"
            )
        if self.mean_square_excess is not None and self.mean_square_excess > MEAN_SQUARE_LIMIT:
            return (
                f"{self.name}: every element is within its bound, but the errors are too large on the "
                f"whole: their mean square exceeds the model by {self.mean_square_excess:.1f} standard "
                f"deviations, limit {MEAN_SQUARE_LIMIT:g}"
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
    ratio = np.where(expected.may_be_nan & np.isnan(got), 0.0, ratio)
    # What lies half a unit beyond the largest number rounds to infinity. The bound holds another half
    # unit, for the last rounding, which is the one that overflows: it must not count twice.
    overflow = expected.dtype.max + spacing(np.asarray(expected.dtype.max), expected.dtype)
    may_overflow = np.isfinite(value) & (np.abs(value) + bound >= overflow)
    rightly = may_overflow & np.isinf(got) & (np.sign(got) == np.sign(value))
    return np.where(rightly, 0.0, ratio)


def _statistics(
    error: Floats, got: Floats, expected: Expected
) -> tuple[float | None, float | None]:
    """Bias, and excess of the mean square, of normalised errors over the distinct elements.

    The sign is taken towards the expected value's, or truncation to zero would cancel out. Equal
    elements come from equal computations (stride 0, padding), whose errors are one error.
    """
    value, deviation = expected.value.ravel(), expected.deviation.ravel()
    usable = np.isfinite(value) & np.isfinite(got.ravel()) & (deviation > 0.0)
    positions = np.flatnonzero(usable)[:MAX_SAMPLE]
    _, distinct = np.unique(value[positions], return_index=True)
    positions = positions[distinct]
    if positions.size < MIN_SAMPLE:
        return None, None
    normalised = error.ravel()[positions] / deviation[positions]
    root = np.sqrt(positions.size)
    bias = float(np.sum(normalised * np.sign(value[positions])) / root)
    excess = float((np.mean(np.square(normalised)) - 1.0) * root / np.sqrt(2.0))
    return bias, excess


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
