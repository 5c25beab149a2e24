"""Stream-K: tiles that do not fill a wave of blocks are divided evenly among all blocks, along the depth.

A launch has a fixed number of blocks, the *workers*. Tiles that fill whole waves are computed whole. The slices
of those that are left over, tile after tile, make one row; each worker takes as many of them, in turn:

    tiles left over:  │     tile 0     │     tile 1     │     tile 2     │        of 16 slices each
    workers:          │    0    │    1    │    2    │    3    │    4    │        10 each, the last one 8

A worker meets two tiles at most. What it has summed for a part of a tile goes to workspace, in the order in
which its threads hold it, and a second launch adds the parts of each tile, from front to back, and writes it:
so the bits are the same in every run, on every device. After Osama et al. 2023, arXiv:2301.03598.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.engine import Product, accumulate, tile_of_turn, write_tile
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places

LEAST_SLICES = 4
"""Slices that a worker takes at least, of those that there are."""

LEAST_SAVED = 8
"""Slices by which the last wave has to become shorter: the second launch takes its time too."""

_int32, _int64 = types.int32, types.int64


@dataclass(frozen=True, slots=True)
class Shares:
    """``tiles`` of ``slices`` each for ``workers``; the first ``whole`` tiles are not divided.

    Of the slices of all others, each worker has ``each``, which is no more than a tile has.
    """

    workers: int
    tiles: int
    slices: int
    whole: int
    each: int

    @classmethod
    def of(cls, tiles: int, slices: int, workers: int) -> "Shares":
        """Divide what is left over, if that is worth it."""
        over = tiles % workers
        each = max(-(-over * slices // workers), min(LEAST_SLICES, slices))
        if over == 0 or slices - each < LEAST_SAVED:
            return cls(workers, tiles, slices, tiles, 0)
        return cls(workers, tiles, slices, tiles - over, each)

    @property
    def divided(self) -> int:
        """Tiles."""
        return self.tiles - self.whole

    @property
    def blocks(self) -> int:
        """Of a launch; those without work are left out."""
        busy = -(-self.divided * self.slices // self.each) if self.divided else 0
        return max(1, min(self.workers, self.whole), busy)

    @property
    def parts(self) -> int:
        """Places for parts: that of worker w and divided tile t is w + t, and no two have the same."""
        return self.blocks + self.divided - 1 if self.divided else 0

    def workspace_bytes(self, tile: Tile, sum_dtype: str) -> int:
        return self.parts * tile.rows * tile.columns * words.itemsize(sum_dtype)

    @property
    def argument(self) -> tuple[int, int, int, int]:
        """As device functions take it: workers, slices of a tile, whole tiles, slices of each worker."""
        return self.workers, self.slices, self.whole, self.each


@device_function
def runs_of(worker: Any, tiles: Any, shares: Any) -> Any:
    """How many runs of slices a worker has, each of a tile or of a part of one."""
    slices, wholes = shares[1], _wholes_of(worker, shares)
    begin, end = _range_of(worker, tiles, shares)
    if begin >= end:
        return wholes
    return wholes + (end - 1) // slices - begin // slices + 1


@device_function
def run_of(worker: Any, tiles: Any, shares: Any, number: Any) -> Any:
    """(tile, first slice, the one behind the last) of a worker's run; a part if those are not all."""
    workers, slices, whole = shares[0], shares[1], shares[2]
    wholes = _wholes_of(worker, shares)
    if number < wholes:
        return worker + number * workers, _int32(0), _int32(slices)
    begin, end = _range_of(worker, tiles, shares)
    tile = begin // slices + number - wholes
    start = tile * slices
    return whole + tile, _int32(max(begin - start, 0)), _int32(min(end - start, slices))


@device_function
def _wholes_of(worker: Any, shares: Any) -> Any:
    """How many tiles that are not divided a worker has."""
    workers, whole = shares[0], shares[2]
    return (whole - worker + workers - 1) // workers if worker < whole else _int64(0)


@device_function
def _range_of(worker: Any, tiles: Any, shares: Any) -> Any:
    """The slices of divided tiles that a worker has."""
    slices, whole, each = shares[1], shares[2], shares[3]
    total = (tiles - whole) * slices
    return min(worker * each, total), min((worker + 1) * each, total)


@device_function
def workers_of(tile: Any, shares: Any) -> Any:
    """(first, last) of those who have parts of a divided tile: the same for one that has no parts."""
    slices, each = shares[1], shares[3]
    return tile * slices // each, ((tile + 1) * slices - 1) // each


