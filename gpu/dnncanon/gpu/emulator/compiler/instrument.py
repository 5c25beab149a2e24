"""Lowering for check and profile mode: every memory access goes through `emu.touch`.

What this cannot instrument it counts: `Lowering.uninstrumented` lists such instructions by line.
"""

from __future__ import annotations

import re
from collections import Counter

from dnncanon.gpu.emulator.compiler import engine
from dnncanon.gpu.emulator.compiler.counting import classify, count_block
from dnncanon.gpu.emulator.compiler.lowering import CALL, RED_ZONE, Lowering, split_arguments
from dnncanon.gpu.emulator.machine import access
from dnncanon.gpu.emulator.machine.access import ATOMIC, READ, WRITE
from dnncanon.gpu.emulator.native import NativeFunction

__all__ = ["Checked", "Profiled"]

_POINTER = r'(?P<pointer>%(?:"[^"]*"|[-\w.$]+)|@(?:"[^"]*"|[-\w.$]+))'
_LOAD = re.compile(
    rf"^(?P<head>\s+%\S+ = load (?:atomic )?(?:volatile )?)(?P<type>.+?), ptr {_POINTER}(?P<tail>.*)$"
)
_STORE = re.compile(
    rf"^(?P<head>\s+store (?:atomic )?(?:volatile )?)(?P<value>.+), ptr {_POINTER}(?P<tail>.*)$"
)
_MODIFY = re.compile(
    rf"^(?P<head>\s+%\S+ = (?:atomicrmw (?:volatile )?\w+|cmpxchg (?:weak )?(?:volatile )?) ?ptr )"
    rf"{_POINTER}(?P<tail>, (?P<type>\w+) .*)$"
)
_ALLOCA = re.compile(r"^\s+(?P<name>%\S+) = alloca ")
_CONSTANT_OFFSET = re.compile(
    r"^\s+(?P<name>%\S+) = getelementptr (?:inbounds )?(?:nuw )?.*?, ptr (?P<base>%[^\s,]+)"
    r"(?P<indices>(?:, i\d+ -?\d+)+)(?:, !dbg.*)?$"
)
_CONSTANT_POINTER = re.compile(r"ptr (?:getelementptr|inttoptr) [^%]*\)")
"""A constant place within a module's variable."""
_TYPE_OF_VALUE = re.compile(r"^(\{.*?\}|\[.*?\]|<.*?>|\S+) ")
_ATOMIC_CALL = re.compile(r"^(?:nv\.atomic|___numba_atomic)")
_COPIES = {"llvm.memcpy": (WRITE, READ), "llvm.memmove": (WRITE, READ), "llvm.memset": (WRITE,)}
_HARMLESS = re.compile(
    r"^(?:__nv_|emu\.|llvm\.(?:lifetime|assume|dbg|invariant|experimental)|vprintf|_Z\w*nbst)"
)
"""Calls whose pointers are to compiler temporaries, or that touch memory through `emu.touch`."""
_SIZES = {
    "float": 4,
    "double": 8,
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "half": 2,
    "ptr": 8,
}


def _size(kind: str) -> int:
    return _SIZES[kind] if kind in _SIZES else engine.size_of(kind)


