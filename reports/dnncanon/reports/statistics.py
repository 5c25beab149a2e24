"""The arithmetic of the reports: pure functions from cases to counts, cells, worst cases and shares.

Counts come first and percentages second. A percentage is floored, so 100 % means all of them; its
denominator holds the cases that were run, not the UNSUPPORTED and SKIPPED ones; with nothing in it
the answer is "none tested", neither 0 % nor 100 %. A shrunk case explains the drawn failure it came
from and is not counted a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dnncanon.reports.records import (
    FAILING,
    NOT_RUN,
    ULP_BINS,
    ULP_EDGES,
    CaseResult,
    Results,
    Tally,
    Verdict,
)

EXIT_CONFORMS = 0
EXIT_DOES_NOT_CONFORM = 1
EXIT_NOTHING_TESTED = 3

NONE_TESTED = "none tested"

# --- counts ---------------------------------------------------------------------------------------


def count_verdicts(cases: Iterable[CaseResult]) -> dict[str, int]:
    """Cases by verdict, every verdict present, shrunk cases not counted a second time."""
    return Tally(cases).counts()


def counted_cases(cases: Iterable[CaseResult]) -> list[CaseResult]:
    """The cases that count: all but the shrunk ones that explain another."""
    cases = list(cases)
    tally = Tally(cases)
    return [case for case in cases if not tally.explains(case)]


def passed_count(counts: Mapping[str, int]) -> int:
    """Cases that conform."""
    return counts.get(Verdict.PASSED, 0)


def failing_count(counts: Mapping[str, int]) -> int:
    """Cases that do not conform: FAILED, ERROR, CRASHED and TIMEOUT."""
    return sum(counts.get(verdict, 0) for verdict in FAILING)


def run_count(counts: Mapping[str, int]) -> int:
    """Cases that were run: all but UNSUPPORTED and SKIPPED."""
    return sum(counts.get(verdict, 0) for verdict in Verdict if verdict not in NOT_RUN)


def tested(counts: Mapping[str, int]) -> bool:
    """Whether anything was tested. MISTRUSTED comparisons were vacuous and test nothing."""
    return passed_count(counts) + failing_count(counts) > 0


def exit_code(counts: Mapping[str, int]) -> int:
    """0: all that was tested conforms; 1: something does not; 3: nothing was tested."""
    if failing_count(counts):
        return EXIT_DOES_NOT_CONFORM
    return EXIT_CONFORMS if passed_count(counts) else EXIT_NOTHING_TESTED


def percentage(part: int, whole: int) -> str:
    """`part` of `whole` in percent, floored to a tenth: "100 %" only if it is all of them."""
    if not 0 <= part <= whole:
        raise ValueError(f"{part} of {whole} is not a share")
    if whole == 0:
        return NONE_TESTED
    if part == whole:
        return "100 %"
    tenths = 1000 * part // whole
    return f"{tenths // 10}.{tenths % 10} %"


def conforming_share(counts: Mapping[str, int]) -> str:
    """The share of the cases that were run that conform, e.g. "99.9 %", or "none tested".

    MISTRUSTED cases were run and do not conform as far as anyone knows, so they lower the share.
    """
    if not tested(counts):
        return NONE_TESTED
    return percentage(passed_count(counts), run_count(counts))


class Standing(StrEnum):
    """What a run as a whole amounts to; more than its exit code, which knows the counts only."""

    CONFORMS = "conforms"
    FAILS = "fails"
    UNTESTED = "untested"
    INCOMPLETE = "incomplete"
    """Nothing failed, but the run did not come to its end."""


def standing(results: Results) -> Standing:
    """What the run amounts to."""
    code = exit_code(count_verdicts(results.cases))
    if code == EXIT_DOES_NOT_CONFORM:
        return Standing.FAILS
    if not results.complete:
        return Standing.INCOMPLETE
    return Standing.CONFORMS if code == EXIT_CONFORMS else Standing.UNTESTED


def conclusion(results: Results) -> str:
    """One sentence that says what the run found."""
    counts = count_verdicts(results.cases)
    run, failing, mistrusted = run_count(counts), failing_count(counts), counts[Verdict.MISTRUSTED]
    vacuous = f"; {_vacuous(mistrusted)}" if mistrusted else ""
    if failing:
        names = sorted({case.backend for case in results.cases if case.failing})
        who = f"{_and(names)} {'does' if len(names) == 1 else 'do'} not conform"
        return f"{who}: {failing:,} of {_cases(run)} run {_does(failing)} not{vacuous}."
    if not tested(counts):
        return f"Nothing was tested: no case was run and compared{vacuous}."
    names = sorted({case.backend for case in results.cases if case.verdict is Verdict.PASSED})
    who = f"{_and(names)} {'conforms' if len(names) == 1 else 'conform'}"
    if mistrusted:
        return f"{who} in {passed_count(counts):,} of {_cases(run)} run{vacuous}."
    every = "the one case" if run == 1 else f"all {_cases(run)}"
    return f"{who} in {every} run."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _does(number: int) -> str:
    return "does" if number == 1 else "do"


def _vacuous(number: int) -> str:
    if number == 1:
        return "1 was mistrusted, its comparison proves nothing"
    return f"{number:,} were mistrusted, their comparisons prove nothing"


def _cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number:,} cases"


# --- cells ----------------------------------------------------------------------------------------


class CellKey(NamedTuple):
    """What a cell of the matrix stands for."""

    backend: str
    primitive: str
    dtype: str


@dataclass(frozen=True)
class Cell:
    """All counted cases of one backend, primitive and dtype."""

    key: CellKey
    counts: Mapping[str, int] = field(hash=False)
    numerics: tuple[str, ...]
    """The numerics classes claimed in the cell."""
    worst: CaseResult | None
    """The case with the largest max_error; where none was measured, a failing one."""
    max_error: float | None
    """Largest |error| / bound; NaN counts as the largest."""
    p99_error: float | None
    """|error| / bound that 99 % of the elements do not exceed, in cases with 99 % of the elements."""
    bias: float | None
    """The z score furthest from 0, with its sign."""
    mean_square: float | None
    """Mean of (error / σ)² over all sampled elements."""
    max_ulp: float | None
    p99_ulp: float | None
    """|error| in ULP that 99 % of the elements do not exceed: the edge of a bin, or `max_ulp`."""
    ulp_histogram: tuple[int, ...]
    """Sum over the cases, `ULP_BINS` long, or empty where nothing was measured."""
    wrong_elements: int | None
    """Elements of discrete outputs that are wrong; None if no output is discrete."""
    elements: int
    seconds: float
    """Seconds spent in the backend's calls."""
    seconds_total: float

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that decides about the cell: the worst one that occurs; None if empty."""
        return next((verdict for verdict in SEVERITY if self.counts.get(verdict)), None)

    @property
    def run(self) -> int:
        """Cases that were run."""
        return run_count(self.counts)

    @property
    def failing(self) -> int:
        """Cases that do not conform."""
        return failing_count(self.counts)


SEVERITY = (
    Verdict.CRASHED,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.FAILED,
    Verdict.EXPECTED_FAILURE,
    Verdict.MISTRUSTED,
    Verdict.PASSED,
    Verdict.SKIPPED,
    Verdict.UNSUPPORTED,
)
"""Verdicts from the one that decides about a cell first to the one that decides last."""

_DTYPE_ORDER = ("float64", "float32", "tfloat32", "bfloat16", "float16")


@dataclass(frozen=True)
class Matrix:
    """Primitive × dtype × backend."""

    primitives: tuple[str, ...]
    dtypes: tuple[str, ...]
    backends: tuple[str, ...]
    cells: Mapping[CellKey, Cell] = field(hash=False)

    def cell(self, backend: str, primitive: str, dtype: str) -> Cell | None:
        """The cell, or None where no case was."""
        return self.cells.get(CellKey(backend, primitive, dtype))


def matrix(cases: Iterable[CaseResult]) -> Matrix:
    """All cells of a run, ordered by primitive, dtype (wide to narrow) and backend."""
    groups: dict[CellKey, list[CaseResult]] = {}
    for case in counted_cases(cases):
        groups.setdefault(CellKey(case.backend, case.primitive, case.dtype), []).append(case)
    order = sorted(groups, key=lambda key: (key.primitive, dtype_rank(key.dtype), key.backend))
    return Matrix(
        primitives=tuple(dict.fromkeys(key.primitive for key in order)),
        dtypes=tuple(sorted({key.dtype for key in order}, key=dtype_rank)),
        backends=tuple(sorted({key.backend for key in order})),
        cells={key: _cell(key, groups[key]) for key in order},
    )


def dtype_rank(dtype: str) -> tuple[int, str]:
    """Sort key of a dtype: the wide floats first, then the rest by name."""
    known = dtype in _DTYPE_ORDER
    return (_DTYPE_ORDER.index(dtype) if known else len(_DTYPE_ORDER), dtype)


def magnitude(value: float | None) -> float:
    """|value| for comparisons: not measured is least of all, NaN most of all."""
    if value is None:
        return -1.0
    return math.inf if math.isnan(value) else abs(value)


def worst_cases(cases: Iterable[CaseResult], number: int) -> list[CaseResult]:
    """The `number` counted cases with the largest max_error, worst first."""
    measured = [case for case in counted_cases(cases) if case.max_error is not None]
    return sorted(measured, key=lambda case: -magnitude(case.max_error))[:number]


def histogram_sum(cases: Iterable[CaseResult]) -> tuple[int, ...]:
    """Sum of the cases' ULP histograms, `ULP_BINS` long; empty where none has one."""
    histograms = [case.ulp_histogram for case in cases if case.ulp_histogram]
    if not histograms:
        return ()
    total = [0] * ULP_BINS
    for histogram in histograms:
        for index, number in enumerate(histogram):
            total[index] += number
    return tuple(total)


