"""The results file: what one line of results.jsonl says, how it is written and how it is read.

A results file is UTF-8 text with one JSON object a line: one `environment`, then one `case` for
every case that was run, at the end one `summary`; `schemas/results.schema.json` is its JSON Schema.
The environment names the version of the format; files of every version so far are read:

* 2 has `mean_square`, `sampled` and `wrong_elements` of a case;
* 1 has not, and they read as not measured.

Every line is flushed when it is written, so a run that is killed leaves a readable file; that its
summary is missing is how a reader knows.

JSON has no NaN and no Infinity. A measured number that is not finite is written as the string
"inf", "-inf" or "nan"; a number that was not measured is null.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

SCHEMA_VERSION = "dnncanon-results/2"
"""The version that is written."""
READABLE_VERSIONS = ("dnncanon-results/1", SCHEMA_VERSION)
"""The versions that are read; names of one length, so that `resume` can bring a file up to date."""

ULP_EDGES: tuple[float, ...] = (0.0, *(2.0**k for k in range(-1, 17)))
"""Upper edges of the bins of `CaseResult.ulp_histogram`, in ULP of the output dtype.

Bin 0 counts the elements that are exactly right, bin i those with
`ULP_EDGES[i - 1] < |error| <= ULP_EDGES[i]`, and one last bin those beyond 2^16 or not finite.
`numpy.searchsorted(ULP_EDGES, abs_error_in_ulps)` gives the bins of an array. Because the bins are
the same in every case, the histogram of several cases is their sum, and loses nothing.
"""
ULP_BINS = len(ULP_EDGES) + 1


class Verdict(StrEnum):
    """What came of one case."""

    PASSED = "PASSED"
    """Conforms."""
    FAILED = "FAILED"
    """Differs from the reference by more than the bound, or broke a guard."""
    MISTRUSTED = "MISTRUSTED"
    """The comparison was vacuous: a trivially wrong output would have passed too."""
    UNSUPPORTED = "UNSUPPORTED"
    """The backend does not claim it."""
    SKIPPED = "SKIPPED"
    """Not run, for the reason in the message."""
    ERROR = "ERROR"
    """The backend raised."""
    CRASHED = "CRASHED"
    """The worker process died."""
    TIMEOUT = "TIMEOUT"
    """The case did not come back in time."""
    EXPECTED_FAILURE = "EXPECTED_FAILURE"
    """Does not conform, as its owner has declared, with a reason and an expiry."""


FAILING = frozenset({Verdict.FAILED, Verdict.ERROR, Verdict.CRASHED, Verdict.TIMEOUT})
"""Verdicts that mean: does not conform."""
NOT_RUN = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED})
"""Verdicts of cases that were not run; they are in no denominator."""


class ResultsError(ValueError):
    """A results file that cannot be used: which file, which line (None: the whole file) and why."""

    def __init__(self, path: str | os.PathLike[str], line: int | None, reason: str) -> None:
        self.path = Path(path)
        self.line = line
        self.reason = reason
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        super().__init__(f"{where}: {reason}")


@dataclass(frozen=True)
class CaseResult:
    """What came of one case. NumPy scalars are accepted and become plain Python numbers."""

    case: str
    """The line that rebuilds the case; opaque here."""
    backend: str
    primitive: str
    dtype: str
    layer: str
    """exact, bounded, special or workload; shown as it is."""
    numerics: str
    """The numerics class that the backend claims, for instance ieee."""
    verdict: Verdict
    message: str = ""
    """Why, in one or more lines."""
    origin: str = "drawn"
    """drawn, shrunk, repro or workload:NAME."""
    max_error: float | None = None
    """Largest |error| / bound over the elements of all outputs; above 1 the case fails."""
    p99_error: float | None = None
    """|error| / bound that 99 % of the elements do not exceed."""
    bias: float | None = None
    """z score of the signed error."""
    mean_square: float | None = None
    """Mean of (error / σ)² over `sampled` elements, with the model's σ; 1 is what the model has."""
    sampled: int = 0
    """Elements of which `mean_square` is the mean, over all outputs."""
    max_ulp: float | None = None
    """Largest |error| in units in the last place of the output dtype; None of discrete outputs."""
    ulp_histogram: tuple[int, ...] = ()
    """Elements by |error| in ULP, in the bins of `ULP_EDGES`; empty where nothing was measured."""
    wrong_elements: int | None = None
    """Elements of discrete outputs (indices, masks, codes) that are wrong; None if there are none."""
    elements: int = 0
    """Elements compared, over all outputs."""
    seconds: float = 0.0
    """Wall-clock seconds of the backend's call."""
    seconds_total: float = 0.0
    """Wall-clock seconds of the case: data, reference, call and comparison."""
    shrunk_from: str | None = None
    """For origin shrunk: the line of the drawn case that this one explains."""
    counters: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Free names to numbers: flops, bytes, workspace, …"""

    def __post_init__(self) -> None:
        # float() also reads the file's "inf", "-inf" and "nan".
        plain: dict[str, Any] = {
            "verdict": Verdict(self.verdict),
            "max_error": _float_or_none(self.max_error),
            "p99_error": _float_or_none(self.p99_error),
            "bias": _float_or_none(self.bias),
            "mean_square": _float_or_none(self.mean_square),
            "sampled": int(self.sampled),
            "max_ulp": _float_or_none(self.max_ulp),
            "ulp_histogram": tuple(int(n) for n in self.ulp_histogram),
            "wrong_elements": None if self.wrong_elements is None else int(self.wrong_elements),
            "elements": int(self.elements),
            "seconds": float(self.seconds),
            "seconds_total": float(self.seconds_total),
            "counters": {str(key): float(value) for key, value in self.counters.items()},
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if len(self.ulp_histogram) > ULP_BINS:
            raise ValueError(f"ulp_histogram has {len(self.ulp_histogram)} bins, not {ULP_BINS}")

    @property
    def failing(self) -> bool:
        """Whether the case does not conform (FAILED, ERROR, CRASHED or TIMEOUT)."""
        return self.verdict in FAILING

    @property
    def repro_command(self) -> str:
        """The shell command that runs this one case again."""
        return f"dnncanon repro {_shell_quoted(self.case)} --backend {_shell_word(self.backend)}"


@dataclass(frozen=True)
class Environment:
    """Under what the run was made; the first line of the file."""

    created: str
    """When the run began, ISO 8601 in UTC."""
    command: str
    """The command line."""
    backend: str
    level: str
    seed: int
    versions: Mapping[str, str] = field(hash=False)
    """Distribution name to version."""
    device: str
    platform: str
    python: str
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Anything else worth keeping; what JSON has no type for is kept as its `str`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "versions", {str(k): str(v) for k, v in self.versions.items()})
        object.__setattr__(self, "details", _jsonable(self.details))


@dataclass(frozen=True)
class Summary:
    """The last line of the file: how the run ended."""

    seconds: float
    """Wall-clock seconds of the run."""
    cases: int
    """Cases counted; shrunk cases explain drawn ones and are not counted again."""
    counts: Mapping[str, int] = field(hash=False)
    """Cases by verdict; they add up to `cases`."""
    cases_per_second: float
    """Cases run (neither UNSUPPORTED nor SKIPPED) in a second of wall-clock time."""
    finished: bool
    """False: stopped on purpose before all of its cases had run."""


@dataclass(frozen=True)
class Results:
    """One results file, read."""

    environment: Environment
    cases: tuple[CaseResult, ...]
    summary: Summary | None = None
    truncated: bool = False
    """The last line was cut off in mid-write and is left out."""

    @property
    def complete(self) -> bool:
        """Whether the run came to its planned end."""
        return self.summary is not None and self.summary.finished

    @property
    def incomplete_reason(self) -> str | None:
        """Why the run must not be taken for a whole one, in a sentence; None if it may."""
        if self.complete:
            return None
        if self.truncated:
            return "The run did not finish: its results file ends in the middle of a line."
        if self.summary is None:
            return "The run did not finish: its results file has no summary line."
        return "The run was stopped before all of its cases had run."


class Tally:
    """Counts cases by verdict, one at a time, without keeping them.

    A shrunk case explains the drawn case it came from and is not counted a second time. Should its
    drawn case be missing, or not be failing, the shrunk case counts as itself: no failure may
    vanish.
    """

    def __init__(self, cases: Iterable[CaseResult] = ()) -> None:
        self._drawn: Counter[Verdict] = Counter()
        self._shrunk: Counter[tuple[str, str | None, Verdict]] = Counter()
        self._failing: set[tuple[str, str | None]] = set()
        self._mistrusted: set[tuple[str, str | None]] = set()
        for case in cases:
            self.add(case)

    def add(self, case: CaseResult) -> None:
        """Count one more case."""
        if case.origin == "shrunk":
            self._shrunk[case.backend, case.shrunk_from, case.verdict] += 1
            return
        self._drawn[case.verdict] += 1
        if case.failing:
            self._failing.add((case.backend, case.case))
        elif case.verdict is Verdict.MISTRUSTED:
            self._mistrusted.add((case.backend, case.case))

    def explains(self, case: CaseResult) -> bool:
        """Whether `case` only explains another that was added, and so is not counted itself."""
        return case.origin == "shrunk" and self._explains(
            case.backend, case.shrunk_from, case.verdict
        )

    def counts(self) -> dict[str, int]:
        """Cases by verdict, all verdicts present, in the order of `Verdict`."""
        total = Counter(self._drawn)
        for (backend, parent, verdict), number in self._shrunk.items():
            if not self._explains(backend, parent, verdict):
                total[verdict] += number
        return {verdict: total[verdict] for verdict in Verdict}

    def _explains(self, backend: str, parent: str | None, verdict: Verdict) -> bool:
        key = (backend, parent)
        return key in self._failing or (key in self._mistrusted and verdict not in FAILING)


class ResultsWriter:
    """Writes a results file line by line; each line is flushed at once.

    >>> with ResultsWriter("results.jsonl", environment) as writer:  # doctest: +SKIP
    ...     writer.write(case)
    ...     writer.finish(seconds=12.5)

    Leaving the block without `finish` (an exception, a kill) leaves a file without a summary line.
    Raises OSError where the file cannot be written; the folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str], environment: Environment) -> None:
        self._open(Path(path), environment, "w")
        try:
            self._write_line("environment", {"schema": SCHEMA_VERSION} | _field_values(environment))
        except OSError:
            self.close()
            raise

    def _open(self, path: Path, environment: Environment, mode: Literal["w", "a"]) -> None:
        self.path = path
        self.environment = environment
        self._tally = Tally()
        self._finished = False
        self._seconds_before = 0.0
        # Unbuffered: what does not fit on the disk must not wait in memory for a later failure.
        self._file = path.open(f"{mode}b", buffering=0)

    @classmethod
    def resume(cls, path: str | os.PathLike[str], results: Results) -> Self:
        """Go on with a file that was read as ``results`` and whose run did not finish.

        A line cut off in mid-write and a summary of the unfinished run are taken away; every case
        stays. A file of an older version becomes one of this.
        """
        keep = 1 + len(results.cases)
        with open(path, "r+b") as file:
            kept = [file.readline() for _ in range(keep)]
            file.truncate()
            if not kept[-1].endswith(b"\n"):
                file.write(b"\n")
            file.seek(0)
            file.write(_brought_up_to_date(kept[0]))
        writer = cls.__new__(cls)
        writer._open(Path(path), results.environment, "a")
        writer._tally = Tally(results.cases)
        writer._seconds_before = results.summary.seconds if results.summary else 0.0
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def counts(self) -> dict[str, int]:
        """Cases written so far, by verdict; shrunk cases explain drawn ones and are not counted."""
        return self._tally.counts()

    def write(self, case: CaseResult) -> None:
        """Append one case."""
        if self._finished:
            raise ValueError(f"{self.path}: a case after the summary")
        self._write_line("case", _field_values(case))
        self._tally.add(case)

    def finish(self, seconds: float, *, finished: bool = True) -> Summary:
        """Append the summary line; `finished=False` for a run stopped on purpose (--fail-fast)."""
        if self._finished:
            raise ValueError(f"{self.path}: a second summary")
        counts = self._tally.counts()
        seconds += self._seconds_before
        cases = sum(counts.values())
        run = cases - sum(counts[verdict] for verdict in NOT_RUN)
        summary = Summary(
            seconds=float(seconds),
            cases=cases,
            counts={str(verdict): number for verdict, number in counts.items()},
            cases_per_second=run / seconds if seconds > 0 else 0.0,
            finished=finished,
        )
        self._write_line("summary", _field_values(summary))
        self._finished = True
        return summary

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _write_line(self, kind: str, values: Mapping[str, Any]) -> None:
        # ASCII only: a message may hold lone surrogates, which UTF-8 refuses.
        line = json.dumps({"kind": kind} | _jsonable(values), allow_nan=False, ensure_ascii=True)
        rest = memoryview(f"{line}\n".encode())
        while rest:
            rest = rest[self._file.write(rest) :]


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read and check a results file.

    A last line that was cut off in mid-write is left out (`Results.truncated`). Anything else that
    is wrong raises ResultsError with the file, the line number and the reason: no such file, not a
    results file, another version, a line that is not JSON or not as the schema says, lines missing.
    """
    environment: Environment | None = None
    cases: list[CaseResult] = []
    summary: Summary | None = None
    truncated = False
    number = 0
    for number, raw, whole in _numbered_lines(path):
        value = _parsed(path, number, raw, cut_off=not whole)
        if value is None:
            truncated = True
            break
        if number == 1:
            environment = _environment(path, value)
            continue
        if summary is not None:
            raise ResultsError(path, number, "a line after the summary, which must be the last")
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "environment":
            raise ResultsError(path, number, "a second environment: two files run together?")
        if kind not in ("case", "summary"):
            raise ResultsError(path, number, f'"kind" is {kind!r}, not "case" or "summary"')
        _validate(path, number, kind, value)
        del value["kind"]
        if kind == "case":
            cases.append(_case(path, number, value))
        else:
            summary = Summary(**value)
            _check_counts(path, number, summary, cases)
    if environment is None:
        reason = "the header line is cut off" if truncated else "the file is empty"
        raise ResultsError(path, number or None, reason)
    return Results(environment, tuple(cases), summary, truncated)


def ulp_bin(ulps: float) -> int:
    """Bin of `CaseResult.ulp_histogram` for one |error| in ULP."""
    return ULP_BINS - 1 if math.isnan(ulps) else bisect_left(ULP_EDGES, abs(ulps))


def load_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of a results file."""
    text = Path(__file__).with_name("schemas").joinpath("results.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


# --- reading, step by step ------------------------------------------------------------------------


def _numbered_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes, bool]]:
    """(line number from 1, content, whether it ends in a newline); at the end of the file."""
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.rstrip(b"\r\n"), raw.endswith(b"\n")
    except OSError as error:
        raise ResultsError(path, None, f"cannot be read: {error.strerror or error}") from error


