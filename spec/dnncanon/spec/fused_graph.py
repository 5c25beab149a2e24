"""Graphs of pointwise operations as text, ``relu_fwd(add(mul(a,b),c))``: reading, writing, checking.

    graph      = {name "=" expression ";"} expression
    expression = mode "(" operand {"," operand} {"," parameter "=" number} ")"
    operand    = expression | tensor | name | number

Modes and parameters are those of ``pointwise_operation``; tensors are a, b, … f. A name stands for a result
that is used more than once: ``t0=add(a,b);mul(t0,sigmoid_fwd(t0))``. Blanks mean nothing. Equal expressions
are one node, whether a name says so or not; so each graph has one text, its ``str``.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Any, Literal, NoReturn

from dnncanon.spec.attributes import shown
from dnncanon.spec.pointwise import (
    ATTRIBUTES,
    MODES,
    PARAMETER_RULES,
    Mode,
    PointwiseProblem,
)
from dnncanon.spec.pointwise import resolve as resolve_pointwise
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.tensors import TensorType

TENSORS = ("a", "b", "c", "d", "e", "f")
MAX_NODES = 64

Kind = Literal["number", "truth"]

FUSIBLE = {name: mode for name, mode in MODES.items() if name != "gen_index"}
"""The modes that a graph may have: those whose result is made of the values of their operands."""

_DEFAULTS = {attribute.name: attribute.default for attribute in ATTRIBUTES}


def parameters_of(mode: str) -> tuple[str, ...]:
    """The attributes of pointwise_operation that are about this mode: their first word is its first word."""
    return tuple(name for name in _DEFAULTS if mode.startswith(f"{name.partition('_')[0]}_"))


# --- What a graph is made of ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand that is a tensor of the call."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """An operand that is a number, kept as text: 0.0 and -0.0 are two."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text)


@dataclass(frozen=True, slots=True)
class Result:
    """An operand that is the result of an earlier node."""

    node: int


Operand = Tensor | Constant | Result


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. ``parameters`` are those that are not at their default, in alphabetical order."""

    mode: str
    operands: tuple[Operand, ...]
    parameters: tuple[tuple[str, float], ...] = ()

    def problem(self, dtype: str) -> PointwiseProblem:
        """The node as a pointwise operation of its own, on tensors of ``dtype``; it has no shape yet."""
        attributes = {**_DEFAULTS, **dict(self.parameters), "mode": self.mode}
        return resolve_pointwise(Arguments({"x": TensorType(dtype, (1,))}, attributes))


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which a walk from the last one, the result, comes to need them."""

    nodes: tuple[Node, ...]

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that it is of, in alphabetical order."""
        operands = (operand for node in self.nodes for operand in node.operands)
        return tuple(sorted({o.name for o in operands if isinstance(o, Tensor)}))

    @cached_property
    def uses(self) -> tuple[int, ...]:
        """How often each node is an operand."""
        counts = [0] * len(self.nodes)
        for node in self.nodes:
            for operand in node.operands:
                if isinstance(operand, Result):
                    counts[operand.node] += 1
        return tuple(counts)

    def __str__(self) -> str:
        named = [number for number, uses in enumerate(self.uses) if uses > 1]
        names = {number: f"t{k}" for k, number in enumerate(named)}
        texts: list[str] = []
        for node in self.nodes:
            texts.append(_written(node, {**dict(enumerate(texts)), **names}))
        return ";".join([*(f"{names[number]}={texts[number]}" for number in named), texts[-1]])

    def kinds(self, truths: frozenset[str]) -> tuple[Kind, ...]:
        """Of each node whether it is a number or a truth value, the tensors ``truths`` being of truth values.

        ValueError names the first operand that is not of the kind that its mode takes.
        """
        found: list[Kind] = []
        for node in self.nodes:
            kinds = [_kind(operand, truths, found) for operand in node.operands]
            found.append(_result_kind(node, kinds))
        return tuple(found)

    def simpler(self) -> Iterator["Graph"]:
        """Its parts; then itself with an operand in place of an operation, or a parameter at its default."""
        last = len(self.nodes) - 1
        for number in range(last):
            yield canonical(self.nodes, number)
        for number, node in enumerate(self.nodes):
            if number < last:
                yield from (self._with_operand(number, operand) for operand in node.operands)
            for parameter in node.parameters:
                fewer = tuple(other for other in node.parameters if other != parameter)
                changed = (
                    *self.nodes[:number],
                    replace(node, parameters=fewer),
                    *self.nodes[number + 1 :],
                )
                yield graph_of(str(canonical(changed, last)))

    def _with_operand(self, number: int, operand: Operand) -> "Graph":
        """The graph in which one of a node's operands stands for its result."""
        nodes = [
            replace(
                node,
                operands=tuple(
                    operand if other == Result(number) else other for other in node.operands
                ),
            )
            for node in self.nodes
        ]
        return canonical(nodes, len(nodes) - 1)


