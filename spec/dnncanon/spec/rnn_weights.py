"""The weights of a recurrent network: where each matrix and bias lies in the packed buffer.

The order is cuDNN's: first all matrices, pseudo-layer by pseudo-layer, then all biases. Pseudo-layer l·D + d is
direction d of layer l.

    matrices of a pseudo-layer   W [G·H, in], R [G·H, Q], projection [Q, H]
    biases of a pseudo-layer     bW [G·H], bR [G·H]

Matrices are row-major. The G gates lie one behind the other: i f g o of lstm, r z n of gru. ``in`` is the input
size in layer 0 and D·Q above. What a network does not have, such as W of a skipped input, takes no place.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from dnncanon.spec.errors import ShapeError

Shape = tuple[int, ...]
Kind = Literal["W", "R", "projection", "bW", "bR"]

KINDS: tuple[Kind, ...] = ("W", "R", "projection", "bW", "bR")
GATES = {
    "rnn_relu": ("h",),
    "rnn_tanh": ("h",),
    "lstm": ("i", "f", "g", "o"),
    "gru": ("r", "z", "n"),
}
"""The gates of each cell, in the order of their rows."""

BIASES: dict[str, tuple[Kind, ...]] = {
    "none": (),
    "single_input": ("bW",),
    "double": ("bW", "bR"),
    "single_recurrent": ("bR",),
}
"""The biases that each mode has."""
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Block:
    """All gates of one matrix or bias of one pseudo-layer: ``offset`` and ``shape`` in the packed buffer."""

    kind: Kind
    layer: int
    direction: int
    offset: int
    shape: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Entry:
    """One named matrix or bias: of one gate, but for the projection, whose gate is empty."""

    name: str
    kind: Kind
    layer: int
    direction: int
    gate: str
    offset: int
    shape: Shape


@dataclass(frozen=True)
class RnnWeightLayout:
    """Where everything lies: :func:`rnn_weight_layout` makes it.

    ``names`` are "layer0.forward.W.i", "layer1.backward.bR.f", "layer0.forward.projection".
    """

    cell: str
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    bias_mode: str
    input_mode: str
    projection_size: int

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def out(self) -> int:
        """Q, elements of h: the projection's, if there is one."""
        return self.projection_size or self.hidden_size

    @property
    def gates(self) -> tuple[str, ...]:
        return GATES[self.cell]

    def input_of(self, layer: int) -> int:
        """Elements of a step of the layer's input."""
        return self.input_size if layer == 0 else self.directions * self.out

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All of them, in the order of the buffer."""
        places, offset = [], 0
        for of_matrices in (True, False):
            for layer in range(self.num_layers):
                for direction in range(self.directions):
                    for kind, shape in self._shapes(layer, matrices=of_matrices):
                        places.append(Block(kind, layer, direction, offset, shape))
                        offset += math.prod(shape)
        return tuple(places)

    def _shapes(self, layer: int, *, matrices: bool) -> Iterator[tuple[Kind, Shape]]:
        rows = len(self.gates) * self.hidden_size
        if not matrices:
            yield from ((kind, (rows,)) for kind in BIASES[self.bias_mode])
            return
        if layer > 0 or self.input_mode == "linear":
            yield "W", (rows, self.input_of(layer))
        yield "R", (rows, self.out)
        if self.projection_size:
            yield "projection", (self.out, self.hidden_size)

    @property
    def size(self) -> int:
        """Elements of the packed buffer."""
        return self.blocks[-1].offset + self.blocks[-1].size

    @cached_property
    def _by_place(self) -> dict[tuple[str, int, int], Block]:
        return {(block.kind, block.layer, block.direction): block for block in self.blocks}

    def block(self, kind: Kind, layer: int, direction: int = 0) -> Block | None:
        """The gates of a matrix or bias; None where the network has no such one."""
        return self._by_place.get((kind, layer, direction))

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every named matrix and bias, gate by gate, in the order of the buffer."""
        return tuple(entry for block in self.blocks for entry in self._entries(block))

    def _entries(self, block: Block) -> Iterator[Entry]:
        base = f"layer{block.layer}.{DIRECTIONS[block.direction]}.{block.kind}"
        if block.kind == "projection":
            yield Entry(
                base, block.kind, block.layer, block.direction, "", block.offset, block.shape
            )
            return
        shape = (self.hidden_size, *block.shape[1:])
        for number, gate in enumerate(self.gates):
            offset = block.offset + number * math.prod(shape)
            yield Entry(
                f"{base}.{gate}", block.kind, block.layer, block.direction, gate, offset, shape
            )

    def views(self, buffer: Any) -> dict[str, Any]:
        """The named matrices and biases as views of a packed buffer. ShapeError if its size is another."""
        if tuple(buffer.shape) != (self.size,):
            raise ShapeError(
                f"the packed weights have shape {tuple(buffer.shape)}; pass ({self.size},)"
            )
        return {
            e.name: buffer[e.offset : e.offset + math.prod(e.shape)].reshape(e.shape)
            for e in self.entries
        }

    def pack(self, named: Mapping[str, Any]) -> Any:
        """The packed buffer of named matrices and biases, a new NumPy array of their dtype.

        ShapeError names what is missing, unknown, or of another shape.
        """
        wanted = {entry.name: entry for entry in self.entries}
        for name in wanted.keys() ^ named.keys():
            what = "is missing" if name in wanted else "is no weight of this network"
            raise ShapeError(f"{name} {what}; pass {', '.join(wanted)}")
        arrays = {name: np.asarray(array) for name, array in named.items()}
        for name, entry in wanted.items():
            if arrays[name].shape != entry.shape:
                raise ShapeError(f"{name} has shape {arrays[name].shape}; pass {entry.shape}")
        return np.concatenate([arrays[name].ravel() for name in wanted])


def rnn_weight_layout(
    cell: str,
    *,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    bias_mode: str = "double",
    input_mode: str = "linear",
    projection_size: int = 0,
) -> RnnWeightLayout:
    """The layout of the weights of ``cell``: "rnn_relu", "rnn_tanh", "lstm" or "gru"."""
    return RnnWeightLayout(
        cell,
        input_size,
        hidden_size,
        num_layers,
        bidirectional,
        bias_mode,
        input_mode,
        projection_size,
    )
