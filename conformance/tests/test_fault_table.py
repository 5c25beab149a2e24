"""The page of faults says what the tests say."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from dnncanon.reports import Verdict

HERE = Path(__file__).parent


def load_table() -> Any:
    spec = importlib.util.spec_from_file_location("fault_table", HERE / "fault_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_table"] = module
    spec.loader.exec_module(module)
    return module


TABLE = load_table()
ROWS = [*TABLE.CALLS, *TABLE.RUNS]


def test_the_page_is_as_the_tables_make_it() -> None:
    assert TABLE.DOCUMENT.read_text() == TABLE.document(), (
        "run python conformance/tests/fault_table.py"
    )


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_named_test_exists(row: tuple[str, str, str]) -> None:
    file, _, name = row[2].partition("::")
    tree = ast.parse((HERE / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_a_verdict_and_a_description_of_its_own() -> None:
    faults = TABLE.faults()
    assert len({fault.does for fault in faults}) == len(faults) > 60
    assert {fault.verdict for fault in faults} <= {str(verdict) for verdict in Verdict}
    assert all(fault.says for fault in faults if fault.verdict != "PASSED")
