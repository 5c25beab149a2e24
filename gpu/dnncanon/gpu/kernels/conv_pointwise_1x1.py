"""Convolution with one tap, and its gradients, as the product of matrices that it is: nothing is copied.

    out[g, b, j, q] = Σ_r source[g, b, r, q·step] · filter[g, j, r]

Rows are b and q, columns j, the depth is r. Dims that one stride leads through are joined; of rows that cannot
be, the longest stretch counts as rows, and the others, like the groups, as a batch of products. The gradient
of a filter sums over images and their positions: where channels are not the nearest, these are pieces of the
depth. A filter that fills its input, and so has one position, is a product as well: the depth is r and t.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.kernels.strided import Space
from dnncanon.gpu.kernels.tile import matrices
from dnncanon.gpu.kernels.tile.engine import BATCH_RANK
from dnncanon.gpu.kernels.tile.matrices import Epilogue, Matrices, Matrix
from dnncanon.gpu.runtime import DeviceArray, View

ON_TENSOR_CORES = ("float16", "bfloat16")

SIDE_BY_SIDE = 8
"""Words of 16 bits in a chunk."""

SOURCE, FILTER, OUT, RESIDUAL, BIAS = range(5)

_NOWHERE = Layout(0, 0, 0, 0, (0, 0, 0))


# --- A correlation as a product -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """A dim, or several joined: how many elements, and by which strides in each of the five operands."""

    extent: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A correlation as a batch of products of matrices."""

    batch: tuple[Stretch, ...]
    pieces: Stretch
    rows: Stretch
    columns: Stretch
    depth: Stretch

    def dims(self, operand: int) -> tuple[Stretch, ...]:
        """Those of an operand's matrices: the last two are its rows and columns."""
        rows = self.depth if operand == FILTER else self.rows
        columns = self.depth if operand == SOURCE else self.columns
        return (*self.batch, rows, columns)

    def matrices(self, dtype: str) -> Matrices:
        """In the terms of the tile engine."""
        a, b, y = (Matrix.of(dtype, _view(self.dims(k), k)) for k in (SOURCE, FILTER, OUT))
        return Matrices(
            dtype,
            tuple(dim.extent for dim in self.batch),
            self.rows.extent,
            self.columns.extent,
            self.depth.extent,
            a,
            b,
            y,
            pieces=self.pieces.extent,
            steps=(self.pieces.strides[SOURCE], self.pieces.strides[FILTER]),
        ).along_rows()

    def of(self, array: DeviceArray, operand: int, first: int) -> DeviceArray:
        """An operand's matrices, pieces included, in an array; ``first`` counts from its lowest element."""
        pieces = (self.pieces,) if operand in (SOURCE, FILTER) else ()
        view = _view((*pieces, *self.dims(operand)), operand)
        pointer = array.lowest + first * array.dtype.itemsize
        return replace(array, pointer=pointer, shape=view.shape, strides=view.strides)

    def in_chunks(self, operand: int, first: int) -> bool:
        """Whether an operand of 16-bit words can be fetched in chunks of 16 bytes."""
        *others, rows, columns = (self.pieces, *self.dims(operand))
        return any(
            (near.strides[operand] == 1 or near.extent == 1)
            and near.extent % SIDE_BY_SIDE == 0
            and first % SIDE_BY_SIDE == 0
            and all(d.strides[operand] % SIDE_BY_SIDE == 0 for d in (*others, far) if d.extent > 1)
            for near, far in ((rows, columns), (columns, rows))
        )


def _view(dims: Sequence[Stretch], operand: int) -> View:
    return View(tuple(dim.extent for dim in dims), tuple(dim.strides[operand] for dim in dims))


def product_of(part: Correlation, residual: Layout | None) -> Product | str:
    """The product, or why the correlation is none, as the end of a sentence."""
    single = [1 in (q, t) or t == 0 for q, t in zip(part.positions, part.taps, strict=True)]
    if not all(single):
        return (
            "multiplies matrices, which takes one tap or one position in each dim, "
            f"not taps {part.taps} at positions {part.positions}"
        )
    if part.depth and not _inside(part):
        return f"reads no padding, as windows shifted by {part.shift} in {part.extents} would"
    residual = residual or _NOWHERE
    rows = _joined(
        (part.batch, *part.positions),
        [
            (part.source.outer, *_times(part.source.spatial, part.step)),
            (0, 0, 0, 0),
            (part.out.outer, *part.out.spatial),
            (residual.outer, *residual.spatial),
            (0, 0, 0, 0),
        ],
        key=OUT,
    )
    depth = _joined(
        (part.channels_in, *part.taps),
        [
            (part.source.inner, *_times(part.source.spatial, part.gap)),
            (part.filter.inner, *part.filter.spatial),
            *[(0, 0, 0, 0)] * 3,
        ],
        key=SOURCE,
    )
    groups = (
        part.groups,
        (
            part.source.group,
            part.filter.group,
            part.out.group,
            residual.group,
            part.channels_out,
        ),
    )
    columns = (0, part.filter.outer, part.out.inner, residual.inner, 1)
    batch = [dim for dim in (Stretch(*groups), *rows[1:]) if dim.extent > 1]
    if len(batch) > BATCH_RANK:
        return f"batches {BATCH_RANK} dims of groups and rows, not {len(batch)} that strides keep apart"
    if len(depth) > 2:
        return f"sums over 2 dims, not {len(depth)} that strides keep apart"
    batch = [_ONE] * (BATCH_RANK - len(batch)) + batch
    pieces = depth[1] if len(depth) == 2 else _ONE
    return Product(tuple(batch), pieces, rows[0], Stretch(part.channels_out, columns), depth[0])


