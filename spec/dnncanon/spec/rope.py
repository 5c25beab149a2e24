"""Rotary position embedding: pairs of elements of a head are turned by an angle that the position has.

Symbols: B batch, H heads, S positions, D elements of a head, P pairs that are turned.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Flag, Real, as_real
from dnncanon.spec.constraints import finite, one_of
from dnncanon.spec.elementwise import true_or_false
from dnncanon.spec.errors import DTypeError, ShapeError
from dnncanon.spec.primitive import (
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
from dnncanon.spec.tensors import Shape, TensorType, dense_strides

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)
SLOTS = ("last", "first")


@dataclass(frozen=True, slots=True)
class RopeProblem:
    """A rotation of ``pairs`` pairs in each of ``shape``'s B·H·S heads of D elements."""

    dtype: str
    shape: Shape
    pairs: int
    interleaved: bool
    rotated_slots: str
    output_scale: float

    @property
    def begin(self) -> int:
        """The first element that is turned."""
        return self.shape[-1] - 2 * self.pairs if self.rotated_slots == "last" else 0

    @property
    def turned(self) -> tuple[slice, slice]:
        """The first and the second elements of the pairs, of D."""
        begin, pairs = self.begin, self.pairs
        end = begin + 2 * pairs
        if self.interleaved:
            return slice(begin, end, 2), slice(begin + 1, end, 2)
        return slice(begin, begin + pairs), slice(begin + pairs, end)

    @property
    def others(self) -> slice:
        """The elements that are not turned."""
        end = self.begin + 2 * self.pairs
        return slice(0, self.begin) if self.rotated_slots == "last" else slice(end, self.shape[-1])


def angle_dtype(dtype: str) -> str:
    """The element type of angles for tensors of ``dtype``."""
    return "float64" if dtype == "float64" else "float32"


def _resolve(a: Arguments) -> RopeProblem:
    first, given = next(iter(a.tensors.values())), a.attributes
    return RopeProblem(
        dtype=first.dtype,
        shape=first.shape,
        pairs=a.tensors["angles"].shape[1],
        interleaved=given["interleaved"],
        rotated_slots=given["rotated_slots"],
        output_scale=as_real(given["output_scale"]),
    )


