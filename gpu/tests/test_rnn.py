"""Recurrent networks against a loop over steps, sequences and units, written for these tests."""

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import to_device
from dnncanon.gpu.static.recording import recording
from dnncanon.spec.rnn_problem import RESERVED_GATES
from dnncanon.spec.rnn_weights import rnn_weight_layout

Array = np.ndarray[Any, Any]

DTYPES = {
    "float64": (np.dtype(np.float64), 1e-13),
    "float32": (np.dtype(np.float32), 2e-6),
    "float16": (np.dtype(np.float16), 4e-3),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 3e-2),
}
"""NumPy's dtype, and a limit of errors: wrong networks are off in their first digits. The conformance suite
has bounds that are derived."""

LAYOUT = (
    "num_layers",
    "bidirectional",
    "bias_mode",
    "input_mode",
    "projection_size",
)
CELLS = ("rnn_relu", "rnn_tanh", "lstm", "gru")


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


class Network:
    """A call of a cell's forward with random tensors; ``sizes`` are steps, batch, input and hidden size."""

    def __init__(self, cell: str, dtype: str, sizes: tuple[int, ...], **attributes: Any) -> None:
        self.cell, self.dtype, (self.steps, self.batch, inputs, self.hidden) = cell, dtype, sizes
        self.attributes = {"hidden_size": self.hidden, **attributes}
        chosen = {name: attributes[name] for name in LAYOUT if name in attributes}
        self.layout = rnn_weight_layout(cell, input_size=inputs, hidden_size=self.hidden, **chosen)
        lengths = attributes.get("lengths") or (self.steps,) * self.batch
        sizes_of_steps = attributes.get("batch_sizes", ())
        if sizes_of_steps:
            lengths = tuple(sum(n > b for n in sizes_of_steps) for b in range(self.batch))
        self.lengths, self.packed = lengths, bool(sizes_of_steps)
        starts = np.cumsum((0, *(sizes_of_steps or (self.batch,) * self.steps)))
        self.starts, self.rows = starts[:-1], int(starts[-1])
        self.states = (self.layout.num_layers * self.layout.directions, self.batch)
        data = (self.rows,) if self.packed else (self.steps, self.batch)
        self.x = self.random(1, *data, inputs)
        self.weights = self.random(2, self.layout.size, scale=0.4)
        self.h0: Array | None = self.random(3, *self.states, self.layout.out)
        self.c0: Array | None = self.random(4, *self.states, self.hidden)

    def random(self, seed: int, *shape: int, scale: float = 1.0) -> Array:
        numbers = np.random.default_rng(seed).standard_normal(shape) * scale
        return numbers.astype(DTYPES[self.dtype][0])

    @property
    def tensors(self) -> tuple[Array | None, ...]:
        given = (self.x, self.weights, self.h0, self.c0)
        return given if self.cell == "lstm" else given[:3]

    def __call__(self, **options: Any) -> Any:
        function = getattr(gpu, f"{self.cell}_forward")
        return function(*self.tensors, **self.attributes, **options)

    def block(self, kind: str, layer: int, direction: int) -> Array | None:
        block = self.layout.block(kind, layer, direction)  # type: ignore[arg-type]
        if block is None:
            return None
        numbers: Array = block.of(self.weights)
        return numbers.astype(np.float64)

    def expected(self, dropped: Any = None) -> dict[str, Array]:
        """All outputs in float64; ``dropped(layer, input)`` is what dropout makes of a layer's input."""
        width, blocks = self.layout.directions * self.layout.out, RESERVED_GATES[self.cell]
        states = [
            np.zeros((*self.states, n)) if s is None else s.astype(np.float64)
            for s, n in ((self.h0, self.layout.out), (self.c0, self.hidden))
        ]
        self.hy, self.cy = states
        self.gates = np.zeros((self.states[0], self.rows, blocks * self.hidden))
        self.cells = np.zeros((self.states[0], self.rows, self.hidden))
        hidden = np.zeros((self.layout.num_layers, self.rows, width))
        below = self.x.astype(np.float64).reshape(self.rows, -1)
        for layer in range(self.layout.num_layers):
            if layer:
                below = dropped(layer, hidden[layer - 1]) if dropped else hidden[layer - 1]
            for direction in range(self.layout.directions):
                first = direction * self.layout.out
                for row, h in self.walk(layer, direction, below):
                    hidden[layer, row, first : first + self.layout.out] = h
        y = hidden[-1].copy()
        if not self.packed:
            y = y.reshape(self.steps, self.batch, width)
            for b, length in enumerate(self.lengths):
                y[length:, b] = self.attributes.get("padding_fill", 0.0)
        named = {"y": y, "hy": self.hy, "hidden": hidden}
        if blocks:
            named["gates"] = self.gates
        return named | ({"cy": self.cy, "cells": self.cells} if self.cell == "lstm" else {})

    def walk(self, layer: int, direction: int, below: Array) -> Iterator[tuple[int, Array]]:
        """(row, h) of each step of each sequence."""
        number = layer * self.layout.directions + direction
        w, r, projection, w_bias, r_bias = (
            self.block(kind, layer, direction) for kind in ("W", "R", "projection", "bW", "bR")
        )
        assert r is not None
        for b, length in enumerate(self.lengths):
            for t in range(length)[:: -1 if direction else 1]:
                row = int(self.starts[t]) + b
                repeats = len(self.layout.gates)
                x = np.tile(below[row], repeats) if w is None else w @ below[row]
                x = x if w_bias is None else x + w_bias
                h = self.step(number, b, row, x, r, r_bias)
                self.hy[number, b] = h if projection is None else projection @ h
                yield row, self.hy[number, b]

    def step(self, number: int, b: int, row: int, x: Array, r: Array, bias: Array | None) -> Array:
        """h of one step, before it is projected."""
        h, of_bias = self.hy[number, b], np.zeros(len(r)) if bias is None else bias
        a, u = (part.reshape(-1, self.hidden) for part in (x, r @ h + of_bias))
        if self.cell == "rnn_relu":
            return np.maximum(a[0] + u[0], 0.0)
        if self.cell == "rnn_tanh":
            return np.tanh(a[0] + u[0])
        if self.cell == "lstm":
            i, f, o = (sigmoid(a[k] + u[k]) for k in (0, 1, 3))
            g = np.tanh(a[2] + u[2])
            c = f * self.cy[number, b] + i * g
            c = np.clip(c, *self.attributes.get("cell_clip", (-np.inf, np.inf)))
            self.cy[number, b], self.cells[number, row] = c, c
            self.gates[number, row] = np.concatenate((i, f, g, o))
            return o * np.tanh(c)
        reset, z, last = sigmoid(a[0] + u[0]), sigmoid(a[1] + u[1]), u[2]
        if self.attributes.get("reset") == "before":
            last = r[2 * self.hidden :] @ (reset * h) + of_bias[2 * self.hidden :]
            n = np.tanh(a[2] + last)
        else:
            n = np.tanh(a[2] + reset * last)
        self.gates[number, row] = np.concatenate((reset, z, n, last))
        return (1.0 - z) * n + z * h


