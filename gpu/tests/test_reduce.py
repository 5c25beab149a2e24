"""Reductions of the GPU library against NumPy and SciPy: axes, layouts, dtypes, special values, long sets."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from dnncanon import gpu
from dnncanon.gpu.kernels.reduce import EXTREMA
from dnncanon.gpu.runtime import to_device
from dnncanon.spec.reduce import NAMES

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf

# Of float64 data [sets, n].
VALUES: dict[str, Callable[[Array], Array]] = {
    "add": lambda x: x.sum(1),
    "mul": lambda x: x.prod(1),
    "min": lambda x: x.min(1),
    "max": lambda x: x.max(1),
    "amax": lambda x: np.abs(x).max(1),
    "avg": lambda x: x.mean(1),
    "norm1": lambda x: np.abs(x).sum(1),
    "norm2": lambda x: np.sqrt((x * x).sum(1)),
    "mul_no_zeros": lambda x: np.where(x == 0, 1, x).prod(1),
    "logsumexp": lambda x: special.logsumexp(x, axis=1),
}


def random(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def slopes(op: str, x: Array) -> Array:
    """dy/dx of float64 data [sets, n], by central differences."""
    result, h = np.zeros_like(x), 1e-6
    for i in range(x.shape[1]):
        step = np.zeros_like(x)
        step[:, i] = h
        result[:, i] = (VALUES[op](x + step) - VALUES[op](x - step)) / (2 * h)
    return result


def test_every_reduction_is_tested() -> None:
    assert set(VALUES) == set(NAMES)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", NAMES)
@pytest.mark.parametrize("axes", [(1,), (0, 2)])
def test_values(op: str, axes: tuple[int, ...]) -> None:
    x = random(3, 4, 5)
    order = [d for d in range(3) if d not in axes] + list(axes)
    kept = [x.shape[d] for d in range(3) if d not in axes]
    rows = x.astype(float).transpose(order).reshape(int(np.prod(kept)), -1)
    y = gpu.reduce_forward(x, op=op, axes=axes)
    np.testing.assert_allclose(y, VALUES[op](rows).reshape(kept), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["add", "amax", "mul", "norm2", "logsumexp"])
def test_long_sets_are_split(op: str) -> None:
    x = 1 + random(2, 9000) / 1000
    y = gpu.reduce_forward(x, op=op, axes=1)
    np.testing.assert_allclose(y, VALUES[op](x.astype(float)), rtol=1e-5)


@pytest.mark.parametrize("op", EXTREMA)
def test_the_first_extremum_is_named(op: str) -> None:
    x = np.array([[2, -3, 3, -3, 3], [0, INF, NAN, -INF, NAN]], np.float32)
    y, indices = gpu.reduce_forward(x, op=op, axes=1, return_indices=True)
    assert indices.tolist() == [{"max": 2, "min": 1, "amax": 1}[op], 2]
    assert y[0] == {"max": 3, "min": -3, "amax": 3}[op]
    assert np.isnan(y[1])


@pytest.mark.parametrize(
    ("op", "empty"),
    [
        ("add", 0),
        ("mul", 1),
        ("min", INF),
        ("max", -INF),
        ("amax", 0),
        ("avg", NAN),
        ("norm1", 0),
        ("norm2", 0),
        ("mul_no_zeros", 1),
        ("logsumexp", -INF),
    ],
)
def test_empty_sets(op: str, empty: float) -> None:
    y = gpu.reduce_forward(np.zeros((3, 0), np.float32), op=op, axes=1)
    np.testing.assert_array_equal(y, [empty] * 3)


def test_an_empty_set_has_no_index() -> None:
    x = np.zeros((2, 0), np.float32)
    assert gpu.reduce_forward(x, op="max", axes=1, return_indices=True).indices.tolist() == [-1, -1]


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30])
def test_norm2_neither_overflows_nor_underflows(scale: float) -> None:
    x = (np.array([3.0, 4.0, 0.0]) * scale).astype(np.float32)
    norm = np.sqrt(np.sum(np.square(x.astype(float))))
    assert gpu.reduce_forward(x, op="norm2") == pytest.approx(norm, rel=1e-6, abs=1.5e-45)
    dx = gpu.reduce_backward(np.ones((), np.float32), x, op="norm2")
    np.testing.assert_allclose(dx, x / norm, rtol=1e-6)


def test_norm2_of_magnitudes_that_meet() -> None:
    for sizes in ((1e20, 1.0), (1e20, 1e-20), (1e-20, 1.0), (1e-20, 1e-19), (2.0**52, 2.0**53)):
        x = np.array(sizes, np.float32)
        expected = np.float32(np.hypot(*x.astype(float)))
        assert gpu.reduce_forward(x, op="norm2") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integers_saturate_at_the_end(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.max, info.max, info.min], [info.min] * 3], dtype)
    ends = np.clip(x.astype(object).sum(axis=1), info.min, info.max)
    assert gpu.reduce_forward(x, op="add", axes=1).tolist() == ends.tolist()
    largest = [info.max, min(info.max, -int(info.min))]
    assert gpu.reduce_forward(x, op="amax", axes=1).tolist() == largest
    assert gpu.reduce_forward(x[:, :0], op="min", axes=1).tolist() == [info.max] * 2


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_sums_are_rounded_once(dtype: Any) -> None:
    x = random(4, 100, dtype=dtype)
    y = gpu.reduce_forward(x, op="add", axes=-1)
    assert y.dtype == dtype
    tolerance = {8: 1e-12, 2: 2.0**-8}[y.itemsize]
    np.testing.assert_allclose(y.astype(float), x.astype(float).sum(1), rtol=tolerance, atol=1e-5)


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", NAMES)
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients(op: str, keepdims: bool) -> None:
    x, dy = random(3, 7), random(3, 1)
    dx = gpu.reduce_backward(dy if keepdims else dy[:, 0], x, op=op, axes=1, keepdims=keepdims)
    expected = dy * slopes(op, x.astype(float))
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_long_sets() -> None:
    x, dy = random(2, 9000), random(2)
    dx = gpu.reduce_backward(dy, x, op="logsumexp", axes=1)
    np.testing.assert_allclose(dx, dy[:, None] * special.softmax(x.astype(float), 1), rtol=1e-5)
    dx = gpu.reduce_backward(dy, x, op="max", axes=1)
    assert [np.flatnonzero(row).tolist() for row in dx] == [[i] for i in x.argmax(1)]
    np.testing.assert_array_equal(dx.sum(1), dy)


def test_the_gradient_of_a_product_with_zeros() -> None:
    x = np.array([[2, 0, 3], [2, 0, 0]], np.float32)
    dy = np.full(2, 5, np.float32)
    dx = gpu.reduce_backward(dy, x, op="mul", axes=1)
    assert dx.tolist() == [[0, 30, 0], [0, 0, 0]]
    dx = gpu.reduce_backward(dy, x, op="mul_no_zeros", axes=1)
    assert dx.tolist() == [[15, 0, 10], [5, 0, 0]]


# --- Layouts, and the checks ----------------------------------------------------------------------


def test_layouts_do_not_matter() -> None:
    x = random(4, 6, 10)
    for view in (x[:, ::2], x.transpose(2, 0, 1), np.broadcast_to(x[:1], x.shape)):
        expected = view.astype(float).max(axis=(0, 2))
        np.testing.assert_array_equal(gpu.reduce_forward(view, op="max", axes=(0, 2)), expected)
        dx = gpu.reduce_backward(random(view.shape[1]), view, op="add", axes=(0, 2))
        np.testing.assert_array_equal(
            dx, np.broadcast_to(random(view.shape[1])[:, None], view.shape)
        )


@pytest.mark.parametrize("op", ["norm1", "max"])
def test_nothing_is_raced_for_or_read_uninitialised(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = to_device(random(2, 5000))
    y = gpu.reduce_forward(x, op=op, axes=1)
    gpu.reduce_backward(y, x, op=op, axes=1)


@pytest.mark.parametrize("op", ["add", "logsumexp"])
def test_two_runs_have_the_same_bits(op: str) -> None:
    x = random(3, 5000)
    first, second = (gpu.reduce_forward(x, op=op, axes=1).tobytes() for _ in range(2))
    assert first == second
