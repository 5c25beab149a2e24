"""What the convolutions have in common that the tile engine computes from windows: all but the fetch.

A group's correlation is C = A·B with rows (b, q), columns j and depth (r, t): A holds the windows of the source
and is never stored, B is the filter. Where there are too few tiles to fill a GPU, the depth is split; the parts
go to the workspace and a second kernel adds them in order, so that the result is the same in every run.
"""

from dataclasses import dataclass, replace
from typing import Any

from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.plan import BLOCKS, Plan, Tensors
from dnncanon.gpu.kernels.tile.engine import Product, Unit, tile_product
from dnncanon.gpu.kernels.tile.epilogue import Output, activations, adjacent_elements
from dnncanon.gpu.kernels.tile.parts import sum_parts
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import Fetch
from dnncanon.gpu.kernels.tile.window_elements import row_digits
from dnncanon.gpu.kernels.tile.windows import start_of_position
from dnncanon.gpu.runtime import DeviceArray, blocks_for, launch
from dnncanon.spec import dense_strides

LEAST_SLICES = 8
"""Slices that each part of a split depth has at least."""


def refusal(plan: Plan) -> str | None:
    """Why the engine does not take the plan: how it counts."""
    for part in plan.correlations:
        if max(part.rows, part.depth + CHUNK) >= 2**30:
            return f"counts rows and depth in 32 bits: {part.rows} and {part.depth} are not both below 2^30"
    return None


def fills(part: Correlation, tile: Tile) -> bool:
    """Whether such tiles make enough blocks for a GPU."""
    return part.groups * tile.count(part.rows, part.channels_out) >= BLOCKS // 2


def covered(part: Correlation, tile: Tile) -> int:
    """Elements of C that the tiles cover, those outside of it included."""
    return part.groups * tile.count(part.rows, part.channels_out) * tile.rows * tile.columns


