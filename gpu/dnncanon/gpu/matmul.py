"""Matrix products: the tile engine's, on tensor cores or on CUDA cores."""

from collections.abc import Callable, Sequence
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts, implements
from dnncanon.spec.matmul import GroupedMatmulProblem, MatmulProblem

# Kernels are imported by the first call: importing them imports Numba.

_ON_TENSOR_CORES = {
    ("float16", "float16"): "float16",
    ("bfloat16", "bfloat16"): "bfloat16",
    ("float16", "int8"): "float16",
    ("int8", "float16"): "float16",
    ("bfloat16", "int8"): "bfloat16",
    ("int8", "bfloat16"): "bfloat16",
    ("int8", "int8"): "int8",
    ("float8_e4m3fn", "float8_e4m3fn"): "float16",
    ("float8_e4m3fn", "float8_e5m2"): "float16",
    ("float8_e5m2", "float8_e4m3fn"): "float16",
    ("float8_e5m2", "float8_e5m2"): "float16",
}
"""The words that operands of these types are multiplied as: they hold all of either's values."""


Word = Callable[[MatmulProblem], str | None]
"""What operands are multiplied as; None where there is nothing for them."""


def _on_tensor_cores(p: MatmulProblem) -> str | None:
    return _ON_TENSOR_CORES.get((p.dtype, p.b_dtype))


def _float32_as(word: str) -> Word:
    return lambda p: word if p.dtype == "float32" else None


def _on_cuda_cores(p: MatmulProblem) -> str:
    if p.whole:
        return "int32"
    return "float64" if p.dtype == "float64" else "float32"


def _matrices(layouts: Layouts[MatmulProblem], word_of: Word) -> Any:
    """The call in the terms of the tile engine."""
    from dnncanon.gpu.kernels.tile.matrices import Matrices, Matrix

    p = layouts.problem
    word = word_of(p)
    assert word is not None
    return Matrices(
        word,
        (1,) * (3 - len(p.batch)) + p.batch,
        p.rows,
        p.columns,
        p.terms,
        Matrix.of(p.dtype, layouts.inputs["a"]),
        Matrix.of(p.b_dtype, layouts.inputs["b"]),
        Matrix.of(p.output, layouts.outputs["y"]),
    ).along_rows()


def _implementation(
    name: str, word_of: Word, *, numerics: str | None = None, tensor_core: bool = True
) -> Implementation[MatmulProblem]:
    def refusal(layouts: Layouts[MatmulProblem]) -> str | None:
        p = layouts.problem
        return None if word_of(p) else f"does not multiply {p.dtype} by {p.b_dtype}"

    def workspace_bytes(layouts: Layouts[MatmulProblem]) -> int:
        from dnncanon.gpu.kernels.tile import matrices

        return matrices.workspace_bytes(_matrices(layouts, word_of), tensor_core=tensor_core)

    def run(launch: Launch[MatmulProblem]) -> None:
        from dnncanon.gpu.kernels.tile import matrices

        m = _matrices(launch.plan, word_of)
        a, b = launch.inputs["a"], launch.inputs["b"]
        first, second = (b, a) if m.flipped else (a, b)
        matrices.multiply(
            m,
            first,
            second,
            launch.outputs["y"],
            _epilogue(launch),
            launch.workspace,
            launch.stream,
            tensor_core=tensor_core,
        )

    return Implementation(name, run, workspace_bytes, refusal, numerics=numerics)


def _wgmma() -> Implementation[MatmulProblem]:
    """Hopper's own instructions for 16-bit types."""

    def word_of(p: MatmulProblem) -> str | None:
        return p.dtype if p.dtype in ("float16", "bfloat16") and p.b_dtype == p.dtype else None

    def refusal(layouts: Layouts[MatmulProblem]) -> str | None:
        from dnncanon.gpu.kernels.tile import pipelined_matrices

        p, inputs = layouts.problem, layouts.inputs
        if word_of(p) is None:
            return f"does not multiply {p.dtype} by {p.b_dtype}"
        addresses = [getattr(inputs[name], "pointer", 0) for name in ("a", "b")]
        return pipelined_matrices.refusal(_matrices(layouts, word_of), (addresses[0], addresses[1]))

    def workspace_bytes(layouts: Layouts[MatmulProblem]) -> int:
        from dnncanon.gpu.kernels.tile import pipelined_matrices

        return pipelined_matrices.workspace_bytes(_matrices(layouts, word_of))

    def pays(layouts: Layouts[MatmulProblem]) -> bool:
        from dnncanon.gpu.kernels.tile import pipelined_matrices

        return pipelined_matrices.pays(_matrices(layouts, word_of))

    def run(launch: Launch[MatmulProblem]) -> None:
        from dnncanon.gpu.kernels.tile import pipelined_matrices

        m = _matrices(launch.plan, word_of)
        a, b = launch.inputs["a"], launch.inputs["b"]
        first, second = (b, a) if m.flipped else (a, b)
        pipelined_matrices.multiply(
            m,
            first,
            second,
            launch.outputs["y"],
            _epilogue(launch),
            launch.workspace,
            launch.stream,
        )

    return Implementation("wgmma", run, workspace_bytes, refusal, pays)


def _epilogue(launch: Launch[MatmulProblem]) -> Any:
    from dnncanon.gpu.kernels.tile.matrices import Epilogue

    p = launch.problem
    return Epilogue(
        p.alpha,
        p.beta,
        launch.inputs.get("c") if p.beta else None,
        launch.inputs.get("bias"),
        {"silu": "swish"}.get(p.activation, p.activation),
    )


def _implementations() -> Sequence[Implementation[MatmulProblem]]:
    return (
        _wgmma(),
        _implementation("tensor_core", _on_tensor_cores),
        *(
            _implementation(f"tensor_core_{word}", _float32_as(word), numerics=word)
            for word in ("tf32x3", "tf32")
        ),
        _implementation("cuda_core", _on_cuda_cores, tensor_core=False),
    )


matmul_forward = GpuPrimitive(spec.matmul_forward, _implementations)


# --- A product for each group of rows -------------------------------------------------------------


def _routing(launch: Launch[GroupedMatmulProblem]) -> Any:
    from dnncanon.gpu.kernels.tile.mixtures import Routing

    given = launch.inputs
    return Routing(given["first_token_offset"], given.get("token_index"), given.get("token_ks"))


@implements(spec.grouped_matmul_forward, "tiles")
def grouped_matmul_forward(launch: Launch[GroupedMatmulProblem]) -> None:
    from dnncanon.gpu.kernels.tile.mixtures import multiply_rows

    token, weight, y = launch.inputs["token"], launch.inputs["weight"], launch.outputs["y"]
    multiply_rows(launch.problem, token, weight, y, _routing(launch), launch.stream)


@implements(spec.grouped_matmul_backward_weights, "tiles")
def grouped_matmul_backward_weights(launch: Launch[GroupedMatmulProblem]) -> None:
    from dnncanon.gpu.kernels.tile.mixtures import multiply_depth

    dy, token = launch.inputs["dy"], launch.inputs["token"]
    dweight = launch.outputs["dweight"]
    multiply_depth(launch.problem, dy, token, dweight, _routing(launch), launch.stream)
