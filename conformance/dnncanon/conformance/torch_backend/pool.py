"""Pooling by torch.nn.functional.

torch pads symmetrically and by half a window at most. What is beyond that is padded here, and cropped to
where the last window ends, so that torch sees plain windows.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch

from dnncanon import spec
from dnncanon.spec import Unsupported
from dnncanon.spec.pool import PoolProblem
from dnncanon.spec.windows import Windows, effective_extent

F = torch.nn.functional
_HALF = (torch.float16, torch.bfloat16)

# Found by running the suite: torch's maximum has the index of the last NaN of a window.
_LAST_NAN = "of several NaN in a window torch numbers the last, not the first"
CPU_CLAIMS: dict[str, Any] = {
    "declines": {
        "pool_max_forward": {
            dtype: {"special": _LAST_NAN} for dtype in ("float64", "float32", "float16", "bfloat16")
        }
    }
}


def pool_max_forward(x: torch.Tensor, **attributes: Any) -> Any:
    call = spec.pool_max_forward.bind(x, **attributes)
    p = call.problem
    _refuse_empty(p)
    if not x.dtype.is_floating_point:
        raise Unsupported("torch pools no integers")
    if p.windows[0].adaptive:
        pool = _of_dims(p, F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
        y, indices = pool(x, p.output_size, return_indices=True)
    else:
        pool = _of_dims(p, F.max_pool1d, F.max_pool2d, F.max_pool3d)
        window, stride, dilation = _steps(p)
        plain = _plain(x, p, -math.inf)
        y, indices = pool(plain, window, stride, 0, dilation, False, return_indices=True)
        indices = _in_input(indices, tuple(plain.shape[2:]), p)
    return call.results((y, indices.to(torch.int32)) if p.indices else (y,))


def pool_max_backward(dy: torch.Tensor, indices: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.pool_max_backward.bind(dy, indices, **attributes).problem
    _refuse_empty(p)
    if dy.dtype in _HALF:
        raise Unsupported("torch adds the gradients of overlapping windows in half precision")
    indices = indices.long()
    own = _are_own(indices, p)
    # torch's adaptive kernels add by index, whatever the windows; a spatial dim of 1 more changes nothing.
    padding = (1,) * max(0, 2 - len(p.windows))
    x = dy.new_zeros((p.batch, p.channels, *padding, *p.input_size))
    shape = (p.batch, p.channels, *padding, *p.output_size)
    three = len(p.windows) == 3
    aten = torch.ops.aten
    backward = aten.adaptive_max_pool3d_backward if three else aten.adaptive_max_pool2d_backward
    terms = torch.where(own, dy, 0.0).reshape(shape)
    # Contiguous, for in three dims torch 2.13 on the CPU ignores the strides of indices (found by this suite).
    indices = torch.where(own, indices, 0).contiguous().reshape(shape)
    dx: torch.Tensor = backward(terms.contiguous(), x, indices)
    return dx.reshape(p.x_shape)


def pool_average_forward(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.pool_average_forward.bind(x, **attributes).problem
    return _average(x, p)


def pool_average_backward(dy: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.pool_average_backward.bind(dy, **attributes).problem
    if dy.dtype in _HALF:
        raise Unsupported("torch adds the gradients of overlapping windows in half precision")
    x = dy.new_zeros(p.x_shape).requires_grad_()
    (dx,) = torch.autograd.grad(_average(x, p), x, dy)
    return dx


def pool_lp_forward(x: torch.Tensor, **attributes: Any) -> torch.Tensor:
    p = spec.pool_lp_forward.bind(x, **attributes).problem
    _refuse_empty(p)
    _refuse_dilation(p)
    if p.windows[0].adaptive:
        raise Unsupported("torch has no adaptive p-norm")
    if x.dtype in _HALF:
        raise Unsupported("torch rounds between powers, sums and roots")
    window, stride, _ = _steps(p)
    pool = _of_dims(p, F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)
    single = len(p.windows) == 1  # torch takes no tuple for one dim
    kernel, step = (window[0], stride[0]) if single else (window, stride)
    y: torch.Tensor = pool(_plain(x.abs(), p, 0.0), p.p, kernel, step)
    return y


# --- Helpers --------------------------------------------------------------------------------------


def _average(x: torch.Tensor, p: PoolProblem) -> torch.Tensor:
    """torch's own windows where it has them; else sums of padded windows, and their counts."""
    _refuse_empty(p)
    _refuse_dilation(p)
    if p.windows[0].adaptive:
        if x.dtype in _HALF:
            raise Unsupported("torch rounds both sum and quotient of adaptive averages")
        adaptive = _of_dims(p, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
        y: torch.Tensor = adaptive(x, p.output_size)
        return y
    window, stride, _ = _steps(p)
    fits = len(p.windows) < 3 or all(
        w.taps <= w.inputs for w in p.windows
    )  # else torch refuses 3-D
    if fits and all(w.pre == w.post and 2 * w.pre <= w.taps for w in p.windows):
        pads = tuple(w.pre for w in p.windows)
        pool = _of_dims(p, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
        y = pool(x, window, stride, pads, any(map(_hangs_over, p.windows)), p.include_padding)
        if tuple(y.shape) == p.y_shape:
            return y
    if x.dtype in _HALF:
        raise Unsupported("torch has no such padding, and sums and counts would be rounded each")
    plain = _plain(x, p, 0.0)
    if len(p.windows) == 1:
        sums = F.avg_pool2d(plain[:, :, None], (1, *window), (1, *stride), divisor_override=1)
        return sums[:, :, 0] / _counts(p, x)
    pool = F.avg_pool2d if len(p.windows) == 2 else F.avg_pool3d
    sums = pool(plain, window, stride, divisor_override=1)
    return sums / _counts(p, x)


def _hangs_over(w: Windows) -> bool:
    return int(w.first(w.outputs - 1)) + w.taps > w.inputs + w.post


def _counts(p: PoolProblem, like: torch.Tensor) -> torch.Tensor:
    counts = torch.ones((), dtype=like.dtype)
    for w in p.windows:
        cells = w.first(torch.arange(w.outputs))[:, None] + torch.arange(w.taps)
        low, high = (-w.pre, w.inputs + w.post) if p.include_padding else (0, w.inputs)
        counted = ((cells >= low) & (cells < high)).sum(dim=1).to(like.dtype)
        counts = counts[..., None] * counted
    return counts.clamp(min=1).to(like.device)


def _plain(x: torch.Tensor, p: PoolProblem, value: float) -> torch.Tensor:
    """x padded with ``value``, or cropped, to where its first window begins and its last one ends."""
    pads: list[int] = []
    for w in reversed(p.windows):
        end = int(w.first(w.outputs - 1)) + effective_extent(w.taps, w.dilation)
        pads += [w.pre, end - w.inputs]
    return F.pad(x, pads, value=value)


def _in_input(indices: torch.Tensor, extents: tuple[int, ...], p: PoolProblem) -> torch.Tensor:
    """Flat indices into the padded input as such into the input.

    Where a cell of the padding has won, over nothing but −Inf, it is the first cell in the input; −1, if
    there is none.
    """
    flat, fallback = torch.zeros_like(indices), torch.zeros_like(indices)
    inside, any_inside = (
        torch.ones_like(indices, dtype=torch.bool),
        torch.ones_like(indices[0, 0] >= 0),
    )
    for dim, w in enumerate(p.windows):
        cell = indices // math.prod(extents[dim + 1 :]) % extents[dim] - w.pre
        inside &= (cell >= 0) & (cell < w.inputs)
        first = _along(w.first(torch.arange(w.outputs)), dim, p)
        first = first + -(first.clamp(max=0) // w.dilation) * w.dilation
        reach = _along(w.first(torch.arange(w.outputs)), dim, p) + (w.taps - 1) * w.dilation
        any_inside = any_inside & (first < w.inputs) & (first <= reach)
        flat, fallback = flat * w.inputs + cell, fallback * w.inputs + first
    return torch.where(inside, flat, torch.where(any_inside, fallback, -1))


def _are_own(indices: torch.Tensor, p: PoolProblem) -> torch.Tensor:
    """Which indices are cells of their windows."""
    own = indices >= 0
    for dim, w in enumerate(p.windows):
        size = math.prod(p.input_size[dim + 1 :])
        o = torch.arange(w.outputs)
        offset = indices // size % w.inputs - _along(w.first(o), dim, p)
        own &= (offset >= 0) & (offset % w.dilation == 0)
        own &= offset // w.dilation < _along(w.length(o), dim, p)
    return own & (indices < math.prod(p.input_size))


def _along(values: torch.Tensor, dim: int, p: PoolProblem) -> torch.Tensor:
    """One value for each output along a spatial dim, to be broadcast over the outputs."""
    return values.reshape(-1, *(1,) * (len(p.windows) - 1 - dim))


def _steps(p: PoolProblem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return (
        tuple(w.taps for w in p.windows),
        tuple(w.stride for w in p.windows),
        tuple(w.dilation for w in p.windows),
    )


def _of_dims(p: PoolProblem, *functions: Any) -> Any:
    return functions[len(p.windows) - 1]


def _refuse_empty(p: PoolProblem) -> None:
    if 0 in _sizes(p):
        raise Unsupported("torch pools nothing that is empty")


def _sizes(p: PoolProblem) -> Iterable[int]:
    return (*p.x_shape, *p.output_size)


def _refuse_dilation(p: PoolProblem) -> None:
    if any(w.dilation != 1 for w in p.windows):
        raise Unsupported("torch has no dilation here")
