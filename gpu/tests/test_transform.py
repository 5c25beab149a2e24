"""Tensor operators and casts of the GPU library against NumPy: values, element types, broadcasting, edges."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.kernels import transform as kernels
from dnncanon.gpu.words import word_of
from dnncanon.spec import DTYPES
from dnncanon.spec.transform import CASTABLE

Array = np.ndarray[Any, Any]
NAN, INF = np.nan, np.inf


def integers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).integers(-4, 5, shape)
    return np.asarray(drawn).astype(dtype)


def op(name: str, *tensors: Any, **attributes: Any) -> Array:
    given = [None if t is None else np.asarray(t) for t in tensors]
    return np.asarray(gpu.op_tensor(*given, op=name, **attributes))


# --- op_tensor, add, scale ------------------------------------------------------------------------

EXPECTED = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_operators_of_two(name: str, dtype: Any) -> None:
    a, b, c = (integers(3, 4, 37, dtype=dtype, seed=seed) for seed in range(3))
    wide = [t.astype(np.float64) for t in (a, b, c)]
    expected = EXPECTED[name](2 * wide[0], -wide[1])
    got = op(name, a, b, alpha1=2.0, alpha2=-1.0)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got.astype(np.float64), expected)
    added = op(name, a, b, c, alpha1=2.0, alpha2=-1.0, beta=0.5)
    np.testing.assert_array_equal(added.astype(np.float64), expected + wide[2] / 2)


def test_operators_of_one() -> None:
    a, c = np.array([1.0, 4.0, 9.0]), np.array([2.0, 4.0, 6.0])
    assert op("sqrt", a, alpha1=4.0).tolist() == [2, 4, 6]
    assert op("not", a).tolist() == [0, -3, -8]
    assert op("sqrt", a, None, c, beta=0.5).tolist() == [2, 4, 6]
    assert op("not", a, None, c, beta=0.5).tolist() == [1, -1, -5]


def test_b_is_broadcast_and_strides_are_any() -> None:
    a, b = integers(6, 5, 8).transpose(2, 0, 1), integers(1, 6, 1)
    np.testing.assert_array_equal(op("mul", a, b), a * b)


def test_a_nan_propagates_or_gives_way() -> None:
    a, b = [NAN, 1.0, NAN], [2.0, NAN, NAN]
    np.testing.assert_array_equal(op("max", a, b), [NAN, NAN, NAN])
    np.testing.assert_array_equal(op("max", a, b, nan_propagation="not_propagate"), [2, 1, NAN])
    np.testing.assert_array_equal(op("min", a, b, nan_propagation="not_propagate"), [2, 1, NAN])


def test_a_bias_is_added_and_beta_0_leaves_c_unread() -> None:
    bias, c = integers(1, 7, 1), integers(2, 7, 33, seed=1)
    got = np.asarray(gpu.add_tensor(bias, c, alpha=2.0, beta=-1.0))
    np.testing.assert_array_equal(got, 2 * bias - c)
    unread = np.asarray(gpu.add_tensor(bias, np.full_like(c, NAN), beta=0.0))
    np.testing.assert_array_equal(unread, np.broadcast_to(bias, c.shape))


def test_a_factor_of_0_keeps_what_is_not_finite() -> None:
    got = np.asarray(gpu.scale_tensor(np.array([1, INF, NAN], np.float16), alpha=0.0))
    np.testing.assert_array_equal(got, [0, NAN, NAN])


# --- set_tensor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
@pytest.mark.parametrize("strides", [(37, 1), (1, 5), (80, 2)])
def test_one_number_everywhere(dtype: str, strides: tuple[int, int]) -> None:
    y = gpu.empty((5, 37), DTYPES[dtype].numpy, strides)
    gpu.set_tensor(shape=(5, 37), dtype=dtype, value=1.0, out=y)
    assert (y.to_host().astype(np.float64) == 1.0).all()


def test_words_are_rounded_once() -> None:
    assert float(word_of(1.0 + 2.0**-11 + 2.0**-40, "float16")[0]) == 1.0 + 2.0**-10
    assert float(word_of(1.0 + 2.0**-11, "float16")[0]) == 1.0
    assert float(word_of(-1.0 - 2.0**-8 - 2.0**-50, "bfloat16")[0]) == -1.0 - 2.0**-7
    assert word_of(2.5, "int8").tolist() == [2]
    assert word_of(1e30, "int64").tolist() == [2**63 - 1]
    assert np.isnan(word_of(465.0, "float8_e4m3fn").astype(np.float32)[0])
    assert float(word_of(1e300, "float32")[0]) == INF


# --- cast -----------------------------------------------------------------------------------------


def test_every_castable_type_is_of_one_class() -> None:
    several = [name for row in kernels.CLASSES.values() for name in row]
    assert len(several) == len(set(several))
    assert {*several} <= {*CASTABLE}


def test_floats_to_bytes() -> None:
    x = np.array([0.5, 1.5, -2.5, 127.5, 1e30, -INF, NAN, 465.0, -0.0], np.float32)
    as_int8 = np.asarray(gpu.cast(x, dtype="int8"))
    assert as_int8.dtype == np.int8
    assert as_int8.tolist() == [0, 2, -2, 127, 127, -128, 0, 127, 0]
    assert np.asarray(gpu.cast(x, dtype="uint8")).tolist() == [0, 2, 0, 128, 255, 0, 0, 255, 0]
    assert np.asarray(gpu.cast(x, dtype="bool")).tolist() == [*[True] * 8, False]


@pytest.mark.parametrize("saturate", [False, True])
def test_floats_of_8_bits_may_saturate(saturate: bool) -> None:
    x = np.array([464.0, 465.0, -1e9, INF, NAN, 61440.0], np.float32)
    y = np.asarray(gpu.cast(x, dtype="float8_e4m3fn", saturate=saturate)).astype(np.float32)
    expected = [448, 448, -448, 448, NAN, 448] if saturate else [448, *[NAN] * 5]
    np.testing.assert_array_equal(y, expected)
    z = np.asarray(gpu.cast(x, dtype="float8_e5m2", saturate=saturate)).astype(np.float32)
    assert z[-1] == (57344.0 if saturate else INF)


def test_integers_are_exact_and_saturate() -> None:
    x = np.array([2**62 + 1, -(2**63), 300, -1], np.int64)
    assert np.asarray(gpu.cast(x, dtype="int64")).tolist() == x.tolist()
    assert np.asarray(gpu.cast(x, dtype="int32")).tolist() == [2**31 - 1, -(2**31), 300, -1]
    assert np.asarray(gpu.cast(x, dtype="uint32")).tolist() == [2**32 - 1, 0, 300, 0]
    large = np.array([2**32 - 1, 2**31], np.uint32)
    assert np.asarray(gpu.cast(large, dtype="float64")).tolist() == [2.0**32 - 1, 2.0**31]


def test_a_cast_of_strided_tensors() -> None:
    x = integers(6, 7, 9).transpose(1, 2, 0)
    y = gpu.empty(x.shape, np.float16, (1, 7, 70))
    gpu.cast(x, dtype="float16", out=y)
    np.testing.assert_array_equal(y.to_host(), x.astype(np.float16))