def _parsed(path: str | os.PathLike[str], number: int, raw: bytes, cut_off: bool) -> Any:
    """The JSON value of a line; None if it is the last one and was cut off."""
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    except RecursionError:
        reason = "not a results line: JSON nested too deeply"
    except ValueError as error:
        reason = f"not JSON: {error}" if raw.strip() else "an empty line"
    # A writer killed in mid-line leaves the beginning of an object, and of one only at the end.
    if cut_off and raw.startswith(b"{"):
        return None
    if number == 1:
        reason = f"not a dnncanon results file ({reason})"
    raise ResultsError(path, number, reason)


def _environment(path: str | os.PathLike[str], value: Any) -> Environment:
    """The environment in the first line; whatever else stands there is a foreign file."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str) or not schema.startswith("dnncanon-results/"):
        reason = f'not a dnncanon results file (no "schema": "{SCHEMA_VERSION}")'
        raise ResultsError(path, 1, reason)
    if schema not in READABLE_VERSIONS:
        reason = f"written as {schema}, this dnncanon reads {' and '.join(READABLE_VERSIONS)}"
        raise ResultsError(path, 1, f"{reason}; use the dnncanon that wrote it, or run again")
    _validate(path, 1, "environment", value)
    return Environment(**{key: value[key] for key in value if key not in ("kind", "schema")})


def _brought_up_to_date(header: bytes) -> bytes:
    """The header line with this version of the format, of the same length."""
    version = str(json.loads(header)["schema"])
    return header.replace(json.dumps(version).encode(), json.dumps(SCHEMA_VERSION).encode(), 1)


def _validate(path: str | os.PathLike[str], number: int, kind: str, value: Any) -> None:
    """Raise ResultsError unless `value` is what the schema says of its kind."""
    if kind == "case" and _surely_valid(value):
        return
    if find_spec("jsonschema") is None:
        _validate_names(path, number, kind, value)
        return
    validator = _validators()[kind]
    if validator.is_valid(value):
        return
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(value))
    assert error is not None
    place = "".join(f"/{part}" for part in error.absolute_path)
    raise ResultsError(path, number, f"{kind}{place}: {_shortened(error.message)}")


def _validate_names(path: str | os.PathLike[str], number: int, kind: str, value: Any) -> None:
    """What can be checked without jsonschema, as in a bare checkout: the names, not the types."""
    rules = load_schema()["$defs"][kind]
    missing = set(rules["required"]) - set(value)
    unknown = set(value) - set(rules["properties"])
    for what, names in (("misses", missing), ("has an unknown", unknown)):
        if names:
            raise ResultsError(path, number, f"{kind} {what} {min(names)!r}")


@cache
def _validators() -> dict[str, Validator]:
    """One compiled validator for each kind of line; a run may have a million lines."""
    from jsonschema import Draft202012Validator

    definitions = load_schema()["$defs"]
    return {
        kind: Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": definitions})
        for kind in ("environment", "case", "summary")
    }


def _case(path: str | os.PathLike[str], number: int, value: dict[str, Any]) -> CaseResult:
    try:
        return CaseResult(**value)
    except OverflowError as error:  # an integer beyond float64
        raise ResultsError(path, number, f"case: {error}") from error


def _surely_valid(case: dict[str, Any]) -> bool:
    """Whether `case` conforms to the schema beyond doubt; False leaves the question to jsonschema.

    It is here for speed alone: a run may have a million cases. What it accepts the schema accepts,
    which the tests hold it to.
    """
    return _CASE_REQUIRED <= case.keys() <= _CASE_CHECKS.keys() and all(
        _CASE_CHECKS[name](value) for name, value in case.items()
    )


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (float, int) or value in ("inf", "-inf", "nan")


def _is_duration(value: Any) -> bool:
    return type(value) in (float, int) and value >= 0


def _is_optional_number(value: Any) -> bool:
    return value is None or _is_number(value)


_CASE_REQUIRED = {"kind", "case", "backend", "primitive", "dtype", "layer", "numerics", "verdict"}
_CASE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: value == "case",
    "case": _is_text,
    "backend": _is_text,
    "primitive": _is_text,
    "dtype": _is_text,
    "layer": _is_text,
    "numerics": _is_text,
    "verdict": lambda value: type(value) is str and value in Verdict.__members__,
    "message": _is_text,
    "origin": _is_text,
    "max_error": _is_optional_number,
    "p99_error": _is_optional_number,
    "bias": _is_optional_number,
    "mean_square": _is_optional_number,
    "sampled": _is_count,
    "max_ulp": _is_optional_number,
    "ulp_histogram": lambda value: (
        type(value) is list and len(value) <= ULP_BINS and all(map(_is_count, value))
    ),
    "wrong_elements": lambda value: value is None or _is_count(value),
    "elements": _is_count,
    "seconds": _is_duration,
    "seconds_total": _is_duration,
    "shrunk_from": lambda value: value is None or _is_text(value),
    "counters": lambda value: type(value) is dict and all(map(_is_number, value.values())),
}


def _check_counts(
    path: str | os.PathLike[str], number: int, summary: Summary, cases: list[CaseResult]
) -> None:
    """Lines lost from the middle of a file show as a summary that does not fit its cases."""
    counted = {verdict: n for verdict, n in Tally(cases).counts().items() if n}
    claimed = {verdict: n for verdict, n in summary.counts.items() if n}
    if counted != claimed or summary.cases != sum(claimed.values()):
        told, held = _worded(claimed), _worded(counted)
        reason = f"the summary speaks of {told}, the lines before it of {held}"
        raise ResultsError(path, number, f"{reason}: lines are missing or changed")


def _worded(counts: Mapping[Any, int]) -> str:
    total = sum(counts.values())
    parts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    return f"{total} cases ({parts})" if parts else "no cases"


def _refuse_constant(name: str) -> float:
    raise ValueError(f'bare {name}, which JSON does not have; write "inf", "-inf", "nan" or null')


def _shortened(message: str, limit: int = 300) -> str:
    return message if len(message) <= limit else f"{message[:limit]} …"


# --- values ---------------------------------------------------------------------------------------


def _field_values(record: CaseResult | Environment | Summary) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def _jsonable(value: Any) -> Any:
    """`value` in JSON's types: non-finite numbers and unknown objects become strings."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    return str(value)


def _shell_quoted(text: str) -> str:
    """`text` as one POSIX shell word, quoted always: a case line has brackets and spaces."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _shell_word(text: str) -> str:
    """`text` as one POSIX shell word, quoted only where need be."""
    import shlex

    return shlex.quote(text)
