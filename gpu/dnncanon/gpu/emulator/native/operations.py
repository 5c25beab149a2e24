"""Operations that native functions call: bits, floating point, memory, atomics."""

from __future__ import annotations

import ast
from collections.abc import Callable

from dnncanon.gpu.emulator.native.compiler import Compiler
from dnncanon.gpu.emulator.native.functions import Operation, Value
from dnncanon.gpu.emulator.native.types import Type, ptr, u8, void

_ATOMIC_ORDER = "monotonic"


def _operation(emit: Callable[[Compiler, ast.Call], Value]) -> Operation:
    return Operation(emit.__name__, emit)


def _values(compiler: Compiler, node: ast.Call) -> list[Value]:
    return [compiler.expression(a) for a in node.args]


def _pointee(place: Value) -> Type:
    """The scalar type that a pointer points to."""
    assert place.type is not None
    assert isinstance(place.type.pointee, Type)
    return place.type.pointee


def _bits(compiler: Compiler, node: ast.Call, name: str, *extra: str) -> Value:
    (value,) = _values(compiler, node)
    assert value.type is not None
    llvm = value.type.llvm
    full = f"llvm.{name}.{llvm}"
    types = ", ".join([llvm, *(e.split()[0] for e in extra)])
    compiler.function.intrinsics.add(f"declare {llvm} @{full}({types})")
    return compiler.call(value.type, f"@{full}", [f"{llvm} {value.text}", *extra])


@_operation
def trailing_zeros(compiler: Compiler, node: ast.Call) -> Value:
    """Index of the lowest set bit; the bit width for 0."""
    return _bits(compiler, node, "cttz", "i1 false")


@_operation
def leading_zeros(compiler: Compiler, node: ast.Call) -> Value:
    return _bits(compiler, node, "ctlz", "i1 false")


@_operation
def popcount(compiler: Compiler, node: ast.Call) -> Value:
    return _bits(compiler, node, "ctpop")


_SUFFIX = {
    "half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "<8 x float>": "v8f32",
}  # fmt: skip


def _float_intrinsic(name: str) -> Operation:
    def emit(compiler: Compiler, node: ast.Call) -> Value:
        values = _values(compiler, node)
        kind = next(v.type for v in values if v.type is not None)
        values = [compiler.typed(v, kind) for v in values]
        return compiler.intrinsic(f"llvm.{name}.{_SUFFIX[kind.llvm]}", kind, values)

    return Operation(name, emit)


fma = _float_intrinsic("fma")
sqrt = _float_intrinsic("sqrt")
fabs = _float_intrinsic("fabs")
floor = _float_intrinsic("floor")
ceil = _float_intrinsic("ceil")
round_even = _float_intrinsic("roundeven")
truncate = _float_intrinsic("trunc")
maximum = _float_intrinsic("maxnum")
minimum = _float_intrinsic("minnum")
maximum_nan = _float_intrinsic("maximum")
minimum_nan = _float_intrinsic("minimum")
exp2 = _float_intrinsic("exp2")
log2 = _float_intrinsic("log2")
sin = _float_intrinsic("sin")
cos = _float_intrinsic("cos")


@_operation
def saturating(compiler: Compiler, node: ast.Call) -> Value:
    """saturating(T, x): x truncated towards zero, clamped to T's range; NaN gives 0."""
    to: Type = compiler.static(node.args[0])
    value = compiler.expression(node.args[1])
    assert value.type is not None
    sign = "s" if to.kind == "i" else "u"
    name = f"llvm.fpto{sign}i.sat.{to.llvm}.{_SUFFIX[value.type.llvm]}"
    return compiler.intrinsic(name, to, [value])


@_operation
def bitcast(compiler: Compiler, node: ast.Call) -> Value:
    """bitcast(T, x): the bits of x as a T of the same width."""
    to: Type = compiler.static(node.args[0])
    value = compiler.expression(node.args[1])
    assert value.type is not None
    return compiler.assign(to, f"bitcast {value.type.llvm} {value.text} to {to.llvm}")


