"""Kernel arguments: their Numba types, and their flattening into the 8-byte slots of a launch.

An array is passed as (meminfo, parent, items, itemsize, data, shape…, strides…), a tuple as its
elements, a float16 as its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncanon.gpu.emulator.errors import LaunchError
from dnncanon.gpu.emulator.launching.memory import Key

__all__ = ["argument_type", "pack"]

_SLOT: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.uint8), "i8": np.dtype(np.uint8), "i16": np.dtype(np.uint16),
    "i32": np.dtype(np.uint32), "i64": np.dtype(np.uint64), "ptr": np.dtype(np.uint64),
    "float": np.dtype(np.float32), "double": np.dtype(np.float64), "half": np.dtype(np.float16),
}  # fmt: skip


def _scalar_type(dtype: np.dtype[Any]) -> Any:
    from numba.cuda.np.numpy_support import from_dtype

    if dtype.kind not in "biufcVmM":
        raise LaunchError(f"kernels cannot take the dtype {dtype}")
    try:
        return from_dtype(dtype)
    except Exception as error:
        raise LaunchError(f"kernels cannot take the dtype {dtype}") from error


def argument_type(value: Any) -> Any:
    """The Numba type of an argument."""
    from numba.cuda import types

    if isinstance(value, np.ndarray):
        layout = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
        return types.Array(_scalar_type(value.dtype), value.ndim, layout)
    if isinstance(value, bool | np.bool_):
        return types.boolean
    if isinstance(value, np.generic):
        return _scalar_type(value.dtype)
    if isinstance(value, int):
        return types.int64 if -(2**63) <= value < 2**63 else types.uint64
    if isinstance(value, float):
        return types.float64
    if isinstance(value, complex):
        return types.complex128
    if isinstance(value, tuple):
        kinds = [argument_type(v) for v in value]
        if kinds and all(k == kinds[0] for k in kinds):
            return types.UniTuple(kinds[0], len(kinds))
        return types.Tuple(kinds)
    raise LaunchError(f"kernels cannot take an argument of type {type(value).__name__}")


def pack(
    arguments: Sequence[Any], slots: Sequence[str], data: Callable[[Key], int]
) -> npt.NDArray[np.uint64]:
    """The launch's argument buffer; `data(key)` is the address of an array argument."""
    values: list[Any] = []
    for i, argument in enumerate(arguments):
        _flatten(argument, i, data, values)
    if len(values) != len(slots):
        raise LaunchError(
            f"arguments flatten to {len(values)} values, the kernel takes {len(slots)}"
        )
    buffer = np.zeros(len(slots) + 1, np.uint64)
    raw = buffer.view(np.uint8)
    for i, (value, slot) in enumerate(zip(values, slots, strict=True)):
        dtype: np.dtype[Any] = _SLOT[slot]
        if dtype.kind == "u":
            value = int(value) & (2 ** (8 * dtype.itemsize) - 1)
        raw[8 * i : 8 * i + dtype.itemsize].view(dtype)[0] = value
    return buffer


def _flatten(value: Any, number: Key, data: Callable[[Key], int], out: list[Any]) -> None:
    if isinstance(value, np.ndarray):
        out += [0, 0, value.size, value.itemsize, data(number), *value.shape, *value.strides]
    elif isinstance(value, np.void) and value.dtype.fields:
        out.append(data(number))
    elif isinstance(value, tuple):
        for k, element in enumerate(value):
            _flatten(element, (number, k), data, out)
    elif isinstance(value, complex | np.complexfloating):
        out += [value.real, value.imag]
    elif isinstance(value, np.generic) and value.dtype.itemsize == 2 and value.dtype.kind in "fV":
        out.append(int(np.asarray(value).view(np.uint16)))
    elif isinstance(value, np.datetime64 | np.timedelta64):
        out.append(int(value.astype(np.int64)))
    elif isinstance(value, Enum):
        out.append(value.value)
    else:
        out.append(value)
