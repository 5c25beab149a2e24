"""A primitive's signature and docstring, from its declaration: what ``help()`` shows in every room."""

import inspect
from collections.abc import Mapping
from typing import Any

from dnncanon.spec.primitive import REQUIRED, Primitive


def signature(
    primitive: Primitive[Any], options: Mapping[str, Any] | None = None
) -> inspect.Signature:
    """Tensors positional in the declared order; attributes, and a room's own options, by keyword."""
    parameter, empty = inspect.Parameter, inspect.Parameter.empty
    tensors = [
        parameter(t.name, parameter.POSITIONAL_ONLY, default=None if t.optional else empty)
        for t in primitive.inputs
    ]
    defaults = {a.name: empty if a.default is REQUIRED else a.default for a in primitive.attributes}
    keywords = [
        parameter(name, parameter.KEYWORD_ONLY, default=default)
        for name, default in {**defaults, **(options or {})}.items()
    ]
    return inspect.Signature([*tensors, *keywords])


def docstring(primitive: Primitive[Any]) -> str:
    """Summary, formula, tensors, attributes and numbered constraints."""
    lines = [primitive.summary, "", *primitive.formula.splitlines(), ""]
    lines += [f"{t.name}: array [{t.dims}], {t.doc}" for t in primitive.inputs]
    lines += [f"{a.name}: {a.kind.describes}. {a.doc}" for a in primitive.attributes]
    lines += [f"Returns {t.name}: array [{t.dims}], {t.doc}" for t in primitive.outputs]
    lines += [
        "Raises SpecError, naming the constraint, for arguments that the spec does not allow:"
    ]
    lines += [f"C{i}. {c.text}" for i, c in enumerate(primitive.constraints, 1)]
    return "\n".join(lines)
