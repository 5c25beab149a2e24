"""Runs and the command line, as a user sees them: output, files, exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dnncanon.conformance import workloads
from dnncanon.conformance.cli import main
from dnncanon.conformance.run import RESULTS
from dnncanon.reports import CaseResult, Verdict, read_results

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line; returns its exit code, output and error output."""

    def call(*words: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def forward_run(backend: str, out: Path, *more: object) -> list[object]:
    chosen = ["--primitive", "conv_forward", "--dtype", "float32", "--cases", 60]
    return ["run", "--backend", backend, "--out", out, *chosen, *more]


def shrunk(path: Path) -> CaseResult:
    (found,) = (r for r in read_results(path / RESULTS).cases if r.origin == "shrunk")
    return found


# --- A run that conforms ---


def test_the_reference_conforms_to_itself(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("run", "--backend", "reference", "--cases", 15, "--out", tmp_path)
    assert code == 0
    results = read_results(tmp_path / RESULTS)
    assert results.complete
    assert {case.verdict for case in results.cases} <= {Verdict.PASSED, Verdict.MISTRUSTED}
    assert {case.layer for case in results.cases} == {"exact", "bounded", "special", "must-error"}
    for name in (RESULTS, "index.html", "junit.xml", "summary.md"):
        assert (tmp_path / name).stat().st_size > 0
        assert f"wrote {tmp_path / name}" in out


def test_a_run_states_its_rate(cli: Cli, tmp_path: Path) -> None:
    _, out, _ = cli(*forward_run("reference", tmp_path))
    assert "cases/s" in out
    summary = read_results(tmp_path / RESULTS).summary
    assert summary is not None
    assert summary.cases_per_second > 0


def test_the_same_seed_draws_the_same_cases(cli: Cli, tmp_path: Path) -> None:
    lines = []
    for name, seed, jobs in (("a", 1, 1), ("b", 1, 2), ("c", 2, 1)):
        cli(*forward_run("reference", tmp_path / name, "--seed", seed, "--jobs", jobs))
        lines.append(sorted(r.case for r in read_results(tmp_path / name / RESULTS).cases))
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]


def test_as_many_cases_are_drawn_as_were_asked_for(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path, "--cases", 137))
    drawn = [r for r in read_results(tmp_path / RESULTS).cases if r.layer != "must-error"]
    assert len(drawn) == len({r.case for r in drawn}) == 137


def test_a_workload_is_held_to_the_reference(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet50 = workloads.WORKLOADS["resnet50"]
    tail = replace(resnet50, name="tail", layers=lambda batch: resnet50.layers(batch)[-2:])
    monkeypatch.setattr(workloads, "WORKLOADS", {"tail": tail})
    words = ["--workload", "tail", "--primitive", "conv_forward", "--dtype", "float32"]
    code, _, _ = cli("run", "--backend", "reference", "--out", tmp_path, *words)
    assert code == 0
    cases = read_results(tmp_path / RESULTS).cases
    assert [r.origin for r in cases] == ["workload:tail"] * 2
    assert all("w=float32[512,2048,1,1]" in r.case or "3,3]" in r.case for r in cases)


# --- A run that does not conform ---


def test_a_planted_bug_is_found_shrunk_and_reproduced(
    cli: Cli, hostile: str, tmp_path: Path
) -> None:
    backend = f"{hostile}:StrideForDilation"
    code, out, _ = cli(*forward_run(backend, tmp_path))
    assert code == 1
    small = shrunk(tmp_path)
    assert small.verdict is Verdict.FAILED
    assert small.repro_command in out
    # The smallest case that can tell stride from dilation: one channel, two taps, few elements.
    assert small.case.startswith("conv_forward x=float32[1,1,")
    assert "w=float32[1,1,2]" in small.case
    assert "fill=normal seed=0" in small.case
    code, out, _ = cli("repro", small.case, "--backend", backend)
    assert code == 1
    assert "FAILED" in out
    code, out, _ = cli("repro", small.case, "--backend", "reference")
    assert code == 0
    assert "PASSED" in out


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("Segfaulting", Verdict.CRASHED),
        ("Looping", Verdict.TIMEOUT),
        ("WritingOutside", Verdict.FAILED),
        ("Zeros", Verdict.FAILED),
        ("Remembering", Verdict.FAILED),
    ],
)
def test_a_misbehaving_backend_is_reported_and_the_run_ends(
    cli: Cli, hostile: str, tmp_path: Path, name: str, verdict: Verdict
) -> None:
    limits = ["--timeout", 0.5, "--shrink", 2]
    code, _, _ = cli(*forward_run(f"{hostile}:{name}", tmp_path, *limits))
    assert code == 1
    results = read_results(tmp_path / RESULTS)
    assert results.complete
    found = {case.verdict for case in results.cases}
    assert verdict in found
    assert sum(case.origin == "drawn" for case in results.cases) == 60


