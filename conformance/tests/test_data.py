"""A seed means the same numbers for ever, and every fill keeps what its documentation says."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnncanon.conformance.data import FILLS, random_bits, values
from dnncanon.spec import (
    BOOLEAN,
    DTYPES,
    FLOATS,
    POSITIVE,
    UNIT,
    index_below,
    integers_between,
)

MASK = 2**64 - 1
fills = pytest.mark.parametrize("fill", FILLS)
dtypes = pytest.mark.parametrize("dtype", FLOATS)


def splitmix64(start: int, index: int) -> int:
    """Output ``index`` of SplitMix64 whose state begins at ``start``, in Python's integers."""
    z = (start + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


# --- The stream -----------------------------------------------------------------------------------


def test_splitmix64_here_is_the_published_one() -> None:
    """The first outputs for the state 1234567, as in the generator's usual test vector."""
    assert [splitmix64(1234567, i) for i in (0, 1)] == [6457827717110365317, 3203168211198807973]


@settings(deadline=None)
@given(st.integers(0, MASK), st.text(max_size=8), st.integers(1, 50))
def test_the_stream_is_splitmix64_from_a_state_of_seed_and_name(
    seed: int, name: str, count: int
) -> None:
    state = seed * 0xD1342543DE82EF95 + zlib.crc32(name.encode()) * 0x2545F4914F6CDD1D
    assert random_bits(seed, name, count).tolist() == [
        splitmix64(state, index) for index in range(count)
    ]


def test_golden_bits() -> None:
    assert random_bits(0, "x", 3).tolist() == [
        0x1B038D7C8212350C,
        0xA17B1FC3167AF323,
        0x48568759CAEFD74E,
    ]
    assert random_bits(7, "w", 2).tolist() == [0xFE53D9059289755D, 0xA31B3E02CF65A386]
    assert random_bits(MASK, "bias", 1).tolist() == [0xD849B81A5CE0992D]


# Elements 0 to 3 of x for seed 7, dtype float16 and 64 terms a sum.
GOLDEN = {
    "normal": "0x1.b17ff577b1118p-3 0x1.0c43d070b8cfcp+1 0x1.ad62df39812b0p+0 0x1.dfd50af0bf1a5p-2",
    "integers": "-0x1p+1 -0x1p+1 0x1p+0 -0x1p+0",
    "positive": "0x1.73c164927d404p+0 0x1.4f2ebb7bad5d0p+0 0x1.4c956346d5acfp+0 0x1.2d828f427ff98p+0",
    "mixed": "0x1.f3c164927d404p+0 0x1.cf2ebb7bad5d0p+2 -0x1.cc956346d5acfp+4 -0x1.ad828f427ff98p-3",
    "one_large": "0x1.73c164927d404p-3 0x1.4f2ebb7bad5d0p-3 0x1.4c956346d5acfp-3 0x1.2d828f427ff98p-3",
    "tiny": "0x1.b17ff577b1118p-11 0x1.0c43d070b8cfcp-7 0x1.ad62df39812b0p-8 0x1.dfd50af0bf1a5p-10",
    "large": "0x1.7aa582c991d2fp+3 0x1.d4a3b5cd1c514p+6 0x1.770dad66a5607p+6 0x1.a31dbdc5723b1p+4",
    "shifted": "0x1.0f3c164927d40p+0 0x1.0cf2ebb7bad5dp+0 0x1.0cc956346d5adp+0 0x1.0ad828f427ffap+0",
    "zeros": "0x0p+0 0x0p+0 0x0p+0 0x0p+0",
    "special": "0x1.b17ff577b1118p-3 0x1.0c43d070b8cfcp+1 0x1.ad62df39812b0p+0 0x1.dfd50af0bf1a5p-2",
}


@fills
def test_golden_values(fill: str) -> None:
    got = values(fill, 7, "x", 4, "float16", 64)
    assert got.tolist() == [float.fromhex(text) for text in GOLDEN[fill].split()]


@fills
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, MASK), count=st.integers(0, 300), longer=st.integers(0, 300))
def test_an_element_does_not_depend_on_how_many_there_are(
    fill: str, seed: int, count: int, longer: int
) -> None:
    few = values(fill, seed, "x", count, "float32", 9)
    many = values(fill, seed, "x", count + longer, "float32", 9)
    assert few.shape == (count,)
    assert few.dtype == np.float64
    assert few.tobytes() == many[:count].tobytes()


