"""The whole gradient of recurrent networks: forward into the workspace, then by the data and by the weights.

What the three share, the reserve and dgates, lies in the workspace; so do y and the last states, which nobody
asked for. Behind them is a rest, of which each of the three takes what it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dnncanon.gpu.kernels import rnn_backward_data, rnn_backward_weights, rnn_forward
from dnncanon.gpu.kernels.rnn_plan import sum_dtype
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.primitive import Launch, Layouts
from dnncanon.gpu.runtime import View
from dnncanon.spec import dense_strides
from dnncanon.spec.rnn_problem import RnnProblem
from dnncanon.spec.rnn_rules import SHAPES, WIDE

_SAVED = {"lstm": ("gates", "cells", "hidden"), "gru": ("gates", "hidden")}
"""The reserve of a cell; of plain networks hidden alone."""

Arrays = Mapping[str, Any]


def workspace_bytes(layouts: Layouts[RnnProblem]) -> int:
    return _scratch(layouts).nbytes


def backward(run: Launch[RnnProblem]) -> None:
    """Launch the kernels of a call."""
    scratch = _scratch(run.plan)
    shared, rest = scratch.arrays(run.workspace), scratch.rest(run.workspace)
    views = _views(run.problem)
    plans = _parts(run.problem, run.plan.inputs, run.plan.outputs, views)
    arrays = _parts(run.problem, run.inputs, run.outputs, shared)
    for part, (inputs, outputs) in arrays.items():
        plan = Layouts(run.call, *plans[part])
        launched = replace(run, plan=plan, inputs=inputs, outputs=outputs, workspace=rest)
        _PARTS[part][0](launched)


_PARTS: dict[str, tuple[Callable[[Launch[Any]], None], Callable[[Layouts[Any]], int]]] = {
    "forward": (rnn_forward.forward, rnn_forward.workspace_bytes),
    "data": (rnn_backward_data.backward_data, rnn_backward_data.workspace_bytes),
    "weights": (rnn_backward_weights.backward_weights, rnn_backward_weights.workspace_bytes),
}
"""How each part is launched, and what workspace it needs."""


def _scratch(layouts: Layouts[RnnProblem]) -> Scratch:
    p = layouts.problem
    scratch = Scratch()
    for name, shared in _views(p).items():
        scratch.add(name, shared.shape, _dtype(p, name))
    parts = _parts(p, layouts.inputs, layouts.outputs, _views(p))
    for part, (inputs, outputs) in parts.items():
        scratch.need(_PARTS[part][1](Layouts(layouts.call, inputs, outputs)))
    return scratch


def _dtype(p: RnnProblem, name: str) -> str:
    return sum_dtype(p.dtype) if name in WIDE else p.dtype


def _views(p: RnnProblem) -> dict[str, View]:
    """What is neither given nor asked for: the reserve, dgates, y and the last states."""
    names = [*_SAVED.get(p.cell, ("hidden",)), "dgates", "y", "hy"]
    names += ["cy"] if p.cell == "lstm" else []
    shapes = {name: SHAPES[name][1](p) for name in names}
    return {name: View(shape, dense_strides(shape)) for name, shape in shapes.items()}


def _parts(
    p: RnnProblem, inputs: Arrays, outputs: Arrays, shared: Arrays
) -> dict[str, tuple[Arrays, Arrays]]:
    """Inputs and outputs of each part: of those given, asked for and shared those that it has."""

    def some(names: str) -> Arrays:
        everything = {**inputs, **outputs, **shared}
        return {name: everything[name] for name in names.split() if name in everything}

    return {
        "forward": (some("x weights h0 c0"), some("y hy cy gates cells hidden")),
        "data": (
            some("dy weights gates cells hidden h0 c0 dhy dcy"),
            some("dx dh0 dc0 dgates"),
        ),
        "weights": (some("x hidden dgates h0 gates cells"), some("dweights")),
    }
