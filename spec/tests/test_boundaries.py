"""Boundaries of the domains are legal calls, each there once, and reach where draws do not."""

from typing import Any

import pytest

from dnncanon import spec

each_primitive = pytest.mark.parametrize("primitive", spec.primitives().values(), ids=repr)


@each_primitive
def test_boundaries_are_legal_calls_of_every_dtype(primitive: spec.Primitive[Any]) -> None:
    for row in primitive.dtypes:
        boundaries = list(primitive.boundaries(row.dtype))
        assert len({str(b.arguments) for b in boundaries}) == len(boundaries) > 20
        for boundary in boundaries:
            call = primitive.bind_arguments(boundary.arguments)
            assert call.dtype == row.dtype
            assert boundary.name


@each_primitive
def test_a_public_report_is_followed_by_one_call_of_a_primitive(
    primitive: spec.Primitive[Any],
) -> None:
    reports = [b.report for b in primitive.boundaries("float32") if b.report]
    assert len(set(reports)) == len(reports)
    if primitive.family == "conv":
        assert {"theano-5985", "tensorflow-9870", "cudnn.torch-28"} <= set(reports)


@pytest.mark.parametrize("size", [7, 8, 9, 31, 32, 33, 2**16 - 1, 2**16, 2**16 + 1, 2**31 + 1])
def test_the_sizes_around_limits_are_there(size: int) -> None:
    extents = {
        extent
        for boundary in spec.conv_forward.boundaries("float16")
        for tensor in boundary.arguments.tensors.values()
        for extent in tensor.shape
    }
    assert size in extents


def test_offsets_beyond_32_bits_are_there_without_as_many_elements() -> None:
    reach = [
        (spec.span(x.shape, x.element_strides), x.size)
        for boundary in spec.conv_forward.boundaries("float32")
        for x in [boundary.arguments.tensors["x"]]
    ]
    assert any(span > 2**31 and size < 10 for span, size in reach)
    assert any(0 in x.element_strides for x in all_x())


def all_x() -> list[spec.TensorType]:
    return [b.arguments.tensors["x"] for b in spec.conv_forward.boundaries("float32")]