def test_a_cell_that_keeps_dying_is_given_up(cli: Cli, hostile: str, tmp_path: Path) -> None:
    cli(
        *forward_run(
            f"{hostile}:Looping", tmp_path, "--timeout", 0.5, "--cases", 400, "--shrink", 1
        )
    )
    counts = read_results(tmp_path / RESULTS).summary
    assert counts is not None
    assert counts.counts["TIMEOUT"] <= 10
    assert counts.counts["SKIPPED"] > 0


# --- Nothing tested, and wrong usage ---


def test_a_backend_without_the_primitive_tests_nothing(
    cli: Cli, hostile: str, tmp_path: Path
) -> None:
    words = ["--backend", f"{hostile}:Zeros", "--primitive", "conv_backward_bias"]
    code, _, _ = cli("run", *words, "--out", tmp_path)
    assert code == 3
    verdicts = {r.verdict for r in read_results(tmp_path / RESULTS).cases}
    assert verdicts == {Verdict.UNSUPPORTED}


def test_require_gpu_refuses_a_backend_on_the_host(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli(*forward_run("reference", tmp_path, "--require-gpu"))
    assert code == 2
    assert "not on a GPU" in err


WRONG_USAGE = {
    "backend": (["run", "--backend", "no_such_backend"], "no_such_backend"),
    "attribute": (["run", "--backend", "math:no_such"], "no attribute 'no_such'"),
    "primitive": (["run", "--primitive", "conv_sideways"], "conv_sideways"),
    "dtype": (["run", "--dtype", "float80"], "float80"),
    "level": (["run", "--level", "heroic"], "heroic"),
    "workload": (["run", "--workload", "alexnet2"], "alexnet2"),
    "cases": (["run", "--cases", "0"], "--cases"),
    "seed": (["run", "--seed", "-1"], "--seed"),
    "timeout": (["run", "--timeout", "nan"], "--timeout"),
    "line": (["repro", "conv_forward x=float32[1"], "x=float32[1"),
    "spec": (["spec", "conv_sideways"], "conv_sideways"),
    "report": (["report", "no_such_folder"], "no_such_folder"),
    "compare": (["compare", "no_such_old", "no_such_new"], "no_such_old"),
    "command": (["walk"], "walk"),
}


@pytest.mark.parametrize("name", WRONG_USAGE)
def test_wrong_usage_is_one_sentence_and_exit_code_2(cli: Cli, tmp_path: Path, name: str) -> None:
    words, mention = WRONG_USAGE[name]
    out = ["--out", tmp_path / "out"] if words[0] == "run" else []
    code, _, err = cli(*words, *out)
    assert code == 2
    assert mention in err
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("dnncanon")
    assert not (tmp_path / "out" / "index.html").exists()


def test_an_unwritable_output_folder_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = cli(*forward_run("reference", tmp_path / "file" / "out"))
    assert code == 2
    assert "cannot write to" in err


def test_a_corrupt_results_file_is_refused_by_line(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path, "--cases", 5))
    path = tmp_path / RESULTS
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"verdict"', '"vredict"')
    path.write_text("\n".join(lines) + "\n")
    code, _, err = cli("report", tmp_path)
    assert code == 2
    assert "line 3" in err
    assert str(path) in err


# --- The other commands ---


def test_report_writes_the_same_reports_again(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path / "run", "--cases", 5))
    code, _, _ = cli("report", tmp_path / "run", "--out", tmp_path / "again")
    assert code == 0
    for name in ("junit.xml", "summary.md"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "run" / name).read_text()


def test_compare_finds_what_has_begun_to_fail(cli: Cli, hostile: str, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path / "old"))
    cli(*forward_run(f"{hostile}:StrideForDilation", tmp_path / "new"))
    assert cli("compare", tmp_path / "old", tmp_path / "old")[0] == 0
    assert cli("compare", tmp_path / "old", tmp_path / "new")[0] == 1


def test_list_names_every_primitive_and_backend(cli: Cli) -> None:
    code, out, _ = cli("list")
    assert code == 0
    for name in ("conv_forward", "conv_backward_bias", "reference", "gpu", "torch", "resnet50"):
        assert name in out


def test_spec_prints_constraints_and_decisions(cli: Cli) -> None:
    code, out, _ = cli("spec", "conv_forward")
    assert code == 0
    assert "C8" in out
    assert "DECISIONS" in out


def test_doctor_says_what_can_be_used(cli: Cli) -> None:
    code, out, _ = cli("doctor")
    assert code == 0
    assert "reference" in out


def test_a_run_outlives_its_reader(tmp_path: Path) -> None:
    """``dnncanon list | head -1`` ends without a traceback."""
    code = "import sys; from dnncanon.conformance.cli import main; sys.exit(main(['list']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors


def test_results_are_one_json_object_a_line(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path, "--cases", 5))
    kinds = [json.loads(line)["kind"] for line in (tmp_path / RESULTS).read_text().splitlines()]
    assert kinds[0] == "environment"
    assert kinds[-1] == "summary"
    assert set(kinds[1:-1]) == {"case"}
