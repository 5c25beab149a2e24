"""Normalization on cases worked out by hand, at its edges, against finite differences and torch."""

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


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def array(*values: float) -> Array:
    return np.array(values, np.float64)


ONE, NONE = array(1), array(0)

# --- Batch norm, forward --------------------------------------------------------------------------


def test_each_channel_has_mean_0_and_variance_1() -> None:
    x = np.array([[[1.0, 3.0], [0.0, 10.0]]])
    y = ref.batch_norm_forward_training(x, array(1, 2), array(0, 5), epsilon=0.0)
    assert y.tolist() == [[[-1.0, 1.0], [3.0, 7.0]]]


def test_per_activation_is_over_the_batch_alone() -> None:
    x = np.array([[[1.0, 0.0]], [[3.0, 8.0]]])
    scale, bias = np.array([[1.0, 10.0]]), np.array([[0.0, 1.0]])
    y = ref.batch_norm_forward_training(x, scale, bias, mode="per_activation", epsilon=0.0)
    assert y.tolist() == [[[-1.0, -9.0]], [[1.0, 11.0]]]


def test_epsilon_is_added_to_the_variance() -> None:
    y = ref.batch_norm_forward_training(np.array([[[1.0, 3.0]]]), ONE, NONE, epsilon=3.0)
    assert y.tolist() == [[[-0.5, 0.5]]]


def test_saved_statistics_are_the_mean_and_the_inverse_standard_deviation() -> None:
    x = np.array([[[1.0, 5.0]]])
    out = ref.batch_norm_forward_training(x, ONE, NONE, epsilon=0.0, save_statistics=True)
    assert out._fields == ("y", "mean", "inv_std")
    assert (out.mean.tolist(), out.inv_std.tolist()) == ([3.0], [0.5])


def test_running_statistics_take_the_unbiased_variance() -> None:
    x = np.array([[[1.0, 3.0]]])
    out = ref.batch_norm_forward_training(
        x, ONE, NONE, array(10), array(20), exponential_average_factor=0.25
    )
    assert out._fields == ("y", "new_running_mean", "new_running_var")
    assert out.new_running_mean.tolist() == [0.75 * 10 + 0.25 * 2]
    assert out.new_running_var.tolist() == [0.75 * 20 + 0.25 * 2]


@pytest.mark.parametrize(("factor", "mean", "var"), [(0.0, 10.0, 20.0), (1.0, 2.0, 2.0)])
def test_the_factor_is_the_weight_of_the_batch(factor: float, mean: float, var: float) -> None:
    x = np.array([[[1.0, 3.0]]])
    out = ref.batch_norm_forward_training(
        x, ONE, NONE, array(10), array(20), exponential_average_factor=factor
    )
    assert (out.new_running_mean.item(), out.new_running_var.item()) == (mean, var)


def test_a_single_element_becomes_the_bias_and_adds_no_variance() -> None:
    x = np.array([[7.0]])
    out = ref.batch_norm_forward_training(
        x, ONE, array(4), array(0), array(1), exponential_average_factor=0.5
    )
    assert [part.item() for part in out] == [4.0, 3.5, 0.5]


def test_equal_elements_become_the_bias_and_with_epsilon_0_nan() -> None:
    x = np.full((2, 1, 3), 2.5)
    assert (ref.batch_norm_forward_training(x, ONE, array(4)) == 4.0).all()
    assert np.isnan(ref.batch_norm_forward_training(x, ONE, array(4), epsilon=0.0)).all()


def test_residual_and_relu_come_last() -> None:
    x, z = np.array([[[1.0, 3.0]]]), np.array([[[5.0, -5.0]]])
    y = ref.batch_norm_forward_training(x, ONE, NONE, None, None, z, epsilon=0.0, activation="relu")
    assert y.tolist() == [[[4.0, 0.0]]]


def test_nan_and_infinity_spread_over_their_channel_only() -> None:
    x = random(1, 2, 3, 4)
    x[0, 0, 0], x[1, 1, 2] = NAN, INF
    y = ref.batch_norm_forward_training(x, np.ones(3), np.zeros(3), activation="relu")
    assert np.isnan(y[:, :2]).all()
    assert np.isfinite(y[:, 2]).all()


