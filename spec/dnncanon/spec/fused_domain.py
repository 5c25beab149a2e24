"""Fused calls to sample from: chains of what networks fuse, their test data, and boundaries.

A graph is drawn as a chain of steps, each an expression of the result x so far and of further operands. Steps
keep away from poles: beside one, which side of it a rounded x lies on would decide everything. They jump
where x is seldom: not at 0, which the tails of activations come to.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnncanon.spec.axes import drawn_axes, with_long_rows
from dnncanon.spec.elementwise import boundary_shapes, drawn_broadcast, drawn_shape
from dnncanon.spec.fused_graph import TENSORS, graph_of
from dnncanon.spec.fused_problem import FusedProblem
from dnncanon.spec.fused_rules import NARROW
from dnncanon.spec.primitive import Arguments, Boundary, Draw, Scale
from dnncanon.spec.reduce import NAMES, PRODUCTS
from dnncanon.spec.tensors import Shape, TensorType

# --- Graphs ---------------------------------------------------------------------------------------

STEPS = (
    # x is the result so far; p and q are tensors or numbers, t is a tensor, m is one of truth values.
    "add(x,p)",
    "mul(x,p)",
    "relu_fwd(x)",
    "gelu_fwd(x)",
    "swish_fwd(x)",
    "mul(swish_fwd(x),p)",
    "mul(gelu_approx_tanh_fwd(x),p)",
    "mul(x,sigmoid_fwd(x))",
    "add(mul(x,p),q)",
    "mul(x,rsqrt(add_square(0.125,x)))",
    "sub(x,p)",
    "max(x,p)",
    "min(x,p)",
    "relu_fwd(x,relu_lower_clip=-0.5,relu_upper_clip=1.5,relu_lower_clip_slope=0.125)",
    "tanh_fwd(x)",
    "elu_fwd(x,elu_alpha=1.75)",
    "softplus_fwd(x,softplus_beta=3.0)",
    "swish_fwd(x,swish_beta=1.702)",
    "relu_bwd(p,add(x,0.1),relu_upper_clip=6.0)",
    "tanh_bwd(p,x)",
    "sigmoid_bwd(p,x)",
    "elu_bwd(p,sub(x,0.1),elu_alpha=0.5)",
    "gelu_bwd(p,x)",
    "gelu_approx_tanh_bwd(p,x)",
    "softplus_bwd(p,x,softplus_beta=0.25)",
    "swish_bwd(p,x)",
    "binary_select(x,p,cmp_gt(sub(x,0.1),q))",
    "binary_select(x,p,logical_and(cmp_ge(x,p),cmp_le(sub(x,0.1),q)))",
    "binary_select(p,x,logical_or(cmp_lt(x,p),logical_not(cmp_neq(t,0.0))))",
    "binary_select(1.0,x,cmp_eq(t,0.0))",
    "binary_select(x,p,m)",
    "binary_select(identity(x),neg(x),logical_not(m))",
    "mul(x,exp(neg(abs(x))))",
    "mul(p,reciprocal(add(exp(neg(x)),1.0)))",
    "log(add(abs(x),0.125))",
    "div(x,add(abs(t),0.5))",
    "sqrt(abs(x))",
    "pow(add(abs(x),0.5),p)",
    "atan2(p,add(abs(x),0.5))",
    "mod(x,p)",
    "floor_mod(add(abs(x),0.25),p)",
    "add(ceil(add(abs(x),0.25)),p)",
    "mul(floor(add(abs(x),0.25)),p)",
    "erf(x)",
    "mul(sin(x),p)",
    "mul(cos(x),p)",
    "add(x,tan(tanh_fwd(t)))",
)
_MOST_STEPS = 4
_NUMBERS = ("0.5", "-1.5", "2.0", "0.1")
_NUMBER = 3
"""The pick that means a number."""

_TRUTH = TENSORS[-1]
"""The one tensor of truth values that a drawn graph may have."""

_REDUCTIONS = (*(None,) * 12, *("add",) * 4, *NAMES)
_LONGEST_PRODUCT = 24

Fusion = tuple[str, str | None]

QUICK: dict[str, tuple[Fusion, ...]] = {
    "float32": (
        ("gelu_fwd(add(a,b))", None),
        ("mul(swish_fwd(a),b)", None),
        ("t0=add(mul(a,b),c);binary_select(t0,mul(t0,0.125),cmp_gt(t0,0.0))", None),
        ("exp(sub(a,b))", "add"),
        ("add_square(abs(a),b)", "norm2"),
    ),
    "float64": (
        ("relu_fwd(add(mul(a,b),c),relu_upper_clip=1.5)", None),
        ("mul(mul(a,rsqrt(add_square(1e-05,b))),c)", None),
        ("binary_select(swish_fwd(a,swish_beta=1.702),-1.5,logical_not(f))", None),
        ("sub(a,b)", "logsumexp"),
    ),
    "float16": (
        ("add(mul(gelu_approx_tanh_fwd(a),b),c)", None),
        ("gelu_bwd(a,add(b,c))", None),
        ("t0=elu_fwd(sub(a,0.5),elu_alpha=1.75);mul(t0,sigmoid_fwd(t0))", None),
        ("mul(a,b)", "add"),
    ),
    "bfloat16": (
        ("mul(tanh_fwd(sub(a,b)),c)", None),
        ("logical_or(cmp_lt(add(a,b),c),f)", None),
        ("binary_select(a,b,f)", "amax"),
        ("mul(floor_mod(a,b),0.5)", "avg"),
    ),
}
"""What a quick run draws from: on the emulator each graph costs the time to compile it."""

_SMALL = 1 << 17
"""Products, up to which a scale is that of a quick run."""


class _Chain:
    """A graph as it grows, and the tensors that it has come to need."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.result = "a"
        self.numbers = ["a"]

    def add(self, step: str, picks: tuple[int, int], number: str) -> None:
        """One step, with the operands that the picks are for."""
        words = re.split(r"([(),=])", step)
        operands = {"x": self.result, "m": _TRUTH}
        for name, pick in zip(("p", "q", "t"), (*picks, 0), strict=True):
            if name in words:
                others = set(operands.values())
                operands[name] = number if pick == _NUMBER else self._tensor(pick, others)
        self.result = f"r{len(self.statements)}"
        text = "".join(operands.get(word, word) for word in words)
        self.statements.append(f"{self.result}={text};")

    def _tensor(self, pick: int, others: set[str]) -> str:
        """A new tensor while letters are left, or an earlier one that the step is not of yet."""
        known = [name for name in self.numbers if name not in others]
        left = TENSORS[len(self.numbers) : -1]
        if left and (pick < 2 or not known):
            self.numbers.append(left[0])
            return left[0]
        return known[-1]

    @property
    def text(self) -> str:
        return str(graph_of("".join(self.statements) + self.result))


