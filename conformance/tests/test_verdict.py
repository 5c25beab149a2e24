"""Synthetic outputs against synthetic expectations: what passes, what fails, and what the message says."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.conformance.bounds import Expected, Sharing, expectations, half_spacing, spacing
from dnncanon.conformance.verdict import (
    BIAS_LIMIT,
    MAX_SAMPLE,
    MIN_SAMPLE,
    Judgement,
    judge,
    mean_square_limit,
)
from dnncanon.reference.rounding import rounded
from dnncanon.reports import ULP_BINS, ULP_EDGES, Verdict
from dnncanon.spec import DTYPES, FLOATS

Floats = NDArray[np.float64]
INF, NAN = np.inf, np.nan


def expecting(
    value: Any, bound: Any = 0.0, dtype: str = "float32", *, may_be_nan: bool = False
) -> Expected:
    """An expectation with the same bound everywhere; its deviation is half of the bound."""
    value = np.asarray(value, np.float64)
    bound = np.broadcast_to(np.asarray(bound, np.float64), value.shape)
    nan = np.broadcast_to(np.bool_(may_be_nan), value.shape)
    return Expected(value, bound, bound / 2, nan, DTYPES[dtype])


def verdict_on(output: Any, expected: Expected, *inputs: Any) -> Judgement:
    array = np.asarray(output, expected.dtype.numpy)
    return judge(["y"], [array], [expected], [np.asarray(i, array.dtype) for i in inputs])


def rounding_only(value: Floats, dtype: str) -> Expected:
    """What one correct rounding is expected to do."""
    half = half_spacing(value, DTYPES[dtype])
    nowhere = np.zeros(value.shape, np.bool_)
    return Expected(value, half, half / math.sqrt(3), nowhere, DTYPES[dtype])


def random_values(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape)


# --- Elements -------------------------------------------------------------------------------------


def test_equality_passes() -> None:
    result = verdict_on([1.0, -2.0, 0.0], expecting([1.0, -2.0, 0.0]))
    assert result.verdict is Verdict.PASSED
    assert (result.message, result.max_error, result.max_ulp) == ("", 0.0, 0.0)
    assert result.elements == 3


def test_minus_zero_is_zero() -> None:
    assert verdict_on([-0.0, 1.0], expecting([0.0, 1.0])).verdict is Verdict.PASSED


def test_one_wrong_element_among_many_is_named_with_all_its_figures() -> None:
    value = np.arange(1.0, 25.0).reshape(2, 3, 4)
    output = value.copy()
    output[1, 0, 2] += 0.25
    result = verdict_on(output, expecting(value, 0.1))
    assert result.verdict is Verdict.FAILED
    assert result.message == (
        "y[1, 0, 2] is 15.25, expected 15 ± 0.1 (2.5 × bound); 1 of 24 elements are wrong"
    )
    assert result.max_error == pytest.approx(2.5)


def test_the_worst_element_is_the_one_that_is_named() -> None:
    result = verdict_on([1.2, 2.9, 3.3, 4.05], expecting([1.0, 2.0, 3.0, 4.0], 0.1))
    assert result.message.startswith("y[1] is 2.9")
    assert result.message.endswith("3 of 4 elements are wrong")


def test_a_bound_is_met_by_an_error_of_its_size_and_no_more() -> None:
    assert verdict_on([1.5], expecting([1.0], 0.5)).verdict is Verdict.PASSED
    beyond = np.nextafter(np.float32(1.5), np.float32(2))
    assert verdict_on([beyond], expecting([1.0], 0.5)).verdict is Verdict.FAILED


def test_where_the_bound_is_zero_the_value_must_be_exact() -> None:
    near = np.nextafter(np.float32(3), np.float32(4))
    result = verdict_on([2.0, near], expecting([2.0, 3.0]))
    assert result.verdict is Verdict.FAILED
    assert result.message == (
        "y[1] is 3.00000024, expected 3 exactly (no error is allowed here); "
        "1 of 2 elements are wrong"
    )
    assert result.max_error == INF


# --- NaN and infinities ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "value", "right"),
    [
        (NAN, NAN, True),
        (1.0, NAN, False),
        (INF, NAN, False),
        (NAN, 1.0, False),
        (INF, 1.0, False),
        (-INF, 1.0, False),
        (INF, INF, True),
        (-INF, INF, False),
        (NAN, INF, False),
        (1.0, INF, False),
        (float(DTYPES["float32"].max), INF, False),
        (-INF, -INF, True),
        (0.0, -INF, False),
    ],
)
def test_nan_and_infinities(got: float, value: float, right: bool) -> None:
    """The bound of a value that is not finite may be anything; it plays no part."""
    for bound in (0.0, 0.1) if math.isfinite(value) else (0.0, 0.1, NAN, INF):
        result = verdict_on([got, 5.0], expecting([value, 5.0], [bound, 0.1]))
        assert result.verdict is (Verdict.PASSED if right else Verdict.FAILED), result.message
        if not right:
            assert result.message.startswith(f"y[0] is {got:.9g}, expected {value:.9g} ")
            assert "± nan" not in result.message
            assert "± inf" not in result.message


def test_a_number_that_is_none_is_not_called_an_error_where_none_is_allowed() -> None:
    result = verdict_on([NAN], expecting([1.0], 0.5))
    assert result.message == (
        "y[0] is nan, expected 1 ± 0.5 (not a finite number); 1 of 1 elements are wrong"
    )


def test_an_infinity_may_be_nan_where_the_expectation_says_so() -> None:
    for got, verdict in ((NAN, Verdict.PASSED), (INF, Verdict.PASSED), (1.0, Verdict.FAILED)):
        assert verdict_on([got], expecting([INF], may_be_nan=True)).verdict is verdict


@pytest.mark.parametrize(
    ("value", "got", "right"),
    [
        (65519.0, 65504.0, True),  # below the middle between the largest number and the next
        (65519.0, INF, False),
        (65505.0, INF, False),
        (65521.0, INF, True),
        (65521.0, 65504.0, False),
        (65521.0, -INF, False),
        (-65521.0, -INF, True),
        (-65521.0, INF, False),
        (1e6, INF, True),
        (1e6, 65504.0, False),  # a saturating cast
    ],
)
def test_overflow_at_the_edge_of_float16(value: float, got: float, right: bool) -> None:
    values = np.array([value, 1.5])
    result = verdict_on([got, 1.5], rounding_only(values, "float16"))
    assert result.verdict is (Verdict.PASSED if right else Verdict.FAILED), result.message


def test_within_the_bound_of_the_edge_both_overflow_and_the_largest_number_are_right() -> None:
    for value in (65515.0, 65525.0):
        expected = expecting([value], 16.0 + 10.0, "float16")
        for got in (65504.0, INF):
            assert verdict_on([got], expected).verdict is Verdict.PASSED
        assert verdict_on([-INF], expected).verdict is Verdict.FAILED


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_the_reference_rounds_is_right_at_every_edge(dtype: str) -> None:
    row = DTYPES[dtype]
    edges = [row.max, 0.999 * row.max, row.smallest_normal, row.smallest_subnormal, 0.0]
    tiny = [0.6 * row.smallest_subnormal, 0.4 * row.smallest_subnormal, 1 + row.unit_roundoff]
    wide = [] if dtype == "float64" else [row.max * (1 + row.unit_roundoff), row.max * 2]
    values = np.array([sign * v for v in (*edges, *tiny, *wide) for sign in (1, -1)])
    result = verdict_on(rounded(values, dtype), rounding_only(values, dtype))
    assert result.verdict is Verdict.PASSED, result.message


# --- Vacuous comparisons --------------------------------------------------------------------------


def test_zeros_that_would_have_passed_are_mistrusted() -> None:
    for value in ([0.0, 0.0], [0.01, -0.02]):
        result = verdict_on(value, expecting(value, 0.05))
        assert result.verdict is Verdict.MISTRUSTED
        assert "zeros" in result.message


def test_one_element_that_tells_zeros_apart_is_enough() -> None:
    value = [0.0, 0.0, 0.1]
    assert verdict_on(value, expecting(value, 0.05)).verdict is Verdict.PASSED
    assert verdict_on([NAN, 0], expecting([NAN, 0.0], 0.05)).verdict is Verdict.PASSED


def test_a_copy_of_an_input_that_would_have_passed_is_mistrusted() -> None:
    value = random_values(1, 3, 4)
    result = verdict_on(value, expecting(value, 1e-3), random_values(2, 3, 4), value)
    assert result.verdict is Verdict.MISTRUSTED
    assert "copy of an input" in result.message


def test_an_input_of_another_shape_or_another_value_is_no_copy() -> None:
    value = random_values(1, 3, 4)
    other = value.copy()
    other[2, 3] += 0.1
    for tensor in (value.reshape(4, 3), other):
        assert verdict_on(value, expecting(value, 1e-3), tensor).verdict is Verdict.PASSED


def test_a_wrong_output_fails_even_where_zeros_would_have_passed() -> None:
    assert verdict_on([0.2, 0.0], expecting([0.0, 0.0], 0.05)).verdict is Verdict.FAILED


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_outputs_without_elements_pass(shape: tuple[int, ...]) -> None:
    result = verdict_on(np.zeros(shape), expecting(np.zeros(shape)), np.zeros(shape))
    assert result.verdict is Verdict.PASSED
    assert (result.elements, result.max_error, result.max_ulp, result.bias) == (0, 0, 0, None)


# --- Several outputs ------------------------------------------------------------------------------


def test_each_wrong_output_has_its_line_and_figures_are_the_worst() -> None:
    values = [random_values(seed, 4) + 3 for seed in range(3)]
    outputs = [values[0] + 0.3, values[1], values[2] - 0.2]
    expected = [expecting(value, 0.1, "float64") for value in values]
    result = judge(["y", "mean", "scale"], outputs, expected, [])
    assert result.verdict is Verdict.FAILED
    lines = result.message.splitlines()
    assert [line.partition("[")[0] for line in lines] == ["y", "scale"]
    assert result.max_error == pytest.approx(3.0)
    assert result.elements == 12
    assert sum(result.ulp_histogram) == 12


# --- ULPs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_histogram_counts_units_in_the_last_place(dtype: str) -> None:
    """Errors of 0, 1, 2, 3 units at 1, and of one at 0, a subnormal and 2."""
    row = DTYPES[dtype]
    value = np.array([1.0, 1.0, 1.0, 1.0, 0.0, row.smallest_subnormal, 2.0, 0.0])
    units = np.array([0, 1, 2, 3, 1, 1, -1, 0])
    output = value + units * spacing(value, row)
    output[6] = 2.0 - spacing(np.array([2.0]), row)[0]
    result = verdict_on(output, expecting(value, 10.0, dtype))
    counts = dict(zip([*ULP_EDGES, INF], result.ulp_histogram, strict=True))
    assert {edge: count for edge, count in counts.items() if count} == {0: 2, 1: 4, 2: 1, 4: 1}
    assert result.max_ulp == 3.0
    assert len(result.ulp_histogram) == ULP_BINS


def test_half_a_unit_and_far_too_many_have_their_bins() -> None:
    value = np.array([1.0, 1.0]) + np.array([2.0**-12, 0.0])
    result = verdict_on([1.0, 1000.0], expecting(value, 1e4, "float16"))
    assert result.ulp_histogram[ULP_EDGES.index(0.5)] == 1
    assert result.ulp_histogram[-1] == 1
    assert result.max_ulp == 999 * 2**10


def test_what_is_not_finite_is_in_no_bin() -> None:
    result = verdict_on([NAN, INF, 1.0, 2.0], expecting([NAN, INF, 1.0, NAN], 0.1))
    assert sum(result.ulp_histogram) == 1
    assert result.max_ulp == 0.0


# --- Statistics over a tensor ---------------------------------------------------------------------


def modelled(value: Floats, deviation: float = 1.0) -> Expected:
    """Errors of the given deviation, within eight of them."""
    everywhere = np.full(value.shape, deviation)
    nowhere = np.zeros(value.shape, np.bool_)
    return Expected(value, 8 * everywhere, everywhere, nowhere, DTYPES["float64"])


def test_errors_as_modelled_are_no_bias() -> None:
    value = 100 * random_values(1, 1000)
    result = verdict_on(value + random_values(2, 1000), modelled(value))
    assert result.verdict is Verdict.PASSED
    assert result.bias is not None
    assert abs(result.bias) < 4


@pytest.mark.parametrize(("side", "word"), [(0.5, "too large"), (-0.5, "too small")])
def test_a_bias_away_from_zero_or_towards_it_is_seen(side: float, word: str) -> None:
    """Half a deviation at 1,000 elements of either sign: 16 standard deviations of their mean."""
    value = 100 * random_values(1, 1000)
    output = value + random_values(2, 1000) + side * np.sign(value)
    result = verdict_on(output, modelled(value))
    assert result.max_error < 1
    assert result.verdict is Verdict.FAILED
    assert word in result.message
    assert f"limit {BIAS_LIMIT:g}" in result.message
    assert result.bias == pytest.approx(side * math.sqrt(1000), abs=4)


def test_errors_twice_as_large_as_modelled_are_seen() -> None:
    value = 100 * random_values(1, 1000)
    result = verdict_on(value + 1.7 * random_values(2, 1000), modelled(value))
    assert result.max_error < 1
    assert result.verdict is Verdict.FAILED
    assert "their mean square is 2.9" in result.message
    assert f"limit {mean_square_limit(1000):.2f}" in result.message


def test_errors_smaller_than_modelled_are_welcome() -> None:
    value = 100 * random_values(1, 5000)
    assert verdict_on(value, modelled(value)).verdict is Verdict.PASSED


def test_few_elements_have_no_statistics() -> None:
    value = 100 * random_values(1, MIN_SAMPLE)
    biased = value + 3 * np.sign(value)
    assert verdict_on(biased, modelled(value)).verdict is Verdict.FAILED
    few = verdict_on(biased[1:], modelled(value[1:]))
    assert few.verdict is Verdict.PASSED
    assert few.bias is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_truncation_is_caught(dtype: str) -> None:
    """Rounding towards zero, with a bound of a whole unit that no element exceeds."""
    value = random_values(3, 4000)
    row = DTYPES[dtype]
    unit = spacing(value, row)
    output = np.trunc(value / unit) * unit
    nowhere = np.zeros(value.shape, np.bool_)
    result = verdict_on(output, Expected(value, unit, unit / 2, nowhere, row))
    assert result.max_error <= 1
    assert result.verdict is Verdict.FAILED
    assert "too small on the whole" in result.message


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_correct_rounding_raises_no_alarm_in_hundreds_of_tensors(dtype: str) -> None:
    for seed in range(200):
        value = random_values(seed, 64 + 7 * seed) * 10.0 ** (seed % 7 - 3)
        result = verdict_on(rounded(value, dtype), rounding_only(value, dtype))
        assert result.verdict is Verdict.PASSED, (seed, result.message)


def test_errors_as_large_as_modelled_raise_no_alarm_in_hundreds_of_tensors() -> None:
    for seed in range(300):
        value = 100 * random_values(seed, 64 + 7 * seed)
        result = verdict_on(value + random_values(1000 + seed, value.size), modelled(value))
        assert result.verdict is Verdict.PASSED, (seed, result.message)


def test_duplicates_count_once() -> None:
    """A broadcast input makes rows equal, and their one rounding error no bias of thousands."""
    row = 100 * random_values(1, 70)
    one = verdict_on(row + random_values(2, 70), modelled(row))
    value, error = np.tile(row, (500, 1)), np.tile(random_values(2, 70), (500, 1))
    many = verdict_on(value + error, modelled(value))
    assert many.verdict is Verdict.PASSED
    assert many.bias == pytest.approx(one.bias)


def test_elements_without_deviation_or_value_take_no_part() -> None:
    value = 100 * random_values(1, 500)
    expected = modelled(value)
    expected.deviation[:250] = 0
    value[250:300] = NAN
    output = value + np.sign(value) * np.where(np.arange(500) < 250, 5.0, 0.0)
    result = verdict_on(output, expected)
    assert result.verdict is Verdict.PASSED
    assert result.bias == 0


def test_elements_without_a_bound_take_no_part() -> None:
    """They may be anything, and hide no bias of the others."""
    value = 100 * random_values(1, 500)
    expected = modelled(value)
    expected.deviation[:250] = INF
    result = verdict_on(value + np.sign(value), expected)
    assert result.bias is not None
    assert result.bias > 8


# --- False alarms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [MIN_SAMPLE, 100, 1000, 10_000, MAX_SAMPLE])
def test_normal_errors_exceed_the_limit_of_the_mean_square_once_in_a_billion_cases(
    count: int,
) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert stats.chi2.sf(count * mean_square_limit(count), count) < 1.1e-10
    # And the limit is not far from where it has to be.
    assert stats.chi2.sf(count * (1 + 0.55 * (mean_square_limit(count) - 1)), count) > 1e-10


def test_a_bias_by_chance_is_as_rare() -> None:
    """Hoeffding's bound for sub-Gaussian errors, which holds for a handful of outputs too."""
    assert 5 * 2 * math.exp(-(BIAS_LIMIT**2) / 2) < 1e-9