def test_a_large_mean_costs_no_digit() -> None:
    """Sixteen multiples of 1/64: mean and distances from it are exact, squares of 2^30 would not be."""
    x = np.rint(64 * random(2, 4, 3, 4)) / 64
    near = ref.batch_norm_forward_training(x, np.ones(3), np.zeros(3))
    far = ref.batch_norm_forward_training(x + 2.0**30, np.ones(3), np.zeros(3))
    assert (near == far).all()


# --- Batch norm by given statistics, and in parts -------------------------------------------------


def test_inference_uses_the_given_statistics() -> None:
    x = np.array([[[1.0, 3.0]]])
    y = ref.batch_norm_inference(x, array(10), array(1), array(2), array(3), epsilon=1.0)
    assert y.tolist() == [[[-4.0, 6.0]]]


def test_inference_by_the_batch_s_own_statistics_is_training() -> None:
    x, scale, bias, z = random(3, 3, 2, 4), random(4, 2), random(5, 2), random(6, 3, 2, 4)
    options: dict[str, Any] = {"epsilon": 0.25, "activation": "relu"}
    y = ref.batch_norm_forward_training(x, scale, bias, None, None, z, **options)
    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    again = ref.batch_norm_inference(x, scale, bias, mean, variance, z, **options)
    np.testing.assert_allclose(again, y, rtol=1e-12, atol=1e-12)


def test_an_empty_batch_has_no_statistics_but_an_inference() -> None:
    x = np.ones((0, 2, 3))
    with pytest.raises(spec.ShapeError, match="no element to average over"):
        ref.batch_norm_forward_training(x, np.ones(2), np.ones(2))
    two = np.ones(2)
    assert ref.batch_norm_inference(x, two, two, two, two).shape == (0, 2, 3)
    assert [part.tolist() for part in ref.batch_norm_genstats(x)] == [[0.0, 0.0]] * 2


def test_genstats_are_sums_of_shifted_elements_and_their_squares() -> None:
    x = np.array([[[1.0, 3.0]], [[2.0, 4.0]]])
    assert [part.item() for part in ref.batch_norm_genstats(x)] == [10.0, 30.0]
    assert [part.item() for part in ref.batch_norm_genstats(x, array(2))] == [2.0, 6.0]


@pytest.mark.parametrize("shift", [None, random(8, 3)])
def test_shards_together_are_the_whole_batch(shift: Array | None) -> None:
    x, scale, bias = 4.0 + random(9, 7, 3, 5), random(10, 3), random(11, 3)
    running = (random(12, 3), np.square(random(13, 3)))
    sums = [ref.batch_norm_genstats(shard, shift) for shard in (x[:2], x[2:3], x[3:3], x[3:])]
    parts = ref.batch_norm_finalize(
        np.stack([s.sum for s in sums]),
        np.stack([s.sq_sum for s in sums]),
        scale,
        bias,
        *running,
        shift,
        count=35,
    )
    whole = ref.batch_norm_forward_training(x, scale, bias, *running, save_statistics=True)
    for name in ("mean", "inv_std", "new_running_mean", "new_running_var"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-11)
    y = x * parts.eq_scale[:, None] + parts.eq_bias[:, None]
    np.testing.assert_allclose(y, whole.y, rtol=1e-10, atol=1e-10)


def test_a_negative_variance_counts_as_zero_and_nan_stays() -> None:
    sums, squares = np.array([[3.0, NAN]]), np.array([[1.0, 1.0]])
    out = ref.batch_norm_finalize(sums, squares, np.ones(2), np.ones(2), count=1, epsilon=0.25)
    assert out.inv_std[0] == 2.0
    assert np.isnan(out.inv_std[1])


