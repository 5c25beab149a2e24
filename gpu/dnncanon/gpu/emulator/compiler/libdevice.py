"""libdevice: the functions of NVIDIA's math library that a kernel needs, as LLVM IR text.

The library ships as bitcode for NVVM. It is parsed once per process and cut into functions; a
kernel's module receives the closure of those it calls, with `__nvvm_reflect` answered and the
`llvm.nvvm.*` intrinsics renamed `nv.*`, to be defined by `nvvm.py`.
"""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm

__all__ = ["closure"]

_REFLECTED = re.compile(r"call i32 @__nvvm_reflect\(ptr (@[.\w]+)\)")
_METADATA = re.compile(r", !\w+(?:\.\w+)? !\d+| #\d+")
_FUNCTION = re.compile(
    r"^define (?:internal )?(?P<result>[^@\n]*)@(?P<name>\w+)\((?P<args>.*?)\) *\{\n(?P<body>.*?)^\}",
    re.MULTILINE | re.DOTALL,
)
_GLOBAL = re.compile(r"^(@[.\w]+) = .*$", re.MULTILINE)
_CALLED = re.compile(r"@(__\w+)\(")
_STRING = re.compile(r'^(@[.\w]+) = .*?c"(\w+)\\00"', re.MULTILINE)


class _Library:
    def __init__(self) -> None:
        from numba.cuda.cudadrv.libs import open_libdevice

        text = _METADATA.sub("", str(llvm.parse_bitcode(open_libdevice())))
        text = text.replace(" addrspace(1)", "").replace("llvm.nvvm.", "nv.")
        self.questions = dict(_STRING.findall(text))
        self.types = re.findall(r"^%struct.*$", text, re.MULTILINE)
        self.globals = {
            m.group(1): re.sub(r"\b(?:private|internal)\b", "internal", m.group())
            for m in _GLOBAL.finditer(text)
        }
        self.functions = {
            m["name"]: f"define internal {m['result']}@{m['name']}({m['args']}) "
            f"alwaysinline nounwind {{\n{m['body']}}}"
            for m in _FUNCTION.finditer(text)
        }


@cache
def _library() -> _Library:
    return _Library()


def closure(names: set[str], *, flush_subnormals: bool) -> str:
    """Definitions of `names` and of everything they call, as text."""
    if not names:
        return ""
    library = _library()
    answers = {
        "__CUDA_FTZ": int(flush_subnormals),
        "__CUDA_PREC_SQRT": 1,
        "__CUDA_PREC_DIV": 1,
        "__CUDA_ARCH": 900,
    }

    def answer(match: re.Match[str]) -> str:
        return f"add i32 {answers[library.questions[match.group(1)]]}, 0"

    found: dict[str, str] = {}
    pending = sorted(names)
    while pending:
        name = pending.pop()
        if name in found or name not in library.functions:
            continue
        body = _REFLECTED.sub(answer, library.functions[name])
        found[name] = body
        pending.extend(_CALLED.findall(body))
    text = "\n".join(found.values())
    used = {g for g in re.findall(r"(@[.\w]+)", text) if g in library.globals}
    return "\n".join([*library.types, *(library.globals[g] for g in sorted(used)), text, ""])
