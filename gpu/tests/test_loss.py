"""Losses of the GPU library against SciPy and the definition's formula: rows and samples of all kinds."""

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from dnncanon import gpu
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import device, to_device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def classes(count: int, *shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(0, count, shape)


# --- Cross entropy --------------------------------------------------------------------------------


def expected(
    x: Array, target: Array, weight: Array | None, smoothing: float, reduction: str
) -> tuple[Any, Array]:
    """The loss and its gradient for dloss = 1; classes last, 0 ignored."""
    surprise = -special.log_softmax(x.astype(float), axis=-1)
    w = np.ones(x.shape[-1]) if weight is None else weight
    counts = target != 0
    of_target = np.where(counts, w[target], 0.0)
    chosen = target[..., None] == np.arange(x.shape[-1])
    share = smoothing / x.shape[-1]
    mix = (1 - smoothing) * of_target[..., None] * chosen + share * w * counts[..., None]
    loss = np.sum(mix * surprise, axis=-1)
    gradient = np.exp(-surprise) * mix.sum(-1, keepdims=True) - mix
    if reduction == "none":
        return loss, gradient
    total = of_target.sum() if reduction == "mean" else 1.0
    return loss.sum() / total, gradient / total


@pytest.mark.parametrize(
    ("shape", "weighted", "smoothing", "reduction"),
    [
        ((6, 40), False, 0.0, "mean"),
        ((6, 40), True, 0.1, "none"),
        ((2, 3, 19), True, 0.0, "mean"),
        ((2, 3, 19), False, 0.2, "sum"),
        ((2, 9000), True, 0.3, "mean"),
        ((3000, 2), False, 0.0, "mean"),
    ],
)
def test_losses_and_gradients(
    shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str
) -> None:
    x, target = 3 * random(*shape), classes(shape[-1], *shape[:-1])
    target.flat[0] = 0
    weight = np.random.default_rng(2).random(shape[-1], np.float32) if weighted else None
    options: Any = {
        "axis": -1,
        "ignore_index": 0,
        "label_smoothing": smoothing,
        "reduction": reduction,
    }
    loss, stats = gpu.cross_entropy_forward(x, target, weight, return_stats=True, **options)
    wanted, gradient = expected(x, target, weight, smoothing, reduction)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stats, special.logsumexp(x, axis=-1), rtol=1e-5, atol=1e-6)
    dloss = np.ones(np.shape(wanted), np.float32)
    found = gpu.cross_entropy_backward(x, target, stats, dloss, weight, **options)
    np.testing.assert_allclose(found, gradient, rtol=2e-5, atol=1e-6 * np.abs(gradient).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_dtypes(dtype: Any) -> None:
    x, target = random(4, 24, dtype=dtype), classes(24, 4).astype(np.int32)
    loss, stats = gpu.cross_entropy_forward(x, target, return_stats=True)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert loss.dtype == stats.dtype == wide
    wanted, gradient = expected(x, target, None, 0.0, "mean")
    tolerance = 1e-12 if dtype == np.float64 else 1e-6
    # Class 0 is ignored in what is expected; here it counts as any other.
    assert (target != 0).all()
    assert float(loss) == pytest.approx(float(wanted), rel=tolerance)
    found = gpu.cross_entropy_backward(x, target, stats, np.ones((), wide))
    assert found.dtype == dtype
    rounding = {8: 1e-12, 2: 2.0**-8}[found.itemsize]
    np.testing.assert_allclose(found.astype(float), gradient, rtol=rounding, atol=1e-7)


def test_layouts_do_not_matter() -> None:
    x, target, weight = random(4, 6, 8), classes(6, 4, 8), np.arange(1, 13, dtype=np.float32)[::2]
    wanted = gpu.cross_entropy_forward(x, target, weight.copy(), reduction="none")
    last = np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
    gaps = np.repeat(x, 2, axis=2)[:, :, ::2]
    for view in (last, gaps, x[::-1][::-1]):
        loss = gpu.cross_entropy_forward(view, target, weight, reduction="none")
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        stats = special.logsumexp(x, axis=1)
        one = np.ones((), np.float32)
        found = gpu.cross_entropy_backward(view, target, stats, one, weight, reduction="sum")
        dense = gpu.cross_entropy_backward(x, target, stats, one, weight, reduction="sum")
        np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-7)


