"""Cases: one call of one primitive, as a line of text from which it is rebuilt bit for bit.

``conv_forward x=float16[2,8,16,16]:nhwc w=float16[8,8,3,3] padding=1,1 stride=2,2 fill=normal seed=7``

A tensor is ``name=dtype[extents]``, with a layout behind a colon unless it is dense: ``nhwc`` (``nwc``,
``ndhwc``) for channels last, or its strides in elements, ``(600,1,30,2)``. Outputs are named only for
their layout, ``y=:nhwc``. Attributes at their default are left out; one that is named like a word of the
case itself, such as the seed of a random generator, is written ``attribute.seed=3``. ``fill`` and ``seed``
decide the data. ``after=8`` makes the same call with the data of seed 8 first, of which nothing may be left;
``runs=2`` makes it twice, with results that agree bit for bit where a backend claims that.
``violates=C3.2`` asks for the second way in which these arguments can break constraint 3, and
``violates=y.shape:2,8,7`` for an ``out=`` that does not fit: :mod:`~dnncanon.conformance.output_violations`
has the words for it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from dnncanon.conformance import output_violations
from dnncanon.conformance.data import FILLS
from dnncanon.conformance.output_violations import WrongOut
from dnncanon.spec import (
    DTYPES,
    REQUIRED,
    Arguments,
    Attribute,
    Call,
    Primitive,
    SpecError,
    TensorType,
    channels_last_strides,
    check_output_layout,
    dense_strides,
    primitives,
)
from dnncanon.spec.attributes import Padding, PerDim, is_sequence
from dnncanon.spec.constraints import spatial_dims

Strides = tuple[int, ...]

_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[0-9,]*)\](?::(?P<layout>.+))?")
_VIOLATION = re.compile(r"C[0-9]{1,3}\.[1-9][0-9]{0,5}")
_RUNS = re.compile(r"[1-9]")
_OWN_WORDS = ("fill", "seed", "after", "runs", "violates")
_CHANNELS_LAST = {3: "nwc", 4: "nhwc", 5: "ndhwc"}


class CaseError(ValueError):
    """A case line that cannot be read; the message says which word of it, and why."""


@dataclass(frozen=True)
class Case:
    """One call: primitive, tensor types with strides, attributes, and how its data are made.

    ``layouts`` holds the strides asked of outputs, by name; an output that is not in it is dense.
    ``violates`` is empty, or the constraint to break and in which way, ``C3.2``, or what is wrong with
    an ``out=``, ``y.dtype:float16``.

    Arguments and layouts are legal: SpecError otherwise. Equal calls compare equal and print equal, so
    every part is kept in one form: stride (1, 1) is the default, 1, and padding 1 is 1 for each dim.
    """

    primitive: Primitive[Any]
    arguments: Arguments
    layouts: Mapping[str, Strides] = field(default_factory=dict)
    fill: str = "normal"
    seed: int = 0
    after: int | None = None
    runs: int = 1
    violates: str = ""

    def __post_init__(self) -> None:
        # Legality comes first, so that no other form of illegal arguments can make them legal.
        call = self.primitive.bind_arguments(self.arguments)
        object.__setattr__(self, "arguments", _canonical_arguments(self.primitive, self.arguments))
        object.__setattr__(self, "layouts", _canonical_layouts(call, self.layouts))
        if self.violates or not self.arguments.tensors:  # no data are computed with
            object.__setattr__(self, "fill", "normal")
        if not self.arguments.tensors:
            object.__setattr__(self, "seed", 0)
            object.__setattr__(self, "after", None)
        if self.wrong_out and self.wrong_out.aspect in (
            "shape",
            "strides",
        ):  # which it is instead of
            others = {n: s for n, s in self.layouts.items() if n != self.wrong_out.output}
            object.__setattr__(self, "layouts", others)

    @classmethod
    def parse(cls, line: str) -> "Case":
        """Read a case line; CaseError says what is wrong with it."""
        return _Parser(line).case()

    def __str__(self) -> str:
        return " ".join(self._words())

    def _words(self) -> Iterator[str]:
        yield self.primitive.name
        for name, tensor in self.arguments.tensors.items():
            shape = ",".join(map(str, tensor.shape))
            layout = _format_layout(tensor.shape, tensor.strides)
            yield f"{name}={tensor.dtype}[{shape}]{layout}"
        for output, tensor in self.call.named_outputs.items():
            layout = _format_layout(tensor.shape, self.layouts.get(output))
            if layout:
                yield f"{output}={layout}"
        for attribute in self.primitive.attributes:
            value = self.arguments.attributes[attribute.name]
            if value is not attribute.default:
                yield f"{_word(attribute)}={attribute.kind.format(value)}"
        if self.violates:
            yield f"violates={self.violates}"
        else:
            yield f"fill={self.fill}"
        yield f"seed={self.seed}"
        if self.after is not None:
            yield f"after={self.after}"
        if self.runs > 1:
            yield f"runs={self.runs}"

    @cached_property
    def call(self) -> Call[Any]:
        """The arguments bound to the specification."""
        return self.primitive.bind_arguments(self.arguments)

    @property
    def dtype(self) -> str:
        return self.call.dtype

    @property
    def layer(self) -> str:
        """Which question the case asks: exact, bounded, special values, or must-error."""
        return "must-error" if self.violates else FILLS[self.fill].layer

    @cached_property
    def wrong_out(self) -> WrongOut | None:
        """The ``out=`` that does not fit, if the case is about one. Raises CaseError."""
        if not self.violates or _VIOLATION.fullmatch(self.violates):
            return None
        try:
            return output_violations.wrong_out(self.violates, self.call, self.layouts)
        except ValueError as wrong:
            raise CaseError(f"violates={self.violates}: {wrong}") from None

    def violation(self) -> tuple[str, Arguments]:
        """The label of the constraint to break, and the arguments that break it."""
        number, _, way = self.violates.removeprefix("C").partition(".")
        label = f"{self.primitive.name} C{number}"
        variants = (a for c, a in self.primitive.violations(self.arguments) if c == label)
        found = next(islice(variants, int(way) - 1, None), None)
        if found is None:
            raise CaseError(
                f"these arguments offer no violation {self.violates} of {self.primitive.name}"
            )
        return label, found


def must_error_cases(case: Case) -> Iterator[Case]:
    """A case for every way in which these arguments can be made to break a constraint."""
    ways: dict[str, int] = {}
    for label, _ in case.primitive.violations(case.arguments):
        number = label.rpartition(" ")[2]
        ways[number] = ways.get(number, 0) + 1
        yield replace(case, after=None, runs=1, violates=f"{number}.{ways[number]}")


def wrong_out_cases(case: Case) -> Iterator[Case]:
    """A case for every way in which an ``out=`` of this call is tried that does not fit."""
    for word in output_violations.words(case.call, case.layouts):
        yield replace(case, after=None, runs=1, violates=word)


def canonical_strides(shape: tuple[int, ...], strides: Strides | None) -> Strides | None:
    """None for dense strides, so that equal layouts compare and print equal."""
    return None if strides is None or strides == dense_strides(shape) else strides


def _canonical_arguments(primitive: Primitive[Any], arguments: Arguments) -> Arguments:
    """Tensors in the declared order with canonical strides, attributes in their canonical values."""
    tensors = {
        spec.name: replace(tensor, strides=canonical_strides(tensor.shape, tensor.strides))
        for spec in primitive.inputs
        if (tensor := arguments.tensors.get(spec.name)) is not None
    }
    dims = spatial_dims(arguments)
    attributes = {
        a.name: _canonical_value(arguments.attributes[a.name], a, dims)
        for a in primitive.attributes
    }
    return Arguments(tensors, attributes)


def _canonical_layouts(call: Call[Any], layouts: Mapping[str, Strides]) -> dict[str, Strides]:
    """The layouts that are not dense; LayoutError for one in which elements overlap."""
    result = {}
    for name, tensor in call.named_outputs.items():
        strides = canonical_strides(tensor.shape, layouts.get(name))
        if strides is not None:
            check_output_layout(name, tensor.shape, strides)
            result[name] = strides
    return result


def _canonical_value(value: Any, attribute: Attribute, dims: int) -> Any:
    """The default itself where ``value`` means it, otherwise the value that its full text reads as."""
    if value is None or value is attribute.default:
        return value
    text = _full_text(value, attribute, dims)
    has_default = attribute.default is not REQUIRED and attribute.default is not None
    if has_default and text == _full_text(attribute.default, attribute, dims):
        return attribute.default
    return attribute.kind.parse(text)


def _full_text(value: Any, attribute: Attribute, dims: int) -> str:
    """A value as text; one number that holds for every spatial dim is written for each of them."""
    text = attribute.kind.format(value)
    for_every_dim = isinstance(attribute.kind, (PerDim, Padding)) and not isinstance(value, str)
    return ",".join([text] * dims) if for_every_dim and not is_sequence(value) else text


def _format_layout(shape: tuple[int, ...], strides: Strides | None) -> str:
    if canonical_strides(shape, strides) is None or strides is None:
        return ""
    if len(shape) in _CHANNELS_LAST and strides == channels_last_strides(shape):
        return f":{_CHANNELS_LAST[len(shape)]}"
    return f":({','.join(map(str, strides))})"


def _word(attribute: Attribute) -> str:
    """What an attribute is called in a case line."""
    return f"attribute.{attribute.name}" if attribute.name in _OWN_WORDS else attribute.name


class _Parser:
    """Reads one case line, word by word."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.words: dict[str, str] = {}
        name, *words = line.split() or [""]
        if name not in primitives():
            known = ", ".join(primitives())
            raise CaseError(f"no primitive {name!r}; known are {known}")
        self.primitive = primitives()[name]
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise CaseError(f"{word!r} is not name=value")
            if key in self.words:
                raise CaseError(f"{key!r} is given twice")
            self.words[key] = value

    def case(self) -> Case:
        tensors = dict(self._tensors())
        outputs = {o.name: self.words.pop(o.name, "") for o in self.primitive.outputs}
        attributes = dict(self._attributes())
        violates = self.words.pop("violates", "")
        fill = self.words.pop("fill", "normal")
        if fill not in FILLS:
            raise CaseError(f"fill={fill}: known are {', '.join(FILLS)}")
        seed = self._seed("seed")
        after = self._seed("after") if "after" in self.words else None
        runs = self.words.pop("runs", "1")
        if not _RUNS.fullmatch(runs):
            raise CaseError(f"runs={runs}: not an integer in 1…9")
        if self.words:
            unknown = next(iter(self.words))
            raise CaseError(f"{self.primitive.name} has no tensor or attribute {unknown!r}")
        try:
            arguments = Arguments(tensors, attributes)
            case = Case(self.primitive, arguments, {}, fill, seed, after, int(runs))
            return replace(case, layouts=dict(self._layouts(case, outputs)), violates=violates)
        except SpecError as wrong:
            raise CaseError(str(wrong)) from None

    def _seed(self, name: str) -> int:
        text = self.words.pop(name, "0")
        if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 2**64:
            raise CaseError(f"{name}={text}: not an integer in 0…2^64−1")
        return int(text)

    def _tensors(self) -> Iterator[tuple[str, TensorType]]:
        for spec in self.primitive.inputs:
            text = self.words.pop(spec.name, None)
            if text is not None:
                yield spec.name, _parse_tensor(spec.name, text)
            elif not spec.optional:
                raise CaseError(
                    f"the tensor {spec.name} is missing: {spec.name}=dtype[{spec.dims}]"
                )

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        for attribute in self.primitive.attributes:
            text = self.words.pop(_word(attribute), None)
            if text is None and attribute.default is REQUIRED:
                raise CaseError(f"the attribute {attribute.name} is missing: {attribute.doc}")
            if text is None:
                yield attribute.name, attribute.default
                continue
            try:
                yield attribute.name, attribute.kind.parse(text)
            except ValueError:
                raise CaseError(
                    f"{attribute.name}={text}: not {attribute.kind.describes}"
                ) from None

    def _layouts(self, case: Case, texts: Mapping[str, str]) -> Iterator[tuple[str, Strides]]:
        for name, text in texts.items():
            if not text:
                continue
            if not text.startswith(":"):
                raise CaseError(f"{name}={text}: an output has a layout only, such as :nhwc")
            if name not in case.call.named_outputs:
                raise CaseError(f"{name}={text}: this call has no output {name}")
            yield name, _parse_layout(name, text[1:], case.call.named_outputs[name].shape)


