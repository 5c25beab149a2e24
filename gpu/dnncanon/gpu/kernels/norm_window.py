"""Normalization over windows: one thread for each element, which looks at the window around it.

A shape is arranged as four outer dims and three over which windows extend, those that are not there having
extent 1, in the order in which x is in memory. So neighbouring threads read neighbouring elements, and all but
the first read of an element hit a cache.
Backward, a first kernel keeps s of each element in the workspace, and a second one adds up the shares. Where
windows are not too large for that, ``norm_window_tiled`` does both in one launch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import pow as power
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.primitive import Implementation, Launch, Layouts
from dnncanon.gpu.runtime import (
    DeviceArray,
    Kernel,
    Strided,
    blocks_for,
    kernel,
    launch,
    origin,
    reinterpret,
)
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import digits_of, places
from dnncanon.spec import dense_strides
from dnncanon.spec.norm import WindowNormProblem

THREADS = 128
_OUTER, _WINDOW = 4, 3

int64, uint64 = types.int64, types.uint64

Arrays = Mapping[str, DeviceArray]


def workspace_bytes(layouts: Layouts[WindowNormProblem]) -> int:
    """s of every element, backward."""
    return math.prod(layouts.inputs["x"].shape) * ELEMENTS[layouts.call.dtype].sum_dtype.itemsize


def forward(run: Launch[WindowNormProblem]) -> None:
    """y = x·s^−β"""
    _launch_spread(run, run.outputs["y"], run.dtype, finished=True)


def backward(run: Launch[WindowNormProblem]) -> None:
    """s of every element, then dx and dmeans."""
    assert run.workspace is not None
    p, sums = run.problem, ELEMENTS[run.dtype].sum_dtype
    spreads = reinterpret(run.workspace, sums)
    _launch_spread(run, spreads, sums.name, finished=False)
    dy, x, dx = run.inputs["dy"], run.inputs["x"], run.outputs["dx"]
    means, dmeans = run.inputs.get("means", x), run.outputs.get("dmeans", dx)
    order = Order.of(p, x)
    places_of = [order.strides(array) for array in (dy, x, means, dx, dmeans)]
    shape = order.shape(p)
    args = (
        tuple(array.argument for array in (dy, x, means, spreads)),
        tuple(array.argument for array in (dx, dmeans)),
        shape,
        tuple(stride for by in places_of for stride in by),
        tuple(origin(array) for array in (dy, x, means, dx, dmeans)),
        dense_strides(shape)[order.first : order.first + _WINDOW],
        (p.window, p.window - 1 - p.before, int(p.has_means)),
        (p.beta, 2.0 * p.beta * p.weight),
    )
    launch(gradient(run.dtype, order.first), _grid(shape), THREADS, args, stream=run.stream)


def _launch_spread(
    run: Launch[WindowNormProblem], out: DeviceArray, out_dtype: str, *, finished: bool
) -> None:
    p, x = run.problem, run.inputs["x"]
    order = Order.of(p, x)
    means, shape = run.inputs.get("means", x), order.shape(p)
    out_strides = order.strides(out) if finished else dense_strides(shape)
    args = (
        (x.argument, means.argument),
        out,
        shape,
        (*order.strides(x), *order.strides(means), *out_strides),
        (origin(x), origin(means), origin(out) if finished else 0),
        (p.window, p.before, int(p.has_means)),
        (p.beta, p.weight, p.k),
    )
    chosen = spread(run.dtype, out_dtype, order.first, finished=finished)
    launch(chosen, _grid(shape), THREADS, args, stream=run.stream)


def _grid(shape: tuple[int, ...]) -> int:
    return blocks_for(math.prod(shape), THREADS)


@dataclass(frozen=True, slots=True)
class Order:
    """Which dim of x each of the seven is, None for one that it does not have; windows extend over the three
    from ``first`` on. Outer dims are behind those if they are all faster in memory."""

    dims: tuple[int | None, ...]
    first: int

    @classmethod
    def of(cls, p: WindowNormProblem, x: Strided) -> "Order":
        def fast(d: int) -> int:
            return x.strides[d] if x.shape[d] > 1 else 2**63

        every = range(len(p.x_shape))
        outer = sorted((d for d in every if d not in p.axes), key=fast, reverse=True)
        fastest = min(map(fast, p.axes))
        before = [d for d in outer if fast(d) >= fastest]
        after = outer[len(before) :]
        padded_before = (*(None,) * (_OUTER - len(outer)), *before)
        windows = (*(None,) * (_WINDOW - len(p.axes)), *p.axes)
        return cls((*padded_before, *windows, *after), len(padded_before))

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.dims[self.first : self.first + _WINDOW]

    @property
    def outer(self) -> tuple[int | None, ...]:
        return self.dims[: self.first] + self.dims[self.first + _WINDOW :]

    def shape(self, p: WindowNormProblem) -> tuple[int, ...]:
        return tuple(1 if d is None else p.x_shape[d] for d in self.dims)

    def strides(self, array: DeviceArray) -> tuple[int, ...]:
        return tuple(0 if d is None else array.strides[d] for d in self.dims)


FORWARD = Implementation("direct", forward)
BACKWARD = Implementation("two_pass", backward, workspace_bytes)

# --- Kernels --------------------------------------------------------------------------------------


@device_function
def window_at(before: Any, taps: Any, place: Any, extent: Any) -> Any:
    """The window's elements inside the tensor along a dim, as distances from its centre."""
    return max(-before, -place), min(taps - before, extent - place)


