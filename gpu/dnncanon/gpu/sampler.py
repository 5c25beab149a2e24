"""The spatial transformer: what its primitives launch. Results are the same in every run."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts, implements
from dnncanon.gpu.runtime import DeviceArray, launch, origin
from dnncanon.spec.sampler import AffineGridProblem, GridSampleProblem

if TYPE_CHECKING:
    from dnncanon.gpu.kernels.scratch import Scratch

# Kernels are imported by the first call: importing them imports Numba.

# --- Affine grids ---------------------------------------------------------------------------------


@implements(spec.affine_grid_forward, "pointwise")
def affine_grid_forward(run: Launch[AffineGridProblem]) -> None:
    from dnncanon.gpu.kernels import sampler

    p, theta, grid = run.problem, run.inputs["theta"], run.outputs["grid"]
    extents = (p.batch, *sampler.spatial(p.output_size), p.dims)
    blocks, walk = sampler.walk_of_grid(extents)
    strides = (origin(theta), *theta.strides), sampler.strides_of_points(grid)
    args = (theta, grid, *walk, int(p.align_corners), *strides)
    launch(sampler.affine_grid(run.dtype), blocks, sampler.GRID_THREADS, args, stream=run.stream)


def _affine_grid_backward(run: Launch[AffineGridProblem]) -> None:
    from dnncanon.gpu.kernels.reduction import reduce
    from dnncanon.gpu.kernels.sampler import affine_sums

    p, dtheta = run.problem, run.outputs["dtheta"]
    columns = [_column(dtheta, j) for j in range(p.dims + 1)]
    scalars = (*p.output_size[::-1], int(p.align_corners))
    reduce(
        affine_sums(p.dtype, p.dims),
        (run.inputs["dgrid"],),
        columns,
        _axes(p),
        scalars,
        workspace=run.workspace,
        stream=run.stream,
    )


def _column(dtheta: DeviceArray, j: int) -> DeviceArray:
    """dθ[:, :, j]"""
    pointer = dtheta.pointer + j * dtheta.strides[2] * dtheta.dtype.itemsize
    return replace(dtheta, pointer=pointer, shape=dtheta.shape[:2], strides=dtheta.strides[:2])


def _axes(p: AffineGridProblem) -> tuple[int, ...]:
    return tuple(range(1, p.dims + 1))


def _affine_workspace(layouts: Layouts[AffineGridProblem]) -> int:
    from dnncanon.gpu.kernels.reduction import workspace_bytes
    from dnncanon.gpu.kernels.sampler import affine_sums

    p = layouts.problem
    sums = affine_sums(p.dtype, p.dims)
    return workspace_bytes(sums, layouts.inputs["dgrid"], _axes(p), p.dtype)


affine_grid_backward = GpuPrimitive(
    spec.affine_grid_backward,
    lambda: [Implementation("tree", _affine_grid_backward, _affine_workspace)],
)


# --- Sampling -------------------------------------------------------------------------------------


@implements(spec.grid_sample_forward, "gather")
def grid_sample_forward(run: Launch[GridSampleProblem]) -> None:
    from dnncanon.gpu.kernels import sampler
    from dnncanon.gpu.kernels.windows import THREADS, Walk, strides_of

    x, grid, y = run.inputs["x"], run.inputs["grid"], run.outputs["y"]
    walk = Walk.over(y, (x, y), apart=True)
    strides = strides_of(x), sampler.strides_of_points(grid), strides_of(y)
    args = (x, grid, y, *walk.arguments, sampler.options_of(run.problem), *strides)
    made = sampler.forward(run.dtype, walk.lanes, walk.apart)
    launch(made, walk.blocks, THREADS, args, stream=run.stream)


def _grid_sample_backward(run: Launch[GridSampleProblem]) -> None:
    if "dx" in run.outputs and run.outputs["dx"].size:
        _gather(run)
    if "dgrid" in run.outputs and run.outputs["dgrid"].size:
        _slopes(run)


def _gather(run: Launch[GridSampleProblem]) -> None:
    """dx: the shares that points have in cells, sorted by the cell, and what they make together."""
    from dnncanon.gpu.kernels import sampler
    from dnncanon.gpu.kernels.windows import THREADS, Walk, strides_of

    p, dy, dx = run.problem, run.inputs["dy"], run.outputs["dx"]
    arrays = _scratch(p).arrays(run.workspace)
    _sort_shares(run, **arrays)
    walk = Walk.over(dx, (dy, dx), apart=True)
    made = sampler.gather(run.dtype, walk.lanes, walk.apart)
    inputs, outputs = sampler.spatial(p.input_size), sampler.spatial(p.output_size)
    shares = tuple(arrays[name] for name in ("begins", "ends", "entries", "weights"))
    args = (dy, dx, *shares, *walk.arguments, _capacity(p), inputs, outputs)
    args = (*args, strides_of(dy), strides_of(dx))
    launch(made, walk.blocks, THREADS, args, stream=run.stream)


def _sort_shares(
    run: Launch[GridSampleProblem],
    begins: DeviceArray,
    ends: DeviceArray,
    entries: DeviceArray,
    weights: DeviceArray,
) -> None:
    """The weights of all shares, and the shares of each cell as its ``entries`` from begin to end."""
    from dnncanon.gpu.kernels import sampler
    from dnncanon.gpu.kernels.moving import fill

    p, grid, cells = run.problem, run.inputs["grid"], begins.size
    blocks, walk = sampler.walk_over((p.batch, *sampler.spatial(p.output_size)))
    blocks_of_cells, _ = sampler.walk_over((cells,))
    given = sampler.options_of(p), sampler.strides_of_points(grid)
    points = math.prod(p.output_size)
    counted, placed = sampler.counted_shares(run.dtype), sampler.placed_shares(run.dtype)
    steps: tuple[tuple[Any, int, tuple[Any, ...]], ...] = (
        (counted, blocks, (grid, weights, ends, *walk, points, *given)),
        (sampler.allotted_places, blocks_of_cells, (begins, ends, cells)),
        (placed, blocks, (grid, ends, entries, *walk, points, *given)),
        (sampler.sorted_shares, blocks_of_cells, (begins, ends, entries, cells)),
    )
    fill(ends, 0, stream=run.stream)
    for made, count, args in steps:
        launch(made, count, sampler.THREADS, args, stream=run.stream)


def _slopes(run: Launch[GridSampleProblem]) -> None:
    """dgrid, which is 0 for the nearest cell."""
    from dnncanon.gpu.kernels import sampler
    from dnncanon.gpu.kernels.elementwise import elementwise
    from dnncanon.gpu.kernels.windows import strides_of

    p, grid, dgrid = run.problem, run.inputs["grid"], run.outputs["dgrid"]
    if p.mode == "nearest":
        elementwise(sampler.nothing, (), (dgrid,), stream=run.stream)
        return
    dy, x = run.inputs["dy"], run.inputs["x"]
    extents = (p.batch, *sampler.spatial(p.output_size))
    size, width = math.prod(extents), sampler.team_width(x)
    points = sampler.strides_of_points(grid), sampler.strides_of_points(dgrid)
    strides = strides_of(dy), strides_of(x), *points
    counts = size, extents, p.channels, width
    args = (dy, x, grid, dgrid, *counts, sampler.options_of(p), *strides)
    blocks = sampler.blocks_of_teams(size, width)
    launch(sampler.slopes(run.dtype), blocks, sampler.THREADS, args, stream=run.stream)


# --- Workspace ------------------------------------------------------------------------------------


def _capacity(p: GridSampleProblem) -> int:
    """Shares of an image."""
    return math.prod(p.output_size) * p.taps


def _scratch(p: GridSampleProblem) -> "Scratch":
    """What dx needs. Places are those of all images; behind the ends is the number of those taken."""
    from dnncanon.gpu.kernels.scratch import Scratch

    shares, cells = p.batch * _capacity(p), p.batch * math.prod(p.input_size)
    word = "int32" if shares < 2**31 else "int64"
    return Scratch(
        begins=((cells,), word),
        ends=((cells + 1,), word),
        entries=((shares,), word),
        weights=((shares,), "float64" if p.dtype == "float64" else "float32"),
    )


def _workspace(layouts: Layouts[GridSampleProblem]) -> int:
    p = layouts.problem
    return _scratch(p).nbytes if p.return_dx and 0 not in p.x_shape else 0


grid_sample_backward = GpuPrimitive(
    spec.grid_sample_backward,
    lambda: [Implementation("sorted_shares", _grid_sample_backward, _workspace)],
)
