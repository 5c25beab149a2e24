"""Convolution by explicit columns and a product of matrices, bit for bit on data that is exact."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import conv_gemm

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
NAME = "gemm"

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 17), (4, 3, 5), {"padding": 2, "stride": 2, "dilation": 2}),
    "2d": ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": ((0, 2), (1, 0))}),
    "3d": ((2, 4, 4, 5, 6), (6, 2, 2, 3, 2), {"padding": (0, 1, 1), "groups": 2}),
    "convolution mode": ((1, 2, 7, 6), (3, 2, 3, 2), {"padding": 1, "mode": "convolution"}),
    "depthwise": ((2, 5, 8, 7), (10, 1, 3, 3), {"groups": 5, "padding": 1, "stride": 2}),
    "no batch": ((0, 2, 5, 5), (3, 2, 3, 3), {}),
    "no input channels": ((2, 0, 5, 5), (3, 0, 3, 3), {}),
    "no input positions": ((2, 2, 0, 3), (3, 2, 2, 2), {"padding": 1}),
}
each_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def laid_out(array: Array, layout: str) -> Array:
    if layout == "NCHW":
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def same(actual: Any, expected: Array) -> None:
    np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), expected)


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
    dw = gpu.conv_backward_filter(x, dy, **attributes, **size, algorithm=NAME)
    same(dw, definition.backward_filter(problem, x, dy))


def test_one_image_at_a_time(
    monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    """Large columns are made in parts of the batch, which the workspace says."""
    x, w = exact((3, 4, 6, 5), "float32", 1), exact((8, 4, 3, 3), "float32", 2)
    bias, z = exact((8,), "float32", 3), exact((3, 8, 6, 5), "float32", 4)
    operands: dict[str, Any] = {"padding": 1, "alpha2": 2.0, "activation": "identity"}

    def workspace() -> int:
        rows = gpu.algorithms("conv_bias_activation_forward", x, w, bias, z, **operands)
        return next(row for row in rows if row.name == NAME).workspace_bytes

    columns = 6 * 5 * 4 * 9 * 4
    assert workspace() == 3 * columns
    monkeypatch.setattr(conv_gemm, "COLUMNS", columns)
    assert workspace() == columns
    y = gpu.conv_bias_activation_forward(x, w, bias, z, **operands, algorithm=NAME)
    problem = definition.problem(x.shape, w.shape, padding=1)
    same(y, definition.forward(problem, x, w) + bias.reshape(-1, 1, 1) + 2.0 * z)
