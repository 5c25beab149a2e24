"""What pooling is called with, and the problem that follows from a call.

Symbols: N batch, C channels, I input extents, F window extents, O output extents, one of each for every
spatial dim; stride u, dilation l, padding (pre, post).
"""

import math
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Flag, Padding, Pair, PerDim, as_real, per_dim
from dnncanon.spec.constraints import spatial_dims
from dnncanon.spec.primitive import REQUIRED, Arguments, Attribute
from dnncanon.spec.tensors import Shape
from dnncanon.spec.windows import Windows, ceil_mode_extents, output_extents, resolve_padding

GEOMETRY = (
    Attribute("window", PerDim(), "Extents F of a window. Default: I, global pooling.", None),
    Attribute("stride", PerDim(), "Step u between windows. Default: F.", None),
    Attribute("padding", Padding(), "Cells around the input that hold nothing.", 0),
    Attribute("dilation", PerDim(), "Distance l between a window's cells.", 1),
    Attribute("ceil_mode", Flag(), "Whether a last window may hang over the end.", False),
    Attribute(
        "output_size", PerDim(), "Extents O of adaptive pooling; instead of the above.", None
    ),
)
INPUT_SIZE = Attribute("input_size", PerDim(), "Spatial extents I of dx.", REQUIRED)


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """One pooling with every default resolved: what an implementation needs to know.

    ``indices`` belongs to the maximum, ``include_padding`` to the average and ``p`` to the norm.
    """

    dtype: str
    batch: int
    channels: int
    windows: tuple[Windows, ...]
    indices: bool = False
    include_padding: bool = False
    p: float = 1.0

    @property
    def input_size(self) -> Shape:
        return tuple(w.inputs for w in self.windows)

    @property
    def output_size(self) -> Shape:
        return tuple(w.outputs for w in self.windows)

    @property
    def x_shape(self) -> Shape:
        return (self.batch, self.channels, *self.input_size)

    @property
    def y_shape(self) -> Shape:
        return (self.batch, self.channels, *self.output_size)

    @property
    def taps(self) -> int:
        """At least as many cells as any window has."""
        return math.prod(w.longest for w in self.windows)

    @property
    def overlap(self) -> int:
        """At most so many windows have a cell in common."""
        return math.prod(w.overlap for w in self.windows)

    @property
    def visits(self) -> int:
        """Cells of all windows, those in the padding included."""
        return math.prod(self.y_shape) * self.taps


@dataclass(frozen=True, slots=True)
class Geometry:
    """Window, stride, dilation and padding of regular windows, an entry for each spatial dim."""

    window: Shape
    padding: tuple[Pair, ...]
    stride: Shape
    dilation: Shape


def input_extents(a: Arguments) -> Shape:
    """I of x, or of the ``input_size`` attribute."""
    if "x" in a.tensors:
        return a.tensors["x"].shape[2:]
    return per_dim(a.attributes["input_size"], spatial_dims(a))


def geometry(a: Arguments) -> Geometry:
    """The regular windows that legal attributes describe."""
    dims, size, given = spatial_dims(a), input_extents(a), a.attributes
    window = size if given["window"] is None else per_dim(given["window"], dims)
    stride = window if given["stride"] is None else per_dim(given["stride"], dims)
    dilation = per_dim(given["dilation"], dims)
    padding = resolve_padding(given["padding"], size, window, stride, dilation)
    return Geometry(window, padding, stride, dilation)


def output_extents_of(a: Arguments) -> Shape:
    """O: as given, or of regular windows."""
    if a.attributes["output_size"] is not None:
        return per_dim(a.attributes["output_size"], spatial_dims(a))
    g = geometry(a)
    ceil = a.attributes["ceil_mode"] and a.attributes["padding"] != "same"
    extents = ceil_mode_extents if ceil else output_extents
    return extents(input_extents(a), g.window, g.padding, g.stride, g.dilation)


def resolve(a: Arguments) -> PoolProblem:
    """The pooling that legal arguments describe, whichever of x and dy are among them."""
    first = next(iter(a.tensors.values()))
    return PoolProblem(
        dtype=first.dtype,
        batch=first.shape[0],
        channels=first.shape[1],
        windows=_windows(a),
        indices=bool(a.attributes.get("return_indices", False)),
        include_padding=bool(a.attributes.get("include_padding", False)),
        p=as_real(a.attributes.get("p", 1.0)),
    )


def _windows(a: Arguments) -> tuple[Windows, ...]:
    extents = tuple(zip(input_extents(a), output_extents_of(a), strict=True))
    if a.attributes["output_size"] is not None:
        return tuple(Windows(i, o, adaptive=True) for i, o in extents)
    g = geometry(a)
    dims: Any = zip(extents, g.window, g.stride, g.dilation, g.padding, strict=True)
    # A window of one cell has nothing to dilate, however far apart its cells would be.
    return tuple(Windows(i, o, f, u, dil if f > 1 else 1, *p) for (i, o), f, u, dil, p in dims)
