"""The reference as a backend of the conformance suite, and the way to a primitive's definition."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from dnncanon.reference.definition import Definition
from dnncanon.spec import __version__, primitives


@cache
def definitions() -> Mapping[str, Definition]:
    """Every definition of the reference, by the name of its primitive.

    A family's definitions live in the module of its name, as its declarations do in the spec.
    """
    return {
        primitive.name: getattr(
            import_module(f"dnncanon.reference.{primitive.family}"), primitive.name
        )
        for primitive in primitives().values()
    }


class ReferenceBackend:
    """The reference under the suite's own eyes: NumPy on the host."""

    name = "reference"

    def __getattr__(self, name: str) -> Definition:
        try:
            return definitions()[name]
        except KeyError:
            raise AttributeError(name) from None

    def describe(self) -> dict[str, Any]:
        """Device, versions, and the numerics class of each primitive and dtype."""
        numerics = {
            p.name: {row.dtype: row.numerics[0] for row in p.dtypes} for p in primitives().values()
        }
        return {
            "device": platform.processor() or platform.machine(),
            "versions": {"dnncanon": __version__, "numpy": np.__version__},
            "numerics": numerics,
            "errors": "dnncanon",
        }


backend = ReferenceBackend()
