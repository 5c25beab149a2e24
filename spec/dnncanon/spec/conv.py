"""Convolution: forward, its three gradients, and the fused bias-activation form of cuDNN.

Symbols: N batch, C input channels, K output channels, G groups, I input extents, F filter extents,
O output extents, one of each for every spatial dim; stride u, dilation l, padding (pre, post).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from dnncanon.spec.attributes import (
    Choice,
    Integer,
    Padding,
    Pair,
    PerDim,
    Real,
    as_integer,
    as_real,
    padding_pairs,
    per_dim,
)
from dnncanon.spec.constraints import (
    finite,
    legal_groups,
    legal_padding,
    one_dtype,
    one_of,
    positive_per_dim,
    spatial_dims,
    spatial_ranks,
)
from dnncanon.spec.conv_boundaries import ConvBoundary, conv_boundaries
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.numerics import WINOGRAD
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Boundary,
    Constraint,
    Draw,
    DTypeRow,
    Primitive,
    Scale,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.windows import (
    effective_extent,
    least_input_size,
    output_extents,
    resolve_padding,
)

MODES = ("cross_correlation", "convolution")
ACTIVATIONS = ("identity", "relu")
DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "bf16x3", "tf32", "fft", WINOGRAD)),
    DTypeRow("float16", ("ieee", "ftz", "fp16_accumulate")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
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


def _per_dim(a: Arguments, name: str) -> Shape:
    return per_dim(a.attributes[name], spatial_dims(a))


def _filter_size(a: Arguments) -> Shape:
    return a.tensors["w"].shape[2:] if "w" in a.tensors else _per_dim(a, "filter_size")


def _input_size(a: Arguments) -> Shape:
    """I of x, or of the ``input_size`` attribute, or by default the least one that explains dy."""
    if "x" in a.tensors:
        return a.tensors["x"].shape[2:]
    if a.attributes["input_size"] is not None:
        return _per_dim(a, "input_size")
    padding = padding_pairs(
        0 if a.attributes["padding"] == "valid" else a.attributes["padding"], spatial_dims(a)
    )
    return least_input_size(
        a.tensors["dy"].shape[2:],
        _filter_size(a),
        padding,
        _per_dim(a, "stride"),
        _per_dim(a, "dilation"),
    )


def _resolve(a: Arguments) -> ConvProblem:
    tensors, groups = a.tensors, as_integer(a.attributes["groups"])
    stride, dilation = _per_dim(a, "stride"), _per_dim(a, "dilation")
    input_size, filter_size = _input_size(a), _filter_size(a)
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


def _resolve_fused(a: Arguments) -> FusedConvProblem:
    return FusedConvProblem(
        conv=_resolve(a),
        has_z="z" in a.tensors,
        alpha1=as_real(a.attributes["alpha1"]),
        alpha2=as_real(a.attributes["alpha2"]),
        activation=a.attributes["activation"],
    )


# --- Constraints ----------------------------------------------------------------------------------
# Each builder returns one rule with its check and a generator of arguments that break it. A check may
# rely on the rules before it, so the order in which a primitive lists them matters.


def _input_channels() -> Constraint:
    def check(a: Arguments) -> str | None:
        c, per_group = a.tensors["x"].shape[1], a.tensors["w"].shape[1]
        groups = as_integer(a.attributes["groups"])
        if c == groups * per_group:
            return None
        fits = per_group > 0 and c % per_group == 0 and c > 0
        remedy = f"pass groups={c // per_group}" if fits else "pass w with C/groups channels"
        return f"C={c} is not groups·w.shape[1] = {groups}·{per_group}; {remedy}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *extents = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n, c + 1, *extents), strides=None)
        yield a.with_attributes(groups=a.attributes["groups"] + 1)

    return Constraint("C = groups · w.shape[1].", ShapeError, check, violate)


def _output_channels(name: str, dim: int) -> Constraint:
    def check(a: Arguments) -> str | None:
        k, groups = a.tensors[name].shape[dim], as_integer(a.attributes["groups"])
        if k % groups == 0:
            return None
        return f"K={k} is not a multiple of groups={groups}; pass groups that divide {name}.shape[{dim}]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for tensor, channel in (("w", 0), ("dy", 1)):
            if tensor in a.tensors:
                shape = list(a.tensors[tensor].shape)
                shape[channel] += 1
                a = a.with_tensor(tensor, shape=tuple(shape), strides=None)
        yield a

    return Constraint("K is a multiple of groups.", ShapeError, check, violate)


def _input_channels_divide() -> Constraint:
    def check(a: Arguments) -> str | None:
        c, groups = a.tensors["x"].shape[1], as_integer(a.attributes["groups"])
        if c % groups == 0:
            return None
        return f"C={c} is not a multiple of groups={groups}; pass groups that divide x.shape[1]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *extents = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n, c + 1, *extents), strides=None)

    return Constraint("C is a multiple of groups.", ShapeError, check, violate)


def _dy_channels() -> Constraint:
    def check(a: Arguments) -> str | None:
        k, filters = a.tensors["dy"].shape[1], a.tensors["w"].shape[0]
        if k == filters:
            return None
        return (
            f"dy has K={k} channels but w has {filters} filters; pass dy of shape (N, {filters}, …)"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, k, *extents = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(n, k + 1, *extents), strides=None)

    return Constraint("dy.shape[1] = w.shape[0] = K.", ShapeError, check, violate)


def _same_batch() -> Constraint:
    def check(a: Arguments) -> str | None:
        x, dy = a.tensors["x"].shape[0], a.tensors["dy"].shape[0]
        return None if x == dy else f"x has batch {x} but dy has {dy}; pass tensors of one batch"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, *rest = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(n + 1, *rest), strides=None)

    return Constraint("x.shape[0] = dy.shape[0] = N.", ShapeError, check, violate)


def _filter_extents() -> Constraint:
    def check(a: Arguments) -> str | None:
        extents = a.tensors["w"].shape[2:]
        if min(extents) >= 1:
            return None
        return (
            f"w has filter extents {extents}; pass a filter of at least one tap in each spatial dim"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        k, c, *extents = a.tensors["w"].shape
        yield a.with_tensor("w", shape=(k, c, *(0 for _ in extents)), strides=None)

    return Constraint("Filter extents F >= 1.", ShapeError, check, violate)


def _input_size_known() -> Constraint:
    text = (
        'input_size is None (the least extents that explain dy; not with padding="same") or one int '
        ">= 0 for each spatial dim."
    )

    def check(a: Arguments) -> str | None:
        value = a.attributes["input_size"]
        if value is None and a.attributes["padding"] == "same":
            return 'padding="same" does not determine the extents of dx; pass input_size'
        try:
            size = _input_size(a)
        except ValueError as wrong:
            return f"input_size={wrong}; pass {PerDim().describes}"
        if min(size) >= 0:
            return None
        shown = f"input_size={value!r}" if value is not None else f"dy implies input_size={size}"
        return f"{shown}, which is negative; pass input_size >= 0 or less padding"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = spatial_dims(a)
        for value in (-1, (1,) * (dims + 1), (2.5,) * dims):
            yield a.with_attributes(input_size=value)
        yield a.with_attributes(input_size=None, padding="same")

    return Constraint(text, AttributeValueError, check, violate)


def _filter_fits() -> Constraint:
    def check(a: Arguments) -> str | None:
        sizes = _input_size(a), _filter_size(a), _per_dim(a, "stride"), _per_dim(a, "dilation")
        padding = resolve_padding(a.attributes["padding"], *sizes)
        covers = tuple(map(effective_extent, sizes[1], sizes[3]))
        padded = tuple(i + sum(pair) for i, pair in zip(sizes[0], padding, strict=True))
        if all(cover <= extent for cover, extent in zip(covers, padded, strict=True)):
            return None
        return (
            f"F={sizes[1]} with dilation={sizes[3]} covers {covers}, more than I={sizes[0]} with "
            f"padding={padding}, {padded}; pad more, dilate less or pass a larger input"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(dilation=1000 if max(_filter_size(a)) > 1 else 1)

    return Constraint("l·(F−1)+1 <= I + pre + post, so that O >= 1.", ShapeError, check, violate)


def _dy_extents() -> Constraint:
    def check(a: Arguments) -> str | None:
        problem, got = _resolve(a), a.tensors["dy"].shape[2:]
        if got == problem.output_size:
            return None
        return (
            f"dy has spatial extents {got} but I={problem.input_size}, F={problem.filter_size}, "
            f"padding={problem.padding}, stride={problem.stride}, dilation={problem.dilation} "
            f"give O={problem.output_size}; pass dy of these extents"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, k, *extents = a.tensors["dy"].shape
        longer = (n, k, *(extent + 1 for extent in extents))
        size = {"input_size": _input_size(a)} if "input_size" in a.attributes else {}
        yield a.with_tensor("dy", shape=longer, strides=None).with_attributes(**size)

    text = "dy has the extents O of the forward convolution."
    return Constraint(text, ShapeError, check, violate)


def _bias_shape() -> Constraint:
    def check(a: Arguments) -> str | None:
        bias, k = a.tensors["bias"].shape, a.tensors["w"].shape[0]
        if bias == (k,):
            return None
        return f"bias has shape {bias}, not (K,) = ({k},); pass bias.reshape({k})"

    def violate(a: Arguments) -> Iterator[Arguments]:
        k = a.tensors["w"].shape[0]
        for shape in ((k + 1,), (1, k), ()):
            yield a.with_tensor("bias", shape=shape, strides=None)

    return Constraint("bias has shape (K,).", ShapeError, check, violate)


def _z_shape() -> Constraint:
    def check(a: Arguments) -> str | None:
        expected = _resolve(a).y_shape
        if "z" not in a.tensors or a.tensors["z"].shape == expected:
            return None
        return f"z has shape {a.tensors['z'].shape}, but y has {expected}; pass z of the shape of y"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "z" in a.tensors:
            n, *rest = a.tensors["z"].shape
            yield a.with_tensor("z", shape=(n + 1, *rest), strides=None)

    return Constraint("z, if given, has the shape of y.", ShapeError, check, violate)


# --- Domains to sample from -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    """Sampled extents and attributes of a convolution that satisfies every constraint."""

    batch: int
    channels: int
    filters: int
    groups: int
    input_size: Shape
    filter_size: Shape
    attributes: dict[str, Any]

    def problem(self, dtype: str) -> ConvProblem:
        return _resolve(Arguments(self.forward_tensors(dtype), self.attributes))

    def forward_tensors(self, dtype: str) -> dict[str, TensorType]:
        return {
            "x": TensorType(dtype, (self.batch, self.channels, *self.input_size)),
            "w": TensorType(dtype, (self.filters, self.channels // self.groups, *self.filter_size)),
        }


# As many draws whatever was drawn before, so that a simpler choice leaves the later ones in place:
# a failure in three dims can then be reduced to one in one dim.
_MAX_DIMS = 3
_LONGEST_FILTER = {1: 9, 2: 5, 3: 3}


def _sample(draw: Draw, scale: Scale) -> _Sample:
    """Draw a convolution; every choice tends to the plainest: 1 channel, stride 1, no padding."""
    dims = draw.choice((1, 2, 3))
    batch = _sample_batch(draw, scale)
    groups, per_group, filters_per_group = _sample_channels(draw, scale)
    filter_size = _sample_per_dim(draw, dims, 1, _LONGEST_FILTER[dims])
    input_size = _sample_per_dim(draw, dims, 1, _longest_extent(scale, dims))
    stride = _sample_per_dim(draw, dims, 1, 3)
    dilation = _sample_per_dim(draw, dims, 1, 3)
    padding = _sample_padding(draw, dims)
    mode = draw.choice(MODES)
    input_size = _grow_to_fit(input_size, filter_size, padding, dilation)
    stride, dilation = _meet_input(input_size, filter_size, padding, stride, dilation)
    attributes = {
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "mode": mode,
    }
    sample = _Sample(
        batch,
        groups * per_group,
        groups * filters_per_group,
        groups,
        input_size,
        filter_size,
        attributes,
    )
    return _limit(sample, scale)


def _sample_per_dim(draw: Draw, dims: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_MAX_DIMS)][:dims])


def _longest_extent(scale: Scale, dims: int) -> int:
    """Shorter with more dims, so that they hold about as many elements."""
    return max(2, round(math.pow(scale.extent, 2 / (dims + 1))))


def _sample_batch(draw: Draw, scale: Scale) -> int:
    """Mostly small, now and then 0: an empty batch is legal, but tests little."""
    batches = (*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0)
    return int(draw.choice(batches))


def _sample_channels(draw: Draw, scale: Scale) -> tuple[int, int, int]:
    """Groups, input channels of a group, filters of a group."""
    kind = draw.choice(("plain", "plain", "grouped", "depthwise"))
    groups = draw.integer(2, 4)
    channels, filters = (draw.integer(1, scale.channels) for _ in range(2))
    if kind == "plain":
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


def _limit(sample: _Sample, scale: Scale) -> _Sample:
    """Shrink batch, channels and groups until the problem is no larger than the scale allows."""
    while sample.problem("float32").multiplications > scale.multiplications:
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


def _forward_domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _forward_arguments(_sample(draw, scale), dtype)


def _forward_arguments(sample: _Sample, dtype: str) -> Arguments:
    return Arguments(sample.forward_tensors(dtype), sample.attributes)


def _backward_data_domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _backward_data_arguments(_sample(draw, scale), dtype)


def _backward_data_arguments(sample: _Sample, dtype: str) -> Arguments:
    problem = sample.problem(dtype)
    tensors = {
        "dy": TensorType(dtype, problem.y_shape),
        "w": TensorType(dtype, problem.w_shape),
    }
    return Arguments(tensors, {**sample.attributes, "input_size": problem.input_size})


def _backward_filter_domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _backward_filter_arguments(_sample(draw, scale), dtype)


def _backward_filter_arguments(sample: _Sample, dtype: str) -> Arguments:
    problem = sample.problem(dtype)
    tensors = {
        "x": TensorType(dtype, problem.x_shape),
        "dy": TensorType(dtype, problem.y_shape),
    }
    return Arguments(tensors, {**sample.attributes, "filter_size": problem.filter_size})


def _backward_bias_domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    dims = draw.choice((1, 2, 3))
    batch = _sample_batch(draw, scale)
    channels = draw.integer(1, scale.channels)
    extents = _sample_per_dim(draw, dims, 1, _longest_extent(scale, dims))
    return Arguments({"dy": TensorType(dtype, (batch, channels, *extents))}, {})


def _backward_bias_arguments(sample: _Sample, dtype: str) -> Arguments:
    return Arguments({"dy": TensorType(dtype, sample.problem(dtype).y_shape)}, {})


def _fused_domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    arguments = _fused_arguments(_sample(draw, scale), dtype)
    if not draw.choice((False, True)):
        tensors = {name: t for name, t in arguments.tensors.items() if name != "z"}
        arguments = replace(arguments, tensors=tensors)
    return arguments.with_attributes(
        activation=draw.choice(ACTIVATIONS),
        alpha1=draw.choice((1.0, 0.5, -1.5)),
        alpha2=draw.choice((1.0, 0.25, 0.0)),
    )


def _fused_arguments(sample: _Sample, dtype: str) -> Arguments:
    """With a residual, and with ReLU where it leaves enough elements to tell by."""
    problem = sample.problem(dtype)
    tensors = sample.forward_tensors(dtype)
    tensors["bias"] = TensorType(dtype, (problem.out_channels,))
    tensors["z"] = TensorType(dtype, problem.y_shape)
    activation = "relu" if math.prod(problem.y_shape) >= 16 else "identity"
    epilogue = {"activation": activation, "alpha1": 1.0, "alpha2": 1.0}
    return Arguments(tensors, {**sample.attributes, **epilogue})


def _boundaries(
    arguments: Callable[[_Sample, str], Arguments],
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
                yield Boundary(boundary.name, made, boundary.report)

    return of_dtype


def _sample_at(boundary: ConvBoundary) -> _Sample:
    groups = boundary.attributes.get("groups", 1)
    defaults = {attribute.name: attribute.default for attribute in _ATTRIBUTES}
    return _Sample(
        batch=boundary.x[0],
        channels=boundary.x[1],
        filters=boundary.w[0],
        groups=groups,
        input_size=boundary.x[2:],
        filter_size=boundary.w[2:],
        attributes={**defaults, **boundary.attributes},
    )


# --- Declarations ---------------------------------------------------------------------------------

_ATTRIBUTES = (
    Attribute("padding", Padding(), "Zeros before and after each spatial dim.", 0),
    Attribute("stride", PerDim(), "Step u between windows.", 1),
    Attribute("dilation", PerDim(), "Distance l between taps.", 1),
    Attribute("groups", Integer(), "Independent groups G of channels; C for depthwise.", 1),
    Attribute("mode", Choice(MODES), "cross_correlation, or convolution: taps reversed.", MODES[0]),
)
_GEOMETRY_DECISIONS = (
    "Logical order is (N, C, spatial…) in any memory layout: NHWC is a stride pattern. Inputs may have "
    "gaps and stride 0; the elements of an output have addresses of their own.",
    "Zero sizes are legal for N, C, K and, where padding makes room for the filter, I: an empty sum is "
    "0 and an empty output is empty. cuDNN refuses them; users ask for them.",
    "Negative padding is refused: cuDNN's legacy API refuses it and the graph API leaves it open.",
    "A filter larger than the padded input is an error that says so, not an empty output.",
    'padding="same" follows O = ceil(I/u); an odd total pads the end, as XLA and ONNX SAME_UPPER do.',
    "There is no alpha and beta: functions are pure. conv_bias_activation_forward scales and adds.",
    "Sums are rounded once, to nearest even, to the tensors' dtype; overflow gives ±Inf, and "
    "subnormal results are kept.",
    "NaN and Inf in x spread to the outputs whose windows hold them and to no others, 0·Inf included; "
    "likewise dy in conv_backward_data. Whether a non-finite value of the operand that meets padding "
    "zeros (w; dy in conv_backward_filter) spreads through them is left open: algorithms differ.",
)
_X = TensorSpec("x", "N C *I", "input")
_W = TensorSpec("w", "K C/groups *F", "filter", special_values=False)
_Y = TensorSpec("y", "N K *O", "output")
_DY = TensorSpec("dy", "N K *O", "gradient of the loss by y")
_SHARED = (
    positive_per_dim("stride"),
    positive_per_dim("dilation"),
    legal_padding(),
    one_of("mode", MODES),
    legal_groups(),
)

conv_forward = declare(
    Primitive(
        name="conv_forward",
        family="conv",
        summary="Convolution over 1 to 3 spatial dims.",
        formula="""\