def _drawn_graph(draw: Draw) -> str:
    count, chain = draw.integer(1, _MOST_STEPS), _Chain()
    for number in range(_MOST_STEPS):
        step = draw.choice(STEPS)
        picks = draw.integer(0, _NUMBER), draw.integer(0, _NUMBER)
        constant = draw.choice(_NUMBERS)
        if number < count:
            chain.add(step, picks, constant)
    return chain.text


# --- Calls ----------------------------------------------------------------------------------------


def drawn(draw: Draw, scale: Scale, dtype: str) -> Arguments:
    """A call within the scale; of a quick run's few graphs, or of any."""
    quick = scale.multiplications <= _SMALL
    if quick:
        text, op = draw.choice(QUICK[dtype])
    else:
        text, op = _drawn_graph(draw), draw.choice(_REDUCTIONS)
    wide, shape = draw.choice((False, False, True)), drawn_shape(draw, scale)
    shape = (shape[0], *shape[-2:]) if quick and len(shape) > 3 else shape
    axes, keepdims = drawn_axes(draw, 2 if quick else len(shape)), draw.choice((False, False, True))
    shape = _with_rank(shape, axes)
    if op is not None:
        longest = _LONGEST_PRODUCT if op in PRODUCTS else scale.multiplications
        shape = with_long_rows(shape, axes, longest)
    shapes = {name: drawn_broadcast(draw, shape) for name in TENSORS}
    names = graph_of(text).tensors
    if not any(shapes[name] == shape for name in names):
        shapes["a"] = shape
    return Arguments(
        {name: TensorType(_dtype(name, dtype, wide=wide), shapes[name]) for name in names},
        _attributes(text, op, axes, keepdims=keepdims),
    )


def _with_rank(shape: Shape, axes: Shape) -> Shape:
    """The shape, of at least so many dims that the axes are some of them."""
    least = max(max(axes) + 1, -min(axes))
    return (*(1,) * (least - len(shape)), *shape)


