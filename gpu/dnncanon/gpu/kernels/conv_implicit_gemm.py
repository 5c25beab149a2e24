"""Implicit GEMM: convolution as a matrix product whose operands are gathered while they are multiplied.

A group's correlation is C = A·B with rows (b, q), columns j and depth (r, t): A holds the windows of
the source and is never stored, B is the filter. A block computes a tile of C: it gathers a slice of A
and of B into shared memory while it multiplies the slice before, each thread keeping an 8 x 8 part of
the tile in registers. Where there are too few tiles to fill a GPU, the depth is split; the parts go
to the workspace and a second kernel adds them in order, so that the result is the same in every run.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.correlation import Correlation, Layout, nearest
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.epilogue import make_epilogue
from dnncanon.gpu.kernels.indexing import output_position, place
from dnncanon.gpu.kernels.plan import BLOCKS, Epilogue, Plan, Tensors
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, reinterpret
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

LANES = 8
"""Adjacent threads that read adjacent elements: 32 bytes of float32, one sector of memory."""

FRAGMENT = 8
"""Rows and columns of a tile that a thread keeps in registers."""

PAD = 4
"""Elements between the rows of a tile in shared memory, against bank conflicts."""

LEAST_STEPS = 16
"""Slices that each part of a split depth has at least."""

_int64, _uint64 = types.int64, types.uint64


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of C that a block computes, and the depth of a slice."""

    rows: int
    columns: int
    depth: int

    @property
    def threads(self) -> int:
        return self.rows * self.columns // FRAGMENT**2

    def count(self, part: Correlation) -> int:
        """Tiles of a correlation, its depth not split."""
        return part.groups * -(-part.rows // self.rows) * -(-part.channels_out // self.columns)

    def area(self, part: Correlation) -> int:
        """Elements of C that the tiles cover, those outside of it included."""
        return self.count(part) * self.rows * self.columns

    def splits(self, part: Correlation) -> int:
        """Into how many parts the depth is split."""
        steps = -(-part.depth // self.depth)
        return max(1, min(BLOCKS // max(1, self.count(part)), steps // LEAST_STEPS))


NARROW = Tile(256, 16, 8)
SMALL = Tile(64, 64, 8)
LARGE = Tile(128, 128, 8)


def tile_for(part: Correlation) -> Tile:
    """Narrow for few columns; large where that still makes enough blocks to fill a GPU."""
    if part.channels_out <= NARROW.columns:
        return NARROW
    return LARGE if LARGE.count(part) >= 2 * BLOCKS else SMALL


class ImplicitGemm:
    """The algorithm "implicit_gemm"."""

    name = "implicit_gemm"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        return None

    def pays(self, plan: Plan) -> bool:
        """Whether tiles are filled to an eighth, or few outputs with long sums need splitting.

        The columns of a depthwise convolution fill a sixteenth: there, threads do better alone.
        """
        parts = [(tile_for(part), part) for part in plan.correlations]
        covered = sum(tile.area(part) for tile, part in parts)
        filled = 8 * sum(part.size for _, part in parts) >= covered
        return filled or any(tile.splits(part) > 1 for tile, part in parts)

    def workspace_bytes(self, plan: Plan) -> int:
        itemsize = ELEMENTS[plan.dtype].sum_dtype.itemsize
        splits = [(tile_for(part).splits(part), part.size) for part in plan.correlations]
        return max((n * size * itemsize for n, size in splits if n > 1), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size == 0:
                continue
            tile = tile_for(part)
            splits = tile.splits(part)
            if splits == 1:
                _multiply(plan.dtype, plan.dtype, tile, part, tensors, 1, stream)
            else:
                assert workspace is not None
                _multiply_split(plan.dtype, tile, part, tensors, splits, workspace, stream)


def _multiply_split(
    dtype: str,
    tile: Tile,
    part: Correlation,
    tensors: Tensors,
    splits: int,
    workspace: DeviceArray,
    stream: object,
) -> None:
    sum_dtype = ELEMENTS[dtype].sum_dtype
    parts = reinterpret(workspace, sum_dtype)
    partial = replace(part, out=_dense(part))
    into = replace(tensors, out=parts, epilogue=Epilogue())
    _multiply(dtype, sum_dtype.name, tile, partial, into, splits, stream)
    args = (
        parts,
        tensors.out,
        splits,
        part.sizes,
        part.out.strides,
        part.channels_adjacent,
        *tensors.epilogue.arguments(absent=tensors.out),
    )
    threads = 128
    launch(sum_splits(dtype), blocks_for(part.size, threads), threads, args, stream=stream)


def _dense(part: Correlation) -> Layout:
    """The output's elements in a row, in the order of ``output_position``."""
    _, q1, q2 = part.positions
    positions, channels = math.prod(part.positions), part.groups * part.channels_out
    if part.channels_adjacent:
        spatial = (q1 * q2 * channels, q2 * channels, channels)
        return Layout(0, part.channels_out, positions * channels, 1, spatial)
    outer = part.channels_out * positions
    return Layout(0, part.batch * outer, outer, positions, (q1 * q2, q2, 1))


def _multiply(
    dtype: str,
    out_dtype: str,
    tile: Tile,
    part: Correlation,
    tensors: Tensors,
    splits: int,
    stream: object,
) -> None:
    args = (
        tensors.source,
        tensors.filter,
        tensors.out,
        part.sizes,
        part.window,
        part.source.strides,
        part.filter.strides,
        part.out.strides,
        (splits, *_orders(part)),
        *tensors.epilogue.arguments(absent=tensors.out),
    )
    function = implicit_gemm(dtype, out_dtype, tile, _index_bits(tile, part, tensors, splits))
    grid = blocks_for(tile.count(part) * splits, 1)
    launch(function, grid, tile.threads, args, stream=stream)


def _orders(part: Correlation) -> tuple[int, int, int, int]:
    """How to walk through memory so that adjacent threads read adjacent elements.

    Whether b is the fastest of a row's indices, whether r is the fastest of the depth's, and whether
    adjacent threads read along the depth: of the source, of the filter.
    """
    steps = [abs(s * n) for s, n in zip(part.source.spatial, part.step, strict=True)]
    gaps = [abs(s * n) for s, n in zip(part.source.spatial, part.gap, strict=True)]
    position = nearest(steps, part.positions)
    tap = nearest(gaps, part.taps)
    batch = nearest([part.source.outer], [part.batch])
    channel = nearest([part.source.inner], [part.channels_in])
    filter_depth = min(
        nearest([part.filter.inner], [part.channels_in]), nearest(part.filter.spatial, part.taps)
    )
    filter_column = nearest([part.filter.outer], [part.channels_out])
    return (
        int(batch < position),
        int(channel < tap),
        int(min(channel, tap) < min(batch, position)),
        int(filter_depth < filter_column),
    )


def _index_bits(tile: Tile, part: Correlation, tensors: Tensors, splits: int) -> int:
    """32 where all positions, coordinates and counts fit with room for one addition, else 64."""
    arrays = (tensors.source, tensors.filter, tensors.out, tensors.epilogue.residual)
    spans = [array.span for array in arrays if array is not None]
    dims = zip(
        part.extents, part.positions, part.step, part.taps, part.gap, part.shift, strict=True
    )
    coordinates = [max(i, q * u + t * gap + abs(p)) for i, q, u, t, gap, p in dims]
    counts = [part.rows + tile.rows, part.depth + tile.depth, part.size * splits]
    return 32 if max(*spans, *coordinates, *counts) < 2**30 else 64


@device_function
def _load_quad_f32(target: Any, first: Any, array: Any, at: Any) -> None:
    """Four adjacent elements of shared memory in one 16-byte load, which NVVM does not make by itself."""
    quad = ptx.load_shared_v4_f32(ptx.shared_address(array, at))
    for i in range(4):
        target[first + i] = quad[i]


@device_function
def _load_quad_f64(target: Any, first: Any, array: Any, at: Any) -> None:
    for i in range(4):
        target[first + i] = array[_uint64(at + i)]


# The columns of the tables in shared memory. Of a row: where its window starts, in the source's
# memory and in coordinates, and where its outputs and residuals are. Of an element of depth: its
# distance from the start of the window, in memory and in coordinates, and its place in the filter.
_SOURCE, _I0, _I1, _I2, _OUT, _RESIDUAL = range(6)
_FILTER = 4


@cache
def implicit_gemm(dtype: str, out_dtype: str, tile: Tile, index_bits: int) -> Kernel:
    """The kernel from one element type to another. Launch with ``tile.threads`` threads."""
    element = ELEMENTS[dtype]
    number, zero, to_sum = element.sum, element.sum(0), element.to_sum
    finish = make_epilogue(out_dtype)
    load_quad = _load_quad_f32 if element.sum_dtype.itemsize == 4 else _load_quad_f64
    index = types.int32 if index_bits == 32 else types.int64
    # Numba lets negative indices count from the end, at the price of a comparison; not unsigned ones.
    place_of = types.uint32 if index_bits == 32 else types.uint64
    outside = -(2 ** (index_bits - 2))  # a coordinate that no tap brings into the source
    threads, bm, bn, bk = tile.threads, tile.rows, tile.columns, tile.depth
    readers = threads // LANES
    rows_each, columns_each, slices_each = bm // readers, bn // readers, bk // LANES
    source_each, filter_each = rows_each * slices_each, columns_each * slices_each
    pitch_a, pitch_b = bm + PAD, bn + PAD
    words_a, words_b = 2 * bk * pitch_a, 2 * bk * pitch_b
    row_columns, depth_columns = (bm, 6), (2, bk, 5)
    fragment, quad, area = FRAGMENT, FRAGMENT // 2, FRAGMENT * FRAGMENT
    fragments_across = bn // FRAGMENT
    jump_down, jump_across = bm // 2, bn // 2

    @device_function
    def tabulate_rows(
        table: Any,
        thread: Any,
        first_row: Any,
        batch_fastest: Any,
        g: Any,
        sizes: Any,
        window: Any,
        source_at: Any,
        out_at: Any,
        residual_at: Any,
    ) -> None:
        positions = sizes[3] * sizes[4] * sizes[5]
        for i in range(thread, bm, threads):
            at = place_of(i)
            row = index(first_row + i)
            inside = row < sizes[1] * positions
            if not inside:
                row = index(0)
            b, q = row // positions, row % positions
            if batch_fastest:
                q, b = row // sizes[1], row % sizes[1]
            q2 = q % sizes[5]
            q1 = q // sizes[5] % sizes[4]
            q0 = q // sizes[5] // sizes[4]
            i0 = q0 * window[3] - window[9]
            i1 = q1 * window[4] - window[10]
            i2 = q2 * window[5] - window[11]
            table[at, _SOURCE] = place(source_at, g, b, 0, i0, i1, i2)
            table[at, _I0] = i0 if inside else outside
            table[at, _I1] = i1
            table[at, _I2] = i2
            table[at, _OUT] = place(out_at, g, b, 0, q0, q1, q2)
            table[at, _RESIDUAL] = place(residual_at, g, b, 0, q0, q1, q2)

    @device_function
    def tabulate_depth(
        table: Any,
        thread: Any,
        s: Any,
        channel_fastest: Any,
        g: Any,
        sizes: Any,
        window: Any,
        source_at: Any,
        filter_at: Any,
    ) -> None:
        taps = sizes[7] * sizes[8] * sizes[9]
        buffer, at = place_of(s & 1), place_of(thread)
        k = index(s * bk + thread)
        inside = k < sizes[6] * taps
        if not inside:
            k = index(0)
        r, t = k // taps, k % taps
        if channel_fastest:
            t, r = k // sizes[6], k % sizes[6]
        t2 = t % sizes[9]
        t1 = t // sizes[9] % sizes[8]
        t0 = t // sizes[9] // sizes[8]
        i0, i1, i2 = t0 * window[6], t1 * window[7], t2 * window[8]
        moved = i0 * source_at[4] + i1 * source_at[5] + i2 * source_at[6]
        table[buffer, at, _SOURCE] = r * source_at[3] + moved
        table[buffer, at, _I0] = i0 if inside else outside
        table[buffer, at, _I1] = i1
        table[buffer, at, _I2] = i2
        table[buffer, at, _FILTER] = place(filter_at, g, 0, r, t0, t1, t2)

    @device_function
    def gather_source(
        target: Any, source: Any, rows: Any, depths: Any, s: Any, row: Any, k: Any, window: Any
    ) -> None:
        buffer = place_of(s & 1)
        extent0, extent1, extent2 = place_of(window[0]), place_of(window[1]), place_of(window[2])
        for m in range(slices_each):
            k_at = place_of(k + m * LANES)
            k_source = depths[buffer, k_at, _SOURCE]
            k_i0 = depths[buffer, k_at, _I0]
            k_i1 = depths[buffer, k_at, _I1]
            k_i2 = depths[buffer, k_at, _I2]
            for n in range(rows_each):
                at = place_of(row + n * readers)
                value = zero
                # As an unsigned number a negative coordinate is beyond every extent.
                if (
                    (place_of(rows[at, _I0] + k_i0) < extent0)
                    & (place_of(rows[at, _I1] + k_i1) < extent1)
                    & (place_of(rows[at, _I2] + k_i2) < extent2)
                ):
                    value = to_sum(source[place_of(rows[at, _SOURCE] + k_source)])
                target[m * rows_each + n] = value

    @device_function
    def gather_filter(
        target: Any,
        filter: Any,
        depths: Any,
        s: Any,
        column: Any,
        k: Any,
        column_stride: Any,
        columns: Any,
        depth: Any,
    ) -> None:
        buffer = place_of(s & 1)
        for m in range(slices_each):
            k_at = k + m * LANES
            inside = index(s * bk + k_at) < index(depth)
            first = index(depths[buffer, place_of(k_at), _FILTER] + column * column_stride)
            for n in range(columns_each):
                value = zero
                if inside & (index(column + n * readers) < index(columns)):
                    value = to_sum(filter[place_of(first + index(n * readers * column_stride))])
                target[m * columns_each + n] = value

    @device_function
    def multiply(sums: Any, slice_a: Any, slice_b: Any, s: Any, down: Any, across: Any) -> None:
        part_a = cuda.local.array(fragment, number)
        part_b = cuda.local.array(fragment, number)
        for k in range(bk):
            at_a = (_int64(s & 1) * bk + k) * pitch_a + down
            at_b = (_int64(s & 1) * bk + k) * pitch_b + across
            load_quad(part_a, 0, slice_a, at_a)
            load_quad(part_a, quad, slice_a, at_a + jump_down)
            load_quad(part_b, 0, slice_b, at_b)
            load_quad(part_b, quad, slice_b, at_b + jump_across)
            for i in range(fragment):
                for j in range(fragment):
                    sums[i * fragment + j] += part_a[i] * part_b[j]

    @device_function
    def store_slice(
        target: Any, values: Any, s: Any, each: Any, pitch: Any, first: Any, k: Any
    ) -> None:
        for m in range(slices_each):
            at = ((s & 1) * bk + k + m * LANES) * pitch + first
            for n in range(each):
                target[place_of(at + n * readers)] = values[m * each + n]

    @kernel
    def conv_implicit_gemm(
        source: Any,
        filter: Any,
        out: Any,
        sizes: Any,
        window: Any,
        source_at: Any,
        filter_at: Any,
        out_at: Any,
        schedule: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        splits, batch_fastest, channel_fastest, source_along_depth, filter_along_depth = schedule
        channels_out = sizes[2]
        rows = sizes[1] * sizes[3] * sizes[4] * sizes[5]
        depth = sizes[6] * sizes[7] * sizes[8] * sizes[9]

        row_table = cuda.shared.array(row_columns, index, 16)
        depth_table = cuda.shared.array(depth_columns, index, 16)
        # Two slices each: one is multiplied while the next is gathered.
        slice_a = cuda.shared.array(words_a, number, 16)
        slice_b = cuda.shared.array(words_b, number, 16)
        sums = cuda.local.array(area, number)
        next_a = cuda.local.array(source_each, number)
        next_b = cuda.local.array(filter_each, number)

        thread = index(cuda.threadIdx.x)
        low, high = thread % LANES, thread // LANES
        a_row, a_k = low + LANES * (high // LANES), high % LANES
        b_column, b_k = a_row, a_k
        if source_along_depth:
            a_row, a_k = high, low
        if filter_along_depth:
            b_column, b_k = high, low
        down = thread // fragments_across * quad
        across = thread % fragments_across * quad

        row_tiles = (rows + bm - 1) // bm
        column_tiles = (channels_out + bn - 1) // bn
        slices = (depth + bk - 1) // bk
        slices_per_split = (slices + splits - 1) // splits
        tiles = sizes[0] * splits * row_tiles * column_tiles
        tile = _int64(cuda.blockIdx.x)
        while tile < tiles:
            first_column = tile % column_tiles * bn
            rest = tile // column_tiles
            first_row = rest % row_tiles * bm
            rest = rest // row_tiles
            split = rest % splits
            g = rest // splits
            first = min(slices, split * slices_per_split)
            end = min(slices, first + slices_per_split)

            tabulate_rows(
                row_table,
                thread,
                first_row,
                batch_fastest,
                g,
                sizes,
                window,
                source_at,
                out_at,
                residual_at,
            )
            for i in range(area):
                sums[i] = zero

            # Slice s is tabulated in step s - 2, gathered in step s - 1, multiplied in step s.
            for s in range(first - 2, end):
                gathers = s + 1 >= first and s + 1 < end
                if gathers:
                    gather_source(next_a, source, row_table, depth_table, s + 1, a_row, a_k, window)
                    gather_filter(
                        next_b,
                        filter,
                        depth_table,
                        s + 1,
                        first_column + b_column,
                        b_k,
                        filter_at[2],
                        channels_out,
                        depth,
                    )
                if s >= first:
                    multiply(sums, slice_a, slice_b, s, down, across)
                if gathers:
                    store_slice(slice_a, next_a, s + 1, rows_each, pitch_a, a_row, a_k)
                    store_slice(slice_b, next_b, s + 1, columns_each, pitch_b, b_column, b_k)
                if s + 2 < end and thread < bk:
                    tabulate_depth(
                        depth_table,
                        thread,
                        s + 2,
                        channel_fastest,
                        g,
                        sizes,
                        window,
                        source_at,
                        filter_at,
                    )
                cuda.syncthreads()

            split_at = split * sizes[0] * sizes[2] * rows
            for i in range(fragment):
                m = down + i % quad + i // quad * jump_down
                if first_row + m < rows:
                    for n in range(fragment):
                        j = first_column + across + n % quad + n // quad * jump_across
                        if j < channels_out:
                            finish(
                                sums[i * fragment + n],
                                out,
                                row_table[m, _OUT] + j * out_at[3] + split_at,
                                bias,
                                bias_at[0] + (g * channels_out + j) * bias_at[1],
                                residual,
                                row_table[m, _RESIDUAL] + j * residual_at[3],
                                flags,
                                alphas,
                            )
            cuda.syncthreads()
            tile += cuda.gridDim.x

    return conv_implicit_gemm


@cache
def sum_splits(dtype: str) -> Kernel:
    """The kernel that adds the parts of a split depth, in order, and finishes the sums."""
    element = ELEMENTS[dtype]
    zero, finish = element.sum(0), make_epilogue(dtype)

    @kernel
    def conv_sum_splits(
        parts: Any,
        out: Any,
        splits: Any,
        sizes: Any,
        out_at: Any,
        channels_fastest: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        total = sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4] * sizes[5]
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < total:
            value = zero
            for split in range(splits):
                value += parts[_uint64(split * total + position)]
            g, b, j, q0, q1, q2 = output_position(position, sizes, channels_fastest)
            finish(
                value,
                out,
                place(out_at, g, b, j, q0, q1, q2),
                bias,
                bias_at[0] + (g * sizes[2] + j) * bias_at[1],
                residual,
                place(residual_at, g, b, j, q0, q1, q2),
                flags,
                alphas,
            )
            position += stride

    return conv_sum_splits
