"""Losses: cases by hand, all alignments one by one, central differences, PyTorch, and what has no loss."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

import dnncanon.reference as ref
from dnncanon.spec import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.loss_problem import NORM_MODES, REDUCTIONS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
IGNORED = -100


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def central_differences(function: Any, x: Array, h: float = 1e-6) -> Array:
    """The derivative of a number by each element of x."""
    slopes = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = h
        slopes[i] = (function(x + step) - function(x - step)) / (2 * h)
    return slopes


# --- Cross entropy: values ------------------------------------------------------------------------


def loss(logits: Any, target: Any, weight: Any = None, **attributes: Any) -> Any:
    return ref.cross_entropy_forward(np.asarray(logits), np.asarray(target), weight, **attributes)


LOGITS = np.log([[1.0, 2.0, 5.0], [4.0, 2.0, 2.0]])


def test_values() -> None:
    each = loss(LOGITS, [2, 1], reduction="none")
    assert each == pytest.approx([-np.log(0.625), -np.log(0.25)])
    assert loss(LOGITS, [2, 1], reduction="sum") == pytest.approx(each.sum())
    assert loss(LOGITS, [2, 1]) == pytest.approx(each.mean())
    assert loss(LOGITS, [2, 1], return_stats=True).stats == pytest.approx([np.log(8)] * 2)


def test_weights() -> None:
    weight = np.array([1.0, 3.0, 0.5])
    each = loss(LOGITS, [2, 1], weight, reduction="none")
    assert each == pytest.approx([-0.5 * np.log(0.625), -3 * np.log(0.25)])
    assert loss(LOGITS, [2, 1], weight) == pytest.approx(each.sum() / 3.5)


def test_smoothing_is_a_mixture_with_the_mean_over_all_classes() -> None:
    surprise = -special.log_softmax(LOGITS[0])
    weight = np.array([1.0, 3.0, 0.5])
    smooth = loss(LOGITS[0], 2, weight, axis=0, label_smoothing=0.1, reduction="sum")
    assert smooth == pytest.approx(0.9 * 0.5 * surprise[2] + 0.1 * (weight * surprise).mean())
    assert loss(LOGITS[0], 2, axis=0, label_smoothing=1.0) == pytest.approx(surprise.mean())


def test_ignored_rows_do_not_count() -> None:
    target = [2, IGNORED]
    assert loss(LOGITS, target, reduction="none") == pytest.approx([-np.log(0.625), 0])
    assert loss(LOGITS, target) == pytest.approx(-np.log(0.625))
    assert loss(LOGITS, [2, 1], ignore_index=1) == pytest.approx(-np.log(0.625))
    assert loss([[0.0, NAN], [0.0, 0.0]], [IGNORED, 0]) == pytest.approx(np.log(2))


def test_nothing_but_ignored_rows() -> None:
    target = [IGNORED, IGNORED]
    assert loss(LOGITS, target, reduction="sum") == 0
    assert np.isnan(loss(LOGITS, target))
    assert np.isnan(loss(np.zeros((0, 3)), np.zeros(0, np.int64)))
    assert loss(np.zeros((0, 3)), np.zeros(0, np.int64), reduction="sum") == 0


def test_targets_that_are_no_class() -> None:
    each = loss(LOGITS[[0, 0, 0]], [3, -1, 2], reduction="none")
    np.testing.assert_array_equal(np.isnan(each), [True, True, False])
    assert np.isnan(loss(LOGITS, [3, 0], reduction="sum"))
    dlogits = gradient(LOGITS, [3, 0], np.ones(2), reduction="none")
    np.testing.assert_array_equal(np.isnan(dlogits), [[True] * 3, [False] * 3])


def test_large_logits_do_not_drown_a_small_loss() -> None:
    assert loss([[1e6, 1e6 - 2]], [0]) == pytest.approx(np.log1p(np.exp(-2)), rel=1e-14, abs=0)


def test_rows_without_a_limit() -> None:
    rows = [[NAN, 0.0], [INF, 0.0], [-INF, -INF], [0.0, -INF], [-INF, 0.0]]
    each, stats = loss(rows, [1, 1, 0, 0, 0], reduction="none", return_stats=True)
    np.testing.assert_array_equal(each, [NAN, NAN, NAN, 0, INF])
    np.testing.assert_array_equal(stats, [NAN, INF, -INF, 0, 0])
    smooth = loss(rows, [1, 1, 0, 0, 0], reduction="none", label_smoothing=0.5)
    np.testing.assert_array_equal(smooth, [NAN, NAN, NAN, INF, INF])


@pytest.mark.parametrize("axis", [1, 0, 2, -1])
def test_axes(axis: int) -> None:
    x = random(3, 4, 5)
    rows = np.moveaxis(x, axis, -1)
    target = np.random.default_rng(1).integers(0, rows.shape[-1], rows.shape[:-1])
    each = loss(x, target, axis=axis, reduction="none")
    expected = -np.take_along_axis(special.log_softmax(rows, axis=-1), target[..., None], -1)
    np.testing.assert_allclose(each, expected[..., 0], rtol=1e-12)


def test_the_loss_of_narrow_logits_is_float32() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.array([[1, 2, 4]], dtype)
        value, stats = loss(x, np.array([0], np.int32), return_stats=True)
        assert value.dtype == stats.dtype == np.float32
        assert stats[0] == np.float32(special.logsumexp([1, 2, 4]))


# --- Cross entropy: gradients ---------------------------------------------------------------------


def gradient(
    logits: Any, target: Any, dloss: Any, weight: Any = None, axis: int = 1, **attributes: Any
) -> Any:
    x = np.asarray(logits)
    stats = special.logsumexp(x, axis=axis)
    attributes["axis"] = axis
    return ref.cross_entropy_backward(
        x, np.asarray(target), np.asarray(stats), np.asarray(dloss, float), weight, **attributes
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_central_differences(
    reduction: str, smoothing: float, weighted: bool
) -> None:
    x, weight = random(2, 4, 3), np.array([0.5, 2.0, 1.0, 0.0]) if weighted else None
    target = np.array([[0, 3, IGNORED], [2, 1, 1]])
    dloss = random(2, 3, seed=1) if reduction == "none" else np.float64(1.7)
    attributes: Any = {"reduction": reduction, "label_smoothing": smoothing}
    expected = central_differences(
        lambda x: np.sum(dloss * loss(x, target, weight, **attributes)), x
    )
    found = gradient(x, target, dloss, weight, **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_gradients_of_a_row_add_up_to_zero() -> None:
    x, target = random(5, 7), [0, 1, 2, 3, IGNORED]
    for smoothing in (0.0, 0.1):
        found = gradient(x, target, 1.0, label_smoothing=smoothing)
        assert found.sum(axis=1) == pytest.approx(np.zeros(5), abs=1e-15)


def test_ignored_rows_have_no_gradient_whatever_they_hold() -> None:
    found = gradient([[NAN, 0.0], [0.0, 0.0]], [IGNORED, 0], 1.0)
    assert found.tolist() == [[0, 0], [-0.5, 0.5]]
    assert gradient(LOGITS, [IGNORED, IGNORED], 1.0).tolist() == [[0] * 3] * 2


def test_a_gradient_is_that_of_the_stats_as_they_are() -> None:
    stats = np.array([0.0])
    found = ref.cross_entropy_backward(np.log([[2.0, 3.0]]), np.array([0]), stats, np.array(1.0))
    assert found[0] == pytest.approx([1, 3])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_pytorch_has_the_same_losses_and_gradients(
    reduction: str, smoothing: float, weighted: bool
) -> None:
    torch = pytest.importorskip("torch")
    x, weight = 3 * random(4, 5, 2), random(5, seed=2) ** 2 if weighted else None
    target = np.random.default_rng(3).integers(0, 5, (4, 2))
    target[1, 0] = target[3, 1] = 2
    attributes: Any = {
        "ignore_index": 2,
        "label_smoothing": smoothing,
        "reduction": reduction,
    }
    leaf = torch.tensor(x, requires_grad=True)
    of_torch = torch.nn.functional.cross_entropy(
        leaf,
        torch.tensor(target),
        None if weight is None else torch.tensor(weight),
        **attributes,
    )
    value = loss(x, target, weight, **attributes)
    np.testing.assert_allclose(value, of_torch.detach().numpy(), rtol=1e-12)
    dloss = random(*of_torch.shape, seed=4)
    of_torch.backward(torch.tensor(dloss))
    found = gradient(x, target, dloss, weight, **attributes)
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-10, atol=1e-14)


# --- CTC: values ----------------------------------------------------------------------------------


def ctc(x: Any, labels: Any, input_lengths: Any = None, **attributes: Any) -> Any:
    """Costs and gradients; labels are lists of different lengths."""
    x = np.asarray(x)
    longest = max(map(len, labels), default=0)
    padded = np.array([[*label, *(-1,) * (longest - len(label))] for label in labels], np.int32)
    lengths = np.array([len(label) for label in labels], np.int32)
    steps = [len(x)] * len(labels) if input_lengths is None else input_lengths
    attributes.setdefault("return_gradients", True)
    return ref.ctc_loss(
        x, padded.reshape(len(labels), longest), lengths, np.array(steps, np.int32), **attributes
    )


def collapsed(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """The labelling of an alignment: repetitions once, then no blanks."""
    return tuple(k for k, _ in itertools.groupby(path) if k != blank)


def enumerated(y: Array, label: tuple[int, ...], blank: int) -> tuple[float, Array]:
    """The probability of a labelling, and of it with class k at step t: over all alignments."""
    steps, classes = y.shape
    total, with_class = 0.0, np.zeros(y.shape)
    for path in itertools.product(range(classes), repeat=steps):
        if collapsed(path, blank) == label:
            probability = float(np.prod([y[t, k] for t, k in enumerate(path)]))
            total += probability
            for t, k in enumerate(path):
                with_class[t, k] += probability
    return total, with_class


LABELS = ((), (1,), (2,), (1, 2), (1, 1), (2, 1, 2), (1, 1, 2), (2, 2, 2), (1, 2, 1, 2, 1))


@pytest.mark.parametrize("norm_mode", NORM_MODES)
@pytest.mark.parametrize("label", LABELS, ids=str)
@pytest.mark.parametrize("blank", [0, 2])
def test_all_alignments_one_by_one(norm_mode: str, label: tuple[int, ...], blank: int) -> None:
    label = tuple((k + blank) % 3 for k in label)
    x = random(5, 1, 3)
    y = special.softmax(x, axis=2)
    total, with_class = enumerated(y[:, 0], label, blank)
    given = x if norm_mode == "softmax" else y
    costs, gradients = ctc(given, [label], norm_mode=norm_mode, blank=blank)
    assert costs == pytest.approx([-np.log(total)])
    np.testing.assert_allclose(gradients[:, 0], y[:, 0] - with_class / total, atol=1e-12)


def test_probabilities_of_all_labellings_add_up_to_one() -> None:
    labels = {collapsed(path, 0) for path in itertools.product(range(3), repeat=4)}
    x = np.repeat(random(4, 1, 3), len(labels), axis=1)
    assert np.exp(-ctc(x, sorted(labels)).costs).sum() == pytest.approx(1)


def test_a_labelling_without_labels_is_all_blank() -> None:
    x = random(6, 1, 4)
    assert ctc(x, [()]).costs == pytest.approx([-special.log_softmax(x, axis=2)[:, 0, 0].sum()])


def test_hundreds_of_steps_do_not_underflow() -> None:
    costs, gradients = ctc(np.zeros((2000, 1, 2)), [(1,)])
    # One label: 2000·2001/2 alignments of the same probability.
    assert costs == pytest.approx([2000 * np.log(2) - np.log(2000 * 2001 / 2)])
    assert np.isfinite(gradients).all()


def test_samples_do_not_feel_each_other_nor_what_is_behind_their_ends() -> None:
    x, labels, steps = random(7, 3, 4), [(1, 2), (3,), (2, 2, 1)], [5, 7, 6]
    costs, gradients = ctc(x, labels, steps)
    for n in range(3):
        alone = ctc(x[: steps[n], n : n + 1], [labels[n]])
        assert costs[n] == pytest.approx(alone.costs[0])
        np.testing.assert_allclose(gradients[: steps[n], n], alone.gradients[:, 0], atol=1e-14)
    x[5:, 0] = NAN
    np.testing.assert_array_equal(ctc(x, labels, steps).gradients[:, 0], gradients[:, 0])


def test_gradients_are_zero_in_steps_that_do_not_count() -> None:
    """tensorflow#41280"""
    for mode in ("zero", "skip"):
        gradients = ctc(random(7, 2, 4), [(1, 2), (1, 1, 1)], [4, 2], oob_gradients=mode).gradients
        assert not gradients[4:, 0].any()
        assert not gradients[2:, 1].any()


