"""Reports in a bare checkout, where plotly and jsonschema are not installed."""

from importlib import util
from pathlib import Path

import pytest

from dnncanon.reports import CaseResult, ResultsError, ResultsWriter, read_results, render
from dnncanon.reports.html import render_html

from .synthetic import ENVIRONMENT, case, measured, results


def written(folder: Path, *cases: CaseResult) -> Path:
    """A results file of the given cases."""
    with ResultsWriter(folder / "results.jsonl", ENVIRONMENT) as writer:
        for one in cases:
            writer.write(one)
        writer.finish(1.0)
    return writer.path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if plotly and jsonschema were not there."""

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in ("plotly", "jsonschema") else original(name, package)

    original = util.find_spec
    for module in ("html", "records"):
        monkeypatch.setattr(f"dnncanon.reports.{module}.find_spec", find_spec)


@pytest.mark.usefixtures("bare")
def test_the_page_says_why_it_has_no_plots() -> None:
    page = render_html(results(measured("conv_forward seed=1")))
    assert "plotly was not installed" in page
    assert 'id="plotly-packed"' not in page


@pytest.mark.usefixtures("bare")
def test_results_are_read_and_rendered(tmp_path: Path) -> None:
    path = written(tmp_path, case())
    assert all(file.stat().st_size for file in render(read_results(path), tmp_path))


@pytest.mark.usefixtures("bare")
def test_a_wrong_name_is_still_found(tmp_path: Path) -> None:
    path = written(tmp_path, case())
    path.write_text(path.read_text().replace('"verdict"', '"vredict"'))
    with pytest.raises(ResultsError, match=r"line 2: case misses 'verdict'"):
        read_results(path)
