"""Dropout and random numbers: the generator's published values, the stream, distributions, edges."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import stats

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference.philox import fractions, philox4x32, words
from dnncanon.reference.rounding import rounded
from dnncanon.spec.dropout import FLOATING, threshold
from dnncanon.spec.stream import Stream

Array = np.ndarray[Any, Any]
LARGEST = 2**64 - 1
ANY = Stream(seed=0xA4093822299F31D0, subsequence=0x0370734413198A2E, offset=0x85A308D3243F6A88)

FALSE_ALARM = 1e-6
"""How probable it is that a generator without a fault fails a test of this file that has a p-value. Seeds are
fixed, so that it fails always or never."""


def drawn(count: int, stream: Stream) -> list[int]:
    return [int(word) for word in words(stream, count)]


# --- Philox4x32-10 --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], block: tuple[int, ...]
) -> None:
    """Random123, tests/kat_vectors, philox4x32 10."""
    given = (tuple(np.array([word], np.uint64) for word in part) for part in (counter, key))
    assert tuple(int(word[0]) for word in philox4x32(*given)) == block


def test_a_stream_is_blocks_of_ascending_counters() -> None:
    zeros, ones = Stream(0, 0, 0), Stream(LARGEST, LARGEST, LARGEST)
    assert drawn(4, zeros) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert drawn(4, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = Stream(0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88)
    assert drawn(3, pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420]
    assert drawn(11, ANY)[4:] == drawn(7, Stream(ANY.seed, ANY.subsequence, ANY.offset + 1))


def test_an_offset_wraps_without_a_carry_into_the_subsequence() -> None:
    last = Stream(seed=5, subsequence=9, offset=LARGEST)
    assert drawn(8, last)[4:] == drawn(4, Stream(5, 9, 0))
    assert drawn(8, last)[4:] != drawn(4, Stream(5, 10, 0))


# --- Which element takes which word ---------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_uniform_is_the_upper_bits_of_a_word(dtype: str, digits: int) -> None:
    y = ref.rng_uniform(shape=(5,), dtype=dtype, seed=0).astype(np.float64)
    assert y[0] == (0x6627E8D5 >> (32 - digits)) / 2**digits
    assert np.array_equal(y, fractions(Stream(0, 0, 0), 5, dtype))  # nothing was rounded


def test_uniform_of_float64_is_the_upper_bits_of_two_words() -> None:
    y = ref.rng_uniform(shape=(2,), dtype="float64", seed=0)
    assert y.tolist() == [0x6627E8D5E169C58D // 2**11 / 2**53, 0xBC57AC4C9B00DBD8 // 2**11 / 2**53]


@pytest.mark.parametrize("dtype", FLOATING)
def test_normal_is_a_pair_of_uniforms_in_polar_coordinates(dtype: str) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    u = fractions(ANY, 4, wide)
    step = 2.0**-53 if dtype == "float64" else 2.0**-24
    stream = {"seed": ANY.seed, "subsequence": ANY.subsequence, "offset": ANY.offset}
    y = ref.rng_normal(shape=(3,), dtype=dtype, mean=10.0, std=2.0, **stream)
    radius = [math.sqrt(-2 * math.log(v + step)) for v in (u[0], u[2])]
    angle = [2 * math.pi * v for v in (u[1], u[3])]
    expected = [
        10 + 2 * radius[0] * math.cos(angle[0]),
        10 + 2 * radius[0] * math.sin(angle[0]),
        10 + 2 * radius[1] * math.cos(angle[1]),
    ]
    assert np.allclose(y.astype(np.float64), expected, rtol=2 * spec.DTYPES[dtype].unit_roundoff)


@pytest.mark.parametrize("name", ["rng_uniform", "rng_normal"])
def test_the_linear_index_decides_whatever_the_shape(name: str) -> None:
    flat = getattr(ref, name)(shape=(30,), seed=3)
    assert np.array_equal(getattr(ref, name)(shape=(2, 3, 5), seed=3).ravel(), flat)
    assert np.array_equal(getattr(ref, name)(shape=(29,), seed=3), flat[:29])


def test_strides_do_not_matter() -> None:
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) + 1
    turned = np.asfortranarray(x)
    one, other = (ref.dropout_forward(t, probability=0.5, seed=3) for t in (x, turned))
    assert np.array_equal(one, other)


# --- Distributions --------------------------------------------------------------------------------

COUNT = 1 << 17


@pytest.mark.parametrize("subsequence", [0, 1, LARGEST])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers_are_uniform(dtype: str, subsequence: int) -> None:
    y = ref.rng_uniform(shape=(COUNT,), dtype=dtype, seed=11, subsequence=subsequence)
    assert stats.kstest(y, "uniform").pvalue > FALSE_ALARM
    assert y.min() >= 0
    assert y.max() < 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_normal(dtype: str) -> None:
    y = ref.rng_normal(shape=(COUNT,), dtype=dtype, seed=11, mean=-3.0, std=0.5)
    assert stats.kstest(y, "norm", (-3.0, 0.5)).pvalue > FALSE_ALARM
    even, odd = y.astype(np.float64).reshape(-1, 2).T
    assert stats.pearsonr(even, odd).pvalue > FALSE_ALARM
    assert stats.pearsonr(even**2, odd**2).pvalue > FALSE_ALARM


def test_normal_numbers_have_the_extremes_that_are_stated() -> None:
    y = ref.rng_normal(shape=(1 << 20,), seed=1)
    assert 4.5 < np.abs(y).max() < math.sqrt(2 * 24 * math.log(2))


@pytest.mark.parametrize("p", [0.001, 0.25, 0.9])
def test_ones_are_as_frequent_as_stated(p: float) -> None:
    y = ref.rng_bernoulli(shape=(COUNT,), probability=p, seed=2)
    assert stats.binomtest(int(y.sum()), COUNT, p).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"subsequence": 1}, {"offset": COUNT // 4}, {"subsequence": 2**63}]
)
def test_streams_are_independent(other: dict[str, int]) -> None:
    """By the pairs of bits of two masks: χ² of a 2×2 table."""
    first = {"seed": 1, "subsequence": 0, "offset": 0}
    one, two = (
        ref.rng_bernoulli(shape=(COUNT,), probability=0.5, **(first | change))
        for change in ({}, other)
    )
    table = np.histogram2d(one.astype(float), two.astype(float), bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8])
def test_neighbours_are_independent(lag: int) -> None:
    y = ref.rng_uniform(shape=(COUNT,), dtype="float64", seed=4)
    assert stats.pearsonr(y[:-lag], y[lag:]).pvalue > FALSE_ALARM


# --- Dropout --------------------------------------------------------------------------------------

STREAM = {"seed": 0xFEED, "subsequence": 3, "offset": 5}


@pytest.mark.parametrize("dtype", FLOATING)
def test_what_is_kept_is_divided_by_its_probability(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.linspace(1, 2, 50).astype(kind)
    y, mask = ref.dropout_forward(x, probability=0.25, return_mask=True, **STREAM)
    dropped = ref.rng_bernoulli(shape=x.shape, probability=0.25, **STREAM)
    assert np.array_equal(mask, ~dropped)
    assert 0 < mask.sum() < 50
    expected = np.where(mask, x.astype(np.float64) * (1 / 0.75), 0.0)
    assert np.array_equal(y, rounded(expected, dtype))


def test_the_mean_is_kept() -> None:
    y = ref.dropout_forward(np.ones(COUNT), probability=0.3, seed=6)
    deviation = math.sqrt(0.3 / 0.7 / COUNT)
    assert abs(y.mean() - 1) < stats.norm.isf(FALSE_ALARM / 2) * deviation


def test_the_gradient_is_the_transpose() -> None:
    """Dropout is linear, with a diagonal matrix: dx = dy·y/x."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 7, 9))
    y = ref.dropout_forward(x, probability=0.4, **STREAM)
    dx = ref.dropout_backward(dy, probability=0.4, **STREAM)
    assert np.allclose(dx, dy * (y / x), rtol=1e-14)
    h = 1e-6
    ahead, behind = (ref.dropout_forward(x + s * dy, probability=0.4, **STREAM) for s in (h, -h))
    assert np.allclose((ahead - behind) / (2 * h), dx, atol=1e-8)


