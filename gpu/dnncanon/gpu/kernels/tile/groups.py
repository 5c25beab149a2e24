"""Products of groups of rows, whose bounds are data: those of a mixture of experts.

Group g holds the rows from offsets[g] up to offsets[g + 1]; only the device knows these. So there are as many
tiles as if every group had all rows, and those that lie beyond their group are passed over.
"""

from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.chosen_lines import chunks_of_lines, elements_of_lines
from dnncanon.gpu.kernels.tile.engine import Product, accumulate, tile_of_turn, write_tile
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

_int32, _int64 = types.int32, types.int64


@device_function
def bounds_of(offsets: Any, at: Any, group: Any, rows: Any) -> Any:
    """(first row, rows) of a group, within 0 … rows whatever the offsets are."""
    low = min(max(_int64(offsets[at[0] + group * at[1]]), _int64(0)), rows)
    high = min(max(_int64(offsets[at[0] + (group + 1) * at[1]]), low), rows)
    return low, high - low


@cache
def product_by_rows(product: Product, mode: str) -> Kernel:
    """y[rows of g] = x[rows of g]·weight[g mod E].

    ``sizes`` are rows, columns, depth, groups, experts, tokens and top_k. Places are (first element, strides),
    of weight that of experts first; ``index`` and ``ks`` are token_index and token_ks, if the mode has them.
    """
    tile, unit = product.tile, product.unit
    add, write = accumulate(product), write_tile(product)
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of, columns_of, depth_of = unit.sums, tile.rows, tile.columns, tile.depth
    in_order_a, in_order_y = mode != "gather", mode != "scatter"

    @kernel(launch_bounds=(tile.threads, 1))
    def product_by_rows_(
        x: Any,
        weight: Any,
        y: Any,
        offsets: Any,
        index: Any,
        ks: Any,
        sizes: Any,
        x_at: Any,
        weight_at: Any,
        y_at: Any,
        offsets_at: Any,
        index_at: Any,
        ks_at: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        rows, columns, depth, groups, experts, tokens, top_k = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        slices = (depth + depth_of - 1) // depth_of
        nothing = (y, y, (0, 0, 0), (1.0, 0.0))
        turn = _int64(cuda.blockIdx.x)
        while turn < groups * down * across:
            group = turn // (down * across)
            low, length = bounds_of(offsets, offsets_at, group, rows)
            row, column = tile_of_turn(turn % (down * across), down, across)
            if row * rows_of < length:
                origin = (_int32(row * rows_of), _int32(column * columns_of))
                limits = (_int32(length), _int32(columns), _int32(depth))
                route = (low, index, index_at, ks, ks_at, tokens, top_k, rows)
                of_x = (x_at[0] + (low * x_at[1] if in_order_a else 0), (x_at[1], x_at[2]), route)
                of_weight = (
                    weight_at[0] + group % experts * weight_at[1],
                    (weight_at[2], weight_at[3]),
                )
                for i in range(count):
                    sums[i] = zero
                add(
                    sums, shared, thread, x, of_x, weight, of_weight, limits, origin, (0, slices)
                )  # fmt: skip
                first = y_at[0] + (low * y_at[1] if in_order_y else 0)
                of_y = (first, (y_at[2], y_at[1]), route)
                nowhere = (0, (0, 0), route)
                write(
                    sums, shared, thread, origin, limits, y, (of_y, nowhere, nowhere), nothing
                )  # fmt: skip
                cuda.syncthreads()
            turn += cuda.gridDim.x

    return product_by_rows_


@device_function
def scattered_row(at: Any, row: Any) -> Any:
    """``Output.start_of_row``: the place of a row among the places of its token; −1 if there is none."""
    low, index, index_at, ks, ks_at, _, top_k, rows = at[2]
    token = _int64(index[index_at[0] + (low + row) * index_at[1]])
    place = token * top_k + _int64(ks[ks_at[0] + (low + row) * ks_at[1]])
    return at[0] + place * at[1][1] if (place >= 0) & (place < rows) else _int64(-1)


@device_function
def row_of_token(at: Any, row: Any) -> Any:
    """``Output.start_of_row``: a row whose token exists; −1 if it does not."""
    low, index, index_at, _, _, tokens, _, _ = at[2]
    token = _int64(index[index_at[0] + (low + row) * index_at[1]])
    return at[0] + row * at[1][1] if (token >= 0) & (token < tokens) else _int64(-1)


@device_function
def _token_of_row(at: Any, first: Any, row: Any, extent: Any) -> Any:
    """``RowOf``: the token that a row of a group asks for."""
    low, index, index_at, _, _, tokens, _, _ = at[2]
    line, token = first + row, _int64(-1)
    if line < extent:
        token = _int64(index[index_at[0] + (low + line) * index_at[1]])
    return token if token < tokens else _int64(-1)


@cache
def gathered_elements(layout: Slice, threads: int, move: Any) -> Fetch:
    """The tokens that rows ask for, element by element; zeros where there is no such token."""
    return elements_of_lines(layout, threads, move, _token_of_row)


@cache
def gathered_chunks(layout: Slice, threads: int) -> Fetch:
    """The tokens that rows ask for, by asynchronous copies of 16 bytes along the depth."""
    return chunks_of_lines(layout, threads, _token_of_row)


@cache
def product_by_depth(product: Product) -> Kernel:
    """dweight[e] = Σ x[rows of g]ᵀ·dy[rows of g] over the groups g of expert e, in their order.

    ``sizes`` are rows and columns of dweight, rows of x, groups and experts; strides of x and dy: of their
    lines, and of their rows, along which the sums go.
    """
    tile, unit = product.tile, product.unit
    add, write = accumulate(product), write_tile(product)
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of, columns_of, depth_of = unit.sums, tile.rows, tile.columns, tile.depth

    @kernel(launch_bounds=(tile.threads, 1))
    def product_by_depth_(
        x: Any,
        dy: Any,
        dweight: Any,
        offsets: Any,
        sizes: Any,
        x_at: Any,
        dy_at: Any,
        dweight_at: Any,
        offsets_at: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        rows, columns, tokens, groups, experts = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        nothing = (dweight, dweight, (0, 0, 0), (1.0, 0.0))
        turn = _int64(cuda.blockIdx.x)
        while turn < experts * down * across:
            expert = turn // (down * across)
            row, column = tile_of_turn(turn % (down * across), down, across)
            origin = (_int32(row * rows_of), _int32(column * columns_of))
            for i in range(count):
                sums[i] = zero
            for group in range(expert, groups, experts):
                low, length = bounds_of(offsets, offsets_at, group, tokens)
                limits = (_int32(rows), _int32(columns), _int32(length))
                of_x = (x_at[0] + low * x_at[2], (x_at[1], x_at[2]))
                of_dy = (dy_at[0] + low * dy_at[2], (dy_at[1], dy_at[2]))
                slices = (length + depth_of - 1) // depth_of
                add(sums, shared, thread, x, of_x, dy, of_dy, limits, origin, (0, slices))
                cuda.syncthreads()
            first = dweight_at[0] + expert * dweight_at[1]
            of_y, nowhere = (first, (dweight_at[3], dweight_at[2])), (0, (0, 0))
            limits = (_int32(rows), _int32(columns), _int32(0))
            where = (of_y, nowhere, nowhere)
            write(sums, shared, thread, origin, limits, dweight, where, nothing)
            cuda.syncthreads()
            turn += cuda.gridDim.x

    return product_by_depth_


@cache
def rows_left_out(dtype: str, gathers: bool) -> Kernel:
    """The kernel that writes the rows of no group, 0, and with mode gather those without a token, NaN."""
    element = ELEMENTS[dtype]
    from_sum, zero, nan = element.from_sum, element.sum(0), element.sum(float("nan"))

    @kernel
    def rows_left_out_(
        y: Any, offsets: Any, index: Any, sizes: Any, y_at: Any, offsets_at: Any, index_at: Any
    ) -> None:
        rows, columns, groups, tokens = sizes
        begin = offsets[offsets_at[0]]
        end = offsets[offsets_at[0] + groups * offsets_at[1]]
        position = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while position < rows * columns:
            row, column = position // columns, position % columns
            outside = (row < begin) | (row >= end)
            missing = False
            if gathers:
                token = _int64(index[index_at[0] + row * index_at[1]])
                missing = (token < 0) | (token >= tokens)
            if outside | missing:
                at = y_at[0] + row * y_at[1] + column * y_at[2]
                y[_int64(at)] = from_sum(zero if outside else nan)
            position += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return rows_left_out_
