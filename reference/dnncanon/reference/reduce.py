"""Reductions, defined, and their gradients.

x is laid out with one set in each row: the axes are moved to the back and joined. Forward a row becomes a
number; backward the gradient of a row is that number's dy, as a column, with what the row is.
"""

from collections.abc import Callable

import numpy as np

from dnncanon import spec
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.reduce import ReduceProblem


@defines(spec.reduce_forward)
def reduce_forward(p: ReduceProblem, x: Array) -> tuple[Array, Array | None]:
    """y of each set, and the place of its extremum."""
    indices = _place_of_extremum(p.op, _rows(p, x)) if p.indices else None
    return reduced(p, x), None if indices is None else indices.reshape(p.y_shape)


def reduced(p: ReduceProblem, x: Array) -> Array:
    """y of each set"""
    return FORWARD[p.op](_rows(p, x)).reshape(p.y_shape)


@defines(spec.reduce_backward)
def reduce_backward(p: ReduceProblem, dy: Array, x: Array) -> Array:
    """dx of each element, from its set's dy."""
    rows = _rows(p, x)
    dx = BACKWARD[p.op](np.broadcast_to(dy.reshape(-1, 1), rows.shape), rows)
    return _from_rows(p, dx)


# --- Each reduction and its gradient --------------------------------------------------------------
# Forward functions take x as [sets, n] and give y as [sets]; backward functions take dy and x so.


def add(x: Array) -> Array:
    """Σ x_i"""
    return np.sum(x, axis=1)


def add_backward(dy: Array, x: Array) -> Array:
    return dy


def avg(x: Array) -> Array:
    """Σ x_i / n"""
    return np.sum(x, axis=1) / x.shape[1]


def avg_backward(dy: Array, x: Array) -> Array:
    return dy / x.shape[1]


def mul(x: Array) -> Array:
    """Π x_i"""
    return np.prod(x, axis=1)


def mul_backward(dy: Array, x: Array) -> Array:
    """dy·Π_{j≠i} x_j: of a set with one 0 only that has a gradient, of one with several none has"""
    zeros = np.sum(_ones_where(x == 0.0), axis=1, keepdims=True)
    others = np.where(x == 0.0, zeros == 1.0, zeros == 0.0)
    return np.where(others, dy * (_product(x) / _without_zeros(x)), 0.0)


def mul_no_zeros(x: Array) -> Array:
    """Π x_i over the x_i that are not 0"""
    return np.prod(_without_zeros(x), axis=1)


def mul_no_zeros_backward(dy: Array, x: Array) -> Array:
    return np.where(x == 0.0, 0.0, dy * (_product(x) / _without_zeros(x)))


def maximum(x: Array) -> Array:
    """max x_i"""
    return np.max(x, axis=1, initial=-np.inf)


def minimum(x: Array) -> Array:
    """min x_i"""
    return np.min(x, axis=1, initial=np.inf)


def amax(x: Array) -> Array:
    """max |x_i|"""
    return np.max(np.abs(x), axis=1, initial=0.0)


def extremum_backward(op: str) -> Callable[[Array, Array], Array]:
    def backward(dy: Array, x: Array) -> Array:
        """dy, for amax with the sign of x_i, where the extremum is, else 0"""
        winner = np.arange(x.shape[1]) == _place_of_extremum(op, x)[:, None]
        return np.where(winner, _signed(dy, x) if op == "amax" else dy, 0.0)

    return backward


def norm1(x: Array) -> Array:
    """Σ |x_i|"""
    return np.sum(np.abs(x), axis=1)


def norm1_backward(dy: Array, x: Array) -> Array:
    return _signed(dy, x)


def norm2(x: Array) -> Array:
    """√(Σ x_i²) = c·√(Σ (x_i/c)²), c = max |x_i|, so that squares neither overflow nor underflow"""
    scale = _scale(x)
    return scale[:, 0] * np.sqrt(np.sum(np.square(_scaled(x, scale)), axis=1))