def test_probability_0_is_the_identity() -> None:
    x = np.array([1.5, -0.0, np.nan, -np.inf, 5e-324])
    for y in (ref.dropout_forward, ref.dropout_backward):
        assert y(x, probability=0.0, seed=1).tobytes() == x.tobytes()


def test_probability_1_is_zero() -> None:
    x = np.array([1.5, -0.0, np.nan, -np.inf, 5e-324])
    y, mask = ref.dropout_forward(x, probability=1.0, seed=1, return_mask=True)
    assert y.tobytes() == bytes(y.nbytes)
    assert not mask.any()
    assert not ref.dropout_backward(x, probability=1.0, seed=1).any()


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    for special in (np.nan, np.inf, -1.0):
        x = np.full(64, special)
        y, mask = ref.dropout_forward(x, probability=0.5, return_mask=True, **STREAM)
        assert np.array_equal(y, np.where(mask, x * 2, 0.0), equal_nan=True)
        assert not np.signbit(y[~mask]).any()


@pytest.mark.parametrize(
    ("p", "limit"),
    [
        (0.0, 0),
        (5e-324, 1),
        (2.0**-32, 1),
        (0.5, 2**31),
        (1 - 2.0**-32, LARGEST >> 32),
        (1.0, 2**32),
    ],
)
def test_the_threshold_is_the_least_word_that_is_kept(p: float, limit: int) -> None:
    assert threshold(p) == limit
    word = drawn(1, Stream(0, 0, 0))[0]
    for u, kept in ((word / 2**32, True), ((word + 0.5) / 2**32, False)):
        _, mask = ref.dropout_forward(np.ones(1), probability=u, seed=0, return_mask=True)
        assert mask[0] == kept


