"""The worker process: loads one backend, runs the cases it is sent, one after another.

It is a separate process so that whatever a backend does, crash, hang, corrupt memory, costs one case
and not the run. Requests and replies are JSON objects on a socket of their own: a backend may print.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any

from dnncanon.conformance import isolation, memory, transfer
from dnncanon.conformance.backends import Backend, BackendError, load
from dnncanon.conformance.case import Case, CaseError
from dnncanon.conformance.execute import blank_result, execute
from dnncanon.reports import CaseResult, Verdict

LOST_CONNECTION = 83
"""Exit code of a worker whose connection is no longer the one it was started with."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Server:
    """Answers requests until the other side closes the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._socket = _identity(connection.fileno())
        self._process = os.getpid()
        self._answered = 0

    def serve(self, backend_name: str, memory_limit: int) -> None:
        """Load the backend, introduce it, and run cases.

        What the backend raises is a result; anything else that is raised is a defect of the suite, and
        told as one. ``memory_limit`` is in bytes: 0 for none, negative for one that spares backends
        which use a GPU.
        """
        isolation.remember()
        try:
            backend = load(backend_name)
        except BackendError as error:
            self._send({"error": str(error)})
            return
        if replaced := isolation.put_back():
            names = ", ".join(replaced[:3])
            why = f"backend {backend_name} replaces {names} while loading, by which it would be judged"
            self._send({"error": why})
            return
        isolation.restored_floating_point_mode()
        if memory_limit > 0 or (memory_limit < 0 and not backend.description.get("gpu")):
            memory.limit(abs(memory_limit))
        self._send({"ready": introduction(backend)})
        while (request := self._received()) is not None:
            self._send(self._reply(backend, request["case"]))

    def _reply(self, backend: Backend, line: str) -> dict[str, Any]:
        try:
            reply = {"result": asdict(self._result(backend, Case.parse(line)))}
        except _NeedsFreshWorker:
            return {"again": True}
        except Exception:
            return {"defect": traceback.format_exc()}
        self._answered += 1
        return reply

    def _result(self, backend: Backend, case: Case) -> CaseResult:
        try:
            return execute(backend, case)
        except CaseError as error:
            return _unanswerable(backend, case, str(error))
        except MemoryError:
            # Cases before this one may have left too little.
            if self._answered:
                raise _NeedsFreshWorker from None
            return _unanswerable(backend, case, "the case needs more memory than there is")

    def _received(self) -> dict[str, Any] | None:
        try:
            request: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except EOFError:
            return None
        return request

    def _send(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._process:
            os._exit(
                0
            )  # a child that the backend has forked and let come here: one answer is enough
        try:
            lost = _identity(self._connection.fileno()) != self._socket
        except OSError:
            lost = True
        if lost:  # the backend has closed it, and perhaps opened a file in its place
            os._exit(LOST_CONNECTION)
        self._connection.send_bytes(json.dumps(message, default=str).encode())


class _NeedsFreshWorker(Exception):
    """The case can be judged, but not in this process."""


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def introduction(backend: Backend) -> dict[str, Any]:
    """What the runner has to know of a backend, in JSON's types."""
    return {
        "title": backend.title,
        "offered": backend.offered(),
        "raises_spec_errors": backend.raises_spec_errors,
        "accepts_out": transfer.takes_out(backend),
        "description": backend.description,
    }


def _unanswerable(backend: Backend, case: Case, why: str) -> CaseResult:
    return replace(blank_result(case, backend.name, "ieee"), verdict=Verdict.SKIPPED, message=why)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however busy it is then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had died before we asked
        os._exit(1)


def work(descriptor: int, parent: int, memory_limit: int, backend_name: str) -> None:
    """Be a worker: serve the connection ``descriptor`` for as long as the process ``parent`` lives."""
    faulthandler.enable(os.dup(2))  # a descriptor of its own: the backend may close 2
    if sys.platform == "linux":
        die_with(parent)
        memory.volunteer_for_the_killer()
    Server(Connection(descriptor)).serve(backend_name, memory_limit)


def main() -> None:
    """``python -m dnncanon.conformance.worker FD PARENT MEMORY BACKEND``, as started by the pool."""
    descriptor, parent, memory_limit = map(int, sys.argv[1:4])
    work(descriptor, parent, memory_limit, sys.argv[4])


if __name__ == "__main__":
    main()
