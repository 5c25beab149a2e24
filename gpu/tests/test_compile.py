"""Every kernel compiles for real hardware (sm_90), without a driver: typing, lowering, NVVM."""

import re
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.emulator.compiler.acquire import without_device
from dnncanon.gpu.kernels.conv_bias import sum_channels
from dnncanon.gpu.kernels.conv_direct import direct
from dnncanon.gpu.runtime import Kernel
from dnncanon.gpu.static.recording import recording
from dnncanon.spec import DTYPES as ELEMENT_TYPES

DTYPES = ("float64", "float32", "float16", "bfloat16")


def compiled(kernel: Kernel, signature: tuple[Any, ...]) -> str:
    """The kernel's PTX."""
    from numba import cuda

    with without_device():
        ptx, _ = cuda.compile(
            kernel.function,
            signature,
            cc=(9, 0),
            device=False,
            abi="numba",
            fastmath=kernel.fastmath,
        )
    return str(ptx)


def memory(dtype: str) -> Any:
    """A flat array of ``dtype`` in storage words."""
    from numba.cuda import types

    word = types.uint16 if dtype.endswith("16") else getattr(types, dtype)
    return types.Array(word, 1, "C")


def ints(count: int) -> Any:
    from numba.cuda import types

    return types.UniTuple(types.int64, count)


def epilogue(dtype: str) -> tuple[Any, ...]:
    from numba.cuda import types

    alphas = types.UniTuple(types.float64, 2)
    return memory(dtype), ints(2), memory(dtype), ints(7), ints(3), alphas


def correlation(dtype: str, out_dtype: str) -> tuple[Any, ...]:
    arrays = memory(dtype), memory(dtype), memory(out_dtype)
    return (*arrays, ints(10), ints(12), ints(7), ints(7), ints(7))


def check_precision(ptx: str, dtype: str) -> None:
    """Products and sums are fused multiply-adds of the sums' type; nothing is flushed to zero."""
    kind, other = ("f64", "f32") if dtype == "float64" else ("f32", "f64")
    assert f"fma.rn.{kind}" in ptx
    assert not re.search(rf"\b(fma|mul|add|sub)(\.rn)?\.{other}\b", ptx)
    assert ".ftz" not in ptx


@pytest.mark.parametrize("dtype", DTYPES)
def test_direct(dtype: str) -> None:
    from numba.cuda import types

    ptx = compiled(direct(dtype), (*correlation(dtype, dtype), types.boolean, *epilogue(dtype)))
    check_precision(ptx, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_implicit_gemm(dtype: str) -> None:
    """A product, its depth split, and the sum of the parts."""
    x, w = (
        np.empty((1, 64, 5, 5), ELEMENT_TYPES[dtype].numpy),
        np.empty((24, 64, 3, 3), ELEMENT_TYPES[dtype].numpy),
    )
    with recording() as launches:
        gpu.conv_forward(x, w, algorithm="implicit_gemm")
    product, parts = (compiled(launch.kernel, launch.signature) for launch in launches)
    assert f"fma.rn.{'f64' if dtype == 'float64' else 'f32'}" in product
    assert not re.search(r"\b(fma|mul|add|sub)(\.rn)?\.ftz", product)
    assert "ld.shared.v4.f32" in product or dtype == "float64"
    assert "cp.async" in product or dtype == "float16"
    assert ".entry" in parts


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias(dtype: str) -> None:
    arrays = memory(dtype), memory(dtype)
    ptx = compiled(
        sum_channels(dtype, dtype), (*arrays, ints(4), ints(4), ints(4), ints(6), ints(3))
    )
    assert ".entry" in ptx