def _parse_tensor(name: str, text: str) -> TensorType:
    match = _TENSOR.fullmatch(text)
    if not match:
        raise CaseError(f"{name}={text}: not dtype[extents], such as float32[1,3,8,8]")
    if match["dtype"] not in DTYPES:
        raise CaseError(
            f"{name}={text}: no dtype {match['dtype']!r}; known are {', '.join(DTYPES)}"
        )
    shape = _integers(name, match["shape"])
    if match["layout"] is None:
        return TensorType(match["dtype"], shape)
    strides = _parse_layout(name, match["layout"], shape)
    return TensorType(match["dtype"], shape, canonical_strides(shape, strides))


def _parse_layout(name: str, text: str, shape: tuple[int, ...]) -> Strides:
    if text == _CHANNELS_LAST.get(len(shape)):
        return channels_last_strides(shape)
    if not (text.startswith("(") and text.endswith(")")):
        expected = _CHANNELS_LAST.get(len(shape), "channels last")
        raise CaseError(f"{name}: no layout {text!r}; write {expected} or strides such as (12,4,1)")
    strides = _integers(name, text[1:-1])
    if len(strides) != len(shape):
        raise CaseError(f"{name}: {len(strides)} strides for {len(shape)} dims")
    return strides


def _integers(name: str, text: str) -> tuple[int, ...]:
    if not text:
        return ()
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text):
        raise CaseError(f"{name}: {text!r} is not a list of integers >= 0")
    return tuple(map(int, text.split(",")))