def test_the_coefficients_of_backward_weights_make_dx() -> None:
    dy, x, scale = random(14, 3, 2, 4), 1.0 + random(15, 3, 2, 4), random(16, 2)
    saved = ref.batch_norm_forward_training(x, scale, scale, save_statistics=True)
    whole = ref.batch_norm_backward(dy, x, scale, saved.mean, saved.inv_std)
    parts = ref.batch_norm_backward_weights(dy, x, scale, saved.mean, saved.inv_std)
    column = {name: getattr(parts, name)[:, None] for name in parts._fields}
    dx = column["dy_factor"] * dy + column["x_factor"] * x + column["offset"]
    np.testing.assert_allclose(dx, whole.dx, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(parts.dscale, whole.dscale, rtol=1e-12)
    np.testing.assert_allclose(parts.dbias, whole.dbias, rtol=1e-12)


# --- Layer, RMS, group and instance norm ----------------------------------------------------------


def test_layer_norm_is_over_the_last_dims() -> None:
    x = np.array([[1.0, 3.0], [10.0, 0.0]])
    y = ref.layer_norm_forward(x, array(1, 2), array(0, 10), epsilon=0.0)
    assert y.tolist() == [[-1.0, 12.0], [1.0, 8.0]]


def test_axis_is_the_first_normalised_dim() -> None:
    x = random(20, 2, 3, 4)
    for axis in (1, -2):
        out = ref.layer_norm_forward(x, axis=axis, epsilon=0.0, save_statistics=True)
        assert out.mean.shape == (2,)
        np.testing.assert_allclose(out.y.mean(axis=(1, 2)), 0.0, atol=1e-12)
        np.testing.assert_allclose(out.y.var(axis=(1, 2)), 1.0)
    assert ref.layer_norm_forward(x, axis=0, save_statistics=True).mean.shape == ()


def test_zero_centered_scale_lacks_one() -> None:
    x, scale, bias, dy = random(21, 3, 4), random(22, 4), random(23, 4), random(24, 3, 4)
    for name in ("layer_norm", "rms_norm"):
        forward, backward = getattr(ref, f"{name}_forward"), getattr(ref, f"{name}_backward")
        plain = forward(x, 1.0 + scale, bias)
        assert (forward(x, scale, bias, zero_centered_scale=True) == plain).all()
        gradients = backward(dy, x, 1.0 + scale)
        for got, wanted in zip(
            backward(dy, x, scale, zero_centered_scale=True), gradients, strict=True
        ):
            assert (got == wanted).all()
        assert (forward(x, zero_centered_scale=True) == forward(x)).all()


def test_adaptive_layer_norm_has_a_scale_and_bias_for_each_sample() -> None:
    x, scale, bias = random(25, 2, 3, 4), random(26, 2, 4), random(27, 2, 4)
    y = ref.layer_norm_forward(x, scale, bias, adaptive=True)
    for n in range(2):
        assert (y[n] == ref.layer_norm_forward(x[n], scale[n], bias[n])).all()
    dy = random(28, 2, 3, 4)
    out = ref.layer_norm_backward(dy, x, scale, adaptive=True)
    for n in range(2):
        one = ref.layer_norm_backward(dy[n], x[n], scale[n])
        for whole, part in zip(out, one, strict=True):
            np.testing.assert_allclose(whole[n], part, rtol=1e-12)


def test_rms_norm_subtracts_no_mean() -> None:
    out = ref.rms_norm_forward(array(6, 8), array(1, 2), array(0, 1), epsilon=-50.0 + 66.0 + 34.0)
    np.testing.assert_allclose(out, [0.6, 2.6])
    centred = random(29, 3, 4)
    centred -= centred.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        ref.rms_norm_forward(centred), ref.layer_norm_forward(centred), atol=1e-12
    )


def test_infinity_under_the_root_makes_the_others_their_bias() -> None:
    y = ref.rms_norm_forward(array(INF, 2, -3), None, array(7, 8, 9))
    assert np.isnan(y[0])
    assert y[1:].tolist() == [8.0, 9.0]


def test_group_norm_is_over_neighbouring_channels_and_space() -> None:
    x = np.array([[[1.0], [3.0], [10.0], [0.0]]])
    scale, bias = array(1, 2, 3, 4), array(0, 0, 0, 1)
    y = ref.group_norm_forward(x, scale, bias, groups=2, epsilon=0.0)
    assert y.ravel().tolist() == [-1.0, 2.0, 3.0, -3.0]