def norm2_backward(dy: Array, x: Array) -> Array:
    """dy·x_i/y, with both divided by c; Inf/Inf is NaN"""
    scaled = _scaled(x, _scale(x))
    norm = np.sqrt(np.sum(np.square(scaled), axis=1, keepdims=True))
    dx = np.where(norm == 0.0, 0.0, dy * (scaled / np.where(norm == 0.0, 1.0, norm)))
    return np.where(np.isinf(x), np.nan, dx)


def logsumexp(x: Array) -> Array:
    """m + ln Σ e^(x_i − m), m = max x_i; ±Inf are not subtracted"""
    largest = maximum(x)
    shift = np.where(np.isinf(largest), 0.0, largest)
    return shift + np.log(np.sum(np.exp(x - shift[:, None]), axis=1))


def logsumexp_backward(dy: Array, x: Array) -> Array:
    """dy·e^(x_i − m) / Σ_j e^(x_j − m), and 0 in a set of −Inf"""
    largest = maximum(x)[:, None]
    nothing = largest == -np.inf
    powers = np.exp(x - np.where(nothing, 0.0, largest))
    total = np.sum(powers, axis=1, keepdims=True)
    return np.where(nothing, 0.0, dy * (powers / np.where(nothing, 1.0, total)))


FORWARD: dict[str, Callable[[Array], Array]] = {
    "add": add,
    "mul": mul,
    "min": minimum,
    "max": maximum,
    "amax": amax,
    "avg": avg,
    "norm1": norm1,
    "norm2": norm2,
    "mul_no_zeros": mul_no_zeros,
    "logsumexp": logsumexp,
}

BACKWARD: dict[str, Callable[[Array, Array], Array]] = {
    "add": add_backward,
    "mul": mul_backward,
    "min": extremum_backward("min"),
    "max": extremum_backward("max"),
    "amax": extremum_backward("amax"),
    "avg": avg_backward,
    "norm1": norm1_backward,
    "norm2": norm2_backward,
    "mul_no_zeros": mul_no_zeros_backward,
    "logsumexp": logsumexp_backward,
}


# --- Helpers --------------------------------------------------------------------------------------


def _rows(p: ReduceProblem, x: Array) -> Array:
    """x as [sets, n]."""
    return x.transpose(_order(p)).reshape(_sets(p), p.length)


def _from_rows(p: ReduceProblem, rows: Array) -> Array:
    """[sets, n] as the shape of x."""
    order = _order(p)
    moved = rows.reshape([p.shape[axis] for axis in order])
    return moved.transpose([order.index(axis) for axis in range(len(order))])


def _order(p: ReduceProblem) -> list[int]:
    """All dims, the axes last."""
    return [axis for axis in range(len(p.shape)) if axis not in p.axes] + list(p.axes)


def _sets(p: ReduceProblem) -> int:
    return (
        int(np.prod(p.kept_shape, dtype=np.int64))
        if p.axes
        else int(np.prod(p.shape, dtype=np.int64))
    )


def _place_of_extremum(op: str, x: Array) -> Array:
    """The place of the first extremum of each row, NaN being larger than all; −1 in empty rows."""
    if x.shape[1] == 0:
        return np.full(x.shape[0], -1)
    key = {"max": x, "min": -x, "amax": np.abs(x)}[op]
    largest = np.max(key, axis=1, keepdims=True)
    return np.argmax((key == largest) | np.isnan(key), axis=1)


def _scale(x: Array) -> Array:
    """max |x_i| as a column; 1 where that is 0, by which nothing is divided."""
    largest = amax(x)[:, None]
    return np.where(largest == 0.0, 1.0, largest)


def _scaled(x: Array, scale: Array) -> Array:
    """x_i/c; beside Inf numbers are 0, and ±Inf are ±1."""
    return np.where(np.isinf(x), np.sign(x), x / scale)


def _signed(dy: Array, x: Array) -> Array:
    """sign(x)·dy, 0 where x is 0, whatever dy is."""
    return np.where(x == 0.0, 0.0, np.sign(x) * dy)


def _without_zeros(x: Array) -> Array:
    return np.where(x == 0.0, 1.0, x)


def _product(x: Array) -> Array:
    """Π x_i over the x_i that are not 0, as a column."""
    return mul_no_zeros(x)[:, None]


def _ones_where(condition: Array) -> Array:
    return np.where(condition, 1.0, 0.0)
