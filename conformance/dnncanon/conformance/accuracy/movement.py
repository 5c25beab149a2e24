"""Rules of the accuracy model for functions that only move, repeat or join elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnncanon.conformance.accuracy.array import (
    FUNCTIONS,
    ErrorArray,
    Floats,
    quantum_of,
)


def _moving(function: Callable[..., Any]) -> Callable[..., ErrorArray]:
    return lambda a, *args, **options: a.moved(lambda part: function(part, *args, **options))


def _repeating(function: Callable[..., Any]) -> Callable[..., ErrorArray]:
    """A function that may show an element several times: its error is then one that they share."""

    def rule(a: ErrorArray, *args: Any, **options: Any) -> ErrorArray:
        options = {key: value for key, value in options.items() if key != "subok"}
        times = 2.0 if a.has_errors or bool((a.terms > 1.0).any()) else 1.0
        shared = a.shared(times)
        return shared.moved(lambda part: function(part, *args, **options))

    return rule


def _indexed(function: Callable[..., Any]) -> Callable[..., ErrorArray]:
    """take and take_along_axis; an index that carries errors is no index."""

    def rule(a: ErrorArray, *args: Any, **options: Any) -> ErrorArray:
        if not isinstance(a, ErrorArray):
            raise TypeError(f"{function.__name__}: an index must be an array of integers")
        return _repeating(function)(a, *args, **options)

    return rule


def pad(
    a: ErrorArray, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0
) -> ErrorArray:
    """With constants only, which are exact; what other modes do is an index."""
    if mode != "constant":
        raise TypeError(f"the accuracy model has no rule for pad with mode={mode!r}; use indexing")
    padded = a.moved(lambda part: np.pad(part, pad_width))
    constant = np.asarray(constant_values, np.float64)
    if constant.any():
        padded.value = np.pad(a.value, pad_width, constant_values=constant_values)
        squares = np.square(constant / a.unit)
        padded.squares = np.pad(a.squares, pad_width, constant_values=squares)
        padded.quantum = min(a.quantum, quantum_of(constant))
    return padded


def _joining(function: Callable[..., Any]) -> Callable[..., ErrorArray]:
    def rule(arrays: Sequence[Any], axis: int | None = 0) -> ErrorArray:
        like = next(a for a in arrays if isinstance(a, ErrorArray))
        lifted = [like.lift(a) for a in arrays]
        unit = max(a.unit for a in lifted)
        parts = [a if a.unit == unit else a.in_unit(unit) for a in lifted]
        whole = {number for a in parts for number in a.common}
        if not all(whole == set(a.common) for a in parts):
            parts = [a.folded() for a in parts]

        def join(pieces: Sequence[Floats]) -> Floats:
            return np.asarray(function(pieces, axis=axis))

        result = ErrorArray(
            join([a.value for a in parts]),
            like.precision,
            join([a.variance for a in parts]),
            terms=join([a.terms for a in parts]),
            squares=join([a.squares for a in parts]),
            quantum=min(a.quantum for a in parts),
            unit=unit,
            fan=max(a.fan for a in parts),
        )
        for number in parts[0].common:
            pieces = [a.common[number] for a in parts]
            result.common[number] = type(pieces[0])(
                join([c.sensitivity for c in pieces]),
                np.asarray(function([c.group for c in pieces], axis=axis)),
            )
        return result

    return rule


def _splitting(function: Callable[..., Any]) -> Callable[..., list[ErrorArray]]:
    def rule(a: ErrorArray, sections: Any, axis: int = 0) -> list[ErrorArray]:
        positions = np.arange(a.shape[axis])
        index = (slice(None),) * (axis % a.ndim)
        return [a[(*index, _as_slice(part))] for part in function(positions, sections)]

    return rule


def _as_slice(positions: Any) -> slice:
    return slice(int(positions[0]), int(positions[-1]) + 1) if len(positions) else slice(0, 0)


FUNCTIONS.update(
    {
        f: _moving(f)
        for f in (
            np.reshape,
            np.ravel,
            np.transpose,
            np.swapaxes,
            np.moveaxis,
            np.expand_dims,
            np.squeeze,
            np.flip,
            np.roll,
            np.copy,
            np.tril,
            np.triu,
            np.diagonal,
            np.rot90,
        )
    }
)
FUNCTIONS.update(
    {f: _repeating(f) for f in (np.broadcast_to, np.repeat, np.tile, sliding_window_view)}
)
FUNCTIONS.update({f: _indexed(f) for f in (np.take, np.take_along_axis)})
FUNCTIONS.update({f: _splitting(f) for f in (np.split, np.array_split)})
FUNCTIONS.update({f: _joining(f) for f in (np.concatenate, np.stack)})
FUNCTIONS.update(
    {
        np.pad: pad,
        np.shape: lambda a: a.shape,
        np.ndim: lambda a: a.ndim,
        np.size: lambda a: a.size,
        np.iscomplexobj: lambda a: False,
        np.isrealobj: lambda a: True,
    }
)
