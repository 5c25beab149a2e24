"""Fingerprints: a digest of all that decides which machine code a kernel becomes.

Numba takes what a kernel refers to for constants: its code, what its closure holds, the globals it
reads, and the same of every function it calls. All of that is walked here, *as it is in memory*:
however a function was changed, by editing, by patching or by a mutant, its digest is another.
Libraries (Numba, NumPy, Python itself) count by their versions, the emulator by its sources.

The walk knows a closed list of kinds of objects. Whatever is none of them is `Unfamiliar`: a kernel
that refers to it has no fingerprint and is never cached. All parts are written with their lengths, so
that two different kernels cannot be written the same way.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, EnumType
from functools import cache
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from dnncanon.gpu.emulator.instructions.table import Instruction
from dnncanon.gpu.emulator.native import NativeFunction

__all__ = ["Unfamiliar", "fingerprint", "identity", "machinery"]


class Unfamiliar(Exception):
    """What a kernel refers to and no fingerprint can hold; the message names it."""


def fingerprint(
    function: Callable[..., Any], argument_types: Iterable[Any], *options: str | bool
) -> str:
    """The digest of a kernel, its argument types and its options of compilation, in hexadecimal.

    Raises Unfamiliar where the digest could be the same although the machine code is not.
    """
    walk = _Walk()
    walk.put("kernel", machinery(), *map(repr, options))
    walk.value(tuple(argument_types))
    walk.function(function)
    return walk.hexdigest()


# --------------------------------------------------------------------------------------------------
# What compiles
# --------------------------------------------------------------------------------------------------
_PACKAGE = Path(__file__).parents[1]
_NAME = __name__.removesuffix(".compiler.fingerprint")
_LOADED = time.time()
_LOADING_SECONDS = 10.0
"""Within which the package's other modules have been read, generously."""
_DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "ml_dtypes")


def machinery() -> str:
    """The digest of what compiles: versions, Numba's settings, the CPU, libdevice, the emulator.

    Raises Unfamiliar unless the emulator's source files are what this process has loaded.
    """
    _check_sources()
    settings = [
        f"{name} = {value!r}"
        for config in ("numba.core.config", "numba.cuda.core.config")
        for name, value in sorted(vars(sys.modules.get(config, object)).items())
        if name.isupper()
    ]
    return hashlib.sha256("\n".join([_unchanging(), *settings]).encode()).hexdigest()


@cache
def _sources() -> list[Path]:
    return sorted(_PACKAGE.rglob("*.py"))


def _check_sources() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(_NAME) and type(module.__loader__) is not SourceFileLoader:
            raise Unfamiliar(f"{name}, which was not loaded from its file as that stands")
    youngest = max(path.stat().st_mtime for path in _sources())
    if youngest > _LOADED - _LOADING_SECONDS:
        raise Unfamiliar("sources of the emulator that may have changed since they were loaded")


@cache
def _unchanging() -> str:
    """What stays as it is for as long as the process runs."""
    from numba.cuda.cudadrv.libs import open_libdevice

    texts = [
        sys.version,
        *(f"{name} {metadata.version(name)}" for name in _DISTRIBUTIONS),
        repr(llvm.llvm_version_info),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    ]
    walk = _Walk()
    walk.put("machinery", *texts, open_libdevice())
    for path in _sources():
        walk.put("source", str(path.relative_to(_PACKAGE)), path.read_bytes())
    return walk.hexdigest()


# --------------------------------------------------------------------------------------------------
# What is compiled
# --------------------------------------------------------------------------------------------------
_BY_NAME = {"numba", "llvmlite", "numpy", "ml_dtypes", *sys.stdlib_module_names}
"""Packages whose objects their names suffice for: `machinery` holds the versions."""


class _Walk:
    """A digest in the making. Functions met again are written as the number of their first visit."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._met: dict[tuple[int, ...], int] = {}
        self.in_kernel = True
        """Whether what is walked is compiled by Numba, or runs while it compiles."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def put(self, kind: str, *parts: str | bytes) -> None:
        for part in (kind, str(len(parts)), *parts):
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self._hash.update(b"%d:" % len(data) + data)

    def again(self, *objects: Any) -> bool:
        """Whether these have been visited before; says so in the digest."""
        key = tuple(map(id, objects))  # all of them live as long as the kernel does
        if key in self._met:
            self.put("again", str(self._met[key]))
            return True
        self._met[key] = len(self._met)
        return False

    def value(self, value: Any, attributes: frozenset[str] = frozenset()) -> None:
        """Any object; of a module, only what has one of the names in `attributes`."""
        for kinds, write in _kinds():
            if isinstance(value, kinds):
                write(self, value, attributes)
                return
        name = _library_name(value)
        if name is None:
            raise Unfamiliar(f"{value!r}, of {type(value)}")
        self.put("of a library", name)

    def function(self, function: Any) -> None:
        """A function that Numba compiles, or that runs while it does."""
        if not isinstance(function, FunctionType):
            raise Unfamiliar(f"{function!r}, which is no Python function")
        if self.again(function):
            return
        if vars(function).keys() & {"__wrapped__", "__signature__"}:
            raise Unfamiliar(f"{function!r}, whose signature is another function's")
        self.put("function", function.__name__)
        self.value(function.__code__)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        read, attributes = _names(function.__code__)
        for cell in function.__closure__ or ():
            self.value(_contents(cell), attributes)
        for name in read:
            self.put("global", name)
            if name in function.__globals__:
                self.value(function.__globals__[name], attributes)
            else:
                self.put("builtin" if hasattr(builtins, name) else "absent")

    @contextmanager
    def compiled_by_numba(self, is_it: bool) -> Iterator[None]:
        before, self.in_kernel = self.in_kernel, is_it
        try:
            yield
        finally:
            self.in_kernel = before


