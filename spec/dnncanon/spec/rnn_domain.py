"""Recurrent networks to sample from: drawn calls, those at the limits of implementations, and data that fit."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.rnn_problem import RnnProblem, lengths_of
from dnncanon.spec.rnn_rules import SHAPES, WIDE
from dnncanon.spec.rnn_weights import BIASES
from dnncanon.spec.softmax import stats_dtype
from dnncanon.spec.stream import Stream, drawn_stream
from dnncanon.spec.tensors import Shape, TensorType


@dataclass(frozen=True)
class Sample:
    """A network and its sequences, of which a call of each primitive can be made.

    ``batch_sizes`` make it a packed one. ``given`` are the optional tensors that there are, among those that
    the primitive has.
    """

    steps: int
    batch: int
    input_size: int
    hidden_size: int
    lengths: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    given: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, call: "CallForm", dtype: str) -> RnnProblem:
        """What shapes follow from: of the options those that are sizes, and that the cell has."""
        sized = (
            "num_layers",
            "bidirectional",
            "bias_mode",
            "input_mode",
            "projection_size",
            "reset",
        )
        return RnnProblem(
            call.cell,
            dtype,
            len(self.batch_sizes) or self.steps,
            self.batch_sizes[0] if self.batch_sizes else self.batch,
            self.input_size,
            self.hidden_size,
            lengths_of(self.batch_sizes) or self.lengths or (self.steps,) * self.batch,
            Stream(0, 0, 0),
            packed=bool(self.batch_sizes),
            **{n: self.options[n] for n in sized if n in self.options and n in call.attributes},
        )

    def arguments(self, call: "CallForm", dtype: str, strides: Shape | None = None) -> Arguments:
        """A call of one primitive; ``strides`` are those of x, or of dy where there is no x."""
        p = self.problem(call, dtype)
        tensors = {}
        for name, optional in call.tensors.items():
            needed = call.needed.get(name)
            if needed(p) if needed else not optional or name in self.given:
                wide = stats_dtype(dtype) if name in WIDE else dtype
                tensors[name] = TensorType(wide, SHAPES[name][1](p))
        if strides is not None:
            first = "x" if "x" in tensors else "dy"
            tensors[first] = TensorType(dtype, tensors[first].shape, strides)
        values = {
            "hidden_size": self.hidden_size,
            "input_size": self.input_size,
            "lengths": self.lengths,
            "batch_sizes": self.batch_sizes,
            **self.options,
        }
        return Arguments(tensors, {n: values.get(n, d) for n, d in call.attributes.items()})


@dataclass(frozen=True)
class CallForm:
    """What calls of one primitive look like: its cell, its tensors and whether they may be left out, its
    attributes and their defaults; ``needed`` says of some tensors which networks have them."""

    cell: str
    tensors: Mapping[str, bool]
    attributes: Mapping[str, Any]
    needed: Mapping[str, Callable[[RnnProblem], bool]]


# --- Drawn ----------------------------------------------------------------------------------------

_STATES = ("h0", "c0", "dhy", "dcy", "accumulated")
_CLIPS = ((), (), (-0.5, 0.5), (-1.0, 0.25), (0.0, 0.0))


def draw_rnn(call: CallForm) -> Callable[[Draw, Scale, str], Arguments]:
    """Networks of few units, steps and layers, with whatever options there are."""

    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        steps = draw.integer(1, max(1, scale.extent // 2))
        batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
        hidden, size = draw.integer(1, scale.channels), draw.integer(1, scale.channels)
        options = {
            "num_layers": draw.choice((1, 1, 1, 2, 3)),
            "bidirectional": draw.choice((False, False, True)),
            "bias_mode": draw.choice(("double", "double", *BIASES)),
            "input_mode": draw.choice(("linear", "linear", "linear", "skip")),
            "dropout": draw.choice((0.0, 0.0, 0.5, 0.2, 1.0)),
            "padding_fill": draw.choice((0.0, 0.0, -1.0, 2.5)),
            "training": draw.choice((False, True)),
            "cell_clip": draw.choice(_CLIPS),
            "clip_nan": draw.choice(("propagate", "not_propagate")),
            "reset": draw.choice(("after", "after", "before")),
            **drawn_stream(draw),
        }
        projected, projection = draw.choice((False, False, True)), draw.integer(1, scale.channels)
        options["projection_size"] = min(projection, hidden) if projected else 0
        given = frozenset(name for name in _STATES if draw.choice((True, True, False)))
        form = draw.choice(("whole", "whole", "lengths", "packed"))
        lengths = [draw.integer(0, max(1, scale.extent // 2)) for _ in range(scale.batch)]
        sample = Sample(
            steps,
            min(batch, scale.batch),
            hidden if options["input_mode"] == "skip" else size,
            hidden,
            given=given,
            options=options,
        )
        sample = _few_steps(sample, call, scale)
        return _with_sequences(sample, form, lengths).arguments(call, dtype)

    return domain


def _few_steps(sample: Sample, call: CallForm, scale: Scale) -> Sample:
    """The sample with as many steps as leave its whole gradient, three products for each, within the scale."""
    layout = sample.problem(call, "float32").layout
    most = scale.multiplications // max(1, 3 * layout.matrix_size * sample.batch)
    return replace(sample, steps=min(sample.steps, max(1, most)))


def _with_sequences(sample: Sample, form: str, drawn: list[int]) -> Sample:
    """The sample with sequences of some lengths, padded or packed."""
    lengths = tuple(min(length, sample.steps) for length in drawn[: sample.batch])
    if form == "lengths" and lengths:
        return replace(sample, lengths=lengths)
    if form == "packed" and lengths:
        sizes = (sum(max(1, length) > t for length in lengths) for t in range(sample.steps))
        return replace(sample, batch_sizes=tuple(size for size in sizes if size))
    return sample


# --- Boundaries -----------------------------------------------------------------------------------


def _samples() -> Iterator[tuple[str, Sample]]:
    """Name and sample, the cheapest first."""
    everything = frozenset(_STATES)

    def made(
        steps: int,
        batch: int,
        inputs: int,
        units: int,
        lengths: tuple[int, ...] = (),
        batch_sizes: tuple[int, ...] = (),
        **more: Any,
    ) -> Sample:
        options = {"training": True, **more}
        return Sample(steps, batch, inputs, units, lengths, batch_sizes, everything, options)

    deep: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    yield "no steps", made(0, 2, 3, 4)
    yield "no sequences", made(3, 0, 3, 4)
    yield "no input", made(3, 2, 0, 4)
    yield "no state is given", Sample(3, 2, 3, 4, options=deep)
    yield "one of everything", made(1, 1, 1, 1)
    yield "nothing but empty sequences", made(2, 3, 2, 3, lengths=(0, 0, 0), padding_fill=7.0)
    yield "all lengths, in no order", made(4, 5, 3, 4, lengths=(2, 4, 0, 3, 1), **deep)
    yield "packed", made(0, 0, 3, 4, batch_sizes=(5, 4, 2, 1), **deep)
    yield "packed, dropout", made(0, 0, 3, 4, batch_sizes=(3, 2, 2), dropout=0.5, **deep)
    yield "dropout", made(3, 3, 3, 4, lengths=(3, 3, 2), dropout=0.5, **deep)
    yield "everything dropped", made(2, 2, 3, 4, dropout=1.0, num_layers=2)
    yield "three layers both ways", made(3, 2, 3, 4, num_layers=3, bidirectional=True)
    for mode in BIASES:
        yield f"bias {mode}", made(3, 2, 3, 5, bias_mode=mode, **deep)
    yield "skipped input", made(3, 2, 5, 5, input_mode="skip", **deep)
    yield "17 sequences of 33 units", made(3, 17, 9, 33)
    yield "65 sequences of 7 units", made(2, 65, 8, 7)
    yield "40 units", made(2, 3, 8, 40)
    yield "130 units", made(2, 2, 3, 130)
    yield "129 inputs", made(2, 3, 129, 8)
    yield "300 steps", made(300, 2, 2, 2)


_OF_CELLS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "lstm": (
        ("projected to one", {"projection_size": 1, "num_layers": 2, "bidirectional": True}),
        ("projected to as many", {"projection_size": 5}),
        ("every cell is clipped", {"cell_clip": (0.0, 0.0)}),
        ("NaN is clipped", {"cell_clip": (-0.5, 0.5), "clip_nan": "not_propagate"}),
    ),
    "gru": (("reset before", {"reset": "before", "num_layers": 2, "bidirectional": True}),),
}


def rnn_boundaries(call: CallForm) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, sample in _samples():
            yield Boundary(name, sample.arguments(call, dtype))
        states = frozenset(_STATES)
        for name, options in _OF_CELLS.get(call.cell, ()):
            sample = Sample(3, 2, 3, 5, given=states, options={"training": True, **options})
            special = "NaN" in name
            yield Boundary(name, sample.arguments(call, dtype), special_values=special)
        several = Sample(4, 3, 3, 5, lengths=(4, 2, 3), given=states, options={"training": True})
        yield Boundary("NaN, Inf", several.arguments(call, dtype), special_values=True)
        whole = Sample(4, 3, 3, 5, given=states, options={"training": True})
        first = whole.arguments(call, dtype).tensors
        shape = (first["x"] if "x" in first else first["dy"]).shape
        batch_major = (shape[2], shape[0] * shape[2], 1)
        yield Boundary("batch-major", whole.arguments(call, dtype, batch_major))
        yield Boundary("one step repeated", whole.arguments(call, dtype, (0, shape[2], 1)))
        long = Sample(1000, 2, 2, 2, lengths=(1000, 700), given=states, options={"training": True})
        yield Boundary("1000 steps", long.arguments(call, dtype))

    return of_dtype


# --- Data that fit --------------------------------------------------------------------------------


def tamed(p: RnnProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Data such as networks have: weights as they begin with, and gates and states that tanh and σ can make.

    Weights are of both signs, and times the power of two next to 1/√fan-in. Larger ones make of states of some
    size all larger ones, whose errors say nothing any more; and where all weights have one sign, the errors of
    all units have it too and add up from step to step, while bounds are made for errors of units that are
    strangers to each other. Gates and states are divided by the power of two that leaves none above 1: where
    1 − h² is a factor of each step, others overflow. Powers of two leave small integers exact.
    """
    bounded = {"gates"} if p.cell == "rnn_relu" else {"gates", "hidden"}
    tame = {name: _at_most_one(a) if name in bounded else a for name, a in data.items()}
    if "weights" in tame:
        fan_in = max(1, p.out, p.hidden_size)
        scale = 2.0 ** -math.ceil(math.log2(fan_in) / 2)
        tame["weights"] = tame["weights"] * (scale * _signs(p.layout.size))
    return tame


def _at_most_one(values: Any) -> Any:
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return values * 2.0 ** -max(0, math.ceil(math.log2(largest))) if largest else values


def _signs(count: int) -> Any:
    """±1 by bits of multiples of the golden ratio: as good as random, and the same for everyone."""
    index = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return 1.0 - 2.0 * (index >> np.uint64(40) & np.uint64(1))
