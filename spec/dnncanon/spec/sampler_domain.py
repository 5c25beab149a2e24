"""The domain of the spatial transformer that cases are drawn from, its boundaries, and grids for test data.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in
place: a failure in three dims can then be reduced to one in two.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnncanon.spec.dtypes import DTYPES
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.sampler_problem import DIMS, MODES, PADDING_MODES, SAMPLING, GridSampleProblem
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides, dense_strides

_DEFAULTS = {attribute.name: attribute.default for attribute in SAMPLING}
_BOTH = {"return_dx": True, "return_dgrid": True}


@dataclass(frozen=True, slots=True)
class Sample:
    """Extents of a forward sampling, and its attributes; ``outputs`` are those of gradients."""

    batch: int
    channels: int
    input_size: Shape
    output_size: Shape
    attributes: dict[str, Any]
    outputs: dict[str, bool] = field(default_factory=lambda: dict(_BOTH))

    def tensors(self, dtype: str) -> dict[str, TensorType]:
        images = (self.batch, self.channels)
        dims = len(self.input_size)
        return {
            "dy": TensorType(dtype, (*images, *self.output_size)),
            "x": TensorType(dtype, (*images, *self.input_size)),
            "grid": TensorType(dtype, (self.batch, *self.output_size, dims)),
            "theta": TensorType(dtype, (self.batch, dims, dims + 1)),
            "dgrid": TensorType(dtype, (self.batch, *self.output_size, dims)),
        }

    def arguments(self, names: tuple[str, ...], dtype: str) -> Arguments:
        """Those of the primitive with these tensors."""
        tensors = self.tensors(dtype)
        given = self.attributes
        if "theta" in names or "dgrid" in names:
            given = {"align_corners": given["align_corners"]}
        if "theta" in names:
            given = {"output_size": self.output_size, **given}
        if "dy" in names:
            given = {**given, **self.outputs}
        return Arguments({name: tensors[name] for name in names}, given)


_TENSORS = {
    "affine_grid_forward": ("theta",),
    "affine_grid_backward": ("dgrid",),
    "grid_sample_forward": ("x", "grid"),
    "grid_sample_backward": ("dy", "x", "grid"),
}


# --- A sampling at random -------------------------------------------------------------------------


def _domain(name: str) -> Callable[[Draw, Scale, str], Arguments]:
    return lambda draw, scale, dtype: _sample(draw, scale).arguments(_TENSORS[name], dtype)


def _sample(draw: Draw, scale: Scale) -> Sample:
    """Draw a sampling; every choice tends to the plainest."""
    dims = draw.choice(DIMS)
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    channels = draw.integer(1, scale.channels)
    longest = max(3, round(1.5 * math.pow(scale.extent, 2 / (dims + 1))))
    input_size, output_size = _extents(draw, dims, longest), _extents(draw, dims, longest)
    attributes = {
        "mode": draw.choice((*MODES[:1] * 2, *MODES)),
        "padding_mode": draw.choice(PADDING_MODES),
        "align_corners": draw.choice((True, False)),
    }
    wanted = draw.choice(((True, True), (True, True), (True, False), (False, True)))
    if attributes["mode"] == "nearest":  # whose dgrid is 0, as if nothing had been computed
        wanted = (True, wanted[1])
    outputs = dict(zip(_BOTH, wanted, strict=True))
    sample = Sample(batch, channels, input_size, output_size, attributes, outputs)
    return _limited(sample, scale)


def _extents(draw: Draw, dims: int, longest: int) -> Shape:
    return tuple([draw.integer(1, longest) for _ in range(max(DIMS))][:dims])


def _limited(sample: Sample, scale: Scale) -> Sample:
    """With a smaller batch and fewer channels, until the scale allows so many products."""
    while sample.tensors("float32")["dy"].size * 16 > scale.multiplications:
        if sample.batch > 1:
            sample = replace(sample, batch=sample.batch // 2)
        elif sample.channels > 1:
            sample = replace(sample, channels=sample.channels // 2)
        else:
            break
    return sample


# --- Grids ----------------------------------------------------------------------------------------

_REACH = {"zeros": 1.25, "border": 1.75, "reflection": 3.5}
"""Up to where coordinates go: some beyond the image; with reflection, so far that it is hit twice."""

_FAR = 2.0**40


def plain_points(p: GridSampleProblem, data: dict[str, Any]) -> dict[str, Any]:
    """A grid whose points are on the same side of a border however they are computed, or on it exactly.

    A border is where a cell begins or the nearest cell changes: where c is a multiple of ½. Coordinates of
    few bits are brought to cells without a rounding, in float32, whatever the order of the operations is.
    So many coordinates have few bits, and so have others that come near to a border. A few lie far outside.
    """
    reach, given = _REACH[p.padding_mode], data["grid"]
    place, finite = np.arange(given.size).reshape(given.shape), np.isfinite(given)
    g = np.where(finite, given, 0.0) * np.where(place % 7 < 3, 0.5, 1.0)  # not all of them outside
    g = np.remainder(g + reach, 2.0 * reach) - reach
    step = 2.0**-6 if max(p.input_size) <= 2**12 else 2.0**-3
    few = (place % 5 < 2) | (DTYPES[p.dtype].digits < 24)
    for extent in p.input_size:  # of all dims: with a stride of 0 a number is x and y
        c = 0.5 * ((g + 1.0) * (extent - 1) if p.align_corners else (g + 1.0) * extent - 1.0)
        few = few | (np.abs(2.0 * c - np.rint(2.0 * c)) < 2.0**-17 * extent)
    g = np.where(few, np.rint(g / step) * step, g)
    if p.padding_mode != "reflection":  # where it would be a matter of luck
        far = _FAR if DTYPES[p.dtype].max > _FAR else 2.0**15
        g = np.where(place % 37 == 13, np.where(place % 2 == 0, far, -far), g)
    return {**data, "grid": np.where(finite, g, given)}


# --- Boundaries -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplerBoundary:
    """A forward sampling: shape of x, extents of the outputs, attributes that are not at their defaults.

    ``layout`` tells the strides of the first tensor: ``dense``; ``channels_last``; ``repeated``, 0 in the
    batch; or a number, by which all strides of the dense one are multiplied.
    """

    name: str
    x: Shape
    outputs: Shape
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layout: str | int = "dense"
    report: str = ""
    special_values: bool = False

    def strides(self, shape: Shape) -> Shape | None:
        if self.layout == "dense":
            return None
        if self.layout == "channels_last":
            return channels_last_strides(shape)
        dense = dense_strides(shape)
        if isinstance(self.layout, int):
            return tuple(self.layout * stride for stride in dense)
        return (0, *dense[1:])


def _samplings(*, backward: bool, conventions: bool) -> Iterator[SamplerBoundary]:
    """All of them, the cheapest first; those of all ``conventions`` in one dtype only."""
    yield SamplerBoundary("empty batch", (0, 2, 3, 3), (4, 2))
    if not backward:  # whose gradients would be 0, as if nothing had been computed
        yield SamplerBoundary("no channels", (1, 0, 3, 3), (4, 2))
        yield SamplerBoundary("no points", (1, 2, 3, 3), (0, 2))
    for padding_mode in PADDING_MODES if conventions else ():
        for aligned in (True, False):
            attributes = {"padding_mode": padding_mode, "align_corners": aligned}
            name = f"{padding_mode}, corners {'aligned' if aligned else 'not aligned'}"
            yield SamplerBoundary(f"one cell, {name}", (2, 3, 1, 1), (5, 9), attributes)
            yield SamplerBoundary(
                f"special values, {name}",
                (2, 3, 5, 7),
                (9, 11),
                attributes,
                # github.com/pytorch/pytorch/issues/24823: reads outside of memory for NaN and Inf.
                report="pytorch-24823" if name.startswith("reflection, corners aligned") else "",
                special_values=True,
            )
    for channels in (7, 8, 9, 31, 32, 33):
        for layout in ("dense", "channels_last"):
            name = f"{channels} channels, {layout}"
            yield SamplerBoundary(name, (1, channels, 3, 2), (4, 6), layout=layout)
    yield SamplerBoundary("a batch of one image", (3, 2, 4, 3), (7, 2), layout="repeated")
    for factor in (1021, 2**16 + 1):
        yield SamplerBoundary(f"gaps of {factor - 1}", (2, 1, 4, 2), (7, 3), layout=factor)
    yield SamplerBoundary("many points for a cell", (1, 2, 2, 2), (33, 32))
    yield from _REPORTED
    yield from _sizes()
    yield SamplerBoundary("elements 2^30 apart", (2, 1, 2, 2), (3, 2), layout=2**30)
    yield SamplerBoundary("more than 2^31 elements", (1, 2**20, 2, 2), (2**10 + 1, 2))


# Public reports about other implementations, none of which was run again.
_REPORTED = (
    # github.com/pytorch/pytorch/issues/73187: the gradient of one cell corrupted the heap.
    SamplerBoundary("one cell of a volume", (1, 1, 1, 1, 1), (2, 3, 4), report="pytorch-73187"),
    # github.com/pytorch/pytorch/issues/19826: crashed.
    SamplerBoundary(
        "123×456, border",
        (1, 3, 123, 456),
        (123, 456),
        {"padding_mode": "border"},
        report="pytorch-19826",
    ),
    # github.com/pytorch/pytorch/issues/96429: in float16 coordinates lost their digits.
    SamplerBoundary(
        "192×192 to 112×112",
        (1, 3, 192, 192),
        (112, 112),
        {"align_corners": False},
        report="pytorch-96429",
    ),
    # github.com/pytorch/pytorch/issues/7258: cuDNN's sampler failed to run.
    SamplerBoundary("13×2048×2048", (1, 13, 2048, 2048), (2048, 2048), report="pytorch-7258"),
    # github.com/pytorch/pytorch/issues/41656: crashed with more than 2^31 cells.
    SamplerBoundary(
        "32,769×65,536 cells",
        (1, 1, 32769, 65536),
        (2, 2),
        {"align_corners": False},
        report="pytorch-41656",
    ),
)


def _sizes() -> Iterator[SamplerBoundary]:
    """65,535 is the limit of a grid's y and z, 2^16 that of 16 bits."""
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield SamplerBoundary(f"batch {size}", (size, 1, 2, 1), (1, 2))
        yield SamplerBoundary(f"{size} channels", (1, size, 2, 1), (1, 2))
        yield SamplerBoundary(f"{size} cells in a row", (1, 1, 1, size), (2, 5))
        yield SamplerBoundary(f"{size} points", (1, 1, 3, 3), (1, size))