def _written(node: Node, results: Mapping[int, str]) -> str:
    """The text of a node whose operands have these texts."""
    texts = [results[o.node] if isinstance(o, Result) else _leaf(o) for o in node.operands]
    texts += [f"{name}={value!r}" for name, value in node.parameters]
    return f"{node.mode}({','.join(texts)})"


def _leaf(operand: Tensor | Constant) -> str:
    return operand.name if isinstance(operand, Tensor) else operand.text


def _kind(operand: Operand, truths: frozenset[str], nodes: list[Kind]) -> Kind:
    if isinstance(operand, Result):
        return nodes[operand.node]
    return "truth" if isinstance(operand, Tensor) and operand.name in truths else "number"


def _result_kind(node: Node, operands: list[Kind]) -> Kind:
    """The kind of a node's result, as the table of modes has it: t is a truth value, b is of x's kind."""
    mode, first = FUSIBLE[node.mode], operands[0]
    if (dtype := "bool" if first == "truth" else "float32") not in mode.dtypes:
        other = "numbers" if dtype == "bool" else "truth values"
        _mismatch(node, 0, first, other)
    for place, (name, kind) in enumerate(zip(mode.operands, operands, strict=True)):
        expected = "truth" if name == "t" else first
        if kind != expected:
            _mismatch(node, place, kind, "a truth value" if expected == "truth" else "a number")
    return "truth" if mode.y == "bool" else first


def _mismatch(node: Node, place: int, got: Kind, wanted: str) -> NoReturn:
    operand = node.operands[place]
    what = "a result" if isinstance(operand, Result) else _leaf(operand)
    kind = "a truth value" if got == "truth" else "a number"
    raise ValueError(f"operand {place + 1} of {node.mode}, {what}, is {kind}; pass {wanted}")


# --- From text ------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"(?P<number>[-+]?(?:inf\b|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?))|(?P<word>[a-z]\w*)|(?P<mark>[(),;=])",
    re.IGNORECASE,
)


def graph_of(text: object) -> Graph:
    """The graph that a text describes. ValueError says what is wrong with it, and what to pass instead."""
    if not isinstance(text, str):
        raise ValueError("not a text; pass an expression, such as 'relu_fwd(add(a,b))'")
    return _graph_of(text)


@lru_cache(maxsize=4096)
def _graph_of(text: str) -> Graph:
    return _Reader(text).graph()


def canonical(nodes: Sequence[Node], root: int) -> Graph:
    """The nodes that a result is made of, in the order of the walk from it."""
    order: dict[int, int] = {}
    made: list[Node] = []

    def visit(number: int) -> Result:
        if number not in order:
            node = nodes[number]
            operands = tuple(visit(o.node) if isinstance(o, Result) else o for o in node.operands)
            order[number] = len(made)
            made.append(replace(node, operands=operands))
        return Result(order[number])

    visit(root)
    return Graph(tuple(made))