def states_of(network: Network) -> tuple[Array, Array]:
    """h0 and c0, which are there."""
    assert network.h0 is not None
    assert network.c0 is not None
    return network.h0, network.c0


def agree(network: Network, results: Any, dropped: Any = None) -> None:
    """Every output that there is is right."""
    expected, tolerance = network.expected(dropped), DTYPES[network.dtype][1]
    for name in results._fields:
        result = getattr(results, name)
        if result is not None:
            numbers = np.asarray(result).astype(np.float64)
            np.testing.assert_allclose(numbers, expected[name], 0, tolerance, err_msg=name)


# --- Cells and their options ----------------------------------------------------------------------

UNEVEN = {"lengths": (3, 0, 4, 1), "padding_fill": 2.0}

OPTIONS = {
    "two layers, two directions": {"num_layers": 2, "bidirectional": True, **UNEVEN},
    "no biases, input skipped": {"bias_mode": "none", "input_mode": "skip", "bidirectional": True},
    "input biases": {"bias_mode": "single_input"},
    "recurrent biases, packed": {
        "bias_mode": "single_recurrent",
        "batch_sizes": (4, 3, 1, 1),
        "bidirectional": True,
    },
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_forward(cell: str, options: dict[str, Any], training: bool) -> None:
    network = Network(cell, "float32", (4, 4, 6, 6), training=training, **options)
    agree(network, network())


@pytest.mark.parametrize(
    ("dtype", "cell"), [("float64", "gru"), ("float16", "lstm"), ("bfloat16", "gru")]
)
def test_other_dtypes(dtype: str, cell: str) -> None:
    network = Network(cell, dtype, (4, 4, 5, 6), bidirectional=True, training=True, **UNEVEN)
    agree(network, network())


@pytest.mark.parametrize("size", [4, 6])
def test_projection(size: int) -> None:
    """It is a matrix where it keeps the size, too."""
    options = {"projection_size": size, "num_layers": 2, "training": True}
    network = Network("lstm", "float32", (4, 4, 5, 6), bidirectional=True, **options, **UNEVEN)
    agree(network, network())


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_reset_before_the_product(training: bool) -> None:
    options = {"reset": "before", "training": training, "bidirectional": True}
    network = Network("gru", "float32", (4, 4, 5, 6), **options, **UNEVEN)
    agree(network, network())


def test_clipping() -> None:
    network = Network("lstm", "float32", (4, 2, 5, 6), cell_clip=(-0.2, 0.1), training=True)
    results = network()
    agree(network, results)
    assert (results.cells.min(), results.cells.max()) == (np.float32(-0.2), np.float32(0.1))


@pytest.mark.parametrize(("rule", "wanted"), [("propagate", math.nan), ("not_propagate", -0.25)])
def test_a_cell_that_is_no_number_is_clipped_by_the_rule(rule: str, wanted: float) -> None:
    network = Network("lstm", "float32", (1, 1, 2, 3), cell_clip=(-0.25, 0.5), clip_nan=rule)
    network.x[...] = np.nan
    np.testing.assert_array_equal(network().cy, np.full((1, 1, 3), wanted, np.float32))


def test_states_that_are_not_given_are_zeros() -> None:
    network = Network("lstm", "float32", (2, 3, 4, 5))
    network.h0 = network.c0 = None
    agree(network, network())


@pytest.mark.parametrize("batch", [0, 3])
def test_without_steps_states_stay(batch: int) -> None:
    network = Network("lstm", "float32", (0, batch, 4, 5))
    results = network()
    for result, state in zip((results.hy, results.cy), states_of(network), strict=True):
        np.testing.assert_array_equal(result, state)
    network.h0 = network.c0 = None
    assert not np.any(network().hy)
    assert not np.any(network().cy)


def words_of(seed: int, count: int) -> Array:
    """Random words of a stream, by the library's own generator."""
    drawn = gpu.rng_uniform(shape=(count,), seed=seed, low=0.0, high=1.0, dtype="float32")
    return np.asarray(drawn)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_dropout_takes_the_words_of_the_padded_view(packed: bool) -> None:
    """Of p = ½ those whose upper bit is set are kept: fractions from ½ on."""
    shape = {"batch_sizes": (3, 2, 1)} if packed else {"lengths": (3, 2, 1)}
    options = {"num_layers": 3, "dropout": 0.5, "seed": 7, "training": True, **shape}
    network = Network("gru", "float32", (3, 3, 2, 5), **options)
    kept = words_of(7, 2 * 3 * 3 * 5).reshape(2, 3, 3, 5) >= 0.5

    def dropped(layer: int, below: Array) -> Array:
        result = below.copy()
        for b, length in enumerate(network.lengths):
            for t in range(length):
                result[network.starts[t] + b] *= 2.0 * kept[layer - 1, t, b]
        return result

    agree(network, network(), dropped)


# --- Sizes and layouts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "hidden", "dtype"),
    [(7, 72, "float16"), (70, 40, "float32")],
    ids=["flat", "square"],
)
def test_larger_tiles(batch: int, hidden: int, dtype: str) -> None:
    """More units, or sequences, than one tile has; rows of R are copied in chunks."""
    lengths = (2,) * (batch - 2) + (0, 1)
    options = {"bidirectional": True, "training": True, "lengths": lengths}
    network = Network("gru", dtype, (2, batch, 16, hidden), **options)
    network.weights *= np.asarray(0.25, network.weights.dtype)
    agree(network, network())


