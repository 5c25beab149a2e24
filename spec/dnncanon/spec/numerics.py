"""Numerics classes: how a backend computes, which decides the error bound it is held to.

A class is data: operand and accumulator formats, whether subnormals are flushed, how much a fast
convolution algorithm amplifies rounding errors, and how accurate elementary functions are. The bound
follows from it in ``dnncanon.conformance.bounds``; no class has a tolerance of its own.

Elementary functions
--------------------
``LIBRARY`` is what a correct mathematical library may be off by, in units in the last place beyond the
rounding of the result: the largest figure of its row, rounded up.

======== ======= ======= ===== ========= =====
function CUDA 32 CUDA 64 glibc NumPy     SVML
======== ======= ======= ===== ========= =====
exp      2       1       1     2.52
exp2     2       1       1               4
expm1    1       1       1               4
log      1       1       3     3.83
log2     1       1       2               4
log1p    1       1       2               4
tanh     2       1       2               4
sinh     3       2       2               4
cosh     2       1       2               4
erf      2       2       2
erfc     4       5       5
power    4       2       3
sin, cos 2       2       2               4
tan      4       2       2               4
arctan2  3       2       1               4
======== ======= ======= ===== ========= =====

* CUDA 32 and 64: CUDA C++ Programming Guide 13.0, §17.1, tables 17 (float32) and 18 (float64), "maximum
  ULP error" from the correctly rounded result; its successor, the CUDA Programming Guide, has the same
  figures in §5.5.7. The guide calls them tested extensively but not guaranteed.
* glibc: sysdeps/x86_64/fpu/libm-test-ulps, from which the manual's "Known Maximum Errors in Math
  Functions" is made; the largest of float, double and their vector variants, rounding to nearest.
* NumPy: its own float32 loops, release notes of 1.17.
* SVML: what NumPy takes from Intel's vector library (release notes of 1.22). It has had the variants of low
  accuracy, ``_la``, which Intel's table of accuracy modes holds to 4.

``FAST_MATH`` is what CUDA documents of its approximate instructions and intrinsics: CUDA C++ Programming Guide
13.0, §17.2, table 21 (__expf, …), and the PTX ISA 9.1, §9.7.3 (ex2.approx.f32, …).

========== ================================================================================================
function   documented as
========== ================================================================================================
exp        __expf: 2 + floor(abs(1.173·x)) ULP
exp2       ex2.approx: 2 ULP
log        __logf: 2^-21.41 absolute for x in [0.5, 2], else 3 ULP
log2       __log2f: 2^-22 absolute for x in [0.5, 2], else 2 ULP (lg2.approx: else 2^-22 relative)
tanh       __tanhf and tanh.approx: 2^-11 relative
power      __powf is exp2f(y·__log2f(x)): see below
sin, cos   sin.approx, cos.approx: 2^-20.5 absolute for abs(x) <= 2π, 2^-14.7 for abs(x) <= 100π; __sinf
           2^-21.41 and __cosf 2^-21.19 for abs(x) <= π, "larger otherwise"
divide     __fdividef and div.approx: 2 ULP for abs(y) in [2^-126, 2^126]
reciprocal rcp.approx: 1 ULP
sqrt       sqrt.approx: 2^-23 relative; sqrtf with -prec-sqrt=false 1 ULP (table 17). rsqrt.approx, 2^-22.9,
           is a root and a reciprocal here
========== ================================================================================================

A power has the 2 ULP of ex2.approx and, times ln 2, the absolute error of its argument t = y·log2(x). With
u = 2^-24 that of log2(x) is 4·u for x in [0.5, 2], and else 2 ULP and half a unit of rounding, at most
5·u·|log2(x)|; the product's rounding adds u·|t|. Together at most 6·u·|y|·max(1, |log2(x)|)·ln 2, and this
without 6·u is what ``ulps_per_argument`` counts of a power. The instructions for float16 and bfloat16
(tanh.approx.f16: 2^-10.987 absolute; ex2.approx.f16: 2^-9.9 relative) are no part of the class.

``SATURATING`` is for activations that are computed by way of functions that come close to ±1: 1 + erf(x)
for erfc(−x), 1 + tanh(x) and 1 − tanh(x) for 2σ(±2x), 1 − y for σ(−x). A function of up to 4 ULP, its
argument of size 1, is off by 4·2^-24 absolutely, and so is what the subtraction leaves: exp and erfc of what
is negative, in the definitions. An exponential that overflows in 1/(1 + e^−x) leaves 0 of less than that.

Winograd
--------
F(m, r) computes m outputs of an r-tap filter as Aᵀ[(G·g) ⊙ (Bᵀ·d)] (Lavin and Gray 2016; the matrices here
are Toom and Cook's, from the points 0, 1, −1, 2, −2, 1/2, −1/2, … and ∞). Each of the m + r − 1 products is
off by u times the magnitude that its transformed operands may have, which for operands of size 1 is a
row's norm of G and Bᵀ, and Aᵀ adds these errors up. With errors independent, output o has

    amplification² = Σ_i Aᵀ[o, i]² · ‖G[i]‖² · ‖Bᵀ[i]‖² / r

beyond a direct sum of r products, whose errors are Σ u² = r·u². Its largest value over o holds for one
spatial dim, and dims multiply, for the transforms of several dims are Kronecker products. A product that
underflows is off by an absolute error, which is multiplied by the norm of a row of Aᵀ alone. Because the
rows of Bᵀ reach over the whole tile, an error is relative to all the operands in it, not to those of the
one output: see ``spread``.

FFT
---
A transform of N points in working precision is off by about u·sqrt(log2 N) of the norm of its data
(Higham 2002, §24.1, with errors independent), spread evenly over its points; the product of
two and the way back make three such transforms. The norm is that of all the data, of one channel. No error is
relative to an output: where a channel is silent for a while, there is the noise of what is heard elsewhere.
Where each channel has a filter to itself, and where the reference says what its convolutions are, more can be
said, and less is allowed: see ``dnncanon.conformance.accuracy.transforms``.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import Literal

from dnncanon.spec.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class FunctionError:
    """By how much an elementary function f(x) may be off, beyond the rounding of its result.

    ``ulps`` + ``ulps_per_argument``·|x| units in the last place of f(x), or ``relative``·|f(x)|, and
    ``absolute`` in any case. For a power a^b, |x| is |b|·max(1, |log2 a|)·ln 2.
    """

    ulps: float = 0.0
    ulps_per_argument: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


LIBRARY: Mapping[str, FunctionError] = MappingProxyType(
    {
        "exp": FunctionError(3),
        "exp2": FunctionError(4),
        "expm1": FunctionError(4),
        "log": FunctionError(4),
        "log2": FunctionError(4),
        "log1p": FunctionError(4),
        "tanh": FunctionError(4),
        "sinh": FunctionError(4),
        "cosh": FunctionError(4),
        "erf": FunctionError(2),
        "erfc": FunctionError(5),
        "power": FunctionError(4),
        "sin": FunctionError(4),
        "cos": FunctionError(4),
        "tan": FunctionError(4),
        "arctan2": FunctionError(4),
    }
)

SATURATING: Mapping[str, FunctionError] = MappingProxyType(
    {
        **LIBRARY,
        "exp": FunctionError(3, absolute=2.0**-22),
        "expm1": FunctionError(4, absolute=2.0**-22),
        "erfc": FunctionError(5, absolute=2.0**-22),
    }
)

FAST_MATH: Mapping[str, FunctionError] = MappingProxyType(
    {
        **LIBRARY,
        "exp": FunctionError(2, ulps_per_argument=1.173),
        "exp2": FunctionError(2),
        "log": FunctionError(3, absolute=2.0**-21.41),
        "log2": FunctionError(2, absolute=2.0**-22),
        "tanh": FunctionError(relative=2.0**-11),
        "power": FunctionError(2, ulps_per_argument=6),
        "sin": FunctionError(absolute=2.0**-20.5),
        "cos": FunctionError(absolute=2.0**-20.5),
        "divide": FunctionError(2),
        "reciprocal": FunctionError(1),
        "sqrt": FunctionError(1, relative=2.0**-23),
    }
)


@dataclass(frozen=True, slots=True)
class NumericsClass:
    """The precision of products and sums for one element type.

    ``accumulators`` maps an element type to the type that sums are kept in. ``input_digits`` is the
    precision to which operands are rounded before they are multiplied (None: they are used as they are),
    ``exact_digits`` up to how many of them products are exact, and ``input_roundings`` how many such errors
    count for each operand. ``flushes_subnormals`` allows subnormal operands and results to be taken as
    zero. ``spread`` says what an error is relative to: None, the terms of the same output; "tile",
    operands of the same tile of the same channel; "channel", all operands of a channel.
    """

    name: str
    doc: str
    accumulators: dict[str, str]
    input_digits: int | None = None
    exact_digits: int | None = None
    input_roundings: float = 1.0
    flushes_subnormals: bool = False
    functions: Mapping[str, FunctionError] = field(default_factory=lambda: LIBRARY, hash=False)
    spread: Literal["tile", "channel"] | None = None
    winograd: tuple[int, int] | None = None

    def accumulator(self, dtype: str) -> DType:
        """The accumulator type for tensors of ``dtype``; KeyError where the class does not exist."""
        return DTYPES[self.accumulators[dtype]]

    @property
    def input_variance(self) -> float:
        """Variance of an operand's relative error before it is multiplied."""
        if self.input_digits is None:
            return 0.0
        return float(4.0**-self.input_digits / 3.0 * self.input_roundings)

    def amplification(self, spatial_dims: int, points: int) -> float:
        """By how much larger errors are than those of the direct sum of equally large terms.

        ``points`` is the number of elements of the largest transform.
        """
        if self.winograd is not None:
            return winograd_amplification(*self.winograd) ** spatial_dims
        if self.spread == "channel":
            return math.sqrt(3.0 * math.log2(max(2, points)))
        return 1.0

    @property
    def tile(self) -> int | None:
        """Elements of a tile in each spatial dim: n = m + r − 1."""
        return None if self.winograd is None else sum(self.winograd) - 1

    def underflow_amplification(self, spatial_dims: int) -> float:
        """By how much larger than in a direct sum the errors of products are that underflow."""
        if self.winograd is None:
            return 1.0
        a, _, _ = winograd_transforms(*self.winograd)
        return max(math.sqrt(float(sum(x * x for x in row))) for row in a) ** spatial_dims