def test_instance_and_layer_norm_are_group_norms() -> None:
    x, dy, scale = random(30, 2, 4, 3, 2), random(31, 2, 4, 3, 2), random(32, 4)
    single = ref.group_norm_forward(x, scale, scale, groups=4, save_statistics=True)
    instance = ref.instance_norm_forward(x, scale, scale, save_statistics=True)
    for one, other in zip(single, instance, strict=True):
        assert (one == other).all()
    for one, other in zip(
        ref.group_norm_backward(dy, x, scale, groups=4),
        ref.instance_norm_backward(dy, x, scale),
        strict=True,
    ):
        assert (one == other).all()
    whole = ref.layer_norm_forward(x, axis=1)
    np.testing.assert_allclose(ref.group_norm_forward(x, groups=1), whole, rtol=1e-12)


def test_an_instance_norm_adds_a_residual_before_its_relu() -> None:
    x, z = np.array([[[1.0, 3.0]]]), np.array([[[5.0, -5.0]]])
    y = ref.instance_norm_forward(x, None, None, z, epsilon=0.0, activation="relu")
    assert y.tolist() == [[[4.0, 0.0]]]
    x[0, 0, 0] = NAN
    assert np.isnan(ref.instance_norm_forward(x, activation="relu")).all()


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_a_batch_of_one_is_an_instance(activation: str) -> None:
    x, z, dy = random(33, 1, 3, 5), random(34, 1, 3, 5), random(35, 1, 3, 5)
    scale, bias = random(36, 3), random(37, 3)
    y = ref.instance_norm_forward(x, scale, bias, z, activation=activation)
    batch = ref.batch_norm_forward_training(x, scale, bias, None, None, z, activation=activation)
    np.testing.assert_allclose(batch, y, rtol=1e-12)
    options: dict[str, Any] = {"activation": activation, "residual_gradient": True}
    passed = (None, None, y if activation == "relu" else None)
    instance = ref.instance_norm_backward(dy, x, scale, *passed, **options)
    for one, other in zip(
        ref.batch_norm_backward(dy, x, scale, *passed, **options), instance, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_relu_passes_where_y_is_above_0_alone() -> None:
    x, dy = random(38, 1, 1, 4), np.ones((1, 1, 4))
    y = np.array([[[1.0, 0.0, -1.0, NAN]]])
    out = ref.instance_norm_backward(
        dy, x, None, None, None, y, activation="relu", residual_gradient=True
    )
    assert out._fields == ("dx", "dbias", "dz")
    assert out.dz.tolist() == [[[1.0, 0.0, 0.0, 0.0]]]
    assert out.dbias.tolist() == [1.0]


def test_y_comes_with_relu_and_with_nothing_else() -> None:
    x = random(39, 2, 3, 4)
    with pytest.raises(spec.MissingTensorError, match='activation="relu" needs y'):
        ref.instance_norm_backward(x, x, activation="relu")
    with pytest.raises(spec.MissingTensorError, match='y is given with activation="identity"'):
        ref.instance_norm_backward(x, x, None, None, None, x)


def test_no_rows_have_no_gradients() -> None:
    out = ref.layer_norm_backward(np.ones((0, 3)), np.ones((0, 3)), np.ones(3))
    assert out.dx.shape == (0, 3)
    assert (out.dscale.tolist(), out.dbias.tolist()) == ([0.0] * 3, [0.0] * 3)
    with pytest.raises(spec.ShapeError, match="no element to average over"):
        ref.layer_norm_forward(np.ones((3, 0)))


def test_gradients_are_those_that_are_asked_for() -> None:
    dy = x = random(36, 3, 4)
    assert ref.layer_norm_backward(dy, x, bias_gradient=False).shape == (3, 4)
    assert ref.layer_norm_backward(dy, x)._fields == ("dx", "dbias")
    assert ref.layer_norm_backward(dy, x, x[0], bias_gradient=False)._fields == ("dx", "dscale")


# --- Gradients ------------------------------------------------------------------------------------


def assert_gradient(loss: Callable[[Array], float], at: Array, gradient: Array) -> None:
    """Central differences of a scalar function."""
    numeric, step = np.zeros_like(at), 1e-5
    for index in np.ndindex(*at.shape):
        there, back = at.copy(), at.copy()
        there[index] += step
        back[index] -= step
        numeric[index] = (loss(there) - loss(back)) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_gradients_of_batch_norm(mode: str, activation: str) -> None:
    parameters = (2,) if mode == "spatial" else (2, 4)
    x, dy, z = random(40, 3, 2, 4), random(41, 3, 2, 4), random(42, 3, 2, 4)
    scale, bias = random(43, *parameters), random(44, *parameters)
    options: dict[str, Any] = {"mode": mode, "activation": activation, "epsilon": 0.1}

    def loss(x: Array, scale: Array, bias: Array, z: Array) -> float:
        y = ref.batch_norm_forward_training(x, scale, bias, None, None, z, **options)
        return float(np.sum(y * dy))

    saved = ref.batch_norm_forward_training(
        x, scale, bias, None, None, z, save_statistics=True, **options
    )
    y = saved.y if activation == "relu" else None
    for statistics in ((saved.mean, saved.inv_std), (None, None)):
        out = ref.batch_norm_backward(
            dy, x, scale, *statistics, y, residual_gradient=True, **options
        )
        assert_gradient(lambda at: loss(at, scale, bias, z), x, out.dx)
        assert_gradient(lambda at: loss(x, at, bias, z), scale, out.dscale)
        assert_gradient(lambda at: loss(x, scale, at, z), bias, out.dbias)
        assert_gradient(lambda at: loss(x, scale, bias, at), z, out.dz)


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_gradients_of_instance_norm_and_what_is_fused_to_it(activation: str) -> None:
    x, dy, z = random(40, 3, 2, 4), random(41, 3, 2, 4), random(42, 3, 2, 4)
    scale, bias = random(43, 2), random(44, 2)
    options: dict[str, Any] = {"activation": activation, "epsilon": 0.1}

    def loss(x: Array, scale: Array, bias: Array, z: Array) -> float:
        return float(np.sum(dy * ref.instance_norm_forward(x, scale, bias, z, **options)))

    saved = ref.instance_norm_forward(x, scale, bias, z, save_statistics=True, **options)
    y = saved.y if activation == "relu" else None
    for statistics in ((saved.mean, saved.inv_std), (None, None)):
        out = ref.instance_norm_backward(
            dy, x, scale, *statistics, y, residual_gradient=True, **options
        )
        assert_gradient(lambda at: loss(at, scale, bias, z), x, out.dx)
        assert_gradient(lambda at: loss(x, at, bias, z), scale, out.dscale)
        assert_gradient(lambda at: loss(x, scale, at, z), bias, out.dbias)
        assert_gradient(lambda at: loss(x, scale, bias, at), z, out.dz)


def test_gradients_of_batch_norm_by_fixed_statistics() -> None:
    x, dy, scale, bias = random(45, 3, 2, 4), random(46, 3, 2, 4), random(47, 2), random(48, 2)
    mean, variance = random(49, 2), np.square(random(50, 2))

    def loss(x: Array, scale: Array, bias: Array) -> float:
        y = ref.batch_norm_inference(x, scale, bias, mean, variance, epsilon=0.1)
        return float(np.sum(y * dy))

    inv_std = 1.0 / np.sqrt(variance + 0.1)
    out = ref.batch_norm_backward(dy, x, scale, mean, inv_std, statistics="fixed")
    assert_gradient(lambda at: loss(at, scale, bias), x, out.dx)
    assert_gradient(lambda at: loss(x, at, bias), scale, out.dscale)
    assert_gradient(lambda at: loss(x, scale, at), bias, out.dbias)


def test_relu_passes_gradients_where_y_is_positive_alone() -> None:
    y = np.array([[[0.0, -0.0, NAN, 1.0, -1.0]]])
    dy = np.full((1, 1, 5), 2.0)
    out = ref.batch_norm_backward(
        dy, random(51, 1, 1, 5), ONE, None, None, y, activation="relu", residual_gradient=True
    )
    assert out.dz.tolist() == [[[0.0, 0.0, 0.0, 2.0, 0.0]]]


NORMS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "layer": ("layer_norm", (4,), {}),
    "layer, two dims": ("layer_norm", (4, 4), {"axis": 1}),
    "layer, zero-centred": ("layer_norm", (4,), {"zero_centered_scale": True}),
    "layer, adaptive": ("layer_norm", (3, 4), {"adaptive": True}),
    "RMS": ("rms_norm", (4,), {}),
    "RMS, zero-centred": ("rms_norm", (4, 4), {"axis": -2, "zero_centered_scale": True}),
    "group": ("group_norm", (4,), {"groups": 2}),
    "instance": ("instance_norm", (4,), {}),
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms_of_a_sample(name: str) -> None:
    primitive, parameters, options = NORMS[name]
    options = {**options, "epsilon": 0.1}
    forward = getattr(ref, f"{primitive}_forward")
    x, dy = random(52, 3, 4, 4), random(53, 3, 4, 4)
    scale, bias = random(54, *parameters), random(55, *parameters)

    def loss(x: Array, scale: Array | None, bias: Array | None) -> float:
        return float(np.sum(forward(x, scale, bias, **options) * dy))

    _, *saved = forward(x, scale, bias, save_statistics=True, **options)
    for statistics in (saved, ()):
        out = getattr(ref, f"{primitive}_backward")(dy, x, scale, *statistics, **options)
        assert_gradient(lambda at: loss(at, scale, bias), x, out.dx)
        assert_gradient(lambda at: loss(x, at, bias), scale, out.dscale)
        assert_gradient(lambda at: loss(x, scale, at), bias, out.dbias)
    plain = getattr(ref, f"{primitive}_backward")(dy, x, bias_gradient=False, **options)
    assert_gradient(lambda at: loss(at, None, None), x, plain)


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_gradients_of_response_normalization(window: int) -> None:
    x, dy, means = random(56, 2, 5, 3, 4), random(57, 2, 5, 3, 4), random(58, 2, 5, 3, 4)
    options: dict[str, Any] = {"window": window, "alpha": 2.0, "beta": 0.6, "k": 0.5}
    assert_gradient(
        lambda at: float(np.sum(ref.lrn_forward(at, **options) * dy)),
        x,
        ref.lrn_backward(dy, x, **options),
    )

    def loss(x: Array, means: Array | None) -> float:
        return float(np.sum(ref.divisive_norm_forward(x, means, **options) * dy))

    out = ref.divisive_norm_backward(dy, x, means, **options)
    assert_gradient(lambda at: loss(at, means), x, out.dx)
    assert_gradient(lambda at: loss(x, at), means, out.dmeans)
    plain = ref.divisive_norm_backward(dy, x, **options)
    assert_gradient(lambda at: loss(at, None), x, plain)


# --- Response normalization over windows ----------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "sums"),
    [(1, [1, 4, 9, 16]), (2, [5, 13, 25, 16]), (3, [5, 14, 29, 25]), (4, [14, 30, 29, 25])],
)
def test_windows_of_channels(window: int, sums: list[float]) -> None:
    """An even window has one more channel behind the centre; α is divided by all n elements."""
    x = array(1, 2, 3, 4).reshape(1, 4, 1)
    y = ref.lrn_forward(x, window=window, alpha=float(window), beta=1.0, k=1.0)
    np.testing.assert_allclose(y.ravel(), array(1, 2, 3, 4) / (1.0 + np.array(sums)))


