"""Whatever a caller passes, bind answers with a SpecError that names the constraint."""

import decimal
import fractions
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import spec
from dnncanon.spec.attributes import Flag, Integers, Real, RealPerDim, Reals


class RaisingIndex:
    def __index__(self) -> int:
        raise RuntimeError("no index today")


class RaisingRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


class RaisingFloat:
    def __float__(self) -> float:
        raise KeyError("no float today")


def recursive_list() -> list[Any]:
    result: list[Any] = []
    result.append(result)
    return result


class Array:
    """An array of some library: shape and dtype."""

    def __init__(self, shape: Any, dtype: Any = "float32") -> None:
        self.shape = shape
        self.dtype = dtype


# Values that no attribute has.
NOTHING: dict[str, Callable[[], Any]] = {
    "text": lambda: "ab",
    "empty text": lambda: "",
    "digits": lambda: "1",
    "long text": lambda: "1" * 10_000,
    "bytes": lambda: b"\x01\x01",
    "bytearray": lambda: bytearray(b"\x01\x01"),
    "memoryview": lambda: memoryview(b"\x01\x01"),
    "empty list": list,
    "empty tuple": lambda: (),
    "nested": lambda: [[1]],
    "recursive": recursive_list,
    "nones": lambda: (None, None),
    "words": lambda: ("same", "same"),
    "bools": lambda: (True, True),
    "True": lambda: True,
    "NumPy True": lambda: np.bool_(True),
    "array of bool": lambda: np.array(True),
    "vector": lambda: np.array([1, 2]),
    "short vector": lambda: np.array([1]),
    "matrix": lambda: np.array([[1, 2], [1, 2]]),
    "array of text": lambda: np.array("same"),
    "array of objects": lambda: np.array([None, 1], dtype=object),
    "generator": lambda: (number for number in (1, 2)),
    "set": lambda: {1, 2},
    "dict": lambda: {1: 1, 2: 2},
    "object": object,
    "type": lambda: int,
    "function": lambda: len,
    "complex": lambda: 1 + 2j,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "signalling nan": lambda: decimal.Decimal("sNaN"),
    "raising __index__": RaisingIndex,
    "raising __repr__": RaisingRepr,
    "raising __float__": RaisingFloat,
    "int beyond print": lambda: 10**5000,
    "negative int beyond print": lambda: -(10**5000),
    "ints beyond print": lambda: (10**5000,) * 3,
    "array-likes": lambda: (np.array([1, 2]), np.array([1, 2, 3])),
}
# Values that integer attributes do not have, but real ones do.
NO_INTEGER: dict[str, Callable[[], Any]] = {
    "float": lambda: 1.0,
    "NumPy float": lambda: np.float32(1),
    "fraction": lambda: fractions.Fraction(1, 2),
    "decimal": lambda: decimal.Decimal(1),
    "2^64": lambda: 2**64,
    "-2^64": lambda: -(2**64),
}

X, W, BIAS = np.ones((2, 4, 8, 8), "f"), np.ones((4, 2, 3, 3), "f"), np.ones(4, "f")
DY, ONE = np.ones((2, 4, 6, 6), "f"), np.ones((2, 4, 1, 1), "f")
CLASSES = np.ones((2, 8, 8), "i8")
POINTS = np.ones((2, 6, 6, 2), "f")
SEQUENCES, FILTERS = np.ones((2, 3, 5), "f"), np.ones((3, 4), "f")
TRIPLES, FILTERS_OF_TRIPLES = np.ones((2, 3, 3, 5), "f"), np.ones((3, 3, 2), "f")
ROWS, OFFSETS = np.ones((4, 5), "f"), np.array([0, 1, 4], "i4")
STEPS, UNITS = np.ones((2, 3, 4), "f"), {"hidden_size": 4}  # as many inputs as units


def reserved(blocks: int) -> Any:
    """What the forward pass leaves of STEPS."""
    return np.ones((1, 6, blocks * 4), "f")


def weights_of(gates: int) -> Any:
    """W and R of 4 × 4, bW and bR, for each gate."""
    return np.ones(gates * (16 + 16 + 4 + 4), "f")


