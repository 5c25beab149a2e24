"""Element types in kernels: the word in memory, the type that is computed in, and the way between them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec import DTYPES


@dataclass(frozen=True, slots=True)
class Element:
    """One element type of tensors.

    ``sum`` is the type that kernels compute in: float64 for float64, float32 for the other floats,
    int64 for integers and bool. The device functions ``to_sum`` and ``from_sum`` lead from the word in
    memory to it, exactly, and back. ``from_sum`` takes a number of any type and rounds it once, to
    nearest even: floats overflow to ±Inf, or to NaN where there is no infinity, and keep subnormals;
    integers saturate, and a NaN gives 0; in bool everything but 0 is true. (float4_e2m1fn, which has
    neither, saturates, and a NaN gives -0; float8_e8m0fnu, which has no 0 and no sign, gives NaN.)
    """

    name: str
    dtype: np.dtype[Any]
    sum_dtype: np.dtype[Any]
    sum: Any
    to_sum: Callable[[Any], Any]
    from_sum: Callable[[Any], Any]


_F32, _F64, _I64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
_int64 = types.int64


# --- float64, float32, float16, bfloat16 ----------------------------------------------------------


@device_function
def _as_is(value: Any) -> Any:
    return value


@device_function
def _to_float16(value: Any) -> Any:
    return ptx.f32_to_f16(ptx.to_odd_f32(value))


@device_function
def _to_bfloat16(value: Any) -> Any:
    return ptx.f32_to_bf16(ptx.to_odd_f32(value))


# --- Floats of 8 bits and fewer, one in each byte -------------------------------------------------
# Conversion instructions need sm_89 and saturate; these are integer operations on the bits of a
# float32, or of the float16 that has the same mantissa further left.


def _bias(exponent: int) -> int:
    return int(2 ** (exponent - 1)) - 1


@cache
def _decoder(exponent: int, mantissa: int, nan: int = -1) -> Callable[[Any], Any]:
    """From a code of so many bits, and a sign before them, to float32; ``nan`` is a magnitude's code."""
    width, shift = exponent + mantissa, 10 - mantissa
    magnitudes = (1 << width) - 1
    scale = 2.0 ** (15 - _bias(exponent))

    @device_function
    def decode(word: Any) -> Any:
        code = _int64(word)
        magnitude = code & magnitudes
        half = magnitude << shift | (code >> width & 1) << 15
        value = ptx.f16_to_f32(half) * types.float32(scale)
        return ptx.f32_of_bits(0x7FC00000) if magnitude == nan else value

    return decode


@cache
def _encoder(
    exponent: int, mantissa: int, largest: int, overflow: int, nan: int
) -> Callable[[Any], Any]:
    """From any number to such a code.

    Magnitudes whose code would be above ``largest`` become ``overflow``, a NaN becomes ``nan``.
    """
    bias, width, shift = _bias(exponent), exponent + mantissa, 23 - mantissa
    rebias = (127 - bias) << mantissa
    least_normal = (128 - bias) << 23
    # Adding this float32 to a smaller one rounds that to a multiple of the least subnormal.
    rounder_bits = (151 - bias - mantissa) << 23

    @device_function
    def encode(value: Any) -> Any:
        number = ptx.to_odd_f32(value)
        bits = ptx.bits_of_f32(number)
        sign, magnitude = bits >> 31, bits & 0x7FFFFFFF
        if magnitude < least_normal:
            rounded = ptx.f32_of_bits(magnitude) + ptx.f32_of_bits(rounder_bits)
            code = ptx.bits_of_f32(rounded) - rounder_bits
        else:
            half = (1 << (shift - 1)) - 1 + (magnitude >> shift & 1)
            code = (magnitude + half >> shift) - rebias
        if code > largest:
            code = _int64(overflow)
        if number != number:
            return types.uint8(nan)
        return types.uint8(code | sign << width)

    return encode


@device_function
def _from_e8m0(word: Any) -> Any:
    """2^(code - 127), and NaN for code 255."""
    code = _int64(word)
    bits = code << 23
    if code == 0:
        bits = _int64(0x00400000)  # 2^-127 is a subnormal float32
    if code == 255:
        bits = _int64(0x7FC00000)
    return ptx.f32_of_bits(bits)


@device_function
def _to_e8m0(value: Any) -> Any:
    """The nearest power of two, ties to the higher one; NaN for what is no number above 2^-128."""
    number = ptx.to_odd_f32(value)
    bits = ptx.bits_of_f32(number)
    code = _int64(255)
    if number > ptx.f32_of_bits(0x00200000):
        # Subnormals are spaced by 2^-127, their only power of two.
        code = bits + (0x00400000 if bits >= 0x00800000 else 0x00200000) >> 23
    return types.uint8(min(code, 255))


# --- Integers and bool ----------------------------------------------------------------------------


@device_function
def _to_int64(value: Any) -> Any:
    return ptx.to_int64(value)


@cache
def _saturating(name: str) -> Callable[[Any], Any]:
    word, least, most = getattr(types, name), int(np.iinfo(name).min), int(np.iinfo(name).max)

    @device_function
    def saturate(value: Any) -> Any:
        return word(min(max(ptx.to_int64(value), _int64(least)), _int64(most)))

    return saturate


@device_function
def _from_bool(word: Any) -> Any:
    return _int64(word != 0)


@device_function
def _to_bool(value: Any) -> Any:
    return types.uint8(value != 0)


# --- The table ------------------------------------------------------------------------------------


def _element(name: str, sums: np.dtype[Any], to_sum: Any, from_sum: Any) -> Element:
    return Element(name, DTYPES[name].numpy, sums, getattr(types, sums.name), to_sum, from_sum)


ELEMENTS = {
    row.name: row
    for row in (
        _element("float64", _F64, _as_is, types.float64),
        _element("float32", _F32, _as_is, types.float32),
        _element("float16", _F32, ptx.f16_to_f32, _to_float16),
        _element("bfloat16", _F32, ptx.bf16_to_f32, _to_bfloat16),
        _element(
            "float8_e4m3fn",
            _F32,
            _decoder(4, 3, nan=0x7F),
            _encoder(4, 3, largest=0x7E, overflow=0x7F, nan=0x7F),
        ),
        _element(
            "float8_e5m2",
            _F32,
            _decoder(5, 2),
            _encoder(5, 2, largest=0x7B, overflow=0x7C, nan=0x7E),
        ),
        _element("float8_e8m0fnu", _F32, _from_e8m0, _to_e8m0),
        _element(
            "float4_e2m1fn",
            _F32,
            _decoder(2, 1),
            _encoder(2, 1, largest=0x07, overflow=0x07, nan=0x08),
        ),
        _element("bool", _I64, _from_bool, _to_bool),
        _element("int8", _I64, _to_int64, _saturating("int8")),
        _element("uint8", _I64, _to_int64, _saturating("uint8")),
        _element("int32", _I64, _to_int64, _saturating("int32")),
        _element("uint32", _I64, _to_int64, _saturating("uint32")),
        _element("int64", _I64, _to_int64, _to_int64),
    )
}
