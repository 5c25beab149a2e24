"""Row maps: outputs[element] = apply(elements, what the row is), for what needs a row as a whole first.

Softmax, its gradient, and the gradients of extrema, norms and products are such: a ``Monoid`` combines a row,
its ``finish`` makes of the state what each element needs to know, and ``apply`` computes the outputs.

One kernel does both, and keeps of a row what fits into shared memory (``kept``); what does not, it reads
twice. Few, long rows are first combined by ``reduction``, which splits them, and leaves their states in a
workspace; the kernel then only applies, each block to a stretch of a row.

    SOFTMAX = RowMap(Monoid(…, finish=maximum_and_sum), apply=power_over_sum)
    row_map(SOFTMAX, (x,), (y,), axes=(1,), workspace=run.workspace, stream=run.stream)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from textwrap import indent
from typing import Any

import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.kept import Kept
from dnncanon.gpu.kernels.lines import Signature, each, numbers, signature_of, tuple_of
from dnncanon.gpu.kernels.reduction import SERIAL, Monoid, reduce, workspace_bytes
from dnncanon.gpu.kernels.rows import BLOCKS, THREADS, Rows, spread_strides, team_of, team_reduce
from dnncanon.gpu.kernels.scratch import Scratch
from dnncanon.gpu.kernels.strided import Ints, Space, broadcast_strides
from dnncanon.gpu.runtime import (
    DeviceArray,
    Kernel,
    Strided,
    kernel,
    launch,
    origin,
)
from dnncanon.gpu.runtime.device_code import device_function, generated, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places
from dnncanon.spec import DTYPES, dense_strides

CHUNK_BYTES = 16
"""What a thread moves at once of the widest operand."""

EACH = 16
"""Elements that each thread of a stretch computes at least."""


@dataclass(frozen=True)
class RowMap:
    """What is computed of a row.

    ``apply(*elements, known, *scalars, index)`` gives the number for each output, ``known`` being what the
    monoid's ``finish(state, *scalars)`` returns, and ``index``, where the monoid asks for it, the place in the
    row in C order. ``of_row(known)`` gives the number for an output of type ``row_dtype`` that has one for
    each row. All are device functions, made once.
    """

    monoid: Monoid
    apply: Callable[..., Any]
    of_row: Callable[..., Any] | None = None
    row_dtype: str = ""

    def states(self, scalars: int) -> Monoid:
        """The reduction that leaves states as they are."""
        return replace(self.monoid, finish=_as_it_is(scalars))


@cache
def _as_it_is(scalars: int) -> Callable[..., Any]:
    """finish(state, *scalars) = state"""
    names = "".join(f", s{k}" for k in range(scalars))
    return device_function(generated(f"def finish(state{names}):\n    return state\n", {}))


def row_map_workspace_bytes(made: RowMap, x: Strided, axes: Sequence[int], dtype: str) -> int:
    """Of ``row_map`` for a first input with such strides, exactly; 0 where rows are not split."""
    return _scratch(made, x, axes, dtype).nbytes


def _scratch(made: RowMap, x: Strided, axes: Sequence[int], dtype: str) -> Scratch:
    """An array for each number of the states of the rows, and what splitting them takes."""
    parts = workspace_bytes(made.monoid, x, axes, dtype)
    if parts == 0:
        return Scratch()
    kept = tuple(1 if dim in axes else n for dim, n in enumerate(x.shape))
    kinds = enumerate(made.monoid.kinds(dtype))
    return Scratch(parts, **{f"state{k}": (kept, kind.name) for k, kind in kinds})


def row_map(
    made: RowMap,
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    axes: Sequence[int],
    scalars: Sequence[float] = (),
    *,
    row_output: DeviceArray | None = None,
    states: Sequence[DeviceArray] = (),
    workspace: DeviceArray | None = None,
    stream: object = None,
) -> None:
    """Launch ``made`` over ``axes`` (not negative) of ``inputs``.

    Inputs are broadcast to the shape of the first one, which the outputs have. ``row_output`` lacks the
    axes, or has extent 1 there; without it ``of_row`` is not called. Scalars are as in ``elementwise``.
    ``workspace`` has ``row_map_workspace_bytes`` bytes. Where the ``states`` of the rows are known already,
    an array for each number and without the axes, rows are read once and no workspace is needed.
    """
    shape, dtype = inputs[0].shape, inputs[0].dtype.name
    scratch = _scratch(made, inputs[0], axes, dtype)
    if not states and scratch.nbytes:
        states = tuple(scratch.arrays(workspace).values())
        monoid, rest = made.states(len(scalars)), scratch.rest(workspace)
        reduce(monoid, inputs, states, axes, scalars, workspace=rest, stream=stream)
    of_row = _row_output(made, row_output, outputs[0])
    of_rows = (*of_row, *states)
    strides = [
        *(broadcast_strides(array, shape) for array in inputs),
        *(array.strides for array in outputs),
        *(spread_strides(array, shape, axes) for array in of_rows),
    ]
    origins = [origin(array) for array in (*inputs, *outputs, *of_rows)]
    if made.monoid.index:
        strides.append(_positions(shape, axes))
        origins.append(0)
    rows = Rows.of(shape, axes, strides, origins)
    if rows.rows.size == 0:
        return
    written = (*outputs, *of_row)
    call = _Call(
        made,
        signature_of(inputs, written, scalars),
        tuple(kind.name for kind in made.monoid.kinds(dtype)),
        outputs=len(outputs),
        given=bool(states),
        still=tuple(rows.columns.strides[k][-1] == 0 for k in range(len(inputs))),
    )
    arrays = inputs, written, states
    _launch(call, rows, arrays, scalars, row_output is not None, stream)


def _row_output(
    made: RowMap, given: DeviceArray | None, output: DeviceArray
) -> tuple[DeviceArray, ...]:
    """The output of the rows; where it is not asked for an array in its place, which is not written.

    So one kernel serves both.
    """
    if made.of_row is None:
        return ()
    if given is not None:
        return (given,)
    return (replace(output, dtype=np.dtype(made.row_dtype), strides=(0,) * output.ndim),)


def _positions(shape: Ints, axes: Sequence[int]) -> Ints:
    """Strides with which the place in a row counts, in C order of the axes."""
    inner = dict(zip(sorted(axes), dense_strides([shape[d] for d in sorted(axes)]), strict=True))
    return tuple(inner.get(d, 0) for d in range(len(shape)))


# --- The kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """What a kernel is made for.

    Of the outputs the first ``outputs`` have a number for each element, one behind them has one for each row.
    With ``given`` states are read. A thread takes ``count`` adjacent elements at once, by one instruction
    where they are ``aligned``; inputs that are ``still`` have one element for all of them.
    """

    made: RowMap
    signature: Signature
    kinds: tuple[str, ...]
    outputs: int
    given: bool
    still: tuple[bool, ...]
    count: int = 1
    aligned: bool = False

    @property
    def inputs(self) -> int:
        return len(self.signature.inputs)

    @property
    def scalars(self) -> str:
        """The scalars as further arguments."""
        return f", {self.signature.scalars}" if self.signature.floats else ""

    @property
    def moving(self) -> tuple[int, ...]:
        """The operands, inputs and outputs, whose elements are adjacent."""
        still = (*self.still, *(False,) * self.outputs)
        return tuple(k for k, one in enumerate(still) if not one)

    @property
    def read(self) -> tuple[int, ...]:
        """The inputs among them."""
        return tuple(k for k in self.moving if k < self.inputs)

    @property
    def kept(self) -> Kept:
        """What is kept of a row between combining and applying: nothing where its state is given."""
        dtypes = {k: self.signature.inputs[k] for k in self.read if not self.given}
        if self.aligned:
            size = {k: self.count * DTYPES[name].numpy.itemsize for k, name in dtypes.items()}
            return Kept.chunks(size)
        return Kept.of(dtypes, self.count)


def _launch(
    call: _Call,
    rows: Rows,
    arrays: tuple[Sequence[DeviceArray], ...],
    scalars: Sequence[float],
    writes_row: bool,
    stream: object,
) -> None:
    inputs, outputs, _ = arrays
    whole = (*inputs, *outputs[: call.outputs])
    call = replace(call, count=_chunk(call, rows, whole))
    if call.count > 1:
        rows = _in_chunks(rows, call.count)
        chunks = [(whole[k], call.count * whole[k].dtype.itemsize) for k in call.moving]
        call = replace(call, aligned=all(array.pointer % size == 0 for array, size in chunks))
    splits = _splits(rows) if call.given else 1
    stretch = -(-rows.columns.size // splits)
    operands = [tuple(a.argument for a in group) for group in arrays if group]
    parts = splits, stretch, int(writes_row)
    kept = call.kept
    slots = kept.slots(-(-rows.columns.size // rows.width))
    args = (*operands, numbers(scalars), rows.arguments, parts, kept.room(slots))
    grid, shared_bytes = min(BLOCKS, rows.grid * splits), kept.nbytes(slots)
    launch(row_kernel(call), grid, THREADS, args, shared_bytes=shared_bytes, stream=stream)


def _splits(rows: Rows) -> int:
    """Into how many stretches rows are divided, so that they fill the GPU."""
    return max(1, min(rows.columns.size // (EACH * rows.width), BLOCKS // rows.grid))


def _chunk(call: _Call, rows: Rows, whole: Sequence[DeviceArray]) -> int:
    """How many adjacent elements a thread takes at once: 16 bytes of the widest operand, or 1.

    It depends on strides, not on addresses, so that the order of the operations does not.
    """
    count = CHUNK_BYTES // max(array.dtype.itemsize for array in whole)
    columns = rows.columns
    adjacent = [*call.moving, *((len(columns.strides) - 1,) if call.made.monoid.index else ())]
    others = [(*columns.strides[k][:-1], *rows.rows.strides[k]) for k in adjacent]
    fits = (
        columns.extents[-1] % count == 0
        and all(columns.strides[k][-1] == 1 for k in adjacent)
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
def row_kernel(call: _Call) -> Kernel:
    """The kernel. Launch with THREADS threads; the grid may have any size."""
    kinds = len(call.kinds)
    state = tuple_of(kinds, "a{k}")
    source = f"""