@cache
def store_part(count: int, threads: int) -> Callable[..., None]:
    """store(sums, parts, part, thread): keep a thread's sums; neighbours write neighbours."""

    @device_function
    def store(sums: Any, parts: Any, part: Any, thread: Any) -> None:
        at = part * (count * threads) + thread
        for i in range(count):
            parts[at + i * threads] = sums[i]

    return store


@cache
def add_part(count: int, threads: int, number: Any) -> Callable[..., None]:
    """add(sums, parts, part, thread): what :func:`store_part` has kept."""

    @device_function
    def add(sums: Any, parts: Any, part: Any, thread: Any) -> None:
        at = part * (count * threads) + thread
        for i in range(count):
            sums[i] = number(sums[i] + parts[at + i * threads])

    return add


# --- The second launch ----------------------------------------------------------------------------


@cache
def add_parts(unit: Any, write: Callable[..., None]) -> Kernel:
    """The kernel that adds the parts of each divided tile and writes it, by a block for each tile.

    ``write`` is a ``drain`` for the unit, ``unit.tile.threads`` the threads, and dynamic shared memory what
    ``staging_bytes`` says. Arguments are those of the product, of the same names.
    """
    tile, count = unit.tile, unit.sums
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    add, rows_of, columns_of = add_part(count, tile.threads, number), tile.rows, tile.columns

    @kernel(launch_bounds=(tile.threads, 1))
    def add_parts_(
        y: Any,
        c: Any,
        bias: Any,
        parts: Any,
        sizes: Any,
        shares: Any,
        batch: Any,
        origins: Any,
        strides: Any,
        y_at: Any,
        c_at: Any,
        bias_at: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        staging = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread, divided = _int32(cuda.threadIdx.x), _int64(cuda.blockIdx.x)
        rows, columns, depth = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        limits = (_int32(rows), _int32(columns), _int32(depth))
        first, last = workers_of(divided, shares)
        if first < last:
            for i in range(count):
                sums[i] = zero
            for worker in range(first, last + 1):
                add(sums, parts, worker + divided, thread)
            turn = shares[2] + divided
            row, column = tile_of_turn(turn % (down * across), down, across)
            at = places(digits_of(turn // (down * across), batch), strides, origins)
            origin = (_int32(row * rows_of), _int32(column * columns_of))
            where = (at[0], y_at), (at[1], c_at), (at[2], bias_at)
            write(sums, staging, thread, origin, limits, y, where, (c, bias, codes, scalars))

    return add_parts_


# --- For the units of the other kernel ------------------------------------------------------------


@cache
def divided_product(product: Product) -> Kernel:
    """``tile_product`` for workers, of which each has its ``shares``; parts go to ``parts``."""
    tile, unit = product.tile, product.unit
    add, write = accumulate(product), write_tile(product)
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of, columns_of = unit.sums, tile.rows, tile.columns
    store = store_part(count, tile.threads)

    @kernel(launch_bounds=(tile.threads, 1))
    def divided_product_(
        a: Any,
        b: Any,
        y: Any,
        c: Any,
        bias: Any,
        parts: Any,
        sizes: Any,
        shares: Any,
        batch: Any,
        origins: Any,
        strides: Any,
        a_at: Any,
        b_at: Any,
        y_at: Any,
        c_at: Any,
        bias_at: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread, worker = _int32(cuda.threadIdx.x), _int64(cuda.blockIdx.x)
        rows, columns, depth = sizes
        down, across = (rows + rows_of - 1) // rows_of, (columns + columns_of - 1) // columns_of
        limits = (_int32(rows), _int32(columns), _int32(depth))
        tiles = batch[0] * batch[1] * batch[2] * down * across
        runs, turn_of_worker = runs_of(worker, tiles, shares), _int64(0)
        while turn_of_worker < runs:
            turn, first, behind = run_of(worker, tiles, shares, turn_of_worker)
            row, column = tile_of_turn(turn % (down * across), down, across)
            origin = (_int32(row * rows_of), _int32(column * columns_of))
            at = places(digits_of(turn // (down * across), batch), strides, origins)
            for i in range(count):
                sums[i] = zero
            of_a, of_b, some = (at[0], a_at), (at[1], b_at), (first, behind)
            add(sums, shared, thread, a, of_a, b, of_b, limits, origin, some)
            if behind - first < shares[1]:
                store(sums, parts, worker + turn - shares[2], thread)
            else:
                where = ((at[2], y_at), (at[3], c_at), (at[4], bias_at))
                write(sums, shared, thread, origin, limits, y, where, (c, bias, codes, scalars))
            cuda.syncthreads()
            turn_of_worker += 1

    return divided_product_


@cache
def finished_product(product: Product) -> Kernel:
    """The launch behind it."""
    return add_parts(product.unit, write_tile(product))
