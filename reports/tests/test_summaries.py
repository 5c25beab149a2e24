"""The Markdown and the terminal summary."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon.reports import CaseResult, Results, summary_markdown, summary_text
from dnncanon.reports.formatting import format_number, format_ratio, format_seconds, printable
from dnncanon.reports.markdown import LIMIT_BYTES, cell, code, fenced

from .synthetic import (
    ENVIRONMENT,
    any_case,
    any_text,
    case,
    discrete,
    measured,
    results,
    runs,
    shrunk_from,
)

# --- Markdown -------------------------------------------------------------------------------------


def test_markdown_of_a_run_that_conforms() -> None:
    text = summary_markdown(results(measured("a"), measured("b", dtype="float16")))
    assert "**✓ gpu conforms in all 2 cases run.**" in text
    assert "2 of 2 cases run conform (100 %)." in text
    assert "| conv_forward | gpu | ✓ 1 | ✓ 1 |".replace("_", "\\_") in text
    assert "What does not conform" not in text


def test_markdown_shows_a_failure_with_its_smallest_case() -> None:
    drawn = case("big", "FAILED", message="wrong")
    text = summary_markdown(results(drawn, shrunk_from(drawn, "small", message="still wrong")))
    assert "```sh\ndnncanon repro 'small' --backend gpu\n```" in text
    assert "```text\nstill wrong\n```" in text


def test_markdown_warns_of_an_unfinished_run() -> None:
    text = summary_markdown(Results(ENVIRONMENT, (case(),), None))
    assert "[!WARNING]\n> The run did not finish" in text
    assert "**✓" not in text


@given(st.lists(any_case, max_size=3), st.integers(1000, 4000))
def test_markdown_never_exceeds_its_limit(cases: list[CaseResult], limit: int) -> None:
    assert len(summary_markdown(results(*cases), limit).encode("utf-8")) <= limit


def test_markdown_of_a_large_run_is_within_the_limit_of_github() -> None:
    cases = [
        case(f"{'x' * 30_000} seed={i}", "FAILED", message="y" * 9000, primitive=f"p{i}" * 9)
        for i in range(500)
    ]
    text = summary_markdown(results(*cases))
    assert len(text.encode()) <= LIMIT_BYTES
    assert "results.jsonl has all" in text


@given(any_text)
def test_a_code_block_cannot_be_left(text: str) -> None:
    lines = fenced(text, "text").strip("\n").split("\n")
    fence = lines[0].removesuffix("text")
    assert set(fence) == {"`"}
    assert lines[-1] == fence
    assert all(fence not in line for line in lines[1:-1])


@given(any_text)
def test_a_table_cell_stays_one_cell(text: str) -> None:
    for shown in (cell(text), code(text)):
        assert "\n" not in shown
        unescaped = re.sub(r"\\.", "", shown)  # what is left when escaped characters are gone
        assert "|" not in unescaped
        assert "`" not in unescaped
    assert "<" not in cell(text)


def test_markdown_has_the_figures_of_every_cell() -> None:
    text = summary_markdown(results(measured("a", bias=2.0), discrete("b", 3)))
    figures = "| float32 | ieee | 100 | 0.250 | 0.200 | 0.25 | +2 | 1.5 | ≤ 1.5 | <code>a</code> |"
    assert figures in text
    assert "| int32 | ieee | 100 | ∞ | 0 | – | – | 3 wrong | – | <code>b</code> |" in text


# --- terminal -------------------------------------------------------------------------------------


def test_text_ends_with_the_conclusion() -> None:
    text = summary_text(results(case("a"), case("b", "FAILED", message="wrong")))
    assert text.endswith("✗ gpu does not conform: 1 of 2 cases run does not.\n")
    assert "✗ 1/2" in text
    assert "\x1b" not in text


def test_text_has_the_figures_of_every_cell() -> None:
    lines = summary_text(results(measured("a", bias=2.0), discrete("b"))).splitlines()
    (measured_one,) = [line.split() for line in lines if "0.250" in line]
    assert measured_one[:3] == ["conv_forward", "float32", "ieee"]
    assert measured_one[3:] == ["0.250", "0.25", "+2", "1.5", "≤", "1.5"]
    assert any(line.split()[1:] == ["int32", "ieee", "0", "–", "–", "exact", "–"] for line in lines)


def test_text_shows_the_worst_cells_and_says_how_many_it_leaves_out() -> None:
    cells = [measured(f"c{i}", primitive=f"p{i:02}", max_error=i / 100) for i in range(20)]
    text = summary_text(results(*cells))
    shown = re.findall(r"^ (p\d\d)  +float32", text, re.MULTILINE)
    assert shown == [f"p{i:02}" for i in range(8, 20)]
    assert "The 8 others are nearer to exact; the report has them." in text


def test_text_never_cuts_a_figure() -> None:
    names = {"primitive": "p" * 40, "backend": "b" * 20, "numerics": "n" * 20}
    cells = [measured("a", max_ulp=65000.0, **names), measured("b")]
    text = summary_text(results(*cells), width=80)
    accuracy = text[text.index("accuracy") :]
    assert "65,000" in accuracy
    assert "…" not in accuracy


def test_text_never_breaks_a_command() -> None:
    line = "conv_forward " + " ".join(f"attribute{i}=1,1" for i in range(40))
    text = summary_text(results(case(line, "FAILED")), width=60)
    assert f"  dnncanon repro '{line}' --backend gpu\n" in text


def test_text_in_color() -> None:
    assert "\x1b[" in summary_text(results(case()), color=True)


def test_text_lets_no_escape_sequence_of_a_message_through() -> None:
    text = summary_text(results(case("[red]a[/red]", "FAILED", message="\x1b[2Jgone\x07")))
    assert "\\x1b[2Jgone\\x07" in text
    assert "[red]a[/red]" in text


def test_text_says_how_many_failures_it_leaves_out() -> None:
    text = summary_text(results(*(case(f"c{i}", "FAILED") for i in range(25))))
    assert "… and 15 more that do not conform" in text


def test_text_of_an_unfinished_run() -> None:
    text = summary_text(Results(ENVIRONMENT, (case(),), None, truncated=True))
    assert "ends in the middle of a line" in text
    assert "✓ gpu" not in text


@given(runs())
def test_text_of_any_run(cases: list[CaseResult]) -> None:
    assert summary_text(results(*cases))


# --- figures --------------------------------------------------------------------------------------


@given(st.floats(0, 1e9))
def test_a_ratio_is_shown_on_its_side_of_1(ratio: float) -> None:
    assert (float(format_ratio(ratio)) > 1) == (ratio > 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.41, "0.410"),
        (462.4, "462"),
        (1.0004, "1.00040"),
        (float("nan"), "NaN"),
        (float("inf"), "∞"),
    ],
)
def test_format_ratio(value: float | None, shown: str) -> None:
    assert format_ratio(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (-2.345, "−2.35"),
        (12345.6, "12,346"),
        (1e-5, "1.00e−05"),
        (-float("inf"), "−∞"),
    ],
)
def test_format_number(value: float | None, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 µs"),
        (2e-6, "2 µs"),
        (0.0123, "12.3 ms"),
        (2, "2 s"),
        (600, "10.0 min"),
        (9000, "2.5 h"),
    ],
)
def test_format_seconds(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


@given(any_text)
def test_printable_text_is_legal_everywhere(text: str) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert printable(shown) == shown
