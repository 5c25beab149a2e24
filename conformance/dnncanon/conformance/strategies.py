"""Hypothesis strategies for cases, derived from the domains that the specification declares.

What Hypothesis draws it can shrink: a failing case is reduced to the smallest extents, then to stride,
dilation and padding 1, 1 and 0, then to contiguous tensors, normal data and seed 0.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from dnncanon.conformance.case import Case, Strides, canonical_strides
from dnncanon.conformance.data import FILLS
from dnncanon.spec import (
    Arguments,
    Primitive,
    Scale,
    TensorType,
    channels_last_strides,
)

_SEEDS = st.integers(0, 2**32 - 1)
_INPUT_LAYOUTS = ("dense", "dense", "channels_last", "permuted", "gaps", "broadcast")
_OUTPUT_LAYOUTS = ("dense", "dense", "dense", "channels_last", "permuted", "gaps")


class HypothesisDraw:
    """The spec's source of choices, with Hypothesis behind it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[self._draw(st.integers(0, len(options) - 1))]


@st.composite
def cases(draw: st.DrawFn, primitive: Primitive[Any], dtype: str, scale: Scale) -> Case:
    """Legal calls of ``primitive`` for ``dtype``, of a size that ``scale`` allows."""
    choose = HypothesisDraw(draw)
    arguments = primitive.domain(choose, scale, dtype)
    tensors = {
        name: _with_layout(choose, tensor, _INPUT_LAYOUTS)
        for name, tensor in arguments.tensors.items()
    }
    case = Case(primitive, Arguments(tensors, arguments.attributes))
    layouts: dict[str, Strides] = {}
    for spec, output in zip(primitive.outputs, case.call.outputs, strict=True):
        strides = _with_layout(choose, output, _OUTPUT_LAYOUTS).strides
        if strides is not None:
            layouts[spec.name] = strides
    fill = choose.choice(tuple(FILLS))
    return replace(case, layouts=layouts, fill=fill, seed=draw(_SEEDS))


def _with_layout(
    choose: HypothesisDraw, tensor: TensorType, layouts: tuple[str, ...]
) -> TensorType:
    """The tensor in a drawn memory layout."""
    kind = choose.choice(layouts)
    if kind == "dense" or tensor.size == 0 or tensor.rank == 0:
        return tensor
    if kind == "channels_last" and tensor.rank > 2:
        strides = channels_last_strides(tensor.shape)
    else:
        strides = _drawn_strides(choose, tensor, kind)
    return replace(tensor, strides=canonical_strides(tensor.shape, strides))


def _drawn_strides(choose: HypothesisDraw, tensor: TensorType, kind: str) -> Strides:
    """Strides of nested dims: in any order, with gaps between them, or with some of them 0."""
    order = list(range(tensor.rank))
    if kind != "gaps":
        order = _permutation(choose, tensor.rank)
    strides, step = [0] * tensor.rank, 1
    for dim in reversed(order):
        if kind == "gaps":
            step += choose.integer(0, 3)
        strides[dim] = step
        step *= tensor.shape[dim]
    if kind == "broadcast":
        repeated = choose.integer(0, tensor.rank - 1)
        strides[repeated] = 0
    return tuple(strides)


def _permutation(choose: HypothesisDraw, rank: int) -> list[int]:
    rest = list(range(rank))
    return [rest.pop(choose.integer(0, len(rest) - 1)) for _ in range(rank)]
