"""The convolution family: validation, outputs, choice of algorithm, launch.

Every function takes NumPy arrays, PyTorch tensors, DeviceArrays, and whatever else offers DLPack or
the CUDA array interface, in any layout, and returns the kind that its first tensor is. Beside the
attributes of the specification it takes

- ``algorithm``: "auto", or a name that :func:`algorithms` lists;
- ``math``: the numerics class, "ieee";
- ``out``: an array to write into, with any strides that give each element an address of its own;
- ``workspace``: memory of :attr:`Algorithm.workspace_bytes` bytes, as a flat dense array; by default
  it is allocated;
- ``stream``: the CUDA stream, by default the current one of the first tensor's library.

It raises the specification's errors, and Unsupported for a numerics class that there is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon import spec
from dnncanon.gpu.kernels import correlation
from dnncanon.gpu.kernels.plan import BiasPlan, Epilogue, Implementation, Plan, Tensors
from dnncanon.gpu.runtime import DeviceArray, Operands, Strided, View, describe
from dnncanon.spec import (
    NUMERICS,
    AttributeValueError,
    Call,
    Primitive,
    Unsupported,
    channels_last_strides,
    dense_strides,
    primitives,
)
from dnncanon.spec.conv import FusedConvProblem


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a call.

    ``workspace_bytes`` is exact. ``deterministic`` means the same bits in every run, on every device.
    ``refusal`` says why it does not take the call; None when it does.
    """

    name: str
    workspace_bytes: int
    deterministic: bool
    numerics: str
    refusal: str | None

    @property
    def applicable(self) -> bool:
        return self.refusal is None


# --- The five primitives --------------------------------------------------------------------------


def conv_forward(
    x: Any,
    w: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    algorithm: str = "auto",
    math: str = "ieee",
    out: Any = None,
    workspace: Any = None,
    stream: object = None,
) -> Any:
    """y[n, k, o] = Σ_{c, f} x[n, g·C/G + c, o·stride + f·dilation − pre] · w[k, c, f].

    x (N, C, I…) and w (K, C/groups, F…) give y (N, K, O…); g = ⌊k / (K/G)⌋, and x is 0 outside.
    """
    call = spec.conv_forward.bind(
        x, w, padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode
    )
    return _run(call, (x, w), _Options(algorithm, math, out, workspace, stream))


def conv_backward_data(
    dy: Any,
    w: Any,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    input_size: Any = None,
    algorithm: str = "auto",
    math: str = "ieee",
    out: Any = None,
    workspace: Any = None,
    stream: object = None,
) -> Any:
    """dx[n, c, i] = Σ_{k, o, f : o·stride + f·dilation − pre = i} dy[n, k, o] · w[k, c mod C/G, f].

    dy (N, K, O…) and w (K, C/groups, F…) give dx (N, C, I…), I being ``input_size``.
    """
    call = spec.conv_backward_data.bind(
        dy,
        w,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=mode,
        input_size=input_size,
    )
    return _run(call, (dy, w), _Options(algorithm, math, out, workspace, stream))


def conv_backward_filter(
    x: Any,
    dy: Any,
    *,
    filter_size: Any,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    algorithm: str = "auto",
    math: str = "ieee",
    out: Any = None,
    workspace: Any = None,
    stream: object = None,
) -> Any:
    """dw[k, c, f] = Σ_{n, o} dy[n, k, o] · x[n, g·C/G + c, o·stride + f·dilation − pre].

    x (N, C, I…) and dy (N, K, O…) give dw (K, C/groups, F…), F being ``filter_size``.
    """
    call = spec.conv_backward_filter.bind(
        x,
        dy,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=mode,
        filter_size=filter_size,
    )
    return _run(call, (x, dy), _Options(algorithm, math, out, workspace, stream))


