"""Cells: the cases of one primitive and dtype, drawn, run and, where one fails, shrunk.

Drawing is Hypothesis's. A run submits what it draws without waiting for results; afterwards the same
draw, by the same seed, is repeated with the results at hand, and Hypothesis reduces the first failure
to the smallest case that fails in the same way.
"""

import contextlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import HypothesisException

from dnncanon.conformance import workloads
from dnncanon.conformance.case import Case, must_error_cases
from dnncanon.conformance.pool import Pool
from dnncanon.conformance.shards import WHOLE, Shard
from dnncanon.conformance.strategies import cases
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import Primitive, Scale, primitives

# After so many crashes and timeouts a cell is given up: each costs a new process, or the whole timeout.
MAX_DEATHS = 5
# Draws of the must-error layer: each is violated in every way its constraints offer.
MUST_ERROR_DRAWS = 4

# Different choices can mean one case, so a draw of n may yield fewer: draw some more, and again.
_ATTEMPTS = 4
_SPARE = 5

_FAILING = {Verdict.FAILED, Verdict.ERROR, Verdict.CRASHED, Verdict.TIMEOUT}

Record = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Cell:
    """One primitive and dtype, and how its cases are drawn."""

    primitive: Primitive[Any]
    dtype: str
    scale: Scale
    count: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.primitive.name} {self.dtype}"

    def draw(self, use: Callable[[Case], None]) -> None:
        """Hand ``count`` distinct cases to ``use``; fewer only where the domain has no more."""
        seen: set[str] = set()

        def distinct(case: Case) -> None:
            if len(seen) < self.count and str(case) not in seen:
                seen.add(str(case))
                use(case)

        for attempt in range(_ATTEMPTS):
            missing = self.count - len(seen)
            if missing:
                self._explore(attempt, missing + _SPARE, distinct, (Phase.generate,))

    def shrink(self, fails: Callable[[Case], bool]) -> Case | None:
        """The simplest case for which ``fails`` holds, from the same draw; None if none does."""
        smallest: list[Case] = []

        def check(case: Case) -> None:
            if fails(case):
                smallest[:] = [case]
                raise _FailsError

        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(_FailsError, HypothesisException):
                self._explore(attempt, self.count + _SPARE, check, (Phase.generate, Phase.shrink))
            if smallest:
                return smallest[0]
        return None

    def _explore(
        self, attempt: int, count: int, use: Callable[[Case], None], phases: tuple[Phase, ...]
    ) -> None:
        key = f"{self.seed} {self.name} {attempt}"

        @seed(zlib.crc32(key.encode()))
        @settings(
            max_examples=count,
            phases=phases,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @given(cases(self.primitive, self.dtype, self.scale))
        def explore(case: Case) -> None:
            use(case)

        explore()


class _FailsError(Exception):
    """Tells Hypothesis that a case fails."""


@dataclass
class CellRun:
    """A cell on its way through a backend.

    ``record`` gets every result, after ``applied`` has looked whether it is an expected failure.
    """

    cell: Cell
    pool: Pool
    record: Record
    applied: Callable[[CaseResult], CaseResult] = lambda result: result
    origin: str = "drawn"
    shard: Shard = WHOLE
    results: dict[str, CaseResult] = field(default_factory=dict)
    explained: bool = False
    deaths: int = 0

    def submit(self) -> None:
        """Submit all cases of the cell; their results are recorded as they come."""
        introduction = self.pool.introduction
        if self.cell.primitive.name not in introduction["offered"]:
            self._submit_first()
            return
        self.cell.draw(self._submit)
        if introduction["raises_spec_errors"]:
            few = replace(self.cell, count=MUST_ERROR_DRAWS)
            few.draw(lambda case: self.submit_cases(must_error_cases(case)))

    def submit_cases(self, given_cases: Iterable[Case]) -> None:
        """Submit these cases; their results are recorded as they come."""
        for case in given_cases:
            self._submit(case)

    def _submit_first(self) -> None:
        """One case only, which will say that the backend lacks the primitive."""
        replace(self.cell, count=1).draw(self._submit)

    def _submit(self, case: Case) -> None:
        if str(case) in self.results or not self.shard.holds(case):
            return
        if self.deaths >= MAX_DEATHS:
            why = f"the cell was given up after {self.deaths} crashes and timeouts"
            self._heard(self.pool.result(case, Verdict.SKIPPED, why))
        else:
            self.pool.submit(case, self._heard)

    def _heard(self, result: CaseResult) -> None:
        result = self.applied(replace(result, origin=self.origin))
        self.deaths += result.verdict in (Verdict.CRASHED, Verdict.TIMEOUT)
        self.results[result.case] = result
        self.record(result)

    def take_over(self, result: CaseResult) -> None:
        """Count a result of an earlier, unfinished run as this one's; it is recorded already."""
        if result.origin == "shrunk":
            self.explained = True
        else:
            self.results[result.case] = result

    @property
    def failures(self) -> list[CaseResult]:
        return [result for result in self.results.values() if result.verdict in _FAILING]

    def explain(self, seconds: float) -> CaseResult | None:
        """Shrink the first failure of drawn data for at most ``seconds``; the result is recorded."""
        first = next((r for r in self.failures if r.layer != "must-error"), None)
        if first is None or self.explained:
            return None
        until = time.monotonic() + seconds

        def fails(case: Case) -> bool:
            line = str(case)
            if line not in self.results:
                if time.monotonic() > until:
                    return False
                self.results[line] = self.pool.run(case)
            return self.results[line].verdict is first.verdict

        smallest = self.cell.shrink(fails)
        if smallest is None or str(smallest) == first.case:
            return None
        shrunk = replace(self.results[str(smallest)], origin="shrunk", shrunk_from=first.case)
        self.record(shrunk)
        return shrunk


def workload_cases(name: str, batch: int, primitive: str, dtype: str) -> Iterator[Case]:
    """A case for each layer of a workload; ValueError for a primitive that layers have no form of."""
    for layer in workloads.WORKLOADS[name].layers(batch):
        yield Case(
            primitives()[primitive], workloads.arguments(layer, primitive, dtype), seed=batch
        )
