"""launch(): results, arguments, limits, and that nothing a kernel does harms the process."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from dnncanon.gpu.emulator import KernelError, LaunchError, launch

_spec = importlib.util.spec_from_file_location("kernels", Path(__file__).with_name("kernels.py"))
kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernels)

rng = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


# ---- Results
def test_tiled_matmul():
    a, b, c = normal(64, 48), normal(48, 32), np.zeros((64, 32), np.float32)
    report = launch(kernels.matmul, (2, 4), (16, 16), (a, b, c))
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=0, atol=1e-5)
    assert report.barriers == 8 * 3 * 2
    assert report.fibers


def test_direct_convolution_runs_without_fibers():
    x, w, y = normal(2, 3, 8, 9), normal(4, 3, 3, 3), np.zeros((2, 4, 8, 9), np.float32)
    report = launch(kernels.convolution, 5, 128, (x, w, y))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_allclose(
        y, np.einsum("nchwij,fcij->nfhw", windows.astype(float), w), rtol=0, atol=1e-5
    )
    assert not report.fibers


def test_softmax_with_warp_shuffles():
    x, y = normal(8, 100), np.zeros((8, 100), np.float32)
    launch(kernels.softmax, 2, (32, 4), (x, y))
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)


def test_results_do_not_depend_on_the_number_of_workers():
    a, b = normal(128, 128), normal(128, 128)
    results = []
    for threads in (1, 2, 3):
        c = np.zeros((128, 128), np.float32)
        report = launch(kernels.matmul, (8, 8), (16, 16), (a, b, c), threads=threads)
        assert report.workers == threads
        results.append(c)
    assert all((r == results[0]).all() for r in results)


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_correct_kernels_ignore_the_schedule(seed, monkeypatch):
    monkeypatch.setenv("DNNCANON_EMULATOR_SEED", seed)
    a, b, c = normal(32, 32), normal(32, 32), np.zeros((32, 32), np.float32)
    launch(kernels.matmul, (2, 2), (16, 16), (a, b, c))
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=0, atol=1e-5)


def record_order(out, ticket):
    out[cuda.atomic.add(ticket, 0, 1)] = cuda.threadIdx.x
    cuda.syncthreads()


def test_a_seed_changes_the_order_of_threads(monkeypatch):
    orders = []
    for seed in ("0", "1", "2", "1"):
        monkeypatch.setenv("DNNCANON_EMULATOR_SEED", seed)
        out = np.zeros(64, np.int64)
        launch(record_order, 1, 64, (out, np.zeros(1, np.int64)))
        assert sorted(out) == list(range(64))
        orders.append(out.tolist())
    assert orders[0] == list(range(64))
    assert orders[1] == orders[3] != orders[2]
    assert orders[1] != orders[0]


# ---- Arguments
def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + x[i]


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float64, np.float32, np.float16, np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
    ],
)
def test_every_dtype(dtype):
    x = np.arange(50).astype(dtype)
    y = np.zeros_like(x)
    launch(double, 2, 32, (x, y))
    np.testing.assert_array_equal(y, x + x)


def test_strided_arrays_are_written_in_place():
    base = np.zeros((6, 10), np.float32)
    x = normal(10)
    launch(double, 1, 32, (x, base[2]))
    launch(double, 1, 32, (x[:6], base[:, 3]))
    np.testing.assert_array_equal(base[2, [0, 1, 2, 4]], 2 * x[[0, 1, 2, 4]])
    np.testing.assert_array_equal(base[:, 3], 2 * x[:6])
    assert (base[5, 4:] == 0).all()


def test_negative_and_zero_strides():
    x, y = normal(20), np.zeros(20, np.float32)
    launch(double, 1, 32, (x[::-1], y))
    np.testing.assert_array_equal(y, 2 * x[::-1])
    launch(double, 1, 32, (np.broadcast_to(np.float32(3), (20,)), y))
    assert (y == 6).all()


def test_overlapping_arguments_stay_aliases():
    x = np.arange(8, dtype=np.float32)
    launch(double, 1, 32, (x, x))
    np.testing.assert_array_equal(x, 2 * np.arange(8))

    def shift(a, b):
        for i in range(b.size):
            b[i] = a[i] + 1

    z = np.zeros(9, np.int64)
    launch(shift, 1, 1, (z[:-1], z[1:]))
    assert z.tolist() == list(range(9))


def scalars(out, i, f, flag, narrow, pair, mixed):
    out[0] = i
    out[1] = f
    if flag:
        out[2] = narrow
    out[3] = pair[0] * 10 + pair[1]
    out[4] = mixed[0] + mixed[1]


def test_scalars_and_tuples():
    out = np.zeros(5)
    launch(scalars, 1, 1, (out, -(2**40), 1.5, True, np.int8(-7), (3, 4), (1, 0.25)))
    assert out.tolist() == [-(2.0**40), 1.5, -7, 34, 1.25]


def test_tuples_of_arrays_and_records():
    def kernel(pair, record):
        i = cuda.threadIdx.x
        pair[1][i] = pair[0][i] + record.b
        if i == 0:
            record.a = 7

    record = np.zeros(1, np.dtype([("a", np.int32), ("b", np.float32)], align=True))
    record["b"] = 2.5
    x, y = normal(8), np.zeros(8, np.float32)
    launch(kernel, 1, 8, ((x, y), record[0]))
    np.testing.assert_array_equal(y, x + np.float32(2.5))
    assert record["a"][0] == 7


def test_zero_size_array():
    launch(double, 1, 32, (np.zeros(0, np.float32), np.zeros(0, np.float32)))


def test_bfloat16_bits_travel_as_uint16():
    x = normal(16).astype(ml_dtypes.bfloat16)
    y = np.zeros(16, np.uint16)

    def copy(a, b):
        b[cuda.threadIdx.x] = a[cuda.threadIdx.x]

    launch(copy, 1, 16, (x.view(np.uint16), y))
    np.testing.assert_array_equal(y, x.view(np.uint16))


def make_scaler(factor):
    def scale(x):
        x[cuda.threadIdx.x] *= factor

    return scale


def test_closures_of_one_factory_are_different_kernels():
    two, three = make_scaler(2), make_scaler(3)
    x = np.ones(4, np.float32)
    assert launch(two, 1, 4, (x,)).compile_seconds > 0
    launch(three, 1, 4, (x,))
    assert launch(two, 1, 4, (x,)).compile_seconds == 0
    assert (x == 12).all()


@cuda.jit(device=True)
def halve(value):
    return value / 2


def test_device_functions():
    def kernel(x):
        x[cuda.threadIdx.x] = halve(x[cuda.threadIdx.x])

    x = np.arange(4, dtype=np.float32)
    launch(kernel, 1, 4, (x,))
    assert x.tolist() == [0, 0.5, 1, 1.5]


# ---- Shared memory, barriers, warps, grids
def dynamic_sum(x, out):
    static = cuda.shared.array(32, float32)
    dynamic = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    static[t] = x[t]
    dynamic[t] = 2 * x[t]
    cuda.syncthreads()
    out[t] = static[31 - t] + dynamic[31 - t] + dynamic.size


def test_dynamic_shared_memory_lies_behind_the_static():
    x, out = normal(32), np.zeros(32, np.float32)
    launch(dynamic_sum, 1, 32, (x, out), shared_bytes=4 * 40)
    np.testing.assert_allclose(out, 3 * x[::-1] + 40, rtol=1e-6)


def collectives(out):
    i = cuda.threadIdx.x
    out[i, 0] = cuda.syncthreads_count(int32(i < 77))
    out[i, 1] = cuda.syncthreads_and(int32(i >= 0)) + 2 * cuda.syncthreads_or(int32(i == 1000))
    out[i, 2] = int64(cuda.ballot_sync(0xFFFFFFFF, i % 2 == 0)) & 0xFFFFFFFF
    out[i, 3] = cuda.any_sync(0xFFFFFFFF, i % 32 == 3) + 2 * cuda.all_sync(0xFFFFFFFF, i < 200)
    out[i, 4] = int64(cuda.match_any_sync(0xFFFFFFFF, i // 8)) & 0xFFFFFFFF
    out[i, 5] = cuda.shfl_up_sync(0xFFFFFFFF, i, 3)
    out[i, 6] = cuda.shfl_down_sync(0xFFFFFFFF, i, 3)
    out[i, 7] = cuda.shfl_sync(0xFFFFFFFF, i, 5)
    if i % 32 < 16:
        out[i, 8] = cuda.shfl_xor_sync(0xFFFF, i, 8)
    else:
        out[i, 8] = int64(cuda.activemask()) & 0xFFFFFFFF
    cuda.syncwarp()


def test_barriers_votes_and_shuffles():
    out = np.zeros((128, 9), np.int64)
    launch(collectives, 1, 128, (out,))
    i = np.arange(128)
    lane = i % 32
    expected = [
        np.full(128, 77), np.full(128, 1), np.full(128, 0x55555555), np.full(128, 3),
        0xFF << (lane // 8 * 8), np.where(lane < 3, i, i - 3), np.where(lane > 28, i, i + 3),
        i - lane + 5, np.where(lane < 16, i ^ 8, 0xFFFF0000),
    ]  # fmt: skip
    for column, want in enumerate(expected):
        np.testing.assert_array_equal(out[:, column], want, err_msg=f"column {column}")


def atomics(f32, f64, i32, u64):
    i = cuda.grid(1)
    cuda.atomic.add(f32, 0, float32(0.5))
    cuda.atomic.max(f64, 0, float(i))
    cuda.atomic.min(f64, 1, -float(i))
    cuda.atomic.add(i32, 0, i)
    cuda.atomic.max(i32, 1, i)
    cuda.atomic.xor(i32, 2, i)
    cuda.atomic.or_(i32, 3, i)
    cuda.atomic.and_(i32, 4, i | 64)
    cuda.atomic.add(u64, 0, 3)
    cuda.atomic.inc(i32, 5, 9)
    cuda.atomic.exch(u64, 1, i)
    cuda.atomic.cas(i32, 6, 0, i + 1)


def test_atomics_from_all_workers():
    f32, f64 = np.zeros(1, np.float32), np.zeros(2)
    i32, u64 = np.zeros(7, np.uint32), np.zeros(2, np.uint64)
    i32[4] = 0xFFFFFFFF
    launch(atomics, 16, 64, (f32, f64, i32, u64), threads=2)
    n = np.arange(1024)
    assert f32[0] == 512
    assert f64.tolist() == [1023, -1023]
    assert i32[:6].tolist() == [n.sum(), 1023, 0, 1023, np.bitwise_and.reduce(n | 64), 1024 % 10]
    assert u64[0] == 3072
    assert u64[1] < 1024
    assert 1 <= i32[6] <= 1024


def locked_sum(lock, total):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    total[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


def test_spin_lock():
    total = np.zeros(1)
    launch(locked_sum, 4, 32, (np.zeros(1, np.int32), total))
    assert total[0] == 128


def grid_wide(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    grid.sync()
    out[i] = x[x.size - 1 - i]
    grid.sync()
    x[i] = 0


def test_grid_sync():
    x, out = np.zeros(256, np.int64), np.zeros(256, np.int64)
    launch(grid_wide, 8, 32, (x, out))
    assert out.tolist() == list(range(255, -1, -1))


def test_more_blocks_than_65535():
    out = np.zeros(70_000, np.int32)

    def mark(x):
        x[cuda.blockIdx.x] += 1

    launch(mark, 70_000, 1, (out,))
    assert (out == 1).all()


def math_functions(x, out):
    i = cuda.threadIdx.x
    out[i, 0] = math.exp(x[i])
    out[i, 1] = math.sin(x[i])
    out[i, 2] = math.sqrt(abs(x[i]))
    out[i, 3] = math.erf(x[i])
    out[i, 4] = math.tanh(x[i])
    out[i, 5] = math.pow(abs(x[i]), x[i])


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_libdevice(dtype, rtol):
    x, out = normal(64, dtype=dtype), np.zeros((64, 6), dtype)
    launch(math_functions, 1, 64, (x, out))
    wide = x.astype(np.float64)
    erf = np.array([math.erf(v) for v in wide])
    expected = [
        np.exp(wide),
        np.sin(wide),
        np.sqrt(abs(wide)),
        erf,
        np.tanh(wide),
        abs(wide) ** wide,
    ]
    np.testing.assert_allclose(out, np.stack(expected, 1), rtol=rtol)


# ---- Limits
def nothing(x):
    pass


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 1, "grid.x = 0"),
        ((1, 65536), 1, "grid.y = 65536"),
        ((1, 1, 65536), 1, "grid.z = 65536"),
        (2**31, 1, "grid.x"),
        (1, 1025, "block.x = 1025"),
        (1, (1, 1, 65), "block.z = 65"),
        (1, (32, 33), "1056 threads"),
        ((1, 1, 1, 1), 1, "4 dimensions"),
    ],
)
def test_limits_of_grid_and_block(grid, block, message):
    with pytest.raises(LaunchError, match=message):
        launch(nothing, grid, block, (np.zeros(1),))


def test_limit_of_shared_memory():
    with pytest.raises(LaunchError, match="232448"):
        launch(nothing, 1, 1, (np.zeros(1),), shared_bytes=227 * 1024 + 1)


def test_arguments_that_kernels_cannot_take():
    with pytest.raises(LaunchError, match="type list"):
        launch(nothing, 1, 1, ([1, 2],))
    with pytest.raises(LaunchError, match="dtype object"):
        launch(nothing, 1, 1, (np.array([None]),))


# ---- Errors, and that the process and the caller's arrays survive them
def exit_before_barrier(x):
    if cuda.threadIdx.x >= 20:
        return
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


def two_barriers(x):
    if cuda.threadIdx.x < 10:
        cuda.syncthreads()
        x[0] = 1
    else:
        cuda.syncthreads()
        x[1] = 1


def warp_against_barrier(x):
    if cuda.threadIdx.x < 16:
        cuda.syncthreads()
    else:
        x[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, x[0], 0)
        cuda.syncthreads()


def foreign_mask(x):
    x[0] = cuda.shfl_sync(0xFFFF0000 if cuda.threadIdx.x < 16 else 0xFFFF, x[0], 0)


def outside_mask(x):
    if cuda.threadIdx.x < 16:
        x[0] = cuda.shfl_sync(0xFFFF, x[0], 20)


def mask_of_the_dead(x):
    if cuda.threadIdx.x == 31:
        return
    x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], 0)


def disagreeing_lanes(x):
    if cuda.threadIdx.x % 2 == 0:
        x[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], 0)
    else:
        cuda.syncwarp()


@pytest.mark.parametrize(
    ("kernel", "what", "line"),
    [
        (exit_before_barrier, "exited while other threads wait|after some threads", 3),
        (two_barriers, "different barriers", 5),
        (warp_against_barrier, "deadlock", None),
        (foreign_mask, "not in its own member mask", 1),
        (outside_mask, "outside the member mask", 2),
        (mask_of_the_dead, "names a lane that has exited", 3),
        (disagreeing_lanes, "disagree", None),
    ],
)
def test_misuse_is_reported_with_its_line(kernel, what, line):
    x = np.zeros(32, np.float32)
    with pytest.raises(KernelError, match=what) as caught:
        launch(kernel, 3, 32, (x,))
    error = caught.value
    assert error.kernel == kernel.__name__
    assert error.block == (0, 0, 0)
    assert Path(__file__).name in error.line
    if line is not None:
        assert f":{kernel.__code__.co_firstlineno + line}" in error.line
    assert (x == 0).all()


def wild(x, offset):
    x[cuda.threadIdx.x + offset] = 1


@pytest.mark.parametrize("offset", [2**20, -(2**20), 2**40, 2**60])
def test_wild_access_is_an_exception_with_its_line(offset):
    x = np.zeros(32, np.float32)
    with pytest.raises(KernelError, match="out-of-bounds write") as caught:
        launch(wild, 1, 32, (x, offset))
    assert caught.value.thread == (0, 0, 0)
    assert caught.value.line.endswith(f":{wild.__code__.co_firstlineno + 1}")
    assert "invalid memory access" in str(caught.value.__cause__)
    assert (x == 0).all()


def test_write_just_outside_is_an_exception():
    x = np.zeros(32, np.float32)
    with pytest.raises(KernelError, match=r"0 bytes after the end of argument 0") as caught:
        launch(wild, 1, 32, (x, 1))
    assert "write outside argument 0 (float32[32])" in str(caught.value.__cause__)
    assert caught.value.thread == (31, 0, 0)
    assert (x == 0).all()


def test_write_to_a_read_only_array_is_an_exception():
    x = np.zeros(32, np.float32)
    x.flags.writeable = False
    with pytest.raises(KernelError, match="write to read-only memory"):
        launch(wild, 1, 32, (x, 0))


def test_faults_of_large_launches_are_reported_without_a_second_run():
    x = np.zeros(2**17, np.float32)
    with pytest.raises(KernelError, match=r"invalid memory access.*an unknown line"):
        launch(wild, 2**12, 32, (x, 2**40))


def test_integer_division_by_zero_harms_nobody():
    x = np.arange(32)

    def kernel(a, by):
        a[cuda.threadIdx.x] = a[cuda.threadIdx.x] // by[0]

    launch(kernel, 1, 32, (x, np.full(1, 3)))
    assert x.tolist() == [i // 3 for i in range(32)]
    with contextlib.suppress(KernelError):  # CUDA leaves the quotient undefined
        launch(kernel, 1, 32, (x, np.zeros(1, np.int64)))


def shared_overflow(x, offset):
    tile = cuda.shared.array(32, float32)
    tile[cuda.threadIdx.x + offset] = x[0]
    cuda.syncthreads()
    x[0] = tile[offset]


def test_shared_memory_overflow_is_an_exception():
    with pytest.raises(KernelError, match="out-of-bounds write") as caught:
        launch(shared_overflow, 1, 32, (np.zeros(1, np.float32), 4096))
    assert caught.value.thread[0] == 0


def test_faults_in_a_helper_worker_are_exceptions_too():
    x = np.zeros(64 * 32, np.float32)

    def kernel(y):
        if cuda.blockIdx.x == 63:
            y[2**30] = 1
        y[cuda.grid(1)] = 1

    for _ in range(5):
        with pytest.raises(KernelError, match="out-of-bounds write") as caught:
            launch(kernel, 64, 32, (x,), threads=2)
        assert caught.value.block == (63, 0, 0)


def endless(x):
    while cuda.atomic.cas(x, 0, 1, 2) == 0:
        pass


def test_waiting_for_ever_is_an_exception():
    with pytest.raises(KernelError, match="spin without progress"):
        launch(endless, 1, 1, (np.zeros(1, np.int32),))


def test_launches_from_several_python_threads():
    import concurrent.futures

    def job(k):
        a, b, c = normal(32, 32), normal(32, 32), np.zeros((32, 32), np.float32)
        launch(kernels.matmul, (2, 2), (16, 16), (a, b, c))
        return np.abs(c - a.astype(float) @ b).max()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert max(pool.map(job, range(20))) < 1e-5
