"""How many units in the last place outputs are off, for the report; no verdict depends on it.

Histograms have the same bins in every case (:data:`dnncanon.reports.ULP_EDGES`), so that they may be added.
Discrete outputs, whose neighbouring numbers mean nothing to each other, are right or wrong instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.bounds import Expected, spacing
from dnncanon.reports import ULP_BINS, ULP_EDGES

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """Of one output or several: ``histogram`` has the finite elements of floating-point outputs.

    ``largest`` is None, and the histogram empty, where no output is of floating point; ``wrong`` elements
    are those of discrete outputs, and None where there is none of these.
    """

    histogram: tuple[int, ...]
    largest: float | None
    wrong: int | None


def units_of(got: Floats, error: Floats, ratio: Floats, expected: Expected) -> Units:
    """Errors in units in the last place of the expected value; ``ratio`` is |error| over its bound."""
    if not expected.dtype.is_float:
        return Units((), None, int(np.count_nonzero(ratio > 1.0)))
    finite = np.isfinite(expected.value) & np.isfinite(got)
    ulps = np.abs(error[finite]) / spacing(expected.value[finite], expected.dtype)
    counts = np.bincount(np.searchsorted(ULP_EDGES, ulps), minlength=ULP_BINS)
    return Units(tuple(counts.tolist()), float(ulps.max(initial=0.0)), None)


def together(parts: Sequence[Units]) -> Units:
    """The figures of several outputs, or of several cases."""
    histograms = [part.histogram for part in parts if part.histogram]
    wrong = [part.wrong for part in parts if part.wrong is not None]
    return Units(
        histogram=tuple(sum(counts) for counts in zip(*histograms, strict=True)),
        largest=max((part.largest for part in parts if part.largest is not None), default=None),
        wrong=sum(wrong) if wrong else None,
    )
