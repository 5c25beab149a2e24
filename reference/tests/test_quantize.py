"""Quantization: ONNX's examples, every tie of every type, torch, the rule of block scales, tiles, edges."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon.reference.quantize import nearest
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.quantize_problem import (
    BLOCK_CODES,
    CODES,
    FLOAT8,
    FORMATS,
    WIDE,
    WITH_ZERO_POINT,
)

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
each_code = pytest.mark.parametrize("code", BLOCK_CODES)
each_format = pytest.mark.parametrize(("code", "scales", "size"), FORMATS)


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def wide(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)


def quantized(x: Array, scale: Array, code: str, *zero_point: Array, **attributes: Any) -> Array:
    result: Array = ref.quantize_linear(x, scale, *zero_point, dtype=code, **attributes)
    assert result.dtype == DTYPES[code].numpy
    return result


def in_blocks(x: Array, code: str, scales: str, size: int, **attributes: Any) -> Any:
    result = ref.block_scale_quantize(
        x, dtype=code, scale_dtype=scales, block_size=size, **attributes
    )
    assert (result.y.dtype.name, result.scale.dtype.name) == (code, scales)
    return result


def from_blocks(y: Array, scale: Array, size: int, **attributes: Any) -> Array:
    result: Array = ref.block_scale_dequantize(y, scale, block_size=size, **attributes)
    return result


# --- Linear: values -------------------------------------------------------------------------------


def test_onnx_example_of_a_tensor() -> None:
    x, zero = f32(0, 2, 3, 1000, -254, -1000), np.array([128], np.uint8)
    assert quantized(x, f32(2), "uint8", zero).tolist() == [128, 129, 130, 255, 1, 0]


def test_onnx_example_of_an_axis() -> None:
    x = f32(-162, 10, -100, 232, -20, -50, -76, 0, 0, 252, 32, -44).reshape(1, 3, 2, 2)
    scale, zero = f32(2, 4, 5), np.array([84, 24, 196], np.uint8)
    y = quantized(x, scale, "uint8", zero, axis=1)
    assert y.ravel().tolist() == [3, 89, 34, 200, 19, 12, 5, 24, 196, 246, 202, 187]


@pytest.mark.parametrize(
    ("code", "expected"), [(FLOAT8[0], [0, 0.5, 1, 448, 96]), (FLOAT8[1], [0, 0.5, 1, 49152, 96])]
)
def test_onnx_examples_of_float8(code: str, expected: list[float]) -> None:
    x = f32(0, 1, 2, 100_000, 200)
    assert quantized(x, f32(2), code).astype(float).tolist() == expected


def test_onnx_examples_of_the_way_back() -> None:
    y = ref.dequantize_linear(
        np.array([0, 3, 128, 255], np.uint8), f32(2), np.array([128], np.uint8)
    )
    assert (y.dtype, y.tolist()) == (np.float32, [-256, -250, 0, 254])
    codes = np.array([0, 0.5, 1, 448, -104], ml_dtypes.float8_e4m3fn)
    assert ref.dequantize_linear(codes, f32(2)).tolist() == [0, 1, 2, 896, -208]


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
def test_ties_go_to_the_even_code_before_the_zero_point_is_added(code: str) -> None:
    x = f32(0.5, 1.5, 2.5, 3.5)
    assert quantized(x, f32(1), code).tolist() == [0, 2, 2, 4]
    assert quantized(x, f32(1), code, np.array([3], code)).tolist() == [3, 5, 5, 7]


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
def test_codes_saturate(code: str) -> None:
    least, most = int(DTYPES[code].min), int(DTYPES[code].max)
    x = f32(-1e30, -INF, 1e30, INF, most + 0.5, least - 0.75)
    assert quantized(x, f32(1), code).tolist() == [least, least, most, most, most, least]


@pytest.mark.parametrize("code", FLOAT8)
def test_float8_saturates_and_keeps_nan(code: str) -> None:
    most = DTYPES[code].max
    y = wide(quantized(f32(1e30, -1e30, INF, -INF, most * 1.06, NAN), f32(1), code))
    np.testing.assert_array_equal(y, [most, -most, most, -most, most, NAN])


def test_nan_and_a_scale_of_zero() -> None:
    x = f32(NAN, 1, -1, 0)
    with_nan = f32(1, NAN, INF, 0)
    assert quantized(x, with_nan, "int8", np.array([5] * 4, np.int8), axis=0).tolist() == [
        0,
        0,
        5,
        0,
    ]
    assert quantized(f32(1, -1, 0), f32(0), "int8").tolist() == [127, -128, 0]
    np.testing.assert_array_equal(wide(quantized(f32(1, 0), f32(0), FLOAT8[0])), [448, NAN])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_scale_of_an_axis_is_one_of_each_slice(code: str, axis: int) -> None:
    x = 10 * random(3, 4, 5)
    extent = x.shape[axis]
    given = [np.abs(random(extent))]
    if code in WITH_ZERO_POINT:
        given.append(np.arange(extent).astype(code))
    y = quantized(x, given[0], code, *given[1:], axis=axis)
    for index in range(extent):
        scale, *zero = (array[index : index + 1] for array in given)
        part = quantized(np.take(x, index, axis), scale, code, *zero)
        np.testing.assert_array_equal(wide(np.take(y, index, axis)), wide(part))


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
@pytest.mark.parametrize("dtype", WIDE)
def test_the_way_back_is_at_most_half_a_step_off(code: str, dtype: str) -> None:
    x, scale, zero = random(50, 3), f32(0.03, 0.05, 0.1), np.array([10, 100, 127], code)
    y = quantized(x, scale, code, zero, axis=1)
    back = ref.dequantize_linear(y, scale, zero, axis=-1, dtype=dtype)
    assert back.dtype == DTYPES[dtype].numpy
    inside = (y > DTYPES[code].min) & (y < DTYPES[code].max)
    assert inside.sum() > 50
    allowed = 0.5 * scale + np.abs(x) * DTYPES[dtype].unit_roundoff + 1e-6
    assert (np.abs(wide(back) - x) <= allowed)[inside].all()


@pytest.mark.parametrize(
    ("x", "scale", "zero_point", "attributes", "error"),
    [
        (f32(1), f32(1), None, {"dtype": "int4"}, AttributeValueError),
        (np.array([1], np.int8), f32(1), None, {"dtype": "int8"}, DTypeError),
        (f32(1), np.array([1], np.float16), None, {"dtype": "int8"}, DTypeError),
        (f32(1), f32(1), np.array([1], np.uint8), {"dtype": "int8"}, DTypeError),
        (f32(1), f32(1), np.array([1], np.int8), {"dtype": FLOAT8[0]}, DTypeError),
        (f32(1), f32(1), np.array([1, 2], np.int8), {"dtype": "int8"}, ShapeError),
        (f32(1), f32(1, 2), None, {"dtype": "int8"}, ShapeError),
        (f32(1, 2), f32(1), None, {"dtype": "int8", "axis": 0}, ShapeError),
        (f32(1), f32(1), None, {"dtype": "int8", "axis": 1}, AttributeValueError),
    ],
)
def test_what_is_refused(x: Any, scale: Any, zero_point: Any, attributes: Any, error: Any) -> None:
    with pytest.raises(error, match="quantize_linear C"):
        ref.quantize_linear(x, scale, zero_point, **attributes)


# --- Linear: others -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", WITH_ZERO_POINT)
def test_torch_agrees_about_there_and_back(code: str) -> None:
    torch = pytest.importorskip("torch")
    x, scale, zero = random(400, 3), f32(2.0**-5, 2.0**-6, 2.0**-4), np.array([3, 100, 0], code)
    ends = int(DTYPES[code].min), int(DTYPES[code].max)
    given = (torch.from_numpy(array) for array in (x, scale, zero.astype(np.int32)))
    theirs = torch.fake_quantize_per_channel_affine(*given, 1, *ends)
    y = quantized(x, scale, code, zero, axis=1)
    back = ref.dequantize_linear(y, scale, zero, axis=1)
    np.testing.assert_array_equal(back, theirs.numpy())
    assert len(np.unique(y)) > 100


@pytest.mark.parametrize("code", FLOAT8)
def test_torch_agrees_about_float8(code: str) -> None:
    torch = pytest.importorskip("torch")
    x, most = 50 * random(1000), DTYPES[code].max
    theirs = torch.from_numpy(x * 4).clamp(-most, most).to(getattr(torch, code))
    y = quantized(x, f32(0.25), code)
    np.testing.assert_array_equal(y.view(np.uint8), theirs.view(torch.uint8).numpy())


# --- Rounding to a type ---------------------------------------------------------------------------


def numbers(code: str) -> Array:
    """The finite numbers of a type, ascending."""
    codes = np.arange(16 if code == "float4_e2m1fn" else 256, dtype=np.uint8)
    every = codes.view(DTYPES[code].numpy).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


@each_code
def test_numbers_of_a_type_stay_what_they_are(code: str) -> None:
    every = numbers(code)
    np.testing.assert_array_equal(nearest(every, DTYPES[code], np.asarray), every)


@each_code
def test_every_tie_goes_to_the_even_code_and_its_neighbours_to_theirs(code: str) -> None:
    every = numbers(code)
    low, high = every[:-1], every[1:]
    middle = (low + high) / 2
    words = low.astype(DTYPES[code].numpy).view(np.uint8)
    even = np.where(words % 2 == 0, low, high)
    row = DTYPES[code]
    np.testing.assert_array_equal(nearest(middle, row, np.asarray), even)
    np.testing.assert_array_equal(nearest(np.nextafter(middle, INF), row, np.asarray), high)
    np.testing.assert_array_equal(nearest(np.nextafter(middle, -INF), row, np.asarray), low)


@each_code
def test_rounding_is_that_of_every_other_primitive_but_for_what_is_too_large(code: str) -> None:
    row = DTYPES[code]
    values = np.ldexp(random(1000).astype(np.float64), np.arange(1000) % 20 - 12)
    within = np.clip(values, -row.max, row.max)
    np.testing.assert_array_equal(nearest(values, row, np.asarray), wide(rounded(within, code)))
    assert nearest(np.array([INF, -1e300]), row, np.asarray).tolist() == [row.max, -row.max]


# --- Blocks: scales -------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_scale_is_the_least_with_which_no_number_is_too_large(
    code: str, scales: str, size: int, dtype: str
) -> None:
    blocks = np.ldexp(random(200, size), np.arange(200)[:, None] % 9 - 4).astype(
        DTYPES[dtype].numpy
    )
    scale = wide(in_blocks(blocks, code, scales, size).scale)[:, 0]
    every, most = numbers(scales), DTYPES[code].max
    below = every[np.searchsorted(every, scale) - 1]
    largest = np.abs(wide(blocks)).max(axis=1)
    assert (largest <= most * scale).all()
    assert (largest > most * below).all()


@each_format
def test_at_the_edge_of_two_scales(code: str, scales: str, size: int) -> None:
    most = DTYPES[code].max
    x = np.zeros((2, size), np.float32)
    x[:, 1] = -most, np.nextafter(np.float32(-most), np.float32(-INF))
    scale = wide(in_blocks(x, code, scales, size).scale).ravel()
    assert scale.tolist() == [1.0, 2.0 if "e8m0" in scales else 1.125]


def test_a_division_in_float32_finds_the_same_scale() -> None:
    """Rounded correctly, and then up to a power of two; around every edge."""
    for code in BLOCK_CODES:
        most = np.float32(DTYPES[code].max)
        edges = np.ldexp(most, np.arange(-60, 60)).astype(np.float32)
        near = np.concatenate([edges, *(np.nextafter(edges, np.float32(to)) for to in (0, INF))])
        mantissa, exponent = np.frexp(near / most)
        upwards = np.ldexp(1.0, exponent - (mantissa == 0.5))
        scale = in_blocks(near.reshape(-1, 1), code, "float8_e8m0fnu", 1).scale
        np.testing.assert_array_equal(wide(scale).ravel(), upwards)


@each_format
def test_a_block_of_zeros(code: str, scales: str, size: int) -> None:
    y, scale = in_blocks(np.zeros((1, size), np.float32), code, scales, size)
    assert not wide(y).any()
    assert float(scale[0, 0]) == (2.0**-127 if "e8m0" in scales else 0.0)
    assert not from_blocks(y, scale, size).any()


@each_format
def test_a_nan_makes_its_block_nan(code: str, scales: str, size: int) -> None:
    x = np.ones((2, size), np.float32)
    x[0, -1] = NAN
    y, scale = in_blocks(x, code, scales, size)
    assert np.isnan(wide(scale)).tolist() == [[True], [False]]
    assert np.isnan(wide(y[0])).all() or (code == "float4_e2m1fn" and not wide(y[0]).any())
    back = from_blocks(y, scale, size)
    assert np.isnan(back[0]).all()
    assert (back[1] == back[1, 0]).all()


@each_format
def test_what_no_scale_holds_saturates(code: str, scales: str, size: int) -> None:
    x = np.zeros((2, size))
    x[0, :2], x[1, 0] = (INF, -1.0), -1e300
    y, scale = in_blocks(x, code, scales, size)
    most = DTYPES[code].max
    assert (wide(scale) == DTYPES[scales].max).all()
    assert wide(y[:, 0]).tolist() == [most, -most]


def test_nvfp4_by_hand() -> None:
    x = np.zeros(16, np.float32)
    x[:6] = 7.0, -7.0, 0.3, 3.0, 1.5, 5.9
    y, scale = in_blocks(x, "float4_e2m1fn", "float8_e4m3fn", 16)
    assert scale.tolist() == [1.25]  # the least number of e4m3 not below 7/6
    assert y[:6].astype(float).tolist() == [6, -6, 0, 2, 1, 4]


# --- Blocks: codes --------------------------------------------------------------------------------


@each_format
def test_codes_are_what_is_nearest(code: str, scales: str, size: int) -> None:
    x = random(40, 3 * size)
    y, scale = in_blocks(x, code, scales, size)
    quotient = wide(x).reshape(40, 3, size) / wide(scale)[:, :, None]
    every = numbers(code)
    distance = np.abs(quotient[..., None] - every)
    found = np.abs(quotient - wide(y).reshape(quotient.shape))
    np.testing.assert_array_equal(found, distance.min(axis=-1))


@pytest.mark.parametrize(("code", "scales", "size"), [f for f in FORMATS if "e8m0" in f[1]])
def test_powers_of_two_change_scales_only(code: str, scales: str, size: int) -> None:
    x = random(4, 2 * size)
    y, scale = in_blocks(x, code, scales, size)
    other, larger = in_blocks(np.ldexp(x, 9), code, scales, size)
    assert np.array_equal(y.view(np.uint8), other.view(np.uint8))
    np.testing.assert_array_equal(wide(larger), wide(scale) * 512)
    again = from_blocks(y, scale, size)
    once_more = in_blocks(again, code, scales, size)
    np.testing.assert_array_equal(from_blocks(once_more.y, once_more.scale, size), again)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_blocks_of_any_axis(axis: int) -> None:
    x = random(64, 64, 64)
    y, scale = in_blocks(np.moveaxis(x, -1, axis), *FORMATS[0], axis=axis)
    last, expected = in_blocks(x, *FORMATS[0])
    np.testing.assert_array_equal(wide(np.moveaxis(y, axis, -1)), wide(last))
    np.testing.assert_array_equal(wide(np.moveaxis(scale, axis, -1)), wide(expected))
    back = from_blocks(y, scale, 32, axis=axis)
    np.testing.assert_array_equal(np.moveaxis(back, axis, -1), from_blocks(last, expected, 32))


@pytest.mark.parametrize("dtype", WIDE)
def test_the_way_back_is_a_product(dtype: str) -> None:
    x, scale = numbers(FLOAT8[0]), np.array([2.0**-3, NAN], ml_dtypes.float8_e8m0fnu)
    codes = np.stack([x, x]).astype(ml_dtypes.float8_e4m3fn)
    y = from_blocks(codes, scale.reshape(2, 1), len(x), dtype=dtype)
    assert y.dtype == DTYPES[dtype].numpy
    np.testing.assert_array_equal(wide(y[0]), wide(rounded(x / 8, dtype)))
    assert np.isnan(wide(y[1])).all()


# --- Blocks: tiles --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 33, 128, 129, 300])
@pytest.mark.parametrize("blocks", [1, 4, 5])
def test_where_each_scale_lies(rows: int, blocks: int) -> None:
    x = np.exp2(np.arange(rows * blocks) % 250 - 120.0).reshape(rows, blocks)
    format_ = ("float8_e5m2", "float8_e8m0fnu", 1)
    plain = in_blocks(x, *format_).scale.view(np.uint8)
    tiles = in_blocks(x, *format_, scale_layout="128x4").scale
    across = -(-blocks // 4)
    assert tiles.shape == (-(-rows // 128), across, 32, 4, 4)
    flat = np.ascontiguousarray(tiles).view(np.uint8).ravel()
    place = np.zeros((rows, blocks), np.int64)
    for r in range(rows):
        for c in range(blocks):
            tile = r // 128 * across + c // 4
            place[r, c] = 512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    np.testing.assert_array_equal(flat[place], plain)
    assert not np.delete(flat, place.ravel()).any()


@each_format
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 40, 96), -1), ((2, 96, 140), 1)])
def test_tiles_are_read_as_they_are_written(
    code: str, scales: str, size: int, shape: tuple[int, ...], axis: int
) -> None:
    x = random(*shape) * np.arange(1, shape[-1] + 1)
    plain, tiled = (
        in_blocks(x.astype(np.float32), code, scales, size, axis=axis, scale_layout=layout)
        for layout in ("plain", "128x4")
    )
    assert np.array_equal(plain.y.view(np.uint8), tiled.y.view(np.uint8))
    np.testing.assert_array_equal(
        from_blocks(tiled.y, tiled.scale, size, axis=axis, scale_layout="128x4"),
        from_blocks(plain.y, plain.scale, size, axis=axis),
    )


@pytest.mark.parametrize(
    ("shape", "attributes", "match"),
    [
        ((2, 33), {}, "padded to 64"),
        ((2, 32), {"block_size": 0}, "block_size=0"),
        ((32, 2, 2), {"axis": 0, "scale_layout": "128x4"}, "reshape x"),
        ((32,), {"scale_layout": "128x4"}, "reshape x"),
        ((2, 32), {"scale_dtype": "float32"}, "scale_dtype"),
        ((2, 32), {"dtype": "int8"}, "dtype"),
    ],
)
def test_which_blocks_are_refused(shape: Any, attributes: Any, match: str) -> None:
    given = {"dtype": FLOAT8[0], "scale_dtype": "float8_e8m0fnu", "block_size": 32, **attributes}
    with pytest.raises(AttributeValueError, match=match):
        ref.block_scale_quantize(random(*shape), **given)


def test_scales_of_another_shape_are_refused() -> None:
    y, scale = in_blocks(random(2, 64), *FORMATS[0])
    with pytest.raises(ShapeError, match="block_scale_dequantize C"):
        from_blocks(y, scale[:1], 32)