def test_divisive_normalization_is_over_space_by_distances_from_the_means() -> None:
    x, means = random(60, 2, 3, 4, 5), random(61, 2, 3, 4, 5)
    y = ref.divisive_norm_forward(x, means, window=3, alpha=2.0, beta=0.5, k=0.25)
    for n, c, i, j in np.ndindex(*x.shape):
        near = (slice(max(0, i - 1), i + 2), slice(max(0, j - 1), j + 2))
        spread = 0.25 + 2.0 / 9 * np.sum(np.square(x[n, c][near] - means[n, c][near]))
        assert y[n, c, i, j] == pytest.approx(x[n, c, i, j] / np.sqrt(spread), rel=1e-12)


def test_infinity_in_a_window_makes_its_others_zero() -> None:
    x = array(1, INF, 3, 4).reshape(1, 4, 1)
    y = ref.lrn_forward(x, window=3, alpha=1.0).ravel()
    assert y[0] == y[2] == 0.0
    assert np.isnan(y[1])
    assert np.isfinite(y[3])


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("own", [False, True])
def test_parameters_of_narrow_data_are_float32_or_of_its_dtype(dtype: Any, own: bool) -> None:
    x = random(70, 2, 3, 4).astype(dtype)
    parameter = np.ones(3, dtype if own else np.float32)
    out = ref.batch_norm_forward_training(x, parameter, parameter, save_statistics=True)
    assert [part.dtype for part in out] == [dtype, np.float32, np.float32]
    gradients = ref.batch_norm_backward(x, x, parameter, out.mean, out.inv_std)
    assert [part.dtype for part in gradients] == [dtype, parameter.dtype, parameter.dtype]


