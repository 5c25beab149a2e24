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

from dnncanon.conformance.backends import Backend, BackendError, load
from dnncanon.conformance.case import Case, CaseError
from dnncanon.conformance.execute import blank_result, execute
from dnncanon.reports import CaseResult, Verdict

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def serve(connection: Connection, backend_name: str) -> None:
    """Answer requests until the other side closes the connection.

    The first message tells whether the backend could be loaded, and what it says of itself. What the
    backend raises is a result; anything else that is raised is a defect of the suite, and told as one.
    """
    try:
        backend = load(backend_name)
    except BackendError as error:
        _send(connection, {"error": str(error)})
        return
    _send(connection, {"ready": introduction(backend)})
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        reply: dict[str, Any]
        try:
            reply = {"result": _answer(backend, request["case"])}
        except Exception:
            reply = {"defect": traceback.format_exc()}
        _send(connection, reply)


def introduction(backend: Backend) -> dict[str, Any]:
    """What the runner has to know of a backend, in JSON's types."""
    return {
        "title": backend.title,
        "offered": backend.offered(),
        "raises_spec_errors": backend.raises_spec_errors,
        "description": backend.description,
    }


def _answer(backend: Backend, line: str) -> dict[str, Any]:
    """The result of a case, as the fields of a CaseResult."""
    case = Case.parse(line)
    try:
        result = execute(backend, case)
    except CaseError as error:
        result = _unanswerable(backend, case, str(error))
    except MemoryError:
        result = _unanswerable(backend, case, "the case needs more memory than there is")
    return asdict(result)


def _unanswerable(backend: Backend, case: Case, why: str) -> CaseResult:
    return replace(blank_result(case, backend.name, "ieee"), verdict=Verdict.SKIPPED, message=why)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message, default=str).encode())


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however busy it is then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had died before we asked
        os._exit(1)


def main() -> None:
    """``python -m dnncanon.conformance.worker FD PARENT BACKEND``, as started by the pool."""
    faulthandler.enable()
    if sys.platform == "linux":
        _die_with(int(sys.argv[2]))
    descriptor, backend_name = int(sys.argv[1]), sys.argv[3]
    serve(Connection(descriptor), backend_name)


if __name__ == "__main__":
    main()
