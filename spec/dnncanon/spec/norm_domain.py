"""The domain of the normalizations that cases are drawn from, and its boundaries.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in place.
A set of one element has nothing to normalise: sets have two at least, but for some boundaries.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dnncanon.spec.norm_problem import (
    ACTIVATIONS,
    MODES,
    STATISTICS,
    batch_parameter_shape,
    group_statistics_shape,
    layer_parameter_shape,
    layer_statistics_shape,
    statistics_dtype,
)
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType, dense_strides

_MAX_DIMS = 3
_LONG = ("nothing", "nothing", "nothing", "extent")
_EPSILONS = (1e-5, 1e-3, 0.5)
_FACTORS = (0.1, 1.0, 0.0, 0.25)
_WORK = 16
"""Operations on an element, at most: by so much a tensor is smaller than a scale's products."""


# --- Shapes ---------------------------------------------------------------------------------------


def _shape(draw: Draw, scale: Scale, ranks: tuple[int, ...], *, empty: bool = False) -> Shape:
    """(N, C, extents…) of one of the ranks, no larger than the scale allows, now and then long."""
    rank = draw.choice(ranks)
    long, odd = draw.choice(_LONG), draw.integer(0, 15)
    batches = (*range(1, scale.batch + 1), *(1, 2, 3) * 3)
    batch = draw.choice((*batches, 0 if empty else 1))
    channels = draw.integer(1, scale.channels)
    longest = max(2, round(math.pow(scale.extent, 2 / max(2, rank - 1))))
    extents = [draw.integer(1, longest) for _ in range(_MAX_DIMS)]
    shape = (batch, channels, *extents)[:rank]
    budget = max(2, scale.multiplications // _WORK)
    if long == "extent" and rank > 2:
        rest = max(1, math.prod(shape[:-1]))
        shape = (*shape[:-1], max(shape[-1], min(16 * shape[-1] * 16, budget // rest) - odd))
    return _within(shape, budget)


def _within(shape: Shape, budget: int) -> Shape:
    """The shape with its largest extent halved until it has no more elements than the budget."""
    while math.prod(shape) > budget:
        largest = shape.index(max(shape))
        shape = (*shape[:largest], shape[largest] // 2, *shape[largest + 1 :])
    return shape


def _several(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """The shape with at least two elements along the axes together."""
    if math.prod(shape[axis] for axis in axes) >= 2:
        return shape
    last = axes[-1]
    return (*shape[:last], 2, *shape[last + 1 :])


# --- Arguments ------------------------------------------------------------------------------------


@dataclass
class Maker:
    """Arguments of a call in the making: tensors are added in the primitive's order."""

    dtype: str
    parameter_dtype: str = ""
    tensors: dict[str, TensorType] = field(default_factory=dict)

    def data(self, shape: Shape, *names: str) -> None:
        """Tensors of the data's own dtype."""
        self.tensors |= {name: TensorType(self.dtype, shape) for name in names}

    def parameters(self, shape: Shape, *names: str) -> None:
        """Tensors like scale and bias."""
        self.tensors |= {name: TensorType(self.parameter_dtype, shape) for name in names}

    def statistics(self, shape: Shape, *names: str) -> None:
        """Tensors like means and variances."""
        dtype = statistics_dtype(self.dtype)
        self.tensors |= {name: TensorType(dtype, shape) for name in names}


def _maker(draw: Draw, dtype: str) -> Maker:
    """Parameters are float32, as cuDNN has them, or of the data's dtype."""
    own = draw.choice((False, True))
    return Maker(dtype, dtype if own else statistics_dtype(dtype))


def _batch(shape: Shape, mode: str) -> tuple[Shape, Shape]:
    """A shape with several elements in each set, and the shape of its parameters."""
    spatial = mode == "spatial"
    axes = (0, *range(2, len(shape))) if spatial else (0,)
    shape = _several(shape, axes)
    a = Arguments({"x": TensorType("float32", shape)}, {"mode": mode})
    return shape, batch_parameter_shape(a)


def batch_forward_training(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    made = _maker(draw, dtype)
    shape, mode = _shape(draw, scale, (3, 4, 5, 2)), draw.choice(MODES)
    running, residual = draw.choice((False, True)), draw.choice((False, True))
    attributes = {
        "mode": mode,
        "epsilon": draw.choice(_EPSILONS),
        "exponential_average_factor": draw.choice(_FACTORS),
        "activation": draw.choice(ACTIVATIONS),
        "save_statistics": draw.choice((False, True)),
    }
    return _batch_training(made, shape, attributes, running=running, residual=residual)


def _batch_training(
    made: Maker, shape: Shape, attributes: dict[str, Any], *, running: bool, residual: bool
) -> Arguments:
    shape, parameters = _batch(shape, attributes["mode"])
    made.data(shape, "x")
    made.parameters(parameters, "scale", "bias")
    if running:
        made.statistics(parameters, "running_mean", "running_var")
    if residual:
        made.data(shape, "z")
    return Arguments(made.tensors, attributes)


def batch_inference(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    made = _maker(draw, dtype)
    shape, mode = _shape(draw, scale, (3, 4, 5, 2), empty=True), draw.choice(MODES)
    residual = draw.choice((False, True))
    attributes = {
        "mode": mode,
        "epsilon": draw.choice(_EPSILONS),
        "activation": draw.choice(ACTIVATIONS),
    }
    return _batch_inference(made, shape, attributes, residual=residual)


def _batch_inference(
    made: Maker, shape: Shape, attributes: dict[str, Any], *, residual: bool
) -> Arguments:
    a = Arguments({"x": TensorType(made.dtype, shape)}, attributes)
    parameters = batch_parameter_shape(a)
    made.data(shape, "x")
    made.parameters(parameters, "scale", "bias")
    made.statistics(parameters, "mean", "variance")
    if residual:
        made.data(shape, "z")
    return Arguments(made.tensors, attributes)


def batch_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    made = _maker(draw, dtype)
    shape, mode = _shape(draw, scale, (3, 4, 5, 2)), draw.choice(MODES)
    saved = draw.choice((True, True, False))
    attributes = {
        "mode": mode,
        "epsilon": draw.choice(_EPSILONS),
        "activation": draw.choice(ACTIVATIONS),
        "statistics": draw.choice((*STATISTICS[:1] * 2, *STATISTICS)),
        "residual_gradient": draw.choice((False, True)),
    }
    if not saved:
        attributes["statistics"] = STATISTICS[0]
    return _batch_backward(made, shape, attributes, saved=saved)


def _batch_backward(
    made: Maker, shape: Shape, attributes: dict[str, Any], *, saved: bool
) -> Arguments:
    shape, parameters = _batch(shape, attributes["mode"])
    made.data(shape, "dy", "x")
    made.parameters(parameters, "scale")
    if saved:
        made.statistics(parameters, "mean", "inv_std")
    if attributes["activation"] == "relu":
        made.data(shape, "y")
    return Arguments(made.tensors, attributes)


def genstats(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    made = Maker(dtype)
    shape = _shape(draw, scale, (3, 4, 5, 2))
    return _genstats(made, shape, shifted=draw.choice((False, True)))


def _genstats(made: Maker, shape: Shape, *, shifted: bool) -> Arguments:
    made.data(shape, "x")
    if shifted:
        made.statistics(shape[1:2], "shift")
    return Arguments(made.tensors, {})


def finalize(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    shards, channels = draw.integer(1, max(1, scale.batch)), draw.integer(1, scale.channels)
    long = draw.choice(("nothing", "nothing", "channels"))
    running, shifted = draw.choice((False, True)), draw.choice((False, True))
    attributes = {
        "count": draw.integer(1, 64),
        "epsilon": draw.choice(_EPSILONS),
        "exponential_average_factor": draw.choice(_FACTORS),
    }
    channels = channels * 2 if long == "channels" else channels
    return _finalize(Maker(dtype, dtype), (shards, channels), attributes, running, shifted)


def _finalize(
    made: Maker, shape: Shape, attributes: dict[str, Any], running: bool, shifted: bool
) -> Arguments:
    made.data(shape, "sum", "sq_sum")
    made.data(shape[1:], "scale", "bias")
    if running:
        made.data(shape[1:], "running_mean", "running_var")
    if shifted:
        made.data(shape[1:], "shift")
    return Arguments(made.tensors, attributes)


def backward_weights(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    made = _maker(draw, dtype)
    return _backward_weights(made, _shape(draw, scale, (3, 4, 5, 2)))


def _backward_weights(made: Maker, shape: Shape) -> Arguments:
    shape, parameters = _batch(shape, "spatial")
    made.data(shape, "dy", "x")
    made.parameters(parameters, "scale")
    made.statistics(parameters, "mean", "inv_std")
    return Arguments(made.tensors, {})


# --- Layer, RMS, group and instance norm ----------------------------------------------------------


def layer_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_layer(draw, scale, dtype, adaptive=True)


def layer_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_layer(draw, scale, dtype, adaptive=True, backward=("mean", "inv_std"))


def rms_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_layer(draw, scale, dtype)


def rms_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_layer(draw, scale, dtype, backward=("inv_rms",))


def _drawn_layer(
    draw: Draw,
    scale: Scale,
    dtype: str,
    *,
    adaptive: bool = False,
    backward: tuple[str, ...] = (),
) -> Arguments:
    made = _maker(draw, dtype)
    shape = _shape(draw, scale, (3, 2, 4, 5, 1), empty=not backward)
    back = draw.integer(1, 4)
    parameters = draw.choice(("both", "both", "scale", "none", "bias"))
    saved, per_sample = draw.choice((True, True, False)), draw.choice((False, False, True))
    attributes: dict[str, Any] = {
        "axis": -back if back < len(shape) else len(shape) - 1,
        "epsilon": draw.choice(_EPSILONS),
        "zero_centered_scale": draw.choice((False, True)),
    }
    flag = draw.choice((True, False))
    attributes["bias_gradient" if backward else "save_statistics"] = flag
    if adaptive:
        attributes["adaptive"] = per_sample and len(shape) > 1
    return _layer(made, shape, attributes, parameters, backward if saved else (), bool(backward))


def _layer(
    made: Maker,
    shape: Shape,
    attributes: dict[str, Any],
    parameters: str,
    statistics: tuple[str, ...],
    backward: bool,
) -> Arguments:
    axis = attributes["axis"] % len(shape)
    shape = _several(shape, tuple(range(axis, len(shape))))
    a = Arguments({"x": TensorType(made.dtype, shape)}, attributes)
    names = {"both": ("scale", "bias"), "scale": ("scale",), "bias": ("bias",), "none": ()}
    made.data(shape, *(("dy", "x") if backward else ("x",)))
    wanted = [n for n in names[parameters] if n == "scale" or not backward]
    made.parameters(layer_parameter_shape(a), *wanted)
    made.statistics(layer_statistics_shape(a), *statistics)
    return Arguments(made.tensors, attributes)


def group_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_group(draw, scale, dtype, grouped=True, backward=False)


def group_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_group(draw, scale, dtype, grouped=True, backward=True)


def instance_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_group(draw, scale, dtype, grouped=False, backward=False)


def instance_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_group(draw, scale, dtype, grouped=False, backward=True)


def _drawn_group(
    draw: Draw, scale: Scale, dtype: str, *, grouped: bool, backward: bool
) -> Arguments:
    made = _maker(draw, dtype)
    shape = _shape(draw, scale, (3, 4, 5), empty=not backward)
    groups = draw.integer(1, 4)
    parameters = draw.choice(("both", "both", "scale", "none", "bias"))
    saved = draw.choice((True, True, False))
    attributes: dict[str, Any] = {"epsilon": draw.choice(_EPSILONS)}
    flag = draw.choice((True, False))
    attributes["bias_gradient" if backward else "save_statistics"] = flag
    if grouped:
        attributes["groups"] = groups = min(groups, shape[1])
        shape = (shape[0], shape[1] // groups * groups, *shape[2:])
        return _group(made, shape, attributes, parameters, saved, backward)
    residual = draw.choice((False, True))
    attributes["activation"] = draw.choice(ACTIVATIONS)
    if backward:
        attributes["residual_gradient"] = residual
    arguments = _group(made, shape, attributes, parameters, saved, backward)
    return _with_fused(made, arguments, residual and not backward)


def _with_fused(made: Maker, arguments: Arguments, residual: bool) -> Arguments:
    """Of an instance norm: the residual, and backward the output for a ReLU."""
    shape = next(iter(arguments.tensors.values())).shape
    if residual:
        made.data(shape, "z")
    if "dy" in made.tensors and arguments.attributes["activation"] == "relu":
        made.data(shape, "y")
    return Arguments(made.tensors, arguments.attributes)


def _group(
    made: Maker,
    shape: Shape,
    attributes: dict[str, Any],
    parameters: str,
    saved: bool,
    backward: bool,
) -> Arguments:
    if shape[1] // attributes.get("groups", shape[1]) == 1:
        shape = _several(shape, tuple(range(2, len(shape))))
    a = Arguments({"x": TensorType(made.dtype, shape)}, attributes)
    names = {"both": ("scale", "bias"), "scale": ("scale",), "bias": ("bias",), "none": ()}
    made.data(shape, *(("dy", "x") if backward else ("x",)))
    wanted = [n for n in names[parameters] if n == "scale" or not backward]
    made.parameters(shape[1:2], *wanted)
    if backward and saved:
        made.statistics(group_statistics_shape(a), "mean", "inv_std")
    return Arguments(made.tensors, attributes)


# --- Normalization over windows -------------------------------------------------------------------


def lrn_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_window(draw, scale, dtype, ("x",), means=False)


def lrn_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_window(draw, scale, dtype, ("dy", "x"), means=False)


def divisive_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_window(draw, scale, dtype, ("x",), means=True)


def divisive_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn_window(draw, scale, dtype, ("dy", "x"), means=True)


def _drawn_window(
    draw: Draw, scale: Scale, dtype: str, names: tuple[str, ...], *, means: bool
) -> Arguments:
    """Windows of up to 5 elements in each dim, which is up to 125 squares."""
    window = draw.integer(1, 5)
    cost = max(2, window**3 // 4)
    smaller = replace(scale, multiplications=scale.multiplications // cost)
    shape = _shape(draw, smaller, (3, 4, 5) if means else (4, 3, 5, 2), empty=True)
    given = draw.choice((True, False))
    attributes = {
        "window": window,
        "alpha": draw.choice((1.0, 1e-4, 0.5, 4.0)),
        "beta": draw.choice((0.75, 0.5, 1.0)),
        "k": draw.choice((2.0, 0.125, 0.5)),
    }
    return _window(Maker(dtype), shape, attributes, names, means=means and given)


def _window(
    made: Maker, shape: Shape, attributes: dict[str, Any], names: tuple[str, ...], *, means: bool
) -> Arguments:
    made.data(shape, *names)
    if means:
        made.data(shape, "means")
    return Arguments(made.tensors, attributes)


# --- Boundaries -----------------------------------------------------------------------------------

# Around the widths of vector loads, warps, blocks and what a block may keep.
_LENGTHS = (1, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025)
_LIMITS = (2**16 - 1, 2**16, 2**16 + 1)
_HUGE = 2**31 + 1

Arrange = Callable[[Shape, str], Arguments]


@dataclass(frozen=True, slots=True)
class _Edge:
    """A shape (N, C, extents…), and by how much the strides of the first tensor are multiplied."""

    name: str
    shape: Shape
    apart: int = 1
    report: str = ""


def _edges() -> Iterator[_Edge]:
    """Of all primitives, the cheapest first: sets and parameters of a few and of many elements."""
    for length in _LENGTHS:
        yield _Edge(f"extent {length}", (2, 2, length))
        if length > 1:
            yield _Edge(f"{length} channels", (2, length, 2))
    yield _Edge("one element of a channel", (1, 3, 1, 1))
    yield _Edge("extents 1 and 1", (2, 3, 1, 1))
    yield _Edge("three spatial dims", (2, 3, 2, 3, 4))
    yield _Edge("gaps of 1020", (2, 3, 4), apart=1021)
    for size in _LIMITS:
        yield _Edge(f"batch {size}", (size, 1, 2))
        yield _Edge(f"extent {size}", (1, 1, size))
        yield _Edge(f"{size} channels", (1, size, 2))
    # github.com/pytorch/pytorch/issues/16365: inference refused from a batch of 65,536 on.
    yield _Edge("batch 131071", (131_071, 1, 1), report="pytorch-16365")
    # github.com/chainer/chainer/issues/2414: (1025, 5), per activation.
    yield _Edge("batch 1025", (1025, 5, 1), report="chainer-2414")
    # github.com/NVIDIA/cudnn-frontend/issues/133: no engine for 35 channels.
    yield _Edge("35 channels of 3×3", (2, 35, 3, 3), report="cudnn-frontend-133")
    yield _Edge("elements 2^31 apart", (2, 1, 2), apart=2**31)
    yield _Edge("2^31 + 1 elements", (1, 1, _HUGE))


def boundaries(arrange: Arrange, empty: bool = False) -> Callable[[str], Iterator[Boundary]]:
    """The boundaries of a primitive that makes its arguments of a shape in this way."""

    def of_dtype(dtype: str) -> Iterator[Boundary]:
        edges = [*([_Edge("empty batch", (0, 2, 3))] if empty else []), *_edges()]
        for edge in edges:
            made = arrange(edge.shape, dtype)
            name, tensor = next(iter(made.tensors.items()))
            if edge.apart > 1:
                strides = tuple(edge.apart * stride for stride in dense_strides(tensor.shape))
                made = made.with_tensor(name, strides=strides)
            yield Boundary(edge.name, made, edge.report)

    return of_dtype


_BATCH = {"mode": "spatial", "epsilon": 1e-5, "activation": "identity"}
_TRAINING = {**_BATCH, "exponential_average_factor": 0.1, "save_statistics": True}
_BACKWARD = {**_BATCH, "statistics": "batch", "residual_gradient": False}
_FINALIZE = {"epsilon": 1e-5, "exponential_average_factor": 0.1}
_LAYER = {"axis": -1, "epsilon": 1e-5, "zero_centered_scale": False}
_WINDOW = {"window": 5, "alpha": 1.0, "beta": 0.75, "k": 2.0}


def _wide(dtype: str) -> Maker:
    return Maker(dtype, statistics_dtype(dtype))


def at_batch_training(shape: Shape, dtype: str) -> Arguments:
    made = _wide(dtype)
    made.data(shape, "x")
    made.parameters(shape[1:2], "scale", "bias")
    made.statistics(shape[1:2], "running_mean", "running_var")
    return Arguments(made.tensors, _TRAINING)


def at_batch_inference(shape: Shape, dtype: str) -> Arguments:
    return _batch_inference(_wide(dtype), shape, _BATCH, residual=False)


def at_batch_backward(shape: Shape, dtype: str) -> Arguments:
    return Arguments(_at_backward(shape, dtype).tensors, _BACKWARD)


def _at_backward(shape: Shape, dtype: str) -> Maker:
    made = _wide(dtype)
    made.data(shape, "dy", "x")
    made.parameters(shape[1:2], "scale")
    made.statistics(shape[1:2], "mean", "inv_std")
    return made


def at_genstats(shape: Shape, dtype: str) -> Arguments:
    return _genstats(_wide(dtype), shape, shifted=False)


def at_finalize(shape: Shape, dtype: str) -> Arguments:
    """A shard for each sample of the edge."""
    attributes = {**_FINALIZE, "count": math.prod(shape) // shape[1]}
    return _finalize(Maker(dtype, dtype), shape[:2], attributes, True, False)


def at_backward_weights(shape: Shape, dtype: str) -> Arguments:
    return Arguments(_at_backward(shape, dtype).tensors, {})


def at_layer_forward(shape: Shape, dtype: str) -> Arguments:
    return _at_layer(shape, dtype, {"save_statistics": True, "adaptive": False}, ())


def at_layer_backward(shape: Shape, dtype: str) -> Arguments:
    return _at_layer(shape, dtype, {"bias_gradient": True, "adaptive": False}, ("mean", "inv_std"))


def at_rms_forward(shape: Shape, dtype: str) -> Arguments:
    return _at_layer(shape, dtype, {"save_statistics": True}, ())


def at_rms_backward(shape: Shape, dtype: str) -> Arguments:
    return _at_layer(shape, dtype, {"bias_gradient": True}, ("inv_rms",))


def _at_layer(
    shape: Shape, dtype: str, extra: dict[str, Any], statistics: tuple[str, ...]
) -> Arguments:
    made = _wide(dtype)
    made.data(shape, *(("dy", "x") if statistics else ("x",)))
    made.parameters(shape[-1:], *(("scale",) if statistics else ("scale", "bias")))
    made.statistics(shape[:-1], *statistics)
    return Arguments(made.tensors, {**_LAYER, **extra})


def at_group_forward(shape: Shape, dtype: str) -> Arguments:
    return _at_group(shape, dtype, {"groups": 1, "save_statistics": True}, ())


def at_group_backward(shape: Shape, dtype: str) -> Arguments:
    return _at_group(shape, dtype, {"groups": 1, "bias_gradient": True}, ("mean", "inv_std"))


def at_instance_forward(shape: Shape, dtype: str) -> Arguments:
    return _at_group(shape, dtype, {"save_statistics": True, "activation": "identity"}, ())


def at_instance_backward(shape: Shape, dtype: str) -> Arguments:
    attributes = {"bias_gradient": True, "activation": "identity", "residual_gradient": False}
    return _at_group(shape, dtype, attributes, ("mean", "inv_std"))


def _at_group(
    shape: Shape, dtype: str, attributes: dict[str, Any], statistics: tuple[str, ...]
) -> Arguments:
    made = _wide(dtype)
    made.data(shape, *(("dy", "x") if statistics else ("x",)))
    made.parameters(shape[1:2], *(("scale",) if statistics else ("scale", "bias")))
    made.statistics((shape[0], attributes.get("groups", shape[1])), *statistics)
    return Arguments(made.tensors, {"epsilon": 1e-5, **attributes})


def at_window_forward(shape: Shape, dtype: str) -> Arguments:
    return _window(Maker(dtype), shape, _WINDOW, ("x",), means=False)


def at_window_backward(shape: Shape, dtype: str) -> Arguments:
    return _window(Maker(dtype), shape, _WINDOW, ("dy", "x"), means=False)
