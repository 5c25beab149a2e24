"""Softmax: cases by hand, SciPy and PyTorch, central differences, masks, and rows without a limit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

import dnncanon.reference as ref
from dnncanon.spec import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.softmax import FAST_LIMIT, VARIANTS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
LINEAR = ("accurate", "fast")


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def softmax(x: Any, mask: Any = None, **attributes: Any) -> Any:
    return ref.softmax_forward(np.asarray(x), mask, **attributes)


# --- Values ---------------------------------------------------------------------------------------


def test_values() -> None:
    x = np.log([1.0, 2.0, 5.0])
    for variant in LINEAR:
        assert softmax(x, variant=variant) == pytest.approx([0.125, 0.25, 0.625])
    assert softmax(x, variant="log") == pytest.approx(np.log([0.125, 0.25, 0.625]))
    assert softmax(x, return_stats=True).stats == pytest.approx([np.log(8.0)])


@pytest.mark.parametrize("axes", [-1, (0,), (1, 2), (0, -1), (0, 1, 2)])
def test_scipy_agrees(axes: Any) -> None:
    x = 20 * random(3, 4, 5)
    y, stats = softmax(x, axes=axes, return_stats=True)
    np.testing.assert_allclose(y, special.softmax(x, axis=axes), rtol=1e-12)
    np.testing.assert_allclose(stats, special.logsumexp(x, axis=axes, keepdims=True), rtol=1e-12)
    log = softmax(x, axes=axes, variant="log")
    np.testing.assert_allclose(log, special.log_softmax(x, axis=axes), rtol=1e-12, atol=1e-15)


def test_cudnn_s_modes() -> None:
    x = random(2, 3, 4, 5)
    channel, instance = softmax(x, axes=1), softmax(x, axes=(1, 2, 3))
    assert channel[1, :, 2, 3] == pytest.approx(softmax(x[1, :, 2, 3]))
    assert instance[1].ravel() == pytest.approx(softmax(x[1].ravel()))


def test_rows_add_up_to_one_and_do_not_feel_a_shift() -> None:
    x = random(4, 50)
    for variant in LINEAR:
        y = softmax(x, variant=variant)
        assert y.sum(axis=1) == pytest.approx(np.ones(4))
        np.testing.assert_allclose(softmax(x + 3.0, variant=variant), y, rtol=1e-13)


def test_large_and_distant_x_do_not_overflow() -> None:
    assert softmax([1e5, 1e5 - 1]) == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.e)])
    assert softmax([0.0, -1e5], variant="log").tolist() == [0, -1e5]
    assert softmax([-FAST_LIMIT, FAST_LIMIT], variant="fast").tolist() == [np.exp(-128), 1]


def test_the_logarithm_keeps_digits_that_the_quotient_loses() -> None:
    assert softmax([0.0, 40.0], variant="log")[1] == pytest.approx(-np.exp(-40), rel=1e-12)
    assert softmax([0.0, -1000.0])[1] == 0
    assert softmax([0.0, -1000.0], variant="log")[1] == -1000


def test_rows_of_one_and_of_none() -> None:
    assert softmax([[5.0], [-3.0]]).tolist() == [[1], [1]]
    assert softmax([[5.0], [-3.0]], variant="log").tolist() == [[0], [0]]
    assert softmax([1.0, 2.0], axes=()).tolist() == [1, 1]
    y, stats = softmax(np.zeros((2, 0)), return_stats=True)
    assert y.shape == (2, 0)
    assert stats.tolist() == [[-INF], [-INF]]


def test_stats_are_not_rounded_to_the_narrow_type() -> None:
    stats = softmax(np.arange(4, dtype=np.float16), return_stats=True).stats
    assert stats.dtype == np.float32
    assert stats[0] == np.float32(special.logsumexp(np.arange(4.0)))


# --- Special values -------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["accurate", "log"])
@pytest.mark.parametrize("row", [[-INF, -INF], [1.0, INF], [INF, INF], [NAN, 1.0], [-INF]])
def test_rows_without_a_limit_are_nan(variant: str, row: list[float]) -> None:
    assert np.isnan(softmax(row, variant=variant)).all()


def test_minus_infinity_beside_numbers() -> None:
    x = [0.0, -INF, np.log(3)]
    assert softmax(x) == pytest.approx([0.25, 0, 0.75])
    assert softmax(x, variant="log") == pytest.approx([np.log(0.25), -INF, np.log(0.75)])


def test_stats_of_infinite_rows() -> None:
    x = [[-INF, -INF], [1.0, INF], [1.0, NAN]]
    stats = softmax(x, return_stats=True).stats
    np.testing.assert_array_equal(stats, [[-INF], [INF], [NAN]])


# --- Masks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (1, 1)])
def test_what_is_masked_takes_no_part(variant: str, shape: tuple[int, ...]) -> None:
    x, mask = random(3, 5), np.random.default_rng(2).random(shape) < 0.5
    y = softmax(x, mask, variant=variant)
    for row, parts, whole in zip(x, np.broadcast_to(mask, x.shape), y, strict=True):
        np.testing.assert_allclose(whole[parts], softmax(row[parts], variant=variant), rtol=1e-13)
        assert set(whole[~parts]) <= {-INF if variant == "log" else 0.0}


def test_a_mask_hides_nan_and_infinity() -> None:
    mask = np.array([True, False, True, False])
    assert softmax([1.0, NAN, 1.0, INF], mask).tolist() == [0.5, 0, 0.5, 0]


def test_a_row_that_is_masked_as_a_whole() -> None:
    x, mask = np.array([[1.0, NAN]]), np.array([[False]])
    y, stats = softmax(x, mask, return_stats=True)
    assert (y.tolist(), stats.tolist()) == ([[0, 0]], [[-INF]])
    assert softmax(x, mask, variant="log").tolist() == [[-INF, -INF]]


def test_what_a_mask_leaves_may_have_no_limit() -> None:
    np.testing.assert_array_equal(softmax([-INF, 1.0], np.array([True, False])), [NAN, 0])


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("axes", [(-1,), (0,), (0, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_central_differences(variant: str, axes: Any, masked: bool) -> None:
    x, dy, h = random(2, 3, 4), random(2, 3, 4, seed=1), 1e-6
    mask = np.random.default_rng(2).random(x.shape) < 0.7 if masked else None
    attributes = {"axes": axes, "variant": variant}
    y = softmax(x, mask, **attributes)
    dx = ref.softmax_backward(dy, y, mask, **attributes)
    taken = np.ones(x.shape, bool) if mask is None else mask
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = h
        high, low = softmax(x + step, mask, **attributes), softmax(x - step, mask, **attributes)
        expected = np.sum(dy[taken] * (high[taken] - low[taken])) / (2 * h)
        assert dx[i] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_gradients_of_a_row_add_up_to_zero() -> None:
    for variant in VARIANTS:
        y = softmax(random(3, 6), variant=variant)
        dx = ref.softmax_backward(random(3, 6, seed=1), y, variant=variant)
        assert dx.sum(axis=1) == pytest.approx(np.zeros(3), abs=1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mask_hides_the_gradient(variant: str) -> None:
    mask, dy = np.array([True, False, False]), np.array([1.0, NAN, INF])
    y = np.array([np.log(0.5) if variant == "log" else 0.5, NAN, -INF])
    dx = ref.softmax_backward(dy, y, mask, variant=variant)
    assert dx.tolist() == [0.5 if variant == "log" else 0.25, 0, 0]


def test_pytorch_has_the_same_gradients() -> None:
    torch = pytest.importorskip("torch")
    x, dy = random(3, 7), random(3, 7, seed=1)
    for variant, function in (("accurate", torch.softmax), ("log", torch.log_softmax)):
        leaf = torch.tensor(x, requires_grad=True)
        y = function(leaf, 1)
        y.backward(torch.tensor(dy))
        dx = ref.softmax_backward(dy, y.detach().numpy(), variant=variant)
        np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-10, atol=1e-14)


# --- Arguments ------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    x = np.zeros((2, 3))
    with pytest.raises(ShapeError, match="broadcast"):
        softmax(x, np.ones((3, 3), bool))
    with pytest.raises(ShapeError, match="broadcast"):
        softmax(x, np.ones(3, bool))
    with pytest.raises(DTypeError, match="mask is int8"):
        softmax(x, np.ones((2, 3), np.int8))
    with pytest.raises(AttributeValueError, match="axes=None"):
        softmax(x, axes=None)
    with pytest.raises(AttributeValueError, match="variant="):
        softmax(x, variant="slow")
