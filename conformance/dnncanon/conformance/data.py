"""Test data: every element is a function of (seed, tensor, index) alone, on every platform.

Bits come from SplitMix64 in counter mode (Steele, Lea and Flood 2014), and every fill uses operations
that IEEE 754 rounds correctly, so a seed means the same numbers wherever and whenever it is used.
A library's random generator promises no such thing (NumPy NEP 19).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dnncanon.spec import ANY, DTYPES, DType
from dnncanon.spec.values import Values as Allowed

Bits = NDArray[np.uint64]
Values = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Fill:
    """A kind of data: which question it asks, what it is meant to find, and how it is made.

    ``make(bits, dtype, reduction_length)`` returns one float64 value for each 64 random bits.
    """

    layer: str
    doc: str
    make: Callable[[Bits, str, int], Values]


def values(
    fill: str,
    seed: int,
    tensor: str,
    count: int,
    dtype: str,
    reduction_length: int,
    allowed: Allowed = ANY,
    limit: int = 1,
) -> Values:
    """``count`` values for one tensor of a case, in logical order, not yet rounded to ``dtype``.

    They are of those that the tensor is ``allowed`` to hold, indices being below ``limit``.
    """
    bits, row = random_bits(seed, tensor, count), DTYPES[dtype]
    if allowed.kind in _CHOSEN:
        return _CHOSEN[allowed.kind](bits, allowed.low, limit)
    made = FILLS[fill].make(bits, dtype, reduction_length)
    if not row.is_float:
        made = _whole(fill, bits, made, row)
    elif not row.has_infinity:
        made = np.clip(np.where(np.isinf(made), np.sign(made), made), -row.max, row.max)
    if allowed.kind == "positive" or (row.is_float and not row.signed):
        return np.where(made == 0.0, 1.0, np.abs(made))
    return made if row.signed else np.abs(made)


# --- Values that are chosen -----------------------------------------------------------------------


def _indices(bits: Bits, low: int, limit: int) -> Values:
    chosen: Values = low + ((bits >> np.uint64(16)) % np.uint64(max(1, limit - low))).astype(float)
    return chosen


_CHOSEN: dict[str, Callable[[Bits, int, int], Values]] = {
    "index": _indices,
    "integer": _indices,
    "boolean": lambda bits, low, limit: ((bits >> np.uint64(16)) & np.uint64(1)).astype(np.float64),
    "unit": lambda bits, low, limit: _uniform(bits),
}


def _whole(fill: str, bits: Bits, made: Values, row: DType) -> Values:
    """Integers of the type: small ones for "integers", its ends for "special", else of many magnitudes."""
    if row.kind == "bool":
        return _CHOSEN["boolean"](bits, 0, 1)
    if fill == "integers":
        return made
    pick = (bits & np.uint64(1023)).astype(np.int64)  # the lowest bits are not those of _uniform
    magnitude = np.floor(np.ldexp(_uniform(bits), (pick >> 4) % row.digits + 1))
    made = np.where(pick & 1, -magnitude, magnitude)
    if fill == "special":
        ends = np.asarray([row.min, row.max, 0.0, -1.0])[(pick >> 1) & 3]
        made = np.where(pick & 8, ends, made)
    return np.clip(made, -row.max - row.signed, row.max)


# --- The fills ------------------------------------------------------------------------------------


def random_bits(seed: int, stream: str, count: int) -> Bits:
    """64 random bits for each index of a named stream."""
    start = (seed * 0xD1342543DE82EF95 + zlib.crc32(stream.encode()) * 0x2545F4914F6CDD1D) & _MASK
    z: Bits
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(start)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z


def _uniform(bits: Bits) -> Values:
    """In [0, 1), from the upper 53 bits."""
    fractions: Values = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _normal(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """About standard normal: the sum of four 16-bit numbers, centred and scaled by exact steps."""
    total = bits.view(np.uint16).reshape(-1, 4).astype(np.float64).sum(axis=1)
    centred: Values = (total - 2 * 65535) * (1.7320508 / 65536)
    return centred


def _integers(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Small integers, and enough zeros that sums of products stay exact in the output's precision.

    A product of two values from {0, ±1, ±2} is at most 4; with a share s of non-zeros in each operand,
    s²·4·L bounds the expected sum of magnitudes, kept to a quarter of 2^digits.
    """
    share = min(1.0, (2.0 ** DTYPES[dtype].digits / (16.0 * max(1, reduction_length))) ** 0.5)
    magnitude = ((bits >> np.uint64(8)) & np.uint64(1)).astype(np.float64) + 1.0
    sign = ((bits >> np.uint64(9)) & np.uint64(1)).astype(np.float64) * 2.0 - 1.0
    return np.where(_uniform(bits) < share, sign * magnitude, 0.0)


