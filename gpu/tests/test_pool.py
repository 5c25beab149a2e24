"""Every kernel of the pooling family against the formula, bit for bit on data that is exact."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu, spec
from dnncanon.gpu.runtime import empty, to_device
from dnncanon.spec.pool import PoolProblem
from dnncanon.spec.windows import Windows

Array = np.ndarray[Any, Any]
Exact = Callable[..., Array]
INF, NAN = np.inf, np.nan

# name: (extents, attributes)
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((12,), {"window": 3}),
    "overlap": ((9, 8), {"window": (3, 2), "stride": (2, 1), "padding": 1}),
    "dilation": (
        (15, 7),
        {"window": (3, 2), "stride": (2, 3), "dilation": (2, 3), "padding": (2, 0)},
    ),
    "stride and dilation with a common divisor": (
        (17,),
        {"window": 3, "stride": 4, "dilation": 6, "padding": ((3, 2),)},
    ),
    "stride and dilation without": ((19,), {"window": 4, "stride": 3, "dilation": 5}),
    "padding over window": ((2, 3), {"window": 2, "stride": 1, "padding": 3}),
    "asymmetric padding": ((6, 5), {"window": 3, "stride": 2, "padding": ((0, 3), (2, 1))}),
    "hanging over": ((8, 7), {"window": 3, "stride": 2, "ceil_mode": True}),
    "3d": ((4, 5, 6), {"window": (2, 3, 2), "stride": (1, 2, 2), "padding": (0, 1, 1)}),
    "global": ((5, 4, 3), {}),
    "adaptive to fewer": ((9, 7), {"output_size": (4, 3)}),
    "adaptive to more": ((3, 2), {"output_size": (7, 5)}),
    "empty input": ((0, 3), {"window": 2, "padding": 1}),
}
# Every case in one dtype, and one case in the others: kernels differ by dtype in what they load only.
CASES_AND_DTYPES = [
    *((case, "float32") for case in CASES),
    *(("overlap", dtype) for dtype in ("float64", "float16", "bfloat16")),
]
each_case = pytest.mark.parametrize(("case", "dtype"), CASES_AND_DTYPES)
each_layout = pytest.mark.parametrize(
    "channels_last", [False, True], ids=["dense", "channels last"]
)


def laid_out(array: Array, channels_last: bool) -> Array:
    if not channels_last:
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def problem_of(shape: tuple[int, ...], **attributes: Any) -> PoolProblem:
    return spec.pool_average_forward.bind(spec.TensorType("float64", shape), **attributes).problem


def cells_of(w: Windows, o: int) -> list[int]:
    return [w.first(o) + t * w.dilation for t in range(w.length(o))]


def windows_of(p: PoolProblem) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Each output position with the cells of its window that lie in the input."""
    for position in np.ndindex(*p.output_size):
        along = [
            [i for i in cells_of(w, o) if 0 <= i < w.inputs]
            for w, o in zip(p.windows, position, strict=True)
        ]
        yield position, list(product(*along))


def each_at(position: tuple[int, ...]) -> Any:
    """The index of a spatial position, in every image and channel."""
    return (..., *position)


def divisor(p: PoolProblem, position: tuple[int, ...], include_padding: bool) -> int:
    counts = []
    for w, o in zip(p.windows, position, strict=True):
        low, high = (-w.pre, w.inputs + w.post) if include_padding else (0, w.inputs)
        counts.append(sum(low <= i < high for i in cells_of(w, o)))
    return max(1, math.prod(counts))


def same(actual: Array, expected: Array) -> None:
    """``actual`` is ``expected``, rounded to its dtype."""
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(
        actual.astype(np.float64), expected.astype(actual.dtype).astype(np.float64)
    )


