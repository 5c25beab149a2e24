"""Dropout and random numbers: one pass over the elements, each of which computes its own random words."""

from collections.abc import Callable, Sequence
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.spec.dropout import DropoutProblem, RandomProblem, threshold


@implements(spec.dropout_forward, "elementwise")
def dropout_forward(run: Launch[DropoutProblem]) -> None:
    from dnncanon.gpu.kernels.dropout import kept, kept_and_mask

    p = run.problem
    function = kept_and_mask(p.dtype) if p.return_mask else kept(p.dtype)
    _each(run, function, (run.inputs["x"],), (p.scale, p.threshold))


@implements(spec.dropout_backward, "elementwise")
def dropout_backward(run: Launch[DropoutProblem]) -> None:
    from dnncanon.gpu.kernels.dropout import kept

    p = run.problem
    _each(run, kept(p.dtype), (run.inputs["dy"],), (p.scale, p.threshold))


@implements(spec.rng_bernoulli, "elementwise")
def rng_bernoulli(run: Launch[RandomProblem]) -> None:
    from dnncanon.gpu.kernels.dropout import bernoulli

    _each(run, bernoulli, (), (threshold(run.problem["probability"]),))


@implements(spec.rng_uniform, "elementwise")
def rng_uniform(run: Launch[RandomProblem]) -> None:
    from dnncanon.gpu.kernels.dropout import uniform

    low, high = run.problem["low"], run.problem["high"]
    words = 2 if run.dtype == "float64" else 1
    _each(run, uniform(run.dtype), (), (low, high - low), words)


@implements(spec.rng_normal, "elementwise")
def rng_normal(run: Launch[RandomProblem]) -> None:
    from dnncanon.gpu.kernels.dropout import normal

    kind, words = ("float64", 2) if run.dtype == "float64" else ("float32", 1)
    _each(run, normal(kind), (), (run.problem["mean"], run.problem["std"]), words)


def _each(
    run: Launch[Any],
    function: Callable[..., Any],
    inputs: Sequence[DeviceArray],
    parameters: Sequence[float],
    words: int = 1,
) -> None:
    """All outputs, from inputs, parameters and the stream; each element takes so many words, 1 or 2."""
    from dnncanon.gpu.kernels.elementwise import Shared, elementwise
    from dnncanon.gpu.kernels.philox import BLOCKS, arguments

    outputs = tuple(run.outputs.values())
    scalars = (*parameters, *arguments(run.problem.stream))
    block = Shared(2 if words == 1 else 1, BLOCKS[len(parameters)])
    elementwise(function, inputs, outputs, scalars, index=True, shared=block, stream=run.stream)