def ulp_percentile(histogram: Sequence[int], percent: int) -> float | None:
    """|error| in ULP that so many percent of the elements do not exceed; None of none.

    It is the upper edge of the bin in which they are reached, infinite of the last one. A histogram
    of several cases gives the same answer as its cases put together.
    """
    edges = (*ULP_EDGES, math.inf)
    counted = list(zip(edges, histogram, strict=False))
    return _weighted_percentile(counted, percent) if any(histogram) else None


def pooled_mean_square(cases: Iterable[CaseResult]) -> float | None:
    """Mean of (error / σ)² over all the elements that the cases sampled; None if none did."""
    sampled = [(c.mean_square, c.sampled) for c in cases if c.mean_square is not None and c.sampled]
    if not sampled:
        return None
    return math.fsum(mean * n for mean, n in sampled) / sum(n for _, n in sampled)


def ulp_bin_labels() -> tuple[str, ...]:
    """What to write below the bins of a ULP histogram, e.g. "0", "≤ 1/2", "≤ 1", …, "> 65,536"."""
    halves = {0.0: "0", 0.5: "≤ 1/2"}
    edges = [halves.get(edge, f"≤ {edge:,.0f}") for edge in ULP_EDGES]
    return (*edges, f"> {ULP_EDGES[-1]:,.0f}")