Write = Callable[[_Walk, Any, frozenset[str]], None]


def _write_plain(walk: _Walk, value: Any, _: frozenset[str]) -> None:
    if type(value) not in _PLAIN:
        raise Unfamiliar(f"{value!r}, of a subclass of a plain type")
    walk.put("plain", type(value).__name__, repr(value))


def _write_float(walk: _Walk, value: Any, _: frozenset[str]) -> None:
    number = complex(value)
    walk.put(type(value).__name__, struct.pack("dd", number.real, number.imag))


def _write_sequence(walk: _Walk, value: Any, attributes: frozenset[str]) -> None:
    fields = getattr(value, "_fields", ())
    walk.put("sequence", type(value).__name__, str(len(value)), *fields)
    for item in value:
        walk.value(item, attributes)


def _write_mapping(walk: _Walk, value: Any, attributes: frozenset[str]) -> None:
    walk.put("mapping", str(len(value)))
    for key, item in value.items():
        walk.value(key)
        walk.value(item, attributes)


def _write_set(walk: _Walk, value: Any, _: frozenset[str]) -> None:
    digests = []
    for item in value:
        one = _Walk()
        one.value(item)
        digests.append(one.hexdigest())
    walk.put("set", *sorted(digests))


def _write_function(walk: _Walk, function: Any, _: frozenset[str]) -> None:
    name = _library_name(function)
    if name is not None:
        walk.put("of a library", name)
    elif walk.in_kernel:
        raise Unfamiliar(f"{function!r}, for which some code has told Numba what to do")
    else:
        walk.function(function)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise Unfamiliar("a variable of a closure that has no value yet") from None


