"""Declarations hold together: legal arguments bind, each constraint can be broken and says so."""

import copy
import pickle
import random
import re
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dnncanon import spec
from dnncanon.spec.primitive import declare

PRIMITIVES = list(spec.primitives().values())
SCALE = spec.Scale(batch=3, channels=8, extent=16, multiplications=20_000)
each_primitive = pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda p: p.name)
# Drawing many examples is the point of these tests; how long one takes depends on the machine.
thorough = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Drawn:
    """A source of choices for a domain, from Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def choice(self, options: tuple[Any, ...]) -> Any:
        return self.data.draw(st.sampled_from(options))


def drawn_arguments(primitive: spec.Primitive[Any], data: st.DataObject) -> spec.Arguments:
    dtype = data.draw(st.sampled_from([row.dtype for row in primitive.dtypes]))
    return primitive.domain(Drawn(data), SCALE, dtype)


# --- The domain -----------------------------------------------------------------------------------


@each_primitive
@given(data=st.data())
@thorough
def test_legal_arguments_bind(primitive: spec.Primitive[Any], data: st.DataObject) -> None:
    arguments = drawn_arguments(primitive, data)
    call = primitive.bind_arguments(arguments)
    assert all(output.dtype in spec.DTYPES for output in call.outputs)
    assert call.flops >= 0
    assert primitive.reduction_length(call.problem) >= 0
    assert set(arguments.attributes) == {attribute.name for attribute in primitive.attributes}


@each_primitive
@given(data=st.data())
@thorough
def test_legal_arguments_bind_positionally_as_well(
    primitive: spec.Primitive[Any], data: st.DataObject
) -> None:
    arguments = drawn_arguments(primitive, data)
    tensors = [arguments.tensors.get(tensor.name) for tensor in primitive.inputs]
    call = primitive.bind(*tensors, **arguments.attributes)
    assert call.problem == primitive.bind_arguments(arguments).problem
    assert call.arguments == arguments


@each_primitive
@given(data=st.data())
@thorough
def test_domain_respects_the_scale(primitive: spec.Primitive[Any], data: st.DataObject) -> None:
    call = primitive.bind_arguments(drawn_arguments(primitive, data))
    # Extents are not shrunk: with one channel the largest problem of SCALE has 27,000 products.
    assert call.flops <= 2 * 1.5 * SCALE.multiplications
    if primitive.family == "matmul":
        return  # the rows of a matrix are no batch
    if primitive.family == "rnn":
        assert call.problem.batch <= SCALE.batch  # it comes behind the steps
        return
    # The first of the tensors that have a batch, called N if it is not the first dim: a reduced one may have
    # lost it.
    tensors = {**call.arguments.tensors, **call.named_outputs}
    name = max(tensors, key=lambda name: tensors[name].rank)
    declared = next(t for t in (*primitive.inputs, *primitive.outputs) if t.name == name)
    dims = declared.dims.split()
    assert tensors[name].shape[dims.index("N") if "N" in dims else 0] <= SCALE.batch


@each_primitive
@given(data=st.data())
@thorough
def test_case_line_text_of_attributes_means_the_same_call(
    primitive: spec.Primitive[Any], data: st.DataObject
) -> None:
    arguments = drawn_arguments(primitive, data)
    read_back = {
        name: primitive.attribute(name).kind.parse(primitive.attribute(name).kind.format(value))
        for name, value in arguments.attributes.items()
        if value is not None  # which a case line leaves out
    }
    assert (
        primitive.bind_arguments(arguments.with_attributes(**read_back)).problem
        == primitive.bind_arguments(arguments).problem
    )


def test_many_groups_are_shrunk_to_the_scale_as_well() -> None:
    class Scripted:
        """8 groups of 3×3×3 depthwise filters, extents 4, stride and dilation 1, padding 3."""

        choices = iter([3, "nothing", 1, "depthwise", "symmetric", "cross_correlation"])
        odd_groups_channels_filters = (0, 2, 8, 2)
        per_dim = ((3, 3, 3), (4, 4, 4), (1, 1, 1), (1, 1, 1), (3, 3, 3), (0, 0, 0))
        integers = iter([*odd_groups_channels_filters, *chain.from_iterable(per_dim)])

        def integer(self, low: int, high: int) -> int:
            return next(self.integers)

        def choice(self, options: tuple[Any, ...]) -> Any:
            return next(self.choices)

    call = spec.conv_forward.bind_arguments(spec.conv_forward.domain(Scripted(), SCALE, "float32"))
    assert (call.problem.groups, call.problem.multiplications) == (1, 8**3 * 27)


class Scattered:
    """Choices anywhere in their ranges, from a generator of random numbers; it writes down their kinds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kinds: list[str] = []

    def integer(self, low: int, high: int) -> int:
        self.kinds.append("integer")
        return self.random.randint(low, high)

    def choice(self, options: tuple[Any, ...]) -> Any:
        self.kinds.append("choice")
        return self.random.choice(options)


