"""The element types: one row per dtype, with the figures that error bounds are made of."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    A floating-point type, ``kind`` "float", is one in the sense of IEEE 754: ``digits`` is the precision p
    in bits with the hidden one; ``unit_roundoff`` is 2^-p, the largest relative error of rounding to nearest;
    ``smallest_normal`` is 2^emin and ``smallest_subnormal`` 2^(emin-p+1), the spacing of the numbers
    below ``smallest_normal``. ``min`` and ``max`` are the smallest and the largest finite number.

    An integer type, "integer" or "bool", is a fixed-point one, all of whose numbers are subnormal: their
    spacing is 1, and ``digits`` are its bits without the sign.
    """

    name: str
    numpy: np.dtype[Any]
    digits: int
    min_exponent: int
    max: float
    kind: Literal["float", "integer", "bool"] = "float"
    has_infinity: bool = True
    signed: bool = True

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def min(self) -> float:
        if not self.signed:
            return 0.0 if not self.is_float else self.smallest_subnormal
        return -self.max if self.is_float else -self.max - 1.0

    @property
    def unit_roundoff(self) -> float:
        return float(2.0**-self.digits)

    @property
    def smallest_normal(self) -> float:
        return float(2.0**self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        return float(2.0 ** (self.min_exponent - self.digits + 1))


def _integer(name: str, bits: int, *, signed: bool = True) -> DType:
    digits = bits - signed
    largest = float(2**digits - 1)
    return DType(name, np.dtype(name), digits, digits - 1, largest, "integer", False, signed)


def _float8(name: str, digits: int, min_exponent: int, largest: float) -> DType:
    """A format of at most 8 bits; of these only e5m2 has infinities."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    signed = name != "float8_e8m0fnu"
    infinite = name == "float8_e5m2"
    return DType(name, dtype, digits, min_exponent, largest, "float", infinite, signed)


DTYPES = {
    row.name: row
    for row in (
        DType("float64", np.dtype(np.float64), 53, -1022, float(np.finfo(np.float64).max)),
        DType("float32", np.dtype(np.float32), 24, -126, float(np.finfo(np.float32).max)),
        DType("float16", np.dtype(np.float16), 11, -14, 65504.0),
        DType("bfloat16", np.dtype(ml_dtypes.bfloat16), 8, -126, 3.3895313892515355e38),
        _float8("float8_e4m3fn", 4, -6, 448.0),
        _float8("float8_e5m2", 3, -14, 57344.0),
        # Scales of blocks, powers of two; and the elements of MXFP4 and NVFP4, one in each byte.
        _float8("float8_e8m0fnu", 1, -127, 2.0**127),
        _float8("float4_e2m1fn", 2, 0, 6.0),
        DType("bool", np.dtype(np.bool_), 1, 0, 1.0, "bool", False, False),
        _integer("int8", 8),
        _integer("uint8", 8, signed=False),
        _integer("int32", 32),
        _integer("uint32", 32, signed=False),
        _integer("int64", 64),
    )
}

FLOATS = {name: DTYPES[name] for name in ("float64", "float32", "float16", "bfloat16")}
"""Those that arithmetic is done in."""


def dtype_name(dtype: object) -> str:
    """The name of a dtype of NumPy, ml_dtypes, CuPy or PyTorch: ``torch.float16`` is ``float16``.

    A dtype of the other byte order has NumPy's code for a name, ``>f4``: it is another type.
    """
    try:
        known = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return str(dtype).removeprefix("torch.")
    return str(known.name if known.isnative else known.str)
