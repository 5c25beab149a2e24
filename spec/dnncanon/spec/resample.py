"""Resampling over space: nearest and linear interpolation to another size, and its gradient.

Symbols: N batch, C channels, I input extents, O output extents, one of each for every spatial dim.
"""

import math
from collections.abc import Iterator
from typing import Any

from dnncanon.spec import resample_domain
from dnncanon.spec.attributes import PerDim, RealPerDim, per_dim, real_per_dim, shown
from dnncanon.spec.constraints import one_dtype, one_of, spatial_dims, spatial_ranks
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint, DTypeRow, Primitive, TensorSpec, declare
from dnncanon.spec.resample_problem import (
    CONVENTIONS,
    INPUT_SIZE,
    LARGEST_DENOMINATOR,
    MODES,
    OUTPUT_SIZE,
    ROUNDINGS,
    SAMPLING,
    ResampleProblem,
    input_extents,
    output_extents,
    resolve,
    samplings,
    scaled_extents,
    scales,
)
from dnncanon.spec.tensors import TensorType

__all__ = ["ResampleProblem", "resample_backward", "resample_forward"]

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)


# --- Constraints ----------------------------------------------------------------------------------


def _scale() -> Constraint:
    text = f"scale, if given, is > 0 for each spatial dim, and at least 1/{LARGEST_DENOMINATOR}."

    def check(a: Arguments) -> str | None:
        if a.attributes["scale"] is None:
            return None
        try:
            real_per_dim(a.attributes["scale"], spatial_dims(a))
        except ValueError as wrong:
            return f"scale={wrong}; pass {RealPerDim().describes}"
        if min(scales(a) or (1,)) > 0:
            return None
        return f"scale={shown(a.attributes['scale'])} is not above 0; pass outputs for each input"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = spatial_dims(a)
        for value in (0.0, -1.0, math.nan, math.inf, (2.0,) * (dims + 1), "2"):
            yield a.with_attributes(scale=value)

    return Constraint(text, AttributeValueError, check, violate)


def _extents(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        if value is None and name == "output_size":
            return None
        try:
            values = per_dim(value, spatial_dims(a))
        except ValueError as wrong:
            return f"{name}={wrong}; pass {PerDim().describes}"
        if min(values) >= 1:
            return None
        return f"{name}={shown(value)} has an entry below 1; pass integers >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = spatial_dims(a)
        for value in (0, -1, (1,) * (dims + 1), (2.5,) * dims, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(
        f"{name}, if given, >= 1 for each spatial dim.", AttributeValueError, check, violate
    )


def _one_of_both() -> Constraint:
    def check(a: Arguments) -> str | None:
        size, scale = a.attributes["output_size"], a.attributes["scale"]
        if size is None or scale is None:
            return None
        return f"output_size={shown(size)} and scale={shown(scale)} are given; pass one of both"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(output_size=3, scale=2.0)

    return Constraint("Not both output_size and scale.", AttributeValueError, check, violate)


def _something_to_sample() -> Constraint:
    def check(a: Arguments) -> str | None:
        size, outputs = input_extents(a), output_extents(a)
        if min(*size, *outputs) >= 1:
            return None
        return f"I={size} is resampled to O={outputs}; pass an input and a scale for which both are >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        name = "x" if "x" in a.tensors else "dy"
        n, c, *extents = a.tensors[name].shape
        yield a.with_tensor(name, shape=(n, c, *(0 for _ in extents)), strides=None)

    return Constraint("I >= 1 and O >= 1, for each spatial dim.", ShapeError, check, violate)


def _extents_of_scale() -> Constraint:
    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["dy"].shape[2:], scaled_extents(a)
        if a.attributes["scale"] is None or got == expected:
            return None
        return (
            f"dy has spatial extents {got}, but I={input_extents(a)} with scale="
            f"{shown(a.attributes['scale'])} gives O={expected}; pass dy of these extents"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *extents = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(n, c, *(e + 1 for e in extents)), strides=None)

    return Constraint(
        "dy has the extents ⌊I·scale⌋, if scale is given.", ShapeError, check, violate
    )


def _coordinates_fit() -> Constraint:
    def check(a: Arguments) -> str | None:
        for s in samplings(a):
            reach = max(s.outputs * s.m + abs(s.k), s.inputs * s.d)
            if 2 * reach + s.d >= 2**63:
                return (
                    f"I={s.inputs} is resampled to O={s.outputs}: coordinates are fractions of "
                    f"{s.d}, more than 64-bit integers can count; pass the input in parts"
                )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "input_size" in a.attributes:
            yield a.with_attributes(input_size=2**61 - 1, scale=None, coordinates="half_pixel")
        else:
            far = a.with_attributes(output_size=2**61 - 1, scale=None, coordinates="half_pixel")
            yield far.with_tensor("x", shape=(0, *a.tensors["x"].shape[1:]), strides=None)

    return Constraint("Coordinates are fractions of 64-bit integers.", ShapeError, check, violate)


# --- Declarations ---------------------------------------------------------------------------------

_COORDINATES = """
c(o) is the coordinate of output o in cells of the input, held within 0…I − 1, for each spatial dim;
with r = I/O, or 1/scale:        half_pixel (o + ½)·r − ½        asymmetric o·r
align_corners o·(I − 1)/(O − 1)        tf_half_pixel_for_nn (o + ½)·r
half_pixel_symmetric half_pixel + (I − O·r)/2        pytorch_half_pixel as half_pixel, 0 if O = 1"""

_DECISIONS = (
    "Logical order is (N, C, spatial…) in any memory layout: NHWC is a stride pattern. Inputs may have "
    "gaps and stride 0; the elements of an output have addresses of their own.",
    "Conventions and roundings have ONNX Resize's names. cuDNN does not say which convention its graph API "
    "has. PyTorch's align_corners=False is half_pixel, its nearest is asymmetric with rounding floor, its "
    "nearest-exact tf_half_pixel_for_nn with rounding floor.",
    "Coordinates are exact fractions. Frameworks compute them in float32, by which the nearest cell of a tie, "
    "or of a long row, becomes a matter of luck.",
    f"A scale means the nearest fraction with a denominator up to {LARGEST_DENOMINATOR}, and counts for the "
    "coordinates too, not only for O = ⌊I·scale⌋ (ONNX; PyTorch without recompute_scale_factor).",
    "Coordinates outside the input are taken at its edge (ONNX, PyTorch; cuDNN's EDGE_VAL_PAD).",
    "A cell of weight 0 is not read: NaN and Inf spread to the outputs in which they have a share, and to no "
    "others. Frameworks multiply them by 0.",
    "Sums are kept at float32 or better, in any order, and rounded once, to nearest even. nearest moves "
    "values and rounds nothing.",
    "align_corners and pytorch_half_pixel put a single output at 0.",
    "Cubic interpolation and antialiasing are out of scope: cuDNN has neither.",
    "N and C may be 0; I and O may not, for nothing has no coordinates.",
)
_SHARED = (
    one_of("mode", MODES),
    one_of("coordinates", tuple(CONVENTIONS)),
    one_of("rounding", ROUNDINGS),
    _scale(),
)


def _y(p: ResampleProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.y_shape),)


def _dx(p: ResampleProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.x_shape),)


