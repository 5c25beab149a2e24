"""The results file: what is written is read again, and nothing wrong is read in silence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon.reports import (
    ULP_BINS,
    ULP_EDGES,
    CaseResult,
    ResultsError,
    ResultsWriter,
    Verdict,
    load_schema,
    read_results,
    records,
    ulp_bin,
)

from .synthetic import ENVIRONMENT, any_case, any_text, case, shrunk_from


def write(path: Path, *cases: CaseResult, finish: bool = True) -> list[str]:
    """A results file of these cases; returns its lines."""
    with ResultsWriter(path, ENVIRONMENT) as writer:
        for one in cases:
            writer.write(one)
        if finish:
            writer.finish(2.0)
    return path.read_text("utf-8").splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One path that all examples of a property overwrite."""
    return tmp_path_factory.mktemp("results") / "results.jsonl"


def altered(lines: list[str], index: int, **changes: Any) -> str:
    value = json.loads(lines[index]) | changes
    return "\n".join([*lines[:index], json.dumps(value), *lines[index + 1 :]]) + "\n"


# --- round trip -----------------------------------------------------------------------------------


@given(st.lists(any_case, max_size=5))
def test_what_is_written_is_read_again(scratch: Path, cases: list[CaseResult]) -> None:
    write(scratch, *cases)
    results = read_results(scratch)
    assert list(map(repr, results.cases)) == list(map(repr, cases))  # repr: NaN is not equal to NaN
    assert results.environment == ENVIRONMENT
    assert results.complete


@given(details=st.dictionaries(any_text, st.floats() | any_text | st.none(), max_size=3))
def test_environment_details_are_read_again(scratch: Path, details: dict[str, Any]) -> None:
    environment = replace(ENVIRONMENT, details=details)
    with ResultsWriter(scratch, environment):
        pass
    assert read_results(scratch).environment == environment


def test_numbers_that_json_lacks_are_written_as_strings(path: Path) -> None:
    lines = write(path, case(max_error=float("inf"), bias=float("nan"), max_ulp=None))
    record = json.loads(lines[1])
    assert (record["max_error"], record["bias"], record["max_ulp"]) == ("inf", "nan", None)


def test_numpy_scalars_become_plain_numbers() -> None:
    result = case(
        max_error=np.float32(0.5),
        elements=np.int64(3),
        ulp_histogram=np.array([1, 2]),
        verdict="FAILED",
    )
    assert type(result.max_error) is float
    assert type(result.elements) is int
    assert result.ulp_histogram == (1, 2)
    assert result.verdict is Verdict.FAILED


def test_every_line_is_flushed_at_once(path: Path) -> None:
    with ResultsWriter(path, ENVIRONMENT) as writer:
        writer.write(case())
        assert len(read_results(path).cases) == 1


def test_a_histogram_with_too_many_bins_is_refused() -> None:
    with pytest.raises(ValueError, match="21 bins, not 20"):
        case(ulp_histogram=(1,) * 21)


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValueError, match="MAYBE"):
        case(verdict="MAYBE")


def test_nothing_is_written_after_the_summary(path: Path) -> None:
    with ResultsWriter(path, ENVIRONMENT) as writer:
        writer.finish(1.0)
        with pytest.raises(ValueError, match="after the summary"):
            writer.write(case())
        with pytest.raises(ValueError, match="second summary"):
            writer.finish(1.0)


def test_summary_counts_and_rate(path: Path) -> None:
    drawn = case("b", "FAILED")
    with ResultsWriter(path, ENVIRONMENT) as writer:
        for one in (case("a"), drawn, shrunk_from(drawn), case("c", "UNSUPPORTED")):
            writer.write(one)
        summary = writer.finish(4.0)
    assert summary.cases == 3
    assert {verdict: n for verdict, n in summary.counts.items() if n} == {
        "PASSED": 1,
        "FAILED": 1,
        "UNSUPPORTED": 1,
    }
    assert summary.cases_per_second == 0.5  # two were run
    assert read_results(path).summary == summary


# --- ULP bins -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ulps", "expected"),
    [(0.0, 0), (1e-9, 1), (0.5, 1), (0.51, 2), (1.0, 2), (2.0, 3), (2.01, 4), (65536.0, 18)],
)
def test_ulp_bin(ulps: float, expected: int) -> None:
    assert ulp_bin(ulps) == expected


@pytest.mark.parametrize("ulps", [65537.0, float("inf"), float("nan")])
def test_far_and_not_finite_errors_are_in_the_last_bin(ulps: float) -> None:
    assert ulp_bin(ulps) == ULP_BINS - 1


@given(st.floats(0, 1e9) | st.just(float("nan")))
def test_ulp_bin_is_searchsorted(ulps: float) -> None:
    assert ulp_bin(ulps) == np.searchsorted(ULP_EDGES, ulps)


