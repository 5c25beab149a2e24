"""Signals: a wild access or a division by zero in a kernel becomes an exception.

The handler is native code (`fibers.handle_fault`). It recognises faults on the stacks of running
kernels; any other fault is given back to whoever handled the signal before.
"""

from __future__ import annotations

import ctypes
import signal
from functools import cache

import llvmlite.binding as llvm

from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.launching.memory import libc
from dnncanon.gpu.emulator.machine import fibers

__all__ = ["install_fault_handler"]

_SA_SIGINFO, _SA_ONSTACK, _SA_NODEFER = 4, 0x08000000, 0x40000000
_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)


class _Action(ctypes.Structure):
    """struct sigaction of glibc on x86-64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_previous = {number: _Action() for number in _SIGNALS}


@cache
def _handler() -> int:
    """void handler(int, siginfo *, void *): handle, or restore the previous action, under which
    the faulting instruction then runs again."""
    table = ctypes.addressof(_previous[signal.SIGSEGV])
    other = ctypes.addressof(_previous[signal.SIGFPE])
    bus = ctypes.addressof(_previous[signal.SIGBUS])
    text = (
        f"declare i32 @{fibers.handle_fault.symbol}(i32, ptr, ptr)\n"
        "declare i32 @sigaction(i32, ptr, ptr)\n"
        "define void @emu.signal(i32 %number, ptr %info, ptr %context) nounwind {\n"
        f"  %ours = call i32 @{fibers.handle_fault.symbol}(i32 %number, ptr %info, ptr %context)\n"
        "  %q = icmp ne i32 %ours, 0\n  br i1 %q, label %done, label %back\n"
        "back:\n"
        f"  %fpe = icmp eq i32 %number, {int(signal.SIGFPE)}\n"
        f"  %bus = icmp eq i32 %number, {int(signal.SIGBUS)}\n"
        f"  %a = select i1 %fpe, i64 {other}, i64 {table}\n"
        f"  %b = select i1 %bus, i64 {bus}, i64 %a\n"
        "  %p = inttoptr i64 %b to ptr\n"
        "  %r = call i32 @sigaction(i32 %number, ptr %p, ptr null)\n  ret void\n"
        "done:\n  ret void\n}\n"
    )
    with engine.lock:
        engine.runtime_address(fibers.run)
        module = engine.parse(engine.header() + text)
        _keep.append(llvm.create_mcjit_compiler(module, engine.target_machine()))
        _keep[0].finalize_object()
        return int(_keep[0].get_function_address("emu.signal"))


_keep: list[llvm.ExecutionEngine] = []


def install_fault_handler() -> None:
    """Make sure that our handler is the current one; cheap when it already is."""
    wanted = _handler()
    current = _Action()
    for number in _SIGNALS:
        libc.sigaction(int(number), None, ctypes.byref(current))
        if current.handler == wanted:
            continue
        _previous[number].handler = current.handler
        _previous[number].mask = current.mask
        _previous[number].flags = current.flags
        _previous[number].restorer = current.restorer
        action = _Action(handler=wanted, flags=_SA_SIGINFO | _SA_ONSTACK | _SA_NODEFER)
        libc.sigaction(int(number), ctypes.byref(action), None)