def spread(array: Array, gap: int = 2) -> Array:
    """The same numbers with gaps between them in every dim, and the dims in the opposite order in memory."""
    shape = tuple(n * gap for n in array.shape[::-1])
    memory = np.full(shape, np.nan).astype(array.dtype).T
    view = memory[tuple(slice(None, None, gap) for _ in shape)]
    view[...] = array
    return view


def test_any_strides() -> None:
    """Weights with gaps too; gaps of the results stay as they are."""
    network = Network("lstm", "float32", (4, 4, 5, 6), bidirectional=True, training=True, **UNEVEN)
    out = tuple(spread(np.zeros_like(result)) for result in network())
    network.x, network.weights = spread(network.x), spread(network.weights)
    h0, c0 = states_of(network)
    network.h0, network.c0 = spread(h0), spread(c0)
    agree(network, network(out=out))
    assert all(np.isnan(np.asarray(array.base)).mean() > 0.4 for array in out)


def test_batch_major_is_a_layout() -> None:
    network = Network("gru", "float32", (3, 4, 5, 6))
    network.x = np.ascontiguousarray(network.x.swapaxes(0, 1)).swapaxes(0, 1)
    agree(network, network())


def test_one_weight_for_all() -> None:
    """A packed buffer of stride 0."""
    network = Network("lstm", "float32", (2, 2, 3, 4))
    network.weights = np.broadcast_to(np.float32(0.125), network.weights.shape)
    agree(network, network())


