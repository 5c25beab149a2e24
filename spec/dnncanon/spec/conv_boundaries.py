"""Convolutions at the edges of the domain, which draws at random do not meet.

They are written as forward convolutions; each primitive of the family makes its own arguments of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dnncanon.spec.tensors import Shape, dense_strides


@dataclass(frozen=True, slots=True)
class ConvBoundary:
    """A forward convolution: shapes of x and w, attributes that are not at their defaults.

    ``layout`` tells the strides of the first tensor: ``dense``; ``repeated``, 0 in the batch; or
    a number, by which all strides of the dense one are multiplied. ``report`` is the public report of a wrong
    result or a crash that it follows, if it follows one. ``special_values`` asks for NaN, Inf, −0 and
    subnormals.
    """

    name: str
    x: Shape
    w: Shape
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layout: str | int = "dense"
    report: str = ""
    special_values: bool = False

    def strides(self, shape: Shape) -> Shape | None:
        """Strides for the first tensor of a primitive, of this shape; None if it is dense."""
        if self.layout == "dense":
            return None
        dense = dense_strides(shape)
        if isinstance(self.layout, int):
            return tuple(self.layout * stride for stride in dense)
        return (0, *dense[1:])


def conv_boundaries() -> Iterator[ConvBoundary]:
    """All of them, the cheapest first."""
    yield from _empty()
    yield from _channels()
    yield from _NETWORKS
    yield from _layouts()
    yield from _REPORTED
    yield from _sizes()
    yield from _HUGE


def _empty() -> Iterator[ConvBoundary]:
    yield ConvBoundary("empty batch", (0, 2, 3), (2, 2, 2))
    yield ConvBoundary("no input channels", (1, 0, 3), (2, 0, 2))
    yield ConvBoundary("no output channels", (1, 2, 3), (0, 2, 2))
    yield ConvBoundary("empty input in padding", (1, 2, 0), (2, 2, 2), {"padding": 1})


# What networks are made of, and algorithms are made for: drawn convolutions seldom have small filters, stride 1
# and some padding at once.
_NETWORKS = (
    ConvBoundary("3 taps", (2, 3, 11), (2, 3, 3), {"padding": 1}),
    ConvBoundary("3×3", (1, 3, 9, 10), (4, 3, 3, 3), {"padding": 1}),
    ConvBoundary(
        "3×3, NaN and Inf", (1, 3, 7, 6), (4, 3, 3, 3), {"padding": 1}, special_values=True
    ),
    ConvBoundary("3×3, wide padding", (2, 2, 4, 3), (3, 2, 3, 3), {"padding": 2}),
    ConvBoundary("3×3, groups", (1, 4, 5, 6), (6, 2, 3, 3), {"padding": 1, "groups": 2}),
    ConvBoundary("3×3, depthwise", (1, 9, 6, 5), (18, 1, 3, 3), {"padding": 1, "groups": 9}),
    ConvBoundary("3×3×3", (1, 2, 3, 5, 4), (2, 2, 3, 3, 3), {"padding": 1}),
    ConvBoundary("5×5", (1, 2, 8, 7), (2, 2, 5, 5), {"padding": 2}),
    ConvBoundary("1 tap, 64 groups", (5, 64, 6), (64, 1, 1), {"groups": 64}),
    ConvBoundary("7×7, stride 2", (1, 3, 9, 9), (2, 3, 7, 7), {"padding": 3, "stride": 2}),
)

# Around the widths of vector loads, warps and tiles.
_CHANNELS = ((7, 9), (8, 8), (9, 7), (31, 33), (32, 32), (33, 31))
_TILES = ((63, 65), (64, 64), (127, 129), (128, 128), (129, 127))


def _channels() -> Iterator[ConvBoundary]:
    for channels, filters in _CHANNELS:
        name = f"{channels} to {filters} channels"
        yield ConvBoundary(name, (1, channels, 3, 2), (filters, channels, 2, 2))
        name = f"{channels} channels, depthwise"
        yield ConvBoundary(name, (1, channels, 6), (channels, 1, 3), {"groups": channels})
    for channels, filters in _TILES:
        name = f"{channels} to {filters} channels, 1×1"
        yield ConvBoundary(name, (1, channels, 1, 2), (filters, channels, 1, 1))


def _layouts() -> Iterator[ConvBoundary]:
    yield ConvBoundary("a batch of one image", (3, 2, 4), (2, 2, 2), layout="repeated")
    for factor in (1021, 2**16 + 1):
        yield ConvBoundary(f"gaps of {factor - 1}", (2, 1, 4), (1, 1, 2), layout=factor)


# Public reports about cuDNN, with shapes reduced to what still tells right from wrong. Reporters name
# the library's fault in all of them; none was run again.
_REPORTED = (
    # github.com/Theano/Theano/issues/5985: wrong results with x (65537,4,32,32), w (1,4,16,16), stride 3.
    ConvBoundary(
        "batch 65537, stride 3", (65537, 1, 4, 4), (1, 1, 2, 2), {"stride": 3}, report="theano-5985"
    ),
    # github.com/tensorflow/tensorflow/issues/9870: zeros for all samples from 65536 on, batch 100000.
    ConvBoundary("batch 100000", (100_000, 1, 1, 2), (1, 1, 1, 1), report="tensorflow-9870"),
    # github.com/pytorch/pytorch/issues/163539: bfloat16, x (1,16,124,1282,722), w (16,16,1,3,3).
    ConvBoundary("flat 3-D filter", (1, 16, 3, 6, 5), (16, 16, 1, 3, 3), report="pytorch-163539"),
    # github.com/tensorflow/tensorflow/issues/1299: 5×5 filter on 33×33 images, batch of 4 and more.
    ConvBoundary("5×5 on 33×33", (4, 1, 33, 33), (1, 1, 5, 5), report="tensorflow-1299"),
    # github.com/Theano/Theano/issues/3971: incoherent results at batch 9000.
    ConvBoundary("batch 9000", (9000, 1, 2, 2), (1, 1, 2, 2), report="theano-3971"),
    # cuDNN 8.9.7 release notes: backward data wrong when neither stride nor dilation is 1.
    ConvBoundary(
        "stride and dilation",
        (1, 2, 9, 9),
        (2, 2, 3, 3),
        {"stride": 2, "dilation": 2},
        report="cudnn-8.9.7",
    ),
    # github.com/soumith/cudnn.torch/issues/28: of a 1×1 gradient only the first plane is right.
    ConvBoundary("1×1 filter", (2, 3, 4, 4), (2, 3, 1, 1), report="cudnn.torch-28"),
    # cuDNN 7.4.2 release notes: ReLU not applied by the FFT algorithm, which large filters choose.
    ConvBoundary("11×11 filter", (1, 1, 16, 16), (1, 1, 11, 11), report="cudnn-7.4.2"),
    # github.com/pytorch/pytorch/issues/117736: illegal access with more than 2^31 elements.
    ConvBoundary(
        "514 channels of 2048×2048",
        (1, 514, 2048, 2048),
        (1, 514, 3, 3),
        {"padding": 1},
        report="pytorch-117736",
    ),
)


def _sizes() -> Iterator[ConvBoundary]:
    """65,535 is the limit of a grid's y and z, 2^16 that of 16 bits."""
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield ConvBoundary(f"batch {size}", (size, 1, 1), (1, 1, 1))
        yield ConvBoundary(f"extent {size}", (1, 1, size), (1, 1, 2), {"padding": 1})
        yield ConvBoundary(f"extents {size}, 1", (1, 1, size, 1), (1, 1, 1, 1))
        yield ConvBoundary(f"extents 1, {size}", (1, 1, 1, size), (1, 1, 1, 1))
        yield ConvBoundary(f"extents {size}, 1, 1", (1, 1, size, 1, 1), (1, 1, 1, 1, 1))
        yield ConvBoundary(f"{size} channels", (1, size, 1), (1, size, 1))
        yield ConvBoundary(f"{size} filters", (1, 1, 1), (size, 1, 1))
        yield ConvBoundary(f"{size} groups", (1, size, 1), (size, 1, 1), {"groups": size})
        yield ConvBoundary(f"stride {size}", (1, 1, size + 1), (1, 1, 1), {"stride": size})
        yield ConvBoundary(f"dilation {size}", (1, 1, size + 1), (1, 1, 2), {"dilation": size})
        yield ConvBoundary(f"padding {size}", (1, 1, 1), (1, 1, 1), {"padding": size})

    for taps in (255, 256, 257):
        yield ConvBoundary(f"{taps} taps", (1, 1, taps + 1), (1, 1, taps))


# Offsets beyond 32 bits, by many elements and by a few far apart.
_HUGE = (
    ConvBoundary("elements 2^31 apart", (2, 1, 1), (1, 1, 1), layout=2**31),
    ConvBoundary("2^31 + 1 elements", (1, 1, 2**31 + 1), (1, 1, 1)),
)
