"""The constraints of recurrent networks, each with its check and a generator of arguments that break it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dnncanon.spec.attributes import as_integer, as_real, is_sequence, shown
from dnncanon.spec.constraints import one_of
from dnncanon.spec.dtypes import DTYPES
from dnncanon.spec.errors import AttributeValueError, MissingTensorError, ShapeError
from dnncanon.spec.norm_rules import integer_in, real_in, shaped, truth_value
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_weights import BIASES
from dnncanon.spec.stream import CONSTRAINTS as LEGAL_STREAM

ProblemOf = Callable[[Arguments], RnnProblem]

WIDE = ("gates", "cells")
"""Tensors that are kept as they are computed: in the type of the sums."""

INPUT_MODES = ("linear", "skip")
CLIP_NAN = ("propagate", "not_propagate")
RESETS = ("after", "before")


def data_of(a: Arguments) -> str:
    """The tensor that has the steps: x, or dy where there is no x."""
    return "x" if "x" in a.tensors else "dy"


# --- Types and options ----------------------------------------------------------------------------


def options(cell: str, *, forward: bool, data_only: bool) -> tuple[Constraint, ...]:
    """Those of the attributes that depend on nothing but their own values, and on hidden_size."""
    own = {
        "lstm": (_projection(), _clip(), one_of("clip_nan", CLIP_NAN)),
        "gru": (one_of("reset", RESETS),),
    }
    return (
        integer_in("hidden_size", 1),
        integer_in("num_layers", 1),
        *((integer_in("input_size", 0),) if data_only else ()),
        truth_value("bidirectional"),
        one_of("bias_mode", tuple(BIASES)),
        one_of("input_mode", INPUT_MODES),
        *own.get(cell, ()),
        real_in("dropout", 0.0, 1.0),
        *LEGAL_STREAM,
        *((_fill(), truth_value("training")) if forward else ()),
    )


def _projection() -> Constraint:
    def check(a: Arguments) -> str | None:
        value, hidden = a.attributes["projection_size"], as_integer(a.attributes["hidden_size"])
        try:
            if 0 <= as_integer(value) <= hidden:
                return None
        except (TypeError, ValueError):
            pass
        return (
            f"projection_size={shown(value)} with hidden_size={hidden}; "
            f"pass 0 for no projection, or an integer from 1 to {hidden}"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (-1, as_integer(a.attributes["hidden_size"]) + 1, 0.5):
            yield a.with_attributes(projection_size=value)

    text = "projection_size is 0, or an integer from 1 to hidden_size."
    return Constraint(text, AttributeValueError, check, violate)


def _clip() -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes["cell_clip"]
        remedy = "pass (low, high) with low <= high, or () for no clipping"
        if not is_sequence(value) or len(value) not in (0, 2):
            return f"cell_clip={shown(value)}; {remedy}"
        try:
            bounds = [as_real(bound) for bound in value]
        except ValueError as wrong:
            return f"cell_clip={shown(value)}: {wrong}; {remedy}"
        return None if bounds == sorted(bounds) else f"cell_clip={shown(value)}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in ((1.0, -1.0), (0.0, math.nan), (-math.inf, 0.0), (1.0,), 2.0):
            yield a.with_attributes(cell_clip=value)

    text = "cell_clip is (), or two finite numbers, low <= high."
    return Constraint(text, AttributeValueError, check, violate)


def _fill() -> Constraint:
    def check(a: Arguments) -> str | None:
        value, largest = a.attributes["padding_fill"], DTYPES[a.tensors["x"].dtype].max
        remedy = f"pass a finite number of the dtype, {largest:g} at most"
        try:
            legal = abs(as_real(value)) <= largest
        except ValueError as wrong:
            return f"padding_fill={wrong}; {remedy}"
        return None if legal else f"padding_fill={shown(value)}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (math.nan, math.inf, "0"):
            yield a.with_attributes(padding_fill=value)

    text = "padding_fill is a finite number of the dtype."
    return Constraint(text, AttributeValueError, check, violate)


# --- Steps and sequences --------------------------------------------------------------------------


def rank_of_data() -> Constraint:
    """Padded or packed."""

    def check(a: Arguments) -> str | None:
        name = data_of(a)
        rank = a.tensors[name].rank
        if rank in (2, 3):
            return None
        return f"{name} has rank {rank}; pass padded steps [S, B, …], or packed ones [N, …]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        name = data_of(a)
        shape = a.tensors[name].shape
        yield a.with_tensor(name, shape=(*shape, *(1,) * (4 - len(shape))), strides=None)
        yield a.with_tensor(name, shape=shape[:1], strides=None)

    return Constraint("x and dy have rank 3, padded, or 2, packed.", ShapeError, check, violate)


def legal_lengths() -> Constraint:
    """Of padded sequences."""

    def check(a: Arguments) -> str | None:
        name = data_of(a)
        shape, lengths = a.tensors[name].shape, a.attributes["lengths"]
        integers = _integers(lengths)
        if integers is None:
            return f"lengths={shown(lengths)}; pass a sequence of integers, or () for all steps"
        if not integers:
            return None
        if len(shape) == 2:
            return (
                f"lengths={shown(lengths)} with packed {name} of shape {shape}; "
                "pass batch_sizes instead"
            )
        steps, batch = shape[:2]
        if len(integers) != batch:
            return f"lengths has {len(integers)} entries; pass one for each of {batch} sequences"
        wrong = next((n for n in integers if not 0 <= n <= steps), None)
        if wrong is None:
            return None
        return f"lengths has {wrong}; pass integers from 0 to the {steps} steps of {name}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors[data_of(a)].shape
        steps, batch = (shape[0], 1) if len(shape) == 2 else shape[:2]
        for wrong in (-1, steps + 1):
            yield a.with_attributes(lengths=(wrong,) * batch)
        yield a.with_attributes(lengths=(steps,) * (batch + 1))
        yield a.with_attributes(lengths=(0.5,) * max(1, batch))
        yield a.with_attributes(lengths="3")

    text = "lengths is (), or has an integer from 0 to S for each sequence of a padded batch."
    return Constraint(text, AttributeValueError, check, violate)


def legal_batch_sizes() -> Constraint:
    """Of packed sequences."""

    def check(a: Arguments) -> str | None:
        name = data_of(a)
        shape, sizes = a.tensors[name].shape, a.attributes["batch_sizes"]
        integers = _integers(sizes)
        if integers is None:
            return f"batch_sizes={shown(sizes)}; pass a sequence of integers"
        if len(shape) == 3:
            if not integers:
                return None
            return f"batch_sizes={shown(sizes)} with padded {name} of shape {shape}; pass lengths"
        if not integers:
            return (
                f"batch_sizes={shown(sizes)} with packed {name} of shape {shape}; "
                "pass how many sequences have each step"
            )
        if integers[-1] < 1 or list(integers) != sorted(integers, reverse=True):
            return (
                f"batch_sizes={shown(sizes)}; pass integers >= 1 that never increase: "
                "sort the sequences by length, the longest first"
            )
        if sum(integers) != shape[0]:
            return (
                f"batch_sizes={shown(sizes)} are {sum(integers)} rows, {name} has {shape[0]}; "
                f"pass batch sizes whose sum is {shape[0]}"
            )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        sizes = tuple(a.attributes["batch_sizes"])
        if not sizes:
            yield a.with_attributes(batch_sizes=(1,))
            return
        yield a.with_attributes(batch_sizes=(*sizes, 0))
        yield a.with_attributes(batch_sizes=(*sizes, 1))
        yield a.with_attributes(batch_sizes=(*sizes, sizes[-1] + 1))
        yield a.with_attributes(batch_sizes=())
        yield a.with_attributes(batch_sizes=(1.5,))

    text = "batch_sizes is () for padded steps, or has integers >= 1 that never increase, N in all."
    return Constraint(text, AttributeValueError, check, violate)


def _integers(value: object) -> tuple[int, ...] | None:
    if not is_sequence(value):
        return None
    try:
        return tuple(as_integer(entry) for entry in value)
    except (TypeError, ValueError):
        return None


# --- Shapes ---------------------------------------------------------------------------------------


def skip_needs_one_size(problem: ProblemOf) -> Constraint:
    """A skipped input is added to every gate."""

    def check(a: Arguments) -> str | None:
        p = problem(a)
        if p.input_mode == "linear" or p.input_size == p.hidden_size:
            return None
        return (
            f'input_mode="skip" with inputs of {p.input_size} and hidden_size={p.hidden_size}; '
            'pass as many of either, or input_mode="linear"'
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "input_size" in a.attributes:
            wider = as_integer(a.attributes["hidden_size"]) + 1
            yield a.with_attributes(input_mode="skip", input_size=wider)
            return
        *dims, _ = a.tensors["x"].shape
        wider = as_integer(a.attributes["hidden_size"]) + 1
        changed = a.with_tensor("x", shape=(*dims, wider), strides=None)
        yield changed.with_attributes(input_mode="skip")

    text = 'With input_mode="skip" the input has hidden_size elements.'
    return Constraint(text, ShapeError, check, violate)


@dataclass(frozen=True, slots=True)
class Need:
    """Which networks need a tensor: by an attribute, and in words."""

    attribute: str
    when: Callable[[RnnProblem], bool]
    text: str


def needed_with(name: str, need: Need, problem: ProblemOf) -> Constraint:
    """A tensor that only some networks need."""

    def check(a: Arguments) -> str | None:
        if (name in a.tensors) == need.when(problem(a)):
            return None
        chosen = f"{need.attribute}={a.attributes[need.attribute]!r}"
        if name in a.tensors:
            shape = a.tensors[name].shape
            return f"{name} of shape {shape} is given with {chosen}; pass None"
        return f"{name} is None with {chosen}; pass what the forward pass left"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if name in a.tensors:
            rest = {n: t for n, t in a.tensors.items() if n != name}
            yield Arguments(rest, a.attributes)

    text = f"{name} is given {need.text}, and only then."
    return Constraint(text, MissingTensorError, check, violate)


def shapes(problem: ProblemOf, names: tuple[str, ...]) -> tuple[Constraint, ...]:
    """Those of all tensors but the one that has the steps."""
    return tuple(_shaped(name, problem) for name in names)


def _shaped(name: str, problem: ProblemOf) -> Constraint:
    dims, of = SHAPES[name]
    return shaped(name, dims, lambda a: of(problem(a)))


SHAPES: dict[str, tuple[str, Callable[[RnnProblem], tuple[int, ...]]]] = {
    "x": ("[…, I]", lambda p: (*p.data_shape, p.input_size)),
    "y": ("[…, D·Q]", lambda p: (*p.data_shape, p.layer_width)),
    "h": ("[L·D, B, Q]", lambda p: (p.pseudo_layers, p.batch, p.out)),
    "c": ("[L·D, B, H]", lambda p: (p.pseudo_layers, p.batch, p.hidden_size)),
    "weights": ("[W]", lambda p: (p.layout.size,)),
    "gates": (
        "[L·D, N, G·H]",
        lambda p: (p.pseudo_layers, p.rows, p.reserved_gates * p.hidden_size),
    ),
    "cells": ("[L·D, N, H]", lambda p: (p.pseudo_layers, p.rows, p.hidden_size)),
    "hidden": ("[L, N, D·Q]", lambda p: (p.num_layers, p.rows, p.layer_width)),
    "dgates": ("[L·D, N, K]", lambda p: (p.pseudo_layers, p.rows, p.gradient_width)),
}
"""Dims and shape of each tensor."""
SHAPES |= {
    "dy": SHAPES["y"],
    "dx": SHAPES["x"],
    **dict.fromkeys(("h0", "hy", "dh0", "dhy"), SHAPES["h"]),
    **dict.fromkeys(("c0", "cy", "dc0", "dcy"), SHAPES["c"]),
    **dict.fromkeys(("dweights", "accumulated"), SHAPES["weights"]),
}
