"""Windows over space: padding, output extents and their inverse, shared by convolution and pooling."""

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
