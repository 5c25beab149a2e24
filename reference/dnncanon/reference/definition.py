"""What turns a definition into a primitive: validation by the spec, float64, one rounding at the end.

A definition is written for any array that speaks NumPy's vocabulary. Users call it through
:class:`Definition`; the accuracy model runs the very same code on arrays that carry their rounding
errors, through :attr:`Definition.definition`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnncanon.reference.rounding import rounded
from dnncanon.spec import Call, MissingTensorError, Primitive
from dnncanon.spec.signature import docstring, signature

# Deliberately loose: a definition also runs on duck arrays, which no type of NumPy's describes.
Array: TypeAlias = Any

Lift: TypeAlias = Callable[[NDArray[np.float64]], Array]


class Definition:
    """A primitive of the reference: call it as ``outputs = primitive(*tensors, **attributes)``.

    Inputs are arrays of one of the primitive's dtypes and are never written; the result is a new NumPy
    array, computed in float64 and rounded once to the dtype of the output, to nearest even. A ``whole``
    definition only moves and converts integers, and gets them as int64. Several outputs come as a NamedTuple.
    """

    def __init__(
        self,
        primitive: Primitive[Any],
        definition: Callable[..., Array],
        *,
        lifts: bool = False,
        whole: bool = False,
        convolves: bool = False,
    ) -> None:
        self.primitive = primitive
        self.definition = definition
        self.lifts = lifts
        self.whole = whole
        self.convolves = convolves
        self.__name__ = self.__qualname__ = primitive.name
        self.__module__ = definition.__module__
        self.__doc__ = docstring(primitive)
        self.__signature__ = signature(primitive)

    def __call__(self, *tensors: Array, **attributes: Any) -> Any:
        call = self.primitive.bind(*tensors, **attributes)
        with np.errstate(all="ignore"):  # NaN, Inf and underflow are results like any other
            arrays = [None if t is None else _operand(t, whole=self.whole) for t in tensors]
            results = self._results(call, arrays, _as_it_is)
        types = call.outputs
        return call.results(rounded(r, t.dtype) for r, t in zip(results, types, strict=True))

    def evaluate(
        self, call: Call[Any], tensors: dict[str, Array], lift: Lift | None = None
    ) -> tuple[Array, ...]:
        """Run the definition unrounded, on arrays of any kind, for a call that is bound already.

        ``lift`` makes an array of that kind of a NumPy array that the definition makes itself.
        """
        ordered = [tensors.get(spec.name) for spec in self.primitive.inputs]
        return self._results(call, ordered, lift or _as_it_is)

    def _results(
        self, call: Call[Any], tensors: list[Array | None], lift: Lift
    ) -> tuple[Array, ...]:
        leading = (call.problem, lift) if self.lifts else (call.problem,)
        return _several(self.definition(*leading, *tensors))

    def __repr__(self) -> str:
        return f"<dnncanon.reference.{self.__name__}>"


def _as_it_is(array: Array) -> Array:
    return array


def _several(result: Any) -> tuple[Array, ...]:
    """The outputs that a definition returned; those that the call does not have are None, and left out."""
    given = result if isinstance(result, tuple) else (result,)
    return tuple(array for array in given if array is not None)


def _operand(tensor: Array, *, whole: bool) -> NDArray[Any]:
    """A tensor as float64 or, where ``whole`` says so and it holds integers, as int64."""
    try:
        array = np.asarray(tensor)
        return array.astype(np.int64 if whole and array.dtype.kind in "iub" else np.float64)
    except Exception as wrong:  # arrays on another device, or of a dtype that NumPy cannot see
        kind = type(tensor).__name__
        raise MissingTensorError(
            f"NumPy cannot read a {kind} ({wrong}); pass NumPy arrays"
        ) from wrong


def defines(
    primitive: Primitive[Any],
    *,
    lifts: bool = False,
    whole: bool = False,
    convolves: bool = False,
) -> Callable[[Callable[..., Array]], Definition]:
    """Decorate the function ``(problem, *tensors)`` that defines ``primitive``.

    With ``lifts`` it is ``(problem, lift, *tensors)``: numbers that are exact and come from no tensor, such
    as random bits, pass through ``lift`` before they are computed with, so that errors are carried from there.
    With ``whole`` integers and truth values come as int64, which holds them all; float64 has 53 digits.
    With ``convolves`` it says which of its sums are convolutions, by :func:`convolution`.
    """
    return lambda definition: Definition(
        primitive, definition, lifts=lifts, whole=whole, convolves=convolves
    )


def convolution(total: Array, first: Array, second: Array) -> Array:
    """``total`` as it is, said to be a convolution of two operands along the last axis, channel by channel.

    A backend may compute it by Fourier transforms, whose errors are relative to the operands' norms: the
    accuracy model's arrays are told.
    """
    told = getattr(total, "as_convolution", None)
    return total if told is None else told(first, second)


def kept(value: Array, dtype: str) -> Array:
    """``value`` as it is, said to be kept in ``dtype`` by backends that do: an operand of a matrix product.

    It is rounded once more, which the accuracy model's arrays are told.
    """
    told = getattr(value, "kept_as", None)
    return value if told is None else told(dtype)


def chosen(condition: Array, value: Array, other: Array) -> Array:
    """``np.where`` for a discontinuous function, where a backend may rightly choose otherwise.

    Near a tie its errors decide; then all that is made of the result may be otherwise too, by one error that is
    everywhere. The accuracy model's comparisons are asked which those are, and nothing is claimed of them.
    """
    decided = getattr(condition, "chosen", None)
    return np.where(condition, value, other) if decided is None else decided(value, other)


__all__ = ["Array", "Definition", "Lift", "chosen", "convolution", "defines", "kept"]
