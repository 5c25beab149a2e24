"""LLVM: parsing, optimising and loading modules, and the run-time module that all kernels share."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import sys
import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from dnncanon.gpu.emulator.compiler.cache import remembered
from dnncanon.gpu.emulator.compiler.fingerprint import machinery
from dnncanon.gpu.emulator.errors import UnsupportedKernel, UnsupportedPlatform
from dnncanon.gpu.emulator.machine import checks, collectives, fibers, findings, profiling
from dnncanon.gpu.emulator.native import NativeFunction, module_text

__all__ = [
    "Loaded",
    "header",
    "load",
    "lock",
    "object_code",
    "optimise",
    "parse",
    "runtime_address",
    "size_of",
]

lock = threading.RLock()
"""Held while LLVM compiles: llvmlite's pass managers share global state."""

_LIBRARY_CALLS = {
    "memcpy", "memset", "memmove", "malloc", "realloc", "free", "vprintf", "sigaltstack",
    "expf", "exp2f", "exp10f", "logf", "log2f", "log10f", "sinf", "cosf", "tanf", "tanhf", "powf",
    "exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "pow", "fmod",
    "fmodf", "fma", "fmaf", "sinhf", "coshf", "fflush",
}  # fmt: skip
"""What compiled code may take from libc and libm. Anything else must be defined, or is refused:
a CUDA function that happens to share its name with a libc function must not bind to it."""


@cache
def _initialise() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnsupportedPlatform(
            "the emulator runs on x86-64 Linux only; "
            f"this is {platform.machine()} {platform.system()}"
        )
    missing = [f for f in ("avx2", "fma", "f16c") if not llvm.get_host_cpu_features().get(f)]
    if missing:
        raise UnsupportedPlatform(f"the emulator needs a CPU with {', '.join(missing)}")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    llvm.load_library_permanently(ctypes.util.find_library("m") or "libm.so.6")


def target_machine() -> Any:
    _initialise()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


@cache
def _shared_machine() -> Any:
    return target_machine()


@cache
def header() -> str:
    """The lines every module begins with."""
    machine = _shared_machine()
    return f'target datalayout = "{machine.target_data}"\ntarget triple = "{machine.triple}"\n'


@cache
def size_of(type_text: str) -> int:
    """Bytes of an LLVM type given as text."""
    module = llvm.parse_assembly(f"{header()}@x = global {type_text} zeroinitializer")
    kind = module.get_global_variable("x").global_value_type
    return int(_shared_machine().target_data.get_abi_size(kind))


def parse(text: str) -> Any:
    """A verified module."""
    _initialise()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise UnsupportedKernel(f"the lowered IR is not valid: {error}") from error
    return module


def optimise(module: Any, level: int, *, vectorise: bool) -> None:
    """Run LLVM's standard passes at `level`, in place."""
    options = llvm.create_pipeline_tuning_options(level)
    options.loop_vectorization = vectorise
    options.slp_vectorization = vectorise
    options.loop_unrolling = vectorise
    builder = llvm.create_pass_builder(_shared_machine(), options)
    builder.getModulePassManager().run(module, builder)


def object_code(module: Any) -> bytes:
    """The machine code of a module as an object file, which `Loaded` takes in any process."""
    missing = [
        f.name
        for f in module.functions
        if f.is_declaration
        and not f.name.startswith(("llvm.", "emu."))
        and f.name not in _LIBRARY_CALLS
    ]
    if missing:
        raise UnsupportedKernel(
            "the emulator has no implementation of " + ", ".join(sorted(missing))
        )
    return bytes(_shared_machine().emit_object(module))


class Loaded:
    """Machine code that can be called, kept alive by this object."""

    def __init__(self, code: bytes) -> None:
        _initialise()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def address(self, symbol: str) -> int:
        return int(self.engine.get_function_address(symbol))


def load(code: bytes) -> Loaded:
    """Load an object file; run-time symbols resolve to the shared run-time module."""
    _runtime()
    return Loaded(code)


RUNTIME_ROOTS: list[NativeFunction] = [
    *fibers.ROOTS, *collectives.ROOTS, *findings.ROOTS, *checks.ROOTS, *profiling.ROOTS
]  # fmt: skip


def runtime_functions() -> list[NativeFunction]:
    """The native functions that live in the shared module: kernels only declare them."""
    return list(RUNTIME_ROOTS)


def _runtime_name() -> str:
    return f"runtime-{machinery()}"


def _compile_runtime() -> bytes:
    module = parse(header() + module_text(RUNTIME_ROOTS, linkage=""))
    roots = {f.symbol for f in RUNTIME_ROOTS}
    for function in module.functions:
        if not function.is_declaration and function.name not in roots:
            function.linkage = "internal"
    optimise(module, 2, vectorise=False)
    return object_code(module)


@cache
def _runtime() -> Loaded:
    """Load the run-time module, once per process, and publish its functions to later modules."""
    with lock:
        loaded = Loaded(remembered(_runtime_name, _compile_runtime))
        for function in RUNTIME_ROOTS:
            llvm.add_symbol(function.symbol, loaded.address(function.symbol))
        return loaded


def runtime_address(function: NativeFunction) -> int:
    """Where a function of the run-time module lies."""
    return _runtime().address(function.symbol)
