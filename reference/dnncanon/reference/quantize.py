"""Quantization, defined: linear, with scales that are given, and by blocks, with scales that are found.

To round to the nearest number of a type is part of the definition here, not the last step of every primitive:
results are numbers of their types already. Where a definition divides by a power of two, as for the
spacing of such numbers, nothing is rounded.
"""

import numpy as np
from numpy.typing import NDArray

from dnncanon import spec
from dnncanon.reference.definition import Array, Lift, defines
from dnncanon.spec import DTYPES, DType
from dnncanon.spec.quantize_problem import TILE_COLUMNS, TILE_ROWS, BlockProblem, LinearProblem

Floats = NDArray[np.float64]


# --- Linear ---------------------------------------------------------------------------------------


@defines(spec.quantize_linear, lifts=True)
def quantize_linear(
    p: LinearProblem, lift: Lift, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """The code nearest to x/scale, from the zero point on."""
    codes, quotient = DTYPES[p.output], x / _of_axis(p, scale)
    if codes.is_float:
        return nearest(quotient, codes, lift)
    whole = np.rint(quotient)
    if zero_point is not None:
        whole = whole + _of_axis(p, zero_point)
    return np.clip(whole, codes.min, codes.max)


@defines(spec.dequantize_linear)
def dequantize_linear(
    p: LinearProblem, x: Array, scale: Array, zero_point: Array | None = None
) -> Array:
    """(x − zero_point)·scale"""
    steps = x if zero_point is None else x - _of_axis(p, zero_point)
    return steps * _of_axis(p, scale)


# --- By blocks ------------------------------------------------------------------------------------


@defines(spec.block_scale_quantize, lifts=True)
def block_scale_quantize(p: BlockProblem, lift: Lift, x: Array) -> tuple[Array, Array]:
    """The numbers nearest to x/scale, and the scales: the least with which no number is too large."""
    codes, scales = DTYPES[p.output], DTYPES[p.scale_dtype]
    blocks = x.reshape(p.blocked_shape)
    largest = np.max(np.abs(blocks), axis=p.axis + 1, keepdims=True, initial=0.0)
    scale = least_scale(largest, codes.max, scales)
    y = nearest(blocks / lift(np.where(scale == 0.0, 1.0, scale)), codes, lift)
    if p.output == "float4_e2m1fn":  # which has no NaN
        y = np.where(np.isnan(y), 0.0, y)
    scale = scale.reshape(p.plain_shape)
    return y.reshape(p.shape), in_tiles(p, scale, scales) if p.tiled else scale


@defines(spec.block_scale_dequantize)
def block_scale_dequantize(p: BlockProblem, x: Array, scale: Array) -> Array:
    """x·scale of its block"""
    plain = out_of_tiles(p, scale) if p.tiled else scale
    blocks = x.reshape(p.blocked_shape) * np.expand_dims(plain, p.axis + 1)
    return blocks.reshape(p.shape)


# --- Helpers --------------------------------------------------------------------------------------


def nearest(values: Array, row: DType, lift: Lift) -> Array:
    """The number of a type nearest to each value, ties to even; what is too large becomes the largest."""
    within = np.clip(values, -row.max, row.max)
    spacing = _spacing(within, row)
    return np.rint(within / lift(spacing)) / lift(1.0 / spacing)


def _spacing(values: Array, row: DType) -> Floats:
    """The distance of the type's neighbouring numbers at each value: it doubles with each power of two.

    Counted, not chosen by ``where``: errors cannot decide it, as a power of two is a number in either spacing.
    """
    magnitude, (_, beyond) = np.abs(values), np.frexp(row.max)
    doublings = np.zeros(values.shape, np.int64)
    for exponent in range(row.min_exponent + 1, int(beyond)):
        doublings += magnitude >= 2.0**exponent
    return np.ldexp(row.smallest_subnormal, doublings)


def least_scale(largest: Array, most: float, row: DType) -> Floats:
    """The least number s >= 0 of a type with largest <= most·s; the largest if none is; NaN for NaN."""
    numbers = _numbers(row)
    too_small = np.zeros(largest.shape, np.int64)  # so many numbers
    for number in numbers[:-1]:
        too_small += largest > most * number
    return np.where(np.isnan(largest), np.nan, numbers[too_small])


def _numbers(row: DType) -> Floats:
    """The finite numbers >= 0 of a type of 8 bits, in ascending order."""
    every = np.arange(256, dtype=np.uint8).view(row.numpy).astype(np.float64)
    return np.unique(every[np.isfinite(every) & (every >= 0.0)])


def in_tiles(p: BlockProblem, scale: Floats, row: DType) -> Floats:
    """Scales as tiles: [*batch, rows, blocks] padded and taken apart, with the parts in another order."""
    (rows, columns), (down, across) = p.rows_and_columns, p.tiles
    padding = [(0, 0)] * (len(p.shape) - 2)
    padding += [(0, down * TILE_ROWS - rows), (0, across * TILE_COLUMNS - columns)]
    padded = np.pad(np.moveaxis(scale, p.axis, -1), padding, constant_values=_numbers(row)[0])
    parts = padded.reshape(*p.shape[:-2], down, 4, 32, across, TILE_COLUMNS)
    return parts.transpose(*_batch(p), *_behind(p, 0, 3, 2, 1, 4))


def out_of_tiles(p: BlockProblem, tiles: Array) -> Array:
    """The way back."""
    (rows, columns), (down, across) = p.rows_and_columns, p.tiles
    parts = tiles.transpose(*_batch(p), *_behind(p, 0, 3, 2, 1, 4))
    padded = parts.reshape(*p.shape[:-2], down * TILE_ROWS, across * TILE_COLUMNS)
    return np.moveaxis(padded[..., :rows, :columns], -1, p.axis)


def _batch(p: BlockProblem) -> range:
    """The dims in front of rows and columns."""
    return range(len(p.shape) - 2)


def _behind(p: BlockProblem, *dims: int) -> list[int]:
    """Dims that are counted from behind those."""
    return [len(p.shape) - 2 + dim for dim in dims]


def _of_axis(p: LinearProblem, scale: Array) -> Array:
    """What there is for all of x, or for each index of its axis, as it broadcasts to x."""
    return scale.reshape(p.scales_shape)
