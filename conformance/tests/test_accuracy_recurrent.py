"""What the accuracy model needs for recurrences: states kept narrowly, and errors beside large units."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision
from dnncanon.reference.definition import chosen, kept
from dnncanon.spec import DTYPES

FLOAT32 = Precision.of(DTYPES["float32"])


def carried(value: NDArray[np.float64]) -> ErrorArray:
    return ErrorArray(value, FLOAT32)


def test_what_is_kept_in_float16_is_rounded_to_it() -> None:
    value = np.random.default_rng(0).uniform(0.1, 4.0, 4096)
    narrow = kept(carried(value), "float16")
    error = value.astype(np.float16).astype(np.float64) - value
    assert (np.abs(error) <= SIGMAS * narrow.deviation()).all()
    spread = np.sqrt(np.mean(np.square(error / narrow.deviation())))
    assert 0.3 < spread < 1.0, "neither missed nor far too wide"
    assert not carried(value).deviation().any()


def test_what_the_narrow_type_holds_is_kept_as_it_is() -> None:
    halves = ErrorArray(np.arange(-40, 40) / 2.0, FLOAT32, quantum=0.5)
    assert not kept(halves, "float16").deviation().any()


def test_what_may_overflow_the_narrow_type_has_no_bound() -> None:
    value = carried(np.array([6.0e4, 7.0e4, np.inf]))
    with np.errstate(invalid="ignore"):
        narrow, wide = kept(value, "float16"), kept(value, "bfloat16")
    assert np.isinf(narrow.deviation()).tolist() == [False, True, False]
    assert np.isfinite(wide.deviation()).all()


def test_what_underflows_in_the_narrow_type_may_be_lost() -> None:
    tiny = np.array([1e-9])
    assert (SIGMAS * kept(carried(tiny), "float16").deviation() >= tiny).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_type_that_is_no_narrower_changes_nothing(dtype: str) -> None:
    array = carried(np.array([0.1, 3.0]))
    assert kept(array, dtype) is array


@pytest.mark.parametrize("powers", [2, 4, 6])
def test_an_error_keeps_its_size_beside_zeros_of_a_huge_unit(powers: int) -> None:
    """A product has the product of its operands' units, though its other elements may have met zeros only."""
    inexact = carried(np.array([0.1, 0.7])) * np.array([1 / 3, 1 / 3])
    large = carried(np.array([0.0, 0.0, 2.0**120]))
    for _ in range(powers):
        large = large * 2.0**120
    total = (inexact + large[:2]).settled().deviation()
    assert total == pytest.approx(inexact.settled().deviation(), rel=0.5)


def test_nothing_is_claimed_of_what_is_made_of_a_gate_that_errors_decide() -> None:
    """Its reach is one error, which comes in by many paths: it is not added up as if it were several."""
    third = carried(np.array([1.0])) / 3.0
    inputs = third - np.array([1 / 3, 0.0, 1.0])  # about 0, ⅓ and −⅔
    gates = chosen(inputs > 0.0, carried(np.array([5.0, 5.0, 5.0])), 0.0)
    assert gates.value[1:].tolist() == [5.0, 0.0]
    assert np.isinf(gates.deviation()).tolist() == [True, False, False]
    assert np.isinf(np.sum(gates).settled().deviation())
    assert np.isfinite(np.sum(gates[1:]).settled().deviation())


def test_a_gate_that_makes_no_difference_is_no_matter() -> None:
    inputs = carried(np.array([1.0])) / 3.0 - 1 / 3
    assert not chosen(inputs > 0.0, carried(np.array([0.0])), 0.0).deviation().any()
    decided = np.array([True, False])
    assert chosen(decided, np.array([1.0, 2.0]), 0.0).tolist() == [1.0, 0.0]
