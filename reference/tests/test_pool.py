"""Pooling on cases worked out by hand, by finite differences, on special values, and against PyTorch."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def signal(*values: float) -> Array:
    """A batch of one with one channel over one spatial dim."""
    return np.array([[values]], dtype=np.float64)


def image(*rows: list[float]) -> Array:
    """A batch of one with one channel over two spatial dims."""
    return np.array([[rows]], dtype=np.float64)


def random(*shape: int) -> Array:
    return np.random.default_rng(7).normal(size=shape)


X = signal(3, 1, 4, 1, 5)

# Attributes, maxima and their indices, averages without and with padding counted; of X.
WINDOWS: list[tuple[dict[str, Any], list[float], list[int], list[float], list[float]]] = [
    ({"window": 2}, [3, 4], [0, 2], [2, 2.5], [2, 2.5]),
    ({"window": 2, "stride": 1}, [3, 4, 4, 5], [0, 2, 2, 4], [2, 2.5, 2.5, 3], [2, 2.5, 2.5, 3]),
    ({"window": 3, "stride": 2}, [4, 5], [2, 4], [8 / 3, 10 / 3], [8 / 3, 10 / 3]),
    ({"window": 2, "stride": 3}, [3, 5], [0, 4], [2, 3], [2, 3]),
    ({"window": 2, "padding": 1}, [3, 4, 5], [0, 2, 4], [3, 2.5, 3], [1.5, 2.5, 3]),
    ({"window": 2, "padding": ((0, 2),)}, [3, 4, 5], [0, 2, 4], [2, 2.5, 5], [2, 2.5, 2.5]),
    (
        {"window": 2, "padding": ((3, 0),)},
        [-INF, 3, 4, 5],
        [-1, 0, 2, 4],
        [0, 3, 2.5, 3],
        [0, 1.5, 2.5, 3],
    ),
    ({"window": 2, "stride": 1, "dilation": 3}, [3, 5], [0, 4], [2, 3], [2, 3]),
    (
        {"window": 2, "stride": 2, "padding": "same"},
        [3, 4, 5],
        [0, 2, 4],
        [2, 2.5, 5],
        [2, 2.5, 2.5],
    ),
    ({"window": 2, "ceil_mode": True}, [3, 4, 5], [0, 2, 4], [2, 2.5, 5], [2, 2.5, 5]),
    (
        {"window": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        [3, 4, 5],
        [0, 2, 4],
        [2, 2, 3],
        [4 / 3, 2, 2],
    ),
    (
        {"window": 3, "stride": 4, "padding": 1, "ceil_mode": True},
        [3, 5],
        [0, 4],
        [2, 3],
        [4 / 3, 2],
    ),
    ({"window": 2, "stride": 5, "ceil_mode": True}, [3], [0], [2], [2]),
    ({}, [5], [4], [2.8], [2.8]),
    ({"output_size": 1}, [5], [4], [2.8], [2.8]),
    ({"output_size": 2}, [4, 5], [2, 4], [8 / 3, 10 / 3], [8 / 3, 10 / 3]),
    ({"output_size": 3}, [3, 4, 5], [0, 2, 4], [2, 2, 3], [2, 2, 3]),
    ({"output_size": 0}, [], [], [], []),
]


@pytest.mark.parametrize(("attributes", "y", "indices", "exclude", "include"), WINDOWS)
def test_in_one_dim(
    attributes: dict[str, Any],
    y: list[float],
    indices: list[int],
    exclude: list[float],
    include: list[float],
) -> None:
    result = ref.pool_max_forward(X, return_indices=True, **attributes)
    assert result.y.tolist() == [[y]]
    assert result.indices.tolist() == [[indices]]
    assert result.indices.dtype == np.int32
    averages = ref.pool_average_forward(X, **attributes)
    assert averages == pytest.approx(np.array([[exclude]]), abs=0)
    counted = ref.pool_average_forward(X, include_padding=True, **attributes)
    assert counted == pytest.approx(np.array([[include]]), abs=0)


def test_without_indices_the_maximum_is_all_there_is() -> None:
    assert ref.pool_max_forward(X, window=2).tolist() == [[[3, 4]]]


def test_each_dim_has_its_own_window_stride_dilation_and_padding() -> None:
    x = image([1, 2, 3, 4], [5, 6, 7, 8], [9, 8, 7, 6])
    attributes = {
        "window": (2, 3),
        "stride": (1, 2),
        "dilation": (2, 1),
        "padding": ((0, 0), (1, 0)),
    }
    y, indices = ref.pool_max_forward(x, return_indices=True, **attributes)
    assert y.tolist() == [[[[9, 8]]]]
    assert indices.tolist() == [[[[8, 9]]]]
    assert ref.pool_average_forward(x, **attributes).tolist() == [[[[5, 5]]]]


def test_an_index_is_flat_over_all_spatial_dims() -> None:
    x = np.zeros((2, 2, 2, 3, 4))
    x[1, 1, 1, 2, 3] = 1.0
    _, indices = ref.pool_max_forward(x, return_indices=True)
    assert indices.ravel().tolist() == [0, 0, 0, 23]


@pytest.mark.parametrize(
    ("x", "index"),
    [
        ([2, 2, 2], 0),
        ([1, 2, 2], 1),
        ([-0.0, 0.0, -1], 0),
        ([0.0, -0.0, -1], 0),
        ([1, NAN, 2], 1),
        ([NAN, INF, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([-INF, INF, INF], 1),
    ],
)
def test_the_first_of_the_largest_wins_and_nan_is_larger_than_every_number(
    x: list[float], index: int
) -> None:
    y, indices = ref.pool_max_forward(signal(*x), return_indices=True)
    assert indices.item() == index
    assert y.tobytes() == np.float64(x[index]).tobytes() or np.isnan(x[index])
    assert np.isnan(y.item()) == np.isnan(x[index])


def test_padding_never_wins() -> None:
    """Neither over what is below 0, nor over −Inf."""
    x = signal(-5, -INF, -7)
    y, indices = ref.pool_max_forward(x, window=2, stride=2, padding=1, return_indices=True)
    assert y.tolist() == [[[-5, -7]]]
    y, indices = ref.pool_max_forward(
        signal(-INF, -7), window=2, stride=3, padding=1, return_indices=True
    )
    assert (y.tolist(), indices.tolist()) == ([[[-INF]]], [[[0]]])


@pytest.mark.parametrize(("dtype", "least"), [("int8", -128), ("uint8", 0), ("float16", -INF)])
def test_a_window_of_padding_gives_the_least_number(dtype: str, least: float) -> None:
    x = np.array([[[7, 3]]], dtype)
    y, indices = ref.pool_max_forward(x, window=1, padding=1, return_indices=True)
    assert y.dtype == x.dtype
    assert y.tolist() == [[[least, 7, 3, least]]]
    assert indices.tolist() == [[[-1, 0, 1, -1]]]


def test_an_empty_input_in_padding() -> None:
    x = np.zeros((1, 1, 0))
    assert ref.pool_max_forward(x, window=2, padding=1).tolist() == [[[-INF]]]
    assert ref.pool_average_forward(x, window=2, padding=1, include_padding=True).tolist() == [
        [[0]]
    ]
    dx = ref.pool_average_backward(np.ones((1, 1, 1)), window=2, padding=1, input_size=0)
    assert dx.shape == (1, 1, 0)


def test_global_pooling_of_an_empty_input_is_refused() -> None:
    with pytest.raises(spec.ShapeError, match="global pooling"):
        ref.pool_max_forward(np.zeros((1, 1, 0)))


# --- p-norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "y"),
    [
        ({"window": 2, "p": 1}, [7, 12]),
        ({"window": 2}, [5, 12]),
        ({"window": 2, "p": 3.0}, [np.cbrt(91), 12]),
        ({"window": 2, "padding": ((2, 0),), "p": 1.0}, [0, 7, 12]),
        ({"p": 1.0}, [19]),
        ({"output_size": 1}, [13]),
    ],
)
def test_norms(attributes: dict[str, Any], y: list[float]) -> None:
    assert ref.pool_lp_forward(signal(3, -4, 0, 12), **attributes) == pytest.approx(
        np.array([[y]]), rel=1e-15
    )


def test_a_norm_tends_to_the_maximum() -> None:
    x = np.abs(random(2, 3, 6, 5))
    y = ref.pool_lp_forward(x, window=2, p=400.0)
    assert y == pytest.approx(ref.pool_max_forward(x, window=2), rel=0.01)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_a_norm_of_zero_has_no_gradient(p: float) -> None:
    zero = np.zeros((1, 1, 2))
    dx = ref.pool_lp_backward(np.ones((1, 1, 1)), zero, zero[..., :1], p=p)
    assert dx.tolist() == [[[0, 0]]]


def test_the_gradient_of_the_sum_of_magnitudes_is_the_sign() -> None:
    dy, y = np.array([[[2.0]]]), np.array([[[NAN]]])
    assert ref.pool_lp_backward(dy, signal(3, 0, -1), y, p=1.0).tolist() == [[[2, 0, -2]]]


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "indices", "dx"),
    [
        ({"window": 2, "input_size": 4}, [1, 2], [0, 1, 10, 0]),
        ({"window": 2, "input_size": 5}, [0, 3], [1, 0, 0, 10, 0]),
        ({"window": 2, "stride": 1, "input_size": 3}, [1, 1], [0, 11, 0]),
        ({"window": 2, "stride": 1, "input_size": 3}, [-1, 1], [0, 10, 0]),
        ({"window": 2, "stride": 1, "input_size": 3}, [2, 0], [0, 0, 0]),
        ({"window": 2, "stride": 1, "dilation": 2, "input_size": 4}, [1, 3], [0, 0, 0, 10]),
        ({"window": 2, "padding": 1, "input_size": 2}, [0, 1], [1, 10]),
        ({"output_size": 2, "input_size": 3}, [1, 1], [0, 11, 0]),
    ],
)
def test_dy_goes_to_where_the_maximum_was(
    attributes: dict[str, Any], indices: list[int], dx: list[float]
) -> None:
    """An index that is not of its window, such as −1, adds nothing."""
    of_outputs = np.array([[indices]], np.int32)
    assert ref.pool_max_backward(signal(1, 10), of_outputs, **attributes).tolist() == [[dx]]


@pytest.mark.parametrize(
    ("attributes", "dx"),
    [
        ({"window": 2, "input_size": 4}, [1, 1, 10, 10]),
        ({"window": 2, "input_size": 5}, [1, 1, 10, 10, 0]),
        ({"window": 2, "stride": 1, "input_size": 3}, [1, 11, 10]),
        ({"window": 2, "padding": 1, "input_size": 2}, [2, 20]),
        ({"window": 2, "padding": 1, "input_size": 2, "include_padding": True}, [1, 10]),
        ({"output_size": 2, "input_size": 3}, [1, 11, 10]),
        ({"output_size": 2, "input_size": 1}, [22]),
    ],
)
def test_the_average_shares_dy_out(attributes: dict[str, Any], dx: list[float]) -> None:
    assert ref.pool_average_backward(signal(2, 20), **attributes).tolist() == [[dx]]


GEOMETRIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((7,), {"window": 3, "stride": 2, "padding": ((2, 1),)}),
    ((9,), {"window": 3, "stride": 1, "dilation": 2}),
    ((6, 5), {"window": (3, 2), "stride": (2, 1), "padding": 1, "ceil_mode": True}),
    ((4, 5), {"window": 2, "stride": 3, "padding": "same"}),
    ((3, 4, 3), {"window": 2, "stride": 1, "dilation": (1, 2, 1)}),
    ((5, 4), {"output_size": (3, 6)}),
    ((4, 3), {}),
]
each_geometry = pytest.mark.parametrize(("extents", "attributes"), GEOMETRIES)


def differences(f: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """The gradient of Σ dy·f(x) by x, by central differences."""
    dx, step = np.zeros_like(x), 1e-6
    for index in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[index] = step
        dx[index] = np.sum(dy * (f(x + moved) - f(x - moved))) / (2 * step)
    return dx


@each_geometry
def test_max_backward_is_the_gradient(extents: tuple[int, ...], attributes: dict[str, Any]) -> None:
    x = random(2, 2, *extents)
    y, indices = ref.pool_max_forward(x, return_indices=True, **attributes)
    dy = np.where(np.isfinite(y), random(*y.shape), 0.0)
    dx = ref.pool_max_backward(dy, indices, input_size=extents, **attributes)

    def f(x: Array) -> Array:
        return np.nan_to_num(ref.pool_max_forward(x, **attributes))

    assert dx == pytest.approx(differences(f, x, dy), abs=1e-8)


@each_geometry
@pytest.mark.parametrize("include_padding", [False, True])
def test_average_backward_is_the_gradient(
    extents: tuple[int, ...], attributes: dict[str, Any], include_padding: bool
) -> None:
    x, options = random(2, 2, *extents), {**attributes, "include_padding": include_padding}
    dy = random(*ref.pool_average_forward(x, **options).shape)
    dx = ref.pool_average_backward(dy, input_size=extents, **options)
    expected = differences(lambda x: ref.pool_average_forward(x, **options), x, dy)
    assert dx == pytest.approx(expected, abs=1e-8)


@each_geometry
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_lp_backward_is_the_gradient(
    extents: tuple[int, ...], attributes: dict[str, Any], p: float
) -> None:
    x, options = random(2, 2, *extents), {**attributes, "p": p}
    y = ref.pool_lp_forward(x, **options)
    dy = random(*y.shape)
    dx = ref.pool_lp_backward(dy, x, y, **options)
    expected = differences(lambda x: ref.pool_lp_forward(x, **options), x, dy)
    assert dx == pytest.approx(expected, abs=1e-7)


# --- Identities, special values, layouts ----------------------------------------------------------


def test_as_many_outputs_as_inputs_is_a_copy() -> None:
    x = random(2, 3, 4, 5)
    for pool in (ref.pool_max_forward, ref.pool_average_forward):
        assert np.array_equal(pool(x, output_size=(4, 5)), x)


def test_what_the_average_shares_out_is_neither_more_nor_less() -> None:
    dy = random(2, 3, 5, 4)
    dx = ref.pool_average_backward(dy, output_size=(5, 4), input_size=(7, 9))
    assert np.sum(dx) == pytest.approx(np.sum(dy))


@pytest.mark.parametrize(
    "pool", [ref.pool_max_forward, ref.pool_average_forward, ref.pool_lp_forward]
)
def test_nan_spreads_to_the_windows_that_hold_it(pool: Callable[..., Array]) -> None:
    y = pool(signal(1, 2, NAN, 4, 5), window=2, stride=1, padding=1)
    assert np.isnan(y).tolist() == [[[False, False, True, True, False, False]]]


def test_nan_of_dy_spreads_to_the_cells_of_its_window() -> None:
    dx = ref.pool_average_backward(signal(1, NAN, 3), window=2, stride=2, input_size=6)
    assert np.isnan(dx).tolist() == [[[False, False, True, True, False, False]]]
    indices = np.array([[[0, 2, 4]]], np.int32)
    dx = ref.pool_max_backward(signal(1, NAN, 3), indices, window=2, input_size=6)
    assert np.isnan(dx).tolist() == [[[False, False, True, False, False, False]]]


def test_sums_are_wider_than_the_dtype() -> None:
    x = np.full((1, 1, 4096), 40_000.0, np.float16)
    assert ref.pool_average_forward(x).item() == 40_000
    ones = np.ones((1, 1, 1000), ml_dtypes.bfloat16)
    assert ref.pool_average_forward(ones).item() == 1


def test_the_layout_does_not_matter() -> None:
    x = random(2, 3, 5, 4)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for pool in (ref.pool_max_forward, ref.pool_average_forward, ref.pool_lp_forward):
        assert np.array_equal(pool(x, window=2, padding=1), pool(last, window=2, padding=1))


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"window": 6}, spec.ShapeError, r"covers \(6,\), more than I=\(5,\)"),
        ({"window": 0}, spec.AttributeValueError, "window=0"),
        ({"window": 2, "output_size": 2}, spec.AttributeValueError, "together with window=2"),
        ({"padding": 1, "output_size": 2}, spec.AttributeValueError, "together with padding=1"),
        ({"output_size": -1}, spec.AttributeValueError, "below 0"),
        ({"window": 2, "ceil_mode": 1}, spec.AttributeValueError, "ceil_mode=1"),
    ],
)
def test_illegal_windows(attributes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ref.pool_max_forward(X, **attributes)


def test_indices_that_int32_cannot_hold_are_refused() -> None:
    x = spec.TensorType("float32", (1, 1, 2**16, 2**15))
    with pytest.raises(spec.ShapeError, match="int32"):
        spec.pool_max_forward.bind(x, window=2, return_indices=True)
    spec.pool_max_forward.bind(x, window=2)


@pytest.mark.parametrize("p", [0.99, 0.0, -1.0, INF, NAN])
def test_what_is_no_norm_is_refused(p: float) -> None:
    with pytest.raises(spec.AttributeValueError, match="p="):
        ref.pool_lp_forward(X, p=p)


# --- PyTorch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation", "ceil_mode"),
    [
        ((3, 2), (2, 1), (1, 1), (1, 2), False),
        ((3, 3), (2, 2), (1, 1), (2, 1), True),
        ((2, 2), (3, 3), (0, 0), (1, 1), True),
    ],
)
def test_as_pytorch_pools(
    window: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).integers(-3, 3, (2, 3, 9, 8)).astype(np.float64)  # many ties
    geometry = {"window": window, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    y, indices = ref.pool_max_forward(x, dilation=dilation, return_indices=True, **geometry)
    options = (window, stride, padding, dilation, ceil_mode)
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(x), *options, return_indices=True)
    assert np.array_equal(y, expected[0].numpy())
    assert np.array_equal(indices, expected[1].numpy())
    for include in (False, True):
        average = ref.pool_average_forward(x, include_padding=include, **geometry)
        torch_average = torch.nn.functional.avg_pool2d(
            torch.from_numpy(x), window, stride, padding, ceil_mode, include
        )
        assert average == pytest.approx(torch_average.numpy())


@pytest.mark.parametrize("output_size", [(4, 3), (12, 5), (1, 1), (9, 8)])
def test_as_pytorch_pools_adaptively(output_size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    x = random(2, 3, 9, 8)
    y, indices = ref.pool_max_forward(x, output_size=output_size, return_indices=True)
    functional = torch.nn.functional
    expected = functional.adaptive_max_pool2d(torch.from_numpy(x), output_size, return_indices=True)
    assert np.array_equal(y, expected[0].numpy())
    assert np.array_equal(indices, expected[1].numpy())
    average = ref.pool_average_forward(x, output_size=output_size)
    expected = functional.adaptive_avg_pool2d(torch.from_numpy(x), output_size)
    assert average == pytest.approx(expected.numpy())
