"""Quantization of the GPU library: every code and tie of every type, scales at their edges, tiles, layouts."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.emulator.compiler.acquire import without_device
from dnncanon.gpu.kernels.elementwise import Call, dense
from dnncanon.gpu.kernels.lines import Signature
from dnncanon.gpu.kernels.quantize import Format, quantized
from dnncanon.gpu.runtime import as_strided, device, empty, to_device, to_host
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import DTYPES
from dnncanon.spec.quantize_problem import (
    BLOCK_CODES,
    BLOCK_SCALES,
    FLOAT8,
    FORMATS,
    WITH_ZERO_POINT,
)

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf
FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
LARGEST = {name: DTYPES[name].max for name in BLOCK_CODES}


def kind(name: str) -> Any:
    return DTYPES[name].numpy


def random(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def wide(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)


def codes(name: str) -> Array:
    return np.arange(16 if name == "float4_e2m1fn" else 256, dtype=np.uint8).view(kind(name))


def numbers(name: str) -> Array:
    """The finite numbers of a type, ascending."""
    every = wide(codes(name))
    return np.unique(every[np.isfinite(every)])


def around_ties(name: str) -> tuple[Array, Array]:
    """Numbers in the middle of two of a type, and their neighbours in float32; and what they round to."""
    every = numbers(name)
    low, high = every[:-1], every[1:]
    middle = ((low + high) / 2).astype(np.float32)
    even = np.where(low.astype(kind(name)).view(np.uint8) % 2 == 0, low, high)
    below, above = (np.nextafter(middle, np.float32(to)) for to in (-INF, INF))
    return np.concatenate([middle, below, above]), np.concatenate([even, low, high])


# --- Linear ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
@pytest.mark.parametrize("dtype", FLOATS)
def test_integers(code: str, dtype: Any) -> None:
    x = np.concatenate([np.arange(-6, 6, 0.5), [NAN, INF, -INF, 300, -300]]).astype(dtype)
    zero = np.array([3], code)
    least, most = DTYPES[code].min, DTYPES[code].max
    y = gpu.quantize_linear(x, f32(1), zero, dtype=code)
    expected = np.clip(np.rint(wide(x)) + 3, least, most)
    assert y.dtype == code
    np.testing.assert_array_equal(y, np.nan_to_num(expected, nan=0))
    plain = gpu.quantize_linear(x, f32(2), dtype=code)
    np.testing.assert_array_equal(
        plain, np.nan_to_num(np.clip(np.rint(wide(x) / 2), least, most), nan=0)
    )


@pytest.mark.parametrize("code", FLOAT8)
def test_every_tie_of_8_bit_floats(code: str) -> None:
    x, expected = around_ties(code)
    np.testing.assert_array_equal(wide(gpu.quantize_linear(x, f32(1), dtype=code)), expected)
    y = gpu.quantize_linear(f32(INF, -1e30, NAN, 0), f32(1), dtype=code)
    np.testing.assert_array_equal(wide(y), [LARGEST[code], -LARGEST[code], NAN, 0])


@pytest.mark.parametrize("code", [*WITH_ZERO_POINT, *FLOAT8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_code_on_the_way_back(code: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        expected = (wide(codes(code)) / 8).astype(kind(dtype))
    y = gpu.dequantize_linear(codes(code), f32(0.125), dtype=dtype)
    np.testing.assert_array_equal(wide(y), wide(expected))


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_and_zero_points_of_an_axis(code: str, axis: int) -> None:
    x = 30 * random(3, 4, 5)
    shape = [n if dim == axis % 3 else 1 for dim, n in enumerate(x.shape)]
    scale = np.exp2(np.arange(x.shape[axis]) - 2).astype(np.float32)
    zero = (np.arange(x.shape[axis]) * 20).astype(code)
    ends = DTYPES[code].min, DTYPES[code].max
    expected = np.clip(np.rint(x / scale.reshape(shape)) + wide(zero).reshape(shape), *ends)
    for given in (x, np.asfortranarray(x), x[::-1][::-1]):
        y = gpu.quantize_linear(given, scale, zero, dtype=code, axis=axis)
        np.testing.assert_array_equal(y, expected)
    back = gpu.dequantize_linear(y, scale, zero, axis=axis)
    steps = wide(y) - wide(zero).reshape(shape)
    np.testing.assert_array_equal(back, steps * scale.reshape(shape))


@pytest.mark.parametrize("scale", [f32(0.25), np.array(0.25, np.float32)], ids=["(1,)", "()"])
def test_one_scale_with_and_without_a_dim(scale: Array) -> None:
    x = 20 * random(3, 71)  # chunks, and a rest
    y = gpu.quantize_linear(x, scale, dtype="int8")
    np.testing.assert_array_equal(y, np.clip(np.rint(x * 4), -128, 127))
    np.testing.assert_array_equal(gpu.dequantize_linear(y, scale), y * np.float32(0.25))


# --- Blocks ---------------------------------------------------------------------------------------


def in_blocks(x: Any, code: str, scales: str, size: int, **attributes: Any) -> Any:
    return gpu.block_scale_quantize(
        x, dtype=code, scale_dtype=scales, block_size=size, **attributes
    )


@pytest.mark.parametrize("code", BLOCK_CODES)
def test_every_tie_of_every_type(code: str) -> None:
    x, expected = around_ties(code)
    most = LARGEST[code]
    block = np.append(x, np.float32(most))
    y, scale = in_blocks(block, code, "float8_e8m0fnu", len(block))
    assert wide(scale).tolist() == [1]
    np.testing.assert_array_equal(wide(y), np.append(expected, most))


@pytest.mark.parametrize("code", BLOCK_CODES)
@pytest.mark.parametrize("scales", BLOCK_SCALES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scales_at_their_edges(code: str, scales: str, dtype: Any) -> None:
    every, most = numbers(scales), LARGEST[code]
    every = every[every >= 0]
    # What float32 holds exactly, as it holds the products of the definition.
    edges = most * every
    held = (edges == 0) | ((edges > 2.0**-126) & (edges < np.finfo(dtype).max))
    edges = edges[held].astype(dtype)
    near = np.concatenate([edges, *(np.nextafter(edges, dtype(to)) for to in (0, INF))])
    y, scale = in_blocks(near, code, scales, 1)
    place = np.searchsorted(most * every, wide(near))
    np.testing.assert_array_equal(wide(scale), every[np.minimum(place, len(every) - 1)])
    assert (np.abs(wide(y)) <= most).all()


@pytest.mark.parametrize(("code", "scales", "size"), FORMATS)
def test_zeros_infinities_and_nan(code: str, scales: str, size: int) -> None:
    x = np.zeros((4, size), np.float32)
    x[1, 3], x[2, 0], x[3, :2] = NAN, -INF, (1, -1)
    y, scale = in_blocks(x, code, scales, size)
    least = 2.0**-127 if "e8m0" in scales else 0.0
    expected = [least, NAN, DTYPES[scales].max]
    np.testing.assert_array_equal(wide(scale)[:3, 0], expected)
    nan = 0.0 if code == "float4_e2m1fn" else NAN
    np.testing.assert_array_equal(wide(y)[:2], [[0.0] * size, [nan] * size])
    assert wide(y)[2].tolist() == [-LARGEST[code], *[0.0] * (size - 1)]
    assert wide(y)[3, 0] == -wide(y)[3, 1] > LARGEST[code] / 2


@pytest.mark.parametrize(("code", "scales", "size"), FORMATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_there_and_back(code: str, scales: str, size: int, dtype: Any) -> None:
    x = random(3, 4 * size, dtype=dtype)
    y, scale = in_blocks(x, code, scales, size)
    spread = np.repeat(wide(scale), size, axis=1)
    quotient = (wide(x) / spread)[..., None]
    every = numbers(code)
    np.testing.assert_array_equal(
        np.abs(quotient[..., 0] - wide(y)), np.abs(quotient - every).min(axis=-1)
    )
    back = gpu.block_scale_dequantize(y, scale, block_size=size)
    np.testing.assert_array_equal(wide(back), wide(y) * spread)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("code", ["float8_e4m3fn", "float4_e2m1fn"])
def test_blocks_of_any_axis_in_any_layout(axis: int, code: str) -> None:
    x = random(32, 64, 32)
    expected = in_blocks(x, code, "float8_e8m0fnu", 32)
    turned = np.moveaxis(x, -1, axis)
    for given in (turned, np.ascontiguousarray(turned)):
        y, scale = in_blocks(given, code, "float8_e8m0fnu", 32, axis=axis)
        assert np.array_equal(np.moveaxis(wide(y), axis, -1), wide(expected.y))
        assert np.array_equal(np.moveaxis(wide(scale), axis, -1), wide(expected.scale))
    back = gpu.block_scale_dequantize(y, scale, block_size=32, axis=axis)
    whole = gpu.block_scale_dequantize(expected.y, expected.scale, block_size=32)
    assert np.array_equal(np.moveaxis(back, axis, -1), whole)


@pytest.mark.parametrize("size", [9000, 3000])
@pytest.mark.parametrize("layout", ["plain", "128x4"])
def test_long_blocks(size: int, layout: str) -> None:
    """Which are divided among teams of threads, with their parts in the workspace."""
    x = random(1, 9000)
    x[0, -1] = 8
    given = {"dtype": FLOAT8[0], "scale_dtype": BLOCK_SCALES[0], "scale_layout": layout}
    y, scale = gpu.block_scale_quantize(x, block_size=size, **given)
    (row,) = gpu.algorithms("block_scale_quantize", x, block_size=size, **given)
    assert row.workspace_bytes >= (512 if layout == "128x4" else 0)
    if layout == "plain":
        assert wide(scale)[0, -1] == 2.0**-5
    back = gpu.block_scale_dequantize(y, scale, block_size=size, scale_layout=layout)
    np.testing.assert_allclose(back, x, rtol=1 / 16, atol=2.0**-15)


# --- Tiles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (33, 5), (129, 4)])
@pytest.mark.parametrize("axis", [-1, -2])
def test_where_each_scale_lies(rows: int, blocks: int, axis: int) -> None:
    x = np.exp2(np.arange(2 * rows * blocks) % 200 - 100.0).reshape(2, rows, blocks)
    given = x if axis == -1 else x.swapaxes(1, 2)
    format_ = (FLOAT8[1], "float8_e8m0fnu", 1)
    plain = in_blocks(x, *format_).scale.view(np.uint8)
    y, tiles = in_blocks(given, *format_, axis=axis, scale_layout="128x4")
    down, across = -(-rows // 128), -(-blocks // 4)
    assert tiles.shape == (2, down, across, 32, 4, 4)
    flat = np.ascontiguousarray(tiles).view(np.uint8).ravel()
    batch, r, c = np.indices((2, rows, blocks))
    tile = (batch * down + r // 128) * across + c // 4
    place = 512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    np.testing.assert_array_equal(flat[place], plain)
    assert not np.delete(flat, place.ravel()).any()
    back = gpu.block_scale_dequantize(y, tiles, block_size=1, axis=axis, scale_layout="128x4")
    np.testing.assert_array_equal(back, given)


def test_tiles_with_gaps() -> None:
    x = random(40, 96)
    given: dict[str, Any] = {"scale_layout": "128x4"}
    expected = in_blocks(x, *FORMATS[0], **given)
    shape = expected.scale.shape
    y = empty(x.shape, kind(FLOAT8[0]))
    memory = empty((4096,), kind(BLOCK_SCALES[0]))
    scale = as_strided(memory, shape, (3000, 3000, 3, 120, 600), 5)
    in_blocks(x, *FORMATS[0], **given, out=(y, scale))
    assert np.array_equal(wide(to_host(scale)), wide(expected.scale))
    back = gpu.block_scale_dequantize(y, scale, block_size=32, **given)
    whole = gpu.block_scale_dequantize(expected.y, expected.scale, block_size=32, **given)
    assert np.array_equal(to_host(back), whole)


# --- How ------------------------------------------------------------------------------------------


def test_under_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    if not device().is_host:
        pytest.skip("a GPU does not check")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = random(9, 64)
    y = gpu.quantize_linear(x, f32(0.1), dtype="int8")
    gpu.dequantize_linear(y, f32(*[0.1] * 9), axis=0)
    codes, scale = in_blocks(x, *FORMATS[0], scale_layout="128x4")
    gpu.block_scale_dequantize(codes, scale, block_size=32, scale_layout="128x4")
    in_blocks(x[::2].T, *FORMATS[2], axis=0)


def test_with_one_scale_each_byte_is_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    x, scale = to_device(random(4, 8192)), to_device(f32(0.1))
    with emulated.recording() as launches:
        gpu.quantize_linear(x, scale, dtype="int8")
    (report,) = launches
    profile: Any = report.profile
    # Each thread takes four elements here; of its warp the scale is one sector beside 20.
    assert profile.bytes_over_least(5 * x.size) <= 1.05


# --- Compiled for sm_90 ---------------------------------------------------------------------------


def test_quotients_are_float32_and_rounded_correctly() -> None:
    """Not approximated, nothing flushed to zero, by chunks of 16 bytes, in registers."""
    from numba import cuda
    from numba.cuda import types

    scalars = Format.of("int8")
    signature = Signature(
        ("float32", "float32"), ("uint8",), tuple(isinstance(s, float) for s in scalars)
    )
    kernel = dense(Call(quantized, signature, index=False), 4, (1,)).function
    arrays = [types.Array(word, 1, "C") for word in (types.float32, types.float32, types.uint8)]
    given = [types.float64 if isinstance(s, float) else types.int64 for s in scalars]
    arguments = (types.Tuple(arrays[:2]), types.Tuple(arrays[2:]), types.Tuple(given), types.int64)
    with without_device():
        ptx, _ = cuda.compile(kernel, arguments, cc=(9, 0), device=False, abi="numba")
    assert "div.rn.f32" in ptx
    assert not re.search(r"div\.(approx|full|rn\.f64)|rcp\.|\.ftz|\.local", ptx)
    assert ptx.count("ld.global.v4.b32") == 1
