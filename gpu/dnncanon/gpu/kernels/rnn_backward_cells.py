"""The gradients of recurrent cells as device functions: one step of one unit of one sequence.

All are called as ``cell(gates, h, c, dm, carried, codes, bounds) -> (gradients, carried)``:

- ``gates`` are the saved blocks that ``BackwardCell.gates`` names; ``c`` is (c_t, c_{t−1});
- ``h`` is h_t or h_{t−1}, as ``BackwardCell.reads_h`` says;
- ``dm`` is the gradient by the output, or the product of an earlier launch of the same step with a matrix;
- ``carried`` goes from step to step beside the product: δc of lstm, or the part of δh that bypasses the gates;
- ``codes`` are whether rnn rectifies and whether cells are clipped; ``bounds`` those of clipping.

``gradients`` are by the pre-activations. The equations are those of :mod:`dnncanon.spec.rnn`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BackwardCell:
    """A step as kernels know it.

    ``rows`` are the blocks of a row of dgates that the gradients are written to. ``passed`` are those that
    become operands of the next product: (number of the gradient, block of the state). ``total`` says that dm
    is dy and what arrives from the step behind; otherwise it is the product alone. ``carries`` is "cell" for
    δc, "state" for a part of δh, or nothing.
    """

    gates: tuple[int, ...]
    reads_h: Literal["own", "before"] | None
    rows: tuple[int, ...]
    passed: tuple[tuple[int, int], ...]
    total: bool
    carries: Literal["cell", "state"] | None
    step: Function


@cache
def backward_cells(kind: str) -> dict[str, BackwardCell]:
    """The cells for sums of a type, by name.

    A projected lstm takes two launches a step, "projected" and "lstm_of_projected"; so does a GRU whose reset
    gate comes before the product, "gru_candidate" and "gru_reset".
    """
    lstm = _lstm(kind)
    all_four, each = (0, 1, 2, 3), ((0, 0), (1, 1), (2, 2), (3, 3))
    return {
        "rnn": BackwardCell((), "own", (0,), ((0, 0),), True, None, _rnn(kind)),
        "lstm": BackwardCell(all_four, None, all_four, each, True, "cell", lstm),
        "projected": BackwardCell((), None, (0,), ((0, 0),), True, None, _projected),
        "lstm_of_projected": BackwardCell(all_four, None, all_four, each, False, "cell", lstm),
        "gru": BackwardCell(
            all_four, "before", all_four, ((0, 0), (1, 1), (3, 2)), True, "state", _gru(kind)
        ),
        "gru_candidate": BackwardCell(
            (1, 2), "before", (1, 2, 3), ((0, 1), (1, 2)), True, "state", _gru_candidate(kind)
        ),
        "gru_reset": BackwardCell(
            (0,), "before", (0,), ((0, 0),), False, "state", _gru_reset(kind)
        ),
    }


@cache
def _rnn(kind: str) -> Function:
    zero, one = ELEMENTS[kind].sum(0), ELEMENTS[kind].sum(1)

    @device_function
    def rnn(gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """δa = δm where h > 0, or δm·(1 − h²)"""
        if codes[0]:
            return (dm if h > zero else zero,), carried
        return (dm * (one - h * h),), carried

    return rnn


@device_function
def _projected(gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any) -> Any:
    """The total gradient by the projected output, which goes on to the product with P"""
    return (dm,), carried


@cache
def _lstm(kind: str) -> Function:
    number, zero, one = ELEMENTS[kind].sum, ELEMENTS[kind].sum(0), ELEMENTS[kind].sum(1)

    @device_function
    def lstm(gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """δc += δm·o·(1 − tanh²c), 0 where c is clipped; δi, δf, δg of δc, δo of δm; carried is δc·f"""
        i, f, g, o = gates
        t = math.tanh(c[0])
        dc = carried + dm * o * (one - t * t)
        if codes[1]:
            inside = (number(bounds[0]) < c[0]) & (c[0] < number(bounds[1]))
            dc = dc if inside else zero
        di, df = dc * g * i * (one - i), dc * c[1] * f * (one - f)
        return (di, df, dc * i * (one - g * g), dm * t * o * (one - o)), dc * f

    return lstm


@cache
def _gru(kind: str) -> Function:
    one = ELEMENTS[kind].sum(1)

    @device_function
    def gru(gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any) -> Any:
        """δr, δz, δn, δu; carried is δm·z"""
        r, z, n, u = gates
        dn = dm * (one - z) * (one - n * n)
        dz = dm * (h - n) * z * (one - z)
        return (dn * u * r * (one - r), dz, dn, dn * r), dm * z

    return gru


@cache
def _gru_candidate(kind: str) -> Function:
    one = ELEMENTS[kind].sum(1)

    @device_function
    def gru_candidate(
        gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any
    ) -> Any:
        """δz, δn and δu = δn, which R_n is multiplied by; carried is δm·z"""
        z, n = gates
        dn = dm * (one - z) * (one - n * n)
        return (dm * (h - n) * z * (one - z), dn, dn), dm * z

    return gru_candidate


@cache
def _gru_reset(kind: str) -> Function:
    one = ELEMENTS[kind].sum(1)

    @device_function
    def gru_reset(
        gates: Any, h: Any, c: Any, dm: Any, carried: Any, codes: Any, bounds: Any
    ) -> Any:
        """δr, of dm = R_nᵀ·δu, the gradient by r∘h; carried grows by dm·r"""
        (r,) = gates
        return (dm * h * r * (one - r),), carried + dm * r

    return gru_reset
