"""The specification in print: what a declaration says, as plain text or as Markdown.

A page is built once, as sections of rows, and written by one of two writers. Everything on it is read
from the declaration.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import shorten, wrap
from typing import Any

from dnncanon.spec.numerics import NUMERICS
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Call,
    Primitive,
    Scale,
    TensorSpec,
    primitives,
)
from dnncanon.spec.tensors import TensorType

WIDTH = 100
_EXAMPLE_SCALE = Scale(batch=4, channels=16, extent=64, multiplications=1_000_000)

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    """A titled part of a page: ``verbatim`` lines, or rows under column heads, the last one prose."""

    title: str
    verbatim: tuple[str, ...] = ()
    heads: Row = ()
    rows: tuple[Row, ...] = ()


def render(primitive: Primitive[Any]) -> str:
    """The definition of a primitive as plain text, 100 columns wide where its formula allows."""
    lines = [primitive.name, "=" * len(primitive.name), primitive.summary, ""]
    for section in _sections(primitive):
        lines += [section.title.upper(), *_plain(section), ""]
    return "\n".join(lines)


def render_markdown(primitive: Primitive[Any]) -> str:
    """The definition of a primitive as a Markdown page."""
    lines = [f"# {primitive.name}", "", primitive.summary, ""]
    for section in _sections(primitive):
        lines += [f"## {section.title}", "", *_markdown(section), ""]
    return "\n".join(lines)


def listing() -> str:
    """All primitives, one line each, under their families."""
    declared = list(primitives().values())
    width = max(len(primitive.name) for primitive in declared)
    lines = []
    for family, members in groupby(declared, key=lambda primitive: primitive.family):
        lines.append(family)
        for primitive in members:
            summary = shorten(primitive.summary, WIDTH - width - 4, placeholder=" …")
            lines.append(f"  {primitive.name:{width}}  {summary}")
    return "\n".join(lines) + "\n"


# --- What is on a page ----------------------------------------------------------------------------


def _sections(primitive: Primitive[Any]) -> Iterator[_Section]:
    tensor_heads, attribute_heads = ("name", "dims", "meaning"), ("name", "default", "meaning")
    yield _Section("Definition", verbatim=tuple(primitive.formula.splitlines()))
    yield _Section("Call", verbatim=_signature(primitive))
    yield _Section("Inputs", heads=tensor_heads, rows=tuple(map(_tensor, primitive.inputs)))
    yield _Section("Outputs", heads=tensor_heads, rows=tuple(map(_tensor, primitive.outputs)))
    if primitive.attributes:
        rows = tuple(map(_attribute, primitive.attributes))
        yield _Section("Attributes", heads=attribute_heads, rows=rows)
    yield _Section("Dtypes", heads=("dtype", "numerics classes"), rows=_dtypes(primitive))
    yield _Section("Numerics classes", heads=("class", "meaning"), rows=_numerics(primitive))
    rules = tuple(f"{rule.text} [{rule.error.__name__}]" for rule in primitive.constraints)
    yield _Section("Constraints", heads=("no.", "rule [error]"), rows=_numbered("C", rules))
    if primitive.decisions:
        rows = _numbered("D", primitive.decisions)
        yield _Section("Decisions", heads=("no.", "decision"), rows=rows)
    yield _Section("Cost", heads=("figure", "meaning"), rows=_cost(primitive))
    if primitive.source:
        yield _Section("Source", heads=("",), rows=((primitive.source,),))


def _signature(primitive: Primitive[Any]) -> Row:
    tensors = [f"{t.name}=None" if t.optional else t.name for t in primitive.inputs]
    attributes = [
        a.name if a.default is REQUIRED else f"{a.name}={a.default!r}" for a in primitive.attributes
    ]
    results = ", ".join(t.name for t in primitive.outputs)
    keywords = ["*", *attributes] if attributes else []
    opening = f"{results} = {primitive.name}("
    text = f"{opening}{', '.join([*tensors, '/', *keywords])})"
    return tuple(wrap(text, WIDTH - 2, subsequent_indent=" " * len(opening)))


def _tensor(tensor: TensorSpec) -> Row:
    meaning = f"optional; {tensor.doc}" if tensor.optional else tensor.doc
    return tensor.name, f"[{', '.join(tensor.dims.split())}]", meaning


def _attribute(attribute: Attribute) -> Row:
    default = "required" if attribute.default is REQUIRED else repr(attribute.default)
    return attribute.name, default, f"{attribute.doc} Domain: {attribute.kind.describes}."


def _dtypes(primitive: Primitive[Any]) -> tuple[Row, ...]:
    return tuple((row.dtype, ", ".join(row.numerics)) for row in primitive.dtypes)


def _numerics(primitive: Primitive[Any]) -> tuple[Row, ...]:
    used = dict.fromkeys(name for row in primitive.dtypes for name in row.numerics)
    return tuple((name, NUMERICS[name].doc) for name in used)


def _numbered(letter: str, texts: tuple[str, ...]) -> tuple[Row, ...]:
    return tuple((f"{letter}{number}", text) for number, text in enumerate(texts, start=1))


def _cost(primitive: Primitive[Any]) -> tuple[Row, ...]:
    call = _example(primitive)
    return (
        ("flops", str(Call.flops.__doc__)),
        ("least bytes", str(Call.least_bytes.__doc__)),
        (
            "example",
            f"{_call_text(call.arguments)}: {call.flops:,} flops, {call.least_bytes:,} bytes",
        ),
    )


class _Middle:
    """A draw that takes the middle of everything: the same ordinary call each time."""

    def integer(self, low: int, high: int) -> int:
        return (low + high) // 2

    def choice(self, options: tuple[Any, ...]) -> Any:
        return options[len(options) // 2]


def _example(primitive: Primitive[Any]) -> Call[Any]:
    dtype = "float32" if primitive.numerics("float32") else primitive.dtypes[0].dtype
    return primitive.bind_arguments(primitive.domain(_Middle(), _EXAMPLE_SCALE, dtype))


def _call_text(arguments: Arguments) -> str:
    def shape(tensor: TensorType) -> str:
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"

    tensors = [f"{name}={shape(tensor)}" for name, tensor in arguments.tensors.items()]
    return ", ".join([*tensors, *(f"{k}={v!r}" for k, v in arguments.attributes.items())])


# --- Writers --------------------------------------------------------------------------------------


def _plain(section: _Section) -> Iterator[str]:
    """Indented; columns aligned, without heads; the last column wrapped."""
    yield from (f"  {line}" for line in section.verbatim)
    if not section.rows:
        return
    widths = [max(map(len, column)) for column in list(zip(*section.rows, strict=True))[:-1]]
    for row in section.rows:
        lead = "  " + "".join(f"{cell:{width}}  " for cell, width in zip(row, widths, strict=False))
        yield from wrap(row[-1], WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))


def _markdown(section: _Section) -> Iterator[str]:
    """Verbatim lines as a code block, one column as a paragraph, more as a table."""
    if section.verbatim:
        yield from ("```text", *section.verbatim, "```")
    elif len(section.heads) == 1:
        yield from (cell for (cell,) in section.rows)
    else:
        yield _table_row(section.heads)
        yield _table_row(("---",) * len(section.heads))
        yield from (_table_row(tuple(map(_escaped, row))) for row in section.rows)


def _table_row(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(cell: str) -> str:
    """A cell whose own bars and asterisks mean themselves."""
    return cell.replace("|", r"\|").replace("*", r"\*")


__all__ = ["listing", "render", "render_markdown"]
