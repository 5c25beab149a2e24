"""Quantization: linear and back by one pass over the elements, by blocks as a row map.

Kernels see codes as bytes, so that one serves all their types.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts, implements
from dnncanon.gpu.runtime import DeviceArray, Strided, View, reinterpret
from dnncanon.spec import dense_strides
from dnncanon.spec.quantize_problem import TILE_COLUMNS, TILE_ROWS, BlockProblem, LinearProblem

# Kernels are imported by the first call: importing them imports Numba.

Ints = tuple[int, ...]


# --- Linear ---------------------------------------------------------------------------------------


@implements(spec.quantize_linear, "elementwise")
def quantize_linear(run: Launch[LinearProblem]) -> None:
    from dnncanon.gpu.kernels import quantize as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise

    p, (scale, *zero) = run.problem, _scales(run)
    function = kernels.quantized_from_zero if zero else kernels.quantized
    inputs, scalars = (run.inputs["x"], scale, *zero), kernels.Format.of(p.output)
    elementwise(function, inputs, (_bytes(run.outputs["y"]),), scalars, stream=run.stream)


@implements(spec.dequantize_linear, "elementwise")
def dequantize_linear(run: Launch[LinearProblem]) -> None:
    from dnncanon.gpu.kernels import quantize as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise

    scale, *zero = _scales(run)
    function = kernels.dequantized_from_zero if zero else kernels.dequantized
    inputs, scalars = (_bytes(run.inputs["x"]), scale, *zero), kernels.Format.of(run.dtype)
    elementwise(function, inputs, (run.outputs["y"],), scalars, stream=run.stream)


def _scales(run: Launch[LinearProblem]) -> list[DeviceArray]:
    """The scale and, if there is one, the zero point, as they broadcast to x."""
    found = [run.inputs["scale"]]
    if "zero_point" in run.inputs:
        found.append(_bytes(run.inputs["zero_point"]))
    return [_of_axis(run.problem, array) for array in found]


def _of_axis(p: LinearProblem, array: DeviceArray) -> DeviceArray:
    step = array.strides[0] if p.axis is not None else 0
    strides = tuple(step if dim == p.axis else 0 for dim in range(len(p.shape)))
    return replace(array, shape=p.scales_shape, strides=strides)


def _bytes(array: DeviceArray) -> DeviceArray:
    """The codes as they lie in memory."""
    return replace(array, dtype=np.dtype(np.uint8))


# --- Blocks ---------------------------------------------------------------------------------------


def _quantize_blocks(run: Launch[BlockProblem]) -> None:
    from dnncanon.gpu.kernels import quantize as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise
    from dnncanon.gpu.kernels.row_map import row_map

    p, scale = run.problem, run.outputs["scale"]
    padded = _Padded(p, run.workspace) if p.tiled else None
    if padded is not None:
        elementwise(kernels.nothing, (), (padded.whole,), stream=run.stream)
    row_map(
        _row_map(p),
        (_in_blocks(run.inputs["x"], p),),
        (_in_blocks(_bytes(run.outputs["y"]), p),),
        (p.axis + 1,),
        kernels.Format.of(p.output),
        row_output=scale if padded is None else replace(padded.used, dtype=scale.dtype),
        workspace=run.workspace if padded is None else padded.rest,
        stream=run.stream,
    )
    if padded is not None:
        elementwise(kernels.moved, (padded.tiles,), (_bytes(scale),), stream=run.stream)


def _quantize_blocks_workspace(layouts: Layouts[BlockProblem]) -> int:
    from dnncanon.gpu.kernels.row_map import row_map_workspace_bytes

    p = layouts.problem
    shape, strides = p.blocked_shape, _block_strides(layouts.inputs["x"], p)
    parts = row_map_workspace_bytes(_row_map(p), View(shape, strides), (p.axis + 1,), p.dtype)
    return parts + _padded_bytes(p)


def _dequantize_blocks(run: Launch[BlockProblem]) -> None:
    from dnncanon.gpu.kernels import quantize as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise

    p, scale = run.problem, run.inputs["scale"]
    if p.tiled:
        padded = _Padded(p, run.workspace)
        elementwise(kernels.moved, (_bytes(scale),), (padded.tiles,), stream=run.stream)
        scale = replace(padded.used, dtype=scale.dtype)
    inputs = _in_blocks(_bytes(run.inputs["x"]), p), _for_each_element(scale, p)
    outputs, scalars = (_in_blocks(run.outputs["y"], p),), kernels.Format.of(p.dtype)
    elementwise(kernels.scaled, inputs, outputs, scalars, stream=run.stream)


block_scale_quantize = GpuPrimitive(
    spec.block_scale_quantize,
    lambda: [Implementation("row_wise", _quantize_blocks, _quantize_blocks_workspace)],
)
block_scale_dequantize = GpuPrimitive(
    spec.block_scale_dequantize,
    lambda: [
        Implementation(
            "elementwise", _dequantize_blocks, lambda layouts: _padded_bytes(layouts.problem)
        )
    ],
)


def _row_map(p: BlockProblem) -> Any:
    from dnncanon.gpu.kernels import quantize as kernels

    return kernels.blocks("float64" if p.dtype == "float64" else "float32", p.scale_dtype)


def _block_strides(array: Strided, p: BlockProblem) -> Ints:
    step = array.strides[p.axis]
    return (*array.strides[: p.axis], step * p.block_size, *array.strides[p.axis :])


def _in_blocks(array: DeviceArray, p: BlockProblem) -> DeviceArray:
    """The array with its axis divided into blocks and their elements."""
    return replace(array, shape=p.blocked_shape, strides=_block_strides(array, p))


def _for_each_element(scale: DeviceArray, p: BlockProblem) -> DeviceArray:
    """A scale for each block, with a dim of one for its elements."""
    place = p.axis + 1
    shape, strides = scale.shape, scale.strides
    return replace(
        scale,
        shape=(*shape[:place], 1, *shape[place:]),
        strides=(*strides[:place], 0, *strides[place:]),
    )


# --- Tiles ----------------------------------------------------------------------------------------


def _padded_shape(p: BlockProblem) -> Ints:
    """Of scales with rows and blocks padded to whole tiles."""
    down, across = p.tiles
    return (*p.shape[:-2], down * TILE_ROWS, across * TILE_COLUMNS)


def _padded_bytes(p: BlockProblem) -> int:
    return math.prod(_padded_shape(p)) if p.tiled else 0


class _Padded:
    """Scales as rows of blocks with the padding of tiles, at the end of a workspace, seen in three ways.

    ``whole`` has all bytes, ``used`` those of blocks, in the shape of plain scales, and ``tiles`` all of
    them in the order of tiles. ``rest`` is the workspace before them.
    """

    def __init__(self, p: BlockProblem, workspace: DeviceArray | None) -> None:
        assert workspace is not None
        memory, shape = reinterpret(workspace, np.dtype(np.uint8)), _padded_shape(p)
        before = memory.size - _padded_bytes(p)
        *batch, row, column = dense_strides(shape)
        pointer = memory.pointer + before
        self.rest = replace(memory, shape=(before,))
        self.whole = replace(memory, pointer=pointer, shape=shape, strides=(*batch, row, column))
        last = (row, column) if p.axis == len(p.shape) - 1 else (column, row)
        self.used = replace(self.whole, shape=p.plain_shape, strides=(*batch, *last))
        self.tiles = replace(
            self.whole,
            shape=p.scale_shape,
            strides=(*batch, TILE_ROWS * row, TILE_COLUMNS * column, row, 32 * row, column),
        )
