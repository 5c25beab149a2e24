"""The backend given by --dnncanon-backend against the reference, one test for each primitive × dtype."""

import pytest

from dnncanon.conformance.cells import Cell
from dnncanon.conformance.plugin import run_cell
from dnncanon.conformance.pool import Pool
from dnncanon.reports import Verdict


def test_conforms(dnncanon_pool: Pool, dnncanon_cell: Cell) -> None:
    results, shrunk = run_cell(dnncanon_pool, dnncanon_cell)
    failures = [result for result in results if result.failing]
    if failures:
        worst = shrunk or failures[0]
        pytest.fail(
            f"{len(failures)} of {len(results)} cases do not conform\n"
            f"{worst.verdict} {worst.message}\nreproduce with: {worst.repro_command}",
            pytrace=False,
        )
    if not any(result.verdict is Verdict.PASSED for result in results):
        pytest.skip(f"nothing was tested: {results[0].verdict} {results[0].message}")
