"""Windows, and filters in the same order, as slices for CUDA cores: element by element, from any strides.

Both operands of a correlation are lines over the depth (r, t), that is, over channels and taps. A thread has
one step of the depth in a slice and several lines of it. The thread next to it has the next line or the next
step, whichever lies nearer in memory. So a thread keeps one channel, one tap and one distance in memory for all
of its elements, and moves them on by a whole slice with additions and carries: no division is in the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.correlation import Correlation, nearest
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice
from dnncanon.gpu.kernels.tile.words import converter, store_word
from dnncanon.gpu.runtime.device_code import device_function, types

_int32, _int64, _uint32, _uint64 = types.int32, types.int64, types.uint32, types.uint64

NEVER = 2**31 - 1
"""Where a digit ends that carries into no other."""

LANES = 8
"""Adjacent threads that read along the depth: 32 bytes of float32, one sector of memory."""

# --- The order of the depth -----------------------------------------------------------------------
# Its digits are the channel and the coordinates t·gap of a tap, the last dim first. Channels are the fastest
# and carry into the last dim, or the slowest, and the first dim carries into them.

# The numbers that ``at`` holds of any operand: what a slice adds to each of the four digits, where these end,
# what a carry adds to the next; how far a slice, and a carry of each digit, moves in memory; then what it takes
# to start in the middle: whether channels are the fastest, how many there are, taps, gaps, strides of channels
# and taps, and whether adjacent threads read along the depth. Behind them is what only one operand has.
#
# All have names: numba-cuda takes an index that is a sum of constants for one that is known at run time only,
# and makes a branch for each number that there is.
_ADD_0, _ADD_1, _ADD_2, _ADD_3, _END_0, _END_1, _END_2, _END_3 = range(8)
_CARRIED_1, _CARRIED_2, _CARRIED_3 = range(8, 11)
_MOVE, _MOVE_0, _MOVE_1, _MOVE_2, _MOVE_3 = range(11, 16)
_FASTEST, _CHANNELS, _TAPS_0, _TAPS_1, _TAPS_2, _GAP_0, _GAP_1, _GAP_2 = range(16, 24)
_STRIDE, _STRIDE_0, _STRIDE_1, _STRIDE_2, _ALONG = range(24, 29)

# Of filters, the stride of lines; of windows, those of the batch and three coordinates, divisors and extents of
# a row's digits, steps, shifts, and the source's extents.
_LINES = 29
_OF_B, _OF_0, _OF_1, _OF_2 = range(29, 33)
_B_DIVISOR, _Q0_DIVISOR, _Q1_DIVISOR, _Q2_DIVISOR, _B_EXTENT, _Q0_EXTENT, _Q1_EXTENT, _Q2_EXTENT = (
    range(33, 41)
)
_STEP_0, _STEP_1, _STEP_2, _SHIFT_0, _SHIFT_1, _SHIFT_2 = range(41, 47)
_EXTENT_0, _EXTENT_1, _EXTENT_2 = range(47, 50)


@dataclass(frozen=True, slots=True)
class Depth:
    """How the depth of a correlation is gone through, in slices of ``step``."""

    channels_fastest: bool
    channels: int
    taps: tuple[int, int, int]
    gap: tuple[int, int, int]
    step: int

    @classmethod
    def of(cls, part: Correlation, step: int) -> "Depth":
        """As the source's nearest neighbours lie."""
        strides = part.source.spatial
        apart = [abs(stride * gap) for stride, gap in zip(strides, part.gap, strict=True)]
        channel = nearest([part.source.inner], [part.channels_in])
        taps, first = part.taps, channel < nearest(apart, part.taps)
        gap0, gap1, gap2 = (g if n > 1 else 1 for g, n in zip(part.gap, taps, strict=True))
        return cls(first, part.channels_in, taps, (gap0, gap1, gap2), step)

    def numbers(self, channel: int, taps: tuple[int, ...], scale: int) -> tuple[int, ...]:
        """As kernels take it, for an operand with these strides, in which an element counts ``scale``."""
        extents = (self.channels, *reversed(self.taps))
        strides = (channel, *reversed(taps))
        order = (0, 1, 2, 3) if self.channels_fastest else (1, 2, 3, 0)
        digits, carries, rest = [0] * 4, [0] * 4, self.step
        for place, digit in enumerate(order[:3]):
            extent, onward = max(1, extents[digit]), order[place + 1]
            rest, digits[digit] = divmod(rest, extent)
            carries[digit] = strides[onward] - extent * strides[digit]
        digits[order[3]] = rest
        move = sum(n * stride for n, stride in zip(digits, strides, strict=True))
        units = (1, *reversed(self.gap))
        ends = [n * unit for n, unit in zip(extents, units, strict=True)]
        ends[order[3]] = NEVER
        added = [n * unit for n, unit in zip(digits, units, strict=True)]
        if not self.channels_fastest:
            added[0] = 0  # the slowest is in the distance alone
        return (
            *added,
            *ends,
            *units[1:],
            *(number * scale for number in (move, *carries)),
            int(self.channels_fastest),
            max(1, self.channels),
            *(max(1, n) for n in self.taps),
            *self.gap,
            *(channel, *taps),
        )


