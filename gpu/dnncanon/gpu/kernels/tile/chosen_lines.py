"""Fetches of lines that no one stride leads through: a function says which row each line of a tile is.

So do the tokens that rows of a mixture ask for, and the gates of a few units, whose rows lie apart.
``row_of(at, line, within, extent)`` gives the row of the line ``within`` of a tile that begins at ``line``, of
``extent`` lines in all; below 0 where there is none, which makes zeros of it. ``at`` is (first element, (stride
of rows, stride of the depth), what else ``row_of`` needs).
"""

from collections.abc import Callable
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice, place_in, shares_of_chunks
from dnncanon.gpu.runtime.device_code import device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

RowOf = Callable[[Any, Any, Any, Any], Any]


def elements_of_lines(layout: Slice, threads: int, move: Any, row_of: RowOf) -> Fetch:
    """One by one, from any strides; ``move`` as ``word_mover`` makes it."""
    place, per_chunk, itemsize = place_in(layout), layout.per_chunk, layout.itemsize
    lines, deep, along_depth = layout.lines, layout.depth, layout.along == "depth"
    each = lines * deep // threads
    if each * threads != lines * deep:
        raise ValueError(f"{threads} threads do not share the elements of {layout} evenly")

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        ints[0] = _int32(line)
        ints[1] = _int32(depth)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        for i in range(each):
            position = thread + i * threads
            n, k = position // deep, position % deep
            row, onward = (n, k) if along_depth else (k, n)
            where = place(row, onward // per_chunk) + onward % per_chunk * itemsize
            chosen, depth = _int64(row_of(at, ints[0], n, limits[0])), _int64(ints[1] + k)
            inside = (chosen >= 0) & (depth < limits[1])
            from_ = at[0] + chosen * at[1][0] + depth * at[1][1]
            move(slot + _uint32(where), array, _int64(from_), inside)
        ints[1] = _int32(ints[1] + _int32(deep))

    return Fetch(open_, next_, longs=1, ints=2)


def chunks_of_lines(layout: Slice, threads: int, row_of: RowOf) -> Fetch:
    """By asynchronous copies of 16 bytes along the depth."""
    place = place_in(layout)
    chunks, per_chunk, pitch, deep = layout.chunks, layout.per_chunk, layout.pitch, layout.depth
    (apart, each), itemsize = shares_of_chunks(layout, threads), layout.itemsize

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        k = depth + thread % chunks * per_chunk
        ints[0] = place(thread // chunks, thread % chunks)
        ints[1] = _int32(limits[1] - k)
        for i in range(each):
            chosen = _int64(row_of(at, line, thread // chunks + i * apart, limits[0]))
            ints[2 + i] = _int32(chosen >= 0)
            first = at[0] + max(chosen, _int64(0)) * at[1][0] + k
            longs[i] = ptx.global_address(array, first)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        target = slot + _uint32(ints[0])
        for i in range(each):
            keep = ints[2 + i] if ints[1] > _int32(0) else _int32(0)
            ptx.cp_async_16_if(target + _uint32(i * apart * pitch), longs[i], keep)
            longs[i] += deep * itemsize
        ints[1] = _int32(ints[1] - _int32(deep))

    return Fetch(open_, next_, longs=each, ints=2 + each)
