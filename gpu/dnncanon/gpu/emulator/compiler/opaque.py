"""Typed pointers to opaque pointers in the text of LLVM IR.

numba-cuda prints `float*` and `{i8*, i64} addrspace(3)*`, which today's LLVM no longer reads; it
wants `ptr` and `ptr addrspace(3)`. A star always ends a type, so it suffices to go through the
tokens once and, at each star, to replace the type that ends there.
"""

from __future__ import annotations

import re

__all__ = ["to_opaque"]

_TOKEN = re.compile(r'[%@!]?"[^"\n]*"|[%@!]?[\w.$-]+|\s+|.', re.DOTALL)
_CLOSE = {"}": "{", "]": "[", ">": "<", ")": "("}
_SPACE = re.compile(r"\s+")


def to_opaque(text: str) -> str:
    """`text` with every pointer type written `ptr` or `ptr addrspace(n)`."""
    out: list[str] = []
    for line in text.split("\n"):
        if "*" not in line:
            out.append(line)
        else:
            out.append(_line_to_opaque(line))
    return "\n".join(out)


def _line_to_opaque(line: str) -> str:
    tokens: list[str] = []
    for match in _TOKEN.finditer(line):
        token = match.group()
        if token == "*":
            _replace_last_type(tokens)
        else:
            tokens.append(token)
    return "".join(tokens)


def _replace_last_type(tokens: list[str]) -> None:
    suffix = _pop_address_space(tokens)
    closer = tokens.pop()
    if closer in _CLOSE:
        _pop_to_opener(tokens, closer)
        if closer == ")":  # a function type: its return type stands before the parenthesis
            while tokens and _SPACE.fullmatch(tokens[-1]):
                tokens.pop()
            returned = tokens.pop()
            if returned in _CLOSE:
                _pop_to_opener(tokens, returned)
    tokens.append("ptr" + suffix)


def _pop_to_opener(tokens: list[str], closer: str) -> None:
    depth = 1
    while depth:
        token = tokens.pop()
        if token == closer:
            depth += 1
        elif token == _CLOSE[closer]:
            depth -= 1


def _pop_address_space(tokens: list[str]) -> str:
    """Take ` addrspace(n)` off the end, if it is there."""
    if len(tokens) >= 5 and tokens[-4] == "addrspace" and tokens[-1] == ")":
        number = tokens[-2]
        del tokens[-5:]
        return f" addrspace({number})"
    return ""
