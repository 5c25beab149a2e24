"""Figures and names of dtypes, against NumPy, ml_dtypes and torch."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import spec

ROWS = list(spec.DTYPES.values())
each_dtype = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def finfo(row: spec.DType) -> Any:
    return ml_dtypes.finfo(row.numpy)  # type: ignore[no-untyped-call]


@each_dtype
def test_figures_are_those_of_finfo(row: spec.DType) -> None:
    info = finfo(row)
    assert row.max == float(info.max)
    assert row.smallest_normal == float(info.smallest_normal)
    assert row.smallest_subnormal == float(info.smallest_subnormal)
    assert row.digits == info.nmant + 1
    assert row.min_exponent == info.minexp
    assert row.unit_roundoff == float(info.eps) / 2
    assert row.itemsize == info.bits // 8


@each_dtype
def test_figures_are_those_of_the_numbers_themselves(row: spec.DType) -> None:
    one, zero = row.numpy.type(1), row.numpy.type(0)
    assert float(np.nextafter(one, row.numpy.type(2))) - 1 == 2 * row.unit_roundoff
    assert float(np.nextafter(zero, one)) == row.smallest_subnormal
    with np.errstate(over="ignore"):
        assert np.isinf(np.nextafter(row.numpy.type(row.max), row.numpy.type(np.inf)))


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
    assert set(ieee.accumulators) == set(spec.DTYPES)
    assert all(ieee.accumulator(dtype).digits >= 24 for dtype in spec.DTYPES)


def test_classes_do_not_exist_for_every_dtype() -> None:
    with pytest.raises(KeyError):
        spec.NUMERICS["tf32"].accumulator("float16")


def test_class_names_are_their_keys() -> None:
    for (key, cls), other in itertools.product(spec.NUMERICS.items(), spec.NUMERICS):
        assert (cls.name == other) == (key == other)
