"""Element types: every code of 8 and 16 bits is read exactly, and every rounding is the one that is due."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime import Kernel, empty, kernel, launch, to_device
from dnncanon.gpu.runtime.device_code import cuda
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

Array = np.ndarray[Any, Any]
SMALL = [name for name, row in DTYPES.items() if row.itemsize <= 2]
SMALL_FLOATS = [name for name in SMALL if DTYPES[name].is_float]
INTEGERS = [name for name, row in DTYPES.items() if row.kind == "integer"]


@cache
def convert(function: str, name: str) -> Kernel:
    """out[i] = to_sum or from_sum of x[i]."""
    convert_one = getattr(ELEMENTS[name], function)

    @kernel
    def converting(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            out[i] = convert_one(x[i])

    return converting


def to_sum(name: str, x: Array) -> Array:
    out = empty(x.shape, ELEMENTS[name].sum_dtype)
    launch(convert("to_sum", name), -(-x.size // 256), 256, (to_device(x), out))
    return out.to_host()


def from_sum(name: str, x: Array) -> Array:
    out = empty(x.shape, ELEMENTS[name].dtype)
    launch(convert("from_sum", name), -(-x.size // 256), 256, (to_device(x), out))
    return out.to_host()


def codes(name: str) -> Array:
    """Every value of a dtype of at most 16 bits."""
    dtype = DTYPES[name].numpy
    if name == "bool":
        return np.array([False, True])
    used = 4 if name == "float4_e2m1fn" else 8 * dtype.itemsize
    return np.arange(2**used).astype(storage_of(dtype)).view(dtype)


def wide(values: Array) -> Array:
    """In float64; some NaNs of narrow floats count as signalling."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def nearest(name: str, values: Array) -> Array:
    """The value of a small float that is nearest to each, ties to even; by search among all values."""
    table = np.unique(np.abs(wide(codes(name))))
    table = table[np.isfinite(table)]
    step = table[-1] - table[-2]
    beyond = DTYPES[name].numpy.type(np.nan if name.endswith("fn") else np.inf)
    limits = np.append(table, table[-1] + step)
    middles = (limits[1:] + limits[:-1]) / 2
    magnitude = np.abs(values)
    below = np.searchsorted(middles, magnitude, "left")
    above = np.searchsorted(middles, magnitude, "right")
    even = np.where(below % 2 == 0, below, above)
    found = np.append(table, float(beyond))[even]
    found = np.where(np.isnan(values), np.nan, found)
    return np.asarray(np.copysign(found, values))


def around(name: str) -> Array:
    """All values of a float, the middles between them, and the float64 next to each; both signs."""
    table = np.unique(np.abs(wide(codes(name))))
    table = table[np.isfinite(table)]
    middles = (table[1:] + table[:-1]) / 2
    last = table[-1] + (table[-1] - table[-2]) * np.array([0.25, 0.5, 0.75, 1, 2, 1e6])
    points = np.concatenate([table, middles, last, [np.inf]])
    points = np.concatenate([np.nextafter(points, -1), points, np.nextafter(points, np.inf)])
    return np.concatenate([points, -points, [np.nan, 0.0, -0.0, 1e308, 5e-324]])


def same(got: Array, expected: Array) -> None:
    """Equal, zeros by their sign, any NaN like any other."""
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(
        np.signbit(got[expected == 0]), np.signbit(expected[expected == 0])
    )


def test_there_is_one_for_every_dtype() -> None:
    assert list(ELEMENTS) == list(DTYPES)
    assert all(ELEMENTS[name].dtype == row.numpy for name, row in DTYPES.items())


@pytest.mark.parametrize("name", SMALL)
def test_every_code_is_read_exactly(name: str) -> None:
    same(to_sum(name, codes(name)), codes(name).astype(ELEMENTS[name].sum_dtype))


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_every_code_survives_a_round_trip(name: str) -> None:
    values = codes(name)
    again = from_sum(name, to_sum(name, values))
    number = ~np.isnan(wide(values))
    word = storage_of(values.dtype)
    np.testing.assert_array_equal(again[number].view(word), values[number].view(word))
    assert np.isnan(wide(again[~number])).all()


FLOATS_WITH_ZERO = [
    name for name in SMALL_FLOATS if name not in ("float8_e8m0fnu", "float4_e2m1fn")
]


@pytest.mark.parametrize("name", FLOATS_WITH_ZERO)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_it_rounds_once_to_nearest_even(name: str, source: Any) -> None:
    with np.errstate(over="ignore", under="ignore"):
        values = around(name).astype(source)
    same(wide(from_sum(name, values)), nearest(name, wide(values)))


