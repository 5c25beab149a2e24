"""``dnncanon bench --static`` and the comparison of what it writes, on a backend that makes figures up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dnncanon.conformance.cli import main

Cli = Callable[..., tuple[int, str, str]]

BACKEND = '''
"""A stranger's backend: it has no primitives, but kernels."""

from types import SimpleNamespace

REGISTERS = 40


def static_figures(primitives, dtypes, architectures, *, everything, jobs):
    figures = [
        {
            "kernel": f"{name}_kernel",
            "launched_by": (f"{name} float32",),
            "architecture": architecture,
            "threads": 128,
            "registers": REGISTERS,
            "loop_instructions": 10,
            "loop_mix": {"FFMA": 10},
            "something_else": 1,
        }
        for name in primitives or ("conv_forward", "softmax_forward")
        for architecture in architectures or ("sm_90a",)
    ]
    return SimpleNamespace(kernels=len(figures), figures=iter([figures]), versions={"cc": "1.0"})
'''


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(str(stop.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stranger_with_kernels.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "stranger_with_kernels"


def test_a_report_is_written(cli: Cli, stranger: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, _ = cli("bench", "--static", "--backend", stranger, "--out", out)
    assert code == 0
    assert "conv_forward_kernel" in text
    assert f"wrote {out / 'static.jsonl'}" in text
    header, *rows = map(json.loads, (out / "static.jsonl").read_text().splitlines())
    assert header["schema"] == "dnncanon-static/1"
    assert header["versions"]["cc"] == "1.0"
    assert [row["kernel"] for row in rows] == ["conv_forward_kernel", "softmax_forward_kernel"]
    assert "conv_forward_kernel" in (out / "index.html").read_text()


def test_the_selection_reaches_the_backend(cli: Cli, stranger: str, tmp_path: Path) -> None:
    words = ("--primitive", "conv_forward", "--cc", "sm_80", "--cc", "sm_100a")
    cli("bench", "--static", "--backend", stranger, "--out", tmp_path, *words)
    _, *rows = map(json.loads, (tmp_path / "static.jsonl").read_text().splitlines())
    assert {row["kernel"] for row in rows} == {"conv_forward_kernel"}
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_100a"}


def test_two_reports_are_compared(
    cli: Cli, stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bench", "--static", "--backend", stranger, "--out")
    cli(*words, tmp_path / "old")
    monkeypatch.setattr("stranger_with_kernels.REGISTERS", 64)
    cli(*words, tmp_path / "new")
    code, text, _ = cli("compare", tmp_path / "old", tmp_path / "new" / "static.jsonl")
    assert code == 0
    assert "registers: 40 -> 64" in text
    assert "2 changed, 0 unchanged" in text


def test_a_backend_without_kernels_is_refused(cli: Cli, tmp_path: Path) -> None:
    code, _, error = cli("bench", "--static", "--backend", "reference", "--out", tmp_path)
    assert code == 2
    assert "backend reference has no static_figures" in error


def test_a_primitive_that_there_is_not(cli: Cli, stranger: str, tmp_path: Path) -> None:
    words = ("--backend", stranger, "--primitive", "conv_sideways", "--out", tmp_path)
    code, _, error = cli("bench", "--static", *words)
    assert code == 2
    assert "no primitive 'conv_sideways'" in error


def test_an_architecture_that_there_is_not(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("numba_cuda")
    code, _, error = cli("bench", "--static", "--cc", "sm_1", "--out", tmp_path)
    assert code == 2
    assert "'sm_1' has no row" in error


def test_bench_alone_is_wrong_usage(cli: Cli) -> None:
    code, _, error = cli("bench")
    assert code == 2
    assert "--static" in error
