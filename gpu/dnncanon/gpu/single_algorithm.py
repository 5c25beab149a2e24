"""Backends of the conformance suite that use one algorithm only, whatever "auto" would choose.

``dnncanon run --backend dnncanon.gpu.single_algorithm:implicit_gemm``

"auto" leaves small problems to the direct convolution, and a conformance suite's cases are small: without
these backends it would hardly see the other algorithms.
"""

from functools import partial
from types import SimpleNamespace

from dnncanon.gpu import backend

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
)
"""Normalizations whose long sets "auto" splits; in a conformance suite's cases no set is so long."""


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
        describe=backend.describe,
        **{name: partial(function, algorithm=algorithm) for name, function in functions.items()},
    )


direct = only("direct", _CONVOLUTIONS)
implicit_gemm = only("implicit_gemm", _CONVOLUTIONS)
two_pass = only("two_pass", _NORMS)
