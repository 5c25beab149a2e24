"""The sizes of a tile: all that a kernel of the tile engine is compiled for, beside its element types."""

from dataclasses import dataclass

WARP = 32

CHUNK = 16
"""Bytes of a chunk: what one asynchronous copy moves, and one row of a matrix of ``ldmatrix``."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of C that a block computes, and the depth of a slice of A and B.

    ``warps`` are down and across: each computes its share of the tile. ``stages`` is how many slices are in
    shared memory, one being multiplied while the others are on their way.
    """

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int]
    stages: int = 2

    @property
    def threads(self) -> int:
        return WARP * self.warps[0] * self.warps[1]

    @property
    def warp_rows(self) -> int:
        return self.rows // self.warps[0]

    @property
    def warp_columns(self) -> int:
        return self.columns // self.warps[1]

    def count(self, rows: int, columns: int) -> int:
        """Tiles that cover a matrix."""
        return -(-rows // self.rows) * -(-columns // self.columns)
