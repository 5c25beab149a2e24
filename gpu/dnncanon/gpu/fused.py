"""Fusion: a graph of pointwise operations as one kernel, by the elementwise or the reduction engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts
from dnncanon.gpu.reduce import monoid_of
from dnncanon.gpu.runtime import Strided, View
from dnncanon.spec.fused_problem import FusedProblem
from dnncanon.spec.fused_tracing import Fused

# Kernels are imported by the first call: importing them imports Numba.

Problem = FusedProblem


def _run(run: Launch[Problem]) -> None:
    from dnncanon.gpu.kernels.elementwise import elementwise
    from dnncanon.gpu.kernels.graph import compose
    from dnncanon.gpu.kernels.reduction import reduce
    from dnncanon.gpu.kernels.strided import broadcast_strides

    p, y = run.problem, run.outputs["y"]
    if p.reduction is None:
        composed = compose(p.graph, p.dtype, p.truths)
        operands = [run.inputs[name] for name in composed.tensors]
        elementwise(composed.function, operands, (y,), composed.scalars, stream=run.stream)
        return
    order = _order(p, run.inputs)
    monoid, scalars = _monoid(p, order)
    first, *others = (run.inputs[name] for name in order)
    whole = replace(first, shape=p.shape, strides=broadcast_strides(first, p.shape))
    inputs, axes = (whole, *others), p.reduction.axes
    reduce(monoid, inputs, (y,), axes, scalars, workspace=run.workspace, stream=run.stream)


def _workspace_bytes(layouts: Layouts[Problem]) -> int:
    from dnncanon.gpu.kernels.reduction import workspace_bytes
    from dnncanon.gpu.kernels.strided import broadcast_strides

    p = layouts.problem
    if p.reduction is None:
        return 0
    order = _order(p, layouts.inputs)
    whole = View(p.shape, broadcast_strides(layouts.inputs[order[0]], p.shape))
    return workspace_bytes(_monoid(p, order)[0], whole, p.reduction.axes, p.dtype)


def _order(p: Problem, inputs: Mapping[str, Strided]) -> tuple[str, ...]:
    """The tensors, first the largest one of numbers: a reduction walks along it."""
    numbers = [name for name in p.graph.tensors if name not in p.truths]
    first = max(numbers, key=lambda name: prod(inputs[name].shape))
    return first, *(name for name in p.graph.tensors if name != first)


def _monoid(p: Problem, order: tuple[str, ...]) -> tuple[Any, tuple[float, ...]]:
    """What is combined of inputs in this order, and the scalars of the graph and of the reduction."""
    from dnncanon.gpu.kernels.graph import compose, reducing

    assert p.reduction is not None
    composed = compose(p.graph, p.dtype, p.truths)
    monoid, scalars = monoid_of(p.reduction)
    return reducing(composed, order, monoid, len(scalars)), (*composed.scalars, *scalars)


pointwise_fusion = GpuPrimitive(
    spec.pointwise_fusion, lambda: [Implementation("one_kernel", _run, _workspace_bytes)]
)


def fuse(function: Callable[..., Any]) -> Fused:
    """A function of arrays, written with operators and ``modes``, as one kernel: see engines.md.

    What it returns takes the arrays and the options of every function here, such as ``out``.
    """
    return Fused(function, pointwise_fusion)