@device_function
def product(extents: Any) -> Any:
    size = int64(1)
    for extent in extents:
        size *= extent
    return size


@cache
def squares_of(dtype: str) -> Callable[..., Any]:
    """squares(x, means, at, steps, means_at, means_steps, window, place, extents): Σ (x − means)² of a window.

    ``at`` is where its centre is in memory, ``steps`` go along its dims, ``place`` and ``extents`` are there.
    """
    to_sum, zero = ELEMENTS[dtype].to_sum, ELEMENTS[dtype].sum(0)

    @device_function
    def squares(
        x: Any,
        means: Any,
        at: Any,
        steps: Any,
        means_at: Any,
        means_steps: Any,
        window: Any,
        place: Any,
        extents: Any,
    ) -> Any:
        taps, before, has_means = window
        total = zero
        low0, high0 = window_at(before, taps, place[0], extents[0])
        low1, high1 = window_at(before, taps, place[1], extents[1])
        low2, high2 = window_at(before, taps, place[2], extents[2])
        for i0 in range(low0, high0):
            for i1 in range(low1, high1):
                for i2 in range(low2, high2):
                    value = to_sum(x[uint64(at + i0 * steps[0] + i1 * steps[1] + i2 * steps[2])])
                    if has_means != 0:
                        near = means_at + i0 * means_steps[0]
                        near += i1 * means_steps[1] + i2 * means_steps[2]
                        value -= to_sum(means[uint64(near)])
                    total += value * value
        return total

    return squares


@cache
def spread(dtype: str, out_dtype: str, first: int, *, finished: bool) -> Kernel:
    """s = k + α/n^d·Σ (x − means)² of each element, or finished, x·s^−β. Launch with THREADS threads."""
    number, to_sum = ELEMENTS[dtype].sum, ELEMENTS[dtype].to_sum
    from_sum, squares = ELEMENTS[out_dtype].from_sum, squares_of(dtype)
    threads, second, third = THREADS, first + 1, first + 2

    @kernel
    def norm_window_spread(
        inputs: Any, out: Any, shape: Any, strides: Any, origins: Any, window: Any, scalars: Any
    ) -> None:
        x, means = inputs
        beta, weight, k = number(scalars[0]), number(scalars[1]), number(scalars[2])
        extents = shape[first], shape[second], shape[third]
        size = product(shape)
        x_steps = strides[first], strides[second], strides[third]
        means_steps = strides[7 + first], strides[7 + second], strides[7 + third]
        index = int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        while index < size:
            digits = digits_of(index, shape)
            at = places(digits, strides, origins)
            place = digits[first], digits[second], digits[third]
            total = squares(x, means, at[0], x_steps, at[1], means_steps, window, place, extents)
            s = k + weight * total
            if finished:
                result = to_sum(x[uint64(at[0])]) * power(s, -beta)
                out[uint64(at[2])] = from_sum(result)
            else:
                out[uint64(at[2])] = s
            index += int64(cuda.gridDim.x) * threads

    return norm_window_spread


@cache
def gradient(dtype: str, first: int) -> Kernel:
    """dx and dmeans of each element, from s of all. Launch with THREADS threads."""
    element = ELEMENTS[dtype]
    number, to_sum, from_sum, zero = element.sum, element.to_sum, element.from_sum, element.sum(0)
    one, threads, second, third = element.sum(1), THREADS, first + 1, first + 2

    @kernel
    def norm_window_gradient(
        inputs: Any,
        outputs: Any,
        shape: Any,
        strides: Any,
        origins: Any,
        steps: Any,
        window: Any,
        scalars: Any,
    ) -> None:
        dy, x, means, spreads = inputs
        dx, dmeans = outputs
        taps, before, has_means = window
        beta, weight = number(scalars[0]), number(scalars[1])
        e0, e1, e2 = shape[first], shape[second], shape[third]
        size = product(shape)
        s0, s1, s2 = steps  # s is dense in the order of the seven dims
        y0, y1, y2 = strides[first], strides[second], strides[third]
        x0, x1, x2 = strides[7 + first], strides[7 + second], strides[7 + third]
        index = int64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        while index < size:
            digits = digits_of(index, shape)
            at = places(digits, strides, origins)
            total = zero
            low0, high0 = window_at(before, taps, digits[first], e0)
            low1, high1 = window_at(before, taps, digits[second], e1)
            low2, high2 = window_at(before, taps, digits[third], e2)
            for i0 in range(low0, high0):
                for i1 in range(low1, high1):
                    for i2 in range(low2, high2):
                        s = spreads[uint64(index + i0 * s0 + i1 * s1 + i2 * s2)]
                        gradient = to_sum(dy[uint64(at[0] + i0 * y0 + i1 * y1 + i2 * y2)])
                        value = to_sum(x[uint64(at[1] + i0 * x0 + i1 * x1 + i2 * x2)])
                        total += gradient * value * power(s, -beta - one)
            centred = to_sum(x[uint64(at[1])])
            if has_means != 0:
                centred -= to_sum(means[uint64(at[2])])
            # The weight comes last: times it a subnormal element would be 0, and 0·Inf is NaN.
            through = centred * total * weight
            direct = to_sum(dy[uint64(at[0])]) * power(spreads[uint64(index)], -beta)
            dx[uint64(at[3])] = from_sum(direct - through)
            if has_means != 0:
                dmeans[uint64(at[4])] = from_sum(through)
            index += int64(cuda.gridDim.x) * threads

    return norm_window_gradient