def _large_angles(p: RopeProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Half of the angles as they are, others as large as those of long texts: up to some 10^5."""
    angles = data["angles"]
    place = np.arange(angles.size).reshape(angles.shape)
    factor = np.array([1.0, 2.0**8, 1.0, 2.0**16])[place % 4]
    return {**data, "angles": np.where(np.abs(angles) < 8.0, angles * factor, angles)}


# --- Constraints ----------------------------------------------------------------------------------


def _heads(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        shape = a.tensors[name].shape
        return None if len(shape) == 4 else f"{name} has shape {shape}; pass [B, H, S, D]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors[name].shape
        yield a.with_tensor(name, shape=(*shape, 1), strides=None)
        yield a.with_tensor(name, shape=shape[1:], strides=None)

    return Constraint(f"{name} has the shape [B, H, S, D].", ShapeError, check, violate)


def _dtypes(name: str) -> Constraint:
    supported = [row.dtype for row in DTYPES]
    listed = ", ".join(supported)
    text = f"{name} is of {listed}; angles are float64 where it is, and float32 elsewhere."

    def check(a: Arguments) -> str | None:
        x, angles = a.tensors[name].dtype, a.tensors["angles"].dtype
        if x not in supported:
            return f"{name} is {x}; convert it to one of {listed}"
        if angles == angle_dtype(x):
            return None
        return f"angles are {angles} with {name} of {x}; convert them to {angle_dtype(x)}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor(name, dtype="int32")
        yield a.with_tensor("angles", dtype="float16")
        yield a.with_tensor("angles", dtype="int32")

    return Constraint(text, DTypeError, check, violate)


def _angles(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        shape, (_, _, positions, size) = a.tensors["angles"].shape, a.tensors[name].shape
        if len(shape) == 2 and shape[0] == positions and 2 * shape[1] <= size:
            return None
        return (
            f"angles have shape {shape}, but {name} has S={positions} and D={size}; "
            f"pass angles [S, P], one for each pair, with 2·P <= D"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        positions, pairs = a.tensors["angles"].shape
        size = a.tensors[name].shape[-1]
        for shape in ((positions + 1, pairs), (positions, size // 2 + 1), (positions, 1, pairs)):
            yield a.with_tensor("angles", shape=shape, strides=None)

    return Constraint("angles have the shape [S, P], 2·P <= D.", ShapeError, check, violate)


# --- The domain -----------------------------------------------------------------------------------

_ATTRIBUTES = (
    Attribute(
        "interleaved",
        Flag(),
        "Whether elements 2i and 2i + 1 are a pair, or else i and P + i.",
        False,
    ),
    Attribute("rotated_slots", Choice(SLOTS), "Which 2·P of the D elements are turned.", "last"),
    Attribute("output_scale", Real(), "Factor α of the result.", 1.0),
)
_DEFAULTS = {attribute.name: attribute.default for attribute in _ATTRIBUTES}


def _call(
    tensor: str, dtype: str, shape: Shape, pairs: int, attributes: Mapping[str, Any]
) -> Arguments:
    tensors = {
        tensor: TensorType(dtype, shape),
        "angles": TensorType(angle_dtype(dtype), (shape[2], pairs)),
    }
    return Arguments(tensors, {**_DEFAULTS, **attributes})


def _domain(tensor: str) -> Callable[[Draw, Scale, str], Arguments]:
    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
        heads, positions = draw.integer(1, scale.channels), draw.integer(1, scale.extent)
        pairs, others = draw.integer(1, 2 * scale.channels), draw.choice((0, 0, 0, 1, 8, 3, 16))
        attributes = {
            "interleaved": draw.choice((False, True)),
            "rotated_slots": draw.choice(SLOTS),
            "output_scale": draw.choice((1.0, 1.0, 0.125, -1.7)),
        }
        shape: Shape = (min(batch, scale.batch), heads, positions, 2 * pairs + others)
        while math.prod(shape) * 4 > scale.multiplications:
            largest = shape.index(max(shape[:3]))
            shape = (*shape[:largest], shape[largest] // 2, *shape[largest + 1 :])
        return _call(tensor, dtype, shape, pairs, attributes)

    return domain


_INTERLEAVED, _FIRST = {"interleaved": True}, {"rotated_slots": "first"}


def _all_boundaries() -> Iterator[tuple[str, Shape, int, Mapping[str, Any]]]:
    """Name, shape, pairs and attributes, the cheapest first."""
    yield "empty batch", (0, 2, 3, 4), 2, {}
    yield "no heads", (2, 0, 3, 4), 2, {}
    yield "no positions", (2, 2, 0, 4), 2, {}
    yield "no pairs", (2, 2, 3, 5), 0, {"output_scale": 0.3}
    yield "one pair of three elements", (2, 2, 3, 3), 1, _FIRST
    for pairs in (3, 4, 7, 8, 9, 16, 31, 32, 33):
        for attributes in ({}, _INTERLEAVED):
            name = f"{pairs} pairs{', interleaved' if attributes else ''}"
            yield name, (1, 2, 3, 2 * pairs), pairs, attributes
    yield "64 of 128, the last ones", (1, 3, 2, 128), 32, {}
    yield "64 of 128, the first ones", (1, 3, 2, 128), 32, _FIRST
    yield "scaled", (1, 5, 2, 16), 8, {"output_scale": 0.088388}
    yield "65,537 positions", (1, 1, 2**16 + 1, 2), 1, {}
    yield "65,537 heads", (1, 2**16 + 1, 1, 2), 1, {}
    yield "batch 65,537", (2**16 + 1, 1, 1, 2), 1, {}
    yield "65,537 pairs", (1, 1, 1, 2**17 + 2), 2**16 + 1, {}
    yield "more than 2^31 elements", (2, 2**10, 2**13 + 1, 128), 64, {}


def _boundaries(tensor: str) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for name, shape, pairs, attributes in _all_boundaries():
            yield Boundary(name, _call(tensor, dtype, shape, pairs, attributes))
        _, h, s, d = shape = (2, 3, 5, 16)
        plain = _call(tensor, dtype, shape, 8, {})
        layouts = {
            "positions before heads": (s * h * d, d, h * d, 1),
            "one head for all": (s * d, 0, d, 1),
            "gaps of 3": tuple(4 * stride for stride in dense_strides(shape)),
            "heads 2^30 apart": (3 * 2**30, 2**30, d, 1),
        }
        for name, strides in layouts.items():
            yield Boundary(name, plain.with_tensor(tensor, strides=strides))
        # github.com/EleutherAI/gpt-neox/issues/1003: sines of angles that were rounded to 16 bits.
        texts = _call(tensor, dtype, (1, 1, 2048, 32), 16, {})
        yield Boundary("2048 positions of 16 pairs", texts, "gpt-neox-1003")
        # As cuDNN's freqs: an angle for each element, of which each pair needs one.
        yield Boundary("every angle twice", plain.with_tensor("angles", strides=(16, 1)))

    return of_dtype


# --- Declarations ---------------------------------------------------------------------------------

_PAIRS = """
(a, b) are the elements of pair i, with r = D − 2P where the last slots are turned, or r = 0:
        r + i and r + P + i        or, interleaved, r + 2i and r + 2i + 1"""

_DECISIONS = (
    "There is one angle for each pair, in radians, [S, P]. cuDNN's freqs are [S, 1, 1, 2·P], every angle "
    "twice: their first half is a view of this shape. Two angles for one pair would be no rotation.",
    "Angles are float32, and float64 for float64. They are as large as positions are: sine and cosine are "
    "those of the angle as it is given, to the accuracy of small ones, however large it is. So fast_math, "
    "which is accurate up to π, is no class of this primitive.",
    "The pairing of halves (GPT-NeoX, Llama in Hugging Face) is cuDNN's and the default; interleaved pairs "
    "are RoFormer's.",
    "2·P may be less than D: the last 2·P elements are turned (cuDNN, DeepSeek), or the first ones (GPT-NeoX). "
    "The others are multiplied by the scale alone.",
    "The layout is a matter of strides: [B, S, H, D] in memory is a transposed view.",
    "Both products are there also where a sine is 0: Inf·0 is NaN, and of an infinite angle both elements are.",
    "Sums are kept at float32 or better and rounded once, to nearest even; where the scale is multiplied is "
    "open.",
    "The gradient is the rotation back, with the same scale. Angles have no gradient (cuDNN).",
    "B, H, S and P may be 0.",
)


def _primitive(name: str, x: str, doc: str, y: str, **rest: Any) -> Primitive[RopeProblem]:
    """What both have in common: from the tensor ``x`` to ``y``."""
    return declare(
        Primitive(
            name=name,
            family="rope",
            inputs=(
                TensorSpec(x, "B H S D", doc),
                TensorSpec("angles", "S P", "angles θ of the pairs, in radians"),
            ),
            outputs=(TensorSpec(y, "B H S D", "what it becomes"),),
            attributes=_ATTRIBUTES,
            dtypes=DTYPES,
            constraints=(
                _heads(x),
                _dtypes(x),
                _angles(x),
                true_or_false("interleaved"),
                one_of("rotated_slots", SLOTS),
                finite("output_scale"),
            ),
            decisions=_DECISIONS,
            resolve=_resolve,
            infer=lambda p: (TensorType(p.dtype, p.shape),),
            flops=lambda p: 6 * p.pairs * math.prod(p.shape[:3]),
            reduction_length=lambda p: 2,
            domain=_domain(x),
            boundaries=_boundaries(x),
            consistent=_large_angles,
            may_copy=True,
            **rest,
        )
    )


rope_forward = _primitive(
    "rope_forward",
    "x",
    "queries or keys",
    "y",
    summary="Rotary position embedding: pairs of elements turned by the angle of their position.",
    formula="a′ = α·(a·cos θ[s, i] − b·sin θ[s, i])"
    "\nb′ = α·(b·cos θ[s, i] + a·sin θ[s, i])        α·x elsewhere" + _PAIRS,
    source="cuDNN graph API ROPE_FWD; Su et al. 2021",
)

rope_backward = _primitive(
    "rope_backward",
    "dy",
    "gradient of the loss by y",
    "dx",
    summary="Gradient of a rotary position embedding: the rotation back.",
    formula="a′ = α·(a·cos θ[s, i] + b·sin θ[s, i])"
    "\nb′ = α·(b·cos θ[s, i] − a·sin θ[s, i])        α·dy elsewhere" + _PAIRS,
    source="cuDNN graph API ROPE_BWD",
)
