"""Losses to sample from: drawn calls, and those at the limits of implementations."""

from collections.abc import Callable, Iterator
from typing import Any

from dnncanon.spec.axes import with_long_rows
from dnncanon.spec.elementwise import drawn_shape
from dnncanon.spec.loss_problem import NORM_MODES, OOB_GRADIENTS, REDUCTIONS
from dnncanon.spec.loss_rules import INTEGERS
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.softmax import stats_dtype
from dnncanon.spec.tensors import Shape, TensorType, channels_last_strides

# --- Cross entropy --------------------------------------------------------------------------------

_IGNORED = (-100, -100, 0, -1, 1)
_SMOOTHING = (0.0, 0.1, 0.0, 0.5, 1.0)


def cross_entropy_call(
    dtype: str,
    shape: Shape,
    strides: Shape | None = None,
    *,
    backward: bool,
    integers: str = "int64",
    weighted: bool = False,
    **attributes: Any,
) -> Arguments:
    """A call of either direction, with the shapes that belong together."""
    given: dict[str, Any] = {
        "axis": 1,
        "ignore_index": -100,
        "label_smoothing": 0.0,
        "reduction": "mean",
        **attributes,
    }
    axis, wide = given["axis"] % len(shape), stats_dtype(dtype)
    rows = shape[:axis] + shape[axis + 1 :]
    tensors = {"logits": TensorType(dtype, shape, strides), "target": TensorType(integers, rows)}
    if backward:
        tensors["stats"] = TensorType(wide, rows)
        tensors["dloss"] = TensorType(wide, rows if given["reduction"] == "none" else ())
    else:
        given = {"return_stats": True, **given}
    if weighted:
        tensors["weight"] = TensorType(wide, (shape[axis],))
    return Arguments(tensors, given)


def draw_cross_entropy(*, backward: bool) -> Callable[[Draw, Scale, str], Arguments]:
    def domain(draw: Draw, scale: Scale, dtype: str) -> Arguments:
        shape = drawn_shape(draw, scale)
        axis = draw.choice((1, 1, -1, 0)) if len(shape) > 1 else draw.choice((0, 0, -1, 0))
        if shape[axis] == 0:
            shape = tuple(max(1, extent) for extent in shape)
        attributes = {
            "axis": axis,
            "ignore_index": draw.choice(_IGNORED),
            "label_smoothing": draw.choice(_SMOOTHING),
            "reduction": draw.choice(REDUCTIONS),
        }
        integers, weighted = draw.choice(INTEGERS), draw.choice((False, True))
        stats = draw.choice((False, True))
        if not backward:
            attributes["return_stats"] = stats
        shape = with_long_rows(shape, (axis,), scale.multiplications)
        return cross_entropy_call(
            dtype, shape, backward=backward, integers=integers, weighted=weighted, **attributes
        )

    return domain


def _rows_of_logits() -> Iterator[tuple[str, Shape, int, Shape | None]]:
    """Name, shape, axis and strides around the limits of implementations, the cheapest first."""
    yield "no rows", (0, 3), 1, None
    yield "one row alone", (7,), 0, None
    yield "one class", (3, 1), 1, None
    yield "pixels", (2, 5, 3, 4), 1, None
    yield "pixels, channels last", (2, 19, 3, 4), 1, channels_last_strides((2, 19, 3, 4))
    yield "tokens", (2, 3, 19), -1, None
    yield "classes first", (6, 4), 0, None
    yield "eight dims", (2, 1, 2, 3, 1, 2, 2, 2), 3, None
    yield "eight dims, transposed", (2,) * 8, 1, (1, 2, 4, 8, 16, 32, 64, 128)
    yield "gaps everywhere", (2, 3, 5), 1, (2 * 7 * 13, 2 * 13, 2)
    yield "one logit repeated", (3, 20), 1, (0, 0)
    yield "rows repeated", (3, 20), 1, (0, 1)
    for size in (7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025):
        yield f"{size} classes", (3, size), 1, None
        yield f"{size} rows", (size, 3), 1, None
        if size < 256:
            yield f"{size} classes with gaps", (2, size), 1, (size + 3, 1)
    yield "one row of 8192", (8192,), 0, None
    for size in (2**16 - 1, 2**16, 2**16 + 1):
        yield f"{size} classes", (1, size), 1, None
        yield f"{size} rows", (size, 2), 1, None
    yield "offsets beyond 32 bits", (2, 3), 1, (2**31 + 5, 1)
    yield "one row of more than 2^31", (2**31 + 1,), 0, None
    yield "more than 2^31 logits in rows of 2", (2**30 + 1, 2), 1, None


def cross_entropy_boundaries(*, backward: bool) -> Callable[[str], Iterator[Boundary]]:
    def of_dtype(dtype: str) -> Iterator[Boundary]:
        def made(shape: Shape, strides: Shape | None = None, **choices: Any) -> Arguments:
            return cross_entropy_call(dtype, shape, strides, backward=backward, **choices)

        for number, (name, shape, axis, strides) in enumerate(_rows_of_logits()):
            choices: dict[str, Any] = {
                "axis": axis,
                "reduction": REDUCTIONS[number % 3],
                "label_smoothing": (0.0, 0.1)[number % 2],
                "weighted": number % 4 > 1,
            }
            yield Boundary(name, made(shape, strides, **choices))
        for reduction in REDUCTIONS:
            choices = {"reduction": reduction, "weighted": True, "label_smoothing": 0.25}
            yield Boundary(f"{reduction}, all", made((70, 6), **choices))
        ignored: dict[str, Any] = {"ignore_index": 0, "reduction": "none"}
        yield Boundary("nothing but ignored targets", made((6, 1), **ignored))
        yield Boundary("the mean of nothing", made((6, 1), ignore_index=0))
        yield Boundary("int32 targets", made((9, 5), integers="int32"))
        yield Boundary("NaN, Inf", made((40, 30), reduction="none"), special_values=True)

    return of_dtype


