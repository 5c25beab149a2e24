"""Convolution on tensor cores against the formula, bit for bit on data that is exact."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import conv_implicit_precomp_gemm
from dnncanon.gpu.runtime import to_device
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
NAME = "implicit_precomp_gemm"
IN_TF32 = (f"{NAME}_tf32", f"{NAME}_tf32x3")

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 16, 17), (24, 16, 5), {"padding": 2, "stride": 2, "dilation": 2}),
    "2d": ((2, 8, 9, 8), (24, 8, 3, 3), {"padding": 1}),
    "3d": ((1, 8, 4, 5, 6), (8, 8, 2, 3, 2), {"padding": (0, 1, 1), "stride": (1, 2, 1)}),
    "convolution mode": ((1, 8, 7, 6), (16, 8, 3, 2), {"padding": 1, "mode": "convolution"}),
    "dilation": ((1, 16, 9, 8), (8, 16, 3, 2), {"dilation": (2, 3), "stride": (1, 2)}),
    "odd channels": ((2, 5, 6, 7), (11, 5, 3, 3), {"padding": ((0, 2), (1, 0))}),
    "groups": ((2, 16, 6, 5), (16, 8, 3, 2), {"groups": 2, "padding": 1}),
    "odd groups": ((1, 6, 5, 5), (10, 3, 2, 2), {"groups": 2}),
    "more than a tile": ((1, 8, 13, 12), (72, 8, 1, 1), {}),
    "no batch": ((0, 8, 5, 5), (8, 8, 3, 3), {}),
}
each_case = pytest.mark.parametrize("case", CASES)
each_layout = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def laid_out(array: Array, layout: str) -> Array:
    if layout == "NCHW":
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def same(actual: Any, expected: Array) -> None:
    np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), expected)


@each_case
@each_layout
def test_all_directions(case: str, layout: str, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w, dy = (
        laid_out(exact(shape, "float16", seed), layout)
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


@each_layout
@pytest.mark.parametrize("name", IN_TF32)
def test_float32_as_tf32(name: str, layout: str, definition: SimpleNamespace, exact: Exact) -> None:
    """Small integers have the 11 bits of TF32; what has 22 only three products get right."""
    x_shape, w_shape, attributes = CASES["odd groups"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w, dy = (
        laid_out(exact(shape, "float32", seed), layout)
        for seed, shape in enumerate((x_shape, w_shape, problem.y_shape))
    )
    expected = definition.forward(problem, x, w)
    same(gpu.conv_forward(x, w, **attributes, algorithm=name), expected)
    size = {"input_size": problem.input_size}
    dx = gpu.conv_backward_data(dy, w, **attributes, **size, algorithm=name)
    same(dx, definition.backward_data(problem, dy, w))
    size = {"filter_size": problem.filter_size}
    dw = gpu.conv_backward_filter(x, dy, **attributes, **size, algorithm=name)
    same(dw, definition.backward_filter(problem, x, dy))
    finer = w * np.float32(1 + 2.0**-12)
    y = gpu.conv_forward(x, finer, **attributes, algorithm=name)
    three = name.endswith("x3")
    same(y, expected * (1 + 2.0**-12) if three else expected)


def test_tf32_is_for_those_who_ask(exact: Exact) -> None:
    x, w = exact((1, 16, 9, 9), "float32"), exact((32, 16, 3, 3), "float32")
    rows = {row.name: row for row in gpu.algorithms("conv_forward", x, w)}
    assert [rows[name].numerics for name in IN_TF32] == ["tf32", "tf32x3"]
    assert next(iter(rows.values())).numerics == "ieee"
    half = x.astype(np.float16), w.astype(np.float16)
    refused = {row.name: row.refusal for row in gpu.algorithms("conv_forward", *half)}
    assert all("float32 on tensor cores, not float16" in str(refused[name]) for name in IN_TF32)


@pytest.mark.parametrize("with_z", [False, True])
def test_bias_activation(with_z: bool, definition: SimpleNamespace, exact: Exact) -> None:
    x_shape, w_shape, attributes = CASES["groups"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w = exact(x_shape, "bfloat16", 1), exact(w_shape, "bfloat16", 2)
    bias, z = exact(w_shape[:1], "bfloat16", 3), exact(problem.y_shape, "bfloat16", 4)
    scale = {"activation": "relu", "alpha1": -0.5, "alpha2": 2.0}
    more = (bias, z) if with_z else (bias,)
    y = gpu.conv_bias_activation_forward(x, w, *more, **attributes, **scale, algorithm=NAME)
    expected = -0.5 * definition.forward(problem, x, w) + bias.reshape(-1, 1, 1)
    if with_z:
        expected = expected + 2.0 * z.astype(np.float64)
    same(y, np.maximum(expected, 0).astype(bias.dtype).astype(np.float64))


@each_layout
def test_split_depth(layout: str, definition: SimpleNamespace, exact: Exact) -> None:
    x, w = exact((1, 64, 5, 5), "float16", 1), exact((10, 64, 4, 4), "float16", 2)
    x, w = laid_out(x, layout), laid_out(w, layout)
    rows = {row.name: row for row in gpu.algorithms("conv_forward", x, w)}
    copies = 0 if layout == "NHWC" else 2 * (x.size + w.size)
    assert rows[NAME].workspace_bytes >= copies + 2 * 10 * 4 * 4
    assert (rows[NAME].workspace_bytes < 2 * (x.size + w.size)) == (layout == "NHWC")
    expected = definition.forward(definition.problem(x.shape, w.shape), x, w)
    same(gpu.conv_forward(x, w, algorithm=NAME), expected)


def test_the_large_tile(
    monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    large = conv_implicit_precomp_gemm.LARGE
    monkeypatch.setattr(conv_implicit_precomp_gemm, "tile_for", lambda part, itemsize: large)
    x_shape, w_shape = (1, 40, 12, 13), (136, 40, 3, 3)
    x, w = exact(x_shape, "float16", 1), exact(w_shape, "float16", 2)
    expected = definition.forward(definition.problem(x_shape, w_shape, padding=1), x, w)
    same(gpu.conv_forward(x, w, padding=1, algorithm=NAME), expected)


def test_channels_side_by_side_need_no_workspace(exact: Exact) -> None:
    x, w = exact((1, 16, 9, 9), "float16"), exact((32, 16, 3, 3), "float16")
    dense = {row.name: row for row in gpu.algorithms("conv_forward", x, w)}
    last = [laid_out(array, "NHWC") for array in (x, w)]
    rows = {row.name: row for row in gpu.algorithms("conv_forward", *last)}
    assert rows[NAME].workspace_bytes == 0
    assert rows[NAME].deterministic
    assert dense[NAME].workspace_bytes >= 2 * (x.size + w.size)
    assert next(iter(rows)) == NAME


def test_it_is_clean_in_check_mode(
    monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, w = exact((1, 5, 6, 5), "float16", 1), exact((3, 5, 3, 3), "float16", 2)
    y = gpu.conv_forward(to_device(x), to_device(w), padding=1, algorithm=NAME)
    problem = definition.problem(x.shape, w.shape, padding=1)
    same(y.to_host(), definition.forward(problem, x, w))


def test_it_is_for_16_bits_only(exact: Exact) -> None:
    x, w = exact((1, 8, 5, 5), "float32"), exact((8, 8, 3, 3), "float32")
    (row,) = (row for row in gpu.algorithms("conv_forward", x, w) if row.name == NAME)
    assert row.refusal is not None
    assert not row.applicable
    with pytest.raises(Unsupported, match="float16 and bfloat16 on tensor cores"):
        gpu.conv_forward(x, w, algorithm=NAME)
