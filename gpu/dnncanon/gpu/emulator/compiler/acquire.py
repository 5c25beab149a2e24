"""Acquisition: the LLVM IR that numba-cuda makes of a kernel.

This is the one place that touches numba-cuda's private interface. It relies on
`numba.cuda.compiler._compile_pyfunc_with_fixup` (compiles without a driver), on the library it
returns (`llvm_strs`, `_entry_name`), and on `CUDADispatcher.compile_device`, which asks the
current device for its compute capability. `gpu/tests/emulator/test_acquire.py` pins all of it.
Versions: `SUPPORTED`; others are refused, because their IR has not been looked at.
"""

from __future__ import annotations

import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from dnncanon.gpu.emulator.compiler.opaque import to_opaque
from dnncanon.gpu.emulator.errors import UnsupportedPlatform

__all__ = [
    "COMPUTE_CAPABILITY",
    "SUPPORTED",
    "KernelSource",
    "acquire",
    "atomic_definitions",
    "check_version",
    "without_device",
]

SUPPORTED = ((0, 22), (0, 31))
"""numba-cuda versions from the first up to, not including, the second."""

COMPUTE_CAPABILITY = (9, 0)

_lock = threading.RLock()


@dataclass(frozen=True)
class KernelSource:
    """A kernel's modules as LLVM IR with opaque pointers: its own and its device functions'."""

    name: str
    entry: str
    modules: list[str]


def check_version() -> None:
    """Refuse a numba-cuda outside the supported range."""
    text = metadata.version("numba-cuda")
    version = tuple(int(p) for p in text.split(".")[:2])
    if not SUPPORTED[0] <= version < SUPPORTED[1]:
        low, high = (".".join(map(str, v)) for v in SUPPORTED)
        raise UnsupportedPlatform(
            f"the emulator reads the IR of numba-cuda >={low},<{high}; {text} is installed"
        )


def acquire(
    function: Callable[..., Any], argument_types: tuple[Any, ...], *, fastmath: bool
) -> KernelSource:
    """Compile `function` for `argument_types` (Numba types) up to LLVM IR; no GPU is needed."""
    from numba.core import config

    if config.ENABLE_CUDASIM:
        raise UnsupportedPlatform("NUMBA_ENABLE_CUDASIM replaces the compiler the emulator needs")
    from numba.cuda import compiler, types

    check_version()
    signature = types.void(*argument_types)
    with _lock, without_device(), _without_collections(), _remembering():
        library, _ = compiler._compile_pyfunc_with_fixup(
            function,
            signature,
            device=False,
            cc=COMPUTE_CAPABILITY,
            abi="numba",
            lineinfo=True,
            fastmath=fastmath,
            debug=False,
            opt=True,
        )
        texts = list(library.llvm_strs)
    return KernelSource(
        name=getattr(function, "__name__", "kernel"),
        entry=library._entry_name,
        modules=[to_opaque(_one_line_each(text)) for text in texts],
    )


def _one_line_each(text: str) -> str:
    """Some versions of llvmlite break the line before the operands of inline assembly."""
    return text.replace('"\n(', '"(')


_ATOMIC = re.compile(r"___numba_atomic_(?P<kind>[a-z0-9]+?)_(?P<operation>\w+)")
_ATOMIC_KINDS = {"float": "float", "double": "double", "u64": "i64", "i32": "i32", "i64": "i64"}


def atomic_definitions(called: set[str]) -> str:
    """LLVM IR of Numba's atomic helpers among `called`, from Numba's own templates."""
    from numba.cuda.cudadrv import nvvm

    declarations = []
    definitions = []
    for name in sorted(called):
        match = _ATOMIC.fullmatch(name)
        if match is None:
            continue
        width = re.search(r"_i(\d+)_cas_hack$", name)
        if width:
            kind = f"i{width.group(1)}"
            definitions.append(
                f"define internal {kind} @{name}(ptr %p, {kind} %old, {kind} %new) alwaysinline "
                f"nounwind {{\n  %x = cmpxchg ptr %p, {kind} %old, {kind} %new monotonic monotonic\n"
                f"  %r = extractvalue {{ {kind}, i1 }} %x, 0\n  ret {kind} %r\n}}"
            )
        else:
            kind = _ATOMIC_KINDS[match["kind"]]
            declarations.append(f'declare {kind} @"{name}"({kind}* %".1", {kind} %".2")')
    text = to_opaque(nvvm.llvm_replace("\n".join(declarations))) if declarations else ""
    return "\n".join([text, *definitions])


@contextmanager
def without_device() -> Iterator[None]:
    """Let device functions compile without a device, with source lines; undone afterwards."""
    from numba.cuda import dispatcher

    original_device = dispatcher.get_current_device
    original_compile = dispatcher.CUDADispatcher.compile_device

    def compile_device(self: Any, *arguments: Any, **options: Any) -> Any:
        before = self.targetoptions
        self.targetoptions = {**before, "lineinfo": True}
        try:
            return original_compile(self, *arguments, **options)
        finally:
            self.targetoptions = before

    dispatcher.get_current_device = _StandIn
    dispatcher.CUDADispatcher.compile_device = compile_device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about line numbers of generated functions
            yield
    finally:
        dispatcher.get_current_device = original_device
        dispatcher.CUDADispatcher.compile_device = original_compile


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collections: of the objects that Numba makes, by the hundred thousand, nearly all stay
    to the end. Softmax's 27 kernels took 27.1 seconds of CPU time instead of 30.0."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _remembering() -> Iterator[None]:
    """Let llvmlite and numba-cuda remember what they work out again for every instruction: the size of a
    type, for which a module is printed and parsed; the hash of a source line's metadata; whether two
    settings are the same. Five calls that compile took 11.2 seconds of CPU time instead of 12.5."""
    from llvmlite import ir
    from llvmlite.ir import values
    from numba.cuda.core.targetconfig import TargetConfig

    originals = [
        *((ir.Type, name, _once(getattr(ir.Type, name))) for name in _LAYOUT_QUESTIONS),
        (values.DIValue, "__hash__", _hash_once(values.DIValue.__hash__)),
        (TargetConfig, "__eq__", _same_settings(TargetConfig.__eq__)),
    ]
    with ExitStack() as undo:
        for owner, name, replacement in originals:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


_LAYOUT_QUESTIONS = ("get_abi_size", "get_abi_alignment", "get_element_offset")

Method = Callable[..., Any]


def _once(method: Method) -> Method:
    """Of a type, by how it is written: numba-cuda has one data layout."""
    known: dict[tuple[str, ...], Any] = {}

    def remembered(self: Any, target_data: Any, *arguments: Any) -> Any:
        key = (str(self), *map(str, arguments))
        if key not in known:
            known[key] = method(self, target_data, *arguments)
        return known[key]

    return remembered


def _hash_once(method: Method) -> Method:
    def remembered(self: Any) -> int:
        found = vars(self).get("_dnncanon_hash")
        if found is None:
            found = self._dnncanon_hash = method(self)
        return int(found)

    return remembered


def _same_settings(method: Method) -> Method:
    def compared(self: Any, other: Any) -> Any:
        if type(self) is type(other) and self._values == other._values:
            return True
        return method(self, other)

    return compared


class _StandIn:
    """Stands where numba-cuda wants a device and asks only for this."""

    compute_capability = COMPUTE_CAPABILITY
