"""What kernels over windows share: a walk over outputs in memory order, and the geometry of windows.

A thread takes one position and, where channels are adjacent in memory, as many of them as fill 16 bytes: its
*lanes*. Where the work that is the same for all channels is much, it takes several of them that lie apart.
Problems with fewer than three spatial dims are given leading ones of extent 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime import DeviceArray, origin
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec.windows import Windows

THREADS = 128
BLOCKS = 2048
"""Blocks that fill any GPU; their threads loop, so that they divide for their first position only."""

LANE_BYTES = 16
"""What a thread moves at once of the widest operand."""

APART = (8, 4, 2)
"""How many channels that lie apart a thread may take at a position: as many loads are under way as before."""

SPATIAL = 3

_int64, _uint64 = types.int64, types.uint64


# --- The walk -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Walk:
    """The positions of an output, those nearest in memory by neighbouring threads.

    ``extents`` are n, c, three spatial ones, or with ``channels_last`` n, three spatial ones, c; c counts
    groups of ``lanes`` channels, which are adjacent in memory or lie ``apart``. ``step`` is what a thread
    goes on by, in digits.
    """

    extents: tuple[int, ...]
    channels_last: bool
    lanes: int
    apart: bool
    blocks: int
    step: tuple[int, ...]

    @classmethod
    def over(
        cls, out: DeviceArray, operands: Sequence[DeviceArray], *, apart: bool = False
    ) -> "Walk":
        """A walk over ``out``; ``operands`` are all tensors, which have its batch and channels.

        Without any, lanes are of one channel. ``apart`` allows for lanes that lie apart in memory.
        """
        lanes = _lanes(operands) if operands else 1
        n, c, *space = out.shape
        spatial = (1,) * (SPATIAL - len(space)) + tuple(space)
        channels_last = lanes > 1 or _channels_adjacent(out)
        apart = apart and not channels_last
        if apart:
            lanes = next((k for k in APART if c % k == 0), 1)
        extents = (n, *spatial, c // lanes) if channels_last else (n, c // lanes, *spatial)
        blocks = max(1, min(BLOCKS, -(-math.prod(extents) // THREADS)))
        step = mixed_radix(blocks * THREADS, extents)
        return cls(extents, channels_last, lanes, apart, blocks, step)

    @property
    def threads(self) -> int:
        """Of a block."""
        return THREADS

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take it."""
        return math.prod(self.extents), self.extents, self.step, self.channels_last


def _lanes(operands: Sequence[DeviceArray]) -> int:
    """How many channels fill 16 bytes of the widest operand; 1 where they cannot be moved at once."""
    lanes = LANE_BYTES // max(array.dtype.itemsize for array in operands)
    return lanes if all(_in_lanes(array, lanes) for array in operands) else 1


def _in_lanes(array: DeviceArray, lanes: int) -> bool:
    """Whether every group of so many channels lies in one piece, at a multiple of its size."""
    if array.shape[1] % lanes or array.strides[1] != 1:
        return False
    steps = [
        s
        for d, (n, s) in enumerate(zip(array.shape, array.strides, strict=True))
        if n > 1 and d != 1
    ]
    aligned = array.pointer % (lanes * array.dtype.itemsize) == 0
    return aligned and origin(array) == 0 and all(step % lanes == 0 for step in steps)


def _channels_adjacent(array: DeviceArray) -> bool:
    """Whether the nearest neighbour in memory is a channel, not a position."""
    dims = list(zip(array.shape, array.strides, strict=True))
    space = min((abs(s) for n, s in dims[2:] if n > 1), default=math.inf)
    return dims[1][0] > 1 and abs(dims[1][1]) < space


