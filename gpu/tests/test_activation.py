"""Activations of the GPU library against formulas in NumPy, at their edges, in layouts, under the checks."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from dnncanon import gpu, spec
from dnncanon.gpu.kernels.activation import COMMON, functions
from dnncanon.gpu.runtime import to_device
from dnncanon.spec.activation import FROM_OUTPUT, NAMES, SELU_ALPHA, SELU_SCALE

Array = np.ndarray[Any, Any]
X = np.arange(-6.03, 6.0, 0.1)
PARAMETERS: dict[str, Any] = {"ceiling": 2.5, "negative_slope": 0.25, "alpha": 1.75, "beta": 1.25}

# By textbook formulas, which are accurate enough in float64 for X.
EXPECTED: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "clipped_relu": lambda x: np.clip(x, 0, 2.5),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.25 * x),
    "elu": lambda x: np.where(x > 0, x, 1.75 * np.expm1(x)),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "swish": lambda x: x * special.expit(1.25 * x),
    "softplus": lambda x: np.log1p(np.exp(1.25 * x)) / 1.25,
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
}


def test_the_tables_have_the_modes_of_the_specification() -> None:
    for dtype in ("float32", "float64"):
        tables = functions(dtype).tables
        clipping_nan = {"relu_of_numbers", "clipped_relu_of_numbers"}
        assert set(tables["forward"]) - clipping_nan == set(tables["backward"]) == set(NAMES)
        assert set(tables["backward_from_output"]) == set(FROM_OUTPUT)
    assert set(COMMON) < set(NAMES)


@pytest.mark.parametrize("mode", NAMES)
def test_values(mode: str) -> None:
    y = gpu.activation_forward(X, mode=mode, **PARAMETERS)
    np.testing.assert_allclose(y, EXPECTED[mode](X), rtol=1e-12, atol=1e-14)
    y = gpu.activation_forward(X.astype(np.float32), mode=mode, **PARAMETERS)
    np.testing.assert_allclose(y, EXPECTED[mode](X), rtol=3e-5, atol=1e-7)


@pytest.mark.parametrize("mode", NAMES)
def test_slopes(mode: str) -> None:
    h, dy = 1e-6, np.linspace(1, 2, X.size)
    expected = dy * (EXPECTED[mode](X + h) - EXPECTED[mode](X - h)) / (2 * h)
    dx = gpu.activation_backward(dy, X, mode=mode, **PARAMETERS)
    np.testing.assert_allclose(dx, expected, rtol=1e-6, atol=1e-8)
    if mode in FROM_OUTPUT:
        y = EXPECTED[mode](X)
        dx = gpu.activation_backward(dy, y, mode=mode, from_output=True, **PARAMETERS)
        np.testing.assert_allclose(dx, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("mode", "x", "slopes"),
    [
        ("relu", [0, -0.0], [0, 0]),
        ("clipped_relu", [0, 2.5], [0, 0]),
        ("leaky_relu", [0], [0.25]),
        ("elu", [0], [1.75]),
        ("hard_sigmoid", [-3, 3], [0, 0]),
        ("hard_swish", [-3, 3], [0, 1]),
        ("hard_tanh", [-1, 1], [0, 0]),
    ],
)
def test_slopes_at_kinks(mode: str, x: list[float], slopes: list[float]) -> None:
    at = np.array(x, np.float32)
    assert gpu.activation_backward(np.ones_like(at), at, mode=mode, **PARAMETERS).tolist() == slopes


@pytest.mark.parametrize("mode", NAMES)
def test_infinities_and_the_largest_numbers_give_no_nan(mode: str) -> None:
    for dtype in (np.float64, np.float32, np.float16):
        x = np.array([-np.inf, np.finfo(dtype).min, np.finfo(dtype).max, np.inf], dtype)
        assert not np.isnan(gpu.activation_forward(x, mode=mode, beta=3.0)).any()
        assert not np.isnan(gpu.activation_backward(np.ones_like(x), x, mode=mode, beta=3.0)).any()


@pytest.mark.parametrize("mode", NAMES)
def test_nan_spreads_unless_it_is_clipped(mode: str) -> None:
    x = np.array([np.nan, -1.0, 2.0], np.float32)
    assert np.isnan(gpu.activation_forward(x, mode=mode)[0])
    if mode in ("relu", "clipped_relu"):
        assert gpu.activation_forward(x, mode=mode, propagate_nan=False).tolist() == [0, 0, 2]
        assert gpu.activation_backward(np.ones_like(x), x, mode=mode).tolist() == [0, 0, 1]


def test_a_slope_of_zero_hides_dy() -> None:
    dy = np.array([np.nan, np.inf], np.float32)
    for mode in ("relu", "clipped_relu", "hard_sigmoid", "hard_swish", "hard_tanh"):
        assert gpu.activation_backward(dy, np.full_like(dy, -5), mode=mode).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types_are_computed_in_float32_and_rounded_once(dtype: Any) -> None:
    x = X.astype(dtype)
    wide = gpu.activation_forward(x.astype(np.float32), mode="gelu")
    np.testing.assert_array_equal(gpu.activation_forward(x, mode="gelu"), wide.astype(dtype))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1025])
def test_sizes_and_layouts(size: int) -> None:
    x = np.arange(-size, 2 * size, dtype=np.float32).reshape(3, size)
    for given in (x, x.T, x[:, ::2], np.broadcast_to(x[:1], (5, size)), x[::-1]):
        np.testing.assert_array_equal(
            gpu.activation_forward(given, mode="relu"), np.maximum(given, 0)
        )
    out = to_device(np.zeros((3, size + 5), np.float32))
    rows = gpu.runtime.as_strided(out, (3, size), (size + 5, 1))
    gpu.activation_forward(to_device(x), mode="relu", out=rows)
    np.testing.assert_array_equal(out.to_host()[:, :size], np.maximum(x, 0))
    assert (out.to_host()[:, size:] == 0).all()


def test_what_is_refused() -> None:
    with pytest.raises(spec.AttributeValueError, match="activation_backward C10"):
        gpu.activation_backward(X, X, mode="mish", from_output=True)


def test_nothing_is_read_or_written_out_of_place(monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu.runtime.has_gpu():
        pytest.skip("a GPU does not check")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = np.linspace(-3, 3, 3 * 37).reshape(3, 37)
    for mode in ("gelu", "mish"):
        for given in (x, x.T, x[:, ::3].astype(np.float16)):
            gpu.activation_backward(np.ones_like(given), given, mode=mode)
