"""Markdown summary of a run, for the GitHub step summary and its limit of 1 MiB."""

from __future__ import annotations

from collections.abc import Iterator

from dnncanon.reports.formatting import (
    STANDING_MARKS,
    cell_mark,
    format_max_ulp,
    format_number,
    format_p99_ulp,
    format_rate,
    format_ratio,
    format_seconds,
    format_signed,
    measures,
    printable,
    shortened,
)
from dnncanon.reports.records import Results, Verdict
from dnncanon.reports.statistics import (
    Failure,
    Matrix,
    conclusion,
    conforming_share,
    count_verdicts,
    failures,
    matrix,
    passed_count,
    run_count,
    standing,
)

LIMIT_BYTES = 1024 * 1024
"""What GitHub accepts as the summary of one step; a longer one is refused whole."""

FAILURES_SHOWN = 50
_MESSAGE_SHOWN = 2000
_LEFT_OUT = "\n_The rest is left out here for want of space; results.jsonl has all._\n"
_CLOSE = "\n</details>\n"


def summary_markdown(results: Results, limit_bytes: int = LIMIT_BYTES) -> str:
    """The run in GitHub-flavoured Markdown, never longer than `limit_bytes` in UTF-8.

    Failures come before the matrix, so what is cut off when space runs out matters least.
    """
    budget = limit_bytes - len((_CLOSE + _LEFT_OUT).encode())
    text: list[str] = []
    for block in _blocks(results):
        block = printable(block)
        budget -= len(block.encode())
        if budget < 0:
            whole = "".join(text)
            is_open = whole.count("<details>") > whole.count(_CLOSE)
            return whole + (_CLOSE if is_open else "") + _LEFT_OUT
        text.append(block)
    return "".join(text)


def _blocks(results: Results) -> Iterator[str]:
    """The pieces of the summary, each of which is whole in itself or continues a table."""
    yield from _head(results)
    found = failures(results.cases)
    if found:
        yield "\n### What does not conform\n"
        yield from map(_failure, found[:FAILURES_SHOWN])
        if len(found) > FAILURES_SHOWN:
            yield (
                f"\n_{FAILURES_SHOWN} of {len(found):,} failures are shown; "
                "results.jsonl has all._\n"
            )
    table = matrix(results.cases)
    if table.cells:
        yield from _matrix(table)
        yield from _accuracy(table)
    yield from _environment(results)


def _head(results: Results) -> Iterator[str]:
    counts = count_verdicts(results.cases)
    environment = results.environment
    yield f"## dnncanon: {cell(environment.backend)} on {cell(environment.device)}\n\n"
    yield f"**{STANDING_MARKS[standing(results)]} {cell(conclusion(results))}**\n"
    if results.incomplete_reason:
        yield f"\n> [!WARNING]\n> {results.incomplete_reason}\n"
    present = [verdict for verdict in Verdict if counts[verdict]]
    if present:
        yield "\n| " + " | ".join(present) + " |\n" + "| ---: " * len(present) + "|\n"
        yield "| " + " | ".join(f"{counts[verdict]:,}" for verdict in present) + " |\n"
    share = conforming_share(counts)
    yield f"\n{passed_count(counts):,} of {run_count(counts):,} cases run conform ({share})."
    if results.summary:
        seconds = format_seconds(results.summary.seconds)
        yield f" {seconds}, {format_rate(results.summary.cases_per_second)}."
    yield "\n"


def _failure(failure: Failure) -> str:
    case = failure.smallest
    title = f"**{case.verdict}** {code(case.primitive)} {code(case.dtype)} on {code(case.backend)}"
    figures = measures(case)
    alike = f"{failure.number:,} drawn cases shrink to this one" if failure.alike else ""
    headline = ", ".join(part for part in (title, figures, alike) if part)
    parts = [f"\n{headline}\n", fenced(case.repro_command, "sh")]
    if case.message:
        parts.append(fenced(shortened(case.message, _MESSAGE_SHOWN), "text"))
    return "".join(parts)


def _matrix(table: Matrix) -> Iterator[str]:
    yield "\n### Primitive × dtype\n\n"
    yield "✓ cases that conform, ~ mistrusted (they prove nothing), ! expected failures, "
    yield "✗ failing/run, · no case.\n\n"
    yield "| primitive | backend | " + " | ".join(map(cell, table.dtypes)) + " |\n"
    yield "| --- | --- |" + " ---: |" * len(table.dtypes) + "\n"
    for primitive in table.primitives:
        for backend in table.backends:
            marks = [cell_mark(table.cell(backend, primitive, d)).text for d in table.dtypes]
            yield f"| {cell(primitive)} | {cell(backend)} | {' | '.join(marks)} |\n"


def _accuracy(table: Matrix) -> Iterator[str]:
    measured = [entry for entry in table.cells.values() if entry.max_error is not None]
    if not measured:
        return
    yield "\n<details><summary>Accuracy of each primitive, dtype and backend</summary>\n\n"
    heads = ["elements", "error / bound", "99 % within", "(error / σ)²", "bias (σ)"]
    heads += ["max ULP", "99 % within ULP"]
    yield f"| primitive | backend | dtype | claims | {' | '.join(heads)} | worst case |\n"
    yield f"| --- | --- | --- | --- | {'---: | ' * len(heads)}--- |\n"
    for entry in measured:
        key, worst = entry.key, entry.worst
        names = [key.primitive, key.backend, key.dtype, ", ".join(entry.numerics)]
        figures = [
            f"{entry.elements:,}",
            format_ratio(entry.max_error),
            format_ratio(entry.p99_error),
            format_number(entry.mean_square),
            format_signed(entry.bias),
            format_max_ulp(entry),
            format_p99_ulp(entry),
        ]
        line = code(worst.case) if worst else ""
        yield f"| {' | '.join(map(cell, names))} | {' | '.join(figures)} | {line} |\n"
    yield _CLOSE


def _environment(results: Results) -> Iterator[str]:
    environment = results.environment
    yield "\n<details><summary>Environment</summary>\n\n| | |\n| --- | --- |\n"
    facts = {
        "command": environment.command,
        "created": environment.created,
        "level": environment.level,
        "seed": str(environment.seed),
        "device": environment.device,
        "platform": environment.platform,
        "python": environment.python,
        **environment.versions,
    }
    for name, value in facts.items():
        yield f"| {cell(name)} | {code(value)} |\n"
    yield _CLOSE


def cell(text: str) -> str:
    """`text` as plain text within a line or a table cell: nothing in it is Markdown or HTML."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    for character in "\\`*_[]|~#":
        text = text.replace(character, "\\" + character)
    return text


def code(text: str) -> str:
    """`text` as inline code within a line or a table cell, whatever it holds."""
    # Backticks cannot carry "\\|" through a table, an element can.
    shown = cell(text)
    return f"<code>{shown}</code>" if shown else ""


def fenced(text: str, language: str) -> str:
    """`text` as a code block, whatever backticks it holds."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"\n{fence}{language}\n{text}\n{fence}\n"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