def row_map(inputs, outputs, {"states, " if call.given else ""}given, rows, parts, room):
    {call.signature.unpack}
    counts, row_extents, row_strides, extents, strides, step, origins = rows
    row_count, columns, width, spacing = counts
    splits, stretch, writes_row = parts
    thread = int64(cuda.threadIdx.x)
    member, in_block = team_of(thread, width, spacing)
    {call.kept.declared}
    per_block = {THREADS} // width
    tile = int64(cuda.blockIdx.x)
    while tile < (row_count + per_block - 1) // per_block * splits:
        split = tile % splits
        row = tile // splits * per_block + in_block
        begin = split * stretch + member
        end = min(columns, (split + 1) * stretch) if row < row_count else int64(0)
        bases = places(digits_of(row, row_extents), row_strides, origins)
        {each(kinds, "a{k} = identity{k}")}
{indent(_reading(call) if call.given else _combining(call), " " * 8)}
        known = finish({state}{call.scalars})
{indent(_applying(call), " " * 8)}
        tile += cuda.gridDim.x
"""
    return kernel(generated(source, _scope(call)))


def _reading(call: _Call) -> str:
    """The state of the row, from where a reduction has left it."""
    first = call.inputs + len(call.signature.outputs)
    reads = "; ".join(
        f"a{k} = states[{k}][uint64(bases[{first + k}])]" for k in range(len(call.kinds))
    )
    return f"if row < row_count:\n    {reads}"


def _combining(call: _Call) -> str:
    """The state of the row, from its elements."""
    kinds = len(call.kinds)
    state, part, sums = (tuple_of(kinds, name + "{k}") for name in "apt")
    lifted, element = tuple_of(kinds, "b{k}"), tuple_of(kinds, "kind{k}(b{k})")
    return f"""
