"""The accuracy model, rule by rule: NumPy's values, variances as derived, exactness where claimed."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import (
    ErrorArray,
    Precision,
    UnsupportedByModel,
    quantum_of,
    unit_of,
)
from dnncanon.conformance.bounds import half_spacing, spacing
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES

Array = NDArray[Any]

FLOAT32, FLOAT16 = Precision.of(DTYPES["float32"]), Precision.of(DTYPES["float16"])
numbers = st.floats(-100, 100, allow_subnormal=False)


def carrying(value: Any, precision: Precision = FLOAT32) -> ErrorArray:
    """An operand without error, of which nothing is known but its value."""
    return ErrorArray(np.array(value, np.float64), precision)


def arrays(*shapes: tuple[int, ...]) -> st.SearchStrategy[list[Array]]:
    return st.tuples(*(hnp.arrays(np.float64, shape, elements=numbers) for shape in shapes)).map(
        list
    )


# --- Values are NumPy's ---------------------------------------------------------------------------


def _set(a: Any, b: Any) -> Any:
    a = np.zeros_like(a) + a
    a[..., 1:] = b[..., :-1]
    return a


def _add_in_place(a: Any, b: Any) -> Any:
    a = np.zeros_like(a) + a
    a[..., 0] += b[..., 1]
    return a


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negative": lambda a, b: -a + b,
    "maximum": np.maximum,
    "scalar on the left": lambda a, b: 2.5 * a + (1.0 - b),
    "scalar on the right": lambda a, b: np.maximum(a * 3, 0.0) - 1,
    "broadcast": lambda a, b: a[:, :1] * b[0] + b[..., None].reshape(a.shape[0], -1),
    "index": lambda a, b: a[..., ::-2] + b[..., 0:1],
    "set": _set,
    "add in place": _add_in_place,
    "sum": lambda a, b: np.sum(a, axis=0) * np.sum(b),
    "sum of axes": lambda a, b: np.sum(a * b, axis=(0, 1), keepdims=True),
    "add.reduce": lambda a, b: np.add.reduce(a) + np.add.reduce(b, axis=1, keepdims=True),
    "pad": lambda a, b: np.pad(a, ((1, 0), (0, 2))),
    "swapaxes": lambda a, b: np.swapaxes(a, 0, -1),
    "matmul": lambda a, b: np.matmul(a, np.swapaxes(b, 0, 1)),
    "matmul of a vector": lambda a, b: np.matmul(a, b[0]),
    "matmul of stacks": lambda a, b: a.reshape(1, *a.shape) @ b.reshape(1, *b.shape[::-1]),
    "zeros_like": lambda a, b: np.zeros_like(a, shape=(2, 5)) + np.zeros_like(b)[0, 0],
    "reshape": lambda a, b: a.reshape(-1) + b.reshape((b.size,)),
}


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=30, deadline=None)
@given(operands=arrays((3, 4), (3, 4)))
def test_values_are_those_of_numpy(name: str, operands: list[Array]) -> None:
    expected = BINARY[name](*(array.copy() for array in operands))
    result = BINARY[name](*map(carrying, operands))
    assert isinstance(result, ErrorArray)
    assert np.array_equal(result.value, expected)
    assert (result.shape, result.ndim, result.size) == (
        expected.shape,
        expected.ndim,
        expected.size,
    )
    assert result.dtype == np.float64
    assert len(result) == len(expected)
    for part in (result.variance, result.terms, result.squares):
        assert part.shape == expected.shape
    variance = result.settled().variance
    assert np.isfinite(variance).all()
    assert (variance >= 0).all()


def test_operands_keep_their_values() -> None:
    a, b = carrying([1.0, 2.0]), carrying([3.0, 4.0])
    total = a + b
    total += a
    assert a.value.tolist() == [1.0, 2.0]
    assert total.value.tolist() == [5.0, 8.0]


def test_adding_in_place_does_not_grow_the_array() -> None:
    a = carrying([1.0, 2.0])
    with pytest.raises(ValueError, match="does not fit"):
        a += carrying(np.ones((3, 2)))


UNSUPPORTED: dict[str, Callable[[ErrorArray], Any]] = {
    "numpy.exp": np.exp,
    "numpy.divide": lambda a: a / 2,
    "numpy.less": lambda a: a < 0,
    "numpy.maximum.reduce": np.maximum.reduce,
    "numpy.add.accumulate": np.add.accumulate,
    "numpy.mean": np.mean,
    "numpy.concatenate": lambda a: np.concatenate([a, a]),
    "numpy.where": lambda a: np.where(True, a, 0),
    "numpy.asarray": np.asarray,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_function_without_a_rule_is_named(name: str) -> None:
    with pytest.raises(UnsupportedByModel) as refused:
        UNSUPPORTED[name](carrying([1.0, 2.0]))
    assert str(refused.value).startswith(f"{name} has no rule in the accuracy model")
    assert "matmul" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: np.pad(a, 1, mode="edge"),
        lambda a: np.sum(a, where=[True, False]),
        lambda a: np.add(a, a, where=[True, False]),
    ],
)
def test_an_argument_without_a_rule_is_refused(call: Callable[[ErrorArray], Any]) -> None:
    with pytest.raises(TypeError, match=r"mode|where"):
        call(carrying([1.0, 2.0]))


# --- The derivation, rule by rule -----------------------------------------------------------------

U2 = FLOAT32.variance


def settled_variance(array: ErrorArray) -> Any:
    return array.settled().variance


def test_a_sum_of_n_terms_rounds_n_minus_one_partial_sums() -> None:
    t = np.array([0.1, -0.7, 0.3, 0.9])
    v, squares = t.sum(), np.square(t).sum()
    variance = settled_variance(np.sum(carrying(t)))
    expected = U2 * (v**2 + 2 * (squares + v**2)) + (v * FLOAT32.absorbed(np.array(4.0))) ** 2
    assert variance == pytest.approx(expected, rel=1e-12, abs=0)


def test_one_term_is_not_rounded_and_two_are_once() -> None:
    assert settled_variance(np.sum(carrying([0.1]))) == 0
    two = settled_variance(np.sum(carrying([0.1, 0.2])))
    assert two == pytest.approx(U2 * 0.3**2, rel=1e-9, abs=0)


def test_a_product_is_rounded_once_and_passes_errors_on() -> None:
    a = ErrorArray(np.array(3.1), FLOAT32, 1e-4)
    b = ErrorArray(np.array(-0.7), FLOAT32, 1e-6)
    expected = 1e-4 * 0.7**2 + 1e-6 * 3.1**2 + U2 * (3.1 * 0.7) ** 2
    assert (a * b).variance == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_constant_is_rounded_if_the_format_does_not_hold_it() -> None:
    a = ErrorArray(np.array(4.0), FLOAT32, quantum=1.0)
    assert (0.5 * a).variance == 0
    assert (0.1 * a).deviation() ** 2 == pytest.approx(2 * U2 * 0.4**2, rel=1e-9, abs=0)


def test_a_matrix_product_is_products_and_their_sum() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 2))
    whole = np.matmul(carrying(a), carrying(b))
    parts = np.sum(carrying(a[:, :, None]) * carrying(b[None]), axis=1)
    assert np.allclose(settled_variance(whole), settled_variance(parts), rtol=1e-12, atol=0)


def test_a_maximum_near_a_tie_may_have_either_operands_error() -> None:
    value, variance = np.array([1.0, 1.0, -1.0, 1e-6, -1e-6]), 1e-12
    relu: Any = np.maximum(ErrorArray(value, FLOAT32, variance), 0.0)
    assert relu.value.tolist() == [1.0, 1.0, 0.0, 1e-6, 0.0]
    assert relu.variance.tolist() == [variance, variance, 0.0, variance, variance]


def test_the_maximum_with_an_infinity_is_sure() -> None:
    infinite = ErrorArray(np.array([-np.inf, np.inf]), FLOAT32, np.inf)
    with np.errstate(invalid="ignore"):
        relu: Any = np.maximum(infinite, 0.0)
    assert relu.value.tolist() == [0.0, np.inf]
    assert relu.variance[0] == 0


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(numbers, min_size=2, max_size=12))
def test_the_order_in_which_the_reference_adds_does_not_matter(
    data: st.DataObject, terms: list[float]
) -> None:
    whole = np.sum(carrying(terms))
    cut = data.draw(st.integers(0, len(terms)))
    left, right = carrying(terms[:cut]), carrying(terms[cut:])
    one_by_one: Any = np.zeros_like(carrying(terms), shape=())
    for term in data.draw(st.permutations(terms)):
        one_by_one += carrying(term)
    others: list[Any] = [np.sum(left) + np.sum(right), np.sum(right) - -np.sum(left), one_by_one]
    for other in others:
        assert other.value == pytest.approx(float(whole.value), rel=1e-12, abs=1e-12)
        assert other.terms == whole.terms
        # The values themselves are sums in float64, of an order each.
        assert settled_variance(other) == pytest.approx(
            float(settled_variance(whole)), rel=1e-9, abs=1e-24
        )


def test_a_matrix_product_split_in_two_has_the_bound_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((4, 30)), rng.standard_normal((30, 3))
    whole = np.matmul(carrying(a), carrying(b))
    split = np.zeros_like(whole)
    for part in (slice(0, 7), slice(7, 30)):
        split += np.matmul(carrying(a[:, part]), carrying(b[part]))
    assert np.allclose(settled_variance(split), settled_variance(whole), rtol=1e-9, atol=0)


@pytest.mark.parametrize("exponent", [-470, -300, 0, 300, 500])
def test_the_model_knows_no_scale(exponent: int) -> None:
    """Float64 far from 1: variances of sums of products would be 2^-1980 or 2^1900, which is no float64."""
    precision = Precision.of(DTYPES["float64"])
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((4, 30)), rng.standard_normal((30, 3))

    def deviation(scale: float) -> Any:
        left, right = (
            ErrorArray(scale * x, precision, unit=unit_of(scale * x, precision)) for x in (a, b)
        )
        products = np.zeros_like(left, shape=(4, 3)) + np.matmul(left, right)
        return np.maximum(0.5 * products - products, 0.0).settled().deviation()

    scaled, plain = deviation(2.0**exponent), deviation(1.0)
    assert plain.max() > 0
    assert np.allclose(scaled / 2.0**exponent / 2.0**exponent, plain, rtol=1e-12, atol=0)


def test_of_two_units_the_larger_stays() -> None:
    large = ErrorArray(np.array([3.0, 0.0]), FLOAT32, np.array([1e-6, 0.0]), unit=2.0)
    small = ErrorArray(np.array([1.0, 1.0]), FLOAT32, np.array([1e-6, 4.0]), unit=2.0**-20)
    total = large + small
    assert total.unit == 2.0
    assert np.allclose(total.deviation() ** 2, [4e-6, 4 * 2.0**-40], rtol=1e-6)
    large[1:] = small[1:]
    assert np.allclose(large.deviation() ** 2, [4e-6, 4 * 2.0**-40], rtol=1e-6)
    assert large.value.tolist() == [3.0, 1.0]


# --- Exactness ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000), max_size=6), st.integers(-40, 2))
def test_the_quantum_divides_every_value(integers: list[int], exponent: int) -> None:
    value = np.ldexp(np.array(integers, np.float64), exponent)
    quantum = quantum_of(value)
    assert quantum > 0
    assert np.array_equal(value / quantum, np.rint(value / quantum))


@pytest.mark.parametrize("value", [[0.1], [1.0, np.nan], [2.0**-41], [1 / 3, 1.0]])
def test_values_without_a_quantum(value: list[float]) -> None:
    assert quantum_of(np.array(value)) == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-(2**11), 2**11), min_size=1, max_size=20),
    st.integers(-24, 2),
    st.permutations(range(20)),
)
def test_where_the_model_says_exact_float16_sums_are_exact_in_any_order(
    integers: list[int], exponent: int, order: list[int]
) -> None:
    terms = np.ldexp(np.array(integers, np.float64), exponent)
    assume(np.abs(terms).max() < 65504)
    terms = np.asarray(terms.astype(np.float16), np.float64)
    total = np.sum(ErrorArray(terms, FLOAT16, quantum=quantum_of(terms))).settled()
    assume(total.variance == 0)
    partial = np.float16(0)
    for position in order:
        if position < len(terms):
            partial = np.float16(partial + np.float16(terms[position]))
    assert float(partial) == terms.sum()


def test_exactness_ends_where_the_digits_do() -> None:
    """2^11 is the last integer up to which float16 has all; four terms of 512 reach it."""
    for last, exact in ((512.0, True), (516.0, False)):
        terms = ErrorArray(np.array([512.0, 512.0, 512.0, last]), FLOAT16, quantum=1.0)
        assert (settled_variance(np.sum(terms)) == 0) == exact
    for factor, exact in ((64.0, True), (66.0, False)):
        product = ErrorArray(np.array(32.0), FLOAT16, quantum=1.0) * factor
        assert (product.variance == 0) == exact


def test_a_quantum_below_the_subnormals_is_none() -> None:
    """2^-10 · 2^-10 · 2^-10 has a digit, but float16 has no 2^-30."""
    small = ErrorArray(np.array(2.0**-10), FLOAT16, quantum=2.0**-10)
    assert (small * small).variance == 0
    assert (small * small * small).variance > 0


# --- Units in the last place ----------------------------------------------------------------------

dtypes = pytest.mark.parametrize("dtype", DTYPES)


@dtypes
@settings(max_examples=200, deadline=None)
@given(bits=st.integers(0, 2**63 - 1))
def test_spacing_is_the_distance_to_the_next_number(dtype: str, bits: int) -> None:
    row = DTYPES[dtype]
    words = np.array([bits & (2 ** (8 * row.itemsize - 1) - 1)], f"u{row.itemsize}")
    number = words.view(row.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assume(float(number.astype(np.float64)[0]) < row.max)
    successor = (words + np.array(1, words.dtype)).view(row.numpy).astype(np.float64)
    value = number.astype(np.float64)
    assert spacing(value, row) == successor - value
    assert spacing(-value, row) == spacing(value, row)


@dtypes
def test_spacing_at_landmarks(dtype: str) -> None:
    row = DTYPES[dtype]
    info: Any = ml_dtypes.finfo(row.numpy)  # type: ignore[no-untyped-call]
    largest = float(info.max)
    landmarks = {
        0.0: float(info.smallest_subnormal),
        float(info.smallest_subnormal): float(info.smallest_subnormal),
        float(info.smallest_normal): float(info.smallest_subnormal),
        1.0: float(info.eps),
        1.5: float(info.eps),
        largest: float(info.eps) * 2.0 ** (info.maxexp - 1),
        np.inf: float(info.eps) * 2.0 ** (info.maxexp - 1),
        np.nan: float(info.eps) * 2.0 ** (info.maxexp - 1),
    }
    values = np.array(list(landmarks))
    assert spacing(values, row).tolist() == list(landmarks.values())
    half = np.array(list(landmarks.values())) / 2
    assert half_spacing(values, row).tolist() == np.maximum(half, 2.0**-1074).tolist()
    if dtype in ("float32", "float16"):
        assert spacing(values[:5], row).tolist() == np.spacing(values[:5].astype(dtype)).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@settings(max_examples=200, deadline=None)
@given(value=st.floats(-60000, 60000))
def test_no_rounding_is_larger_than_half_a_unit(dtype: str, value: float) -> None:
    row = DTYPES[dtype]
    error = rounded(np.array([value]), dtype).astype(np.float64) - value
    assert abs(error[0]) <= half_spacing(np.array([value]), row)[0]
