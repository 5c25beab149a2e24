"""Gradients of recurrent networks by their weights: what lies behind ends of sequences has no part in them."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.spec.rnn_weights import rnn_weight_layout

Array = np.ndarray[Any, Any]
Named = dict[str, Array]

STEPS, BATCH, INPUT, HIDDEN, LAYERS, DIRECTIONS = 4, 4, 5, 5, 2, 2
LENGTHS = (3, 0, 4, 1)
DEEP = {"hidden_size": HIDDEN, "num_layers": LAYERS, "bidirectional": True}

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("rnn_tanh", {}),
    "dropped": ("lstm", {"dropout": 0.25, "seed": 3}),
    "projected": ("lstm", {"projection_size": 3}),
    "reset before": ("gru", {"reset": "before"}),
}
GATES = {"rnn_tanh": (0, 1), "lstm": (4, 4), "gru": (4, 4)}
"""Blocks of gates and of dgates, in units."""


def tensors_of(cell: str, options: dict[str, Any]) -> Named:
    """Random tensors of a call with everything that may be given."""
    projection = options.get("projection_size", 0)
    out, rows, pairs = projection or HIDDEN, STEPS * BATCH, LAYERS * DIRECTIONS
    saved, blocks = GATES[cell]
    shapes = {
        "x": (STEPS, BATCH, INPUT),
        "hidden": (LAYERS, rows, DIRECTIONS * out),
        "dgates": (pairs, rows, blocks * HIDDEN + projection),
        "h0": (pairs, BATCH, out),
        "accumulated": (size_of(cell, projection),),
    }
    if projection or options.get("reset") == "before":
        shapes["gates"] = (pairs, rows, saved * HIDDEN)
    if projection:
        shapes["cells"] = (pairs, rows, HIDDEN)
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape) for name, shape in shapes.items()}


def size_of(cell: str, projection: int) -> int:
    layout = rnn_weight_layout(
        cell,
        input_size=INPUT,
        hidden_size=HIDDEN,
        num_layers=LAYERS,
        bidirectional=True,
        projection_size=projection,
    )
    return layout.size


def gradient(cell: str, options: dict[str, Any], tensors: Named) -> Array:
    function = getattr(gpu, f"{cell}_backward_weights")
    given = [tensors.get(tensor.name) for tensor in function.primitive.inputs]
    result: Array = function(*given, **DEEP, **options)
    return result


def is_padding(lengths: tuple[int, ...]) -> Array:
    """[S, B]"""
    return np.arange(STEPS)[:, None] >= np.array(lengths)


@pytest.mark.parametrize(("cell", "options"), NETWORKS.values(), ids=NETWORKS)
def test_padding_does_not_count(cell: str, options: dict[str, Any]) -> None:
    """Not where it is NaN in every operand, for which a product with zeros is NaN too."""
    options = {**options, "lengths": LENGTHS}
    tensors, gone = tensors_of(cell, options), is_padding(LENGTHS)
    expected = gradient(cell, options, tensors)
    assert np.all(np.isfinite(expected))
    for name in tensors.keys() & {"hidden", "dgates", "gates", "cells"}:
        tensors[name][:, gone.reshape(-1)] = np.nan
    tensors["x"][gone] = np.nan
    np.testing.assert_array_equal(gradient(cell, options, tensors), expected)


def test_without_steps_what_was_accumulated_stays() -> None:
    """Whether or not rows are there that no sequence has."""
    tensors = tensors_of("gru", {})
    for name in ("x", "hidden", "dgates"):
        tensors[name][...] = np.nan
    result = gradient("gru", {"lengths": (0,) * BATCH}, tensors)
    np.testing.assert_array_equal(result, tensors["accumulated"])
    shapes = {"x": (0, BATCH, INPUT), "hidden": (2, 0, 2 * HIDDEN), "dgates": (4, 0, 4 * HIDDEN)}
    tensors |= {name: np.zeros(shape) for name, shape in shapes.items()}
    np.testing.assert_array_equal(gradient("gru", {}, tensors), tensors["accumulated"])
