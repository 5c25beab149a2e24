"""Fetches for cells of recurrent networks: lines of a tile that are the gates of a few units.

The recurrent matrix has G·H rows, gate by gate. A tile takes all G rows of U units, so that the gates of a
unit meet in one epilogue: its line g·U + u is row g·H + j + u, with j its first unit.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.slices import (
    Fetch,
    Slice,
    place_in,
    shares_of_chunks,
    word_mover,
)
from dnncanon.gpu.runtime.device_code import device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32


@cache
def _row_of_line(gates: int, units: int) -> Callable[[Any, Any, Any], Any]:
    """row(line, first unit, units of the layer): −1 where a line of a tile is no gate of a unit."""

    @device_function
    def row_of_line(line: Any, first: Any, extent: Any) -> Any:
        gate = line // units
        unit = first + line - gate * units
        inside = (gate < gates) & (unit < extent)
        return _int64(gate) * extent + unit if inside else _int64(-1)

    return row_of_line


@cache
def elements_of_gates(
    layout: Slice, threads: int, gates: int, units: int, source: str, target: str
) -> Fetch:
    """One by one, from any strides; as ``elements_of_matrix``."""
    place, per_chunk, itemsize = place_in(layout), layout.per_chunk, layout.itemsize
    lines, deep, along_depth = layout.lines, layout.depth, layout.along == "depth"
    each = lines * deep // threads
    if each * threads != lines * deep:
        raise ValueError(f"{threads} threads do not share the elements of {layout} evenly")
    move, row_of_line = word_mover(source, target), _row_of_line(gates, units)

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
            of_gate, depth = row_of_line(n, ints[0], limits[0]), _int64(ints[1] + k)
            inside = (of_gate >= 0) & (depth < limits[1])
            from_ = at[0] + of_gate * at[1][0] + depth * at[1][1]
            move(slot + _uint32(where), array, _int64(from_), inside)
        ints[1] = _int32(ints[1] + _int32(deep))

    return Fetch(open_, next_, longs=1, ints=2)


@cache
def chunks_of_gates(layout: Slice, threads: int, gates: int, units: int) -> Fetch:
    """By asynchronous copies of 16 bytes along the depth; as ``chunks_of_matrix``."""
    place, row_of_line = place_in(layout), _row_of_line(gates, units)
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
            of_gate = row_of_line(thread // chunks + i * apart, line, limits[0])
            ints[2 + i] = _int32(of_gate >= 0)
            first = at[0] + max(of_gate, _int64(0)) * at[1][0] + k
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
