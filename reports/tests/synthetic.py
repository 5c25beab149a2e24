"""Synthetic results for the tests of the reports."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from dnncanon.reports import (
    ULP_BINS,
    CaseResult,
    Environment,
    Results,
    Summary,
    Verdict,
    count_verdicts,
)
from dnncanon.reports.statistics import run_count

ENVIRONMENT = Environment(
    created="2026-11-30T10:00:00Z",
    command="dnncanon run --backend gpu --level quick",
    backend="gpu",
    level="quick",
    seed=7,
    versions={"dnncanon": "0.1.0", "numpy": "2.3.0"},
    device="emulator",
    platform="Linux x86_64",
    python="3.11.7",
    details={"numerics": {"conv_forward": ["ieee", "tf32"]}},
)


def case(line: str = "conv_forward seed=0", verdict: str = "PASSED", **fields: Any) -> CaseResult:
    """A case with everything filled in that a test does not care about."""
    values: dict[str, Any] = {
        "backend": "gpu",
        "primitive": "conv_forward",
        "dtype": "float32",
        "layer": "bounded",
        "numerics": "ieee",
    }
    return CaseResult(case=line, verdict=Verdict(verdict), **(values | fields))


def shrunk_from(drawn: CaseResult, line: str = "conv_forward seed=s", **fields: Any) -> CaseResult:
    """The shrunk case that explains `drawn`."""
    verdict = fields.pop("verdict", "FAILED")
    for name in ("backend", "primitive", "dtype"):
        fields.setdefault(name, getattr(drawn, name))
    return case(line, verdict, origin="shrunk", shrunk_from=drawn.case, **fields)


def results(*cases: CaseResult, finished: bool = True) -> Results:
    """A whole run of the given cases that took two seconds."""
    counts = {str(verdict): number for verdict, number in count_verdicts(cases).items()}
    summary = Summary(2.0, sum(counts.values()), counts, run_count(counts) / 2, finished)
    return Results(ENVIRONMENT, cases, summary)


def measured(line: str, **fields: Any) -> CaseResult:
    """A case with accuracy figures."""
    figures: dict[str, Any] = {
        "max_error": 0.25,
        "p99_error": 0.2,
        "bias": -0.5,
        "mean_square": 0.25,
        "sampled": 80,
        "max_ulp": 1.5,
        "ulp_histogram": (70, 20, 8, 2),
        "elements": 100,
        "seconds": 0.001,
        "seconds_total": 0.01,
    }
    return case(line, **(figures | fields))


def discrete(line: str, wrong: int = 0, **fields: Any) -> CaseResult:
    """A case whose output is discrete: so many of its 100 elements are wrong."""
    verdict = "FAILED" if wrong else "PASSED"
    figures: dict[str, Any] = {
        "dtype": "int32",
        "max_error": math.inf if wrong else 0.0,
        "p99_error": 0.0,
        "wrong_elements": wrong,
        "elements": 100,
    }
    return case(line, verdict, **(figures | fields))


# --- strategies -----------------------------------------------------------------------------------

any_text = st.text(
    st.characters(codec=None, exclude_categories=())  # lone surrogates and controls included
    | st.sampled_from("<>&\"'`|\\\n\r\0\x1b\ud800")
)
names = st.sampled_from(["conv_forward", "conv_backward_data", "softmax_forward"])
dtypes = st.sampled_from(["float64", "float32", "float16", "bfloat16"])
backends = st.sampled_from(["gpu", "torch"])
numbers = st.none() | st.floats(allow_nan=True, allow_infinity=True)
durations = st.floats(0, 1e6)

any_case = st.builds(
    CaseResult,
    case=any_text,
    backend=any_text,
    primitive=any_text,
    dtype=any_text,
    layer=any_text,
    numerics=any_text,
    verdict=st.sampled_from(Verdict),
    message=any_text,
    origin=st.sampled_from(["drawn", "shrunk", "workload:resnet50", "repro"]),
    max_error=numbers,
    p99_error=numbers,
    bias=numbers,
    mean_square=numbers,
    sampled=st.integers(0, 10**12),
    max_ulp=numbers,
    ulp_histogram=st.lists(st.integers(0, 10**12), max_size=ULP_BINS).map(tuple),
    wrong_elements=st.none() | st.integers(0, 10**12),
    elements=st.integers(0, 10**12),
    seconds=durations,
    seconds_total=durations,
    shrunk_from=st.none() | any_text,
    counters=st.dictionaries(any_text, st.floats(), max_size=3),
)

plain_case = st.builds(
    case,
    st.integers(0, 9).map(lambda seed: f"conv_forward seed={seed}"),
    st.sampled_from(Verdict),
    primitive=names,
    dtype=dtypes,
    backend=backends,
    max_error=st.none() | st.floats(0, 4),
    origin=st.sampled_from(["drawn", "workload:resnet50"]),
)


@st.composite
def runs(draw: st.DrawFn) -> list[CaseResult]:
    """Cases of a run: drawn ones, and shrunk ones for some that fail."""
    drawn = draw(st.lists(plain_case, max_size=30))
    explained = [
        shrunk_from(one, f"{one.primitive} seed=s")
        for one in drawn
        if one.failing and draw(st.booleans())
    ]
    return draw(st.permutations(drawn + explained))
