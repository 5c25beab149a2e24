"""Cells: the cases of one primitive and dtype, drawn, run and, where one fails, shrunk.

A run submits what it draws without waiting for results. Afterwards the simplest failure of each cell is
reduced to the smallest case that fails in the same way.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dnncanon.conformance import workloads
from dnncanon.conformance.case import Case, must_error_cases, wrong_out_cases
from dnncanon.conformance.pool import Pool
from dnncanon.conformance.shards import WHOLE, Shard
from dnncanon.conformance.simplify import simplified, weight
from dnncanon.conformance.strategies import drawn_case, shrunk
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import Primitive, Scale, primitives, span

# After so many crashes and timeouts a cell is given up: each costs a new process, or the whole timeout.
MAX_DEATHS = 5
# Draws of the must-error layer: each is violated in every way its constraints and outputs offer.
MUST_ERROR_DRAWS = 4

# Different choices can mean one case: so many draws are made for each that is asked for.
_PATIENCE = 4

_FAILING = {Verdict.FAILED, Verdict.ERROR, Verdict.CRASHED, Verdict.TIMEOUT}

Record = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Cell:
    """One primitive and dtype, and how its cases are drawn.

    ``boundary`` is the size up to which boundaries are among its cases, as in a level.
    """

    primitive: Primitive[Any]
    dtype: str
    scale: Scale
    count: int
    seed: int
    boundary: int | None = 0

    @property
    def name(self) -> str:
        return f"{self.primitive.name} {self.dtype}"

    def boundaries(self) -> Iterator[tuple[str, Case]]:
        """Cases at the boundaries of the domain that are not too large, each with its origin."""
        for boundary in self.primitive.boundaries(self.dtype):
            fill = "special" if boundary.special_values else "normal"
            case = Case(self.primitive, boundary.arguments, fill=fill)
            if self.boundary is None or size(case) <= self.boundary:
                yield f"report:{boundary.report}" if boundary.report else "boundary", case

    def draw(self) -> Iterator[Case]:
        """``count`` distinct cases; fewer only where the domain does not hold so many."""
        seen: set[str] = set()
        for index in range(_PATIENCE * self.count):
            if len(seen) == self.count:
                return
            case, _ = self.at(index)
            if str(case) not in seen:
                seen.add(str(case))
                yield case

    def at(self, index: int) -> tuple[Case, tuple[int, ...]]:
        """The ``index``-th case of the cell's stream, and the choices that make it."""
        return drawn_case(self.primitive, self.dtype, self.scale, self.seed, index)

    def shrink(self, line: str, fails: Callable[[Case], bool]) -> Case | None:
        """The simplest case for which ``fails`` holds that can be reached from the drawn ``line``."""
        for index in range(_PATIENCE * self.count):
            case, choices = self.at(index)
            if str(case) == line:
                return shrunk(self.primitive, self.dtype, self.scale, choices, fails)
        return None


def size(case: Case) -> int:
    """Elements that the largest tensor reaches over, or products, whichever are more."""
    tensors = (*case.arguments.tensors.values(), *case.call.outputs)
    reach = max(span(tensor.shape, tensor.element_strides) for tensor in tensors)
    return max(reach, case.call.flops // 2)


@dataclass
class CellRun:
    """A cell on its way through a backend.

    ``record`` gets every result, after ``applied`` has looked whether it is an expected failure.
    ``worker`` is the number of the one that its cases are for, None for any: what a worker has compiled
    for some cases of a cell it need not for the others.
    """

    cell: Cell
    pool: Pool
    record: Record
    applied: Callable[[CaseResult], CaseResult] = lambda result: result
    origin: str = "drawn"
    shard: Shard = WHOLE
    worker: int | None = None
    results: dict[str, CaseResult] = field(default_factory=dict)
    explained: bool = False
    stop_at_failure: bool = False
    deaths: int = 0
    _failed: bool = False

    def submit(self) -> None:
        """Submit all cases of the cell; their results are recorded as they come."""
        for case, origin in self.cases():
            self.submit_case(case, origin)

    def cases(self) -> Iterator[tuple[Case, str]]:
        """All cases of the cell, each with its origin."""
        introduction = self.pool.introduction
        if self.cell.primitive.name not in introduction["offered"]:
            # One case only, which will say that the backend lacks the primitive.
            yield from ((case, self.origin) for case in replace(self.cell, count=1).draw())
            return
        for origin, case in self.cell.boundaries():
            yield case, origin
        yield from ((case, self.origin) for case in self.cell.draw())
        for drawn in replace(self.cell, count=MUST_ERROR_DRAWS).draw():
            if introduction["raises_spec_errors"]:
                yield from ((case, self.origin) for case in must_error_cases(drawn))
            if introduction["accepts_out"]:
                yield from ((case, self.origin) for case in wrong_out_cases(drawn))

    def submit_cases(self, given_cases: Iterable[Case]) -> None:
        """Submit these cases; their results are recorded as they come."""
        for case in given_cases:
            self.submit_case(case, self.origin)

    def submit_case(self, case: Case, origin: str) -> None:
        """Submit a case, unless it has a result, is another shard's, or the cell was given up."""
        if str(case) in self.results or not self.shard.holds(case):
            return
        if self.stop_at_failure and self._failed:
            return
        if self.deaths >= MAX_DEATHS:
            why = f"the cell was given up after {self.deaths} crashes and timeouts"
            self._heard(self.pool.result(case, Verdict.SKIPPED, why), origin)
        else:
            self.pool.submit(case, partial(self._heard, origin=origin), self.worker)

    def _heard(self, result: CaseResult, origin: str) -> None:
        result = self.applied(replace(result, origin=origin))
        self._failed = self._failed or result.failing
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
        """Shrink the simplest failure for at most ``seconds``; the result is recorded."""
        candidates = [r for r in self.failures if r.layer != "must-error"]
        if not candidates or self.explained:
            return None
        # Not the first: in which order results come depends on the workers.
        first = min(candidates, key=lambda r: (weight(Case.parse(r.case)), r.case))
        until = time.monotonic() + seconds / 2  # the other half is for the last step

        def fails(case: Case) -> bool:
            line = str(case)
            if line not in self.results:
                if time.monotonic() > until:
                    return False
                self.results[line] = self.pool.run(case)
            return self.results[line].verdict is first.verdict

        drawn = self.cell.shrink(first.case, fails)
        until += seconds / 2
        smallest = simplified(drawn or Case.parse(first.case), fails)
        if str(smallest) == first.case:
            return None
        shrunk = replace(self.results[str(smallest)], origin="shrunk", shrunk_from=first.case)
        self.record(shrunk)
        return shrunk


def workload_cases(name: str, batch: int, primitive: str, dtype: str) -> Iterator[Case]:
    """A case for each layer of a workload that the primitive has a call at."""
    for layer in workloads.WORKLOADS[name].layers(batch):
        if primitive in layer.forms:
            arguments = workloads.arguments(layer, primitive, dtype)
            yield Case(primitives()[primitive], arguments, seed=batch)
