"""Matrix products against integer arithmetic, bit for bit: every tile, layout, tail and epilogue."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels.tile import matrices
from dnncanon.gpu.runtime import to_device
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]
HALF = np.float16
TYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def integers(*shape: int, dtype: Any = HALF, seed: int = 0, columns: bool = False) -> Array:
    """Small integers; ``columns`` lays each matrix out by columns."""
    drawn = np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)
    return np.swapaxes(np.swapaxes(drawn, -1, -2).copy(), -1, -2) if columns else drawn


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def same(y: Any, expected: Array) -> None:
    np.testing.assert_array_equal(wide(np.asarray(y)), expected)


def check(a: Array, b: Array, **options: Any) -> None:
    """The product is exact: its elements are small integers."""
    same(gpu.matmul_forward(a, b, **options), wide(a) @ wide(b))


# --- Tiles and layouts ----------------------------------------------------------------------------

SIZES = {
    "flat": (11, 200, 72),
    "tall": (150, 13, 72),
    "small": (72, 88, 40),
    "tails": (65, 67, 33),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("columns", list(product((False, True), repeat=2)), ids=str)
def test_tensor_core_tiles_and_transpositions(
    sizes: tuple[int, int, int], columns: tuple[bool, bool]
) -> None:
    m, n, k = sizes
    check(integers(m, k, columns=columns[0]), integers(k, n, seed=1, columns=columns[1]))


@pytest.mark.parametrize("columns", list(product((False, True), repeat=2)), ids=str)
def test_cuda_core_transpositions(columns: tuple[bool, bool]) -> None:
    a = integers(72, 40, dtype=np.float32, columns=columns[0])
    check(a, integers(40, 68, dtype=np.float32, seed=1, columns=columns[1]))


def test_divided_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream-K: four tiles of 16 slices for three blocks; they share the last one, 6 slices for each."""
    monkeypatch.setattr(matrices, "BLOCKS", 3)
    a, b, bias = integers(136, 512), integers(512, 144, seed=1), integers(144, seed=2)
    listed = {row.name: row for row in gpu.algorithms("matmul_forward", a, b, None, bias)}
    assert listed["tensor_core"].workspace_bytes == 3 * 128 * 128 * 4
    y = gpu.matmul_forward(a, b, None, bias, algorithm="tensor_core")
    same(y, wide(a) @ wide(b) + wide(bias))


