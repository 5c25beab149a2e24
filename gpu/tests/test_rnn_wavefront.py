"""The algorithm "wavefront" of recurrent networks: steps of several layers in one launch."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.static.recording import recording
from dnncanon.spec import Unsupported

_spec = importlib.util.spec_from_file_location("rnn", Path(__file__).with_name("test_rnn.py"))
assert _spec is not None
assert _spec.loader is not None
rnn: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rnn)

Network, agree, on_device = rnn.Network, rnn.agree, rnn.on_device

OPTIONS: dict[str, dict[str, Any]] = {
    "uneven": {"num_layers": 3, **rnn.UNEVEN},
    "no biases, input skipped": {"num_layers": 3, "bias_mode": "none", "input_mode": "skip"},
    "recurrent biases, packed": {
        "num_layers": 2,
        "bias_mode": "single_recurrent",
        "batch_sizes": (4, 3, 1, 1),
    },
}


def wavefront(network: Any, **options: Any) -> Any:
    """The results of a call by this algorithm."""
    return network(algorithm="wavefront", **options)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", rnn.CELLS)
def test_forward(cell: str, options: dict[str, Any], training: bool) -> None:
    network = Network(cell, "float32", (4, 4, 6, 6), training=training, **options)
    agree(network, wavefront(network))


def test_float16() -> None:
    network = Network("gru", "float16", (4, 4, 5, 6), num_layers=2, training=True, **rnn.UNEVEN)
    agree(network, wavefront(network))


@pytest.mark.parametrize(("steps", "layers"), [(1, 4), (5, 2)])
def test_fewer_steps_than_layers_or_more(steps: int, layers: int) -> None:
    """No layer is on every diagonal, or all are on some; states begin as zeros."""
    network = Network("lstm", "float32", (steps, 2, 4, 5), num_layers=layers)
    network.h0 = network.c0 = None
    agree(network, wavefront(network))


def test_larger_sizes() -> None:
    """More units and sequences than one tile has; W and R are copied in chunks."""
    lengths = (3,) * 68 + (0, 2)
    options = {"num_layers": 2, "training": True, "lengths": lengths}
    network = Network("gru", "float16", (3, 70, 16, 40), **options)
    network.weights *= np.float16(0.25)
    agree(network, wavefront(network))


def test_any_strides() -> None:
    options = {"num_layers": 2, "training": True, **rnn.UNEVEN}
    network = Network("lstm", "float32", (4, 4, 5, 6), **options)
    out = tuple(rnn.spread(np.zeros_like(result)) for result in wavefront(network))
    network.x, network.weights = rnn.spread(network.x), rnn.spread(network.weights)
    h0, c0 = rnn.states_of(network)
    network.h0, network.c0 = rnn.spread(h0), rnn.spread(c0)
    agree(network, wavefront(network, out=out))


def test_weights_backwards_in_memory() -> None:
    network = Network("lstm", "float32", (2, 2, 4, 5), num_layers=3)
    network.weights = network.weights[::-1].copy()[::-1]
    agree(network, wavefront(network))


# --- Launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lengths": (9, 5)}], ids=["whole", "uneven"])
def test_launches(options: dict[str, Any]) -> None:
    """A product; one launch a diagonal; states in and out; a table of lengths."""
    network = Network("lstm", "float32", (9, 2, 4, 5), num_layers=4, **options)
    with recording() as launches:
        wavefront(network)
    assert len(launches) == 1 + (9 + 4 - 1) + 2 + len(options)


@pytest.mark.parametrize(("training", "nbytes"), [(False, 768 + 192 + 96), (True, 192 + 96)])
def test_workspace(training: bool, nbytes: int) -> None:
    """W·x, if gates are not saved, of the first layer and a step of the others; two states; c."""
    network = Network("lstm", "float32", (4, 2, 3, 4), num_layers=3, training=training)
    rows = gpu.algorithms("lstm_forward", *network.tensors, **network.attributes)
    assert {row.name: row.workspace_bytes for row in rows}["wavefront"] == nbytes


def test_a_plan_is_one_graph() -> None:
    network = Network("gru", "float32", (4, 4, 5, 6), num_layers=2, **rnn.UNEVEN)
    plan = gpu.execution_plan(
        "gru_forward", *on_device(network), algorithm="wavefront", **network.attributes
    )
    results = plan.graph()()
    agree(network, type(results)(*(result.to_host() for result in results)))


def test_neither_races_nor_reads_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    options = {"num_layers": 3, "training": True, **rnn.UNEVEN}
    network = Network("lstm", "float16", (4, 4, 5, 20), **options)
    agree(network, wavefront(network))


# --- What it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "options", "why"),
    [
        ("lstm", {}, "num_layers=1"),
        ("lstm", {"bidirectional": True, "num_layers": 2}, "a second direction begins at its end"),
        ("lstm", {"projection_size": 3, "num_layers": 2}, "a projection takes a second one"),
        ("gru", {"reset": "before", "num_layers": 2}, 'reset="before" takes a second one'),
        ("gru", {"dropout": 0.5, "training": True, "num_layers": 2}, "no dropout"),
    ],
)
def test_refusals(cell: str, options: dict[str, Any], why: str) -> None:
    network = Network(cell, "float32", (2, 2, 4, 6), **options)
    with pytest.raises(Unsupported, match=why):
        wavefront(network)


@pytest.mark.parametrize(
    ("hidden", "layers", "chosen"),
    [(8, 2, "persist"), (2048, 2, "wavefront"), (2048, 1, "standard")],
)
def test_auto_prefers_it_where_nothing_can_stay(hidden: int, layers: int, chosen: str) -> None:
    network = Network("lstm", "float16", (8, 2, 4, 8), num_layers=layers)
    weights = rnn.rnn_weight_layout(
        "lstm", input_size=4, hidden_size=hidden, num_layers=layers
    ).size
    tensors = network.x, np.broadcast_to(np.float16(0), (weights,))
    first, *_ = gpu.algorithms("lstm_forward", *tensors, hidden_size=hidden, num_layers=layers)
    assert first.name == chosen
