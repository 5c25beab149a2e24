"""Matrix products by ``wgmma`` against integer arithmetic, bit for bit, and what it does not take."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels.tile import pipelined_matrices
from dnncanon.gpu.kernels.tile.stream_k import LEAST_SAVED, Shares
from dnncanon.gpu.runtime import device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
HALF = np.float16

ROWS, COLUMNS, DEPTH = 136, 144, 328
"""Two tiles down and two across, with tails; one slice more than there are slots, and a tail."""


def integers(*shape: int, dtype: Any = HALF, seed: int = 0, columns: bool = False) -> Array:
    """Small integers; ``columns`` lays each matrix out by columns."""
    drawn = np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)
    return np.swapaxes(np.swapaxes(drawn, -1, -2).copy(), -1, -2) if columns else drawn


def wide(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)


def wgmma(*tensors: Any, **options: Any) -> Any:
    return gpu.matmul_forward(*tensors, algorithm="wgmma", **options)


def check(a: Array, b: Array, **options: Any) -> None:
    """The product is exact: its elements are small integers."""
    np.testing.assert_array_equal(wide(wgmma(a, b, **options)), wide(a) @ wide(b))


# --- Products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("b_by_columns", [False, True])
@pytest.mark.parametrize("a_by_columns", [False, True])
def test_orders_of_operands(
    a_by_columns: bool, b_by_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks go through several tiles, and not all through as many."""
    monkeypatch.setattr(pipelined_matrices, "WORKERS", 3)
    a = integers(ROWS, DEPTH, columns=a_by_columns)
    check(a, integers(DEPTH, COLUMNS, seed=1, columns=b_by_columns))


def test_all_of_it_by_large_tiles_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """activation(α·a·b + β·c + bias), a of one batch dim, b of the other, y transposed."""
    monkeypatch.setattr(pipelined_matrices, "tile_for", lambda m: pipelined_matrices.LARGE)
    kind = ml_dtypes.bfloat16
    a, b = integers(2, 1, 40, 72, dtype=kind), integers(1, 3, 72, 264, dtype=kind, seed=1)
    c, bias = integers(1, 1, 40, 264, dtype=kind, seed=2), integers(264, dtype=kind, seed=3)
    out = np.swapaxes(np.full((2, 3, 264, 40), 7, kind), -1, -2)
    wgmma(a, b, c, bias, alpha=2.0, beta=-1.0, activation="relu", out=out)
    expected = np.maximum(2 * (wide(a) @ wide(b)) - wide(c) + wide(bias), 0)
    np.testing.assert_array_equal(wide(out), expected.astype(kind).astype(np.float64))


