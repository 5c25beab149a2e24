"""Scaled dot-product attention and its gradient: softmax of scores, times values, under masks of all kinds.

Symbols: B sequences, Hq query heads, Hk heads of keys and Hv of values; Sq rows, Skv columns; D elements of a
head of queries and keys, E of values.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dnncanon.spec.attention_domain import CallForm, attention_boundaries, draw_attention, tamed
from dnncanon.spec.attention_problem import AttentionProblem
from dnncanon.spec.attention_rules import (
    ALIGNMENTS,
    WIDE,
    bias_broadcasts,
    bound,
    four_dims,
    heads_divide,
    lengths,
    scale_is_a_number,
    sizes_agree,
)
from dnncanon.spec.attributes import Choice, Flag, Integer, Integers, Real, as_integer
from dnncanon.spec.constraints import one_of
from dnncanon.spec.norm_rules import real_in, shaped, truth_value
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Constraint,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.softmax import DTYPES, stats_dtype
from dnncanon.spec.stream import ATTRIBUTES as STREAM
from dnncanon.spec.stream import CONSTRAINTS as LEGAL_STREAM
from dnncanon.spec.stream import DECISIONS as STREAM_DECISIONS
from dnncanon.spec.stream import Stream
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.wide_dtypes import one_dtype_but_wide

# --- Attributes and tensors -----------------------------------------------------------------------

_MASKS = (
    Attribute("scale", Real(), "Factor of q·k, such as 1/√D.", REQUIRED),
    Attribute("soft_cap", Real(), "c of c·tanh(s/c), which limits scores; 0 for none.", 0.0),
    Attribute("alibi", Flag(), "Whether scores fall with the distance, by slopes of heads.", False),
    Attribute("left_bound", Integer(), "Columns seen up to the diagonal, itself included.", -1),
    Attribute("right_bound", Integer(), "Columns seen right of the diagonal; 0 is causal.", -1),
    Attribute("alignment", Choice(ALIGNMENTS), "The corner where the diagonal is.", "top_left"),
    Attribute("q_lengths", Integers(), "Rows of each sequence; () for Sq.", ()),
    Attribute("kv_lengths", Integers(), "Columns of each sequence; () for Skv.", ()),
    Attribute("dropout", Real(), "Of a probability to be dropped.", 0.0),
    *(replace(attribute, default=0) for attribute in STREAM),
)
_RETURN_STATS = Attribute("return_stats", Flag(), "Whether stats are put out.", False)

_Q = TensorSpec("q", "B Hq Sq D", "queries")
_K = TensorSpec("k", "B Hk Skv D", "keys")
_V = TensorSpec("v", "B Hv Skv E", "values", special_values=False)
_BIAS = TensorSpec("bias", "B Hq Sq Skv", "added to scores; any dim may be 1", optional=True)
_SINK = TensorSpec("sink", "Hq", "logit of a column that has no value", optional=True)
_STATS = TensorSpec("stats", "B Hq Sq", "log-sum-exp of each row", special_values=False)


def _plain(tensor: TensorSpec) -> TensorSpec:
    """Without special values: products with 0 meet them or not, as an implementation skips columns."""
    return replace(tensor, special_values=False)


def _related(tensor: TensorSpec) -> TensorSpec:
    """What statistics belong to: if elements of it stood for others in memory, they would not any more."""
    return replace(tensor, repeats=False)


# --- From arguments to a problem ------------------------------------------------------------------


def _resolve(a: Arguments) -> AttentionProblem:
    given = a.attributes
    q, k, v = (a.tensors[name] for name in "qkv")
    (batch, heads, rows, size), columns = q.shape, k.shape[2]
    bias = a.tensors.get("bias")
    return AttentionProblem(
        dtype=q.dtype,
        batch=batch,
        heads=heads,
        k_heads=k.shape[1],
        v_heads=v.shape[1],
        rows=rows,
        columns=columns,
        head_size=size,
        value_size=v.shape[3],
        scale=float(given["scale"]),
        q_lengths=tuple(map(as_integer, given["q_lengths"])) or (rows,) * batch,
        kv_lengths=tuple(map(as_integer, given["kv_lengths"])) or (columns,) * batch,
        stream=Stream.of(given),
        soft_cap=float(given["soft_cap"]),
        alibi=given["alibi"],
        left_bound=as_integer(given["left_bound"]),
        right_bound=as_integer(given["right_bound"]),
        alignment=given["alignment"],
        dropout=float(given["dropout"]),
        bias_shape=None if bias is None else bias.shape,
        has_sink="sink" in a.tensors,
        return_stats=given.get("return_stats", False),
    )


def _outputs(p: AttentionProblem) -> tuple[TensorType | None, ...]:
    stats = TensorType(stats_dtype(p.dtype), p.stats_shape)
    return TensorType(p.dtype, p.o_shape), stats if p.return_stats else None


def _gradients(p: AttentionProblem) -> tuple[TensorType | None, ...]:
    return (
        *(TensorType(p.dtype, shape) for shape in (p.q_shape, p.k_shape, p.v_shape)),
        TensorType(p.dtype, p.bias_shape) if p.bias_shape is not None else None,
        TensorType(stats_dtype(p.dtype), (p.heads,)) if p.has_sink else None,
    )


def _flops(products_of_d: int, products_of_e: int) -> Callable[[AttentionProblem], int]:
    """Of the products over all columns, seen or not."""

    def flops(p: AttentionProblem) -> int:
        each = products_of_d * p.head_size + products_of_e * p.value_size
        return 2 * each * math.prod(p.scores_shape)

    return flops


def _shape_of(name: str) -> Callable[[Arguments], Shape]:
    def shape(a: Arguments) -> Shape:
        (batch, heads, rows, _), size = a.tensors["q"].shape, a.tensors["v"].shape[3]
        shapes: dict[str, Shape] = {
            "o": (batch, heads, rows, size),
            "stats": (batch, heads, rows),
            "sink": (heads,),
        }
        return shapes[name]

    return shape


# --- Declarations ---------------------------------------------------------------------------------

_SCORES = """
s = scale·Σ_d q[b, h, i, d]·k[b, h·Hk/Hq, j, d];  s = c·tanh(s/c) with a soft cap
s += bias[b, h, i, j];  s += slope[h]·(j − i) with ALiBi
column j is seen by row i if i < q_length[b], j < kv_length[b], and
    j <= i + t + right_bound,  j > i + t − left_bound, where there are bounds,
    t = 0 at the top left, kv_length[b] − q_length[b] at the bottom right"""

_FORWARD = (
    _SCORES
    + """