def test_rows_without_a_limit_and_targets_without_a_class() -> None:
    x = np.array([[NAN, 0], [INF, 0], [-INF, -INF], [0, -INF], [-INF, 0], [0, 0]], np.float32)
    target = np.array([1, 1, 0, 0, 0, 2])
    for smoothing, fourth in ((0.0, 0.0), (0.5, INF)):
        options: Any = {"reduction": "none", "label_smoothing": smoothing, "return_stats": True}
        loss, stats = gpu.cross_entropy_forward(x, target, **options)
        np.testing.assert_array_equal(loss, [NAN, NAN, NAN, fourth, INF, NAN])
        np.testing.assert_array_equal(stats[:5], [NAN, INF, -INF, 0, 0])
    one = np.ones(6, np.float32)
    found = gpu.cross_entropy_backward(x, target, stats, one, reduction="none")
    assert np.isnan(found[5]).all()
    found = gpu.cross_entropy_backward(x, target, stats, one, ignore_index=1, reduction="none")
    assert not found[:2].any()


def test_what_is_ignored_or_empty() -> None:
    x, target = random(3, 4), np.full(3, 7)
    assert np.isnan(gpu.cross_entropy_forward(x, target, ignore_index=7))
    assert gpu.cross_entropy_forward(x, target, ignore_index=7, reduction="sum") == 0
    assert np.isnan(gpu.cross_entropy_forward(x[:0], target[:0]))
    assert gpu.cross_entropy_forward(x[:0], target[:0], reduction="sum") == 0


def test_large_logits_do_not_drown_a_small_loss() -> None:
    x = np.array([[1e6, 1e6 - 2]], np.float32)
    for smoothing in (0.0, 0.5):
        loss = gpu.cross_entropy_forward(x, np.array([0]), label_smoothing=smoothing)
        assert loss == pytest.approx(np.log1p(np.exp(-2)) + smoothing, rel=1e-6)


# --- CTC ------------------------------------------------------------------------------------------


def enumerated(y: Array, label: tuple[int, ...]) -> tuple[float, Array]:
    """The probability of a labelling, and of it with class k at step t: over all alignments; blank 0."""
    total, with_class = 0.0, np.zeros(y.shape)
    for path in itertools.product(range(y.shape[1]), repeat=len(y)):
        if tuple(k for k, _ in itertools.groupby(path) if k) == label:
            probability = float(np.prod([y[t, k] for t, k in enumerate(path)]))
            total += probability
            for t, k in enumerate(path):
                with_class[t, k] += probability
    return total, with_class


LABELS = ((), (1,), (1, 2), (1, 1), (2, 1, 2), (1, 1, 2), (1, 2, 1, 2, 1), (2, 2, 2, 2))


def batch(labels: Any) -> tuple[Array, Array]:
    """Padded labels, with lengths."""
    longest = max(map(len, labels))
    padded = np.array([[*label, *(-1,) * (longest - len(label))] for label in labels], np.int32)
    return padded.reshape(len(labels), longest), np.array(
        [len(label) for label in labels], np.int32
    )


