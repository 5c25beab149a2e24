"""The core of the specification: what a primitive is made of, and how a call is bound to it.

A :class:`Primitive` is a declaration: tensors with symbolic dims, attributes, numbered constraints,
output shapes, dtypes, cost, and the domain to sample from. It computes nothing. Everything else,
the conformance suite, the command line, the reports and the documentation, reads the declaration.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from dnncanon.spec.dtypes import DTYPES
from dnncanon.spec.errors import AttributeValueError, MissingTensorError, SpecError
from dnncanon.spec.numerics import NUMERICS
from dnncanon.spec.tensors import TensorType
from dnncanon.spec.values import ANY, Values

Problem = TypeVar("Problem")

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "required"})()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor parameter: name, symbolic dims such as ``N C *I`` (* stands for several), meaning.

    ``special_values`` says that the effect of NaN and Inf in it is specified, and so can be tested;
    ``values`` which numbers it may hold. An ``optional`` output is there when the attributes ask for it.
    Where elements differ from each other, as offsets that ascend, none stands for others: without ``repeats``
    no test has the tensor in a layout with stride 0.
    """

    name: str
    dims: str
    doc: str
    optional: bool = False
    special_values: bool = True
    values: Values = ANY
    repeats: bool = True


class AttributeKind(Protocol):
    """The domain of an attribute: what it looks like in a call and in a case line."""

    @property
    def describes(self) -> str:
        """The domain in words, for messages and documentation."""

    def parse(self, text: str) -> Any:
        """The value written as ``text``; ValueError when the text is malformed."""

    def format(self, value: Any) -> str:
        """The text of a value, without blanks; ``parse`` reads it back."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A keyword argument: name, domain, default, meaning."""

    name: str
    kind: AttributeKind
    doc: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, by name: tensor types, and attributes as the caller wrote them."""

    tensors: Mapping[str, TensorType]
    attributes: Mapping[str, Any]

    def with_tensor(self, name: str, **changes: Any) -> "Arguments":
        """A copy in which one tensor's dtype, shape or strides differ."""
        changed = replace(self.tensors[name], **changes)
        return replace(self, tensors={**self.tensors, name: changed})

    def with_attributes(self, **changes: Any) -> "Arguments":
        """A copy in which some attributes differ."""
        return replace(self, attributes={**self.attributes, **changes})


@dataclass(frozen=True, slots=True)
class Constraint:
    """A numbered rule of a primitive.

    ``check`` returns None, or what is wrong with the arguments: values and remedy. It may rely on the
    constraints before it. ``violate`` yields variants of legal arguments that break this rule first.
    """

    text: str
    error: type[SpecError]
    check: Callable[[Arguments], str | None]
    violate: Callable[[Arguments], Iterator[Arguments]]


@dataclass(frozen=True, slots=True)
class DTypeRow:
    """A supported element type and the numerics classes in which it may be computed, the strictest first."""

    dtype: str
    numerics: tuple[str, ...]


class Draw(Protocol):
    """A source of choices from which a domain builds arguments.

    Whoever implements it makes ``low`` and the first option the simplest choice, so that what fails
    can be reduced towards them.
    """

    def integer(self, low: int, high: int) -> int:
        """An integer in low…high."""

    def choice(self, options: tuple[Any, ...]) -> Any:
        """One of the options."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a sampled problem may be: the level of a run in figures."""

    batch: int
    channels: int
    extent: int
    multiplications: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """A legal call at an edge of the domain, which draws at random do not meet.

    ``report`` names the public report of a defect that the call would show again; empty for none.
    ``special_values`` asks for data with NaN, Inf, −0 and subnormals.
    """

    name: str
    arguments: Arguments
    report: str = ""
    special_values: bool = False


@dataclass(frozen=True)
class Call(Generic[Problem]):
    """Arguments that satisfy the specification, and what follows from them."""

    primitive: "Primitive[Problem]"
    arguments: Arguments
    problem: Problem
    named_outputs: Mapping[str, TensorType]

    @property
    def outputs(self) -> tuple[TensorType, ...]:
        """The types of the outputs that this call has, in the declared order."""
        return tuple(self.named_outputs.values())

    @property
    def dtype(self) -> str:
        """The element type, by which reports and numerics classes are told apart: the first tensor's."""
        return (*self.arguments.tensors.values(), *self.outputs)[0].dtype

    def results(self, arrays: Iterable[Any]) -> Any:
        """What a backend returns: the one output, or a NamedTuple of several."""
        names, given = tuple(self.named_outputs), tuple(arrays)
        return given[0] if len(names) == 1 else _named_tuple(self.primitive.name, names)(*given)

    @property
    def flops(self) -> int:
        """Floating-point operations of the definition, a multiply-add counted as two."""
        return self.primitive.flops(self.problem)

    @property
    def least_bytes(self) -> int:
        """Bytes that must move at least: each input read once, each output written once."""
        tensors = (*self.arguments.tensors.values(), *self.outputs)
        return sum(tensor.bytes for tensor in tensors)


