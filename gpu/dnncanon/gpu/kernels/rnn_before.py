"""h_{t−1} of all steps of a layer as a matrix of its own: what the recurrent weights were multiplied by.

Rows of hidden are that, one step further on in either direction, but for the first step of each sequence,
which has h0.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_dropout import step_of_row
from dnncanon.gpu.kernels.rnn_places import place_of
from dnncanon.gpu.kernels.rnn_plan import PACKED, WHOLE, RowArray, Sequences
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.spec.rnn_problem import RnnProblem

THREADS, BLOCKS = 256, 2048

_int64 = types.int64


def gather_before(
    p: RnnProblem,
    hidden: RowArray,
    h0: DeviceArray | None,
    y: DeviceArray,
    table: DeviceArray,
    stream: object,
) -> None:
    """y[d, row] = h before the step of that row, of hidden and h0 [D, B, Q] of a layer; 0 for padding."""
    size = p.directions * p.rows * p.out
    args = (
        hidden.array,
        h0 or y,
        y,
        table,
        (size, p.rows, p.out, p.batch, p.steps, Sequences.of(p).kind, int(h0 is not None)),
        hidden.place,
        place_of(h0) if h0 else (0, 0, 0, 0),
    )
    grid = min(BLOCKS, blocks_for(size, THREADS))
    launch(_gathering(p.dtype), grid, THREADS, args, stream=stream)


@cache
def _gathering(dtype: str) -> Kernel:
    """The kernel, of a dense y. Launch with THREADS threads."""
    element = ELEMENTS[dtype]
    to_sum, from_sum, zero = element.to_sum, element.from_sum, element.sum(0)

    @kernel
    def rnn_gathering(
        hidden: Any, h0: Any, y: Any, table: Any, sizes: Any, place: Any, first: Any
    ) -> None:
        size, rows, columns, batch, steps, kind, has_h0 = sizes
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < size:
            column, line = position % columns, position // columns
            d, row = line // rows, line % rows
            t = step_of_row(row, batch, steps, table) if kind == PACKED else row // batch
            begin = table[table.size - steps + t] if kind == PACKED else t * batch
            b = row - begin
            length = steps if kind == WHOLE else table[b]
            value = zero
            if t < length:
                before = t + 1 if d else t - 1
                if (before >= 0) & (before < length):
                    at = table[table.size - steps + before] if kind == PACKED else before
                    here = place[0] + d * place[1] + at * place[2] + b * place[3]
                    value = to_sum(hidden[_int64(here + column * place[4])])
                elif has_h0:
                    here = first[0] + d * first[1] + b * first[2] + column * first[3]
                    value = to_sum(h0[_int64(here)])
            y[position] = from_sum(value)
            position += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return rnn_gathering
