"""Convolution on cases worked out by hand, at its edges, and on special values."""

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


# --- Forward --------------------------------------------------------------------------------------

X = signal(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("w", "attributes", "y"),
    [
        ([1, 10], {}, [21, 32, 43, 54]),
        ([1, 10], {"mode": "convolution"}, [12, 23, 34, 45]),
        ([1, 10], {"padding": 1}, [10, 21, 32, 43, 54, 5]),
        ([1, 10], {"padding": ((2, 0),)}, [0, 10, 21, 32, 43, 54]),
        ([1, 10], {"padding": ((0, 2),)}, [21, 32, 43, 54, 5, 0]),
        ([1, 10], {"padding": "valid"}, [21, 32, 43, 54]),
        ([1, 10], {"padding": "same"}, [21, 32, 43, 54, 5]),
        ([1, 10], {"stride": 2}, [21, 43]),
        ([1, 10], {"stride": 2, "padding": 1}, [10, 32, 54]),
        ([1, 10], {"dilation": 3}, [41, 52]),
        ([1, 10], {"dilation": 3, "stride": 2}, [41]),
        ([1, 10, 100], {"dilation": 2}, [531]),
        ([1, 10, 100], {"dilation": 2, "mode": "convolution"}, [135]),
        ([1, 10], {"padding": 3}, [0, 0, 10, 21, 32, 43, 54, 5, 0, 0]),
        ([7], {"stride": 4}, [7, 35]),
    ],
)
def test_forward_in_one_dim(w: list[float], attributes: dict[str, Any], y: list[float]) -> None:
    assert ref.conv_forward(X, signal(*w), **attributes).tolist() == [[y]]


def test_forward_in_two_dims() -> None:
    x = image([1, 2, 3], [4, 5, 6], [7, 8, 9])
    w = image([1, 10], [100, 1000])
    assert ref.conv_forward(x, w).tolist() == [[[[5421, 6532], [8754, 9865]]]]
    flipped = ref.conv_forward(x, w, mode="convolution")
    assert flipped.tolist() == [[[[1245, 2356], [4578, 5689]]]]


def test_each_dim_has_its_own_stride_dilation_and_padding() -> None:
    """Rows 0 and 2 through the first dim's dilation; columns −1|0 and 1|2 through the second's stride."""
    x = image([1, 2, 3], [4, 5, 6], [7, 8, 9])
    w = image([1, 10], [100, 1000])
    y = ref.conv_forward(x, w, dilation=(2, 1), stride=(1, 2), padding=((0, 0), (1, 0)))
    assert y.tolist() == [[[[10 * 1 + 1000 * 7, 2 + 10 * 3 + 100 * 8 + 1000 * 9]]]]


def test_forward_in_three_dims() -> None:
    x = np.arange(8.0).reshape(1, 1, 2, 2, 2)
    w = 10.0 ** np.arange(8).reshape(1, 1, 2, 2, 2)
    assert ref.conv_forward(x, w).item() == 76543210
    assert ref.conv_forward(x, w, mode="convolution").item() == 1234567


def test_channels_are_summed_and_filters_are_not() -> None:
    x = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    w = np.array([[[1.0], [10.0]], [[100.0], [1000.0]]])
    assert ref.conv_forward(x, w).tolist() == [[[31, 42], [3100, 4200]]]


def test_groups_do_not_mix() -> None:
    """Two groups of two channels, three filters each."""
    x = np.array([[[1.0], [2.0], [3.0], [4.0]]])
    w = np.array([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]], float)[..., None]
    y = ref.conv_forward(x, w, groups=2)
    assert y.ravel().tolist() == [21, 42, 63, 172, 215, 258]


