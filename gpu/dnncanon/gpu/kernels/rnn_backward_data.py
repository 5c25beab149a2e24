"""The gradient of recurrent networks by their data, by the algorithm "standard": layer by layer from the last.

Step by step from the last one, one launch each, or two: the product with Rᵀ and the chain rule, which leave the
gradients by the pre-activations in dgates. Then Wᵀ·dgates of all steps and both directions is one product of
matrices: dx, or what the layer below has for dy.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.rnn_backward_step import BackwardStep, launch_backward_step
from dnncanon.gpu.kernels.rnn_dropout import drop
from dnncanon.gpu.kernels.rnn_padding import clear_padding
from dnncanon.gpu.kernels.rnn_plan import (
    PADDED,
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
    product_over_directions,
    rows_of_data,
    rows_of_hidden,
    rows_of_layer,
    sum_dtype,
    view,
    weight_place,
)
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile.matrices import Epilogue, Matrices
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Strided, View
from dnncanon.gpu.runtime.device_code import device_function, generated
from dnncanon.spec import dense_strides
from dnncanon.spec.rnn_problem import RnnProblem


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def backward_data(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    _Backward(run, _scratch(run.plan)).launch()


# --- Memory ---------------------------------------------------------------------------------------


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    """The table; dy of layers below the last; what goes from step to step, or within one."""
    p = layouts.problem
    cells = (p.directions, p.batch, p.hidden_size)
    scratch = Scratch(table=Sequences.of(p).table)
    if p.num_layers > 1:
        scratch.add("dy", (*p.data_shape, p.layer_width), p.dtype)
    state = (p.directions, p.batch, p.gates * p.hidden_size)
    scratch.add("states", (min(p.steps, 2), *state), p.dtype)
    if p.cell in ("lstm", "gru"):
        scratch.add("carry", cells, sum_dtype(p.dtype))
    if p.projection_size:
        scratch.add("between", (p.directions, p.batch, p.out), p.dtype)
    products = (_product(layouts, layer) for layer in range(p.num_layers))
    scratch.need(max(product_bytes(m) if m else 0 for m in products))
    return scratch


def _product(layouts: Layouts[RnnProblem], layer: int) -> Matrices | None:
    """dgates·W of a layer; None where it has no W, or x no elements."""
    p = layouts.problem
    w = weight_place(p, layouts.inputs["weights"], "W", layer)
    if w is None or p.input_of(layer) == 0:
        return None
    dgates = rows_of_layer(p, layouts.outputs["dgates"])
    return product_over_directions(p, dgates, w, _rows_of_result(p, layouts.outputs, layer))


def _rows_of_result(p: RnnProblem, outputs: Mapping[str, Strided], layer: int) -> Rows:
    """Of dx, or of dy of the layer below."""
    if layer == 0:
        return rows_of_data(p, outputs["dx"])
    shape = (*p.data_shape, p.layer_width)
    return rows_of_data(p, View(shape, dense_strides(shape)))


# --- Launches -------------------------------------------------------------------------------------


class _Backward(Call):
    def launch(self) -> None:
        p = self.p
        if p.rows == 0:
            self.hand_on("dhy", "dh0")
            self.hand_on("dcy", "dc0")
            return
        self.sequences.write(self.memory["table"], self.stream)
        for layer in reversed(range(p.num_layers)):
            weights = layer_weights(p, self.run.inputs["weights"], layer)
            for number in reversed(range(-1, p.steps)):
                self.launch_step(layer, weights, number)
            self.multiply_by_input(layer, weights)
        if self.sequences.kind == PADDED:
            dx = self.run.outputs["dx"]
            rows = RowArray(dx, rows_of_data(p, dx))
            clear_padding(p, rows, dx.shape[-1], self.memory["table"], self.stream)

    # What goes to the input

    def multiply_by_input(self, layer: int, weights: LayerWeights) -> None:
        """dgates·W of all steps, both directions added up; without W the sum of the gates."""
        p = self.p
        y = self.memory["dy"] if layer else self.run.outputs["dx"]
        if weights.w is None:
            self.add_gates(y)
            return
        m = _product(self.run.plan, layer)
        if m is None:
            return
        dgates = of_layer(p, self.run.outputs["dgates"], layer)
        multiply(m, dgates, weights.w, y, Epilogue(), self.rest, self.stream)
        if layer and p.dropout > 0:
            rows = RowArray(y, rows_of_data(p, y))
            drop(p, layer, rows, rows, self.memory["table"], self.stream)

    def add_gates(self, dx: DeviceArray) -> None:
        """dx[row, j] = Σ dgates[d, row, g, j]"""
        p, dgates = self.p, self.run.outputs["dgates"]
        rows = rows_of_layer(p, dgates)
        far = (rows.sequence,) if p.packed else (rows.step, rows.sequence)
        strides = (*far, rows.column)
        parts = [
            view(dgates, d * rows.direction + g * p.hidden_size * rows.column, dx.shape, strides)
            for d in range(p.directions)
            for g in range(p.gates)
        ]
        elementwise(_sum_of(len(parts)), parts, (dx,), stream=self.stream)

    # Steps

    def launch_step(self, layer: int, weights: LayerWeights, number: int) -> None:
        """One launch, or two, of which the second multiplies what the first has left."""
        p = self.p
        whole = self.step(layer, weights.r, number)
        if p.projection_size:
            between = self.memory["between"]
            dgates = replace(whole.dgates, array=_columns(whole.dgates.array, 4 * p.hidden_size))
            self.launch_cell("projected", replace(whole, after=between, dgates=dgates), number)
            assert weights.projection is not None
            last = replace(whole, state=between, r=weights.projection)
            self.launch_cell("lstm_of_projected", last, number)
        elif p.cell == "gru" and p.reset == "before":
            self.launch_reset_before(whole, number)
        else:
            self.launch_cell(_CELLS[p.cell], whole, number)

    def launch_reset_before(self, whole: BackwardStep, number: int) -> None:
        """R of the gates r and z is for the step behind; R_n for the candidate of this one."""
        rows = 2 * self.p.hidden_size
        of_gates = _rows(whole.r, 0, rows)
        of_candidate = _rows(whole.r, rows, self.p.hidden_size)
        first = replace(whole, state=_columns(whole.state, 0, rows), r=of_gates)
        self.launch_cell("gru_candidate", first, number)
        if number >= 0:
            state = _columns(whole.after, rows, self.p.hidden_size)
            self.launch_cell("gru_reset", replace(whole, state=state, r=of_candidate), number)

    def launch_cell(self, cell: str, step: BackwardStep, number: int) -> None:
        p, sequences = self.p, (number, self.p.steps, self.sequences.kind)
        launch_backward_step(p.dtype, cell, step, sequences, self.memory["table"], self.stream)

    def step(self, layer: int, r: DeviceArray, number: int) -> BackwardStep:
        """What a step is given that takes one launch."""
        p, inputs, outputs = self.p, self.run.inputs, self.run.outputs

        def state(array: DeviceArray | None) -> DeviceArray | None:
            return of_layer(p, array, layer) if array else None

        def rows(name: str) -> RowArray | None:
            array = inputs.get(name)
            return RowArray(of_layer(p, array, layer), rows_of_layer(p, array)) if array else None

        dgates = outputs["dgates"]
        return BackwardStep(
            self.state(number + 1),
            r,
            self.state(number),
            RowArray(of_layer(p, dgates, layer), rows_of_layer(p, dgates)),
            dy=self.dy(layer),
            hidden=self.hidden(layer),
            gates=rows("gates"),
            cells=rows("cells"),
            carry=self.memory.get("carry"),
            h_first=state(inputs.get("h0")),
            c_first=state(inputs.get("c0")),
            dh_last=state(inputs.get("dhy")),
            dc_last=state(inputs.get("dcy")),
            dh_first=state(outputs["dh0"]),
            dc_first=state(outputs.get("dc0")),
            rectifies=p.cell == "rnn_relu",
            clip=p.cell_clip,
        )

    def state(self, number: int) -> DeviceArray:
        """What a step leaves for the one before it. Behind the last, and before the first, none is touched."""
        states = self.memory["states"]
        at = number % states.shape[0]
        return view(states, at * states.strides[0], states.shape[1:], states.strides[1:])

    def dy(self, layer: int) -> RowArray:
        dy = self.run.inputs["dy"] if layer == self.p.num_layers - 1 else self.memory["dy"]
        return RowArray(dy, rows_of_data(self.p, dy))

    def hidden(self, layer: int) -> RowArray | None:
        hidden = self.run.inputs.get("hidden")
        if hidden is None:
            return None
        return RowArray(hidden_of_layer(hidden, layer), rows_of_hidden(self.p, hidden))


_CELLS = {"rnn_relu": "rnn", "rnn_tanh": "rnn", "lstm": "lstm", "gru": "gru"}


def _columns(array: DeviceArray, first: int, count: int | None = None) -> DeviceArray:
    """Part of the last dim of [D, B, ·] or [D, N, ·]; from ``first`` on without a count."""
    count = array.shape[-1] - first if count is None else count
    shape = (*array.shape[:-1], count)
    return view(array, first * array.strides[-1], shape, array.strides)


def _rows(r: DeviceArray, first: int, count: int) -> DeviceArray:
    """Part of the rows of R, [D, G·H, Q]."""
    directions, _, columns = r.shape
    return view(r, first * r.strides[1], (directions, count, columns), r.strides)


@cache
def _sum_of(count: int) -> Any:
    """f(x0, x1, …) = x0 + x1 + …"""
    names = [f"x{k}" for k in range(count)]
    source = f"def sum_of({', '.join(names)}):\n    return {' + '.join(names)}"
    return device_function(generated(source, {}))
