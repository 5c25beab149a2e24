"""Convolution by Fourier transforms of one to three dims: frames, their spectra, products, and the way back.

With the filter spread by its gaps, every correlation of ``correlation`` is one with step and gap 1, of which
only each ``step``-th output is wanted. In each dim, P positions and U taps of it need P + U − 1 elements of the
source; in a circular correlation of L >= P + U − 1 points none of the P outputs wraps around (overlap and
save). So positions are cut into tiles of P and taps into pieces of U,

    out[m, j] = first P of IFFT(Σ_c FFT(source[m, c])·conj FFT(filter[j, c]))

with rows m = (b, tile) and columns c = (r, piece): a sum over pieces is as good as one over channels. "fft" has
one tile and one piece, of the least power of two; "fft_tiling" has frames that do not grow with the image, and
as many of them at a time as ``AT_A_TIME`` has room for.

| | source frames | filter frames | sums |
| --- | --- | --- | --- |
| images | [g, m, c] | [g, j, c] | [g, m, j] |
| their first point | p·P + u·U − shift | u·U | p·P |
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dnncanon.gpu.kernels import conv_fft_product
from dnncanon.gpu.kernels.conv_fft_frames import (
    BOXES,
    CAPACITY,
    COLUMNS,
    THREADS,
    outer_dim,
    outputs,
    spectra,
)
from dnncanon.gpu.kernels.correlation import Correlation, Layout, Triple
from dnncanon.gpu.kernels.fft import fill_table, table_size
from dnncanon.gpu.kernels.moving import fill
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.runtime import DeviceArray, blocks_for, launch

LENGTHS = {1: (64, 256), 2: (16, 64), 3: (8, 16)}
"""Least and most points of a tile's frame in each dim, by how many dims there are."""

AT_A_TIME = 1 << 24
"""Numbers that the spectra of source and sums may have each, with tiles, and those of a filter in pieces."""

WORD = 56
"""Operations in the time that a word takes from or to memory: 67·10¹² a second, and 4.8·10¹² bytes (H200)."""

_ONE = (1, 1, 1)
_NONE = (0, 0, 0)


