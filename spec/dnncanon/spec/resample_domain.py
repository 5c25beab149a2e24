"""The domain of resampling that cases are drawn from, and its boundaries.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in
place: a failure in three dims can then be reduced to one in one dim.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.resample_problem import CONVENTIONS, ROUNDINGS, SAMPLING, scaled_extents
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides, dense_strides

_MAX_DIMS = 3
_DEFAULTS = {attribute.name: attribute.default for attribute in SAMPLING}
_SCALES = (2.0, 0.5, 1.5, 3.0, 1.0 / 3.0, 1.7, 0.75)


@dataclass(frozen=True, slots=True)
class Sample:
    """Extents of a forward resampling; ``output_size`` None where the scale among the attributes has it."""

    batch: int
    channels: int
    input_size: Shape
    output_size: Shape | None
    attributes: dict[str, Any]

    def tensor(self, dtype: str, extents: Shape) -> TensorType:
        return TensorType(dtype, (self.batch, self.channels, *extents))


def _forward(sample: Sample, dtype: str) -> Arguments:
    attributes = {**sample.attributes, "output_size": sample.output_size}
    return Arguments({"x": sample.tensor(dtype, sample.input_size)}, attributes)


def _backward(sample: Sample, dtype: str) -> Arguments:
    outputs = sample.output_size or scaled_extents(_forward(sample, dtype))
    attributes = {**sample.attributes, "input_size": sample.input_size}
    return Arguments({"dy": sample.tensor(dtype, outputs)}, attributes)


Maker = Callable[[Sample, str], Arguments]
_MAKERS: dict[str, Maker] = {"resample_forward": _forward, "resample_backward": _backward}


# --- A resampling at random -----------------------------------------------------------------------


def _domain(make: Maker) -> Callable[[Draw, Scale, str], Arguments]:
    return lambda draw, scale, dtype: make(_sample(draw, scale), dtype)


def _sample(draw: Draw, scale: Scale) -> Sample:
    """Draw a resampling; every choice tends to the plainest."""
    dims = draw.choice((1, 2, 3))
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    channels = draw.integer(1, scale.channels)
    longest = max(3, round(1.5 * math.pow(scale.extent, 2 / (dims + 1))))
    input_size = _per_dim(draw, dims, 1, longest)
    output_size: Shape | None = _per_dim(draw, dims, 1, 2 * longest)
    by_scale = draw.choice((False, False, True))
    scales = tuple([draw.choice(_SCALES) for _ in range(_MAX_DIMS)][:dims])
    attributes = {
        **_DEFAULTS,
        "mode": draw.choice(("linear", "linear", "nearest")),
        "coordinates": draw.choice(tuple(CONVENTIONS)),
        "rounding": draw.choice(ROUNDINGS),
    }
    if by_scale:
        input_size = tuple(
            max(i, math.ceil(1 / s)) for i, s in zip(input_size, scales, strict=True)
        )
        output_size, attributes = None, {**attributes, "scale": scales}
    return _limited(Sample(batch, channels, input_size, output_size, attributes), scale)


def _per_dim(draw: Draw, dims: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_MAX_DIMS)][:dims])


def _limited(sample: Sample, scale: Scale) -> Sample:
    """With a smaller batch and fewer channels, until the scale allows so many products."""
    while _backward(sample, "float32").tensors["dy"].size * 8 > scale.multiplications:
        if sample.batch > 1:
            sample = replace(sample, batch=sample.batch // 2)
        elif sample.channels > 1:
            sample = replace(sample, channels=sample.channels // 2)
        else:
            break
    return sample


# --- Boundaries -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResampleBoundary:
    """A forward resampling: shape of x, output extents, attributes that are not at their defaults.

    ``layout`` tells the strides of the first tensor: ``dense``; ``channels_last``; ``repeated``, 0 in the
    batch; or a number, by which all strides of the dense one are multiplied.
    """

    name: str
    x: Shape
    outputs: Shape | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layout: str | int = "dense"
    report: str = ""

    def strides(self, shape: Shape) -> Shape | None:
        if self.layout == "dense":
            return None
        if self.layout == "channels_last":
            return channels_last_strides(shape)
        dense = dense_strides(shape)
        if isinstance(self.layout, int):
            return tuple(self.layout * stride for stride in dense)
        return (0, *dense[1:])


_NEAREST = {"mode": "nearest"}
_TORCH_NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}


def _all_boundaries() -> Iterator[ResampleBoundary]:
    """All of them, the cheapest first."""
    yield ResampleBoundary("empty batch", (0, 2, 3), (5,))
    yield ResampleBoundary("no channels", (1, 0, 3), (5,))
    yield ResampleBoundary("one cell to many", (1, 2, 1, 1), (4, 3))
    yield from _conventions()
    for channels in (7, 8, 9, 31, 32, 33):
        for layout in ("dense", "channels_last"):
            name = f"{channels} channels, {layout}"
            yield ResampleBoundary(name, (1, channels, 2, 3), (4, 6), layout=layout)
    yield ResampleBoundary("a batch of one image", (3, 2, 4), (7,), layout="repeated")
    for factor in (1021, 2**16 + 1):
        yield ResampleBoundary(f"gaps of {factor - 1}", (2, 1, 4), (7,), layout=factor)
    yield from _REPORTED
    yield from _sizes()
    yield ResampleBoundary("elements 2^30 apart", (2, 1, 2), (3,), layout=2**30)


def _conventions() -> Iterator[ResampleBoundary]:
    """Each convention where it differs: to a single output, and to many with a scale that leaves a rest."""
    for convention in CONVENTIONS:
        attributes = {"coordinates": convention}
        yield ResampleBoundary(f"{convention} to one", (1, 2, 6), (1,), attributes)
        by_scale = {**attributes, "scale": 1.7}
        yield ResampleBoundary(f"{convention} by 1.7", (1, 2, 5), None, by_scale)


# Public reports about other implementations, none of which was run again.
_REPORTED = (
    # github.com/microsoft/onnxruntime/issues/28291: 20 to 6 takes cell 14 at coordinate 14.5.
    ResampleBoundary(
        "a tie at 14.5",
        (1, 1, 1, 20),
        (1, 6),
        {"mode": "nearest", "rounding": "round_prefer_ceil"},
        report="onnxruntime-28291",
    ),
    # github.com/microsoft/onnxruntime/issues/28085: 26 to 64, one off.
    ResampleBoundary(
        "26 to 64",
        (1, 1, 1, 26),
        None,
        {"mode": "nearest", "rounding": "round_prefer_ceil", "scale": (1.0, 64 / 26)},
        report="onnxruntime-28085",
    ),
    # github.com/tensorflow/tensorflow/issues/10989: nearest with aligned corners, 4 to 10.
    ResampleBoundary(
        "4 to 10, corners aligned",
        (1, 1, 4),
        (10,),
        {"mode": "nearest", "coordinates": "align_corners"},
        report="tensorflow-10989",
    ),
    # github.com/microsoft/onnxruntime/issues/1179: linear, 2×2 to 4×4.
    ResampleBoundary("2×2 to 4×4", (1, 1, 2, 2), (4, 4), report="onnxruntime-1179"),
    # github.com/pytorch/pytorch/issues/34808: nearest without regard to the middle of a pixel.
    ResampleBoundary("480 to 800", (1, 1, 480), (800,), _TORCH_NEAREST, report="pytorch-34808"),
    # github.com/pytorch/pytorch/issues/22526: invalid launch for one pixel, 4×256 channels.
    ResampleBoundary("1×1 to 3×3", (4, 256, 1, 1), (3, 3), _NEAREST, report="pytorch-22526"),
    # github.com/pytorch/pytorch/issues/81665: refused channels last with more than 2^31 outputs.
    ResampleBoundary(
        "channels last, more than 2^31 outputs",
        (32, 64, 512, 512),
        (1024, 1024),
        _TORCH_NEAREST,
        "channels_last",
        report="pytorch-81665",
    ),
    # github.com/pytorch/pytorch/issues/141831: silently wrong with more than 2^31 outputs.
    ResampleBoundary(
        "2^31 + 2 outputs",
        (1, 1, 2**30 + 1),
        None,
        {**_TORCH_NEAREST, "scale": 2.0},
        report="pytorch-141831",
    ),
)


def _sizes() -> Iterator[ResampleBoundary]:
    """65,535 is the limit of a grid's y and z, 2^16 that of 16 bits."""
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield ResampleBoundary(f"batch {size}", (size, 1, 2), (3,))
        yield ResampleBoundary(f"{size} channels", (1, size, 2), (3,))
        yield ResampleBoundary(f"{size} to 3", (1, 1, size), (3,))
        yield ResampleBoundary(f"3 to {size}", (1, 1, 3), (size,))
        yield ResampleBoundary(f"{size} to one more", (1, 1, size), (size + 1,))
        yield ResampleBoundary(f"nearest, {size} to one more", (1, 1, size), (size + 1,), _NEAREST)


def _boundaries(make: Maker) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for boundary in _all_boundaries():
            n, c, *extents = boundary.x
            attributes = {**_DEFAULTS, **boundary.attributes}
            arguments = make(Sample(n, c, tuple(extents), boundary.outputs, attributes), dtype)
            first, tensor = next(iter(arguments.tensors.items()))
            arguments = arguments.with_tensor(first, strides=boundary.strides(tensor.shape))
            yield Boundary(boundary.name, arguments, boundary.report)

    return of_dtype


DOMAINS = {name: _domain(make) for name, make in _MAKERS.items()}
BOUNDARIES = {name: _boundaries(make) for name, make in _MAKERS.items()}
