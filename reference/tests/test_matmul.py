"""Matrix products by hand, by their identities, by finite differences, against PyTorch, and at their edges."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.matmul_problem import ACTIVATIONS, OUTPUTS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf

A = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
B = np.array([[1.0, 0.0, -1.0], [2.0, 10.0, 1.0]])
AB = np.array([[5.0, 20.0, 1.0], [11.0, 40.0, 1.0], [17.0, 60.0, 1.0]])
ONE, ROW = np.eye(3), np.array([1.0, 2.0, 3.0])


def random(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def integers(*shape: int, dtype: Any, low: int = -4, high: int = 5, seed: int = 7) -> Array:
    """Small whole numbers, of any dtype."""
    drawn = np.random.default_rng(seed).integers(low, high, shape)
    return drawn.astype(np.float64).astype(dtype)


def central_differences(function: Callable[[Array], Any], x: Array, step: float = 1e-6) -> Array:
    """∂function/∂x of a function with one number for a result."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += step
        behind[index] -= step
        gradient[index] = (function(ahead) - function(behind)) / (2.0 * step)
    return gradient


# --- By hand --------------------------------------------------------------------------------------


def test_a_product() -> None:
    assert np.array_equal(ref.matmul_forward(A, B), AB)


@pytest.mark.parametrize(
    ("c", "bias", "attributes", "y"),
    [
        (None, None, {"alpha": 2.0}, 2.0 * AB),
        (ONE, None, {}, AB + ONE),
        (ONE, None, {"beta": 10.0}, AB + 10.0 * ONE),
        (ROW[None], None, {}, AB + ROW),
        (ROW[:, None], None, {}, AB + ROW[:, None]),
        (ROW[:1, None], None, {}, AB + 1.0),
        (None, ROW, {}, AB + ROW),
        (ONE, ROW, {"alpha": -1.0, "activation": "relu"}, [[0, 0, 2], [0, 0, 2], [0, 0, 3]]),
    ],
)
def test_what_is_added(
    c: Array | None, bias: Array | None, attributes: dict[str, Any], y: Array
) -> None:
    assert np.array_equal(ref.matmul_forward(A, B, c, bias, **attributes), y)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_that_of_the_activation_family(activation: str) -> None:
    mode = {"silu": "swish"}.get(activation, activation)
    a, b, bias = random(4, 5), random(5, 6), random(6)
    y = ref.matmul_forward(a, b, None, bias, alpha=0.7, activation=activation)
    expected = ref.activation_forward(0.7 * (a @ b) + bias, mode=mode)
    assert y == pytest.approx(expected, rel=1e-13)


def test_batches_broadcast() -> None:
    a, b = random(2, 1, 3, 4), random(1, 5, 4, 6)
    c, bias = random(1, 5, 3, 1), random(6)
    y = ref.matmul_forward(a, b, c, bias)
    assert y.shape == (2, 5, 3, 6)
    for i, j in product(range(2), range(5)):
        assert y[i, j] == pytest.approx(a[i, 0] @ b[0, j] + c[0, j] + bias)


def test_transposition_is_a_matter_of_strides() -> None:
    a, b = random(4, 3), random(5, 4)
    assert ref.matmul_forward(a.T, b.T) == pytest.approx((b @ a).T)
    wide = random(4, 10)
    assert np.array_equal(
        ref.matmul_forward(wide[:, 1:7:2], b[:3]), ref.matmul_forward(wide[:, 1:7:2].copy(), b[:3])
    )


# --- Identities -----------------------------------------------------------------------------------


def test_the_transpose_of_a_product() -> None:
    a, b = random(2, 3, 4), random(2, 4, 5)
    swapped = ref.matmul_forward(np.swapaxes(b, 1, 2), np.swapaxes(a, 1, 2))
    assert np.swapaxes(ref.matmul_forward(a, b), 1, 2) == pytest.approx(swapped)


