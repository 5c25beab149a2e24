"""Layouts, against the addresses that they give to every element."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon import spec

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=5).map(tuple)
filled_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)

Shape = tuple[int, ...]


def addresses(shape: Shape, strides: Shape) -> list[int]:
    """The address of each element, in logical order."""
    return [
        sum(index * stride for index, stride in zip(element, strides, strict=True))
        for element in itertools.product(*map(range, shape))
    ]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Shape, Shape]:
    shape = draw(shapes)
    strides = draw(st.lists(st.integers(-2, 30), min_size=len(shape), max_size=len(shape)))
    return shape, tuple(strides)


@st.composite
def nested_layouts(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Dims in any order of memory, with gaps between them."""
    shape = draw(shapes)
    strides, step = [0] * len(shape), 1
    for dim in draw(st.permutations(range(len(shape)))):
        step += draw(st.integers(0, 3))
        strides[dim] = step
        step *= max(1, shape[dim])
    return shape, tuple(strides)


def is_accepted(shape: Shape, strides: Shape) -> bool:
    try:
        spec.check_output_layout("y", shape, strides)
    except spec.LayoutError:
        return False
    return True


@given(layout=layouts())
def test_accepted_output_layouts_give_each_element_its_own_address(
    layout: tuple[Shape, Shape],
) -> None:
    shape, strides = layout
    found = addresses(shape, strides)
    if is_accepted(shape, strides):
        assert len(set(found)) == len(found)
        assert min(found, default=0) >= 0


@given(layout=nested_layouts())
def test_nested_dims_with_gaps_are_accepted(layout: tuple[Shape, Shape]) -> None:
    assert is_accepted(*layout)


@given(shape=shapes)
def test_without_elements_any_strides_do(shape: Shape) -> None:
    if math.prod(shape) == 0:
        assert is_accepted(shape, (0,) * len(shape))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), (0, 1)),  # broadcast
        ((2, 3), (2, 1)),  # rows overlap by one element
        ((2, 3), (-3, 1)),  # flipped
        ((2, 2), (1, 1)),  # a Hankel matrix
    ],
)
def test_output_layouts_that_are_refused(shape: Shape, strides: Shape) -> None:
    with pytest.raises(spec.LayoutError) as caught:
        spec.check_output_layout("dx", shape, strides)
    assert str(caught.value) == (
        f"output dx of shape {shape} has strides {strides}, by which elements overlap; "
        "pass an output in which each element has an address of its own"
    )


def test_an_exotic_layout_without_overlap_is_refused_too() -> None:
    """0 2 4 and 3 5 7 interleave without meeting, but neither dim steps over the other: documented."""
    assert sorted(addresses((2, 3), (3, 2))) == [0, 2, 3, 4, 5, 7]
    assert not is_accepted((2, 3), (3, 2))


def test_extents_of_one_may_have_any_stride() -> None:
    assert is_accepted((1, 3), (0, 1))
    assert is_accepted((3, 1), (1, -7))


@given(shape=shapes)
def test_dense_strides_are_numpy_s(shape: Shape) -> None:
    array = np.zeros(shape, np.int8)
    if array.size:
        assert spec.dense_strides(shape) == array.strides
    assert len(spec.dense_strides(shape)) == len(shape)


@given(shape=filled_shapes)
def test_dense_strides_number_the_elements(shape: Shape) -> None:
    assert addresses(shape, spec.dense_strides(shape)) == list(range(math.prod(shape)))


@given(shape=st.lists(st.integers(1, 4), min_size=3, max_size=5).map(tuple))
def test_channels_last_is_dense_with_channels_fastest(shape: Shape) -> None:
    strides = spec.channels_last_strides(shape)
    assert strides == tuple(np.moveaxis(np.zeros(channels_behind(shape), np.int8), -1, 1).strides)
    assert sorted(addresses(shape, strides)) == list(range(math.prod(shape)))
    assert strides[1] == 1


def channels_behind(shape: Shape) -> Shape:
    return (shape[0], *shape[2:], shape[1])


def test_channels_last_by_hand() -> None:
    assert spec.channels_last_strides((2, 3, 4, 5)) == (60, 1, 15, 3)


@given(layout=layouts())
def test_span_reaches_to_the_last_address(layout: tuple[Shape, Shape]) -> None:
    shape, strides = layout
    if min(strides, default=0) >= 0:
        assert spec.span(shape, strides) == max(addresses(shape, strides), default=-1) + 1


# --- Tensor types ---------------------------------------------------------------------------------


@given(shape=shapes, dtype=st.sampled_from(list(spec.DTYPES)))
def test_tensor_type_of_an_array(shape: Shape, dtype: str) -> None:
    array = np.zeros(shape, spec.DTYPES[dtype].numpy)
    tensor = spec.TensorType.of(array)
    assert tensor == spec.TensorType(dtype, shape)
    assert (tensor.rank, tensor.size, tensor.bytes) == (array.ndim, array.size, array.nbytes)


def test_strides_are_dense_unless_given() -> None:
    assert spec.TensorType("float32", (2, 3)).element_strides == (3, 1)
    assert spec.TensorType("float32", (2, 3), (1, 2)).element_strides == (1, 2)


def test_bytes_do_not_count_gaps() -> None:
    assert spec.TensorType("float16", (2, 3), (100, 10)).bytes == 12


def test_a_tensor_type_is_its_own_type() -> None:
    tensor = spec.TensorType("float32", (2, 3), (1, 2))
    assert spec.TensorType.of(tensor) is tensor


@pytest.mark.parametrize("value", [[1.0], "text", 1.0, None, object()])
def test_what_is_no_array_has_no_type(value: Any) -> None:
    with pytest.raises(spec.MissingTensorError, match=r"bias is \w+, not an array; pass an array"):
        spec.TensorType.of(value, "bias")


def test_extents_are_plain_ints() -> None:
    class Array:
        shape = (np.int64(2), np.int32(3))
        dtype = np.float32

    assert Counter(map(type, spec.TensorType.of(Array()).shape)) == {int: 2}
