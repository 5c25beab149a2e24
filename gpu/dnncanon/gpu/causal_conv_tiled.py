"""Causal convolution in tiles, as an algorithm beside the direct one: its steps and workspace."""

from typing import Any

from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.causal_conv_problem import CausalConvProblem

# Kernels are imported by the first call: importing them imports Numba.


def _backward(run: Launch[CausalConvProblem]) -> None:
    """All gradients of one reading; those of weights and bias in parts, which are added up."""
    from dnncanon.gpu.kernels import causal_conv_tiled as kernels
    from dnncanon.gpu.kernels.reduction import SUM, reduce

    p, w = run.problem, run.inputs["w"]
    scratch = _scratch(p, run.inputs["x"])
    room, rest = scratch.arrays(run.workspace), scratch.rest(run.workspace)
    operands = (run.inputs["dy"], run.inputs["x"], w, run.inputs.get("bias", w))
    outputs = (run.outputs["dx"], room["dw"], room.get("dbias", room["dw"]))
    kernels.gradients(p, operands, outputs, run.stream)
    for name, parts in room.items():
        reduce(SUM, (parts,), (run.outputs[name],), (0,), workspace=rest, stream=run.stream)


def _scratch(p: CausalConvProblem, x: Strided) -> Any:
    """The parts of the gradients of weights and bias, and what it takes to add them up."""
    from dnncanon.gpu.kernels.causal_conv_tiled import Tiles
    from dnncanon.gpu.kernels.element import ELEMENTS
    from dnncanon.gpu.kernels.reduction import SUM, workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    sums = ELEMENTS[p.dtype].sum_dtype.name
    shapes: dict[str, tuple[int, ...]] = {"dw": (Tiles.of(p, x).parts, p.shape[1], p.taps)}
    if p.has_bias:
        shapes["dbias"] = shapes["dw"][:2]
    views = (View(shape, dense_strides(shape)) for shape in shapes.values())
    rest = max(workspace_bytes(SUM, view, (0,), sums) for view in views)
    return Scratch(rest, **{name: (shape, sums) for name, shape in shapes.items()})


def _workspace_bytes(layouts: Layouts[CausalConvProblem]) -> int:
    return int(_scratch(layouts.problem, layouts.inputs["x"]).nbytes)


def _refusal(layouts: Layouts[CausalConvProblem]) -> str | None:
    from dnncanon.gpu.kernels.causal_conv_tiled import MOST_TAPS

    taps = layouts.problem.taps
    return f"takes {MOST_TAPS} taps at most, not {taps}" if taps > MOST_TAPS else None


BACKWARD = Implementation("tiled", _backward, _workspace_bytes, _refusal)
