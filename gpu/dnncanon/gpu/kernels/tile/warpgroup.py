"""The unit that multiplies slices on Hopper's tensor cores, by ``wgmma`` (sm_90a).

Four warps, a warpgroup, multiply 64 rows of A by all columns of the tile. ``wgmma`` reads both operands from
shared memory by itself, through descriptors; only sums are in registers. A slice is 64 deep: 128 bytes, as wide
as the swizzle that keeps the reads free of bank conflicts. It lies in *panels* of 64 lines, 8 KiB each, one
behind the other, in the order that the operand has in global memory:

- along the depth: 64 rows, one for each line, of 128 bytes along the depth;
- along the lines: 64 rows, one for each step of the depth, of 128 bytes along the lines.

``wgmma`` takes 16-bit words in both orders, so transposition costs nothing. Descriptors and the layout of sums:
PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.shape import WARP, Tile
from dnncanon.gpu.kernels.tile.slices import Direction
from dnncanon.gpu.runtime.device_code import device_function, types

WORDS = {"float16": "f16", "bfloat16": "bf16"}
"""What is multiplied, by ``wgmma``'s name for it. Sums are float32."""

SWIZZLE = 128
"""Bytes within which chunks of 16 are exchanged; descriptors have a number for it."""
_SWIZZLE_OF_128 = 1

PANEL = 64
"""Lines of a panel, and its depth; rows of a warpgroup."""

PANEL_BYTES = PANEL * SWIZZLE

WARPGROUP = 4 * WARP

_STEP = 16
"""Of the depth that one ``wgmma`` goes."""

_GROUP_BYTES = 8 * SWIZZLE
"""Eight rows, after which the swizzle repeats."""

_int64, _uint32, _uint64 = types.int64, types.uint32, types.uint64


@dataclass(frozen=True, slots=True)
class Warpgroup:
    """Multiplies 16-bit words. ``a`` and ``b`` say along what the operands' elements lie side by side."""

    word: str
    tile: Tile
    a: Direction
    b: Direction

    @property
    def sum_dtype(self) -> str:
        return "float32"

    @property
    def sums(self) -> int:
        """Of a thread: of the eight columns from 8j on the four from 4j on, as ``mma.sync`` has them."""
        return self.tile.columns // 2

    @property
    def panels(self) -> tuple[int, int]:
        """Of a slice of A, and of one of B."""
        return self.tile.rows // PANEL, self.tile.columns // PANEL

    @property
    def slot_bytes(self) -> int:
        """A slice of A and one of B."""
        return sum(self.panels) * PANEL_BYTES


@cache
def descriptor(along: Direction) -> Callable[[Any], Any]:
    """descriptor(shared address) of an operand that begins there with a whole panel."""
    leading = PANEL_BYTES if along == "lines" else 16  # from panel to panel; along the depth unused

    @device_function
    def descriptor_(address: Any) -> Any:
        return ptx.wgmma_descriptor(address, leading, _GROUP_BYTES, _SWIZZLE_OF_128)

    return descriptor_


@cache
def multiply(unit: Warpgroup) -> Callable[..., Any]:
    """multiply(sums, a, b) -> sums: start to add a slice of A times one of B, given by their descriptors.

    ``sums`` is a tuple, not to be looked at before ``ptx.wgmma_wait_group`` has returned it.
    """
    one = ptx.wgmma(
        unit.tile.columns, WORDS[unit.word], trans_a=unit.a == "lines", trans_b=unit.b == "lines"
    )
    on_a, on_b = _onward(unit.a), _onward(unit.b)

    @device_function
    def multiply_(sums: Any, a: Any, b: Any) -> Any:
        ptx.wgmma_fence()
        sums = one(a, b, 1, sums)
        sums = one(a + _uint64(on_a), b + _uint64(on_b), 1, sums)
        sums = one(a + _uint64(2 * on_a), b + _uint64(2 * on_b), 1, sums)
        sums = one(a + _uint64(3 * on_a), b + _uint64(3 * on_b), 1, sums)
        ptx.wgmma_commit_group()
        return sums

    return multiply_


def _onward(along: Direction) -> int:
    """What a step of the depth adds to a descriptor, which counts 16 bytes."""
    return (_STEP * 2 if along == "depth" else _STEP * SWIZZLE) // 16


@cache
def store_strip(unit: Warpgroup, strips: int, pitch: int) -> Callable[..., None]:
    """store(sums, staging, thread, strip): a thread's sums, if its warp's 16 rows are among the strip's."""
    columns, rows = unit.tile.columns, unit.tile.rows // strips
    warps = rows // 16

    @device_function
    def store_(sums: Any, staging: Any, thread: Any, strip: Any) -> None:
        lane, warp = thread % WARP, thread // WARP
        if warp // warps == strip:
            row, column = warp % warps * 16 + lane // 4, lane % 4 * 2
            first = staging + _uint32(row * pitch + column * 4)
            for j in range(columns // 8):
                for e in range(4):
                    at = e // 2 * 8 * pitch + (j * 8 + e % 2) * 4
                    ptx.store_shared_u32(first + _uint32(at), sums[4 * j + e])

    return store_


@cache
def row_of_strip(unit: Warpgroup, strips: int) -> Callable[[Any, Any], Any]:
    """row_of(strip, row): the row of the tile that a row of a strip is."""
    rows = unit.tile.rows // strips

    @device_function
    def row_of(strip: Any, row: Any) -> Any:
        return strip * rows + row

    return row_of
