"""JUnit XML of a run, for the test views of CI systems.

One suite for each backend and primitive, one test for each counted case. FAILED is a failure;
ERROR, CRASHED and TIMEOUT are errors; UNSUPPORTED, SKIPPED, MISTRUSTED and EXPECTED_FAILURE are
skipped, because JUnit knows no other way to say: not a pass. A run that did not come to its end adds one error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dnncanon.reports.formatting import first_line, measures, printable
from dnncanon.reports.records import CaseResult, Environment, Results, Verdict
from dnncanon.reports.statistics import counted_cases, failures

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_OUTCOMES = {
    Verdict.FAILED: "failure",
    Verdict.ERROR: "error",
    Verdict.CRASHED: "error",
    Verdict.TIMEOUT: "error",
    Verdict.MISTRUSTED: "skipped",
    Verdict.UNSUPPORTED: "skipped",
    Verdict.SKIPPED: "skipped",
    Verdict.EXPECTED_FAILURE: "skipped",
}
_TOTALS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def write_junit(results: Results, path: str | os.PathLike[str]) -> Path:
    """Write the run to `path` as JUnit XML; returns the path. Raises OSError."""
    from xml.etree.ElementTree import Element, ElementTree, indent

    root = Element("testsuites", name="dnncanon")
    shrunk = {
        id(case): failure.shrunk
        for failure in failures(results.cases)
        for case in (failure.case, *failure.alike)
    }
    for name, cases in sorted(_suites(results.cases).items()):
        suite = _suite(root, name, results.environment)
        for case in cases:
            _add_case(suite, case, shrunk.get(id(case)))
        _set_totals(suite, sum(case.seconds_total for case in cases))
    if results.incomplete_reason:
        suite = _suite(root, "dnncanon.run", results.environment)
        _add_incomplete(suite, results.incomplete_reason)
        _set_totals(suite, 0.0)
    _set_totals(root, sum(float(suite.get("time", "0")) for suite in root))
    indent(root)
    target = Path(path)
    ElementTree(root).write(target, encoding="utf-8", xml_declaration=True)
    return target


def _suites(cases: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    suites: dict[str, list[CaseResult]] = {}
    for case in counted_cases(cases):
        suites.setdefault(f"{case.backend}.{case.primitive}", []).append(case)
    return suites


def _suite(root: Element, name: str, environment: Environment) -> Element:
    from xml.etree.ElementTree import SubElement

    suite = SubElement(root, "testsuite", name=printable(name))
    suite.set("timestamp", printable(environment.created))
    properties = SubElement(suite, "properties")
    facts = {
        "command": environment.command,
        "device": environment.device,
        "level": environment.level,
        "seed": str(environment.seed),
        **{f"version.{name}": version for name, version in environment.versions.items()},
    }
    for key, value in facts.items():
        SubElement(properties, "property", name=printable(key), value=printable(value))
    return suite


def _add_case(suite: Element, case: CaseResult, shrunk: CaseResult | None) -> None:
    from xml.etree.ElementTree import SubElement

    test = SubElement(
        suite,
        "testcase",
        classname=printable(f"{case.backend}.{case.primitive}.{case.dtype}"),
        name=printable(case.case),
        time=f"{case.seconds_total:.6f}",
    )
    outcome = _OUTCOMES.get(case.verdict)
    if outcome is None:
        return
    reason = first_line(case.message) or measures(case) or case.verdict.lower()
    detail = SubElement(test, outcome, type=str(case.verdict))
    detail.set("message", printable(f"{case.verdict}: {reason}"))
    detail.text = printable(_details(case, shrunk))


def _details(case: CaseResult, shrunk: CaseResult | None) -> str:
    lines = [case.message, measures(case), case.repro_command]
    if shrunk:
        lines += ["shrunk to:", shrunk.message, measures(shrunk), shrunk.repro_command]
    return "\n".join(line for line in lines if line)


def _add_incomplete(suite: Element, reason: str) -> None:
    from xml.etree.ElementTree import SubElement

    test = SubElement(suite, "testcase", classname="dnncanon.run", name="run is complete", time="0")
    SubElement(test, "error", type="INCOMPLETE", message=reason)


def _set_totals(element: Element, seconds: float) -> None:
    element.set("tests", str(sum(1 for _ in element.iter("testcase"))))
    for attribute, tag in _TOTALS.items():
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))
    element.set("time", f"{seconds:.6f}")
