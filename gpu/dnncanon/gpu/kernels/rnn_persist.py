"""Recurrent networks forward by the algorithm "persist": all steps of a layer in one launch.

A block keeps the rows of R of its units in shared memory, fetched once, and at each step multiplies them by the
state of its sequences; then it computes their cells as the algorithm "standard" does. Both directions are in
the grid. A step reads what all units left at the step before, so the whole grid meets between steps: all blocks
have to run at the same time, one on a multiprocessor. States go to and fro between two places in memory; W·x is
computed for all steps before.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_cells import cells
from dnncanon.gpu.kernels.rnn_forward import (
    CELLS,
    Forward,
    bytes_of_products,
    scratch_of_layer,
    second_cell,
)
from dnncanon.gpu.kernels.rnn_places import place_of, state_at
from dnncanon.gpu.kernels.rnn_plan import LayerWeights, of_layer, on_tensor_cores, sum_dtype
from dnncanon.gpu.kernels.rnn_step import Code, arguments_of, code_for, finish, units_of
from dnncanon.gpu.kernels.rnn_tile import FEW, hand_out, pitch_of_sums
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.resident import accumulate_kept, keep
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Slice
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import Kernel, device, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.rnn_problem import RnnProblem

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

TILES = {
    (True, True): (Tile(16, 32, 64, (1, 2), 6), Tile(16, 64, 64, (1, 4), 6)),
    (True, False): (Tile(64, 32, 64, (4, 1), 4), Tile(64, 64, 64, (2, 2), 4)),
    (False, True): (Tile(16, 32, 8, (1, 1), 8), Tile(16, 64, 16, (1, 2), 6)),
    (False, False): (Tile(64, 32, 16, (2, 2), 4), Tile(64, 64, 16, (2, 4), 4)),
}
"""Narrow and wide, on tensor cores or not, for few sequences or more. Narrow ones spread R over more blocks."""

_LEAST_STEPS, _MOST_SEQUENCES = 8, 64
"""Where "auto" prefers this: many steps, and no more sequences than a tile has."""


# --- Who computes what ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Division:
    """How a layer is divided among blocks: each has some units of one direction, and a share of the sequences.

    ``slices`` of R lie behind ``slots_bytes`` for those of the state.
    """

    tile: Tile
    directions: int
    across: int
    shares: int
    slices: int
    slots_bytes: int
    slice_bytes: int

    @classmethod
    def of(cls, p: RnnProblem, tile: Tile) -> "Division":
        of_cell = cells(sum_dtype(p.dtype))[CELLS[p.cell]]
        across = math.ceil(p.hidden_size / units_of(tile, of_cell.sums))
        room = device().multiprocessors // (p.directions * across)
        return cls(
            tile,
            p.directions,
            across,
            max(1, min(math.ceil(p.batch / tile.rows), room)),
            math.ceil(p.out / tile.depth),
            max(
                tile.stages * _layout(tile.rows, tile, p.dtype).nbytes,
                tile.rows * pitch_of_sums(tile, sum_dtype(p.dtype)),
            ),
            _layout(tile.columns, tile, p.dtype).nbytes,
        )

    @property
    def blocks(self) -> int:
        return self.directions * self.across * self.shares

    @property
    def shared_bytes(self) -> int:
        return self.slots_bytes + self.slices * self.slice_bytes


def _layout(lines: int, tile: Tile, dtype: str) -> Slice:
    itemsize = words.itemsize(dtype)
    if on_tensor_cores(dtype):
        return Slice(lines, tile.depth, itemsize, "depth")
    return Slice(lines, tile.depth, itemsize, "lines", CHUNK)


def _divisions(p: RnnProblem) -> list[Division]:
    tiles = TILES[on_tensor_cores(p.dtype), p.batch <= FEW]
    return [Division.of(p, tile) for tile in tiles]


def _division(p: RnnProblem) -> Division:
    """The first that fits; of a call that is not refused."""
    return next(division for division in _divisions(p) if _obstacle(division) is None)


def _obstacle(division: Division) -> str | None:
    """Why the blocks cannot all run at the same time, if they cannot."""
    here = device()
    if division.shared_bytes > here.shared_limit:
        return (
            f"keeps R in shared memory, where {division.tile.columns} rows of it take a block "
            f"{division.shared_bytes} bytes of {here.shared_limit}"
        )
    if division.blocks > here.multiprocessors:
        return (
            f"needs {division.blocks} blocks at the same time, one on each of "
            f"{here.multiprocessors} multiprocessors"
        )
    return None


def refusal(layouts: Layouts[RnnProblem]) -> str | None:
    """Why this algorithm does not take a call, as the end of a sentence; None if it does."""
    p = layouts.problem
    if second_cell(p) is not None:
        why = "a projection" if p.projection_size else 'reset="before"'
        return f"has one product a step, and {why} takes a second one"
    obstacles = [_obstacle(division) for division in _divisions(p)]
    return None if None in obstacles else obstacles[0]


def pays(layouts: Layouts[RnnProblem]) -> bool:
    """For "auto": where steps are many and small. Reasoned, not measured."""
    p = layouts.problem
    return p.steps >= _LEAST_STEPS and p.batch <= _MOST_SEQUENCES


# --- Launches -------------------------------------------------------------------------------------


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def forward(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    _Persist(run, _scratch(run.plan)).launch()


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    """Beside what all have, two states, of which the first step reads one."""
    p = layouts.problem
    scratch = scratch_of_layer(p)
    if p.steps:
        scratch.add("states", (2, p.directions, p.batch, p.out), p.dtype)
    scratch.need(bytes_of_products(layouts, p.num_layers))
    return scratch


class _Persist(Forward):
    def launch_steps(self, layer: int, weights: LayerWeights) -> None:
        """All of a layer in one launch."""
        p, h0 = self.p, self.run.inputs.get("h0")
        division, step = _division(p), self.step(layer, weights, self.state(1), self.state(0))
        code = code_for(p.dtype, CELLS[p.cell], step.state, step.r, division.tile)
        assert code.product.unit.b.nbytes == division.slice_bytes
        last = of_layer(p, self.run.outputs["hy"], layer)
        first = of_layer(p, h0, layer) if h0 else last
        states, table = self.memory["states"], self.memory["table"]
        args = (
            *arguments_of(step, table, sum_dtype(p.dtype), states),
            (first.argument, last.argument),
            (place_of(first), place_of(last)),
            (p.batch, p.hidden_size, p.out),
            (division.across, division.shares, division.slices, division.slots_bytes),
            (p.steps, self.sequences.kind),
            (*step.flags, int(h0 is not None)),
            step.codes,
            step.scalars,
        )
        launch(
            rnn_layer(code),
            division.blocks,
            division.tile.threads,
            args,
            shared_bytes=division.shared_bytes,
            stream=self.stream,
        )


# --- The kernel -----------------------------------------------------------------------------------


@cache
def rnn_layer(code: Code) -> Kernel:
    """The kernel of all steps. Launch as many blocks, and as much shared memory, as ``Division`` says.

    ``arrays`` and ``places`` are those of the first step; from step to step states change places. ``ends`` and
    ``ends_at`` are h before the first step and behind the last one. ``sizes`` are sequences, units and depth;
    ``division`` how many blocks there are across the units, shares of the sequences, slices of R, and bytes
    before them. Of the ``flags`` the last one says that there is an h before the first step.
    """
    product, units_of_block = code.product, code.units
    tile, unit = product.tile, product.unit
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of = unit.sums, tile.rows
    fetch, add = keep(product), accumulate_kept(product)
    give, copy = hand_out(product, units_of_block, finish(code)), _copy(code)

    @kernel(launch_bounds=(tile.threads, 1))
    def rnn_layer_(
        arrays: Any,
        places: Any,
        ends: Any,
        ends_at: Any,
        sizes: Any,
        division: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        grid = cuda.cg.this_grid()
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        batch, units, depth = sizes
        across, shares, slices, slots_bytes = division
        steps, kind = sequences
        (h, r), states = arrays[0], arrays[2][0]
        r_at, states_at = places[0][1], places[2]
        share, strip = cuda.blockIdx.x % shares, cuda.blockIdx.x // shares
        first_unit, d = strip % across * units_of_block, strip // across
        part = (d, share * rows_of, shares * rows_of, first_unit)
        kept = shared + _uint32(slots_bytes)
        of_r = (r_at[0] + d * r_at[1], (r_at[2], r_at[3]))
        limits_r = (_int32(units), _int32(depth))
        fetch(kept, thread, r, of_r, limits_r, _int32(first_unit), slices)
        copy(states, states_at[0], ends[0], ends_at[0], flags[8], part, sizes, thread)
        for step in range(steps):
            grid.sync()
            before, after = states_at[step % 2], states_at[1 - step % 2]
            of_h = (before[0] + d * before[1], (before[2], before[3]))
            states_now = (before, after, states_at[2], states_at[3])
            at = (places[0], places[1], states_now, places[3])
            rest = (arrays, at, (step, steps, kind), flags[:8], codes, scalars)
            row = part[1]
            while row < batch:
                for i in range(count):
                    sums[i] = zero
                limits_h = (_int32(batch), _int32(depth))
                add(sums, shared, kept, thread, h, of_h, limits_h, _int32(row), slices)
                give(sums, shared, thread, (d, row, first_unit), (batch, units), rest)
                row += part[2]
        copy(ends[1], ends_at[1], states, states_at[steps % 2], _int64(1), part, sizes, thread)

    return rnn_layer_


@cache
def _copy(code: Code) -> Callable[..., None]:
    """copy(y, y_at, x, x_at, given, part, sizes, thread): a block's part of a state, or zeros if none is given.

    ``part`` is (direction, first sequence, from tile to tile, first unit).
    """
    rows_of, units_of_block = code.product.tile.rows, code.units
    threads, element = code.product.tile.threads, ELEMENTS[code.dtype]
    from_sum, zero = element.from_sum, element.sum(0)

    @device_function
    def copy(
        y: Any, y_at: Any, x: Any, x_at: Any, given: Any, part: Any, sizes: Any, thread: Any
    ) -> None:
        d, row, jump, first_unit = part
        while row < sizes[0]:
            for position in range(thread, rows_of * units_of_block, threads):
                b = row + _int64(position // units_of_block)
                j = first_unit + _int64(position % units_of_block)
                if (b < sizes[0]) & (j < sizes[1]):
                    here = (d, b, j)
                    word = from_sum(zero)
                    if given:
                        word = x[state_at(x_at, here)]
                    y[state_at(y_at, here)] = word
            row += jump

    return copy
