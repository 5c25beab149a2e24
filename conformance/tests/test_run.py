"""Runs and the command line, as a user sees them: output, files, exit codes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dnncanon.conformance import workloads
from dnncanon.conformance.cli import main
from dnncanon.conformance.run import RESULTS
from dnncanon.reports import CaseResult, ResultsWriter, Verdict, read_results

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

MAIN_DTYPES = ("float32", "float16", "int32", "int8", "uint8", "bool")
"""Those that differ most."""


def test_the_reference_conforms_to_itself(cli: Cli, tmp_path: Path) -> None:
    """In the dtypes of CI's main job; all of them are run every night."""
    dtypes = [word for dtype in MAIN_DTYPES for word in ("--dtype", dtype)]
    code, out, _ = cli("run", "--backend", "reference", "--cases", 15, "--out", tmp_path, *dtypes)
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
    cases = read_results(tmp_path / RESULTS).cases
    drawn = [r for r in cases if r.layer != "must-error" and r.origin == "drawn"]
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


def test_boundaries_come_first_and_say_what_they_follow(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path, "--cases", 5))
    cases = read_results(tmp_path / RESULTS).cases
    origins = [case.origin for case in cases]
    assert origins[0] == "boundary"
    assert "report:cudnn.torch-28" in origins
    assert origins.index("drawn") > max(
        i for i, o in enumerate(origins) if o == "boundary" or o.startswith("report:")
    )
    assert any("x=float32[1,33,3,2] w=float32[31,33,2,2]" in case.case for case in cases)
    assert any("x=float32[3,2,4]:(0,4,1)" in case.case for case in cases)


def test_what_does_not_fit_into_memory_is_said_at_level_full(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dnncanon.conformance import cells

    huge = replace_boundaries(lambda size: size > 1 << 31)
    monkeypatch.setattr(cells.Cell, "boundaries", huge)
    cli(*forward_run("reference", tmp_path, "--cases", 1, "--level", "full", "--memory", 4))
    skipped = [r for r in read_results(tmp_path / RESULTS).cases if r.verdict is Verdict.SKIPPED]
    assert len(skipped) == 3
    assert all("GiB of memory, and" in r.message for r in skipped)
    assert any("2147483648" in r.case for r in skipped)


def replace_boundaries(chosen: Callable[[int], bool]) -> Callable[[Any], Any]:
    """Boundaries of a cell of the chosen sizes only."""
    from dnncanon.conformance.cells import Cell, size

    original = Cell.boundaries
    return lambda cell: ((o, case) for o, case in original(cell) if chosen(size(case)))


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
    # The smallest case that can tell stride from dilation: one channel, two taps, three elements.
    assert small.case == (
        "conv_forward x=float32[1,1,3] w=float32[1,1,2] stride=2 fill=normal seed=0"
    )
    code, out, _ = cli("repro", small.case, "--backend", backend)
    assert code == 1
    assert "FAILED" in out
    code, out, _ = cli("repro", small.case, "--backend", "reference")
    assert code == 0
    assert "PASSED" in out


def test_repro_prints_the_figures_of_statistics_and_of_discrete_outputs(cli: Cli) -> None:
    many = "conv_forward x=float32[4,3,8,8] w=float32[4,3,3,3] fill=normal seed=0"
    indices = "reduce_forward x=float32[4,3] op=min axes=0 return_indices=true fill=normal seed=0"
    _, out, _ = cli("repro", many, "--backend", "reference")
    assert "mean square, of the model's" in out
    _, out, _ = cli("repro", indices, "--backend", "reference")
    assert out.split("wrong elements")[1].split()[0] == "0"


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
    drawn = [r for r in results.cases if r.origin == "drawn" and r.layer != "must-error"]
    assert len(drawn) == 60


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


# --- Expected failures, interrupted and divided runs ---


def expected_failures(tmp_path: Path, case: str) -> list[object]:
    path = tmp_path / "expected.toml"
    path.write_text(
        f'[[expected_failure]]\ncase = "{case}"\nowner = "me"\nreason = "planted"\n'
        "expires = 9999-12-31\n"
    )
    return ["--expected-failures", path]


def test_expected_failures_do_not_fail_the_run(cli: Cli, hostile: str, tmp_path: Path) -> None:
    expected = expected_failures(tmp_path, "conv_forward *")
    code, out, _ = cli(*forward_run(f"{hostile}:StrideForDilation", tmp_path, *expected))
    assert code == 0
    assert "expected failure" in out
    verdicts = {r.verdict for r in read_results(tmp_path / RESULTS).cases}
    assert Verdict.EXPECTED_FAILURE in verdicts
    assert Verdict.FAILED not in verdicts


def test_an_expected_failure_that_does_not_happen_is_an_error(cli: Cli, tmp_path: Path) -> None:
    expected = expected_failures(tmp_path, "conv_forward *")
    code, out, _ = cli(*forward_run("reference", tmp_path, *expected))
    assert code == 1
    assert "did not happen: conv_forward *" in out


def lines(folder: Path) -> list[str]:
    return sorted(f"{r.case} {r.verdict}" for r in read_results(folder / RESULTS).cases)


def test_a_killed_run_is_resumed_without_loss(cli: Cli, hostile: str, tmp_path: Path) -> None:
    whole = forward_run(f"{hostile}:StrideForDilation", tmp_path / "whole")
    broken = forward_run(f"{hostile}:StrideForDilation", tmp_path / "broken")
    cli(*whole)
    cli(*broken)
    path = tmp_path / "broken" / RESULTS
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:30]) + text[30][:50])  # as a kill in mid-write leaves it
    kept = text[1:30]
    code, _, _ = cli(*broken, "--resume")
    assert code == 1
    assert path.read_text().splitlines(keepends=True)[1:30] == kept
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    assert read_results(path).complete


