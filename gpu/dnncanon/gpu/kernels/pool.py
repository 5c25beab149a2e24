"""Pooling: a thread gathers one output, or with adjacent channels as many as fill 16 bytes.

Backward gathers too: a thread adds up, in order, what the windows over its cell have for it. So nothing is
added atomically, and results are the same in every run.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.windows import (
    count,
    covering,
    lanes_of,
    place,
    position_of,
    window,
)
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec import DTYPES

_int64 = types.int64


def norm_mode(p: float) -> int:
    """How |x|^p is computed: 1 and 2 have ways of their own, 0 is any other."""
    return int(p) if p in (1.0, 2.0) else 0


# --- Forward --------------------------------------------------------------------------------------


@cache
def max_forward(dtype: str, lanes: int, with_indices: bool) -> Kernel:
    """y and indices of the first largest cell; without indices the array for them is not touched."""
    number, elements, numbers = (
        ELEMENTS[dtype].sum,
        lanes_of(dtype, lanes),
        lanes_of("int32", lanes),
    )
    read, write, write_indices = elements.read, elements.write, numbers.write
    least = number(-math.inf if DTYPES[dtype].is_float else DTYPES[dtype].min)

    @kernel
    def pool_max_forward(
        x: Any,
        y: Any,
        indices: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
        indices_at: Any,
    ) -> None:
        d0, d1, d2 = dims
        values, best = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        where = cuda.local.array(lanes, _int64)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, o0, o1, o2 = position_of(digits, channels_last)
            c = group * lanes
            begin0, end0 = window(o0, d0)
            begin1, end1 = window(o1, d1)
            begin2, end2 = window(o2, d2)
            for lane in range(lanes):
                best[lane] = least
                where[lane] = -1
            for i0 in range(begin0, end0, d0[4]):
                for i1 in range(begin1, end1, d1[4]):
                    at = place(x_at, n, c, i0, i1, begin2)
                    for i2 in range(begin2, end2, d2[4]):
                        read(x, at, values)
                        for lane in range(lanes):
                            value, now = values[lane], best[lane]
                            # NaN is larger than every number, and the first NaN stays.
                            larger = value > now or (value != value and now == now)
                            if larger or where[lane] < 0:
                                best[lane] = value
                                where[lane] = (i0 * d1[0] + i1) * d2[0] + i2
                        at += d2[4] * x_at[5]
            write(y, place(y_at, n, c, o0, o1, o2), best)
            if with_indices:
                write_indices(indices, place(indices_at, n, c, o0, o1, o2), where)
            digits = advance(digits, step, extents)
            index += stride

    return pool_max_forward


@cache
def sum_forward(dtype: str, lanes: int, norm: bool) -> Kernel:
    """Sums over windows: averages, or with ``norm`` p-norms."""
    number, elements = ELEMENTS[dtype].sum, lanes_of(dtype, lanes)
    clear, read, write = elements.clear, elements.read, elements.write
    term, finish = terms_of(number, norm)

    @kernel
    def pool_sum_forward(
        x: Any,
        y: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        x_at: Any,
        y_at: Any,
        include_padding: Any,
        mode: Any,
        exponents: Any,
    ) -> None:
        d0, d1, d2 = dims
        sums, values = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        power, root = number(exponents[0]), number(exponents[1])
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, o0, o1, o2 = position_of(digits, channels_last)
            c = group * lanes
            begin0, end0 = window(o0, d0)
            begin1, end1 = window(o1, d1)
            begin2, end2 = window(o2, d2)
            clear(sums)
            for i0 in range(begin0, end0, d0[4]):
                for i1 in range(begin1, end1, d1[4]):
                    at = place(x_at, n, c, i0, i1, begin2)
                    for _ in range(begin2, end2, d2[4]):
                        read(x, at, values)
                        for lane in range(lanes):
                            sums[lane] += term(values[lane], mode, power)
                        at += d2[4] * x_at[5]
            cells = counted(o0, o1, o2, dims, include_padding)
            for lane in range(lanes):
                sums[lane] = finish(sums[lane], cells, mode, root)
            write(y, place(y_at, n, c, o0, o1, o2), sums)
            digits = advance(digits, step, extents)
            index += stride

    return pool_sum_forward


@device_function
def counted(o0: Any, o1: Any, o2: Any, dims: Any, include_padding: Any) -> Any:
    """How many cells of a window count."""
    d0, d1, d2 = dims
    rows = count(o0, d0, include_padding) * count(o1, d1, include_padding)
    return rows * count(o2, d2, include_padding)


def terms_of(number: Any, norm: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """term(value, mode, power) and finish(total, cells, mode, root) of averages or p-norms."""
    return _norm(number) if norm else _average(number)


def _average(number: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    @device_function
    def term(value: Any, mode: Any, power: Any) -> Any:
        return value

    @device_function
    def finish(total: Any, cells: Any, mode: Any, root: Any) -> Any:
        return total / number(max(_int64(1), cells))

    return term, finish


def _norm(number: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    @device_function
    def term(value: Any, mode: Any, power: Any) -> Any:
        magnitude = abs(value)
        if mode == 1:
            return magnitude
        if mode == 2:
            return value * value
        return math.pow(magnitude, power)

    @device_function
    def finish(total: Any, cells: Any, mode: Any, root: Any) -> Any:
        if mode == 1:
            return total
        if mode == 2:
            return math.sqrt(total)
        return math.pow(total, root)

    return term, finish


# --- Backward -------------------------------------------------------------------------------------


@cache
def max_backward(dtype: str, lanes: int) -> Kernel:
    """dy of the windows over a cell whose index is the cell's."""
    number, elements, numbers = (
        ELEMENTS[dtype].sum,
        lanes_of(dtype, lanes),
        lanes_of("int32", lanes),
    )
    clear, read, write = elements.clear, elements.read, elements.write
    read_indices = numbers.read

    @kernel
    def pool_max_backward(
        dy: Any,
        indices: Any,
        dx: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        dy_at: Any,
        indices_at: Any,
        dx_at: Any,
    ) -> None:
        d0, d1, d2 = dims
        sums, values = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        chosen = cuda.local.array(lanes, _int64)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            own = (i0 * d1[0] + i1) * d2[0] + i2
            begin0, end0, step0 = covering(i0, d0)
            begin1, end1, step1 = covering(i1, d1)
            begin2, end2, step2 = covering(i2, d2)
            clear(sums)
            for o0 in range(begin0, end0, step0):
                for o1 in range(begin1, end1, step1):
                    for o2 in range(begin2, end2, step2):
                        read(dy, place(dy_at, n, c, o0, o1, o2), values)
                        read_indices(indices, place(indices_at, n, c, o0, o1, o2), chosen)
                        for lane in range(lanes):
                            if chosen[lane] == own:
                                sums[lane] += values[lane]
            write(dx, place(dx_at, n, c, i0, i1, i2), sums)
            digits = advance(digits, step, extents)
            index += stride

    return pool_max_backward