@each_primitive
def test_as_many_choices_are_made_whatever_was_chosen(primitive: spec.Primitive[Any]) -> None:
    """So a simpler choice leaves those behind it in place, and a failure can be reduced."""
    draws = [Scattered(seed) for seed in range(50)]
    for draw in draws:
        primitive.domain(draw, SCALE, "float32")
    assert all(draw.kinds == draws[0].kinds for draw in draws)


@pytest.mark.parametrize("seed", range(200))
def test_one_dim_of_a_convolution_may_be_long_within_the_same_limit(seed: int) -> None:
    arguments = spec.conv_forward.domain(Scattered(seed), SCALE, "float32")
    problem = spec.conv_forward.bind_arguments(arguments).problem
    everyday = [
        problem.in_channels <= 2 * SCALE.channels,
        problem.out_channels <= 2 * SCALE.channels,
        max(problem.input_size) <= 3 * (9 - 1) + 1,
    ]
    assert everyday.count(False) <= 1
    if not all(everyday):
        assert problem.multiplications <= SCALE.multiplications


def test_plainest_choices_give_the_plainest_convolution() -> None:
    class Plainest:
        def integer(self, low: int, high: int) -> int:
            return low

        def choice(self, options: tuple[Any, ...]) -> Any:
            return options[0]

    arguments = spec.conv_forward.domain(Plainest(), SCALE, "float32")
    assert {tensor.shape for tensor in arguments.tensors.values()} == {(1, 1, 1)}
    assert arguments.attributes == {
        "padding": "valid",
        "stride": (1,),
        "dilation": (1,),
        "groups": 1,
        "mode": "cross_correlation",
    }


# --- Constraints ----------------------------------------------------------------------------------


@each_primitive
@given(data=st.data())
@thorough
def test_each_violation_raises_what_its_constraint_says(
    primitive: spec.Primitive[Any], data: st.DataObject
) -> None:
    constraints = {primitive.label(c): c for c in primitive.constraints}
    for label, variant in primitive.violations(drawn_arguments(primitive, data)):
        with pytest.raises(spec.SpecError) as caught:
            primitive.bind_arguments(variant)
        message = str(caught.value)
        assert type(caught.value) is constraints[label].error
        assert caught.value.constraint == label
        assert message.startswith(f"{label}: ")
        assert re.search(r"\b(pass|convert)\b", message), f"no remedy in: {message}"
        assert repeats_a_value(message, variant), f"no value in: {message}"
        assert "\n" not in message


def repeats_a_value(message: str, arguments: spec.Arguments) -> bool:
    """Whether a message repeats what is wrong: an attribute, an extent, a rank or a dtype."""
    attributes = (f"{name}={value!r}" for name, value in arguments.attributes.items())
    tensors = arguments.tensors.values()
    values = {str(v) for t in tensors for v in (t.dtype, t.rank, t.shape, t.shape[2:], *t.shape)}
    words = set(re.findall(r"\w+|\([^()]*\)", message.partition(": ")[2]))
    quoted = message.replace('"', "'")
    return any(text in quoted for text in attributes) or bool(words & values)


@each_primitive
def test_every_constraint_can_be_broken(primitive: spec.Primitive[Any]) -> None:
    """Over a number of drawn arguments, each numbered constraint is the first one violated."""
    broken: set[str] = set()

    @given(data=st.data())
    @settings(thorough, derandomize=True, database=None)
    def collect(data: st.DataObject) -> None:
        broken.update(label for label, _ in primitive.violations(drawn_arguments(primitive, data)))

    collect()
    assert broken == {primitive.label(constraint) for constraint in primitive.constraints}


@each_primitive
@given(data=st.data())
@thorough
def test_looking_for_violations_leaves_the_arguments_alone(
    primitive: spec.Primitive[Any], data: st.DataObject
) -> None:
    arguments = drawn_arguments(primitive, data)
    before = copy.deepcopy(arguments)
    variants = list(primitive.violations(arguments))
    assert arguments == before
    assert all(variant != arguments for _, variant in variants)


@each_primitive
def test_labels_are_numbered_from_one(primitive: spec.Primitive[Any]) -> None:
    labels = [primitive.label(constraint) for constraint in primitive.constraints]
    assert labels == [f"{primitive.name} C{n}" for n in range(1, len(labels) + 1)]


def test_the_first_violated_constraint_is_named() -> None:
    """Wrong stride and wrong groups: stride comes first."""
    x, w = spec.TensorType("float32", (1, 3, 8)), spec.TensorType("float32", (1, 3, 3))
    with pytest.raises(spec.AttributeValueError, match=r"conv_forward C3: stride=0 "):
        spec.conv_forward.bind(x, w, stride=0, groups=0)


def test_message_reads_as_the_design_promises() -> None:
    x, w = spec.TensorType("float32", (1, 6, 8)), spec.TensorType("float32", (2, 3, 3))
    with pytest.raises(spec.ShapeError) as caught:
        spec.conv_forward.bind(x, w)
    assert str(caught.value) == "conv_forward C8: C=6 is not groups·w.shape[1] = 1·3; pass groups=2"


# --- Tensors and attributes of a call -------------------------------------------------------------


