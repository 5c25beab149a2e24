"""Causal convolution by Fourier transforms: frames of a sequence times parts of a filter, summed as spectra.

Sequences are cut into segments of n steps, filters into parts of n taps. Segment i of the result is the later
half of a circular convolution of N = 2n points (overlap and save),

    y_i = later half of IFFT(Σ_p FFT(x_{i−p−1}, x_{i−p})·FFT(h_p, 0)),

with n no shorter than the filter if one block can hold that, so that there is one p. The spectra of filters are
made first and lie in the workspace; those of frames never leave the block, and are made once more for each p:
that costs transforms for filters longer than 2048 taps, and saves several times the memory of x.

The gradient by x is the same with time reversed. That by the filter sums over segments instead of parts,

    dh_p = first half of IFFT(Σ_i FFT(0, g_i)·conj FFT(x_{i−p−1}, x_{i−p})),

all sequences of a channel one after the other, in one block: the same bits every time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.activation import functions
from dnncanon.gpu.kernels.causal_conv import weight_steps
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.fft import (
    SIZES,
    end_of,
    fill_table,
    real,
    table_size,
    threads_of,
    transform,
)
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.causal_conv import CausalConvProblem

_int64, _uint64 = types.int64, types.uint64

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Frames:
    """How a problem is cut: ``points`` n, the segments of a sequence and the parts of a filter."""

    points: int
    segments: int
    parts: int
    sums: str
    channels: int

    @classmethod
    def of(cls, p: CausalConvProblem) -> "Frames":
        _, channels, steps = p.shape
        sums = ELEMENTS[p.dtype].sum_dtype.name
        points = next((n for n in SIZES[sums] if n >= p.terms), SIZES[sums][-1])
        return cls(points, -(-steps // points), -(-p.terms // points), sums, channels)

    @property
    def table(self) -> tuple[Shape, str]:
        """Shape and type of the factors' table; those of what else there is in the workspace follow."""
        return (table_size(self.points),), self.sums

    @property
    def filters(self) -> tuple[Shape, str]:
        return (self.channels, self.parts, 2 * self.points), self.sums

    def gradients(self, batch: int) -> tuple[Shape, str]:
        return (batch * self.channels, self.segments, 2 * self.points), self.sums


def filter_spectra(
    p: CausalConvProblem, w: DeviceArray, table: DeviceArray, out: DeviceArray, stream: object
) -> None:
    """Those of the parts, each in the first half of its frame; and the table, which comes before them."""
    frames = Frames.of(p)
    fill_table(table, frames.points, stream)
    first, step = weight_steps(p, w)
    rows = (1, p.shape[1], p.terms, 0, w.strides[0], step, origin(w) + first)
    _launch_spectra(p, w, rows, table, out, stream, later=False)


def gradient_spectra(
    p: CausalConvProblem, g: DeviceArray, table: DeviceArray, out: DeviceArray, stream: object
) -> None:
    """Those of the segments of g, each in the second half of its frame."""
    rows = (*p.shape, *g.strides, origin(g))
    _launch_spectra(p, g, rows, table, out, stream, later=True)


def _launch_spectra(
    p: CausalConvProblem,
    source: DeviceArray,
    rows: tuple[int, ...],
    table: DeviceArray,
    out: DeviceArray,
    stream: object,
    *,
    later: bool,
) -> None:
    frames = Frames.of(p)
    chosen = spectra(source.dtype.name, frames.sums, frames.points, later=later)
    args = (source.argument, out.argument, table.argument, rows)
    grid = blocks_for(out.shape[0] * out.shape[1], 1)
    launch(chosen, grid, threads_of(frames.points), args, stream=stream)


def convolve(
    p: CausalConvProblem,
    result: str,
    source: DeviceArray,
    filters: DeviceArray,
    table: DeviceArray,
    others: tuple[DeviceArray, DeviceArray],
    out: DeviceArray,
    stream: object,
) -> None:
    """ "forward": y of x, and "slope": g of x, with ``others`` bias and dy; "input_gradient": dx of g."""
    frames = Frames.of(p)
    bias, dy = others
    back = result == "input_gradient"
    last = p.shape[2] - 1 if back else 0
    turned = [
        (*array.strides[:2], -array.strides[2] if back else array.strides[2])
        for array in (source, out)
    ]
    args = (
        (source.argument, filters.argument, table.argument, bias.argument, dy.argument),
        out.argument,
        (*p.shape, frames.parts),
        (*turned, dy.strides, bias.strides[0]),
        (
            origin(source) + last * source.strides[2],
            origin(out) + last * out.strides[2],
            origin(dy),
            origin(bias),
        ),
        (int(p.has_bias), int(p.activation == "silu")),
    )
    names = source.dtype.name, p.dtype, out.dtype.name
    chosen = convolution(*names, frames.points, result)
    grid = blocks_for(p.shape[0] * p.shape[1] * frames.segments, 1)
    launch(chosen, grid, threads_of(frames.points), args, stream=stream)


