"""Depthwise convolution by tiles in shared memory, bit for bit on data that is exact."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import depthwise_tiles
from dnncanon.gpu.profiling import profile
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
NAME = "depthwise"

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 17), (3, 1, 5), {"padding": 2, "stride": 2, "dilation": 2}),
    "2d": ((2, 8, 9, 7), (8, 1, 3, 3), {"padding": 1}),
    "3d": ((1, 2, 5, 6, 7), (2, 1, 2, 3, 2), {"padding": (0, 1, 1), "stride": (1, 2, 1)}),
    "multiple": ((2, 4, 8, 7), (12, 1, 3, 2), {"padding": 1, "stride": 2}),
    "convolution mode": ((1, 3, 7, 6), (3, 1, 3, 2), {"padding": 1, "mode": "convolution"}),
    "fills its input": ((3, 8, 4, 4), (8, 1, 4, 4), {}),
    "no batch": ((0, 8, 5, 5), (8, 1, 3, 3), {}),
}
for x_shape, _, attributes in CASES.values():
    attributes["groups"] = x_shape[1]
each_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def laid_out(array: Array, layout: str) -> Array:
    if layout == "NCHW":
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def same(actual: Any, expected: Array) -> None:
    np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), expected)


def check(
    definition: SimpleNamespace, x: Array, w: Array, dy: Array, attributes: dict[str, Any]
) -> None:
    """All directions of a call."""
    problem = definition.problem(x.shape, w.shape, **attributes)
    y = gpu.conv_forward(x, w, **attributes, algorithm=NAME)
    same(y, definition.forward(problem, x, w))
    size = {"input_size": problem.input_size}
    dx = gpu.conv_backward_data(dy, w, **attributes, **size, algorithm=NAME)
    same(dx, definition.backward_data(problem, dy, w))
    size = {"filter_size": problem.filter_size}
    dw = gpu.conv_backward_filter(x, dy, **attributes, **size, algorithm=NAME)
    same(dw, definition.backward_filter(problem, x, dy))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@each_layout
def test_all_directions(
    case: str, dtype: str, layout: str, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    y_shape = definition.problem(x_shape, w_shape, **attributes).y_shape
    shapes = enumerate((x_shape, w_shape, y_shape))
    x, w, dy = (laid_out(exact(shape, dtype, seed), layout) for seed, shape in shapes)
    check(definition, x, w, dy, attributes)


@each_layout
@pytest.mark.parametrize("stride", [1, 2])
def test_many_tiles(
    layout: str,
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
    definition: SimpleNamespace,
    exact: Exact,
) -> None:
    """Tiles with little room: several along each dim and along the channels, the last ones smaller."""
    monkeypatch.setattr(depthwise_tiles, "ROOM", 4 * (512 + 220))
    x, w = exact((2, 12, 3, 13, 11), "float32", 1), exact((12, 1, 2, 3, 2), "float32", 2)
    attributes = {"padding": 1, "stride": stride, "groups": 12}
    dy = exact(definition.problem(x.shape, w.shape, **attributes).y_shape, "float32", 3)
    x, w, dy = (laid_out(array, layout) for array in (x, w, dy))
    check(definition, x, w, dy, attributes)


@each_layout
def test_bias_activation(layout: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES["2d"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w = exact(x_shape, "float32", 1), exact(w_shape, "float32", 2)
    bias, z = exact(w_shape[:1], "float32", 3), exact(problem.y_shape, "float32", 4)
    operands = laid_out(x, layout), w, bias, laid_out(z, "NHWC")
    scale = {"activation": "relu", "alpha1": -0.5, "alpha2": 2.0}
    y = gpu.conv_bias_activation_forward(*operands, **attributes, **scale, algorithm=NAME)
    expected = -0.5 * definition.forward(problem, x, w) + bias.reshape(-1, 1, 1) + 2.0 * z
    same(y, np.maximum(expected, 0))


def test_the_workspace_is_that_of_the_parts(exact: Exact) -> None:
    x, dy = exact((64, 8, 8, 8), "float32", 1), exact((64, 8, 8, 8), "float32", 2)
    rows = gpu.algorithms("conv_backward_filter", x, dy, padding=1, groups=8, filter_size=3)
    assert rows[0].name == NAME
    # Each part has read 16 elements for each of its 8·9 sums at least.
    assert rows[0].workspace_bytes == 64 * 64 // (16 * 9) * 8 * 9 * 4
    assert rows[0].deterministic


def test_it_is_for_one_channel_in_a_group(exact: Exact) -> None:
    x, w = exact((1, 4, 5), "float32"), exact((4, 2, 3), "float32")
    with pytest.raises(Unsupported, match="one input channel each, C = groups"):
        gpu.conv_forward(x, w, groups=2, algorithm=NAME)


@pytest.mark.parametrize(
    "primitive", ["conv_forward", "conv_backward_data", "conv_backward_filter"]
)
@each_layout
def test_it_reads_once_and_whole_sectors(
    primitive: str, layout: str, monkeypatch: pytest.MonkeyPatch, exact: Exact
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    x, w = laid_out(exact((1, 64, 28, 28), "float32"), layout), exact((64, 1, 3, 3), "float32")
    size = {"conv_backward_data": {"input_size": 28}, "conv_backward_filter": {"filter_size": 3}}
    second = x if primitive == "conv_backward_filter" else w
    more = size.get(primitive, {})
    counted = profile(primitive, x, second, padding=1, groups=64, algorithm=NAME, **more)
    assert counted.dram_over_least <= 1.1
    assert counted.bytes_over_least <= 1.25
    assert counted.sector_efficiency("load") >= 0.95
    assert counted.sector_efficiency("store") >= 0.95
