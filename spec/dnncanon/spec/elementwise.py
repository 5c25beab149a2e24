"""What the element-by-element families share: rules about shapes and scalars, and shapes to sample from."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnncanon.spec.attributes import as_integer, as_real, is_sequence, shown
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint, Draw, Scale
from dnncanon.spec.tensors import Shape, dense_strides

MAX_RANK = 8
"""As cuDNN's CUDNN_DIM_MAX."""

# --- Rules ----------------------------------------------------------------------------------------


def any_rank(*names: str) -> Constraint:
    """One rank, of 1 to MAX_RANK dims, for all named tensors that are there."""
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    verb = "have one rank" if len(names) > 1 else "has a rank"
    remedy = f"pass tensors of one rank, 1 to {MAX_RANK}"

    def check(a: Arguments) -> str | None:
        ranks = {name: a.tensors[name].rank for name in names if name in a.tensors}
        if len(set(ranks.values())) == 1 and 1 <= next(iter(ranks.values())) <= MAX_RANK:
            return None
        return f"{', '.join(f'{n} has rank {rank}' for n, rank in ranks.items())}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in names:
            if name in a.tensors:
                shape = a.tensors[name].shape
                others = [n for n in names if n in a.tensors and n != name]
                yield a.with_tensor(name, shape=(*shape, 1) if others else (), strides=None)
                yield a.with_tensor(name, shape=(*(1,) * MAX_RANK, *shape), strides=None)

    return Constraint(f"{listed} {verb}, 1 to {MAX_RANK}.", ShapeError, check, violate)


def same_shape(name: str, other: str) -> Constraint:
    """The tensor ``name`` has the shape of ``other``."""

    def check(a: Arguments) -> str | None:
        got, expected = a.tensors[name].shape, a.tensors[other].shape
        if got == expected:
            return None
        return f"{name} has shape {got}, but {other} has {expected}; pass {name} of that shape"

    def violate(a: Arguments) -> Iterator[Arguments]:
        first, *rest = a.tensors[name].shape
        yield a.with_tensor(name, shape=(first + 1, *rest), strides=None)

    return Constraint(f"{name} has the shape of {other}.", ShapeError, check, violate)


def broadcastable() -> Constraint:
    """Shapes of all tensors, of one rank, from which :func:`broadcast_shape` makes that of the result."""
    text = "In each dim the extents of the tensors are equal, or 1."

    def check(a: Arguments) -> str | None:
        shapes = {name: t.shape for name, t in a.tensors.items()}
        if all(len({*extents} - {1}) <= 1 for extents in zip(*shapes.values(), strict=True)):
            return None
        listed = " and ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
        return f"{listed} do not fit together; pass extents that are equal or 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name, tensor in a.tensors.items():
            yield a.with_tensor(name, shape=tuple(n + 2 for n in tensor.shape), strides=None)

    return Constraint(text, ShapeError, check, violate)


def broadcast_shape(a: Arguments) -> Shape:
    """Of the tensors together: in each dim the extent that is not 1."""
    return tuple(
        next((n for n in extents if n != 1), 1)
        for extents in zip(*(t.shape for t in a.tensors.values()), strict=True)
    )


def positive(name: str) -> Constraint:
    """A finite scalar attribute > 0."""

    def check(a: Arguments) -> str | None:
        try:
            value = as_real(a.attributes[name])
        except ValueError as wrong:
            return f"{name}={wrong}; pass a number > 0"
        return None if value > 0.0 else f"{name}={shown(a.attributes[name])}; pass a number > 0"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0.0, -1.0, math.inf, math.nan, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is a finite number > 0.", AttributeValueError, check, violate)


