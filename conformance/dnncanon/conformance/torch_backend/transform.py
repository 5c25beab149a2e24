"""Tensor operators and casts by torch's functions."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from dnncanon import spec
from dnncanon.spec import DTYPES, Unsupported

Tensor: TypeAlias = torch.Tensor

_NARROW = (torch.float16, torch.bfloat16)

UNARY: dict[str, Callable[[Tensor], Tensor]] = {"sqrt": torch.sqrt, "not": lambda a: 1.0 - a}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
WITHOUT_NAN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **BINARY,
    "min": torch.fmin,
    "max": torch.fmax,
}


def op_tensor(a: Tensor, *others: Tensor | None, **attributes: Any) -> Tensor:
    p = spec.op_tensor.bind(a, *others, **attributes).problem
    b, c = (*others, None, None)[:2]
    a = _wide(a) * p.alpha1
    table = BINARY if p.propagates_nan else WITHOUT_NAN
    y = UNARY[p.op](a) if b is None else table[p.op](a, _wide(b) * p.alpha2)
    y = y if c is None else y + p.beta * _wide(c)
    return y.to(getattr(torch, p.dtype))


def add_tensor(a: Tensor, c: Tensor, **attributes: Any) -> Tensor:
    p = spec.add_tensor.bind(a, c, **attributes).problem
    added = (_wide(a) * p.alpha).broadcast_to(p.shape)
    return (added if p.beta == 0.0 else added + p.beta * _wide(c)).to(c.dtype, copy=True)


def scale_tensor(x: Tensor, **attributes: Any) -> Tensor:
    p = spec.scale_tensor.bind(x, **attributes).problem
    return torch.mul(_wide(x), p.alpha).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    """16-bit types as float32: torch rounds behind each function."""
    return x.float() if x.dtype in _NARROW else x


def set_tensor(**attributes: Any) -> Tensor:
    p = spec.set_tensor.bind(**attributes).problem
    row = DTYPES[p.dtype]
    if not row.is_float or abs(p.value) > row.max:
        raise Unsupported("torch.full truncates, and refuses what is beyond the range")
    return torch.full(p.shape, p.value, dtype=getattr(torch, p.dtype))


def cast(x: Tensor, **attributes: Any) -> Tensor:
    p = spec.cast.bind(x, **attributes).problem
    source, target = DTYPES[p.dtype], DTYPES[p.to]
    if target.kind == "integer":
        raise Unsupported("torch truncates to integers, and what does not fit wraps around")
    if target.is_float and p.saturate != (p.to == "float8_e4m3fn"):
        raise Unsupported("torch saturates casts to float8_e4m3fn, and no others")
    if p.dtype in ("float64", "int64", "int32", "uint32") and p.to not in (
        "float64",
        "float32",
        "bool",
    ):
        raise Unsupported("torch rounds to float32 on its way to narrower types")
    if source.itemsize == 1 and source.is_float and target.kind == "bool":
        return x.float() != 0
    return x.to(getattr(torch, p.to), copy=True)
