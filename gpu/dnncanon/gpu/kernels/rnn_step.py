"""One step of a recurrent layer in one kernel: the product with the state, and the cells in its epilogue.

    sums[d, b, g, j] = Σ_q h_{t−1}[d, b, q]·R[d, g·H + j, q]

A block takes some sequences and all gates of some units in one direction, so that a cell has all its sums in
shared memory; a thread then takes one unit of one sequence at a time. Direction 1 of a sequence is at its step
length − 1 − s when direction 0 is at step s; from a sequence's length on, its states stay, and what has a row
for the step gets its padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_cells import Cell, cells
from dnncanon.gpu.kernels.rnn_places import (
    bias_at,
    each_block,
    place_of,
    place_within,
    row_at,
    state_at,
    store_blocks,
)
from dnncanon.gpu.kernels.rnn_plan import (
    PACKED,
    WHOLE,
    RowArray,
    absent,
    on_tensor_cores,
    sum_dtype,
)
from dnncanon.gpu.kernels.rnn_tile import operand_of, step_kernel, tile_for
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.engine import Product
from dnncanon.gpu.kernels.tile.epilogue import Output
from dnncanon.gpu.kernels.tile.gates import chunks_of_gates, elements_of_gates
from dnncanon.gpu.kernels.tile.matrices import Operand, fetched
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, launch
from dnncanon.gpu.runtime.device_code import device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

Ints = tuple[int, ...]
Function = Callable[..., Any]


def units_of(tile: Tile, gates: int) -> int:
    """Units of a tile: of three gates as many as begin at multiples of 16 bytes."""
    return tile.columns // gates // 4 * 4


@dataclass(frozen=True, slots=True)
class Code:
    """What a kernel is compiled for."""

    dtype: str
    cell: str
    product: Product

    @property
    def units(self) -> int:
        return units_of(self.product.tile, self.parts.sums)

    @property
    def parts(self) -> Cell:
        return cells(sum_dtype(self.dtype))[self.cell]


def code_for(dtype: str, cell: str, h: DeviceArray, r: DeviceArray, tile: Tile) -> Code:
    """Of states h [D, B, Q] and a matrix r [D, G·units, Q]."""
    gates, on_tensor = cells(sum_dtype(dtype))[cell].sums, on_tensor_cores(dtype)
    left = operand_of(h, dtype)
    right = operand_of(r, dtype)
    slice_h, fetch_h = fetched(left, tile.rows, tile, dtype, tensor_core=on_tensor)
    slice_r, fetch_r = _fetched_gates(right, tile, gates, dtype)
    unit = (TensorCore if on_tensor else CudaCore)(dtype, tile, slice_h, slice_r)
    return Code(dtype, cell, Product(unit, fetch_h, fetch_r, Output(dtype, dtype)))


def _fetched_gates(operand: Operand, tile: Tile, gates: int, word: str) -> tuple[Slice, Fetch]:
    """As ``matrices.fetched``: on tensor cores in chunks if possible; never along the lines."""
    units, on_tensor = units_of(tile, gates), on_tensor_cores(word)
    itemsize = words.itemsize(word)
    along_depth = Slice(tile.columns, tile.depth, itemsize, "depth")
    if on_tensor and operand.in_chunks("depth"):
        return along_depth, chunks_of_gates(along_depth, tile.threads, gates, units)
    along_lines = Slice(tile.columns, tile.depth, itemsize, "lines", CHUNK)
    layout = along_depth if on_tensor else along_lines
    return layout, elements_of_gates(layout, tile.threads, gates, units, word, word)


# --- What a launch is given -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """The arrays of a launch, and what cells go by.

    ``state`` [D, B, Q] is multiplied by ``r`` [D, G·H, Q]; biases are [D, G·H]; ``before`` and ``after`` are
    h_{t−1} and h_t, [D, B, ·]. ``hidden`` and ``y`` have a row of h_t for each step, ``gates`` and ``cells``
    their own. ``c`` goes from step to step, [D, B, H], but the first step takes ``c_first``, or zeros, and the
    last one leaves ``c_last``.

    ``keeps`` says that gates are written; ``cleared`` how many blocks of them are where there is padding, which
    is ``padding`` in y. The launch that is ``final`` leaves h_t; one before it what is multiplied next.
    """

    state: DeviceArray
    r: DeviceArray
    before: DeviceArray
    after: DeviceArray
    w_bias: DeviceArray | None = None
    r_bias: DeviceArray | None = None
    gates: RowArray | None = None
    cells: RowArray | None = None
    hidden: RowArray | None = None
    y: RowArray | None = None
    c: DeviceArray | None = None
    c_first: DeviceArray | None = None
    c_last: DeviceArray | None = None
    rectifies: bool = False
    clip: tuple[float, ...] = ()
    nan_stays: bool = True
    padding: float = 0.0
    keeps: bool = False
    cleared: int = 0
    final: bool = True

    @property
    def flags(self) -> Ints:
        there = (self.w_bias, self.r_bias, self.c_first, self.hidden, self.y)
        return (
            *(int(array is not None) for array in there),
            int(self.keeps),
            self.cleared,
            int(self.final),
        )

    @property
    def codes(self) -> Ints:
        """As cells take them."""
        return int(self.rectifies), int(bool(self.clip)), int(self.nan_stays)

    @property
    def scalars(self) -> tuple[float, ...]:
        """The bounds of clipping, and what padding is."""
        return (*(self.clip or (0.0, 0.0)), float(self.padding))


def launch_step(
    dtype: str, cell: str, step: Step, sequences: Ints, table: DeviceArray, stream: object
) -> None:
    """Launch a step; ``sequences`` are its number, that of all steps, and the kind of the sequences."""
    directions, batch, units = step.after.shape
    code = code_for(dtype, cell, step.state, step.r, tile_for(batch, units, dtype))
    tile, depth = code.product.tile, step.state.shape[2]
    arrays, places = arguments_of(step, table, sum_dtype(dtype))
    args = (
        arrays,
        places,
        (directions, batch, units, depth, -(-depth // tile.depth)),
        sequences,
        step.flags,
        step.codes,
        step.scalars,
    )
    blocks = directions * -(-batch // tile.rows) * -(-units // code.units)
    function, nbytes = rnn_step(code), code.product.shared_bytes
    grid = blocks_for(blocks, 1)
    launch(function, grid, tile.threads, args, shared_bytes=nbytes, stream=stream)


def arguments_of(
    step: Step, table: DeviceArray, gates_dtype: str, both_states: DeviceArray | None = None
) -> tuple[Any, Any]:
    """``arrays`` and ``places`` as kernels of steps take them; gates and cells have a type of their own.

    States may be places in one array, ``both_states``, for kernels that change them.
    """
    vectors, rows = (step.w_bias, step.r_bias), (step.hidden, step.y, step.gates, step.cells)
    states = [step.before, step.after, step.c_first, step.c_last]
    state_places = [place_of(array) if array else (0, 0, 0, 0) for array in states]
    state, row_arrays = step.state, [row.array if row else None for row in rows]
    if both_states is not None:
        state = states[0] = states[1] = both_states
        state_places[:2] = (place_within(both_states, s) for s in (step.before, step.after))
    nothing, no_number = step.state, absent(gates_dtype)
    arrays = (
        (state.argument, step.r.argument),
        tuple((array or nothing).argument for array in vectors),
        tuple((array or nothing).argument for array in states),
        tuple((array or nothing).argument for array in row_arrays[:2]),
        tuple((array or no_number).argument for array in (*row_arrays[2:], step.c)),
        table.argument,
    )
    places = (
        (place_of(step.state), place_of(step.r)),
        tuple(place_of(array) if array else (0, 0, 0) for array in vectors),
        tuple(state_places),
        tuple(row.place if row else (0, 0, 0, 0, 0) for row in rows),
    )
    return arrays, places


# --- The kernel -----------------------------------------------------------------------------------


@cache
def rnn_step(code: Code) -> Kernel:
    """The kernel of a step forward.

    ``arrays`` are (state, r), the biases, (before, after, c_first, c_last), (hidden, y), (gates, cells, c) and
    the table; ``places`` those of the first three, and of hidden, y, gates and cells; ``scalars`` the bounds of
    clipping and what padding is.
    """
    return step_kernel(code.product, code.units, finish(code))


@cache
def finish(code: Code) -> Function:
    """finish(shared address of the first sum, place, …): what becomes of one unit of one sequence."""
    move, stay = moving(code), staying(code)

    @device_function
    def finish_(
        at: Any,
        here: Any,
        arrays: Any,
        places: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        d, b, table = here[0], here[1], arrays[5]
        number, steps, kind = sequences
        length = steps if kind == WHOLE else table[b]
        if number < length:
            t = length - 1 - number if d else number
            if kind == PACKED:
                t = table[table.size - steps + t]
            move(at, here, t, arrays, places, sequences, flags, codes, scalars)
        else:
            stay(here, arrays, places, sequences, flags, scalars)

    return finish_


@cache
def moving(code: Code) -> Function:
    """A step of a sequence that has it."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    to_sum, from_sum, zero = element.to_sum, element.from_sum, element.sum(0)
    load = words.load_word(sum_dtype(code.dtype))
    to_next_sum = code.units * element.sum_dtype.itemsize
    step_of, carry, pass_on = cell.step, _carry(code), _pass_on(code)
    keeps_cells, reads_h = cell.carries == "cell", cell.reads_h

    @device_function
    def of_input(gates: Any, at: Any, bias: Any, first: Any, jumps: Any, block: Any) -> Any:
        """W·x_t + bW of a gate"""
        value = gates[_int64(at + block * jumps[0])]
        if jumps[2]:
            value += to_sum(bias[_int64(first + block * jumps[1])])
        return value

    @device_function
    def of_state(sums: Any, bias: Any, first: Any, jump: Any, has_bias: Any, block: Any) -> Any:
        """R·h_{t−1} + bR of a gate"""
        value = load(sums + _uint32(block * to_next_sum))
        if has_bias:
            value += to_sum(bias[_int64(first + block * jump)])
        return value

    inputs = each_block(of_input, cell.inputs, 5, zero)
    states = each_block(of_state, range(cell.sums), 5, zero)
    keep_all = store_blocks(cell.kept)

    @device_function
    def move(
        at: Any,
        here: Any,
        t: Any,
        arrays: Any,
        places: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        _, (w_bias, r_bias), (before, after, _, _), (hidden, y), (gates, cells, _), _ = arrays
        _, biases_at, states_at, rows_at = places
        units = here[4]
        has_w, has_r, has_c, has_hidden, has_y, keeps, cleared, _ = flags
        gates_at, to_next_gate = row_at(rows_at[2], here, t), units * rows_at[2][4]
        jumps = (to_next_gate, units * biases_at[0][2], has_w)
        x = inputs(gates, gates_at, w_bias, bias_at(biases_at[0], here), jumps)
        of_r = units * biases_at[1][2]
        r = states(at, r_bias, bias_at(biases_at[1], here), of_r, has_r)
        h = zero
        if reads_h:
            h = to_sum(before[state_at(states_at[0], here)])
        carried = carry(here, gates_at, to_next_gate, arrays, states_at, sequences, has_c)
        kept, carried, h = step_of(x, r, h, carried, codes, scalars)
        if keeps:
            keep_all(gates, gates_at, to_next_gate, kept)
        if keeps_cells:
            pass_on(here, carried, arrays, states_at, sequences)
            if cleared:
                cells[row_at(rows_at[3], here, t)] = carried
        word = from_sum(h)
        after[state_at(states_at[1], here)] = word
        if has_hidden:
            hidden[row_at(rows_at[0], here, t)] = word
        if has_y:
            y[row_at(rows_at[1], here, t)] = word

    return move


@cache
def staying(code: Code) -> Function:
    """A step of a sequence that has ended."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    from_sum, zero = element.from_sum, element.sum(0)
    carry, pass_on, has_cells = _carry(code), _pass_on(code), cell.carries == "cell"

    @device_function
    def stay(
        here: Any,
        arrays: Any,
        places: Any,
        sequences: Any,
        flags: Any,
        scalars: Any,
    ) -> None:
        _, _, (before, after, _, _), (hidden, y), (gates, cells, _), _ = arrays
        _, _, states_at, rows_at = places
        t, _, kind = sequences
        _, _, has_c, has_hidden, has_y, _, cleared, final = flags
        if final:
            after[state_at(states_at[1], here)] = before[state_at(states_at[0], here)]
        if has_cells:
            c = carry(here, _int64(0), _int64(0), arrays, states_at, sequences, has_c)
            pass_on(here, c, arrays, states_at, sequences)
        if kind != PACKED:
            gates_at, jump = row_at(rows_at[2], here, t), here[4] * rows_at[2][4]
            for block in range(cleared):
                gates[_int64(gates_at + block * jump)] = zero
            if has_cells and cleared:
                cells[row_at(rows_at[3], here, t)] = zero
            if has_hidden:
                hidden[row_at(rows_at[0], here, t)] = from_sum(zero)
            if has_y:
                y[row_at(rows_at[1], here, t)] = from_sum(scalars[2])

    return stay


@cache
def _carry(code: Code) -> Function:
    """carry(…): what ``Cell.carries`` says, from where it is."""
    element, carries = ELEMENTS[code.dtype], code.parts.carries
    to_sum, zero = element.to_sum, element.sum(0)
    block = _int64(carries) if isinstance(carries, int) else _int64(0)

    @device_function
    def cell(
        here: Any, gates_at: Any, jump: Any, arrays: Any, at: Any, sequences: Any, has_c: Any
    ) -> Any:
        _, _, (_, _, c_first, _), _, (_, _, c), _ = arrays
        if sequences[0] > 0:
            return c[here[3]]
        return to_sum(c_first[state_at(at[2], here)]) if has_c else zero

    @device_function
    def gate(
        here: Any, gates_at: Any, jump: Any, arrays: Any, at: Any, sequences: Any, has_c: Any
    ) -> Any:
        return arrays[4][0][_int64(gates_at + block * jump)]

    @device_function
    def nothing(
        here: Any, gates_at: Any, jump: Any, arrays: Any, at: Any, sequences: Any, has_c: Any
    ) -> Any:
        return zero

    if carries is None:
        return nothing
    return cell if carries == "cell" else gate


@cache
def _pass_on(code: Code) -> Function:
    """pass_on(here, c_t, …): to the next step, or behind the last one."""
    from_sum = ELEMENTS[code.dtype].from_sum

    @device_function
    def pass_on(here: Any, value: Any, arrays: Any, at: Any, sequences: Any) -> None:
        _, _, (_, _, _, c_last), _, (_, _, c), _ = arrays
        number, steps, _ = sequences
        if number < steps - 1:
            c[here[3]] = value
        else:
            c_last[state_at(at[3], here)] = from_sum(value)

    return pass_on
