"""Fixtures of the conformance tests."""

from pathlib import Path

import pytest


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the module of misbehaving backends, made importable here and in workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "backends"))
    return "hostile"
