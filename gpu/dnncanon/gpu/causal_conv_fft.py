"""Causal convolution by Fourier transforms, as an algorithm beside the direct one: its steps and workspace."""

from typing import Any

from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.causal_conv_problem import CausalConvProblem

_PAYS = 256
"""Taps that meet a step, from which on transforms cost less than products: two of 5·log2 n operations for a
point, and what they read and write, beside two operations for a tap."""

# Kernels are imported by the first call: importing them imports Numba.


def _forward(run: Launch[CausalConvProblem]) -> None:
    """Spectra of the filters; then segment by segment."""
    from dnncanon.gpu.kernels import causal_conv_fft as kernels

    p, x, w = run.problem, run.inputs["x"], run.inputs["w"]
    made = _forward_scratch(p).arrays(run.workspace)
    kernels.filter_spectra(p, w, made["table"], made["filters"], run.stream)
    given = (x, made["filters"], made["table"], (run.inputs.get("bias", w), x))
    kernels.convolve(p, "forward", *given, run.outputs["y"], run.stream)


def _backward(run: Launch[CausalConvProblem]) -> None:
    """g, where it is not dy itself; dx by the spectra of filters, and dw by those of g."""
    from dnncanon.gpu.kernels import causal_conv_fft as kernels
    from dnncanon.gpu.kernels.reduction import SUM, reduce

    p, x, w, g = run.problem, run.inputs["x"], run.inputs["w"], run.inputs["dy"]
    scratch = _backward_scratch(p, g)
    made = scratch.arrays(run.workspace)
    table, filters, bias = made["table"], made["filters"], run.inputs.get("bias", w)
    kernels.filter_spectra(p, w, table, filters, run.stream)
    if p.activation == "silu":
        kernels.convolve(p, "slope", x, filters, table, (bias, g), made["g"], run.stream)
        g = made["g"]
    dx, dw = run.outputs["dx"], run.outputs["dw"]
    kernels.convolve(
        p, "input_gradient", g, filters, table, (bias, run.inputs["dy"]), dx, run.stream
    )
    kernels.gradient_spectra(p, g, table, made["gradients"], run.stream)
    kernels.correlate(p, x, made["gradients"], table, dw, run.stream)
    if p.has_bias:
        rest, dbias = scratch.rest(run.workspace), run.outputs["dbias"]
        reduce(SUM, (g,), (dbias,), (0, 2), workspace=rest, stream=run.stream)


def _forward_scratch(p: CausalConvProblem) -> Any:
    """The table of the transforms' factors, and the spectra of the filters."""
    from dnncanon.gpu.kernels.causal_conv_fft import Frames
    from dnncanon.gpu.kernels.scratch import Scratch

    frames = Frames.of(p)
    return Scratch(table=frames.table, filters=frames.filters)


def _backward_scratch(p: CausalConvProblem, dy: Strided) -> Any:
    """The same, the spectra of g, g with an activation, and what the sum of the bias's gradient takes."""
    from dnncanon.gpu.kernels.causal_conv_fft import Frames
    from dnncanon.gpu.kernels.reduction import SUM, workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    frames, has_g = Frames.of(p), p.activation == "silu"
    g = View(p.shape, dense_strides(p.shape)) if has_g else dy
    rest = workspace_bytes(SUM, g, (0, 2), frames.sums if has_g else p.dtype) if p.has_bias else 0
    return Scratch(
        rest,
        table=frames.table,
        filters=frames.filters,
        gradients=frames.gradients(p.shape[0]),
        **({"g": (p.shape, frames.sums)} if has_g else {}),
    )


def _pays(layouts: Layouts[CausalConvProblem]) -> bool:
    return layouts.problem.terms >= _PAYS


FORWARD = Implementation[CausalConvProblem](
    "fft",
    _forward,
    lambda layouts: _forward_scratch(layouts.problem).nbytes,
    pays=_pays,
    numerics="fft",
)
BACKWARD = Implementation[CausalConvProblem](
    "fft",
    _backward,
    lambda layouts: _backward_scratch(layouts.problem, layouts.inputs["dy"]).nbytes,
    pays=_pays,
    numerics="fft",
)
