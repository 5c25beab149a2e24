"""Data movement on cases worked out by hand, against NumPy and PyTorch, and by inverse and adjoint."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec

Array = NDArray[Any]
NAN = np.nan


def numbered(*shape: int) -> Array:
    """1, 2, 3, … in C order."""
    return np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)


def random(*shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape)


# --- Values ---------------------------------------------------------------------------------------


def test_a_transformed_tensor_is_the_same_and_new() -> None:
    x = numbered(2, 3, 4).transpose(2, 0, 1)
    y = ref.transform_tensor(x)
    np.testing.assert_array_equal(y, x)
    assert not np.shares_memory(x, y)


def test_channels_go_into_vectors() -> None:
    x = numbered(1, 4, 3)
    np.testing.assert_array_equal(
        ref.vectorize_channels(x, width=2)[0],
        [[[1, 4], [2, 5], [3, 6]], [[7, 10], [8, 11], [9, 12]]],
    )


def test_a_constant_goes_around() -> None:
    y = ref.pad(numbered(2, 2), pre=(1, 0), post=(0, 2), value=-1.0)
    np.testing.assert_array_equal(y, [[-1, -1, -1, -1], [1, 2, -1, -1], [3, 4, -1, -1]])


def test_the_constant_is_rounded_to_the_type() -> None:
    assert ref.pad(np.array([7], np.int8), pre=(1,), post=(1,), value=2.5).tolist() == [2, 7, 2]
    assert ref.pad(np.array([7], np.uint8), pre=(1,), post=(0,), value=-9.0).tolist() == [0, 7]
    padded = ref.pad(np.ones(1, ml_dtypes.float8_e4m3fn), pre=(1,), post=(0,), value=1e6)
    assert np.isnan(padded.astype(np.float32)[0])


def test_a_border_is_taken_away() -> None:
    assert ref.crop(numbered(3, 4), pre=(1, 1), post=(0, 2)).tolist() == [[6], [10]]
    assert ref.crop(numbered(3), pre=(2,), post=(1,)).tolist() == []


def test_blocks_become_channels_in_two_orders() -> None:
    x = np.array([[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]], np.float64)  # two channels of a 2×2 block
    assert ref.space_to_depth(x, block=2).ravel().tolist() == [1, 5, 2, 6, 3, 7, 4, 8]
    assert ref.space_to_depth(x, block=2, order="CRD").ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_blocks_may_differ_by_dim() -> None:
    x = numbered(1, 1, 2, 6)
    y = ref.space_to_depth(x, block=(1, 3))
    assert y.shape == (1, 3, 2, 2)
    np.testing.assert_array_equal(y[0, 1], x[0, 0, :, 1::3])


def test_tensors_follow_each_other() -> None:
    parts = numbered(2, 1), 10 * numbered(2, 2), np.zeros((2, 0)), -numbered(2, 1)
    y = ref.concat_forward(*parts, axis=-1)
    assert y.tolist() == [[1, 10, 20, -1], [2, 30, 40, -2]]


def test_gradients_of_concatenated_tensors_are_the_parts() -> None:
    parts = ref.concat_backward(numbered(2, 4), axis=1, sizes=(1, 0, 3))
    assert [part.shape for part in parts] == [(2, 1), (2, 0), (2, 3)]
    assert parts.dx2.tolist() == [[2, 3, 4], [6, 7, 8]]
    only = ref.concat_backward(numbered(3), axis=0, sizes=(3,))
    assert only.tolist() == [1, 2, 3]  # one output is no tuple


def test_slices_step_from_start_to_limit() -> None:
    x = numbered(8)
    assert ref.slice_forward(x, start=(1,), limit=(7,), stride=(2,)).tolist() == [2, 4, 6]
    assert ref.slice_forward(x, start=(1,), limit=(6,), stride=(2,)).tolist() == [2, 4, 6]
    assert ref.slice_forward(x, stride=(7,)).tolist() == [1, 8]
    assert ref.slice_forward(x, start=(8,)).tolist() == []


def test_the_gradient_of_a_slice_lies_among_zeros() -> None:
    dx = ref.slice_backward(numbered(3), input_size=(8,), start=(1,), limit=(6,), stride=(2,))
    assert dx.tolist() == [0, 1, 0, 2, 0, 3, 0, 0]


@pytest.mark.parametrize("permutation", [(2, 0, 1), (0, 1, 2), (1, 2, 0)])
def test_dims_change_places(permutation: tuple[int, ...]) -> None:
    x = random(2, 3, 4)
    np.testing.assert_array_equal(
        ref.transpose(x, permutation=permutation), x.transpose(permutation)
    )


def test_elements_keep_their_order_whatever_the_strides_are() -> None:
    x = numbered(4, 3).T
    assert ref.reshape(x, shape=(2, 6)).tolist() == [[1, 4, 7, 10, 2, 5], [8, 11, 3, 6, 9, 12]]


def test_bands_are_stored_by_rows() -> None:
    x = numbered(4, 3)
    band = ref.contract_band_matrix(x, lower=1, upper=1, value=-1.0)
    assert band.tolist() == [[-1, 1, 2], [4, 5, 6], [8, 9, -1], [12, -1, -1]]
    matrix = ref.expand_band_matrix(band, columns=3, lower=1, upper=1, value=0.5)
    assert matrix.tolist() == [[1, 2, 0.5], [4, 5, 6], [0.5, 8, 9], [0.5, 0.5, 12]]


# --- Bits -----------------------------------------------------------------------------------------


def test_integers_beyond_2_53_are_moved_as_they_are() -> None:
    x = np.array([[2**62 + 1, -(2**63)]])
    assert ref.transpose(x, permutation=(1, 0)).tolist() == [[2**62 + 1], [-(2**63)]]
    assert ref.pad(x[0], pre=(0,), post=(1,), value=1.0).tolist() == [2**62 + 1, -(2**63), 1]
    assert ref.expand_band_matrix(x.T, columns=2, lower=0, upper=0).tolist() == [
        [2**62 + 1, 0],
        [0, -(2**63)],
    ]


def test_zeros_keep_their_signs_and_nan_stay() -> None:
    y = ref.slice_forward(np.array([-0.0, NAN, 1.0]), limit=(2,))
    assert np.signbit(y[0])
    assert np.isnan(y[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, bool])
def test_every_element_type_is_moved(dtype: Any) -> None:
    x = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    y = ref.reshape(x, shape=(2, 3))
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()


# --- Inverse and adjoint --------------------------------------------------------------------------

Function = Callable[[Array], Array]


def pair(forward: str, backward: str, given: dict[str, Any], back: dict[str, Any]) -> Any:
    return (
        lambda x: getattr(ref, forward)(x, **given),
        lambda y: getattr(ref, backward)(y, **back),
    )


BAND = {"lower": 2, "upper": 1}
SLICE = {"start": (1, 0, 2), "limit": (4, 4, 6), "stride": (2, 1, 3)}
AROUND = {"pre": (1, 0, 2), "post": (0, 3, 1)}
ADJOINT = {
    "vectors": (pair("vectorize_channels", "unvectorize_channels", {"width": 2}, {}), (4, 4, 6)),
    "pad": (pair("pad", "crop", AROUND, AROUND), (4, 4, 6)),
    "blocks": (pair("space_to_depth", "depth_to_space", {"block": 3}, {"block": 3}), (4, 4, 6)),
    "slice": (
        pair("slice_forward", "slice_backward", SLICE, {**SLICE, "input_size": (4, 4, 6)}),
        (4, 4, 6),
    ),
    "transpose": (
        pair("transpose", "transpose", {"permutation": (2, 0, 1)}, {"permutation": (1, 2, 0)}),
        (4, 4, 6),
    ),
    "reshape": (pair("reshape", "reshape", {"shape": (8, 12)}, {"shape": (4, 4, 6)}), (4, 4, 6)),
    "band": (
        pair("contract_band_matrix", "expand_band_matrix", BAND, {**BAND, "columns": 6}),
        (4, 5, 6),
    ),
}
each_pair = pytest.mark.parametrize("name", ADJOINT)


@each_pair
def test_the_gradient_is_the_adjoint(name: str) -> None:
    (forward, backward), shape = ADJOINT[name]
    x = random(*shape)
    dy = np.random.default_rng(9).normal(size=forward(x).shape)
    assert np.sum(forward(x) * dy) == pytest.approx(np.sum(x * backward(dy)), rel=1e-12)


@pytest.mark.parametrize("name", [n for n in ADJOINT if n not in ("slice", "band")])
def test_what_loses_nothing_is_taken_back(name: str) -> None:
    (forward, backward), shape = ADJOINT[name]
    np.testing.assert_array_equal(backward(forward(random(*shape))), random(*shape))


@pytest.mark.parametrize("order", ["DCR", "CRD"])
@pytest.mark.parametrize("block", [2, (1, 3), (3, 2)])
def test_blocks_come_back_in_either_order(order: str, block: Any) -> None:
    x = random(2, 3, 6, 6)
    given = {"block": block, "order": order}
    np.testing.assert_array_equal(ref.depth_to_space(ref.space_to_depth(x, **given), **given), x)


def test_parts_put_together_are_the_whole() -> None:
    x = random(3, 5, 2)
    parts = ref.concat_backward(x, axis=1, sizes=(2, 0, 3))
    np.testing.assert_array_equal(ref.concat_forward(*parts, axis=1), x)


# --- Other libraries ------------------------------------------------------------------------------


def test_crd_is_the_order_of_pixel_unshuffle() -> None:
    torch = pytest.importorskip("torch")
    x = random(2, 3, 4, 6)
    expected = torch.nn.functional.pixel_unshuffle(torch.from_numpy(x), 2).numpy()
    np.testing.assert_array_equal(ref.space_to_depth(x, block=2, order="CRD"), expected)


def test_a_band_of_zeros_is_a_banded_matrix() -> None:
    x = random(3, 6, 5)
    band = ref.contract_band_matrix(x, lower=2, upper=1)
    expected = np.tril(np.triu(x, -2), 1)
    np.testing.assert_array_equal(
        ref.expand_band_matrix(band, columns=5, lower=2, upper=1), expected
    )


# --- What is not legal ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ref.slice_forward(numbered(4), limit=(5,)),
            spec.AttributeValueError,
            "C6: start=",
        ),
        (lambda: ref.crop(numbered(4), pre=(3,), post=(2,)), spec.ShapeError, "C5: x has shape"),
        (lambda: ref.reshape(numbered(4), shape=(3,)), spec.ShapeError, "C4: x has 4 elements"),
        (
            lambda: ref.concat_forward(numbered(2, 3), numbered(3, 3), axis=1),
            spec.ShapeError,
            "C5: shapes",
        ),
        (
            lambda: ref.vectorize_channels(numbered(1, 6, 2), width=4),
            spec.ShapeError,
            "C4: x has 6 channels",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
