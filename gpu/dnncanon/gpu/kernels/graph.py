"""Graphs of pointwise operations as device functions: what a fused kernel applies to each element.

``compose`` makes one function of a graph's nodes, each a device function of the pointwise family. Numbers and
parameters in a graph are arguments, so that graphs which differ in nothing else share their kernels.

    composed = compose(p.graph, p.dtype)
    elementwise(composed.function, operands, (y,), composed.scalars, stream=run.stream)

In any other kernel the function is an epilogue: it takes the graph's tensors in alphabetical order, each as a
number in the compute type, a truth value as an integer; then ``scalars`` in the compute type.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.pointwise import plain
from dnncanon.gpu.kernels.reduction import Monoid
from dnncanon.gpu.pointwise import scalars as scalars_of
from dnncanon.gpu.runtime.device_code import device_function, generated
from dnncanon.spec.fused_graph import Graph, Node, Operand, Result, Tensor, parameters_of

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Composed:
    """A graph's device function ``function(*tensors, *scalars)``, and the scalars for it."""

    function: Function
    tensors: tuple[str, ...]
    scalars: tuple[float, ...]


@lru_cache(maxsize=4096)
def compose(graph: Graph, dtype: str, truths: frozenset[str] = frozenset()) -> Composed:
    """The function of a graph whose a has ``dtype``, and whose tensors ``truths`` are of truth values.

    Results between are kept in ``Element.sum`` of ``dtype``, and so is the last one, unless it is a truth
    value.
    """
    kind, kinds = ELEMENTS[dtype].sum_dtype.name, graph.kinds(truths)
    functions: list[Function] = []
    lines: list[str] = []
    given: list[float] = []
    for number, node in enumerate(graph.nodes):
        of_truths = _is_truth(node.operands[0], kinds, truths)
        arguments = [_argument(operand, given) for operand in node.operands]
        arguments += _parameters(node, "bool" if of_truths else kind, given)
        functions.append(plain(kind, node.mode, truths=of_truths))
        call = f"f{number}({', '.join(arguments)})"
        lines.append(f"r{number} = {call if kinds[number] == 'truth' else f'number({call})'}")
    names = (*graph.tensors, *_numbered("s", len(given)))
    source = (
        f"def graph({', '.join(names)}):\n    {'; '.join(lines)}\n    return r{len(lines) - 1}\n"
    )
    return Composed(_function(source, tuple(functions), kind), graph.tensors, tuple(given))


def reducing(composed: Composed, order: Sequence[str], monoid: Monoid, scalars: int) -> Monoid:
    """The monoid of a graph's results; ``scalars`` of its own come behind those of the graph.

    ``order`` is that of the inputs: the first one decides how a reduction walks.
    """
    return _reducing(
        composed.function, composed.tensors, tuple(order), len(composed.scalars), monoid, scalars
    )


# --- The source -----------------------------------------------------------------------------------


def _is_truth(operand: Operand, kinds: Sequence[str], truths: frozenset[str]) -> bool:
    if isinstance(operand, Result):
        return kinds[operand.node] == "truth"
    return isinstance(operand, Tensor) and operand.name in truths


def _argument(operand: Operand, given: list[float]) -> str:
    """What stands for an operand; a number becomes one more scalar."""
    if isinstance(operand, Tensor):
        return operand.name
    if isinstance(operand, Result):
        return f"r{operand.node}"
    given.append(operand.value)
    return f"s{len(given) - 1}"


def _parameters(node: Node, dtype: str, given: list[float]) -> list[str]:
    """What the function of a mode takes behind its operands: scalars or, of factors, one."""
    values = scalars_of(node.problem(dtype))
    if not parameters_of(node.mode):
        return ["one"] * len(values)
    given += values
    return _numbered("s", len(given))[-len(values) :]


def _numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{k}" for k in range(count)]


@cache
def _function(source: str, functions: tuple[Function, ...], kind: str) -> Function:
    number = ELEMENTS[kind].sum
    scope = {f"f{k}": function for k, function in enumerate(functions)}
    return device_function(generated(source, {**scope, "number": number, "one": number(1)}))


@cache
def _reducing(
    function: Function,
    tensors: tuple[str, ...],
    order: tuple[str, ...],
    numbers: int,
    monoid: Monoid,
    scalars: int,
) -> Monoid:
    of_graph, of_monoid = _numbered("s", numbers), _numbered("k", scalars)
    lift = f"""
def lift_graph({", ".join((*order, *of_graph, *of_monoid))}):
    return lift({", ".join((f"graph({', '.join((*tensors, *of_graph))})", *of_monoid))})
"""
    finish = f"""
def finish_graph({", ".join(("state", *of_graph, *of_monoid))}):
    return finish({", ".join(("state", *of_monoid))})
"""
    scope = {"graph": function, "lift": monoid.lift, "finish": monoid.finish}
    made = (device_function(generated(source, dict(scope))) for source in (lift, finish))
    return replace(monoid, lift=next(made), finish=next(made))
