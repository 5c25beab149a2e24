"""Figures and names of dtypes, against NumPy, ml_dtypes and torch."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import spec
from dnncanon.spec.numerics import winograd_amplification, winograd_transforms

ROWS = list(spec.DTYPES.values())
FLOATS = [row for row in ROWS if row.is_float]
INTEGERS = [row for row in ROWS if row.kind == "integer"]
each_dtype = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
each_float = pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
each_integer = pytest.mark.parametrize("row", INTEGERS, ids=lambda row: row.name)


def finfo(row: spec.DType) -> Any:
    return ml_dtypes.finfo(row.numpy)  # type: ignore[no-untyped-call]


@each_float
def test_figures_are_those_of_finfo(row: spec.DType) -> None:
    info = finfo(row)
    assert row.max == float(info.max)
    assert row.smallest_normal == float(info.smallest_normal)
    assert row.smallest_subnormal == float(info.smallest_subnormal)
    assert row.digits == info.nmant + 1
    assert row.min_exponent == info.minexp
    assert row.unit_roundoff == float(info.eps) / 2
    assert row.itemsize == -(-info.bits // 8)


@each_float
def test_figures_are_those_of_the_numbers_themselves(row: spec.DType) -> None:
    numbers = finite_numbers(row)
    above_one = numbers[numbers > 1.0].min()
    assert above_one - 1 == 2 * row.unit_roundoff
    assert numbers[numbers > 0.0].min() == row.smallest_subnormal
    assert (numbers.min(), numbers.max()) == (row.min, row.max)


def finite_numbers(row: spec.DType) -> Any:
    """All of them, or in a wide format those around 0, 1 and the largest."""
    if row.itemsize == 1:
        count = 2**4 if row.name.startswith("float4") else 2**8
        numbers = np.arange(count, dtype=np.uint8).view(row.numpy).astype(np.float64)
        return numbers[np.isfinite(numbers)]
    zero, one, largest = (row.numpy.type(v) for v in (0, 1, row.max))
    nearby = [np.nextafter(zero, one), np.nextafter(one, row.numpy.type(2)), largest, -largest]
    return np.array([float(number) for number in nearby])


@each_float
def test_behind_the_largest_number_comes_infinity_where_there_is_one(row: spec.DType) -> None:
    with np.errstate(over="ignore"):
        beyond = float(np.float64(row.max * 4).astype(row.numpy))
    assert np.isinf(beyond) == row.has_infinity or row.name == "float8_e8m0fnu"


@each_integer
def test_figures_are_those_of_iinfo(row: spec.DType) -> None:
    info = np.iinfo(row.numpy)
    assert (row.min, row.max) == (float(info.min), float(info.max))
    assert row.digits + row.signed == info.bits
    assert row.smallest_subnormal == 1.0


@each_dtype
def test_names_are_their_keys(row: spec.DType) -> None:
    assert spec.DTYPES[row.name] is row
    assert spec.dtype_name(row.numpy) == row.name


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "float16"),
        (np.dtype("f4"), "float32"),
        ("float64", "float64"),
        (float, "float64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (ml_dtypes.float8_e5m2, "float8_e5m2"),
        (np.int8, "int8"),
        (np.dtype(">f8" if np.dtype("<f8").isnative else "<f8"), ">f8"),
    ],
)
def test_names_of_numpy_dtypes(dtype: object, name: str) -> None:
    assert spec.dtype_name(dtype) == name


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int8"])
def test_names_of_torch_dtypes(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert spec.dtype_name(getattr(torch, name)) == name
    tensor = torch.zeros((2, 3), dtype=getattr(torch, name))
    assert spec.TensorType.of(tensor) == spec.TensorType(name, (2, 3))


# --- Numerics classes -----------------------------------------------------------------------------

CLASSES = [(cls, dtype) for cls in spec.NUMERICS.values() for dtype in cls.accumulators]


@pytest.mark.parametrize(("cls", "dtype"), CLASSES, ids=[f"{c.name}-{d}" for c, d in CLASSES])
def test_accumulators_hold_their_operands(cls: spec.NumericsClass, dtype: str) -> None:
    accumulator = cls.accumulator(dtype)
    assert accumulator.digits >= spec.DTYPES[dtype].digits
    assert accumulator.max >= spec.DTYPES[dtype].max


def test_ieee_sums_in_float32_or_better() -> None:
    ieee = spec.NUMERICS["ieee"]
    assert set(ieee.accumulators) >= set(spec.FLOATS)
    assert all(ieee.accumulator(dtype).digits >= 24 for dtype in ieee.accumulators)


def test_exact_has_every_dtype_as_it_is_and_integers_counted_in_64_bits() -> None:
    exact = spec.NUMERICS["exact"].accumulators
    expected = {n: n if row.is_float else "int64" for n, row in spec.DTYPES.items()}
    assert exact == expected


def test_classes_do_not_exist_for_every_dtype() -> None:
    with pytest.raises(KeyError):
        spec.NUMERICS["tf32"].accumulator("float16")


def test_class_names_are_their_keys() -> None:
    for (key, cls), other in itertools.product(spec.NUMERICS.items(), spec.NUMERICS):
        assert (cls.name == other) == (key == other)


# --- Winograd -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "taps"), [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (3, 2), (1, 3)]
)
def test_winograds_transforms_convolve_exactly(outputs: int, taps: int) -> None:
    """In rational numbers: y[o] = Σ_j g[j]·d[o + j], for every unit vector of d and g."""
    a, g, b = winograd_transforms(outputs, taps)
    for i, j in itertools.product(range(outputs + taps - 1), range(taps)):
        y = [
            sum(x * g_row[j] * b_row[i] for x, g_row, b_row in zip(a_row, g, b, strict=True))
            for a_row in a
        ]
        assert y == [int(i == o + j) for o in range(outputs)]


def test_the_transforms_of_f_2_3_are_the_published_ones() -> None:
    """Up to the signs and factors that a row of G and one of B may exchange."""
    a, g, b = winograd_transforms(2, 3)
    assert [[int(x) for x in row] for row in a] == [[1, 1, 1, 0], [0, 1, -1, 1]]
    assert [[abs(float(x)) for x in row] for row in g] == [
        [1, 0, 0],
        [0.5, 0.5, 0.5],
        [0.5, 0.5, 0.5],
        [0, 0, 1],
    ]
    assert [[abs(int(x)) for x in row] for row in b] == [
        [1, 0, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 0, 1],
    ]


def test_larger_tiles_amplify_more() -> None:
    sizes = [winograd_amplification(outputs, 3) for outputs in (2, 4, 6)]
    assert sizes == sorted(sizes)
    # F(2, 3) by hand: rows of Aᵀ have entries ±1, so Σ ‖G[i]‖²·‖Bᵀ[i]‖² = 2 + 1.5 + 1.5 for each output.
    assert winograd_amplification(2, 3) == pytest.approx((5 / 3) ** 0.5)
    row = spec.NUMERICS["winograd(4,3)"]
    assert row.amplification(2, points=1) == winograd_amplification(4, 3) ** 2
    assert row.tile == 6


@pytest.mark.parametrize("name", ["winograd(2,3)", "winograd(6,3)", "winograd(4,5)"])
def test_winograd_classes_need_not_be_listed(name: str) -> None:
    assert name in spec.NUMERICS
    assert name not in list(spec.NUMERICS)
    assert spec.NUMERICS[name].name == name
    assert spec.NUMERICS[name].accumulator("float32").name == "float32"


@pytest.mark.parametrize(
    "name", ["winograd", "winograd(0,3)", "winograd(4)", "winograd(99,3)", "winograd(4,3) ", "x", 3]
)
def test_what_is_no_class(name: object) -> None:
    assert name not in spec.NUMERICS
    with pytest.raises(KeyError):
        spec.NUMERICS[name]  # type: ignore[index]
