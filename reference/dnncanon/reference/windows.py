"""Windows as tables: which elements of a tensor belong to which position, shared by pooling and resampling.

A table says it for one spatial dim; windows over several dims are the products of those. Turned round, the
table of an operation is that of its gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.reference.definition import Array
from dnncanon.spec.windows import Windows

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """The elements along a dim that belong to each position: ``element[position, slot]``, ascending.

    ``weight`` is what they count, 0 in slots that hold none. ``extent`` is that of the elements' dim.
    """

    element: Integers
    weight: Floats
    extent: int

    def transposed(self) -> "Table":
        """The positions that each element belongs to."""
        position, slot = np.nonzero(self.weight)
        element, weight = self.element[position, slot], self.weight[position, slot]
        order = np.argsort(element, kind="stable")  # positions stay in ascending order
        element, position, weight = element[order], position[order], weight[order]
        slot = np.arange(element.size) - np.searchsorted(element, element)
        shape = (self.extent, int(slot.max(initial=0)) + 1)
        result = Table(np.zeros(shape, np.int64), np.zeros(shape), len(self.element))
        result.element[element, slot] = position
        result.weight[element, slot] = weight
        return result


def window_table(w: Windows) -> Table:
    """The cells of each window, with weight 1; those in the padding are none."""
    o = np.arange(w.outputs)[:, None]
    t = np.arange(max(1, int(w.length(o).max(initial=0))))
    cell = w.first(o) + t * w.dilation
    inside = (t < w.length(o)) & (cell >= 0) & (cell < w.inputs)
    return Table(np.where(inside, cell, 0), inside.astype(np.float64), w.inputs)


def gathered(x: Array, tables: Sequence[Table]) -> tuple[Array, NDArray[np.bool_]]:
    """x[n, c, position…, slot], slots of several dims in logical order; and which slots hold an element."""
    fixed = x.ndim - len(tables)
    holds = outer([table.weight != 0 for table in tables])
    if 0 in x.shape:  # no slot holds anything
        return np.zeros_like(x, shape=(*x.shape[:fixed], *holds.shape)), holds
    for dim, table in enumerate(tables):
        x = np.take(x, table.element, axis=fixed + 2 * dim)  # the dim becomes two: position, slot
    order = (*range(fixed), *range(fixed, x.ndim, 2), *range(fixed + 1, x.ndim, 2))
    return np.transpose(x, order).reshape(*x.shape[:fixed], *holds.shape), holds


def outer(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The product of parts[dim][position, slot], as [position…, slot]."""
    dims = len(parts)
    result: Any = True
    for dim, part in enumerate(parts):
        shape = [1] * (2 * dims)
        shape[dim], shape[dims + dim] = part.shape
        result = result * part.reshape(shape)
    positions, slots = zip(*(part.shape for part in parts), strict=True)
    return np.asarray(result).reshape(*positions, math.prod(slots))