def _sample_boundaries(name: str) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        backward = name.endswith("backward")
        for boundary in _samplings(backward=backward, conventions=dtype == "float32"):
            n, c, *extents = boundary.x
            attributes = {**_DEFAULTS, **boundary.attributes}
            sample = Sample(n, c, tuple(extents), boundary.outputs, attributes)
            arguments = sample.arguments(_TENSORS[name], dtype)
            first, tensor = next(iter(arguments.tensors.items()))
            arguments = arguments.with_tensor(first, strides=boundary.strides(tensor.shape))
            yield Boundary(
                boundary.name, arguments, boundary.report, special_values=boundary.special_values
            )

    return of_dtype


_GRIDS: tuple[tuple[str, int, Shape], ...] = (
    ("empty batch", 0, (2, 3)),
    ("no points", 2, (0, 3)),
    ("one point", 2, (1, 1)),
    ("one row", 2, (1, 7)),
    ("one column", 2, (8, 1)),
    ("one plane", 2, (1, 5, 9)),
    ("rows of 31", 1, (3, 31)),
    ("rows of 32", 1, (3, 32)),
    ("rows of 33", 1, (3, 33)),
    ("33 × 32 points", 2, (33, 32)),
    ("9 × 33 × 5 points", 1, (9, 33, 5)),
    ("batch 65,537", 2**16 + 1, (1, 2)),
    ("65,535 points in a row", 1, (1, 2**16 - 1)),
    ("65,537 points in a row", 1, (2, 2**16 + 1)),
    ("65,537 rows", 1, (2**16 + 1, 2)),
    ("more than 2^31 coordinates", 1, (2**15 + 1, 2**15 + 1)),
)


