"""How cases are drawn: from the domains that the specification declares, and so that they shrink.

Every choice is an integer whose lowest value is the simplest. A run draws them from its own stream,
which depends on the seed alone: the same seed means the same cases with every version of every
library, and neighbouring cases have nothing in common. (Hypothesis, made to find one failure, spends
five of six examples on variants of the one before; a mutant that mixed up the channels of groups
survived that.) A failing case is then handed to Hypothesis, choice by choice, which reduces it: to the
smallest extents, then to stride, dilation and padding 1, 1 and 0, then to contiguous tensors, normal
data and seed 0. The strategy :func:`cases` serves property tests.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import HypothesisException

from dnncanon.conformance.case import Case, Strides, canonical_strides
from dnncanon.conformance.data import DRAWN, random_bits
from dnncanon.spec import (
    Arguments,
    Draw,
    Primitive,
    Scale,
    TensorType,
    channels_last_strides,
)

_MAX_SEED = 2**32 - 1
_INPUT_LAYOUTS = ("dense", "dense", "channels_last", "permuted", "gaps", "broadcast")
_OUTPUT_LAYOUTS = ("dense", "dense", "dense", "channels_last", "permuted", "gaps")
_MAX_CHOICES = 256


class StreamDraw:
    """Choices from a counter-based stream: evenly spread, with the ends of each range favoured."""

    def __init__(self, seed: int, stream: str) -> None:
        self._bits: Iterator[int] = iter(random_bits(seed, stream, _MAX_CHOICES).tolist())
        self.choices: list[int] = []

    def integer(self, low: int, high: int) -> int:
        if low == high:
            return low
        bits = next(self._bits)
        value = low + (bits >> 8) % (high - low + 1)
        if high - low > 3 and not bits & 7:  # one in eight: an end of the range
            value = high if bits & 8 else low
        self.choices.append(value)
        return value

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[self._index(len(options))]

    def _index(self, count: int) -> int:
        """Options are not sizes: none of them is an end."""
        if count == 1:
            return 0
        index = (next(self._bits) >> 8) % count
        self.choices.append(index)
        return index


class HypothesisDraw:
    """Choices that Hypothesis makes, and can replay and shrink: those of StreamDraw, one for one."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return low if low == high else self._draw(st.integers(low, high))

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[self.integer(0, len(options) - 1)]


def drawn_case(
    primitive: Primitive[Any], dtype: str, scale: Scale, seed: int, index: int
) -> tuple[Case, tuple[int, ...]]:
    """The ``index``-th case of a seed, and the choices that make it."""
    draw = StreamDraw(seed, f"{primitive.name} {dtype} {index}")
    return build_case(draw, primitive, dtype, scale), tuple(draw.choices)


@st.composite
def cases(draw: st.DrawFn, primitive: Primitive[Any], dtype: str, scale: Scale) -> Case:
    """Legal calls of ``primitive`` for ``dtype``, of a size that ``scale`` allows."""
    return build_case(HypothesisDraw(draw), primitive, dtype, scale)


def shrunk(
    primitive: Primitive[Any],
    dtype: str,
    scale: Scale,
    choices: tuple[int, ...],
    fails: Callable[[Case], bool],
) -> Case | None:
    """The simplest case for which ``fails`` holds that Hypothesis reaches from these choices."""
    key = zlib.crc32(repr(choices).encode()).to_bytes(4, "big")
    database = InMemoryExampleDatabase()
    # With one choice too many the example counts as new: Hypothesis does not shrink what it takes for
    # the result of an earlier shrink.
    database.save(key, choices_to_bytes((*choices, 0)))
    options = settings(
        database=database,
        phases=(Phase.reuse, Phase.shrink),
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.suppress(HypothesisException):
        return find(cases(primitive, dtype, scale), fails, settings=options, database_key=key)
    return None


def build_case(choose: Draw, primitive: Primitive[Any], dtype: str, scale: Scale) -> Case:
    """A case from a source of choices: arguments, then layouts, then data."""
    arguments = primitive.domain(choose, scale, dtype)
    repeats = {spec.name: spec.repeats for spec in primitive.inputs}
    tensors = {
        name: _with_layout(choose, tensor, _INPUT_LAYOUTS if repeats[name] else _OUTPUT_LAYOUTS)
        for name, tensor in arguments.tensors.items()
    }
    case = Case(primitive, Arguments(tensors, arguments.attributes))
    layouts: dict[str, Strides] = {}
    for name, output in case.call.named_outputs.items():
        strides = _with_layout(choose, output, _OUTPUT_LAYOUTS).strides
        if strides is not None:
            layouts[name] = strides
    fill = choose.choice(DRAWN)
    repeated = choose.choice(("", "", "", "", "after", "after", "runs"))
    seed = choose.integer(0, _MAX_SEED)
    after, runs = seed + 1 if repeated == "after" else None, 2 if repeated == "runs" else 1
    return replace(case, layouts=layouts, fill=fill, seed=seed, after=after, runs=runs)


def _with_layout(choose: Draw, tensor: TensorType, layouts: tuple[str, ...]) -> TensorType:
    """The tensor in a drawn memory layout."""
    kind = choose.choice(layouts)
    if kind == "dense" or tensor.size == 0 or tensor.rank == 0:
        return tensor
    if kind == "channels_last" and tensor.rank > 2:
        strides = channels_last_strides(tensor.shape)
    else:
        strides = _drawn_strides(choose, tensor, kind)
    return replace(tensor, strides=canonical_strides(tensor.shape, strides))


def _drawn_strides(choose: Draw, tensor: TensorType, kind: str) -> Strides:
    """Strides of nested dims: in any order, with gaps between them, or with some of them 0."""
    order = list(range(tensor.rank))
    if kind != "gaps":
        order = _permutation(choose, tensor.rank)
    strides, step = [0] * tensor.rank, 1
    for dim in reversed(order):
        if kind == "gaps":
            step += choose.integer(0, 3)
        strides[dim] = step
        step *= tensor.shape[dim]
    if kind == "broadcast":
        repeated = choose.integer(0, tensor.rank - 1)
        strides[repeated] = 0
    return tuple(strides)


def _permutation(choose: Draw, rank: int) -> list[int]:
    rest = list(range(rank))
    return [rest.pop(choose.integer(0, len(rest) - 1)) for _ in range(rank)]
