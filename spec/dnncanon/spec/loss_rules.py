"""The constraints of the losses, each with its check and a generator of arguments that break it."""

from collections.abc import Iterator

from dnncanon.spec.attributes import as_integer, as_real, shown
from dnncanon.spec.errors import AttributeValueError, DTypeError, ShapeError
from dnncanon.spec.primitive import Arguments, Constraint, DTypeRow
from dnncanon.spec.softmax import stats_dtype

INTEGERS = ("int32", "int64")


def loss_dtypes(
    rows: tuple[DTypeRow, ...], data: str, integers: tuple[str, ...], wide: tuple[str, ...] = ()
) -> Constraint:
    """Data of a supported dtype, integers of one of two, and what is neither in float32 or float64."""
    supported = [row.dtype for row in rows]
    text = f"{data} is {_either(supported)}. {_and(integers)}: one dtype, {_either(INTEGERS)}."
    if wide:
        text += f" {_and(wide)}: float32, or float64 with {data} of float64."

    def check(a: Arguments) -> str | None:
        first = a.tensors[data].dtype
        if first not in supported:
            return f"{data} is {first}; convert it to {_either(supported)}"
        chosen = a.tensors[integers[0]].dtype
        for name in integers:
            dtype = a.tensors[name].dtype
            if dtype not in INTEGERS:
                return f"{name} is {dtype}; convert it to {_either(INTEGERS)}"
            if dtype != chosen:
                return f"{name} is {dtype}, {integers[0]} is {chosen}; convert one of them"
        for name in wide:
            if name in a.tensors and a.tensors[name].dtype != stats_dtype(first):
                dtype = a.tensors[name].dtype
                return (
                    f"{name} is {dtype} with {data} of {first}; convert it to {stats_dtype(first)}"
                )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_tensor(data, dtype="int32")
        for name in integers:
            yield a.with_tensor(name, dtype="float32")
            other = INTEGERS[a.tensors[name].dtype == INTEGERS[0]]
            yield a.with_tensor(name, dtype=other)
        for name in wide:
            if name in a.tensors:
                yield a.with_tensor(name, dtype="float16")

    return Constraint(text, DTypeError, check, violate)


def _either(names: list[str] | tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def at_least_one_class(tensor: str, axis: int | None = None) -> Constraint:
    """A dim of classes that is not empty: that of the attribute ``axis``, or a given one."""

    def dim(a: Arguments) -> int:
        return as_integer(a.attributes["axis"]) if axis is None else axis

    def check(a: Arguments) -> str | None:
        shape = a.tensors[tensor].shape
        if shape[dim(a)] >= 1:
            return None
        return f"{tensor} has shape {shape}, no class in dim {dim(a)}; pass at least one class"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = list(a.tensors[tensor].shape)
        shape[dim(a)] = 0
        yield a.with_tensor(tensor, shape=tuple(shape), strides=None)

    return Constraint(f"{tensor} has at least one class.", ShapeError, check, violate)


def integer_of_32_bits(name: str) -> Constraint:
    """An integer attribute that an int32 holds."""

    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        try:
            if -(2**31) <= as_integer(value) < 2**31:
                return None
        except (TypeError, ValueError):
            pass
        return f"{name}={shown(value)}; pass an integer from -2^31 to 2^31 - 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (2**31, -(2**31) - 1, 0.5, "1"):
            yield a.with_attributes(**{name: value})

    text = f"{name} is an integer from −2^31 to 2^31 − 1."
    return Constraint(text, AttributeValueError, check, violate)


def share(name: str) -> Constraint:
    """A number from 0 to 1."""

    def check(a: Arguments) -> str | None:
        try:
            value = as_real(a.attributes[name])
        except ValueError as wrong:
            return f"{name}={wrong}; pass a number from 0 to 1"
        if 0.0 <= value <= 1.0:
            return None
        return f"{name}={shown(a.attributes[name])}; pass a number from 0 to 1"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (-0.1, 1.1, float("nan"), "0"):
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is a number from 0 to 1.", AttributeValueError, check, violate)


def class_of(name: str, tensor: str, axis: int) -> Constraint:
    """An attribute that is one of the classes."""

    def check(a: Arguments) -> str | None:
        value, classes = a.attributes[name], a.tensors[tensor].shape[axis]
        try:
            if 0 <= as_integer(value) < classes:
                return None
        except (TypeError, ValueError):
            pass
        return f"{name}={shown(value)}; pass an integer from 0 to {classes - 1}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (-1, a.tensors[tensor].shape[axis], 0.5):
            yield a.with_attributes(**{name: value})

    text = f"{name} is a class: an integer from 0 to one below their number."
    return Constraint(text, AttributeValueError, check, violate)


def padded_labels(data: str) -> Constraint:
    """labels [N, L] for the N samples of the data."""

    def check(a: Arguments) -> str | None:
        shape, batch = a.tensors["labels"].shape, a.tensors[data].shape[1]
        if len(shape) == 2 and shape[0] == batch:
            return None
        return f"labels has shape {shape}; pass [N, L] with N = {batch}, padded to the longest"

    def violate(a: Arguments) -> Iterator[Arguments]:
        batch, longest = a.tensors["labels"].shape
        yield a.with_tensor("labels", shape=(batch * longest,), strides=None)
        yield a.with_tensor("labels", shape=(batch + 1, longest), strides=None)

    return Constraint("labels has the shape [N, L].", ShapeError, check, violate)
