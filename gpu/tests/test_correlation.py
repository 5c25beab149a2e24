"""How the gradients of a convolution become correlations, against the definition, index by index."""

from itertools import product

import pytest

from dnncanon.gpu.kernels import correlation
from dnncanon.gpu.runtime import View, origin
from dnncanon.spec import TensorType, conv_forward, dense_strides

GEOMETRY = [
    (extent, taps, stride, dilation, pre)
    for extent, taps, stride, dilation, pre in product(
        (1, 5, 8), (1, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (0, 2)
    )
    if extent + pre >= dilation * (taps - 1) + 1
]


@pytest.mark.parametrize("mode", ["cross_correlation", "convolution"])
def test_backward_data_visits_each_product_once(mode: str) -> None:
    """Memory positions (dx, dy, w) of all products of the correlations are those of the formula."""
    for extent, taps, stride, dilation, pre in GEOMETRY:
        x, w = TensorType("float32", (1, 1, extent)), TensorType("float32", (1, 1, taps))
        p = conv_forward.bind(
            x, w, stride=stride, dilation=dilation, padding=((pre, 0),), mode=mode
        ).problem
        (outputs,) = p.output_size
        expected = sorted(
            (o * stride + f * dilation - pre, o, taps - 1 - f if mode == "convolution" else f)
            for o, f in product(range(outputs), range(taps))
            if 0 <= o * stride + f * dilation - pre < extent
        )
        parts = list(
            correlation.backward_data(
                p, _dense(1, 1, outputs), _dense(1, 1, taps), _dense(1, 1, extent)
            )
        )
        assert sorted(product_ for part in parts for product_ in _products(part)) == expected
        written = sorted(position for part in parts for position in _written(part))
        assert written == list(range(extent)), "each element of dx is written once"


def test_a_long_stride_takes_no_more_parts_than_there_are_taps() -> None:
    """Zeros everywhere first, then the residues by the stride that a tap reaches."""
    x, w = TensorType("float32", (1, 1, 65538)), TensorType("float32", (1, 1, 3))
    p = conv_forward.bind(x, w, stride=65537, padding=1).problem
    parts = list(
        correlation.backward_data(p, _dense(1, 1, 2), _dense(1, 1, 3), _dense(1, 1, 65538))
    )
    assert _written(parts[0]) == list(range(65538))
    assert _products(parts[0]) == []
    assert 1 < len(parts) <= 1 + 3
    products = sorted(product_ for part in parts[1:] for product_ in _products(part))
    assert products == [(0, 0, 1), (1, 0, 2), (65536, 1, 0), (65537, 1, 1)]


def _dense(*shape: int) -> View:
    return View(shape, dense_strides(shape))


def _written(part: correlation.Correlation) -> list[int]:
    return [part.out.offset + q * part.out.spatial[2] for q in range(part.positions[2])]


def _products(part: correlation.Correlation) -> list[tuple[int, int, int]]:
    """(out, source, filter) positions in memory for each product inside the source; one dim, one channel."""
    found = []
    for q, t in product(range(part.positions[2]), range(part.taps[2])):
        coordinate = q * part.step[2] + t * part.gap[2] - part.shift[2]
        if 0 <= coordinate < part.extents[2]:
            found.append(
                (
                    part.out.offset + q * part.out.spatial[2],
                    part.source.offset + coordinate * part.source.spatial[2],
                    part.filter.offset + t * part.filter.spatial[2],
                )
            )
    return found


def test_the_origin_is_where_the_first_element_lies_above_the_lowest_address() -> None:
    assert origin(View((3, 4), (4, 1))) == 0
    assert origin(View((3, 4), (-4, -1))) == 11
    assert origin(View((0, 4), (-4, -1))) == 3
