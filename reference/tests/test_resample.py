"""Resampling on cases worked out by hand, by finite differences, on special values, and against PyTorch."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.resample_problem import CONVENTIONS, MODES, ROUNDINGS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def signal(*values: float) -> Array:
    """A batch of one with one channel over one spatial dim."""
    return np.array([[values]], dtype=np.float64)


def random(*shape: int) -> Array:
    return np.random.default_rng(7).normal(size=shape)


RAMP = signal(0, 10, 20, 30)


@pytest.mark.parametrize(
    ("attributes", "y"),
    [
        ({"output_size": 8}, [0, 2.5, 7.5, 12.5, 17.5, 22.5, 27.5, 30]),
        ({"output_size": 2}, [5, 25]),
        ({"output_size": 1}, [15]),
        ({"output_size": 7, "coordinates": "align_corners"}, [0, 5, 10, 15, 20, 25, 30]),
        ({"output_size": 1, "coordinates": "align_corners"}, [0]),
        ({"output_size": 8, "coordinates": "asymmetric"}, [0, 5, 10, 15, 20, 25, 30, 30]),
        ({"output_size": 2, "coordinates": "tf_half_pixel_for_nn"}, [10, 30]),
        ({"output_size": 1, "coordinates": "pytorch_half_pixel"}, [0]),
        ({"output_size": 2, "coordinates": "pytorch_half_pixel"}, [5, 25]),
        ({"scale": 2.0, "coordinates": "asymmetric"}, [0, 5, 10, 15, 20, 25, 30, 30]),
        # r = 8/5: 4·5/8 = 2.5 outputs of which there are 2; their coordinates are 0.3 and 1.9.
        ({"scale": 0.625}, [3, 19]),
        # Moved by (4 − 2·8/5) / 2 = 0.4.
        ({"scale": 0.625, "coordinates": "half_pixel_symmetric"}, [7, 23]),
        ({}, [0, 10, 20, 30]),
    ],
)
def test_linear_in_one_dim(attributes: dict[str, Any], y: list[float]) -> None:
    assert ref.resample_forward(RAMP, **attributes) == pytest.approx(np.array([[y]]), rel=1e-14)


@pytest.mark.parametrize(
    ("rounding", "y"),
    [
        # From 4 to 2 by half_pixel the coordinates are 0.5 and 2.5.
        ("round_prefer_floor", [0, 20]),
        ("round_prefer_ceil", [10, 30]),
        ("floor", [0, 20]),
        ("ceil", [10, 30]),
    ],
)
def test_ties_go_where_the_rounding_says(rounding: str, y: list[float]) -> None:
    result = ref.resample_forward(RAMP, output_size=2, mode="nearest", rounding=rounding)
    assert result.tolist() == [[y]]


@pytest.mark.parametrize(
    ("rounding", "y"),
    [
        # From 4 to 3 by asymmetric the coordinates are 0, 4/3 and 8/3.
        ("round_prefer_floor", [0, 10, 30]),
        ("round_prefer_ceil", [0, 10, 30]),
        ("floor", [0, 10, 20]),
        ("ceil", [0, 20, 30]),
    ],
)
def test_nearest_elsewhere(rounding: str, y: list[float]) -> None:
    result = ref.resample_forward(
        RAMP, output_size=3, mode="nearest", coordinates="asymmetric", rounding=rounding
    )
    assert result.tolist() == [[y]]


def test_a_tie_is_one_however_it_would_be_rounded() -> None:
    """From 20 to 6 outputs 1 and 4 lie at 4.5 and 14.5 exactly (onnxruntime issue 28291)."""
    y = ref.resample_forward(
        signal(*range(20)), output_size=6, mode="nearest", rounding="round_prefer_ceil"
    )
    assert y.tolist() == [[[1, 5, 8, 11, 15, 18]]]


def test_coordinates_of_long_rows_are_exact() -> None:
    """In float32, o·I/O is off by more than a cell from 2^24 on."""
    inputs, outputs = 2**25 + 1, 3 * (2**25 + 1)
    (dim,) = spec.resample_forward.bind(
        spec.TensorType("float32", (1, 1, inputs)), output_size=outputs, coordinates="asymmetric"
    ).problem.dims
    o = np.array([outputs - 1, outputs - 3, outputs - 4])
    assert dim.nearest(o, "floor").tolist() == [inputs - 1, inputs - 1, inputs - 2]


def test_linear_in_two_dims() -> None:
    y = ref.resample_forward(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), output_size=4)
    rows = [
        [1, 1.25, 1.75, 2],
        [1.5, 1.75, 2.25, 2.5],
        [2.5, 2.75, 3.25, 3.5],
        [3, 3.25, 3.75, 4],
    ]
    assert y.tolist() == [[rows]]


def test_a_scale_is_the_fraction_that_is_meant() -> None:
    """1.7 is 17/10 in float64 and in float32."""
    x = signal(*range(20))
    y = ref.resample_forward(x, scale=1.7)
    assert y.shape == (1, 1, 34)
    assert np.array_equal(y, ref.resample_forward(x, output_size=34))
    assert np.array_equal(y, ref.resample_forward(x, scale=float(np.float32(1.7))))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [((5,), (8,)), ((6, 5), (4, 9)), ((2, 3, 4), (3, 1, 7))]
)
def test_backward_is_the_transpose(
    convention: str, mode: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    """⟨dy, forward(x)⟩ = ⟨backward(dy), x⟩, for resampling is linear."""
    attributes = {"coordinates": convention, "mode": mode}
    x, dy = random(2, 2, *inputs), random(2, 2, *outputs)[::-1]
    y = ref.resample_forward(x, output_size=outputs, **attributes)
    dx = ref.resample_backward(dy, input_size=inputs, **attributes)
    assert np.sum(dy * y) == pytest.approx(np.sum(dx * x))


def test_backward_by_hand() -> None:
    assert ref.resample_backward(signal(1, 10), input_size=4).tolist() == [[[0.5, 0.5, 5, 5]]]
    nearest = {"mode": "nearest", "input_size": 2}
    assert ref.resample_backward(signal(1, 10, 100, 1000), **nearest).tolist() == [[[11, 1100]]]


def test_backward_of_a_scale() -> None:
    dx = ref.resample_backward(signal(1, 10), input_size=4, scale=0.625)
    assert dx == pytest.approx(np.array([[[0.7, 0.3 + 1.0, 9.0, 0.0]]]))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_nearest_cell_is_moved_and_not_computed(rounding: str) -> None:
    x = signal(1.1, -0.0, 3e-42, INF).astype(np.float32)
    y = ref.resample_forward(x, output_size=9, mode="nearest", rounding=rounding)
    assert {value.tobytes() for value in y.ravel()} <= {value.tobytes() for value in x.ravel()}


def test_a_cell_of_weight_zero_is_not_read() -> None:
    x = signal(1, NAN, 3, 4)
    y = ref.resample_forward(x, output_size=7, coordinates="align_corners")
    assert np.isnan(y).tolist() == [[[False, True, True, True, False, False, False]]]


def test_outside_is_the_edge() -> None:
    y = ref.resample_forward(signal(5, 7), output_size=8)
    assert y[0, 0, :2].tolist() == [5, 5]
    assert y[0, 0, -2:].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"output_size": 0}, "output_size=0"),
        ({"scale": 0.0}, "not above 0"),
        ({"scale": -2.0}, "not above 0"),
        ({"scale": 0.1}, "pass an input and a scale"),
        ({"scale": 2.0, "output_size": 8}, "pass one of both"),
        ({"coordinates": "pixel"}, "coordinates='pixel'"),
        ({"output_size": 2**61}, "in parts"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(spec.SpecError, match=message):
        ref.resample_forward(RAMP, **attributes)


@pytest.mark.parametrize("outputs", [(8, 3), (5, 7), (1, 1), (3, 20)])
def test_as_pytorch_interpolates(outputs: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    x = random(2, 3, 5, 7)
    leaf = torch.from_numpy(x).requires_grad_()
    for aligned, convention in ((False, "half_pixel"), (True, "align_corners")):
        options = {"mode": "bilinear", "align_corners": aligned}
        expected = torch.nn.functional.interpolate(leaf, outputs, **options)
        y = ref.resample_forward(x, output_size=outputs, coordinates=convention)
        assert y == pytest.approx(expected.detach().numpy())
        (dx,) = torch.autograd.grad(expected, leaf, torch.from_numpy(y))
        result = ref.resample_backward(y, input_size=(5, 7), coordinates=convention)
        assert result == pytest.approx(dx.numpy())
    for mode, convention in (("nearest", "asymmetric"), ("nearest-exact", "tf_half_pixel_for_nn")):
        expected = torch.nn.functional.interpolate(leaf, outputs, mode=mode).detach().numpy()
        rounding = {"mode": "nearest", "rounding": "floor"}
        y = ref.resample_forward(x, output_size=outputs, coordinates=convention, **rounding)
        assert np.array_equal(y, expected)
