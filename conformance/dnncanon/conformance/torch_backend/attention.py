"""Attention by ``scaled_dot_product_attention``, or the CPU's flash kernel where its statistics are asked for.

Bias, ALiBi and masks go to torch as one additive mask, in float32 beside float16 and bfloat16 queries. The
gradient is that of the flash kernel: like the definition's, it is made of o and of statistics that are given.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import FLOATS, Unsupported
from dnncanon.spec.attention_problem import AttentionProblem, alibi_slopes

_SPECIAL = "scores of ±Inf and NaN: rows of +Inf are 0, and rows that do not see a NaN have it"
CPU_CLAIMS: dict[str, Any] = {
    "numerics": {},
    "declines": {"sdpa_forward": {dtype: {"special": _SPECIAL} for dtype in FLOATS}},
}

Tensor: TypeAlias = torch.Tensor

_NARROW = ("float16", "bfloat16")

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def sdpa_forward(*tensors: Any, **attributes: Any) -> Any:
    call = spec.sdpa_forward.bind(*tensors, **attributes)
    p, given = call.problem, _given(call.primitive, tensors)
    _refuse_unknown(p)
    q, k, v = (_of_heads(p, given[name]) for name in "qkv")
    mask = _mask(p, given)
    if not p.return_stats:
        attend = torch.nn.functional.scaled_dot_product_attention
        return call.results([attend(q, k, v, attn_mask=mask, scale=p.scale)])
    _refuse_for_flash(p)
    if p.dtype in _NARROW:
        raise Unsupported(
            "torch's exponential of 16-bit tensors is approximate: so are its statistics"
        )
    return call.results(_flash(q, k, v, attn_mask=mask, scale=p.scale))


def sdpa_backward(*tensors: Any, **attributes: Any) -> Any:
    call = spec.sdpa_backward.bind(*tensors, **attributes)
    p, given = call.problem, _given(call.primitive, tensors)
    _refuse_unknown(p)
    _refuse_for_flash(p)
    if p.bias_shape is not None:
        raise Unsupported("torch's flash kernel has no gradient by a bias")
    if p.dtype in _NARROW and p.heads > min(p.k_heads, p.v_heads):
        raise Unsupported("torch rounds the gradients of each head before it adds those of a group")
    do, q, k, v, o = (_of_heads(p, given[name]) for name in ("do", "q", "k", "v", "o"))
    mask = _mask(p, given)
    dq, dk, dv = _flash_backward(
        do, q, k, v, o, given["stats"], 0.0, False, attn_mask=mask, scale=p.scale
    )
    return call.results((dq, _by_heads(dk, p.k_heads), _by_heads(dv, p.v_heads)))


def _given(primitive: Any, tensors: tuple[Any, ...]) -> Mapping[str, Tensor]:
    names = (tensor.name for tensor in primitive.inputs)
    return {name: t for name, t in zip(names, tensors, strict=False) if t is not None}


def _refuse_unknown(p: AttentionProblem) -> None:
    """What torch has no attention for."""
    if p.soft_cap:
        raise Unsupported("torch's attention has no soft cap")
    if p.has_sink:
        raise Unsupported("torch's attention has no sink")
    if p.dropout:
        raise Unsupported("torch drops by random numbers of its own")
    if min(p.q_lengths, default=p.rows) < p.rows:
        raise Unsupported("torch's attention knows no lengths of queries")


def _refuse_for_flash(p: AttentionProblem) -> None:
    """What its flash kernel does not take."""
    if p.head_size != p.value_size or 0 in p.scores_shape or p.head_size == 0:
        raise Unsupported("torch's flash kernel has heads of one size, and some rows and columns")
    if not p.visible.any(axis=-1).all():
        raise Unsupported("torch's statistics of rows that see nothing are 0, not −Inf")


def _of_heads(p: AttentionProblem, x: Tensor) -> Tensor:
    """[B, Hq, …]: that of the group for each query head."""
    return x.repeat_interleave(p.heads // max(1, x.shape[1]), dim=1)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """The sums of groups."""
    batch, count, *rest = x.shape
    return x.reshape(batch, heads, count // max(1, heads), *rest).sum(dim=2)


def _mask(p: AttentionProblem, given: Mapping[str, Tensor]) -> Tensor | None:
    """What is added to scores; None where nothing is."""
    bias = given.get("bias")
    if bias is None and not p.alibi and p.visible.all():
        return None
    like = given["q"]
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    total = torch.zeros(p.scores_shape, dtype=dtype)
    if bias is not None:
        total = total + bias.to(dtype)
    if p.alibi:
        slopes = torch.tensor(alibi_slopes(p.heads), dtype=dtype)
        total = total + slopes[:, None, None] * torch.from_numpy(p.distances).to(dtype)
    return total.masked_fill(~torch.from_numpy(p.visible), -torch.inf)
