"""Whatever a backend does, it gets the verdict that is stated for it, and the cases around it theirs."""

import importlib.util
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dnncanon.conformance import execute, verdict
from dnncanon.conformance.backends import Backend, BackendError, load
from dnncanon.conformance.case import Case
from dnncanon.conformance.pool import Pool
from dnncanon.reports import CaseResult, Verdict

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched as Linux allows")

PATH = Path(__file__).parent / "backends" / "faults.py"
LINE = "conv_forward x=float32[1,3,9] w=float32[{filters},3,2] fill=normal seed=1"
TIMEOUT = 2.0
MEMORY = 1 << 30


spec = importlib.util.spec_from_file_location("faults_table", PATH)
assert spec is not None
assert spec.loader is not None
faults = importlib.util.module_from_spec(spec)
sys.modules["faults_table"] = faults
spec.loader.exec_module(faults)
FAULTS: list[Any] = faults.FAULTS


def case(filters: int = 1, more: str = "") -> Case:
    return Case.parse(LINE.format(filters=filters) + more)


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Pool]]:
    """One pool of one worker for each of the two backends, for all faults in turn."""
    folder = tmp_path_factory.mktemp("children")
    environment = {"DNNCANON_TEST_CHILDREN": str(folder / "children")}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PATH.parent))
        limits: dict[str, Any] = {"timeout": TIMEOUT, "memory_limit": MEMORY}
        with (
            Pool("faults:WithoutOut", environment=environment, **limits) as without,
            Pool("faults:WithOut", environment=environment, **limits) as taking,
        ):
            yield {False: without, True: taking}
        assert not living(folder / "children")


def living(path: Path) -> list[int]:
    """Those of the noted children that live a second after their worker."""
    children = [int(line) for line in path.read_text().split()] if path.exists() else []
    until = time.monotonic() + 1.0
    while time.monotonic() < until and any(alive(child) for child in children):
        time.sleep(0.02)
    return [child for child in children if alive(child)]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def in_turn(pool: Pool, *given: Case) -> list[CaseResult]:
    """The results of cases that one worker runs one after another."""
    results: dict[str, CaseResult] = {}
    for one in given:
        pool.submit(one, lambda result: results.__setitem__(result.case, result))
    pool.drain()
    return [results[str(one)] for one in given]


@linux
@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[f.does for f in FAULTS])
def test_the_verdict_is_the_stated_one_and_other_cases_are_not_touched(
    pools: dict[bool, Pool], number: int
) -> None:
    fault = FAULTS[number]
    if "processor" in fault.does and platform.machine() != "x86_64":
        pytest.skip("the fault is written for x86-64")
    before, at_fault, behind = in_turn(
        pools[fault.takes_out], case(), case(filters=number + 2), case(more=" after=9")
    )
    assert at_fault.verdict == fault.verdict, at_fault.message
    assert fault.says in at_fault.message
    assert len(at_fault.message) < 5000
    assert before.verdict is Verdict.PASSED, before.message
    assert behind.verdict is Verdict.PASSED, behind.message


@linux
def test_children_end_with_their_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PATH.parent))
    path = tmp_path / "children"
    with Pool("faults:WithoutOut", environment={"DNNCANON_TEST_CHILDREN": str(path)}) as pool:
        for commit in ("leaves_a_child", "leaves_a_daemon"):
            number = [f.commit.__name__ for f in FAULTS].index(commit)
            assert pool.run(case(filters=number + 2)).verdict is Verdict.PASSED
        children = [int(line) for line in path.read_text().split()]
        assert len(children) == 2
        assert all(map(alive, children))
    assert not living(path)


def raised(error: BaseException) -> CaseResult:
    def conv_forward(*tensors: Any, **attributes: Any) -> Any:
        raise error

    return execute.execute(Backend("b", SimpleNamespace(conv_forward=conv_forward)), case())


HEADLINES: dict[str, tuple[BaseException, str]] = {
    "one line": (RuntimeError("no luck"), "RuntimeError: no luck"),
    "several lines": (RuntimeError("no luck\nsecond\nthird"), "RuntimeError: no luck"),
    "an empty line first": (RuntimeError("\n\n  no luck\nsecond"), "RuntimeError: no luck"),
    "a colon at the end": (RuntimeError("no luck:\nsecond"), "RuntimeError: no luck:"),
    "no message": (RuntimeError(), "RuntimeError"),
    "the place first": (
        SyntaxError("no such word", ("kernel.py", 3, 1, "let x = 1\n")),
        "SyntaxError: no such word",
    ),
}


@pytest.mark.parametrize("kind", HEADLINES)
def test_an_error_is_headed_by_its_kind_and_the_first_line_of_its_message(kind: str) -> None:
    error, headline = HEADLINES[kind]
    result = raised(error)
    assert result.verdict is Verdict.ERROR
    assert result.message.splitlines()[0] == headline
    assert "in conv_forward" in result.message
    assert all(said in result.message for said in ("second", "third") if said in str(error))


def test_what_python_prints_with_a_headline_follows_it() -> None:
    noted = RuntimeError("no luck")
    noted.add_note("on a Monday")
    assert raised(noted).message.startswith("RuntimeError: no luck\non a Monday\n")
    place, _ = HEADLINES["the place first"]
    assert 'SyntaxError: no such word\n  File "kernel.py", line 3' in raised(place).message


# --- Several calls --------------------------------------------------------------------------------


def results_of(backend: str, *given: Case, pause: float = 0.0) -> list[CaseResult]:
    results = []
    with Pool(backend) as pool:
        for one in given:
            results.append(pool.run(one))
            time.sleep(pause)
    return results


