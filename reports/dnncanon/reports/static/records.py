"""The file of a static report: what one line of static.jsonl says, how it is written and how it is read.

It is UTF-8 text with one JSON object a line: one `environment`, then one `kernel` for every kernel and
architecture; `schemas/static.schema.json` is its JSON Schema.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnncanon.reports.records import ResultsError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

SCHEMA_VERSION = "dnncanon-static/1"


@dataclass(frozen=True)
class KernelFigures:
    """What the compiler made of one kernel for one architecture; all figures 0 where it refused."""

    kernel: str
    launched_by: tuple[str, ...]
    """Primitives with the dtype, for instance "softmax_forward float32"."""
    architecture: str
    """For instance sm_90a."""
    threads: int
    """Of a block."""
    constants: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    """Compile-time constants that tell it from its like, as its source names them."""
    refused: str = ""
    """Why there are no figures: what the toolchain says against it."""
    registers: int = 0
    """Of a thread."""
    spill_bytes: int = 0
    """Bytes that the spills of a thread store and load."""
    stack_bytes: int = 0
    """Local memory of a thread, spills included."""
    shared_bytes: int = 0
    """Shared memory of a block, static and dynamic."""
    barriers: int = 0
    instructions: int = 0
    blocks: int = 0
    """Resident on an SM."""
    occupancy: float = 0.0
    """The part of the SM's warps that they are, 0 to 1."""
    limited_by: str = ""
    loops: int = 0
    """0: the figures of the hot loop are those of the whole kernel."""
    loop_instructions: int = 0
    loop_mix: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Instructions of the hot loop by opcode, the most frequent first."""
    loop_operations: int = 0
    """Arithmetic of a warp in an iteration."""
    loop_shared_bytes: int = 0
    loop_global_bytes: int = 0
    predicted: float | None = None
    """The part of the peak that the hot loop may reach, 0 to 1; None where the model says nothing."""
    peak: str = ""
    """Of what: an arithmetic or memory."""
    bound_by: str = ""

    @property
    def label(self) -> str:
        """The kernel and what launches it, shortened."""
        others = len(self.launched_by) - 1
        return f"{self.kernel} ({self.launched_by[0]}{f' +{others}' if others else ''})"


@dataclass(frozen=True)
class StaticEnvironment:
    """Under what the report was made; the first line of the file."""

    created: str
    """ISO 8601 in UTC."""
    command: str
    backend: str
    selection: str
    """Which kernels were taken, in words."""
    versions: Mapping[str, str] = field(hash=False)
    """Of the toolchain too: another compiler, other figures."""
    platform: str
    python: str


@dataclass(frozen=True)
class StaticReport:
    """One file, read."""

    environment: StaticEnvironment
    kernels: tuple[KernelFigures, ...]


def write_static(report: StaticReport, path: str | os.PathLike[str]) -> Path:
    """Write the file; returns the path. Raises OSError."""
    target = Path(path)
    header = {"kind": "environment", "schema": SCHEMA_VERSION, **_values(report.environment)}
    rows = ({"kind": "kernel", **_values(kernel)} for kernel in report.kernels)
    lines = [json.dumps(line, allow_nan=False) for line in (header, *rows)]
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return target


def read_static(path: str | os.PathLike[str]) -> StaticReport:
    """Read and check a file. Raises ResultsError with the file, the line and the reason."""
    lines = list(_lines(path))
    if not lines or lines[0].get("kind") != "environment":
        raise ResultsError(path, 1, f'not a static report (no "schema": "{SCHEMA_VERSION}")')
    header, *rows = lines
    names = [f.name for f in fields(StaticEnvironment)]
    environment = StaticEnvironment(**{name: header[name] for name in names})
    return StaticReport(environment, tuple(_kernel(row) for row in rows))


def is_static(path: str | os.PathLike[str]) -> bool:
    """Whether a file claims to be a static report of any version; False if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return '"schema": "dnncanon-static/' in file.readline(1000)
    except (OSError, UnicodeDecodeError):
        return False


def load_static_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of a static report."""
    schemas = Path(__file__).parents[1] / "schemas"
    schema: dict[str, Any] = json.loads((schemas / "static.schema.json").read_text("utf-8"))
    return schema


def _lines(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines, each as the schema has it."""
    from jsonschema.exceptions import best_match

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(path, None, f"cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ResultsError(path, number, f"not JSON: {error}") from error
        wrong = best_match(_validator().iter_errors(value))
        if wrong is not None:
            place = "".join(f"/{part}" for part in wrong.absolute_path)
            raise ResultsError(path, number, f"{place or 'line'}: {wrong.message[:300]}")
        yield value


@cache
def _validator() -> Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load_static_schema())


def _kernel(row: dict[str, Any]) -> KernelFigures:
    values = {name: value for name, value in row.items() if name != "kind"}
    return KernelFigures(**{**values, "launched_by": tuple(values["launched_by"])})


def _values(record: KernelFigures | StaticEnvironment) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}
