"""ULP figures: exact for what is discrete, the same for parts as for the whole, and cheap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dnncanon.conformance.bounds import Expected
from dnncanon.conformance.ulps import Units, together, units_of
from dnncanon.conformance.verdict import judge
from dnncanon.reports import ULP_BINS, Verdict
from dnncanon.spec import DTYPES


def expecting(value: np.ndarray, dtype: str, bound: float = 1e9) -> Expected:
    everywhere = np.full(value.shape, bound)
    nowhere = np.zeros(value.shape, np.bool_)
    return Expected(value, everywhere, everywhere / 8, nowhere, DTYPES[dtype])


def units(got: np.ndarray, value: np.ndarray, dtype: str = "float32") -> Units:
    error = got - value
    return units_of(got, error, np.abs(error), expecting(value, dtype))


def test_elements_of_a_discrete_output_are_wrong_or_not() -> None:
    value = np.arange(6.0)
    got = value + np.array([0, 0, 2, 0, -3, 0])
    assert units(got, value, "int32") == Units((), None, 2)


def test_an_output_of_floating_point_has_no_wrong_elements() -> None:
    result = units(np.array([1.0, 1.0 + 2.0**-23]), np.ones(2))
    assert (result.largest, result.wrong) == (1.0, None)
    assert sum(result.histogram) == 2
    assert len(result.histogram) == ULP_BINS


def test_a_case_may_have_outputs_of_both_kinds() -> None:
    value, indices = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    outputs = [value.astype(np.float32), (indices + np.array([0, 1])).astype(np.int32)]
    expected = [expecting(value, "float32", 0.1), expecting(indices, "int32", 0.0)]
    result = judge(["y", "index"], outputs, expected, [])
    assert result.verdict is Verdict.FAILED
    assert (result.max_ulp, result.wrong_elements, result.elements) == (0.0, 1, 4)
    assert result.ulp_histogram[0] == sum(result.ulp_histogram) == 2


@given(
    arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e3, 1e3, width=32)),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_parts_put_together_are_the_whole(error: np.ndarray, cuts: list[int]) -> None:
    value = np.linspace(-50, 50, error.size)
    got = value + error
    pieces = zip(np.split(got, sorted(cuts)), np.split(value, sorted(cuts)), strict=True)
    assert together([units(*piece) for piece in pieces]) == units(got, value)


def test_the_mean_square_of_a_case_is_that_of_all_its_sampled_elements() -> None:
    """Of outputs of 100 and 300 elements, with errors of 1 and 2 standard deviations."""
    values = [np.arange(1.0, 101.0), np.arange(1.0, 301.0)]
    outputs = [value + sigmas for value, sigmas in zip(values, (1.0, -2.0), strict=True)]
    expected = [expecting(value, "float64", 8.0) for value in values]
    result = judge(["y", "z"], outputs, expected, [])
    assert result.sampled == 400
    assert result.mean_square == pytest.approx((100 * 1.0 + 300 * 4.0) / 400)


def test_too_few_elements_have_no_mean_square() -> None:
    value = np.arange(1.0, 11.0)
    result = judge(["y"], [value], [expecting(value, "float64", 0.1)], [])
    assert (result.mean_square, result.sampled) == (None, 0)
