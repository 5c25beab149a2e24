"""The second step where the depth of a product is split: parts of sums are added, in order, and finished."""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.epilogue import finisher
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.gpu.runtime.device_index import digits_of, places

_int64 = types.int64


@cache
def sum_parts(sum_dtype: str, dtype: str) -> Kernel:
    """The kernel that writes ``total`` elements of y, of each of which there are ``splits`` parts.

    ``extents`` are those of a part, in C order; ``origins`` and ``strides`` those of y, C and bias along them.
    """
    finish, number = finisher(sum_dtype, dtype, dtype), words.number(sum_dtype)

    @kernel
    def sum_parts_(
        parts: Any,
        y: Any,
        c: Any,
        bias: Any,
        splits: Any,
        total: Any,
        extents: Any,
        origins: Any,
        strides: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < total:
            value = number(0)
            for split in range(splits):
                value = number(value + parts[split * total + position])
            at = places(digits_of(position, extents), strides, origins)
            y[at[0]] = finish(value, at[1], at[2], (c, bias, codes, scalars))
            position += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return sum_parts_
