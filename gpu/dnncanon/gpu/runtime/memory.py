"""Host memory by address, as NumPy arrays; and the words in which kernels store each element type."""

from typing import Any

import numpy as np

from dnncanon.spec import DTYPES, DType


def _word(row: DType) -> np.dtype[Any]:
    """The unsigned integer in which kernels hold what Numba has no arithmetic for."""
    wide = row.name in ("float64", "float32") or row.kind == "integer"
    return row.numpy if wide else np.dtype(f"u{row.itemsize}")


_WORDS = {row.numpy: _word(row) for row in DTYPES.values()}


class _Memory:
    """An address with the attribute from which NumPy makes an array without copying."""

    __slots__ = ("__array_interface__",)

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def storage_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """How kernels see ``dtype`` in memory: narrow floats and bool as unsigned words, others as they are."""
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