RECURRENT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    f"{cell}_{direction}": (
        tensors,
        {**UNITS, **({"input_size": 4} if "data" in direction else {})},
    )
    for cell, gates, blocks, saved in (
        ("rnn_relu", 1, 1, (reserved(1),)),
        ("rnn_tanh", 1, 1, (reserved(1),)),
        ("lstm", 4, 4, (reserved(4), reserved(1))),
        ("gru", 3, 4, (reserved(4), reserved(1))),
    )
    for direction, tensors in {
        "forward": (STEPS, weights_of(gates)),
        "backward_data": (STEPS, weights_of(gates), *saved),
        "backward_weights": (STEPS, reserved(1), reserved(blocks)),
        "backward": (STEPS, STEPS, weights_of(gates)),
    }.items()
}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "conv_forward": ((X, W), {"groups": 2}),
    "conv_backward_data": ((DY, W), {"groups": 2}),
    "conv_backward_filter": ((X, DY), {"groups": 2, "filter_size": 3}),
    "conv_backward_bias": ((DY,), {}),
    "conv_bias_activation_forward": ((X, W, BIAS), {"groups": 2}),
    "activation_forward": ((X,), {"mode": "relu"}),
    "activation_backward": ((DY, DY), {"mode": "relu"}),
    "pointwise_operation": ((X, X), {"mode": "add"}),
    "pointwise_fusion": ((X, X), {"graph": "add(a,b)", "reduction": "max"}),
    "pool_max_forward": ((X,), {"window": 3}),
    "pool_max_backward": ((ONE, np.zeros_like(ONE, "i4")), {"input_size": 1}),
    "pool_average_forward": ((X,), {"window": 3}),
    "pool_average_backward": ((ONE,), {"input_size": 1}),
    "pool_lp_forward": ((X,), {"window": 3}),
    "pool_lp_backward": ((ONE, ONE, ONE), {}),
    "resample_forward": ((X,), {}),
    "resample_backward": ((X,), {"input_size": 8}),
    "reduce_forward": ((X,), {"op": "max"}),
    "reduce_backward": ((np.ones((), "f"), X), {"op": "max"}),
    "softmax_forward": ((X,), {}),
    "softmax_backward": ((X, X), {}),
    "cross_entropy_forward": ((X, CLASSES), {}),
    "cross_entropy_backward": ((X, CLASSES, X[:, 0], np.ones((), "f")), {}),
    "ctc_loss": ((X[0], np.ones((8, 3), "i4"), np.ones(8, "i4"), np.ones(8, "i4")), {}),
    "dropout_forward": ((X,), {"probability": 0.5, "seed": 1}),
    "dropout_backward": ((DY,), {"probability": 0.5, "seed": 1}),
    "rng_bernoulli": ((), {"shape": (2, 3), "probability": 0.5, "seed": 1}),
    "rng_uniform": ((), {"shape": (2, 3), "seed": 1}),
    "rng_normal": ((), {"shape": (2, 3), "seed": 1}),
    "affine_grid_forward": ((np.ones((2, 2, 3), "f"),), {"output_size": 3}),
    "affine_grid_backward": ((POINTS,), {}),
    "grid_sample_forward": ((X, POINTS), {}),
    "grid_sample_backward": ((DY, X, POINTS), {}),
    "rope_forward": ((X, np.ones((8, 3), "f")), {}),
    "rope_backward": ((X, np.ones((8, 3), "f")), {}),
    "batch_norm_forward_training": ((X, BIAS, BIAS), {}),
    "batch_norm_inference": ((X, BIAS, BIAS, BIAS, BIAS), {}),
    "batch_norm_backward": ((X, X, BIAS), {}),
    "batch_norm_genstats": ((X,), {}),
    "batch_norm_finalize": ((BIAS[None], BIAS[None], BIAS, BIAS), {"count": 3}),
    "batch_norm_backward_weights": ((X, X, BIAS, BIAS, BIAS), {}),
    "layer_norm_forward": ((X,), {}),
    "layer_norm_backward": ((X, X), {}),
    "rms_norm_forward": ((X,), {}),
    "rms_norm_backward": ((X, X), {}),
    "group_norm_forward": ((X,), {"groups": 2}),
    "group_norm_backward": ((X, X), {"groups": 2}),
    "instance_norm_forward": ((X,), {}),
    "instance_norm_backward": ((X, X), {}),
    "lrn_forward": ((X,), {}),
    "lrn_backward": ((X, X), {}),
    "divisive_norm_forward": ((X,), {}),
    "divisive_norm_backward": ((X, X), {}),
    "causal_conv_forward": ((SEQUENCES, FILTERS), {}),
    "causal_conv_backward": ((SEQUENCES, SEQUENCES, FILTERS), {}),
    "gated_causal_conv_forward": ((TRIPLES, FILTERS_OF_TRIPLES, FILTERS), {}),
    "gated_causal_conv_backward": (
        (SEQUENCES, SEQUENCES, TRIPLES, FILTERS_OF_TRIPLES, FILTERS),
        {},
    ),
    "matmul_forward": ((X, X), {}),
    "sdpa_forward": ((X, X, X), {"scale": 0.5}),
    "sdpa_backward": ((X, X, X, X, X, X[..., 0]), {"scale": 0.5}),
    "grouped_matmul_forward": ((ROWS, np.ones((2, 5, 3), "f"), OFFSETS), {}),
    "grouped_matmul_backward_weights": ((ROWS, ROWS, OFFSETS), {}),
    "op_tensor": ((X, X, X), {"op": "add", "beta": 2}),
    "add_tensor": ((X, X), {}),
    "scale_tensor": ((X,), {"alpha": 2}),
    "set_tensor": ((), {"shape": (2, 3), "value": 1}),
    "cast": ((X,), {"dtype": "int8"}),
    "transform_tensor": ((X,), {}),
    "vectorize_channels": ((X,), {"width": 4}),
    "unvectorize_channels": ((X,), {}),
    "pad": ((X,), {"pre": (1,) * 4, "post": (0,) * 4}),
    "crop": ((X,), {"pre": (1,) * 4, "post": (0,) * 4}),
    "space_to_depth": ((X,), {"block": 2}),
    "depth_to_space": ((X,), {"block": 2}),
    "concat_forward": ((X, X), {"axis": 1}),
    "concat_backward": ((X,), {"axis": 1, "sizes": (1, 3)}),
    "slice_forward": ((X,), {}),
    "slice_backward": ((X,), {"input_size": X.shape}),
    "transpose": ((X,), {"permutation": (1, 0, 2, 3)}),
    "reshape": ((X,), {"shape": (8, 64)}),
    "contract_band_matrix": ((X,), {"lower": 1, "upper": 2}),
    "expand_band_matrix": ((X,), {"columns": 5, "lower": 3, "upper": 4}),
    "im2col": ((X,), {"filter_size": 3}),
    "col2im": ((np.ones((2, 36, 36), "f"),), {"input_size": (8, 8), "filter_size": 3}),
    "quantize_linear": ((X, np.ones(1, "f")), {"dtype": "int8"}),
    "dequantize_linear": ((X.astype("i1"), np.ones(1, "f")), {}),
    "block_scale_quantize": (
        (X,),
        {"dtype": "float8_e5m2", "scale_dtype": "float8_e8m0fnu", "block_size": 8},
    ),
    "block_scale_dequantize": (
        (X.astype(ml_dtypes.float8_e5m2), X[..., :1].astype(ml_dtypes.float8_e8m0fnu)),
        {"block_size": 8},
    ),
    **RECURRENT,
}
ATTRIBUTES = [
    (primitive, attribute.name)
    for primitive in spec.primitives().values()
    for attribute in primitive.attributes
]
each_attribute = pytest.mark.parametrize(
    ("primitive", "name"), ATTRIBUTES, ids=[f"{p.name}-{name}" for p, name in ATTRIBUTES]
)


