"""The HTML report: one file that holds all it needs and never asks the network for anything.

The page is whole without JavaScript: every figure stands in a table. With it, tables sort and
filter, commands copy, and plotly draws the interactive plots. plotly.js is kept compressed in the
page and unpacked when a plot comes near the window, so that a page opens at once. A content security
policy allows exactly the scripts written here, by hash, and no connection at all.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnncanon.reports import formatting
from dnncanon.reports.figures import even_choice, plot_data
from dnncanon.reports.formatting import Mark, cell_mark, counts_mark, format_ratio, printable
from dnncanon.reports.records import ULP_EDGES, CaseResult, Environment, Results, Verdict
from dnncanon.reports.statistics import (
    SEVERITY,
    Cell,
    Matrix,
    Standing,
    cases_per_second,
    conclusion,
    conforming_share,
    count_verdicts,
    counted_cases,
    failing_count,
    failures,
    group_counts,
    magnitude,
    matrix,
    passed_count,
    percentage,
    run_count,
    standing,
    ulp_bin_labels,
)

if TYPE_CHECKING:
    from jinja2 import Environment as Templates

TABLE_LIMIT = 1000
"""Cases in the case table of the page; results.jsonl has all."""
FAILURES_LIMIT = 100
"""Failures written out in full."""
ALIKE_LIMIT = 5
"""Further cases listed that shrank to the same one."""
MESSAGE_LIMIT = 4000
"""Characters of a message in the page."""

_TEMPLATES = Path(__file__).with_name("templates")
_CONCLUSIONS = {
    Standing.CONFORMS: "passed",
    Standing.FAILS: "failing",
    Standing.UNTESTED: "mistrusted",
    Standing.INCOMPLETE: "mistrusted",
}
_ULP_LIMITS = (0.0, 0.5, 1.0, 2.0)


def write_html(results: Results, path: str | os.PathLike[str]) -> Path:
    """Write the report to `path`; returns the path. Raises OSError."""
    target = Path(path)
    target.write_text(render_html(results), encoding="utf-8")
    return target


def render_html(results: Results) -> str:
    """The report as one string of HTML."""
    table = matrix(results.cases)
    plots = plot_data(results.cases, table) if find_spec("plotly") else None
    script = asset("report.js")
    plotly = _plotly() if plots else None
    page = (
        templates()
        .get_template("report.html.j2")
        .render(
            _summary_context(results)
            | _table_context(results, table)
            | {
                "policy": content_policy([script, *([plotly.script] if plotly else [])]),
                "style": asset("report.css"),
                "script": script,
                "plots": _json_for_script(plots) if plots else None,
                "points_shown": plots["points_shown"] if plots else 0,
                "points_all": plots["points_all"] if plots else 0,
                "plotly": plotly,
                "plotly_absent": find_spec("plotly") is None,
            }
        )
    )
    return printable(page)


# --- what the template is given -------------------------------------------------------------------


def _summary_context(results: Results) -> dict[str, Any]:
    counts = count_verdicts(results.cases)
    found = failures(results.cases)
    return {
        "environment": results.environment,
        "facts": _facts(results.environment),
        "summary": results.summary,
        "rate": cases_per_second(results),
        "incomplete": results.incomplete_reason,
        "conclusion": conclusion(results),
        "conclusion_kind": _CONCLUSIONS[standing(results)],
        "conclusion_symbol": formatting.STANDING_MARKS[standing(results)],
        "counts": counts,
        "cases_counted": sum(counts.values()),
        "passed": passed_count(counts),
        "run": run_count(counts),
        "share": conforming_share(counts),
        "meanings": formatting.VERDICT_MEANINGS,
        "ulp_basis": formatting.ULP_BASIS,
        "failures": found[:FAILURES_LIMIT],
        "failures_all": len(found),
        "failing": failing_count(counts),
        "message_limit": MESSAGE_LIMIT,
        "alike_limit": ALIKE_LIMIT,
    }


def _table_context(results: Results, table: Matrix) -> dict[str, Any]:
    shown = cases_shown(results.cases, TABLE_LIMIT)
    cells = list(table.cells.values())
    return {
        "matrix": table,
        "several": len(table.backends) > 1,
        "cells": cells,
        "measured": any(cell.max_error is not None for cell in cells),
        "accuracy": [_accuracy_row(cell) for cell in cells if cell.run],
        "layers": _groups(results, "layer"),
        "origins": _groups(results, "origin"),
        "cases": shown,
        "cases_all": len(counted_cases(results.cases)),
        "verdicts_shown": [v for v in Verdict if any(case.verdict is v for case in shown)],
    }


def cases_shown(cases: Sequence[CaseResult], limit: int) -> list[CaseResult]:
    """The cases for the table, worst first, at most `limit`.

    Those that do not conform and the mistrusted ones, then the worst of each cell, then an even
    choice of the rest.
    """
    counted = sorted(
        counted_cases(cases),
        key=lambda case: (SEVERITY.index(case.verdict), -magnitude(case.max_error)),
    )
    if len(counted) <= limit:
        return counted
    worst = {id(cell.worst) for cell in matrix(cases).cells.values()}
    wanted = [case for case in counted if _notable(case) or id(case) in worst]
    others = [case for case in counted if not (_notable(case) or id(case) in worst)]
    first = min(len(wanted), limit)
    chosen = even_choice([*wanted, *others], limit, first)
    return sorted(
        chosen, key=lambda case: (SEVERITY.index(case.verdict), -magnitude(case.max_error))
    )


def _notable(case: CaseResult) -> bool:
    return case.failing or case.verdict in (Verdict.MISTRUSTED, Verdict.EXPECTED_FAILURE)


def _groups(results: Results, name: str) -> list[tuple[str, Mapping[str, int], Mark, str]]:
    groups = group_counts(results.cases, lambda case: str(getattr(case, name)))
    return [(key, c, counts_mark(c), conforming_share(c)) for key, c in groups.items()]


def _facts(environment: Environment) -> list[tuple[str, str]]:
    facts = {
        "Command": environment.command,
        "Began": environment.created,
        "Backend": environment.backend,
        "Device": environment.device,
        "Level": environment.level,
        "Seed": str(environment.seed),
        "Platform": environment.platform,
        "Python": environment.python,
    }
    versions = {f"{name} version": value for name, value in environment.versions.items()}
    details = {name: _detail(value) for name, value in environment.details.items()}
    return [*facts.items(), *versions.items(), *details.items()]


def _detail(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_detail(item)}" for name, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class AccuracyRow:
    """One row of the accuracy table: a cell with its ULP histogram, in bars and in words."""

    cell: Cell
    bars: tuple[tuple[int, int, str], ...]
    """Bin, height of 0 … 24 on a logarithmic scale, and what it stands for."""
    words: str
    """Shares of the elements within a few limits, up to the first that all are within."""


def _accuracy_row(cell: Cell) -> AccuracyRow:
    histogram = cell.ulp_histogram
    total = sum(histogram)
    if not total:
        return AccuracyRow(cell, (), "")
    within = [(limit, sum(histogram[: ULP_EDGES.index(limit) + 1])) for limit in _ULP_LIMITS]
    needed = next((i for i, (_, number) in enumerate(within) if number == total), len(within))
    return AccuracyRow(
        cell=cell,
        bars=tuple(
            (index, _bar_height(number, total), f"{label} ULP: {number:,}")
            for index, (number, label) in enumerate(zip(histogram, ulp_bin_labels(), strict=True))
            if number
        ),
        words=", ".join(
            f"{percentage(number, total)} {_ulp_limit_label(limit)}"
            for limit, number in within[: needed + 1]
        ),
    )


def _bar_height(number: int, total: int) -> int:
    """Logarithmic, so that one element in millions is still seen: 4 for one, 24 for all."""
    return 24 if number == total else 4 + round(20 * math.log(number) / math.log(total))


def _ulp_limit_label(limit: float) -> str:
    return "exact" if limit == 0 else f"{ulp_bin_labels()[ULP_EDGES.index(limit)]} ULP"


# --- the page's parts -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Plotly:
    """plotly.js as it is put into the page."""

    script: str
    packed: str
    """gzip, in base64."""
    version: str


@cache
def _plotly() -> Plotly:
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    script = str(get_plotlyjs())
    packed = gzip.compress(script.encode("utf-8"), compresslevel=9, mtime=0)
    return Plotly(script, base64.b64encode(packed).decode("ascii"), str(get_plotlyjs_version()))


@cache
def asset(name: str) -> str:
    """A file that goes into pages as it is."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@cache
