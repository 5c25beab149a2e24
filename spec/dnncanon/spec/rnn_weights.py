"""The weights of a recurrent network: where each matrix and bias lies in the packed buffer.

The order is cuDNN's: first all matrices, pseudo-layer by pseudo-layer, then all biases. Pseudo-layer l·D + d is
direction d of layer l.

    matrices of a pseudo-layer   W [G·H, in], R [G·H, Q], projection [Q, H]
    biases of a pseudo-layer     bW [G·H], bR [G·H]

Matrices are row-major. The G gates lie one behind the other: i f g o of lstm, r z n of gru. ``in`` is the input
size in layer 0 and D·Q above. What a network does not have, such as W of a skipped input, takes no place.
"""

import math
from collections.abc import Collection, Iterator, Mapping
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

    def of(self, packed: Any) -> Any:
        """The block as a view of a packed buffer."""
        return packed[self.offset : self.offset + self.size].reshape(self.shape)


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

    @property
    def matrix_size(self) -> int:
        """Elements of all matrices: biases lie behind them."""
        return sum(block.size for block in self.blocks if len(block.shape) == 2)

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
        return _joined({entry.name: entry.shape for entry in self.entries}, named)


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


# --- Other libraries' weights ---------------------------------------------------------------------

_TORCH = {
    "W": "weight_ih",
    "R": "weight_hh",
    "projection": "weight_hr",
    "bW": "bias_ih",
    "bR": "bias_hh",
}
"""PyTorch's words for the kinds; its gates are in this order."""

_ONNX_GATES = {"lstm": ("i", "o", "f", "g"), "gru": ("z", "r", "n")}
"""ONNX's order, with this specification's letters; it calls g c and n h."""


def torch_name(block: Block) -> str:
    """What PyTorch calls a block: ``weight_ih_l0``, ``bias_hh_l1_reverse``."""
    return f"{_TORCH[block.kind]}_l{block.layer}{'_reverse' * block.direction}"


def from_torch(layout: RnnWeightLayout, parameters: Mapping[str, Any]) -> Any:
    """The packed weights of a ``torch.nn.LSTM``, ``GRU`` or ``RNN``, from its state_dict as NumPy arrays.

    ShapeError names what is missing, unknown, or of another shape.
    """
    named = {torch_name(block): block.shape for block in layout.blocks}
    return _joined(named, parameters)


def to_torch(layout: RnnWeightLayout, packed: Any) -> dict[str, Any]:
    """What ``from_torch`` takes, as views of the packed weights."""
    return {torch_name(block): block.of(packed) for block in layout.blocks}


def from_onnx(layout: RnnWeightLayout, w: Any, r: Any, b: Any = None) -> Any:
    """The packed weights of one layer of ONNX's LSTM, GRU or RNN: W [D, G·H, I], R [D, G·H, H], B [D, 2·G·H].

    Its GRU has reset="after" if linear_before_reset is 1, else "before". ShapeError if shapes do not fit.
    """
    order = _rows_of_gates(layout, _ONNX_GATES.get(layout.cell, layout.gates), layout.gates)
    rows = len(order)
    tensors = {"W": w, "R": r}
    if b is not None:
        if b.shape != (layout.directions, 2 * rows):
            raise ShapeError(f"B has shape {b.shape}; pass {(layout.directions, 2 * rows)}")
        tensors |= {"bW": b[:, :rows], "bR": b[:, rows:]}
    _check_onnx(layout, tensors.keys())
    for kind, tensor in tensors.items():
        wanted = (layout.directions, *_of_kind(layout, kind).shape)
        if tensor.shape != wanted:
            raise ShapeError(f"{kind} has shape {tensor.shape}; pass {wanted}")
    parts = [tensors[block.kind][block.direction][order].ravel() for block in layout.blocks]
    return np.concatenate(parts)


def to_onnx(layout: RnnWeightLayout, packed: Any) -> tuple[Any, Any, Any]:
    """W, R and B of ONNX, of one layer; B is None without biases."""
    order = _rows_of_gates(layout, layout.gates, _ONNX_GATES.get(layout.cell, layout.gates))
    kinds = ("W", "R") if layout.bias_mode == "none" else ("W", "R", "bW", "bR")
    _check_onnx(layout, kinds)
    tensors = {
        kind: np.stack([b.of(packed)[order] for b in layout.blocks if b.kind == kind])
        for kind in kinds
    }
    biases = [tensors[kind] for kind in ("bW", "bR") if kind in tensors]
    return tensors["W"], tensors["R"], np.concatenate(biases, axis=1) if biases else None


def _check_onnx(layout: RnnWeightLayout, kinds: Collection[str]) -> None:
    there = {block.kind for block in layout.blocks}
    if layout.num_layers != 1 or there != set(kinds):
        raise ShapeError(
            f"ONNX has one layer of W, R and both biases or none, not {layout.num_layers} layers of "
            f"{', '.join(sorted(there))}; pass a layout of such a layer"
        )


def _of_kind(layout: RnnWeightLayout, kind: str) -> Block:
    return next(block for block in layout.blocks if block.kind == kind)


def _rows_of_gates(
    layout: RnnWeightLayout, given: tuple[str, ...], wanted: tuple[str, ...]
) -> list[int]:
    """For each row in the wanted order of gates, its row in the given one."""
    size = layout.hidden_size
    return [given.index(gate) * size + row for gate in wanted for row in range(size)]


def _joined(wanted: Mapping[str, Shape], named: Mapping[str, Any]) -> Any:
    """Arrays one behind the other, in the wanted order. ShapeError for other names or shapes."""
    for name in sorted(wanted.keys() ^ named.keys()):
        what = "is missing" if name in wanted else "is no weight of this network"
        raise ShapeError(f"{name} {what}; pass {', '.join(wanted)}")
    arrays = {name: np.asarray(array) for name, array in named.items()}
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ShapeError(f"{name} has shape {arrays[name].shape}; pass {shape}")
    return np.concatenate([arrays[name].ravel() for name in wanted])
