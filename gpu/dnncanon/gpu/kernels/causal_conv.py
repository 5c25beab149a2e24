"""Causal convolution: a thread adds up the taps of one step, a block the products of one weight's gradient.

Threads go along the dim of the output that is adjacent in memory, steps or channels, so that a warp reads
neighbours, and all but the first reading of an element hits a cache. Backward, with an activation, the gradient
g by its argument comes first and lies in the workspace, in the type of sums.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.activation import functions
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rows import THREADS, team_sum
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places
from dnncanon.spec.causal_conv import CausalConvProblem

TAPS_THREADS = 128

_int64, _uint64 = types.int64, types.uint64
_CHANNEL = (0, 1, 0)


def forward(
    p: CausalConvProblem, arrays: Sequence[DeviceArray], out: DeviceArray, stream: object
) -> None:
    """y of x, w and bias, or w in its place."""
    _launch_taps(p, "forward", arrays, out, stream)


def slope(
    p: CausalConvProblem, arrays: Sequence[DeviceArray], out: DeviceArray, stream: object
) -> None:
    """g of x, w, bias, or w in its place, and dy."""
    _launch_taps(p, "slope", arrays, out, stream)


def input_gradient(
    p: CausalConvProblem, arrays: Sequence[DeviceArray], out: DeviceArray, stream: object
) -> None:
    """dx of g and w."""
    g, w = arrays
    _launch_taps(p, "input_gradient", (g, w, w), out, stream)


def _launch_taps(
    p: CausalConvProblem,
    result: str,
    arrays: Sequence[DeviceArray],
    out: DeviceArray,
    stream: object,
) -> None:
    """Taps of ``arrays[0]`` by weights ``arrays[1]``; the others are what ``result`` takes."""
    source, w, bias, *rest = arrays
    dy = rest[0] if rest else source
    back = result == "input_gradient"
    batch, channels, steps = p.shape
    # How many steps there are on the side where the taps lie, the present one included.
    room, room_at = ((0, 0, -1), steps) if back else ((0, 0, 1), 1)
    by_channel = [tuple(a.strides[0] * one for one in _CHANNEL) for a in (w, bias)]
    strides = [source.strides, *by_channel, dy.strides, room, out.strides]
    origins = [origin(source), origin(w), origin(bias), origin(dy), room_at, origin(out)]
    order = sorted(range(3), key=lambda d: (p.shape[d] > 1, -out.strides[d]))
    args = (
        (source.argument, w.argument, bias.argument, dy.argument),
        out,
        tuple(p.shape[d] for d in order),
        tuple(by[d] for by in strides for d in order),
        tuple(origins),
        (p.taps, source.strides[2] if back else -source.strides[2], *weight_steps(p, w)),
        (int(p.has_bias), int(p.activation == "silu")),
    )
    chosen = taps(source.dtype.name, p.dtype, out.dtype.name, result)
    grid = blocks_for(batch * channels * steps, TAPS_THREADS)
    launch(chosen, grid, TAPS_THREADS, args, stream=stream)


def weight_steps(p: CausalConvProblem, w: DeviceArray) -> tuple[int, int]:
    """From a channel's first weight to the one of the present step, and on to that of the step before."""
    if p.flips:
        return (p.taps - 1) * w.strides[1], -w.strides[1]
    return 0, w.strides[1]


def weight_gradient(
    p: CausalConvProblem, g: DeviceArray, x: DeviceArray, dw: DeviceArray, stream: object
) -> None:
    """dw of g and x: a block adds up the products of one weight."""
    batch, channels, steps = p.shape
    first, step = weight_steps(p, dw)
    args = (
        (g.argument, x.argument),
        dw,
        (batch, channels, steps, p.taps),
        (*g.strides, *x.strides),
        (origin(g), origin(x), origin(dw) + first),
        (dw.strides[0], step),
    )
    chosen = products(g.dtype.name, p.dtype)
    launch(chosen, blocks_for(channels * p.taps, 1), THREADS, args, stream=stream)


# --- Kernels --------------------------------------------------------------------------------------


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

    table = {"forward": activated, "slope": gradient, "input_gradient": as_it_is}
    return table[result]


@cache
def taps(source_dtype: str, dtype: str, out_dtype: str, result: str) -> Kernel:
    """The kernel of a result. Launch with TAPS_THREADS threads; the grid may have any size."""
    to_number, to_sum = ELEMENTS[source_dtype].to_sum, ELEMENTS[dtype].to_sum
    zero, from_sum = ELEMENTS[dtype].sum(0), ELEMENTS[out_dtype].from_sum
    finish, has_dy = _finish(dtype, result), result == "slope"
    takes_bias, threads = result != "input_gradient", TAPS_THREADS

    @kernel
    def causal_conv_taps(
        inputs: Any,
        out: Any,
        extents: Any,
        strides: Any,
        origins: Any,
        filter: Any,
        flags: Any,
    ) -> None:
        source, w, bias, dy = inputs
        count, source_step, first, weight_step = filter
        has_bias, silu = flags
        size = extents[0] * extents[1] * extents[2]
        index = _int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        while index < size:
            at = places(digits_of(index, extents), strides, origins)
            source_at, weight_at = at[0], at[1] + first
            total = zero
            for _ in range(min(count, at[4])):
                weight = to_sum(w[_uint64(weight_at)])
                total += to_number(source[_uint64(source_at)]) * weight
                source_at += source_step
                weight_at += weight_step
            if takes_bias and has_bias != 0:
                total += to_sum(bias[_uint64(at[2])])
            gradient = to_sum(dy[_uint64(at[3])]) if has_dy else zero
            out[_uint64(at[5])] = from_sum(finish(total, gradient, silu != 0))
            index += _int64(cuda.gridDim.x) * threads

    return causal_conv_taps


@cache
def products(g_dtype: str, dtype: str) -> Kernel:
    """The kernel of the weights' gradient. Launch with THREADS threads; the grid may have any size."""
    to_number, to_sum = ELEMENTS[g_dtype].to_sum, ELEMENTS[dtype].to_sum
    number, from_sum = ELEMENTS[dtype].sum, ELEMENTS[dtype].from_sum
    zero, add_up, threads = number(0), team_sum(number), THREADS

    @kernel
    def causal_conv_products(
        inputs: Any, dw: Any, sizes: Any, strides: Any, origins: Any, steps_of_dw: Any
    ) -> None:
        g, x = inputs
        batch, channels, steps, taps = sizes
        g_batch, g_channel, g_step, x_batch, x_channel, x_step = strides
        g_origin, x_origin, dw_origin = origins
        per_channel, per_tap = steps_of_dw
        thread = _int64(cuda.threadIdx.x)
        block = _int64(cuda.blockIdx.x)
        while block < channels * taps:
            channel, distance = block // taps, block % taps
            pairs = max(_int64(0), steps - distance)
            g_base = g_origin + channel * g_channel + distance * g_step
            x_base = x_origin + channel * x_channel
            total = zero
            index = thread
            while index < batch * pairs:
                n, step = index // pairs, index % pairs
                gradient = to_number(g[_uint64(g_base + n * g_batch + step * g_step)])
                total += gradient * to_sum(x[_uint64(x_base + n * x_batch + step * x_step)])
                index += threads
            total = add_up(total, _int64(threads), _int64(1))
            if thread == 0:
                dw[_uint64(dw_origin + channel * per_channel + distance * per_tap)] = from_sum(
                    total
                )
            block += _int64(cuda.gridDim.x)

    return causal_conv_products