@pytest.mark.parametrize("norm_mode", ["softmax", "none"])
def test_all_alignments_one_by_one(norm_mode: str) -> None:
    x = random(5, len(LABELS), 3)
    y = special.softmax(x.astype(float), axis=2)
    labels, lengths = batch(LABELS)
    given = x if norm_mode == "softmax" else y.astype(np.float32)
    steps = np.full(len(LABELS), 5, np.int32)
    options: Any = {"norm_mode": norm_mode, "return_gradients": True}
    costs, gradients = gpu.ctc_loss(given, labels, lengths, steps, **options)
    for n, label in enumerate(LABELS):
        total, with_class = enumerated(y[:, n], label)
        if total == 0:
            assert costs[n] == INF
            assert not gradients[:, n].any()
        else:
            assert costs[n] == pytest.approx(-np.log(total), rel=1e-5)
            np.testing.assert_allclose(gradients[:, n], y[:, n] - with_class / total, atol=2e-6)
    alone = gpu.ctc_loss(given, labels, lengths, steps, norm_mode=norm_mode)
    np.testing.assert_array_equal(alone, costs)


def test_more_states_and_classes_than_threads() -> None:
    label = tuple(1 + k % 299 for k in range(300))
    x = np.zeros((301, 1, 300))
    labels, lengths = batch([label])
    costs, gradients = gpu.ctc_loss(
        x, labels, lengths, np.array([301], np.int32), return_gradients=True
    )
    # One of the 300 labels lasts for two steps, or a blank stands in one of 301 places.
    assert costs == pytest.approx([301 * np.log(300) - np.log(300 + 301)])
    assert gradients.sum(axis=2) == pytest.approx(np.zeros((301, 1)), abs=1e-9)
    assert gradients[0, 0, 0] == pytest.approx(1 / 300 - 1 / 601)
    assert gradients[0, 0, 2] == pytest.approx(1 / 300)


def test_ends_of_samples() -> None:
    """Steps beyond the input length, no steps at all, and what is no labelling."""
    x = random(4, 6, 3)
    labels = np.array([[1, 2], [1, 1], [1, -1], [0, 1], [3, 1], [2, 1]], np.int64)
    lengths, steps = np.array([2, 2, 0, 2, 1, 3]), np.array([3, 2, 0, 4, 2, 4])
    for mode, impossible in (("zero", 0.0), ("skip", NAN)):
        costs, gradients = gpu.ctc_loss(
            x, labels, lengths, steps, oob_gradients=mode, return_gradients=True
        )
        assert np.isfinite(costs[0])
        np.testing.assert_array_equal(costs[1:], [INF, 0, NAN, NAN, NAN])
        assert gradients[:3, 0].all()
        assert not gradients[3:, 0].any()
        np.testing.assert_array_equal(gradients[:2, 1], np.full((2, 3), impossible))
        assert not gradients[2:, 1].any()
        assert not gradients[:, 2].any()
        assert np.isnan(gradients[:, 3]).all()
        assert np.isnan(gradients[:2, 4]).all()
        assert not gradients[2:, 4].any()


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16])
def test_dtypes_of_ctc(dtype: Any) -> None:
    x = random(5, 1, 3, dtype=dtype)
    labels, lengths = batch([(1, 2)])
    costs, gradients = gpu.ctc_loss(
        x, labels, lengths, np.array([5], np.int32), return_gradients=True
    )
    y = special.softmax(x.astype(float), axis=2)[:, 0]
    total, with_class = enumerated(y, (1, 2))
    exact = dtype == np.float64
    assert costs.dtype == (np.float64 if exact else np.float32)
    assert costs == pytest.approx([-np.log(total)], rel=1e-12 if exact else 1e-5)
    assert gradients.dtype == dtype
    tolerance = 1e-12 if exact else 2.0**-8
    np.testing.assert_allclose(
        gradients[:, 0].astype(float), y - with_class / total, atol=tolerance
    )


# --- Both -----------------------------------------------------------------------------------------


