"""Compilation: a kernel and its argument types to machine code for one CUDA thread.

The kernel's module holds the lowered kernel and, of the rest, only what it needs: libdevice
functions, NVVM intrinsics, Numba's atomics, wrappers of inline PTX, and the inlined front of the
run time. `emu.kernel(Thread *)` unpacks the arguments and calls the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dnncanon.gpu.emulator.compiler import counting, engine, libdevice, nvvm
from dnncanon.gpu.emulator.compiler.acquire import acquire, atomic_definitions
from dnncanon.gpu.emulator.compiler.cache import remembered
from dnncanon.gpu.emulator.compiler.fingerprint import Unfamiliar, fingerprint, identity
from dnncanon.gpu.emulator.compiler.lowering import Lowered, Lowering, SharedArray, lower
from dnncanon.gpu.emulator.compiler.shims import shim_definitions
from dnncanon.gpu.emulator.errors import UnsupportedKernel
from dnncanon.gpu.emulator.instructions import wgmma as wgmma_ops
from dnncanon.gpu.emulator.instructions.table import Instruction, Scope, find, wrapper
from dnncanon.gpu.emulator.machine import access, checks, collectives, fibers, findings
from dnncanon.gpu.emulator.machine.state import Block, Thread
from dnncanon.gpu.emulator.native import NativeFunction, Type, module_text, ptr

__all__ = ["Compiled", "Program", "compile_kernel"]

_RENDEZVOUS = {Scope.WARP: collectives.warp_sync, Scope.WARPGROUP: wgmma_ops.warpgroup_sync}
_PAIR = Type("pair", "{ i32, i1 }", "v", 0)
_results = NativeFunction(
    "emu.results",
    [("thread", ptr(Thread))],
    _PAIR,
    text="define { i32, i1 } @emu.results(ptr %thread) alwaysinline nounwind {\n"
    f"  %p = getelementptr i8, ptr %thread, i64 {Thread.offset('results')}\n"
    "  %v = load i32, ptr %p\n  %q = getelementptr i8, ptr %p, i64 4\n  %w = load i32, ptr %q\n"
    "  %f = icmp ne i32 %w, 0\n  %r = insertvalue { i32, i1 } undef, i32 %v, 0\n"
    "  %s = insertvalue { i32, i1 } %r, i1 %f, 1\n  ret { i32, i1 } %s\n}",
)
_PRINT = """
declare i32 @vprintf(ptr, ptr)
define internal i32 @emu.vprintf(ptr %format, ptr %values) noinline nounwind {
  %list = alloca { i32, i32, ptr, ptr }, align 16
  store i32 48, ptr %list
  %p1 = getelementptr i8, ptr %list, i64 4
  store i32 304, ptr %p1
  %p2 = getelementptr i8, ptr %list, i64 8
  store ptr %values, ptr %p2
  %p3 = getelementptr i8, ptr %list, i64 16
  store ptr null, ptr %p3
  %r = call i32 @vprintf(ptr %format, ptr %list)
  ret i32 %r
}
"""
"""CUDA's vprintf takes a packed buffer, libc's a va_list: build one whose registers are used up."""


def _front() -> dict[str, NativeFunction]:
    """Functions that lowered kernels call by name."""
    modules = (collectives, fibers, findings, checks, counting, access)
    functions = [f for m in modules for f in vars(m).values() if isinstance(f, NativeFunction)]
    return {f.symbol: f for f in [*functions, _results]}


@dataclass
class Program:
    """A kernel as machine code, and what launching it needs to know: data that any process can use."""

    name: str
    parameters: list[str]
    sites: list[str]
    shared: list[SharedArray]
    static_bytes: int
    dynamic_offset: int
    uses_dynamic: bool
    fibers: bool
    cooperative: bool
    syncs_grid: bool
    stack_bytes: int
    globals: dict[str, int]
    uninstrumented: list[str]
    blocks: list[dict[str, Counter[str]]]
    """Of each basic block: source line -> kind of instruction -> how many (profile mode)."""
    ptx: dict[str, str] | None
    """The instructions of the table that it executes, by their text, and what they were; None if the
    code cannot be used by another process."""
    code: bytes
    """An object file."""


@dataclass
class Compiled(Program):
    """A program in memory."""

    loaded: engine.Loaded
    kernel: int
    """The address of `emu.kernel`."""
    cost: float | None = None
    """Seconds per CUDA thread in the last launch."""

    def global_address(self, name: str) -> int:
        """Where a global variable of the kernel's module lies."""
        return int(self.loaded.engine.get_global_value_address(name))


