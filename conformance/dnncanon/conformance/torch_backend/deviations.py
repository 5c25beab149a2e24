"""Where torch's CPU kernels depart from the definitions: the page ``conformance/docs/torch.md``.

    python -m dnncanon.conformance.torch_backend.deviations --update conformance/docs/torch.md

The backend ``torch`` declines whole layers of data where one is known to fail, with the reason, and claims a
weaker numerics class where torch computes in one: in a run of the suite these are UNSUPPORTED, or judged by the
weaker bounds. Here the same cases are run by a backend that declines nothing and claims the strictest class
everywhere; of each primitive and layer that it fails, the page has the smallest failing case, with what the
suite says of it.
"""

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnncanon.conformance.calibration import updated
from dnncanon.conformance.run import Options, run
from dnncanon.conformance.torch_backend import TorchBackend
from dnncanon.reports import CaseResult, Verdict
from dnncanon.spec import primitives

BEGIN, END = "<!-- deviations: begin -->", "<!-- deviations: end -->"
MOST_CHARACTERS = 150
"""Of a message."""

_DEVIATING = (Verdict.FAILED, Verdict.ERROR, Verdict.CRASHED, Verdict.TIMEOUT)


class Outspoken(TorchBackend):
    """The backend ``torch`` that declines nothing and claims the strictest class everywhere."""

    name = "torch, declining nothing"

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        return {**said, "numerics": {}, "declines": {}}


@dataclass(frozen=True)
class Deviation:
    """A primitive's failing cases of one layer: in which dtypes, why they are declined, the smallest one."""

    primitive: str
    layer: str
    dtypes: tuple[str, ...]
    treatment: str
    case: str
    message: str


def claims() -> dict[str, Any]:
    """What the backend ``torch`` claims and declines on the CPU."""
    said = TorchBackend().describe()
    return {kind: said.get(kind, {}) for kind in ("numerics", "declines")}


def declared(claimed: dict[str, Any]) -> list[str]:
    """The primitives that it declines something of, or claims a weaker class for."""
    return [
        name for name in primitives() if name in claimed["numerics"] or name in claimed["declines"]
    ]


def deviations(results: Iterable[CaseResult], claimed: dict[str, Any]) -> list[Deviation]:
    """The failures of a run, one for each primitive, layer and treatment."""
    found: dict[tuple[str, str, str], list[CaseResult]] = {}
    for result in results:
        if result.verdict in _DEVIATING:
            key = result.primitive, result.layer, treatment(result, claimed)
            found.setdefault(key, []).append(result)
    return [_deviation(key, failures) for key, failures in found.items()]


def treatment(result: CaseResult, claimed: dict[str, Any]) -> str:
    """What the backend ``torch`` says to cases like this one; nothing, if it is a failure there too."""
    declined = claimed["declines"].get(result.primitive, {}).get(result.dtype, {})
    if result.layer in declined:
        return f"declined: {declined[result.layer]}"
    weaker = claimed["numerics"].get(result.primitive, {}).get(result.dtype)
    return f"claimed as {weaker}" if weaker else "FAILED"


def _deviation(key: tuple[str, str, str], failures: list[CaseResult]) -> Deviation:
    primitive, layer, treated = key
    smallest = min(failures, key=lambda failure: (failure.elements, len(failure.case)))
    dtypes = tuple(dict.fromkeys(failure.dtype for failure in failures))
    message = (smallest.message or str(smallest.verdict)).splitlines()[0]
    return Deviation(primitive, layer, dtypes, treated, smallest.case, message[:MOST_CHARACTERS])


def table(rows: Sequence[Deviation]) -> str:
    """The rows in Markdown."""
    lines = [
        "| primitive | layer | dtypes | the backend `torch` | smallest case, and what is wrong |"
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in rows:
        wrong = f"`{row.case}`: {_text(row.message)}"
        dtypes = ", ".join(row.dtypes)
        cells = (row.primitive, row.layer, dtypes, _text(row.treatment), wrong)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def unseen(rows: Sequence[Deviation], claimed: dict[str, Any]) -> list[str]:
    """What is declined, but did not fail in this run: a reason to draw more cases, or to stop declining."""
    seen = {(row.primitive, row.layer, dtype) for row in rows for dtype in row.dtypes}
    lines = []
    for primitive, by_dtype in claimed["declines"].items():
        reasons: dict[tuple[str, str], list[str]] = {}
        for dtype, layers in by_dtype.items():
            for layer, reason in layers.items():
                if (primitive, layer, dtype) not in seen:
                    reasons.setdefault((layer, reason), []).append(dtype)
        lines += [
            f"| {primitive} | {layer} | {', '.join(dtypes)} | {_text(reason)} |"
            for (layer, reason), dtypes in reasons.items()
        ]
    return lines


def page(rows: Sequence[Deviation], claimed: dict[str, Any]) -> str:
    """The tables."""
    missing = unseen(rows, claimed)
    if not missing:
        return table(rows)
    header = "| primitive | layer | dtypes | reason |\n| --- | --- | --- | --- |\n"
    return (
        f"{table(rows)}\nDeclined too, though no case of this run showed it:\n\n{header}"
        + "\n".join(missing)
        + "\n"
    )


def _text(words: str) -> str:
    """In a cell of a table."""
    return words.replace("|", "\\|")


def measured(claimed: dict[str, Any], cases: int | None = None, jobs: int = 1) -> list[Deviation]:
    """Run the suite on what the backend treats in some way, and on nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            backend=f"{TorchBackend.__module__}.deviations:Outspoken",
            out=Path(folder),
            primitives=tuple(declared(claimed)),
            cases=cases,
            jobs=jobs,
        )
        return deviations(run(options).results.cases, claimed)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dnncanon.conformance.torch_backend.deviations",
        description="Where torch's CPU kernels depart from the definitions.",
    )
    parser.add_argument(
        "--cases", type=int, help="of each primitive × dtype; by default the quick level's"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--update", type=Path, metavar="FILE", help="rewrite the table in FILE")
    options = parser.parse_args(arguments)
    claimed = claims()
    text = page(measured(claimed, options.cases, options.jobs), claimed)
    if options.update:
        before = options.update.read_text(encoding="utf-8")
        options.update.write_text(updated(before, text, BEGIN, END), encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
