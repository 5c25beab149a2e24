"""Codes of few bits as device functions: the nearest one, the way back, and the least scale of a block.

Codes are bytes here, whatever their type, and what tells one type from another comes at run time as a
:class:`Format`: it is the same for all threads, and one kernel serves all types. Calls are inlined, so that
what is called once only is compiled once only.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.row_map import RowMap
from dnncanon.gpu.kernels.rows import larger
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec import DTYPES

Function = Callable[..., Any]
_int64 = types.int64

_BEYOND = 1 << 16
"""What no code and no difference of codes reaches."""


class Format(NamedTuple):
    """A type of codes, as scalars of a kernel.

    Of floats ``shift`` is by how many bits their mantissa is shorter than float32's, ``width`` how many
    bits there are beside the sign, and ``nan`` the code of NaN, or 0 if there is none. Of integers ``shift``
    is 0, and with ``most`` 127 they have a sign.
    """

    shift: int
    bias: int
    width: int
    nan: int
    most: float

    @classmethod
    def of(cls, dtype: str) -> "Format":
        row = DTYPES[dtype]
        if not row.is_float:
            return cls(0, 0, 8, 0, row.max)
        nan = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}.get(dtype, 0)
        width = 3 if dtype == "float4_e2m1fn" else 7
        return cls(24 - row.digits, 1 - row.min_exponent, width, nan, row.max)


# --- Codes ----------------------------------------------------------------------------------------


@device_function
def _float_code(value: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
    """The code of the number nearest to a value, ties to even; of what is too large the largest."""
    if value > most:
        value = most
    if value < -most:
        value = -most
    number = ptx.to_odd_f32(value)
    bits = ptx.bits_of_f32(number)
    magnitude = bits & 0x7FFFFFFF
    if magnitude < 128 - bias << 23:
        # A sum with this number is rounded to a multiple of the least subnormal.
        rounder = 128 - bias + shift << 23
        rounded = ptx.f32_of_bits(magnitude) + ptx.f32_of_bits(rounder)
        code = ptx.bits_of_f32(rounded) - rounder
    else:
        half = (1 << shift - 1) - 1 + (magnitude >> shift & 1)
        code = (magnitude + half >> shift) - (127 - bias << 23 - shift)
    return code | bits >> 31 << width if number == number else nan


@device_function
def _float_of(code: Any, shift: Any, bias: Any, width: Any, nan: Any) -> Any:
    """The number of a code: that of the float16 with the same mantissa further left, and another bias."""
    magnitude = code & (1 << width) - 1
    half = magnitude << shift - 13 | (code >> width & 1) << 15
    number = ptx.f16_to_f32(half) * ptx.f32_of_bits(142 - bias << 23)
    return ptx.f32_of_bits(0x7FC00000) if magnitude == nan and nan == 0x7F else number


@device_function
def _integer_of(code: Any, most: Any) -> Any:
    """The integer that a byte holds."""
    return code - 256 if most < 128 and code > 127 else code


@device_function
def _integer_code(value: Any, zero: Any, most: Any) -> Any:
    """The byte of the nearest code from ``zero`` on; 0 for NaN."""
    whole = min(max(ptx.to_int64(value), -_BEYOND), _BEYOND) + zero
    largest = _int64(most)
    code = min(max(whole, largest - 255), largest) & 255
    return code if value == value else _int64(0)


# --- Linear ---------------------------------------------------------------------------------------


@device_function
def quantized(x: Any, scale: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
    """The code of x/scale."""
    quotient = x / scale
    if shift == 0:
        return _integer_code(quotient, _int64(0), most)
    return _float_code(quotient, shift, bias, width, nan, most)


@device_function
def quantized_from_zero(
    x: Any, scale: Any, zero: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any
) -> Any:
    """The same with a zero point: codes are integers."""
    return _integer_code(x / scale, _integer_of(zero, most), most)


@device_function
def dequantized(x: Any, scale: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
    """The number of a code, times scale."""
    if shift == 0:
        return types.float32(_integer_of(x, most)) * scale
    return _float_of(x, shift, bias, width, nan) * scale


@device_function
def dequantized_from_zero(
    x: Any, scale: Any, zero: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any
) -> Any:
    """The same with a zero point."""
    return types.float32(_integer_of(x, most) - _integer_of(zero, most)) * scale


# --- Blocks ---------------------------------------------------------------------------------------


@device_function
def scaled(x: Any, scale: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
    """The number of a code of 8 or 4 bits, times scale."""
    return _float_of(x, shift, bias, width, nan) * scale


@cache
def _least_scale(kind: str, scales: str) -> Function:
    """The least number s of the type ``scales`` with amax <= most·s; ``kind`` is the type of both.

    amax/most is cut to the digits of a scale, and whether this is less is told by a product, which is exact.
    """
    row, number = DTYPES[scales], ELEMENTS[kind].sum
    least = types.float32(0.0 if row.signed else row.min)
    normal, largest = types.float32(row.smallest_normal), types.float32(row.max)
    zero, nan = types.float32(0), types.float32(float("nan"))
    step = 1 << 24 - row.digits  # of neighbouring scales, in the bits of a float32

    @device_function
    def least_scale(amax: Any, most: Any) -> Any:
        ratio = types.float32(amax / most)
        # Subnormal scales are spaced like the first normal ones, among which this puts them.
        moved = normal if ratio < normal else zero
        bits = ptx.bits_of_f32(ratio + moved) & -step
        low = max(ptx.f32_of_bits(bits) - moved, least)
        high = ptx.f32_of_bits(bits + step) - moved
        scale = min(low if amax <= most * number(low) else high, largest)
        return scale if amax == amax else nan

    return least_scale


@cache
def blocks(kind: str, scales: str) -> RowMap:
    """The codes of a block, and of the block its scale; ``kind`` is the type that is computed in."""
    number = ELEMENTS[kind].sum
    least_scale, zero = _least_scale(kind, scales), number(0)

    @device_function
    def magnitude(x: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
        return abs(x)

    @device_function
    def finish(amax: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
        return number(least_scale(amax, most))

    @device_function
    def code(x: Any, scale: Any, shift: Any, bias: Any, width: Any, nan: Any, most: Any) -> Any:
        quotient = x / scale if scale != zero else zero
        return _float_code(quotient, shift, bias, width, nan, most)

    @device_function
    def as_it_is(scale: Any) -> Any:
        return scale

    monoid = Monoid(("sum",), (0.0,), magnitude, larger, finish)
    return RowMap(monoid, code, as_it_is, scales)


# --- Bytes ----------------------------------------------------------------------------------------


@device_function
def moved(code: Any) -> Any:
    return code


@device_function
def nothing() -> Any:
    """The code 0."""
    return _int64(0)