def test_a_claim_of_determinism_is_held_to_the_last_bit(hostile: str) -> None:
    once, twice, thrice = results_of(
        f"{hostile}:Wobbling", case(), case(more=" runs=2"), case(more=" after=4 runs=3")
    )
    assert once.verdict is Verdict.PASSED
    for result in (twice, thrice):
        assert result.verdict is Verdict.FAILED
        assert "claimed to be deterministic, but y[0, 0, 7] is " in result.message
        assert "1 of 8 elements differ" in result.message


def test_without_a_claim_the_bits_may_differ_and_the_values_not(hostile: str) -> None:
    twice = case(more=" runs=2")
    assert results_of(f"{hostile}:WobblingUnclaimed", twice)[0].verdict is Verdict.PASSED
    assert results_of(f"{hostile}:Remembering", case(more=" after=3 runs=2"))[0].failing


def test_several_refused_calls_are_one_unsupported_case(hostile: str) -> None:
    (refused,) = results_of(f"{hostile}:RefusingDeterministically", case(more=" after=4 runs=2"))
    assert (refused.verdict, refused.message) == (Verdict.UNSUPPORTED, "not today")


def test_a_claim_that_holds_is_no_failure(pools: dict[bool, Pool]) -> None:
    with Pool("reference") as pool:
        assert pool.run(case(more=" after=3 runs=9")).verdict is Verdict.PASSED


@pytest.mark.parametrize("backend", ["KeepingOutput", "ReusingOutput"])
def test_a_call_that_writes_the_output_of_the_one_before_fails(hostile: str, backend: str) -> None:
    alone, after = results_of(f"{hostile}:{backend}", case(), case(more=" after=5"))
    assert alone.verdict is Verdict.PASSED
    assert after.verdict is Verdict.FAILED
    assert after.message.startswith("y was written after the call had returned")


@pytest.mark.parametrize(
    ("backend", "says"), [("WritingLate", "y was"), ("WritingInputLate", "x: ")]
)
def test_a_late_write_is_told_with_the_next_case(hostile: str, backend: str, says: str) -> None:
    first, second = results_of(f"{hostile}:{backend}", case(), case(more=" after=5"), pause=0.6)
    assert first.verdict is Verdict.PASSED
    assert second.verdict is Verdict.FAILED
    assert f"in the case before, {case()}: {says}" in second.message
    assert "after the call had returned" in second.message


def test_a_write_while_an_output_is_judged_fails(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*arguments: Any) -> Any:
        time.sleep(0.6)
        return judge(*arguments)

    judge = verdict.judge
    monkeypatch.setattr(execute, "judge", slowly)
    result = execute.execute(load(f"{hostile}:WritingLate"), case())
    assert result.verdict is Verdict.FAILED
    assert result.message == "while it was judged: y was written after the call had returned"


# --- Workspaces -----------------------------------------------------------------------------------

WORKSPACES = {
    "UsingWorkspace": ("PASSED", ""),
    "NeedingNoWorkspace": ("PASSED", ""),
    "WritingBehindWorkspace": (
        "FAILED",
        "workspace: memory 1 elements behind its last was written",
    ),
    "ReadingWorkspace": ("FAILED", "is nan, expected"),
    "MisjudgingWorkspace": ("ERROR", "workspace_bytes() returned 'plenty', not a number of bytes"),
}


@pytest.mark.parametrize("backend", WORKSPACES)
def test_a_workspace_is_as_large_as_asked_for_and_holds_nothing(hostile: str, backend: str) -> None:
    expected, says = WORKSPACES[backend]
    (result,) = results_of(f"{hostile}:{backend}", case())
    assert result.verdict == expected, result.message
    assert says in result.message


# --- Illegal calls --------------------------------------------------------------------------------

ILLEGAL = {
    "RaisingTheSpecs": ("PASSED", ""),
    "LettingThrough": ("FAILED", "broke conv_forward C8, and no error was raised"),
    "LettingThroughUnwritten": ("FAILED", "broke conv_forward C8, and no error was raised"),
    "RaisingItsOwn": (
        "FAILED",
        "broke conv_forward C8, but the error is not the spec's: SystemExit: no",
    ),
    "NamingAnother": ("FAILED", "broke conv_forward C8, but the error names conv_forward C1"),
    "RaisingAfterWriting": ("FAILED", "y: input element (0, 0, 0) was written"),
}


@pytest.mark.parametrize("backend", ILLEGAL)
def test_an_illegal_call_has_to_raise_the_error_of_its_constraint(
    hostile: str, backend: str
) -> None:
    expected, says = ILLEGAL[backend]
    illegal = Case.parse(LINE.format(filters=2).replace("fill=normal", "violates=C8.1"))
    result = execute.execute(load(f"{hostile}:{backend}"), illegal)
    assert result.verdict == expected, result.message
    assert says in result.message


# --- Loading --------------------------------------------------------------------------------------


def test_a_backend_that_replaces_numpy_while_loading_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "replacing.py").write_text("import numpy\nnumpy.matmul = numpy.dot\n")
    with Pool("replacing") as pool, pytest.raises(BackendError, match=r"replaces numpy\.matmul"):
        _ = pool.introduction


def test_a_backend_on_a_gpu_has_no_limit_of_memory_unless_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "limited.py").write_text(LIMITED)
    for on_gpu, asked, expected in (
        ("", None, "limited"),
        ("1", None, "unlimited"),
        ("1", 1 << 31, "limited"),
    ):
        environment = {"ON_GPU": on_gpu}
        with Pool("limited", environment=environment, memory_limit=asked) as pool:
            assert f"RuntimeError: {expected}" in pool.run(case()).message


LIMITED = """
import os, resource
def describe():
    return {"gpu": bool(os.environ["ON_GPU"])}
def conv_forward(x, w, **attributes):
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    raise RuntimeError("unlimited" if soft == hard else "limited")
"""
