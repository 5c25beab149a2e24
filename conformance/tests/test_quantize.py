"""Codes are judged exactly: ties where a scale is a power of two, one step only near the ties of others."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import reference, spec
from dnncanon.conformance.accuracy import ErrorArray, Precision
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.verdict import Judgement, judge
from dnncanon.reports import Verdict
from dnncanon.spec.numerics import FAST_MATH
from dnncanon.spec.quantize_domain import telling_codes

Array = np.ndarray[Any, Any]
FLOAT32 = Precision.of(spec.DTYPES["float32"])
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def judged(primitive: str, tensors: dict[str, Array], *outputs: Array, **given: Any) -> Judgement:
    call = spec.primitives()[primitive].bind(*tensors.values(), **given)
    expected = expectations(call, tensors, "ieee")
    return judge(list(call.named_outputs), outputs, expected, list(tensors.values()))


def linear(x: Array, scale: float, y: Array) -> Verdict:
    tensors = {"x": x, "scale": np.array([scale], np.float32)}
    return judged("quantize_linear", tensors, y, dtype=y.dtype.name).verdict


def exact(value: Any) -> ErrorArray:
    return ErrorArray(np.asarray(value, np.float64), FLOAT32)


# --- The model ------------------------------------------------------------------------------------


def test_a_quotient_by_a_power_of_two_is_exact_but_where_it_is_subnormal() -> None:
    quotient = exact([1.1, 1.1, 1.1, 1.1, 1.1 * 2.0**-100]) / exact(
        [0.5, -4, 3, 2.0**-140, 2.0**40]
    )
    assert quotient.has_errors
    assert (quotient.variance == 0).tolist() == [True, True, False, True, False]


def test_one_by_an_uncertain_power_of_two_is_not() -> None:
    uncertain = ErrorArray(np.full(2, 2.0), FLOAT32, np.array([0.0, 1e-20]))
    assert ((exact([1.1, 1.1]) / uncertain).variance == 0).tolist() == [True, False]


def test_nor_is_one_that_is_approximated() -> None:
    fast = Precision.of(spec.DTYPES["float32"], functions=FAST_MATH)
    quotient = ErrorArray(np.full(2, 1.1), fast) / ErrorArray(np.full(2, 2.0), fast)
    assert (quotient.variance > 0).all()


# --- The verdict ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_ties_have_one_right_code(dtype: str) -> None:
    ties = np.array([17.0, 19.0]) if dtype != "int8" else np.array([2.5, 3.5])
    right, wrong = ([16, 20], [18, 18]) if dtype != "int8" else ([2, 4], [3, 3])
    x, kind = (ties / 8).astype(np.float32), spec.DTYPES[dtype].numpy
    assert linear(x, 0.125, np.array(right).astype(kind)) is Verdict.PASSED
    for place in (0, 1):
        codes = np.array(right)
        codes[place] = wrong[place]
        assert linear(x, 0.125, codes.astype(kind)) is Verdict.FAILED


@pytest.mark.parametrize(
    ("dtype", "tie", "step", "other"), [("int8", 2.5, 1.0, 4.0), ("float8_e4m3fn", 17.0, 2.0, 26.0)]
)
def test_near_the_tie_of_another_scale_either_neighbour_is_right(
    dtype: str, tie: float, step: float, other: float
) -> None:
    scale, kind = float(np.float32(1 / tie)), spec.DTYPES[dtype].numpy
    x = np.array([1.0, 1.5], np.float32)
    assert 0 < abs(1 / scale - tie) < tie * 2.0**-24
    for half, verdict in ((-0.5, Verdict.PASSED), (0.5, Verdict.PASSED), (2.5, Verdict.FAILED)):
        near = tie + half * step
        assert linear(x, scale, np.array([near, other]).astype(kind)) is verdict
        assert linear(x, scale, np.array([near, other + step]).astype(kind)) is Verdict.FAILED


def test_the_number_below_a_power_of_two_is_not_that_power() -> None:
    """It is but half a spacing away."""
    x = np.array([2.0], np.float32)
    assert linear(x, 0.5, np.array([4.0]).astype(E4M3)) is Verdict.PASSED
    assert linear(x, 0.5, np.array([3.75]).astype(E4M3)) is Verdict.FAILED


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_quotient_whose_error_reaches_past_a_power_of_two_is_that_power(dtype: str) -> None:
    """Whichever of its two spacings an error puts it in."""
    x, row = np.array([6.0], np.float32), spec.DTYPES[dtype]
    step = 2.0 ** (2 - row.digits)  # of the numbers from 2 to 4
    for code, verdict in ((2.0, Verdict.PASSED), (2.0 + step, Verdict.FAILED)):
        assert linear(x, 3.0, np.array([code]).astype(row.numpy)) is verdict
    below = np.array([2.0 - step / 2.0])
    assert linear(x, 3.0, below.astype(row.numpy)) is Verdict.FAILED


@pytest.mark.parametrize(("factor", "largest"), [(0.5, 3.0), (2.0, 3.0), (2.0, 0.0)])
def test_a_scale_is_not_the_next_power_of_two(factor: float, largest: float) -> None:
    x = np.zeros((2, 32), np.float32)
    x[0, 5], x[1, 0] = largest, 1.0
    given = {"dtype": "float8_e4m3fn", "scale_dtype": "float8_e8m0fnu", "block_size": 32}
    y, scale = reference.block_scale_quantize(x, **given)
    assert judged("block_scale_quantize", {"x": x}, y, scale, **given).verdict is Verdict.PASSED
    other = scale.astype(np.float64)
    other[0] *= factor
    wrong = judged("block_scale_quantize", {"x": x}, y, other.astype(E8M0), **given)
    assert wrong.verdict is Verdict.FAILED
    assert "scale[0, 0]" in wrong.message


def test_the_data_leave_what_has_no_finite_scale_as_it_was_drawn() -> None:
    x, scale = np.full((2, 16), 0.75, np.float32), np.array([np.inf, 2.0], np.float32)
    call = spec.primitives()["quantize_linear"].bind(x, scale, dtype="int8", axis=0)
    data = telling_codes(call.problem, {"x": x, "scale": scale})
    assert (data["x"][0] == 0.75).all()
    assert (data["x"][1] != 0.75).any()
    assert data["scale"][0] == np.inf
