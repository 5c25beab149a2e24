"""Teams: the threads that take a window together where windows are large or far apart.

A thread that walks through its window alone reads what lies a window away from its neighbour's: every lane of
a warp has a sector of its own. A team's threads read neighbouring cells, and put their results together
in a fixed tree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dnncanon.gpu.kernels.rows import BLOCKS, LONG, THREADS, WARP
from dnncanon.gpu.kernels.windows import SPATIAL, Walk, strides_of
from dnncanon.gpu.runtime import DeviceArray, blocks_for
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.gpu.runtime.device_index import digits_of

LEAST_CELLS = 16
LEAST_BYTES = 8
"""A window with so many cells is a team's if the next window begins so far away."""

MANY_CELLS = 128
"""Of a window for which a whole warp is the team, though its rows be short."""

_int64 = types.int64


@dataclass(frozen=True, slots=True)
class Taking:
    """What an output takes from its source along a dim.

    At most ``taps`` cells, the ``gap`` apart, of ``inputs``; the next output's begin a ``step`` farther on.
    """

    inputs: int = 1
    taps: int = 1
    step: int = 1
    gap: int = 1


@dataclass(frozen=True, slots=True)
class Teams:
    """``width`` threads for each position of a walk, in so many blocks of THREADS."""

    walk: Walk
    width: int
    blocks: int

    @classmethod
    def over(cls, walk: Walk, source: DeviceArray, dims: Sequence[Taking]) -> "Teams | None":
        """Teams for what outputs take from ``source``; None where a thread each does as well."""
        taken = (*(Taking(),) * (SPATIAL - len(dims)), *dims)
        cells = math.prod(dim.taps for dim in taken)
        _, n, c, *space = map(abs, strides_of(source))
        steps = [dim.step * stride for dim, stride in zip(taken, space, strict=True)]
        order = (n, *steps, c) if walk.channels_last else (n, c, *steps)
        to_next = [s for extent, s in zip(walk.extents, order, strict=True) if extent > 1]
        distance = to_next[-1] if to_next else 2**63
        within = [(d.gap * s, d) for d, s in zip(taken, space, strict=True) if d.taps > 1]
        nearest, inner = min(within, key=lambda pair: pair[0], default=(distance, Taking()))
        alone = distance * source.dtype.itemsize < LEAST_BYTES or distance <= nearest
        if walk.lanes > 1 or cells < LEAST_CELLS or alone:
            return None
        width = _width(cells, inner)
        positions = math.prod(walk.extents)
        return cls(walk, width, min(BLOCKS, blocks_for(positions, THREADS // width)))

    @property
    def threads(self) -> int:
        """Of a block."""
        return THREADS

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take it."""
        size, extents, _, channels_last = self.walk.arguments
        return size, extents, channels_last, self.width


def _width(cells: int, inner: Taking) -> int:
    if cells > LONG:
        return THREADS
    if cells >= MANY_CELLS or inner.taps >= inner.inputs:
        return min(WARP, _power_of_two(cells))
    return min(WARP, _power_of_two(inner.taps))


def _power_of_two(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()


@device_function
def share_of_window(member: Any, width: Any, count0: Any, count1: Any, count2: Any) -> Any:
    """(digits, step, extents) of a member's walk through a window of so many cells along each dim.

    The member takes cell ``member``, and each one ``width`` farther on. A window may be empty.
    """
    one = _int64(1)
    extents = max(one, count0), max(one, count1), max(one, count2)
    return digits_of(member, extents), digits_of(width, extents), extents
