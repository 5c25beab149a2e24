"""The elementwise engine: any operands, strides and dtypes against NumPy; what it moves; races."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon.gpu.kernels.elementwise import elementwise
from dnncanon.gpu.runtime import DeviceArray, as_strided, device, empty, to_device
from dnncanon.gpu.runtime.device_code import device_function
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import DTYPES, ShapeError

Array = np.ndarray[Any, Any]


@device_function
def copied(x: Any) -> Any:
    return x


@device_function
def scaled_sum(a: Any, b: Any, alpha: Any) -> Any:
    return a + alpha * b


@device_function
def sum_and_difference(a: Any, b: Any) -> Any:
    return a + b, a - b


@device_function
def index_of(index: Any) -> Any:
    return index


@device_function
def where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


@device_function
def thirds(x: Any, divisor: Any) -> Any:
    return x / divisor


@device_function
def shifted_index(x: Any, offset: Any, index: Any) -> Any:
    return x + offset + index


def integers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).integers(0, 3, shape)
    return np.asarray(drawn).astype(dtype)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_copied_in_chunks_and_by_element(dtype: str) -> None:
    numbers = integers((7, 37), np.float32)
    powers = np.exp2(numbers) if dtype == "float8_e8m0fnu" else numbers  # it has no zero
    x = powers.astype(DTYPES[dtype].numpy)
    dense, transposed = empty(x.shape, x.dtype), empty(x.shape, x.dtype, (1, 7))
    elementwise(copied, (to_device(x),), (dense,))
    elementwise(copied, (to_device(x),), (transposed,))
    np.testing.assert_array_equal(dense.to_host(), x)
    np.testing.assert_array_equal(transposed.to_host(), x)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1023, 1024, 1025, 2 * 2048 * 256 * 4 + 3])
def test_sizes_around_chunks_and_blocks(size: int) -> None:
    x, y = np.arange(size, dtype=np.float32), empty((size,), np.float32)
    elementwise(scaled_sum, (to_device(x), to_device(x)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), 3 * x)


@pytest.mark.parametrize(
    "dtypes", [("float16", "float32"), ("int8", "float64"), ("float64", "bool")]
)
def test_operands_of_different_dtypes(dtypes: tuple[str, str]) -> None:
    a, b = (integers((3, 100), np.float32, seed).astype(dtypes[0]) for seed in (1, 2))
    y = empty(a.shape, dtypes[1])
    elementwise(scaled_sum, (to_device(a), to_device(b)), (y,), (2.0,))
    expected = a.astype(np.float64) + 2 * b.astype(np.float64)
    np.testing.assert_array_equal(y.to_host(), expected.astype(dtypes[1]))


def test_several_outputs() -> None:
    a, b = integers((11, 13), np.float32, 1), integers((11, 13), np.float16, 2)
    total, difference = empty(a.shape, np.float32), empty(a.shape, np.int32)
    elementwise(sum_and_difference, (to_device(a), to_device(b)), (total, difference))
    np.testing.assert_array_equal(total.to_host(), a + b)
    np.testing.assert_array_equal(difference.to_host(), (a - b).astype(np.int32))


def test_three_inputs_one_of_them_bool() -> None:
    condition, a, b = integers((50,), bool), np.arange(50.0), -np.arange(50.0)
    y = empty((50,), np.float64)
    elementwise(where, tuple(map(to_device, (condition, a, b))), (y,))
    np.testing.assert_array_equal(y.to_host(), np.where(condition, a, b))


@pytest.mark.parametrize("strides", [None, (1, 5), (20, 3)])
def test_the_index_counts_in_c_order_whatever_the_strides(strides: tuple[int, int] | None) -> None:
    y = empty((5, 6), np.int64, strides)
    elementwise(index_of, (), (y,), index=True)
    np.testing.assert_array_equal(y.to_host(), np.arange(30).reshape(5, 6))


def test_scalars_and_index_come_after_the_elements() -> None:
    x, y = np.ones(100, np.float32), empty((100,), np.float32)
    elementwise(shifted_index, (to_device(x),), (y,), (10,), index=True)
    np.testing.assert_array_equal(y.to_host(), np.arange(100) + 11)


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.float64(0.5)])
def test_scalars_may_be_numpys(half: Any) -> None:
    x, y = np.ones(5, np.float32), empty((5,), np.float32)
    elementwise(scaled_sum, (to_device(x), to_device(x)), (y,), (half,))
    np.testing.assert_array_equal(y.to_host(), np.full(5, 1.5))


def test_a_float_scalar_has_the_precision_of_the_operands() -> None:
    for dtype in (np.float32, np.float64):
        x, y = np.ones(5, dtype), empty((5,), dtype)
        elementwise(thirds, (to_device(x),), (y,), (3.0,))
        np.testing.assert_array_equal(y.to_host(), (np.ones(5) / 3).astype(dtype))


def test_a_result_is_rounded_once() -> None:
    """1 + 2^-11 + 2^-30 rounds up to float16, though its float32 would be a tie."""
    x, y = np.array([1 + 2.0**-11 + 2.0**-30]), empty((1,), np.float16)
    elementwise(copied, (to_device(x),), (y,))
    assert y.to_host()[0] == np.float16(1 + 2.0**-10)


# --- Strides --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 5, 6), (6,)),
        ((4, 5, 6), (5, 1)),
        ((4, 1, 6), (1, 5, 1)),
        ((1, 1, 1), (4, 5, 6)),
        ((), (4, 5, 6)),
    ],
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, z = integers(a, np.float32, 1), integers(b, np.float32, 2)
    y = empty((4, 5, 6), np.float32)
    elementwise(scaled_sum, (to_device(x), to_device(z)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), np.broadcast_to(x + 2 * z, (4, 5, 6)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("case", ["channel", "row", "gaps", "index"])
def test_chunks_along_the_fastest_dim(case: str, dtype: Any) -> None:
    """Of broadcast inputs, of rows with gaps, and with the index of each element."""
    x, y = integers((3, 5, 32), dtype, 1), empty((3, 5, 32), np.float32)
    if case == "index":
        memory = to_device(np.zeros((3, 5, 48), np.float32))
        gaps = as_strided(memory, (3, 5, 32), (240, 48, 1))
        elementwise(shifted_index, (to_device(x),), (gaps,), (10,), index=True)
        np.testing.assert_array_equal(
            gaps.to_host(), x.astype(np.float32) + 10 + np.arange(480).reshape(x.shape)
        )
        return
    other = integers((5, 1) if case == "channel" else (1, 5, 32), dtype, 2)
    if case == "gaps":
        other = integers((3, 5, 64), dtype, 2)[:, :, :32]
    elementwise(scaled_sum, (to_device(x), to_device(other)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), x + 2 * other.astype(np.float32))


@pytest.mark.parametrize("rank", range(9))
def test_every_rank_with_dims_that_cannot_be_joined(rank: int) -> None:
    shape = (3, 2, 2, 3, 2, 2, 2, 2)[:rank]
    x = integers(shape, np.float32)
    strides, step = [], 1
    for extent in shape:
        strides.append(step)
        step *= extent + 1
    y = empty(shape, np.float32, strides)
    elementwise(copied, (to_device(x),), (y,))
    np.testing.assert_array_equal(y.to_host(), x)


def test_threads_go_on_to_their_next_element() -> None:
    """More elements than threads: what comes next is found by adding a step with carries."""
    x = np.arange(1001 * 599).reshape(1001, 599).astype(np.int8)
    y = empty((1001, 599), np.int8, (600, 1))
    elementwise(copied, (to_device(x),), (y,))
    np.testing.assert_array_equal(y.to_host(), x)


def test_negative_strides() -> None:
    x = integers((6, 7), np.float32)
    y = empty((6, 7), np.float32)
    elementwise(copied, (to_device(x[::-1, ::-1]),), (y,))
    np.testing.assert_array_equal(y.to_host(), x[::-1, ::-1])


def test_gaps_stay_as_they_are() -> None:
    memory = to_device(np.full(64, 7, np.float32))
    elementwise(
        copied, (to_device(np.zeros((3, 5), np.float32)),), (as_strided(memory, (3, 5), (20, 2)),)
    )
    expected = np.full(64, 7, np.float32)
    for row in range(3):
        expected[20 * row : 20 * row + 10 : 2] = 0
    np.testing.assert_array_equal(memory.to_host(), expected)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_operands_that_are_not_aligned_to_chunks(offset: int) -> None:
    x = np.arange(103, dtype=np.float16)
    memory, y = to_device(x), empty((100,), np.float16)
    elementwise(copied, (as_strided(memory, (100,), (1,), offset),), (y,))
    np.testing.assert_array_equal(y.to_host(), x[offset : offset + 100])


def test_a_shape_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\) does not broadcast to \(4,\)"):
        elementwise(copied, (empty((3,), np.float32),), (empty((4,), np.float32),))


# --- Inputs with another fastest dim than the output's --------------------------------------------


def with_dims_turned(x: Array) -> DeviceArray:
    """The same array, the first dim of which is the fastest in memory."""
    strides = tuple(s // x.itemsize for s in np.asfortranarray(x).strides)
    return as_strided(to_device(np.ascontiguousarray(x.T)), x.shape, strides)


@pytest.mark.parametrize("shape", [(8, 8), (33, 65), (3, 40, 37), (2, 9, 3, 31)])
def test_an_input_turned_around_beside_one_that_is_not(shape: tuple[int, ...]) -> None:
    a, b = integers(shape, np.float32, 1), integers(shape, np.float32, 2)
    y = empty(shape, np.float32)
    elementwise(scaled_sum, (with_dims_turned(a), to_device(b)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), a + 2 * b)


def test_inputs_turned_around_of_different_widths() -> None:
    a, b = integers((40, 50), np.int8, 1), integers((40, 50), np.float64, 2)
    y = empty((40, 50), np.float64)
    elementwise(scaled_sum, tuple(map(with_dims_turned, (a, b))), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), a + 2 * b)


def test_the_index_counts_in_c_order_beside_an_input_turned_around() -> None:
    x, y = np.zeros((12, 35), np.float32), empty((12, 35), np.float32)
    elementwise(shifted_index, (with_dims_turned(x),), (y,), (0.0,), index=True)
    np.testing.assert_array_equal(y.to_host(), np.arange(420.0).reshape(12, 35))


def test_tiles_are_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    a, b = integers((70, 45), np.float32, 1), integers((70, 45), np.float32, 2)
    y = empty((70, 45), np.float32)
    elementwise(scaled_sum, (with_dims_turned(a), to_device(b)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), a + 2 * b)


# --- Races and uninitialised reads ----------------------------------------------------------------


@pytest.mark.parametrize("strides", [None, (1, 9)])
def test_it_is_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch, strides: Any) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    a, b = integers((9, 30), np.float32, 1), integers((9, 30), np.float16, 2)
    y = empty((9, 30), np.float16, strides)
    elementwise(scaled_sum, (to_device(a), to_device(b)), (y,), (2.0,))
    np.testing.assert_array_equal(y.to_host(), (a + 2 * b.astype(np.float32)).astype(np.float16))


# --- What it moves --------------------------------------------------------------------------------


def moved_over_least(inputs: tuple[DeviceArray, ...], outputs: tuple[DeviceArray, ...]) -> float:
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        elementwise(
            copied if len(inputs) == 1 else scaled_sum, inputs, outputs, (2.0,) * (len(inputs) - 1)
        )
    (report,) = launches
    profile: Any = report.profile
    return float(
        profile.bytes_over_least(sum(a.span * a.dtype.itemsize for a in (*inputs, *outputs)))
    )


@pytest.fixture
def profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize(
    "dtypes", [("float32",) * 3, ("float16",) * 3, ("int8",) * 2, ("bfloat16", "float32")]
)
def test_dense_operands_are_moved_once(dtypes: tuple[str, ...]) -> None:
    arrays = [to_device(np.zeros((16, 1000), DTYPES[name].numpy)) for name in dtypes]
    assert moved_over_least(tuple(arrays[:-1]), (arrays[-1],)) <= 1.01


@pytest.mark.usefixtures("profiling")
def test_rows_with_gaps_are_moved_once() -> None:
    x = as_strided(to_device(np.zeros(64 * 600, np.float32)), (64, 512), (600, 1))
    y = empty((64, 512), np.float32)
    assert moved_over_least((x,), (y,)) <= 1.01


@pytest.mark.usefixtures("profiling")
def test_of_what_is_broadcast_a_chunk_takes_one_element() -> None:
    x, channel = (to_device(np.zeros(shape, np.float32)) for shape in ((8, 16, 196), (16, 1)))
    assert moved_over_least((x, channel), (empty((8, 16, 196), np.float32),)) <= 1.05


@pytest.mark.usefixtures("profiling")
def test_an_input_turned_around_is_moved_once() -> None:
    a, b = (np.zeros((256, 96), np.float32) for _ in range(2))
    operands = with_dims_turned(a), to_device(b)
    assert moved_over_least(operands, (empty(a.shape, np.float32),)) <= 1.01


@pytest.mark.usefixtures("profiling")
def test_a_dense_operand_is_moved_sixteen_bytes_at_a_time() -> None:
    x, y = to_device(np.zeros(8192, ml_dtypes.bfloat16)), empty((8192,), ml_dtypes.bfloat16)
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        elementwise(copied, (x,), (y,))
    profile: Any = launches[0].profile
    for access in profile.accesses:
        assert (access.bytes / access.requests, access.units_per_request) == (512, 16)


@pytest.mark.usefixtures("profiling")
def test_an_operand_at_an_odd_address_is_moved_by_element() -> None:
    memory = to_device(np.zeros(8200, np.float16))
    x, y = as_strided(memory, (8192,), (1,), 1), empty((8192,), np.float16)
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        elementwise(copied, (x,), (y,))
    profile: Any = launches[0].profile
    assert {access.bytes / access.requests for access in profile.accesses} == {32 * 2}