def _primitive(name: str, **rest: Any) -> Primitive[ResampleProblem]:
    """What both have in common."""
    forward = name.endswith("forward")
    return declare(
        Primitive(
            name=name,
            family="resample",
            dtypes=DTYPES,
            decisions=_DECISIONS,
            resolve=resolve,
            flops=lambda p: 2 * p.taps * math.prod(p.y_shape),
            reduction_length=lambda p: p.taps if forward else p.overlap,
            domain=resample_domain.DOMAINS[name],
            boundaries=resample_domain.BOUNDARIES[name],
            may_copy=True,
            **rest,
        )
    )


resample_forward = _primitive(
    "resample_forward",
    summary="Resampling to another size by linear interpolation, or from the nearest cell.",
    formula="linear:  y[n, c, o] = Σ_i max(0, 1 − |c(o) − i|) · x[n, c, i]"
    "        with a factor for each spatial dim"
    "\nnearest: y[n, c, o] = x[n, c, c(o) rounded]" + _COORDINATES,
    inputs=(TensorSpec("x", "N C *I", "input"),),
    outputs=(TensorSpec("y", "N C *O", "output"),),
    attributes=(*SAMPLING, OUTPUT_SIZE),
    constraints=(
        spatial_ranks("x"),
        one_dtype(DTYPES),
        *_SHARED,
        _extents("output_size"),
        _one_of_both(),
        _something_to_sample(),
        _coordinates_fit(),
    ),
    infer=_y,
    source="cuDNN graph API RESAMPLE_FWD, NEAREST and BILINEAR; ONNX Resize",
)

resample_backward = _primitive(
    "resample_backward",
    summary="Gradient of resampling.",
    formula="linear:  dx[n, c, i] = Σ_o max(0, 1 − |c(o) − i|) · dy[n, c, o]"
    "        with a factor for each spatial dim"
    "\nnearest: dx[n, c, i] = Σ_{o : c(o) rounded = i} dy[n, c, o]" + _COORDINATES,
    inputs=(TensorSpec("dy", "N C *O", "gradient of the loss by y"),),
    outputs=(TensorSpec("dx", "N C *I", "gradient of the loss by x"),),
    attributes=(*SAMPLING, INPUT_SIZE),
    constraints=(
        spatial_ranks("dy"),
        one_dtype(DTYPES),
        *_SHARED,
        _extents("input_size"),
        _something_to_sample(),
        _extents_of_scale(),
        _coordinates_fit(),
    ),
    infer=_dx,
    source="cuDNN graph API RESAMPLE_BWD, NEAREST and BILINEAR",
)
