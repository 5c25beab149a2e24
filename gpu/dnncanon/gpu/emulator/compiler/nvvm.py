"""Definitions of the `llvm.nvvm.*` scalar intrinsics (renamed `nv.*`) for the CPU, made on demand.

A table of name patterns: each entry writes the LLVM IR of all intrinsics that match. Directed
rounding (`rm`, `rp`, `rz`) sets the rounding mode of the SSE control register around one
instruction, so it is exact. `.ftz` flushes subnormal operands and results to zero. The `approx`
instructions are computed accurately: their last bits differ from a GPU's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["definitions"]

_PURE = "alwaysinline nounwind memory(none)"
_LLVM_FLOAT = {"f": "float", "d": "double", "f32": "float", "f64": "double"}
_SUFFIX = {"float": "f32", "double": "f64"}
_MXCSR = {"rm": 0x3F80, "rp": 0x5F80, "rz": 0x7F80}
_ARITY = {"add": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "rcp": 1}
_INTEGER = {"i": ("i32", "s"), "ui": ("i32", "u"), "ll": ("i64", "s"), "ull": ("i64", "u")}


@dataclass
class _Text:
    """What has been written so far: declarations and globals are shared, hence sets."""

    parts: list[str] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)

    def declare(self, line: str) -> None:
        self.shared.add(line)

    def define(
        self, name: str, result: str, types: list[str], body: str, kind: str = _PURE
    ) -> None:
        """`body` uses %a, %b, … and sets %r; lines are separated by newlines."""
        head = ", ".join(f"{t} %{c}" for t, c in zip(types, "abcdef", strict=False))
        lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
        finish = "ret void" if result == "void" else f"ret {result} %r"
        self.parts.append(
            f"define internal {result} @{name}({head}) {kind} {{\n{lines}\n  {finish}\n}}"
        )

    def unary_intrinsic(self, intrinsic: str, kind: str, argument: str, result: str = "%r") -> str:
        full = f"llvm.{intrinsic}.{_SUFFIX[kind]}"
        self.declare(f"declare {kind} @{full}({kind})")
        return f"{result} = call {kind} @{full}({kind} {argument})"


def definitions(names: set[str]) -> str:
    """LLVM IR defining every `nv.*` function in `names` that the table knows."""
    text = _Text()
    for name in sorted(names):
        for pattern, write in _TABLE:
            match = re.fullmatch(pattern, name[3:])
            if match:
                write(text, name, match)
                break
    return "\n".join([*sorted(text.shared), *text.parts, ""])


Writer = Callable[[_Text, str, "re.Match[str]"], None]


def _arithmetic(text: _Text, name: str, m: re.Match[str]) -> None:
    operation, mode, ftz, kind = m["op"], m["mode"], bool(m["ftz"]), _LLVM_FLOAT[m["kind"]]
    arity = _ARITY[operation]
    names = [f"%{c}" for c in "abc"[:arity]]
    lines: list[str] = []
    if ftz:
        names = [_flush(text, lines, kind, n, f"%z{n[1:]}") for n in names]
    result = "%q" if ftz else "%r"
    if mode == "rn":
        lines.append(f"{result} = {_nearest(text, operation, kind, names)}")
    else:
        lines.append(f"{result} = {_directed(text, operation, kind, mode, names)}")
    if ftz:
        _flush(text, lines, kind, "%q", "%r")
    text.define(name, kind, [kind] * arity, "\n".join(lines))


def _nearest(text: _Text, operation: str, kind: str, names: list[str]) -> str:
    operands = ", ".join(names)
    if operation == "rcp":
        return f"fdiv {kind} 1.0, {operands}"
    if operation in ("sqrt", "fma"):
        full = f"llvm.{operation}.{_SUFFIX[kind]}"
        text.declare(f"declare {kind} @{full}({', '.join([kind] * len(names))})")
        return f"call {kind} @{full}({', '.join(f'{kind} {n}' for n in names)})"
    return f"f{operation} {kind} {operands}"


def _directed(text: _Text, operation: str, kind: str, mode: str, names: list[str]) -> str:
    """One AVX instruction between two writes of the control register."""
    s = "s" if kind == "float" else "d"
    if operation == "rcp":
        operation, names = "div", ["1.0", *names]
    if operation == "fma":
        instruction = f"vfmadd213s{s} $3, $2, $0"
        constraints = "=x,0,x,x"
    elif operation == "sqrt":
        instruction, constraints = f"vsqrts{s} $1, $1, $0", "=x,x"
    else:
        instruction, constraints = f"v{operation}s{s} $2, $1, $0", "=x,x,x"
    return _with_mode(text, instruction, constraints, mode, kind, [f"{kind} {n}" for n in names])


def _with_mode(
    text: _Text, instruction: str, constraints: str, mode: str, result: str, operands: list[str]
) -> str:
    for name, value in (("rn", 0x1F80), (mode, _MXCSR[mode])):
        text.declare(f"@emu.mxcsr.{name} = internal constant i32 {value}")
    first = len(operands) + 1
    if constraints.startswith("=x,0"):
        constraints = "=&x" + constraints[2:]
    memory = ", ".join(f"ptr elementtype(i32) @emu.mxcsr.{n}" for n in (mode, "rn"))
    return (
        f'call {result} asm sideeffect "ldmxcsr ${first}\\0A{instruction}\\0Aldmxcsr ${first + 1}", '
        f'"{constraints},*m,*m"({", ".join(operands)}, {memory})'
    )


def _flush(text: _Text, lines: list[str], kind: str, source: str, result: str) -> str:
    """Append lines setting `result` to `source`, or to a zero of its sign if it is subnormal."""
    if kind != "float":
        lines.append(f"{result} = fadd {kind} {source}, -0.0")
        return result
    tag = result[1:]
    text.declare("declare float @llvm.fabs.f32(float)")
    text.declare("declare float @llvm.copysign.f32(float, float)")
    lines += [
        f"%{tag}.m = call float @llvm.fabs.f32(float {source})",
        f"%{tag}.s = fcmp olt float %{tag}.m, 0x3810000000000000",
        f"%{tag}.0 = call float @llvm.copysign.f32(float 0.0, float {source})",
        f"{result} = select i1 %{tag}.s, float %{tag}.0, float {source}",
    ]
    return result


def _round_to_integral(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["kind"]]
    intrinsic = {"round": "roundeven"}.get(m["op"], m["op"])
    text.define(name, kind, [kind], text.unary_intrinsic(intrinsic, kind, "%a"))


def _extremum(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["kind"]]
    full = f"llvm.{m['op'][1:]}num.{_SUFFIX[kind]}"
    text.declare(f"declare {kind} @{full}({kind}, {kind})")
    text.define(name, kind, [kind] * 2, f"%r = call {kind} @{full}({kind} %a, {kind} %b)")


def _saturate(text: _Text, name: str, m: re.Match[str]) -> None:
    text.declare("declare float @llvm.maxnum.f32(float, float)")
    text.declare("declare float @llvm.minnum.f32(float, float)")
    text.define(
        name, "float", ["float"],
        "%x = call float @llvm.maxnum.f32(float %a, float 0.0)\n"
        "%r = call float @llvm.minnum.f32(float %x, float 1.0)",
    )  # fmt: skip


_APPROXIMATE = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos"}


def _approximate(text: _Text, name: str, m: re.Match[str]) -> None:
    """ex2, lg2, sin, cos in double, rounded once."""
    lines: list[str] = []
    argument = _flush(text, lines, "float", "%a", "%z") if m["ftz"] else "%a"
    lines += [
        f"%d = fpext float {argument} to double",
        text.unary_intrinsic(_APPROXIMATE[m["op"]], "double", "%d", "%e"),
        f"{'%q' if m['ftz'] else '%r'} = fptrunc double %e to float",
    ]
    if m["ftz"]:
        _flush(text, lines, "float", "%q", "%r")
    text.define(name, "float", ["float"], "\n".join(lines))


def _approximate_root(text: _Text, name: str, m: re.Match[str]) -> None:
    """rcp, sqrt, rsqrt and div in double, rounded once."""
    kind = _LLVM_FLOAT[m["kind"]]
    arity = 2 if m["op"] == "div" else 1
    lines: list[str] = []
    arguments = [f"%{c}" for c in "ab"[:arity]]
    if m["ftz"]:
        arguments = [_flush(text, lines, kind, a, f"%z{a[1:]}") for a in arguments]
    if kind == "float":
        lines += [f"%d{a[-1]} = fpext float {a} to double" for a in arguments]
        arguments = [f"%d{a[-1]}" for a in arguments]
    if m["op"] == "div":
        lines.append(f"%e = fdiv double {arguments[0]}, {arguments[1]}")
    elif m["op"] == "rcp":
        lines.append(f"%e = fdiv double 1.0, {arguments[0]}")
    else:
        lines.append(text.unary_intrinsic("sqrt", "double", arguments[0], "%s"))
        lines.append(f"%e = fdiv double {'1.0, %s' if m['op'] == 'rsqrt' else '%s, 1.0'}")
    last = "%q" if m["ftz"] else "%r"
    lines.append(
        f"{last} = fptrunc double %e to float"
        if kind == "float"
        else f"{last} = fadd double %e, -0.0"
    )
    if m["ftz"]:
        _flush(text, lines, kind, "%q", "%r")
    text.define(name, kind, [kind] * arity, "\n".join(lines))


def _float_to_integer(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["from"]]
    integer, sign = _INTEGER[m["to"]]
    rounding = {"rn": "roundeven", "rz": "trunc", "rm": "floor", "rp": "ceil"}[m["mode"]]
    full = f"llvm.fpto{sign}i.sat.{integer}.{_SUFFIX[kind]}"
    text.declare(f"declare {integer} @{full}({kind})")
    body = text.unary_intrinsic(rounding, kind, "%a", "%x")
    text.define(name, integer, [kind], f"{body}\n%r = call {integer} @{full}({kind} %x)")


def _integer_to_float(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["to"]]
    integer, sign = _INTEGER[m["from"]]
    if m["mode"] == "rn" or (kind == "double" and integer == "i32"):
        text.define(name, kind, [integer], f"%r = {sign}itofp {integer} %a to {kind}")
        return
    s = "s" if kind == "float" else "d"
    lines = []
    if integer == "i32":
        lines.append(f"%w = {'z' if sign == 'u' else 's'}ext i32 %a to i64")
    elif sign == "u":  # halve what does not fit, keeping the lost bit sticky, and double again
        lines += [
            "%big = icmp slt i64 %a, 0",
            "%half = lshr i64 %a, 1",
            "%bit = and i64 %a, 1",
            "%sticky = or i64 %half, %bit",
            "%w = select i1 %big, i64 %sticky, i64 %a",
        ]
    else:
        lines.append("%w = add i64 %a, 0")
    convert = _with_mode(
        text, f"vcvtsi2s{s}q $1, $0, $0", "=x,r", m["mode"], kind, ["i64 %w"]
    )  # the merge input of $0 only supplies the upper lanes
    lines.append(f"%q = {convert}")
    if integer == "i64" and sign == "u":
        lines += [f"%t = fadd {kind} %q, %q", f"%r = select i1 %big, {kind} %t, {kind} %q"]
    else:
        lines.append(f"%r = fadd {kind} %q, -0.0")
    text.define(name, kind, [integer], "\n".join(lines))


def _double_to_float(text: _Text, name: str, m: re.Match[str]) -> None:
    lines: list[str] = []
    result = "%q" if m["ftz"] else "%r"
    if m["mode"] == "rn":
        lines.append(f"{result} = fptrunc double %a to float")
    else:
        convert = _with_mode(
            text, "vcvtsd2ss $1, $1, $0", "=x,x", m["mode"], "float", ["double %a"]
        )
        lines.append(f"{result} = {convert}")
    if m["ftz"]:
        _flush(text, lines, "float", "%q", "%r")
    text.define(name, "float", ["double"], "\n".join(lines))


def _body(result: str, types: list[str], body: str, kind: str = _PURE) -> Writer:
    """An entry without variants."""

    def write(text: _Text, name: str, m: re.Match[str]) -> None:
        text.define(name, result, types, body, kind)

    return write


def _absolute(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["kind"]]
    text.define(name, kind, [kind], text.unary_intrinsic("fabs", kind, "%a"))


def _high_product(text: _Text, name: str, m: re.Match[str]) -> None:
    integer, sign = _INTEGER[m["kind"]]
    wide, extend = f"i{2 * int(integer[1:])}", "zext" if sign == "u" else "sext"
    text.define(
        name, integer, [integer] * 2,
        f"%x = {extend} {integer} %a to {wide}\n%y = {extend} {integer} %b to {wide}\n"
        f"%m = mul {wide} %x, %y\n%s = lshr {wide} %m, {integer[1:]}\n"
        f"%r = trunc {wide} %s to {integer}",
    )  # fmt: skip


def _absolute_difference(text: _Text, name: str, m: re.Match[str]) -> None:
    sign = _INTEGER[m["kind"]][1]
    text.define(
        name, "i32", ["i32"] * 3,
        f"%g = icmp {sign}gt i32 %a, %b\n%d = sub i32 %a, %b\n%e = sub i32 %b, %a\n"
        "%s = select i1 %g, i32 %d, i32 %e\n%r = add i32 %s, %c",
    )  # fmt: skip


def _double_half(text: _Text, name: str, m: re.Match[str]) -> None:
    shift = 0 if m["half"] == "lo" else 32
    text.define(
        name, "i32", ["double"],
        f"%x = bitcast double %a to i64\n%s = lshr i64 %x, {shift}\n%r = trunc i64 %s to i32",
    )  # fmt: skip


def _permute(text: _Text, name: str, m: re.Match[str]) -> None:
    """prmt: four bytes chosen from eight by the nibbles of c; bit 3 replicates the sign."""
    lines = [
        "%lo = zext i32 %a to i64", "%hi = zext i32 %b to i64", "%hs = shl i64 %hi, 32",
        "%all = or i64 %lo, %hs", "%acc0 = or i32 0, 0",
    ]  # fmt: skip
    for i in range(4):
        lines += [
            f"%n{i} = lshr i32 %c, {4 * i}",
            f"%k{i} = and i32 %n{i}, 7",
            f"%b{i} = shl i32 %k{i}, 3",
            f"%w{i} = zext i32 %b{i} to i64",
            f"%s{i} = lshr i64 %all, %w{i}",
            f"%t{i} = trunc i64 %s{i} to i8",
            f"%g{i} = ashr i8 %t{i}, 7",
            f"%h{i} = and i32 %n{i}, 8",
            f"%q{i} = icmp ne i32 %h{i}, 0",
            f"%v{i} = select i1 %q{i}, i8 %g{i}, i8 %t{i}",
            f"%z{i} = zext i8 %v{i} to i32",
            f"%y{i} = shl i32 %z{i}, {8 * i}",
            f"%acc{i + 1} = or i32 %acc{i}, %y{i}",
        ]
    text.define(name, "i32", ["i32"] * 3, "\n".join([*lines, "%r = or i32 %acc4, 0"]))


def _atomic_float_add(text: _Text, name: str, m: re.Match[str]) -> None:
    kind = _LLVM_FLOAT[m["kind"]]
    text.define(
        name, kind, ["ptr", kind], f"%r = atomicrmw fadd ptr %a, {kind} %b monotonic",
        "alwaysinline nounwind",
    )  # fmt: skip


def _atomic_wrap(text: _Text, name: str, m: re.Match[str]) -> None:
    text.define(
        name, "i32", ["ptr", "i32"], f"%r = atomicrmw u{m['op']}_wrap ptr %a, i32 %b monotonic",
        "alwaysinline nounwind",
    )  # fmt: skip


_MODE = "(?P<mode>rn|rz|rm|rp)"
_FTZ = r"(?P<ftz>\.ftz)?"
_KIND = r"\.(?P<kind>f32|f64|f|d)"
_TABLE: list[tuple[str, Writer]] = [
    (rf"(?P<op>add|mul|div|fma|sqrt|rcp)\.{_MODE}{_FTZ}{_KIND}", _arithmetic),
    (rf"(?P<op>floor|ceil|trunc|round){_FTZ}{_KIND}", _round_to_integral),
    (rf"fabs{_FTZ}{_KIND}", _absolute),
    (rf"(?P<op>fmin|fmax){_FTZ}{_KIND}", _extremum),
    (rf"saturate{_FTZ}\.f", _saturate),
    (rf"(?P<op>ex2|lg2|sin|cos)\.approx{_FTZ}\.f(?:32)?", _approximate),
    (rf"(?P<op>rsqrt|sqrt|rcp|div)\.approx{_FTZ}{_KIND}", _approximate_root),
    (rf"(?P<from>[df])2(?P<to>i|ui|ll|ull)\.{_MODE}{_FTZ}", _float_to_integer),
    (rf"(?P<from>i|ui|ll|ull)2(?P<to>[df])\.{_MODE}", _integer_to_float),
    (rf"d2f\.{_MODE}{_FTZ}", _double_to_float),
    (
        r"f2h\.rn(?:\.ftz)?",
        _body("i16", ["float"], "%h = fptrunc float %a to half\n%r = bitcast half %h to i16"),
    ),
    (
        r"lohi\.i2d",
        _body(
            "double",
            ["i32", "i32"],
            "%x = zext i32 %a to i64\n%y = zext i32 %b to i64\n%s = shl i64 %y, 32\n"
            "%o = or i64 %x, %s\n%r = bitcast i64 %o to double",
        ),
    ),
    (r"d2i\.(?P<half>lo|hi)", _double_half),
    (r"sad\.(?P<kind>i|ui)", _absolute_difference),
    (r"mulhi\.(?P<kind>i|ui|ll|ull)", _high_product),
    (r"prmt", _permute),
    (r"membar\.\w+", _body("void", [], "fence seq_cst", "alwaysinline nounwind")),
    (r"atomic\.load\.add\.(?P<kind>f32|f64)\.\w+", _atomic_float_add),
    (r"atomic\.load\.(?P<op>inc|dec)\.32\.\w+", _atomic_wrap),
]
