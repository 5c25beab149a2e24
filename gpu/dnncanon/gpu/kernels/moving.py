"""Moving elements without computing: copies between any strides, gathers with a fill, and a transposing tile.

Kernels know words of 1 to 16 bytes, not element types: what is moved keeps its bits, and few kernels are
compiled. Operands are views, arrays with a pointer, a shape and strides of their own, which host code makes:
a slice, a permutation or a block is a view, and to move it is a copy.

    copy(x, y)                          y[i] = x[i], of equal shapes
    gather(x, y, windows, word)         y[i] = x at an affine function of i, or the word outside of x
    reorder(x, y)                       the same elements in C order, of two shapes
    fill(y, word)                       y[i] = word

A thread moves 16 bytes where the fastest dim of both operands is one piece of memory, or else as many as fit.
Where the operands have different fastest dims, ``copy`` goes through a tile in shared memory: both sides
then move whole sectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.strided import RANKS, Ints, Space, broadcast_strides
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, generated, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places

THREADS = 256
BLOCKS = 2048
"""Blocks that fill any GPU; their threads loop, so that they divide for their first word only."""

WORDS = (16, 8, 4, 2, 1)
"""Bytes that a thread moves at once."""

TILE = 32
"""Rows and columns of a tile."""
LEAST = 8
"""Elements of a dim with fewer of which a tile has another shape: 8 words of 4 bytes are a sector."""
LONG = 32
"""Elements of the other dim from which on that pays."""

Memory = tuple[Any, Ints]


# --- Words ----------------------------------------------------------------------------------------


def _width(space: Space, arrays: Sequence[DeviceArray]) -> int:
    """The bytes of the widest words that all operands of a space can be moved in.

    Strides of operands behind the arrays, which are conditions, have to be 0 in the last dim.
    """
    size = arrays[0].dtype.itemsize
    count = len(arrays)
    adjacent = all(by[-1] == 1 for by in space.strides[:count])
    if not adjacent or any(by[-1] for by in space.strides[count:]):
        return size
    steps = [space.extents[-1] * size, *(array.pointer for array in arrays)]
    steps += [s * size for by in space.strides[:count] for s in by[:-1]]
    if any(origin(array) for array in arrays):
        return size
    return next(width for width in WORDS if width == size or all(s % width == 0 for s in steps))


def _in_words(space: Space, arrays: int, factor: int) -> Space:
    """The same space with words that are so many elements."""
    if factor == 1:
        return space
    extents = (*space.extents[:-1], space.extents[-1] // factor)
    strides = tuple(
        (*(s // factor for s in by[:-1]), by[-1]) if k < arrays else by
        for k, by in enumerate(space.strides)
    )
    return Space(extents, strides)


def _memory(array: DeviceArray, width: int) -> Any:
    """The memory of an array as words of so many bytes; those of 16 as pairs of 8."""
    word = np.dtype(f"u{min(width, 8)}")
    count = array.span * array.dtype.itemsize // word.itemsize
    flat = replace(array, pointer=array.lowest, dtype=word, shape=(count,), strides=(1,))
    return flat.argument


@dataclass(frozen=True, slots=True)
class Words:
    """Device functions on words of one width: load(memory, at), store(memory, at, word), of(pattern).

    ``pattern`` is an int64 whose bits hold the element over and over.
    """

    load: Any
    store: Any
    of: Any
    kind: Any


@cache
def _words(width: int) -> Words:
    if width == 16:
        return Words(_load_pair, _store_pair, _pair_of, types.uint64)
    kind = getattr(types, f"uint{8 * width}")

    @device_function
    def word_of(pattern: Any) -> Any:
        return kind(pattern)

    return Words(_load_word, _store_word, word_of, kind)


_load_16, _store_16 = ptx.load_chunk(2), ptx.store_chunk(2)


@device_function
def _load_pair(memory: Any, at: Any) -> Any:
    return _load_16(memory, at * 2)


@device_function
def _store_pair(memory: Any, at: Any, word: Any) -> Any:
    _store_16(memory, at * 2, word)


@device_function
def _pair_of(pattern: Any) -> Any:
    return types.uint64(pattern), types.uint64(pattern)


@device_function
def _load_word(memory: Any, at: Any) -> Any:
    return memory[types.uint64(at)]


@device_function
def _store_word(memory: Any, at: Any, word: Any) -> Any:
    memory[types.uint64(at)] = word


def pattern_of(word: np.ndarray[Any, Any]) -> int:
    """A word, a NumPy array of one element, repeated over 8 bytes; their bits as an int64."""
    return int.from_bytes(word.tobytes() * (8 // word.itemsize), "little", signed=True)


# --- Copies ---------------------------------------------------------------------------------------


def copy(x: DeviceArray, y: DeviceArray, *, stream: object = None) -> None:
    """y[i] = x[i]; x is broadcast to the shape of y."""
    space = Space.of(y.shape, [broadcast_strides(x, y.shape), y.strides], key=1)
    if space.size == 0:
        return
    tiled = _Tiled.of(space)
    if tiled is not None:
        tiled.launch(x, y, stream)
        return
    whole = space.size * x.dtype.itemsize // WORDS[0] * (WORDS[0] // x.dtype.itemsize)
    if space.rank == 1 and 0 < whole < space.size and _is_one_piece(space):
        # All but the last few bytes in words of 16.
        copy(_stretch(x, 0, whole), _stretch(y, 0, whole), stream=stream)
        x, y = (_stretch(array, whole, space.size) for array in (x, y))
        space = Space((space.size - whole,), space.strides)
    width = _width(space, (x, y))
    space = _in_words(space, 2, width // x.dtype.itemsize)
    grid = min(BLOCKS, blocks_for(space.size, THREADS))
    walk = (space.size, space.extents, space.digits(grid * THREADS), space.flat_strides)
    args = (_memory(x, width), _memory(y, width), *walk, (origin(x), origin(y)))
    launch(_copying(width), grid, THREADS, args, stream=stream)


def _is_one_piece(space: Space) -> bool:
    return all(by == (1,) for by in space.strides)


def _stretch(array: DeviceArray, begin: int, end: int) -> DeviceArray:
    """Elements of a piece of memory, in the order of addresses."""
    pointer = array.pointer + begin * array.dtype.itemsize
    return replace(array, pointer=pointer, shape=(end - begin,), strides=(1,))


@cache
def _copying(width: int) -> Kernel:
    """The kernel for words of so many bytes. Launch with THREADS threads."""
    words = _words(width)
    load, store = words.load, words.store

    @kernel
    def copying(
        x: Any, y: Any, size: Any, extents: Any, step: Any, strides: Any, bases: Any
    ) -> None:
        stride = types.int64(cuda.gridDim.x) * cuda.blockDim.x
        position = types.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(position, extents)
        while position < size:
            at = places(digits, strides, bases)
            store(y, at[1], load(x, at[0]))
            digits = advance(digits, step, extents)
            position += stride

    return copying


# --- The transposing tile -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tiled:
    """A copy in tiles: of the dims, one is the fastest of x, another one, the last, that of y."""

    others: Space
    rows: tuple[int, Ints]
    columns: tuple[int, Ints]

    @classmethod
    def of(cls, space: Space) -> "_Tiled | None":
        """The tiles of a space of x and y, in y's order; None where they would not pay."""
        x = space.strides[0]
        dims = range(space.rank)
        fastest = min(dims, key=lambda d: (x[d] == 0 or space.extents[d] == 1, x[d]))
        last = space.rank - 1
        least, most = sorted((space.extents[fastest], space.extents[last]))
        if (
            fastest == last
            or x[last] == 0
            or least < 2
            or most < (LEAST if least >= LEAST else LONG)
        ):
            return None
        rest = [d for d in dims if d not in (fastest, last)]
        extents = tuple(space.extents[d] for d in rest)
        strides = tuple(tuple(by[d] for d in rest) for by in space.strides)
        rank = next(rank for rank in RANKS if rank >= len(rest))
        others = Space(extents, strides).with_rank(rank)

        def dim(d: int) -> tuple[int, Ints]:
            return space.extents[d], tuple(by[d] for by in space.strides)

        return cls(others, dim(last), dim(fastest))

    def launch(self, x: DeviceArray, y: DeviceArray, stream: object) -> None:
        """Columns are the fastest dim of x, rows that of y."""
        width = x.dtype.itemsize
        (rows, row_strides), (columns, column_strides) = self.rows, self.columns
        if min(rows, columns) < LEAST:
            self._launch_packing(x, y, stream)
            return
        across, down = -(-columns // TILE), -(-rows // TILE)
        tiles = self.others.size * across * down
        sizes = (tiles, across, down, rows, columns)
        steps = (*row_strides, *column_strides)
        walk = self.others.extents, self.others.flat_strides, (origin(x), origin(y))
        args = (_memory(x, width), _memory(y, width), sizes, steps, *walk)
        launch(_transposing(width), min(BLOCKS, tiles), THREADS, args, stream=stream)

    def _launch_packing(self, x: DeviceArray, y: DeviceArray, stream: object) -> None:
        """Tiles have all of the dim with few elements, and as many of the other one as fill them."""
        width = x.dtype.itemsize
        (rows, row_strides), (columns, column_strides) = self.rows, self.columns
        long = TILE * TILE // min(rows, columns) // TILE * TILE
        high, broad = (long, columns) if columns < rows else (rows, long)
        parts = -(-max(rows, columns) // long)
        tiles = self.others.size * parts
        sizes = (tiles, parts, rows, columns, high, broad)
        steps = (*row_strides, *column_strides)
        walk = self.others.extents, self.others.flat_strides, (origin(x), origin(y))
        args = (_memory(x, width), _memory(y, width), sizes, steps, *walk)
        launch(_packing(width), min(BLOCKS, tiles), THREADS, args, stream=stream)


@cache
def _transposing(width: int) -> Kernel:
    """The kernel for words of so many bytes. Launch with THREADS threads.

    A row of the tile is longer by 4 bytes at least, so that a column of it is in all banks.
    """
    words, pitch = _words(width), TILE + max(1, 4 // width)
    load, store, kind = words.load, words.store, words.kind
    rows_at_once = THREADS // TILE

    @kernel
    def transposing(
        x: Any, y: Any, sizes: Any, steps: Any, extents: Any, strides: Any, bases: Any
    ) -> None:
        tile = cuda.shared.array((TILE, pitch), kind)
        tiles, across, down, rows, columns = sizes
        lane = types.int64(cuda.threadIdx.x) % TILE
        first = types.int64(cuda.threadIdx.x) // TILE
        number = types.int64(cuda.blockIdx.x)
        while number < tiles:
            column0 = number % across * TILE
            row0 = number // across % down * TILE
            at = places(digits_of(number // (across * down), extents), strides, bases)
            for k in range(first, TILE, rows_at_once):
                row, column = row0 + k, column0 + lane
                if row < rows and column < columns:
                    tile[k, lane] = load(x, at[0] + row * steps[0] + column * steps[2])
            cuda.syncthreads()
            for k in range(first, TILE, rows_at_once):
                row, column = row0 + lane, column0 + k
                if row < rows and column < columns:
                    store(y, at[1] + row * steps[1] + column * steps[3], tile[lane, k])
            cuda.syncthreads()
            number += cuda.gridDim.x

    return transposing


@cache
def _packing(width: int) -> Kernel:
    """The kernel for words of so many bytes, and tiles of ``high`` rows and ``broad`` columns, one of them few.

    Threads follow x's memory over the tile, then y's, so that neighbours are so in memory though a row, or a
    column, has a few words only. Launch with THREADS threads.
    """
    words, room = _words(width), 2 * TILE * TILE
    load, store, kind = words.load, words.store, words.kind

    @kernel
    def packing(
        x: Any, y: Any, sizes: Any, steps: Any, extents: Any, strides: Any, bases: Any
    ) -> None:
        tile = cuda.shared.array(room, kind)
        tiles, parts, rows, columns, high, broad = sizes
        pitch = broad | 1  # odd, so that a column is in all banks
        thread = types.int64(cuda.threadIdx.x)
        number = types.int64(cuda.blockIdx.x)
        while number < tiles:
            part, other = number % parts, number // parts
            row0, column0 = (part * high, 0) if high > broad else (0, part * broad)
            at = places(digits_of(other, extents), strides, bases)
            for index in range(thread, high * broad, THREADS):
                row, column = index // broad, index % broad
                if row0 + row < rows and column0 + column < columns:
                    place = at[0] + (row0 + row) * steps[0] + (column0 + column) * steps[2]
                    tile[row * pitch + column] = load(x, place)
            cuda.syncthreads()
            for index in range(thread, high * broad, THREADS):
                row, column = index % high, index // high
                if row0 + row < rows and column0 + column < columns:
                    place = at[1] + (row0 + row) * steps[1] + (column0 + column) * steps[3]
                    store(y, place, tile[row * pitch + column])
            cuda.syncthreads()
            number += cuda.gridDim.x

    return packing


# --- Gathers with a fill --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate in x, an affine function of an index of y: c = Σ weights·i + offset.

    It is in x where c is one of 0, step, 2·step, …, below extent·step; the element is then c/step·stride
    farther on in memory.
    """

    weights: Ints
    offset: int
    extent: int
    stride: int
    step: int = 1


_NOWHERE_ELSE = 1
"""The extent of a coordinate that is 0 everywhere, which fills up their number."""


def gather(
    x: DeviceArray,
    y: DeviceArray,
    strides: Ints,
    coordinates: Sequence[Coordinate],
    word: int,
    *,
    stream: object = None,
) -> None:
    """y[i] = x[Σ strides·i + Σ c/step·stride of the coordinates], or the word where one is outside of x.

    ``word`` is a :func:`pattern_of` the element. ``strides``, and the weights, are by dims of y.
    """
    space = Space.of(y.shape, [y.strides, strides, *(c.weights for c in coordinates)], key=0)
    if space.size == 0:
        return
    if x.size == 0:
        fill(y, word, stream=stream)
        return
    width = _gather_width(space, x, y, coordinates)
    factor = width // x.dtype.itemsize
    space = _in_words(space, 2, factor)
    count = next(rank for rank in RANKS if rank >= max(1, len(coordinates)))
    missing = count - len(coordinates)
    rules = [(c.offset, c.extent * c.step, c.step, c.stride // factor) for c in coordinates]
    rules += [(0, _NOWHERE_ELSE, 1, 0)] * missing
    offsets, limits, steps, by = zip(*rules, strict=True)
    whole = space.strides + ((0,) * space.rank,) * missing
    flat = tuple(stride for strides in whole for stride in strides)
    grid = min(BLOCKS, blocks_for(space.size, THREADS))
    walk = (space.size, space.extents, space.digits(grid * THREADS), flat)
    bases = (origin(y), origin(x), *offsets)
    args = (_memory(x, width), _memory(y, width), *walk, bases, (limits, steps, by), word)
    launch(_gathering(width, count), grid, THREADS, args, stream=stream)


def _gather_width(
    space: Space, x: DeviceArray, y: DeviceArray, coordinates: Sequence[Coordinate]
) -> int:
    """The width of words, which the strides of coordinates have to be multiples of as well."""
    width, size = _width(space, (y, x)), x.dtype.itemsize
    return next(
        w for w in WORDS if w <= width and all(c.stride * size % w == 0 for c in coordinates)
    )


@cache
def _gathering(width: int, count: int) -> Kernel:
    """The kernel for words of so many bytes and so many coordinates. Launch with THREADS threads."""
    words = _words(width)
    checks = "\n".join(
        f"""
        c = at[{2 + k}]
        inside = inside and 0 <= c and c < limits[{k}]
        if steps[{k}] != 1:
            inside = inside and c % steps[{k}] == 0
            c = c // steps[{k}]
        place += c * by[{k}]"""
        for k in range(count)
    )
    source = f"""
def gathering(x, y, size, extents, step, strides, bases, rules, pattern):
    limits, steps, by = rules
    stride = int64(cuda.gridDim.x) * cuda.blockDim.x
    position = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    digits = digits_of(position, extents)
    while position < size:
        at = places(digits, strides, bases)
        place, inside = at[1], True{checks}
        word = word_of(pattern)
        if inside:
            word = load(x, place)
        store(y, at[0], word)
        digits = advance(digits, step, extents)
        position += stride
"""
    scope = {"digits_of": digits_of, "advance": advance, "places": places, "int64": types.int64}
    scope |= {"cuda": cuda, "load": words.load, "store": words.store, "word_of": words.of}
    return kernel(generated(source, scope))


def fill(y: DeviceArray, word: int, *, stream: object = None) -> None:
    """y[i] = word, a :func:`pattern_of` the element."""
    space = Space.of(y.shape, [y.strides])
    if space.size == 0:
        return
    width = _width(space, (y,))
    space = _in_words(space, 1, width // y.dtype.itemsize)
    grid = min(BLOCKS, blocks_for(space.size, THREADS))
    walk = (space.size, space.extents, space.digits(grid * THREADS), space.flat_strides)
    args = (_memory(y, width), *walk, (origin(y),), word)
    launch(_filling(width), grid, THREADS, args, stream=stream)


@cache
def _filling(width: int) -> Kernel:
    words = _words(width)
    store, word_of = words.store, words.of

    @kernel
    def filling(
        y: Any, size: Any, extents: Any, step: Any, strides: Any, bases: Any, pattern: Any
    ) -> None:
        stride = types.int64(cuda.gridDim.x) * cuda.blockDim.x
        position = types.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(position, extents)
        while position < size:
            at = places(digits, strides, bases)
            store(y, at[0], word_of(pattern))
            digits = advance(digits, step, extents)
            position += stride

    return filling


# --- Two shapes -----------------------------------------------------------------------------------


def reorder(x: DeviceArray, y: DeviceArray, *, stream: object = None) -> None:
    """The elements of x in C order of its shape, to those of y in C order of its own."""
    spaces = [_in_c_order(array) for array in (x, y)]
    size = spaces[0].size
    if size == 0:
        return
    if all(space.rank == 1 for space in spaces):
        views = [
            replace(a, shape=s.extents, strides=s.strides[0])
            for a, s in zip((x, y), spaces, strict=True)
        ]
        copy(*views, stream=stream)
        return
    rank = max(space.rank for space in spaces)
    source, target = (space.with_rank(rank) for space in spaces)
    grid = min(BLOCKS, blocks_for(size, THREADS))
    walks = tuple(
        (space.extents, space.digits(grid * THREADS), space.strides[0], (origin(array),))
        for space, array in ((source, x), (target, y))
    )
    width = x.dtype.itemsize
    args = (_memory(x, width), _memory(y, width), size, *walks)
    launch(_reordering(width), grid, THREADS, args, stream=stream)


def _in_c_order(array: DeviceArray) -> Space:
    """The space of one array in the order of its dims, those joined that lie in one piece."""
    joined: list[tuple[int, int]] = []
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if extent == 1:
            continue
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = (joined[-1][0] * extent, stride)
        else:
            joined.append((extent, stride))
    rank = next(rank for rank in RANKS if rank >= len(joined))
    extents, strides = zip(*([(1, 0)] * (rank - len(joined)) + joined), strict=True)
    return Space(extents, (strides,))


@cache
def _reordering(width: int) -> Kernel:
    words = _words(width)
    load, store = words.load, words.store

    @kernel
    def reordering(x: Any, y: Any, size: Any, source: Any, target: Any) -> None:
        x_extents, x_step, x_strides, x_base = source
        y_extents, y_step, y_strides, y_base = target
        stride = types.int64(cuda.gridDim.x) * cuda.blockDim.x
        position = types.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        x_digits, y_digits = digits_of(position, x_extents), digits_of(position, y_extents)
        while position < size:
            (x_at,) = places(x_digits, x_strides, x_base)
            (y_at,) = places(y_digits, y_strides, y_base)
            store(y, y_at, load(x, x_at))
            x_digits = advance(x_digits, x_step, x_extents)
            y_digits = advance(y_digits, y_step, y_extents)
            position += stride

    return reordering
