"""Comparisons of what carries errors: where these may decide, both outcomes are right, and nowhere else."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.conformance import calibration
from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision, Undecided
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.verdict import judge
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES

FLOAT = Precision.of(DTYPES["float32"])
SIGMA = 1e-7


def array(*values: float, deviation: float = SIGMA) -> ErrorArray:
    return ErrorArray(np.array(values), FLOAT, np.full(len(values), deviation**2))


def undecided(condition: Any) -> list[bool]:
    assert isinstance(condition, Undecided)
    return list(condition.undecided.tolist())


def test_a_comparison_is_undecided_within_eight_deviations() -> None:
    x = array(1.0, 7.9 * SIGMA, -7.9 * SIGMA, 8.1 * SIGMA, 0.0)
    for condition in (x > 0.0, x >= 0.0, x < 0.0, x == 0.0, x != 0.0):
        assert undecided(condition) == [False, True, True, False, True]
    assert np.asarray(x > 0.0).tolist() == [True, True, False, True, False]


def test_both_operands_errors_count() -> None:
    distance = 10 * SIGMA
    assert type(array(distance) > 0.0) is np.ndarray
    assert undecided(array(distance) > array(0.0)) == [True]


def test_what_carries_no_error_is_decided() -> None:
    exact = ErrorArray(np.array([0.0, 1.0]), FLOAT)
    assert type(exact > 0.0) is np.ndarray
    with np.errstate(invalid="ignore"):
        assert type(array(np.nan, np.inf) > np.nan) is np.ndarray


def test_logic_keeps_what_is_undecided() -> None:
    near, sure = array(1.0, 0.0) > 0.0, np.array([True, True])
    for condition in (
        near & sure,
        near | sure,
        ~near,
        np.logical_not(near),
        near != 0.0,
        near[:, None][:, 0],
    ):
        assert undecided(condition) == [False, True]
    assert undecided(np.logical_and(near, ErrorArray(np.ones(2), FLOAT))) == [False, True]
    assert undecided(near & (array(0.0, 1.0) > 0.0)) == [True, True]
    assert undecided(near.reshape(2, 1).reshape(2)) == [False, True]


def test_to_all_else_it_is_a_plain_array() -> None:
    condition = array(1.0, 0.0) > 0.0
    assert np.sum(condition) == 1
    assert condition.any()
    assert not condition.all()
    assert type(np.where(condition)[0]) is np.ndarray


def test_a_choice_may_be_the_other_one_where_it_is_undecided() -> None:
    near = array(1.0, 0.0) > 0.0
    chosen: Any = np.where(near, 3.0, 5.0)
    assert chosen.value.tolist() == [3.0, 5.0]
    assert (SIGMAS * chosen.deviation()).tolist() == [0.0, 2.0]


def test_at_a_kink_the_error_is_that_of_the_operand() -> None:
    x = array(1.0, SIGMA / 2, -SIGMA / 2, -1.0)
    y: Any = np.where(x > 0.0, x, 0.0)
    assert y.value.tolist() == [1.0, SIGMA / 2, 0.0, 0.0]
    assert y.deviation() == pytest.approx([SIGMA, SIGMA, SIGMA, 0.0], rel=0.01)


def test_anything_may_come_of_a_number_and_an_infinity() -> None:
    exact = array(1.0, 2.0, 3.0, deviation=0.0)
    with np.errstate(invalid="ignore"):
        for condition in (array(0.0, 0.0, 1.0) >= 0.0, array(0.0, 0.0, 1.0) > 0.0):
            y: Any = np.where(condition, exact, -np.inf)
            assert y.value.tolist() == [1.0, 2.0, 3.0]
            assert y.deviation().tolist() == [np.inf, np.inf, 0.0]


# --- In a call ------------------------------------------------------------------------------------


def floats(*values: float) -> NDArray[Any]:
    return np.array(values, np.float32)


def verdict(graph: str, y: NDArray[Any], *tensors: NDArray[Any]) -> Verdict:
    call = spec.pointwise_fusion.bind(*tensors, graph=graph)
    named = dict(zip("abcdef", tensors, strict=False))
    expected = expectations(call, named, "ieee")
    return judge(["y"], [y], expected, []).verdict


A = floats(1.0 + 2.0**-23, 1.0 + 2.0**-23, -2.0, 4.0)
C = -floats(1.0 + 2.0**-22, 2.0, 5.0, 0.0)
"""The first a·a + c, 2^-46, is less than the rounding of a·a, and may be computed as 0."""


def test_a_step_of_a_rounded_result_may_go_either_way() -> None:
    graph = "binary_select(1.0,0.0,cmp_gt(add(mul(a,a),b),0.0))"
    exact = ref.pointwise_fusion(A, C, graph=graph)
    assert exact.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert verdict(graph, exact, A, C) is Verdict.PASSED
    assert verdict(graph, floats(0, 0, 0, 1), A, C) is Verdict.PASSED
    for wrong in ([1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 0]):
        assert verdict(graph, floats(*wrong), A, C) is Verdict.FAILED


def test_a_truth_value_of_a_rounded_result_may_be_either() -> None:
    graph = "cmp_gt(add(mul(a,a),b),0.0)"
    assert verdict(graph, np.array([True, False, False, True]), A, C) is Verdict.PASSED
    assert verdict(graph, np.array([False, False, False, True]), A, C) is Verdict.PASSED
    assert verdict(graph, np.array([True, True, False, True]), A, C) is Verdict.FAILED
    assert verdict(graph, np.array([True, False, True, True]), A, C) is Verdict.FAILED


def test_a_kink_next_to_a_rounded_result_is_no_failure() -> None:
    graph = "relu_fwd(neg(add(mul(a,a),b)))"
    exact = ref.pointwise_fusion(A, C, graph=graph)
    assert (exact[0], exact[1] > 0) == (0.0, True)
    assert verdict(graph, exact, A, C) is Verdict.PASSED
    beyond = exact.copy()
    beyond[0] = 2.0**-30
    assert verdict(graph, beyond, A, C) is Verdict.PASSED
    beyond[0] = 1e-5
    assert verdict(graph, beyond, A, C) is Verdict.FAILED


def test_nothing_to_the_power_of_0_has_an_error() -> None:
    x, zero = floats(np.nan, np.inf, 2.0), floats(0.0, -0.0, 1.0)
    y = floats(1.0, 1.0, 2.1)
    assert verdict("pow(add(a,0.1),b)", y, x, zero) is Verdict.PASSED
    assert verdict("pow(add(a,0.1),b)", y * np.float32(1 + 2.0**-17), x, zero) is Verdict.FAILED


def test_exponents_and_angles_of_infinities_have_bounds() -> None:
    x, infinite = floats(0.3, 0.3, 1.0), floats(np.inf, -np.inf, np.nan)
    assert verdict("pow(add(a,0.1),b)", floats(0, np.inf, np.nan), x, infinite) is Verdict.PASSED
    angle = floats(np.pi / 2, -np.pi / 2, np.nan)
    assert verdict("atan2(b,add(a,0.1))", angle, x, infinite) is Verdict.PASSED


# --- Infinity times what should be 0 --------------------------------------------------------------

NORMS = (
    "batch_norm_backward dy=float64[2,3,7] x=float64[2,3,7] scale=float64[3]",
    "instance_norm_backward dy=float64[2,3,7] x=float64[2,3,7] scale=float64[3]",
    "group_norm_backward dy=float64[2,4,7] x=float64[2,4,7] scale=float64[4] groups=2",
    "layer_norm_backward dy=float64[2,7] x=float64[2,7] scale=float64[7]",
)


@pytest.mark.parametrize("line", NORMS)
def test_an_infinite_gradient_where_all_x_are_equal_gives_infinities_or_nan(line: str) -> None:
    """x − mean is 0 or the rounding of the mean, and Inf times that NaN or Inf of either sign."""
    case = Case.parse(line)
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"][...] = 0.1
    tensors["dy"][0, ..., 0] = np.inf
    expected = expectations(case.call, tensors, "ieee")
    for special in (np.nan, np.inf, -np.inf, 0.0):
        outputs = [
            e.value if e.undecided is None else np.where(e.undecided, special, e.value)
            for e in expected
        ]
        result = judge(["dx", "dscale", "dbias"], outputs, expected, list(tensors.values()))
        assert (result.verdict is Verdict.PASSED) == (special != 0.0), result.message
    dbias = expected[2]
    assert np.isinf(dbias.value).any()
    assert np.isfinite(dbias.bound).all()


def test_the_calibration_counts_no_deviations_where_errors_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever decides otherwise is off by all that is allowed: 8 deviations, whatever the model is worth."""
    graph = "binary_select(mul(a,a),0.0,cmp_gt(add(mul(a,a),b),0.0))"
    case = Case.parse(
        f"pointwise_fusion a=float32[4] b=float32[4] graph={graph} fill=normal seed=0"
    )
    counted = []
    for b in (C, C + np.float32(7)):
        given = {name: SimpleNamespace(view=lambda x=x: x) for name, x in (("a", A), ("b", b))}
        monkeypatch.setattr(calibration, "inputs", lambda case, given=given: given)
        counted.append(calibration._row([case], "ieee").max_sigmas > 0.0)
    assert counted == [False, True]
