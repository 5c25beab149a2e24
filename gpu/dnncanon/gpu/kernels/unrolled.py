"""Loops that are unrolled for certain.

Arrays of a thread are in registers only where every index is known when the kernel is compiled. LLVM unrolls
short loops, and leaves the ones with long bodies.
"""

from collections.abc import Callable
from typing import Any

from dnncanon.gpu.runtime.device_code import device_function, generated, types

Function = Callable[..., Any]


def unrolled(function: Function, times: int, arguments: int) -> Function:
    """f(a0, a1, …) that calls ``function(a0, a1, …, turn)`` for each turn from 0 on.

    Turns are numbers of 64 bits: literals would each have a type of their own, for which numba-cuda compiles
    ``function`` anew.
    """
    names = ", ".join(f"a{k}" for k in range(arguments))
    lines = [f"def unrolled({names}):"]
    lines += [f"    function({names}, int64({turn}))" for turn in range(times)]
    scope = {"function": function, "int64": types.int64}
    return device_function(generated("\n".join(lines), scope))
