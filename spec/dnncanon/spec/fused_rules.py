"""The rules of a fused call beyond those of pointwise operations and reductions."""

from collections.abc import Iterator

from dnncanon.spec.attributes import Choice, is_word, shown
from dnncanon.spec.errors import AttributeValueError, DTypeError
from dnncanon.spec.fused_graph import TENSORS, graph_of
from dnncanon.spec.fused_problem import truths
from dnncanon.spec.pointwise import FLOATS
from dnncanon.spec.primitive import Arguments, Constraint
from dnncanon.spec.reduce import NAMES

NARROW = ("float16", "bfloat16")
"""The types beside which operands may be float32."""


def readable_graph() -> Constraint:
    """The text is a graph, whatever the tensors are."""

    def check(a: Arguments) -> str | None:
        text = a.attributes["graph"]
        try:
            graph_of(text)
        except ValueError as wrong:
            return f"graph={shown(text)}: {wrong}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        text = a.attributes["graph"]
        wrong = (
            "no_such_mode(a)",
            "add(a)",
            "gen_index(a)",
            "a",
            "",
            "add(a,b))",
            "t0=neg(a);abs(a)",
        )
        for value in (*wrong, "neg(a,elu_alpha=2.0)", "add(1.0,2.0)", f"{text}+1", 1):
            yield a.with_attributes(graph=value)

    text = (
        "graph is an expression of tensors a to f, numbers, and modes of pointwise_operation with their "
        "parameters, in which no name is without use."
    )
    return Constraint(text, AttributeValueError, check, violate)


def tensors_of_the_graph() -> Constraint:
    """Each tensor that is named is given, and each given one is named."""

    def check(a: Arguments) -> str | None:
        takes, given = graph_of(a.attributes["graph"]).tensors, tuple(a.tensors)
        if takes == given:
            return None
        return (
            f"graph={a.attributes['graph']!r} takes {', '.join(takes)}, and is given {', '.join(given)}; "
            f"pass just {', '.join(takes)}"
        )

    def violate(a: Arguments) -> Iterator[Arguments]:
        if len(a.tensors) > 1:
            fewer = dict(list(a.tensors.items())[:-1])
            yield Arguments(fewer, a.attributes)
        for name in (name for name in TENSORS if name not in a.tensors):
            yield Arguments({**a.tensors, name: a.tensors["a"]}, a.attributes)

    text = "The tensors are those that graph names, a among them."
    return Constraint(text, AttributeValueError, check, violate)


def element_types() -> Constraint:
    """a is a number; what each mode is of is what it takes."""
    text = (
        f"a is one of {', '.join(FLOATS)}. The others are bool where a mode takes a truth value, and else "
        f"have the dtype of a or, beside {' and '.join(NARROW)}, float32."
    )

    def check(a: Arguments) -> str | None:
        dtype = a.tensors["a"].dtype
        if dtype not in FLOATS:
            return f"a is {dtype}; convert it to one of {', '.join(FLOATS)}"
        legal = (dtype, *(("float32",) if dtype in NARROW else ()), "bool")
        for name, tensor in a.tensors.items():
            if tensor.dtype not in legal:
                return f"{name} is {tensor.dtype}; convert it to one of {', '.join(legal)}"
        try:
            graph_of(a.attributes["graph"]).kinds(truths(a))
        except ValueError as wrong:
            return f"graph={a.attributes['graph']!r}: {wrong}"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for name in a.tensors:
            for dtype in ("int32", "bool" if a.tensors[name].dtype != "bool" else "float32"):
                yield a.with_tensor(name, dtype=dtype)
        yield a.with_attributes(graph=_continued(a, "add(r,cmp_gt(r,0.0))"))

    return Constraint(text, DTypeError, check, violate)


def known_reduction() -> Constraint:
    """None, or an operation of reduce_forward."""
    kind = Choice(NAMES)

    def check(a: Arguments) -> str | None:
        value = a.attributes["reduction"]
        if value is None or is_word(value, NAMES):
            return None
        return f"reduction={shown(value)}; pass None, or {kind.describes}"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(reduction="no_such_reduction")

    text = "reduction is None, or an op of reduce_forward."
    return Constraint(text, AttributeValueError, check, violate)


def reduction_of_numbers() -> Constraint:
    """Truth values are not reduced."""

    def check(a: Arguments) -> str | None:
        op = a.attributes["reduction"]
        if op is None or graph_of(a.attributes["graph"]).kinds(truths(a))[-1] == "number":
            return None
        return f"reduction={op!r} of truth values; pass a graph of binary_select(1.0,0.0,…)"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(reduction="add")
        yield a.with_attributes(reduction="add", graph=_continued(a, "cmp_gt(r,0.0)"))

    return Constraint("What is reduced are numbers.", AttributeValueError, check, violate)


def axes_of_a_reduction() -> Constraint:
    """Without a reduction there is nothing for them to be about."""

    def check(a: Arguments) -> str | None:
        axes, keepdims = a.attributes["axes"], a.attributes["keepdims"]
        if a.attributes["reduction"] is not None or (axes is None and not keepdims):
            return None
        given = f"axes={shown(axes)}" if axes is not None else f"keepdims={keepdims}"
        return f"{given} without a reduction; pass reduction=, or neither axes nor keepdims"

    def violate(a: Arguments) -> Iterator[Arguments]:
        yield a.with_attributes(reduction=None, axes=(0,))
        yield a.with_attributes(reduction=None, axes=None, keepdims=True)

    text = "Without a reduction axes is None and keepdims False."
    return Constraint(text, AttributeValueError, check, violate)


def _continued(a: Arguments, text: str) -> str:
    """The graph with more operations, of its result r."""
    before, separator, last = a.attributes["graph"].rpartition(";")
    return f"{before}{separator}r={last};{text}"
