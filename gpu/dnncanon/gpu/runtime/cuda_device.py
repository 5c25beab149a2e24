"""A CUDA GPU as a device, through numba-cuda. The one user of numba-cuda's host interface."""

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import devicearray, driver

from dnncanon.gpu.runtime import cuda_tensor_map
from dnncanon.gpu.runtime.cuda_kernels import BoundLaunch, captured, dispatcher_of
from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.gpu.runtime.streams import stream_handle
from dnncanon.gpu.runtime.tensor_map import TensorLayout

STATIC_LIMIT = 48 * 1024
"""Bytes of dynamic shared memory that a launch may have without asking for more."""


class CudaDevice:
    """Compiles kernels when they are first launched and keeps them; launches are asynchronous."""

    is_host = False

    def __init__(self) -> None:
        current = cuda.get_current_device()
        name = current.name
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self.index = int(current.id)
        self.capability = (int(current.compute_capability[0]), int(current.compute_capability[1]))
        self.multiprocessors = int(current.MULTIPROCESSOR_COUNT)
        self.shared_limit = int(current.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self._dispatchers: dict[Kernel, Any] = {}
        self._shared_bytes: dict[tuple[Kernel, Any], int] = {}

    def allocate(self, nbytes: int) -> tuple[object, int]:
        owner = cuda.device_array(max(1, nbytes), np.uint8)
        return owner, int(owner.device_ctypes_pointer.value)

    def upload(self, pointer: int, source: np.ndarray[Any, Any], stream: object) -> None:
        words = source.view(storage_of(source.dtype)).reshape(-1)
        queue = _stream(stream)
        self.flat(pointer, words.size, words.dtype).copy_to_device(words, stream=queue)
        queue.synchronize()  # until then the source must not change

    def download(self, pointer: int, target: np.ndarray[Any, Any], stream: object) -> None:
        words = target.view(storage_of(target.dtype)).reshape(-1)
        queue = _stream(stream)
        self.flat(pointer, words.size, words.dtype).copy_to_host(words, stream=queue)
        queue.synchronize()

    def flat(
        self, pointer: int, count: int, storage: np.dtype[Any], *, read_only: bool = False
    ) -> Any:
        memory = driver.MemoryPointer(
            cuda.current_context(),
            driver.binding.CUdeviceptr(pointer),
            size=count * storage.itemsize,
            owner=self,
        )
        return devicearray.DeviceNDArray(
            shape=(count,), strides=(storage.itemsize,), dtype=storage, gpu_data=memory
        )

    def tensor_map(self, pointer: int, layout: TensorLayout) -> Any:
        return cuda_tensor_map.descriptor(pointer, layout)

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
        dispatcher = self._dispatcher(kernel)
        arguments = tuple(getattr(arg, "argument", arg) for arg in args)
        if shared_bytes > STATIC_LIMIT:
            self._opt_in(kernel, dispatcher, arguments, shared_bytes)
        configured = _configure(dispatcher, grid, block, stream_handle(stream), shared_bytes)
        configured(*arguments)

    def bind(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: tuple[Any, ...],
        *,
        shared_bytes: int,
    ) -> Callable[[object], None]:
        dispatcher = self._dispatcher(kernel)
        if shared_bytes > STATIC_LIMIT:
            self._opt_in(kernel, dispatcher, args, shared_bytes)
        compiled = dispatcher.compile(tuple(map(dispatcher.typeof_pyval, args)))
        return BoundLaunch(compiled, grid, block, args, shared_bytes)

    def graph(self, launches: Sequence[Callable[[object], None]]) -> Callable[[object], None]:
        return captured(launches)

    def _dispatcher(self, kernel: Kernel) -> Any:
        if kernel not in self._dispatchers:
            self._dispatchers[kernel] = dispatcher_of(kernel)
        return self._dispatchers[kernel]

    def _opt_in(
        self, kernel: Kernel, dispatcher: Any, arguments: tuple[Any, ...], shared_bytes: int
    ) -> None:
        """Allow a kernel more dynamic shared memory than 48 KiB, which numba-cuda does not do."""
        types = tuple(dispatcher.typeof_pyval(argument) for argument in arguments)
        if self._shared_bytes.get((kernel, types), 0) >= shared_bytes:
            return
        function = dispatcher.compile(types)._codelibrary.get_cufunc()
        attribute = driver.binding.CUfunction_attribute
        driver.driver.cuKernelSetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            shared_bytes,
            function.handle,
            function.device.id,
        )
        self._shared_bytes[kernel, types] = shared_bytes

    def wait_for(self, producer: object, consumer: object) -> None:
        before, after = stream_handle(producer), stream_handle(consumer)
        if before == after:
            return
        written = cuda.event(timing=False)
        written.record(_stream(before))
        written.wait(_stream(after))

    def synchronize(self) -> None:
        cuda.synchronize()

    def versions(self) -> dict[str, str]:
        runtime = ".".join(map(str, cuda.runtime.get_version()))
        packages = {name: metadata.version(name) for name in ("numba-cuda", "numba", "llvmlite")}
        return {**packages, "CUDA runtime": runtime}


@lru_cache(maxsize=1024)
def _configure(
    dispatcher: Any,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    handle: int,
    shared_bytes: int,
) -> Any:
    """A launch without its arguments. Small problems make small grids: no warning about that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dispatcher[grid, block, _stream(handle), shared_bytes]


def _stream(stream: object) -> Any:
    """``stream`` as numba-cuda's."""
    handle = stream_handle(stream)
    return cuda.external_stream(handle) if handle else cuda.default_stream()
