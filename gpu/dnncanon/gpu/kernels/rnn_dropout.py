"""Dropout between the layers of a recurrent network: the words of all layers are one stream.

Element (t, b, c) of the input of layer l has word (l − 1, t, b, c) of [L − 1, S, B, C] in C order, whether rows
are packed or not; so the gradient, which goes through the same mask, finds it by itself.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels import philox
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_plan import PACKED, RowArray, Sequences
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.dropout import threshold
from dnncanon.spec.rnn_problem import RnnProblem

THREADS, BLOCKS = 256, 2048

_int64, _uint64 = types.int64, types.uint64


def drop(
    p: RnnProblem, layer: int, x: RowArray, y: RowArray, table: DeviceArray, stream: object
) -> None:
    """y = x / (1 − dropout) where it is kept, else 0, between layers ``layer`` − 1 and ``layer``."""
    columns = p.layer_width
    size = p.rows * columns
    first = (layer - 1) * p.steps * p.batch * columns
    args = (
        x.array,
        y.array,
        table,
        (size, columns, p.batch, p.steps, first, Sequences.of(p).kind),
        (x.place, y.place),
        philox.arguments(p.stream),
        threshold(p.dropout),
        1.0 / (1.0 - p.dropout) if p.dropout < 1 else 0.0,
    )
    grid = min(BLOCKS, blocks_for(size, THREADS))
    launch(_dropping(p.dtype), grid, THREADS, args, stream=stream)


@cache
def _dropping(dtype: str) -> Kernel:
    """The kernel. Launch with THREADS threads."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum, zero = element.sum, element.to_sum, element.from_sum, element.sum(0)

    @kernel
    def rnn_dropping(
        x: Any, y: Any, table: Any, sizes: Any, places: Any, stream: Any, least: Any, scale: Any
    ) -> None:
        size, columns, batch, steps, first, kind = sizes
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < size:
            row, column = position // columns, position % columns
            t = step_of_row(row, batch, steps, table) if kind == PACKED else row // batch
            begin = table[table.size - steps + t] if kind == PACKED else t * batch
            b = row - begin
            index = first + (t * batch + b) * columns + column
            seed, subsequence, offset = stream
            block = philox.block(seed, subsequence, offset + (index >> 2))
            at = begin if kind == PACKED else t
            value = zero
            if philox.word(block, index) >= least:
                value = to_sum(x[_place(places[0], at, b, column)]) * number(scale)
            y[_place(places[1], at, b, column)] = from_sum(value)
            position += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return rnn_dropping


@device_function
def _place(place: Any, t: Any, b: Any, column: Any) -> Any:
    return _uint64(place[0] + t * place[2] + b * place[3] + column * place[4])


@device_function
def step_of_row(row: Any, batch: Any, steps: Any, table: Any) -> Any:
    """The last step whose rows begin at or before a row; ``table`` is that of packed sequences."""
    low, high = _int64(0), steps - 1
    while low < high:
        middle = (low + high + 1) // 2
        if table[table.size - steps + middle] <= row:
            low = middle
        else:
            high = middle - 1
    return low