column, slot = begin, 0
if column < end:
    digits = digits_of(column, extents)
    while column < end:
        # Sums of a few elements are added up: errors grow with the root of either's length.
        pause = min(end, column + {max(1, SERIAL // call.count)} * width)
        {each(kinds, "p{k} = identity{k}")}
        while column < pause:
            at = places(digits, strides, bases)
{indent(_loading(call), " " * 12)}
            for element in range({call.count}):
{indent(_keeping(call), " " * 16)}
                {lifted} = lift({_elements(call)}{call.scalars}{_place(call)})
                {sums} = combine({part}, {element})
                {each(kinds, "p{k} = kind{k}(t{k})")}
                {_dropping(call)}
            digits = advance(digits, step, extents)
            column += width
            slot += 1
        {sums} = combine({state}, {part})
        {each(kinds, "a{k} = kind{k}(t{k})")}
{state} = team({state}, width, spacing)"""


def _applying(call: _Call) -> str:
    """The outputs of the row's elements, and those of the row."""
    results, numbers = each(call.outputs, "r{k}", ", "), range(call.outputs)
    at = [f"at[{call.inputs + k}]" for k in numbers]
    start, store = "pass", "pass"
    put = "; ".join(f"y{k}[uint64({at[k]} + element)] = from_sum{k}(r{k})" for k in numbers)
    if call.aligned:
        start = each(call.outputs, "d{k} = (uint64(0), uint64(0))")
        put = each(call.outputs, "d{k} = chunk_append(y{k}, d{k}, from_sum{k}(r{k}))")
        store = "; ".join(f"store_chunk(y{k}, {at[k]}, d{k})" for k in numbers)
    return f"""
column, slot = begin, 0
if column < end:
    digits = digits_of(column, extents)
    while column < end:
        at = places(digits, strides, bases)
{indent(_loading_again(call), " " * 8)}
        {start}
        for element in range({call.count}):
{indent(_recalling(call), " " * 12)}
            {results} = apply({_elements(call)}, known{call.scalars}{_place(call)})
            {put}
            {_dropping(call)}
        {store}
        digits = advance(digits, step, extents)
        column += width
        slot += 1
{_of_the_row(call)}"""


def _of_the_row(call: _Call) -> str:
    """The output of the row, by the first thread of its team."""
    k = call.outputs
    if k == len(call.signature.outputs):
        return ""
    return f"""
if writes_row and member == 0 and split == 0 and row < row_count:
    y{k}[uint64(bases[{call.inputs + k}])] = from_sum{k}(of_row(known))"""


def _elements(call: _Call) -> str:
    """The inputs' elements as numbers."""
    words = []
    for k in range(call.inputs):
        word = f"w{k}"
        if call.still[k]:
            word = f"x{k}[uint64(at[{k}])]"
        elif call.aligned:
            word = f"chunk_first(x{k}, c{k})"
        words.append(f"to_sum{k}({word})")
    return ", ".join(words)


def _place(call: _Call) -> str:
    """The place in the row as a last argument, if it is asked for."""
    return ", at[-1] + element" if call.made.monoid.index else ""


_CHUNK, _WORD = "load_chunk(x{k}, at[{k}])", "x{k}[uint64(at[{k}] + element)]"


def _reads(call: _Call, name: str, read: str) -> str:
    return "; ".join(f"{name} = {read}".replace("{k}", str(k)) for k in call.read) or "pass"


def _loading(call: _Call) -> str:
    """The chunks of the inputs, which are kept."""
    if not call.aligned:
        return "pass"
    return f"{_reads(call, 'c{k}', _CHUNK)}\n{call.kept.keep('c{k}')}"


def _keeping(call: _Call) -> str:
    """The words of the inputs, which are kept."""
    if call.aligned:
        return "pass"
    return f"{_reads(call, 'w{k}', _WORD)}\n{call.kept.keep('w{k}', 'element')}"


def _loading_again(call: _Call) -> str:
    """The chunks as they were kept, or, where nothing was, read for the first time."""
    if not call.aligned:
        return "pass"
    if call.given:
        return _reads(call, "c{k}", _CHUNK)
    return call.kept.recall("c{k}", _CHUNK)


def _recalling(call: _Call) -> str:
    """The words, likewise."""
    if call.aligned:
        return "pass"
    if call.given:
        return _reads(call, "w{k}", _WORD)
    return call.kept.recall("w{k}", _WORD, "element")


def _dropping(call: _Call) -> str:
    """The element that was read leaves the chunks."""
    if not call.aligned:
        return "pass"
    return "; ".join(f"c{k} = chunk_rest(x{k}, c{k})" for k in call.read) or "pass"


def _scope(call: _Call) -> dict[str, Any]:
    """What the names in the kernel's source mean."""
    monoid, kinds = call.made.monoid, tuple(getattr(types, kind) for kind in call.kinds)
    identity = zip(kinds, monoid.identity, strict=True)
    return {
        **call.signature.scope,
        **call.kept.scope,
        "digits_of": digits_of,
        "advance": advance,
        "places": places,
        "load_chunk": ptx.load_chunk(call.count) if call.aligned else None,
        "store_chunk": ptx.store_chunk(call.count) if call.aligned else None,
        "chunk_append": ptx.chunk_append(call.count) if call.aligned else None,
        "chunk_first": ptx.chunk_first,
        "chunk_rest": ptx.chunk_rest,
        "team_of": team_of,
        "team": team_reduce(monoid.combine, kinds),
        "lift": monoid.lift,
        "combine": monoid.combine,
        "finish": monoid.finish,
        "apply": call.made.apply,
        "of_row": call.made.of_row,
        **{f"kind{k}": kind for k, kind in enumerate(kinds)},
        **{f"identity{k}": kind(value) for k, (kind, value) in enumerate(identity)},
    }
