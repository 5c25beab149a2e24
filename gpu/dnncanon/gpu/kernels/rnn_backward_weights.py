"""The gradient of recurrent networks by their weights, by the algorithm "standard": products over all rows.

    dW[d] = Σ_row dgates[d, row] ⊗ x[row]        dR[d] = Σ_row dgates[d, row] ⊗ h_{t−1}[d, row]

of both directions in one product each, whose depth are the rows of all steps; biases are sums over them. What
lies behind the ends of sequences may be anything, so that where lengths differ operands are copied without it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.moving import copy
from dnncanon.gpu.kernels.reduction import SUM, Monoid, reduce
from dnncanon.gpu.kernels.reduction import workspace_bytes as reduction_bytes
from dnncanon.gpu.kernels.rnn_before import gather_before
from dnncanon.gpu.kernels.rnn_dropout import drop
from dnncanon.gpu.kernels.rnn_padding import clear_padding
from dnncanon.gpu.kernels.rnn_plan import (
    PADDED,
    Call,
    RowArray,
    Rows,
    Sequences,
    hidden_of_layer,
    multiply,
    of_layer,
    product_bytes,
    product_over_rows,
    rows_of_data,
    rows_of_hidden,
    rows_of_layer,
    view,
    weight_place,
)
from dnncanon.gpu.kernels.rows import add
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile.matrices import Epilogue, Matrices
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Strided, View
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec import dense_strides
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_weights import Kind

Ints = tuple[int, ...]


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def backward_weights(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    _Weights(run, _scratch(run.plan)).launch()


# --- What is a product of what --------------------------------------------------------------------

Operand = Literal["x", "before", "second"]
"""The input of a layer; h_{t−1}; what the second product of a step had, o∘tanh(c) or r∘h_{t−1}."""


@dataclass(frozen=True, slots=True)
class Term:
    """Rows of a parameter's gradient: columns of dgates from ``column`` on, times an operand, or added up."""

    kind: Kind
    row: int
    count: int
    column: int
    operand: Operand | None = None


def terms(p: RnnProblem) -> Iterator[Term]:
    """Of one layer, whether or not it has all of these parameters."""
    size, count = p.hidden_size, p.gates * p.hidden_size
    yield Term("W", 0, count, 0, "x")
    yield Term("bW", 0, count, 0)
    if p.cell != "gru":
        yield Term("R", 0, count, 0, "before")
        yield Term("bR", 0, count, 0)
    else:
        # Of n the recurrent part has a gradient of its own, the fourth.
        yield Term("R", 0, 2 * size, 0, "before")
        yield Term("R", 2 * size, size, 3 * size, "second" if p.reset == "before" else "before")
        yield Term("bR", 0, 2 * size, 0)
        yield Term("bR", 2 * size, size, 3 * size)
    if p.projection_size:
        yield Term("projection", 0, p.out, count, "second")


@dataclass(frozen=True, slots=True)
class _Block:
    """Where the rows of a term, [D, count, …], are in packed weights: behind so many elements of memory."""

    first: int
    shape: Ints
    strides: Ints

    def of(self, packed: DeviceArray) -> DeviceArray:
        return view(packed, self.first, self.shape, self.strides)


def _block(p: RnnProblem, packed: Strided, term: Term, layer: int) -> _Block | None:
    """None where a layer has no such parameter, or it has no elements."""
    place = weight_place(p, packed, term.kind, layer)
    if place is None or 0 in place.shape:
        return None
    directions, _, *columns = place.shape
    first = place.first + term.row * place.strides[1]
    return _Block(first, (directions, term.count, *columns), place.strides)


# --- Memory ---------------------------------------------------------------------------------------


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    """The table; h_{t−1}, and what a second product had; copies of the input and of dgates; parts of sums."""
    p = layouts.problem
    scratch = Scratch(table=Sequences.of(p).table)
    scratch.add("before", (p.directions, p.rows, p.out), p.dtype)
    if p.projection_size or (p.cell == "gru" and p.reset == "before"):
        scratch.add("second", (p.directions, p.rows, p.hidden_size), p.dtype)
    copied = [p.input_of(layer) for layer in range(p.num_layers) if _copies_input(p, layer)]
    if copied:
        scratch.add("x", (p.rows, max(copied)), p.dtype)
    if _is_padded(p):
        scratch.add("dgates", (p.directions, p.rows, p.gradient_width), p.dtype)
    for layer in range(p.num_layers):
        for term in terms(p):
            scratch.need(_bytes_of(layouts, term, layer))
    return scratch


