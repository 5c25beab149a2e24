"""The kernel of Winograd's F(m, r) with m + r − 1 = 4, in one: transforms, products and the way back.

A block computes tiles (rows) by output channels: 32 x 32 with 4 x 4 points each, 64 x 64 with 4. For some
channels at a time its threads transform a patch each, the points go to shared memory beside those of the
filters, and the products of each point are added up by some of the threads, 8 x 8 in each. The sums go through
shared memory, half of the channels at a time, to the threads that transform them back and finish them.
"""

from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.conv_winograd_transforms import (
    Function,
    finish_tile,
    first_of,
    load_patch,
    meets_source,
    number,
    of_source,
    of_sums,
    piece_of_column,
    tile_of_row,
    zero,
)
from dnncanon.gpu.kernels.indexing import place
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

THREADS = 256
POINTS = 4
"""Of a tile in each dim that is transformed."""
LINES = {1: 64, 2: 32}
"""Rows, and columns, of a block, by how many dims are transformed: 16,384 sums in either case."""
DEPTH = 8
"""Channels whose points are in shared memory at a time."""

_QUAD = 4
_EACH = 8
"""Rows, and columns, of a thread."""
_SUMS = _EACH**2

_int64, _uint32, _uint64 = types.int64, types.uint32, types.uint64


@cache
def _step(lines: int, slab: int) -> Function:
    """step(sums, memory, at_a, at_b, k): the products of one channel; two quads of rows by two of columns."""
    half = lines // 2

    @device_function
    def step(sums: Any, memory: Any, at_a: Any, at_b: Any, k: Any) -> None:
        a, b = cuda.local.array(_EACH, number), cuda.local.array(_EACH, number)
        for q in range(2):
            here = k * lines + q * half
            quad = ptx.load_shared_v4_f32(ptx.shared_address(memory, at_a + here))
            other = ptx.load_shared_v4_f32(ptx.shared_address(memory, at_b + (slab + here)))
            for e in range(_QUAD):
                a[q * _QUAD + e], b[q * _QUAD + e] = quad[e], other[e]
        for i in range(_EACH):
            for j in range(_EACH):
                sums[i * _EACH + j] += a[i] * b[j]

    return step


@cache
def _store_half(lines: int, which: int) -> Function:
    """store(sums, memory, at): a thread's sums of one half of the columns, to memory[point, column, row]."""
    half = lines // 2

    @device_function
    def store(sums: Any, memory: Any, at: Any) -> None:
        for i in range(_EACH):
            for j in range(_QUAD):
                to = at + j * lines + i // _QUAD * half + i % _QUAD
                memory[_uint32(to)] = sums[i * _EACH + which * _QUAD + j]

    return store


@cache
def _to_shared(count: int, stride: int) -> Function:
    """store(points, memory, at)."""

    @device_function
    def store(points: Any, memory: Any, at: Any, turn: Any) -> None:
        memory[_uint32(at + turn * stride)] = points[turn]

    return unrolled(store, times=count, arguments=3)


@cache
def _from_shared(count: int, stride: int) -> Function:
    """load(points, memory, at)."""

    @device_function
    def load(points: Any, memory: Any, at: Any, turn: Any) -> None:
        points[turn] = memory[_uint32(at + turn * stride)]

    return unrolled(load, times=count, arguments=3)