y[n, k, o] = Σ_{c, f} x[n, g·C/G + c, o·u + f·l − pre] · w[k, c, f]        g = ⌊k / (K/G)⌋
with o, f, u, l, pre one entry for each spatial dim, x = 0 outside its extents;
mode="convolution" takes w[k, c, F−1−f].        O = ⌊(I + pre + post − l·(F−1) − 1) / u⌋ + 1""",
        inputs=(_X, _W),
        outputs=(_Y,),
        attributes=_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(
            spatial_ranks("x", "w"),
            one_dtype(DTYPES),
            *_SHARED,
            _input_channels(),
            _output_channels("w", 0),
            _filter_extents(),
            _filter_fits(),
        ),
        decisions=_GEOMETRY_DECISIONS,
        resolve=_resolve,
        infer=lambda p: (TensorType(p.dtype, p.y_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: math.prod(p.w_shape[1:]),
        domain=_forward_domain,
        boundaries=_boundaries(_forward_arguments),
        source="cuDNN cudnnConvolutionForward; graph API CONVOLUTION_FORWARD",
    )
)

conv_backward_data = declare(
    Primitive(
        name="conv_backward_data",
        family="conv",
        summary="Gradient of a convolution by its input; as an operation of its own, transposed convolution.",
        formula="""\
