"""The table of inline-PTX instructions: text, operand types, and how the emulator executes each.

A new instruction is one entry. `dnncanon.gpu.ptx` turns entries into functions that kernels call;
the lowering finds an entry again by its text when it meets the `asm` call in a kernel's IR. The
entries at the end are those that numba-cuda and libdevice write themselves.

Operand letters are PTX constraint letters: c 8-bit, h 16-bit, r 32-bit, l 64-bit integer, f float, d double.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dnncanon.gpu.emulator import native
from dnncanon.gpu.emulator.errors import UnsupportedKernel
from dnncanon.gpu.emulator.instructions import scalar as ops
from dnncanon.gpu.emulator.native import NativeFunction, Type, void

__all__ = ["LETTERS", "Instruction", "Scope", "find", "wrapper"]

LETTERS = {"c": "i8", "h": "i16", "r": "i32", "l": "i64", "f": "float", "d": "double"}
_BITS = {"c": 8, "h": 16, "r": 32, "l": 64, "f": 32, "d": 64}


class Scope(Enum):
    """Who executes an instruction together, and so how its executor is called."""

    VALUE = "value"
    """Pure: execute(inputs…) -> output."""
    THREAD = "thread"
    """execute(thread, site, [outputs], inputs…) -> the output, if there is just one."""
    WARP = "warp"
    """All 32 lanes: execute(thread, first lane, members); operands in inputs[], outputs[]."""
    WARPGROUP = "warpgroup"
    """128 lanes: execute(thread, first lane of the group); operands in inputs[], outputs[]."""
    TEXT = "text"
    """The executor is LLVM IR, for several outputs without memory."""


_table: dict[str, Instruction] = {}


@dataclass(frozen=True)
class Instruction:
    """One entry. `text` has operands $0, $1, …: outputs first, then inputs.

    `inputs` counts an input that is tied to output k (`tied` of them, the last ones) once more, as
    LLVM does. `volatile` keeps the compiler from moving, merging or deleting the instruction;
    `memory` also keeps it from moving memory accesses across it.
    """

    text: str
    outputs: str
    inputs: str
    execute: NativeFunction
    scope: Scope = Scope.VALUE
    volatile: bool = False
    memory: bool = False
    tied: int = 0
    blocks: bool = False
    """Whether a thread that executes it alone may have to wait for others of its block."""
    spins: bool = False
    """Whether it serves waits between blocks, which therefore must be resident together."""

    def __post_init__(self) -> None:
        _table[_normal(self.text)] = self

    @property
    def constraints(self) -> str:
        """LLVM's constraint string."""
        free = len(self.inputs) - self.tied
        parts = [f"={c}" for c in self.outputs] + list(self.inputs[:free])
        parts += [str(i) for i in range(self.tied)]
        return ",".join([*parts, *(["~{memory}"] if self.memory else [])])


_SPACE = re.compile(r"\s+")


def _normal(text: str) -> str:
    """PTX text without insignificant white space."""
    text = text.replace("\\0A", " ").replace("\\09", " ")
    text = _SPACE.sub(" ", text).strip()
    return re.sub(r"\s*([,;{}\[\]])\s*", r"\1", text).rstrip(";")


def find(text: str) -> Instruction:
    """The entry for a piece of PTX, as it stands in LLVM IR."""
    normal = _normal(text)
    entry = _table.get(normal) or _table.get(normal.strip("{}").rstrip(";"))
    if entry is None:
        raise UnsupportedKernel(f"inline PTX that the emulator does not know: {text}")
    return entry


# --------------------------------------------------------------------------------------------------
# Calls of executors
# --------------------------------------------------------------------------------------------------
def wrapper(entry: Instruction, symbol: str) -> str:
    """LLVM IR of `symbol`(thread, site, inputs…), which executes the entry and returns outputs."""
    result = _result_type(entry)
    types = [LETTERS[c] for c in entry.inputs]
    head = "".join(f", {t} %a{i}" for i, t in enumerate(types))
    body = _BODY[entry.scope](entry, result, types)
    lines = "\n".join(f"  {line}" for line in body)
    return (
        f"define internal {result} @{symbol}(ptr %thread, i32 %site{head}) alwaysinline nounwind {{\n"
        f"{lines}\n}}"
    )


def _result_type(entry: Instruction) -> str:
    types = [LETTERS[c] for c in entry.outputs]
    if len(types) > 1:
        return "{ " + ", ".join(types) + " }"
    return types[0] if types else "void"


def _call(function: NativeFunction, arguments: list[str]) -> str:
    text = f"call {function.result.llvm} @{function.symbol}({', '.join(arguments)})"
    return text if function.result is void else f"%v = {text}"


