"""Convolution by Winograd's minimal filtering F(m, r): m outputs of r taps by m + r − 1 products, not m·r.

In each of the last two dims that have step and gap 1 and the right extent (in one, if only one has), positions
are cut into tiles of m and taps into pieces of r. With the transforms of ``dnncanon.spec.numerics``, ⊗ for each
dim,

    out[row, j] = Aᵀ[Σ_c (G·filter[j, c]) ⊙ (Bᵀ·source[row, c])]

with rows (b, tile) and columns c = (r, piece): a sum over pieces is as good as one over channels. Other dims
have tiles of one position and pieces of one tap, and any step and gap. Where taps are few there is one piece,

| algorithm | forward, backward data: 3 taps | backward filter: 3 positions |
| --- | --- | --- |
| winograd | F(2, 3) | F(3, 2) |
| winograd_nonfused | F(4, 3) | F(3, 4) |

and for the gradient of a filter, whose taps are the outputs' positions, there is one tile. "winograd" is one
kernel, but for the filters' transform; "winograd_nonfused" has the points of sources and of sums in the
workspace, and multiplies them, point by point, on the tile engine.

Inf and NaN of an operand reach all outputs of a tile, of which the numerics class says so; but not those of a
tile that meets no element at all, which is 0.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dnncanon.gpu.kernels import conv_winograd_fused, conv_winograd_transforms
from dnncanon.gpu.kernels.conv_fft import WORD
from dnncanon.gpu.kernels.conv_winograd_transforms import THREADS
from dnncanon.gpu.kernels.correlation import Correlation, Layout, Triple
from dnncanon.gpu.kernels.plan import BLOCKS, Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.tile import matrices
from dnncanon.gpu.kernels.tile.matrices import Matrices, Matrix
from dnncanon.gpu.runtime import DeviceArray, blocks_for, launch

EXTENT = 3
"""Taps of a filter, or positions of its gradient, in a dim that is transformed."""

CHUNK = 4
"""Rows and channels in the workspace are multiples of it: the tile engine fetches 16 bytes."""

AT_A_TIME = 1 << 26
"""Numbers that the points of sources, and of sums, may have in the workspace."""

SHARE = (3, 4)
"""Of the fused kernel's instructions so many are multiply-adds; the direct algorithms' nearly all."""


# --- How a correlation is cut ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """A correlation by F(``outputs``, ``taps``) in its last ``dims`` dims: tiles, pieces and what they measure.

    Of each dim ``positions`` is what a tile has of them, and ``each`` what a piece has of taps.
    """

    part: Correlation
    outputs: int
    taps: int
    dims: int

    @property
    def tile(self) -> int:
        """Points of a tile in each dim that is transformed."""
        return self.outputs + self.taps - 1

    @property
    def points(self) -> int:
        return int(self.tile**self.dims)

    def of_dims(self, transformed: int) -> Triple:
        """A number for those that are, and 1 for the others."""
        return _triple(transformed if d >= 3 - self.dims else 1 for d in range(3))

    @property
    def tiles(self) -> Triple:
        sizes = zip(self.part.positions, self.of_dims(self.outputs), strict=True)
        return _triple(-(-n // size) for n, size in sizes)

    @property
    def pieces(self) -> Triple:
        sizes = zip(self.part.taps, self.of_dims(self.taps), strict=True)
        return _triple(-(-n // size) for n, size in sizes)

    @property
    def cut(self) -> tuple[int, ...]:
        """As kernels take it: from tile to tile and from piece to piece in the source, and the shift."""
        part = self.part
        by_tile = zip(self.of_dims(self.outputs), part.step, strict=True)
        by_piece = zip(self.of_dims(self.taps), part.gap, strict=True)
        return (*(m * step for m, step in by_tile), *(r * gap for r, gap in by_piece), *part.shift)

    @property
    def rows(self) -> int:
        return self.part.batch * math.prod(self.tiles)

    @property
    def columns(self) -> int:
        return self.part.channels_in * math.prod(self.pieces)

    @property
    def padded_channels(self) -> int:
        return _padded(self.part.channels_out)

    @property
    def products(self) -> int:
        """Of all points."""
        part = self.part
        return self.points * part.groups * self.rows * part.channels_out * self.columns

    def numbers(self, lines: int) -> int:
        """Points of so many lines, of all groups."""
        return self.points * self.part.groups * lines


def _padded(count: int) -> int:
    return -(-count // CHUNK) * CHUNK


def _triple(values: Iterator[int]) -> Triple:
    first, second, third = values
    return first, second, third


def form_of(part: Correlation, outputs: int, taps: int) -> Form | str:
    """The correlation by F(m, r), or why there is none, as the end of a sentence."""
    fixed, what = (part.taps, "taps") if taps == EXTENT else (part.positions, "positions")
    fits = [fixed[d] == EXTENT and part.step[d] == part.gap[d] == 1 for d in range(3)]
    if not any(fits):
        return (
            f"needs a dim of {EXTENT} {what} with step and gap 1, not {what} {fixed} with steps "
            f"{part.step} and gaps {part.gap}"
        )
    order = max(itertools.permutations(range(3)), key=lambda dims: _last(fits, dims))
    form = Form(_permuted(part, order), outputs, taps, _last(fits, order))
    if max(form.padded_channels, form.columns) >= 2**30:
        return f"counts channels in 32 bits: {part.channels_out}, {form.columns} are too many"
    return _stray(form) or form


def _last(fits: list[bool], dims: tuple[int, ...]) -> int:
    """How many dims, from the last one on and two at most, are transformed in this order."""
    return (1 + fits[dims[1]]) if fits[dims[2]] else 0


def _permuted(part: Correlation, order: tuple[int, ...]) -> Correlation:
    """The same with its spatial dims in another order."""

    def triple(values: Triple) -> Triple:
        return _triple(values[d] for d in order)

    def layout(old: Layout) -> Layout:
        return replace(old, spatial=triple(old.spatial))

    return replace(
        part,
        positions=triple(part.positions),
        taps=triple(part.taps),
        extents=triple(part.extents),
        step=triple(part.step),
        gap=triple(part.gap),
        shift=triple(part.shift),
        source=layout(part.source),
        filter=layout(part.filter),
        out=layout(part.out),
    )


def _stray(form: Form) -> str | None:
    """Why Inf and NaN would go astray, if they would: into an output whose tile meets them in padding only.

    A product with the zeros there is NaN. The class allows for it within a tile of all that is met, and where a
    filter is no longer than a tile all of it is near.
    """
    part, tile = form.part, form.tile
    if max(part.taps) <= tile or part.size == 0:
        return None
    for d in range(3):
        p, t, before = part.positions[d], part.taps[d], part.shift[d]
        last = (p - 1) * part.step[d] + (t - 1) * part.gap[d] - before
        behind = last - (part.extents[d] - 1)
        if d >= 3 - form.dims:
            near = before < tile and (form.pieces[d] - 1) * form.taps - before < part.extents[d]
        else:
            dense = part.step[d] == part.gap[d] == 1
            reach = min(tile, p) + min(tile, t) - 2 if dense else 0
            near = max(before, behind) <= reach
        if not near and t > 1:
            return (
                f"has tiles of {tile} points, some of which meet nothing but padding of {before} and "
                f"{behind} in a dim of {t} taps, where Inf·0 would be NaN"
            )
    return None


# --- The algorithms -------------------------------------------------------------------------------


class _Winograd:
    """What both algorithms have: F(``outputs``, ``taps``), and the class that goes with it."""

    name: str
    deterministic = True

    def __init__(self, outputs: int, taps: int) -> None:
        self.outputs, self.taps = outputs, taps

    @property
    def numerics(self) -> str:
        return f"winograd({self.outputs},{self.taps})"

    def refusal(self, plan: Plan) -> str | None:
        if plan.dtype != "float32":
            return f"transforms float32, of which its numerics class is, not {plan.dtype}"
        if len(plan.correlations) > 1:
            return "takes one correlation, not one for each residue of a stride: stride must be 1"
        for part in plan.correlations:
            form = form_of(part, self.outputs, self.taps)
            if isinstance(form, str):
                return form
        return None

    def forms(self, plan: Plan) -> list[Form]:
        """Of each correlation that has outputs."""
        found = [form_of(p, self.outputs, self.taps) for p in plan.correlations if p.size]
        return [form for form in found if isinstance(form, Form)]


class Fused(_Winograd):
    """The algorithm "winograd"."""

    name = "winograd"

    def pays(self, plan: Plan) -> bool:
        """Whether its products are fewer than the taps, and its blocks fill a GPU."""
        return all(_fused_pays(form) for form in self.forms(plan))

    def workspace_bytes(self, plan: Plan) -> int:
        return max((_fused_scratch(form).nbytes for form in self.forms(plan)), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for form in self.forms(plan):
            points = _fused_scratch(form).array("filters", workspace)
            lot = form.points * form.padded_channels
            at = (form.padded_channels, form.columns * lot, lot)
            _transform_filters(form, tensors, points, at, stream)
            _run_fused(form, tensors, points, stream)


class NonFused(_Winograd):
    """The algorithm "winograd_nonfused"."""

    name = "winograd_nonfused"
    room = AT_A_TIME

    def pays(self, plan: Plan) -> bool:
        """Whether it takes fewer operations than the products do, if moving a word counts as ``WORD``."""
        products = sum(2 * part.size * part.depth for part in plan.correlations)
        return sum(_operations(form) for form in self.forms(plan)) < products

    def workspace_bytes(self, plan: Plan) -> int:
        sizes = (Batch.of(form, self.room).scratch.nbytes for form in self.forms(plan))
        return max(sizes, default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for form in self.forms(plan):
            _run_non_fused(form, Batch.of(form, self.room), tensors, workspace, stream)


# --- Fused ----------------------------------------------------------------------------------------


def _fused_scratch(form: Form) -> Scratch:
    lines = form.numbers(form.columns * form.padded_channels)
    return Scratch(0, filters=((lines,), "float32"))


def _blocks(form: Form) -> int:
    lines = conv_winograd_fused.LINES[form.dims]
    return form.part.groups * -(-form.rows // lines) * -(-form.part.channels_out // lines)


def _fused_pays(form: Form) -> bool:
    lines, depth = conv_winograd_fused.LINES[form.dims], conv_winograd_fused.DEPTH
    slices = -(-form.columns // depth)
    products = _blocks(form) * lines**2 * slices * depth * form.points
    share, whole = SHARE
    fills = 2 * _blocks(form) >= BLOCKS
    return fills and whole * products < share * form.part.size * form.part.depth


def _run_fused(form: Form, tensors: Tensors, points: DeviceArray, stream: object) -> None:
    part = form.part
    channels = (part.channels_out, form.padded_channels)
    args = (
        tensors.source,
        points,
        (part.groups, part.batch, form.rows, *channels, form.columns),
        form.tiles,
        form.pieces,
        form.cut,
        form.of_dims(form.tile),
        part.extents,
        part.positions,
        part.source.strides,
        tensors.out,
        part.out.strides,
        *tensors.epilogue.arguments(absent=tensors.out),
    )
    function = conv_winograd_fused.fused(form.outputs, form.taps, form.dims)
    grid = blocks_for(_blocks(form), 1)
    launch(function, grid, conv_winograd_fused.THREADS, args, stream=stream)


def _transform_filters(
    form: Form, tensors: Tensors, points: DeviceArray, at: tuple[int, int, int], stream: object
) -> None:
    """The filters' points, ``at`` being how far apart points, groups and columns are."""
    part, padded = form.part, form.padded_channels
    args = (
        tensors.filter,
        points,
        (part.groups, part.channels_out, padded, form.columns),
        form.pieces,
        (*form.of_dims(form.taps)[1:], *part.taps[1:]),
        part.filter.strides,
        at,
    )
    function = conv_winograd_transforms.filters(form.outputs, form.taps, form.dims)
    grid = blocks_for(part.groups * form.columns * padded, THREADS)
    launch(function, grid, THREADS, args, stream=stream)


