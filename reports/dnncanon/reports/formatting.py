"""How numbers, verdicts and cells are worded, the same in every kind of report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dnncanon.reports.records import ULP_EDGES, CaseResult, Verdict
from dnncanon.reports.statistics import Cell, Standing, failing_count, run_count

NOT_MEASURED = "–"

STANDING_MARKS: Mapping[str, str] = {
    Standing.CONFORMS: "✓",
    Standing.FAILS: "✗",
    Standing.UNTESTED: "~",
    Standing.INCOMPLETE: "~",
}

VERDICT_MEANINGS: Mapping[str, str] = {
    Verdict.PASSED: "conforms to the reference within its bound",
    Verdict.FAILED: "differs from the reference by more than the bound, or broke a guard",
    Verdict.MISTRUSTED: "the comparison was vacuous: a trivially wrong output would have passed",
    Verdict.UNSUPPORTED: "the backend does not claim it; never a pass",
    Verdict.SKIPPED: "not run, for the reason given",
    Verdict.ERROR: "the backend raised an exception",
    Verdict.CRASHED: "the worker process died",
    Verdict.TIMEOUT: "the case did not come back in time",
    Verdict.EXPECTED_FAILURE: "does not conform, as declared with owner, reason and expiry",
}

ULP_BASIS = (
    "ULP are units in the last place of the output's dtype. They show how errors are spread; they "
    "decide nothing, because cancellation may cost a correct result any number of them. Discrete "
    "outputs (indices, masks, integer codes) have none: they are exact, or so many elements are wrong."
)


@dataclass(frozen=True)
class Mark:
    """How a cell is shown: a symbol with counts, and the same in words."""

    kind: str
    """failing, mistrusted (or failing as expected), passed, not-run or empty."""
    text: str
    words: str


_NO_CASE = Mark("empty", "·", "no case")


def cell_mark(cell: Cell | None) -> Mark:
    """The mark of a cell: ✗ failing/run, ✓ passed, ~ mistrusted, ! expected, or why none was run."""
    return _NO_CASE if cell is None else counts_mark(cell.counts)


def counts_mark(counts: Mapping[str, int]) -> Mark:
    """The mark of some counts by verdict."""
    run, failing = run_count(counts), failing_count(counts)
    mistrusted = counts.get(Verdict.MISTRUSTED, 0)
    words = counts_in_words(counts)
    if failing:
        return Mark("failing", f"✗ {failing:,}/{run:,}", words)
    expected = counts.get(Verdict.EXPECTED_FAILURE, 0)
    passed = run - failing - mistrusted - expected
    parts = {"✓": passed, "~": mistrusted, "!": expected}
    text = " ".join(f"{mark} {number:,}" for mark, number in parts.items() if number)
    if passed and not expected:
        return Mark("passed", text, words)
    if text:
        return Mark("mistrusted", text, words)
    if counts.get(Verdict.UNSUPPORTED):
        return Mark("not-run", "unsupported", words)
    return Mark("not-run", "skipped", words) if counts.get(Verdict.SKIPPED) else _NO_CASE


def counts_in_words(counts: Mapping[str, int]) -> str:
    """For instance "195 passed, 5 failed"; verdicts that do not occur are left out."""
    present = [f"{counts[v]:,} {v.lower().replace('_', ' ')}" for v in Verdict if counts.get(v)]
    return ", ".join(present) or "no case"


def format_ratio(value: float | None) -> str:
    """An |error| / bound: three digits, or as many as keep it on its side of 1."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    if value == 0:
        return "0"
    for digits in (3, 6, 17):
        text = f"{value:#.{digits}g}".rstrip(".")
        if (float(text) > 1) == (value > 1):
            break
    return text


def format_max_ulp(result: Cell | CaseResult) -> str:
    """The largest error in ULP; of discrete outputs "exact", or how many elements are wrong."""
    parts = [] if result.max_ulp is None else [format_number(result.max_ulp)]
    if result.wrong_elements or (result.wrong_elements == 0 and not parts):
        parts.append(_wrong(result.wrong_elements))
    return ", ".join(parts) or NOT_MEASURED


def _wrong(elements: int) -> str:
    return f"{elements:,} wrong" if elements else "exact"


def format_p99_ulp(cell: Cell) -> str:
    """The limit in ULP that 99 % of the elements keep, e.g. "≤ 1"; "0" if they are exactly right."""
    if cell.p99_ulp is None or cell.p99_ulp == 0:
        return NOT_MEASURED if cell.p99_ulp is None else "0"
    if math.isinf(cell.p99_ulp):
        return f"> {ULP_EDGES[-1]:,.0f}"
    return f"≤ {format_number(cell.p99_ulp)}"


def format_signed(value: float | None) -> str:
    """As `format_number`, with the sign of a positive number too."""
    return f"+{format_number(value)}" if value is not None and value > 0 else format_number(value)


def format_number(value: float | None) -> str:
    """Three significant digits, thousands separated; NaN, ∞ and – where there is none."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if abs(value) >= 1e7 or 0 < abs(value) < 1e-3:
        return f"{value:.2e}".replace("-", "−")
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace("-", "−")


def format_seconds(seconds: float) -> str:
    """A duration in the unit that suits it: µs, ms, s, min or h."""
    for limit, divisor, unit in ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def format_rate(rate: float | None) -> str:
    """Cases in a second."""
    return "unknown" if rate is None else f"{format_number(rate)} cases/s"


def format_counters(counters: Mapping[str, float]) -> str:
    """For instance "flops 1.2e9, bytes 4,096"."""
    return ", ".join(f"{name} {format_number(value)}" for name, value in counters.items())


def first_line(text: str, limit: int = 200) -> str:
    """The first line of a message that says anything, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shortened(line, limit)


def shortened(text: str, limit: int) -> str:
    """`text`, or its first `limit` characters and how many are left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … ({left_out:,} more characters)"


def measures(case: CaseResult) -> str:
    """The measured figures of a case in one phrase; empty where nothing was measured."""
    parts = []
    if case.max_error is not None:
        parts.append(f"|error|/bound {format_ratio(case.max_error)}")
    if case.bias is not None:
        parts.append(f"bias {format_signed(case.bias)} σ")
    if case.mean_square is not None:
        parts.append(f"mean (error/σ)² {format_number(case.mean_square)}")
    if case.max_ulp is not None:
        parts.append(f"{format_number(case.max_ulp)} ULP")
    if case.wrong_elements is not None:
        exact = "discrete outputs exact"
        parts.append(f"{case.wrong_elements:,} elements wrong" if case.wrong_elements else exact)
    return ", ".join(parts)


_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """`text` with every character that XML, HTML or a terminal may not be given as \\xNN.

    Messages come from whatever the backend printed: escape sequences, NULs, half characters.
    """
    return _UNPRINTABLE.sub(lambda match: _escaped(match.group()), text.replace("\r\n", "\n"))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
