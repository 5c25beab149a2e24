"""JUnit XML: well formed whatever the messages hold, and its counts are those of the run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon.reports import CaseResult, Results, count_verdicts, write_junit
from dnncanon.reports.records import NOT_RUN

from .synthetic import ENVIRONMENT, any_case, case, results, runs, shrunk_from


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("junit") / "junit.xml"


def parsed(run: Results, path: Path) -> ET.Element:
    return ET.parse(write_junit(run, path)).getroot()


def number(element: ET.Element, attribute: str) -> int:
    return int(element.attrib[attribute])


@given(runs())
def test_counts_agree(path: Path, cases: list[CaseResult]) -> None:
    root = parsed(results(*cases), path)
    counts = count_verdicts(cases)
    assert number(root, "tests") == sum(counts.values())
    assert number(root, "failures") == counts["FAILED"]
    assert number(root, "errors") == counts["ERROR"] + counts["CRASHED"] + counts["TIMEOUT"]
    not_a_pass = counts["MISTRUSTED"] + counts["EXPECTED_FAILURE"]
    assert number(root, "skipped") == not_a_pass + sum(counts[v] for v in NOT_RUN)
    for attribute in ("tests", "failures", "errors", "skipped"):
        assert number(root, attribute) == sum(number(suite, attribute) for suite in root)


@given(st.lists(any_case, max_size=4))
def test_well_formed_whatever_the_text(path: Path, cases: list[CaseResult]) -> None:
    root = parsed(results(*cases), path)
    assert len(list(root.iter("testcase"))) == number(root, "tests")


def test_a_failure_says_why_and_how_to_see_it_again(path: Path) -> None:
    drawn = case("big", "FAILED", message="off by one\nat (0, 1)", max_error=3.0)
    root = parsed(results(drawn, shrunk_from(drawn, "small", message="off")), path)
    (failure,) = root.iter("failure")
    assert failure.attrib["message"] == "FAILED: off by one"
    assert failure.text is not None
    assert "dnncanon repro 'big' --backend gpu" in failure.text
    assert "dnncanon repro 'small' --backend gpu" in failure.text


def test_an_unfinished_run_is_an_error(path: Path) -> None:
    root = parsed(Results(ENVIRONMENT, (case(),), None), path)
    assert number(root, "errors") == 1
    assert next(root.iter("error")).attrib["type"] == "INCOMPLETE"


def test_mistrusted_is_not_a_pass(path: Path) -> None:
    root = parsed(results(case(verdict="MISTRUSTED", message="all zero")), path)
    assert next(root.iter("skipped")).attrib["message"] == "MISTRUSTED: all zero"
