"""The pool: workers that run cases, watched from outside.

A worker that dies is CRASHED on the case it had begun, one that stays silent too long is TIMEOUT and is
killed; either way a fresh worker takes over and no other case is lost. Each worker is sent a few cases
ahead, so that it never waits for the runner.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from dnncanon.conformance import memory
from dnncanon.conformance.backends import BackendError
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import blank_result
from dnncanon.conformance.worker import LOST_CONNECTION
from dnncanon.reports import CaseResult, Verdict

AHEAD = 4  # cases a worker holds at most: the one it runs and those that wait
START_TIMEOUT = 300.0  # seconds to import a backend; toolkits and drivers may take long
_TAIL = 2000  # characters of a dead worker's output that are shown
_OUTPUT_LIMIT = (
    1 << 24
)  # bytes of a worker's output that are kept on disk, looked after every second
_WATCH_INTERVAL = 1.0
_SHARE_OF_MEMORY = 0.9  # of what is free when a worker starts, for all workers together
_MARK = "DNNCANON_WORKER"  # environment variable by which a worker's descendants are known


class SuiteDefect(RuntimeError):
    """The suite failed, not the backend: a defect of dnncanon, to be reported with its traceback."""


OnResult = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Errand:
    """What a worker is started for: a backend, the end of a connection that is its own, where to print."""

    backend: str
    environment: Mapping[str, str]
    memory_limit: int
    connection: Connection
    output: Any


class Process(Protocol):
    """A worker's process, which leads a process group of its own, so that its children end with it."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""


Start = Callable[[Errand], Process]


