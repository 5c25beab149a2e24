"""Resampling by torch.nn.functional.interpolate."""

import math
from typing import Any

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.attributes import real_per_dim
from dnncanon.spec.resample import ResampleProblem
from dnncanon.spec.resample_problem import Sampling

_LINEAR = {"half_pixel": False, "align_corners": True}
_NEAREST = {
    ("asymmetric", "floor"): "nearest",
    ("tf_half_pixel_for_nn", "floor"): "nearest-exact",
    ("half_pixel", "round_prefer_ceil"): "nearest-exact",
}

_TIMES_ZERO = "it multiplies cells of weight 0, so that their NaN and Inf spread"
CPU_CLAIMS: dict[str, Any] = {
    "declines": {
        name: {
            dtype: {"special": _TIMES_ZERO}
            for dtype in ("float64", "float32", "float16", "bfloat16")
        }
        for name in ("resample_forward", "resample_backward")
    }
}


def resample_forward(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    call = spec.resample_forward.bind(x, **attributes)
    return _resampled(x, call)


def resample_backward(dy: torch.Tensor, **attributes: Any) -> torch.Tensor:
    call = spec.resample_backward.bind(dy, **attributes)
    x = dy.new_zeros(call.problem.x_shape).requires_grad_()
    (dx,) = torch.autograd.grad(_resampled(x, call), x, dy)
    return dx


def _resampled(x: torch.Tensor, call: spec.Call[ResampleProblem]) -> torch.Tensor:
    p, given = call.problem, call.arguments.attributes
    if 0 in p.x_shape:
        raise Unsupported("torch resamples nothing that is empty")
    options: dict[str, Any] = {"mode": _NEAREST.get((given["coordinates"], p.rounding))}
    if p.mode == "linear":
        options = {
            "mode": ("linear", "bilinear", "trilinear")[len(p.dims) - 1],
            "align_corners": _LINEAR.get(given["coordinates"]),
        }
    if None in options.values():
        raise Unsupported(f"torch has no {p.mode} with {given['coordinates']}, {p.rounding}")
    if not all(map(_exact_in_float32, p.dims)):
        # Errors were up to 77 units in the last place, from 4 to 7 cells already.
        raise Unsupported("torch computes coordinates in float32, which cannot hold these")
    if given["scale"] is None:
        options["size"] = p.y_shape[2:]
    else:
        options["scale_factor"] = real_per_dim(given["scale"], len(p.dims))
    y: torch.Tensor = torch.nn.functional.interpolate(x, **options)
    return y


def _exact_in_float32(s: Sampling) -> bool:
    """Whether the denominator of coordinates is a power of two."""
    denominator = s.d // math.gcd(s.m, s.k, s.d)
    return denominator & (denominator - 1) == 0
