"""A run: choose cells, send their cases through a backend, write results and reports."""

import platform
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dnncanon.conformance import workloads
from dnncanon.conformance.case import Case
from dnncanon.conformance.cells import Cell, CellRun, workload_cases
from dnncanon.conformance.expected import Expectation, ExpectationError, Expectations
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.pool import Pool
from dnncanon.conformance.progress import progress_bar
from dnncanon.conformance.shards import WHOLE, Shard, same_run
from dnncanon.reports import (
    CaseResult,
    Environment,
    Results,
    ResultsWriter,
    Summary,
    exit_code,
    read_results,
    render,
)
from dnncanon.spec import DTYPES, Primitive, __version__, primitives

RESULTS = "results.jsonl"


class UsageError(Exception):
    """A run that cannot be made as asked; the message is one sentence."""


@dataclass(frozen=True)
class Options:
    """What to run, on what, and where the results go."""

    backend: str
    out: Path
    primitives: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    level: str = "quick"
    cases: int | None = None
    seed: int = 0
    workload: str = ""
    batch: int = 1
    jobs: int = 1
    timeout: float = 60.0
    memory: float | None = None
    shrink_seconds: float = 20.0
    require_gpu: bool = False
    fail_fast: bool = False
    resume: bool = False
    shard: Shard = WHOLE
    expected_failures: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a run, and where it is written down."""

    results: Results
    files: Sequence[Path]
    unused_expectations: Sequence[Expectation] = ()

    @property
    def exit_code(self) -> int:
        """0, 1 or 3 as the command line's; an expectation that nothing matched does not conform."""
        if self.unused_expectations:
            return 1
        return exit_code(self.results.summary.counts) if self.results.summary else 1


def run(options: Options) -> Outcome:
    """Run the suite and write ``results.jsonl`` and the reports into ``options.out``.

    Raises UsageError, or BackendError when the backend cannot be loaded.
    """
    cells = select(options)
    expectations = _expectations(options)
    make_folder(options.out)
    earlier = _earlier(options)
    memory_limit = None if options.memory is None else int(options.memory * 2**30)
    with Pool(
        options.backend, jobs=options.jobs, timeout=options.timeout, memory_limit=memory_limit
    ) as pool:
        introduction = pool.introduction
        if options.require_gpu and introduction["description"].get("gpu") is not True:
            device = introduction["description"].get("device", "unknown")
            raise UsageError(
                f"--require-gpu: backend {options.backend} runs on {device}, not on a GPU"
            )
        environment = describe_environment(options, introduction)
        try:
            with _writer(options, environment, earlier) as writer:
                _Run(options, cells, pool, writer, expectations, earlier).go()
        except OSError as error:
            raise UsageError(
                f"cannot write to {options.out}: {error.strerror or error}; what was tested so far is "
                f"in {options.out / RESULTS}, and --resume goes on from there"
            ) from error
    results = read_results(options.out / RESULTS)
    return Outcome(results, render(results, options.out), expectations.unused())


def _expectations(options: Options) -> Expectations:
    if options.expected_failures is None:
        return Expectations()
    try:
        return Expectations.read(options.expected_failures)
    except ExpectationError as error:
        raise UsageError(str(error)) from error


def _earlier(options: Options) -> Results | None:
    """The results to go on from; None for a run that begins anew."""
    path = options.out / RESULTS
    if not options.resume or not path.stat().st_size:
        return None
    earlier = read_results(path)
    if earlier.complete:
        raise UsageError(f"--resume: the run in {path} came to its end; run without --resume")
    return earlier


def _writer(options: Options, environment: Environment, earlier: Results | None) -> ResultsWriter:
    path = options.out / RESULTS
    if earlier is None:
        return ResultsWriter(path, environment)
    if not same_run(earlier.environment, environment):
        raise UsageError(f"--resume: {path} is of another run: {earlier.environment.command}")
    return ResultsWriter.resume(path, earlier)


def select(options: Options) -> list[Cell]:
    """The cells that the options name. Raises UsageError for unknown names."""
    _known("primitive", options.primitives, primitives())
    _known("dtype", options.dtypes, DTYPES)
    _known("level", (options.level,), LEVELS)
    if options.workload:
        _known("workload", (options.workload,), workloads.WORKLOADS)
    level = LEVELS[options.level]
    count = level.cases if options.cases is None else options.cases
    cells = [
        Cell(primitive, row.dtype, level.scale, count, options.seed, level.boundary)
        for primitive in _chosen_primitives(options)
        for row in primitive.dtypes
        if not options.dtypes or row.dtype in options.dtypes
    ]
    if not cells:
        raise UsageError("none of the chosen primitives has any of the chosen dtypes")
    return cells


