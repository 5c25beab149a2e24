"""Kinds of attributes: how a value is read from a case line and written to one."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[int, int]


def as_integer(value: object) -> int:
    """``value`` as an int, of Python, NumPy or any library; TypeError for anything else, bool included."""
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return operator.index(value)  # type: ignore[arg-type]


def per_dim(value: object, dims: int) -> tuple[int, ...]:
    """One integer for each spatial dim, from an int or a sequence; ValueError says what it is not."""
    try:
        if isinstance(value, Sequence) and not isinstance(value, str):
            result = tuple(as_integer(item) for item in value)
        else:
            result = (as_integer(value),) * dims
    except TypeError:
        raise ValueError(f"{value!r} is neither an integer nor a sequence of integers") from None
    if len(result) != dims:
        raise ValueError(f"{value!r} has {len(result)} entries for {dims} spatial dims")
    return result


def padding_pairs(value: object, dims: int) -> tuple[Pair, ...]:
    """(pre, post) for each spatial dim, from an int, ints or pairs; ValueError says what it is not."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        value = per_dim(value, dims)
    if len(value) != dims:
        raise ValueError(f"{value!r} has {len(value)} entries for {dims} spatial dims")
    pairs = []
    for entry in value:
        pre, post = per_dim(entry, 2)
        pairs.append((pre, post))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class PerDim:
    """An integer for each spatial dim: ``2,1`` in a case line."""

    describes: str = "int, or one int for each spatial dim"

    def parse(self, text: str) -> tuple[int, ...]:
        return tuple(int(item) for item in text.split(","))

    def format(self, value: Any) -> str:
        return ",".join(map(str, value if isinstance(value, Sequence) else (value,)))


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros before and after each spatial dim: ``1,0:2`` (pre:post where they differ), ``same``, ``valid``."""

    describes: str = 'int, ints, (pre, post) pairs, "valid" or "same"'

    def parse(self, text: str) -> Any:
        if text in ("same", "valid"):
            return text
        pairs = []
        for item in text.split(","):
            pre, colon, post = item.partition(":")
            pairs.append((int(pre), int(post) if colon else int(pre)))
        return tuple(pairs)

    def format(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        entries = value if isinstance(value, Sequence) else (value,)
        pairs = [per_dim(entry, 2) for entry in entries]
        return ",".join(str(pre) if pre == post else f"{pre}:{post}" for pre, post in pairs)


@dataclass(frozen=True, slots=True)
class Integer:
    """One integer."""

    describes: str = "int"

    def parse(self, text: str) -> int:
        return int(text)

    def format(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Real:
    """One finite number, exact in a case line: ``0.5``."""

    describes: str = "float"

    def parse(self, text: str) -> float:
        return float(text)

    def format(self, value: Any) -> str:
        return repr(float(value))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    options: tuple[str, ...]

    @property
    def describes(self) -> str:
        return " or ".join(f'"{option}"' for option in self.options)

    def parse(self, text: str) -> str:
        return text

    def format(self, value: Any) -> str:
        return str(value)
