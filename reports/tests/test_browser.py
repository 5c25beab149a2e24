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


# --- the table of accuracy ------------------------------------------------------------------------

ACCURACY = "[...document.querySelectorAll('#accuracy-table > tbody')].filter((b) => !b.hidden)"
ACCURACY_DTYPES = f"{ACCURACY}.map((body) => body.dataset.dtype)"


def choose(page: chromium.Page, name: str, value: str) -> None:
    page.run(f"""
      var list = document.getElementById("accuracy-{name}");
      list.value = "{value}";
      list.dispatchEvent(new Event("input"));
    """)


def test_the_table_of_accuracy_is_filtered_by_primitive_and_dtype(page: chromium.Page) -> None:
    assert page.run(ACCURACY_DTYPES) == ["float32", "bfloat16", "float16"]
    choose(page, "dtype", "float16")
    assert page.run(ACCURACY_DTYPES) == ["float16"]
    assert page.run("document.getElementById('accuracy-state').textContent") == "1 of 3 shown"
    choose(page, "dtype", "")
    choose(page, "primitive", "conv_forward")
    assert len(page.run(ACCURACY_DTYPES)) == 3


def test_a_figure_of_the_overview_leads_to_its_row(page: chromium.Page) -> None:
    page.run("document.querySelector('.heat a[data-dtype=bfloat16]').click()")
    assert page.run(ACCURACY_DTYPES) == ["bfloat16"]
    assert page.run("location.hash") == "#accuracy-table"


def test_the_table_of_accuracy_sorts_by_every_figure(page: chromium.Page) -> None:
    """Descending first; what was not measured comes last."""
    heads = page.run("[...document.querySelectorAll('#accuracy-table th[scope=col]')].length")
    for index in range(heads):
        page.run(f"document.querySelectorAll('#accuracy-table .sort')[{index}].click()")
        assert len(page.run(ACCURACY_DTYPES)) == 3
    page.run("""
      [...document.querySelectorAll("#accuracy-table .sort")]
        .find((button) => button.textContent.includes("bound")).click();
    """)
    assert page.run(ACCURACY_DTYPES) == ["bfloat16", "float16", "float32"]
    assert page.errors == []


def test_the_worst_case_of_a_row_is_copied_as_a_command(page: chromium.Page) -> None:
    page.run("""
      var copied = null;
      Object.defineProperty(navigator, "clipboard", { value: { writeText: async (t) => { copied = t; } } });
      document.querySelector("#accuracy-table [data-dtype=float16] [data-copy]").click();
    """)
    page.wait("copied")
    assert page.run("copied") == "dnncanon repro 'a b=float16' --backend gpu"


def test_all_of_the_table_of_accuracy_is_reached_by_the_keyboard(page: chromium.Page) -> None:
    """Tab goes through the lists, the table, its sort buttons and every copy button."""
    controls = page.run("""
      document.querySelectorAll("#accuracy select[id^=accuracy-], #accuracy-table button").length
    """)
    page.run("document.querySelector('.heat:last-of-type a, .heat a').focus()")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(
            page.run("""(() => {
              const all = [...document.querySelectorAll(
                "#accuracy select[id^=accuracy-], #accuracy-table button")];
              return all.indexOf(document.activeElement);
            })()""")
        )
    assert reached - {-1} == set(range(controls))


def test_enter_sorts(page: chromium.Page) -> None:
    page.run("document.querySelector('#accuracy-table .sort').focus()")
    page.press("Enter")
    head = "document.querySelector('#accuracy-table th').getAttribute('aria-sort')"
    assert page.run(head) == "ascending"


def test_the_table_of_accuracy_prints_whole_and_without_controls(page: chromium.Page) -> None:
    page.emulate(media="print")
    page.resize(718, 1000)  # A4 with margins of 1 cm
    shown = "[...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"
    assert page.run(shown.format("#accuracy select, #accuracy-table .copy")) == 0
    assert page.run(shown.format("#accuracy-table svg.bars")) == 2
    table = "document.getElementById('accuracy-table')"
    assert page.run(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")


@pytest.mark.parametrize("dark", [False, True])
def test_figures_and_bars_can_be_told_from_their_ground(page: chromium.Page, dark: bool) -> None:
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for graphics."""
    page.emulate(dark=dark)
    page.run(
        """
      var light = (color) => color.match(/[0-9.]+/g).slice(0, 3)
        .map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      var ground = (e) => {
        const color = getComputedStyle(e).backgroundColor;
        return color === "rgba(0, 0, 0, 0)" && e.parentElement ? ground(e.parentElement) : color;
      };
      var contrast = (e, property) => {
        const [a, b] = [light(getComputedStyle(e)[property]), light(ground(e))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      };
      var least = (selector, property) =>
        Math.min(...[...document.querySelectorAll(selector)].map((e) => contrast(e, property)));
    """
    )
    assert page.run("least('#accuracy-table td, #accuracy-table th, .shares', 'color')") >= 4.5
    assert page.run("least('#accuracy-table rect', 'fill')") >= 3.0


def test_a_narrow_window_does_not_scroll_sideways(page: chromium.Page) -> None:
    page.resize(400, 800)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