def _cell(key: CellKey, cases: Sequence[CaseResult]) -> Cell:
    worst = max(cases, key=lambda case: (magnitude(case.max_error), case.failing))
    histogram = histogram_sum(cases)
    max_ulp = _furthest(case.max_ulp for case in cases)
    wrong = [case.wrong_elements for case in cases if case.wrong_elements is not None]
    return Cell(
        key=key,
        counts=count_verdicts(cases),
        numerics=tuple(sorted({case.numerics for case in cases if case.numerics})),
        worst=worst if worst.max_error is not None or worst.failing else None,
        max_error=worst.max_error,
        p99_error=_weighted_percentile(
            [(magnitude(c.p99_error), c.elements) for c in cases if c.p99_error is not None], 99
        ),
        bias=_furthest(case.bias for case in cases),
        mean_square=pooled_mean_square(cases),
        max_ulp=max_ulp,
        p99_ulp=_least(ulp_percentile(histogram, 99), max_ulp),
        ulp_histogram=histogram,
        wrong_elements=sum(wrong) if wrong else None,
        elements=sum(case.elements for case in cases),
        seconds=math.fsum(case.seconds for case in cases),
        seconds_total=math.fsum(case.seconds_total for case in cases),
    )


def _weighted_percentile(values: Sequence[tuple[float, int]], percent: int) -> float | None:
    """The smallest value that, with the smaller ones, has so many percent of the weight."""
    total = sum(weight for _, weight in values)
    weight_so_far = 0
    for value, weight in sorted(values):
        weight_so_far += weight
        if 100 * weight_so_far >= percent * total:
            return value
    return None


