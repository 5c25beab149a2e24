"""The page of torch's deviations: what is put on it, and that nothing declined is missing from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import blank_result
from dnncanon.reports import CaseResult, Verdict

pytest.importorskip("torch")

from dnncanon.conformance.torch_backend import deviations

PAGE = Path(__file__).parents[1] / "docs" / "torch.md"
LINE = "activation_forward x={dtype}[{count}] mode=relu fill=special seed=0"
CLAIMED: dict[str, Any] = {
    "numerics": {"activation_forward": {"float16": "ftz"}},
    "declines": {"activation_forward": {"float32": {"special": "a | reason"}}},
}


def result(verdict: Verdict, dtype: str, count: int, message: str = "") -> CaseResult:
    blank = blank_result(Case.parse(LINE.format(dtype=dtype, count=count)), "torch", "ieee")
    return replace(blank, verdict=verdict, message=message, elements=count)


def test_a_row_has_the_smallest_failing_case() -> None:
    failures = [
        result(Verdict.PASSED, "float32", 1),
        result(Verdict.FAILED, "float32", 9, "y[0] is 1, expected 2\nand more"),
        result(Verdict.FAILED, "float32", 3, "y[0] is 3, expected 4\nand more"),
    ]
    (row,) = deviations.deviations(failures, CLAIMED)
    assert row.case == LINE.format(dtype="float32", count=3)
    assert (row.message, row.treatment) == ("y[0] is 3, expected 4", "declined: a | reason")
    assert "declined: a \\| reason |" in deviations.table([row])


def test_failures_are_told_apart_by_what_the_backend_says_to_them() -> None:
    failures = [
        result(Verdict.CRASHED, "float64", 1),
        result(Verdict.ERROR, "float16", 1, "no such luck"),
    ]
    rows = deviations.deviations(failures, CLAIMED)
    assert [row.treatment for row in rows] == ["FAILED", "claimed as ftz"]


def test_what_is_declined_and_did_not_fail_is_said() -> None:
    text = deviations.page([], CLAIMED)
    assert "| activation_forward | special | float32 | a \\| reason |" in text
    failed = deviations.deviations([result(Verdict.FAILED, "float32", 1, "wrong")], CLAIMED)
    assert "Declined too" not in deviations.page(failed, CLAIMED)


def test_the_outspoken_backend_declines_nothing() -> None:
    said = deviations.Outspoken().describe()
    assert said["declines"] == said["numerics"] == {}


def test_everything_that_is_declined_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    declines = deviations.claims()["declines"]
    missing = [
        f"{primitive} | {layer}"
        for primitive, by_dtype in declines.items()
        for layers in by_dtype.values()
        for layer in layers
        if f"| {primitive} | {layer} |" not in text
    ]
    assert not missing, f"write {PAGE} again, as it says"