def test_a_product_is_made_of_blocks() -> None:
    a, b = random(6, 4), random(4, 8)
    rows = [[ref.matmul_forward(a[m : m + 3], b[:, n : n + 4]) for n in (0, 4)] for m in (0, 3)]
    assert np.block(rows) == pytest.approx(ref.matmul_forward(a, b))


def test_a_sum_may_be_split() -> None:
    """c takes the first half: split-K."""
    a, b = random(3, 9), random(9, 4)
    first = ref.matmul_forward(a[:, :5], b[:5])
    assert ref.matmul_forward(a[:, 5:], b[5:], first) == pytest.approx(ref.matmul_forward(a, b))


@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_gradients_are_products_by_finite_differences(activation: str) -> None:
    """dA = g·Bᵀ, dB = Aᵀ·g and dbias = Σ g with g = dy·f′, as the decisions say; over the batch for B."""
    a, b, bias, dy = random(2, 3, 4), random(1, 4, 5), random(5), random(2, 3, 5, seed=8)

    def loss(a: Array, b: Array, bias: Array) -> Any:
        return np.sum(dy * ref.matmul_forward(a, b, None, bias, activation=activation))

    sums = ref.matmul_forward(a, b, None, bias)
    g = ref.activation_backward(dy, sums, mode=activation)
    da = ref.matmul_forward(g, np.swapaxes(b, 1, 2))
    db = np.sum(ref.matmul_forward(np.swapaxes(a, 1, 2), g), axis=0, keepdims=True)
    assert central_differences(lambda x: loss(x, b, bias), a) == pytest.approx(da, abs=1e-8)
    assert central_differences(lambda x: loss(a, x, bias), b) == pytest.approx(db, abs=1e-8)
    dbias = np.sum(g, axis=(0, 1))
    assert central_differences(lambda x: loss(a, b, x), bias) == pytest.approx(dbias, abs=1e-8)


def test_a_pointwise_convolution_is_a_product() -> None:
    x, w = random(2, 3, 4, 5), random(6, 3, 1, 1)
    y = ref.matmul_forward(w.reshape(1, 6, 3), x.reshape(2, 3, 20))
    assert y.reshape(2, 6, 4, 5) == pytest.approx(ref.conv_forward(x, w))


# --- Element types --------------------------------------------------------------------------------

_TYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}


def dtype_of(name: str) -> Any:
    return getattr(ml_dtypes, name) if name in _TYPES else np.dtype(name)


@pytest.mark.parametrize("pair", OUTPUTS, ids=" ".join)
def test_small_whole_numbers_are_exact_in_every_type(pair: tuple[str, str]) -> None:
    a, b = (integers(3, 5, dtype=dtype_of(pair[0])), integers(5, 4, dtype=dtype_of(pair[1])))
    for number, output in enumerate(OUTPUTS[pair]):
        c = integers(3, 4, dtype=dtype_of(output), seed=9)
        y = ref.matmul_forward(a, b, c, dtype=output if number else None)
        assert y.dtype == dtype_of(output)
        exact = a.astype(int) @ b.astype(int) + c.astype(int)
        assert np.array_equal(y.astype(int), exact)


def test_int8_is_exact_at_its_ends() -> None:
    a, b = np.full((1, 3), -128, np.int8), np.full((3, 1), -128, np.int8)
    assert ref.matmul_forward(a, b)[0, 0] == 3 * 2**14


def test_int32_wraps() -> None:
    a, b = np.array([[1]], np.int8), np.array([[1]], np.int8)
    c, bias = np.array([[2**31 - 1]], np.int32), np.array([1], np.int32)
    assert ref.matmul_forward(a, b, c)[0, 0] == -(2**31)
    assert ref.matmul_forward(-a, b, c, bias)[0, 0] == 2**31 - 1
    assert ref.matmul_forward(-a, b, -c - 1)[0, 0] == 2**31 - 1