@dataclass(frozen=True, eq=False, repr=False)
class Primitive(Generic[Problem]):
    """The declaration of one primitive. ``name`` is also the name of the function in every backend.

    ``infer`` gives the types of the outputs, None for an optional one that the call does not have.
    ``consistent`` makes of independent test data what a caller could pass: offsets that ascend, indices
    that exist; it takes and returns float64 arrays by name. ``may_copy`` says that an output may rightly
    equal an input, so that a backend which copies is no suspect.
    """

    name: str
    family: str
    summary: str
    formula: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[Attribute, ...]
    dtypes: tuple[DTypeRow, ...]
    constraints: tuple[Constraint, ...]
    decisions: tuple[str, ...]
    resolve: Callable[[Arguments], Problem]
    infer: Callable[[Problem], tuple[TensorType | None, ...]]
    flops: Callable[[Problem], int]
    reduction_length: Callable[[Problem], int]
    domain: Callable[[Draw, Scale, str], Arguments]
    source: str = ""
    boundaries: Callable[[str], Iterator[Boundary]] = lambda dtype: iter(())
    consistent: Callable[[Problem, dict[str, Any]], dict[str, Any]] = lambda problem, data: data
    may_copy: bool = False
    _attributes_by_name: dict[str, Attribute] = field(init=False)

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def __post_init__(self) -> None:
        by_name = {attribute.name: attribute for attribute in self.attributes}
        object.__setattr__(self, "_attributes_by_name", by_name)

    def attribute(self, name: str) -> Attribute:
        """The attribute of this name; AttributeValueError listing the known ones otherwise."""
        try:
            return self._attributes_by_name[name]
        except KeyError:
            known = ", ".join(self._attributes_by_name) or "none"
            raise AttributeValueError(
                f"{self.name} has no attribute {name!r}; it has: {known}"
            ) from None

    def label(self, constraint: Constraint) -> str:
        """The constraint's label, such as ``conv_forward C3``."""
        return f"{self.name} C{self.constraints.index(constraint) + 1}"

    def bind(self, *tensors: object, **attributes: object) -> Call[Problem]:
        """Validate a call; tensors positional in the declared order, None for an absent optional one.

        Raises a SpecError that names the first violated constraint, the values and the remedy.
        """
        return self.bind_arguments(self.arguments(*tensors, **attributes))

    def arguments(self, *tensors: object, **attributes: object) -> Arguments:
        """Name the arguments of a call, with defaults filled in, without checking the constraints."""
        if len(tensors) > len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs) or "only attributes"
            raise MissingTensorError(
                f"{self.name} takes {len(self.inputs)} tensors ({names}), not {len(tensors)}"
            )
        named: dict[str, TensorType] = {}
        for position, spec in enumerate(self.inputs):
            tensor = tensors[position] if position < len(tensors) else None
            if tensor is not None:
                named[spec.name] = TensorType.of(tensor, f"{self.name}: {spec.name}")
            elif not spec.optional:
                raise MissingTensorError(
                    f"{self.name} needs the tensor {spec.name}: {spec.doc}; "
                    f"pass it as positional argument {position + 1}"
                )
        for name in attributes:
            self.attribute(name)
        values = {a.name: attributes.get(a.name, a.default) for a in self.attributes}
        missing = [name for name, value in values.items() if value is REQUIRED]
        if missing:
            raise AttributeValueError(
                f"{self.name} needs the attribute {missing[0]}: {self.attribute(missing[0]).doc} "
                f"Pass {missing[0]}=…"
            )
        return Arguments(named, values)

    def bind_arguments(self, arguments: Arguments) -> Call[Problem]:
        """Validate named arguments, as :meth:`bind` does."""
        for constraint in self.constraints:
            wrong = constraint.check(arguments)
            if wrong is not None:
                raise constraint.error(wrong, self.label(constraint))
        problem = self.resolve(arguments)
        inferred = zip(self.outputs, self.infer(problem), strict=True)
        outputs = {spec.name: tensor for spec, tensor in inferred if tensor is not None}
        return Call(self, arguments, problem, outputs)

    def numerics(self, dtype: str) -> tuple[str, ...]:
        """The numerics classes in which ``dtype`` may be computed; empty when it is not supported."""
        return next((row.numerics for row in self.dtypes if row.dtype == dtype), ())

    def violations(self, arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
        """Illegal variants of legal arguments, each with the label of the constraint it breaks.

        Every yielded variant is confirmed to break just that constraint first.
        """
        for constraint in self.constraints:
            for variant in constraint.violate(arguments):
                if self.first_violated(variant) is constraint:
                    yield self.label(constraint), variant

    def first_violated(self, arguments: Arguments) -> Constraint | None:
        """The constraint that :meth:`bind_arguments` would name, or None."""
        return next((c for c in self.constraints if c.check(arguments) is not None), None)


@cache
def _named_tuple(primitive: str, names: tuple[str, ...]) -> Callable[..., Any]:
    title = "".join(part.capitalize() for part in primitive.split("_"))
    return namedtuple(f"{title}Outputs", names)


_PRIMITIVES: dict[str, Primitive[Any]] = {}


def declare(primitive: Primitive[Problem]) -> Primitive[Problem]:
    """Enter a primitive into the specification, once, and return it."""
    if primitive.name in _PRIMITIVES:
        raise ValueError(f"{primitive.name} is declared twice")
    for row in primitive.dtypes:
        assert row.dtype in DTYPES
        assert all(row.dtype in NUMERICS[name].accumulators for name in row.numerics)
    _PRIMITIVES[primitive.name] = primitive
    return primitive


def primitives() -> Mapping[str, Primitive[Any]]:
    """All declared primitives by name, in the order of declaration."""
    return dict(_PRIMITIVES)
