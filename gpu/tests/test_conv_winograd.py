"""Convolution by minimal filtering against the formula: small whole numbers, to be met far within a half."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu import conv, single_algorithm
from dnncanon.gpu.kernels.conv_winograd import NonFused
from dnncanon.gpu.runtime import to_device
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
Shape = tuple[int, ...]

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1d": ((2, 5, 17), (4, 5, 3), {"padding": 1}),
    "2d": ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": 1}),
    "more channels than a block has": ((1, 9, 3, 4), (37, 9, 3, 3), {"padding": 1}),
    "more tiles than a block has": ((3, 2, 13, 14), (3, 2, 3, 3), {}),
    "smaller than a tile": ((2, 3, 1, 2), (2, 3, 3, 3), {"padding": 1}),
    "convolution": ((1, 2, 4, 7), (3, 2, 3, 3), {"padding": (2, 0), "mode": "convolution"}),
    "groups": ((2, 6, 7, 5), (8, 3, 3, 3), {"groups": 2, "padding": ((0, 2), (1, 0))}),
    "third dim": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"padding": (1, 1, 0)}),
    "stride and dilation elsewhere": (
        (1, 2, 9, 5, 6),
        (3, 2, 2, 3, 3),
        {"dilation": (3, 1, 1), "padding": (0, 1, 1)},
    ),
    "only the last but one dim": ((1, 2, 8, 5), (3, 2, 3, 2), {}),
    "more padding than taps": ((1, 2, 2, 1), (3, 2, 3, 3), {"padding": 5}),
    "no batch": ((0, 3, 5, 5), (2, 3, 3, 3), {}),
    "no input channels": ((2, 0, 5, 5), (3, 0, 3, 3), {}),
    "no input": ((1, 2, 0), (1, 2, 3), {"padding": 2}),
}
PADDED_TAPS = {"more padding than taps", "no input"}
each_algorithm = pytest.mark.parametrize("name", ["winograd", "winograd_nonfused"])


def near(actual: Any, expected: Array) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max(initial=0.0) < 1e-5 * np.abs(expected).max(initial=1.0)


@pytest.mark.parametrize("case", CASES)
@each_algorithm
def test_all_directions(case: str, name: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    shapes = (x_shape, w_shape, problem.y_shape)
    x, w, dy = (exact(shape, "float32", seed) for seed, shape in enumerate(shapes))
    near(gpu.conv_forward(x, w, **attributes, algorithm=name), definition.forward(problem, x, w))
    dx = gpu.conv_backward_data(dy, w, **attributes, input_size=problem.input_size, algorithm=name)
    near(dx, definition.backward_data(problem, dy, w))
    if case in PADDED_TAPS:
        return
    dw = gpu.conv_backward_filter(
        x, dy, **attributes, filter_size=problem.filter_size, algorithm=name
    )
    near(dw, definition.backward_filter(problem, x, dy))


@each_algorithm
def test_the_layout_changes_no_bit(name: str, exact: Exact) -> None:
    x, w = exact((2, 5, 9, 7), "float32", 1) * 0.1, exact((3, 5, 3, 3), "float32", 2) * 0.1
    last = [np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) for array in (x, w)]
    y = gpu.conv_forward(x, w, algorithm=name)
    assert (gpu.conv_forward(*last, algorithm=name) == y).all()


@each_algorithm
def test_bias_activation(name: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES["groups"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    shapes = (x_shape, w_shape, w_shape[:1], problem.y_shape)
    x, w, bias, z = (exact(shape, "float32", seed) for seed, shape in enumerate(shapes))
    scale = {"activation": "relu", "alpha1": -0.5, "alpha2": 2.0}
    y = gpu.conv_bias_activation_forward(x, w, bias, z, **attributes, **scale, algorithm=name)
    expected = -0.5 * definition.forward(problem, x, w) + bias.reshape(-1, 1, 1) + 2.0 * z
    near(y, np.maximum(expected, 0))


@each_algorithm
def test_an_infinite_tap_does_not_reach_what_lies_in_the_padding(name: str, exact: Exact) -> None:
    """An output within a tile of the input may be NaN; one whose tile meets padding only is 0."""
    x, w = exact((1, 1, 1, 1), "float32", 1), np.full((1, 1, 3, 3), np.inf, np.float32)
    y = gpu.conv_forward(x, w, padding=12, algorithm=name)
    inside = y[0, 0, 6:-6, 6:-6]
    assert not np.isfinite(inside[5:8, 5:8]).any()
    assert np.isnan(y).sum() <= inside.size
    assert (y[0, 0, :5] == 0.0).all()
    assert (y[0, 0, :, -5:] == 0.0).all()


def test_few_tiles_at_a_time_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, exact: Exact
) -> None:
    x, w = exact((3, 2, 13, 14), "float32", 1) * 0.1, exact((3, 2, 3, 3), "float32", 2) * 0.1
    at_once, most = gpu.conv_forward(x, w, algorithm="winograd_nonfused"), workspace(x, w)
    monkeypatch.setattr(NonFused, "room", 36 * 4 * 8)
    assert (gpu.conv_forward(x, w, algorithm="winograd_nonfused") == at_once).all()
    assert workspace(x, w) < most


def workspace(x: Array, w: Array, name: str = "winograd_nonfused") -> int:
    rows = gpu.algorithms("conv_forward", x, w)
    return next(row.workspace_bytes for row in rows if row.name == name)


def test_the_workspace_is_points() -> None:
    """Of filters, and, if they are not in shared memory, of tiles and of their sums; all in fours."""
    x, w = np.zeros((2, 6, 9, 14), np.float32), np.zeros((5, 6, 3, 3), np.float32)
    assert workspace(x, w, "winograd") == 4 * 16 * 6 * 8
    tiles = 2 * 2 * 3
    assert workspace(x, w) == 4 * 36 * (6 * 8 + 6 * tiles + 8 * tiles)


@each_algorithm
def test_it_is_clean_in_check_mode(
    name: str, monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, w = exact((1, 9, 5, 9), "float32", 1), exact((3, 9, 3, 3), "float32", 2)
    y = gpu.conv_forward(to_device(x), to_device(w), padding=1, algorithm=name)
    near(y.to_host(), definition.forward(definition.problem(x.shape, w.shape, padding=1), x, w))


def test_their_numerics_classes_are_claimed() -> None:
    for name, of_filter, of_gradient in (
        ("winograd", "winograd(2,3)", "winograd(3,2)"),
        ("winograd_nonfused", "winograd(4,3)", "winograd(3,4)"),
    ):
        claims = getattr(single_algorithm, name).describe()["numerics"]
        assert claims["conv_forward"]["float32"] == of_filter
        assert claims["conv_forward"]["float16"] == "ieee"
        assert claims["conv_backward_filter"]["float32"] == of_gradient


@each_algorithm
def test_what_it_refuses(name: str, exact: Exact) -> None:
    x = exact((1, 1, 9), "float32")
    with pytest.raises(Unsupported, match=r"transforms float32, .*, not float16"):
        gpu.conv_forward(x.astype(np.float16), np.zeros((1, 1, 3), np.float16), algorithm=name)
    for taps, attributes in ((4, {}), (3, {"stride": 2}), (3, {"dilation": 2})):
        w = exact((1, 1, taps), "float32")
        with pytest.raises(Unsupported, match="needs a dim of 3 taps with step and gap 1"):
            gpu.conv_forward(x, w, **attributes, algorithm=name)
    dy, w = exact((1, 1, 5), "float32"), exact((1, 1, 6), "float32")
    with pytest.raises(Unsupported, match="stride must be 1"):
        gpu.conv_backward_data(dy, w, stride=2, input_size=14, algorithm=name)
    dy = exact((1, 1, 21), "float32")
    with pytest.raises(Unsupported, match="some of which meet nothing but padding of 7"):
        gpu.conv_backward_filter(x, dy, padding=7, filter_size=3, algorithm=name)


@pytest.mark.parametrize(
    ("shape", "math", "chosen"),
    [
        ((32, 128, 56, 56), "winograd(4,3)", "winograd_nonfused"),
        ((32, 128, 56, 56), "winograd(2,3)", "winograd"),
        ((32, 3, 56, 56), "winograd(4,3)", "implicit_gemm"),
        ((1, 8, 8, 8), "winograd(2,3)", "implicit_gemm"),
    ],
)
def test_auto_chooses_it_where_it_saves_operations_and_its_errors_are_allowed(
    shape: Shape, math: str, chosen: str
) -> None:
    zero, offered = np.zeros((1, 1, 1, 1), np.float32), conv.conv_forward
    x, w = (np.broadcast_to(zero, s) for s in (shape, (128, shape[1], 3, 3)))
    plan = offered._plan(offered.layouts(x, w))
    assert offered._choose(plan, "auto", math).name == chosen
    assert offered._choose(plan, "auto", "ieee").numerics is None
