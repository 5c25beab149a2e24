"""Each data set finds the defect that it is named for, and the everyday data of `normal` does not always.

One defect is planted in a correct convolution per test.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision
from dnncanon.conformance.bounds import expectations
from dnncanon.conformance.case import Case
from dnncanon.conformance.data import FILLS, values
from dnncanon.conformance.execute import inputs
from dnncanon.conformance.verdict import judge
from dnncanon.reports import Verdict
from dnncanon.spec import DTYPES

Array = NDArray[Any]
Convolution = Callable[[Array, Array], Array]
LINE = "x={dtype}[2,8,9,9] w={dtype}[8,8,3,3] padding=1"


def terms(x: Array, w: Array) -> Array:
    """The products of each output, [N, K, O, O, C·F], exact in float64."""
    image = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.moveaxis(sliding_window_view(image, (3, 3), axis=(2, 3)), 1, 3)
    windows = windows.reshape(*windows.shape[:3], -1)
    return windows[:, None] * w.astype(np.float64).reshape(w.shape[0], 1, 1, -1)


def correct(x: Array, w: Array) -> Array:
    return np.asarray(np.sum(terms(x, w), axis=-1, dtype=np.float32))


def verdict_on(fill: str, convolve: Convolution, dtype: str, seed: int) -> Verdict:
    case = Case.parse(f"conv_forward {LINE.format(dtype=dtype)} fill={fill} seed={seed}")
    tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
    expected = expectations(case.call, tensors, "ieee")
    with np.errstate(all="ignore"):
        output = convolve(tensors["x"], tensors["w"]).astype(DTYPES[dtype].numpy)
    return judge(["y"], [output], expected, list(tensors.values())).verdict


# --- The defects ----------------------------------------------------------------------------------


def wrong_element(x: Array, w: Array) -> Array:
    """At the right border the first element of the next row is read, as a flat index would."""
    products = terms(x, w).reshape(*x.shape[:1], w.shape[0], 9, 9, 8, 3, 3)
    following = np.roll(x[..., 0], -1, axis=-1).astype(np.float64)
    last = products[:, :, :, -1, :, :, 2]
    last += np.einsum("nci,kc->nkic", following, w[:, :, 1, 2].astype(np.float64))[..., None] * [
        0,
        1,
        0,
    ]
    return np.asarray(products.sum(axis=(-3, -2, -1)).astype(np.float32))


def lost_tail(x: Array, w: Array) -> Array:
    """The last product of each sum is masked off."""
    return np.asarray(terms(x, w)[..., :-1].sum(axis=-1).astype(np.float32))


def absorbing(x: Array, w: Array) -> Array:
    """Blocks of 8 are added up in float32, and the blocks in bfloat16's eight digits."""
    blocks = terms(x, w).reshape(*x.shape[:1], w.shape[0], 9, 9, 9, 8).sum(axis=-1)
    total = np.zeros(blocks.shape[:-1])
    for k in range(blocks.shape[-1]):
        _, exponent = np.frexp(total + blocks[..., k])
        spacing = np.ldexp(1.0, exponent - 8)
        total = np.rint((total + blocks[..., k]) / spacing) * spacing
    return total.astype(np.float32)


def overflowing(x: Array, w: Array) -> Array:
    """Partial sums saturate at the largest float16."""
    products = terms(x, w)
    total = np.zeros(products.shape[:-1], np.float32)
    for k in range(products.shape[-1]):
        total = np.clip(total + products[..., k], -65504, 65504).astype(np.float32)
    return total


def biased(x: Array, w: Array) -> Array:
    """Partial sums are rounded towards zero."""
    products = terms(x, w)
    total = np.zeros(products.shape[:-1], np.float32)
    for k in range(products.shape[-1]):
        exact = total.astype(np.float64) + products[..., k]
        total = exact.astype(np.float32)
        away = np.abs(total.astype(np.float64)) > np.abs(exact)
        total = np.where(away, np.nextafter(total, np.float32(0)), total)
    return total


def narrow_products(x: Array, w: Array) -> Array:
    """Products are rounded to float16 before they are added up in float32."""
    return np.asarray(terms(x, w).astype(np.float16).sum(axis=-1, dtype=np.float32))


def flushing(x: Array, w: Array) -> Array:
    """Products below the smallest normal number are taken for zero."""
    products = terms(x, w)
    least = DTYPES["float32"].smallest_normal
    return np.asarray(np.where(np.abs(products) < least, 0.0, products).sum(axis=-1))


DEFECTS: dict[str, tuple[str, str, Convolution]] = {
    "reads of the wrong element": ("zeros", "float32", wrong_element),
    "a lost tail": ("integers", "float16", lost_tail),
    "absorption": ("one_large", "float16", absorbing),
    "overflow of a narrow accumulator": ("large", "float16", overflowing),
    "overflow, float32": ("large", "float32", overflowing),
    "sign bias": ("positive", "float32", biased),
    "products in a narrow format": ("mixed", "float32", narrow_products),
    "flushed products": ("tiny", "float32", flushing),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_data_set_finds_its_defect(defect: str) -> None:
    fill, dtype, convolve = DEFECTS[defect]
    for seed in range(5):
        assert verdict_on(fill, correct, dtype, seed) is Verdict.PASSED
        assert verdict_on(fill, convolve, dtype, seed) is Verdict.FAILED


@pytest.mark.parametrize(
    "defect", ["overflow of a narrow accumulator", "overflow, float32", "flushed products"]
)
def test_everyday_data_does_not_find_it(defect: str) -> None:
    _, dtype, convolve = DEFECTS[defect]
    assert all(verdict_on("normal", convolve, dtype, seed) is Verdict.PASSED for seed in range(5))


def test_every_data_set_with_a_target_is_tested() -> None:
    assert {fill for fill, _, _ in DEFECTS.values()} == set(FILLS) - {
        "normal",
        "special",
        "shifted",
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_some_sums_of_zeros_must_be_exactly_0_and_others_not(dtype: str) -> None:
    shares = []
    for seed in range(20):
        case = Case.parse(f"conv_forward {LINE.format(dtype=dtype)} fill=zeros seed={seed}")
        tensors = {name: guarded.view() for name, guarded in inputs(case).items()}
        (expected,) = expectations(case.call, tensors, "ieee")
        exactly_zero = (expected.value == 0) & (expected.bound == 0)
        assert (exactly_zero == (expected.value == 0)).all()
        shares.append(float(exactly_zero.mean()))
    assert 0.15 < np.mean(shares) < 0.5
    assert 0 < min(shares) < max(shares) < 1


def test_shifted_data_finds_cancellation_in_a_variance() -> None:
    """E x² − (E x)², with float32's roundings, beside the mean of (x − E x)²."""
    precision = Precision.of(DTYPES["float32"])
    for fill, found in (("shifted", True), ("normal", False)):
        x = values(fill, 1, "x", 200 * 64, "float32", 64).reshape(200, 64).astype(np.float32)
        model = ErrorArray(x.astype(np.float64), precision, unit=1.0)
        centred = model - np.mean(model, axis=1, keepdims=True)
        expected: Any = np.mean(np.square(centred), axis=1)
        bound = SIGMAS * expected.settled().deviation()
        right = np.mean(np.square(x - x.mean(axis=1, keepdims=True)), axis=1)
        wrong = np.mean(np.square(x), axis=1) - np.square(x.mean(axis=1))
        assert (np.abs(right - expected.value) < bound).all()
        assert bool((np.abs(wrong - expected.value) > bound).any()) == found
