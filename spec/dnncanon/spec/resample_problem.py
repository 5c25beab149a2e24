"""What resampling is called with, and the problem that follows from a call: where each output lies.

Along one spatial dim of I inputs and O outputs, output o lies at the coordinate c(o) = (o·m + k) / d, in
integers that follow from the convention. Nothing of a coordinate is ever rounded: which cell is the
nearest, and which weights are 0, does not depend on a float.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, PerDim, RealPerDim, per_dim, real_per_dim
from dnncanon.spec.constraints import spatial_dims
from dnncanon.spec.primitive import REQUIRED, Arguments, Attribute
from dnncanon.spec.tensors import Shape

MODES = ("linear", "nearest")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

LARGEST_DENOMINATOR = 1 << 16
"""A scale means the nearest fraction with a denominator up to this: 1.7 is 17/10, in float32 too."""

Affine = tuple[int, int, int]


def _half_pixel(i: int, o: int, r: Fraction) -> Affine:
    """(o + ½)·r − ½: cells have a width, and the corners of input and output meet."""
    a, b = r.numerator, r.denominator
    return 2 * a, a - b, 2 * b


def _half_pixel_symmetric(i: int, o: int, r: Fraction) -> Affine:
    """half_pixel, moved so that the middles of input and output meet: by (I − O·r) / 2."""
    a, b = r.numerator, r.denominator
    return 2 * a, a - b + i * b - o * a, 2 * b


def _pytorch_half_pixel(i: int, o: int, r: Fraction) -> Affine:
    """half_pixel, but 0 for a single output."""
    return _half_pixel(i, o, r) if o > 1 else (0, 0, 1)


def _align_corners(i: int, o: int, r: Fraction) -> Affine:
    """o·(I − 1) / (O − 1): the first and the last cells meet; 0 for a single output."""
    return (i - 1, 0, o - 1) if o > 1 else (0, 0, 1)


def _asymmetric(i: int, o: int, r: Fraction) -> Affine:
    """o·r: the first cells meet."""
    return r.numerator, 0, r.denominator


def _tf_half_pixel_for_nn(i: int, o: int, r: Fraction) -> Affine:
    """(o + ½)·r: with rounding="floor" the cell in which the middle of the output lies."""
    a, b = r.numerator, r.denominator
    return 2 * a, a, 2 * b


CONVENTIONS: dict[str, Callable[[int, int, Fraction], Affine]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
}
"""ONNX Resize's names; (m, k, d) from I, O and r, the inputs for each output."""

SAMPLING = (
    Attribute("mode", Choice(MODES), "linear (bi-, trilinear), or nearest.", "linear"),
    Attribute("coordinates", Choice(tuple(CONVENTIONS)), "Where outputs lie.", "half_pixel"),
    Attribute("rounding", Choice(ROUNDINGS), "What nearest means.", "round_prefer_floor"),
    Attribute("scale", RealPerDim(), "Outputs for each input, > 0. Default: O/I.", None),
)
OUTPUT_SIZE = Attribute("output_size", PerDim(), "Extents O of y. Default: ⌊I·scale⌋, or I.", None)
INPUT_SIZE = Attribute("input_size", PerDim(), "Spatial extents I of dx.", REQUIRED)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Where the outputs lie along one spatial dim: c(o) = (o·m + k) / d, held within 0…inputs − 1."""

    inputs: int
    outputs: int
    m: int
    k: int
    d: int

    def numerator(self, o: Any) -> Any:
        """d·c(o), of an integer or an array of them."""
        return np.clip(o * self.m + self.k, 0, (self.inputs - 1) * self.d)

    def nearest(self, o: Any, rounding: str) -> Any:
        """The cell nearest to output o."""
        n, d = self.numerator(o), self.d
        rounded = {
            "floor": n // d,
            "ceil": -(-n // d),
            "round_prefer_floor": -((d - 2 * n) // (2 * d)),
            "round_prefer_ceil": (2 * n + d) // (2 * d),
        }
        return rounded[rounding]


@dataclass(frozen=True, slots=True)
class ResampleProblem:
    """One resampling with every default resolved: what an implementation needs to know."""

    dtype: str
    batch: int
    channels: int
    dims: tuple[Sampling, ...]
    mode: str
    rounding: str

    @property
    def x_shape(self) -> Shape:
        return (self.batch, self.channels, *(s.inputs for s in self.dims))

    @property
    def y_shape(self) -> Shape:
        return (self.batch, self.channels, *(s.outputs for s in self.dims))

    @property
    def taps(self) -> int:
        """Cells that an output is made of, at most."""
        return 1 if self.mode == "nearest" else int(2 ** len(self.dims))

    @property
    def overlap(self) -> int:
        """Outputs that a cell has a share in, about."""
        shares = (2 * -(-s.outputs // s.inputs) for s in self.dims)
        return math.prod(shares)


# --- From arguments to a problem ------------------------------------------------------------------


def scales(a: Arguments) -> tuple[Fraction, ...] | None:
    """The scales as the fractions they mean; None where there are none."""
    if a.attributes["scale"] is None:
        return None
    given = real_per_dim(a.attributes["scale"], spatial_dims(a))
    return tuple(Fraction(s).limit_denominator(LARGEST_DENOMINATOR) for s in given)


def input_extents(a: Arguments) -> Shape:
    """I of x, or of the ``input_size`` attribute."""
    if "x" in a.tensors:
        return a.tensors["x"].shape[2:]
    return per_dim(a.attributes["input_size"], spatial_dims(a))


def output_extents(a: Arguments) -> Shape:
    """O of dy; or as ``output_size`` or ``scale`` have it, or I."""
    if "dy" in a.tensors:
        return a.tensors["dy"].shape[2:]
    if a.attributes["output_size"] is not None:
        return per_dim(a.attributes["output_size"], spatial_dims(a))
    return scaled_extents(a)


def scaled_extents(a: Arguments) -> Shape:
    """⌊I·scale⌋, or I without a scale."""
    size, by = input_extents(a), scales(a)
    if by is None:
        return size
    return tuple(math.floor(i * s) for i, s in zip(size, by, strict=True))


def samplings(a: Arguments) -> tuple[Sampling, ...]:
    """Where the outputs lie, along each spatial dim."""
    convention, by = CONVENTIONS[a.attributes["coordinates"]], scales(a)
    result = []
    for dim, (i, o) in enumerate(zip(input_extents(a), output_extents(a), strict=True)):
        r = Fraction(i, o) if by is None else 1 / by[dim]
        result.append(Sampling(i, o, *convention(i, o, r)))
    return tuple(result)


def resolve(a: Arguments) -> ResampleProblem:
    """The resampling that legal arguments describe."""
    first = next(iter(a.tensors.values()))
    return ResampleProblem(
        dtype=first.dtype,
        batch=first.shape[0],
        channels=first.shape[1],
        dims=samplings(a),
        mode=a.attributes["mode"],
        rounding=a.attributes["rounding"],
    )
