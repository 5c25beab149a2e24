"""The domain of the pooling family that cases are drawn from, and its boundaries.

A :class:`Sample` is a forward pooling; each primitive of the family makes its own arguments of it.

As many draws are made whatever was drawn before, so that a simpler choice leaves the later ones in
place: a failure in three dims can then be reduced to one in one dim.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.spec.dtypes import DTYPES
from dnncanon.spec.pool_boundaries import PoolBoundary, pool_boundaries
from dnncanon.spec.pool_problem import GEOMETRY, PoolProblem, resolve
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.tensors import Shape, TensorType
from dnncanon.spec.windows import effective_extent, output_extents, resolve_padding

_MAX_DIMS = 3
_LONGEST_WINDOW = {1: 9, 2: 5, 3: 3}
_DEFAULTS = {attribute.name: attribute.default for attribute in GEOMETRY}

_KINDS = ("windows",) * 6 + ("adaptive", "adaptive", "global")


@dataclass(frozen=True, slots=True)
class Sample:
    """Extents and attributes of a pooling that satisfies every constraint."""

    batch: int
    channels: int
    input_size: Shape
    attributes: dict[str, Any]

    def tensor(self, dtype: str) -> TensorType:
        return TensorType(dtype, (self.batch, self.channels, *self.input_size))

    def problem(self, dtype: str) -> PoolProblem:
        return resolve(Arguments({"x": self.tensor(dtype)}, self.attributes))


# --- Arguments of each primitive ------------------------------------------------------------------
# ``extra`` are the attributes beyond the geometry that a boundary, or a draw, has for the primitive.

Extra = dict[str, Any]
Maker = Callable[[Sample, str, Extra], Arguments]


def _forward(sample: Sample, dtype: str, extra: Extra) -> Arguments:
    return Arguments({"x": sample.tensor(dtype)}, {**sample.attributes, **extra})


def _backward(sample: Sample, dtype: str, extra: Extra) -> Arguments:
    problem = sample.problem(dtype)
    attributes = {**sample.attributes, **extra, "input_size": problem.input_size}
    return Arguments({"dy": TensorType(dtype, problem.y_shape)}, attributes)


def _max_backward(sample: Sample, dtype: str, extra: Extra) -> Arguments:
    arguments = _backward(sample, dtype, extra)
    indices = replace(arguments.tensors["dy"], dtype="int32")
    return replace(arguments, tensors={**arguments.tensors, "indices": indices})


def _lp_backward(sample: Sample, dtype: str, extra: Extra) -> Arguments:
    dy = TensorType(dtype, sample.problem(dtype).y_shape)
    tensors = {"dy": dy, "x": sample.tensor(dtype), "y": dy}
    return Arguments(tensors, {**sample.attributes, **extra})


@dataclass(frozen=True, slots=True)
class _Family:
    """How a primitive makes its arguments, and what its attributes beyond the geometry may be."""

    make: Maker
    kind: str
    extra: dict[str, tuple[Any, ...]]


_INDICES = {"return_indices": (False, True, True)}
_INCLUDE = {"include_padding": (False, True)}
_NORMS = {"p": (2.0, 1.0, 3.0, 1.5, 2.5)}
_PRIMITIVES = {
    "pool_max_forward": _Family(_forward, "max", _INDICES),
    "pool_max_backward": _Family(_max_backward, "max", {}),
    "pool_average_forward": _Family(_forward, "average", _INCLUDE),
    "pool_average_backward": _Family(_backward, "average", _INCLUDE),
    "pool_lp_forward": _Family(_forward, "lp", _NORMS),
    "pool_lp_backward": _Family(_lp_backward, "lp", _NORMS),
}


# --- A pooling at random --------------------------------------------------------------------------


def _domain(family: _Family) -> Callable[[Draw, Scale, str], Arguments]:
    def drawn(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        sample = _sample(draw, scale)
        extra = {name: draw.choice(options) for name, options in family.extra.items()}
        return family.make(sample, dtype, extra)

    return drawn


def _sample(draw: Draw, scale: Scale) -> Sample:
    """Draw a pooling; every choice tends to the plainest: 1 channel, stride 1, no padding."""
    dims = draw.choice((1, 2, 3))
    kind = draw.choice(_KINDS)
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    channels = draw.integer(1, scale.channels)
    window = _per_dim(draw, dims, 1, _LONGEST_WINDOW[dims])
    input_size = _per_dim(draw, dims, 1, max(2, round(math.pow(scale.extent, 2 / (dims + 1)))))
    input_size = (
        *input_size[:-1],
        max(2, input_size[-1]),
    )  # most poolings of one cell would copy it
    stride = _per_dim(draw, dims, 1, 4)
    default_stride = draw.choice((False, False, False, True))
    dilation = _per_dim(draw, dims, 1, 3)
    dilated = draw.choice((False, True))
    padding = _padding(draw, dims)
    ceil_mode = draw.choice((False, False, True))
    output_size = _per_dim(draw, dims, 1, 6)
    if kind == "global":
        sample = Sample(batch, channels, input_size, _DEFAULTS)
    elif kind == "adaptive":
        # As many outputs as inputs would be a copy.
        last = output_size[-1] + (output_size[-1] == input_size[-1])
        adaptive = {**_DEFAULTS, "output_size": (*output_size[:-1], last)}
        sample = Sample(batch, channels, input_size, adaptive)
    else:
        window = (*window[:-1], max(2, window[-1]))  # a window of one cell would copy it
        dilation = dilation if dilated else (1,) * dims
        input_size = _grown_to_fit(input_size, window, padding, dilation)
        stride, dilation = _met(input_size, window, padding, stride, dilation)
        attributes = {
            **_DEFAULTS,
            "window": window,
            "stride": None if default_stride else stride,
            "padding": padding,
            "dilation": dilation,
            "ceil_mode": ceil_mode,
        }
        sample = Sample(batch, channels, input_size, attributes)
    return _limited(sample, scale)


def _per_dim(draw: Draw, dims: int, low: int, high: int) -> Shape:
    return tuple([draw.integer(low, high) for _ in range(_MAX_DIMS)][:dims])


def _padding(draw: Draw, dims: int) -> Any:
    kind = draw.choice(("valid", "symmetric", "asymmetric", "same"))
    pre, post = _per_dim(draw, dims, 0, 3), _per_dim(draw, dims, 0, 5)
    if kind in ("valid", "same"):
        return kind
    return tuple(zip(pre, pre if kind == "symmetric" else post, strict=True))


def _grown_to_fit(input_size: Shape, window: Shape, padding: Any, dilation: Shape) -> Shape:
    """Extents enlarged to where the dilated window fits."""
    if padding == "same":
        return input_size
    pairs = resolve_padding(padding, input_size, window, dilation, dilation)
    dims = zip(input_size, window, pairs, dilation, strict=True)
    return tuple(max(i, effective_extent(f, dil) - sum(pair)) for i, f, pair, dil in dims)


def _met(
    input_size: Shape, window: Shape, padding: Any, stride: Shape, dilation: Shape
) -> tuple[Shape, Shape]:
    """Stride and dilation, both 1 in dims where every window would step over the input, onto padding."""
    pairs = resolve_padding(padding, input_size, window, stride, dilation)
    outputs = output_extents(input_size, window, pairs, stride, dilation)
    dims = zip(input_size, window, pairs, stride, dilation, outputs, strict=True)
    met = [
        (u, dil)
        if any(0 <= o * u + t * dil - pre < i for o in range(count) for t in range(taps))
        else (1, 1)
        for i, taps, (pre, _), u, dil, count in dims
    ]
    return tuple(u for u, _ in met), tuple(dil for _, dil in met)


def _limited(sample: Sample, scale: Scale) -> Sample:
    """With a smaller batch and fewer channels, until the scale allows so many cells."""
    while sample.problem("float32").visits > scale.multiplications:
        if sample.batch > 1:
            sample = replace(sample, batch=sample.batch // 2)
        elif sample.channels > 1:
            sample = replace(sample, channels=sample.channels // 2)
        else:
            break
    return sample


# --- Boundaries -----------------------------------------------------------------------------------


def _boundaries(family: _Family) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for boundary in pool_boundaries():
            special = boundary.special_values
            if boundary.only in ("", family.kind) and (DTYPES[dtype].is_float or not special):
                arguments = _at(boundary, family, dtype)
                if not _beyond_int32(boundary, arguments):
                    yield Boundary(boundary.name, arguments, boundary.report, special)

    return of_dtype


def _at(boundary: PoolBoundary, family: _Family, dtype: str) -> Arguments:
    geometry = {n: v for n, v in boundary.attributes.items() if n in _DEFAULTS}
    n, c, *extents = boundary.x
    sample = Sample(n, c, tuple(extents), {**_DEFAULTS, **geometry})
    # Of the further attributes the last option is the fullest: with indices, with padding counted, p = 2.5.
    extra = {
        name: boundary.attributes.get(name, options[-1]) for name, options in family.extra.items()
    }
    arguments = family.make(sample, dtype, extra)
    first, tensor = next(iter(arguments.tensors.items()))
    return arguments.with_tensor(first, strides=boundary.strides(tensor.shape))


def _beyond_int32(boundary: PoolBoundary, arguments: Arguments) -> bool:
    """Whether indices are asked for that int32 cannot hold."""
    asked = "indices" in arguments.tensors or arguments.attributes.get("return_indices", False)
    return bool(asked) and math.prod(boundary.x[2:]) >= 2**31


# --- Data -----------------------------------------------------------------------------------------


def within_windows(p: PoolProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Indices of cells that the windows have, made of any integers; some are −1, of no cell.

    An integer is read as a cell in each spatial dim, digit by digit.
    """
    rest = data["indices"].astype(np.int64)
    flat, inside = np.zeros_like(rest), np.ones(rest.shape, np.bool_)
    strides = [math.prod(p.input_size[d + 1 :]) for d in range(len(p.windows))]
    for dim, (w, stride) in enumerate(zip(p.windows, strides, strict=True)):
        o = np.arange(w.outputs).reshape(-1, *(1,) * (len(p.windows) - 1 - dim))
        cell = w.first(o) + rest % np.maximum(w.length(o), 1) * w.dilation
        rest = rest // np.maximum(w.length(o), 1)
        inside &= (cell >= 0) & (cell < w.inputs)
        flat += cell * stride
    return {**data, "indices": np.where(inside & (rest % 8 != 7), flat, -1).astype(np.float64)}


def rows_of_minus_infinity(p: PoolProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Where there is a −Inf its whole row is made so, for a maximum of −Inf has an index too."""
    x = data["x"]
    return {"x": np.where((x == -np.inf).any(axis=-1, keepdims=True), -np.inf, x)}


def plausible_norms(p: PoolProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Norms that no cell exceeds, and every seventh 0, as of a window of zeros."""
    x, y = np.abs(data["x"]), data["y"]
    finite = np.where(np.isfinite(x), x, 0.0)
    largest = finite.max(axis=tuple(range(2, x.ndim)), keepdims=True, initial=0.0)
    zero = np.arange(y.size).reshape(y.shape) % 7 == 3
    return {**data, "y": np.where(zero, 0.0, y + largest)}


DOMAINS = {name: _domain(family) for name, family in _PRIMITIVES.items()}
BOUNDARIES = {name: _boundaries(family) for name, family in _PRIMITIVES.items()}
