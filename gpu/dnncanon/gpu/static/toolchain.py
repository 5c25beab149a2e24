"""The toolchain that needs no GPU: numba-cuda and libNVVM to LTO-IR, nvJitLink to a cubin, nvdisasm to SASS.

It is the way that a kernel takes to a real GPU as well: numba-cuda links LTO-IR by nvJitLink there too.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dnncanon.gpu.runtime.launching import Kernel
from dnncanon.gpu.static.sass import Program, read_json

Capability = tuple[int, int] | tuple[int, int, str]
"""(9, 0) is sm_90; (9, 0, "a") is sm_90a, with what only this architecture has."""

_OF_GRID_BARRIERS = "Unresolved extern function 'cudaCG"
"""What the linker says where a grid barrier's functions, which are the device runtime's, are missing."""

_PACKAGES = ("numba-cuda", "numba", "llvmlite", "cuda-bindings")


class ToolchainError(Exception):
    """A tool is missing, or refuses a kernel; the message is one sentence, or the tool's own log."""


@dataclass(frozen=True)
class Binary:
    """A kernel's cubin, and what ptxas says of it. ``stack_bytes`` are of a thread, spills included."""

    cubin: bytes
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    barriers: int


def architecture_name(capability: Capability) -> str:
    """As in sm_90a."""
    return "sm_" + "".join(map(str, capability))


def compile_kernel(kernel: Kernel, signature: tuple[Any, ...], capability: Capability) -> Binary:
    """Compile ``kernel`` for arguments of Numba types; nothing is run. Raises ToolchainError."""
    from cuda.bindings.nvvm import nvvmError
    from numba import cuda

    name = architecture_name(capability)
    try:
        with _stand_in(capability):
            code, _ = cuda.compile(
                kernel.function,
                signature,
                cc=capability,
                device=False,
                abi="numba",
                fastmath=kernel.fastmath,
                launch_bounds=kernel.launch_bounds,
                output="ltoir",
            )
    except nvvmError as error:
        raise ToolchainError(f"{name}: {error}") from error
    return _linked(bytes(code), name)


@contextmanager
def _stand_in(capability: Capability) -> Iterator[None]:
    """Let device functions compile where there is no device to ask for its capability.

    As :func:`~dnncanon.gpu.emulator.compiler.acquire.without_device`, but with what numba-cuda does on a
    GPU otherwise: no source lines, some of which libNVVM refuses.
    """
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    device = SimpleNamespace(compute_capability=capability[:2])
    dispatcher.get_current_device = lambda: device
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def _linked(ltoir: bytes, architecture: str) -> Binary:
    """With the device runtime too, where the kernel has a barrier of the whole grid."""
    try:
        return _link(ltoir, architecture)
    except ToolchainError as error:
        if _OF_GRID_BARRIERS not in str(error):
            raise
    from numba.cuda.cudadrv.libs import get_cudalib

    return _link(ltoir, architecture, get_cudalib("cudadevrt", static=True))


def _link(ltoir: bytes, architecture: str, library: str | None = None) -> Binary:
    from cuda.bindings import nvjitlink

    options = [f"-arch={architecture}", "-lto", "-verbose"]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), "kernel")
        if library is not None:
            nvjitlink.add_file(handle, nvjitlink.InputType.LIBRARY, library)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise ToolchainError(f"{architecture}: {error}\n{log.decode(errors='replace')}") from None
    finally:
        nvjitlink.destroy(handle)
    return _described(bytes(cubin), log.decode(errors="replace"))


def _described(cubin: bytes, log: str) -> Binary:
    """The figures in the log of ``ptxas -v``; a resource that is not used is not named there.

    Its lines are of the kernel; others are the linker's, of functions of libraries too.
    """
    of_kernel = "\n".join(line for line in log.splitlines() if line.startswith("ptxas"))

    def figure(words: str) -> int:
        found = re.findall(rf"(\d+) {words}", of_kernel)
        return int(found[-1]) if found else 0

    return Binary(
        cubin=cubin,
        registers=figure("registers"),
        stack_bytes=figure("bytes stack frame"),
        spill_store_bytes=figure("bytes spill stores"),
        spill_load_bytes=figure("bytes spill loads"),
        shared_bytes=figure("bytes smem"),
        barriers=figure("barriers"),
    )


def disassemble(cubin: bytes) -> Program:
    """The instructions of a cubin's one kernel. Raises ToolchainError without nvdisasm."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [str(nvdisasm()), "-json", file.name], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ToolchainError(f"nvdisasm: {done.stderr or done.stdout}")
    return read_json(done.stdout)


@cache
def nvdisasm() -> Path:
    """Where the disassembler is. Raises ToolchainError where it is not installed."""
    from cuda import pathfinder

    found = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise ToolchainError(
            "nvdisasm was not found; install the wheel nvidia-cuda-nvdisasm, of the CUDA toolkit's "
            "version (pip install dnncanon[static])"
        )
    return Path(found)


@cache
def versions() -> dict[str, str]:
    """Versions of all that makes the figures."""
    done = subprocess.run(
        [str(nvdisasm()), "--version"], capture_output=True, text=True, check=True
    )
    release = re.search(r"V([\d.]+)", done.stdout)
    tools = {"nvdisasm": release.group(1) if release else "unknown", "nvJitLink": _nvjitlink()}
    return {**{name: metadata.version(name) for name in _PACKAGES}, **tools}


def _nvjitlink() -> str:
    from cuda.bindings import nvjitlink

    return ".".join(map(str, nvjitlink.version()))
