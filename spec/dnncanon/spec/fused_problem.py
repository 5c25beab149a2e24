"""A fused call as a problem: its graph, what kind its result is, the reduction behind it."""

from dataclasses import dataclass

from dnncanon.spec.axes import resolved_axes
from dnncanon.spec.elementwise import broadcast_shape
from dnncanon.spec.fused_graph import Graph, graph_of
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.reduce import ReduceProblem
from dnncanon.spec.tensors import Shape, TensorType


@dataclass(frozen=True, slots=True)
class FusedProblem:
    """One call: ``shape`` is that of the graph's result, which has ``dtype`` or, if ``is_truth``, is bool.

    ``truths`` are the tensors of truth values; ``reduction`` is what the result goes through, or None.
    """

    dtype: str
    shape: Shape
    graph: Graph
    truths: frozenset[str]
    reduction: ReduceProblem | None

    @property
    def is_truth(self) -> bool:
        return self.graph.kinds(self.truths)[-1] == "truth"

    @property
    def y(self) -> TensorType:
        """What is put out."""
        if self.reduction is not None:
            return TensorType(self.dtype, self.reduction.y_shape)
        return TensorType("bool" if self.is_truth else self.dtype, self.shape)


def resolve(a: Arguments) -> FusedProblem:
    """The problem that legal arguments describe."""
    graph, shape = graph_of(a.attributes["graph"]), broadcast_shape(a)
    dtype, op = a.tensors["a"].dtype, a.attributes["reduction"]
    reduction = None
    if op is not None:
        axes = resolved_axes(a.attributes["axes"], len(shape))
        reduction = ReduceProblem(dtype, shape, op, axes, a.attributes["keepdims"])
    return FusedProblem(dtype, shape, graph, truths(a), reduction)


def truths(a: Arguments) -> frozenset[str]:
    """The tensors of truth values."""
    return frozenset(name for name, tensor in a.tensors.items() if tensor.dtype == "bool")
