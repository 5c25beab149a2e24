"""From results of conformance cases to reports: the results file, HTML, JUnit, Markdown, text.

This package knows nothing of how results came about; a case is an opaque line of text to it.
"""

from dnncanon.reports.records import (
    SCHEMA_VERSION,
    ULP_BINS,
    ULP_EDGES,
    CaseResult,
    Environment,
    Results,
    ResultsError,
    ResultsWriter,
    Summary,
    Verdict,
    load_schema,
    read_results,
    ulp_bin,
)
from dnncanon.reports.statistics import count_verdicts, exit_code

__all__ = [
    "SCHEMA_VERSION",
    "ULP_BINS",
    "ULP_EDGES",
    "CaseResult",
    "Environment",
    "Results",
    "ResultsError",
    "ResultsWriter",
    "Summary",
    "Verdict",
    "count_verdicts",
    "exit_code",
    "load_schema",
    "read_results",
    "ulp_bin",
]
