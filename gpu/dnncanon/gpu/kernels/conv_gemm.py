"""Explicit GEMM: the windows are copied into the workspace as columns, and these multiplied by the filter.

    columns[g, b, q, (r, t)] = source[g, b, r, q·step + t·gap − shift], 0 outside
    out[g, b, j, q] = Σ_k columns[g, b, q, k] · filter[g, j, k]

The second is a convolution with one tap of k channels, and left to ``conv_pointwise_1x1``. A filter whose r
and t no single stride leads through is copied too. Large columns are made for some b at a time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from dnncanon.gpu.kernels.conv_pointwise_1x1 import Pointwise
from dnncanon.gpu.kernels.correlation import SPATIAL, Correlation, Layout, Triple
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.moving import Coordinate, copy, gather
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.spec import dense_strides

COLUMNS = 64 * 1024 * 1024
"""Bytes of the columns, unless those of a single b are more."""

_PRODUCT = Pointwise()
_ONE: Triple = (1, 1, 1)

Dims = tuple[int, ...]


class Gemm:
    """The algorithm "gemm"."""

    name = "gemm"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        refusals = (_PRODUCT.refusal(_product(piece)) for piece in _pieces(plan))
        return next((refusal for refusal in refusals if refusal), None)

    def pays(self, plan: Plan) -> bool:
        """Never: an implicit GEMM does the same without writing the columns and reading them again."""
        return False

    def workspace_bytes(self, plan: Plan) -> int:
        """Columns, the filter if it is copied, and what the product needs."""
        return max((_scratch(piece).nbytes for piece in _pieces(plan)), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for piece in _pieces(plan):
            _run(piece, tensors, workspace, stream)


def _pieces(plan: Plan) -> Iterator[Plan]:
    """Plans of one correlation each: of some b, so that their columns are not too large."""
    itemsize, z = ELEMENTS[plan.dtype].dtype.itemsize, plan.residual
    for part in plan.correlations:
        if part.size:
            of_b = part.groups * math.prod(part.positions) * part.depth * itemsize
            count = max(1, COLUMNS // max(1, of_b))
            for first in range(0, part.batch, count):
                some = replace(
                    part,
                    batch=min(count, part.batch - first),
                    source=_from(part.source, first),
                    out=_from(part.out, first),
                )
                residual = _from(z, first) if z else None
                yield replace(plan, correlations=(some,), residual=residual)


def _from(at: Layout, first: int) -> Layout:
    """A layout without the outer elements before the first."""
    return replace(at, offset=at.offset + first * at.outer)


# --- Columns and their product --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """The dims of the columns, and their strides in the source.

    ``windows`` says of each spatial dim which dims of the columns are its positions and its taps.
    """

    shape: Dims
    strides: Dims
    windows: tuple[tuple[int, int], ...]


def _channels_last(part: Correlation) -> bool:
    return abs(part.source.inner) == 1 and part.channels_in > 1


def _walk(part: Correlation) -> _Walk:
    """[g, b, q, r, t], of sources with r the nearest [g, b, q, t, r]."""
    at, zeros = part.source, (0,) * SPATIAL
    shape: Dims = (part.groups, part.batch, *part.positions)
    strides: Dims = (at.group, at.outer, *zeros)
    if _channels_last(part):
        shape, strides = (*shape, *part.taps, part.channels_in), (*strides, *zeros, at.inner)
        return _Walk(shape, strides, ((2, 5), (3, 6), (4, 7)))
    shape, strides = (*shape, part.channels_in, *part.taps), (*strides, at.inner, *zeros)
    return _Walk(shape, strides, ((2, 6), (3, 7), (4, 8)))


def _filter_walk(part: Correlation) -> tuple[Dims, Dims]:
    """Shape and strides of the filter as [g, j, r, t] or [g, j, t, r]."""
    at = part.filter
    if _channels_last(part):
        depth, strides = (*part.taps, part.channels_in), (*at.spatial, at.inner)
    else:
        depth, strides = (part.channels_in, *part.taps), (at.inner, *at.spatial)
    return (part.groups, part.channels_out, *depth), (at.group, at.outer, *strides)


def _depth_stride(part: Correlation) -> int | None:
    """The stride that leads through r and t of the filter; None where it has to be copied."""
    shape, strides = _filter_walk(part)
    dims = [(n, s) for n, s in zip(shape[2:], strides[2:], strict=True) if n != 1]
    for (_, outer), (n, stride) in pairwise(dims):
        if outer != n * stride:
            return None
    return dims[-1][1] if dims else 1


def _product(plan: Plan) -> Plan:
    """The correlation of the columns with the filter: one tap, and all of the depth as channels."""
    (part,) = plan.correlations
    depth, (q0, q1, q2) = part.depth, part.positions
    of_g, of_b, s0, s1, s2, _ = dense_strides((part.groups, part.batch, q0, q1, q2, depth))
    filters, stride = part.filter, _depth_stride(part)
    if stride is None:
        filters = Layout(0, part.channels_out * depth, depth, 1, (0, 0, 0))
    else:
        filters = Layout(filters.offset, filters.group, filters.outer, stride, (0, 0, 0))
    product = replace(
        part,
        channels_in=depth,
        taps=_ONE,
        extents=part.positions,
        step=_ONE,
        gap=_ONE,
        shift=(0, 0, 0),
        source=Layout(0, of_g, of_b, 1, (s0, s1, s2)),
        filter=filters,
    )
    return replace(plan, correlations=(product,), depthwise=False)


def _scratch(plan: Plan) -> Scratch:
    (part,) = plan.correlations
    arrays = {"columns": (_walk(part).shape, plan.dtype)}
    if _depth_stride(part) is None:
        arrays["filter"] = (_filter_walk(part)[0], plan.dtype)
    return Scratch(_PRODUCT.workspace_bytes(_product(plan)), **arrays)


def _run(plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object) -> None:
    (part,) = plan.correlations
    scratch = _scratch(plan)
    arrays = scratch.arrays(workspace)
    _copy_windows(part, tensors.source, arrays["columns"], stream)
    filters = arrays.get("filter", tensors.filter)
    if "filter" in arrays:
        shape, strides = _filter_walk(part)
        copy(_view(tensors.filter, part.filter.offset, shape, strides), filters, stream=stream)
    epilogue = replace(tensors.epilogue, residual_at=plan.residual)
    operands = replace(tensors, source=arrays["columns"], filter=filters, epilogue=epilogue)
    _PRODUCT.run(_product(plan), operands, scratch.rest(workspace), stream)


def _copy_windows(
    part: Correlation, source: DeviceArray, columns: DeviceArray, stream: object
) -> None:
    at, walk = part.source, _walk(part)
    shape = (part.groups, part.batch, part.channels_in, *part.extents)
    strides = (at.group, at.outer, at.inner, *at.spatial)
    coordinates = []
    for dim, (position, tap) in enumerate(walk.windows):
        weights = [0] * len(walk.shape)
        weights[position], weights[tap] = part.step[dim], part.gap[dim]
        coordinates.append(
            Coordinate(tuple(weights), -part.shift[dim], part.extents[dim], at.spatial[dim])
        )
    if min(walk.shape) == 1:
        x = _view(source, at.offset, shape, strides)
        gather(x, columns, walk.strides, coordinates, 0, stream=stream)
        return
    # A walk has 8 dims, and those of windows in 3-D are 9: they are copied group by group.
    rows = dense_strides(walk.shape)
    coordinates = [replace(c, weights=c.weights[1:]) for c in coordinates]
    for g in range(part.groups):
        x = _view(source, at.offset + g * at.group, shape[1:], strides[1:])
        y = _view(columns, g * rows[0], walk.shape[1:], rows[1:])
        gather(x, y, walk.strides[1:], coordinates, 0, stream=stream)


def _view(array: DeviceArray, first: int, shape: Dims, strides: Dims) -> DeviceArray:
    pointer = array.lowest + first * array.dtype.itemsize
    return replace(array, pointer=pointer, shape=shape, strides=strides)
