"""The spatial transformer: affine grids, sampling, and its gradients. None of them adds floats atomically.

Problems with two dims are given a leading one of extent 1, along which every point is at 0. Around a point
are two cells along each dim; corner 4·s0 + 2·s1 + s2 is the cell that is above along the dims whose s is 1.

dx gathers as well. The shares that points have in cells are sorted by the cell: counted, the counts added up,
and each put in its place. The order in which they arrive at a cell is that of an atomic counter, so they are
sorted once more, by the point; then a cell adds up its own.
"""

import math
from collections.abc import Sequence
from functools import cache
from math import floor, nan
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.windows import SPATIAL, lanes_of, place, position_of
from dnncanon.gpu.runtime import DeviceArray, Kernel, kernel, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec import dense_strides
from dnncanon.spec.sampler_problem import PADDING_MODES, GridSampleProblem

THREADS = 256
BLOCKS = 2048
"""Blocks that fill any GPU; their threads loop."""

_int64, _uint64 = types.int64, types.uint64

# --- What kernels are given -----------------------------------------------------------------------


def spatial(extents: Sequence[int]) -> tuple[int, ...]:
    """Three of them, leading ones 1."""
    return (1,) * (SPATIAL - len(extents)) + tuple(extents)


def strides_of_points(grid: DeviceArray) -> tuple[int, ...]:
    """As kernels take them: offset, batch, three spatial strides, the one from x to y to z."""
    n, *space, last = grid.strides
    return (origin(grid), n, *(0,) * (SPATIAL - len(space)), *space, last)


def options_of(p: GridSampleProblem) -> tuple[int, ...]:
    """As kernels take them: input extents, dims, whether corners are aligned, padding, corners of a point.

    The nearest cell is corner 0, the only one.
    """
    padding = PADDING_MODES.index(p.padding_mode)
    return (*spatial(p.input_size), p.dims, int(p.align_corners), padding, p.taps)


