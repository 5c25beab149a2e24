"""Reductions by torch, and their gradients by its autograd.

torch has no product without zeros. Of several axes the set is one dim: torch's product and its extrema with
index take one only.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.reduce import ReduceProblem

Tensor: TypeAlias = torch.Tensor

_NARROW = (torch.float16, torch.bfloat16)
_ROUNDING = ("mul", "logsumexp")
# Found by running the suite.
_WEAK_GRADIENTS = {
    "mul": "torch divides the product, which may have overflowed, by each element",
    "logsumexp": "torch takes e^(x − y) of the rounded y: for |y| = 1000 that loses ten bits",
    "norm2": "torch divides by the norm rounded to 16 bits",
}

_SPECIAL = "torch's gradient at a NaN that amax chooses is 0"
CPU_CLAIMS: dict[str, Any] = {
    "declines": {
        "reduce_backward": {
            dtype: {"special": _SPECIAL} for dtype in ("float64", "float32", "float16", "bfloat16")
        }
    }
}

_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x.sum(1),
    "mul": lambda x: x.prod(1),
    "avg": lambda x: x.mean(1),
    "norm1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm2": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
}
_EXTREMA: dict[str, Callable[[Tensor], Any]] = {
    "min": lambda x: x.min(1),
    "max": lambda x: x.max(1),
    "amax": lambda x: x.abs().max(1),
}


def reduce_forward(x: Tensor, **attributes: Any) -> Any:
    call = spec.reduce_forward.bind(x, **attributes)
    p = call.problem
    # Integers are reduced as int64: torch's own wrap around.
    rows = _rows(p, x if x.dtype.is_floating_point else x.long())
    if p.op in _EXTREMA:
        if p.length == 0:
            raise Unsupported("torch has no extremum of nothing")
        y, indices = _EXTREMA[p.op](rows)
    else:
        y, indices = _reduction(p, x)(rows), None
    if not x.dtype.is_floating_point:
        info = torch.iinfo(x.dtype)
        y = y.clamp(info.min, info.max)
    outputs = [y.to(x.dtype).reshape(p.y_shape)]
    if p.indices:
        outputs.append(indices.to(torch.int32).reshape(p.y_shape))
    return call.results(outputs)


def reduce_backward(dy: Tensor, x: Tensor, **attributes: Any) -> Tensor:
    p = spec.reduce_backward.bind(dy, x, **attributes).problem
    if p.op in _WEAK_GRADIENTS and (x.dtype in _NARROW or p.op != "norm2"):
        raise Unsupported(_WEAK_GRADIENTS[p.op])
    rows = _rows(p, x).requires_grad_()
    if p.op in _EXTREMA:
        if p.length == 0:
            raise Unsupported("torch has no extremum of nothing")
        y = _EXTREMA[p.op](rows).values
    else:
        y = _reduction(p, x)(rows)
    (dx,) = torch.autograd.grad(y, rows, dy.reshape(y.shape).clone())
    order = _order(p)
    moved = dx.reshape([p.shape[axis] for axis in order])
    return moved.permute([order.index(axis) for axis in range(len(order))])


def _reduction(p: ReduceProblem, x: Tensor) -> Callable[[Tensor], Tensor]:
    if p.op not in _NUMBERS:
        raise Unsupported(f"torch has no {p.op}")
    if x.dtype in _NARROW and p.op in _ROUNDING:
        raise Unsupported(f"torch's {p.op} of 16-bit types rounds between its steps")
    if p.op == "norm2" and not _squares_fit(x):
        raise Unsupported("torch adds up squares as they are: they overflow or vanish")
    return _NUMBERS[p.op]


def _squares_fit(x: Tensor) -> bool:
    """Whether the squares of the largest and of the smallest finite element are normal numbers of x's range."""
    sizes = x[x.isfinite() & (x != 0)].abs()
    info = torch.finfo(x.dtype)
    if sizes.numel() == 0:
        return True
    return bool(sizes.max() < info.max**0.5 / 2**10 and sizes.max() > info.tiny**0.5 * 2**10)


def _rows(p: ReduceProblem, x: Tensor) -> Tensor:
    """A set in each row, contiguous."""
    sets = math.prod(p.kept_shape)
    return x.permute(_order(p)).reshape(sets, p.length).contiguous()


def _order(p: ReduceProblem) -> list[int]:
    """All dims, the axes last."""
    return [axis for axis in range(len(p.shape)) if axis not in p.axes] + list(p.axes)
