"""The class "fft" of causal convolutions: correct transforms stay within it and use it, worse ones do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dnncanon.conformance.accuracy.transforms import SHORTEST
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.verdict import Judgement, judge
from dnncanon.reports import Verdict

Array = NDArray[Any]
F32, C64 = np.float32, np.complex64
BOUNDED = [name for name, fill in FILLS.items() if fill.layer == "bounded"]
SHAPES = (
    "x=float32[2,3,40] w=float32[3,5] mode=convolution",
    "x=float32[1,2,500] w=float32[2,100] mode=convolution",
    "x=float32[2,1,300] w=float32[1,300] mode=convolution",
)


# --- Transforms -----------------------------------------------------------------------------------

Factors = Callable[[int], Array]


def exact_factors(points: int) -> Array:
    """e^{−2πik/N}, each rounded once."""
    return np.exp(-2j * np.pi * np.arange(points) / points).astype(C64)


def half_precision_factors(points: int) -> Array:
    factors = exact_factors(points)
    return (factors.real.astype(np.float16) + 1j * factors.imag.astype(np.float16)).astype(C64)


def recurrent_factors(points: int) -> Array:
    """Each the product of the one before and the first, in float32: the error grows with their number."""
    first, factors = exact_factors(points)[1], np.ones(points, C64)
    for k in range(1, points):
        factors[k] = factors[k - 1] * first
    return factors


def one_wrong_factor(points: int) -> Array:
    factors = exact_factors(points)
    factors[points // 4 + 1] = factors[points // 4]
    return factors


def transform(data: Array, factors: Array) -> Array:
    """Of the last axis, by halves, in complex64."""
    points = data.shape[-1]
    if points == 1:
        return data
    even, odd = (transform(data[..., k::2], factors[::2]) for k in (0, 1))
    turned = odd * factors[: points // 2]
    return np.concatenate([even + turned, even - turned], axis=-1)


def convolved(a: Array, b: Array, factors: Factors) -> Array:
    """The last axes, in one frame."""
    points = max(SHORTEST, 1 << (a.shape[-1] + b.shape[-1] - 1).bit_length())
    table = factors(points)

    def spectrum(data: Array) -> Array:
        width = [(0, 0)] * (data.ndim - 1) + [(0, points - data.shape[-1])]
        return transform(np.pad(data, width).astype(C64), table)

    product = (spectrum(a) * spectrum(b)).astype(C64)
    return np.asarray(np.conj(transform(np.conj(product), table)).real / F32(points))


# --- Judgements -----------------------------------------------------------------------------------


def judged(line: str, fill: str, factors: Factors) -> Judgement:
    case = Case.parse(f"causal_conv_forward {line} fill={fill} seed=3")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    expected = expectations(case.call, tensors, "fft")
    steps = tensors["x"].shape[2]
    output = convolved(tensors["x"], tensors["w"][None], factors)[..., :steps]
    return judge(["y"], [output.astype(F32)], expected, list(tensors.values()))


@pytest.mark.parametrize("line", SHAPES)
def test_correct_transforms_stay_within_the_class_and_use_it(line: str) -> None:
    used = []
    for fill in [*BOUNDED, "integers"]:
        result = judged(line, fill, exact_factors)
        assert result.verdict is Verdict.PASSED, (fill, result.message)
        assert result.max_error < 0.6, fill
        used.append(result.max_error)
    assert max(used) > 0.02


@pytest.mark.parametrize("line", SHAPES)
@pytest.mark.parametrize("factors", [half_precision_factors, one_wrong_factor])
def test_inaccurate_factors_are_caught(factors: Factors, line: str) -> None:
    verdicts = [judged(line, fill, factors).verdict for fill in ("normal", "positive", "mixed")]
    assert verdicts == [Verdict.FAILED] * 3


def test_factors_by_recurrence_are_worse() -> None:
    good, bad = (judged(SHAPES[2], "normal", f) for f in (exact_factors, recurrent_factors))
    assert bad.max_error > 2 * good.max_error


@pytest.mark.parametrize("line", SHAPES)
def test_a_tap_in_the_wrong_place_is_caught(line: str) -> None:
    case = Case.parse(f"causal_conv_forward {line} fill=normal seed=3")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    expected = expectations(case.call, tensors, "fft")
    moved = np.roll(tensors["w"], 1, axis=1)[None]
    output = convolved(tensors["x"], moved, exact_factors)[..., : tensors["x"].shape[2]]
    assert judge(["y"], [output.astype(F32)], expected, []).verdict is Verdict.FAILED


def test_gradients_have_bounds_by_norms_too() -> None:
    """Of dx and dw, also through the slope of SiLU; the bias's gradient is no convolution."""
    line = "dy=float32[2,1,200] x=float32[2,1,200] w=float32[1,64] bias=float32[1]"
    for activation in ("identity", "silu"):
        case = Case.parse(f"causal_conv_backward {line} activation={activation} seed=3")
        tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
        direct, by_norms = (expectations(case.call, tensors, c) for c in ("ieee", "fft"))
        for one, other in zip(direct[:2], by_norms[:2], strict=True):
            assert (other.bound > one.bound).all()
            assert np.median(other.bound) < 100 * np.median(one.bound)
        same = activation == "identity"
        assert (by_norms[2].bound == direct[2].bound).all() == same


def test_a_transform_mixes_infinity_into_its_channel_alone() -> None:
    case = Case.parse("causal_conv_forward x=float32[2,3,20] w=float32[3,4]")
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"][0, 1, 10] = np.inf
    (expected,) = expectations(case.call, tensors, "fft")
    assert expected.may_be_nan[0, 1].all()
    assert expected.may_be_nan.sum() == 20
    tensors["x"][0, 1, 10], tensors["w"][2, 0] = 1.0, np.nan
    (expected,) = expectations(case.call, tensors, "fft")
    assert expected.may_be_nan[:, 2].all()
    assert expected.may_be_nan.sum() == 40


def test_errors_are_relative_to_the_channel_not_to_an_output() -> None:
    """A silent beginning has the noise of what follows; a silent channel has none."""
    case = Case.parse("causal_conv_forward x=float32[1,2,100] w=float32[2,8]")
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"][0, 0, :50] = 0.0
    tensors["x"][0, 1] = 0.0
    (expected,) = expectations(case.call, tensors, "fft")
    assert (expected.value[0, 0, :50] == 0.0).all()
    assert (expected.bound[0, 0, :50] > 0.0).all()
    assert (expected.bound[0, 1] < 2.0**-140).all()


def test_bounds_of_the_smallest_float64_are_numbers() -> None:
    """Their squares are not."""
    case = Case.parse("causal_conv_forward x=float64[1,2,40] w=float64[2,5] fill=tiny seed=3")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    direct, by_norms = (expectations(case.call, tensors, c)[0].bound for c in ("ieee", "fft"))
    assert (by_norms < 1000 * direct).all()
    assert (by_norms >= direct).all()
