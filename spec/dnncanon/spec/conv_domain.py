"""The domain of the convolution family that cases are drawn from, and its boundaries.

A :class:`Sample` is a forward convolution; each primitive of the family makes its own arguments of it.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in
place: a failure in three dims can then be reduced to one in one dim.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dnncanon.spec.conv_boundaries import ConvBoundary, conv_boundaries
from dnncanon.spec.conv_problem import ACTIVATIONS, GEOMETRY, MODES, ConvProblem, resolve
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.windows import effective_extent, output_extents, resolve_padding

_MAX_DIMS = 3
_LONGEST_FILTER = {1: 9, 2: 5, 3: 3}

_LONG = {"channels": 16, "filters": 16, "extent": 32}
"""What one convolution in two has long, and how many times. Tiles of 64 channels and of 256 positions, and
sums of 256 terms, are then exceeded at level quick already."""

_MOST_ODD = 15
"""Elements at most by which a long dim differs from a multiple."""

_SHORT = 3
"""Extents at most where channels are many, as in the last layers of a network."""

_LONG_SUM = 1 << 16
"""Elements of a tensor whose sums are long; more would take time and tell no more."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Extents and attributes of a convolution that satisfies every constraint."""

    batch: int
    channels: int
    filters: int
    groups: int
    input_size: Shape
    filter_size: Shape
    attributes: dict[str, Any]

    def problem(self, dtype: str) -> ConvProblem:
        return resolve(Arguments(self.forward_tensors(dtype), self.attributes))

    def forward_tensors(self, dtype: str) -> dict[str, TensorType]:
        return {
            "x": TensorType(dtype, (self.batch, self.channels, *self.input_size)),
            "w": TensorType(dtype, (self.filters, self.channels // self.groups, *self.filter_size)),
        }

    def within(self, scale: Scale) -> bool:
        """Whether the scale allows so many products."""
        return self.problem("float32").multiplications <= scale.multiplications


# --- Primitives -----------------------------------------------------------------------------------


def forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _forward_arguments(_sample(draw, scale), dtype)


def backward_data(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _backward_data_arguments(_sample(draw, scale), dtype)


def backward_filter(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _backward_filter_arguments(_sample(draw, scale), dtype)


def backward_bias(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """Now and then with sums as long as the scale allows, of a number of terms that nothing divides."""
    dims = draw.choice((1, 2, 3))
    long = draw.choice((False, False, False, True))
    odd = draw.integer(0, _MOST_ODD)
    batch = _sample_batch(draw, scale)
    channels = draw.integer(1, scale.channels)
    extents = _sample_per_dim(draw, dims, 1, _longest_extent(scale, dims))
    if long:
        elements = min(scale.multiplications, _LONG_SUM)
        longest = elements // max(1, batch * channels * math.prod(extents[:-1])) - odd
        extents = (*extents[:-1], max(extents[-1], longest))
    return Arguments({"dy": TensorType(dtype, (batch, channels, *extents))}, {})


def fused(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """Often with a residual that a factor of 0 hides, for what shows that it is read is rare: NaN."""
    arguments = _fused_arguments(_sample(draw, scale), dtype)
    if not draw.choice((False, True, True)):
        tensors = {name: t for name, t in arguments.tensors.items() if name != "z"}
        arguments = replace(arguments, tensors=tensors)
    return arguments.with_attributes(
        activation=draw.choice(ACTIVATIONS),
        alpha1=draw.choice((1.0, 0.5, -1.5, 0.0)),
        alpha2=draw.choice((1.0, 0.0, 0.25, 0.0)),
    )


def _forward_arguments(sample: Sample, dtype: str) -> Arguments:
    return Arguments(sample.forward_tensors(dtype), sample.attributes)


def _backward_data_arguments(sample: Sample, dtype: str) -> Arguments:
    problem = sample.problem(dtype)
    tensors = {
        "dy": TensorType(dtype, problem.y_shape),
        "w": TensorType(dtype, problem.w_shape),
    }
    return Arguments(tensors, {**sample.attributes, "input_size": problem.input_size})


def _backward_filter_arguments(sample: Sample, dtype: str) -> Arguments:
    problem = sample.problem(dtype)
    tensors = {
        "x": TensorType(dtype, problem.x_shape),
        "dy": TensorType(dtype, problem.y_shape),
    }
    return Arguments(tensors, {**sample.attributes, "filter_size": problem.filter_size})


def _backward_bias_arguments(sample: Sample, dtype: str) -> Arguments:
    return Arguments({"dy": TensorType(dtype, sample.problem(dtype).y_shape)}, {})


def _fused_arguments(sample: Sample, dtype: str) -> Arguments:
    """With a residual, and with ReLU where it leaves enough elements to tell by."""
    problem = sample.problem(dtype)
    tensors = sample.forward_tensors(dtype)
    tensors["bias"] = TensorType(dtype, (problem.out_channels,))
    tensors["z"] = TensorType(dtype, problem.y_shape)
    activation = "relu" if math.prod(problem.y_shape) >= 16 else "identity"
    epilogue = {"activation": activation, "alpha1": 1.0, "alpha2": 1.0}
    return Arguments(tensors, {**sample.attributes, **epilogue})


# --- A convolution at random ----------------------------------------------------------------------


def _sample(draw: Draw, scale: Scale) -> Sample:
    """Draw a convolution; every choice tends to the plainest: 1 channel, stride 1, no padding."""
    dims = draw.choice((1, 2, 3))
    long = draw.choice(("nothing",) * len(_LONG) + tuple(_LONG))
    odd = draw.integer(0, _MOST_ODD)
    batch = _sample_batch(draw, scale)
    groups, per_group, filters_per_group = _sample_channels(draw, scale, long)
    filter_size = _sample_per_dim(draw, dims, 1, _LONGEST_FILTER[dims])
    input_size = _sample_per_dim(draw, dims, 1, _longest_extent(scale, dims))
    stride = _sample_per_dim(draw, dims, 1, 3)
    dilation = _sample_per_dim(draw, dims, 1, 3)
    padding = _sample_padding(draw, dims)
    mode = draw.choice(MODES)
    if long in ("channels", "filters"):
        input_size = tuple(min(extent, _SHORT) for extent in input_size)
    input_size = _grow_to_fit(input_size, filter_size, padding, dilation)
    stride, dilation = _meet_input(input_size, filter_size, padding, stride, dilation)
    attributes = {
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "mode": mode,
    }
    sample = Sample(
        batch,
        groups * per_group,
        groups * filters_per_group,
        groups,
        input_size,
        filter_size,
        attributes,
    )
    return _lengthen(_limit(sample, scale), scale, long, odd)


def _sample_per_dim(draw: Draw, dims: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_MAX_DIMS)][:dims])


def _longest_extent(scale: Scale, dims: int) -> int:
    """Shorter with more dims, so that they hold about as many elements."""
    return max(2, round(math.pow(scale.extent, 2 / (dims + 1))))


def _sample_batch(draw: Draw, scale: Scale) -> int:
    """Mostly small, now and then 0: an empty batch is legal, but tests little."""
    batches = (*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0)
    return int(draw.choice(batches))


def _sample_channels(draw: Draw, scale: Scale, long: str) -> tuple[int, int, int]:
    """Groups, input channels of a group, filters of a group; few, where another dim is long."""
    kind = draw.choice(("plain", "plain", "grouped", "depthwise"))
    groups = draw.integer(2, 4)
    channels, filters = (draw.integer(1, scale.channels) for _ in range(2))
    if long in ("filters", "extent"):
        channels = -(-channels // 4)
    if long in ("channels", "extent"):
        filters = -(-filters // 4)
    if kind == "plain" or long in ("channels", "filters"):
        return 1, channels, filters
    if kind == "depthwise":
        return channels, 1, 1 + filters % 2
    return groups, -(-channels // groups), -(-filters // groups)


def _sample_padding(draw: Draw, dims: int) -> Any:
    kind = draw.choice(("valid", "symmetric", "asymmetric", "same"))
    pre = _sample_per_dim(draw, dims, 0, 3)
    post = _sample_per_dim(draw, dims, 0, 5)
    if kind in ("valid", "same"):
        return kind
    return tuple(zip(pre, pre if kind == "symmetric" else post, strict=True))


def _grow_to_fit(input_size: Shape, filter_size: Shape, padding: Any, dilation: Shape) -> Shape:
    """Enlarge extents in which the dilated filter would not fit."""
    if padding == "same":
        return input_size
    pairs = resolve_padding(padding, input_size, filter_size, dilation, dilation)
    dims = zip(input_size, filter_size, pairs, dilation, strict=True)
    return tuple(max(i, effective_extent(f, dil) - sum(pair)) for i, f, pair, dil in dims)


def _meet_input(
    input_size: Shape, filter_size: Shape, padding: Any, stride: Shape, dilation: Shape
) -> tuple[Shape, Shape]:
    """Stride and dilation, both 1 in dims where every tap would step over the input, onto zeros."""
    pairs = resolve_padding(padding, input_size, filter_size, stride, dilation)
    outputs = output_extents(input_size, filter_size, pairs, stride, dilation)
    dims = zip(input_size, filter_size, pairs, stride, dilation, outputs, strict=True)
    met = [
        (u, dil)
        if any(0 <= o * u + f * dil - pre < i for o in range(count) for f in range(taps))
        else (1, 1)
        for i, taps, (pre, _), u, dil, count in dims
    ]
    return tuple(u for u, _ in met), tuple(dil for _, dil in met)


def _limit(sample: Sample, scale: Scale) -> Sample:
    """Shrink batch, channels and groups until the problem is no larger than the scale allows."""
    while not sample.within(scale):
        groups = sample.groups
        if sample.batch > 1:
            sample = replace(sample, batch=sample.batch // 2)
        elif sample.channels > groups:
            sample = replace(sample, channels=sample.channels // groups // 2 * groups or groups)
        elif sample.filters > groups:
            sample = replace(sample, filters=sample.filters // groups // 2 * groups or groups)
        elif groups > 1:
            half = groups // 2
            attributes = {**sample.attributes, "groups": half}
            sample = replace(
                sample, channels=half, filters=half, groups=half, attributes=attributes
            )
        else:
            break
    return sample


def _lengthen(sample: Sample, scale: Scale, long: str, odd: int) -> Sample:
    """The sample with one dim many times as long, or as long as the scale allows."""
    if long not in _LONG:
        return sample
    extents = sample.input_size
    now = extents[-1] if long == "extent" else getattr(sample, long)
    length = _LONG[long] * (now - 1) + 1 + odd
    while length > now:
        change = {"input_size": (*extents[:-1], length)} if long == "extent" else {long: length}
        longer = replace(sample, **change)
        if longer.within(scale):
            return longer
        length //= 2
    return sample


# --- Boundaries -----------------------------------------------------------------------------------


def _boundaries(
    arguments: Callable[[Sample, str], Arguments],
) -> Callable[[str], Iterator[Boundary]]:
    """The boundaries of a primitive that makes its arguments of a convolution in this way."""

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        seen = set()
        for boundary in conv_boundaries():
            made = arguments(_sample_at(boundary), dtype)
            first, tensor = next(iter(made.tensors.items()))
            made = made.with_tensor(first, strides=boundary.strides(tensor.shape))
            if str(made) not in seen:  # several convolutions have the same bias
                seen.add(str(made))
                yield Boundary(boundary.name, made, boundary.report, boundary.special_values)

    return of_dtype


def _sample_at(boundary: ConvBoundary) -> Sample:
    defaults = {attribute.name: attribute.default for attribute in GEOMETRY}
    return Sample(
        batch=boundary.x[0],
        channels=boundary.x[1],
        filters=boundary.w[0],
        groups=boundary.attributes.get("groups", 1),
        input_size=boundary.x[2:],
        filter_size=boundary.w[2:],
        attributes={**defaults, **boundary.attributes},
    )


forward_boundaries = _boundaries(_forward_arguments)
backward_data_boundaries = _boundaries(_backward_data_arguments)
backward_filter_boundaries = _boundaries(_backward_filter_arguments)
backward_bias_boundaries = _boundaries(_backward_bias_arguments)
fused_boundaries = _boundaries(_fused_arguments)