@_operation
def splat(compiler: Compiler, node: ast.Call) -> Value:
    """splat(T, x): the vector all of whose elements are x."""
    to: Type = compiler.static(node.args[0])
    value = compiler.expression(node.args[1])
    assert value.type is not None
    first = compiler.assign(
        to, f"insertelement {to.llvm} undef, {value.type.llvm} {value.text}, i32 0"
    )
    return compiler.assign(
        to, f"shufflevector {to.llvm} {first.text}, {to.llvm} undef, <8 x i32> zeroinitializer"
    )


@_operation
def stack_array(compiler: Compiler, node: ast.Call) -> Value:
    """stack_array(T, n): n elements on the stack, 64-byte aligned, uninitialised."""
    element: Type = compiler.static(node.args[0])
    count = compiler.integer_constant(node.args[1])
    name = compiler.fresh()
    compiler.allocas.append(f"  {name} = alloca [{count} x {element.llvm}], align 64")
    return Value(ptr(element), name)


@_operation
def indirect(compiler: Compiler, node: ast.Call) -> Value:
    """indirect(T, f, …): call the function at address f, which returns T."""
    result: Type = compiler.static(node.args[0])
    target, *values = (compiler.expression(a) for a in node.args[1:])
    arguments = [f"{v.type.llvm} {v.text}" for v in values if v.type is not None]
    return compiler.call(result, target.text, arguments)


@_operation
def memory_copy(compiler: Compiler, node: ast.Call) -> Value:
    """memory_copy(to, from, bytes)."""
    to, source, count = _values(compiler, node)
    size = compiler.widened(count)
    compiler.function.intrinsics.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    return compiler.call(
        void,
        "@llvm.memcpy.p0.p0.i64",
        [f"ptr {to.text}", f"ptr {source.text}", f"i64 {size.text}", "i1 false"],
    )


@_operation
def memory_set(compiler: Compiler, node: ast.Call) -> Value:
    """memory_set(to, byte, bytes)."""
    to, byte, count = _values(compiler, node)
    size = compiler.widened(count)
    compiler.function.intrinsics.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    value = compiler.typed(byte, u8)
    return compiler.call(
        void,
        "@llvm.memset.p0.i64",
        [f"ptr {to.text}", f"i8 {value.text}", f"i64 {size.text}", "i1 false"],
    )


@_operation
def atomic_add(compiler: Compiler, node: ast.Call) -> Value:
    """atomic_add(pointer, value): add, return the old value."""
    place, value = _values(compiler, node)
    kind = _pointee(place)
    amount = compiler.typed(value, kind)
    return compiler.assign(
        kind, f"atomicrmw add ptr {place.text}, {kind.llvm} {amount.text} {_ATOMIC_ORDER}"
    )


@_operation
def atomic_store(compiler: Compiler, node: ast.Call) -> Value:
    place, value = _values(compiler, node)
    kind = _pointee(place)
    text = compiler.typed(value, kind).text
    compiler.emit(
        f"store atomic {kind.llvm} {text}, ptr {place.text} {_ATOMIC_ORDER}, align {kind.size}"
    )
    return Value(void, "")


@_operation
def compare_exchange(compiler: Compiler, node: ast.Call) -> Value:
    """compare_exchange(pointer, expected, new): returns the old value."""
    place, expected, new = _values(compiler, node)
    kind = _pointee(place)
    old, value = compiler.typed(expected, kind), compiler.typed(new, kind)
    both = compiler.fresh()
    compiler.emit(
        f"{both} = cmpxchg ptr {place.text}, {kind.llvm} {old.text}, {kind.llvm} {value.text} "
        f"{_ATOMIC_ORDER} {_ATOMIC_ORDER}"
    )
    return compiler.assign(kind, f"extractvalue {{ {kind.llvm}, i1 }} {both}, 0")


@_operation
def atomic_load(compiler: Compiler, node: ast.Call) -> Value:
    (place,) = _values(compiler, node)
    kind = _pointee(place)
    return compiler.assign(
        kind, f"load atomic {kind.llvm}, ptr {place.text} acquire, align {kind.size}"
    )


@_operation
def field_pointer(compiler: Compiler, node: ast.Call) -> Value:
    """field_pointer(structure.field): the address of a field."""
    (argument,) = node.args
    kind, where = compiler.place(argument)
    return Value(ptr(kind), where)


@_operation
def never(compiler: Compiler, node: ast.Call) -> Value:
    """Control cannot come here."""
    compiler.terminate("unreachable")
    return Value(void, "")
