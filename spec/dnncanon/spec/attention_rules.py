"""The constraints of attention, each with its check and a generator of arguments that break it."""

import math
from collections.abc import Iterator

from dnncanon.spec.attributes import as_integer, as_real, is_sequence, shown
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.tensors import Shape

WIDE = ("stats", "sink")
"""Tensors of the type of the sums."""

ALIGNMENTS = ("top_left", "bottom_right")


def four_dims() -> Constraint:
    """q, k and v have heads."""
    dims = {"q": "[B, Hq, Sq, D]", "k": "[B, Hk, Skv, D]", "v": "[B, Hv, Skv, E]"}

    def check(a: Arguments) -> str | None:
        for name, wanted in dims.items():
            shape = a.tensors[name].shape
            if len(shape) != 4:
                return f"{name} has shape {shape}; pass {wanted}, with any strides"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in dims:
            shape = a.tensors[name].shape
            yield a.with_tensor(name, shape=(*shape, 1), strides=None)
            yield a.with_tensor(name, shape=shape[1:], strides=None)

    return Constraint("q, k and v have rank 4.", ShapeError, check, violate)


def sizes_agree() -> Constraint:
    """The extents that q, k and v share."""

    def check(a: Arguments) -> str | None:
        q, k, v = (a.tensors[name].shape for name in "qkv")
        if not q[0] == k[0] == v[0]:
            return f"q, k and v have batches of {q[0]}, {k[0]} and {v[0]}; pass as many of each"
        if k[3] != q[3]:
            return f"q has heads of {q[3]} elements and k of {k[3]}; pass heads of one size"
        if k[2] != v[2]:
            return f"k has {k[2]} columns and v {v[2]}; pass as many keys as values"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name, dim in (("q", 0), ("k", 0), ("v", 0), ("q", 3), ("k", 3), ("k", 2), ("v", 2)):
            shape = list(a.tensors[name].shape)
            shape[dim] += 1
            yield a.with_tensor(name, shape=tuple(shape), strides=None)

    text = "q and k have heads of one size; k and v have as many columns; all have one batch."
    return Constraint(text, ShapeError, check, violate)


def heads_divide() -> Constraint:
    """Each head of keys and values serves as many query heads."""

    def check(a: Arguments) -> str | None:
        heads = a.tensors["q"].shape[1]
        for name in "kv":
            others = a.tensors[name].shape[1]
            if others == heads or (others > 0 and heads % others == 0):
                continue
            return (
                f"q has {heads} heads and {name} {others}; "
                f"pass a divisor of {heads}, so that each head of {name} serves as many of q"
            )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in "kv":
            shape = a.tensors[name].shape
            for heads in (a.tensors["q"].shape[1] + 1, 0):
                yield a.with_tensor(name, shape=(shape[0], heads, *shape[2:]), strides=None)

    return Constraint("Hk and Hv divide Hq.", ShapeError, check, violate)


def bias_broadcasts() -> Constraint:
    """The bias has the dims of the scores, or 1."""

    def check(a: Arguments) -> str | None:
        if "bias" not in a.tensors:
            return None
        shape, wanted = a.tensors["bias"].shape, scores_shape(a)
        if len(shape) == 4 and all(n in (1, m) for n, m in zip(shape, wanted, strict=True)):
            return None
        return f"bias has shape {shape}; pass [B, Hq, Sq, Skv] = {wanted}, any of them 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "bias" in a.tensors:
            shape = a.tensors["bias"].shape
            yield a.with_tensor("bias", shape=shape[1:], strides=None)
            for dim in range(4):
                larger = [n + 2 if d == dim else n for d, n in enumerate(shape)]
                yield a.with_tensor("bias", shape=tuple(larger), strides=None)

    text = "bias has the shape [B, Hq, Sq, Skv], any of them 1."
    return Constraint(text, ShapeError, check, violate)


def scores_shape(a: Arguments) -> Shape:
    q, k = a.tensors["q"].shape, a.tensors["k"].shape
    return (*q[:3], k[2])


def scale_is_a_number() -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes["scale"]
        remedy = "pass a finite number other than 0, such as 1/sqrt(head size)"
        try:
            legal = as_real(value) != 0.0
        except ValueError as wrong:
            return f"scale={wrong}; {remedy}"
        return None if legal else f"scale={shown(value)}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0.0, math.nan, math.inf, "1"):
            yield a.with_attributes(scale=value)

    text = "scale is a finite number other than 0."
    return Constraint(text, AttributeValueError, check, violate)


def bound(name: str, least: int) -> Constraint:
    """−1 for none, or so many columns."""

    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        try:
            legal = as_integer(value) == -1 or as_integer(value) >= least
        except (TypeError, ValueError):
            legal = False
        return (
            None if legal else f"{name}={shown(value)}; pass an integer >= {least}, or -1 for none"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (least - 1 if least else -2, -5, 0.5, "1"):
            yield a.with_attributes(**{name: value})

    text = f"{name} is −1 for none, or an integer >= {least}."
    return Constraint(text, AttributeValueError, check, violate)


def lengths(name: str, tensor: str) -> Constraint:
    """() for full sequences, or an integer for each."""

    def check(a: Arguments) -> str | None:
        value, shape = a.attributes[name], a.tensors[tensor].shape
        batch, longest = shape[0], shape[2]
        remedy = f"pass {batch} integers from 0 to {longest}, or () where all are {longest}"
        if not is_sequence(value) or len(value) not in (0, batch):
            return f"{name}={shown(value)} for a batch of {batch}; {remedy}"
        try:
            numbers = [as_integer(number) for number in value]
        except (TypeError, ValueError):
            return f"{name}={shown(value)}; {remedy}"
        legal = all(0 <= number <= longest for number in numbers)
        return None if legal else f"{name}={shown(value)}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        batch, longest = a.tensors[tensor].shape[0], a.tensors[tensor].shape[2]
        for number in (longest + 1, -1, 0.5):
            yield a.with_attributes(**{name: (number,) * max(1, batch)})
        yield a.with_attributes(**{name: (0,) * (batch + 1)})
        yield a.with_attributes(**{name: longest})

    of = "Sq" if tensor == "q" else "Skv"
    text = f"{name} is (), or has an integer from 0 to {of} for each sequence."
    return Constraint(text, AttributeValueError, check, violate)