def maxima(p: PoolProblem, x: Array) -> tuple[Array, Array]:
    y, indices = np.full(p.y_shape, -INF), np.full(p.y_shape, -1)
    for position, cells in windows_of(p):
        for cell in cells:
            value, at = x[each_at(cell)].astype(np.float64), each_at(position)
            flat = int(np.ravel_multi_index(cell, p.input_size))
            larger = (indices[at] < 0) | (value > y[at]) | (np.isnan(value) & ~np.isnan(y[at]))
            y[at] = np.where(larger, value, y[at])
            indices[at] = np.where(larger, flat, indices[at])
    return y, indices


@each_case
@each_layout
def test_max(case: str, dtype: str, channels_last: bool, exact: Exact) -> None:
    extents, attributes = CASES[case]
    x = laid_out(exact((2, 8, *extents), dtype, 1), channels_last)
    p = problem_of(x.shape, **attributes)
    y, indices = gpu.pool_max_forward(x, return_indices=True, **attributes)
    expected, numbers = maxima(p, x)
    same(y, expected)
    assert np.array_equal(indices, numbers)
    assert indices.dtype == np.int32
    same(gpu.pool_max_forward(x, **attributes), expected)

    dy = laid_out(exact(p.y_shape, dtype, 2), channels_last)
    dx = gpu.pool_max_backward(
        dy, laid_out(indices, channels_last), input_size=extents, **attributes
    )
    flat = np.zeros((2, 8, math.prod(extents)))
    for n, c in np.ndindex(2, 8):
        chosen = numbers[n, c].ravel() >= 0
        np.add.at(flat[n, c], numbers[n, c].ravel()[chosen], dy[n, c].ravel()[chosen].astype(float))
    same(dx, flat.reshape(p.x_shape))


@each_case
@each_layout
@pytest.mark.parametrize("include_padding", [False, True])
def test_average(
    case: str, dtype: str, channels_last: bool, include_padding: bool, exact: Exact
) -> None:
    """Data are multiples of the divisors, so that every quotient is exact."""
    extents, attributes = CASES[case]
    p = problem_of((2, 8, *extents), **attributes)
    x = laid_out(exact(p.x_shape, dtype, 1), channels_last)
    y, options = np.zeros(p.y_shape), {**attributes, "include_padding": include_padding}
    dx, dy = np.zeros(p.x_shape), exact(p.y_shape, dtype, 2).astype(np.float64)
    for position, cells in windows_of(p):
        at, count = each_at(position), divisor(p, position, include_padding)
        dy[at] *= count
        for cell in cells:
            y[at] += x[each_at(cell)].astype(np.float64) / count
            dx[each_at(cell)] += dy[at] / count
    result = gpu.pool_average_forward(x, **options)
    limit = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-6)
    np.testing.assert_allclose(result.astype(np.float64), y, rtol=limit, atol=limit)
    of_outputs = laid_out(dy.astype(x.dtype), channels_last)
    same(gpu.pool_average_backward(of_outputs, input_size=extents, **options), dx)


@pytest.mark.parametrize("case", CASES)
@each_layout
@pytest.mark.parametrize("p", [1.0, 2.0, 2.5])
def test_norm(case: str, channels_last: bool, p: float, exact: Exact) -> None:
    extents, attributes = CASES[case]
    problem = problem_of((2, 8, *extents), **attributes)
    x = laid_out(exact(problem.x_shape, "float64", 1), channels_last)
    dy = laid_out(exact(problem.y_shape, "float64", 2), channels_last)
    y, dx = np.zeros(problem.y_shape), np.zeros(problem.x_shape)
    for position, cells in windows_of(problem):
        at = each_at(position)
        y[at] = sum((np.abs(x[each_at(cell)]) ** p for cell in cells), np.zeros((2, 8))) ** (1 / p)
        for cell in cells:
            value = x[each_at(cell)]
            ratio = np.abs(value) / np.where(y[at] == 0, 1.0, y[at])
            dx[each_at(cell)] += np.where(
                y[at] == 0, 0.0, dy[at] * np.sign(value) * ratio ** (p - 1)
            )
    result = gpu.pool_lp_forward(x, p=p, **attributes)
    np.testing.assert_allclose(result, y, rtol=1e-14, atol=0)
    gradient = gpu.pool_lp_backward(dy, x, laid_out(y, channels_last), p=p, **attributes)
    np.testing.assert_allclose(gradient, dx, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("dtype", "least"), [("int8", -128), ("uint8", 0)])
