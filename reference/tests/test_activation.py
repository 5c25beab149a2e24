"""Activations on cases worked out by hand, against central differences, in their tails, and at their kinks."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference import activation as defined
from dnncanon.spec.activation import FROM_OUTPUT, MODES, NAMES

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
X = np.arange(-4.93, 5.0, 0.1)  # no kink is hit
each_mode = pytest.mark.parametrize("mode", NAMES)


def test_each_table_has_the_modes_of_the_specification() -> None:
    assert set(defined.FORWARD) == set(defined.BACKWARD) == set(MODES)
    assert set(defined.BACKWARD_FROM_OUTPUT) == set(FROM_OUTPUT)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "parameters", "x", "y"),
    [
        ("identity", {}, [-2, 0, 3], [-2, 0, 3]),
        ("relu", {}, [-2, 0, 3], [0, 0, 3]),
        ("clipped_relu", {}, [-2, 5, 7], [0, 5, 6]),
        ("clipped_relu", {"ceiling": 2.5}, [-2, 2, 3], [0, 2, 2.5]),
        ("leaky_relu", {"negative_slope": 0.25}, [-2, 0, 3], [-0.5, 0, 3]),
        ("elu", {}, [-np.log(2), 3], [-0.5, 3]),
        ("elu", {"alpha": 3.0}, [-np.log(2), 3], [-1.5, 3]),
        (
            "selu",
            {},
            [-np.log(2), 1],
            [-1.0507009873554805 * 1.6732632423543772 / 2, 1.0507009873554805],
        ),
        ("softplus", {}, [0, np.log(3)], [np.log(2), np.log(4)]),
        ("softplus", {"beta": 2.0}, [0, np.log(3)], [np.log(2) / 2, np.log(10) / 2]),
        ("sigmoid", {}, [0, np.log(3), -np.log(3)], [0.5, 0.75, 0.25]),
        ("swish", {}, [0, np.log(3)], [0, 0.75 * np.log(3)]),
        ("swish", {"beta": 2.0}, [np.log(3)], [0.9 * np.log(3)]),
        ("tanh", {}, [0, np.log(3)], [0, 0.8]),
        ("mish", {}, [0, np.log(2)], [0, 0.8 * np.log(2)]),
        ("hard_sigmoid", {}, [-3, 0, 1.5, 3, 4], [0, 0.5, 0.75, 1, 1]),
        ("hard_swish", {}, [-4, -3, 1.5, 3], [0, 0, 1.125, 3]),
        ("hard_tanh", {}, [-4, -0.5, 1, 3], [-1, -0.5, 1, 1]),
    ],
)
def test_values(mode: str, parameters: dict[str, Any], x: list[float], y: list[float]) -> None:
    assert ref.activation_forward(np.array(x, float), mode=mode, **parameters) == pytest.approx(y)


def test_gelu_is_x_times_the_normal_distribution() -> None:
    assert ref.activation_forward(X, mode="gelu") == pytest.approx(X * special.ndtr(X), rel=1e-13)


def test_gelu_tanh_is_hendrycks_and_gimpel_s_approximation() -> None:
    u = np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)
    expected = 0.5 * X * (1 + np.tanh(u))
    assert ref.activation_forward(X, mode="gelu_tanh") == pytest.approx(expected, abs=1e-14)
    assert expected == pytest.approx(X * special.ndtr(X), abs=1e-3)


# --- Gradients ------------------------------------------------------------------------------------

PARAMETERS: dict[str, Any] = {"ceiling": 2.5, "negative_slope": 0.25, "alpha": 1.75, "beta": 1.25}


@each_mode
def test_gradients_are_those_of_central_differences(mode: str) -> None:
    h = 1e-6
    low, high = (ref.activation_forward(X + s, mode=mode, **PARAMETERS) for s in (-h, h))
    dy = np.linspace(1, 2, X.size)
    dx = ref.activation_backward(dy, X, mode=mode, **PARAMETERS)
    assert dx == pytest.approx(dy * (high - low) / (2 * h), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("mode", FROM_OUTPUT)
def test_the_output_tells_the_same_gradient(mode: str) -> None:
    y = ref.activation_forward(X, mode=mode, **PARAMETERS)
    by_output = ref.activation_backward(X, y, mode=mode, from_output=True, **PARAMETERS)
    by_input = ref.activation_backward(X, X, mode=mode, **PARAMETERS)
    assert by_output == pytest.approx(by_input, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("mode", "x", "slopes"),
    [
        ("relu", [0, -0.0], [0, 0]),
        ("clipped_relu", [0, 2.5], [0, 0]),
        ("leaky_relu", [0], [0.25]),
        ("elu", [0], [1.75]),
        ("selu", [0], [1.0507009873554805 * 1.6732632423543772]),
        ("hard_sigmoid", [-3, 3], [0, 0]),
        ("hard_swish", [-3, 3], [0, 1]),
        ("hard_tanh", [-1, 1], [0, 0]),
    ],
)
def test_slopes_at_kinks(mode: str, x: list[float], slopes: list[float]) -> None:
    dx = ref.activation_backward(np.ones(len(x)), np.array(x, float), mode=mode, **PARAMETERS)
    assert dx == pytest.approx(slopes)


def test_a_slope_of_zero_hides_dy() -> None:
    dy = np.array([NAN, INF, -INF])
    for mode in ("relu", "clipped_relu", "hard_sigmoid", "hard_swish", "hard_tanh"):
        assert ref.activation_backward(dy, np.full(3, -5.0), mode=mode).tolist() == [0, 0, 0]


# --- Tails and special values ---------------------------------------------------------------------

TAIL = np.array([-700.0, -300, -100, -30, -20, -10])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sigmoid", np.exp(TAIL) / (1 + np.exp(TAIL))),
        ("softplus", np.log1p(np.exp(TAIL))),
        ("swish", TAIL * np.exp(TAIL) / (1 + np.exp(TAIL))),
        ("mish", TAIL * np.tanh(np.log1p(np.exp(TAIL)))),
        ("elu", np.expm1(TAIL)),
        ("gelu", TAIL * special.ndtr(TAIL)),
    ],
)
def test_small_values_keep_their_relative_accuracy(mode: str, expected: Array) -> None:
    assert ref.activation_forward(TAIL, mode=mode) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sigmoid", np.exp(TAIL)),
        ("tanh", 4 * np.exp(2 * TAIL)),
        ("softplus", np.exp(TAIL)),
        ("swish", (1 + TAIL) * np.exp(TAIL)),
        ("elu", np.exp(TAIL)),
    ],
)
def test_small_slopes_keep_their_relative_accuracy(mode: str, expected: Array) -> None:
    """Up to e^−10 beside 1."""
    slopes = ref.activation_backward(np.ones_like(TAIL), TAIL, mode=mode)
    assert slopes == pytest.approx(expected, rel=3e-4, abs=0)


@each_mode
def test_the_largest_numbers_give_finite_results(mode: str) -> None:
    for dtype in (np.float64, np.float32, np.float16):
        x = np.array([np.finfo(dtype).min, np.finfo(dtype).max])
        for beta in (0.25, 1.0, 3.0):
            y = ref.activation_forward(x, mode=mode, beta=beta)
            slopes = ref.activation_backward(np.ones_like(x), x, mode=mode, beta=beta)
            assert np.isfinite(slopes).all()
            assert np.isfinite(y[0])
            assert np.isfinite(y[1]) or mode == "selu"


LIMITS = {
    **dict.fromkeys(("identity",), ((-INF, INF), (1, 1))),
    **dict.fromkeys(("relu", "gelu", "gelu_tanh", "swish", "softplus", "mish"), ((0, INF), (0, 1))),
    "hard_swish": ((0, INF), (0, 1)),
    "clipped_relu": ((0, 6), (0, 0)),
    "leaky_relu": ((-INF, INF), (0.01, 1)),
    "elu": ((-1, INF), (0, 1)),
    "selu": ((-1.7580993408473768, INF), (0, 1.0507009873554805)),
    "sigmoid": ((0, 1), (0, 0)),
    "tanh": ((-1, 1), (0, 0)),
    "hard_sigmoid": ((0, 1), (0, 0)),
    "hard_tanh": ((-1, 1), (0, 0)),
}


@each_mode
def test_infinite_arguments_give_limits(mode: str) -> None:
    values, slopes = LIMITS[mode]
    x = np.array([-INF, INF])
    assert ref.activation_forward(x, mode=mode) == pytest.approx(values)
    assert ref.activation_backward(np.ones(2), x, mode=mode) == pytest.approx(slopes)


@each_mode
def test_nan_spreads(mode: str) -> None:
    assert np.isnan(ref.activation_forward(np.array([NAN]), mode=mode)).all()
    assert np.isnan(ref.activation_backward(np.array([NAN]), np.array([0.5]), mode=mode)).all()


@pytest.mark.parametrize("mode", ["relu", "clipped_relu"])
def test_nan_is_clipped_where_it_is_not_to_spread(mode: str) -> None:
    x = np.array([NAN, -1, 2])
    assert ref.activation_forward(x, mode=mode, propagate_nan=False).tolist() == [0, 0, 2]


@pytest.mark.parametrize("mode", ["relu", "clipped_relu", "hard_sigmoid", "hard_tanh"])
def test_comparisons_with_nan_choose_the_slope_zero(mode: str) -> None:
    assert ref.activation_backward(np.ones(1), np.array([NAN]), mode=mode).tolist() == [0]


# --- Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [row.dtype for row in spec.activation_forward.dtypes])
@each_mode
def test_results_are_those_of_float64_rounded_once(mode: str, dtype: str) -> None:
    x = X.astype(spec.DTYPES[dtype].numpy)
    y = ref.activation_forward(x, mode=mode)
    assert y.dtype == x.dtype
    exact = ref.activation_forward(x.astype(np.float64), mode=mode)
    assert np.array_equal(
        y, exact.astype(np.float32).astype(x.dtype) if dtype != "float64" else exact
    )


def test_any_rank_and_layout() -> None:
    x = np.arange(-12.0, 12).reshape(2, 3, 4).transpose(2, 0, 1)
    y = ref.activation_forward(x, mode="relu")
    assert np.array_equal(y, np.maximum(x, 0))
    assert ref.activation_forward(np.zeros((0, 3)), mode="gelu").shape == (0, 3)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"mode": "gelu", "from_output": True},
            "C10: from_output=True with mode='gelu'; pass the input",
        ),
        (
            {"mode": "elu", "alpha": -1.0, "from_output": True},
            "C11: alpha=-1.0 makes outputs of both signs positive; pass alpha >= 0",
        ),
        ({"mode": "relu", "ceiling": 0}, "C4: ceiling=0; pass a number > 0"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(spec.AttributeValueError) as caught:
        ref.activation_backward(np.ones(3), np.ones(3), **attributes)
    assert message in str(caught.value)


def test_nan_cannot_be_clipped_by_tanh() -> None:
    with pytest.raises(spec.AttributeValueError, match="C8: propagate_nan=False, but mode='tanh'"):
        ref.activation_forward(np.ones(3), mode="tanh", propagate_nan=False)


TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("relu", {}),
    "clipped_relu": ("relu6", {}),
    "leaky_relu": ("leaky_relu", {"negative_slope": 0.01}),
    "elu": ("elu", {}),
    "selu": ("selu", {}),
    "gelu": ("gelu", {}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "swish": ("silu", {}),
    "softplus": ("softplus", {"threshold": 100}),
    "sigmoid": ("sigmoid", {}),
    "tanh": ("tanh", {}),
    "mish": ("mish", {}),
    "hard_swish": ("hardswish", {}),
    "hard_tanh": ("hardtanh", {}),
}


@pytest.mark.parametrize("mode", TORCH)
def test_torch_computes_the_same(mode: str) -> None:
    torch = pytest.importorskip("torch")
    name, options = TORCH[mode]
    x = torch.tensor(X, requires_grad=True)
    y = getattr(torch.nn.functional, name)(x, **options)
    y.backward(torch.ones_like(y))
    assert ref.activation_forward(X, mode=mode) == pytest.approx(y.detach().numpy(), abs=1e-13)
    dx = ref.activation_backward(np.ones_like(X), X, mode=mode)
    assert dx == pytest.approx(x.grad.numpy(), abs=1e-13)
