"""Pooling: maximum, average and p-norm over windows, adaptive and global pooling, and their gradients.

Symbols: N batch, C channels, I input extents, F window extents, O output extents, one of each for every
spatial dim; stride u, dilation l, padding (pre, post).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dnncanon.spec import pool_domain
from dnncanon.spec.attributes import Flag, PerDim, Real, as_real, padding_pairs, per_dim, shown
from dnncanon.spec.constraints import (
    legal_padding,
    one_dtype,
    positive_per_dim,
    spatial_dims,
    spatial_ranks,
)
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.pool_problem import (
    GEOMETRY,
    INPUT_SIZE,
    PoolProblem,
    geometry,
    input_extents,
    output_extents_of,
    resolve,
)
from dnncanon.spec.primitive import (
    Arguments,
    Attribute,
    Constraint,
    DTypeRow,
    Primitive,
    TensorSpec,
    declare,
)
from dnncanon.spec.tensors import TensorType
from dnncanon.spec.values import POSITIVE, Values
from dnncanon.spec.windows import effective_extent

__all__ = [
    "PoolProblem",
    "pool_average_backward",
    "pool_average_forward",
    "pool_lp_backward",
    "pool_lp_forward",
    "pool_max_backward",
    "pool_max_forward",
]

MAX_INDEX = 2**31 - 1

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz")),
    DTypeRow("float16", ("ieee", "ftz")),
    DTypeRow("bfloat16", ("ieee", "ftz")),
)
POWERS = tuple(
    DTypeRow(row.dtype, (*row.numerics, *(("fast_math",) if row.dtype != "float64" else ())))
    for row in DTYPES
)
CHOSEN = tuple(
    DTypeRow(dtype, ("exact",))
    for dtype in ("float64", "float32", "float16", "bfloat16", "int8", "uint8")
)


# --- Constraints ----------------------------------------------------------------------------------
# Each builder returns one rule with its check and a generator of arguments that break it. A check may
# rely on the rules before it, so the order in which a primitive lists them matters.


def _unless_none(rule: Constraint, name: str) -> Constraint:
    """The rule for an attribute that may be absent."""

    def check(a: Arguments) -> str | None:
        return None if a.attributes[name] is None else rule.check(a)

    return replace(rule, text=f"{name}, if given: {rule.text}", check=check)


def _flag(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        if isinstance(value, bool):
            return None
        return f"{name}={shown(value)}; pass {name}=True or {name}=False"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (2, None, "true"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is True or False.", AttributeValueError, check, violate)


def _extents(name: str) -> Constraint:
    """An attribute that names extents, >= 0."""

    def check(a: Arguments) -> str | None:
        try:
            values = per_dim(a.attributes[name], spatial_dims(a))
        except ValueError as wrong:
            return f"{name}={wrong}; pass {PerDim().describes}"
        if min(values) >= 0:
            return None
        return f"{name}={shown(a.attributes[name])} has an entry below 0; pass integers >= 0"

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = spatial_dims(a)
        for value in (-1, (1,) * (dims + 1), (2.5,) * dims, "1"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} >= 0, for each spatial dim.", AttributeValueError, check, violate)


def _adaptive_alone() -> Constraint:
    text = "output_size is given alone: without window, stride, padding, dilation and ceil_mode."

    def check(a: Arguments) -> str | None:
        given, dims = a.attributes, spatial_dims(a)
        if given["output_size"] is None:
            return None
        plain = {
            "window": given["window"] is None,
            "stride": given["stride"] is None,
            "padding": _no_padding(given["padding"], dims),
            "dilation": set(per_dim(given["dilation"], dims)) == {1},
            "ceil_mode": not given["ceil_mode"],
        }
        for name, absent in plain.items():
            if not absent:
                return (
                    f"output_size={shown(given['output_size'])} is given together with "
                    f"{name}={shown(given[name])}; adaptive windows follow from output_size: pass one of both"
                )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        if a.attributes["output_size"] is None:
            return
        for name, value in (("window", 1), ("stride", 2), ("dilation", 2), ("ceil_mode", True)):
            yield a.with_attributes(**{name: value})
        for padding in ("same", ((0, 1),) * spatial_dims(a)):
            yield a.with_attributes(padding=padding)

    return Constraint(text, AttributeValueError, check, violate)


def _no_padding(value: Any, dims: int) -> bool:
    if isinstance(value, str):
        return value == "valid"
    return set(padding_pairs(value, dims)) == {(0, 0)}


def _window_fits() -> Constraint:
    text = "O >= 1: a window fits into I with its padding (with ceil_mode, begins in it)."

    def check(a: Arguments) -> str | None:
        if a.attributes["output_size"] is not None:
            return None
        size = input_extents(a)
        if a.attributes["window"] is None and min(size) == 0:
            return f"window=None is global pooling, but I={size} is empty; pass window"
        if min(output_extents_of(a)) >= 1:
            return None
        g = geometry(a)
        covers = tuple(map(effective_extent, g.window, g.dilation))
        return (
            f"window={shown(a.attributes['window'])} with dilation={g.dilation} covers {covers}, more than "
            f"I={size} with "
            f"padding={g.padding}; pad more, dilate less or pass a smaller window"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if a.attributes["output_size"] is None:
            far = 4 * max(1, *input_extents(a)) + 1000
            yield a.with_attributes(window=far, padding=0, ceil_mode=False)
            yield a.with_attributes(window=2, dilation=far, padding="valid", ceil_mode=False)

    return Constraint(text, ShapeError, check, violate)


def _indexable() -> Constraint:
    text = f"Indices are int32: the spatial extents I have at most {MAX_INDEX} elements."

    def check(a: Arguments) -> str | None:
        size = input_extents(a)
        if not a.attributes.get("return_indices", True) or math.prod(size) <= MAX_INDEX:
            return None
        name = "I" if "x" in a.tensors else "input_size"
        return (
            f"{name}={size} has {math.prod(size)} elements, more than int32 can number; "
            "pass the input in parts"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        dims = spatial_dims(a)
        if "x" in a.tensors and a.attributes["output_size"] is None:
            _, c, *rest, last = a.tensors["x"].shape
            longer = (0, c, *rest, last + MAX_INDEX)  # an empty batch needs no memory
            yield a.with_tensor("x", shape=longer, strides=None).with_attributes(
                return_indices=True
            )
        if "input_size" in a.attributes:
            adaptive = {attribute.name: attribute.default for attribute in GEOMETRY}
            adaptive["output_size"] = a.tensors["dy"].shape[2:]
            longest = (*(1,) * (dims - 1), MAX_INDEX + 1)
            yield a.with_attributes(**adaptive, input_size=longest)

    return Constraint(text, ShapeError, check, violate)


def _with_indices(rows: tuple[DTypeRow, ...]) -> Constraint:
    supported = [row.dtype for row in rows]
    text = f"dy is {', '.join(supported)}; indices are int32."

    def check(a: Arguments) -> str | None:
        dy, indices = a.tensors["dy"].dtype, a.tensors["indices"].dtype
        if dy not in supported:
            return f"dy is {dy}; convert it to one of {', '.join(supported)}"
        if indices != "int32":
            return f"indices are {indices}; convert them to int32"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor("dy", dtype="int32")
        for dtype in ("int64", "float32"):
            yield a.with_tensor("indices", dtype=dtype)

    return Constraint(text, DTypeError, check, violate)


def _dy_extents() -> Constraint:
    def check(a: Arguments) -> str | None:
        got, expected = a.tensors["dy"].shape[2:], output_extents_of(a)
        if got == expected:
            return None
        return (
            f"dy has spatial extents {got}, but I={input_extents(a)} is pooled to O={expected}; "
            f"pass dy of these extents"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *extents = a.tensors["dy"].shape
        yield a.with_tensor("dy", shape=(n, c, *(e + 1 for e in extents)), strides=None)

    text = "dy has the extents O of the forward pooling."
    return Constraint(text, ShapeError, check, violate)


def _like_dy(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        got, dy = a.tensors[name].shape, a.tensors["dy"].shape
        if got == dy:
            return None
        return f"{name} has shape {got}, but dy has {dy}; pass {name} as the forward pooling put it out"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, *rest = a.tensors[name].shape
        yield a.with_tensor(name, shape=(n + 1, *rest), strides=None)

    return Constraint(f"{name} has the shape of dy.", ShapeError, check, violate)


def _batch_and_channels() -> Constraint:
    def check(a: Arguments) -> str | None:
        x, dy = a.tensors["x"].shape, a.tensors["dy"].shape
        if x[:2] == dy[:2]:
            return None
        return f"x has shape {x}, but dy has {dy}; pass tensors of one N and one C"

    def violate(a: Arguments) -> Iterator[Arguments]:
        n, c, *rest = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(n + 1, c, *rest), strides=None)
        yield a.with_tensor("x", shape=(n, c + 1, *rest), strides=None)

    return Constraint("x and dy have one N and one C.", ShapeError, check, violate)


def _norm() -> Constraint:
    def check(a: Arguments) -> str | None:
        value = a.attributes["p"]
        try:
            if as_real(value) >= 1.0:
                return None
        except ValueError as wrong:
            return f"p={wrong}; pass a finite number >= 1"
        return f"p={shown(value)} is below 1, where there is no norm; pass p >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (0.5, 0.0, -1.0, math.nan, math.inf, "2"):
            yield a.with_attributes(p=value)

    return Constraint("p is a finite number >= 1.", AttributeValueError, check, violate)


_WINDOWS = (
    _unless_none(positive_per_dim("window"), "window"),
    _unless_none(positive_per_dim("stride"), "stride"),
    legal_padding(),
    positive_per_dim("dilation"),
    _flag("ceil_mode"),
    _unless_none(_extents("output_size"), "output_size"),
)
_FORWARD = (*_WINDOWS, _adaptive_alone(), _window_fits())
_BACKWARD = (*_WINDOWS, _extents("input_size"), _adaptive_alone(), _window_fits(), _dy_extents())


# --- Declarations ---------------------------------------------------------------------------------

_WINDOW_DECISIONS = (
    "Logical order is (N, C, spatial…) in any memory layout: NHWC is a stride pattern. Inputs may have "
    "gaps and stride 0; the elements of an output have addresses of their own.",
    "Without window and output_size the window is the whole input: global pooling. cuDNN has no such mode.",
    "output_size is adaptive pooling by PyTorch's rule; its windows overlap where O does not divide I. "
    "cuDNN leaves it to frameworks.",
    "stride defaults to the window, as in PyTorch; ONNX's default is 1.",
    "ceil_mode adds at most one window to each dim, and only if that begins before the padding behind the "
    'input (PyTorch, ONNX 19); with padding="same", where nothing is left over, it adds none.',
    "Padding may be as large as the window and larger, as cuDNN's may: a window may then lie wholly in "
    "the padding. PyTorch forbids more than half a window.",
    "Zero sizes are legal for N, C, O of adaptive pooling and, where padding makes room for the window, I.",
    "A window larger than the padded input is an error, not an empty output.",
    "There is no alpha and beta: functions are pure.",
)
_ADDING_DECISIONS = (
    "Sums are kept at float32 or better, in any order, and rounded once, to nearest even.",
    "NaN and Inf spread to the outputs whose windows hold them and to no others.",
)
_COVERED = (
    "Cells that no window covers get 0; cells that several cover get the sum. It is deterministic."
)
_NORM_AT_ZERO = (
    "Where a window's norm y is 0 its gradient is 0, not 0/0 (PyTorch since 0.4). For p = 1 it is sign(x), "
    "which is 0 at 0, and y is not read."
)
_POWER_UNDERFLOW = (
    "Whether an Inf of dy makes an Inf or a NaN of a power that underflows, Inf·0, is left open."
)
_X = TensorSpec("x", "N C *I", "input")
_Y = TensorSpec("y", "N C *O", "output")
_DY = TensorSpec("dy", "N C *O", "gradient of the loss by y")
_DX = TensorSpec("dx", "N C *I", "gradient of the loss by x")
_P = Attribute("p", Real(), "Exponent of the norm, >= 1.", 2.0)
_INCLUDE = Attribute(
    "include_padding", Flag(), "Whether padding counts in the divisor, as so many zeros.", False
)
_OF_WINDOWS = """
W(o) are the cells i = o·u + t·l − pre, 0 <= t < F, that lie in the input, for each spatial dim;
with output_size those from ⌊o·I/O⌋ to ⌈(o+1)·I/O⌉ − 1.        O = ⌊(I + pre + post − l·(F−1) − 1) / u⌋ + 1"""


def _y(p: PoolProblem) -> TensorType:
    return TensorType(p.dtype, p.y_shape)


def _dx(p: PoolProblem) -> tuple[TensorType]:
    return (TensorType(p.dtype, p.x_shape),)


def _primitive(
    name: str,
    *,
    infer: Callable[[PoolProblem], tuple[TensorType | None, ...]],
    dtypes: tuple[DTypeRow, ...] = DTYPES,
    **rest: Any,
) -> Primitive[PoolProblem]:
    """What all six have in common: family, resolution, and costs that follow from the windows."""
    forward = name.endswith("forward")
    return declare(
        Primitive(
            name=name,
            family="pool",
            dtypes=dtypes,
            resolve=resolve,
            infer=infer,
            flops=lambda p: p.visits,
            reduction_length=lambda p: p.taps if forward else p.overlap,
            domain=pool_domain.DOMAINS[name],
            boundaries=pool_domain.BOUNDARIES[name],
            **rest,
        )
    )


pool_max_forward = _primitive(
    "pool_max_forward",
    summary="Maximum over windows, and where it was.",
    formula="y[n, c, o] = x[n, c, k]        indices[n, c, o] = k, flat among the input's spatial extents"
    "\nwith k the first cell of W(o), in logical order, at which x is largest." + _OF_WINDOWS,
    inputs=(_X,),
    outputs=(
        _Y,
        TensorSpec(
            "indices", "N C *O", "flat spatial index of the maximum, −1 for none", optional=True
        ),
    ),
    attributes=(
        *GEOMETRY,
        Attribute("return_indices", Flag(), "Whether indices are put out.", False),
    ),
    dtypes=CHOSEN,
    constraints=(
        spatial_ranks("x"),
        one_dtype(CHOSEN),
        *_FORWARD,
        _flag("return_indices"),
        _indexable(),
    ),
    decisions=(
        *_WINDOW_DECISIONS,
        "Of equal values the first in logical order wins (−0 equals 0). cuDNN does not say which.",
        "NaN is larger than every number, and of several the first wins: y is NaN and indices tell where. "
        "This is cuDNN's PROPAGATE_NAN, made definite.",
        "Padding never wins, not even over −Inf. A window wholly in the padding gives −Inf (the least number "
        "of an integer type) and index −1; cuDNN's legacy API gives the lowest finite number.",
        "Indices are int32, flat over the spatial extents, as PyTorch's are; cuDNN does not document its.",
    ),
    infer=lambda p: (_y(p), TensorType("int32", p.y_shape) if p.indices else None),
    consistent=pool_domain.rows_of_minus_infinity,
    source="cuDNN cudnnPoolingForward, CUDNN_POOLING_MAX; graph API RESAMPLE_FWD, MAXPOOL",
)

pool_max_backward = _primitive(
    "pool_max_backward",
    summary="Gradient of the maximum over windows: dy goes to where the maximum was.",
    formula="dx[n, c, i] = Σ_{o : i ∈ W(o), indices[n, c, o] = i} dy[n, c, o]" + _OF_WINDOWS,
    inputs=(
        _DY,
        TensorSpec(
            "indices",
            "N C *O",
            "indices of pool_max_forward",
            values=Values("integer", lambda p: max(1, 8 * p.taps), 0),
        ),
    ),
    outputs=(_DX,),
    attributes=(*GEOMETRY, INPUT_SIZE),
    constraints=(
        spatial_ranks("dy", "indices"),
        _with_indices(DTYPES),
        *_BACKWARD,
        _like_dy("indices"),
        _indexable(),
    ),
    decisions=(
        *_WINDOW_DECISIONS,
        *_ADDING_DECISIONS,
        _COVERED,
        "Indices are taken, not x and y: what was changed in place after the forward pass, or occurs twice in "
        "a window, then misleads nobody. cuDNN's legacy API compares x with y.",
        "An index that is not a cell of its window, such as −1, adds nothing.",
    ),
    infer=_dx,
    consistent=pool_domain.within_windows,
    source="cuDNN cudnnPoolingBackward, CUDNN_POOLING_MAX_DETERMINISTIC; graph API RESAMPLE_BWD",
)

pool_average_forward = _primitive(
    "pool_average_forward",
    summary="Average over windows.",
    formula="y[n, c, o] = Σ_{i ∈ W(o)} x[n, c, i] / max(1, count(o))"
    "\ncount(o) = |W(o)|; with include_padding all cells of the window within the padded input."
    + _OF_WINDOWS,
    inputs=(_X,),
    outputs=(_Y,),
    attributes=(*GEOMETRY, _INCLUDE),
    constraints=(spatial_ranks("x"), one_dtype(DTYPES), *_FORWARD, _flag("include_padding")),
    decisions=(
        *_WINDOW_DECISIONS,
        *_ADDING_DECISIONS,
        "A window wholly in the padding gives 0, not 0/0. cuDNN does not say.",
        "What ceil_mode lets hang over the padding never counts (PyTorch, ONNX 19).",
    ),
    infer=lambda p: (_y(p),),
    source="cuDNN cudnnPoolingForward, CUDNN_POOLING_AVERAGE_COUNT_…; graph API RESAMPLE_FWD, AVGPOOL_…",
)

pool_average_backward = _primitive(
    "pool_average_backward",
    summary="Gradient of the average over windows.",
    formula="dx[n, c, i] = Σ_{o : i ∈ W(o)} dy[n, c, o] / count(o)"
    "\ncount(o) = |W(o)|; with include_padding all cells of the window within the padded input."
    + _OF_WINDOWS,
    inputs=(_DY,),
    outputs=(_DX,),
    attributes=(*GEOMETRY, _INCLUDE, INPUT_SIZE),
    constraints=(spatial_ranks("dy"), one_dtype(DTYPES), *_BACKWARD, _flag("include_padding")),
    decisions=(*_WINDOW_DECISIONS, *_ADDING_DECISIONS, _COVERED),
    infer=_dx,
    source="cuDNN cudnnPoolingBackward, CUDNN_POOLING_AVERAGE_COUNT_…; graph API RESAMPLE_BWD",
)

pool_lp_forward = _primitive(
    "pool_lp_forward",
    summary="p-norm over windows.",
    formula="y[n, c, o] = (Σ_{i ∈ W(o)} |x[n, c, i]|^p)^(1/p)" + _OF_WINDOWS,
    inputs=(_X,),
    outputs=(_Y,),
    attributes=(*GEOMETRY, _P),
    dtypes=POWERS,
    constraints=(spatial_ranks("x"), one_dtype(POWERS), *_FORWARD, _norm()),
    decisions=(
        *_WINDOW_DECISIONS,
        *_ADDING_DECISIONS,
        "It is the norm of the absolute values (ONNX LpPool). PyTorch raises x itself to p, which for odd p "
        "lets signs cancel.",
        "A window wholly in the padding gives 0.",
        "Powers are formed as they stand, at float32 or better: they may over- and underflow where the norm "
        "would not.",
    ),
    infer=lambda p: (_y(p),),
    source="ONNX LpPool, GlobalLpPool; cuDNN has none",
)

pool_lp_backward = _primitive(
    "pool_lp_backward",
    summary="Gradient of the p-norm over windows.",
    formula="dx[n, c, i] = sign(x[n, c, i]) · Σ_{o : i ∈ W(o), y[n, c, o] ≠ 0} "
    "dy[n, c, o] · (|x[n, c, i]| / y[n, c, o])^(p−1)" + _OF_WINDOWS,
    inputs=(
        replace(_DY, special_values=False),
        _X,
        replace(_Y, doc="output of pool_lp_forward", values=POSITIVE),
    ),
    outputs=(_DX,),
    attributes=(*GEOMETRY, _P),
    dtypes=POWERS,
    constraints=(
        spatial_ranks("dy", "x", "y"),
        one_dtype(POWERS),
        *_FORWARD,
        _dy_extents(),
        _batch_and_channels(),
        _like_dy("y"),
        _norm(),
    ),
    decisions=(*_WINDOW_DECISIONS, *_ADDING_DECISIONS, _COVERED, _NORM_AT_ZERO, _POWER_UNDERFLOW),
    infer=_dx,
    consistent=pool_domain.plausible_norms,
    source="gradient of ONNX LpPool; cuDNN has none",
)
