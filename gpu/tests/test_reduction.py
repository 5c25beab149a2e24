"""The reduction engine against NumPy: axes, layouts, splitting, states of several numbers; what it moves."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu.kernels.reduction import Monoid, reduce, workspace_bytes
from dnncanon.gpu.kernels.rows import add, larger
from dnncanon.gpu.runtime import DeviceArray, View, as_strided, device, empty, to_device
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import dense_strides

Array = np.ndarray[Any, Any]


@device_function
def same(x: Any) -> Any:
    return x


@device_function
def with_index(x: Any, index: Any) -> Any:
    return x, index


@device_function
def larger_or_first(a: Any, b: Any) -> Any:
    if b[0] > a[0] or (b[0] == a[0] and b[1] < a[1]):
        return b
    return a


@device_function
def second(state: Any) -> Any:
    return state[1]


@device_function
def both(state: Any) -> Any:
    return state


@device_function
def sum_and_product(dy: Any, x: Any) -> Any:
    return dy, dy * x


@device_function
def add_both(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


@device_function
def centred(x: Any, shift: Any) -> Any:
    return x - shift


@device_function
def half_of_sum(total: Any, shift: Any) -> Any:
    return total / (shift + shift)


SUM = Monoid(("sum",), (0,), same, add, same)
MAX = Monoid(("sum",), (-np.inf,), same, larger, same)
ARGMAX = Monoid(("sum", "int64"), (-1000, 2**62), with_index, larger_or_first, second, index=True)
SUMS = Monoid(("sum", "float64"), (0, 0), sum_and_product, add_both, both)
CENTRED = Monoid(("sum",), (0,), centred, add, half_of_sum)


def integers(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def run(
    monoid: Monoid,
    inputs: tuple[DeviceArray, ...],
    outputs: tuple[DeviceArray, ...],
    axes: tuple[int, ...],
    scalars: tuple[float, ...] = (),
) -> int:
    """Reduce with a workspace of exactly the announced size, and return that."""
    needed = workspace_bytes(monoid, inputs[0], axes, inputs[0].dtype.name)
    reduce(
        monoid,
        inputs,
        outputs,
        axes,
        scalars,
        workspace=empty((needed,), np.uint8) if needed else None,
    )
    return needed


def kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def sums(x: Array, axes: tuple[int, ...], dtype: Any = np.float32) -> Array:
    y = empty(kept(x.shape, axes), dtype)
    run(SUM, (to_device(x),), (y,), axes)
    return y.to_host()


# --- Axes and layouts -----------------------------------------------------------------------------

SHAPE = (3, 4, 5, 2)
AXES = [axes for count in range(5) for axes in combinations(range(4), count)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_every_set_of_axes(axes: tuple[int, ...]) -> None:
    x = integers(SHAPE)
    np.testing.assert_array_equal(sums(x, axes), x.sum(axes))
    channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(sums(channels_last, axes), x.sum(axes))


@pytest.mark.parametrize(
    "length", [0, 1, 2, 31, 32, 33, 255, 256, 257, 1024, 1025, 4095, 4096, 70000]
)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_lengths_along_the_fast_and_the_slow_dim(rows: int, length: int) -> None:
    x = integers((rows, length))
    np.testing.assert_array_equal(sums(x, (1,)), x.sum(1))
    np.testing.assert_array_equal(sums(np.asfortranarray(x), (1,)), x.sum(1))


@pytest.mark.parametrize("rows", [255, 256, 257, 5000])
@pytest.mark.parametrize("length", [1, 3, 17])
def test_many_short_rows(rows: int, length: int) -> None:
    x = integers((rows, length))
    np.testing.assert_array_equal(sums(x, (1,)), x.sum(1))
    np.testing.assert_array_equal(sums(np.asfortranarray(x), (1,)), x.sum(1))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_chunks_whether_aligned_or_not(
    dtype: Any, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = integers((3 * 320 + 1,), dtype)
    view = as_strided(to_device(x), (3, 256), (320, 1), offset)
    y, z = empty((3,), np.float32), empty((3,), np.int64)
    run(SUM, (view,), (y,), (1,))
    run(ARGMAX, (view,), (z,), (1,))
    expected = x[offset : offset + 960].reshape(3, 320)[:, :256]
    np.testing.assert_array_equal(y.to_host(), expected.astype(np.float32).sum(1))
    np.testing.assert_array_equal(z.to_host(), expected.argmax(1))


def test_rows_that_begin_anywhere_are_not_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = integers((3 * 257,))
    y = empty((3,), np.float32)
    run(SUM, (as_strided(to_device(x), (3, 256), (257, 1)),), (y,), (1,))
    np.testing.assert_array_equal(y.to_host(), x.reshape(3, 257)[:, :256].sum(1))


def test_the_order_of_a_sum_does_not_depend_on_its_address() -> None:
    x = np.random.default_rng(0).standard_normal(4097).astype(np.float32)
    found = []
    for offset in (0, 1):
        memory = to_device(np.roll(x, offset))
        y = empty((), np.float32)
        run(SUM, (as_strided(memory, (4096,), (1,), offset),), (y,), (0,))
        found.append(float(y.to_host()))
    assert found[0] == found[1]


def test_gaps_broadcasting_and_negative_strides() -> None:
    x = integers((6, 10, 8))
    for view in (x[:, ::2, 1:7], x[::-1, :, ::-1], np.broadcast_to(x[:, :1], x.shape)):
        np.testing.assert_array_equal(sums(view, (0, 2)), view.sum((0, 2)))
        np.testing.assert_array_equal(sums(view, (1,)), view.sum(1))


def test_outputs_may_keep_the_axes_and_have_strides() -> None:
    x = integers((4, 5, 6))
    memory = to_device(np.full(40, 9, np.float32))
    run(SUM, (to_device(x),), (as_strided(memory, (4, 1, 6), (1, 0, 5)),), (1,))
    expected = np.full(40, 9, np.float32)
    for column in range(6):
        expected[5 * column : 5 * column + 4] = x.sum(1)[:, column]
    np.testing.assert_array_equal(memory.to_host(), expected)


def test_more_dims_than_can_be_joined() -> None:
    x = integers((2, 3, 2, 3, 2, 3, 2))[:, :2, :, :2, :, :2]
    np.testing.assert_array_equal(sums(x, (0, 2, 4)), x.sum((0, 2, 4)))
    np.testing.assert_array_equal(sums(x, (1, 3, 5, 6)), x.sum((1, 3, 5, 6)))


def test_no_rows_and_empty_rows() -> None:
    assert sums(integers((0, 5)), (1,)).shape == (0,)
    np.testing.assert_array_equal(sums(integers((5, 0)), (1,)), np.zeros(5))
    y = empty((5,), np.float32)
    run(MAX, (to_device(integers((5, 0))),), (y,), (1,))
    np.testing.assert_array_equal(y.to_host(), np.full(5, -np.inf))


# --- Monoids and dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32", "bool"])
def test_dtypes(dtype: str) -> None:
    x = integers((7, 300)).astype(dtype)
    wide = np.float64 if np.issubdtype(x.dtype, np.floating) else np.int64
    np.testing.assert_array_equal(sums(x, (1,), wide), x.astype(wide).sum(1))


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("length", [1, 5, 300, 50000])
def test_the_first_of_several_largest_wins(length: int, fortran: bool) -> None:
    x = integers((3, length))
    y = empty((3,), np.int32)
    run(ARGMAX, (to_device(np.asfortranarray(x) if fortran else x),), (y,), (1,))
    np.testing.assert_array_equal(y.to_host(), x.argmax(1))


def test_the_index_counts_in_c_order_of_the_axes() -> None:
    x = np.zeros((5, 3, 7), np.float32)
    x[4, :, 2] = 1
    y = empty((3,), np.int64)
    run(ARGMAX, (to_device(x.transpose(2, 1, 0)),), (y,), (0, 2))
    np.testing.assert_array_equal(y.to_host(), [2 * 5 + 4] * 3)


@pytest.mark.parametrize("shape", [(4, 50), (2, 30000)])
def test_two_sums_over_two_inputs(shape: tuple[int, int]) -> None:
    dy, x = integers(shape, seed=1), integers(shape, np.float16, seed=2)
    first, product = empty(shape[:1], np.float32), empty(shape[:1], np.float16)
    run(SUMS, (to_device(dy), to_device(x)), (first, product), (1,))
    np.testing.assert_array_equal(first.to_host(), dy.sum(1))
    np.testing.assert_array_equal(product.to_host(), (dy * x).sum(1).astype(np.float16))


def test_inputs_of_different_layouts() -> None:
    dy, x = integers((20, 4000), seed=1), integers((4000, 20), seed=2).T
    first, product = empty((20,), np.float32), empty((20,), np.float32)
    for a, b in ((dy, x), (x, dy)):
        run(SUMS, (to_device(a), to_device(b)), (first, product), (1,))
        np.testing.assert_array_equal(first.to_host(), a.sum(1))
        np.testing.assert_array_equal(product.to_host(), (a * b).sum(1))


def test_scalars_reach_lift_and_finish() -> None:
    x, y = integers((3, 40)), empty((3,), np.float32)
    run(CENTRED, (to_device(x),), (y,), (1,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), (x - 2).sum(1) / 4)


def test_nan_is_the_largest() -> None:
    x, y = integers((4, 500)), empty((4,), np.float32)
    x[1, 77] = np.nan
    run(MAX, (to_device(x),), (y,), (1,))
    np.testing.assert_array_equal(y.to_host(), x.max(1))


# --- Order, workspace -----------------------------------------------------------------------------


def test_long_sums_of_float32_are_accurate() -> None:
    """A tree: 2^22 random terms cost a few roundings, not as many as a running sum of them."""
    x = np.random.default_rng(0).random((1, 2**22), np.float32)
    exact = x.astype(np.float64).sum()
    assert abs(float(sums(x, (1,))[0]) - exact) <= 2 * np.spacing(np.float32(exact))


def test_a_thread_adds_up_short_sums() -> None:
    """256 equal terms one after the other drift by 2.4e-6 of their sum, 4 sums of 64 by 0.6e-6."""
    tenth = to_device(np.full(1, 0.1, np.float32))
    y = empty((256,), np.float32)
    run(SUM, (as_strided(tenth, (256, 2**16), (0, 0)),), (y,), (1,))
    np.testing.assert_allclose(y.to_host(), 2**16 * np.float64(np.float32(0.1)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 50000), (50000, 2), (40, 3000)])
def test_the_same_bits_in_every_run(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axis = (int(np.argmax(shape)),)
    first = sums(x, axis)
    monkeypatch.setenv("DNNCANON_EMULATOR_SEED", "7")
    np.testing.assert_array_equal(sums(x, axis), first)


def test_few_long_rows_are_split_and_short_or_many_ones_are_not() -> None:
    def needed(*shape: int) -> int:
        return workspace_bytes(ARGMAX, View(shape, dense_strides(shape)), (1,), "float16")

    parts = 100000 // (256 * 16)  # 16 elements for each of 256 threads
    assert needed(2, 100000) == parts * 2 * (4 + 8)
    assert needed(2, 1000) == 0
    assert needed(100000, 5000) == 0


@pytest.mark.parametrize("monoid", [SUM, ARGMAX], ids=["sum", "argmax"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 20000), 1), ((20000, 3), 0), ((40, 40), 1), ((40, 40), 0), ((300, 3), 1)],
)
def test_it_is_clean_in_check_mode(
    monoid: Monoid, shape: tuple[int, int], axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = integers(shape)
    y = empty(kept(shape, (axis,)), np.float32)
    run(monoid, (to_device(x),), (y,), (axis,))
    np.testing.assert_array_equal(y.to_host(), x.sum(axis) if monoid is SUM else x.argmax(axis))


# --- What it moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((32, 1024), (1,)),
        ((1024, 32), (0,)),
        ((8, 16, 256), (0, 2)),
        ((4, 4096), (1,)),
        ((2, 64, 64), (1,)),
        ((1, 65536), (1,)),
        ((65536,), (0,)),
        ((512, 32), (1,)),
    ],
    ids=str,
)
def test_dense_tensors_are_moved_once(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    x, y = to_device(np.ones(shape, dtype)), empty(kept(shape, axes), np.float32)
    launches = launches_of(x, y, axes)
    moved = sum(32 * launch.profile.global_sectors for launch in launches)
    assert moved <= 1.1 * (x.size * x.dtype.itemsize + y.size * 4)


def launches_of(x: DeviceArray, y: DeviceArray, axes: tuple[int, ...]) -> list[Any]:
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        run(SUM, (x,), (y,), axes)
    return list(launches)


def loads(x: DeviceArray, axes: tuple[int, ...]) -> Any:
    """The figures of the reads of x."""
    (report,) = launches_of(x, empty(kept(x.shape, axes), np.float32), axes)
    (access,) = [a for a in report.profile.accesses if (a.space, a.operation) == ("global", "load")]
    return access


def test_adjacent_columns_are_read_sixteen_bytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    access = loads(to_device(np.ones((300, 1024), np.float16)), (1,))
    assert (access.bytes / access.requests, access.units_per_request) == (512, 16)


def test_rows_that_begin_anywhere_cost_a_sector_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    access = loads(to_device(np.ones((300, 1001), np.float32)), (1,))
    assert access.units_per_request <= 4 + 1
