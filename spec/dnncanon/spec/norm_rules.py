"""The constraints of the normalizations, each with its check and a generator of arguments that break it."""

import math
from collections.abc import Callable, Iterator

from dnncanon.spec.attributes import as_integer, as_real, shown
from dnncanon.spec.errors import (
    AttributeValueError,
    DTypeError,
    MissingTensorError,
    ShapeError,
)
from dnncanon.spec.norm_problem import (
    first_axis,
    first_shape,
    group_count,
    statistics_dtype,
)
from dnncanon.spec.primitive import Arguments, Constraint, DTypeRow
from dnncanon.spec.tensors import Shape

ShapeOf = Callable[[Arguments], Shape]


# --- Tensors --------------------------------------------------------------------------------------


def rank_between(low: int, high: int, dims: str) -> Constraint:
    """The rank of the first tensor."""

    def check(a: Arguments) -> str | None:
        name, tensor = next(iter(a.tensors.items()))
        if low <= tensor.rank <= high:
            return None
        return f"{name} has rank {tensor.rank}; pass an array of rank {low} to {high}: {dims}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        name, tensor = next(iter(a.tensors.items()))
        yield a.with_tensor(name, shape=(1,) * (low - 1), strides=None)
        longer = (*tensor.shape, *(1,) * (high + 1 - tensor.rank))
        yield a.with_tensor(name, shape=longer, strides=None)

    return Constraint(
        f"The first tensor has rank {low} to {high}: {dims}.", ShapeError, check, violate
    )


def norm_dtypes(
    rows: tuple[DTypeRow, ...],
    data: tuple[str, ...],
    parameters: tuple[str, ...] = (),
    statistics: tuple[str, ...] = (),
) -> Constraint:
    """Data of one dtype; parameters of that or of the statistics'; statistics of the sums' dtype."""
    supported = [row.dtype for row in rows]
    text = f"{_listed(data)}: one dtype of {', '.join(supported)}."
    wide = "float32, or float64 with float64 data"
    if parameters:
        text += f" {_listed(parameters)}: one dtype, that of the data or {wide}."
    if statistics:
        text += f" {_listed(statistics)}: {wide}."

    def check(a: Arguments) -> str | None:
        first = next(iter(a.tensors.values())).dtype
        if first not in supported:
            return f"{data[0]} is {first}; convert it to one of {', '.join(supported)}"
        sums = statistics_dtype(first)
        given = [a.tensors[name].dtype for name in parameters if name in a.tensors]
        allowed: dict[str, tuple[str, ...]] = dict.fromkeys(data, (first,))
        chosen = given[:1] if given and given[0] in (first, sums) else [first, sums]
        allowed |= dict.fromkeys(parameters, tuple(chosen))
        allowed |= dict.fromkeys(statistics, (sums,))
        for name, tensor in a.tensors.items():
            if tensor.dtype not in allowed[name]:
                options = " or ".join(dict.fromkeys(allowed[name]))
                return (
                    f"{name} is {tensor.dtype} with {data[0]} of {first}; convert it to {options}"
                )
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        narrow = next(iter(a.tensors.values())).dtype in ("float16", "bfloat16")
        for name in (*data, *parameters, *statistics):
            if name in a.tensors:
                yield a.with_tensor(name, dtype="int32")
                yield a.with_tensor(name, dtype="float64" if narrow else "float16")

    return Constraint(text, DTypeError, check, violate)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def shaped(name: str, dims: str, expected: ShapeOf) -> Constraint:
    """The shape of a tensor, if it is given."""

    def check(a: Arguments) -> str | None:
        if name not in a.tensors:
            return None
        shape, wanted = a.tensors[name].shape, expected(a)
        if shape == wanted:
            return None
        return f"{name} has shape {shape}; pass {dims} = {wanted}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        if name in a.tensors:
            shape = a.tensors[name].shape
            yield a.with_tensor(name, shape=(*shape, 1), strides=None)
            if shape:
                yield a.with_tensor(name, shape=(*shape[:-1], shape[-1] + 1), strides=None)

    return Constraint(f"{name} has the shape {dims}.", ShapeError, check, violate)


def together(first: str, second: str) -> Constraint:
    """Two optional tensors, of which there are both or none."""

    def check(a: Arguments) -> str | None:
        if (first in a.tensors) == (second in a.tensors):
            return None
        there, missing = (first, second) if first in a.tensors else (second, first)
        shape = a.tensors[there].shape
        return f"{there} of shape {shape} is given without {missing}; pass both or none"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in (first, second):
            if name in a.tensors:
                yield Arguments({n: t for n, t in a.tensors.items() if n != name}, a.attributes)

    return Constraint(
        f"{first} and {second} are given both or not at all.", MissingTensorError, check, violate
    )


def y_for_relu() -> Constraint:
    """The output of the forward pass, by whose sign a ReLU passes gradients on."""

    def check(a: Arguments) -> str | None:
        relu = a.attributes["activation"] == "relu"
        if relu == ("y" in a.tensors):
            return None
        if relu:
            return 'activation="relu" needs y, the output of the forward pass; pass it'
        return 'y is given with activation="identity", which does not use it; pass None'

    def violate(a: Arguments) -> Iterator[Arguments]:
        without = Arguments({n: t for n, t in a.tensors.items() if n != "y"}, a.attributes)
        yield without.with_attributes(activation="relu")

    return Constraint('y is given with activation="relu" only.', MissingTensorError, check, violate)


