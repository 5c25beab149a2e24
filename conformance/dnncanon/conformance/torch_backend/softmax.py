"""Softmax by torch's own kernels; of several axes the row is one dim, and a mask is −Inf beforehand.

torch's masked softmax takes a mask that says what is left out, for its own use in transformers; it is not
offered.
"""

import math
from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.softmax import SoftmaxProblem

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None
_NARROW = (torch.float16, torch.bfloat16)


def softmax_forward(x: Tensor, mask: Optional = None, **attributes: Any) -> Any:
    call = spec.softmax_forward.bind(x, mask, **attributes)
    p = call.problem
    if p.log and x.dtype in _NARROW:
        raise Unsupported("torch's log_softmax of 16-bit types rounds between its steps")
    if mask is not None:
        x = torch.where(mask, x, -math.inf)
    rows = _rows(p, x)
    y = _from_rows(p, torch.log_softmax(rows, 1) if p.log else torch.softmax(rows, 1))
    if mask is not None:
        y = torch.where(mask, y, -math.inf if p.log else 0.0)
    return call.results([y, *([_stats(p, rows)] if p.stats else [])])


def softmax_backward(dy: Tensor, y: Tensor, mask: Optional = None, **attributes: Any) -> Tensor:
    p = spec.softmax_backward.bind(dy, y, mask, **attributes).problem
    if mask is not None:
        dy, y = torch.where(mask, dy, 0.0), torch.where(mask, y, 0.0)
    aten = torch.ops.aten
    backward = aten._log_softmax_backward_data if p.log else aten._softmax_backward_data
    dx = _from_rows(p, backward(_rows(p, dy), _rows(p, y), 1, y.dtype))
    return dx if mask is None else torch.where(mask, dx, 0.0)


def _stats(p: SoftmaxProblem, rows: Tensor) -> Tensor:
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return torch.logsumexp(wide, 1).reshape(p.stats_shape)


def _rows(p: SoftmaxProblem, x: Tensor) -> Tensor:
    """A row in each row, contiguous."""
    return x.permute(_order(p)).reshape(math.prod(p.stats_shape), p.length).contiguous()


def _from_rows(p: SoftmaxProblem, rows: Tensor) -> Tensor:
    order = _order(p)
    moved = rows.reshape([p.shape[axis] for axis in order])
    return moved.permute([order.index(axis) for axis in range(len(order))])


def _order(p: SoftmaxProblem) -> list[int]:
    """All dims, the axes last."""
    return [axis for axis in range(len(p.shape)) if axis not in p.axes] + list(p.axes)
