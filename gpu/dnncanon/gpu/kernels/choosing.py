"""One device function out of many, chosen at run time.

A kernel for each of many rare functions would cost compile time and gain little: the choice is the same for
all threads, so that a warp takes one branch, and memory is what such kernels wait for.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dnncanon.gpu.runtime.device_code import device_function, generated

Function = Callable[..., Any]


def chosen(functions: Mapping[str, Function], arguments: int) -> tuple[Function, dict[str, int]]:
    """f(a0, a1, …, code) for functions of so many arguments, and the code of each of them."""
    names = ", ".join(f"a{k}" for k in range(arguments))
    lines = [f"def chosen({names}, code):"]
    lines += [f"    if code == {k}:\n        return f{k}({names})" for k in range(len(functions))]
    lines += [f"    return f0({names})"]
    scope = {f"f{k}": function for k, function in enumerate(functions.values())}
    function = device_function(generated("\n".join(lines), scope))
    return function, {name: code for code, name in enumerate(functions)}
