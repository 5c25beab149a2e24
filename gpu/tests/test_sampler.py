"""The kernels of the spatial transformer against the formula, point by point."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.spec.sampler_problem import PADDING_MODES

Array = np.ndarray[Any, Any]
NAN = np.nan

each_padding = pytest.mark.parametrize("padding_mode", PADDING_MODES)
each_alignment = pytest.mark.parametrize("align_corners", [True, False])
each_layout = pytest.mark.parametrize(
    "channels_last", [False, True], ids=["dense", "channels last"]
)


def laid_out(array: Array, channels_last: bool) -> Array:
    if not channels_last:
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def random(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def few_bits(*shape: int) -> Array:
    """Coordinates on borders of cells and between them, some outside; sums of products are exact."""
    return np.random.default_rng(6).integers(-12, 13, shape) / 8.0


# --- The formula, in float64 ----------------------------------------------------------------------


def coordinate(
    g: float, extent: int, padding_mode: str, align_corners: bool
) -> tuple[float, float]:
    """c and ∂c/∂g."""
    c, slope = ((g + 1.0) * extent - 1.0) / 2.0, extent / 2.0
    low, high = -0.5, extent - 0.5
    if align_corners:
        c, slope, low, high = (g + 1.0) * (extent - 1) / 2.0, (extent - 1) / 2.0, 0.0, extent - 1.0
    while padding_mode == "reflection" and high > low and not low <= c <= high:
        c, slope = (2.0 * low - c if c < low else 2.0 * high - c), -slope
    if padding_mode == "zeros":
        return c, slope
    return min(max(c, 0.0), extent - 1.0), slope if 0.0 < c < extent - 1.0 else 0.0


def shares(c: float, mode: str) -> list[tuple[int, float, float]]:
    """Cells, their weights, and the slopes of these by c."""
    if mode == "nearest":
        return [(round(c), 1.0, 0.0)]
    below = math.floor(c)
    return [(below, below + 1.0 - c, -1.0), (below + 1, c - below, 1.0)]


def sampled(
    arrays: list[Array],
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> tuple[Array, ...]:
    """y, dx and dgrid, of dy, x and grid."""
    dy, x, grid = (array.astype(np.float64) for array in arrays)
    y, dx, dgrid = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(grid.shape)
    extents = x.shape[2:]
    for n, *o in np.ndindex(*grid.shape[:-1]):
        points = zip(grid[(n, *o)][::-1], extents, strict=True)
        along = [coordinate(g, extent, padding_mode, align_corners) for g, extent in points]
        for corner in product(*(shares(c, mode) for c, _ in along)):
            cell = tuple(i for i, _, _ in corner)
            if not all(0 <= i < e for i, e in zip(cell, extents, strict=True)):
                continue
            w = math.prod(weight for _, weight, _ in corner)
            y[(n, slice(None), *o)] += w * x[(n, slice(None), *cell)]
            dx[(n, slice(None), *cell)] += w * dy[(n, slice(None), *o)]
            met = np.sum(x[(n, slice(None), *cell)] * dy[(n, slice(None), *o)])
            for dim, (_, slope) in enumerate(along):
                others = math.prod(weight for k, (_, weight, _) in enumerate(corner) if k != dim)
                dgrid[(n, *o, len(along) - 1 - dim)] += others * corner[dim][2] * slope * met
    return y, dx, dgrid


# --- Sampling -------------------------------------------------------------------------------------


@each_padding
@each_alignment
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("inputs", [(5, 3), (3, 2, 4)])
def test_points_on_borders_of_cells_and_between(
    padding_mode: str, align_corners: bool, mode: str, inputs: tuple[int, ...]
) -> None:
    """With small integers all of it is exact, so that any wrong cell or share shows."""
    options: dict[str, Any] = {"padding_mode": padding_mode, "align_corners": align_corners}
    options["mode"] = mode
    rng = np.random.default_rng(1)
    outputs = (4, 6) if len(inputs) == 2 else (2, 3, 4)
    x, dy = rng.integers(-3, 4, (2, 3, *inputs)), rng.integers(-3, 4, (2, 3, *outputs))
    grid = few_bits(2, *outputs, len(inputs))
    y, dx, dgrid = sampled([dy, x, grid], **options)
    single = [array.astype(np.float32) for array in (dy, x, grid)]
    assert np.array_equal(gpu.grid_sample_forward(*single[1:], **options), y)
    gradients = gpu.grid_sample_backward(*single, **options)
    assert np.array_equal(gradients.dx, dx)
    assert np.array_equal(gradients.dgrid, dgrid)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@each_layout
def test_every_dtype(dtype: str, channels_last: bool, exact: Any) -> None:
    x = laid_out(exact((2, 8, 5, 3), dtype, 1), channels_last)
    dy = laid_out(exact((2, 8, 4, 3), dtype, 2), channels_last)
    grid = few_bits(2, 4, 3, 2)
    expected = sampled([dy, x, grid])
    y = gpu.grid_sample_forward(x, grid.astype(x.dtype))
    results = (y, *gpu.grid_sample_backward(dy, x, grid.astype(x.dtype)))
    for result, value in zip(results, expected, strict=True):
        assert result.dtype == x.dtype
        assert np.array_equal(result.astype(float), value.astype(x.dtype).astype(float))


def test_coordinates_of_many_bits() -> None:
    options: dict[str, Any] = {"padding_mode": "reflection", "align_corners": False}
    x, dy, grid = random(1, 3, 9, 14), random(1, 3, 6, 7, seed=2), random(1, 6, 7, 2, seed=3) * 2.0
    single = [array.astype(np.float32) for array in (dy, x, grid)]
    y = gpu.grid_sample_forward(*single[1:], **options)
    gradients = gpu.grid_sample_backward(*single, **options)
    for result, value in zip((y, *gradients), sampled(single, **options), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("points", [1, 2, 3, 4, 7, 300])
def test_any_number_of_points_may_meet_in_a_cell(points: int) -> None:
    """In the order of the points: what is large comes first, and what is small is lost the same way."""
    x = np.zeros((1, 1, 1, 3), np.float32)
    grid = np.zeros((1, 1, points, 2), np.float32)
    dy = random(1, 1, 1, points).astype(np.float32)
    dy[..., 0] = 2.0**26
    dx = gpu.grid_sample_backward(dy, x, grid, return_dgrid=False)
    total = np.float32(0.0)
    for value in dy.ravel():
        total += value
    assert dx.ravel().tolist() == [0.0, total, 0.0]


def test_more_cells_than_threads() -> None:
    """The counts of 256 threads' stretches are added up."""
    x, grid = np.zeros((2, 1, 40, 33), np.float32), few_bits(2, 40, 33, 2).astype(np.float32)
    dy = np.random.default_rng(4).integers(-3, 4, (2, 1, 40, 33)).astype(np.float32)
    dx = gpu.grid_sample_backward(dy, x, grid, return_dgrid=False, align_corners=False)
    _, expected, _ = sampled([dy, x, grid], align_corners=False)
    assert np.array_equal(dx, expected)


