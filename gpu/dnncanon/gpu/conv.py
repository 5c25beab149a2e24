"""The convolution family on the GPU: from a call to the plan that its algorithms work on."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from dnncanon import spec
from dnncanon.gpu.kernels import correlation
from dnncanon.gpu.kernels.correlation import Layout
from dnncanon.gpu.kernels.plan import BiasPlan, Epilogue, Plan, Tensors
from dnncanon.gpu.kernels.plan import Implementation as Correlating
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts
from dnncanon.gpu.runtime import DeviceArray, Strided
from dnncanon.spec.conv import BiasProblem, FusedConvProblem

# --- Plans ----------------------------------------------------------------------------------------


def _correlations(layouts: Layouts[Any]) -> Plan:
    """The correlations that make up a call: extents and layouts, no data."""
    problem, out = layouts.problem, next(iter(layouts.outputs.values()))
    geometry = getattr(problem, "conv", problem)
    first, second, *_ = layouts.inputs.values()
    match layouts.call.primitive.name:
        case "conv_backward_data":
            parts = tuple(correlation.backward_data(problem, first, second, out))
        case "conv_backward_filter":
            parts = (correlation.backward_filter(problem, first, second, out),)
        case _:
            parts = (correlation.forward(geometry, first, second, out),)
    depthwise = geometry.in_channels == geometry.groups
    return Plan(layouts.call.dtype, parts, _residual(problem, layouts.inputs), depthwise)


def _residual(problem: Any, inputs: Mapping[str, Strided]) -> Layout | None:
    """Where z is, in the roles of the output's dims, if it is added."""
    if not isinstance(problem, FusedConvProblem) or not problem.alpha2 or "z" not in inputs:
        return None
    return correlation.residual_layout(problem.conv, inputs["z"])


def _sum_of_channels(layouts: Layouts[BiasProblem]) -> BiasPlan:
    return BiasPlan.of(layouts.call.dtype, layouts.problem.dy_shape, layouts.inputs["dy"])


# --- Algorithms -----------------------------------------------------------------------------------


def _correlating(*, gradient_of_filter: bool = False) -> list[Implementation[Any]]:
    """Those of the convolutions, the preferred ones first.

    Winograd's have outputs and taps of their own for the gradient of a filter, whose few extents are outputs.
    """
    from dnncanon.gpu.kernels import (
        conv_depthwise,
        conv_direct,
        conv_fft,
        conv_gemm,
        conv_implicit_gemm,
        conv_implicit_precomp_gemm,
        conv_pointwise_1x1,
        conv_winograd,
    )

    fused, non_fused = ((3, 2), (3, 4)) if gradient_of_filter else ((2, 3), (4, 3))

    algorithms: list[Correlating[Any]] = [
        conv_fft.Whole(),
        conv_fft.Tiling(),
        conv_winograd.NonFused(*non_fused),
        conv_winograd.Fused(*fused),
        conv_pointwise_1x1.Pointwise(),
        conv_depthwise.Depthwise(),
        *conv_implicit_precomp_gemm.ALGORITHMS,
        conv_implicit_gemm.ImplicitGemm(),
        conv_gemm.Gemm(),
        conv_direct.Direct(),
    ]
    return [_offered(algorithm) for algorithm in algorithms]


def _reducing() -> list[Implementation[Any]]:
    """Those of the bias."""
    from dnncanon.gpu.kernels import conv_bias

    return [_offered(conv_bias.Reduction())]


def _offered(algorithm: Correlating[Any]) -> Implementation[Any]:
    """An algorithm of the kernels, as one of the library."""

    def run(launch: Launch[Any]) -> None:
        algorithm.run(launch.plan, _tensors(launch), launch.workspace, launch.stream)

    return Implementation(
        algorithm.name,
        run,
        algorithm.workspace_bytes,
        algorithm.refusal,
        algorithm.pays,
        algorithm.deterministic,
        algorithm.numerics,
    )


def _tensors(launch: Launch[Any]) -> Any:
    """The arrays that the algorithms are given."""
    first, *others = launch.inputs.values()
    (out,) = launch.outputs.values()
    if isinstance(launch.plan, BiasPlan):
        return first, out
    return Tensors(first, others[0], out, _epilogue(launch.problem, launch.inputs))


def _epilogue(problem: Any, inputs: Mapping[str, DeviceArray]) -> Epilogue:
    if not isinstance(problem, FusedConvProblem):
        return Epilogue()
    at = _residual(problem, inputs)
    return Epilogue(
        alpha1=problem.alpha1,
        alpha2=problem.alpha2,
        bias=inputs["bias"],
        residual=None if at is None else inputs["z"],
        residual_at=at,
        relu=problem.activation == "relu",
    )


# --- The five primitives --------------------------------------------------------------------------

conv_forward = GpuPrimitive(spec.conv_forward, _correlating, _correlations)
conv_backward_data = GpuPrimitive(spec.conv_backward_data, _correlating, _correlations)
conv_backward_filter = GpuPrimitive(
    spec.conv_backward_filter, partial(_correlating, gradient_of_filter=True), _correlations
)
conv_bias_activation_forward = GpuPrimitive(
    spec.conv_bias_activation_forward, _correlating, _correlations
)
conv_backward_bias = GpuPrimitive(spec.conv_backward_bias, _reducing, _sum_of_channels)
