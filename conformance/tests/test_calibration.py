"""The bounds against NumPy: correct implementations stay well within them, wrong ones do not.

The limits of these tests stand around figures that their own code measures: of correct float32 sums of
144 to 324 terms the largest |error| / bound is 0.14 to 0.24 in sequential order, whatever the primitive
and the data, and 0.02 to 0.08 in pairwise order.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision
from dnncanon.conformance.bounds import Expected, expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.verdict import Judgement, judge
from dnncanon.reference.rounding import rounded
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES, FLOATS, NUMERICS, primitives

Array = NDArray[Any]
Tensors = dict[str, Array]

BOUNDED = [name for name, fill in FILLS.items() if fill.layer == "bounded"]


def carrying(value: Array) -> Any:
    """A float32 operand without error, of which nothing is known but its value."""
    return ErrorArray(value.astype(np.float64), Precision.of(DTYPES["float32"]))


# --- Correct implementations, in NumPy ------------------------------------------------------------

LINES = {
    "conv_forward": "x={d}[2,16,9,9] w={d}[8,16,3,3] padding=1",
    "conv_backward_data": "dy={d}[2,16,9,9] w={d}[16,8,3,3] padding=1",
    "conv_backward_filter": "x={d}[4,6,9,9] dy={d}[4,6,9,9] padding=1 filter_size=3",
    "conv_backward_bias": "dy={d}[4,64,9,9]",
    "conv_bias_activation_forward": "x={d}[2,16,9,9] w={d}[8,16,3,3] bias={d}[8] z={d}[2,8,9,9] "
    "padding=1 alpha1=0.5 alpha2=0.25 activation=identity",
}


def sequential(terms: Array) -> Array:
    total: Array = np.add.accumulate(terms, axis=-1, dtype=terms.dtype)[..., -1]
    return total


def backwards(terms: Array) -> Array:
    return sequential(terms[..., ::-1])


def blocked(terms: Array) -> Array:
    parts = np.array_split(terms, max(1, terms.shape[-1] // 16), axis=-1)
    return sequential(np.stack([sequential(part) for part in parts], -1))


def pairwise(terms: Array) -> Array:
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros_like(terms[..., :1])], -1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


ORDERS = (sequential, backwards, blocked, pairwise)


def forward_terms(x: Array, w: Array, padding: int) -> Array:
    """The products of each output of a convolution with stride 1, [N, K, O…, C·F]."""
    dims = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * dims))
    windows = sliding_window_view(x, w.shape[2:], axis=tuple(range(2, 2 + dims)))
    windows = np.moveaxis(windows, 1, 1 + dims)
    windows = windows.reshape(*windows.shape[: 1 + dims], -1)
    terms: Array = windows[:, None] * w.reshape(w.shape[0], *(1,) * dims, -1)
    return terms


def terms_of(case: Case, t: Tensors) -> Array:
    """The terms of every output's sum, along the last axis, exact in float64."""
    if case.primitive.name == "conv_backward_data":
        flipped = np.flip(t["w"], (2, 3)).swapaxes(0, 1)
        return forward_terms(t["dy"], flipped, padding=1)
    if case.primitive.name == "conv_backward_filter":
        terms = forward_terms(t["x"].swapaxes(0, 1), t["dy"].swapaxes(0, 1), padding=1)
        return terms.swapaxes(0, 1)
    if case.primitive.name == "conv_backward_bias":
        return t["dy"].swapaxes(0, 1).reshape(t["dy"].shape[1], -1)
    return forward_terms(t["x"], t["w"], padding=1)


def computed(
    case: Case, tensors: Tensors, order: Callable[[Array], Array], accumulator: str
) -> Array:
    """The output, with every product, sum and factor rounded to the accumulator."""
    with np.errstate(over="ignore", invalid="ignore"):  # of the fill that is to overflow float16
        return _computed(case, tensors, order, accumulator)


