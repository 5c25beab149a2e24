"""Imports run downward only, no source root shadows the others, and the reference needs NumPy alone."""

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = "DNNCANON_TEST_INSTALLED" in os.environ

# What each room may import of the others.
MAY_IMPORT = {
    "spec": set[str](),
    "reference": {"spec"},
    "gpu": {"spec"},
    "reports": set[str](),
    "conformance": {"reference", "reports", "spec"},
}
ROOMS = pytest.mark.parametrize("room", MAY_IMPORT)

# Libraries, by the rooms that may use them. The standard library is everybody's.
LIBRARIES = {
    "spec": {"ml_dtypes", "numpy"},
    "reference": {"numpy", "scipy"},
    "reports": {"jinja2", "jsonschema", "markupsafe", "plotly", "rich"},
    "conformance": {"hypothesis", "numpy", "pytest", "rich", "torch"},
}


def sources(room: str) -> list[Path]:
    found = sorted((ROOT / room / "dnncanon").rglob("*.py"))
    assert found
    return found


def imported(path: Path) -> set[str]:
    """The full names of all modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module or "")
            if node.module == "dnncanon":
                names.update(f"dnncanon.{alias.name}" for alias in node.names)
    return names - {"dnncanon"}


def modules(room: str) -> dict[str, set[str]]:
    """Every file of a room with what it imports."""
    return {str(path.relative_to(ROOT)): imported(path) for path in sources(room)}


@ROOMS
def test_imports_run_downward_only(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    wrong = {
        (path, name)
        for path, names in modules(room).items()
        for name in names
        if name.startswith("dnncanon.") and name.split(".")[1] not in allowed
    }
    assert not wrong


def test_the_order_of_the_rooms_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        ready = {room for room, below in MAY_IMPORT.items() if below <= done} - done
        assert ready
        done |= ready


@pytest.mark.parametrize("room", LIBRARIES)
def test_a_room_uses_its_own_libraries_only(room: str) -> None:
    allowed = LIBRARIES[room] | {"dnncanon", *sys.stdlib_module_names}
    wrong = {
        (path, name)
        for path, names in modules(room).items()
        for name in names
        if name.split(".")[0] not in allowed
    }
    assert not wrong


def test_torch_is_imported_by_its_backend_alone() -> None:
    users = [
        path
        for path, names in modules("conformance").items()
        if any(name.split(".")[0] == "torch" for name in names)
    ]
    home = "conformance/dnncanon/conformance/torch_backend/"
    assert users
    assert all(path.startswith(home) for path in users)


@ROOMS
def test_no_source_root_shadows_the_others(room: str) -> None:
    assert not (ROOT / room / "dnncanon" / "__init__.py").exists()
    assert (ROOT / room / "dnncanon" / room / "py.typed").exists()


@pytest.mark.skipif(INSTALLED, reason="the installed package is under test")
@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"gpu"}))
def test_this_checkout_is_under_test(room: str) -> None:
    """A regular install would win over the checkout: it has a dnncanon/__init__.py."""
    where = import_module(f"dnncanon.{room}").__file__
    assert where is not None
    assert Path(where).is_relative_to(ROOT / room)


# --- The reference, with nothing but NumPy --------------------------------------------------------

BLOCKED = ("hypothesis", "jinja2", "numba", "torch", "plotly", "rich", "jsonschema", "llvmlite")

SCRIPT = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))
import json, time
import numpy, ml_dtypes
started = time.process_time()
import dnncanon.reference as ref
seconds = time.process_time() - started
y = ref.conv_forward(numpy.ones((1, 1, 3)), numpy.ones((1, 1, 2)), padding=1)
ours = sorted({{name.split(".")[1] for name in sys.modules if name.startswith("dnncanon.")}})
print(json.dumps({{"seconds": seconds, "y": y.tolist(), "rooms": ours}}))
"""


def run_python(script: str) -> str:
    paths = [] if INSTALLED else [str(ROOT / room) for room in MAY_IMPORT]
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_reference_needs_numpy_alone_and_is_quick_to_import() -> None:
    """Of the processor's time: on a busy machine the clock measures what others do."""
    found = json.loads(run_python(SCRIPT))
    assert found["y"] == [[[1, 2, 2, 1]]]
    assert found["rooms"] == ["reference", "spec"]
    assert found["seconds"] < 0.5


@pytest.mark.parametrize(
    ("module", "outcome"),
    [
        ("dnncanon.reference", "imported"),
        ("dnncanon.conformance.case", "imported"),
        ("dnncanon.conformance.strategies", "blocked"),
    ],
)
def test_what_is_blocked_is_really_blocked(module: str, outcome: str) -> None:
    script = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))
try:
    import {module}
except ImportError:
    print("blocked")
else:
    print("imported")
"""
    assert run_python(script).strip() == outcome
