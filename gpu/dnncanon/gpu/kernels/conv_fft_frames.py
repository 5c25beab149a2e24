"""Kernels that lead from tensors to the spectra of frames of one to three dims, and from spectra to outputs.

A frame has 2^l points in each dim. Of its N points along the last dim, n = N/2 pairs are taken for complex
numbers, and of their transform Z along all dims

    X[k] = (Z[k] + conj Z[−k])/2 + e^{−2πi·k₂/N}·(Z[k] − conj Z[−k])/2i

is the spectrum, k₂ going from 0 to n: so an error is relative to the norm of a frame, as ``fft`` has it. A
block transforms the *box* of the last dims that fit into its shared memory, or several boxes; the dims before
are transformed in place, by ``outer_dim``, where spectra are in global memory. A box in global memory has the
k₂ < n first, as [k₀, k₁, k₂], then those with k₂ = n.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.epilogue import make_epilogue
from dnncanon.gpu.kernels.fft import lines
from dnncanon.gpu.kernels.indexing import place
from dnncanon.gpu.runtime import Kernel, kernel
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

CAPACITY = {"float32": 2048, "float64": 1024}
"""Complex numbers that a block transforms: with the second copy that the passes need, 32 KiB."""

THREADS = 256

BOXES = 64
"""Of a block, at most."""

COLUMNS = 8
"""Logarithm of how many adjacent lines of an outer dim a block transforms at most: one for each thread."""

_int64, _uint32, _uint64 = types.int64, types.uint32, types.uint64


# --- Boxes ----------------------------------------------------------------------------------------


@cache
def box(capacity: int) -> Callable[..., Any]:
    """box(re, im, table, angles, bits, whole, thread): transform the boxes of a block; where they are then.

    ``bits`` are the logarithms of a box's three extents, ``whole`` that of the numbers of all boxes together.
    """
    along = lines(capacity, THREADS)

    @device_function
    def transformed(
        re: Any, im: Any, table: Any, angles: Any, bits: Any, whole: Any, thread: Any
    ) -> Any:
        l0, l1, l2 = _uint32(bits[0]), _uint32(bits[1]), _uint32(bits[2])
        angles, whole, zero = _uint32(angles), _uint32(whole), _uint32(0)
        source = along(re, im, table, angles, zero, l2, zero, whole, thread)
        source = along(re, im, table, angles, source, l1, l2, whole, thread)
        return along(re, im, table, angles, source, l0, _uint32(l1 + l2), whole, thread)

    return transformed


@device_function
def _opposite(within: Any, bits: Any) -> Any:
    """Where −k is in a box, k being at ``within``."""
    l0, l1, l2 = bits
    m0, m1, m2 = (_int64(1) << l0) - 1, (_int64(1) << l1) - 1, (_int64(1) << l2) - 1
    k0, k1, k2 = within >> (l1 + l2), within >> l2 & m1, within & m2
    return (-k0 & m0) << (l1 + l2) | (-k1 & m1) << l2 | (-k2 & m2)


@device_function
def _frame(image: Any, counts: Any, firsts: Any, tiles: Any, pieces: Any, cut: Any) -> Any:
    """(g, outer, inner, three coordinates) of a frame: its group, channels, and first position.

    Images are [g, row, column], of which there are ``counts``, from ``firsts`` on. A row is an outer channel's
    tile of positions; a column is an inner channel's piece of taps.
    """
    column, rest = image % counts[1] + firsts[1], image // counts[1]
    row, g = rest % counts[0] + firsts[0], rest // counts[0]
    u2, column = column % pieces[2], column // pieces[2]
    u1, column = column % pieces[1], column // pieces[1]
    u0, inner = column % pieces[0], column // pieces[0]
    p2, row = row % tiles[2], row // tiles[2]
    p1, row = row % tiles[1], row // tiles[1]
    p0, outer = row % tiles[0], row // tiles[0]
    return (
        g,
        outer,
        inner,
        p0 * cut[0] + u0 * cut[3] - cut[6],
        p1 * cut[1] + u1 * cut[4] - cut[7],
        p2 * cut[2] + u2 * cut[5] - cut[8],
    )


@cache
def spectra(dtype: str) -> Kernel:
    """The kernel of the spectra of frames, cut out of a tensor whose elements are spread by gaps."""
    element, capacity = ELEMENTS[dtype], CAPACITY[dtype]
    number, zero, half, to_sum = element.sum, element.sum(0), element.sum(0.5), element.to_sum
    transform, both = box(capacity), 2 * capacity

    @device_function
    def load(source: Any, at: Any, c0: Any, c1: Any, c2: Any, window: Any) -> Any:
        """The element at these coordinates; 0 where there is none."""
        i0, i1, i2, gap0, gap1, gap2 = window[:6]
        if c0 < 0 or c1 < 0 or c2 < 0 or c0 >= i0 or c1 >= i1 or c2 >= i2:
            return zero
        if gap0 * gap1 * gap2 > 1:
            if c0 % gap0 != 0 or c1 % gap1 != 0 or c2 % gap2 != 0:
                return zero
            c0, c1, c2 = c0 // gap0, c1 // gap1, c2 // gap2
        return to_sum(source[_uint64(at + c0 * window[6] + c1 * window[7] + c2 * window[8])])

    @kernel
    def conv_fft_spectra(
        source: Any,
        out: Any,
        table: Any,
        shape: Any,
        bits: Any,
        outer: Any,
        used: Any,
        counts: Any,
        firsts: Any,
        tiles: Any,
        pieces: Any,
        cut: Any,
        layout: Any,
        window: Any,
    ) -> None:
        angles, log_boxes, whole, total, plane = shape
        l0, l1, l2 = bits
        log_box = l0 + l1 + l2
        points = _int64(1) << log_box
        re = cuda.shared.array(both, number)
        im = cuda.shared.array(both, number)
        places = cuda.shared.array((5, BOXES), types.int64)
        thread = _int64(cuda.threadIdx.x)
        boxes = _int64(1) << log_boxes
        first = _int64(cuda.blockIdx.x) << log_boxes
        while first < total:
            if thread < boxes:
                places[4, thread] = -1
                if first + thread < total:
                    item = first + thread
                    o1, item = item % outer[1], item // outer[1]
                    o0, image = item % outer[0], item // outer[0]
                    g, b, r, c0, c1, c2 = _frame(image, counts, firsts, tiles, pieces, cut)
                    places[0, thread] = layout[0] + g * layout[1] + b * layout[2] + r * layout[3]
                    places[1, thread], places[2, thread] = c0 + o0, c1 + o1
                    places[3, thread] = c2
                    places[4, thread] = image * 2 * plane + (o0 * outer[2] + o1) * outer[3]
            cuda.syncthreads()
            for e in range(thread, _int64(1) << whole, THREADS):
                slot, m0 = e >> log_box, e >> (l1 + l2) & ((_int64(1) << l0) - 1)
                m1, m2 = e >> l2 & ((_int64(1) << l1) - 1), (e & ((_int64(1) << l2) - 1)) * 2
                x, y = zero, zero
                if places[4, slot] >= 0 and m0 < used[0] and m1 < used[1]:
                    at, c0, c1 = places[0, slot], places[1, slot] + m0, places[2, slot] + m1
                    c2 = places[3, slot] + m2
                    if m2 < used[2]:
                        x = load(source, at, c0, c1, c2, window)
                    if m2 + 1 < used[2]:
                        y = load(source, at, c0, c1, c2 + 1, window)
                re[e], im[e] = x, y
            cuda.syncthreads()
            start = transform(re, im, table, angles, bits, whole, thread)
            count = _int64(1) << angles
            for e in range(thread, _int64(1) << whole, THREADS):
                slot, within = e >> log_box, e & (points - 1)
                to = places[4, slot]
                if to >= 0:
                    k2 = within & ((_int64(1) << l2) - 1)
                    other = start + (slot << log_box) + _opposite(within, bits)
                    a_re, a_im, b_re, b_im = re[start + e], im[start + e], re[other], im[other]
                    even_re, even_im = half * (a_re + b_re), half * (a_im - b_im)
                    odd_re, odd_im = half * (a_im + b_im), half * (b_re - a_re)
                    turn = k2 << (angles - l2 - 1)
                    c, s = table[turn], table[count + turn]
                    out[to + within] = even_re + (odd_re * c + odd_im * s)
                    out[to + plane + within] = even_im + (odd_im * c - odd_re * s)
                    if k2 == 0:
                        last = to + points + (within >> l2)
                        out[last], out[last + plane] = even_re - odd_re, even_im - odd_im
            cuda.syncthreads()
            first += _int64(cuda.gridDim.x) << log_boxes

    return conv_fft_spectra


# --- Dims that are not in the box -----------------------------------------------------------------


@cache
def outer_dim(dtype: str) -> Kernel:
    """The kernel that transforms spectra along one dim, in place; the way back with both planes exchanged.

    There are ``shape`` = (angles, the line's logarithm, lines of an image that lie apart, adjacent ones, all of
    them, plane) and planes, of which only the points before ``ends`` are read and written.
    """
    number, zero, capacity = ELEMENTS[dtype].sum, ELEMENTS[dtype].sum(0), CAPACITY[dtype]
    along = lines(capacity, THREADS)
    log_capacity, both = capacity.bit_length() - 1, 2 * capacity

    @kernel
    def conv_fft_outer_dim(data: Any, table: Any, shape: Any, ends: Any, back: Any) -> None:
        angles, line, apart, adjacent, total, plane = shape
        re = cuda.shared.array(both, number)
        im = cuda.shared.array(both, number)
        thread = _int64(cuda.threadIdx.x)
        columns = min(_int64(COLUMNS), log_capacity - line)
        first, step = thread >> columns, _int64(THREADS) >> columns
        points, column = _int64(1) << line, thread & ((_int64(1) << columns) - 1)
        block = _int64(cuda.blockIdx.x) << columns
        while block < total:
            index = block + column
            lot, place = index // adjacent, index % adjacent
            at = lot // apart * 2 * plane + lot % apart * (adjacent << line) + place
            re_at, im_at = (at + plane, at) if back else (at, at + plane)
            for m in range(first, points, step):
                x, y = zero, zero
                if index < total and m < ends[0]:
                    x, y = data[re_at + m * adjacent], data[im_at + m * adjacent]
                re[(m << columns) + column], im[(m << columns) + column] = x, y
            cuda.syncthreads()
            whole = _uint32(line + columns)
            start = along(
                re,
                im,
                table,
                _uint32(angles),
                _uint32(0),
                _uint32(line),
                _uint32(columns),
                whole,
                thread,
            )
            for m in range(first, points, step):
                if index < total and m < ends[1]:
                    here = start + (m << columns) + column
                    data[re_at + m * adjacent], data[im_at + m * adjacent] = re[here], im[here]
            cuda.syncthreads()
            block += _int64(cuda.gridDim.x) << columns

    return conv_fft_outer_dim


# --- Outputs --------------------------------------------------------------------------------------


@cache
def outputs(dtype: str) -> Kernel:
    """The kernel from spectra to the positions of their tiles, which it finishes as every convolution does."""
    element, capacity = ELEMENTS[dtype], CAPACITY[dtype]
    number, zero, half = element.sum, element.sum(0), element.sum(0.5)
    transform, both, finish = box(capacity), 2 * capacity, make_epilogue(dtype)

    @kernel
    def conv_fft_outputs(
        spectrum: Any,
        table: Any,
        shape: Any,
        bits: Any,
        outer: Any,
        used: Any,
        counts: Any,
        firsts: Any,
        tiles: Any,
        cut: Any,
        window: Any,
        scale: Any,
        out: Any,
        out_at: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        angles, log_boxes, whole, total, plane = shape
        l0, l1, l2 = bits
        log_box = l0 + l1 + l2
        points, factor = _int64(1) << log_box, number(scale)
        channels, end0, end1, end2, step0, step1, step2 = window
        re = cuda.shared.array(both, number)
        im = cuda.shared.array(both, number)
        places = cuda.shared.array((7, BOXES), types.int64)
        thread = _int64(cuda.threadIdx.x)
        boxes, count = _int64(1) << log_boxes, _int64(1) << angles
        first = _int64(cuda.blockIdx.x) << log_boxes
        while first < total:
            if thread < boxes:
                places[6, thread] = -1
                if first + thread < total:
                    item = first + thread
                    o1, item = item % outer[1], item // outer[1]
                    o0, image = item % outer[0], item // outer[0]
                    g, b, j, q0, q1, q2 = _frame(image, counts, firsts, tiles, (1, 1, 1), cut)
                    places[0, thread], places[1, thread], places[2, thread] = g, b, j
                    places[3, thread], places[4, thread] = q0 + o0, q1 + o1
                    places[5, thread] = q2
                    places[6, thread] = image * 2 * plane + (o0 * outer[2] + o1) * outer[3]
            cuda.syncthreads()
            for e in range(thread, _int64(1) << whole, THREADS):
                slot, within = e >> log_box, e & (points - 1)
                at = places[6, slot]
                x, y = zero, zero
                if at >= 0:
                    k2 = within & ((_int64(1) << l2) - 1)
                    # −k with n − k₂ in place of −k₂; with k₂ = 0 that is n, behind all others.
                    other = _opposite(within, bits)
                    other = at + (other if k2 != 0 else points + (other >> l2))
                    a_re, a_im = spectrum[at + within], spectrum[at + plane + within]
                    b_re, b_im = spectrum[other], spectrum[other + plane]
                    even_re, even_im = half * (a_re + b_re), half * (a_im - b_im)
                    turned_re, turned_im = half * (a_re - b_re), half * (a_im + b_im)
                    turn = k2 << (angles - l2 - 1)
                    c, s = table[turn], table[count + turn]
                    odd_re, odd_im = turned_re * c - turned_im * s, turned_im * c + turned_re * s
                    x, y = even_re - odd_im, even_im + odd_re
                re[e], im[e] = x, y
            cuda.syncthreads()
            start = transform(im, re, table, angles, bits, whole, thread)
            for e in range(thread, _int64(2) << whole, THREADS):
                pair = e >> 1
                slot, within = pair >> log_box, pair & (points - 1)
                if places[6, slot] < 0:
                    continue
                m0, m1 = within >> (l1 + l2), within >> l2 & ((_int64(1) << l1) - 1)
                m2 = (within & ((_int64(1) << l2) - 1)) * 2 + (e & 1)
                p0, p1, p2 = places[3, slot] + m0, places[4, slot] + m1, places[5, slot] + m2
                inside = p0 < end0 and p1 < end1 and p2 < end2
                inside = inside and m0 < used[0] and m1 < used[1] and m2 < used[2]
                q0, q1, q2 = p0, p1, p2
                if step0 * step1 * step2 > 1:
                    q0, q1, q2 = p0 // step0, p1 // step1, p2 // step2
                    inside = inside and q0 * step0 == p0 and q1 * step1 == p1 and q2 * step2 == p2
                if inside:
                    g, b, j = places[0, slot], places[1, slot], places[2, slot]
                    value = re[start + pair] if e & 1 == 0 else im[start + pair]
                    finish(
                        value * factor,
                        out,
                        place(out_at, g, b, j, q0, q1, q2),
                        bias,
                        bias_at[0] + (g * channels + j) * bias_at[1],
                        residual,
                        place(residual_at, g, b, j, q0, q1, q2),
                        flags,
                        alphas,
                    )
            cuda.syncthreads()
            first += _int64(cuda.gridDim.x) << log_boxes

    return conv_fft_outputs