def _computed(
    case: Case, tensors: Tensors, order: Callable[[Array], Array], accumulator: str
) -> Array:
    exact = {name: array.astype(np.float64) for name, array in tensors.items()}
    sums = order(terms_of(case, exact).astype(accumulator))
    if case.primitive.name == "conv_bias_activation_forward":
        half, quarter = np.array([0.5, 0.25], accumulator)
        bias, z = (tensors[name].astype(accumulator) for name in ("bias", "z"))
        sums = half * sums + quarter * z + bias.reshape(-1, 1, 1)
    return sums.astype(DTYPES[case.dtype].numpy)


def tensors_of(case: Case) -> Tensors:
    return {name: guarded.view() for name, guarded in inputs(case).items()}


def judged(case: Case, output: Array, numerics: str = "ieee") -> Judgement:
    tensors = tensors_of(case)
    expected = expectations(case.call, tensors, numerics)
    return judge(["y"], [output], expected, list(tensors.values()))


def test_every_convolution_is_calibrated() -> None:
    """The other primitives are so in test_calibration_table.py."""
    assert set(LINES) == {n for n, p in primitives().items() if p.family == "conv"}


@pytest.mark.parametrize("fill", BOUNDED)
@pytest.mark.parametrize("name", LINES)
def test_float32_stays_well_below_its_bound_but_uses_it(name: str, fill: str) -> None:
    used = {}
    for order in ORDERS:
        results = []
        for seed in range(2):
            case = Case.parse(f"{name} {LINES[name].format(d='float32')} fill={fill} seed={seed}")
            results.append(judged(case, computed(case, tensors_of(case), order, "float32")))
        assert {r.verdict for r in results} == {Verdict.PASSED}, results[0].message
        assert all(r.bias is not None and abs(r.bias) < 4 for r in results)
        used[order.__name__] = max(r.max_error for r in results)
    assert max(used.values()) < 0.4
    assert used["sequential"] > 0.1
    assert used["pairwise"] > 0.02


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LINES)
def test_half_precision_with_float32_sums_uses_its_last_rounding(name: str, dtype: str) -> None:
    for fill in BOUNDED:
        case = Case.parse(f"{name} {LINES[name].format(d=dtype)} fill={fill} seed=3")
        for order in ORDERS:
            result = judged(case, computed(case, tensors_of(case), order, "float32"))
            assert result.verdict is Verdict.PASSED, result.message
            # Sums of shifted data are so much alike that they have few values in common formats.
            assert (0.5 if fill == "shifted" else 0.9) < result.max_error <= 1.0


@pytest.mark.parametrize("fill", BOUNDED)
@pytest.mark.parametrize("name", LINES)
def test_float16_sums_stay_within_the_bound_of_their_class(name: str, fill: str) -> None:
    case = Case.parse(f"{name} {LINES[name].format(d='float16')} fill={fill} seed=1")
    used = []
    for order in ORDERS:
        output = computed(case, tensors_of(case), order, "float16")
        result = judged(case, output, "fp16_accumulate")
        if fill == "large":  # of which partial sums may overflow: then anything is right
            assert result.verdict is not Verdict.FAILED, result.message
            continue
        assert result.verdict is Verdict.PASSED, result.message
        used.append(result.max_error)
    assert fill == "large" or 0.05 < max(used) < 0.7


@pytest.mark.parametrize("name", LINES)
def test_float64_passes_beside_a_reference_of_the_same_precision(name: str) -> None:
    for fill in BOUNDED:
        case = Case.parse(f"{name} {LINES[name].format(d='float64')} fill={fill} seed=1")
        for order in ORDERS:
            result = judged(case, computed(case, tensors_of(case), order, "float64"))
            assert result.verdict is Verdict.PASSED, result.message
            assert result.max_error < 0.45


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("exponent", [-540, -515, -400])
def test_float64_passes_where_squares_underflow(name: str, exponent: int) -> None:
    """Operands of 2^-540 … 2^-400: products are lost, subnormal, or squared lost."""
    case = Case.parse(f"{name} {LINES[name].format(d='float64')} seed=1")
    tensors = {key: np.ldexp(array, exponent) for key, array in tensors_of(case).items()}
    expected = expectations(case.call, tensors, "ieee")
    for order in ORDERS:
        output = computed(case, tensors, order, "float64")
        result = judge(["y"], [output], expected, list(tensors.values()))
        assert result.verdict is not Verdict.FAILED, result.message
        assert (result.verdict is Verdict.MISTRUSTED) == (not expected[0].value.any())