@pytest.mark.parametrize(
    ("scale", "mean", "message"),
    [
        (
            "float64",
            "float32",
            "scale is float64 with dy of float16; convert it to float16 or float32",
        ),
        ("float32", "float16", "mean is float16 with dy of float16; convert it to float32"),
    ],
)
def test_other_dtypes_are_refused(scale: str, mean: str, message: str) -> None:
    x = np.ones((2, 3, 4), np.float16)
    statistics = np.ones((2, 3), mean)
    with pytest.raises(spec.DTypeError, match=message):
        ref.layer_norm_backward(x, x, np.ones(4, scale), statistics, np.ones((2, 3), "f"))


def test_a_result_is_rounded_once_to_its_dtype() -> None:
    x = random(71, 4, 64).astype(np.float16)
    y = ref.layer_norm_forward(x)
    assert (y == ref.layer_norm_forward(x.astype(np.float64)).astype(np.float16)).all()


def test_any_layout_gives_the_same() -> None:
    x, scale = random(72, 2, 3, 4, 5), random(73, 3)
    last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    for primitive in (ref.batch_norm_forward_training, ref.instance_norm_forward):
        dense = primitive(x, scale, scale)
        np.testing.assert_allclose(primitive(last, scale, scale), dense, rtol=1e-12, atol=1e-12)


