"""Host memory by address, as NumPy arrays; and the words in which kernels store each element type."""

from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_WORDS = {np.dtype(np.float16): np.dtype(np.uint16), BFLOAT16: np.dtype(np.uint16)}


class _Memory:
    """An address with the attribute from which NumPy makes an array without copying."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def storage_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """How kernels see ``dtype`` in memory: 16-bit floats as uint16, the others as they are."""
    return _WORDS.get(dtype, dtype)


def host_view(
    pointer: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
) -> np.ndarray[Any, Any]:
    """The host memory at ``pointer`` as an array; ``strides`` count elements, None means C order.

    The caller keeps the memory's owner alive.
    """
    if 0 in shape:
        return np.empty(shape, dtype)
    words = storage_of(dtype)
    interface = {
        "version": 3,
        "data": (pointer, False),
        "typestr": words.str,
        "shape": shape,
        "strides": None if strides is None else tuple(s * words.itemsize for s in strides),
    }
    array = np.asarray(_Memory(interface))
    return array if words is dtype else array.view(dtype)
