"""Losses: cross entropy by rows, with a thread for each target; CTC by a block for each sample."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation, Launch, Layouts
from dnncanon.gpu.runtime import Strided, View
from dnncanon.spec import dense_strides
from dnncanon.spec.loss_problem import CrossEntropyProblem, CTCProblem

# Kernels are imported by the first call: importing them imports Numba.

Arrays = Mapping[str, Any]
Shape = tuple[int, ...]


# --- Cross entropy, forward -----------------------------------------------------------------------


def _forward(run: Launch[CrossEntropyProblem]) -> None:
    """Each row's maximum and sum, in one reading of the logits; its loss; the sum of all losses."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import reduce

    p, logits = run.problem, run.inputs["logits"]
    scratch = _forward_scratch(p, run.inputs)
    room, rest = scratch.arrays(run.workspace), scratch.rest(run.workspace)
    of_rows = [room[name] for name in ("top", "power", "spread") if name in room]
    operands = [logits]
    if p.weighted and p.label_smoothing > 0:
        operands.append(_along(run.inputs["weight"], p))
    reduce(_of_row(p), operands, of_rows, (p.axis,), workspace=rest, stream=run.stream)
    _losses(run, room)
    if p.reduction != "none":
        reduce(
            kernels.LOSS,
            _those(room, "loss", "counted"),
            [run.outputs["loss"]],
            tuple(range(len(p.target_shape))),
            [int(p.reduction == "mean")],
            workspace=rest,
            stream=run.stream,
        )


def _losses(run: Launch[CrossEntropyProblem], room: Arrays) -> None:
    """Launch what makes the loss of each row, its weight, and stats."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.integers import words_of

    p, logits = run.problem, run.inputs["logits"]
    # What there is not has another array in its place, which is not touched for it.
    loss = room.get("loss", run.outputs["loss"])
    weight = run.inputs.get("weight", loss)
    arrays = (
        logits,
        words_of(run.inputs["target"]),
        weight,
        room["top"],
        room["power"],
        room.get("spread", loss),
        loss,
        room.get("counted", loss),
        run.outputs.get("stats", loss),
    )
    strides = [array.strides for array in arrays]
    strides[0], strides[1] = _without(logits.strides, p.axis), strides[1][:-1]
    strides[2] = (0,) * len(p.target_shape)
    flags = (int(p.weighted), int(p.label_smoothing > 0), int(p.reduction != "none"), int(p.stats))
    shares = 1.0 - p.label_smoothing, p.label_smoothing / p.classes
    scalars = (*_of_target(run), logits.strides[p.axis], flags, shares)
    chosen = kernels.losses(p.dtype)
    kernels.launch_over_rows(chosen, arrays, strides, p.target_shape, scalars, run.stream)


def _of_target(run: Launch[CrossEntropyProblem]) -> tuple[int, ...]:
    """What it takes to find a row's target and its weight: kernels' first scalars."""
    from dnncanon.gpu.kernels.integers import is_long

    p = run.problem
    step = run.inputs["weight"].strides[0] if p.weighted else 0
    return is_long(run.inputs["target"]), p.ignore_index, p.classes, step


def _of_row(p: CrossEntropyProblem) -> Any:
    """What is combined of a row of logits."""
    from dnncanon.gpu.kernels import cross_entropy as kernels

    if p.label_smoothing > 0:
        return kernels.spread_logarithms(p.dtype, weighted=p.weighted)
    return kernels.logarithms(p.dtype)


def _along(weight: Any, p: CrossEntropyProblem) -> Any:
    """The weight with the rank of the logits."""
    dims = range(len(p.shape))
    shape = tuple(p.classes if dim == p.axis else 1 for dim in dims)
    strides = tuple(weight.strides[0] if dim == p.axis else 0 for dim in dims)
    return replace(weight, shape=shape, strides=strides)


def _forward_scratch(p: CrossEntropyProblem, inputs: Mapping[str, Strided]) -> Any:
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    rows = (p.target_shape, p.wide)
    arrays = {"top": rows, "power": rows}
    if p.label_smoothing > 0:
        arrays["spread"] = rows
    rest = workspace_bytes(_of_row(p), inputs["logits"], (p.axis,), p.dtype)
    if p.reduction != "none":
        arrays |= {"loss": rows, "counted": rows}
        rest = max(rest, _bytes_of_sum(p, kernels.LOSS))
    return Scratch(rest, **arrays)


def _bytes_of_sum(p: CrossEntropyProblem, monoid: Any) -> int:
    """What it takes to add up the numbers of all rows."""
    from dnncanon.gpu.kernels.reduction import workspace_bytes

    of_rows = View(p.target_shape, dense_strides(p.target_shape))
    return workspace_bytes(monoid, of_rows, tuple(range(len(p.target_shape))), p.wide)


def _without(strides: Sequence[int], axis: int) -> Shape:
    return (*strides[:axis], *strides[axis + 1 :])


# --- Cross entropy, backward -----------------------------------------------------------------------


def _backward(run: Launch[CrossEntropyProblem]) -> None:
    """What each row needs to know of its target, and of all rows; then one reading and one writing."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.row_map import row_map

    p, logits = run.problem, run.inputs["logits"]
    room = _backward_scratch(p, run.inputs).arrays(run.workspace)
    _coefficients(run, room)
    operands, states = [logits], [run.inputs["stats"], *_those(room, "factor", "scale", "label")]
    if p.weighted:
        operands.append(_along(run.inputs["weight"], p))
        states.append(_for_all_rows(room["total"], p))
    row_map(
        kernels.gradient(p.dtype, weighted=p.weighted),
        operands,
        (run.outputs["dlogits"],),
        (p.axis,),
        (1.0 - p.label_smoothing, p.label_smoothing / p.classes, float(p.classes)),
        states=states,
        stream=run.stream,
    )