_ONE = Stretch(1, (0,) * 5)


def _inside(part: Correlation) -> bool:
    """Whether no window reaches beyond the source."""
    dims = zip(
        part.positions, part.step, part.taps, part.gap, part.shift, part.extents, strict=True
    )
    return all(
        shift <= 0 and (q - 1) * step + (t - 1) * gap - shift < extent
        for q, step, t, gap, shift, extent in dims
    )


def _times(strides: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    return tuple(stride * step for stride, step in zip(strides, steps, strict=True))


def _joined(shape: Sequence[int], strides: Sequence[tuple[int, ...]], key: int) -> list[Stretch]:
    """The dims of a shape joined where one stride leads through all operands, the longest first."""
    if 0 in shape:
        return [Stretch(0, (0,) * 5)]
    space = Space.of(shape, strides, key)
    dims = zip(space.extents, zip(*space.strides, strict=True), strict=True)
    found = [Stretch(extent, by) for extent, by in dims if extent > 1]
    return sorted(found, key=lambda dim: -dim.extent) or [_ONE]


def _first(part: Correlation) -> int:
    """Where the source's first window begins: it has no padding."""
    shifts = zip(part.shift, part.source.spatial, strict=True)
    return part.source.offset - sum(shift * stride for shift, stride in shifts)


# --- The algorithm --------------------------------------------------------------------------------


class Pointwise:
    """The algorithm "pointwise_1x1"."""

    name = "pointwise_1x1"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        for part in plan.correlations:
            product = product_of(part, plan.residual) if part.size else None
            if isinstance(product, str):
                return product
            if product and max(product.rows.extent, product.depth.extent) >= 2**30:
                return "counts rows and depth in 32 bits: 2^30 are too many"
        return None

    def pays(self, plan: Plan) -> bool:
        """Whether tiles are filled to an eighth and are few, and 16-bit words come in chunks.

        An implicit GEMM takes the rows of all images together, and copies what does not come in chunks.
        """
        return all(_pays(plan, part) for part in plan.correlations if part.size)

    def workspace_bytes(self, plan: Plan) -> int:
        on = plan.dtype in ON_TENSOR_CORES
        products = [_matrices(plan, part) for part in plan.correlations if part.size]
        return max((matrices.workspace_bytes(m, tensor_core=on) for m in products), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size:
                _run(plan, part, tensors, workspace, stream)


def _product(plan: Plan, part: Correlation) -> Product:
    product = product_of(part, plan.residual)
    assert isinstance(product, Product)
    return product


def _matrices(plan: Plan, part: Correlation) -> Matrices:
    return _product(plan, part).matrices(plan.dtype)


def _pays(plan: Plan, part: Correlation) -> bool:
    product, on = _product(plan, part), plan.dtype in ON_TENSOR_CORES
    m = product.matrices(plan.dtype)
    tile = matrices.tile_for(m, tensor_core=on)
    tiles = m.members * tile.count(m.rows, m.columns)
    extents = (part.rows, part.channels_out)
    joined = part.groups * tile.count(*(extents[::-1] if m.flipped else extents))
    filled = 8 * part.size >= tiles * tile.rows * tile.columns
    wide = product.in_chunks(SOURCE, _first(part)) and product.in_chunks(FILTER, part.filter.offset)
    return filled and 8 * tiles <= 9 * joined and (wide or not on)


def _run(
    plan: Plan, part: Correlation, tensors: Tensors, workspace: DeviceArray | None, stream: object
) -> None:
    product = _product(plan, part)
    m = product.matrices(plan.dtype)
    a = product.of(tensors.source, SOURCE, _first(part))
    b = product.of(tensors.filter, FILTER, part.filter.offset)
    y = product.of(tensors.out, OUT, part.out.offset)
    first, second = (b, a) if m.flipped else (a, b)
    epilogue = _epilogue(product, tensors)
    on = plan.dtype in ON_TENSOR_CORES
    matrices.multiply(m, first, second, y, epilogue, workspace, stream, tensor_core=on)


def _epilogue(product: Product, tensors: Tensors) -> Epilogue:
    given = tensors.epilogue
    c = bias = None
    if given.residual is not None and given.residual_at is not None:
        c = product.of(given.residual, RESIDUAL, given.residual_at.offset)
    if given.bias is not None:
        step = given.bias.strides[0]
        view = product.of(given.bias, BIAS, given.bias.origin)
        bias = replace(view, strides=tuple(step * stride for stride in view.strides))
    activation = "relu" if given.relu else "identity"
    return Epilogue(given.alpha1, given.alpha2, c, bias, activation)