def _positive(bits: Bits, dtype: str, reduction_length: int) -> Values:
    return _uniform(bits) + 0.5


def _mixed(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Magnitudes over eleven binades, signs balanced."""
    exponent = (bits & np.uint64(7)).astype(np.int64) - 6
    exponent += ((bits >> np.uint64(3)) & np.uint64(3)).astype(np.int64)
    sign = ((bits >> np.uint64(5)) & np.uint64(1)).astype(np.float64) * 2.0 - 1.0
    return np.ldexp((_uniform(bits) + 1.0) * sign, exponent)


def _one_large(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Small positive values, about one among 16 of them 64 times as large."""
    large = (bits & np.uint64(15)) == 0
    return (_uniform(bits) + 0.5) * np.where(large, 8.0, 0.125)


def _tiny(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Normal data so small that products of two lie among the subnormal numbers of the dtype."""
    return np.ldexp(_normal(bits, dtype, reduction_length), DTYPES[dtype].min_exponent // 2 - 1)


def _large(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Normal data so large that sums of products reach float16's largest number, 65,504.

    Sums have a standard deviation of 25,000, so that in float16 one in a hundred overflows; in wider dtypes
    of 256 times as much.
    """
    scale = (25_000.0 / max(1, reduction_length) ** 0.5) ** 0.5
    if dtype != "float16":
        scale *= 16.0
    result: Values = _normal(bits, dtype, reduction_length) * scale
    return result


def _shifted(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """In [1, 1 + 1/16): the mean is 57 times the standard deviation."""
    return _uniform(bits) / 16.0 + 1.0


def _zeros(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Values of many magnitudes among zeros: of four sums of products, three have terms.

    With a share s of values in each operand a sum of L products has none with (1 − s²)^L; s² = ln 4 / L.
    """
    share = min(0.75, (1.3862944 / max(1, reduction_length)) ** 0.5)
    pick = (bits >> np.uint64(16)) & np.uint64(0xFFFF)
    return np.where(pick.astype(np.float64) < share * 65536, _mixed(bits, dtype, 1), 0.0)


def _special(bits: Bits, dtype: str, reduction_length: int) -> Values:
    """Normal data with some −0, subnormals, ±Inf and NaN, rare enough to leave finite results."""
    row = DTYPES[dtype]
    rare = 4 * max(16, reduction_length)
    pick = (bits >> np.uint64(20)) % np.uint64(rare)
    result = _normal(bits, dtype, reduction_length)
    result = np.where(pick == 0, np.nan, result)
    result = np.where(pick == 1, np.inf, result)
    result = np.where(pick == 2, -np.inf, result)
    common = (bits >> np.uint64(4)) & np.uint64(15)
    result = np.where((pick > 2) & (common == 0), -0.0, result)
    return np.where((pick > 2) & (common == 1), 3 * row.smallest_subnormal, result)


FILLS = {
    "normal": Fill("bounded", "about standard normal: the everyday case", _normal),
    "integers": Fill(
        "exact", "small integers whose sums are exact in any order: index errors", _integers
    ),
    "positive": Fill("bounded", "in [0.5, 1.5): absorption, truncation, sign bias", _positive),
    "mixed": Fill("bounded", "many magnitudes: products or scales in a narrow format", _mixed),
    "one_large": Fill("bounded", "one large among many small: lost small terms", _one_large),
    "tiny": Fill("bounded", "products in the subnormal range: underflow, flushing", _tiny),
    "large": Fill("bounded", "sums about float16's largest: narrow accumulators overflow", _large),
    "shifted": Fill("bounded", "far from 0 beside their spread: cancellation", _shifted),
    "zeros": Fill(
        "bounded",
        "values that meet zeros, sums that must be exactly 0: reads of the wrong element",
        _zeros,
    ),
    "special": Fill("special", "NaN, ±Inf, −0 and subnormals among normal data", _special),
}

# How often each is drawn: special values are one layer of three, and their defects are in many places.
DRAWN = (*FILLS, "special", "special")