@pytest.mark.parametrize("length", [16, 256, 4096])
@pytest.mark.parametrize("order", ORDERS)
def test_matmul_stays_well_below_its_bound_but_uses_it(
    length: int, order: Callable[[Array], Array]
) -> None:
    rng = np.random.default_rng(length)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((24, length), (length, 24)))
    model = np.matmul(carrying(a), carrying(b)).settled()
    got = order((a[:, :, None] * b).swapaxes(1, 2))
    used = np.max(np.abs(got - model.value) / (SIGMAS * np.sqrt(model.variance)))
    assert used < 0.35
    # Pairwise sums round log2(n) times in a row where the model counts n.
    assert used > (0.12 if order in (sequential, backwards) else 0.12 * 4 / np.sqrt(length))


@pytest.mark.parametrize("fill", BOUNDED)
@pytest.mark.parametrize("length", [64, 576, 2304, 9216])
def test_sequential_float16_sums_of_any_length(length: int, fill: str) -> None:
    """Where small terms are absorbed errors are not independent, and the bound still holds."""
    case = Case.parse(
        f"conv_forward x=float16[1,{length},16] w=float16[8,{length},1] fill={fill} seed=1"
    )
    x, w = tensors_of(case)["x"][0], tensors_of(case)["w"][:, :, 0]
    sums = np.zeros((8, 16), np.float16)
    with np.errstate(over="ignore", invalid="ignore"):  # of the fill that is to overflow
        for k in range(length):
            sums += w[:, k : k + 1] * x[k]
    result = judged(case, sums[None], "fp16_accumulate")
    assert result.verdict is not Verdict.FAILED, result.message
    if fill == "large":  # of which partial sums may overflow: then anything is right
        return
    assert 0.02 < result.max_error < 0.8
    # With sums this long a result of half the digits proves something, up to the last length.
    assert result.verdict is Verdict.PASSED or length == 9216


# --- Integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LINES)
def test_integers_must_be_exact(name: str, dtype: str) -> None:
    case = Case.parse(f"{name} {LINES[name].format(d=dtype)} fill=integers seed=1")
    (expected,) = expectations(case.call, tensors_of(case), "ieee")
    assert (expected.bound == 0).all()
    output = rounded(expected.value, dtype)
    assert judged(case, output).verdict is Verdict.PASSED
    # One unit beside, in a single element: float16's neighbour of a small integer.
    flat = output.reshape(-1)
    flat[3] = np.nextafter(flat[3], DTYPES[dtype].numpy.type(np.inf))
    result = judged(case, output)
    assert result.verdict is Verdict.FAILED
    assert "exactly" in result.message
    assert result.max_error == np.inf


# --- Detection power ------------------------------------------------------------------------------

LENGTHS = pytest.mark.parametrize("length", [16, 256, 4096])
FILLED = pytest.mark.parametrize("fill", BOUNDED)


def product_case(dtype: str, length: int, fill: str, outputs: int = 64) -> Case:
    """A matrix product of 32 rows, as a convolution of one tap."""
    return Case.parse(
        f"conv_forward x={dtype}[1,{length},{outputs}] w={dtype}[32,{length},1] fill={fill} seed=1"
    )


def operands(case: Case) -> tuple[Array, Array]:
    tensors = tensors_of(case)
    return tensors["w"][:, :, 0], tensors["x"][0]


def value_of(case: Case) -> Array:
    (expected,) = expectations(case.call, tensors_of(case), "ieee")
    return expected.value