def test_depthwise_with_a_multiplier() -> None:
    x = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    w = np.array([[[1.0]], [[10.0]], [[100.0]], [[1000.0]]])
    y = ref.conv_forward(x, w, groups=2)
    assert y.tolist() == [[[1, 2], [10, 20], [300, 400], [3000, 4000]]]


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "dx"),
    [
        ({}, [1, 12, 23, 30]),
        ({"mode": "convolution"}, [10, 21, 32, 3]),
        ({"padding": 1}, [12, 23]),
        ({"padding": ((1, 0),)}, [12, 23, 30]),
        ({"stride": 2}, [1, 10, 2, 20, 3, 30]),
        ({"stride": 2, "input_size": 7}, [1, 10, 2, 20, 3, 30, 0]),
        ({"stride": 3}, [1, 10, 0, 2, 20, 0, 3, 30]),
        ({"dilation": 2}, [1, 2, 13, 20, 30]),
        ({"stride": 2, "padding": 1}, [10, 2, 20, 3]),
        ({"stride": 2, "padding": 1, "input_size": (5,)}, [10, 2, 20, 3, 30]),
    ],
)
def test_backward_data_in_one_dim(attributes: dict[str, Any], dx: list[float]) -> None:
    result = ref.conv_backward_data(signal(1, 2, 3), signal(1, 10), **attributes)
    assert result.tolist() == [[dx]]


def test_backward_data_sums_over_the_filters_of_a_group() -> None:
    dy = np.array([[[1.0], [2.0], [3.0], [4.0]]])
    w = np.array([[1, 5], [10, 50], [100, 500], [1000, 5000]], float)[..., None]
    dx = ref.conv_backward_data(dy, w, groups=2)
    assert dx.ravel().tolist() == [21, 105, 4300, 21500]


@pytest.mark.parametrize(
    ("dy", "attributes", "dw"),
    [
        ([1, 10, 100, 1000], {}, [4321, 5432]),
        ([1, 10, 100, 1000], {"mode": "convolution"}, [5432, 4321]),
        ([1, 10, 100, 1000, 10000, 100000], {"padding": 1}, [543210, 54321]),
        ([1, 10], {"stride": 2}, [31, 42]),
        ([1, 10], {"dilation": 3}, [21, 54]),
        ([1, 10, 100], {"stride": 2, "padding": 1}, [420, 531]),
    ],
)
def test_backward_filter_in_one_dim(
    dy: list[float], attributes: dict[str, Any], dw: list[float]
) -> None:
    result = ref.conv_backward_filter(X, signal(*dy), filter_size=2, **attributes)
    assert result.tolist() == [[dw]]


def test_backward_filter_sums_over_the_batch_and_splits_groups() -> None:
    x = np.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    dy = np.array([[[1.0], [10.0]], [[100.0], [1000.0]]])
    plain = ref.conv_backward_filter(x, dy, filter_size=1)
    assert plain[..., 0].tolist() == [[301, 402], [3010, 4020]]
    grouped = ref.conv_backward_filter(x, dy, filter_size=1, groups=2)
    assert grouped[..., 0].tolist() == [[301], [4020]]


def test_filter_taps_that_meet_only_padding_have_no_gradient() -> None:
    dw = ref.conv_backward_filter(
        signal(1, 2), signal(1, 10), filter_size=3, stride=3, padding=((0, 4),)
    )
    assert dw.tolist() == [[[1, 2, 0]]]


def test_backward_bias_sums_over_batch_and_space() -> None:
    dy = np.arange(24.0).reshape(2, 3, 2, 2)
    assert ref.conv_backward_bias(dy).tolist() == [60, 92, 124]


# --- The fused form -------------------------------------------------------------------------------

ONE_BY_ONE = np.array([[[2.0]], [[-3.0]]])
BIAS = np.array([0.5, 100.0])
Z = np.array([[[10.0, 20.0], [30.0, 40.0]]])


@pytest.mark.parametrize(
    ("z", "attributes", "y"),
    [
        (None, {"activation": "identity"}, [[2.5, -3.5], [97, 106]]),
        (None, {}, [[2.5, 0], [97, 106]]),
        (Z, {"activation": "identity"}, [[12.5, 16.5], [127, 146]]),
        (Z, {"alpha1": -1.0, "alpha2": -10.0}, [[0, 0], [0, 0]]),
        (Z, {"alpha1": 4, "alpha2": 0.5}, [[13.5, 0], [103, 144]]),
        (Z, {"alpha1": 0.0, "alpha2": 0.0}, [[0.5, 0.5], [100, 100]]),
    ],
)
def test_fused_by_hand(z: Array | None, attributes: dict[str, Any], y: list[Any]) -> None:
    """conv is [[2, −4], [−3, 6]] for x = [1, −2]."""
    result = ref.conv_bias_activation_forward(signal(1, -2), ONE_BY_ONE, BIAS, z, **attributes)
    assert result.tolist() == [y]


