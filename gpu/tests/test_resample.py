"""Both kernels of resampling against the formula."""

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from dnncanon import gpu, spec
from dnncanon.spec.resample_problem import CONVENTIONS, ROUNDINGS

Array = np.ndarray[Any, Any]
NAN = np.nan
KINDS = [("linear", "floor"), *(("nearest", rounding) for rounding in ROUNDINGS)]

each_kind = pytest.mark.parametrize(("mode", "rounding"), KINDS)
each_convention = pytest.mark.parametrize("coordinates", CONVENTIONS)
each_layout = pytest.mark.parametrize(
    "channels_last", [False, True], ids=["dense", "channels last"]
)


def laid_out(array: Array, channels_last: bool) -> Array:
    if not channels_last:
        return array
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def random(*shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape)


def shares(inputs: int, outputs: int, sampling: Any, mode: str, rounding: str) -> Array:
    """shares[o, i]: what cell i counts in output o, in exact fractions."""
    result = np.zeros((outputs, inputs))
    for o in range(outputs):
        c = Fraction(o * sampling.m + sampling.k, sampling.d)
        c = min(max(c, Fraction(0)), Fraction(inputs - 1))
        if mode == "nearest":
            half = Fraction(1, 2)
            cell = {
                "floor": math.floor(c),
                "ceil": math.ceil(c),
                "round_prefer_floor": math.ceil(c - half),
                "round_prefer_ceil": math.floor(c + half),
            }[rounding]
            result[o, cell] = 1.0
        else:
            result[o] = [float(max(Fraction(0), 1 - abs(c - i))) for i in range(inputs)]
    return result


def matrices(shape: tuple[int, ...], mode: str, rounding: str, **attributes: Any) -> list[Array]:
    call = spec.resample_forward.bind(
        spec.TensorType("float64", shape), mode=mode, rounding=rounding, **attributes
    )
    return [shares(s.inputs, s.outputs, s, mode, rounding) for s in call.problem.dims]


def contracted(x: Array, along: list[Array]) -> Array:
    for dim, matrix in enumerate(along):
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, 2 + dim)), 0, 2 + dim)
    return x


@each_kind
@each_convention
@pytest.mark.parametrize(
    ("attributes", "channels_last"),
    [
        ({"output_size": (8, 3)}, False),
        ({"output_size": (1, 13)}, True),
        ({"scale": (1.7, 0.5)}, False),
    ],
)
def test_two_dims(
    mode: str, rounding: str, coordinates: str, attributes: dict[str, Any], channels_last: bool
) -> None:
    options = {"mode": mode, "rounding": rounding, "coordinates": coordinates}
    x = laid_out(random(2, 4, 5, 7).astype(np.float32), channels_last)
    along = matrices(x.shape, **options, **attributes)
    y = gpu.resample_forward(x, **options, **attributes)
    np.testing.assert_allclose(y, contracted(x.astype(np.float64), along), rtol=1e-5, atol=1e-6)

    dy = laid_out(random(*y.shape).astype(np.float32), channels_last)
    scale = {"scale": attributes["scale"]} if "scale" in attributes else {}
    dx = gpu.resample_backward(dy, input_size=(5, 7), **options, **scale)
    transposed = [matrix.T for matrix in along]
    np.testing.assert_allclose(
        dx, contracted(dy.astype(np.float64), transposed), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("inputs", "outputs"), [((6,), (12,)), ((3, 2, 4), (6, 4, 2))])
@each_layout
def test_powers_of_two_are_exact(
    dtype: str, inputs: tuple[int, ...], outputs: tuple[int, ...], channels_last: bool, exact: Any
) -> None:
    x = laid_out(8 * exact((2, 8, *inputs), dtype, 1), channels_last)
    along = matrices(x.shape, "linear", "floor", output_size=outputs)
    y = gpu.resample_forward(x, output_size=outputs)
    assert y.dtype == x.dtype
    expected = contracted(x.astype(np.float64), along).astype(x.dtype)
    assert np.array_equal(y.astype(np.float64), expected.astype(np.float64))
    dy = laid_out(8 * exact((2, 8, *outputs), dtype, 2), channels_last)
    dx = gpu.resample_backward(dy, input_size=inputs)
    back = contracted(dy.astype(np.float64), [matrix.T for matrix in along]).astype(x.dtype)
    assert np.array_equal(dx.astype(np.float64), back.astype(np.float64))


def test_a_cell_of_weight_zero_is_not_read() -> None:
    x = np.array([[[1, NAN, 3, 4]]], np.float32)
    y = gpu.resample_forward(x, output_size=7, coordinates="align_corners")
    assert np.isnan(y).tolist() == [[[False, True, True, True, False, False, False]]]
    dy = np.array([[[NAN, 1, 1, 1, 1, 1, 1]]], np.float32)
    dx = gpu.resample_backward(dy, input_size=4, coordinates="align_corners")
    assert np.isnan(dx).tolist() == [[[True, False, False, False]]]


def test_a_nearest_cell_keeps_its_bits() -> None:
    x = np.array([[[-0.0, 3e-42, np.inf]]], np.float32)
    y = gpu.resample_forward(x, output_size=6, mode="nearest")
    assert y.tobytes() == np.repeat(x, 2, axis=2).tobytes()


@pytest.mark.parametrize("steps", list(product((1, 2), repeat=2)))
def test_strides_with_gaps(steps: tuple[int, int]) -> None:
    x = random(2, 8, 6, 10)[:, :, :: steps[0], :: steps[1]]
    expected = gpu.resample_forward(np.ascontiguousarray(x), scale=1.5)
    assert np.array_equal(gpu.resample_forward(x, scale=1.5), expected)


@each_layout
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_kernels_neither_race_nor_read_what_nobody_wrote(
    channels_last: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = laid_out(random(2, 4, 5, 6).astype(np.float32), channels_last)
    y = laid_out(gpu.resample_forward(x, output_size=(9, 4), mode=mode), channels_last)
    gpu.resample_backward(y, input_size=(5, 6), mode=mode)
