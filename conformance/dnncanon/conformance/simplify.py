"""The last step of shrinking: steps from a failing case to a simpler one, on the case itself.

Hypothesis reduces the choices from which a case was drawn, and so goes only where they lead. These steps
know what a case is: they take away a spatial dim, a tensor, an attribute, a layout, or part of an extent,
in every tensor at once, guided by the symbolic dims of the specification alone.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from dnncanon.conformance.case import Case, Strides
from dnncanon.spec import (
    REQUIRED,
    Arguments,
    Attribute,
    SpecError,
    TensorType,
    channels_last_strides,
    dense_strides,
)
from dnncanon.spec.attributes import Integer, Integers, Padding, PerDim, padding_pairs

# A dim of a tensor: ``N``, ``C/groups``, or ``*I`` for one in each spatial dim.
_DIM = re.compile(r"(?P<each>\*?)(?P<symbol>\w+)(?:/(?P<divisor>\w+))?")

# By how much inputs grow where padding is given by a word.
_WORDS_PAD = (1, 2, 3, 4)

_FEW = 8
_LONGEST_FIT = 64

# So many elements is a tensor without any worth: it tells less than one with few.
_EMPTY = 1 << 40

Extent = int | tuple[int, ...]
Extents = Mapping[str, Extent]


def simplified(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The case at which no step to a simpler one fails any more."""
    tried = {str(case)}
    while True:
        for candidate in _steps(case):
            if str(candidate) in tried or weight(candidate) >= weight(case):
                continue
            tried.add(str(candidate))
            if fails(candidate):
                case = candidate
                break
        else:
            return case


def weight(case: Case) -> tuple[int, ...]:
    """How far a case is from the simplest; what counts more comes first."""
    tensors = [*case.arguments.tensors.values(), *case.call.outputs]
    attributes = case.arguments.attributes
    given = [attributes[a.name] for a in case.primitive.attributes if _is_given(case, a)]
    layouts = sum(tensor.strides is not None for tensor in tensors) + len(case.layouts)
    return (
        sum(tensor.rank for tensor in tensors),
        len(tensors),
        len(given),
        sum(tensor.size or _EMPTY for tensor in tensors),
        sum(map(_magnitude, given)),
        layouts,
        int(case.fill != "normal"),
        int(case.after is not None),
        case.runs,
        case.seed,
    )


def _is_given(case: Case, attribute: Attribute) -> bool:
    return case.arguments.attributes[attribute.name] is not attribute.default


def _magnitude(value: Any) -> int:
    """The sum of the integers in a value, or the calls in a text; words and fractions count little."""
    if isinstance(value, tuple):
        return sum(map(_magnitude, value))
    if isinstance(value, str):
        return 1 + len(value) * value.count("(")
    return value if isinstance(value, int) else 1


def _steps(case: Case) -> Iterator[Case]:
    yield from _plain_data(case)
    yield from _fewer_dims(case)
    yield from _fewer_entries(case)
    yield from _fewer_tensors(case)
    yield from _simpler_texts(case)
    yield from _fewer_attributes(case)
    yield from _fewer_groups(case)
    yield from _smaller_extents(case)
    yield from _smaller_attributes(case)
    yield from _plain_layouts(case)


# --- Steps ----------------------------------------------------------------------------------------


def _plain_data(case: Case) -> Iterator[Case]:
    changes: dict[str, Any] = {"after": None, "runs": 1, "fill": "normal", "seed": 0}
    yield replace(case, **changes)
    for name, value in changes.items():
        yield replace(case, **{name: value})


def _fewer_dims(case: Case) -> Iterator[Case]:
    """Take one spatial dim out of all tensors and attributes."""
    extents = _extents(case)
    dims = max((len(e) for e in extents.values() if isinstance(e, tuple)), default=0)
    for dim in range(dims if dims > 1 else 0):
        fewer = {
            symbol: extent[:dim] + extent[dim + 1 :] if isinstance(extent, tuple) else extent
            for symbol, extent in extents.items()
        }
        attributes = {
            name: value[:dim] + value[dim + 1 :] if isinstance(value, tuple) else value
            for name, value in _per_dim(case).items()
        }
        yield from _changed(case, fewer, attributes)


