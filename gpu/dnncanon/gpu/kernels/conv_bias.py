"""Gradient of a bias: the sum of each channel, by one block for each channel and stretch.

A block's threads stride over its stretch, then add up their sums in a tree of fixed shape, so that
the result is the same in every run. Long sums with few channels are split; a second pass of the same
kernel adds the parts, in order, from the workspace.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.plan import BiasPlan
from dnncanon.gpu.runtime import (
    DeviceArray,
    Kernel,
    blocks_for,
    kernel,
    launch,
    origin,
    reinterpret,
)
from dnncanon.gpu.runtime.device_code import cuda, types

THREADS = 128

SECTOR = 32
"""Bytes that memory moves at least. Stretches are as many elements, or multiples: none shares a sector."""

_int64, _uint64 = types.int64, types.uint64


class Reduction:
    """The algorithm "block_reduction"."""

    name = "block_reduction"
    deterministic = True
    numerics = None

    def refusal(self, plan: BiasPlan) -> str | None:
        return None

    def pays(self, plan: BiasPlan) -> bool:
        return True

    def workspace_bytes(self, plan: BiasPlan) -> int:
        partial = plan.channels * ELEMENTS[plan.dtype].sum_dtype.itemsize
        return plan.splits * partial if plan.splits > 1 else 0

    def run(
        self,
        plan: BiasPlan,
        tensors: tuple[DeviceArray, DeviceArray],
        workspace: DeviceArray | None,
        stream: object,
    ) -> None:
        dy, db = tensors
        channel_stride = db.strides[0]
        if workspace is None:
            _launch(plan, dy, plan.dtype, db, 1, (origin(db), 0, channel_stride), stream)
            return
        sum_dtype = ELEMENTS[plan.dtype].sum_dtype
        partial, parts = sum_dtype.name, reinterpret(workspace, sum_dtype)
        _launch(plan, dy, partial, parts, plan.splits, (0, plan.channels, 1), stream)
        second = BiasPlan(
            partial, plan.channels, (1, 1, 1, plan.splits), 0, 1, (0, 0, 0, plan.channels)
        )
        _launch(second, parts, plan.dtype, db, 1, (origin(db), 0, channel_stride), stream)


def _launch(
    plan: BiasPlan,
    source: DeviceArray,
    out_dtype: str,
    out: DeviceArray,
    splits: int,
    out_at: tuple[int, int, int],
    stream: object,
) -> None:
    stretch = max(1, -(-plan.length // (splits * SECTOR)) * SECTOR)
    rows = THREADS // plan.columns
    source_at = (plan.origin, plan.channel_stride, *plan.strides)
    args = (
        source,
        out,
        (plan.channels, splits, stretch, plan.columns),
        plan.extents,
        _digits(rows, plan.extents),
        source_at,
        out_at,
    )
    grid = blocks_for(-(-plan.channels // plan.columns) * splits, 1)
    launch(sum_channels(plan.dtype, out_dtype), grid, THREADS, args, stream=stream)


def _digits(number: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    """``number`` in the mixed radix of ``extents``, the first digit without a limit."""
    digits = []
    for extent in reversed(extents[1:]):
        number, digit = divmod(number, max(1, extent))
        digits.append(digit)
    return (number, *reversed(digits))


@cache
def sum_channels(dtype: str, out_dtype: str) -> Kernel:
    """The kernel from one element type to another. Launch with THREADS threads."""
    element, target = ELEMENTS[dtype], ELEMENTS[out_dtype]
    number, zero, to_sum, from_sum = element.sum, element.sum(0), element.to_sum, target.from_sum
    threads = THREADS

    @kernel
    def conv_bias_sum(
        source: Any,
        out: Any,
        sizes: Any,
        extents: Any,
        step: Any,
        source_at: Any,
        out_at: Any,
    ) -> None:
        channels, splits, stretch, columns = sizes
        e0, e1, e2, e3 = extents
        step0, step1, step2, step3 = step
        offset, channel_stride, s0, s1, s2, s3 = source_at
        out_offset, split_stride, out_stride = out_at
        sums = cuda.shared.array(threads, number)
        thread = _int64(cuda.threadIdx.x)
        column = thread % columns
        row = thread // columns
        length = e0 * e1 * e2 * e3
        tiles = (channels + columns - 1) // columns * splits
        tile = _int64(cuda.blockIdx.x)
        while tile < tiles:
            split = tile % splits
            channel = tile // splits * columns + column
            index = split * stretch + row
            end = min(length, (split + 1) * stretch)
            total = zero
            if channel < channels and index < end:
                rest = index // e3
                i3 = index - rest * e3
                i2 = rest % e2
                rest = rest // e2
                i1 = rest % e1
                i0 = rest // e1
                base = offset + channel * channel_stride
                while index < end:
                    at = base + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3
                    total += to_sum(source[_uint64(at)])
                    # The next position, digit by digit: cheaper than three divisions.
                    index += threads // columns
                    i3 += step3
                    i2 += step2
                    i1 += step1
                    i0 += step0
                    if i3 >= e3:
                        i3 -= e3
                        i2 += 1
                    if i2 >= e2:
                        i2 -= e2
                        i1 += 1
                    if i1 >= e1:
                        i1 -= e1
                        i0 += 1
            sums[thread] = total
            cuda.syncthreads()
            half = threads // 2
            while half >= columns:
                if thread < half:
                    sums[thread] += sums[thread + half]
                cuda.syncthreads()
                half //= 2
            if thread < columns and channel < channels:
                at = out_offset + split * split_stride + channel * out_stride
                out[_uint64(at)] = from_sum(sums[thread])
            cuda.syncthreads()
            tile += cuda.gridDim.x

    return conv_bias_sum
