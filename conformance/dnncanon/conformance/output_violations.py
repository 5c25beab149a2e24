"""Outputs that do not fit: in which ways the ``out=`` of a legal call can be wrong.

One property of one output is wrong at a time, and the word of a case says which, and how:

``y.shape:2,3,4``     out has that shape, densely
``y.dtype:float16``   that dtype
``y.strides:0,4,1``   those strides, in elements, by which elements share an address
``y.first:x.last``    memory of x: the first element of out is the last one of x
``y.last:x.first``    its last element is the first one of x

x is an input, or an output declared before y, of the same dtype: a backend need not offer views of another.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from dnncanon.conformance import isolation
from dnncanon.spec import (
    DTYPES,
    Call,
    DTypeError,
    LayoutError,
    ShapeError,
    SpecError,
    TensorType,
    check_output_layout,
    dense_strides,
    span,
)

Numbers = tuple[int, ...]

_NUMBERS = r"(?:(?:0|[1-9][0-9]{0,99})(?:,(?:0|[1-9][0-9]{0,99}))*)?"
_WORD = re.compile(
    rf"(?P<output>\w+)\.(?:(?P<aspect>shape|strides):(?P<numbers>{_NUMBERS})"
    r"|dtype:(?P<dtype>\w+)"
    r"|(?P<ours>first|last):(?P<over>\w+)\.(?P<theirs>first|last))"
)
_ERRORS: Mapping[str, type[SpecError]] = {
    "shape": ShapeError,
    "dtype": DTypeError,
    "strides": LayoutError,
    "memory": LayoutError,
}
_REMEDY = "; pass "


@dataclass(frozen=True)
class WrongOut:
    """An ``out=`` that does not fit: ``given`` is passed for ``output``, where ``expected`` would fit.

    ``aspect`` is what is wrong: shape, dtype, strides or memory. Then it lies in the memory of the
    tensor ``over``, its first element ``offset`` elements behind that one's first.
    """

    output: str
    aspect: str
    given: TensorType
    expected: TensorType
    over: str = ""
    offset: int = 0

    def __str__(self) -> str:
        if self.aspect == "memory":
            return f"out for {self.output} lies in the memory of {self.over}"
        given, expected = (_shown(getattr(t, self.aspect)) for t in (self.given, self.expected))
        overlap = f"{given}, by which elements overlap"
        told = overlap if self.aspect == "strides" else f"{given} and not {expected}"
        return f"out for {self.output} has the {self.aspect} {told}"

    @property
    def error(self) -> type[SpecError]:
        """The error that the specification has for it."""
        return _ERRORS[self.aspect]

    @property
    def reach(self) -> int:
        """How many elements before its first and behind its last the tensor ``over`` needs room for."""
        return abs(self.offset) + _span(self.given) if self.over else 0

    def complaint(self, error: BaseException, *, claimed: bool) -> str:
        """What is wrong with the error that a call with it has raised; empty if nothing.

        Any exception refuses it, but where the spec's errors are ``claimed`` only the right one does,
        if it names the output, the values and the remedy. To be called where ``error`` is handled.
        """
        if not isinstance(error, self.error if claimed else Exception):
            wanted = f"the spec's {self.error.__name__}" if claimed else "an Exception"
            return f"{self}, but what was raised is not {wanted}: {isolation.failure()}"
        said = isolation.said(error)
        missing = [what for what, pattern in self._content() if not re.search(pattern, said)]
        if claimed and missing:
            return f"{self}, but the error does not name {', '.join(missing)}: {said}"
        return ""

    def _content(self) -> Iterator[tuple[str, str]]:
        """What the message has to say, in words and as a pattern."""
        yield f"the output {self.output}", _word(self.output)
        if self.aspect == "memory":
            yield f"the tensor {self.over}", _word(self.over)
        else:
            given, expected = (getattr(t, self.aspect) for t in (self.given, self.expected))
            yield f"the {self.aspect} {_shown(given)}", _value(given)
            if self.aspect != "strides":
                yield f"the {self.aspect} {_shown(expected)}", _value(expected)
        yield f'the remedy ("{_REMEDY}…")', re.escape(_REMEDY)


def wrong_out(word: str, call: Call[Any], layouts: Mapping[str, Numbers]) -> WrongOut:
    """What a word means for a call whose outputs have these layouts, or else are dense.

    ValueError where the word is malformed, or where nothing would be wrong with such an output.
    """
    match = _WORD.fullmatch(word)
    if not match:
        raise ValueError(
            "write it as C3.1, constraint and way, or as y.shape:2,3 or y.dtype:float16 or "
            "y.strides:0,1 or y.first:x.last, an output and what is wrong with it"
        )
    outputs = _outputs(call, layouts)
    name = match["output"]
    if name not in outputs:
        raise ValueError(f"{call.primitive.name} has no output {name!r}")
    if match["over"]:
        return _in_memory(match, outputs[name], _before(call, name, outputs))
    return _of_another_type(match, outputs[name])


def _outputs(call: Call[Any], layouts: Mapping[str, Numbers]) -> dict[str, TensorType]:
    return {
        name: TensorType(t.dtype, t.shape, layouts.get(name) or dense_strides(t.shape))
        for name, t in call.named_outputs.items()
    }


def _before(call: Call[Any], name: str, outputs: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The inputs, and the outputs declared before this one."""
    names = list(outputs)
    return {**call.arguments.tensors, **{n: outputs[n] for n in names[: names.index(name)]}}


