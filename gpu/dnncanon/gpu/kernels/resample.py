"""Resampling: a thread gathers one element, or with adjacent channels as many as fill 16 bytes.

Along a dim, output o lies at c(o) = (o·m + k) / d, held within the input, in integers; a cell i has the
share max(0, 1 − |c(o) − i|) in it, or, for the nearest cell, all or nothing. Backward gathers too: a cell
adds up, in order, the outputs that may have a share of it, which lie in one stretch, for c is monotonous. Where
these are many, a team of threads adds them up.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rows import THREADS, team_of, team_sum, tiles
from dnncanon.gpu.kernels.window_teams import Taking, share_of_window
from dnncanon.gpu.kernels.windows import SPATIAL, lanes_of, place, position_of
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec.resample_problem import Sampling

_int64, _uint64 = types.int64, types.uint64

LINEAR = 0
MODES = {"floor": 1, "ceil": 2, "round_prefer_floor": 3, "round_prefer_ceil": 4}
"""How a coordinate is made a cell; LINEAR makes two of it."""


def dims_of(dims: Sequence[Sampling]) -> tuple[tuple[int, ...], ...]:
    """Three spatial dims, as kernels take them: extents, m, k, d."""
    padded = (*(Sampling(1, 1, 0, 0, 1),) * (SPATIAL - len(dims)), *dims)
    return tuple((s.inputs, s.outputs, s.m, s.k, s.d) for s in padded)


def taking(s: Sampling, mode: int) -> Taking:
    """What a cell takes from the outputs along a dim: those within 1 of it, or half of a cell."""
    if s.m == 0:
        return Taking(s.outputs, s.outputs, s.outputs)
    reach = 2 if mode == LINEAR else 1
    return Taking(s.outputs, min(s.outputs, -(-reach * s.d // s.m)), max(1, s.d // s.m))


# --- Coordinates ----------------------------------------------------------------------------------


@device_function
def numerator(o: Any, dim: Any) -> Any:
    """d·c(o)."""
    return min(max(o * dim[2] + dim[3], _int64(0)), (dim[0] - 1) * dim[4])


@device_function
def nearest(n: Any, d: Any, mode: Any) -> Any:
    """The cell that n/d >= 0 is rounded to."""
    if mode == 1:
        return n // d
    if mode == 2:
        return (n + d - 1) // d
    if mode == 3:
        return (2 * n + d - 1) // (2 * d)
    return (2 * n + d) // (2 * d)


@device_function
def cells(o: Any, dim: Any, mode: Any) -> Any:
    """(first, how many): the cells with a share in output o."""
    n = numerator(o, dim)
    if mode != 0:
        return nearest(n, dim[4], mode), _int64(1)
    first = n // dim[4]
    return first, _int64(1) if n == first * dim[4] else _int64(2)


@device_function
def outputs(i: Any, dim: Any) -> Any:
    """(begin, end): the outputs with c within 1 of i; no convention puts one a whole cell outside."""
    count, m, k, d = dim[1], dim[2], dim[3], dim[4]
    if m == 0:
        return _int64(0), count
    # From the first o with o·m + k > (i − 1)·d to behind the last one with o·m + k < (i + 1)·d.
    begin = ((i - 1) * d - k) // m + 1
    end = ((i + 1) * d - k + m - 1) // m
    return min(count, max(_int64(0), begin)), min(count, max(_int64(0), end))


@cache
def share_of(number: Any) -> Any:
    """share(i, o, dim, mode): what cell i counts in output o."""

    @device_function
    def share(i: Any, o: Any, dim: Any, mode: Any) -> Any:
        n, d = numerator(o, dim), dim[4]
        if mode != 0:
            return number(1) if nearest(n, d, mode) == i else number(0)
        distance = abs(n - i * d)
        return number(d - distance) / number(d) if distance < d else number(0)

    return share


# --- Kernels --------------------------------------------------------------------------------------


@cache
def forward(dtype: str, lanes: int) -> Kernel:
    """y from x. Launch with THREADS threads of ``windows``."""
    number, elements = ELEMENTS[dtype].sum, lanes_of(dtype, lanes)
    load, store = elements.load, elements.store
    clear, add, write = elements.clear, elements.add, elements.write
    share = share_of(number)

    @kernel
    def resample_forward(
        x: Any,
        y: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
        mode: Any,
    ) -> None:
        d0, d1, d2 = dims
        sums = cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, o0, o1, o2 = position_of(digits, channels_last)
            c = group * lanes
            first0, count0 = cells(o0, d0, mode)
            first1, count1 = cells(o1, d1, mode)
            first2, count2 = cells(o2, d2, mode)
            target = place(y_at, n, c, o0, o1, o2)
            if mode != 0:
                # Moved as it is: a sum would make +0 of −0.
                store(y, target, load(x, place(x_at, n, c, first0, first1, first2)))
            else:
                clear(sums)
                for i0 in range(first0, first0 + count0):
                    share0 = share(i0, o0, d0, mode)
                    for i1 in range(first1, first1 + count1):
                        share1 = share0 * share(i1, o1, d1, mode)
                        for i2 in range(first2, first2 + count2):
                            weight = share1 * share(i2, o2, d2, mode)
                            add(sums, x, place(x_at, n, c, i0, i1, i2), weight)
                write(y, target, sums)
            digits = advance(digits, step, extents)
            index += stride

    return resample_forward


@cache
def backward(dtype: str, lanes: int) -> Kernel:
    """dx from dy. Launch with THREADS threads of ``windows``."""
    number, elements = ELEMENTS[dtype].sum, lanes_of(dtype, lanes)
    clear, add, write = elements.clear, elements.add, elements.write
    share = share_of(number)

    @kernel
    def resample_backward(
        dy: Any,
        dx: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        dy_at: Any,
        dx_at: Any,
        mode: Any,
    ) -> None:
        d0, d1, d2 = dims
        sums = cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            begin0, end0 = outputs(i0, d0)
            begin1, end1 = outputs(i1, d1)
            begin2, end2 = outputs(i2, d2)
            clear(sums)
            for o0 in range(begin0, end0):
                share0 = share(i0, o0, d0, mode)
                for o1 in range(begin1, end1):
                    share1 = share0 * share(i1, o1, d1, mode)
                    for o2 in range(begin2, end2):
                        weight = share1 * share(i2, o2, d2, mode)
                        # What has no share is not read: its NaN does not spread.
                        if weight > number(0):
                            add(sums, dy, place(dy_at, n, c, o0, o1, o2), weight)
            write(dx, place(dx_at, n, c, i0, i1, i2), sums)
            digits = advance(digits, step, extents)
            index += stride

    return resample_backward


@cache
def backward_of_teams(dtype: str) -> Kernel:
    """dx from dy: a team takes a cell. Launch with THREADS threads of ``rows``."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    share, sum_of_team = share_of(number), team_sum(number)

    @kernel
    def resample_backward_of_teams(
        dy: Any,
        dx: Any,
        size: Any,
        extents: Any,
        channels_last: Any,
        width: Any,
        dims: Any,
        dy_at: Any,
        dx_at: Any,
        mode: Any,
    ) -> None:
        d0, d1, d2 = dims
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, 1)
        for tile in range(_int64(cuda.blockIdx.x), tiles(size, width), _int64(cuda.gridDim.x)):
            index = tile * (THREADS // width) + in_block
            position = digits_of(min(index, size - 1), extents)
            n, c, i0, i1, i2 = position_of(position, channels_last)
            begin0, end0 = outputs(i0, d0)
            begin1, end1 = outputs(i1, d1)
            begin2, end2 = outputs(i2, d2)
            count0, count1, count2 = end0 - begin0, end1 - begin1, end2 - begin2
            at, step, counts = share_of_window(member, width, count0, count1, count2)
            taken = count0 * count1 * count2 if index < size else _int64(0)
            total = number(0)
            for _ in range(member, taken, width):
                o0, o1, o2 = begin0 + at[0], begin1 + at[1], begin2 + at[2]
                weight = share(i0, o0, d0, mode) * share(i1, o1, d1, mode)
                weight *= share(i2, o2, d2, mode)
                # What has no share is not read: its NaN does not spread.
                if weight > number(0):
                    total += weight * to_sum(dy[_uint64(place(dy_at, n, c, o0, o1, o2))])
                at = advance(at, step, counts)
            total = sum_of_team(total, width, 1)
            if member == 0 and index < size:
                dx[_uint64(place(dx_at, n, c, i0, i1, i2))] = from_sum(total)

    return resample_backward_of_teams
