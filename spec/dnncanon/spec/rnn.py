"""Recurrent networks: plain ones with relu and tanh, LSTM and GRU, forward and their gradients.

L layers in D = 1 or 2 directions go over S steps of B sequences; layer l in direction d is number l·D + d:

    h_t = cell(W·x_t + bW, R·h_{t−1} + bR)

I, H and Q are the elements of x_t, of the cell, and of h_t: H unless it is projected. Steps are N rows: S·B if
padded, row t·B + b; as many as there are if packed. Weights are one buffer (:mod:`dnncanon.spec.rnn_weights`).

The forward pass in training leaves a *reserve*, of which the gradients are made: gates, cells and hidden. They
are defined like every output, so that gradients can be tested by themselves, and by another library's forward
pass. ``*_backward`` is the whole gradient, from the inputs of the forward pass alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dnncanon.spec.attributes import Choice, Flag, Integer, Integers, Real, Reals, as_integer
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Constraint,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.rnn_domain import CallForm, draw_rnn, rnn_boundaries, tamed
from dnncanon.spec.rnn_problem import RnnProblem, lengths_of
from dnncanon.spec.rnn_rules import (
    CLIP_NAN,
    INPUT_MODES,
    RESETS,
    SHAPES,
    WIDE,
    Need,
    legal_batch_sizes,
    legal_lengths,
    needed_with,
    options,
    rank_of_data,
    shapes,
    skip_needs_one_size,
)
from dnncanon.spec.rnn_weights import BIASES
from dnncanon.spec.softmax import DTYPES, stats_dtype
from dnncanon.spec.stream import ATTRIBUTES as STREAM
from dnncanon.spec.stream import DECISIONS as STREAM_DECISIONS
from dnncanon.spec.stream import Stream
from dnncanon.spec.tensors import TensorType
from dnncanon.spec.wide_dtypes import one_dtype_but_wide

# --- What the cells compute -----------------------------------------------------------------------

_STEP = {
    "rnn_relu": "h_t = max(W·x_t + bW + R·h_{t−1} + bR, 0)",
    "rnn_tanh": "h_t = tanh(W·x_t + bW + R·h_{t−1} + bR)",
    "lstm": (
        "i, f, o = σ(W·x_t + bW + R·h_{t−1} + bR), g = tanh(…), each with rows of its own\n"
        "c_t = clip(f∘c_{t−1} + i∘g)\n"
        "h_t = o∘tanh(c_t), or P·(o∘tanh(c_t)) if projected"
    ),
    "gru": (
        "r, z = σ(W·x_t + bW + R·h_{t−1} + bR), each with rows of its own\n"
        'u = R_n·h_{t−1} + bR_n, or with reset="before" R_n·(r∘h_{t−1}) + bR_n\n'
        'n = tanh(W_n·x_t + bW_n + r∘u), or with reset="before" tanh(W_n·x_t + bW_n + u)\n'
        "h_t = (1 − z)∘n + z∘h_{t−1}"
    ),
}
_GRADIENT = {
    "rnn_relu": "δa = [h_t > 0]∘δh_t;  δh_{t−1} = Rᵀ·δa",
    "rnn_tanh": "δa = (1 − h_t²)∘δh_t;  δh_{t−1} = Rᵀ·δa",
    "lstm": (
        "δm = δh_t, or Pᵀ·δh_t if projected;  t = tanh(c_t)\n"
        "δc_t += δm∘o∘(1 − t²), and is 0 where c_t is clipped\n"
        "δi = δc_t∘g∘i∘(1 − i);  δf = δc_t∘c_{t−1}∘f∘(1 − f);  δg = δc_t∘i∘(1 − g²);  δo = δm∘t∘o∘(1 − o)\n"
        "δc_{t−1} = δc_t∘f;  δh_{t−1} = Rᵀ·(δi, δf, δg, δo)"
    ),
    "gru": (
        "δn = δh_t∘(1 − z)∘(1 − n²);  δz = δh_t∘(h_{t−1} − n)∘z∘(1 − z)\n"
        "δu = δn∘r;  δr = δn∘u∘r∘(1 − r);  δh_{t−1} = δh_t∘z + Rᵀ·(δr, δz, δu)\n"
        'with reset="before": δu = δn;  s = R_nᵀ·δu;  δr = s∘h_{t−1}∘r∘(1 − r);  '
        "δh_{t−1} = δh_t∘z + s∘r + Rᵀ·(δr, δz)"
    ),
}
_BY_DATA = "δx_t = Wᵀ·δa of both directions, from the last layer to the first"
_BY_WEIGHTS = (
    "dW = Σ δa ⊗ x_t;  dR = Σ δa ⊗ h_{t−1}, of gru with δu in place of δn;  dP = Σ δh_t ⊗ (o∘tanh(c_t))\n"
    "dbW = Σ δa;  dbR = Σ δa, of gru with δu;  dweights = accumulated + all of them, packed"
)

_NAMES = {
    "rnn_relu": "recurrent network with relu",
    "rnn_tanh": "recurrent network with tanh",
    "lstm": "long short-term memory",
    "gru": "network of gated recurrent units",
}

_DECISIONS = (
    "A batch-major x is a stride pattern of [S, B, I], as every layout is here; cuDNN has a name for it.",
    "Weights are packed in the order that cuDNN's are in practice, though it does not promise one: all "
    "matrices, pseudo-layer by pseudo-layer, W before R before the projection, then all biases. Gates are in "
    "cuDNN's order: i, f, g, o of lstm, r, z, n of gru.",
    "lengths and batch_sizes are attributes, not tensors: the host knows them, as cuDNN's seqLengthArray, and "
    "only so are they checked before anything is computed. Lengths may be in any order, and 0.",
    "A sequence of no steps leaves its state, hy = h0 and cy = c0, and so its gradient. cuDNN refused it once.",
    "What lies behind the end of a sequence is never read, and written as padding_fill in y, and as 0 in dx, "
    "gates, cells, hidden and dgates. cuDNN leaves it undefined without a fill.",
    "Direction backward begins at the last step of each sequence, not at the last of all. h0, hy and their "
    "like have its state beside that of direction forward, as pseudo-layers.",
    "A state that is not given is 0, and so is a gradient by one.",
    'input_mode="skip" is for the first layer alone: it has no W, x_t is added to each gate, and bW stays.',
    "With one bias the other is not there; that of gru's n is inside r∘(…) if it is the recurrent one, as in "
    "the kernels' comments, and not outside, as cuDNN's guide of version 7.5 prints it.",
    "Dropout is between layers: the input of layer l > 0 is dropped, in training, by the words of the stream "
    "at the linear index of [L−1, S, B, D·Q]; of packed steps too, so that packing changes no number.",
    "h_t, the gradients by pre-activations, and whatever lies between layers are operands of matrix products, "
    "and may be rounded to the dtype. Gates, and cells from step to step, are not: they have float32 at least.",
)
_OWN_DECISIONS = {
    "lstm": (
        "Cells are clipped before h_t is made of them, and as they are clipped they go on to the next step.",
        "The gradient passes where low < c_t < high, by the saved c_t: not at the bounds themselves.",
        'clip_nan="not_propagate" makes of NaN the lower bound, as fmin(fmax(c, low), high) does.',
        "projection_size = H is a projection as every other; cuDNN takes it for none.",
    ),
    "gru": (
        'reset="after" is cuDNN\'s, ONNX\'s linear_before_reset=1, and PyTorch\'s; "before" is that of Cho et '
        "al. 2014 and of ONNX's default.",
    ),
}


# --- Attributes -----------------------------------------------------------------------------------

_SHAPE = (
    Attribute("hidden_size", Integer(), "H, units of a cell.", REQUIRED),
    Attribute("num_layers", Integer(), "L.", 1),
)
_INPUT_SIZE = Attribute("input_size", Integer(), "I, elements of a step of x.", REQUIRED)
_FORM = (
    Attribute("bidirectional", Flag(), "Whether each layer goes both ways: D = 2.", False),
    Attribute("bias_mode", Choice(tuple(BIASES)), "Which biases there are.", "double"),
    Attribute(
        "input_mode", Choice(INPUT_MODES), 'Whether the first layer has W; "skip": not.', "linear"
    ),
)
_OF_CELL = {
    "lstm": (
        Attribute("projection_size", Integer(), "Q if h is projected; 0 if it is not.", 0),
        Attribute("cell_clip", Reals(), "Bounds of cells, (low, high); () for none.", ()),
        Attribute("clip_nan", Choice(CLIP_NAN), "Whether NaN stays NaN when clipped.", "propagate"),
    ),
    "gru": (
        Attribute("reset", Choice(RESETS), "Where r is applied: to the product, or to h.", "after"),
    ),
}
_SEQUENCES = (
    Attribute("lengths", Integers(), "Steps of each padded sequence; () for S.", ()),
    Attribute("batch_sizes", Integers(), "Of packed steps: how many sequences have each.", ()),
)
_DROPOUT = (
    Attribute("dropout", Real(), "Of an input of a layer above the first to be dropped.", 0.0),
    *(replace(attribute, default=0) for attribute in STREAM),
)
_OF_FORWARD = (
    Attribute("padding_fill", Real(), "What y has behind the end of a sequence.", 0.0),
    Attribute("training", Flag(), "Whether dropout is applied, and the reserve put out.", False),
)


# --- Tensors --------------------------------------------------------------------------------------

_TENSORS = {
    "x": "input, padded [S, B, I] or packed [N, I]",
    "dy": "gradient of the loss by y",
    "weights": "all matrices and biases, packed",
    "h0": "state before the first step; zeros if absent",
    "c0": "cells before the first step; zeros if absent",
    "dhy": "gradient by hy; zeros if absent",
    "dcy": "gradient by cy; zeros if absent",
    "gates": "gates of every step: i, f, g, o, or r, z, n, u",
    "cells": "cells of every step, clipped",
    "hidden": "outputs of every layer, before dropout",
    "dgates": "gradient by the pre-activations; behind those of lstm that by a projected h_t",
    "accumulated": "gradient so far, to which this one is added",
    "y": "output of the last layer, the directions side by side",
    "hy": "state after the last step of each sequence",
    "cy": "cells after the last step of each sequence",
    "dx": "gradient by x",
    "dh0": "gradient by h0",
    "dc0": "gradient by c0",
    "dweights": "gradient by the weights, packed as they are",
}
_NO_SPECIALS = ("gates", "cells")
"""Of these the gradients are products in no certain order: where one is Inf, Inf·0 may be met or not."""


# Units of equal weights are all the same unit: they make the same errors, which add up in the next step. Bounds
# are made for errors of units that are strangers to each other, so weights do not repeat in tests.
def _tensor(name: str, *, optional: bool = False) -> TensorSpec:
    dims = SHAPES[name][0].strip("[]").replace(",", "").replace("…", "*S")
    return TensorSpec(
        name,
        dims,
        _TENSORS[name],
        optional,
        special_values=name not in _NO_SPECIALS,
        repeats=name != "weights",
    )


@dataclass(frozen=True)
class _Form:
    """The tensors of a direction, of which [h0] may be left out and {gates} are there in training alone."""

    inputs: str
    outputs: str


_FORMS = {
    "rnn": {
        "forward": _Form("x weights [h0]", "y hy {hidden}"),
        "backward_data": _Form("dy weights hidden [dhy]", "dx dh0 dgates"),
        "backward_weights": _Form("x hidden dgates [h0] [accumulated]", "dweights"),
        "backward": _Form("dy x weights [h0] [dhy]", "dx dh0 dweights"),
    },
    "lstm": {
        "forward": _Form("x weights [h0] [c0]", "y hy cy {gates} {cells} {hidden}"),
        "backward_data": _Form("dy weights gates cells [c0] [dhy] [dcy]", "dx dh0 dc0 dgates"),
        "backward_weights": _Form("x hidden dgates [h0] [gates] [cells] [accumulated]", "dweights"),
        "backward": _Form("dy x weights [h0] [c0] [dhy] [dcy]", "dx dh0 dc0 dweights"),
    },
    "gru": {
        "forward": _Form("x weights [h0]", "y hy {gates} {hidden}"),
        "backward_data": _Form("dy weights gates hidden [h0] [dhy]", "dx dh0 dgates"),
        "backward_weights": _Form("x hidden dgates [h0] [gates] [accumulated]", "dweights"),
        "backward": _Form("dy x weights [h0] [dhy]", "dx dh0 dweights"),
    },
}
_PROJECTED = Need("projection_size", lambda p: p.projection_size > 0, "with a projection")
_NEEDED = {
    ("lstm", "gates"): _PROJECTED,
    ("lstm", "cells"): _PROJECTED,
    ("gru", "gates"): Need("reset", lambda p: p.reset == "before", 'with reset="before"'),
}
"""Tensors that backward_weights has for some networks: for which."""


# --- From arguments to a problem ------------------------------------------------------------------


def _problem(cell: str, *, forward: bool) -> Callable[[Arguments], RnnProblem]:
    def resolve(a: Arguments) -> RnnProblem:
        given = a.attributes
        shape = a.tensors["x" if "x" in a.tensors else "dy"].shape
        sizes = tuple(map(as_integer, given["batch_sizes"]))
        steps, batch = (len(sizes), sizes[0]) if sizes else shape[:2]
        lengths = lengths_of(sizes) or tuple(map(as_integer, given["lengths"]))
        own = {attribute.name: given[attribute.name] for attribute in _OF_CELL.get(cell, ())}
        if "cell_clip" in own:
            own["cell_clip"] = tuple(map(float, own["cell_clip"]))
        return RnnProblem(
            cell,
            next(iter(a.tensors.values())).dtype,
            steps,
            batch,
            shape[-1] if "x" in a.tensors else as_integer(given["input_size"]),
            as_integer(given["hidden_size"]),
            lengths or (steps,) * batch,
            Stream.of(given),
            num_layers=as_integer(given["num_layers"]),
            bidirectional=given["bidirectional"],
            bias_mode=given["bias_mode"],
            input_mode=given["input_mode"],
            dropout=float(given["dropout"]),
            packed=bool(sizes),
            padding_fill=float(given["padding_fill"]) if forward else 0.0,
            training=given["training"] if forward else True,
            **own,
        )

    return resolve


def _infer(names: tuple[str, ...], in_training: frozenset[str]) -> Callable[..., Any]:
    def infer(p: RnnProblem) -> tuple[TensorType | None, ...]:
        return tuple(
            None
            if name in in_training and not p.training
            else TensorType(stats_dtype(p.dtype) if name in WIDE else p.dtype, SHAPES[name][1](p))
            for name in names
        )

    return infer


def _multiplications(p: RnnProblem) -> int:
    """Of the forward pass: of all rows by all matrices."""
    return p.rows * p.layout.matrix_size


_TIMES = {"forward": 1, "backward_data": 1, "backward_weights": 1, "backward": 3}
"""How often as many multiplications as in the forward pass."""


def _flops(direction: str) -> Callable[[RnnProblem], int]:
    return lambda p: 2 * _TIMES[direction] * _multiplications(p)


def _terms(p: RnnProblem) -> int:
    return max(p.input_of(layer) + p.out for layer in range(p.num_layers))


# --- Declarations ---------------------------------------------------------------------------------


def _declared(cell: str, direction: str) -> Primitive[RnnProblem]:
    form = _FORMS[cell.partition("_")[0]][direction]
    forward = direction == "forward"
    inputs = {name.strip("[]"): name.startswith("[") for name in form.inputs.split()}
    outputs = {name.strip("{}"): name.startswith("{") for name in form.outputs.split()}
    attributes = (
        *_SHAPE,
        *((_INPUT_SIZE,) if direction == "backward_data" else ()),
        *_FORM,
        *_OF_CELL.get(cell, ()),
        *_SEQUENCES,
        *_DROPOUT,
        *(_OF_FORWARD if forward else ()),
    )
    resolve = _problem(cell, forward=forward)
    needed = {
        name: rule
        for (of, name), rule in _NEEDED.items()
        if of == cell and direction == "backward_weights"
    }
    call = CallForm(
        cell,
        inputs,
        {a.name: a.default for a in attributes},
        {name: need.when for name, need in needed.items()},
    )
    return declare(
        Primitive(
            name=f"{cell}_{direction}",
            family="rnn",
            summary=_SUMMARIES[direction].format(_NAMES[cell]),
            formula=_formula(cell, direction),
            inputs=tuple(_tensor(name, optional=optional) for name, optional in inputs.items()),
            outputs=tuple(_tensor(name, optional=optional) for name, optional in outputs.items()),
            attributes=attributes,
            dtypes=DTYPES,
            constraints=_constraints(cell, direction, tuple(inputs), resolve, needed),
            decisions=(*_OWN_DECISIONS.get(cell, ()), *_DECISIONS, *STREAM_DECISIONS),
            resolve=resolve,
            infer=_infer(
                tuple(outputs), frozenset(name for name, saved in outputs.items() if saved)
            ),
            flops=_flops(direction),
            reduction_length=_terms,
            domain=draw_rnn(call),
            boundaries=rnn_boundaries(call),
            consistent=tamed,
            may_copy=True,
            source=_SOURCES[direction],
        )
    )


_SUMMARIES = {
    "forward": "A {}, over steps, layers and directions.",
    "backward_data": "Gradient of a {} by its input and first state, from the reserve.",
    "backward_weights": "Gradient of a {} by its weights, from the reserve and dgates.",
    "backward": "Whole gradient of a {}, from the inputs of its forward pass.",
}
_SOURCES = {
    "forward": "cuDNN cudnnRNNForward; Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014",
    "backward_data": "cuDNN cudnnRNNBackwardData_v8; Werbos 1990",
    "backward_weights": "cuDNN cudnnRNNBackwardWeights_v8; Werbos 1990",
    "backward": "cuDNN cudnnRNNBackwardData_v8 and cudnnRNNBackwardWeights_v8; Werbos 1990",
}


def _formula(cell: str, direction: str) -> str:
    parts = {
        "forward": (_STEP[cell],),
        "backward_data": (_GRADIENT[cell], _BY_DATA),
        "backward_weights": (_BY_WEIGHTS,),
        "backward": (_STEP[cell], _GRADIENT[cell], _BY_DATA, _BY_WEIGHTS),
    }
    return "\n".join(parts[direction])


def _constraints(
    cell: str,
    direction: str,
    inputs: tuple[str, ...],
    resolve: Callable[[Arguments], RnnProblem],
    needed: dict[str, Need],
) -> tuple[Constraint, ...]:
    wide = tuple(name for name in inputs if name in WIDE)
    given = tuple(name for name in inputs if name != "x")
    return (
        rank_of_data(),
        one_dtype_but_wide(DTYPES, wide),
        *options(cell, forward=direction == "forward", data_only=direction == "backward_data"),
        legal_lengths(),
        legal_batch_sizes(),
        skip_needs_one_size(resolve),
        *(needed_with(name, need, resolve) for name, need in needed.items()),
        *shapes(resolve, given),
    )


for _cell in _NAMES:
    for _direction in _SUMMARIES:
        _declared(_cell, _direction)
