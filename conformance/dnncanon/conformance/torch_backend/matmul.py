"""Matrix products by torch.matmul and torch.nn.functional.grouped_mm.

8-bit floats and integers are multiplied as float32 and int32, which hold them exactly: torch's own products of
them are rounded to 8 bits, or private.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.matmul_problem import GroupedMatmulProblem, MatmulProblem

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None

# Found by running the suite: AVX-512's bfloat16 products flush subnormals. gelu, gelu_tanh and sigmoid lose
# what is small beside 1, as in the activation family.
_HALVES = ("float16", "bfloat16")
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {
        "matmul_forward": {"float32": "saturating", "bfloat16": "ftz"},
        "grouped_matmul_forward": {"bfloat16": "ftz"},
        "grouped_matmul_backward_weights": {"bfloat16": "ftz"},
    },
}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_GATED = ("gelu", "gelu_tanh", "silu")


def matmul_forward(
    a: Tensor, b: Tensor, c: Optional = None, bias: Optional = None, **attributes: Any
) -> Tensor:
    p = spec.matmul_forward.bind(a, b, c, bias, **attributes).problem
    _check(p)
    y = torch.matmul(_computed(p, a), _computed(p, b))
    if p.alpha != 1.0:
        y = p.alpha * y
    if c is not None and p.beta != 0.0:
        y = y + p.beta * _computed(p, c) if p.beta != 1.0 else y + _computed(p, c)
    if bias is not None:
        y = y + _computed(p, bias)
    if p.activation in _GATED and torch.isneginf(y).any():
        raise Unsupported("torch multiplies −Inf by 0, which is NaN")
    if p.dtype == "float64" and p.activation in ("silu", "sigmoid") and (y < -700.0).any():
        raise Unsupported("torch's float64 exponential ends before its largest number")
    return ACTIVATIONS[p.activation](y).to(getattr(torch, p.output))


def _check(p: MatmulProblem) -> None:
    eight_bits = p.dtype.startswith("float8")
    if (p.dtype in _HALVES) != (p.b_dtype in _HALVES):
        raise Unsupported("torch multiplies tensors of one dtype")
    if p.dtype in _HALVES:
        if p.output == "float32":
            raise Unsupported("torch rounds products of 16-bit floats to 16 bits on the CPU")
        if p.alpha != 1.0 or p.c_shape or p.has_bias or p.activation != "identity":
            raise Unsupported("torch rounds between the product and its epilogue")
    if p.dtype == "float64" and p.activation in ("gelu", "gelu_tanh"):
        raise Unsupported("torch's is less accurate than float64, and there is no class for that")
    if eight_bits and p.activation in (*_GATED, "sigmoid"):
        raise Unsupported("torch's loses what is small beside 1, and there is no class for that")


def _computed(p: MatmulProblem, x: Tensor) -> Tensor:
    """In the type that is computed in."""
    if p.whole:
        return x.to(torch.int32)
    return x.float() if p.dtype.startswith("float8") else x


# --- A product for each group of rows -------------------------------------------------------------


def grouped_matmul_forward(
    token: Tensor,
    weight: Tensor,
    first_token_offset: Tensor,
    token_index: Optional = None,
    token_ks: Optional = None,
    **attributes: Any,
) -> Tensor:
    bind = spec.grouped_matmul_forward.bind
    p = bind(token, weight, first_token_offset, token_index, token_ks, **attributes).problem
    _check_groups(p, first_token_offset)
    rows, exists = token, torch.ones(p.rows, dtype=torch.bool)
    if p.mode == "gather" and token_index is not None:
        exists = (token_index >= 0) & (token_index < p.tokens)
        rows = token[torch.where(exists, token_index, 0).long()]
    weights = _padded(weight).repeat(p.groups // p.experts, 1, 1)
    y = functional.grouped_mm(_padded(rows, 1), weights, offs=first_token_offset[1:].contiguous())
    y = torch.where(exists[:, None], y[:, : p.columns], torch.nan)
    used = int(first_token_offset[-1])
    y[used:] = 0
    if p.mode != "scatter" or token_index is None or token_ks is None:
        return y
    places = token_index.long() * p.top_k + token_ks.long()
    lands = (places >= 0) & (places < p.rows) & (torch.arange(p.rows) < used)
    result = torch.zeros_like(y)
    result[places[lands]] = y[lands]
    return result


def grouped_matmul_backward_weights(
    dy: Tensor, token: Tensor, first_token_offset: Tensor, **attributes: Any
) -> Tensor:
    bind = spec.grouped_matmul_backward_weights.bind
    p = bind(dy, token, first_token_offset, **attributes).problem
    _check_groups(p, first_token_offset)
    if p.groups != p.experts and p.dtype in _HALVES:
        raise Unsupported("torch rounds the gradient of each group")
    ends = first_token_offset[1:].contiguous()
    dweight = functional.grouped_mm(_padded(token, 1).T, _padded(dy, 1), offs=ends)
    dweight = dweight.reshape(-1, p.experts, *dweight.shape[1:]).sum(0)
    return dweight[:, : p.terms, : p.columns]


def _check_groups(p: GroupedMatmulProblem, first_token_offset: Tensor) -> None:
    if p.dtype == "float64":
        raise Unsupported("torch's grouped_mm takes no float64")
    if p.tokens * p.rows * p.terms * p.columns == 0:
        raise Unsupported("torch's grouped_mm takes no empty tensors")
    if int(first_token_offset[0]) != 0:
        raise Unsupported("the first group of torch's grouped_mm begins with the first row")


def _padded(x: Tensor, dims: int = 2) -> Tensor:
    """Zeros behind the last dims, up to multiples of 16 bytes, which grouped_mm demands of strides too."""
    widths = [n for extent in reversed(x.shape[-dims:]) for n in (0, -extent % 8)]
    return functional.pad(x, widths).clone(memory_format=torch.contiguous_format)
