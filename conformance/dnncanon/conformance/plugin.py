"""The pytest plug-in: ``pytest --pyargs dnncanon.conformance.suite --dnncanon-backend NAME``.

It is loaded in every pytest run of an environment that has dnncanon, so it imports nothing heavy and
prefixes its options. One test is one primitive × dtype with all its cases: a pytest item costs more
than a case.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dnncanon.conformance.cells import Cell
    from dnncanon.conformance.pool import Pool

_SUITE = Path(__file__).parent / "suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("dnncanon", "dnncanon conformance suite").addoption
    add(
        "--dnncanon-backend",
        metavar="NAME",
        default=os.environ.get("DNNCANON_BACKEND"),
        help="backend to test: an installed one, package.module or package.module:attribute",
    )
    add("--dnncanon-level", default="quick", help="quick, standard or full")
    add(
        "--dnncanon-cases", type=int, help="cases of each primitive × dtype, instead of the level's"
    )
    add("--dnncanon-seed", type=int, default=0, help="draw other cases")
    add("--dnncanon-primitive", action="append", default=[], help="only this one; may be repeated")
    add("--dnncanon-dtype", action="append", default=[], help="only this one; may be repeated")
    add("--dnncanon-timeout", type=float, default=60.0, help="seconds a case may take")


def pytest_report_header(config: pytest.Config) -> str | None:
    name = config.getoption("--dnncanon-backend")
    if not name:
        return None
    level, seed = config.getoption("--dnncanon-level"), config.getoption("--dnncanon-seed")
    return f"dnncanon: backend={name} level={level} seed={seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # By path, not by module name: outside our own configuration pytest may name a module below a
    # namespace package without its first component.
    if metafunc.definition.path.parent != _SUITE or "dnncanon_cell" not in metafunc.fixturenames:
        return
    from dnncanon.conformance.run import UsageError, select

    try:
        cells = select(_options(metafunc.config))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    ids = [f"{cell.primitive.name}-{cell.dtype}" for cell in cells]
    metafunc.parametrize("dnncanon_cell", cells, ids=ids)


@pytest.fixture(scope="session")
def dnncanon_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Workers for the backend under test; a session has one pool, an xdist worker its own."""
    from dnncanon.conformance.backends import BackendError
    from dnncanon.conformance.pool import Pool

    name = request.config.getoption("--dnncanon-backend")
    if not name:
        pytest.skip("no --dnncanon-backend given")
    with Pool(name, timeout=request.config.getoption("--dnncanon-timeout")) as pool:
        try:
            _ = pool.introduction
        except BackendError as error:
            pytest.fail(str(error), pytrace=False)
        yield pool


def _options(config: pytest.Config) -> Any:
    from dnncanon.conformance.run import Options

    return Options(
        backend=config.getoption("--dnncanon-backend") or "",
        out=Path(),
        primitives=tuple(config.getoption("--dnncanon-primitive")),
        dtypes=tuple(config.getoption("--dnncanon-dtype")),
        level=config.getoption("--dnncanon-level"),
        cases=config.getoption("--dnncanon-cases"),
        seed=config.getoption("--dnncanon-seed"),
    )


def run_cell(pool: Pool, cell: Cell) -> tuple[list[Any], Any]:
    """All results of a cell, and its first failure shrunk, if it has one."""
    from dnncanon.conformance.cells import CellRun

    run = CellRun(cell, pool, lambda result: None)
    run.submit()
    pool.drain()
    results = list(run.results.values())
    return results, run.explain(seconds=20.0)
