"""The one rounding of the reference: from float64 to the dtype of the result."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.spec import DTYPES, DType

_BY_NUMPY = ("float64", "float32", "float16")  # others are converted through float32: two roundings


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``values`` (float64) in ``dtype``, to nearest, ties to even.

    Floating-point types: overflow gives ±Inf, or NaN in a format that has no infinity; subnormals are kept,
    NaN stays NaN. Integers saturate, and NaN gives 0; in bool everything but 0 is true.
    """
    target = DTYPES[dtype]
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        if target.kind == "bool":
            return np.asarray(values != 0)
        if target.kind == "integer":
            return _to_integer(values, target)
        if target.name not in _BY_NUMPY:
            values = _to_precision(values, target)
        return np.asarray(values.astype(target.numpy))


def _to_integer(values: NDArray[Any], target: DType) -> NDArray[Any]:
    if values.dtype.kind in "iub":
        return np.clip(values, int(target.min), int(target.max)).astype(target.numpy)
    whole = np.rint(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
    # 2^63 − 1 is no float64, and the next one is no int64: it is set apart.
    fits = whole < target.max
    result = np.where(fits, np.maximum(whole, target.min), 0.0).astype(target.numpy)
    return np.where(fits, result, np.asarray(np.iinfo(target.numpy).max, target.numpy))


def _to_precision(values: NDArray[np.float64], target: DType) -> NDArray[np.float64]:
    """The nearest multiple of the target's spacing at each value, still in float64."""
    values = values.astype(np.float64)
    _, exponent = np.frexp(values)  # |value| in [2^(exponent-1), 2^exponent)
    spacing = np.ldexp(1.0, np.maximum(exponent, target.min_exponent + 1) - target.digits)
    nearest = np.rint(values / spacing) * spacing
    return np.where(np.isfinite(values), nearest, values)