def walk_over(extents: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
    """Blocks for a thread for each position, and size, extents and step as kernels take them."""
    size = math.prod(extents)
    blocks = max(1, min(BLOCKS, -(-size // THREADS)))
    step, number = [], blocks * THREADS
    for weight in dense_strides(extents):
        digit, number = divmod(number, weight)
        step.append(digit)
    return blocks, (size, tuple(extents), tuple(step))


def threads_for(items: int) -> int:
    """Threads of a block for so many items: warps that have work, up to THREADS."""
    return min(THREADS, 32 * max(1, -(-items // 32)))


# --- Points ---------------------------------------------------------------------------------------


@cache
def coordinate_of(number: Any) -> Any:
    """coordinate(g, extent, aligned, padding): (c, ∂c/∂g) along a dim."""
    one, two, half, zero = number(1), number(2), number(0.5), number(0)

    @device_function
    def coordinate(g: Any, extent: Any, aligned: Any, padding: Any) -> Any:
        cells = number(extent)
        last = cells - one
        low, span = -half, cells
        c = ((g + one) * cells - one) * half
        if aligned != 0:
            low, span = zero, last
            c = (g + one) * last * half
        slope = span * half
        if padding == 2 and span > zero:
            distance = c - low
            times = number(floor(distance / span))
            if (
                times - two * number(floor(times * half)) != zero
            ):  # reflected an odd number of times
                slope = -slope
                distance = (times + one) * span - distance
            else:
                distance -= times * span
            c = distance + low  # NaN of an infinite one
        if padding != 0:
            if not (c > zero and c < last):
                slope = zero
            if c < zero:
                c = zero
            if c > last:
                c = last
        return c, slope

    return coordinate


@cache
def locate_of(dtype: str) -> Any:
    """locate(grid, at, step, options, cell, weight, slope): what is around the point whose x is at ``at``.

    It writes for each dim the cell below, the weights of that and of the one above, 0 where there is none,
    and ∂c/∂g; and returns whether no coordinate is NaN. Of the nearest cell both weights are as if c were
    its middle.
    """
    number, to_sum = ELEMENTS[dtype].sum, ELEMENTS[dtype].to_sum
    coordinate = coordinate_of(number)
    half, one, two, zero = number(0.5), number(1), number(2), number(0)

    @device_function
    def locate(
        grid: Any, at: Any, step: Any, options: Any, cell: Any, weight: Any, slope: Any
    ) -> Any:
        somewhere = True
        for dim in range(3):
            extent, c, change = options[dim], zero, zero
            if dim + options[3] >= 3:
                g = to_sum(grid[_uint64(at + (2 - dim) * step)])
                c, change = coordinate(g, extent, options[4], options[5])
            somewhere = somewhere and c == c
            c = min(max(c, -two), number(extent))  # farther outside are no cells anyway
            below = number(floor(c))
            rest = c - below
            if options[6] == 1:
                odd = below - two * number(floor(below * half)) != zero
                if rest > half or (rest == half and odd):
                    below += one
                rest = zero
            first = _int64(below) if somewhere else _int64(0)
            cell[dim] = first
            weight[2 * dim] = one - rest if first >= 0 and first < extent else zero
            weight[2 * dim + 1] = rest if first >= -1 and first + 1 < extent else zero
            slope[dim] = change
        return somewhere

    return locate


@device_function
def place_of_point(strides: Any, n: Any, o0: Any, o1: Any, o2: Any) -> Any:
    """Where x of a point is in memory."""
    return strides[0] + n * strides[1] + o0 * strides[2] + o1 * strides[3] + o2 * strides[4]


# --- Sampling -------------------------------------------------------------------------------------


@cache
def forward(dtype: str, lanes: int) -> Kernel:
    """y from x and grid: a thread gathers one element, or the adjacent channels that fill 16 bytes."""
    element, words = ELEMENTS[dtype], lanes_of(dtype, lanes)
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    load, first_word, rest_words = words.load, words.first, words.rest
    blank, append, store = words.blank, words.append, words.store
    locate, zero = locate_of(dtype), number(0)

    @kernel
    def grid_sample_forward(
        x: Any,
        grid: Any,
        y: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        options: Any,
        x_at: Any,
        grid_at: Any,
        y_at: Any,
    ) -> None:
        cell = cuda.local.array(3, _int64)
        weight, slope = cuda.local.array(6, number), cuda.local.array(3, number)
        sums = cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, o0, o1, o2 = position_of(digits, channels_last)
            c = group * lanes
            at = place_of_point(grid_at, n, o0, o1, o2)
            somewhere = locate(grid, at, grid_at[5], options, cell, weight, slope)
            for lane in range(lanes):
                sums[lane] = zero if somewhere else number(nan)
            out = blank()
            moved = False
            for corner in range(options[6] if somewhere else 0):
                s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
                w = weight[s0] * weight[2 + s1] * weight[4 + s2]
                # What has no share is not read: its NaN does not spread.
                if w != zero:
                    bundle = load(x, place(x_at, n, c, cell[0] + s0, cell[1] + s1, cell[2] + s2))
                    if options[6] == 1:  # moved as it is: a sum would make +0 of −0
                        out, moved = bundle, True
                    for lane in range(lanes):
                        sums[lane] += w * to_sum(first_word(x, bundle))
                        bundle = rest_words(x, bundle)
            if not moved:
                for lane in range(lanes):
                    out = append(y, out, from_sum(sums[lane]))
            store(y, place(y_at, n, c, o0, o1, o2), out)
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_forward


@cache
def slopes(dtype: str) -> Kernel:
    """dgrid from dy, x and grid: a thread takes a point, and all channels of it. Of linear sampling."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    locate, zero = locate_of(dtype), number(0)

    @kernel
    def grid_sample_slopes(
        dy: Any,
        x: Any,
        grid: Any,
        dgrid: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels: Any,
        options: Any,
        dy_at: Any,
        x_at: Any,
        grid_at: Any,
        dgrid_at: Any,
    ) -> None:
        cell = cuda.local.array(3, _int64)
        weight, slope = cuda.local.array(6, number), cuda.local.array(3, number)
        change, sums = cuda.local.array(3, number), cuda.local.array(3, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, o0, o1, o2 = digits
            at = place_of_point(grid_at, n, o0, o1, o2)
            somewhere = locate(grid, at, grid_at[5], options, cell, weight, slope)
            for dim in range(3):
                sums[dim] = zero
            for corner in range(options[6] if somewhere else 0):
                s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
                i0, i1, i2 = cell[0] + s0, cell[1] + s1, cell[2] + s2
                inside = i0 >= 0 and i0 < options[0] and i1 >= 0 and i1 < options[1]
                inside = inside and i2 >= 0 and i2 < options[2]
                change[0] = weight[2 + s1] * weight[4 + s2]
                change[1] = weight[s0] * weight[4 + s2]
                change[2] = weight[s0] * weight[2 + s1]
                if inside and (change[0] != zero or change[1] != zero or change[2] != zero):
                    of_cell = place(x_at, n, 0, i0, i1, i2)
                    of_y = place(dy_at, n, 0, o0, o1, o2)
                    total = zero
                    for _ in range(channels):
                        total += to_sum(dy[_uint64(of_y)]) * to_sum(x[_uint64(of_cell)])
                        of_y += dy_at[2]
                        of_cell += x_at[2]
                    for dim in range(3):
                        # Else the total, which may be NaN, has no part in it.
                        if change[dim] != zero:
                            above = corner >> (2 - dim) & 1
                            sums[dim] += change[dim] * (total if above == 1 else -total)
            target = place_of_point(dgrid_at, n, o0, o1, o2)
            for k in range(options[3]):
                result = sums[2 - k] * slope[2 - k] if slope[2 - k] != zero else zero
                at = _uint64(target + k * dgrid_at[5])
                dgrid[at] = from_sum(result if somewhere else number(nan))
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_slopes


@device_function
def nothing() -> Any:
    """The slope of the nearest cell."""
    return _int64(0)


# --- Shares ---------------------------------------------------------------------------------------
# Share ``corners·point + corner`` of an image has a cell, −1 where there is none, and a weight.


@cache
def shares(dtype: str) -> Kernel:
    """Cells and weights of all shares: a thread takes a point."""
    number = ELEMENTS[dtype].sum
    locate, zero = locate_of(dtype), number(0)

    @kernel
    def grid_sample_shares(
        grid: Any,
        cells: Any,
        weights: Any,
        size: Any,
        extents: Any,
        step: Any,
        options: Any,
        grid_at: Any,
    ) -> None:
        cell = cuda.local.array(3, _int64)
        weight, slope = cuda.local.array(6, number), cuda.local.array(3, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        corners = options[6]
        while index < size:
            n, o0, o1, o2 = digits
            at = place_of_point(grid_at, n, o0, o1, o2)
            somewhere = locate(grid, at, grid_at[5], options, cell, weight, slope)
            for corner in range(corners):
                s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
                w = weight[s0] * weight[2 + s1] * weight[4 + s2]
                row = (cell[0] + s0) * options[1] + cell[1] + s1
                held = row * options[2] + cell[2] + s2
                share = _uint64(index * corners + corner)
                cells[share] = held if somewhere and w != zero else _int64(-1)
                weights[share] = w
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_shares


@device_function
def sort(entries: Any, first: Any, count: Any) -> None:
    """Sort ``count`` entries in ascending order, in place: a heap is built and taken down."""
    root = count // 2
    end = count
    while end > 1:
        if root > 0:
            root -= 1
            entry = entries[_uint64(first + root)]
        else:
            end -= 1
            entry = entries[_uint64(first + end)]
            entries[_uint64(first + end)] = entries[_uint64(first)]
        # The entry sinks below the larger ones.
        hole = root
        child = 2 * hole + 1
        while child < end:
            larger = entries[_uint64(first + child)]
            if child + 1 < end and entries[_uint64(first + child + 1)] > larger:
                child += 1
                larger = entries[_uint64(first + child)]
            if larger <= entry:
                break
            entries[_uint64(first + hole)] = larger
            hole = child
            child = 2 * hole + 1
        entries[_uint64(first + hole)] = entry


@kernel
def sorted_shares(cells: Any, ends: Any, entries: Any, sizes: Any) -> None:
    """The shares of each cell, in ascending order: a block takes an image, and has up to THREADS threads.

    Those of cell i of an image are its ``entries`` from ``ends[i − 1]``, or 0, to before ``ends[i]``.
    """
    batch, extent, capacity = sizes
    partial = cuda.shared.array(THREADS, _int64)
    thread, threads = _int64(cuda.threadIdx.x), _int64(cuda.blockDim.x)
    n = _int64(cuda.blockIdx.x)
    while n < batch:
        base, first = n * extent, n * capacity
        for cell in range(thread, extent, threads):
            ends[_uint64(base + cell)] = 0
        cuda.syncthreads()
        # How many are in each cell.
        for share in range(thread, capacity, threads):
            cell = cells[_uint64(first + share)]
            if cell >= 0:
                cuda.atomic.add(ends, _uint64(base + cell), 1)
        cuda.syncthreads()
        # How many are in the cells before it: each thread adds up a stretch of them.
        stretch = (extent + threads - 1) // threads
        begin, end = min(extent, thread * stretch), min(extent, (thread + 1) * stretch)
        total = _int64(0)
        for cell in range(begin, end):
            total += ends[_uint64(base + cell)]
        partial[thread] = total
        cuda.syncthreads()
        before = _int64(0)
        for other in range(thread):
            before += partial[other]
        for cell in range(begin, end):
            count = ends[_uint64(base + cell)]
            ends[_uint64(base + cell)] = before
            before += count
        cuda.syncthreads()
        # Each in its place: the first free one moves from the begin of the cell's to their end.
        for share in range(thread, capacity, threads):
            cell = cells[_uint64(first + share)]
            if cell >= 0:
                at = cuda.atomic.add(ends, _uint64(base + cell), 1)
                entries[_uint64(first + at)] = share
        cuda.syncthreads()
        for cell in range(thread, extent, threads):
            begin = ends[_uint64(base + cell - 1)] if cell > 0 else _int64(0)
            sort(entries, first + begin, ends[_uint64(base + cell)] - begin)
        cuda.syncthreads()
        n += cuda.gridDim.x


@cache
def gather(dtype: str, lanes: int) -> Kernel:
    """dx from dy and the shares: a thread takes one element, or the adjacent channels that fill 16 bytes."""
    element, words = ELEMENTS[dtype], lanes_of(dtype, lanes)
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    load, first_word, rest_words = words.load, words.first, words.rest
    blank, append, store = words.blank, words.append, words.store

    @kernel
    def grid_sample_gather(
        dy: Any,
        dx: Any,
        ends: Any,
        entries: Any,
        weights: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        sizes: Any,
        inputs: Any,
        outputs: Any,
        dy_at: Any,
        dx_at: Any,
    ) -> None:
        _, cells, capacity = sizes
        corners = outputs[3]
        sums = cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            cell = (i0 * inputs[1] + i1) * inputs[2] + i2
            first = n * capacity
            begin = ends[_uint64(n * cells + cell - 1)] if cell > 0 else _int64(0)
            end = ends[_uint64(n * cells + cell)]
            for lane in range(lanes):
                sums[lane] = number(0)
            for at in range(begin, end):
                share = entries[_uint64(first + at)]
                w = weights[_uint64(first + share)]
                point = share // corners
                rest = point // outputs[2]
                o0 = rest // outputs[1]
                o1, o2 = rest - o0 * outputs[1], point - rest * outputs[2]
                bundle = load(dy, place(dy_at, n, c, o0, o1, o2))
                for lane in range(lanes):
                    sums[lane] += w * to_sum(first_word(dy, bundle))
                    bundle = rest_words(dy, bundle)
            out = blank()
            for lane in range(lanes):
                out = append(dx, out, from_sum(sums[lane]))
            store(dx, place(dx_at, n, c, i0, i1, i2), out)
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_gather


# --- Affine grids ---------------------------------------------------------------------------------


@cache
def plain_of(number: Any) -> Any:
    """plain(index, extent, aligned): a coordinate of the plain grid."""
    one = number(1)

    @device_function
    def plain(index: Any, extent: Any, aligned: Any) -> Any:
        if aligned == 0:
            return number(2 * index + 1) / number(extent) - one
        if extent == 1:
            return number(0)
        return number(2 * index) / number(extent - 1) - one

    return plain


@cache
def affine_grid(dtype: str) -> Kernel:
    """grid from theta: a thread takes a point."""
    element = ELEMENTS[dtype]
    to_sum, from_sum, plain = element.to_sum, element.from_sum, plain_of(element.sum)

    @kernel
    def affine_grid_forward(
        theta: Any,
        grid: Any,
        size: Any,
        extents: Any,
        step: Any,
        dims: Any,
        aligned: Any,
        theta_at: Any,
        grid_at: Any,
    ) -> None:
        offset, per_image, per_row, per_column = theta_at
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, o0, o1, o2 = digits
            x, y = plain(o2, extents[3], aligned), plain(o1, extents[2], aligned)
            target = place_of_point(grid_at, n, o0, o1, o2)
            at = offset + n * per_image
            for k in range(dims):
                total = x * to_sum(theta[_uint64(at)])
                total += y * to_sum(theta[_uint64(at + per_column)])
                if dims == 3:
                    z = plain(o0, extents[1], aligned)
                    total += z * to_sum(theta[_uint64(at + 2 * per_column)])
                total += to_sum(theta[_uint64(at + dims * per_column)])
                grid[_uint64(target + k * grid_at[5])] = from_sum(total)
                at += per_row
            digits = advance(digits, step, extents)
            index += stride

    return affine_grid_forward


def affine_sums(dtype: str, dims: int) -> Monoid:
    """Σ g·x, Σ g·y, with three dims Σ g·z, and Σ g over the points of a grid.

    Scalars: the extents of the grid, from x to z, and whether corners are aligned.
    """
    return _sums_of_planes(dtype) if dims == 2 else _sums_of_volumes(dtype)


@cache
def _sums_of_planes(dtype: str) -> Monoid:
    plain = plain_of(ELEMENTS[dtype].sum)

    @device_function
    def lift(g: Any, width: Any, height: Any, aligned: Any, index: Any) -> Any:
        o1 = index // width
        x, y = plain(index - o1 * width, width, aligned), plain(o1, height, aligned)
        return g * x, g * y, g

    @device_function
    def add(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    @device_function
    def finish(state: Any, width: Any, height: Any, aligned: Any) -> Any:
        return state

    return Monoid(("sum",) * 3, (0,) * 3, lift, add, finish, index=True)


@cache
def _sums_of_volumes(dtype: str) -> Monoid:
    plain = plain_of(ELEMENTS[dtype].sum)

    @device_function
    def lift(g: Any, width: Any, height: Any, depth: Any, aligned: Any, index: Any) -> Any:
        rest = index // width
        o0 = rest // height
        x, y = (
            plain(index - rest * width, width, aligned),
            plain(rest - o0 * height, height, aligned),
        )
        return g * x, g * y, g * plain(o0, depth, aligned), g

    @device_function
    def add(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]

    @device_function
    def finish(state: Any, width: Any, height: Any, depth: Any, aligned: Any) -> Any:
        return state

    return Monoid(("sum",) * 4, (0,) * 4, lift, add, finish, index=True)