def to_tf32(values: Array) -> Array:
    """Rounded to 11 significant bits, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return bits.astype(np.uint32).view(np.float32)


def truncated(values: Array, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        nearest = values.astype(dtype)
    away = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(away, np.nextafter(nearest, dtype(0)), nearest).astype(dtype)


@FILLED
@LENGTHS
def test_a_float16_accumulator_is_caught(length: int, fill: str) -> None:
    case = product_case("float16", length, fill)
    w, x = operands(case)
    sums = np.zeros((32, 64), np.float16)
    with np.errstate(over="ignore", invalid="ignore"):  # of the fill that is to overflow
        for k in range(length):
            sums += w[:, k : k + 1] * x[k]
    result = judged(case, sums[None])
    assert result.verdict is Verdict.FAILED
    assert result.max_error > 3


@FILLED
@LENGTHS
def test_tf32_passed_off_as_float32_is_caught(length: int, fill: str) -> None:
    case = product_case("float32", length, fill)
    w, x = map(to_tf32, operands(case))
    assert judged(case, (w @ x)[None]).verdict is Verdict.FAILED


@FILLED
@LENGTHS
def test_a_truncating_cast_to_float16_is_caught(length: int, fill: str) -> None:
    case = product_case("float16", length, fill)
    result = judged(case, truncated(value_of(case), np.float16))
    assert result.verdict is Verdict.FAILED
    assert result.max_error > 1.5
    assert result.bias is not None
    assert result.bias < -50


@FILLED
@pytest.mark.parametrize("length", [16, 64])
def test_a_truncating_cast_to_float32_is_caught_by_its_bias(length: int, fill: str) -> None:
    """Each element is far within its bound, which the sum's own roundings make wide."""
    case = product_case("float32", length, fill, outputs=512)
    result = judged(case, truncated(value_of(case), np.float32))
    assert result.max_error < 0.4
    assert result.verdict is Verdict.FAILED
    assert "too small on the whole" in result.message


@FILLED
@LENGTHS
def test_truncating_sums_are_caught(length: int, fill: str) -> None:
    """Each partial sum rounded towards zero, as some tensor cores do."""
    case = product_case("float32", length, fill)
    w, x = (array.astype(np.float64) for array in operands(case))
    sums = np.zeros((32, 64), np.float32)
    for k in range(length):
        sums = truncated(sums + w[:, k : k + 1] * x[k], np.float32)
    assert judged(case, sums[None]).verdict is Verdict.FAILED


@FILLED
@LENGTHS
def test_one_term_left_out_is_caught(length: int, fill: str) -> None:
    case = product_case("float32", length, fill)
    w, x = operands(case)
    assert judged(case, (w[:, 1:] @ x[1:])[None]).verdict is Verdict.FAILED


# --- Numerics classes -----------------------------------------------------------------------------


@FILLED
@LENGTHS
def test_tf32_stays_within_the_bound_of_its_class(length: int, fill: str) -> None:
    case = product_case("float32", length, fill)
    w, x = map(to_tf32, operands(case))
    result = judged(case, (w @ x)[None], "tf32")
    assert result.verdict is Verdict.PASSED, result.message
    assert 0.15 < result.max_error < 0.5


@FILLED
def test_an_operands_error_in_many_elements_is_no_bias(fill: str) -> None:
    """One filter of one tap: every output has the rounding of the same w in it."""
    for seed in range(30):
        case = Case.parse(
            f"conv_forward x=float32[2,1,500] w=float32[1,1,1] fill={fill} seed={seed}"
        )
        tensors = tensors_of(case)
        result = judged(case, to_tf32(tensors["x"]) * to_tf32(tensors["w"]), "tf32")
        assert result.verdict is not Verdict.FAILED, result.message


@FILLED
def test_float16_products_are_not_good_enough_for_tf32(fill: str) -> None:
    """Half of TF32's digits: operands in bfloat16."""
    case = product_case("float32", 64, fill)
    w, x = (array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in operands(case))
    assert judged(case, (w @ x)[None], "tf32").verdict is Verdict.FAILED


