"""The reference: one readable NumPy function for each primitive, which defines what it computes.

>>> import numpy as np
>>> import dnncanon.reference as ref
>>> ref.conv_forward(np.ones((1, 1, 3)), np.ones((1, 1, 2)), padding=1)
array([[[1., 2., 2., 1.]]])

Every primitive of the specification is an attribute of this package.
"""

from dnncanon.reference.backend import backend, definitions
from dnncanon.reference.definition import Definition
from dnncanon.reference.fused import fuse
from dnncanon.spec.fused_tracing import modes

__all__ = ["Definition", "backend", "definitions", "fuse", "modes"]


def __getattr__(name: str) -> Definition:
    try:
        return definitions()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*globals(), *definitions()]
