"""Which device runs the kernels: DNNCANON_DEVICE = auto, cuda, emulator, emulator-check, emulator-profile."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np

from dnncanon.gpu.runtime.errors import DeviceError

Mode = Literal["fast", "check", "profile"]

VARIABLE = "DNNCANON_DEVICE"


class Device(Protocol):
    """Where arrays live and kernels run. Pointers are addresses in the device's memory."""

    @property
    def name(self) -> str:
        """What it is, in words."""

    @property
    def is_host(self) -> bool:
        """Whether its memory is the host's, so that NumPy arrays need no copy."""

    @property
    def index(self) -> int:
        """Its ordinal among the devices of its kind."""

    def allocate(self, nbytes: int) -> tuple[object, int]:
        """Uninitialised memory: its owner, which keeps it alive, and its address."""

    def upload(self, pointer: int, source: np.ndarray[Any, Any], stream: object) -> None:
        """Copy a C-contiguous array to ``pointer``; it may be reused when this returns."""

    def download(self, pointer: int, target: np.ndarray[Any, Any], stream: object) -> None:
        """Copy from ``pointer`` into a C-contiguous array and wait for it."""

    def flat(
        self, pointer: int, count: int, storage: np.dtype[Any], *, read_only: bool = False
    ) -> Any:
        """The kernel argument for ``count`` storage words at ``pointer``."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability for which kernels are compiled."""

    @property
    def multiprocessors(self) -> int:
        """How many there are: so many blocks run at the same time, however much each takes."""

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that a block has at most."""

    def tensor_map(self, pointer: int, layout: Any) -> Any:
        """The kernel argument for a tensor map: the first element's address and a ``TensorLayout``."""

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: tuple[Any, ...],
        *,
        shared_bytes: int,
        stream: object,
    ) -> None:
        """Run a kernel, as ``runtime.launch`` says."""

    def bind(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: tuple[Any, ...],
        *,
        shared_bytes: int,
    ) -> Callable[[object], None]:
        """A launch as a function of the stream, compiled and with its arguments marshalled.

        ``args`` hold what :meth:`flat` returns in place of arrays.
        """

    def graph(self, launches: Sequence[Callable[[object], None]]) -> Callable[[object], None]:
        """Bound launches in order as one, which is a function of the stream."""

    def wait_for(self, producer: object, consumer: object) -> None:
        """Make stream ``consumer`` wait for what is queued on stream ``producer``."""

    def synchronize(self) -> None:
        """Wait until everything queued has run."""

    def versions(self) -> dict[str, str]:
        """Versions of what compiles and runs the kernels."""


@cache
def has_gpu() -> bool:
    """Whether a CUDA GPU with a working driver is there."""
    from numba import cuda

    return bool(cuda.is_available())


def device() -> Device:
    """The device that DNNCANON_DEVICE selects now; DeviceError in a sentence where it is not there."""
    return _instead[-1] if _instead else _device(os.environ.get(VARIABLE) or "auto")


_instead: list[Device] = []


@contextmanager
def using(chosen: Device) -> Iterator[None]:
    """Within the block ``chosen`` is the device, whatever DNNCANON_DEVICE says."""
    _instead.append(chosen)
    try:
        yield
    finally:
        _instead.pop()


@cache
def _device(choice: str) -> Device:
    try:
        make = _CHOICES[choice]
    except KeyError:
        known = ", ".join(_CHOICES)
        raise DeviceError(f"{VARIABLE}={choice!r} is unknown; set it to one of {known}") from None
    return make()


def _auto() -> Device:
    if has_gpu():
        return _cuda()
    print(
        "dnncanon: no CUDA GPU found, so GPU kernels run on the CPU emulator "
        f"({VARIABLE}=emulator chooses it silently).",
        file=sys.stderr,
    )
    return _device("emulator")


def _cuda() -> Device:
    if not has_gpu():
        raise DeviceError(
            f"{VARIABLE}=cuda, but no CUDA GPU with a working driver was found; "
            f"set {VARIABLE}=emulator to run the kernels on the CPU"
        )
    from dnncanon.gpu.runtime.cuda_device import CudaDevice

    return CudaDevice()


def _emulator(mode: Mode) -> Callable[[], Device]:
    def make() -> Device:
        from dnncanon.gpu.runtime.emulated_device import EmulatedDevice

        return EmulatedDevice(mode)

    return make


_CHOICES: dict[str, Callable[[], Device]] = {
    "auto": _auto,
    "cuda": _cuda,
    "emulator": _emulator("fast"),
    "emulator-check": _emulator("check"),
    "emulator-profile": _emulator("profile"),
}