# --- How a correlation is cut ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of 2^``logs`` points; tiles of ``positions``, pieces of ``taps``, and how many of them there are.

    ``box`` is how many dims, the last ones, a block transforms in its shared memory.
    """

    part: Correlation
    dtype: str
    logs: Triple
    positions: Triple
    taps: Triple
    tiles: Triple
    pieces: Triple
    box: int

    @classmethod
    def whole(cls, part: Correlation, dtype: str) -> "Frames":
        """One tile and one piece."""
        return cls._of(part, dtype, _lengths(part))

    @classmethod
    def tiled(cls, part: Correlation, dtype: str) -> "Frames":
        """Four times as long as the filter within ``LENGTHS``, or shorter where that suffices."""
        needed, lengths = _lengths(part), []
        least, most = LENGTHS[max(1, sum(n > 1 for n in needed))]
        for whole, *extents in zip(needed, *_spread(part), strict=True):
            four = 4 << (min(extents) - 1).bit_length()
            lengths.append(min(whole, max(least, min(four, most))))
        return cls._of(part, dtype, lengths)

    @classmethod
    def _of(cls, part: Correlation, dtype: str, lengths: list[int]) -> "Frames":
        lengths[-1] = max(2, lengths[-1])  # pairs of numbers are transformed
        positions, taps = _spread(part)
        cuts = [_cut(*dim) for dim in zip(lengths, positions, taps, strict=True)]
        p, u = _triple(cut[0] for cut in cuts), _triple(cut[1] for cut in cuts)
        logs = _triple(length.bit_length() - 1 for length in lengths)
        room = CAPACITY[dtype].bit_length()
        box = max(n for n in (1, 2, 3) if n == 1 or sum(logs[-n:]) <= room)
        return cls(part, dtype, logs, p, u, _parts(positions, p), _parts(taps, u), box)

    @property
    def rows(self) -> int:
        return self.part.batch * math.prod(self.tiles)

    @property
    def columns(self) -> int:
        """Channels that are summed over, times pieces; none where no tap is met."""
        return self.part.channels_in * math.prod(self.pieces) if self.part.depth else 0

    @property
    def bits(self) -> Triple:
        """Logarithms of a box's extents, in complex numbers."""
        l0, l1, l2 = ((0,) * (3 - self.box) + self.logs[3 - self.box :])[:3]
        return l0, l1, l2 - 1

    @property
    def outer(self) -> Triple:
        """Points of the dims that are not in the box; 1 of those that are."""
        return _triple(1 << log if d < 3 - self.box else 1 for d, log in enumerate(self.logs))

    @property
    def box_size(self) -> int:
        """Complex numbers of a box's spectrum."""
        l0, l1, l2 = self.bits
        return ((1 << l2) + 1) << (l0 + l1)

    @property
    def frequencies(self) -> int:
        """Complex numbers of a frame's spectrum."""
        return self.box_size * math.prod(self.outer)

    @property
    def angles(self) -> int:
        """Logarithm of the angles in the table."""
        return max(3, *self.logs)

    def numbers(self, images: int) -> int:
        """Numbers of so many images' spectra."""
        return 2 * images * self.part.groups * self.frequencies

    @property
    def operations(self) -> int:
        """What it costs: arithmetic, and ``WORD`` for each number that is moved.

        Spectra are written once and read once, twice more for each outer dim, and by each tile of the product.
        """
        part, points = self.part, 1 << sum(self.logs)
        m, j, c = self.rows, part.channels_out, self.columns
        images, outer = m * c + j * c + m * j, 3 - self.box
        transforms = part.groups * images * 5 * points * sum(self.logs) // 2
        down, across = (-(-n // conv_fft_product.LINES) for n in (m, j))
        moved = part.groups * images * points + 2 * (1 + outer) * self.numbers(images)
        moved += (across - 1) * self.numbers(m * c) + (down - 1) * self.numbers(j * c)
        return transforms + 4 * self.numbers(m * j * c) + WORD * moved


def _spread(part: Correlation) -> tuple[list[int], list[int]]:
    """Positions and taps with those between them; no tap counts as one."""
    positions = [(q - 1) * step + 1 for q, step in zip(part.positions, part.step, strict=True)]
    taps = [(max(1, t) - 1) * gap + 1 for t, gap in zip(part.taps, part.gap, strict=True)]
    return positions, taps


def _cut(length: int, positions: int, taps: int) -> tuple[int, int]:
    """P and U of one dim, with P + U − 1 <= L: the shorter of the two stays in one piece if it may."""
    if positions + taps - 1 <= length:
        return positions, taps
    if taps <= length // 2:
        return length - taps + 1, taps
    if positions <= length // 2:
        return positions, length - positions + 1
    return length // 2, length // 2


def _lengths(part: Correlation) -> list[int]:
    """The least power of two that the whole needs, of each dim."""
    return [1 << (q + t - 2).bit_length() for q, t in zip(*_spread(part), strict=True)]


def _triple(values: Iterator[int]) -> Triple:
    first, second, third = values
    return first, second, third


def _parts(extents: list[int], each: Triple) -> Triple:
    return _triple(-(-n // size) for n, size in zip(extents, each, strict=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """How many rows and columns there are spectra of at a time, and the workspace for that."""

    rows: int
    columns: int
    scratch: Scratch

    @classmethod
    def of(cls, frames: Frames, room: int) -> "Batch":
        """As many as have no more than ``room`` numbers in each array; at least one."""
        j = frames.part.channels_out
        columns = frames.columns
        if math.prod(frames.pieces) > 1:
            columns = _most(columns, frames.numbers(j), room)
        rows = _most(frames.rows, frames.numbers(max(columns, j)), room)
        arrays = {"sums": rows * j}
        if columns:
            arrays |= {"source": rows * columns, "filter": j * columns}
        scratch = Scratch(
            0,
            table=((table_size(1 << (frames.angles - 1)),), frames.dtype),
            **{name: ((frames.numbers(n),), frames.dtype) for name, n in arrays.items()},
        )
        return cls(rows, columns, scratch)


def _most(count: int, numbers: int, room: int) -> int:
    return min(count, max(1, room // max(1, numbers)))


# --- The algorithms -------------------------------------------------------------------------------


class Tiling:
    """The algorithm "fft_tiling"."""

    name = "fft_tiling"
    deterministic = True
    numerics = "fft"
    room = AT_A_TIME

    def refusal(self, plan: Plan) -> str | None:
        if plan.dtype not in CAPACITY:
            return f"transforms {' and '.join(CAPACITY)}, not {plan.dtype}"
        return None

    def frames(self, plan: Plan) -> list[Frames]:
        """Of each correlation that has outputs."""
        return [Frames.tiled(part, plan.dtype) for part in plan.correlations if part.size]

    def pays(self, plan: Plan) -> bool:
        """Whether it takes fewer operations than the products do, if moving a word counts as ``WORD``."""
        products = sum(2 * part.size * part.depth for part in plan.correlations)
        return sum(frames.operations for frames in self.frames(plan)) < products

    def workspace_bytes(self, plan: Plan) -> int:
        sizes = (Batch.of(frames, self.room).scratch.nbytes for frames in self.frames(plan))
        return max(sizes, default=0)

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for frames in self.frames(plan):
            _run(frames, Batch.of(frames, self.room), tensors, workspace, stream)


class Whole(Tiling):
    """The algorithm "fft"."""

    name = "fft"
    room = 1 << 62

    def refusal(self, plan: Plan) -> str | None:
        refused = super().refusal(plan)
        if refused is not None:
            return refused
        most = CAPACITY[plan.dtype]
        for part in plan.correlations:
            lengths = _lengths(part)
            if part.size and max(*lengths[:2], lengths[2] // 2) > most:
                return (
                    f"transforms at most {most} x {most} x {2 * most} points, not "
                    f'{" x ".join(map(str, lengths))}; algorithm="fft_tiling" cuts them into tiles'
                )
        return None

    def frames(self, plan: Plan) -> list[Frames]:
        return [Frames.whole(part, plan.dtype) for part in plan.correlations if part.size]

    def pays(self, plan: Plan) -> bool:
        """The same, and no more than with tiles."""
        tiled = sum(frames.operations for frames in Tiling.frames(self, plan))
        return super().pays(plan) and sum(f.operations for f in self.frames(plan)) <= tiled


# --- From a correlation to launches ---------------------------------------------------------------


def _run(
    frames: Frames, batch: Batch, tensors: Tensors, workspace: DeviceArray | None, stream: object
) -> None:
    """Some rows after the others, and of each some columns after the others, whose products are added up."""
    arrays = batch.scratch.arrays(workspace)
    launches = Launches(frames, arrays["table"], stream)
    fill_table(arrays["table"], 1 << (frames.angles - 1), stream)
    columns = list(_ranges(frames.columns, batch.columns))
    for rows in _ranges(frames.rows, batch.rows):
        for these in columns:
            launches.source(rows, these, tensors.source, arrays["source"])
            if rows.start == 0 or len(columns) > 1:
                launches.filter(these, tensors.filter, arrays["filter"])
            launches.multiply(rows, these, arrays)
        if not columns:
            fill(arrays["sums"], 0, stream=stream)
        launches.finish(rows, arrays["sums"], tensors)


def _ranges(count: int, at_a_time: int) -> Iterator[range]:
    for first in range(0, count, max(1, at_a_time)):
        yield range(first, min(first + at_a_time, count))


@dataclass(frozen=True, slots=True)
class Launches:
    """The steps of a correlation, with what all of them are given."""

    frames: Frames
    table: DeviceArray
    stream: object

    def source(self, rows: range, columns: range, source: DeviceArray, out: DeviceArray) -> None:
        """Its frames, each of the points that the outputs of a tile meet."""
        f, part = self.frames, self.frames.part
        used = _triple(p + u - 1 for p, u in zip(f.positions, f.taps, strict=True))
        window = (*part.extents, *_ONE, *part.source.spatial)
        cut = (*f.positions, *f.taps, *part.shift)
        self._spectra(source, part.source, (rows, columns), f.tiles, cut, window, used, out)

    def filter(self, columns: range, filters: DeviceArray, out: DeviceArray) -> None:
        """Its frames, each of a piece."""
        f, part = self.frames, self.frames.part
        taps = [(t - 1) * gap + 1 for t, gap in zip(part.taps, part.gap, strict=True)]
        window = (*taps, *part.gap, *part.filter.spatial)
        cut, rows = (*_NONE, *f.taps, *_NONE), range(part.channels_out)
        self._spectra(filters, part.filter, (rows, columns), _ONE, cut, window, f.taps, out)

    def multiply(self, rows: range, columns: range, arrays: dict[str, DeviceArray]) -> None:
        """The sums over some columns, added to those over the columns before."""
        f, groups, j = self.frames, self.frames.part.groups, self.frames.part.channels_out
        shape = (groups, len(rows), j, len(columns), f.frequencies)
        args = (arrays["source"], arrays["filter"], arrays["sums"], shape, columns.start > 0)
        grid = blocks_for(conv_fft_product.blocks(groups, len(rows), j, f.frequencies), 1)
        function = conv_fft_product.product(f.dtype)
        launch(function, grid, conv_fft_product.THREADS, args, stream=self.stream)

    def finish(self, rows: range, sums: DeviceArray, tensors: Tensors) -> None:
        """The outputs of some rows."""
        f, part = self.frames, self.frames.part
        images = part.groups * len(rows) * part.channels_out
        for d in range(3 - f.box):
            self._outer_dim(sums, images, d, f.positions, back=True)
        positions = [(q - 1) * step + 1 for q, step in zip(part.positions, part.step, strict=True)]
        shape, outer, grid = self._boxes(images, f.positions)
        args = (
            sums,
            self.table,
            shape,
            f.bits,
            outer,
            f.positions,
            (len(rows), part.channels_out),
            (rows.start, 0),
            f.tiles,
            (*f.positions, *_NONE, *_NONE),
            (part.channels_out, *positions, *part.step),
            1.0 / (1 << (sum(f.logs) - 1)),
            tensors.out,
            part.out.strides,
            *tensors.epilogue.arguments(absent=tensors.out),
        )
        launch(outputs(f.dtype), grid, THREADS, args, stream=self.stream)

    def _spectra(
        self,
        tensor: DeviceArray,
        layout: Layout,
        ranges: tuple[range, range],
        tiles: Triple,
        cut: tuple[int, ...],
        window: tuple[int, ...],
        used: Triple,
        out: DeviceArray,
    ) -> None:
        f, counts = self.frames, tuple(map(len, ranges))
        images = f.part.groups * math.prod(counts)
        shape, outer, grid = self._boxes(images, used)
        args = (
            tensor,
            out,
            self.table,
            shape,
            f.bits,
            outer,
            used,
            counts,
            tuple(these.start for these in ranges),
            tiles,
            f.pieces,
            cut,
            layout.strides[:4],
            window,
        )
        launch(spectra(f.dtype), grid, THREADS, args, stream=self.stream)
        for d in reversed(range(3 - f.box)):
            self._outer_dim(out, images, d, used, back=False)

    def _boxes(self, images: int, used: Triple) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Of so many images: shape, outer dims, and how many blocks have them.

        Of an outer dim only the boxes are transformed whose points are used.
        """
        f = self.frames
        counts = [used[d] if d < 3 - f.box else 1 for d in range(2)]
        total, points = images * math.prod(counts), sum(f.bits)
        room = (CAPACITY[f.dtype] >> points).bit_length() - 1
        boxes = min(room, BOXES.bit_length() - 1, (total - 1).bit_length())
        shape = (f.angles, boxes, boxes + points, total, f.frequencies)
        return shape, (*counts, f.outer[1], f.box_size), blocks_for(total, 1 << boxes)

    def _outer_dim(
        self, data: DeviceArray, images: int, d: int, used: Triple, *, back: bool
    ) -> None:
        f = self.frames
        line, length = f.logs[d], 1 << f.logs[d]
        if line == 0:
            return
        apart, adjacent = (used[0], f.box_size) if d else (1, f.outer[1] * f.box_size)
        total = images * apart * adjacent
        shape = (f.angles, line, apart, adjacent, total, f.frequencies)
        ends = (length, used[d]) if back else (used[d], length)
        columns = min(COLUMNS, CAPACITY[f.dtype].bit_length() - 1 - line)
        grid = blocks_for(total, 1 << columns)
        args = (data, self.table, shape, ends, back)
        launch(outer_dim(f.dtype), grid, THREADS, args, stream=self.stream)
