"""Expected failures: who answers for what, until when, and that entries do not rot."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import blank_result
from dnncanon.conformance.expected import ExpectationError, Expectations
from dnncanon.reports import CaseResult, Verdict

TODAY = date(2026, 12, 1)
ENTRY = """\
[[expected_failure]]
case = "conv_forward x=float32[1,3,*"
owner = "kernels@example.com"
reason = "three channels are read as four"
expires = 2026-12-31
"""


def read(tmp_path: Path, text: str) -> Expectations:
    path = tmp_path / "expected.toml"
    path.write_text(text)
    return Expectations.read(path, TODAY)


def result(line: str, verdict: Verdict) -> CaseResult:
    return replace(blank_result(Case.parse(line), "b", "ieee"), verdict=verdict, message="why")


THREE = "conv_forward x=float32[1,3,5] w=float32[2,3,3] fill=normal seed=2"
FOUR = "conv_forward x=float32[1,4,5] w=float32[2,4,3] fill=normal seed=2"


def test_a_matching_failure_is_expected(tmp_path: Path) -> None:
    expectations = read(tmp_path, ENTRY)
    applied = expectations.applied(result(THREE, Verdict.FAILED))
    assert applied.verdict is Verdict.EXPECTED_FAILURE
    assert not applied.failing
    for part in ("kernels@example.com", "2026-12-31", "three channels", "FAILED: why"):
        assert part in applied.message
    assert expectations.unused() == []


def test_what_does_not_match_or_does_not_fail_stays(tmp_path: Path) -> None:
    expectations = read(tmp_path, ENTRY)
    for kept in (result(FOUR, Verdict.FAILED), result(THREE, Verdict.PASSED)):
        assert expectations.applied(kept) is kept
    assert [entry.case for entry in expectations.unused()] == ["conv_forward x=float32[1,3,*"]


def test_an_entry_holds_to_the_end_of_its_last_day(tmp_path: Path) -> None:
    read(tmp_path, ENTRY.replace("2026-12-31", "2026-12-01"))
    with pytest.raises(ExpectationError, match=r"expired on 2026-11-30; kernels@example\.com"):
        read(tmp_path, ENTRY.replace("2026-12-31", "2026-11-30"))


MALFORMED = {
    "no owner": (ENTRY.replace('owner = "kernels@example.com"\n', ""), "owner"),
    "empty reason": (ENTRY.replace("three channels are read as four", ""), "reason"),
    "a date as text": (ENTRY.replace("2026-12-31", '"2026-12-31"'), "expires has to be a date"),
    "a time": (ENTRY.replace("2026-12-31", "2026-12-31T10:00:00Z"), "expires has to be a date"),
    "one bracket": (ENTRY.replace("[[expected_failure]]", "[expected_failure]"), "two brackets"),
    "another table": (ENTRY.replace("expected_failure", "known_bugs"), "known_bugs"),
    "another field": (ENTRY + 'ticket = "1"\n', "ticket"),
    "not TOML": ("expected_failure", "is not TOML"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str) -> None:
    text, mention = MALFORMED[name]
    with pytest.raises(ExpectationError, match=r"expected\.toml") as caught:
        read(tmp_path, text)
    assert mention in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExpectationError, match="cannot read"):
        Expectations.read(tmp_path / "none.toml")
