"""Algorithms by measurement: what is found is remembered, preferred, told apart by layout, kept in a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu import tuning
from dnncanon.spec import SpecError, Unsupported

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    tuning.forget()
    yield
    tuning.forget()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What measuring an algorithm is made to say; the algorithms run all the same."""
    chosen: dict[str, float] = {}

    def measured(call: Callable[[], Any]) -> float:
        call()
        return chosen.get(_last.pop(), 9.0)

    _last: list[str] = []
    run = gpu.conv_forward._choose

    def noted(plan: Any, algorithm: str, math: str) -> Any:
        found = run(plan, algorithm, math)
        _last[:] = [found.name]
        return found

    monkeypatch.setattr(gpu.conv_forward, "_choose", noted)
    monkeypatch.setattr(tuning, "_milliseconds", measured)
    return chosen


X, W = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 3), np.float32)


def first_choice(x: Array = X) -> str:
    return gpu.algorithms("conv_forward", x, W)[0].name


def test_every_algorithm_that_takes_the_call_is_measured() -> None:
    timings = gpu.find_algorithm("conv_forward", X, W, remember=False)
    assert {t.algorithm.name for t in timings} == {"direct", "gemm", "implicit_gemm"}
    assert timings[0].milliseconds <= timings[1].milliseconds
    assert all(t.milliseconds > 0 for t in timings)


def test_auto_prefers_the_fastest(times: dict[str, float]) -> None:
    for fastest in ("direct", "implicit_gemm"):
        times.clear()
        times[fastest] = 1.0
        assert gpu.find_algorithm("conv_forward", X, W)[0].algorithm.name == fastest
        assert first_choice() == fastest


def test_other_layouts_are_other_calls(times: dict[str, float]) -> None:
    usual = first_choice()
    times[{"direct": "implicit_gemm", "implicit_gemm": "direct"}[usual]] = 1.0
    gpu.find_algorithm("conv_forward", X, W)
    assert first_choice() != usual
    assert first_choice(np.ones((1, 2, 6), np.float32)) == usual
    assert first_choice(np.ones((1, 5, 2), np.float32).transpose(0, 2, 1)) == usual


def test_without_the_variable_nothing_is_written(times: dict[str, float], tmp_path: Path) -> None:
    gpu.find_algorithm("conv_forward", X, W)
    assert list(tmp_path.iterdir()) == []


def test_a_file_serves_other_processes(
    times: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tables" / "algorithms.json"
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    usual = first_choice()
    other = {"direct": "implicit_gemm", "implicit_gemm": "direct"}[usual]
    times[other] = 1.0
    gpu.find_algorithm("conv_forward", X, W)
    tuning.forget()
    assert first_choice() == other
    assert json.loads(path.read_text())["schema"] == tuning.SCHEMA
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_tables_of_other_devices_are_kept_and_not_used(
    times: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, usual = tmp_path / "algorithms.json", first_choice()
    key = tuning.call_key(gpu.conv_forward.layouts(X, W), "ieee")
    foreign = {"some other GPU": {key: {"direct": "implicit_gemm"}.get(usual, "direct")}}
    path.write_text(json.dumps({"schema": tuning.SCHEMA, "tables": foreign}))
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    assert first_choice() == usual
    gpu.find_algorithm("conv_forward", X, W)
    assert json.loads(path.read_text())["tables"]["some other GPU"] == foreign["some other GPU"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other/1", "tables": {}}'])
def test_a_file_that_is_no_table_is_refused_and_left(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "algorithms.json"
    path.write_text(text)
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    with pytest.raises(ValueError, match="is no table of algorithms"):
        gpu.conv_forward(X, W)
    assert path.read_text() == text


def test_an_algorithm_that_is_no_more_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, usual = tmp_path / "algorithms.json", first_choice()
    key = tuning.call_key(gpu.conv_forward.layouts(X, W), "ieee")
    table = {tuning._device_key(): {key: "forgotten"}}
    path.write_text(json.dumps({"schema": tuning.SCHEMA, "tables": table}))
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    assert first_choice() == usual


def test_bad_calls_raise_what_the_primitive_raises() -> None:
    with pytest.raises(SpecError):
        gpu.find_algorithm("conv_forward", X, W, groups=3)
    with pytest.raises(Unsupported):
        gpu.find_algorithm("no_such_primitive", X)