class Builder:
    """Nodes one after the other; equal ones are one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}

    def add(
        self, mode: str, operands: tuple[Operand, ...], parameters: Mapping[str, Any]
    ) -> Result:
        """A node. ValueError for an unknown mode, a wrong number of operands, or a parameter that is none."""
        row = _known_mode(mode)
        if len(operands) != len(row.operands):
            takes = ", ".join(row.operands)
            raise ValueError(
                f"{mode} of {len(operands)} operands; pass {len(row.operands)}, for its {takes}"
            )
        if all(isinstance(operand, Constant) for operand in operands):
            raise ValueError(f"{mode} of numbers only; pass its result as a number")
        node = Node(mode, operands, _checked(mode, parameters))
        if node not in self._numbers:
            if len(self.nodes) == MAX_NODES:
                raise ValueError(f"more than {MAX_NODES} operations; pass two graphs")
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return Result(self._numbers[node])


def constant(value: float) -> Constant:
    return Constant(repr(float(value)))


def _known_mode(mode: str) -> Mode:
    if mode in FUSIBLE:
        return FUSIBLE[mode]
    if mode in MODES:
        raise ValueError(f"{mode} computes nothing of values; pass its result as a tensor")
    near = get_close_matches(mode[:40], FUSIBLE) or list(FUSIBLE)[:3]
    raise ValueError(
        f"no mode {shown(mode[:40])}; pass one of pointwise_operation's: {', '.join(near)}"
    )


def _checked(mode: str, parameters: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    known = parameters_of(mode)
    for name in parameters:
        if name not in known:
            has = f"only {', '.join(known)}" if known else "operands only"
            raise ValueError(f"{mode} has no parameter {name}; pass {has}")
    arguments = Arguments({}, {**_DEFAULTS, **parameters})
    for rule in PARAMETER_RULES:
        wrong = rule.check(arguments)
        if wrong is not None:
            raise ValueError(f"in {mode} {wrong}")
    given = {n: float(v) for n, v in parameters.items() if v is not None and v != _DEFAULTS[n]}
    return tuple(sorted(given.items()))


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens("".join(text.split())))
        self.at = 0
        self.builder = Builder()
        self.names: dict[str, Operand] = {}
        self.unused: set[str] = set()
        self.calls = 0

    def graph(self) -> Graph:
        while self._ahead(1) == "=":
            self._statement()
        root = self._operand()
        if self.at < len(self.tokens):
            raise ValueError(f"{shown(self._ahead())} after its end; pass one expression")
        if not isinstance(root, Result):
            raise ValueError(
                "no operation; pass an expression of at least one, such as identity(a)"
            )
        if self.unused:
            raise ValueError(f"{min(self.unused)} is not used; pass a graph without it")
        return canonical(self.builder.nodes, root.node)

    def _statement(self) -> None:
        name = self._next()
        if not name[0].isalpha() or name in (*TENSORS, *MODES, *self.names):
            raise ValueError(f"{shown(name[:40])} cannot be a name; pass a new one, such as t0")
        self._expect("=")
        self.names[name] = self._operand()
        self.unused.add(name)
        self._expect(";")

    def _operand(self) -> Operand:
        token = self._next()
        if self._ahead() == "(":
            return self._call(token)
        if token in TENSORS:
            return Tensor(token)
        if token in self.names:
            self.unused.discard(token)
            return self.names[token]
        if token[0].isalpha() and token.lower() != "inf":
            raise ValueError(
                f"{shown(token[:40])} is neither a tensor nor a name; pass {', '.join(TENSORS)}, a name "
                "given before, or mode(…)"
            )
        return constant(_number(token))

    def _call(self, mode: str) -> Operand:
        self.calls += 1
        if self.calls > MAX_NODES:  # so that texts are not nested deeper than Python's stack
            raise ValueError(f"more than {MAX_NODES} operations; pass two graphs")
        self._expect("(")
        operands: list[Operand] = []
        parameters: dict[str, float] = {}
        while True:
            if self._ahead(1) == "=":
                name = self._next()
                self._expect("=")
                if name in parameters:
                    raise ValueError(f"{name} is given twice; pass it once")
                parameters[name] = _number(self._next())
            else:
                operands.append(self._operand())
            if self._ahead() != ",":
                break
            self._expect(",")
        self._expect(")")
        return self.builder.add(mode, tuple(operands), parameters)

    def _ahead(self, distance: int = 0) -> str:
        place = self.at + distance
        return self.tokens[place] if place < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._ahead()
        if not token:
            raise ValueError("it ends too early; pass a whole expression")
        self.at += 1
        return token

    def _expect(self, mark: str) -> None:
        token = self._ahead()
        if token != mark:
            found = shown(token[:40]) if token else "the end"
            raise ValueError(f"{found} where {mark!r} should be; pass mode(operand,…)")
        self.at += 1


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"{shown(text[place])} means nothing; pass mode(operand,…)")
        yield match.group()
        place = match.end()


def _number(token: str) -> float:
    try:
        value = float(token)
    except ValueError:
        raise ValueError(f"{shown(token[:40])} is no number; pass one") from None
    if math.isinf(value) and not token.lower().endswith("inf"):
        raise ValueError(f"{shown(token[:40])} is beyond float64; pass inf")
    return value
