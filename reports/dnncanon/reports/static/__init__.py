"""Static reports: what a compiler made of kernels, as a file, a table, a page, and compared."""

from dnncanon.reports.static.compare import StaticComparison, compare_static
from dnncanon.reports.static.html import write_static_html
from dnncanon.reports.static.records import (
    KernelFigures,
    StaticEnvironment,
    StaticReport,
    is_static,
    load_static_schema,
    read_static,
    write_static,
)
from dnncanon.reports.static.text import static_text

__all__ = [
    "KernelFigures",
    "StaticComparison",
    "StaticEnvironment",
    "StaticReport",
    "compare_static",
    "is_static",
    "load_static_schema",
    "read_static",
    "static_text",
    "write_static",
    "write_static_html",
]
