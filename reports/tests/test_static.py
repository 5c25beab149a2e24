"""Static reports: the file, the table, the page, and what changed between two."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dnncanon.reports import ResultsError
from dnncanon.reports.static import (
    KernelFigures,
    StaticEnvironment,
    StaticReport,
    compare_static,
    is_static,
    load_static_schema,
    read_static,
    static_text,
    write_static,
    write_static_html,
)
from dnncanon.reports.static.text import SHOWN

from .chromium import EXECUTABLE, Chromium

ENVIRONMENT = StaticEnvironment(
    created="2026-11-30T10:00:00Z",
    command="dnncanon bench --static",
    backend="gpu",
    selection="the variant of the largest call",
    versions={"dnncanon": "0.1.0", "nvJitLink": "13.5"},
    platform="Linux x86_64",
    python="3.11.7",
)


def kernel(name: str = "gemm", **figures: Any) -> KernelFigures:
    """A kernel with everything filled in that a test does not care about."""
    values: dict[str, Any] = {
        "launched_by": ("conv_forward float32",),
        "architecture": "sm_90a",
        "threads": 256,
        "constants": {"bm": 128},
        "registers": 128,
        "blocks": 2,
        "occupancy": 0.25,
        "limited_by": "registers",
        "loops": 3,
        "loop_instructions": 80,
        "loop_mix": {"FFMA": 64, "LDS.128": 4, "LDS": 4, "MOV": 8},
        "predicted": 0.8,
        "peak": "float32",
        "bound_by": "issue",
    }
    return KernelFigures(name, **(values | figures))


def report(*kernels: KernelFigures) -> StaticReport:
    return StaticReport(ENVIRONMENT, kernels)


REFUSED = KernelFigures(
    "wgmma",
    ("matmul float16",),
    "sm_80",
    128,
    refused="sm_80: ERROR <b>wgmma</b>\nneeds sm_90a",
)

# --- The file -------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = report(kernel(), kernel("copy", predicted=None), REFUSED)
    path = write_static(written, tmp_path / "static.jsonl")
    assert is_static(path)
    assert read_static(path) == written


def test_the_schema_is_one_and_knows_every_figure() -> None:
    from jsonschema import Draft202012Validator

    schema = load_static_schema()
    Draft202012Validator.check_schema(schema)
    figures = schema["$defs"]["kernel"]["properties"].keys()
    assert figures == {"kind", *KernelFigures.__dataclass_fields__}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"registers": -1}, "line 2: /registers"),
        ({"predicted": 1.5}, "line 2: /predicted"),
        ({"architecture": "Hopper"}, "line 2: /architecture"),
        ({"colour": "red"}, "line 2: .*colour"),
    ],
)
def test_a_wrong_line_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write_static(report(kernel()), tmp_path / "static.jsonl")
    header, row = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(row) | change)}\n")
    with pytest.raises(ResultsError, match=reason):
        read_static(path)


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"kind": "environment"}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "static.jsonl"
    path.write_text(text)
    assert not is_static(path)
    with pytest.raises(ResultsError):
        read_static(path)


def test_no_file_is_no_static_report(tmp_path: Path) -> None:
    assert not is_static(tmp_path / "none")
    with pytest.raises(ResultsError, match="cannot be read"):
        read_static(tmp_path / "none")


# --- The table ------------------------------------------------------------------------------------


def test_the_table_has_the_figures() -> None:
    figures = kernel(launched_by=("conv_forward float32", "matmul float32"))
    text = static_text(report(figures), width=200)
    assert "conv_forward float32 +1" in text
    assert "80: FFMA 80 %, LDS 10 %, MOV 10 %" in " ".join(text.split())
    assert "80 % of float32, issue" in " ".join(text.split())
    assert text.rstrip().endswith(
        "1 kernel for sm_90a · none spills · 0 with arrays in local memory"
    )


def test_what_spills_comes_first() -> None:
    kernels = [kernel(f"k{i}") for i in range(SHOWN)]
    text = static_text(report(*kernels, kernel("bad", spill_bytes=8, stack_bytes=8)))
    assert text.index("bad") < text.index("k0")
    assert "… and 1 more; the report has them." in text
    assert "41 kernels for sm_90a · 1 spill · 0 with arrays" in text


def test_architectures_stand_under_their_kernel_oldest_first() -> None:
    kernels = [kernel(architecture=name) for name in ("sm_100a", "sm_80", "sm_90a")]
    text = static_text(report(*kernels))
    assert text.count("gemm") == 1
    assert text.index("sm_80") < text.index("sm_90a") < text.index("sm_100a")


def test_a_refusal_is_told() -> None:
    text = static_text(report(REFUSED))
    assert "sm_80: ERROR <b>wgmma</b>" in " ".join(text.split())
    assert "1 refused by the toolchain" in text


def test_nothing_compiled() -> None:
    assert static_text(report()).startswith("0 kernels for no architecture")


# --- The page -------------------------------------------------------------------------------------


def test_the_page_holds_the_figures_and_escapes_what_tools_say(tmp_path: Path) -> None:
    page = write_static_html(report(kernel(), REFUSED), tmp_path / "index.html").read_text()
    assert "FFMA 64" in page
    assert "bm=128" in page
    assert "&lt;b&gt;wgmma&lt;/b&gt;" in page
    assert "<b>wgmma" not in page


@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium")
def test_the_page_filters_and_asks_for_nothing(tmp_path: Path) -> None:
    kernels = [kernel(architecture=name) for name in ("sm_80", "sm_90a")]
    path = write_static_html(report(*kernels, kernel("copy")), tmp_path / "index.html")
    with Chromium(tmp_path / "profile") as browser:
        page = browser.open(path)
        shown = "[...document.querySelectorAll('#case-table tbody')].filter(b => !b.hidden).length"
        assert page.run(shown) == 3
        page.run(
            "(() => { const list = document.getElementById('filter-verdict'); list.value = 'sm_80'; "
            "list.dispatchEvent(new Event('input')); })()"
        )
        assert page.run(shown) == 1
        assert not page.errors
        assert not page.requests


# --- Comparison -----------------------------------------------------------------------------------


def test_equal_reports_have_no_change() -> None:
    comparison = compare_static(report(kernel()), report(kernel()))
    assert not comparison.changes
    assert comparison.unchanged == 1
    assert not comparison.regressed
    assert comparison.text().endswith("✓ No kernel became worse.\n")


def test_changed_figures_are_told() -> None:
    comparison = compare_static(report(kernel()), report(kernel(registers=140, predicted=0.9)))
    (change,) = comparison.changes
    assert change.changed == [("registers", "128", "140"), ("predicted", "0.8", "0.9")]
    assert not comparison.regressed
    assert "gemm (conv_forward float32) sm_90a\n    registers: 128 -> 140\n" in comparison.text()
    assert "| registers | 128 | 140 |" in comparison.markdown()


@pytest.mark.parametrize(
    "worse",
    [
        {"spill_bytes": 8},
        {"predicted": 0.7},
        {"refused": "ptxas: no"},
    ],
)
def test_what_is_worse(worse: dict[str, Any]) -> None:
    assert compare_static(report(kernel()), report(kernel(**worse))).regressed
    assert not compare_static(report(kernel(**worse)), report(kernel())).regressed


def test_new_constants_do_not_hide_a_kernel() -> None:
    """Of one variant in each report: a tile was changed, and these are its figures."""
    comparison = compare_static(
        report(kernel()), report(kernel(constants={"bm": 64}, registers=96))
    )
    assert [change.changed for change in comparison.changes] == [[("registers", "128", "96")]]


def test_of_several_variants_those_with_equal_constants_are_compared() -> None:
    small = kernel(constants={"bm": 64})
    old = report(kernel(), small)
    new = report(kernel(constants={"bm": 256}), replace(small, registers=96))
    comparison = compare_static(old, new)
    assert [change.old for change in comparison.changes] == [small]
    assert len(comparison.only_old) == len(comparison.only_new) == 1


def test_a_kernel_that_further_primitives_launch_is_the_same() -> None:
    more = kernel(launched_by=("matmul float32", "conv_forward float32"))
    comparison = compare_static(report(kernel()), report(more))
    assert comparison.unchanged == 1
    assert not comparison.only_new


def test_other_toolchains_are_named() -> None:
    other = replace(ENVIRONMENT, versions={"dnncanon": "0.1.0", "nvJitLink": "14.0"})
    comparison = compare_static(report(), StaticReport(other, ()))
    assert "nvJitLink: 13.5 -> 14.0" in comparison.text()
    assert "- nvJitLink: 13.5 -&gt; 14.0" in comparison.markdown().replace("->", "-&gt;")