def conv_bias_activation_forward(
    x: Any,
    w: Any,
    bias: Any,
    z: Any = None,
    *,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
    activation: str = "relu",
    alpha1: float = 1.0,
    alpha2: float = 1.0,
    algorithm: str = "auto",
    math: str = "ieee",
    out: Any = None,
    workspace: Any = None,
    stream: object = None,
) -> Any:
    """y = activation(alpha1·conv_forward(x, w) + alpha2·z + bias), in one pass and rounded once.

    As conv_forward, with bias (K,) and the residual z (N, K, O…), which is not read when alpha2 = 0.
    """
    call = spec.conv_bias_activation_forward.bind(
        x,
        w,
        bias,
        z,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=groups,
        mode=mode,
        activation=activation,
        alpha1=alpha1,
        alpha2=alpha2,
    )
    options = _Options(algorithm, math, out, workspace, stream)
    return _run(call, (x, w, bias, z), options)


def conv_backward_bias(
    dy: Any,
    *,
    algorithm: str = "auto",
    math: str = "ieee",
    out: Any = None,
    workspace: Any = None,
    stream: object = None,
) -> Any:
    """db[k] = Σ_{n, o} dy[n, k, o]: dy (N, K, O…) gives db (K,)."""
    call = spec.conv_backward_bias.bind(dy)
    return _run(call, (dy,), _Options(algorithm, math, out, workspace, stream))


def algorithms(primitive: str, *tensors: Any, **attributes: Any) -> list[Algorithm]:
    """What there is to compute ``primitive(*tensors, **attributes)``: first what "auto" chooses.

    Raises the specification's errors for a call that is not legal.
    """
    call = _primitive(primitive).bind(*tensors, **attributes)
    names = [row.name for row in call.primitive.inputs]
    given = {n: describe(t, n) for n, t in zip(names, tensors, strict=False) if t is not None}
    strides = _output_strides(call, next(iter(given.values())).strides)
    plan = _plan(call, given, View(call.outputs[0].shape, strides))
    chosen = _choose(call, plan, "auto")
    rows = sorted(_implementations(call), key=lambda implementation: implementation is not chosen)
    return [
        Algorithm(
            name=row.name,
            workspace_bytes=0 if row.refusal(plan) else row.workspace_bytes(plan),
            deterministic=row.deterministic,
            numerics="ieee",
            refusal=row.refusal(plan),
        )
        for row in rows
    ]


# --- One call -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Options:
    """The keyword arguments that every function takes beside the attributes of its primitive."""

    algorithm: str
    math: str
    out: Any
    workspace: Any
    stream: object


def _run(call: Call[Any], tensors: tuple[Any, ...], options: _Options) -> Any:
    """Bring the tensors to the device, choose an algorithm, run it.

    Everything is checked before anything is written.
    """
    _check_math(call, options.math)
    _check_algorithm(call, options.algorithm)
    operands = Operands(call.primitive.name, tensors[0], options.stream)
    names = [row.name for row in call.primitive.inputs]
    inputs = {
        name: operands.read(tensor, name)
        for name, tensor in zip(names, tensors, strict=True)
        if tensor is not None
    }
    first, (result,) = inputs[names[0]], call.outputs
    strides = _output_strides(call, first.strides)
    output = operands.write(options.out, result, call.primitive.outputs[0].name, strides)
    plan = _plan(call, inputs, output.array)
    chosen = _choose(call, plan, options.algorithm)
    workspace = operands.workspace(options.workspace, chosen.workspace_bytes(plan))
    if result.size:
        arrays = _tensors(call, inputs, output.array)
        chosen.run(plan, arrays, workspace, operands.stream)
    return output.finish()


def _primitive(name: str) -> Primitive[Any]:
    known = {p.name: p for p in primitives().values() if p.family == "conv"}
    if name not in known:
        raise Unsupported(f"no primitive {name!r} here; there are {', '.join(known)}")
    return known[name]


