"""Reductions: cases by hand, NumPy and SciPy, central differences, and what happens at the edges."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

import dnncanon.reference as ref
from dnncanon.reference import reduce as defined
from dnncanon.spec import AttributeValueError, DTypeError
from dnncanon.spec.reduce import EXTREMA, NAMES, OF_INTEGERS, OPS, PRODUCTS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
each_op = pytest.mark.parametrize("op", NAMES)


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape)


def reduced(x: Any, op: str, **attributes: Any) -> Any:
    return ref.reduce_forward(np.asarray(x), op=op, **attributes)


def gradient(x: Any, op: str, dy: Any = 1.0, **attributes: Any) -> Any:
    x = np.asarray(x, float)
    return ref.reduce_backward(np.asarray(dy, float), x, op=op, **attributes)


def test_each_table_has_the_reductions_of_the_specification() -> None:
    assert set(defined.FORWARD) == set(defined.BACKWARD) == set(OPS)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", -3.0),
        ("mul", 0.0),
        ("min", -4.0),
        ("max", 1.0),
        ("amax", 4.0),
        ("avg", -0.75),
        ("norm1", 5.0),
        ("norm2", np.sqrt(17.0)),
        ("mul_no_zeros", -4.0),
        ("logsumexp", np.log(np.e + 2 + np.exp(-4))),
    ],
)
def test_values(op: str, expected: float) -> None:
    assert reduced([1.0, 0.0, -4.0, 0.0], op) == pytest.approx(expected, rel=1e-15)


NUMPY: dict[str, Any] = {
    "add": np.sum,
    "mul": np.prod,
    "min": np.min,
    "max": np.max,
    "avg": np.mean,
    "amax": lambda x, axis, keepdims: np.max(np.abs(x), axis, keepdims=keepdims),
    "norm1": lambda x, axis, keepdims: np.sum(np.abs(x), axis, keepdims=keepdims),
    "norm2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis, keepdims=keepdims)),
    "logsumexp": lambda x, axis, keepdims: special.logsumexp(x, axis, keepdims=keepdims),
}


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("axes", [None, (), (0,), (2,), (1, -1), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_numpy_and_scipy_agree(op: str, axes: Any, keepdims: bool) -> None:
    x = random(3, 4, 5)
    expected = NUMPY[op](x, axis=axes, keepdims=keepdims)
    y = reduced(x, op, axes=axes, keepdims=keepdims)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-13)


def test_an_axis_may_be_an_integer() -> None:
    assert reduced([[1.0, 2.0], [3.0, 5.0]], "add", axes=-1).tolist() == [3, 8]


@pytest.mark.parametrize("op", EXTREMA)
def test_indices_number_a_set_in_c_order_of_the_axes(op: str) -> None:
    x = random(2, 3, 4)
    y, indices = reduced(x, op, axes=(2, 0), return_indices=True)
    rows = x.transpose(1, 0, 2).reshape(3, 8)
    chosen = rows[np.arange(3), indices]
    assert indices.dtype == np.int32
    np.testing.assert_array_equal(y, np.abs(chosen) if op == "amax" else chosen)


def test_of_equal_extrema_the_first_is_named() -> None:
    x = [[2.0, -3.0, 3.0, -3.0, 3.0]]
    for op, first in (("max", 2), ("min", 1), ("amax", 1)):
        assert reduced(x, op, axes=1, return_indices=True).indices == [first]


@pytest.mark.parametrize("op", EXTREMA)
def test_a_nan_is_the_extremum_and_the_first_is_named(op: str) -> None:
    y, index = reduced([[INF, 1.0, NAN, -INF, NAN]], op, axes=1, return_indices=True)
    assert np.isnan(y)
    assert index == 2


# --- Gradients ------------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("axes", [None, (1,), (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_are_those_of_central_differences(op: str, axes: Any, keepdims: bool) -> None:
    x, h = random(2, 3, 4), 1e-6
    attributes = {"op": op, "axes": axes, "keepdims": keepdims}
    dy = np.asarray(np.random.default_rng(1).uniform(1, 2, np.shape(reduced(x, **attributes))))
    dx = ref.reduce_backward(dy, x, **attributes)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = h
        slope = (reduced(x + step, **attributes) - reduced(x - step, **attributes)) / (2 * h)
        assert dx[i] == pytest.approx(np.sum(dy * slope), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("op", EXTREMA)
def test_the_gradient_of_an_extremum_goes_to_the_element_that_indices_name(op: str) -> None:
    x = np.array([[2.0, -3, 3, -3, 3], [NAN, 1, NAN, 2, -2], [0, 0, 0, 0, 0]])
    indices = reduced(x, op, axes=1, return_indices=True).indices
    dx = gradient(x, op, np.ones(3), axes=1)
    for row, index in zip(dx[[0, 2]], indices[[0, 2]], strict=True):
        assert [i for i, value in enumerate(row) if value] in ([index], [])
    assert [np.count_nonzero(row) for row in dx[:2]] == [1, 1]
    assert gradient(x[2], "max", 7.0).tolist() == [7, 0, 0, 0, 0]


def test_the_gradient_of_a_product_with_zeros() -> None:
    assert gradient([2.0, 0, 3], "mul", 5.0).tolist() == [0, 30, 0]
    assert gradient([2.0, 0, 0], "mul", 5.0).tolist() == [0, 0, 0]
    assert gradient([2.0, 0, 3], "mul_no_zeros", 5.0).tolist() == [15, 0, 10]


def test_gradients_at_kinks_are_zero() -> None:
    for op in ("norm1", "norm2", "amax"):
        assert gradient([0.0, 0, 0], op, NAN).tolist() == [0, 0, 0]


def test_add_and_avg_do_not_read_x() -> None:
    assert gradient([NAN, INF], "add", 3.0).tolist() == [3, 3]
    assert gradient([NAN, INF], "avg", 3.0).tolist() == [1.5, 1.5]


def test_the_gradient_of_logsumexp_is_softmax() -> None:
    x = random(3, 5)
    dx = gradient(x, "logsumexp", np.ones(3), axes=1)
    np.testing.assert_allclose(dx, special.softmax(x, axis=1), rtol=1e-13)


# --- Edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "empty"),
    [
        ("add", 0),
        ("mul", 1),
        ("min", INF),
        ("max", -INF),
        ("amax", 0),
        ("avg", NAN),
        ("norm1", 0),
        ("norm2", 0),
        ("mul_no_zeros", 1),
        ("logsumexp", -INF),
    ],
)
def test_empty_sets(op: str, empty: float) -> None:
    np.testing.assert_array_equal(reduced(np.zeros((2, 0)), op, axes=1), [empty, empty])
    assert gradient(np.zeros((2, 0)), op, np.ones(2), axes=1).shape == (2, 0)


@pytest.mark.parametrize("op", EXTREMA)
def test_an_empty_set_has_no_index(op: str) -> None:
    assert reduced(np.zeros((1, 0)), op, axes=1, return_indices=True).indices == [-1]


@each_op
def test_no_sets_give_nothing(op: str) -> None:
    assert reduced(np.zeros((0, 3)), op, axes=1).shape == (0,)
    assert gradient(np.zeros((0, 3)), op, np.zeros(0), axes=1).shape == (0, 3)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200])
def test_norm2_neither_overflows_nor_underflows(scale: float) -> None:
    x = np.array([3.0, 4.0]) * scale
    assert reduced(x, "norm2") == pytest.approx(5 * scale, rel=1e-3 if scale < 1e-300 else 1e-14)
    assert gradient(x, "norm2") == pytest.approx([0.6, 0.8], rel=1e-3)


def test_norm2_of_infinity() -> None:
    assert reduced([1.0, -INF], "norm2") == INF
    np.testing.assert_array_equal(gradient([1.0, -INF], "norm2"), [0, NAN])


@pytest.mark.parametrize("x", [-1e5, 1e5])
def test_logsumexp_neither_overflows_nor_underflows(x: float) -> None:
    assert reduced([x, x], "logsumexp") == pytest.approx(x + np.log(2), rel=1e-15)


def test_logsumexp_of_infinities() -> None:
    assert reduced([-INF, -INF], "logsumexp") == -INF
    assert reduced([1.0, INF, INF], "logsumexp") == INF
    assert np.isnan(reduced([1.0, NAN, INF], "logsumexp"))
    assert gradient([-INF, -INF], "logsumexp", NAN).tolist() == [0, 0]
    assert gradient([-INF, 1.0], "logsumexp").tolist() == [0, 1]
    assert np.isnan(gradient([1.0, INF], "logsumexp")).all()


# --- Dtypes, and what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_integers_saturate_at_the_end(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.max, info.max, info.min], [info.min] * 3], dtype)
    ends = np.clip(x.astype(object).sum(axis=1), info.min, info.max)
    assert reduced(x, "add", axes=1).tolist() == ends.tolist()
    assert reduced(x, "amax", axes=1).tolist() == [info.max, min(info.max, -info.min)]
    assert reduced(x[:, :0], "max", axes=1).tolist() == [info.min] * 2
    assert reduced(x[:, :0], "min", axes=1).tolist() == [info.max] * 2


def test_integers_have_no_other_reductions() -> None:
    for op in set(NAMES) - set(OF_INTEGERS):
        with pytest.raises(DTypeError, match="reduce_forward C"):
            reduced(np.zeros(3, np.int8), op)


def test_a_float16_sum_is_rounded_once() -> None:
    x = np.full(4096, 0.1, np.float16)
    assert reduced(x, "add") == np.float16(4096 * float(x[0]))


@pytest.mark.parametrize("op", PRODUCTS)
def test_indices_are_for_extrema(op: str) -> None:
    with pytest.raises(AttributeValueError, match="chooses no element"):
        reduced([1.0], op, return_indices=True)


@pytest.mark.parametrize("axes", [(0, 0), (0, -2), 2, (-3,), 0.5, "0"])
def test_axes_are_distinct_dims(axes: Any) -> None:
    with pytest.raises(AttributeValueError, match="axes="):
        reduced(np.zeros((2, 2)), "add", axes=axes)


@each_op
def test_layouts_do_not_matter(op: str) -> None:
    x = random(3, 4, 5)
    strided = np.asfortranarray(x)[:, ::2]
    expected = reduced(np.ascontiguousarray(strided), op, axes=(0, 2))
    np.testing.assert_array_equal(reduced(strided, op, axes=(0, 2)), expected)


# --- PyTorch --------------------------------------------------------------------------------------

TORCH: dict[str, Any] = {
    "add": lambda x: x.sum(1),
    "mul": lambda x: x.prod(1),
    "min": lambda x: x.min(1).values,
    "max": lambda x: x.max(1).values,
    "avg": lambda x: x.mean(1),
    "norm1": lambda x: x.abs().sum(1),
    "norm2": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
}


@pytest.mark.parametrize("op", TORCH)
def test_pytorch_has_the_same_gradients(op: str) -> None:
    torch = pytest.importorskip("torch")
    x = random(4, 6)
    x[1, 2] = x[2, 1] = x[2, 3] = 0.0
    leaf = torch.tensor(x, requires_grad=True)
    dy = np.arange(1.0, 5.0)
    TORCH[op](leaf).backward(torch.tensor(dy))
    np.testing.assert_allclose(gradient(x, op, dy, axes=1), leaf.grad.numpy(), rtol=1e-12)
