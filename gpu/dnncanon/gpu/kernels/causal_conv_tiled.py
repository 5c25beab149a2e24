"""All gradients of a causal convolution with few taps, of one reading of dy and x.

A block takes tiles of a channel, or of several where these are adjacent in memory, with as many steps more
as taps reach over. Of x it computes g, the gradient by the activation's argument, in shared memory, and of g
dx. Of the gradients of weights and bias it leaves sums over its tiles, which a reduction adds up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from dnncanon.gpu.kernels.activation import functions
from dnncanon.gpu.kernels.causal_conv import weight_steps
from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rows import THREADS, team_sum
from dnncanon.gpu.runtime import DeviceArray, Kernel, Strided, kernel, launch, origin
from dnncanon.gpu.runtime.device_code import cuda, types
from dnncanon.spec.causal_conv_problem import CausalConvProblem

_int64, _uint64 = types.int64, types.uint64

MOST_TAPS = 16
"""With more, what a tile has in common with the next one would not be little."""

TILE = 2048
"""Elements of a tile; of several channels, where these are adjacent in memory."""

CHANNELS = 32
"""Of such a tile."""

BLOCKS = 512
"""Blocks that fill a GPU several times over; further tiles are taken one after the other."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of ``channels`` and ``steps``; ``parts`` blocks share those of the same channels."""

    channels: int
    groups: int
    steps: int
    across: int
    parts: int

    @classmethod
    def of(cls, p: CausalConvProblem, x: Strided) -> "Tiles":
        batch, channels, steps = p.shape
        along_steps = channels == 1 or (steps > 1 and x.strides[2] <= x.strides[1])
        wide = 1 if along_steps else CHANNELS
        groups = max(1, -(-channels // wide))
        across = -(-steps // (TILE // wide))
        return cls(
            wide, groups, TILE // wide, across, max(1, min(batch * across, BLOCKS // groups))
        )

    def numbers(self, taps: int) -> tuple[int, ...]:
        """Where x, g, weights and sums begin in shared memory, and the end, in numbers."""
        reach = taps - 1
        sizes = (
            (self.steps + 2 * reach) * self.channels,
            (self.steps + reach) * self.channels,
            taps * self.channels,
            (taps + 1) * THREADS,
        )
        return tuple(accumulate(sizes, initial=0))


def gradients(
    p: CausalConvProblem,
    arrays: Sequence[DeviceArray],
    out: Sequence[DeviceArray],
    stream: object,
) -> None:
    """dx, and parts of dw and dbias, of dy, x, w and bias, or w in its place; of ``MOST_TAPS`` taps at most.

    The parts are dense, in the type of sums: a first dim of ``Tiles.parts``, channels, and for dw taps.
    """
    dy, x, w, bias = arrays
    dx = out[0]
    tiles = Tiles.of(p, x)
    *room, end = tiles.numbers(p.taps)
    first, step = weight_steps(p, w)
    sizes = (*p.shape, p.taps)
    walk = (tiles.channels, tiles.steps, tiles.across, tiles.parts)
    strides = tuple((origin(a), *a.strides) for a in (dy, x, dx))
    weights = (origin(w) + first, w.strides[0], step, origin(bias), bias.strides[0])
    flags = int(p.has_bias), int(p.activation == "silu"), int(p.flips)
    inputs, outputs = (tuple(a.argument for a in group) for group in (arrays, out))
    args = (inputs, outputs, sizes, walk, strides, weights, flags, tuple(room))
    nbytes = end * ELEMENTS[p.dtype].sum_dtype.itemsize
    grid = tiles.groups * tiles.parts
    launch(all_gradients(p.dtype), grid, THREADS, args, shared_bytes=nbytes, stream=stream)


@cache
def all_gradients(dtype: str) -> Kernel:
    """The kernel of ``gradients``. Launch with THREADS threads, and a block for each part of some channels."""
    element = ELEMENTS[dtype]
    to_sum, from_sum, number = element.to_sum, element.from_sum, element.sum
    zero, one, threads = number(0), number(1), THREADS
    slope, add_up = functions(dtype).backward["swish"], team_sum(number)

    @kernel
    def causal_conv_gradients(
        inputs: Any,
        outputs: Any,
        sizes: Any,
        walk: Any,
        strides: Any,
        weights: Any,
        flags: Any,
        room: Any,
    ) -> None:
        dy, x, w, bias = inputs
        dx, dw, dbias = outputs
        batch, channels, steps, taps = sizes
        wide, long, across, parts = walk
        dy_at, x_at, dx_at = strides
        w_origin, w_channel, w_step, bias_origin, bias_channel = weights
        has_bias, silu, flips = flags
        of_x, of_g, of_w, of_sums = room
        memory = cuda.shared.array(0, number)
        thread = _int64(cuda.threadIdx.x)
        part = _int64(cuda.blockIdx.x) % parts
        lane, member, rows = thread % wide, thread // wide, threads // wide
        channel = _int64(cuda.blockIdx.x) // parts * wide + lane
        there, reach = channel < channels, taps - 1
        summand = zero
        for k in range(member, taps, rows):
            weight = zero
            if there:
                weight = to_sum(w[_uint64(w_origin + channel * w_channel + k * w_step)])
            memory[of_w + k * wide + lane] = weight
        if there and has_bias != 0:
            summand = to_sum(bias[_uint64(bias_origin + channel * bias_channel)])
        for k in range(taps + 1):
            memory[of_sums + k * threads + thread] = zero
        tile = part
        while tile < batch * across:
            n, begin = tile // across, tile % across * long
            x_base = x_at[0] + n * x_at[1] + channel * x_at[2]
            dy_base = dy_at[0] + n * dy_at[1] + channel * dy_at[2]
            dx_base = dx_at[0] + n * dx_at[1] + channel * dx_at[2]
            end = min(long, steps - begin)
            # x from before the first tap of the first step, to the last step that has a tap in the tile.
            for i in range(member, end + 2 * reach, rows):
                step = begin + i - reach
                value = zero
                if there and step >= 0 and step < steps:
                    value = to_sum(x[_uint64(x_base + step * x_at[3])])
                memory[of_x + i * wide + lane] = value
            cuda.syncthreads()
            for i in range(member, end + reach, rows):
                step = begin + i
                g = zero
                if there and step < steps:
                    g = to_sum(dy[_uint64(dy_base + step * dy_at[3])])
                    if silu != 0:
                        total = zero
                        # No taps before the first step: the zeros there would make NaN of Inf.
                        for k in range(min(taps, step + 1)):
                            tap = memory[of_x + (i + reach - k) * wide + lane]
                            total += tap * memory[of_w + k * wide + lane]
                        g = number(slope(g, total + summand, one))
                memory[of_g + i * wide + lane] = g
            cuda.syncthreads()
            for i in range(member, end, rows):
                total = zero
                for k in range(min(taps, steps - begin - i)):
                    total += memory[of_g + (i + k) * wide + lane] * memory[of_w + k * wide + lane]
                if there:
                    dx[_uint64(dx_base + (begin + i) * dx_at[3])] = from_sum(total)
            for k in range(taps):
                total = zero
                for i in range(member, end, rows):
                    if begin + i >= k:
                        tap = memory[of_x + (i + reach - k) * wide + lane]
                        total += memory[of_g + i * wide + lane] * tap
                memory[of_sums + k * threads + thread] += total
            total = zero
            for i in range(member, end, rows):
                total += memory[of_g + i * wide + lane]
            memory[of_sums + taps * threads + thread] += total
            cuda.syncthreads()
            tile += parts
        for k in range(taps + 1):
            total = add_up(memory[of_sums + k * threads + thread], rows, wide)
            if there and member == 0:
                at = part * channels + channel
                if k == taps:
                    if has_bias != 0:
                        dbias[_uint64(at)] = total
                else:
                    dw[_uint64(at * taps + (taps - 1 - k if flips != 0 else k))] = total

    return causal_conv_gradients
