"""Levels of a run: how many cases, and how large."""

from dataclasses import dataclass

from dnncanon.spec import Scale


@dataclass(frozen=True)
class Level:
    """Cases of each primitive × dtype, the largest problem drawn, and what the level is for."""

    name: str
    cases: int
    scale: Scale
    doc: str


LEVELS = {
    level.name: level
    for level in (
        Level("quick", 50, Scale(3, 8, 14, 1 << 16), "every pull request; minutes without a GPU"),
        Level("standard", 500, Scale(4, 40, 24, 1 << 22), "every night"),
        Level(
            "full", 2500, Scale(6, 96, 40, 1 << 25), "a claim of conformance: 10,000 a primitive"
        ),
    )
}
