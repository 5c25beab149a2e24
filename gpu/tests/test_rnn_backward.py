"""Gradients of recurrent networks: derivatives of the forward pass, whole and in parts."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import to_device
from dnncanon.gpu.static.recording import recording
from dnncanon.spec.rnn_weights import rnn_weight_layout

Array = np.ndarray[Any, Any]
Named = dict[str, Array]

CELLS = ("rnn_relu", "rnn_tanh", "lstm", "gru")
LAYOUT = ("num_layers", "bidirectional", "bias_mode", "input_mode", "projection_size")
STEPS, BATCH, INPUT, HIDDEN = 4, 4, 5, 5
UNEVEN = {"lengths": (3, 0, 4, 1)}
DEEP = {"num_layers": 2, "bidirectional": True, "dropout": 0.25, "seed": 3, **UNEVEN}
PACKED = {"batch_sizes": (4, 3, 1, 1), "bidirectional": True, "bias_mode": "single_recurrent"}
SKIPPED = {"bias_mode": "single_input", "input_mode": "skip", "bidirectional": True}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{cell}, deep": (cell, DEEP) for cell in CELLS},
    **{f"{cell}, packed": (cell, PACKED) for cell in ("rnn_tanh", "gru")},
    **{f"{cell}, skipped": (cell, SKIPPED) for cell in ("lstm", "gru")},
    "lstm, projected": ("lstm", {"projection_size": 3, **DEEP}),
    "lstm, clipped": ("lstm", {"cell_clip": (-0.3, 0.4), **UNEVEN}),
    "gru, reset before": ("gru", {"reset": "before", **DEEP}),
}


@dataclass
class Network:
    """Random tensors of a call, by the primitives' names, and what the primitives make of them."""

    cell: str
    options: dict[str, Any]
    dtype: Any = np.float64
    sizes: tuple[int, int, int, int] = (STEPS, BATCH, INPUT, HIDDEN)

    def __post_init__(self) -> None:
        steps, batch, inputs, hidden = self.sizes
        chosen = {name: self.options[name] for name in LAYOUT if name in self.options}
        self.layout = rnn_weight_layout(self.cell, input_size=inputs, hidden_size=hidden, **chosen)
        sizes = self.options.get("batch_sizes")
        data = (sum(sizes),) if sizes else (steps, batch)
        states = (self.layout.num_layers * self.layout.directions, batch)
        out = self.layout.directions * self.layout.out
        scale = hidden**-0.5
        self.tensors = {
            "x": self._random(1, *data, inputs),
            "weights": self._random(2, self.layout.size) * np.asarray(scale, self.dtype),
            "h0": self._random(3, *states, self.layout.out),
            "c0": self._random(4, *states, hidden),
            "dy": self._random(5, *data, out),
            "dhy": self._random(6, *states, self.layout.out),
            "dcy": self._random(7, *states, hidden),
        }
        if self.cell != "lstm":
            del self.tensors["c0"], self.tensors["dcy"]

    def _random(self, seed: int, *shape: int) -> Array:
        return np.random.default_rng(seed).standard_normal(shape).astype(self.dtype)

    def call(self, direction: str, given: Named, **options: Any) -> Named:
        """The results by name of a primitive, which takes what it knows of the tensors and attributes given."""
        function = getattr(gpu, f"{self.cell}_{direction}")
        primitive = function.primitive
        known = {attribute.name for attribute in primitive.attributes}
        everything = {
            "hidden_size": self.sizes[3],
            "input_size": self.sizes[2],
            "training": True,
            **self.options,
        }
        attributes = {name: value for name, value in everything.items() if name in known}
        tensors = [given.get(tensor.name) for tensor in primitive.inputs]
        results = function(*tensors, **attributes, **options)
        named = results._asdict() if hasattr(results, "_asdict") else {"dweights": results}
        return {name: result for name, result in named.items() if result is not None}

    def loss(self, tensors: Named) -> float:
        """A sum of all outputs, of which dy, dhy and dcy are the gradients."""
        outputs = self.call("forward", tensors)
        y, dy = outputs["y"], self.tensors["dy"]
        total = float(np.sum(np.where(self.is_step(), y * dy, 0.0)))
        return total + sum(
            float(np.sum(outputs[name] * self.tensors[f"d{name}"]))
            for name in ("hy", "cy")
            if name in outputs
        )

    def is_step(self) -> Array:
        """[S, B, 1], or [N, 1] of packed steps: behind the ends of sequences y is no result."""
        lengths = self.options.get("lengths")
        if lengths is None:
            return np.ones((*self.tensors["x"].shape[:-1], 1), bool)
        return (np.arange(self.sizes[0])[:, None] < np.array(lengths))[:, :, None]

    def parts(self) -> Named:
        """The gradients from the reserve."""
        forward = self.call("forward", self.tensors)
        names = ("gates", "cells", "hidden")
        reserve: Named = {name: forward[name] for name in names if name in forward}
        needs_gates = self.options.get("projection_size") or self.options.get("reset") == "before"
        of_weights = reserve if needs_gates else {"hidden": reserve["hidden"]}
        data = self.call("backward_data", self.tensors | reserve)
        plain = {name: self.tensors[name] for name in ("x", "h0")}
        weights = self.call("backward_weights", plain | of_weights | {"dgates": data["dgates"]})
        return data | weights


