"""Summary of a run for the terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from dnncanon.reports.formatting import (
    STANDING_MARKS,
    cell_mark,
    counts_in_words,
    first_line,
    format_max_ulp,
    format_number,
    format_p99_ulp,
    format_rate,
    format_ratio,
    format_seconds,
    format_signed,
    measures,
    printable,
)
from dnncanon.reports.records import Results
from dnncanon.reports.statistics import (
    Cell,
    Matrix,
    Standing,
    conclusion,
    conforming_share,
    count_verdicts,
    failures,
    magnitude,
    matrix,
    standing,
)

if TYPE_CHECKING:
    from rich.console import Console

FAILURES_SHOWN = 10
ACCURACY_SHOWN = 12
"""Cells in the table of accuracy, those nearest to their bounds or beyond."""
_STYLES = {
    "failing": "bold red",
    "mistrusted": "yellow",
    "passed": "green",
    "not-run": "dim",
    "empty": "dim",
}
_CONCLUSIONS = {
    Standing.CONFORMS: "bold green",
    Standing.FAILS: "bold red",
    Standing.UNTESTED: "bold yellow",
    Standing.INCOMPLETE: "bold yellow",
}


def summary_text(results: Results, color: bool = False, width: int = 100) -> str:
    """Matrix, accuracy, failures with the command that repeats each, and the conclusion last.

    `color` adds ANSI escape sequences. Lines with commands are never broken, so they can be copied.
    """
    from rich.console import Console

    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    table = matrix(results.cases)
    if table.cells:
        _print_matrix(console, table)
        _print_accuracy(console, table)
    _print_failures(console, results)
    _print_conclusion(console, results)
    return buffer.getvalue()


def _print_matrix(console: Console, table: Matrix) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    several = len(table.backends) > 1
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("primitive", no_wrap=True)
    if several:
        grid.add_column("backend", no_wrap=True)
    for dtype in table.dtypes:
        grid.add_column(Text(printable(dtype)), justify="right", no_wrap=True)
    for primitive in table.primitives:
        for backend in table.backends:
            cells = [table.cell(backend, primitive, dtype) for dtype in table.dtypes]
            if not any(cells):
                continue
            marks = [cell_mark(entry) for entry in cells]
            row = [Text(printable(primitive))]
            row += [Text(printable(backend))] if several else []
            row += [Text(mark.text, style=_STYLES[mark.kind]) for mark in marks]
            grid.add_row(*row)
    console.print(grid)


def _print_accuracy(console: Console, table: Matrix) -> None:
    """The figures of the cells with the largest errors, in the order of the matrix."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    measured = [cell for cell in table.cells.values() if cell.max_error is not None]
    if not measured:
        return
    ordered = sorted(measured, key=lambda cell: -magnitude(cell.max_error))
    worst = {cell.key for cell in ordered[:ACCURACY_SHOWN]}
    several = len(table.backends) > 1
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # Where the terminal is narrow, names are folded; figures stay whole.
    grid.add_column("\naccuracy", overflow="fold")
    grid.add_column("\ndtype", no_wrap=True)
    for head in [*(["\nbackend"] if several else []), "\nclaims"]:
        grid.add_column(head, overflow="fold")
    for head in ["|error|\n/bound", "mean\n(e/σ)²", "bias,\nσ", "max\nULP", "99 %\nULP"]:
        grid.add_column(head, justify="right", no_wrap=True)
    for cell in measured:
        if cell.key in worst:
            grid.add_row(*(Text(printable(text)) for text in _accuracy_row(cell, several)))
    console.print(grid)
    if len(measured) > len(worst):
        left_out = len(measured) - len(worst)
        _print_line(console, f"The {left_out:,} others are nearer to exact; the report has them.")
        console.print()


def _accuracy_row(cell: Cell, several: bool) -> list[str]:
    backend = [cell.key.backend] if several else []
    return [
        *[cell.key.primitive, cell.key.dtype, *backend, ", ".join(cell.numerics)],
        format_ratio(cell.max_error),
        format_number(cell.mean_square),
        format_signed(cell.bias),
        format_max_ulp(cell),
        format_p99_ulp(cell),
    ]


def _print_failures(console: Console, results: Results) -> None:
    found = failures(results.cases)
    for failure in found[:FAILURES_SHOWN]:
        case = failure.smallest
        title = f"{case.verdict}  {case.primitive} {case.dtype} on {case.backend}"
        figures = measures(case)
        _print_line(console, f"{title}  {figures}".rstrip(), "bold red")
        if failure.alike:
            _print_line(console, f"  {failure.number:,} drawn cases shrink to this one")
        if case.message:
            _print_line(console, f"  {first_line(case.message)}")
        _print_line(console, f"  {case.repro_command}", "cyan")
        console.print()
    if len(found) > FAILURES_SHOWN:
        left_out = len(found) - FAILURES_SHOWN
        _print_line(console, f"… and {left_out:,} more that do not conform; the report has them.")
        console.print()


def _print_conclusion(console: Console, results: Results) -> None:
    counts = count_verdicts(results.cases)
    sign, style = STANDING_MARKS[standing(results)], _CONCLUSIONS[standing(results)]
    figures = [counts_in_words(counts), f"conforming: {conforming_share(counts)}"]
    if results.summary:
        figures.append(format_seconds(results.summary.seconds))
        figures.append(format_rate(results.summary.cases_per_second))
    _print_line(console, " · ".join(figures), "dim")
    if results.incomplete_reason:
        _print_line(console, results.incomplete_reason, "bold yellow")
    _print_line(console, f"{sign} {conclusion(results)}", style)


def _print_line(console: Console, line: str, style: str = "") -> None:
    console.print(printable(line), style=style, soft_wrap=True)
