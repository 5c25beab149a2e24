"""Pointwise operations of the GPU library against NumPy: values, element types, broadcasting, edges."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from dnncanon import gpu
from dnncanon.gpu.kernels import pointwise as kernels
from dnncanon.gpu.kernels.pointwise import selected
from dnncanon.spec.pointwise import FLOATS, MODES

Array = np.ndarray[Any, Any]
A, B = np.linspace(-4.1, 4.3, 43), np.linspace(2.9, -3.3, 43)
P = np.linspace(0.1, 9.7, 43)

UNARY: dict[str, tuple[Callable[[Array], Array], Array]] = {
    "identity": (lambda x: x, A),
    "abs": (np.abs, A),
    "neg": (np.negative, A),
    "ceil": (np.ceil, A),
    "floor": (np.floor, A),
    "sqrt": (np.sqrt, P),
    "rsqrt": (lambda x: x**-0.5, P),
    "reciprocal": (np.reciprocal, A),
    "exp": (np.exp, A),
    "log": (np.log, P),
    "erf": (special.erf, A),
    "sin": (np.sin, A),
    "cos": (np.cos, A),
    "tan": (np.tan, A),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "add_square": lambda x, b: x + b * b,
    "min": np.minimum,
    "max": np.maximum,
    "mod": np.fmod,
    "floor_mod": np.remainder,
    "pow": lambda x, b: np.power(np.abs(x), b),
    "atan2": np.arctan2,
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
}
ON_INTEGERS = ("add", "sub", "mul", "add_square", "min", "max", "mod", "floor_mod")


def result(mode: str, *tensors: Any, **attributes: Any) -> Array:
    return np.asarray(gpu.pointwise_operation(*map(np.asarray, tensors), mode=mode, **attributes))


def test_every_mode_of_every_type_has_a_function() -> None:
    for mode in MODES.values():
        for dtype in mode.dtypes:
            function, _ = selected(dtype, mode.name)
            assert callable(function)


def test_the_tables_have_modes_of_the_specification() -> None:
    others = {*kernels.COMPARISONS, *kernels.OTHERS, *kernels.relu("float32")}
    activations = {f"{name}{way}" for name in kernels.ACTIVATIONS for way in ("_fwd", "_bwd")}
    floats = {*kernels.unary("float32"), *kernels.binary("float32"), *others, *activations}
    assert floats == {m.name for m in MODES.values() if "float32" in m.dtypes}
    integers = {name for table in kernels.INTEGERS.values() for name in table} | others
    assert integers >= {m.name for m in MODES.values() if {"int32", "bool"} & {*m.dtypes}}


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", UNARY)
def test_values_of_one_operand(mode: str) -> None:
    function, x = UNARY[mode]
    np.testing.assert_allclose(result(mode, x), function(x), rtol=1e-14)
    small = x.astype(np.float32)
    np.testing.assert_allclose(result(mode, small), function(small), rtol=1e-6)


@pytest.mark.parametrize("mode", BINARY)
def test_values_of_two_operands(mode: str) -> None:
    x = np.abs(A) if mode == "pow" else A
    np.testing.assert_allclose(result(mode, x, B), BINARY[mode](x, B), rtol=1e-14)
    small = x.astype(np.float32), B.astype(np.float32)
    np.testing.assert_allclose(result(mode, *small), BINARY[mode](*small), rtol=1e-6)


@pytest.mark.parametrize("mode", ON_INTEGERS)
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_integers_saturate_and_have_no_remainder_by_zero(mode: str, dtype: Any) -> None:
    ends = np.iinfo(dtype)
    some = np.array([ends.min, ends.min + 1, -7, -1, 0, 1, 3, ends.max - 1, ends.max], np.int64)
    x, b = (part.ravel() for part in np.meshgrid(some, some))
    with np.errstate(divide="ignore"):
        expected = np.clip(BINARY[mode](x, b), ends.min, ends.max)  # NumPy has x mod 0 = 0
    got = result(mode, x.astype(dtype), b.astype(dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


def test_the_least_integer_has_no_negative() -> None:
    least = np.array([-128, -1], np.int8)
    assert result("neg", least).tolist() == result("abs", least).tolist() == [127, 1]


def test_logic_and_choices() -> None:
    x, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert result("logical_and", x, b).tolist() == [False, False, False, True]
    assert result("logical_or", x, b).tolist() == [False, True, True, True]
    assert result("logical_not", x).tolist() == [True, True, False, False]
    assert result("binary_select", [1.0, 2, 3, 4], [5.0, 6, 7, 8], x).tolist() == [5, 6, 3, 4]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gen_index_counts_along_its_axis(axis: int) -> None:
    x = np.full((3, 4, 5), np.nan, np.float32)
    for given in (x, x.transpose(2, 0, 1)):
        expected = np.indices(given.shape)[axis]
        np.testing.assert_array_equal(result("gen_index", given, axis=axis), expected)


def test_relu_has_two_clips_and_a_slope() -> None:
    clips = {"relu_lower_clip": 1.0, "relu_upper_clip": 3.0, "relu_lower_clip_slope": 0.5}
    x = np.array([-1.0, 1, 2, 3, 4])
    assert result("relu_fwd", x, **clips).tolist() == [0, 1, 2, 3, 3]
    assert result("relu_bwd", np.full(5, 8.0), x, **clips).tolist() == [4, 4, 8, 0, 0]
    assert result("relu_fwd", [-np.inf], relu_lower_clip=-1.0).tolist() == [-1]
    assert result("relu_bwd", [np.nan], [-1.0]).tolist() == [0]


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activations_are_those_of_the_other_family(name: str) -> None:
    same = kernels.ACTIVATIONS[name]
    np.testing.assert_array_equal(result(f"{name}_fwd", A), gpu.activation_forward(A, mode=same))
    np.testing.assert_array_equal(
        result(f"{name}_bwd", B, A), gpu.activation_backward(B, A, mode=same)
    )


# --- Factors, shapes, special values --------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_factors_scale_the_operands(dtype: str) -> None:
    x, b = np.array([3.0], dtype), np.array([7.0], dtype)
    factors = {"alpha1": 2.0, "alpha2": 0.5}
    expected = {"add": 9.5, "sub": 2.5, "mul": 21, "add_square": 18.25, "min": 3.5, "max": 6}
    for mode, y in expected.items():
        assert result(mode, x, b, **factors).tolist() == [y]
    assert result("neg", x, alpha1=0.5).tolist() == [-1.5]


def test_every_operand_is_broadcast() -> None:
    x, b = np.arange(6.0).reshape(1, 3, 2), np.arange(4.0).reshape(4, 1, 1)
    t = np.array([True, False]).reshape(1, 1, 2)
    np.testing.assert_array_equal(result("add", x, b), x + b)
    np.testing.assert_array_equal(result("add", b, x), x + b)
    np.testing.assert_array_equal(result("binary_select", x, b, t), np.where(t, x, b))
    assert result("max", np.ones((1, 3)), np.ones((0, 1))).shape == (0, 3)


def test_nan_is_the_minimum_and_the_maximum_and_compares_false() -> None:
    x, b = np.array([np.nan, 1, np.nan]), np.array([1, np.nan, np.nan])
    for mode in ("min", "max"):
        assert np.isnan(result(mode, x, b)).all()
    for mode in ("cmp_eq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le"):
        assert not result(mode, x, b).any()
    assert result("cmp_neq", x, b).all()


def test_division_by_zero_and_domain_errors_do_not_raise() -> None:
    x = np.array([1, -1, 0], np.float32)
    np.testing.assert_array_equal(result("div", x, np.zeros(3, "f")), [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(result("reciprocal", x), [1, -1, np.inf])
    np.testing.assert_array_equal(result("log", x), [0, np.nan, -np.inf])
    np.testing.assert_array_equal(result("rsqrt", x), [1, np.nan, np.inf])
    np.testing.assert_array_equal(result("mod", x, 0 * x), [np.nan] * 3)


def test_nothing_is_read_or_written_out_of_place(monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu.runtime.has_gpu():
        pytest.skip("a GPU does not check")
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, b = np.linspace(-3, 3, 111).reshape(3, 37), np.linspace(1, 2, 37).reshape(1, 37)
    result("floor_mod", x, b)
    result("cmp_lt", x.T, x.T)
    result("gen_index", x[:, ::2], axis=1)
