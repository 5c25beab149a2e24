"""Convolution by torch.nn.functional.

Padding is explicit (torch's is symmetric), and ``mode="convolution"`` flips the filter.
"""

from typing import Any

import torch

from dnncanon import spec
from dnncanon.spec import Call, Unsupported
from dnncanon.spec.conv import ConvProblem

# What torch's CPU kernels do, found by running the suite: float16 gradients are summed in float16
# (col2im, and partial sums over the batch), and AVX-512's bfloat16 products flush subnormals and are
# taken in pairs, so that a NaN meets the zero that fills up an odd pair.
_PAIRS = "its bfloat16 products come in pairs, which carry NaN and Inf into neighbouring windows"
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {
        "conv_forward": {"bfloat16": "ftz"},
        "conv_backward_data": {"float16": "fp16_accumulate", "bfloat16": "ftz"},
        "conv_backward_filter": {"float16": "fp16_accumulate", "bfloat16": "ftz"},
    },
    "declines": {
        name: {"bfloat16": {"special": _PAIRS}}
        for name in ("conv_forward", "conv_backward_data", "conv_backward_filter")
    },
}


def conv_forward(x: torch.Tensor, w: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.conv_forward.bind(x, w, **attributes).problem
    return _convolve(_padded(x, p), _taps(w, p), p)


def conv_backward_data(dy: torch.Tensor, w: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.conv_backward_data.bind(dy, w, **attributes).problem
    padded = _padded(dy.new_zeros(p.x_shape), p).requires_grad_()
    (gradient,) = torch.autograd.grad(_convolve(padded, _taps(w, p), p), padded, dy)
    inside = (slice(pre, pre + i) for i, (pre, _) in zip(p.input_size, p.padding, strict=True))
    return gradient[(..., *inside)]


def conv_backward_filter(x: torch.Tensor, dy: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.conv_backward_filter.bind(x, dy, **attributes).problem
    w = x.new_zeros(p.w_shape).requires_grad_()
    (gradient,) = torch.autograd.grad(_convolve(_padded(x, p), w, p), w, dy)
    return _taps(gradient, p)


def conv_backward_bias(dy: torch.Tensor) -> torch.Tensor:
    spec.conv_backward_bias.bind(dy)
    return dy.sum(dim=(0, *range(2, dy.dim())))


def conv_bias_activation_forward(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor,
    z: torch.Tensor | None = None,
    **attributes: Any,
) -> torch.Tensor:
    call: Call[Any] = spec.conv_bias_activation_forward.bind(x, w, bias, z, **attributes)
    p = call.problem
    if x.dtype in (torch.float16, torch.bfloat16):
        raise Unsupported("torch rounds between the convolution and its epilogue")
    y = p.alpha1 * _convolve(_padded(x, p.conv), _taps(w, p.conv), p.conv)
    if z is not None and p.alpha2 != 0:
        y = y + p.alpha2 * z
    y = y + bias.reshape(-1, *(1,) * p.conv.spatial_dims)
    return torch.relu(y) if p.activation == "relu" else y


def _padded(x: torch.Tensor, p: ConvProblem) -> torch.Tensor:
    reversed_pairs = [size for pair in reversed(p.padding) for size in pair]
    return torch.nn.functional.pad(x, reversed_pairs)


def _taps(w: torch.Tensor, p: ConvProblem) -> torch.Tensor:
    """The filter in cross-correlation's order.

    It is made contiguous where a dim has extent 1: the stride of such a dim means nothing, but torch
    2.13 on the CPU computes wrong sums for some of them (found by this suite, in grouped convolution).
    """
    spatial = tuple(range(2, w.dim()))
    w = w.flip(spatial) if p.mode == "convolution" else w
    return w.contiguous() if 1 in w.shape else w


def _convolve(x: torch.Tensor, w: torch.Tensor, p: ConvProblem) -> torch.Tensor:
    if 0 in (p.in_channels, p.out_channels):
        raise Unsupported("torch has no convolution without channels")
    functional = torch.nn.functional
    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[p.spatial_dims - 1]
    return convolution(x, w, stride=p.stride, dilation=p.dilation, groups=p.groups)