m = max(s of columns seen, sink);  z = Σ e^(s − m) of columns seen + e^(sink − m)
p = e^(s − m)/z;  p = word >= dropout·2^32 ? p/(1 − dropout) : 0
o = Σ_j p·v[b, h·Hv/Hq, j, e];  stats = m + ln z"""
)

_BACKWARD = (
    _SCORES
    + """
p = e^(s − stats) of columns seen, else 0;  p̃ is p dropped as forward, r the factor of that
δ = Σ_e o·do;  dv = Σ p̃·do, over rows and the heads of a group
ds = p·(r·Σ_e do·v − δ);  dbias = Σ ds over the dims that bias does not have
ds ·= 1 − tanh²(scale·q·k/c) with a soft cap
dq = scale·Σ_j ds·k;  dk = scale·Σ ds·q, over rows and the heads of a group
dsink[h] = −Σ_{b, i} e^(sink[h] − stats)·δ"""
)

_DECISIONS = (
    "scale is required: cuDNN's default is 1, PyTorch's 1/√D.",
    "The order is scale, soft cap, bias, ALiBi, masks, as cuDNN's of its ready-made parts; a soft cap is "
    "cuDNN's score_mod, and right behind the scale, where Gemma 2 has it.",
    "A row that sees no column has o = 0 and stats = −Inf, never NaN, and so has a row behind the end of its "
    "sequence, whatever the sink. With a sink stats of a row that sees no column are the sink's.",
    "A score of −Inf is a column that is not seen. NaN and +Inf make the row NaN.",
    "left_bound counts the diagonal itself, as cuDNN's: 1 is the diagonal alone, with right_bound = 0. "
    "FlashAttention's window (w, 0) is left_bound = w + 1.",
    "Bottom right is that of each sequence, by its lengths: rows above the diagonal's beginning see nothing.",
    "ALiBi's slopes are Press et al.'s; distances are column − row, whatever the alignment. cuDNN wants "
    "right_bound = 0 with it; here it is as it is said.",
    "Lengths are attributes: the host knows them, and only so they are checked before anything is computed. "
    "What lies behind them is never read.",
    "Layouts are strides: [B, S, H, D] in memory is a transposed view, and so is each of interleaved qkv.",
    "Hk and Hv may differ, as cuDNN's; the head h of queries has head h·Hk/Hq, rounded down.",
    "stats are [B, Hq, Sq], natural logarithms; cuDNN's have a fourth dim of 1.",
    "Probabilities, and ds, are operands of products, and may be rounded to the dtype; scores and sums are "
    "kept at float32 or better.",
    "Dropout takes the word at the linear index of [B, Hq, Sq, Skv] in C order; with a probability of 1 "
    "everything is 0. The mask is the same backward.",
)


def _declared(
    name: str, inputs: tuple[TensorSpec, ...], attributes: tuple[Attribute, ...], **rest: Any
) -> Primitive[AttentionProblem]:
    form = CallForm(tuple(t.name for t in inputs), {a.name: a.default for a in attributes})
    names = [t.name for t in inputs]
    shapes = tuple(
        shaped(tensor, dims, _shape_of(kind))
        for tensor, dims, kind in (
            ("o", "[B, Hq, Sq, E]", "o"),
            ("do", "[B, Hq, Sq, E]", "o"),
            ("stats", "[B, Hq, Sq]", "stats"),
            ("sink", "[Hq]", "sink"),
        )
        if tensor in names
    )
    flags: tuple[Constraint, ...] = (
        (truth_value("return_stats"),) if _RETURN_STATS in attributes else ()
    )
    return declare(
        Primitive(
            name=name,
            family="attention",
            inputs=inputs,
            attributes=attributes,
            dtypes=DTYPES,
            constraints=(
                four_dims(),
                one_dtype_but_wide(DTYPES, tuple(n for n in names if n in WIDE)),
                sizes_agree(),
                heads_divide(),
                *shapes,
                bias_broadcasts(),
                scale_is_a_number(),
                real_in("soft_cap", 0.0),
                truth_value("alibi"),
                bound("left_bound", 1),
                bound("right_bound", 0),
                one_of("alignment", ALIGNMENTS),
                lengths("q_lengths", "q"),
                lengths("kv_lengths", "k"),
                real_in("dropout", 0.0, 1.0),
                *LEGAL_STREAM,
                *flags,
            ),
            decisions=(*_DECISIONS, *STREAM_DECISIONS),
            resolve=_resolve,
            reduction_length=lambda p: max(p.columns, p.head_size),
            domain=draw_attention(form),
            boundaries=attention_boundaries(form),
            consistent=tamed,
            may_copy=True,
            **rest,
        )
    )


sdpa_forward = _declared(
    "sdpa_forward",
    (_Q, _K, _V, _BIAS, _SINK),
    (*_MASKS, _RETURN_STATS),
    summary="Scaled dot-product attention.",
    formula=_FORWARD.strip(),
    outputs=(
        TensorSpec("o", "B Hq Sq E", "what each row sees, on average"),
        replace(_STATS, optional=True),
    ),
    infer=_outputs,
    flops=_flops(1, 1),
    source="cuDNN graph API SDPA_FWD; Vaswani et al. 2017; Dao et al. 2022",
)

sdpa_backward = _declared(
    "sdpa_backward",
    (
        TensorSpec("do", "B Hq Sq E", "gradient of the loss by o", special_values=False),
        _related(_plain(_Q)),
        _related(_plain(_K)),
        _V,
        TensorSpec("o", "B Hq Sq E", "output of the forward pass", special_values=False),
        _related(_STATS),
        _related(_BIAS),
        _related(_SINK),
    ),
    _MASKS,
    summary="Gradient of scaled dot-product attention, from its output and the log-sum-exps of its rows.",
    formula=_BACKWARD.strip(),
    outputs=(
        TensorSpec("dq", "B Hq Sq D", "gradient by q"),
        TensorSpec("dk", "B Hk Skv D", "gradient by k"),
        TensorSpec("dv", "B Hv Skv E", "gradient by v"),
        TensorSpec("dbias", "B Hq Sq Skv", "gradient by bias, if there is one", optional=True),
        TensorSpec("dsink", "Hq", "gradient by the sink, if there is one", optional=True),
    ),
    infer=_gradients,
    flops=_flops(3, 2),
    source="cuDNN graph API SDPA_BWD; Dao et al. 2022",
)
