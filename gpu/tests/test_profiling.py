"""Profiles of primitives: deterministic figures against the cost that the specification states."""

import numpy as np
import pytest

import dnncanon.gpu as gpu
from dnncanon.gpu.profiling import profile

X = np.ones((1, 8, 12, 12), np.float32)
W = np.ones((16, 8, 3, 3), np.float32)


@pytest.fixture(autouse=True)
def _profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")


def test_it_counts_what_is_moved_and_computed() -> None:
    counted = profile("conv_forward", X, W, padding=1)
    assert counted.least_bytes == X.nbytes + W.nbytes + 16 * 12 * 12 * 4
    assert counted.flops == 2 * 16 * 12 * 12 * 8 * 9
    assert counted.bytes_over_least >= 1.0
    assert counted.flops_executed >= counted.flops
    assert counted.launches


def test_what_windows_share_is_requested_often_and_read_once() -> None:
    counted = profile("pool_average_forward", X, window=3, stride=1, padding=1)
    assert counted.bytes_moved > 4 * X.nbytes
    assert counted.dram_bytes == counted.least_bytes == 2 * X.nbytes
    assert counted.dram_over_least == 1.0


def test_sector_efficiency_is_the_share_that_lanes_asked_for() -> None:
    rows = np.ones((64, 40), np.float32)
    contiguous = profile("transform_tensor", rows)
    gathered = profile("slice_forward", rows, start=(0, 0), limit=(64, 40), stride=(1, 8))
    assert contiguous.sector_efficiency("load") == contiguous.sector_efficiency("store") == 1.0
    assert gathered.sector_efficiency("load") == pytest.approx(1 / 8, rel=0.05)


def test_two_profiles_are_equal() -> None:
    first, second = (profile("conv_forward", X, W, padding=1, stride=2) for _ in range(2))
    assert first.bytes_moved == second.bytes_moved
    assert [launch.profile.as_dict() for launch in first.launches] == [
        launch.profile.as_dict() for launch in second.launches
    ]


def test_a_tiled_algorithm_moves_less_than_the_direct_one() -> None:
    x, w = np.ones((1, 16, 10, 10), np.float32), np.ones((64, 16, 3, 3), np.float32)
    moved = {
        name: profile("conv_forward", x, w, padding=1, algorithm=name).bytes_moved
        for name in ("direct", "implicit_gemm")
    }
    assert moved["implicit_gemm"] < moved["direct"]


def test_it_is_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator")
    with pytest.raises(gpu.DeviceError, match="DNNCANON_DEVICE=emulator-profile"):
        profile("conv_forward", X, W)