def bind(primitive: spec.Primitive[Any], **attributes: Any) -> spec.Call[Any]:
    tensors, legal = CALLS[primitive.name]
    return primitive.bind(*tensors, **{**legal, **attributes})


def refusal(primitive: spec.Primitive[Any], name: str, value: Any) -> spec.SpecError:
    with pytest.raises(spec.SpecError) as caught:
        bind(primitive, **{name: value})
    return caught.value


def test_the_calls_are_legal_as_they_are() -> None:
    assert set(CALLS) == set(spec.primitives())
    for primitive in spec.primitives().values():
        bind(primitive)


@pytest.mark.parametrize("value", NOTHING)
@each_attribute
def test_nonsense_is_refused_by_the_attribute_s_own_constraint(
    primitive: spec.Primitive[Any], name: str, value: str
) -> None:
    kind = primitive.attribute(name).kind
    if value == "True" and isinstance(kind, Flag):
        return  # that is what it may be
    if value in ("empty list", "empty tuple") and isinstance(kind, (Integers, Reals)):
        return  # so are these
    error = refusal(primitive, name, NOTHING[value]())
    assert type(error) is spec.AttributeValueError
    assert str(error).startswith(f"{error.constraint}: {name}=")
    assert error.constraint.startswith(f"{primitive.name} C")
    assert "pass " in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize("value", NO_INTEGER)