def flushed(values: Array, dtype: str) -> Array:
    row = DTYPES[dtype]
    tiny = np.abs(values.astype(np.float64)) < row.smallest_normal
    return np.where(tiny, row.numpy.type(0), values).astype(row.numpy)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", ["x={d}[4,1,60] w={d}[2,1,1]", "x={d}[2,4,60] w={d}[3,4,2]"])
def test_flushing_is_within_ftz_and_beyond_ieee(dtype: str, shape: str) -> None:
    case = Case.parse(f"conv_forward {shape.format(d=dtype)} fill=special seed=1")
    tensors = {name: flushed(array, dtype) for name, array in tensors_of(case).items()}
    with np.errstate(all="ignore"):
        sums = sequential(
            forward_terms(tensors["x"].astype(float), tensors["w"].astype(float), 0)
        ).astype(np.float32)
        output = flushed(flushed(sums, "float32").astype(DTYPES[dtype].numpy), dtype)
        kept = rounded(value_of(case), dtype)
    assert judged(case, output, "ftz").verdict is Verdict.PASSED
    assert judged(case, kept, "ftz").verdict is Verdict.PASSED
    if "1,60" in shape:  # some outputs are a subnormal input's alone
        assert judged(case, output, "ieee").verdict is Verdict.FAILED


def test_flushed_products_are_within_ftz() -> None:
    """10,000 products of 1e-40, each flushed: together they are a normal number."""
    case = Case.parse("conv_forward x=float32[1,10000,1] w=float32[1,10000,1]")
    tensors = {name: np.full_like(array, 1e-20) for name, array in tensors_of(case).items()}
    (ftz,) = expectations(case.call, tensors, "ftz")
    (ieee,) = expectations(case.call, tensors, "ieee")
    assert ftz.value[0, 0, 0] > DTYPES["float32"].smallest_normal
    assert ftz.bound[0, 0, 0] > ftz.value[0, 0, 0]
    assert ieee.bound[0, 0, 0] < ftz.value[0, 0, 0]


def test_ftz_is_as_tight_as_ieee_for_normal_numbers() -> None:
    case = product_case("float32", 64, "normal")
    ftz, ieee = (expectations(case.call, tensors_of(case), name)[0] for name in ("ftz", "ieee"))
    assert np.allclose(ftz.bound, ieee.bound, rtol=1e-6, atol=0)


ROUNDING = [name for name in NUMERICS if name != "exact"]


@pytest.mark.parametrize("numerics", ROUNDING)
def test_a_class_is_not_looser_than_its_digits(numerics: str) -> None:
    """Bounds, as shares of the values' typical size, in units of the class's own roundoff.

    Transforms amplify the roundoff of what they compute in, and not that of a result's dtype, to which it
    is rounded once, behind them.
    """
    row = NUMERICS[numerics]
    for dtype in FLOATS.keys() & row.accumulators.keys():
        accumulator = row.accumulators[dtype]
        case = product_case(dtype, 64, "normal")
        (expected,) = expectations(case.call, tensors_of(case), numerics)
        digits = min(d for d in (row.input_digits, DTYPES[accumulator].digits) if d is not None)
        computed = 2.0**-digits * row.amplification(spatial_dims=1, points=128)
        roundoff = max(computed, DTYPES[dtype].unit_roundoff)
        share = float(np.median(expected.bound)) / np.std(expected.value)
        assert 0.3 * roundoff < share < 80 * roundoff


def test_an_infinity_that_a_flushed_operand_makes_nan_may_be_nan() -> None:
    case = Case.parse("conv_forward x=float32[1,1,2] w=float32[1,1,1]")
    tensors = {
        "x": np.array([[[np.inf, 1.0]]], np.float32),
        "w": np.array([[[1e-40]]], np.float32),
    }

    def allowed(numerics: str) -> list[bool]:
        expected: Expected = expectations(case.call, tensors, numerics)[0]
        result: list[bool] = expected.may_be_nan.ravel().tolist()
        return result

    assert allowed("ftz") == [True, False]
    assert allowed("ieee") == [False, False]