def _chosen_primitives(options: Options) -> list[Primitive[Any]]:
    chosen = [
        p for p in primitives().values() if not options.primitives or p.name in options.primitives
    ]
    if not options.workload:
        return chosen
    layers = workloads.WORKLOADS[options.workload].layers(options.batch)
    forms = {name: None for layer in layers for name in layer.forms}
    fits = [p for p in chosen if p.name in forms]
    if not fits:
        names = ", ".join(forms)
        raise UsageError(f"workload {options.workload} has layers for {names} only")
    return fits


def _known(what: str, names: Sequence[str], known: Any) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; known are {', '.join(known)}")


def make_folder(folder: Path) -> None:
    """Make sure that results can be written into ``folder``. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / RESULTS
        probe.open("a").close()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error


class _Run:
    """The cells of a run on their way, with progress shown on a terminal."""

    def __init__(
        self,
        options: Options,
        cells: Sequence[Cell],
        pool: Pool,
        writer: ResultsWriter,
        expectations: Expectations,
        earlier: Results | None,
    ) -> None:
        self.options = options
        self.pool = pool
        self.writer = writer
        self.expectations = expectations
        origin = f"workload:{options.workload}" if options.workload else "drawn"
        self.runs = [
            CellRun(cell, pool, self._record, expectations.applied, origin, options.shard)
            for cell in cells
        ]
        by_cell = {(run.cell.primitive.name, run.cell.dtype): run for run in self.runs}
        for result in earlier.cases if earlier else ():
            by_cell[result.primitive, result.dtype].take_over(result)
        self.failed = False
        self.progress = progress_bar()

    def go(self) -> Summary:
        started = time.monotonic()
        finished = False
        try:
            with self.progress:
                self._run_cells()
                self._explain_failures()
            finished = not (self.options.fail_fast and self.failed)
        finally:
            summary = self.writer.finish(time.monotonic() - started, finished=finished)
        return summary

    def _run_cells(self) -> None:
        """A cell for each worker, side by side; once none is left to begin, all work on the last ones."""
        task = self.progress.add_task("", total=len(self.runs))
        _ = self.pool.introduction
        to_begin = deque(self.runs)
        begun: dict[int, tuple[CellRun, Iterator[tuple[Case, str]]]] = {}
        while (to_begin or begun) and not (self.options.fail_fast and self.failed):
            for number in self.pool.workers:
                if to_begin and number not in begun:
                    run = to_begin.popleft()
                    run.worker = number
                    begun[number] = run, self._cases(run)
                    self.progress.update(task, description=run.cell.name)
            if not to_begin:
                for run, _ in begun.values():
                    run.worker = None
            done = [number for number, cell in begun.items() if self._submitted(*cell)]
            for number in done:
                del begun[number]
                self.progress.advance(task)
            if not done:
                self.pool.listen()
        self.pool.drain()

    def _submitted(self, run: CellRun, cases: Iterator[tuple[Case, str]]) -> bool:
        """Submit as many cases as there is room for; whether that was the last of the cell's."""
        while any(map(self.pool.has_room, self._takers(run))):
            case = next(cases, None)
            if case is None:
                return True
            run.submit_case(*case)
        return False

    def _takers(self, run: CellRun) -> Sequence[int]:
        return self.pool.workers if run.worker is None else (run.worker,)

    def _cases(self, run: CellRun) -> Iterator[tuple[Case, str]]:
        if not self.options.workload:
            return run.cases()
        name, batch = self.options.workload, self.options.batch
        layers = workload_cases(name, batch, run.cell.primitive.name, run.cell.dtype)
        return ((case, run.origin) for case in layers)

    def _explain_failures(self) -> None:
        if self.options.workload:
            return
        failing = [run for run in self.runs if run.failures]
        task = self.progress.add_task("shrinking", total=len(failing))
        for run in failing:
            run.explain(self.options.shrink_seconds)
            self.progress.advance(task)

    def _record(self, result: CaseResult) -> None:
        self.writer.write(result)
        self.failed = self.failed or result.failing


def describe_environment(options: Options, introduction: dict[str, Any]) -> Environment:
    """What a reader of the results must know of where they come from."""
    description = introduction["description"]
    own = {name: _version(name) for name in ("numpy", "ml_dtypes", "hypothesis")}
    return Environment(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=options.command,
        backend=options.backend,
        level=options.level,
        seed=options.seed,
        versions={"dnncanon": __version__, **own, **description.get("versions", {})},
        device=str(description.get("device", "unknown")),
        platform=platform.platform(),
        python=platform.python_version(),
        details={
            "title": introduction["title"],
            "numerics": description.get("numerics", {}),
            "selection": {
                "primitives": options.primitives,
                "dtypes": options.dtypes,
                "cases": options.cases,
                "workload": options.workload,
                "batch": options.batch if options.workload else None,
            },
            "shard": str(options.shard),
            "jobs": options.jobs,
            "timeout": options.timeout,
            "memory": options.memory,
            "processor": processor(),
        },
    )


def processor() -> str:
    """The processor's name, as far as the platform tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
