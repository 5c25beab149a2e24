"""Integers of either width, read as words of 32 bits: one kernel takes int32 and int64."""

from dataclasses import replace
from typing import Any

import numpy as np

from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.runtime.device_code import device_function, types

_int64, _uint64 = types.int64, types.uint64


def words_of(array: DeviceArray) -> DeviceArray:
    """An array of int32 or int64 as int32 words, the lower one first; they are a last dim."""
    count = array.dtype.itemsize // 4
    strides = tuple(stride * count for stride in array.strides)
    word = np.dtype(np.int32)
    return replace(array, dtype=word, shape=(*array.shape, count), strides=(*strides, 1))


def is_long(array: DeviceArray) -> int:
    """1 for int64, 0 for int32."""
    return int(array.dtype.itemsize == 8)


@device_function
def integer_at(words: Any, at: Any, long: Any) -> Any:
    """The integer whose lower word is ``at`` a place."""
    low = _int64(words[_uint64(at)])
    if long:
        return (low & _int64(0xFFFFFFFF)) | _int64(words[_uint64(at + 1)]) << _int64(32)
    return low