def mixed_radix(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    """``number`` in the mixed radix of ``extents``, the first digit without a limit."""
    digits = []
    for extent in reversed(extents[1:]):
        number, digit = divmod(number, max(1, extent))
        digits.append(digit)
    return (number, *reversed(digits))


def strides_of(array: DeviceArray) -> tuple[int, ...]:
    """As kernels take them: offset, batch, channels, three spatial strides."""
    n, c, *space = array.strides
    return (origin(array), n, c, *(0,) * (SPATIAL - len(space)), *space)


@device_function
def position_of(digits: Any, channels_last: Any) -> Any:
    """(n, group of channels, i0, i1, i2) from the digits of a walk."""
    if channels_last:
        return digits[0], digits[4], digits[1], digits[2], digits[3]
    return digits[0], digits[1], digits[2], digits[3], digits[4]


@device_function
def place(strides: Any, n: Any, c: Any, i0: Any, i1: Any, i2: Any) -> Any:
    """Where an element is in memory, ``strides`` being those of :func:`strides_of`."""
    row = strides[0] + n * strides[1] + c * strides[2]
    return row + i0 * strides[3] + i1 * strides[4] + i2 * strides[5]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Device functions that move the lanes of a thread.

    As words, of which a bundle holds those of all lanes: load(array, at), first(array, bundle),
    rest(array, bundle); blank(), append(array, bundle, word) and store(array, at, bundle).
    As numbers, in local arrays: clear(sums), read(array, at, values) and write(array, at, values), which
    rounds; add(sums, array, at, weight) adds weight · element to the sum of each lane.
    """

    load: Callable[..., Any]
    first: Callable[..., Any]
    rest: Callable[..., Any]
    blank: Callable[..., Any]
    append: Callable[..., Any]
    store: Callable[..., Any]
    clear: Callable[..., Any]
    read: Callable[..., Any]
    write: Callable[..., Any]
    add: Callable[..., Any]


@cache
def lanes_of(dtype: str, count: int) -> Lanes:
    """The functions for so many lanes of arrays of ``dtype``."""
    words = _chunks(count) if count > 1 else _single_words(dtype)
    return Lanes(*words, *_numbers(dtype, count, words))


Functions = tuple[Callable[..., Any], ...]


def _chunks(count: int) -> Functions:
    load, store, append = ptx.load_chunk(count), ptx.store_chunk(count), ptx.chunk_append(count)
    return load, ptx.chunk_first, ptx.chunk_rest, _no_chunk, append, store


def _single_words(dtype: str) -> Functions:
    from_sum, zero = ELEMENTS[dtype].from_sum, ELEMENTS[dtype].sum(0)

    @device_function
    def no_word() -> Any:
        return from_sum(zero)

    return _load_word, _same, _same, no_word, _replace, _store_word


def _numbers(dtype: str, count: int, words: Functions) -> Functions:
    """clear, read, write and add, by means of the functions for words."""
    load, first, rest, blank, append, store = words
    element = ELEMENTS[dtype]
    to_sum, from_sum = element.to_sum, element.from_sum

    @device_function
    def read(array: Any, at: Any, values: Any) -> None:
        bundle = load(array, at)
        for lane in range(count):
            values[lane] = to_sum(first(array, bundle))
            bundle = rest(array, bundle)

    @device_function
    def write(array: Any, at: Any, values: Any) -> None:
        bundle = blank()
        for lane in range(count):
            bundle = append(array, bundle, from_sum(values[lane]))
        store(array, at, bundle)

    @device_function
    def add(sums: Any, array: Any, at: Any, weight: Any) -> None:
        bundle = load(array, at)
        for lane in range(count):
            sums[lane] += weight * to_sum(first(array, bundle))
            bundle = rest(array, bundle)

    return _clearing(dtype, count), read, write, add


@device_function
def _no_chunk() -> Any:
    return (_uint64(0), _uint64(0))


@device_function
def _load_word(array: Any, at: Any) -> Any:
    return array[_uint64(at)]


@device_function
def _same(array: Any, word: Any) -> Any:
    return word


@device_function
def _replace(array: Any, bundle: Any, word: Any) -> Any:
    return word


@device_function
def _store_word(array: Any, at: Any, word: Any) -> Any:
    array[_uint64(at)] = word


@dataclass(frozen=True, slots=True)
class Channels:
    """Device functions for the channels that a thread takes at a position, be they lanes or apart.

    ``by`` is the stride of channels: clear(sums), add(sums, array, at, by, weight),
    write(array, at, by, values), and move(x, at, by, y, at, by), which does not change the words.
    """

    clear: Callable[..., Any]
    add: Callable[..., Any]
    write: Callable[..., Any]
    move: Callable[..., Any]


@cache
def channels_of(dtype: str, count: int, apart: bool) -> Channels:
    """The functions for so many channels of arrays of ``dtype``."""
    lanes = lanes_of(dtype, 1 if apart else count)
    load, store, add_lanes, write_lanes = lanes.load, lanes.store, lanes.add, lanes.write
    if apart:
        return Channels(_clearing(dtype, count), *_channels_apart(dtype, count))

    @device_function
    def add(sums: Any, array: Any, at: Any, by: Any, weight: Any) -> None:
        add_lanes(sums, array, at, weight)

    @device_function
    def write(array: Any, at: Any, by: Any, values: Any) -> None:
        write_lanes(array, at, values)

    @device_function
    def move(x: Any, x_at: Any, x_by: Any, y: Any, y_at: Any, y_by: Any) -> None:
        store(y, y_at, load(x, x_at))

    return Channels(lanes.clear, add, write, move)


def _clearing(dtype: str, count: int) -> Callable[..., Any]:
    zero = ELEMENTS[dtype].sum(0)

    @device_function
    def clear(sums: Any) -> None:
        for k in range(count):
            sums[k] = zero

    return clear


def _channels_apart(dtype: str, count: int) -> Functions:
    """add, write and move."""
    to_sum, from_sum = ELEMENTS[dtype].to_sum, ELEMENTS[dtype].from_sum

    @device_function
    def add(sums: Any, array: Any, at: Any, by: Any, weight: Any) -> None:
        for k in range(count):
            sums[k] += weight * to_sum(array[_uint64(at + k * by)])

    @device_function
    def write(array: Any, at: Any, by: Any, values: Any) -> None:
        for k in range(count):
            array[_uint64(at + k * by)] = from_sum(values[k])

    @device_function
    def move(x: Any, x_at: Any, x_by: Any, y: Any, y_at: Any, y_by: Any) -> None:
        for k in range(count):
            y[_uint64(y_at + k * y_by)] = x[_uint64(x_at + k * x_by)]

    return add, write, move


# --- Windows --------------------------------------------------------------------------------------


def dims_of(windows: Sequence[Windows]) -> tuple[tuple[int, ...], ...]:
    """The windows of three spatial dims, as kernels take them."""
    one = Windows(1, 1, taps=1)
    return tuple(map(_dim, (*(one,) * (SPATIAL - len(windows)), *windows)))


def _dim(w: Windows) -> tuple[int, ...]:
    """Of one dim: extents, taps, stride, gap, padding, whether adaptive; and a congruence.

    Window o has the cell i only if o·stride ≡ i + pre (mod gap): with g = gcd(stride, gap), if g divides
    i + pre and o ≡ (i + pre)/g · inverse (mod period).
    """
    common = math.gcd(w.stride, w.dilation)
    period = w.dilation // common
    inverse = pow(w.stride // common, -1, period)
    return (
        w.inputs,
        w.outputs,
        w.taps,
        w.stride,
        w.dilation,
        w.pre,
        w.post,
        int(w.adaptive),
        common,
        period,
        inverse,
    )


@device_function
def window(o: Any, dim: Any) -> Any:
    """(begin, end): the cells of window o in the input, the gap apart."""
    inputs, outputs, taps, stride, gap, pre = dim[0], dim[1], dim[2], dim[3], dim[4], dim[5]
    if dim[7] != 0:
        return o * inputs // outputs, ((o + 1) * inputs + outputs - 1) // outputs
    first = o * stride - pre
    begin = first
    if first < 0:
        begin = first + (gap - 1 - first) // gap * gap
    return begin, min(inputs, first + (taps - 1) * gap + 1)


@device_function
def count(o: Any, dim: Any, include_padding: Any) -> Any:
    """How many cells of window o count: those in the input, or in the padded input."""
    begin, end = window(o, dim)
    gap = dim[4]
    if include_padding and dim[7] == 0:
        begin = o * dim[3] - dim[5]
        end = min(dim[0] + dim[6], begin + (dim[2] - 1) * gap + 1)
    cells = end - begin
    if gap > 1:
        cells = (cells + gap - 1) // gap
    return max(_int64(0), cells)


@device_function
def covering(i: Any, dim: Any) -> Any:
    """(begin, end, step): the windows that have the cell i."""
    inputs, outputs, taps, stride, gap, pre = dim[0], dim[1], dim[2], dim[3], dim[4], dim[5]
    if dim[7] != 0:
        return i * outputs // inputs, ((i + 1) * outputs + inputs - 1) // inputs, _int64(1)
    reach = i + pre
    begin = max(_int64(0), (reach - (taps - 1) * gap + stride - 1) // stride)
    end = min(outputs, reach // stride + 1)
    if gap == 1:
        return begin, end, _int64(1)
    common, period, inverse = dim[8], dim[9], dim[10]
    if reach % common != 0:
        return _int64(0), _int64(0), _int64(1)
    residue = reach // common % period * inverse % period
    return begin + (residue - begin % period + period) % period, end, period