def _write_code(walk: _Walk, code: Any, _: frozenset[str]) -> None:
    walk.put(
        "code", code.co_name, code.co_code, code.co_linetable, code.co_exceptiontable,
        os.path.basename(code.co_filename),  # of a path, kernels and reports hold no more
    )  # fmt: skip
    numbers = (
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_firstlineno,
    )  # fmt: skip
    for part in (numbers, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        walk.value(part)
    walk.value(code.co_consts)


@cache
def _names(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the globals that a piece of code reads, and those it may use as attributes."""
    read: dict[str, None] = {}
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read[name] = None
        elif instruction.opname == "IMPORT_NAME" and name.partition(".")[0] not in _BY_NAME:
            raise Unfamiliar(f"an import of {name or '.'} within {code.co_name}")
        elif isinstance(name, str):  # an attribute's name, or a constant that getattr might take
            attributes.add(name)
        elif isinstance(name, CodeType):
            inner = _names(name)
            read |= dict.fromkeys(inner[0])
            attributes |= inner[1]
    return tuple(read), frozenset(attributes)


def _write_module(walk: _Walk, module: Any, attributes: frozenset[str]) -> None:
    if module.__name__.partition(".")[0] in _BY_NAME:
        walk.put("of a library", module.__name__)
        return
    if walk.again(module, attributes):
        return
    walk.put("module", module.__name__)
    for name in sorted(attributes & vars(module).keys()):
        walk.put("attribute", name)
        walk.value(vars(module)[name], attributes)


def _write_class(walk: _Walk, kind: Any, attributes: frozenset[str]) -> None:
    name = _library_name(kind)
    if name is not None:
        walk.put("of a library", name)
    elif isinstance(kind, EnumType):
        walk.put("enumeration", kind.__name__)
        members: dict[str, Enum] = dict(kind.__members__)
        walk.value({name: member.value for name, member in members.items()})
    else:
        raise Unfamiliar(f"the class {kind!r}")


def _write_member(walk: _Walk, member: Any, _: frozenset[str]) -> None:
    walk.put("member", type(member).__name__, member.name)
    walk.value(member.value)


def _write_array(walk: _Walk, array: Any, _: frozenset[str]) -> None:
    if array.dtype.hasobject:
        raise Unfamiliar("an array of Python objects")
    walk.put("array", array.tobytes("A"), repr((array.shape, array.strides, array.flags.writeable)))
    walk.value(array.dtype)


def _write_scalar(walk: _Walk, scalar: Any, _: frozenset[str]) -> None:
    walk.put("scalar", scalar.tobytes())
    walk.value(scalar.dtype)


def _write_dtype(walk: _Walk, dtype: Any, _: frozenset[str]) -> None:
    if dtype.fields is not None or dtype.subdtype is not None:
        raise Unfamiliar(f"the dtype {dtype}")
    walk.put("dtype", dtype.name, dtype.str)


def _write_intrinsic(walk: _Walk, intrinsic: Any, _: frozenset[str]) -> None:
    walk.put("intrinsic", intrinsic._name)
    with walk.compiled_by_numba(False):
        walk.value(intrinsic._prefer_literal)
        walk.value(intrinsic._ctor_kwargs)
        walk.function(intrinsic._defn)


def _write_dispatcher(walk: _Walk, dispatcher: Any, _: frozenset[str]) -> None:
    if dispatcher.targetoptions.get("link"):
        raise Unfamiliar(f"the files that {dispatcher!r} links")
    walk.put("dispatcher", type(dispatcher).__name__)
    with walk.compiled_by_numba(True):
        walk.value(dispatcher.targetoptions)
        walk.function(dispatcher.py_func)


def _write_cached(walk: _Walk, function: Any, attributes: frozenset[str]) -> None:
    walk.put("cached")
    walk.value(function.__wrapped__, attributes)


def _write_instruction(walk: _Walk, entry: Any, _: frozenset[str]) -> None:
    walk.put("instruction", identity(entry))


def identity(entry: Instruction) -> str:
    """All that a kernel's code takes from an entry of the table of instructions."""
    fields = (
        entry.text, entry.outputs, entry.inputs, entry.scope.name, entry.volatile, entry.memory,
        entry.tied, entry.blocks, entry.spins,
    )  # fmt: skip
    return repr((*fields, _symbol(entry.execute)))


def _symbol(function: NativeFunction) -> str:
    """A native function's name, which no other of the emulator's has, or its text."""
    if function.python is None:
        return repr(
            (function.symbol, function.text, [_symbol(called) for called in function.calls])
        )
    if not function.python.__module__.startswith(f"{_NAME}."):
        raise Unfamiliar(f"{function.symbol}, a native function of {function.python.__module__}")
    return function.symbol


def _write_llvm_type(walk: _Walk, kind: Any, _: frozenset[str]) -> None:
    walk.put("LLVM type", type(kind).__name__, str(kind))


def _write_numba_type(walk: _Walk, kind: Any, _: frozenset[str]) -> None:
    """Types whose names tell all there is to them."""
    from numba.cuda import types

    inner: tuple[Any, ...] = ()
    if isinstance(kind, types.Array):
        inner = (kind.dtype,)
    elif isinstance(kind, types.NumberClass):
        inner = (kind.instance_type,)
    elif isinstance(kind, types.BaseAnonymousTuple):
        inner = tuple(kind)
    elif not isinstance(kind, types.Number | types.Boolean | types.NoneType | types.Record):
        raise Unfamiliar(f"the Numba type {kind!r}")
    walk.put("Numba type", type(kind).__name__, str(kind), str(len(inner)))
    for part in inner:
        walk.value(part)


def _library_name(value: Any) -> str | None:
    """module:name of what a library calls so; None for everything else."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    if module.partition(".")[0] not in _BY_NAME:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is value else None


_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis))


@cache
def _kinds() -> tuple[tuple[Any, Write], ...]:
    """How to write what; the first that fits. NumPy's numbers and members of enumerations may also be
    Python's numbers, and so come before them."""
    from numba.core import extending as numba_extending
    from numba.cuda import dispatcher, extending, types

    intrinsics = {getattr(m, "_Intrinsic", None) for m in (extending, numba_extending)} - {None}
    return (
        (Enum, _write_member),
        (np.generic, _write_scalar),
        ((float, complex), _write_float),
        (_PLAIN, _write_plain),
        ((tuple, list), _write_sequence),
        (dict, _write_mapping),
        ((set, frozenset), _write_set),
        (CodeType, _write_code),
        (FunctionType, _write_function),
        (ModuleType, _write_module),
        (type, _write_class),
        (functools._lru_cache_wrapper, _write_cached),
        (np.ndarray, _write_array),
        (np.dtype, _write_dtype),
        (types.Type, _write_numba_type),
        (dispatcher.CUDADispatcher, _write_dispatcher),
        (tuple(intrinsics), _write_intrinsic),
        (Instruction, _write_instruction),
        (ir.Type, _write_llvm_type),
    )
