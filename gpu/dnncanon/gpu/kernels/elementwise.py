"""Elementwise kernels: outputs[i] = function(inputs[i], scalars, i), for any device function.

One engine serves all primitives that compute each output element from the input elements at the same
index. Where all operands are dense, or inputs of one element for all, each thread moves chunks of up to 16
bytes. So it does where the fastest dim alone is in one piece, as with gaps between rows, and with inputs that
are broadcast: of those that do not move along that dim, a chunk takes one element. Inputs with a fastest dim
of their own go through tiles in shared memory (``elementwise_tiled``). Any other strides take the strided
kernel. Threads follow the first output's memory.


    @device_function
    def scaled_sum(a, b, alpha):
        return a + alpha * b

    elementwise(scaled_sum, (a, b), (y,), scalars=(0.5,), stream=run.stream)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels import elementwise_tiled
from dnncanon.gpu.kernels.lines import Signature, each, numbers, signature_of
from dnncanon.gpu.kernels.strided import Space, broadcast_strides
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import generated
from dnncanon.gpu.runtime.device_index import advance, digits_of, places
from dnncanon.spec import dense_strides

THREADS = 256

BLOCKS = 2048
"""Blocks that fill any GPU; their threads loop, so that they divide for their first element only."""

CHUNK_BYTES = 16
"""What a thread moves at once of the widest operand."""


def elementwise(
    function: Callable[..., Any],
    inputs: Sequence[DeviceArray],
    outputs: Sequence[DeviceArray],
    scalars: Sequence[float] = (),
    *,
    index: bool = False,
    shared: "Shared | None" = None,
    stream: object = None,
) -> None:
    """Launch outputs[i] = function(*inputs[i], *scalars, i) over the outputs' shape.

    ``function`` is a device function, made once (at module level or in a cached factory: kernels are kept
    by it). It gets each element in its compute type, ``Element.sum``; then the scalars, a float as
    float64 where an operand is float64 and as float32 elsewhere, an int as int64; then, with
    ``index``, the linear index of the element in C order. It returns a number, or a tuple of them for
    several outputs, which are rounded by ``Element.from_sum``. Inputs are broadcast to the outputs'
    shape as NumPy does it.

    With ``shared``, ``index`` has to be set, and the index comes behind what elements share.
    """
    call = Call(function, signature_of(inputs, outputs, scalars), index, shared)
    shape = outputs[0].shape
    strides = [
        *(broadcast_strides(array, shape) for array in inputs),
        *(array.strides for array in outputs),
    ]
    if index:
        strides.append(dense_strides(shape))
    space = Space.of(shape, strides, key=len(inputs))
    if space.size == 0:
        return
    arrays = tuple(a.argument for a in inputs), tuple(a.argument for a in outputs)
    operands = (*inputs, *outputs)
    are_dense = tuple(map(space.is_dense, range(len(strides))))
    still = tuple(k for k in range(len(inputs)) if not (any(strides[k]) or are_dense[k]))
    moving = [array for k, array in enumerate(operands) if k not in still]
    count = chunk_of(moving)
    others_are_dense = all(one or k in still for k, one in enumerate(are_dense))
    if others_are_dense and _aligned(moving, count):
        grid = min(BLOCKS, blocks_for(space.size, THREADS * count))
        args: tuple[Any, ...] = (*arrays, numbers(scalars), space.size)
        launch(dense(call, count, still), grid, THREADS, args, stream=stream)
        return
    bases = tuple(map(origin, operands)) + (0,) * index
    tiles = elementwise_tiled.Tiles.of(space, len(inputs))
    if tiles is not None and elementwise_tiled.fit([inputs[k].dtype.name for k in tiles.across]):
        args = (*arrays, numbers(scalars), *tiles.arguments, bases)
        transposing = elementwise_tiled.tiled(call, tiles.across)
        launch(transposing, min(BLOCKS, tiles.size), THREADS, args, stream=stream)
        return
    chosen = strided(call)
    still = tuple(k for k in range(len(inputs)) if space.strides[k][-1] == 0)
    walking = [k for k in range(len(operands)) if k not in still]
    count = chunk_of([operands[k] for k in walking])
    if shared is None and _in_pieces(space, operands, walking, count, index=index):
        space, chosen = _in_chunks(space, count), chunked(call, count, still)
    grid = min(BLOCKS, blocks_for(space.size, THREADS))
    step = space.digits(grid * THREADS)
    args = (*arrays, numbers(scalars), space.size, space.extents, step, space.flat_strides, bases)
    launch(chosen, grid, THREADS, args, stream=stream)


def chunk_of(arrays: Sequence[DeviceArray]) -> int:
    """Elements of a chunk: the widest operand's fill 16 bytes."""
    return CHUNK_BYTES // max(array.dtype.itemsize for array in arrays)