def spawned(errand: Errand) -> Process:
    """A worker in a fresh interpreter."""
    module = [sys.executable, "-m", "dnncanon.conformance.worker"]
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    descriptor = errand.connection.fileno()
    words = (descriptor, os.getpid(), errand.memory_limit, errand.backend)
    return subprocess.Popen(
        [*module, *map(str, words)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=errand.output,
        stderr=errand.output,
        env={**os.environ, **errand.environment, "PYTHONPATH": path},
        start_new_session=True,
    )


@dataclass
class _Job:
    case: Case
    on_result: OnResult


@dataclass
class Worker:
    """One worker process and the cases it holds, oldest first."""

    process: Process
    connection: Connection
    output: Any
    mark: str
    ended: int | None  # becomes readable when the process has ended, where the system offers that
    jobs: deque[_Job] = field(default_factory=deque)
    introduction: dict[str, Any] | None = None
    heard: float = field(default_factory=time.monotonic)

    @classmethod
    def start(
        cls, backend: str, environment: Mapping[str, str], memory_limit: int, start: Start
    ) -> "Worker":
        ours, theirs = Pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        mark = uuid.uuid4().hex
        process = start(Errand(backend, {**environment, _MARK: mark}, memory_limit, theirs, output))
        theirs.close()
        ended = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        return cls(process, ours, output, mark, ended)

    def send(self, job: _Job) -> None:
        if not self.jobs:
            self.heard = time.monotonic()
        self.jobs.append(job)
        self.connection.send_bytes(json.dumps({"case": str(job.case)}).encode())

    def silent_since(self) -> float:
        """Seconds since it began what it is doing now; 0 when it has nothing to do."""
        busy = bool(self.jobs) or self.introduction is None
        return time.monotonic() - self.heard if busy else 0.0

    def stop(self) -> str:
        """End the process and its children; returns the tail of what it had printed."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        _end_marked(self.mark)
        if self.ended is not None:
            os.close(self.ended)
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _TAIL))
        tail: str = self.output.read().decode(errors="replace").strip()
        self.output.close()
        return tail

    def limit_output(self) -> None:
        """Forget what it has printed when that is too much to keep."""
        if os.fstat(self.output.fileno()).st_size > _OUTPUT_LIMIT:
            # The worker writes where this descriptor points: they share one position.
            self.output.truncate(0)
            self.output.seek(0)


def _end_marked(mark: str) -> None:
    """Kill processes that a worker has left behind, in whatever session they hide; Linux only."""
    marked = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marked in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def share_of_memory(workers: int) -> int:
    """The limit of each of several workers; negative, which means: for backends without a GPU."""
    return -int(_SHARE_OF_MEMORY * memory.bytes_available() / workers)


class Pool:
    """``jobs`` workers for one backend. Use it in a ``with`` statement.

    ``memory_limit`` is what each may allocate, in bytes; by default their share of what is free, unless
    the backend uses a GPU, whose drivers map more than they use. ``start`` makes the processes.
    """

    def __init__(
        self,
        backend: str,
        *,
        jobs: int = 1,
        timeout: float = 60.0,
        environment: Mapping[str, str] | None = None,
        memory_limit: int | None = None,
        start: Start = spawned,
    ) -> None:
        self.backend = backend
        self.timeout = timeout
        self._environment = dict(environment or {})
        self._jobs = max(1, jobs)
        self._memory_limit = memory_limit
        self._start_process = start
        self._workers = [self._start() for _ in range(self._jobs)]
        self._introduction: dict[str, Any] | None = None

    def _start(self) -> Worker:
        limit = self._memory_limit
        if limit is None:
            limit = share_of_memory(self._jobs)
        return Worker.start(self.backend, self._environment, limit, self._start_process)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.stop()

    @property
    def introduction(self) -> dict[str, Any]:
        """What the backend says of itself. Raises BackendError if it cannot be loaded."""
        while self._introduction is None:
            self.listen()
        return self._introduction

    @property
    def workers(self) -> range:
        """The numbers of its workers; one that replaces another takes over its number."""
        return range(self._jobs)

    def has_room(self, worker: int) -> bool:
        """Whether this worker takes another case at once."""
        return len(self._workers[worker].jobs) < AHEAD

    def submit(self, case: Case, on_result: OnResult, worker: int | None = None) -> None:
        """Have a case run by a worker, by default the one with the least to do, as soon as it has room.

        ``on_result`` gets the result, from within a later call of the pool.
        """
        _ = self.introduction
        while True:
            chosen = self._least_busy() if worker is None else worker
            if self.has_room(chosen):
                break
            self.listen()
        self._send(self._workers[chosen], _Job(case, on_result))

    def _least_busy(self) -> int:
        return min(self.workers, key=lambda number: len(self._workers[number].jobs))

    def drain(self, until: Callable[[], bool] = lambda: False) -> None:
        """Wait until every submitted case has its result, or ``until`` holds."""
        while any(worker.jobs for worker in self._workers) and not until():
            self.listen()

    def run(self, case: Case) -> CaseResult:
        """Run one case and return its result."""
        results: list[CaseResult] = []
        self.submit(case, results.append)
        while not results:
            self.listen()
        return results[0]

    def listen(self) -> None:
        """Wait for what workers have to say, a second at most; deal with those that died or fell silent."""
        handles: dict[Any, Worker] = {w.connection: w for w in self._workers}
        handles |= {w.ended: w for w in self._workers if w.ended is not None}
        ready = wait(handles, timeout=self._patience())
        for handle in ready:
            worker = handles[handle]
            if worker in self._workers and handle is worker.connection:
                self._hear(worker)
            elif worker in self._workers:
                self._hear_the_last_of(worker)
        for worker in list(self._workers):
            worker.limit_output()
            if worker.silent_since() > self._limit(worker):
                self._gave_up_on(worker)

    def _hear_the_last_of(self, worker: Worker) -> None:
        """Hear what an ended worker had still sent. Its children may hold its connection open."""
        while worker in self._workers and worker.connection.poll():
            self._hear(worker)
        if worker in self._workers:
            self._died(worker)

    def _limit(self, worker: Worker) -> float:
        return self.timeout if worker.introduction is not None else START_TIMEOUT

    def _patience(self) -> float:
        """How long to wait before some worker's time is up, or its output is to be looked at."""
        left = [self._limit(w) - w.silent_since() for w in self._workers]
        return min(max(0.0, min(left)) + 0.01, _WATCH_INTERVAL)

    def _send(self, worker: Worker, job: _Job) -> None:
        # A worker that has died is found out by listening, which passes its jobs on.
        with contextlib.suppress(OSError):
            worker.send(job)

    def _hear(self, worker: Worker) -> None:
        try:
            message = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._died(worker)
            return
        worker.heard = time.monotonic()
        if "error" in message:
            raise BackendError(message["error"])
        if "ready" in message:
            worker.introduction = message["ready"]
            self._introduction = self._introduction or message["ready"]
            return
        if "again" in message:
            self._replace(worker)
            self._resend(worker)
            return
        job = worker.jobs.popleft()
        if "defect" in message:
            raise SuiteDefect(f"dnncanon itself failed on {job.case}\n{message['defect']}")
        job.on_result(CaseResult(**message["result"]))

    def _died(self, worker: Worker) -> None:
        try:
            how = _how_it_ended(worker.process.wait(_WATCH_INTERVAL))
        except subprocess.TimeoutExpired:
            how = _CLOSED
        tail = self._replace(worker)
        if worker.introduction is None:
            raise BackendError(
                f"backend {self.backend} ended its process ({how}) while loading\n{tail}"
            )
        self._attribute(worker, Verdict.CRASHED, f"the process ended: {how}\n{tail}".strip())

    def _gave_up_on(self, worker: Worker) -> None:
        if worker.introduction is None:
            raise BackendError(f"backend {self.backend} did not load within {START_TIMEOUT:g} s")
        tail = self._replace(worker)
        message = f"no result within {self.timeout:g} s; the process was killed\n{tail}".strip()
        self._attribute(worker, Verdict.TIMEOUT, message)

    def _replace(self, worker: Worker) -> str:
        """Stop a worker and put a fresh one in its place; returns the tail of its output."""
        tail = worker.stop()
        self._workers[self._workers.index(worker)] = self._start()
        return tail

    def _attribute(self, worker: Worker, verdict: Verdict, message: str) -> None:
        """Blame the case that was running; the ones behind it go to another worker."""
        if not worker.jobs:
            return
        guilty = worker.jobs.popleft()
        guilty.on_result(self.result(guilty.case, verdict, message))
        self._resend(worker)

    def _resend(self, worker: Worker) -> None:
        """Give the cases of a worker that is no more to the others."""
        for job in worker.jobs:
            self._send(min(self._workers, key=lambda w: len(w.jobs)), job)

    def result(self, case: Case, verdict: Verdict, message: str) -> CaseResult:
        """A result that is decided from outside the backend."""
        claims = self.introduction["description"].get("numerics", {})
        numerics = str(claims.get(case.primitive.name, {}).get(case.dtype, "ieee"))
        blank = blank_result(case, self.backend, numerics)
        return replace(blank, verdict=verdict, message=message)


_CLOSED = "it had closed the connection over which results are sent"


def _how_it_ended(code: int) -> str:
    if code == LOST_CONNECTION:
        return _CLOSED
    if code >= 0:
        return f"exit code {code}"
    if -code == signal.SIGKILL:
        return "SIGKILL, from outside: perhaps the system had no memory left"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
