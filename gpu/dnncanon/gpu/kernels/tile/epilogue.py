"""What becomes of a tile of sums: by way of shared memory into the output, scaled, added to, activated.

    y = activation(α·sum + β·C + bias)

A thread's sums are scattered over the tile as the unit wants them. Strip by strip they go to shared memory,
from where adjacent threads take adjacent columns: every sector of the output is written once, and C is read
likewise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels import activation
from dnncanon.gpu.kernels.choosing import chosen
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

PADDING = 32
"""Bytes behind the rows of a strip in shared memory, against bank conflicts."""

ROOM = 48 * 1024
"""Bytes of a strip in shared memory, at most."""

_int64, _uint32, _uint64 = types.int64, types.uint32, types.uint64

ACTIVATIONS = ("identity", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "swish")


@cache
def activations(sum_dtype: str) -> tuple[Callable[..., Any], dict[str, int]]:
    """activate(value, parameter, code), and the codes by name. Integers are left as they are."""
    if sum_dtype == "int32":
        return _leave, {"identity": 0}
    known = activation.functions(sum_dtype).forward
    return chosen({name: known[name] for name in ACTIVATIONS}, 2)


@device_function
def _leave(value: Any, parameter: Any, code: Any) -> Any:
    return value


@cache
def finisher(sum_dtype: str, dtype: str, extra: str) -> Callable[..., Any]:
    """finish(sum, at_c, at_bias, extras) -> the word of the output.

    ``extras`` are (c, bias, codes, scalars): C and bias of element type ``extra``; whether there is C, whether
    there is a bias, and the code of the activation; α and β.
    """
    whole = sum_dtype == "int32"
    number = types.int64 if whole else ELEMENTS[sum_dtype].sum
    to_sum, from_sum = (
        ELEMENTS[extra].to_sum,
        _to_word(dtype) if whole else ELEMENTS[dtype].from_sum,
    )
    activate, one = activations(sum_dtype)[0], number(1)

    @device_function
    def finish(total: Any, at_c: Any, at_bias: Any, extras: Any) -> Any:
        c, bias, codes, scalars = extras
        value = number(total) * number(scalars[0])
        if codes[0]:
            value += number(scalars[1]) * number(to_sum(c[_int64(at_c)]))
        if codes[1]:
            value += number(to_sum(bias[_int64(at_bias)]))
        return from_sum(activate(value, one, codes[2]))

    return finish


def _to_word(dtype: str) -> Callable[[Any], Any]:
    """Integer sums wrap around; they do not saturate."""
    return getattr(types, dtype)


# --- From registers to memory ---------------------------------------------------------------------


@device_function
def strided_row(at: Any, row: Any) -> Any:
    """Where a row starts: ``at`` is (first element, (stride of columns, stride of rows))."""
    return at[0] + row * at[1][1]


@dataclass(frozen=True, slots=True)
class Output:
    """How y is written: its element type, and that of C and bias.

    Each store takes ``count`` elements, adjacent in a row: together 2, 4, 8 or 16 bytes; with 1, adjacent
    threads write adjacent columns, or adjacent rows if ``by_rows``. ``start_of_row(at, row)`` says where a row
    starts, ``at`` being (first element, (stride of columns, what else it needs)); below 0 it is left out.
    """

    dtype: str
    extra: str
    count: int = 1
    by_rows: bool = False
    start_of_row: Callable[[Any, Any], Any] = strided_row


def adjacent_elements(first: int, itemsize: int, near: int, far: Iterable[int], extent: int) -> int:
    """``count`` for an output: a chunk where rows are whole chunks at multiples of 16 bytes, else 1.

    ``first`` is the address of its first element, ``near`` and ``extent`` are of a row, ``far`` the strides
    of all other dims with more than one element.
    """
    count = CHUNK // itemsize
    aligned = first % CHUNK == 0 and all(stride % count == 0 for stride in far)
    return count if near == 1 and aligned and extent % count == 0 else 1


@device_function
def _meet() -> None:
    cuda.syncthreads()


@cache
def drain(
    unit: Any, store_strip: Any, row_of_strip: Any, output: Output, meet: Callable[[], None] = _meet
) -> Callable[..., None]:
    """drain(sums, staging, thread, origin, limits, y, places, extras): write a tile.

    ``origin`` is its first row and column, ``limits`` are rows and columns of y; ``places`` those of y, of C,
    as ``start_of_row`` takes them, and of the bias: (first element, (stride of columns, stride of rows)).
    ``meet`` is the barrier of the threads that write: of all of the block, if nothing else is said.
    """
    pitch, strips = _pitch(unit), _strips(unit)
    store, row_of = store_strip(unit, strips, pitch), row_of_strip(unit, strips)
    write = _write_strip(unit.tile, strips, row_of, unit.sum_dtype, output)

    @device_function
    def drain_strip(
        sums: Any,
        staging: Any,
        thread: Any,
        origin: Any,
        limits: Any,
        y: Any,
        places: Any,
        extras: Any,
        strip: Any,
    ) -> None:
        meet()
        store(sums, staging, thread, strip)
        meet()
        write(strip, staging, thread, origin, limits, y, places, extras)

    return unrolled(drain_strip, times=strips, arguments=8)


def staging_bytes(unit: Any) -> int:
    """Shared memory that ``drain`` uses."""
    return unit.tile.rows // _strips(unit) * _pitch(unit)


def _pitch(unit: Any) -> int:
    return int(unit.tile.columns * words.itemsize(unit.sum_dtype)) + PADDING


def _strips(unit: Any) -> int:
    """Into how many the tile is divided, for each to have room in shared memory: a power of two."""
    least = -(-unit.tile.rows * _pitch(unit) // ROOM)
    return 1 << int(least - 1).bit_length()


@cache
def _write_strip(
    tile: Tile, strips: int, row_of: Any, sum_dtype: str, output: Output
) -> Callable[..., None]:
    finish, load = finisher(sum_dtype, output.dtype, output.extra), words.load_word(sum_dtype)
    start_of_row, itemsize = output.start_of_row, words.itemsize(sum_dtype)
    count, by_rows = output.count, output.by_rows
    rows, across = tile.rows // strips, tile.columns // count
    chunks, threads, pitch = rows * across, tile.threads, tile.columns * itemsize + PADDING
    store_chunk, append = ptx.store_chunk(count), ptx.chunk_append(count)
    lanes = min(rows, threads)

    @device_function
    def store(
        staging: Any, down: Any, within: Any, column: Any, y: Any, places: Any, at: Any, extras: Any
    ) -> None:
        """A chunk of the row that starts at ``at`` = (in y, in C, in the bias)."""
        y_at, c_at, bias_at = places
        words_at = staging + _uint32(down * pitch + within * itemsize)
        at_c, at_bias = at[1] + column * c_at[1][0], at[2] + column * bias_at[1][0]
        chunk = (_uint64(0), _uint64(0))
        for element in range(count):
            total = load(words_at + _uint32(element * itemsize))
            word = finish(total, at_c, at_bias, extras)
            chunk = append(y, chunk, word)
            at_c += c_at[1][0]
            at_bias += bias_at[1][0]
        store_chunk(y, _int64(at[0] + column * y_at[1][0]), chunk)

    @device_function
    def starts(places: Any, row: Any) -> Any:
        y_at, c_at, bias_at = places
        return start_of_row(y_at, row), start_of_row(c_at, row), bias_at[0] + row * bias_at[1][1]

    @device_function
    def write(
        strip: Any,
        staging: Any,
        thread: Any,
        origin: Any,
        limits: Any,
        y: Any,
        places: Any,
        extras: Any,
    ) -> None:
        for position in range(thread, chunks, threads):
            down, within = position // across, position % across * count
            row, column = origin[0] + row_of(strip, down), origin[1] + within
            if (row < limits[0]) & (column < limits[1]):
                at = starts(places, row)
                if at[0] >= 0:
                    store(staging, down, within, column, y, places, at, extras)

    @device_function
    def write_by_rows(
        strip: Any,
        staging: Any,
        thread: Any,
        origin: Any,
        limits: Any,
        y: Any,
        places: Any,
        extras: Any,
    ) -> None:
        """A thread keeps to a row, whose start takes divisions."""
        for down in range(thread % lanes, rows, lanes):
            row = origin[0] + row_of(strip, down)
            if row < limits[0]:
                at = starts(places, row)
                for k in range(thread // lanes, across, threads // lanes):
                    column = origin[1] + k * count
                    if (column < limits[1]) & (at[0] >= 0):
                        store(staging, down, k * count, column, y, places, at, extras)

    return write_by_rows if by_rows else write
