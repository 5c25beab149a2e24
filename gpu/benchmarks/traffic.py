"""Memory traffic, the table in ``gpu/docs/traffic.md``: what memory-bound primitives move over their least.

    python gpu/benchmarks/traffic.py                     prints the table
    python gpu/benchmarks/traffic.py --update FILE.md    puts it between the file's markers

Of each primitive that the GPU library has, the largest of the calls drawn by the conformance suite, with
contiguous tensors, run on the emulator in profile mode. Figures are counts, the same on every machine; there
are no caches in them, so that what is read twice counts twice.
"""
# ruff: noqa: INP001

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dnncanon.conformance.calibration import updated
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.strategies import drawn_case
from dnncanon.gpu.profiling import PrimitiveProfile, profile
from dnncanon.spec import Primitive, Scale, Unsupported, primitives

SCALE = Scale(batch=4, channels=32, extent=32, multiplications=1 << 19)
DRAWS = 60
CALLS = 3
"""Calls of each primitive that are measured: those with the most bytes among the draws."""
MEMORY_BOUND = 16.0
"""Flops of the definition for each byte that must move, up to which a primitive is memory-bound."""

BEGIN, END = "<!-- traffic: begin -->", "<!-- traffic: end -->"


@dataclass(frozen=True)
class Row:
    """What one call moved. ``efficiency`` is the share of the sectors' bytes that lanes asked for."""

    primitive: str
    call: str
    least_bytes: int
    over_least: float
    loads: float
    stores: float
    launches: int


def measure(names: Iterable[str] | None = None, dtype: str = "float32") -> Iterator[Row]:
    """For each primitive the call that moves most over its least."""
    chosen = primitives() if names is None else {name: primitives()[name] for name in names}
    os.environ["DNNCANON_DEVICE"] = "emulator-profile"
    for primitive in chosen.values():
        rows = [row for case in _calls(primitive, dtype) if (row := _row(case)) is not None]
        if rows:
            yield max(rows, key=lambda row: row.over_least)


def _calls(primitive: Primitive[Any], dtype: str) -> list[Case]:
    """The largest calls, of the data that the suite would give them, all contiguous."""
    if dtype not in (row.dtype for row in primitive.dtypes):
        dtype = primitive.dtypes[0].dtype
    drawn = (drawn_case(primitive, dtype, SCALE, 1, index)[0] for index in range(DRAWS))
    cases = [_contiguous(case) for case in drawn]
    memory_bound = [c for c in cases if c.call.flops <= MEMORY_BOUND * c.call.least_bytes]
    return sorted(memory_bound, key=lambda case: case.call.least_bytes, reverse=True)[:CALLS]


def _contiguous(case: Case) -> Case:
    tensors = {n: replace(t, strides=None) for n, t in case.arguments.tensors.items()}
    arguments = replace(case.arguments, tensors=tensors)
    return replace(case, arguments=arguments, layouts={}, fill="normal", after=None, runs=1)


def _row(case: Case) -> Row | None:
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    given = [tensors.get(spec.name) for spec in case.primitive.inputs]
    try:
        counted = profile(case.primitive.name, *given, **case.arguments.attributes)
    except Unsupported:
        return None
    return Row(
        case.primitive.name,
        str(case).partition(" fill=")[0].partition(" ")[2],
        counted.least_bytes,
        counted.bytes_over_least,
        _efficiency(counted, "load"),
        _efficiency(counted, "store"),
        len(counted.launches),
    )


def _efficiency(counted: PrimitiveProfile, operation: str) -> float:
    """The sectors that would do for what lanes asked for, over those that were moved."""
    accesses = [
        access
        for launch in counted.launches
        for access in launch.profile.accesses
        if access.space == "global" and access.operation == operation
    ]
    moved = sum(access.units for access in accesses)
    return sum(access.least for access in accesses) / moved if moved else 1.0


def table(rows: Iterable[Row]) -> str:
    """The figures in Markdown, worst first."""
    lines = [
        "| primitive | moved / least | loads | stores | launches | least KiB | call |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {r.primitive} | {r.over_least:.2f} | {r.loads:.2f} | {r.stores:.2f} | {r.launches} | "
        f"{r.least_bytes / 1024:,.0f} | `{r.call}` |"
        for r in sorted(rows, key=lambda row: row.over_least, reverse=True)
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--primitive", action="append", choices=list(primitives()))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--update", type=Path, metavar="FILE", help="rewrite the table in FILE")
    options = parser.parse_args(arguments)
    text = table(measure(options.primitive, options.dtype))
    if not options.update:
        print(text, end="")
        return
    page = options.update.read_text(encoding="utf-8")
    options.update.write_text(updated(page, text, BEGIN, END), encoding="utf-8")


if __name__ == "__main__":
    main()
