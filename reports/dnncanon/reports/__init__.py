"""From results of conformance cases to reports: the results file, HTML, JUnit, Markdown, text.

This package knows nothing of how results came about; a case is an opaque line of text to it. What
is heavy to import (jinja2, plotly, jsonschema, rich) is imported where it is used.
"""

from dnncanon.reports.compare import Comparison, compare
from dnncanon.reports.html import write_html
from dnncanon.reports.junit import write_junit
from dnncanon.reports.markdown import summary_markdown
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
from dnncanon.reports.rendering import render
from dnncanon.reports.statistics import Standing, conclusion, count_verdicts, exit_code, standing
from dnncanon.reports.text import summary_text

__all__ = [
    "SCHEMA_VERSION",
    "ULP_BINS",
    "ULP_EDGES",
    "CaseResult",
    "Comparison",
    "Environment",
    "Results",
    "ResultsError",
    "ResultsWriter",
    "Standing",
    "Summary",
    "Verdict",
    "compare",
    "conclusion",
    "count_verdicts",
    "exit_code",
    "load_schema",
    "read_results",
    "render",
    "standing",
    "summary_markdown",
    "summary_text",
    "ulp_bin",
    "write_html",
    "write_junit",
]
