"""Several arrays in one workspace, one after the other, and behind them what is needed for a step only."""

import math
from dataclasses import replace

import numpy as np

from dnncanon.gpu.runtime import DeviceArray, empty, reinterpret
from dnncanon.spec import dense_strides

_ALIGNMENT = 16


class Scratch:
    """Dense arrays by name, each a shape and a dtype; and so many bytes of ``rest``, for one step at a time."""

    def __init__(self, rest: int = 0, **arrays: tuple[tuple[int, ...], str]) -> None:
        self._arrays = arrays
        self._rest = rest
        self._starts: dict[str, int] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            self._starts[name] = end
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._end = end

    @property
    def nbytes(self) -> int:
        return self._end + self._rest

    def arrays(self, workspace: DeviceArray | None) -> dict[str, DeviceArray]:
        """The arrays in a workspace of ``nbytes`` bytes, which there need not be if that is 0."""
        return {name: self._array(name, workspace) for name in self._arrays}

    def rest(self, workspace: DeviceArray | None) -> DeviceArray | None:
        """What is behind the arrays."""
        if workspace is None or not self._rest:
            return None
        memory = reinterpret(workspace, np.dtype(np.uint8))
        return replace(memory, pointer=memory.pointer + self._end, shape=(self._rest,))

    def _array(self, name: str, workspace: DeviceArray | None) -> DeviceArray:
        shape, dtype = self._arrays[name]
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if workspace is None or nbytes == 0:
            return empty(shape, np.dtype(dtype))
        memory = reinterpret(workspace, np.dtype(np.uint8))
        pointer = memory.pointer + self._starts[name]
        flat = reinterpret(replace(memory, pointer=pointer, shape=(nbytes,)), np.dtype(dtype))
        return replace(flat, shape=shape, strides=dense_strides(shape))