def correlate(
    p: CausalConvProblem,
    x: DeviceArray,
    gradients: DeviceArray,
    table: DeviceArray,
    dw: DeviceArray,
    stream: object,
) -> None:
    """dw of x and the spectra of g."""
    frames = Frames.of(p)
    first, step = weight_steps(p, dw)
    args = (
        (x.argument, gradients.argument, table.argument),
        dw.argument,
        (*p.shape, p.taps),
        (*x.strides, origin(x)),
        (dw.strides[0], step, origin(dw) + first),
    )
    chosen = correlation(x.dtype.name, dw.dtype.name, frames.points)
    grid = blocks_for(p.shape[1] * -(-p.taps // frames.points), 1)
    launch(chosen, grid, threads_of(frames.points), args, stream=stream)


# --- Kernels --------------------------------------------------------------------------------------


@cache
def _frame(dtype: str, points: int) -> Callable[..., Any]:
    """frame(re, im, source, base, step, first, steps, thread): load the steps from ``first`` on, 0 outside."""
    to_sum, zero = ELEMENTS[dtype].to_sum, ELEMENTS[dtype].sum(0)
    threads = threads_of(points)

    @device_function
    def frame(
        re: Any, im: Any, source: Any, base: Any, step: Any, first: Any, steps: Any, thread: Any
    ) -> None:
        for m in range(thread, points, threads):
            even, odd = first + 2 * m, first + 2 * m + 1
            x, y = zero, zero
            if even >= 0 and even < steps:
                x = to_sum(source[_uint64(base + even * step)])
            if odd >= 0 and odd < steps:
                y = to_sum(source[_uint64(base + odd * step)])
            re[m], im[m] = x, y

    return frame


@cache
def spectra(dtype: str, sums: str, points: int, *, later: bool) -> Kernel:
    """The kernel of spectra of segments, in the ``later`` half of a frame or the first."""
    number, zero, to_sum = ELEMENTS[sums].sum, ELEMENTS[sums].sum(0), ELEMENTS[dtype].to_sum
    threads, fft, keep = threads_of(points), transform(points), real(points, sums).keep
    twice, half, start = 2 * points, points // 2, points // 2 if later else 0

    @kernel
    def causal_conv_fft_spectra(source: Any, out: Any, table: Any, rows: Any) -> None:
        batch, channels, steps, by_sample, by_channel, step, base = rows
        re = cuda.shared.array(twice, number)
        im = cuda.shared.array(twice, number)
        thread = _int64(cuda.threadIdx.x)
        segments = (steps + points - 1) // points
        block = _int64(cuda.blockIdx.x)
        while block < batch * channels * segments:
            row, segment = block // segments, block % segments
            at = base + row // channels * by_sample + row % channels * by_channel
            for m in range(thread, points, threads):
                place = segment * points + 2 * (m - start)
                x, y = zero, zero
                if m >= start and m < start + half:
                    if place < steps:
                        x = to_sum(source[_uint64(at + place * step)])
                    if place + 1 < steps:
                        y = to_sum(source[_uint64(at + (place + 1) * step)])
                re[m], im[m] = x, y
            cuda.syncthreads()
            fft(re, im, table, thread)
            keep(re, im, out, block * twice, table, thread)
            cuda.syncthreads()
            block += _int64(cuda.gridDim.x)

    return causal_conv_fft_spectra


@cache
def _finish(dtype: str, result: str) -> Callable[..., Any]:
    """finish(sum, dy, silu): the result's element."""
    one, of = ELEMENTS[dtype].sum(1), functions(dtype)
    swish, swish_backward = of.forward["swish"], of.backward["swish"]

    @device_function
    def activated(total: Any, dy: Any, silu: Any) -> Any:
        return swish(total, one) if silu else total

    @device_function
    def gradient(total: Any, dy: Any, silu: Any) -> Any:
        return swish_backward(dy, total, one)

    @device_function
    def as_it_is(total: Any, dy: Any, silu: Any) -> Any:
        return total

    return {"forward": activated, "slope": gradient, "input_gradient": as_it_is}[result]


@cache
def convolution(source_dtype: str, dtype: str, out_dtype: str, points: int, result: str) -> Kernel:
    """The kernel of a result's segments, one for a block."""
    number, zero = ELEMENTS[dtype].sum, ELEMENTS[dtype].sum(0)
    to_sum, from_sum = ELEMENTS[dtype].to_sum, ELEMENTS[out_dtype].from_sum
    sums = ELEMENTS[dtype].sum_dtype.name
    frame, fft, spectrum = _frame(source_dtype, points), transform(points), real(points, sums)
    multiply, prepare, finish = spectrum.multiply, spectrum.prepare, _finish(dtype, result)
    threads, twice, start, half = threads_of(points), 2 * points, end_of(points), points // 2
    takes_bias, has_dy = result != "input_gradient", result == "slope"
    scale = number(1.0 / points)

    @kernel
    def causal_conv_fft(
        inputs: Any, out: Any, sizes: Any, strides: Any, origins: Any, flags: Any
    ) -> None:
        source, filters, table, bias, dy = inputs
        batch, channels, steps, parts = sizes
        source_by, out_by, dy_by, bias_by = strides
        has_bias, silu = flags
        re = cuda.shared.array(twice, number)
        im = cuda.shared.array(twice, number)
        sums_re = cuda.shared.array(points, number)
        sums_im = cuda.shared.array(points, number)
        thread = _int64(cuda.threadIdx.x)
        segments = (steps + points - 1) // points
        block = _int64(cuda.blockIdx.x)
        while block < batch * channels * segments:
            row, segment = block // segments, block % segments
            n, d = row // channels, row % channels
            base = origins[0] + n * source_by[0] + d * source_by[1]
            for k in range(thread, points, threads):
                sums_re[k], sums_im[k] = zero, zero
            for part in range(min(parts, segment + 1)):
                first = (segment - part - 1) * points
                frame(re, im, source, base, source_by[2], first, steps, thread)
                cuda.syncthreads()
                fft(re, im, table, thread)
                at = (d * parts + part) * twice
                multiply(re, im, filters, at, sums_re, sums_im, table, thread)
                cuda.syncthreads()
            prepare(sums_re, sums_im, re, im, table, thread)
            cuda.syncthreads()
            fft(im, re, table, thread)
            shift = zero
            if takes_bias and has_bias != 0:
                shift = to_sum(bias[_uint64(origins[3] + d * bias_by)])
            to = origins[1] + n * out_by[0] + d * out_by[1]
            dy_at = origins[2] + n * dy_by[0] + d * dy_by[1]
            for r in range(thread, points, threads):
                step = segment * points + r
                if step < steps:
                    at = start + half + r // 2
                    total = (re[at] if r % 2 == 0 else im[at]) * scale + shift
                    slope = to_sum(dy[_uint64(dy_at + step * dy_by[2])]) if has_dy else zero
                    out[_uint64(to + step * out_by[2])] = from_sum(finish(total, slope, silu != 0))
            cuda.syncthreads()
            block += _int64(cuda.gridDim.x)

    return causal_conv_fft


@cache
def correlation(dtype: str, out_dtype: str, points: int) -> Kernel:
    """The kernel of the weights' gradient: a part of one channel's filter for a block."""
    number, zero = ELEMENTS[dtype].sum, ELEMENTS[dtype].sum(0)
    from_sum, sums = ELEMENTS[out_dtype].from_sum, ELEMENTS[dtype].sum_dtype.name
    frame, fft, spectrum = _frame(dtype, points), transform(points), real(points, sums)
    multiply, prepare = spectrum.correlate, spectrum.prepare
    threads, twice, start = threads_of(points), 2 * points, end_of(points)
    scale = number(1.0 / points)

    @kernel
    def causal_conv_fft_weights(inputs: Any, dw: Any, sizes: Any, x_by: Any, dw_by: Any) -> None:
        x, gradients, table = inputs
        batch, channels, steps, taps = sizes
        re = cuda.shared.array(twice, number)
        im = cuda.shared.array(twice, number)
        sums_re = cuda.shared.array(points, number)
        sums_im = cuda.shared.array(points, number)
        thread = _int64(cuda.threadIdx.x)
        segments = (steps + points - 1) // points
        parts = (taps + points - 1) // points
        block = _int64(cuda.blockIdx.x)
        while block < channels * parts:
            d, part = block // parts, block % parts
            for k in range(thread, points, threads):
                sums_re[k], sums_im[k] = zero, zero
            cuda.syncthreads()
            for n in range(batch):
                base = x_by[3] + n * x_by[0] + d * x_by[1]
                for segment in range(part, segments):
                    first = (segment - part - 1) * points
                    frame(re, im, x, base, x_by[2], first, steps, thread)
                    cuda.syncthreads()
                    fft(re, im, table, thread)
                    at = ((n * channels + d) * segments + segment) * twice
                    multiply(re, im, gradients, at, sums_re, sums_im, table, thread)
                    cuda.syncthreads()
            prepare(sums_re, sums_im, re, im, table, thread)
            cuda.syncthreads()
            fft(im, re, table, thread)
            for r in range(thread, points, threads):
                tap = part * points + r
                if tap < taps:
                    at = start + r // 2
                    total = (re[at] if r % 2 == 0 else im[at]) * scale
                    if tap >= steps:
                        total = zero
                    to = dw_by[2] + d * dw_by[0] + tap * dw_by[1]
                    dw[_uint64(to)] = from_sum(total)
            cuda.syncthreads()
            block += _int64(cuda.gridDim.x)

    return causal_conv_fft_weights
