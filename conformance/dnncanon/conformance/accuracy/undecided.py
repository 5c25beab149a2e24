"""Truth values that errors may decide: what comparisons of error-carrying arrays give near a tie."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.accuracy.array import FUNCTIONS, SIGMAS, ErrorArray, Precision


class Undecided(np.ndarray[Any, np.dtype[np.bool_]]):
    """Truth values some of which may be otherwise: ``undecided`` says which.

    A comparison of what carries errors makes them. Logic keeps them, ``where`` allows for both of its
    operands, and as an output either value is right. To all else they are a plain array.
    """

    undecided: NDArray[np.bool_]
    precision: Precision
    made = 0
    """How many there have been: whoever counts standard deviations leaves out errors of such decisions."""

    def __new__(
        cls, value: NDArray[np.bool_], undecided: NDArray[np.bool_], precision: Precision
    ) -> "Undecided":
        truths = np.asarray(value, np.bool_).view(cls)
        truths.undecided, truths.precision = undecided, precision
        Undecided.made += 1
        return truths

    def __array_finalize__(self, made_of: Any) -> None:
        """Whatever NumPy makes of such an array, other than by the functions below, is decided."""
        self.undecided = np.zeros(self.shape, np.bool_)
        self.precision = getattr(made_of, "precision", Precision(53, 0.0))

    def __getitem__(self, index: Any) -> Any:
        return Undecided(np.asarray(self)[index], self.undecided[index], self.precision)

    def reshape(self, *shape: Any, **options: Any) -> "Undecided":
        undecided = self.undecided.reshape(*shape, **options)
        return Undecided(np.asarray(self).reshape(*shape, **options), undecided, self.precision)

    def carried(self) -> ErrorArray:
        """As numbers, 0 and 1, whose error reaches from one to the other where that is undecided."""
        variance = np.where(self.undecided, SIGMAS**-2, 0.0)
        return ErrorArray(np.asarray(self, np.float64), self.precision, variance, quantum=1.0)

    def chosen(self, value: Any, other: Any) -> Any:
        """``where`` of a discontinuous function: of what is undecided, and is made of it, nothing is known.

        The reach of a choice is one error. Where many elements are made of it, and others of these, it comes
        in by every path with the same sign; variances would add it up as if it were several.
        """
        result = FUNCTIONS[np.where](np.asarray(self), value, other)
        differs = np.asarray(
            FUNCTIONS[np.where](np.asarray(~self), value, other).value != result.value
        )
        unknown = np.where(self.undecided & differs, np.inf, result.variance)
        return result.with_variance(unknown)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, ErrorArray) for x in inputs):
            return NotImplemented
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        if method != "__call__" or ufunc not in _KEEPING:
            return result
        masks = [x.undecided for x in inputs if isinstance(x, Undecided)]
        either = np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*masks)), result.shape)
        return Undecided(result, either, self.precision)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        given = tuple(args)
        if function is np.where and len(given) == 3:
            return FUNCTIONS[np.where](*given)
        if any(issubclass(kind, ErrorArray) for kind in types):
            return NotImplemented
        return function(*map(_plain, given), **{name: _plain(x) for name, x in kwargs.items()})


_KEEPING = (
    np.logical_and,
    np.logical_or,
    np.logical_not,
    np.bitwise_and,
    np.bitwise_or,
    np.invert,
    np.equal,
    np.not_equal,
)
"""What is undecided in an operand of these is so in the result."""


def _plain(argument: Any) -> Any:
    return np.asarray(argument) if isinstance(argument, Undecided) else argument
