"""Several arrays in one workspace, one after the other, and behind them what is needed for a step only."""

import math
from dataclasses import replace

import numpy as np

from dnncanon.gpu.runtime import DeviceArray, empty, reinterpret
from dnncanon.spec import dense_strides

_ALIGNMENT = 16


class Scratch:
    """Dense arrays by name, each a shape and a dtype; and so many bytes of ``rest``, for one step at a time.

    What is known from the beginning is given to the constructor. Steps that find out as they go ``add`` arrays,
    and ``need`` a rest for the step that comes next; later arrays may lie in it.
    """

    def __init__(self, rest: int = 0, **arrays: tuple[tuple[int, ...], str]) -> None:
        self._arrays: dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}
        self._starts: dict[str, int] = {}
        self._end = 0
        self._most = 0
        for name, (shape, dtype) in arrays.items():
            self.add(name, shape, dtype)
        self.need(rest)

    @property
    def nbytes(self) -> int:
        return self._most

    @property
    def count(self) -> int:
        """Of the arrays."""
        return len(self._arrays)

    def add(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """An array behind those that there are."""
        self._arrays[name] = shape, np.dtype(dtype)
        self._starts[name] = self._end
        self._end += -(-self._nbytes(name) // _ALIGNMENT) * _ALIGNMENT
        self.need(0)

    def need(self, rest: int) -> None:
        """So many bytes behind the arrays that there are."""
        self._most = max(self._most, self._end + rest)

    def arrays(self, workspace: DeviceArray | None) -> dict[str, DeviceArray]:
        """The arrays in a workspace of ``nbytes`` bytes, which there need not be if that is 0."""
        return {name: self.array(name, workspace) for name in self._arrays}

    def array(self, name: str, workspace: DeviceArray | None) -> DeviceArray:
        shape, dtype = self._arrays[name]
        nbytes = self._nbytes(name)
        if workspace is None or nbytes == 0:
            return empty(shape, dtype)
        memory = reinterpret(workspace, np.dtype(np.uint8))
        pointer = memory.pointer + self._starts[name]
        flat = reinterpret(replace(memory, pointer=pointer, shape=(nbytes,)), dtype)
        return replace(flat, shape=shape, strides=dense_strides(shape))

    def rest(self, workspace: DeviceArray | None) -> DeviceArray | None:
        """What is behind the arrays; None if there is nothing left."""
        if workspace is None:
            return None
        memory = reinterpret(workspace, np.dtype(np.uint8))
        left = memory.size - self._end
        if left <= 0:
            return None
        return replace(memory, pointer=memory.pointer + self._end, shape=(left,))

    def _nbytes(self, name: str) -> int:
        shape, dtype = self._arrays[name]
        return math.prod(shape) * dtype.itemsize
