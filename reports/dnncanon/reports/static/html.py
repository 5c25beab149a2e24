"""The static report as a page: one file that holds all it needs, whole without JavaScript."""

from __future__ import annotations

import os
from pathlib import Path

from dnncanon.reports.formatting import printable
from dnncanon.reports.html import asset, content_policy, templates
from dnncanon.reports.static.records import StaticEnvironment, StaticReport
from dnncanon.reports.static.text import architectures, conclusion, kernels_by_need, percent


def write_static_html(report: StaticReport, path: str | os.PathLike[str]) -> Path:
    """Write the page to `path`; returns the path. Raises OSError."""
    target = Path(path)
    target.write_text(render_static_html(report), encoding="utf-8")
    return target


def render_static_html(report: StaticReport) -> str:
    """The page as one string of HTML."""
    script = asset("report.js")
    kernels = [figures for group in kernels_by_need(report.kernels) for figures in group]
    environment = templates().overlay()
    environment.filters = {**environment.filters, "percent": percent}
    page = environment.get_template("static.html.j2").render(
        policy=content_policy([script]),
        style=asset("report.css"),
        script=script,
        environment=report.environment,
        facts=_facts(report.environment),
        conclusion=conclusion(report),
        spilling=any(k.spill_bytes for k in kernels),
        refused=any(k.refused for k in kernels),
        architectures=architectures(report),
        kernels=kernels,
    )
    return printable(page)


def _facts(environment: StaticEnvironment) -> list[tuple[str, str]]:
    facts = {
        "Command": environment.command,
        "Made": environment.created,
        "Backend": environment.backend,
        "Kernels": environment.selection,
        "Platform": environment.platform,
        "Python": environment.python,
    }
    versions = {f"{name} version": value for name, value in environment.versions.items()}
    return [*facts.items(), *versions.items()]
