"""The examples, at a smaller size than they are meant for."""

import runpy
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_the_sequence_predictor_learns_and_draws(tmp_path: Path, capsys: Any) -> None:
    """15 steps of 100: the loss is on its way, the goal is not reached, and the exit code says so."""
    names = example("sequence_predictor.py")
    code = names["main"](["--iterations", "15", "--out", str(tmp_path / "page.html")])
    first, last = (float(word) for word in capsys.readouterr().out.split()[1:4:2])
    assert (code, last < first / 2) == (1, True)
    assert "goes on by itself" in (tmp_path / "page.html").read_text(encoding="utf-8")
