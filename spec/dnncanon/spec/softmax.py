"""Softmax and its logarithm over any axes, with an optional mask, and their gradients.

A *row* holds the elements that lie along the axes: cuDNN's MODE_CHANNEL is axes=1, its MODE_INSTANCE
axes=(1, 2, 3).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnncanon.spec.attributes import Choice, Flag
from dnncanon.spec.axes import (
    axes_attribute,
    drawn_axes,
    kept_shape,
    legal_axes,
    resolved_axes,
    row_length,
    with_long_rows,
)
from dnncanon.spec.constraints import one_of
from dnncanon.spec.elementwise import any_rank, drawn_shape, same_shape, true_or_false
from dnncanon.spec.errors import DTypeError, ShapeError
from dnncanon.spec.primitive import (
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
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides
from dnncanon.spec.values import BOOLEAN

VARIANTS = ("accurate", "log", "fast")

FAST_LIMIT = 64.0
"""Magnitude of x that "fast" is for: e^64 is 6.2e27, and sums of 10^10 of them are float32 numbers."""

DTYPES = (
    DTypeRow("float64", ("ieee",)),
    DTypeRow("float32", ("ieee", "ftz", "fast_math")),
    DTypeRow("float16", ("ieee", "ftz", "fast_math")),
    DTypeRow("bfloat16", ("ieee", "ftz", "fast_math")),
)


@dataclass(frozen=True, slots=True)
class SoftmaxProblem:
    """One softmax, forward or backward: ``axes`` are ascending, none negative."""

    dtype: str
    shape: Shape
    axes: Shape
    variant: str
    masked: bool
    stats: bool = False

    @property
    def log(self) -> bool:
        return self.variant == "log"

    @property
    def length(self) -> int:
        """Elements of a row."""
        return row_length(self.shape, self.axes)

    @property
    def stats_shape(self) -> Shape:
        return kept_shape(self.shape, self.axes)


# --- From arguments to a problem ------------------------------------------------------------------


def _resolve(a: Arguments) -> SoftmaxProblem:
    first, given = next(iter(a.tensors.values())), a.attributes
    return SoftmaxProblem(
        dtype=first.dtype,
        shape=first.shape,
        axes=resolved_axes(given["axes"], first.rank),
        variant=given["variant"],
        masked="mask" in a.tensors,
        stats=given.get("return_stats", False),
    )


def stats_dtype(dtype: str) -> str:
    """float32, or float64 for float64: as cuDNN's."""
    return "float64" if dtype == "float64" else "float32"


def _forward_outputs(p: SoftmaxProblem) -> tuple[TensorType | None, ...]:
    stats = TensorType(stats_dtype(p.dtype), p.stats_shape)
    return TensorType(p.dtype, p.shape), stats if p.stats else None


def _within_the_promise(p: SoftmaxProblem, data: dict[str, Any]) -> dict[str, Any]:
    """With "fast", x of the magnitude that it is for."""
    if p.variant != "fast":
        return data
    return {**data, "x": np.clip(data["x"], -FAST_LIMIT, FAST_LIMIT)}


def _outputs_of_softmax(p: SoftmaxProblem, data: dict[str, Any]) -> dict[str, Any]:
    """y as softmax puts it out: 0 to 1, or with "log" not above 0."""
    magnitude = np.abs(data["y"])
    return {**data, "y": -magnitude if p.log else np.minimum(magnitude, 1.0)}


# --- Constraints ----------------------------------------------------------------------------------


def _dtypes(*names: str) -> Constraint:
    supported = [row.dtype for row in DTYPES]
    text = f"{' and '.join(names)}: one dtype of {', '.join(supported)}; mask is bool."

    def check(a: Arguments) -> str | None:
        dtypes = {name: a.tensors[name].dtype for name in names}
        if len(set(dtypes.values())) > 1 or dtypes[names[0]] not in supported:
            shown = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
            return f"{shown}; convert to one of {', '.join(supported)}"
        mask = a.tensors.get("mask")
        if mask is not None and mask.dtype != "bool":
            return f"mask is {mask.dtype}; pass mask != 0"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor(names[0], dtype="int32")
        if len(names) > 1:
            other = "float32" if a.tensors[names[1]].dtype != "float32" else "float64"
            yield a.with_tensor(names[1], dtype=other)
        if "mask" in a.tensors:
            yield a.with_tensor("mask", dtype="uint8")

    return Constraint(text, DTypeError, check, violate)


def _mask_broadcasts(first: str) -> Constraint:
    text = f"mask has the rank of {first}, and in each dim its extent or 1."

    def check(a: Arguments) -> str | None:
        if "mask" not in a.tensors:
            return None
        mask, shape = a.tensors["mask"].shape, a.tensors[first].shape
        if len(mask) == len(shape) and all(m in (1, n) for m, n in zip(mask, shape, strict=True)):
            return None
        return f"mask has shape {mask}, which does not broadcast to {shape}; pass one that does"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if "mask" in a.tensors:
            shape = a.tensors[first].shape
            yield a.with_tensor("mask", shape=(*shape, 1), strides=None)
            yield a.with_tensor("mask", shape=(shape[0] + 2, *shape[1:]), strides=None)

    return Constraint(text, ShapeError, check, violate)


