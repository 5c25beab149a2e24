"""Padding, output extents and their inverse, against counting and against hand-worked values."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon import spec
from dnncanon.spec.windows import (
    Windows,
    ceil_mode_extents,
    effective_extent,
    least_input_size,
    output_extents,
    resolve_padding,
)

extents = st.integers(1, 12)
small = st.integers(0, 6)


def positions(i: int, f: int, pre: int, post: int, u: int, dilation: int) -> int:
    """How many windows fit, found by laying them down one after the other."""
    count, first = 0, -pre
    while first + dilation * (f - 1) <= i + post - 1:
        count, first = count + 1, first + u
    return count


@given(i=small, f=extents, pre=small, post=small, u=extents, dilation=extents)
def test_output_extent_counts_the_windows_that_fit(
    i: int, f: int, pre: int, post: int, u: int, dilation: int
) -> None:
    counted = positions(i, f, pre, post, u, dilation)
    (computed,) = output_extents((i,), (f,), ((pre, post),), (u,), (dilation,))
    assert max(computed, 0) == counted


@given(f=extents, dilation=extents)
def test_effective_extent_is_what_the_taps_span(f: int, dilation: int) -> None:
    taps = [tap * dilation for tap in range(f)]
    assert effective_extent(f, dilation) == taps[-1] - taps[0] + 1


@given(o=extents, f=extents, pre=small, post=small, u=extents, dilation=extents)
def test_least_input_size_is_the_least_that_gives_these_outputs(
    o: int, f: int, pre: int, post: int, u: int, dilation: int
) -> None:
    def outputs(size: int) -> int:
        return output_extents((size,), (f,), ((pre, post),), (u,), (dilation,))[0]

    (least,) = least_input_size((o,), (f,), ((pre, post),), (u,), (dilation,))
    sizes = range(least - 1, least + u + 1)
    assert list(map(outputs, sizes)) == [o - 1, *[o] * u, o + 1]


# I, F, u, l -> (pre, post), O; worked out by hand from O = ceil(I/u), the odd zero behind.
SAME = [
    (5, 3, 1, 1, (1, 1), 5),
    (5, 2, 1, 1, (0, 1), 5),
    (5, 4, 1, 1, (1, 2), 5),
    (5, 1, 1, 1, (0, 0), 5),
    (6, 3, 2, 1, (0, 1), 3),
    (7, 3, 2, 1, (1, 1), 4),
    (224, 7, 2, 1, (2, 3), 112),
    (5, 3, 1, 2, (2, 2), 5),
    (6, 3, 2, 3, (2, 3), 3),
    (9, 2, 4, 1, (0, 1), 3),
    (7, 1, 3, 1, (0, 0), 3),
    (8, 1, 4, 1, (0, 0), 2),
    (1, 5, 1, 1, (2, 2), 1),
    (1, 5, 3, 2, (4, 4), 1),
]


@pytest.mark.parametrize(("i", "f", "u", "dilation", "pair", "o"), SAME)
def test_same_padding_by_hand(
    i: int, f: int, u: int, dilation: int, pair: tuple[int, int], o: int
) -> None:
    assert resolve_padding("same", (i,), (f,), (u,), (dilation,)) == (pair,)
    assert output_extents((i,), (f,), (pair,), (u,), (dilation,)) == (o,)


@given(i=extents, f=extents, u=extents, dilation=extents)
def test_same_padding_is_the_least_that_gives_ceil_i_over_u(
    i: int, f: int, u: int, dilation: int
) -> None:
    ((pre, post),) = resolve_padding("same", (i,), (f,), (u,), (dilation,))
    expected = -(-i // u)
    assert positions(i, f, pre, post, u, dilation) == expected
    assert post - pre in (0, 1)
    if pre + post > 0:
        assert positions(i, f, pre, post - 1, u, dilation) < expected


@given(sizes=st.lists(extents, min_size=1, max_size=3))
def test_valid_padding_is_none(sizes: list[int]) -> None:
    shape, ones = tuple(sizes), (1,) * len(sizes)
    assert resolve_padding("valid", shape, ones, ones, ones) == ((0, 0),) * len(sizes)


@pytest.mark.parametrize(
    ("padding", "pairs"),
    [
        (2, ((2, 2), (2, 2))),
        ((1, 2), ((1, 1), (2, 2))),
        ([1, (0, 2)], ((1, 1), (0, 2))),
        (((0, 1), (2, 0)), ((0, 1), (2, 0))),
        ("valid", ((0, 0), (0, 0))),
        ("same", ((1, 1), (0, 1))),
    ],
)
def test_spellings_of_padding(padding: object, pairs: tuple[tuple[int, int], ...]) -> None:
    assert resolve_padding(padding, (5, 5), (3, 2), (1, 1), (1, 1)) == pairs


# --- Through the primitives -----------------------------------------------------------------------

# x, w, attributes -> y, worked out by hand.
FORWARD = [
    ((1, 1, 5), (1, 1, 3), {}, (1, 1, 3)),
    ((1, 1, 5), (1, 1, 3), {"padding": "valid"}, (1, 1, 3)),
    ((2, 3, 7, 9), (5, 3, 3, 3), {"padding": "same", "stride": 2}, (2, 5, 4, 5)),
    ((2, 4, 7, 9), (6, 2, 3, 2), {"groups": 2, "padding": ((1, 0), (0, 2))}, (2, 6, 6, 10)),
    ((1, 8, 6, 6), (8, 1, 3, 3), {"groups": 8, "dilation": 2}, (1, 8, 2, 2)),
    ((1, 1, 4, 5, 6), (2, 1, 2, 2, 2), {"stride": (1, 2, 3)}, (1, 2, 3, 2, 2)),
    ((1, 1, 2), (1, 1, 2), {"padding": 3}, (1, 1, 7)),
    ((0, 3, 8), (2, 3, 3), {}, (0, 2, 6)),
    ((2, 0, 8), (2, 0, 3), {}, (2, 2, 6)),
    ((2, 3, 8), (0, 3, 3), {}, (2, 0, 6)),
    ((2, 3, 0), (4, 3, 2), {"padding": 1}, (2, 4, 1)),
    ((2, 0, 8), (0, 0, 3), {"groups": 4}, (2, 0, 6)),
]


@pytest.mark.parametrize(("x", "w", "attributes", "y"), FORWARD)
def test_shapes_in_all_directions(
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, object],
    y: tuple[int, ...],
) -> None:
    x_type, w_type, y_type = (spec.TensorType("float32", shape) for shape in (x, w, y))
    assert spec.conv_forward.bind(x_type, w_type, **attributes).outputs == (y_type,)
    data = spec.conv_backward_data.bind(y_type, w_type, **attributes, input_size=x[2:])
    assert data.outputs == (spec.TensorType("float32", (x[0], x[1], *x[2:])),)
    filters = spec.conv_backward_filter.bind(x_type, y_type, **attributes, filter_size=w[2:])
    assert filters.outputs == (w_type,)
    bias = spec.conv_backward_bias.bind(y_type)
    assert bias.outputs == (spec.TensorType("float32", y[1:2]),)
    fused = spec.conv_bias_activation_forward.bind(
        x_type, w_type, bias.outputs[0], y_type, **attributes
    )
    assert fused.outputs == (y_type,)


def test_default_input_size_is_the_least() -> None:
    """Transposed convolution: (3−1)·2 + 3 − 2·1 = 5, although 6 would give dy of 3 as well."""
    dy, w = spec.TensorType("float32", (1, 4, 3)), spec.TensorType("float32", (4, 2, 3))
    call = spec.conv_backward_data.bind(dy, w, stride=2, padding=1)
    assert call.outputs[0].shape == (1, 2, 5)
    larger = spec.conv_backward_data.bind(dy, w, stride=2, padding=1, input_size=6)
    assert larger.outputs[0].shape == (1, 2, 6)


def test_costs_by_hand() -> None:
    """y (2, 6, 6, 10): 720 outputs of 2·3·2 products; the epilogue has 4 operations an output."""
    x, w = spec.TensorType("float64", (2, 4, 7, 9)), spec.TensorType("float64", (6, 2, 3, 2))
    y, bias = spec.TensorType("float64", (2, 6, 6, 10)), spec.TensorType("float64", (6,))
    geometry = {"groups": 2, "padding": ((1, 0), (0, 2))}
    forward = spec.conv_forward.bind(x, w, **geometry)
    data = spec.conv_backward_data.bind(y, w, **geometry)
    filters = spec.conv_backward_filter.bind(x, y, **geometry, filter_size=(3, 2))
    fused = spec.conv_bias_activation_forward.bind(x, w, bias, y, **geometry)
    assert forward.flops == data.flops == filters.flops == 2 * 720 * 12
    assert fused.flops == forward.flops + 4 * 720
    assert spec.conv_backward_bias.bind(y).flops == 720
    assert fused.least_bytes == 8 * (504 + 72 + 6 + 720 + 720)
    calls: tuple[spec.Call[Any], ...] = (forward, data, filters, fused)
    lengths = [call.primitive.reduction_length(call.problem) for call in calls]
    assert lengths == [2 * 3 * 2, 3 * 3 * 2, 2 * 6 * 10, 2 * 3 * 2 + 2]


# --- Pooling windows ------------------------------------------------------------------------------


@given(i=extents, f=extents, pre=small, post=small, u=extents, dilation=extents)
def test_ceil_mode_adds_a_window_that_begins_before_the_end_and_reaches_beyond_it(
    i: int, f: int, pre: int, post: int, u: int, dilation: int
) -> None:
    sizes = (i,), (f,), ((pre, post),), (u,), (dilation,)
    (plain,), (ceiled,) = output_extents(*sizes), ceil_mode_extents(*sizes)
    begin = plain * u - pre
    rest = (i + pre + post - effective_extent(f, dilation)) % u
    assert ceiled - plain == (begin < i and rest > 0)


def test_cells_of_regular_windows() -> None:
    w = Windows(5, 3, taps=2, stride=2, dilation=3, pre=1, post=1)
    assert [[w.first(o) + t * w.dilation for t in range(w.length(o))] for o in range(3)] == [
        [-1, 2],
        [1, 4],
        [3, 6],
    ]
    assert (w.longest, w.overlap) == (2, 2)


@given(i=extents, o=extents)
def test_adaptive_windows_are_those_of_exact_fractions(i: int, o: int) -> None:
    w = Windows(i, o, adaptive=True)
    for k in range(o):
        assert w.first(k) == Fraction(k * i, o).__floor__()
        assert w.first(k) + w.length(k) == Fraction((k + 1) * i, o).__ceil__()
        assert 1 <= w.length(k) <= w.longest
    covered = [k for k in range(o) for _ in range(w.length(k))]
    assert len(covered) >= i


@given(i=extents, f=extents, pre=small, post=small, u=extents, dilation=extents)
def test_no_cell_is_in_more_windows_than_overlap(
    i: int, f: int, pre: int, post: int, u: int, dilation: int
) -> None:
    (o,) = output_extents((i,), (f,), ((pre, post),), (u,), (dilation,))
    w = Windows(i, max(0, o), f, u, dilation, pre, post)
    cells = [w.first(k) + t * dilation for k in range(w.outputs) for t in range(f)]
    assert max((cells.count(cell) for cell in set(cells)), default=0) <= w.overlap
