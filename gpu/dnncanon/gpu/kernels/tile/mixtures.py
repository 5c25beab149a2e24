"""Grouped products as the tile engine computes them: tiles, fetches and launches."""

from dataclasses import dataclass, replace
from typing import Any

from dnncanon.gpu.kernels.moving import fill
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.engine import Product
from dnncanon.gpu.kernels.tile.epilogue import Output, adjacent_elements, strided_row
from dnncanon.gpu.kernels.tile.groups import (
    gathered_chunks,
    gathered_elements,
    product_by_depth,
    product_by_rows,
    row_of_token,
    rows_left_out,
    scattered_row,
)
from dnncanon.gpu.kernels.tile.matrices import SMALL, SMALL_CUDA, Operand, fetched
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice, word_mover
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import DeviceArray, blocks_for, launch
from dnncanon.spec.matmul import GroupedMatmulProblem

_STARTS = {"none": strided_row, "gather": row_of_token, "scatter": scattered_row}


@dataclass(frozen=True, slots=True)
class Routing:
    """Offsets of the groups, and with modes gather and scatter where rows come from or go to."""

    offsets: DeviceArray
    index: DeviceArray | None = None
    ks: DeviceArray | None = None


def _on_tensor_cores(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16")


def _tile(dtype: str) -> Tile:
    return SMALL if _on_tensor_cores(dtype) else SMALL_CUDA


def _unit(dtype: str, tile: Tile, a: Slice, b: Slice) -> Any:
    return (TensorCore if _on_tensor_cores(dtype) else CudaCore)(dtype, tile, a, b)


def _operand(
    array: DeviceArray, dtype: str, lines: int, depth: int, at: tuple[int, ...], *others: int
) -> Operand:
    """``others`` are strides by which the first element may be moved."""
    of_lines, of_depth = at
    return Operand(array, dtype, lines, depth, of_lines, of_depth, others)


def multiply_rows(
    p: GroupedMatmulProblem,
    token: DeviceArray,
    weight: DeviceArray,
    y: DeviceArray,
    routing: Routing,
    stream: object,
) -> None:
    """y[rows of g] = x[rows of g]·weight[g mod E], and what rows of no group are."""
    _write_rows_left_out(p, y, routing, stream)
    if 0 in (p.rows, p.columns, p.groups):
        return
    tile = _tile(p.dtype)
    x = _operand(token, p.dtype, p.tokens, p.terms, token.strides, token.strides[0])
    of_expert, of_depth, of_column = weight.strides
    w = _operand(weight, p.dtype, p.columns, p.terms, (of_column, of_depth), of_expert)
    slice_x, fetch_x = fetched(x, tile.rows, tile, p.dtype, tensor_core=_on_tensor_cores(p.dtype))
    slice_w, fetch_w = fetched(
        w, tile.columns, tile, p.dtype, tensor_core=_on_tensor_cores(p.dtype)
    )
    if p.mode == "gather":
        slice_x, fetch_x = _gathered(x, slice_x, tile, p.dtype)
    output = Output(p.dtype, p.dtype, _count(y), start_of_row=_STARTS[p.mode])
    product = Product(_unit(p.dtype, tile, slice_x, slice_w), fetch_x, fetch_w, output)
    index, ks = routing.index or routing.offsets, routing.ks or routing.offsets
    args = (
        token,
        weight,
        y,
        routing.offsets,
        index,
        ks,
        (p.rows, p.columns, p.terms, p.groups, p.experts, p.tokens, p.top_k),
        (token.origin, *token.strides),
        (weight.origin, of_expert, of_column, of_depth),
        (y.origin, *y.strides),
        *((array.origin, array.strides[0]) for array in (routing.offsets, index, ks)),
    )
    blocks = blocks_for(p.groups * tile.count(p.rows, p.columns), 1)
    function, nbytes = product_by_rows(product, p.mode), product.shared_bytes
    launch(function, blocks, tile.threads, args, shared_bytes=nbytes, stream=stream)


def _gathered(x: Operand, layout: Slice, tile: Tile, word: str) -> tuple[Slice, Fetch]:
    """Tokens in chunks along their depth where they can be had so."""
    if _on_tensor_cores(word) and x.in_chunks("depth"):
        return layout, gathered_chunks(layout, tile.threads)
    if _on_tensor_cores(word):
        layout = replace(layout, along="depth")
    return layout, gathered_elements(layout, tile.threads, word_mover(x.dtype, word))


def _count(y: DeviceArray) -> int:
    """How many elements of a row of y one store takes."""
    *far, near = y.strides
    return adjacent_elements(y.pointer, y.dtype.itemsize, near, far, y.shape[-1])


def _write_rows_left_out(
    p: GroupedMatmulProblem, y: DeviceArray, routing: Routing, stream: object
) -> None:
    if p.mode == "scatter" or p.groups == 0:
        fill(y, 0, stream=stream)
        return
    index = routing.index or routing.offsets
    args = (
        y,
        routing.offsets,
        index,
        (p.rows, p.columns, p.groups, p.tokens),
        (y.origin, *y.strides),
        (routing.offsets.origin, routing.offsets.strides[0]),
        (index.origin, index.strides[0]),
    )
    function = rows_left_out(p.dtype, gathers=p.mode == "gather")
    launch(function, blocks_for(p.rows * p.columns, 256), 256, args, stream=stream)


def multiply_depth(
    p: GroupedMatmulProblem,
    dy: DeviceArray,
    token: DeviceArray,
    dweight: DeviceArray,
    routing: Routing,
    stream: object,
) -> None:
    """dweight[e] = Σ token[rows of g]ᵀ·dy[rows of g] over the groups of each expert."""
    tile, tensor_core = _tile(p.dtype), _on_tensor_cores(p.dtype)
    along = [(array.strides[1], array.strides[0]) for array in (token, dy)]
    x = _operand(token, p.dtype, p.terms, p.rows, along[0], token.strides[0])
    gradient = _operand(dy, p.dtype, p.columns, p.rows, along[1], dy.strides[0])
    slice_x, fetch_x = fetched(
        x, tile.rows, tile, p.dtype, tensor_core=tensor_core, depth_varies=True
    )
    slice_dy, fetch_dy = fetched(
        gradient, tile.columns, tile, p.dtype, tensor_core=tensor_core, depth_varies=True
    )
    output = Output(p.dtype, p.dtype, _count(dweight))
    product = Product(_unit(p.dtype, tile, slice_x, slice_dy), fetch_x, fetch_dy, output)
    args = (
        token,
        dy,
        dweight,
        routing.offsets,
        (p.terms, p.columns, p.rows, p.groups, p.experts),
        (token.origin, *along[0]),
        (dy.origin, *along[1]),
        (dweight.origin, *dweight.strides),
        (routing.offsets.origin, routing.offsets.strides[0]),
    )
    blocks = blocks_for(p.experts * tile.count(p.terms, p.columns), 1)
    function, nbytes = product_by_depth(product), product.shared_bytes
    launch(function, blocks, tile.threads, args, shared_bytes=nbytes, stream=stream)
