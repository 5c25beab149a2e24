"""The kernels of causal convolution against the sums, in every layout; and what they move."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels.causal_conv_fft import Frames, filter_spectra
from dnncanon.gpu.kernels.fft import fill_table, table_size
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import device, empty, to_device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import Unsupported
from dnncanon.spec.causal_conv import ACTIVATIONS, CausalConvProblem
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
@pytest.mark.parametrize("name", ["tiled", "direct"])
def test_the_workspace_is_exact_and_need_not_be_zero(name: str, activation: str) -> None:
    x, w, bias, dy = random(1, 2, 70_000), random(2, 3), random(2), random(1, 2, 70_000, seed=6)
    rows = gpu.algorithms("causal_conv_backward", dy, x, w, bias, activation=activation)
    algorithm = next(row for row in rows if row.name == name)
    keeps_g = name == "direct" and activation == "silu"
    assert (algorithm.workspace_bytes > x.nbytes) == keeps_g
    options = {"activation": activation, "algorithm": name}
    expected = gpu.causal_conv_backward(dy, x, w, bias, **options)
    memory = np.full(algorithm.workspace_bytes, 255, np.uint8)
    tensors = [to_device(array) for array in (dy, x, w, bias)]
    got = gpu.causal_conv_backward(*tensors, workspace=to_device(memory), **options)
    for part, wanted in zip(got, expected, strict=True):
        assert np.array_equal(part.to_host(), wanted)


@pytest.mark.parametrize("adjacent", ["steps", "channels"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taps", [1, 4, 16])
def test_tiles_make_the_gradients_of_the_direct_algorithm(
    taps: int, mode: str, adjacent: str
) -> None:
    """With steps and channels that no tile fills, and more steps than one tile has."""
    x, dy = random(2, 37, 90), random(2, 37, 90, seed=6)
    if adjacent == "steps":
        x, dy = random(2, 3, 2500), random(2, 3, 2500, seed=6)
    else:
        x, dy = (np.ascontiguousarray(a.transpose(0, 2, 1)).transpose(0, 2, 1) for a in (x, dy))
    w, bias = random(x.shape[1], taps), random(x.shape[1])
    made = [
        gpu.causal_conv_backward(dy, x, w, bias, activation="silu", mode=mode, algorithm=algorithm)
        for algorithm in ("tiled", "direct")
    ]
    for part, expected in zip(*made, strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-3)


def test_tiles_are_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, w, dy = random(1, 3, 2100), random(3, 4), random(1, 3, 2100, seed=6)
    gpu.causal_conv_backward(dy, x, w, random(3), activation="silu", algorithm="tiled")
    # Channels that are adjacent, and of which no tile is full.
    x, dy = (np.ascontiguousarray(random(1, 9, 3, seed=s)).transpose(0, 2, 1) for s in (1, 2))
    gpu.causal_conv_backward(dy, x, w, random(3), activation="silu", algorithm="tiled")


@each_activation
def test_all_gradients_come_of_one_reading(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    x, w, dy = random(2, 8, 1024), random(8, 4), random(2, 8, 1024, seed=6)
    counted = profile("causal_conv_backward", dy, x, w, random(8), activation=activation)
    assert counted.dram_over_least <= 1.05
    assert counted.bytes_over_least <= 1.2


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


# --- By Fourier transforms ------------------------------------------------------------------------


@pytest.mark.parametrize("points", [32, 256, 1024])
def test_transforms_are_those_of_numpy(points: int) -> None:
    """Of frames of N = 2·points numbers, by the kernel that makes spectra of filters."""
    p = CausalConvProblem("float64", (1, 3, points), points)
    w = random(3, points, dtype=np.float64)[:, ::-1]
    table, out = (
        empty(shape, dtype) for shape, dtype in (Frames.of(p).table, Frames.of(p).filters)
    )
    filter_spectra(p, to_device(np.ascontiguousarray(w)), table, out, None)
    expected = np.fft.rfft(np.concatenate([w[:, ::-1], np.zeros((3, points))], axis=1))
    re, im = np.split(out.to_host()[:, 0], 2, axis=1)
    norm = np.linalg.norm(w)
    assert np.abs(re - expected.real[:, :points]).max() < 1e-15 * norm
    assert np.abs(im[:, 1:] - expected.imag[:, 1:points]).max() < 1e-15 * norm
    assert np.abs(im[:, 0] - expected.real[:, points]).max() < 1e-15 * norm


def test_factors_of_transforms_are_rounded_once() -> None:
    table = empty((table_size(2048),), np.float32)
    fill_table(table, 2048, None)
    cosines, sines = np.split(table.to_host(), 2)
    angles = 2 * np.pi * np.arange(4096) / 4096
    spacing = np.spacing(np.float32(0.5))
    assert np.abs(cosines - np.cos(angles)).max() <= spacing / 2 * 1.01
    assert np.abs(sines - np.sin(angles)).max() <= spacing / 2 * 1.01
    assert (cosines[[0, 1024, 2048, 3072]] == [1, 0, -1, 0]).all()
    assert (sines[[0, 1024, 2048, 3072]] == [0, 1, 0, -1]).all()


LENGTHS = [(1, 1), (40, 5), (33, 32), (700, 200), (30, 90), (257, 257), (5000, 2300)]


@pytest.mark.parametrize(("steps", "taps"), LENGTHS)
def test_by_transforms_it_is_the_same(steps: int, taps: int) -> None:
    """Segments and parts of filters, one or several, whole or not."""
    x, w, bias = random(2, 2, steps), random(2, taps, seed=6), random(2, seed=7)
    y = gpu.causal_conv_forward(x, w, bias, mode="convolution", algorithm="fft")
    spectra = np.fft.rfft(x.astype(float), 2 * (steps + taps)) * np.fft.rfft(
        w.astype(float), 2 * (steps + taps)
    )
    expected = np.fft.irfft(spectra)[:, :, :steps] + bias[:, None]
    scale = np.sqrt(taps)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=2e-6 * scale)


@each_activation
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("steps", "taps"), [(40, 5), (700, 200), (30, 90)])
def test_gradients_by_transforms_are_the_same(
    steps: int, taps: int, mode: str, activation: str
) -> None:
    given = [
        random(*shape, seed=s, dtype=np.float64)
        for s, shape in enumerate(((3, 2, steps), (3, 2, steps), (2, taps), (2,)))
    ]
    options = {"mode": mode, "activation": activation}
    direct = gpu.causal_conv_backward(*given, algorithm="direct", **options)
    for one, other in zip(
        gpu.causal_conv_backward(*given, algorithm="fft", **options), direct, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12 * np.abs(other).max())
    if taps > steps:
        beyond = slice(0, taps - steps) if mode == "cross_correlation" else slice(steps, taps)
        got = gpu.causal_conv_backward(*given, algorithm="fft", **options).dw
        assert (got[:, beyond] == 0.0).all()


def test_gradients_of_filters_of_several_parts() -> None:
    dy, x, w = random(2, 1, 2500), random(2, 1, 2500, seed=6), random(1, 2100, seed=7)
    dx, dw = gpu.causal_conv_backward(dy, x, w, algorithm="fft")
    wide = [a.astype(float) for a in (dy, x, w)]
    size = 8192
    g_hat, x_hat = (np.fft.rfft(a, size) for a in wide[:2])
    lags = np.fft.irfft(np.sum(g_hat * np.conj(x_hat), axis=0))[:, :2100][:, ::-1]
    np.testing.assert_allclose(dw, lags, rtol=1e-5, atol=1e-6 * np.abs(lags).max())
    back = np.fft.irfft(g_hat * np.conj(np.fft.rfft(wide[2][:, ::-1], size)))[:, :, :2500]
    np.testing.assert_allclose(dx, back, rtol=1e-5, atol=1e-6 * np.abs(back).max())


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0)], ids=str)
def test_transforms_take_any_layout(order: tuple[int, int, int]) -> None:
    x, w = random(2, 5, 70), random(5, 9)
    back = np.argsort(order)
    laid_out = np.ascontiguousarray(x.transpose(order)).transpose(back)
    out = np.zeros_like(np.ascontiguousarray(x.transpose(order))).transpose(back)
    gpu.causal_conv_forward(laid_out, w, algorithm="fft", out=out)
    assert (out == gpu.causal_conv_forward(x, w, algorithm="fft")).all()


def test_a_small_sequence_keeps_its_digits_beside_a_large_one() -> None:
    """No two sequences share a transform, so that errors are relative to each one's own norm."""
    x, w = random(1, 2, 200), random(2, 20, seed=6)
    alone = gpu.causal_conv_forward(x[:, 1:], w[1:], algorithm="fft")
    x[:, 0] *= 1e6
    assert (gpu.causal_conv_forward(x, w, algorithm="fft")[:, 1:] == alone).all()


