"""The spatial transformer by hand, by finite differences, on special values, and against PyTorch."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.sampler_problem import MODES, PADDING_MODES

Array = NDArray[Any]
NAN, INF = np.nan, np.inf

each_padding = pytest.mark.parametrize("padding_mode", PADDING_MODES)
each_alignment = pytest.mark.parametrize("align_corners", [True, False])
each_rank = pytest.mark.parametrize("dims", [2, 3])


def row(*values: float) -> Array:
    """An image of one row."""
    return np.array([[[values]]], dtype=np.float64)


def at(*points: float) -> Array:
    """Points of one row in the middle of its height."""
    return np.array([[[(x, 0.0) for x in points]]], dtype=np.float64)


def random(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def problem(dims: int, reach: float = 1.5) -> tuple[Array, Array, Array]:
    """dy, x and grid, no coordinate of which is near a border of cells."""
    inputs, outputs = (5, 4, 3)[:dims], (3, 4, 2)[:dims]
    grid = np.random.default_rng(3).uniform(-reach, reach, (2, *outputs, dims))
    return random(2, 3, *outputs), random(2, 3, *inputs, seed=8), grid


RAMP = row(10, 20, 30, 40)


# --- Affine grids ---------------------------------------------------------------------------------


def test_the_identity_leaves_the_plain_grid() -> None:
    theta = np.array([[[1.0, 0, 0], [0, 1, 0]]])
    grid = ref.affine_grid_forward(theta, output_size=(2, 3))
    assert grid.tolist() == [[[[-1, -1], [0, -1], [1, -1]], [[-1, 1], [0, 1], [1, 1]]]]
    grid = ref.affine_grid_forward(theta, output_size=(2, 4), align_corners=False)
    assert grid[0, 0].tolist() == [[-0.75, -0.5], [-0.25, -0.5], [0.25, -0.5], [0.75, -0.5]]


def test_x_runs_along_the_last_dim_and_z_along_the_first() -> None:
    theta = np.eye(3, 4)[None]
    grid = ref.affine_grid_forward(theta, output_size=(2, 3, 5))
    assert grid.shape == (1, 2, 3, 5, 3)
    assert grid[0, 0, 0, -1].tolist() == [1, -1, -1]
    assert grid[0, 0, -1, 0].tolist() == [-1, 1, -1]
    assert grid[0, -1, 0, 0].tolist() == [-1, -1, 1]


def test_a_map_turns_and_moves() -> None:
    theta = np.array([[[0.0, -1, 0.5], [1, 0, 0.25]]])
    grid = ref.affine_grid_forward(theta, output_size=2)
    assert grid[0, 0, 1].tolist() == [1.5, 1.25]  # of (1, −1)


@each_alignment
def test_one_point_is_in_the_middle(align_corners: bool) -> None:
    theta = random(1, 2, 3)
    grid = ref.affine_grid_forward(theta, output_size=1, align_corners=align_corners)
    assert grid[0, 0, 0].tolist() == theta[0, :, 2].tolist()


@each_rank
@each_alignment
def test_the_gradient_of_a_grid_is_the_transpose(dims: int, align_corners: bool) -> None:
    theta, size = random(2, dims, dims + 1), (3, 4, 5)[:dims]
    grid = ref.affine_grid_forward(theta, output_size=size, align_corners=align_corners)
    dgrid = random(*grid.shape)
    dtheta = ref.affine_grid_backward(dgrid, align_corners=align_corners)
    assert np.sum(dgrid * grid) == pytest.approx(np.sum(dtheta * theta))


def test_grids_without_points() -> None:
    assert ref.affine_grid_forward(random(2, 2, 3), output_size=(0, 4)).shape == (2, 0, 4, 2)
    assert ref.affine_grid_backward(np.zeros((2, 0, 4, 2))).tolist() == np.zeros((2, 2, 3)).tolist()
    assert ref.affine_grid_forward(random(0, 2, 3), output_size=3).shape == (0, 3, 3, 2)


# --- Where points lie -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "points", "y"),
    [
        # Corners aligned: c = (g + 1)·3/2. Without a height y is in the middle of the one row.
        ({}, (-1, -1 / 3, 0, 1), [10, 20, 25, 40]),
        # Not aligned: c = ((g + 1)·4 − 1)/2.
        ({"align_corners": False}, (-1, -0.75, 0, 0.875), [5, 10, 25, 30]),
        # Beyond the last cell: aligned, g = 4/3 is c = 3.5.
        ({}, (4 / 3, 5 / 3, 2), [20, 0, 0]),
        ({"padding_mode": "border"}, (4 / 3, 2, -1.25), [40, 40, 10]),
        # Reflected at 3 and at 0: c = 3.5, 4.5, 6.75, −1.5.
        ({"padding_mode": "reflection"}, (4 / 3, 2, 3.5, -2), [35, 25, 17.5, 25]),
        # Reflected at 3.5 and −0.5: c = 3.75, 5, 8, −1.5.
        (
            {"padding_mode": "reflection", "align_corners": False},
            (1.125, 1.75, 3.25, -1.5),
            [40, 30, 10, 15],
        ),
        ({"mode": "nearest"}, (-0.9, -0.5, 0.5, 1.25, 1.375), [10, 20, 30, 40, 0]),
        # Ties at c = 0.5, 1.5, 2.5 and 3.5 go to the even cell, the last one outside.
        ({"mode": "nearest", "align_corners": False}, (-0.5, 0, 0.5, 1), [10, 30, 30, 0]),
        ({"mode": "nearest", "padding_mode": "border"}, (-7, 7), [10, 40]),
    ],
)
def test_points_of_a_row(attributes: dict[str, Any], points: Any, y: list[float]) -> None:
    result = ref.grid_sample_forward(RAMP, at(*points), **attributes)
    assert result[0, 0, 0] == pytest.approx(np.array(y), rel=1e-12)


def test_a_point_between_four_cells() -> None:
    x = np.array([[[[1.0, 2.0], [4.0, 8.0]]]])
    y = ref.grid_sample_forward(x, np.array([[[[-0.5, 0.5]]]]))  # x = 1/4, y = 3/4
    assert y.item() == (1 * 3 + 2 * 1) / 16 + (4 * 3 + 8 * 1) * 3 / 16


@each_rank
@each_alignment
def test_the_plain_grid_gives_the_image_back(dims: int, align_corners: bool) -> None:
    x, theta = random(2, 3, *(5, 9, 3)[:dims]), np.eye(dims, dims + 1)[None].repeat(2, axis=0)
    size = {"output_size": x.shape[2:], "align_corners": align_corners}
    y = ref.grid_sample_forward(
        x, ref.affine_grid_forward(theta, **size), align_corners=align_corners
    )
    assert y == pytest.approx(x)


@each_alignment
@pytest.mark.parametrize("outputs", [(9, 2), (4, 7)])
def test_the_plain_grid_resamples(align_corners: bool, outputs: tuple[int, int]) -> None:
    """As the primitive of that name does."""
    x, theta = random(1, 2, 5, 6), np.eye(2, 3)[None]
    grid = ref.affine_grid_forward(theta, output_size=outputs, align_corners=align_corners)
    y = ref.grid_sample_forward(x, grid, padding_mode="border", align_corners=align_corners)
    convention = "align_corners" if align_corners else "half_pixel"
    expected = ref.resample_forward(x, output_size=outputs, coordinates=convention)
    assert y == pytest.approx(expected)


# --- Gradients ------------------------------------------------------------------------------------


@each_rank
@each_padding
@each_alignment
@pytest.mark.parametrize("mode", MODES)
def test_dx_is_the_transpose(dims: int, padding_mode: str, align_corners: bool, mode: str) -> None:
    """⟨dy, forward(x)⟩ = ⟨dx, x⟩, for sampling is linear in x."""
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    dy, x, grid = problem(dims, reach=3.0)
    y = ref.grid_sample_forward(x, grid, **attributes)
    dx = ref.grid_sample_backward(dy, x, grid, return_dgrid=False, **attributes)
    assert np.sum(dy * y) == pytest.approx(np.sum(dx * x))


@each_rank
@each_padding
@each_alignment
def test_dgrid_by_finite_differences(dims: int, padding_mode: str, align_corners: bool) -> None:
    attributes = {"padding_mode": padding_mode, "align_corners": align_corners}
    dy, x, grid = problem(dims, reach=2.5)
    dgrid = ref.grid_sample_backward(dy, x, grid, return_dx=False, **attributes)
    step = 1e-6
    for dim in range(dims):
        moved = np.where(np.arange(dims) == dim, step, 0.0)
        up = ref.grid_sample_forward(x, grid + moved, **attributes)
        down = ref.grid_sample_forward(x, grid - moved, **attributes)
        slopes = np.sum(dy * (up - down), axis=1) / (2.0 * step)
        assert dgrid[..., dim] == pytest.approx(slopes, abs=1e-7)


@pytest.mark.parametrize(
    ("attributes", "points", "slopes"),
    [
        # c = 0, 1 and 3: to the right, which from the last cell leads to the zeros outside.
        ({}, (-1, -1 / 3, 1), [15, 15, -60]),
        ({}, (-5 / 3, -2, 5 / 3), [15, 0, 0]),
        # At 0 and at 3 border and reflection hold c.
        ({"padding_mode": "border"}, (-1, -1 / 3, 1, 2), [0, 15, 0, 0]),
        ({"padding_mode": "reflection"}, (-1, -1 / 3, 1, 1.5, 3.5), [0, 15, 0, -15, 15]),
        ({"padding_mode": "reflection", "align_corners": False}, (1.125, 1.5), [0, -20]),
        ({"mode": "nearest"}, (-1, 0.1), [0, 0]),
    ],
)
def test_slopes_of_a_row(attributes: dict[str, Any], points: Any, slopes: list[float]) -> None:
    grid = at(*points)
    dy = np.ones((1, 1, 1, len(points)))
    dgrid = ref.grid_sample_backward(dy, RAMP, grid, return_dx=False, **attributes)
    assert dgrid[0, 0, :, 0] == pytest.approx(np.array(slopes))


def test_gradients_meet_in_a_cell() -> None:
    dy = np.array([[[[1.0, 10.0, 100.0]]]])
    dx = ref.grid_sample_backward(dy, RAMP, at(-1, -1, -2 / 3), return_dgrid=False)
    assert dx[0, 0, 0] == pytest.approx(np.array([61, 50, 0, 0]))


def test_both_gradients_or_one() -> None:
    arguments = problem(2)
    both = ref.grid_sample_backward(*arguments)
    assert both._fields == ("dx", "dgrid")
    assert np.array_equal(both.dx, ref.grid_sample_backward(*arguments, return_dgrid=False))
    assert np.array_equal(both.dgrid, ref.grid_sample_backward(*arguments, return_dx=False))


# --- Special values -------------------------------------------------------------------------------


def test_a_cell_of_weight_zero_is_not_read() -> None:
    x = row(10, NAN, INF, 40)
    y = ref.grid_sample_forward(x, at(-1, 1))
    assert y.tolist() == [[[[10, 40]]]]
    dgrid = ref.grid_sample_backward(np.ones((1, 1, 1, 2)), x, at(-1, 1), return_dx=False)
    assert np.isnan(dgrid[0, 0, :, 0]).tolist() == [True, False]


def test_nothing_is_scattered_with_weight_zero() -> None:
    dy = np.array([[[[NAN, 1.0]]]])
    dx = ref.grid_sample_backward(dy, RAMP, at(-1, 1), return_dgrid=False)
    assert np.isnan(dx).tolist() == [[[[True, False, False, False]]]]


@each_padding
@pytest.mark.parametrize("mode", MODES)
def test_a_nan_coordinate_is_nowhere(padding_mode: str, mode: str) -> None:
    attributes = {"padding_mode": padding_mode, "mode": mode}
    grid = np.array([[[[NAN, 0.0], [0.0, NAN], [NAN, 5.0]]]])
    dy = np.ones((1, 1, 1, 3))
    assert np.isnan(ref.grid_sample_forward(RAMP, grid, **attributes)).all()
    gradients = ref.grid_sample_backward(dy, RAMP, grid, **attributes)
    assert not gradients.dx.any()
    assert np.isnan(gradients.dgrid).all() == (mode == "linear")
    assert (gradients.dgrid == 0.0).all() == (mode == "nearest")


@pytest.mark.parametrize(
    ("padding_mode", "y"),
    [("zeros", [0, 0]), ("border", [10, 40]), ("reflection", [NAN, NAN])],
)
def test_an_infinite_coordinate(padding_mode: str, y: list[float]) -> None:
    options = {"padding_mode": padding_mode, "align_corners": False}
    result = ref.grid_sample_forward(RAMP, at(-INF, INF), **options)
    assert result[0, 0, 0] == pytest.approx(np.array(y), nan_ok=True)


def test_infinity_times_nothing_is_nowhere() -> None:
    """One cell with corners aligned: c = g·0."""
    x = row(7)
    assert np.isnan(ref.grid_sample_forward(x, at(INF), padding_mode="border")).all()
    assert ref.grid_sample_forward(x, at(1e300)).item() == 7
    dgrid = ref.grid_sample_backward(np.ones((1, 1, 1, 1)), x, at(3), return_dx=False)
    assert dgrid[0, 0, 0, 0] == 0


@pytest.mark.parametrize("g", [1e30, -1e30, 1e308])
def test_any_finite_coordinate_has_a_place(g: float) -> None:
    assert ref.grid_sample_forward(RAMP, at(g)).item() == 0
    y = ref.grid_sample_forward(RAMP, at(g), padding_mode="border")
    assert y.item() == (40 if g > 0 else 10)
    y = ref.grid_sample_forward(RAMP, at(g / 1e290), padding_mode="reflection")
    assert 10 <= y.item() <= 40


def test_a_nearest_cell_is_moved_and_not_computed() -> None:
    x = row(1.1, -0.0, 3e-42, INF).astype(np.float32)
    y = ref.grid_sample_forward(x, at(-1, -1 / 3, 1 / 3, 1).astype(np.float32), mode="nearest")
    assert y.tobytes() == x.tobytes()


# --- Calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_dtype_is_computed_in_float64_and_rounded_once(dtype: str) -> None:
    arrays = [array.astype(spec.DTYPES[dtype].numpy) for array in problem(2)]
    wide = ref.grid_sample_backward(*(array.astype(np.float64) for array in arrays))
    narrow = ref.grid_sample_backward(*arrays)
    for exact, result in zip(wide, narrow, strict=True):
        assert result.dtype == spec.DTYPES[dtype].numpy
        assert np.array_equal(exact.astype(result.dtype), result)


def test_strides_make_no_difference() -> None:
    dy, x, grid = problem(3)
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    repeated = np.broadcast_to(grid[:1], grid.shape)
    assert np.array_equal(ref.grid_sample_forward(last, grid), ref.grid_sample_forward(x, grid))
    dx = ref.grid_sample_backward(dy, last, repeated).dx
    assert np.array_equal(dx, ref.grid_sample_backward(dy, x, repeated.copy()).dx)


def test_empty_problems() -> None:
    x, grid = random(2, 3, 4, 5), random(2, 0, 6, 2)
    assert ref.grid_sample_forward(x, grid).shape == (2, 3, 0, 6)
    gradients = ref.grid_sample_backward(np.zeros((2, 3, 0, 6)), x, grid)
    assert not gradients.dx.any()
    assert ref.grid_sample_forward(x[:, :0], random(2, 2, 2, 2)).shape == (2, 0, 2, 2)


@pytest.mark.parametrize(
    ("x", "grid", "attributes", "message"),
    [
        ((1, 1, 3), (1, 2, 2), {}, "C, H, W"),
        ((1, 1, 0, 3), (1, 2, 2, 2), {}, "extents >= 1"),
        ((1, 1, 3, 3), (2, 2, 2, 2), {}, "pass .N, O, D."),
        ((1, 1, 3, 3), (1, 2, 2, 3), {}, "pass .N, O, D."),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"mode": "bilinear"}, "mode='bilinear'"),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"padding_mode": "wrap"}, "padding_mode='wrap'"),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"align_corners": None}, "align_corners=None"),
    ],
)
def test_what_is_refused(x: Any, grid: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(spec.SpecError, match=message):
        ref.grid_sample_forward(np.zeros(x), np.zeros(grid), **attributes)


def test_no_gradient_at_all_is_refused() -> None:
    with pytest.raises(spec.AttributeValueError, match="pass True for one of them"):
        ref.grid_sample_backward(*problem(2), return_dx=False, return_dgrid=False)


# --- PyTorch --------------------------------------------------------------------------------------


@each_rank
@each_padding
@each_alignment
@pytest.mark.parametrize("mode", MODES)
def test_as_pytorch_samples(dims: int, padding_mode: str, align_corners: bool, mode: str) -> None:
    torch = pytest.importorskip("torch")
    dy, x, grid = problem(dims, reach=3.0)
    leaves = [torch.from_numpy(array).requires_grad_() for array in (x, grid)]
    name = "bilinear" if mode == "linear" else mode
    y = torch.nn.functional.grid_sample(*leaves, name, padding_mode, align_corners)
    expected = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    assert ref.grid_sample_forward(x, grid, **attributes) == pytest.approx(y.detach().numpy())
    gradients = ref.grid_sample_backward(dy, x, grid, **attributes)
    for result, other in zip(gradients, expected, strict=True):
        assert result == pytest.approx(other.numpy())


@each_alignment
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (2, 3, 4)])
@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
def test_as_pytorch_makes_grids(align_corners: bool, size: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    theta = random(2, len(size), len(size) + 1)
    leaf = torch.from_numpy(theta).requires_grad_()
    expected = torch.nn.functional.affine_grid(leaf, [2, 1, *size], align_corners=align_corners)
    grid = ref.affine_grid_forward(theta, output_size=size, align_corners=align_corners)
    assert grid == pytest.approx(expected.detach().numpy())
    (dtheta,) = torch.autograd.grad(expected, leaf, torch.from_numpy(grid))
    result = ref.affine_grid_backward(grid, align_corners=align_corners)
    assert result == pytest.approx(dtheta.numpy())


# --- Test data ------------------------------------------------------------------------------------


@each_padding
@each_alignment
def test_grids_of_test_data_keep_their_side_of_a_border_in_float32(
    padding_mode: str, align_corners: bool
) -> None:
    """However c is computed from the grid: here in the two ways that frameworks have."""
    extents = (2, 3, 7, 64, 1000, 2**16 + 1)
    for inputs, grid in product([(n, n) for n in extents], ["normal", "few bits"]):
        call = spec.grid_sample_forward.bind(
            spec.TensorType("float32", (1, 1, *inputs)),
            spec.TensorType("float32", (1, 64, 64, 2)),
            padding_mode=padding_mode,
            align_corners=align_corners,
        )
        drawn = random(1, 64, 64, 2)
        if grid == "few bits":
            drawn = np.rint(drawn * 2.0)
        made = spec.grid_sample_forward.consistent(call.problem, {"grid": drawn})["grid"]
        single, half, last = made.astype(np.float32), np.float32(0.5), np.float32(inputs[0] - 1)
        if align_corners:
            ways = [(single + 1) * half * last, single * (last * half) + last * half]
        else:
            size = np.float32(inputs[0])
            ways = [((single + 1) * size - 1) * half, single * (size * half) + (size - 1) * half]
        exact = made.astype(np.float32).astype(np.float64) + 1.0
        exact = (exact * last if align_corners else exact * (last + 1.0) - 1.0) / 2.0
        for c in ways:
            inside = np.abs(exact) < 1e7
            assert np.array_equal(np.floor(2.0 * c)[inside], np.floor(2.0 * exact)[inside])