def compile_kernel(
    function: Callable[..., Any],
    argument_types: tuple[Any, ...],
    *,
    fastmath: bool = False,
    variety: type[Lowering] = Lowering,
) -> Compiled:
    """Compile `function`, or take it from the cache; `variety` is the lowering of the wanted mode."""
    program = remembered(
        lambda: fingerprint(function, argument_types, fastmath, f"{variety}"),
        lambda: _make(function, argument_types, fastmath, variety),
        _is_valid,
    )
    with engine.lock:
        loaded = engine.load(program.code)
        return Compiled(**vars(program), loaded=loaded, kernel=loaded.address("emu.kernel"))


def _make(
    function: Callable[..., Any],
    argument_types: tuple[Any, ...],
    fastmath: bool,
    variety: type[Lowering],
) -> Program:
    source = acquire(function, argument_types, fastmath=fastmath)
    with engine.lock:
        lowered, step = lower(source, variety)
        text = _module(lowered, step, fastmath)
        module = engine.parse(text)
        engine.optimise(module, 3, vectorise=True)
        code = engine.object_code(module)
    return Program(
        name=lowered.name,
        parameters=lowered.parameters,
        sites=lowered.sites,
        shared=lowered.shared,
        static_bytes=lowered.static_bytes,
        dynamic_offset=lowered.dynamic_offset,
        uses_dynamic=lowered.uses_dynamic,
        fibers=lowered.fibers,
        cooperative=lowered.cooperative,
        syncs_grid="emu.grid_sync" in lowered.called,
        stack_bytes=lowered.stack_bytes + _native_stack(text),
        globals=step.globals,
        uninstrumented=step.uninstrumented,
        blocks=step.blocks,
        ptx=_ptx(lowered.instructions.values(), text),
        code=code,
    )


_ADDRESS = re.compile(r"\binttoptr \(i64 (?!0\b)")


def _ptx(instructions: Iterable[Instruction], text: str) -> dict[str, str] | None:
    if _ADDRESS.search(text):  # a place in this process
        return None
    try:
        return {entry.text: identity(entry) for entry in instructions}
    except Unfamiliar:
        return None


def _is_valid(program: Program) -> bool:
    """Whether it may be kept, and used: its instructions do what they did when it was compiled."""
    if program.ptx is None:
        return False
    try:
        return all(identity(find(text)) == was for text, was in program.ptx.items())
    except (UnsupportedKernel, Unfamiliar):
        return False


def _module(lowered: Lowered, step: Lowering, fastmath: bool) -> str:
    body = lowered.text
    parts = []
    if "vprintf" in lowered.called:
        body = re.sub(r'@"?vprintf"?\(', "@emu.vprintf(", body)
        parts.append(_PRINT)
    parts.append(atomic_definitions(lowered.called))
    parts.append(shim_definitions(body))
    device = libdevice.closure(
        {n for n in lowered.called if n.startswith("__nv_")}, flush_subnormals=fastmath
    )
    instructions = dict(lowered.instructions)
    parts.append(_replace_inline_ptx(device, instructions))
    parts += [wrapper(entry, symbol) for symbol, entry in instructions.items()]
    parts.append(_native_parts(lowered, step, instructions))
    parts.append(_entry(lowered))
    text = "\n".join([body, *parts])
    text += "\n" + nvvm.definitions(set(re.findall(r"@(nv\.[\w.]+)\(", text)))
    _refuse_unknown(lowered, text)
    return engine.header() + _without_duplicates(text)


