"""Normalization by torch's native norms; parameters of float16 and bfloat16 data go to it in float32.

torch has no adaptive layer norm, no divisive normalization, and no batch norm in parts outside CUDA. Not
offered are its batch norm by given statistics, which computes x·α + β' (see below), and the gradients of
layer and group norm, which are differences of sums that cancel where the mean is far larger than the spread,
and for float16 and bfloat16 are rounded to these on the way.
"""

import math
from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.norm import BatchNormProblem, FusedNormProblem, NormProblem

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None
_NARROW = (torch.float16, torch.bfloat16)

# What torch's CPU kernels do, found by running the suite.
_FOLDED = (
    "it computes x·α + β', with α = scale·r and β' = bias − μ·α, which cancels where x is near μ"
)
_BFLOAT16 = "it adds up bfloat16 numbers in bfloat16 where channels are last"
_NORM = {name: {"bounded": _FOLDED} for name in ("float16", "bfloat16")}

CPU_CLAIMS: dict[str, Any] = {
    "numerics": {},
    "declines": {
        "batch_norm_forward_training": _NORM,
        "batch_norm_backward": {"bfloat16": {"bounded": _BFLOAT16}},
        "group_norm_forward": _NORM,
        "instance_norm_forward": _NORM,
    },
}

# --- Batch norm -----------------------------------------------------------------------------------


def batch_norm_forward_training(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    running_mean: Optional = None,
    running_var: Optional = None,
    z: Optional = None,
    **attributes: Any,
) -> Any:
    call = spec.batch_norm_forward_training.bind(
        x, scale, bias, running_mean, running_var, z, **attributes
    )
    p = call.problem
    if p.norm.count == 1 and p.has_running:
        raise Unsupported("torch divides by m − 1 = 0")
    running = [None if r is None else r.flatten().clone() for r in (running_mean, running_var)]
    y, mean, inv_std = torch.native_batch_norm(
        _flat(x, p), _wide(scale), _wide(bias), *running, True, p.average_factor, p.norm.epsilon
    )
    shape = p.norm.statistics_shape
    outputs = [_finished(p, y.reshape(p.norm.x_shape), z)]
    outputs += [mean.reshape(shape), inv_std.reshape(shape)] if p.norm.save_statistics else []
    outputs += [r.reshape(shape) for r in running if r is not None]
    return call.results(outputs)


def batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Optional = None,
    inv_std: Optional = None,
    y: Optional = None,
    **attributes: Any,
) -> Any:
    call = spec.batch_norm_backward.bind(dy, x, scale, mean, inv_std, y, **attributes)
    p = call.problem
    if p.fixed_statistics:
        raise Unsupported("torch takes a variance there, not its inverse root")
    g = dy if y is None else torch.where(y > 0, dy, torch.zeros_like(dy))
    wide = _wide(scale)
    if mean is None or inv_std is None:
        _, mean, inv_std = torch.native_batch_norm(
            _flat(x, p), wide, wide, None, None, True, 0.0, p.norm.epsilon
        )
    dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
        _flat(g, p), _flat(x, p), wide, None, None, mean.flatten().contiguous(), inv_std.flatten().contiguous(),
        True, p.norm.epsilon, [True, True, True],
    )  # fmt: skip
    outputs = [dx.reshape(p.norm.x_shape)]
    outputs += [d.reshape(p.norm.parameter_shape).to(scale.dtype) for d in (dscale, dbias)]
    return call.results([*outputs, *([g.clone()] if p.has_residual else [])])


def batch_norm_genstats(x: Tensor, shift: Optional = None) -> Any:
    call = spec.batch_norm_genstats.bind(x, shift)
    wide = x if x.dtype == torch.float64 else x.float()
    if shift is not None:
        wide = wide - shift.reshape(-1, *(1,) * (x.dim() - 2))
    rest = (0, *range(2, x.dim()))
    return call.results([wide.sum(rest), wide.square().sum(rest)])


# --- Norms of a sample ----------------------------------------------------------------------------


def layer_norm_forward(
    x: Tensor, scale: Optional = None, bias: Optional = None, **attributes: Any
) -> Any:
    call = spec.layer_norm_forward.bind(x, scale, bias, **attributes)
    p = call.problem
    _refuse_adaptive(p)
    weight = _gamma(p, scale, x)
    shape = [p.view[axis] for axis in p.axes]
    shift = None if bias is None else _wide(bias).reshape(shape)
    y, mean, inv_std = torch.native_layer_norm(x.contiguous(), shape, weight, shift, p.epsilon)
    return call.results([y, *_saved(p, mean, inv_std)])


