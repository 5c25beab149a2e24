"""Numbers as words in memory, on the host: what a kernel fills in comes as the bits of an element."""

import math
from typing import Any

import numpy as np

from dnncanon.spec import DTYPES


def word_of(value: float, dtype: str) -> np.ndarray[Any, Any]:
    """The number, rounded once to nearest even, as an array of one element.

    Integers saturate; floats beyond the range are ±Inf, or NaN where there is none; in bool all but 0 is true.
    """
    row = DTYPES[dtype]
    if row.kind == "bool":
        return np.array([value != 0])
    if row.kind == "integer":
        ends = np.iinfo(row.numpy)
        return np.array([min(max(round(value), ends.min), ends.max)], row.numpy)
    with np.errstate(over="ignore"):
        if row.digits > 22:
            return np.array([value]).astype(row.numpy)
        return np.array([_to_odd(value)]).astype(row.numpy)


def _to_odd(value: float) -> np.float32:
    """Rounded to odd: rounding that to nearest, to 22 bits or fewer, gives the same as rounding the number."""
    near = np.float32(value)
    if math.isinf(near) or float(near) == value:
        return near
    if abs(float(near)) > abs(value):
        near = np.nextafter(near, np.float32(0))
    bits = near.view(np.uint32) | np.uint32(1)
    return bits.view(np.float32)
