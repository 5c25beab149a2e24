"""Mutants are made as declared, do not leak into the suite, and none survives unexplained."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import dnncanon.reference as reference
from dnncanon.conformance import mutants, mutation, warm
from dnncanon.conformance.backends import BackendError, load
from dnncanon.conformance.case import Case
from dnncanon.conformance.cli import main
from dnncanon.conformance.execute import blank_result
from dnncanon.conformance.mutants import Fate, hunt, select
from dnncanon.conformance.pool import spawned
from dnncanon.reports import Verdict
from dnncanon.spec import primitives
from dnncanon.spec.mutant import KINDS, Mutant

ALL = list(mutation.catalogue().values())


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_place_is_in_the_source_once(mutant: Mutant) -> None:
    mutation.check_places([mutant])
    found = find_spec(mutant.module)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text("utf-8")
    changed = mutation.mutated(mutant, source)
    assert changed != source
    compile(changed, mutant.module, "exec")
    assert mutant.name.startswith(f"{mutant.module.split('.')[1]}.")
    assert mutant.primitive in primitives()


def test_every_primitive_and_kind_is_attacked() -> None:
    assert {mutant.primitive for mutant in ALL} == set(primitives())
    attacked = Counter(mutant.kind for mutant in ALL)
    assert set(attacked) <= set(KINDS)


def test_a_mutant_is_loaded_beside_the_original() -> None:
    """What the suite itself uses must stay as it is: a mutated reference would agree with itself."""
    before = {name: module for name, module in sys.modules.items() if "dnncanon.reference" in name}
    mutant = load("mutant:reference.stride_ignored")
    after = {name: module for name, module in sys.modules.items() if "dnncanon.reference" in name}
    assert before == after
    assert mutant.function("conv_forward") is not reference.conv_forward


def test_a_mutant_whose_place_is_gone_is_refused() -> None:
    mutant = ALL[0]
    with pytest.raises(mutation.MutantError, match="occurs 0 times"):
        mutation.mutated(mutant, "nothing of the kind")
    with pytest.raises(BackendError, match=r"no mutant .reference\.none."):
        load("mutant:reference.none")


def test_all_mutants_whose_places_are_gone_are_told_before_any_is_run() -> None:
    gone = [replace(ALL[0], name=f"reference.{n}", old="nothing of the kind") for n in "ab"]
    with pytest.raises(mutation.MutantError, match=r"reference\.a: .* 0 times") as caught:
        list(hunt([ALL[0], *gone], cases=1, seed=0, timeout=60.0))
    assert "reference.b: " in str(caught.value)


def test_a_killing_case_is_reproduced_by_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    (fate,) = hunt(select(["reference.dilation_ignored"]), cases=50, seed=0, timeout=60.0)
    assert fate.killer is not None
    assert main(["repro", fate.killer.case, "--backend", "mutant:reference.dilation_ignored"]) == 1
    assert main(["repro", fate.killer.case, "--backend", "reference"]) == 0
    capsys.readouterr()


def test_the_command_tells_fates_and_writes_the_kill_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "mutants.md"
    assert main(["mutants", "reference.batch_*", "reference.double_*", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "killed by FAILED conv_backward_filter" in told
    assert "killed 1 of 1 mutants, 1 declared equivalent" in told
    page = out.read_text("utf-8")
    assert "Killed 1 of 1 mutants, 1 declared equivalent." in page
    assert "| reference.batch_mean | arithmetic |" in page
    assert names_in(page) == ["reference.batch_mean", "reference.double_rounding"]


def test_shards_share_the_mutants_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hunted = []
    for shard in ("1/3", "2/3"):
        out = tmp_path / "part.md"
        words = ["mutants", "reference.batch_*", "reference.double_*", "--shard", shard]
        assert main([*words, "--out", str(out)]) == 0
        hunted += names_in(out.read_text("utf-8"))
    assert sorted(hunted) == ["reference.batch_mean", "reference.double_rounding"]
    assert main([*words[:-1], "3/3"]) == 3, "nothing was tested"
    capsys.readouterr()


def names_in(page: str) -> list[str]:
    return re.findall(r"^\| (\w+\.\w+) \|", page, re.MULTILINE)


def test_the_page_of_kills_is_of_this_catalogue() -> None:
    page = (Path(__file__).parents[1] / "docs" / "mutants.md").read_text("utf-8")
    assert names_in(page) == [mutant.name for mutant in ALL], (
        "run dnncanon mutants --out conformance/docs/mutants.md"
    )


@pytest.mark.parametrize(
    ("killed", "equivalent", "told", "code"),
    [
        (False, "", "reference.batch_mean: survived, and nothing says why", 1),
        (True, "no output shows it", "reference.batch_mean: declared equivalent, but killed", 1),
        (False, "no output shows it", "killed 0 of 0 mutants, 1 declared equivalent", 0),
    ],
)
def test_the_exit_code_is_0_if_each_is_killed_or_explained(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    killed: bool,
    equivalent: str,
    told: str,
    code: int,
) -> None:
    mutant = replace(mutation.catalogue()["reference.batch_mean"], equivalent=equivalent)
    case = Case.parse("conv_backward_bias dy=float32[1,1,1] fill=normal seed=1")
    failed = replace(blank_result(case, "reference", "ieee"), verdict=Verdict.FAILED)
    fate = Fate(mutant, failed if killed else None, 7, 0.1)
    monkeypatch.setattr(mutants, "hunt", lambda *_, **__: iter([fate]))
    assert main(["mutants", "reference.batch_mean"]) == code
    assert told in capsys.readouterr().out


# --- Side by side ---------------------------------------------------------------------------------


def hunted(
    patterns: list[str], jobs: int, timeout: float = 60.0
) -> list[tuple[str, Verdict | None, str, int]]:
    """The fates in their order, without what differs from run to run."""
    fates = hunt(select(patterns), cases=50, seed=0, timeout=timeout, jobs=jobs)
    return [
        (fate.mutant.name, fate.killer.verdict, fate.killer.case, fate.cases)
        if fate.killer
        else (fate.mutant.name, None, "", fate.cases)
        for fate in fates
    ]


def test_side_by_side_fates_are_the_serial_ones() -> None:
    selection = ["reference.stride_*", "reference.residual_*", "reference.double_rounding"]
    serial = hunted(selection, jobs=1)
    assert len(serial) == 5
    assert hunted(selection, jobs=2) == serial


def test_workers_are_forked_only_where_that_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers do not survive a fork, and libraries read some variables only when they are imported."""
    (tmp_path / "on_a_gpu.py").write_text("def describe():\n    return {'gpu': True}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mutant = mutation.catalogue()["reference.stride_ignored"]
    assert warm.may_fork(mutant) == (sys.platform == "linux")
    assert not warm.may_fork(replace(mutant, backend="on_a_gpu"))
    assert warm.start_of(replace(mutant, environment={"THREADS": "1"})) is spawned


PLANTED = """
from dataclasses import replace
from dnncanon.reference.mutants import MUTANTS as KNOWN

base = next(mutant for mutant in KNOWN if mutant.name == "reference.stride_ignored")
MUTANTS = tuple(
    replace(base, name=f"planted.{name}", new=f"return {new}")
    for name, new in {
        "hangs": "__import__('time').sleep(3600)",
        "loops": "any(iter(int, 1))",
        "exits": "__import__('os')._exit(7)",
        "is_killed": "__import__('os').kill(__import__('os').getpid(), 9)",
    }.items()
)
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of mutants that never return, installed in a folder of its own."""
    (tmp_path / "planted_mutants.py").write_text(PLANTED)
    metadata = tmp_path / "planted-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[dnncanon.mutants]\nplanted = planted_mutants\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_mutant_that_hangs_or_ends_its_process_is_killed(jobs: int) -> None:
    fates = hunted(["planted.*"], jobs, timeout=2.0)
    assert [(name, verdict) for name, verdict, _, _ in fates] == [
        ("planted.hangs", Verdict.TIMEOUT),
        ("planted.loops", Verdict.TIMEOUT),
        ("planted.exits", Verdict.CRASHED),
        ("planted.is_killed", Verdict.CRASHED),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched as Linux allows")
@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.kill, signal.SIGINT),
        (os.killpg, signal.SIGINT),  # as a terminal does
        (os.kill, signal.SIGTERM),
        (os.kill, signal.SIGKILL),
    ],
)
def test_interrupted_it_leaves_no_process_behind(
    planted: Path, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    mark, value = "DNNCANON_TEST_MARK", str(uuid.uuid4())
    command = ["mutants", "planted.hangs", "planted.loops", "--jobs", "2", "--timeout", "600"]
    running = subprocess.Popen(
        [sys.executable, "-m", "dnncanon.conformance.cli", *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(planted), *sys.path]), mark: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The command, what tracks resources for multiprocessing, two that hunt, and their workers.
    assert until(lambda: len(marked(mark, value)) == 6), marked(mark, value)
    time.sleep(1.0)  # until the workers are in the mutants' hands
    send(running.pid, number)
    # A guard against hanging, not a measure: others may have the processors.
    _, errors = running.communicate(timeout=120)
    interrupted = number is signal.SIGINT
    assert running.returncode == (130 if interrupted else -number)
    assert errors == ("dnncanon: interrupted\n" if interrupted else "")
    assert until(lambda: not marked(mark, value)), marked(mark, value)


def marked(name: str, value: str) -> list[int]:
    """Processes that live and have the variable in the environment they were started with."""
    mark = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes to hold in time."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def test_no_such_mutant_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "none.*"]) == 2
    assert "no mutant matches none.*" in capsys.readouterr().err


def test_the_original_is_back_for_every_form_of_import() -> None:
    import dnncanon.reference as before

    load("mutant:" + next(m.name for m in ALL if m.name.startswith("reference.")))
    import dnncanon.reference as after

    assert after is before is sys.modules["dnncanon.reference"]


def test_a_room_that_only_a_block_needs_is_loaded_no_more_after_it() -> None:
    """Otherwise a mutant's late imports would find the room as it was."""
    script = """
import sys
from dnncanon.conformance import mutation
with mutation.unloaded_afterwards("dnncanon.reference"):
    import dnncanon.reference
assert not [name for name in sys.modules if name.startswith("dnncanon.reference")]
try:
    dnncanon.reference
except AttributeError:
    pass
else:
    raise SystemExit("the package still has it")
import dnncanon.reference as before
with mutation.unloaded_afterwards("dnncanon.reference"):
    import dnncanon.reference
assert sys.modules["dnncanon.reference"] is before
"""
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True
    )
