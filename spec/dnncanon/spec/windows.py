"""Windows over space: padding, output extents and their inverse, shared by convolution and pooling."""

from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Pair, padding_pairs
from dnncanon.spec.tensors import Shape


def effective_extent(filter_extent: int, dilation: int) -> int:
    """What a dilated filter covers: l·(F−1)+1."""
    return dilation * (filter_extent - 1) + 1


def resolve_padding(
    padding: Any, input_size: Shape, filter_size: Shape, stride: Shape, dilation: Shape
) -> tuple[Pair, ...]:
    """(pre, post) for each spatial dim.

    ``same`` pads so that O = ceil(I/u), the odd zero behind: total = max(0, (O−1)·u + l·(F−1)+1 − I).
    """
    if padding == "valid":
        return ((0, 0),) * len(input_size)
    if padding != "same":
        return padding_pairs(padding, len(input_size))
    pairs = []
    for i, f, u, dil in zip(input_size, filter_size, stride, dilation, strict=True):
        total = max(0, (-(-i // u) - 1) * u + effective_extent(f, dil) - i)
        pairs.append((total // 2, total - total // 2))
    return tuple(pairs)


def output_extents(
    input_size: Shape, filter_size: Shape, padding: tuple[Pair, ...], stride: Shape, dilation: Shape
) -> Shape:
    """O = floor((I + pre + post − l·(F−1) − 1) / u) + 1, for each spatial dim."""
    dims = zip(input_size, filter_size, padding, stride, dilation, strict=True)
    return tuple((i + sum(p) - effective_extent(f, dil)) // u + 1 for i, f, p, u, dil in dims)


def least_input_size(
    output_size: Shape,
    filter_size: Shape,
    padding: tuple[Pair, ...],
    stride: Shape,
    dilation: Shape,
) -> Shape:
    """The smallest I whose output extents are O: (O−1)·u + l·(F−1)+1 − pre − post."""
    dims = zip(output_size, filter_size, padding, stride, dilation, strict=True)
    return tuple((o - 1) * u + effective_extent(f, dil) - sum(p) for o, f, p, u, dil in dims)


def ceil_mode_extents(
    input_size: Shape, filter_size: Shape, padding: tuple[Pair, ...], stride: Shape, dilation: Shape
) -> Shape:
    """As :func:`output_extents`, and one more where a last window hangs over the end.

    It is added if it starts before the padding behind the input, and reaches beyond it.
    """
    outputs = output_extents(input_size, filter_size, padding, stride, dilation)
    dims = zip(outputs, input_size, filter_size, padding, stride, dilation, strict=True)
    return tuple(
        o + ((i + sum(p) - effective_extent(f, dil)) % u > 0 and o * u < i + p[0])
        for o, i, f, p, u, dil in dims
    )


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows over one spatial dim: window o has the cells first(o) + t·dilation for t < length(o).

    Regular windows all have ``taps`` cells and start at o·stride − pre; cells outside 0…inputs − 1 are
    padding, ``pre`` before and ``post`` behind, or hang over it. Adaptive ones share the input out among the
    outputs: window o is ⌊o·I/O⌋ … ⌈(o+1)·I/O⌉ − 1.
    """

    inputs: int
    outputs: int
    taps: int = 0
    stride: int = 1
    dilation: int = 1
    pre: int = 0
    post: int = 0
    adaptive: bool = False

    def first(self, o: Any) -> Any:
        """The first cell of window o, an integer or an array of them; it may lie in the padding."""
        return o * self.inputs // self.outputs if self.adaptive else o * self.stride - self.pre

    def length(self, o: Any) -> Any:
        """How many cells window o has, those in the padding included."""
        if self.adaptive:
            return -(-(o + 1) * self.inputs // self.outputs) - self.first(o)
        return o * 0 + self.taps

    @property
    def longest(self) -> int:
        """At least as many cells as any window has."""
        return self.inputs // max(1, self.outputs) + 2 if self.adaptive else self.taps

    @property
    def overlap(self) -> int:
        """At most so many windows have a cell in common."""
        if self.adaptive:
            return min(self.outputs, self.outputs // max(1, self.inputs) + 2)
        covered = -(-effective_extent(self.taps, self.dilation) // self.stride)
        return min(self.outputs, self.taps, covered)
