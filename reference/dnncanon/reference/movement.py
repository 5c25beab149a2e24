"""Data movement, defined: which element goes where. Nothing is computed, so that integers stay int64."""

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES
from dnncanon.spec.movement_problem import (
    BandProblem,
    BlockProblem,
    ConcatProblem,
    LayoutProblem,
    PadProblem,
    ReshapeProblem,
    SliceProblem,
    TransposeProblem,
    VectorProblem,
)


@defines(spec.transform_tensor, whole=True)
def transform_tensor(p: LayoutProblem, x: Array) -> Array:
    """y[i] = x[i]"""
    return x


@defines(spec.vectorize_channels, whole=True)
def vectorize_channels(p: VectorProblem, x: Array) -> Array:
    """y[n, c, i, j] = x[n, c·v + j, i]"""
    n, c, *space = p.shape
    return np.moveaxis(x.reshape(n, c // p.width, p.width, *space), 2, -1)


@defines(spec.unvectorize_channels, whole=True)
def unvectorize_channels(p: VectorProblem, x: Array) -> Array:
    """y[n, c·v + j, i] = x[n, c, i, j]"""
    return np.moveaxis(x, -1, 2).reshape(p.shape)


@defines(spec.pad, whole=True)
def pad(p: PadProblem, x: Array) -> Array:
    """y[o] = x[o − pre] where that is in x, else value"""
    widths = list(zip(p.pre, p.post, strict=True))
    return np.pad(x, widths, constant_values=number(p.value, p.dtype))


@defines(spec.crop, whole=True)
def crop(p: PadProblem, x: Array) -> Array:
    """y[o] = x[o + pre]"""
    dims = zip(p.pre, p.shape, strict=True)
    return x[tuple(slice(pre, pre + extent) for pre, extent in dims)]


@defines(spec.space_to_depth, whole=True)
def space_to_depth(p: BlockProblem, x: Array) -> Array:
    """y[n, C′, i] = x[n, c, i·b + p]"""
    dims = len(p.block)
    n, _, *space = p.folded_shape
    split = [n, p.shape[1]]  # n, c, i0, p0, i1, p1, …
    for extent, block in zip(space, p.block, strict=True):
        split += [extent, block]
    outer, places = [2 + 2 * d for d in range(dims)], [3 + 2 * d for d in range(dims)]
    depth = [*places, 1] if p.order == "DCR" else [1, *places]
    return x.reshape(split).transpose([0, *depth, *outer]).reshape(p.folded_shape)


@defines(spec.depth_to_space, whole=True)
def depth_to_space(p: BlockProblem, x: Array) -> Array:
    """y[n, c, i·b + p] = x[n, C′, i]"""
    dims = len(p.block)
    n, _, *space = p.folded_shape
    if p.order == "DCR":  # n, p0, p1, …, c, i0, i1, …
        split, places, channel = [n, *p.block, p.shape[1], *space], 1, 1 + dims
    else:  # n, c, p0, p1, …, i0, i1, …
        split, places, channel = [n, p.shape[1], *p.block, *space], 2, 1
    order = [0, channel]
    for d in range(dims):
        order += [2 + dims + d, places + d]
    return x.reshape(split).transpose(order).reshape(p.shape)


@defines(spec.concat_forward, whole=True)
def concat_forward(p: ConcatProblem, *parts: Array) -> Array:
    """y[…, Σ_{m<k} A_m + a, …] = x_k[…, a, …]"""
    return np.concatenate([part for part in parts if part is not None], axis=p.axis)


@defines(spec.concat_backward, whole=True)
def concat_backward(p: ConcatProblem, dy: Array) -> tuple[Array, ...]:
    """dx_k[…, a, …] = dy[…, Σ_{m<k} A_m + a, …]"""
    before = (slice(None),) * p.axis
    parts = zip(p.starts, p.sizes, strict=True)
    return tuple(dy[(*before, slice(start, start + size))] for start, size in parts)


@defines(spec.slice_forward, whole=True)
def slice_forward(p: SliceProblem, x: Array) -> Array:
    """y[o] = x[start + o·stride]"""
    return x[_indices(p)]


@defines(spec.slice_backward, whole=True)
def slice_backward(p: SliceProblem, dy: Array) -> Array:
    """dx[start + o·stride] = dy[o], and 0 everywhere else"""
    for axis, (stride, start, extent) in enumerate(zip(p.stride, p.start, p.shape, strict=True)):
        spread = _with_zeros_between(dy, axis, stride)
        dy = _in_a_row_of(spread, axis, start, extent)
    return dy


def _indices(p: SliceProblem) -> tuple[slice, ...]:
    return tuple(map(slice, p.start, p.limit, p.stride))


def _with_zeros_between(x: Array, axis: int, stride: int) -> Array:
    """The elements along an axis, each with stride − 1 zeros behind it."""
    shape = x.shape
    columns = x.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    widths = [(0, stride - 1 if dim == axis + 1 else 0) for dim in range(columns.ndim)]
    return np.pad(columns, widths).reshape(
        (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :])
    )


def _in_a_row_of(x: Array, axis: int, start: int, extent: int) -> Array:
    """The elements from a place on in a row of zeros; what reaches beyond its end is left out."""
    room = max(0, extent - start - x.shape[axis])
    widths = [(start, room) if dim == axis else (0, 0) for dim in range(x.ndim)]
    return np.pad(x, widths)[(slice(None),) * axis + (slice(0, extent),)]


@defines(spec.transpose, whole=True)
def transpose(p: TransposeProblem, x: Array) -> Array:
    """y[i_π(0), i_π(1), …] = x[i_0, i_1, …]"""
    return np.transpose(x, p.permutation)


@defines(spec.reshape, whole=True)
def reshape(p: ReshapeProblem, x: Array) -> Array:
    """The elements in C order"""
    return x.reshape(p.to)


@defines(spec.contract_band_matrix, whole=True)
def contract_band_matrix(p: BandProblem, x: Array) -> Array:
    """y[…, i, d] = x[…, i, i + d − l] where that is in x, else value"""
    rows, columns = p.shape[-2:]
    column = np.arange(rows)[:, None] + np.arange(p.width) - p.lower
    return _entries_of_rows(p, x, column, columns)


@defines(spec.expand_band_matrix, whole=True)
def expand_band_matrix(p: BandProblem, x: Array) -> Array:
    """y[…, i, j] = x[…, i, j − i + l] where −l <= j − i <= u, else value"""
    rows, columns = p.shape[-2:]
    diagonal = np.arange(columns) - np.arange(rows)[:, None] + p.lower
    return _entries_of_rows(p, x, diagonal, p.width)


def _entries_of_rows(p: BandProblem, x: Array, entry: Array, extent: int) -> Array:
    """The entries of each row of x at ``entry[i, …]``; where there is none, the value."""
    widths = [(0, 0)] * (x.ndim - 1) + [(0, 1)]
    filled = np.pad(x, widths, constant_values=number(p.value, p.dtype))  # the value lies behind
    entry = np.where((entry >= 0) & (entry < extent), entry, extent)
    return np.take_along_axis(
        filled, np.broadcast_to(entry, (*x.shape[:-2], *entry.shape)), axis=-1
    )


def number(value: float, dtype: str) -> float | int:
    """The value, rounded to the element type."""
    word = rounded(np.asarray(value), dtype)
    return float(word) if DTYPES[dtype].is_float else int(word)
