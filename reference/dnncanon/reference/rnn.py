"""Recurrent networks, defined: :mod:`dnncanon.reference.rnn_cells` along time, layers and directions.

Inside, whatever has rows is [S, B, ·], packed or not: steps that a sequence does not have hold anything, and
count nowhere. A layer in one direction is a scan over its steps, and its gradient a scan the other way round.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dnncanon import spec
from dnncanon.reference.definition import Array, defines, kept
from dnncanon.reference.philox import words
from dnncanon.reference.rnn_cells import STEPS, Recurrent, Saved, of_gates
from dnncanon.spec.dropout import threshold
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_weights import Kind


@dataclass
class Reserve:
    """What the forward pass leaves for the backward one: [S, B, ·] of each pseudo-layer.

    ``gates`` and ``cells`` are empty where the cell has none; ``hidden`` is of each layer.
    """

    gates: list[Array] = field(default_factory=list)
    cells: list[Array] = field(default_factory=list)
    hidden: list[Array] = field(default_factory=list)


# --- The primitives -------------------------------------------------------------------------------

Optional = Array | None
Outputs = tuple[Optional, ...]


@defines(spec.lstm_forward)
def lstm_forward(
    p: RnnProblem, x: Array, weights: Array, h0: Optional = None, c0: Optional = None
) -> Outputs:
    """y, hy, cy and, in training, gates, cells and hidden"""
    y, hy, cy, reserve = _forward(p, _steps(p, x), weights, h0, c0)
    saved = (reserve.gates, reserve.cells, reserve.hidden) if p.training else ()
    return y, hy, cy, *(_reserved(p, arrays) for arrays in saved)


@defines(spec.lstm_backward_data)
def lstm_backward_data(
    p: RnnProblem,
    dy: Array,
    weights: Array,
    gates: Array,
    cells: Array,
    c0: Optional = None,
    dhy: Optional = None,
    dcy: Optional = None,
) -> Outputs:
    """dx, dh0, dc0, dgates"""
    reserve = Reserve(_given(p, gates), _given(p, cells))
    dx, dh0, dc0, dgates = _backward_data(p, dy, weights, reserve, None, c0, dhy, dcy)
    return dx, dh0, dc0, _reserved(p, dgates)


@defines(spec.lstm_backward_weights)
def lstm_backward_weights(
    p: RnnProblem,
    x: Array,
    hidden: Array,
    dgates: Array,
    h0: Optional = None,
    gates: Optional = None,
    cells: Optional = None,
    accumulated: Optional = None,
) -> Array:
    """dweights = accumulated + Σ δ ⊗ input, of each matrix"""
    projected = p.projection_size > 0
    reserve = Reserve(
        _given(p, gates) if projected else [],
        _given(p, cells) if projected else [],
        _given(p, hidden),
    )
    return _backward_weights(p, _steps(p, x), reserve, _given(p, dgates), h0, accumulated)


@defines(spec.lstm_backward)
def lstm_backward(
    p: RnnProblem,
    dy: Array,
    x: Array,
    weights: Array,
    h0: Optional = None,
    c0: Optional = None,
    dhy: Optional = None,
    dcy: Optional = None,
) -> Outputs:
    """dx, dh0, dc0, dweights"""
    return _backward(p, dy, x, weights, h0, c0, dhy, dcy)


@defines(spec.gru_forward)
def gru_forward(p: RnnProblem, x: Array, weights: Array, h0: Optional = None) -> Outputs:
    """y, hy and, in training, gates and hidden"""
    y, hy, _, reserve = _forward(p, _steps(p, x), weights, h0)
    saved = (reserve.gates, reserve.hidden) if p.training else ()
    return y, hy, *(_reserved(p, arrays) for arrays in saved)


@defines(spec.gru_backward_data)
def gru_backward_data(
    p: RnnProblem,
    dy: Array,
    weights: Array,
    gates: Array,
    hidden: Array,
    h0: Optional = None,
    dhy: Optional = None,
) -> Outputs:
    """dx, dh0, dgates"""
    reserve = Reserve(_given(p, gates), [], _given(p, hidden))
    dx, dh0, _, dgates = _backward_data(p, dy, weights, reserve, h0, None, dhy, None)
    return dx, dh0, _reserved(p, dgates)


@defines(spec.gru_backward_weights)
def gru_backward_weights(
    p: RnnProblem,
    x: Array,
    hidden: Array,
    dgates: Array,
    h0: Optional = None,
    gates: Optional = None,
    accumulated: Optional = None,
) -> Array:
    """dweights = accumulated + Σ δ ⊗ input, of each matrix"""
    reserve = Reserve(_given(p, gates) if p.reset == "before" else [], [], _given(p, hidden))
    return _backward_weights(p, _steps(p, x), reserve, _given(p, dgates), h0, accumulated)


@defines(spec.gru_backward)
def gru_backward(
    p: RnnProblem,
    dy: Array,
    x: Array,
    weights: Array,
    h0: Optional = None,
    dhy: Optional = None,
) -> Outputs:
    """dx, dh0, dweights"""
    return _backward(p, dy, x, weights, h0, None, dhy, None)


def _rnn_forward(p: RnnProblem, x: Array, weights: Array, h0: Optional = None) -> Outputs:
    """y, hy and, in training, hidden"""
    y, hy, _, reserve = _forward(p, _steps(p, x), weights, h0)
    return y, hy, _reserved(p, reserve.hidden) if p.training else None


def _rnn_backward_data(
    p: RnnProblem, dy: Array, weights: Array, hidden: Array, dhy: Optional = None
) -> Outputs:
    """dx, dh0, dgates"""
    reserve = Reserve([], [], _given(p, hidden))
    dx, dh0, _, dgates = _backward_data(p, dy, weights, reserve, None, None, dhy, None)
    return dx, dh0, _reserved(p, dgates)


def _rnn_backward_weights(
    p: RnnProblem,
    x: Array,
    hidden: Array,
    dgates: Array,
    h0: Optional = None,
    accumulated: Optional = None,
) -> Array:
    """dweights = accumulated + Σ δ ⊗ input, of each matrix"""
    reserve = Reserve([], [], _given(p, hidden))
    return _backward_weights(p, _steps(p, x), reserve, _given(p, dgates), h0, accumulated)


rnn_relu_forward = defines(spec.rnn_relu_forward)(_rnn_forward)
rnn_tanh_forward = defines(spec.rnn_tanh_forward)(_rnn_forward)
rnn_relu_backward_data = defines(spec.rnn_relu_backward_data)(_rnn_backward_data)
rnn_tanh_backward_data = defines(spec.rnn_tanh_backward_data)(_rnn_backward_data)
rnn_relu_backward_weights = defines(spec.rnn_relu_backward_weights)(_rnn_backward_weights)
rnn_tanh_backward_weights = defines(spec.rnn_tanh_backward_weights)(_rnn_backward_weights)
rnn_relu_backward = defines(spec.rnn_relu_backward)(gru_backward.definition)
rnn_tanh_backward = defines(spec.rnn_tanh_backward)(gru_backward.definition)


# --- The forward pass -----------------------------------------------------------------------------


def _forward(
    p: RnnProblem, x: Array, weights: Array, h0: Optional, c0: Optional = None
) -> tuple[Array, Array, Optional, Reserve]:
    """y as rows, hy, cy and what is reserved, of x [S, B, I]"""
    reserve, last_h, last_c = Reserve(), [], []
    for layer in range(p.num_layers):
        x = _dropped(p, x, layer) if layer > 0 else x
        outputs = []
        for direction in range(p.directions):
            number = layer * p.directions + direction
            w = _parameters(p, weights, layer, direction)
            h = _state(p, h0, number, p.out)
            c = _state(p, c0, number, p.hidden_size) if p.cell == "lstm" else None
            passed = _scan(p, w, x, h, c, direction)
            last_h.append(passed.h)
            last_c.append(passed.c)
            outputs.append(passed.outputs)
            reserve.gates += [passed.gates] if p.reserved_gates else []
            reserve.cells += [] if passed.cells is None else [passed.cells]
        x = np.concatenate(outputs, axis=-1)
        reserve.hidden.append(x)
    cy = np.stack(last_c) if p.cell == "lstm" else None
    return _rows(p, x, p.padding_fill), np.stack(last_h), cy, reserve


@dataclass(frozen=True)
class _Scanned:
    """What one layer in one direction leaves of each step, [S, B, ·], and its last state."""

    gates: Array
    cells: Array
    outputs: Array
    h: Array
    c: Array


def _scan(
    p: RnnProblem, w: "_Parameters", x: Array, h: Array, c: Array, direction: int
) -> _Scanned:
    """The steps of one layer in one direction, one after the other"""
    a, active = _inputs(p, w, x), _active(p)
    gates, cells, outputs = {}, {}, {}
    for t in _order(p, direction):
        step = STEPS[p.cell][0](p, a[t], h, c, w.recurrent)
        output = kept(step.output, p.dtype)
        if w.projection is not None:
            output = kept(output @ w.projection.T, p.dtype)
        gates[t] = np.concatenate(step.gates, axis=-1) if step.gates else output
        outputs[t] = output
        h = _where(active[t], output, h)
        if step.cells is not None:
            cells[t], c = step.cells, _where(active[t], step.cells, c)
    return _Scanned(
        _stacked(p, gates, p.reserved_gates * p.hidden_size),
        _stacked(p, cells, p.hidden_size) if p.cell == "lstm" else None,
        _stacked(p, outputs, p.out),
        h,
        c,
    )


def _inputs(p: RnnProblem, w: "_Parameters", x: Array) -> Array:
    """W·x_t + bW of all steps, or x_t + bW for each gate where the input skips W"""
    if w.matrix is None:
        return np.concatenate([x] * p.gates, axis=-1) + w.bias
    return x @ w.matrix.T + w.bias


# --- The gradient by the data ---------------------------------------------------------------------


def _backward_data(
    p: RnnProblem,
    dy: Array,
    weights: Array,
    reserve: Reserve,
    h0: Optional,
    c0: Optional,
    dhy: Optional,
    dcy: Optional,
) -> tuple[Array, Array, Optional, list[Array]]:
    """dx as rows, dh0, dc0, and dgates of each pseudo-layer, of dy as rows"""
    first_h, first_c, dgates = [], [], []
    dy = _steps(p, dy)
    for layer in reversed(range(p.num_layers)):
        dx = []
        for direction in reversed(range(p.directions)):
            number = layer * p.directions + direction
            w = _parameters(p, weights, layer, direction)
            saved = _Reserved(p, reserve, number, h0, c0)
            dh = _state(p, dhy, number, p.out)
            dc = _state(p, dcy, number, p.hidden_size) if p.cell == "lstm" else None
            part = dy[..., direction * p.out : (direction + 1) * p.out]
            gradients, dh, dc = _scan_back(p, w, saved, part, dh, dc, direction)
            first_h.append(dh)
            first_c.append(dc)
            dgates.append(gradients)
            dx.append(_by_inputs(p, w, gradients))
        dy = sum(dx[1:], dx[0])
        if layer > 0:
            dy = _dropped(p, kept(dy, p.dtype), layer)
    dc0 = np.stack(first_c[::-1]) if p.cell == "lstm" else None
    return _rows(p, dy, 0.0), np.stack(first_h[::-1]), dc0, dgates[::-1]


def _scan_back(
    p: RnnProblem,
    w: "_Parameters",
    saved: "_Reserved",
    dy: Array,
    dh: Array,
    dc: Array,
    direction: int,
) -> tuple[Array, Array, Array]:
    """dgates [S, B, K], and the gradient by the first state, of one layer in one direction"""
    active, rows = _active(p), {}
    for t in reversed(_order(p, direction)):
        total = dy[t] + dh
        if w.projection is None:
            dm, behind = total, []
        else:
            behind = [kept(total, p.dtype)]
            dm = behind[0] @ w.projection
        gradient = STEPS[p.cell][1](p, saved.at(t), dm, dc, w.recurrent)
        rows[t] = np.concatenate([gradient.gates, *behind], axis=-1)
        dh = _where(active[t], gradient.state, dh)
        dc = None if dc is None else _where(active[t], gradient.cells, dc)
    return _stacked(p, rows, p.gradient_width), dh, dc


def _by_inputs(p: RnnProblem, w: "_Parameters", dgates: Array) -> Array:
    """Wᵀ·δa, or the sum of δa where the input skips W"""
    da = dgates[..., : p.gates * p.hidden_size]
    if w.matrix is None:
        gates = of_gates(da, p.gates)
        return sum(gates[1:], gates[0])
    return kept(da @ w.matrix, p.dtype)


# --- The gradient by the weights ------------------------------------------------------------------


def _backward_weights(
    p: RnnProblem,
    x: Array,
    reserve: Reserve,
    dgates: Sequence[Array],
    h0: Optional,
    accumulated: Optional,
) -> Array:
    """The packed gradient: of each matrix Σ δ ⊗ what it was multiplied by, of each bias Σ δ"""
    parts: dict[tuple[Kind, int, int], Array] = {}
    for layer in range(p.num_layers):
        x = _dropped(p, reserve.hidden[layer - 1], layer) if layer > 0 else x
        for direction in range(p.directions):
            number = layer * p.directions + direction
            saved = _Reserved(p, reserve, number, h0, None)
            of_layer = _of_weights(p, x, saved, dgates[number])
            parts |= {(kind, layer, direction): part for kind, part in of_layer.items()}
    blocks = [parts[block.kind, block.layer, block.direction] for block in p.layout.blocks]
    packed = np.concatenate([block.reshape(-1) for block in blocks])
    return packed if accumulated is None else accumulated + packed


def _of_weights(p: RnnProblem, x: Array, saved: "_Reserved", dgates: Array) -> dict[Kind, Array]:
    """The gradients by the matrices and biases of one layer in one direction"""
    count, size = p.gates * p.hidden_size, p.hidden_size
    da = dgates[..., :count]
    before = saved.states_before
    du = da
    if p.cell == "gru":
        du = np.concatenate([da[..., : 2 * size], dgates[..., 3 * size : 4 * size]], axis=-1)
    if p.cell == "gru" and p.reset == "before":
        reset = kept(saved.gates[..., :size] * before, p.dtype)
        of_r = (
            _outer(p, du[..., : 2 * size], before),
            _outer(p, du[..., 2 * size :], reset),
        )
        recurrent = np.concatenate(of_r)
    else:
        recurrent = _outer(p, du, before)
    parts: dict[Kind, Array] = {
        "W": _outer(p, da, x),
        "R": recurrent,
        "bW": np.sum(_ended(p, da), axis=(0, 1)),
        "bR": np.sum(_ended(p, du), axis=(0, 1)),
    }
    if p.projection_size:
        o = saved.gates[..., 3 * size : 4 * size]
        output = kept(o * np.tanh(saved.cells), p.dtype)
        parts["projection"] = _outer(p, dgates[..., count:], output)
    return parts


def _outer(p: RnnProblem, gradient: Array, operand: Array) -> Array:
    """Σ over all steps of δ ⊗ operand: [K, ·]"""
    return np.einsum("sbk,sbi->ki", _ended(p, gradient), _ended(p, operand))


# --- Both of them, from the inputs alone ----------------------------------------------------------


def _backward(
    p: RnnProblem,
    dy: Array,
    x: Array,
    weights: Array,
    h0: Optional,
    c0: Optional,
    dhy: Optional,
    dcy: Optional,
) -> Outputs:
    steps = _steps(p, x)
    *_, reserve = _forward(p, steps, weights, h0, c0)
    dx, dh0, dc0, dgates = _backward_data(p, dy, weights, reserve, h0, c0, dhy, dcy)
    return dx, dh0, dc0, _backward_weights(p, steps, reserve, dgates, h0, None)


# --- Weights --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parameters:
    """Those of one layer in one direction; ``matrix`` is W, None where the input skips it."""

    matrix: Array | None
    bias: Array | float
    recurrent: Recurrent
    projection: Array | None


def _parameters(p: RnnProblem, weights: Array, layer: int, direction: int) -> _Parameters:
    def block(kind: Kind) -> Array | None:
        place = p.layout.block(kind, layer, direction)
        return None if place is None else place.of(weights)

    input_bias, bias, matrix = block("bW"), block("bR"), block("R")
    return _Parameters(
        block("W"),
        0.0 if input_bias is None else input_bias,
        Recurrent(matrix, 0.0 if bias is None else bias),
        block("projection"),
    )


# --- Steps and rows -------------------------------------------------------------------------------


def _order(p: RnnProblem, direction: int) -> range:
    """The steps as a direction takes them. A sequence that is shorter waits for its last one."""
    return range(p.steps) if direction == 0 else range(p.steps)[::-1]


def _active(p: RnnProblem) -> NDArray[np.bool_]:
    """[S, B]: which steps each sequence has."""
    return np.arange(p.steps)[:, None] < np.array(p.lengths, np.int64)[None, :]


def _where(active: NDArray[np.bool_], new: Array, old: Array) -> Array:
    """The new state of sequences that have the step; the others keep theirs."""
    return new if active.all() else np.where(active[:, None], new, old)


def _ended(p: RnnProblem, steps: Array) -> Array:
    """[S, B, ·] with 0 in what is no step of a sequence."""
    active = _active(p)
    return steps if active.all() else np.where(active[:, :, None], steps, 0.0)


def _steps(p: RnnProblem, rows: Array) -> Array:
    """[S, B, ·] of x or y, packed or not."""
    if not p.packed:
        return rows
    first = np.array([p.first_row(t) for t in range(p.steps)])[:, None]
    return rows[np.where(_active(p), first + np.arange(p.batch), 0)]


def _rows(p: RnnProblem, steps: Array, fill: float) -> Array:
    """x or y as the caller has it, of [S, B, ·]: packed, or with ``fill`` behind the ends."""
    active = _active(p)
    if p.packed:
        return steps[np.nonzero(active)]
    return steps if active.all() else np.where(active[:, :, None], steps, fill)


def _reserved(p: RnnProblem, arrays: Sequence[Array]) -> Array:
    """[L·D or L, N, ·] of arrays [S, B, ·], 0 behind the ends."""
    rows = [_rows(p, array, 0.0).reshape(p.rows, array.shape[-1]) for array in arrays]
    return np.stack(rows)


def _given(p: RnnProblem, reserved: Array) -> list[Array]:
    """The [S, B, ·] of which a tensor [L·D or L, N, ·] is made."""
    if p.packed:
        return [_steps(p, rows) for rows in reserved]
    return [rows.reshape(p.steps, p.batch, rows.shape[-1]) for rows in reserved]


def _state(p: RnnProblem, states: Optional, number: int, size: int) -> Array:
    """[B, size] of a pseudo-layer, of [L·D, B, size]; zeros where there are none."""
    return np.zeros((p.batch, size)) if states is None else states[number]


def _stacked(p: RnnProblem, steps: Mapping[int, Array], width: int) -> Array:
    """[S, B, width] of what each step has left, by its number."""
    if not steps:
        return np.zeros((0, p.batch, width))
    return np.stack([steps[t] for t in range(p.steps)])


def _before(p: RnnProblem, steps: Array, first: Array, direction: int) -> Array:
    """[S, B, ·]: the state before each step, of those behind it and the first one."""
    if direction == 0:
        return np.concatenate([first[None], steps])[: p.steps]
    active = _active(p)
    starts = active & ~np.concatenate([active[1:], np.zeros_like(active[:1])])[: p.steps]
    behind = np.concatenate([steps, first[None]])[1:]
    return np.where(starts[:, :, None], first[None], behind)


class _Reserved:
    """The reserve of one layer in one direction, as gradients need it; None for what the cell does not have."""

    gates: Array = None
    cells: Array = None
    states: Array = None
    states_before: Array = None
    cells_before: Array = None

    def __init__(
        self, p: RnnProblem, reserve: Reserve, number: int, h0: Optional, c0: Optional
    ) -> None:
        layer, direction = divmod(number, p.directions)
        self._p, self._direction = p, direction
        if reserve.gates:
            self.gates = reserve.gates[number]
        if reserve.hidden:
            part = slice(direction * p.out, (direction + 1) * p.out)
            self.states = reserve.hidden[layer][..., part]
            first = _state(p, h0, number, p.out)
            self.states_before = _before(p, self.states, first, direction)
        if reserve.cells:
            self.cells = reserve.cells[number]
            first = _state(p, c0, number, p.hidden_size)
            self.cells_before = _before(p, self.cells, first, direction)

    def at(self, t: int) -> Saved:
        """One step."""
        gates = () if self.gates is None else of_gates(self.gates[t], self._p.reserved_gates)
        parts = (self.cells, self.states, self.cells_before, self.states_before)
        return Saved(gates, *(None if part is None else part[t] for part in parts))


# --- Dropout --------------------------------------------------------------------------------------


def _dropped(p: RnnProblem, x: Array, layer: int) -> Array:
    """The input of a layer above the first, or the gradient by it: dropped or divided by 1 − probability."""
    if not p.training or p.dropout == 0.0:
        return x
    shape = (p.num_layers - 1, p.steps, p.batch, p.layer_width)
    bits = words(p.stream, math.prod(shape)).reshape(shape)[layer - 1]
    scale = 1.0 if p.dropout == 1.0 else 1.0 / (1.0 - p.dropout)
    return kept(np.where(bits >= np.uint64(threshold(p.dropout)), scale * x, 0.0), p.dtype)
