"""What a normalization is called with, and the problem that follows from a call.

All of them normalise sets of elements of x. A problem says which sets by a ``view``, a shape to which x can
be reshaped without moving an element, and the ``axes`` of that view over which a set extends. Symbols:
m elements of a set, N batch, C channels, G groups, I spatial extents.
"""

import math
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Choice, Flag, Integer, Real, as_integer, as_real
from dnncanon.spec.primitive import Arguments, Attribute
from dnncanon.spec.tensors import Shape

MODES = ("spatial", "per_activation")
ACTIVATIONS = ("identity", "relu")
STATISTICS = ("batch", "fixed")

EPSILON = Attribute("epsilon", Real(), "Added to the variance, >= 0.", 1e-5)
MODE = Attribute(
    "mode",
    Choice(MODES),
    "spatial: one mean for each channel; per_activation: one for each element of a sample.",
    MODES[0],
)
ACTIVATION = Attribute("activation", Choice(ACTIVATIONS), "What is applied last.", "identity")
AVERAGE_FACTOR = Attribute(
    "exponential_average_factor",
    Real(),
    "Weight f of the batch in the running statistics, in [0, 1]; 1/(1 + n) makes a cumulative average.",
    0.1,
)
AXIS = Attribute(
    "axis", Integer(), "First of the dims that are normalised; negative from the end.", -1
)
ZERO_CENTERED = Attribute(
    "zero_centered_scale", Flag(), "Whether scale is stored less 1: γ = 1 + scale.", False
)
SAVE_STATISTICS = Attribute(
    "save_statistics", Flag(), "Whether the statistics are put out for the backward pass.", False
)
BIAS_GRADIENT = Attribute("bias_gradient", Flag(), "Whether dbias is put out.", True)


def statistics_dtype(dtype: str) -> str:
    """The type of means and variances of tensors of ``dtype``: that in which sums are kept."""
    return "float64" if dtype == "float64" else "float32"


@dataclass(frozen=True, slots=True)
class NormProblem:
    """One normalization with every default resolved.

    x, reshaped to ``view``, is normalised over ``axes``; scale and bias are broadcast against the view when
    they are reshaped to ``parameter_view``. ``centred`` is False where no mean is subtracted (RMS).
    """

    dtype: str
    x_shape: Shape
    view: Shape
    axes: Shape
    parameter_shape: Shape
    parameter_view: Shape
    parameter_dtype: str
    statistics_shape: Shape
    epsilon: float
    centred: bool = True
    zero_centered_scale: bool = False
    has_scale: bool = True
    save_statistics: bool = True
    bias_gradient: bool = True

    @property
    def count(self) -> int:
        """Elements of each set, m."""
        return math.prod(self.view[axis] for axis in self.axes)

    @property
    def statistics_view(self) -> Shape:
        """The view with the normalised dims reduced to 1."""
        return tuple(1 if d in self.axes else extent for d, extent in enumerate(self.view))

    @property
    def parameter_axes(self) -> Shape:
        """The dims of the view over which the gradients of scale and bias are sums."""
        return tuple(d for d, extent in enumerate(self.parameter_view) if extent == 1)

    @property
    def shared(self) -> int:
        """Elements that share an entry of scale and bias."""
        return math.prod(self.view[axis] for axis in self.parameter_axes)

    @property
    def statistics_dtype(self) -> str:
        return statistics_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class FusedNormProblem:
    """A normalization, and what is fused to it: an instance norm."""

    norm: NormProblem
    activation: str = "identity"
    has_residual: bool = False


@dataclass(frozen=True, slots=True)
class BatchNormProblem(FusedNormProblem):
    """A batch normalization, by statistics of the batch or others, and with running ones."""

    average_factor: float = 0.0
    has_running: bool = False
    fixed_statistics: bool = False


@dataclass(frozen=True, slots=True)
class GenstatsProblem:
    """Sums of x and of its squares for each channel."""

    dtype: str
    x_shape: Shape
    has_shift: bool

    @property
    def statistics_dtype(self) -> str:
        return statistics_dtype(self.dtype)

    @property
    def count(self) -> int:
        """Terms of each sum."""
        return math.prod(self.x_shape) // max(1, self.x_shape[1])