def test_one_gradient_only() -> None:
    dy, x, grid = (random(2, 3, 4, 5), random(2, 3, 6, 4), few_bits(2, 4, 5, 2))
    both = gpu.grid_sample_backward(dy, x, grid)
    assert np.array_equal(gpu.grid_sample_backward(dy, x, grid, return_dgrid=False), both.dx)
    assert np.array_equal(gpu.grid_sample_backward(dy, x, grid, return_dx=False), both.dgrid)
    (algorithm,) = gpu.algorithms("grid_sample_backward", dy, x, grid)
    begins, ends, entries, weights = 48 * 4, 49 * 4, 160 * 4, 160 * 8
    assert algorithm.workspace_bytes == begins + (ends + 12) + entries + weights
    (algorithm,) = gpu.algorithms("grid_sample_backward", dy, x, grid, return_dx=False)
    assert algorithm.workspace_bytes == 0


@each_padding
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_nan_coordinate_is_nowhere(padding_mode: str, mode: str) -> None:
    options = {"padding_mode": padding_mode, "mode": mode}
    x = random(1, 4, 3, 3).astype(np.float32)
    grid = np.array([[[[NAN, 0.0], [0.0, NAN], [0.25, 0.0]]]], np.float32)
    y = gpu.grid_sample_forward(x, grid, **options)
    assert np.isnan(y).tolist() == [[[[True, True, False]]] * 4]
    dy = np.ones((1, 4, 1, 3), np.float32)
    gradients = gpu.grid_sample_backward(dy, x, grid, **options)
    assert gradients.dx.sum() == pytest.approx(4.0)
    assert np.isnan(gradients.dgrid[0, 0, :2]).all() == (mode == "linear")
    assert np.isfinite(gradients.dgrid[0, 0, 2]).all()


