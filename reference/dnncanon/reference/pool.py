"""Pooling, defined: maximum, average and p-norm over windows, and their gradients.

Every primitive gathers: forward the cells of each window, backward the windows of each cell. What is
gathered lies along a last axis, the cells of a window in logical order, and a mask says which of its
slots hold something: a window at the border has fewer cells.
"""

import numpy as np
from numpy.typing import NDArray

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.reference.windows import Table, gathered, outer, window_table
from dnncanon.spec.pool import PoolProblem

Integers = NDArray[np.int64]


@defines(spec.pool_max_forward)
def pool_max_forward(p: PoolProblem, x: Array) -> tuple[Array, Integers | None]:
    """y[n, c, o] = x[n, c, k], indices[n, c, o] = k, k the first cell of W(o) at which x is largest"""
    cells, inside = gathered(x, _windows(p))
    cells = np.where(inside, cells, -np.inf)
    largest = np.max(cells, axis=-1, keepdims=True)
    # NaN is larger than every number: where the maximum is NaN, nothing equals it.
    winners = inside & ((cells == largest) | np.isnan(cells))
    first = np.argmax(winners, axis=-1)[..., None]
    y = np.take_along_axis(cells, first, axis=-1)[..., 0]
    return y, _numbers(p, winners, first) if p.indices else None


def _numbers(p: PoolProblem, winners: NDArray[np.bool_], first: Integers) -> Integers:
    """The flat index of the winner, −1 where there is none."""
    grid = np.arange(np.prod(p.input_size)).reshape(p.input_size)
    numbers, _ = gathered(grid, _windows(p))
    number = np.take_along_axis(np.broadcast_to(numbers, winners.shape), first, axis=-1)[..., 0]
    return np.where(winners.any(axis=-1), number, -1)


@defines(spec.pool_max_backward)
def pool_max_backward(p: PoolProblem, dy: Array, indices: Array) -> Array:
    """dx[n, c, i] = Σ_{o : i ∈ W(o), indices[n, c, o] = i} dy[n, c, o]"""
    terms, covering = gathered(dy, _covering(p))
    winners, _ = gathered(indices, _covering(p))
    own = np.arange(np.prod(p.input_size)).reshape(*p.input_size, 1)
    return np.sum(np.where(covering & (winners == own), terms, 0.0), axis=-1)


@defines(spec.pool_average_forward)
def pool_average_forward(p: PoolProblem, x: Array) -> Array:
    """y[n, c, o] = Σ_{i ∈ W(o)} x[n, c, i] / max(1, count(o))"""
    cells, inside = gathered(x, _windows(p))
    return np.sum(np.where(inside, cells, 0.0), axis=-1) / _counts(p)


@defines(spec.pool_average_backward)
def pool_average_backward(p: PoolProblem, dy: Array) -> Array:
    """dx[n, c, i] = Σ_{o : i ∈ W(o)} dy[n, c, o] / count(o)"""
    terms, covering = gathered(dy / _counts(p), _covering(p))
    return np.sum(np.where(covering, terms, 0.0), axis=-1)


def _counts(p: PoolProblem) -> NDArray[np.float64]:
    """max(1, count(o)): the cells of each window in the input, or in the padded input."""
    of_dims = []
    for w in p.windows:
        o, t = np.arange(w.outputs)[:, None], np.arange(w.longest)
        cell = w.first(o) + t * w.dilation
        low, high = (-w.pre, w.inputs + w.post) if p.include_padding else (0, w.inputs)
        counted = (t < w.length(o)) & (cell >= low) & (cell < high)
        of_dims.append(counted.sum(axis=1, keepdims=True))
    return np.maximum(1.0, outer(of_dims)[..., 0])


@defines(spec.pool_lp_forward)
def pool_lp_forward(p: PoolProblem, x: Array) -> Array:
    """y[n, c, o] = (Σ_{i ∈ W(o)} |x[n, c, i]|^p)^(1/p)"""
    cells, inside = gathered(np.abs(x), _windows(p))
    total = np.sum(np.where(inside, np.power(cells, p.p), 0.0), axis=-1)
    return np.power(total, 1.0 / p.p)


@defines(spec.pool_lp_backward)
def pool_lp_backward(p: PoolProblem, dy: Array, x: Array, y: Array) -> Array:
    """dx[n, c, i] = sign(x[n, c, i]) · Σ_{o : i ∈ W(o), y[n, c, o] ≠ 0} dy[n, c, o] · (|x| / y)^(p−1)"""
    terms, counting = gathered(dy, _covering(p))
    if p.p != 1.0:
        norms, covering = gathered(y, _covering(p))
        counting = covering & (norms != 0.0)
        ratios = np.abs(x)[..., None] / np.where(counting, norms, 1.0)
        terms = terms * np.power(ratios, p.p - 1.0)
    return np.sign(x) * np.sum(np.where(counting, terms, 0.0), axis=-1)


# --- Helpers --------------------------------------------------------------------------------------


def _windows(p: PoolProblem) -> list[Table]:
    """Along each spatial dim, the cells of each window."""
    return [window_table(w) for w in p.windows]


def _covering(p: PoolProblem) -> list[Table]:
    """Along each spatial dim, the windows that have a cell."""
    return [table.transposed() for table in _windows(p)]