def _aligned(arrays: Sequence[DeviceArray], count: int) -> bool:
    """Whether every operand can be moved in chunks."""
    return all(array.pointer % (count * array.dtype.itemsize) == 0 for array in arrays)


def _in_pieces(
    space: Space,
    operands: Sequence[DeviceArray],
    moving: Sequence[int],
    count: int,
    *,
    index: bool,
) -> bool:
    """Whether the fastest dim of all that moves along it, and counts, is pieces of whole chunks."""
    walking = [*moving, *((len(operands),) if index else ())]
    whole = (stride for k in moving for stride in space.strides[k][:-1])
    return (
        count > 1
        and space.extents[-1] % count == 0
        and all(space.strides[k][-1] == 1 for k in walking)
        and all(stride % count == 0 for stride in whole)
        and all(origin(operands[k]) == 0 for k in moving)
        and _aligned([operands[k] for k in moving], count)
    )


def _in_chunks(space: Space, count: int) -> Space:
    """The same space with chunks along the fastest dim."""
    extents = (*space.extents[:-1], space.extents[-1] // count)
    return Space(extents, tuple((*by[:-1], by[-1] * count) for by in space.strides))


# --- Kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """What 2^``bits`` elements have in common, such as a block of random words.

    ``function`` is a device function of the scalars and index >> ``bits``. Dense kernels call it once for
    those elements of a chunk that share its result, others for each element.
    """

    bits: int
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """What a kernel is made for."""

    function: Callable[..., Any]
    signature: Signature
    index: bool
    shared: Shared | None = None

    def at(self, place: str) -> str | None:
        """The index among the arguments of the function, if it takes one, behind what is shared."""
        if self.shared:
            return f"common, {place}"
        return place if self.index else None

    def share(self, place: str, condition: str = "") -> str:
        """The statement that computes what the element at an index shares, if the condition holds."""
        if not self.shared:
            return "pass"
        arguments = ", ".join(
            filter(None, (self.signature.scalars, f"{place} >> {self.shared.bits}"))
        )
        return f"{condition}common = shared({arguments})"

    def share_within(self, count: int) -> str:
        """The same where an element of a chunk of so many is the first one of others than those before it."""
        if not self.shared or count <= 1 << self.shared.bits:
            return "pass"
        last = (1 << self.shared.bits) - 1
        return self.share("(at + element)", f"if element and not element & {last}: ")

    @property
    def scope(self) -> dict[str, Any]:
        functions = {"function": self.function}
        if self.shared:
            functions["shared"] = self.shared.function
        return {**self.signature.scope, **functions}


@cache
def dense(call: Call, count: int, still: tuple[int, ...] = ()) -> Kernel:
    """The kernel for dense operands, in chunks of ``count`` elements. Launch with THREADS threads.

    The inputs of the numbers ``still`` have one element for all.
    """
    lines = call.signature.with_still(still)
    results = each(len(lines.outputs), "r{k}", ", ")
    source = f"""
def elementwise_dense(inputs, outputs, given, size):
    {lines.unpack}
    stride = int64(cuda.gridDim.x) * cuda.blockDim.x
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    chunks = size // {count}
    {lines.each_still("w{k} = x{k}[uint64(0)]")}
    position = thread
    while position < chunks:
        at = position * {count}
        {lines.each_moving("c{k} = load_chunk(x{k}, at)")}
        {lines.each_output("d{k} = (uint64(0), uint64(0))")}
        {call.share("at")}
        for element in range({count}):
            {call.share_within(count)}
            {results} = function({lines.arguments("chunk_first(x{k}, c{k})", call.at("at + element"))})
            {lines.each_moving("c{k} = chunk_rest(x{k}, c{k})")}
            {lines.each_output("d{k} = chunk_append(y{k}, d{k}, from_sum{k}(r{k}))")}
        {lines.each_output("store_chunk(y{k}, at, d{k})")}
        position += stride
    at = chunks * {count} + thread
    if at < size:
        {call.share("at")}
        {results} = function({lines.arguments("x{k}[uint64(at)]", call.at("at"))})
        {lines.each_output("y{k}[uint64(at)] = from_sum{k}(r{k})")}
"""
    return kernel(generated(source, call.scope | _chunk_scope(count)))


@cache
def strided(call: Call) -> Kernel:
    """The kernel for any strides. Launch with THREADS threads."""
    lines = call.signature
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    results, index = each(outputs, "r{k}", ", "), f"at[{inputs + outputs}]"
    stores = "; ".join(
        f"y{k}[uint64(at[{inputs + k}])] = from_sum{k}(r{k})" for k in range(outputs)
    )
    source = f"""
def elementwise_strided(inputs, outputs, given, size, extents, step, strides, bases):
    {lines.unpack}
    stride = int64(cuda.gridDim.x) * cuda.blockDim.x
    position = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    digits = digits_of(position, extents)
    while position < size:
        at = places(digits, strides, bases)
        {call.share(index)}
        {results} = function({lines.arguments("x{k}[uint64(at[{k}])]", call.at(index))})
        {stores}
        digits = advance(digits, step, extents)
        position += stride
"""
    return kernel(generated(source, call.scope | _WALK))


@cache
def chunked(call: Call, count: int, still: tuple[int, ...]) -> Kernel:
    """The kernel for strides with a fastest dim in one piece, in chunks of ``count`` elements.

    The inputs of the numbers ``still`` have one element for a chunk. Launch with THREADS threads.
    """
    lines = call.signature.with_still(still)
    inputs, outputs = len(lines.inputs), len(lines.outputs)
    results, index = each(outputs, "r{k}", ", "), f"at[{inputs + outputs}] + element"
    source = f"""
def elementwise_chunked(inputs, outputs, given, size, extents, step, strides, bases):
    {lines.unpack}
    stride = int64(cuda.gridDim.x) * cuda.blockDim.x
    position = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    digits = digits_of(position, extents)
    while position < size:
        at = places(digits, strides, bases)
        {lines.each_still("w{k} = x{k}[uint64(at[{k}])]")}
        {lines.each_moving("c{k} = load_chunk(x{k}, at[{k}])")}
        {lines.each_output("d{k} = (uint64(0), uint64(0))")}
        for element in range({count}):
            {results} = function({lines.arguments("chunk_first(x{k}, c{k})", call.at(index))})
            {lines.each_moving("c{k} = chunk_rest(x{k}, c{k})")}
            {lines.each_output("d{k} = chunk_append(y{k}, d{k}, from_sum{k}(r{k}))")}
        {"; ".join(f"store_chunk(y{k}, at[{inputs + k}], d{k})" for k in range(outputs))}
        digits = advance(digits, step, extents)
        position += stride
"""
    return kernel(generated(source, call.scope | _chunk_scope(count) | _WALK))


def _chunk_scope(count: int) -> dict[str, Any]:
    return {
        "load_chunk": ptx.load_chunk(count),
        "store_chunk": ptx.store_chunk(count),
        "chunk_first": ptx.chunk_first,
        "chunk_rest": ptx.chunk_rest,
        "chunk_append": ptx.chunk_append(count),
    }


_WALK = {"digits_of": digits_of, "advance": advance, "places": places}