def _furthest(values: Iterable[float | None]) -> float | None:
    return max(values, key=magnitude, default=None)


def _least(limit: float | None, largest: float | None) -> float | None:
    """The smaller one of two limits of which either may be unknown; NaN is no limit."""
    known = [value for value in (limit, largest) if value is not None and not math.isnan(value)]
    return min(known) if limit is not None and known else None


# --- failures and groups --------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A counted case that does not conform, with the smallest case known to show it."""

    case: CaseResult
    shrunk: CaseResult | None = None
    alike: tuple[CaseResult, ...] = ()
    """Other counted cases that shrank to the same smallest case: most likely the same defect."""

    @property
    def smallest(self) -> CaseResult:
        """The shrunk case if there is one, else the case as it was drawn."""
        return self.shrunk or self.case

    @property
    def number(self) -> int:
        """Counted cases that this stands for."""
        return 1 + len(self.alike)


def failures(cases: Iterable[CaseResult]) -> list[Failure]:
    """All failures; those that shrank to the same case are one, and their numbers add up to all.

    Those that were shrunk come first, then cells take turns, so that the first few show every cell
    that fails and not one of them many times.
    """
    cases = list(cases)
    shrunk = {
        (case.backend, case.shrunk_from): case
        for case in cases
        if case.origin == "shrunk" and case.failing
    }
    groups: dict[tuple[str, str], list[tuple[CaseResult, CaseResult | None]]] = {}
    alone: list[Failure] = []
    for case in counted_cases(cases):
        if not case.failing:
            continue
        small = None if case.origin == "shrunk" else shrunk.get((case.backend, case.case))
        if small is None:
            alone.append(Failure(case))
        else:
            groups.setdefault((small.backend, small.case), []).append((case, small))
    explained = [
        Failure(group[0][0], group[0][1], tuple(case for case, _ in group[1:]))
        for group in groups.values()
    ]
    return _in_turns(explained) + _in_turns(alone)


def _in_turns(found: Sequence[Failure]) -> list[Failure]:
    seen: dict[CellKey, int] = {}
    ranked: list[tuple[int, int, Failure]] = []
    for index, failure in enumerate(found):
        case = failure.case
        key = CellKey(case.backend, case.primitive, case.dtype)
        seen[key] = seen.get(key, 0) + 1
        ranked.append((seen[key], index, failure))
    return [failure for _, _, failure in sorted(ranked, key=lambda entry: entry[:2])]


def group_counts(
    cases: Iterable[CaseResult], key: Callable[[CaseResult], str]
) -> dict[str, dict[str, int]]:
    """Counts by verdict for each value of `key`, in alphabetical order."""
    groups: dict[str, list[CaseResult]] = {}
    for case in counted_cases(cases):
        groups.setdefault(key(case), []).append(case)
    return {name: count_verdicts(groups[name]) for name in sorted(groups)}


def cases_per_second(results: Results) -> float | None:
    """Cases run in a second of wall-clock time; None where the run has no summary."""
    return None if results.summary is None else results.summary.cases_per_second
