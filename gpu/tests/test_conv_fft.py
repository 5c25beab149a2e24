"""Convolution by Fourier transforms against the formula: small whole numbers, to be met far within a half."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu import conv
from dnncanon.gpu.kernels.conv_fft import Tiling
from dnncanon.gpu.runtime import to_device
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 17, 17), (4, 17, 5), {"padding": 2}),
    "tiles": ((1, 2, 700), (3, 2, 40), {"padding": 2, "mode": "convolution"}),
    "tiles and pieces": ((2, 1, 700), (1, 1, 320), {"padding": (5,)}),
    "stride": ((1, 4, 60), (2, 4, 3), {"stride": 3, "padding": 1}),
    "dilation": ((1, 2, 9, 30), (3, 2, 3, 2), {"dilation": (2, 9), "stride": (1, 2)}),
    "groups": ((2, 6, 8, 5), (36, 3, 3, 2), {"groups": 2, "padding": ((0, 2), (1, 0))}),
    "tiles of 2d": ((1, 2, 50, 70), (2, 1, 3, 20), {"groups": 2, "padding": 1}),
    "tiles of 3d": (
        (1, 1, 20, 5, 18),
        (2, 1, 2, 3, 2),
        {"padding": (0, 1, 1), "stride": (1, 2, 1)},
    ),
    "two outer dims": ((1, 1, 3, 66, 66), (1, 1, 2, 3, 1), {}),
    "no batch": ((0, 3, 5, 5), (2, 3, 3, 3), {}),
    "no input": ((1, 2, 0), (1, 2, 1), {"padding": 2}),
}
each_case = pytest.mark.parametrize("case", CASES)
each_algorithm = pytest.mark.parametrize("name", ["fft", "fft_tiling"])


def near(actual: Any, expected: Array) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max(initial=0.0) < 1e-6 * np.abs(expected).max(initial=1.0)


def channels_last(array: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@each_case
@each_algorithm
def test_all_directions(case: str, name: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    shapes = (x_shape, w_shape, problem.y_shape)
    x, w, dy = (exact(shape, "float32", seed) for seed, shape in enumerate(shapes))
    near(gpu.conv_forward(x, w, **attributes, algorithm=name), definition.forward(problem, x, w))
    dx = gpu.conv_backward_data(dy, w, **attributes, input_size=problem.input_size, algorithm=name)
    near(dx, definition.backward_data(problem, dy, w))
    dw = gpu.conv_backward_filter(
        x, dy, **attributes, filter_size=problem.filter_size, algorithm=name
    )
    near(dw, definition.backward_filter(problem, x, dy))


@pytest.mark.parametrize("case", ["tiles of 2d", "tiles of 3d"])
@each_algorithm
def test_float64(case: str, name: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES[case]
    x, w = exact(x_shape, "float64", 1), exact(w_shape, "float64", 2)
    y = gpu.conv_forward(x, w, **attributes, algorithm=name)
    expected = definition.forward(definition.problem(x_shape, w_shape, **attributes), x, w)
    assert np.abs(y - expected).max() < 1e-14 * np.abs(expected).max()


@each_algorithm
def test_the_layout_changes_no_bit(name: str, exact: Exact) -> None:
    x, w = exact((2, 5, 9, 7), "float32", 1), exact((3, 5, 3, 3), "float32", 2)
    y = gpu.conv_forward(x, w, algorithm=name)
    assert (gpu.conv_forward(channels_last(x), channels_last(w), algorithm=name) == y).all()


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


@pytest.mark.parametrize("case", ["tiles", "tiles and pieces", "tiles of 2d"])
def test_few_tiles_at_a_time_give_the_same_bits(
    case: str, monkeypatch: pytest.MonkeyPatch, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    x, w = exact(x_shape, "float32", 1), exact(w_shape, "float32", 2)
    call = {**attributes, "algorithm": "fft_tiling"}
    at_once, most = gpu.conv_forward(x, w, **call), workspace("fft_tiling", x, w, **attributes)
    monkeypatch.setattr(Tiling, "room", 2048)
    assert (gpu.conv_forward(x, w, **call) == at_once).all()
    assert workspace("fft_tiling", x, w, **attributes) < most


def workspace(name: str, *tensors: Array, **attributes: Any) -> int:
    rows = gpu.algorithms("conv_forward", *tensors, **attributes)
    return next(row.workspace_bytes for row in rows if row.name == name)


def test_the_workspace_of_tiles_does_not_grow_with_the_image() -> None:
    pixel, w = np.zeros((1, 1, 1, 1), np.float32), np.zeros((8, 8, 5, 5), np.float32)
    images = [np.broadcast_to(pixel, (32, 8, size, size)) for size in (500, 1000, 1500)]
    small, middle, large = (workspace("fft_tiling", image, w) for image in images)
    assert small == middle == large < 2**28
    assert workspace("fft", images[2], w) > 32 * workspace("fft", images[0][:1], w)


def test_the_workspace_is_spectra_and_a_table() -> None:
    x, w = np.zeros((2, 3, 30, 14), np.float32), np.zeros((5, 3, 3, 3), np.float32)
    spectrum, images, angles = 2 * 32 * (16 // 2 + 1), 2 * 3 + 5 * 3 + 2 * 5, 32
    assert workspace("fft", x, w) == 4 * (spectrum * images + 2 * angles)


@each_algorithm
def test_it_is_clean_in_check_mode(
    name: str, monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, w = exact((1, 2, 40, 9), "float32", 1), exact((3, 2, 3, 3), "float32", 2)
    y = gpu.conv_forward(to_device(x), to_device(w), padding=1, algorithm=name)
    near(y.to_host(), definition.forward(definition.problem(x.shape, w.shape, padding=1), x, w))


def test_what_it_refuses(exact: Exact) -> None:
    x, w = exact((1, 1, 5000), "float32"), exact((1, 1, 3), "float32")
    with pytest.raises(Unsupported, match=r'1 x 1 x 8192; algorithm="fft_tiling" cuts them'):
        gpu.conv_forward(x, w, algorithm="fft")
    half = [array.astype(np.float16) for array in (x, w)]
    for name in ("fft", "fft_tiling"):
        with pytest.raises(Unsupported, match="transforms float32 and float64, not float16"):
            gpu.conv_forward(*half, algorithm=name)


@pytest.mark.parametrize(
    ("x_shape", "taps", "chosen"),
    [
        ((32, 128, 64, 64), 3, None),
        ((32, 128, 28, 28), 9, "fft"),
        ((32, 128, 256, 256), 9, "fft_tiling"),
        ((1, 1, 64, 64), 9, None),
    ],
)
def test_auto_chooses_it_where_it_saves_operations_and_its_errors_are_allowed(
    x_shape: tuple[int, ...], taps: int, chosen: str | None
) -> None:
    zero, channels, offered = np.zeros((1, 1, 1, 1), np.float32), x_shape[1], conv.conv_forward
    x, w = (np.broadcast_to(zero, shape) for shape in (x_shape, (channels, channels, taps, taps)))
    plan = offered._plan(offered.layouts(x, w))
    directly = offered._choose(plan, "auto", "ieee")
    assert directly.numerics is None
    assert offered._choose(plan, "auto", "fft").name == (chosen or directly.name)
