"""How the catalogues of the GPU library write their mutants down."""

from collections.abc import Callable

from dnncanon.spec.mutant import Mutant

DIRECT = "dnncanon.gpu.single_algorithm:direct"
"""The backend for what all algorithms share: its kernel compiles in a second."""

IMPLICIT_GEMM = "dnncanon.gpu.single_algorithm:implicit_gemm"
"""The backend for what small cases would not reach: "auto" has the direct convolution do them."""

CHECK = {"DNNCANON_DEVICE": "emulator-check"}
"""For what goes unpunished where threads take turns: races, reads of what nothing wrote or is not there."""

FORWARD, FUSED = "conv_forward", "conv_bias_activation_forward"
DATA, FILTER, BIAS = "conv_backward_data", "conv_backward_filter", "conv_backward_bias"


def mutants_of(
    module: str, *, primitive: str, backend: str = DIRECT, check: bool = False
) -> Callable[..., Mutant]:
    """A maker of mutants of one module, with what most of them share.

    On a machine without a GPU; ``check`` chooses the emulator that looks at every memory access.
    """
    shared_primitive, shared_backend, shared_check = primitive, backend, check

    def make(
        name: str,
        kind: str,
        doc: str,
        old: str,
        new: str,
        primitive: str = shared_primitive,
        dtypes: tuple[str, ...] = ("float32",),
        *,
        backend: str = shared_backend,
        check: bool = shared_check,
        equivalent: str = "",
    ) -> Mutant:
        return Mutant(
            name=f"gpu.{name}",
            kind=kind,
            doc=doc,
            module=f"dnncanon.gpu.{module}",
            old=old,
            new=new,
            backend=backend,
            primitive=primitive,
            dtypes=dtypes,
            environment=CHECK if check else {},
            equivalent=equivalent,
        )

    return make
