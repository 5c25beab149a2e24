"""Causal convolution by torch's grouped conv1d, with K − 1 steps of 0 before the first, and by autograd."""

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from dnncanon import spec
from dnncanon.spec import FLOATS, Unsupported
from dnncanon.spec.causal_conv_problem import (
    PROJECTIONS,
    CausalConvProblem,
    GatedCausalConvProblem,
)

_ZEROS = "torch multiplies the zeros before the first step by an infinite gradient, or a NaN"
CPU_CLAIMS: dict[str, Any] = {
    # SiLU is a/(1 + e^−a), 0 where e^−a overflows.
    "numerics": {
        "causal_conv_forward": dict.fromkeys(("float32", "float16", "bfloat16"), "saturating")
    },
    "declines": {
        name: {dtype: {"special": _ZEROS} for dtype in FLOATS}
        for name in ("causal_conv_backward", "gated_causal_conv_backward")
    },
}

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None


def causal_conv_forward(x: Tensor, w: Tensor, bias: Optional = None, **attributes: Any) -> Tensor:
    p = spec.causal_conv_forward.bind(x, w, bias, **attributes).problem
    return _forward(p, *(None if t is None else _wide(t) for t in (x, w, bias))).to(x.dtype)


def causal_conv_backward(
    dy: Tensor, x: Tensor, w: Tensor, bias: Optional = None, **attributes: Any
) -> Any:
    call = spec.causal_conv_backward.bind(dy, x, w, bias, **attributes)
    if call.problem.activation == "silu":
        raise Unsupported("torch's gradient of SiLU rounds 1 − σ(a), and is NaN at ±Inf")
    given = [_wide(t).requires_grad_() for t in (x, w, bias) if t is not None]
    with torch.enable_grad():
        y = _forward(call.problem, *given)
    gradients = torch.autograd.grad(y, given, _wide(dy))
    return call.results(gradient.to(x.dtype) for gradient in gradients)


def _wide(tensor: Tensor) -> Tensor:
    """A copy in float32 or float64: 16-bit sums would be rounded between products and activation."""
    return tensor.detach().to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _forward(p: CausalConvProblem, x: Tensor, w: Tensor, bias: Optional = None) -> Tensor:
    filters = (w if p.flips else w.flip(1))[:, None]
    if x.numel() == 0:  # which conv1d refuses
        return x * w.sum() if bias is None else x * w.sum() * bias.sum()
    a = F.conv1d(F.pad(x, (p.taps - 1, 0)), filters, bias, groups=p.shape[1])
    if p.activation != "silu":
        return a
    if torch.isneginf(a).any():
        raise Unsupported("torch multiplies −Inf by 0, which is NaN")
    return F.silu(a)


# --- Gated ----------------------------------------------------------------------------------------


def gated_causal_conv_forward(
    x: Tensor, projection: Tensor, mixer: Tensor, skip: Optional = None, **attributes: Any
) -> Any:
    call = spec.gated_causal_conv_forward.bind(x, projection, mixer, skip, **attributes)
    given = (None if t is None else _wide(t) for t in (x, projection, mixer, skip))
    return call.results(part.to(x.dtype) for part in _gated(call.problem, *given))


def gated_causal_conv_backward(
    dgated: Tensor,
    y: Tensor,
    x: Tensor,
    projection: Tensor,
    mixer: Tensor,
    skip: Optional = None,
    **attributes: Any,
) -> Any:
    call = spec.gated_causal_conv_backward.bind(dgated, y, x, projection, mixer, skip, **attributes)
    given = [_wide(t).requires_grad_() for t in (x, projection, mixer, skip) if t is not None]
    with torch.enable_grad():
        gate, mixed = _gate_and_mixed(call.problem, *given)
    # The y that is given, not the one that would be computed, is what the gate multiplies.
    slopes = (_wide(dgated) * _wide(y), _wide(dgated) * gate.detach())
    gradients = torch.autograd.grad((gate, mixed), given, slopes)
    return call.results(gradient.to(x.dtype) for gradient in gradients)


def _gated(p: GatedCausalConvProblem, *given: Any) -> tuple[Tensor, Tensor]:
    gate, mixed = _gate_and_mixed(p, *given)
    return mixed, gate * mixed


def _gate_and_mixed(
    p: GatedCausalConvProblem, x: Tensor, projection: Tensor, mixer: Tensor, skip: Optional = None
) -> tuple[Tensor, Tensor]:
    gate, first, second = (
        _forward(p.projection, x[:, :, i], projection[:, i]) for i in range(PROJECTIONS)
    )
    v = first * second
    mixed = _forward(p.mixer, v, mixer)
    return gate, mixed if skip is None else mixed + skip[:, None] * v
