"""Walking strided tensors: an index space shared by several operands, and its way through memory.

``Space`` joins dims that lie in one piece in all operands, so that most walks have one or two dims. In
kernels, ``device_index`` turns a linear index into digits, one for each dim, once, by division; further
ones follow by adding a step with carries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dnncanon.gpu.runtime import Strided
from dnncanon.spec import ShapeError, dense_strides

RANKS = (1, 2, 4, 8)
"""Dims of the kernels that there are; a space gets leading dims of extent 1 up to the next of them."""

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Extents, slowest dim first, and the strides of each operand, in elements."""

    extents: Ints
    strides: tuple[Ints, ...]

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[Sequence[int]], key: int = 0) -> "Space":
        """The space of a shape in the memory order of operand ``key``, with dims joined.

        The order of the elements is the shape's own where that operand is dense.
        """
        dims = [(n, by) for n, *by in zip(shape, *strides, strict=True) if n != 1]
        dims.sort(key=lambda dim: -abs(dim[1][key]))
        joined: list[tuple[int, list[int]]] = []
        for extent, by in dims:
            if joined and all(s == extent * t for s, t in zip(joined[-1][1], by, strict=True)):
                joined[-1] = (joined[-1][0] * extent, by)
            else:
                joined.append((extent, by))
        if len(joined) > RANKS[-1]:
            raise ValueError(f"{len(joined)} dims that cannot be joined; kernels take {RANKS[-1]}")
        rank = next(rank for rank in RANKS if rank >= len(joined))
        joined = [(1, [0] * len(strides))] * (rank - len(joined)) + joined
        extents = tuple(extent for extent, _ in joined)
        return cls(extents, tuple(tuple(by[k] for _, by in joined) for k in range(len(strides))))

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def size(self) -> int:
        return math.prod(self.extents)

    def with_rank(self, rank: int) -> "Space":
        """The same walk with leading dims of extent 1."""
        missing = rank - self.rank
        return Space(
            (1,) * missing + self.extents, tuple((0,) * missing + by for by in self.strides)
        )

    @property
    def flat_strides(self) -> Ints:
        """One operand after the other, as kernels take them."""
        return tuple(stride for by in self.strides for stride in by)

    def is_dense(self, operand: int) -> bool:
        """Whether an operand's elements lie in the order of the space without gaps."""
        dims = zip(self.extents, self.strides[operand], dense_strides(self.extents), strict=True)
        return all(n == 1 or have == want for n, have, want in dims)

    def digits(self, number: int) -> Ints:
        """``number`` in the mixed radix of the extents, the first digit without a limit."""
        found = []
        for extent in reversed(self.extents[1:]):
            number, digit = divmod(number, max(1, extent))
            found.append(digit)
        return (number, *reversed(found))


def broadcast_strides(array: Strided, shape: Sequence[int]) -> Ints:
    """The strides with which an array appears in a shape: 0 where it is repeated, as NumPy does it."""
    missing = len(shape) - len(array.shape)
    extents = (1,) * missing + tuple(array.shape)
    if missing < 0 or any(n not in (1, want) for n, want in zip(extents, shape, strict=True)):
        raise ShapeError(f"an array of shape {array.shape} does not broadcast to {tuple(shape)}")
    strides = (0,) * missing + tuple(array.strides)
    return tuple(0 if n == 1 else s for n, s in zip(extents, strides, strict=True))
