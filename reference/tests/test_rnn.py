"""Recurrent networks: steps by hand, central differences, identities, PyTorch, and the ends of sequences."""

import itertools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference.philox import words
from dnncanon.spec import AttributeValueError, MissingTensorError, ShapeError
from dnncanon.spec.dropout import threshold
from dnncanon.spec.rnn_weights import rnn_weight_layout
from dnncanon.spec.stream import Stream

Array = NDArray[Any]
CELLS = ("rnn_relu", "rnn_tanh", "lstm", "gru")
STEPS, BATCH, INPUTS, UNITS = 4, 3, 3, 4

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several layers both ways": {"num_layers": 2, "bidirectional": True},
    "lengths": {"lengths": (2, 4, 0), "num_layers": 2, "bidirectional": True},
    "packed": {"batch_sizes": (3, 2, 2, 1), "num_layers": 2, "bidirectional": True},
    "dropout": {"lengths": (4, 3, 1), "num_layers": 3, "dropout": 0.4, "seed": 5},
    "skip": {"input_mode": "skip", "bidirectional": True},
    "no biases": {"bias_mode": "none"},
    "input bias": {"bias_mode": "single_input"},
    "recurrent bias": {"bias_mode": "single_recurrent"},
}
OF_CELL: dict[str, dict[str, dict[str, Any]]] = {
    "lstm": {
        "projection": {"projection_size": 2, "num_layers": 2, "bidirectional": True},
        "clipping": {"cell_clip": (-0.3, 0.2), "num_layers": 2},
    },
    "gru": {"reset before": {"reset": "before", "num_layers": 2, "bidirectional": True}},
}
CASES = [
    pytest.param(cell, options, id=f"{cell}-{name}")
    for cell in CELLS
    for name, options in (OPTIONS | OF_CELL.get(cell, {})).items()
]


class Network:
    """A cell with options, and random arguments for each of its primitives."""

    def __init__(self, cell: str, options: Mapping[str, Any], seed: int = 0) -> None:
        self.cell, self.attributes = cell, {"hidden_size": UNITS, **options}
        rng = np.random.default_rng(seed)
        inputs = UNITS if options.get("input_mode") == "skip" else INPUTS
        sizes = options.get("batch_sizes")
        shape = (sum(sizes),) if sizes else (STEPS, BATCH)
        layout_options = (
            "num_layers",
            "bidirectional",
            "bias_mode",
            "input_mode",
            "projection_size",
        )
        self.layout = rnn_weight_layout(
            cell,
            input_size=inputs,
            hidden_size=UNITS,
            **{name: options[name] for name in layout_options if name in options},
        )
        pseudo_layers = self.layout.num_layers * self.layout.directions
        h = (pseudo_layers, BATCH, self.layout.out)
        c = (pseudo_layers, BATCH, UNITS)
        states = (h, c) if cell == "lstm" else (h,)
        self.x = rng.standard_normal((*shape, inputs))
        self.weights = 0.5 * rng.standard_normal(self.layout.size)
        self.states = [rng.standard_normal(state) for state in states]
        self.dy = rng.standard_normal((*shape, self.layout.directions * self.layout.out))
        self.dstates = [rng.standard_normal(state) for state in states]

    def call(self, direction: str, *tensors: Any, **more: Any) -> Any:
        name = f"{self.cell}_{direction}"
        known = {a.name for a in spec.primitives()[name].attributes}
        attributes = {n: v for n, v in {**self.attributes, **more}.items() if n in known}
        return getattr(ref, name)(*tensors, **attributes)

    def forward(self, x: Array, weights: Array, *states: Array) -> Any:
        return self.call("forward", x, weights, *states, training=True)

    def loss(self, x: Array, weights: Array, *states: Array) -> float:
        """A number whose gradient by the outputs is dy and dstates."""
        y, *last = self.forward(x, weights, *states)
        y = np.where(self.steps_that_there_are(), y, 0.0)
        return float(
            np.sum(self.dy * y)
            + sum(np.sum(d * s) for d, s in zip(self.dstates, last, strict=False))
        )

    def steps_that_there_are(self) -> Any:
        lengths = self.attributes.get("lengths")
        if not lengths:
            return True
        return (np.arange(STEPS)[:, None] < np.array(lengths))[:, :, None]

    def backward(self) -> Any:
        return self.call("backward", self.dy, self.x, self.weights, *self.states, *self.dstates)


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "options"), CASES)
def test_the_gradient_is_that_of_central_differences(cell: str, options: dict[str, Any]) -> None:
    """Along a random direction in each argument: a wrong element anywhere shows."""
    network = Network(cell, options)
    dx, *dstates, dweights = network.backward()
    arguments = [network.x, network.weights, *network.states]
    rng = np.random.default_rng(1)
    for number, gradient in enumerate((dx, dweights, *dstates)):
        for _ in range(3):
            direction = rng.standard_normal(gradient.shape)
            moved = [
                [a + (h * direction if k == number else 0.0) for k, a in enumerate(arguments)]
                for h in (1e-5, -1e-5)
            ]
            slope = (network.loss(*moved[0]) - network.loss(*moved[1])) / 2e-5
            assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(("cell", "options"), CASES)
