"""Which numbers a tensor may hold: what test data are made of, beside dtype and shape.

Most tensors take any number. A variance does not, nor does an index into another tensor; what a primitive
does with others is for its decisions to say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Values:
    """The numbers that a tensor may hold.

    ``kind``: "any"; "positive", > 0; "unit", in [0, 1); "boolean", 0 or 1; "index", an integer in
    0…``limit(problem)`` − 1; "integer", an integer in ``low``…``limit(problem)`` − 1. Kinds other than "any"
    and "positive" know no NaN and no Inf.
    """

    kind: Literal["any", "positive", "unit", "boolean", "index", "integer"]
    limit: Callable[[Any], int] = lambda problem: 1
    low: int = 0


ANY = Values("any")
POSITIVE = Values("positive")
UNIT = Values("unit")
BOOLEAN = Values("boolean")


def index_below(limit: Callable[[Any], int]) -> Values:
    """Indices into a dim of so many elements, which the problem tells."""
    return Values("index", limit)


def integers_between(low: int, limit: Callable[[Any], int]) -> Values:
    """Integers from ``low`` to below a limit, which the problem tells."""
    return Values("integer", limit, low)
