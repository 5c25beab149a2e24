"""The HTML report in a real browser: no error, no request, and its script does what it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dnncanon.reports import Results, write_html

from . import chromium
from .synthetic import case, measured, results, shrunk_from

pytestmark = pytest.mark.skipif(chromium.EXECUTABLE is None, reason="no chromium on PATH")

SHOWN_ROWS = (
    "[...document.querySelectorAll('#{} > tbody > tr')].filter((r) => r.checkVisibility()).length"
)
FILTER_STATE = "document.getElementById('filter-state').textContent"
PLOTS = "document.querySelectorAll('.plot .main-svg').length >= 3"
PLOT_STATE = "document.getElementById('plot-state').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def page(browser: chromium.Chromium, tmp_path: Path) -> Iterator[chromium.Page]:
    """The report of a run with failures, opened anew."""
    opened = browser.open(write_html(run_with_failures(), tmp_path / "index.html"))
    yield opened
    opened.close()


def run_with_failures() -> Results:
    drawn = case("big", "FAILED", message="<script>alert(1)</script>")
    return results(
        drawn,
        shrunk_from(drawn, "small", message="off in the corner"),
        measured("a b=float16", dtype="float16"),
        measured("c d=bfloat16", dtype="bfloat16", max_error=2.0, verdict="FAILED"),
        case("e", "UNSUPPORTED"),
    )


def draw_plots(page: chromium.Page) -> None:
    """Scroll to the plots, as they are drawn when they come near the window."""
    page.run("document.getElementById('accuracy').scrollIntoView()")
    page.wait(f"{PLOTS} || {PLOT_STATE}.startsWith('This browser')")


def test_the_page_opens_without_error_or_request_and_draws_its_plots(page: chromium.Page) -> None:
    assert page.run(SHOWN_ROWS.format("failure-table")) == 2
    assert "off in the corner" in page.run("document.getElementById('failure-table').innerText")
    draw_plots(page)
    assert page.run(PLOT_STATE) == ""
    assert page.run(PLOTS)
    assert page.errors == []
    assert page.requests == []


def test_every_primitive_and_theme_draws_without_error(page: chromium.Page) -> None:
    draw_plots(page)
    page.run("""
      document.getElementById("theme").click();
      const choice = document.getElementById("plot-primitive");
      for (const option of choice.options) {
        choice.value = option.value;
        choice.dispatchEvent(new Event("input"));
      }
    """)
    assert page.run(PLOTS)
    assert page.errors == []


def test_no_button_of_a_plot_sends_it_anywhere(page: chromium.Page) -> None:
    draw_plots(page)
    titles = page.run("[...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)")
    assert len(set(titles)) == 6
    assert not [title for title in titles if re.search("share|cloud|studio|upload", title, re.I)]


def test_an_error_and_a_request_would_be_noticed(page: chromium.Page) -> None:
    page.run("setTimeout(() => undefinedName()); fetch('https://example.org/x').catch(() => 0); 0")
    page.run("new Promise((done) => setTimeout(done, 100))")
    assert any("undefinedName" in error for error in page.errors)
    assert any("Content Security Policy" in error for error in page.errors)


@pytest.mark.parametrize("run", [results(case("a")), results()], ids=["no figures", "no cases"])
def test_a_page_with_less_in_it_opens_without_error(
    browser: chromium.Chromium, tmp_path: Path, run: Results
) -> None:
    page = browser.open(write_html(run, tmp_path / "index.html"))
    assert page.errors == []


def test_filtering_finds_whole_words(page: chromium.Page) -> None:
    page.run("""
      const words = document.getElementById("filter-words");
      words.value = "float16";
      words.dispatchEvent(new Event("input"));
    """)
    assert page.run(SHOWN_ROWS.format("case-table")) == 2  # one case of two rows, not bfloat16's
    assert page.run(FILTER_STATE) == "1 of 4 shown"


def test_filtering_by_verdict(page: chromium.Page) -> None:
    page.run("""
      const verdict = document.getElementById("filter-verdict");
      verdict.value = "FAILED";
      verdict.dispatchEvent(new Event("input"));
    """)
    assert page.run(FILTER_STATE) == "2 of 4 shown"


def test_a_cell_of_the_matrix_leads_to_its_cases(page: chromium.Page) -> None:
    page.run("document.querySelector('[data-filter=\"conv_forward bfloat16\"]').click()")
    assert page.run(FILTER_STATE) == "1 of 4 shown"


def test_sorting_by_a_figure(page: chromium.Page) -> None:
    page.run("""
      var head = [...document.querySelectorAll("#case-table th")].find((h) => h.innerText.includes("bound"));
      var lines = () => [...document.querySelectorAll("#case-table .below code")].map((c) => c.textContent);
    """)
    page.run("head.querySelector('button').click()")
    assert page.run("head.getAttribute('aria-sort')") == "descending"
    assert page.run("lines()")[:2] == ["c d=bfloat16", "a b=float16"]
    page.run("head.querySelector('button').click()")
    assert page.run("lines()")[-2:] == ["a b=float16", "c d=bfloat16"]


def test_the_theme_button_changes_and_keeps_the_theme(page: chromium.Page) -> None:
    page.run("localStorage.removeItem('dnncanon-theme')")
    before = page.run("getComputedStyle(document.body).backgroundColor")
    page.run("document.getElementById('theme').click()")
    assert page.run("getComputedStyle(document.body).backgroundColor") != before
    kept = page.run("localStorage.getItem('dnncanon-theme')")
    assert kept == page.run("document.documentElement.dataset.theme")
    page.run("localStorage.removeItem('dnncanon-theme')")


def test_copying_gives_the_command(page: chromium.Page) -> None:
    page.run("""
      var copied = null;
      Object.defineProperty(navigator, "clipboard", { value: { writeText: async (t) => { copied = t; } } });
      document.querySelector("#failure-table [data-copy]").click();
    """)
    page.wait("copied")
    assert page.run("copied") == "dnncanon repro 'small' --backend gpu"


def test_a_narrow_window_does_not_scroll_sideways(page: chromium.Page) -> None:
    page.resize(400, 800)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
