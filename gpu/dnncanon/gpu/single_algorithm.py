"""Backends of the conformance suite that use one algorithm only, whatever "auto" would choose.

``dnncanon run --backend dnncanon.gpu.single_algorithm:implicit_gemm``

"auto" leaves small problems to the direct convolution, and a conformance suite's cases are small: without
these backends it would hardly see the other algorithms.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from dnncanon.gpu import backend, library
from dnncanon.spec.numerics import permits

_CONVOLUTIONS = (
    "conv_forward",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation_forward",
)

_NORMS = (
    "batch_norm_forward_training",
    "batch_norm_backward",
    *(
        f"{norm}_norm_{direction}"
        for norm in ("layer", "rms", "group", "instance")
        for direction in ("forward", "backward")
    ),
    "lrn_backward",
    "divisive_norm_backward",
)
"""Normalizations whose long sets and large windows "auto" splits; a conformance suite's cases have few."""


_CAUSAL_CONVOLUTIONS = ("causal_conv_forward", "causal_conv_backward")
"""Their transforms are of a numerics class of their own, which "auto" leaves to those who ask for it."""


_RECURRENT = tuple(f"{cell}_forward" for cell in ("rnn_relu", "rnn_tanh", "lstm", "gru"))
"""Networks whose steps are few, in a conformance suite as elsewhere, "auto" computes step by step."""


def only(algorithm: str, primitives: tuple[str, ...]) -> SimpleNamespace:
    """The backend "gpu" with these primitives, each computed by one algorithm."""
    functions = {name: getattr(backend, name) for name in primitives}
    return SimpleNamespace(
        name=f"gpu {algorithm}",
        accepts_out=backend.accepts_out,
        to_device=backend.to_device,
        to_host=backend.to_host,
        as_strided=backend.as_strided,
        synchronize=backend.synchronize,
        describe=partial(_described, algorithm, primitives),
        workspace_bytes=partial(_workspace_bytes, algorithm, primitives),
        **{name: partial(function, algorithm=algorithm) for name, function in functions.items()},
    )


def _described(algorithm: str, primitives: tuple[str, ...]) -> dict[str, Any]:
    """What "gpu" says of itself, with the numerics class of the algorithm."""
    description = backend.describe()
    for name in primitives:
        function: Any = getattr(backend, name)
        classes = {one.name: one.numerics for one in function.implementations}
        weaker = classes.get(algorithm)
        if weaker is not None:
            description["numerics"][name] = {
                dtype: weaker if permits(function.primitive.numerics(dtype), weaker) else claim
                for dtype, claim in description["numerics"][name].items()
            }
    return description


def _workspace_bytes(
    algorithm: str, primitives: tuple[str, ...], name: str, *tensors: Any, **attributes: Any
) -> int:
    """What the algorithm needs for a call, exactly, or "auto" for another primitive."""
    rows = library.algorithms(name, *tensors, **attributes)
    wanted = [row for row in rows if row.name == algorithm or name not in primitives]
    return wanted[0].workspace_bytes


direct = only("direct", (*_CONVOLUTIONS, *_CAUSAL_CONVOLUTIONS))
implicit_gemm = only("implicit_gemm", _CONVOLUTIONS)
pointwise_1x1 = only("pointwise_1x1", _CONVOLUTIONS)
depthwise = only("depthwise", _CONVOLUTIONS)
gemm = only("gemm", _CONVOLUTIONS)
implicit_precomp_gemm = only("implicit_precomp_gemm", _CONVOLUTIONS)
implicit_precomp_gemm_tf32x3 = only("implicit_precomp_gemm_tf32x3", _CONVOLUTIONS)
implicit_precomp_gemm_tf32 = only("implicit_precomp_gemm_tf32", _CONVOLUTIONS)
two_pass = only("two_pass", _NORMS)
fft = only("fft", (*_CONVOLUTIONS, *_CAUSAL_CONVOLUTIONS))
winograd = only("winograd", _CONVOLUTIONS)
winograd_nonfused = only("winograd_nonfused", _CONVOLUTIONS)
fft_tiling = only("fft_tiling", _CONVOLUTIONS)
cuda_core = only("cuda_core", ("matmul_forward",))
tensor_core_tf32x3 = only("tensor_core_tf32x3", ("matmul_forward",))
tensor_core_tf32 = only("tensor_core_tf32", ("matmul_forward",))
wgmma = only("wgmma", ("matmul_forward",))
standard = only("standard", _RECURRENT)
persist = only("persist", _RECURRENT)
wavefront = only("wavefront", _RECURRENT)
