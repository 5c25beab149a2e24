"""What kernels are written with: CUDA's names, Numba's types, device functions.

Kernels import this instead of numba.cuda. numba-cuda is in maintenance mode; a successor replaces it
here, in ``cuda_device`` and in ``ptx``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cuda
from numba.cuda import types

__all__ = ["Function", "cuda", "device_function", "types"]

Function = TypeVar("Function", bound=Callable[..., Any])


def device_function(function: Function) -> Function:
    """Decorate a function that kernels call; it is inlined into them."""
    return cuda.jit(device=True, inline="always")(function)  # type: ignore[no-any-return]