@pytest.mark.parametrize("label", [(1, 2, 3), (1, 1), (3, 3)])
def test_impossible_labellings(label: tuple[int, ...]) -> None:
    x = random(2, 1, 4)
    costs, gradients = ctc(x, [label])
    assert costs.tolist() == [INF]
    assert not gradients.any()
    assert np.isnan(ctc(x, [label], oob_gradients="skip").gradients).all()


def test_a_labelling_whose_probability_is_zero_is_impossible() -> None:
    y = np.array([[[0.5, 0.5, 0.0]]])
    costs, gradients = ctc(y, [(2,)], norm_mode="none")
    assert (costs.tolist(), gradients.tolist()) == ([INF], [[[0, 0, 0]]])


def test_samples_of_no_steps() -> None:
    costs, gradients = ctc(np.zeros((0, 2, 3)), [(), (1,)])
    assert (costs.tolist(), gradients.shape) == ([0, INF], (0, 2, 3))
    costs, gradients = ctc(random(3, 2, 3), [(), (1,)], [0, 0])
    assert costs.tolist() == [0, INF]
    assert not gradients.any()


def test_labels_of_256_and_more() -> None:
    """pytorch#53505"""
    label = tuple(1 + k % 2 for k in range(300))
    x = np.zeros((300, 1, 3))
    assert ctc(x, [label]).costs == pytest.approx([300 * np.log(3)])