dx[n, c, i] = Σ_{k, o, f : o·u + f·l − pre = i} dy[n, k, o] · w[k, c mod C/G, f]
over the K/G filters k of c's group; mode="convolution" takes w[k, …, F−1−f].""",
        inputs=(_DY, _W),
        outputs=(TensorSpec("dx", "N C *I", "gradient of the loss by x"),),
        attributes=(
            *_ATTRIBUTES,
            Attribute(
                "input_size",
                PerDim(),
                "Spatial extents I of dx. Default: the least extents that explain dy.",
                None,
            ),
        ),
        dtypes=DTYPES,
        constraints=(
            spatial_ranks("dy", "w"),
            one_dtype(DTYPES),
            *_SHARED,
            _dy_channels(),
            _output_channels("w", 0),
            _filter_extents(),
            _input_size_known(),
            _filter_fits(),
            _dy_extents(),
        ),
        decisions=(
            *_GEOMETRY_DECISIONS,
            "With u > 1 dy does not determine I. The default is the least I, transposed convolution "
            "without output padding; cuDNN demands the extents.",
            "Elements of dx that no window covers are 0.",
        ),
        resolve=_resolve,
        infer=lambda p: (TensorType(p.dtype, p.x_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.out_channels // p.groups * math.prod(p.filter_size),
        domain=_backward_data_domain,
        boundaries=_boundaries(_backward_data_arguments),
        source="cuDNN cudnnConvolutionBackwardData; graph API CONVOLUTION_BACKWARD_DATA",
    )
)

