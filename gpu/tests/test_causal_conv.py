"""The kernels of causal convolution against the sums, in every layout; and what they move."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.runtime import device, to_device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec.causal_conv import ACTIVATIONS
from dnncanon.spec.conv_problem import MODES

Array = np.ndarray[Any, Any]
DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)

each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def random(*shape: int, seed: int = 5, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def whole(*shape: int, seed: int = 5, dtype: Any = np.float32) -> Array:
    """Small whole numbers: sums of their products are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def sums(x: Array, w: Array, bias: Array, mode: str = "cross_correlation") -> Array:
    """bias + Σ_j x[t − j]·w_j in float64."""
    present_first = w[:, ::-1] if mode == "cross_correlation" else w
    a = np.zeros(x.shape) + bias.astype(float)[:, None]
    for j in range(min(w.shape[1], x.shape[2])):
        a[:, :, j:] += x[:, :, : x.shape[2] - j].astype(float) * present_first[:, j, None].astype(
            float
        )
    return a


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_sums_over_taps(dtype: Any, mode: str) -> None:
    x, w, bias = whole(2, 3, 40, dtype=dtype), whole(3, 5, dtype=dtype), whole(3, dtype=dtype)
    y = gpu.causal_conv_forward(x, w, bias, mode=mode)
    assert (y == sums(x, w, bias, mode).astype(dtype)).all()


@each_activation
@pytest.mark.parametrize("taps", [1, 4, 50])
def test_gradients(activation: str, taps: int) -> None:
    x, w, bias = random(3, 4, 37), random(4, taps, seed=6), random(4, seed=7)
    dy = random(3, 4, 37, seed=8)
    a = sums(x, w, bias)
    share = 1 / (1 + np.exp(-a))
    g = dy * share * (1 + a * (1 - share)) if activation == "silu" else dy.astype(float)
    present_first = w[:, ::-1].astype(float)
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for j in range(min(taps, 37)):
        dx[:, :, : 37 - j] += g[:, :, j:] * present_first[:, j, None]
        dw[:, taps - 1 - j] = np.sum(g[:, :, j:] * x[:, :, : 37 - j], axis=(0, 2))
    got = gpu.causal_conv_backward(dy, x, w, bias, activation=activation)
    for part, wanted in zip(got, (dx, dw, g.sum(axis=(0, 2))), strict=True):
        np.testing.assert_allclose(part, wanted, rtol=2e-5, atol=2e-5)


def test_sums_over_steps_longer_than_a_block() -> None:
    x, dy, w = whole(2, 2, 700), whole(2, 2, 700, seed=6), whole(2, 3)
    _, dw = gpu.causal_conv_backward(dy, x, w)
    expected = [np.sum(dy[:, :, 2 - k :] * x[:, :, : 698 + k], axis=(0, 2)) for k in range(3)]
    assert (dw == np.stack(expected, axis=1)).all()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)], ids=str)
def test_any_layout(order: tuple[int, int, int]) -> None:
    x, w, bias = whole(2, 5, 9), whole(5, 4), whole(5)
    back = np.argsort(order)
    laid_out = np.ascontiguousarray(x.transpose(order)).transpose(back)
    out = np.zeros_like(np.ascontiguousarray(x.transpose(order))).transpose(back)
    gpu.causal_conv_forward(laid_out, w, bias, out=out)
    assert (out == sums(x, w, bias)).all()


@each_activation
def test_the_workspace_is_exact_and_need_not_be_zero(activation: str) -> None:
    x, w, bias, dy = random(1, 2, 70_000), random(2, 3), random(2), random(1, 2, 70_000, seed=6)
    options = {"activation": activation}
    (algorithm,) = gpu.algorithms("causal_conv_backward", dy, x, w, bias, **options)
    assert (algorithm.workspace_bytes > x.nbytes) == (activation == "silu")
    expected = gpu.causal_conv_backward(dy, x, w, bias, **options)
    memory = np.full(algorithm.workspace_bytes, 255, np.uint8)
    tensors = [to_device(array) for array in (dy, x, w, bias)]
    got = gpu.causal_conv_backward(*tensors, workspace=to_device(memory), **options)
    for part, wanted in zip(got, expected, strict=True):
        assert np.array_equal(part.to_host(), wanted)


@pytest.mark.parametrize("adjacent", ["steps", "channels"])
def test_neighbouring_threads_read_neighbours(
    adjacent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    x = random(1, 64, 256)
    if adjacent == "channels":
        x = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    out = to_device(np.zeros_like(x))
    assert out.strides[1] == (1 if adjacent == "channels" else 256)
    with emulated.recording() as launches:
        gpu.causal_conv_forward(to_device(x), to_device(random(64, 2)), out=out)
    (report,) = launches
    profile: Any = report.profile
    # y; x, and x one step before, which along steps takes a warp five sectors instead of four; and the weights
    # of two taps: one sector along steps, eight along channels, for those of neighbours lie two apart.
    least = 1 + 2.25 + 2 / 4 if adjacent == "steps" else 1 + 2 + 2 * 8 / 4
    assert profile.bytes_over_least(x.nbytes) == pytest.approx(least, rel=0.02)


def test_the_checked_emulator_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    tensors = [to_device(t) for t in (random(2, 3, 70), random(2, 3, 70), random(3, 4), random(3))]
    gpu.causal_conv_backward(*tensors, activation="silu")