class Checked(Lowering):
    """Every access is examined."""

    forces_fibers = True
    red_zone = RED_ZONE
    watch_locals = True

    def __init__(self, text: str, entry: str) -> None:
        super().__init__(text, entry)
        self.temporaries: set[str] = set()

    def replaced_functions(self) -> list[NativeFunction]:
        return [access.touch]

    def function_start(self, header: str) -> None:
        self.temporaries = set()

    def site_of(self, line: str) -> int:
        return self.sites.unique(line)

    def fence(self) -> None:
        self.called |= {"emu.release_now", "emu.acquire_now"}
        self.out.append("  call void @emu.release_now(ptr %emu.thread)")
        self.out.append("  call void @emu.acquire_now(ptr %emu.thread)")

    def instruction(self, line: str) -> None:
        """Follow which pointers lead to the compiler's own temporaries, at constant offsets."""
        alloca = _ALLOCA.match(line)
        if alloca:
            self.temporaries.add(alloca["name"])
            return
        offset = _CONSTANT_OFFSET.match(line)
        if offset and offset["base"] in self.temporaries:
            self.temporaries.add(offset["name"])

    def memory(self, line: str) -> str:
        call = CALL.match(line)
        if call:
            return self._memory_call(line, call)
        load, store, modify = _LOAD.match(line), _STORE.match(line), _MODIFY.match(line)
        if load:
            pointer = self._touched(line, load["pointer"], _size(load["type"]), READ)
            return f"{load['head']}{load['type']}, ptr {pointer}{load['tail']}"
        if store:
            kind = _TYPE_OF_VALUE.match(store["value"])
            assert kind is not None
            pointer = self._touched(line, store["pointer"], _size(kind.group(1)), WRITE)
            return f"{store['head']}{store['value']}, ptr {pointer}{store['tail']}"
        if modify:
            pointer = self._touched(line, modify["pointer"], _size(modify["type"]), ATOMIC)
            return f"{modify['head']}{pointer}{modify['tail']}"
        if not _CONSTANT_POINTER.search(line):
            self._give_up(line)
        return line

    def _give_up(self, line: str) -> None:
        self.uninstrumented.append(f"{self.sites.line_of(line)}: {line.strip()}")

    def _touched(self, line: str, pointer: str, size: int | str, kind: int) -> str:
        """The pointer to use instead of `pointer`."""
        if pointer in self.temporaries or pointer.startswith("@"):
            return pointer  # at a constant place within an object of the compiler's or module's
        self.called.add("emu.touch")
        name = self.fresh("touched")
        site = self.sites.unique(line)
        self.out.append(
            f"  {name} = call ptr @emu.touch(ptr %emu.thread, ptr {pointer}, i32 {size}, "
            f"i32 {site}, i32 {kind})"
        )
        return name

    def _memory_call(self, line: str, match: re.Match[str]) -> str:
        name = match["name"].strip('"')
        arguments, _ = split_arguments(match["rest"])
        if _ATOMIC_CALL.match(name):
            width = re.search(r"i(\d+)_cas_hack$", name)
            size = int(width.group(1)) // 8 if width else _size(match["type"].split()[-1])
            return self._with_touched(line, arguments, [(0, size, ATOMIC)])
        for stem, kinds in _COPIES.items():
            if name.startswith(stem):
                count = arguments[2].split()[-1]
                if count.startswith("%"):
                    wide, count = count, self.fresh("count")
                    self.out.append(f"  {count} = trunc i64 {wide} to i32")
                return self._with_touched(
                    line, arguments, [(i, count, k) for i, k in enumerate(kinds)]
                )
        takes_pointer = any(a.startswith("ptr") for a in arguments)
        if takes_pointer and not _HARMLESS.match(name):
            self._give_up(line)
        return line

    def _with_touched(
        self, line: str, arguments: list[str], wanted: list[tuple[int, int | str, int]]
    ) -> str:
        for index, size, kind in wanted:
            argument = arguments[index]
            pointer = argument.split()[-1]
            if not re.fullmatch(_POINTER, pointer):
                self._give_up(line)
                continue
            touched = self._touched(line, pointer, size, kind)
            replaced = argument[: len(argument) - len(pointer)] + touched
            line = line.replace(argument, replaced, 1)
        return line


class Profiled(Checked):
    """Every access is examined, and every basic block counted."""

    watch_locals = False

    def extra_functions(self) -> list[NativeFunction]:
        return [count_block]

    def block_start(self) -> None:
        self.called.add(count_block.symbol)
        self.out.append(
            f"  call void @{count_block.symbol}(ptr %emu.thread, i32 {len(self.blocks)})"
        )
        self.blocks.append({})

    def instruction(self, line: str) -> None:
        super().instruction(line)
        if self.blocks:
            counts = self.blocks[-1].setdefault(self.sites.line_of(line), Counter())
            for kind, amount in classify(line).items():
                counts[kind] += amount
