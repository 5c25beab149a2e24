"""Direct convolution: one thread sums one output element. It takes every legal case.

See ``correlation`` for the operation, its names, and how it serves forward, backward data and
backward filter.
"""

from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.epilogue import make_epilogue
from dnncanon.gpu.kernels.indexing import output_position, place
from dnncanon.gpu.kernels.plan import Plan, Tensors
from dnncanon.gpu.runtime import DeviceArray, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

THREADS = 128

_int64, _uint64 = types.int64, types.uint64


class Direct:
    """The algorithm "direct"."""

    name = "direct"
    deterministic = True
    numerics = None

    def refusal(self, plan: Plan) -> str | None:
        return None

    def pays(self, plan: Plan) -> bool:
        return True

    def workspace_bytes(self, plan: Plan) -> int:
        return 0

    def run(
        self, plan: Plan, tensors: Tensors, workspace: DeviceArray | None, stream: object
    ) -> None:
        for part in plan.correlations:
            if part.size == 0:
                continue
            args = (
                tensors.source,
                tensors.filter,
                tensors.out,
                part.sizes,
                part.window,
                part.source.strides,
                part.filter.strides,
                part.out.strides,
                part.channels_adjacent,
                *tensors.epilogue.arguments(absent=tensors.out),
            )
            grid = blocks_for(part.size, THREADS)
            launch(direct(plan.dtype), grid, THREADS, args, stream=stream)


@device_function
def _first_tap(base: Any, gap: Any) -> Any:
    """The least t >= 0 with base + t·gap >= 0."""
    return _int64(0) if base >= 0 else (gap - 1 - base) // gap


@device_function
def _last_tap(base: Any, gap: Any, extent: Any, taps: Any) -> Any:
    """Behind the greatest t < taps with base + t·gap < extent."""
    room = extent - base
    return _int64(0) if room <= 0 else min(taps, (room + gap - 1) // gap)


@cache
def direct(dtype: str) -> Kernel:
    """The kernel for one element type. Launch with THREADS threads; the grid may have any size."""
    element = ELEMENTS[dtype]
    zero, to_sum = element.sum(0), element.to_sum
    finish = make_epilogue(dtype)

    @kernel
    def conv_direct(
        source: Any,
        filter: Any,
        out: Any,
        sizes: Any,
        window: Any,
        source_at: Any,
        filter_at: Any,
        out_at: Any,
        channels_fastest: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        groups, batch, channels_out, q0s, q1s, q2s, channels_in, t0s, t1s, t2s = sizes
        i0s, i1s, i2s, step0, step1, step2, gap0, gap1, gap2, shift0, shift1, shift2 = window
        s_off, s_group, s_outer, s_inner, s0, s1, s2 = source_at
        f_off, f_group, f_outer, f_inner, f0, f1, f2 = filter_at
        total = groups * batch * channels_out * q0s * q1s * q2s
        stride = _int64(cuda.gridDim.x) * cuda.blockDim.x
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        while index < total:
            g, b, j, q0, q1, q2 = output_position(index, sizes, channels_fastest)

            # Taps outside the input are left out, not multiplied by zero: only windows that hold a
            # NaN or Inf may become one.
            base0 = q0 * step0 - shift0
            base1 = q1 * step1 - shift1
            base2 = q2 * step2 - shift2
            begin0 = _first_tap(base0, gap0)
            begin1 = _first_tap(base1, gap1)
            begin2 = _first_tap(base2, gap2)
            end0 = _last_tap(base0, gap0, i0s, t0s)
            end1 = _last_tap(base1, gap1, i1s, t1s)
            end2 = _last_tap(base2, gap2, i2s, t2s)

            total_sum = zero
            for r in range(channels_in):
                for t0 in range(begin0, end0):
                    for t1 in range(begin1, end1):
                        s = (
                            s_off
                            + g * s_group
                            + b * s_outer
                            + r * s_inner
                            + (base0 + t0 * gap0) * s0
                            + (base1 + t1 * gap1) * s1
                            + (base2 + begin2 * gap2) * s2
                        )
                        f = (
                            f_off
                            + g * f_group
                            + j * f_outer
                            + r * f_inner
                            + t0 * f0
                            + t1 * f1
                            + begin2 * f2
                        )
                        for _ in range(begin2, end2):
                            total_sum += to_sum(source[_uint64(s)]) * to_sum(filter[_uint64(f)])
                            s += gap2 * s2
                            f += f2
            finish(
                total_sum,
                out,
                place(out_at, g, b, j, q0, q1, q2),
                bias,
                bias_at[0] + (g * channels_out + j) * bias_at[1],
                residual,
                place(residual_at, g, b, j, q0, q1, q2),
                flags,
                alphas,
            )
            index += stride

    return conv_direct
