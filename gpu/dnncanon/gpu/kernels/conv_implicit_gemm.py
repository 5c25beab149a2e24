"""Implicit GEMM on CUDA cores: convolution by the tile engine, with both operands read where they lie.

Any element type, any strides, and no workspace but for the parts of a split depth. Elements reach shared memory
one by one; of float32 and float64 asynchronously, of 16 bits by way of registers, where they become float32.
"""

from dnncanon.gpu.kernels import conv_tiles
from dnncanon.gpu.kernels.conv_tiles import Side, Tiling
from dnncanon.gpu.kernels.correlation import Correlation
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Slice
from dnncanon.gpu.kernels.tile.window_elements import (
    Depth,
    Words,
    elements_of_filters,
    elements_of_windows,
    filters_at,
    nearer_batch,
    windows_at,
)
from dnncanon.gpu.runtime import DeviceArray

LARGE, SMALL = Tile(128, 128, 16, (2, 4), 2), Tile(64, 64, 16, (2, 4), 2)
NARROW = Tile(128, 16, 16, (4, 1), 2)
"""For few channels."""


def tile_for(part: Correlation, word: str) -> Tile:
    """Narrow for few columns; large where that still makes enough blocks, and sums fit into registers."""
    if part.channels_out <= NARROW.columns:
        return NARROW
    return LARGE if conv_tiles.fills(part, LARGE) and word == "float32" else SMALL


class ImplicitGemm:
    """The algorithm "implicit_gemm"."""

    name = "implicit_gemm"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        return conv_tiles.refusal(plan)

    def pays(self, plan: Plan) -> bool:
        """Whether tiles are filled to an eighth, or few outputs with long sums need splitting.

        The columns of a depthwise convolution fill a sixteenth: there, threads do better alone.
        """
        word = _word(plan.dtype)
        tiles = [(part, tile_for(part, word)) for part in plan.correlations]
        covered = sum(conv_tiles.covered(part, tile) for part, tile in tiles)
        filled = 8 * sum(part.size for part, _ in tiles) >= covered
        return filled or any(
            conv_tiles.splits_for(part, tile, part.depth) > 1 for part, tile in tiles
        )

    def workspace_bytes(self, plan: Plan) -> int:
        word = _word(plan.dtype)
        return max((_scratch(part, word).nbytes for part in plan.correlations), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size:
                tiling = _tiling(plan.dtype, part, tensors)
                arrays = _scratch(part, tiling.unit.word).arrays(workspace)
                conv_tiles.run(plan.dtype, part, tiling, tensors, arrays.get("parts"), stream)


def _word(dtype: str) -> str:
    """The type of products and sums."""
    return ELEMENTS[dtype].sum_dtype.name


def _scratch(part: Correlation, word: str) -> Scratch:
    """What is in the workspace: parts of a split depth."""
    splits = conv_tiles.splits_for(part, tile_for(part, word), part.depth)
    return Scratch(0, **({"parts": ((splits, part.size), word)} if splits > 1 else {}))


def _tiling(dtype: str, part: Correlation, tensors: Tensors) -> Tiling:
    word = _word(dtype)
    tile, kind = tile_for(part, word), Words(dtype, word)
    depth, batch_first = Depth.of(part, tile.depth), nearer_batch(part)
    a, b = (
        Slice(lines, tile.depth, words.itemsize(word), "lines", CHUNK)
        for lines in (tile.rows, tile.columns)
    )
    wide = _far(part)
    source = Side(
        elements_of_windows(a, tile.threads, kind, wide=wide),
        tensors.source,
        part.source.offset,
        part.source.group,
        windows_at(part, depth, kind, batch_first=batch_first),
    )
    filters = Side(
        elements_of_filters(b, tile.threads, kind, wide=wide),
        tensors.filter,
        part.filter.offset,
        part.filter.group,
        filters_at(part, depth, kind),
    )
    splits = conv_tiles.splits_for(part, tile, part.depth)
    return Tiling(CudaCore(word, tile, a, b), source, filters, part.depth, splits, batch_first)


def _far(part: Correlation) -> bool:
    """Whether coordinates, with room for one addition, are too large for 32 bits."""
    dims = zip(
        part.extents, part.positions, part.step, part.taps, part.gap, part.shift, strict=True
    )
    return any(max(i, q * u + t * gap + abs(p)) >= 2**30 for i, q, u, t, gap, p in dims)