@dataclass(frozen=True, slots=True)
class Words:
    """Elements of memory of one type as words of another."""

    source: str
    word: str

    @property
    def asynchronous(self) -> bool:
        return self.source == self.word

    @property
    def scale(self) -> int:
        """What an element counts in a distance: bytes of what is copied, else itself."""
        return words.itemsize(self.word) if self.asynchronous else 1


def windows_at(
    part: Correlation, depth: Depth, kind: Words, *, batch_first: bool
) -> tuple[int, ...]:
    """What the source's fetch takes behind the first element and the strides of groups."""
    at, steps = part.source, part.step
    moves = tuple(s * g for s, g in zip(at.spatial, depth.gap, strict=True))
    apart = [abs(s * n) for s, n in zip(at.spatial, steps, strict=True)]
    near = min(nearest([at.inner], [part.channels_in]), nearest([abs(m) for m in moves], part.taps))
    line = min(nearest([at.outer], [part.batch]), nearest(apart, part.positions))
    return (
        *depth.numbers(at.inner, moves, kind.scale),
        int(near < line),
        at.outer,
        *at.spatial,
        *row_digits(part, batch_first=batch_first),
        *steps,
        *part.shift,
        *part.extents,
    )


def filters_at(part: Correlation, depth: Depth, kind: Words) -> tuple[int, ...]:
    at = part.filter
    near = min(nearest([at.inner], [part.channels_in]), nearest(at.spatial, part.taps))
    line = nearest([at.outer], [part.channels_out])
    return (*depth.numbers(at.inner, at.spatial, kind.scale), int(near < line), at.outer)


def row_digits(part: Correlation, *, batch_first: bool = False) -> tuple[int, ...]:
    """Divisors and extents of a row's digits b, q0, q1, q2: each is row // divisor % extent."""
    n0, n1, n2 = part.positions
    b = part.batch if batch_first else 1
    divisors = (1 if batch_first else n0 * n1 * n2, n1 * n2 * b, n2 * b, b)
    return (*divisors, *(max(1, n) for n in (part.batch, n0, n1, n2)))


def nearer_batch(part: Correlation) -> bool:
    """Whether windows that differ in b lie nearer in the source than those that differ in q."""
    dims = zip(part.source.spatial, part.step, strict=True)
    apart = [abs(stride * step) for stride, step in dims]
    return nearest([part.source.outer], [part.batch]) < nearest(apart, part.positions)


# --- Fetches --------------------------------------------------------------------------------------

# The integers of a thread, in an array that ``wide`` chooses: the four digits; of windows, behind them, where
# that of each line starts, in three coordinates. In the narrow array there are first its place in a slice and
# what is left of the depth.
_PLACE, _LEFT, _OWN = 0, 1, 2

OUTSIDE = -(2**30)
"""A coordinate that no tap brings into the source; of wide ones there is more room."""

_OUTSIDE_WIDE = -(2**62)


@device_function
def _narrow(longs: Any, ints: Any) -> Any:
    return ints


@device_function
def _wide(longs: Any, ints: Any) -> Any:
    return longs


@dataclass(frozen=True, slots=True)
class Share:
    """Which elements of a slice a thread has: one step of the depth, ``each`` lines that are ``apart``."""

    layout: Slice
    threads: int

    @property
    def apart(self) -> int:
        return self.threads // self.layout.depth

    @property
    def each(self) -> int:
        return self.layout.lines // max(1, self.apart)

    def check(self) -> None:
        """ValueError if threads cannot share a slice so."""
        even = self.apart * self.layout.depth == self.threads
        if self.layout.along != "lines" or not even or self.each * self.apart != self.layout.lines:
            raise ValueError(f"{self.threads} threads do not share {self.layout} evenly")


