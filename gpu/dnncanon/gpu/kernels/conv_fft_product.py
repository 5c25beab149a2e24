"""The kernel that multiplies spectra: for each frequency a complex matrix product over channels.

    sums[g, m, j, k] = Σ_c rows[g, m, c, k]·conj columns[g, j, c, k]

A block takes 16 adjacent frequencies and 16 x 16 sums of each. A thread has one frequency and 4 x 4 sums, its
rows and columns being 4 apart: the 16 threads beside each other read 16 adjacent words, of memory and of shared
memory. Sums are added up in the order of c, the same in every run.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

THREADS = 256
FREQUENCIES = 16
LINES = 16
"""Rows, and columns, of a block."""
DEPTH = 4
"""Channels whose spectra are in shared memory at a time."""

_EACH = 4
_APART = LINES // _EACH
_SLICE = LINES * FREQUENCIES
_STAGED, _SUMS = DEPTH * _SLICE, _EACH**2

_int64, _uint32, _uint64 = types.int64, types.uint32, types.uint64


def blocks(groups: int, rows: int, columns: int, frequencies: int) -> int:
    return groups * -(-rows // LINES) * -(-columns // LINES) * -(-frequencies // FREQUENCIES)


@cache
def _step(dtype: str) -> Callable[..., Any]:
    """step(sums_re, sums_im, a_re, a_im, b_re, b_im, at_a, at_b, c): the products of one channel."""
    number = ELEMENTS[dtype].sum

    @device_function
    def step(
        sums_re: Any,
        sums_im: Any,
        a_re: Any,
        a_im: Any,
        b_re: Any,
        b_im: Any,
        at_a: Any,
        at_b: Any,
        c: Any,
    ) -> None:
        x_re, x_im = cuda.local.array(_EACH, number), cuda.local.array(_EACH, number)
        y_re, y_im = cuda.local.array(_EACH, number), cuda.local.array(_EACH, number)
        for i in range(_EACH):
            here = c * _SLICE + i * _APART * FREQUENCIES
            of_a, of_b = _uint32(at_a + here), _uint32(at_b + here)
            x_re[i], x_im[i] = a_re[of_a], a_im[of_a]
            y_re[i], y_im[i] = b_re[of_b], b_im[of_b]
        for i in range(_EACH):
            for j in range(_EACH):
                at = i * _EACH + j
                sums_re[at] = sums_re[at] + x_re[i] * y_re[j] + x_im[i] * y_im[j]
                sums_im[at] = sums_im[at] + x_im[i] * y_re[j] - x_re[i] * y_im[j]

    return step


@cache
def product(dtype: str) -> Kernel:
    """The kernel; ``adds`` says that ``sums`` has those of channels before these."""
    number, zero = ELEMENTS[dtype].sum, ELEMENTS[dtype].sum(0)
    steps = unrolled(_step(dtype), times=DEPTH, arguments=8)

    @kernel
    def conv_fft_product(a: Any, b: Any, sums: Any, shape: Any, adds: Any) -> None:
        groups, rows, columns, channels, frequencies = shape
        a_re = cuda.shared.array(_STAGED, number)
        a_im = cuda.shared.array(_STAGED, number)
        b_re = cuda.shared.array(_STAGED, number)
        b_im = cuda.shared.array(_STAGED, number)
        sums_re = cuda.local.array(_SUMS, number)
        sums_im = cuda.local.array(_SUMS, number)
        thread = _int64(cuda.threadIdx.x)
        lane, line = thread % FREQUENCIES, thread // FREQUENCIES
        row, column = line // _APART, line % _APART
        down, across = (rows + LINES - 1) // LINES, (columns + LINES - 1) // LINES
        plane = _uint64(frequencies)
        at_a, at_b = _uint32(row * FREQUENCIES + lane), _uint32(column * FREQUENCIES + lane)
        slices = (frequencies + FREQUENCIES - 1) // FREQUENCIES
        block = _int64(cuda.blockIdx.x)
        while block < slices * groups * down * across:
            j0, rest = block % across * LINES, block // across
            m0, rest = rest % down * LINES, rest // down
            g, k = rest % groups, rest // groups * FREQUENCIES + lane
            for i in range(_EACH):
                for j in range(_EACH):
                    m, n = m0 + row + i * _APART, j0 + column + j * _APART
                    x, y = zero, zero
                    if adds and m < rows and n < columns and k < frequencies:
                        at = ((g * rows + m) * columns + n) * 2 * frequencies + k
                        x, y = sums[at], sums[at + frequencies]
                    sums_re[i * _EACH + j], sums_im[i * _EACH + j] = x, y
            has_a = k < frequencies and m0 + line < rows
            has_b = k < frequencies and j0 + line < columns
            of_a = _uint64(((g * rows + m0 + line) * channels) * 2 * frequencies + k)
            of_b = _uint64(((g * columns + j0 + line) * channels) * 2 * frequencies + k)
            for first in range(0, channels, DEPTH):
                for c in range(DEPTH):
                    x, y, z, w = zero, zero, zero, zero
                    if first + c < channels:
                        if has_a:
                            x, y = a[of_a], a[_uint64(of_a + plane)]
                        if has_b:
                            z, w = b[of_b], b[_uint64(of_b + plane)]
                    of_a, of_b = _uint64(of_a + 2 * plane), _uint64(of_b + 2 * plane)
                    to = _uint32(c * _SLICE + cuda.threadIdx.x)
                    a_re[to], a_im[to], b_re[to], b_im[to] = x, y, z, w
                cuda.syncthreads()
                steps(sums_re, sums_im, a_re, a_im, b_re, b_im, at_a, at_b)
                cuda.syncthreads()
            for i in range(_EACH):
                for j in range(_EACH):
                    m, n = m0 + row + i * _APART, j0 + column + j * _APART
                    if m < rows and n < columns and k < frequencies:
                        at = ((g * rows + m) * columns + n) * 2 * frequencies + k
                        sums[at] = sums_re[i * _EACH + j]
                        sums[at + frequencies] = sums_im[i * _EACH + j]
            block += _int64(cuda.gridDim.x)

    return conv_fft_product
