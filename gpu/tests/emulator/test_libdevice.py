"""libdevice on the CPU: errors in units in the last place, and directed rounding exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.special as special
from numba import cuda
from numba.cuda import libdevice

from dnncanon.gpu.emulator import launch

rng = np.random.default_rng(11)
N = 8192
POSITIVE = np.exp(rng.uniform(-20, 20, N))
SYMMETRIC = rng.standard_normal(N) * 5
LARGE = rng.standard_normal(N) * 1e5
UNIT = rng.uniform(-1, 1, N)
EXPONENT = rng.uniform(-80, 80, N)


def apply(name, *columns):
    function = getattr(libdevice, name)
    out = np.zeros_like(columns[0])

    def one(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i])

    def two(x, z, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i], z[i])

    def three(x, z, w, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = function(x[i], z[i], w[i])

    kernel = (one, two, three)[len(columns) - 1]
    launch(kernel, -(-out.size // 256), 256, (*columns, out))
    return out


def ulps(got, exact):
    """Largest difference from the correctly rounded value, in units of its last place: what the
    tables of the CUDA C++ Programming Guide ("Mathematical Functions") state."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(got.dtype)
    normal = np.isfinite(rounded) & (np.abs(rounded) > np.finfo(got.dtype).tiny)
    error = np.abs(got.astype(exact.dtype) - rounded.astype(exact.dtype))[normal]
    return float((error / np.spacing(np.abs(rounded[normal])).astype(exact.dtype)).max())


# Arguments, reference, and the largest error that the Programming Guide documents.
SINGLE = {
    "expf": (EXPONENT, np.exp, 1), "exp2f": (EXPONENT, np.exp2, 2),
    "exp10f": (EXPONENT / 3, lambda x: 10.0**x, 2), "logf": (POSITIVE, np.log, 1),
    "log2f": (POSITIVE, np.log2, 1), "log10f": (POSITIVE, np.log10, 2),
    "sinf": (LARGE, np.sin, 2), "cosf": (LARGE, np.cos, 2), "tanf": (SYMMETRIC, np.tan, 4),
    "tanhf": (SYMMETRIC, np.tanh, 2), "sqrtf": (POSITIVE, np.sqrt, 0),
    "rsqrtf": (POSITIVE, lambda x: 1 / np.sqrt(x), 2), "cbrtf": (SYMMETRIC, np.cbrt, 1),
    "erff": (SYMMETRIC, special.erf, 2), "erfcf": (np.abs(SYMMETRIC), special.erfc, 4),
    "atanf": (SYMMETRIC, np.arctan, 2), "asinf": (UNIT, np.arcsin, 2),
    "acosf": (UNIT, np.arccos, 2), "sinhf": (SYMMETRIC, np.sinh, 3),
    "expm1f": (SYMMETRIC, np.expm1, 1), "log1pf": (POSITIVE, np.log1p, 1),
    "tgammaf": (np.abs(SYMMETRIC) + 0.5, special.gamma, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_float32_functions(name):
    x, reference, limit = SINGLE[name]
    x = x.astype(np.float32)
    got = apply(name, x)
    exact = reference(x.astype(np.float64))
    assert ulps(got, exact) <= limit
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))


DOUBLE = {
    "exp": (EXPONENT, np.exp, 1), "log": (POSITIVE, np.log, 1), "sin": (LARGE, np.sin, 2),
    "cos": (LARGE, np.cos, 2), "tanh": (SYMMETRIC, np.tanh, 2), "sqrt": (POSITIVE, np.sqrt, 0),
    "rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x), 1), "exp2": (EXPONENT, np.exp2, 1),
    "log1p": (POSITIVE, np.log1p, 1), "expm1": (SYMMETRIC, np.expm1, 1),
    "atan": (SYMMETRIC, np.arctan, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBLE)
def test_float64_functions_against_80_bit(name):
    x, reference, limit = DOUBLE[name]
    assert ulps(apply(name, x), reference(x.astype(np.longdouble))) <= limit


def directed(mode, exact, dtype):
    """The value that `mode` rounds an exact fraction to."""
    near = dtype(float(exact)) if dtype is np.float64 else dtype(np.float64(float(exact)))
    down = near
    while Fraction(float(down)) > exact:
        down = np.nextafter(down, dtype(-np.inf))
    while Fraction(float(np.nextafter(down, dtype(np.inf)))) <= exact:
        down = np.nextafter(down, dtype(np.inf))
    if Fraction(float(down)) == exact or mode == "rd":
        return down
    up = np.nextafter(down, dtype(np.inf))
    return {"ru": up, "rz": down if exact > 0 else up}[mode]


OPERATIONS = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("prefix", "dtype"), [("f", np.float32), ("d", np.float64)])
def test_directed_rounding(prefix, dtype, operation, mode):
    a, b = (rng.standard_normal(100).astype(dtype) for _ in range(2))
    got = apply(f"{prefix}{operation}_{mode}", a, b)
    exact = [
        OPERATIONS[operation](Fraction(float(x)), Fraction(float(y)))
        for x, y in zip(a, b, strict=True)
    ]
    assert got.tolist() == [directed(mode, e, dtype) for e in exact]


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@pytest.mark.parametrize(("name", "dtype"), [("fmaf", np.float32), ("fma", np.float64)])
def test_directed_fused_multiply_add(name, dtype, mode):
    a, b, c = (rng.standard_normal(100).astype(dtype) for _ in range(3))
    got = apply(f"{name}_{mode}", a, b, c)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == [directed(mode, e, dtype) for e in exact]


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("int2float", np.int32),
        ("uint2float", np.uint32),
        ("ll2float", np.int64),
        ("ull2float", np.uint64),
    ],
)
def test_directed_conversion_of_integers(name, source, mode):
    info = np.iinfo(source)
    x = rng.integers(info.min, info.max, 100, dtype=source, endpoint=True)
    function = getattr(libdevice, f"{name}_{mode}")

    def kernel(a, y):
        i = cuda.threadIdx.x
        y[i] = function(a[i])

    got = np.zeros(100, np.float32)
    launch(kernel, 1, 100, (x, got))
    assert got.tolist() == [directed(mode, Fraction(int(v)), np.float32) for v in x]


def test_fastmath_flushes_subnormals_in_libdevice():
    function = libdevice.fast_expf

    def kernel(x, y):
        y[0] = function(x[0])

    out = np.ones(1, np.float32)
    launch(kernel, 1, 1, (np.full(1, -88.0, np.float32), out), fastmath=True)
    assert out[0] == 0
    launch(kernel, 1, 1, (np.full(1, -88.0, np.float32), out))
    assert 0 < out[0] < np.finfo(np.float32).tiny
