"""The CPU emulator as a device: its memory is the host's, its launches are synchronous."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np

from dnncanon.gpu import emulator
from dnncanon.gpu.emulator.compiler.acquire import COMPUTE_CAPABILITY
from dnncanon.gpu.emulator.compiler.lowering import SHARED_LIMIT
from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.runtime.memory import host_view
from dnncanon.gpu.runtime.selection import Mode
from dnncanon.gpu.runtime.tensor_map import TensorLayout

ALIGNMENT = 256
"""Of allocations, as the CUDA driver's; kernels and profiles may count on it."""

MULTIPROCESSORS = 132
"""As of an H100 or H200, for algorithms whose blocks wait for one another."""


class EmulatedDevice:
    """Runs kernels through :mod:`dnncanon.gpu.emulator` in one of its modes."""

    is_host = True
    index = 0
    capability = COMPUTE_CAPABILITY
    multiprocessors = MULTIPROCESSORS
    shared_limit = SHARED_LIMIT

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._recordings: list[list[emulator.LaunchReport]] = []
        self.name = "CPU emulator" if mode == "fast" else f"CPU emulator ({mode})"

    def allocate(self, nbytes: int) -> tuple[object, int]:
        owner = np.empty(nbytes + ALIGNMENT, np.uint8)
        return owner, -(-owner.ctypes.data // ALIGNMENT) * ALIGNMENT

    def upload(self, pointer: int, source: np.ndarray[Any, Any], stream: object) -> None:
        host_view(pointer, source.dtype, source.shape)[...] = source

    def download(self, pointer: int, target: np.ndarray[Any, Any], stream: object) -> None:
        target[...] = host_view(pointer, target.dtype, target.shape)

    def flat(
        self, pointer: int, count: int, storage: np.dtype[Any], *, read_only: bool = False
    ) -> Any:
        words = host_view(pointer, storage, (count,))
        if read_only:
            words.flags.writeable = False
        return words

    def tensor_map(self, pointer: int, layout: TensorLayout) -> Any:
        words = host_view(pointer, np.dtype(f"u{layout.itemsize}"), layout.extents, layout.strides)
        return emulator.TensorMap(words, layout.box, layout.swizzle)

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
        self.bind(kernel, grid, block, arguments, shared_bytes=shared_bytes)(stream)

    def bind(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: tuple[Any, ...],
        *,
        shared_bytes: int,
    ) -> Callable[[object], None]:
        def run(stream: object) -> None:
            report = emulator.launch(
                kernel.function,
                grid,
                block,
                args,
                shared_bytes=shared_bytes,
                fastmath=kernel.fastmath,
                mode=self.mode,
            )
            for recording in self._recordings:
                recording.append(report)

        return run

    def graph(self, launches: Sequence[Callable[[object], None]]) -> Callable[[object], None]:
        def run(stream: object) -> None:
            for launch in launches:
                launch(stream)

        return run

    @contextmanager
    def recording(self) -> Iterator[list[emulator.LaunchReport]]:
        """The reports of the launches within the block, in order, as they come."""
        launches: list[emulator.LaunchReport] = []
        self._recordings.append(launches)
        try:
            yield launches
        finally:
            self._recordings.remove(launches)

    def wait_for(self, producer: object, consumer: object) -> None:
        """Launches are synchronous: there is nothing to wait for."""

    def synchronize(self) -> None:
        """Launches are synchronous: there is nothing to wait for."""

    def versions(self) -> dict[str, str]:
        return {name: metadata.version(name) for name in ("numba-cuda", "numba", "llvmlite")}