def _dtype(name: str, dtype: str, *, wide: bool = False) -> str:
    if name == _TRUTH:
        return "bool"
    return "float32" if wide and dtype in NARROW and name != "a" else dtype


def _attributes(text: str, op: str | None, axes: Shape | None, *, keepdims: bool) -> dict[str, Any]:
    return {
        "graph": text,
        "reduction": op,
        "axes": None if op is None else axes,
        "keepdims": op is not None and keepdims,
    }


# --- Test data ------------------------------------------------------------------------------------

_STEEP = ("exp", "pow", "mod", "floor_mod", "sin", "cos", "tan")
"""Modes whose results lose all meaning, or their range, where operands are large."""

Magnitudes = tuple[float, float]

_BESIDE_INF: Magnitudes = (2.0**-14, 1.25)
_OF_FACTORS: Magnitudes = (0.5, 2.0)
_OF_STEEP: Magnitudes = (2.0**-14, 2.0)


def telling(p: FusedProblem, data: dict[str, Any]) -> dict[str, Any]:
    """Numbers of which all results between keep their meaning."""
    numbers = {name: values for name, values in data.items() if name not in p.truths}
    if (magnitudes := _magnitudes(p, numbers)) is None:
        return data
    return {**data, **{name: _within(values, *magnitudes) for name, values in numbers.items()}}


def _magnitudes(p: FusedProblem, numbers: dict[str, Any]) -> Magnitudes | None:
    """What is asked of numbers that are finite and not 0; None for nothing."""
    if any(np.isinf(values).any() for values in numbers.values()):
        return _BESIDE_INF  # what underflows must not meet it: 0·Inf is NaN, a small number times it Inf
    if p.reduction is not None and p.reduction.op in PRODUCTS:
        return _OF_FACTORS
    if any(node.mode in _STEEP for node in p.graph.nodes):
        return _OF_STEEP
    return None


def _within(values: Any, least: float, most: float) -> Any:
    """The values; those that are finite and not 0 with a magnitude in least…most."""
    inside = np.copysign(np.clip(np.abs(values), least, most), values)
    return np.where(np.isfinite(values) & (values != 0.0), inside, values)


# --- Boundaries -----------------------------------------------------------------------------------

_SETS = (1, 2, 31, 32, 33, 1023, 1025, 4099, 2**16 + 1)


def boundaries(dtype: str) -> Iterator[Boundary]:
    """The graphs of a quick run, on special values too; shapes around limits, without and with a reduction."""
    for text, op in QUICK[dtype]:
        name = text if op is None else f"{op} of {text}"
        yield Boundary(name, _call(dtype, text, op, (2, 5, 9), others=(2, 1, 9)))
        yield Boundary(
            f"{name}, special values", _call(dtype, text, op, (8, 64)), special_values=True
        )
    plain = next(text for text, op in QUICK[dtype] if op is None)
    for name, shape, strides in boundary_shapes(unusual=dtype == "float32"):
        yield Boundary(name, _call(dtype, plain, None, shape, strides=strides))
    reduced, op = next((text, op) for text, op in QUICK[dtype] if op is not None)
    yield Boundary("a reduction of no sets", _call(dtype, reduced, op, (0, 3)))
    yield Boundary("a reduction of empty sets", _call(dtype, reduced, op, (3, 0)))
    yield Boundary("a reduction of all", _call(dtype, reduced, op, (3, 5), axes=None))
    yield Boundary("a reduction of nothing", _call(dtype, reduced, op, (3, 5), axes=()))
    if dtype == "float32":
        yield Boundary("one set of 9001", _call(dtype, reduced, op, (1, 9001)))
    for size in _SETS:
        yield Boundary(f"sets of {size}", _call(dtype, reduced, op, (3, size)))
        yield Boundary(f"sets of {size}, apart", _call(dtype, reduced, op, (size, 3), axes=(0,)))


def _call(
    dtype: str,
    text: str,
    op: str | None,
    shape: Shape,
    *,
    others: Shape | None = None,
    strides: Shape | None = None,
    axes: Shape | None = (1,),
) -> Arguments:
    """A call in which a has the shape and the strides, and the other tensors may have another shape."""
    tensors = {
        name: TensorType(_dtype(name, dtype), shape if others is None else others)
        for name in graph_of(text).tensors
    }
    tensors["a"] = TensorType(dtype, shape, strides)
    return Arguments(tensors, _attributes(text, op, axes, keepdims=False))