def _bytes_of(layouts: Layouts[RnnProblem], term: Term, layer: int) -> int:
    p, inputs = layouts.problem, layouts.inputs
    block = _block(p, layouts.outputs["dweights"], term, layer)
    if block is None or p.rows == 0:
        return 0
    if term.operand is None:
        rows = _rows_of_gradient(p, inputs)
        strides = (rows.direction, rows.sequence, rows.column)
        return reduction_bytes(
            SUM, View((p.directions, p.rows, term.count), strides), (1,), p.dtype
        )
    return product_bytes(_product(p, inputs, term, block, layer))


def _product(
    p: RnnProblem, inputs: Mapping[str, Strided], term: Term, block: _Block, layer: int
) -> Matrices:
    assert term.operand is not None
    x = _rows_of_operand(p, inputs, term.operand, layer)
    return product_over_rows(p, _rows_of_gradient(p, inputs), x, View(block.shape, block.strides))


def _is_padded(p: RnnProblem) -> bool:
    return Sequences.of(p).kind == PADDED


def _copies_input(p: RnnProblem, layer: int) -> bool:
    if not p.layout.block("W", layer):
        return False
    return _is_padded(p) or (layer > 0 and p.dropout > 0)


def _rows_of_gradient(p: RnnProblem, inputs: Mapping[str, Strided]) -> Rows:
    return _dense_rows(p, p.gradient_width) if _is_padded(p) else rows_of_layer(p, inputs["dgates"])


def _rows_of_operand(
    p: RnnProblem, inputs: Mapping[str, Strided], operand: Operand, layer: int
) -> Rows:
    """Both directions have the same x."""
    if operand == "before":
        return _dense_rows(p, p.out)
    if operand == "second":
        return _dense_rows(p, p.hidden_size)
    if _copies_input(p, layer):
        rows = _dense_rows(p, p.input_of(layer))
    else:
        rows = rows_of_hidden(p, inputs["hidden"]) if layer else rows_of_data(p, inputs["x"])
    return replace(rows, direction=0)


def _dense_rows(p: RnnProblem, columns: int) -> Rows:
    shape = (p.directions, p.rows, columns)
    return rows_of_layer(p, View(shape, dense_strides(shape)))


# --- Launches -------------------------------------------------------------------------------------