def _finish(function: NativeFunction) -> str:
    return "ret void" if function.result is void else f"ret {function.result.llvm} %v"


def _value_body(entry: Instruction, result: str, types: list[str]) -> list[str]:
    arguments = [f"{t} %a{i}" for i, t in enumerate(types)]
    return [_call(entry.execute, arguments), _finish(entry.execute)]


def _text_body(entry: Instruction, result: str, types: list[str]) -> list[str]:
    arguments = ", ".join(f"{t} %a{i}" for i, t in enumerate(types))
    return [f"%v = call {result} @{entry.execute.symbol}({arguments})", f"ret {result} %v"]


def _thread_body(entry: Instruction, result: str, types: list[str]) -> list[str]:
    inputs = [f"{t} %a{i}" for i, t in enumerate(types)]
    if len(entry.outputs) <= 1:
        return [
            _call(entry.execute, ["ptr %thread", "i32 %site", *inputs]),
            _finish(entry.execute),
        ]
    lines = [f"%out = alloca [{len(entry.outputs)} x i64], align 16"]
    lines.append(_call(entry.execute, ["ptr %thread", "i32 %site", "ptr %out", *inputs]))
    return lines + _read_outputs(entry, result)


def _store_inputs(entry: Instruction, types: list[str]) -> list[str]:
    """Write operands to an array on the stack, one in each 8 bytes, and tell the thread."""
    from dnncanon.gpu.emulator.machine.state import Thread

    lines = [
        f"%in = alloca [{max(1, len(types))} x i64], align 16",
        f"%out = alloca [{max(1, len(entry.outputs))} x i64], align 16",
    ]
    for i, (letter, kind) in enumerate(zip(entry.inputs, types, strict=True)):
        value = f"%a{i}"
        if letter in "fd":
            width = f"i{_BITS[letter]}"
            lines.append(f"%b{i} = bitcast {kind} {value} to {width}")
            value, kind = f"%b{i}", width
        if kind != "i64":
            lines.append(f"%w{i} = zext {kind} {value} to i64")
            value = f"%w{i}"
        lines.append(f"%s{i} = getelementptr i64, ptr %in, i64 {i}")
        lines.append(f"store i64 {value}, ptr %s{i}")
    for name in ("inputs", "outputs"):
        lines.append(f"%t.{name} = getelementptr i8, ptr %thread, i64 {Thread.offset(name)}")
        lines.append(f"store ptr %{name[:-4]}, ptr %t.{name}")
    return lines


def _read_outputs(entry: Instruction, result: str) -> list[str]:
    if not entry.outputs:
        return ["ret void"]
    lines = []
    values = []
    for i, letter in enumerate(entry.outputs):
        lines.append(f"%p{i} = getelementptr i64, ptr %out, i64 {i}")
        lines.append(f"%r{i} = load {LETTERS[letter]}, ptr %p{i}")
        values.append(f"{LETTERS[letter]} %r{i}")
    if len(values) == 1:
        return [*lines, f"ret {values[0]}"]
    current = "undef"
    for i, value in enumerate(values):
        lines.append(f"%k{i} = insertvalue {result} {current}, {value}, {i}")
        current = f"%k{i}"
    return [*lines, f"ret {result} {current}"]


def _collective_body(rendezvous: str) -> _Body:
    def body(entry: Instruction, result: str, types: list[str]) -> list[str]:
        lines = _store_inputs(entry, types)
        lines.append(
            f"call void @{rendezvous}(ptr %thread, i32 %site, ptr @{entry.execute.symbol}, i32 -1)"
        )
        return lines + _read_outputs(entry, result)

    return body


_Body = Callable[[Instruction, str, list[str]], list[str]]
_BODY: dict[Scope, _Body] = {
    Scope.VALUE: _value_body,
    Scope.TEXT: _text_body,
    Scope.THREAD: _thread_body,
    Scope.WARP: _collective_body("emu.warp_sync"),
    Scope.WARPGROUP: _collective_body("emu.warpgroup_sync"),
}


# --------------------------------------------------------------------------------------------------
# What numba-cuda writes itself
# --------------------------------------------------------------------------------------------------
def _text_function(symbol: str, result: str, types: list[str], body: str) -> NativeFunction:
    head = ", ".join(f"{t} %{c}" for t, c in zip(types, "abcd", strict=False))
    return NativeFunction(
        symbol, [], Type("pair", result, "v", 0), attributes="",
        text=f"define {result} @{symbol}({head}) alwaysinline nounwind memory(none) {{\n{body}\n}}",
    )  # fmt: skip