def test_a_long_sum_of_int8_wraps() -> None:
    """131,073 products of 2^14 are 2^31 + 2^14."""
    a = np.full((1, 2**17 + 1), -128, np.int8)
    assert ref.matmul_forward(a, a.T)[0, 0] == -(2**31) + 2**14


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_only_rounding_is_the_last(name: str) -> None:
    """1 + 2^-12 is no number of 16 bits; that it is above 1 shows in the difference from c."""
    a = np.array([[1.0, 2.0**-6]]).astype(dtype_of(name))
    c = np.array([[-1.0]]).astype(dtype_of(name))
    assert float(ref.matmul_forward(a, a.T)[0, 0]) == 1.0
    assert float(ref.matmul_forward(a, a.T, c)[0, 0]) == 2.0**-12
    assert float(ref.matmul_forward(a, a.T, dtype="float32")[0, 0]) == 1.0 + 2.0**-12


def test_8_bit_floats_have_long_sums() -> None:
    a = np.full((1, 100), 448.0).astype(ml_dtypes.float8_e4m3fn)
    b = np.full((100, 1), 57344.0).astype(ml_dtypes.float8_e5m2)
    assert ref.matmul_forward(a, b)[0, 0] == 100.0 * 448.0 * 57344.0
    assert ref.matmul_forward(a, b, dtype="float16")[0, 0] == INF


# --- Edges ----------------------------------------------------------------------------------------


def test_an_empty_sum_is_0() -> None:
    a, b = np.zeros((2, 0)), np.zeros((0, 3))
    c, bias = random(2, 3), random(3)
    assert np.array_equal(ref.matmul_forward(a, b), np.zeros((2, 3)))
    assert np.array_equal(ref.matmul_forward(a, b, c, bias, beta=2.0), 2.0 * c + bias)


@pytest.mark.parametrize("shapes", [((0, 2), (2, 3)), ((2, 2), (2, 0)), ((0, 2, 2), (1, 2, 3))])
def test_an_empty_product_is_empty(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert ref.matmul_forward(*map(np.zeros, shapes)).size == 0


def test_nan_spreads_over_its_row_and_its_column() -> None:
    a, b = random(3, 4), random(4, 5)
    a[1, 2], b[0, 3] = NAN, NAN
    lost = np.isnan(ref.matmul_forward(a, b))
    assert lost[1].all()
    assert lost[:, 3].all()
    assert lost.sum() == 5 + 3 - 1


def test_infinity_times_0_is_nan() -> None:
    a, b = np.array([[INF, 1.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])
    y = ref.matmul_forward(a, b)
    assert np.isnan(y[0, 0])
    assert y[0, 1] == INF


def test_c_is_not_read_with_beta_0_but_the_product_is_with_alpha_0() -> None:
    lost = np.full((3, 3), NAN)
    assert np.array_equal(ref.matmul_forward(A, B, lost, beta=0.0), AB)
    assert np.isnan(ref.matmul_forward(lost, lost, np.eye(3), alpha=0.0)).all()


@pytest.mark.parametrize(
    ("activation", "y"),
    [
        *((gate, [NAN, INF, 0]) for gate in ("relu", "gelu", "gelu_tanh", "silu")),
        ("sigmoid", [NAN, 1, 0]),
        ("tanh", [NAN, 1, -1]),
    ],
)
def test_activations_at_nan_and_infinity(activation: str, y: list[float]) -> None:
    result = ref.matmul_forward(
        np.ones((1, 1)), [[NAN, INF, -INF]] * np.ones((1, 3)), activation=activation
    )
    assert np.array_equal(result[0], y, equal_nan=True)


def test_float16_overflows_at_the_end_only() -> None:
    a = np.full((1, 2), 256.0, np.float16)
    b = np.array([[256.0], [-1.0]], np.float16)
    assert ref.matmul_forward(a, b)[0, 0] == 256.0 * 255.0
    assert ref.matmul_forward(a, abs(b))[0, 0] == INF


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "constraint"),
    [
        (A, B[None], {}, spec.ShapeError, "C1"),
        (A, B.astype("f4"), {}, spec.DTypeError, "C2"),
        (A, B, {"dtype": "float32"}, spec.AttributeValueError, "C3"),
        (A, A, {}, spec.ShapeError, "C4"),
        (A[[0, 1]].reshape(2, 1, 2), random(3, 2, 2), {}, spec.ShapeError, "C5"),
        (A, B, {"activation": "selu"}, spec.AttributeValueError, "C10"),
        (A, B, {"alpha": INF}, spec.AttributeValueError, "C11"),
        (A.astype("i1"), B.astype("i1"), {"alpha": 0.5}, spec.AttributeValueError, "C13"),
    ],
)
def test_illegal_products(
    a: Array, b: Array, options: dict[str, Any], error: type[Exception], constraint: str
) -> None:
    with pytest.raises(error, match=f"matmul_forward {constraint}: "):
        ref.matmul_forward(a, b, **options)


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    a, b, c = (
        random(2, 3, 70).astype(name),
        random(2, 70, 5).astype(name),
        random(2, 3, 5).astype(name),
    )
    expected = torch.baddbmm(*map(torch.from_numpy, (c, a, b)), beta=0.3, alpha=0.7)
    y = ref.matmul_forward(a, b, c, alpha=0.7, beta=0.3)
    assert y == pytest.approx(expected.numpy(), rel=1e-4 if name == "float32" else 1e-12, abs=1e-4)


