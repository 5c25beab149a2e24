"""Sums whose terms have something in common: float32 one after the other against the model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision, quantum_of, unit_of
from dnncanon.conformance.backends import load
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import execute
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES

Array = NDArray[Any]
Generator = np.random.Generator

FLOAT32 = Precision.of(DTYPES["float32"])


def carrying(value: Array) -> ErrorArray:
    return ErrorArray(value, FLOAT32, quantum=quantum_of(value), unit=unit_of(value, FLOAT32))


def largest_error(make: Callable[[Generator], Array]) -> float:
    """In standard deviations, over 100 draws of four sums each."""
    found = []
    for seed in range(100):
        terms = make(np.random.default_rng(seed)).astype(np.float32)
        expected = np.sum(carrying(terms.astype(np.float64)), axis=-1).settled()
        got = np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1].astype(np.float64)
        found.append(np.max(np.abs(got - expected.value) / expected.deviation()))
    return float(max(found))


def differences(rng: Generator) -> Array:
    """x − K of few bits: the last bits are those of K."""
    x = rng.standard_normal((4, 564)).astype(np.float16).astype(np.float32)
    return x - np.float32(rng.standard_normal())


TERMS: dict[str, Callable[[Generator], Array]] = {
    "all equal": lambda rng: np.full((4, 1353), rng.uniform(0.5, 1.5)),
    "four values, each many times": lambda rng: np.repeat(rng.standard_normal((4, 4)), 168, axis=1),
    "equal last bits": differences,
    "mostly one value": lambda rng: np.square(
        np.where(rng.random((4, 2000)) < 0.9, 0.123456, rng.standard_normal((4, 2000)))
    ),
    "nothing in common": lambda rng: rng.standard_normal((4, 1000)),
}


@pytest.mark.parametrize("terms", TERMS)
def test_sums_one_after_the_other_are_within_their_bounds(terms: str) -> None:
    assert 0.05 < largest_error(TERMS[terms]) < SIGMAS / 2


def test_products_that_are_all_equal_drift_like_equal_terms() -> None:
    """The mean square, in float32 one after the other, of 400 sums of 200 products of one pair each."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 1), (1, 20)))
    left, right = np.repeat(a, 200, axis=1), np.repeat(b, 200, axis=0)
    expected = np.matmul(carrying(left.astype(np.float64)), carrying(right.astype(np.float64)))
    terms = np.broadcast_to((a * b)[..., None], (20, 20, 200))
    got = np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1].astype(np.float64)
    settled = expected.settled()
    assert 0.1 < np.mean(np.square((got - settled.value) / settled.deviation())) < 1.0


def test_terms_on_the_grid_of_their_sum_are_not_rounded() -> None:
    terms = np.full((1, 1000), 3.0)
    assert np.sum(carrying(terms), axis=1).settled().deviation().item() == 0.0


def test_terms_that_are_rounded_up_as_often_as_down_do_not_drift() -> None:
    position = np.arange(2000)

    def deviation_with_every(nth: int) -> float:
        terms = np.where(position % nth == 0, -0.7, 0.7)
        return float(np.sum(carrying(terms)).settled().deviation())

    assert deviation_with_every(2) < deviation_with_every(4) / 8


def test_a_mean_error_adds_up_within_each_row_of_a_sum_over_rows() -> None:
    """Σ over rows and columns of x − mean of the row: a row has its mean's error as often as elements."""
    rows, columns = 3, 400
    x = 1.0 + np.random.default_rng(1).random((rows, columns)) / 16
    carried = carrying(x)
    mean = np.mean(carried, axis=1, keepdims=True).settled()
    total = np.sum(carried - mean)
    of_means = columns * np.sqrt(np.sum(np.square(mean.deviation())))
    assert total.settled().deviation() >= 0.99 * of_means


def test_rounding_all_results_to_zero_is_no_bias() -> None:
    """Gradients of 1e-9 are less than half a float16: each error goes towards 0, as it should."""
    case = Case.parse(
        "instance_norm_backward dy=float16[2,2,256] x=float16[2,2,256] scale=float16[2] "
        "mean=float32[2,2] inv_std=float32[2,2] bias_gradient=false fill=special seed=1591295606"
    )
    assert execute(load("reference"), case).verdict is Verdict.PASSED
