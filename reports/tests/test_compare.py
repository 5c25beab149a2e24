"""Comparison of two runs."""

from __future__ import annotations

from hypothesis import given

from dnncanon.reports import CaseResult, Results, compare

from .synthetic import ENVIRONMENT, case, measured, results, runs, shrunk_from


def test_what_failed_and_passes_and_the_other_way_round() -> None:
    old = results(case("a"), case("b", "FAILED"), case("c"))
    new = results(case("a", "CRASHED", message="gone"), case("b"), case("c"))
    comparison = compare(old, new)
    assert comparison.matched == 3
    assert [change.new.case for change in comparison.newly_failing] == ["a"]
    assert [change.new.case for change in comparison.newly_passing] == ["b"]
    assert comparison.regressed
    assert "Newly failing: 1\n  PASSED -> CRASHED  gone\n" in comparison.text()
    assert "PASSED → **CRASHED** gone" in comparison.markdown()


def test_claims_that_are_gone() -> None:
    comparison = compare(results(case("a")), results(case("a", "UNSUPPORTED")))
    assert [change.old.case for change in comparison.disappeared] == ["a"]
    assert len(comparison.cells_disappeared) == 1
    assert comparison.regressed


def test_a_cell_that_is_gone_altogether() -> None:
    old = results(case("a"), case("b", dtype="float16"))
    comparison = compare(old, results(case("a")))
    assert comparison.only_old == 1
    assert [change.key.dtype for change in comparison.cells_disappeared] == ["float16"]
    assert comparison.regressed


def test_other_cases_of_a_cell_that_fail_show_in_the_cell() -> None:
    comparison = compare(results(case("seed=1")), results(case("seed=2", "FAILED")))
    assert comparison.matched == 0
    assert not comparison.newly_failing
    assert len(comparison.cells_failing) == 1
    assert comparison.regressed


def test_a_comparison_that_became_vacuous() -> None:
    comparison = compare(results(case("a")), results(case("a", "MISTRUSTED")))
    assert len(comparison.newly_mistrusted) == 1
    assert comparison.regressed


def test_error_ratios_that_changed() -> None:
    old = results(measured("a", max_error=0.2), measured("b", dtype="float16", max_error=0.5))
    new = results(measured("a", max_error=0.8), measured("b", dtype="float16", max_error=0.51))
    comparison = compare(old, new)
    (change,) = comparison.ratio_changes
    assert change.key.dtype == "float32"
    assert change.factor == 4.0
    assert not comparison.regressed
    assert "conv_forward float32 gpu: 0.200 -> 0.800" in comparison.text()


def test_two_backends_are_compared_by_line() -> None:
    comparison = compare(
        results(case("a", backend="torch")), results(case("a", "FAILED", backend="gpu"))
    )
    assert comparison.matched == 1
    assert len(comparison.newly_failing) == 1
    assert not comparison.cells_disappeared


def test_backends_are_kept_apart_where_a_run_has_several() -> None:
    old = results(case("a", backend="torch"), case("a", "FAILED", backend="gpu"))
    comparison = compare(old, old)
    assert comparison.matched == 2
    assert not comparison.regressed


def test_shrunk_cases_are_no_cases() -> None:
    drawn = case("a", "FAILED")
    comparison = compare(results(drawn), results(drawn, shrunk_from(drawn)))
    assert comparison.only_new == 0


def test_of_a_case_run_twice_the_worse_verdict_counts() -> None:
    comparison = compare(results(case("a")), results(case("a", "FAILED"), case("a")))
    assert len(comparison.newly_failing) == 1


def test_an_unfinished_run_is_named() -> None:
    comparison = compare(results(case("a")), Results(ENVIRONMENT, (case("a"),), None))
    assert "New run: The run did not finish" in comparison.text()
    assert "New run: The run did not finish" in comparison.markdown()


@given(runs())
def test_a_run_compared_with_itself_has_not_changed(cases: list[CaseResult]) -> None:
    comparison = compare(results(*cases), results(*cases))
    assert not comparison.regressed
    assert not comparison.newly_passing
    assert not comparison.ratio_changes
    assert comparison.only_old == comparison.only_new == 0


@given(runs(), runs())
def test_changes_are_mirrored(one: list[CaseResult], other: list[CaseResult]) -> None:
    there, back = compare(results(*one), results(*other)), compare(results(*other), results(*one))
    assert there.matched == back.matched
    assert there.only_old == back.only_new
    assert there.text()
    assert there.markdown()
