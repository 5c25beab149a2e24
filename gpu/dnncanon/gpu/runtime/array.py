"""Device arrays: shape, dtype and strides over memory of the selected device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dnncanon.gpu.runtime import dlpack
from dnncanon.gpu.runtime.memory import host_view, storage_of
from dnncanon.gpu.runtime.selection import Device, device
from dnncanon.gpu.runtime.streams import stream_handle
from dnncanon.spec import LayoutError, dense_strides

Shape = tuple[int, ...]


class Strided(Protocol):
    """What has extents, and strides in elements."""

    @property
    def shape(self) -> Shape: ...
    @property
    def strides(self) -> Shape: ...


@dataclass(frozen=True, slots=True)
class View:
    """An array's extents and strides, without the array."""

    shape: Shape
    strides: Shape


def origin(array: Strided) -> int:
    """Elements from an array's lowest address to its first element: 0 unless a stride is negative."""
    dims = zip(array.shape, array.strides, strict=True)
    return sum((n - 1) * -stride for n, stride in dims if stride < 0 < n)


def span(array: Strided) -> int:
    """Elements of memory from an array's lowest to its highest, both included; 0 if it has none."""
    if 0 in array.shape:
        return 0
    dims = zip(array.shape, array.strides, strict=True)
    return 1 + sum((n - 1) * abs(stride) for n, stride in dims)


@dataclass(frozen=True, eq=False, slots=True)
class DeviceArray:
    """An array in the memory of a device.

    ``pointer`` is the address of its first element, ``strides`` count elements, ``owner`` keeps the
    memory alive, and ``stream`` is the stream on which it was written last (None: the default one).
    A kernel that writes to a ``read_only`` one is stopped by the emulator; CUDA cannot tell.
    It takes part in DLPack and, on CUDA, in the CUDA array interface, both without a copy.
    """

    device: Device
    owner: object
    pointer: int
    dtype: np.dtype[Any]
    shape: Shape
    strides: Shape
    stream: object = None
    read_only: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def is_dense(self) -> bool:
        """Whether it is in C order without gaps."""
        dims = zip(self.shape, self.strides, dense_strides(self.shape), strict=True)
        return 0 in self.shape or all(n == 1 or have == want for n, have, want in dims)

    @property
    def origin(self) -> int:
        """Elements from the lowest address to the first element: 0 unless a stride is negative."""
        return origin(self)

    @property
    def span(self) -> int:
        """How many elements of memory it reaches over, gaps included."""
        return span(self)

    @property
    def lowest(self) -> int:
        """The lowest address of an element."""
        return self.pointer - self.origin * self.dtype.itemsize

    @property
    def argument(self) -> Any:
        """What a kernel receives: the memory from the lowest element to the highest, in words."""
        return self.device.flat(
            self.lowest, self.span, storage_of(self.dtype), read_only=self.read_only
        )

    def to_host(self) -> np.ndarray[Any, Any]:
        """A NumPy copy in C order, taken after all that was queued on the array's stream."""
        if self.device.is_host:
            return host_view(self.pointer, self.dtype, self.shape, self.strides).copy(order="C")
        memory = np.empty(self.span, self.dtype)
        if memory.size:
            self.device.download(self.lowest, memory, self.stream)
        first = memory.ctypes.data + self.origin * self.dtype.itemsize
        return host_view(first, self.dtype, self.shape, self.strides).copy(order="C")

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU if self.device.is_host else (dlpack.CUDA, self.device.index)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule; on CUDA ``stream`` is made to wait for the array to be written.

        BufferError when a copy, or another device, is asked for.
        """
        here = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != here):
            raise BufferError(
                "DeviceArray shares its memory where it is; call to_host() for a copy"
            )
        if not self.device.is_host and stream != -1:
            self.device.wait_for(self.stream, stream)
        return dlpack.export_capsule(self, self.pointer, self.dtype, self.shape, self.strides, here)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.is_host:
            raise AttributeError("__cuda_array_interface__: the array is in host memory")
        word = self.dtype if self.dtype.isbuiltin == 1 else storage_of(self.dtype)
        return {
            "version": 3,
            "data": (self.pointer, False),
            "typestr": word.str,
            "shape": self.shape,
            "strides": tuple(s * word.itemsize for s in self.strides),
            "stream": stream_handle(self.stream) or 1,
        }

    def __repr__(self) -> str:
        return (
            f"DeviceArray({self.dtype.name}{list(self.shape)}, strides {list(self.strides)}, "
            f"{self.device.name})"
        )


def empty(
    shape: Sequence[int], dtype: object, strides: Sequence[int] | None = None, stream: object = None
) -> DeviceArray:
    """An uninitialised array on the selected device; ``strides`` in elements, None for C order."""
    shape, target, word = tuple(shape), device(), np.dtype(dtype)  # type: ignore[call-overload]
    layout = dense_strides(shape) if strides is None else tuple(strides)
    owner, pointer = target.allocate(span(View(shape, layout)) * word.itemsize)
    return DeviceArray(target, owner, pointer, word, shape, layout, stream)


def to_device(array: np.ndarray[Any, Any], stream: object = None) -> DeviceArray:
    """A copy of a NumPy array on the selected device.

    Strides stay as they are, 0 included, unless that would copy more than the elements; then the copy
    is dense in the order of the array's dims in memory.
    """
    strides, rests = _element_strides(array)
    view = View(array.shape, strides)
    if span(view) > array.size or any(rests):
        return to_device(array.copy(order="K"), stream)
    memory = empty((span(view),), array.dtype, stream=stream)
    first = origin(view)
    if array.size:
        lowest = array.__array_interface__["data"][0] - first * array.itemsize
        memory.device.upload(memory.pointer, host_view(lowest, array.dtype, memory.shape), stream)
    pointer = memory.pointer + first * array.itemsize
    return replace(memory, pointer=pointer, shape=array.shape, strides=strides)


def _element_strides(array: np.ndarray[Any, Any]) -> tuple[Shape, Shape]:
    """Strides in elements, and the bytes that are left over: not 0 where elements are not aligned."""
    offsets = (array.__array_interface__["data"][0], *array.strides)
    pairs = [divmod(offset, array.itemsize) for offset in offsets]
    return tuple(quotient for quotient, _ in pairs[1:]), tuple(rest for _, rest in pairs)


def to_host(array: DeviceArray) -> np.ndarray[Any, Any]:
    """A NumPy copy of a device array in C order."""
    return array.to_host()


def reinterpret(memory: DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
    """The memory of a dense array as a flat array of another dtype."""
    count = memory.size * memory.dtype.itemsize // dtype.itemsize
    return replace(memory, dtype=dtype, shape=(count,), strides=(1,))


def as_strided(
    buffer: DeviceArray, shape: Sequence[int], strides: Sequence[int], offset: int = 0
) -> DeviceArray:
    """A view of a flat buffer: element ``offset`` first, ``strides`` in elements, nothing copied.

    LayoutError when the view would reach outside the buffer.
    """
    view = replace(
        buffer,
        pointer=buffer.pointer + offset * buffer.dtype.itemsize,
        shape=tuple(shape),
        strides=tuple(strides),
    )
    first = offset - view.origin
    if view.span and not 0 <= first <= first + view.span <= buffer.span:
        raise LayoutError(
            f"a view of shape {view.shape} with strides {view.strides} at offset {offset} reaches "
            f"outside its buffer of {buffer.span} elements; pass a larger buffer"
        )
    return view
