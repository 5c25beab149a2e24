"""Columns of windows, defined: im2col gathers cells, col2im adds them up where they come from."""

import itertools

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.reference.windows import gathered, window_table
from dnncanon.spec.columns import ColumnsProblem
from dnncanon.spec.windows import Windows


@defines(spec.im2col)
def im2col(p: ColumnsProblem, x: Array) -> Array:
    """y[n, c·ΠF + f, o] = x[n, c, o·u + f·l − pre] where that is in x, else 0"""
    cells, inside = gathered(x, [window_table(w) for w in p.windows])  # n, c, o…, f
    return np.moveaxis(np.where(inside, cells, 0.0), -1, 2).reshape(p.columns_shape)


@defines(spec.col2im)
def col2im(p: ColumnsProblem, x: Array) -> Array:
    """y[n, c, i] = Σ_{o, f : o·u + f·l − pre = i} x[n, c·ΠF + f, o]"""
    columns = x.reshape((p.batch, p.channels, p.taps, *p.output_size))
    cells = itertools.product(*map(range, p.filter_size))
    images = [_image(p, columns[:, :, k], cell) for k, cell in enumerate(cells)]
    return np.sum(np.stack(images), axis=0)


def _image(p: ColumnsProblem, x: Array, cell: tuple[int, ...]) -> Array:
    """What one cell of all windows adds to the image: x[n, c, o…] at i = o·u + f·l − pre."""
    for dim, (w, f) in enumerate(zip(p.windows, cell, strict=True)):
        x = _spread(x, 2 + dim, w, f * w.dilation - w.pre)
    return x


def _spread(x: Array, axis: int, w: Windows, start: int) -> Array:
    """The elements along an axis at o·stride + start of a row of zeros, as far as they are in it."""
    place = np.arange(w.outputs) * w.stride + start
    inside = np.flatnonzero((place >= 0) & (place < w.inputs))
    if inside.size == 0:
        return np.zeros_like(x, shape=(*x.shape[:axis], w.inputs, *x.shape[axis + 1 :]))
    # Element o(i) of x, or the zero behind its last one.
    source = np.full(w.inputs, w.outputs)
    source[place[inside]] = inside
    widths = [(0, int(dim == axis)) for dim in range(x.ndim)]
    return np.take(np.pad(x, widths), source, axis=axis)
