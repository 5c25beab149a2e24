"""Zeros behind the ends of padded sequences, where a product of all rows has left numbers.

0 times Inf is NaN: though rows of gradients behind the ends are 0, their products need not be.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_plan import RowArray
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.spec.rnn_problem import RnnProblem

THREADS, BLOCKS = 256, 2048

_int64 = types.int64


def clear_padding(
    p: RnnProblem,
    y: RowArray,
    columns: int,
    table: DeviceArray,
    stream: object,
    *,
    directions: int = 1,
) -> None:
    """y[d, t, b] = 0 from the length of sequence b on; ``table`` is that of padded sequences."""
    rows = p.steps * p.batch
    size = directions * rows * columns
    args = (y.array, table, (size, rows, p.batch, columns), y.place)
    grid = min(BLOCKS, blocks_for(size, THREADS))
    launch(_clearing(p.dtype), grid, THREADS, args, stream=stream)


@cache
def _clearing(dtype: str) -> Kernel:
    """The kernel. Launch with THREADS threads."""
    from_sum, zero = ELEMENTS[dtype].from_sum, ELEMENTS[dtype].sum(0)

    @kernel
    def rnn_clearing(y: Any, table: Any, sizes: Any, place: Any) -> None:
        size, rows, batch, columns = sizes
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < size:
            line, column = position // columns, position % columns
            d, row = line // rows, line % rows
            t, b = row // batch, row % batch
            if t >= table[b]:
                here = place[0] + d * place[1] + t * place[2] + b * place[3]
                y[_int64(here + column * place[4])] = from_sum(zero)
            position += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return rnn_clearing
