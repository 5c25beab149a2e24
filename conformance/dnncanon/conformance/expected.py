"""Expected failures: a file in which someone answers for what does not conform, until a date.

    [[expected_failure]]
    case = "conv_backward_data dy=bfloat16*"    # shell pattern over the whole case line
    owner = "kernels@example.com"
    reason = "accumulates in bfloat16; issue 123"
    expires = 2027-03-31

A failing case that matches is EXPECTED_FAILURE instead of failing. An entry that has expired is an
error before the run, one that nothing matched is an error after it: suppressions must not rot.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dnncanon.reports import CaseResult, Verdict

_TABLE = "expected_failure"
_FIELDS = {"case": str, "owner": str, "reason": str, "expires": date}


class ExpectationError(Exception):
    """An expected-failures file that cannot be used; the message says which entry, and why."""


@dataclass(frozen=True)
class Expectation:
    """One entry: which case lines may fail, who answers for it, why, and until when."""

    case: str
    owner: str
    reason: str
    expires: date

    def matches(self, line: str) -> bool:
        # [ and ] are everywhere in case lines, so they are no character classes here.
        return fnmatchcase(line, self.case.replace("[", "[[]"))


class Expectations:
    """The entries of a file, and which of them were needed."""

    def __init__(self, entries: Sequence[Expectation] = ()) -> None:
        self.entries = tuple(entries)
        self._used: set[Expectation] = set()

    @classmethod
    def read(cls, path: Path, today: date | None = None) -> "Expectations":
        """The entries of a TOML file. ExpectationError for a malformed or an expired one."""
        try:
            tables = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ExpectationError(f"cannot read {path}: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ExpectationError(f"{path} is not TOML: {error}") from error
        unknown = set(tables) - {_TABLE}
        if unknown:
            raise ExpectationError(
                f"{path}: {min(unknown)!r} is unknown; write [[{_TABLE}]] tables"
            )
        rows = tables.get(_TABLE, [])
        if not isinstance(rows, list):
            raise ExpectationError(f"{path}: write [[{_TABLE}]], with two brackets")
        entries = [_entry(path, number, row) for number, row in enumerate(rows, 1)]
        for number, entry in enumerate(entries, 1):
            if entry.expires < (today or datetime.now(UTC).date()):
                raise ExpectationError(
                    f"{path}, entry {number}: expired on {entry.expires}; {entry.owner} has to mend "
                    f"or renew it ({entry.reason})"
                )
        return cls(entries)

    def applied(self, result: CaseResult) -> CaseResult:
        """The result, as an expected failure if it fails and an entry says so."""
        if not result.failing:
            return result
        entry = next((e for e in self.entries if e.matches(result.case)), None)
        if entry is None:
            return result
        self._used.add(entry)
        declared = f"expected failure ({entry.owner}, until {entry.expires}): {entry.reason}"
        message = f"{declared}\n{result.verdict}: {result.message}"
        return replace(result, verdict=Verdict.EXPECTED_FAILURE, message=message)

    def unused(self) -> list[Expectation]:
        """Entries that no failing case matched."""
        return [entry for entry in self.entries if entry not in self._used]


def _entry(path: Path, number: int, row: dict[str, Any]) -> Expectation:
    place = f"{path}, entry {number}"
    wrong = set(row) ^ set(_FIELDS)
    if wrong:
        raise ExpectationError(
            f"{place}: it has to have just {', '.join(_FIELDS)}, not {min(wrong)!r}"
        )
    for name, kind in _FIELDS.items():
        if not isinstance(row[name], kind) or isinstance(row[name], datetime) or not row[name]:
            what = "a date, such as 2027-03-31" if kind is date else "a text"
            raise ExpectationError(f"{place}: {name} has to be {what}")
    return Expectation(**row)
