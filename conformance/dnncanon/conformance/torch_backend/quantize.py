"""Linear quantization by torch's arithmetic and its conversions to 8-bit floats.

torch's own quantized tensors are deprecated, and it computes no scales of blocks.
"""

from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import DTYPES, Unsupported
from dnncanon.spec.quantize_problem import LinearProblem

Tensor: TypeAlias = torch.Tensor


def quantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, **attributes: Any
) -> Tensor:
    p = spec.quantize_linear.bind(x, scale, zero_point, **attributes).problem
    quotient = _computed(p, x) / _computed(p, scale).reshape(p.scales_shape)
    codes, dtype = DTYPES[p.output], getattr(torch, p.output)
    if codes.is_float:
        if p.dtype == "float64":  # found by running the suite
            raise Unsupported("torch rounds float64 to float32 on the way to 8-bit floats")
        return quotient.clamp(-codes.max, codes.max).to(dtype)
    whole = quotient.round()
    if zero_point is not None:
        whole = whole + zero_point.reshape(p.scales_shape)
    return whole.clamp(codes.min, codes.max).nan_to_num(nan=0.0).to(dtype)


def dequantize_linear(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, **attributes: Any
) -> Tensor:
    p = spec.dequantize_linear.bind(x, scale, zero_point, **attributes).problem
    steps = x.float()
    if zero_point is not None:
        steps = steps - zero_point.float().reshape(p.scales_shape)
    return (steps * scale.float().reshape(p.scales_shape)).to(getattr(torch, p.output))


def _computed(p: LinearProblem, tensor: Tensor) -> Tensor:
    """In the type that is computed in."""
    return tensor.to(torch.float64 if p.dtype == "float64" else torch.float32)
