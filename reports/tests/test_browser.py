"""The HTML report in a real browser: no error, no request, and its script does what it is for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from dnncanon.reports import Results, html

from .synthetic import case, measured, results, shrunk_from

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@dataclass(frozen=True)
class Visit:
    """What came of opening a page."""

    dom: str
    console: list[str]
    requests: list[str]

    def rows(self, table: str) -> int:
        """Rows in the body of a table that are not hidden."""
        (found,) = re.findall(rf'<table[^>]*id="{table}".*?</table>', self.dom, re.DOTALL)
        return sum(
            rows.count("<tr")
            for attributes, rows in re.findall(r"<tbody([^>]*)>(.*?)</tbody>", found, re.DOTALL)
            if "hidden" not in attributes
        )


def visit(run: Results, folder: Path, script: str = "") -> Visit:
    """Open the report of `run`; `script` is run in the page after its own."""
    assert CHROMIUM is not None
    page, log = folder / "index.html", folder / "net.json"
    text = html.render_html(run)
    if script:  # the page's policy would rightly refuse a script that it does not know
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        text = text.replace("</body>", f"<script>{script}</script></body>")
    page.write_text(text, encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--disable-default-apps",
        "--enable-logging=stderr",
        f"--log-net-log={log}",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1200,8000",
        "--virtual-time-budget=10000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(done.stdout, console, _requests(log))


def _requests(log: Path) -> list[str]:
    """URLs that were asked for over the network."""
    urls = re.findall(r'"url":"(\w+:[^"]*)"', log.read_text("utf-8", errors="replace"))
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:", "chrome"))]


def run_with_failures() -> Results:
    drawn = case("big", "FAILED", message="<script>alert(1)</script>")
    return results(
        drawn,
        shrunk_from(drawn, "small", message="off in the corner"),
        measured("a b=float16", dtype="float16"),
        measured("c d=bfloat16", dtype="bfloat16", max_error=2.0, verdict="FAILED"),
        case("e", "UNSUPPORTED"),
    )


def test_the_page_opens_without_error_or_request_and_draws_its_plots(tmp_path: Path) -> None:
    seen = visit(run_with_failures(), tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert seen.rows("failure-table") == 2
    assert "off in the corner" in seen.dom
    assert seen.dom.count('class="main-svg"') >= 3
    assert "cannot draw the plots" not in seen.dom


def test_no_button_of_a_plot_sends_it_anywhere(tmp_path: Path) -> None:
    seen = visit(run_with_failures(), tmp_path)
    titles = set(re.findall(r'class="modebar-btn"[^>]*data-title="([^"]*)"', seen.dom))
    assert len(titles) == 6
    assert not [title for title in titles if re.search("share|cloud|studio|upload", title, re.I)]


def test_a_page_without_figures_and_one_without_cases_open_without_error(tmp_path: Path) -> None:
    for name, run in (("plain", results(case("a"))), ("empty", results())):
        folder = tmp_path / name
        folder.mkdir()
        assert visit(run, folder).console == []


def test_filtering_finds_whole_words(tmp_path: Path) -> None:
    script = """
      const words = document.getElementById("filter-words");
      words.value = "float16";
      words.dispatchEvent(new Event("input"));
    """
    seen = visit(run_with_failures(), tmp_path, script)
    assert seen.rows("case-table") == 2  # one case of two rows: bfloat16 is another word
    assert "1 of 4 shown" in seen.dom


def test_a_cell_of_the_matrix_leads_to_its_cases(tmp_path: Path) -> None:
    script = "document.querySelector('[data-filter=\"conv_forward bfloat16 gpu\"]').click();"
    assert "1 of 4 shown" in visit(run_with_failures(), tmp_path, script).dom


def test_sorting_by_a_figure(tmp_path: Path) -> None:
    script = """
      const head = [...document.querySelectorAll("#case-table th")].find((h) => h.innerText.includes("bound"));
      head.querySelector("button").click();
      const lines = () => [...document.querySelectorAll("#case-table .below code")].map((c) => c.textContent);
      const falling = lines();
      head.querySelector("button").click();
      document.body.dataset.sorted = JSON.stringify([falling, lines()]);
    """
    seen = visit(run_with_failures(), tmp_path, script)
    (found,) = re.findall(r'data-sorted="([^"]*)"', seen.dom)
    falling, rising = json.loads(found.replace("&quot;", '"'))
    assert falling[:2] == ["c d=bfloat16", "a b=float16"]
    assert rising[-2:] == ["a b=float16", "c d=bfloat16"]


def test_the_theme_button_changes_and_keeps_the_theme(tmp_path: Path) -> None:
    script = """
      document.getElementById("theme").click();
      document.body.dataset.kept = localStorage.getItem("dnncanon-theme");
    """
    seen = visit(results(case("a")), tmp_path, script)
    assert 'data-theme="dark"' in seen.dom
    assert 'data-kept="dark"' in seen.dom
