"""Native functions: the decorator that makes them, and the modules that they are put into."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dnncanon.gpu.emulator.native.types import Type, void

if TYPE_CHECKING:
    from dnncanon.gpu.emulator.native.compiler import Compiler

__all__ = ["NativeFunction", "Operation", "Value", "external", "module_text", "native", "scope_of"]


@dataclass(eq=False)
class NativeFunction:
    """A function of the run time; `ir()` is its LLVM IR, `calls` the native functions it needs."""

    symbol: str
    parameters: list[tuple[str, Type]]
    result: Type
    python: Callable[..., Any] | None = None
    attributes: str = "nounwind"
    text: str | None = None
    """LLVM IR written by hand instead of a Python body."""
    calls: list[NativeFunction] = field(default_factory=list)
    intrinsics: set[str] = field(default_factory=set)
    _ir: str | None = None

    @property
    def declaration(self) -> str:
        types = ", ".join(t.llvm for _, t in self.parameters)
        return f"declare {self.result.llvm} @{self.symbol}({types}) nounwind"

    def ir(self) -> str:
        """The definition; compiled at the first call."""
        if self._ir is None:
            from dnncanon.gpu.emulator.native.compiler import Compiler

            self._ir = self.text if self.text is not None else Compiler(self).run()
        return self._ir

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.symbol} is native code: only native functions can call it")


def native(
    symbol: str | None = None, *, inline: bool = False, attributes: str = ""
) -> Callable[[Callable[..., Any]], NativeFunction]:
    """Decorator: the annotated Python function becomes a NativeFunction."""

    def wrap(python: Callable[..., Any]) -> NativeFunction:
        scope = scope_of(python)
        names = inspect.signature(python).parameters
        annotations = {
            name: eval(text, scope) if isinstance(text, str) else text
            for name, text in python.__annotations__.items()
        }
        return NativeFunction(
            symbol=symbol or f"emu.{python.__name__}",
            parameters=[(name, annotations[name]) for name in names],
            result=annotations.get("return") or void,
            python=python,
            attributes=f"{'alwaysinline ' if inline else ''}nounwind {attributes}".strip(),
        )

    return wrap


def external(symbol: str, result: Type, *parameters: Type) -> NativeFunction:
    """A function that some other module or library defines."""
    named = [(f"a{i}", t) for i, t in enumerate(parameters)]
    return NativeFunction(symbol, named, result, text="")


def module_text(
    roots: Iterable[NativeFunction],
    available: Iterable[NativeFunction] = (),
    linkage: str = "internal",
) -> str:
    """LLVM IR defining `roots` and all they call; functions in `available` are only declared."""
    known = set(available)
    seen: dict[NativeFunction, None] = {}
    pending = list(roots)
    while pending:
        function = pending.pop()
        if function in seen:
            continue
        seen[function] = None
        if function not in known:
            function.ir()
            pending.extend(function.calls)
    parts: list[str] = []
    intrinsics: set[str] = set()
    for function in seen:
        if function in known or function.text == "":
            parts.append(function.declaration)
        else:
            parts.append(function.ir().replace("define ", f"define {linkage} ", 1))
            intrinsics |= function.intrinsics
    return "\n".join([*parts, *sorted(intrinsics)]) + "\n"


def scope_of(python: Callable[..., Any]) -> dict[str, Any]:
    cells = python.__closure__ or ()
    free = {n: c.cell_contents for n, c in zip(python.__code__.co_freevars, cells, strict=True)}
    return {**python.__globals__, **free}


@dataclass(frozen=True, eq=False)
class Operation:
    """Something a native function calls that is not a native function: emit(compiler, node)."""

    name: str
    emit: Callable[[Compiler, ast.Call], Value]

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name} exists only inside native functions")


@dataclass(frozen=True)
class Value:
    """A typed SSA value, or a literal whose type is still open (`type` None)."""

    type: Type | None
    text: str
    literal: int | float | None = None