@dataclass(frozen=True, slots=True)
class FinalizeProblem:
    """From sums over ``count`` elements, kept in ``shards`` parts, to what a batch norm needs."""

    dtype: str
    shards: int
    channels: int
    count: int
    epsilon: float
    average_factor: float
    has_running: bool


@dataclass(frozen=True, slots=True)
class WindowNormProblem:
    """Response normalization over windows of ``window`` elements along each of ``axes``."""

    dtype: str
    x_shape: Shape
    axes: Shape
    window: int
    alpha: float
    beta: float
    k: float
    has_means: bool = False

    @property
    def before(self) -> int:
        """Elements of a window before its centre; of an even number one more is behind it."""
        return (self.window - 1) // 2

    @property
    def elements(self) -> int:
        """Elements of a window, those outside the tensor counted."""
        return int(self.window ** len(self.axes))

    @property
    def weight(self) -> float:
        """α/n^d, the weight of a square."""
        return self.alpha / self.elements


# --- From arguments to a problem ------------------------------------------------------------------


def first_shape(a: Arguments) -> Shape:
    """The shape of the first tensor: x or dy, which have the same."""
    return next(iter(a.tensors.values())).shape


def first_axis(a: Arguments) -> int:
    """The ``axis`` attribute, counted from the front."""
    axis = as_integer(a.attributes["axis"])
    return axis + len(first_shape(a)) if axis < 0 else axis


def batch_parameter_shape(a: Arguments) -> Shape:
    """Of scale, bias and statistics of a batch norm: (C,), or a sample's shape."""
    shape = first_shape(a)
    return shape[1:] if a.attributes.get("mode") == "per_activation" else shape[1:2]


def layer_parameter_shape(a: Arguments) -> Shape:
    """Of scale and bias: the normalised dims, behind the batch if the norm is adaptive."""
    shape, axis = first_shape(a), first_axis(a)
    return shape[:1] + shape[axis:] if a.attributes.get("adaptive") else shape[axis:]


def layer_statistics_shape(a: Arguments) -> Shape:
    return first_shape(a)[: first_axis(a)]


def group_count(a: Arguments) -> int:
    """The ``groups`` attribute, or one group for each channel."""
    return as_integer(a.attributes["groups"]) if "groups" in a.attributes else first_shape(a)[1]


def group_statistics_shape(a: Arguments) -> Shape:
    return (first_shape(a)[0], group_count(a))


def parameter_dtype(a: Arguments) -> str:
    """That of scale or bias, or where there are none of the statistics."""
    given = [a.tensors[name].dtype for name in ("scale", "bias") if name in a.tensors]
    return given[0] if given else statistics_dtype(next(iter(a.tensors.values())).dtype)


def _options(a: Arguments) -> dict[str, bool]:
    names = ("zero_centered_scale", "save_statistics", "bias_gradient")
    return {name: a.attributes[name] for name in names if name in a.attributes}


def _fused(a: Arguments) -> dict[str, Any]:
    """What a norm is fused to."""
    return {
        "activation": a.attributes.get("activation", "identity"),
        "has_residual": "z" in a.tensors or a.attributes.get("residual_gradient", False),
    }


def resolve_batch(a: Arguments) -> BatchNormProblem:
    """The batch norm that legal arguments describe."""
    shape, parameters = first_shape(a), batch_parameter_shape(a)
    spatial = len(parameters) == 1
    norm = NormProblem(
        dtype=next(iter(a.tensors.values())).dtype,
        x_shape=shape,
        view=shape,
        axes=(0, *range(2, len(shape))) if spatial else (0,),
        parameter_shape=parameters,
        parameter_view=(1, *parameters, *(1,) * (len(shape) - 1 - len(parameters))),
        parameter_dtype=parameter_dtype(a),
        statistics_shape=parameters,
        epsilon=as_real(a.attributes.get("epsilon", 0.0)),
        **_options(a),
    )
    return BatchNormProblem(
        norm,
        **_fused(a),
        average_factor=as_real(a.attributes.get("exponential_average_factor", 0.0)),
        has_running="running_mean" in a.tensors,
        fixed_statistics=a.attributes.get("statistics") == "fixed",
    )


