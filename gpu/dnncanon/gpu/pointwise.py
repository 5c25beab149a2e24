"""Pointwise operations: one pass over the elements of one, two or three tensors."""

import math

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.spec.pointwise import FLOATS, MODES, PointwiseProblem


@implements(spec.pointwise_operation, "elementwise")
def pointwise_operation(run: Launch[PointwiseProblem]) -> None:
    from dnncanon.gpu.kernels.elementwise import elementwise
    from dnncanon.gpu.kernels.pointwise import selected

    p, counting = run.problem, run.problem.mode == "gen_index"
    function, code = selected(p.dtype, p.mode)
    operands = [] if counting else [run.inputs[name] for name in MODES[p.mode].operands]
    given = (*scalars(p), *code)
    elementwise(function, operands, (run.outputs["y"],), given, index=counting, stream=run.stream)


def scalars(p: PointwiseProblem) -> tuple[float, ...]:
    """What the function of the mode takes behind its operands: its factors, or its parameters."""
    if p.mode == "gen_index":
        return math.prod(p.shape[p.axis + 1 :]), p.shape[p.axis]
    if p.mode.startswith("relu"):
        return p.relu_lower_clip, p.relu_upper_clip, p.relu_lower_clip_slope
    if p.mode.endswith(("_fwd", "_bwd")):
        parameters = {"elu": p.elu_alpha, "softplus": p.softplus_beta, "swish": p.swish_beta}
        return (parameters.get(p.mode[: -len("_fwd")], 1.0),)
    if p.dtype not in FLOATS or p.mode.startswith("cmp_") or p.mode == "binary_select":
        return ()
    return (p.alpha1, p.alpha2)[: len(MODES[p.mode].operands)]
