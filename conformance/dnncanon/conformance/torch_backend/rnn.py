"""Recurrent networks by the ``torch._VF`` functions that torch's modules call; gradients by autograd.

Weights are views of the packed buffer: its order of gates is torch's, so that nothing is copied, and autograd
gives their gradient packed. torch keeps no reserve that could be had, and so has no gradients made of one.
Float16 and bfloat16 networks go to it in float32, as the definition keeps gates and cells in float32.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dnncanon import spec
from dnncanon.spec import FLOATS, Primitive, Unsupported
from dnncanon.spec.rnn_problem import RnnProblem

_RELU = "where h is NaN the gradient of torch's relu is that by h, not 0"
_GRU = "torch's h_t is n + z∘(h − n), whose gradient by n, δ − δ∘z, is NaN where δ is Inf"
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {},
    "declines": {
        "rnn_relu_backward": {dtype: {"special": _RELU} for dtype in FLOATS},
        "gru_backward": {dtype: {"special": _GRU} for dtype in FLOATS},
    },
}

Tensor: TypeAlias = torch.Tensor

_RUN: dict[str, Any] = {
    "rnn_relu": torch._VF.rnn_relu,
    "rnn_tanh": torch._VF.rnn_tanh,
    "lstm": torch._VF.lstm,
    "gru": torch._VF.gru,
}


def _forward(primitive: Primitive[RnnProblem]) -> Callable[..., Any]:
    names = _names(primitive)

    def forward(*tensors: Any, **attributes: Any) -> Any:
        call = primitive.bind(*tensors, **attributes)
        p, given = call.problem, dict(zip(names, tensors, strict=False))
        if p.training:
            raise Unsupported("torch puts no reserve out, and drops by random numbers of its own")
        _refuse_unknown(p)
        x, weights = _wide(given["x"]), _wide(given["weights"])
        outputs = _network(p, x, weights, _states(p, given, x))
        return call.results(output.to(given["x"].dtype) for output in outputs)

    return forward


def _backward(primitive: Primitive[RnnProblem]) -> Callable[..., Any]:
    names = _names(primitive)

    def backward(*tensors: Any, **attributes: Any) -> Any:
        call = primitive.bind(*tensors, **attributes)
        p, given = call.problem, dict(zip(names, tensors, strict=False))
        if p.dropout > 0.0 and p.num_layers > 1:
            raise Unsupported("torch drops by random numbers of its own")
        _refuse_unknown(p)
        x, weights = (_wide(given[name]).requires_grad_() for name in ("x", "weights"))
        states = [state.requires_grad_() for state in _states(p, given, x)]
        with torch.enable_grad():
            outputs = _network(p, x, weights, states)
        slopes = [_wide(given["dy"])]
        for name, output in zip(("dhy", "dcy"), outputs[1:], strict=False):
            slope = given.get(name)
            slopes.append(torch.zeros_like(output) if slope is None else _wide(slope))
        gradients = torch.autograd.grad(outputs, [x, *states, weights], slopes)
        return call.results(gradient.to(given["x"].dtype) for gradient in gradients)

    return backward


def _names(primitive: Primitive[RnnProblem]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in primitive.inputs)


def _refuse_unknown(p: RnnProblem) -> None:
    """What torch has no network for."""
    if p.input_mode == "skip":
        raise Unsupported("torch's first layer has always a matrix W")
    if p.cell_clip:
        raise Unsupported("torch clips no cells")
    if p.reset == "before":
        raise Unsupported("torch resets the product R_n·h, not h")
    if p.projection_size == p.hidden_size:
        raise Unsupported("torch projects to fewer elements than a cell has, or not at all")
    if p.steps == 0 or not any(p.lengths):
        raise Unsupported("torch takes no batch without steps")


def _wide(tensor: Tensor) -> Tensor:
    """A copy, contiguous, in float32 or float64."""
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.empty(tensor.shape, dtype=dtype, device=tensor.device).copy_(tensor.detach())


def _states(p: RnnProblem, given: dict[str, Any], x: Tensor) -> list[Tensor]:
    """h0, and c0 of lstm; zeros for what is not given."""
    widths = {"h0": p.out, "c0": p.hidden_size} if p.cell == "lstm" else {"h0": p.out}
    states = []
    for name, width in widths.items():
        state = given.get(name)
        zeros = x.new_zeros(p.pseudo_layers, p.batch, width)
        states.append(zeros if state is None else _wide(state))
    return states


# --- The network ----------------------------------------------------------------------------------


def _network(p: RnnProblem, x: Tensor, weights: Tensor, states: list[Tensor]) -> list[Tensor]:
    """y, hy, and cy of lstm."""
    matrices = list(_weights(p, weights))
    if p.packed:
        return _run(p, (x, torch.tensor(p.batch_sizes)), matrices, states)
    if all(length == p.steps for length in p.lengths):
        return _run(p, (x,), matrices, states)
    return _of_lengths(p, x, matrices, states)


def _of_lengths(
    p: RnnProblem, x: Tensor, matrices: list[Tensor], states: list[Tensor]
) -> list[Tensor]:
    """The sequences that have a step are packed, the longest first; the others keep their state."""
    some = [b for b, length in enumerate(p.lengths) if length > 0]
    kept = torch.tensor(some, device=x.device)
    lengths = torch.tensor([p.lengths[b] for b in some])
    packed = pack_padded_sequence(x[:, kept], lengths, enforce_sorted=False)
    order = kept[packed.sorted_indices]
    rows, *ends = _run(
        p, (packed.data, packed.batch_sizes), matrices, [state[:, order] for state in states]
    )
    packed_y = PackedSequence(
        rows, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
    )
    y_kept, _ = pad_packed_sequence(packed_y, padding_value=p.padding_fill, total_length=p.steps)
    y = x.new_full((p.steps, p.batch, p.layer_width), p.padding_fill).index_copy(1, kept, y_kept)
    ends = [state.index_copy(1, order, end) for state, end in zip(states, ends, strict=True)]
    return [y, *ends]


def _run(
    p: RnnProblem, data: tuple[Tensor, ...], matrices: list[Tensor], states: list[Tensor]
) -> list[Tensor]:
    """One call of torch: of x [S, B, I], or of rows and how many sequences have each step."""
    hx = states if p.cell == "lstm" else states[0]
    options: list[Any] = [p.bias_mode != "none", p.num_layers, 0.0, False, p.bidirectional]
    if len(data) == 1:
        options.append(False)  # batch_first
    with warnings.catch_warnings():
        # That oneDNN has no projections, and torch's own kernels are taken: those are under test as well.
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
        return list(_RUN[p.cell](*data, hx, matrices, *options))


def _weights(p: RnnProblem, packed: Tensor) -> Iterator[Tensor]:
    """In torch's order: W, R, bW, bR, projection of each pseudo-layer; zeros for a bias that is not there."""
    rows = p.gates * p.hidden_size
    for layer in range(p.num_layers):
        for direction in range(p.directions):
            for kind in ("W", "R", "bW", "bR", "projection"):
                block = p.layout.block(kind, layer, direction)
                if block is not None:
                    yield block.of(packed)
                elif kind in ("bW", "bR") and p.bias_mode != "none":
                    yield packed.new_zeros(rows)


# --- The primitives -------------------------------------------------------------------------------

rnn_relu_forward = _forward(spec.rnn_relu_forward)
rnn_relu_backward = _backward(spec.rnn_relu_backward)
rnn_tanh_forward = _forward(spec.rnn_tanh_forward)
rnn_tanh_backward = _backward(spec.rnn_tanh_backward)
lstm_forward = _forward(spec.lstm_forward)
lstm_backward = _backward(spec.lstm_backward)
gru_forward = _forward(spec.gru_forward)
gru_backward = _backward(spec.gru_backward)