@each_primitive
@given(data=st.data())
@settings(thorough, max_examples=15)
def test_missing_extra_and_unknown_arguments(
    primitive: spec.Primitive[Any], data: st.DataObject
) -> None:
    arguments = drawn_arguments(primitive, data)
    tensors = [arguments.tensors.get(tensor.name) for tensor in primitive.inputs]
    required = sum(not tensor.optional for tensor in primitive.inputs)
    for last in primitive.inputs[max(0, required - 1) : required]:
        message = f"{primitive.name} needs the tensor {last.name}:"
        with pytest.raises(spec.MissingTensorError, match=message):
            primitive.bind(*tensors[: required - 1], **arguments.attributes)
    with pytest.raises(spec.MissingTensorError, match=f"{primitive.name} takes .* not "):
        primitive.bind(*tensors, None, **arguments.attributes)
    with pytest.raises(spec.AttributeValueError, match=f"{primitive.name} has no attribute 'turn'"):
        primitive.bind(*tensors, **arguments.attributes, turn=1)


def test_a_tensor_where_none_is_taken() -> None:
    with pytest.raises(spec.MissingTensorError) as caught:
        spec.rng_normal.bind(np.ones(3), seed=1)
    assert str(caught.value) == "rng_normal takes 0 tensors (only attributes), not 1"


def test_a_required_attribute_is_asked_for() -> None:
    x, dy = spec.TensorType("float32", (1, 1, 8)), spec.TensorType("float32", (1, 1, 6))
    with pytest.raises(
        spec.AttributeValueError,
        match=r"conv_backward_filter needs the attribute filter_size: .*Pass filter_size=",
    ):
        spec.conv_backward_filter.bind(x, dy)


def test_tensors_are_positional() -> None:
    x, w = np.ones((1, 1, 3)), np.ones((1, 1, 2))
    with pytest.raises(spec.MissingTensorError, match=r"needs the tensor x.*positional argument 1"):
        spec.conv_forward.bind(x=x, w=w)


def test_unknown_attribute_lists_the_known_ones() -> None:
    with pytest.raises(spec.AttributeValueError, match="it has: padding, stride, dilation, groups"):
        spec.conv_forward.attribute("pad")
    with pytest.raises(spec.AttributeValueError, match="it has: none"):
        spec.conv_backward_bias.attribute("padding")


def test_an_optional_tensor_may_be_absent_or_none() -> None:
    x, w, bias = np.ones((1, 1, 3)), np.ones((1, 1, 2)), np.ones(1)
    primitive = spec.conv_bias_activation_forward
    assert not primitive.bind(x, w, bias).problem.has_z
    assert not primitive.bind(x, w, bias, None).problem.has_z
    assert primitive.bind(x, w, bias, np.ones((1, 1, 2))).problem.has_z


def test_a_call_states_its_cost() -> None:
    """y is (2, 4, 6): 3·3 products for each element; x 2·6·8, w 4·3·3, y 48 elements of 2 bytes."""
    call = spec.conv_forward.bind(
        spec.TensorType("float16", (2, 6, 8)), spec.TensorType("float16", (4, 3, 3)), groups=2
    )
    assert call.outputs == (spec.TensorType("float16", (2, 4, 6)),)
    assert call.flops == 2 * 48 * 9
    assert call.least_bytes == 2 * (96 + 36 + 48)
    assert call.dtype == "float16"


def test_numerics_classes_by_dtype() -> None:
    assert {"ieee", "tf32"} <= set(spec.conv_forward.numerics("float32"))
    assert "tf32" not in spec.conv_forward.numerics("float64")
    assert spec.conv_forward.numerics("int8") == ()


def test_every_declared_class_exists_for_its_dtype() -> None:
    for primitive in PRIMITIVES:
        for row in primitive.dtypes:
            for name in row.numerics:
                assert spec.NUMERICS[name].accumulator(row.dtype).name in spec.DTYPES


def test_a_primitive_is_declared_once() -> None:
    with pytest.raises(ValueError, match="conv_forward is declared twice"):
        declare(spec.conv_forward)


def test_primitives_cannot_be_added_through_the_mapping() -> None:
    found = spec.primitives()
    assert found is not spec.primitives()
    assert "conv_forward" in found


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (spec.ShapeError, ValueError),
        (spec.DTypeError, TypeError),
        (spec.AttributeValueError, ValueError),
        (spec.LayoutError, ValueError),
        (spec.MissingTensorError, TypeError),
    ],
)
def test_errors_are_spec_errors_and_python_s_own(
    error: type[spec.SpecError], builtin: type[Exception]
) -> None:
    assert issubclass(error, spec.SpecError)
    assert issubclass(error, builtin)


def test_errors_survive_the_way_out_of_a_worker_process() -> None:
    error = spec.ShapeError("C=6", "conv_forward C8")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), copied.constraint) == (
        spec.ShapeError,
        "conv_forward C8: C=6",
        "conv_forward C8",
    )


def test_unsupported_is_no_spec_error() -> None:
    assert not issubclass(spec.Unsupported, spec.SpecError)
