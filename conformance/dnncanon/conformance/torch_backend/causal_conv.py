"""Causal convolution by torch's grouped conv1d, with K − 1 steps of 0 before the first, and by autograd."""

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.causal_conv import CausalConvProblem

_ZEROS = "torch multiplies the zeros before the first step by an infinite gradient, or a NaN"
CPU_CLAIMS: dict[str, Any] = {
    # SiLU is a/(1 + e^−a), 0 where e^−a overflows.
    "numerics": {
        "causal_conv_forward": dict.fromkeys(("float32", "float16", "bfloat16"), "saturating")
    },
    "declines": {
        "causal_conv_backward": {
            dtype: {"special": _ZEROS} for dtype in ("float64", "float32", "float16", "bfloat16")
        }
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
