"""Kernels on a CUDA GPU: compiled once and kept on disk, and launched with arguments marshalled before.

numba-cuda's own cache is not used: it goes by the date of the file that a kernel is written in, whatever the
kernel refers to elsewhere, and it refuses kernels for which it links other files, as it does for its float16.
Here a kernel is named by its fingerprint, as on the emulator, in the same directory, and what is kept is its
cubin, in which all is linked already.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from cuda.bindings import nvjitlink
from numba import cuda
from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda.cudadrv import driver

from dnncanon.gpu.emulator.compiler.cache import remembered
from dnncanon.gpu.emulator.compiler.fingerprint import fingerprint
from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.runtime.streams import stream_handle

_COOPERATIVE = "is_cooperative" if numba_dispatcher.CUDA_CORE_GE_1_0 else "cooperative_launch"
"""What cuda.core calls a launch whose blocks may wait for one another, since version 1.0 and before."""


def dispatcher_of(kernel: Kernel) -> Any:
    """numba-cuda's dispatcher of a kernel, which looks into our cache before it compiles."""
    options: dict[str, Any] = {"fastmath": kernel.fastmath}
    if kernel.launch_bounds is not None:
        options["launch_bounds"] = kernel.launch_bounds
    dispatcher = cuda.jit(kernel.function, **options)
    dispatcher._cache = KernelCache(dispatcher)
    return dispatcher


class KernelCache:
    """The compiled kernels of one dispatcher, on disk where DNNCANON_CACHE_DIR names a directory.

    It stands where a dispatcher has numba-cuda's cache, and has all that it is asked for.
    """

    def __init__(self, dispatcher: Any) -> None:
        self._function, self._options = dispatcher.py_func, dispatcher.targetoptions

    def load_overload(self, sig: tuple[Any, ...], target_context: object) -> Any:
        """The kernel for arguments of these types, compiled now if it never was."""
        states = remembered(lambda: self._name(sig), lambda: self._compile(sig))
        return numba_dispatcher._Kernel._rebuild(**states)

    def _name(self, sig: tuple[Any, ...]) -> str:
        options = [f"{name}={value!r}" for name, value in sorted(self._options.items())]
        architecture = cuda.get_current_device().compute_capability
        linker = nvjitlink.version()
        return fingerprint(
            self._function, sig, f"sm {architecture}", f"nvJitLink {linker}", *options
        )

    def _compile(self, sig: tuple[Any, ...]) -> dict[str, Any]:
        kernel = numba_dispatcher._Kernel(self._function, sig, **self._options)
        library = kernel._codelibrary
        library.get_cubin()
        library._linking_files = set()  # they are in the cubin
        states: dict[str, Any] = kernel._reduce_states()
        return states


class BoundLaunch:
    """A launch of a compiled kernel as a function of the stream: nothing is left to look up or marshal.

    ``args`` must stay alive as long as this does, so they are kept.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        shared_bytes: int,
    ) -> None:
        self._args = args
        self._kernel = kernel._codelibrary.get_cufunc().kernel
        self._config = numba_dispatcher.LaunchConfig(
            grid=grid, block=block, shmem_size=shared_bytes, **{_COOPERATIVE: kernel.cooperative}
        )
        self._words = _marshalled(kernel, args)

    def __call__(self, stream: object) -> None:
        numba_dispatcher.launch(core_stream(stream), self._config, self._kernel, *self._words)


def _marshalled(kernel: Any, args: Sequence[Any]) -> list[Any]:
    """Arguments as the driver takes them: addresses, extents and numbers."""
    words: list[Any] = []
    for argument_type, value in zip(kernel.argument_types, args, strict=True):
        kernel._prepare_args(argument_type, value, None, [], words)
    return words


def core_stream(stream: object) -> Any:
    """``stream`` as cuda.core's."""
    return _core_stream(stream_handle(stream))


@lru_cache(maxsize=64)
def _core_stream(handle: int) -> Any:
    return driver.ExperimentalStream.from_handle(handle)


def captured(launches: Sequence[Callable[[object], None]]) -> Callable[[object], None]:
    """A CUDA graph of the launches in order, as a function of the stream."""
    stream = cuda.stream()
    builder = driver.ExperimentalStream.from_handle(int(stream.handle.value)).create_graph_builder()
    builder.begin_building()
    for launch in launches:
        launch(builder)
    graph = builder.end_building().complete()
    return lambda stream: graph.launch(core_stream(stream))
