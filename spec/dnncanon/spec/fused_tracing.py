"""``fuse``: from a Python function of arrays to one call of ``pointwise_fusion``.

The function is called once, with stand-ins for its tensors, on which Python's operators and the functions
of ``modes`` write down a graph. ``sum`` and ``reduce`` end a function. Each library offers ``fuse`` and
``modes`` as its own.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from dnncanon.spec.fused_graph import (
    FUSIBLE,
    TENSORS,
    Builder,
    Constant,
    Operand,
    Result,
    Tensor,
    canonical,
    constant,
)
from dnncanon.spec.pointwise import MODES


class Traced:
    """A tensor or a result in a function that is being traced."""

    __array_ufunc__ = None  # so that NumPy's scalars leave operators to it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Builder, operand: Operand) -> None:
        self._builder = builder
        self._operand = operand

    def __add__(self, other: Any) -> "Traced":
        return _apply("add", self, other)

    def __radd__(self, other: Any) -> "Traced":
        return _apply("add", other, self)

    def __sub__(self, other: Any) -> "Traced":
        return _apply("sub", self, other)

    def __rsub__(self, other: Any) -> "Traced":
        return _apply("sub", other, self)

    def __mul__(self, other: Any) -> "Traced":
        return _apply("mul", self, other)

    def __rmul__(self, other: Any) -> "Traced":
        return _apply("mul", other, self)

    def __truediv__(self, other: Any) -> "Traced":
        return _apply("div", self, other)

    def __rtruediv__(self, other: Any) -> "Traced":
        return _apply("div", other, self)

    def __mod__(self, other: Any) -> "Traced":
        return _apply("floor_mod", self, other)

    def __rmod__(self, other: Any) -> "Traced":
        return _apply("floor_mod", other, self)

    def __pow__(self, other: Any) -> "Traced":
        return _apply("pow", self, other)

    def __rpow__(self, other: Any) -> "Traced":
        return _apply("pow", other, self)

    def __neg__(self) -> "Traced":
        return _apply("neg", self)

    def __abs__(self) -> "Traced":
        return _apply("abs", self)

    def __lt__(self, other: Any) -> "Traced":
        return _apply("cmp_lt", self, other)

    def __le__(self, other: Any) -> "Traced":
        return _apply("cmp_le", self, other)

    def __gt__(self, other: Any) -> "Traced":
        return _apply("cmp_gt", self, other)

    def __ge__(self, other: Any) -> "Traced":
        return _apply("cmp_ge", self, other)

    def __eq__(self, other: Any) -> "Traced":  # type: ignore[override]
        return _apply("cmp_eq", self, other)

    def __ne__(self, other: Any) -> "Traced":  # type: ignore[override]
        return _apply("cmp_neq", self, other)

    def __and__(self, other: Any) -> "Traced":
        return _apply("logical_and", self, other)

    def __or__(self, other: Any) -> "Traced":
        return _apply("logical_or", self, other)

    def __invert__(self) -> "Traced":
        return _apply("logical_not", self)

    def __bool__(self) -> NoReturn:
        raise TypeError("a traced function cannot branch; use modes.binary_select(x, b, condition)")

    def sum(self, axes: Any = None, *, keepdims: bool = False) -> "Reduced":
        """The sum over some axes, all for None."""
        return self.reduce("add", axes, keepdims=keepdims)

    def reduce(self, op: str, axes: Any = None, *, keepdims: bool = False) -> "Reduced":
        """The reduction ``op`` of reduce_forward; nothing can be made of its result."""
        return Reduced(self, op, axes, keepdims)


@dataclass(frozen=True)
class Reduced:
    """What a function returns that ends in a reduction."""

    of: Traced
    op: str
    axes: Any
    keepdims: bool


class Modes:
    """The modes of pointwise_operation as functions of what is traced: ``modes.gelu_fwd(x)``.

    Their parameters are keywords: ``modes.relu_fwd(x, relu_upper_clip=6.0)``.
    """

    def __getattr__(self, name: str) -> Callable[..., Traced]:
        if name not in FUSIBLE:
            known = "cannot be part of a graph" if name in MODES else "is none"
            raise AttributeError(f"pointwise_operation's mode {name!r} {known}")

        def mode(*operands: Any, **parameters: float) -> Traced:
            return _apply(name, *operands, **parameters)

        mode.__name__ = mode.__qualname__ = name
        mode.__doc__ = FUSIBLE[name].formula
        return mode

    def __dir__(self) -> list[str]:
        return list(FUSIBLE)


modes = Modes()


class Fused:
    """A function of tensors as one call of ``pointwise_fusion``; ``graph`` is its text."""

    def __init__(self, function: Callable[..., Any], primitive: Callable[..., Any]) -> None:
        self.attributes = traced(function)
        self._primitive = primitive
        self.__name__ = getattr(function, "__name__", "fused")
        self.__doc__ = function.__doc__

    @property
    def graph(self) -> str:
        text: str = self.attributes["graph"]
        return text

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """The result for tensors in the order of the function's parameters; options are the backend's."""
        return self._primitive(*tensors, **self.attributes, **options)

    def __repr__(self) -> str:
        return f"<fused {self.graph}>"


def traced(function: Callable[..., Any]) -> dict[str, Any]:
    """The attributes of ``pointwise_fusion`` with which it computes ``function``.

    TypeError for a function of none or more than six parameters, or one that returns nothing traced;
    ValueError for what a graph cannot have.
    """
    count = len(inspect.signature(function).parameters)
    if not 1 <= count <= len(TENSORS):
        raise TypeError(f"a function of {count} tensors; pass one of 1 to {len(TENSORS)}")
    builder = Builder()
    result = function(*(Traced(builder, Tensor(name)) for name in TENSORS[:count]))
    if isinstance(result, Reduced):
        reduction = {"reduction": result.op, "axes": result.axes, "keepdims": result.keepdims}
        return {"graph": _text(builder, result.of), **reduction}
    return {"graph": _text(builder, result)}


def _text(builder: Builder, result: Any) -> str:
    if not isinstance(result, Traced):
        raise TypeError(f"the function returned {type(result).__name__}, no result of its tensors")
    operand = result._operand
    if not isinstance(operand, Result):  # an operand as it is
        operand = builder.add("identity", (operand,), {})
    return str(canonical(builder.nodes, operand.node))


def _apply(mode: str, *operands: Any, **parameters: float) -> Traced:
    given = tuple(map(_operand, operands))
    builder = next((o._builder for o in operands if isinstance(o, Traced)), None)
    if builder is None:
        raise TypeError(f"{mode} of no tensor; it is for functions that fuse() traces")
    return Traced(builder, builder.add(mode, given, parameters))


def _operand(value: Any) -> Operand | Constant:
    if isinstance(value, Traced):
        return value._operand
    if isinstance(value, Reduced):
        raise TypeError("a reduction ends a fused function; nothing can be made of its result")
    return constant(value)