# --- The domain -----------------------------------------------------------------------------------


def _drawn(draw: Draw, scale: Scale, dtype: str, *names: str) -> Arguments:
    shape = drawn_shape(draw, scale)
    axes, variant = drawn_axes(draw, len(shape)), draw.choice(VARIANTS)
    masked, whole = draw.choice((False, False, True)), draw.choice((True, False))
    ones = [draw.choice((False, True)) for _ in range(5)]
    shape = with_long_rows(shape, axes, scale.multiplications)
    tensors = {name: TensorType(dtype, shape) for name in names}
    if masked:
        some = tuple(1 if one else n for n, one in zip(shape, ones, strict=False))
        tensors["mask"] = TensorType("bool", shape if whole else some)
    return Arguments(tensors, {"axes": axes, "variant": variant})


def _draw_forward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    stats = draw.choice((False, True))
    return _drawn(draw, scale, dtype, "x").with_attributes(return_stats=stats)


def _draw_backward(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    return _drawn(draw, scale, dtype, "dy", "y")


def _layouts() -> Iterator[tuple[str, Shape, Shape, Shape | None]]:
    """Name, shape, axes and strides around the limits of implementations, the cheapest first."""
    yield "rows of nothing", (3, 0), (1,), None
    yield "no rows", (0, 3), (1,), None
    yield "rows of one", (3, 1, 5), (1,), None
    yield "MODE_CHANNEL", (2, 5, 3, 4), (1,), None
    yield "MODE_INSTANCE", (2, 5, 3, 4), (1, 2, 3), None
    yield "MODE_CHANNEL, channels last", (2, 19, 3, 4), (1,), channels_last_strides((2, 19, 3, 4))
    yield (
        "MODE_INSTANCE, channels last",
        (2, 8, 5, 4),
        (1, 2, 3),
        channels_last_strides((2, 8, 5, 4)),
    )
    yield "eight dims", (2, 1, 2, 3, 1, 2, 2, 2), (0, 3, 5, 7), None
    yield "eight dims, transposed", (2,) * 8, (0, 2, 4, 6), (1, 2, 4, 8, 16, 32, 64, 128)
    yield "gaps everywhere", (2, 3, 5), (0, 2), (2 * 7 * 13, 2 * 13, 2)
    yield "one element repeated", (3, 20), (1,), (0, 0)
    yield "rows repeated", (3, 20), (1,), (0, 1)
    for size in (7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025):
        yield f"rows of {size}", (3, size), (1,), None
        yield f"rows of {size}, {size} apart", (size, 3), (0,), None
        if size < 256:
            yield f"rows of {size} with gaps", (2, size), (1,), (size + 3, 1)
    yield "one row of 4099", (4099,), (0,), None
    yield "one row of 8192", (8192,), (0,), None
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield f"one row of {size}", (size,), (0,), None
        yield f"{size} rows", (size, 2), (1,), None
        yield f"{size} rows in the last dim", (2, size), (0,), None
    yield "offsets beyond 32 bits", (2, 3), (1,), (2**31 + 5, 1)
    yield "one row of more than 2^31", (2**31 + 1,), (0,), None
    yield "more than 2^31 elements in rows of 2", (2**30 + 1, 2), (1,), None


def _boundaries(first: str, *others: str, **flags: bool) -> Any:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        for number, (name, shape, axes, strides) in enumerate(_layouts()):
            tensors = {first: TensorType(dtype, shape, strides)}
            tensors |= {other: TensorType(dtype, shape) for other in others}
            attributes = {"axes": axes, "variant": VARIANTS[number % 2], **flags}
            yield Boundary(name, Arguments(tensors, attributes))
        for name, shape in (
            ("whole", (4, 6)),
            ("one for each row", (4, 1)),
            ("one for all", (1, 6)),
        ):
            for variant in VARIANTS[:2]:
                tensors = {n: TensorType(dtype, (4, 6)) for n in (first, *others)}
                tensors["mask"] = TensorType("bool", shape)
                attributes = {"axes": (1,), "variant": variant, **flags}
                yield Boundary(f"{variant}, mask: {name}", Arguments(tensors, attributes))

    return of_dtype


# --- Declarations ---------------------------------------------------------------------------------

_ATTRIBUTES = (
    axes_attribute("The dims of a row.", (-1,)),
    Attribute(
        "variant",
        Choice(VARIANTS),
        f"The logarithm or not; fast is accurate for |x| <= {FAST_LIMIT:g}, and unspecified for other x.",
        "accurate",
    ),
)
_MASK = TensorSpec(
    "mask", "*M", "bool, broadcast to x: True where an element takes part", True, values=BOOLEAN
)
_DECISIONS = (
    "Rows are over any axes, by default the last; cuDNN has axes=1 (MODE_CHANNEL) and all but the first dim "
    "(MODE_INSTANCE). In logical order (N, C, spatial…) and any memory layout.",
    "variant is cuDNN's algorithm: accurate, log, fast. (algorithm chooses kernels here.) fast may leave out "
    f"the subtraction of the maximum. That is a promise by the caller that |x| <= {FAST_LIMIT:g}, where it "
    "makes no difference but of rounding; beyond, and for Inf, its results are unspecified, and no test asks "
    "for them.",
    "There is no scaling of the result and no sum with the old one, cuDNN's alpha and beta: functions are "
    "pure.",
    "A row, or what a mask leaves of it, that holds NaN or +Inf or nothing but −Inf gives NaN, as Inf − Inf "
    "does in cuDNN and PyTorch: it has no limit. −Inf beside finite x gives 0, or −Inf with log.",
    "Rows may have one element, which gives 1 (log: 0), and none, which gives none.",
    "What a mask leaves out is not read: its NaN does not show, its y is 0 (log: −Inf) and its dx is 0. A row "
    "of which a mask leaves nothing is 0 (log: −Inf) throughout, as in attention, not NaN.",
)

softmax_forward = declare(
    Primitive(
        name="softmax_forward",
        family="softmax",
        summary="Softmax of each row, or its logarithm.",
        formula="""y_i = e^(x_i − m) / s                     with m = max x_j, s = Σ_j e^(x_j − m) over the row
log: y_i = x_i − m − ln s                 stats = m + ln s""",
        inputs=(TensorSpec("x", "*I", "input"), _MASK),
        outputs=(
            TensorSpec("y", "*I", "output"),
            TensorSpec(
                "stats",
                "*O",
                "ln Σ e^x of each row, extent 1 in the axes; float32 or float64",
                optional=True,
            ),
        ),
        attributes=(
            *_ATTRIBUTES,
            Attribute("return_stats", Flag(), "Whether stats are put out.", False),
        ),
        dtypes=DTYPES,
        constraints=(
            any_rank("x"),
            _dtypes("x"),
            legal_axes("x", may_be_none=False),
            one_of("variant", VARIANTS),
            _mask_broadcasts("x"),
            true_or_false("return_stats"),
        ),
        decisions=(
            *_DECISIONS,
            "stats is the natural logarithm, not rounded to x's dtype (cuDNN's STATS); of a row of +Inf it is "
            "+Inf, and of one of −Inf, of nothing or masked as a whole −Inf. Maximum and sum apart, and "
            "cuDNN's sink, are attention's.",
            "No axes, (), are legal: every element is a row.",
        ),
        resolve=_resolve,
        infer=_forward_outputs,
        flops=lambda p: 4 * math.prod(p.shape),
        reduction_length=lambda p: max(1, p.length),
        domain=_draw_forward,
        boundaries=_boundaries("x", return_stats=True),
        consistent=_within_the_promise,
        source="cuDNN cudnnSoftmaxForward, CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR",
    )
)

softmax_backward = declare(
    Primitive(
        name="softmax_backward",
        family="softmax",
        summary="Gradient of softmax, or of its logarithm, by its input.",
        formula="""dx_i = y_i·(dy_i − Σ_j dy_j·y_j)          over the row
log: dx_i = dy_i − e^(y_i)·Σ_j dy_j""",
        inputs=(
            TensorSpec("dy", "*I", "gradient of the loss by y"),
            TensorSpec("y", "*I", "the output of softmax_forward"),
            _MASK,
        ),
        outputs=(TensorSpec("dx", "*I", "gradient of the loss by x"),),
        attributes=_ATTRIBUTES,
        dtypes=DTYPES,
        constraints=(
            any_rank("dy", "y"),
            _dtypes("dy", "y"),
            same_shape("y", "dy"),
            legal_axes("dy", may_be_none=False),
            one_of("variant", VARIANTS),
            _mask_broadcasts("dy"),
        ),
        decisions=(
            *_DECISIONS,
            "The gradient is that of y as it was put out: y is rounded, and need not add up to 1.",
            "y that no softmax puts out, outside of [0, 1] or with log above 0, is computed with like any "
            "other; no test asks for it.",
            "fast and accurate have one gradient.",
        ),
        resolve=_resolve,
        infer=lambda p: (TensorType(p.dtype, p.shape),),
        flops=lambda p: 4 * math.prod(p.shape),
        reduction_length=lambda p: max(1, p.length),
        domain=_draw_backward,
        boundaries=_boundaries("dy", "y"),
        consistent=_outputs_of_softmax,
        source="cuDNN cudnnSoftmaxBackward",
    )
)
