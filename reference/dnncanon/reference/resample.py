"""Resampling, defined: linear interpolation and the nearest cell, and their gradients.

Forward gathers the cells that an output is made of, backward the outputs that a cell has a share in; both
weighted along each spatial dim.
"""

from collections.abc import Sequence

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.reference.windows import Table, gathered, outer
from dnncanon.spec.resample import ResampleProblem
from dnncanon.spec.resample_problem import Sampling


@defines(spec.resample_forward)
def resample_forward(p: ResampleProblem, x: Array) -> Array:
    """y[n, c, o] = Σ_i max(0, 1 − |c(o) − i|) · x[n, c, i], or x[n, c, c(o) rounded]"""
    tables = [_table(s, p) for s in p.dims]
    if p.mode == "nearest":  # moved as it is: a sum would make +0 of −0
        cells, _ = gathered(x, tables)
        return cells[..., 0]
    return _weighted_sum(x, tables, p)


@defines(spec.resample_backward)
def resample_backward(p: ResampleProblem, dy: Array) -> Array:
    """dx[n, c, i] = Σ_o max(0, 1 − |c(o) − i|) · dy[n, c, o], or Σ_{o : c(o) rounded = i} dy[n, c, o]"""
    return _weighted_sum(dy, [_table(s, p).transposed() for s in p.dims], p)


# --- Helpers --------------------------------------------------------------------------------------


def _weighted_sum(x: Array, tables: Sequence[Table], p: ResampleProblem) -> Array:
    """Σ over the elements that belong to each position, each times its weight along every dim."""
    terms, holds = gathered(x, tables)
    if p.mode == "linear":
        for weights in _weights(tables):
            terms = terms * weights
    return np.sum(np.where(holds, terms, 0.0), axis=-1)


def _weights(tables: Sequence[Table]) -> list[Array]:
    """The weights along each dim, each as [position…, slot]."""
    ones = [np.ones_like(table.weight) for table in tables]
    return [outer([*ones[:d], t.weight, *ones[d + 1 :]]) for d, t in enumerate(tables)]


def _table(s: Sampling, p: ResampleProblem) -> Table:
    """The cells on both sides of each output, with the weights of linear interpolation; or the nearest."""
    o = np.arange(s.outputs)
    if p.mode == "nearest":
        return Table(s.nearest(o, p.rounding)[:, None], np.ones((s.outputs, 1)), s.inputs)
    below, rest = np.divmod(s.numerator(o), s.d)
    cells = np.stack([below, np.minimum(below + 1, s.inputs - 1)], axis=1)
    return Table(cells, np.stack([s.d - rest, rest], axis=1) / s.d, s.inputs)
