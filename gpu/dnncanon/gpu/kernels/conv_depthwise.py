"""Depthwise convolution: each group has one input channel, and memory is what takes the time.

A block has the inputs of a tile in shared memory, so that they are read once for all taps; ``depthwise_tiles``
says which. Where channels are the nearest neighbours, copies move 16 bytes. The gradient by the filter sums
over positions and images: a team of threads for each of its elements, parts of the sums in the workspace, and
a second step that adds these in order.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.conv_tiles import add_parts
from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.kernels.depthwise_tiles import Tile, Windows
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.epilogue import make_finisher
from dnncanon.gpu.kernels.plan import BLOCKS, Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places
from dnncanon.spec import dense_strides

THREADS = 256

CHUNK = 16
"""Bytes of a copy where channels are adjacent."""

FEW = 4
"""Filters of a channel, and inputs over outputs of a tile, up to which tiles are worth it."""

LEAST_READ = 16
"""Elements that a block reads for each sum that it leaves in the workspace."""

MOST_THREADS = 512
"""Of a block that sums gradients: one for each element of the filters of its channels, or several."""

_int64, _uint64 = types.int64, types.uint64
Ints = tuple[int, ...]


# --- The algorithm --------------------------------------------------------------------------------


class Depthwise:
    """The algorithm "depthwise"."""

    name = "depthwise"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        if not plan.depthwise:
            return "is for groups of one input channel each, C = groups"
        for part in plan.correlations:
            if part.size and tile_of(plan.dtype, part) is None:
                return (
                    f"has no room in shared memory for windows of {part.taps} taps {part.gap} apart"
                )
        return None

    def pays(self, plan: Plan) -> bool:
        """Whether few filters share a channel, and tiles have few inputs that other tiles have too."""
        tiles = [tile_of(plan.dtype, part) for part in plan.correlations if part.size]
        return all(
            max(tile.windows.kinds, tile.windows.subs) <= FEW
            and math.prod(tile.box) <= FEW * math.prod(_advanced(tile))
            for tile in tiles
            if tile is not None
        )

    def workspace_bytes(self, plan: Plan) -> int:
        parts = [part for part in plan.correlations if part.size and _sums_positions(part)]
        return max((_scratch(plan.dtype, part).nbytes for part in parts), default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size and _sums_positions(part):
                _run_gradient(plan.dtype, part, tensors, workspace, stream)
            elif part.size:
                _run_windows(plan.dtype, part, tensors, stream)


def _advanced(tile: Tile) -> Ints:
    """Inputs of a tile that are its own: those that the next tile begins behind."""
    return tuple(n * step for n, step in zip(tile.outputs, tile.windows.step, strict=True))


def _sums_positions(part: Correlation) -> bool:
    """Whether it is the gradient of a filter, or as good as one: long sums for few outputs."""
    long = math.prod(part.taps) > math.prod(part.positions)
    return part.batch == 1 and (long or min(part.channels_in, part.channels_out) > 1)


def tile_of(dtype: str, part: Correlation) -> Tile | None:
    """The tile for a correlation of a depthwise convolution; None if there is no room for any."""
    element = ELEMENTS[dtype]
    itemsizes = element.dtype.itemsize, element.sum_dtype.itemsize
    if not _sums_positions(part):
        weights = part.channels_in * part.channels_out * math.prod(part.taps)
        return Tile.of(Windows.of(part), *itemsizes, weights)
    windows = Windows.of_gradient(part)
    most = MOST_THREADS // (windows.kinds * math.prod(windows.taps))
    if most == 0:
        return None
    return Tile.of(
        windows,
        *itemsizes,
        holds_outputs=True,
        reserved=MOST_THREADS,
        most_planes=_floor_of_two(most),
    )


def _floor_of_two(number: int) -> int:
    """The greatest power of two that is not above."""
    return 1 << number.bit_length() - 1


# --- Boxes in shared memory -----------------------------------------------------------------------
# Walks over a box have five dims: planes, the source's or the outputs' kinds of each, three of positions.
# The nearest in memory come last. Planes are counted in chunks of ``count``, the elements of a chunk being
# ``lanes`` apart in shared memory, so that neighbours' are in other banks.


def _count_of(dtype: str, tile: Tile, *operands: tuple[DeviceArray, Layout]) -> int:
    """Planes that a copy takes: as many as make 16 bytes where they are side by side, else one."""
    windows, count = tile.windows, CHUNK // ELEMENTS[dtype].dtype.itemsize
    if not windows.channels_adjacent or max(windows.subs, windows.kinds) > 1:
        return 1
    whole = windows.planes % count == 0 and tile.planes % count == 0
    for array, at in operands:
        far = (at.offset, at.outer, at.inner, *at.spatial)
        chunks = at.group == 1 and array.lowest % CHUNK == 0 and all(s % count == 0 for s in far)
        whole = whole and chunks
    return count if whole else 1


def _ordered(tile: Tile, planes: int, kinds: int, spatial: Sequence[int]) -> Ints:
    """Strides in the order of a walk, as ``_in_order`` has extents."""
    if tile.windows.channels_adjacent:
        return (*spatial, planes, kinds)
    return (planes, kinds, *spatial)


@device_function
def _in_order(channels_last: Any, planes: Any, kinds: Any, n0: Any, n1: Any, n2: Any) -> Any:
    return (n0, n1, n2, planes, kinds) if channels_last else (planes, kinds, n0, n1, n2)


def _inside(tile: Tile, kinds: int, box: Sequence[int]) -> tuple[int, int, Ints]:
    """Strides of planes, kinds and positions of a box in shared memory, which is dense."""
    spatial = dense_strides(tuple(box))
    if tile.windows.channels_adjacent:
        return 1, tile.planes, tuple(tile.planes * kinds * stride for stride in spatial)
    return kinds * math.prod(box), math.prod(box), spatial


@cache
def _loader(dtype: str, count: int) -> Any:
    """load(array, memory, extents, strides, bases, lanes): a box, in chunks of ``count`` elements.

    ``strides`` are those of the array and of shared memory along the extents, ``bases`` where they begin.
    """
    to_sum, load = ELEMENTS[dtype].to_sum, ptx.load_chunk(count)

    @device_function
    def load_box(
        array: Any, memory: Any, extents: Any, strides: Any, bases: Any, lanes: Any
    ) -> None:
        thread, threads = _int64(cuda.threadIdx.x), _int64(cuda.blockDim.x)
        size = extents[0] * extents[1] * extents[2] * extents[3] * extents[4]
        if size > 0:
            digits, step = digits_of(thread, extents), digits_of(threads, extents)
            for _ in range(thread, size, threads):
                at = places(digits, strides, bases)
                chunk = load(array, at[0])
                for element in range(count):
                    word = ptx.chunk_first(array, chunk)
                    memory[at[1] + element * lanes] = to_sum(word)
                    chunk = ptx.chunk_rest(array, chunk)
                digits = advance(digits, step, extents)

    return load_box


@device_function
def _clipped(begin: Any, extent: Any, inputs: Any) -> Any:
    """(first, count) of the part of a box from input ``begin`` on that is in the input."""
    first = max(_int64(0), -begin)
    return first, max(_int64(0), min(extent, inputs - begin) - first)


@cache
def _source_loader(dtype: str, count: int) -> Any:
    """load_source(array, memory, size, base, strides, begin, box, inputs, planes, subs, how): zeros outside.

    ``size`` is how many numbers there are to be cleared, ``strides`` as ``_loader`` takes them, ``how`` whether
    channels come last and the lanes; ``base`` where input (0, 0, 0) is, ``begin`` the box's first input.
    """
    load, zero = _loader(dtype, count), ELEMENTS[dtype].sum(0)

    @device_function
    def load_source(
        array: Any,
        memory: Any,
        size: Any,
        base: Any,
        strides: Any,
        begin: Any,
        box: Any,
        inputs: Any,
        planes: Any,
        subs: Any,
        how: Any,
    ) -> None:
        channels_last, lanes, s0, s1, s2, m0, m1, m2 = how
        first0, n0 = _clipped(begin[0], box[0], inputs[0])
        first1, n1 = _clipped(begin[1], box[1], inputs[1])
        first2, n2 = _clipped(begin[2], box[2], inputs[2])
        if n0 < box[0] or n1 < box[1] or n2 < box[2]:
            for index in range(_int64(cuda.threadIdx.x), size, _int64(cuda.blockDim.x)):
                memory[index] = zero
            cuda.syncthreads()
        at = base + (begin[0] + first0) * s0 + (begin[1] + first1) * s1 + (begin[2] + first2) * s2
        within = first0 * m0 + first1 * m1 + first2 * m2
        extents = _in_order(channels_last, planes, subs, n0, n1, n2)
        load(array, memory, extents, strides, (at, within), lanes)

    return load_source


def _source_arguments(tile: Tile, count: int) -> tuple[Ints, Ints]:
    """(strides, how) for ``_source_loader``."""
    windows = tile.windows
    at, (plane, sub, spatial) = windows.source, _inside(tile, windows.subs, tile.box)
    strides = (
        *_ordered(tile, at.group * count, at.inner, at.spatial),
        *_ordered(tile, plane, sub, spatial),
    )
    how = (int(windows.channels_adjacent), tile.planes // count, *at.spatial, *spatial)
    return strides, how


def _numbers_of_source(tile: Tile) -> int:
    return tile.planes * tile.windows.subs * math.prod(tile.box)


# --- Sums over taps -------------------------------------------------------------------------------


def _run_windows(dtype: str, part: Correlation, tensors: Tensors, stream: object) -> None:
    tile = tile_of(dtype, part)
    assert tile is not None
    windows, out, filters = tile.windows, part.out, part.filter
    operands = (tensors.source, windows.source), (tensors.out, out)
    count = _count_of(dtype, tile, *operands)
    lanes, planes, kinds, subs = tile.planes // count, tile.planes, windows.kinds, windows.subs
    bias, bias_at, residual, residual_at, flags, alphas = tensors.epilogue.arguments(tensors.out)
    z_offset, z_group, z_outer, z_inner, *z_spatial = residual_at
    t0, t1, t2 = dense_strides(windows.taps)
    of_kinds = planes * kinds * subs
    weights = (
        *(filters.group * count, filters.group, filters.outer, filters.inner, *filters.spatial),
        *(1, lanes, planes, planes * kinds, t0 * of_kinds, t1 * of_kinds, t2 * of_kinds),
    )
    plane, _, inside = _inside(tile, subs, tile.box)
    onward = tuple(step * stride for step, stride in zip(windows.step, inside, strict=True))
    strides = (
        *_ordered(tile, out.group * count, out.inner, out.spatial),
        *_ordered(tile, z_group * count, z_inner, z_spatial),
        *_ordered(tile, plane, 0, onward),
        *_ordered(tile, 1, planes, (0, 0, 0)),
        *_ordered(tile, count * kinds * bias_at[1], bias_at[1], (0, 0, 0)),
    )
    load_strides, how = _source_arguments(tile, count)
    _, sub, _ = _inside(tile, subs, tile.box)
    gaps = tuple(gap * stride for gap, stride in zip(windows.gap, inside, strict=True))
    args = (
        tensors.source,
        tensors.filter,
        tensors.out,
        bias,
        residual,
        (windows.batch, windows.planes // count, kinds, subs),
        (windows.outputs, windows.inputs, windows.taps, windows.step, windows.shift),
        (lanes, *tile.outputs),
        (windows.batch, *tile.counts),
        windows.box((1, 1, 1)),
        (
            (windows.source.offset, windows.source.outer),
            (out.offset, out.outer),
            (z_offset, z_outer),
        ),
        (windows.source.group * count, out.group * count, z_group * count, filters.group * count),
        (filters.offset, bias_at[0], count * kinds * bias_at[1]),
        (out.spatial, tuple(z_spatial)),
        load_strides,
        how,
        weights,
        strides,
        (sub, *gaps),
        (z_group, kinds * bias_at[1]),
        _numbers_of_source(tile),
        flags,
        alphas,
    )
    nbytes = tile.numbers * ELEMENTS[dtype].sum_dtype.itemsize
    tiles = windows.batch * math.prod(tile.counts)
    function = sum_over_taps(dtype, count)
    launch(function, blocks_for(tiles, 1), THREADS, args, shared_bytes=nbytes, stream=stream)


@cache
def sum_over_taps(dtype: str, count: int) -> Kernel:
    """The kernel for planes in chunks of ``count``. Launch with THREADS threads; the grid may have any size."""
    element = ELEMENTS[dtype]
    number, zero, to_sum = element.sum, element.sum(0), element.to_sum
    load_source, finish = _source_loader(dtype, count), make_finisher(dtype)
    store, append = ptx.store_chunk(count), ptx.chunk_append(count)

    @kernel(launch_bounds=(THREADS, 2))
    def conv_depthwise(
        source: Any,
        filters: Any,
        out: Any,
        bias: Any,
        residual: Any,
        sizes: Any,
        windows: Any,
        tile: Any,
        counts: Any,
        reach: Any,
        firsts: Any,
        planes_at: Any,
        others_at: Any,
        spatial: Any,
        load_strides: Any,
        how: Any,
        weight_strides: Any,
        strides: Any,
        inside: Any,
        apart: Any,
        weights_from: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        memory = cuda.shared.array(0, number)
        batch, planes, kinds, subs = sizes
        outputs, inputs, taps, step, shift = windows
        channels_last, lanes = how[0], how[1]
        thread, threads = _int64(cuda.threadIdx.x), _int64(cuda.blockDim.x)
        tiles = batch * counts[1] * counts[2] * counts[3] * counts[4]
        turn = _int64(cuda.blockIdx.x)
        while turn < tiles:
            image, group, a0, a1, a2 = digits_of(turn, counts)
            first = group * lanes
            here = min(lanes, planes - first)
            o0, o1, o2 = a0 * tile[1], a1 * tile[2], a2 * tile[3]
            n0 = min(tile[1], outputs[0] - o0)
            n1 = min(tile[2], outputs[1] - o1)
            n2 = min(tile[3], outputs[2] - o2)
            begin = (o0 * step[0] - shift[0], o1 * step[1] - shift[1], o2 * step[2] - shift[2])
            box = (
                (n0 - 1) * step[0] + reach[0],
                (n1 - 1) * step[1] + reach[1],
                (n2 - 1) * step[2] + reach[2],
            )
            base = firsts[0][0] + image * firsts[0][1] + first * planes_at[0]
            load_source(
                source,
                memory,
                weights_from,
                base,
                load_strides,
                begin,
                box,
                inputs,
                here,
                subs,
                how,
            )
            several = (here, _int64(count), kinds, subs, taps[0], taps[1], taps[2])
            weights = here * count * kinds * subs * taps[0] * taps[1] * taps[2]
            for index in range(thread, weights, threads):
                at = places(
                    digits_of(index, several),
                    weight_strides,
                    (others_at[0] + first * planes_at[3], weights_from),
                )
                memory[at[1]] = to_sum(filters[_uint64(at[0])])
            cuda.syncthreads()

            to_out, to_residual = spatial
            bases = (
                firsts[1][0] + image * firsts[1][1] + first * planes_at[1]
                + o0 * to_out[0] + o1 * to_out[1] + o2 * to_out[2],
                firsts[2][0] + image * firsts[2][1] + first * planes_at[2]
                + o0 * to_residual[0] + o1 * to_residual[1] + o2 * to_residual[2],
                _int64(0),
                _int64(weights_from),
                others_at[1] + first * others_at[2],
            )  # fmt: skip
            extents = _in_order(channels_last, here, kinds, n0, n1, n2)
            digits, onward = digits_of(thread, extents), digits_of(threads, extents)
            for _ in range(thread, here * kinds * n0 * n1 * n2, threads):
                at = places(digits, strides, bases)
                chunk = (_uint64(0), _uint64(0))
                for lane in range(count):
                    total = zero
                    for r in range(subs):
                        of_sub = at[2] + lane * lanes + r * inside[0]
                        w = at[3] + lane * lanes + r * (lanes * count * kinds)
                        for t0 in range(taps[0]):
                            for t1 in range(taps[1]):
                                s = of_sub + t0 * inside[1] + t1 * inside[2]
                                for _t2 in range(taps[2]):
                                    total += memory[s] * memory[w]
                                    s += inside[3]
                                    w += lanes * count * kinds * subs
                    word = finish(
                        total,
                        bias,
                        at[4] + lane * apart[1],
                        residual,
                        at[1] + lane * apart[0],
                        flags,
                        alphas,
                    )
                    chunk = append(out, chunk, word)
                store(out, at[0], chunk)
                digits = advance(digits, onward, extents)
            cuda.syncthreads()
            turn += cuda.gridDim.x

    return conv_depthwise


# --- Sums over positions --------------------------------------------------------------------------


def _teams(tile: Tile) -> tuple[int, int, int]:
    """(elements, members of each down, members across): the threads of a block that sums gradients."""
    elements = tile.planes * tile.windows.kinds * math.prod(tile.windows.taps)
    members = min(32, _floor_of_two(max(1, MOST_THREADS // elements)))
    across = members
    while across >= 2 * tile.outputs[2]:
        across //= 2
    return elements, members // across, across


def _parts(tile: Tile) -> int:
    """Blocks that share the positions of the same planes."""
    windows, (planes, *boxes) = tile.windows, tile.counts
    read = windows.batch * math.prod(windows.outputs)
    little = read // (LEAST_READ * math.prod(windows.taps))
    return max(1, min(windows.batch * math.prod(boxes), BLOCKS // planes, little))


def _scratch(dtype: str, part: Correlation) -> Scratch:
    tile = tile_of(dtype, part)
    assert tile is not None
    return Scratch(0, parts=((_parts(tile), part.size), ELEMENTS[dtype].sum_dtype.name))


def _run_gradient(
    dtype: str, part: Correlation, tensors: Tensors, workspace: DeviceArray | None, stream: object
) -> None:
    tile = tile_of(dtype, part)
    assert tile is not None
    windows, dy = tile.windows, part.filter
    gradient = Layout(dy.offset, dy.group, dy.inner, dy.outer, dy.spatial)
    operands = (tensors.source, windows.source), (tensors.filter, gradient)
    count, splits = _count_of(dtype, tile, *operands), _parts(tile)
    elements, down, across = _teams(tile)
    parts = _scratch(dtype, part).array("parts", workspace)
    load_strides, how = _source_arguments(tile, count)
    plane, kind, spatial = _inside(tile, windows.kinds, tile.outputs)
    dy_strides = (
        *_ordered(tile, gradient.group * count, gradient.inner, gradient.spatial),
        *_ordered(tile, plane, kind, spatial),
    )
    of_plane, _, inside = _inside(tile, 1, tile.box)
    steps, gaps = (
        tuple(n * stride for n, stride in zip(apart, inside, strict=True))
        for apart in (windows.step, windows.gap)
    )
    numbers = _numbers_of_source(tile)
    args = (
        tensors.source,
        tensors.filter,
        parts,
        (windows.batch, windows.planes // count, windows.kinds, splits),
        (windows.outputs, windows.inputs, windows.taps, windows.step, windows.shift),
        (tile.planes // count, *tile.outputs),
        (windows.batch, *tile.counts[1:]),
        windows.box((1, 1, 1)),
        ((windows.source.offset, windows.source.outer), (gradient.offset, gradient.outer)),
        (windows.source.group * count, gradient.group * count),
        gradient.spatial,
        load_strides,
        how,
        dy_strides,
        (of_plane, steps, gaps),
        (plane, kind, *spatial),
        (elements, down, across),
        (numbers, numbers + tile.planes * windows.kinds * math.prod(tile.outputs)),
        part.size,
    )
    threads = -(-elements * down * across // 32) * 32
    nbytes = (tile.numbers + MOST_THREADS) * ELEMENTS[dtype].sum_dtype.itemsize
    grid = tile.counts[0] * splits
    function = sum_over_positions(dtype, count)
    launch(function, grid, threads, args, shared_bytes=nbytes, stream=stream)
    add_parts(ELEMENTS[dtype].sum_dtype.name, dtype, part, splits, parts, tensors, stream)


@cache
def sum_over_positions(dtype: str, count: int) -> Kernel:
    """The kernel for planes in chunks of ``count``.

    Launch with the threads of ``_teams``, and ``_parts`` blocks for each tile of planes, which share its boxes.
    """
    element = ELEMENTS[dtype]
    number, zero = element.sum, element.sum(0)
    load_source, load = _source_loader(dtype, count), _loader(dtype, count)

    @kernel(launch_bounds=(MOST_THREADS, 1))
    def conv_depthwise_gradient(
        source: Any,
        gradient: Any,
        parts: Any,
        sizes: Any,
        windows: Any,
        tile: Any,
        counts: Any,
        reach: Any,
        firsts: Any,
        planes_at: Any,
        spatial: Any,
        load_strides: Any,
        how: Any,
        dy_strides: Any,
        inside: Any,
        dy_inside: Any,
        teams: Any,
        room: Any,
        size: Any,
    ) -> None:
        memory = cuda.shared.array(0, number)
        batch, planes, kinds, splits = sizes
        outputs, inputs, taps, step, shift = windows
        of_plane, steps, gaps = inside
        channels_last, lanes = how[0], how[1]
        elements, down, across = teams
        dy_from, sums_from = room
        thread = _int64(cuda.threadIdx.x)
        split, group = _int64(cuda.blockIdx.x) % splits, _int64(cuda.blockIdx.x) // splits
        first = group * lanes
        here = min(lanes, planes - first)

        # Lanes of a warp take neighbours: channels, or positions of one row.
        cells, members = taps[0] * taps[1] * taps[2], down * across
        if channels_last:
            own, member, next_member = thread % elements, thread // elements, elements
            plane, rest = own % (lanes * count), own // (lanes * count)
            kind, cell = rest % kinds, rest // kinds
        else:
            own, member, next_member = thread // members, thread % members, _int64(1)
            cell, rest = own % cells, own // cells
            kind, plane = rest % kinds, rest // kinds
        lane, within = plane % lanes, plane // lanes
        there = own < elements and member < members and lane < here
        f0, f1, f2 = cell // (taps[1] * taps[2]), cell // taps[2] % taps[1], cell % taps[2]
        row, column = member // across, member % across
        of_source = plane * of_plane + f0 * gaps[0] + f1 * gaps[1] + f2 * gaps[2]
        of_dy = dy_from + plane * dy_inside[0] + kind * dy_inside[1]

        total = zero
        for turn in range(split, batch * counts[1] * counts[2] * counts[3], splits):
            image, a0, a1, a2 = digits_of(turn, counts)
            o0, o1, o2 = a0 * tile[1], a1 * tile[2], a2 * tile[3]
            n0 = min(tile[1], outputs[0] - o0)
            n1 = min(tile[2], outputs[1] - o1)
            n2 = min(tile[3], outputs[2] - o2)
            begin = (o0 * step[0] - shift[0], o1 * step[1] - shift[1], o2 * step[2] - shift[2])
            box = (
                (n0 - 1) * step[0] + reach[0],
                (n1 - 1) * step[1] + reach[1],
                (n2 - 1) * step[2] + reach[2],
            )
            base = firsts[0][0] + image * firsts[0][1] + first * planes_at[0]
            load_source(
                source,
                memory,
                dy_from,
                base,
                load_strides,
                begin,
                box,
                inputs,
                here,
                _int64(1),
                how,
            )
            base = firsts[1][0] + image * firsts[1][1] + first * planes_at[1]
            base += o0 * spatial[0] + o1 * spatial[1] + o2 * spatial[2]
            extents = _in_order(channels_last, here, kinds, n0, n1, n2)
            load(gradient, memory, extents, dy_strides, (base, dy_from), lanes)
            cuda.syncthreads()
            if there:
                for p0 in range(n0):
                    for p1 in range(row, n1, down):
                        s = of_source + p0 * steps[0] + p1 * steps[1] + column * steps[2]
                        d = of_dy + p0 * dy_inside[2] + p1 * dy_inside[3] + column * dy_inside[4]
                        for _ in range(column, n2, across):
                            total += memory[s] * memory[d]
                            s += across * steps[2]
                            d += across * dy_inside[4]
            cuda.syncthreads()

        memory[sums_from + thread] = total
        cuda.syncthreads()
        if there and member == 0:
            for other in range(1, members):
                total += memory[sums_from + thread + other * next_member]
        cuda.syncthreads()
        # In the order of the parts, so that neighbours write neighbours.
        if there and member == 0:
            memory[sums_from + ((lane * count + within) * cells + cell) * kinds + kind] = total
        cuda.syncthreads()
        if thread < here * count * cells * kinds:
            at = split * size + first * count * cells * kinds + thread
            parts[_uint64(at)] = memory[sums_from + thread]

    return conv_depthwise_gradient
