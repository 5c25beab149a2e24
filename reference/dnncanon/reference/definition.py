"""What turns a definition into a primitive: validation by the spec, float64, one rounding at the end.

A definition is written for any array that speaks NumPy's vocabulary. Users call it through
:class:`Definition`; the accuracy model runs the very same code on arrays that carry their rounding
errors, through :attr:`Definition.definition`.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnncanon.reference.rounding import rounded
from dnncanon.spec import REQUIRED, Arguments, Call, MissingTensorError, Primitive

# Deliberately loose: a definition also runs on duck arrays, which no type of NumPy's describes.
Array: TypeAlias = Any


class Definition:
    """A primitive of the reference: call it as ``outputs = primitive(*tensors, **attributes)``.

    Inputs are arrays of one of the primitive's dtypes and are never written; the result is a new NumPy
    array of that dtype, computed in float64 and rounded once, to nearest even.
    """

    def __init__(self, primitive: Primitive[Any], definition: Callable[..., Array]) -> None:
        self.primitive = primitive
        self.definition = definition
        self.__name__ = self.__qualname__ = primitive.name
        self.__module__ = definition.__module__
        self.__doc__ = documentation(primitive)
        self.__signature__ = signature(primitive)

    def __call__(self, *tensors: Array, **attributes: Any) -> NDArray[Any]:
        call = self.primitive.bind(*tensors, **attributes)
        with np.errstate(all="ignore"):  # NaN, Inf and underflow are results like any other
            arrays = [None if t is None else _as_float64(t) for t in tensors]
            return rounded(self.definition(call.problem, *arrays), call.outputs[0].dtype)

    def evaluate(self, call: Call[Any], tensors: dict[str, Array]) -> tuple[Array, ...]:
        """Run the definition unrounded, on arrays of any kind, for a call that is bound already."""
        ordered = [tensors.get(spec.name) for spec in self.primitive.inputs]
        result = self.definition(call.problem, *ordered)
        return result if isinstance(result, tuple) else (result,)

    def __repr__(self) -> str:
        return f"<dnncanon.reference.{self.__name__}>"


def _as_float64(tensor: Array) -> NDArray[np.float64]:
    try:
        return np.asarray(tensor).astype(np.float64)
    except Exception as wrong:  # arrays on another device, or of a dtype that NumPy cannot see
        kind = type(tensor).__name__
        raise MissingTensorError(
            f"NumPy cannot read a {kind} ({wrong}); pass NumPy arrays"
        ) from wrong


def defines(primitive: Primitive[Any]) -> Callable[[Callable[..., Array]], Definition]:
    """Decorate the function ``(problem, *tensors)`` that defines ``primitive``."""
    return lambda definition: Definition(primitive, definition)


def signature(primitive: Primitive[Any]) -> inspect.Signature:
    """Tensors positional in the spec's order, attributes keyword-only."""
    parameter, empty = inspect.Parameter, inspect.Parameter.empty
    tensors = [
        parameter(t.name, parameter.POSITIONAL_ONLY, default=None if t.optional else empty)
        for t in primitive.inputs
    ]
    attributes = [
        parameter(
            a.name, parameter.KEYWORD_ONLY, default=empty if a.default is REQUIRED else a.default
        )
        for a in primitive.attributes
    ]
    return inspect.Signature([*tensors, *attributes])


def documentation(primitive: Primitive[Any]) -> str:
    """The docstring of a primitive, from its declaration."""
    lines = [primitive.summary, "", *primitive.formula.splitlines(), ""]
    lines += [f"{t.name}: array [{t.dims}], {t.doc}" for t in primitive.inputs]
    lines += [f"{a.name}: {a.kind.describes}. {a.doc}" for a in primitive.attributes]
    lines += [f"Returns {t.name}: array [{t.dims}], {t.doc}" for t in primitive.outputs]
    lines += [
        "Raises SpecError, naming the constraint, for arguments that the spec does not allow:"
    ]
    lines += [f"C{i}. {c.text}" for i, c in enumerate(primitive.constraints, 1)]
    return "\n".join(lines)


__all__ = ["Arguments", "Array", "Definition", "defines", "documentation", "signature"]
