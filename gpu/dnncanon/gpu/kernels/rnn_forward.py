"""Recurrent networks forward by the algorithm "standard": a layer's input at once, then step by step.

For each layer W·x of all steps and both directions is one product of matrices, into the gates or a workspace.
Then each step is one launch, in which R·h is multiplied and the cells are computed; with a projection, and for
a GRU whose reset gate comes before the product, two. Steps read h from the one of two states and leave it in
the other; the first one reads h0, the last one writes hy. Layers below the last leave their output in hidden,
or in y, which is theirs until the last one writes it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.moving import fill
from dnncanon.gpu.kernels.rnn_dropout import drop
from dnncanon.gpu.kernels.rnn_plan import (
    Call,
    LayerWeights,
    RowArray,
    Rows,
    Sequences,
    hidden_of_layer,
    layer_weights,
    multiply,
    of_layer,
    product_bytes,
    product_of_rows,
    rows_of_data,
    rows_of_hidden,
    rows_of_layer,
    sum_dtype,
    view,
    weight_place,
)
from dnncanon.gpu.kernels.rnn_step import Step, launch_step
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile.matrices import Epilogue, Matrices
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Strided, View
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec import dense_strides
from dnncanon.spec.rnn_problem import RnnProblem


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def forward(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    Forward(run, _scratch(run.plan)).launch()


# --- Memory ---------------------------------------------------------------------------------------


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    """Beside what all have: zeros for h0, and what goes from step to step, or within one."""
    p = layouts.problem
    scratch = scratch_of_layer(p)
    if "h0" not in layouts.inputs:
        scratch.add("zeros", (p.out,), p.dtype)
    if p.steps > 1:
        scratch.add("states", (min(p.steps - 1, 2), p.directions, p.batch, p.out), p.dtype)
    if second_cell(p):
        scratch.add("between", (p.directions, p.batch, p.hidden_size), p.dtype)
    scratch.need(bytes_of_products(layouts, p.num_layers))
    return scratch


def scratch_of_layer(p: RnnProblem) -> Scratch:
    """What every algorithm has: the table; W·x where it is not in the gates; c."""
    scratch = Scratch(table=Sequences.of(p).table)
    if not saves_gates(p):
        scratch.add("gates", (p.directions, p.rows, p.gates * p.hidden_size), sum_dtype(p.dtype))
    if p.cell == "lstm" and p.steps > 1:
        scratch.add("c", (p.directions, p.batch, p.hidden_size), sum_dtype(p.dtype))
    return scratch


def bytes_of_products(layouts: Layouts[RnnProblem], layers: int) -> int:
    """The workspace of W·x of any of the first layers."""
    products = (_product(layouts, layer) for layer in range(layers))
    return max(product_bytes(m) if m else 0 for m in products)


def saves_gates(p: RnnProblem) -> bool:
    return p.training and p.reserved_gates > 0


def second_cell(p: RnnProblem) -> str | None:
    """The cell of the second launch of a step, if there is one."""
    if p.projection_size:
        return "projection"
    return "gru_candidate" if p.cell == "gru" and p.reset == "before" else None


def _product(layouts: Layouts[RnnProblem], layer: int) -> Matrices | None:
    """W·x of a layer; None where it has no W."""
    p = layouts.problem
    w = weight_place(p, layouts.inputs["weights"], "W", layer)
    if w is None:
        return None
    shape = (p.directions, p.rows, p.gates * p.hidden_size)
    gates = layouts.outputs["gates"] if saves_gates(p) else View(shape, dense_strides(shape))
    x = _rows_of_input(p, layouts.inputs, layouts.outputs, layer)
    return product_of_rows(p, x, w, rows_of_layer(p, gates), sum_dtype(p.dtype), one_x=True)


def drops(p: RnnProblem) -> bool:
    return p.training and p.dropout > 0


def _rows_of_input(
    p: RnnProblem, inputs: Mapping[str, Strided], outputs: Mapping[str, Strided], layer: int
) -> Rows:
    """Of x, of what the layer below left in y, or of hidden."""
    if layer == 0:
        return rows_of_data(p, inputs["x"])
    if p.training and not drops(p):
        return rows_of_hidden(p, outputs["hidden"])
    return rows_of_data(p, outputs["y"])


# --- Launches -------------------------------------------------------------------------------------


class Forward(Call):
    """A call, with its workspace. Algorithms differ in how they launch the steps of a layer."""

    def launch(self) -> None:
        p = self.p
        if p.steps == 0:
            self.hand_on("h0", "hy")
            self.hand_on("c0", "cy")
            return
        self.sequences.write(self.memory["table"], self.stream)
        if "zeros" in self.memory:
            fill(self.memory["zeros"], 0, stream=self.stream)
        self.launch_layers()

    def launch_layers(self) -> None:
        """One after the other."""
        for layer in range(self.p.num_layers):
            weights = layer_weights(self.p, self.run.inputs["weights"], layer)
            self.multiply_input(layer, weights)
            self.launch_steps(layer, weights)

    # What comes from the input

    def multiply_input(self, layer: int, weights: LayerWeights) -> None:
        """W·x of all steps and both directions into the gates; without W x itself, for each gate."""
        gates = self.gates(layer).array
        if weights.w is None:
            self.repeat_input(gates)
            return
        m = _product(self.run.plan, layer)
        assert m is not None
        multiply(m, self.input_of(layer), weights.w, gates, Epilogue(), self.rest, self.stream)

    def input_of(self, layer: int) -> DeviceArray:
        p, outputs = self.p, self.run.outputs
        if layer == 0:
            return self.run.inputs["x"]
        if not p.training:
            return outputs["y"]
        below = hidden_of_layer(outputs["hidden"], layer - 1)
        if not drops(p):
            return below
        x = RowArray(below, rows_of_hidden(p, outputs["hidden"]))
        y = RowArray(outputs["y"], rows_of_data(p, outputs["y"]))
        drop(p, layer, x, y, self.memory["table"], self.stream)
        return outputs["y"]

    def repeat_input(self, gates: DeviceArray) -> None:
        """gates[d, row, g, j] = x[row, j]"""
        p, x = self.p, self.run.inputs["x"]
        steps = (1, p.rows) if p.packed else (p.steps, p.batch)
        direction, row, column = gates.strides
        of_x, of_y = rows_of_data(p, x), (direction, steps[1] * row, row)
        y = view(
            gates,
            0,
            (p.directions, *steps, p.gates, p.hidden_size),
            (*of_y, p.hidden_size * column, column),
        )
        x = view(
            x,
            0,
            (1, *steps, 1, p.hidden_size),
            (0, 0 if p.packed else of_x.step, of_x.sequence, 0, of_x.column),
        )
        elementwise(_same, (x,), (y,), stream=self.stream)

    # Steps

    def launch_steps(self, layer: int, weights: LayerWeights) -> None:
        """One after the other."""
        for number in range(self.p.steps):
            self.launch_step(layer, weights, number)

    def launch_step(self, layer: int, weights: LayerWeights, number: int) -> None:
        """One launch, or two, of which the first leaves in ``between`` what the second multiplies."""
        p = self.p
        whole = self.step(layer, weights, *self.states(layer, number))
        second = second_cell(p)
        if second is None:
            self.launch_cell(CELLS[p.cell], whole, number)
            return
        between = self.memory["between"]
        first = replace(whole, after=between, hidden=None, y=None, final=False)
        if second == "projection":
            assert weights.projection is not None
            last = Step(between, weights.projection, whole.before, whole.after)
            last = replace(last, hidden=whole.hidden, y=whole.y, padding=whole.padding)
            self.launch_cell("lstm", first, number)
            self.launch_cell("projection", last, number)
            return
        of_gates, of_candidate = _rows_of_gates(p, weights.r)
        biases = _rows_of_gates(p, weights.r_bias) if weights.r_bias else (None, None)
        first = replace(first, r=of_gates, r_bias=biases[0], keeps=True)
        last = replace(whole, state=between, r=of_candidate, r_bias=biases[1], cleared=0)
        self.launch_cell("gru_gates", first, number)
        self.launch_cell("gru_candidate", last, number)

    def launch_cell(self, cell: str, step: Step, number: int) -> None:
        p, table = self.p, self.memory["table"]
        kind = self.sequences.kind
        launch_step(p.dtype, cell, step, (number, p.steps, kind), table, self.stream)

    def step(
        self, layer: int, weights: LayerWeights, before: DeviceArray, after: DeviceArray
    ) -> Step:
        """What a step is given that takes one launch, and leads from state ``before`` to ``after``."""
        p, outputs = self.p, self.run.outputs
        saves, last = saves_gates(p), layer == p.num_layers - 1
        step = Step(
            before,
            weights.r,
            before,
            after,
            weights.w_bias,
            weights.r_bias,
            self.gates(layer),
            rectifies=p.cell == "rnn_relu",
            clip=p.cell_clip,
            nan_stays=p.clip_nan == "propagate",
            padding=p.padding_fill,
            keeps=saves,
            cleared=p.reserved_gates if saves else 0,
        )
        if p.training:
            hidden = outputs["hidden"]
            rows = RowArray(hidden_of_layer(hidden, layer), rows_of_hidden(p, hidden))
            step = replace(step, hidden=rows)
        if last or not p.training:
            step = replace(step, y=RowArray(outputs["y"], rows_of_data(p, outputs["y"])))
        return self.with_cells(step, layer) if p.cell == "lstm" else step

    def with_cells(self, step: Step, layer: int) -> Step:
        p, c0, cy = self.p, self.run.inputs.get("c0"), self.run.outputs["cy"]
        step = replace(
            step,
            c=self.memory.get("c"),
            c_first=of_layer(p, c0, layer) if c0 else None,
            c_last=of_layer(p, cy, layer),
        )
        if not p.training:
            return step
        cells = self.run.outputs["cells"]
        return replace(step, cells=RowArray(of_layer(p, cells, layer), rows_of_layer(p, cells)))

    def gates(self, layer: int) -> RowArray:
        p = self.p
        if not saves_gates(p):
            return RowArray(self.memory["gates"], rows_of_layer(p, self.memory["gates"]))
        gates = self.run.outputs["gates"]
        return RowArray(of_layer(p, gates, layer), rows_of_layer(p, gates))

    def states(self, layer: int, number: int) -> tuple[DeviceArray, DeviceArray]:
        """h before a step and after it, [D, B, Q]."""
        before = self.state(number - 1) if number else self.first_state(layer)
        if number < self.p.steps - 1:
            return before, self.state(number)
        return before, of_layer(self.p, self.run.outputs["hy"], layer)

    def state(self, number: int) -> DeviceArray:
        """What a step leaves that is not the last."""
        states = self.memory["states"]
        return view(states, number % 2 * states.strides[0], states.shape[1:], states.strides[1:])

    def first_state(self, layer: int) -> DeviceArray:
        h0 = self.run.inputs.get("h0")
        return of_layer(self.p, h0, layer) if h0 else self.zeros()

    def zeros(self) -> DeviceArray:
        """h0 where it is not given: one row for all sequences."""
        p = self.p
        return view(self.memory["zeros"], 0, (p.directions, p.batch, p.out), (0, 0, 1))


CELLS = {"rnn_relu": "rnn", "rnn_tanh": "rnn", "lstm": "lstm", "gru": "gru"}


def _rows_of_gates(p: RnnProblem, array: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Of R or bR, [D, 3·H, …]: those of the gates r and z, and those of n."""
    first, (directions, _, *rest) = 2 * p.hidden_size, array.shape
    gates, candidate = (directions, first, *rest), (directions, p.hidden_size, *rest)
    at = first * array.strides[1]
    return view(array, 0, gates, array.strides), view(array, at, candidate, array.strides)


@device_function
def _same(x: Any) -> Any:
    return x
