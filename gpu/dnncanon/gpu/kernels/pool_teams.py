"""Pooling of large windows: a team of threads gathers one output."""

import math
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.pool import counted, terms_of
from dnncanon.gpu.kernels.rows import THREADS, team_of, team_reduce, team_sum, tiles
from dnncanon.gpu.kernels.window_teams import share_of_window
from dnncanon.gpu.kernels.windows import count, place, position_of, window
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec import DTYPES

_int64, _uint64 = types.int64, types.uint64


@device_function
def first_largest(a: Any, b: Any) -> Any:
    """Of two (value, index) the larger value, or the lower index; −1 is the index of none.

    NaN is larger than every number.
    """
    value, index = a
    other, other_index = b
    larger = other > value or (other != other and value == value)
    equal = other == value or (other != other and value != value)
    if index < 0 or (other_index >= 0 and (larger or (equal and other_index < index))):
        return b
    return a


@cache
def max_forward(dtype: str, with_indices: bool) -> Kernel:
    """y and indices of the first largest cell; without indices the array for them is not touched.

    Launch with THREADS threads.
    """
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    best_of_team = team_reduce(first_largest, (number, _int64))
    least = number(-math.inf if DTYPES[dtype].is_float else DTYPES[dtype].min)

    @kernel
    def pool_max_of_teams(
        x: Any,
        y: Any,
        indices: Any,
        size: Any,
        extents: Any,
        channels_last: Any,
        width: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
        indices_at: Any,
    ) -> None:
        d0, d1, d2 = dims
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, 1)
        for tile in range(_int64(cuda.blockIdx.x), tiles(size, width), _int64(cuda.gridDim.x)):
            index = tile * (THREADS // width) + in_block
            position = digits_of(min(index, size - 1), extents)
            n, c, o0, o1, o2 = position_of(position, channels_last)
            begin0, begin1, begin2 = window(o0, d0)[0], window(o1, d1)[0], window(o2, d2)[0]
            count0, count1, count2 = (
                count(o0, d0, False),
                count(o1, d1, False),
                count(o2, d2, False),
            )
            at, step, counts = share_of_window(member, width, count0, count1, count2)
            cells = count0 * count1 * count2 if index < size else _int64(0)
            best, where = least, _int64(-1)
            for _ in range(member, cells, width):
                i0, i1, i2 = begin0 + at[0] * d0[4], begin1 + at[1] * d1[4], begin2 + at[2] * d2[4]
                value = to_sum(x[_uint64(place(x_at, n, c, i0, i1, i2))])
                cell = (i0 * d1[0] + i1) * d2[0] + i2
                best, where = first_largest((best, where), (value, cell))
                at = advance(at, step, counts)
            best, where = best_of_team((best, where), width, 1)
            if member == 0 and index < size:
                y[_uint64(place(y_at, n, c, o0, o1, o2))] = from_sum(best)
                if with_indices:
                    indices[_uint64(place(indices_at, n, c, o0, o1, o2))] = types.int32(where)

    return pool_max_of_teams


@cache
def sum_forward(dtype: str, norm: bool) -> Kernel:
    """Sums over windows: averages, or with ``norm`` p-norms. Launch with THREADS threads."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    term, finish = terms_of(number, norm)
    sum_of_team = team_sum(number)

    @kernel
    def pool_sum_of_teams(
        x: Any,
        y: Any,
        size: Any,
        extents: Any,
        channels_last: Any,
        width: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
        include_padding: Any,
        mode: Any,
        exponents: Any,
    ) -> None:
        d0, d1, d2 = dims
        power, root = number(exponents[0]), number(exponents[1])
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, 1)
        for tile in range(_int64(cuda.blockIdx.x), tiles(size, width), _int64(cuda.gridDim.x)):
            index = tile * (THREADS // width) + in_block
            position = digits_of(min(index, size - 1), extents)
            n, c, o0, o1, o2 = position_of(position, channels_last)
            begin0, begin1, begin2 = window(o0, d0)[0], window(o1, d1)[0], window(o2, d2)[0]
            count0, count1, count2 = (
                count(o0, d0, False),
                count(o1, d1, False),
                count(o2, d2, False),
            )
            at, step, counts = share_of_window(member, width, count0, count1, count2)
            cells = count0 * count1 * count2 if index < size else _int64(0)
            total = number(0)
            for _ in range(member, cells, width):
                i0, i1, i2 = begin0 + at[0] * d0[4], begin1 + at[1] * d1[4], begin2 + at[2] * d2[4]
                total += term(to_sum(x[_uint64(place(x_at, n, c, i0, i1, i2))]), mode, power)
                at = advance(at, step, counts)
            total = sum_of_team(total, width, 1)
            if member == 0 and index < size:
                divisor = counted(o0, o1, o2, dims, include_padding)
                y[_uint64(place(y_at, n, c, o0, o1, o2))] = from_sum(
                    finish(total, divisor, mode, root)
                )

    return pool_sum_of_teams
