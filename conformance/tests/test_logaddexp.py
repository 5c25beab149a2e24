"""Logarithms of sums in the accuracy model: long chains against float32, and one step against exact values."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision, quantum_of, unit_of
from dnncanon.spec import DTYPES

Array = NDArray[Any]
FLOAT32 = Precision.of(DTYPES["float32"])
INF = np.inf
REDUCE: Any = np.logaddexp.reduce  # whose stub knows no arrays of ours

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")  # −Inf beside its error


def carrying(value: Array, deviation: float = 0.0) -> ErrorArray:
    unit = unit_of(value, FLOAT32)
    variance = (deviation / unit) ** 2
    return ErrorArray(value, FLOAT32, variance, quantum=quantum_of(value), unit=unit)


def through_states(x: Any, start: Any) -> Any:
    """A forward algorithm: each state comes of itself and the one before."""
    alpha = start
    for now in x:
        before = np.concatenate([np.full_like(alpha[:1], -INF), alpha[:-1]])
        alpha = now + np.logaddexp(alpha, before)
    return alpha


@pytest.mark.parametrize("steps", [10, 100, 1000])
def test_bounds_of_long_chains_are_neither_exceeded_nor_loose(steps: int) -> None:
    used = []
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((steps, 20)).astype(np.float32) - 3
        expected = through_states(x.astype(np.float64), carrying(np.zeros(20))).settled()
        got = through_states(x, np.zeros(20, np.float32)).astype(np.float64)
        used.append(np.max(np.abs(got - expected.value) / expected.deviation()))
    assert 0.02 * SIGMAS < max(used) < SIGMAS / 2


def test_an_error_is_a_mean_of_the_operands_errors() -> None:
    same: Any = np.logaddexp(carrying(np.zeros(1), 0.5), carrying(np.zeros(1), 0.5))
    assert same.deviation() == pytest.approx([0.5])
    shares: Any = np.logaddexp(carrying(np.zeros(1), 0.5), carrying(np.full(1, -np.log(3.0))))
    assert shares.deviation() == pytest.approx([0.375])


def test_nothing_is_added_to_nothing() -> None:
    exact: Any = np.logaddexp(carrying(np.array([1.1, -INF])), np.array([-INF, -INF]))
    assert exact.value.tolist() == [1.1, -INF]
    assert exact.deviation().tolist() == [0, 0]


def test_nan_and_infinity_are_passed_on() -> None:
    result: Any = np.logaddexp(carrying(np.array([INF, np.nan, INF])), np.array([0.0, 0.0, INF]))
    np.testing.assert_array_equal(result.value, [INF, np.nan, INF])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduce(axis: int, keepdims: bool) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5))
    result = REDUCE(carrying(x), axis=axis, keepdims=keepdims)
    expected = REDUCE(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(result.value, expected, rtol=1e-14)
    of_float32 = REDUCE(x.astype(np.float32), axis=axis, keepdims=keepdims)
    assert (np.abs(of_float32 - expected) < SIGMAS * result.deviation() + 1e-6).all()
    assert (result.deviation() < 1e-6).all()


def test_reduce_of_nothing() -> None:
    result = REDUCE(carrying(np.zeros((2, 0))), axis=1)
    assert result.value.tolist() == [-INF, -INF]