def test_the_gradient_of_the_reserve_is_the_whole_one(cell: str, options: dict[str, Any]) -> None:
    network = Network(cell, options)
    passed = network.forward(network.x, network.weights, *network.states)
    h0 = network.states[0]
    of_data = {
        "lstm": lambda: (passed.gates, passed.cells, network.states[1]),
        "gru": lambda: (passed.gates, passed.hidden, h0),
    }.get(cell, lambda: (passed.hidden,))()
    data = network.call(
        "backward_data",
        network.dy,
        network.weights,
        *of_data,
        *network.dstates,
        input_size=network.x.shape[-1],
    )
    of_weights: Any = {
        "lstm": lambda: (
            (passed.gates, passed.cells) if network.layout.projection_size else (None, None)
        ),
        "gru": lambda: (passed.gates if options.get("reset") == "before" else None,),
    }.get(cell, tuple)()
    so_far = np.arange(network.layout.size, dtype=np.float64)
    dweights = network.call(
        "backward_weights", network.x, passed.hidden, data.dgates, h0, *of_weights, so_far
    )
    whole = network.backward()
    assert data.dx == pytest.approx(whole.dx, rel=1e-12, abs=1e-14)
    assert data.dh0 == pytest.approx(whole.dh0, rel=1e-12, abs=1e-14)
    assert dweights == pytest.approx(so_far + whole.dweights, rel=1e-12, abs=1e-12)


# --- Values ---------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def test_a_step_of_lstm_by_hand() -> None:
    # Packed: W of i, f, g, o, R of them, bW, bR.
    weights = np.array([0.5, -1.0, 2.0, 0.25, 1.0, 0.5, -0.5, 2.0, *(0.1,) * 4, *(0.2,) * 4])
    x, h, c = 0.8, 0.3, -0.7
    a = [w * x + r * h + 0.3 for w, r in zip(weights[:4], weights[4:8], strict=True)]
    i, f, g, o = sigmoid(a[0]), sigmoid(a[1]), np.tanh(a[2]), sigmoid(a[3])
    cells = f * c + i * g
    state = np.full((1, 1, 1), h), np.full((1, 1, 1), c)
    result = ref.lstm_forward(np.full((1, 1, 1), x), weights, *state, hidden_size=1, training=True)
    assert result.gates.ravel() == pytest.approx([i, f, g, o])
    assert result.cy.item() == result.cells.item() == pytest.approx(cells)
    assert result.y.item() == result.hy.item() == pytest.approx(o * np.tanh(cells))


