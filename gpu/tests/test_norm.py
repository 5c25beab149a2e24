"""The normalizations on the GPU against their formulas: dtypes, layouts, empty and long sets, workspaces."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu, spec
from dnncanon.gpu.kernels.norm_steps import split_strides
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import View, empty, to_device

Array = np.ndarray[Any, Any]

# The suite's quick level runs the others too, by the same kernels; here they cost CI a hundred seconds.
_OTHERS = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float64", "bfloat16")]
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", *_OTHERS])
each_layout = pytest.mark.parametrize(
    "channels_last", [False, True], ids=["dense", "channels last"]
)

UNIT = {"float64": 2.0**-52, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def random(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    import ml_dtypes

    numpy = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy)


def wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def laid_out(array: Array, channels_last: bool) -> Array:
    if not channels_last:
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def close(actual: Array, expected: Array, dtype: str) -> None:
    assert actual.shape == expected.shape
    unit = UNIT[actual.dtype.name if actual.dtype.name in UNIT else dtype]
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    assert np.max(np.abs(actual.astype(np.float64) - expected), initial=0.0) <= 8 * unit * scale


def normalised(x: Array, axes: tuple[int, ...], epsilon: float = 1e-5) -> tuple[Array, ...]:
    """x̂, mean and 1/√(σ² + ε), in float64."""
    x = x.astype(np.float64)
    mean = x.mean(axis=axes, keepdims=True)
    inv_std = 1.0 / np.sqrt(x.var(axis=axes, keepdims=True) + epsilon)
    return (x - mean) * inv_std, mean, inv_std


def gradient(g: Array, x: Array, axes: tuple[int, ...]) -> Array:
    hat, _, inv_std = normalised(x, axes)
    mean = g.mean(axis=axes, keepdims=True)
    return np.asarray(inv_std * (g - mean - hat * (g * hat).mean(axis=axes, keepdims=True)))


# --- Batch norm -----------------------------------------------------------------------------------


@each_dtype
@each_layout
def test_batch_norm(dtype: str, channels_last: bool) -> None:
    shape, axes, column = (3, 5, 4, 6), (0, 2, 3), (1, 5, 1, 1)
    x, z = (laid_out(random(seed, shape, dtype), channels_last) for seed in (1, 2))
    scale, bias, mean, var = (random(seed, (5,), wide(dtype)) for seed in (3, 4, 5, 6))
    hat, batch_mean, inv_std = normalised(x, axes)
    out = gpu.batch_norm_forward_training(
        x, scale, bias, mean, var, z, activation="relu", save_statistics=True
    )
    y = hat * scale.reshape(column) + bias.reshape(column) + z.astype(np.float64)
    close(out.y, np.maximum(y, 0.0), dtype)
    close(out.mean, batch_mean.ravel(), dtype)
    close(out.inv_std, inv_std.ravel(), dtype)
    close(out.new_running_mean, 0.9 * mean + 0.1 * batch_mean.ravel(), dtype)
    unbiased = x.astype(np.float64).var(axis=axes, ddof=1)
    close(out.new_running_var, 0.9 * var + 0.1 * unbiased, dtype)


@each_dtype
@each_layout
def test_batch_norm_backward(dtype: str, channels_last: bool) -> None:
    shape, axes, column = (3, 5, 4, 6), (0, 2, 3), (1, 5, 1, 1)
    dy, x, y = (laid_out(random(seed, shape, dtype), channels_last) for seed in (1, 2, 3))
    scale = random(4, (5,), wide(dtype))
    g = np.where(y.astype(np.float64) > 0, dy.astype(np.float64), 0.0)
    hat, mean, inv_std = normalised(x, axes)
    saved = mean.ravel().astype(wide(dtype)), inv_std.ravel().astype(wide(dtype))
    for statistics in (saved, (None, None)):
        out = gpu.batch_norm_backward(
            dy, x, scale, *statistics, y, activation="relu", residual_gradient=True
        )
        close(out.dx, scale.reshape(column) * gradient(g, x, axes), dtype)
        close(out.dscale, (g * hat).sum(axis=axes), dtype)
        close(out.dbias, g.sum(axis=axes), dtype)
        close(out.dz, g, dtype)


def test_per_activation_has_a_mean_for_each_element_of_a_sample() -> None:
    x, scale, bias = (
        random(1, (7, 3, 4), "float32"),
        *(random(s, (3, 4), "float32") for s in (2, 3)),
    )
    y = gpu.batch_norm_forward_training(x, scale, bias, mode="per_activation")
    close(y, normalised(x, (0,))[0] * scale + bias, "float32")


def test_a_mean_far_from_0_costs_no_more_than_its_own_rounding() -> None:
    """With the variance as a difference of squares of 1000 no digit of 0.001 would be left."""
    x = (1000.0 + np.arange(64) % 7 / 1024).reshape(1, 1, 64).astype(np.float32)
    one = np.ones(1, np.float32)
    out = gpu.batch_norm_forward_training(x, one, one, save_statistics=True, epsilon=1e-12)
    assert out.inv_std[0] == pytest.approx(1 / x.astype(np.float64).std(), rel=1e-3)


def test_stretches_with_means_of_their_own_make_one_variance() -> None:
    """A set that is split: its stretches differ by more than their elements do."""
    x = np.repeat(np.arange(4.0, dtype=np.float32), 8192) + random(1, (32768,), "float32") / 64
    out = gpu.layer_norm_forward(x[None], save_statistics=True, algorithm="two_pass")
    _, mean, inv_std = normalised(x[None], (1,))
    close(out.mean, mean.ravel(), "float32")
    close(out.inv_std, inv_std.ravel(), "float32")


def test_sums_of_shards_make_the_statistics_of_all() -> None:
    x, shift = random(1, (6, 5, 9), "float16"), np.full(5, 0.25, np.float32)
    scale, bias = random(2, (5,), "float32"), random(3, (5,), "float32")
    shards = [gpu.batch_norm_genstats(part, shift) for part in (x[:2], x[2:2], x[2:])]
    sums = [np.stack([getattr(s, name) for s in shards]) for name in ("sum", "sq_sum")]
    out = gpu.batch_norm_finalize(*sums, scale, bias, None, None, shift, count=54)
    _, mean, inv_std = normalised(x, (0, 2))
    close(out.mean, mean.ravel(), "float32")
    close(out.eq_scale, scale * inv_std.ravel(), "float32")
    close(out.eq_bias, bias - mean.ravel() * scale * inv_std.ravel(), "float32")


def test_coefficients_make_the_gradient() -> None:
    dy, x, scale = random(1, (3, 4, 5), "float32"), random(2, (3, 4, 5), "float32"), np.ones(4, "f")
    _, mean, inv_std = (part.astype(np.float32) for part in normalised(x, (0, 2)))
    out = gpu.batch_norm_backward_weights(dy, x, scale, mean.ravel(), inv_std.ravel())
    a, b, c = (getattr(out, name)[:, None] for name in ("dy_factor", "x_factor", "offset"))
    close(a * dy + b * x + c, gradient(dy, x, (0, 2)), "float32")


# --- Norms of a sample ----------------------------------------------------------------------------

NORMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # name: (primitive, view of x, axes in it, view of scale, attributes)
    "layer": ("layer_norm", (3, 4, 5, 6), (3,), (1, 1, 1, 6), {}),
    "layer, all but the batch": ("layer_norm", (3, 4, 5, 6), (1, 2, 3), (1, 4, 5, 6), {"axis": 1}),
    "adaptive": ("layer_norm", (3, 4, 5, 6), (3,), (3, 1, 1, 6), {"adaptive": True}),
    "group": ("group_norm", (3, 2, 2, 5, 6), (2, 3, 4), (1, 2, 2, 1, 1), {"groups": 2}),
    "instance": ("instance_norm", (3, 4, 5, 6), (2, 3), (1, 4, 1, 1), {}),
}


@each_dtype
@each_layout
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_a_sample(name: str, dtype: str, channels_last: bool) -> None:
    primitive, view, axes, parameters, attributes = NORMS[name]
    dy, x = (laid_out(random(s, (3, 4, 5, 6), dtype), channels_last) for s in (1, 2))
    problem = spec.primitives()[f"{primitive}_forward"].bind(x, **attributes).problem
    problem = getattr(problem, "norm", problem)
    scale, bias = (random(s, problem.parameter_shape, dtype) for s in (3, 4))
    factor, summand = (p.astype(np.float64).reshape(parameters) for p in (scale, bias))
    hat, mean, inv_std = normalised(x.reshape(view), axes)
    out = getattr(gpu, f"{primitive}_forward")(x, scale, bias, save_statistics=True, **attributes)
    close(out.y, (hat * factor + summand).reshape(x.shape), dtype)
    close(out.mean, mean.reshape(problem.statistics_shape), dtype)
    close(out.inv_std, inv_std.reshape(problem.statistics_shape), dtype)

    slope = dy.astype(np.float64).reshape(view)
    rest = tuple(d for d, extent in enumerate(parameters) if extent == 1)
    out = getattr(gpu, f"{primitive}_backward")(dy, x, scale, **attributes)
    close(out.dx, gradient(slope * factor, x.reshape(view), axes).reshape(x.shape), dtype)
    close(out.dscale, (slope * hat).sum(axis=rest).reshape(scale.shape), dtype)
    close(out.dbias, slope.sum(axis=rest).reshape(scale.shape), dtype)


@each_dtype
@each_layout
@pytest.mark.parametrize("algorithm", ["rows", "two_pass"])
def test_instance_norm_with_residual_and_relu(
    algorithm: str, channels_last: bool, dtype: str
) -> None:
    shape, axes, column = (2, 3, 4, 5), (2, 3), (1, 3, 1, 1)
    x, z, dy = (laid_out(random(s, shape, dtype), channels_last) for s in (1, 2, 3))
    scale, bias = random(4, (3,), wide(dtype)), random(5, (3,), wide(dtype))
    hat, _, _ = normalised(x, axes)
    options = {"activation": "relu", "algorithm": algorithm}
    y = gpu.instance_norm_forward(x, scale, bias, z, **options)
    sum_of_all = hat * scale.reshape(column) + bias.reshape(column) + z.astype(np.float64)
    close(y, np.maximum(sum_of_all, 0.0), dtype)
    out = gpu.instance_norm_backward(dy, x, scale, None, None, y, residual_gradient=True, **options)
    g = np.where(y.astype(np.float64) > 0, dy.astype(np.float64), 0.0)
    close(out.dx, gradient(g * scale.reshape(column), x, axes), dtype)
    close(out.dscale, (g * hat).sum(axis=(0, 2, 3)), dtype)
    close(out.dbias, g.sum(axis=(0, 2, 3)), dtype)
    assert (out.dz == g.astype(dy.dtype)).all()


@pytest.mark.parametrize("gaps", ["x", "dx", "both transposed"])
def test_channels_that_are_not_in_one_piece(gaps: str) -> None:
    """Nowhere may a part of a channel be taken for the whole."""
    shape, view, axes = (2, 4, 6, 40), (2, 2, 2, 6, 40), (2, 3, 4)
    x, dy, scale = (random(s, n, "float32") for s, n in enumerate((shape, shape, (4,))))
    given, out = [x, dy], empty(shape, np.float32)
    if gaps == "x":
        given[0] = random(0, (2, 4, 6, 48), "float32")[..., :40]
        given[0][...] = x
    if gaps == "dx":
        out = empty(shape, np.float32, (4 * 6 * 48, 6 * 48, 48, 1))
    if gaps == "both transposed":
        given = [np.ascontiguousarray(a.swapaxes(2, 3)).swapaxes(2, 3) for a in given]
    others = (empty((4,), np.float32), empty((4,), np.float32))
    tensors = (given[1], given[0], scale)
    made = gpu.group_norm_backward(*tensors, groups=2, out=(out, *others))
    slope = dy.astype(np.float64).reshape(view)
    factor = scale.astype(np.float64).reshape(1, 2, 2, 1, 1)
    hat, _, _ = normalised(x.reshape(view), axes)
    close(host(made.dx), gradient(slope * factor, x.reshape(view), axes).reshape(shape), "float32")
    close(host(made.dscale), (slope * hat).sum(axis=(0, 3, 4)).ravel(), "float32")
    close(host(made.dbias), slope.sum(axis=(0, 3, 4)).ravel(), "float32")


@pytest.mark.parametrize("repeated", [(5, 1, 1, 1), (5, 3, 1, 1), (5, 1, 4, 1)])
def test_gradients_that_are_the_same_for_several_elements(repeated: tuple[int, ...]) -> None:
    """A broadcast dy has no order of its own in the dims along which it does not move."""
    shape = (5, 3, 4, 2)
    dy = np.broadcast_to(random(1, repeated, "float32"), shape)
    x, scale = random(2, shape, "float32"), random(3, shape[1:], "float32")
    made = gpu.layer_norm_backward(dy, x, scale, axis=1)
    hat, _, _ = normalised(x, (1, 2, 3))
    close(made.dx, gradient(dy * scale.astype(np.float64), x, (1, 2, 3)), "float32")
    close(made.dscale, (dy * hat).sum(axis=0), "float32")
    close(made.dbias, dy.astype(np.float64).sum(axis=0), "float32")


def host(array: Any) -> Array:
    return np.asarray(array.to_host() if hasattr(array, "to_host") else array)


@each_dtype
def test_rms_norm(dtype: str) -> None:
    dy, x, scale = random(1, (7, 33), dtype), random(2, (7, 33), dtype), random(3, (33,), dtype)
    slope, values, gamma = (a.astype(np.float64) for a in (dy, x, 1.0 + scale.astype(np.float64)))
    q = 1.0 / np.sqrt(np.mean(values**2, axis=1, keepdims=True) + 1e-5)
    out = gpu.rms_norm_forward(x, scale, zero_centered_scale=True, save_statistics=True)
    close(out.y, values * q * gamma, dtype)
    close(out.inv_rms, q.ravel(), dtype)
    out = gpu.rms_norm_backward(dy, x, scale, zero_centered_scale=True)
    g = slope * gamma
    through = values * q * (g * values * q).mean(axis=1, keepdims=True)
    close(out.dx, q * (g - through), dtype)
    close(out.dscale, (slope * values * q).sum(axis=0), dtype)


@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (1, 1), (2, 70_001)])
def test_sets_of_any_size(shape: tuple[int, ...]) -> None:
    x, dy = random(1, shape, "float32"), random(2, shape, "float32")
    close(gpu.layer_norm_forward(x), normalised(x, (1,))[0], "float32")
    out = gpu.layer_norm_backward(dy, x, np.ones(shape[1:], np.float32))
    hat, _, _ = normalised(x, (1,))
    close(out.dscale, (dy * hat).sum(axis=0), "float32")
    close(out.dbias, dy.astype(np.float64).sum(axis=0), "float32")
    if shape[0]:
        close(out.dx, gradient(dy.astype(np.float64), x, (1,)), "float32")


# --- Windows --------------------------------------------------------------------------------------


@each_dtype
@each_layout
@pytest.mark.parametrize("window", [1, 4, 5])
def test_windows_of_channels(window: int, dtype: str, channels_last: bool) -> None:
    x = laid_out(random(1, (2, 7, 3, 4), dtype), channels_last)
    before, squares = (window - 1) // 2, np.square(x.astype(np.float64))
    padded = np.pad(squares, ((0, 0), (before, window - 1 - before), (0, 0), (0, 0)))
    sums = sum(padded[:, tap : tap + 7] for tap in range(window))
    y = gpu.lrn_forward(x, window=window, alpha=2.0, beta=0.5, k=0.25)
    close(y, x.astype(np.float64) / np.sqrt(0.25 + 2.0 / window * sums), dtype)


@pytest.mark.parametrize("primitive", ["lrn", "divisive_norm"])
@pytest.mark.parametrize("window", [2, 3])
def test_gradients_over_windows(primitive: str, window: int) -> None:
    """Central differences, in float64."""
    x, dy = random(1, (1, 4, 3, 3), "float64"), random(2, (1, 4, 3, 3), "float64")
    options: dict[str, Any] = {"window": window, "alpha": 2.0, "beta": 0.6, "k": 0.5}
    dx = getattr(gpu, f"{primitive}_backward")(dy, x, **options)
    forward: Callable[..., Array] = getattr(gpu, f"{primitive}_forward")
    step = 1e-5
    for index in [(0, 0, 0, 0), (0, 1, 2, 1), (0, 3, 1, 2)]:
        there, back = x.copy(), x.copy()
        there[index] += step
        back[index] -= step
        numeric = np.sum((forward(there, **options) - forward(back, **options)) * dy) / (2 * step)
        assert dx[index] == pytest.approx(numeric, rel=1e-6, abs=1e-8)


# --- What they move -------------------------------------------------------------------------------

X = (512, 256)

CALLS: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any], float, float]] = {
    # case: (primitive, shapes of x, of scale, …, attributes, bytes at DRAM over the least, bytes requested)
    "layer": ("layer_norm_forward", (X, (256,), (256,)), {}, 1.01, 1.3),
    "layer, statistics": ("layer_norm_forward", (X,), {"save_statistics": True}, 1.02, 1.1),
    "layer, back": ("layer_norm_backward", (X, X, (256,), (512,), (512,)), {}, 1.1, 1.15),
    "layer, back by itself": ("layer_norm_backward", (X, X, (256,)), {}, 1.1, 1.15),
    "rms, back": ("rms_norm_backward", (X, X, (256,), (512,)), {"bias_gradient": False}, 1.1, 1.1),
    "batch": ("batch_norm_forward_training", ((4, 16, 14, 14), (16,), (16,)), {}, 1.01, 1.1),
    "batch, back": (
        "batch_norm_backward",
        ((4, 16, 14, 14), (4, 16, 14, 14), (16,), (16,), (16,)),
        {},
        1.01,
        1.1,
    ),
    "per activation": (
        "batch_norm_forward_training",
        ((8, 8, 14, 14), (8, 14, 14), (8, 14, 14)),
        {"mode": "per_activation"},
        1.01,
        1.01,
    ),
    "group": ("group_norm_forward", ((4, 16, 14, 14), (16,), (16,)), {"groups": 4}, 1.01, 1.1),
    "group, back": (
        "group_norm_backward",
        ((4, 16, 14, 14), (4, 16, 14, 14), (16,)),
        {"groups": 4},
        1.02,
        1.15,
    ),
    "instance, back": (
        "instance_norm_backward",
        ((4, 16, 14, 14), (4, 16, 14, 14), (16,)),
        {},
        1.02,
        1.1,
    ),
    "few long sets": ("group_norm_forward", ((1, 16, 64, 64),), {"groups": 1}, 1.51, 1.75),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_fits_is_read_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set too long for one launch is read twice: for its statistics, and to be normalised."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    primitive, shapes, attributes, dram, requested = CALLS[case]
    arrays = [np.abs(random(seed, shape, "float32")) for seed, shape in enumerate(shapes)]
    counted = profile(primitive, *arrays, **attributes)
    assert counted.dram_over_least <= dram
    assert counted.bytes_over_least <= requested
    assert counted.sector_efficiency("load") >= 0.95
    assert counted.sector_efficiency("store") >= 0.95


# --- Algorithms and calls -------------------------------------------------------------------------


PRIMITIVES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "batch_norm_forward_training": (("x", "c", "c", "c", "c", "x"), {"activation": "relu"}),
    "batch_norm_backward": (("x", "x", "c", "c", "c", "x"), {"activation": "relu"}),
    "layer_norm_forward": (("x", "row", "row"), {"save_statistics": True}),
    "layer_norm_backward": (("x", "x"), {}),
    "rms_norm_forward": (("x", "row"), {"zero_centered_scale": True}),
    "rms_norm_backward": (("x", "x", "row"), {"zero_centered_scale": True}),
    "group_norm_forward": (("x",), {"groups": 2}),
    "instance_norm_forward": (("x", "c", "c", "x"), {"activation": "relu"}),
    "instance_norm_backward": (
        ("x", "x", "c", "c by n", "c by n", "x"),
        {"activation": "relu", "residual_gradient": True},
    ),
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_both_algorithms_compute_the_same(name: str) -> None:
    shapes = {"x": (2, 4, 50), "c": (4,), "c by n": (2, 4), "row": (50,)}
    tensors, attributes = PRIMITIVES[name]
    dtypes = {"x": "float16", "c": "float32", "c by n": "float32", "row": "float16"}
    arrays = [random(s, shapes[kind], dtypes[kind]) for s, kind in enumerate(tensors)]
    outputs = [
        getattr(gpu, name)(*arrays, algorithm=algorithm, **attributes)
        for algorithm in ("rows", "two_pass")
    ]
    pairs = zip(*(o if isinstance(o, tuple) else (o,) for o in outputs), strict=True)
    for one, other in pairs:
        close(one, other.astype(np.float64), "float16")


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [((2, 3, 100), "rows"), ((1, 1, 1 << 20), "two_pass"), ((4096, 8, 64), "rows")],
)
def test_few_long_sets_are_split(shape: tuple[int, ...], chosen: str) -> None:
    x, scale = np.empty(shape, np.float16), np.ones(shape[1], np.float32)
    first, _ = gpu.algorithms("instance_norm_forward", x, scale)
    assert first.name == chosen


def test_nothing_reads_or_writes_where_it_should_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    dy, x = random(1, (2, 6, 300), "float16"), random(2, (2, 6, 300), "float16")
    scale = random(3, (6,), "float32")
    gpu.batch_norm_forward_training(x, scale, scale, scale, scale, dy, save_statistics=True)
    gpu.batch_norm_backward(dy, x, scale)
    gpu.group_norm_backward(dy, x, scale, groups=3)
    gpu.layer_norm_forward(x[:, :, ::2], save_statistics=True)
    gpu.divisive_norm_backward(dy, x, x, window=4)
    gpu.lrn_backward(dy, x, window=2)


def test_the_workspace_is_exact_and_whatever_is_in_it_does_not_matter() -> None:
    x, scale = random(1, (2, 3, 5000), "float32"), np.ones(3, np.float32)
    algorithm, _ = gpu.algorithms("batch_norm_backward", x, x, scale)
    assert algorithm.deterministic
    expected = gpu.batch_norm_backward(x, x, scale)
    for byte in (0, 255):
        memory = np.full(algorithm.workspace_bytes, byte, np.uint8)
        out = gpu.batch_norm_backward(*map(to_device, (x, x, scale)), workspace=to_device(memory))
        for part, wanted in zip(out, expected, strict=True):
            assert np.array_equal(part.to_host(), wanted)
    small = empty((algorithm.workspace_bytes - 1,), np.uint8)
    tensors = [to_device(array) for array in (x, x, scale)]
    with pytest.raises(spec.ShapeError, match="workspace has"):
        gpu.batch_norm_backward(*tensors, workspace=small)


@pytest.mark.parametrize(
    ("shape", "strides", "view", "expected"),
    [
        ((2, 6, 5), (30, 5, 1), (2, 3, 2, 5), (30, 10, 5, 1)),
        ((6,), (4,), (1, 3, 2, 1), (0, 8, 4, 0)),
        ((0, 6), (6, 1), (0, 3, 2), (6, 2, 1)),
        ((2, 1, 3), (3, 9, 1), (2, 1, 1, 3), (3, 0, 0, 1)),
        ((), (), (1, 1), (0, 0)),
    ],
)
def test_views_split_dims(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    view: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert split_strides(View(shape, strides), view) == expected