@cache
def fused(outputs: int, taps: int, dims: int) -> Kernel:
    """The kernel. ``filters`` are [g, c, point, j], with padded channels j as many as ``counts`` says.

    ``counts`` are groups, the batch, rows, channels, padded channels, and columns c.
    """
    tile, lines = outputs + taps - 1, LINES[dims]
    count, outs = tile**dims, outputs**dims
    patch_rows, tile_rows = (tile, outputs) if dims == 2 else (1, 1)
    plane, half = DEPTH * lines, lines // 2
    slab, words = count * plane, count * lines * half
    threads_of_point = THREADS // count
    across = lines // _EACH
    patches, copies = plane // THREADS, slab // THREADS
    load, transform = load_patch(patch_rows, tile), of_source(outputs, taps, dims)
    to_shared, from_shared = _to_shared(count, plane), _from_shared(count, half * lines)
    back, finish = of_sums(outputs, taps, dims), finish_tile(tile_rows, outputs)
    steps = unrolled(_step(lines, slab), times=DEPTH, arguments=4)
    store_first, store_second = _store_half(lines, 0), _store_half(lines, 1)

    @kernel(launch_bounds=(THREADS, 1))
    def conv_winograd(
        source: Any,
        filters: Any,
        counts: Any,
        tiles: Any,
        pieces: Any,
        cut: Any,
        spans: Any,
        extents: Any,
        positions: Any,
        source_at: Any,
        out: Any,
        out_at: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        groups, batch, rows, channels, padded, columns = counts
        memory = cuda.shared.array(words, number, 16)
        sums = cuda.local.array(_SUMS, number)
        patch = cuda.local.array(count, number)
        points = cuda.local.array(count, number)
        values = cuda.local.array(outs, number)
        ends, nothing = (extents[1], extents[2]), (_int64(0), _int64(0))
        near = (source_at[5], source_at[6])
        thread = _int64(cuda.threadIdx.x)
        point, of_point = thread // threads_of_point, thread % threads_of_point
        down, right = of_point // across * _QUAD, of_point % across * _QUAD
        at_a, at_b = point * plane + down, point * plane + right
        # A thread's patches are of one row: there are fewer rows than threads.
        row_here, k_here = thread % lines, thread // lines
        blocks_down, blocks_right = (rows + lines - 1) // lines, (channels + lines - 1) // lines
        block = _int64(cuda.blockIdx.x)
        while block < groups * blocks_down * blocks_right:
            first_j, rest = block % blocks_right * lines, block // blocks_right
            first_row, g = rest % blocks_down * lines, rest // blocks_down
            b, p0, p1, p2 = tile_of_row(first_row + row_here, tiles)
            from0, from1, from2 = first_of(p0, p1, p2, cut)
            for i in range(_EACH):
                for j in range(_EACH):
                    sums[i * _EACH + j] = zero
            for first in range(0, columns, DEPTH):
                for n in range(patches):
                    k = k_here + n * (THREADS // lines)
                    r, u0, u1, u2 = piece_of_column(first + k, pieces)
                    c0 = from0 + u0 * cut[3]
                    there = b < batch and first + k < columns and c0 >= 0 and c0 < extents[0]
                    inside = ends if there else nothing
                    at = place(source_at, g, b, r, c0, _int64(0), _int64(0))
                    load(patch, source, at, from1 + u1 * cut[4], from2 + u2 * cut[5], inside, near)
                    transform(patch, points)
                    to_shared(points, memory, k * lines + row_here)
                for n in range(copies):
                    to = n * THREADS + thread
                    j, k, of = to % lines, to // lines % DEPTH, to // plane
                    value = zero
                    if first + k < columns and first_j + j < padded:
                        at = ((g * columns + first + k) * count + of) * padded + first_j + j
                        value = filters[_uint64(at)]
                    memory[_uint32(slab + to)] = value
                cuda.syncthreads()
                steps(sums, memory, at_a, at_b)
                cuda.syncthreads()
            for which in range(2):
                if which == 0:
                    store_first(sums, memory, (point * half + right) * lines + down)
                else:
                    store_second(sums, memory, (point * half + right) * lines + down)
                cuda.syncthreads()
                met = meets_source(from0, from1, from2, pieces, cut, spans, extents)
                for n in range(thread // lines, half, THREADS // lines):
                    from_shared(points, memory, n * lines + row_here)
                    back(points, values)
                    j = first_j + which * half + n
                    if j < channels and b < batch:
                        finish(
                            values,
                            met,
                            (g, b, j, p0, p1 * tile_rows, p2 * outputs),
                            positions,
                            out,
                            out_at,
                            bias,
                            bias_at[0] + (g * channels + j) * bias_at[1],
                            residual,
                            residual_at,
                            flags,
                            alphas,
                        )
                cuda.syncthreads()
            block += _int64(cuda.gridDim.x)

    return conv_winograd
