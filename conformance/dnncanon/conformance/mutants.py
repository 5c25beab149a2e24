"""``dnncanon mutants``: is the suite good enough to notice deliberate defects?

Every mutant (:mod:`dnncanon.spec.mutant`) is loaded as a backend of its own, ``mutant:NAME``, and held to
the reference by cases of level ``quick`` until one fails. A mutant that no case can tell from the
original says so, with the reason; any other that survives is a hole in the suite.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dnncanon.conformance.cells import Cell, CellRun
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.mutation import PREFIX, MutantError, catalogue
from dnncanon.conformance.pool import Pool
from dnncanon.reports import CaseResult
from dnncanon.spec import primitives
from dnncanon.spec.mutant import Mutant


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: the result that killed it, if one did, and how long it took."""

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


def hunt(mutants: Iterable[Mutant], *, cases: int, seed: int, timeout: float) -> Iterator[Fate]:
    """Run the suite against each mutant until a case kills it."""
    for mutant in mutants:
        started = time.monotonic()
        name = PREFIX + mutant.name
        with Pool(name, timeout=timeout, environment=mutant.environment) as pool:
            results = list(_results_until_failure(mutant, pool, cases, seed))
        killer = next((result for result in results if result.failing), None)
        yield Fate(mutant, killer, len(results), time.monotonic() - started)


def _results_until_failure(
    mutant: Mutant, pool: Pool, cases: int, seed: int
) -> Iterator[CaseResult]:
    primitive, scale = primitives()[mutant.primitive], LEVELS["quick"].scale
    for dtype in mutant.dtypes:
        run = CellRun(Cell(primitive, dtype, scale, cases, seed), pool, lambda result: None)
        run.stop_at_failure = True
        run.submit()
        pool.drain()
        yield from run.results.values()
        if run.failures:
            return


def table(fates: Sequence[Fate]) -> str:
    """The fates as a Markdown table."""
    lines = ["| mutant | kind | defect | fate |", "| --- | --- | --- | --- |"]
    for fate in fates:
        mutant = fate.mutant
        declared = f"equivalent: {mutant.equivalent}" if mutant.equivalent else "**survived**"
        told = declared if fate.survived else f"`{fate.killer_line}`"
        lines.append(f"| {mutant.name} | {mutant.kind} | {mutant.doc} | {told} |")
    return "\n".join(lines)