@each_attribute
def test_integer_attributes_refuse_what_is_none(
    primitive: spec.Primitive[Any], name: str, value: str
) -> None:
    number = NO_INTEGER[value]()
    if isinstance(primitive.attribute(name).kind, (Real, RealPerDim)):
        if 1 <= number < 2**64:  # others may be out of range
            bind(primitive, **{name: number})
    else:
        assert str(refusal(primitive, name, number)).split(": ")[1].startswith(f"{name}=")


@each_attribute
def test_none_is_refused_unless_it_is_the_default(
    primitive: spec.Primitive[Any], name: str
) -> None:
    if primitive.attribute(name).default is None:
        bind(primitive, **{name: None})
    else:
        assert f": {name}=None" in str(refusal(primitive, name, None))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(1), 1),
        (np.array(1, np.uint8), 1),
        ([1, 2], (1, 2)),
        (range(1, 3), (1, 2)),
        ((np.int8(1), 2), (1, 2)),
    ],
)
def test_integers_of_numpy_and_any_sequence_become_plain_ints(value: Any, plain: Any) -> None:
    names = ("stride", "dilation", "padding")
    problem = bind(spec.conv_forward, **dict.fromkeys(names, value)).problem
    assert problem == bind(spec.conv_forward, **dict.fromkeys(names, plain)).problem
    numbers = (*problem.stride, *problem.dilation, *problem.padding[0], *problem.padding[1])
    assert {type(number) for number in numbers} == {int}


def test_groups_of_numpy_become_a_plain_int() -> None:
    assert type(bind(spec.conv_forward, groups=np.int8(2)).problem.groups) is int


@pytest.mark.parametrize("value", [1, np.float16(1), np.array(1.0), fractions.Fraction(1)])
def test_real_attributes_take_every_kind_of_number(value: Any) -> None:
    problem = bind(spec.conv_bias_activation_forward, alpha1=value).problem
    assert (problem.alpha1, type(problem.alpha1)) == (1.0, float)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", 10**400])
def test_real_attributes_are_finite(value: Any) -> None:
    number = float(value) if isinstance(value, str) else value
    error = refusal(spec.conv_bias_activation_forward, "alpha2", number)
    assert str(error).startswith("conv_bias_activation_forward C16: alpha2=")


@pytest.mark.parametrize(
    ("padding", "complaint"),
    [
        (((1, 2, 3), (1, 2)), "(1, 2, 3) is no pair (pre, post)"),
        ((1, 2, 3), "(1, 2, 3) has 3 entries for 2 spatial dims"),
        ((1, (1, 2.5)), "(1, 2.5) is neither an integer nor a sequence of integers"),
        (((1, -1), 1), "is negative; pass integers >= 0 and crop"),
        ("SAME", "padding='SAME'"),
    ],
)
def test_padding_messages_name_the_wrong_entry(padding: Any, complaint: str) -> None:
    assert complaint in str(refusal(spec.conv_forward, "padding", padding))


def test_messages_stay_short_for_large_values() -> None:
    message = str(refusal(spec.conv_forward, "stride", tuple(range(100_000))))
    assert "has 100000 entries for 2 spatial dims" in message
    assert len(message) < 300


# --- Tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", ["x", 1.0, [[1.0]], object(), None])
def test_what_is_no_array_is_refused(tensor: Any) -> None:
    with pytest.raises(spec.MissingTensorError, match=r"conv_forward.* x"):
        spec.conv_forward.bind(tensor, W)


@pytest.mark.parametrize("rank", [0, 1, 2, 6])
@pytest.mark.parametrize("name", [name for name in CALLS if name.startswith("conv")])
def test_ranks_without_space_are_refused_by_the_first_constraint(name: str, rank: int) -> None:
    tensors, attributes = CALLS[name]
    for position in range(min(2, len(tensors))):
        wrong = list(tensors)
        wrong[position] = np.ones((1,) * rank, "f")
        with pytest.raises(spec.ShapeError, match=rf"^{name} C1: .* has rank {rank}"):
            spec.primitives()[name].bind(*wrong, **attributes)


@pytest.mark.parametrize("shape", [(), (4, 1), (1, 4), (1, 4, 1, 1), (3,), (0,)])
def test_bias_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(spec.ShapeError, match=r"conv_bias_activation_forward C12: bias has shape"):
        spec.conv_bias_activation_forward.bind(X, W, np.ones(shape, "f"), groups=2)