# --- The definition of a gradient -----------------------------------------------------------------


@pytest.mark.parametrize(("cell", "options"), OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_derivatives(cell: str, options: dict[str, Any]) -> None:
    """By each tensor, along a random direction: central differences of the forward pass."""
    network = Network(cell, options)
    gradients = network.call("backward", network.tensors)
    step = 1e-6
    for name in ("x", "weights", "h0", "c0"):
        if name in network.tensors:
            tensor = network.tensors[name]
            along = np.random.default_rng(9).standard_normal(tensor.shape)
            ends = [
                network.loss(network.tensors | {name: tensor + sign * step * along})
                for sign in (1.0, -1.0)
            ]
            expected = (ends[0] - ends[1]) / (2 * step)
            found = float(np.sum(gradients[f"d{name}"] * along))
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize(
    "name", ["rnn_relu, deep", "gru, packed", "lstm, projected", "gru, reset before"]
)
def test_the_whole_is_its_parts(name: str) -> None:
    network = Network(*OPTIONS[name], dtype=np.float32)
    parts, whole = network.parts(), network.call("backward", network.tensors)
    for result, gradient in whole.items():
        np.testing.assert_array_equal(parts[result], gradient, err_msg=result)


# --- Types, sizes, layouts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "dtype", "batch", "hidden"),
    [
        ("gru", np.float16, 7, 72),
        ("lstm", ml_dtypes.bfloat16, 4, 5),
        ("rnn_tanh", np.float32, 70, 40),
    ],
    ids=["flat", "small", "square"],
)
def test_other_types_and_tiles(cell: str, dtype: Any, batch: int, hidden: int) -> None:
    """The same numbers in float64 give about the same; rows of R are copied in chunks."""
    options = {"bidirectional": True, "lengths": (2,) * (batch - 2) + (0, 1)}
    network = Network(cell, options, dtype, (2, batch, 16, hidden))
    exact = Network(cell, options, np.float64, network.sizes)
    exact.tensors = {name: t.astype(np.float64) for name, t in network.tensors.items()}
    expected = exact.call("backward", exact.tensors)
    digits = {np.float16: 2e-3, np.float32: 1e-6}.get(dtype, 2e-2)
    for name, gradient in network.call("backward", network.tensors).items():
        limit = digits * np.abs(expected[name]).max()
        found = gradient.astype(np.float64)
        np.testing.assert_allclose(found, expected[name], 0, 4 * limit, err_msg=name)


