"""Causal convolution on the GPU, plain and gated: sums over taps, and for the gradients of weights over all
steps."""

from dataclasses import replace
from typing import Any

from dnncanon import spec
from dnncanon.gpu import causal_conv_fft, causal_conv_tiled
from dnncanon.gpu.primitive import Launch, Layouts, implements
from dnncanon.gpu.runtime import DeviceArray, Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.causal_conv_problem import (
    PROJECTIONS,
    CausalConvProblem,
    GatedCausalConvProblem,
)

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.causal_conv_forward, "direct", beside=(causal_conv_fft.FORWARD,))
def causal_conv_forward(run: Launch[CausalConvProblem]) -> None:
    from dnncanon.gpu.kernels import causal_conv as kernels

    kernels.forward(run.problem, _operands(run), run.outputs["y"], run.stream)


def _workspace_bytes(layouts: Layouts[CausalConvProblem]) -> int:
    return _scratch(layouts.problem, layouts.inputs["dy"]).nbytes


@implements(
    spec.causal_conv_backward,
    "direct",
    workspace_bytes=_workspace_bytes,
    beside=(causal_conv_fft.BACKWARD, causal_conv_tiled.BACKWARD),
)
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


@implements(spec.gated_causal_conv_forward, "fused")
def gated_causal_conv_forward(run: Launch[GatedCausalConvProblem]) -> None:
    from dnncanon.gpu.kernels import gated_causal_conv as kernels

    outputs = (run.outputs["y"], run.outputs["gated"])
    kernels.forward(run.problem, _gated_operands(run), outputs, run.stream)


def _gated_workspace_bytes(layouts: Layouts[GatedCausalConvProblem]) -> int:
    return _gated_scratch(layouts.problem).nbytes


@implements(spec.gated_causal_conv_backward, "fused", workspace_bytes=_gated_workspace_bytes)
def gated_causal_conv_backward(run: Launch[GatedCausalConvProblem]) -> None:
    """What the projections and the mixer are differentiated by; then the gradients of each of them."""
    from dnncanon.gpu.kernels import causal_conv, gated_causal_conv
    from dnncanon.gpu.kernels.elementwise import elementwise
    from dnncanon.gpu.kernels.gated_causal_conv import PRODUCTS, part
    from dnncanon.gpu.kernels.reduction import as_it_is, reduce

    p, scratch = run.problem, _gated_scratch(run.problem)
    made = scratch.arrays(run.workspace)
    slopes = [part(made["slopes"], 2, i) for i in range(PROJECTIONS)]
    given = (*_gated_operands(run), run.inputs["dgated"], run.inputs["y"])
    gated_causal_conv.backward(p, given, (*slopes, made["g"], made["v"]), run.stream)
    x, projection = run.inputs["x"], run.inputs["projection"]
    dx, dprojection = run.outputs["dx"], run.outputs["dprojection"]
    for i, slope in enumerate(slopes):
        weights, dweights = part(projection, 1, i), part(dprojection, 1, i)
        causal_conv.input_gradient(p.projection, (slope, weights), part(dx, 2, i), run.stream)
        causal_conv.weight_gradient(p.projection, slope, part(x, 2, i), dweights, run.stream)
    sums = replace(p.mixer, dtype=made["g"].dtype.name)
    causal_conv.weight_gradient(sums, made["g"], made["v"], made["dmixer"], run.stream)
    elementwise(as_it_is, (made["dmixer"],), (run.outputs["dmixer"],), stream=run.stream)
    if p.has_skip:
        rest, dskip = scratch.rest(run.workspace), run.outputs["dskip"]
        reduce(
            PRODUCTS, (made["g"], made["v"]), (dskip,), (0, 2), workspace=rest, stream=run.stream
        )


def _gated_operands(run: Launch[GatedCausalConvProblem]) -> tuple[DeviceArray, ...]:
    """x, projection, mixer and skip, or the mixer in its place."""
    x, projection, mixer = (run.inputs[name] for name in ("x", "projection", "mixer"))
    return x, projection, mixer, run.inputs.get("skip", mixer)


def _gated_scratch(p: GatedCausalConvProblem) -> Any:
    """What the backward pass hands on, in the type of sums, and what the sum of the skip's gradient takes."""
    from dnncanon.gpu.kernels.element import ELEMENTS
    from dnncanon.gpu.kernels.gated_causal_conv import PRODUCTS
    from dnncanon.gpu.kernels.reduction import workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    sums = ELEMENTS[p.dtype].sum_dtype.name
    batch, channels, steps = p.shape
    g = View(p.shape, dense_strides(p.shape))
    rest = workspace_bytes(PRODUCTS, g, (0, 2), sums) if p.has_skip else 0
    return Scratch(
        rest,
        slopes=((batch, channels, PROJECTIONS, steps), sums),
        g=(p.shape, sums),
        v=(p.shape, sums),
        dmixer=((channels, p.mixer.taps), sums),
    )
