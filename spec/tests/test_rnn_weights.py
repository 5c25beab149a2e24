"""The packed weights of recurrent networks: their order, their names, and other libraries' orders."""

from typing import Any

import numpy as np
import pytest

from dnncanon.spec import ShapeError
from dnncanon.spec.rnn_weights import (
    GATES,
    from_onnx,
    from_torch,
    rnn_weight_layout,
    to_onnx,
    to_torch,
)

LAYOUTS = [
    rnn_weight_layout(cell, input_size=3, hidden_size=4, **options)
    for cell in GATES
    for options in (
        {},
        {"num_layers": 2, "bidirectional": True},
        {"bias_mode": "none"},
        {"bias_mode": "single_recurrent", "num_layers": 3},
        {"bidirectional": True},
    )
]


def test_all_matrices_lie_before_all_biases() -> None:
    layout = rnn_weight_layout(
        "lstm", input_size=3, hidden_size=2, num_layers=2, bidirectional=True
    )
    order = [(block.kind, block.layer, block.direction) for block in layout.blocks]
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert order == [
        *((kind, *place) for place in places for kind in ("W", "R")),
        *((kind, *place) for place in places for kind in ("bW", "bR")),
    ]
    assert [block.shape for block in layout.blocks[:6]] == [(8, 3), (8, 2)] * 2 + [(8, 4), (8, 2)]
    assert layout.size == 2 * (24 + 16) + 2 * (32 + 16) + 4 * 16


def test_blocks_follow_each_other_without_gaps() -> None:
    for layout in LAYOUTS:
        offset = 0
        for block in layout.blocks:
            assert block.offset == offset
            offset += block.size
        assert offset == layout.size


def test_names_tell_layer_direction_kind_and_gate() -> None:
    layout = rnn_weight_layout(
        "lstm", input_size=3, hidden_size=2, projection_size=1, bidirectional=True, bias_mode="none"
    )
    assert [entry.name for entry in layout.entries[:9]] == [
        *(f"layer0.forward.W.{gate}" for gate in "ifgo"),
        *(f"layer0.forward.R.{gate}" for gate in "ifgo"),
        "layer0.forward.projection",
    ]
    assert layout.entries[9].name == "layer0.backward.W.i"
    assert layout.entries[4].shape == (2, 1)
    assert layout.entries[8].shape == (1, 2)


def test_a_skipped_input_has_no_matrix_in_the_first_layer_alone() -> None:
    layout = rnn_weight_layout("gru", input_size=4, hidden_size=4, num_layers=2, input_mode="skip")
    assert layout.block("W", 0) is None
    assert layout.block("W", 1) is not None


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_packing_named_views_gives_the_buffer_back(layout: Any) -> None:
    buffer = np.arange(layout.size, dtype=np.float32)
    views = layout.views(buffer)
    assert (layout.pack(views) == buffer).all()
    assert all(np.shares_memory(view, buffer) for view in views.values())


def test_what_does_not_fit_is_named() -> None:
    layout = rnn_weight_layout("rnn_tanh", input_size=2, hidden_size=2)
    with pytest.raises(ShapeError, match=r"packed weights have shape \(5,\); pass \(12,\)"):
        layout.views(np.zeros(5))
    views = layout.views(np.zeros(12))
    missing = {name: view for name, view in views.items() if "bR" not in name}
    with pytest.raises(ShapeError, match=r"layer0\.forward\.bR\.h is missing; pass layer0"):
        layout.pack(missing)
    with pytest.raises(ShapeError, match="layer7 is no weight of this network"):
        layout.pack({**views, "layer7": np.zeros(2)})
    with pytest.raises(
        ShapeError, match=r"layer0\.forward\.W\.h has shape \(3, 2\); pass \(2, 2\)"
    ):
        layout.pack({**views, "layer0.forward.W.h": np.zeros((3, 2))})


# --- PyTorch's and ONNX's -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_there_and_back_in_pytorch_s_names(layout: Any) -> None:
    packed = np.random.default_rng(0).standard_normal(layout.size)
    named = to_torch(layout, packed)
    assert named["weight_ih_l0"].shape == (len(layout.gates) * 4, 3)
    assert (from_torch(layout, named) == packed).all()


@pytest.mark.parametrize(("cell", "kind"), [("lstm", "LSTM"), ("gru", "GRU"), ("rnn_tanh", "RNN")])
def test_pytorch_has_the_same_names_and_shapes(cell: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    module = getattr(torch.nn, kind)(3, 4, 2, bidirectional=True)
    layout = rnn_weight_layout(cell, input_size=3, hidden_size=4, num_layers=2, bidirectional=True)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    back = to_torch(layout, from_torch(layout, state))
    assert back.keys() == state.keys()
    assert all((back[name] == value).all() for name, value in state.items())


def test_onnx_has_its_gates_in_another_order() -> None:
    """LSTM: i o f c. GRU: z r h."""
    for cell, onnx in (("lstm", "iofg"), ("gru", "zrn")):
        layout = rnn_weight_layout(cell, input_size=1, hidden_size=1)
        gates = {gate: float(number) for number, gate in enumerate(onnx, 1)}
        w = np.array([[[gates[gate]] for gate in onnx]])
        b = np.array([[gates[gate] for gate in onnx * 2]])
        packed = from_onnx(layout, w, 10 * w, 100 * b)
        ours = [gates[gate] for gate in layout.gates]
        expected = [[f * g for g in ours] for f in (1, 10, 100, 100)]
        assert packed.tolist() == [number for part in expected for number in part]


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("bias_mode", ["double", "none"])
def test_there_and_back_in_onnx(cell: str, bias_mode: str) -> None:
    layout = rnn_weight_layout(
        cell, input_size=3, hidden_size=4, bidirectional=True, bias_mode=bias_mode
    )
    packed = np.random.default_rng(0).standard_normal(layout.size)
    w, r, b = to_onnx(layout, packed)
    rows = len(layout.gates) * 4
    assert (w.shape, r.shape) == ((2, rows, 3), (2, rows, 4))
    assert (None if b is None else b.shape) == ((2, 2 * rows) if bias_mode == "double" else None)
    assert (from_onnx(layout, w, r, b) == packed).all()


def test_what_onnx_does_not_have_is_refused() -> None:
    deep = rnn_weight_layout("gru", input_size=3, hidden_size=4, num_layers=2)
    with pytest.raises(
        ShapeError, match="ONNX has one layer of W, R and both biases or none, not 2"
    ):
        to_onnx(deep, np.zeros(deep.size))
    layout = rnn_weight_layout("gru", input_size=3, hidden_size=4)
    with pytest.raises(ShapeError, match=r"W has shape \(1, 12, 5\); pass \(1, 12, 3\)"):
        from_onnx(layout, np.zeros((1, 12, 5)), np.zeros((1, 12, 4)), np.zeros((1, 24)))
