"""Convolution with one tap as a product of matrices, bit for bit on data that is exact."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
NAME = "pointwise_1x1"

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 5, 6), (7, 5, 1), {}),
    "2d": ((2, 16, 8, 6), (24, 16, 1, 1), {}),
    "3d": ((2, 8, 3, 4, 2), (8, 8, 1, 1, 1), {"stride": (1, 2, 1)}),
    "stride": ((2, 8, 9, 7), (16, 8, 1, 1), {"stride": (2, 3)}),
    "groups": ((3, 6, 4, 5), (10, 3, 1, 1), {"groups": 2}),
    "groups and stride": ((1, 6, 5, 6), (4, 3, 1, 1), {"groups": 2, "stride": 2}),
    "no batch": ((0, 8, 5, 5), (8, 8, 1, 1), {}),
    "no input channels": ((2, 0, 5, 5), (3, 0, 1, 1), {}),
}
each_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def laid_out(array: Array, layout: str) -> Array:
    if layout == "NCHW":
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def same(actual: Any, expected: Array) -> None:
    np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), expected)


def row_of(primitive: str, *tensors: Array, **attributes: Any) -> Any:
    rows = gpu.algorithms(primitive, *tensors, **attributes)
    return next(row for row in rows if row.name == NAME)


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "float32") for case in CASES), ("2d", "float16")]
)
@each_layout
def test_all_directions(
    case: str, dtype: str, layout: str, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w, dy = (
        laid_out(exact(shape, dtype, seed), layout)
        for seed, shape in enumerate((x_shape, w_shape, problem.y_shape))
    )
    y = gpu.conv_forward(x, w, **attributes, algorithm=NAME)
    same(y, definition.forward(problem, x, w))
    size = {"input_size": problem.input_size}
    dx = gpu.conv_backward_data(dy, w, **attributes, **size, algorithm=NAME)
    same(dx, definition.backward_data(problem, dy, w))
    size = {"filter_size": problem.filter_size}
    if row_of("conv_backward_filter", x, dy, **attributes, **size).applicable:
        dw = gpu.conv_backward_filter(x, dy, **attributes, **size, algorithm=NAME)
        same(dw, definition.backward_filter(problem, x, dy))


@each_layout
@pytest.mark.parametrize("z_layout", [None, "NCHW", "NHWC"])
def test_bias_activation(
    layout: str, z_layout: str | None, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES["groups"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w = exact(x_shape, "float32", 1), exact(w_shape, "float32", 2)
    bias, z = exact(w_shape[:1], "float32", 3), exact(problem.y_shape, "float32", 4)
    more = (bias, laid_out(z, z_layout)) if z_layout else (bias,)
    scale = {"activation": "relu", "alpha1": -0.5, "alpha2": 2.0}
    operands = laid_out(x, layout), w, *more
    y = gpu.conv_bias_activation_forward(*operands, **attributes, **scale, algorithm=NAME)
    expected = -0.5 * definition.forward(problem, x, w) + bias.reshape(-1, 1, 1)
    same(y, np.maximum(expected + 2.0 * z if z_layout else expected, 0))


def test_pieces_of_the_depth_are_split(definition: SimpleNamespace, exact: Exact) -> None:
    """Images are pieces of the gradient's depth, which the workspace says; NHWC has one piece."""
    x, dy = exact((5, 8, 6, 4), "float16", 1), exact((5, 16, 6, 4), "float16", 2)
    problem = definition.problem(x.shape, (16, 8, 1, 1))
    assert row_of("conv_backward_filter", x, dy, filter_size=1).workspace_bytes == 5 * 16 * 8 * 4
    last = [laid_out(array, "NHWC") for array in (x, dy)]
    assert row_of("conv_backward_filter", *last, filter_size=1).workspace_bytes == 0
    dw = gpu.conv_backward_filter(x, dy, filter_size=1, algorithm=NAME)
    same(dw, definition.backward_filter(problem, x, dy))


def test_a_filter_that_fills_the_input(definition: SimpleNamespace, exact: Exact) -> None:
    x, w = exact((3, 4, 3, 2), "float32", 1), exact((5, 4, 3, 2), "float32", 2)
    y = gpu.conv_forward(x, w, algorithm=NAME)
    same(y, definition.forward(definition.problem(x.shape, w.shape), x, w))


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes", "reason"),
    [
        ((1, 2, 5), (3, 2, 2), {}, "one tap or one position in each dim"),
        ((1, 2, 5), (3, 2, 1), {"padding": 1}, "reads no padding"),
        ((2, 4, 5, 5, 5), (4, 2, 1, 1, 1), {"groups": 2, "stride": 2}, "not 4 that strides keep"),
    ],
)
def test_what_is_no_product_is_refused(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    reason: str,
    exact: Exact,
) -> None:
    x, w = exact(x_shape, "float32"), exact(w_shape, "float32")
    with pytest.raises(Unsupported, match=reason):
        gpu.conv_forward(x, w, **attributes, algorithm=NAME)


def test_auto_prefers_it_where_tiles_are_filled(exact: Exact) -> None:
    x, w = exact((1, 64, 16, 16), "float16"), exact((64, 64, 1, 1), "float16")
    assert gpu.algorithms("conv_forward", x, w)[0].name == NAME
    assert gpu.algorithms("conv_forward", x[..., 1:], w)[0].name != NAME
    assert gpu.algorithms("conv_forward", x[..., :2, :2], w)[0].name != NAME