def _fewer_entries(case: Case) -> Iterator[Case]:
    """Take one entry out of a list of integers, such as axes or a shape."""
    attributes = case.arguments.attributes
    for attribute in case.primitive.attributes:
        value = attributes[attribute.name]
        if isinstance(attribute.kind, Integers) and isinstance(value, tuple):
            for position in range(len(value)):
                fewer = {attribute.name: value[:position] + value[position + 1 :]}
                yield from _changed(case, _extents(case), {**attributes, **fewer})


def _fewer_tensors(case: Case) -> Iterator[Case]:
    for spec in case.primitive.inputs:
        if spec.optional and spec.name in case.arguments.tensors:
            tensors = {n: t for n, t in case.arguments.tensors.items() if n != spec.name}
            yield from _legal(case, replace(case.arguments, tensors=tensors), case.layouts)


def _simpler_texts(case: Case) -> Iterator[Case]:
    """A text, such as a graph, for a simpler one, without the tensors that it needs no more."""
    tensors = case.arguments.tensors
    optional = [t.name for t in case.primitive.inputs if t.optional and t.name in tensors]
    for attribute in case.primitive.attributes:
        simpler = getattr(attribute.kind, "simpler", None)
        for value in simpler(case.arguments.attributes[attribute.name]) if simpler else ():
            arguments = case.arguments.with_attributes(**{attribute.name: value})
            for kept in (k for n in range(len(optional) + 1) for k in combinations(optional, n)):
                fewer = {n: t for n, t in tensors.items() if n in kept or n not in optional}
                yield from _legal(case, replace(arguments, tensors=fewer), case.layouts)


def _fewer_attributes(case: Case) -> Iterator[Case]:
    """Each attribute to its default; instead of padding, an input that is larger by as much."""
    for attribute in case.primitive.attributes:
        if attribute.default is REQUIRED or not _is_given(case, attribute):
            continue
        default = {attribute.name: attribute.default}
        yield from _changed(case, _extents(case), {**case.arguments.attributes, **default})
        if isinstance(attribute.kind, Padding):
            yield from _padding_in_input(case, attribute.name)
        if isinstance(attribute.kind, PerDim):
            yield from _input_to_fit(case, default)


def _input_to_fit(case: Case, change: Mapping[str, Any]) -> Iterator[Case]:
    """A changed attribute together with a smaller input: the output may be given, or grow."""
    extents = _extents(case)
    inputs, attributes = extents.get("I"), {**case.arguments.attributes, **change}
    if not isinstance(inputs, tuple):
        return
    for dim, extent in enumerate(inputs):
        for smaller in range(1, min(extent, _LONGEST_FIT)):
            fitting = (*inputs[:dim], smaller, *inputs[dim + 1 :])
            yield from _changed(case, {**extents, "I": fitting}, attributes)


def _padding_in_input(case: Case, name: str) -> Iterator[Case]:
    extents, attributes = _extents(case), _per_dim(case)
    padding = attributes[name]
    size = extents.get("I", attributes.get("input_size"))
    if not isinstance(size, tuple):
        return
    attributes[name] = case.primitive.attribute(name).default
    for grown in _grown(size, padding):
        if "I" in extents:
            yield from _changed(case, {**extents, "I": grown}, attributes)
        else:
            yield from _changed(case, extents, {**attributes, "input_size": grown})


def _grown(size: tuple[int, ...], padding: Any) -> Iterator[tuple[int, ...]]:
    """Extents with the padding in them; how much that is, a word does not say."""
    if not isinstance(padding, str):
        pairs = padding_pairs(padding, len(size))
        yield tuple(extent + sum(pair) for extent, pair in zip(size, pairs, strict=True))
        return
    for more in _WORDS_PAD:
        yield tuple(extent + more for extent in size)