def _of_another_type(match: re.Match[str], right: TensorType) -> WrongOut:
    name, aspect = match["output"], match["aspect"] or "dtype"
    if aspect == "dtype":
        given = TensorType(match["dtype"], right.shape, right.strides)
        if given.dtype not in DTYPES:
            raise ValueError(f"no dtype {given.dtype!r}; known are {', '.join(DTYPES)}")
    else:
        right = TensorType(right.dtype, right.shape, dense_strides(right.shape))
        numbers = tuple(map(int, filter(None, match["numbers"].split(","))))
        dense = TensorType(right.dtype, numbers, dense_strides(numbers))
        strided = TensorType(right.dtype, right.shape, numbers)
        given = dense if aspect == "shape" else strided
    value, fitting = getattr(given, aspect), getattr(right, aspect)
    if _fits(given) if aspect == "strides" else value == fitting:
        raise ValueError(f"{name} may have the {aspect} {_shown(value)}")
    return WrongOut(name, aspect, given, right)


def _fits(tensor: TensorType) -> bool:
    """Whether an output may have these strides; ValueError when there are too few or too many."""
    if len(tensor.element_strides) != tensor.rank:
        raise ValueError(f"{len(tensor.element_strides)} strides for {tensor.rank} dims")
    try:
        check_output_layout("", tensor.shape, tensor.element_strides)
    except LayoutError:
        return False
    return True


def _in_memory(
    match: re.Match[str], right: TensorType, others: Mapping[str, TensorType]
) -> WrongOut:
    name, over = match["output"], match["over"]
    if over not in others:
        raise ValueError(f"{name} cannot lie over {over!r}, but over {', '.join(others)}")
    other = others[over]
    if not (right.size and other.size and right.dtype == other.dtype):
        raise ValueError(
            f"{name} cannot lie over {over}: they are {right.dtype} of {right.size} elements and "
            f"{other.dtype} of {other.size}"
        )
    ours, theirs = (
        _span(tensor) - 1 if match[which] == "last" else 0
        for tensor, which in ((right, "ours"), (other, "theirs"))
    )
    return WrongOut(name, "memory", right, right, over, theirs - ours)


def _span(tensor: TensorType) -> int:
    return span(tensor.shape, tensor.element_strides)


def _shown(value: str | Numbers) -> str:
    """Without the comma behind the only number of a tuple, which is easily misread."""
    return value if isinstance(value, str) else f"({', '.join(map(str, value))})"


def _word(text: str) -> str:
    """A pattern for a name that is not part of a longer one."""
    return rf"(?<!\w){re.escape(text)}(?!\w)"


def _value(value: str | Numbers) -> str:
    """A pattern for a dtype, or for numbers in any brackets."""
    if isinstance(value, str):
        return _word(value)
    separated = r",\s*".join(map(str, value))
    return rf"(?<!\d){separated}(?!\d)" if value else r"\(\)|\[\]"


# --- All ways -------------------------------------------------------------------------------------


def words(call: Call[Any], layouts: Mapping[str, Numbers]) -> Iterator[str]:
    """The words for all ways in which an output of this call is tried."""
    outputs = _outputs(call, layouts)
    for name, right in outputs.items():
        for shape in _wrong_shapes(right.shape):
            yield f"{name}.shape:{','.join(map(str, shape))}"
        for dtype in _wrong_dtypes(call, right.dtype):
            yield f"{name}.dtype:{dtype}"
        for strides in _overlapping_strides(right.shape):
            yield f"{name}.strides:{','.join(map(str, strides))}"
        for over, other in _before(call, name, outputs).items():
            if right.size and other.size and other.dtype == right.dtype:
                yield from _places(name, over)


def _wrong_shapes(shape: Numbers) -> Iterator[Numbers]:
    """One element more or less in one dim; a dim more or less; as many elements in another order."""
    tried = {shape}
    for dim, change in product(range(len(shape)), (1, -1)):
        tried.add((*shape[:dim], max(0, shape[dim] + change), *shape[dim + 1 :]))
    tried |= {(1, *shape), (*shape, 1), shape[1:], shape[:-1], shape[::-1]}
    yield from sorted(tried - {shape})


def _wrong_dtypes(call: Call[Any], dtype: str) -> Iterator[str]:
    """Those that the primitive has, and those of as many bytes, which are easily mistaken for it."""
    size, offered = DTYPES[dtype].itemsize, {row.dtype for row in call.primitive.dtypes}
    for name, row in DTYPES.items():
        if name != dtype and (name in offered or row.itemsize == size):
            yield name


def _overlapping_strides(shape: Numbers) -> Iterator[Numbers]:
    """All elements, or those along one dim, at one address; and a row that begins on the last's end."""
    if 0 in shape or set(shape) <= {1}:
        return
    dense = dense_strides(shape)
    tried = {(0,) * len(shape)}
    for dim, (extent, stride) in enumerate(zip(shape, dense, strict=True)):
        if extent > 1:
            tried.add((*dense[:dim], 0, *dense[dim + 1 :]))
            tried.add((*dense[:dim], stride - 1, *dense[dim + 1 :]))
    yield from sorted(tried)


def _places(name: str, over: str) -> Iterator[str]:
    """From the first element on, and with nothing but one end in common."""
    for ours, theirs in (("first", "first"), ("first", "last"), ("last", "first")):
        yield f"{name}.{ours}:{over}.{theirs}"