# --- Winograd's transforms ------------------------------------------------------------------------

Matrix = tuple[tuple[Fraction, ...], ...]

_WINOGRAD = re.compile(r"winograd\(([1-9][0-9]?),([1-9][0-9]?)\)")
_MAX_TILE = 16


def winograd_points(count: int) -> tuple[Fraction, ...]:
    """The first ``count`` finite interpolation points: 0, 1, −1, 2, −2, 1/2, −1/2, 4, −4, 1/4, −1/4, …"""
    points = [Fraction(0)]
    for magnitude in itertools.islice(_magnitudes(), count):
        points += [magnitude, -magnitude]
    return tuple(points[:count])


def _magnitudes() -> Iterator[Fraction]:
    yield Fraction(1)
    size = 2
    while True:
        yield Fraction(size)
        yield Fraction(1, size)
        size *= 2


def winograd_transforms(outputs: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ [m, n], G [n, r] and Bᵀ [n, n] of F(m, r) with n = m + r − 1: y = Aᵀ[(G·g) ⊙ (Bᵀ·d)].

    The valid correlation y[o] = Σ_j g[j]·d[o + j] is the transpose of a product of polynomials, which is
    evaluated at n − 1 points and ∞ and interpolated after Lagrange.
    """
    n = outputs + taps - 1
    points = winograd_points(n - 1)
    a = [[p**o for p in points] + [Fraction(int(o == outputs - 1))] for o in range(outputs)]
    scale = [math.prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    g = [[p**j / s for j in range(taps)] for p, s in zip(points, scale, strict=True)]
    g.append([Fraction(int(j == taps - 1)) for j in range(taps)])
    b = [[*_product_of_roots([q for q in points if q != p]), Fraction(0)] for p in points]
    b.append(_product_of_roots(list(points)))
    return tuple(map(tuple, a)), tuple(map(tuple, g)), tuple(map(tuple, b))


def _product_of_roots(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π (x − root), that of x⁰ first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [*(-root * c for c in coefficients), Fraction(0)]
        coefficients = [s + t for s, t in zip(shifted, scaled, strict=True)]
    return coefficients


@cache
def winograd_amplification(outputs: int, taps: int) -> float:
    """The amplification of F(m, r) in one spatial dim; see the module's text."""
    a, g, b = winograd_transforms(outputs, taps)
    sizes = [
        float(sum(x * x for x in g_row) * sum(x * x for x in b_row))
        for g_row, b_row in zip(g, b, strict=True)
    ]
    worst = max(sum(float(x * x) * size for x, size in zip(row, sizes, strict=True)) for row in a)
    return max(1.0, math.sqrt(worst / taps))


# --- The classes ----------------------------------------------------------------------------------

WINOGRAD = "winograd(m,r)"
"""What a primitive's table says where each winograd class is allowed."""

_FLOAT32 = {"float32": "float32"}


class _Classes(dict[str, NumericsClass]):
    """The classes by name; winograd(m,r) for all m and r without being listed."""

    def __missing__(self, name: str) -> NumericsClass:
        match = _WINOGRAD.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise KeyError(name)
        outputs, taps = map(int, match.groups())
        if not 2 <= outputs + taps - 1 <= _MAX_TILE:
            raise KeyError(name)
        return _winograd(name, outputs, taps)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False


def _winograd(name: str, outputs: int, taps: int) -> NumericsClass:
    return NumericsClass(
        name,
        f"Winograd's F({outputs}, {taps}) in each spatial dim, in float32: rounding errors "
        f"{winograd_amplification(outputs, taps):.3g} times as large for each dim, and relative to the "
        "operands of a tile.",
        _FLOAT32,
        spread="tile",
        winograd=(outputs, taps),
    )


def permits(allowed: tuple[str, ...], claimed: str) -> bool:
    """Whether a primitive that allows these classes may be computed in the class ``claimed``."""
    if claimed == WINOGRAD:
        return False  # which m and r?
    if claimed in allowed:
        return True
    return WINOGRAD in allowed and claimed in NUMERICS and NUMERICS[claimed].winograd is not None


NUMERICS: Mapping[str, NumericsClass] = _Classes(
    (row.name, row)
    for row in (
        NumericsClass(
            "ieee",
            "Operands as they are; products and sums in float32 or better, float64 for float64.",
            {
                "float64": "float64",
                "float32": "float32",
                "float16": "float32",
                "bfloat16": "float32",
                "float8_e4m3fn": "float32",
                "float8_e5m2": "float32",
                "int8": "int32",
            },
        ),
        NumericsClass(
            "exact",
            "Values are moved, chosen, compared or counted, never rounded: equal bit for bit.",
            # Integers are computed in int64: what does not fit into their own type saturates.
            {name: name if row.is_float else "int64" for name, row in DTYPES.items()},
        ),
        NumericsClass(
            "widened",
            "Integers and codes of few bits as they are; products and sums in float32 or better.",
            dict.fromkeys(
                ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"), "float32"
            ),
        ),
        NumericsClass(
            "ftz",
            "As ieee, but subnormal operands and results may be flushed to zero (AVX-512 BF16, -ftz).",
            {"float32": "float32", "float16": "float32", "bfloat16": "float32"},
            flushes_subnormals=True,
        ),
        NumericsClass(
            "fast_math",
            "As ftz, with approximate elementary functions (CUDA's -use_fast_math, tanh.approx).",
            {"float32": "float32", "float16": "float32", "bfloat16": "float32"},
            flushes_subnormals=True,
            functions=FAST_MATH,
        ),
        NumericsClass(
            "saturating",
            "As ieee, but exp and erfc are accurate to 2^-22 absolutely, not relatively: what 1 + tanh(x), "
            "1 + erf(x) or 1 − y leave in the tails of an activation.",
            {"float32": "float32", "float16": "float32", "bfloat16": "float32"},
            functions=SATURATING,
        ),
        NumericsClass(
            "tf32x3",
            "float32 operands as sums of two TF32 numbers, three of their four products, sums in float32.",
            _FLOAT32,
            input_digits=22,
            exact_digits=11,
            # Each operand's remainder, and half of the product left out for each.
            input_roundings=1.5,
        ),
        NumericsClass(
            "bf16x3",
            "float32 operands as sums of two bfloat16 numbers, three of their four products, sums in "
            "float32.",
            _FLOAT32,
            input_digits=16,
            exact_digits=8,
            # Each operand's remainder, and half of the product left out for each.
            input_roundings=1.5,
        ),
        NumericsClass(
            "tf32",
            "float32 operands rounded to 11 significant bits (TF32), sums in float32.",
            _FLOAT32,
            input_digits=11,
        ),
        NumericsClass(
            "fft",
            "Convolution by fast Fourier transforms in float32, float64 for float64: errors relative to the "
            "norm of a channel.",
            {
                "float64": "float64",
                **dict.fromkeys(("float32", "float16", "bfloat16"), "float32"),
            },
            spread="channel",
        ),
        NumericsClass(
            "fp16_accumulate",
            "float16 operands, products and sums in float16 (cuDNN's TRUE_HALF).",
            {"float16": "float16"},
        ),
        NumericsClass(
            WINOGRAD,
            "Winograd's F(m, r) in each spatial dim, in float32, for the m and r of the claim, such as "
            "winograd(4,3); its amplification follows from the transform matrices.",
            _FLOAT32,
            spread="tile",
            winograd=(2, 3),
        ),
    )
)
