"""The constraints of causal convolutions, each with its check and a generator of arguments that break it."""

from collections.abc import Iterator

from dnncanon.spec.causal_conv_problem import PROJECTIONS
from dnncanon.spec.errors import ShapeError
from dnncanon.spec.primitive import Arguments, Constraint


def sequences() -> Constraint:
    """x, to begin with."""

    def check(a: Arguments) -> str | None:
        shape = a.tensors["x"].shape
        return None if len(shape) == 3 else f"x has shape {shape}; pass [B, D, T]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = a.tensors["x"].shape
        yield a.with_tensor("x", shape=(*shape, 1), strides=None)
        yield a.with_tensor("x", shape=shape[1:], strides=None)

    return Constraint("x has the shape [B, D, T].", ShapeError, check, violate)


def triples_of_sequences() -> Constraint:
    """x of a gated convolution."""

    def check(a: Arguments) -> str | None:
        shape = a.tensors["x"].shape
        if len(shape) == 4 and shape[2] == PROJECTIONS:
            return None
        return f"x has shape {shape}; pass [B, D, 3, T]"

    def violate(a: Arguments) -> Iterator[Arguments]:
        batch, channels, _, steps = a.tensors["x"].shape
        for shape in (
            (batch, channels, 2, steps),
            (batch, channels, 4, steps),
            (batch, channels, steps),
        ):
            yield a.with_tensor("x", shape=shape, strides=None)

    return Constraint("x has the shape [B, D, 3, T].", ShapeError, check, violate)


def filters(name: str) -> Constraint:
    """A filter for each channel of x."""

    def check(a: Arguments) -> str | None:
        shape, channels = a.tensors[name].shape, a.tensors["x"].shape[1]
        if len(shape) == 2 and shape[0] == channels and shape[1] >= 1:
            return None
        return f"{name} has shape {shape}, but x has D={channels}; pass [D, K], K >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        channels, taps = a.tensors[name].shape
        for shape in ((channels + 1, taps), (channels, 0), (channels, 1, taps)):
            yield a.with_tensor(name, shape=shape, strides=None)

    return Constraint(f"{name} has the shape [D, K], K >= 1.", ShapeError, check, violate)


def filters_of_projections() -> Constraint:
    """Three filters for each channel of x."""

    def check(a: Arguments) -> str | None:
        shape, channels = a.tensors["projection"].shape, a.tensors["x"].shape[1]
        if len(shape) == 3 and shape[:2] == (channels, PROJECTIONS) and shape[2] >= 1:
            return None
        return f"projection has shape {shape}, but x has D={channels}; pass [D, 3, P], P >= 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        channels, _, taps = a.tensors["projection"].shape
        for shape in ((channels + 1, 3, taps), (channels, 2, taps), (channels, 3, 0), (3, taps)):
            yield a.with_tensor("projection", shape=shape, strides=None)

    text = "projection has the shape [D, 3, P], P >= 1."
    return Constraint(text, ShapeError, check, violate)


def one_per_channel(name: str) -> Constraint:
    """An optional number for each channel of x."""

    def check(a: Arguments) -> str | None:
        if name not in a.tensors:
            return None
        shape, channels = a.tensors[name].shape, a.tensors["x"].shape[1]
        return (
            None if shape == (channels,) else f"{name} has shape {shape}; pass [D] = ({channels},)"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if name in a.tensors:
            (channels,) = a.tensors[name].shape
            yield a.with_tensor(name, shape=(channels + 1,), strides=None)
            yield a.with_tensor(name, shape=(channels, 1), strides=None)

    return Constraint(f"{name} has the shape [D].", ShapeError, check, violate)


def one_sequence_per_channel(name: str) -> Constraint:
    """A tensor like the results of a gated convolution."""

    def check(a: Arguments) -> str | None:
        batch, channels, _, steps = a.tensors["x"].shape
        shape, wanted = a.tensors[name].shape, (batch, channels, steps)
        return None if shape == wanted else f"{name} has shape {shape}; pass [B, D, T] = {wanted}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        batch, channels, steps = a.tensors[name].shape
        yield a.with_tensor(name, shape=(batch, channels, steps + 1), strides=None)
        yield a.with_tensor(name, shape=(batch, channels, 1, steps), strides=None)

    return Constraint(f"{name} has the shape [B, D, T].", ShapeError, check, violate)
