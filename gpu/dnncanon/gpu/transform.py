"""Tensor operators and casts: one pass over the elements."""

from collections.abc import Sequence
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.gpu.words import word_of
from dnncanon.spec.transform import (
    NAMES,
    OPS,
    AddTensorProblem,
    CastProblem,
    OpTensorProblem,
    ScaleProblem,
    SetProblem,
)

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.op_tensor, "elementwise")
def op_tensor(run: Launch[OpTensorProblem]) -> None:
    from dnncanon.gpu.kernels.transform import operator

    p, plus = run.problem, "c" in run.inputs
    function = operator(run.dtype, len(OPS[p.op].operands), plus=plus)
    scalars = (p.alpha1, p.alpha2, p.beta, NAMES.index(p.op), int(p.propagates_nan))
    _each(run, function, tuple(run.inputs.values()), scalars)


@implements(spec.add_tensor, "elementwise")
def add_tensor(run: Launch[AddTensorProblem]) -> None:
    from dnncanon.gpu.kernels.transform import scaled, scaled_sum

    p, a, c = run.problem, run.inputs["a"], run.inputs["c"]
    if p.beta == 0.0:
        _each(run, scaled, (a,), (p.alpha,))
    else:
        _each(run, scaled_sum, (a, c), (p.alpha, p.beta))


@implements(spec.scale_tensor, "elementwise")
def scale_tensor(run: Launch[ScaleProblem]) -> None:
    from dnncanon.gpu.kernels.transform import scaled

    _each(run, scaled, (run.inputs["x"],), (run.problem.alpha,))


@implements(spec.set_tensor, "fill")
def set_tensor(run: Launch[SetProblem]) -> None:
    from dnncanon.gpu.kernels.moving import fill, pattern_of

    p = run.problem
    fill(run.outputs["y"], pattern_of(word_of(p.value, p.dtype)), stream=run.stream)


@implements(spec.cast, "elementwise")
def cast(run: Launch[CastProblem]) -> None:
    from dnncanon.gpu.kernels import transform as kernels
    from dnncanon.gpu.kernels.elementwise import elementwise

    p, x, y = run.problem, run.inputs["x"], run.outputs["y"]
    function = kernels.conversion(kernels.class_of(p.dtype), kernels.class_of(p.to))
    limit = kernels.limit_of(p.dtype, p.to)
    scalars = (limit if p.saturate else type(limit)(0), *map(kernels.code_of, (p.dtype, p.to)))
    operands = (kernels.read_as(x),), (kernels.written_as(y),)
    elementwise(function, *operands, scalars, stream=run.stream)


def _each(
    run: Launch[Any], function: Any, inputs: Sequence[DeviceArray], scalars: Sequence[float]
) -> None:
    from dnncanon.gpu.kernels.elementwise import elementwise

    elementwise(function, inputs, (run.outputs["y"],), scalars, stream=run.stream)
