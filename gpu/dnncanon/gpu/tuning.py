"""Choosing algorithms by measurement: timings, and tables of the fastest that are kept and shipped.

"auto" chooses without measuring. :func:`find_algorithm` runs every algorithm that takes a call and remembers
the fastest for calls like it: of the same types, layouts and attributes, on the same device with the same
versions. "auto" prefers what is remembered; with ``DNNCANON_ALGORITHMS=FILE`` in the environment also in other
processes. Without the variable nothing is read or written. A file may hold the tables of many devices, and may
be shipped.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnncanon.gpu.primitive import Algorithm, GpuPrimitive, Layouts
from dnncanon.gpu.runtime import device

VARIABLE = "DNNCANON_ALGORITHMS"
SCHEMA = "dnncanon-algorithms/1"

ROUNDS = 3
"""Timed rounds. The best one counts: nothing makes a call faster than it is."""

LEAST_SECONDS = 0.01
"""Calls are repeated in a round until it takes so long."""

MAX_CALLS = 1000
"""Of a round."""


@dataclass(frozen=True, slots=True)
class Timing:
    """An algorithm and how many milliseconds a call takes, host time included."""

    algorithm: Algorithm
    milliseconds: float


def find_algorithm(
    primitive: GpuPrimitive[Any],
    *tensors: Any,
    math: str = "ieee",
    remember: bool = True,
    **attributes: Any,
) -> list[Timing]:
    """The algorithms that take a call and are of its class, the fastest first.

    ``primitive`` is a function of the library, ``gpu.conv_forward``. The first call of each compiles its
    kernels, and is not timed. Raises what the primitive raises, and OSError if the table cannot be written.
    """
    layouts = primitive.layouts(*tensors, **attributes)
    classes = {math, layouts.call.primitive.numerics(layouts.call.dtype)[0]}
    rows = primitive.algorithms(*tensors, **attributes)
    offered = [row for row in rows if row.applicable and row.numerics in classes]

    def timed(row: Algorithm) -> Timing:
        return Timing(
            row, _milliseconds(lambda: primitive(*tensors, algorithm=row.name, **attributes))
        )

    timings = sorted((timed(row) for row in offered), key=lambda timing: timing.milliseconds)
    if remember:
        _remember(layouts, math, timings)
    return timings


def preferred(layouts: Layouts[Any], math: str) -> str | None:
    """The algorithm that is remembered for a call; None if none is."""
    table = _tables.get(_device_key()) if _tables or _read() else None
    return None if table is None else table.get(call_key(layouts, math))


def forget() -> None:
    """Forget what this process has measured or read; files stay as they are."""
    _tables.clear()
    _state.clear()


def call_key(layouts: Layouts[Any], math: str) -> str:
    """What calls have in common that are of the same speed: types, strides, attributes, class."""
    call, arrays = layouts.call, {**layouts.inputs, **layouts.outputs}
    types = {**call.arguments.tensors, **call.named_outputs}
    tensors = [
        f"{name}={types[name].dtype}{list(array.shape)}:{list(array.strides)}".replace(" ", "")
        for name, array in arrays.items()
    ]
    values = [f"{name}={value}" for name, value in call.arguments.attributes.items()]
    return " ".join([call.primitive.name, *tensors, *values, f"math={math}"])


# --- Measuring ------------------------------------------------------------------------------------


def _milliseconds(call: Callable[[], Any]) -> float:
    call()
    device().synchronize()
    return min(_round(call) for _ in range(ROUNDS))


def _round(call: Callable[[], Any]) -> float:
    begin, calls, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < LEAST_SECONDS and calls < MAX_CALLS:
        call()
        device().synchronize()
        calls += 1
        elapsed = time.perf_counter() - begin
    return 1e3 * elapsed / calls


# --- Remembering ----------------------------------------------------------------------------------

_tables: dict[str, dict[str, str]] = {}
"""By device and versions, then by call: the algorithm."""

_state: dict[str, bool] = {}


def _device_key() -> str:
    here = device()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(here.versions().items()))
    return f"{here.name}; {versions}"


def _remember(layouts: Layouts[Any], math: str, timings: list[Timing]) -> None:
    if not timings:
        return
    _read()
    key, best = call_key(layouts, math), timings[0].algorithm.name
    _tables.setdefault(_device_key(), {})[key] = best
    path = os.environ.get(VARIABLE)
    if path:
        _write(Path(path), _device_key(), {key: best})


def _read() -> bool:
    """Read the file of the environment, once; whether there is anything to go by."""
    path = os.environ.get(VARIABLE)
    if path and not _state.get(path):
        _state[path] = True
        for name, table in _tables_in(Path(path)).items():
            _tables.setdefault(name, {}).update(table)
    return bool(_tables)


def _tables_in(path: Path) -> Mapping[str, dict[str, str]]:
    """The tables of a file; none of a file that is not there. ValueError if it is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            raise KeyError("schema")
        tables: Mapping[str, dict[str, str]] = content["tables"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no table of algorithms ({SCHEMA}); remove it, or unset {VARIABLE}"
        ) from error
    return tables


def _write(path: Path, name: str, table: Mapping[str, str]) -> None:
    """Add to the tables of a file; it is replaced as a whole or not at all."""
    tables = {known: dict(rows) for known, rows in _tables_in(path).items()}
    tables.setdefault(name, {}).update(table)
    content = json.dumps({"schema": SCHEMA, "tables": tables}, indent=1, sort_keys=True) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as target:
        target.write(content)
    Path(target.name).replace(path)