def test_nothing_but_the_blank() -> None:
    assert ctc(random(4, 1, 1), [()]).costs.tolist() == [0]


def test_what_is_no_labelling_is_nan() -> None:
    x = random(3, 5, 3)
    labels = np.array([[3], [-1], [0], [1], [1]])
    lengths, steps = np.array([1, 1, 1, 2, 1]), np.array([3, 3, 3, 3, 4])
    costs, gradients = ref.ctc_loss(x, labels, lengths, steps, return_gradients=True)
    assert np.isnan(costs).all()
    assert np.isnan(gradients).all()
    legal = ref.ctc_loss(x, labels, np.array([0, 0, 0, 1, 1]), np.array([3] * 5))
    assert np.isfinite(legal).all()


def test_nan_in_a_step_that_counts() -> None:
    x = random(4, 2, 3)
    x[1, 0, 2] = NAN
    costs, gradients = ctc(x, [(1,), (1,)], [3, 3])
    np.testing.assert_array_equal(np.isnan(costs), [True, False])
    assert np.isnan(gradients[:3, 0]).all()
    assert not gradients[3].any()


def test_costs_are_float32_and_gradients_as_the_activations() -> None:
    x = random(4, 1, 3).astype(np.float16)
    costs, gradients = ctc(x, [(1, 2)])
    assert (costs.dtype, gradients.dtype) == (np.float32, np.float16)


