"""Tensor operators and casts, defined."""

from collections.abc import Callable

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec import DTYPES
from dnncanon.spec.transform import (
    AddTensorProblem,
    CastProblem,
    OpTensorProblem,
    ScaleProblem,
    SetProblem,
)

P = OpTensorProblem


@defines(spec.op_tensor)
def op_tensor(p: P, a: Array, b: Array | None = None, c: Array | None = None) -> Array:
    """y = op(α1·a, α2·b) + β·c"""
    a = p.alpha1 * a
    y = UNARY[p.op](a) if b is None else BINARY[p.op](p, a, p.alpha2 * b)
    return y if c is None else y + p.beta * c


@defines(spec.add_tensor)
def add_tensor(p: AddTensorProblem, a: Array, c: Array) -> Array:
    """y = α·a + β·c, where β = 0 leaves c unread"""
    added = np.broadcast_to(p.alpha * a, p.shape)
    return added if p.beta == 0.0 else added + p.beta * c


@defines(spec.scale_tensor)
def scale_tensor(p: ScaleProblem, x: Array) -> Array:
    """y = α·x"""
    return p.alpha * x


@defines(spec.set_tensor)
def set_tensor(p: SetProblem) -> Array:
    """y[i] = value"""
    return converted(np.full(p.shape, p.value), "float64", p.dtype)


@defines(spec.cast, whole=True)
def cast(p: CastProblem, x: Array) -> Array:
    """y = x, rounded to the numbers of dtype"""
    return converted(x, p.dtype, p.to, saturate=p.saturate)


# --- Operators ------------------------------------------------------------------------------------


def extremum(choose: Callable[[Array, Array], Array]) -> Callable[[P, Array, Array], Array]:
    """np.minimum or np.maximum; a NaN wins, or if it does not propagate loses."""

    def function(p: P, a: Array, b: Array) -> Array:
        chosen = choose(a, b)
        if p.propagates_nan:
            return chosen
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, chosen))

    return function


UNARY: dict[str, Callable[[Array], Array]] = {
    "sqrt": lambda a: np.sqrt(a),
    "not": lambda a: 1.0 - a,
}

BINARY: dict[str, Callable[[P, Array, Array], Array]] = {
    "add": lambda p, a, b: a + b,
    "mul": lambda p, a, b: a * b,
    "min": extremum(np.minimum),
    "max": extremum(np.maximum),
}

# --- Conversion -----------------------------------------------------------------------------------


def converted(x: Array, source: str, to: str, *, saturate: bool = False) -> Array:
    """x as a number of the type ``to``, but for the rounding to a floating-point type, which comes last.

    Integers saturate there too, and in bool everything but 0 is true: what is left to do is to say where
    numbers go that a floating-point type cannot round to.
    """
    target = DTYPES[to]
    if target.kind == "bool":
        return x != 0
    if target.kind == "integer":
        return np.rint(x) if DTYPES[source].is_float else x
    if saturate and target.max < DTYPES[source].max:
        return np.clip(x, -target.max, target.max)
    if not target.has_infinity:
        return np.where(np.abs(x) > _last_that_rounds_to_max(to), np.nan, x)
    return x


def _last_that_rounds_to_max(dtype: str) -> float:
    """Half a spacing above the largest number, which is even: a tie goes to it."""
    row = DTYPES[dtype]
    return row.max + 2.0 ** (np.frexp(row.max)[1] - row.digits - 1)
