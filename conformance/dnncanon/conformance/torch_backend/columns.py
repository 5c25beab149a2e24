"""im2col and col2im by torch's unfold and fold, which are of two dims."""

from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.columns import ColumnsProblem

Tensor: TypeAlias = torch.Tensor


def im2col(x: Tensor, **attributes: Any) -> Tensor:
    p = spec.im2col.bind(x, **attributes).problem
    if not x.dtype.is_floating_point:
        raise Unsupported("torch's unfold is of floating-point numbers")
    return torch.nn.functional.unfold(x, p.filter_size, **_geometry(p))


def col2im(x: Tensor, **attributes: Any) -> Tensor:
    p = spec.col2im.bind(x, **attributes).problem
    if x.dtype in (torch.float16, torch.bfloat16) and p.overlap > 2:
        raise Unsupported("torch adds up 16-bit numbers in 16 bits")
    return torch.nn.functional.fold(x, p.input_size, p.filter_size, **_geometry(p))


def _geometry(p: ColumnsProblem) -> dict[str, Any]:
    if len(p.windows) != 2 or p.batch * p.channels * min(p.input_size) == 0:
        raise Unsupported("torch has unfold and fold of two dims, that are not empty")
    if any(w.pre != w.post for w in p.windows):
        raise Unsupported("torch pads alike on both sides")
    return {
        "stride": tuple(w.stride for w in p.windows),
        "padding": tuple(w.pre for w in p.windows),
        "dilation": tuple(w.dilation for w in p.windows),
    }
