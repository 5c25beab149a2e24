"""Recurrent layers that hold their weights: what a person builds a network of.

All computing is the primitives' (:mod:`dnncanon.spec.rnn`). A layer adds what a function cannot have: weights
with their gradient, and what the last forward pass saved for the backward one.

    lstm = gpu.LSTM(64, 128, num_layers=2, bidirectional=True)
    y, (hy, cy) = lstm(x, lengths=(7, 5, 2), training=True)     # x [S, B, 64], y [S, B, 256]
    dx, (dh0, dc0) = lstm.backward(dy)
    lstm.weights = lstm.weights - 0.01 * lstm.gradient
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnncanon.gpu.library import functions
from dnncanon.gpu.runtime import DeviceArray, as_strided
from dnncanon.spec import (
    DTYPES,
    Arguments,
    AttributeValueError,
    ShapeError,
    TensorType,
    primitives,
)
from dnncanon.spec.attributes import is_sequence
from dnncanon.spec.norm_rules import integer_in
from dnncanon.spec.rnn_weights import RnnWeightLayout
from dnncanon.spec.tensors import dense_strides


@dataclass(frozen=True, slots=True)
class _Pass:
    """A forward pass: what its backward one is made of."""

    x: Any
    weights: Any
    state: tuple[Any, ...]
    reserve: Mapping[str, Any]
    attributes: Mapping[str, Any]


class Recurrent:
    """A network of recurrent layers. Use :class:`LSTM`, :class:`GRU` or :class:`RNN`.

    ``weights`` is the packed buffer [W], an array of any library, in the order of ``layout``; new ones are
    uniform in ±1/√hidden_size, drawn from ``seed``. Those of PyTorch's layers are
    ``rnn_weights.from_torch(layer.layout, state_dict)``. ``gradient``, [W] too, is what backward passes have
    added up since it was None. With ``batch_first`` x and y are [B, S, …]: other strides, nothing is copied.
    The others are the attributes of the primitives (``dnncanon spec lstm_forward``) and are checked as there:
    raises AttributeValueError, or ShapeError for weights of another size.
    """

    _state_names: tuple[str, ...] = ("h0",)

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dtype: str = "float32",
        weights: Any = None,
        seed: int = 0,
        algorithm: str = "auto",
        **attributes: Any,
    ) -> None:
        _check_words(cell, dtype, attributes)
        shape: dict[str, Any] = {"hidden_size": hidden_size, "num_layers": num_layers}
        self._attributes = {**shape, **attributes, "seed": seed}
        self.layout = _layout(cell, input_size, dtype, self._attributes)
        self.batch_first, self.algorithm = batch_first, algorithm
        self.weights = self._initial(dtype, seed) if weights is None else weights
        if tuple(self.weights.shape) != (self.layout.size,):
            raise ShapeError(
                f"weights has shape {tuple(self.weights.shape)}; pass ({self.layout.size},)"
            )
        self.gradient: Any = None
        self._passes = 0
        self._last: _Pass | None = None

    def _initial(self, dtype: str, seed: int) -> Any:
        limit = self.layout.hidden_size**-0.5
        numbers = np.random.default_rng(seed).uniform(-limit, limit, self.layout.size)
        return numbers.astype(DTYPES[dtype].numpy)

    def named_weights(self) -> dict[str, Any]:
        """The matrices and biases by name, ``layer0.forward.W.i``, as views of ``weights``."""
        return _views(self.layout, self.weights)

    def named_gradients(self) -> dict[str, Any]:
        """The same of ``gradient``; empty before the first backward pass."""
        return {} if self.gradient is None else _views(self.layout, self.gradient)

    def __call__(
        self,
        x: Any,
        state: Any = None,
        *,
        lengths: Sequence[int] = (),
        batch_sizes: Sequence[int] = (),
        training: bool = False,
    ) -> tuple[Any, Any]:
        """(y, state after the last steps) for x [S, B, I], or packed [N, I] with its ``batch_sizes``.

        y is [S, B, D·Q] or [N, D·Q], with D directions and Q = hidden_size or projection_size. ``state`` is
        h0 [L·D, B, Q] or, for LSTM, (h0, c0) with c0 [L·D, B, hidden_size]; None for zeros. ``lengths`` are the
        steps of each padded sequence, () for all. With ``training`` dropout is applied, each time with other
        random numbers, and the pass is kept for :meth:`backward`.
        """
        x, first = self._steps_first(x), self._several(state)
        attributes = {
            **self._attributes,
            "lengths": _frozen(lengths),
            "batch_sizes": _frozen(batch_sizes),
        }
        if training:
            attributes["subsequence"] = self._passes
            self._passes += 1
        outputs = self._call(
            "forward", x, self.weights, *first, **attributes, training=training
        )._asdict()
        y, hy = outputs.pop("y"), outputs.pop("hy")
        last = (hy, *(outputs.pop(name) for name in ("cy",) if name in outputs))
        if training:
            self._last = _Pass(x, self.weights, first, outputs, attributes)
        return self._steps_first(y), self._one(last)

    def backward(self, dy: Any, dstate: Any = None) -> tuple[Any, Any]:
        """(dx, dstate0) for dy, the gradient by y, and ``dstate``, that by the last state; None for zeros.

        Shapes are those of y and of the states. The gradient by the weights, as they were in the last forward
        pass, is added to ``gradient``. Raises AttributeValueError without a forward pass of ``training=True``.
        """
        if self._last is None:
            raise AttributeValueError(
                "backward needs a forward pass to go back over; call the layer with training=True"
            )
        last, reserve = self._last, self._last.reserve
        outputs = self._call(
            "backward_data",
            self._steps_first(dy),
            last.weights,
            *self._for_data(last),
            *self._several(dstate),
            **last.attributes,
            input_size=self.layout.input_size,
        )._asdict()
        dx, dgates = outputs.pop("dx"), outputs.pop("dgates")
        self.gradient = self._call(
            "backward_weights",
            last.x,
            reserve["hidden"],
            dgates,
            last.state[0],
            *self._for_weights(last),
            self.gradient,
            **last.attributes,
        )
        return self._steps_first(dx), self._one(tuple(outputs.values()))

    def _for_data(self, last: _Pass) -> tuple[Any, ...]:
        """What backward_data takes behind dy and the weights."""
        return (last.reserve["hidden"],)

    def _for_weights(self, last: _Pass) -> tuple[Any, ...]:
        """What backward_weights takes behind h0."""
        return ()

    def _call(self, direction: str, *tensors: Any, **attributes: Any) -> Any:
        function: Any = functions()[f"{self.layout.cell}_{direction}"]
        known = {attribute.name for attribute in function.primitive.attributes}
        given = {name: value for name, value in attributes.items() if name in known}
        return function(*tensors, algorithm=self.algorithm, **given)

    def _several(self, state: Any) -> tuple[Any, ...]:
        """A state as the primitives take it: one array for each of its names."""
        if state is None:
            return (None,) * len(self._state_names)
        parts = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        if len(parts) != len(self._state_names):
            names = ", ".join(self._state_names)
            raise AttributeValueError(f"the state has {len(parts)} arrays; pass ({names})")
        return parts

    def _one(self, parts: tuple[Any, ...]) -> Any:
        return parts if len(self._state_names) > 1 else parts[0]

    def _steps_first(self, array: Any) -> Any:
        """x or y with its dims as the primitives, or the caller, have them: swapped if batches come first."""
        if not self.batch_first or len(array.shape) < 3:
            return array
        if isinstance(array, DeviceArray):
            (s, b, i), (of_s, of_b, of_i) = array.shape, array.strides
            return replace(array, shape=(b, s, i), strides=(of_b, of_s, of_i))
        return array.swapaxes(0, 1)


def _check_words(cell: str, dtype: str, attributes: Mapping[str, Any]) -> None:
    """AttributeValueError for a dtype that the cell is not for, and for words that are no attributes of it."""
    primitive = primitives()[f"{cell}_forward"]
    dtypes = [row.dtype for row in primitive.dtypes]
    if dtype not in dtypes:
        raise AttributeValueError(f"dtype={dtype!r}; pass one of {', '.join(dtypes)}")
    known = [attribute.name for attribute in primitive.attributes]
    free = [name for name in known if name not in _GIVEN]
    for name in attributes:
        if name not in free:
            raise AttributeValueError(f"a layer of {cell} has no {name!r}; pass {', '.join(free)}")


def _layout(
    cell: str, input_size: int, dtype: str, attributes: Mapping[str, Any]
) -> RnnWeightLayout:
    """The weights' layout. Raises what the primitive itself would say of illegal attributes."""
    wrong = integer_in("input_size", 0).check(Arguments({}, {"input_size": input_size}))
    if wrong is not None:
        raise AttributeValueError(wrong)
    primitive = primitives()[f"{cell}_forward"]
    no_steps, no_weights = TensorType(dtype, (0, 0, input_size)), TensorType(dtype, (0,))
    no_call = primitive.arguments(no_steps, no_weights, **attributes)
    for constraint in primitive.constraints:
        wrong = constraint.check(no_call) if constraint.error is AttributeValueError else None
        if wrong is not None:
            raise constraint.error(wrong, primitive.label(constraint))
    layout: RnnWeightLayout = primitive.resolve(no_call).layout
    return layout


