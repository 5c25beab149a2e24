"""Kinds of attributes: how a value is read from a case line and written to one."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

Pair = tuple[int, int]


def shown(value: object) -> str:
    """``value`` in a message: its repr, cut at 80 characters, for whatever a caller may have passed."""
    try:
        text = repr(value)
    except Exception:  # an int of more digits than Python prints, or a foreign __repr__
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:79]}…"


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether ``value`` is a list, tuple or the like; text and bytes are single values."""
    return isinstance(value, Sequence) and not isinstance(
        value, (str, bytes, bytearray, memoryview)
    )


def is_word(value: object, options: tuple[str, ...]) -> bool:
    """Whether ``value`` is one of some words; an array, which may not be compared, is none."""
    return isinstance(value, str) and value in options


def as_integer(value: object) -> int:
    """``value`` as an int, of Python, NumPy or any library.

    TypeError for anything else, bool included; ValueError for an int of more than 64 bits.
    """
    return _integer_between(value, -(2**63), 2**63)


def as_word(value: object) -> int:
    """``value`` as an int of 64 bits without a sign, 0 … 2^64 − 1. TypeError and ValueError otherwise."""
    return _integer_between(value, 0, 2**64)


def _integer_between(value: object, low: int, end: int) -> int:
    if not _is_scalar(value):
        raise TypeError(f"{shown(value)} is not an integer")
    try:
        integer = operator.index(value)  # type: ignore[arg-type]
    except Exception as wrong:  # __index__ of a foreign type may raise anything
        raise TypeError(f"{shown(value)} is not an integer") from wrong
    if not low <= integer < end:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return integer


def as_real(value: object) -> float:
    """``value`` as a finite float; ValueError for text, bools, arrays, NaN, Inf and what overflows."""
    if not _is_scalar(value):
        raise ValueError(f"{shown(value)} is not a number")
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception as wrong:  # __float__ of a foreign type may raise anything
        raise ValueError(f"{shown(value)} is not a number") from wrong
    if not math.isfinite(number):
        raise ValueError(f"{shown(value)} is not finite")
    return number


def _is_scalar(value: object) -> bool:
    """Whether ``value`` may be a number: no text, no truth value, no array with dims."""
    truth_value = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    text = isinstance(value, (str, bytes, bytearray))
    return not (truth_value or text) and getattr(value, "ndim", 0) == 0


def per_dim(value: object, dims: int) -> tuple[int, ...]:
    """One integer for each spatial dim, from an int or a sequence; ValueError says what it is not."""
    entries = value if is_sequence(value) else (value,) * dims
    try:
        result = tuple(as_integer(item) for item in entries)
    except TypeError:
        raise ValueError(
            f"{shown(value)} is neither an integer nor a sequence of integers"
        ) from None
    if len(result) != dims:
        raise ValueError(f"{shown(value)} has {len(result)} entries for {dims} spatial dims")
    return result


def real_per_dim(value: object, dims: int) -> tuple[float, ...]:
    """One finite number for each spatial dim, from one or a sequence; ValueError says what it is not."""
    entries = value if is_sequence(value) else (value,) * dims
    if len(entries) != dims:
        raise ValueError(f"{shown(value)} has {len(entries)} entries for {dims} spatial dims")
    return tuple(as_real(entry) for entry in entries)


def padding_pairs(value: object, dims: int) -> tuple[Pair, ...]:
    """(pre, post) for each spatial dim, from an int, ints or pairs; ValueError says what it is not."""
    entries = value if is_sequence(value) else per_dim(value, dims)
    if len(entries) != dims:
        raise ValueError(f"{shown(value)} has {len(entries)} entries for {dims} spatial dims")
    return tuple(_pair(entry) for entry in entries)


def _pair(entry: object) -> Pair:
    if is_sequence(entry) and len(entry) != 2:
        raise ValueError(f"{shown(entry)} is no pair (pre, post)")
    pre, post = per_dim(entry, 2)
    return pre, post


@dataclass(frozen=True, slots=True)
class PerDim:
    """An integer for each spatial dim: ``2,1`` in a case line, ``2`` for the same in each."""

    describes: str = "int, or one int for each spatial dim"

    def parse(self, text: str) -> int | tuple[int, ...]:
        values = tuple(int(item) for item in text.split(","))
        return values if len(values) > 1 else values[0]

    def format(self, value: Any) -> str:
        return ",".join(map(str, value if is_sequence(value) else (value,)))


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros before and after each spatial dim: ``1,0:2`` (pre:post where they differ), ``same``, ``valid``.

    A single number, ``1``, holds for every dim.
    """

    describes: str = 'int, ints, (pre, post) pairs, "valid" or "same"'

    def parse(self, text: str) -> Any:
        if text in ("same", "valid"):
            return text
        if text.isdecimal():
            return int(text)
        pairs = []
        for item in text.split(","):
            pre, colon, post = item.partition(":")
            pairs.append((int(pre), int(post) if colon else int(pre)))
        return tuple(pairs)

    def format(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        pairs = [_pair(entry) for entry in (value if is_sequence(value) else (value,))]
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


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False: ``true`` and ``false`` in a case line."""

    describes: str = "bool"

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text == "true"

    def format(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Integers:
    """Any number of integers, such as axes or a shape: ``0,2``; ``()`` for none."""

    describes: str = "sequence of ints"

    def parse(self, text: str) -> tuple[int, ...]:
        return () if text == "()" else tuple(int(item) for item in text.split(","))

    def format(self, value: Any) -> str:
        entries = value if is_sequence(value) else (value,)
        return ",".join(map(str, entries)) or "()"


@dataclass(frozen=True, slots=True)
class RealPerDim:
    """A finite number for each spatial dim: ``2.0,0.5`` in a case line, ``2.0`` for the same in each."""

    describes: str = "float, or one float for each spatial dim"

    def parse(self, text: str) -> float | tuple[float, ...]:
        values = tuple(float(item) for item in text.split(","))
        return values if len(values) > 1 else values[0]

    def format(self, value: Any) -> str:
        return ",".join(repr(float(item)) for item in (value if is_sequence(value) else (value,)))


@dataclass(frozen=True, slots=True)
class Reals:
    """Any number of finite numbers: ``-1.0,0.5`` in a case line; ``()`` for none."""

    describes: str = "sequence of floats"

    def parse(self, text: str) -> tuple[float, ...]:
        return () if text == "()" else tuple(float(item) for item in text.split(","))

    def format(self, value: Any) -> str:
        return ",".join(repr(float(item)) for item in value) or "()"