@cache
def elements_of_windows(layout: Slice, threads: int, kind: Words, *, wide: bool = False) -> Fetch:
    """``at`` is (first element, ``windows_at``); with ``wide``, coordinates are numbers of 64 bits."""
    share = Share(layout, threads)
    each, apart = share.each, share.apart
    locate, move = _mover(kind)
    chosen, own = (_wide, 1 + each) if wide else (_narrow, _OWN)
    start, advance = _start(share, kind.scale, own, wide=wide), _advance(own, wide=wide)
    number, unsigned = (_int64, _uint64) if wide else (_int32, _uint32)
    outside = _OUTSIDE_WIDE if wide else OUTSIDE
    itemsize, scale, deep = layout.itemsize, kind.scale, layout.depth
    first_line = own + 4

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        w, kept = at[1], chosen(longs, ints)
        row = start(longs, ints, w, limits, depth, thread)
        first_place = locate(array, at[0])
        for i in range(each):
            n = _uint32(line + row + i * apart)
            b = _int64(n // _uint32(w[_B_DIVISOR]) % _uint32(w[_B_EXTENT]))
            q0 = _int64(n // _uint32(w[_Q0_DIVISOR]) % _uint32(w[_Q0_EXTENT]))
            q1 = _int64(n // _uint32(w[_Q1_DIVISOR]) % _uint32(w[_Q1_EXTENT]))
            q2 = _int64(n // _uint32(w[_Q2_DIVISOR]) % _uint32(w[_Q2_EXTENT]))
            i0 = q0 * w[_STEP_0] - w[_SHIFT_0]
            i1 = q1 * w[_STEP_1] - w[_SHIFT_1]
            i2 = q2 * w[_STEP_2] - w[_SHIFT_2]
            first = b * w[_OF_B] + i0 * w[_OF_0] + i1 * w[_OF_1] + i2 * w[_OF_2]
            longs[1 + i] = first_place + first * scale
            inside = line + row + i * apart < limits[0]
            kept[first_line + 3 * i] = number(i0) if inside else number(outside)
            kept[first_line + 3 * i + 1] = number(i1)
            kept[first_line + 3 * i + 2] = number(i2)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        w, kept = at[1], chosen(longs, ints)
        target, more = slot + _uint32(ints[_PLACE]), ints[_LEFT] > _int32(0)
        t2, t1, t0 = kept[own + 1], kept[own + 2], kept[own + 3]
        for i in range(each):
            # As an unsigned number a negative coordinate is beyond every extent.
            inside = (
                more
                & (unsigned(kept[first_line + 3 * i] + t0) < unsigned(w[_EXTENT_0]))
                & (unsigned(kept[first_line + 3 * i + 1] + t1) < unsigned(w[_EXTENT_1]))
                & (unsigned(kept[first_line + 3 * i + 2] + t2) < unsigned(w[_EXTENT_2]))
            )
            move(target + _uint32(i * apart * itemsize), array, longs[1 + i] + longs[0], inside)
        advance(longs, ints, w)
        ints[_LEFT] = _int32(ints[_LEFT] - _int32(deep))

    kept_each = 4 + 3 * each
    return Fetch(open_, next_, 1 + each + wide * kept_each, _OWN + (not wide) * kept_each)


@cache
def elements_of_filters(layout: Slice, threads: int, kind: Words, *, wide: bool = False) -> Fetch:
    """``at`` is (first element, ``filters_at``)."""
    share = Share(layout, threads)
    each, apart = share.each, share.apart
    locate, move = _mover(kind)
    own, mine = (2, _OWN) if wide else (_OWN, _OWN + 4)
    start, advance = _start(share, kind.scale, own, wide=wide), _advance(own, wide=wide)
    itemsize, scale, deep = layout.itemsize, kind.scale, layout.depth

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        w = at[1]
        row = start(longs, ints, w, limits, depth, thread)
        longs[0] += locate(array, at[0]) + (line + row) * w[_LINES] * scale
        longs[1] = w[_LINES] * (apart * scale)
        ints[mine] = _int32(limits[0] - line - row)

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        target = slot + _uint32(ints[_PLACE])
        lines = ints[mine] if ints[_LEFT] > _int32(0) else _int32(0)
        place = longs[0]
        for i in range(each):
            inside = lines > _int32(i * apart)
            move(target + _uint32(i * apart * itemsize), array, place, inside)
            place += longs[1]
        advance(longs, ints, at[1])
        ints[_LEFT] = _int32(ints[_LEFT] - _int32(deep))

    return Fetch(open_, next_, 2 + wide * 4, mine + 1)


@cache
def _start(share: Share, scale: int, own: int, *, wide: bool) -> Callable[..., Any]:
    """start(longs, ints, w, limits, depth, thread): a thread's step of the depth; returns its first line.

    Eight adjacent threads, or all that differ in the line, read adjacent elements.
    """
    share.check()
    chosen, number = (_wide, _int64) if wide else (_narrow, _int32)
    apart, pitch, itemsize = share.apart, share.layout.pitch, share.layout.itemsize

    @device_function
    def start(longs: Any, ints: Any, w: Any, limits: Any, depth: Any, thread: Any) -> Any:
        row, own_step = thread % apart, thread // apart
        if w[_ALONG]:
            row = thread // LANES % apart
            own_step = thread // (LANES * apart) * LANES + thread % LANES
        k = _int64(depth + own_step)
        taps = w[_TAPS_0] * w[_TAPS_1] * w[_TAPS_2]
        channel, tap = k // taps, k % taps
        if w[_FASTEST]:
            channel, tap = k % w[_CHANNELS], k // w[_CHANNELS]
        t2 = tap % w[_TAPS_2]
        t1 = tap // w[_TAPS_2] % w[_TAPS_1]
        t0 = tap // w[_TAPS_2] // w[_TAPS_1]
        moved = channel * w[_STRIDE] + t0 * w[_STRIDE_0] + t1 * w[_STRIDE_1] + t2 * w[_STRIDE_2]
        longs[0] = moved * scale
        kept = chosen(longs, ints)
        kept[own] = number(channel if w[_FASTEST] else _int64(0))
        kept[own + 1] = number(t2 * w[_GAP_2])
        kept[own + 2] = number(t1 * w[_GAP_1])
        kept[own + 3] = number(t0 * w[_GAP_0])
        ints[_PLACE] = _int32(own_step * pitch + row * itemsize)
        ints[_LEFT] = _int32(limits[1] - depth - own_step)
        return row

    return start


@cache
def _advance(own: int, *, wide: bool) -> Callable[..., None]:
    """advance(longs, ints, w): to the same step of the next slice."""
    chosen, number = (_wide, _int64) if wide else (_narrow, _int32)

    @device_function
    def advance(longs: Any, ints: Any, w: Any) -> None:
        kept, added, ends = chosen(longs, ints), w[_ADD_0:_END_0], w[_END_0:_CARRIED_1]
        carried, moves = w[_CARRIED_1:_MOVE], w[_MOVE_0:_FASTEST]
        distance, carry = longs[0] + w[_MOVE], number(0)
        for digit in range(4):
            total = number(kept[own + digit] + number(added[digit]) + carry)
            over = total >= number(ends[digit])
            kept[own + digit] = number(total - number(ends[digit])) if over else total
            distance += moves[digit] if over else _int64(0)
            carry = number(0)
            if digit < 3:
                carry = number(carried[digit]) if over else number(0)
        longs[0] = distance

    return advance


@cache
def _mover(kind: Words) -> tuple[Callable[..., Any], Callable[..., None]]:
    """locate(array, index) -> place, and move(shared address, array, place, inside)."""
    if kind.asynchronous:
        copy = ptx.cp_async_8_if if kind.scale == 8 else ptx.cp_async_4_if

        @device_function
        def locate(array: Any, index: Any) -> Any:
            return ptx.global_address(array, index)

        @device_function
        def move(slot: Any, array: Any, place: Any, inside: Any) -> None:
            copy(slot, place, _int32(inside))

        return locate, move
    convert, (zero, store) = converter(kind.source, kind.word), store_word(kind.word)

    @device_function
    def as_it_is(array: Any, index: Any) -> Any:
        return index

    @device_function
    def convert_and_move(slot: Any, array: Any, place: Any, inside: Any) -> None:
        word = zero
        if inside:
            word = convert(array[place])
        store(slot, word)

    return as_it_is, convert_and_move
