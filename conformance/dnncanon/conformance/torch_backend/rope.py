"""Rotary position embedding by torch's complex numbers: a pair times e^iθ, as Llama's own code has it."""

from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec.rope import RopeProblem

Tensor: TypeAlias = torch.Tensor


def rope_forward(x: Tensor, angles: Tensor, **attributes: Any) -> Tensor:
    return _turned(spec.rope_forward.bind(x, angles, **attributes).problem, x, angles)


def rope_backward(dy: Tensor, angles: Tensor, **attributes: Any) -> Tensor:
    return _turned(spec.rope_backward.bind(dy, angles, **attributes).problem, dy, -angles)


def _turned(p: RopeProblem, x: Tensor, angles: Tensor) -> Tensor:
    wide = x.to(angles.dtype) * p.output_scale
    first, second = p.turned
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_real(torch.complex(wide[..., first], wide[..., second]) * turns)
    y = wide.clone(memory_format=torch.contiguous_format)
    y[..., first], y[..., second] = pairs[..., 0], pairs[..., 1]
    return y.to(x.dtype)
