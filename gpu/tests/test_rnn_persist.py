"""The algorithm "persist" of recurrent networks: all steps of a layer in one launch, R in shared memory."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.gpu.static.recording import recording
from dnncanon.spec import Unsupported

_spec = importlib.util.spec_from_file_location("rnn", Path(__file__).with_name("test_rnn.py"))
assert _spec is not None
assert _spec.loader is not None
rnn: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rnn)

Network, agree, on_device = rnn.Network, rnn.agree, rnn.on_device
CELLS, OPTIONS, UNEVEN = rnn.CELLS, rnn.OPTIONS, rnn.UNEVEN


def persist(network: Any, **options: Any) -> Any:
    """The results of a call by this algorithm."""
    return network(algorithm="persist", **options)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_forward(cell: str, options: dict[str, Any], training: bool) -> None:
    network = Network(cell, "float32", (4, 4, 6, 6), training=training, **options)
    agree(network, persist(network))


@pytest.mark.parametrize(("dtype", "cell"), [("float64", "gru"), ("float16", "lstm")])
def test_other_dtypes(dtype: str, cell: str) -> None:
    network = Network(cell, dtype, (4, 4, 5, 6), bidirectional=True, training=True, **UNEVEN)
    agree(network, persist(network))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_are_those_of_single_steps(dtype: str) -> None:
    network = Network("lstm", dtype, (3, 4, 5, 20), bidirectional=True)
    for one, other in zip(persist(network), network(algorithm="standard"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_last_state_is_in_either_place(steps: int) -> None:
    """An odd or an even number of steps; h0 and c0 are zeros."""
    network = Network("lstm", "float32", (steps, 2, 4, 5), num_layers=2)
    network.h0 = network.c0 = None
    agree(network, persist(network))


@pytest.mark.parametrize(
    ("batch", "hidden", "dtype"),
    [(7, 136, "float16"), (70, 40, "float32")],
    ids=["some slices", "shares of the sequences"],
)
def test_larger_sizes(batch: int, hidden: int, dtype: str) -> None:
    """More units, sequences or depth than one block, tile or slice has."""
    lengths = (3,) * (batch - 2) + (0, 2)
    options = {"bidirectional": True, "training": True, "lengths": lengths}
    network = Network("gru", dtype, (3, batch, 16, hidden), **options)
    network.weights *= np.asarray(0.25, network.weights.dtype)
    agree(network, persist(network))


def test_sequences_one_tile_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the units take all multiprocessors, a block has all sequences, and again its tiles one by one."""
    monkeypatch.setattr(EmulatedDevice, "multiprocessors", 10)
    network = Network("gru", "float32", (3, 70, 4, 40), bidirectional=True)
    network.weights *= np.float32(0.25)
    agree(network, persist(network))


def test_any_strides() -> None:
    network = Network("lstm", "float32", (4, 4, 5, 6), training=True, **UNEVEN)
    out = tuple(rnn.spread(np.zeros_like(result)) for result in persist(network))
    network.x, network.weights = rnn.spread(network.x), rnn.spread(network.weights)
    h0, c0 = rnn.states_of(network)
    network.h0, network.c0 = rnn.spread(h0), rnn.spread(c0)
    agree(network, persist(network, out=out))


def test_without_steps_states_stay() -> None:
    network = Network("gru", "float32", (0, 3, 4, 5))
    np.testing.assert_array_equal(persist(network).hy, network.h0)


# --- Launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lengths": (9, 5)}], ids=["whole", "uneven"])
def test_launches(options: dict[str, Any]) -> None:
    """Of each layer a product and one launch for both directions; a table of lengths."""
    network = Network("lstm", "float32", (9, 2, 4, 5), num_layers=3, bidirectional=True, **options)
    with recording() as launches:
        persist(network)
    assert len(launches) == 2 * 3 + len(options)


def test_r_comes_from_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all steps: R, biases and the first states once, and W·x of each step.

    States pass through memory, for other blocks are to see them.
    """
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    steps, batch, units, word = 5, 8, 64, 4
    network = Network("lstm", "float32", (steps, batch, 8, units), training=True)
    tensors = on_device(network)
    moved = profile("lstm_forward", *tensors, algorithm="persist", **network.attributes)
    of_layer = moved.launches[-1].profile
    r, biases, of_state = 4 * units * units * word, 8 * units * word, batch * units * word
    assert of_layer is not None
    assert of_layer.dram_bytes_read == r + biases + 2 * of_state + steps * 4 * of_state
    assert moved.sector_efficiency("load") == moved.sector_efficiency("store") == 1.0


def test_a_plan_keeps_the_lengths() -> None:
    one, other = (Network("gru", "float32", (4, 4, 5, 6), **UNEVEN) for _ in range(2))
    other.x = other.random(9, *other.x.shape)
    plan = gpu.execution_plan("gru_forward", *on_device(one), algorithm="persist", **one.attributes)
    for network, results in ((other, plan.bind(*on_device(other))()), (one, plan.graph()())):
        agree(network, type(results)(*(result.to_host() for result in results)))


def test_neither_races_nor_reads_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    options = {"num_layers": 2, "bidirectional": True, "training": True, **UNEVEN}
    network = Network("lstm", "float16", (4, 4, 5, 20), **options)
    agree(network, persist(network))


# --- What it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "sizes", "options", "why"),
    [
        ("lstm", (2, 2, 4, 6), {"projection_size": 3}, "a projection takes a second one"),
        ("gru", (2, 2, 4, 6), {"reset": "before"}, 'reset="before" takes a second one'),
        ("lstm", (2, 2, 4, 1100), {"bidirectional": True}, "multiprocessors"),
        ("rnn_relu", (2, 2, 4, 4000), {}, "bytes of 232448"),
    ],
    ids=["projection", "reset before", "blocks", "memory"],
)
def test_refusals(cell: str, sizes: tuple[int, ...], options: dict[str, Any], why: str) -> None:
    network = Network(cell, "float32", sizes, **options)
    with pytest.raises(Unsupported, match=why):
        persist(network)


@pytest.mark.parametrize(
    ("steps", "batch", "chosen"),
    [(8, 64, "persist"), (7, 64, "standard"), (8, 65, "standard")],
)
def test_auto_prefers_it_for_many_small_steps(steps: int, batch: int, chosen: str) -> None:
    network = Network("lstm", "float16", (steps, batch, 4, 6))
    first, *_ = gpu.algorithms("lstm_forward", *network.tensors, **network.attributes)
    assert first.name == chosen
