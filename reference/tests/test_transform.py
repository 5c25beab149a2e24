"""Tensor operators and casts on cases worked out by hand, against NumPy, and at the edges of decisions."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference import transform as defined
from dnncanon.spec import DTYPES
from dnncanon.spec.transform import CASTABLE, OPS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
A, B, C = np.array([1.0, -4.0, 9.0]), np.array([2.0, 3.0, -1.0]), np.array([10.0, 20.0, 30.0])


def op(name: str, *tensors: Any, **attributes: Any) -> list[Any]:
    given = [None if t is None else np.asarray(t, np.float64) for t in tensors]
    return list(ref.op_tensor(*given, op=name, **attributes).tolist())


def cast(values: Any, source: str, to: str, **attributes: Any) -> list[Any]:
    x = np.asarray(values).astype(DTYPES[source].numpy)
    y = ref.cast(x, dtype=to, **attributes)
    assert y.dtype == DTYPES[to].numpy
    return list(y.astype(np.float64 if DTYPES[to].is_float else y.dtype).tolist())


def test_the_tables_have_the_operators_of_the_specification() -> None:
    assert {*defined.UNARY} == {o.name for o in OPS.values() if len(o.operands) == 1}
    assert {*defined.BINARY} == {o.name for o in OPS.values() if len(o.operands) == 2}


# --- op_tensor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [3, -1, 8]),
        ("mul", [2, -12, -9]),
        ("min", [1, -4, -1]),
        ("max", [2, 3, 9]),
    ],
)
def test_binary_operators(name: str, expected: list[float]) -> None:
    assert op(name, A, B) == expected


def test_unary_operators() -> None:
    assert op("sqrt", np.abs(A)) == [1, 2, 3]
    assert op("not", [0, 1, 0.25]) == [1, 0, 0.75]


def test_operands_are_scaled_before_the_operator_and_c_behind_it() -> None:
    scales = {"alpha1": 2.0, "alpha2": -1.0, "beta": 0.5}
    assert op("add", A, B, C, **scales) == [2 - 2 + 5, -8 - 3 + 10, 18 + 1 + 15]
    assert op("mul", A, B, C, **scales) == [-4 + 5, 24 + 10, 18 + 15]
    assert op("max", A, B, C, **scales) == [2 + 5, -3 + 10, 18 + 15]
    assert op("sqrt", np.abs(A), None, C, alpha1=4.0, beta=0.5) == [2 + 5, 4 + 10, 6 + 15]
    assert op("not", A, None, C, alpha1=2.0, beta=0.5) == [-1 + 5, 9 + 10, -17 + 15]


def test_b_is_broadcast_in_any_dims() -> None:
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(3.0).reshape(1, 3, 1)
    np.testing.assert_array_equal(ref.op_tensor(a, b, op="mul"), a * b)


def test_a_nan_propagates_or_gives_way() -> None:
    a, b = [NAN, 1.0, NAN, -1.0], [2.0, NAN, NAN, -2.0]
    np.testing.assert_array_equal(op("max", a, b), [NAN, NAN, NAN, -1])
    np.testing.assert_array_equal(op("max", a, b, nan_propagation="not_propagate"), [2, 1, NAN, -1])
    np.testing.assert_array_equal(op("min", a, b, nan_propagation="not_propagate"), [2, 1, NAN, -2])
    np.testing.assert_array_equal(
        op("add", a, b, nan_propagation="not_propagate"), [NAN] * 3 + [-3]
    )


def test_c_is_given_just_when_beta_is_not_0() -> None:
    with pytest.raises(spec.AttributeValueError, match="C3: op='add' with beta=0"):
        ref.op_tensor(A, B, C, op="add")
    with pytest.raises(spec.AttributeValueError, match="C3: op='add' with beta=1"):
        ref.op_tensor(A, B, op="add", beta=1.0)


# --- add, scale, set ------------------------------------------------------------------------------


def test_a_bias_is_added() -> None:
    bias, c = np.arange(3.0).reshape(1, 3, 1), np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(ref.add_tensor(bias, c, alpha=2.0, beta=0.5), 2 * bias + c / 2)


def test_with_beta_0_c_only_gives_the_shape() -> None:
    c = np.full((2, 3), NAN)
    np.testing.assert_array_equal(ref.add_tensor(np.ones((1, 3)), c, beta=0.0), np.ones((2, 3)))


def test_a_factor_of_0_keeps_what_is_not_finite() -> None:
    np.testing.assert_array_equal(
        ref.scale_tensor(np.array([1, INF, NAN]), alpha=0.0), [0, NAN, NAN]
    )


def test_scaled_numbers_are_rounded_once() -> None:
    x = np.array([1.0009765625], np.float16)
    assert float(ref.scale_tensor(x, alpha=3.0)[0]) == float(np.float16(3.0029296875))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", 0.1, float(np.float32(0.1))),
        ("int8", 2.5, 2),
        ("int8", -1000.0, -128),
        ("uint8", -3.0, 0),
        ("bool", 0.25, True),
        ("float8_e5m2", 1e9, INF),
        ("int64", 2.0**62, 2**62),
    ],
)
def test_a_value_is_converted(dtype: str, value: float, expected: float) -> None:
    y = ref.set_tensor(shape=(2, 1), dtype=dtype, value=value)
    assert y.shape == (2, 1)
    assert y.dtype == DTYPES[dtype].numpy
    assert [float(v) for v in y.ravel()] == [expected] * 2


# --- cast -----------------------------------------------------------------------------------------


def test_integers_round_to_even_and_saturate_and_have_no_nan() -> None:
    values = [0.5, 1.5, -2.5, 127.5, 1e30, -INF, NAN]
    assert cast(values, "float32", "int8") == [0, 2, -2, 127, 127, -128, 0]
    assert cast(values, "float32", "uint8") == [0, 2, 0, 128, 255, 0, 0]
    assert cast(values, "float64", "int64") == [0, 2, -2, 128, 2**63 - 1, -(2**63), 0]
    assert cast([300, -300, 7], "int32", "int8") == [127, -128, 7]


def test_everything_but_zero_is_true() -> None:
    assert cast([0.0, -0.0, 1e-40, NAN, -INF], "float32", "bool") == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert cast([True, False], "bool", "float16") == [1, 0]


def test_floats_overflow_as_their_format_can() -> None:
    values = [464.0, 465.0, -1e9, INF, NAN]
    np.testing.assert_array_equal(cast(values, "float32", "float8_e4m3fn"), [448, *[NAN] * 4])
    np.testing.assert_array_equal(
        cast([61439.0, 61440.0, -INF, NAN], "float32", "float8_e5m2"), [57344, INF, -INF, NAN]
    )
    np.testing.assert_array_equal(cast([65519.0, 65520.0], "float32", "float16"), [65504, INF])


def test_saturation_takes_the_ends_for_what_is_beyond() -> None:
    values = [465.0, -1e9, INF, NAN, 1.0]
    for to, most in (("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0), ("float16", 65504.0)):
        expected = [min(465.0, most), max(-1e9, -most), most, NAN, 1.0]
        if to == "float8_e5m2":
            expected[0] = 448.0
        np.testing.assert_array_equal(cast(values, "float32", to, saturate=True), expected)


def test_a_cast_is_one_rounding_to_nearest_even() -> None:
    """1 + 2^-11 + 2^-30 would be rounded to a tie on its way through float32."""
    value = 1.0 + 2.0**-11 + 2.0**-30
    assert cast([value], "float64", "float16") == [1.0 + 2.0**-10]
    assert cast([1.0 + 2.0**-11], "float64", "float16") == [1.0]
    assert cast([1.0 + 2.0**-8], "float32", "bfloat16") == [1.0]


def test_large_integers_are_exact() -> None:
    large = 2**62 + 1
    assert cast([large], "int64", "int64") == [large]
    assert cast([2**53 + 1], "int64", "float64") == [2.0**53]
    assert cast([2**24 + 1, 2**24 + 3], "int32", "float32") == [2**24, 2**24 + 4]


@pytest.mark.parametrize("source", CASTABLE)
@pytest.mark.parametrize("to", CASTABLE)
def test_every_pair_of_types_keeps_small_integers(source: str, to: str) -> None:
    assert [float(v) for v in cast([0, 1], source, to)] == [0, 1]


@pytest.mark.parametrize("source", ["float64", "float32", "float16"])
@pytest.mark.parametrize("to", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_casts_agree_with_ml_dtypes(source: str, to: str) -> None:
    x = np.random.default_rng(3).normal(size=2000) * 2.0 ** np.arange(-20, 20).repeat(50)
    with np.errstate(over="ignore"):
        x = x.astype(source)
        expected = x.astype(np.float64 if source == "float64" else np.float32)
        expected = expected.astype(DTYPES[to].numpy)
    got = ref.cast(x, dtype=to)
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def test_the_types_of_block_scaling_are_not_cast() -> None:
    with pytest.raises(spec.DTypeError, match="C2: x is float4_e2m1fn"):
        ref.cast(np.zeros(3, ml_dtypes.float4_e2m1fn), dtype="float32")
    with pytest.raises(spec.AttributeValueError, match="C3: dtype='float8_e8m0fnu'"):
        ref.cast(np.zeros(3), dtype="float8_e8m0fnu")