def test_float4_saturates() -> None:
    values = around("float4_e2m1fn")
    expected = np.clip(nearest("float4_e2m1fn", np.clip(values, -6, 6)), -6, 6)
    expected = np.where(np.isnan(values), -0.0, expected)
    same(wide(from_sum("float4_e2m1fn", values)), expected)


def test_e8m0_takes_the_nearest_power_of_two() -> None:
    powers = np.exp2(np.arange(-127.0, 128))
    ties = 1.5 * powers[:-1]
    values = np.concatenate([powers, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
    expected = np.concatenate([powers, 2 * powers[:-1], powers[:-1], 2 * powers[:-1]])
    same(wide(from_sum("float8_e8m0fnu", values)), expected)


def test_e8m0_gives_nan_for_what_it_has_no_power_of_two_for() -> None:
    values = np.array([0, -0.0, -1, np.nan, np.inf, -np.inf, 2.0**-128, 1.5 * 2.0**127, 1e300])
    assert np.isnan(wide(from_sum("float8_e8m0fnu", values))).all()
    least = np.array([np.nextafter(2.0**-128, 1)])
    assert wide(from_sum("float8_e8m0fnu", least)) == 2.0**-127


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_integers_round_to_even_and_saturate(name: str, source: Any) -> None:
    least, most = int(np.iinfo(name).min), int(np.iinfo(name).max)
    edges = np.array([least, most, 0, 1, -1, 2.0**24, 2.0**31, 2.0**32, 2.0**53], np.float64)
    near = np.concatenate([edges + d for d in (0, 0.5, -0.5, 1.5, -1.5, 0.25, 2.5)])
    values = np.concatenate([near, [np.nan, np.inf, -np.inf, 1e30, -1e30]]).astype(source)
    expected = [_clamped(v, least, most) for v in values.tolist()]
    assert from_sum(name, values).tolist() == expected


def _clamped(value: float, least: int, most: int) -> int:
    if np.isnan(value):
        return 0
    return (
        min(max(round(value), least), most) if np.isfinite(value) else most if value > 0 else least
    )


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_saturate_integers(name: str) -> None:
    info = np.iinfo(np.int64)
    least, most = int(np.iinfo(name).min), int(np.iinfo(name).max)
    values = [info.min, info.max, least, most, 0, -1, 2**53 + 1]
    values += [
        v for edge in (least, most) for v in (edge - 1, edge + 1) if info.min <= v <= info.max
    ]
    expected = [min(max(v, least), most) for v in values]
    assert from_sum(name, np.array(values, np.int64)).tolist() == expected


@pytest.mark.parametrize("source", [np.float32, np.float64, np.int64])
def test_everything_but_zero_is_true(source: Any) -> None:
    values = np.array([0, 1, -1, 255, 256], source)
    np.testing.assert_array_equal(from_sum("bool", values), values != 0)
    if np.issubdtype(source, np.floating):
        special = np.array([-0.0, np.nan, np.inf, 1e-40], source)
        np.testing.assert_array_equal(from_sum("bool", special), [False, True, True, True])


def test_any_byte_but_zero_reads_as_true() -> None:
    out = empty((256,), np.int64)
    every_byte = np.arange(256, dtype=np.uint8)
    launch(convert("to_sum", "bool"), 1, 256, (to_device(every_byte), out))
    np.testing.assert_array_equal(out.to_host(), every_byte != 0)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_wide_floats_round_what_is_wider(name: str) -> None:
    values = np.array([1 / 3, 1e300, -1e-50, 0.0, np.inf, 2.0**-149 * 1.5])
    with np.errstate(over="ignore", under="ignore"):
        same(from_sum(name, values), values.astype(name))
    whole = np.array([2**53 + 1, 2**24 + 1, -3, 2**63 - 1])
    np.testing.assert_array_equal(from_sum(name, whole), whole.astype(name))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_floats_round_integers_once(name: str) -> None:
    """2^40 + 2^39·tie + 1: through float32 the one is lost, and the tie would go to even."""
    digits = DTYPES[name].digits
    ties = [
        (2**digits + odd) * 2 ** (40 - digits) + 2 ** (39 - digits) + d
        for odd in (0, 1)
        for d in (-1, 0, 1)
    ]
    small = [v >> (40 - 14) for v in ties]
    values = np.array(small if name == "float16" else ties)
    same(wide(from_sum(name, values)), nearest(name, wide(values)))
