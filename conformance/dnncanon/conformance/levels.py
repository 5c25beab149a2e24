"""Levels of a run: how many cases, and how large."""

from dataclasses import dataclass

from dnncanon.spec import Scale


@dataclass(frozen=True)
class Level:
    """Cases of each primitive × dtype, the largest problem drawn, and what the level is for.

    ``boundary`` is the size up to which boundaries of the domain are run before what is drawn: elements
    that a tensor reaches over, or products. None runs them all, as far as memory allows.
    """

    name: str
    cases: int
    scale: Scale
    boundary: int | None
    doc: str


LEVELS = {
    level.name: level
    for level in (
        Level(
            "quick",
            50,
            Scale(3, 8, 14, 1 << 16),
            1 << 14,
            "every pull request; minutes without a GPU",
        ),
        Level("standard", 500, Scale(4, 40, 24, 1 << 22), 1 << 21, "every night"),
        Level(
            "full",
            2500,
            Scale(6, 96, 40, 1 << 25),
            None,
            "a claim of conformance: 10,000 a primitive",
        ),
    )
}
