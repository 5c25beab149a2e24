"""Fetches for cells of recurrent networks: lines of a tile that are the gates of a few units.

The recurrent matrix has G·H rows, gate by gate. A tile takes all G rows of U units, so that the gates of a
unit meet in one epilogue: its line g·U + u is row g·H + j + u, with j its first unit.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.tile.chosen_lines import RowOf, chunks_of_lines, elements_of_lines
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice, word_mover
from dnncanon.gpu.runtime.device_code import device_function, types

_int64 = types.int64


@cache
def _row_of_gate(gates: int, units: int) -> RowOf:
    """−1 where a line of a tile is no gate of a unit."""

    @device_function
    def row_of_gate(at: Any, first: Any, line: Any, extent: Any) -> Any:
        gate = line // units
        unit = first + line - gate * units
        inside = (gate < gates) & (unit < extent)
        return _int64(gate) * extent + unit if inside else _int64(-1)

    return row_of_gate


@cache
def elements_of_gates(
    layout: Slice, threads: int, gates: int, units: int, source: str, target: str
) -> Fetch:
    """One by one, from any strides."""
    move = word_mover(source, target)
    return elements_of_lines(layout, threads, move, _row_of_gate(gates, units))


@cache
def chunks_of_gates(layout: Slice, threads: int, gates: int, units: int) -> Fetch:
    """By asynchronous copies of 16 bytes along the depth."""
    return chunks_of_lines(layout, threads, _row_of_gate(gates, units))
