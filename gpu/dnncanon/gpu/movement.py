"""Data movement: each primitive as views of its operands, and copies between them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.words import word_of
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
from dnncanon.spec.tensors import Shape, dense_strides

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.transform_tensor, "copy")
def transform_tensor(run: Launch[LayoutProblem]) -> None:
    _copy(run, run.inputs["x"], run.outputs["y"])


@implements(spec.vectorize_channels, "copy")
def vectorize_channels(run: Launch[VectorProblem]) -> None:
    _copy(run, _in_vectors(run.inputs["x"], run.problem), run.outputs["y"])


@implements(spec.unvectorize_channels, "copy")
def unvectorize_channels(run: Launch[VectorProblem]) -> None:
    _copy(run, run.inputs["x"], _in_vectors(run.outputs["y"], run.problem))


@implements(spec.pad, "gather")
def pad(run: Launch[PadProblem]) -> None:
    p = run.problem
    _place(run, run.inputs["x"], run.outputs["y"], p.pre, (1,) * len(p.shape), p.value)


@implements(spec.crop, "copy")
def crop(run: Launch[PadProblem]) -> None:
    p, y = run.problem, run.outputs["y"]
    _copy(run, _part(run.inputs["x"], p.pre, y.shape), y)


@implements(spec.space_to_depth, "copy")
def space_to_depth(run: Launch[BlockProblem]) -> None:
    p = run.problem
    _copy(run, _blocks_in_space(run.inputs["x"], p), _blocks_in_channels(run.outputs["y"], p))


@implements(spec.depth_to_space, "copy")
def depth_to_space(run: Launch[BlockProblem]) -> None:
    p = run.problem
    _copy(run, _blocks_in_channels(run.inputs["x"], p), _blocks_in_space(run.outputs["y"], p))


@implements(spec.concat_forward, "copy")
def concat_forward(run: Launch[ConcatProblem]) -> None:
    for part, k in zip(_parts(run.outputs["y"], run.problem), run.inputs, strict=True):
        _copy(run, run.inputs[k], part)


@implements(spec.concat_backward, "copy")
def concat_backward(run: Launch[ConcatProblem]) -> None:
    for part, k in zip(_parts(run.inputs["dy"], run.problem), run.outputs, strict=True):
        _copy(run, part, run.outputs[k])


@implements(spec.slice_forward, "copy")
def slice_forward(run: Launch[SliceProblem]) -> None:
    p = run.problem
    _copy(run, _part(run.inputs["x"], p.start, p.sliced_shape, p.stride), run.outputs["y"])


@implements(spec.slice_backward, "gather")
def slice_backward(run: Launch[SliceProblem]) -> None:
    p = run.problem
    _place(run, run.inputs["dy"], run.outputs["dx"], p.start, p.stride, 0.0)


@implements(spec.transpose, "copy")
def transpose(run: Launch[TransposeProblem]) -> None:
    x, y = run.inputs["x"], run.outputs["y"]
    strides = tuple(x.strides[dim] for dim in run.problem.permutation)
    _copy(run, replace(x, shape=y.shape, strides=strides), y)


@implements(spec.reshape, "copy")
def reshape(run: Launch[ReshapeProblem]) -> None:
    from dnncanon.gpu.kernels.moving import reorder

    reorder(run.inputs["x"], run.outputs["y"], stream=run.stream)


@implements(spec.contract_band_matrix, "gather")
def contract_band_matrix(run: Launch[BandProblem]) -> None:
    """Entry d of row i is in column i + d − l."""
    p = run.problem
    _rows(run, (1, 1), -p.lower, p.shape[-1])


@implements(spec.expand_band_matrix, "gather")
def expand_band_matrix(run: Launch[BandProblem]) -> None:
    """Column j of row i is entry j − i + l."""
    p = run.problem
    _rows(run, (-1, 1), p.lower, p.width)


# --- Views ----------------------------------------------------------------------------------------


def _part(array: DeviceArray, start: Shape, shape: Shape, step: Shape | None = None) -> DeviceArray:
    """The elements from ``start`` on, every ``step``-th, in each dim."""
    step = (1,) * len(shape) if step is None else step
    skipped = sum(n * stride for n, stride in zip(start, array.strides, strict=True))
    strides = tuple(n * stride for n, stride in zip(step, array.strides, strict=True))
    pointer = array.pointer + skipped * array.dtype.itemsize
    return replace(array, pointer=pointer, shape=shape, strides=strides)


def _parts(array: DeviceArray, p: ConcatProblem) -> list[DeviceArray]:
    """The parts along the axis."""
    rank = len(p.shape)
    starts = (tuple(s if d == p.axis else 0 for d in range(rank)) for s in p.starts)
    return [_part(array, start, shape) for start, shape in zip(starts, p.parts, strict=True)]


def _in_vectors(array: DeviceArray, p: VectorProblem) -> DeviceArray:
    """A tensor N, C, spatial as N, C/v, spatial, v."""
    n, c, *space = array.strides
    return replace(array, shape=p.vector_shape, strides=(n, c * p.width, *space, c))


def _block_shape(p: BlockProblem) -> Shape:
    """N, places, C, spatial: the form in which space and depth are the same."""
    n, _, *space = p.folded_shape
    return (n, *p.block, p.shape[1], *space)


def _blocks_in_space(array: DeviceArray, p: BlockProblem) -> DeviceArray:
    """x[n, c, i·b + p] as [n, p, c, i]."""
    n, c, *space = array.strides
    blocks = (s * b for s, b in zip(space, p.block, strict=True))
    return replace(array, shape=_block_shape(p), strides=(n, *space, c, *blocks))


def _blocks_in_channels(array: DeviceArray, p: BlockProblem) -> DeviceArray:
    """z[n, C′, i] as [n, p, c, i]."""
    n, depth, *space = array.strides
    places = dense_strides(p.block)
    if p.order == "DCR":
        channel, places = 1, tuple(s * p.shape[1] for s in places)
    else:
        channel = math.prod(p.block)
    strides = (n, *(s * depth for s in places), channel * depth, *space)
    return replace(array, shape=_block_shape(p), strides=strides)


# --- Launches -------------------------------------------------------------------------------------


def _copy(run: Launch[Any], x: DeviceArray, y: DeviceArray) -> None:
    from dnncanon.gpu.kernels.moving import copy

    copy(x, y, stream=run.stream)


def _place(
    run: Launch[Any], x: DeviceArray, y: DeviceArray, start: Shape, step: Shape, value: float
) -> None:
    """x at start, start + step, … of each dim of y, and the value everywhere else."""
    from dnncanon.gpu.kernels.moving import Coordinate, gather, pattern_of

    rank, strides, coordinates = y.ndim, [0] * y.ndim, []
    for d, (n, whole) in enumerate(zip(x.shape, y.shape, strict=True)):
        if n == whole:  # nothing goes around it
            strides[d] = x.strides[d]
            continue
        weights = tuple(int(dim == d) for dim in range(rank))
        coordinates.append(Coordinate(weights, -start[d], n, x.strides[d], step[d]))
    word = pattern_of(word_of(value, run.dtype))
    gather(x, y, tuple(strides), coordinates, word, stream=run.stream)


def _rows(run: Launch[BandProblem], weights: Sequence[int], offset: int, extent: int) -> None:
    """Entries of the rows of x, at the coordinate weights·(i, j) + offset."""
    from dnncanon.gpu.kernels.moving import Coordinate, gather, pattern_of

    x, y, p = run.inputs["x"], run.outputs["y"], run.problem
    coordinate = Coordinate((*(0,) * (y.ndim - 2), *weights), offset, extent, x.strides[-1])
    word = pattern_of(word_of(p.value, p.dtype))
    gather(x, y, (*x.strides[:-1], 0), (coordinate,), word, stream=run.stream)