def true_or_false(name: str) -> Constraint:
    """A flag."""

    def check(a: Arguments) -> str | None:
        if isinstance(a.attributes[name], bool):
            return None
        return f"{name}={shown(a.attributes[name])}; pass True or False"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (2, "true"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is True or False.", AttributeValueError, check, violate)


def legal_axis(tensor: str) -> Constraint:
    """A dim of a tensor, from the front or, if negative, from the back."""

    def check(a: Arguments) -> str | None:
        value, rank = a.attributes["axis"], a.tensors[tensor].rank
        try:
            if -rank <= as_integer(value) < rank:
                return None
        except (TypeError, ValueError):
            pass
        return f"axis={shown(value)}; pass an integer from {-rank} to {rank - 1}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = a.tensors[tensor].rank
        for value in (rank, -rank - 1, 0.5):
            yield a.with_attributes(axis=value)

    text = f"axis is a dim of {tensor}; a negative one counts from the back."
    return Constraint(text, AttributeValueError, check, violate)


def legal_shape() -> Constraint:
    """The extents of a result."""
    text = f"shape is a sequence of 1 to {MAX_RANK} integers >= 0, of less than 2^63 elements"

    def check(a: Arguments) -> str | None:
        value = a.attributes["shape"]
        try:
            extents = [as_integer(extent) for extent in value] if is_sequence(value) else []
        except (TypeError, ValueError):
            extents = []
        if 1 <= len(extents) <= MAX_RANK and min(extents) >= 0 and math.prod(extents) < 2**63:
            return None
        return f"shape={shown(value)}; pass 1 to {MAX_RANK} integers >= 0, of a product below 2^63"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in ((), (1,) * (MAX_RANK + 1), (2, -1), (2**31, 2**32), (1.5,), 3):
            yield a.with_attributes(shape=value)

    return Constraint(f"{text}.", AttributeValueError, check, violate)


# --- Data -----------------------------------------------------------------------------------------


def sprinkled(values: Any, chosen: tuple[float, ...]) -> Any:
    """The values with one in eight replaced by one of the chosen ones in turn."""
    place = np.arange(values.size).reshape(values.shape)
    return np.where(place % 8 == 3, np.array(chosen)[place // 8 % len(chosen)], values)


# --- Shapes to sample from ------------------------------------------------------------------------

_RANKS = (2, 3, 4, 2, 3, 4, 5, 1)
_SAMPLED_RANK = 5
_LONG = ("nothing", "last", "last", "last")
"""Mostly hundreds of elements: one in 64 is NaN, or Inf, where special values are asked for."""


def drawn_shape(draw: Draw, scale: Scale) -> Shape:
    """A shape of 1 to 5 dims within the scale; now and then empty, mostly with a long last dim."""
    rank = draw.choice(_RANKS)
    long, odd = draw.choice(_LONG), draw.integer(0, 15)
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    longest = max(2, round(math.pow(scale.extent, 2 / rank)))
    extents = [draw.integer(1, longest) for _ in range(_SAMPLED_RANK - 1)]
    shape = (min(batch, scale.batch), *extents[: rank - 1])
    budget = max(64, scale.multiplications // 16)
    if long == "last" and rank > 1:
        room = budget // max(1, math.prod(shape[:-1]))
        shape = (*shape[:-1], max(shape[-1], min(64 * shape[-1], room) - odd))
    while math.prod(shape) > budget:
        largest = shape.index(max(shape))
        shape = (*shape[:largest], shape[largest] // 2, *shape[largest + 1 :])
    return shape


def drawn_broadcast(draw: Draw, shape: Shape) -> Shape:
    """The shape with some dims, often none, of extent 1."""
    some = draw.choice((False, False, True))
    ones = [draw.choice((False, True)) for _ in range(_SAMPLED_RANK)]
    return tuple(1 if some and one else n for n, one in zip(shape, ones, strict=False))


_SIZES = (1, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 2**16 - 1, 2**16, 2**16 + 1)


def boundary_shapes(*, unusual: bool) -> Iterator[tuple[str, Shape, Shape | None]]:
    """Name, shape and strides of tensors around the limits of implementations, the cheapest first.

    The ``unusual`` ones are many-dimensional; the element type makes no difference to them.
    """
    yield "empty", (0, 3), None
    yield "empty last dim", (3, 0), None
    if unusual:
        yield "eight dims", (2, 1, 2, 1, 2, 1, 2, 2), None
        yield "eight dims, transposed", (2,) * 8, (1, 2, 4, 8, 16, 32, 64, 128)
        yield "gaps everywhere", (2, 3, 5), (2 * 7 * 13, 2 * 13, 2)
    yield "one element repeated", (3, 5), (0, 0)
    yield "rows repeated", (3, 5), (0, 1)
    yield "columns repeated", (3, 5), (1, 0)
    for size in _SIZES:
        yield f"{size} elements", (size,), None
        if size < 2**16:
            yield f"3 rows of {size} with gaps", (3, size), (size + 3, 1)
    yield "batch above 65,535", (2**16 + 1, 2, 1), None
    yield "offsets beyond 32 bits", (2, 3), (2**31 + 5, 1)
    yield "more than 2^31 elements", (2**31 + 1,), None


def strides_for(shape: Shape, kind: Shape | None) -> Shape:
    """The strides that a boundary asks for, or those of a dense tensor."""
    return dense_strides(shape) if kind is None else kind
