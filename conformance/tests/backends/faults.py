"""Faults of a backend, one function each, with the verdict that the suite must come to.

``WithoutOut`` and ``WithOut`` are backends that compute forward convolution correctly unless w has K
filters with K - 1 the number of a fault: that call has the fault. Documentation is made of the table.
"""

import builtins
import ctypes
import faulthandler
import gc
import json
import locale
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import dnncanon.reference as reference

Array = NDArray[Any]


@dataclass
class Call:
    """One call of conv_forward."""

    x: Array
    w: Array
    out: Array | None
    attributes: dict[str, Any]

    def correct(self) -> Array:
        """Compute what was asked for."""
        result = reference.conv_forward(self.x, self.w, **self.attributes)
        if self.out is None:
            return result
        self.out[...] = result
        return self.out


@dataclass(frozen=True)
class Fault:
    """What a backend does, the verdict on the case in which it does it, and a part of the message."""

    does: str
    verdict: str
    says: str
    commit: Callable[[Call], Any]
    takes_out: bool


FAULTS: list[Fault] = []


def fault(
    does: str, verdict: str, says: str = "", *, takes_out: bool = False
) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    def enter(commit: Callable[[Call], Any]) -> Callable[[Call], Any]:
        FAULTS.append(Fault(does, verdict, says, commit, takes_out))
        return commit

    return enter


class WithoutOut:
    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Any:
        return _answered(Call(x, w, None, attributes))


class WithOut:
    accepts_out = True

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Any:
        return _answered(Call(x, w, out, attributes))


def _answered(call: Call) -> Any:
    number = call.w.shape[0] - 2
    return FAULTS[number].commit(call) if number >= 0 else call.correct()


# --- What comes back ------------------------------------------------------------------------------


@fault("returns NaN everywhere", "FAILED", "is nan, expected")
def nans(call: Call) -> Any:
    return np.full_like(call.correct(), np.nan)


@fault("returns zeros", "FAILED", "is 0, expected")
def zeros(call: Call) -> Any:
    return np.zeros_like(call.correct())


@fault("returns two outputs instead of one", "FAILED", "2 outputs were returned, not 1")
def two_outputs(call: Call) -> Any:
    return call.correct(), call.correct()


@fault("returns no output at all: an empty tuple", "FAILED", "0 outputs were returned, not 1")
def no_outputs(call: Call) -> Any:
    return ()


@fault("returns None", "FAILED", "y is None, not an array")
def none(call: Call) -> Any:
    return None


@fault("returns a list", "FAILED", "y is of type list, not an array")
def a_list(call: Call) -> Any:
    return call.correct().tolist()


@fault("returns another shape", "FAILED", "y is float32[1, ")
def another_shape(call: Call) -> Any:
    return call.correct()[..., :-1]


@fault("returns another dtype", "FAILED", "y is float64[")
def another_dtype(call: Call) -> Any:
    return call.correct().astype(np.float64)


@fault("returns another byte order", "FAILED", "y is >f4[")
def another_byte_order(call: Call) -> Any:
    return call.correct().astype(">f4")


@fault("returns a view of an input", "FAILED", "y shares memory with an input")
def view_of_an_input(call: Call) -> Any:
    shape = call.correct().shape
    return as_strided(call.x, shape, (0, 0, call.x.itemsize))


class _Agreeable(np.ndarray[Any, Any]):
    """An array that says to everything what is wished for."""

    def __array_ufunc__(self, *arguments: Any, **keywords: Any) -> Any:
        return np.zeros(self.shape)

    def tobytes(self, order: Any = "C") -> bytes:
        return b""

    def astype(self, *arguments: Any, **keywords: Any) -> Any:
        return self


@fault("returns zeros in an array type that fakes comparisons", "FAILED", "is 0, expected")
def agreeable(call: Call) -> Any:
    return np.zeros_like(call.correct()).view(_Agreeable)


