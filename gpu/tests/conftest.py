"""What the tests of the GPU library share: the definition of convolution, and data that is exact."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dnncanon import spec

Array = np.ndarray[Any, Any]

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def integers(
    shape: tuple[int, ...], dtype: str, seed: int = 0, low: int = -2, high: int = 2
) -> Array:
    """Small integers: sums of their products are exact in float32, in any order."""
    drawn = np.random.default_rng(seed).integers(low, high, shape, endpoint=True)
    return drawn.astype(DTYPES[dtype])


def taps_of(p: Any) -> Any:
    """Each filter tap with the slices of the padded input that it meets at all output positions."""
    for tap in product(*map(range, p.filter_size)):
        at = tap
        if p.mode == "convolution":
            at = tuple(f - 1 - t for f, t in zip(p.filter_size, tap, strict=True))
        windows = tuple(
            slice(t * gap, t * gap + (o - 1) * u + 1, u)
            for t, gap, o, u in zip(tap, p.dilation, p.output_size, p.stride, strict=True)
        )
        yield at, windows


def padded(p: Any, x: Array) -> Array:
    return np.pad(x.astype(np.float64), [(0, 0), (0, 0), *p.padding])


def of_group(p: Any, g: int) -> tuple[slice, slice]:
    """Input and output channels of group ``g``."""
    c, k = p.in_channels // p.groups, p.out_channels // p.groups
    return slice(g * c, (g + 1) * c), slice(g * k, (g + 1) * k)


def forward(p: Any, x: Array, w: Array) -> Array:
    """y by the formula, tap by tap, in float64."""
    wide, w, y = padded(p, x), w.astype(np.float64), np.zeros(p.y_shape)
    for g, (at, windows) in product(range(p.groups), taps_of(p)):
        c, k = of_group(p, g)
        y[:, k] += np.einsum("nc...,kc->nk...", wide[(slice(None), c, *windows)], w[(k, ..., *at)])
    return y


def backward_data(p: Any, dy: Array, w: Array) -> Array:
    """dx: every product of the formula sent back to the input element it came from."""
    w, dy = w.astype(np.float64), dy.astype(np.float64)
    wide = padded(p, np.zeros(p.x_shape))
    for g, (at, windows) in product(range(p.groups), taps_of(p)):
        c, k = of_group(p, g)
        wide[(slice(None), c, *windows)] += np.einsum("nk...,kc->nc...", dy[:, k], w[(k, ..., *at)])
    inner = (slice(pre, pre + i) for (pre, _), i in zip(p.padding, p.input_size, strict=True))
    return wide[(slice(None), slice(None), *inner)]


def backward_filter(p: Any, x: Array, dy: Array) -> Array:
    """dw: for every tap the products of the outputs with what the tap met."""
    wide, dy, dw = padded(p, x), dy.astype(np.float64), np.zeros(p.w_shape)
    for g, (at, windows) in product(range(p.groups), taps_of(p)):
        c, k = of_group(p, g)
        met = wide[(slice(None), c, *windows)]
        products = np.einsum("nk...,nc...->kc...", dy[:, k], met)
        dw[(k, ..., *at)] = products.sum(tuple(range(2, products.ndim)))
    return dw


def problem_of(x_shape: tuple[int, ...], w_shape: tuple[int, ...], **attributes: Any) -> Any:
    x, w = spec.TensorType("float64", x_shape), spec.TensorType("float64", w_shape)
    return spec.conv_forward.bind(x, w, **attributes).problem


@pytest.fixture(scope="session")
def definition() -> SimpleNamespace:
    """Convolution and its gradients in NumPy, independent of every other implementation here."""
    return SimpleNamespace(
        problem=problem_of,
        forward=forward,
        backward_data=backward_data,
        backward_filter=backward_filter,
    )


@pytest.fixture(scope="session")
def exact() -> Callable[..., Array]:
    """exact(shape, dtype, seed): data for which every algorithm must return the same bits."""
    return integers
