"""``dnncanon bench --static``: what a compiler makes of a backend's kernels, told without a GPU."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dnncanon.conformance.backends import BackendError, load
from dnncanon.conformance.progress import progress_bar
from dnncanon.conformance.run import UsageError
from dnncanon.reports.static import (
    KernelFigures,
    StaticEnvironment,
    StaticReport,
    write_static,
    write_static_html,
)
from dnncanon.spec import SpecError, Unsupported, __version__, primitives

STATIC = "static.jsonl"
"""The file of figures; the page beside it is index.html."""


@dataclass(frozen=True)
class StaticOptions:
    """Which kernels of which backend, for which architectures; empty means what the backend prefers.

    ``everything`` asks for all variants of a kernel instead of a typical one.
    """

    backend: str
    out: Path
    primitives: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    everything: bool = False
    jobs: int = 1
    command: str = ""


def static_report(options: StaticOptions) -> StaticReport:
    """Compile and count; progress is shown on a terminal. Raises BackendError and UsageError."""
    unknown = sorted(set(options.primitives) - set(primitives()))
    if unknown:
        raise UsageError(f"there is no primitive {unknown[0]!r}; dnncanon list shows all")
    make = load(options.backend).static_figures
    if make is None:
        raise BackendError(
            f"backend {options.backend} has no static_figures, and so no static report"
        )
    try:
        found = make(
            options.primitives,
            options.dtypes,
            options.architectures,
            everything=options.everything,
            jobs=options.jobs,
        )
    except (SpecError, Unsupported) as error:
        raise BackendError(f"backend {options.backend}: {error}") from None
    kernels = _collected(found)
    return StaticReport(_environment(options, found.versions), kernels)


def write_reports(report: StaticReport, folder: Path) -> tuple[Path, Path]:
    """The file and the page. Raises UsageError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_static(report, folder / STATIC), write_static_html(
            report, folder / "index.html"
        )
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error


def _collected(found: Any) -> tuple[KernelFigures, ...]:
    """In an order that does not depend on which came first."""
    rows: list[KernelFigures] = []
    with progress_bar() as progress:
        task = progress.add_task("kernels", total=found.kernels)
        for figures in found.figures:
            rows += map(_row, figures)
            progress.advance(task)
    return tuple(sorted(rows, key=lambda row: (row.kernel, row.launched_by, row.architecture)))


def _row(figures: dict[str, Any]) -> KernelFigures:
    known = {field.name for field in fields(KernelFigures)}
    return KernelFigures(**{name: value for name, value in figures.items() if name in known})


def _environment(options: StaticOptions, versions: dict[str, str]) -> StaticEnvironment:
    return StaticEnvironment(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=options.command,
        backend=options.backend,
        selection=_selection(options),
        versions={"dnncanon": __version__, **versions},
        platform=platform.platform(),
        python=platform.python_version(),
    )


def _selection(options: StaticOptions) -> str:
    which = "every variant" if options.everything else "the variant of the largest call"
    return f"{which} of each kernel of {_words(options.primitives)}, {_words(options.dtypes, 'usual dtypes')}"


def _words(names: Iterable[str], otherwise: str = "all primitives") -> str:
    return ", ".join(names) or otherwise
