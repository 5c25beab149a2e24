"""Recurrent networks forward by the algorithm "wavefront": a launch computes one step of several layers.

Layer l can do its step t when the layer below has done that step, and itself the one before. So all steps with
the same l + t are independent of each other: a diagonal of the table of layers and steps, and one launch.

    diagonal 0 1 2 3 4 5
    layer 0  0 1 2 3             t of each layer
    layer 1    0 1 2 3
    layer 2      0 1 2 3

A block multiplies twice: W by what the layer below has left, then R by the layer's own state. The first layer
has W·x of all its steps from one product before. Sums of the first product go where the cells look for W·x.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.moving import copy, fill
from dnncanon.gpu.kernels.rnn_forward import (
    CELLS,
    Forward,
    bytes_of_products,
    drops,
    saves_gates,
    second_cell,
)
from dnncanon.gpu.kernels.rnn_places import place_within, row_at
from dnncanon.gpu.kernels.rnn_plan import (
    PACKED,
    WHOLE,
    Ints,
    RowArray,
    Sequences,
    layer_weights,
    rows_of_data,
    rows_of_layer,
    sum_dtype,
    view,
    weight_place,
)
from dnncanon.gpu.kernels.rnn_step import Code, Step, arguments_of, code_for, moving, staying
from dnncanon.gpu.kernels.rnn_tile import hand_out, tile_for
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.engine import accumulate
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_weights import Kind

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

_LEAST_STEPS, _MOST_SEQUENCES = 8, 64
"""Where "auto" prefers this to single steps: W is read at each of them, and more sequences would fill a GPU."""


def refusal(layouts: Layouts[RnnProblem]) -> str | None:
    """Why this algorithm does not take a call, as the end of a sentence; None if it does."""
    p = layouts.problem
    if p.num_layers == 1:
        return "computes steps of several layers at the same time, and num_layers=1"
    if p.bidirectional:
        return "begins a layer before the one below has ended, and a second direction begins at its end"
    if second_cell(p) is not None:
        why = "a projection" if p.projection_size else 'reset="before"'
        return f"has one launch a step, and {why} takes a second one"
    return "has no dropout between layers" if drops(p) else None


def pays(layouts: Layouts[RnnProblem]) -> bool:
    """For "auto": where steps are many and small. Reasoned, not measured."""
    p = layouts.problem
    return p.steps >= _LEAST_STEPS and p.batch <= _MOST_SEQUENCES


# --- Launches -------------------------------------------------------------------------------------


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def forward(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    _Wavefront(run, _scratch(run.plan)).launch()


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    """The table; W·x, of the first layer for all rows, of the others for a step; states and c of all layers."""
    p = layouts.problem
    scratch = Scratch(table=Sequences.of(p).table)
    states = (p.num_layers, p.batch, p.hidden_size)
    if not saves_gates(p):
        rows = p.rows + (p.num_layers - 1) * p.batch
        scratch.add("gates", (1, rows, p.gates * p.hidden_size), sum_dtype(p.dtype))
    if p.steps:
        scratch.add("states", (2, *states), p.dtype)
    if p.cell == "lstm" and p.steps > 1:
        scratch.add("c", states, sum_dtype(p.dtype))
    scratch.need(bytes_of_products(layouts, 1))
    return scratch


class _Wavefront(Forward):
    def launch_layers(self) -> None:
        """The first layer's W·x; then all layers, one diagonal after the other."""
        p, h0 = self.p, self.run.inputs.get("h0")
        self.multiply_input(0, layer_weights(p, self.run.inputs["weights"], 0))
        first, last = self.state(1), self.state(p.steps - 1)
        copy(h0, first, stream=self.stream) if h0 else fill(first, 0, stream=self.stream)
        for number in range(p.steps + p.num_layers - 1):
            self.launch_diagonal(number)
        copy(last, self.run.outputs["hy"], stream=self.stream)

    def launch_diagonal(self, number: int) -> None:
        """Step ``number`` − l of each layer l that has it."""
        p, code = self.p, self.code
        tile = code.product.tile
        lowest, highest = max(0, number - p.steps + 1), min(number, p.num_layers - 1)
        layers = highest - lowest + 1
        args = (
            *self.arguments,
            (p.batch, p.hidden_size, -(-p.hidden_size // tile.depth)),
            (number, lowest, layers, p.num_layers),
            (p.steps, self.sequences.kind),
            self.first_step.flags,
            self.first_step.codes,
            self.first_step.scalars,
        )
        blocks = layers * -(-p.batch // tile.rows) * -(-p.hidden_size // code.units)
        nbytes, threads = code.product.shared_bytes, tile.threads
        grid = blocks_for(blocks, 1)
        launch(rnn_diagonal(code), grid, threads, args, shared_bytes=nbytes, stream=self.stream)

    # What all diagonals are given

    @cached_property
    def code(self) -> Code:
        """For R, and for W too: all their rows are H numbers long, and lie behind each other."""
        p, r = self.p, self.first_step.r
        tile = tile_for(p.batch, p.hidden_size, p.dtype)
        if (
            p.dtype == "float64"
        ):  # two products of deeper slices take more registers than a thread has
            tile = replace(tile, depth=tile.depth // 2)
        return code_for(p.dtype, CELLS[p.cell], self.state(0), r, tile)

    @cached_property
    def arguments(self) -> tuple[Any, Any]:
        """``arguments_of`` the first step, with W in the place of R's array, and where W, R and gates are."""
        weights, gates = self.run.inputs["weights"], self.first_step.gates
        assert gates is not None
        table, states = self.memory["table"], self.memory["states"]
        (product, *arrays), (_, *places) = arguments_of(
            self.first_step, table, sum_dtype(self.p.dtype), states
        )
        of_weights = tuple(place_within(weights, m) for m in (self.w, self.first_step.r))
        return (
            ((product[0], weights.argument), *arrays),
            (of_weights, *places, (gates.place, self.gates_above(gates))),
        )

    @cached_property
    def w(self) -> DeviceArray:
        """[L − 1, G·H, H]: of the first layer W is another matrix."""
        w = self.over_layers("W", 1)
        assert w is not None
        return w

    @cached_property
    def first_step(self) -> Step:
        """The first one, with the layer where steps of one layer have the direction."""
        p, outputs, inputs = self.p, self.run.outputs, self.run.inputs
        saves, r = saves_gates(p), self.over_layers("R", 0)
        assert r is not None
        y = RowArray(outputs["y"], replace(rows_of_data(p, outputs["y"]), direction=0))
        gates = outputs["gates"] if saves else self.memory["gates"]
        step = Step(
            self.state(1),
            r,
            self.state(1),
            self.state(0),
            self.over_layers("bW", 0),
            self.over_layers("bR", 0),
            RowArray(gates, rows_of_layer(p, gates)),
            y=y,
            rectifies=p.cell == "rnn_relu",
            clip=p.cell_clip,
            nan_stays=p.clip_nan == "propagate",
            padding=p.padding_fill,
            keeps=saves,
            cleared=p.reserved_gates if saves else 0,
        )
        if p.training:
            hidden = outputs["hidden"]
            step = replace(step, hidden=RowArray(hidden, rows_of_layer(p, hidden)))
        if p.cell != "lstm":
            return step
        c0, cy, cells = inputs.get("c0"), outputs["cy"], outputs.get("cells")
        rows = RowArray(cells, rows_of_layer(p, cells)) if cells else None
        return replace(step, c=self.memory.get("c"), c_first=c0, c_last=cy, cells=rows)

    def gates_above(self, gates: RowArray) -> Ints:
        """W·x of layers above the first: where gates are saved, or behind those a row for each sequence."""
        p = self.p
        if saves_gates(p):
            return gates.place
        first, _, _, row, column = gates.place
        return (first + (p.rows - p.batch) * row, p.batch * row, 0, row, column)

    def over_layers(self, kind: Kind, first: int) -> DeviceArray | None:
        """A parameter of all layers from the first one that has it: [layers, …]."""
        p, weights = self.p, self.run.inputs["weights"]
        places = [weight_place(p, weights, kind, layer) for layer in range(first, p.num_layers)]
        here, above = places[0], places[-1]
        if here is None or above is None:
            return None
        apart = (above.first - here.first) // max(1, len(places) - 1)
        shape, strides = (len(places), *here.shape[1:]), (apart, *here.strides[1:])
        return view(weights, here.first, shape, strides)


# --- The kernel -----------------------------------------------------------------------------------


@cache
def rnn_diagonal(code: Code) -> Kernel:
    """The kernel of a diagonal. Launch with the product's threads and shared memory.

    ``arrays`` are those of a step, with all weights in the place of R; ``places`` those of W and R, and of
    biases, states and rows, and of the gates of the first layer and of those above. ``sizes`` are sequences,
    units and slices; ``diagonal`` its number, its lowest layer, how many it has, and how many there are.
    """
    product, units_of_tile = code.product, code.units
    tile, unit = product.tile, product.unit
    number, zero = words.number(unit.sum_dtype), words.number(unit.sum_dtype)(0)
    count, rows_of = unit.sums, tile.rows
    add, give = accumulate(product), hand_out(product, units_of_tile, _finish(code))

    @kernel(launch_bounds=(tile.threads, 1))
    def rnn_diagonal_(
        arrays: Any,
        places: Any,
        sizes: Any,
        diagonal: Any,
        sequences: Any,
        flags: Any,
        codes: Any,
        scalars: Any,
    ) -> None:
        shared = ptx.shared_address(cuda.shared.array(0, types.uint8), 0)
        sums = cuda.local.array(count, number)
        thread = _int32(cuda.threadIdx.x)
        states, weights = arrays[0]
        (w_at, r_at), biases_at, states_at, rows_at, gates_at = places
        batch, units, slices = sizes
        down = (batch + rows_of - 1) // rows_of
        across = (units + units_of_tile - 1) // units_of_tile
        limits = (_int32(batch), _int32(units), _int32(units))
        turn = _int64(cuda.blockIdx.x)
        while turn < diagonal[2] * down * across:
            layer, within = diagonal[1] + turn // (down * across), turn % (down * across)
            first_row, first_unit = within % down * rows_of, within // down * units_of_tile
            origin = (_int32(first_row), _int32(first_unit))
            step = diagonal[0] - layer
            before, after = states_at[step % 2], states_at[1 - step % 2]
            now = (before, after, states_at[2], states_at[3])
            of_gates = gates_at[1] if layer else gates_at[0]
            rows = (rows_at[0], rows_at[1], of_gates, rows_at[3])
            has_y = _int64(layer == diagonal[3] - 1)
            flags_now = (*flags[:4], has_y, *flags[5:])
            for part in range(0 if layer else 1, 2):
                of_x, member, of_m = (before, layer, r_at) if part else (after, layer - 1, w_at)
                of_state = (of_x[0] + member * of_x[1], (of_x[2], of_x[3]))
                of_matrix = (of_m[0] + member * of_m[1], (of_m[2], of_m[3]))
                for i in range(count):
                    sums[i] = zero
                add(
                    sums, shared, thread, states, of_state, weights, of_matrix, limits, origin,
                    (0, slices),
                )  # fmt: skip
                number_and_all = (step, sequences[0], sequences[1], part)
                rest = (
                    arrays, ((w_at, r_at), biases_at, now, rows), number_and_all, flags_now, codes,
                    scalars,
                )  # fmt: skip
                give(sums, shared, thread, (layer, first_row, first_unit), (batch, units), rest)
            turn += cuda.gridDim.x

    return rnn_diagonal_


@cache
def _finish(code: Code) -> Callable[..., None]:
    """finish(…), as ``rnn_step.finish``, with the part of a step behind the kind of the sequences.

    Of part 0 sums are W·x_t, and are left for part 1.
    """
    move, stay = moving(code), staying(code)
    sums = code.parts.sums
    load = words.load_word(sum_dtype(code.dtype))
    to_next_sum = code.units * words.itemsize(sum_dtype(code.dtype))

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
        table, gates = arrays[5], arrays[4][0]
        number, steps, kind, part = sequences
        length = steps if kind == WHOLE else table[here[1]]
        if number < length:
            t = number
            if kind == PACKED:
                t = table[table.size - steps + t]
            if part:
                move(at, here, t, arrays, places, sequences[:3], flags, codes, scalars)
            else:
                of_gates = places[3][2]
                first, to_next_gate = row_at(of_gates, here, t), here[4] * of_gates[4]
                for block in range(sums):
                    total = load(at + _uint32(block * to_next_sum))
                    gates[_int64(first + block * to_next_gate)] = total
        elif part:
            stay(here, arrays, places, sequences[:3], flags, scalars)

    return finish
