"""Whatever a backend does, the case is named for it and the run goes on."""

from collections.abc import Iterator

import pytest

from dnncanon.conformance.backends import BackendError
from dnncanon.conformance.case import Case
from dnncanon.conformance.pool import Pool
from dnncanon.reports import CaseResult, Verdict

# The middle case is the one that the hostile backends go for: three channels.
LINES = [
    "conv_forward x=float32[1,2,5] w=float32[2,2,3] fill=normal seed=1",
    "conv_forward x=float32[1,3,5] w=float32[2,3,3] fill=normal seed=2",
    "conv_forward x=float32[1,4,5] w=float32[2,4,3] fill=normal seed=3",
]


def results_of(backend: str, timeout: float = 60.0, jobs: int = 1) -> list[CaseResult]:
    results: list[CaseResult] = []
    with Pool(backend, timeout=timeout, jobs=jobs) as pool:
        for line in LINES:
            pool.submit(Case.parse(line), results.append)
        pool.drain()
    return sorted(results, key=lambda result: LINES.index(result.case))


def verdicts(results: list[CaseResult]) -> list[Verdict]:
    return [result.verdict for result in results]


def test_a_segfault_is_attributed_and_the_run_goes_on(hostile: str) -> None:
    results = results_of(f"{hostile}:Segfaulting")
    assert verdicts(results) == [Verdict.PASSED, Verdict.CRASHED, Verdict.PASSED]
    assert "SIGSEGV" in results[1].message
    assert "about to read address 0" in results[1].message


def test_an_exit_is_a_crash(hostile: str) -> None:
    results = results_of(f"{hostile}:Exiting")
    assert verdicts(results) == [Verdict.PASSED, Verdict.CRASHED, Verdict.PASSED]
    assert "exit code 7" in results[1].message


def test_an_endless_loop_is_a_timeout_and_the_run_goes_on(hostile: str) -> None:
    results = results_of(f"{hostile}:Looping", timeout=2.0)
    assert verdicts(results) == [Verdict.PASSED, Verdict.TIMEOUT, Verdict.PASSED]
    assert "2 s" in results[1].message


@pytest.mark.parametrize("jobs", [1, 2])
def test_more_workers_give_the_same_verdicts(hostile: str, jobs: int) -> None:
    results = results_of(f"{hostile}:Segfaulting", jobs=jobs)
    assert verdicts(results) == [Verdict.PASSED, Verdict.CRASHED, Verdict.PASSED]


FAILING = {
    "WritingOutside": "behind its last",
    "WritingInput": "input element (0, 0, 0)",
    "Zeros": "expected",
    "Stale": "is nan",
    "ReturningWrongShape": "y is float32[1, 2, 0], not float32[1, 2, 3]",
    "ReturningWrongType": "y is int32",
}


@pytest.mark.parametrize("backend", FAILING)
def test_a_wrong_result_is_a_failure_that_says_why(hostile: str, backend: str) -> None:
    results = results_of(f"{hostile}:{backend}")
    assert verdicts(results) == [Verdict.FAILED] * 3
    assert all(FAILING[backend] in result.message for result in results)


def test_returning_an_input_is_a_failure(hostile: str) -> None:
    line = "conv_forward x=float32[1,2,5] w=float32[2,2,1] fill=normal seed=1"
    with Pool(f"{hostile}:ReturningInput") as pool:
        result = pool.run(Case.parse(line))
    assert result.verdict is Verdict.FAILED
    assert "shares memory with an input" in result.message


def test_returning_the_previous_result_is_a_failure(hostile: str) -> None:
    with Pool(f"{hostile}:Remembering") as pool:
        alone = pool.run(Case.parse(LINES[0]))
        after_another = pool.run(Case.parse(f"{LINES[1]} after=7"))
    assert alone.verdict is Verdict.PASSED
    assert after_another.verdict is Verdict.FAILED


def test_the_call_before_leaves_no_trace_in_a_correct_backend() -> None:
    with Pool("reference") as pool:
        assert pool.run(Case.parse(f"{LINES[0]} after=7")).verdict is Verdict.PASSED


def test_an_exception_is_an_error_with_its_message(hostile: str) -> None:
    results = results_of(f"{hostile}:Raising")
    assert verdicts(results) == [Verdict.ERROR] * 3
    assert all("RuntimeError: no such luck" in result.message for result in results)


def test_printing_megabytes_does_no_harm(hostile: str) -> None:
    assert verdicts(results_of(f"{hostile}:Chatty")) == [Verdict.PASSED] * 3


def test_a_backend_that_dies_while_loading_is_an_error(hostile: str) -> None:
    with (
        Pool(f"{hostile}:CrashingOnLoad") as pool,
        pytest.raises(BackendError, match="exit code 3"),
    ):
        _ = pool.introduction


def test_a_backend_that_does_not_exist_is_an_error() -> None:
    with Pool("no_such_module") as pool, pytest.raises(BackendError, match="no_such_module"):
        _ = pool.introduction


@pytest.fixture
def thirty_lines(hostile: str) -> Iterator[Pool]:
    with Pool("thirty_lines") as pool:
        yield pool


def test_a_backend_of_thirty_lines_needs_nothing_of_ours(thirty_lines: Pool) -> None:
    assert thirty_lines.introduction["title"] == "thirty lines"
    assert thirty_lines.introduction["offered"] == ["conv_forward"]
    result = thirty_lines.run(Case.parse(LINES[0]))
    assert result.verdict is Verdict.PASSED
    assert result.repro_command.endswith("--backend thirty_lines")
    double = Case.parse(LINES[0].replace("float32", "float64"))
    assert thirty_lines.run(double).verdict is Verdict.UNSUPPORTED