def _coefficients(run: Launch[CrossEntropyProblem], room: Arrays) -> None:
    """Launch what makes the weight, the gradient and the class of each row, and the sum of weights."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.integers import words_of
    from dnncanon.gpu.kernels.reduction import SUM, reduce

    p, target = run.problem, words_of(run.inputs["target"])
    rest = _backward_scratch(p, run.inputs).rest(run.workspace)
    weight = run.inputs.get("weight", room["total"])  # not touched where there is none
    along = (0,) * len(p.target_shape)

    def over_rows(chosen: Any, others: Sequence[Any], *flags: int) -> None:
        arrays = (target, weight, *others)
        strides = [target.strides[:-1], along, *(array.strides for array in others)]
        scalars = (*_of_target(run), int(p.weighted), *flags)
        kernels.launch_over_rows(chosen, arrays, strides, p.target_shape, scalars, run.stream)

    if p.reduction == "mean":
        counted = room["factor"]  # which is made later, and free until then
        over_rows(kernels.target_weights(p.wide), [counted])
        axes = tuple(range(len(p.target_shape)))
        reduce(SUM, [counted], [room["whole"]], axes, workspace=rest, stream=run.stream)
    if p.weighted:
        reduce(SUM, [weight], [room["total"]], (0,), workspace=rest, stream=run.stream)
    dloss, whole = run.inputs["dloss"], _for_all_rows(room["whole"], p)
    dloss = dloss if p.reduction == "none" else _for_all_rows(dloss, p)
    made = _those(room, "factor", "scale", "label")
    over_rows(kernels.coefficients(p.wide), [dloss, whole, *made], int(p.reduction == "mean"))


def _for_all_rows(number: Any, p: CrossEntropyProblem) -> Any:
    """The first element of an array as one that all rows share."""
    return replace(number, shape=p.target_shape, strides=(0,) * len(p.target_shape))


def _those(arrays: Arrays, *names: str) -> list[Any]:
    return [arrays[name] for name in names]


def _backward_scratch(p: CrossEntropyProblem, inputs: Mapping[str, Strided]) -> Any:
    from dnncanon.gpu.kernels.reduction import SUM, workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    rest = _bytes_of_sum(p, SUM) if p.reduction == "mean" else 0
    if p.weighted:
        rest = max(rest, workspace_bytes(SUM, inputs["weight"], (0,), p.wide))
    rows, one = (p.target_shape, p.wide), ((), p.wide)
    labels = (p.target_shape, "int64")
    return Scratch(rest, whole=one, total=one, factor=rows, scale=rows, label=labels)


def _row_wise(primitive: Any, run: Any, scratch: Any) -> GpuPrimitive[CrossEntropyProblem]:
    def workspace_bytes(layouts: Layouts[CrossEntropyProblem]) -> int:
        return int(scratch(layouts.problem, layouts.inputs).nbytes)

    return GpuPrimitive(primitive, lambda: [Implementation("row_wise", run, workspace_bytes)])


cross_entropy_forward = _row_wise(spec.cross_entropy_forward, _forward, _forward_scratch)
cross_entropy_backward = _row_wise(spec.cross_entropy_backward, _backward, _backward_scratch)


# --- CTC ------------------------------------------------------------------------------------------


def _ctc() -> list[Implementation[CTCProblem]]:
    from dnncanon.gpu.kernels import ctc

    return [Implementation("block_per_sample", ctc.run, ctc.scratch_bytes)]


ctc_loss = GpuPrimitive(spec.ctc_loss, _ctc)
