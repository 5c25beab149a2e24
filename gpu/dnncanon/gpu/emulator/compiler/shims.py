"""numba-cuda's float16 and bfloat16 operators, which it compiles from CUDA C++, as LLVM IR.

Every shim has the form `i32 shim(result *, operand *, …)`; its mangled name tells the operation.
Arithmetic is done in float and rounded once, which is exact for + − × ÷ and square root of either format.
"""

from __future__ import annotations

import re

from dnncanon.gpu.emulator.errors import UnsupportedKernel

__all__ = ["shim_definitions"]

_TYPE = "6__half|13__nv_bfloat16"
_CALLED = re.compile(
    rf'call i32 @"?(?P<name>\w*_Z\w*?(?:{_TYPE})\w*?_(?:nbst|\d+))"?\((?P<args>.*?)\)', re.MULTILINE
)
_OPERATOR = re.compile(
    rf"_Z(?P<code>pl|mi|ml|dv|eq|ne|gt|lt|ge|le|ng|ps)RK(?P<type>{_TYPE})(?:S1_)?_?_nbst"
)
_NAMED = re.compile(rf"_ZL?\d+(?:__)?(?P<code>h[a-z]+\d*?)(?P<type>{_TYPE})\w*?_nbst")
_MADE = re.compile(r"_ZN(?P<type>13__nv_bfloat16)C1E(?P<from>[fdijlmxyst])_nbst")
_CONVERTED = re.compile(r"_ZNK(?P<type>13__nv_bfloat16)cv(?P<to>[fdijlmxyst])Ev_")
_C_TYPES = {
    "f": "float", "d": "double", "i": "i32", "j": "i32", "l": "i64", "m": "i64", "x": "i64",
    "y": "i64", "s": "i16", "t": "i16",
}  # fmt: skip
_LOAD = {
    "6__half": ["%h{i} = load half, ptr %p{i}", "%x{i} = fpext half %h{i} to float"],
    "13__nv_bfloat16": [
        "%h{i} = load i16, ptr %p{i}",
        "%w{i} = zext i16 %h{i} to i32",
        "%s{i} = shl i32 %w{i}, 16",
        "%x{i} = bitcast i32 %s{i} to float",
    ],
}
_STORE = {
    "6__half": ["%o = fptrunc float %f to half", "store half %o, ptr {to}"],
    "13__nv_bfloat16": [
        "%o = call i16 @emu.shim.bf16(float %f)", "store i16 %o, ptr {to}"
    ],
}  # fmt: skip
_ROUND = """define internal i16 @emu.shim.bf16(float %f) alwaysinline nounwind memory(none) {
  %b = bitcast float %f to i32
  %u = lshr i32 %b, 16
  %l = and i32 %u, 1
  %k = add i32 %l, 32767
  %s = add i32 %b, %k
  %h = lshr i32 %s, 16
  %t = trunc i32 %h to i16
  %n = fcmp uno float %f, %f
  %r = select i1 %n, i16 32767, i16 %t
  ret i16 %r
}"""
_COMPARE = {"eq": "oeq", "ne": "une", "gt": "ogt", "lt": "olt", "ge": "oge", "le": "ole"}
_BINARY = {"pl": "fadd", "mi": "fsub", "ml": "fmul", "dv": "fdiv"} | {
    f"h{n}": f"f{n}" for n in ("add", "sub", "mul", "div")
}
_EXTREMUM = {"hmax": "maxnum", "hmin": "minnum"}
_UNARY = {
    "hsin": "sin", "hcos": "cos", "hlog": "log", "hlog10": "log10", "hlog2": "log2", "hexp": "exp",
    "hexp10": "exp10", "hexp2": "exp2", "hsqrt": "sqrt", "hfloor": "floor", "hceil": "ceil",
    "htrunc": "trunc", "hrint": "roundeven", "habs": "fabs",
}  # fmt: skip


def shim_definitions(text: str) -> str:
    """Definitions of the shims that `text` calls."""
    parts: list[str] = []
    declarations: set[str] = set()
    seen: set[str] = set()
    for match in _CALLED.finditer(text):
        name = match["name"]
        if name not in seen:
            seen.add(name)
            parts.append(_definition(name, match["args"].count("ptr") - 1, declarations))
    if parts:
        parts.append(_ROUND)
    return "\n".join([*sorted(declarations), *parts])