def rms_norm_forward(
    x: Tensor, scale: Optional = None, bias: Optional = None, **attributes: Any
) -> Any:
    call = spec.rms_norm_forward.bind(x, scale, bias, **attributes)
    p = call.problem
    if x.dtype in _NARROW or p.save_statistics:
        raise Unsupported("torch rounds between its steps, and keeps no statistics")
    shape = [p.view[axis] for axis in p.axes]
    y = torch.nn.functional.rms_norm(x, shape, _gamma(p, scale, x), p.epsilon)
    return call.results([y if bias is None else y + bias])


def group_norm_forward(
    x: Tensor, scale: Optional = None, bias: Optional = None, **attributes: Any
) -> Any:
    call = spec.group_norm_forward.bind(x, scale, bias, **attributes)
    return call.results(_group_forward(call.problem, x, scale, bias))


def instance_norm_forward(
    x: Tensor,
    scale: Optional = None,
    bias: Optional = None,
    z: Optional = None,
    **attributes: Any,
) -> Any:
    call = spec.instance_norm_forward.bind(x, scale, bias, z, **attributes)
    y, *statistics = _group_forward(call.problem.norm, x, scale, bias)
    return call.results([_finished(call.problem, y, z), *statistics])


def _group_forward(p: NormProblem, x: Tensor, scale: Optional, bias: Optional) -> list[Tensor]:
    weight = _gamma(p, scale, x)
    shift = None if bias is None else _wide(bias)
    if x.dtype in _NARROW and shift is None and weight is not None:
        shift = torch.zeros_like(weight)
    y, mean, inv_std = torch.native_group_norm(
        x.contiguous(), weight, shift, *_group_sizes(p), p.epsilon
    )
    return [y, *_saved(p, mean, inv_std)]


def lrn_forward(x: Tensor, **attributes: Any) -> Any:
    p = spec.lrn_forward.bind(x, **attributes).problem
    if p.window % 2 == 0 or x.dtype in _NARROW or x.dim() < 3:
        raise Unsupported(
            "torch's windows of even length have their centre elsewhere; it rounds between its steps, and "
            "needs a spatial dim"
        )
    options = {"alpha": p.alpha, "beta": p.beta, "k": p.k}
    return torch.nn.functional.local_response_norm(x.contiguous(), p.window, **options)


# --- Helpers --------------------------------------------------------------------------------------


def _flat(x: Tensor, p: BatchNormProblem) -> Tensor:
    """x with one channel for each mean; contiguous, for torch misreads strides of dims of extent 1."""
    if len(p.norm.axes) == 1:
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    return x.contiguous()


def _wide(parameter: Tensor) -> Tensor:
    flat = parameter.flatten().contiguous()
    return flat.float() if flat.dtype in _NARROW else flat


def _finished(p: FusedNormProblem, y: Tensor, z: Optional) -> Tensor:
    if z is not None and y.dtype in _NARROW:
        raise Unsupported("torch rounds before it adds the residual")
    y = y if z is None else y + z
    return torch.relu(y) if p.activation == "relu" else y


def _refuse_adaptive(p: NormProblem) -> None:
    if len(p.parameter_shape) > len(p.axes):
        raise Unsupported("torch has no scale for each sample")


def _gamma(p: NormProblem, scale: Optional, x: Tensor) -> Optional:
    """The factor, float32 for narrow x; ones where torch would choose the type of statistics by it."""
    if scale is not None:
        weight = _wide(scale).reshape(p.parameter_shape)
        return 1.0 + weight if p.zero_centered_scale else weight
    if x.dtype not in _NARROW:
        return None
    return torch.ones(p.parameter_shape, dtype=torch.float32, device=x.device)


def _group_sizes(p: NormProblem) -> tuple[int, int, int, int]:
    batch, groups, per_group, *extents = p.view
    return batch, groups * per_group, math.prod(extents), groups


def _saved(p: NormProblem, mean: Tensor, inv_std: Tensor) -> list[Tensor]:
    if not p.save_statistics:
        return []
    if not mean.is_cuda:
        raise Unsupported("Welford's mean is accurate to the largest element, not to the mean")
    return [part.reshape(p.statistics_shape) for part in (mean, inv_std)]
