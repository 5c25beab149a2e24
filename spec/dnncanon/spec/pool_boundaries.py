"""Poolings at the edges of the domain, which draws at random do not meet.

They are written as forward poolings; each primitive of the family makes its own arguments of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dnncanon.spec.tensors import Shape, channels_last_strides, dense_strides


@dataclass(frozen=True, slots=True)
class PoolBoundary:
    """A forward pooling: shape of x, attributes that are not at their defaults.

    ``only`` names the pooling, "max", "average" or "lp", that it is a boundary of; empty for all. ``layout``
    tells the strides of the first tensor: ``dense``; ``channels_last``; ``repeated``, 0 in the batch; or a
    number, by which all strides of the dense one are multiplied. ``report`` is the public report of a wrong
    result or a crash that it follows, if it follows one. ``special_values`` asks for NaN, Inf, −0 and
    subnormals.
    """

    name: str
    x: Shape
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layout: str | int = "dense"
    only: str = ""
    report: str = ""
    special_values: bool = False

    def strides(self, shape: Shape) -> Shape | None:
        """Strides for the first tensor of a primitive, of this shape; None if it is dense."""
        if self.layout == "dense":
            return None
        if self.layout == "channels_last":
            return channels_last_strides(shape)
        dense = dense_strides(shape)
        if isinstance(self.layout, int):
            return tuple(self.layout * stride for stride in dense)
        return (0, *dense[1:])


def pool_boundaries() -> Iterator[PoolBoundary]:
    """All of them, the cheapest first."""
    yield from _EMPTY
    yield from _WINDOWS
    yield from _channels()
    yield from _layouts()
    yield from _REPORTED
    yield from _sizes()
    yield from _HUGE


_EMPTY = (
    PoolBoundary("empty batch", (0, 2, 3), {"window": 2}),
    PoolBoundary("no channels", (1, 0, 3), {"window": 2}),
    PoolBoundary("empty input in padding", (1, 2, 0), {"window": 2, "padding": 1}),
    PoolBoundary("no outputs", (1, 2, 3), {"output_size": 0}),
)

_WINDOWS = (
    PoolBoundary("global", (2, 3, 5, 7)),
    PoolBoundary("global, NaN and Inf", (4, 8, 9, 11), special_values=True),
    PoolBoundary("global, channels last", (2, 5, 3, 4), layout="channels_last"),
    PoolBoundary("adaptive to more", (1, 2, 3, 2), {"output_size": (7, 5)}),
    PoolBoundary("adaptive to fewer", (1, 2, 9, 7), {"output_size": (4, 2)}),
    PoolBoundary("stride beyond window", (1, 2, 11), {"window": 2, "stride": 5}),
    PoolBoundary("windows in padding", (1, 2, 2, 3), {"window": 2, "stride": 1, "padding": 3}),
    PoolBoundary("padding behind only", (1, 2, 3), {"window": 2, "padding": ((0, 5),)}),
    PoolBoundary(
        "stride and dilation with a common divisor",
        (1, 2, 15),
        {"window": 3, "stride": 4, "dilation": 6, "padding": 2},
    ),
    PoolBoundary(
        "stride and dilation without", (1, 2, 16), {"window": 4, "stride": 3, "dilation": 4}
    ),
    PoolBoundary("hanging over", (1, 2, 8, 7), {"window": 3, "stride": 2, "ceil_mode": True}),
    PoolBoundary("same", (1, 2, 7, 6), {"window": (3, 2), "stride": 2, "padding": "same"}),
)


def _channels() -> Iterator[PoolBoundary]:
    """Around the widths of vector loads, warps and blocks, in both layouts."""
    for channels in (7, 8, 9, 31, 32, 33, 127, 128, 129):
        for layout in ("dense", "channels_last"):
            name = f"{channels} channels, {layout}"
            yield PoolBoundary(name, (1, channels, 3, 4), {"window": 2, "stride": 1}, layout)


def _layouts() -> Iterator[PoolBoundary]:
    yield PoolBoundary("a batch of one image", (3, 2, 4), {"window": 2}, "repeated")
    for factor in (1021, 2**16 + 1):
        yield PoolBoundary(f"gaps of {factor - 1}", (2, 1, 4), {"window": 2}, factor)


# Public reports, with shapes reduced to what still tells right from wrong. The first three are laid to
# cuDNN by those who reported them, the others to the frameworks' own kernels; none was run again.
_REPORTED = (
    # github.com/denizyuret/Knet.jl/issues/182: padding 4 beyond window 3 puts out the lowest number.
    PoolBoundary(
        "window 3 in padding 4",
        (2, 1, 3, 1),
        {"window": (3, 1), "padding": (4, 0)},
        report="knet-182",
    ),
    # github.com/FluxML/NNlib.jl/issues/508: maxima missing, x (8,3) and (320001,32), large windows.
    PoolBoundary(
        "window 5×3, stride 1",
        (1, 1, 8, 3),
        {"window": (5, 3), "stride": 1, "padding": (2, 1)},
        report="nnlib-508",
    ),
    # github.com/tensorflow/tensorflow/issues/12293: zeros and NaN from window 7 on, stride 1.
    PoolBoundary(
        "window 9, stride 1",
        (1, 1, 24, 24),
        {"window": 9, "stride": 1, "padding": "same"},
        report="tensorflow-12293",
    ),
    # github.com/apache/mxnet/issues/6191: padding as large as the window.
    PoolBoundary(
        "padding like window",
        (1, 1, 2, 2),
        {"window": 2, "stride": 1, "padding": 2},
        report="mxnet-6191",
    ),
    # github.com/uxlfoundation/oneDNN/issues/1094: negative input beside padding.
    PoolBoundary(
        "a cell in each corner",
        (1, 1, 2, 2),
        {"window": 2, "stride": 2, "padding": 1},
        report="onednn-1094",
    ),
    # github.com/pytorch/pytorch/issues/34083: x (200,512,28,28), channels last, refused from 257 channels on.
    PoolBoundary(
        "257 channels last", (1, 257, 4, 4), {"window": 2}, "channels_last", report="pytorch-34083"
    ),
    # github.com/pytorch/pytorch/issues/189664: reads out of bounds with a dilation near 2^31.
    PoolBoundary(
        "dilation 2^31 − 1",
        (1, 1, 3, 4),
        {"window": (1, 2), "stride": 1, "dilation": (2**31 - 1, 1)},
        report="pytorch-189664",
    ),
    # github.com/pytorch/pytorch/issues/36977: NaN for a window that begins in the padding behind.
    PoolBoundary(
        "ceil_mode beside padding",
        (1, 2, 4, 4),
        {
            "window": (1, 2),
            "stride": 2,
            "padding": (0, 1),
            "ceil_mode": True,
            "include_padding": True,
        },
        report="pytorch-36977",
    ),
    # github.com/microsoft/onnxruntime/issues/6543: NaN for a window that begins behind the input.
    PoolBoundary(
        "ceil_mode, stride beyond window",
        (1, 1, 8, 8),
        {"window": 3, "stride": (3, 4), "ceil_mode": True},
        report="onnxruntime-6543",
    ),
    # github.com/microsoft/onnxruntime/issues/16203: the divisor counts what hangs over the padding.
    PoolBoundary(
        "ceil_mode, padding counted",
        (1, 2, 9),
        {"window": 7, "stride": 3, "padding": 3, "ceil_mode": True, "include_padding": True},
        only="average",
        report="onnxruntime-16203",
    ),
    # github.com/pytorch/pytorch/issues/188344: wrong gradient of channels-last input with padding.
    PoolBoundary(
        "channels last with padding",
        (1, 2, 4, 4),
        {"window": 2, "stride": 1, "padding": 1, "include_padding": True},
        "channels_last",
        report="pytorch-188344",
    ),
    # github.com/pytorch/pytorch/issues/60524: wrong gradient of adaptive pooling to 2, 3-D.
    PoolBoundary("adaptive, 3-D", (1, 1, 2, 2, 4), {"output_size": 2}, report="pytorch-60524"),
    # github.com/pytorch/pytorch/issues/78868: the gradient of adaptive pooling to nothing crashes.
    PoolBoundary(
        "adaptive to nothing", (1, 4, 5, 4, 3), {"output_size": 0}, report="pytorch-78868"
    ),
    # github.com/pytorch/pytorch/issues/28714: x (1,1,16777217,2), channels last, window 1.
    PoolBoundary(
        "2^24 + 1 rows",
        (1, 1, 2**24 + 1, 2),
        {"window": (1, 2)},
        "channels_last",
        report="pytorch-28714",
    ),
    # github.com/pytorch/pytorch/issues/197461: gradient of the last image written 2^32 elements off.
    PoolBoundary(
        "33 images of 8192×8192",
        (33, 1, 8192, 8192),
        {"output_size": (3, 2)},
        report="pytorch-197461",
    ),
)


def _sizes() -> Iterator[PoolBoundary]:
    """65,535 is the limit of a grid's y and z, 2^16 that of 16 bits."""
    pairs = {"window": 2, "stride": 1}
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield PoolBoundary(f"batch {size}", (size, 1, 2), pairs)
        yield PoolBoundary(f"{size} channels", (1, size, 2), pairs)
        yield PoolBoundary(f"extent {size}", (1, 1, size), pairs)
        yield PoolBoundary(f"extents {size}, 2", (1, 1, size, 2), pairs)
        yield PoolBoundary(f"extents 2, {size}", (1, 1, 2, size), pairs)
        yield PoolBoundary(f"extents {size}, 1, 2", (1, 1, size, 1, 2), {"window": (1, 1, 2)})
        yield PoolBoundary(f"window {size}", (1, 1, size))
        yield PoolBoundary(f"stride {size}", (1, 1, size + 2), {"window": 2, "stride": size})
        yield PoolBoundary(f"dilation {size}", (1, 1, size + 1), {"window": 2, "dilation": size})
        yield PoolBoundary(f"padding {size}", (1, 1, 2), {"window": 2, "padding": size})
        yield PoolBoundary(f"adaptive to {size}", (1, 1, 3), {"output_size": size})


# Offsets beyond 32 bits, by many elements and by a few far apart.
_HUGE = (
    PoolBoundary("elements 2^30 apart", (2, 1, 2), {"window": 2}, 2**30),
    PoolBoundary("2^31 + 2 elements", (2, 1, 2**30 + 1), {"window": 2}),
)
