"""Rows: what kernels that reduce or normalise over some axes of strided tensors share.

The elements that are taken together, over the given axes, are the columns of a row; the other dims number
the rows. A *team* of threads works on a row. Its threads are neighbours where the columns are adjacent in
memory; where the rows are (channels-last, or a slow axis), neighbours belong to different rows. Either way
a warp reads adjacent elements.

    rows = Rows.of(shape, axes, (strides of x, strides of y), (origin(x), origin(y)))
    launch(softmax(dtype), rows.grid, THREADS, (x, y, rows.arguments), stream=stream)

In a kernel:

    counts, row_extents, row_strides, extents, strides, step, origins = rows
    row_count, columns, width, spacing = counts
    member, in_block = team_of(int64(cuda.threadIdx.x), width, spacing)
    for tile in range(cuda.blockIdx.x, tiles(row_count, width), cuda.gridDim.x):
        row = tile * (THREADS // width) + in_block     # may be >= row_count: then take no part, but do
        bases = places(digits_of(row, row_extents), row_strides, origins)     # call team functions
        digits = digits_of(member, extents)
        for column in range(member, columns, width):
            at = places(digits, strides, bases)        # where the element is in each operand
            digits = advance(digits, step, extents)
        total = team_sum(total, width, spacing)        # the same in all threads of the team
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.strided import Ints, Space
from dnncanon.gpu.runtime import Strided, blocks_for
from dnncanon.gpu.runtime.device_code import cuda, device_function, generated, types

THREADS = 256
"""Of a block."""

WARP = 32

LONG, MANY = 1024, 2048
"""Columns from which on a block is a team, and rows up to which it is one for fewer columns too.

Else a warp takes a row, or a part of one takes a short row.
"""

BLOCKS = 2048
"""Blocks that fill any GPU."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A shape as rows and columns, with the strides of each operand in both, and the teams of threads.

    ``width`` threads are a team, ``spacing`` the distance of one to the next; both are powers of two.
    """

    rows: Space
    columns: Space
    origins: Ints
    width: int
    spacing: int

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        axes: Sequence[int],
        strides: Sequence[Sequence[int]],
        origins: Sequence[int],
    ) -> "Rows":
        """The rows over ``axes``. Each operand has a stride for every dim of the shape, 0 where it has no
        such dim; the first one decides in which order they are visited."""
        kept = [d for d in range(len(shape)) if d not in axes]
        rows = _subspace(shape, kept, strides)
        columns = _subspace(shape, sorted(axes), strides)
        return cls.over(rows, columns, origins)

    @classmethod
    def over(cls, rows: Space, columns: Space, origins: Sequence[int]) -> "Rows":
        return cls(rows, columns, tuple(origins), *_team(rows, columns))

    @property
    def per_block(self) -> int:
        return THREADS // self.width

    @property
    def grid(self) -> int:
        return min(BLOCKS, blocks_for(self.rows.size, self.per_block))

    @property
    def arguments(self) -> tuple[Ints, ...]:
        """What a kernel takes: counts, then the walks over rows and over columns, then origins.

        Both walks have one rank, so that few signatures are compiled.
        """
        rank = max(self.rows.rank, self.columns.rank)
        rows, columns = self.rows.with_rank(rank), self.columns.with_rank(rank)
        return (
            (self.rows.size, self.columns.size, self.width, self.spacing),
            rows.extents,
            rows.flat_strides,
            columns.extents,
            columns.flat_strides,
            columns.digits(self.width),
            self.origins,
        )


def spread_strides(array: Strided, shape: Sequence[int], axes: Sequence[int]) -> Ints:
    """The strides over ``shape`` of an array that lacks ``axes``, or has extent 1 there: 0 in those."""
    if len(array.shape) == len(shape):
        return tuple(0 if d in axes else s for d, s in enumerate(array.strides))
    strides = iter(array.strides)
    return tuple(0 if d in axes else next(strides) for d in range(len(shape)))


def _subspace(shape: Sequence[int], dims: Sequence[int], strides: Sequence[Sequence[int]]) -> Space:
    return Space.of([shape[d] for d in dims], [[by[d] for d in dims] for by in strides])


def _team(rows: Space, columns: Space) -> tuple[int, int]:
    """Width and spacing."""
    if _fastest(columns) <= _fastest(rows) or rows.size == 1:
        if columns.size > LONG or (columns.size >= THREADS and rows.size <= MANY):
            return THREADS, 1
        return min(WARP, _power_of_two(columns.size)), 1
    # As many rows as lie between a column and the next one; that goes on where those rows end.
    between = _fastest(columns) // _fastest(rows)
    lanes = min(WARP, _power_of_two(min(rows.size, between)))
    # Eight elements at least for each thread; the other threads take further rows.
    width = min(THREADS // lanes, _power_of_two(columns.size // 8))
    if lanes < WARP:
        return width, lanes
    return width, max(lanes, min(THREADS // width, _power_of_two(rows.size)))


def _fastest(space: Space) -> int:
    """The least stride of the first operand, as far as it has one."""
    strides = [abs(s) for n, s in zip(space.extents, space.strides[0], strict=True) if n > 1 and s]
    return min(strides, default=2**63)


def _power_of_two(number: int) -> int:
    """The least power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()


