"""A printed page holds all that a declaration says."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dnncanon import spec
from dnncanon.spec import book

PRIMITIVES = list(spec.primitives().values())
each_primitive = pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda p: p.name)
each_writer = pytest.mark.parametrize("render", [book.render, book.render_markdown])

Writer = Callable[[spec.Primitive[Any]], str]


def words(text: str) -> str:
    """Text without its line breaks, escapes and columns, to look for sentences in."""
    return " ".join(text.replace("\\", "").replace("|", " ").split())


@each_primitive
@each_writer
def test_a_page_says_everything_that_is_declared(
    primitive: spec.Primitive[Any], render: Writer
) -> None:
    page = words(render(primitive))
    texts = [primitive.name, primitive.summary, primitive.formula, primitive.source]
    for tensor in (*primitive.inputs, *primitive.outputs):
        texts += [f"{tensor.name} [{', '.join(tensor.dims.split())}]", tensor.doc]
    for attribute in primitive.attributes:
        texts += [attribute.name, attribute.doc, attribute.kind.describes]
    for row in primitive.dtypes:
        texts += [f"{row.dtype} {', '.join(row.numerics)}"]
        texts += [spec.NUMERICS[name].doc for name in row.numerics]
    for number, constraint in enumerate(primitive.constraints, start=1):
        texts.append(f"C{number} {constraint.text} [{constraint.error.__name__}]")
    for number, decision in enumerate(primitive.decisions, start=1):
        texts.append(f"D{number} {decision}")
    assert [text for text in texts if words(text) not in page] == []


@each_primitive
def test_numbers_are_those_of_the_messages(primitive: spec.Primitive[Any]) -> None:
    page = words(book.render(primitive))
    for constraint in primitive.constraints:
        number = primitive.label(constraint).removeprefix(f"{primitive.name} ")
        assert f"{number} {words(constraint.text)}" in page


@each_primitive
def test_plain_pages_are_100_columns_wide(primitive: spec.Primitive[Any]) -> None:
    formula = {f"  {line}" for line in primitive.formula.splitlines()}
    lines = book.render(primitive).splitlines()
    assert [line for line in lines if len(line) > 100 and line not in formula] == []
    assert [line for line in lines if line != line.rstrip()] == []


@each_primitive
def test_the_example_is_a_legal_call_with_its_cost(primitive: spec.Primitive[Any]) -> None:
    call = book._example(primitive)
    page = words(book.render(primitive))
    assert f"{call.flops:,} flops, {call.least_bytes:,} bytes" in page
    only_moves = primitive.family == "movement" or primitive.name in ("im2col", "set_tensor")
    assert (call.flops == 0) == only_moves


@each_primitive
def test_markdown_tables_have_one_width(primitive: spec.Primitive[Any]) -> None:
    blocks = book.render_markdown(primitive).split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(tables) >= 6
    for table in tables:
        assert len({line.replace(r"\|", "").count("|") for line in table}) == 1


def test_call_line_reads_like_a_signature() -> None:
    page = words(book.render(spec.conv_bias_activation_forward))
    assert "y = conv_bias_activation_forward(x, w, bias, z=None, /, *, padding=0, stride=1," in page
    assert "dw = conv_backward_filter(x, dy, /, *, padding=0," in words(
        book.render(spec.conv_backward_filter)
    )
    assert "db = conv_backward_bias(dy, /)" in book.render(spec.conv_backward_bias)


def test_required_attributes_say_so() -> None:
    assert "filter_size required Spatial extents" in words(book.render(spec.conv_backward_filter))


def test_optional_tensors_say_so() -> None:
    page = words(book.render(spec.conv_bias_activation_forward))
    assert "z [N, K, *O] optional; residual" in page


def test_empty_sections_are_left_out() -> None:
    assert "ATTRIBUTES" not in book.render(spec.conv_backward_bias)
    assert "## Attributes" not in book.render_markdown(spec.conv_backward_bias)


def test_listing_has_each_primitive_on_a_line_under_its_family() -> None:
    lines = book.listing().splitlines()
    assert lines[0] == PRIMITIVES[0].family
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(spec.primitives())
    assert max(map(len, lines)) <= 100
    assert all(line in {p.family for p in PRIMITIVES} for line in lines if line[0] != " ")


@pytest.mark.parametrize("function", [book.render, book.render_markdown, book.listing])
def test_pages_end_in_one_newline(function: Callable[..., str]) -> None:
    takes_primitive = bool(inspect.signature(function).parameters)
    page = function(spec.conv_forward) if takes_primitive else function()
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
