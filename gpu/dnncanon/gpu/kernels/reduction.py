"""Reductions over any axes of strided tensors: outputs[row] = finish(⊕ over the row of lift(elements)).

A ``Monoid`` says what is combined: sums, extrema, extrema with their index, moments, several sums at once
over several inputs. Few, long rows are split: a first pass writes the states of the parts to a workspace, a
second one combines them. The order of all operations is fixed by the shapes and strides, so results are
the same in every run; a sum is a tree of short sums, each thread adding few of many elements.

    SUM = Monoid(state=("sum",), identity=(0,), lift=as_it_is, combine=add, finish=as_it_is)
    reduce(SUM, (x,), (y,), axes=(1, 2), workspace=run.workspace, stream=run.stream)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from textwrap import indent
from typing import Any

import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.lines import Signature, each, numbers, signature_of, tuple_of
from dnncanon.gpu.kernels.rows import THREADS, WARP, Rows, add, spread_strides, team_of, team_reduce
from dnncanon.gpu.kernels.strided import Ints, Space, broadcast_strides
from dnncanon.gpu.runtime import (
    DeviceArray,
    Kernel,
    Strided,
    blocks_for,
    kernel,
    launch,
    origin,
    reinterpret,
)
from dnncanon.gpu.runtime.device_code import device_function, generated, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places
from dnncanon.spec import dense_strides

BLOCKS = 256
"""Blocks that suffice to fill a GPU; more parts than that would only cost workspace."""

EACH = 16
"""Elements that a thread combines at least before a row is split."""

SERIAL = 64
"""Elements that a thread combines one after the other."""

CHUNK_BYTES = 16
"""What a thread reads at once of the widest input."""


@dataclass(frozen=True)
class Monoid:
    """What is combined.

    A state has a number for each item of ``state``: "float32", "float64", "int64", or "sum", which is the
    compute type of the first input (``Element.sum``). The functions take and return a state as a number if it
    has one, else as a tuple; they are device functions, made once:

    - ``lift(*elements, *of_row, *scalars, index)`` is the state of one element; ``of_row`` are the numbers
      that there is one of for the row, and ``index``, where ``index`` asks for it, is its place in the row in C
      order;
    - ``combine(a, b)`` must be associative and commutative, but for rounding;
    - ``finish(state, *of_row, *scalars)`` is the number for each output, a tuple of them if there are several.

    ``identity`` is the state of no elements; numbers that become int64 must be ones.
    """

    state: tuple[str, ...]
    identity: tuple[float, ...]
    lift: Callable[..., Any]
    combine: Callable[..., Any]
    finish: Callable[..., Any]
    index: bool = False

    def kinds(self, dtype: str) -> tuple[np.dtype[Any], ...]:
        """The types of a state for inputs of ``dtype``."""
        sums = ELEMENTS[dtype].sum_dtype
        return tuple(sums if name == "sum" else np.dtype(name) for name in self.state)


@device_function
def as_it_is(value: Any) -> Any:
    return value


SUM = Monoid(("sum",), (0,), as_it_is, add, as_it_is)


def workspace_bytes(monoid: Monoid, x: Strided, axes: Sequence[int], dtype: str) -> int:
    """Of ``reduce`` for a first input with such strides, exactly; 0 where rows are not split."""
    rows = Rows.of(x.shape, axes, [x.strides], [0])
    parts = _splits(rows)
    state = sum(kind.itemsize for kind in monoid.kinds(dtype))
    return parts * rows.rows.size * state if parts > 1 else 0


def reduce(
    monoid: Monoid,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    axes: Sequence[int],
    scalars: Sequence[float] = (),
    *,
    of_row: Sequence[DeviceArray] = (),
    workspace: DeviceArray | None = None,
    stream: object = None,
) -> None:
    """Launch the reduction of ``inputs`` over ``axes`` (not negative) into ``outputs``.

    Inputs are broadcast to the shape of the first one; outputs, and inputs ``of_row``, lack the axes, or have
    extent 1 there.
    Scalars are as in ``elementwise``. ``workspace`` has ``workspace_bytes`` bytes.
    """
    shape, operands = inputs[0].shape, (*inputs, *of_row, *outputs)
    strides = [*(broadcast_strides(array, shape) for array in inputs)]
    strides += [spread_strides(array, shape, axes) for array in (*of_row, *outputs)]
    origins = [origin(array) for array in operands]
    if monoid.index:
        strides.append(_positions(shape, axes))
        origins.append(0)
    rows = Rows.of(shape, axes, strides, origins)
    if rows.rows.size == 0:
        return
    kinds = monoid.kinds(inputs[0].dtype.name)
    lines = signature_of((*inputs, *of_row), outputs, scalars)
    call = Pass(monoid, lines, kinds, of_row=len(of_row))
    splits = _splits(rows)
    if splits == 1:
        _launch(call, rows, (*inputs, *of_row), outputs, scalars, 1, stream)
        return
    assert workspace is not None
    parts = _parts(kinds, workspace, splits * rows.rows.size)
    first, second = call.passes
    _launch(first, rows, (*inputs, *of_row), parts, scalars, splits, stream)
    rows = _of_parts(rows, splits, len(inputs), (*of_row, *outputs), len(parts))
    _launch(second, rows, (*parts, *of_row), outputs, scalars, 1, stream)


def _positions(shape: Ints, axes: Sequence[int]) -> Ints:
    """Strides with which the place in a row counts, in C order of the axes."""
    inner = dict(zip(sorted(axes), dense_strides([shape[d] for d in sorted(axes)]), strict=True))
    return tuple(inner.get(d, 0) for d in range(len(shape)))


def _splits(rows: Rows) -> int:
    """Into how many parts rows are split."""
    blocks = blocks_for(rows.rows.size, rows.per_block)
    return max(1, min(rows.columns.size // (EACH * rows.width), BLOCKS // blocks))


def _parts(
    kinds: tuple[np.dtype[Any], ...], workspace: DeviceArray, count: int
) -> tuple[DeviceArray, ...]:
    """An array for each number of the states; the wider types come first, so that all are aligned."""
    found, at = {}, 0
    for k in sorted(range(len(kinds)), key=lambda k: -kinds[k].itemsize):
        size = count * kinds[k].itemsize
        memory = replace(workspace, pointer=workspace.pointer + at, shape=(size,))
        found[k] = reinterpret(memory, kinds[k])
        at += size
    return tuple(found[k] for k in range(len(kinds)))


def _of_parts(
    rows: Rows,
    splits: int,
    inputs: int,
    others: Sequence[DeviceArray],
    parts: int,
) -> Rows:
    """The second pass: its columns are the parts; in the workspace, rows are adjacent."""
    dense = dense_strides(rows.rows.extents)
    of_others = rows.rows.strides[inputs : inputs + len(others)]
    outer = Space(rows.rows.extents, (dense,) * parts + of_others)
    inner = Space((splits,), ((rows.rows.size,),) * parts + ((0,),) * len(others))
    origins = (0,) * parts + tuple(origin(array) for array in others)
    return Rows.over(outer, inner, origins)


# --- The kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """What a kernel is made for.

    Of the inputs the last ``of_row`` have a number for each row.
    A kernel that is not the ``first`` pass finishes states; one that is the ``second`` reads them. A thread
    takes ``count`` adjacent elements at once, by one instruction where they are ``aligned``.
    """

    monoid: Monoid
    signature: Signature
    kinds: tuple[np.dtype[Any], ...]
    first: bool = False
    second: bool = False
    count: int = 1
    aligned: bool = False
    of_row: int = 0

    @property
    def walked(self) -> int:
        """Inputs that have elements in every column."""
        return len(self.signature.inputs) - self.of_row

    @property
    def passes(self) -> tuple["Pass", "Pass"]:
        """The two passes of a reduction whose rows are split."""
        names = tuple(kind.name for kind in self.kinds)
        numbers = self.signature.inputs[self.walked :]
        return (
            replace(self, signature=replace(self.signature, outputs=names), first=True),
            replace(self, signature=replace(self.signature, inputs=names + numbers), second=True),
        )


def _launch(
    call: Pass,
    rows: Rows,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    scalars: Sequence[float],
    splits: int,
    stream: object,
) -> None:
    call = replace(call, count=_chunk(call, rows, inputs))
    if call.count > 1:
        rows = _in_chunks(rows, call.count)
        walked = inputs[: call.walked]
        aligned = all(a.pointer % (call.count * a.dtype.itemsize) == 0 for a in walked)
        call = replace(call, aligned=aligned)
    stretch = -(-rows.columns.size // splits)
    arrays = tuple(a.argument for a in inputs), tuple(a.argument for a in outputs)
    args = (*arrays, numbers(scalars), rows.arguments, (splits, stretch))
    launch(reduction(call), rows.grid * splits, THREADS, args, stream=stream)


def _chunk(call: Pass, rows: Rows, inputs: Sequence[DeviceArray]) -> int:
    """How many adjacent elements of a row a thread takes at once: 16 bytes of the widest input, or 1.

    It depends on strides, not on addresses, so that the order of the operations does not.
    """
    walked = range(call.walked)
    count = CHUNK_BYTES // max(inputs[k].dtype.itemsize for k in walked)
    fastest = [rows.columns.strides[k][-1] for k in walked]
    if call.monoid.index:
        fastest.append(rows.columns.strides[-1][-1])
    others = [rows.columns.strides[k][:-1] + rows.rows.strides[k] for k in walked]
    fits = (
        not call.second
        and rows.columns.extents[-1] % count == 0
        and all(stride == 1 for stride in fastest)
        and all(stride % count == 0 for strides in others for stride in strides)
    )
    return count if fits else 1


def _in_chunks(rows: Rows, count: int) -> Rows:
    """The same rows with chunks for columns."""
    extents, strides = rows.columns.extents, rows.columns.strides
    columns = Space(
        (*extents[:-1], extents[-1] // count),
        tuple((*by[:-1], by[-1] * count) for by in strides),
    )
    return Rows.over(rows.rows, columns, rows.origins)


@cache
def reduction(call: Pass) -> Kernel:
    """The kernel. Launch with THREADS threads; the grid may have any size."""
    lines, states = call.signature, len(call.kinds)
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    state = partial(tuple_of, states)
    scalars = f", {lines.scalars}" if lines.scalars else ""
    index = "at[-1] + element" if call.monoid.index else None
    load, word, rest = "pass", "x{k}[uint64(at[{k}] + element)]", "pass"
    if call.aligned:
        load, word = (
            each(call.walked, "c{k} = load_chunk(x{k}, at[{k}])"),
            "chunk_first(x{k}, c{k})",
        )
        rest = each(call.walked, "c{k} = chunk_rest(x{k}, c{k})")
    of_row = range(call.walked, inputs)
    numbers = "".join(f", v{k}" for k in of_row) + scalars
    elements = each(call.walked, f"to_sum{{k}}({word})", ", ") + numbers
    lift = state(word) if call.second else f"lift({', '.join(filter(None, (elements, index)))})"
    finish = f"{tuple_of(outputs, 'r{k}')} = finish({state('a{k}')}{numbers})"
    store = "; ".join(
        f"y{k}[uint64(bases[{inputs + k}])] = from_sum{k}(r{k})" for k in range(outputs)
    )
    if call.first:
        finish, store = (
            "place = uint64(split * row_count + row)",
            each(states, "y{k}[place] = a{k}"),
        )
    source = f"""