def test_no_stream_repeats_another() -> None:
    """A hundred seeds of five tensors, 1,000 elements each: all 500,000 words of 64 bits differ."""
    names = ("x", "w", "dy", "bias", "z")
    words = [random_bits(seed, name, 1000) for seed in range(100) for name in names]
    assert np.unique(np.concatenate(words)).size == 100 * len(names) * 1000


@pytest.mark.parametrize(("left", "right"), [((1, "x"), (1, "w")), ((1, "x"), (2, "x"))])
def test_tensors_and_seeds_are_independent(left: tuple[int, str], right: tuple[int, str]) -> None:
    count = 100_000
    a, b = (values("normal", *stream, count, "float32", 1) for stream in (left, right))
    for lag in range(4):
        correlation = np.mean(a[lag:] * b[: count - lag])
        assert abs(correlation) < 4.5 / np.sqrt(count)


# --- The fills ------------------------------------------------------------------------------------

# The largest and the smallest magnitude that each fill's documentation allows.
RANGES = {
    "normal": (0.0, 2 * 1.7320508),
    "integers": (0.0, 2.0),
    "positive": (0.5, 1.5),
    "mixed": (2.0**-6, 2.0**5),
    "one_large": (0.5 / 8, 1.5 * 8),
    "shifted": (1.0, 1.0625),
}


@dtypes
@pytest.mark.parametrize("fill", RANGES)
def test_finite_and_in_range(fill: str, dtype: str) -> None:
    magnitudes = np.abs(values(fill, 3, "x", 50_000, dtype, 100))
    low, high = RANGES[fill]
    assert np.isfinite(magnitudes).all()
    assert low <= magnitudes.min()
    assert magnitudes.max() <= high
    # The ends are approached, so the range is no wider than it has to be. Integers need no zeros
    # where the sums have room enough.
    assert fill == "integers" or magnitudes.min() <= low * 1.01 + 0.01
    assert magnitudes.max() >= high * 0.85


def test_every_range_is_documented_here() -> None:
    assert set(RANGES) == set(FILLS) - {"special", "tiny", "large", "zeros"}


@dtypes
def test_products_of_tiny_values_are_subnormal_and_most_are_not_lost(dtype: str) -> None:
    row = DTYPES[dtype]
    x, w = (values("tiny", 3, name, 50_000, dtype, 100) for name in "xw")
    products = np.abs(x * w)
    assert np.mean(products < row.smallest_normal) > 0.9
    assert np.mean(products > row.smallest_subnormal) > 0.9
    assert np.mean(np.abs(x) > row.smallest_normal) > 0.9


@dtypes
@pytest.mark.parametrize("length", [1, 72, 4608])
def test_sums_of_products_of_large_values_reach_the_largest_float16(
    dtype: str, length: int
) -> None:
    sums = 400
    x, w = (values("large", 3, name, sums * length, dtype, length) for name in "xw")
    terms = (x * w).reshape(sums, length)
    partial = np.abs(np.cumsum(terms, axis=1)).max(axis=1)
    total = np.abs(terms.sum(axis=1))
    if dtype == "float16":
        assert np.sqrt(np.mean(total**2)) == pytest.approx(25_000, rel=0.15)
        assert np.mean(total < 65504) > 0.95
        assert np.abs(x).max() < 65504
    else:
        assert np.mean(partial > 65504) > 0.3
        assert partial.max() < 1e8


