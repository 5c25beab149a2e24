"""The tile engine's slices, tiles and splits: what holds without a kernel, and what is counted of one."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu.kernels import conv_implicit_precomp_gemm as convolution
from dnncanon.gpu.kernels.tile import matrices
from dnncanon.gpu.kernels.tile.matrices import Matrices, Matrix, Operand, splits_for, tile_for
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import (
    BANKS,
    Direction,
    Slice,
    chunks_of_matrix,
    elements_of_matrix,
)
from dnncanon.gpu.profiling import profile
from dnncanon.gpu.runtime import to_device

# --- Slices ---------------------------------------------------------------------------------------

TENSOR_CORE_TILES = (
    *(matrices.LARGE, matrices.SMALL, matrices.FLAT, matrices.TALL),
    *(convolution.LARGE, convolution.SMALL, convolution.NARROW),
)
WAYS: tuple[tuple[int, Direction], ...] = ((2, "depth"), (2, "lines"), (1, "depth"))
SLICES = sorted(
    {
        Slice(lines, tile.depth * 2 // itemsize, itemsize, along)
        for tile in TENSOR_CORE_TILES
        for lines in (tile.rows, tile.columns)
        for itemsize, along in WAYS
    },
    key=str,
)


def place(layout: Slice, row: int, chunk: int) -> int:
    """Bytes from the start of a slice."""
    shift, mask = layout.swizzle
    return row * layout.pitch + (chunk ^ (row >> shift & mask)) * CHUNK


def groups_of_banks(layout: Slice, cells: list[tuple[int, int]]) -> set[int]:
    """Which eighths of the banks some (row, chunk) are in."""
    return {place(layout, *cell) % BANKS // CHUNK for cell in cells}


@pytest.mark.parametrize("layout", SLICES, ids=str)
def test_eight_rows_of_a_matrix_are_in_eight_groups_of_banks(layout: Slice) -> None:
    for row, chunk in product(range(0, layout.rows, 8), range(layout.chunks)):
        assert len(groups_of_banks(layout, [(row + r, chunk) for r in range(8)])) == 8


@pytest.mark.parametrize("layout", SLICES, ids=str)
def test_eight_chunks_that_are_copied_at_once_are_in_eight_groups_of_banks(layout: Slice) -> None:
    cells = list(product(range(layout.rows), range(layout.chunks)))
    for first in range(0, len(cells), 8):
        assert len(groups_of_banks(layout, cells[first : first + 8])) == 8


@pytest.mark.parametrize("layout", SLICES, ids=str)
def test_every_chunk_has_a_place_of_its_own(layout: Slice) -> None:
    cells = product(range(layout.rows), range(layout.chunks))
    assert {place(layout, *cell) for cell in cells} == set(range(0, layout.nbytes, CHUNK))


def test_threads_that_do_not_share_a_slice_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="96 threads do not share the chunks"):
        chunks_of_matrix(Slice(64, 32, 2, "depth"), 96)
    with pytest.raises(ValueError, match="96 threads do not share the elements"):
        elements_of_matrix(Slice(64, 32, 2, "depth"), 96, "float16", "float16")


# --- Which tile, how many splits ------------------------------------------------------------------


def plain(rows: int, columns: int, depth: int, word: str = "float16", batch: int = 1) -> Matrices:
    a, b = Matrix(word, (0, 0, 0), depth, 1), Matrix(word, (0, 0, 0), columns, 1)
    y = Matrix(word, (0, 0, rows * columns), columns, 1)
    return Matrices(word, (1, 1, batch), rows, columns, depth, a, b, y)


@pytest.mark.parametrize(
    ("sizes", "tensor_core", "tile"),
    [
        ((16, 4096, 4096), True, matrices.FLAT),
        ((4096, 16, 4096), True, matrices.TALL),
        ((17, 17, 64), True, matrices.SMALL),
        ((4096, 4096, 4096), True, matrices.LARGE),
        ((1024, 1024, 64), True, matrices.SMALL),
        ((4096, 4096, 4096, "float32"), False, matrices.LARGE_CUDA),
        ((1024, 1024, 64, "float32"), False, matrices.SMALL_CUDA),
        ((4096, 4096, 4096, "float64"), False, matrices.SMALL_CUDA),
    ],
)
def test_tile_for(sizes: Any, tensor_core: bool, tile: Tile) -> None:
    assert tile_for(plain(*sizes), tensor_core=tensor_core) == tile


def test_a_slice_of_int8_is_as_many_bytes_deep() -> None:
    assert tile_for(plain(4096, 4096, 64, "int8"), tensor_core=True).depth == 64


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        ((16, 128, 0), 1),
        ((16, 128, 64 * 15), 1),
        ((16, 128, 64 * 16), 2),
        ((16, 128, 64 * 8 * 1000), 256),
        ((16, 128 * 64, 64 * 8 * 1000), 4),
        ((4096, 4096, 2**20), 1),
    ],
)
def test_splits_for(sizes: tuple[int, int, int], splits: int) -> None:
    m = plain(*sizes)
    tile = tile_for(m, tensor_core=True)
    assert splits_for(m, tile) == splits


def operand(lines: int, depth: int, pitch: int, batch: tuple[int, ...] = ()) -> Operand:
    """Of float16, with its depth side by side."""
    array = to_device(np.zeros((lines, pitch), np.float16))
    return Operand(array, "float16", lines, depth, pitch, 1, batch)


def test_chunks_are_for_many_elements_whose_rows_are_whole_chunks() -> None:
    assert operand(32, 32, 32).in_chunks("depth")
    assert not operand(32, 32, 32).in_chunks("lines")
    assert not operand(31, 32, 32).in_chunks("depth")
    assert not operand(64, 36, 40).in_chunks("depth")
    assert not operand(64, 32, 36).in_chunks("depth")
    assert operand(64, 32, 40, (2560, 0)).in_chunks("depth")
    assert not operand(64, 32, 40, (2564, 0)).in_chunks("depth")


# --- Counted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_bank_conflicts_and_whole_sectors(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the main loop, that is: what the epilogue does in shared memory is another matter."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    a, b = np.ones((128, 64), dtype), np.ones((64, 128), dtype)
    if dtype == "float32":
        a = np.ones((64, 128), dtype).T
    counted = profile("matmul_forward", a, b)
    (launch,) = counted.launches
    shared = [access for access in launch.profile.accesses if access.space == "shared"]
    loop = [access for access in shared if "epilogue.py" not in access.line]
    assert {access.operation for access in loop} == {"load", "store"}
    assert [access for access in loop if access.units != access.least] == []
    assert counted.sector_efficiency("load") >= 0.95
    assert counted.sector_efficiency("store") >= 0.95
