"""The cells of recurrent networks, defined: a step as its equations, and the chain rule beside it.

A step of one layer in one direction is made of

    a    [B, G·H]  what comes from the input: W·x_t + bW
    h, c [B, ·]    the state before it
    R, bR          the recurrent weights; R·h is written for h·Rᵀ

and gives the gates that its gradient is made of, the new cells, and the output m, which is h_t unless it is
projected. The gradient, made of δm and of δc from the step behind, is by the pre-activations; what it sends on
to the step before are δh and δc.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnncanon.reference.activation import sigmoid
from dnncanon.reference.definition import Array, chosen, kept
from dnncanon.spec.rnn_problem import RnnProblem


@dataclass(frozen=True)
class Recurrent:
    """R [G·H, Q] and bR [G·H], or 0, of one layer in one direction."""

    matrix: Array
    bias: Array | float

    def __call__(self, h: Array) -> Array:
        """R·h + bR, of all gates."""
        return h @ self.matrix.T + self.bias

    def some(self, first: int, last: int) -> "Recurrent":
        """The rows of some gates."""
        bias = self.bias if isinstance(self.bias, float) else self.bias[first:last]
        return Recurrent(self.matrix[first:last], bias)

    def back(self, gradient: Array) -> Array:
        """Rᵀ·δ"""
        return gradient @ self.matrix


class Step(NamedTuple):
    """What a step leaves: its gates, its cells (None but of lstm), and its output."""

    gates: tuple[Array, ...]
    cells: Array
    output: Array


class Gradient(NamedTuple):
    """By the pre-activations, as ``dgates`` has them side by side; by c and by h of the step before."""

    gates: Array
    cells: Array
    state: Array


class Saved(NamedTuple):
    """A step as its gradient needs it: gates, cells and output, and the state before it."""

    gates: tuple[Array, ...]
    cells: Array
    output: Array
    cells_before: Array
    state_before: Array


# --- A plain network ------------------------------------------------------------------------------


def rnn_step(p: RnnProblem, a: Array, h: Array, c: Array, recurrent: Recurrent) -> Step:
    """h_t = f(a + R·h + bR), f = max(·, 0) or tanh"""
    z = a + recurrent(h)
    return Step((), None, np.maximum(z, 0.0) if p.cell == "rnn_relu" else np.tanh(z))


def rnn_gradient(
    p: RnnProblem, saved: Saved, dm: Array, dc: Array, recurrent: Recurrent
) -> Gradient:
    """δa = f′∘δm, by h itself: [h > 0], or 1 − h²; δh = Rᵀ·δa"""
    h = saved.output
    da = chosen(h > 0.0, dm, 0.0) if p.cell == "rnn_relu" else dm * (1.0 - np.square(h))
    da = kept(da, p.dtype)
    return Gradient(da, None, recurrent.back(da))


# --- LSTM -----------------------------------------------------------------------------------------


def lstm_step(p: RnnProblem, a: Array, h: Array, c: Array, recurrent: Recurrent) -> Step:
    """i, f, o = σ(a + R·h + bR), g = tanh(…); c_t = clip(f∘c + i∘g); m = o∘tanh(c_t)"""
    i, f, g, o = of_gates(a + recurrent(h), 4)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    c = clipped(p, f * c + i * g)
    return Step((i, f, g, o), c, o * np.tanh(c))


def lstm_gradient(
    p: RnnProblem, saved: Saved, dm: Array, dc: Array, recurrent: Recurrent
) -> Gradient:
    """δo = δm∘tanh(c); δc += δm∘o∘(1 − tanh²c) where c is not clipped; δi, δf, δg of δc; δh = Rᵀ·δa"""
    (i, f, g, o), c = saved.gates, saved.cells
    t = np.tanh(c)
    dc = dc + dm * o * (1.0 - np.square(t))
    if p.cell_clip:
        low, high = p.cell_clip
        dc = np.where((low < c) & (c < high), dc, 0.0)
    da = side_by_side(
        p,
        dc * g * i * (1.0 - i),
        dc * saved.cells_before * f * (1.0 - f),
        dc * i * (1.0 - np.square(g)),
        dm * t * o * (1.0 - o),
    )
    return Gradient(da, dc * f, recurrent.back(da))


def clipped(p: RnnProblem, c: Array) -> Array:
    """c between the bounds; NaN stays, or becomes the lower one."""
    if not p.cell_clip:
        return c
    low, high = p.cell_clip
    inside = np.minimum(np.maximum(c, low), high)
    return inside if p.clip_nan == "propagate" else np.where(np.isnan(c), low, inside)


# --- GRU ------------------------------------------------------------------------------------------


def gru_step(p: RnnProblem, a: Array, h: Array, c: Array, recurrent: Recurrent) -> Step:
    """r, z = σ(a + R·h + bR); n = tanh(a + u); h_t = (1 − z)∘n + z∘h

    u = r∘(R_n·h + bR_n), of which the part in brackets is saved, or with reset="before" R_n·(r∘h) + bR_n.
    """
    of_r, of_z, of_n = of_gates(a, 3)
    size = p.hidden_size
    if p.reset == "after":
        product_r, product_z, u = of_gates(recurrent(h), 3)
        r, z = sigmoid(of_r + product_r), sigmoid(of_z + product_z)
        n = np.tanh(of_n + r * u)
    else:
        product_r, product_z = of_gates(recurrent.some(0, 2 * size)(h), 2)
        r, z = sigmoid(of_r + product_r), sigmoid(of_z + product_z)
        u = recurrent.some(2 * size, 3 * size)(kept(r * h, p.dtype))
        n = np.tanh(of_n + u)
    return Step((r, z, n, u), None, (1.0 - z) * n + z * h)


def gru_gradient(
    p: RnnProblem, saved: Saved, dm: Array, dc: Array, recurrent: Recurrent
) -> Gradient:
    """δn = δm∘(1 − z)∘(1 − n²); δz = δm∘(h − n)∘z∘(1 − z); δu = δn∘r; δr = δn∘u∘r∘(1 − r)

    δh = δm∘z + Rᵀ·(δr, δz, δu). With reset="before" δu = δn, and δr is made of R_nᵀ·δu, the gradient by r∘h.
    """
    (r, z, n, u), h, size = saved.gates, saved.state_before, p.hidden_size
    dn = dm * (1.0 - z) * (1.0 - np.square(n))
    dz = dm * (h - n) * z * (1.0 - z)
    if p.reset == "after":
        gates = side_by_side(p, dn * u * r * (1.0 - r), dz, dn, dn * r)
        recurrent_part = np.concatenate([gates[..., : 2 * size], gates[..., 3 * size :]], axis=-1)
        return Gradient(gates, None, dm * z + recurrent.back(recurrent_part))
    reset = recurrent.some(2 * size, 3 * size).back(kept(dn, p.dtype))
    gates = side_by_side(p, reset * h * r * (1.0 - r), dz, dn, dn)
    state = dm * z + reset * r + recurrent.some(0, 2 * size).back(gates[..., : 2 * size])
    return Gradient(gates, None, state)


# --- What cells are made of -----------------------------------------------------------------------


def of_gates(rows: Array, count: int) -> tuple[Array, ...]:
    """Equal parts of the last dim, one for each gate."""
    size = rows.shape[-1] // count
    return tuple(rows[..., k * size : (k + 1) * size] for k in range(count))


def side_by_side(p: RnnProblem, *gradients: Array) -> Array:
    """A row of ``dgates``: operands of matrix products, in which a backend may round them."""
    return kept(np.concatenate(gradients, axis=-1), p.dtype)


STEPS = {
    "rnn_relu": (rnn_step, rnn_gradient),
    "rnn_tanh": (rnn_step, rnn_gradient),
    "lstm": (lstm_step, lstm_gradient),
    "gru": (gru_step, gru_gradient),
}
"""The step of each cell, and its gradient."""