@cache
def average_backward(dtype: str, lanes: int) -> Kernel:
    """dy / count of the windows over a cell."""
    number, elements = ELEMENTS[dtype].sum, lanes_of(dtype, lanes)
    clear, read, write = elements.clear, elements.read, elements.write

    @kernel
    def pool_average_backward(
        dy: Any,
        dx: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        dy_at: Any,
        dx_at: Any,
        include_padding: Any,
    ) -> None:
        d0, d1, d2 = dims
        sums, values = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            begin0, end0, step0 = covering(i0, d0)
            begin1, end1, step1 = covering(i1, d1)
            begin2, end2, step2 = covering(i2, d2)
            clear(sums)
            for o0 in range(begin0, end0, step0):
                count0 = count(o0, d0, include_padding)
                for o1 in range(begin1, end1, step1):
                    count1 = count0 * count(o1, d1, include_padding)
                    for o2 in range(begin2, end2, step2):
                        cells = number(count1 * count(o2, d2, include_padding))
                        read(dy, place(dy_at, n, c, o0, o1, o2), values)
                        for lane in range(lanes):
                            sums[lane] += values[lane] / cells
            write(dx, place(dx_at, n, c, i0, i1, i2), sums)
            digits = advance(digits, step, extents)
            index += stride

    return pool_average_backward


@cache
def norm_backward(dtype: str, lanes: int) -> Kernel:
    """sign(x) times the sum of dy · (|x| / y)^(p−1) of the windows over a cell."""
    number, elements = ELEMENTS[dtype].sum, lanes_of(dtype, lanes)
    clear, read, write = elements.clear, elements.read, elements.write
    share, signed = _share(number), _signed(number)

    @kernel
    def pool_norm_backward(
        dy: Any,
        x: Any,
        y: Any,
        dx: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        dims: Any,
        dy_at: Any,
        x_at: Any,
        y_at: Any,
        dx_at: Any,
        mode: Any,
        exponent: Any,
    ) -> None:
        d0, d1, d2 = dims
        power = number(exponent)
        sums, values = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        gradients, norms = cuda.local.array(lanes, number), cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            begin0, end0, step0 = covering(i0, d0)
            begin1, end1, step1 = covering(i1, d1)
            begin2, end2, step2 = covering(i2, d2)
            read(x, place(x_at, n, c, i0, i1, i2), values)
            clear(sums)
            for o0 in range(begin0, end0, step0):
                for o1 in range(begin1, end1, step1):
                    for o2 in range(begin2, end2, step2):
                        read(dy, place(dy_at, n, c, o0, o1, o2), gradients)
                        read(y, place(y_at, n, c, o0, o1, o2), norms)
                        for lane in range(lanes):
                            magnitude = abs(values[lane])
                            sums[lane] += share(
                                gradients[lane], magnitude, norms[lane], mode, power
                            )
            for lane in range(lanes):
                sums[lane] = signed(sums[lane], values[lane])
            write(dx, place(dx_at, n, c, i0, i1, i2), sums)
            digits = advance(digits, step, extents)
            index += stride

    return pool_norm_backward


def _share(number: Any) -> Callable[..., Any]:
    @device_function
    def share(value: Any, magnitude: Any, norm: Any, mode: Any, power: Any) -> Any:
        """What a window adds to the gradient of a cell's magnitude."""
        if mode == 1:
            return value
        if norm == number(0):
            return number(0)
        ratio = magnitude / norm
        if mode == 2:
            return value * ratio
        return value * math.pow(ratio, power)

    return share


def _signed(number: Any) -> Callable[..., Any]:
    @device_function
    def signed(total: Any, value: Any) -> Any:
        """total · sign(value), sign being 0 at 0 and NaN at NaN."""
        if value > number(0):
            return total
        if value < number(0):
            return -total
        return total * value

    return signed