def templates() -> Templates:
    """The templates of all pages, with the filters that they use."""
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    templates = Templates(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "ratio": format_ratio,
        "number": formatting.format_number,
        "signed": formatting.format_signed,
        "max_ulp": formatting.format_max_ulp,
        "p99_ulp": formatting.format_p99_ulp,
        "ulp_order": lambda result: ulp_order(result.max_ulp, result.wrong_elements),
        "seconds": formatting.format_seconds,
        "rate": formatting.format_rate,
        "counters": formatting.format_counters,
        "measures": formatting.measures,
        "shortened": formatting.shortened,
        "first_line": formatting.first_line,
        "mark": cell_mark,
        "heat": heat_level,
        "magnitude": magnitude,
        "sortable": lambda value: "" if value is None else f"{magnitude(value):.9g}",
    }
    return templates


def heat_level(ratio: float | None) -> int:
    """Colour step of an |error| / bound: 0 to 3 by quarters of the bound, 4 beyond it."""
    size = magnitude(ratio)
    return 4 if size > 1 else max(0, min(3, int(size * 4)))


def ulp_order(max_ulp: float | None, wrong: int | None) -> str:
    """What a column of ULP sorts by: nothing measured, then exact, then by ULP, then wrong ones."""
    if max_ulp is None and wrong is None:
        return ""
    return f"{wrong}e200" if wrong else f"{magnitude(max_ulp or 0.0):.9g}"


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy that allows these scripts and no connection."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _json_for_script(value: Any) -> str:
    """JSON that may stand inside <script>: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
