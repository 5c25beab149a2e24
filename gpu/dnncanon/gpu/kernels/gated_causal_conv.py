"""Gated causal convolution: one launch projects, multiplies, mixes and gates, whatever the filters' lengths.

A block makes a tile of steps of one sequence. For so many taps of the mixer at a time it keeps what they meet,
the product of two projections of a window of steps, in shared memory, and the taps beside it; each thread adds
up the taps of several steps of the tile, so that a tap is read once for all of them. Windows of a long mixer
overlap, and what they share is projected again: two short sums for each step of a window, beside 128 taps for
each step of the tile.

Backward is the same with time reversed: what is mixed is the gradient by y, of later steps. It leaves in the
workspace, in the type of sums, what the convolutions' own gradients are made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.causal_conv import weight_steps
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.reduction import Monoid, as_it_is
from dnncanon.gpu.kernels.rows import add
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.spec.causal_conv import GatedCausalConvProblem

THREADS = 128
EACH = 4
"""Steps of a thread."""
TILE = THREADS * EACH
TAPS = 128
"""Taps of the mixer at a time."""
_WINDOW = TILE + TAPS - 1

_int64, _uint64 = types.int64, types.uint64

Arrays = Sequence[DeviceArray]


def forward(p: GatedCausalConvProblem, inputs: Arrays, outputs: Arrays, stream: object) -> None:
    """y and gated of x, projection, mixer, and skip or mixer in its place."""
    x, *_ = inputs
    _launch(p, (*inputs, x, x), outputs, stream, backward=False)


def backward(p: GatedCausalConvProblem, inputs: Arrays, outputs: Arrays, stream: object) -> None:
    """s_0, s_1, s_2, g and v of x, projection, mixer, skip or mixer in its place, dgated and y.

    Outputs are of the type of sums.
    """
    _launch(p, inputs, outputs, stream, backward=True)


@device_function
def _product(one: Any, other: Any) -> Any:
    return one * other


PRODUCTS = Monoid(("sum",), (0,), _product, add, as_it_is)
"""Σ of products of two operands."""


def _launch(
    p: GatedCausalConvProblem, inputs: Arrays, outputs: Arrays, stream: object, *, backward: bool
) -> None:
    x, projection, mixer, skip, *gradients = inputs
    batch, channels, steps = p.shape
    near_first, near_step = weight_steps(p.projection, part(projection, 1, 0))
    far_first, far_step = weight_steps(p.mixer, mixer)
    layouts = (
        x.strides,
        (*projection.strides[:2], near_step),
        (mixer.strides[0], far_step),
        tuple(stride for array in gradients for stride in array.strides),
        tuple(stride for array in outputs for stride in array.strides),
    )
    origins = (
        origin(x),
        origin(projection) + near_first,
        origin(mixer) + far_first,
        origin(skip),
        *(origin(array) for array in gradients),
        *(origin(array) for array in outputs),
    )
    args = (
        tuple(array.argument for array in inputs),
        tuple(array.argument for array in outputs),
        (batch, channels, steps, p.projection.taps, p.mixer.taps),
        layouts,
        origins,
        skip.strides[0] if p.has_skip else -1,
    )
    grid = blocks_for(batch * channels * -(-steps // TILE), 1)
    launch(mixing(p.dtype, backward=backward), grid, THREADS, args, stream=stream)


def part(array: DeviceArray, dim: int, index: int) -> DeviceArray:
    """One entry along a dim, which the result does not have."""
    pointer = array.pointer + index * array.strides[dim] * array.dtype.itemsize
    shape, strides = (dims[:dim] + dims[dim + 1 :] for dims in (array.shape, array.strides))
    return replace(array, pointer=pointer, shape=shape, strides=strides)


# --- Kernels --------------------------------------------------------------------------------------


@cache
def _projected(dtype: str) -> Callable[..., Any]:
    """projected(x, at, step, w, first, weight_step, count): so many taps back from the element at ``at``."""
    to_sum, zero = ELEMENTS[dtype].to_sum, ELEMENTS[dtype].sum(0)

    @device_function
    def projected(
        x: Any, at: Any, step: Any, w: Any, first: Any, weight_step: Any, count: Any
    ) -> Any:
        total = zero
        for _ in range(count):
            total += to_sum(x[_uint64(at)]) * to_sum(w[_uint64(first)])
            at -= step
            first += weight_step
        return total

    return projected


@cache
def mixing(dtype: str, *, backward: bool) -> Kernel:
    """The kernel of one direction. Launch with THREADS threads; the grid may have any size."""
    element = ELEMENTS[dtype]
    number, to_sum, zero = element.sum, element.to_sum, element.sum(0)
    from_sum = (ELEMENTS[element.sum_dtype.name] if backward else element).from_sum
    projected = _projected(dtype)

    @kernel
    def gated_causal_conv(
        inputs: Any, outputs: Any, sizes: Any, layouts: Any, origins: Any, skip_stride: Any
    ) -> None:
        x, projection, mixer, skip, dgated, y = inputs
        batch, channels, steps, near, far = sizes
        x_by, projection_by, mixer_by, gradient_by, out_by = layouts
        window = cuda.shared.array(_WINDOW, number)
        weights = cuda.shared.array(TAPS, number)
        thread = _int64(cuda.threadIdx.x)
        tiles = (steps + TILE - 1) // TILE
        block = _int64(cuda.blockIdx.x)
        while block < batch * channels * tiles:
            # Backward, steps are counted from the last one.
            start, sequence = block % tiles * TILE, block // tiles
            n, d = sequence // channels, sequence % channels
            gate_x = origins[0] + n * x_by[0] + d * x_by[1]
            first_x, second_x = gate_x + x_by[2], gate_x + 2 * x_by[2]
            gate_w = origins[1] + d * projection_by[0]
            first_w, second_w = gate_w + projection_by[1], gate_w + 2 * projection_by[1]
            mixer_at = origins[2] + d * mixer_by[0]
            x_step, w_step = x_by[3], projection_by[2]
            dgated_at = origins[4] + n * gradient_by[0] + d * gradient_by[1]
            a0, a1, a2, a3 = zero, zero, zero, zero
            m0, m1, m2, m3 = zero, zero, zero, zero
            tap = _int64(0)
            while tap < min(far, min(steps, start + TILE)):
                count = min(_int64(TAPS), far - tap)
                for i in range(thread, count, THREADS):
                    weights[i] = to_sum(mixer[_uint64(mixer_at + (tap + i) * mixer_by[1])])
                for i in range(thread, TILE + count - 1, THREADS):
                    place = start - tap - (count - 1) + i
                    value = zero
                    if place >= 0 and place < steps:
                        if backward:
                            step = steps - 1 - place
                            taps = min(near, step + 1)
                            at = gate_x + step * x_step
                            gate = projected(x, at, x_step, projection, gate_w, w_step, taps)
                            value = gate * to_sum(
                                dgated[_uint64(dgated_at + step * gradient_by[2])]
                            )
                        else:
                            taps = min(near, place + 1)
                            at = first_x + place * x_step
                            one = projected(x, at, x_step, projection, first_w, w_step, taps)
                            at = second_x + place * x_step
                            other = projected(x, at, x_step, projection, second_w, w_step, taps)
                            value = one * other
                    window[i] = value
                cuda.syncthreads()
                # How many of these taps meet a step: fewer for the first of the thread's four than for others.
                reach = start + thread - tap + 1
                at = thread + count - 1
                if tap == 0:
                    # What is mixed at the thread's own steps, for the skip.
                    m0, m1 = window[at], window[at + THREADS]
                    m2, m3 = window[at + 2 * THREADS], window[at + 3 * THREADS]
                shared = max(_int64(0), min(count, reach))
                for k in range(shared):
                    weight = weights[k]
                    a0 += weight * window[at - k]
                    a1 += weight * window[at - k + THREADS]
                    a2 += weight * window[at - k + 2 * THREADS]
                    a3 += weight * window[at - k + 3 * THREADS]
                for k in range(shared, min(count, reach + 3 * THREADS)):
                    weight = weights[k]
                    if k < reach + THREADS:
                        a1 += weight * window[at - k + THREADS]
                    if k < reach + 2 * THREADS:
                        a2 += weight * window[at - k + 2 * THREADS]
                    a3 += weight * window[at - k + 3 * THREADS]
                cuda.syncthreads()
                tap += TAPS
            for k in range(EACH):
                mixed = a0 if k == 0 else a1 if k == 1 else a2 if k == 2 else a3
                direct = m0 if k == 0 else m1 if k == 1 else m2 if k == 2 else m3
                place = start + thread + k * THREADS
                if place < steps:
                    step = steps - 1 - place if backward else place
                    taps = min(near, step + 1)
                    at = step * x_step
                    if skip_stride >= 0:
                        mixed += to_sum(skip[_uint64(origins[3] + d * skip_stride)]) * direct
                    if backward:
                        one = projected(x, first_x + at, x_step, projection, first_w, w_step, taps)
                        at += second_x
                        other = projected(x, at, x_step, projection, second_w, w_step, taps)
                        slope = to_sum(dgated[_uint64(dgated_at + step * gradient_by[2])])
                        at = origins[5] + n * gradient_by[3] + d * gradient_by[4]
                        slope *= to_sum(y[_uint64(at + step * gradient_by[5])])
                        results: Any = (slope, mixed * other, mixed * one, direct, one * other)
                    else:
                        gate = projected(x, gate_x + at, x_step, projection, gate_w, w_step, taps)
                        results = (mixed, gate * mixed)
                    for r in range(len(results)):
                        at = origins[6 + r] + n * out_by[3 * r] + d * out_by[3 * r + 1]
                        at += step * out_by[3 * r + 2]
                        outputs[r][_uint64(at)] = from_sum(results[r])
            block += _int64(cuda.gridDim.x)

    return gated_causal_conv