@pytest.mark.parametrize("shape", [(), (4,), (2, 4, 6), (1, 4, 6, 6), (2, 4, 8, 8)])
def test_z_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(spec.ShapeError, match=r"conv_bias_activation_forward C13: z has shape"):
        spec.conv_bias_activation_forward.bind(X, W, BIAS, np.ones(shape, "f"), groups=2)


@pytest.mark.parametrize(
    "shape", [(1, 4, -8, 8), (1, 4, 2.5, 8), (1, 4, None, 8), (1, 4, True, 8), 5, "1488"]
)
def test_shapes_that_are_none_are_refused(shape: Any) -> None:
    with pytest.raises(spec.ShapeError, match=r"^conv_forward: x has shape .*; pass an array"):
        spec.conv_forward.bind(Array(shape), W)


def test_negative_extents_of_tensor_types_are_refused() -> None:
    with pytest.raises(spec.ShapeError, match=r"x has shape \(-1, 4, 8\)"):
        spec.conv_forward.bind(spec.TensorType("float32", (-1, 4, 8)), W)


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        (np.int32, "int32"),
        (bool, "bool"),
        (object, "object"),
        (np.complex64, "complex64"),
        ("f4,f4", "void64"),
        ("no dtype at all", "no dtype at all"),
        (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"),
        (len, "built-in function len"),
    ],
)
def test_other_dtypes_are_refused(dtype: Any, shown: str) -> None:
    array = Array((1, 1, 8), dtype)
    with pytest.raises(spec.DTypeError, match=f"conv_backward_bias C2: .*{shown}.*convert all"):
        spec.conv_backward_bias.bind(array)


def test_the_other_byte_order_is_another_dtype() -> None:
    swapped = X.astype(X.dtype.newbyteorder())
    code = ">" if sys.byteorder == "little" else "<"
    with pytest.raises(spec.DTypeError, match=f"conv_forward C2: x is {code}f4, w is float32"):
        spec.conv_forward.bind(swapped, W, groups=2)


def test_dtypes_may_not_be_mixed() -> None:
    with pytest.raises(spec.DTypeError, match=r"x is float32, w is float64; convert all"):
        spec.conv_forward.bind(X, W.astype(np.float64), groups=2)


# --- Constraints that a geometry breaks -----------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        (
            (1, 4, 8),
            (4, 4, 9),
            {},
            r"C11: F=\(9,\) with dilation=\(1,\) covers \(9,\), more than I=\(8,\) with padding=\(\(0, 0\),\)",
        ),
        (
            (1, 4, 8),
            (4, 4, 3),
            {"dilation": 4},
            r"C11: F=\(3,\) with dilation=\(4,\) covers \(9,\)",
        ),
        ((1, 4, 0), (4, 4, 1), {"padding": "same"}, r"C11: "),
        (
            (1, 4, 8, 2),
            (4, 4, 3, 3),
            {},
            r"C11: F=\(3, 3\) .* covers \(3, 3\), more than I=\(8, 2\)",
        ),
        (
            (1, 4, 2, 8),
            (4, 4, 3, 3),
            {},
            r"C11: F=\(3, 3\) .* covers \(3, 3\), more than I=\(2, 8\)",
        ),
        ((1, 4, 8), (4, 4, 0), {}, r"C10: w has filter extents \(0,\)"),
        ((1, 4, 8), (3, 2, 3), {"groups": 2}, r"C9: K=3 is not a multiple of groups=2"),
        ((1, 4, 8), (4, 3, 3), {}, r"C8: C=4 is not groups·w.shape\[1\] = 1·3; pass w with"),
        ((1, 0, 8), (4, 3, 3), {}, r"C8: C=0 is not groups·w.shape\[1\] = 1·3; pass w with"),
    ],
)
def test_geometry_that_does_not_fit(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(spec.ShapeError, match=f"^conv_forward {message}"):
        spec.conv_forward.bind(Array(x), Array(w), **attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"padding": "same"},
            r'C11: padding="same" does not determine the extents of dx; pass input_size',
        ),
        ({"padding": 5}, r"C11: dy implies input_size=\(-2, -2\), which is negative"),
        ({"input_size": -3}, r"C11: input_size=-3, which is negative"),
        ({"input_size": 2}, r"C12: F=\(3, 3\) with .* covers \(3, 3\)"),
        ({"input_size": 9}, r"C13: dy has spatial extents \(6, 6\) but .* give O=\(7, 7\)"),
    ],
)
def test_extents_that_dy_contradicts(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(spec.SpecError, match=f"^conv_backward_data {message}"):
        bind(spec.conv_backward_data, **attributes)