@pytest.mark.parametrize("g", [np.inf, -np.inf, 3e38, -3e38])
def test_far_away_is_outside_or_at_the_edge(g: float) -> None:
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    grid = np.array([[[[g, -1.0]]]], np.float32)
    assert gpu.grid_sample_forward(x, grid).item() == 0
    assert gpu.grid_sample_forward(x, grid, padding_mode="border").item() == (2 if g > 0 else 1)
    y = gpu.grid_sample_forward(x, grid, padding_mode="reflection")
    assert np.isnan(y).item() == np.isinf(g)


def test_a_cell_of_weight_zero_is_not_read() -> None:
    x = np.array([[[[1, NAN, 3]]]], np.float32)
    grid = np.array([[[[-1, 0], [1, 0]]]], np.float32)
    assert gpu.grid_sample_forward(x, grid).tolist() == [[[[1, 3]]]]
    dy = np.array([[[[NAN, 1]]]], np.float32)
    dx = gpu.grid_sample_backward(dy, x, grid, return_dgrid=False)
    assert np.isnan(dx).tolist() == [[[[True, False, False]]]]


@each_layout
def test_a_nearest_cell_keeps_its_bits(channels_last: bool) -> None:
    x = np.array([-0.0, 3e-42, np.inf, 1.1], np.float32)
    x = laid_out(np.tile(x, (1, 4, 1, 1)), channels_last)
    grid = np.array([[[[g, 0.0] for g in (-1, -1 / 3, 1 / 3, 1)]]], np.float32)
    y = gpu.grid_sample_forward(x, grid, mode="nearest")
    assert y.tobytes() == np.ascontiguousarray(x).tobytes()


def test_strides_with_gaps_and_without() -> None:
    dy, x, grid = random(2, 4, 3, 8)[..., ::2], random(2, 8, 5, 6)[:, ::2], random(1, 3, 4, 2)
    repeated = np.broadcast_to(grid, (2, *grid.shape[1:]))
    dense = [np.ascontiguousarray(array) for array in (dy, x, repeated)]
    y = gpu.grid_sample_forward(x, repeated)
    assert np.array_equal(y, gpu.grid_sample_forward(*dense[1:]))
    for result, expected in zip(
        gpu.grid_sample_backward(dy, x, repeated), gpu.grid_sample_backward(*dense), strict=True
    ):
        assert np.array_equal(result, expected)


def test_empty_problems() -> None:
    x = random(2, 3, 4, 5)
    assert gpu.grid_sample_forward(x, random(2, 0, 6, 2)).shape == (2, 3, 0, 6)
    gradients = gpu.grid_sample_backward(np.zeros((2, 3, 0, 6)), x, random(2, 0, 6, 2))
    assert gradients.dx.tolist() == np.zeros(x.shape).tolist()
    assert gradients.dgrid.shape == (2, 0, 6, 2)
    no_channels = gpu.grid_sample_backward(np.zeros((2, 0, 2, 2)), x[:, :0], random(2, 2, 2, 2))
    assert no_channels.dgrid.tolist() == np.zeros((2, 2, 2, 2)).tolist()


