"""Every kernel of the convolution family against the formula, bit for bit on data that is exact."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import conv_implicit_gemm
from dnncanon.gpu.kernels.conv_implicit_gemm import LARGE, NARROW, SMALL
from dnncanon.gpu.kernels.tile.shape import Tile

DTYPES = ("float64", "float32", "float16", "bfloat16")
ALGORITHMS = ("direct", "implicit_gemm")
Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]

# name: (x shape, w shape, attributes)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((2, 5, 6), (7, 5, 1), {}),
    "1d": ((2, 3, 17), (4, 3, 5), {"padding": 2, "stride": 2, "dilation": 2}),
    "2d": ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": 1}),
    "3d": ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"padding": (0, 1, 1), "stride": (1, 2, 1)}),
    "convolution mode": ((1, 2, 7, 6), (3, 2, 3, 2), {"padding": 1, "mode": "convolution"}),
    "stride over filter": ((1, 2, 11, 10), (3, 2, 2, 2), {"stride": 3}),
    "stride and dilation with a common divisor": (
        (1, 2, 15, 14),
        (3, 2, 3, 3),
        {"stride": (4, 2), "dilation": (2, 4), "padding": (1, 3)},
    ),
    "asymmetric padding": ((2, 2, 6, 5), (3, 2, 3, 4), {"padding": ((0, 3), (2, 1))}),
    "padding over filter": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": 4, "stride": 2}),
    "same": ((1, 2, 7, 8), (2, 2, 4, 3), {"padding": "same", "stride": 2}),
    "groups": ((2, 6, 7, 7), (8, 3, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 5, 8, 7), (10, 1, 3, 3), {"groups": 5, "padding": 1, "stride": 2}),
    "more than a tile": ((3, 9, 12, 13), (70, 9, 3, 3), {"padding": 1}),
    "no batch": ((0, 2, 5, 5), (3, 2, 3, 3), {}),
    "no input channels": ((2, 0, 5, 5), (3, 0, 3, 3), {}),
    "no filters": ((2, 2, 5, 5), (0, 2, 3, 3), {}),
    "no input positions": ((2, 2, 0, 3), (3, 2, 2, 2), {"padding": 1}),
}
each_case = pytest.mark.parametrize("case", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def same(actual: Array, expected: Array) -> None:
    """``actual`` is ``expected``, rounded to its dtype."""
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(
        actual.astype(np.float64), expected.astype(actual.dtype).astype(np.float64)
    )


def channels_last(array: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@each_case
@each_dtype
@each_algorithm
def test_forward(
    case: str, dtype: str, algorithm: str, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    x, w = exact(x_shape, dtype, 1), exact(w_shape, dtype, 2)
    y = gpu.conv_forward(x, w, **attributes, algorithm=algorithm)
    assert y.dtype == x.dtype
    same(y, definition.forward(definition.problem(x_shape, w_shape, **attributes), x, w))


@each_case
@each_dtype
@each_algorithm
def test_backward_data(
    case: str, dtype: str, algorithm: str, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    dy, w = exact(problem.y_shape, dtype, 1), exact(w_shape, dtype, 2)
    dx = gpu.conv_backward_data(
        dy, w, **attributes, input_size=problem.input_size, algorithm=algorithm
    )
    same(dx, definition.backward_data(problem, dy, w))


@each_case
@each_dtype
@each_algorithm
def test_backward_filter(
    case: str, dtype: str, algorithm: str, definition: SimpleNamespace, exact: Exact
) -> None:
    x_shape, w_shape, attributes = CASES[case]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, dy = exact(x_shape, dtype, 1), exact(problem.y_shape, dtype, 2)
    dw = gpu.conv_backward_filter(
        x, dy, **attributes, filter_size=problem.filter_size, algorithm=algorithm
    )
    same(dw, definition.backward_filter(problem, x, dy))


@each_dtype
@each_algorithm
@pytest.mark.parametrize("activation", ["identity", "relu"])
@pytest.mark.parametrize("with_z", [False, True])
def test_bias_activation(
    dtype: str,
    algorithm: str,
    activation: str,
    with_z: bool,
    definition: SimpleNamespace,
    exact: Exact,
) -> None:
    x_shape, w_shape, attributes = CASES["groups"]
    problem = definition.problem(x_shape, w_shape, **attributes)
    x, w = exact(x_shape, dtype, 1), exact(w_shape, dtype, 2)
    bias, z = exact(w_shape[:1], dtype, 3), exact(problem.y_shape, dtype, 4)
    y = gpu.conv_bias_activation_forward(
        x,
        w,
        bias,
        z if with_z else None,
        **attributes,
        activation=activation,
        alpha1=-0.5,
        alpha2=2.0,
        algorithm=algorithm,
    )
    expected = -0.5 * definition.forward(problem, x, w) + bias.reshape(-1, 1, 1)
    if with_z:
        expected = expected + 2.0 * z.astype(np.float64)
    same(y, np.maximum(expected, 0) if activation == "relu" else expected)


@each_dtype
@pytest.mark.parametrize(
    "shape", [(2, 3, 7), (3, 5, 6, 4), (2, 2, 3, 4, 5), (0, 3, 4), (2, 0, 4), (1, 2, 130, 131)]
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_backward_bias(
    dtype: str, shape: tuple[int, ...], channels_last: bool, exact: Exact
) -> None:
    dy = exact(shape, dtype)
    if channels_last:
        dy = np.moveaxis(np.ascontiguousarray(np.moveaxis(dy, 1, -1)), -1, 1)
    db = gpu.conv_backward_bias(dy)
    same(db, dy.astype(np.float64).sum((0, *range(2, dy.ndim))))


@pytest.mark.parametrize("tile", [NARROW, SMALL, LARGE], ids=str)
@pytest.mark.parametrize("layout", [np.ascontiguousarray, channels_last])
def test_every_tile(
    tile: Tile,
    layout: Callable[[Array], Array],
    monkeypatch: pytest.MonkeyPatch,
    definition: SimpleNamespace,
    exact: Exact,
) -> None:
    monkeypatch.setattr(conv_implicit_gemm, "tile_for", lambda part, word: tile)
    x_shape, w_shape = (2, 10, 13, 11), (140, 5, 3, 3)
    attributes: dict[str, Any] = {"padding": 1, "groups": 2}
    x, w = layout(exact(x_shape, "float32", 1)), layout(exact(w_shape, "float32", 2))
    y = gpu.conv_forward(x, w, **attributes, algorithm="implicit_gemm")
    same(y, definition.forward(definition.problem(x_shape, w_shape, **attributes), x, w))


# --- Layouts --------------------------------------------------------------------------------------


def gaps(array: Array) -> Array:
    """The same values, NaN between them in memory."""
    memory = np.full([2 * n + 1 for n in array.shape], np.nan, array.dtype)
    view = memory[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
    view[...] = array
    return view


def transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.T).T


def broadcast(array: Array) -> Array:
    return np.broadcast_to(array[:1, :, :1], array.shape)


def backwards(array: Array) -> Array:
    flip = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[flip])[flip]


LAYOUTS = (gaps, channels_last, transposed, broadcast, backwards)


@each_dtype
@pytest.mark.parametrize("primitive", ["conv_forward", "conv_backward_filter"])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, channels_last])
def test_split_depth(
    dtype: str,
    primitive: str,
    layout: Callable[[Array], Array],
    definition: SimpleNamespace,
    exact: Exact,
) -> None:
    """Few tiles and long sums: the depth is split, and the workspace says so."""
    attributes: dict[str, Any] = {"groups": 2}
    if primitive == "conv_forward":
        first, second = exact((1, 600, 5, 5), dtype, 1), exact((10, 300, 3, 3), dtype, 2)
        problem = definition.problem(first.shape, second.shape, groups=2)
        expected = definition.forward(problem, first, second)
    else:
        first, second = exact((2, 6, 30, 40), dtype, 1), exact((2, 10, 28, 38), dtype, 2)
        problem = definition.problem(first.shape, (10, 3, 3, 3), groups=2)
        expected = definition.backward_filter(problem, first, second)
        attributes["filter_size"] = 3
    operands = layout(first), layout(second)
    listed = gpu.algorithms(primitive, *operands, **attributes)[0]
    assert listed.name == "implicit_gemm"
    assert listed.workspace_bytes > 0
    same(getattr(gpu, primitive)(*operands, **attributes), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@each_algorithm
def test_input_layouts(
    layout: Callable[[Array], Array], dtype: str, algorithm: str, exact: Exact
) -> None:
    x, w = layout(exact((2, 4, 9, 8), dtype, 1)), layout(exact((6, 2, 3, 3), dtype, 2))
    dy, bias = layout(exact((2, 6, 9, 8), dtype, 3)), exact((6,), dtype, 4)
    dense = [np.ascontiguousarray(array) for array in (x, w, dy)]
    attributes: dict[str, Any] = {"padding": 1, "groups": 2, "algorithm": algorithm}
    for name, operands, more in (
        ("conv_forward", (0, 1), {}),
        ("conv_backward_data", (2, 1), {}),
        ("conv_backward_filter", (0, 2), {"filter_size": 3}),
    ):
        function = getattr(gpu, name)
        strided = function(*((x, w, dy)[i] for i in operands), **attributes, **more)
        plain = function(*(dense[i] for i in operands), **attributes, **more)
        np.testing.assert_array_equal(strided, plain)
    fused = gpu.conv_bias_activation_forward(x, w, bias[::-1], dy, **attributes)
    plain = gpu.conv_bias_activation_forward(
        dense[0], dense[1], bias[::-1].copy(), dense[2], **attributes
    )
    np.testing.assert_array_equal(fused, plain)
    np.testing.assert_array_equal(gpu.conv_backward_bias(dy), gpu.conv_backward_bias(dense[2]))


@pytest.mark.parametrize("layout", [gaps, channels_last, transposed])
@each_algorithm
def test_out_is_written_and_nothing_else(
    layout: Callable[[Array], Array], algorithm: str, exact: Exact
) -> None:
    x, w = exact((2, 4, 9, 8), "float32", 1), exact((6, 4, 3, 3), "float32", 2)
    expected = gpu.conv_forward(x, w, algorithm=algorithm)
    out = layout(np.full_like(expected, 7.0))
    memory = out if out.base is None else out.base
    before = memory.copy()
    assert gpu.conv_forward(x, w, out=out, algorithm=algorithm) is out
    np.testing.assert_array_equal(out, expected)
    out[...] = 7.0
    np.testing.assert_array_equal(memory, before)


def test_out_may_interleave_with_an_input(exact: Exact) -> None:
    """As when a layer writes into its slice of a concatenated buffer."""
    buffer = exact((3, 8, 6, 6), "float32", 1)
    x, out, w = buffer[:, :5], buffer[:, 5:], exact((3, 5, 1, 1), "float32", 2)
    before = x.copy()
    expected = gpu.conv_forward(x.copy(), w)
    gpu.conv_forward(x, w, out=out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(x, before)


def test_a_channels_last_input_gives_a_channels_last_output(exact: Exact) -> None:
    y = gpu.conv_forward(
        channels_last(exact((2, 4, 6, 5), "float32")), exact((3, 4, 1, 1), "float32")
    )
    assert np.moveaxis(y, 1, -1).flags.c_contiguous


@each_algorithm
def test_inputs_are_not_written(algorithm: str, exact: Exact) -> None:
    x, w = exact((2, 4, 9, 8), "float32", 1), exact((6, 4, 3, 3), "float32", 2)
    copies = x.copy(), w.copy()
    x.flags.writeable = w.flags.writeable = False
    gpu.conv_forward(x, w, algorithm=algorithm)
    np.testing.assert_array_equal(x, copies[0])
    np.testing.assert_array_equal(w, copies[1])


@each_algorithm
def test_kernels_loop_where_the_grid_is_too_small(
    algorithm: str, monkeypatch: pytest.MonkeyPatch, definition: SimpleNamespace, exact: Exact
) -> None:
    """A grid has at most 2^31 - 1 blocks; here it has at most 2."""
    monkeypatch.setattr("dnncanon.gpu.runtime.launching.MAX_GRID", 2)
    x, dy = exact((2, 5, 30, 31), "float32", 1), exact((2, 70, 28, 29), "float32", 2)
    problem = definition.problem(x.shape, (70, 5, 3, 3))
    dw = gpu.conv_backward_filter(x, dy, filter_size=3, algorithm=algorithm)
    same(dw, definition.backward_filter(problem, x, dy))
    dx = gpu.conv_backward_data(dy, dw, algorithm=algorithm)
    same(dx, definition.backward_data(problem, dy, dw))
    same(gpu.conv_backward_bias(dy), dy.sum((0, 2, 3), dtype=np.float64))


# --- Sizes beyond 16 and 32 bits ------------------------------------------------------------------


@each_algorithm
def test_a_batch_above_65535(algorithm: str, exact: Exact) -> None:
    x, w = exact((70_001, 1, 2), "float32", 1), exact((1, 1, 2), "float32", 2)
    y = gpu.conv_forward(x, w, algorithm=algorithm)
    np.testing.assert_array_equal(y[:, 0, 0], x[:, 0] @ w[0, 0])


@each_algorithm
def test_extents_above_32_bits(algorithm: str) -> None:
    """A row of 2^33 elements, all one in memory; a stride of 2^31 makes four windows of it."""
    x = np.broadcast_to(np.float32(3), (1, 1, 2**33))
    w = np.array([[[1, 2]]], np.float32)
    y = gpu.conv_forward(x, w, stride=2**31, padding=((0, 2**31),), algorithm=algorithm)
    np.testing.assert_array_equal(y, [[[9, 9, 9, 9, 0]]])


# --- Numerics -------------------------------------------------------------------------------------


@each_algorithm
@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (60000.0, 2.0, np.inf),
        (-60000.0, 2.0, -np.inf),
        (2.0**-14, 2.0**-8, 2.0**-22),  # subnormal
        (2049.0 / 2, 2.0, 2048.0),  # halfway: to even
        (1.0 + 2.0**-10, 1.0 + 2.0**-10, 1.0 + 2.0**-9),
        (np.inf, 0.0, np.nan),
    ],
)
def test_float16_rounds_once_to_nearest_even(
    algorithm: str, value: float, factor: float, expected: float
) -> None:
    x, w = (np.full((1, 1, 1), v, np.float16) for v in (value, factor))
    y = gpu.conv_forward(x, w, algorithm=algorithm)
    np.testing.assert_array_equal(y, np.full((1, 1, 1), expected, np.float16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each_algorithm
def test_subnormal_results_are_kept(dtype: Any, algorithm: str) -> None:
    tiny = np.finfo(dtype).tiny
    x, w = np.full((1, 1, 1), tiny, dtype), np.full((1, 1, 1), 0.25, dtype)
    assert gpu.conv_forward(x, w, algorithm=algorithm) == tiny / 4


@each_algorithm
def test_a_nan_reaches_the_windows_that_hold_it_and_no_others(algorithm: str, exact: Exact) -> None:
    x, w = exact((1, 2, 6, 6), "float32", 1), exact((3, 2, 3, 3), "float32", 2)
    x[0, 1, 2, 5] = np.nan
    y = gpu.conv_forward(x, w, padding=1, algorithm=algorithm)
    holds = np.zeros((6, 6), bool)
    holds[1:4, 4:6] = True
    np.testing.assert_array_equal(np.isnan(y[0]), np.broadcast_to(holds, (3, 6, 6)))


def test_relu_keeps_nan_and_alpha2_of_zero_does_not_read_z(exact: Exact) -> None:
    x, w = np.array([[[1, np.nan, -1]]], np.float32), np.ones((1, 1, 1), np.float32)
    z = np.full((1, 1, 3), np.nan, np.float32)
    y = gpu.conv_bias_activation_forward(x, w, np.zeros(1, np.float32), z, alpha2=0.0)
    np.testing.assert_array_equal(y, [[[1, np.nan, 0]]])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@each_algorithm
def test_random_data_within_the_error_of_float32_sums(
    dtype: str, algorithm: str, definition: SimpleNamespace
) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 33, 9, 9)).astype(dtype)
    w = rng.standard_normal((20, 33, 3, 3)).astype(dtype)
    problem = definition.problem(x.shape, w.shape)
    exact = definition.forward(problem, x, w)
    bound = 33 * 9 * 2.0**-24 * definition.forward(problem, abs(x), abs(w))
    bound += abs(exact) * float(np.finfo(dtype).eps) / 2
    assert (abs(gpu.conv_forward(x, w, algorithm=algorithm) - exact) <= bound).all()


def test_results_do_not_depend_on_the_order_in_which_threads_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 8, 30, 31)).astype(np.float32)
    dy = rng.standard_normal((2, 9, 28, 29)).astype(np.float32)
    results = []
    for seed in ("1", "2", "3"):
        monkeypatch.setenv("DNNCANON_EMULATOR_SEED", seed)
        dw = gpu.conv_backward_filter(x, dy, filter_size=3, algorithm="implicit_gemm")
        results.append((dw.tobytes(), gpu.conv_backward_bias(dy).tobytes()))
    assert results[0] == results[1] == results[2]