def splits_for(part: Correlation, tile: Tile, depth: int) -> int:
    """Into how many parts the depth is split, to fill a GPU."""
    blocks = max(1, part.groups * tile.count(part.rows, part.channels_out))
    return max(1, min(BLOCKS // blocks, -(-depth // tile.depth) // LEAST_SLICES))


# --- Running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """An operand: how it is fetched, where it starts, the stride of groups, what else the fetch takes."""

    fetch: Fetch
    array: DeviceArray
    first: int
    group: int
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a correlation is computed: the unit, the operands, the depth and into how many parts it is split.

    ``batch_first`` says that of a row's digits b is the fastest.
    """

    unit: Unit
    source: Side
    filter: Side
    depth: int
    splits: int
    batch_first: bool = False


def run(
    dtype: str,
    part: Correlation,
    tiling: Tiling,
    tensors: Tensors,
    parts: DeviceArray | None,
    stream: object,
) -> None:
    """Multiply; with a split depth into ``parts``, which are then added."""
    if parts is None:
        _multiply(dtype, part, tiling, tensors, stream)
        return
    sum_dtype = tiling.unit.sum_dtype
    _multiply(sum_dtype, part, tiling, replace(tensors, out=parts), stream)
    add_parts(sum_dtype, dtype, part, tiling.splits, parts, tensors, stream)


def _multiply(
    y_dtype: str, part: Correlation, tiling: Tiling, tensors: Tensors, stream: object
) -> None:
    split, tile = tiling.splits > 1, tiling.unit.tile
    out = _dense(part) if split else part.out
    output = _output(y_dtype, part, out, tensors.out, batch_first=tiling.batch_first)
    source, filters = tiling.source, tiling.filter
    product = Product(tiling.unit, source.fetch, filters.fetch, output)
    digits = row_digits(part, batch_first=tiling.batch_first)
    y_at, c_at, bias_at, ends = _ends(part, out, tensors, digits, y_dtype, plain=split)
    groups = (source.group, filters.group, out.group, c_at[1], bias_at[1])
    strides = [stride for group in groups for stride in (0, 0, group)]
    c, bias, codes, scalars = ends
    args = (
        source.array,
        filters.array,
        tensors.out,
        c,
        bias,
        (part.rows, part.channels_out, tiling.depth, tiling.splits),
        (1, 1, part.groups),
        (source.first, filters.first, out.offset, c_at[0], bias_at[0]),
        tuple(strides),
        source.at,
        filters.at,
        y_at,
        c_at[2],
        bias_at[2],
        part.size,
        codes,
        scalars,
    )
    tiles = part.groups * tiling.splits * tile.count(part.rows, part.channels_out)
    function, nbytes = tile_product(product), product.shared_bytes
    launch(function, blocks_for(tiles, 1), tile.threads, args, shared_bytes=nbytes, stream=stream)


def _output(
    dtype: str, part: Correlation, out: Layout, y: DeviceArray, *, batch_first: bool
) -> Output:
    """Chunks where channels lie side by side; else along whichever is nearer, channels or rows."""
    strides = (out.group, out.outer, *out.spatial)
    extents = (part.groups, part.batch, *part.positions)
    far = [stride for stride, n in zip(strides, extents, strict=True) if n > 1]
    itemsize = y.dtype.itemsize
    first = y.lowest + out.offset * itemsize
    count = adjacent_elements(first, itemsize, out.inner, far, part.channels_out)
    dims = zip(out.spatial, part.positions, strict=True)
    near = min((abs(stride) for stride, n in dims if n > 1), default=0)
    if batch_first:
        near = abs(out.outer)
    by_rows = count == 1 and 0 < near < abs(out.inner)
    return Output(dtype, dtype, count, by_rows, start_of_position)


def _dense(part: Correlation) -> Layout:
    """Parts of sums in the order [g, b, q0, q1, q2, j]."""
    extents = (part.groups, part.batch, *part.positions, part.channels_out)
    group, outer, s0, s1, s2, inner = dense_strides(extents)
    return Layout(0, group, outer, inner, (s0, s1, s2))


def _ends(
    part: Correlation,
    out: Layout,
    tensors: Tensors,
    digits: tuple[int, ...],
    sum_dtype: str,
    *,
    plain: bool,
) -> Any:
    """Places of y, of C and of the bias as (first, stride of groups, rest), and ``finisher``'s extras."""
    y_at = (out.inner, out.outer, *out.spatial, *digits)
    nowhere = (0, 0, (0, 0, 0, 0, 0, *digits)), (0, 0, (0, 0))
    epilogue, y = tensors.epilogue, tensors.out
    if plain:
        return y_at, *nowhere, (y, y, (0, 0, 0), (1.0, 0.0))
    c_at, bias_at = nowhere
    if epilogue.residual is not None and epilogue.residual_at is not None:
        at = epilogue.residual_at
        c_at = at.offset, at.group, (at.inner, at.outer, *at.spatial, *digits)
    if epilogue.bias is not None:
        step = epilogue.bias.strides[0]
        bias_at = epilogue.bias.origin, step * part.channels_out, (step, 0)
    code = activations(ELEMENTS[sum_dtype].sum_dtype.name)[1][
        "relu" if epilogue.relu else "identity"
    ]
    codes = (int(epilogue.residual is not None), int(epilogue.bias is not None), code)
    scalars = (epilogue.alpha1, epilogue.alpha2)
    return y_at, c_at, bias_at, (epilogue.residual or y, epilogue.bias or y, codes, scalars)


def add_parts(
    sum_dtype: str,
    dtype: str,
    part: Correlation,
    splits: int,
    parts: DeviceArray,
    tensors: Tensors,
    stream: object,
) -> None:
    out = part.out
    _, c_at, bias_at, (c, bias, codes, scalars) = _ends(
        part, out, tensors, row_digits(part), sum_dtype, plain=False
    )
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
    launch(sum_parts(sum_dtype, dtype), blocks_for(part.size, 256), 256, args, stream=stream)
