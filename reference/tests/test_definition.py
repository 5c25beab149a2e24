"""Primitives as functions: signature, documentation, dtypes, layouts, errors; and the backend."""

import doctest
import inspect
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.reference.backend import ReferenceBackend

Array = NDArray[Any]
DEFINITIONS = list(ref.definitions().values())
CONVOLUTIONS = [d for d in DEFINITIONS if d.primitive.family == "conv"]
each_definition = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.__name__)
each_convolution = pytest.mark.parametrize("definition", CONVOLUTIONS, ids=lambda d: d.__name__)
RANDOM = np.random.default_rng(0)


def integers(*shape: int) -> Array:
    return RANDOM.integers(-4, 5, shape).astype(np.float64)


def example(name: str) -> tuple[list[Array], dict[str, Any]]:
    """A call of each convolution on small integers, which every dtype holds."""
    x, w, dy = integers(2, 4, 5, 6), integers(6, 2, 3, 2), integers(2, 6, 3, 5)
    bias, z = integers(6), integers(2, 6, 3, 5)
    calls: dict[str, tuple[list[Array], dict[str, Any]]] = {
        "conv_forward": ([x, w], {"groups": 2}),
        "conv_backward_data": ([dy, w], {"groups": 2}),
        "conv_backward_filter": ([x, dy], {"groups": 2, "filter_size": (3, 2)}),
        "conv_backward_bias": ([dy], {}),
        "conv_bias_activation_forward": ([x, w, bias, z], {"groups": 2, "alpha1": 0.5}),
    }
    return calls[name]


# --- Signature and documentation ------------------------------------------------------------------


def test_every_primitive_of_the_spec_is_defined() -> None:
    assert list(ref.definitions()) == list(spec.primitives())
    for name, definition in ref.definitions().items():
        assert getattr(ref, name) is definition
        assert name in dir(ref)


def test_signature_of_conv_forward() -> None:
    assert str(inspect.signature(ref.conv_forward)) == (
        "(x, w, /, *, padding=0, stride=1, dilation=1, groups=1, mode='cross_correlation')"
    )


def test_required_and_optional_parameters() -> None:
    assert "filter_size)" in str(inspect.signature(ref.conv_backward_filter))
    assert "(x, w, bias, z=None, /, *" in str(inspect.signature(ref.conv_bias_activation_forward))
    assert str(inspect.signature(ref.conv_backward_bias)) == "(dy, /)"


@each_definition
def test_documentation_holds_the_declaration(definition: ref.Definition) -> None:
    text, primitive = inspect.getdoc(definition) or "", definition.primitive
    parts = [primitive.summary, *primitive.formula.splitlines()]
    parts += [f"{t.name}: array [{t.dims}], {t.doc}" for t in primitive.inputs]
    parts += [f"Returns {t.name}: array [{t.dims}], {t.doc}" for t in primitive.outputs]
    parts += [f"{a.name}: {a.kind.describes}. {a.doc}" for a in primitive.attributes]
    parts += [f"C{i}. {c.text}" for i, c in enumerate(primitive.constraints, 1)]
    assert [part for part in parts if part not in text] == []


@each_definition
def test_names_are_those_of_functions(definition: ref.Definition) -> None:
    assert definition.__name__ == definition.__qualname__ == definition.primitive.name
    assert definition.__module__ == f"dnncanon.reference.{definition.primitive.family}"
    assert repr(definition) == f"<dnncanon.reference.{definition.primitive.name}>"


def test_the_module_s_example_is_true() -> None:
    result = doctest.testmod(ref)
    assert result.attempted >= 3
    assert result.failed == 0


# --- Dtypes and layouts ---------------------------------------------------------------------------


@each_convolution
@pytest.mark.parametrize("dtype", spec.FLOATS)
def test_result_has_the_dtype_of_the_inputs(definition: ref.Definition, dtype: str) -> None:
    tensors, attributes = example(definition.__name__)
    expected = definition(*tensors, **attributes)
    narrow = [tensor.astype(spec.DTYPES[dtype].numpy) for tensor in tensors]
    result = definition(*narrow, **attributes)
    assert result.dtype == spec.DTYPES[dtype].numpy
    assert type(result) is np.ndarray
    call = definition.primitive.bind(*narrow, **attributes)
    assert result.shape == call.outputs[0].shape
    # Integers this small, and their halves, are exact: rounding changes only sums beyond 2^p.
    rounded = expected.astype(spec.DTYPES[dtype].numpy).astype(np.float64)
    assert np.array_equal(result.astype(np.float64), rounded)


@each_convolution
def test_inputs_are_not_written_and_results_are_new(definition: ref.Definition) -> None:
    tensors, attributes = example(definition.__name__)
    before = [tensor.copy() for tensor in tensors]
    for tensor in tensors:
        tensor.flags.writeable = False
    result = definition(*tensors, **attributes)
    assert all(map(np.array_equal, tensors, before))
    assert not any(np.shares_memory(result, tensor) for tensor in tensors)
    assert result.flags.writeable