def spread(array: Array) -> Array:
    """The same numbers with gaps between them in every dim, and the dims in the opposite order in memory."""
    memory = np.full(tuple(2 * n for n in array.shape[::-1]), np.nan, array.dtype).T
    view = memory[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


@pytest.mark.parametrize("name", ["lstm, projected", "gru, packed", "gru, skipped"])
def test_any_strides(name: str) -> None:
    network = Network(*OPTIONS[name])
    expected = network.call("backward", network.tensors)
    spread_out = {tensor: spread(array) for tensor, array in network.tensors.items()}
    out = tuple(spread(np.zeros_like(result)) for result in expected.values())
    for result, gradient in network.call("backward", spread_out, out=out).items():
        np.testing.assert_allclose(gradient, expected[result], 1e-12, 1e-12, err_msg=result)
    assert all(np.isnan(np.asarray(array.base)).mean() > 0.4 for array in out)


# --- Ends of sequences ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lstm, projected", "gru, reset before", "rnn_relu, deep"])
def test_padding_is_neither_read_nor_left(name: str) -> None:
    """With NaN behind the ends gradients are the same, and there they are 0."""
    network = Network(*OPTIONS[name])
    forward = network.call("forward", network.tensors)
    names = ("gates", "cells", "hidden")
    reserve: Named = {k: forward[k] for k in names if k in forward}
    clean = network.call("backward_data", network.tensors | reserve)
    gone = ~network.is_step()[:, :, 0]
    spoiled: Named = {k: array.copy() for k, array in reserve.items()}
    for array in spoiled.values():
        array[:, gone.reshape(-1)] = np.nan
    spoiled["dy"] = network.tensors["dy"].copy()
    spoiled["dy"][gone] = np.nan
    for result, gradient in network.call("backward_data", network.tensors | spoiled).items():
        np.testing.assert_array_equal(gradient, clean[result], err_msg=result)
    assert not np.any(clean["dx"][gone])
    assert not np.any(clean["dgates"][:, gone.reshape(-1)])


def test_padding_is_0_whatever_the_weights() -> None:
    network = Network("rnn_tanh", UNEVEN)
    network.tensors["weights"][3] = np.inf
    dx = network.call("backward", network.tensors)["dx"]
    assert not np.any(dx[~network.is_step()[:, :, 0]])


def test_a_sequence_of_no_steps_hands_its_gradients_on() -> None:
    network = Network("lstm", UNEVEN)
    gradients = network.call("backward", network.tensors)
    for first, last in (("dh0", "dhy"), ("dc0", "dcy")):
        np.testing.assert_array_equal(gradients[first][:, 1], network.tensors[last][:, 1])


def test_without_sequences_weights_have_a_gradient_of_zeros() -> None:
    network = Network("lstm", {"num_layers": 2}, sizes=(3, 0, 4, 5))
    gradients = network.call("backward", network.tensors)
    assert gradients["dx"].shape == (3, 0, 4)
    assert not np.any(gradients["dweights"])


@pytest.mark.parametrize("given", [True, False], ids=["given", "absent"])
def test_without_steps_gradients_stay(given: bool) -> None:
    network = Network("lstm", {}, sizes=(0, 3, 4, 5))
    if not given:
        del network.tensors["dhy"], network.tensors["dcy"]
    gradients = network.call("backward", network.tensors)
    for first, last in (("dh0", "dhy"), ("dc0", "dcy")):
        np.testing.assert_array_equal(gradients[first], network.tensors.get(last, 0.0))
    assert not np.any(gradients["dweights"])


def test_gradients_that_are_not_given_are_zeros() -> None:
    network = Network("lstm", {})
    zeros = {name: np.zeros_like(network.tensors[name]) for name in ("dhy", "dcy", "c0", "h0")}
    expected = network.call("backward", network.tensors | zeros)
    absent = {name: t for name, t in network.tensors.items() if name not in zeros}
    for result, gradient in network.call("backward", absent).items():
        np.testing.assert_array_equal(gradient, expected[result], err_msg=result)


# --- Launches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "options", "launches"),
    [
        ("lstm", {}, 9 + 1 + 2),
        ("lstm", {"lengths": (9, 5)}, 9 + 1 + 2 + 2),
        ("lstm", {"projection_size": 3}, 2 * 9 + 2 + 2),
        ("gru", {"reset": "before"}, 2 * 9 + 1 + 2),
    ],
)
def test_launches(cell: str, options: dict[str, Any], launches: int) -> None:
    """One a step for both directions, or two, and one or two that end; two for the product, two for lengths."""
    network = Network(cell, {"bidirectional": True, **options}, sizes=(9, 2, 4, 5))
    given = network.tensors | network.call("forward", network.tensors)
    with recording() as recorded:
        network.call("backward_data", given)
    assert len(recorded) == launches


def test_a_step_moves_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R, gates, cells, c before, dy, δc and the state in; dgates, the state and δc out."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    batch, units, word = 8, 64, 4
    network = Network("lstm", {}, np.float32, (3, batch, 8, units))
    given = network.tensors | network.call("forward", network.tensors)
    primitive = gpu.lstm_backward_data.primitive
    tensors = [to_device(given[tensor.name]) for tensor in primitive.inputs]
    moved = profile("lstm_backward_data", *tensors, hidden_size=units, input_size=8)
    middle = moved.launches[1].profile
    assert middle is not None
    of_state = batch * units * word
    read = 4 * units * units * word + (4 + 1 + 1 + 1 + 1 + 4) * of_state
    assert (middle.dram_bytes_read, middle.dram_bytes_written) == (read, (4 + 4 + 1) * of_state)
    assert moved.sector_efficiency("load") == moved.sector_efficiency("store") == 1.0


def test_a_plan_keeps_the_lengths() -> None:
    """Bound to other arrays it computes with the lengths that it was made for."""
    one, other = Network("gru", UNEVEN), Network("gru", UNEVEN)
    other.tensors["dy"] = -other.tensors["dy"]
    attributes = {"hidden_size": HIDDEN, **UNEVEN}

    def arrays(network: Network) -> list[Any]:
        names = [tensor.name for tensor in gpu.gru_backward.primitive.inputs]
        return [to_device(network.tensors[name]) for name in names]

    plan = gpu.execution_plan("gru_backward", *arrays(one), **attributes)
    bound = plan.bind(*arrays(other))
    for network, results in ((other, bound()), (one, plan()), (one, plan.graph()())):
        expected = network.call("backward", network.tensors)
        for name, result in results._asdict().items():
            np.testing.assert_array_equal(result.to_host(), expected[name], err_msg=name)


def test_neither_races_nor_reads_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network("lstm", {"projection_size": 3, **DEEP}, np.float16)
    expected = network.call("backward", network.tensors)
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    for name, gradient in network.call("backward", network.tensors).items():
        np.testing.assert_array_equal(gradient, expected[name], err_msg=name)