def test_torch_keeps_and_scales_in_the_same_way() -> None:
    """From the mask on; torch's own stream is another one."""
    torch = pytest.importorskip("torch")
    x = np.linspace(-3, 3, 40, dtype=np.float32)
    y, mask = ref.dropout_forward(x, probability=0.3, return_mask=True, **STREAM)
    scaled = torch.ops.aten.native_dropout_backward(
        torch.from_numpy(x), torch.from_numpy(mask), 1 / 0.7
    )
    assert np.allclose(y, scaled.numpy(), rtol=2e-7)
    theirs, kept = torch.ops.aten.native_dropout(torch.from_numpy(x), 0.3, True)
    assert np.allclose(theirs.numpy(), np.where(kept.numpy(), x / 0.7, 0.0), rtol=2e-7)
    for p in (0.0, 1.0):
        ours = ref.dropout_forward(x, probability=p, seed=1)
        assert np.array_equal(
            ours, torch.nn.functional.dropout(torch.from_numpy(x), p).numpy() + 0.0
        )


# --- Edges of the random numbers ------------------------------------------------------------------


def test_ends_of_the_parameters() -> None:
    assert not ref.rng_bernoulli(shape=(64,), probability=0.0, seed=1).any()
    assert ref.rng_bernoulli(shape=(64,), probability=1.0, seed=1).all()
    assert (ref.rng_uniform(shape=(64,), low=0.7, high=0.7, seed=1) == np.float32(0.7)).all()
    assert (ref.rng_normal(shape=(64,), mean=0.1, std=0.0, seed=1) == np.float32(0.1)).all()


def test_numbers_stay_between_low_and_high() -> None:
    y = ref.rng_uniform(shape=(1000,), low=-5.0, high=3.0, seed=1)
    assert -5 <= y.min() < -4.5
    assert 2.5 < y.max() <= 3


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", *FLOATING])
def test_ones_of_every_dtype(dtype: str) -> None:
    y = ref.rng_bernoulli(shape=(2, 20), dtype=dtype, probability=0.5, seed=9)
    assert y.dtype.name == dtype
    truth = ref.rng_bernoulli(shape=(2, 20), probability=0.5, seed=9)
    assert np.array_equal(y.astype(np.float64), truth.astype(np.float64))


def test_empty_shapes() -> None:
    assert ref.rng_normal(shape=(3, 0), seed=1).shape == (3, 0)
    assert ref.dropout_forward(np.ones((0, 2)), probability=0.5, seed=1).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ref.rng_normal(shape=(2,)), "rng_normal needs the attribute seed"),
        (lambda: ref.rng_normal(shape=(2,), seed=-1), "rng_normal C5: seed=-1"),
        (lambda: ref.rng_normal(shape=(2,), seed=1, offset=2**64), "rng_normal C7: offset=1844"),
        (lambda: ref.rng_normal(shape=(2,), seed=1, std=-1.0), "rng_normal C4: std=-1.0"),
        (lambda: ref.rng_normal(shape=2, seed=1), "rng_normal C1: shape=2"),
        (lambda: ref.rng_uniform(shape=(2,), seed=1, low=2.0), "rng_uniform C4: high=1.0"),
        (
            lambda: ref.rng_uniform(shape=(2,), dtype="float16", seed=1, low=-4e4, high=4e4),
            "rng_uniform C4: high=40000.0",
        ),
        (lambda: ref.rng_uniform(shape=(2,), seed=1, dtype="int32"), "rng_uniform C2: dtype='int3"),
        (
            lambda: ref.dropout_forward(np.ones(2), probability=1.5, seed=1),
            "dropout_forward C3: probability=1.5; pass a number from 0 to 1",
        ),
    ],
)
def test_illegal_arguments(call: Any, message: str) -> None:
    with pytest.raises(spec.SpecError) as error:
        call()
    assert str(error.value).startswith(message)


def test_random_bits_pass_through_the_lift() -> None:
    """So the accuracy model carries errors from there on."""
    seen: list[Array] = []

    def lift(array: Array) -> Array:
        seen.append(array)
        return array + 0.5

    call = spec.rng_uniform.bind(shape=(4,), seed=1)
    (lifted,) = ref.rng_uniform.evaluate(call, {}, lift)
    (plain,) = ref.rng_uniform.evaluate(call, {})
    assert np.array_equal(lifted, plain + 0.5)
    assert len(seen) == 1
