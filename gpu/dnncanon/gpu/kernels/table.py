"""Small tables of integers on the device, such as lengths of sequences: written by kernels' arguments.

What the host knows of a call has to be there again each time a plan or a graph of it runs, and for every set
of arrays that it is bound to. Arguments of launches are kept by all of them; so a table is a kernel's argument,
and memory of the workspace that it is written to.
"""

from functools import cache

from dnncanon.gpu.runtime import DeviceArray, Kernel, kernel, launch
from dnncanon.gpu.runtime.device_code import generated

NUMBERS = 64
"""Of one launch: 512 bytes of arguments, of 4096 that there may be."""


def write_table(table: DeviceArray, numbers: tuple[int, ...], *, stream: object = None) -> None:
    """table[i] = numbers[i], of a dense array of int64."""
    for first in range(0, len(numbers), NUMBERS):
        some = numbers[first : first + NUMBERS]
        padded = some + (0,) * (NUMBERS - len(some))
        launch(_writing(), 1, 1, (table, padded, first, len(some)), stream=stream)


@cache
def _writing() -> Kernel:
    """One thread writes all: an argument that it would choose by its index would have to lie in memory."""
    lines = [
        f"    if {k} < count:\n        table[first + {k}] = numbers[{k}]" for k in range(NUMBERS)
    ]
    source = "\n".join(["def table_writing(table, numbers, first, count):", *lines])
    return kernel(generated(source, {}))