def _check_math(call: Call[Any], math: str) -> None:
    name, classes = call.primitive.name, call.primitive.numerics(call.dtype)
    if math == "ieee":
        return
    if math not in NUMERICS:
        raise AttributeValueError(f"{name}: math={math!r}; pass one of {', '.join(classes)}")
    raise Unsupported(f'{name}: math={math!r} is not offered for {call.dtype}; pass math="ieee"')


def _check_algorithm(call: Call[Any], algorithm: str) -> None:
    known = ("auto", *(implementation.name for implementation in _implementations(call)))
    if algorithm not in known:
        raise AttributeValueError(
            f"{call.primitive.name}: algorithm={algorithm!r}; pass one of {', '.join(known)}"
        )


def _output_strides(call: Call[Any], like: tuple[int, ...]) -> tuple[int, ...]:
    """Of a new output: channels-last when the first tensor is, else dense in logical order."""
    first, (result,) = next(iter(call.arguments.tensors.values())), call.outputs
    last = channels_last_strides(first.shape)
    if result.rank == first.rank and like == last and like != dense_strides(first.shape):
        return channels_last_strides(result.shape)
    return dense_strides(result.shape)


# --- Plans and algorithms -------------------------------------------------------------------------


def _plan(call: Call[Any], inputs: Mapping[str, Strided], out: Strided) -> Any:
    """What the algorithms are given: extents and layouts, no data."""
    problem, (first, *others) = call.problem, inputs.values()
    match call.primitive.name:
        case "conv_backward_bias":
            return BiasPlan.of(call.dtype, problem.dy_shape, first)
        case "conv_backward_data":
            parts = tuple(correlation.backward_data(problem, first, others[0], out))
        case "conv_backward_filter":
            parts = (correlation.backward_filter(problem, first, others[0], out),)
        case _:
            geometry = getattr(problem, "conv", problem)
            parts = (correlation.forward(geometry, first, others[0], out),)
    return Plan(call.dtype, parts)


def _tensors(call: Call[Any], inputs: Mapping[str, DeviceArray], out: DeviceArray) -> Any:
    """The arrays that the algorithms are given."""
    first, *others = inputs.values()
    if call.primitive.name == "conv_backward_bias":
        return first, out
    return Tensors(first, others[0], out, _epilogue(call, inputs))


def _epilogue(call: Call[Any], inputs: Mapping[str, DeviceArray]) -> Epilogue:
    problem = call.problem
    if not isinstance(problem, FusedConvProblem):
        return Epilogue()
    z = inputs.get("z") if problem.alpha2 else None
    return Epilogue(
        alpha1=problem.alpha1,
        alpha2=problem.alpha2,
        bias=inputs["bias"],
        residual=z,
        residual_at=correlation.residual_layout(problem.conv, z) if z else None,
        relu=problem.activation == "relu",
    )


def _implementations(call: Call[Any]) -> tuple[Implementation[Any], ...]:
    """The algorithms of a primitive, the preferred ones first."""
    correlations, reductions = _all_implementations()
    return reductions if call.primitive.name == "conv_backward_bias" else correlations


@cache
def _all_implementations() -> tuple[tuple[Implementation[Any], ...], ...]:
    """Of the convolutions, of the bias; made on the first call, because kernels import Numba."""
    from dnncanon.gpu.kernels import conv_bias, conv_direct, conv_implicit_gemm

    correlations = (conv_implicit_gemm.ImplicitGemm(), conv_direct.Direct())
    return correlations, (conv_bias.Reduction(),)


def _choose(call: Call[Any], plan: Any, algorithm: str) -> Implementation[Any]:
    """The named algorithm if it takes the call, or for "auto" the first one that pays."""
    for implementation in _implementations(call):
        if algorithm == implementation.name:
            refusal = implementation.refusal(plan)
            if refusal is None:
                return implementation
            raise Unsupported(
                f'{call.primitive.name}: algorithm="{algorithm}" {refusal}; pass algorithm="auto"'
            )
        if algorithm == "auto" and implementation.pays(plan):
            return implementation
    raise AssertionError("the last algorithm takes every call")