@fault("leaves its output as it was", "FAILED", "is nan, expected", takes_out=True)
def stale(call: Call) -> Any:
    return call.out


@fault("leaves the last element of its output as it was", "FAILED", "is nan", takes_out=True)
def all_but_the_last(call: Call) -> Any:
    assert call.out is not None
    last = call.out[0, -1, -1]
    call.correct()
    call.out[0, -1, -1] = last


@fault("writes one element behind its output", "FAILED", "1 elements behind its", takes_out=True)
def behind_the_output(call: Call) -> Any:
    flat = as_strided(call.correct(), (call.out.size + 1,), (4,))  # type: ignore[union-attr]
    flat[-1] = 0


@fault("writes one element before an input", "FAILED", "x: memory 1 elements before its first")
def before_an_input(call: Call) -> Any:
    address = call.x.ctypes.data - call.x.itemsize
    ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0] = 0.0
    return call.correct()


@fault("changes an input", "FAILED", "w: input element (0, 0, 0) was written")
def an_input(call: Call) -> Any:
    result = call.correct()
    call.w[0, 0, 0] += 1
    return result


@fault(
    "changes an input, and a thread of its own changes it back after the call",
    "FAILED",
    "w: input element (0, 0, 0) was written",
)
def an_input_for_a_while(call: Call) -> Any:
    result, before = call.correct(), call.w[0, 0, 0].copy()
    call.w[0, 0, 0] += 1
    threading.Timer(0.2, call.w.__setitem__, ((0, 0, 0), before)).start()
    return result


# --- What it raises -------------------------------------------------------------------------------


def raises(does: str, verdict: str, says: str, error: Callable[[], BaseException]) -> None:
    def commit(call: Call) -> Any:
        raise error()

    fault(f"raises {does}", verdict, says)(commit)


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class _MuteRefusal(NotImplementedError):
    def __str__(self) -> str:
        raise ValueError("no words")


class _OwnBase(BaseException):
    pass


class _Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


raises("an exception", "ERROR", "no such luck", lambda: RuntimeError("no such luck"))
raises(
    "`NotImplementedError`", "UNSUPPORTED", "not today", lambda: NotImplementedError("not today")
)
raises("`KeyboardInterrupt`", "ERROR", "KeyboardInterrupt", KeyboardInterrupt)
raises("`SystemExit`", "ERROR", "SystemExit: 0", lambda: SystemExit(0))
raises("`GeneratorExit`", "ERROR", "GeneratorExit", GeneratorExit)
raises("`StopIteration`", "ERROR", "StopIteration", StopIteration)
raises("`MemoryError`", "ERROR", "MemoryError", MemoryError)
raises("a `BaseException` of its own", "ERROR", "_OwnBase", _OwnBase)
raises("an exception whose `__str__` raises", "ERROR", "str() failed", _Mute)
raises("a refusal whose `__str__` raises", "UNSUPPORTED", "cannot be printed", _MuteRefusal)
raises("an exception that cannot be pickled", "ERROR", "holds a lock", _Unpicklable)
raises(
    "an exception with a message of 50 MB",
    "ERROR",
    "characters in all",
    lambda: RuntimeError("a" * 50_000_000),
)
raises(
    "an exception with half a surrogate pair in its message",
    "ERROR",
    "\\ud800",
    lambda: RuntimeError("\ud800"),
)


@fault("recurses without end", "ERROR", "RecursionError")
def recursion(call: Call) -> Any:
    return recursion(call)


# --- What it does to its process ------------------------------------------------------------------


@fault("changes the locale", "PASSED")
def changes_locale(call: Call) -> Any:
    locale.setlocale(locale.LC_ALL, "C")
    return call.correct()


@fault("has NumPy raise on every floating-point event", "PASSED")
def numpy_errors(call: Call) -> Any:
    result = call.correct()
    np.seterr(all="raise")
    return result


@fault("turns warnings into errors", "PASSED")
def warnings_as_errors(call: Call) -> Any:
    warnings.simplefilter("error")
    return call.correct()


