"""Shards: one run split over several machines, and put together again.

A case belongs to the shard that its line says, so shards need to know nothing of each other, and their
union is the whole run, case for case.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dnncanon.conformance.case import Case
from dnncanon.reports import Environment, Results, ResultsWriter

Item = TypeVar("Item")


class MergeError(Exception):
    """Results that are not the shards of one run; the message says what does not fit."""


@dataclass(frozen=True)
class Shard:
    """The ``index``-th of ``count`` parts, counted from 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``2/8``; ValueError otherwise."""
        index, slash, count = text.partition("/")
        shard = cls(int(index), int(count)) if slash else cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise ValueError(f"{text!r} is not a shard, such as 2/8")
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, case: Case) -> bool:
        """Whether the case is one of this shard's."""
        return zlib.crc32(str(case).encode()) % self.count == self.index - 1

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """This shard's of some items: every so many-th, as neighbours are alike."""
        return items[self.index - 1 :: self.count]


WHOLE = Shard()


def merge(parts: Sequence[Results], path: Path) -> None:
    """Write the shards of one run as one results file. Raises MergeError, OSError."""
    environments = [part.environment for part in parts]
    _check_same_run(environments)
    _check_all_there(parts)
    first = environments[0]
    whole = replace(first, details={**first.details, "shard": str(WHOLE)})
    with ResultsWriter(path, whole) as writer:
        for part in parts:
            for case in part.cases:
                writer.write(case)
        writer.finish(max(part.summary.seconds for part in parts if part.summary))


def _check_same_run(environments: Sequence[Environment]) -> None:
    first = _identity(environments[0])
    for environment in environments[1:]:
        other = _identity(environment)
        for name, value in first.items():
            if other[name] != value:
                raise MergeError(
                    f"these are different runs: {name} is {value!r} and {other[name]!r}"
                )


def _check_all_there(parts: Sequence[Results]) -> None:
    shards = [Shard.parse(str(part.environment.details.get("shard", "1/1"))) for part in parts]
    for part, shard in zip(parts, shards, strict=True):
        if part.incomplete_reason:
            raise MergeError(f"shard {shard}: {part.incomplete_reason} Run it again with --resume.")
    missing = set(range(1, shards[0].count + 1)) - {shard.index for shard in shards}
    if missing or len({s.count for s in shards}) > 1:
        raise MergeError(f"shards {', '.join(map(str, shards))} are not all of one run")
    if len(set(shards)) < len(shards):
        raise MergeError(f"a shard is there twice: {', '.join(map(str, shards))}")


def _identity(environment: Environment) -> dict[str, Any]:
    """What must be equal for two results files to be of one run."""
    return {
        "backend": environment.backend,
        "level": environment.level,
        "seed": environment.seed,
        "selection": environment.details.get("selection"),
    }


def same_run(one: Environment, other: Environment) -> bool:
    """Whether two environments are of one run and one shard of it."""
    shards = [environment.details.get("shard") for environment in (one, other)]
    return _identity(one) == _identity(other) and shards[0] == shards[1]
