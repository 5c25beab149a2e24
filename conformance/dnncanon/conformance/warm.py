"""Workers that are forked from a process in which all that their backend stands on is warm.

Of the seconds that a worker needs before its first answer many go into what is the same for every
mutant of a room: starting Python, importing this suite and a compiler, the compiler's own tables. The
process that forks has done that once. The room itself it has not kept: a worker loads it afresh, with
its mutant.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.context import ForkProcess

from dnncanon.conformance import mutation, worker
from dnncanon.conformance.backends import BackendError, load
from dnncanon.conformance.cells import Cell
from dnncanon.conformance.execute import execute
from dnncanon.conformance.levels import LEVELS
from dnncanon.conformance.pool import Errand, Start, spawned
from dnncanon.spec import primitives
from dnncanon.spec.mutant import Mutant

_warm: dict[str, bool] = {}
"""Rooms that this process has warmed up to, and whether their workers may be forked."""


def start_of(mutant: Mutant) -> Start:
    """How to start workers for a mutant: forked where that is safe, as fresh processes elsewhere.

    Libraries may read environment variables when they are imported, so that a mutant with some of its
    own needs a fresh process. Other threads, should there be any, do not survive a fork either.
    """
    if mutant.environment:
        return spawned
    room = mutation.room_of(mutant)
    if room not in _warm:
        _warm[room] = may_fork(mutant)
    return forked if _warm[room] and threading.active_count() == 1 else spawned


def may_fork(mutant: Mutant) -> bool:
    """Warm up, and say whether workers of this mutant may be forked from here: on Linux, and not on a
    GPU, whose drivers do not survive it."""
    if sys.platform != "linux":
        return False
    cell = Cell(primitives()[mutant.primitive], mutant.dtypes[0], LEVELS["quick"].scale, 1, 0)
    # What is printed would come once more from every process; a worker that prints it keeps it.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            with mutation.unloaded_afterwards(mutation.room_of(mutant)):
                backend = load(mutant.backend)
                if backend.description.get("gpu"):
                    return False
                execute(backend, next(cell.draw()))
        except BackendError:
            return False  # a worker will say why
    return True


class _Forked:
    """A forked worker, with what the pool expects of a process."""

    def __init__(self, process: ForkProcess) -> None:
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        with contextlib.suppress(OSError):  # the child may have done so, and have ended
            os.setpgid(self.pid, self.pid)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode


def forked(errand: Errand) -> _Forked:
    """A worker that begins with all that this process has loaded. Linux only."""
    context = multiprocessing.get_context("fork")
    return _Forked(context.Process(target=_serve, args=(errand, os.getpid())))


def _serve(errand: Errand, parent: int) -> None:
    """Become what a fresh worker process would be, and be one."""
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(errand.output.fileno(), stream)
    kept = errand.connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.update(errand.environment)
    worker.work(kept, parent, errand.memory_limit, errand.backend)
