"""``dnncanon mutants``: is the suite good enough to notice deliberate defects?

Every mutant (:mod:`dnncanon.spec.mutant`) is loaded as a backend of its own, ``mutant:NAME``, and held to
the reference by cases of level ``quick`` until one fails. A mutant that no case can tell from the
original says so, with the reason; any other that survives is a hole in the suite.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from dnncanon.conformance.cells import Cell, CellRun
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.mutation import PREFIX, MutantError, catalogue, check_places
from dnncanon.conformance.pool import Pool, Start, share_of_memory, spawned
from dnncanon.conformance.side_by_side import side_by_side
from dnncanon.conformance.warm import start_of
from dnncanon.reports import CaseResult
from dnncanon.spec import primitives
from dnncanon.spec.mutant import KINDS, Mutant


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: the result that killed it, if one did, the cases it took, that one
    included, and how long it took."""

    mutant: Mutant
    killer: CaseResult | None
    cases: int
    seconds: float

    def __str__(self) -> str:
        word = "SURVIVED" if self.survived else f"killed by {self.killer_line}"
        return f"{self.mutant.name:<44} {self.cases:>4} cases {self.seconds:5.1f} s  {word}"

    @property
    def killer_line(self) -> str:
        """The verdict and the case that killed it."""
        return f"{self.killer.verdict} {self.killer.case}" if self.killer else ""

    @property
    def survived(self) -> bool:
        return self.killer is None

    @property
    def as_it_should_be(self) -> bool:
        """Killed, or declared equivalent and not killed."""
        return self.survived == bool(self.mutant.equivalent)


def select(patterns: Sequence[str]) -> list[Mutant]:
    """Mutants whose names match any of the shell patterns; all of them without patterns."""
    known = catalogue()
    chosen = [
        m for n, m in known.items() if not patterns or any(fnmatchcase(n, p) for p in patterns)
    ]
    if not chosen:
        some = ", ".join(sorted(known)[:3])
        raise MutantError(
            f"no mutant matches {' '.join(patterns)}; there are {len(known)}, such as {some}"
        )
    return chosen


def usable_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hunt(
    mutants: Sequence[Mutant],
    *,
    cases: int,
    seed: int,
    timeout: float,
    jobs: int = 1,
    on_fate: Callable[[], None] = lambda: None,
) -> Iterator[Fate]:
    """Run the suite against each mutant until a case kills it; the fates in the mutants' order.

    Several ``jobs`` hunt side by side, each with one worker; ``on_fate`` is called at every fate, in
    whatever order they come. Closing the iterator ends all processes. Raises MutantError, before
    anything is run, if the source has changed where a mutant is to change it.
    """
    check_places(mutants)
    jobs = max(1, min(jobs, len(mutants)))
    hunted = partial(
        _fate, cases=cases, seed=seed, timeout=timeout, memory_limit=share_of_memory(jobs)
    )
    if jobs > 1:
        yield from side_by_side(partial(_warm_fate, hunted), mutants, jobs, on_fate)
        return
    for mutant in mutants:
        fate = hunted(mutant)
        on_fate()
        yield fate


def _warm_fate(hunted: Callable[..., Fate], mutant: Mutant) -> Fate:
    """The fate of one of many mutants, for which it pays to have their room warm."""
    return hunted(mutant, start=start_of(mutant))


def _fate(
    mutant: Mutant,
    *,
    cases: int,
    seed: int,
    timeout: float,
    memory_limit: int,
    start: Start = spawned,
) -> Fate:
    started = time.monotonic()
    with Pool(
        PREFIX + mutant.name,
        timeout=timeout,
        environment=mutant.environment,
        memory_limit=memory_limit,
        start=start,
    ) as pool:
        results = _results_until_failure(mutant, pool, cases, seed)
    # The worker was sent a few cases ahead; what they would have shown depends on who was faster.
    until = next((n for n, result in enumerate(results) if result.failing), None)
    killer, count = (None, len(results)) if until is None else (results[until], until + 1)
    return Fate(mutant, killer, count, time.monotonic() - started)


