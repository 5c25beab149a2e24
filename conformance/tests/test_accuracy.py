"""The accuracy model, rule by rule: NumPy's values, variances as derived, exactness where claimed."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import special

from dnncanon.conformance.accuracy import (
    ErrorArray,
    Precision,
    UnsupportedByModel,
    quantum_of,
    unit_of,
)
from dnncanon.conformance.bounds import half_spacing, spacing
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, FLOATS
from dnncanon.spec.numerics import FAST_MATH, LIBRARY

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
    "divide": lambda a, b: a / (1.0 + np.abs(b)) / 4 + 1.0 / (2.0 + np.square(a)),
    "sign and abs": lambda a, b: np.sign(a) * np.abs(b) + abs(a),
    "square": lambda a, b: np.square(a) + a**2 + b * b,
    "square root": lambda a, b: np.sqrt(np.abs(a)) + np.abs(b) ** 0.5,
    "reciprocal": lambda a, b: np.reciprocal(1.0 + np.abs(a)) + b,
    "power": lambda a, b: (1.0 + np.abs(a)) ** 1.5 + (1.0 + np.abs(b)) ** -2,
    "exp": lambda a, b: np.exp(a / 50) + np.exp2(b / 50),
    "expm1 and log1p": lambda a, b: np.expm1(a / 50) + np.log1p(np.abs(b)),
    "log": lambda a, b: np.log(1.0 + np.abs(a)) + np.log2(2.0 + np.abs(b)),
    "hyperbolic": lambda a, b: np.tanh(a / 30) + np.sinh(b / 50) + np.cosh(a / 50),
    "trigonometric": lambda a, b: np.sin(a) + np.cos(b),
    "erf": lambda a, b: special.erf(a / 50) + special.erfc(b / 50),
    "minimum": lambda a, b: np.minimum(a, b) + np.minimum(a, 3.0),
    "clip": lambda a, b: np.clip(a, -1.0, 6.0) + np.clip(b, 0.0, None) + np.clip(b, max=2.0),
    "where": lambda a, b: np.where(a < b, a, b) + np.where(np.isfinite(a), a, 0.0),
    "logic": lambda a, b: np.where((a > 0) & ~(b >= 0) | (a == b) ^ (a != 1), a, 2.0),
    "mean": lambda a, b: np.mean(a, axis=1) + np.mean(b) + b.mean(axis=-1, keepdims=False),
    "max": lambda a, b: np.max(a, axis=1) + np.amax(b) + a.max(axis=-1) + np.max(b, initial=1.0),
    "min": lambda a, b: np.min(a, axis=0) + np.amin(b) + np.minimum.reduce(a) + b.min(),
    "maximum.reduce": lambda a, b: np.maximum.reduce(a, axis=1, keepdims=True) + b,
    "argmax": lambda a, b: a[np.argmax(a, axis=0), 0] + b[np.argmin(b, axis=0), 1],
    "take": lambda a, b: np.take(a, [0, 2, 0], axis=0) + np.take(b, np.array([1, 1, 2]), axis=0),
    "take_along_axis": lambda a, b: np.take_along_axis(a, np.argmax(a, 1, keepdims=True), 1) + b,
    "boolean index": lambda a, b: a[np.array([True, False, True])] + b[a[:, 0] == a[:, 0]][:2],
    "cumsum": lambda a, b: np.cumsum(a, axis=1) + np.cumsum(b, axis=0),
    "prod": lambda a, b: np.prod(a / 50, axis=1) + np.prod(b / 50) + np.multiply.reduce(a / 50, 1),
    "einsum": lambda a, b: np.einsum("ij,kj->ik", a, b) + np.einsum("i...,i...->i...", a, b)[:, :3],
    "einsum of three": lambda a, b: np.einsum("ij,kj,kl->il", a, b, b) + np.einsum("ij->i", a)[0],
    "einsum without result": lambda a, b: np.einsum("ij,jk", a, b.T) + np.einsum("ij,ij", a, b),
    "dot": lambda a, b: np.dot(a, b.T) + np.dot(a[0], b[0]) + np.dot(2.0, a[:, :3]),
    "transpose": lambda a, b: np.transpose(a, (1, 0)) + b.T + a.mT + b.transpose(1, 0),
    "moveaxis": lambda a, b: np.moveaxis(a[None], 0, 2) + np.expand_dims(b, 2),
    "squeeze": lambda a, b: np.squeeze(a[:, None], 1) + b[None].squeeze(0),
    "broadcast_to": lambda a, b: np.broadcast_to(a[0], (3, 4)) + b,
    "repeat": lambda a, b: np.repeat(a, 2, axis=1) + np.tile(b, (1, 2)),
    "concatenate": lambda a, b: np.concatenate([a, b, np.zeros((1, 4))]) * 3,
    "stack": lambda a, b: np.stack([a, 2.5 * b], axis=1) + a[:, None],
    "split": lambda a, b: np.split(a, 2, axis=1)[1] + np.array_split(b, [1, 3], axis=1)[1],
    "pad with a constant": lambda a, b: np.pad(a, 1, constant_values=-2.0) + np.pad(b, 1),
    "flip and roll": lambda a, b: np.flip(a, 1) + np.roll(b, 1, axis=0) + np.tril(a),
    "windows": lambda a, b: np.sum(sliding_window_view(a, 2, axis=1) * b[:, :3, None], axis=-1),
    "full_like": lambda a, b: np.ones_like(a) + np.full_like(b, 0.1) + np.empty_like(a) * 0,
    "copy": lambda a, b: np.copy(a) + b.copy(),
    "in place": lambda a, b: _in_place(a.copy(), b),
}


def _in_place(a: Any, b: Any) -> Any:
    a -= b
    a *= 2.0
    a /= 3.0 + np.square(b)
    return a


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=30, deadline=None)
@given(operands=arrays((3, 4), (3, 4)))
def test_values_are_those_of_numpy(name: str, operands: list[Array]) -> None:
    expected = BINARY[name](*(array.copy() for array in operands))
    result = BINARY[name](*map(carrying, operands))
    assert isinstance(result, ErrorArray)
    # An einsum may be summed in another order, and its terms are up to 10^6.
    rtol, atol = (1e-12, 1e-7) if "einsum" in name else (1e-14, 0.0)
    assert np.allclose(result.value, expected, rtol=rtol, atol=atol)
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
    "numpy.arctan": np.arctan,
    "numpy.floor_divide": lambda a: a // 2,
    "numpy.add.accumulate": np.add.accumulate,
    "numpy.var": np.var,
    "numpy.tensordot": lambda a: np.tensordot(a, a, 1),
    "numpy.sort": np.sort,
    "numpy.asarray": np.asarray,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_function_without_a_rule_is_named(name: str) -> None:
    with pytest.raises(UnsupportedByModel) as refused:
        UNSUPPORTED[name](carrying([1.0, 2.0]))
    assert str(refused.value).startswith(f"{name} has no rule in the accuracy model")
    assert "matmul" in str(refused.value)
    instead = {"numpy.var": "use the mean of", "numpy.add.accumulate": "use np.cumsum"}
    assert instead.get(name, "") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: np.pad(a, 1, mode="edge"),
        lambda a: np.clip(a, 0, 1, where=[True, False]),
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


def relative_deviation_of_product(*exponents: float) -> float:
    product: Any = np.prod(carrying(np.exp2(exponents)))
    return float(product.deviation() / product.value)


def test_a_product_some_factors_of_which_overflow_has_no_bound() -> None:
    assert relative_deviation_of_product(100, 100, -100) == np.inf
    assert relative_deviation_of_product(100, 20, -100) < 1e-6
    assert relative_deviation_of_product(100, 100) < 1e-6  # it is Inf in any order


def test_a_product_some_factors_of_which_underflow_loses_digits() -> None:
    # 2^-130 is one of the multiples of 2^-149: off by 2^-150, which is 2^-20 of it.
    assert relative_deviation_of_product(-100, 100, -30) == pytest.approx(2**-20 / 3**0.5, rel=0.01)
    assert relative_deviation_of_product(-100, 100, -100) == pytest.approx(3**-0.5, rel=0.01)
    assert relative_deviation_of_product(-100, 20, -20) < 1e-6


def test_an_infinite_product_some_factors_of_which_underflow_may_be_nan() -> None:
    def may_be_nan(*factors: float) -> Any:
        with np.errstate(invalid="ignore"):
            product: Any = np.prod(carrying(factors))
        return product.reshape(1).may_be_nan.tolist()

    assert may_be_nan(np.inf, 2.0**-100, 2.0**-100) == [True]  # Inf·0
    assert may_be_nan(np.inf, 2.0**-100, 2.0**-40) == [False]
    assert may_be_nan(2.0**-100, 2.0**-100) == [False]


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
    """But for exact zeros, which are counted as terms where they are few."""
    terms = [term or 1.0 for term in terms]
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


# --- Propagation to first order, function by function ---------------------------------------------

Function = Callable[[Any], Any]
ELEMENTWISE: dict[str, tuple[Function, float]] = {
    "exp": (np.exp, 1.7),
    "exp2": (np.exp2, -2.3),
    "expm1": (np.expm1, 0.3),
    "log": (np.log, 3.1),
    "log2": (np.log2, 0.2),
    "log1p": (np.log1p, 0.6),
    "tanh": (np.tanh, 0.7),
    "sinh": (np.sinh, 1.2),
    "cosh": (np.cosh, -1.2),
    "sin": (np.sin, 0.4),
    "cos": (np.cos, 0.9),
    "tan": (np.tan, 1.1),
    "arctan2": (lambda x: np.arctan2(x, 0.75), 0.9),
    "arctan2 of the other": (lambda x: np.arctan2(0.75, x), 0.9),
    "remainder": (lambda x: np.fmod(x, 1.0), 2.6),
    "remainder by it": (lambda x: np.fmod(7.0, x), 1.6),
    "erf": (special.erf, 0.8),
    "erfc": (special.erfc, 0.8),
    "sqrt": (np.sqrt, 7.3),
    "square": (np.square, -1.3),
    "itself times itself": (lambda x: x * x, -1.3),
    "reciprocal": (np.reciprocal, -0.6),
    "power": (lambda x: x**-1.75, 2.2),
    "exponent": (lambda x: 3.0**x, 1.2),
    "quotient": (lambda x: 2.0 / x, 1.9),
    "abs": (np.abs, -0.7),
    "negative": (np.negative, 0.7),
    "minimum": (lambda x: np.minimum(x, 2.0), 1.5),
    "clip": (lambda x: np.clip(x, -2.0, 2.0), 1.5),
    "where": (lambda x: np.where(x > 0, 3.0 * x, x), 1.5),
    "mean": (lambda x: np.mean(x.reshape(1, 1), axis=1), 1.5),
    "prod": (lambda x: np.prod(np.stack([x, x + 1.0, x + 2.0]), axis=0), 1.5),
    "einsum of three": (lambda x: np.einsum("i,j,k->k", x, [2.0], [0.3]), 1.5),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_error_is_passed_on_with_the_derivative(name: str) -> None:
    function, x = ELEMENTWISE[name]
    at = np.array([x])
    step = 1e-6
    slope = (function(at + step) - function(at - step)) / (2 * step)
    deviation = 1e-4  # beside which the function's own rounding is nothing
    got = function(ErrorArray(at, FLOAT32, deviation**2)).settled().deviation()
    correlated = name in ("prod",)  # one error that is met three times counts as three
    assert got == pytest.approx(np.abs(slope) * deviation, rel=0.5 if correlated else 1e-3)


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n in LIBRARY])
def test_an_elementary_function_may_be_off_by_some_units(name: str) -> None:
    function, x = ELEMENTWISE[name]
    got = function(carrying([x]))
    unit = FLOAT32.variance**0.5 * np.abs(got.value)
    assert got.deviation() / unit == pytest.approx(np.hypot(1, LIBRARY[name].ulps), rel=1e-6)
    fast = Precision.of(DTYPES["float32"], functions=FAST_MATH)
    assert function(ErrorArray(np.array([x]), fast)).deviation() / unit > 1.0


def test_what_every_library_gets_right_has_no_error() -> None:
    x = carrying([0.0])
    functions: list[Function] = [np.exp, np.expm1, np.log1p, np.tanh, np.sinh, np.sin, special.erf]
    for function in functions:
        assert not function(x).has_errors
    one: Any = np.log(carrying([1.0]))
    assert not one.has_errors
    other: Any = np.exp(x + 0.1)
    assert other.has_errors


def test_an_angle_of_zero_has_no_error() -> None:
    angles: list[Any] = [np.arctan2(carrying([0.0]), carrying([x])) for x in (2.0, -2.0)]
    assert [angle.has_errors for angle in angles] == [False, True]  # the other one is π


def test_a_remainder_is_exact_and_jumps_where_errors_reach_a_multiple() -> None:
    exact: Any = np.fmod(carrying([1e30, -0.7, 5.0]), carrying([0.3]))
    assert not exact.has_errors
    assert exact.value.tolist() == np.fmod([1e30, -0.7, 5.0], 0.3).tolist()
    a: Any = ErrorArray(np.array([2.5, 3.0, 2.99999]), FLOAT32, 1e-10)
    deviation = np.fmod(a, 1.0).deviation()
    assert deviation[0] == pytest.approx(1e-5)
    assert 8 * deviation[1:] == pytest.approx([1.0, 1.0], rel=1e-3)


def test_values_far_below_the_largest_still_have_an_error() -> None:
    """Of float64, whose squares would underflow: 1e-250 beside 1 may be off by more than nothing."""
    results: Any = np.exp(carrying([0.0, -575.0], Precision.of(DTYPES["float64"])))
    assert results.deviation()[1] > 3 * 2.0**-53 * 1e-250


def test_what_is_chosen_keeps_its_error_beside_a_far_larger_constant() -> None:
    tiny = 2.0**-630
    small = ErrorArray(np.array([tiny]), Precision.of(DTYPES["float64"]), 1e-24, unit=tiny)
    chosen: Any = np.where(np.array([False]), 1.0, small)
    assert chosen.deviation() == pytest.approx(small.deviation(), rel=1e-6)
    assert chosen.deviation() > 0.0


def test_elements_between_the_same_two_numbers_are_rounded_alike() -> None:
    """As 1 + e^−x for large x: their errors are no independent ones, of which a bias would be made."""
    step = 2.0**-24
    crowded: Any = 1.0 + carrying(np.linspace(0.6, 0.9, 500) * step)
    assert crowded.settled().fan == 500
    assert (1.0 / crowded).fan == 500
    spread: Any = 1.0 + carrying(np.linspace(0.0, 1.0, 500))
    assert spread.settled().fan == 1


def test_functions_of_infinity_have_no_error_that_is_nan() -> None:
    with np.errstate(invalid="ignore"):
        results: list[Any] = [f(carrying([-np.inf])) for f in (np.exp, np.expm1, np.tanh)]
    assert all(np.isfinite(result.variance).all() for result in results)


def test_a_root_near_zero_has_no_infinite_error() -> None:
    """√(0 ± δ) is off by √δ at most, and √(1 ± δ) by δ/2."""
    roots: Any = np.sqrt(ErrorArray(np.array([0.0, 1.0]), FLOAT32, 1e-12))
    assert roots.deviation()[0] == pytest.approx(1e-3, rel=1e-3)
    assert roots.deviation()[1] == pytest.approx(0.5e-6, rel=0.01)


def test_a_power_below_one_has_no_infinite_error_near_zero() -> None:
    """(0 ± δ)^e is off by δ^e at most, and (1 ± δ)^e by e·δ."""
    roots: Any = np.power(ErrorArray(np.array([0.0, 1.0]), FLOAT32, 1e-12), 0.4)
    assert roots.deviation()[0] == pytest.approx(1e-6**0.4, rel=1e-3)
    assert roots.deviation()[1] == pytest.approx(0.4e-6, rel=0.1)


def test_a_power_of_an_exact_zero_is_sure() -> None:
    """Also where the exponent, such as 0.4, is rounded: 0^b·log 0 is 0."""
    powers: Any = np.power(carrying([0.0, 2.0]), 0.4)
    assert powers.deviation()[0] == 0.0
    assert powers.deviation()[1] > 0.0


@pytest.mark.parametrize("error", [np.nan, np.inf])
@pytest.mark.parametrize("left_out", [[[3.0, 5.0]], [[3.0], [5.0]]], ids=["alone", "broadcast"])
def test_what_a_selection_leaves_out_has_no_part_in_its_error(
    left_out: list[list[float]], error: float
) -> None:
    condition = np.array([[True, False], [True, False]])
    kept = ErrorArray(np.ones((2, 2)), FLOAT32, 1e-12)
    selected: Any = np.where(condition, kept, ErrorArray(np.array(left_out), FLOAT32, error))
    assert np.allclose(selected.total_variance()[:, 0] * selected.unit**2, 1e-12)
    assert not np.isfinite(selected.total_variance()[:, 1]).any()


def test_an_infinite_sum_of_products_is_sure_unless_subnormal_factors_may_be_flushed() -> None:
    left, right, subnormal = [[np.inf, 1.0]], [[3.0], [0.1]], [[1e-40], [0.1]]
    with np.errstate(invalid="ignore"):
        saturated: Any = np.tanh(np.matmul(carrying(left), carrying(right)))
        flushing = Precision.of(DTYPES["float32"], flushes_subnormals=True)
        flushed = np.matmul(carrying(left, flushing), carrying(subnormal, flushing))
    assert saturated.value.item() == 1.0
    assert saturated.deviation().item() < 2.0**-20
    assert np.isinf(flushed.variance.item())


def test_infinity_times_what_is_not_quite_exact_is_infinity_for_certain() -> None:
    """So that what an activation makes of it has a bound, and is not right whatever comes out."""
    third = carrying(1.0) / carrying(3.0)
    with np.errstate(all="ignore"):
        products = [third * carrying([np.inf, -np.inf]), 0.1 * carrying([np.inf, -np.inf])]
        products.append(carrying([np.inf, -np.inf]) / third)
        for product in products:
            saturated: Any = np.tanh(product)
            assert saturated.value.tolist() == [1.0, -1.0]
            assert (saturated.deviation() < 2.0**-20).all()


def test_infinity_times_what_should_be_zero_has_no_bound() -> None:
    x = carrying([0.1, 0.1, 0.1])
    with np.errstate(invalid="ignore"):
        product: Any = carrying([1.0, np.inf, 1.0]) * (x - np.mean(x))
        exactly: Any = carrying([np.inf, np.nan]) * carrying([0.0, 0.0])
        certain: Any = carrying([np.nan]) * (x - np.mean(x))
    assert np.isinf(product.total_variance()).tolist() == [False, True, False]
    assert not exactly.total_variance().any()
    assert not certain.total_variance().any()


def test_the_exponential_of_minus_infinity_is_sure() -> None:
    with np.errstate(invalid="ignore"):
        masked = np.where(np.array([True, False, True]), carrying([1.0, 2.0, 3.1]), -np.inf)
        shares = np.exp(masked - np.max(masked))
        total = np.sum(shares).settled()
    assert shares.value[1] == 0.0
    assert shares.variance[1] == FLOAT32.underflow(1.0) or shares.variance[1] == 0.0
    assert np.isfinite(total.variance)


def test_an_intermediate_result_may_overflow() -> None:
    """1/(1 + exp(100)) is 3.7e-44, or 0 by way of an infinity."""
    sigmoid: Any = 1.0 / (1.0 + np.exp(-carrying([-100.0])))
    assert 0 < sigmoid.value[0] < 1e-43
    assert 8 * sigmoid.deviation()[0] > sigmoid.value[0]


def test_a_sum_that_may_overflow_half_way_has_no_bound() -> None:
    sums = np.sum(carrying([[6e4, 6e4, -6e4, -6e4], [1.0, 2.0, 3.0, 4.0]], FLOAT16), axis=1)
    assert np.isinf(sums.settled().variance).tolist() == [True, False]


def test_one_of_two_products_may_overflow() -> None:
    """300·300 − 200·200 is 50,000, a float16, by way of 90,000, which is none."""
    left = carrying([[300.0, -200.0], [200.0, 100.0]], FLOAT16)
    sums = np.matmul(left, carrying([300.0, 200.0], FLOAT16))
    assert sums.value.tolist() == [50_000.0, 80_000.0]
    assert np.isinf(sums.settled().variance).tolist()[0]
    small: Any = carrying([30_000.0], FLOAT16) + carrying([20_000.0], FLOAT16)
    assert np.isfinite(small.settled().variance).all()


# --- Errors that elements share -------------------------------------------------------------------


def test_a_subtracted_mean_does_not_change_the_sum_of_squares() -> None:
    """To first order: Σ (x − m)² has derivative −2·Σ (x − m) = 0 with respect to m."""
    x = np.random.default_rng(1).standard_normal((1, 400)) + 100.0
    centred = carrying(x) - np.mean(carrying(x), axis=1, keepdims=True)
    mean_error = next(iter(centred.common.values())).sensitivity * centred.unit
    spread = np.sum(np.square(centred), axis=1)
    felt = next(iter(spread.common.values())).sensitivity * spread.unit
    assert np.abs(felt).max() < 1e-9 * np.abs(mean_error).max() * 400
    # Were they taken as independent, 400 errors would make it:
    assert 2 * np.abs(mean_error).max() * np.sqrt(np.sum(np.square(x - x.mean()))) > 1e3 * abs(felt)


def test_a_subtracted_mean_counts_in_full_in_a_weighted_sum() -> None:
    x = np.random.default_rng(1).standard_normal((1, 400)) + 100.0
    centred = carrying(x) - np.mean(carrying(x), axis=1, keepdims=True)
    (error,) = centred.common.values()
    weighted: Any = np.sum(centred * carrying(np.full((1, 400), 0.75)), axis=1)
    product: Any = np.matmul(centred, carrying(np.full((400, 1), 0.75)))
    contracted: Any = np.einsum("ij,jk->ik", centred, carrying(np.full((400, 1), 0.75)))
    expected = 0.75 * 400 * np.abs(error.sensitivity[0, 0]) * centred.unit
    for result in (weighted, product, contracted):
        (felt,) = result.common.values()
        assert np.abs(felt.sensitivity) * result.unit == pytest.approx(expected, rel=1e-9)


def test_an_error_met_twice_adds_up_with_its_sign() -> None:
    x, one = carrying(np.ones((3, 4))), ErrorArray(np.array([1.0]), FLOAT32, 1e-6)
    shifted = x + one
    both: Any = shifted - shifted
    assert np.allclose(next(iter(both.common.values())).sensitivity, 0.0)
    double: Any = shifted + shifted
    assert np.allclose(next(iter(double.common.values())).sensitivity * double.unit, 2e-3)


def test_a_constant_that_is_rounded_has_one_error_for_all_elements() -> None:
    scaled: Any = 0.1 * carrying(np.arange(1.0, 13.0).reshape(3, 4))
    (error,) = scaled.common.values()
    assert np.unique(error.group).size == 1
    expected = np.abs(scaled.value) * U2**0.5
    assert np.allclose(error.sensitivity * scaled.unit, expected)
    assert not (0.5 * carrying(np.ones(3))).common


def test_what_moves_elements_moves_their_shares() -> None:
    x = carrying(np.arange(12.0).reshape(3, 4)) + ErrorArray(np.ones((3, 1)), FLOAT32, 1e-6)
    moved: Any = np.concatenate([np.transpose(x)[1:3], np.flip(x.T, 0)[:1]]).reshape(3, 3)
    (error,) = moved.common.values()
    assert (error.group == error.group[0]).all()
    assert np.unique(error.group).size == 3
    assert np.unique(np.sum(moved, axis=0).common[next(iter(moved.common))].group).size == 3
    # Over rows, elements have different errors, which then count as independent.
    assert not np.sum(moved, axis=1).common


def test_what_is_repeated_has_one_error() -> None:
    x = ErrorArray(np.arange(5.0), FLOAT32, 1e-6)
    windows: Any = sliding_window_view(x, 3)
    (error,) = windows.common.values()
    assert error.group.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    sums: Any = np.sum(windows, axis=1)
    assert sums.fan == 3
    assert np.allclose(sums.variance * sums.unit**2, 3e-6)
    taken: Any = np.sum(np.take(x, [1, 1, 1]))
    assert taken.deviation() == pytest.approx(3e-3)


def test_a_matrix_product_knows_how_far_an_error_reaches() -> None:
    a = ErrorArray(np.ones((3, 4)), FLOAT32, 1e-6)
    product: Any = np.matmul(a, carrying(np.ones((4, 7))))
    assert product.fan == 7
    assert np.matmul(carrying(np.ones((3, 4))), carrying(np.ones((4, 7)))).fan == 1


def test_the_maximum_of_a_row_has_the_error_of_its_rivals_too() -> None:
    x = ErrorArray(np.array([[1.0, 1.0 + 1e-6, 0.0]]), FLOAT32, np.array([[1e-8, 1e-12, 1e-4]]))
    largest: Any = np.max(x, axis=1)
    assert largest.variance == 1e-8
    assert np.argmax(x) == 1
    assert isinstance(x < 1.0, np.ndarray)


# --- Absorption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [64, 256, 1024, 2000])
def test_equal_terms_lose_a_share_of_nu_over_four(count: int) -> None:
    """Summed in float16 one by one, for all terms in [1, 2): the derivation's worst case is met."""
    terms = (np.arange(1024, 2048) / 1024).astype(np.float16)
    total = np.zeros_like(terms)
    for _ in range(count):
        total = total + terms
    exact = count * terms.astype(np.float64)
    lost = float(np.abs(total.astype(np.float64) / exact - 1.0).max())
    assert lost / (count * 2.0**-11 / 4) == pytest.approx(1.0, abs=0.15)
    model: Any = np.sum(carrying(np.broadcast_to(terms, (count, 1024)), FLOAT16), axis=0)
    used = np.abs(total.astype(np.float64) - exact) / (8 * model.settled().deviation())
    assert 0.1 < used.max() < 0.9


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

dtypes = pytest.mark.parametrize("dtype", FLOATS)


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
