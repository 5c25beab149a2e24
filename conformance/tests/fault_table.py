"""The table of faults in ``conformance/docs/faults.md``: written by this module, held to it by a test.

``python conformance/tests/fault_table.py`` writes it again.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "faults.md"

# Of backends that take more than one call to show, of runs, and of files: what happens, what becomes of
# it, and the test that says so.
CALLS = (
    (
        "every second call is off by one unit in the last place, and determinism was claimed",
        "FAILED in cases with `runs=2`, naming the element and both values",
        "test_hostile.py::test_a_claim_of_determinism_is_held_to_the_last_bit",
    ),
    (
        "the same without the claim",
        "PASSED: both results are within their bounds",
        "test_hostile.py::test_without_a_claim_the_bits_may_differ_and_the_values_not",
    ),
    (
        "the result of the call before is returned again",
        "FAILED in cases with `after=`",
        "test_pool.py::test_returning_the_previous_result_is_a_failure",
    ),
    (
        "the output of the call before is written again, or the same array returned from every call",
        "FAILED in cases with `after=` or `runs=`",
        "test_hostile.py::test_a_call_that_writes_the_output_of_the_one_before_fails",
    ),
    (
        "a thread writes an output or an input while the output is judged",
        "FAILED",
        "test_hostile.py::test_a_write_while_an_output_is_judged_fails",
    ),
    (
        "a thread writes them later",
        "FAILED for the next case on the same worker, whose message names the case before; after the last "
        "case, or when more than 16 MiB were put out, it goes unseen",
        "test_hostile.py::test_a_late_write_is_told_with_the_next_case",
    ),
    (
        "one byte behind the announced workspace is written",
        "FAILED",
        "test_hostile.py::test_a_workspace_is_as_large_as_asked_for_and_holds_nothing",
    ),
    (
        "a workspace is taken to hold zeros",
        "FAILED: it holds NaN",
        "test_hostile.py::test_a_workspace_is_as_large_as_asked_for_and_holds_nothing",
    ),
    (
        "an illegal call computes something, raises nothing, or another error than it claims",
        "FAILED in must-error cases",
        "test_hostile.py::test_an_illegal_call_has_to_raise_the_error_of_its_constraint",
    ),
    (
        "an `out=` of another shape or dtype, whose elements overlap, or in the memory of an input is let "
        "through, or refused by another error than the backend claims",
        "FAILED in must-error cases",
        "test_output_violations.py::test_an_out_that_is_let_through_is_a_failure_that_names_what",
    ),
    (
        "an output or an input is written before an `out=` is refused",
        "FAILED in must-error cases",
        "test_output_violations.py::test_nothing_may_be_written_before_it_is_refused",
    ),
    (
        "`numpy.matmul` is replaced while the backend is loaded",
        "refused, exit code 2",
        "test_hostile.py::test_a_backend_that_replaces_numpy_while_loading_is_refused",
    ),
    (
        "the process ends while the backend is loaded",
        "refused, exit code 2",
        "test_pool.py::test_a_backend_that_dies_while_loading_is_an_error",
    ),
)

RUNS = (
    (
        "the runner is killed",
        "its workers end with it, and what they had started; the results file is readable",
        "test_run.py::test_a_killed_runner_leaves_no_workers_and_a_readable_file",
    ),
    (
        "a killed run is resumed",
        "it goes on at the next case and loses no result",
        "test_run.py::test_a_killed_run_is_resumed_without_loss",
    ),
    (
        "a primitive crashes or hangs again and again",
        "after 5 times the rest of its cases is SKIPPED, with the reason",
        "test_run.py::test_a_cell_that_keeps_dying_is_given_up",
    ),
    (
        "the backend crashes now and then, on 1 to 3 workers and in 3 shards",
        "the union of the results is the serial run's, case for case",
        "test_run.py::test_workers_and_shards_of_a_crashing_backend_make_up_the_serial_run",
    ),
    (
        "a case needs more memory than there is",
        "SKIPPED before anything is allocated, with the bytes it needs",
        "test_memory.py::test_an_enormous_case_is_skipped",
    ),
    (
        "the disk is full",
        "exit code 2 and a sentence; `--resume` goes on",
        "test_run.py::test_a_full_disk_ends_the_run_with_a_sentence",
    ),
    (
        "the output folder cannot be written",
        "exit code 2 and a sentence, before anything runs",
        "test_run.py::test_an_unwritable_output_folder_is_wrong_usage",
    ),
    (
        "a results file is damaged",
        "exit code 2 and a sentence, or what is left of it is reported; never a traceback",
        "test_run.py::test_a_damaged_results_file_is_reported_or_refused",
    ),
    (
        "a case line is damaged",
        "refused with the word that is wrong",
        "test_case.py::test_any_text_is_a_case_or_a_case_error",
    ),
    (
        "an expected failure does not happen, or has expired",
        "exit code 1, or 2 before anything runs",
        "test_run.py::test_an_expected_failure_that_does_not_happen_is_an_error",
    ),
)

HEAD = """\
# Faults and verdicts

What the suite says when a backend, a machine or a user does what must not be. Each row is a test; the
tables are written by `python conformance/tests/fault_table.py`, and a test holds this page to them.

A verdict on one case never touches another. UNSUPPORTED is what a backend declines, FAILED what it
computes or writes wrongly, ERROR what it raises or does to the process that judges it, CRASHED a process
that ended, TIMEOUT one that fell silent. What a call changes of Python's and NumPy's settings is set back
after it and is no fault.

This is a defence against accidents. A backend that means to deceive shares a process with its judge and
will find a way; so does one that writes far beyond the guarded margins of a tensor, into the judge's own
memory.

"""


def faults() -> list[Any]:
    """The rows of ``backends/faults.py``."""
    spec = importlib.util.spec_from_file_location("faults_table", HERE / "backends" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults_table"] = module
    spec.loader.exec_module(module)
    found: list[Any] = module.FAULTS
    return found


def document() -> str:
    """The page as it has to be."""
    one_call = (
        "`test_hostile.py::test_the_verdict_is_the_stated_one_and_other_cases_are_not_touched`"
    )
    lines = [HEAD + "## In one call", "", f"All by {one_call}.", ""]
    lines += ["| the backend … | verdict | message |", "| --- | --- | --- |"]
    for fault in faults():
        says = f"… {fault.says} …" if fault.says else ""
        lines.append(f"| {fault.does} | {fault.verdict} | {says} |")
    for title, rows in (("Over several calls", CALLS), ("Runs and files", RUNS)):
        lines += ["", f"## {title}", "", "| what happens | what becomes of it | test |"]
        lines += ["| --- | --- | --- |"]
        lines += [f"| {happens} | {becomes} | `{test}` |" for happens, becomes, test in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
