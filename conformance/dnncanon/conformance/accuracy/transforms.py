"""The errors of a convolution by Fourier transforms, which are relative to norms, not to each output's terms.

c = IFFT(FFT(a)·FFT(b)), for each channel by itself, in frames of N points. A transform in working precision is
off by u·√(log2 N) of the norm of its data (Higham 2002, §24.1, errors taken as independent), spread evenly over
its points: as if the data had white noise of ε = u·√(log2 N) times the root mean square of the frame. So

- the noise of a, of ε·rms(a), meets the whole of b: ε·rms(a)·‖b‖₂ in each output. That of b is as large, and
  so, with a rounding in place of log2 N of them, is that of the product;
- the way back adds ε times the root mean square of c, which is at most its largest value. Where terms have one
  sign that is √n times rms(a)·‖b‖₂, and counts most.

rms(a) is that of the frame, which may be shorter than the sequence: it is the largest mean square over SHORTEST
points that counts. (A class with shorter frames than that would claim too much.) Altogether

    Var = ε²·(2·max rms²(a)·‖b‖² + max c²)

and two underflows. The errors that a and b have before their transforms are in the variance of the sum that the
reference makes.
"""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dnncanon.conformance.accuracy.array import ErrorArray

SHORTEST = 64
"""Points of a frame, at least."""

Floats = NDArray[np.float64]


def convolved(total: ErrorArray, first: ErrorArray, second: ErrorArray) -> ErrorArray:
    """``total``, a convolution of two operands along the last axis, with the errors of transforms.

    The last axes but one are the channels; of what comes before them the sums are over all there is.
    """
    total = total.settled()
    if total.size == 0 or 0 in (first.size, second.size):
        return total
    points = max(SHORTEST, 2 * max(first.shape[-1], second.shape[-1]))
    epsilon2 = 3.0 * total.precision.variance * math.log2(points)
    power, norm = _largest_power(_in_units(first)), np.sum(np.square(_in_units(second)), axis=-1)
    if total.ndim < first.ndim:  # summed over the batch as well
        power, norm = np.max(power, axis=0), np.sum(norm, axis=0)
    # The square of a float64 near its underflow is no float64: all is counted in the arrays' own units.
    unit = first.unit / total.unit * second.unit
    largest = np.max(np.square(_in_units(total)), axis=-1)
    added = epsilon2 * (2.0 * power * norm * unit**2 + largest)[..., None]
    return total.with_variance(total.variance + added + 2.0 * total.precision.underflow(total.unit))


def _in_units(a: ErrorArray) -> Floats:
    return np.nan_to_num(a.value / a.unit, nan=0.0, posinf=0.0, neginf=0.0)


def _largest_power(values: Floats) -> Floats:
    """The largest mean square of neighbours along the last axis."""
    length = min(SHORTEST, values.shape[-1])
    totals = np.cumsum(np.square(values), axis=-1)
    ends = sliding_window_view(
        np.pad(totals, [(0, 0)] * (values.ndim - 1) + [(1, 0)]), length + 1, -1
    )
    result: Floats = np.max(ends[..., -1] - ends[..., 0], axis=-1) / length
    return result