# --- Affine grids ---------------------------------------------------------------------------------


def plain_grid(size: tuple[int, ...], align_corners: bool) -> Array:
    along = []
    for extent in size:
        index = np.arange(extent)
        centre = (2.0 * index + 1.0) / extent - 1.0
        along.append(2.0 * index / max(1, extent - 1) - (extent > 1) if align_corners else centre)
    return np.stack([*np.meshgrid(*along, indexing="ij")[::-1], np.ones(size)], axis=-1)


@each_alignment
@pytest.mark.parametrize("size", [(4, 5), (1, 9), (3, 2, 5), (70, 60)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_affine_grids(size: tuple[int, ...], align_corners: bool, dtype: str) -> None:
    dims, points = len(size), plain_grid(size, align_corners)
    theta = random(2, dims, dims + 1).astype(dtype)
    grid = gpu.affine_grid_forward(theta, output_size=size, align_corners=align_corners)
    expected = np.einsum("nkj,...j->n...k", theta.astype(np.float64), points)
    np.testing.assert_allclose(grid, expected, rtol=1e-5, atol=1e-6)
    dgrid = random(*grid.shape).astype(dtype)
    dtheta = gpu.affine_grid_backward(dgrid, align_corners=align_corners)
    wide = dgrid.astype(np.float64).reshape(2, -1, dims)
    sums = np.einsum("npk,pj->nkj", wide, points.reshape(-1, dims + 1))
    np.testing.assert_allclose(dtheta, sums, rtol=1e-4, atol=1e-4)


def test_affine_grids_in_any_layout() -> None:
    theta = random(2, 3, 8)[:, :2, 1:7:2]
    grid = np.zeros((5, 2, 4, 2)).transpose(1, 2, 0, 3)
    gpu.affine_grid_forward(theta, output_size=(4, 5), out=grid)
    assert np.array_equal(grid, gpu.affine_grid_forward(theta.copy(), output_size=(4, 5)))
    dtheta = np.zeros((2, 3, 2)).transpose(0, 2, 1)
    gpu.affine_grid_backward(grid, out=dtheta)
    np.testing.assert_allclose(dtheta, gpu.affine_grid_backward(np.ascontiguousarray(grid)))


def test_grids_without_points() -> None:
    assert gpu.affine_grid_forward(random(2, 2, 3), output_size=(0, 4)).shape == (2, 0, 4, 2)
    assert not gpu.affine_grid_backward(np.zeros((2, 0, 4, 2))).any()


# --- The emulator's checks ------------------------------------------------------------------------


@each_layout
def test_kernels_neither_race_nor_read_what_nobody_wrote(
    channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, dy = (
        laid_out(random(2, 4, *extents).astype(np.float32), channels_last)
        for extents in ((18, 17), (9, 8))
    )
    grid = gpu.affine_grid_forward(random(2, 2, 3).astype(np.float32), output_size=(9, 8))
    gpu.grid_sample_forward(x, grid)
    gradients = gpu.grid_sample_backward(dy, x, grid, padding_mode="border")
    gpu.affine_grid_backward(gradients.dgrid)


def test_a_large_problem_is_one_of_many_images() -> None:
    """More images than blocks, and more positions than threads."""
    images = 2**11 + 3
    x, grid = np.ones((images, 1, 2, 1), np.float32), np.zeros((images, 1, 2, 2), np.float32)
    dy = np.arange(images * 2, dtype=np.float32).reshape(images, 1, 1, 2) % 1000
    dx = gpu.grid_sample_backward(dy, x, grid, return_dgrid=False)
    assert np.array_equal(dx[..., 0], np.repeat(dy.sum(axis=3) / 2.0, 2, axis=2))
