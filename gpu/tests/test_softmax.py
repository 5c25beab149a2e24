"""Softmax of the GPU library against SciPy: rows of all kinds, masks, special values; what it moves."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from dnncanon import gpu
from dnncanon.gpu.kernels import row_map
from dnncanon.gpu.runtime import device, to_device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf
VARIANTS = ("accurate", "log", "fast")


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(x: Array, variant: str, axes: Any = -1) -> Array:
    function = special.log_softmax if variant == "log" else special.softmax
    return np.asarray(function(x.astype(float), axis=axes))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 40), (1,)), ((5, 7), (0,)), ((2, 9, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((3, 9000), (1,))],
    ids=str,
)
def test_values(variant: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = 4 * random(*shape)
    y, stats = gpu.softmax_forward(x, axes=axes, variant=variant, return_stats=True)
    np.testing.assert_allclose(y, expected(x, variant, axes), rtol=1e-5, atol=1e-6)
    logarithm = special.logsumexp(x.astype(float), axis=axes, keepdims=True)
    np.testing.assert_allclose(stats, logarithm, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_dtypes(dtype: Any) -> None:
    x = random(4, 24, dtype=dtype)
    y, stats = gpu.softmax_forward(x, return_stats=True)
    assert y.dtype == dtype
    assert stats.dtype == (np.float64 if dtype == np.float64 else np.float32)
    tolerance = {8: 1e-13, 2: 2.0**-8}[y.itemsize]
    np.testing.assert_allclose(y.astype(float), expected(x, "accurate"), rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(3, 12), (3, 1), (1, 12)])
def test_masks(variant: str, shape: tuple[int, ...]) -> None:
    x, mask = random(3, 12), np.random.default_rng(1).random(shape) < 0.6
    x[0, 0] = NAN
    mask[0, 0] = False
    nothing = -INF if variant == "log" else 0.0
    y = gpu.softmax_forward(x, mask, variant=variant)
    for row, parts, whole in zip(x, np.broadcast_to(mask, x.shape), y, strict=True):
        assert set(whole[~parts]) <= {nothing}
        if parts.any():
            np.testing.assert_allclose(whole[parts], expected(row[parts], variant), rtol=1e-5)


def test_rows_without_a_limit_are_nan() -> None:
    rows = np.array([[-INF, -INF], [1, INF], [INF, INF], [NAN, 1]], np.float32)
    for variant in ("accurate", "log"):
        y, stats = gpu.softmax_forward(rows, variant=variant, return_stats=True)
        assert np.isnan(y).all()
        np.testing.assert_array_equal(stats[:, 0], [-INF, INF, INF, NAN])


def test_minus_infinity_beside_numbers() -> None:
    x = np.array([0, -INF, np.log(3)], np.float32)
    assert gpu.softmax_forward(x) == pytest.approx([0.25, 0, 0.75])
    assert gpu.softmax_forward(x, variant="log")[1] == -INF


def test_distant_x() -> None:
    x = np.array([-1e30, 1e30, 1e30], np.float32)
    assert gpu.softmax_forward(x).tolist() == [0, 0.5, 0.5]
    ascending = np.arange(2000, dtype=np.float32)  # each element is a new maximum
    y = gpu.softmax_forward(ascending)
    np.testing.assert_allclose(y[-3:], expected(ascending, "accurate")[-3:], rtol=1e-5)


def test_rows_of_one_and_of_none() -> None:
    assert gpu.softmax_forward(random(3, 1)).tolist() == [[1]] * 3
    y, stats = gpu.softmax_forward(np.zeros((2, 0), np.float32), return_stats=True)
    assert y.shape == (2, 0)
    assert stats.tolist() == [[-INF], [-INF]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("length", "masked"), [(12, False), (12, True), (9000, False)])
def test_gradients(variant: str, length: int, masked: bool) -> None:
    dy, y = random(2, length), expected(random(2, length, seed=1), variant)
    mask = np.random.default_rng(2).random((2, length)) < 0.5 if masked else None
    dx = gpu.softmax_backward(dy, y.astype(np.float32), mask, variant=variant)
    taken = np.ones(y.shape, bool) if mask is None else mask
    part, of = np.where(taken, dy, 0).astype(float), np.where(taken, y, 0)
    total = (part if variant == "log" else part * of).sum(1, keepdims=True)
    gradient = part - np.exp(of) * total if variant == "log" else of * (part - total)
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(dx, np.where(taken, gradient, 0), rtol=1e-4, atol=1e-6 * scale)


def test_partial_sums_of_a_thread_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that have more than SERIAL elements of a row are met in large problems only."""
    monkeypatch.setattr(row_map, "SERIAL", 8)
    row_map.row_kernel.cache_clear()
    x = random(3, 1000)
    y = gpu.softmax_forward(x)
    row_map.row_kernel.cache_clear()
    np.testing.assert_allclose(y, expected(x, "accurate"), rtol=1e-5)


def test_layouts_do_not_matter() -> None:
    x = random(4, 6, 8)
    for view in (x[:, ::2], x.transpose(2, 0, 1), np.broadcast_to(x[:1], x.shape)):
        y = gpu.softmax_forward(view, axes=1)
        np.testing.assert_allclose(y, expected(view, "accurate", 1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 48), (2, 5000)])
def test_nothing_is_raced_for_or_read_uninitialised(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = to_device(random(*shape))
    y, _ = gpu.softmax_forward(x, return_stats=True)
    gpu.softmax_backward(x, y)


def traffic(call: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """Bytes that all launches of ``call`` move."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        call()
    return sum(launch.profile.bytes_over_least(1) for launch in launches if launch.profile)


@pytest.mark.parametrize(
    ("shape", "readings"),
    [((64, 256), 1), ((2, 64, 128), 1), ((1, 2**16), 2)],
    ids=["rows that are kept", "along a slow axis", "a row that is split"],
)
def test_rows_are_read_once_unless_they_are_split(
    shape: tuple[int, ...], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random(*shape)
    moved = traffic(lambda: gpu.softmax_forward(to_device(x), axes=1), monkeypatch)
    assert 0.99 <= moved / ((readings + 1) * x.nbytes) <= 1.05


def test_of_a_row_that_does_not_fit_the_rest_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy = (random(4, 8188, dtype=np.float64, seed=seed) for seed in (0, 1))
    y = np.asarray(gpu.softmax_forward(x, axes=1))
    got: list[Any] = []

    def call() -> None:
        got.append(gpu.softmax_backward(to_device(dy), to_device(y), axes=1))

    moved = traffic(call, monkeypatch)
    assert 2 * 1.2 + 1 <= moved / x.nbytes <= 2 * 1.3 + 1
    expected = y * (dy - np.sum(y.astype(np.float64) * dy, axis=1, keepdims=True))
    np.testing.assert_allclose(got[0].to_host(), expected, rtol=1e-5, atol=1e-9)
