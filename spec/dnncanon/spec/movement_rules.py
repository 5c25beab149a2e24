"""The numbered rules of data movement, each with its check and a generator of arguments that break it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from dnncanon.spec.attributes import as_integer, is_sequence, shown
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.movement_problem import (
    MOST_TENSORS,
    bandwidths,
    block_of,
    cropping,
    reshaping,
    slicing,
    splitting,
)
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.tensors import Shape


def one_per_dim(name: str, rank_of: Callable[[Arguments], int], least: int) -> Constraint:
    """A sequence of integers, one for each dim; None where that is the default."""
    text = f"{name} is a sequence of integers >= {least}, one for each dim"

    def check(a: Arguments) -> str | None:
        value, rank = a.attributes[name], rank_of(a)
        if value is None and name in _MAY_BE_NONE:
            return None
        if _are_integers(value, rank, least):
            return None
        return f"{name}={shown(value)}; pass {rank} integers >= {least}, one for each dim"

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = rank_of(a)
        for value in ((least,) * (rank + 1), (least - 1,) * rank, (1.5,) * rank, 3):
            yield a.with_attributes(**{name: value})

    also = ", or None." if name in _MAY_BE_NONE else "."
    return Constraint(text + also, AttributeValueError, check, violate)


_MAY_BE_NONE = ("start", "limit", "stride")


def _are_integers(value: Any, count: int | None, least: int) -> bool:
    """Whether it is a sequence of so many integers, or of any number of them."""
    if not is_sequence(value):
        return False
    try:
        entries = [as_integer(entry) for entry in value]
    except (TypeError, ValueError):
        return False
    return count in (None, len(entries)) and min(entries, default=least) >= least


def rank_of(name: str) -> Callable[[Arguments], int]:
    return lambda a: a.tensors[name].rank


def at_least(name: str, least: int) -> Constraint:
    """An integer with a lower limit."""

    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        try:
            if as_integer(value) >= least:
                return None
        except (TypeError, ValueError):
            pass
        return f"{name}={shown(value)}; pass an integer >= {least}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (least - 1, 1.5):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is an integer >= {least}.", AttributeValueError, check, violate)


def ranks(least: int, most: int, dims: str) -> Constraint:
    """A rank of x within limits."""

    def check(a: Arguments) -> str | None:
        rank = a.tensors["x"].rank
        if least <= rank <= most:
            return None
        return f"x has rank {rank}; pass a tensor of {least} to {most} dims, {dims}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["x"].shape
        yield a.with_tensor("x", shape=shape[: least - 1], strides=None)
        yield a.with_tensor("x", shape=(*shape, *(1,) * most)[: most + 1], strides=None)

    return Constraint(f"x has {least} to {most} dims: {dims}.", ShapeError, check, violate)


def width_divides() -> Constraint:
    def check(a: Arguments) -> str | None:
        channels, width = a.tensors["x"].shape[1], as_integer(a.attributes["width"])
        if channels % width == 0:
            return None
        return f"x has {channels} channels, not a multiple of width={width}; pad them, or pass a divisor"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *rest = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n, c + 1, *rest), strides=None)

    return Constraint("width divides the channels of x.", ShapeError, check, violate)


def room_to_crop() -> Constraint:
    def check(a: Arguments) -> str | None:
        shape, p = a.tensors["x"].shape, cropping(a)
        if min(p.shape) >= 0:
            return None
        return f"x has shape {shape}, which pre={p.pre} and post={p.post} exceed; pass smaller ones"

    def violate(a: Arguments) -> Iterator[Arguments]:
        first, *rest = a.tensors["x"].shape
        yield a.with_attributes(pre=(first + 1, *(0,) * len(rest)))

    return Constraint("pre + post is at most the extent, in each dim.", ShapeError, check, violate)


def fits_memory(
    shape: Callable[[Arguments], Shape], remedy: str, **beyond: Callable[[int], Any]
) -> Constraint:
    """A result of less than 2^63 elements.

    ``beyond`` are attributes, of the rank of the first tensor, that make it larger.
    """

    def check(a: Arguments) -> str | None:
        found = shape(a)
        if math.prod(found) < 2**63:
            return None
        whole = next(iter(a.tensors.values())).shape
        given = ", ".join(f"{name}={shown(a.attributes[name])}" for name in beyond)
        return f"{given} would make 2^63 elements or more of a tensor of shape {whole}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = next(iter(a.tensors.values())).rank
        yield a.with_attributes(**{name: value(rank) for name, value in beyond.items()})

    text = "The result has less than 2^63 elements."
    return Constraint(text, AttributeValueError, check, violate)


def block_divides_space() -> Constraint:
    def check(a: Arguments) -> str | None:
        space, block = a.tensors["x"].shape[2:], block_of(a)
        if all(i % b == 0 for i, b in zip(space, block, strict=True)):
            return None
        return (
            f"x has spatial extents {space}, no multiples of block={block}; pad x, or pass divisors"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        *front, last = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(*front, last + 1), strides=None)

    return Constraint("block divides the spatial extents of x.", ShapeError, check, violate)


def block_divides_channels() -> Constraint:
    def check(a: Arguments) -> str | None:
        channels, block = a.tensors["x"].shape[1], block_of(a)
        if channels % math.prod(block) == 0:
            return None
        return (
            f"x has {channels} channels, no multiple of the {math.prod(block)} places of "
            f"block={block}; pass a smaller block"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *space = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n, c + 1, *space), strides=None)

    return Constraint("The places of a block divide the channels.", ShapeError, check, violate)


XS = tuple(f"x{k}" for k in range(MOST_TENSORS))


def no_gap() -> Constraint:
    def check(a: Arguments) -> str | None:
        given = tuple(a.tensors)
        if given == XS[: len(given)]:
            return None
        shapes = ", ".join(f"{name} of shape {t.shape}" for name, t in a.tensors.items())
        return f"{shapes} are given; pass the tensors one behind the other, without None"

    def violate(a: Arguments) -> Iterator[Arguments]:
        tensors = {"x0": a.tensors["x0"], "x2": a.tensors["x0"]}
        yield Arguments(tensors, a.attributes)

    text = f"The tensors are given one behind the other, {MOST_TENSORS} of them at most."
    return Constraint(text, AttributeValueError, check, violate)


def alike_but_for_the_axis() -> Constraint:
    def check(a: Arguments) -> str | None:
        shapes = [tensor.shape for tensor in a.tensors.values()]
        axis = as_integer(a.attributes["axis"]) % len(shapes[0])
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1:
            return None
        return (
            f"shapes {', '.join(map(str, shapes))} differ in other dims than axis={axis}; "
            "pass tensors that are alike there"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        *_, name = a.tensors
        rank = a.tensors[name].rank
        axis = as_integer(a.attributes["axis"]) % rank
        if name != "x0" and rank > 1:
            shape = tuple(n + (dim != axis) for dim, n in enumerate(a.tensors[name].shape))
            yield a.with_tensor(name, shape=shape, strides=None)

    return Constraint("The tensors are alike in all dims but the axis.", ShapeError, check, violate)


def some_sizes() -> Constraint:
    text = f"sizes is a sequence of 1 to {MOST_TENSORS} integers >= 0"

    def check(a: Arguments) -> str | None:
        value = a.attributes["sizes"]
        if _are_integers(value, None, 0) and 1 <= len(value) <= MOST_TENSORS:
            return None
        return f"sizes={shown(value)}; pass 1 to {MOST_TENSORS} integers >= 0"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in ((), (0,) * (MOST_TENSORS + 1), (-1,), (1.5,), 3):
            yield a.with_attributes(sizes=value)

    return Constraint(f"{text}.", AttributeValueError, check, violate)


def sizes_add_up() -> Constraint:
    def check(a: Arguments) -> str | None:
        p = splitting(a)
        extent = p.shape[p.axis]
        if sum(p.sizes) == extent:
            return None
        return (
            f"sizes={p.sizes} add up to {sum(p.sizes)}, and dim {p.axis} of dy has {extent} elements; "
            f"pass sizes that make {extent}"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        first, *rest = splitting(a).sizes
        yield a.with_attributes(sizes=(first + 1, *rest))

    return Constraint("sizes add up to the extent of the axis.", ShapeError, check, violate)


def within_the_tensor() -> Constraint:
    def check(a: Arguments) -> str | None:
        p = slicing(a)
        dims = zip(p.start, p.limit, p.shape, strict=True)
        if all(start <= limit <= extent for start, limit, extent in dims):
            return None
        return (
            f"start={p.start} and limit={p.limit} of a tensor of shape {p.shape}; "
            "pass start <= limit <= extent in each dim"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        p = slicing(a)
        beyond = tuple(n + 1 for n in p.shape)
        yield a.with_attributes(limit=beyond)
        yield a.with_attributes(start=beyond, limit=p.shape)

    return Constraint("start <= limit <= extent, in each dim.", AttributeValueError, check, violate)


def dy_is_the_slice() -> Constraint:
    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["dy"].shape, slicing(a).sliced_shape
        if got == expected:
            return None
        return f"dy has shape {got}, but the slice has {expected}; pass dy of that shape"

    def violate(a: Arguments) -> Iterator[Arguments]:
        first, *rest = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(first + 1, *rest), strides=None)

    return Constraint("dy has the shape of the slice.", ShapeError, check, violate)


def is_permutation() -> Constraint:
    def check(a: Arguments) -> str | None:
        value, rank = a.attributes["permutation"], a.tensors["x"].rank
        if _are_integers(value, rank, 0) and sorted(map(as_integer, value)) == list(range(rank)):
            return None
        return f"permutation={shown(value)}; pass the dims 0 to {rank - 1} in some order"

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = a.tensors["x"].rank
        for value in (
            tuple(range(1, rank + 1)),
            (0,) * rank,
            (0.5,) * rank,
            tuple(range(rank + 1)),
        ):
            yield a.with_attributes(permutation=value)

    text = "permutation holds each dim of x once, from 0 to rank − 1."
    return Constraint(text, AttributeValueError, check, violate)


def as_many_elements() -> Constraint:
    def check(a: Arguments) -> str | None:
        p = reshaping(a)
        have, want = math.prod(p.shape), math.prod(p.to)
        if have == want:
            return None
        return (
            f"x has {have} elements, and shape={p.to} has {want}; pass a shape of {have} elements"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        first, *rest = reshaping(a).to
        if math.prod(rest):
            yield a.with_attributes(shape=(first + 1, *rest))

    return Constraint("shape has as many elements as x.", ShapeError, check, violate)


def band_has_its_width() -> Constraint:
    def check(a: Arguments) -> str | None:
        got, (lower, upper) = a.tensors["x"].shape[-1], bandwidths(a)
        if got == lower + upper + 1:
            return None
        return (
            f"the last dim of x has {got} elements, but lower={lower} and upper={upper} make "
            f"{lower + upper + 1} diagonals; pass x with these"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        *front, last = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(*front, last + 1), strides=None)

    return Constraint(
        "The last dim of x has lower + upper + 1 elements.", ShapeError, check, violate
    )
