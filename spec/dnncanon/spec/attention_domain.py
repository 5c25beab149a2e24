"""Attention to sample from: drawn calls, those at the limits of implementations, and data that fit."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnncanon.spec.attention_problem import AttentionProblem, alibi_slopes
from dnncanon.spec.attention_rules import ALIGNMENTS, WIDE
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.softmax import stats_dtype
from dnncanon.spec.stream import drawn_stream
from dnncanon.spec.tensors import Shape, TensorType

LARGEST_SCORE = 64.0
"""Magnitude of scale·q·k in test data: where scores are larger, errors of theirs are errors of everything."""

LARGEST_LOGIT = 2.0**13
"""Magnitude of bias and sink: logits so far apart leave one column alone, and log-sum-exps as large."""

LARGEST_FACTOR = 2.0**40
"""Magnitude of do, o and v backward: products of two, times probabilities, do not overflow."""


@dataclass(frozen=True)
class Sample:
    """Sizes and options, of which a call of each primitive can be made.

    ``heads`` are Hq, Hk and Hv, ``sizes`` B, Sq, Skv, D and E. ``bias`` is the shape of one, () for none.
    """

    sizes: tuple[int, int, int, int, int]
    heads: tuple[int, int, int] = (1, 1, 1)
    bias: Shape = ()
    sink: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(
        self, form: "CallForm", dtype: str, strides: Mapping[str, Shape] | None = None
    ) -> Arguments:
        """A call of one primitive; ``strides`` are those of some tensors."""
        (b, rows, columns, d, e), (hq, hk, hv) = self.sizes, self.heads
        shapes: dict[str, Shape] = {
            "q": (b, hq, rows, d),
            "k": (b, hk, columns, d),
            "v": (b, hv, columns, e),
            "o": (b, hq, rows, e),
            "do": (b, hq, rows, e),
            "stats": (b, hq, rows),
            "bias": self.bias,
            "sink": (hq,),
        }
        there = {"bias": bool(self.bias), "sink": self.sink}
        given = strides or {}
        tensors = {
            name: TensorType(
                stats_dtype(dtype) if name in WIDE else dtype, shapes[name], given.get(name)
            )
            for name in form.tensors
            if there.get(name, True)
        }
        values = {"scale": d**-0.5 if d else 1.0, **self.options}
        return Arguments(tensors, {n: values.get(n, v) for n, v in form.attributes.items()})


@dataclass(frozen=True)
class CallForm:
    """What calls of one primitive look like: its tensors, its attributes and their defaults."""

    tensors: tuple[str, ...]
    attributes: Mapping[str, Any]


# --- Drawn ----------------------------------------------------------------------------------------


def draw_attention(form: CallForm) -> Callable[[Draw, Scale, str], Arguments]:
    """Few heads, rows and columns, with whatever options there are."""

    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        batch = min(draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0)), scale.batch)
        hk, hv = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
        heads = math.lcm(hk, hv) * draw.choice((1, 1, 2))
        rows, columns = draw.integer(1, scale.extent), draw.integer(1, scale.extent)
        d, e = draw.integer(1, 2 * scale.channels), draw.integer(1, 2 * scale.channels)
        e = draw.choice((d, e))
        options = {
            "scale": draw.choice((1.0, d**-0.5, 0.125, -0.3)),
            "soft_cap": draw.choice((0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.75)),
            "alibi": draw.choice((False, False, True)),
            "left_bound": draw.choice((-1, -1, 1, 2, columns)),
            "right_bound": draw.choice((-1, 0, 0, 1)),
            "alignment": draw.choice(ALIGNMENTS),
            "dropout": draw.choice((0.0, 0.0, 0.0, 0.0, 0.5, 0.2)),
            "return_stats": draw.choice((True, False)),
            **drawn_stream(draw),
        }
        broadcast = [draw.choice((False, True)) for _ in range(4)]
        has_bias, has_sink = draw.choice((False, True)), draw.choice((False, False, True))
        ends = {
            name: [draw.integer(0, scale.extent) for _ in range(scale.batch)]
            for name in ("q_lengths", "kv_lengths")
        }
        has_ends = {name: draw.choice((False, False, True)) for name in ends}
        while batch * heads * rows * columns * (d + e) * 4 > scale.multiplications:
            rows, columns = max(1, rows // 2), max(1, columns // 2)
            if rows == columns == 1:
                break
        for name, longest in (("q_lengths", rows), ("kv_lengths", columns)):
            lengths = tuple(min(length, longest) for length in ends[name][:batch])
            options[name] = lengths if has_ends[name] else ()
        scores = (batch, heads, rows, columns)
        bias = tuple(1 if one else n for n, one in zip(scores, broadcast, strict=True))
        sizes = (batch, rows, columns, d, e)
        sample = Sample(sizes, (heads, hk, hv), bias if has_bias else (), has_sink, options)
        return sample.arguments(form, dtype)

    return domain


# --- Boundaries -----------------------------------------------------------------------------------


def _samples() -> Iterator[tuple[str, Sample]]:
    """Name and sample, the cheapest first."""
    causal = {"right_bound": 0, "return_stats": True}
    plain = Sample((2, 5, 7, 4, 3), (2, 2, 2), options={"return_stats": True})

    def having(**options: Any) -> Sample:
        return replace(plain, options={**plain.options, **options})

    yield "empty batch", replace(plain, sizes=(0, 3, 4, 2, 2))
    yield "no rows", replace(plain, sizes=(2, 0, 4, 2, 2))
    yield "no columns", replace(plain, sizes=(2, 3, 0, 2, 2))
    yield "no columns but a sink", replace(plain, sizes=(2, 3, 0, 2, 2), sink=True)
    yield "heads of no elements", replace(plain, sizes=(1, 3, 4, 0, 2))
    yield "one of everything", replace(plain, sizes=(1, 1, 1, 1, 1), heads=(1, 1, 1))
    yield "nobody sees anything", having(q_lengths=(5, 5), kv_lengths=(0, 0))
    yield "lengths, some of them 0", having(q_lengths=(0, 3), kv_lengths=(4, 0))
    yield "rows above the diagonal", having(alignment="bottom_right", kv_lengths=(3, 7), **causal)
    yield "window of one column", having(left_bound=1, right_bound=0)
    yield "window right of all columns", having(left_bound=1, right_bound=3, q_lengths=(5, 2))
    yield "causal, top left", having(**causal)
    yield "causal, bottom right", having(alignment="bottom_right", **causal)
    yield "soft cap", having(soft_cap=0.5)
    yield "ALiBi of six heads", replace(having(alibi=True, **causal), heads=(6, 2, 3))
    yield "multi-query", replace(plain, heads=(4, 1, 1))
    yield "keys and values of other groups", replace(plain, heads=(6, 2, 3))
    yield "bias for all", replace(plain, bias=(1, 1, 1, 1))
    yield "bias of each", replace(plain, bias=(2, 2, 5, 7))
    yield "bias of columns", replace(plain, bias=(1, 2, 1, 7))
    yield "sink", replace(plain, sink=True)
    yield "dropout", having(dropout=0.5, seed=7)
    yield "everything dropped", having(dropout=1.0, seed=7)
    yield "decoding", replace(plain, sizes=(2, 1, 33, 8, 8), heads=(4, 2, 2))
    yield "heads of 40 and 72", replace(plain, sizes=(1, 3, 5, 40, 72))
    yield "65 rows and 130 columns", replace(plain, sizes=(1, 65, 130, 8, 8), heads=(1, 1, 1))
    yield "129 rows, causal", replace(having(**causal), sizes=(1, 129, 129, 8, 8), heads=(1, 1, 1))
    yield "heads of 256", replace(plain, sizes=(1, 17, 33, 256, 256), heads=(1, 1, 1))
    yield "4096 columns", replace(plain, sizes=(1, 2, 4096, 2, 2), heads=(1, 1, 1))
    yield "65,537 columns", replace(plain, sizes=(1, 1, 2**16 + 1, 2, 2), heads=(1, 1, 1))
    yield "65,537 heads", replace(plain, sizes=(1, 1, 2, 2, 2), heads=(2**16 + 1, 1, 1))


def attention_boundaries(form: CallForm) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, sample in _samples():
            yield Boundary(name, sample.arguments(form, dtype))
        plain = Sample((2, 5, 7, 4, 3), (2, 2, 2), (2, 1, 5, 7), True, {"return_stats": True})
        yield Boundary("NaN, Inf", plain.arguments(form, dtype), special_values=True)
        rows_first = {"q": (40, 4, 8, 1), "k": (56, 4, 8, 1), "v": (42, 3, 6, 1)}
        yield Boundary("rows before heads", plain.arguments(form, dtype, rows_first))

    return of_dtype


# --- Data that fit --------------------------------------------------------------------------------


def tamed(p: AttentionProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Scores and logits of limited size, and statistics that belong to them.

    q and k are divided by powers of two, which leave small integers exact. Statistics are not below what the
    scores are: the backward pass takes exponentials of differences with them, which are probabilities.
    """
    tame = dict(data)
    size = abs(p.scale) * _largest(data["q"]) * _largest(data["k"]) * max(1, p.head_size)
    if size > LARGEST_SCORE:
        divisor = 2.0 ** math.ceil(math.log2(size / LARGEST_SCORE) / 2)
        tame["q"], tame["k"] = data["q"] / divisor, data["k"] / divisor
    limits = {"bias": LARGEST_LOGIT, "sink": LARGEST_LOGIT}
    if "stats" in data:
        limits |= dict.fromkeys(("do", "o", "v"), LARGEST_FACTOR)
    tame |= {name: _limited(data[name], limits[name]) for name in limits if name in data}
    if "stats" in data:
        tame["stats"] = _statistics(p, tame)
    return tame


