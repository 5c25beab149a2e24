"""Arrays of other libraries: where their memory is, and new ones of the same kind."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.gpu.runtime import dlpack
from dnncanon.gpu.runtime.array import DeviceArray, empty, to_device
from dnncanon.gpu.runtime.errors import DeviceError
from dnncanon.gpu.runtime.memory import host_view
from dnncanon.gpu.runtime.selection import Device, device
from dnncanon.gpu.runtime.streams import current_stream, stream_handle
from dnncanon.spec import (
    DTYPES,
    DTypeError,
    LayoutError,
    ShapeError,
    TensorType,
    Unsupported,
    check_output_layout,
    dense_strides,
    dtype_name,
)

Shape = tuple[int, ...]

WORKSPACE_ALIGNMENT = 16
"""Bytes: the widest word that a kernel may move at once."""

_OVERLAP_EFFORT = 100_000
"""Candidate solutions that NumPy tries before it gives up on two interleaved arrays."""

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Foreign:
    """The memory of an array of some library; ``strides`` count elements."""

    owner: object
    pointer: int
    dtype: np.dtype[Any]
    shape: Shape
    strides: Shape
    on_host: bool
    index: int = 0

    @property
    def host(self) -> _Array:
        """A NumPy view, for memory of the host."""
        return host_view(self.pointer, self.dtype, self.shape, self.strides)


# --- Reading ----------------------------------------------------------------------------------------


def describe(array: Any, name: str, stream: object = None) -> Foreign:
    """Where the memory of ``array`` is, without copying it.

    Knows NumPy, PyTorch, DeviceArray, DLPack and the CUDA array interface. Raises LayoutError or
    DTypeError for memory that kernels cannot address, DeviceError for an array of no known kind.
    """
    if isinstance(array, np.ndarray):
        return _numpy(array, name)
    if isinstance(array, DeviceArray):
        return Foreign(
            array,
            array.pointer,
            array.dtype,
            array.shape,
            array.strides,
            array.device.is_host,
            array.device.index,
        )
    if _library(array) == "torch":
        return _torch(array, name)
    if hasattr(array, "__dlpack__"):
        return _dlpack(array, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _cuda_interface(array, name)
    raise DeviceError(
        f"{name} is {type(array).__name__}, which offers neither DLPack nor "
        f"__cuda_array_interface__; pass a NumPy, PyTorch or CuPy array"
    )


def _library(array: object) -> str:
    return type(array).__module__.partition(".")[0]


def _numpy(array: _Array, name: str) -> Foreign:
    if not array.dtype.isnative:
        raise DTypeError(
            f"{name} is stored in foreign byte order; pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    pointer = array.__array_interface__["data"][0]
    strides = _element_strides(array.strides, array.dtype.itemsize, pointer, name)
    return Foreign(array, pointer, array.dtype, array.shape, strides, on_host=True)


def _element_strides(strides: Shape, itemsize: int, pointer: int, name: str) -> Shape:
    """Strides in elements; kernels load whole elements, so nothing may lie between two of them."""
    if pointer % itemsize or any(stride % itemsize for stride in strides):
        raise LayoutError(
            f"{name} is not aligned: strides of {strides} bytes for elements of {itemsize}; "
            f"pass a copy, {name}.copy()"
        )
    return tuple(stride // itemsize for stride in strides)


def _torch(tensor: Any, name: str) -> Foreign:
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise LayoutError(f"{name} is {tensor.layout}; pass a dense tensor, {name}.to_dense()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(
            f"{name} requires grad, and no gradient would be recorded; pass {name}.detach()"
        )
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise DeviceError(f"{name} is on {tensor.device}; pass a CPU or CUDA tensor")
    return Foreign(
        tensor,
        tensor.data_ptr(),
        _numpy_dtype(dtype_name(tensor.dtype)),
        tuple(tensor.shape),
        tensor.stride(),
        kind == "cpu",
        tensor.device.index or 0,
    )


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return DTYPES[name].numpy if name in DTYPES else np.dtype(name)


def _dlpack(array: Any, stream: object) -> Foreign:
    kind, index = array.__dlpack_device__()
    on_host = kind in (dlpack.CPU[0], dlpack.CUDA_HOST)
    # 1 is DLPack's name for CUDA's default stream, which is 0 elsewhere
    options = {} if on_host else {"stream": stream_handle(stream) or 1}
    tensor = dlpack.import_capsule(array.__dlpack__(**options))
    return Foreign(
        (array, tensor.owner),
        tensor.pointer,
        tensor.dtype,
        tensor.shape,
        tensor.strides,
        on_host,
        index,
    )


def _cuda_interface(array: Any, name: str) -> Foreign:
    interface = array.__cuda_array_interface__
    pointer, dtype = interface["data"][0], np.dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    elements = (
        dense_strides(shape)
        if strides is None
        else _element_strides(tuple(strides), dtype.itemsize, pointer, name)
    )
    return Foreign(array, pointer, dtype, shape, elements, on_host=False)


# --- Operands of one call -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Output:
    """A device array to be written, and how to hand it back in the caller's kind."""

    array: DeviceArray
    finish: Callable[[], Any]


