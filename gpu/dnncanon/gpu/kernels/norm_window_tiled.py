"""The gradients of normalization over windows in one launch: a block takes a tile of elements.

s and what each element adds to the gradients around it are computed for the tile, and for the elements around
it whose windows reach into it; they are kept in shared memory, and added up from there.
A tile extends over the dims of the windows and, if another dim is the fastest, over 32 elements or fewer along
the outer dims, so that neighbouring threads read neighbouring elements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import pow as power
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.norm_window import Order, squares_of, window_at
from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Kernel, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places
from dnncanon.spec.norm import WindowNormProblem

THREADS = 256
BLOCKS = 2048
"""Blocks that fill any GPU; they loop."""

ACROSS = (32, 16, 8)
"""Elements along the outer dims: as many as a warp has threads, or fewer where windows are large."""

TILE = 512
"""Elements of a tile, at most."""

HELD = 2048
"""Elements of which s and the share are kept, at most: 16 KiB of float32, 32 KiB of float64."""

MOST_WORK = 4.0
"""Elements held for each one of the tile from which on the two passes are better."""

int64, uint64 = types.int64, types.uint64


@dataclass(frozen=True, slots=True)
class Along:
    """A dim of the windows: extents of the tensor, a tile, what it holds, and of that what is before it."""

    extent: int
    tile: int
    held: int
    before: int

    @classmethod
    def of(cls, extent: int, tile: int, p: WindowNormProblem) -> "Along":
        if tile >= extent:
            return cls(extent, extent, extent, 0)
        # Element i adds to those whose windows hold it: from i − before to i + (n − 1 − before).
        return cls(extent, tile, tile + p.window - 1, p.window - 1 - p.before)

    @property
    def arguments(self) -> tuple[int, ...]:
        """As kernels take it; the last one counts the tiles."""
        return self.extent, self.tile, self.held, self.before, -(-self.extent // self.tile)


@dataclass(frozen=True, slots=True)
class Tile:
    """The dims of the windows, and how many elements a tile has along the outer dims."""

    dims: tuple[Along, ...]
    across: int

    @classmethod
    def of(cls, p: WindowNormProblem, order: Order, extents: Sequence[int]) -> "Tile":
        """The tile for a problem, with as many elements across as leave room for the windows."""
        outer_is_fastest = order.outer[-1] is not None and order.dims[-1] == order.outer[-1]
        widths = ACROSS if outer_is_fastest else (1,)
        tiles = [cls.grown(p, extents, across) for across in widths]
        return next((tile for tile in tiles if tile.work <= MOST_WORK), tiles[-1])

    @classmethod
    def grown(cls, p: WindowNormProblem, extents: Sequence[int], across: int) -> "Tile":
        """The largest tile that there is room for, its extents growing where it holds most around it."""
        sizes = [1, 1, 1 if across > 1 else min(ACROSS[0], extents[-1])]

        def made(sizes: Sequence[int]) -> "Tile":
            along = (Along.of(e, t, p) for e, t in zip(extents, sizes, strict=True))
            return cls(tuple(along), across)

        def doubled(d: int) -> list[int]:
            return [2 * t if k == d else t for k, t in enumerate(sizes)]

        while True:
            wider = [doubled(d) for d in range(len(sizes)) if sizes[d] < extents[d]]
            fitting = [s for s in wider if made(s).fits]
            if not fitting:
                return made(sizes)
            sizes = min(fitting, key=lambda s: made(s).work)

    @property
    def size(self) -> int:
        return math.prod(along.tile for along in self.dims) * self.across

    @property
    def held(self) -> int:
        return math.prod(along.held for along in self.dims) * self.across

    @property
    def work(self) -> float:
        """Elements held for each one of the tile."""
        return self.held / self.size

    @property
    def fits(self) -> bool:
        return self.size <= TILE and self.held <= HELD


def _extents(p: WindowNormProblem, dims: Sequence[int | None]) -> tuple[int, ...]:
    """Of an empty tensor, for which nothing is launched, there is a tile as well."""
    return tuple(1 if d is None else max(1, p.x_shape[d]) for d in dims)


def _refusal(layouts: Layouts[WindowNormProblem]) -> str | None:
    p, order = layouts.problem, Order.of(layouts.problem, layouts.inputs["x"])
    tile = Tile.of(p, order, _extents(p, order.windows))
    if tile.fits and tile.work <= MOST_WORK:
        return None
    return f"has no room for windows of {p.elements} elements"


def backward(run: Launch[WindowNormProblem]) -> None:
    """dx and dmeans."""
    p, x, dx = run.problem, run.inputs["x"], run.outputs["dx"]
    means, dmeans = run.inputs.get("means", x), run.outputs.get("dmeans", dx)
    order = Order.of(p, x)
    outer = _extents(p, order.outer)
    tile = Tile.of(p, order, _extents(p, order.windows))
    arrays = run.inputs["dy"], x, means, dx, dmeans

    def strides(dims: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(0 if d is None else a.strides[d] for d in dims) for a in arrays)

    rows = math.prod(outer)
    tiles = -(-rows // tile.across) * math.prod(along.arguments[-1] for along in tile.dims)
    args = (
        tuple(array.argument for array in arrays[:3]),
        tuple(array.argument for array in arrays[3:]),
        (tiles, rows, tile.across),
        outer,
        tuple(stride for by in strides(order.outer) for stride in by),
        tuple(map(origin, arrays)),
        tuple(along.arguments for along in tile.dims),
        strides(order.windows),
        (p.window, p.before, int(p.has_means)),
        (p.beta, p.weight, p.k, 2.0 * p.beta * p.weight),
    )
    launch(gradient(run.dtype), min(BLOCKS, tiles), THREADS, args, stream=run.stream)


BACKWARD = Implementation("tiled", backward, refusal=_refusal)


# --- The kernel -----------------------------------------------------------------------------------


@device_function
def position_in(cell: Any, extent1: Any, extent2: Any, across: Any) -> Any:
    """(i0, i1, i2, lane): the place of a cell in a box of such extents, lanes being the fastest."""
    rest = cell // across
    row = rest // extent2
    return row // extent1, row % extent1, rest % extent2, cell % across


@device_function
def distance(steps: Any, i0: Any, i1: Any, i2: Any) -> Any:
    return i0 * steps[0] + i1 * steps[1] + i2 * steps[2]


@cache
def gradient(dtype: str) -> Kernel:
    """dx and dmeans. Launch with THREADS threads."""
    element, squares = ELEMENTS[dtype], squares_of(dtype)
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    zero, one = number(0), number(1)

    @kernel
    def norm_window_tile(
        inputs: Any,
        outputs: Any,
        counts: Any,
        outer: Any,
        outer_strides: Any,
        origins: Any,
        dims: Any,
        steps: Any,
        window: Any,
        scalars: Any,
    ) -> None:
        dy, x, means = inputs
        dx, dmeans = outputs
        tiles, rows, across = counts
        d0, d1, d2 = dims
        dy_steps, x_steps, means_steps, dx_steps, dmeans_steps = steps
        taps, before, has_means = window
        beta, weight = number(scalars[0]), number(scalars[1])
        k, doubled = number(scalars[2]), number(scalars[3])
        extents = d0[0], d1[0], d2[0]
        spreads = cuda.shared.array(HELD, number)
        shares = cuda.shared.array(HELD, number)
        thread = int64(cuda.threadIdx.x)
        for tile in range(int64(cuda.blockIdx.x), tiles, int64(cuda.gridDim.x)):
            t0, t1, t2, _ = position_in(tile, d1[4], d2[4], int64(1))
            first_row = t0 // d0[4] * across
            begin0, begin1, begin2 = t0 % d0[4] * d0[1], t1 * d1[1], t2 * d2[1]
            for cell in range(thread, d0[2] * d1[2] * d2[2] * across, THREADS):
                v0, v1, v2, lane = position_in(cell, d1[2], d2[2], across)
                p0, p1, p2 = begin0 + v0 - d0[3], begin1 + v1 - d1[3], begin2 + v2 - d2[3]
                inside = p0 >= 0 and p0 < extents[0] and p1 >= 0 and p1 < extents[1]
                inside = inside and p2 >= 0 and p2 < extents[2]
                if inside and first_row + lane < rows:
                    at = places(digits_of(first_row + lane, outer), outer_strides, origins)
                    x_at = at[1] + distance(x_steps, p0, p1, p2)
                    means_at = at[2] + distance(means_steps, p0, p1, p2)
                    total = squares(
                        x,
                        means,
                        x_at,
                        x_steps,
                        means_at,
                        means_steps,
                        window,
                        (p0, p1, p2),
                        extents,
                    )
                    s = k + weight * total
                    given = to_sum(dy[uint64(at[0] + distance(dy_steps, p0, p1, p2))])
                    spreads[cell] = s
                    shares[cell] = given * to_sum(x[uint64(x_at)]) * power(s, -beta - one)
            cuda.syncthreads()
            for cell in range(thread, d0[1] * d1[1] * d2[1] * across, THREADS):
                u0, u1, u2, lane = position_in(cell, d1[1], d2[1], across)
                p0, p1, p2 = begin0 + u0, begin1 + u1, begin2 + u2
                inside = p0 < extents[0] and p1 < extents[1] and p2 < extents[2]
                if inside and first_row + lane < rows:
                    held = (u0 + d0[3]) * d1[2] + u1 + d1[3]
                    held = (held * d2[2] + u2 + d2[3]) * across + lane
                    low0, high0 = window_at(taps - 1 - before, taps, p0, extents[0])
                    low1, high1 = window_at(taps - 1 - before, taps, p1, extents[1])
                    low2, high2 = window_at(taps - 1 - before, taps, p2, extents[2])
                    total = zero
                    for i0 in range(low0, high0):
                        for i1 in range(low1, high1):
                            for i2 in range(low2, high2):
                                near = ((i0 * d1[2] + i1) * d2[2] + i2) * across
                                total += shares[held + near]
                    at = places(digits_of(first_row + lane, outer), outer_strides, origins)
                    centred = to_sum(x[uint64(at[1] + distance(x_steps, p0, p1, p2))])
                    if has_means != 0:
                        near = at[2] + distance(means_steps, p0, p1, p2)
                        centred -= to_sum(means[uint64(near)])
                    # The weight comes last: times it a subnormal element would be 0, and 0·Inf is NaN.
                    through = centred * total * doubled
                    given = to_sum(dy[uint64(at[0] + distance(dy_steps, p0, p1, p2))])
                    direct = given * power(spreads[held], -beta)
                    dx[uint64(at[3] + distance(dx_steps, p0, p1, p2))] = from_sum(direct - through)
                    if has_means != 0:
                        near = at[4] + distance(dmeans_steps, p0, p1, p2)
                        dmeans[uint64(near)] = from_sum(through)
            cuda.syncthreads()

    return norm_window_tile
