"""Mutants: deliberate defects, by which a conformance suite is itself tested.

A mutant is a change of one place in the source of a room. Each room lists those of its own code, under
the entry-point group ``dnncanon.mutants``; the suite applies them, in a process of its own, and has to
notice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = {
    "index": "wrong index arithmetic: offset, stride, order, sign",
    "bounds": "a missing or wrong tail, mask or border",
    "attribute": "an attribute ignored, swapped or misread",
    "precision": "a narrower accumulator, a truncating or a doubled rounding",
    "arithmetic": "a wrong operator, constant or operand",
    "special": "NaN, Inf, −0 or subnormals lost or made up",
    "synchronisation": "a barrier, fence or wait left out or misplaced",
    "memory": "a shared buffer too small, reused too early, not initialised, or the wrong one",
    "launch": "too few threads or blocks, or a work item left out",
    "output": "a stale, partial or misplaced output, or a written input",
    "validation": "an illegal argument let through, or named wrongly",
}


@dataclass(frozen=True)
class Mutant:
    """One change: in ``module``, the text ``old``, which occurs once, becomes ``new``.

    ``primitive`` and ``dtypes`` choose cases that can see it, ``backend`` is the one to run them on, and
    ``environment`` its environment variables. ``equivalent`` is empty, or the reason why no output
    can tell the mutant from the original.
    """

    name: str
    kind: str
    doc: str
    module: str
    old: str
    new: str
    backend: str
    primitive: str
    dtypes: tuple[str, ...] = ("float32",)
    environment: Mapping[str, str] = field(default_factory=dict)
    equivalent: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"mutant {self.name}: kind {self.kind!r} is not one of {', '.join(KINDS)}"
            )