# --- CTC ------------------------------------------------------------------------------------------


def ctc_call(
    dtype: str,
    shape: Shape,
    longest: int,
    strides: Shape | None = None,
    *,
    integers: str = "int32",
    **attributes: Any,
) -> Arguments:
    """A call for activations of this shape and labels of this length, padding included."""
    given = {
        "norm_mode": "softmax",
        "blank": 0,
        "oob_gradients": "zero",
        "return_gradients": True,
        **attributes,
    }
    batch = shape[1]
    tensors = {
        "activations": TensorType(dtype, shape, strides),
        "labels": TensorType(integers, (batch, longest)),
        "label_lengths": TensorType(integers, (batch,)),
        "input_lengths": TensorType(integers, (batch,)),
    }
    return Arguments(tensors, given)


def draw_ctc(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """Mostly labels that fit: half as long as the steps are many."""
    steps = draw.integer(1, scale.extent)
    batch = draw.choice((*range(1, scale.batch + 1), *(1, 2, 3) * 8, 0))
    classes = draw.integer(2, scale.channels + 1)
    longest = draw.integer(0, max(1, (steps + 2) // 2))
    blank = draw.choice(("first", "first", "last", "some"))
    any_class = draw.integer(0, scale.channels)
    attributes = {
        "norm_mode": draw.choice(NORM_MODES),
        "blank": {"first": 0, "last": classes - 1, "some": any_class % classes}[blank],
        "oob_gradients": draw.choice(OOB_GRADIENTS),
        "return_gradients": draw.choice((True, True, True, False)),
    }
    integers = draw.choice(INTEGERS)
    shape = (steps, min(batch, scale.batch), classes)
    return ctc_call(dtype, shape, longest, integers=integers, **attributes)


def _ctc_shapes() -> Iterator[tuple[str, Shape, int, Shape | None]]:
    """Name, shape of the activations, label length and strides, the cheapest first."""
    yield "no steps", (0, 3, 4), 2, None
    yield "no samples", (5, 0, 4), 2, None
    yield "nothing but the blank", (5, 3, 1), 2, None
    yield "no labels", (5, 3, 4), 0, None
    yield "more labels than steps", (3, 4, 4), 9, None
    yield "one step", (1, 5, 3), 1, None
    yield "two classes, all labels alike", (9, 3, 2), 4, None
    yield "batch first", (6, 3, 5), 3, (5, 30, 1)
    yield "classes first", (6, 3, 5), 3, (3, 1, 18)
    yield "gaps everywhere", (6, 3, 5), 3, (2 * 7 * 5, 2 * 7, 2)
    yield "one step repeated", (6, 3, 5), 2, (0, 5, 1)
    yield "one sample repeated", (6, 3, 5), 2, (5, 0, 1)
    yield "one activation repeated", (6, 3, 5), 2, (0, 0, 0)
    yield "43 samples", (4, 43, 3), 2, None
    for size in (7, 8, 9, 31, 32, 33, 127, 128, 129):
        yield f"{size} classes", (3, 2, size), 1, None
    for size in (7, 15, 16, 31, 63, 64, 127, 128, 129):
        yield f"{size} labels, {2 * size + 1} states", (size + size // 4 + 3, 1, 9), size, None
    for size in (1023, 1024, 1025):
        yield f"{size} classes", (3, 1, size), 1, None
    for size in (255, 256, 257):
        yield f"{size} labels", (2 * size + 3, 1, 3), size, None
    yield "1025 steps", (1025, 1, 3), 2, None
    yield "65537 samples", (1, 2**16 + 1, 2), 1, None
    yield "65537 classes", (2, 1, 2**16 + 1), 1, None
    yield "offsets beyond 32 bits", (2, 2, 3), 1, (2**31 + 5, 3, 1)
    yield "more than 2^31 activations", (2, 1, 2**30 + 1), 1, None


_REPORTS = {"gaps everywhere": "tensorflow-41280", "256 labels": "pytorch-53505"}
"""Steps beyond the input length that were not 0; labels of a length that was refused."""


def ctc_boundaries(dtype: str) -> Iterator[Boundary]:
    for number, (name, shape, longest, strides) in enumerate(_ctc_shapes()):
        choices: dict[str, Any] = {
            "norm_mode": NORM_MODES[number % 2],
            "oob_gradients": OOB_GRADIENTS[number // 2 % 2],
            "blank": 0 if number % 3 else shape[2] - 1,
        }
        arguments = ctc_call(dtype, shape, longest, strides, **choices)
        yield Boundary(name, arguments, _REPORTS.get(name, ""))
    for norm_mode in NORM_MODES:
        arguments = ctc_call(dtype, (8, 6, 5), 3, norm_mode=norm_mode)
        yield Boundary(f"NaN, Inf, {norm_mode}", arguments, special_values=True)
    costs = ctc_call(dtype, (8, 6, 5), 3, integers="int64", return_gradients=False)
    yield Boundary("costs alone", costs)
