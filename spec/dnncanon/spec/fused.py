"""Fusion: a graph of pointwise operations, with at most one reduction behind it, as one operation.

cuDNN's runtime fusion engines compile such a graph into one kernel (its operation graph of the mode
GENERIC_POINTWISE_FUSION). What a graph is made of are the modes of ``pointwise_operation`` and the ops of
``reduce_forward``; how it is written is in :mod:`dnncanon.spec.fused_graph`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Choice, Flag
from dnncanon.spec.axes import axes_attribute, legal_axes
from dnncanon.spec.elementwise import any_rank, broadcastable, true_or_false
from dnncanon.spec.fused_domain import boundaries, drawn, telling
from dnncanon.spec.fused_graph import MAX_NODES, TENSORS, graph_of
from dnncanon.spec.fused_problem import FusedProblem, resolve
from dnncanon.spec.fused_rules import (
    axes_of_a_reduction,
    element_types,
    known_reduction,
    readable_graph,
    reduction_of_numbers,
    tensors_of_the_graph,
)
from dnncanon.spec.pointwise import FLOATS
from dnncanon.spec.primitive import REQUIRED, Attribute, DTypeRow, Primitive, TensorSpec, declare
from dnncanon.spec.reduce import NAMES

_SUBSET = ("ieee", "ftz", "fast_math", "saturating")
DTYPES = tuple(DTypeRow(name, _SUBSET if name != "float64" else ("ieee",)) for name in FLOATS)


@dataclass(frozen=True, slots=True)
class GraphText:
    """A graph: ``relu_fwd(add(mul(a,b),c))``."""

    describes: str = "expression of tensors a to f and modes of pointwise_operation"

    def parse(self, text: str) -> str:
        return text

    def format(self, value: Any) -> str:
        return str(graph_of(value))

    def simpler(self, value: Any) -> Iterator[str]:
        """Graphs with fewer operations or parameters, made of parts of this one."""
        return (str(graph) for graph in graph_of(value).simpler())


def _flops(p: FusedProblem) -> int:
    """One for each node and element, and one for each element that is reduced."""
    return math.prod(p.shape) * (len(p.graph.nodes) + (p.reduction is not None))


pointwise_fusion = declare(
    Primitive(
        name="pointwise_fusion",
        family="fused",
        summary="A graph of pointwise operations on up to six tensors, reduced or not, in one pass.",
        formula=(
            "r_k = mode_k(operands, each a tensor, a number or an earlier r), k = 0 … n − 1, by graph,\n"
            "{name=expression;}expression, an expression being mode(operands,parameters):\n"
            "relu_fwd(add(mul(a,b),c))            max(a·b + c, 0)\n"
            "t0=add(a,b);mul(t0,sigmoid_fwd(t0))  t0·σ(t0), t0 = a + b: a name for what is used again\n"
            "binary_select(a,-inf,cmp_ge(b,c))    b >= c ? a : −Inf\n"
            "swish_fwd(a,swish_beta=1.702)        a mode with a parameter\n"
            "y = r_(n−1), or its reduction, as reduce_forward has it, over axes"
        ),
        inputs=tuple(
            TensorSpec(name, "*I", f"operand {name} of the graph", optional=name != "a")
            for name in TENSORS
        ),
        outputs=(TensorSpec("y", "*O", "result of the graph, or of the reduction"),),
        attributes=(
            Attribute("graph", GraphText(), "What is computed.", REQUIRED),
            Attribute(
                "reduction", Choice(NAMES), "What the result is reduced by. Default: none.", None
            ),
            axes_attribute("The dims that are reduced; None for all, () for none.", None),
            Attribute("keepdims", Flag(), "Whether the axes stay, with extent 1.", False),
        ),
        dtypes=DTYPES,
        constraints=(
            readable_graph(),
            tensors_of_the_graph(),
            any_rank(*TENSORS),
            element_types(),
            broadcastable(),
            known_reduction(),
            reduction_of_numbers(),
            legal_axes("a", may_be_none=True),
            true_or_false("keepdims"),
            axes_of_a_reduction(),
        ),
        decisions=(
            "Results between are not rounded to a tensor's dtype: they are kept, and numbers and sums are "
            "taken, in float32, or in float64 where a is float64. That is cuDNN's compute data type, with "
            "virtual tensors of the same type. y is rounded once.",
            "y has the dtype of a; where the result is a truth value, bool. Beside 16-bit types other "
            "operands may be float32, such as a scale and a bias; put first whose dtype y is to have.",
            "There is one output. cuDNN lets any node be one; a second one is written in full whether it is "
            "fused or not, and a reduction wants its elements in another order than writing them does.",
            "Every operand is broadcast in dims of extent 1, as in pointwise_operation, the first one "
            "included; cuDNN's epilogues refuse that.",
            "Each mode means what pointwise_operation has it mean, NaN, Inf and kinks included, and the "
            "reduction what reduce_forward does. alpha1 and alpha2 are products with numbers here.",
            "gen_index is in no graph: it reads no value. An index is a tensor with extent 1 in the other "
            "dims, which costs nothing to read.",
            "Integers are no operands: the compute type does not hold them all. Truth values are, where a "
            "mode takes them, as cuDNN's BOOLEAN.",
            "Equal expressions are computed once; an operation on numbers alone is refused, for it is a "
            f"number. A graph has at most {MAX_NODES} operations.",
            "The reduction is the last operation, and there is one at most: what follows from it needs all "
            "elements of its set, and is a second pass.",
            "Where the error of a result between decides a comparison, either outcome is right.",
        ),
        resolve=resolve,
        infer=lambda p: (p.y,),
        flops=_flops,
        reduction_length=lambda p: 1 if p.reduction is None else max(1, p.reduction.length),
        domain=drawn,
        boundaries=boundaries,
        consistent=telling,
        may_copy=True,
        source="cuDNN graph API: runtime fusion engines, POINTWISE and REDUCTION operations",
    )
)
