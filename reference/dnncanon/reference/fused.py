"""Fusion, defined: a graph's nodes one after the other, each by its pointwise definition; the reduction."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.reference.pointwise import applied
from dnncanon.reference.reduce import reduced
from dnncanon.spec.fused_graph import TENSORS, Graph, Operand, Result, Tensor
from dnncanon.spec.fused_problem import FusedProblem
from dnncanon.spec.fused_tracing import Fused


@defines(spec.pointwise_fusion)
def pointwise_fusion(p: FusedProblem, *tensors: Array | None) -> Array:
    """y = the reduction, if there is one, of the graph's last node"""
    named = dict(zip(TENSORS, tensors, strict=False))
    result = evaluated(p.graph, {name: named[name] for name in p.graph.tensors}, p.dtype)
    return result if p.reduction is None else reduced(p.reduction, result)


def evaluated(graph: Graph, tensors: dict[str, Array], dtype: str) -> Array:
    """The last of r_k = mode_k(operands)"""
    results: list[Array] = []
    for node in graph.nodes:
        operands = [_value(operand, tensors, results) for operand in node.operands]
        results.append(applied(node.problem(dtype), *operands))
    return results[-1]


def _value(operand: Operand, tensors: dict[str, Array], results: list[Array]) -> Array:
    """A tensor, an earlier result, or a number as a tensor of one element."""
    if isinstance(operand, Tensor):
        return tensors[operand.name]
    if isinstance(operand, Result):
        return results[operand.node]
    like = tensors["a"]
    return np.full_like(like, operand.value, shape=(1,) * like.ndim)


def fuse(function: Callable[..., Any]) -> Fused:
    """A function of one to six arrays, written with operators and ``modes``, as a call of pointwise_fusion.

    >>> import numpy as np
    >>> from dnncanon import reference as ref
    >>> swiglu = ref.fuse(lambda gate, up: ref.modes.swish_fwd(gate) * up)
    >>> swiglu.graph
    'mul(swish_fwd(a),b)'
    >>> swiglu(np.zeros(2), np.ones(2))
    array([0., 0.])
    >>> spread = ref.fuse(lambda x, mean: ((x - mean) ** 2.0).sum(axes=1))
    >>> spread.attributes
    {'graph': 'pow(sub(a,b),2.0)', 'reduction': 'add', 'axes': 1, 'keepdims': False}
    >>> spread(np.array([[1.0, 3.0]]), np.array([[2.0]]))
    array([2.])
    """
    return Fused(function, pointwise_fusion)
