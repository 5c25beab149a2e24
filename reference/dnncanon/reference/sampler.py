"""The spatial transformer, defined: affine grids, sampling at the points of a grid, and their gradients.

A point has a coordinate c in cells along each dim, and a share in the cell below and in the one above it. What
is gathered at a point by these shares is scattered by the same ones in the backward pass.
"""

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from dnncanon import spec
from dnncanon.reference.definition import Array, Lift, defines
from dnncanon.spec.sampler import AffineGridProblem, GridSampleProblem

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

# --- Affine grids ---------------------------------------------------------------------------------


@defines(spec.affine_grid_forward, lifts=True)
def affine_grid_forward(p: AffineGridProblem, lift: Lift, theta: Array) -> Array:
    """grid[n, o, k] = Σ_j θ[n, k, j]·(u(o), 1)[j]"""
    return np.einsum("nkj,pj->npk", theta, plain_grid(p, lift)).reshape(p.grid_shape)


@defines(spec.affine_grid_backward, lifts=True)
def affine_grid_backward(p: AffineGridProblem, lift: Lift, dgrid: Array) -> Array:
    """dθ[n, k, j] = Σ_o dgrid[n, o, k]·(u(o), 1)[j]"""
    points = dgrid.reshape(p.batch, prod(p.output_size), p.dims)
    return np.einsum("npk,pj->nkj", points, plain_grid(p, lift))


def plain_grid(p: AffineGridProblem, lift: Lift) -> Array:
    """(u(o), 1) of each point, [point, D + 1]: u is (x, y) or (x, y, z), x along the last dim."""
    place = np.indices(p.output_size).astype(np.float64).reshape(p.dims, prod(p.output_size))
    along = []
    for index, extent in zip(place, p.output_size, strict=True):
        if not p.align_corners:
            along.append(lift(2.0 * index + 1.0) / extent - 1.0)
        elif extent > 1:
            along.append(lift(2.0 * index) / (extent - 1) - 1.0)
        else:
            along.append(lift(0.0 * index))
    return np.stack([*along[::-1], np.ones(place.shape[1])], axis=1)


# --- Sampling -------------------------------------------------------------------------------------


@defines(spec.grid_sample_forward)
def grid_sample_forward(p: GridSampleProblem, x: Array, grid: Array) -> Array:
    """y[n, c, o] = Σ_i w(n, o, i)·x[n, c, i]"""
    points = Points.of(p, grid)
    cells = _taken(x.reshape(p.batch, p.channels, prod(p.input_size)), points.cell)
    if p.mode == "nearest":  # moved as it is: a sum would make +0 of −0
        y = np.where(points.holds[:, None], cells, 0.0)[..., 0]
    else:
        y = _sum_of(points.weight[:, None] * cells, points.shares[:, None], axis=-1)
    return _nan_where(points.nowhere[:, None], y).reshape(p.y_shape)


@defines(spec.grid_sample_backward)
def grid_sample_backward(
    p: GridSampleProblem, dy: Array, x: Array, grid: Array
) -> tuple[Array | None, Array | None]:
    """dx[n, c, i] = Σ_o w(n, o, i)·dy[n, c, o], dgrid[n, o, k] = ∂c/∂g·Σ_{c, i} ∂w/∂c·x[n, c, i]·dy[n, c, o]"""
    points = Points.of(p, grid)
    dy = dy.reshape(p.batch, p.channels, prod(p.output_size))
    x = x.reshape(p.batch, p.channels, prod(p.input_size))
    return (
        _scattered(p, points, dy) if p.return_dx else None,
        _slopes(p, points, dy, x) if p.return_dgrid else None,
    )


def _scattered(p: GridSampleProblem, points: "Points", dy: Array) -> Array:
    """dx: for each cell the sum over the points that have a share in it."""
    terms = dy[..., None] * points.weight[:, None] if p.mode == "linear" else dy[..., None]
    shares = points.shares & ~points.nowhere[..., None]
    cells = prod(p.input_size)
    cell = np.arange(p.batch)[:, None, None] * cells + points.cell
    terms = np.moveaxis(terms, 1, 0).reshape(p.channels, shares.size)
    sums = _sums_by_cell(terms, cell.ravel(), shares.ravel(), p.batch * cells)
    return np.moveaxis(sums.reshape(p.channels, p.batch, *p.input_size), 0, 1)


def _slopes(p: GridSampleProblem, points: "Points", dy: Array, x: Array) -> Array:
    """dgrid: for each point and dim the slope of the weights, times cells and gradients."""
    if p.mode == "nearest":
        return np.zeros(p.grid_shape)
    cells, dgrid = _taken(x, points.cell), []
    for dim, slope in enumerate(points.slopes):
        change = points.change(dim)
        terms = dy[..., None] * (change[:, None] * cells)
        total = _sum_of(terms, (points.holds & (change != 0.0))[:, None], axis=(1, 3))
        dgrid.append(_nan_where(points.nowhere, np.where(slope != 0.0, total * slope, 0.0)))
    return np.stack(dgrid[::-1], axis=-1).reshape(p.grid_shape)