@pytest.mark.parametrize("sizes", [(1, 72, 144), (136, 1, 144)], ids=str)
def test_vectors(sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    check(integers(rows, depth), integers(depth, columns, seed=1))


def test_rows_and_matrices_with_gaps() -> None:
    a = np.full((2, 9, 80), 9, HALF)[:, :7, :51]
    a[:] = integers(2, 7, 51)
    b = np.full((1, 51, 32), 9, HALF)[:, :, :24]
    b[:] = integers(1, 51, 24, seed=1)
    check(a, b)


def test_a_plan_for_other_arrays() -> None:
    a, b = integers(8, 72), integers(72, 16, seed=1)
    plan = gpu.execution_plan("matmul_forward", a, b, algorithm="wgmma")
    other = integers(8, 72, seed=2)
    np.testing.assert_array_equal(wide(plan.bind(other, b)()), wide(other) @ wide(b))
    np.testing.assert_array_equal(wide(plan()), wide(a) @ wide(b))


# --- Stream-K -------------------------------------------------------------------------------------


def test_divided_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tiles of 22 slices for five workers: five whole ones, and three that all five share.

    Each has 14 slices of these; two of the tiles have three workers, or two whose parts are not halves.
    """
    monkeypatch.setattr(pipelined_matrices, "WORKERS", 5)
    a, b, bias = integers(136, 1408), integers(1408, 392, seed=1), integers(392, seed=2)
    expected = 2 * (wide(a) @ wide(b)) + wide(bias)
    np.testing.assert_array_equal(wide(wgmma(a, b, None, bias, alpha=2.0)), expected)


def ranges(shares: Shares) -> list[list[tuple[int, int]]]:
    """The parts of each divided tile, as (worker, slices), counted slice by slice."""
    tiles: list[list[int]] = [[] for _ in range(shares.divided)]
    for number in range(shares.divided * shares.slices):
        tiles[number // shares.slices].append(number // shares.each)
    return [sorted({w: of_tile.count(w) for w in of_tile}.items()) for of_tile in tiles]


@pytest.mark.parametrize("workers", [1, 3, 132])
@pytest.mark.parametrize("slices", [1, 12, 64])
def test_shares(workers: int, slices: int) -> None:
    """Every part has a place of its own, and the last wave becomes shorter or is left as it is."""
    for tiles in (1, 2, 5, 131, 132, 133, 300, 395):
        shares = Shares.of(tiles, slices, workers)
        assert shares.whole % workers == 0 or shares.divided == 0
        assert shares.blocks <= workers
        parts = [w + t for t, of_tile in enumerate(ranges(shares)) for w, _ in of_tile]
        assert len(set(parts)) == len(parts)
        assert all(part < shares.parts for part in parts)
        assert shares.divided == 0 or shares.each <= slices - LEAST_SAVED


def test_workspace_is_for_the_parts() -> None:
    a, b = np.empty((256, 4096), HALF), np.empty((4096, 256), HALF)
    (row,) = [row for row in gpu.algorithms("matmul_forward", a, b) if row.name == "wgmma"]
    # Four tiles of 64 slices: 64 workers with 4 slices each, and a place more for each tile but one.
    assert row.workspace_bytes == (64 + 3) * 128 * 128 * 4


# --- What it does not take ------------------------------------------------------------------------


def behind(array: Array) -> Array:
    """The same, one element behind a multiple of 16 bytes."""
    memory = np.zeros(array.size + 16, array.dtype)
    first = -memory.ctypes.data // array.itemsize % 8 + 1
    memory[first : first + array.size] = array.ravel()
    return memory[first : first + array.size].reshape(array.shape)


REFUSED = {
    "needs strides of a that are multiples of 16 bytes and above 0, and one is of 66 bytes; pad it": (
        integers(8, 33),
        integers(33, 8),
    ),
    "needs strides of b that are multiples of 16 bytes and above 0, and one is of 0 bytes; pad it": (
        integers(8, 32),
        np.broadcast_to(integers(8), (32, 8)),
    ),
    "needs strides of a that are multiples of 16 bytes and above 0, and one is of -64 bytes": (
        integers(8, 32)[::-1],
        integers(32, 8),
    ),
    "needs rows or columns of adjacent elements, and a's are 64 apart; copy it": (
        integers(8, 64)[:, ::2],
        integers(32, 8),
    ),
    "needs b at a multiple of 16 bytes, and it is 2 bytes behind one; copy it": (
        integers(8, 32),
        behind(integers(32, 8)),
    ),
    "does not multiply float32 by float32": (
        integers(8, 32, dtype=np.float32),
        integers(32, 8, dtype=np.float32),
    ),
    "needs something to multiply, and a product is 8×0×8": (integers(8, 0), integers(0, 8)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str) -> None:
    with pytest.raises(Unsupported) as refused:
        wgmma(*REFUSED[words])
    assert f'algorithm="wgmma" {words}' in str(refused.value)


def test_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedDevice, "capability", (10, 0))
    with pytest.raises(Unsupported, match=r"of compute capability 9\.0, and this one's is 10\.0"):
        wgmma(integers(8, 32), integers(32, 8))


# --- What "auto" prefers --------------------------------------------------------------------------


def chosen(rows: int, depth: int, columns: int) -> str:
    a, b = np.empty((rows, depth), HALF), np.empty((depth, columns), HALF)
    return gpu.algorithms("matmul_forward", a, b)[0].name


def test_auto_prefers_it_where_there_is_a_tile_for_each_multiprocessor() -> None:
    assert chosen(2048, 1024, 2048) == "wgmma"
    assert chosen(512, 1024, 512) == "tensor_core"
    assert chosen(2048, 64, 2048) == "tensor_core"


def test_auto_forgets_what_was_measured_where_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measurements are remembered for strides, and a call may have other addresses."""
    from dnncanon.gpu import tuning

    monkeypatch.setattr(tuning, "preferred", lambda layouts, math: "wgmma")
    a, b = integers(8, 32), integers(32, 8)
    assert gpu.execution_plan("matmul_forward", a, b).algorithm == "wgmma"
    assert gpu.execution_plan("matmul_forward", a, behind(b)).algorithm == "tensor_core"


# --- Tensor maps on CUDA --------------------------------------------------------------------------


def test_the_driver_is_asked_for_the_map_that_the_emulator_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but what the driver does, as there is none here."""
    from cuda.bindings import driver

    from dnncanon.gpu.runtime import DeviceError, TensorLayout, cuda_tensor_map

    asked: list[Any] = []
    answers = [driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_VALUE]

    def encode(*arguments: Any) -> Any:
        asked.append(arguments)
        return answers[len(asked) - 1], driver.CUtensorMap()

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encode)
    layout = TensorLayout(2, (3, 20, 72), (1440, 72, 1), (1, 64, 64), 128)
    assert cuda_tensor_map.encoded(4096, layout).shape == (128,)
    kind, rank, address, extents, strides, box, steps, *_ = asked[0]
    assert kind == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16
    assert (rank, address, len(steps)) == (3, 4096, 3)
    assert [int(n) for n in extents] == [72, 20, 3]
    assert [int(n) for n in strides] == [144, 2880]
    assert [int(n) for n in box] == [64, 64, 1]
    with pytest.raises(DeviceError, match=r"no tensor map of address 0x1000 .*INVALID_VALUE"):
        cuda_tensor_map.encoded(4096, layout)


def test_the_emulator_has_the_capability_that_it_compiles_for() -> None:
    assert device().capability == (9, 0)
