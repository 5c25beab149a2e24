"""The element types: one row per dtype, with the figures that error bounds are made of."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """A floating-point element type in the sense of IEEE 754.

    ``digits`` is the precision p in bits with the hidden one; ``unit_roundoff`` is 2^-p, the largest
    relative error of rounding to nearest; ``smallest_normal`` is 2^emin and ``smallest_subnormal``
    2^(emin-p+1), the spacing of the numbers below ``smallest_normal``.
    """

    name: str
    numpy: np.dtype[Any]
    digits: int
    min_exponent: int
    max: float

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def unit_roundoff(self) -> float:
        return float(2.0**-self.digits)

    @property
    def smallest_normal(self) -> float:
        return float(2.0**self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        return float(2.0 ** (self.min_exponent - self.digits + 1))


DTYPES = {
    row.name: row
    for row in (
        DType("float64", np.dtype(np.float64), 53, -1022, float(np.finfo(np.float64).max)),
        DType("float32", np.dtype(np.float32), 24, -126, float(np.finfo(np.float32).max)),
        DType("float16", np.dtype(np.float16), 11, -14, 65504.0),
        DType("bfloat16", np.dtype(ml_dtypes.bfloat16), 8, -126, 3.3895313892515355e38),
    )
}


def dtype_name(dtype: object) -> str:
    """The name of a dtype of NumPy, ml_dtypes, CuPy or PyTorch: ``torch.float16`` is ``float16``.

    A dtype of the other byte order has NumPy's code for a name, ``>f4``: it is another type.
    """
    try:
        known = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return str(dtype).removeprefix("torch.")
    return str(known.name if known.isnative else known.str)
