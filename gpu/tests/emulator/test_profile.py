"""Profile mode: textbook values, and determinism."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, uint16

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator import launch

_spec = importlib.util.spec_from_file_location("kernels", Path(__file__).with_name("kernels.py"))
kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernels)


def profile(kernel, grid, block, *args):
    return launch(kernel, grid, block, args, mode="profile").profile


def only(accesses, space, operation):
    (access,) = [a for a in accesses if (a.space, a.operation) == (space, operation)]
    return access


def make_copy(stride):
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i * stride]

    return kernel


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (32, 32)])
def test_sectors_of_strided_float32_loads(stride, sectors):
    x, out = np.zeros(64 * stride, np.float32), np.zeros(64, np.float32)
    accesses = profile(make_copy(stride), 1, 64, x, out).accesses
    assert only(accesses, "global", "load").units_per_request == sectors
    assert only(accesses, "global", "store").units_per_request == 4


@pytest.mark.parametrize(("dtype", "sectors"), [(np.uint8, 1), (np.float16, 2), (np.float64, 8)])
def test_sectors_by_element_size(dtype, sectors):
    x, out = np.zeros(64, dtype), np.zeros(64, dtype)
    assert only(
        profile(make_copy(1), 1, 64, x, out).accesses, "global", "load"
    ).units_per_request == (sectors)


def test_a_misaligned_run_of_32_floats_takes_five_sectors():
    def kernel(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i + 1]

    accesses = profile(kernel, 1, 32, np.zeros(40, np.float32), np.zeros(32, np.float32)).accesses
    assert only(accesses, "global", "load").units_per_request == 5


def test_warps_of_blocks_that_wait_for_one_another_have_requests_of_their_own():
    """The last thread of a grid goes on at once: its block is ahead of the others."""

    def kernel(x, out):
        grid = cuda.cg.this_grid()
        for turn in range(3):
            grid.sync()
            out[turn, cuda.grid(1)] = x[cuda.grid(1)]

    accesses = profile(
        kernel, 4, 32, np.zeros(128, np.float32), np.zeros((3, 128), np.float32)
    ).accesses
    assert {(a.requests, a.units) for a in accesses} == {(12, 48)}


def test_a_broadcast_is_one_sector():
    def kernel(x, out):
        out[cuda.threadIdx.x] = x[0]

    accesses = profile(kernel, 1, 32, np.zeros(8, np.float32), np.zeros(32, np.float32)).accesses
    assert only(accesses, "global", "load").units_per_request == 1


def test_a_broadcast_fills_an_eighth_of_its_sector_not_four_of_them():
    def kernel(x, out):
        out[cuda.threadIdx.x] = x[0] + x[cuda.threadIdx.x // 16 * 8]

    accesses = profile(kernel, 1, 32, np.zeros(16, np.float32), np.zeros(32, np.float32)).accesses
    assert sorted(a.units for a in accesses if a.operation == "load") == [1, 2]
    assert all(a.least == 1 for a in accesses if a.operation == "load")


# --- What reaches DRAM: each sector once, however often it is requested


def dram_of(kernel, *args, block=64):
    got = profile(kernel, 1, block, *args)
    return got.dram_bytes_read // 32, got.dram_bytes_written // 32


@pytest.mark.parametrize(("stride", "sectors"), [(1, 8), (2, 16), (8, 64), (32, 64)])
def test_sectors_are_read_whole(stride, sectors):
    x, out = np.zeros(64 * stride, np.float32), np.zeros(64, np.float32)
    assert dram_of(make_copy(stride), x, out) == (sectors, 8)


def test_what_is_read_again_costs_dram_nothing():
    def kernel(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i] + x[i + 8] + x[0]

    assert dram_of(kernel, np.zeros(72, np.float32), np.zeros(64, np.float32)) == (9, 8)


def test_what_a_kernel_has_written_it_reads_from_the_cache():
    def kernel(x):
        i = cuda.threadIdx.x
        x[i] = 1.0
        cuda.syncthreads()
        x[i] = 2 * x[63 - i]

    assert dram_of(kernel, np.zeros(64, np.float32)) == (0, 8)


def test_what_a_kernel_reads_and_then_writes_costs_dram_both():
    def kernel(x):
        x[cuda.threadIdx.x] += 1.0

    assert dram_of(kernel, np.zeros(64, np.float32)) == (8, 8)


def test_an_atomic_reads_and_writes():
    def kernel(x):
        cuda.atomic.add(x, cuda.threadIdx.x // 8, 1)

    assert dram_of(kernel, np.zeros(64, np.int32)) == (1, 1)


def test_each_launch_begins_with_an_empty_cache():
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    assert dram_of(make_copy(1), x, out) == dram_of(make_copy(1), x, out)


def test_shared_memory_is_not_dram():
    def kernel(out):
        tile = cuda.shared.array(64, float32)
        tile[cuda.threadIdx.x] = 1.0
        cuda.syncthreads()
        out[cuda.threadIdx.x] = tile[63 - cuda.threadIdx.x]

    assert dram_of(kernel, np.zeros(64, np.float32)) == (0, 8)


def test_a_vector_load_of_16_bytes_takes_16_sectors():
    def kernel(x, out):
        i = cuda.threadIdx.x
        v = ptx.load_global_v4_f32(ptx.global_address(x, 4 * i))
        out[i] = v[0] + v[1] + v[2] + v[3]

    accesses = profile(kernel, 1, 32, np.zeros(128, np.float32), np.zeros(32, np.float32)).accesses
    load = only(accesses, "global", "load")
    assert (load.units_per_request, load.bytes, load.efficiency) == (16, 512, 1)


def make_transpose(pad):
    width = 32 + pad

    def kernel(x, out):
        tile = cuda.shared.array((32, width), float32)
        column, row = cuda.threadIdx.x, cuda.threadIdx.y
        for j in range(0, 32, 8):
            tile[row + j, column] = x[row + j, column]
        cuda.syncthreads()
        for j in range(0, 32, 8):
            out[row + j, column] = tile[column, row + j]

    return kernel


@pytest.mark.parametrize(("pad", "wavefronts"), [(0, 32), (1, 1), (2, 2), (4, 4), (16, 16)])
def test_bank_conflicts_of_a_transpose(pad, wavefronts):
    x, out = np.arange(1024, dtype=np.float32).reshape(32, 32), np.zeros((32, 32), np.float32)
    accesses = profile(make_transpose(pad), 1, (32, 8), x, out).accesses
    np.testing.assert_array_equal(out, x.T)
    assert only(accesses, "shared", "store").units_per_request == 1
    load = only(accesses, "shared", "load")
    assert load.units_per_request == wavefronts
    assert load.efficiency == 1 / wavefronts


@pytest.mark.parametrize(("pitch", "wavefronts"), [(64, 32), (72, 4)])
def test_ldmatrix_with_and_without_padded_rows(pitch, wavefronts):
    """x4 reads 32 rows of 16 bytes: at least four wavefronts, one per matrix."""
    elements = 32 * pitch

    def kernel(out):
        tile = cuda.shared.array(elements, uint16)
        lane = cuda.threadIdx.x
        for i in range(lane, elements, 32):
            tile[i] = i
        cuda.syncwarp()
        r = ptx.ldmatrix_x4(ptx.shared_address(tile, lane * pitch))
        out[lane] = r[0] + r[1] + r[2] + r[3]

    accesses = profile(kernel, 1, 32, np.zeros(32, np.uint32)).accesses
    assert only(accesses, "shared", "load").units_per_request == wavefronts


def test_figures_of_the_tiled_matmul():
    a, b, c = (np.ones((64, 64), np.float32) for _ in range(3))
    got = profile(kernels.matmul, (4, 4), (16, 16), a, b, c)
    assert got.flops == 2 * 64**3
    assert got.global_bytes_loaded == 2 * 64 * 64 * 4 * 4
    assert got.global_bytes_stored == 64 * 64 * 4
    assert got.global_sectors == (2 * 64 * 64 * 4 * 4 + 64 * 64 * 4) // 32
    assert got.bytes_over_least(3 * 64 * 64 * 4) == 3
    assert got.barriers == 16 * 4 * 2
    assert got.counts["barriers"] == 16 * 256 * 4 * 2
    line = kernels.matmul.__code__.co_firstlineno + 13
    (inner,) = [c for where, c in got.lines.items() if where.endswith(f":{line}")]
    assert inner["flops_f32"] == 2 * 64**3


def test_flops_of_tensor_cores():
    def kernel(out):
        lane = cuda.threadIdx.x
        z = float32(0)
        d = ptx.mma_f16((0, 0, 0, 0), (0, 0), (z, z, z, z))
        out[lane] = d[0]

    got = profile(kernel, 2, 64, np.zeros(64, np.float32))
    assert got.counts["flops_tensor_core"] == 4 * 2 * 16 * 8 * 16


def test_two_runs_give_identical_figures():
    x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((2, 2, 3, 3), np.float32)
    y = np.zeros((1, 2, 8, 8), np.float32)
    first, second = (profile(kernels.convolution, 2, 64, x, w, y) for _ in range(2))
    assert first == second
    assert first.flops == 2 * 2 * 2 * (8 * 3 - 2) ** 2