def _resolve_layer(a: Arguments, *, centred: bool) -> NormProblem:
    shape, axis = first_shape(a), first_axis(a)
    adaptive = a.attributes.get("adaptive", False)
    batch = shape[:1] if adaptive else ()
    return NormProblem(
        dtype=next(iter(a.tensors.values())).dtype,
        x_shape=shape,
        view=shape,
        axes=tuple(range(axis, len(shape))),
        parameter_shape=layer_parameter_shape(a),
        parameter_view=(*batch, *(1,) * (axis - len(batch)), *shape[axis:]),
        parameter_dtype=parameter_dtype(a),
        statistics_shape=layer_statistics_shape(a),
        epsilon=as_real(a.attributes["epsilon"]),
        centred=centred,
        has_scale="scale" in a.tensors,
        **_options(a),
    )


def resolve_layer(a: Arguments) -> NormProblem:
    """The layer norm that legal arguments describe."""
    return _resolve_layer(a, centred=True)


def resolve_rms(a: Arguments) -> NormProblem:
    """The RMS norm that legal arguments describe."""
    return _resolve_layer(a, centred=False)


def resolve_group(a: Arguments) -> NormProblem:
    """The group norm that legal arguments describe."""
    shape, groups = first_shape(a), group_count(a)
    batch, channels, *extents = shape
    per_group = channels // max(1, groups)
    return NormProblem(
        dtype=next(iter(a.tensors.values())).dtype,
        x_shape=shape,
        view=(batch, groups, per_group, *extents),
        axes=tuple(range(2, len(shape) + 1)),
        parameter_shape=(channels,),
        parameter_view=(1, groups, per_group, *(1 for _ in extents)),
        parameter_dtype=parameter_dtype(a),
        statistics_shape=(batch, groups),
        epsilon=as_real(a.attributes["epsilon"]),
        has_scale="scale" in a.tensors,
        **_options(a),
    )


def resolve_instance(a: Arguments) -> FusedNormProblem:
    """The instance norm that legal arguments describe: a group norm of one channel a group."""
    return FusedNormProblem(resolve_group(a), **_fused(a))


def resolve_genstats(a: Arguments) -> GenstatsProblem:
    """The sums that legal arguments describe."""
    x = a.tensors["x"]
    return GenstatsProblem(x.dtype, x.shape, "shift" in a.tensors)


def resolve_finalize(a: Arguments) -> FinalizeProblem:
    """The statistics that legal arguments describe."""
    sums = a.tensors["sum"]
    return FinalizeProblem(
        dtype=sums.dtype,
        shards=sums.shape[0],
        channels=sums.shape[1],
        count=as_integer(a.attributes["count"]),
        epsilon=as_real(a.attributes["epsilon"]),
        average_factor=as_real(a.attributes["exponential_average_factor"]),
        has_running="running_mean" in a.tensors,
    )


def _resolve_window(a: Arguments, axes: Shape) -> WindowNormProblem:
    return WindowNormProblem(
        dtype=next(iter(a.tensors.values())).dtype,
        x_shape=first_shape(a),
        axes=axes,
        window=as_integer(a.attributes["window"]),
        alpha=as_real(a.attributes["alpha"]),
        beta=as_real(a.attributes["beta"]),
        k=as_real(a.attributes["k"]),
        has_means="means" in a.tensors,
    )


def resolve_lrn(a: Arguments) -> WindowNormProblem:
    """The normalization across channels that legal arguments describe."""
    return _resolve_window(a, (1,))


def resolve_divisive(a: Arguments) -> WindowNormProblem:
    """The normalization over spatial windows that legal arguments describe."""
    return _resolve_window(a, tuple(range(2, len(first_shape(a)))))
