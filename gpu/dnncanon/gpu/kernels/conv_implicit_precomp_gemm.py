"""Implicit GEMM on tensor cores: convolution by the tile engine, with chunks of channels read where they lie.

The engine wants channels side by side and in whole chunks of 16 bytes, in the source and in the filter. Where
they are not so, they are copied into the workspace in that order first, with zeros behind the channels.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.moving import copy, fill
from dnncanon.gpu.kernels.plan import BLOCKS, Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile.engine import Product, tile_product
from dnncanon.gpu.kernels.tile.epilogue import Output, activations
from dnncanon.gpu.kernels.tile.parts import sum_parts
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Slice, chunks_of_matrix
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.kernels.tile.windows import chunks_of_windows, start_of_position
from dnncanon.gpu.runtime import DeviceArray, blocks_for, launch
from dnncanon.spec import dense_strides

WORDS = ("float16", "bfloat16")

LARGE, SMALL = Tile(128, 128, 32, (2, 4), 3), Tile(64, 64, 32, (2, 2), 3)
NARROW = Tile(128, 16, 64, (4, 1), 2)
"""For few channels."""

LEAST_SLICES = 8
"""Slices that each part of a split depth has at least."""

SIDE_BY_SIDE = 8
"""Channels of 16 bits in a chunk."""


def tile_for(part: Correlation) -> Tile:
    """Narrow for few columns; large where that still makes enough blocks."""
    if part.channels_out <= NARROW.columns:
        return NARROW
    fills = part.groups * LARGE.count(part.rows, part.channels_out) >= BLOCKS // 2
    return LARGE if fills else SMALL


# --- Operands with their channels side by side ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """An operand as the engine takes it: strides of [group, outer, three dims], and where it starts.

    ``copied`` says that it is dense in the workspace, with so many ``channels``, those behind the last one 0;
    else it is where the caller has it.
    """

    copied: bool
    extents: tuple[int, ...]
    channels: int
    first: int
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.extents, self.channels)


def packed_source(part: Correlation) -> Packed:
    """[g, b, i0, i1, i2, r]"""
    extents = (part.groups, part.batch, *part.extents)
    return _packed(part.source, extents, part.channels_in, in_one_piece=False)


def packed_filter(part: Correlation) -> Packed:
    """[g, j, t0, t1, t2, r], of each j in one piece"""
    extents = (part.groups, part.channels_out, *part.taps)
    return _packed(part.filter, extents, part.channels_in, in_one_piece=True)


def _packed(at: Layout, extents: tuple[int, ...], channels: int, *, in_one_piece: bool) -> Packed:
    strides = (at.group, at.outer, *at.spatial)
    chunks = (at.inner == 1 or channels == 1) and channels % SIDE_BY_SIDE == 0
    far = [stride for stride, n in zip(strides, extents, strict=True) if n > 1]
    whole = chunks and all(stride % SIDE_BY_SIDE == 0 for stride in (at.offset, *far))
    if whole and in_one_piece:
        dense = dense_strides((*extents[2:], channels))[:3]
        dims = zip(extents[2:], at.spatial, dense, strict=True)
        whole = all(n == 1 or have == want for n, have, want in dims)
    if whole:
        return Packed(False, extents, channels, at.offset, strides)
    padded = -(-channels // SIDE_BY_SIDE) * SIDE_BY_SIDE
    return Packed(True, extents, padded, 0, dense_strides((*extents, padded))[:5])


def _scratch(part: Correlation, dtype: str) -> Scratch:
    """What is in the workspace: copies of operands, and parts of a split depth."""
    tile, source, filters = tile_for(part), packed_source(part), packed_filter(part)
    arrays: dict[str, tuple[tuple[int, ...], str]] = {}
    if source.copied:
        arrays["source"] = (source.shape, dtype)
    if filters.copied:
        arrays["filter"] = (filters.shape, dtype)
    splits = splits_for(part, tile)
    if splits > 1:
        arrays["parts"] = ((splits, part.size), "float32")
    return Scratch(0, **arrays)


def splits_for(part: Correlation, tile: Tile) -> int:
    """Into how many parts the depth is split, to fill a GPU."""
    blocks = max(1, part.groups * tile.count(part.rows, part.channels_out))
    depth = packed_source(part).channels * math.prod(part.taps)
    return max(1, min(BLOCKS // blocks, -(-depth // tile.depth) // LEAST_SLICES))


# --- The algorithm --------------------------------------------------------------------------------


class ImplicitPrecompGemm:
    """The algorithm "implicit_precomp_gemm"."""

    name = "implicit_precomp_gemm"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        if plan.dtype not in WORDS:
            return f"multiplies {' and '.join(WORDS)} on tensor cores, not {plan.dtype}"
        if any(max(part.rows, part.depth + CHUNK) >= 2**30 for part in plan.correlations):
            return "counts rows and depth in 32 bits: 2^30 are too many"
        return None

    def pays(self, plan: Plan) -> bool:
        """Whether tiles are filled to an eighth, and channels to a half."""
        parts = [part for part in plan.correlations if part.size]
        covered = sum(
            part.groups * tile_for(part).count(part.rows, part.channels_out)
            * tile_for(part).rows * tile_for(part).columns
            for part in parts
        )  # fmt: skip
        filled = 8 * sum(part.size for part in parts) >= covered
        return filled and all(2 * part.channels_in >= SIDE_BY_SIDE for part in parts)

    def workspace_bytes(self, plan: Plan) -> int:
        return max((_scratch(p, plan.dtype).nbytes for p in plan.correlations if p.size), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size:
                _run(plan.dtype, part, tensors, workspace, stream)


def _run(
    dtype: str, part: Correlation, tensors: Tensors, workspace: DeviceArray | None, stream: object
) -> None:
    arrays = _scratch(part, dtype).arrays(workspace)
    source, filters = packed_source(part), packed_filter(part)
    if source.copied:
        _pack(tensors.source, part.source, source, part.channels_in, arrays["source"], stream)
    if filters.copied:
        _pack(tensors.filter, part.filter, filters, part.channels_in, arrays["filter"], stream)
    tile = tile_for(part)
    splits = splits_for(part, tile)
    into = tensors if splits == 1 else replace(tensors, out=arrays["parts"])
    operands = (arrays.get("source", tensors.source), arrays.get("filter", tensors.filter))
    _multiply(dtype, part, tile, splits, source, filters, operands, into, stream)
    if splits > 1:
        _add_parts(dtype, part, splits, arrays["parts"], tensors, stream)


def _pack(
    array: DeviceArray,
    at: Layout,
    packed: Packed,
    channels: int,
    target: DeviceArray,
    stream: object,
) -> None:
    """Copy an operand into the workspace, with zeros behind its channels."""
    if packed.channels != channels:
        fill(target, 0, stream=stream)
    first = array.lowest + at.offset * array.dtype.itemsize
    shape = (*packed.extents, channels)
    strides = (at.group, at.outer, *at.spatial, at.inner)
    view = replace(array, pointer=first, shape=shape, strides=strides)
    copy(view, replace(target, shape=shape), stream=stream)


def _multiply(
    dtype: str,
    part: Correlation,
    tile: Tile,
    splits: int,
    source: Packed,
    filters: Packed,
    operands: tuple[DeviceArray, DeviceArray],
    tensors: Tensors,
    stream: object,
) -> None:
    slice_a = Slice(tile.rows, tile.depth, 2, "depth")
    slice_b = Slice(tile.columns, tile.depth, 2, "depth")
    out = _dense(part) if splits > 1 else part.out
    y_dtype = "float32" if splits > 1 else dtype
    product = Product(
        TensorCore(dtype, tile, slice_a, slice_b),
        chunks_of_windows(slice_a, tile.threads),
        chunks_of_matrix(slice_b, tile.threads),
        _output(y_dtype, part, out, tensors.out),
    )
    depth = source.channels * math.prod(part.taps)
    y_at, c_at, bias_at, ends = _ends(part, out, tensors, plain=splits > 1)
    windows = (
        source.channels,
        *source.strides[1:],
        *part.positions,
        *part.extents,
        *part.step,
        *part.taps,
        *part.gap,
        *part.shift,
    )
    groups = (source.strides[0], filters.strides[0], out.group, c_at[1], bias_at[1])
    strides = [stride for group in groups for stride in (0, 0, group)]
    c, bias, codes, scalars = ends
    args = (
        *operands,
        tensors.out,
        c,
        bias,
        (part.rows, part.channels_out, depth, splits),
        (1, 1, part.groups),
        (source.first, filters.first, out.offset, c_at[0], bias_at[0]),
        tuple(strides),
        windows,
        (filters.strides[1], 1),
        y_at,
        c_at[2],
        bias_at[2],
        part.size,
        codes,
        scalars,
    )
    blocks = blocks_for(part.groups * splits * tile.count(part.rows, part.channels_out), 1)
    function, nbytes = tile_product(product), product.shared_bytes
    launch(function, blocks, tile.threads, args, shared_bytes=nbytes, stream=stream)


def _output(dtype: str, part: Correlation, out: Layout, y: DeviceArray) -> Output:
    """Chunks where channels lie side by side; else along whichever is nearer, channels or positions."""
    count = CHUNK // y.dtype.itemsize
    strides = (out.offset, out.group, out.outer, *out.spatial)
    extents = (2, part.groups, part.batch, *part.positions)
    far = [stride for stride, n in zip(strides, extents, strict=True) if n > 1]
    aligned = y.lowest % CHUNK == 0 and all(stride % count == 0 for stride in far)
    if out.inner != 1 or not aligned or part.channels_out % count:
        count = 1
    near = min(
        (abs(s) for s, n in zip(out.spatial, part.positions, strict=True) if n > 1), default=0
    )
    by_rows = count == 1 and 0 < near < abs(out.inner)
    return Output(dtype, dtype, count, by_rows, start_of_position)


def _dense(part: Correlation) -> Layout:
    """Parts of sums in the order [g, b, q0, q1, q2, j]."""
    extents = (part.groups, part.batch, *part.positions, part.channels_out)
    group, outer, s0, s1, s2, inner = dense_strides(extents)
    return Layout(0, group, outer, inner, (s0, s1, s2))


def _ends(part: Correlation, out: Layout, tensors: Tensors, *, plain: bool) -> Any:
    """Places of y, of C and of the bias as (first, stride of groups, rest), and ``finisher``'s extras."""
    y_at = (out.inner, out.outer, *out.spatial, *part.positions)
    nowhere = (0, 0, (0, 0, 0, 0, 0, *part.positions)), (0, 0, (0, 0))
    epilogue, y = tensors.epilogue, tensors.out
    if plain:
        return y_at, *nowhere, (y, y, (0, 0, 0), (1.0, 0.0))
    c_at, bias_at = nowhere
    if epilogue.residual is not None and epilogue.residual_at is not None:
        at = epilogue.residual_at
        c_at = at.offset, at.group, (at.inner, at.outer, *at.spatial, *part.positions)
    if epilogue.bias is not None:
        step = epilogue.bias.strides[0]
        bias_at = epilogue.bias.origin, step * part.channels_out, (step, 0)
    code = activations("float32")[1]["relu" if epilogue.relu else "identity"]
    codes = (int(epilogue.residual is not None), int(epilogue.bias is not None), code)
    scalars = (epilogue.alpha1, epilogue.alpha2)
    return y_at, c_at, bias_at, (epilogue.residual or y, epilogue.bias or y, codes, scalars)


def _add_parts(
    dtype: str, part: Correlation, splits: int, parts: DeviceArray, tensors: Tensors, stream: object
) -> None:
    out = part.out
    _, c_at, bias_at, (c, bias, codes, scalars) = _ends(part, out, tensors, plain=False)
    extents = (part.groups, part.batch, *part.positions, part.channels_out)
    inner, outer, s0, s1, s2 = c_at[2][:5]
    strides = (
        *(out.group, out.outer, *out.spatial, out.inner),
        *(c_at[1], outer, s0, s1, s2, inner),
        *(bias_at[1], 0, 0, 0, 0, bias_at[2][0]),
    )
    args = (
        parts,
        tensors.out,
        c,
        bias,
        splits,
        part.size,
        extents,
        (out.offset, c_at[0], bias_at[0]),
        strides,
        codes,
        scalars,
    )
    function = sum_parts("float32", ELEMENTS[dtype].name)
    launch(function, blocks_for(part.size, 256), 256, args, stream=stream)
