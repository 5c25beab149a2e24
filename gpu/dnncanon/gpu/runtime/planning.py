"""Launches that are decided once and run often: noted on a device that runs nothing, then bound to arrays.

While a call is planned, each of its arrays is a *placeholder*: it has the layout of the real one and an
address in a region of its own, with the same alignment. What a kernel would receive is then a
:class:`Span`, some memory of some array, and can be had for any other arrays of the same layouts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.gpu.runtime.array import DeviceArray
from dnncanon.gpu.runtime.interop import WORKSPACE_ALIGNMENT
from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.runtime.selection import Device
from dnncanon.gpu.runtime.tensor_map import TensorLayout

ALIGNMENT = WORKSPACE_ALIGNMENT
"""Bytes: addresses keep their alignment up to the widest word that a kernel may move at once."""

_REGION = 1 << 52
"""Bytes of address space of a placeholder, twice what any address of a device has. Its array starts in the
middle, as strides may be negative."""


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel's argument: ``count`` words from byte ``offset`` on, counted from an array's first element."""

    array: str
    offset: int
    count: int
    storage: np.dtype[Any]
    read_only: bool

    def of(self, arrays: Mapping[str, DeviceArray]) -> Any:
        """What the kernel receives for these arrays."""
        array = arrays[self.array] if self.count else next(iter(arrays.values()))
        return array.device.flat(
            array.pointer + self.offset, self.count, self.storage, read_only=self.read_only
        )


@dataclass(frozen=True, slots=True)
class PlannedMap:
    """A kernel's argument: the map of a tensor whose first element is ``offset`` bytes from an array's."""

    array: str
    offset: int
    layout: TensorLayout

    def of(self, arrays: Mapping[str, DeviceArray]) -> Any:
        """What the kernel receives for these arrays."""
        array = arrays[self.array]
        return array.device.tensor_map(array.pointer + self.offset, self.layout)


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch whose arguments are spans, tensor maps, numbers and tuples of them."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Any, ...]
    shared_bytes: int

    def bind(self, device: Device, arrays: Mapping[str, DeviceArray]) -> Callable[[object], None]:
        """The launch for these arrays: a function of the stream, that starts it and does nothing else."""
        args = tuple(_bound(arg, arrays) for arg in self.args)
        return device.bind(self.kernel, self.grid, self.block, args, shared_bytes=self.shared_bytes)


class PlanningDevice:
    """``real`` as far as memory goes, but its ``launches`` are only noted, in order."""

    def __init__(self, real: Device) -> None:
        self._real = real
        self._arrays: dict[int, tuple[str, int]] = {}
        self.launches: list[PlannedLaunch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def placeholder(self, name: str, array: DeviceArray) -> DeviceArray:
        """An array like ``array``, to be given to what launches kernels and nothing else."""
        region = len(self._arrays) + 1
        pointer = region * _REGION + _REGION // 2 + array.pointer % ALIGNMENT
        self._arrays[region] = (name, pointer)
        return replace(array, device=self, pointer=pointer)

    def flat(
        self, pointer: int, count: int, storage: np.dtype[Any], *, read_only: bool = False
    ) -> Span:
        if not count:
            return Span("", 0, 0, storage, read_only)  # of no memory any address is right
        name, first = self._arrays[pointer // _REGION]
        return Span(name, pointer - first, count, storage, read_only)

    def tensor_map(self, pointer: int, layout: TensorLayout) -> PlannedMap:
        name, first = self._arrays[pointer // _REGION]
        return PlannedMap(name, pointer - first, layout)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: tuple[Any, ...],
        *,
        shared_bytes: int,
        stream: object,
    ) -> None:
        arguments = tuple(getattr(arg, "argument", arg) for arg in args)
        _check_planned(kernel, arguments)
        self.launches.append(PlannedLaunch(kernel, grid, block, arguments, shared_bytes))

    def allocate(self, nbytes: int) -> tuple[object, int]:
        if nbytes:
            raise AssertionError(f"a planned call allocates {nbytes} bytes beside its workspace")
        return None, 0


def _check_planned(kernel: Kernel, args: tuple[Any, ...]) -> None:
    """Memory in any other form than spans would be the same for all arrays that the plan is bound to."""
    for arg in args:
        if isinstance(arg, tuple):
            _check_planned(kernel, arg)
        elif not isinstance(arg, Span | PlannedMap | int | float | np.generic):
            raise AssertionError(f"{kernel.name} was given {arg!r}, which no plan can hold")


def _bound(arg: Any, arrays: Mapping[str, DeviceArray]) -> Any:
    if isinstance(arg, Span | PlannedMap):
        return arg.of(arrays)
    return tuple(_bound(each, arrays) for each in arg) if isinstance(arg, tuple) else arg
