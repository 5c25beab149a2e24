"""A factor of 0 takes errors away, unless what it multiplies may be infinite: then it may be NaN."""

from typing import Any

import numpy as np
import pytest

from dnncanon.conformance.accuracy import ErrorArray, Precision
from dnncanon.conformance.bounds import Expected, expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.execute import inputs
from dnncanon.spec import DTYPES, FLOATS, conv_bias_activation_forward

FLOAT64, FLOAT16 = Precision.of(DTYPES["float64"]), Precision.of(DTYPES["float16"])


def with_error(value: Any, deviation: float, precision: Precision = FLOAT64) -> ErrorArray:
    array = np.array(value, np.float64)
    return ErrorArray(array, precision, np.full(array.shape, deviation**2))


def may_overflow(values: Any) -> ErrorArray:
    """Of sums that are ``values``, all but the last may be infinite half-way in float16."""
    array = np.array(values, np.float64)
    variance = np.full(array.shape, np.inf)
    variance[..., -1] = 1e-3
    return ErrorArray(array, FLOAT16, variance)


# --- The rules ------------------------------------------------------------------------------------


def test_zero_times_a_result_has_no_error() -> None:
    """In float64 the unit of 0 is 2^-1074, and 1 is more of it than there are numbers."""
    for product in (0.0 * with_error([1.0, 3.0], 1e-16), with_error([1.0, 3.0], 1e-16) * 0.0):
        assert product.deviation().tolist() == [0.0, 0.0]


def test_an_error_may_be_larger_than_every_value() -> None:
    """d(x/y) = dx/y at x = 0, and d(log x) = dx/x at x = 1, where the results are 0."""
    ratio: Any = with_error([0.0, 0.0], 1e-15) / ErrorArray(np.array([2.0, 4.0]), FLOAT64)
    assert ratio.deviation() == pytest.approx([0.5e-15, 0.25e-15], rel=1e-6)
    logarithm: Any = np.log(with_error([1.0], 1e-15))
    assert logarithm.deviation() == pytest.approx([1e-15], rel=1e-6)


def test_an_error_shared_by_results_of_zero_is_finite_too() -> None:
    ratio: Any = with_error([[0.0]], 1e-15) / ErrorArray(np.array([[2.0, 4.0]]), FLOAT64)
    assert ratio.deviation()[0] == pytest.approx([0.5e-15, 0.25e-15], rel=1e-6)


@pytest.mark.parametrize(
    "product",
    [
        lambda a: 0.0 * a,
        lambda a: a * 0.0,
        lambda a: np.array([0.0, 0.0]) * a,
        lambda a: np.matmul(np.diag([0.0, 0.0]), a[:, np.newaxis])[:, 0],
        lambda a: np.einsum("ij,j->i", np.zeros((2, 2)), a),
    ],
    ids=["factor", "factor behind", "elements", "matmul", "einsum"],
)
def test_what_may_be_infinite_has_no_bound_after_multiplication_by_zero(product: Any) -> None:
    deviation = product(may_overflow([5.0, 5.0])).deviation()
    assert np.isinf(deviation[0])
    assert not np.isnan(deviation).any()


def test_a_factor_that_all_elements_share_may_be_infinite() -> None:
    shared = may_overflow([[5.0], [5.0]])
    shared.variance[...] = np.inf
    product: Any = shared * ErrorArray(np.array([[0.0, 2.0], [0.0, 0.0]]), FLOAT16)
    assert np.isinf(product.deviation()).all()


def test_no_bound_stays_none_beside_larger_values() -> None:
    """The sum is kept in the larger operand's unit, in which the other's is nothing."""
    small = ErrorArray(np.array([1e-200]), FLOAT64, np.array([np.inf]), unit=2.0**-660)
    total: Any = small + ErrorArray(np.array([1e200]), FLOAT64, unit=2.0**664)
    assert np.isinf(total.deviation()).all()


# --- Where the specification has such a factor ----------------------------------------------------


def expected_with_factors_of_zero(
    dtype: str, fill: str, activation: str, numerics: str
) -> Expected:
    case = Case.parse(
        f"conv_bias_activation_forward x={dtype}[1,2,4] w={dtype}[2,2,2] bias={dtype}[2] "
        f"activation={activation} alpha1=0.0 alpha2=0.0 fill={fill} seed=3"
    )
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    (expected,) = expectations(case.call, tensors, numerics)
    return expected


@pytest.mark.parametrize("activation", ["identity", "relu"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_without_its_convolution_an_output_is_its_bias(
    dtype: str, fill: str, activation: str
) -> None:
    expected = expected_with_factors_of_zero(dtype, fill, activation, "ieee")
    value = expected.value[~np.isnan(expected.value)]
    bound = expected.bound[~np.isnan(expected.value)]
    assert value.size
    unit = DTYPES[dtype].unit_roundoff
    least = 8 * DTYPES[dtype].smallest_subnormal
    assert (bound <= np.maximum(8 * unit * np.abs(value), least)).all()


def test_a_class_that_may_overflow_on_the_way_has_no_bound_there() -> None:
    """Sums of products of 140·140 may exceed float16's 65,504, and 0·Inf is NaN."""
    assert "fp16_accumulate" in conv_bias_activation_forward.numerics("float16")
    expected = expected_with_factors_of_zero("float16", "large", "identity", "fp16_accumulate")
    assert np.isinf(expected.bound).any()
    assert not np.isnan(expected.bound).any()
