"""Check mode: for every kind of bug that it claims to find, a kernel that has it and is caught, and
its corrected twin that is silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, uint16, uint32, uint64

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator import CheckError, KernelError, TensorMap, launch
from dnncanon.gpu.emulator.compiler.instrument import Checked
from dnncanon.gpu.emulator.machine.findings import Kind

wait_0, wait_1 = ptx.cp_async_wait_group(0), ptx.cp_async_wait_group(1)


def check(kernel, grid, block, *args, **options):
    return launch(kernel, grid, block, args, mode="check", **options)


def f32(*shape):
    return np.zeros(shape, np.float32)


# Each maker takes `bug` and returns a kernel, which Numba compiles with `bug` as a constant.
def missing_barrier(bug):
    def kernel(x, out):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        if not bug:
            cuda.syncthreads()
        out[t] = tile[63 - t]

    return kernel, (1, 64, f32(64), f32(64))


def missing_second_barrier(bug):
    def kernel(x, out):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        for k in range(3):
            tile[t] = x[t] + k
            cuda.syncthreads()
            out[t] += tile[63 - t]
            if not bug:
                cuda.syncthreads()

    return kernel, (1, 64, f32(64), f32(64))


def missing_syncwarp(bug):
    def kernel(out):
        tile = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        tile[t] = t
        if not bug:
            cuda.syncwarp()
        out[t] = tile[t ^ 1]

    return kernel, (1, 32, np.zeros(32, np.int32))


def two_writers(bug):
    def kernel(out):
        tile = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        tile[t // 2 if bug else t] = t
        cuda.syncthreads()
        out[t] = tile[t // 2]

    return kernel, (1, 64, np.zeros(64, np.int32))


def race_between_blocks(bug):
    def kernel(out):
        if bug:
            out[0] += 1
        else:
            cuda.atomic.add(out, 0, 1)

    return kernel, (4, 1, np.zeros(1, np.int32))


def halo_from_another_block(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        x[i] = i
        out[i] = x[(i + 1) % x.size if bug else i]

    return kernel, (2, 32, f32(64), f32(64))


def atomic_and_plain(bug):
    def kernel(out):
        t = cuda.threadIdx.x
        cuda.atomic.add(out, 0, float32(1))
        if bug:
            out[1] = out[0]
        cuda.syncthreads()
        if t == 0:
            out[1] = out[0]

    return kernel, (1, 64, f32(2))


def off_by_one_tail(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size + (1 if bug else 0):
            out[i] = x[i]

    return kernel, (2, 32, f32(50), f32(50))


def missing_tail_mask(bug):
    def kernel(out):
        i = cuda.grid(1)
        if bug or i < out.size:
            out[i] = i

    return kernel, (2, 32, f32(50))


def negative_index(bug):
    def kernel(x, out):
        t = cuda.threadIdx.x
        out[t] = x[0, t - (33 if bug else 32)]  # negative indices count from the end

    return kernel, (1, 32, f32(1, 32), f32(32))


def past_the_row(bug):
    """A view of the first 8 of 10 columns: reading the ninth is in bounds of the memory."""

    def kernel(x, out):
        t = cuda.threadIdx.x
        out[t] = x[t, 8 if bug else 7]

    return kernel, (1, 4, f32(4, 10)[:, :8], f32(4))


def shared_overflow(bug):
    def kernel(out):
        tile = cuda.shared.array(33, int32)
        t = cuda.threadIdx.x
        tile[t + (2 if bug else 1)] = t
        if t == 0:
            tile[0] = 0
        cuda.syncthreads()
        out[t] = tile[t]

    return kernel, (1, 32, np.zeros(32, np.int32))


def overflow_into_the_next_shared_array(bug):
    def kernel(out):
        first = cuda.shared.array(32, int32)
        second = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        second[t] = t
        first[t + (32 if bug else 0)] = t
        cuda.syncthreads()
        out[t] = second[t] + first[t]

    return kernel, (1, 32, np.zeros(32, np.int32))


def dynamic_shared_overflow(bug):
    def kernel(out):
        tile = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        tile[t + (1 if bug else 0)] = t
        cuda.syncthreads()
        out[t] = t

    return kernel, (1, 32, np.zeros(32, np.int32))


def local_overflow(bug):
    def kernel(out, n):
        local = cuda.local.array(4, float32)
        for i in range(n + (1 if bug else 0)):
            local[i] = i
        out[0] = local[n - 1]

    return kernel, (1, 1, f32(1), 4)


def misaligned_vector(bug):
    def kernel(x, out):
        v = ptx.load_global_v4_f32(ptx.global_address(x, 1 if bug else 4))
        out[0] = v[0]

    return kernel, (1, 1, f32(16), f32(1))


def misaligned_copy(bug):
    def kernel(x, out):
        tile = cuda.shared.array(16, float32, 16)
        ptx.cp_async_16(ptx.shared_address(tile, 2 if bug else 4), ptx.global_address(x, 0))
        ptx.cp_async_wait_all()
        out[0] = tile[5]

    return kernel, (1, 1, f32(16), f32(1))


def write_to_input(bug):
    def kernel(x, out):
        t = cuda.threadIdx.x
        if bug:
            x[t] = 0
        out[t] = x[t]

    x = f32(32)
    x.flags.writeable = False
    return kernel, (1, 32, x, f32(32))


def uninitialised_shared(bug):
    def kernel(out):
        tile = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        if t < (31 if bug else 32):
            tile[t] = t
        cuda.syncthreads()
        out[cuda.grid(1)] = tile[t]

    return kernel, (2, 32, f32(64))


def uninitialised_accumulator(bug):
    def kernel(x, out):
        total = cuda.local.array(2, float64)
        if not bug:
            total[0] = 0
            total[1] = 0
        for i in range(x.size):
            total[i % 2] += x[i]
        out[0] = total[0] + total[1]

    return kernel, (1, 1, f32(8), f32(1))


def uninitialised_output(bug):
    def kernel(x, out):
        t = cuda.threadIdx.x
        if not bug:
            out[t] = 0
        out[t] += x[t]

    return kernel, (1, 32, f32(32), f32(32))


def missing_async_wait(bug):
    def kernel(x, out):
        tile = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, 4 * t), ptx.global_address(x, 4 * t))
        ptx.cp_async_commit()
        if not bug:
            wait_0()
        cuda.syncthreads()
        out[t] = tile[127 - t]
        wait_0()

    return kernel, (1, 32, f32(128), f32(32))


def weak_async_wait(bug):
    wait = wait_1 if bug else wait_0

    def kernel(x, out):
        tile = cuda.shared.array((2, 128), float32)
        t = cuda.threadIdx.x
        for stage in range(2):
            ptx.cp_async_16(
                ptx.shared_address(tile, stage * 128 + 4 * t), ptx.global_address(x, 4 * t)
            )
            ptx.cp_async_commit()
        wait()
        cuda.syncthreads()
        out[t] = tile[1, t]
        wait_0()

    return kernel, (1, 32, f32(128), f32(32))


def async_wait_without_barrier(bug):
    def kernel(x, out):
        tile = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, 4 * t), ptx.global_address(x, 4 * t))
        ptx.cp_async_commit()
        wait_0()
        if not bug:
            cuda.syncthreads()
        out[t] = tile[127 - t]

    return kernel, (1, 32, f32(128), f32(32))


def copies_never_awaited(bug):
    def kernel(x):
        tile = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, 4 * t), ptx.global_address(x, 4 * t))
        ptx.cp_async_commit()
        if not bug:
            wait_0()

    return kernel, (1, 32, f32(128))


def stage_overwritten_while_read(bug):
    """The next copy into a buffer starts before everybody has read it."""

    def kernel(x, out):
        tile = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        for _ in range(2):
            ptx.cp_async_16(ptx.shared_address(tile, 4 * t), ptx.global_address(x, 4 * t))
            ptx.cp_async_commit()
            wait_0()
            cuda.syncthreads()
            out[t] += tile[127 - t]
            if not bug:
                cuda.syncthreads()

    return kernel, (1, 32, f32(128), f32(32))


def missing_fence_before_flag(bug):
    """Block 0 publishes data under a flag, block 1 waits for the flag."""

    def kernel(data, flag, out):
        if cuda.blockIdx.x == 0:
            data[0] = 42
            if bug:
                cuda.atomic.add(flag, 0, 1)
            else:
                ptx.store_release(ptx.global_address(flag, 0), 1)
        else:
            while ptx.load_acquire(ptx.global_address(flag, 0)) == 0:
                pass
            out[0] = data[0]

    return kernel, (2, 1, np.zeros(1, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32))


def missing_fence_in_last_block(bug):
    """The last block to take a ticket sums what the others wrote."""

    def kernel(partial, ticket, out):
        b = cuda.blockIdx.x
        partial[b] = b
        if not bug:
            cuda.threadfence()
        if cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1:
            if not bug:
                cuda.threadfence()
            for i in range(cuda.gridDim.x):
                out[0] += partial[i]

    return kernel, (4, 1, np.zeros(4, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32))


def consumer_without_mbarrier_wait(bug):
    def kernel(x, out):
        tile = cuda.shared.array(64, float32)
        bar = cuda.shared.array(1, uint64)
        t = cuda.threadIdx.x
        if t == 0:
            ptx.mbarrier_init(ptx.shared_address(bar, 0), 32)
        cuda.syncthreads()
        if t < 32:
            tile[t] = x[t]
            ptx.mbarrier_arrive(ptx.shared_address(bar, 0))
        else:
            if not bug:
                ptx.mbarrier_wait(ptx.shared_address(bar, 0), 0)
            out[t - 32] = tile[63 - t]

    return kernel, (1, 64, f32(32), f32(32))


def bulk_load_without_wait(bug):
    def kernel(x, out):
        tile = cuda.shared.array(32, float32)
        bar = cuda.shared.array(1, uint64)
        t = cuda.threadIdx.x
        if t == 0:
            ptx.mbarrier_init(ptx.shared_address(bar, 0), 1)
            ptx.mbarrier_arrive_expect_tx(ptx.shared_address(bar, 0), 128)
            ptx.bulk_load(
                ptx.shared_address(tile, 0), ptx.global_address(x, 0), 128,
                ptx.shared_address(bar, 0),
            )  # fmt: skip
        cuda.syncthreads()
        if not bug:
            ptx.mbarrier_wait(ptx.shared_address(bar, 0), 0)
        out[t] = tile[t]

    return kernel, (1, 32, f32(32), f32(32))


def named_barrier_forgotten(bug):
    def kernel(out):
        tile = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        if t < 32:
            tile[t] = t
            ptx.barrier_arrive(1, 64)
        else:
            if not bug:
                ptx.barrier_sync(1, 64)
            out[t - 32] = tile[63 - t]

    return kernel, (1, 64, np.zeros(32, np.int32))


def missing_proxy_fence(bug):
    """Ordinary writes, then a bulk store of them."""

    def kernel(target):
        tile = cuda.shared.array((8, 16), float32, 128)
        t = cuda.threadIdx.x
        for i in range(8):
            if t < 16:
                tile[i, t] = t
        if not bug:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        if t == 0:
            ptx.tensor_store_2d(ptx.global_address(target, 0), 0, 0, ptx.shared_address(tile, 0))
            ptx.bulk_commit_group()
            bulk_wait_0()

    return kernel, (1, 32, TensorMap(f32(8, 16), (8, 16)))


bulk_wait_0 = ptx.bulk_wait_group(0)


def update_of_what_all_have_read(bug):
    def kernel(x):
        t = cuda.threadIdx.x
        first = x[5]
        if not bug:
            cuda.syncthreads()
        if t < 7:
            x[t] = x[t] + first  # read once more, behind the barrier

    return kernel, (1, 64, f32(64))


FOUND = [
    (missing_barrier, Kind.RACE_READ_WRITE, Kind.UNINITIALISED_SHARED),
    (missing_second_barrier, Kind.RACE_WRITE_READ),
    (missing_syncwarp, Kind.RACE_READ_WRITE, Kind.UNINITIALISED_SHARED),
    (two_writers, Kind.RACE_WRITE_WRITE),
    (race_between_blocks, Kind.RACE_READ_WRITE),
    (halo_from_another_block, Kind.RACE_WRITE_READ),
    (atomic_and_plain, Kind.RACE_WRITE_READ),
    (off_by_one_tail, Kind.OUT_OF_BOUNDS_READ),
    (missing_tail_mask, Kind.OUT_OF_BOUNDS_WRITE),
    (negative_index, Kind.OUT_OF_BOUNDS_READ),
    (past_the_row, Kind.GAP),
    (shared_overflow, Kind.OUT_OF_BOUNDS_WRITE),
    (overflow_into_the_next_shared_array, Kind.OUT_OF_BOUNDS_WRITE),
    (dynamic_shared_overflow, Kind.OUT_OF_BOUNDS_WRITE),
    (local_overflow, Kind.OUT_OF_BOUNDS_WRITE),
    (misaligned_vector, Kind.MISALIGNED),
    (misaligned_copy, Kind.MISALIGNED),
    (write_to_input, Kind.READ_ONLY),
    (uninitialised_shared, Kind.UNINITIALISED_SHARED),
    (uninitialised_accumulator, Kind.UNINITIALISED_LOCAL),
    (uninitialised_output, Kind.UNINITIALISED_GLOBAL),
    (missing_async_wait, Kind.ASYNC_IN_FLIGHT),
    (weak_async_wait, Kind.ASYNC_IN_FLIGHT),
    (async_wait_without_barrier, Kind.RACE_READ_WRITE, Kind.ASYNC_IN_FLIGHT),
    (copies_never_awaited, Kind.ASYNC_NEVER_AWAITED),
    (stage_overwritten_while_read, Kind.RACE_WRITE_READ),
    (missing_fence_before_flag, Kind.RACE_READ_WRITE),
    (missing_fence_in_last_block, Kind.RACE_READ_WRITE),
    (consumer_without_mbarrier_wait, Kind.RACE_READ_WRITE, Kind.UNINITIALISED_SHARED),
    (bulk_load_without_wait, Kind.UNINITIALISED_SHARED),
    (missing_proxy_fence, Kind.PROXY_FENCE),
    (named_barrier_forgotten, Kind.RACE_READ_WRITE, Kind.UNINITIALISED_SHARED),
    (update_of_what_all_have_read, Kind.RACE_WRITE_READ),
]


def options(maker):
    shared = 128 if maker is dynamic_shared_overflow else 0
    unwritten = (1,) if maker is uninitialised_output else ()
    return {"shared_bytes": shared, "uninitialised": unwritten}


@pytest.mark.parametrize(("maker", "kinds"), [(m, k) for m, *k in FOUND])
def test_seeded_bug_is_caught(maker, kinds):
    kernel, launch_arguments = maker(True)
    with pytest.raises(CheckError) as caught:
        check(kernel, *launch_arguments, **options(maker))
    assert {f.kind for f in caught.value.findings} & set(kinds)
    first = maker.__code__.co_firstlineno
    for finding in caught.value.findings:
        file, line = finding.line.split(",")[0].rsplit(":", 1)
        assert Path(file).name == Path(__file__).name
        assert first < int(line) < first + 30


@pytest.mark.parametrize("maker", [m for m, *_ in FOUND])
def test_corrected_twin_is_silent(maker):
    kernel, launch_arguments = maker(False)
    report = check(kernel, *launch_arguments, **options(maker))
    assert report.uninstrumented == []


@pytest.mark.parametrize("seed", ["1", "77"])
@pytest.mark.parametrize("maker", [m for m, *_ in FOUND])
def test_corrected_twin_is_silent_under_other_schedules(maker, seed, monkeypatch):
    monkeypatch.setenv("DNNCANON_EMULATOR_SEED", seed)
    kernel, launch_arguments = maker(False)
    check(kernel, *launch_arguments, **options(maker))


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_lanes_stay_where_they_are_while_one_executes_for_all(seed, monkeypatch):
    """ldmatrix examines the accesses of 32 lanes in one go, whoever may run first otherwise."""

    def kernel(out):
        tile = cuda.shared.array(64 * 8, uint16)
        t = cuda.threadIdx.x
        for i in range(8):
            tile[t * 8 + i] = t
        cuda.syncthreads()
        total = uint32(0)
        for _ in range(16):
            r = ptx.ldmatrix_x4(ptx.shared_address(tile, t * 8))
            total += r[0] + r[3]
        out[t] = total

    monkeypatch.setenv("DNNCANON_EMULATOR_SEED", seed)
    out = np.zeros(64, np.uint32)
    check(kernel, 1, 64, out)
    lane = np.arange(64) % 32
    rows = np.arange(64) // 32 * 32 + lane // 4
    np.testing.assert_array_equal(out, 16 * 0x10001 * (2 * rows + 24))


def test_findings_name_the_memory_and_both_threads():
    kernel, arguments = off_by_one_tail(True)
    with pytest.raises(CheckError) as caught:
        check(kernel, *arguments)
    read = next(f for f in caught.value.findings if f.kind is Kind.OUT_OF_BOUNDS_READ)
    assert (read.block, read.thread, read.times) == ((1, 0, 0), (18, 0, 0), 1)
    assert read.where == "0 bytes after the end of argument 0 float32[50]"
    kernel, arguments = two_writers(True)
    with pytest.raises(CheckError) as caught:
        check(kernel, *arguments)
    race = caught.value.findings[0]
    assert (race.thread, race.other_thread) == ((1, 0, 0), (0, 0, 0))


def test_bad_accesses_do_not_touch_the_callers_arrays():
    x = np.ones(50, np.float32)
    kernel, _ = missing_tail_mask(True)
    with pytest.raises(CheckError):
        check(kernel, 2, 32, x)
    assert (x == 1).all()


def test_a_race_shows_as_a_wrong_result_under_some_schedule(monkeypatch):
    kernel, _ = missing_barrier(True)
    x = np.arange(64, dtype=np.float32)
    wrong = 0
    for seed in range(1, 6):
        monkeypatch.setenv("DNNCANON_EMULATOR_SEED", str(seed))
        out = np.zeros(64, np.float32)
        launch(kernel, 1, 64, (x, out))
        wrong += not np.array_equal(out, x[::-1])
    assert wrong > 0


def test_deadlock_is_an_error_in_check_mode_too():
    def kernel(x):
        bar = cuda.shared.array(1, uint64)
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_init(ptx.shared_address(bar, 0), 2)
            ptx.mbarrier_arrive(ptx.shared_address(bar, 0))
            ptx.mbarrier_wait(ptx.shared_address(bar, 0), 0)
        x[0] = 1

    with pytest.raises(KernelError, match="deadlock"):
        check(kernel, 1, 1, f32(1))


def test_an_mbarrier_must_be_initialised():
    def kernel(bug):
        bar = cuda.shared.array(1, uint64)
        if not bug:
            ptx.mbarrier_init(ptx.shared_address(bar, 0), 1)
        ptx.mbarrier_arrive(ptx.shared_address(bar, 0))

    check(kernel, 1, 1, False)
    with pytest.raises(KernelError, match="not initialised"):
        check(kernel, 1, 1, True)


MYSTERY = """
define void @kernel(ptr %x, ptr %y) {
  %a = load float, ptr %x, align 4
  call void @mystery(ptr %y)
  store float %a, ptr %y, align 4
  ret void
}
declare void @mystery(ptr)
"""


@cuda.jit(device=True)
def last_of_three(x, i):
    some = cuda.local.array(3, float64)
    for k in range(3):
        some[k] = x[i] + k
    return some[i % 3]


@cuda.jit(device=True)
def last_of_forty(x, i):
    some = cuda.local.array(40, float64)
    for k in range(40):
        some[k] = x[i] * k
    return some[i % 40]


def by_turns(x, out):
    total = 0.0
    for i in range(x.size):
        total += last_of_three(x, i)
        total += last_of_forty(x, i)
    out[0] = total


def test_local_arrays_may_share_memory_by_turns():
    """LLVM gives those of two functions the same place; a loop takes them again and again."""
    x, out = np.arange(8.0), np.zeros(1)
    check(by_turns, 1, 1, x, out)
    assert out[0] == sum(x + np.arange(8) % 3) + sum(x * np.arange(8))


def test_what_cannot_be_examined_is_counted():
    step = Checked(MYSTERY, "kernel")
    text = step.run()
    assert text.count("@emu.touch(") == 2
    assert step.uninstrumented == ["an unknown line: call void @mystery(ptr %y)"]