def _definition(name: str, operands: int, declarations: set[str]) -> str:
    made, converted = _MADE.search(name), _CONVERTED.search(name)
    if made:
        lines = _make(made)
    elif converted:
        lines = _convert(converted)
    else:
        lines = _operate(name, operands, declarations)
    head = ", ".join(["ptr %r", *(f"ptr %p{i}" for i in range(operands))])
    body = "\n".join([*(f"  {line}" for line in lines), "  ret i32 0"])
    return f"define internal i32 @{name}({head}) alwaysinline nounwind {{\n{body}\n}}"


def _make(match: re.Match[str]) -> list[str]:
    """A constructor: (nothing, object, value)."""
    kind = _C_TYPES[match["from"]]
    lines = [f"%v = load {kind}, ptr %p1"]
    if kind == "float":
        lines.append("%f = fadd float %v, -0.0")
    elif kind == "double":
        lines.append("%f = fptrunc double %v to float")
    else:
        sign = "u" if match["from"] in "jmyt" else "s"
        lines.append(f"%f = {sign}itofp {kind} %v to float")
    return [*lines, *(line.format(to="%p0") for line in _STORE[match["type"]])]


def _convert(match: re.Match[str]) -> list[str]:
    """A conversion operator: (result, object)."""
    kind = _C_TYPES[match["to"]]
    opcode = {"float": "fadd float %x0, -0.0", "double": "fpext float %x0 to double"}.get(
        kind, f"fpto{'u' if match['to'] in 'jmyt' else 's'}i float %x0 to {kind}"
    )
    load = [line.format(i=0) for line in _LOAD[match["type"]]]
    return [*load, f"%v = {opcode}", f"store {kind} %v, ptr %r"]


def _operate(name: str, operands: int, declarations: set[str]) -> list[str]:
    match = _OPERATOR.search(name) or _NAMED.search(name)
    if match is None:
        raise UnsupportedKernel(f"the 16-bit floating-point function {name}")
    load = [line.format(i=i) for i in range(operands) for line in _LOAD[match["type"]]]
    code = re.sub(r"^h(eq|ne|gt|lt|ge|le)$", r"\1", match["code"])
    if code in _COMPARE:
        return [
            *load,
            f"%c = fcmp {_COMPARE[code]} float %x0, %x1",
            "%z = zext i1 %c to i8",
            "store i8 %z, ptr %r",
        ]
    store = [line.format(to="%r") for line in _STORE[match["type"]]]
    return [*load, *_arithmetic(name, code, declarations), *store]


def _arithmetic(name: str, code: str, declarations: set[str]) -> list[str]:
    """Lines that set %f from the float operands %x0, %x1, %x2."""
    if code in _BINARY:
        return [f"%f = {_BINARY[code]} float %x0, %x1"]
    if code in _EXTREMUM:
        declarations.add(f"declare float @llvm.{_EXTREMUM[code]}.f32(float, float)")
        return [f"%f = call float @llvm.{_EXTREMUM[code]}.f32(float %x0, float %x1)"]
    if code in ("ng", "hneg"):
        return ["%f = fneg float %x0"]
    if code == "hfma":
        # The product is exact in double; the sum is rounded there, then to float, then to half.
        return [
            *(f"%d{i} = fpext float %x{i} to double" for i in range(3)),
            "%m = fmul double %d0, %d1",
            "%e = fadd double %m, %d2",
            "%f = fptrunc double %e to float",
        ]
    if code == "hrcp":
        return ["%f = fdiv float 1.0, %x0"]
    if code == "hrsqrt":
        declarations.add("declare float @llvm.sqrt.f32(float)")
        return ["%q = call float @llvm.sqrt.f32(float %x0)", "%f = fdiv float 1.0, %q"]
    if code in _UNARY:
        declarations.add(f"declare float @llvm.{_UNARY[code]}.f32(float)")
        return [f"%f = call float @llvm.{_UNARY[code]}.f32(float %x0)"]
    raise UnsupportedKernel(f"the 16-bit floating-point function {name}")
