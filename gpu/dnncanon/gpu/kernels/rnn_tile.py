"""The kernel of a recurrent step, forward or backward: a product with the state, and what is made of it.

    sums[d, b, line] = Σ_k state[d, b, k]·r[d, line, k]

A block takes some sequences and the lines of some units in one direction, leaves the sums in shared memory, and
hands each unit of each sequence to a thread. What this one does with them is up to the cell.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.rnn_plan import on_tensor_cores
from dnncanon.gpu.kernels.tile import cuda_core, tensor_core, words
from dnncanon.gpu.kernels.tile.engine import Product, accumulate
from dnncanon.gpu.kernels.tile.epilogue import PADDING
from dnncanon.gpu.kernels.tile.matrices import Operand
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import DeviceArray, Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

FEW, LITTLE = 16, 64
"""Sequences for which a tile is flat, and units for which that is small too."""

TILES = {
    True: (Tile(16, 32, 16, (1, 1), 2), Tile(16, 64, 64, (1, 4), 3), Tile(64, 64, 32, (2, 2), 3)),
    False: (Tile(16, 32, 8, (1, 1), 2), Tile(16, 64, 16, (1, 2), 3), Tile(64, 64, 16, (2, 4), 3)),
}
"""Small, flat and square, on tensor cores and on CUDA cores."""


def tile_for(batch: int, units: int, dtype: str) -> Tile:
    small, flat, square = TILES[on_tensor_cores(dtype)]
    if batch > FEW:
        return square
    return small if units <= LITTLE else flat


def operand_of(array: DeviceArray, dtype: str) -> Operand:
    """Of matrices [D, lines, depth]."""
    directions, lines, depth = array.shape
    far, of_line, of_depth = array.strides
    return Operand(array, dtype, lines, depth, of_line, of_depth, (far if directions > 1 else 0,))


@cache
def hand_out(
    product: Product, units_of_tile: int, finish: Callable[..., None]
) -> Callable[..., None]:
    """hand_out(sums, shared, thread, place, sizes, rest): the units of a tile, each to a thread.

    ``place`` is (direction, first sequence, first unit), ``sizes`` the sequences and units that there are;
    ``rest`` what ``finish`` is given behind the shared address of its first sum and ``here``. All threads have
    finished when it returns.
    """
    tile, unit = product.tile, product.unit
    room = tensor_core if isinstance(unit, TensorCore) else cuda_core
    itemsize, threads, rows_of = words.itemsize(unit.sum_dtype), tile.threads, tile.rows
    pitch = pitch_of_sums(tile, unit.sum_dtype)
    store = room.store_strip(unit, 1, pitch)

    @device_function
    def hand_out_(sums: Any, shared: Any, thread: Any, place: Any, sizes: Any, rest: Any) -> None:
        (d, first_row, first_column), (batch, units) = place, sizes
        arrays, places, sequences, flags, codes, scalars = rest
        cuda.syncthreads()
        store(sums, shared, thread, 0)
        cuda.syncthreads()
        for position in range(thread, rows_of * units_of_tile, threads):
            row, column = position // units_of_tile, position % units_of_tile
            b, j = _int64(first_row + row), _int64(first_column + column)
            if (b < batch) & (j < units):
                at = shared + _uint32(row * pitch + column * itemsize)
                here = (d, b, j, (d * batch + b) * units + j, units)
                finish(at, here, arrays, places, sequences, flags, codes, scalars)
        cuda.syncthreads()

    return hand_out_


def pitch_of_sums(tile: Tile, sums: str) -> int:
    """Bytes from row to row of a tile's sums in shared memory."""
    return tile.columns * words.itemsize(sums) + PADDING


@cache
def step_kernel(product: Product, units_of_tile: int, finish: Callable[..., None]) -> Kernel:
    """The kernel. Launch with ``product.tile.threads`` threads and ``product.shared_bytes``.

    ``arrays`` and ``places`` begin with those of (state, r); the rest of them, and all other arguments, are
    handed on: finish(shared address of the unit's first sum, here, arrays, places, sequences, flags, codes,
    scalars), with ``here`` = (direction, sequence, unit, its number of all, units). ``sizes`` are directions,
    sequences, units, depth and slices of it.
    """
    tile, unit = product.tile, product.unit
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of = unit.sums, tile.rows
    add, give = accumulate(product), hand_out(product, units_of_tile, finish)

    @kernel(launch_bounds=(tile.threads, 1))
    def rnn_step_(
        arrays: Any,
        places: Any,
        sizes: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        directions, batch, units, depth, slices = sizes
        h, r = arrays[0]
        h_at, r_at = places[0]
        down = (batch + rows_of - 1) // rows_of
        across = (units + units_of_tile - 1) // units_of_tile
        limits = (_int32(batch), _int32(units), _int32(depth))
        turn = _int64(cuda.blockIdx.x)
        while turn < directions * down * across:
            d, within = turn // (down * across), turn % (down * across)
            origin = (_int32(within % down * rows_of), _int32(within // down * units_of_tile))
            of_h = (h_at[0] + d * h_at[1], (h_at[2], h_at[3]))
            of_r = (r_at[0] + d * r_at[1], (r_at[2], r_at[3]))
            for i in range(count):
                sums[i] = zero
            add(sums, shared, thread, h, of_h, r, of_r, limits, origin, (0, slices))
            rest = (arrays, places, sequences, flags, codes, scalars)
            give(sums, shared, thread, (d, origin[0], origin[1]), (batch, units), rest)
            turn += cuda.gridDim.x

    return rnn_step_