@pytest.mark.parametrize("word", ["float16", "float32"])
def test_large_tiles(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = matrices.LARGE if word == "float16" else matrices.LARGE_CUDA
    monkeypatch.setattr(matrices, "tile_for", lambda m, tensor_core: tile)
    check(integers(136, 56, dtype=word), integers(56, 200, dtype=word, seed=1))


@pytest.mark.parametrize("word", ["tf32", "tf32x3"])
def test_large_tiles_of_32_bit_words(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for whole GPUs; of fewer blocks they are a problem of some rows."""
    monkeypatch.setattr(matrices, "BLOCKS", 4)
    check(
        integers(136, 56, dtype="float32"),
        integers(56, 200, dtype="float32", seed=1),
        algorithm=f"tensor_core_{word}",
    )


PAIRS = [
    *(("float64", "float64"), ("bfloat16", "bfloat16"), ("int8", "int8")),
    *(("float16", "int8"), ("int8", "bfloat16"), ("e4m3", "e5m2")),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_operand_types(pair: tuple[str, str]) -> None:
    a = integers(40, 96, dtype=TYPES[pair[0]])
    check(a, integers(96, 48, dtype=TYPES[pair[1]], seed=1, columns=True))


def test_int8_on_cuda_cores_is_the_same() -> None:
    a, b = integers(24, 40, dtype=np.int8), integers(40, 24, dtype=np.int8, seed=1)
    check(a, b, algorithm="cuda_core")


# --- Batches, strides, edges ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"), [((3,), (1,)), ((1, 2), (3, 2)), ((2, 1, 3), (2, 2, 1))], ids=str
)
def test_batches_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(integers(*left, 9, 24), integers(*right, 24, 10, seed=1))


def shifted(array: Array) -> Array:
    """The same, one element behind a multiple of 16 bytes."""
    memory = np.zeros(array.size + 16, array.dtype)
    first = -memory.ctypes.data // array.itemsize % 8 + 1
    memory[first : first + array.size] = array.ravel()
    return memory[first : first + array.size].reshape(array.shape)


def spread(array: Array) -> Array:
    memory = np.full((array.shape[0], 2 * array.shape[1] + 1), 9, array.dtype)
    memory[:, ::2][:, : array.shape[1]] = array
    return memory[:, ::2][:, : array.shape[1]]


def gapped(array: Array) -> Array:
    """The same, rows three elements further apart."""
    memory = np.full((array.shape[0], array.shape[1] + 3), 9, array.dtype)
    memory[:, : array.shape[1]] = array
    return memory[:, : array.shape[1]]


@pytest.mark.parametrize(
    "change", [shifted, spread, gapped, np.flip], ids=lambda change: change.__name__
)
def test_operands_anywhere_in_memory(change: Callable[[Array], Array]) -> None:
    check(change(integers(24, 64)), change(integers(64, 24, seed=1)))


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 2), (3, 5, 0)], ids=str)
def test_nothing(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    check(integers(m, k), integers(k, n))


def test_no_terms_leave_the_epilogue() -> None:
    c, bias = integers(3, 5, seed=2), integers(5, seed=3)
    y = gpu.matmul_forward(integers(3, 0), integers(0, 5), c, bias, beta=2.0)
    same(y, 2 * wide(c) + wide(bias))


@pytest.mark.parametrize("order", ["columns", "gaps"])
def test_out_anywhere_in_memory(order: str) -> None:
    a, b = integers(20, 64), integers(64, 24, seed=1)
    memory = np.full((24, 20) if order == "columns" else (40, 52), 77, HALF)
    out = memory.T if order == "columns" else memory[::2, 1:49:2]
    c, bias = integers(20, 24, seed=2), integers(24, seed=3)
    gpu.matmul_forward(a, b, c, bias, out=out)
    same(out, wide(a) @ wide(b) + wide(c) + wide(bias))
    assert (memory == 77).sum() == memory.size - out.size + (out == 77).sum()


# --- Split depth ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_split_depth_takes_its_workspace(dtype: str) -> None:
    a, b = integers(2, 5, 2104, dtype=dtype), integers(1, 2104, 9, dtype=dtype, seed=1)
    c = integers(1, 5, 1, dtype="int32" if dtype == "int8" else dtype, seed=2)
    listed = gpu.algorithms("matmul_forward", a, b, c)[0]
    depth = {"float16": 64, "float32": 16, "int8": 128}[dtype]
    splits = -(-2104 // depth) // 8
    assert splits > 1
    assert listed.workspace_bytes == splits * 2 * 5 * 9 * 4
    same(gpu.matmul_forward(a, b, c), wide(a) @ wide(b) + wide(c))


# --- Epilogue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("c_shape", [(18, 24), (1, 24), (18, 1), (1, 1)], ids=str)
def test_scaled_added_and_activated(c_shape: tuple[int, int]) -> None:
    a, b = integers(18, 40), integers(40, 24, seed=1)
    c, bias = integers(*c_shape, seed=2), integers(24, seed=3)
    y = gpu.matmul_forward(a, b, c, bias, alpha=-0.5, beta=2.0, activation="relu")
    same(y, np.maximum(-0.5 * (wide(a) @ wide(b)) + 2.0 * wide(c) + wide(bias), 0))


def test_beta_of_zero_does_not_read_c() -> None:
    a, b, c = integers(5, 8), integers(8, 6, seed=1), np.full((5, 6), np.nan, HALF)
    same(gpu.matmul_forward(a, b, c, beta=0.0), wide(a) @ wide(b))


def test_integers_wrap() -> None:
    a, b = np.full((2, 8), 127, np.int8), np.full((8, 3), 127, np.int8)
    c = np.full((2, 3), 2**31 - 1, np.int32)
    same(gpu.matmul_forward(a, b, c), np.full((2, 3), 8 * 127 * 127 - 2**31 - 1))


def test_sums_are_rounded_once() -> None:
    a, b = np.array([[2048, 1, 1]], HALF), np.ones((3, 1), HALF)
    assert float(np.asarray(gpu.matmul_forward(a, b))[0, 0]) == 2050


# --- Machinery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
def test_nothing_is_raced_for_or_read_uninitialised(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    a, b = integers(20, 144, dtype=dtype), integers(144, 24, dtype=dtype, seed=1, columns=True)
    same(gpu.matmul_forward(to_device(a), to_device(b)).to_host(), wide(a) @ wide(b))


def test_algorithms_and_refusals() -> None:
    a, b = integers(5, 8), integers(8, 6)
    names = [row.name for row in gpu.algorithms("matmul_forward", a, b)]
    assert names[0] == "tensor_core"
    assert "cuda_core" in names
    single = a.astype(np.float32), b.astype(np.float32)
    with pytest.raises(Unsupported, match="does not multiply float32 by float32"):
        gpu.matmul_forward(*single, algorithm="tensor_core")


# --- A product for each group of rows -------------------------------------------------------------

OFFSETS = np.array([0, 5, 5, 70, 90], np.int32)
"""Of four groups, one of them empty; the rows from 90 on are in none."""


def grouped(token: Array, weight: Array, offsets: Array) -> Array:
    """The rows of each group by its expert's weights, in the order of the experts."""
    y = np.zeros((len(token), weight.shape[2]))
    for g, (first, last) in enumerate(pairwise(offsets)):
        y[first:last] = wide(token[first:last]) @ wide(weight[g % len(weight)])
    return y


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("experts", [2, 4])
def test_grouped_rows(dtype: str, experts: int) -> None:
    token, weight = integers(96, 40, dtype=dtype), integers(experts, 40, 24, dtype=dtype, seed=1)
    same(gpu.grouped_matmul_forward(token, weight, OFFSETS), grouped(token, weight, OFFSETS))


@pytest.mark.parametrize("terms", [16, 17])
def test_rows_are_gathered(terms: int) -> None:
    """A row whose index is no token is NaN."""
    token, weight = integers(80, terms), integers(2, terms, 24, seed=1)
    index = np.random.default_rng(2).integers(0, 80, 33).astype(np.int32)
    offsets = np.array([0, 9, 30], np.int32)
    expected = grouped(token[index], weight, offsets)
    expected[4] = np.nan
    index[4] = -3
    y = gpu.grouped_matmul_forward(token, weight, offsets, index, mode="gather")
    same(y, expected)


def test_rows_are_scattered() -> None:
    token, weight = integers(12, 10), integers(2, 10, 7, seed=1)
    slots = np.random.default_rng(3).permutation(12)
    index, ks = (part.astype(np.int32) for part in np.divmod(slots, 2))
    offsets = np.array([0, 4, 12], np.int32)
    expected = np.zeros((12, 7))
    expected[slots] = grouped(token, weight, offsets)
    y = gpu.grouped_matmul_forward(token, weight, offsets, index, ks, mode="scatter", top_k=2)
    same(y, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_of_grouped_weights(dtype: str) -> None:
    dy, token = integers(96, 24, dtype=dtype), integers(96, 40, dtype=dtype, seed=1)
    expected = np.zeros((2, 40, 24))
    for g, (first, last) in enumerate(pairwise(OFFSETS)):
        expected[g % 2] += wide(token[first:last]).T @ wide(dy[first:last])
    same(gpu.grouped_matmul_backward_weights(dy, token, OFFSETS, experts=2), expected)


def test_grouped_products_are_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    token, weight = integers(96, 24), integers(2, 24, 8, seed=1)
    y = gpu.grouped_matmul_forward(*(to_device(array) for array in (token, weight, OFFSETS)))
    same(y.to_host(), grouped(token, weight, OFFSETS))
