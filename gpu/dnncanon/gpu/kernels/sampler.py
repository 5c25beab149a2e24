"""The spatial transformer: affine grids, sampling, and its gradients. None of them adds floats atomically.

Problems with two dims are given a leading one of extent 1, along which every point is at 0. Around a point
are two cells along each dim; corner 4·s0 + 2·s1 + s2 is the cell that is above along the dims whose s is 1.

dx gathers as well. The shares that points have in cells are sorted by the cell: counted, each cell allotted
as many places, and each share put into one. Which places a cell gets, and in which order its shares arrive
there, is decided by atomic counters; so the shares of each cell are sorted, by corner and point. Then a cell
adds up its own, always in the same order.
"""

import math
from collections.abc import Sequence
from functools import cache
from math import floor, nan
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.kernels.rows import team_of, team_sum, tiles
from dnncanon.gpu.kernels.windows import SPATIAL, channels_of, mixed_radix, place, position_of
from dnncanon.gpu.runtime import DeviceArray, Kernel, kernel, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec.sampler_problem import PADDING_MODES, GridSampleProblem

THREADS = 256
BLOCKS = 2048
"""Blocks that fill any GPU; their threads loop."""

FEW = 8
"""Shares of a cell that a thread sorts in registers: where points lie as densely as cells, each has 4 or 8."""

GRID_THREADS = 192
"""Of a block that writes a grid: a multiple of 2 and 3, so that a thread stays with its coordinate."""

GRID_EACH = 4
"""Coordinates that such a thread writes."""

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
    blocks = blocks_of_teams(size, 1)
    return blocks, (size, tuple(extents), mixed_radix(blocks * THREADS, extents))


