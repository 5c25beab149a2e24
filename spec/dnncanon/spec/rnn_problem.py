"""One call of a recurrent network, resolved: sizes, options, and which steps each sequence has."""

from dataclasses import dataclass
from functools import cached_property

from dnncanon.spec.rnn_weights import GATES, RnnWeightLayout, rnn_weight_layout
from dnncanon.spec.stream import Stream

RESERVED_GATES = {"rnn_relu": 0, "rnn_tanh": 0, "lstm": 4, "gru": 4}
"""Blocks of ``gates``: of gru the fourth is the recurrent part of n."""


def lengths_of(batch_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The steps of each sequence, of how many sequences have each step."""
    batch = batch_sizes[0] if batch_sizes else 0
    return tuple(sum(size > b for size in batch_sizes) for b in range(batch))


@dataclass(frozen=True)
class RnnProblem:
    """A network of L layers in D directions over S steps of B sequences.

    ``lengths`` has the steps of each sequence, B numbers. ``packed`` rows are the steps that there are,
    step by step, longest sequences first; padded ones are S·B, row t·B + b. ``stream`` gives the words of
    dropout. ``cell_clip`` is () or (low, high).
    """

    cell: str
    dtype: str
    steps: int
    batch: int
    input_size: int
    hidden_size: int
    lengths: tuple[int, ...]
    stream: Stream
    num_layers: int = 1
    bidirectional: bool = False
    bias_mode: str = "double"
    input_mode: str = "linear"
    projection_size: int = 0
    cell_clip: tuple[float, ...] = ()
    clip_nan: str = "propagate"
    reset: str = "after"
    dropout: float = 0.0
    packed: bool = False
    padding_fill: float = 0.0
    training: bool = False

    @cached_property
    def layout(self) -> RnnWeightLayout:
        return rnn_weight_layout(
            self.cell,
            input_size=self.input_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            bidirectional=self.bidirectional,
            bias_mode=self.bias_mode,
            input_mode=self.input_mode,
            projection_size=self.projection_size,
        )

    @property
    def directions(self) -> int:
        """D."""
        return 1 + self.bidirectional

    @property
    def pseudo_layers(self) -> int:
        """L·D; direction d of layer l is number l·D + d."""
        return self.num_layers * self.directions

    @property
    def out(self) -> int:
        """Q, elements of h."""
        return self.projection_size or self.hidden_size

    @property
    def layer_width(self) -> int:
        """D·Q, elements of a step of a layer's output."""
        return self.directions * self.out

    @property
    def gates(self) -> int:
        """G, gates in the weights."""
        return len(GATES[self.cell])

    @property
    def reserved_gates(self) -> int:
        """Blocks of H elements of the tensor ``gates``."""
        return RESERVED_GATES[self.cell]

    @property
    def gradient_width(self) -> int:
        """K, elements of a row of ``dgates``: by each pre-activation, then by what is projected."""
        return max(1, self.reserved_gates) * self.hidden_size + self.projection_size

    def input_of(self, layer: int) -> int:
        """Elements of a step of the layer's input."""
        return self.layout.input_of(layer)

    @cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """How many sequences have each step."""
        return tuple(sum(length > t for length in self.lengths) for t in range(self.steps))

    @property
    def rows(self) -> int:
        """N, rows of all steps."""
        return sum(self.batch_sizes) if self.packed else self.steps * self.batch

    @cached_property
    def _first_rows(self) -> tuple[int, ...]:
        starts, row = [], 0
        for t in range(self.steps):
            starts.append(row)
            row += self.batch_sizes[t] if self.packed else self.batch
        return tuple(starts)

    def first_row(self, t: int) -> int:
        """The row of the first sequence at step t."""
        return self._first_rows[t]

    def row(self, t: int, b: int) -> int:
        """The row of sequence b at step t."""
        return self.first_row(t) + b

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Dims of x and y but the last: (S, B), or (N,) if packed."""
        return (self.rows,) if self.packed else (self.steps, self.batch)