def reduction(inputs, outputs, given, rows, parts):
    {lines.unpack}
    counts, row_extents, row_strides, extents, strides, step, origins = rows
    row_count, columns, width, spacing = counts
    splits, stretch = parts
    member, in_block = team_of(int64(cuda.threadIdx.x), width, spacing)
    per_block = {THREADS} // width
    tile = int64(cuda.blockIdx.x)
    while tile < (row_count + per_block - 1) // per_block * splits:
        split = tile % splits
        row = tile // splits * per_block + in_block
        column = split * stretch + member
        end = min(columns, (split + 1) * stretch)
        bases = places(digits_of(row, row_extents), row_strides, origins)
        {each(states, "a{k} = identity{k}")}
{indent(_of_row(call), " " * 8)}
        if row < row_count and column < end:
            digits = digits_of(column, extents)
            while column < end:
                # Sums of a few elements are added up: errors grow with the root of either's length.
                pause = min(end, column + {SERIAL // call.count} * width)
                {each(states, "p{k} = identity{k}")}
                while column < pause:
                    at = places(digits, strides, bases)
                    {load}
                    for element in range({call.count}):
                        {state("b{k}")} = {lift}
                        {state("t{k}")} = combine({state("p{k}")}, {state("kind{k}(b{k})")})
                        {each(states, "p{k} = kind{k}(t{k})")}
                        {rest}
                    digits = advance(digits, step, extents)
                    column += width
                {state("t{k}")} = combine({state("a{k}")}, {state("p{k}")})
                {each(states, "a{k} = kind{k}(t{k})")}
        {state("a{k}")} = team({state("a{k}")}, width, spacing)
        if member == 0 and row < row_count:
            {finish}
            {store}
        tile += cuda.gridDim.x
"""
    return kernel(generated(source, _scope(call)))


def _of_row(call: Pass) -> str:
    """What there is one of for a row; a thread reads it for all of its team, if that is several warps."""
    reads = {
        k: f"to_sum{k}(x{k}[uint64(bases[{k}])])"
        for k in range(call.walked, len(call.signature.inputs))
    }
    if not reads:
        return "pass"
    lines = [
        *(f"v{k} = zero{k}; shared{k} = cuda.shared.array({THREADS}, number{k})" for k in reads),
        f"if width * spacing > {WARP}:",
        "    if member == 0 and row < row_count:",
        *(f"        shared{k}[in_block] = {read}" for k, read in reads.items()),
        "    cuda.syncthreads()",
        "    if row < row_count:",
        *(f"        v{k} = shared{k}[in_block]" for k in reads),
        "elif row < row_count:",
        *(f"    v{k} = {read}" for k, read in reads.items()),
    ]
    return "\n".join(lines)


def _scope(call: Pass) -> dict[str, Any]:
    """What the names in the kernel's source mean."""
    monoid, kinds = call.monoid, tuple(getattr(types, kind.name) for kind in call.kinds)
    sums = {k: ELEMENTS[name].sum for k, name in enumerate(call.signature.inputs)}
    identity = zip(kinds, monoid.identity, strict=True)
    return {
        **call.signature.scope,
        **{f"number{k}": number for k, number in sums.items()},
        **{f"zero{k}": number(0) for k, number in sums.items()},
        "digits_of": digits_of,
        "advance": advance,
        "places": places,
        "load_chunk": ptx.load_chunk(call.count) if call.aligned else None,
        "chunk_first": ptx.chunk_first,
        "chunk_rest": ptx.chunk_rest,
        "team_of": team_of,
        "team": team_reduce(monoid.combine, kinds),
        "lift": monoid.lift,
        "combine": monoid.combine,
        "finish": monoid.finish,
        **{f"kind{k}": kind for k, kind in enumerate(kinds)},
        **{f"identity{k}": kind(value) for k, (kind, value) in enumerate(identity)},
    }
