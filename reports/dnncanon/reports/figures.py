"""The data behind the report's interactive plots, bounded in size; templates/report.js draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dnncanon.reports.formatting import format_ratio, shortened
from dnncanon.reports.records import CaseResult
from dnncanon.reports.statistics import (
    CellKey,
    Matrix,
    counted_cases,
    dtype_rank,
    magnitude,
    ulp_bin_labels,
)

MAX_POINTS = 3000
"""Cases in the scatter plot; of more, the worst third of them and an even sample of the rest."""

RATIO_FLOOR, RATIO_CEILING = 1e-3, 1e6
"""Where |error| / bound is drawn that a logarithmic axis cannot show: 0, and ∞ or NaN."""

_LINE_SHOWN = 160


def plot_data(cases: Iterable[CaseResult], table: Matrix) -> dict[str, Any] | None:
    """All that the plots need, in JSON's types; None if no case measured anything.

    `series` are the dtypes (with their backend, if the run has several), each with one colour and
    one marker throughout; `ulp`, `bias` and `points` hold one entry for each cell that has any.
    """
    counted = counted_cases(cases)
    measured = [case for case in counted if case.max_error is not None]
    several = len(table.backends) > 1
    ulp = [
        _entry(key, several, counts=list(cell.ulp_histogram))
        for key, cell in table.cells.items()
        if sum(cell.ulp_histogram)
    ]
    if not measured and not ulp:
        return None
    chosen = even_choice(
        sorted(measured, key=lambda case: -magnitude(case.max_error)), MAX_POINTS, MAX_POINTS // 3
    )
    return {
        "bins": list(ulp_bin_labels()),
        "series": _series_names(table, several),
        "primitives": list(table.primitives),
        "ulp": ulp,
        "bias": _bias(counted, several),
        "points": _points(chosen, several),
        "floor": RATIO_FLOOR,
        "points_shown": len(chosen),
        "points_all": len(measured),
    }


def even_choice(items: Sequence[CaseResult], limit: int, first: int) -> list[CaseResult]:
    """At most `limit` of `items`: the first `first`, and of the rest every so-manieth."""
    if len(items) <= limit:
        return list(items)
    rest = items[first:]
    wanted = limit - first
    return [*items[:first], *(rest[index * len(rest) // wanted] for index in range(wanted))]


def quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Least, lower quartile, median, upper quartile and largest, linearly interpolated."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return (at(0.0), at(0.25), at(0.5), at(0.75), at(1.0))


def _bias(cases: Iterable[CaseResult], several: bool) -> list[dict[str, Any]]:
    groups: dict[CellKey, list[float]] = {}
    for case in cases:
        if case.bias is not None and math.isfinite(case.bias):
            key = CellKey(case.backend, case.primitive, case.dtype)
            groups.setdefault(key, []).append(case.bias)
    return [
        _entry(key, several, box=[round(value, 4) for value in quartiles(values)], n=len(values))
        for key, values in sorted(groups.items(), key=lambda item: item[0][1:])
    ]


def _points(cases: Iterable[CaseResult], several: bool) -> list[dict[str, Any]]:
    groups: dict[CellKey, list[CaseResult]] = {}
    for case in cases:
        groups.setdefault(CellKey(case.backend, case.primitive, case.dtype), []).append(case)
    return [
        _entry(
            key,
            several,
            x=[max(case.elements, 1) for case in group],
            y=[_drawn(case.max_error) for case in group],
            ratio=[format_ratio(case.max_error) for case in group],
            verdict=[str(case.verdict) for case in group],
            line=[shortened(case.case, _LINE_SHOWN) for case in group],
        )
        for key, group in groups.items()
    ]


def _drawn(ratio: float | None) -> float:
    return float(f"{min(max(magnitude(ratio), RATIO_FLOOR), RATIO_CEILING):.4g}")


def _entry(key: CellKey, several: bool, **values: Any) -> dict[str, Any]:
    return {"primitive": key.primitive, "series": _series_name(key, several), **values}


def _series_name(key: CellKey, several: bool) -> str:
    return f"{key.dtype} {key.backend}" if several else key.dtype


def _series_names(table: Matrix, several: bool) -> list[str]:
    keys = sorted(table.cells, key=lambda key: (dtype_rank(key.dtype), key.backend))
    return list(dict.fromkeys(_series_name(key, several) for key in keys))
