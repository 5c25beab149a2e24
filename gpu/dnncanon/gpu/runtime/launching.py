"""The launch seam: a kernel is a plain Python function until the selected device compiles it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

from dnncanon.gpu.runtime.selection import device

Function = Callable[..., None]
Extents = int | tuple[int, ...]

MAX_GRID = 2**31 - 1
"""The most blocks of a launch along x; y and z take 65,535 only, so kernels here use x alone."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel's Python function with its compile options.

    ``fastmath`` allows approximations and flushed subnormals. ``launch_bounds`` is (threads of a
    block, least resident blocks): what registers are limited for on a GPU.
    """

    function: Function
    fastmath: bool = False
    launch_bounds: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__


@overload
def kernel(function: Function, /) -> Kernel: ...
@overload
def kernel(
    *, fastmath: bool = False, launch_bounds: tuple[int, int] | None = None
) -> Callable[[Function], Kernel]: ...
def kernel(
    function: Function | None = None,
    /,
    *,
    fastmath: bool = False,
    launch_bounds: tuple[int, int] | None = None,
) -> Kernel | Callable[[Function], Kernel]:
    """Decorate a Python function as a kernel; nothing is compiled before its first launch."""
    if function is not None:
        return Kernel(function)
    return lambda function: Kernel(function, fastmath, launch_bounds)


def launch(
    kernel: Kernel,
    grid: Extents,
    block: Extents,
    args: tuple[Any, ...],
    *,
    shared_bytes: int = 0,
    stream: object = None,
) -> None:
    """Run ``kernel`` on the selected device: the one way in which any kernel is started.

    ``grid`` and ``block`` count blocks and threads, as an int or up to three. ``args`` holds
    DeviceArrays, of which the kernel receives the memory as a flat array of storage words, numbers
    and tuples of ints. ``shared_bytes`` is dynamic shared memory; more than 48 KiB is opted into.
    On CUDA the launch is queued on ``stream``; the emulator has finished when this returns.
    """
    device().launch(
        kernel, _three(grid), _three(block), args, shared_bytes=shared_bytes, stream=stream
    )


def blocks_for(items: int, per_block: int) -> int:
    """Blocks along x for ``items`` of work; where the grid cannot be that large, kernels loop."""
    return max(1, min(-(-items // per_block), MAX_GRID))


def _three(extents: Extents) -> tuple[int, int, int]:
    given = (extents,) if isinstance(extents, int) else extents
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z
