"""Axes: what families that work along some dims of a tensor share: the rule, the resolution, the draws."""

import math
from collections.abc import Iterator
from typing import Any

from dnncanon.spec.attributes import Integers, as_integer, is_sequence, shown
from dnncanon.spec.errors import AttributeValueError
from dnncanon.spec.primitive import Arguments, Attribute, Constraint, Draw
from dnncanon.spec.tensors import Shape

AXES = "An int or a sequence of ints; negative ones count from the back."


def axes_attribute(doc: str, default: Any) -> Attribute:
    """The attribute ``axes``."""
    return Attribute("axes", Integers(), f"{doc} {AXES}", default)


def resolved_axes(axes: Any, rank: int) -> Shape:
    """The axes in ascending order, none negative; all of them for None. ValueError says what is wrong."""
    if axes is None:
        return tuple(range(rank))
    try:
        given = [as_integer(axis) for axis in (axes if is_sequence(axes) else (axes,))]
    except TypeError:
        raise ValueError(
            f"{shown(axes)} is neither an integer nor a sequence of integers"
        ) from None
    for axis in given:
        if not -rank <= axis < rank:
            raise ValueError(f"{shown(axes)} has {axis}, which is none of the {rank} dims")
    found = sorted(axis % rank for axis in given)
    if len(set(found)) < len(found):
        raise ValueError(f"{shown(axes)} names a dim twice")
    return tuple(found)


def legal_axes(tensor: str, *, may_be_none: bool) -> Constraint:
    """Distinct dims of a tensor."""
    text = f"axes are distinct dims of {tensor}, from −rank to rank − 1"
    text += "; None means all of them." if may_be_none else "."

    def check(a: Arguments) -> str | None:
        value, rank = a.attributes["axes"], a.tensors[tensor].rank
        if value is None and not may_be_none:
            return f"axes=None; pass ints from {-rank} to {rank - 1}"
        try:
            resolved_axes(value, rank)
        except ValueError as wrong:
            return f"axes={wrong}; pass distinct ints from {-rank} to {rank - 1}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = a.tensors[tensor].rank
        for value in ((rank,), -rank - 1, (0, 0), (0, -rank), (0.5,), "1"):
            yield a.with_attributes(axes=value)
        if not may_be_none:
            yield a.with_attributes(axes=None)

    return Constraint(text, AttributeValueError, check, violate)


def kept_shape(shape: Shape, axes: Shape) -> Shape:
    """The shape with extent 1 in the axes."""
    return tuple(1 if dim in axes else extent for dim, extent in enumerate(shape))


def row_length(shape: Shape, axes: Shape) -> int:
    """How many elements lie along the axes: 1 for none."""
    return math.prod(shape[axis] for axis in axes)


_SAMPLED_RANK = 5
_KINDS = ("last", "last", "some", "first", "all", "last")


def drawn_axes(draw: Draw, rank: int) -> Shape:
    """At least one axis: the last, the first, all or any; now and then written negatively."""
    kind, negative = draw.choice(_KINDS), draw.choice((False, False, True))
    some = [draw.choice((False, True)) for _ in range(_SAMPLED_RANK)][:rank]
    axes = {
        "last": (rank - 1,),
        "first": (0,),
        "all": tuple(range(rank)),
        "some": tuple(axis for axis, taken in enumerate(some) if taken) or (rank - 1,),
    }[kind]
    return tuple(axis - rank for axis in reversed(axes)) if negative else axes


def with_long_rows(shape: Shape, axes: Shape, longest: int) -> Shape:
    """The shape with 2 to ``longest`` elements along the axes, unless it is empty."""
    axes = resolved_axes(axes, len(shape))
    if math.prod(shape) == 0:
        return shape
    extents = list(shape)
    if row_length(shape, axes) == 1:
        extents[axes[-1]] = 2
    while math.prod(extents[axis] for axis in axes) > longest:
        largest = max(axes, key=lambda axis: extents[axis])
        extents[largest] = (extents[largest] + 1) // 2
    return tuple(extents)