def _views(layout: RnnWeightLayout, packed: Any) -> dict[str, Any]:
    """The named parts of a packed buffer, arrays on the device included."""
    if not isinstance(packed, DeviceArray):
        return layout.views(packed)
    return {
        e.name: as_strided(packed, e.shape, dense_strides(e.shape), e.offset)
        for e in layout.entries
    }


def _frozen(values: Any) -> Any:
    """What a pass keeps of a list that its caller may change; what is none is the primitive's to refuse."""
    return tuple(values) if is_sequence(values) else values


_GIVEN = (
    *("hidden_size", "num_layers", "seed", "subsequence"),
    *("lengths", "batch_sizes", "training"),
)
"""Attributes that a layer has from elsewhere: its own arguments, or those of a call."""


class RNN(Recurrent):
    """h_t = f(W·x_t + R·h_{t−1} + b), with f = tanh or relu: ``nonlinearity``."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: str = "tanh",
        **options: Any,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise AttributeValueError(f'nonlinearity={nonlinearity!r}; pass "tanh" or "relu"')
        super().__init__(f"rnn_{nonlinearity}", input_size, hidden_size, num_layers, **options)


class LSTM(Recurrent):
    """Long short-term memory; with ``projection_size``, ``cell_clip`` and ``clip_nan`` besides."""

    _state_names = ("h0", "c0")

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any
    ) -> None:
        super().__init__("lstm", input_size, hidden_size, num_layers, **options)

    def _for_data(self, last: _Pass) -> tuple[Any, ...]:
        return last.reserve["gates"], last.reserve["cells"], last.state[1]

    def _for_weights(self, last: _Pass) -> tuple[Any, ...]:
        projected = self.layout.projection_size > 0
        return tuple(last.reserve[name] if projected else None for name in ("gates", "cells"))


class GRU(Recurrent):
    """Gated recurrent units, reset behind the recurrent product or, with ``reset="before"``, before it."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any
    ) -> None:
        super().__init__("gru", input_size, hidden_size, num_layers, **options)

    def _for_data(self, last: _Pass) -> tuple[Any, ...]:
        return last.reserve["gates"], last.reserve["hidden"], last.state[0]

    def _for_weights(self, last: _Pass) -> tuple[Any, ...]:
        before = self._attributes.get("reset", "after") == "before"
        return (last.reserve["gates"] if before else None,)
