"""Dropout and random numbers of the GPU library: the published words, all dtypes and layouts, ends."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.emulator.compiler.acquire import without_device
from dnncanon.gpu.kernels.dropout import bernoulli, kept, normal
from dnncanon.gpu.kernels.elementwise import Call, Shared, dense
from dnncanon.gpu.kernels.lines import Signature
from dnncanon.gpu.kernels.philox import BLOCKS
from dnncanon.gpu.primitive import _first
from dnncanon.gpu.runtime import as_strided, device, empty, to_device, to_host

Array = np.ndarray[Any, Any]
LARGEST = 2**64 - 1
FLOATS = ("float64", "float32", "float16", "bfloat16")

# Random123, tests/kat_vectors: philox4x32 10 with counter and key zero, all ones, and the digits of π.
ZEROS = ((0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))
ONES = ((LARGEST, LARGEST, LARGEST), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD))
PI = (
    (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88),
    (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
)


def stream(seed: int, subsequence: int, offset: int) -> dict[str, int]:
    return {"seed": seed, "subsequence": subsequence, "offset": offset}


def kind(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


@pytest.mark.parametrize(("numbers", "block"), [ZEROS, ONES, PI], ids=["zeros", "ones", "pi"])
def test_known_answers(numbers: tuple[int, int, int], block: tuple[int, ...]) -> None:
    """float64 shows 53 of the 64 bits of two words, float32 the upper 24 of each one."""
    wide = gpu.rng_uniform(shape=(2,), dtype="float64", **stream(*numbers))
    pairs = ((block[0] << 32 | block[1]), (block[2] << 32 | block[3]))
    assert (wide * 2.0**53).tolist() == [pair >> 11 for pair in pairs]
    narrow = gpu.rng_uniform(shape=(4,), **stream(*numbers))
    assert (narrow.astype(np.float64) * 2.0**24).tolist() == [word >> 8 for word in block]


@pytest.mark.parametrize("numbers", [PI[0], (3, 2**63, LARGEST - 1), (LARGEST, 0, 2**32 - 2)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_element_has_its_own_word_in_every_layout(
    dtype: str, numbers: tuple[int, int, int]
) -> None:
    """The dense kernel, whose chunks and rest share blocks, and the strided one, which shares none."""
    shape = (3, 7, 5)
    one = gpu.rng_uniform(shape=shape, dtype=dtype, **stream(*numbers))
    turned = as_strided(empty((105,), kind(dtype)), shape, (1, 3, 21), 0)
    gpu.rng_uniform(shape=shape, dtype=dtype, out=turned, **stream(*numbers))
    assert np.array_equal(to_host(turned), one)
    assert len(np.unique(one)) > (50 if dtype == "bfloat16" else 90)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("return_mask", [False, True])
def test_dropout_by_the_mask_of_its_stream(dtype: str, return_mask: bool) -> None:
    x = np.linspace(1, 2, 3 * 41).astype(kind(dtype)).reshape(3, 41)
    numbers = stream(9, 1, LARGEST)
    dropped = gpu.rng_bernoulli(shape=x.shape, probability=0.5, **numbers)
    result = gpu.dropout_forward(x, probability=0.5, return_mask=return_mask, **numbers)
    y = result.y if return_mask else result
    assert np.array_equal(y, np.where(dropped, np.zeros_like(x), 2 * x))
    assert np.array_equal(gpu.dropout_backward(x, probability=0.5, **numbers), y)
    if return_mask:
        assert np.array_equal(result.mask, ~dropped)


def test_words_are_compared_with_the_threshold() -> None:
    """Kept are words that are equal to it as well."""
    word = ZEROS[1][0]
    for p, ones in ((word / 2**32, 0), ((word + 0.5) / 2**32, 1)):
        assert gpu.rng_bernoulli(shape=(1,), dtype="int32", probability=p, seed=0)[0] == ones
        assert bool(gpu.dropout_forward(np.ones(1), probability=p, seed=0)[0]) == (not ones)


def test_ends_of_the_probability() -> None:
    x = np.array([1.5, -0.0, np.nan, -np.inf, 5e-324])
    assert gpu.dropout_forward(x, probability=0.0, seed=1).tobytes() == x.tobytes()
    assert gpu.dropout_forward(x, probability=1.0, seed=1).tobytes() == bytes(40)
    assert gpu.rng_bernoulli(shape=(50,), probability=1.0, seed=1).all()


def test_normal_numbers_of_one_angle_and_radius() -> None:
    """cos² + sin² = 1: the squares of a pair add up to −2·ln of a multiple of 2^-24, or 2^-53."""
    for dtype, step in (("float32", 2.0**-24), ("float64", 2.0**-53)):
        y = gpu.rng_normal(shape=(40,), dtype=dtype, seed=1).astype(np.float64)
        u = gpu.rng_uniform(shape=(40,), dtype=dtype, seed=1).astype(np.float64)
        squares = np.square(y.reshape(-1, 2)).sum(axis=1)
        assert np.allclose(squares, -2 * np.log(u[::2] + step), rtol=2e-5)
        angle = np.mod(np.arctan2(y[1::2], y[::2]) / (2 * np.pi), 1)
        assert np.allclose(angle, u[1::2], atol=1e-6)


def test_results_are_numpy_arrays_unless_out_says_otherwise() -> None:
    assert isinstance(gpu.rng_normal(shape=(2,), seed=1), np.ndarray)
    out = to_device(np.zeros(2, np.float32))
    assert gpu.rng_normal(shape=(2,), seed=1, out=out) is out


def test_the_array_that_decides_on_the_stream() -> None:
    one, other = object(), object()
    assert _first((None, one), other) is one
    assert _first((), other) is other
    assert _first((), (None, other)) is other
    assert _first((), None) is None


def test_algorithms_of_a_call_without_tensors() -> None:
    (row,) = gpu.algorithms("rng_normal", shape=(2,), seed=1, dtype="float16")
    assert (row.name, row.workspace_bytes, row.numerics) == ("elementwise", 0, "ieee")


def test_under_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    if not device().is_host:
        pytest.skip("a GPU does not check")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = np.ones(2100, np.float16)
    gpu.dropout_forward(x, probability=0.5, seed=1, return_mask=True)
    gpu.dropout_backward(x[::2], probability=0.5, seed=1)
    gpu.rng_bernoulli(shape=(2100,), probability=0.5, seed=1)


# --- Compiled for sm_90 ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "operands", "floats", "blocks"),
    [
        (kept("float32"), (("float32",), ("float32",)), (True, False), 2),
        (kept("float16"), (("float16",), ("float16",)), (True, False), 3),
        (bernoulli, ((), ("bool",)), (False,), 3),
        (normal("float32"), ((), ("float32",)), (True, True), 2),
    ],
    ids=["dropout float32", "dropout float16", "bernoulli bool", "normal"],
)
def test_four_elements_share_a_block(
    function: Any, operands: Any, floats: tuple[bool, ...], blocks: int
) -> None:
    """20 multiplications make a block: of the first four of a chunk, of its next fours, of the rest."""
    from numba import cuda
    from numba.cuda import types

    from dnncanon.gpu.runtime.memory import storage_of
    from dnncanon.spec import DTYPES

    inputs, outputs = operands
    given = (*floats, False, False, False)
    shared = Shared(2, BLOCKS[len(floats)])
    call = Call(function, Signature(inputs, outputs, given), True, shared)

    def arrays(names: tuple[str, ...]) -> Any:
        words = [getattr(types, storage_of(DTYPES[name].numpy).name) for name in names]
        return types.Tuple([types.Array(word, 1, "C") for word in words])

    count = 16 // DTYPES[outputs[0]].itemsize
    scalars = types.Tuple([types.float64 if f else types.int64 for f in given])
    signature = (arrays(inputs), arrays(outputs), scalars, types.int64)
    kernel = dense(call, count).function
    with without_device():
        ptx, _ = cuda.compile(kernel, signature, cc=(9, 0), device=False, abi="numba")
    assert len(re.findall(r"^\s*mul\.wide\.u32", str(ptx), re.MULTILINE)) == 20 * blocks