@pytest.mark.parametrize(("rows", "columns"), [(40, 100), (1, 4000), (2000, 2)])
def test_errors_that_rows_share_raise_no_alarm_if_the_model_knows(rows: int, columns: int) -> None:
    """All error is common to a row: independent elements would make 8 deviations an everyday affair."""
    everywhere = np.ones((rows, columns))
    groups = np.broadcast_to(np.arange(rows)[:, None], everywhere.shape)
    sharing = Sharing(1.0, 0.0 * everywhere, ((everywhere, groups),))
    worst = 0.0
    for seed in range(100):
        value = 100 + random_values(seed, rows, columns)
        output = value + random_values(1000 + seed, rows, 1)
        plain = modelled(value)
        known = Expected(
            value, plain.bound, plain.deviation, plain.may_be_nan, plain.dtype, sharing
        )
        result = verdict_on(output, known)
        assert result.verdict is Verdict.PASSED, result.message
        unknown = verdict_on(output, plain)
        assert result.bias is not None
        assert unknown.bias is not None
        assert result.bias == pytest.approx(unknown.bias / math.sqrt(columns))
        worst = max(worst, abs(unknown.bias))
    assert worst > BIAS_LIMIT or columns < 10


def test_a_matrix_product_of_operands_with_errors_raises_no_alarm_if_the_model_knows() -> None:
    """An operand's error shows in a row of 60 results: the fan of the variance."""
    for seed in range(50):
        error, factors = random_values(seed, 30, 4), np.abs(random_values(900 + seed, 4, 60))
        value = 100 + random_values(500 + seed, 30, 60)
        deviation = np.broadcast_to(np.sqrt(np.sum(np.square(factors), axis=0)), value.shape)
        nowhere = np.zeros(value.shape, np.bool_)
        sharing = Sharing(60.0, np.ones(value.shape), ())
        expected = Expected(value, 8 * deviation, deviation, nowhere, DTYPES["float64"], sharing)
        result = verdict_on(value + error @ factors, expected)
        assert result.verdict is Verdict.PASSED, result.message


