"""The HTML report: what it says, that it escapes, loads nothing and stays bounded."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnncanon.reports import CaseResult, Results, html, render, write_html
from dnncanon.reports.figures import MAX_POINTS, plot_data, quartiles
from dnncanon.reports.formatting import printable
from dnncanon.reports.html import TABLE_LIMIT, cases_shown, heat_level, render_html, ulp_order
from dnncanon.reports.statistics import matrix

from .synthetic import ENVIRONMENT, any_case, case, discrete, measured, results, runs, shrunk_from

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


class Page(HTMLParser):
    """Elements, text and table rows of a page; complains of tags that do not match."""

    VOID = frozenset({"meta", "link", "br", "input", "img", "line"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & {*self._open}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(*cases: CaseResult) -> Page:
    return Page(render_html(results(*cases)))


# --- what it says ---------------------------------------------------------------------------------


def test_a_run_that_conforms() -> None:
    shown = page(measured("a"), measured("b", dtype="float16"), case("c", "UNSUPPORTED"))
    assert "✓ gpu conforms in all 2 cases run." in shown.text
    assert "2 of 2 cases run conform (100 %)." in shown.text
    assert "What does not conform" not in shown.text


def test_a_failure_is_shown_with_its_command_message_and_origin() -> None:
    drawn = case("big", "FAILED", message="1 element is off")
    shown = page(drawn, shrunk_from(drawn, "small", message="off in the corner"), measured("a"))
    assert "1 case does not conform." in shown.text
    assert "off in the corner" in shown.text
    assert "dnncanon repro 'small' --backend gpu" in shown.text
    assert "Shrunk from the case that was drawn" in shown.text
    assert "dnncanon repro 'big' --backend gpu" in shown.text


def test_nothing_tested() -> None:
    shown = page(case("a", "UNSUPPORTED"))
    assert "~ Nothing was tested" in shown.text
    assert "0 of 0 cases run conform (none tested)." in shown.text
    assert "The results file holds no case." in page().text


def test_an_unfinished_run_is_not_shown_as_conforming() -> None:
    shown = Page(render_html(Results(ENVIRONMENT, (case(),), None, truncated=True)))
    assert "The run did not finish" in shown.text
    assert not any("passed" in (p.get("class") or "") for p in shown.all("p"))


def test_the_environment_is_shown() -> None:
    text = page(case()).text
    for fact in ("dnncanon run --backend gpu --level quick", "emulator", "3.11.7", "numpy version"):
        assert fact in text


@settings(max_examples=20)
@given(runs())
def test_any_run_gives_a_well_formed_page(cases: list[CaseResult]) -> None:
    page(*cases)


# --- tables that everyone can read ----------------------------------------------------------------


def test_tables_have_captions_and_heads_have_scope() -> None:
    shown = page(measured("a"), case("b", "FAILED"), measured("c", backend="torch"))
    assert len(shown.all("caption")) == len(shown.all("table")) > 5
    assert all(head.get("scope") for head in shown.all("th"))


def test_every_row_of_a_table_has_the_same_width() -> None:
    for backend in ("gpu", "torch"):
        text = render_html(
            results(measured("a"), case("b", "FAILED"), measured("c", backend=backend))
        )
        for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
            rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
            widths = {row_width(row) for row in rows if "rowspan" not in row}
            first = row_width(rows[0])
            # The second row of a double head lacks the cell that spans both.
            assert widths <= ({first, first - 1} if "rowspan" in rows[0] else {first}), table[:200]


def row_width(row: str) -> int:
    cells = re.findall(r"<t[hd]\b[^>]*>", row)
    spans = [re.search(r'colspan="(\d+)"', cell) for cell in cells]
    return sum(int(span.group(1)) if span else 1 for span in spans)


# --- accuracy -------------------------------------------------------------------------------------


def accuracy_rows(*cases: CaseResult) -> list[str]:
    """The text of each entry of the table of accuracy."""
    table = (
        render_html(results(*cases)).partition('id="accuracy-table"')[2].partition("</table>")[0]
    )
    return [Page(body).text for body in re.findall(r"<tbody.*?</tbody>", table, re.DOTALL)]


def test_the_table_of_accuracy_has_every_figure_of_a_cell_in_one_row() -> None:
    worst = measured("b", max_error=0.75, bias=3.25, max_ulp=9.0, mean_square=0.75)
    (row,) = accuracy_rows(measured("a"), worst, case("c", "UNSUPPORTED"))
    assert row.startswith("conv_forward float32 ieee ✓ 2 200 0.750 0.200 0.5 +3.25 9 ≤ 2 ")
    assert "70.0 % exact, 90.0 % ≤ 1/2 ULP, 98.0 % ≤ 1 ULP, 100 % ≤ 2 ULP" in row
    assert row.endswith(" b Copy the command that runs it again")
    assert "dnncanon repro &#39;b&#39; --backend gpu" in render_html(results(worst))


def test_every_backend_has_its_row() -> None:
    rows = accuracy_rows(measured("a"), measured("b", backend="torch", numerics="tf32"))
    assert [row.split()[2:4] for row in rows] == [["gpu", "ieee"], ["torch", "tf32"]]


def test_discrete_outputs_are_exact_or_wrong_and_have_no_histogram() -> None:
    exact, wrong = accuracy_rows(discrete("a"), discrete("b", 3, dtype="uint8"))
    assert " 100 0 0 – – exact – " in exact
    assert " 100 ✗ ∞ 0 – – 3 wrong – " in wrong
    assert '<svg class="bars"' not in render_html(results(discrete("a")))


def test_a_cell_without_figures_has_its_failure_and_one_that_did_not_run_no_row() -> None:
    (row,) = accuracy_rows(case("a", "CRASHED"), case("b", "UNSUPPORTED", dtype="float16"))
    assert " – – – – – – " in row
    assert row.endswith(" a Copy the command that runs it again")


def test_a_histogram_is_told_in_words() -> None:
    (picture,) = [
        svg for svg in page(measured("a")).all("svg") if "bars" in (svg.get("class") or "")
    ]
    assert picture["role"] == "img"
    assert picture["aria-label"] == "0 ULP: 70; ≤ 1/2 ULP: 20; ≤ 1 ULP: 8; ≤ 2 ULP: 2"


def test_ulps_sort_by_size_and_wrong_elements_behind_them() -> None:
    order = [ulp_order(*figures) for figures in [(0.0, None), (2.5, 0), (1e9, None), (None, 1)]]
    assert list(map(float, order)) == sorted(map(float, order))
    assert float(ulp_order(None, 7)) > float(ulp_order(5.0, 6))
    assert ulp_order(None, 0) == "0"
    assert ulp_order(None, None) == ""


# --- safety ---------------------------------------------------------------------------------------


def test_hostile_text_is_escaped_wherever_it_stands() -> None:
    hostile = measured(
        HOSTILE,
        verdict="FAILED",
        message=HOSTILE,
        primitive=HOSTILE,
        dtype=HOSTILE,
        backend=HOSTILE,
        layer=HOSTILE,
        numerics=HOSTILE,
        origin=HOSTILE,
        counters={HOSTILE: 1.0},
    )
    shown = page(hostile, shrunk_from(hostile, HOSTILE + "s", message=HOSTILE))
    assert not shown.all("img")
    assert len(shown.all("script")) == len(page(measured("a")).all("script"))
    assert shown.text.count(HOSTILE) > 10


@settings(max_examples=20)
@given(st.lists(any_case, max_size=3))
def test_any_text_gives_a_well_formed_page(cases: list[CaseResult]) -> None:
    text = render_html(results(*cases))
    text.encode("utf-8")
    assert len(Page(text).all("script")) in (1, 3)  # with plots: data, plotly, report.js


def test_the_page_refers_to_nothing_outside_itself() -> None:
    shown = page(measured("a"), case("b", "FAILED"))
    references = [
        value or ""
        for _, attributes in shown.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "background")
    ]
    assert references
    assert all(reference.startswith(("#", "data:")) for reference in references)
    style = (html._TEMPLATES / "report.css").read_text("utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_the_content_policy_allows_no_connection_and_only_our_scripts() -> None:
    (policy,) = [
        meta["content"] or ""
        for meta in page(measured("a")).all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = policy.split(";")[1]
    assert scripts.count("'sha256-") == 2
    assert "unsafe" not in scripts


def test_the_script_reaches_the_page_as_it_is_hashed() -> None:
    script = (html._TEMPLATES / "report.js").read_text("utf-8")
    assert printable(script) == script
    assert f"<script>{script}</script>" in render_html(results(case()))


# --- plots ----------------------------------------------------------------------------------------


def test_plotly_is_in_the_page_only_if_there_is_something_to_plot() -> None:
    assert 'id="plotly-packed"' not in render_html(results(case("a"), case("b", "FAILED")))
    assert render_html(results(measured("a"))).count('id="plotly-packed"') == 1


def test_plotly_is_packed_whole() -> None:
    import base64
    import gzip

    from plotly.offline import get_plotlyjs

    plotly = html._plotly()
    assert gzip.decompress(base64.b64decode(plotly.packed)).decode() == get_plotlyjs()


@given(runs())
def test_plot_data_is_json_and_complete(cases: list[CaseResult]) -> None:
    data = plot_data(cases, matrix(cases))
    if data is not None:
        json.dumps(data, allow_nan=False)
        assert sum(len(entry["x"]) for entry in data["points"]) == data["points_shown"]
        assert {entry["series"] for entry in data["points"]} <= {*data["series"]}


def test_points_are_bounded_and_keep_the_worst() -> None:
    cases = [measured(f"seed={i}", max_error=i / 9000) for i in range(9000)]
    data = plot_data(cases, matrix(cases))
    assert data is not None
    assert data["points_shown"] == MAX_POINTS
    assert max(y for entry in data["points"] for y in entry["y"]) == pytest.approx(
        8999 / 9000, abs=1e-4
    )


def test_figures_that_a_logarithmic_axis_cannot_show_are_drawn_at_its_ends() -> None:
    ratios = (0.0, float("inf"), float("nan"))
    cases = [measured(f"{i}", max_error=ratio) for i, ratio in enumerate(ratios)]
    data = plot_data(cases, matrix(cases))
    assert data is not None
    assert sorted(data["points"][0]["y"]) == [1e-3, 1e6, 1e6]
    assert sorted(data["points"][0]["ratio"]) == ["0", "NaN", "∞"]


def test_quartiles() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert quartiles([1.0, 2.0]) == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert quartiles([7.0]) == (7.0,) * 5


@pytest.mark.parametrize(
    ("ratio", "level"),
    [(0.0, 0), (0.24, 0), (0.5, 2), (0.99, 3), (1.0, 3), (1.01, 4), (float("nan"), 4)],
)
def test_heat_level(ratio: float, level: int) -> None:
    assert heat_level(ratio) == level


# --- large runs -----------------------------------------------------------------------------------


def large_run() -> Results:
    cases = [
        measured(
            f"conv_forward seed={i}",
            dtype="float16" if i % 2 else "float32",
            max_error=(i % 97) / 100,
        )
        for i in range(12_000)
    ]
    cases += [case(f"conv_forward bad={i}", "FAILED", message="x" * 10_000) for i in range(300)]
    return results(*cases)


def test_a_large_run_stays_small_and_says_what_it_leaves_out() -> None:
    run = large_run()
    text = render_html(run)
    shown = Page(text)
    assert len(text) < 2_000_000 + 3 * 10**6
    assert f"{TABLE_LIMIT:,} of 12,300 cases" in shown.text
    assert "The other 11,300 are left out" in shown.text
    assert "100 of 300 are written out" in shown.text
    assert "6,000 more characters" in shown.text
    assert text.count('<tbody data-verdict="') == TABLE_LIMIT


def test_the_cases_shown_are_those_that_matter() -> None:
    cases = large_run().cases
    shown = cases_shown(cases, 500)
    assert len(shown) == 500
    assert sum(one.failing for one in shown) == 300
    for cell in matrix(cases).cells.values():
        assert cell.worst in shown


def test_few_cases_are_all_shown() -> None:
    cases = (case("a"), case("b", "CRASHED"))
    assert [one.case for one in cases_shown(cases, 10)] == ["b", "a"]


# --- files ----------------------------------------------------------------------------------------


def test_render_writes_three_files_and_makes_the_folder(tmp_path: Path) -> None:
    paths = render(results(measured("a")), tmp_path / "new" / "report")
    assert [path.name for path in paths] == ["index.html", "junit.xml", "summary.md"]
    assert all(path.stat().st_size for path in paths)
    assert len(list((tmp_path / "new" / "report").iterdir())) == 3


def test_the_same_results_give_the_same_page() -> None:
    run = results(measured("a"), case("b", "FAILED"))
    assert render_html(run) == render_html(run)


def test_an_unwritable_place_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        render(results(), tmp_path / "file" / "report")
    with pytest.raises(OSError, match="none"):
        write_html(results(), tmp_path / "none" / "index.html")