@fault("lowers the recursion limit to what it needs itself", "PASSED")
def recursion_limit(call: Call) -> Any:
    result, depth = call.correct(), 1
    frame = sys._getframe()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + 4)
    return result


@fault("seeds the global random generators", "PASSED")
def seeds(call: Call) -> Any:
    random.seed(0)
    np.random.seed(0)
    return call.correct()


@fault("clears the environment", "PASSED")
def environment(call: Call) -> Any:
    os.environ.clear()
    return call.correct()


@fault("changes the current directory and the file mask", "PASSED")
def directory(call: Call) -> Any:
    os.chdir("/")
    os.umask(0o777)
    return call.correct()


@fault("ignores the signals that ask a process to end", "PASSED")
def ignores_signals(call: Call) -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return call.correct()


@fault("sets an alarm whose handler raises, and returns before it rings", "PASSED")
def alarm(call: Call) -> Any:
    def ring(*arguments: Any) -> None:
        raise RuntimeError("too late")

    signal.signal(signal.SIGALRM, ring)
    result = call.correct()
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return result


@fault("prints 40 MB", "PASSED")
def prints(call: Call) -> Any:
    for _ in range(40):
        os.write(1, b"x" * (1 << 20))
    return call.correct()


@fault("closes standard input, output and error", "PASSED")
def closes_streams(call: Call) -> Any:
    os.closerange(0, 3)
    return call.correct()


@fault("replaces `sys.stdout` and `sys.stderr`", "PASSED")
def replaces_streams(call: Call) -> Any:
    sys.stdout = sys.stderr = None
    return call.correct()


@fault("switches the garbage collector off", "PASSED")
def garbage(call: Call) -> Any:
    gc.disable()
    return call.correct()


@fault(
    "replaces `numpy.einsum` by one that returns zeros, in itself and in the judge",
    "ERROR",
    "einsum",
)
def replaces_einsum(call: Call) -> Any:
    result = np.zeros_like(call.correct())
    np.einsum = lambda *arrays, **keywords: 0.0 * arrays[-1]
    return result


@fault("replaces `numpy.matmul`", "ERROR", "numpy.matmul")
def replaces_matmul(call: Call) -> Any:
    result = call.correct()
    np.matmul = lambda *arrays: arrays[0]  # type: ignore[assignment]
    return result


@fault("replaces a built-in function", "ERROR", "builtins.max")
def replaces_builtin(call: Call) -> Any:
    result = call.correct()
    builtins.max = lambda *values, **keywords: 0.0  # type: ignore[assignment]
    return result


@fault("replaces a function of the suite", "ERROR", "conformance.execute.judge")
def replaces_judge(call: Call) -> Any:
    judging: Any = sys.modules["dnncanon.conformance.execute"]
    result = np.zeros_like(call.correct())
    judging.judge = lambda *arguments: None
    return result


@fault("replaces a method of the suite", "ERROR", "Guarded.damage")
def replaces_method(call: Call) -> Any:
    from dnncanon.conformance.buffers import Guarded

    Guarded.damage = lambda *arguments, **keywords: None  # type: ignore[method-assign]
    call.w[...] = 0
    return call.correct()


@fault("replaces `json.dumps`, by which results are sent", "ERROR", "json.dumps")
def replaces_json(call: Call) -> Any:
    json.dumps = lambda *arguments, **keywords: "{}"
    return call.correct()


def _floating_point(mxcsr_bits: int) -> None:
    """Set bits of the SSE control register; x86-64 with glibc."""
    library = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()
    library.fegetenv(state)
    state[7] |= mxcsr_bits
    library.fesetenv(state)


@fault("has the processor flush subnormal numbers", "FAILED", "subnormal numbers count as zero")
def flushes(call: Call) -> Any:
    result = call.correct()
    _floating_point(0x8040)  # flush to zero, and denormals are zero
    return result


