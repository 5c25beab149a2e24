"""Softmax and its gradient: one kernel, a row being read twice, or two where few rows are long."""

from collections.abc import Callable
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts
from dnncanon.spec import Primitive
from dnncanon.spec.softmax import SoftmaxProblem

# Kernels are imported by the first call: importing them imports Numba.

Problem = SoftmaxProblem


def _row_wise(
    primitive: Primitive[Problem],
    made: Callable[[Problem], Any],
    names: tuple[str, ...],
    output: str,
) -> GpuPrimitive[Problem]:
    """The primitive that is the row map ``made`` of the inputs of these names."""

    def run(run: Launch[Problem]) -> None:
        from dnncanon.gpu.kernels.row_map import row_map

        row_map(
            made(run.problem),
            [run.inputs[name] for name in names if name in run.inputs],
            (run.outputs[output],),
            run.problem.axes,
            (run.problem.log,),
            row_output=run.outputs.get("stats"),
            workspace=run.workspace,
            stream=run.stream,
        )

    def workspace_bytes(layouts: Layouts[Problem]) -> int:
        from dnncanon.gpu.kernels.row_map import row_map_workspace_bytes

        p = layouts.problem
        return row_map_workspace_bytes(made(p), layouts.inputs[names[0]], p.axes, p.dtype)

    return GpuPrimitive(primitive, lambda: [Implementation("row_wise", run, workspace_bytes)])


def _forward(p: Problem) -> Any:
    from dnncanon.gpu.kernels import softmax

    return softmax.forward(p.dtype, masked=p.masked)


def _backward(p: Problem) -> Any:
    from dnncanon.gpu.kernels import softmax

    return softmax.backward(p.dtype, masked=p.masked)


softmax_forward = _row_wise(spec.softmax_forward, _forward, ("x", "mask"), "y")
softmax_backward = _row_wise(spec.softmax_backward, _backward, ("y", "dy", "mask"), "dx")
