"""All reports of a run at once, into one folder."""

from __future__ import annotations

import os
from pathlib import Path

from dnncanon.reports.html import write_html
from dnncanon.reports.junit import write_junit
from dnncanon.reports.markdown import summary_markdown
from dnncanon.reports.records import Results


def render(results: Results, directory: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write index.html, junit.xml and summary.md into `directory`, which is made if need be.

    Returns the three paths in this order. Raises OSError where the folder cannot be written.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.md"
    summary.write_text(summary_markdown(results), encoding="utf-8")
    return (
        write_html(results, folder / "index.html"),
        write_junit(results, folder / "junit.xml"),
        summary,
    )
