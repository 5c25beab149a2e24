"""What a convolution is called with, and the problem that follows from a call.

Symbols: N batch, C input channels, K output channels, G groups, I input extents, F filter extents,
O output extents, one of each for every spatial dim; stride u, dilation l, padding (pre, post).
"""

import math
from dataclasses import dataclass

from dnncanon.spec.attributes import (
    Choice,
    Integer,
    Padding,
    Pair,
    PerDim,
    as_integer,
    as_real,
    padding_pairs,
    per_dim,
)
from dnncanon.spec.constraints import spatial_dims
from dnncanon.spec.primitive import Arguments, Attribute
from dnncanon.spec.tensors import Shape
from dnncanon.spec.windows import least_input_size, output_extents, resolve_padding

MODES = ("cross_correlation", "convolution")
ACTIVATIONS = ("identity", "relu")

GEOMETRY = (
    Attribute("padding", Padding(), "Zeros before and after each spatial dim.", 0),
    Attribute("stride", PerDim(), "Step u between windows.", 1),
    Attribute("dilation", PerDim(), "Distance l between taps.", 1),
    Attribute("groups", Integer(), "Independent groups G of channels; C for depthwise.", 1),
    Attribute("mode", Choice(MODES), "cross_correlation, or convolution: taps reversed.", MODES[0]),
)


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """One convolution with every default resolved: what an implementation needs to know."""

    dtype: str
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    input_size: Shape
    filter_size: Shape
    output_size: Shape
    padding: tuple[Pair, ...]
    stride: Shape
    dilation: Shape
    mode: str

    @property
    def spatial_dims(self) -> int:
        return len(self.input_size)

    @property
    def x_shape(self) -> Shape:
        return (self.batch, self.in_channels, *self.input_size)

    @property
    def w_shape(self) -> Shape:
        return (self.out_channels, self.in_channels // self.groups, *self.filter_size)

    @property
    def y_shape(self) -> Shape:
        return (self.batch, self.out_channels, *self.output_size)

    @property
    def multiplications(self) -> int:
        """Products in the definition, those with padding zeros included."""
        per_output = self.in_channels // self.groups * math.prod(self.filter_size)
        return math.prod(self.y_shape) * per_output


@dataclass(frozen=True, slots=True)
class FusedConvProblem:
    """A convolution with its epilogue: y = activation(alpha1·conv + alpha2·z + bias)."""

    conv: ConvProblem
    has_z: bool
    alpha1: float
    alpha2: float
    activation: str


@dataclass(frozen=True, slots=True)
class BiasProblem:
    """The gradient of a bias: a sum over batch and space."""

    dtype: str
    dy_shape: Shape


# --- From arguments to a problem ------------------------------------------------------------------


def entries(a: Arguments, name: str) -> Shape:
    """An attribute that has one integer for each spatial dim, or one for all of them."""
    return per_dim(a.attributes[name], spatial_dims(a))


def filter_extents(a: Arguments) -> Shape:
    """F of w, or of the ``filter_size`` attribute."""
    return a.tensors["w"].shape[2:] if "w" in a.tensors else entries(a, "filter_size")


def input_extents(a: Arguments) -> Shape:
    """I of x, or of the ``input_size`` attribute, or by default the least one that explains dy."""
    if "x" in a.tensors:
        return a.tensors["x"].shape[2:]
    if a.attributes["input_size"] is not None:
        return entries(a, "input_size")
    padding = padding_pairs(
        0 if a.attributes["padding"] == "valid" else a.attributes["padding"], spatial_dims(a)
    )
    return least_input_size(
        a.tensors["dy"].shape[2:],
        filter_extents(a),
        padding,
        entries(a, "stride"),
        entries(a, "dilation"),
    )


def resolve(a: Arguments) -> ConvProblem:
    """The convolution that legal arguments describe, whichever of x, w and dy are among them."""
    tensors, groups = a.tensors, as_integer(a.attributes["groups"])
    stride, dilation = entries(a, "stride"), entries(a, "dilation")
    input_size, filter_size = input_extents(a), filter_extents(a)
    padding = resolve_padding(a.attributes["padding"], input_size, filter_size, stride, dilation)
    first = next(iter(tensors.values()))
    return ConvProblem(
        dtype=first.dtype,
        batch=first.shape[0],
        in_channels=tensors["x"].shape[1] if "x" in tensors else groups * tensors["w"].shape[1],
        out_channels=tensors["w"].shape[0] if "w" in tensors else tensors["dy"].shape[1],
        groups=groups,
        input_size=input_size,
        filter_size=filter_size,
        output_size=output_extents(input_size, filter_size, padding, stride, dilation),
        padding=padding,
        stride=stride,
        dilation=dilation,
        mode=a.attributes["mode"],
    )


def resolve_fused(a: Arguments) -> FusedConvProblem:
    """The convolution with its epilogue that legal arguments describe."""
    return FusedConvProblem(
        conv=resolve(a),
        has_z="z" in a.tensors,
        alpha1=as_real(a.attributes["alpha1"]),
        alpha2=as_real(a.attributes["alpha2"]),
        activation=a.attributes["activation"],
    )


def resolve_bias(a: Arguments) -> BiasProblem:
    """The sum that legal arguments describe."""
    dy = a.tensors["dy"]
    return BiasProblem(dy.dtype, dy.shape)
