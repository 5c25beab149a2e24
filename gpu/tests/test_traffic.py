"""What kernels over windows move: named figures, and the page that has those of every primitive."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from dnncanon.gpu.library import functions
from dnncanon.gpu.profiling import profile
from dnncanon.spec import primitives

Array = np.ndarray[Any, Any]
GPU = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")


# --- Figures --------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """Of a call: bytes requested and bytes of DRAM over the least, and shares that lanes asked for."""

    requests: float
    dram: float = 1.0
    loads: float = 1.0
    stores: float = 1.0


def ones(*shape: int, last: bool = False) -> Array:
    """An array of its own each time; ``last`` has the channels last in memory."""
    if not last:
        return np.ones(shape, np.float32)
    n, c, *space = shape
    return np.moveaxis(np.ones((n, *space, c), np.float32), -1, 1)


def turned(batch: int, extent: int) -> Array:
    """The grid that turns an image by 10 degrees."""
    cosine, sine = np.cos(np.pi / 18), np.sin(np.pi / 18)
    y, x = np.meshgrid(*(np.linspace(-1, 1, extent),) * 2, indexing="ij")
    grid = np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)
    return np.broadcast_to(grid, (batch, *grid.shape)).astype(np.float32)


IMAGES, SMALL, LARGE = (2, 8, 32, 32), (2, 8, 16, 16), (2, 8, 64, 64)
MAPS, ROWS = (8, 64, 7, 7), (2, 32, 27, 27)
HALVES: dict[str, Any] = {"window": 2}
OVERLAP: dict[str, Any] = {"window": 3, "stride": 1, "padding": 1}

# What a call is: primitive, shapes of tensors that are ones or tensors, attributes.
FIGURES: dict[str, tuple[tuple[str, tuple[Array, ...], dict[str, Any]], Moved]] = {
    "global average": (
        ("pool_average_forward", (ones(*MAPS),), {"output_size": 1}),
        Moved(1.45, loads=0.88),
    ),
    "global maximum": (
        ("pool_max_forward", (ones(*MAPS),), {"output_size": 1, "return_indices": True}),
        Moved(1.58, loads=0.88),
    ),
    "global average, channels last": (
        ("pool_average_forward", (ones(*MAPS, last=True),), {"output_size": 1}),
        Moved(1.01),
    ),
    "adaptive norm": (
        ("pool_lp_forward", (ones(2, 8, 56, 56),), {"output_size": 7}),
        Moved(1.03),
    ),
    "maximum of 2x2": (("pool_max_forward", (ones(*IMAGES),), HALVES), Moved(1.81, loads=0.5)),
    "average of 3x3": (
        ("pool_average_forward", (ones(*IMAGES),), OVERLAP),
        Moved(5.7, loads=0.85),
    ),
    "average of 3x3, channels last": (
        ("pool_average_forward", (ones(*IMAGES, last=True),), OVERLAP),
        Moved(4.8),
    ),
    "gradient of a global average": (
        ("pool_average_backward", (ones(8, 64, 1, 1),), {"output_size": 1, "input_size": 7}),
        Moved(1.25, loads=0.94),
    ),
    "gradient of norms of 2x2": (
        ("pool_lp_backward", (ones(*SMALL), ones(*IMAGES), ones(*SMALL)), HALVES),
        Moved(1.21),
    ),
    "twice as large": (
        ("resample_forward", (ones(*IMAGES),), {"scale": 2.0}),
        Moved(3.0, loads=0.86),
    ),
    "gradient of twice as large": (
        ("resample_backward", (ones(*LARGE),), {"scale": 2.0, "input_size": 32}),
        Moved(3.3, loads=0.74),
    ),
    "gradient of sixteen times as large": (
        ("resample_backward", (ones(*LARGE),), {"input_size": 4}),
        Moved(3.2),
    ),
    "affine grid": (
        ("affine_grid_forward", (ones(4, 2, 3),), {"output_size": (64, 64)}),
        Moved(1.27, loads=0.74),
    ),
    "turned image": (
        ("grid_sample_forward", (ones(*IMAGES), turned(2, 32)), {}),
        Moved(7.8, loads=0.36),
    ),
    "turned image, channels last": (
        ("grid_sample_forward", (ones(*IMAGES, last=True), turned(2, 32)), {}),
        Moved(2.6, loads=0.83),
    ),
    "gradients of a turned image": (
        ("grid_sample_backward", (ones(*IMAGES), ones(*IMAGES), turned(2, 32)), {}),
        Moved(17.4, dram=2.7, loads=0.39, stores=0.46),
    ),
    "gradients of a turned image, channels last": (
        (
            "grid_sample_backward",
            (ones(*IMAGES, last=True), ones(*IMAGES, last=True), turned(2, 32)),
            {},
        ),
        Moved(7.9, dram=2.7, loads=0.66, stores=0.42),
    ),
    "response normalization": (("lrn_forward", (ones(*ROWS),), {}), Moved(3.9, loads=0.85)),
    "its gradient": (
        ("lrn_backward", (ones(*ROWS), ones(*ROWS)), {}),
        Moved(4.4, loads=0.81, stores=0.81),
    ),
    "its gradient, channels last": (
        ("lrn_backward", (ones(*ROWS, last=True), ones(*ROWS, last=True)), {}),
        Moved(3.4),
    ),
    "gradient over windows of 3x3": (
        ("divisive_norm_backward", (ones(*IMAGES), ones(*IMAGES)), {"window": 3}),
        Moved(5.7, loads=0.84),
    ),
    "gradient of an affine grid": (
        ("affine_grid_backward", (ones(4, 32, 32, 2),), {}),
        Moved(1.05, dram=1.02, stores=0.4),
    ),
    "what a batch norm's sums make": (
        ("batch_norm_finalize", (ones(2, 4096), ones(2, 4096), *(ones(4096),) * 2), {"count": 49}),
        Moved(1.0),
    ),
    "sums of a batch norm's gradients": (
        (
            "batch_norm_backward_weights",
            (*(ones(4, 8, 28, 28),) * 2, *(ones(8),) * 3),
            {},
        ),
        Moved(1.05, dram=1.02),
    ),
    "gradient of a bias": (
        ("conv_backward_bias", (ones(4, 8, 56, 56),), {}),
        Moved(1.05, dram=1.02),
    ),
    "columns added up": (
        (
            "col2im",
            (ones(2, 72, 1024),),
            {"input_size": (32, 32), "filter_size": (3, 3), "padding": 1},
        ),
        Moved(1.24, loads=0.77),
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_no_more_is_moved_than_this(name: str) -> None:
    (primitive, tensors, attributes), most = FIGURES[name]
    counted = profile(primitive, *tensors, **attributes)
    assert counted.bytes_over_least <= most.requests
    assert counted.dram_over_least <= most.dram
    assert counted.sector_efficiency("load") >= most.loads
    assert counted.sector_efficiency("store") >= most.stores


# --- The page -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traffic() -> ModuleType:
    """The command that writes the page."""
    pytest.importorskip("dnncanon.conformance", reason="the calls of the page are its case lines")
    spec = importlib.util.spec_from_file_location("traffic", GPU / "benchmarks" / "traffic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["traffic"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def rows_between(begin: str, end: str) -> list[tuple[str, str]]:
    """(primitive, call) of each row of a table of the page."""
    page = (GPU / "docs" / "traffic.md").read_text("utf-8")
    table = page.partition(begin)[2].partition(end)[0]
    return re.findall(r"^\| (\w+) \|.*\| `(.*)` \|$", table, re.MULTILINE)


def test_the_first_table_has_the_calls_of_networks(traffic: ModuleType) -> None:
    asked = [(c.primitive.name, traffic.call_of(c)) for c in traffic.network_calls()]
    assert sorted(rows_between(*traffic.NETWORKS)) == sorted(asked)


def test_the_calls_of_networks_are_large_and_memory_bound(traffic: ModuleType) -> None:
    for case in traffic.network_calls():
        assert case.call.least_bytes >= 256 << 10
        assert traffic.is_memory_bound(case)


def test_the_second_table_has_every_primitive_with_memory_bound_calls(traffic: ModuleType) -> None:
    memory_bound = {name for name in functions() if traffic.drawn_call(primitives()[name])}
    names = [name for name, _ in rows_between(*traffic.DRAWN)]
    assert sorted(names) == sorted(memory_bound)


def test_the_figures_of_a_row_are_those_of_its_call(traffic: ModuleType) -> None:
    """Of one row: what the command would write today."""
    chosen = [c for c in traffic.network_calls() if c.primitive.name == "affine_grid_forward"]
    page = (GPU / "docs" / "traffic.md").read_text("utf-8")
    for row in traffic.measure(chosen):
        assert traffic.line_of(row, with_reason=True) in page


def test_a_call_of_networks_that_misses_the_target_has_a_reason(traffic: ModuleType) -> None:
    page = (GPU / "docs" / "traffic.md").read_text("utf-8")
    begin, end = traffic.NETWORKS
    lines = page.partition(begin)[2].partition(end)[0].strip().splitlines()[2:]
    for line in lines:
        primitive, requested, dram, loads, stores, _, _, why, _ = line.strip("| ").split(" | ", 8)
        misses = max(float(requested), float(dram)) > 1.1 or min(float(loads), float(stores)) < 0.95
        assert misses <= (why in traffic.reasons()), line
        assert not why or primitive in traffic.reasons()[why]["primitives"]


def test_a_call_that_misses_the_target_for_no_known_reason_is_refused(traffic: ModuleType) -> None:
    row = traffic.Row("cast", "", 1 << 20, 1.0, 1.2, 1.0, 1.0, 1)
    with pytest.raises(LookupError, match=r"cast misses the target, and traffic_reasons.toml"):
        traffic.why(row)