def test_transforms_are_chosen_by_who_allows_their_errors() -> None:
    x, w = random(1, 1, 600), random(1, 300, seed=6)
    direct, fft = gpu.algorithms("causal_conv_forward", x, w)
    assert (direct.name, direct.numerics) == ("direct", "ieee")
    assert (fft.name, fft.numerics, fft.deterministic) == ("fft", "fft", True)
    by_transforms = gpu.causal_conv_forward(x, w, algorithm="fft")
    directly = gpu.causal_conv_forward(x, w)
    assert (gpu.causal_conv_forward(x, w, math="fft") == by_transforms).all()
    assert (directly != by_transforms).any()
    short = random(1, 4, seed=6)
    assert (
        gpu.causal_conv_forward(x, short, math="fft") == gpu.causal_conv_forward(x, short)
    ).all()
    with pytest.raises(Unsupported, match='math="ieee"'):
        gpu.causal_conv_forward(x, w, math="ftz")


@each_activation
def test_the_workspace_of_transforms_is_exact(activation: str) -> None:
    x, w, bias, dy = random(1, 2, 300), random(2, 40), random(2), random(1, 2, 300, seed=6)
    rows = gpu.algorithms("causal_conv_backward", dy, x, w, bias, activation=activation)
    nbytes = next(row.workspace_bytes for row in rows if row.name == "fft")
    options = {"activation": activation, "algorithm": "fft"}
    expected = gpu.causal_conv_backward(dy, x, w, bias, **options)
    memory = to_device(np.full(nbytes, 255, np.uint8))
    tensors = [to_device(array) for array in (dy, x, w, bias)]
    for part, wanted in zip(
        gpu.causal_conv_backward(*tensors, workspace=memory, **options), expected, strict=True
    ):
        assert np.array_equal(part.to_host(), wanted)


