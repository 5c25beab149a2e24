"""Layers that hold their weights: they are the primitives, with a memory of the last forward pass."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.runtime import to_device
from dnncanon.spec import SpecError

Array = np.ndarray[Any, Any]

LENGTHS = (3, 1)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "RNN": (gpu.RNN, {"nonlinearity": "relu"}),
    "LSTM": (gpu.LSTM, {"projection_size": 2}),
    "GRU": (gpu.GRU, {"reset": "before"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_primitive(name: str) -> None:
    """Forward, and backward by all that it was made of."""
    make, options = LAYERS[name]
    layer = make(3, 4, num_layers=2, bidirectional=True, **options)
    x, (y, last) = random(3, 2, 3), layer(random(3, 2, 3), lengths=LENGTHS, training=True)
    dy = random(*y.shape, seed=1)
    dx, first = layer.backward(dy)
    chosen = {key: value for key, value in options.items() if key != "nonlinearity"}
    attributes = {"hidden_size": 4, "num_layers": 2, "bidirectional": True, "lengths": LENGTHS}
    cell = layer.layout.cell
    forward = getattr(gpu, f"{cell}_forward")(x, layer.weights, **attributes, **chosen)
    whole = getattr(gpu, f"{cell}_backward")(dy, x, layer.weights, **attributes, **chosen)
    states = {"LSTM": ("hy", "cy")}.get(name, ("hy",))
    np.testing.assert_array_equal(y, forward.y)
    for state, part in zip(states, last if name == "LSTM" else (last,), strict=True):
        np.testing.assert_array_equal(part, getattr(forward, state))
    np.testing.assert_array_equal(dx, whole.dx)
    np.testing.assert_array_equal(layer.gradient, whole.dweights)
    np.testing.assert_array_equal(first[0] if name == "LSTM" else first, whole.dh0)


def test_gradients_add_up_until_they_are_taken_away() -> None:
    layer, x = gpu.GRU(3, 4), random(3, 2, 3)
    gradients = []
    for _ in range(2):
        y, _ = layer(x, training=True)
        layer.backward(np.ones_like(y))
        gradients.append(layer.gradient)
    np.testing.assert_allclose(gradients[1], 2.0 * gradients[0], 1e-6)
    layer.gradient = None
    layer.backward(np.ones_like(y))
    np.testing.assert_array_equal(layer.gradient, gradients[0])


def test_batches_may_come_first() -> None:
    layer, x = gpu.LSTM(3, 4), random(5, 2, 3)
    first = gpu.LSTM(3, 4, batch_first=True, weights=layer.weights)
    y, _ = layer(x, training=True)
    swapped, _ = first(x.swapaxes(0, 1), training=True)
    np.testing.assert_array_equal(swapped, y.swapaxes(0, 1))
    dx, _ = layer.backward(y)
    np.testing.assert_array_equal(first.backward(swapped)[0], dx.swapaxes(0, 1))
    of_device = to_device(np.ascontiguousarray(x.swapaxes(0, 1)))
    np.testing.assert_array_equal(first(of_device)[0].to_host(), swapped)


def test_packed_sequences() -> None:
    layer, x = gpu.GRU(3, 4), random(3, 2, 3)
    y, last = layer(x, lengths=LENGTHS)
    packed, same = layer(x[[0, 0, 1, 2], [0, 1, 0, 0]], batch_sizes=(2, 1, 1))
    np.testing.assert_array_equal(packed, y[[0, 0, 1, 2], [0, 1, 0, 0]])
    np.testing.assert_array_equal(same, last)


def test_each_pass_drops_something_else_and_goes_back_through_the_same() -> None:
    layer = gpu.RNN(3, 64, num_layers=2, nonlinearity="relu", dropout=0.5)
    x = random(1, 1, 3)
    first, _ = layer(x, training=True)
    second, _ = layer(x, training=True)
    again, _ = gpu.RNN(3, 64, 2, nonlinearity="relu", dropout=0.5, weights=layer.weights)(
        x, training=True
    )
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(again, first)
    layer.backward(second)
    whole = gpu.rnn_relu_backward(
        second, x, layer.weights, hidden_size=64, num_layers=2, dropout=0.5, subsequence=1
    )
    np.testing.assert_array_equal(layer.gradient, whole.dweights)


def test_weights_have_names() -> None:
    """Views: what is written there is computed with."""
    layer = gpu.LSTM(3, 4, bias_mode="none")
    assert layer.named_gradients() == {}
    for matrix in layer.named_weights().values():
        matrix[...] = 0.0
    y, _ = layer(random(2, 2, 3), training=True)
    assert not np.any(y)
    layer.backward(np.ones_like(y))
    assert layer.named_gradients().keys() == layer.named_weights().keys()


def test_weights_of_a_device_have_names_too() -> None:
    layer = gpu.GRU(3, 4)
    of_device = gpu.GRU(3, 4, weights=to_device(layer.weights))
    for name, part in of_device.named_weights().items():
        np.testing.assert_array_equal(part.to_host(), layer.named_weights()[name])


def test_a_pass_goes_back_by_the_weights_that_it_had() -> None:
    layer, x = gpu.GRU(3, 4), random(3, 2, 3)
    y, _ = layer(x, training=True)
    dx, _ = layer.backward(y)
    layer.weights = np.zeros_like(layer.weights)
    np.testing.assert_array_equal(layer.backward(y)[0], dx)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpu.LSTM(3, 4).backward(random(2, 2, 4)), "training=True"),
        (lambda: gpu.LSTM(3, 4)(random(2, 2, 3), random(1, 2, 4)), r"pass \(h0, c0\)"),
        (lambda: gpu.GRU(3, 4)(random(2, 2, 3), (1, 2)), r"pass \(h0\)"),
        (lambda: gpu.RNN(3, 4, nonlinearity="gelu"), 'pass "tanh" or "relu"'),
        (lambda: gpu.GRU(3, 4, projection_size=2), "no 'projection_size'; pass bidirectional, "),
        (lambda: gpu.LSTM(3, 4, dtype="int8"), "float64, float32, float16, bfloat16"),
        (lambda: gpu.GRU(-1, 4), "input_size=-1; pass an integer >= 0"),
        (lambda: gpu.RNN(3, 0), "hidden_size=0; pass an integer >= 1"),
        (lambda: gpu.LSTM(3, 4, bias_mode="one"), "bias_mode='one'; pass \"none\" or "),
        (lambda: gpu.LSTM(3, 4, projection_size=5), "an integer from 1 to 4"),
        (lambda: gpu.GRU(3, 4, weights=random(7)), r"shape \(7,\); pass \(108,\)"),
        (lambda: gpu.GRU(3, 4)(random(3, 2, 3), lengths=(4, 1)), "pass integers from 0 to the 3"),
    ],
)
def test_bad_input_names_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()
