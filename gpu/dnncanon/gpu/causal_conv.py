"""Causal convolution on the GPU: sums over taps, and for the gradients of weights and bias over all steps."""

from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, Layouts, implements
from dnncanon.gpu.runtime import DeviceArray, Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.causal_conv import CausalConvProblem

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.causal_conv_forward, "direct")
def causal_conv_forward(run: Launch[CausalConvProblem]) -> None:
    from dnncanon.gpu.kernels import causal_conv as kernels

    kernels.forward(run.problem, _operands(run), run.outputs["y"], run.stream)


def _workspace_bytes(layouts: Layouts[CausalConvProblem]) -> int:
    return _scratch(layouts.problem, layouts.inputs["dy"]).nbytes


@implements(spec.causal_conv_backward, "direct", workspace_bytes=_workspace_bytes)
def causal_conv_backward(run: Launch[CausalConvProblem]) -> None:
    """g, where it is not dy itself; then what is made of it."""
    from dnncanon.gpu.kernels import causal_conv as kernels
    from dnncanon.gpu.kernels.reduction import SUM, reduce

    p, x, w = run.problem, run.inputs["x"], run.inputs["w"]
    g = run.inputs["dy"]
    scratch = _scratch(p, g)
    if p.activation == "silu":
        room = scratch.arrays(run.workspace)["g"]
        kernels.slope(p, (*_operands(run), g), room, run.stream)
        g = room
    kernels.input_gradient(p, (g, w), run.outputs["dx"], run.stream)
    kernels.weight_gradient(p, g, x, run.outputs["dw"], run.stream)
    if p.has_bias:
        rest, dbias = scratch.rest(run.workspace), run.outputs["dbias"]
        reduce(SUM, (g,), (dbias,), (0, 2), workspace=rest, stream=run.stream)


def _operands(run: Launch[CausalConvProblem]) -> tuple[DeviceArray, ...]:
    """x, w and bias, or w in its place."""
    x, w = run.inputs["x"], run.inputs["w"]
    return x, w, run.inputs.get("bias", w)


def _scratch(p: CausalConvProblem, dy: Strided) -> Any:
    """g with an activation, and what the sum of the bias's gradient takes."""
    from dnncanon.gpu.kernels.element import ELEMENTS
    from dnncanon.gpu.kernels.reduction import SUM, workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    sums = ELEMENTS[p.dtype].sum_dtype.name
    has_g = p.activation == "silu"
    g = View(p.shape, dense_strides(p.shape)) if has_g else dy
    rest = workspace_bytes(SUM, g, (0, 2), sums if has_g else p.dtype) if p.has_bias else 0
    return Scratch(rest, **({"g": (p.shape, sums)} if has_g else {}))
