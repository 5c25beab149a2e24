"""The one rounding of the reference, against exact rational arithmetic."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, FLOATS, DType

ROWS = list(FLOATS.values())
each_dtype = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def exactly_rounded(value: float, row: DType) -> float:
    """``value`` to the nearest number of a dtype, ties to even, in exact arithmetic (IEEE 754 §4.3.1)."""
    if not math.isfinite(value) or value == 0:
        return value
    exact = abs(Fraction(value))
    exponent = row.min_exponent
    while exact >= Fraction(2) ** (exponent + 1):
        exponent += 1
    spacing = Fraction(2) ** (exponent - row.digits + 1)
    nearest = round(exact / spacing) * spacing  # Python rounds a Fraction's ties to even
    magnitude = math.inf if nearest > Fraction(row.max) else float(nearest)
    return math.copysign(magnitude, value)


def same(a: float, b: float) -> bool:
    """Equal, the sign of zero included; NaN equals NaN."""
    return (math.isnan(a) and math.isnan(b)) or (
        a == b and math.copysign(1, a) == math.copysign(1, b)
    )


def around(row: DType) -> st.SearchStrategy[float]:
    """Values where rounding is hardest: at, between and just beside neighbours of a dtype."""
    near = st.sampled_from((-1, 0, 1))
    halves = st.integers(-(2 ** (row.digits + 1)), 2 ** (row.digits + 1))
    least, most = row.min_exponent - row.digits - 1, min(1023, int(math.log2(row.max)) + 1)
    exponents = st.integers(least, most - row.digits) | st.sampled_from((least, most - row.digits))

    def value(half: int, exponent: int, ulps: int) -> float:
        midpoint = math.ldexp(half / 2, exponent)
        return midpoint + ulps * math.ulp(midpoint) if math.isfinite(midpoint) else midpoint

    return st.builds(value, halves, exponents, near)


@each_dtype
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_rounding_is_exact(row: DType, data: st.DataObject) -> None:
    value = data.draw(st.floats(width=64) | around(row))
    result = rounded(np.array([value]), row.name)
    assert result.dtype == row.numpy
    assert same(float(result[0]), exactly_rounded(value, row))


@each_dtype
def test_numbers_of_the_dtype_stay(row: DType) -> None:
    """All of them for the 16-bit dtypes, and a spread of bit patterns for the others."""
    bits = np.dtype(f"u{row.itemsize}")
    count = 2**16
    patterns = np.arange(count, dtype=np.uint64) * np.uint64(2 ** (8 * row.itemsize - 16))
    values = patterns.astype(bits).view(row.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaN among the patterns
        exact = values.astype(np.float64)
    values, exact = values[~np.isnan(exact)], exact[~np.isnan(exact)]
    result = rounded(exact, row.name)
    assert np.array_equal(result.view(bits), values.view(bits))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bfloat16_is_not_rounded_through_float32(sign: float) -> None:
    """Just above a tie: float32 would round it onto the tie, which then goes to the even side."""
    tie = 1 + 2.0**-8
    value = sign * (tie + 2.0**-40)
    through_float32 = np.float32(value).astype(ml_dtypes.bfloat16)
    assert float(through_float32) == sign * 1.0
    assert float(rounded(np.array(value), "bfloat16")) == sign * (1 + 2.0**-7)
    assert float(rounded(np.array(sign * tie), "bfloat16")) == sign * 1.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_float16_is_not_rounded_through_float32(sign: float) -> None:
    value = sign * (1 + 2.0**-11 + 2.0**-40)
    assert float(np.float32(value).astype(np.float16)) == sign * 1.0
    assert float(rounded(np.array(value), "float16")) == sign * (1 + 2.0**-10)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_ties_go_to_even(name: str) -> None:
    """1 + u lies between 1 and 1 + 2u; 1 + 3u between 1 + 2u and 1 + 4u."""
    u = DTYPES[name].unit_roundoff
    assert rounded(np.array([1 + u, 1 + 3 * u]), name).tolist() == [1, 1 + 4 * u]


@each_dtype
def test_subnormals_are_kept(row: DType) -> None:
    least = row.smallest_subnormal
    values = [least, 3 * least, row.smallest_normal - least, -least]
    assert rounded(np.array(values), row.name).astype(np.float64).tolist() == values


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_half_of_the_least_subnormal_goes_to_zero_and_more_does_not(name: str) -> None:
    least = DTYPES[name].smallest_subnormal
    values = np.array([least / 2, np.nextafter(least / 2, 1), 1.5 * least, -least / 2])
    result = rounded(values, name).astype(np.float64)
    assert result.tolist() == [0, least, 2 * least, 0]
    assert np.signbit(result).tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_overflow_begins_half_a_step_beyond_the_largest(name: str) -> None:
    row = DTYPES[name]
    step = 2.0 ** (math.floor(math.log2(row.max)) - row.digits + 1)
    limit = row.max + step / 2
    result = rounded(np.array([np.nextafter(limit, 0), limit, -limit, 1e300]), name)
    assert result.astype(np.float64).tolist() == [row.max, math.inf, -math.inf, math.inf]


@each_dtype
def test_nan_and_inf_stay(row: DType) -> None:
    result = rounded(np.array([np.nan, np.inf, -np.inf]), row.name).astype(np.float64)
    assert np.isnan(result[0])
    assert result[1:].tolist() == [math.inf, -math.inf]


@each_dtype
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
def test_shapes_are_kept(row: DType, shape: tuple[int, ...]) -> None:
    assert rounded(np.zeros(shape), row.name).shape == shape


# --- Integers, truth values and 8-bit floats ------------------------------------------------------

INTEGERS = [row for row in DTYPES.values() if row.kind == "integer"]
EIGHT_BITS = [row for row in DTYPES.values() if row.is_float and row.itemsize == 1]
each_integer = pytest.mark.parametrize("row", INTEGERS, ids=lambda row: row.name)
each_eight_bit = pytest.mark.parametrize("row", EIGHT_BITS, ids=lambda row: row.name)


@each_integer
def test_integers_round_ties_to_even(row: DType) -> None:
    values = np.array([0.5, 1.5, 2.5, 2.6, 3.4])
    assert rounded(values, row.name).tolist() == [0, 2, 2, 3, 3]


@each_integer
def test_integers_saturate_and_nan_gives_0(row: DType) -> None:
    info = np.iinfo(row.numpy)
    values = np.array([1e30, np.inf, -1e30, -np.inf, np.nan])
    assert rounded(values, row.name).tolist() == [info.max, info.max, info.min, info.min, 0]


@each_integer
def test_integers_of_integers_are_exact(row: DType) -> None:
    values = np.array([-(2**62) - 1, -1, 0, 1, 2**62 + 1])
    assert (
        rounded(values, row.name).tolist() == np.clip(values, int(row.min), int(row.max)).tolist()
    )


def test_everything_but_0_is_true() -> None:
    values = np.array([0.0, -0.0, 0.5, -1.0, np.nan, np.inf])
    assert rounded(values, "bool").tolist() == [False, False, True, True, True, True]


@each_eight_bit
def test_eight_bit_floats_round_to_the_nearest_of_all_numbers(row: DType) -> None:
    codes = np.arange(2**4 if row.name == "float4_e2m1fn" else 2**8, dtype=np.uint8)
    numbers = np.unique(codes.view(row.numpy).astype(np.float64))
    numbers = numbers[np.isfinite(numbers)]
    between = (numbers[1:] + numbers[:-1]) / 2
    probes = np.concatenate(
        [numbers, between, np.nextafter(between, 0), np.nextafter(between, 1e9)]
    )
    got = rounded(probes, row.name).astype(np.float64)
    nearest = np.abs(probes[:, None] - numbers).min(axis=1)
    assert (np.abs(got - probes) == nearest).all()


@pytest.mark.parametrize(
    ("dtype", "beyond"), [("float8_e4m3fn", np.nan), ("float8_e5m2", np.inf), ("float4_e2m1fn", 6)]
)
def test_overflow_of_eight_bit_floats(dtype: str, beyond: float) -> None:
    got = rounded(np.array([1e6]), dtype).astype(np.float64)
    assert np.array_equal(got, [beyond], equal_nan=True)