# --- A product for each group of rows -------------------------------------------------------------

TOKEN = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
WEIGHT = np.array([[[1.0], [0.0]], [[0.0], [10.0]], [[100.0], [100.0]]])


def offsets(*rows: int) -> Array:
    return np.array(rows, np.int32)


@pytest.mark.parametrize(
    ("bounds", "y"),
    [
        ((0, 1, 3, 4), [1, 40, 60, 1500]),
        ((0, 4, 4, 4), [1, 3, 5, 7]),  # experts without rows
        ((0, 0, 0, 4), [300, 700, 1100, 1500]),
        ((0, 1, 1, 2), [1, 700, 0, 0]),  # rows of no group
        ((2, 3, 3, 4), [0, 0, 5, 1500]),
        ((4, 4, 4, 4), [0, 0, 0, 0]),
        ((0, 1, 1, 1, 2, 2, 4), [1, 3, 1100, 1500]),  # six groups of three experts
    ],
)
def test_each_group_has_its_expert(bounds: tuple[int, ...], y: list[float]) -> None:
    result = ref.grouped_matmul_forward(TOKEN, WEIGHT, offsets(*bounds))
    assert np.array_equal(result[:, 0], y)


def test_gather_takes_tokens_as_often_as_they_are_asked_for() -> None:
    index = np.array([3, 0, 3, 1, 0], np.int32)
    y = ref.grouped_matmul_forward(TOKEN, WEIGHT, offsets(0, 2, 2, 5), index, mode="gather")
    assert np.array_equal(y[:, 0], [7, 1, 1500, 700, 300])


def test_scatter_puts_each_row_to_the_place_of_its_token() -> None:
    """Two tokens with two experts each."""
    index, ks = np.array([1, 0, 1, 0], np.int32), np.array([1, 0, 0, 1], np.int32)
    y = ref.grouped_matmul_forward(
        TOKEN, WEIGHT, offsets(0, 2, 4, 4), index, ks, mode="scatter", top_k=2
    )
    assert np.array_equal(y[:, 0], [3, 80, 60, 1])