class _Weights(Call):
    def launch(self) -> None:
        p = self.p
        if p.rows == 0:
            self.hand_on("accumulated", "dweights")
            return
        self.sequences.write(self.memory["table"], self.stream)
        for layer in range(p.num_layers):
            gradient, operands = self.gradient(layer), dict(self.operands(layer))
            for term in terms(p):
                block = _block(p, self.run.outputs["dweights"], term, layer)
                if block is None:
                    continue
                if term.operand is None:
                    self.add_up(term, layer, gradient)
                else:
                    m = _product(p, self.run.inputs, term, block, layer)
                    self.multiply(m, term, layer, gradient, operands[term.operand])

    # Sums over rows

    def multiply(
        self, m: Matrices, term: Term, layer: int, gradient: DeviceArray, operand: DeviceArray
    ) -> None:
        """y[d, k, i] = accumulated + Σ_row dgates[d, row, k]·operand[d, row, i]"""
        y, accumulated = self.blocks(term, layer)
        a = view(gradient, term.column * gradient.strides[2], gradient.shape, gradient.strides)
        multiply(m, a, operand, y, Epilogue(c=accumulated), self.rest, self.stream)

    def add_up(self, term: Term, layer: int, gradient: DeviceArray) -> None:
        """y[d, k] = accumulated + Σ_row dgates[d, row, k]"""
        y, accumulated = self.blocks(term, layer)
        directions, rows, _ = gradient.shape
        shape, first = (directions, rows, term.count), term.column * gradient.strides[2]
        x = view(gradient, first, shape, gradient.strides)
        monoid, of_row = (SUM_ONTO, (accumulated,)) if accumulated else (SUM, ())
        run: dict[str, Any] = {"workspace": self.rest, "stream": self.stream}
        reduce(monoid, (x,), (y,), (1,), of_row=of_row, **run)

    def blocks(self, term: Term, layer: int) -> tuple[DeviceArray, DeviceArray | None]:
        """The rows of a term in dweights, and in what was accumulated."""
        p, packed = self.p, (self.run.outputs["dweights"], self.run.inputs.get("accumulated"))
        found = [_block(p, array, term, layer) if array else None for array in packed]
        y, accumulated = (
            block.of(array) if block and array else None
            for block, array in zip(found, packed, strict=True)
        )
        assert y is not None
        return y, accumulated

    # Operands

    def gradient(self, layer: int) -> DeviceArray:
        """dgates of a layer, [D, N, K], with zeros for padding."""
        p, dgates = self.p, of_layer(self.p, self.run.inputs["dgates"], layer)
        if not _is_padded(p):
            return dgates
        y = self.memory["dgates"]
        copy(dgates, y, stream=self.stream)
        self.clear(y)
        return y

    def operands(self, layer: int) -> Iterator[tuple[Operand, DeviceArray]]:
        """All that terms of a layer ask for."""
        if self.p.layout.block("W", layer):
            yield "x", self.input(layer)
        yield "before", self.before(layer)
        if "second" in self.memory:
            yield "second", self.second(layer)

    def input(self, layer: int) -> DeviceArray:
        """x, or what the layer below put out, dropped as it was; with zeros for padding."""
        p, inputs = self.p, self.run.inputs
        x = hidden_of_layer(inputs["hidden"], layer - 1) if layer else inputs["x"]
        if not _copies_input(p, layer):
            return x
        count = p.input_of(layer)
        shape = (*p.data_shape, count) if layer == 0 else (p.rows, count)
        y = view(self.memory["x"], 0, shape, dense_strides(shape))
        if layer and p.dropout > 0:
            source = RowArray(x, rows_of_hidden(p, inputs["hidden"]))
            target = RowArray(y, _dense_rows(p, count))
            drop(p, layer, source, target, self.memory["table"], self.stream)
        else:
            copy(x, y, stream=self.stream)
        self.clear(view(y, 0, (1, p.rows, count), (0, count, 1)))
        return y

    def before(self, layer: int) -> DeviceArray:
        """h_{t−1} of each row, [D, N, Q]."""
        p, y = self.p, self.memory["before"]
        hidden, h0 = self.run.inputs["hidden"], self.run.inputs.get("h0")
        rows = RowArray(hidden_of_layer(hidden, layer), rows_of_hidden(p, hidden))
        first = of_layer(p, h0, layer) if h0 else None
        gather_before(p, rows, first, y, self.memory["table"], self.stream)
        return y

    def second(self, layer: int) -> DeviceArray:
        """o∘tanh(c), which P was multiplied by; or r∘h_{t−1}, which R_n was. [D, N, H]"""
        p, inputs, y = self.p, self.run.inputs, self.memory["second"]
        gates = of_layer(p, inputs["gates"], layer)
        block = 3 if p.projection_size else 0
        gate = view(gates, block * p.hidden_size * gates.strides[2], y.shape, gates.strides)
        if p.projection_size:
            cells = of_layer(p, inputs["cells"], layer)
            elementwise(_output, (gate, cells), (y,), stream=self.stream)
        else:
            elementwise(_reset, (gate, self.memory["before"]), (y,), stream=self.stream)
        self.clear(y)
        return y

    def clear(self, y: DeviceArray) -> None:
        """Zeros in the rows of [D, N, C] that are padding."""
        p = self.p
        if _is_padded(p):
            rows = RowArray(y, rows_of_layer(p, y))
            table = self.memory["table"]
            clear_padding(p, rows, y.shape[2], table, self.stream, directions=y.shape[0])


# --- Elements -------------------------------------------------------------------------------------


@device_function
def _output(o: Any, c: Any) -> Any:
    return o * math.tanh(c)


@device_function
def _reset(r: Any, h: Any) -> Any:
    return r * h


@device_function
def _element(x: Any, accumulated: Any) -> Any:
    return x


@device_function
def _onto(total: Any, accumulated: Any) -> Any:
    return total + accumulated


SUM_ONTO = Monoid(("sum",), (0,), _element, add, _onto)
"""A sum, and what was accumulated."""