def statistics_for_fixed() -> Constraint:
    """Fixed statistics are those that are given."""

    def check(a: Arguments) -> str | None:
        if a.attributes["statistics"] == "batch" or "mean" in a.tensors:
            return None
        return 'statistics="fixed" without mean and inv_std; pass those of the forward pass'

    def violate(a: Arguments) -> Iterator[Arguments]:
        tensors = {n: t for n, t in a.tensors.items() if n not in ("mean", "inv_std")}
        yield Arguments(tensors, a.attributes).with_attributes(statistics="fixed")

    text = 'statistics="fixed" needs mean and inv_std.'
    return Constraint(text, MissingTensorError, check, violate)


def nothing_empty(dims: str, reduced: ShapeOf) -> Constraint:
    """Sets of at least one element."""

    def check(a: Arguments) -> str | None:
        if math.prod(reduced(a)) >= 1:
            return None
        shape = first_shape(a)
        return f"a tensor of shape {shape} has no element to average over {dims}; pass at least one"

    def violate(a: Arguments) -> Iterator[Arguments]:
        shape = first_shape(a)
        for dim in range(len(shape)):
            changed = (*shape[:dim], 0, *shape[dim + 1 :])
            same = {name: t for name, t in a.tensors.items() if t.shape == shape}
            emptied = a
            for name in same:
                emptied = emptied.with_tensor(name, shape=changed, strides=None)
            yield emptied

    return Constraint(f"A mean is over at least one element: {dims}.", ShapeError, check, violate)


# --- Attributes -----------------------------------------------------------------------------------


def real_in(name: str, low: float, high: float = math.inf) -> Constraint:
    """A finite number between two limits."""
    domain = f"in [{low:g}, {high:g}]" if high < math.inf else f">= {low:g}"

    def check(a: Arguments) -> str | None:
        try:
            value = as_real(a.attributes[name])
        except ValueError as wrong:
            return f"{name}={wrong}; pass a finite number {domain}"
        if low <= value <= high:
            return None
        return f"{name}={value!r}; pass a number {domain}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (math.nan, math.inf, "1", low - 1.0, low - 2.0**-30):
            yield a.with_attributes(**{name: value})
        if high < math.inf:
            yield a.with_attributes(**{name: high + 2.0**-30})

    return Constraint(f"{name} is a finite number {domain}.", AttributeValueError, check, violate)


def integer_in(name: str, low: int, high: int | None = None) -> Constraint:
    """An integer between two limits."""
    domain = f"in {low}…{high}" if high is not None else f">= {low}"

    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        try:
            legal = low <= as_integer(value) and (high is None or as_integer(value) <= high)
        except (TypeError, ValueError):
            legal = False
        return None if legal else f"{name}={shown(value)}; pass an integer {domain}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (low - 1, low - 10, 1.5, "1"):
            yield a.with_attributes(**{name: value})
        if high is not None:
            yield a.with_attributes(**{name: high + 1})

    return Constraint(f"{name} is an integer {domain}.", AttributeValueError, check, violate)


def truth_value(name: str) -> Constraint:
    """True or False."""

    def check(a: Arguments) -> str | None:
        value = a.attributes[name]
        return None if isinstance(value, bool) else f"{name}={shown(value)}; pass True or False"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (2, None, "true"):  # 0 and 1 are no bools, but equal to them
            yield a.with_attributes(**{name: value})

    return Constraint(f"{name} is True or False.", AttributeValueError, check, violate)


def legal_axis() -> Constraint:
    """A dim of the first tensor."""

    def check(a: Arguments) -> str | None:
        value, rank = a.attributes["axis"], len(first_shape(a))
        try:
            if -rank <= as_integer(value) < rank:
                return None
        except (TypeError, ValueError):
            pass
        return f"axis={shown(value)}; pass an integer in {-rank}…{rank - 1}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        rank = len(first_shape(a))
        for value in (rank, -rank - 1, 1.5, "1"):
            yield a.with_attributes(axis=value)

    return Constraint("axis is a dim of x.", AttributeValueError, check, violate)


def adaptive_keeps_the_batch() -> Constraint:
    """Parameters of each sample need samples."""

    def check(a: Arguments) -> str | None:
        if not a.attributes["adaptive"] or first_axis(a) >= 1:
            return None
        axis = a.attributes["axis"]
        return f"adaptive=True with axis={axis}, which normalises the batch too; pass another axis"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(adaptive=True, axis=0)

    text = "With adaptive=True the first dim, the batch, is not normalised."
    return Constraint(text, AttributeValueError, check, violate)


def groups_divide_channels() -> Constraint:
    """Groups of equally many channels."""

    def check(a: Arguments) -> str | None:
        channels, groups = first_shape(a)[1], group_count(a)
        if channels % groups == 0:
            return None
        return f"C={channels} is not a multiple of groups={groups}; pass groups that divide C"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(groups=first_shape(a)[1] + 1)

    return Constraint("C is a multiple of groups.", ShapeError, check, violate)


def count_covers_shards() -> Constraint:
    """Sums have terms."""

    def check(a: Arguments) -> str | None:
        if a.tensors["sum"].shape[0] >= 1:
            return None
        shape = a.tensors["sum"].shape
        return f"sum has shape {shape}, no shard at all; pass sums of at least one"

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in ("sum", "sq_sum"):
            channels = a.tensors[name].shape[1:]
            a = a.with_tensor(name, shape=(0, *channels), strides=None)
        yield a

    return Constraint("There is at least one shard.", ShapeError, check, violate)
