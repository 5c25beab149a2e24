"""Implicit GEMM on tensor cores: convolution by the tile engine, with chunks of channels read where they lie.

The engine wants channels side by side and in whole chunks of 16 bytes, in the source and in the filter. Where
they are not so, they are copied into the workspace in that order first, with zeros behind the channels.

16-bit floats are multiplied as they are, float32 as TF32 or, nearly as accurate as float32, as sums of two TF32
numbers: these are algorithms of their own, for each has a numerics class of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dnncanon.gpu.kernels import conv_tiles
from dnncanon.gpu.kernels.conv_tiles import Side, Tiling
from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.moving import copy, fill
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Slice, chunks_of_matrix
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.kernels.tile.windows import chunks_of_windows
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.spec import dense_strides

LARGE, SMALL = Tile(128, 128, 32, (2, 4), 3), Tile(64, 64, 32, (2, 2), 3)
NARROW = Tile(128, 16, 64, (4, 1), 2)
"""For few channels. Depths are those of 16-bit words; there are half as many of float32."""


def tile_for(part: Correlation, itemsize: int) -> Tile:
    """Narrow for few columns; large where that still makes enough blocks."""
    tile = LARGE if conv_tiles.fills(part, LARGE) else SMALL
    if part.channels_out <= NARROW.columns:
        tile = NARROW
    return replace(tile, depth=tile.depth * 2 // itemsize)


def side_by_side(itemsize: int) -> int:
    """Channels in a chunk."""
    return CHUNK // itemsize


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


def packed_source(part: Correlation, itemsize: int) -> Packed:
    """[g, b, i0, i1, i2, r]"""
    extents = (part.groups, part.batch, *part.extents)
    return _packed(part.source, extents, part.channels_in, itemsize, in_one_piece=False)


def packed_filter(part: Correlation, itemsize: int) -> Packed:
    """[g, j, t0, t1, t2, r], of each j in one piece"""
    extents = (part.groups, part.channels_out, *part.taps)
    return _packed(part.filter, extents, part.channels_in, itemsize, in_one_piece=True)


def _packed(
    at: Layout, extents: tuple[int, ...], channels: int, itemsize: int, *, in_one_piece: bool
) -> Packed:
    strides, count = (at.group, at.outer, *at.spatial), side_by_side(itemsize)
    chunks = (at.inner == 1 or channels == 1) and channels % count == 0
    far = [stride for stride, n in zip(strides, extents, strict=True) if n > 1]
    whole = chunks and all(stride % count == 0 for stride in (at.offset, *far))
    if whole and in_one_piece:
        dense = dense_strides((*extents[2:], channels))[:3]
        dims = zip(extents[2:], at.spatial, dense, strict=True)
        whole = all(n == 1 or have == want for n, have, want in dims)
    if whole:
        return Packed(False, extents, channels, at.offset, strides)
    padded = -(-channels // count) * count
    return Packed(True, extents, padded, 0, dense_strides((*extents, padded))[:5])


def _depth(part: Correlation, itemsize: int) -> int:
    return packed_source(part, itemsize).channels * math.prod(part.taps)


def _scratch(part: Correlation, dtype: str) -> Scratch:
    """What is in the workspace: copies of operands, and parts of a split depth."""
    itemsize = ELEMENTS[dtype].dtype.itemsize
    source, filters = packed_source(part, itemsize), packed_filter(part, itemsize)
    arrays: dict[str, tuple[tuple[int, ...], str]] = {}
    if source.copied:
        arrays["source"] = (source.shape, dtype)
    if filters.copied:
        arrays["filter"] = (filters.shape, dtype)
    splits = conv_tiles.splits_for(part, tile_for(part, itemsize), _depth(part, itemsize))
    if splits > 1:
        arrays["parts"] = ((splits, part.size), "float32")
    return Scratch(0, **arrays)


# --- The algorithms -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImplicitPrecompGemm:
    """The algorithm "implicit_precomp_gemm", and those whose class is what float32 is multiplied as."""

    name: str = "implicit_precomp_gemm"
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    numerics: str | None = None
    deterministic: bool = True

    def refusal(self, plan: Plan) -> str | None:
        if plan.dtype not in self.dtypes:
            return f"multiplies {' and '.join(self.dtypes)} on tensor cores, not {plan.dtype}"
        return conv_tiles.refusal(plan)

    def pays(self, plan: Plan) -> bool:
        """Whether tiles are filled to an eighth, and channels to a half."""
        itemsize = ELEMENTS[plan.dtype].dtype.itemsize
        parts = [part for part in plan.correlations if part.size]
        covered = sum(conv_tiles.covered(part, tile_for(part, itemsize)) for part in parts)
        filled = 8 * sum(part.size for part in parts) >= covered
        return filled and all(2 * part.channels_in >= side_by_side(itemsize) for part in parts)

    def workspace_bytes(self, plan: Plan) -> int:
        return max((_scratch(p, plan.dtype).nbytes for p in plan.correlations if p.size), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size:
                arrays = _scratch(part, plan.dtype).arrays(workspace)
                tiling = _tiling(self.numerics or plan.dtype, part, tensors, arrays, stream)
                conv_tiles.run(plan.dtype, part, tiling, tensors, arrays.get("parts"), stream)


ALGORITHMS = (
    ImplicitPrecompGemm(),
    *(
        ImplicitPrecompGemm(f"implicit_precomp_gemm_{word}", ("float32",), word)
        for word in ("tf32x3", "tf32")
    ),
)


def _tiling(
    word: str,
    part: Correlation,
    tensors: Tensors,
    arrays: Mapping[str, DeviceArray],
    stream: object,
) -> Tiling:
    """With operands that have been copied, if they have to be."""
    itemsize = tensors.source.dtype.itemsize
    source, filters = packed_source(part, itemsize), packed_filter(part, itemsize)
    if source.copied:
        _pack(tensors.source, part.source, source, part.channels_in, arrays["source"], stream)
    if filters.copied:
        _pack(tensors.filter, part.filter, filters, part.channels_in, arrays["filter"], stream)
    tile, depth = tile_for(part, itemsize), _depth(part, itemsize)
    slice_a = Slice(tile.rows, tile.depth, itemsize, "depth")
    slice_b = Slice(tile.columns, tile.depth, itemsize, "depth")
    return Tiling(
        TensorCore(word, tile, slice_a, slice_b),
        Side(
            chunks_of_windows(slice_a, tile.threads),
            arrays.get("source", tensors.source),
            source.first,
            source.strides[0],
            _windows(part, source),
        ),
        Side(
            chunks_of_matrix(slice_b, tile.threads),
            arrays.get("filter", tensors.filter),
            filters.first,
            filters.strides[0],
            (filters.strides[1], 1),
        ),
        depth,
        conv_tiles.splits_for(part, tile, depth),
    )


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


def _windows(part: Correlation, source: Packed) -> tuple[int, ...]:
    """What ``chunks_of_windows`` takes."""
    return (
        source.channels,
        *source.strides[1:],
        *part.positions,
        *part.extents,
        *part.step,
        *part.taps,
        *part.gap,
        *part.shift,
    )
