"""Activation functions, forward and backward: one pass over the elements."""

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.spec.activation import ActivationProblem


@implements(spec.activation_forward, "elementwise")
def activation_forward(run: Launch[ActivationProblem]) -> None:
    from dnncanon.gpu.kernels.activation import selected
    from dnncanon.gpu.kernels.elementwise import elementwise

    p = run.problem
    mode = p.mode if p.propagate_nan else f"{p.mode}_of_numbers"
    function, code = selected(p.dtype, "forward", mode)
    scalars = (_parameter(p), *code)
    elementwise(function, (run.inputs["x"],), (run.outputs["y"],), scalars, stream=run.stream)


@implements(spec.activation_backward, "elementwise")
def activation_backward(run: Launch[ActivationProblem]) -> None:
    from dnncanon.gpu.kernels.activation import selected
    from dnncanon.gpu.kernels.elementwise import elementwise

    p = run.problem
    table = "backward_from_output" if p.from_output else "backward"
    function, code = selected(p.dtype, table, p.mode)
    operands = run.inputs["dy"], run.inputs["x"]
    scalars = (_parameter(p), *code)
    elementwise(function, operands, (run.outputs["dx"],), scalars, stream=run.stream)


def _parameter(p: ActivationProblem) -> float:
    """The one parameter that the mode has; any number for the others."""
    parameters = {
        "clipped_relu": p.ceiling,
        "leaky_relu": p.negative_slope,
        "elu": p.alpha,
        "swish": p.beta,
        "softplus": p.beta,
    }
    return parameters.get(p.mode, 1.0)
