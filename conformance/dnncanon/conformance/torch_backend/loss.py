"""Losses by torch's own functions, and their gradients by its autograd.

Where the loss is float32 and the logits are narrower, torch gets them as float32, as under autocast.
"""

from typing import Any, TypeAlias

import torch
from torch.nn import functional

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.loss_problem import CrossEntropyProblem, CTCProblem

Tensor: TypeAlias = torch.Tensor
Optional: TypeAlias = torch.Tensor | None


def cross_entropy_forward(
    logits: Tensor, target: Tensor, weight: Optional = None, **attributes: Any
) -> Any:
    call = spec.cross_entropy_forward.bind(logits, target, weight, **attributes)
    p = call.problem
    rows = _wide(_rows(p, logits))
    loss = _cross_entropy(p, rows, target, weight).reshape(p.loss_shape)
    return call.results([loss, *([_stats(p, rows)] if p.stats else [])])


def cross_entropy_backward(
    logits: Tensor,
    target: Tensor,
    stats: Tensor,
    dloss: Tensor,
    weight: Optional = None,
    **attributes: Any,
) -> Tensor:
    p = spec.cross_entropy_backward.bind(logits, target, stats, dloss, weight, **attributes).problem
    if p.label_smoothing > 0.0:
        raise Unsupported("torch adds up the C shares of ε: one more error, of a whole row")
    ln_p, rows_target = _wide(_rows(p, logits)) - stats.reshape(-1, 1), _target(p, target)
    if not bool(ln_p[rows_target == p.ignore_index].exp().isfinite().all()):
        raise Unsupported("torch's gradient of an ignored row with NaN or Inf is NaN")
    leaf = ln_p.clone().requires_grad_()
    options: Any = {"ignore_index": p.ignore_index, "reduction": p.reduction}
    loss = functional.nll_loss(leaf, rows_target, weight, **options)
    (gradient,) = torch.autograd.grad(loss, leaf, dloss.reshape(loss.shape).contiguous())
    gradient = torch.ops.aten._log_softmax_backward_data(gradient, ln_p, 1, ln_p.dtype)
    moved = gradient.to(logits.dtype).reshape(*p.target_shape, p.classes)
    return moved.movedim(-1, p.axis)


def _cross_entropy(
    p: CrossEntropyProblem, rows: Tensor, target: Tensor, weight: Optional
) -> Tensor:
    return functional.cross_entropy(
        rows,
        _target(p, target),
        weight,
        ignore_index=p.ignore_index,
        label_smoothing=p.label_smoothing,
        reduction=p.reduction,
    )


def _target(p: CrossEntropyProblem, target: Tensor) -> Tensor:
    """int64, one for each row."""
    target = target.long().reshape(-1)
    if not bool(((target == p.ignore_index) | ((target >= 0) & (target < p.classes))).all()):
        raise Unsupported("torch raises for targets that are no classes")
    return target


def _stats(p: CrossEntropyProblem, rows: Tensor) -> Tensor:
    return torch.logsumexp(rows, 1).reshape(p.target_shape)


def _rows(p: CrossEntropyProblem, logits: Tensor) -> Tensor:
    """[rows, C], contiguous."""
    return logits.movedim(p.axis, -1).reshape(-1, p.classes).contiguous()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def ctc_loss(
    activations: Tensor,
    labels: Tensor,
    label_lengths: Tensor,
    input_lengths: Tensor,
    **attributes: Any,
) -> Any:
    call = spec.ctc_loss.bind(activations, labels, label_lengths, input_lengths, **attributes)
    p = call.problem
    if p.steps * p.batch == 0:
        raise Unsupported("torch takes no activations that are empty")
    x = _wide(activations)
    ln_y = (torch.log_softmax(x, 2) if p.norm_mode == "softmax" else x.log()).detach()
    ln_y.requires_grad_()
    if not bool(_legal(p, labels, label_lengths)):
        raise Unsupported("torch reads outside of its arrays for labels that are no classes")
    if bool(ln_y.isnan().any()):
        raise Unsupported("torch's maxima pass over NaN")
    if p.gradients and bool(ln_y.isinf().any()):
        raise Unsupported("torch's gradient at a probability of 0 is NaN")
    costs = functional.ctc_loss(
        ln_y, labels, input_lengths, label_lengths, p.blank, reduction="none"
    )
    if not p.gradients:
        return call.results([costs.detach()])
    (gradients,) = torch.autograd.grad(costs.sum(), ln_y)
    nothing = 0.0 if p.oob_gradients == "zero" else torch.nan
    gradients = torch.where(torch.isinf(costs)[:, None], nothing, gradients)
    counts = torch.arange(p.steps, device=x.device)[:, None] < input_lengths
    gradients = torch.where(counts[..., None], gradients, 0.0)
    return call.results([costs.detach(), gradients.to(activations.dtype)])


def _legal(p: CTCProblem, labels: Tensor, label_lengths: Tensor) -> Tensor:
    within = torch.arange(p.longest, device=labels.device) < label_lengths[:, None]
    is_class = (labels >= 0) & (labels < p.classes) & (labels != p.blank)
    return (is_class | ~within).all()
