"""One step of the gradient of a recurrent layer in one kernel: the product with Rᵀ, then the chain rule.

    sums[d, b, j] = Σ_k δ_{t+1}[d, b, k]·R[d, k, j]

Steps go the other way round, from number S − 1 to 0: what a step leaves in its state, the gradients by its
pre-activations, the one before it multiplies. A sequence joins in at its own last step, where no product
arrives but the gradient by its last state. One launch more, number −1, makes of the last product the gradient
by the first state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rnn_backward_cells import BackwardCell, backward_cells
from dnncanon.gpu.kernels.rnn_places import each_block, place_of, row_at, state_at
from dnncanon.gpu.kernels.rnn_plan import (
    PACKED,
    WHOLE,
    RowArray,
    absent,
    on_tensor_cores,
    sum_dtype,
    view,
)
from dnncanon.gpu.kernels.rnn_tile import operand_of, step_kernel, tile_for
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.engine import Product
from dnncanon.gpu.kernels.tile.epilogue import Output
from dnncanon.gpu.kernels.tile.matrices import fetched
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, launch
from dnncanon.gpu.runtime.device_code import device_function, generated, types

_int64 = types.int64

Ints = tuple[int, ...]
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Code:
    """What a kernel is compiled for."""

    dtype: str
    cell: str
    product: Product

    @property
    def parts(self) -> BackwardCell:
        return backward_cells(sum_dtype(self.dtype))[self.cell]


def code_for(dtype: str, cell: str, state: DeviceArray, r: DeviceArray) -> Code:
    """Of a state [D, B, depth] and a matrix r [D, depth, units]."""
    on_tensor = on_tensor_cores(dtype)
    tile = tile_for(state.shape[1], r.shape[2], dtype)
    left, right = operand_of(state, dtype), operand_of(_transposed(r), dtype)
    slice_a, fetch_a = fetched(left, tile.rows, tile, dtype, tensor_core=on_tensor)
    slice_b, fetch_b = fetched(right, tile.columns, tile, dtype, tensor_core=on_tensor)
    unit = (TensorCore if on_tensor else CudaCore)(dtype, tile, slice_a, slice_b)
    return Code(dtype, cell, Product(unit, fetch_a, fetch_b, Output(dtype, dtype)))


def _transposed(r: DeviceArray) -> DeviceArray:
    (directions, depth, lines), (far, of_depth, of_line) = r.shape, r.strides
    return view(r, 0, (directions, lines, depth), (far, of_line, of_depth))


# --- What a launch is given -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """The arrays of a launch, and what cells go by.

    ``state`` [D, B, depth] is multiplied by ``r`` [D, depth, units]; ``after`` [D, B, blocks·units] gets what
    the next product multiplies. ``dy``, ``hidden``, ``gates`` and ``cells`` have a row for each step;
    ``dgates`` is written. ``carry`` goes from step to step, [D, B, units].

    ``h_first`` and ``c_first`` are the states before the first step, ``dh_last`` and ``dc_last`` the gradients
    by those after the last one, zeros where they are None; ``dh_first`` and ``dc_first`` are results.
    """

    state: DeviceArray
    r: DeviceArray
    after: DeviceArray
    dgates: RowArray
    dy: RowArray | None = None
    hidden: RowArray | None = None
    gates: RowArray | None = None
    cells: RowArray | None = None
    carry: DeviceArray | None = None
    h_first: DeviceArray | None = None
    c_first: DeviceArray | None = None
    dh_last: DeviceArray | None = None
    dc_last: DeviceArray | None = None
    dh_first: DeviceArray | None = None
    dc_first: DeviceArray | None = None
    rectifies: bool = False
    clip: tuple[float, ...] = ()

    @property
    def given(self) -> tuple[DeviceArray | None, ...]:
        """States that there need not be."""
        return self.h_first, self.c_first, self.dh_last, self.dc_last


def launch_backward_step(
    dtype: str, cell: str, step: BackwardStep, sequences: Ints, table: DeviceArray, stream: object
) -> None:
    """Launch a step; ``sequences`` are its number, that of all steps, and the kind of the sequences."""
    (directions, batch, depth), units = step.state.shape, step.r.shape[2]
    code = code_for(dtype, cell, step.state, step.r)
    tile, (number, steps, _) = code.product.tile, sequences
    states = (*step.given, step.dh_first, step.dc_first, step.after)
    rows = (step.dy, step.hidden, step.dgates)
    wide_rows = (step.gates, step.cells)
    nothing, no_number = step.state, absent(sum_dtype(dtype))
    # Nothing arrives at the last step; and where products do not arrive from the step behind, but from an
    # earlier launch of the same one, there is none behind the first.
    multiplies = number < steps - 1 if code.parts.total else number >= 0
    args = (
        (
            (step.state.argument, step.r.argument),
            tuple((array or nothing).argument for array in states),
            tuple((row.array if row else nothing).argument for row in rows),
            tuple((row.array if row else no_number).argument for row in wide_rows),
            (step.carry or no_number).argument,
            table.argument,
        ),
        (
            (place_of(step.state), place_of(_transposed(step.r))),
            tuple(place_of(array) if array else (0, 0, 0, 0) for array in states),
            tuple(row.place if row else (0, 0, 0, 0, 0) for row in (*rows, *wide_rows)),
        ),
        (directions, batch, units, depth, -(-depth // tile.depth) if multiplies else 0),
        sequences,
        tuple(int(array is not None) for array in step.given),
        (int(step.rectifies), int(bool(step.clip))),
        step.clip or (0.0, 0.0),
    )
    blocks = directions * -(-batch // tile.rows) * -(-units // tile.columns)
    function, nbytes = rnn_backward_step(code), code.product.shared_bytes
    launch(function, blocks_for(blocks, 1), tile.threads, args, shared_bytes=nbytes, stream=stream)


# --- What becomes of a sum ------------------------------------------------------------------------


@cache
def rnn_backward_step(code: Code) -> Kernel:
    """The kernel of a step backward.

    ``arrays`` are (state, r), (h_first, c_first, dh_last, dc_last, dh_first, dc_first, after), (dy, hidden,
    dgates), (gates, cells), carry and the table; ``places`` those of the first two, and of all rows. ``flags``
    say which of the first four states are there.
    """
    return step_kernel(code.product, code.product.tile.columns, _finish(code))


@cache
def _finish(code: Code) -> Function:
    """finish(shared address of the sum, place, …): what becomes of one unit of one sequence."""
    move, stay, end = _moving(code), _staying(code), _ending(code)

    @device_function
    def finish(
        at: Any,
        here: Any,
        arrays: Any,
        places: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        number, steps, kind = sequences
        length = steps if kind == WHOLE else arrays[5][here[1]]
        if number < 0:
            end(at, here, length, arrays, places, flags)
        elif number < length:
            move(at, here, length, arrays, places, sequences, flags, codes, scalars)
        else:
            stay(here, arrays, places, sequences)

    return finish


@cache
def _moving(code: Code) -> Function:
    """A step of a sequence that has it."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    to_sum, zero = element.to_sum, element.sum(0)
    arriving, carried_to = _arriving(code), _carried(code)
    load = words.load_word(sum_dtype(code.dtype))
    output, saved = _output(code), _saved(code)
    step_of, total, carries = cell.step, cell.total, cell.carries is not None
    keep_rows = _stores(code.dtype, enumerate(cell.rows))
    keep_passed = _stores(code.dtype, cell.passed)

    @device_function
    def move(
        at: Any,
        here: Any,
        length: Any,
        arrays: Any,
        places: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        _, states, (dy, _, dgates), _, carry, table = arrays
        _, states_at, rows_at = places
        number, units, last = sequences[0], here[4], sequences[0] == length - 1
        t = length - 1 - number if here[0] else number
        line, line_before = _lines(here, t, table, sequences)
        dm, carried = zero, carried_to(here, last, arrays, states_at, flags)
        if total:
            dm = to_sum(dy[row_at(rows_at[0], here, line)])
            dm += arriving(at, here, last, arrays, states_at, flags)
        else:
            dm = load(at)
        gates, c = saved(here, line, line_before, number, arrays, places, flags)
        h = output(here, line, line_before, number, arrays, places, flags)
        gradients, carried = step_of(gates, h, c, dm, carried, codes, scalars)
        place = rows_at[2]
        keep_rows(dgates, row_at(place, here, line), units * place[4], gradients)
        keep_passed(states[6], state_at(states_at[6], here), units * states_at[6][3], gradients)
        if carries:
            carry[here[3]] = carried

    return move


@device_function
def _lines(here: Any, t: Any, table: Any, sequences: Any) -> Any:
    """Of step t and of the one before it, as ``Rows`` has them; the first step has none before it."""
    number, steps, kind = sequences
    before = t + 1 if here[0] else t - 1
    if kind == PACKED:
        first = table.size - steps
        return table[first + t], table[first + before] if number > 0 else _int64(0)
    return _int64(t), _int64(before)


@cache
def _staying(code: Code) -> Function:
    """A step that a sequence does not have: nothing arrives at the one before, and rows are padding."""
    cell = code.parts
    clear_rows = _clears(code.dtype, cell.rows)
    clear_passed = _clears(code.dtype, [block for _, block in cell.passed])

    @device_function
    def stay(here: Any, arrays: Any, places: Any, sequences: Any) -> None:
        _, states, (_, _, dgates), _, _, _ = arrays
        _, states_at, rows_at = places
        t, _, kind = sequences
        after, units = states_at[6], here[4]
        clear_passed(states[6], state_at(after, here), units * after[3])
        if kind != PACKED:
            clear_rows(dgates, row_at(rows_at[2], here, t), units * rows_at[2][4])

    return stay


@cache
def _ending(code: Code) -> Function:
    """Behind the first step: the gradients by the first states."""
    cell, from_sum = code.parts, ELEMENTS[code.dtype].from_sum
    arriving, carried_to = _arriving(code), _carried(code)
    total, has_cells = cell.total, cell.carries == "cell"

    @device_function
    def end(at: Any, here: Any, length: Any, arrays: Any, places: Any, flags: Any) -> None:
        states, states_at = arrays[1], places[1]
        last = length == 0
        if total:
            dh = arriving(at, here, last, arrays, states_at, flags)
            states[4][state_at(states_at[4], here)] = from_sum(dh)
        if has_cells:
            dc = carried_to(here, last, arrays, states_at, flags)
            states[5][state_at(states_at[5], here)] = from_sum(dc)

    return end


@cache
def _arriving(code: Code) -> Function:
    """arriving(…): δh from the step behind; behind the last one the gradient by the last state."""
    element, passes = ELEMENTS[code.dtype], code.parts.carries == "state"
    to_sum, zero = element.to_sum, element.sum(0)
    load = words.load_word(sum_dtype(code.dtype))

    @device_function
    def arriving(at: Any, here: Any, last: Any, arrays: Any, states_at: Any, flags: Any) -> Any:
        if last:
            return to_sum(arrays[1][2][state_at(states_at[2], here)]) if flags[2] else zero
        if passes:
            return load(at) + arrays[4][here[3]]
        return load(at)

    return arriving


@cache
def _carried(code: Code) -> Function:
    """carried_to(…): what ``BackwardCell.carries`` says, from the step behind or this one's first launch."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    to_sum, zero = element.to_sum, element.sum(0)

    @device_function
    def cells(here: Any, last: Any, arrays: Any, states_at: Any, flags: Any) -> Any:
        if last:
            return to_sum(arrays[1][3][state_at(states_at[3], here)]) if flags[3] else zero
        return arrays[4][here[3]]

    @device_function
    def state(here: Any, last: Any, arrays: Any, states_at: Any, flags: Any) -> Any:
        return arrays[4][here[3]]

    @device_function
    def nothing(here: Any, last: Any, arrays: Any, states_at: Any, flags: Any) -> Any:
        return zero

    if cell.carries == "cell":
        return cells
    # The whole gradient takes it in with what arrives.
    return state if cell.carries == "state" and not cell.total else nothing


# --- What the forward pass saved ------------------------------------------------------------------


@cache
def _saved(code: Code) -> Function:
    """saved(…): the gates of a step, and (c_t, c_{t−1})."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    to_sum, zero, has_cells = element.to_sum, element.sum(0), cell.carries == "cell"

    @device_function
    def gate(gates: Any, at: Any, jump: Any, block: Any) -> Any:
        return gates[_int64(at + block * jump)]

    gates_of = each_block(gate, cell.gates, 3, zero)

    @device_function
    def saved(
        here: Any, line: Any, line_before: Any, number: Any, arrays: Any, places: Any, flags: Any
    ) -> Any:
        gates, cells = arrays[3]
        place = places[2][3]
        values = gates_of(gates, row_at(place, here, line), here[4] * place[4])
        if has_cells:
            c = cells[row_at(places[2][4], here, line)]
            before = zero
            if number > 0:
                before = cells[row_at(places[2][4], here, line_before)]
            elif flags[1]:
                before = to_sum(arrays[1][1][state_at(places[1][1], here)])
            return values, (c, before)
        return values, (zero, zero)

    return saved


@cache
def _output(code: Code) -> Function:
    """output(…): h_t or h_{t−1}, whichever the cell reads."""
    cell, element = code.parts, ELEMENTS[code.dtype]
    to_sum, zero = element.to_sum, element.sum(0)

    @device_function
    def own(
        here: Any, line: Any, line_before: Any, number: Any, arrays: Any, places: Any, flags: Any
    ) -> Any:
        return to_sum(arrays[2][1][row_at(places[2][1], here, line)])

    @device_function
    def before(
        here: Any, line: Any, line_before: Any, number: Any, arrays: Any, places: Any, flags: Any
    ) -> Any:
        if number > 0:
            return to_sum(arrays[2][1][row_at(places[2][1], here, line_before)])
        if flags[0]:
            return to_sum(arrays[1][0][state_at(places[1][0], here)])
        return zero

    @device_function
    def nothing(
        here: Any, line: Any, line_before: Any, number: Any, arrays: Any, places: Any, flags: Any
    ) -> Any:
        return zero

    return {"own": own, "before": before, None: nothing}[cell.reads_h]


# --- Blocks of a row ------------------------------------------------------------------------------


def _stores(dtype: str, pairs: Any) -> Function:
    """f(array, at, jump, numbers): of a tuple numbers to blocks, by pairs of both."""
    lines = [f"    array[int64(at + {block} * jump)] = of(numbers[{k}])" for k, block in pairs]
    source = "\n".join(["def store(array, at, jump, numbers):", *lines, "    return"])
    scope = {"int64": _int64, "of": ELEMENTS[dtype].from_sum}
    return device_function(generated(source, scope))


def _clears(dtype: str, blocks: Sequence[int]) -> Function:
    """f(array, at, jump): zeros to blocks."""
    lines = [f"    array[int64(at + {block} * jump)] = of(zero)" for block in blocks]
    source = "\n".join(["def clear(array, at, jump):", *lines, "    return"])
    element = ELEMENTS[dtype]
    scope = {"int64": _int64, "of": element.from_sum, "zero": element.sum(0)}
    return device_function(generated(source, scope))
