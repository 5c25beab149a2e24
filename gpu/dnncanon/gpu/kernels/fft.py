"""Fourier transforms in shared memory, and convolution by them: what kernels of several families are made of.

A block transforms a *frame* of N = 2n real numbers as n complex ones, z[m] = x[2m] + i·x[2m + 1], and finds the
spectrum of x from that of z (``Real``). So an error is relative to the norm of one frame: with two sequences as
the real and imaginary part, the smaller one would have the errors of the larger.

The complex transform (``transform``) is Stockham's: passes of radix 4, and one of radix 2 at the end where n is
no power of 4, each from one half of an array to the other, so that the result is in order. ``lines`` is the
same along one dim of several, whose extents need not be known before the kernel runs. The inverse is the same
with real and imaginary parts exchanged. Factors e^{−2πik/N} come from a table (``fill_table``), each rounded
once: recurrences, which need no table, lose digits.

X[k] for k = 0…n is kept as n pairs of numbers; the first holds X[0] and X[n], which are real.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

SIZES = {"float32": (32, 256, 2048), "float64": (32, 256, 1024)}
"""Complex points n: the largest has 48 KiB of shared memory, two halves and a sum beside them."""

LEAST_POINTS = 2 * SIZES["float32"][0]
"""Real points of the shortest frame: that on which the numerics class "fft" counts."""

TABLE_THREADS = 128

_int64, _uint32 = types.int64, types.uint32


def threads_of(points: int) -> int:
    """Threads of a block that transforms so many complex points: two butterflies of radix 4 for each."""
    return max(32, points // 8)


def table_size(points: int) -> int:
    """Numbers of the table for n complex points: the cosines of N angles, then their sines."""
    return 4 * points


def fill_table(table: DeviceArray, points: int, stream: object) -> None:
    """cos and sin of 2πk/N for k = 0…N − 1."""
    chosen = _table(table.dtype.name)
    grid = blocks_for(2 * points, TABLE_THREADS)
    launch(chosen, grid, TABLE_THREADS, (table, 2 * points), stream=stream)


@cache
def _table(dtype: str) -> Kernel:
    """In float64, rounded once. Angles up to an eighth of the circle are exact to its precision."""
    from_sum, threads, circle = ELEMENTS[dtype].from_sum, TABLE_THREADS, 2.0 * math.pi

    @kernel
    def fft_table(table: Any, count: Any) -> None:
        index = _int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        while index < count:
            # Which eighth, and how far from the nearer of its axes.
            eighth = index * 8 // count
            quarter = (eighth + 1) // 2
            rest = index * 4 - quarter * count
            angle = circle * (types.float64(rest) / (4.0 * types.float64(count)))
            c, s = math.cos(angle), math.sin(angle)
            turn = quarter % 4
            cosine = c if turn == 0 else -s if turn == 1 else -c if turn == 2 else s
            sine = s if turn == 0 else c if turn == 1 else -s if turn == 2 else -c
            table[index] = from_sum(cosine)
            table[count + index] = from_sum(sine)
            index += _int64(cuda.gridDim.x) * threads

    return fft_table


# --- The complex transform ------------------------------------------------------------------------


@device_function
def _turned(re: Any, im: Any, table: Any, count: Any, at: Any, turn: Any) -> Any:
    """The number at ``at`` times e^{−iφ}, φ being so many angles of the table."""
    at, sine = _uint32(at), _uint32(count + turn)
    c, s = table[_uint32(turn)], table[sine]
    x, y = re[at], im[at]
    return x * c + y * s, y * c - x * s


@device_function
def _store(re: Any, im: Any, at: Any, x: Any, y: Any) -> None:
    at = _uint32(at)
    re[at], im[at] = x, y


@device_function
def _radix_4(
    re: Any, im: Any, table: Any, count: Any, turn: Any, at: Any, apart: Any, to: Any, hop: Any
) -> None:
    """A butterfly of four numbers that lie ``apart``, turned by 0 to 3 angles, to four that lie a ``hop``."""
    a_re, a_im = re[_uint32(at)], im[_uint32(at)]
    b_re, b_im = _turned(re, im, table, count, at + apart, turn)
    c_re, c_im = _turned(re, im, table, count, at + 2 * apart, 2 * turn)
    d_re, d_im = _turned(re, im, table, count, at + 3 * apart, 3 * turn)
    sum_re, sum_im = a_re + c_re, a_im + c_im
    rest_re, rest_im = a_re - c_re, a_im - c_im
    odd_re, odd_im = b_re + d_re, b_im + d_im
    turned_re, turned_im = b_im - d_im, d_re - b_re  # −i·(b − d)
    _store(re, im, to, sum_re + odd_re, sum_im + odd_im)
    _store(re, im, to + hop, rest_re + turned_re, rest_im + turned_im)
    _store(re, im, to + 2 * hop, sum_re - odd_re, sum_im - odd_im)
    _store(re, im, to + 3 * hop, rest_re - turned_re, rest_im - turned_im)


@device_function
def _radix_2(
    re: Any, im: Any, table: Any, count: Any, turn: Any, at: Any, apart: Any, to: Any, hop: Any
) -> None:
    """The same of two numbers."""
    a_re, a_im = re[_uint32(at)], im[_uint32(at)]
    b_re, b_im = _turned(re, im, table, count, at + apart, turn)
    _store(re, im, to, a_re + b_re, a_im + b_im)
    _store(re, im, to + hop, a_re - b_re, a_im - b_im)


@cache
def transform(points: int) -> Callable[..., Any]:
    """transform(re, im, table, thread): the spectrum of the first n numbers of two shared arrays of 2n.

    It is in the first or the second half: from ``end_of(n)`` on. All threads of the block call it, after a
    barrier behind the last write; there is one behind the transform.
    """
    threads, quarter, half, count = threads_of(points), points // 4, points // 2, 2 * points

    @device_function
    def transformed(re: Any, im: Any, table: Any, thread: Any) -> None:
        source, length = _int64(0), _int64(1)
        while length * 4 <= points:
            target = points - source
            step = count // (length * 4)
            for j in range(thread, quarter, threads):
                k = j & (length - 1)
                to = target + (j - k) * 4 + k
                _radix_4(re, im, table, count, k * step, source + j, quarter, to, length)
            cuda.syncthreads()
            source, length = target, length * 4
        if length < points:
            target = points - source
            for j in range(thread, half, threads):
                _radix_2(re, im, table, count, 2 * j, source + j, half, target + j, half)
            cuda.syncthreads()

    return transformed


@cache
def lines(capacity: int, threads: int) -> Callable[..., Any]:
    """lines(re, im, table, angles, source, line, inner, whole, thread): many lines of any length at once.

    The lines are one dim of a box of 2^whole complex numbers: 2^line points that lie 2^inner apart. The box is
    at ``source``, 0 or ``capacity``, of two shared arrays of twice the capacity; where it is afterwards is
    returned. The table has 2^angles of them, at least as many as a line has points. Barriers are as for
    ``transform``; without points to transform there are none. All numbers are uint32.

    Butterfly j reads from 4j − 3·(j mod the distance of its numbers) on, and writes from 4j − 3r on with
    r = j mod (points transformed before · 2^inner).
    """

    @device_function
    def transformed(
        re: Any,
        im: Any,
        table: Any,
        angles: Any,
        source: Any,
        line: Any,
        inner: Any,
        whole: Any,
        thread: Any,
    ) -> Any:
        one, count = _uint32(1), _uint32(1 << angles)
        done = _uint32(0)  # points, as a power of two
        while done + 2 <= line:
            target = _uint32(capacity - source)
            apart, hop = _uint32(one << (line + inner - 2)), _uint32(one << (done + inner))
            j = _uint32(thread)
            while j < one << (whole - 2):
                r = _uint32(j & (hop - 1))
                turn = _uint32(r >> inner << (angles - done - 2))
                at = _uint32(source + 4 * j - 3 * (j & (apart - 1)))
                to = _uint32(target + 4 * j - 3 * r)
                _radix_4(re, im, table, count, turn, at, apart, to, hop)
                j = _uint32(j + threads)
            cuda.syncthreads()
            source, done = target, _uint32(done + 2)
        if done < line:
            target, hop = _uint32(capacity - source), _uint32(one << (done + inner))
            j = _uint32(thread)
            while j < one << (whole - 1):
                r = _uint32(j & (hop - 1))
                at, turn = _uint32(2 * j - r), _uint32(r >> inner << (angles - line))
                _radix_2(re, im, table, count, turn, source + at, hop, target + at, hop)
                j = _uint32(j + threads)
            cuda.syncthreads()
            source = target
        return source

    return transformed


def end_of(points: int) -> int:
    """Where the result of ``transform`` is: behind an odd number of passes in the second half."""
    passes = points.bit_length() // 2  # of log2 n = 2q or 2q + 1: q, and one more
    return points * (passes % 2)


# --- Spectra of real frames -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Real:
    """What is done with the transform z of a real frame: each thread takes the pairs k and n − k that are its.

    - ``keep(re, im, out, at, table, thread)`` writes the spectrum of the frame;
    - ``multiply(re, im, other, at, sums_re, sums_im, table, thread)`` adds its product with another one;
    - ``correlate``, with the same arguments, adds the product of the other one with its conjugate;
    - ``prepare(sums_re, sums_im, re, im, table, thread)`` makes of such sums what ``transform``, called with re
      and im exchanged, turns into n times the frame.

    A spectrum in global memory is n real parts, then n imaginary ones.
    """

    keep: Callable[..., Any]
    multiply: Callable[..., Any]
    correlate: Callable[..., Any]
    prepare: Callable[..., Any]


@cache
def real(points: int, dtype: str) -> Real:
    """For frames of N = 2n numbers of the type of sums."""
    number = ELEMENTS[dtype].sum
    half = number(0.5)
    threads, count, start = threads_of(points), 2 * points, end_of(points)

    @device_function
    def pair(re: Any, im: Any, table: Any, k: Any) -> Any:
        """X[k] and X[n − k], for 0 < k <= n/2: E ± e^{−2πik/N}·O, the second one conjugated."""
        at, opposite = start + k, start + points - k
        even_re, even_im = half * (re[at] + re[opposite]), half * (im[at] - im[opposite])
        odd_re, odd_im = half * (im[at] + im[opposite]), half * (re[opposite] - re[at])
        c, s = table[k], table[count + k]
        turned_re, turned_im = odd_re * c + odd_im * s, odd_im * c - odd_re * s
        return (
            even_re + turned_re,
            even_im + turned_im,
            even_re - turned_re,
            turned_im - even_im,
        )

    @device_function
    def keep(re: Any, im: Any, out: Any, at: Any, table: Any, thread: Any) -> None:
        for k in range(thread, points // 2 + 1, threads):
            if k == 0:
                x, y = re[start], im[start]
                out[at], out[at + points] = x + y, x - y
            else:
                a_re, a_im, b_re, b_im = pair(re, im, table, k)
                out[at + k], out[at + points + k] = a_re, a_im
                out[at + points - k], out[at + 2 * points - k] = b_re, b_im

    def multiplier(sign: Any) -> Callable[..., Any]:
        @device_function
        def multiply(
            re: Any,
            im: Any,
            other: Any,
            at: Any,
            sums_re: Any,
            sums_im: Any,
            table: Any,
            thread: Any,
        ) -> None:
            for k in range(thread, points // 2 + 1, threads):
                if k == 0:
                    x, y = re[start], im[start]
                    sums_re[0] += (x + y) * other[at]
                    sums_im[0] += (x - y) * other[at + points]
                else:
                    a_re, a_im, b_re, b_im = pair(re, im, table, k)
                    a_im, b_im = sign * a_im, sign * b_im
                    x, y = other[at + k], other[at + points + k]
                    sums_re[k] += a_re * x - a_im * y
                    sums_im[k] += a_re * y + a_im * x
                    if 2 * k < points:
                        x, y = other[at + points - k], other[at + 2 * points - k]
                        sums_re[points - k] += b_re * x - b_im * y
                        sums_im[points - k] += b_re * y + b_im * x

        return multiply

    @device_function
    def prepare(sums_re: Any, sums_im: Any, re: Any, im: Any, table: Any, thread: Any) -> None:
        for k in range(thread, points // 2 + 1, threads):
            if k == 0:
                x, y = sums_re[0], sums_im[0]
                re[0], im[0] = half * (x + y), half * (x - y)
            else:
                a_re, a_im = sums_re[k], sums_im[k]
                b_re, b_im = sums_re[points - k], sums_im[points - k]
                even_re, even_im = half * (a_re + b_re), half * (a_im - b_im)
                turned_re, turned_im = half * (a_re - b_re), half * (a_im + b_im)
                c, s = table[k], table[count + k]
                odd_re, odd_im = turned_re * c - turned_im * s, turned_im * c + turned_re * s
                re[k], im[k] = even_re - odd_im, even_im + odd_re
                re[points - k], im[points - k] = even_re + odd_im, odd_re - even_im

    return Real(keep, multiplier(number(1)), multiplier(number(-1)), prepare)
