"""Dropout, and the random numbers that it is made of: Bernoulli, uniform and normal.

All take their bits from a stream of words (:mod:`dnncanon.spec.stream`) by the element's linear index i in
C order. U(i) is a number in [0, 1) of as many bits as the dtype has digits d:

    U(i) = floor(word i / 2^(32−d)) / 2^d                                    d = 24, 11, 8
    U(i) = (word 2i · 2^21 + floor(word (2i+1) / 2^11)) / 2^53               d = 53, float64
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import (
    Choice,
    Flag,
    Integers,
    Real,
    as_integer,
    as_real,
    shown,
)
from dnncanon.spec.constraints import one_dtype, one_of
from dnncanon.spec.dtypes import DTYPES
from dnncanon.spec.elementwise import (
    any_rank,
    boundary_shapes,
    drawn_shape,
    legal_shape,
    true_or_false,
)
from dnncanon.spec.errors import AttributeValueError
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Boundary,
    Constraint,
    Draw,
    DTypeRow,
    Primitive,
    Scale,
    TensorSpec,
    declare,
)
from dnncanon.spec.stream import (
    ATTRIBUTES as STREAM,
)
from dnncanon.spec.stream import (
    CONSTRAINTS as LEGAL_STREAM,
)
from dnncanon.spec.stream import (
    DECISIONS as STREAM_DECISIONS,
)
from dnncanon.spec.stream import (
    LARGEST,
    Stream,
    drawn_stream,
)
from dnncanon.spec.tensors import Shape, TensorType

FLOATING = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class DropoutProblem:
    """Dropout of one tensor, forward or backward."""

    dtype: str
    shape: Shape
    probability: float
    stream: Stream
    return_mask: bool = False

    @property
    def threshold(self) -> int:
        """Words below it drop their element."""
        return threshold(self.probability)

    @property
    def scale(self) -> float:
        """1/(1 − p), by which what is kept is multiplied; with p = 1 nothing is."""
        return 1.0 if self.probability == 1.0 else 1.0 / (1.0 - self.probability)


@dataclass(frozen=True, slots=True)
class RandomProblem:
    """A tensor of random numbers; ``parameters`` are those of its distribution, by name."""

    dtype: str
    shape: Shape
    stream: Stream
    parameters: tuple[tuple[str, float], ...]

    def __getitem__(self, name: str) -> float:
        return dict(self.parameters)[name]


def threshold(probability: float) -> int:
    """The least integer t with t/2^32 >= p: as many of the 2^32 words are below p·2^32."""
    return math.ceil(probability * 2.0**32)


# --- From arguments to a problem ------------------------------------------------------------------


def _dropout(a: Arguments) -> DropoutProblem:
    first, given = next(iter(a.tensors.values())), a.attributes
    return DropoutProblem(
        dtype=first.dtype,
        shape=first.shape,
        probability=as_real(given["probability"]),
        stream=Stream.of(given),
        return_mask=given.get("return_mask", False),
    )


def _random(*names: str) -> Callable[[Arguments], RandomProblem]:
    def resolve(a: Arguments) -> RandomProblem:
        return RandomProblem(
            dtype=a.attributes["dtype"],
            shape=tuple(map(as_integer, a.attributes["shape"])),
            stream=Stream.of(a.attributes),
            parameters=tuple((name, as_real(a.attributes[name])) for name in names),
        )

    return resolve


def _elements(p: DropoutProblem | RandomProblem) -> int:
    return math.prod(p.shape)


def _like_the_input(p: DropoutProblem) -> tuple[TensorType, TensorType | None]:
    mask = TensorType("bool", p.shape) if p.return_mask else None
    return TensorType(p.dtype, p.shape), mask


def _gradient(p: DropoutProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.shape),)


def _numbers(p: RandomProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.shape),)


# --- Constraints ----------------------------------------------------------------------------------


def _real(
    name: str,
    text: str,
    is_legal: Callable[[float, Mapping[str, Any]], bool],
    *illegal: float,
) -> Constraint:
    """A finite scalar attribute with a rule, which may depend on the other attributes."""

    def check(a: Arguments) -> str | None:
        try:
            value = as_real(a.attributes[name])
        except ValueError as wrong:
            return f"{name}={wrong}; pass {text}"
        if is_legal(value, a.attributes):
            return None
        return f"{name}={shown(a.attributes[name])}; pass {text}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (*illegal, math.nan, math.inf, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is {text}.", AttributeValueError, check, violate)


def _fits(value: float, given: Mapping[str, Any]) -> bool:
    return abs(value) <= DTYPES[given["dtype"]].max


_PROBABILITY = _real("probability", "a number from 0 to 1", lambda p, _: 0 <= p <= 1, -0.25, 1.25)
_LOW = _real("low", "a finite number of the dtype", _fits, -1e300)
_HIGH = _real(
    "high",
    "a finite number of the dtype, low <= high, with high − low within the dtype as well",
    lambda high, a: (
        _fits(high, a) and as_real(a["low"]) <= high and _fits(high - as_real(a["low"]), a)
    ),
    -1e300,
)
_MEAN = _real("mean", "a finite number of the dtype", _fits, 1e300)
_DEVIATION = _real(
    "std", "a finite number of the dtype, >= 0", lambda std, a: std >= 0 and _fits(std, a), -1.0
)


# --- The domain -----------------------------------------------------------------------------------

_PROBABILITIES = (0.5, 0.1, 0.25, 0.9, 0.3, 0.0)


def _draw_dropout(tensor: str) -> Callable[[Draw, Scale, str], Arguments]:
    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        attributes = {"probability": draw.choice(_PROBABILITIES), **drawn_stream(draw)}
        if tensor == "x":
            attributes["return_mask"] = draw.choice((False, True))
        return Arguments({tensor: TensorType(dtype, drawn_shape(draw, scale))}, attributes)

    return domain


def _draw_random(
    parameters: Callable[[Draw], dict[str, float]],
) -> Callable[[Draw, Scale, str], Arguments]:
    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        attributes: dict[str, Any] = {**parameters(draw), **drawn_stream(draw)}
        return Arguments({}, {"shape": drawn_shape(draw, scale), "dtype": dtype, **attributes})

    return domain


def _bounds(draw: Draw) -> dict[str, float]:
    low, high = draw.choice(((0.0, 1.0), (-1.0, 1.0), (0.1, 0.7), (-300.0, -299.5), (2.5, 2.5)))
    return {"low": low, "high": high}


def _moments(draw: Draw) -> dict[str, float]:
    return {
        "mean": draw.choice((0.0, 0.0, 0.1, -20.0)),
        "std": draw.choice((1.0, 1.0, 0.02, 30.0, 0.0)),
    }


_STREAMS = {
    "first word of all": {"seed": 0},
    "largest seed and subsequence": {"seed": LARGEST, "subsequence": LARGEST},
    "offset passes 2^32": {"seed": 3, "offset": 2**32 - 2},
    "offset passes 2^64": {"seed": 3, "offset": LARGEST - 1, "subsequence": 2**32 - 1},
}
"""Ends of the counter, for tensors of 67 elements: 17 blocks."""
_TIE = {"seed": 0}, 0x6627E8D5 / 2**32
"""A stream, and its first word as a probability: kept by dropout, and no one."""
_DEFAULTS = {attribute.name: attribute.default for attribute in STREAM}


def _dropout_boundaries(tensor: str, **flags: bool) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        def made(
            probability: float,
            stream: Mapping[str, int],
            shape: Shape,
            strides: Shape | None = None,
        ) -> Arguments:
            attributes = {**_DEFAULTS, "seed": 7, **stream, **flags}
            types = {tensor: TensorType(dtype, shape, strides)}
            return Arguments(types, {"probability": probability, **attributes})

        for name, stream in _STREAMS.items():
            yield Boundary(name, made(0.5, stream, (67,)))
        yield Boundary("probability equal to a word", made(_TIE[1], _TIE[0], (67,)))
        for p in (0.0, 2.0**-33, 1.0):
            yield Boundary(f"probability {p:g}", made(p, {}, (67,)))
        for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
            yield Boundary(name, made(0.25, {}, shape, strides))

    return of_dtype


def _random_boundaries(**parameters: float) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        def made(stream: Mapping[str, float], shape: Shape) -> Arguments:
            attributes = {**_DEFAULTS, "seed": 7, **parameters, **stream}
            return Arguments({}, {"shape": shape, "dtype": dtype, **attributes})

        for name, stream in _STREAMS.items():
            yield Boundary(name, made(stream, (67,)))
        if "probability" in parameters:
            tie = {**_TIE[0], "probability": _TIE[1]}
            yield Boundary("probability equal to a word", made(tie, (67,)))
        for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
            if strides is None and len(shape) != 2:
                yield Boundary(name, made({}, shape))

    return of_dtype


# --- Declarations: dropout ------------------------------------------------------------------------

_ROUNDED = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)
_RATE = Attribute("probability", Real(), "Of an element to be dropped, p.", REQUIRED)

_DROPOUT_DECISIONS = (
    "An element is kept where word i of the stream, taken as the fraction word/2^32, is >= p. Both are "
    "exact, and so is their comparison: whoever computes, drops the same elements. The share that is dropped "
    "is ceil(p·2^32)/2^32, less than 2^-32 above p.",
    "With p = 0 nothing is dropped and the factor is 1: y equals x. With p = 1 everything is dropped, and y "
    "is 0: p is what a user asks for, and both ends have a meaning.",
    "What is dropped is +0 whatever it was, NaN and Inf included: it is chosen, not multiplied.",
    "The factor 1/(1 − p) may be rounded to the dtype that is computed in, before the product is.",
    "The mask is computed again in the backward pass, so that none need be saved; cuDNN keeps it in its "
    "reserve space.",
    *STREAM_DECISIONS,
)

dropout_forward = declare(
    Primitive(
        name="dropout_forward",
        family="dropout",
        summary="Dropout: each element is set to 0 with probability p, or else divided by 1 − p.",
        formula="mask[i] = word i >= p·2^32\ny[i] = mask[i] ? x[i]/(1 − p) : 0",
        inputs=(TensorSpec("x", "*I", "input"),),
        outputs=(
            TensorSpec("y", "*I", "output"),
            TensorSpec("mask", "*I", "which elements are kept, bool", optional=True),
        ),
        attributes=(
            _RATE,
            *STREAM,
            Attribute("return_mask", Flag(), "Whether the mask is put out.", False),
        ),
        dtypes=_ROUNDED,
        constraints=(
            any_rank("x"),
            one_dtype(_ROUNDED),
            _PROBABILITY,
            *LEGAL_STREAM,
            true_or_false("return_mask"),
        ),
        decisions=_DROPOUT_DECISIONS,
        resolve=_dropout,
        infer=_like_the_input,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_dropout("x"),
        boundaries=_dropout_boundaries("x", return_mask=True),
        may_copy=True,
        source="cuDNN cudnnDropoutForward; Srivastava et al. 2014; Salmon et al. 2011",
    )
)

dropout_backward = declare(
    Primitive(
        name="dropout_backward",
        family="dropout",
        summary="Gradient of dropout by its input.",
        formula="dx[i] = word i >= p·2^32 ? dy[i]/(1 − p) : 0",
        inputs=(TensorSpec("dy", "*I", "gradient of the loss by y"),),
        outputs=(TensorSpec("dx", "*I", "gradient of the loss by x"),),
        attributes=(_RATE, *STREAM),
        dtypes=_ROUNDED,
        constraints=(any_rank("dy"), one_dtype(_ROUNDED), _PROBABILITY, *LEGAL_STREAM),
        decisions=_DROPOUT_DECISIONS,
        resolve=_dropout,
        infer=_gradient,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_dropout("dy"),
        boundaries=_dropout_boundaries("dy"),
        may_copy=True,
        source="cuDNN cudnnDropoutBackward",
    )
)

# --- Declarations: random numbers -----------------------------------------------------------------

_BERNOULLI_DTYPES = tuple(
    DTypeRow(dtype, ("exact",)) for dtype in ("bool", "uint8", "int32", *FLOATING)
)
_NORMAL_DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math")),
)
_SHAPE = Attribute("shape", Integers(), "Extents of the result.", REQUIRED)


def _dtype(options: tuple[str, ...], default: str) -> tuple[Attribute, Constraint]:
    """The attribute that names the element type, and its rule."""
    attribute = Attribute("dtype", Choice(options), "Element type of the result.", default)
    return attribute, one_of("dtype", options)


_ANY_DTYPE, _LEGAL_ANY = _dtype(tuple(row.dtype for row in _BERNOULLI_DTYPES), "bool")
_FLOAT_DTYPE, _LEGAL_FLOAT = _dtype(FLOATING, "float32")

rng_bernoulli = declare(
    Primitive(
        name="rng_bernoulli",
        family="dropout",
        summary="Ones with probability p, else zeros.",
        formula="y[i] = word i < p·2^32 ? 1 : 0",
        inputs=(),
        outputs=(TensorSpec("y", "*I", "ones and zeros"),),
        attributes=(
            _SHAPE,
            _ANY_DTYPE,
            Attribute("probability", Real(), "Of a one, p.", REQUIRED),
            *STREAM,
        ),
        dtypes=_BERNOULLI_DTYPES,
        constraints=(legal_shape(), _LEGAL_ANY, _PROBABILITY, *LEGAL_STREAM),
        decisions=(
            "The comparison is dropout's: of the same stream and p, the ones are the elements that "
            "dropout drops.",
            *STREAM_DECISIONS,
        ),
        resolve=_random("probability"),
        infer=_numbers,
        flops=_elements,
        reduction_length=lambda p: 1,
        domain=_draw_random(lambda draw: {"probability": draw.choice((*_PROBABILITIES[:-1], 1.0))}),
        boundaries=_random_boundaries(probability=0.25),
        source="cuDNN graph API, RNG with CUDNN_RNG_DISTRIBUTION_BERNOULLI; Salmon et al. 2011",
    )
)

rng_uniform = declare(
    Primitive(
        name="rng_uniform",
        family="dropout",
        summary="Evenly distributed numbers from low to high.",
        formula=(
            "y[i] = low + (high − low)·U(i), of the digits d of the dtype\n"
            "U(i) = floor(word i / 2^(32−d)) / 2^d, d = 24 (float32), 11 (float16), 8 (bfloat16)\n"
            "U(i) = (word 2i · 2^21 + floor(word (2i+1) / 2^11)) / 2^53 (float64)"
        ),
        inputs=(),
        outputs=(TensorSpec("y", "*I", "random numbers"),),
        attributes=(
            _SHAPE,
            _FLOAT_DTYPE,
            Attribute("low", Real(), "Lower end.", 0.0),
            Attribute("high", Real(), "Upper end.", 1.0),
            *STREAM,
        ),
        dtypes=_ROUNDED,
        constraints=(legal_shape(), _LEGAL_FLOAT, _LOW, _HIGH, *LEGAL_STREAM),
        decisions=(
            "U(i) is in [0, 1), a multiple of 2^-d that the dtype holds exactly: 0 occurs, 1 does not, and "
            "with low = 0 and high = 1 nothing is rounded.",
            "Other ends are rounded to, so that high itself may occur. low = high gives that number.",
            *STREAM_DECISIONS,
        ),
        resolve=_random("low", "high"),
        infer=_numbers,
        flops=lambda p: 2 * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_random(_bounds),
        boundaries=_random_boundaries(low=0.0, high=1.0),
        source="cuDNN graph API, RNG with CUDNN_RNG_DISTRIBUTION_UNIFORM; Salmon et al. 2011",
    )
)

rng_normal = declare(
    Primitive(
        name="rng_normal",
        family="dropout",
        summary="Normally distributed numbers, by Box and Muller.",
        formula=(
            "r = sqrt(−2·ln(U(2j) + 2^-d)), θ = 2π·U(2j + 1)\n"
            "y[2j] = mean + std·r·cos θ\n"
            "y[2j + 1] = mean + std·r·sin θ\n"
            "U as in rng_uniform, with d = 53 for float64 and d = 24 for all others"
        ),
        inputs=(),
        outputs=(TensorSpec("y", "*I", "random numbers"),),
        attributes=(
            _SHAPE,
            _FLOAT_DTYPE,
            Attribute("mean", Real(), "Mean.", 0.0),
            Attribute("std", Real(), "Standard deviation, >= 0.", 1.0),
            *STREAM,
        ),
        dtypes=_NORMAL_DTYPES,
        constraints=(legal_shape(), _LEGAL_FLOAT, _MEAN, _DEVIATION, *LEGAL_STREAM),
        decisions=(
            "The logarithm is of a number in (0, 1], exact in what is computed in, so that |y − mean| is at "
            "most sqrt(2·24·ln 2)·std = 5.77·std, or 8.57·std for float64.",
            "Mean 0 and standard deviation 1 unless stated; cuDNN's defaults are −1 and −1, of which the "
            "latter is refused.",
            *STREAM_DECISIONS,
        ),
        resolve=_random("mean", "std"),
        infer=_numbers,
        flops=lambda p: 2 * _elements(p),
        reduction_length=lambda p: 1,
        domain=_draw_random(_moments),
        boundaries=_random_boundaries(mean=0.0, std=1.0),
        source="cuDNN graph API, RNG with CUDNN_RNG_DISTRIBUTION_NORMAL; Box and Muller 1958",
    )
)
