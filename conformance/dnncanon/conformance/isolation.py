"""The process in which a backend runs and is judged: kept fit for judging, whatever the backend does.

What a call changes of the process-wide settings of Python and NumPy is set back after it. Two changes
are told as well: another floating-point mode of the processor, from which every caller would suffer,
and a replaced function of those by which results are judged. This is a defence against accidents; a
backend that means to deceive shares a process with its judge and will find a way.
"""

import ctypes
import gc
import math
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import is_
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

# Everything by which outputs are computed anew, compared and told: modules, with all below some.
_JUDGES = re.compile(
    r"numpy|numpy\.(_core|lib|linalg)(\..*)?|ml_dtypes|builtins|json|math|zlib"
    r"|dnncanon\.(spec|reference|conformance|reports)(\..*)?"
)
# Handlers that run between two instructions of whoever is at work, and so could disturb the judge.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_MESSAGE_CHARACTERS = 2000
_TRACEBACK_FRAMES = 6


class SettingsKept:
    """Settings of Python and NumPy that the block changes are as before after it."""

    def __enter__(self) -> None:
        self._recursion_limit = sys.getrecursionlimit()
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._timers = [signal.getitimer(timer) for timer in _TIMERS]
        self._collecting = gc.isenabled()
        self._streams = sys.stdout, sys.stderr
        self._errors = np.errstate()
        self._warnings = warnings.catch_warnings()
        self._errors.__enter__()
        self._warnings.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.setrecursionlimit(self._recursion_limit)  # first: the rest calls functions
        self._set_back_signals()
        self._warnings.__exit__(kind, error, trace)
        self._errors.__exit__(kind, error, trace)
        sys.stdout, sys.stderr = self._streams
        if self._collecting:
            gc.enable()

    def _set_back_signals(self) -> None:
        """Timers that the block started are stopped, and handlers that it changed are as before."""
        for timer, before in zip(_TIMERS, self._timers, strict=True):
            if before == (0.0, 0.0) != signal.getitimer(timer):
                signal.setitimer(timer, 0.0)
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may, and only it could have
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


class Originals:
    """The functions and classes by which results are judged, as they are now."""

    def __init__(self) -> None:
        loaded = [
            (name, module)
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and _JUDGES.fullmatch(name)
        ]
        owners: dict[str, Any] = dict(loaded)
        for name, module in loaded:
            if name.startswith("dnncanon."):
                owners.update(_classes(module))
        self._kept = [_Namespace.of(name, owner) for name, owner in owners.items()]

    def put_back(self) -> list[str]:
        """The names of those that have been replaced since; they are back afterwards."""
        return [name for namespace in self._kept for name in namespace.put_back()]


@dataclass(frozen=True)
class _Namespace:
    """The functions of a module or class, by name."""

    name: str
    owner: Any
    now: Mapping[str, Any]
    names: tuple[str, ...]
    originals: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, owner: Any) -> "_Namespace":
        now = vars(owner)
        acting = {n: member for n, member in now.items() if _acts(n, member)}
        return cls(name, owner, now, tuple(acting), tuple(acting.values()))

    def put_back(self) -> list[str]:
        # Identity, not equality, which is for the replacement to say; and all of it in C: thousands of
        # functions are looked at after every call.
        if all(map(is_, map(self.now.get, self.names), self.originals)):
            return []
        replaced = []
        for name, original in zip(self.names, self.originals, strict=True):
            if self.now.get(name) is not original:
                setattr(self.owner, name, original)
                replaced.append(f"{self.name}.{name}")
        return replaced


def _classes(module: ModuleType) -> dict[str, type]:
    """The classes that a module defines, by their full names."""
    own = (c for c in vars(module).values() if isinstance(c, type))
    return {f"{c.__module__}.{c.__qualname__}": c for c in own if c.__module__ == module.__name__}


def _acts(name: str, member: Any) -> bool:
    """Whether a member is one that computes something; ABC's caches and the like come and go."""
    return not name.startswith("_abc_") and (
        callable(member) or isinstance(member, (property, classmethod, staticmethod))
    )


_originals: Originals | None = None


def remember() -> None:
    """Take what is loaded now for the originals. To be called before a backend is loaded."""
    global _originals
    _originals = Originals()


def put_back() -> list[str]:
    """Names of judging functions that were replaced since :func:`remember`; they are put back."""
    return _originals.put_back() if _originals else []


# --- The processor's floating-point mode ----------------------------------------------------------

_DEFAULT_ENVIRONMENT = -1  # FE_DFL_ENV of glibc, as a pointer
_NUMBERS: dict[str, Callable[[], bool]] = {
    "subnormal numbers count as zero": lambda: math.copysign(5e-324, 1.0) * 1.0 == 0.0,
    "results below the normal numbers become zero": lambda: sys.float_info.min * 0.5 == 0.0,
    "results are not rounded to nearest": lambda: (
        not (
            1.0 + 0.75 * sys.float_info.epsilon == 1.0 + sys.float_info.epsilon
            and 1.0 + 0.25 * sys.float_info.epsilon == 1.0
        )
    ),
}


def restored_floating_point_mode() -> str:
    """How this thread's floating-point mode differed from IEEE 754's default, which it now is again."""
    changed = _floating_point_mode()
    if changed:
        _floating_point_library().fesetenv(ctypes.c_void_p(_DEFAULT_ENVIRONMENT))
        if _floating_point_mode():
            raise RuntimeError(f"{changed}, and this cannot be undone on this machine")
    return changed


def _floating_point_mode() -> str:
    return ", ".join(what for what, is_so in _NUMBERS.items() if is_so())


def _floating_point_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return ctypes.CDLL(None)


# --- Telling what went wrong ----------------------------------------------------------------------


def failure() -> str:
    """The exception being handled: what it says, shortened, and where it came from.

    The first line has its kind and the first line of its message; reports show it as the headline.
    """
    error = sys.exception()
    trace = traceback.extract_tb(error.__traceback__ if error else None)
    where = traceback.format_list(list(trace)[-_TRACEBACK_FRAMES:])
    return "\n".join([_told(lambda: _headed(error)), "".join(where).rstrip()])


def said(error: BaseException) -> str:
    """What an exception says; also of one that cannot."""
    return _told(lambda: str(error))


def _headed(error: BaseException | None) -> str:
    """What Python prints of an exception, without blank lines, its kind and message first.

    Python prints the source before them for a SyntaxError, and a message as it is, also one that
    begins with an empty line.
    """
    printed = "".join(traceback.format_exception_only(error)).splitlines()
    lines = [line for line in printed if line.strip()]
    kind = type(error).__name__
    at = next((i for i, line in enumerate(lines) if line.partition(":")[0].endswith(kind)), 0)
    head = lines.pop(at)
    if head.rstrip().endswith(f"{kind}:") and at < len(lines):
        head = f"{head.rstrip()} {lines.pop(at).strip()}"
    return "\n".join([head, *lines])


def _told(tell: Callable[[], str]) -> str:
    try:
        text = str(tell())
    except BaseException as worse:  # its own __str__ or __name__ raises
        return f"an exception that cannot be printed: that raises {type(worse).__name__}"
    # Lone surrogates have no form in UTF-8, in which results and reports are written.
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    return f"{text[:_MESSAGE_CHARACTERS]} … ({len(text)} characters in all)"
