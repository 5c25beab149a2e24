"""The arithmetic of the reports, on synthetic results."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon.reports import (
    ULP_BINS,
    ULP_EDGES,
    CaseResult,
    Standing,
    Verdict,
    count_verdicts,
    exit_code,
    standing,
    ulp_bin,
)
from dnncanon.reports.formatting import format_max_ulp, format_p99_ulp
from dnncanon.reports.statistics import (
    CellKey,
    cases_per_second,
    conclusion,
    conforming_share,
    counted_cases,
    failing_count,
    failures,
    group_counts,
    histogram_sum,
    matrix,
    passed_count,
    percentage,
    pooled_mean_square,
    run_count,
    ulp_bin_labels,
    worst_cases,
)

from .synthetic import case, discrete, measured, results, runs, shrunk_from

# --- percentages ----------------------------------------------------------------------------------


def as_number(share: str) -> float:
    return float(share.removesuffix(" %"))


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_percentage_is_100_only_of_all_and_never_more(part: int, rest: int) -> None:
    share = percentage(part, part + rest)
    if part + rest == 0:
        assert share == "none tested"
    else:
        assert 0 <= as_number(share) <= 100
        assert (as_number(share) == 100) == (rest == 0)
        assert as_number(share) <= 100 * part / (part + rest) + 1e-9


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 0, "none tested"),
        (0, 3, "0.0 %"),
        (1, 3, "33.3 %"),
        (2, 3, "66.6 %"),
        (999_999, 1_000_000, "99.9 %"),
        (3, 3, "100 %"),
    ],
)
def test_percentage(part: int, whole: int, expected: str) -> None:
    assert percentage(part, whole) == expected


@pytest.mark.parametrize(("part", "whole"), [(4, 3), (-1, 3), (1, 0)])
def test_what_is_not_a_share_is_refused(part: int, whole: int) -> None:
    with pytest.raises(ValueError, match="not a share"):
        percentage(part, whole)


# --- counts ---------------------------------------------------------------------------------------


@given(runs())
def test_counts_add_up_and_shrunk_cases_are_not_counted(cases: list[CaseResult]) -> None:
    counts = count_verdicts(cases)
    drawn = [one for one in cases if one.origin != "shrunk"]
    assert list(counts) == list(Verdict)
    assert sum(counts.values()) == len(drawn) == len(counted_cases(cases))
    for verdict in Verdict:
        assert counts[verdict] == sum(one.verdict is verdict for one in drawn)


@given(runs())
def test_a_share_never_hides_a_failure(cases: list[CaseResult]) -> None:
    counts = count_verdicts(cases)
    share = conforming_share(counts)
    if passed_count(counts) + failing_count(counts) == 0:
        assert share == "none tested"
        return
    everything = all(
        one.verdict in ("PASSED", "UNSUPPORTED", "SKIPPED") for one in counted_cases(cases)
    )
    assert (share == "100 %") == everything


@given(runs())
def test_cells_and_groups_partition_the_cases(cases: list[CaseResult]) -> None:
    counts = count_verdicts(cases)
    cells = matrix(cases).cells.values()
    layers = group_counts(cases, lambda one: one.origin)
    for verdict in Verdict:
        assert sum(cell.counts[verdict] for cell in cells) == counts[verdict]
        assert sum(group[verdict] for group in layers.values()) == counts[verdict]


@given(runs())
def test_failures_are_those_that_do_not_conform(cases: list[CaseResult]) -> None:
    found = failures(cases)
    assert sum(failure.number for failure in found) == failing_count(count_verdicts(cases))
    assert all(failure.case.origin != "shrunk" for failure in found)
    assert (exit_code(count_verdicts(cases)) == 1) == bool(found)


def test_not_run_cases_are_in_no_denominator() -> None:
    counts = count_verdicts([case("a"), case("b", "UNSUPPORTED"), case("c", "SKIPPED")])
    assert run_count(counts) == 1
    assert conforming_share(counts) == "100 %"


def test_mistrusted_cases_lower_the_share() -> None:
    counts = count_verdicts([case("a"), case("b", "MISTRUSTED")])
    assert conforming_share(counts) == "50.0 %"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], 3),
        (["UNSUPPORTED", "SKIPPED"], 3),
        (["MISTRUSTED"], 3),
        (["PASSED"], 0),
        (["PASSED", "UNSUPPORTED", "SKIPPED", "MISTRUSTED"], 0),
        (["PASSED", "FAILED"], 1),
        (["ERROR"], 1),
        (["CRASHED"], 1),
        (["TIMEOUT", "MISTRUSTED"], 1),
    ],
)
def test_exit_code(verdicts: list[str], expected: int) -> None:
    assert exit_code(count_verdicts([case(str(i), v) for i, v in enumerate(verdicts)])) == expected


def test_exit_code_takes_counts_with_plain_names() -> None:
    assert exit_code({"PASSED": 3}) == 0
    assert exit_code({"PASSED": 3, "TIMEOUT": 1}) == 1


# --- shrunk cases ---------------------------------------------------------------------------------


def test_a_shrunk_case_without_its_drawn_one_counts_as_itself() -> None:
    orphan = shrunk_from(case("lost", "FAILED"))
    assert count_verdicts([case("a"), orphan])["FAILED"] == 1
    assert [failure.case for failure in failures([orphan])] == [orphan]


def test_a_shrunk_failure_of_a_case_that_passed_counts() -> None:
    flaky = case("a", "PASSED")
    assert exit_code(count_verdicts([flaky, shrunk_from(flaky)])) == 1


def test_a_shrunk_failure_does_not_hide_behind_a_mistrusted_case() -> None:
    doubtful = case("a", "MISTRUSTED")
    assert (
        count_verdicts([doubtful, shrunk_from(doubtful, verdict="MISTRUSTED")])["MISTRUSTED"] == 1
    )
    assert count_verdicts([doubtful, shrunk_from(doubtful)])["FAILED"] == 1


def test_a_shrunk_case_belongs_to_its_own_backend() -> None:
    drawn = case("a", "FAILED", backend="gpu")
    assert count_verdicts([drawn, shrunk_from(drawn, backend="torch")])["FAILED"] == 2


def test_failures_that_shrink_to_the_same_case_are_one() -> None:
    first, second, other = (case(line, "FAILED") for line in "abc")
    found = failures([first, second, other, shrunk_from(first), shrunk_from(second)])
    assert [(failure.case.case, failure.number) for failure in found] == [("a", 2), ("c", 1)]
    assert found[0].smallest.origin == "shrunk"


def test_the_first_failures_show_every_cell() -> None:
    many = [case(f"m{i}", "FAILED", dtype="float16") for i in range(50)]
    found = failures([*many, case("x", "CRASHED", dtype="float64")])
    assert [failure.case.dtype for failure in found[:2]] == ["float16", "float64"]


# --- cells ----------------------------------------------------------------------------------------


def test_matrix_is_ordered_by_primitive_dtype_and_backend() -> None:
    table = matrix(
        [
            case(primitive=primitive, dtype=dtype, backend=backend)
            for backend in ("torch", "gpu")
            for dtype in ("int8", "float16", "float64", "bfloat16")
            for primitive in ("softmax_forward", "conv_forward")
        ]
    )
    assert table.primitives == ("conv_forward", "softmax_forward")
    assert table.dtypes == ("float64", "bfloat16", "float16", "int8")
    assert table.backends == ("gpu", "torch")
    assert table.cell("gpu", "conv_forward", "float32") is None


def test_cell_gathers_its_cases() -> None:
    worst = measured("b", max_error=0.75, bias=-3.0, max_ulp=9.0, numerics="tf32")
    table = matrix([measured("a", bias=2.0), worst, case("c", "UNSUPPORTED")])
    cell = table.cells[CellKey("gpu", "conv_forward", "float32")]
    assert cell.worst is worst
    assert (cell.max_error, cell.bias, cell.max_ulp) == (0.75, -3.0, 9.0)
    assert cell.ulp_histogram[:4] == (140, 40, 16, 4)
    assert cell.elements == 200
    assert cell.numerics == ("ieee", "tf32")
    assert cell.run == 2
    assert cell.verdict is Verdict.PASSED


def test_99_percent_of_the_elements_are_in_cases_below_the_percentile_of_a_cell() -> None:
    cases = [measured(str(i), p99_error=i / 100, elements=10) for i in range(99)]
    few = measured("few", p99_error=5.0, elements=9)
    (cell,) = matrix([*cases, few]).cells.values()
    assert cell.p99_error == pytest.approx(0.98)
    (cell,) = matrix([*cases, few, measured("many", p99_error=7.0, elements=500)]).cells.values()
    assert cell.p99_error == 7.0
    (cell,) = matrix([measured("none", p99_error=None)]).cells.values()
    assert cell.p99_error is None


def test_99_percent_of_the_ulps_are_within_an_edge_of_the_bins() -> None:
    """Of 1,000 elements 990 are within 1 ULP, and 989 are not enough."""
    (cell,) = matrix([measured("a", ulp_histogram=(900, 0, 90, 10), max_ulp=2.0)]).cells.values()
    assert cell.p99_ulp == 1.0
    (cell,) = matrix([measured("a", ulp_histogram=(900, 0, 89, 11), max_ulp=1.75)]).cells.values()
    assert cell.p99_ulp == 1.75  # the bin goes to 2, no element does
    far = (0,) * 19 + (1,)
    (cell,) = matrix([measured("a", ulp_histogram=far, max_ulp=math.inf)]).cells.values()
    assert cell.p99_ulp == math.inf
    (cell,) = matrix([case("a")]).cells.values()
    assert cell.p99_ulp is None


ulps = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def ulp_case(line: str, errors: list[float]) -> CaseResult:
    """A case of these errors in ULP, counted as a run counts them."""
    counts = [0] * ULP_BINS
    for error in errors:
        counts[ulp_bin(error)] += 1
    return measured(line, ulp_histogram=counts, max_ulp=max(errors), elements=len(errors))


@given(st.lists(ulps, min_size=1, max_size=5))
def test_the_histogram_of_cases_is_that_of_all_their_elements(parts: list[list[float]]) -> None:
    together = [error for part in parts for error in part]
    (split,) = matrix([ulp_case(str(i), part) for i, part in enumerate(parts)]).cells.values()
    (whole,) = matrix([ulp_case("all", together)]).cells.values()
    assert split.ulp_histogram == whole.ulp_histogram
    assert (split.max_ulp, split.p99_ulp, split.elements) == (
        whole.max_ulp,
        whole.p99_ulp,
        whole.elements,
    )


@given(st.lists(st.floats(0, ULP_EDGES[-1]), min_size=1, max_size=200))
def test_the_percentile_is_a_limit_that_99_percent_keep(errors: list[float]) -> None:
    (cell,) = matrix([ulp_case("a", errors)]).cells.values()
    assert cell.p99_ulp is not None
    within = sum(error <= cell.p99_ulp for error in errors)
    assert 100 * within >= 99 * len(errors)
    needed = sorted(errors)[-(-99 * len(errors) // 100) - 1]
    assert cell.p99_ulp <= max(2.0 * needed, 0.5)  # and the least of its kind


squares = st.lists(st.floats(0, 1e3), min_size=1, max_size=50)


@given(st.lists(squares, min_size=1, max_size=5))
def test_the_mean_square_of_cases_is_that_of_all_their_elements(parts: list[list[float]]) -> None:
    cases = [
        measured(str(i), mean_square=sum(part) / len(part), sampled=len(part))
        for i, part in enumerate(parts)
    ]
    every = [square for part in parts for square in part]
    assert pooled_mean_square(cases) == pytest.approx(sum(every) / len(every), abs=1e-12)


def test_cases_that_sampled_nothing_have_no_share_in_the_mean_square() -> None:
    (cell,) = matrix([measured("a"), case("b"), measured("c", sampled=0)]).cells.values()
    assert cell.mean_square == 0.25
    (cell,) = matrix([case("b")]).cells.values()
    assert cell.mean_square is None


def test_wrong_elements_of_discrete_outputs_are_added() -> None:
    (cell,) = matrix([discrete("a"), discrete("b", 3), discrete("c", 2)]).cells.values()
    assert (cell.wrong_elements, cell.max_ulp, cell.p99_ulp) == (5, None, None)
    (cell,) = matrix([measured("a")]).cells.values()
    assert cell.wrong_elements is None


@pytest.mark.parametrize(
    ("cases", "largest", "within"),
    [
        ([discrete("a"), discrete("b")], "exact", "–"),
        ([discrete("a"), discrete("b", 1234)], "1,234 wrong", "–"),
        ([measured("a", dtype="int32"), discrete("b")], "1.5", "≤ 1.5"),
        ([measured("a", dtype="int32"), discrete("b", 2)], "1.5, 2 wrong", "≤ 1.5"),
        ([measured("a", max_ulp=0.0, ulp_histogram=(9,))], "0", "0"),
        ([measured("a", max_ulp=1e6, ulp_histogram=(0,) * 19 + (9,))], "1,000,000", "≤ 1,000,000"),
        ([case("a")], "–", "–"),
    ],
)
def test_ulps_in_words(cases: list[CaseResult], largest: str, within: str) -> None:
    (cell,) = matrix(cases).cells.values()
    assert (format_max_ulp(cell), format_p99_ulp(cell)) == (largest, within)


def test_nan_is_the_worst_error() -> None:
    table = matrix([measured("a", max_error=math.inf), measured("b", max_error=math.nan)])
    (cell,) = table.cells.values()
    assert cell.max_error is not None
    assert cell.worst is not None
    assert cell.worst.case in "ab"
    assert [
        one.case for one in worst_cases([measured("a"), measured("n", max_error=math.nan)], 1)
    ] == ["n"]


def test_a_failure_without_figures_is_the_worst_case_of_its_cell() -> None:
    (cell,) = matrix([case("a"), case("b", "CRASHED")]).cells.values()
    assert cell.worst is not None
    assert cell.worst.case == "b"
    assert cell.verdict is Verdict.CRASHED


def test_a_cell_in_which_nothing_was_measured_has_no_worst_case() -> None:
    (cell,) = matrix([case("a")]).cells.values()
    assert cell.worst is None
    assert cell.ulp_histogram == ()


def test_histograms_of_different_length_are_added() -> None:
    total = histogram_sum([case(ulp_histogram=(1,)), case(ulp_histogram=(1, 2)), case()])
    assert total[:3] == (2, 2, 0)
    assert len(total) == len(ulp_bin_labels()) == 20


def test_ulp_labels() -> None:
    labels = ulp_bin_labels()
    assert labels[:4] == ("0", "≤ 1/2", "≤ 1", "≤ 2")
    assert labels[-2:] == ("≤ 65,536", "> 65,536")


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        ([], "Nothing was tested: no case was run and compared."),
        ([case("a")], "gpu conforms in the one case run."),
        ([case("a"), case("b")], "gpu conforms in all 2 cases run."),
        (
            [case("a"), case("b", backend="torch"), case("c", "FAILED", backend="torch")],
            "torch does not conform: 1 of 3 cases run does not.",
        ),
        (
            [case("a", "ERROR"), case("b", "FAILED", backend="torch")],
            "gpu and torch do not conform: 2 of 2 cases run do not.",
        ),
        (
            [case("a"), case("b", "MISTRUSTED")],
            "gpu conforms in 1 of 2 cases run; 1 was mistrusted, its comparison proves nothing.",
        ),
        (
            [case("a", "MISTRUSTED"), case("b", "MISTRUSTED"), case("c", "SKIPPED")],
            "Nothing was tested: no case was run and compared; "
            "2 were mistrusted, their comparisons prove nothing.",
        ),
    ],
)
def test_conclusion(cases: list[CaseResult], sentence: str) -> None:
    assert conclusion(results(*cases)) == sentence


@pytest.mark.parametrize(
    ("verdict", "finished", "expected"),
    [
        ("PASSED", True, Standing.CONFORMS),
        ("PASSED", False, Standing.INCOMPLETE),
        ("FAILED", False, Standing.FAILS),
        ("UNSUPPORTED", True, Standing.UNTESTED),
    ],
)
def test_standing(verdict: str, finished: bool, expected: Standing) -> None:
    assert standing(results(case("a", verdict), finished=finished)) is expected


def test_rate() -> None:
    assert cases_per_second(results(case("a"), case("b"), case("c", "SKIPPED"))) == 1.0
