"""The spatial transformer: what its primitives launch. Results are the same in every run."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts, implements
from dnncanon.gpu.runtime import DeviceArray, launch, origin, reinterpret
from dnncanon.spec.sampler import AffineGridProblem, GridSampleProblem

# Kernels are imported by the first call: importing them imports Numba.

# --- Affine grids ---------------------------------------------------------------------------------


@implements(spec.affine_grid_forward, "pointwise")
def affine_grid_forward(run: Launch[AffineGridProblem]) -> None:
    from dnncanon.gpu.kernels import sampler

    p, theta, grid = run.problem, run.inputs["theta"], run.outputs["grid"]
    blocks, walk = sampler.walk_over((p.batch, *sampler.spatial(p.output_size)))
    strides = (origin(theta), *theta.strides), sampler.strides_of_points(grid)
    args = (theta, grid, *walk, p.dims, int(p.align_corners), *strides)
    launch(sampler.affine_grid(run.dtype), blocks, sampler.THREADS, args, stream=run.stream)


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
    walk = Walk.over(y, (x, y))
    strides = strides_of(x), sampler.strides_of_points(grid), strides_of(y)
    args = (x, grid, y, *walk.arguments, sampler.options_of(run.problem), *strides)
    launch(sampler.forward(run.dtype, walk.lanes), walk.blocks, THREADS, args, stream=run.stream)


def _grid_sample_backward(run: Launch[GridSampleProblem]) -> None:
    if "dx" in run.outputs and run.outputs["dx"].size:
        _gather(run)
    if "dgrid" in run.outputs and run.outputs["dgrid"].size:
        _slopes(run)


def _gather(run: Launch[GridSampleProblem]) -> None:
    """dx: the shares that points have in cells, sorted by the cell, and what they make together."""
    from dnncanon.gpu.kernels import sampler
    from dnncanon.gpu.kernels.windows import THREADS, Walk, strides_of

    p, grid, dy, dx = run.problem, run.inputs["grid"], run.inputs["dy"], run.outputs["dx"]
    memory = _Shares.within(run.workspace, p)
    inputs, outputs = sampler.spatial(p.input_size), sampler.spatial(p.output_size)
    blocks, walk = sampler.walk_over((p.batch, *outputs))
    options, points = sampler.options_of(p), sampler.strides_of_points(grid)
    args: tuple[Any, ...] = (grid, memory.cells, memory.weights, *walk, options, points)
    launch(sampler.shares(run.dtype), blocks, sampler.THREADS, args, stream=run.stream)

    sizes = (p.batch, math.prod(p.input_size), _capacity(p))
    args = (memory.cells, memory.ends, memory.entries, sizes)
    blocks, threads = min(p.batch, sampler.BLOCKS), sampler.threads_for(max(sizes[1:]))
    launch(sampler.sorted_shares, blocks, threads, args, stream=run.stream)

    walk_of_dx = Walk.over(dx, (dy, dx))
    made = sampler.gather(run.dtype, walk_of_dx.lanes)
    shares = memory.ends, memory.entries, memory.weights
    args = (dy, dx, *shares, *walk_of_dx.arguments, sizes, inputs, (*outputs, p.taps))
    args = (*args, strides_of(dy), strides_of(dx))
    launch(made, walk_of_dx.blocks, THREADS, args, stream=run.stream)


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
    blocks, walk = sampler.walk_over((p.batch, *sampler.spatial(p.output_size)))
    points = sampler.strides_of_points(grid), sampler.strides_of_points(dgrid)
    strides = strides_of(dy), strides_of(x), *points
    args = (dy, x, grid, dgrid, *walk, p.channels, sampler.options_of(p), *strides)
    launch(sampler.slopes(run.dtype), blocks, sampler.THREADS, args, stream=run.stream)


# --- Workspace ------------------------------------------------------------------------------------


def _capacity(p: GridSampleProblem) -> int:
    """Shares of an image."""
    return math.prod(p.output_size) * p.taps


def _parts(p: GridSampleProblem) -> tuple[tuple[int, np.dtype[Any]], ...]:
    """Elements of an image and their type: cells of shares, ends of cells, entries, weights of shares."""
    word, weight = np.dtype(np.int64), np.dtype("f8" if p.dtype == "float64" else "f4")
    shares, cells = _capacity(p), math.prod(p.input_size)
    return (shares, word), (cells, word), (shares, word), (shares, weight)


def _workspace(layouts: Layouts[GridSampleProblem]) -> int:
    p = layouts.problem
    if not p.return_dx or 0 in p.x_shape:
        return 0
    return p.batch * sum(count * kind.itemsize for count, kind in _parts(p))


@dataclass(frozen=True, slots=True)
class _Shares:
    """The workspace of dx."""

    cells: DeviceArray
    ends: DeviceArray
    entries: DeviceArray
    weights: DeviceArray

    @classmethod
    def within(cls, workspace: DeviceArray | None, p: GridSampleProblem) -> "_Shares":
        assert workspace is not None
        memory, found, at = reinterpret(workspace, np.dtype(np.uint8)), [], 0
        for count, kind in _parts(p):
            size = p.batch * count * kind.itemsize
            part = replace(memory, pointer=memory.pointer + at, shape=(size,))
            found.append(reinterpret(part, kind))
            at += size
        return cls(*found)


grid_sample_backward = GpuPrimitive(
    spec.grid_sample_backward,
    lambda: [Implementation("sorted_shares", _grid_sample_backward, _workspace)],
)