def _limited(values: Any, limit: float) -> Any:
    """Divided by the least power of two that leaves none larger."""
    largest = _largest(values)
    return values / 2.0 ** math.ceil(math.log2(largest / limit)) if largest > limit else values


def _largest(values: Any) -> float:
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))


def _statistics(p: AttentionProblem, data: dict[str, Any]) -> Any:
    """Not below the log-sum-exp of each row; that of all columns, whether or not the row sees them."""
    if math.prod(p.scores_shape) == 0:
        return np.zeros(p.stats_shape)
    with np.errstate(all="ignore"):
        q, k = data["q"], np.repeat(data["k"], p.heads // p.k_heads, axis=1)
        scores = p.scale * (q @ np.swapaxes(k, -1, -2))
        if p.soft_cap:
            scores = p.soft_cap * np.tanh(scores / p.soft_cap)
        if "bias" in data:
            scores = scores + data["bias"]
        if p.alibi:
            slopes = np.array(alibi_slopes(p.heads))[:, None, None]
            scores = scores + slopes * p.distances
        scores = np.where(np.isfinite(scores), scores, 0.0)
        largest = np.max(scores, axis=-1)
        if "sink" in data:
            sink = np.where(np.isfinite(data["sink"]), data["sink"], 0.0)
            largest = np.maximum(largest, sink[:, None])
        return largest + math.log(p.columns + p.has_sink)
