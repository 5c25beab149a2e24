"""The kernels of Winograd's transforms: of filters and sources into points, and of sums of products back.

A thread transforms one patch, in registers, with the matrices of ``dnncanon.spec.numerics``: the last dim, or
the last two, one after the other. Points are the slowest dim of what is written, so that adjacent threads write
adjacent words of each. Names are those of ``conv_winograd.Form``.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.epilogue import make_epilogue
from dnncanon.gpu.kernels.indexing import place
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, generated, types
from dnncanon.spec.numerics import Matrix, winograd_transforms

THREADS = 128

Function = Callable[..., Any]

_int64, _uint64 = types.int64, types.uint64
number = types.float32
zero = number(0)


# --- Matrices as straight-line code ---------------------------------------------------------------


@cache
def of_filter(outputs: int, taps: int, dims: int) -> Function:
    """transform(patch, points): G·g, or G·g·Gᵀ."""
    return _transform(winograd_transforms(outputs, taps)[1], dims)


@cache
def of_source(outputs: int, taps: int, dims: int) -> Function:
    """transform(patch, points): Bᵀ·d, or Bᵀ·d·B."""
    return _transform(winograd_transforms(outputs, taps)[2], dims)


@cache
def of_sums(outputs: int, taps: int, dims: int) -> Function:
    """transform(points, outputs): Aᵀ·m, or Aᵀ·m·A."""
    return _transform(winograd_transforms(outputs, taps)[0], dims)


def _transform(matrix: Matrix, dims: int) -> Function:
    """transform(before, after): the matrix times a vector, or times both sides of a square, row by row."""
    rows, columns = len(matrix), len(matrix[0])
    if dims == 1:
        return unrolled(_line(matrix, (0, 1), (0, 1)), times=1, arguments=2)
    along = unrolled(_line(matrix, (columns, 1), (rows, 1)), times=columns, arguments=2)
    down = unrolled(_line(matrix, (1, rows), (1, rows)), times=rows, arguments=2)
    between = columns * rows

    @device_function
    def transform(before: Any, after: Any) -> None:
        half = cuda.local.array(between, number)
        along(before, half)
        down(half, after)

    return transform


def _line(matrix: Matrix, before_at: tuple[int, int], after_at: tuple[int, int]) -> Function:
    """line(before, after, turn): one line; ``_at`` are the distances of lines, and of elements of a line."""
    line, element = before_at
    body = [f"    d{k} = before[turn * {line} + {k * element}]" for k, _ in enumerate(matrix[0])]
    scope: dict[str, Any] = {}
    line, element = after_at
    for o, row in enumerate(matrix):
        terms: list[str] = []
        # Those that are added come first: a leading minus would be one more operation.
        for k, factor in sorted(enumerate(row), key=lambda term: term[1] < 0):
            if factor == 0:
                continue
            name, size = f"c{o}_{k}", abs(factor)
            scope[name] = number(float(size))
            term = f"d{k}" if size == 1 else f"{name} * d{k}"
            terms.append(f"- {term}" if factor < 0 else f"+ {term}" if terms else term)
        body.append(f"    after[turn * {line} + {o * element}] = {' '.join(terms)}")
    source = "\n".join(["def line(before, after, turn):", *body])
    return device_function(generated(source, scope))


# --- Patches and points ---------------------------------------------------------------------------


@cache
def load_patch(rows: int, columns: int) -> Function:
    """load(patch, array, at, c1, c2, ends, strides): the elements from coordinates (c1, c2) on, 0 outside.

    ``ends`` and ``strides`` are those of the last two dims; ``at`` is where coordinates (0, 0) are.
    """

    @device_function
    def load(
        patch: Any, array: Any, at: Any, c1: Any, c2: Any, ends: Any, strides: Any, turn: Any
    ) -> None:
        i, j = c1 + turn // columns, c2 + turn % columns
        value = zero
        if i >= 0 and j >= 0 and i < ends[0] and j < ends[1]:
            value = array[_uint64(at + i * strides[0] + j * strides[1])]
        patch[turn] = value

    return unrolled(load, times=rows * columns, arguments=7)


@cache
def _store_points(count: int) -> Function:
    """store(points, out, at, stride)."""

    @device_function
    def store(points: Any, out: Any, at: Any, stride: Any, turn: Any) -> None:
        out[_uint64(at + turn * stride)] = points[turn]

    return unrolled(store, times=count, arguments=4)


@cache
def _load_points(count: int) -> Function:
    """load(points, sums, at, stride)."""

    @device_function
    def load(points: Any, sums: Any, at: Any, stride: Any, turn: Any) -> None:
        points[turn] = sums[_uint64(at + turn * stride)]

    return unrolled(load, times=count, arguments=4)


@cache
def finish_tile(rows: int, columns: int) -> Function:
    """finish(values, met, at, positions, out, out_at, bias, bias_at, residual, residual_at, flags, alphas).

    The outputs of a tile, those behind the last position left out; ``at`` is (g, b, j) and the first output's
    position. A tile that has ``met`` no element is 0, whatever the filter's Inf and NaN have made of it.
    """
    finish = make_epilogue("float32")

    @device_function
    def finish_one(
        values: Any,
        met: Any,
        at: Any,
        positions: Any,
        out: Any,
        out_at: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
        turn: Any,
    ) -> None:
        g, b, j, q0, first1, first2 = at
        q1, q2 = first1 + turn // columns, first2 + turn % columns
        if q1 < positions[1] and q2 < positions[2]:
            finish(
                values[turn] if met else zero,
                out,
                place(out_at, g, b, j, q0, q1, q2),
                bias,
                bias_at,
                residual,
                place(residual_at, g, b, j, q0, q1, q2),
                flags,
                alphas,
            )

    return unrolled(finish_one, times=rows * columns, arguments=12)


# --- Where tiles and pieces are -------------------------------------------------------------------


@device_function
def tile_of_row(row: Any, tiles: Any) -> Any:
    """(b, three numbers of a tile) of a row."""
    p2, rest = row % tiles[2], row // tiles[2]
    p1, rest = rest % tiles[1], rest // tiles[1]
    return rest // tiles[0], rest % tiles[0], p1, p2


@device_function
def piece_of_column(column: Any, pieces: Any) -> Any:
    """(r, three numbers of a piece of the taps) of a column."""
    u2, rest = column % pieces[2], column // pieces[2]
    u1, rest = rest % pieces[1], rest // pieces[1]
    return rest // pieces[0], rest % pieces[0], u1, u2


@device_function
def first_of(p0: Any, p1: Any, p2: Any, cut: Any) -> Any:
    """Coordinates of the first element that a tile meets with its first piece."""
    return p0 * cut[0] - cut[6], p1 * cut[1] - cut[7], p2 * cut[2] - cut[8]


@device_function
def _meets(first: Any, apart: Any, count: Any, span: Any, extent: Any) -> Any:
    """Whether one of the patches [first + u·apart, … + span), u < count, has an element of [0, extent)."""
    before = 1 - span - first
    u = (before + apart - 1) // apart if before > 0 else _int64(0)
    return u < count and first + u * apart < extent


@device_function
def meets_source(c0: Any, c1: Any, c2: Any, pieces: Any, cut: Any, spans: Any, extents: Any) -> Any:
    """Whether a tile that begins there meets any element, in any piece."""
    return (
        _meets(c0, cut[3], pieces[0], spans[0], extents[0])
        and _meets(c1, cut[4], pieces[1], spans[1], extents[1])
        and _meets(c2, cut[5], pieces[2], spans[2], extents[2])
    )


# --- The kernels ----------------------------------------------------------------------------------


@cache
def filters(outputs: int, taps: int, dims: int) -> Kernel:
    """The kernel out[point, g, c, j] = the filter's points, 0 for j behind the last channel.

    ``counts`` are groups, channels, channels with the padding, and columns c; ``out_at`` the strides of out.
    """
    rows, tile = (taps if dims == 2 else 1), outputs + taps - 1
    patch_size, count = rows * taps, tile**dims
    load, transform = load_patch(rows, taps), of_filter(outputs, taps, dims)
    store = _store_points(count)

    @kernel
    def conv_winograd_filters(
        filter: Any, out: Any, counts: Any, pieces: Any, taps_of: Any, layout: Any, out_at: Any
    ) -> None:
        groups, channels, padded, columns = counts
        each1, each2, ends = taps_of[0], taps_of[1], (taps_of[2], taps_of[3])
        nothing = (_int64(0), _int64(0))
        patch = cuda.local.array(patch_size, number)
        points = cuda.local.array(count, number)
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while index < groups * columns * padded:
            j, rest = index % padded, index // padded
            c, g = rest % columns, rest // columns
            r, u0, u1, u2 = piece_of_column(c, pieces)
            at = place(layout, g, j, r, u0, _int64(0), _int64(0))
            inside = ends if j < channels else nothing
            load(patch, filter, at, u1 * each1, u2 * each2, inside, (layout[5], layout[6]))
            transform(patch, points)
            store(points, out, g * out_at[1] + c * out_at[2] + j, out_at[0])
            index += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return conv_winograd_filters


@cache
def sources(outputs: int, taps: int, dims: int) -> Kernel:
    """The kernel out[point, g, c, row] = the points of the source's patches, 0 for rows behind the last tile.

    ``counts`` are groups, the batch, the first row, rows with the padding, and columns c.
    """
    tile = outputs + taps - 1
    rows = tile if dims == 2 else 1
    count = tile**dims
    load, transform, store = (
        load_patch(rows, tile),
        of_source(outputs, taps, dims),
        _store_points(count),
    )

    @kernel
    def conv_winograd_sources(
        source: Any,
        out: Any,
        counts: Any,
        tiles: Any,
        pieces: Any,
        cut: Any,
        extents: Any,
        layout: Any,
    ) -> None:
        groups, batch, first, padded, columns = counts
        ends, nothing = (extents[1], extents[2]), (_int64(0), _int64(0))
        patch = cuda.local.array(count, number)
        points = cuda.local.array(count, number)
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        total = groups * columns * padded
        while index < total:
            row, rest = index % padded, index // padded
            c, g = rest % columns, rest // columns
            b, p0, p1, p2 = tile_of_row(first + row, tiles)
            r, u0, u1, u2 = piece_of_column(c, pieces)
            c0, c1, c2 = first_of(p0, p1, p2, cut)
            c0 += u0 * cut[3]
            inside = ends if b < batch and c0 >= 0 and c0 < extents[0] else nothing
            at = place(layout, g, b, r, c0, _int64(0), _int64(0))
            near = (layout[5], layout[6])
            load(patch, source, at, c1 + u1 * cut[4], c2 + u2 * cut[5], inside, near)
            transform(patch, points)
            store(points, out, (g * columns + c) * padded + row, total)
            index += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return conv_winograd_sources


@cache
def outputs_of_sums(outputs: int, taps: int, dims: int) -> Kernel:
    """The kernel from sums[point, g, j, row] to the outputs of the tiles.

    ``counts`` are groups, channels without and with padding, the first row, and rows without and with it.
    """
    rows, count, outs = (outputs if dims == 2 else 1), (outputs + taps - 1) ** dims, outputs**dims
    load, transform, finish = (
        _load_points(count),
        of_sums(outputs, taps, dims),
        finish_tile(rows, outputs),
    )

    @kernel
    def conv_winograd_outputs(
        sums: Any,
        counts: Any,
        tiles: Any,
        pieces: Any,
        cut: Any,
        spans: Any,
        extents: Any,
        positions: Any,
        out: Any,
        out_at: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        groups, channels, padded_channels, first, rows_here, padded = counts
        points = cuda.local.array(count, number)
        values = cuda.local.array(outs, number)
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while index < groups * channels * rows_here:
            row, rest = index % rows_here, index // rows_here
            j, g = rest % channels, rest // channels
            b, p0, p1, p2 = tile_of_row(first + row, tiles)
            c0, c1, c2 = first_of(p0, p1, p2, cut)
            at = (g * padded_channels + j) * padded + row
            load(points, sums, at, groups * padded_channels * padded)
            transform(points, values)
            finish(
                values,
                meets_source(c0, c1, c2, pieces, cut, spans, extents),
                (g, b, j, p0, p1 * rows, p2 * outputs),
                positions,
                out,
                out_at,
                bias,
                bias_at[0] + rest * bias_at[1],
                residual,
                residual_at,
                flags,
                alphas,
            )
            index += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return conv_winograd_outputs