def _wide_pair(operation: str) -> str:
    """Body of a 128-bit operation on four i64 (two of them low halves)."""
    return (
        "  %al = zext i64 %a to i128\n  %ah0 = zext i64 %b to i128\n  %ah = shl i128 %ah0, 64\n"
        "  %x = or i128 %al, %ah\n"
        "  %bl = zext i64 %c to i128\n  %bh0 = zext i64 %d to i128\n  %bh = shl i128 %bh0, 64\n"
        f"  %y = or i128 %bl, %bh\n  %s = {operation} i128 %x, %y\n" + _SPLIT
    )


_SPLIT = (
    "  %lo = trunc i128 %s to i64\n  %hs = lshr i128 %s, 64\n  %hi = trunc i128 %hs to i64\n"
    "  %r0 = insertvalue { i64, i64 } undef, i64 %lo, 0\n"
    "  %r1 = insertvalue { i64, i64 } %r0, i64 %hi, 1\n  ret { i64, i64 } %r1"
)
_PRODUCT = "  %x = zext i64 %a to i128\n  %y = zext i64 %b to i128\n  %m = mul i128 %x, %y\n"
_MULTIPLY_ADD_32 = (
    "  %x = zext i32 %a to i64\n  %y = zext i32 %b to i64\n  %z = zext i32 %c to i64\n"
    "  %m = mul i64 %x, %y\n  %s = add i64 %m, %z\n  %lo = trunc i64 %s to i32\n"
    "  %h = lshr i64 %s, 32\n  %hi = trunc i64 %h to i32\n"
    "  %r0 = insertvalue { i32, i32 } undef, i32 %lo, 0\n"
    "  %r1 = insertvalue { i32, i32 } %r0, i32 %hi, 1\n  ret { i32, i32 } %r1"
)
_PAIR = "{ i64, i64 }"
_CARRY_REGISTERS = ".reg .u32 r0, r1, r2, r3, a0, a1, a2, a3, b0, b1, b2, b3; "
_SPLIT_FOUR = "mov.b64 {a0,a1}, $2; mov.b64 {a2,a3}, $3; mov.b64 {b0,b1}, $4; mov.b64 {b2,b3}, $5; "
_JOIN = "mov.b64 $0, {r0,r1}; mov.b64 $1, {r2,r3};"


def _carry_chain(name: str) -> str:
    steps = (
        f"{name}.cc.u32 r0, a0, b0; {name}c.cc.u32 r1, a1, b1; "
        f"{name}c.cc.u32 r2, a2, b2; {name}c.u32 r3, a3, b3; "
    )
    return f"{{ {_CARRY_REGISTERS}{_SPLIT_FOUR}{steps}{_JOIN} }}"


for _name, _operation in (("add", "add"), ("sub", "sub")):
    Instruction(
        _carry_chain(_name), "ll", "llll",
        _text_function(f"emu.{_name}128", _PAIR, ["i64"] * 4, _wide_pair(_operation)), Scope.TEXT,
    )  # fmt: skip
Instruction(
    "{ .reg .u32 r0, r1, r2, r3, alo, ahi, blo, bhi; mov.b64 {alo,ahi}, $2; "
    "mov.b64 {blo,bhi}, $3; mul.lo.u32 r0, alo, blo; mul.hi.u32 r1, alo, blo; "
    "mad.lo.cc.u32 r1, alo, bhi, r1; madc.hi.u32 r2, alo, bhi, 0; mad.lo.cc.u32 r1, ahi, blo, r1; "
    "madc.hi.cc.u32 r2, ahi, blo, r2; madc.hi.u32 r3, ahi, bhi, 0; mad.lo.cc.u32 r2, ahi, bhi, r2; "
    f"addc.u32 r3, r3, 0; {_JOIN} }}",
    "ll", "ll",
    _text_function("emu.mul128", _PAIR, ["i64"] * 2, _PRODUCT + "  %s = add i128 %m, 0\n" + _SPLIT),
    Scope.TEXT,
)  # fmt: skip
Instruction(
    "{ .reg .u32 r0, r1, r2, r3, alo, ahi, blo, bhi, clo, chi; mov.b64 {alo,ahi}, $2; "
    "mov.b64 {blo,bhi}, $3; mov.b64 {clo,chi}, $4; mad.lo.cc.u32 r0, alo, blo, clo; "
    "madc.hi.cc.u32 r1, alo, blo, chi; madc.hi.u32 r2, alo, bhi, 0; mad.lo.cc.u32 r1, alo, bhi, r1; "
    "madc.hi.cc.u32 r2, ahi, blo, r2; madc.hi.u32 r3, ahi, bhi, 0; mad.lo.cc.u32 r1, ahi, blo, r1; "
    f"madc.lo.cc.u32 r2, ahi, bhi, r2; addc.u32 r3, r3, 0; {_JOIN} }}",
    "ll", "lll",
    _text_function(
        "emu.mad128", _PAIR, ["i64"] * 3,
        _PRODUCT + "  %z = zext i64 %c to i128\n  %s = add i128 %m, %z\n" + _SPLIT,
    ),
    Scope.TEXT,
)  # fmt: skip
Instruction(
    "{ mad.lo.cc.u32 $0, $2, $3, $4; madc.hi.u32 $1, $2, $3, 0; }", "rr", "rrr",
    _text_function("emu.mad64", "{ i32, i32 }", ["i32"] * 3, _MULTIPLY_ADD_32), Scope.TEXT,
)  # fmt: skip
Instruction(
    "{ .reg .pred __$$temp3; setp.equ.f64 __$$temp3, $1, $2; selp.f64 $0, $3, $4, __$$temp3; }",
    "d", "dddd", ops.select_equal,
)  # fmt: skip
Instruction("bfind.shiftamt.u32 $0, $1;", "r", "r", ops.bfind_shift)
Instruction("rcp.approx.ftz.f32 $0,$1;", "f", "f", ops.rcp)
Instruction("rsqrt.approx.ftz.f64 $0, $1;", "d", "d", ops.rsqrt_double)


