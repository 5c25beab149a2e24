"""Pointwise operations by torch's functions."""

from collections.abc import Callable
from typing import Any

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.pointwise import FLOATS, PointwiseProblem

P = PointwiseProblem
Function = Callable[..., torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "add_square": lambda x, b: torch.addcmul(x, b, b),
    "min": torch.minimum,
    "max": torch.maximum,
    "mod": torch.fmod,
    "floor_mod": torch.remainder,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "identity": torch.clone,
    "abs": torch.abs,
    "neg": torch.neg,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "log": torch.log,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "cmp_eq": torch.eq,
    "cmp_neq": torch.ne,
    "cmp_gt": torch.gt,
    "cmp_ge": torch.ge,
    "cmp_lt": torch.lt,
    "cmp_le": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "binary_select": lambda x, b, t: torch.where(t, x, b),
}

_WRAPS = ("add", "sub", "mul", "add_square", "abs", "neg", "mod", "floor_mod")


def pointwise_operation(x: torch.Tensor, *others: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.pointwise_operation.bind(x, *others, **attributes).problem
    if p.mode == "gen_index":
        return _indices(p, x)
    if p.mode.endswith(("_fwd", "_bwd")):
        raise Unsupported("torch's activations are tested as activation_forward and _backward")
    if p.dtype not in FLOATS and p.mode in _WRAPS:
        raise Unsupported("torch's integers wrap around, and cannot be divided by 0")
    scaled = p.alpha1, p.alpha2
    if p.dtype in ("float16", "bfloat16") and (scaled != (1.0, 1.0) or p.mode == "rsqrt"):
        raise Unsupported("torch rounds scaled operands, and the root before its reciprocal")
    if p.mode in ("mod", "floor_mod") and p.dtype in FLOATS and _quotient_overflows(x, *others):
        raise Unsupported("torch's remainder is NaN where the quotient overflows")
    operands = [a if f == 1.0 else f * a for f, a in zip(scaled, (x, *others), strict=False)]
    result = FUNCTIONS[p.mode](*operands, *others[1:])
    return result.broadcast_to(p.shape)


def _quotient_overflows(x: torch.Tensor, b: torch.Tensor) -> bool:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    quotient = x.to(wide) / b.to(wide)
    return bool((torch.isinf(quotient) & torch.isfinite(x) & (b != 0)).any())


def _indices(p: P, x: torch.Tensor) -> torch.Tensor:
    along = torch.arange(p.shape[p.axis], dtype=torch.int32, device=x.device)
    extents = [n if dim == p.axis else 1 for dim, n in enumerate(p.shape)]
    return along.reshape(extents).expand(p.shape).clone()