def test_the_checked_emulator_finds_nothing_in_transforms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    for steps, taps in ((150, 40), (20, 70)):
        shapes = (1, 2, steps), (1, 2, steps), (2, taps), (2,)
        tensors = [to_device(random(*shape)) for shape in shapes]
        gpu.causal_conv_backward(*tensors, activation="silu", algorithm="fft")


# --- Gated ----------------------------------------------------------------------------------------


def gated_operands(near: int, far: int, steps: int, dtype: Any = np.float32) -> list[Array]:
    """x, projection, mixer and skip of two sequences of two channels, whole numbers."""
    return [
        whole(2, 2, 3, steps, dtype=dtype),
        whole(2, 3, near, seed=6, dtype=dtype),
        whole(2, far, seed=7, dtype=dtype),
        whole(2, seed=8, dtype=dtype),
    ]


def later_sums(g: Array, w: Array) -> Array:
    """Σ_j g[t + j]·w_j"""
    return np.flip(sums(np.flip(g, 2), w, np.zeros(w.shape[0])), 2)


def products(g: Array, x: Array, taps: int) -> Array:
    """Σ g[t]·x[t − j], the farthest tap first."""
    steps = g.shape[2]
    return np.stack(
        [
            np.sum(g[:, :, j:] * x[:, :, : max(0, steps - j)], axis=(0, 2))
            for j in reversed(range(taps))
        ],
        axis=1,
    )


