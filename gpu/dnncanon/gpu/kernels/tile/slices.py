"""Slices in shared memory: how an operand's part of a tile lies there, and how it gets there.

An operand is a matrix of *lines* and *depth*: the lines of A are the rows of the product, those of B its
columns, and the depth is what is summed over. So both are fetched by the same code. A slice holds some lines
over some depth, in one of two orders:

- along the depth: each line's elements lie side by side;
- along the lines: for each step of the depth, the lines' elements lie side by side.

It is made of chunks of 16 bytes. Chunk c of row r lies where chunk c XOR s(r) would lie without swizzling,
with s such that eight chunks in a column, which is what ``ldmatrix`` reads at once, are in eight different
groups of four banks, and so are eight side by side, which is what copies write. Of 4 chunks a row:

        row 0   0 1 2 3 | row 1   0 1 2 3
        row 2   1 0 3 2 | row 3   1 0 3 2
        row 4   2 3 0 1 | row 5   2 3 0 1
        row 6   3 2 1 0 | row 7   3 2 1 0
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.shape import CHUNK
from dnncanon.gpu.kernels.tile.words import converter, store_word
from dnncanon.gpu.runtime.device_code import device_function, types

Direction = Literal["depth", "lines"]

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

BANKS = 128
"""Bytes that the banks of shared memory deliver at once."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The layout of a slice of ``lines`` and ``depth`` elements of ``itemsize`` bytes.

    ``padding`` bytes behind each row take the place of swizzling.
    """

    lines: int
    depth: int
    itemsize: int
    along: Direction
    padding: int = 0

    @property
    def per_chunk(self) -> int:
        return CHUNK // self.itemsize

    @property
    def rows(self) -> int:
        return self.lines if self.along == "depth" else self.depth

    @property
    def chunks(self) -> int:
        """Of a row."""
        return (self.depth if self.along == "depth" else self.lines) // self.per_chunk

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        return self.chunks * CHUNK + self.padding

    @property
    def nbytes(self) -> int:
        return self.rows * self.pitch

    @property
    def swizzle(self) -> tuple[int, int]:
        """(shift, mask): chunk c of row r lies at c XOR (r >> shift & mask)."""
        if self.padding:
            return 0, 0
        rows_of_all_banks = max(1, BANKS // self.pitch)
        return rows_of_all_banks.bit_length() - 1, min(BANKS // CHUNK, self.chunks) - 1


@cache
def place_in(layout: Slice) -> Callable[..., Any]:
    """The device function (row, chunk) -> bytes from the start of the slice."""
    pitch, (shift, mask) = layout.pitch, layout.swizzle

    @device_function
    def place(row: Any, chunk: Any) -> Any:
        return row * pitch + ((chunk ^ (row >> shift & mask)) << 4)

    return place


# --- Fetching -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """How slices of an operand get into shared memory, one after the other along the depth.

    ``open(longs, ints, array, at, limits, line, depth, thread)`` points to the slice that starts there;
    ``next(longs, ints, array, at, limits, slot, thread)`` brings it into shared memory, from address ``slot``
    on, with zeros where it goes beyond the operand, and goes on to the next slice. ``at`` says where the
    operand is: of a matrix (first element, (stride of lines, stride of depth)); ``limits`` are its lines and
    depth. In between a thread keeps so many integers of 64 and of 32 bits in the two arrays. ``in_chunks`` says
    that copies move 16 bytes.
    """

    open: Callable[..., None]
    next: Callable[..., None]
    longs: int
    ints: int
    in_chunks: bool = False


def shares_of_chunks(layout: Slice, threads: int) -> tuple[int, int]:
    """How many rows apart the chunks of a thread are, and how many these are: all in one column.

    Rows that far apart are swizzled alike, if at all. ValueError if threads cannot share the chunks so.
    """
    apart = threads // layout.chunks
    each = layout.rows // max(1, apart)
    alike = layout.padding > 0 or apart % 8 == 0
    if apart * layout.chunks != threads or each * apart != layout.rows or not alike:
        raise ValueError(f"{threads} threads do not share the chunks of {layout} evenly")
    return apart, each


@cache
def chunks_of_matrix(layout: Slice, threads: int) -> Fetch:
    """By asynchronous copies of 16 bytes.

    The operand's elements lie side by side in the direction of the slice; its first element and each row are
    at multiples of 16 bytes, and the extent in that direction is one of whole chunks.
    """
    place = place_in(layout)
    chunks, per_chunk, pitch, deep = layout.chunks, layout.per_chunk, layout.pitch, layout.depth
    along_depth = layout.along == "depth"
    (apart, each), itemsize = shares_of_chunks(layout, threads), layout.itemsize

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        row, chunk = thread // chunks, thread % chunks
        n, k = line + row, depth + chunk * per_chunk
        stride_n, stride_k = at[1]
        stride, onward = stride_n, _int64(deep)
        if not along_depth:
            n, k = line + chunk * per_chunk, depth + row
            stride, onward = stride_k, stride_k * deep
        longs[0] = ptx.global_address(array, at[0] + n * stride_n + k * stride_k)
        longs[1] = stride * (apart * itemsize)
        longs[2] = onward * itemsize
        wanted = _int32(0)
        for i in range(each):
            inside = n + (i * apart if along_depth else 0) < limits[0]
            wanted |= _int32(inside) << _int32(i)
        ints[0] = place(row, chunk)
        ints[1] = wanted
        ints[2] = _int32(limits[1] - k)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        target, wanted, left = slot + _uint32(ints[0]), ints[1], ints[2]
        address = longs[0]
        for i in range(each):
            inside = left > _int32(0 if along_depth else i * apart)
            keep = (wanted >> _int32(i)) & _int32(1) if inside else _int32(0)
            ptx.cp_async_16_if(target + _uint32(i * apart * pitch), address, keep)
            address += longs[1]
        longs[0] += longs[2]
        ints[2] = _int32(left - _int32(deep))

    return Fetch(open_, next_, longs=3, ints=3, in_chunks=True)


@cache
def elements_of_matrix(layout: Slice, threads: int, source: str, target: str) -> Fetch:
    """One by one, from any strides; from one element type to another.

    Adjacent threads read adjacent elements, in whichever direction these lie. Words of 4 and 8 bytes that stay
    as they are arrive asynchronously.
    """
    place, per_chunk, itemsize = place_in(layout), layout.per_chunk, layout.itemsize
    lines, deep, along_depth = layout.lines, layout.depth, layout.along == "depth"
    each = lines * deep // threads
    if each * threads != lines * deep:
        raise ValueError(f"{threads} threads do not share the elements of {layout} evenly")
    move = word_mover(source, target)

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        longs[0] = at[0] + line * at[1][0] + depth * at[1][1]
        ints[0] = _int32(limits[0] - line)
        ints[1] = _int32(limits[1] - depth)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        stride_n, stride_k = at[1]
        depth_first = abs(stride_k) <= abs(stride_n)
        for i in range(each):
            position = thread + i * threads
            n, k = position % lines, position // lines
            if depth_first:
                n, k = position // deep, position % deep
            row, onward = (n, k) if along_depth else (k, n)
            where = place(row, onward // per_chunk) + onward % per_chunk * itemsize
            inside = (n < ints[0]) & (k < ints[1])
            move(
                slot + _uint32(where), array, _int64(longs[0] + n * stride_n + k * stride_k), inside
            )
        longs[0] += deep * stride_k
        ints[1] = _int32(ints[1] - _int32(deep))

    return Fetch(open_, next_, longs=1, ints=2)


@cache
def word_mover(source: str, target: str) -> Callable[..., None]:
    """move(shared address, array, index, inside): an element, or zero if it is not inside."""
    copy = {"float32": ptx.cp_async_4_fill, "float64": ptx.cp_async_8_fill}.get(source)
    if source == target and copy is not None:
        itemsize = 8 if source == "float64" else 4

        @device_function
        def move(slot: Any, array: Any, index: Any, inside: Any) -> None:
            copy(slot, ptx.global_address(array, index), itemsize if inside else 0)

        return move
    convert, (zero, store) = converter(source, target), store_word(target)

    @device_function
    def convert_and_move(slot: Any, array: Any, index: Any, inside: Any) -> None:
        word = zero
        if inside:
            word = convert(array[index])
        store(slot, word)

    return convert_and_move