def test_what_the_last_rounding_is_known_to_do_is_no_bias() -> None:
    """x − c in float16, x of few bits: all of a binade are rounded by the same amount."""
    x = rounded(random_values(0, 8192), "float16")
    call = spec.softmax_forward.bind(x, variant="log")
    (expected,) = expectations(call, {"x": x}, "ieee")
    y = ref.softmax_forward(x, variant="log")
    known = judge(["y"], [y], [expected], [x]).bias
    unknown = judge(["y"], [y], [replace(expected, centre=0.0, sharing=None)], [x]).bias
    assert known is not None
    assert unknown is not None
    assert abs(known) < BIAS_LIMIT / 2 < abs(unknown)


# --- The distribution of errors -------------------------------------------------------------------


def test_99_percent_of_the_elements_are_within_the_percentile() -> None:
    value = np.full(1000, 100.0)
    error = np.arange(1000) / 1000
    result = verdict_on(value + error, expecting(value, 1.0, "float64"))
    assert result.max_error == pytest.approx(0.999)
    assert result.p99_error == pytest.approx(0.989)
    assert np.mean(error <= result.p99_error + 1e-9) == pytest.approx(0.99)


def test_what_may_overflow_half_way_may_be_anything() -> None:
    expected = expecting([1.0, 5.0], [np.inf, 0.1], "float16")
    for got in (1.0, INF, -INF, NAN):
        assert verdict_on([got, 5.0], expected).verdict is Verdict.PASSED
    assert verdict_on([1.0, INF], expected).verdict is Verdict.FAILED
