"""The static report as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import groupby

from dnncanon.reports.formatting import NOT_MEASURED, first_line, printable
from dnncanon.reports.static.records import KernelFigures, StaticReport

SHOWN = 40
"""Kernels in the table, those first in which most is amiss."""

MIX_SHOWN = 4
"""Kinds of instructions of a hot loop."""


def static_text(report: StaticReport, color: bool = False, width: int = 120) -> str:
    """The table, and a line with what is amiss. ``color`` adds ANSI escape sequences."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("kernel\nlaunched by", overflow="fold", ratio=3)
    grid.add_column("\narch", no_wrap=True)
    for head in ("\nregs", "spill\nB", "local\nB", "shared\nB", "warps\n%"):
        grid.add_column(head, justify="right", no_wrap=True)
    grid.add_column("hot loop\ninstructions, share of each", overflow="fold", ratio=4)
    grid.add_column("of the peak\nbound by", overflow="fold", ratio=2)
    groups = kernels_by_need(report.kernels)
    for group in groups[:SHOWN]:
        for index, figures in enumerate(group):
            name = _name(figures) if index == 0 else ""
            grid.add_row(*(Text(printable(cell)) for cell in (name, *_cells(figures))))
        grid.add_section()
    buffer = StringIO()
    console = Console(
        file=buffer, force_terminal=color, no_color=not color, width=width, highlight=False
    )
    if groups:
        console.print(grid)
    if len(groups) > SHOWN:
        console.print(f"… and {len(groups) - SHOWN:,} more; the report has them.", markup=False)
    console.print(conclusion(report), markup=False, soft_wrap=True)
    return buffer.getvalue()


def kernels_by_need(kernels: Iterable[KernelFigures]) -> list[list[KernelFigures]]:
    """The figures of each kernel together, by architecture; kernels first that need looking after.

    That is: by bytes spilled, by local memory, by how little of the peak they may reach.
    """
    ordered = sorted(kernels, key=lambda k: (_identity(k), _number(k.architecture)))
    groups = [list(group) for _, group in groupby(ordered, key=_identity)]
    return sorted(groups, key=_need)


def conclusion(report: StaticReport) -> str:
    """How many kernels there are, and in how many of them something is amiss."""
    groups = kernels_by_need(report.kernels)
    spilling = sum(any(k.spill_bytes for k in group) for group in groups)
    local = sum(any(k.stack_bytes > k.spill_bytes for k in group) for group in groups)
    refused = sum(bool(k.refused) for k in report.kernels)
    noun = "kernel" if len(groups) == 1 else "kernels"
    parts = [
        f"{len(groups):,} {noun} for {', '.join(architectures(report)) or 'no architecture'}",
        f"{spilling:,} spill" if spilling else "none spills",
        f"{local:,} with arrays in local memory",
    ]
    parts += [f"{refused:,} refused by the toolchain"] if refused else []
    return " · ".join(parts)


def architectures(report: StaticReport) -> list[str]:
    """Oldest first."""
    return sorted({k.architecture for k in report.kernels}, key=_number)


def mix_words(figures: KernelFigures, shown: int = MIX_SHOWN) -> str:
    """As in "83: FFMA 77 %, LDS 5 %": the kinds of instructions, modifiers left out."""
    kinds: dict[str, int] = {}
    for opcode, count in figures.loop_mix.items():
        kind = opcode.partition(".")[0]
        kinds[kind] = kinds.get(kind, 0) + count
    first = sorted(kinds.items(), key=lambda entry: -entry[1])[:shown]
    parts = (f"{kind} {percent(count / figures.loop_instructions)} %" for kind, count in first)
    return f"{figures.loop_instructions:,}: {', '.join(parts)}"


def prediction_words(figures: KernelFigures) -> str:
    """As in "77 % of float32, issue"."""
    if figures.predicted is None:
        return NOT_MEASURED
    return f"{percent(figures.predicted)} % of {figures.peak}, {figures.bound_by}"


def percent(share: float) -> str:
    """Rounded down, so that 100 means all."""
    return f"{int(100 * share + 1e-9)}"


def _name(figures: KernelFigures) -> str:
    others = len(figures.launched_by) - 1
    return f"{figures.kernel}\n{figures.launched_by[0]}{f' +{others}' if others else ''}"


def _cells(figures: KernelFigures) -> Sequence[str]:
    if figures.refused:
        return [figures.architecture, *[NOT_MEASURED] * 5, first_line(figures.refused, 80), ""]
    return [
        figures.architecture,
        str(figures.registers),
        str(figures.spill_bytes),
        str(figures.stack_bytes),
        f"{figures.shared_bytes:,}",
        percent(figures.occupancy),
        mix_words(figures),
        prediction_words(figures),
    ]


def _identity(figures: KernelFigures) -> tuple[str, tuple[str, ...], list[tuple[str, str]]]:
    constants = sorted((name, str(value)) for name, value in figures.constants.items())
    return figures.kernel, figures.launched_by, constants


def _need(group: Sequence[KernelFigures]) -> tuple[float, ...]:
    """What groups are sorted by, the neediest first."""
    predicted = [k.predicted for k in group if k.predicted is not None]
    return (
        -max(k.spill_bytes for k in group),
        -max(k.stack_bytes for k in group),
        min(predicted, default=1.0),
    )


def _number(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)) or 0)