def projected(x: Array, projection: Array) -> list[Array]:
    return [sums(x[:, :, i], projection[:, i], np.zeros(2)) for i in range(3)]


@pytest.mark.parametrize(
    ("near", "far", "steps"), [(1, 1, 5), (3, 4, 33), (3, 600, 1100), (2, 40, 30)]
)
def test_a_gated_convolution(near: int, far: int, steps: int) -> None:
    x, projection, mixer, skip = gated_operands(near, far, steps, np.float64)
    gate, one, other = projected(x, projection)
    y = sums(one * other, mixer, np.zeros(2)) + skip[:, None] * one * other
    got = gpu.gated_causal_conv_forward(x, projection, mixer, skip)
    assert (got.y == y).all()
    assert (got.gated == gate * y).all()
    again = gpu.gated_causal_conv_forward(
        x, projection[:, :, ::-1], mixer[:, ::-1], skip, mode="convolution"
    )
    assert (again.y == y).all()


@pytest.mark.parametrize(
    ("near", "far", "steps"), [(1, 1, 5), (3, 4, 33), (3, 600, 1100), (2, 40, 30)]
)
def test_gradients_of_a_gated_convolution(near: int, far: int, steps: int) -> None:
    x, projection, mixer, skip = gated_operands(near, far, steps, np.float64)
    dgated, y = (whole(2, 2, steps, seed=s, dtype=np.float64) for s in (11, 12))
    gate, one, other = projected(x, projection)
    g = dgated * gate
    dv = later_sums(g, mixer) + skip[:, None] * g
    slopes = (dgated * y, dv * other, dv * one)
    got = gpu.gated_causal_conv_backward(dgated, y, x, projection, mixer, skip)
    for i, slope in enumerate(slopes):
        assert (got.dx[:, :, i] == later_sums(slope, projection[:, i])).all()
        assert (got.dprojection[:, i] == products(slope, x[:, :, i], near)).all()
    assert (got.dmixer == products(g, one * other, far)).all()
    assert (got.dskip == np.sum(g * one * other, axis=(0, 2))).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_the_gate_is_of_what_is_not_rounded(dtype: Any) -> None:
    """Of numbers of 8 bits and fewer all sums are exact in float32."""
    x, projection, mixer, skip = gated_operands(3, 4, 40, dtype)
    wide = [a.astype(np.float64) for a in (x, projection, mixer, skip)]
    gate, one, other = projected(*wide[:2])
    y = sums(one * other, wide[2], np.zeros(2)) + wide[3][:, None] * one * other
    got = gpu.gated_causal_conv_forward(x, projection, mixer, skip)
    assert (got.y == y.astype(dtype)).all()
    assert (got.gated == (gate * y).astype(dtype)).all()


def test_a_gated_convolution_is_one_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    x, projection, mixer = random(2, 4, 3, 1024), random(4, 3, 3), random(4, 65)
    arrays = [to_device(a) for a in (x, projection, mixer)]
    with emulated.recording() as launches:
        gpu.gated_causal_conv_forward(*arrays)
    (report,) = launches
    profile: Any = report.profile
    # Three taps of each of three projections, two of them for an eighth more steps than there are; most hit a
    # cache. That is 9.75 reads of a step, in 5 sectors for a warp instead of 4, and two results.
    least = x.nbytes + 2 * x.nbytes // 3
    assert profile.bytes_over_least(least) < 1.25 * (9.75 + 2) / 5 * 1.1


def test_the_checked_emulator_finds_nothing_gated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, projection, mixer, skip = map(to_device, gated_operands(3, 520, 530))
    dgated, y = (to_device(random(2, 2, 530, seed=s)) for s in (9, 10))
    gpu.gated_causal_conv_forward(x, projection, mixer)
    gpu.gated_causal_conv_backward(dgated, y, x, projection, mixer, skip)


def test_the_checked_emulator_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    tensors = [to_device(t) for t in (random(2, 3, 70), random(2, 3, 70), random(3, 4), random(3))]
    gpu.causal_conv_backward(*tensors, activation="silu")
