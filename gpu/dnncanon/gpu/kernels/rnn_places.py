"""Where a thread of a recurrent step finds its numbers: places in states, biases and rows, blocks of gates.

Kernels take an array's place as a tuple, its origin and strides; ``here`` is (direction, sequence, unit, …).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.runtime.device_code import device_function, generated, types

_int64 = types.int64

Function = Callable[..., Any]


def place_of(array: DeviceArray) -> tuple[int, ...]:
    """As kernels take it."""
    return (array.origin, *array.strides)


def place_within(whole: DeviceArray, part: DeviceArray) -> tuple[int, ...]:
    """The place of a view of an array, in what kernels receive of that array."""
    return ((part.pointer - whole.lowest) // whole.dtype.itemsize, *part.strides)


@device_function
def bias_at(place: Any, here: Any) -> Any:
    return place[0] + here[0] * place[1] + here[2] * place[2]


@device_function
def state_at(place: Any, here: Any) -> Any:
    return _int64(place[0] + here[0] * place[1] + here[1] * place[2] + here[2] * place[3])


@device_function
def row_at(place: Any, here: Any, t: Any) -> Any:
    """With t as ``Rows`` has it."""
    row = place[0] + here[0] * place[1] + t * place[2] + here[1] * place[3]
    return _int64(row + here[2] * place[4])


def each_block(function: Function, blocks: Iterable[int], arguments: int, nothing: Any) -> Function:
    """f(a0, a1, …) -> (function(a0, a1, …, block) for each block); of no blocks (nothing,)."""
    names = ", ".join(f"a{k}" for k in range(arguments))
    calls = "".join(f"function({names}, int64({block})), " for block in blocks) or "nothing,"
    scope = {"function": function, "int64": _int64, "nothing": nothing}
    return device_function(generated(f"def each({names}):\n    return ({calls})", scope))


def store_blocks(blocks: Sequence[int]) -> Function:
    """f(gates, at, jump, kept): of a tuple each number to its block."""
    lines = [f"    gates[int64(at + {block} * jump)] = kept[{k}]" for k, block in enumerate(blocks)]
    source = "\n".join(["def keep(gates, at, jump, kept):", *lines, "    return"])
    return device_function(generated(source, {"int64": _int64}))