def walk_of_grid(extents: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
    """The same for the coordinates of a grid, and :func:`affine_grid`."""
    size = math.prod(extents)
    blocks = min(BLOCKS, -(-size // (GRID_EACH * GRID_THREADS)))
    return blocks, (size, tuple(extents), mixed_radix(GRID_THREADS, extents))


def blocks_of_teams(positions: int, width: int) -> int:
    """Blocks for so many threads for each position."""
    return max(1, min(BLOCKS, -(-positions * width // THREADS)))


def team_width(x: DeviceArray) -> int:
    """How many threads share the channels of a point: a warp's where those are nearest in memory."""
    channels = x.shape[1]
    space = min(
        (abs(s) for n, s in zip(x.shape[2:], x.strides[2:], strict=True) if n > 1), default=0
    )
    if abs(x.strides[1]) >= space:
        return 1
    return min(32, 1 << max(0, channels - 1).bit_length())


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
def forward(dtype: str, lanes: int, apart: bool) -> Kernel:
    """y from x and grid: a thread takes some channels of a point."""
    number, channels = ELEMENTS[dtype].sum, channels_of(dtype, lanes, apart)
    add, write, move = channels.add, channels.write, channels.move
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
            target = place(y_at, n, c, o0, o1, o2)
            moved = False
            for corner in range(options[6] if somewhere else 0):
                s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
                w = weight[s0] * weight[2 + s1] * weight[4 + s2]
                # What has no share is not read: its NaN does not spread.
                if w != zero:
                    source = place(x_at, n, c, cell[0] + s0, cell[1] + s1, cell[2] + s2)
                    if options[6] == 1:  # as it is: a sum would make +0 of −0
                        move(x, source, x_at[2], y, target, y_at[2])
                        moved = True
                    else:
                        add(sums, x, source, x_at[2], w)
            if not moved:
                write(y, target, y_at[2], sums)
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_forward


@cache
def slopes(dtype: str) -> Kernel:
    """dgrid from dy, x and grid: a team takes a point, each thread some of its channels. Of linear sampling.

    Launch with THREADS threads.
    """
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    locate, sum_of_team, zero = locate_of(dtype), team_sum(number), number(0)

    @kernel
    def grid_sample_slopes(
        dy: Any,
        x: Any,
        grid: Any,
        dgrid: Any,
        size: Any,
        extents: Any,
        channels: Any,
        width: Any,
        options: Any,
        dy_at: Any,
        x_at: Any,
        grid_at: Any,
        dgrid_at: Any,
    ) -> None:
        cell = cuda.local.array(3, _int64)
        weight, slope = cuda.local.array(6, number), cuda.local.array(3, number)
        change, sums = cuda.local.array(3, number), cuda.local.array(3, number)
        held, totals = cuda.local.array(8, _int64), cuda.local.array(8, number)
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, 1)
        for tile in range(_int64(cuda.blockIdx.x), tiles(size, width), _int64(cuda.gridDim.x)):
            index = tile * (THREADS // width) + in_block
            n, o0, o1, o2 = digits_of(min(index, size - 1), extents)
            at = place_of_point(grid_at, n, o0, o1, o2)
            somewhere = locate(grid, at, grid_at[5], options, cell, weight, slope)
            corners = options[6] if somewhere and index < size else _int64(0)
            for corner in range(corners):
                s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
                i0, i1, i2 = cell[0] + s0, cell[1] + s1, cell[2] + s2
                inside = i0 >= 0 and i0 < options[0] and i1 >= 0 and i1 < options[1]
                inside = inside and i2 >= 0 and i2 < options[2]
                changes(change, weight, corner)
                if change[0] == zero and change[1] == zero and change[2] == zero:
                    inside = False
                held[corner] = place(x_at, n, 0, i0, i1, i2) if inside else _int64(-1)
                totals[corner] = zero
            of_y = place(dy_at, n, 0, o0, o1, o2)
            for c in range(member, channels if corners > 0 else _int64(0), width):
                gradient = to_sum(dy[_uint64(of_y + c * dy_at[2])])
                for corner in range(corners):
                    if held[corner] >= 0:
                        value = to_sum(x[_uint64(held[corner] + c * x_at[2])])
                        totals[corner] += gradient * value
            for dim in range(3):
                sums[dim] = zero
            for corner in range(corners):
                changes(change, weight, corner)
                for dim in range(3):
                    # Else the total, which may be NaN, has no part in it.
                    if held[corner] >= 0 and change[dim] != zero:
                        above = corner >> (2 - dim) & 1
                        total = totals[corner]
                        sums[dim] += change[dim] * (total if above == 1 else -total)
            for dim in range(3):
                sums[dim] = sum_of_team(sums[dim], width, 1)
            target = place_of_point(dgrid_at, n, o0, o1, o2)
            for k in range(options[3] if member == 0 and index < size else _int64(0)):
                result = sums[2 - k] * slope[2 - k] if slope[2 - k] != zero else zero
                at = _uint64(target + k * dgrid_at[5])
                dgrid[at] = from_sum(result if somewhere else number(nan))

    return grid_sample_slopes


@device_function
def changes(change: Any, weight: Any, corner: Any) -> None:
    """How fast the weight of a corner grows along each dim, but for the sign."""
    s0, s1, s2 = corner >> 2, corner >> 1 & 1, corner & 1
    change[0] = weight[2 + s1] * weight[4 + s2]
    change[1] = weight[s0] * weight[4 + s2]
    change[2] = weight[s0] * weight[2 + s1]


@device_function
def nothing() -> Any:
    """The slope of the nearest cell."""
    return _int64(0)


# --- Shares ---------------------------------------------------------------------------------------
# Share ``corner·points + point`` of an image has a weight and, unless that is 0, a cell.


@cache
def counted_shares(dtype: str) -> Kernel:
    """The weights of all shares, and how many each cell has: a thread takes a point. ``ends`` holds zeros."""
    number = ELEMENTS[dtype].sum
    locate, zero = locate_of(dtype), number(0)

    @kernel
    def grid_sample_count(
        grid: Any,
        weights: Any,
        ends: Any,
        size: Any,
        extents: Any,
        step: Any,
        points: Any,
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
            first = (
                n * (corners - 1) * points + index
            )  # its share of corner 0, among those of all images
            for corner in range(corners):
                w = weight_of(weight, corner, somewhere, zero)
                weights[_uint64(first + corner * points)] = w
                if w != zero:
                    cuda.atomic.add(ends, _uint64(cell_of(cell, corner, n, options)), 1)
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_count


@kernel
def allotted_places(begins: Any, ends: Any, size: Any) -> None:
    """As many places for each cell as it has shares; ``ends[size]`` counts those that are no longer free.

    A thread takes a cell. Those of a block get theirs one behind the other, at ``begins``; ``ends``, which
    holds the counts, becomes the first place that is free. Launch with THREADS threads.
    """
    sums, base = cuda.shared.array(THREADS, _int64), cuda.shared.array(1, _int64)
    thread = _int64(cuda.threadIdx.x)
    blocks = (size + THREADS - 1) // THREADS
    for block in range(_int64(cuda.blockIdx.x), blocks, _int64(cuda.gridDim.x)):
        cell = block * THREADS + thread
        count = _int64(ends[_uint64(cell)]) if cell < size else _int64(0)
        sums[thread] = count
        cuda.syncthreads()
        # Each adds what is a distance before it: after the last step, all that is before it.
        distance = _int64(1)
        while distance < THREADS:
            before = sums[thread - distance] if thread >= distance else _int64(0)
            cuda.syncthreads()
            sums[thread] += before
            cuda.syncthreads()
            distance *= 2
        if thread == THREADS - 1:
            base[0] = cuda.atomic.add(ends, _uint64(size), sums[thread])
        cuda.syncthreads()
        if cell < size:
            begin = base[0] + sums[thread] - count
            begins[_uint64(cell)] = begin
            ends[_uint64(cell)] = begin
        cuda.syncthreads()


@cache
def placed_shares(dtype: str) -> Kernel:
    """Each share to a place of its cell, in any order: a thread takes a point.

    Places from ``begins`` to before ``ends`` have then been taken.
    """
    number = ELEMENTS[dtype].sum
    locate, zero = locate_of(dtype), number(0)

    @kernel
    def grid_sample_placing(
        grid: Any,
        ends: Any,
        entries: Any,
        size: Any,
        extents: Any,
        step: Any,
        points: Any,
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
                w = weight_of(weight, corner, somewhere, zero)
                if w != zero:
                    held = _uint64(cell_of(cell, corner, n, options))
                    free = cuda.atomic.add(ends, held, 1)
                    entries[_uint64(free)] = corner * points + index - n * points
            digits = advance(digits, step, extents)
            index += stride

    return grid_sample_placing


@device_function
def weight_of(weight: Any, corner: Any, somewhere: Any, zero: Any) -> Any:
    """The weight of a corner: 0 for a cell that is not there, and for all of a point that is nowhere."""
    w = weight[corner >> 2] * weight[2 + (corner >> 1 & 1)] * weight[4 + (corner & 1)]
    return w if somewhere else zero


@device_function
def cell_of(cell: Any, corner: Any, n: Any, options: Any) -> Any:
    """The number of a corner's cell among those of all images."""
    row = (n * options[0] + cell[0] + (corner >> 2)) * options[1] + cell[1] + (corner >> 1 & 1)
    return row * options[2] + cell[2] + (corner & 1)


@device_function
def sort_few(entries: Any, first: Any, count: Any, few: Any) -> None:
    """Sort up to FEW entries in ascending order, in place: neighbours change places in FEW rounds.

    ``few`` is a local array, which becomes registers.
    """
    for k in range(FEW):
        few[k] = _int64(entries[_uint64(first + k)]) if k < count else _int64(2**63 - 1)
    for _ in range(FEW // 2):
        for k in range(0, FEW - 1, 2):
            few[k], few[k + 1] = min(few[k], few[k + 1]), max(few[k], few[k + 1])
        for k in range(1, FEW - 1, 2):
            few[k], few[k + 1] = min(few[k], few[k + 1]), max(few[k], few[k + 1])
    for k in range(FEW):
        if k < count:
            entries[_uint64(first + k)] = few[k]


@device_function
def sort_many(entries: Any, first: Any, count: Any) -> None:
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
def sorted_shares(begins: Any, ends: Any, entries: Any, size: Any) -> None:
    """The shares of each cell in ascending order: a thread takes a cell."""
    few = cuda.local.array(FEW, _int64)
    stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
    cell = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while cell < size:
        begin = _int64(begins[_uint64(cell)])
        count = _int64(ends[_uint64(cell)]) - begin
        if count > FEW:
            sort_many(entries, begin, count)
        elif count > 1:
            sort_few(entries, begin, count, few)
        cell += stride


@cache
def gather(dtype: str, lanes: int, apart: bool) -> Kernel:
    """dx from dy and the shares: a thread takes some channels of a cell."""
    number, channels = ELEMENTS[dtype].sum, channels_of(dtype, lanes, apart)
    clear, add, write = channels.clear, channels.add, channels.write

    @kernel
    def grid_sample_gather(
        dy: Any,
        dx: Any,
        begins: Any,
        ends: Any,
        entries: Any,
        weights: Any,
        size: Any,
        extents: Any,
        step: Any,
        channels_last: Any,
        capacity: Any,
        inputs: Any,
        outputs: Any,
        dy_at: Any,
        dx_at: Any,
    ) -> None:
        points = outputs[0] * outputs[1] * outputs[2]
        sums = cuda.local.array(lanes, number)
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            n, group, i0, i1, i2 = position_of(digits, channels_last)
            c = group * lanes
            cell = _uint64(((n * inputs[0] + i0) * inputs[1] + i1) * inputs[2] + i2)
            clear(sums)
            for at in range(_int64(begins[cell]), _int64(ends[cell])):
                share = _int64(entries[_uint64(at)])
                w = weights[_uint64(n * capacity + share)]
                point = share % points
                rest = point // outputs[2]
                o0 = rest // outputs[1]
                o1, o2 = rest - o0 * outputs[1], point - rest * outputs[2]
                add(sums, dy, place(dy_at, n, c, o0, o1, o2), dy_at[2], w)
            write(dx, place(dx_at, n, c, i0, i1, i2), dx_at[2], sums)
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
    """grid from theta: a thread takes GRID_EACH coordinates of points, GRID_THREADS apart.

    Its row of theta it reads when it comes to another one only. Launch with GRID_THREADS threads.
    """
    element = ELEMENTS[dtype]
    to_sum, from_sum, plain = element.to_sum, element.from_sum, plain_of(element.sum)
    zero = element.sum(0)

    @kernel
    def affine_grid_forward(
        theta: Any,
        grid: Any,
        size: Any,
        extents: Any,
        step: Any,
        aligned: Any,
        theta_at: Any,
        grid_at: Any,
    ) -> None:
        offset, per_image, per_row, per_column = theta_at
        dims, tile = extents[4], _int64(cuda.blockIdx.x)
        held, of_x, of_y, of_z, shift = _int64(-1), zero, zero, zero, zero
        while tile * (GRID_EACH * GRID_THREADS) < size:
            index = tile * (GRID_EACH * GRID_THREADS) + cuda.threadIdx.x
            digits = digits_of(index, extents)
            for _ in range(GRID_EACH):
                if index < size:
                    n, o0, o1, o2, k = digits
                    if n * dims + k != held:
                        held = n * dims + k
                        at = offset + n * per_image + k * per_row
                        of_x = to_sum(theta[_uint64(at)])
                        of_y = to_sum(theta[_uint64(at + per_column)])
                        if dims == 3:
                            of_z = to_sum(theta[_uint64(at + 2 * per_column)])
                        shift = to_sum(theta[_uint64(at + dims * per_column)])
                    total = plain(o2, extents[3], aligned) * of_x
                    total += plain(o1, extents[2], aligned) * of_y
                    if dims == 3:
                        total += plain(o0, extents[1], aligned) * of_z
                    total += shift
                    target = place_of_point(grid_at, n, o0, o1, o2) + k * grid_at[5]
                    grid[_uint64(target)] = from_sum(total)
                digits = advance(digits, step, extents)
                index += GRID_THREADS
            tile += cuda.gridDim.x

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