@pytest.mark.parametrize(("training", "nbytes"), [(False, 512 + 64 + 32), (True, 64 + 32)])
def test_workspace(training: bool, nbytes: int) -> None:
    """W·x of one layer, if gates are not saved; two states; c."""
    network = Network("lstm", "float32", (4, 2, 3, 4), num_layers=3, training=training)
    standard, *_ = gpu.algorithms("lstm_forward", *network.tensors, **network.attributes)
    assert (standard.name, standard.workspace_bytes) == ("standard", nbytes)


# --- Launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "options", "each", "beside"),
    [
        ("lstm", {}, 1, 1),
        ("lstm", {"lengths": (9, 5)}, 1, 2),
        ("lstm", {"projection_size": 3}, 2, 1),
        ("gru", {"reset": "before"}, 2, 1),
    ],
)
def test_launches(cell: str, options: dict[str, Any], each: int, beside: int) -> None:
    """A product for all steps, then one launch a step for both directions, or two."""
    network = Network(cell, "float32", (9, 2, 4, 5), bidirectional=True, **options)
    with recording() as launches:
        network(algorithm="standard")
    assert len(launches) == each * 9 + beside


def on_device(network: Network) -> list[Any]:
    return [to_device(tensor) for tensor in network.tensors if tensor is not None]


def test_a_step_moves_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R, h, biases, W·x and c in; gates, cells, h, hidden, y and cy out. Requests are for whole sectors."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    batch, units, word = 8, 64, 4
    network = Network("lstm", "float32", (2, batch, 8, units), training=True)
    moved = profile("lstm_forward", *on_device(network), **network.attributes)
    last = moved.launches[-1].profile
    of_state = batch * units * word
    assert last is not None
    assert last.dram_bytes_read == 4 * units * units * word + 8 * units * word + 6 * of_state
    assert last.dram_bytes_written == 9 * of_state
    assert moved.sector_efficiency("load") == moved.sector_efficiency("store") == 1.0
    shared = [access for access in last.accesses if access.space == "shared"]
    conflicts = [access for access in shared if access.units != access.least]
    assert {access.operation for access in conflicts} <= {"store"}, "sums alone, once a step"


def test_a_plan_keeps_the_lengths() -> None:
    """Bound to other arrays it computes with the lengths that it was made for; so does its graph."""
    one, other = (Network("gru", "float32", (4, 4, 5, 6), **UNEVEN) for _ in range(2))
    other.x = other.random(9, *other.x.shape)
    plan = gpu.execution_plan("gru_forward", *on_device(one), **one.attributes)
    bound = plan.bind(*on_device(other))
    for network, results in ((other, bound()), (one, plan()), (one, plan.graph()())):
        agree(network, type(results)(*(result.to_host() for result in results)))


def test_neither_races_nor_reads_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    options = {"projection_size": 3, "num_layers": 2, "bidirectional": True, "training": True}
    network = Network("lstm", "float16", (4, 4, 5, 6), **options, **UNEVEN)
    agree(network, network())
