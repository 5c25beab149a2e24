"""Rules that several families share, each with its check and a generator of arguments that break it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from dnncanon.spec.attributes import (
    Choice,
    Padding,
    PerDim,
    as_integer,
    as_real,
    is_word,
    padding_pairs,
    per_dim,
    shown,
)
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint, DTypeRow

Dims = Callable[[Arguments], int]


def spatial_dims(a: Arguments) -> int:
    """How many spatial dims the first tensor has, behind batch and channels; 0 if it has none."""
    return max(0, next((t.rank for t in a.tensors.values()), 0) - 2)


def spatial_ranks(*names: str) -> Constraint:
    """One rank with 1 to 3 spatial dims for all named tensors."""
    text = f"{', '.join(names)} have one rank, 3 to 5: batch, channels and 1 to 3 spatial dims."

    def check(a: Arguments) -> str | None:
        ranks = {name: a.tensors[name].rank for name in names if name in a.tensors}
        if len(set(ranks.values())) == 1 and 3 <= next(iter(ranks.values())) <= 5:
            return None
        shown = ", ".join(f"{name} has rank {rank}" for name, rank in ranks.items())
        return (
            f"{shown}; pass tensors of one rank, 3, 4 or 5 (batch, channels, 1 to 3 spatial dims)"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in names:
            if name in a.tensors:
                yield a.with_tensor(name, shape=(*a.tensors[name].shape, 1), strides=None)
                yield a.with_tensor(name, shape=a.tensors[name].shape[:2], strides=None)

    return Constraint(text, ShapeError, check, violate)


def one_dtype(rows: tuple[DTypeRow, ...]) -> Constraint:
    """One supported dtype for all tensors."""
    supported = [row.dtype for row in rows]
    text = f"All tensors have one dtype: {', '.join(supported)}."

    def check(a: Arguments) -> str | None:
        dtypes = {name: tensor.dtype for name, tensor in a.tensors.items()}
        if len(set(dtypes.values())) == 1 and next(iter(dtypes.values())) in supported:
            return None
        shown = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        return f"{shown}; convert all tensors to one of {', '.join(supported)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in a.tensors:
            other = "float32" if a.tensors[name].dtype != "float32" else "float64"
            yield a.with_tensor(name, dtype=other)
        foreign = next(
            dtype for dtype in ("int32", "float8_e8m0fnu", "complex64") if dtype not in supported
        )
        others = {name: replace(tensor, dtype=foreign) for name, tensor in a.tensors.items()}
        yield Arguments(others, a.attributes)

    return Constraint(text, DTypeError, check, violate)


def positive_per_dim(name: str, dims_of: Dims = spatial_dims) -> Constraint:
    """An attribute >= 1 for each spatial dim, of which there are ``dims_of(arguments)``."""

    def check(a: Arguments) -> str | None:
        try:
            values = per_dim(a.attributes[name], dims_of(a))
        except ValueError as wrong:
            return f"{name}={wrong}; pass {PerDim().describes}"
        if min(values) >= 1:
            return None
        return f"{name}={shown(a.attributes[name])} has an entry below 1; pass integers >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = dims_of(a)
        for value in (0, -1, (1,) * (dims + 1), (1.5,) * dims, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} >= 1, for each spatial dim.", AttributeValueError, check, violate)


def legal_padding(dims_of: Dims = spatial_dims) -> Constraint:
    """Padding in one of its spellings, for ``dims_of(arguments)`` spatial dims."""
    text = 'padding is "valid", "same", or an int, ints or (pre, post) pairs, >= 0, for each spatial dim.'

    def check(a: Arguments) -> str | None:
        value = a.attributes["padding"]
        if is_word(value, ("valid", "same")):
            return None
        try:
            pairs = padding_pairs(value, dims_of(a))
        except ValueError as wrong:
            return f"padding={wrong}; pass {Padding().describes}"
        if min(min(pair) for pair in pairs) >= 0:
            return None
        return f"padding={shown(value)} is negative; pass integers >= 0 and crop the input instead"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = dims_of(a)
        for value in (-1, ((0, -1),) * dims, (0,) * (dims + 1), "full", 0.5):
            yield a.with_attributes(padding=value)

    return Constraint(text, AttributeValueError, check, violate)


def one_of(name: str, options: tuple[str, ...]) -> Constraint:
    """An attribute among some words."""
    kind = Choice(options)

    def check(a: Arguments) -> str | None:
        if is_word(a.attributes[name], options):
            return None
        return f"{name}={shown(a.attributes[name])}; pass {kind.describes}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(**{name: "no_such_" + name})

    return Constraint(f"{name} is {kind.describes}.", AttributeValueError, check, violate)


def legal_groups() -> Constraint:
    """A number of groups."""

    def check(a: Arguments) -> str | None:
        value = a.attributes["groups"]
        try:
            if as_integer(value) >= 1:
                return None
        except (TypeError, ValueError):
            pass
        return f"groups={shown(value)}; pass an integer >= 1 that divides C and K"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0, -1, 1.5):
            yield a.with_attributes(groups=value)

    return Constraint("groups is an integer >= 1.", AttributeValueError, check, violate)


def finite(name: str) -> Constraint:
    """A finite scalar attribute."""

    def check(a: Arguments) -> str | None:
        try:
            as_real(a.attributes[name])
        except ValueError as wrong:
            return f"{name}={wrong}; pass a finite number"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (math.nan, math.inf, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is a finite number.", AttributeValueError, check, violate)