def test_only_the_same_run_can_be_resumed(cli: Cli, tmp_path: Path) -> None:
    run = forward_run("reference", tmp_path)
    cli(*run)
    assert cli(*run, "--resume")[0] == 2  # it came to its end
    path = tmp_path / RESULTS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:10]))
    code, _, err = cli(*run, "--resume", "--seed", 5)
    assert code == 2
    assert "of another run" in err
    assert cli(*run, "--resume")[0] == 0


def test_a_killed_runner_leaves_no_workers_and_a_readable_file(
    hostile: str, tmp_path: Path
) -> None:
    words = [str(w) for w in forward_run(f"{hostile}:Looping", tmp_path)]
    runner = subprocess.Popen(
        [sys.executable, "-m", "dnncanon", *words],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    path = tmp_path / RESULTS
    wait_until(lambda: path.exists() and bool(path.read_bytes()))
    workers = children(runner.pid)
    assert workers
    runner.kill()
    runner.wait()
    wait_until(lambda: not any(alive(worker) for worker in workers))
    assert not read_results(path).complete


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet fetched does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_shards_make_up_the_whole_run(cli: Cli, tmp_path: Path) -> None:
    cli(*forward_run("reference", tmp_path / "whole"))
    shards = [tmp_path / f"shard{i}" for i in (1, 2, 3)]
    for i, folder in enumerate(shards, 1):
        cli(*forward_run("reference", folder, "--shard", f"{i}/3"))
        assert 0 < len(lines(folder)) < len(lines(tmp_path / "whole"))
    code, _, _ = cli("merge", *shards, "--out", tmp_path / "merged")
    assert code == 0
    assert lines(tmp_path / "merged") == lines(tmp_path / "whole")
    assert (tmp_path / "merged" / "index.html").exists()


def test_workers_and_shards_of_a_crashing_backend_make_up_the_serial_run(
    cli: Cli, hostile: str, tmp_path: Path
) -> None:
    backend = f"{hostile}:CrashingNowAndThen"

    def ran(name: str, *more: object) -> list[str]:
        assert cli(*forward_run(backend, tmp_path / name, "--shrink", 0.1, *more))[0] in (0, 1)
        cases = read_results(tmp_path / name / RESULTS).cases
        return sorted(f"{r.case} {r.verdict} {r.origin}" for r in cases if r.origin != "shrunk")

    serial = ran("serial")
    assert 1 <= sum("CRASHED" in line for line in serial) < 5
    assert ran("two", "--jobs", 2) == serial
    assert ran("three", "--jobs", 3) == serial
    shards = [ran(f"shard{i}", "--jobs", i, "--shard", f"{i}/3") for i in (1, 2, 3)]
    assert sorted(line for shard in shards for line in shard) == serial
    assert (
        cli("merge", *(tmp_path / f"shard{i}" for i in (1, 2, 3)), "--out", tmp_path / "all")[0]
        == 1
    )
    merged = read_results(tmp_path / "all" / RESULTS).cases
    assert (
        sorted(f"{r.case} {r.verdict} {r.origin}" for r in merged if r.origin != "shrunk") == serial
    )


def test_what_is_not_all_shards_of_one_run_is_not_merged(cli: Cli, tmp_path: Path) -> None:
    for i in (1, 2):
        cli(*forward_run("reference", tmp_path / f"{i}", "--shard", f"{i}/2", "--cases", 10))
    cli(*forward_run("reference", tmp_path / "other", "--shard", "2/2", "--seed", 9))
    for folders in (["1"], ["1", "1"], ["1", "other"], ["1", "2", "2"]):
        where = [tmp_path / folder for folder in folders]
        code, _, err = cli("merge", *where, "--out", tmp_path / "merged")
        assert code == 2
        assert err.startswith("dnncanon: ")
    assert not (tmp_path / "merged" / "index.html").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to stand for a full disk")
def test_a_full_disk_ends_the_run_with_a_sentence(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_on_a_full_disk(self: ResultsWriter, path: Path, *rest: Any) -> None:
        original(self, Path("/dev/full"), *rest)

    original = ResultsWriter._open
    monkeypatch.setattr(ResultsWriter, "_open", opened_on_a_full_disk)
    code, _, err = cli(*forward_run("reference", tmp_path))
    assert code == 2
    assert "No space left on device" in err
    assert "--resume" in err


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
    "shard": (["run", "--shard", "3/2"], "--shard"),
    "expected failures": (["run", "--expected-failures", "no_such.toml"], "no_such.toml"),
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


@pytest.fixture(scope="module")
def a_results_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("run")
    chosen = ["--primitive", "conv_backward_bias", "--dtype", "float32", "--cases", "4"]
    assert main(["run", "--backend", "reference", "--out", str(folder), *chosen]) == 0
    return (folder / RESULTS).read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_results_file_is_reported_or_refused(
    data: st.DataObject, a_results_file: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut off, with bytes replaced, or lines lost or doubled: never a traceback, always an exit code."""
    damaged = bytearray(a_results_file)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    lines = bytes(damaged).splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at : at + 1] = [lines[at]] * data.draw(st.sampled_from((1, 1, 0, 2)))
    path = tmp_path / RESULTS
    path.write_bytes(b"".join(lines)[: data.draw(st.integers(0, len(damaged)))])
    code = main(["report", str(path)])
    _, errors = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert errors.startswith("dnncanon: ")
        assert errors.count("\n") == 1


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


def test_doctor_says_what_the_environment_asks_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_CACHE_DIR", "/somewhere")
    assert "DNNCANON_CACHE_DIR=/somewhere" in cli("doctor")[1]


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
