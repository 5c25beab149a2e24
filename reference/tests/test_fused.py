"""Fused graphs against cases worked out by hand, and against their parts one after the other in float64."""

import doctest
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference import fused
from dnncanon.spec.fused_domain import drawn
from dnncanon.spec.fused_graph import FUSIBLE, Constant, Graph, Operand, Tensor, graph_of
from dnncanon.spec.reduce import NAMES

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
RANDOM = np.random.default_rng(0)


def result(graph: str, *tensors: Any, **attributes: Any) -> Any:
    """The result for tensors of float64, or of bool, as a list."""
    given = [np.array(t, None if isinstance(t[0], bool) else np.float64) for t in tensors]
    return ref.pointwise_fusion(*given, graph=graph, **attributes).tolist()


def test_examples() -> None:
    tested = doctest.testmod(fused)
    assert tested.attempted > 5
    assert tested.failed == 0


# --- Worked by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "tensors", "y"),
    [
        ("relu_fwd(add(mul(a,b),c))", ([1, 2, 3], [4, -5, 6], [1, 1, -20]), [5, 0, 0]),
        ("t0=add(a,b);mul(t0,t0)", ([1, 2], [2, -5]), [9, 9]),
        ("binary_select(a,b,cmp_gt(a,b))", ([1, 5], [3, 4]), [3, 5]),
        ("binary_select(a,-inf,logical_not(b))", ([1, 5], [True, False]), [-INF, 5]),
        ("cmp_ge(add(a,1),b)", ([1, 2], [2, 4]), [True, False]),
        ("logical_and(cmp_gt(a,0),b)", ([1, 2, -1], [True, False, True]), [True, False, False]),
        ("sub(div(a,b),mul(a,2))", ([8, 6], [2, 3]), [-12, -10]),
        ("relu_fwd(neg(a),relu_lower_clip=-1,relu_upper_clip=2)", ([5, -5, 1],), [-1, 2, -1]),
        ("add(relu_fwd(a,relu_upper_clip=1),relu_fwd(a,relu_upper_clip=3))", ([2, 9],), [3, 4]),
        ("add_square(sqrt(a),b)", ([9, 16], [2, -1]), [7, 5]),
        ("floor_mod(neg(a),b)", ([7, 8], [3, 4]), [2, 0]),
        ("identity(a)", ([3, NAN],), [3, NAN]),
    ],
)
def test_graphs(graph: str, tensors: tuple[Any, ...], y: list[Any]) -> None:
    assert result(graph, *tensors) == pytest.approx(y, nan_ok=True)


@pytest.mark.parametrize(
    ("op", "y"),
    [
        ("add", 2),
        ("mul", -16),
        ("min", -4),
        ("max", 4),
        ("amax", 4),
        ("avg", 0.5),
        ("norm1", 10),
        ("norm2", 34**0.5),
        ("mul_no_zeros", -16),
        ("logsumexp", np.log(np.exp(4) + np.exp(-4) + 2 * np.exp(1))),
    ],
)
def test_reductions_of_a_product(op: str, y: float) -> None:
    a, b = [[2, -1, 1, 2]], [[2, -1, 1, -2]]
    assert result("mul(a,b)", a, b, reduction=op, axes=1) == [pytest.approx(y)]


