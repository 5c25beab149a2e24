"""Elementwise kernels that transpose: tiles in shared memory of inputs with a fastest dim of their own.

Such an input, one with channels last beside an output with channels first, is read along its own fastest dim
into a tile, and taken out of that along the output's: either way neighbours are so in memory. All the other
operands are reached as by the strided kernel, of which this one computes the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dnncanon.gpu.kernels.lines import each
from dnncanon.gpu.kernels.moving import LEAST, TILE
from dnncanon.gpu.kernels.strided import RANKS, Ints, Space
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import generated, types
from dnncanon.gpu.runtime.device_index import digits_of, places
from dnncanon.gpu.runtime.memory import storage_of
from dnncanon.spec import DTYPES

if TYPE_CHECKING:
    from dnncanon.gpu.kernels.elementwise import Call

THREADS = 256

SHARED_BYTES = 48 << 10
"""Of a block's tiles at most."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Which dims are tiled: rows are the last one, the outputs' fastest; columns that of inputs ``across``."""

    others: Space
    rows: tuple[int, Ints]
    columns: tuple[int, Ints]
    across: Ints

    @classmethod
    def of(cls, space: Space, inputs: int) -> "Tiles | None":
        """The tiles of a space of so many inputs and of outputs; None where they would not pay.

        Inputs with further fastest dims than one are left to be read in the outputs' order.
        """
        last = space.rank - 1
        fastest = [_fastest(space, k) for k in range(inputs)]
        across = [k for k in range(inputs) if fastest[k] != last and space.strides[k][last]]
        if not across:
            return None
        dim = fastest[across[0]]
        if min(space.extents[dim], space.extents[last]) < LEAST:
            return None
        rest = [d for d in range(space.rank) if d not in (dim, last)]
        extents = tuple(space.extents[d] for d in rest)
        strides = tuple(tuple(by[d] for d in rest) for by in space.strides)
        rank = next(rank for rank in RANKS if rank >= len(rest))
        rows, columns = (
            (space.extents[d], tuple(by[d] for by in space.strides)) for d in (last, dim)
        )
        chosen = tuple(k for k in across if fastest[k] == dim)
        return cls(Space(extents, strides).with_rank(rank), rows, columns, chosen)

    @property
    def size(self) -> int:
        """How many tiles there are."""
        down, across = self._counts
        return self.others.size * down * across

    @property
    def arguments(self) -> tuple[Ints, ...]:
        """What a kernel takes: counts, the steps of operands by row and by column, and the walk over tiles."""
        (rows, row_steps), (columns, column_steps) = self.rows, self.columns
        sizes = (self.size, *self._counts, rows, columns)
        return sizes, row_steps, column_steps, self.others.extents, self.others.flat_strides

    @property
    def _counts(self) -> tuple[int, int]:
        return -(-self.rows[0] // TILE), -(-self.columns[0] // TILE)


def fit(dtypes: Sequence[str]) -> bool:
    """Whether a block has room for tiles of these types."""
    return sum(TILE * _pitch(name) * DTYPES[name].numpy.itemsize for name in dtypes) <= SHARED_BYTES


def _fastest(space: Space, operand: int) -> int:
    """The dim along which an operand's elements lie nearest to one another; the last one of several."""
    strides = space.strides[operand]
    dims = [d for d in range(space.rank) if space.extents[d] > 1 and strides[d]]
    return min(reversed(dims), key=lambda d: abs(strides[d]), default=space.rank - 1)


def _pitch(dtype: str) -> int:
    """Elements from a row of a tile to the next: 4 bytes more at least, so that a column is in all banks."""
    return TILE + max(1, 4 // DTYPES[dtype].numpy.itemsize)


@cache
def tiled(call: "Call", across: Ints) -> Kernel:
    """The kernel with a tile for each of the inputs ``across``. Launch with THREADS threads."""
    lines = call.signature
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    operands = inputs + outputs + call.index
    index = f"at{inputs + outputs}"
    made = _for_each(across, f"tile{{k}} = cuda.shared.array(({TILE}, pitch{{k}}), word{{k}})")
    place = "base[{k}] + row * row_steps[{k}] + column * column_steps[{k}]"
    filled = _for_each(across, f"tile{{k}}[line, lane] = x{{k}}[uint64({place})]")
    others = [k for k in range(inputs) if k not in across]
    taken = _for_each(across, "v{k} = tile{k}[lane, line]")
    read = _for_each(others, "v{k} = x{k}[uint64(at{k})]")
    reached = _for_each([k for k in range(operands) if k not in across], f"at{{k}} = {place}")
    stored = "; ".join(f"y{k}[uint64(at{inputs + k})] = from_sum{k}(r{k})" for k in range(outputs))
    source = f"""
def elementwise_tiled(inputs, outputs, given, sizes, row_steps, column_steps, extents, strides, bases):
    {lines.unpack}
    {made}
    tiles, down, across, rows, columns = sizes
    lane, first = int64(cuda.threadIdx.x) % {TILE}, int64(cuda.threadIdx.x) // {TILE}
    number = int64(cuda.blockIdx.x)
    while number < tiles:
        row0, column0 = number % down * {TILE}, number // down % across * {TILE}
        base = places(digits_of(number // (down * across), extents), strides, bases)
        for line in range(first, {TILE}, {THREADS // TILE}):
            row, column = row0 + line, column0 + lane
            if row < rows and column < columns:
                {filled}
        cuda.syncthreads()
        for line in range(first, {TILE}, {THREADS // TILE}):
            row, column = row0 + lane, column0 + line
            if row < rows and column < columns:
                {reached}
                {taken}
                {read}
                {call.share(index)}
                {each(outputs, "r{k}", ", ")} = function({lines.arguments("v{k}", call.at(index))})
                {stored}
        cuda.syncthreads()
        number += cuda.gridDim.x
"""
    scope = {"digits_of": digits_of, "places": places}
    for k in across:
        name = lines.inputs[k]
        scope |= {f"pitch{k}": _pitch(name), f"word{k}": _word_of(name)}
    return kernel(generated(source, call.scope | scope))


def _for_each(operands: Sequence[int], text: str) -> str:
    """The statement for each of these operands."""
    return "; ".join(text.replace("{k}", str(k)) for k in operands) or "pass"


def _word_of(dtype: str) -> Any:
    """The type of an element's word in memory."""
    return getattr(types, storage_of(DTYPES[dtype].numpy).name)
