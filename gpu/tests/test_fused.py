"""Fused graphs of the GPU library against NumPy: one kernel for each, that reads and writes everything once."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from dnncanon import gpu
from dnncanon.gpu.emulator.compiler.acquire import without_device
from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.kernels.graph import compose, reducing
from dnncanon.gpu.kernels.pointwise import plain
from dnncanon.gpu.kernels.reduction import SUM
from dnncanon.gpu.pointwise import scalars
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import to_device
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.spec.fused_graph import FUSIBLE, graph_of

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
A, B, C = RANDOM.standard_normal((3, 5, 24))
T = RANDOM.standard_normal((5, 24)) > 0
NAN, INF = np.nan, np.inf


def result(graph: str, *tensors: Any, **options: Any) -> Array:
    return np.asarray(gpu.pointwise_fusion(*tensors, graph=graph, **options))


def gelu(x: Array) -> Array:
    return x * special.erfc(-x / 2**0.5) / 2


# --- Values ---------------------------------------------------------------------------------------

GRAPHS: dict[str, tuple[Callable[..., Array], tuple[Array, ...]]] = {
    "gelu_fwd(add(a,b))": (lambda a, b: gelu(a + b), (A, B)),
    "mul(swish_fwd(a,swish_beta=1.5),b)": (lambda a, b: a * special.expit(1.5 * a) * b, (A, B)),
    "t0=add(mul(a,b),c);binary_select(t0,mul(t0,0.125),cmp_gt(t0,0.0))": (
        lambda a, b, c: np.where(a * b + c > 0, a * b + c, (a * b + c) / 8),
        (A, B, C),
    ),
    "max(relu_fwd(a,relu_lower_clip=-1.0,relu_upper_clip=0.5),mul(a,b))": (
        lambda a, b: np.maximum(np.clip(a, -1, 0.5), a * b),
        (A, B),
    ),
    "binary_select(neg(a),-inf,logical_or(logical_not(b),cmp_lt(a,0.0)))": (
        lambda a, t: np.where(~t | (a < 0), -a, -INF),
        (A, T),
    ),
    "div(floor(mul(a,4.0)),add(ceil(abs(b)),0.5))": (
        lambda a, b: np.floor(a * 4) / (np.ceil(np.abs(b)) + 0.5),
        (A, B),
    ),
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_values(graph: str) -> None:
    function, tensors = GRAPHS[graph]
    np.testing.assert_allclose(result(graph, *tensors), function(*tensors), rtol=1e-13, atol=1e-15)


def test_values_in_float32() -> None:
    graph = "gelu_fwd(add(a,b))"
    small = A.astype("f"), B.astype("f")
    y = result(graph, *small)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, gelu(small[0].astype(float) + small[1]), rtol=2e-6, atol=1e-7)


def test_truth_values_are_put_out() -> None:
    y = result("logical_and(cmp_ge(add(a,b),c),d)", A, B, C, T)
    assert y.dtype == bool
    np.testing.assert_array_equal(y, (A + B >= C) & T)


def test_choices_among_truth_values() -> None:
    y = result("binary_select(b,identity(logical_not(b)),cmp_gt(a,0.0))", A, T)
    np.testing.assert_array_equal(y, np.where(A > 0, T, ~T))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_between_are_not_rounded_and_the_last_one_is_once(dtype: Any) -> None:
    a, b = A.astype(dtype), np.full((1, 24), 2.0**-12, dtype)
    np.testing.assert_array_equal(result("sub(add(a,b),a)", a, b), np.broadcast_to(b, a.shape))
    scale = np.float32(B)
    y = result("mul(a,b)", a, scale)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, (a.astype(float) * scale).astype(dtype))


def test_nan_and_infinities_pass_through() -> None:
    y = result("relu_fwd(add(a,b))", np.array([NAN, -INF, INF]), np.array([1, 1, -INF]))
    np.testing.assert_array_equal(y, [NAN, 0, NAN])


REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "add": lambda x: x.sum(1),
    "avg": lambda x: x.mean(1),
    "norm1": lambda x: np.abs(x).sum(1),
    "max": lambda x: x.max(1),
    "amax": lambda x: np.abs(x).max(1),
    "mul_no_zeros": lambda x: np.where(x == 0, 1, x).prod(1),
    "norm2": lambda x: np.sqrt((x * x).sum(1)),
    "logsumexp": lambda x: special.logsumexp(x, axis=1),
}


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_of_a_graph(op: str) -> None:
    y = result("sub(mul(a,b),0.5)", A, B, reduction=op, axes=1)
    np.testing.assert_allclose(y, REDUCTIONS[op](A * B - 0.5), rtol=1e-12)


def test_reductions_over_any_axes() -> None:
    x = RANDOM.standard_normal((3, 4, 5))
    for axes in ((0,), (0, 2), (1, 2), None):
        y = result("mul(a,a)", x, reduction="add", axes=axes)
        np.testing.assert_allclose(y, (x * x).sum(axes), rtol=1e-13)
    kept = result("mul(a,a)", x, reduction="add", axes=1, keepdims=True)
    assert kept.shape == (3, 1, 5)


def test_long_sets_are_split() -> None:
    x, shift = 1 + RANDOM.standard_normal((2, 9000)).astype("f") / 1000, np.ones((1, 1), "f")
    y = result("exp(sub(a,b))", x, shift, reduction="add", axes=1)
    np.testing.assert_allclose(y, np.exp(x.astype(float) - 1).sum(1), rtol=1e-6)
    workspace = gpu.algorithms(
        "pointwise_fusion", x, shift, graph="exp(sub(a,b))", reduction="add", axes=1
    )[0].workspace_bytes
    assert workspace > 0


def test_empty_tensors_and_sets() -> None:
    assert result("add(a,b)", A[:0], B[:0]).shape == (0, 24)
    nothing = np.zeros((3, 0))
    assert (
        result("sub(mul(a,b),0.5)", nothing, nothing, reduction="add", axes=1).tolist() == [0] * 3
    )


# --- Operands -------------------------------------------------------------------------------------


def test_every_operand_is_broadcast() -> None:
    a, b, c = (
        np.ones((1, 3, 1)),
        RANDOM.standard_normal((2, 1, 4)),
        RANDOM.standard_normal((1, 1, 4)),
    )
    expected = b + c
    np.testing.assert_allclose(
        result("add(mul(a,b),c)", a, b, c), np.broadcast_to(expected, (2, 3, 4)), rtol=1e-15
    )
    y = result("add(mul(a,b),c)", a, b, c, reduction="add", axes=(0, 1))
    np.testing.assert_allclose(y, 3 * expected.sum((0, 1)), rtol=1e-13)


def test_the_first_operand_may_be_one_element_for_all_of_a_reduction() -> None:
    a, t = np.full((1, 1), 3.0), T
    y = result("binary_select(a,0.0,b)", a, t, reduction="add", axes=1)
    np.testing.assert_array_equal(y, 3 * T.sum(1))


def test_any_strides() -> None:
    a, b, c = A.T, np.ascontiguousarray(B.T), np.broadcast_to(C[:, :1], C.shape).T
    np.testing.assert_allclose(result("add(mul(a,b),c)", a, b, c), a * b + c, rtol=1e-14)
    y = result("add(mul(a,b),c)", a, b, c, reduction="add", axes=0)
    np.testing.assert_allclose(y, (a * b + c).sum(0), rtol=1e-12)


def test_six_operands_and_letters_left_out() -> None:
    x = RANDOM.standard_normal((6, 24))
    y = result("add(add(add(a,b),add(c,d)),add(e,f))", *x)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-13)
    np.testing.assert_array_equal(result("sub(a,c)", A, None, C), A - C)


def test_nothing_is_read_or_written_out_of_place(monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu.runtime.has_gpu():
        pytest.skip("a GPU does not check")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = RANDOM.standard_normal((3, 37)).astype("f")
    result("add(mul(a,b),c)", x, x[:1], x[:, :1])
    result("add(mul(a,b),c)", x.T, x[:1].T, x[:, ::2][:, :1].T)
    result("exp(sub(a,b))", x, x[:, :1], reduction="add", axes=1)


# --- One kernel -----------------------------------------------------------------------------------


@pytest.fixture
def profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu.runtime.has_gpu():
        pytest.skip("profiles are the emulator's")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reduction", [{}, {"reduction": "add", "axes": (1,)}], ids=["all", "sums"])
def test_a_chain_is_one_launch_that_moves_each_byte_once(dtype: str, reduction: Any) -> None:
    a, b, c = RANDOM.standard_normal((3, 256, 64)).astype(dtype)
    counted = profile(
        "pointwise_fusion",
        a,
        b,
        c,
        graph="mul(gelu_approx_tanh_fwd(add(mul(a,b),c)),b)",
        **reduction,
    )
    assert len(counted.launches) == 1
    assert counted.bytes_over_least <= 1.1


@pytest.mark.usefixtures("profiling")
def test_fused_moves_half_of_what_its_parts_move() -> None:
    x, y = RANDOM.standard_normal((2, 128, 64)).astype("f")
    fused = profile("pointwise_fusion", x, y, graph="mul(swish_fwd(a),b)").bytes_moved
    first = profile("pointwise_operation", x, mode="swish_fwd").bytes_moved
    second = profile("pointwise_operation", x, y, mode="mul").bytes_moved
    assert fused <= 0.61 * (first + second)


def test_numbers_and_parameters_do_not_make_a_kernel_of_their_own() -> None:
    def function(text: str, dtype: str = "float32") -> Any:
        return compose(graph_of(text), dtype).function

    plain_one = function("mul(swish_fwd(a,swish_beta=2.0),0.5)")
    assert plain_one is function("mul(swish_fwd(a),-3.0)")
    assert plain_one is function("mul(swish_fwd(a),-3.0)", "float16")
    assert plain_one is not function("mul(swish_fwd(a),-3.0)", "float64")
    assert plain_one is not function("mul(gelu_fwd(a),-3.0)")
    assert compose(graph_of("mul(swish_fwd(a,swish_beta=2.0),0.5)"), "float32").scalars == (
        2.0,
        0.5,
    )


def test_a_monoid_of_a_graph_is_made_once() -> None:
    composed = compose(graph_of("mul(a,b)"), "float32")
    assert reducing(composed, ("b", "a"), SUM, 0) == reducing(composed, ("b", "a"), SUM, 0)


def test_every_mode_has_a_function_and_takes_what_scalars_lists() -> None:
    for mode in FUSIBLE.values():
        for dtype, truths in (("float32", False), ("bool", True)):
            if dtype not in mode.dtypes:
                continue
            operands = ",".join("abc"[: len(mode.operands)])
            (node,) = graph_of(f"{mode.name}({operands})").nodes
            made: Any = plain("float32", mode.name, truths=truths)
            count = made.py_func.__code__.co_argcount
            assert count == len(mode.operands) + len(scalars(node.problem(dtype)))


def test_a_graph_is_an_epilogue_of_any_other_device_function() -> None:
    composed = compose(graph_of("relu_fwd(add(a,b),relu_upper_clip=2.0)"), "float64")
    finish = composed.function

    @device_function
    def product_and_epilogue(x: Any, y: Any, bias: Any, lower: Any, upper: Any, slope: Any) -> Any:
        return finish(x * y, bias, lower, upper, slope)

    device = [to_device(x) for x in (A, B, C)]
    out = to_device(np.zeros_like(A))
    elementwise(product_and_epilogue, device, (out,), composed.scalars)
    np.testing.assert_allclose(gpu.to_host(out), np.clip(A * B + C, 0, 2), rtol=1e-14)


def instructions(text: str) -> list[str]:
    """Arithmetic and comparisons in the PTX of a graph of float32 numbers for sm_90."""
    from numba import cuda
    from numba.cuda import types

    composed: Any = compose(graph_of(text), "float32")
    signature = (types.float32,) * (len(composed.tensors) + len(composed.scalars))
    with without_device():
        ptx, _ = cuda.compile(
            composed.function.py_func, signature, cc=(9, 0), device=True, abi="numba"
        )
    return re.findall(r"\t((?:fma|add|mul|sub|cvt|setp|selp|or)\.[\w.]+)", str(ptx))


def test_a_graph_compiles_to_what_one_would_write_by_hand() -> None:
    assert instructions("add(mul(a,b),c)") == ["fma.rn.f32"]
    leaky = "t0=add(mul(a,b),c);binary_select(t0,mul(t0,0.125),cmp_gt(t0,0.0))"
    assert instructions(leaky) == ["fma.rn.f32", "mul.f32", "setp.leu.f32", "selp.f32"]
    inside = "binary_select(a,b,logical_and(cmp_gt(a,b),cmp_lt(a,0.5)))"
    assert instructions(inside) == ["setp.leu.f32", "setp.geu.f32", "or.pred", "selp.f32"]


# --- fuse -----------------------------------------------------------------------------------------


def test_fuse_makes_one_call_of_a_function() -> None:
    biased = gpu.fuse(lambda x, bias: gpu.modes.gelu_fwd(x + bias))
    assert biased.graph == "gelu_fwd(add(a,b))"
    assert repr(biased) == "<fused gelu_fwd(add(a,b))>"
    out = np.empty_like(A)
    assert biased(A, B, out=out) is out
    np.testing.assert_allclose(out, gelu(A + B), rtol=1e-13, atol=1e-15)


def test_fuse_takes_a_reduction_too() -> None:
    total = gpu.fuse(lambda x, y: (x * y - 0.5).sum(axes=1))
    np.testing.assert_allclose(total(A, B), (A * B - 0.5).sum(1), rtol=1e-12)
