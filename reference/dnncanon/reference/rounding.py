"""The one rounding of the reference: float64 to the dtype of the result, to nearest, ties to even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.spec import DTYPES, DType


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``values`` (float64) in ``dtype``: overflow gives ±Inf, subnormals are kept, NaN stays NaN."""
    target = DTYPES[dtype]
    with np.errstate(all="ignore"):
        if target.name == "bfloat16":
            # ml_dtypes converts through float32, which would round twice.
            values = _to_precision(values, target)
        return np.asarray(values).astype(target.numpy)


def _to_precision(values: NDArray[np.float64], target: DType) -> NDArray[np.float64]:
    """The nearest multiple of the target's spacing at each value, still in float64."""
    _, exponent = np.frexp(values)  # |value| in [2^(exponent-1), 2^exponent)
    spacing = np.ldexp(1.0, np.maximum(exponent, target.min_exponent + 1) - target.digits)
    nearest = np.rint(values / spacing) * spacing
    return np.where(np.isfinite(values), nearest, values)
