"""The tiles of a depthwise convolution: which positions of which channels a block has in shared memory.

A tile is some *planes*, channels of the input, each with the outputs of a box of positions. Its source is a
box that is larger by the reach of the taps: read once, however many taps there are. Nothing here imports Numba.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dnncanon.gpu.kernels.correlation import SPATIAL, Correlation, Layout, Triple, nearest

ROOM = 32 * 1024
"""Bytes of shared memory for a block's tile: several blocks fit on a multiprocessor."""

SIDE_BY_SIDE = 64
"""Bytes of adjacent channels in a tile where these are the nearest neighbours: whole sectors, little halo."""

ROW, ROWS = 128, 8
"""Outputs of a row, and rows where there are slices of them: boxes near a cube have little halo."""

OUTPUTS = 1024
"""Of a tile, at most, where it takes several whole planes."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over planes: output o of a plane meets the input at o·step + t·gap − shift.

    Of each plane the source has ``subs`` planes and the outputs ``kinds``.
    """

    planes: int
    subs: int
    kinds: int
    batch: int
    outputs: Triple
    taps: Triple
    inputs: Triple
    step: Triple
    gap: Triple
    shift: Triple
    source: Layout

    @classmethod
    def of(cls, part: Correlation) -> "Windows":
        """Of a convolution or of its gradient by data: a sum over the taps for each position."""
        return cls(
            part.groups,
            part.channels_in,
            part.channels_out,
            part.batch,
            part.positions,
            part.taps,
            part.extents if math.prod(part.taps) else (0, 0, 0),
            part.step,
            part.gap,
            part.shift,
            part.source,
        )

    @classmethod
    def of_gradient(cls, part: Correlation) -> "Windows":
        """Of the gradient by the filter: a sum over the positions, and images, for each tap."""
        at = part.source
        return cls(
            part.groups,
            1,
            part.channels_out,
            part.channels_in,
            part.taps,
            part.positions,
            part.extents,
            part.gap,
            part.step,
            part.shift,
            Layout(at.offset, at.group, at.inner, at.outer, at.spatial),
        )

    @property
    def channels_adjacent(self) -> bool:
        """Whether the source's nearest neighbours are of other planes."""
        of_planes = nearest([self.source.group], [self.planes])
        return of_planes < nearest(self.source.spatial, self.inputs)

    def box(self, outputs: Sequence[int]) -> Triple:
        """Inputs that so many outputs meet."""
        dims = zip(outputs, self.step, self.taps, self.gap, strict=True)
        e0, e1, e2 = ((n - 1) * step + max(0, taps - 1) * gap + 1 for n, step, taps, gap in dims)
        return e0, e1, e2


@dataclass(frozen=True, slots=True)
class Tile:
    """So many planes, and outputs of each.

    In shared memory are the source's box, ``extra`` numbers for each plane, and if it ``holds_outputs`` these.
    """

    windows: Windows
    room: int
    extra: int
    holds_outputs: bool
    planes: int
    outputs: Triple = (1, 1, 1)

    @classmethod
    def of(
        cls,
        windows: Windows,
        itemsize: int,
        sum_itemsize: int,
        extra: int = 0,
        *,
        holds_outputs: bool = False,
        reserved: int = 0,
        most_planes: int = 2**31,
    ) -> "Tile | None":
        """The tile for element types of so many bytes in memory and in sums; None if none has room.

        Numbers that are ``reserved`` are left out of the room.
        """
        room = ROOM // sum_itemsize - reserved
        planes = 1
        if windows.channels_adjacent:
            planes = min(windows.planes, most_planes, SIDE_BY_SIDE // itemsize)
        tile = cls(windows, room, extra, holds_outputs, planes)
        while tile.planes > 1 and 2 * tile.numbers > room:
            tile = replace(tile, planes=tile.planes // 2)
        if tile.numbers > room:
            return None
        tile = tile.grown(tile._near_a_cube()).grown(windows.outputs)
        if tile.outputs != windows.outputs or planes > 1:
            return tile
        most = min(room // max(1, tile.numbers), OUTPUTS // math.prod(tile.outputs))
        return replace(tile, planes=max(1, min(windows.planes, most_planes, most)))

    @property
    def box(self) -> Triple:
        return self.windows.box(self.outputs)

    @property
    def numbers(self) -> int:
        """In shared memory."""
        outputs = self.windows.kinds * math.prod(self.outputs) if self.holds_outputs else 0
        return self.planes * (self.windows.subs * math.prod(self.box) + outputs + self.extra)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Tiles along the planes and along each dim of the outputs."""
        planes = -(-self.windows.planes // self.planes)
        n0, n1, n2 = (
            -(-n // own) for n, own in zip(self.windows.outputs, self.outputs, strict=True)
        )
        return planes, n0, n1, n2

    def grown(self, limits: Sequence[int]) -> "Tile":
        """With as many outputs as there is room for, up to limits, the last dim first."""
        tile = self
        for dim in reversed(range(SPATIAL)):
            low, high = tile.outputs[dim], max(tile.outputs[dim], limits[dim])
            while low < high:
                middle = (low + high + 1) // 2
                larger = tile._with(dim, middle)
                low, high = (middle, high) if larger.numbers <= tile.room else (low, middle - 1)
            tile = tile._with(dim, low)
        return tile

    def _with(self, dim: int, extent: int) -> "Tile":
        n0, n1, n2 = (extent if d == dim else n for d, n in enumerate(self.outputs))
        return replace(self, outputs=(n0, n1, n2))

    def _near_a_cube(self) -> Triple:
        n0, n1, n2 = self.windows.outputs
        if not self.windows.channels_adjacent:
            return n0, min(n1, ROWS) if n0 > 1 else n1, min(n2, ROW) if n0 * n1 > 1 else n2
        side = 1
        while side < max(n0, n1, n2) and self._cube(side + 1).numbers <= self.room:
            side += 1
        return self._cube(side).outputs

    def _cube(self, side: int) -> "Tile":
        n0, n1, n2 = (min(side, n) for n in self.windows.outputs)
        return replace(self, outputs=(n0, n1, n2))
