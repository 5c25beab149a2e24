"""Primitives that take no tensor: random numbers have bounds, cases, and verdicts as anything else has."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncanon.conformance.backends import Backend, load
from dnncanon.conformance.bounds import Expected, expectations
from dnncanon.conformance.calibration import computed
from dnncanon.conformance.case import Case, must_error_cases
from dnncanon.conformance.execute import execute
from dnncanon.conformance.verdict import judge
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES

NORMAL = Case.parse("rng_normal shape=40,50 attribute.seed=7 mean=0.1 std=3.0")


def expected(case: Case, numerics: str = "ieee") -> Expected:
    (one,) = expectations(case.call, {}, numerics)
    return one


def of_dtype(case: Case, dtype: str) -> Case:
    arguments = case.arguments.with_attributes(dtype=dtype)
    return replace(case, arguments=arguments)


def test_errors_begin_with_the_random_bits() -> None:
    """Logarithm, root and cosine are off by more than the last rounding, and float32 is computed in."""
    one = expected(NORMAL)
    rounding = np.spacing(np.abs(one.value).astype(np.float32)) / 2
    assert (one.bound > 2 * rounding).all()
    assert (one.bound < 1e-4).all()


def test_the_numerics_class_decides_without_a_tensor_too() -> None:
    ieee, fast = (expected(NORMAL, name).bound for name in ("ieee", "fast_math"))
    assert np.median(fast / ieee) > 2
    assert np.median(expected(of_dtype(NORMAL, "float64")).bound / ieee) < 2.0**-28


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numpy_in_float32_is_within_the_bound_and_float16_is_not(dtype: str) -> None:
    case = of_dtype(NORMAL, dtype)
    judgements = [
        judge(("y",), computed(case, {}, accumulator), (expected(case),), [])
        for accumulator in (np.float32, np.float16)
    ]
    assert judgements[0].verdict is Verdict.PASSED
    assert 0.01 < judgements[0].max_error <= 1
    assert judgements[1].verdict is Verdict.FAILED or dtype == "bfloat16"


def test_the_unit_interval_is_exact() -> None:
    """Whatever is computed in: a neighbouring number fails."""
    case = Case.parse("rng_uniform shape=400 attribute.seed=7")
    one = expected(case)
    assert np.array_equal(one.value, one.value.astype(np.float32))
    beside = np.nextafter(one.value.astype(np.float32), np.float32(2))
    assert judge(("y",), [beside], (one,), []).verdict is Verdict.FAILED


def test_bits_are_exact_in_every_dtype() -> None:
    for dtype in ("bool", "uint8", "float16"):
        case = Case.parse(f"rng_bernoulli shape=90 dtype={dtype} probability=0.5 attribute.seed=7")
        one = expected(case, "exact")
        assert not one.bound.any()
        wrong = one.value.copy()
        wrong[-1] = 1 - wrong[-1]
        wrong = wrong.astype(DTYPES[dtype].numpy)
        assert judge(("y",), [wrong], (one,), []).verdict is Verdict.FAILED


class Constant:
    """A backend whose random numbers are all the same."""

    name = "constant"

    def rng_uniform(self, *, shape: Any, dtype: str = "float32", **attributes: Any) -> Any:
        return np.full(shape, 0.5, DTYPES[dtype].numpy)


def test_verdicts() -> None:
    case = Case.parse("rng_uniform shape=2,30 y=:(1,2) attribute.seed=7 runs=2")
    assert case.dtype == "float32"
    assert execute(load("reference"), case).verdict is Verdict.PASSED
    assert execute(Backend("constant", Constant()), case).verdict is Verdict.FAILED
    assert execute(Backend("none", object()), case).verdict is Verdict.UNSUPPORTED


def test_illegal_attributes_are_refused() -> None:
    backend = load("reference")
    cases = list(must_error_cases(NORMAL))
    broken = {case.violates.partition(".")[0] for case in cases}
    assert broken == {f"C{number}" for number in range(1, 8)}
    for case in cases:
        assert execute(backend, case).verdict is Verdict.PASSED
