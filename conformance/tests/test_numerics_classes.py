"""Each numerics class against a correct implementation of it, in NumPy, and against the next worse one.

A correct implementation uses 1 % of the bound or more and never exceeds half of it; in the tests' own
cases Winograd's convolutions use 3 to 31 %, Fourier's 2 to 11 %.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import special

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.verdict import Judgement, judge
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES, NUMERICS
from dnncanon.spec.numerics import FAST_MATH, winograd_transforms

Array = NDArray[Any]
F32 = np.float32
BOUNDED = [name for name, fill in FILLS.items() if fill.layer == "bounded"]
SHAPES = (
    "x=float32[2,16,12,12] w=float32[8,16,3,3] padding=1",
    "x=float32[1,64,24,24] w=float32[8,64,3,3] padding=1",
    "x=float32[3,1,8,8] w=float32[2,1,3,3] padding=2",
)


# --- Correct implementations of each class --------------------------------------------------------


def winograd(outputs: int, x: Array, w: Array, padding: int) -> Array:
    """F(m×m, 3×3) with every transform and product in float32, channels added one by one."""
    a, g, b = (np.array(t, np.float64).astype(F32) for t in winograd_transforms(outputs, 3))
    tile, extent = outputs + 2, x.shape[2] + 2 * padding - 2
    tiles = -(-extent // outputs)
    size = tiles * outputs + 2
    padded = np.zeros((*x.shape[:2], size, size), F32)
    inside = slice(padding, padding + x.shape[2])
    padded[:, :, inside, inside] = x
    d = sliding_window_view(padded, (tile, tile), axis=(2, 3))[:, :, ::outputs, ::outputs]
    u = np.matmul(np.matmul(g, w), g.T)
    v = np.matmul(np.matmul(b, d), b.T)
    m = np.zeros((x.shape[0], w.shape[0], tiles, tiles, tile, tile), F32)
    for c in range(x.shape[1]):
        m += u[None, :, c, None, None] * v[:, None, c]
    y = np.matmul(np.matmul(a, m), a.T).swapaxes(3, 4)
    whole = y.reshape(*y.shape[:2], tiles * outputs, -1)
    return np.asarray(whole[:, :, :extent, :extent])


def fft(x: Array, w: Array, padding: int) -> Array:
    """By transforms of the whole padded image in complex64."""
    transforms = pytest.importorskip("scipy.fft")
    taps, extent = w.shape[-1], x.shape[2] + 2 * padding
    size = transforms.next_fast_len(extent)
    image = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    x_hat = transforms.rfft2(image, (size, size))
    w_hat = transforms.rfft2(np.flip(w, (2, 3)), (size, size))
    assert x_hat.dtype == np.complex64
    products = np.zeros((x.shape[0], w.shape[0], *x_hat.shape[2:]), np.complex64)
    for c in range(x.shape[1]):
        products += x_hat[:, None, c] * w_hat[None, :, c]
    whole = transforms.irfft2(products, (size, size))
    return np.asarray(whole[:, :, taps - 1 : extent, taps - 1 : extent])


def direct(x: Array, w: Array, padding: int) -> Array:
    image = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(image, w.shape[2:], axis=(2, 3))
    return np.asarray(np.einsum("nchwij,kcij->nkhw", windows, w, optimize=True), F32)


def to_tf32(values: Array) -> Array:
    bits = values.astype(F32).view(np.uint32)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return bits.astype(np.uint32).view(F32)


def tf32(x: Array, w: Array, padding: int) -> Array:
    return direct(to_tf32(x), to_tf32(w), padding)


def halves(values: Array) -> tuple[Array, Array]:
    """A float32 as a sum of two bfloat16 numbers."""
    high = values.astype(ml_dtypes.bfloat16).astype(F32)
    return high, (values - high).astype(ml_dtypes.bfloat16).astype(F32)


def bf16x3(x: Array, w: Array, padding: int) -> Array:
    (x1, x2), (w1, w2) = halves(x), halves(w)
    small = direct(x1, w2, padding) + direct(x2, w1, padding)
    return small + direct(x1, w1, padding)


def tf32x3(x: Array, w: Array, padding: int) -> Array:
    x1, w1 = to_tf32(x), to_tf32(w)
    x2, w2 = to_tf32(x - x1), to_tf32(w - w1)
    small = direct(x1, w2, padding) + direct(x2, w1, padding)
    return small + direct(x1, w1, padding)


def bf16(x: Array, w: Array, padding: int) -> Array:
    return direct(halves(x)[0], halves(w)[0], padding)


Convolution = Callable[[Array, Array, int], Array]
IMPLEMENTATIONS: dict[str, Convolution] = {
    "winograd(2,3)": lambda x, w, padding: winograd(2, x, w, padding),
    "winograd(4,3)": lambda x, w, padding: winograd(4, x, w, padding),
    "winograd(6,3)": lambda x, w, padding: winograd(6, x, w, padding),
    "fft": fft,
    "tf32x3": tf32x3,
    "bf16x3": bf16x3,
    "tf32": tf32,
    "ieee": direct,
}


def judged(line: str, fill: str, numerics: str, convolve: Convolution, seed: int = 1) -> Judgement:
    case = Case.parse(f"conv_forward {line} fill={fill} seed={seed}")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    expected = expectations(case.call, tensors, numerics)
    padding = int(line.rpartition("padding=")[2])
    output = convolve(tensors["x"], tensors["w"], padding)
    return judge(["y"], [output.astype(F32)], expected, list(tensors.values()))


@pytest.mark.parametrize("line", SHAPES)
@pytest.mark.parametrize("numerics", IMPLEMENTATIONS)
def test_a_correct_implementation_stays_within_its_class_and_uses_it(
    numerics: str, line: str
) -> None:
    used = []
    for fill in [*BOUNDED, "integers"]:
        result = judged(line, fill, numerics, IMPLEMENTATIONS[numerics])
        assert result.verdict is Verdict.PASSED, (fill, result.message)
        assert result.max_error < 0.6, fill
        used.append(result.max_error)
    assert max(used) > 0.01


WORSE: dict[str, str | Convolution] = {
    "ieee": "bf16x3",
    "tf32x3": "bf16x3",
    "bf16x3": "tf32",
    "winograd(2,3)": "winograd(4,3)",
    "winograd(4,3)": "tf32",
    "winograd(6,3)": "tf32",
    "fft": "tf32",
    "tf32": bf16,
}


@pytest.mark.parametrize("numerics", WORSE)
def test_the_next_worse_class_is_caught(numerics: str) -> None:
    worse = WORSE[numerics]
    convolve = IMPLEMENTATIONS[worse] if isinstance(worse, str) else worse
    for line in SHAPES[:2]:
        verdicts = [judged(line, fill, numerics, convolve).verdict for fill in BOUNDED]
        assert Verdict.FAILED in verdicts


@pytest.mark.parametrize("numerics", ["winograd(2,3)", "winograd(4,3)", "fft"])
def test_a_wrong_tap_is_caught_in_every_class(numerics: str) -> None:
    def shifted(x: Array, w: Array, padding: int) -> Array:
        return direct(x, np.roll(w, 1, axis=3), padding)

    for line in SHAPES:
        assert judged(line, "normal", numerics, shifted).verdict is Verdict.FAILED


def test_padding_without_any_element_still_has_a_tile() -> None:
    """With more padding than taps some outputs are sums of nothing, but not for Winograd."""
    line = "x=float32[1,3,6,6] w=float32[2,3,3,3] padding=4"
    for fill in BOUNDED:
        result = judged(line, fill, "winograd(4,3)", IMPLEMENTATIONS["winograd(4,3)"])
        assert result.verdict is Verdict.PASSED, result.message


def test_a_neighbours_infinity_may_make_a_result_nan() -> None:
    line = "x=float32[1,1,20,20] w=float32[1,1,3,3] padding=1"
    case = Case.parse(f"conv_forward {line}")
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"][0, 0, 5, 5] = np.inf
    with np.errstate(all="ignore"):
        output = winograd(4, tensors["x"], tensors["w"], 1)
    assert np.isnan(output).any()
    (expected,) = expectations(case.call, tensors, "winograd(4,3)")
    got = np.where(np.isfinite(expected.value), output, expected.value).astype(F32)
    assert judge(["y"], [got], [expected], []).verdict is Verdict.PASSED
    (ieee,) = expectations(case.call, tensors, "ieee")
    assert judge(["y"], [got], [ieee], []).verdict is Verdict.FAILED
    # Far from it, no.
    assert not expected.may_be_nan[0, 0, 19, 19]


@pytest.mark.parametrize("taps", [1, 3])
def test_one_large_element_spreads_its_errors_along_its_row(taps: int) -> None:
    """The last passes of a transform are off in proportion to single outputs, not to the norm of an image."""
    case = Case.parse(f"conv_forward x=float32[1,1,256,256] w=float32[1,1,{taps},{taps}] seed=1")
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"] *= F32(1e-6)
    tensors["x"][0, 0, 10:12, 10] = 1000.37
    expected = expectations(case.call, tensors, "fft")
    output = fft(tensors["x"], tensors["w"], 0).astype(F32)
    result = judge(["y"], [output], expected, list(tensors.values()))
    assert result.verdict is Verdict.PASSED, result.message
    assert result.max_error > 0.01


@pytest.mark.parametrize("numerics", ["winograd(2,3)", "fft"])
def test_an_activation_lets_a_neighbours_infinity_through(numerics: str) -> None:
    """max(−Inf, 0) is 0, but of a transform that makes NaN of −Inf it is NaN; as far as transforms reach."""
    case = Case.parse(
        "conv_bias_activation_forward x=float32[2,1,5] w=float32[1,1,1] bias=float32[1] activation=relu"
    )
    tensors = {name: guarded.view().copy() for name, guarded in inputs(case).items()}
    tensors["x"][0, 0, 2], tensors["w"][...] = -np.inf, 1.0
    (expected,) = expectations(case.call, tensors, numerics)
    assert expected.value[0, 0, 2] == 0.0
    assert expected.may_be_nan[0].all()
    assert not expected.may_be_nan[1].any()


def products(numerics: str, x: Array, w: float, activation: str = "identity") -> Any:
    """What is expected of the elements of x by w, each a sum of one product, and an activation."""
    line = f"x=float32[{x.size},1,1] w=float32[1,1,1] bias=float32[1] activation={activation}"
    case = Case.parse(f"conv_bias_activation_forward {line}")
    tensors = {"x": x.reshape(-1, 1, 1), "w": np.full((1, 1, 1), w, F32), "bias": np.zeros(1, F32)}
    (expected,) = expectations(case.call, tensors, numerics)
    return expected


LEAST_TF32, LARGEST = F32(2.0**-136), np.finfo(F32).max


def test_infinity_by_an_operand_that_rounding_makes_zero_may_be_nan() -> None:
    x = np.array([2.0**-149, 2.0**-137, -LEAST_TF32, 2.0**-130, 0.5], F32)
    assert products("tf32", x, np.inf).may_be_nan[:, 0, 0].tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not products("ieee", x, np.inf).may_be_nan.any()
    assert not products("tf32", x, 1.0).may_be_nan.any()


def test_an_operand_that_rounding_makes_infinite_may_be_lost() -> None:
    x = np.array([LARGEST, -LARGEST, LARGEST / 2], F32)
    assert products("tf32", x, 0.5).may_be_nan[:, 0, 0].tolist() == [True, True, False]
    assert not products("ieee", x, 0.5).may_be_nan.any()


@pytest.mark.parametrize("numerics", ["tf32x3", "bf16x3"])
def test_infinity_has_a_rest_that_may_be_nan(numerics: str) -> None:
    x = np.array([np.inf, -np.inf, 1.0, LARGEST], F32)
    assert products(numerics, x, 1.0).may_be_nan[:, 0, 0].tolist() == [True, True, False, True]


@pytest.mark.parametrize("numerics", ["tf32", "ftz"])
def test_an_activation_lets_nan_through(numerics: str) -> None:
    """max(−Inf·2^-140, 0) is 0, and NaN where 2^-140 is taken for 0."""
    expected = products(numerics, np.array([-(2.0**-140), -0.5], F32), np.inf, "relu")
    assert expected.value[:, 0, 0].tolist() == [0.0, 0.0]
    assert expected.may_be_nan[:, 0, 0].tolist() == [True, False]


def test_subnormal_operands_have_fewer_digits_in_tf32() -> None:
    x = np.array([2.0**-149, 3 * 2.0**-140, LEAST_TF32, 5 * LEAST_TF32], F32)
    expected = products("tf32", x, 1024.0)
    wrong = np.abs(to_tf32(x).astype(np.float64) - x).reshape(-1, 1, 1) * 1024.0
    assert (wrong[:2] > 0.0).all()
    assert (wrong <= expected.bound).all()
    assert (expected.bound[2:] < 2.0**-20 * expected.value[2:]).all()  # those have no more digits


@pytest.mark.parametrize("name", ["conv_backward_data", "conv_backward_filter"])
@pytest.mark.parametrize("numerics", ["winograd(4,3)", "fft"])
def test_gradients_have_bounds_of_the_same_size(name: str, numerics: str) -> None:
    """Not tighter than of the direct sum, and not so loose that TF32 would pass."""
    lines = {
        "conv_backward_data": "dy=float32[2,16,12,12] w=float32[16,8,3,3] padding=1",
        "conv_backward_filter": "x=float32[2,8,12,12] dy=float32[2,8,12,12] padding=1 filter_size=3",
    }
    case = Case.parse(f"{name} {lines[name]} seed=1")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    fast, ieee = (expectations(case.call, tensors, n)[0].bound for n in (numerics, "ieee"))
    assert (fast >= ieee).all()
    assert np.median(fast / ieee) < 100


# --- Approximate elementary functions -------------------------------------------------------------


def off_by(name: str, exact: Array, argument: Array) -> Array:
    """The largest error that the instruction is documented to make."""
    row = FAST_MATH[name]
    ulps = row.ulps + row.ulps_per_argument * np.abs(argument)
    return np.maximum(
        np.spacing(np.abs(exact).astype(F32)) * ulps, row.relative * np.abs(exact)
    ) + (row.absolute)


@pytest.mark.parametrize(
    ("name", "function"), [("exp", np.exp), ("log", np.log), ("tanh", np.tanh), ("sqrt", np.sqrt)]
)
def test_approximate_functions_are_within_their_class_and_beyond_ieee(
    name: str, function: Callable[[Any], Any]
) -> None:
    x = np.random.default_rng(1).uniform(0.05, 8, 500).astype(F32).astype(np.float64)
    wrong = off_by(name, function(x), x)
    spread = []
    for numerics in ("fast_math", "ieee"):
        row = NUMERICS[numerics]
        precision = Precision.of(DTYPES["float32"], functions=row.functions)
        spread.append(function(ErrorArray(x, precision)).deviation())
    used = wrong / (SIGMAS * spread[0])
    assert 0.1 < used.max() < 0.6
    assert name != "tanh" or (wrong > 100 * SIGMAS * spread[1]).all()


def test_a_power_by_way_of_approximate_logarithms_is_within_fast_math() -> None:
    """2^(b·log2(a)) with the largest errors documented: near a = 1 that of log2(a) is an absolute one."""
    generator = np.random.default_rng(1)
    a = np.concatenate([generator.uniform(0.05, 8, 500), 1.0 + generator.uniform(-0.01, 0.01, 500)])
    logarithm = np.log2(a)
    b = generator.uniform(-40, 40, a.size) / np.maximum(1.0, np.abs(logarithm))
    wrong_by = np.where(
        np.abs(a - 1.25) <= 0.75, 2.0**-22, 2.5 * np.spacing(np.abs(logarithm).astype(F32))
    )
    argument = b * (logarithm + np.sign(b) * wrong_by)
    got = np.exp2(argument + np.abs(argument) * 2.0**-24)
    got = got + 2.0 * np.spacing(got.astype(F32))
    precision = Precision.of(DTYPES["float32"], functions=FAST_MATH)
    modelled: Any = np.power(ErrorArray(a, precision), ErrorArray(b, precision))
    used = np.abs(got - a**b) / (SIGMAS * modelled.deviation())
    assert 0.1 < used.max() < 0.6


def test_a_power_of_zero_is_one_without_error() -> None:
    zeros = ErrorArray(np.zeros(3), Precision.of(DTYPES["float32"]))
    exponents = ErrorArray(np.array([0.0, 1.5, 2.5]), zeros.precision)
    result: Any = np.power(zeros, exponents)
    assert result.value.tolist() == [1.0, 0.0, 0.0]
    assert np.isfinite(result.deviation()).all()


def test_only_convolution_may_be_by_transforms() -> None:
    from dnncanon.spec import primitives
    from dnncanon.spec.numerics import WINOGRAD, permits

    for primitive in primitives().values():
        for row in primitive.dtypes:
            transforms = {"fft", WINOGRAD} & set(row.numerics)
            in_float32 = primitive.family == "conv" and row.dtype == "float32"
            causal = primitive.name in ("causal_conv_forward", "causal_conv_backward")
            fourier = causal or (primitive.family == "conv" and row.dtype == "float64")
            assert not transforms or in_float32 or (fourier and transforms == {"fft"})
            if "bf16x3" in row.numerics:
                assert primitive.family in ("conv", "matmul")
                assert row.dtype == "float32"
            assert permits(row.numerics, "winograd(4,3)") == (WINOGRAD in row.numerics)
            assert not permits(row.numerics, WINOGRAD)


# --- Saturating functions -------------------------------------------------------------------------


def textbook_gelu(x: Array) -> Array:
    return np.asarray(F32(0.5) * x * (F32(1.0) + special.erf(x * F32(0.5**0.5))), F32)


def textbook_gelu_tanh(x: Array) -> Array:
    u = F32((2.0 / np.pi) ** 0.5) * (x + F32(0.044715) * x * x * x)
    return np.asarray(F32(0.5) * x * (F32(1.0) + np.tanh(u)), F32)


def textbook_sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(F32(1.0) / (F32(1.0) + np.exp(-x)), F32)


@pytest.mark.parametrize(
    ("mode", "function"),
    [("gelu", textbook_gelu), ("gelu_tanh", textbook_gelu_tanh), ("sigmoid", textbook_sigmoid)],
)
@pytest.mark.parametrize("fill", ["mixed", "large"])
def test_textbook_activations_are_saturating(mode: str, function: Any, fill: str) -> None:
    line = f"activation_forward x=float32[64,256] mode={mode} fill={fill} seed=3"
    case = Case.parse(line)
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    verdicts = {}
    for numerics in ("saturating", "ieee"):
        expected = expectations(case.call, tensors, numerics)
        verdicts[numerics] = judge(("y",), [function(tensors["x"])], expected, []).verdict
    assert verdicts["saturating"] is Verdict.PASSED
    if fill == "mixed" and mode != "sigmoid":  # values in the tail, not beyond it
        assert verdicts["ieee"] is Verdict.FAILED
