"""What kernels are written with: CUDA's names, Numba's types, device functions.

Kernels import this instead of numba.cuda. numba-cuda is in maintenance mode; a successor replaces it
here, in ``cuda_device`` and in ``ptx``.
"""

import hashlib
import linecache
from collections.abc import Callable
from typing import Any, TypeVar

from numba import cuda
from numba.cuda import types

__all__ = ["Function", "cuda", "device_function", "generated", "types"]

Function = TypeVar("Function", bound=Callable[..., Any])


def device_function(function: Function) -> Function:
    """Decorate a function that kernels call.

    LLVM inlines it into them. Numba would do so too, but for twice the time to compile a kernel, and with
    the same PTX but for a few instructions.
    """
    return cuda.jit(device=True)(function)


def generated(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``source`` defines, its names being those of ``scope``.

    For kernels whose number of operands varies: Numba has no star in calls that it inlines. The source
    is kept where tracebacks and the emulator's reports look for it, under a name that is the same in
    every process.
    """
    name = f"<generated {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    made: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope, made)
    (function,) = made.values()
    return function
