"""A device that runs no kernel but notes each launch: how the library says which kernels it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.gpu.emulator.launching.arguments import argument_type
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.runtime.selection import using
from dnncanon.gpu.runtime.tensor_map import TensorLayout


@dataclass(frozen=True)
class Launched:
    """What is compiled for a launch, and what of the launch decides over occupancy.

    ``signature`` holds the Numba types of the arguments. Kernels are told apart by identity: factories
    make one object for each set of constants.
    """

    kernel: Kernel
    signature: tuple[Any, ...]
    threads: int
    dynamic_shared_bytes: int


class RecordingDevice(EmulatedDevice):
    """The emulator's memory without the emulator; ``launches`` holds what would have run, in order."""

    def __init__(self) -> None:
        super().__init__("fast")
        self.name = "recording of launches"
        self.launches: list[Launched] = []

    def flat(
        self, pointer: int, count: int, storage: np.dtype[Any], *, read_only: bool = False
    ) -> Any:
        return super().flat(
            pointer, count, storage
        )  # a GPU has no types for memory to be read only

    def tensor_map(self, pointer: int, layout: TensorLayout) -> Any:
        return np.zeros(128, np.uint8)

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
        signature = tuple(argument_type(getattr(arg, "argument", arg)) for arg in args)
        x, y, z = block
        self.launches.append(Launched(kernel, signature, x * y * z, shared_bytes))


@contextmanager
def recording() -> Iterator[list[Launched]]:
    """The launches of all calls within the block, none of which computes anything."""
    device = RecordingDevice()
    with using(device):
        yield device.launches