def _grid_boundaries(name: str) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for title, batch, size in _GRIDS:
            if 0 in size and name.endswith("backward"):
                continue
            for aligned in (True, False):
                sample = Sample(batch, 1, size, size, {**_DEFAULTS, "align_corners": aligned})
                suffix = "" if aligned else ", corners not aligned"
                yield Boundary(title + suffix, sample.arguments(_TENSORS[name], dtype))
        # github.com/pytorch/pytorch/issues/172061: large errors in float16 after compilation.
        sample = Sample(3, 1, (8, 8, 8), (8, 8, 8), _DEFAULTS)
        volume = sample.arguments(_TENSORS[name], dtype)
        yield Boundary("8×8×8 points", volume, "pytorch-172061")
        sample = Sample(3, 1, (4, 5), (4, 5), _DEFAULTS)
        arguments = sample.arguments(_TENSORS[name], dtype)
        first, tensor = next(iter(arguments.tensors.items()))
        repeated = (0, *dense_strides(tensor.shape)[1:])
        yield Boundary("a batch of one", arguments.with_tensor(first, strides=repeated))
        gaps = tuple(1021 * stride for stride in dense_strides(tensor.shape))
        yield Boundary("gaps of 1020", arguments.with_tensor(first, strides=gaps))

    return of_dtype


DOMAINS = {name: _domain(name) for name in _TENSORS}
BOUNDARIES = {
    name: (_grid_boundaries if name.startswith("affine") else _sample_boundaries)(name)
    for name in _TENSORS
}
