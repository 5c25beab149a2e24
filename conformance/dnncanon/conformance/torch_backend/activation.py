"""Activations by torch.nn.functional; gradients from the output by the operators that autograd uses."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.activation import SELU_ALPHA, SELU_SCALE, ActivationProblem

# torch computes gelu as x·(1 + erf)/2 and gelu_tanh as x·(1 + tanh)/2, sigmoid as 1/(1 + e^−x) and
# 1 − σ as it stands: what is small beside 1 is lost in their tails.
_SATURATING = dict.fromkeys(("float32", "float16", "bfloat16"), "saturating")
_NAN = "where x is NaN relu's gradient is dy, and hard_tanh's too; at ±Inf slopes are Inf·0, NaN"
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {"activation_forward": _SATURATING, "activation_backward": _SATURATING},
    "declines": {
        "activation_backward": {
            dtype: {"special": _NAN} for dtype in ("float64", "float32", "float16", "bfloat16")
        }
    },
}

P = ActivationProblem
FORWARD: dict[str, Callable[[P, torch.Tensor], torch.Tensor]] = {
    "identity": lambda p, x: x.clone(),
    "relu": lambda p, x: functional.relu(x),
    "clipped_relu": lambda p, x: functional.hardtanh(x, 0.0, p.ceiling),
    "leaky_relu": lambda p, x: functional.leaky_relu(x, p.negative_slope),
    "elu": lambda p, x: functional.elu(x, p.alpha),
    "selu": lambda p, x: functional.selu(x),
    "gelu": lambda p, x: functional.gelu(x),
    "gelu_tanh": lambda p, x: functional.gelu(x, approximate="tanh"),
    "swish": lambda p, x: functional.silu(x),
    "softplus": lambda p, x: functional.softplus(x, p.beta, threshold=50.0),
    "sigmoid": lambda p, x: torch.sigmoid(x),
    "tanh": lambda p, x: torch.tanh(x),
    "mish": lambda p, x: functional.mish(x),
    "hard_sigmoid": lambda p, x: functional.hardsigmoid(x),
    "hard_swish": lambda p, x: functional.hardswish(x),
    "hard_tanh": lambda p, x: functional.hardtanh(x),
}

_aten = torch.ops.aten
FROM_OUTPUT: dict[str, Callable[[P, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "identity": lambda p, dy, y: dy.clone(),
    "relu": lambda p, dy, y: _aten.threshold_backward(dy, y, 0),
    "elu": lambda p, dy, y: _aten.elu_backward(dy, p.alpha, 1, 1, True, y),
    "selu": lambda p, dy, y: _aten.elu_backward(dy, SELU_ALPHA, SELU_SCALE, 1, True, y),
    "sigmoid": lambda p, dy, y: _aten.sigmoid_backward(dy, y),
    "tanh": lambda p, dy, y: _aten.tanh_backward(dy, y),
}

_GATED = ("swish", "gelu", "gelu_tanh", "mish", "hard_swish")
_LOSSY_IN_FLOAT64 = ("gelu", "gelu_tanh", "hard_sigmoid", "hard_swish")


def activation_forward(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.activation_forward.bind(x, **attributes).problem
    _check(p)
    if not p.propagate_nan:
        raise Unsupported("torch has no activation that clips NaN")
    if p.mode in _GATED and torch.isneginf(x).any():
        raise Unsupported("torch multiplies −Inf by 0, which is NaN")
    return FORWARD[p.mode](p, x)


def activation_backward(dy: torch.Tensor, x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.activation_backward.bind(dy, x, **attributes).problem
    _check(p)
    if p.from_output:
        if p.mode not in FROM_OUTPUT:
            raise Unsupported(f"torch has no gradient of {p.mode} from its output")
        if p.mode == "sigmoid" and p.dtype == "float16":
            raise Unsupported("torch computes y·(1 − y) of float16 in float16")
        return FROM_OUTPUT[p.mode](p, dy, x)
    if p.mode in ("sigmoid", "tanh"):
        raise Unsupported("torch takes the output, rounded to the tensor's dtype")
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(FORWARD[p.mode](p, x), x, dy)
    return gradient.clone() if p.mode == "identity" else gradient  # else it is dy itself


def _check(p: ActivationProblem) -> None:
    if p.mode == "swish" and p.beta != 1.0:
        raise Unsupported("torch has swish with beta = 1 only")
    if p.dtype == "float64" and p.mode in _LOSSY_IN_FLOAT64:
        raise Unsupported("torch's is less accurate than float64, and there is no class for that")