# --- torch ----------------------------------------------------------------------------------------


def test_batch_norm_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    x, dy = random(80, 3, 2, 4, 5), random(81, 3, 2, 4, 5)
    scale, bias, mean, var = random(82, 2), random(83, 2), random(84, 2), np.square(random(85, 2))
    t = {n: torch.tensor(a, requires_grad=n in "xsb") for n, a in
         {"x": x, "s": scale, "b": bias, "m": mean, "v": var}.items()}  # fmt: skip
    y = torch.nn.functional.batch_norm(
        t["x"], t["m"], t["v"], t["s"], t["b"], training=True, momentum=0.3, eps=0.01
    )
    out = ref.batch_norm_forward_training(
        x, scale, bias, mean, var, epsilon=0.01, exponential_average_factor=0.3
    )
    np.testing.assert_allclose(out.y, y.detach(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(out.new_running_mean, t["m"], rtol=1e-10)
    np.testing.assert_allclose(out.new_running_var, t["v"], rtol=1e-10)
    y.backward(torch.tensor(dy))
    gradients = ref.batch_norm_backward(dy, x, scale, epsilon=0.01)
    for got, of in zip(gradients, "xsb", strict=True):
        np.testing.assert_allclose(got, t[of].grad, rtol=1e-9, atol=1e-9)


def test_norms_of_a_sample_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x, scale, bias = random(86, 2, 4, 3, 5), random(87, 4), random(88, 4)
    t = {n: torch.tensor(a) for n, a in {"x": x, "s": scale, "b": bias}.items()}
    pairs = [
        (
            ref.group_norm_forward(x, scale, bias, groups=2),
            functional.group_norm(t["x"], 2, t["s"], t["b"]),
        ),
        (
            ref.instance_norm_forward(x, scale, bias),
            functional.instance_norm(t["x"], weight=t["s"], bias=t["b"]),
        ),
        (ref.layer_norm_forward(x, axis=2), functional.layer_norm(t["x"], (3, 5))),
        (ref.rms_norm_forward(x, axis=2), functional.rms_norm(t["x"], (3, 5), eps=1e-5)),
        (
            ref.lrn_forward(x, window=3, alpha=2.0),
            functional.local_response_norm(t["x"], 3, alpha=2.0, k=2.0),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