# --- Not fused ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """How many rows there are points of at a time, and the workspace for that."""

    form: Form
    rows: int
    scratch: Scratch

    @classmethod
    def of(cls, form: Form, room: int) -> "Batch":
        """As many as have no more than ``room`` numbers in each array; at least a chunk."""
        each = form.numbers(max(1, form.columns, form.padded_channels))
        rows = min(_padded(form.rows), max(CHUNK, room // each // CHUNK * CHUNK))
        arrays = {
            "filters": form.columns * form.padded_channels,
            "sources": form.columns * rows,
            "sums": form.padded_channels * rows,
        }
        rest = matrices.workspace_bytes(_matrices(form, rows), tensor_core=False)
        shapes = {name: ((form.numbers(n),), "float32") for name, n in arrays.items()}
        return cls(form, rows, Scratch(rest, **shapes))


def _matrices(form: Form, rows: int) -> Matrices:
    """For each point and group sums[j, row] = Σ_c filters[c, j]·sources[c, row]."""
    groups, channels, depth = form.part.groups, form.padded_channels, form.columns

    def matrix(lines: int, columns: int, of_row: int, of_column: int) -> Matrix:
        size = lines * columns
        return Matrix("float32", (0, groups * size, size), of_row, of_column)

    return Matrices(
        "float32",
        (1, form.points, groups),
        channels,
        rows,
        depth,
        matrix(channels, depth, 1, channels),
        matrix(depth, rows, rows, 1),
        matrix(channels, rows, rows, 1),
    )


def _operations(form: Form) -> int:
    """What it costs: arithmetic, and ``WORD`` for each number that is written to the workspace or read."""
    part = form.part
    r, c, j = form.rows, form.columns, part.channels_out
    return 2 * form.products + WORD * 2 * form.numbers(r * c + c * j + r * j)


def _run_non_fused(
    form: Form, batch: Batch, tensors: Tensors, workspace: DeviceArray | None, stream: object
) -> None:
    """Some rows after the others."""
    arrays, rest = batch.scratch.arrays(workspace), batch.scratch.rest(workspace)
    filters, sources, sums = arrays["filters"], arrays["sources"], arrays["sums"]
    m, groups, channels = _matrices(form, batch.rows), form.part.groups, form.padded_channels
    size = form.columns * channels
    _transform_filters(form, tensors, filters, (groups * size, size, channels), stream)
    for first in range(0, form.rows, batch.rows):
        _transform_sources(form, first, batch.rows, tensors, sources, stream)
        epilogue = matrices.Epilogue()
        matrices.multiply(m, filters, sources, sums, epilogue, rest, stream, tensor_core=False)
        _finish(
            form,
            range(first, min(first + batch.rows, form.rows)),
            batch.rows,
            tensors,
            sums,
            stream,
        )


def _transform_sources(
    form: Form, first: int, padded: int, tensors: Tensors, points: DeviceArray, stream: object
) -> None:
    part = form.part
    args = (
        tensors.source,
        points,
        (part.groups, part.batch, first, padded, form.columns),
        form.tiles,
        form.pieces,
        form.cut,
        part.extents,
        part.source.strides,
    )
    function = conv_winograd_transforms.sources(form.outputs, form.taps, form.dims)
    grid = blocks_for(part.groups * form.columns * padded, THREADS)
    launch(function, grid, THREADS, args, stream=stream)


def _finish(
    form: Form, rows: range, padded: int, tensors: Tensors, sums: DeviceArray, stream: object
) -> None:
    part = form.part
    args = (
        sums,
        (part.groups, part.channels_out, form.padded_channels, rows.start, len(rows), padded),
        form.tiles,
        form.pieces,
        form.cut,
        form.of_dims(form.tile),
        part.extents,
        part.positions,
        tensors.out,
        part.out.strides,
        *tensors.epilogue.arguments(absent=tensors.out),
    )
    function = conv_winograd_transforms.outputs_of_sums(form.outputs, form.taps, form.dims)
    grid = blocks_for(part.groups * part.channels_out * len(rows), THREADS)
    launch(function, grid, THREADS, args, stream=stream)