class Operands:
    """The arrays of one call, brought to the selected device and ordered on one stream.

    The first array decides the kind of what is returned and, unless ``stream`` is given, the stream:
    the one its library works on now. Without any, results are NumPy's. ``label`` opens the messages of
    errors.
    """

    def __init__(self, label: str, first: Any, stream: object) -> None:
        self.label = label
        self.first = first
        self.device: Device = device()
        self.stream = stream
        if stream is None and first is not None and not self.device.is_host:
            self.stream = current_stream(first)
        self._taken: dict[str, Foreign] = {}  # memory that nothing else may be written to

    def read(self, array: Any, name: str) -> DeviceArray:
        """An input on the device; copied only when it is in the host's memory and the device is not."""
        foreign = describe(array, name, self.stream)
        self._taken[name] = foreign
        if foreign.on_host and not self.device.is_host:
            return to_device(foreign.host, self.stream)
        self._order(array)
        return self._adopt(foreign, name, read_only=True)

    def write(self, out: Any, tensor: TensorType, name: str, strides: Shape) -> Output:
        """Where output ``name`` goes: into ``out``, or a new array of the first one's kind.

        ``strides`` is the layout of a new array. Raises the errors of an ``out`` that does not fit.
        """
        if out is not None:
            TensorType.of(out, f"{self.label}: out")
        target = self._empty(tensor, strides) if out is None else out
        foreign = describe(target, "out", self.stream)
        if out is not None:
            self._check(out, foreign, tensor, name)
        self._taken[name] = foreign
        if foreign.on_host == self.device.is_host:
            if out is not None:
                self._order(out)
            return Output(self._adopt(foreign, "out"), lambda: target)
        staged = empty(tensor.shape, foreign.dtype, stream=self.stream)

        def copy_back() -> Any:
            foreign.host[...] = staged.to_host()
            return target

        return Output(staged, copy_back)

    def workspace(self, given: Any, nbytes: int) -> DeviceArray | None:
        """``nbytes`` of memory for the kernels' own use, in ``given`` where there is one."""
        if nbytes == 0:
            return None
        if given is None:
            return empty((nbytes,), np.uint8, stream=self.stream)
        foreign = describe(given, "workspace", self.stream)
        self._refuse_overlap(foreign, "workspace", "a workspace")
        array = self._adopt(foreign, "workspace")
        size = array.size * array.dtype.itemsize
        if size < nbytes or not array.is_dense or array.pointer % WORKSPACE_ALIGNMENT:
            raise ShapeError(
                f"{self.label}: workspace has {size} bytes at address {array.pointer:#x}; pass a dense "
                f"array of {nbytes} bytes, aligned to {WORKSPACE_ALIGNMENT}"
            )
        return array

    def _check(self, out: Any, foreign: Foreign, tensor: TensorType, name: str) -> None:
        if foreign.dtype != _numpy_dtype(tensor.dtype):
            raise DTypeError(
                f"{self.label}: out is {foreign.dtype.name}, but {name} is {tensor.dtype}; "
                f"pass an out of dtype {tensor.dtype}"
            )
        if foreign.shape != tensor.shape:
            raise ShapeError(
                f"{self.label}: out has shape {foreign.shape}, but {name} has {tensor.shape}; "
                f"pass an out of shape {tensor.shape}"
            )
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise LayoutError(f"{self.label}: out is read-only; pass a writable array")
        check_output_layout(name, foreign.shape, foreign.strides)
        self._refuse_overlap(foreign, "out", f"an out for {name}")

    def _refuse_overlap(self, written: Foreign, what: str, remedy: str) -> None:
        for other, foreign in self._taken.items():
            if overlap(written, foreign):
                raise LayoutError(
                    f"{self.label}: {what} shares memory with {other}; pass {remedy} that shares none"
                )

    def _order(self, array: Any) -> None:
        """Let our stream wait for the one that ``array`` was written on."""
        written_on = array.stream if isinstance(array, DeviceArray) else current_stream(array)
        if not self.device.is_host:
            self.device.wait_for(written_on, self.stream)

    def _adopt(self, foreign: Foreign, name: str, read_only: bool = False) -> DeviceArray:
        if foreign.on_host != self.device.is_host or foreign.index != self.device.index:
            place = "the host" if foreign.on_host else f"CUDA device {foreign.index}"
            raise DeviceError(
                f"{name} is in the memory of {place}, but kernels run on {self.device.name}; "
                f"move {name} there, or set DNNCANON_DEVICE"
            )
        return DeviceArray(
            self.device,
            foreign.owner,
            foreign.pointer,
            foreign.dtype,
            foreign.shape,
            foreign.strides,
            self.stream,
            read_only,
        )

    def _empty(self, tensor: TensorType, strides: Shape) -> Any:
        """A new array of the first one's kind, in its place."""
        if self.first is None or isinstance(self.first, np.ndarray):
            return _numpy_empty(tensor, strides)
        if _library(self.first) == "torch":
            torch = sys.modules["torch"]
            return torch.empty_strided(
                tensor.shape,
                strides,
                dtype=getattr(torch, tensor.dtype),
                device=self.first.device,
            )
        array = empty(tensor.shape, _numpy_dtype(tensor.dtype), strides, self.stream)
        return array if isinstance(self.first, DeviceArray) else self._export(array)

    def _export(self, array: DeviceArray) -> Any:
        """``array`` as one of the first one's library, through DLPack, else unchanged."""
        namespace = getattr(self.first, "__array_namespace__", None)
        library = namespace() if namespace else sys.modules.get(_library(self.first))
        from_dlpack = getattr(library, "from_dlpack", None)
        if from_dlpack is not None:
            return from_dlpack(array)
        if _library(self.first) in ("numba", "numba_cuda"):
            from numba import cuda

            return cuda.as_cuda_array(array, sync=False)
        return array


def _numpy_empty(tensor: TensorType, strides: Shape) -> _Array:
    """Dense in the order of ``strides``."""
    order = sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))
    memory: _Array = np.empty([tensor.shape[dim] for dim in order], _numpy_dtype(tensor.dtype))
    return memory.transpose(np.argsort(order))


def overlap(a: Foreign, b: Foreign) -> bool:
    """Whether two arrays share a byte; True where that is too hard to decide."""
    if (a.on_host, a.index) != (b.on_host, b.index):
        return False
    first, second = _addresses(a), _addresses(b)
    if not np.may_share_memory(first, second):
        return False
    try:
        return np.shares_memory(first, second, max_work=_OVERLAP_EFFORT)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _addresses(array: Foreign) -> _Array:
    """A NumPy array with the addresses of ``array``; its memory, perhaps a GPU's, is never touched."""
    words = np.dtype(f"u{array.dtype.itemsize}")
    return host_view(array.pointer, words, array.shape, array.strides)
