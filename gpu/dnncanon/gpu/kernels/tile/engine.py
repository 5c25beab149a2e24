"""The kernel of the tile engine: a product of matrices, tile by tile, slice by slice.

A block computes a tile of C = A·B. While a slice of A and one of B are multiplied, out of shared memory, the
next ones are on their way there. How slices are fetched, multiplied and written is up to functions that the
kernel is made of; so a convolution differs from a matrix product in how it fetches. `gpu/docs/tiles.md` has a
picture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import cuda_core, tensor_core, words
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.epilogue import Output, drain, staging_bytes
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.kernels.tile.slices import Fetch
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places

Unit = TensorCore | CudaCore

BATCH_RANK = 3
"""Dims of the batch, after those that can be joined have been."""

BAND = 8
"""Tiles down, before the next column of tiles begins: their slices of A and B meet in the L2 cache."""

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32


@dataclass(frozen=True, slots=True)
class Product:
    """What a kernel is compiled for: the unit, the two fetches, and how y is written."""

    unit: Unit
    fetch_a: Fetch
    fetch_b: Fetch
    output: Output

    @property
    def tile(self) -> Tile:
        return self.unit.tile

    @property
    def slot_bytes(self) -> int:
        """A slice of A and one of B."""
        return self.unit.a.nbytes + self.unit.b.nbytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return max(self.tile.stages * self.slot_bytes, staging_bytes(self.unit))


def _room(unit: Unit) -> ModuleType:
    """The module of a unit: units have the same functions."""
    return tensor_core if isinstance(unit, TensorCore) else cuda_core


@cache
def accumulate(product: Product) -> Callable[..., None]:
    """accumulate(sums, shared, thread, a, of_a, b, of_b, limits, origin, slices): add a tile of A·B.

    ``of_a`` and ``of_b`` are what the fetches are given as ``at``; ``limits`` are rows, columns and depth,
    ``origin`` the tile's first row and column, ``slices`` the first and the last but one.
    """
    tile, unit = product.tile, product.unit
    prepare, multiply = _room(unit).prepare(unit), _room(unit).multiply(unit)
    open_a, next_a = product.fetch_a.open, product.fetch_a.next
    open_b, next_b = product.fetch_b.open, product.fetch_b.next
    longs_of_a, ints_of_a = product.fetch_a.longs, product.fetch_a.ints
    longs_of_b, ints_of_b = product.fetch_b.longs, product.fetch_b.ints
    addresses_a, addresses_b = unit.addresses
    deep, stages = tile.depth, tile.stages
    slot_bytes, bytes_of_a = product.slot_bytes, unit.a.nbytes
    wait = ptx.cp_async_wait_group(stages - 2)

    @device_function
    def accumulate_(
        sums: Any,
        shared: Any,
        thread: Any,
        a: Any,
        of_a: Any,
        b: Any,
        of_b: Any,
        limits: Any,
        origin: Any,
        slices: Any,
    ) -> None:
        places_a = cuda.local.array(addresses_a, _uint32)
        places_b = cuda.local.array(addresses_b, _uint32)
        longs_a, ints_a = cuda.local.array(longs_of_a, _int64), cuda.local.array(ints_of_a, _int32)
        longs_b, ints_b = cuda.local.array(longs_of_b, _int64), cuda.local.array(ints_of_b, _int32)
        prepare(places_a, places_b, thread)
        limits_a, limits_b = (limits[0], limits[2]), (limits[1], limits[2])
        left, depth = _int32(slices[1] - slices[0]), _int32(slices[0] * deep)
        open_a(longs_a, ints_a, a, of_a, limits_a, origin[0], depth, thread)
        open_b(longs_b, ints_b, b, of_b, limits_b, origin[1], depth, thread)
        for i in range(stages - 1):
            if i < left:
                slot = shared + _uint32(i * slot_bytes)
                next_a(longs_a, ints_a, a, of_a, limits_a, slot, thread)
                next_b(longs_b, ints_b, b, of_b, limits_b, slot + _uint32(bytes_of_a), thread)
            ptx.cp_async_commit()
        # Of the slots, one is read, the one read before is written, and the others are on their way.
        read, written = shared, shared + _uint32((stages - 1) * slot_bytes)
        while left > _int32(0):
            wait()
            cuda.syncthreads()
            if left > _int32(stages - 1):
                next_a(longs_a, ints_a, a, of_a, limits_a, written, thread)
                next_b(longs_b, ints_b, b, of_b, limits_b, written + _uint32(bytes_of_a), thread)
            ptx.cp_async_commit()
            multiply(sums, read, read + _uint32(bytes_of_a), places_a, places_b)
            written = read
            read += _uint32(slot_bytes)
            if read == shared + _uint32(stages * slot_bytes):
                read = shared
            left = _int32(left - _int32(1))
        ptx.cp_async_wait_all()

    return accumulate_


@cache
def write_tile(product: Product) -> Callable[..., None]:
    """``drain`` for a product."""
    room = _room(product.unit)
    return drain(product.unit, room.store_strip, room.row_of_strip, product.output)


@cache
def tile_product(product: Product) -> Kernel:
    """The kernel. Launch with ``product.tile.threads`` threads and ``product.shared_bytes``.

    ``sizes`` are rows, columns, depth, and into how many parts the depth is split; ``batch`` three extents;
    ``origins`` and ``strides`` those of A, B, y, C and bias along the batch, one after the other. ``a_at`` and
    ``b_at`` are what the fetches take behind the first element; ``y_at``, ``c_at`` and ``bias_at`` what
    ``Output`` does. Parts of a split depth go to y one behind the other, ``part`` elements apart.
    """
    tile, unit = product.tile, product.unit
    add, write = accumulate(product), write_tile(product)
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of, columns_of, depth_of = unit.sums, tile.rows, tile.columns, tile.depth

    @kernel(launch_bounds=(tile.threads, 1))
    def tile_product_(
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
        rows, columns, depth, splits = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        slices = (depth + depth_of - 1) // depth_of
        slices_each = (slices + splits - 1) // splits
        limits = (_int32(rows), _int32(columns), _int32(depth))
        tiles = batch[0] * batch[1] * batch[2] * splits * down * across
        turn = _int64(cuda.blockIdx.x)
        while turn < tiles:
            row, column = tile_of_turn(turn % (down * across), down, across)
            split, member = turn // (down * across) % splits, turn // (down * across) // splits
            origin = (_int32(row * rows_of), _int32(column * columns_of))
            at = places(digits_of(member, batch), strides, origins)
            first = split * slices_each
            for i in range(count):
                sums[i] = zero
            some = (first, min(slices, first + slices_each))
            add(sums, shared, thread, a, (at[0], a_at), b, (at[1], b_at), limits, origin, some)
            where = ((at[2] + split * part, y_at), (at[3], c_at), (at[4], bias_at))
            write(sums, shared, thread, origin, limits, y, where, (c, bias, codes, scalars))
            cuda.syncthreads()
            turn += cuda.gridDim.x

    return tile_product_


@device_function
def tile_of_turn(turn: Any, down: Any, across: Any) -> Any:
    """(row, column) of a tile, in bands of so many rows of tiles."""
    band = turn // (BAND * across)
    height = min(down - band * BAND, BAND)
    within = turn - band * BAND * across
    return band * BAND + within % height, within // height