@pytest.mark.parametrize("reset", ["after", "before"])
def test_a_step_of_gru_by_hand(reset: str) -> None:
    weights = np.array([0.5, -1.0, 2.0, 1.0, 0.5, -0.5, *(0.1,) * 3, *(0.2,) * 3])
    x, h = 0.8, 0.3
    r, z = (sigmoid(weights[k] * x + weights[3 + k] * h + 0.3) for k in (0, 1))
    inner = -0.5 * h + 0.2 if reset == "after" else -0.5 * (r * h) + 0.2
    n = np.tanh(2.0 * x + 0.1 + (r * inner if reset == "after" else inner))
    state = np.full((1, 1, 1), h)
    result = ref.gru_forward(
        np.full((1, 1, 1), x), weights, state, hidden_size=1, reset=reset, training=True
    )
    assert result.gates.ravel() == pytest.approx([r, z, n, inner])
    assert result.y.item() == pytest.approx((1 - z) * n + z * h)


def test_relu_counts_steps() -> None:
    """W = R = 1 and no bias add up the inputs, both ways, until a negative sum is cut off."""
    x = np.array([1.0, 2.0, -5.0, 4.0]).reshape(4, 1, 1)
    y, hy = ref.rnn_relu_forward(x, np.ones(4), hidden_size=1, bias_mode="none", bidirectional=True)
    assert y[:, 0, 0].tolist() == [1, 3, 0, 4]
    assert y[:, 0, 1].tolist() == [3, 2, 0, 4]
    assert hy.ravel().tolist() == [4, 3]


def test_clipping_holds_the_cells() -> None:
    network = Network("lstm", {"cell_clip": (-0.1, 0.05)})
    passed = network.forward(network.x, network.weights, *network.states)
    assert passed.cells.min() == -0.1
    assert passed.cells.max() == 0.05
    assert passed.hidden == pytest.approx(
        passed.gates[..., 3 * UNITS :] * np.tanh(passed.cells), rel=1e-15
    )


@pytest.mark.parametrize(("clip_nan", "expected"), [("propagate", np.nan), ("not_propagate", -0.5)])
def test_nan_in_a_clipped_cell(clip_nan: str, expected: float) -> None:
    one = np.ones((1, 1, 1))
    attributes: dict[str, Any] = {"hidden_size": 1, "cell_clip": (-0.5, 0.5), "clip_nan": clip_nan}
    result = ref.lstm_forward(one, np.ones(16), one, np.nan * one, **attributes)
    assert result.cy.item() == pytest.approx(expected, nan_ok=True)