# --- schema ---------------------------------------------------------------------------------------


def test_schema_is_valid_and_describes_each_kind_of_line(path: Path) -> None:
    from jsonschema import Draft202012Validator

    schema = load_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for line in write(path, case(max_error=float("nan"), counters={"flops": 1e9})):
        validator.validate(json.loads(line))


def test_schema_and_record_have_the_same_fields(path: Path) -> None:
    record = json.loads(write(path, case())[1])
    assert record.keys() == load_schema()["$defs"]["case"]["properties"].keys()
    assert load_schema()["$defs"]["verdict"]["enum"] == [str(verdict) for verdict in Verdict]
    assert load_schema()["$defs"]["case"]["properties"]["ulp_histogram"]["maxItems"] == ULP_BINS


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(-1, 1),
    st.sampled_from(["", "x", "inf", "nan", "PASSED", "case"]),
)
json_values: st.SearchStrategy[Any] = st.one_of(
    scalars,
    st.lists(scalars, max_size=21),
    st.dictionaries(st.sampled_from("xy"), scalars),
)


@given(
    changes=st.dictionaries(
        st.sampled_from([*load_schema()["$defs"]["case"]["properties"], "other"]),
        json_values,
        max_size=3,
    ),
    removed=st.sets(st.sampled_from([*load_schema()["$defs"]["case"]["properties"]]), max_size=1),
)
def test_the_fast_check_accepts_only_what_the_schema_accepts(
    changes: dict[str, Any], removed: set[str]
) -> None:
    record = {"kind": "case"} | records._jsonable(records._field_values(case(ulp_histogram=(1,))))
    assert records._surely_valid(record)
    record = {name: value for name, value in (record | changes).items() if name not in removed}
    if records._surely_valid(record):
        assert records._validators()["case"].is_valid(record)


# --- older versions -------------------------------------------------------------------------------

OLD_HEADER = {"kind": "environment", "schema": "dnncanon-results/1"}
OLD_CASE = {
    "kind": "case",
    "case": "conv_forward x=float32[1,1,1] w=float32[1,1,1] seed=0",
    "backend": "gpu",
    "primitive": "conv_forward",
    "dtype": "float32",
    "layer": "bounded",
    "numerics": "ieee",
    "verdict": "PASSED",
    "message": "",
    "origin": "drawn",
    "max_error": 0.25,
    "p99_error": 0.2,
    "bias": None,
    "max_ulp": 1.5,
    "ulp_histogram": [70, 20, 8, 2],
    "elements": 100,
    "seconds": 0.001,
    "seconds_total": 0.01,
    "shrunk_from": None,
    "counters": {},
}


def write_version_1(path: Path) -> None:
    """A file as version 1 had it, of a run that was killed."""
    header = OLD_HEADER | records._jsonable(records._field_values(ENVIRONMENT))
    path.write_text(f"{json.dumps(header)}\n{json.dumps(OLD_CASE)}\n")


def test_a_file_of_version_1_is_read(path: Path) -> None:
    write_version_1(path)
    (old,) = read_results(path).cases
    assert (old.max_error, old.max_ulp, old.ulp_histogram) == (0.25, 1.5, (70, 20, 8, 2))
    assert (old.mean_square, old.sampled, old.wrong_elements) == (None, 0, None)


def test_a_run_of_version_1_goes_on_as_one_of_this(path: Path) -> None:
    write_version_1(path)
    with ResultsWriter.resume(path, read_results(path)) as writer:
        writer.write(case("another", mean_square=0.5, sampled=64))
        writer.finish(1.0)
    header, *_ = path.read_text().splitlines()
    assert json.loads(header)["schema"] == records.SCHEMA_VERSION
    again = read_results(path)
    assert again.environment == ENVIRONMENT
    assert [one.mean_square for one in again.cases] == [None, 0.5]


def test_the_names_of_versions_have_one_length() -> None:
    assert len({len(version) for version in records.READABLE_VERSIONS}) == 1


# --- files that are wrong -------------------------------------------------------------------------


