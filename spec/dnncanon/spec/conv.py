"""Convolution: forward, its three gradients, and the fused bias-activation form of cuDNN.

Symbols: N batch, C input channels, K output channels, G groups, I input extents, F filter extents,
O output extents, one of each for every spatial dim; stride u, dilation l, padding (pre, post).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from dnncanon.spec import conv_domain
from dnncanon.spec.attributes import Choice, PerDim, Real, as_integer
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
from dnncanon.spec.conv_problem import (
    ACTIVATIONS,
    GEOMETRY,
    MODES,
    BiasProblem,
    ConvProblem,
    FusedConvProblem,
    entries,
    filter_extents,
    input_extents,
    resolve,
    resolve_bias,
    resolve_fused,
)
from dnncanon.spec.errors import AttributeValueError, ShapeError
from dnncanon.spec.numerics import WINOGRAD
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import TensorType
from dnncanon.spec.windows import effective_extent, resolve_padding

__all__ = [
    "BiasProblem",
    "ConvProblem",
    "FusedConvProblem",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation_forward",
    "conv_forward",
]

DTYPES = (
    DTypeRow("float64", ("ieee", "fft")),
    DTypeRow("float32", ("ieee", "ftz", "tf32x3", "bf16x3", "tf32", "fft", WINOGRAD)),
    DTypeRow("float16", ("ieee", "ftz", "fp16_accumulate")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
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
            size = input_extents(a)
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
        sizes = input_extents(a), filter_extents(a), entries(a, "stride"), entries(a, "dilation")
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
        yield a.with_attributes(dilation=1000 if max(filter_extents(a)) > 1 else 1)

    return Constraint("l·(F−1)+1 <= I + pre + post, so that O >= 1.", ShapeError, check, violate)


def _dy_extents() -> Constraint:
    def check(a: Arguments) -> str | None:
        problem, got = resolve(a), a.tensors["dy"].shape[2:]
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
        size = {"input_size": input_extents(a)} if "input_size" in a.attributes else {}
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
        expected = resolve(a).y_shape
        if "z" not in a.tensors or a.tensors["z"].shape == expected:
            return None
        return f"z has shape {a.tensors['z'].shape}, but y has {expected}; pass z of the shape of y"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "z" in a.tensors:
            n, *rest = a.tensors["z"].shape
            yield a.with_tensor("z", shape=(n + 1, *rest), strides=None)

    return Constraint("z, if given, has the shape of y.", ShapeError, check, violate)


# --- Declarations ---------------------------------------------------------------------------------

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
        attributes=GEOMETRY,
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
        resolve=resolve,
        infer=lambda p: (TensorType(p.dtype, p.y_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: math.prod(p.w_shape[1:]),
        domain=conv_domain.forward,
        boundaries=conv_domain.forward_boundaries,
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
            *GEOMETRY,
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
        resolve=resolve,
        infer=lambda p: (TensorType(p.dtype, p.x_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.out_channels // p.groups * math.prod(p.filter_size),
        domain=conv_domain.backward_data,
        boundaries=conv_domain.backward_data_boundaries,
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
            *GEOMETRY,
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
        resolve=resolve,
        infer=lambda p: (TensorType(p.dtype, p.w_shape),),
        flops=lambda p: 2 * p.multiplications,
        reduction_length=lambda p: p.batch * math.prod(p.output_size),
        domain=conv_domain.backward_filter,
        boundaries=conv_domain.backward_filter_boundaries,
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
        resolve=resolve_bias,
        infer=lambda p: (TensorType(p.dtype, p.dy_shape[1:2]),),
        flops=lambda p: math.prod(p.dy_shape),
        reduction_length=lambda p: p.dy_shape[0] * math.prod(p.dy_shape[2:]),
        domain=conv_domain.backward_bias,
        boundaries=conv_domain.backward_bias_boundaries,
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
            *GEOMETRY,
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
        resolve=resolve_fused,
        infer=lambda p: (TensorType(p.conv.dtype, p.conv.y_shape),),
        flops=lambda p: 2 * p.conv.multiplications + 4 * math.prod(p.conv.y_shape),
        reduction_length=lambda p: math.prod(p.conv.w_shape[1:]) + 2,
        domain=conv_domain.fused,
        boundaries=conv_domain.fused_boundaries,
        source="cuDNN cudnnConvolutionBiasActivationForward",
    )
)