# --- Sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_packed_is_padded_without_the_padding(cell: str) -> None:
    sizes, lengths = (3, 2, 2, 1), (4, 3, 1)
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.3, "seed": 9}
    packed = Network(cell, {**options, "batch_sizes": sizes})
    padded = Network(cell, {**options, "lengths": lengths, "padding_fill": 7.0})
    there = np.nonzero(np.arange(STEPS)[:, None] < np.array(lengths))
    x = np.full((STEPS, BATCH, INPUTS), np.nan)
    x[there] = packed.x
    y, *last = packed.forward(packed.x, packed.weights, *packed.states)
    wide, *wide_last = padded.forward(x, packed.weights, *packed.states)
    assert (wide[there] == y).all()
    assert (np.delete(wide.reshape(-1, wide.shape[2]), there[0] * BATCH + there[1], 0) == 7).all()
    states = len(packed.states)
    for one, other in zip(last[:states], wide_last[:states], strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("cell", CELLS)
def test_what_lies_behind_the_end_is_never_read(cell: str) -> None:
    network = Network(cell, {"lengths": (2, 4, 0), "num_layers": 2, "bidirectional": True})
    behind = ~np.broadcast_to(network.steps_that_there_are(), network.x.shape)
    clean = network.forward(network.x, network.weights, *network.states), network.backward()
    network.x[behind] = np.nan
    network.dy[~np.broadcast_to(network.steps_that_there_are(), network.dy.shape)] = np.nan
    dirty = network.forward(network.x, network.weights, *network.states), network.backward()
    for one, other in zip(itertools.chain(*clean), itertools.chain(*dirty), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_of_no_steps_keeps_its_state(cell: str) -> None:
    network = Network(cell, {"lengths": (0, 4, 2), "bidirectional": True})
    _, *last = network.forward(network.x, network.weights, *network.states)
    _, *first, _ = network.backward()
    for state, begun, gradient, given in zip(
        last, network.states, first, network.dstates, strict=False
    ):
        assert (state[:, 0] == begun[:, 0]).all()
        assert (gradient[:, 0] == given[:, 0]).all()


def test_each_sequence_is_computed_by_itself() -> None:
    network = Network("lstm", {"lengths": (2, 4, 3), "num_layers": 2, "bidirectional": True})
    whole = network.forward(network.x, network.weights, *network.states)
    for b, length in enumerate((2, 4, 3)):
        alone = Network("lstm", {"num_layers": 2, "bidirectional": True})
        states = [state[:, b : b + 1] for state in network.states]
        one = alone.forward(network.x[:length, b : b + 1], network.weights, *states)
        assert one.y[:, 0] == pytest.approx(whole.y[:length, b], rel=1e-12)
        assert one.hy[:, 0] == pytest.approx(whole.hy[:, b], rel=1e-12)


def test_batch_major_is_a_layout() -> None:
    network = Network("gru", {})
    batch_major = np.ascontiguousarray(network.x.swapaxes(0, 1)).swapaxes(0, 1)
    one = network.forward(network.x, network.weights, *network.states)
    other = network.forward(batch_major, network.weights, *network.states)
    assert (one.y == other.y).all()


def test_nothing_to_compute() -> None:
    x, weights = np.zeros((0, 2, 3)), np.zeros(4 * 4 * 3 + 4 * 4 * 4 + 32)
    h0 = np.ones((1, 2, 4))
    y, hy, cy = ref.lstm_forward(x, weights, h0, hidden_size=4)
    assert y.shape == (0, 2, 4)
    assert (hy == h0).all()
    assert (cy == 0).all()


# --- Dropout --------------------------------------------------------------------------------------


def test_dropout_takes_the_words_of_its_place() -> None:
    """Layer 1 passes its input on: W = 1, R = 0 and relu of what is positive."""
    weights = np.array([1.0, 0.0, 1.0, 0.0])
    x = np.ones((5, 2, 1))
    attributes: dict[str, Any] = {"hidden_size": 1, "num_layers": 2, "bias_mode": "none"}
    y, _, _ = ref.rnn_relu_forward(
        x, weights, dropout=0.4, seed=3, subsequence=1, training=True, **attributes
    )
    kept = words(Stream(3, 1, 0), 10).reshape(5, 2) >= threshold(0.4)
    assert y[:, :, 0] == pytest.approx(np.where(kept, 1 / 0.6, 0.0))
    assert (ref.rnn_relu_forward(x, weights, dropout=0.4, **attributes).y == 1).all()


# --- Another library ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        *((cell, {"num_layers": 2, "bidirectional": True}) for cell in CELLS),
        *((cell, {"bias_mode": "none"}) for cell in CELLS),
        ("lstm", {"projection_size": 2, "num_layers": 2, "bidirectional": True}),
    ],
)
def test_pytorch_agrees(cell: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    network = Network(cell, options)
    layout = network.layout
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(cell, "RNN")
    more: dict[str, Any] = {"nonlinearity": cell[4:]} if kind == "RNN" else {}
    if layout.projection_size:
        more["proj_size"] = layout.projection_size
    module = getattr(torch.nn, kind)(
        INPUTS,
        UNITS,
        layout.num_layers,
        bias=layout.bias_mode == "double",
        bidirectional=layout.bidirectional,
        dtype=torch.float64,
        **more,
    )
    of_kind = {"W": "weight_ih", "R": "weight_hh", "projection": "weight_hr", "bW": "bias_ih"}
    named: dict[str, Any] = {}
    for block in layout.blocks:
        suffix = "_reverse" if block.direction else ""
        name = f"{of_kind.get(block.kind, 'bias_hh')}_l{block.layer}{suffix}"
        named[name] = block
        part = block.of(network.weights)
        getattr(module, name).data = torch.tensor(part)
    x, *states = (torch.tensor(a, requires_grad=True) for a in (network.x, *network.states))
    y, last = module(x, tuple(states) if cell == "lstm" else states[0])
    last = last if cell == "lstm" else (last,)
    grads = [torch.tensor(d) for d in (network.dy, *network.dstates)]
    torch.autograd.backward([y, *last], grads)
    passed = network.forward(network.x, network.weights, *network.states)
    for ours, theirs in zip(passed, (y, *last), strict=False):
        assert ours == pytest.approx(theirs.detach().numpy(), rel=1e-12, abs=1e-13)
    dx, *dstates, dweights = network.backward()
    for ours, theirs in zip((dx, *dstates), (x, *states), strict=True):
        assert ours == pytest.approx(theirs.grad.numpy(), rel=1e-11, abs=1e-12)
    for name, block in named.items():
        part = block.of(dweights)
        assert part == pytest.approx(getattr(module, name).grad.numpy(), rel=1e-11, abs=1e-12)


# --- Types and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_gates_and_cells_are_wide(dtype: Any) -> None:
    network = Network("lstm", {})
    narrow = [a.astype(dtype) for a in (network.x, network.weights, *network.states)]
    passed = network.forward(*narrow)
    assert {a.dtype for a in (passed.y, passed.hy, passed.cy, passed.hidden)} == {np.dtype(dtype)}
    assert passed.gates.dtype == passed.cells.dtype == np.float32


X, W = np.ones((3, 2, 4)), np.ones(4 * (4 * 5 + 25 + 10))


@pytest.mark.parametrize(
    ("error", "message", "attributes"),
    [
        (ShapeError, r"weights has shape \(220,\); pass \[W\] = \(460,\)", {"num_layers": 2}),
        (
            AttributeValueError,
            "lengths has 4; pass integers from 0 to the 3 steps",
            {"lengths": (4, 1)},
        ),
        (AttributeValueError, "lengths has -1", {"lengths": (-1, 1)}),
        (
            AttributeValueError,
            "lengths has 3 entries; pass one for each of 2",
            {"lengths": (1, 1, 1)},
        ),
        (AttributeValueError, "with padded x of shape", {"batch_sizes": (2, 1)}),
        (
            ShapeError,
            'input_mode="skip" with inputs of 4 and hidden_size=5',
            {"input_mode": "skip"},
        ),
        (AttributeValueError, "projection_size=6 with hidden_size=5", {"projection_size": 6}),
        (AttributeValueError, r"cell_clip=\(1, 0\)", {"cell_clip": (1, 0)}),
    ],
)
def test_bad_arguments_are_named(error: Any, message: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        ref.lstm_forward(X, W, **{"hidden_size": 5, **attributes})


def test_batch_sizes_never_increase() -> None:
    packed = np.ones((5, 4))
    with pytest.raises(AttributeValueError, match=r"batch_sizes=\(2, 3\); pass integers >= 1 that"):
        ref.lstm_forward(packed, W, hidden_size=5, batch_sizes=(2, 3))
    with pytest.raises(
        AttributeValueError, match="are 4 rows, x has 5; pass batch sizes whose sum"
    ):
        ref.lstm_forward(packed, W, hidden_size=5, batch_sizes=(3, 1))


def test_the_reserve_of_a_projection_is_needed() -> None:
    with pytest.raises(MissingTensorError, match="gates is None with projection_size=2; pass what"):
        ref.lstm_backward_weights(
            X, np.ones((1, 6, 2)), np.ones((1, 6, 22)), hidden_size=5, projection_size=2
        )
