"""Types of the native language: scalars, pointers, and structures whose layout Python knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

__all__ = ["Array", "NativeError", "Struct", "Type", "ptr"]


class NativeError(Exception):
    """A native function is outside the language; the message names function and line."""


# --------------------------------------------------------------------------------------------------
# Types
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Type:
    """A scalar or pointer type. `kind` is one of i (signed), u (unsigned), f, p, v (void)."""

    name: str
    llvm: str
    kind: str
    bits: int
    pointee: Type | Struct | None = None

    @property
    def size(self) -> int:
        return max(1, self.bits // 8)

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    def __repr__(self) -> str:
        return self.name


i1 = Type("i1", "i1", "u", 1)
i8, i16, i32, i64, i128 = (Type(f"i{b}", f"i{b}", "i", b) for b in (8, 16, 32, 64, 128))
u8, u16, u32, u64, u128 = (Type(f"u{b}", f"i{b}", "u", b) for b in (8, 16, 32, 64, 128))
f16 = Type("f16", "half", "f", 16)
bf16 = Type("bf16", "bfloat", "f", 16)
f32 = Type("f32", "float", "f", 32)
f64 = Type("f64", "double", "f", 64)
f32x8 = Type("f32x8", "<8 x float>", "f", 256)
i32x8 = Type("i32x8", "<8 x i32>", "i", 256)
void = Type("void", "void", "v", 0)


@cache
def ptr(pointee: Type | Struct) -> Type:
    """The type of a pointer to `pointee`: subscripts index it, attributes reach a struct's fields."""
    return Type(f"ptr({pointee.name})", "ptr", "p", 64, pointee)


@dataclass(frozen=True, eq=False)
class Array:
    """A field that is an array of `count` elements."""

    element: Type
    count: int


class Struct:
    """A structure whose fields are laid out in order at their natural alignment.

    Fields are added by `define`, after creation, so that structures may point at one another.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.fields: dict[str, tuple[Type | Array, int]] = {}

    def define(self, *, round_to: int = 8, **fields: Type | Array) -> None:
        offset = 0
        for name, kind in fields.items():
            element = kind.element if isinstance(kind, Array) else kind
            offset = -(-offset // element.size) * element.size
            self.fields[name] = (kind, offset)
            offset += element.size * (kind.count if isinstance(kind, Array) else 1)
        self.size = -(-offset // round_to) * round_to

    def offset(self, name: str) -> int:
        return self.fields[name][1]

    def __repr__(self) -> str:
        return self.name
