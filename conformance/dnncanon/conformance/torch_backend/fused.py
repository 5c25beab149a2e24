"""Fused graphs by torch, one node after the other, in the compute type: float32, for float64 float64.

So results between are not rounded to 16 bits, as the specification has it, and torch's own functions have no
part in how they are kept.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from dnncanon import spec
from dnncanon.conformance.torch_backend.pointwise import FUNCTIONS
from dnncanon.conformance.torch_backend.reduce import reduce_forward
from dnncanon.spec import Unsupported
from dnncanon.spec.fused_graph import TENSORS, Graph, Operand, Result, Tensor
from dnncanon.spec.pointwise import PointwiseProblem

Array: TypeAlias = torch.Tensor
P = PointwiseProblem

# As in activation_forward: what is small beside 1 is lost in the tails of gates.
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {
        "pointwise_fusion": dict.fromkeys(("float32", "float16", "bfloat16"), "saturating")
    },
}


def _relu(p: P, x: Array) -> Array:
    low, slope = p.relu_lower_clip, p.relu_lower_clip_slope
    inside = torch.clamp(x, low, p.relu_upper_clip)
    return torch.where(x < low, low + slope * (x - low), inside) if slope else inside


ACTIVATIONS: dict[str, Callable[[P, Array], Array]] = {
    "relu_fwd": _relu,
    "tanh_fwd": lambda p, x: torch.tanh(x),
    "sigmoid_fwd": lambda p, x: torch.sigmoid(x),
    "elu_fwd": lambda p, x: functional.elu(x, p.elu_alpha),
    "softplus_fwd": lambda p, x: functional.softplus(x, p.softplus_beta, threshold=50.0),
    "swish_fwd": lambda p, x: x * torch.sigmoid(p.swish_beta * x),
    "gelu_fwd": lambda p, x: functional.gelu(x),
    "gelu_approx_tanh_fwd": lambda p, x: functional.gelu(x, approximate="tanh"),
}
_GATED = ("swish_fwd", "gelu_fwd", "gelu_approx_tanh_fwd")


def pointwise_fusion(*tensors: Array | None, **attributes: Any) -> Array:
    call = spec.pointwise_fusion.bind(*tensors, **attributes)
    p, y = call.problem, call.outputs[0]
    kind = torch.float64 if p.dtype == "float64" else torch.float32
    named = {
        name: tensor if tensor.dtype == torch.bool else tensor.to(kind)
        for name, tensor in zip(TENSORS, tensors, strict=False)
        if tensor is not None
    }
    result = _evaluated(p.graph, named, kind)
    if p.reduction is not None:
        r = p.reduction
        result = reduce_forward(result, op=r.op, axes=r.axes, keepdims=r.keepdims)
    return result.to(getattr(torch, y.dtype)).reshape(y.shape)


def _evaluated(graph: Graph, tensors: dict[str, Array], kind: torch.dtype) -> Array:
    results: list[Array] = []

    def value(operand: Operand) -> Array:
        if isinstance(operand, Tensor):
            return tensors[operand.name]
        if isinstance(operand, Result):
            return results[operand.node]
        like = tensors["a"]
        return torch.full((1,) * like.ndim, operand.value, dtype=kind, device=like.device)

    for node in graph.nodes:
        operands = [value(operand) for operand in node.operands]
        results.append(_applied(node.problem(str(kind).removeprefix("torch.")), *operands))
    return results[-1]


def _applied(p: P, *operands: Array) -> Array:
    if p.mode.endswith("_bwd"):
        raise Unsupported("torch's gradients of activations are tested as activation_backward")
    if p.mode in _GATED and torch.isneginf(operands[0]).any():
        raise Unsupported("torch multiplies −Inf by 0, which is NaN")
    if p.mode.startswith("gelu") and p.dtype == "float64":
        raise Unsupported("torch's is less accurate than float64, and there is no class for that")
    if p.mode in ACTIVATIONS:
        return ACTIVATIONS[p.mode](p, operands[0])
    return FUNCTIONS[p.mode](*operands)
