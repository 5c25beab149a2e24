"""A product whose depth is in pieces: several stretches of memory, which no one stride leads through.

    y[…, m, n] = activation(α·Σ_p Σ_k a[…, p, m, k]·b[…, p, k, n] + β·c[…, m, n] + bias[n])

So is the gradient of a filter where each image of the batch has its channels apart: p counts images.
"""

from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.engine import Product, accumulate, tile_of_turn, write_tile
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.gpu.runtime.device_index import digits_of, places

_int32, _int64 = types.int32, types.int64


@cache
def product_of_pieces(product: Product) -> Kernel:
    """The kernel. It is launched as ``tile_product``, and splits the pieces instead of the depth.

    ``sizes`` are rows, columns, depth of a piece, splits, pieces, and how far apart these are in A and in B.
    """
    tile, unit = product.tile, product.unit
    add, write = accumulate(product), write_tile(product)
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of, columns_of, depth_of = unit.sums, tile.rows, tile.columns, tile.depth

    @kernel(launch_bounds=(tile.threads, 1))
    def product_of_pieces_(
        a: Any,
        b: Any,
        y: Any,
        c: Any,
        bias: Any,
        sizes: Any,
        batch: Any,
        origins: Any,
        strides: Any,
        a_at: Any,
        b_at: Any,
        y_at: Any,
        c_at: Any,
        bias_at: Any,
        part: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        rows, columns, depth, splits, pieces, step_a, step_b = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        slices = (depth + depth_of - 1) // depth_of
        pieces_each = (pieces + splits - 1) // splits
        limits = (_int32(rows), _int32(columns), _int32(depth))
        tiles = batch[0] * batch[1] * batch[2] * splits * down * across
        turn = _int64(cuda.blockIdx.x)
        while turn < tiles:
            row, column = tile_of_turn(turn % (down * across), down, across)
            split, member = turn // (down * across) % splits, turn // (down * across) // splits
            origin = (_int32(row * rows_of), _int32(column * columns_of))
            at = places(digits_of(member, batch), strides, origins)
            for i in range(count):
                sums[i] = zero
            first = split * pieces_each
            for piece in range(first, min(pieces, first + pieces_each)):
                of_a, of_b = (at[0] + piece * step_a, a_at), (at[1] + piece * step_b, b_at)
                add(sums, shared, thread, a, of_a, b, of_b, limits, origin, (0, slices))
                cuda.syncthreads()
            where = ((at[2] + split * part, y_at), (at[3], c_at), (at[4], bias_at))
            write(sums, shared, thread, origin, limits, y, where, (c, bias, codes, scalars))
            cuda.syncthreads()
            turn += cuda.gridDim.x

    return product_of_pieces_
