"""The calibration of every reference, as published: no bound exceeded, none idle, the document up to date."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnncanon.conformance import calibration
from dnncanon.conformance.calibration import Blocked, NumPyOrder, Row, Sequential, updated
from dnncanon.spec import primitives

DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"


@cache
def rows() -> tuple[Row, ...]:
    return tuple(calibration.measure())


def test_every_primitive_is_in_the_table() -> None:
    rounding = {p.name for p in primitives().values() if "ieee" in p.numerics("float32")}
    assert {row.primitive for row in rows()} == rounding


def test_no_correct_implementation_exceeds_its_bound() -> None:
    exceeded = [row for row in rows() if not row.max_bound <= 1]
    assert not exceeded


def test_no_bound_is_never_more_than_1_percent_used() -> None:
    """Of each primitive, dtype and class; where all is exact there is no bound to use."""
    used: dict[tuple[str, str, str], float] = {}
    for row in (row for row in rows() if row.bounded):
        key = (row.primitive, row.dtype, row.numerics)
        used[key] = max(used.get(key, 0.0), row.max_bound)
    assert {key: most for key, most in used.items() if most < 0.01} == {}


def test_errors_are_as_large_as_the_model_says() -> None:
    """The largest error in standard deviations: of thousands, and as the sums are in the worst order."""
    largest = max(row.max_sigmas for row in rows() if row.dtype == "float32")
    assert 1.0 < largest < 4.5  # of the 8 that are allowed; why 4.1: "what remains of correlation"


def test_the_document_has_the_rows_of_the_table() -> None:
    """Figures in it may differ by the platform's BLAS; what is measured must not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition(calibration.BEGIN)[2].partition(calibration.END)[0]
    written = [
        line.split("|")[1:4] for line in table.splitlines() if "ieee" in line or "fp16" in line
    ]
    cells = dict.fromkeys(f" {r.primitive} | {r.dtype} | {r.numerics} " for r in rows())
    assert written == [cell.split("|") for cell in cells], (
        "run python -m dnncanon.conformance.calibration --update FILE"
    )


# --- The command ----------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_updates_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--primitive", "conv_backward_bias", "--cases", "1"]
    assert calibration.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("| primitive | dtype | class | elements |")
    document = tmp_path / "accuracy.md"
    document.write_text(f"before\n{calibration.BEGIN}\nold\n{calibration.END}\nafter\n")
    assert calibration.main([*arguments, "--update", str(document)]) == 0
    expected = f"before\n{calibration.BEGIN}\n{printed}{calibration.END}\nafter\n"
    assert document.read_text() == expected


def test_a_file_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="calibration: begin"):
        updated("no markers", "table")


def test_an_exceeded_bound_is_named_and_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Row("p", "float32", "ieee", "normal", 5, 5, 9.0, 8.0, 1.5, "p x=float32[2]")
    monkeypatch.setattr(calibration, "measure", lambda *args, **options: iter([bad]))
    assert calibration.main([]) == 1
    assert "bound exceeded (1.5): p x=float32[2]" in capsys.readouterr().out


# --- Sums in a stated order -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [NumPyOrder, Sequential, Blocked])
def test_each_order_computes_the_same_function(order: type[NumPyOrder]) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s) for s in ((3, 40), (40, 5)))
    x, y = a.view(order), b.view(order)
    results: list[tuple[Any, Any]] = [
        (np.matmul(x, y), a @ b),
        (np.sum(x, axis=1), a.sum(axis=1)),
        (np.sum(x), a.sum()),
        (np.mean(x, axis=(0, 1), keepdims=True), a.mean(axis=(0, 1), keepdims=True)),
        (np.einsum("ij,jk->ki", x, y), (a @ b).T),
        (np.exp(x) + y.T[:3], np.exp(a) + b.T[:3]),
    ]
    for got, expected in results:
        assert np.allclose(got, expected, rtol=1e-13)
        assert isinstance(got, order)


def test_a_sequential_sum_is_one() -> None:
    """Of 1 and many terms of half a unit: each is lost, unless they come first or in blocks."""
    terms = np.array([1.0, *[2.0**-25] * 1000], np.float32)
    assert np.sum(terms.view(Sequential)) == 1.0
    assert np.sum(terms[::-1].copy().view(Sequential)) > 1.0
    assert np.sum(terms.view(Blocked)) > 1.0
    product = np.matmul(terms[None].view(Sequential), np.ones((1001, 1), np.float32))
    assert product == 1.0
    assert math.isclose(float(np.sum(terms.view(NumPyOrder))), 1 + 1000 * 2.0**-25, rel_tol=2e-6)
