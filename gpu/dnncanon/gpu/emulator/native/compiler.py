"""The translation of one native function to LLVM IR text.

Every local variable is an alloca, which LLVM turns into registers. Statements are methods `do_…`,
expressions methods `on_…`, named after the nodes of Python's syntax tree.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import struct as packing
import textwrap
from typing import Any

from dnncanon.gpu.emulator.native.functions import (
    NativeFunction,
    Operation,
    Value,
    scope_of,
)
from dnncanon.gpu.emulator.native.types import (
    Array,
    NativeError,
    Struct,
    Type,
    f32,
    i1,
    i32,
    i64,
    ptr,
    u8,
    void,
)

__all__ = ["Compiler"]

_ORDERED_COMPARE = {
    ast.Eq: ("eq", "oeq"),
    ast.NotEq: ("ne", "une"),
    ast.Lt: ("lt", "olt"),
    ast.LtE: ("le", "ole"),
    ast.Gt: ("gt", "ogt"),
    ast.GtE: ("ge", "oge"),
}
_INTEGER_OPERATOR = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
_SIGNED_OPERATOR = {ast.FloorDiv: "div", ast.Mod: "rem", ast.RShift: "shr"}
_FLOAT_OPERATOR = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}


class Compiler:
    """Translates one function: every local is an alloca, which LLVM turns into registers."""

    def __init__(self, function: NativeFunction) -> None:
        assert function.python is not None
        self.function = function
        self.scope = scope_of(function.python)
        source = textwrap.dedent(inspect.getsource(function.python))
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.tree = tree
        self.allocas: list[str] = []
        self.lines: list[str] = []
        self.locals: dict[str, Type] = {}
        self.loops: list[tuple[str, str]] = []
        self.counter = itertools.count()
        self.terminated = False
        self.node: ast.AST = tree

    # ---- helpers
    def fail(self, message: str) -> NativeError:
        line = getattr(self.node, "lineno", 0)
        first = self.function.python.__code__.co_firstlineno if self.function.python else 0
        return NativeError(f"{self.function.symbol}, line {first + line - 1}: {message}")

    def fresh(self) -> str:
        return f"%v{next(self.counter)}"

    def label(self, hint: str) -> str:
        return f"{hint}{next(self.counter)}"

    def emit(self, line: str) -> None:
        if not self.terminated:
            self.lines.append(f"  {line}")

    def assign(self, kind: Type, expression: str) -> Value:
        name = self.fresh()
        self.emit(f"{name} = {expression}")
        return Value(kind, name)

    def start(self, label: str) -> None:
        if not self.terminated:
            self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")
        self.terminated = False

    def terminate(self, line: str) -> None:
        self.emit(line)
        self.terminated = True

    def typed(self, value: Value, kind: Type) -> Value:
        """A literal given its type, or a value that must already have it."""
        if value.type is None:
            assert value.literal is not None
            return Value(kind, _literal(value.literal, kind))
        if value.type is not kind and not (value.type.kind == kind.kind == "p"):
            raise self.fail(f"{value.type} where {kind} is needed")
        return value

    def integer_constant(self, node: ast.expr) -> int:
        value = self.expression(node)
        if not isinstance(value.literal, int):
            raise self.fail("a constant is needed here")
        return value.literal

    # ---- whole function
    def run(self) -> str:
        for name, kind in self.function.parameters:
            self.declare(name, kind)
            self.lines.append(f"  store {kind.llvm} %{name}, ptr %{name}.v")
        self.block(self.tree.body)
        if not self.terminated:
            self.terminate("ret void" if self.function.result is void else "unreachable")
        head = ", ".join(f"{t.llvm} %{n}" for n, t in self.function.parameters)
        return "\n".join(
            [
                f"define {self.function.result.llvm} @{self.function.symbol}({head}) "
                f"{self.function.attributes} {{",
                *self.allocas,
                *self.lines,
                "}",
            ]
        )

    def declare(self, name: str, kind: Type) -> None:
        self.locals[name] = kind
        self.allocas.append(f"  %{name}.v = alloca {kind.llvm}")

    # ---- statements
    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.terminated:
                return
            self.node = statement
            method = getattr(self, f"do_{type(statement).__name__}", None)
            if method is None:
                raise self.fail(f"{type(statement).__name__} is outside the language")
            method(statement)

    def do_Pass(self, node: ast.Pass) -> None:
        pass

    def do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # not a docstring
            self.expression(node.value)

    def do_Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        self.assign_to(target, self.expression(node.value))

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        assert isinstance(node.target, ast.Name)
        kind = self.static(node.annotation)
        if node.target.id not in self.locals:
            self.declare(node.target.id, kind)
        if node.value is not None:
            self.assign_to(node.target, self.expression(node.value))

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        load = ast.parse(ast.unparse(node.target), mode="eval").body
        left = self.expression(load)
        self.assign_to(node.target, self.binary(left, node.op, self.expression(node.value)))

    def assign_to(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            if target.id not in self.locals:
                if value.type is None:
                    raise self.fail(f"annotate {target.id}: a literal has no type of its own")
                self.declare(target.id, value.type)
            kind, place = self.locals[target.id], f"%{target.id}.v"
        else:
            kind, place = self.place(target)
        align = ", align 1" if isinstance(target, ast.Subscript) else ""
        self.emit(f"store {kind.llvm} {self.typed(value, kind).text}, ptr {place}{align}")

    def do_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.terminate("ret void")
            return
        value = self.typed(self.expression(node.value), self.function.result)
        self.terminate(f"ret {self.function.result.llvm} {value.text}")

    def do_If(self, node: ast.If) -> None:
        test = self.expression(node.test)
        if test.literal is not None:
            self.block(node.body if test.literal else node.orelse)
            return
        then, other, end = self.label("then"), self.label("else"), self.label("end")
        self.terminate(f"br i1 {self.truth(test)}, label %{then}, label %{other}")
        self.start(then)
        self.block(node.body)
        left_open = not self.terminated
        if left_open:
            self.terminate(f"br label %{end}")
        self.start_dead(other)
        self.block(node.orelse)
        if left_open or not self.terminated:
            if not self.terminated:
                self.terminate(f"br label %{end}")
            self.start_dead(end)

    def start_dead(self, label: str) -> None:
        """Start a block that control reaches by a branch, not by falling through."""
        self.terminated = True
        self.lines.append(f"{label}:")
        self.terminated = False

    def do_While(self, node: ast.While) -> None:
        head, body, end = self.label("while"), self.label("body"), self.label("done")
        self.start(head)
        test = self.expression(node.test)
        if test.literal is not None and test.literal:
            self.terminate(f"br label %{body}")
        else:
            self.terminate(f"br i1 {self.truth(test)}, label %{body}, label %{end}")
        self.start_dead(body)
        self.loop_body(node.body, head, end)
        self.terminate(f"br label %{head}")
        self.start_dead(end)

    def loop_body(self, body: list[ast.stmt], again: str, end: str) -> None:
        self.loops.append((again, end))
        self.block(body)
        self.loops.pop()

    def do_For(self, node: ast.For) -> None:
        assert isinstance(node.iter, ast.Call)
        assert isinstance(node.target, ast.Name)
        bounds = [self.expression(a) for a in node.iter.args]
        first, last, step = {
            1: lambda: (Value(None, "", 0), bounds[0], Value(None, "", 1)),
            2: lambda: (bounds[0], bounds[1], Value(None, "", 1)),
            3: lambda: (bounds[0], bounds[1], bounds[2]),
        }[len(bounds)]()
        kind = next((b.type for b in bounds if b.type is not None), i32)
        variable = node.target.id
        if variable not in self.locals:
            self.declare(variable, kind)
        self.assign_to(node.target, first)
        head, body, again, end = (self.label(h) for h in ("for", "body", "next", "done"))
        limit = self.typed(last, kind)
        self.start(head)
        current = self.assign(kind, f"load {kind.llvm}, ptr %{variable}.v")
        test = self.compare(current, ast.Lt(), limit)
        self.terminate(f"br i1 {test.text}, label %{body}, label %{end}")
        self.start_dead(body)
        self.loop_body(node.body, again, end)
        self.start(again)
        current = self.assign(kind, f"load {kind.llvm}, ptr %{variable}.v")
        self.assign_to(node.target, self.binary(current, ast.Add(), step))
        self.terminate(f"br label %{head}")
        self.start_dead(end)

    def do_Break(self, node: ast.Break) -> None:
        self.terminate(f"br label %{self.loops[-1][1]}")

    def do_Continue(self, node: ast.Continue) -> None:
        self.terminate(f"br label %{self.loops[-1][0]}")

    # ---- expressions
    def expression(self, node: ast.expr) -> Value:
        method = getattr(self, f"on_{type(node).__name__}", None)
        if method is None:
            raise self.fail(f"{type(node).__name__} is outside the language")
        value: Value = method(node)
        return value

    def static(self, node: ast.expr) -> Any:
        """A compile-time object (a type, a function, a constant) of the enclosing Python scope."""
        return eval(compile(ast.Expression(node), "<native>", "eval"), self.scope)

    def on_Constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool):
            return Value(i1, str(node.value).lower(), int(node.value))
        if not isinstance(node.value, int | float):
            raise self.fail(f"{node.value!r} is outside the language")
        return Value(None, "", node.value)

    def on_Name(self, node: ast.Name) -> Value:
        if node.id in self.locals:
            kind = self.locals[node.id]
            return self.assign(kind, f"load {kind.llvm}, ptr %{node.id}.v")
        value = self.scope.get(node.id)
        if isinstance(value, int | float):
            return Value(None, "", value)
        if isinstance(value, NativeFunction):
            self.need(value)
            return Value(ptr(u8), f"@{value.symbol}")
        raise self.fail(f"{node.id} is not a local or a constant")

    def on_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.expression(node.operand)
        if value.type is None:
            assert value.literal is not None
            negated = isinstance(node.op, ast.USub)
            return Value(None, "", -value.literal if negated else ~int(value.literal))
        if isinstance(node.op, ast.Not):
            return self.assign(i1, f"xor i1 {self.truth(value)}, true")
        if isinstance(node.op, ast.Invert):
            return self.assign(value.type, f"xor {value.type.llvm} {value.text}, -1")
        if value.type.kind == "f":
            return self.assign(value.type, f"fneg {value.type.llvm} {value.text}")
        return self.assign(value.type, f"sub {value.type.llvm} 0, {value.text}")

    def on_BinOp(self, node: ast.BinOp) -> Value:
        return self.binary(self.expression(node.left), node.op, self.expression(node.right))

    def binary(self, left: Value, operator: ast.operator, right: Value) -> Value:
        if left.type is None and right.type is None:
            return Value(None, "", _fold(left.literal, operator, right.literal))
        if left.type is not None and left.type.kind == "p":
            return self.pointer_arithmetic(left, operator, right)
        kind = left.type or right.type
        assert kind is not None
        a, b = self.typed(left, kind), self.typed(right, kind)
        name = type(operator)
        if kind.kind == "f":
            opcode = _FLOAT_OPERATOR.get(name)
        elif name in _INTEGER_OPERATOR:
            opcode = _INTEGER_OPERATOR[name]
        elif name in _SIGNED_OPERATOR:
            stem = _SIGNED_OPERATOR[name]
            prefix = ("a" if kind.kind == "i" else "l") if stem == "shr" else kind.kind
            prefix = {"i": "s"}.get(prefix, prefix)
            opcode = prefix + stem
        else:
            opcode = None
        if opcode is None:
            raise self.fail(f"{name.__name__} is not defined for {kind}")
        return self.assign(kind, f"{opcode} {kind.llvm} {a.text}, {b.text}")

    def pointer_arithmetic(self, left: Value, operator: ast.operator, right: Value) -> Value:
        """pointer ± bytes."""
        index = self.widened(right)
        if isinstance(operator, ast.Sub):
            index = self.assign(i64, f"sub i64 0, {index.text}")
        assert left.type is not None
        return self.assign(left.type, f"getelementptr i8, ptr {left.text}, i64 {index.text}")

    def widened(self, value: Value) -> Value:
        """An integer as i64, for address arithmetic."""
        if value.type is None:
            return self.typed(value, i64)
        return value if value.type.bits == 64 else self.convert(value, i64)

    def on_Compare(self, node: ast.Compare) -> Value:
        left = self.expression(node.left)
        result: Value | None = None
        for operator, other in zip(node.ops, node.comparators, strict=True):
            right = self.expression(other)
            test = self.compare(left, operator, right)
            result = (
                test if result is None else self.assign(i1, f"and i1 {result.text}, {test.text}")
            )
            left = right
        assert result is not None
        return result

    def compare(self, left: Value, operator: ast.cmpop, right: Value) -> Value:
        kind = left.type or right.type
        if kind is None:
            assert left.literal is not None
            assert right.literal is not None
            verdict = _fold_compare(left.literal, operator, right.literal)
            return Value(i1, str(verdict).lower(), int(verdict))
        if kind.kind == "p" and right.literal == 0:
            right = Value(kind, "null")
        a, b = self.typed(left, kind), self.typed(right, kind)
        integer, real = _ORDERED_COMPARE[type(operator)]
        if kind.kind == "f":
            return self.assign(i1, f"fcmp {real} {kind.llvm} {a.text}, {b.text}")
        if integer not in ("eq", "ne"):
            integer = ("s" if kind.kind == "i" else "u") + integer
        return self.assign(i1, f"icmp {integer} {kind.llvm} {a.text}, {b.text}")

    def truth(self, value: Value) -> str:
        if value.type is i1:
            return value.text
        return self.compare(value, ast.NotEq(), Value(None, "", 0)).text

    def on_BoolOp(self, node: ast.BoolOp) -> Value:
        """Short circuit, through a temporary."""
        place = f"logic{next(self.counter)}"
        self.declare(place, i1)
        end = self.label("end")
        for operand in node.values:
            test = self.truth(self.expression(operand))
            self.emit(f"store i1 {test}, ptr %{place}.v")
            more = self.label("more")
            ways = (more, end) if isinstance(node.op, ast.And) else (end, more)
            self.terminate(f"br i1 {test}, label %{ways[0]}, label %{ways[1]}")
            self.start_dead(more)
        self.start(end)
        return self.assign(i1, f"load i1, ptr %{place}.v")

    def on_IfExp(self, node: ast.IfExp) -> Value:
        """Both branches are evaluated (a select): they must be free of side effects."""
        test = self.expression(node.test)
        if test.literal is not None:
            return self.expression(node.body if test.literal else node.orelse)
        yes, no = self.expression(node.body), self.expression(node.orelse)
        kind = yes.type or no.type
        if kind is None:
            raise self.fail("a conditional of two literals has no type: convert one")
        a, b = self.typed(yes, kind), self.typed(no, kind)
        condition = self.truth(test)
        return self.assign(
            kind, f"select i1 {condition}, {kind.llvm} {a.text}, {kind.llvm} {b.text}"
        )

    # ---- memory
    def place(self, node: ast.expr) -> tuple[Type, str]:
        """Type and address of a field or element."""
        if isinstance(node, ast.Attribute):
            return self.field_place(node)
        if not isinstance(node, ast.Subscript):
            raise self.fail("cannot assign to this")
        base = self.expression(node.value)
        if base.type is None or not isinstance(base.type.pointee, Type):
            raise self.fail("subscripts need a pointer to a scalar")
        element = base.type.pointee
        index = self.widened(self.expression(node.slice))
        where = self.fresh()
        self.emit(f"{where} = getelementptr {element.llvm}, ptr {base.text}, i64 {index.text}")
        return element, where

    def field_place(self, node: ast.Attribute) -> tuple[Type, str]:
        base = self.expression(node.value)
        struct = base.type.pointee if base.type is not None else None
        if not isinstance(struct, Struct) or node.attr not in struct.fields:
            raise self.fail(f"{base.type} has no field {node.attr}")
        kind, offset = struct.fields[node.attr]
        where = self.fresh()
        self.emit(f"{where} = getelementptr i8, ptr {base.text}, i64 {offset}")
        if isinstance(kind, Array):
            raise _ArrayField(kind, where)
        return kind, where

    def on_Attribute(self, node: ast.Attribute) -> Value:
        try:
            kind, where = self.field_place(node)
        except _ArrayField as array:
            return Value(ptr(array.kind.element), array.where)
        return self.assign(kind, f"load {kind.llvm}, ptr {where}")

    def on_Subscript(self, node: ast.Subscript) -> Value:
        base = self.expression(node.value)
        struct = base.type.pointee if base.type is not None else None
        if isinstance(struct, Struct):
            index = self.widened(self.expression(node.slice))
            offset = self.assign(i64, f"mul i64 {index.text}, {struct.size}")
            assert base.type is not None
            return self.assign(base.type, f"getelementptr i8, ptr {base.text}, i64 {offset.text}")
        kind, where = self.place(node)
        return self.assign(kind, f"load {kind.llvm}, ptr {where}, align 1")

    # ---- calls
    def on_Call(self, node: ast.Call) -> Value:
        callee = self.static(node.func)
        if isinstance(callee, Type):
            return self.convert(self.expression(node.args[0]), callee)
        if isinstance(callee, Operation):
            return callee.emit(self, node)
        if not isinstance(callee, NativeFunction):
            raise self.fail(f"{ast.unparse(node.func)} is not a native function")
        self.need(callee)
        values = [self.expression(a) for a in node.args]
        if len(values) != len(callee.parameters):
            raise self.fail(f"{callee.symbol} takes {len(callee.parameters)} arguments")
        pairs = zip(values, callee.parameters, strict=True)
        arguments = [f"{t.llvm} {self.typed(v, t).text}" for v, (_, t) in pairs]
        return self.call(callee.result, f"@{callee.symbol}", arguments)

    def need(self, function: NativeFunction) -> None:
        if function not in self.function.calls:
            self.function.calls.append(function)

    def call(self, result: Type, target: str, arguments: list[str]) -> Value:
        text = f"call {result.llvm} {target}({', '.join(arguments)})"
        if result is void:
            self.emit(text)
            return Value(void, "")
        return self.assign(result, text)

    def intrinsic(self, name: str, result: Type, values: list[Value]) -> Value:
        types = ", ".join(v.type.llvm for v in values if v.type is not None)
        self.function.intrinsics.add(f"declare {result.llvm} @{name}({types})")
        return self.call(
            result, f"@{name}", [f"{v.type.llvm} {v.text}" for v in values if v.type is not None]
        )

    def convert(self, value: Value, to: Type) -> Value:
        """Explicit conversion, C semantics (integers wrap, floats to integers truncate)."""
        if value.type is None:
            return self.typed(value, to)
        source = value.type
        opcode = _conversion(source, to)
        if opcode is None:
            return Value(to, value.text)
        return self.assign(to, f"{opcode} {source.llvm} {value.text} to {to.llvm}")


class _ArrayField(Exception):
    """Raised where a scalar field was expected and an array field was found."""

    def __init__(self, kind: Array, where: str) -> None:
        super().__init__()
        self.kind = kind
        self.where = where


def _conversion(source: Type, to: Type) -> str | None:
    if source.llvm == to.llvm:
        return None
    if source.kind == "p":
        return "ptrtoint"
    if to.kind == "p":
        return "inttoptr"
    if source.is_integer and to.is_integer:
        if source.bits > to.bits:
            return "trunc"
        return "zext" if source.kind == "u" else "sext"
    if source.is_integer:
        return "uitofp" if source.kind == "u" else "sitofp"
    if to.is_integer:
        return "fptoui" if to.kind == "u" else "fptosi"
    return "fptrunc" if source.bits > to.bits else "fpext"


def _literal(value: int | float, kind: Type) -> str:
    if kind.kind == "f":
        single = packing.unpack("f", packing.pack("f", value))[0]
        rounded = single if kind is f32 else float(value)
        return f"0x{packing.unpack('<Q', packing.pack('<d', rounded))[0]:016X}"
    if kind.kind == "p":
        return "null" if value == 0 else f"inttoptr (i64 {int(value)} to ptr)"
    if kind is i1:
        return "true" if value else "false"
    return str(int(value))


def _fold(left: Any, operator: ast.operator, right: Any) -> Any:
    code = ast.Expression(ast.BinOp(ast.Constant(left), operator, ast.Constant(right)))
    return eval(compile(ast.fix_missing_locations(code), "<native>", "eval"))


def _fold_compare(left: Any, operator: ast.cmpop, right: Any) -> bool:
    code = ast.Expression(ast.Compare(ast.Constant(left), [operator], [ast.Constant(right)]))
    return bool(eval(compile(ast.fix_missing_locations(code), "<native>", "eval")))
