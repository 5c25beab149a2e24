"""Memory traffic, the tables in ``gpu/docs/traffic.md``: what memory-bound primitives move over their least.

    python gpu/benchmarks/traffic.py                     prints the tables
    python gpu/benchmarks/traffic.py --update FILE.md    puts them between the file's markers

The first table has the calls of ``traffic_calls.txt``, layers of well-known networks, and for those that miss
the target one of the reasons in ``traffic_reasons.toml``. The second has, of each
primitive, the largest of some calls that the conformance suite would draw: nobody chose those. Both are run
on the emulator in profile mode; figures are counts, the same on every machine.
"""
# ruff: noqa: INP001

import argparse
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dnncanon.conformance.calibration import updated
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.strategies import drawn_case
from dnncanon.gpu.library import functions
from dnncanon.gpu.profiling import profile
from dnncanon.spec import Primitive, Scale, primitives

CALLS = Path(__file__).with_name("traffic_calls.txt")
REASONS = Path(__file__).with_name("traffic_reasons.toml")

MOST, LEAST = 1.1, 0.95
"""The target: what may move over the least, and the share of sectors that lanes ask for."""

SCALE = Scale(batch=8, channels=128, extent=64, multiplications=1 << 21)
DRAWS = 200
MOST_BYTES = 2 << 20
"""Of a drawn call, so that all of them take a minute or two."""
MEMORY_BOUND = 16.0
"""Flops of the definition for each byte that must move, up to which a call is memory-bound."""

WHY = "<!-- reasons: begin -->", "<!-- reasons: end -->"
NETWORKS = "<!-- networks: begin -->", "<!-- networks: end -->"
DRAWN = "<!-- drawn: begin -->", "<!-- drawn: end -->"


@dataclass(frozen=True)
class Row:
    """What one call moved: bytes over the least, and shares of the requested sectors that lanes asked for."""

    primitive: str
    call: str
    least_bytes: int
    requested: float
    dram: float
    loads: float
    stores: float
    launches: int


# --- Which calls ----------------------------------------------------------------------------------


def network_calls() -> list[Case]:
    """The calls of ``traffic_calls.txt``."""
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    return [Case.parse(line) for line in lines if line and not line.startswith("#")]


def drawn_call(primitive: Primitive[Any], dtype: str = "float32") -> Case | None:
    """The largest memory-bound call among some draws, of the data that the suite would give it.

    A primitive that is never memory-bound, such as a product of matrices, has none.
    """
    if dtype not in (row.dtype for row in primitive.dtypes):
        dtype = primitive.dtypes[0].dtype
    drawn = (drawn_case(primitive, dtype, SCALE, 1, index)[0] for index in range(DRAWS))
    cases = [
        _contiguous(case)
        for case in drawn
        if is_memory_bound(case) and case.call.least_bytes <= MOST_BYTES
    ]
    return max(cases, key=lambda case: case.call.least_bytes, default=None)


def is_memory_bound(case: Case) -> bool:
    """Whether the definition does few flops with each byte."""
    return bool(case.call.flops <= MEMORY_BOUND * case.call.least_bytes)


def _contiguous(case: Case) -> Case:
    tensors = {n: replace(t, strides=None) for n, t in case.arguments.tensors.items()}
    arguments = replace(case.arguments, tensors=tensors)
    return replace(case, arguments=arguments, layouts={}, fill="normal", after=None, runs=1)


# --- What they move -------------------------------------------------------------------------------


def measure(cases: Iterable[Case]) -> list[Row]:
    """A row for each call. DNNCANON_DEVICE has to be emulator-profile."""
    return [_row(case) for case in cases]


def call_of(case: Case) -> str:
    """Tensors and attributes as in a case line."""
    return str(case).partition(" fill=")[0].partition(" ")[2]


def _row(case: Case) -> Row:
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    given = [tensors.get(spec.name) for spec in case.primitive.inputs]
    counted = profile(case.primitive.name, *given, **case.arguments.attributes)
    return Row(
        case.primitive.name,
        call_of(case),
        counted.least_bytes,
        counted.bytes_over_least,
        counted.dram_over_least,
        counted.sector_efficiency("load"),
        counted.sector_efficiency("store"),
        len(counted.launches),
    )


# --- Why not less ---------------------------------------------------------------------------------


def reasons() -> dict[str, Any]:
    """Those of ``traffic_reasons.toml`` by name: what each ``says``, and which calls it is about."""
    return tomllib.loads(REASONS.read_text(encoding="utf-8"))


def why(row: Row) -> str:
    """The name of the reason for which a call misses the target; nothing if it does not.

    Raises LookupError for one without a reason: mend the kernel, or find out.
    """
    requested, dram, loads, stores = (
        round(figure, 2) for figure in (row.requested, row.dram, row.loads, row.stores)
    )
    if max(requested, dram) <= MOST and min(loads, stores) >= LEAST:
        return ""
    for name, reason in reasons().items():
        if row.primitive in reason["primitives"] and re.search(reason.get("calls", ""), row.call):
            return name
    raise LookupError(
        f"{row.primitive} misses the target, and {REASONS.name} does not say why: {row}"
    )


# --- The tables -----------------------------------------------------------------------------------


def table(rows: Iterable[Row], *, with_reasons: bool = False) -> str:
    """The figures in Markdown, worst first."""
    heads = [
        "primitive",
        "requests / least",
        "DRAM / least",
        "loads",
        "stores",
        "launches",
        "least KiB",
    ]
    numbers = len(heads) - 1
    if with_reasons:
        heads.append("why")
    heads.append("call")
    alignments = ["---", *["---:"] * numbers, *["---"] * (len(heads) - 1 - numbers)]
    worst_first = sorted(rows, key=lambda row: (row.dram, row.requested), reverse=True)
    lines = [_cells(heads), _cells(alignments)]
    lines += [line_of(row, with_reason=with_reasons) for row in worst_first]
    return "\n".join(lines) + "\n"


def line_of(r: Row, *, with_reason: bool = False) -> str:
    """A line of the table."""
    figures = [f"{number:.2f}" for number in (r.requested, r.dram, r.loads, r.stores)]
    sizes = [str(r.launches), f"{r.least_bytes / 1024:,.0f}"]
    reason = [why(r)] if with_reason else []
    return _cells([r.primitive, *figures, *sizes, *reason, f"`{r.call}`"])


def table_of_reasons() -> str:
    """What each reason says."""
    lines = [_cells(["why", "of", "floor"]), _cells(["---"] * 3)]
    for name, reason in reasons().items():
        of = ", ".join(f"`{primitive}`" for primitive in reason["primitives"])
        lines.append(_cells([name, of, reason["says"].strip()]))
    return "\n".join(lines) + "\n"


def _cells(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--primitive", action="append", choices=list(functions()))
    parser.add_argument("--update", type=Path, metavar="FILE", help="rewrite the tables in FILE")
    options = parser.parse_args(arguments)
    chosen = options.primitive or list(functions())
    os.environ["DNNCANON_DEVICE"] = "emulator-profile"
    asked = (c for c in network_calls() if c.primitive.name in chosen)
    networks = table(measure(asked), with_reasons=True)
    cases = (drawn_call(primitives()[name]) for name in chosen)
    drawn = table(measure(case for case in cases if case is not None))
    if not options.update:
        print(networks, drawn, sep="\n", end="")
        return
    page = options.update.read_text(encoding="utf-8")
    for text, markers in ((table_of_reasons(), WHY), (networks, NETWORKS), (drawn, DRAWN)):
        page = updated(page, text, *markers)
    options.update.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