def _refuse_unknown(lowered: Lowered, text: str) -> None:
    """A kernel may call what the module defines, or LLVM's own intrinsics."""
    known = set(_DEFINED.findall(text)) | set(_DECLARED.findall(text)) | {"vprintf"}
    unknown = sorted(n for n in lowered.called - known if not n.startswith("llvm."))
    if unknown:
        raise UnsupportedKernel(
            f"{lowered.name} calls what the emulator does not implement: {', '.join(unknown)}"
        )


def _native_parts(lowered: Lowered, step: Lowering, instructions: dict[str, Instruction]) -> str:
    front = _front()
    roots = [front[name] for name in sorted(lowered.called) if name in front]
    roots += [entry.execute for entry in instructions.values()]
    scopes = {entry.scope for entry in instructions.values()}
    roots += [_RENDEZVOUS[scope] for scope in scopes if scope in _RENDEZVOUS]
    available = [*engine.runtime_functions(), *step.replaced_functions()]
    return module_text([*roots, *step.extra_functions()], available)


_INLINE_PTX = re.compile(r'call (?P<type>[^\n]*?) asm (?:sideeffect )?"(?P<text>[^"]*)", "[^"]*"\(')


def _replace_inline_ptx(text: str, instructions: dict[str, Instruction]) -> str:
    """libdevice's inline PTX, none of which needs the thread."""

    def replace(match: re.Match[str]) -> str:
        entry = find(match["text"])
        symbol = next((s for s, e in instructions.items() if e is entry), None)
        if symbol is None:
            symbol = f"emu.ptx.{len(instructions)}"
            instructions[symbol] = entry
        comma = ", " if entry.inputs else ""
        return f"call {match['type']} @{symbol}(ptr null, i32 0{comma}"

    return _INLINE_PTX.sub(replace, text)


def _entry(lowered: Lowered) -> str:
    """void emu.kernel(Thread *): load the arguments, 8 bytes apart, and call the kernel."""
    lines = [
        "define void @emu.kernel(ptr %thread) nounwind {",
        f"  %t = getelementptr i8, ptr %thread, i64 {Thread.offset('block')}",
        "  %block = load ptr, ptr %t",
        f"  %b = getelementptr i8, ptr %block, i64 {Block.offset('arguments')}",
        "  %arguments = load ptr, ptr %b",
    ]
    values = ["ptr %thread"]
    for i, kind in enumerate(lowered.parameters):
        lines.append(f"  %p{i} = getelementptr i8, ptr %arguments, i64 {8 * i}")
        lines.append(f"  %v{i} = load {kind}, ptr %p{i}")
        values.append(f"{kind} %v{i}")
    lines += [f"  call void @{lowered.symbol}({', '.join(values)})", "  ret void", "}"]
    return "\n".join(lines)


_NATIVE_ARRAY = re.compile(r"= alloca \[(\d+) x (\w+)\], align 64$", re.MULTILINE)
_ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "ptr": 8, "float": 4, "double": 8}


def _native_stack(text: str) -> int:
    """Bytes of the arrays that executors of instructions keep on a fiber's stack."""
    return sum(int(n) * _ELEMENT_BYTES[kind] for n, kind in _NATIVE_ARRAY.findall(text))


_DEFINED = re.compile(r'^define [^@\n]*@"?([\w.$]+)"?\(', re.MULTILINE)
_DECLARED = re.compile(r'^declare [^@\n]*@"?([\w.$]+)"?\(', re.MULTILINE)
_NAME = re.compile(r'@"?([\w.$]+)"?\(')


def _without_duplicates(text: str) -> str:
    """Drop declarations of what is defined or already declared."""
    seen = set(_DEFINED.findall(text))
    lines = []
    for line in text.split("\n"):
        if line.startswith("declare "):
            match = _NAME.search(line)
            if match is None:
                raise UnsupportedKernel(f"a declaration that cannot be read: {line}")
            if match.group(1) in seen:
                continue
            seen.add(match.group(1))
        lines.append(line)
    return "\n".join(lines)