def _subtract(mode: str, ftz: str, letter: str) -> NativeFunction:
    """a − b as the NVVM addition of −b, which rounds and flushes as the instruction does."""
    kind, suffix = {"f": ("float", "f"), "d": ("double", "d")}[letter]
    body = (
        f"  %n = fneg {kind} %b\n  %r = call {kind} @nv.add.{mode}{ftz}.{suffix}"
        f"({kind} %a, {kind} %n)\n  ret {kind} %r"
    )
    return _text_function(f"emu.sub.{mode}{ftz}.{suffix}", kind, [kind] * 2, body)


for _mode in ("rn", "rz", "rm", "rp"):
    for _letter, _ptx, _ftz in (("f", "f32", ""), ("f", "f32", ".ftz"), ("d", "f64", "")):
        Instruction(
            f"sub.{_mode}{_ftz}.{_ptx} $0, $1, $2;", _letter, _letter * 2,
            _subtract(_mode, _ftz, _letter), Scope.TEXT,
        )  # fmt: skip
Instruction("mov.u32 $0, %dynamic_smem_size;", "r", "", ops.dynamic_shared_bytes, Scope.THREAD)
Instruction("mov.u32 $0, %lanemask_lt;", "r", "", ops.lanemask_lt, Scope.THREAD)
Instruction("nanosleep.u32 $0;", "", "r", ops.pause, Scope.THREAD, blocks=True)
Instruction("brkpt;", "", "", ops.nothing, Scope.THREAD)
Instruction("tanh.approx.f32 $0, $1;", "f", "f", ops.tanh_approx)
Instruction("cvt.f32.f16 $0, $1;", "f", "h", ops.f16_to_f32)
Instruction("cvt.f64.f16 $0, $1;", "d", "h", ops.f16_to_f64)
Instruction("cvt.rn.f16.f32 $0, $1;", "h", "f", ops.f32_to_f16)
Instruction("cvt.rn.f16.f64 $0, $1;", "h", "d", ops.f64_to_f16)
_INTEGERS = {
    "c": (native.i8, native.u8), "h": (native.i16, native.u16), "r": (native.i32, native.u32),
    "l": (native.i64, native.u64),
}  # fmt: skip
for _letter, _kinds in _INTEGERS.items():
    for _kind in _kinds:
        _ptx = f"{'s' if _kind.kind == 'i' else 'u'}{_kind.bits}"
        Instruction(f"cvt.rni.{_ptx}.f16 $0, $1;", _letter, "h", ops.half_to_integer(_kind))
        Instruction(f"cvt.rn.f16.{_ptx} $0, $1;", "h", _letter, ops.integer_to_half(_kind))
    _word = _kinds[1]
    for _hint in ("ca", "cg", "cs", "lu", "cv"):
        Instruction(
            f"ld.global.{_hint}.b{_word.bits} $0, [$1];", _letter, "l", ops.load_global(_word),
            Scope.THREAD, volatile=True,
        )  # fmt: skip
    for _hint in ("wb", "cg", "cs", "wt"):
        Instruction(
            f"st.global.{_hint}.b{_word.bits} [$0], $1;", "", "l" + _letter,
            ops.store_global(_word), Scope.THREAD, volatile=True,
        )  # fmt: skip


def entries() -> list[Instruction]:
    """All entries of the table."""
    return list(_table.values())


def forget(entry: Instruction) -> None:
    """Take an entry out of the table (for tests)."""
    _table.pop(_normal(entry.text), None)
