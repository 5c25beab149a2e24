"""Comparison of two runs: what got worse, what got better, what is no longer claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dnncanon.reports.formatting import (
    cell_mark,
    first_line,
    format_rate,
    format_ratio,
    printable,
)
from dnncanon.reports.markdown import cell as plain
from dnncanon.reports.markdown import code, fenced
from dnncanon.reports.records import NOT_RUN, CaseResult, Results, Verdict
from dnncanon.reports.statistics import (
    SEVERITY,
    Cell,
    CellKey,
    cases_per_second,
    conclusion,
    counted_cases,
    dtype_rank,
    magnitude,
    matrix,
)

SHOWN = 20
"""Cases listed of each kind; the counts are always those of all."""

NOTABLE_FACTOR = 1.25
"""A cell's largest |error| / bound that changed by less than this factor is not listed."""


@dataclass(frozen=True)
class CaseChange:
    """One case with its two verdicts."""

    old: CaseResult
    new: CaseResult


@dataclass(frozen=True)
class CellChange:
    """One cell (backend, primitive, dtype) in both runs; None where a run has no such cell."""

    key: CellKey
    old: Cell | None
    new: Cell | None

    @property
    def factor(self) -> float | None:
        """New over old largest |error| / bound; None where either is missing or both are 0."""
        if self.old is None or self.new is None:
            return None
        if self.old.max_error is None or self.new.max_error is None:
            return None
        before, after = magnitude(self.old.max_error), magnitude(self.new.max_error)
        if before == after:
            return 1.0
        return after / before if before else float("inf")


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs. Cases are matched by backend and line, cells by their key."""

    old: Results
    new: Results
    matched: int
    """Cases that are in both runs."""
    only_old: int
    only_new: int
    newly_failing: tuple[CaseChange, ...]
    newly_passing: tuple[CaseChange, ...]
    disappeared: tuple[CaseChange, ...]
    """Claims that are gone: PASSED before, UNSUPPORTED or SKIPPED now."""
    newly_mistrusted: tuple[CaseChange, ...]
    """PASSED before; the comparison is vacuous now."""
    cells_failing: tuple[CellChange, ...]
    """Cells that now have failures and had none: shows also where the cases differ."""
    cells_disappeared: tuple[CellChange, ...]
    """Cells in which cases passed before and none is run now."""
    ratio_changes: tuple[CellChange, ...]
    """Cells whose largest |error| / bound changed by `NOTABLE_FACTOR` or more, largest rise first."""

    @property
    def regressed(self) -> bool:
        """Whether anything that conformed does not any more, or is not claimed any more."""
        return bool(
            self.newly_failing
            or self.disappeared
            or self.newly_mistrusted
            or self.cells_failing
            or self.cells_disappeared
        )

    def text(self) -> str:
        """The comparison for the terminal, plain text."""
        return printable("\n".join(_text_lines(self)) + "\n")

    def markdown(self) -> str:
        """The comparison in GitHub-flavoured Markdown."""
        return printable("".join(_markdown_blocks(self)))


def compare(old: Results, new: Results) -> Comparison:
    """Compare two runs of the same or of different cases.

    Where each run has one backend and they differ, cases are matched by their line alone, so two
    backends can be compared too.
    """
    old_name, new_name = _only_backend(old), _only_backend(new)
    rename = old_name if old_name is not None and new_name is not None else None
    before, after = _by_line(old, None), _by_line(new, rename)
    changes = [CaseChange(before[key], after[key]) for key in before if key in after]
    cells = _cell_changes(old, new, rename)
    return Comparison(
        old=old,
        new=new,
        matched=len(changes),
        only_old=len(before.keys() - after.keys()),
        only_new=len(after.keys() - before.keys()),
        newly_failing=_select(changes, lambda c: c.new.failing and not c.old.failing),
        newly_passing=_select(changes, lambda c: _passed(c.new) and not _passed(c.old)),
        disappeared=_select(changes, lambda c: _passed(c.old) and c.new.verdict in NOT_RUN),
        newly_mistrusted=_select(
            changes, lambda c: _passed(c.old) and c.new.verdict is Verdict.MISTRUSTED
        ),
        cells_failing=tuple(c for c in cells if _fails(c.new) and c.old and not _fails(c.old)),
        cells_disappeared=tuple(
            c for c in cells if _has_passed(c.old) and not (c.new and c.new.run)
        ),
        ratio_changes=_notable(cells),
    )


# --- matching -------------------------------------------------------------------------------------


def _only_backend(results: Results) -> str | None:
    names = {case.backend for case in results.cases}
    return names.pop() if len(names) == 1 else None


def _by_line(results: Results, rename: str | None) -> dict[tuple[str, str], CaseResult]:
    """Counted cases by backend and line; of a case that was run twice the worse verdict."""
    found: dict[tuple[str, str], CaseResult] = {}
    for case in counted_cases(results.cases):
        key = (rename or case.backend, case.case)
        other = found.get(key)
        if other is None or SEVERITY.index(case.verdict) < SEVERITY.index(other.verdict):
            found[key] = case
    return found


def _cell_changes(old: Results, new: Results, rename: str | None) -> list[CellChange]:
    before = dict(matrix(old.cases).cells)
    after = {
        CellKey(rename or key.backend, key.primitive, key.dtype): cell
        for key, cell in matrix(new.cases).cells.items()
    }
    keys = sorted(
        before.keys() | after.keys(),
        key=lambda key: (key.primitive, dtype_rank(key.dtype), key.backend),
    )
    return [CellChange(key, before.get(key), after.get(key)) for key in keys]


def _select(
    changes: Iterable[CaseChange], wanted: Callable[[CaseChange], bool]
) -> tuple[CaseChange, ...]:
    return tuple(change for change in changes if wanted(change))


def _passed(case: CaseResult) -> bool:
    return case.verdict is Verdict.PASSED


def _fails(cell: Cell | None) -> bool:
    return cell is not None and cell.failing > 0


def _has_passed(cell: Cell | None) -> bool:
    return cell is not None and cell.counts.get(Verdict.PASSED, 0) > 0


def _notable(cells: Sequence[CellChange]) -> tuple[CellChange, ...]:
    changed = [
        (factor, change)
        for change in cells
        if (factor := change.factor) is not None
        and not 1 / NOTABLE_FACTOR < factor < NOTABLE_FACTOR
    ]
    return tuple(change for _, change in sorted(changed, key=lambda entry: -entry[0]))


# --- wording --------------------------------------------------------------------------------------


def _verdict_line(comparison: Comparison) -> str:
    if comparison.regressed:
        return "✗ The new run is worse."
    if not comparison.matched and not comparison.only_new:
        return "~ There is nothing to compare."
    return "✓ Nothing that conformed has stopped to."


def _counts_line(comparison: Comparison) -> str:
    return (
        f"{comparison.matched:,} cases in both runs, {comparison.only_old:,} only in the old, "
        f"{comparison.only_new:,} only in the new."
    )


def _rates_line(comparison: Comparison) -> str:
    old, new = cases_per_second(comparison.old), cases_per_second(comparison.new)
    return f"Rate: {format_rate(old)} before, {format_rate(new)} now."


def _case_sections(comparison: Comparison) -> list[tuple[str, tuple[CaseChange, ...]]]:
    return [
        ("Newly failing", comparison.newly_failing),
        ("No longer claimed", comparison.disappeared),
        ("Newly mistrusted", comparison.newly_mistrusted),
        ("Newly passing", comparison.newly_passing),
    ]


def _cell_sections(comparison: Comparison) -> list[tuple[str, tuple[CellChange, ...]]]:
    return [
        ("Cells that had no failure and have some now", comparison.cells_failing),
        ("Cells that passed and are not run any more", comparison.cells_disappeared),
    ]


def _text_lines(comparison: Comparison) -> Iterable[str]:
    yield f"old: {comparison.old.environment.created}  {conclusion(comparison.old)}"
    yield f"new: {comparison.new.environment.created}  {conclusion(comparison.new)}"
    yield from _incomplete(comparison)
    yield _counts_line(comparison)
    yield _rates_line(comparison)
    for title, changes in _case_sections(comparison):
        if not changes:
            continue
        yield f"\n{title}: {len(changes):,}"
        for change in changes[:SHOWN]:
            yield f"  {change.old.verdict} -> {change.new.verdict}  {first_line(change.new.message)}"
            yield f"    {change.new.repro_command}"
        if len(changes) > SHOWN:
            yield f"  … and {len(changes) - SHOWN:,} more"
    for heading, cells in _cell_sections(comparison):
        if cells:
            yield f"\n{heading}: {len(cells):,}"
            yield from (f"  {_cell_words(change)}" for change in cells)
    if comparison.ratio_changes:
        yield f"\nLargest |error|/bound, changed by {NOTABLE_FACTOR} times or more:"
        for entry in comparison.ratio_changes:
            yield f"  {_name(entry.key)}: {_ratio_words(entry)}"
    yield f"\n{_verdict_line(comparison)}"


def _markdown_blocks(comparison: Comparison) -> Iterable[str]:
    yield f"## dnncanon: comparison of two runs\n\n**{_verdict_line(comparison)}**\n\n"
    yield "| | created | conclusion |\n| --- | --- | --- |\n"
    for name, results in (("old", comparison.old), ("new", comparison.new)):
        yield f"| {name} | {plain(results.environment.created)} | {plain(conclusion(results))} |\n"
    for reason in _incomplete(comparison):
        yield f"\n> [!WARNING]\n> {reason}\n"
    yield f"\n{_counts_line(comparison)} {_rates_line(comparison)}\n"
    for title, changes in _case_sections(comparison):
        if not changes:
            continue
        yield f"\n### {title}: {len(changes):,}\n"
        for change in changes[:SHOWN]:
            reason = plain(first_line(change.new.message))
            yield f"\n{change.old.verdict} → **{change.new.verdict}** {reason}\n"
            yield fenced(change.new.repro_command, "sh")
        if len(changes) > SHOWN:
            yield f"\n_… and {len(changes) - SHOWN:,} more._\n"
    for heading, cells in _cell_sections(comparison):
        if cells:
            yield f"\n### {heading}: {len(cells):,}\n\n"
            yield from (f"- {plain(_cell_words(change))}\n" for change in cells)
    if comparison.ratio_changes:
        yield f"\n### Largest |error|/bound, changed by {NOTABLE_FACTOR} times or more\n\n"
        yield "| cell | old | new |\n| --- | ---: | ---: |\n"
        for entry in comparison.ratio_changes:
            old, new = _ratio(entry.old), _ratio(entry.new)
            yield f"| {code(_name(entry.key))} | {old} | {new} |\n"


def _incomplete(comparison: Comparison) -> Iterable[str]:
    for name, results in (("Old", comparison.old), ("New", comparison.new)):
        if results.incomplete_reason:
            yield f"{name} run: {results.incomplete_reason}"


def _name(key: CellKey) -> str:
    return f"{key.primitive} {key.dtype} {key.backend}"


def _cell_words(change: CellChange) -> str:
    old, new = cell_mark(change.old), cell_mark(change.new)
    return f"{_name(change.key)}: {old.words} -> {new.words}"


def _ratio_words(change: CellChange) -> str:
    return f"{_ratio(change.old)} -> {_ratio(change.new)}"


def _ratio(cell: Cell | None) -> str:
    return format_ratio(cell.max_error if cell else None)