def _fewer_groups(case: Case) -> Iterator[Case]:
    """Fewer groups of the same size, or one group of all channels."""
    for name in _divisors(case):
        groups, extents = case.arguments.attributes[name], _extents(case)
        for fewer in _smaller(groups, 1):
            attributes = {**case.arguments.attributes, name: fewer}
            same_size = {
                s: e // groups * fewer if isinstance(e, int) and s in "CK" else e
                for s, e in extents.items()
            }
            yield from _changed(case, same_size, attributes)
            yield from _changed(case, extents, attributes)


def _smaller_extents(case: Case) -> Iterator[Case]:
    extents, attributes = _extents(case), case.arguments.attributes
    for symbol, extent in extents.items():
        if isinstance(extent, int):
            step = _step(case, symbol)
            for smaller in _smaller(extent // step, 1):
                yield from _changed(case, {**extents, symbol: smaller * step}, attributes)
    yield from _smaller_spatially(case)


def _step(case: Case, symbol: str) -> int:
    """What an extent is a multiple of: the groups, for channels."""
    groups = case.arguments.attributes.get("groups", 1)
    return groups if symbol in "CK" and isinstance(groups, int) else 1


def _smaller_spatially(case: Case) -> Iterator[Case]:
    """In one spatial dim input, filter and output at once: they depend on each other."""
    extents, attributes = _extents(case), _per_dim(case)
    spatial: dict[str, tuple[int, ...]] = {s: e for s, e in extents.items() if isinstance(e, tuple)}
    sizes = {
        name: value
        for name, value in attributes.items()
        if name.endswith("_size") and isinstance(value, tuple)
    }
    together = {**spatial, **sizes}
    dims = max(map(len, together.values()), default=0)
    for dim in range(dims):
        # A reduced tensor has fewer dims than others.
        having = {name: size for name, size in together.items() if dim < len(size)}
        options = [(*_smaller(size[dim], 1), size[dim]) for size in having.values()]
        for chosen in sorted(product(*options), key=sum):
            new = together | {
                name: (*size[:dim], value, *size[dim + 1 :])
                for (name, size), value in zip(having.items(), chosen, strict=True)
            }
            new_extents = {**extents, **{s: new[s] for s in spatial}}
            yield from _changed(case, new_extents, {**attributes, **{n: new[n] for n in sizes}})


def _smaller_attributes(case: Case) -> Iterator[Case]:
    """Integers in attributes one by one: strides, dilations, padding, extents, seeds."""
    attributes = _per_dim(case)
    for attribute in case.primitive.attributes:
        value = attributes[attribute.name]
        least = 0 if isinstance(attribute.kind, Padding) else 1
        if isinstance(value, tuple):
            for smaller in _one_smaller(value, least):
                change = {attribute.name: smaller}
                yield from _changed(case, _extents(case), {**attributes, **change})
                yield from _input_to_fit(case, change)
        is_number = isinstance(attribute.kind, Integer) and isinstance(value, int)
        if is_number and attribute.name not in _divisors(case):
            for number in _smaller(value, 0):
                one_smaller = {**attributes, attribute.name: number}
                yield from _changed(case, _extents(case), one_smaller)


def _one_smaller(value: tuple[Any, ...], least: int) -> Iterator[tuple[Any, ...]]:
    for position, part in enumerate(value):
        parts = _one_smaller(part, least) if isinstance(part, tuple) else _smaller(part, least)
        for smaller in parts:
            yield (*value[:position], smaller, *value[position + 1 :])


def _plain_layouts(case: Case) -> Iterator[Case]:
    dense = {n: replace(t, strides=None) for n, t in case.arguments.tensors.items()}
    yield from _legal(case, replace(case.arguments, tensors=dense), {})
    for name, tensor in dense.items():
        tensors = {**case.arguments.tensors, name: tensor}
        yield from _legal(case, replace(case.arguments, tensors=tensors), case.layouts)
    for output in case.layouts:
        layouts = {n: s for n, s in case.layouts.items() if n != output}
        yield from _legal(case, case.arguments, layouts)


def _smaller(value: int, least: int) -> list[int]:
    """Simpler integers to try, the least first; of many those that halve what they lack."""
    if value < least:
        return [least]
    if value <= _FEW:
        return list(range(least, value))
    steps = [value >> shift for shift in range(1, value.bit_length())]
    return [least, *(value - step for step in steps)]


# --- Symbolic dims --------------------------------------------------------------------------------


def _dims(case: Case) -> dict[str, list[dict[str, str]]]:
    """The symbolic dims of each tensor that is there."""
    return {
        spec.name: _parsed(spec.dims)
        for spec in case.primitive.inputs
        if spec.name in case.arguments.tensors
    }


def _divisors(case: Case) -> set[str]:
    """The attributes by which extents are divided: groups."""
    specs = (*case.primitive.inputs, *case.primitive.outputs)
    return {d["divisor"] for spec in specs for d in _parsed(spec.dims) if d["divisor"]}


def _parsed(dims: str) -> list[dict[str, str]]:
    return [found.groupdict() for dim in dims.split() if (found := _DIM.fullmatch(dim))]


def _extents(case: Case) -> dict[str, Extent]:
    """What each symbol in the dims of the inputs stands for."""
    extents: dict[str, Extent] = {}
    for name, dims in _dims(case).items():
        rest = list(case.arguments.tensors[name].shape)
        for dim in dims:
            if dim["each"]:
                extents[dim["symbol"]] = tuple(rest)  # spatial dims come last
            else:
                times = case.arguments.attributes[dim["divisor"]] if dim["divisor"] else 1
                extents[dim["symbol"]] = rest.pop(0) * times
    return extents


def _per_dim(case: Case) -> dict[str, Any]:
    """The attributes, those with one value for each spatial dim as tuples."""
    dims = max((len(e) for e in _extents(case).values() if isinstance(e, tuple)), default=0)
    return {
        name: (value,) * dims
        if isinstance(value, int)
        and isinstance(case.primitive.attribute(name).kind, (PerDim, Padding))
        else value
        for name, value in case.arguments.attributes.items()
    }


def _changed(case: Case, extents: Extents, attributes: Mapping[str, Any]) -> Iterator[Case]:
    """The case with these extents and attributes in layouts of the same kinds, if that is legal."""
    tensors = {}
    for name, dims in _dims(case).items():
        shape: list[int] = []
        for dim in dims:
            extent = extents[dim["symbol"]]
            if isinstance(extent, tuple):
                shape += extent
            else:
                shape.append(extent // (attributes[dim["divisor"]] if dim["divisor"] else 1))
        tensor = case.arguments.tensors[name]
        strides = _strides_like(tensor.shape, tensor.strides, tuple(shape))
        tensors[name] = TensorType(tensor.dtype, tuple(shape), strides)
    arguments = Arguments(tensors, attributes)
    try:
        outputs = case.primitive.bind_arguments(arguments).named_outputs
    except SpecError:
        return
    before = case.call.named_outputs
    layouts = {
        name: strides
        for name, after in outputs.items()
        if name in before
        and (strides := _strides_like(before[name].shape, case.layouts.get(name), after.shape))
    }
    yield from _legal(case, arguments, layouts)


def _strides_like(
    before: tuple[int, ...], strides: Strides | None, shape: tuple[int, ...]
) -> Strides | None:
    """Strides of the same kind for another shape: dims in the same order, gaps, repeated elements."""
    if strides is None or len(before) < len(shape):
        return None
    if len(before) == len(shape) > 2 and strides == channels_last_strides(before):
        return channels_last_strides(shape)
    if len(before) != len(shape):  # spatial dims are gone, which are the last
        strides = (*strides[:2], *strides[-len(shape) + 2 :]) if len(shape) > 2 else strides[:2]
    has_gaps = 1 not in strides
    step, result = 2 if has_gaps else 1, [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        if strides[dim]:
            result[dim] = step
            step *= max(1, shape[dim])
    return None if tuple(result) == dense_strides(shape) else tuple(result)


def _legal(case: Case, arguments: Arguments, layouts: Mapping[str, Strides]) -> Iterator[Case]:
    try:
        yield replace(case, arguments=arguments, layouts=layouts)
    except SpecError:
        return