def test_rows_that_are_asked_for_in_vain() -> None:
    index = np.array([4, 0, -1, 9], np.int32)
    y = ref.grouped_matmul_forward(TOKEN, WEIGHT, offsets(0, 2, 3, 3), index, mode="gather")
    assert np.array_equal(y[:, 0], [NAN, 1, NAN, 0], equal_nan=True)  # the last is of no group
    nothing = ref.grouped_matmul_forward(
        TOKEN[:0], WEIGHT, offsets(0, 2, 3, 3), index, mode="gather"
    )
    assert np.array_equal(nothing[:, 0], [NAN, NAN, NAN, 0], equal_nan=True)


def test_rows_that_have_no_place_are_lost() -> None:
    index, ks = np.array([0, 5, -1, 3], np.int32), np.zeros(4, np.int32)
    y = ref.grouped_matmul_forward(TOKEN, WEIGHT, offsets(0, 4, 4, 4), index, ks, mode="scatter")
    assert np.array_equal(y[:, 0], [1, 0, 0, 7])


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_a_grouped_product_is_a_loop_of_products(name: str) -> None:
    token, weight = random(9, 4).astype(dtype_of(name)), random(3, 4, 5).astype(dtype_of(name))
    bounds = (0, 4, 4, 9)
    y = ref.grouped_matmul_forward(token, weight, offsets(*bounds))
    for expert, (begin, end) in enumerate(pairwise(bounds)):
        rows = ref.matmul_forward(token[begin:end], weight[expert])
        assert np.array_equal(y[begin:end], rows)


def test_one_group_is_a_product() -> None:
    token, weight = random(6, 4), random(1, 4, 5)
    y = ref.grouped_matmul_forward(token, weight, offsets(0, 6))
    assert np.array_equal(y, ref.matmul_forward(token, weight[0]))


@pytest.mark.parametrize(("bounds", "experts"), [((0, 2, 2, 6), 3), ((0, 1, 3, 3, 6), 2)])
def test_gradients_of_a_grouped_product_by_finite_differences(
    bounds: tuple[int, ...], experts: int
) -> None:
    """That by the tokens is the product of dy with weights transposed, as the decisions say."""
    token, weight, dy = random(7, 4), random(experts, 4, 3), random(7, 3, seed=8)

    def loss(token: Array, weight: Array) -> Any:
        return np.sum(dy * ref.grouped_matmul_forward(token, weight, offsets(*bounds)))

    dtoken = ref.grouped_matmul_forward(dy, np.swapaxes(weight, 1, 2), offsets(*bounds))
    dweight = ref.grouped_matmul_backward_weights(dy, token, offsets(*bounds), experts=experts)
    assert central_differences(lambda x: loss(x, weight), token) == pytest.approx(dtoken, abs=1e-8)
    assert central_differences(lambda x: loss(token, x), weight) == pytest.approx(dweight, abs=1e-8)


def test_the_gradient_of_gathered_rows() -> None:
    token, weight, dy = random(3, 4), random(2, 4, 3), random(5, 3, seed=8)
    index, bounds = np.array([2, 0, 2, 1, 1], np.int32), offsets(0, 2, 5)

    def loss(token: Array, weight: Array) -> Any:
        y = ref.grouped_matmul_forward(token, weight, bounds, index, mode="gather")
        return np.sum(dy * y)

    rows = ref.grouped_matmul_forward(dy, np.swapaxes(weight, 1, 2), bounds)
    dtoken = np.zeros_like(token)
    np.add.at(dtoken, index, rows)
    dweight = ref.grouped_matmul_backward_weights(dy, token[index], bounds)
    assert central_differences(lambda x: loss(x, weight), token) == pytest.approx(dtoken, abs=1e-8)
    assert central_differences(lambda x: loss(token, x), weight) == pytest.approx(dweight, abs=1e-8)


def test_an_expert_without_rows_has_the_gradient_0() -> None:
    dweight = ref.grouped_matmul_backward_weights(TOKEN, TOKEN, offsets(0, 4, 4))
    assert np.array_equal(dweight[0], TOKEN.T @ TOKEN)
    assert np.array_equal(dweight[1], np.zeros((2, 2)))


