"""im2col and col2im on cases worked out by hand, as matrix products of convolutions, and against PyTorch."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec

Array = NDArray[Any]

GEOMETRIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), {"filter_size": 3, "stride": 2, "padding": ((2, 1),), "dilation": 2}),
    ((2, 3, 5, 6), {"filter_size": (3, 2)}),
    ((2, 3, 5, 6), {"filter_size": (3, 2), "stride": (2, 3), "padding": 1, "dilation": (1, 2)}),
    ((2, 3, 5, 6), {"filter_size": 2, "stride": 2, "padding": "same"}),
    ((1, 2, 4, 3, 5), {"filter_size": (2, 1, 3), "stride": (1, 2, 2), "padding": (1, 0, 2)}),
]
each_geometry = pytest.mark.parametrize(("shape", "geometry"), GEOMETRIES)


def random(*shape: int) -> Array:
    return np.random.default_rng(11).normal(size=shape)


def test_a_column_holds_a_window() -> None:
    x = np.array([[[1.0, 2, 3, 4]]])
    y = ref.im2col(x, filter_size=3, padding=1)
    assert y.tolist() == [[[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 0]]]


def test_rows_are_channels_and_cells_in_logical_order() -> None:
    x = np.arange(8.0).reshape(1, 2, 2, 2)
    assert ref.im2col(x, filter_size=2)[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_cells_of_several_windows_are_added_up() -> None:
    y = ref.col2im(np.ones((1, 3, 4)), input_size=(4,), filter_size=3, padding=1)
    assert y.tolist() == [[[2, 3, 3, 2]]]


def test_a_cell_without_a_window_is_zero() -> None:
    y = ref.col2im(np.ones((1, 1, 2)), input_size=(4,), filter_size=1, stride=2)
    assert y.tolist() == [[[1, 0, 1, 0]]]


@each_geometry
def test_a_convolution_is_a_matrix_product(
    shape: tuple[int, ...], geometry: dict[str, Any]
) -> None:
    taps = geometry["filter_size"]
    taps = (taps,) * (len(shape) - 2) if isinstance(taps, int) else taps
    x, w = random(*shape), random(4, shape[1], *taps)
    rest = {name: value for name, value in geometry.items() if name != "filter_size"}
    expected = ref.conv_forward(x, w, **rest)
    product = np.matmul(w.reshape(4, -1), ref.im2col(x, **geometry))
    np.testing.assert_allclose(product.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


@each_geometry
def test_col2im_is_the_adjoint(shape: tuple[int, ...], geometry: dict[str, Any]) -> None:
    x = random(*shape)
    columns = ref.im2col(x, **geometry)
    dy = random(*columns.shape)
    dx = ref.col2im(dy, input_size=shape[2:], **geometry)
    assert np.sum(columns * dy) == pytest.approx(np.sum(x * dx), rel=1e-12)


def test_two_dims_are_pytorch_s_unfold_and_fold() -> None:
    torch = pytest.importorskip("torch")
    x = random(2, 3, 5, 6)
    geometry = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}
    unfolded = torch.nn.functional.unfold(torch.from_numpy(x), (3, 2), **geometry).numpy()
    np.testing.assert_array_equal(ref.im2col(x, filter_size=(3, 2), **geometry), unfolded)
    folded = torch.nn.functional.fold(torch.from_numpy(unfolded), (5, 6), (3, 2), **geometry)
    got = ref.col2im(unfolded, input_size=(5, 6), filter_size=(3, 2), **geometry)
    np.testing.assert_allclose(got, folded.numpy(), rtol=1e-14)


def test_int8_images_have_columns() -> None:
    x = np.arange(-3, 3, dtype=np.int8).reshape(1, 1, 6)
    y = ref.im2col(x, filter_size=2, stride=4, padding=1)
    assert y.dtype == np.int8
    assert y.tolist() == [[[0, 0], [-3, 1]]]


def test_columns_must_be_those_of_the_windows() -> None:
    with pytest.raises(spec.ShapeError, match="C10: x has 5 rows and 3 columns"):
        ref.col2im(np.zeros((1, 5, 3)), input_size=(4,), filter_size=2)