def test_every_reduction_is_worked_by_hand() -> None:
    (mark,) = (m for m in test_reductions_of_a_product.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    assert {op for op, _ in mark.args[1]} == set(NAMES)


def test_softmax_is_two_fused_calls() -> None:
    x = RANDOM.standard_normal((4, 7))
    largest = ref.pointwise_fusion(x, graph="identity(a)", reduction="max", axes=1, keepdims=True)
    total = ref.pointwise_fusion(
        x, largest, graph="exp(sub(a,b))", reduction="add", axes=1, keepdims=True
    )
    y = ref.pointwise_fusion(x, largest, total, graph="div(exp(sub(a,b)),c)")
    np.testing.assert_allclose(y, ref.softmax_forward(x, axes=(1,)), rtol=1e-14)


def test_a_row_is_scaled_by_its_own_norm() -> None:
    x, scale = RANDOM.standard_normal((4, 8)), RANDOM.standard_normal((1, 8))
    squares = ref.pointwise_fusion(x, graph="mul(a,a)", reduction="avg", axes=1, keepdims=True)
    y = ref.pointwise_fusion(x, squares, scale, graph="mul(mul(a,rsqrt(add(b,1e-05))),c)")
    np.testing.assert_allclose(y, ref.rms_norm_forward(x, scale[0], axis=1), rtol=1e-12)


# --- Identities -----------------------------------------------------------------------------------


def unfused(graph: Graph, tensors: dict[str, Array]) -> Array:
    """The graph as so many calls of pointwise_operation, in float64."""
    results: list[Array] = []

    def value(operand: Operand) -> Array:
        if isinstance(operand, Tensor):
            return tensors[operand.name]
        if isinstance(operand, Constant):
            return np.full((1,) * tensors["a"].ndim, operand.value)
        return results[operand.node]

    for node in graph.nodes:
        operands = map(value, node.operands)
        results.append(ref.pointwise_operation(*operands, mode=node.mode, **dict(node.parameters)))
    return results[-1]


class Scattered:
    """Choices from a generator of random numbers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high, endpoint=True))

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[self.integer(0, len(options) - 1)]


@pytest.mark.parametrize("seed", range(60))
def test_fused_and_unfused_agree_bit_for_bit_in_float64(seed: int) -> None:
    drawn_call = drawn(Scattered(seed), spec.Scale(3, 4, 8, 1 << 20), "float64")
    attributes = dict(drawn_call.attributes)
    tensors = {
        name: RANDOM.standard_normal(t.shape) > 0
        if t.dtype == "bool"
        else RANDOM.standard_normal(t.shape)
        for name, t in drawn_call.tensors.items()
    }
    y = ref.pointwise_fusion(*(tensors.get(name) for name in "abcdef"), **attributes)
    with np.errstate(all="ignore"):
        expected = unfused(graph_of(attributes["graph"]), tensors)
        if op := attributes.pop("reduction"):
            attributes.pop("graph")
            expected = ref.reduce_forward(expected, op=op, **attributes)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    "mode", [m for m in FUSIBLE.values() if "float64" in m.dtypes], ids=lambda m: m.name
)
def test_a_graph_of_one_mode_is_that_mode(mode: Any) -> None:
    x, b = RANDOM.standard_normal((2, 9)), RANDOM.standard_normal((2, 9))
    tensors = {"x": x, "b": b, "t": b > 0}
    operands = [tensors[name] for name in mode.operands]
    graph = f"{mode.name}({','.join('abc'[: len(operands)])})"
    expected = ref.pointwise_operation(*operands, mode=mode.name)
    np.testing.assert_array_equal(ref.pointwise_fusion(*operands, graph=graph), expected)


def test_parameters_reach_their_mode_and_no_other() -> None:
    x = np.linspace(-3, 3, 13)
    y = ref.pointwise_fusion(x, graph="sub(swish_fwd(a,swish_beta=1.702),swish_fwd(a))")
    expected = x / (1 + np.exp(-1.702 * x)) - x / (1 + np.exp(-x))
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-15)


# --- Decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_results_between_are_not_rounded(dtype: Any) -> None:
    a, b = np.array([1.0], dtype), np.array([2.0**-12], dtype)
    y = ref.pointwise_fusion(a, b, graph="sub(add(a,b),a)")
    assert y.dtype == dtype
    assert y.astype(float).tolist() == [2.0**-12]
    large = np.array([2.0**12], dtype)
    assert ref.pointwise_fusion(large, graph="div(mul(a,a),a)").astype(float).tolist() == [2.0**12]


def test_beside_a_16_bit_tensor_others_may_be_float32() -> None:
    a, bias = np.array([1, 2], "f2"), np.array([0.1, 0.2], "f4")
    y = ref.pointwise_fusion(a, bias, graph="add(a,b)")
    assert y.dtype == np.float16
    assert y.tolist() == (a.astype(float) + bias).astype(np.float16).tolist()


def test_the_first_operand_is_broadcast_too() -> None:
    a, b = np.ones((1, 3, 1)), RANDOM.standard_normal((2, 1, 4))
    y = ref.pointwise_fusion(a, b, graph="add(a,b)")
    np.testing.assert_array_equal(y, a + b)
    np.testing.assert_allclose(
        ref.pointwise_fusion(a, b, graph="add(a,b)", reduction="add", axes=(0, 1)),
        (a + b).sum((0, 1)),
    )


def test_nan_and_infinities_pass_as_they_do_one_mode_after_the_other() -> None:
    assert result("relu_fwd(add(a,b))", [NAN, -INF, INF], [1, 1, -INF]) == pytest.approx(
        [NAN, 0, NAN], nan_ok=True
    )
    assert result("max(mul(a,0),b)", [INF, 1], [1, 1]) == pytest.approx([NAN, 1], nan_ok=True)
    assert result("identity(a)", [[1, NAN]], reduction="max", axes=1) == pytest.approx(
        [NAN], nan_ok=True
    )


def test_empty_tensors_and_empty_sets() -> None:
    assert result("neg(a)", [[]]) == [[]]
    nothing = np.zeros((2, 0))
    y = ref.pointwise_fusion(nothing, graph="exp(a)", reduction="add", axes=1)
    assert y.tolist() == [0, 0]
    y = ref.pointwise_fusion(nothing, graph="exp(a)", reduction="max", axes=1)
    assert y.tolist() == [-INF, -INF]


def test_no_axes_leave_each_element_a_set_of_its_own() -> None:
    assert result("neg(a)", [[1, 2]], reduction="amax", axes=()) == [[1, 2]]