def test_nan_of_a_row_stays_in_its_row_and_its_expert() -> None:
    token = TOKEN.copy()
    token[1, 0] = NAN
    y = ref.grouped_matmul_forward(token, WEIGHT, offsets(0, 2, 3, 4))
    assert np.isnan(y[:, 0]).tolist() == [False, True, False, False]
    dweight = ref.grouped_matmul_backward_weights(TOKEN[:, :1], token, offsets(0, 2, 3, 4))
    assert np.isnan(dweight[..., 0]).tolist() == [[True, False], [False, False], [False, False]]


@pytest.mark.parametrize("rows", [0, 5])
def test_a_grouped_product_without_terms_is_0(rows: int) -> None:
    y = ref.grouped_matmul_forward(np.zeros((rows, 0)), np.zeros((2, 0, 3)), offsets(0, 0, rows))
    assert np.array_equal(y, np.zeros((rows, 3)))
    dweight = ref.grouped_matmul_backward_weights(np.zeros((0, 2)), np.zeros((0, 3)), offsets(0, 0))
    assert np.array_equal(dweight, np.zeros((1, 3, 2)))


INDEX = np.zeros(4, np.int32)


@pytest.mark.parametrize(
    ("tensors", "options", "error", "constraint"),
    [
        ((TOKEN[0], WEIGHT, offsets(0, 1, 3, 4)), {}, spec.ShapeError, "C1"),
        ((TOKEN, WEIGHT, offsets(0, 1, 3, 4).astype("i8")), {}, spec.DTypeError, "C2"),
        ((TOKEN[:, :1], WEIGHT, offsets(0, 1, 3, 4)), {}, spec.ShapeError, "C3"),
        ((TOKEN, WEIGHT, offsets(0, 1, 3)), {}, spec.ShapeError, "C4"),
        ((TOKEN, WEIGHT, offsets(0, 1, 3, 4)), {"mode": "combine"}, spec.AttributeValueError, "C5"),
        ((TOKEN, WEIGHT, offsets(0, 1, 3, 4)), {"mode": "gather"}, spec.AttributeValueError, "C6"),
        ((TOKEN, WEIGHT, offsets(0, 1, 3, 4), INDEX), {}, spec.AttributeValueError, "C6"),
        (
            (TOKEN, WEIGHT, offsets(0, 1, 3, 4), INDEX, INDEX[1:]),
            {"mode": "scatter"},
            spec.ShapeError,
            "C7",
        ),
        (
            (TOKEN, WEIGHT, offsets(0, 1, 3, 4), INDEX, INDEX),
            {"mode": "scatter", "top_k": 3},
            spec.AttributeValueError,
            "C8",
        ),
    ],
)
def test_illegal_grouped_products(
    tensors: tuple[Array, ...], options: dict[str, Any], error: type[Exception], constraint: str
) -> None:
    with pytest.raises(error, match=f"grouped_matmul_forward {constraint}: "):
        ref.grouped_matmul_forward(*tensors, **options)


def test_against_torch_s_grouped_mm() -> None:
    torch = pytest.importorskip("torch")
    token, weight = random(9, 8).astype("f4"), random(3, 8, 16).astype("f4")
    dy, bounds = random(9, 16).astype("f4"), offsets(0, 4, 4, 9)
    grouped_mm, ends = torch.nn.functional.grouped_mm, torch.from_numpy(bounds[1:])
    y = grouped_mm(torch.from_numpy(token), torch.from_numpy(weight), offs=ends)
    result = ref.grouped_matmul_forward(token, weight, bounds)
    assert result == pytest.approx(y.numpy(), rel=1e-4, abs=1e-5)
    gradient = grouped_mm(torch.from_numpy(token).T, torch.from_numpy(dy), offs=ends)
    dweight = ref.grouped_matmul_backward_weights(dy, token, bounds)
    assert dweight == pytest.approx(gradient.numpy(), rel=1e-4, abs=1e-5)