@fault("has the processor round towards zero", "FAILED", "not rounded to nearest")
def rounds(call: Call) -> Any:
    result = call.correct()
    _floating_point(0x6000)
    return result


# --- How it ends ----------------------------------------------------------------------------------


@fault("reads address 0", "CRASHED", "SIGSEGV")
def segfault(call: Call) -> Any:
    return ctypes.string_at(0)


@fault("aborts", "CRASHED", "SIGABRT")
def aborts(call: Call) -> Any:
    os.abort()


@fault("ends its process", "CRASHED", "exit code 0")
def exits(call: Call) -> Any:
    os._exit(0)


@fault("is killed from outside, as for want of memory", "CRASHED", "SIGKILL")
def killed(call: Call) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@fault("overflows the stack", "CRASHED", "SIG")
def overflows(call: Call) -> Any:
    """With C frames, as CPython's own tests do it; from Python code 3.12 and later stop in time."""
    vars(faulthandler)["_stack_overflow"]()


@fault("closes every file descriptor", "CRASHED", "closed the connection")
def closes_everything(call: Call) -> Any:
    os.closerange(0, 256)
    return call.correct()


@fault("puts files in the place of every file descriptor", "CRASHED", "closed the connection")
def replaces_everything(call: Call) -> Any:
    os.closerange(0, 256)
    for _ in range(64):
        os.open("/dev/null", os.O_RDWR)
    return call.correct()


@fault("closes every file descriptor and goes on without end", "CRASHED", "closed the connection")
def closes_and_loops(call: Call) -> Any:
    os.closerange(0, 256)
    while True:
        time.sleep(1)


@fault("loops without end", "TIMEOUT", "no result within")
def loops(call: Call) -> Any:
    while True:
        time.sleep(0.01)


@fault("sleeps in C with the interpreter's lock held", "TIMEOUT", "no result within")
def sleeps_with_the_lock(call: Call) -> Any:
    return ctypes.PyDLL(None).sleep(1000)


@fault("stops its process", "TIMEOUT", "no result within")
def stops(call: Call) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)


# --- Children -------------------------------------------------------------------------------------


def _note(child: int) -> None:
    """For the test to see what becomes of it."""
    if path := os.environ.get("DNNCANON_TEST_CHILDREN"):
        with open(path, "a") as file:
            file.write(f"{child}\n")


def _forked(*, hidden: bool = False) -> None:
    """A child that sleeps on; ``hidden`` in a session of its own, with a parent that has died."""
    child = os.fork()
    if child == 0:
        if hidden:
            os.setsid()
            if os.fork():
                os._exit(0)
        _note(os.getpid())
        while True:
            time.sleep(100)
    if hidden:
        os.waitpid(child, 0)


@fault("leaves a child behind, which is ended with the worker", "PASSED")
def leaves_a_child(call: Call) -> Any:
    _forked()
    return call.correct()


@fault("leaves a daemon behind, in a session of its own; ended with the worker", "PASSED")
def leaves_a_daemon(call: Call) -> Any:
    _forked(hidden=True)
    return call.correct()


@fault("forks, and parent and child both return", "PASSED")
def both_return(call: Call) -> Any:
    if os.fork() == 0:
        _note(os.getpid())
    return call.correct()


@fault("crashes while a child holds its descriptors open", "CRASHED", "SIGSEGV")
def crashes_with_a_child(call: Call) -> Any:
    _forked()
    return ctypes.string_at(0)


# --- Memory: the test gives the worker 1 GiB ------------------------------------------------------

_hoard: list[Array] = []


@fault("allocates until memory ends", "ERROR", "MemoryError")
def allocates(call: Call) -> Any:
    hoard = []
    while True:
        hoard.append(np.empty(1 << 22))


@fault("allocates until memory ends, keeps it and returns", "ERROR", "the backend keeps")
def hoards(call: Call) -> Any:
    result, size = call.correct(), 1 << 26
    while size:
        try:
            _hoard.append(np.empty(size, np.uint8))
        except MemoryError:
            size //= 2
    return result
