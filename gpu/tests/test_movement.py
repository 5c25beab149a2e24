"""Data movement of the GPU library against NumPy: values, words, strides, tiles, what is moved; races."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import moving
from dnncanon.gpu.runtime import DeviceArray, as_strided, device, empty, to_device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import DTYPES
from dnncanon.spec.transform import CASTABLE

Array = np.ndarray[Any, Any]


def numbered(*shape: int, dtype: Any = np.float32) -> Array:
    count = int(np.prod(shape))
    return (np.arange(count) % 251).reshape(shape).astype(dtype)


def host(result: Any) -> Array:
    return np.asarray(result)


# --- Copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
@pytest.mark.parametrize("permutation", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_every_word_is_moved_in_every_order(dtype: str, permutation: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(0, 2, (9, 16, 33)).astype(DTYPES[dtype].numpy)
    y = host(gpu.transpose(x, permutation=permutation))
    np.testing.assert_array_equal(y, x.transpose(permutation))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1023, 4 * 256 * 2048 + 7])
def test_dense_copies_of_any_size(size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(host(gpu.transform_tensor(x)), x)


def test_a_nan_keeps_its_payload() -> None:
    bits = np.array([0x7FA12345, 0xFFC00001, 0x80000000], np.uint32)
    y = host(gpu.transform_tensor(bits.view(np.float32)))
    assert y.view(np.uint32).tolist() == bits.tolist()
    half = np.array([0x7D01, 0xFE55], np.uint16)
    z = host(gpu.pad(half.view(np.float16), pre=(1,), post=(0,)))
    assert z.view(np.uint16).tolist() == [0, 0x7D01, 0xFE55]


def test_the_layout_is_that_of_out() -> None:
    x = numbered(2, 40, 5, 9)
    y = empty(x.shape, np.float32, (5 * 9 * 48, 1, 9 * 48, 48))
    gpu.transform_tensor(x, out=y)
    np.testing.assert_array_equal(y.to_host(), x)


@pytest.mark.parametrize("rows", [8, 31, 32, 33, 65])
@pytest.mark.parametrize("columns", [8, 32, 33])
def test_tiles_at_their_edges(rows: int, columns: int) -> None:
    x = numbered(3, rows, columns, dtype=np.int8)
    y = host(gpu.transpose(x, permutation=(0, 2, 1)))
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))


@pytest.mark.parametrize("rows", [2, 3, 7])
@pytest.mark.parametrize("columns", [32, 129, 515, 1100])
@pytest.mark.parametrize("dtype", [np.int8, np.float64])
def test_tiles_of_few_rows_or_columns(rows: int, columns: int, dtype: Any) -> None:
    x = numbered(2, rows, columns, dtype=dtype)
    y = host(gpu.transpose(x, permutation=(0, 2, 1)))
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(host(gpu.transpose(y, permutation=(0, 2, 1))), x)


def test_tiles_of_few_columns_are_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = numbered(3, 1030, dtype=np.float32)
    np.testing.assert_array_equal(host(gpu.transpose(x, permutation=(1, 0))), x.T)


def test_slices_of_repeated_elements() -> None:
    x = np.broadcast_to(numbered(1, 7), (5, 7))
    y = host(gpu.slice_forward(x, start=(1, 1), stride=(2, 3)))
    np.testing.assert_array_equal(y, x[1::2, 1::3])


def test_channels_into_vectors_and_back() -> None:
    x = numbered(2, 64, 3, 5, dtype=np.int8)
    y = host(gpu.vectorize_channels(x, width=32))
    np.testing.assert_array_equal(y, x.reshape(2, 2, 32, 3, 5).transpose(0, 1, 3, 4, 2))
    np.testing.assert_array_equal(host(gpu.unvectorize_channels(y)), x)


@pytest.mark.parametrize("order", ["DCR", "CRD"])
def test_blocks_of_three_dims(order: str) -> None:
    x = numbered(2, 3, 4, 6, 2)
    folded = gpu.space_to_depth(x, block=(2, 3, 1), order=order)
    assert host(folded).shape == (2, 18, 2, 2, 2)
    np.testing.assert_array_equal(host(gpu.depth_to_space(folded, block=(2, 3, 1), order=order)), x)


def test_parts_of_a_whole() -> None:
    x = numbered(4, 11, 3)
    parts = gpu.concat_backward(x, axis=1, sizes=(4, 0, 7))
    np.testing.assert_array_equal(host(parts.dx2), x[:, 4:])
    np.testing.assert_array_equal(host(gpu.concat_forward(*parts, axis=1)), x)


@pytest.mark.parametrize("x", [numbered(6, 10), numbered(10, 6).T, numbered(6, 20)[:, ::2]])
@pytest.mark.parametrize("shape", [(4, 15), (60,), (3, 2, 10), (5, 1, 12)])
def test_reshapes_keep_the_order(x: Array, shape: tuple[int, ...]) -> None:
    y = empty(shape, np.float32, tuple(2 * s for s in gpu_strides(shape)))
    gpu.reshape(x, shape=shape, out=y)
    np.testing.assert_array_equal(y.to_host(), x.reshape(shape))


def gpu_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[d + 1 :])) for d in range(len(shape)))


# --- Gathers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, ml_dtypes.bfloat16])
def test_padding_on_any_side(dtype: Any) -> None:
    x = numbered(3, 4, 16, dtype=dtype) % 8
    for pre, post in (((0, 2, 0), (1, 0, 0)), ((0, 0, 3), (0, 0, 1)), ((1, 1, 1), (2, 2, 2))):
        widths = list(zip(pre, post, strict=True))
        y = host(gpu.pad(x, pre=pre, post=post, value=2.0))
        np.testing.assert_array_equal(y, np.pad(x, widths, constant_values=2))


def test_padding_around_nothing() -> None:
    y = host(gpu.pad(np.zeros((0, 3), np.int32), pre=(2, 0), post=(0, 1), value=7.0))
    assert y.tolist() == [[7] * 4] * 2


def test_gradients_of_slices_lie_among_zeros() -> None:
    dy = numbered(2, 3, 4) + 1
    dx = host(
        gpu.slice_backward(
            dy, input_size=(5, 3, 13), start=(1, 0, 2), limit=(4, 3, 12), stride=(2, 1, 3)
        )
    )
    expected = np.zeros((5, 3, 13), np.float32)
    expected[1:4:2, :, 2:12:3] = dy
    np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (2, 1), (9, 0), (0, 12)])
def test_bands(lower: int, upper: int) -> None:
    x = numbered(2, 7, 5) + 1
    band = gpu.contract_band_matrix(x, lower=lower, upper=upper, value=-1.0)
    assert host(band).shape == (2, 7, lower + upper + 1)
    y = host(gpu.expand_band_matrix(band, columns=5, lower=lower, upper=upper))
    np.testing.assert_array_equal(y, np.tril(np.triu(x, -lower), upper))


# --- Races and uninitialised reads ----------------------------------------------------------------


def test_copies_and_gathers_are_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = numbered(3, 33, 40, dtype=np.float16)
    turned = host(gpu.transpose(x, permutation=(2, 0, 1)))
    np.testing.assert_array_equal(turned, x.transpose(2, 0, 1))
    padded = host(gpu.pad(x, pre=(0, 1, 2), post=(1, 0, 0)))
    np.testing.assert_array_equal(padded, np.pad(x, ((0, 1), (1, 0), (2, 0))))
    shaped = host(gpu.reshape(x.transpose(1, 0, 2), shape=(40, 99)))
    np.testing.assert_array_equal(shaped, x.transpose(1, 0, 2).reshape(40, 99))


# --- What is moved --------------------------------------------------------------------------------


@pytest.fixture
def profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")


def profile_of_copy(x: DeviceArray, y: DeviceArray) -> Any:
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        moving.copy(x, y)
    (report,) = launches
    return report.profile


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_a_dense_copy_takes_sixteen_bytes_at_a_time(dtype: str) -> None:
    x, y = (empty((16, 1024), DTYPES[dtype].numpy) for _ in range(2))
    profile = profile_of_copy(x, y)
    assert profile.bytes_over_least(2 * x.size * x.dtype.itemsize) <= 1.01
    assert {access.bytes / access.requests for access in profile.accesses} == {512}


@pytest.mark.usefixtures("profiling")
def test_a_copy_at_an_odd_address_takes_an_element_at_a_time() -> None:
    memory = to_device(np.zeros(1028, np.float32))
    profile = profile_of_copy(as_strided(memory, (1024,), (1,), 1), empty((1024,), np.float32))
    assert {access.bytes / access.requests for access in profile.accesses} == {128}


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_a_transposed_copy_takes_whole_sectors(dtype: str) -> None:
    x = to_device(np.zeros((128, 256), DTYPES[dtype].numpy))
    y = empty((128, 256), x.dtype, (1, 128))
    profile = profile_of_copy(x, y)
    assert profile.bytes_over_least(2 * x.size * x.dtype.itemsize) <= 1.01


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize("shape", [(3, 4096), (4096, 3), (7, 2048)])
def test_a_tile_of_few_columns_is_moved_in_whole_sectors(shape: tuple[int, int]) -> None:
    """As an image becomes channels-last, or is read so."""
    x = to_device(np.zeros(shape, np.float32))
    profile = profile_of_copy(x, empty(shape, np.float32, (1, shape[0])))
    assert profile.bytes_over_least(2 * x.size * 4) <= 1.05


@pytest.mark.usefixtures("profiling")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_a_tile_has_no_bank_conflicts(dtype: str) -> None:
    x = to_device(np.zeros((64, 64), DTYPES[dtype].numpy))
    profile = profile_of_copy(x, empty((64, 64), x.dtype, (1, 64)))
    shared = [access for access in profile.accesses if access.space == "shared"]
    assert shared
    least = 2 if dtype == "float64" else 1  # wavefronts of a warp's 32 words
    assert all(access.units_per_request <= least for access in shared)


@pytest.mark.usefixtures("profiling")
def test_channels_last_moves_whole_sectors() -> None:
    x = to_device(np.zeros((2, 64, 8, 16), np.float16))
    y = empty(x.shape, x.dtype, (64 * 128, 1, 16 * 64, 64))
    profile = profile_of_copy(x, y)
    assert profile.bytes_over_least(2 * x.size * 2) <= 1.01