# --- Points and their shares ----------------------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Where the points of a grid lie, [n, point, slot]; slots are the cells around a point.

    ``cell`` counts cells in C order and is 0 where there is none, which ``holds`` tells. ``along`` are the
    weights, [n, point, slot], for each dim; ``slopes`` are ∂c/∂g, [n, point], for each dim. ``nowhere``
    tells the points that a NaN puts there.
    """

    cell: Integers
    holds: Truths
    along: tuple[Array, ...]
    slopes: tuple[Array, ...]
    nowhere: Truths

    @classmethod
    def of(cls, p: GridSampleProblem, grid: Array) -> "Points":
        grid = grid.reshape(p.batch, prod(p.output_size), p.dims)
        cell, holds = np.zeros((1, 1, 1), np.int64), np.ones((1, 1, 1), np.bool_)
        nowhere = np.zeros((1, 1), np.bool_)
        along, slopes = [], []
        sides = list(product((0, 1), repeat=p.dims)) if p.mode == "linear" else [(0,) * p.dims]
        for dim, extent in enumerate(p.input_size):
            c, slope = _coordinate(p, grid[..., p.dims - 1 - dim], extent)
            nowhere = nowhere | np.isnan(c)
            found, weights = _around(p, c, extent)
            side = [chosen[dim] for chosen in sides]
            found = found[..., side]
            inside = (found >= 0) & (found < extent)
            cell = cell * extent + np.where(inside, found, 0)
            holds = holds & inside
            along.append(np.stack(weights, axis=-1)[..., side])
            slopes.append(slope)
        return cls(cell, holds, tuple(along), tuple(slopes), nowhere)

    @property
    def weight(self) -> Array:
        """The product over the dims."""
        result = self.along[0]
        for more in self.along[1:]:
            result = result * more
        return result

    @property
    def shares(self) -> Truths:
        """Which slots hold a cell of a weight other than 0."""
        return self.holds & (self.weight != 0.0)

    def change(self, dim: int) -> Array:
        """∂w/∂c of a dim: −1 below and 1 above, times the weights of the other dims."""
        sides = np.array(list(product((-1.0, 1.0), repeat=len(self.along))))
        result = np.broadcast_to(sides[:, dim], self.cell.shape)
        for other, weights in enumerate(self.along):
            if other != dim:
                result = weights * result
        return result


def _coordinate(p: GridSampleProblem, g: Array, extent: int) -> tuple[Array, Array]:
    """c and ∂c/∂g along a dim, as the padding has it."""
    if p.align_corners:
        c, slope = (g + 1.0) * (extent - 1) / 2.0, (extent - 1) / 2.0
    else:
        c, slope = ((g + 1.0) * extent - 1.0) / 2.0, extent / 2.0
    slopes = np.full(c.shape, slope)
    if p.padding_mode == "zeros":
        return c, slopes
    if p.padding_mode == "reflection":
        low, span = (0.0, extent - 1) if p.align_corners else (-0.5, extent)
        c, turned = _reflected(c, low, span)
        slopes = np.where(turned, -slopes, slopes)
    slopes = np.where((c > 0.0) & (c < extent - 1.0), slopes, 0.0)
    return np.minimum(np.maximum(c, 0.0), extent - 1.0), slopes


def _reflected(c: Array, low: float, span: float) -> tuple[Array, Truths]:
    """c, reflected at low and low + span as often as it takes; and whether that is an odd number of times."""
    if span == 0.0:
        return c, np.zeros(c.shape, np.bool_)
    distance = np.where(np.isfinite(c), c - low, 0.0)
    times = np.floor(distance / span).astype(np.int64)
    turned = times % 2 == 1
    within = np.where(turned, (times + 1) * span - distance, distance - times * span)
    return np.where(np.isfinite(c), within + low, np.nan), turned


def _around(p: GridSampleProblem, c: Array, extent: int) -> tuple[Integers, list[Array]]:
    """The cells below and above c, [n, point, side], and their weights; or the nearest one."""
    known = np.where(np.isnan(c), 0.0, c)
    if p.mode == "nearest":
        return np.clip(np.rint(known), -1, extent).astype(np.int64)[..., None], [np.ones(c.shape)]
    below = np.clip(np.floor(known), -2, extent).astype(np.int64)
    rest = known - below
    return np.stack([below, below + 1], axis=-1), [1.0 - rest, rest]


# --- Helpers --------------------------------------------------------------------------------------


def _taken(values: Array, index: Integers) -> Array:
    """values[n, c, index[n, …]], as [n, c, …]"""
    shape = (*values.shape[:2], *index.shape[1:])
    if 0 in values.shape:
        return np.zeros(shape)
    flat = index.reshape(len(index), 1, prod(index.shape[1:]))
    return np.take_along_axis(values, flat, axis=2).reshape(shape)


def _sum_of(terms: Array, counts: Truths, axis: int | tuple[int, ...]) -> Array:
    """The sum of those terms that count: others may be NaN."""
    return np.sum(np.where(counts, terms, 0.0), axis=axis)


def _nan_where(nowhere: Truths, values: Array) -> Array:
    return np.where(nowhere, np.nan, values) if nowhere.any() else values


def _sums_by_cell(terms: Array, cell: Integers, counts: Truths, cells: int) -> Array:
    """Σ over the terms of each cell that count, [channel, term], as [channel, cell].

    Cells with about as many terms are summed together.
    """
    place = np.flatnonzero(counts)
    place = place[np.argsort(cell[place], kind="stable")]
    found, first, many = np.unique(cell[place], return_index=True, return_counts=True)
    room = 2 ** np.ceil(np.log2(many)).astype(np.int64)
    sums, column = [np.zeros((len(terms), 1))], np.zeros(cells, np.int64)  # 0 for cells of no term
    for size in np.unique(room):
        (chosen,) = np.nonzero(room == size)
        member = np.arange(size)
        holds = member < many[chosen, None]
        index = place[np.where(holds, first[chosen, None] + member, 0)]
        column[found[chosen]] = sum(part.shape[1] for part in sums) + np.arange(chosen.size)
        sums.append(_sum_of(terms[:, index], holds, axis=-1))
    return np.concatenate(sums, axis=1)[:, column]
