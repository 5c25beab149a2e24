"""Tensor operators and casts as device functions of elements.

A cast has a kernel for each pair of *classes* of types, not of types: floats of 8 bits share one, which is
told the types by codes, and so do integers of 8 bits, and of 32. Eight classes make 64 pairs, twelve types 144.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.choosing import chosen
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec import DTYPES
from dnncanon.spec.transform import NAMES

Function = Callable[..., Any]

_int64 = types.int64

# --- Operators ------------------------------------------------------------------------------------

_ADD, _MUL, _MIN, _NOT = (NAMES.index(name) for name in ("add", "mul", "min", "not"))


@cache
def operator(dtype: str, operands: int, *, plus: bool) -> Function:
    """f(a, [b,] [c,] alpha1, alpha2, beta, op, propagates): y, by all operators of so many operands.

    ``op`` is a place in NAMES; ``plus`` says that there is a c.
    """
    one = ELEMENTS[dtype].sum(1)

    @device_function
    def of_one(a: Any, op: Any) -> Any:
        return one - a if op == _NOT else math.sqrt(a)

    @device_function
    def unary(a: Any, alpha1: Any, alpha2: Any, beta: Any, op: Any, propagates: Any) -> Any:
        return of_one(alpha1 * a, op)

    @device_function
    def unary_plus(
        a: Any, c: Any, alpha1: Any, alpha2: Any, beta: Any, op: Any, propagates: Any
    ) -> Any:
        return of_one(alpha1 * a, op) + beta * c

    @device_function
    def binary(
        a: Any, b: Any, alpha1: Any, alpha2: Any, beta: Any, op: Any, propagates: Any
    ) -> Any:
        return _of_two(alpha1 * a, alpha2 * b, op, propagates)

    @device_function
    def binary_plus(
        a: Any, b: Any, c: Any, alpha1: Any, alpha2: Any, beta: Any, op: Any, propagates: Any
    ) -> Any:
        return _of_two(alpha1 * a, alpha2 * b, op, propagates) + beta * c

    functions: dict[tuple[int, bool], Function] = {
        (1, False): unary,
        (1, True): unary_plus,
        (2, False): binary,
        (2, True): binary_plus,
    }
    return functions[operands, plus]


@device_function
def _of_two(a: Any, b: Any, op: Any, propagates: Any) -> Any:
    if op == _ADD:
        return a + b
    if op == _MUL:
        return a * b
    if propagates == 0:
        if a != a:
            return b
        if b != b:
            return a
    if op == _MIN:
        return a if a < b or a != a else b
    return a if a > b or a != a else b


@device_function
def scaled(x: Any, alpha: Any) -> Any:
    return alpha * x


@device_function
def scaled_sum(a: Any, c: Any, alpha: Any, beta: Any) -> Any:
    return alpha * a + beta * c


# --- Casts ----------------------------------------------------------------------------------------

CLASSES = {
    "float8": ("float8_e4m3fn", "float8_e5m2"),
    "byte": ("bool", "int8", "uint8"),
    "integer": ("int32", "uint32"),
}
"""The classes that have several types, by their codes; the other types are classes of their own."""
_BOOL, _SIGNED_BYTE = 0, 1
_UNSIGNED = 1


def class_of(dtype: str) -> str:
    return next((name for name, row in CLASSES.items() if dtype in row), dtype)


def code_of(dtype: str) -> int:
    """Which type of its class it is."""
    return CLASSES.get(class_of(dtype), (dtype,)).index(dtype)


_READ_AS = {"float8": "uint8", "byte": "uint8", "integer": "int32"}
_WRITTEN_AS = {"float8": "uint8", "byte": "uint8", "integer": "uint32"}


def read_as(x: DeviceArray) -> DeviceArray:
    """An input in the type by which its class is read."""
    return _seen_as(x, _READ_AS)


def written_as(y: DeviceArray) -> DeviceArray:
    """An output in the type by which its class is written."""
    return _seen_as(y, _WRITTEN_AS)


def _seen_as(array: DeviceArray, names: dict[str, str]) -> DeviceArray:
    name = names.get(class_of(array.dtype.name))
    return array if name is None else replace(array, dtype=np.dtype(name))


def limit_of(source: str, to: str) -> float | int:
    """What numbers are limited to when a cast saturates, in the type they are computed in; 0 for nothing."""
    row, target = DTYPES[source], DTYPES[to]
    limit = target.max if target.is_float and target.max < row.max else 0.0
    return limit if row.is_float else int(limit)


@cache
def conversion(source: str, to: str) -> Function:
    """f(x, limit, source, to) from one class to another: x in the other type; the last two are codes.

    A ``limit`` above 0 is what magnitudes are cut down to; a NaN has none.
    """
    decode, encode = _decoder(source), _encoder(to)

    @device_function
    def convert(x: Any, limit: Any, source: Any, to: Any) -> Any:
        number = decode(x, source)
        if limit > 0:
            if number > limit:
                number = limit
            if number < -limit:
                number = -limit
        return encode(number, to)

    return convert


def _decoder(source: str) -> Function:
    """(number as the class is read, code) -> number: float32 of float8, int64 of integers."""
    if source == "float8":
        return chosen({name: ELEMENTS[name].to_sum for name in CLASSES["float8"]}, 1)[0]
    return {"byte": _from_byte, "integer": _from_four_bytes}.get(source, _whatever_code)


def _encoder(to: str) -> Function:
    """(number, code) -> number that is written as the class is: the bits of its types."""
    if to == "float8":
        return chosen({name: _bits(name) for name in CLASSES["float8"]}, 1)[0]
    return {"byte": _to_byte, "integer": _to_four_bytes}.get(to, _whatever_code)


def _bits(dtype: str) -> Function:
    from_sum = ELEMENTS[dtype].from_sum

    @device_function
    def bits(number: Any) -> Any:
        return _int64(from_sum(number))

    return bits


@device_function
def _from_byte(word: Any, code: Any) -> Any:
    if code == _BOOL:
        return _int64(word != 0)
    return (word ^ 0x80) - 0x80 if code == _SIGNED_BYTE else word


@device_function
def _to_byte(number: Any, code: Any) -> Any:
    if code == _BOOL:
        return _int64(number != 0)
    low, high = (-128, 127) if code == _SIGNED_BYTE else (0, 255)
    return min(max(ptx.to_int64(number), _int64(low)), _int64(high)) & 0xFF


@device_function
def _from_four_bytes(number: Any, code: Any) -> Any:
    """Read as int32: those of uint32 that have the upper bit seem negative."""
    return number & 0xFFFFFFFF if code == _UNSIGNED else number


@device_function
def _to_four_bytes(number: Any, code: Any) -> Any:
    low, high = (0, 0xFFFFFFFF) if code == _UNSIGNED else (-0x80000000, 0x7FFFFFFF)
    return min(max(ptx.to_int64(number), _int64(low)), _int64(high)) & 0xFFFFFFFF


@device_function
def _whatever_code(number: Any, code: Any) -> Any:
    return number
