"""Reductions by the reduction engine; their gradients by one pass over the elements, or a row map."""

from dataclasses import replace
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.spec.reduce import INTEGERS, ReduceProblem

# Kernels are imported by the first call: importing them imports Numba.

Scalars = tuple[float, ...]
Problem = ReduceProblem


# --- Forward --------------------------------------------------------------------------------------


def _forward(run: Launch[Problem]) -> None:
    from dnncanon.gpu.kernels.reduction import reduce

    p = run.problem
    monoid, scalars = monoid_of(p)
    outputs = [run.outputs[name] for name in ("y", "indices") if name in run.outputs]
    x = run.inputs["x"]
    reduce(monoid, (x,), outputs, p.axes, scalars, workspace=run.workspace, stream=run.stream)


def _forward_workspace(layouts: Layouts[Problem]) -> int:
    from dnncanon.gpu.kernels.reduction import workspace_bytes

    p = layouts.problem
    return workspace_bytes(monoid_of(p)[0], layouts.inputs["x"], p.axes, p.dtype)


def monoid_of(p: Problem) -> tuple[Any, Scalars]:
    """What is combined, and its scalars."""
    from dnncanon.gpu.kernels import reduce as kernels

    if p.op in kernels.SUMS:
        whole = p.dtype in INTEGERS
        sums = kernels.INTEGER_SUMS if whole else kernels.FLOAT_SUMS
        return sums, (kernels.SUMS.index(p.op), p.length)
    if p.op in kernels.EXTREMA:
        monoid = kernels.extrema(p.dtype, indices=p.indices)
        return monoid, (kernels.EXTREMA.index(p.op),)
    if p.op in kernels.PRODUCTS:
        return kernels.FLOAT_PRODUCTS, (kernels.PRODUCTS.index(p.op),)
    return (kernels.norm if p.op == "norm2" else kernels.logsumexp)(p.dtype), ()


reduce_forward = GpuPrimitive(
    spec.reduce_forward, lambda: [Implementation("tree", _forward, _forward_workspace)]
)


# --- Backward -------------------------------------------------------------------------------------


def _backward(run: Launch[Problem]) -> None:
    p, x, dx = run.problem, run.inputs["x"], run.outputs["dx"]
    dy = _with_axes(run.inputs["dy"], p)
    if p.op in ("add", "avg", "norm1"):
        _each(p, x, dy, dx, run.stream)
        return
    from dnncanon.gpu.kernels.row_map import row_map

    made, scalars = _row_map(p)
    row_map(made, (x, dy), (dx,), p.axes, scalars, workspace=run.workspace, stream=run.stream)


def _backward_workspace(layouts: Layouts[Problem]) -> int:
    from dnncanon.gpu.kernels.row_map import row_map_workspace_bytes

    p = layouts.problem
    if p.op in ("add", "avg", "norm1"):
        return 0
    return row_map_workspace_bytes(_row_map(p)[0], layouts.inputs["x"], p.axes, p.dtype)


def _each(p: Problem, x: DeviceArray, dy: DeviceArray, dx: DeviceArray, stream: object) -> None:
    """The gradients for which an element need know nothing of its set."""
    from dnncanon.gpu.kernels import reduce as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise

    if p.op == "norm1":
        elementwise(kernels.signed(p.dtype), (x, dy), (dx,), stream=stream)
    else:
        count = p.length if p.op == "avg" else 1
        elementwise(kernels.shared, (dy,), (dx,), (count,), stream=stream)


def _row_map(p: Problem) -> tuple[Any, Scalars]:
    """The gradient that needs the set as a whole, and its scalars."""
    from dnncanon.gpu.kernels import reduce as kernels

    if p.op in kernels.EXTREMA:
        return kernels.extremum_gradient(p.dtype), (kernels.EXTREMA.index(p.op),)
    if p.op in kernels.PRODUCTS:
        return kernels.PRODUCT_GRADIENT, (kernels.PRODUCTS.index(p.op),)
    made = kernels.norm_gradient if p.op == "norm2" else kernels.logsumexp_gradient
    return made(p.dtype), ()


def _with_axes(dy: DeviceArray, p: Problem) -> DeviceArray:
    """dy with the reduced dims, of extent 1."""
    if p.keepdims:
        return dy
    kept = iter(dy.strides)
    strides = [0 if dim in p.axes else next(kept) for dim in range(len(p.shape))]
    return replace(dy, shape=p.kept_shape, strides=tuple(strides))


reduce_backward = GpuPrimitive(
    spec.reduce_backward, lambda: [Implementation("row_wise", _backward, _backward_workspace)]
)
