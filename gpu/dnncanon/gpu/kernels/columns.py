"""col2im: a thread adds up one cell of the image, in order, from all windows over it. Nothing is atomic."""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.windows import covering, place, position_of
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of

_int64 = types.int64


@device_function
def _cell(i: Any, o: Any, dim: Any) -> Any:
    """Which cell of window o is i, ``dim`` being that of ``windows.dims_of``."""
    return (i + dim[5] - o * dim[3]) // dim[4]


@cache
def adding(dtype: str) -> Kernel:
    """y of x, columns with the strides of image, channel, row and column."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum

    @kernel
    def col2im(
        x: Any,
        y: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
    ) -> None:
        d0, d1, d2 = dims
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, c, i0, i1, i2 = position_of(digits, channels_last)
            begin0, end0, step0 = covering(i0, d0)
            begin1, end1, step1 = covering(i1, d1)
            begin2, end2, step2 = covering(i2, d2)
            total = number(0)
            image = x_at[0] + n * x_at[1] + c * x_at[2]
            for o0 in range(begin0, end0, step0):
                f0 = _cell(i0, o0, d0)
                for o1 in range(begin1, end1, step1):
                    f1 = f0 * d1[2] + _cell(i1, o1, d1)
                    for o2 in range(begin2, end2, step2):
                        row = f1 * d2[2] + _cell(i2, o2, d2)
                        column = (o0 * d1[1] + o1) * d2[1] + o2
                        at = image + row * x_at[3] + column * x_at[4]
                        total += to_sum(x[types.uint64(at)])
            y[types.uint64(place(y_at, n, c, i0, i1, i2))] = from_sum(total)
            digits = advance(digits, step, extents)
            index += stride

    return col2im
