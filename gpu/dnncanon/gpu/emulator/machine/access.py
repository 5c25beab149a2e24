# mypy: ignore-errors
"""Run time: the hook through which emulated instructions touch memory.

In fast mode `touch` is the identity and vanishes. In check and profile mode the symbol is the
run-time module's, which examines the access (`checks.py`, `profile.py`) and returns the pointer,
or a harmless one if the access is bad.
"""

from __future__ import annotations

from dnncanon.gpu.emulator.machine.state import Thread
from dnncanon.gpu.emulator.native import NativeFunction, native, ptr, u8, u32

READ, WRITE, ATOMIC = 0, 1, 2
ASYNC = 4  # added to WRITE: the value is not there yet
ASYNC_PROXY = 8  # added: by TMA or wgmma, which see ordinary writes only after a proxy fence


@native("emu.touch", inline=True)
def touch(thread: ptr(Thread), place: ptr(u8), size: u32, site: u32, kind: u32) -> ptr(u8):
    return place


@native("emu.shared_pointer", inline=True)
def shared_pointer(thread: ptr(Thread), address: u32) -> ptr(u8):
    """The pointer for a 32-bit address in the shared window."""
    return thread.block.shared + address


FAST: list[NativeFunction] = [touch]
