"""What the spatial transformer is called with, and the problems that follow from a call.

A grid holds points in coordinates from −1 to 1, (x, y) or (x, y, z): x runs along the last dim of an image, z
along the first.
"""

from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Choice, Flag, PerDim, per_dim
from dnncanon.spec.primitive import REQUIRED, Arguments, Attribute
from dnncanon.spec.tensors import Shape

MODES = ("linear", "nearest")
PADDING_MODES = ("zeros", "border", "reflection")
DIMS = (2, 3)

ALIGN_CORNERS = Attribute(
    "align_corners",
    Flag(),
    "Whether −1 and 1 are the middles of the outermost cells, or else their outer edges.",
    True,
)
OUTPUT_SIZE = Attribute("output_size", PerDim(), "Extents O of the grid, >= 0.", REQUIRED)
SAMPLING = (
    Attribute("mode", Choice(MODES), "linear (bi-, trilinear), or the nearest cell.", "linear"),
    Attribute("padding_mode", Choice(PADDING_MODES), "What lies outside of x.", "zeros"),
    ALIGN_CORNERS,
)


@dataclass(frozen=True, slots=True)
class AffineGridProblem:
    """A grid of ``output_size`` points, for each of a batch of affine maps."""

    dtype: str
    batch: int
    output_size: Shape
    align_corners: bool

    @property
    def dims(self) -> int:
        return len(self.output_size)

    @property
    def theta_shape(self) -> Shape:
        return (self.batch, self.dims, self.dims + 1)

    @property
    def grid_shape(self) -> Shape:
        return (self.batch, *self.output_size, self.dims)


@dataclass(frozen=True, slots=True)
class GridSampleProblem:
    """Images of ``input_size`` cells, sampled at ``output_size`` points each."""

    dtype: str
    batch: int
    channels: int
    input_size: Shape
    output_size: Shape
    mode: str
    padding_mode: str
    align_corners: bool
    return_dx: bool = False
    return_dgrid: bool = False

    @property
    def dims(self) -> int:
        return len(self.input_size)

    @property
    def x_shape(self) -> Shape:
        return (self.batch, self.channels, *self.input_size)

    @property
    def y_shape(self) -> Shape:
        return (self.batch, self.channels, *self.output_size)

    @property
    def grid_shape(self) -> Shape:
        return (self.batch, *self.output_size, self.dims)

    @property
    def taps(self) -> int:
        """Cells that an output is made of, at most."""
        return int(2**self.dims) if self.mode == "linear" else 1


def grid_dims(a: Arguments) -> int:
    """How many coordinates a point has, by theta, dgrid or grid."""
    if "theta" in a.tensors:
        return a.tensors["theta"].shape[1]
    points = a.tensors["dgrid" if "dgrid" in a.tensors else "grid"]
    return points.shape[-1]


def resolve_affine(a: Arguments) -> AffineGridProblem:
    """The grid that legal arguments describe."""
    first, backward = next(iter(a.tensors.values())), "dgrid" in a.tensors
    given = first.shape[1:-1] if backward else a.attributes["output_size"]
    size = per_dim(given, grid_dims(a))
    return AffineGridProblem(first.dtype, first.shape[0], size, a.attributes["align_corners"])


def resolve_sample(a: Arguments) -> GridSampleProblem:
    """The sampling that legal arguments describe."""
    x, given = a.tensors["x"], a.attributes
    flags: dict[str, Any] = {name: given.get(name, False) for name in ("return_dx", "return_dgrid")}
    return GridSampleProblem(
        dtype=x.dtype,
        batch=x.shape[0],
        channels=x.shape[1],
        input_size=x.shape[2:],
        output_size=a.tensors["grid"].shape[1:-1],
        mode=given["mode"],
        padding_mode=given["padding_mode"],
        align_corners=given["align_corners"],
        **flags,
    )