@each_layout
def test_maxima_of_integers(dtype: str, least: int, channels_last: bool) -> None:
    ends = np.iinfo(dtype)
    drawn = np.random.default_rng(3).integers(ends.min, ends.max, (2, 16, 5, 4), endpoint=True)
    x = laid_out(drawn.astype(dtype), channels_last)
    y, indices = gpu.pool_max_forward(x, window=2, stride=1, padding=2, return_indices=True)
    expected, numbers = maxima(problem_of(x.shape, window=2, stride=1, padding=2), x)
    assert np.array_equal(y, np.maximum(expected, least))
    assert np.array_equal(indices, numbers)


def test_nan_and_infinities_of_a_maximum() -> None:
    x = np.array([[[1, NAN, NAN, INF, -INF, -INF, 0, -0.0]]], np.float32)
    y, indices = gpu.pool_max_forward(x, window=2, return_indices=True)
    np.testing.assert_array_equal(y, [[[NAN, NAN, -INF, 0]]])
    assert indices.tolist() == [[[1, 2, 4, 6]]]


def test_an_index_outside_its_window_adds_nothing() -> None:
    dy = np.ones((1, 1, 3), np.float32)
    indices = np.array([[[-1, 0, 5]]], np.int32)
    dx = gpu.pool_max_backward(dy, indices, window=2, input_size=6)
    assert dx.tolist() == [[[0, 0, 0, 0, 0, 1]]]


def test_more_positions_than_threads(exact: Exact) -> None:
    """Threads go on to further positions, carrying from dim to dim."""
    x = exact((3, 5, 700, 61), "float32", 1)
    blocks = x.reshape(3, 5, 350, 2, 61)
    assert np.array_equal(gpu.pool_max_forward(x, window=(2, 1)), blocks.max(axis=3))
    assert np.array_equal(gpu.pool_average_forward(x, window=(2, 1)), blocks.mean(axis=3))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 2, 3, 1)])
def test_strides_with_gaps_in_any_order(order: tuple[int, ...], exact: Exact) -> None:
    wide = exact((4, 16, 10, 12), "float32", 1)
    x = wide.transpose(np.argsort(order))[tuple(slice(0, None, 2) for _ in order)]
    expected = gpu.pool_average_forward(np.ascontiguousarray(x), window=(1, 2), stride=1, padding=1)
    assert np.array_equal(gpu.pool_average_forward(x, window=(1, 2), stride=1, padding=1), expected)


def test_out_with_strides_of_its_own(exact: Exact) -> None:
    x = exact((2, 8, 6, 4), "float32", 1)
    out = empty((2, 8, 3, 2), np.float32, strides=(200, 3, 60, 30))
    gpu.pool_max_forward(to_device(x), window=2, out=out)
    expected = x.reshape(2, 8, 3, 2, 2, 2).max(axis=(3, 5))
    assert np.array_equal(out.to_host(), expected)


@each_layout
def test_kernels_neither_race_nor_read_what_nobody_wrote(
    channels_last: bool, exact: Exact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    extents, attributes = CASES["overlap"]
    x = laid_out(exact((2, 4, *extents), "float32", 1), channels_last)
    y, indices = gpu.pool_max_forward(x, return_indices=True, **attributes)
    y, indices = laid_out(y, channels_last), laid_out(indices, channels_last)
    gpu.pool_max_backward(y, indices, input_size=extents, **attributes)
    gpu.pool_average_forward(x, **attributes)
    gpu.pool_average_backward(y, input_size=extents, **attributes)
    norm = laid_out(gpu.pool_lp_forward(x, p=3.0, **attributes), channels_last)
    gpu.pool_lp_backward(y, x, norm, p=3.0, **attributes)