@dtypes
def test_shifted_values_are_far_from_zero_beside_their_spread(dtype: str) -> None:
    x = values("shifted", 3, "x", 50_000, dtype, 100).astype(DTYPES[dtype].numpy)
    assert 50 < x.astype(np.float64).mean() / x.astype(np.float64).std() < 60
    assert np.unique(x).size > 8


@dtypes
@pytest.mark.parametrize("length", [1, 9, 72, 576, 4608])
def test_a_quarter_of_the_sums_of_products_meets_nothing_but_zeros(dtype: str, length: int) -> None:
    sums = max(2000, 400_000 // length)
    x, w = (values("zeros", 3, name, sums * length, dtype, length) for name in "xw")
    nothing = np.mean(((x != 0) & (w != 0)).reshape(sums, length).sum(axis=1) == 0)
    assert nothing == pytest.approx(0.44 if length == 1 else 0.25, abs=0.04)
    assert 0 < np.mean(x != 0) < 0.8
    assert np.abs(x[x != 0]).min() >= 2.0**-6


def test_normal_has_the_moments_of_a_standard_normal() -> None:
    """Mean 0, variance 1, skewness 0; a sum of four uniform numbers has kurtosis 3 − 1.2/4."""
    count = 400_000
    x = values("normal", 5, "x", count, "float32", 1)
    assert abs(x.mean()) < 4 / np.sqrt(count)
    assert x.var() == pytest.approx(1.0, abs=0.01)
    assert np.mean(x**3) == pytest.approx(0.0, abs=0.02)
    assert np.mean(x**4) == pytest.approx(3.0 - 1.2 / 4, abs=0.03)
    assert np.mean(np.abs(x) < 1) == pytest.approx(0.68, abs=0.02)


def test_positive_is_uniform() -> None:
    x = values("positive", 5, "x", 100_000, "float32", 1)
    shares, _ = np.histogram(x, bins=10, range=(0.5, 1.5))
    assert np.abs(shares - 10_000).max() < 500


def test_mixed_covers_its_binades_with_both_signs() -> None:
    x = values("mixed", 5, "x", 100_000, "float32", 1)
    assert np.mean(x > 0) == pytest.approx(0.5, abs=0.01)
    binades, counts = np.unique(np.floor(np.log2(np.abs(x))), return_counts=True)
    assert binades.tolist() == list(range(-6, 5))
    assert counts.min() > 100_000 / 8 / 4 * 0.9


def test_one_large_among_sixteen() -> None:
    x = values("one_large", 5, "x", 100_000, "float32", 1)
    large = x > 1
    assert np.mean(large) == pytest.approx(1 / 16, abs=0.004)
    assert x[large].mean() / x[~large].mean() == pytest.approx(64, rel=0.02)


# --- integers: exact sums -------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("length", [1, 9, 72, 576, 4608, 65_536])
def test_sums_of_products_of_integers_are_exact_in_any_order(dtype: str, length: int) -> None:
    """Σ|x·w| is a number of the dtype, so every partial sum of any order is."""
    sums = max(20, 200_000 // length)
    x, w = (values("integers", 11, name, sums * length, dtype, length) for name in "xw")
    assert set(np.unique(x)) <= {-2, -1, 0, 1, 2}
    magnitudes = np.abs(x * w).reshape(sums, length).sum(axis=1)
    assert magnitudes.max() <= 2.0 ** DTYPES[dtype].digits
    # And they are no trivial sums: most have terms, and with room in the dtype nearly all terms count.
    assert np.count_nonzero(magnitudes) > 0.8 * sums * min(1.0, length / 2)


@dtypes
@pytest.mark.parametrize("length", [64, 4096])
def test_integers_are_zero_no_more_often_than_they_must(dtype: str, length: int) -> None:
    x = values("integers", 1, "x", 100_000, dtype, length)
    share = min(1.0, np.sqrt(2.0 ** DTYPES[dtype].digits / (16 * length)))
    assert np.mean(x != 0) == pytest.approx(share, abs=0.01)
    assert np.mean(x[x != 0] > 0) == pytest.approx(0.5, abs=0.02)
    assert np.mean(np.abs(x[x != 0]) == 2) == pytest.approx(0.5, abs=0.02)


# --- special --------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("length", [1, 9, 100, 1000])
def test_special_has_all_special_values_at_plausible_rates(dtype: str, length: int) -> None:
    count, row = 400_000, DTYPES[dtype]
    x = values("special", 2, "x", count, dtype, length)
    each = count / (4 * max(16, length))
    for found in (np.isnan(x), np.isposinf(x), np.isneginf(x)):
        assert np.count_nonzero(found) == pytest.approx(each, abs=5 * np.sqrt(each))
    subnormal = x == 3 * row.smallest_subnormal
    assert 3 * row.smallest_subnormal < row.smallest_normal
    minus_zero = (x == 0) & np.signbit(x)
    for found in (subnormal, minus_zero):
        assert np.mean(found) == pytest.approx(1 / 16, rel=0.08)
    assert (x[subnormal].astype(row.numpy).astype(np.float64) == x[subnormal]).all()


@dtypes
@pytest.mark.parametrize("length", [9, 100, 1000])
def test_special_leaves_finite_and_non_finite_sums(dtype: str, length: int) -> None:
    x = values("special", 2, "x", 200 * length, dtype, length).reshape(200, length)
    finite = np.isfinite(x).all(axis=1).mean()
    assert 0.2 < finite < 0.9


# --- Integers, and values that a tensor may hold --------------------------------------------------

INTEGERS = [row.name for row in DTYPES.values() if row.kind == "integer"]


@fills
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_tensors_hold_integers_of_their_type(fill: str, dtype: str) -> None:
    x = values(fill, 3, "x", 5_000, dtype, 10)
    row = DTYPES[dtype]
    assert (x == np.rint(x)).all()
    assert row.min <= x.min()
    assert x.max() <= row.max
    assert np.unique(x).size >= 2


@pytest.mark.parametrize("dtype", INTEGERS)
def test_special_integers_are_the_ends_of_the_type(dtype: str) -> None:
    x = values("special", 3, "x", 1_000, dtype, 10)
    assert (x.min(), x.max()) == (DTYPES[dtype].min, DTYPES[dtype].max)


@fills
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_narrow_floats_do_not_overflow_unless_they_can(fill: str, dtype: str) -> None:
    x = values(fill, 3, "x", 5_000, dtype, 10)
    row = DTYPES[dtype]
    assert row.has_infinity or np.nanmax(np.abs(x)) <= row.max


@fills
def test_indices_exist_whatever_the_fill(fill: str) -> None:
    below = index_below(lambda problem: 7)
    x = values(fill, 3, "i", 5_000, "int32", 10, below, below.limit(None))
    assert np.unique(x).tolist() == list(range(7))


@fills
def test_integers_lie_between_their_limits(fill: str) -> None:
    between = integers_between(2, lambda problem: 5)
    x = values(fill, 3, "i", 5_000, "int32", 10, between, between.limit(None))
    assert np.unique(x).tolist() == [2, 3, 4]


@fills
def test_truth_values_are_0_and_1_about_equally_often(fill: str) -> None:
    x = values(fill, 3, "mask", 10_000, "float32", 10, BOOLEAN)
    assert np.unique(x).tolist() == [0, 1]
    assert x.mean() == pytest.approx(0.5, abs=0.03)


@fills
def test_positive_values_are(fill: str) -> None:
    x = values(fill, 3, "variance", 10_000, "float32", 10, POSITIVE)
    assert (x[~np.isnan(x)] > 0).all()


@fills
def test_unit_values_lie_in_the_unit_interval(fill: str) -> None:
    x = values(fill, 3, "p", 10_000, "float32", 10, UNIT)
    assert x.min() >= 0
    assert x.max() < 1
