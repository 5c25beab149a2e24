"""The windows of a correlation as lines of a matrix that is never stored: implicit GEMM.

Line (b, q) has at depth (t, r) the source's element [b, q·step + t·gap − shift, r], 0 outside of it; the
channel r is the fastest of the depth's indices, and channels lie side by side in memory. So a chunk of 16 bytes
is some channels of one tap, and is in the source as a whole or not at all.
"""

from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.slices import Fetch, Slice, place_in, shares_of_chunks
from dnncanon.gpu.runtime.device_code import device_function, types

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32

# The integers of a thread: where its chunk is in a slice; the channel and the tap, in three digits, that it
# is at; how far the tap is from the start of the window, in three coordinates; where the window starts of each
# of its lines.
_PLACE, _CHANNEL, _TAP, _GAP, _WINDOW = 0, 1, 2, 5, 8

OUTSIDE = -(2**30)
"""A coordinate that no tap brings into the source."""

BEYOND = 2**30 + 2**29
"""How far there are no taps any more: from OUTSIDE too that is beyond the source."""


@cache
def chunks_of_windows(layout: Slice, threads: int) -> Fetch:
    """By asynchronous copies of 16 bytes.

    ``at`` is (first element, (channels, strides of b and of three dims, positions, extents, step, taps, gap,
    shift)), after the first five numbers three of each. Channels are in whole chunks, addresses multiples of 16
    bytes.
    """
    if layout.along != "depth":
        raise ValueError("windows lie along the depth")
    place = place_in(layout)
    chunks, per_chunk, pitch, deep = layout.chunks, layout.per_chunk, layout.pitch, layout.depth
    (apart, each), itemsize = shares_of_chunks(layout, threads), layout.itemsize

    @device_function
    def open_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, line: Any, depth: Any, thread: Any
    ) -> None:
        w = at[1]
        row, chunk = thread // chunks, thread % chunks
        k = depth + chunk * per_chunk
        tap = k // w[0]
        ints[_PLACE] = place(row, chunk)
        ints[_CHANNEL] = _int32(k % w[0])
        ints[_TAP] = _int32(tap // (w[15] * w[16]))
        ints[_TAP + 1] = _int32(tap // w[16] % w[15])
        ints[_TAP + 2] = _int32(tap % w[16])
        meet_tap(longs, ints, w)
        for i in range(each):
            n = line + row + i * apart
            i0 = n // (w[6] * w[7]) % w[5] * w[11] - w[20]
            i1 = n // w[7] % w[6] * w[12] - w[21]
            i2 = n % w[7] * w[13] - w[22]
            b = n // (w[5] * w[6] * w[7])
            first = at[0] + b * w[1] + i0 * w[2] + i1 * w[3] + i2 * w[4]
            longs[1 + i] = ptx.global_address(array, first)
            ints[_WINDOW + 3 * i] = _int32(i0) if n < limits[0] else _int32(OUTSIDE)
            ints[_WINDOW + 3 * i + 1] = _int32(i1)
            ints[_WINDOW + 3 * i + 2] = _int32(i2)

    @device_function
    def meet_tap(longs: Any, ints: Any, w: Any) -> None:
        """How far the tap is, in coordinates and, with the channel, in bytes."""
        d0, d1, d2 = ints[_TAP] * w[17], ints[_TAP + 1] * w[18], ints[_TAP + 2] * w[19]
        ints[_GAP] = _int32(d0) if ints[_TAP] < w[14] else _int32(BEYOND)
        ints[_GAP + 1] = _int32(d1)
        ints[_GAP + 2] = _int32(d2)
        longs[0] = (d0 * w[2] + d1 * w[3] + d2 * w[4] + ints[_CHANNEL]) * itemsize

    @device_function
    def next_(
        longs: Any, ints: Any, array: Any, at: Any, limits: Any, slot: Any, thread: Any
    ) -> None:
        w = at[1]
        target = slot + _uint32(ints[_PLACE])
        for i in range(each):
            # As an unsigned number a negative coordinate is beyond every extent.
            inside = (
                (_uint32(ints[_WINDOW + 3 * i] + ints[_GAP]) < _uint32(w[8]))
                & (_uint32(ints[_WINDOW + 3 * i + 1] + ints[_GAP + 1]) < _uint32(w[9]))
                & (_uint32(ints[_WINDOW + 3 * i + 2] + ints[_GAP + 2]) < _uint32(w[10]))
            )
            ptx.cp_async_16_if(
                target + _uint32(i * apart * pitch), longs[1 + i] + longs[0], _int32(inside)
            )
        longs[0] += deep * itemsize
        ints[_CHANNEL] = _int32(ints[_CHANNEL] + _int32(deep))
        if ints[_CHANNEL] >= _int32(w[0]):
            while ints[_CHANNEL] >= _int32(w[0]) and ints[_TAP] < _int32(w[14]):
                ints[_CHANNEL] = _int32(ints[_CHANNEL] - _int32(w[0]))
                ints[_TAP + 2] = _int32(ints[_TAP + 2] + 1)
                if ints[_TAP + 2] == _int32(w[16]):
                    ints[_TAP + 2] = _int32(0)
                    ints[_TAP + 1] = _int32(ints[_TAP + 1] + 1)
                    if ints[_TAP + 1] == _int32(w[15]):
                        ints[_TAP + 1] = _int32(0)
                        ints[_TAP] = _int32(ints[_TAP] + 1)
            meet_tap(longs, ints, w)

    return Fetch(open_, next_, longs=1 + each, ints=_WINDOW + 3 * each)


@device_function
def start_of_position(at: Any, row: Any) -> Any:
    """Where output (b, q) starts, for ``Output.start_of_row``.

    ``at`` is (first element, (stride of channels, strides of b and of three dims, divisors and extents of the
    digits b, q of a row)): each digit is row // divisor % extent.
    """
    n = _uint32(row)
    place = at[0]
    for digit in range(4):
        place += (
            _int64(n // _uint32(at[1][5 + digit]) % _uint32(at[1][9 + digit])) * at[1][1 + digit]
        )
    return place
