"""Pointwise operations on cases worked out by hand, against NumPy, and where decisions are about edges."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference import pointwise as defined
from dnncanon.spec.pointwise import FLOATS, MODES

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def result(mode: str, *tensors: Any, **attributes: Any) -> list[Any]:
    """The result for operands of float64, as a list."""
    given = [t if isinstance(t, np.ndarray) else np.array(t, np.float64) for t in tensors]
    return list(ref.pointwise_operation(*given, mode=mode, **attributes).tolist())


def test_each_table_has_the_modes_of_the_specification() -> None:
    tables: dict[int, dict[str, Any]] = {1: defined.UNARY, 2: defined.BINARY, 3: defined.TERNARY}
    for operands, table in tables.items():
        assert set(table) == {m.name for m in MODES.values() if len(m.operands) == operands}


def test_there_are_the_fifty_two_modes_of_cudnn() -> None:
    assert len(MODES) == 52


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "x", "b", "y"),
    [
        ("add", [1, 2], [10, 20], [11, 22]),
        ("sub", [1, 2], [10, 20], [-9, -18]),
        ("mul", [3, 2], [10, 20], [30, 40]),
        ("div", [3, 2, -1], [2, 0, 0], [1.5, INF, -INF]),
        ("add_square", [1, 2], [-3, 4], [10, 18]),
        ("min", [1, 5], [3, 4], [1, 4]),
        ("max", [1, 5], [3, 4], [3, 5]),
        ("mod", [7, -7, 7, -7], [3, 3, -3, -3], [1, -1, 1, -1]),
        ("floor_mod", [7, -7, 7, -7], [3, 3, -3, -3], [1, 2, -2, -1]),
        ("floor_mod", [6, -6, 0], [3, -3, -3], [0, 0, 0]),
        ("pow", [2, 2, 4, 0], [3, -1, 0.5, 0], [8, 0.5, 2, 1]),
        ("atan2", [0, 1, 0, -1], [1, 0, -1, 0], [0, np.pi / 2, np.pi, -np.pi / 2]),
        ("cmp_eq", [1, 2, 3], [1, 3, 2], [True, False, False]),
        ("cmp_neq", [1, 2, 3], [1, 3, 2], [False, True, True]),
        ("cmp_gt", [1, 2, 3], [1, 3, 2], [False, False, True]),
        ("cmp_ge", [1, 2, 3], [1, 3, 2], [True, False, True]),
        ("cmp_lt", [1, 2, 3], [1, 3, 2], [False, True, False]),
        ("cmp_le", [1, 2, 3], [1, 3, 2], [True, True, False]),
    ],
)
def test_values_of_two_operands(mode: str, x: list[float], b: list[float], y: list[Any]) -> None:
    assert result(mode, x, b) == pytest.approx(y)


@pytest.mark.parametrize(
    ("mode", "function"),
    [
        ("identity", lambda x: x),
        ("abs", np.abs),
        ("neg", np.negative),
        ("ceil", np.ceil),
        ("floor", np.floor),
        ("sqrt", np.sqrt),
        ("rsqrt", lambda x: x**-0.5),
        ("reciprocal", np.reciprocal),
        ("exp", np.exp),
        ("log", np.log),
        ("sin", np.sin),
        ("cos", np.cos),
        ("tan", np.tan),
    ],
)
def test_values_of_one_operand(mode: str, function: Any) -> None:
    x = np.linspace(0.1, 7.3, 37)
    assert result(mode, x) == pytest.approx(function(x).tolist())
    if mode not in ("log", "sqrt", "rsqrt"):
        assert result(mode, -x) == pytest.approx(function(-x).tolist())


def test_erf_of_a_table() -> None:
    """Abramowitz and Stegun, table 7.1."""
    assert result("erf", [0, 0.5, -1, 2]) == pytest.approx(
        [0, 0.5204998778, -0.8427007929, 0.9953222650]
    )


@pytest.mark.parametrize(("mode", "same"), [("relu", "relu"), ("gelu_approx_tanh", "gelu_tanh")])
def test_activations_are_those_of_the_other_family(mode: str, same: str) -> None:
    x, dy = np.linspace(-3, 3, 31), np.linspace(1, 2, 31)
    assert np.array_equal(result(f"{mode}_fwd", x), ref.activation_forward(x, mode=same))
    assert np.array_equal(result(f"{mode}_bwd", dy, x), ref.activation_backward(dy, x, mode=same))


BACKWARD = [name for name in MODES if name.endswith("_bwd")]
PARAMETERS: dict[str, Any] = {
    "relu_lower_clip": -0.55,
    "relu_upper_clip": 1.95,
    "relu_lower_clip_slope": 0.25,
    "elu_alpha": 1.5,
    "softplus_beta": 2.0,
    "swish_beta": 0.5,
}


@pytest.mark.parametrize("mode", BACKWARD)
def test_gradients_are_those_of_central_differences(mode: str) -> None:
    x, dy, h = np.linspace(-4.9, 4.9, 98), np.linspace(1, 2, 98), 1e-6
    forward = mode.replace("_bwd", "_fwd")
    low, high = (np.array(result(forward, x + s, **PARAMETERS)) for s in (-h, h))
    expected = dy * (high - low) / (2 * h)
    assert result(mode, dy, x, **PARAMETERS) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


def test_relu_has_two_clips_and_a_slope() -> None:
    clips = {"relu_lower_clip": 1.0, "relu_upper_clip": 3.0, "relu_lower_clip_slope": 0.5}
    assert result("relu_fwd", [-1, 1, 2, 3, 4], **clips) == [0, 1, 2, 3, 3]
    assert result("relu_bwd", [8.0] * 5, [-1, 1, 2, 3, 4], **clips) == [4, 4, 8, 0, 0]


def test_a_flat_piece_hides_what_is_not_finite() -> None:
    assert result("relu_fwd", [-INF], relu_lower_clip=-1.0) == [-1]
    assert result("relu_bwd", [NAN, INF], [-1.0, -1.0]) == [0, 0]


def test_gen_index_counts_along_its_axis() -> None:
    x = np.full((2, 3), NAN, np.float16)
    rows = ref.pointwise_operation(x, mode="gen_index")
    assert (rows.dtype, rows.tolist()) == (np.int32, [[0, 0, 0], [1, 1, 1]])
    assert ref.pointwise_operation(x, mode="gen_index", axis=-1).tolist() == [[0, 1, 2]] * 2


def test_select_takes_x_where_the_condition_holds() -> None:
    t = np.array([True, False, True])
    assert result("binary_select", [1, NAN, 3], [NAN, 5, NAN], t) == [1, 5, 3]
    chosen = ref.pointwise_operation(
        np.array([1, 2, 3], np.int8), np.array([4, 5, 6], np.int8), t, mode="binary_select"
    )
    assert (chosen.dtype, chosen.tolist()) == (np.int8, [1, 5, 3])


def test_logic() -> None:
    x, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert ref.pointwise_operation(x, b, mode="logical_and").tolist() == [False, False, False, True]
    assert ref.pointwise_operation(x, b, mode="logical_or").tolist() == [False, True, True, True]
    assert ref.pointwise_operation(x, mode="logical_not").tolist() == [True, True, False, False]


# --- Scaling and broadcasting ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "y"),
    [
        ("add", 2 * 3 + 5 * 7),
        ("sub", 2 * 3 - 5 * 7),
        ("mul", 2 * 3 * 5 * 7),
        ("div", 6 / 35),
        ("add_square", 6 + 35**2),
        ("min", 6),
        ("max", 35),
    ],
)
def test_factors_scale_the_operands(mode: str, y: float) -> None:
    assert result(mode, [3.0], [7.0], alpha1=2.0, alpha2=5.0) == [y]


def test_a_factor_scales_the_only_operand() -> None:
    assert result("exp", [1.0, 2.0], alpha1=0.5) == pytest.approx([np.exp(0.5), np.exp(1.0)])


@pytest.mark.parametrize("mode", ["floor", "cmp_eq", "mod", "relu_fwd"])
def test_what_jumps_is_not_scaled(mode: str) -> None:
    tensors = [np.ones(2)] * len(MODES[mode].operands)
    with pytest.raises(
        spec.AttributeValueError, match=f"C9: alpha1=2.0 with mode='{mode}' of float64"
    ):
        ref.pointwise_operation(*tensors, mode=mode, alpha1=2.0)


def test_integers_are_not_scaled() -> None:
    x = np.ones(2, np.int32)
    with pytest.raises(spec.AttributeValueError, match=r"C9: alpha2=0\.5 with mode='add' of int32"):
        ref.pointwise_operation(x, x, mode="add", alpha2=0.5)


def test_every_operand_is_broadcast() -> None:
    x, b, t = np.array([[1.0, 2.0]]), np.array([[10.0], [20.0]]), np.array([[True, False]])
    assert result("add", x, b) == [[11, 12], [21, 22]]
    assert result("binary_select", x, b, t) == [[1, 10], [1, 20]]
    assert result("add", np.ones((1, 3)), np.ones((0, 1))) == []
    with pytest.raises(spec.ShapeError, match=r"C6: x of shape \(2, 3\) and b of shape \(2, 2\)"):
        ref.pointwise_operation(np.ones((2, 3)), np.ones((2, 2)), mode="add")
    with pytest.raises(spec.ShapeError, match="C3: x has rank 2, b has rank 1"):
        ref.pointwise_operation(np.ones((2, 3)), np.ones(3), mode="add")


# --- Special values -------------------------------------------------------------------------------


def test_nan_is_the_minimum_and_the_maximum() -> None:
    for mode in ("min", "max"):
        assert np.isnan(result(mode, [NAN, 1], [1, NAN])).all()


def test_comparisons_with_nan_are_false_but_for_inequality() -> None:
    for name in ("eq", "gt", "ge", "lt", "le"):
        assert result(f"cmp_{name}", [NAN, 1, NAN], [1, NAN, NAN]) == [False] * 3
    assert result("cmp_neq", [NAN, 1, NAN], [1, NAN, NAN]) == [True] * 3


@pytest.mark.parametrize(
    ("mode", "x", "b", "y"),
    [
        ("pow", [NAN, 1, -8, 0], [0, NAN, 1 / 3, -1], [1, 1, NAN, INF]),
        ("mod", [5, 5, INF], [INF, 0, 2], [5, NAN, NAN]),
        ("floor_mod", [5, -5, 5], [INF, INF, 0], [5, INF, NAN]),
        ("div", [0, INF, 1], [0, INF, INF], [NAN, NAN, 0]),
        ("atan2", [0.0, INF], [-0.0, INF], [np.pi, np.pi / 4]),
    ],
)
def test_special_operands(mode: str, x: list[float], b: list[float], y: list[float]) -> None:
    np.testing.assert_allclose(result(mode, x, b), y)


def test_domain_errors_give_nan_and_poles_infinity() -> None:
    assert np.isnan(result("sqrt", [-1.0]) + result("log", [-1.0]) + result("rsqrt", [-1.0])).all()
    assert result("log", [0.0]) + result("rsqrt", [0.0]) + result("reciprocal", [-0.0]) == [
        -INF,
        INF,
        -INF,
    ]


# --- Element types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "x", "b", "y"),
    [
        ("add", [100, -100], [100, -100], [127, -128]),
        ("mul", [100, -100], [100, 100], [127, -128]),
        ("sub", [-128, 127], [1, -1], [-128, 127]),
        ("add_square", [-1, 0], [11, 12], [120, 127]),
        ("mod", [-7, 7], [2, 0], [-1, 0]),
        ("floor_mod", [-7, 7], [2, 0], [1, 0]),
    ],
)
def test_integers_saturate(mode: str, x: list[int], b: list[int], y: list[int]) -> None:
    small = ref.pointwise_operation(np.array(x, np.int8), np.array(b, np.int8), mode=mode)
    assert (small.dtype, small.tolist()) == (np.int8, y)


def test_the_least_integer_has_no_negative() -> None:
    for dtype in (np.int8, np.int32):
        least, most = np.array([np.iinfo(dtype).min], dtype), np.iinfo(dtype).max
        assert ref.pointwise_operation(least, mode="neg").tolist() == [most]
        assert ref.pointwise_operation(least, mode="abs").tolist() == [most]
        assert ref.pointwise_operation(least, least, mode="mul").tolist() == [most]


@pytest.mark.parametrize("mode", MODES)
def test_result_types(mode: str) -> None:
    row = MODES[mode]
    for dtype in row.dtypes:
        operand = np.ones(3, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        tensors = [operand] * len(row.operands[:2]) + [np.ones(3, bool)] * (len(row.operands) == 3)
        y = ref.pointwise_operation(*tensors, mode=mode)
        assert y.dtype.name == (row.y or dtype)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("exp", "int32"), ("logical_and", "float32"), ("add", "bool"), ("div", "int8")],
)
def test_modes_without_an_element_type_say_which_they_have(mode: str, dtype: str) -> None:
    x = np.ones(2, dtype)
    tensors = [x] * len(MODES[mode].operands)
    with pytest.raises(
        spec.DTypeError, match=f"C4: x is {dtype}; with mode='{mode}' convert it to one of"
    ):
        ref.pointwise_operation(*tensors, mode=mode)


def test_operands_are_those_of_the_mode() -> None:
    x = np.ones(2)
    with pytest.raises(
        spec.AttributeValueError, match="C2: mode='add' takes x, b, and is given x; pass just"
    ):
        ref.pointwise_operation(x, mode="add")
    with pytest.raises(spec.AttributeValueError, match="C2: mode='exp' takes x, and is given x, b"):
        ref.pointwise_operation(x, x, mode="exp")
    with pytest.raises(spec.AttributeValueError, match=r"C1: mode='addd'; pass one of .*, add"):
        ref.pointwise_operation(x, x, mode="addd")


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_result_is_rounded_once(dtype: str) -> None:
    """1 + 2^-9·(1 + 2^-9), of which float16 and bfloat16 must see the whole, not a sum of rounded squares."""
    kind = spec.DTYPES[dtype].numpy
    x, b = np.array([1.0]).astype(kind), np.array([0.0625]).astype(kind)
    y = ref.pointwise_operation(x, b, mode="add_square")
    assert y == np.array([1.0 + 0.0625**2]).astype(kind)