conv_backward_filter = declare(
    Primitive(
        name="conv_backward_filter",
        family="conv",
        summary="Gradient of a convolution by its filter.",
        formula="""\
dw[k, c, f] = Σ_{n, o} dy[n, k, o] · x[n, g·C/G + c, o·u + f·l − pre]        g = ⌊k / (K/G)⌋
with x = 0 outside its extents; mode="convolution" writes dw[k, c, F−1−f].""",
        inputs=(_X, replace(_DY, special_values=False)),
        outputs=(TensorSpec("dw", "K C/groups *F", "gradient of the loss by w"),),
        attributes=(
            *_ATTRIBUTES,
            Attribute("filter_size", PerDim(), "Spatial extents F of dw.", REQUIRED),
        ),
        dtypes=DTYPES,
        constraints=(
            spatial_ranks("x", "dy"),
            one_dtype(DTYPES),
            *_SHARED,
            positive_per_dim("filter_size"),
            _same_batch(),
            _input_channels_divide(),
            _output_channels("dy", 1),
            _filter_fits(),
            _dy_extents(),
        ),
        decisions=(*_GEOMETRY_DECISIONS, "The gradient is the sum over the batch, not its mean."),
        resolve=_resolve,
        infer=lambda p: (TensorType(p.dtype, p.w_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.batch * math.prod(p.output_size),
        domain=_backward_filter_domain,
        boundaries=_boundaries(_backward_filter_arguments),
        source="cuDNN cudnnConvolutionBackwardFilter; graph API CONVOLUTION_BACKWARD_FILTER",
    )
)

conv_backward_bias = declare(
    Primitive(
        name="conv_backward_bias",
        family="conv",
        summary="Gradient of a convolution by its bias.",
        formula="db[k] = Σ_{n, o} dy[n, k, o]",
        inputs=(_DY,),
        outputs=(TensorSpec("db", "K", "gradient of the loss by bias"),),
        attributes=(),
        dtypes=DTYPES,
        constraints=(spatial_ranks("dy"), one_dtype(DTYPES)),
        decisions=("db has shape (K,); cuDNN's is (1, K, 1, 1).", _GEOMETRY_DECISIONS[6]),
        resolve=lambda a: BiasProblem(a.tensors["dy"].dtype, a.tensors["dy"].shape),
        infer=lambda p: (TensorType(p.dtype, p.dy_shape[1:2]),),
        flops=lambda p: math.prod(p.dy_shape),
        reduction_length=lambda p: p.dy_shape[0] * math.prod(p.dy_shape[2:]),
        domain=_backward_bias_domain,
        boundaries=_boundaries(_backward_bias_arguments),
        source="cuDNN cudnnConvolutionBackwardBias",
    )
)

conv_bias_activation_forward = declare(
    Primitive(
        name="conv_bias_activation_forward",
        family="conv",
        summary="Convolution with its epilogue: scale, residual, bias and activation in one pass.",
        formula="y = activation(alpha1·conv_forward(x, w) + alpha2·z + bias)        relu(v) = max(v, 0)",
        inputs=(
            _X,
            _W,
            TensorSpec("bias", "K", "bias of each output channel"),
            TensorSpec("z", "N K *O", "residual; absent means none", optional=True),
        ),
        outputs=(_Y,),
        attributes=(
            *_ATTRIBUTES,
            Attribute("activation", Choice(ACTIVATIONS), "What is applied last.", "relu"),
            Attribute("alpha1", Real(), "Factor of the convolution.", 1.0),
            Attribute("alpha2", Real(), "Factor of z.", 1.0),
        ),
        dtypes=DTYPES,
        constraints=(
            spatial_ranks("x", "w"),
            one_dtype(DTYPES),
            *_SHARED,
            _input_channels(),
            _output_channels("w", 0),
            _filter_extents(),
            _filter_fits(),
            _bias_shape(),
            _z_shape(),
            one_of("activation", ACTIVATIONS),
            finite("alpha1"),
            finite("alpha2"),
        ),
        decisions=(
            *_GEOMETRY_DECISIONS,
            "The epilogue works on unrounded sums; the only rounding to the tensors' dtype is the last.",
            "relu keeps NaN.",
            "With alpha2 = 0, z is not read: NaN in it does not spread (cuDNN's rule for beta). With "
            "alpha1 = 0 the convolution still counts: 0·NaN is NaN.",
        ),
        resolve=_resolve_fused,
        infer=lambda p: (TensorType(p.conv.dtype, p.conv.y_shape),),
        flops=lambda p: 2 * p.conv.multiplications + 4 * math.prod(p.conv.y_shape),
        reduction_length=lambda p: math.prod(p.conv.w_shape[1:]) + 2,
        domain=_fused_domain,
        boundaries=_boundaries(_fused_arguments),
        source="cuDNN cudnnConvolutionBiasActivationForward",
    )
)
