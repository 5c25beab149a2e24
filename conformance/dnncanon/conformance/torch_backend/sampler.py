"""The spatial transformer by torch.nn.functional.affine_grid and grid_sample."""

from typing import Any, TypeAlias

import torch
from torch.nn import functional

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.sampler import AffineGridProblem, GridSampleProblem

Tensor: TypeAlias = torch.Tensor
_NARROW = (torch.float16, torch.bfloat16)

_NAN = (
    "cells of weight 0 are multiplied, so that their NaN spreads; a NaN coordinate gives 0, the cell at −1, or "
    "NaN, and with border and reflection the gradient reads outside of its memory (torch 2.13: SIGSEGV)"
)
_MIDDLE = (
    "its coordinate in the middle of an odd extent is nearly 0: Inf times that is Inf, not NaN"
)
_REASONS = {
    "affine_grid_forward": _MIDDLE,
    "affine_grid_backward": _MIDDLE,
    "grid_sample_forward": _NAN,
    "grid_sample_backward": _NAN,
}
CPU_CLAIMS: dict[str, Any] = {
    "declines": {
        name: {dtype: {"special": reason} for dtype in ("float64", "float32")}
        for name, reason in _REASONS.items()
    }
}


def affine_grid_forward(theta: Tensor, **attributes: Any) -> Tensor:
    p = spec.affine_grid_forward.bind(theta, **attributes).problem
    return _grid(p, theta)


def affine_grid_backward(dgrid: Tensor, **attributes: Any) -> Tensor:
    p = spec.affine_grid_backward.bind(dgrid, **attributes).problem
    theta = dgrid.new_zeros(p.theta_shape).requires_grad_()
    (dtheta,) = torch.autograd.grad(_grid(p, theta), theta, dgrid)
    return dtheta


def _grid(p: AffineGridProblem, theta: Tensor) -> Tensor:
    if theta.dtype in _NARROW:
        raise Unsupported("torch makes grids of 16-bit types from coordinates of 16 bits")
    if 0 in p.grid_shape:
        raise Unsupported("torch makes no empty grids")
    size = [p.batch, 1, *p.output_size]
    grid: Tensor = functional.affine_grid(theta, size, align_corners=p.align_corners)
    return grid


def grid_sample_forward(x: Tensor, grid: Tensor, **attributes: Any) -> Tensor:
    p = spec.grid_sample_forward.bind(x, grid, **attributes).problem
    return _sampled(p, x, grid)


def grid_sample_backward(dy: Tensor, x: Tensor, grid: Tensor, **attributes: Any) -> Any:
    call = spec.grid_sample_backward.bind(dy, x, grid, **attributes)
    p = call.problem
    wanted = {"dx": (x, p.return_dx), "dgrid": (grid, p.return_dgrid)}
    leaves = [tensor.detach().requires_grad_(asked) for tensor, asked in wanted.values()]
    y = _sampled(p, *leaves)
    return call.results(torch.autograd.grad(y, [leaf for leaf in leaves if leaf.requires_grad], dy))


def _sampled(p: GridSampleProblem, x: Tensor, grid: Tensor) -> Tensor:
    if x.dtype in _NARROW:
        raise Unsupported("torch computes with coordinates of 16 bits in 16-bit types")
    if 0 in (*x.shape, *grid.shape):
        raise Unsupported("torch samples nothing that is empty")
    mode = "bilinear" if p.mode == "linear" else p.mode
    y: Tensor = functional.grid_sample(x, grid, mode, p.padding_mode, p.align_corners)
    return y