# --- CTC: gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_mode", NORM_MODES)
def test_ctc_gradients_are_those_of_central_differences(norm_mode: str) -> None:
    x, labels, steps = random(5, 3, 4), [(1, 2), (), (3, 3)], [5, 4, 3]

    def given(x: Array) -> Array:
        return x if norm_mode == "softmax" else special.softmax(x, axis=2)

    found = ctc(given(x), labels, steps, norm_mode=norm_mode).gradients
    expected = central_differences(
        lambda x: np.sum(ctc(given(x), labels, steps, norm_mode=norm_mode).costs), x
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("blank", [0, 3])
def test_pytorch_has_the_same_costs_and_gradients(blank: int) -> None:
    torch = pytest.importorskip("torch")
    x = 2 * random(9, 3, 5)
    labels, steps = [(1, 2, 2), (4,), (1, 4, 1, 2)], [9, 6, 8]
    costs, gradients = ctc(x, labels, steps, blank=blank)
    leaf = torch.tensor(x, requires_grad=True)
    of_torch = torch.nn.functional.ctc_loss(
        torch.log_softmax(leaf, 2),
        torch.tensor([k for label in labels for k in label]),
        torch.tensor(steps),
        torch.tensor([len(label) for label in labels]),
        blank,
        reduction="none",
    )
    np.testing.assert_allclose(costs, of_torch.detach().numpy(), rtol=1e-12)
    of_torch.sum().backward()
    np.testing.assert_allclose(gradients, leaf.grad.numpy(), rtol=1e-9, atol=1e-13)


def test_gradients_of_a_step_add_up_to_zero() -> None:
    gradients = ctc(random(6, 2, 4), [(1, 2, 1), (3,)]).gradients
    assert gradients.sum(axis=2) == pytest.approx(np.zeros((6, 2)), abs=1e-14)


# --- Arguments ------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    x, target = np.zeros((2, 3)), np.zeros(2, np.int64)
    with pytest.raises(ShapeError, match="no class"):
        loss(np.zeros((2, 0)), target)
    with pytest.raises(ShapeError, match="target has shape"):
        loss(x, np.zeros(3, np.int64))
    with pytest.raises(ShapeError, match="weight has shape"):
        loss(x, target, np.zeros(2))
    with pytest.raises(DTypeError, match="target is float64"):
        loss(x, np.zeros(2))
    with pytest.raises(DTypeError, match="weight is float16"):
        loss(x, target, np.zeros(3, np.float16))
    with pytest.raises(AttributeValueError, match="from 0 to 1"):
        loss(x, target, label_smoothing=1.5)
    with pytest.raises(AttributeValueError, match="ignore_index="):
        loss(x, target, ignore_index=2**31)
    with pytest.raises(ShapeError, match="padded to the longest"):
        ref.ctc_loss(np.zeros((4, 2, 3)), target, target, target)
    with pytest.raises(AttributeValueError, match="blank=3"):
        ref.ctc_loss(np.zeros((4, 2, 3)), target[:, None], target, target, blank=3)