def test_relu_keeps_nan() -> None:
    y = ref.conv_bias_activation_forward(signal(NAN, -1), signal(1), np.zeros(1))
    assert np.isnan(y[0, 0, 0])
    assert y[0, 0, 1] == 0


def test_alpha2_of_zero_does_not_read_z() -> None:
    x, z = signal(1, 2), signal(NAN, INF)
    y = ref.conv_bias_activation_forward(x, signal(1), np.zeros(1), z, alpha2=0)
    assert y.tolist() == [[[1, 2]]]
    spread = ref.conv_bias_activation_forward(x, signal(1), np.zeros(1), z, alpha2=1)
    assert np.isnan(spread[0, 0, 0])
    assert spread[0, 0, 1] == INF


def test_alpha1_of_zero_still_counts_the_convolution() -> None:
    y = ref.conv_bias_activation_forward(signal(NAN, 1), signal(1), np.ones(1), alpha1=0)
    assert np.isnan(y[0, 0, 0])
    assert y[0, 0, 1] == 1


def test_epilogue_works_on_unrounded_sums() -> None:
    """2048 + 1 is not a float16, 2048 + 1 − 2048 is."""
    x = signal(2048, 1).astype(np.float16).reshape(1, 2, 1)
    w, bias = np.ones((1, 2, 1), np.float16), np.array([-2048], np.float16)
    assert ref.conv_forward(x, w).item() == 2048
    assert ref.conv_bias_activation_forward(x, w, bias).item() == 1


# --- Zero sizes and wide padding ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes", "y_shape"),
    [
        ((0, 2, 5), (3, 2, 2), {}, (0, 3, 4)),
        ((2, 0, 5), (3, 0, 2), {}, (2, 3, 4)),
        ((2, 2, 5), (0, 2, 2), {}, (2, 0, 4)),
        ((2, 2, 0), (3, 2, 2), {"padding": 1}, (2, 3, 1)),
        ((2, 32, 0, 5), (4, 32, 2, 2), {"padding": 1}, (2, 4, 1, 6)),
        ((2, 0, 5), (4, 0, 2), {"groups": 2}, (2, 4, 4)),
        ((2, 4, 5), (0, 2, 2), {"groups": 2}, (2, 0, 4)),
        ((0, 0, 0), (0, 0, 1), {"padding": 1}, (0, 0, 2)),
    ],
)
def test_zero_sizes_give_empty_outputs_and_sums_of_nothing(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, Any],
    y_shape: tuple[int, ...],
) -> None:
    x, w, dy = np.ones(x_shape), np.ones(w_shape), np.ones(y_shape)
    bias = np.arange(w_shape[0], dtype=float)
    y = ref.conv_forward(x, w, **attributes)
    assert y.shape == y_shape
    assert not y.any()
    dx = ref.conv_backward_data(dy, w, **attributes, input_size=x_shape[2:])
    assert dx.shape == x_shape
    dw = ref.conv_backward_filter(x, dy, **attributes, filter_size=w_shape[2:])
    assert dw.shape == w_shape
    assert not dw.any()
    assert ref.conv_backward_bias(dy).tolist() == [np.prod([y_shape[0], *y_shape[2:]])] * y_shape[1]
    fused = ref.conv_bias_activation_forward(x, w, bias, dy, **attributes, activation="identity")
    spread = np.broadcast_to(1 + bias.reshape(-1, *[1] * (len(y_shape) - 2)), y_shape)
    assert np.array_equal(fused, spread)


def test_no_filters_have_no_gradient() -> None:
    dx = ref.conv_backward_data(np.ones((2, 0, 4)), np.ones((0, 3, 2)))
    assert dx.shape == (2, 3, 5)
    assert not dx.any()


