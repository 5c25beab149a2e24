"""One call of attention, resolved: sizes, options, and which columns each row sees."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dnncanon.spec.stream import Stream
from dnncanon.spec.tensors import Shape

UNBOUNDED = -1
"""Of a bound that there is not."""


@dataclass(frozen=True)
class AttentionProblem:
    """Queries of Sq rows and Hq heads against keys and values of Skv columns.

    ``q_lengths`` and ``kv_lengths`` have B numbers. Head h has head h·Hk/Hq of the keys, rounded down, and so
    of the values. ``soft_cap`` is 0 for none, bounds are −1 for none.
    """

    dtype: str
    batch: int
    heads: int
    k_heads: int
    v_heads: int
    rows: int
    columns: int
    head_size: int
    value_size: int
    scale: float
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    stream: Stream
    soft_cap: float = 0.0
    alibi: bool = False
    left_bound: int = UNBOUNDED
    right_bound: int = UNBOUNDED
    alignment: str = "top_left"
    dropout: float = 0.0
    bias_shape: Shape | None = None
    has_sink: bool = False
    return_stats: bool = False

    @property
    def q_shape(self) -> Shape:
        return self.batch, self.heads, self.rows, self.head_size

    @property
    def k_shape(self) -> Shape:
        return self.batch, self.k_heads, self.columns, self.head_size

    @property
    def v_shape(self) -> Shape:
        return self.batch, self.v_heads, self.columns, self.value_size

    @property
    def o_shape(self) -> Shape:
        return self.batch, self.heads, self.rows, self.value_size

    @property
    def stats_shape(self) -> Shape:
        return self.batch, self.heads, self.rows

    @property
    def scores_shape(self) -> Shape:
        """Of the matrix that implementations need not have."""
        return self.batch, self.heads, self.rows, self.columns

    @property
    def shifts(self) -> tuple[int, ...]:
        """Columns that the diagonal of each sequence lies to the right: 0 if it begins at the top left."""
        if self.alignment == "top_left":
            return (0,) * self.batch
        lengths = zip(self.q_lengths, self.kv_lengths, strict=True)
        return tuple(columns - rows for rows, columns in lengths)

    @cached_property
    def is_row(self) -> NDArray[np.bool_]:
        """[B, 1, Sq]: rows before the end of their sequence."""
        lengths = np.array(self.q_lengths, np.int64)[:, None, None]
        return np.arange(self.rows)[None, None, :] < lengths

    @cached_property
    def is_column(self) -> NDArray[np.bool_]:
        """[B, 1, Skv]: columns before the end of their sequence."""
        lengths = np.array(self.kv_lengths, np.int64)[:, None, None]
        return np.arange(self.columns)[None, None, :] < lengths

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """[B, 1, Sq, Skv]: which columns each row sees, by lengths and bounds."""
        seen = self.is_row[:, :, :, None] & self.is_column[:, :, None, :]
        shift = np.array(self.shifts, np.int64)[:, None, None, None]
        diagonal = np.arange(self.rows)[None, None, :, None] + shift
        column = np.arange(self.columns)[None, None, None, :]
        if self.right_bound != UNBOUNDED:
            seen = seen & (column <= diagonal + self.right_bound)
        if self.left_bound != UNBOUNDED:
            seen = seen & (column > diagonal - self.left_bound)
        return seen

    @property
    def distances(self) -> NDArray[np.float64]:
        """[Sq, Skv]: column − row, which ALiBi goes by."""
        return (np.arange(self.columns)[None, :] - np.arange(self.rows)[:, None]).astype(np.float64)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(−8i/n), i = 1…n, with n the power of two not above ``heads``; then 2^(−4j/n), j = 1, 3, 5…

    Press, Smith and Lewis 2021, "Train short, test long".
    """
    if heads == 0:
        return ()
    n = 2 ** int(math.log2(heads))
    first = tuple(2.0 ** (-8.0 * i / n) for i in range(1, n + 1))
    return first + tuple(2.0 ** (-4.0 * j / n) for j in range(1, 2 * (heads - n), 2))
