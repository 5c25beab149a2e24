"""Losses: cross entropy by rows, each at its target; CTC by a block for each sample."""

from collections.abc import Mapping
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
    """The loss of each row in one reading of the logits; the sum of all losses."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import reduce

    p = run.problem
    scratch = _forward_scratch(p, run.inputs)
    room, rest = scratch.arrays(run.workspace), scratch.rest(run.workspace)
    operands, of_row = [run.inputs["logits"]], [run.inputs["target"]]
    if p.weighted:
        _weights_of_targets(run, room["weights"])
        of_row.append(room["weights"])
    if p.weighted and p.label_smoothing > 0:
        operands.append(_along(run.inputs["weight"], p))
    losses = [room["loss"], room["counted"]] if "loss" in room else [run.outputs["loss"]]
    if p.stats:
        losses.append(run.outputs["stats"])
    shares = 1.0 - p.label_smoothing, p.label_smoothing / p.classes
    scalars = (p.ignore_index, p.classes, *shares)
    reduce(
        _of_row(p),
        operands,
        losses,
        (p.axis,),
        scalars,
        of_row=of_row,
        workspace=rest,
        stream=run.stream,
    )
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


def _of_target(run: Launch[CrossEntropyProblem]) -> tuple[int, ...]:
    """What it takes to find a row's target and its weight: kernels' first scalars."""
    from dnncanon.gpu.kernels.integers import is_long

    p = run.problem
    step = run.inputs["weight"].strides[0] if p.weighted else 0
    return is_long(run.inputs["target"]), p.ignore_index, p.classes, step


def _of_row(p: CrossEntropyProblem) -> Any:
    """What is combined of a row of logits, and made of it at its target."""
    from dnncanon.gpu.kernels import cross_entropy as kernels

    return kernels.losses(
        p.dtype,
        weighted=p.weighted,
        smooth=p.label_smoothing > 0,
        reduced=p.reduction != "none",
        stats=p.stats,
    )


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
    arrays = {"weights": rows} if p.weighted else {}
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


# --- Cross entropy, backward -----------------------------------------------------------------------


def _backward(run: Launch[CrossEntropyProblem]) -> None:
    """The sum of all weights, for the mean; then one reading and one writing of rows, each by its target."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import SUM, reduce
    from dnncanon.gpu.kernels.row_map import row_map

    p = run.problem
    scratch = _backward_scratch(p, run.inputs)
    room, rest = scratch.arrays(run.workspace), scratch.rest(run.workspace)
    dloss = run.inputs["dloss"]
    dloss = dloss if p.reduction == "none" else _for_all_rows(dloss, p)
    operands, states = [run.inputs["logits"]], [run.inputs["stats"], dloss, run.inputs["target"]]
    if p.weighted:
        _weights_of_targets(run, room["weights"])
    if p.reduction == "mean":
        _count(run, room, rest)
        states.append(_for_all_rows(room["whole"], p))
    if p.weighted:
        weight = run.inputs["weight"]
        reduce(SUM, [weight], [room["total"]], (0,), workspace=rest, stream=run.stream)
        operands.append(_along(weight, p))
        states += [room["weights"], _for_all_rows(room["total"], p)]
    shares = 1.0 - p.label_smoothing, p.label_smoothing / p.classes
    row_map(
        kernels.gradient(p.dtype, weighted=p.weighted, mean=p.reduction == "mean"),
        operands,
        (run.outputs["dlogits"],),
        (p.axis,),
        (*shares, float(p.classes), p.ignore_index),
        states=states,
        stream=run.stream,
    )


def _weights_of_targets(run: Launch[CrossEntropyProblem], weights: Any) -> None:
    """Launch what finds the weight of each row's target."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.integers import words_of

    p, target = run.problem, words_of(run.inputs["target"])
    arrays = (target, run.inputs["weight"], weights)
    strides = [target.strides[:-1], (0,) * len(p.target_shape), weights.strides]
    chosen = kernels.target_weights(p.wide)
    kernels.launch_over_rows(chosen, arrays, strides, p.target_shape, _of_target(run), run.stream)


def _count(run: Launch[CrossEntropyProblem], room: Arrays, rest: Any) -> None:
    """Σ weights of all targets, or how many there are."""
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import SUM, reduce

    p = run.problem
    axes, whole = tuple(range(len(p.target_shape))), [room["whole"]]
    if p.weighted:
        reduce(SUM, [room["weights"]], whole, axes, workspace=rest, stream=run.stream)
        return
    targets, scalars = [run.inputs["target"]], (p.ignore_index, p.classes)
    reduce(
        kernels.class_count(p.wide),
        targets,
        whole,
        axes,
        scalars,
        workspace=rest,
        stream=run.stream,
    )


def _for_all_rows(number: Any, p: CrossEntropyProblem) -> Any:
    """The first element of an array as one that all rows share."""
    return replace(number, shape=p.target_shape, strides=(0,) * len(p.target_shape))


def _those(arrays: Arrays, *names: str) -> list[Any]:
    return [arrays[name] for name in names]


def _backward_scratch(p: CrossEntropyProblem, inputs: Mapping[str, Strided]) -> Any:
    from dnncanon.gpu.kernels import cross_entropy as kernels
    from dnncanon.gpu.kernels.reduction import SUM, workspace_bytes
    from dnncanon.gpu.kernels.scratch import Scratch

    arrays: dict[str, tuple[Shape, str]] = {}
    rest, axes = 0, tuple(range(len(p.target_shape)))
    if p.reduction == "mean":
        arrays["whole"] = ((), p.wide)
        rest = _bytes_of_sum(p, SUM)
        if not p.weighted:
            counting = kernels.class_count(p.wide)
            rest = workspace_bytes(counting, inputs["target"], axes, "int64")
    if p.weighted:
        arrays |= {"total": ((), p.wide), "weights": (p.target_shape, p.wide)}
        rest = max(rest, workspace_bytes(SUM, inputs["weight"], (0,), p.wide))
    return Scratch(rest, **arrays)


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