def _results_until_failure(mutant: Mutant, pool: Pool, cases: int, seed: int) -> list[CaseResult]:
    primitive, level = primitives()[mutant.primitive], LEVELS["quick"]
    results: list[CaseResult] = []

    def failed() -> bool:
        return any(result.failing for result in results)

    for dtype in mutant.dtypes:
        cell = Cell(primitive, dtype, level.scale, cases, seed, level.boundary)
        run = CellRun(cell, pool, results.append)
        run.stop_at_failure = True
        # Drawn cases see most defects, and are smaller than those at boundaries.
        run.submit_cases(cell.draw())
        pool.drain(until=failed)
        run.submit()
        pool.drain(until=failed)
        if failed():
            break
    return results


# --- The kill table -------------------------------------------------------------------------------


def page(fates: Sequence[Fate], command: str) -> str:
    """The fates as a Markdown page: counts by kind and room, then a table for each room."""
    rooms = {
        room: [f for f in fates if _room(f) == room] for room in dict.fromkeys(map(_room, fates))
    }
    tables = (f"## {room}\n\n{_table(of_room)}" for room, of_room in rooms.items())
    return "\n\n".join([_INTRODUCTION.format(command=command), _counts(rooms), *tables]) + "\n"


_INTRODUCTION = """\
# Mutants: does the suite notice deliberate defects?

A mutant is one deliberate defect, planted in the source of a room. The suite has to fail on each, or the
catalogue has to say why no output can tell it from the original. Written by

    {command}

A mutant's fate is the verdict that killed it, how many cases it took, and the case that did it: run it
again by `dnncanon repro 'CASE' --backend mutant:NAME`. In the counts, 3/4 is three of four killed, those
declared equivalent left out."""


def tally(fates: Sequence[Fate]) -> str:
    """How many are killed, of how many that should be; and how many are declared equivalent."""
    due = [fate for fate in fates if not fate.mutant.equivalent]
    killed, equivalent = sum(not f.survived for f in due), len(fates) - len(due)
    return f"killed {killed} of {len(due)} mutants, {equivalent} declared equivalent"


def _room(fate: Fate) -> str:
    return fate.mutant.name.partition(".")[0]


def _counts(rooms: dict[str, list[Fate]]) -> str:
    everywhere = [fate for fates in rooms.values() for fate in fates]
    columns = {**rooms, "all": everywhere} if len(rooms) > 1 else rooms
    lines = [
        tally(everywhere).capitalize() + ".\n",
        f"| kind | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for kind, meaning in {**KINDS, "": ""}.items():
        counted = [
            _share([f for f in fates if kind in ("", f.mutant.kind)]) for fates in columns.values()
        ]
        told = f"{kind}: {meaning}" if kind else "**all kinds**"
        lines.append(f"| {told} | {' | '.join(counted)} |")
    return "\n".join(lines)


def _share(fates: Sequence[Fate]) -> str:
    due = [fate for fate in fates if not fate.mutant.equivalent]
    equivalent = len(fates) - len(due)
    share = f"{sum(not f.survived for f in due)}/{len(due)}" if due else ""
    return share + (f" + {equivalent} equivalent" if equivalent else "") or "–"


def _table(fates: Sequence[Fate]) -> str:
    lines = ["| mutant | kind | defect | fate |", "| --- | --- | --- | --- |"]
    for fate in fates:
        mutant = fate.mutant
        cells = (mutant.name, mutant.kind, mutant.doc, _told(fate))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _told(fate: Fate) -> str:
    declared = fate.mutant.equivalent
    if fate.killer is None:
        return f"equivalent: {declared}" if declared else f"**survived** {fate.cases} cases"
    contradiction = "**declared equivalent**, " if declared else ""
    return f"{contradiction}{fate.killer.verdict}, case {fate.cases}: `{fate.killer.case}`"