def error_of(path: Path) -> ResultsError:
    with pytest.raises(ResultsError) as caught:
        read_results(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_no_such_file(tmp_path: Path) -> None:
    assert "No such file" in error_of(tmp_path / "none.jsonl").reason


def test_a_folder(tmp_path: Path) -> None:
    assert "cannot be read" in error_of(tmp_path).reason


def test_empty_file(path: Path) -> None:
    path.write_bytes(b"")
    assert error_of(path).reason == "the file is empty"


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04\xff\xfe",
        b"<testsuites/>\n",
        b"name,verdict\n",
        b"[1, 2]\n",
        b'{"kind": "environment"}\n',
        b'"dnncanon-results/1"\n',
        b"\n",
    ],
)
def test_foreign_files(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    error = error_of(path)
    assert error.line == 1
    assert error.reason.startswith("not a dnncanon results file")


def test_another_version(path: Path) -> None:
    lines = write(path, case())
    path.write_text(altered(lines, 0, schema="dnncanon-results/3"))
    error = error_of(path)
    assert error.line == 1
    assert "dnncanon-results/3" in error.reason
    assert "reads dnncanon-results/1 and dnncanon-results/2" in error.reason


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"max_error": "much"}, "/max_error"),
        ({"verdict": "MAYBE"}, "/verdict"),
        ({"ulp_histogram": [1, -2]}, "/ulp_histogram/1"),
        ({"elements": 1.5}, "/elements"),
        ({"wrong_elements": -1}, "/wrong_elements"),
        ({"sampled": None}, "/sampled"),
        ({"seconds": -1}, "/seconds"),
        ({"unheard_of": 1}, "'unheard_of'"),
        ({"kind": "cake"}, "'cake'"),
        ({"counters": {"flops": "many"}}, "/counters/flops"),
        ({"seconds": 10**400}, "int too large"),
    ],
)
def test_a_field_that_the_schema_does_not_allow(
    path: Path, changes: dict[str, Any], place: str
) -> None:
    lines = write(path, case("a"), case("b"))
    path.write_text(altered(lines, 2, **changes))
    error = error_of(path)
    assert error.line == 3
    assert place in error.reason


def test_a_missing_field(path: Path) -> None:
    lines = write(path, case())
    record = json.loads(lines[1])
    del record["backend"]
    path.write_text("\n".join([lines[0], json.dumps(record), lines[2]]) + "\n")
    assert "'backend' is a required property" in error_of(path).reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"kind": "case", "case', "not JSON"),
        (b"", "an empty line"),
        (b'{"kind": "case", "max_error": NaN}', "bare NaN"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not"),
        (b"3", '"kind" is None'),
    ],
)
def test_a_corrupt_line_in_the_middle(path: Path, line: bytes, reason: str) -> None:
    lines = [text.encode() for text in write(path, case("a"), case("b"))]
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]) + b"\n")
    error = error_of(path)
    assert error.line == 3
    assert reason in error.reason


def test_lines_missing_from_the_middle(path: Path) -> None:
    lines = write(path, case("a"), case("b", "FAILED"))
    path.write_text("\n".join([lines[0], lines[1], lines[3]]) + "\n")
    error = error_of(path)
    assert error.line == 3
    assert "2 cases (1 FAILED, 1 PASSED)" in error.reason
    assert "1 cases (1 PASSED)" in error.reason


def test_two_files_run_together(path: Path) -> None:
    lines = write(path, case("a"))
    path.write_text("\n".join([*lines, *lines]) + "\n")
    assert "after the summary" in error_of(path).reason
    path.write_text("\n".join([*lines[:2], *lines]) + "\n")
    assert "second environment" in error_of(path).reason


def test_every_way_to_be_cut_off(path: Path) -> None:
    """A run killed at any byte leaves a file that reads as an unfinished run, or says why not."""
    lines = write(path, case("a", message="é"), case("b"))
    content = path.read_bytes()
    header = len(lines[0].encode())
    # Without its last newline the file is still whole.
    for length in (0, 1, header // 2, *range(header - 2, len(content) - 1)):
        path.write_bytes(content[:length])
        if length < header:
            assert error_of(path).reason in ("the file is empty", "the header line is cut off")
            continue
        results = read_results(path)
        whole = content[:length].count(b"\n")
        assert len(results.cases) in (max(whole - 1, 0), whole)
        assert not results.complete
        assert results.incomplete_reason
        assert results.summary is None


def test_a_run_without_summary_did_not_finish(path: Path) -> None:
    write(path, case(), finish=False)
    results = read_results(path)
    assert not results.truncated
    assert (
        results.incomplete_reason == "The run did not finish: its results file has no summary line."
    )


def test_a_run_that_was_stopped_on_purpose(path: Path) -> None:
    with ResultsWriter(path, ENVIRONMENT) as writer:
        writer.write(case(verdict="FAILED"))
        writer.finish(1.0, finished=False)
    results = read_results(path)
    assert results.summary is not None
    assert not results.complete
    assert "stopped before" in (results.incomplete_reason or "")


# --- commands -------------------------------------------------------------------------------------


@given(
    any_text.filter(
        lambda text: "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
    )
)
def test_the_command_gives_the_shell_the_case_as_it_is(line: str) -> None:
    import shlex

    assert shlex.split(case(line, backend="my.module:thing").repro_command) == [
        "dnncanon",
        "repro",
        line,
        "--backend",
        "my.module:thing",
    ]


def test_the_command_is_readable() -> None:
    command = case("conv_forward x=float16[1,1] seed=0").repro_command
    assert command == "dnncanon repro 'conv_forward x=float16[1,1] seed=0' --backend gpu"