def test_nothing_is_raced_for_or_read_uninitialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, target = to_device(random(9, 20)), to_device(classes(20, 9))
    weight, one = to_device(np.ones(20, np.float32)), to_device(np.ones((), np.float32))
    options: Any = {"label_smoothing": 0.1}
    _, stats = gpu.cross_entropy_forward(x, target, weight, return_stats=True, **options)
    gpu.cross_entropy_backward(x, target, stats, one, weight, **options)
    labels, lengths = batch([(1, 2, 1), (), (3, 3, 3), (2,)])
    integers = [to_device(a) for a in (labels, lengths, np.array([6, 5, 4, 0], np.int32))]
    for gradients in (True, False):
        activations = to_device(random(6, 4, 5))
        gpu.ctc_loss(activations, *integers, return_gradients=gradients)


@pytest.mark.parametrize(("shape", "axis"), [((16, 4096), 1), ((2, 512, 64), 1)])
def test_each_logit_is_read_once_in_each_direction(
    shape: tuple[int, ...], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    rows = (*shape[:axis], *shape[axis + 1 :])
    x, target = to_device(random(*shape)), to_device(classes(shape[axis], *rows))
    stats, one = to_device(random(*rows)), to_device(np.ones((), np.float32))

    def moved(call: Any) -> float:
        with emulated.recording() as launches:
            call()
        return sum(launch.profile.bytes_over_least(1) for launch in launches if launch.profile)

    least = 4 * int(np.prod(shape))
    of_rows = 200 * int(np.prod(rows))  # a sector for each of a few arrays
    forward = moved(lambda: gpu.cross_entropy_forward(x, target))
    backward = moved(lambda: gpu.cross_entropy_backward(x, target, stats, one))
    assert forward <= 1.05 * least + of_rows
    # A thread of a row that is split reads its 20 bytes about the row for 16 elements, from a cache.
    assert backward <= (1.05 * 2 + 20 / 16 / 4) * least + of_rows


@pytest.mark.parametrize("weighted", [False, True])
def test_of_few_classes_little_else_reaches_dram(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in segmentation: 19 classes for each pixel. Losses of all are written, and read for their sum.

    So are the weights of their targets, where there are any.
    """
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    x, target = random(2, 19, 32, 64), classes(19, 2, 32, 64)
    options = (np.ones(19, np.float32),) if weighted else ()
    forward = profile("cross_entropy_forward", x, target, *options)
    assert forward.dram_over_least <= (1.4 if weighted else 1.2)
    stats, one = random(2, 32, 64), np.ones((), np.float32)
    backward = profile("cross_entropy_backward", x, target, stats, one, *options)
    assert backward.dram_over_least <= (1.25 if weighted else 1.06)


X, TARGET = random(2, 5, 6, dtype=np.float16), classes(5, 2, 6).astype(np.int32)
WEIGHT, STATS, DLOSS = np.ones(5, np.float32), random(2, 6), np.ones((), np.float32)


def _ctc() -> Any:
    lengths = np.array([2, 1], np.int32)
    return gpu.ctc_loss(random(6, 2, 5), classes(4, 2, 2).astype(np.int32), lengths, lengths + 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gpu.cross_entropy_forward(
            X, TARGET, WEIGHT, label_smoothing=0.1, return_stats=True
        ),
        lambda: gpu.cross_entropy_forward(X, TARGET, reduction="none"),
        lambda: gpu.cross_entropy_backward(X, TARGET, STATS, DLOSS, WEIGHT, label_smoothing=0.1),
        _ctc,
    ],
    ids=["forward", "forward plain", "backward", "ctc"],
)
def test_kernels_compile_for_hardware_and_compute_in_float32(call: Any) -> None:
    from numba import cuda

    from dnncanon.gpu.emulator.compiler.acquire import without_device
    from dnncanon.gpu.static.recording import recording

    with recording() as launches:
        call()
    assert launches
    for launched in launches:
        with without_device():
            ptx, _ = cuda.compile(
                launched.kernel.function, launched.signature, cc=(9, 0), device=False, abi="numba"
            )
        # Scalars come as float64 and are rounded once.
        assert not re.search(r"\b(fma|mul|add|sub|div|setp\.\w+)(\.rn)?\.f64\b", str(ptx))
