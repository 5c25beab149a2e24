"""Cases that do not fit into memory are skipped, with what they need, before anything is allocated."""

import os
import subprocess
import sys

import pytest

from dnncanon.conformance import memory
from dnncanon.conformance.backends import load
from dnncanon.conformance.case import Case
from dnncanon.conformance.execute import execute
from dnncanon.reports import Verdict

SMALL = "conv_forward x=float32[1,2,5] w=float32[2,2,3] fill=normal seed=1"
LARGE = "conv_forward x=float32[1,64,2048,2048] w=float32[64,64,3,3] padding=1,1 seed=1"
ENORMOUS = "conv_forward x=float32[1,1,900000000000000000] w=float32[1,1,3] seed=1"


def test_a_small_case_fits() -> None:
    assert memory.shortage(Case.parse(SMALL)) == ""


def test_what_is_needed_and_what_there_is_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "bytes_available", lambda: 1 << 30)
    told = memory.shortage(Case.parse(LARGE))
    assert told.startswith("needs about")
    assert "and 1.0 are free" in told


@pytest.mark.parametrize("more", ["", " violates=C3.1", " after=3"])
def test_an_enormous_case_is_skipped(more: str) -> None:
    result = execute(load("reference"), Case.parse(ENORMOUS.replace(" seed=1", f" seed=1{more}")))
    assert result.verdict is Verdict.SKIPPED
    assert "GiB" in result.message


@pytest.mark.skipif(sys.platform != "linux", reason="what is allocated is told by Linux")
def test_a_limit_is_what_can_be_allocated_and_can_be_lifted() -> None:
    """In a process of its own: a limit stays."""
    code = """
import numpy as np
from dnncanon.conformance import memory
before = memory.bytes_available()
memory.limit(memory.bytes_held() + (1 << 28))
assert 0 < memory.bytes_available() <= 1 << 28 < before
np.empty(1 << 27, np.uint8)
try:
    np.empty(1 << 29, np.uint8)
except MemoryError:
    with memory.unlimited():
        np.empty(1 << 29, np.uint8)
    try:
        np.empty(1 << 29, np.uint8)
    except MemoryError:
        print("limited")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout == "limited\n", run.stderr


def test_the_system_says_what_is_available() -> None:
    assert memory.bytes_available() > 1 << 28