def test_a_convolution_that_changes_nothing_is_a_copy() -> None:
    x = integers(1, 1, 4)
    y = ref.conv_forward(x, np.ones((1, 1, 1)))
    assert np.array_equal(x, y)
    assert not np.shares_memory(x, y)


def gapped(tensor: Array) -> Array:
    """Every second element of a buffer full of NaN."""
    buffer = np.full(tuple(2 * extent for extent in tensor.shape), np.nan)
    view = buffer[tuple(slice(None, None, 2) for _ in tensor.shape)]
    view[...] = tensor
    return view


def channels_last(tensor: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(tensor, 1, -1)), -1, 1)


def flipped(tensor: Array) -> Array:
    """The same elements behind negative strides."""
    return np.ascontiguousarray(tensor[::-1])[::-1]


@each_convolution
@pytest.mark.parametrize("layout", [gapped, channels_last, flipped, np.asfortranarray])
def test_strides_of_inputs_do_not_matter(definition: ref.Definition, layout: Any) -> None:
    tensors, attributes = example(definition.__name__)
    viewed = [layout(tensor) if tensor.ndim > 1 else tensor for tensor in tensors]
    assert any(view.strides != tensor.strides for view, tensor in zip(viewed, tensors, strict=True))
    expected = definition(*tensors, **attributes)
    assert np.array_equal(definition(*viewed, **attributes), expected)


@each_convolution
def test_broadcast_inputs(definition: ref.Definition) -> None:
    tensors, attributes = example(definition.__name__)
    first, *others = tensors
    spread = np.broadcast_to(first[:, :1], first.shape)
    assert 0 in spread.strides
    result = definition(spread, *others, **attributes)
    assert np.array_equal(result, definition(spread.copy(), *others, **attributes))


def test_signalling_nan_passes_without_a_warning() -> None:
    x = np.array([0x7F800001], np.uint32).view(np.float32).reshape(1, 1, 1)
    assert np.isnan(ref.conv_forward(x, np.ones((1, 1, 1), np.float32))).all()


def test_underflow_is_no_error_whatever_the_caller_s_error_state() -> None:
    x = np.full((1, 1, 1), 1e-38, np.float32)
    with np.errstate(all="raise"):
        assert ref.conv_forward(x, x).item() == 0


# --- Other arrays ---------------------------------------------------------------------------------


def test_torch_tensors_are_read() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w = integers(2, 4, 5), integers(6, 2, 3)
    y = ref.conv_forward(torch.from_numpy(x), torch.from_numpy(w), groups=2)
    assert type(y) is np.ndarray
    assert np.array_equal(y, ref.conv_forward(x, w, groups=2))


def test_arrays_that_numpy_cannot_read_are_refused_in_a_sentence() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones((1, 1, 3), requires_grad=True)
    with pytest.raises(spec.MissingTensorError, match=r"NumPy cannot read a Tensor .*; pass NumPy"):
        ref.conv_forward(x, x)


# --- Errors ---------------------------------------------------------------------------------------


@each_convolution
def test_bad_calls_raise_the_errors_of_the_spec(definition: ref.Definition) -> None:
    tensors, attributes = example(definition.__name__)
    name = definition.__name__
    with pytest.raises(spec.ShapeError, match=f"^{name} C1: "):
        definition(tensors[0].ravel(), *tensors[1:], **attributes)
    with pytest.raises(spec.MissingTensorError, match=f"^{name} needs the tensor"):
        definition(**attributes)
    with pytest.raises(spec.AttributeValueError, match=f"^{name} has no attribute 'axis'"):
        definition(*tensors, **attributes, axis=0)


# --- Evaluation without rounding ------------------------------------------------------------------


@each_convolution
def test_evaluate_is_the_call_before_its_rounding(definition: ref.Definition) -> None:
    tensors, attributes = example(definition.__name__)
    call = definition.primitive.bind(*tensors, **attributes)
    named = {t.name: array for t, array in zip(definition.primitive.inputs, tensors, strict=True)}
    (result,) = definition.evaluate(call, named)
    assert result.dtype == np.float64
    assert np.array_equal(result, definition(*tensors, **attributes))


# --- The backend ----------------------------------------------------------------------------------


def test_backend_offers_every_primitive() -> None:
    assert isinstance(ref.backend, ReferenceBackend)
    for name, definition in ref.definitions().items():
        assert getattr(ref.backend, name) is definition


def test_backend_lacks_what_is_no_primitive() -> None:
    assert not hasattr(ref.backend, "pool_sideways")


def test_backend_describes_itself() -> None:
    described = ref.backend.describe()
    assert ref.backend.name == "reference"
    assert described["device"]
    assert described["versions"]["numpy"] == np.__version__
    for primitive in spec.primitives().values():
        classes = described["numerics"][primitive.name]
        assert classes == {row.dtype: row.numerics[0] for row in primitive.dtypes}
        assert set(classes.values()) <= {"ieee", "exact", "widened"}
