"""The cells of recurrent networks as device functions: one step of one unit of one sequence.

All are called as ``cell(x, r, h, carried, codes, bounds) -> (kept, carried, h)``:

- ``x`` is what comes from the input, W·x_t + bW of each gate; ``r`` from the state, R·h_{t−1} + bR;
- ``h`` is h_{t−1}; ``carried`` what ``Cell.carries`` says;
- ``codes`` are whether rnn rectifies, whether cells are clipped, and whether a NaN then stays a NaN;
  ``bounds`` those of clipping;
- ``kept`` are the gates that backward needs.

σ is the logistic function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dnncanon.gpu.kernels import activation
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A step as kernels know it. Blocks are the gates' numbers among those of ``gates``.

    ``inputs`` are the blocks that hold W·x_t before the step, ``kept`` those that it writes; ``sums`` says
    how many gates the product with the state has. ``carries`` is "cell" for c, which goes from step to step,
    a number for the block that an earlier launch of the same step has left, or nothing. ``reads_h`` says that
    h_{t−1} has a part of its own, beside that in the product.
    """

    sums: int
    inputs: tuple[int, ...]
    kept: tuple[int, ...]
    carries: Literal["cell"] | int | None
    reads_h: bool
    step: Function


@cache
def cells(kind: str) -> dict[str, Cell]:
    """The cells for sums of a type, by name. GRUs with reset="before" take two launches a step."""
    return {
        "rnn": Cell(1, (0,), (), None, False, _rnn(kind)),
        "lstm": Cell(4, (0, 1, 2, 3), (0, 1, 2, 3), "cell", False, _lstm(kind)),
        "gru": Cell(3, (0, 1, 2), (0, 1, 2, 3), None, True, _gru(kind)),
        "gru_gates": Cell(2, (0, 1), (0, 1), None, True, _gru_gates(kind)),
        "gru_candidate": Cell(1, (2,), (2, 3), 1, True, _gru_candidate(kind)),
        "projection": Cell(1, (), (), None, False, _projection(kind)),
    }


@cache
def _rnn(kind: str) -> Function:
    zero = ELEMENTS[kind].sum(0)

    @device_function
    def rnn(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """h = max(x + r, 0) or tanh(x + r)"""
        z = x[0] + r[0]
        if codes[0]:
            return (z,), carried, (zero if z < zero else z)  # a NaN stays
        return (z,), carried, math.tanh(z)

    return rnn


@cache
def clipped(kind: str) -> Function:
    """clip(c, codes, bounds): between the bounds, if there are any."""
    number = ELEMENTS[kind].sum

    @device_function
    def clip(c: Any, codes: Any, bounds: Any) -> Any:
        if codes[1]:
            low, high = number(bounds[0]), number(bounds[1])
            if c != c:
                return c if codes[2] else low
            return low if c < low else (high if c > high else c)
        return c

    return clip


@cache
def _lstm(kind: str) -> Function:
    sigmoid, clip, one = activation.functions(kind).forward["sigmoid"], clipped(kind), _one(kind)

    @device_function
    def lstm(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """i, f, o = σ(x + r), g = tanh(x + r); c = f·c_{t−1} + i·g; h = o·tanh(c)"""
        i, f = sigmoid(x[0] + r[0], one), sigmoid(x[1] + r[1], one)
        g, o = math.tanh(x[2] + r[2]), sigmoid(x[3] + r[3], one)
        c = clip(f * carried + i * g, codes, bounds)
        return (i, f, g, o), c, o * math.tanh(c)

    return lstm


@cache
def _gru(kind: str) -> Function:
    sigmoid, one = activation.functions(kind).forward["sigmoid"], _one(kind)

    @device_function
    def gru(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """reset, z = σ(x + r); n = tanh(x_n + reset·r_n); h = (1 − z)·n + z·h_{t−1}"""
        reset, z = sigmoid(x[0] + r[0], one), sigmoid(x[1] + r[1], one)
        n = math.tanh(x[2] + reset * r[2])
        return (reset, z, n, r[2]), carried, (one - z) * n + z * h

    return gru


@cache
def _gru_gates(kind: str) -> Function:
    sigmoid, one = activation.functions(kind).forward["sigmoid"], _one(kind)

    @device_function
    def gru_gates(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """reset, z = σ(x + r); what goes on to the candidate is reset·h_{t−1}"""
        reset, z = sigmoid(x[0] + r[0], one), sigmoid(x[1] + r[1], one)
        return (reset, z), carried, reset * h

    return gru_gates


@cache
def _gru_candidate(kind: str) -> Function:
    one = _one(kind)

    @device_function
    def gru_candidate(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """n = tanh(x_n + R_n·(reset·h_{t−1}) + bR_n); h = (1 − z)·n + z·h_{t−1}, z being carried"""
        n = math.tanh(x[0] + r[0])
        return (n, r[0]), carried, (one - carried) * n + carried * h

    return gru_candidate


@cache
def _projection(kind: str) -> Function:
    @device_function
    def projection(x: Any, r: Any, h: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """h = P·h'"""
        return (r[0],), carried, r[0]

    return projection


def _one(kind: str) -> Any:
    return ELEMENTS[kind].sum(1)
