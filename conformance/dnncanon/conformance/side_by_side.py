"""Work done side by side, in processes that can be stopped at any moment and leave nothing behind."""

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from dnncanon.conformance.worker import die_with

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_GRACE = 5.0  # seconds in which a process that is told to stop may tidy up; then it is killed
_context = multiprocessing.get_context("spawn")


class ProcessLost(RuntimeError):
    """A process ended while it was at work, from outside or by a defect of its own."""


def side_by_side(
    work: Callable[[Task], Answer],
    tasks: Sequence[Task],
    jobs: int,
    on_answer: Callable[[], None] = lambda: None,
) -> Generator[Answer, None, None]:
    """``work`` of every task, in the tasks' order, computed by ``jobs`` processes.

    Each takes the next task when it has answered one; ``on_answer`` is called at every answer, in
    whatever order they come. ``work``, tasks and answers are pickled. What ``work`` raises is raised
    here. When the iterator is closed, by an exception above all, all processes are ended.
    """
    answers: dict[int, Answer] = {}
    numbers = iter(range(len(tasks)))
    with _processes(work, min(jobs, len(tasks))) as processes:
        busy: dict[Any, int] = {}

        def occupy(connection: Any) -> None:
            number = next(numbers, None)
            if number is not None:
                busy[connection] = number
                with contextlib.suppress(OSError):  # it has ended, which waiting for it will tell
                    connection.send(tasks[number])

        for connection in processes:
            occupy(connection)
        for number in range(len(tasks)):
            while number not in answers:
                for connection in wait(list(busy)):
                    answers[busy.pop(connection)] = _answer(connection, processes)
                    on_answer()
                    occupy(connection)
            yield answers.pop(number)


def _answer(connection: Any, processes: dict[Any, SpawnProcess]) -> Any:
    try:
        answer, error = connection.recv()
    except (EOFError, OSError):
        process = processes[connection]
        process.join(_GRACE)
        raise ProcessLost(
            f"a process that was at work ended with exit code {process.exitcode}"
        ) from None
    if error is not None:
        raise error
    return answer


@contextlib.contextmanager
def _processes(work: Callable[[Any], Any], count: int) -> Iterator[dict[Any, SpawnProcess]]:
    """Processes that do ``work``, by their connections; none of them outlives the block."""
    processes: dict[Any, SpawnProcess] = {}
    try:
        for _ in range(count):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(theirs, work, os.getpid()))
            process.start()
            theirs.close()
            processes[ours] = process
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for connection, process in processes.items():
            process.join(_GRACE)
            process.kill()
            process.join()
            connection.close()


def _serve(connection: Connection, work: Callable[[Any], Any], parent: int) -> None:
    """Do what comes until the process is told to stop; ``with`` blocks are then left as they should."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    if sys.platform == "linux":
        die_with(parent)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(work, task))


def _attempt(work: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return work(task), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        return None, error