def test_windows_of_padding_alone_give_zero() -> None:
    y = ref.conv_forward(np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)), padding=4)
    assert y.shape == (1, 1, 10, 10)
    inner = y[0, 0, 3:7, 3:7]
    assert inner.tolist() == [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]]
    assert y.sum() == inner.sum()


# --- NaN, Inf and rounding ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_forward_spreads_to_the_windows_that_hold_the_value(value: float) -> None:
    x = signal(0, 0, value, 0, 0)
    y = ref.conv_forward(x, signal(1, 2, 3), padding=1, dilation=2)
    windows = [{-1, 1, 3}, {0, 2, 4}, {1, 3, 5}]
    assert np.isfinite(y[0, 0]).tolist() == [2 not in window for window in windows]


def test_nan_stays_in_its_batch_entry_and_group() -> None:
    x = np.zeros((2, 4, 3))
    x[1, 2, 0] = NAN
    y = ref.conv_forward(x, np.ones((6, 2, 1)), groups=2)
    assert np.argwhere(np.isnan(y)).tolist() == [[1, 3, 0], [1, 4, 0], [1, 5, 0]]


def test_zero_times_inf_is_nan() -> None:
    y = ref.conv_forward(signal(INF, 1), signal(0))
    assert np.isnan(y[0, 0, 0])
    assert y[0, 0, 1] == 0


def test_inf_minus_inf_is_nan_and_inf_plus_finite_is_inf() -> None:
    y = ref.conv_forward(signal(INF, 1, -INF, INF), signal(1, 1, 1), padding=((0, 2),))
    assert np.isnan(y[0, 0, :2]).all()
    assert np.isnan(y[0, 0, 2])
    assert y[0, 0, 3] == INF


def test_backward_data_spreads_to_what_the_window_covers() -> None:
    dx = ref.conv_backward_data(signal(0, NAN, 0), signal(1, 1), stride=3, input_size=9)
    assert np.argwhere(np.isnan(dx[0, 0])).ravel().tolist() == [3, 4]


def test_backward_filter_spreads_to_every_tap_that_met_the_value() -> None:
    x = signal(0, 0, 0, NAN)
    dw = ref.conv_backward_filter(x, signal(1, 1), filter_size=3)
    assert np.isnan(dw[0, 0]).tolist() == [False, False, True]


def test_backward_bias_spreads_within_its_channel() -> None:
    dy = np.zeros((2, 2, 3))
    dy[1, 0, 2] = INF
    assert ref.conv_backward_bias(dy).tolist() == [INF, 0]


def test_the_sum_is_rounded_once() -> None:
    """1 + 2^-8 + 2^-40 is just above a tie of bfloat16; float32 would round it onto the tie."""
    x = np.array([[[1], [2.0**-8], [2.0**-40]]]).astype(ml_dtypes.bfloat16)
    w = np.ones((1, 3, 1), ml_dtypes.bfloat16)
    assert float(ref.conv_forward(x, w).item()) == 1 + 2.0**-7


def test_partial_sums_are_not_rounded() -> None:
    """2048 ones of float16 and then 2049 more: a float16 accumulator would stop at 2048."""
    x = np.ones((1, 4097, 1), np.float16)
    assert ref.conv_forward(x, np.ones((1, 4097, 1), np.float16)).item() == 4096


def test_partial_sums_may_exceed_the_dtype() -> None:
    x = np.array([[[60000], [60000], [-60000]]], np.float16)
    assert ref.conv_forward(x, np.ones((1, 3, 1), np.float16)).item() == 60000


@pytest.mark.parametrize("dtype", spec.FLOATS)
def test_overflow_gives_inf_and_subnormals_are_kept(dtype: str) -> None:
    row = spec.DTYPES[dtype]
    w = np.ones((1, 2, 1), row.numpy)
    large = np.full((1, 2, 1), row.max, row.numpy)
    assert float(ref.conv_forward(large, w).item()) == INF
    small = np.full((1, 2, 1), row.smallest_subnormal, row.numpy)
    assert float(ref.conv_forward(small, w).item()) == 2 * row.smallest_subnormal