# --- Device functions -----------------------------------------------------------------------------


@device_function
def team_of(thread: Any, width: Any, spacing: Any) -> Any:
    """A thread's number in its team, and the number of the team's row among those of the block."""
    member = thread // spacing % width
    return member, thread // (spacing * width) * spacing + thread % spacing


@device_function
def tiles(row_count: Any, width: Any) -> Any:
    """How many blocks' worth of rows there are."""
    per_block = THREADS // width
    return (row_count + per_block - 1) // per_block


@cache
def team_reduce(combine: Callable[..., Any], kinds: tuple[Any, ...]) -> Callable[..., Any]:
    """reduce(state, width, spacing): the states of a team's threads combined; all of them get the result.

    A state is a number of the type ``kinds``, or a tuple of several. ``combine(a, b)`` gets the state of the
    lower members first. Every thread of the block must call it. The tree is fixed, so that the result
    is the same in every run: first within warps by shuffles, then over the warps through shared memory.
    """
    parts = range(len(kinds))

    def each(text: str, separator: str = "; ") -> str:
        return separator.join(text.format(k=k) for k in parts)

    def state(name: str) -> str:
        return each(name + "{k}", ", ") if len(kinds) == 1 else f"({each(name + '{k}', ', ')})"

    source = f"""
def reduce(state, width, spacing):
    {state("a")} = state
    {each("a{k} = kind{k}(a{k})")}
    thread = int32(cuda.threadIdx.x)
    group = int32(width * spacing)
    bit = int32(spacing)
    while bit < group and bit < {WARP}:
        {each("b{k} = cuda.shfl_xor_sync(0xFFFFFFFF, a{k}, bit)")}
        upper = thread & bit != 0
        {each("f{k} = b{k} if upper else a{k}; g{k} = a{k} if upper else b{k}")}
        {each("c{k}", ", ")} = combine({state("f")}, {state("g")})
        {each("a{k} = kind{k}(c{k})")}
        bit = int32(bit * 2)
    if group > {WARP}:
        {each("s{k} = cuda.shared.array(threads, kind{k})")}
        {each("s{k}[thread] = a{k}")}
        cuda.syncthreads()
        stride = int32(max(int32(spacing), int32({WARP})))
        at = int32(thread // group * group + thread % stride)
        end = int32(at + group)
        {each("a{k} = s{k}[at]")}
        at = int32(at + stride)
        while at < end:
            {each("f{k} = s{k}[at]")}
            {each("c{k}", ", ")} = combine({state("a")}, {state("f")})
            {each("a{k} = kind{k}(c{k})")}
            at = int32(at + stride)
        cuda.syncthreads()
    return {state("a")}
"""
    scope = {"cuda": cuda, "combine": combine, "int32": types.int32, "threads": THREADS}
    scope |= {f"kind{k}": kind for k, kind in enumerate(kinds)}
    return device_function(generated(source, scope))


@device_function
def add(a: Any, b: Any) -> Any:
    return a + b


@device_function
def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers; a NaN if one is."""
    return a if a > b or a != a else b


@device_function
def smaller(a: Any, b: Any) -> Any:
    """The smaller of two numbers; a NaN if one is."""
    return a if a < b or a != a else b


def team_sum(kind: Any) -> Callable[..., Any]:
    """sum(value, width, spacing) over a team, for values of one type."""
    return team_reduce(add, (kind,))


def team_max(kind: Any) -> Callable[..., Any]:
    """max(value, width, spacing) over a team; a NaN if there is one."""
    return team_reduce(larger, (kind,))
