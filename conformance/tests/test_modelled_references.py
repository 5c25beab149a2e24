"""Softmax, norms, attention, LSTM and others as small references: NumPy in low precision and the model.

These have what convolution has not: correlated errors. A shift by the maximum or the mean, a division
by a sum, gates that meet again. Largest error/σ, in float32 and in float16, over all data and orders of
summation: below 4, of the 8 that a bound allows; and never below 1 % of the bound.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from dnncanon.conformance.accuracy import SIGMAS, ErrorArray, Precision, quantum_of, unit_of
from dnncanon.conformance.calibration import Blocked, NumPyOrder, Sequential
from dnncanon.spec import DTYPES

Array = Any


def softmax(x: Array) -> Array:
    shares = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return shares / np.sum(shares, axis=-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def softmax_backward(x: Array, dy: Array) -> Array:
    y = softmax(x)
    return y * (dy - np.sum(dy * y, axis=-1, keepdims=True))


def variance(x: Array) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return np.mean(np.square(centred), axis=-1)


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    spread = np.mean(np.square(centred), axis=-1, keepdims=True)
    return centred / np.sqrt(spread + 2.0**-10) * scale + bias


def batch_norm_backward(x: Array, dy: Array, scale: Array) -> tuple[Array, Array]:
    centred = x - np.mean(x, axis=0)
    inverse = 1.0 / np.sqrt(np.mean(np.square(centred), axis=0) + 2.0**-10)
    dscale = np.sum(dy * centred, axis=0) * inverse
    slope = np.mean(dy * centred, axis=0) * np.square(inverse)
    dx = scale * inverse * (dy - np.mean(dy, axis=0) - centred * slope)
    return dscale, dx


def rms_norm(x: Array, scale: Array) -> Array:
    return x * (np.mean(x**2, axis=-1, keepdims=True) + 1e-3) ** -0.5 * scale


def attention(q: Array, k: Array, v: Array) -> Array:
    scores = np.einsum("bqd,bkd->bqk", q, k) * (1.0 / np.sqrt(q.shape[-1]))
    allowed = np.tril(np.ones((q.shape[1], k.shape[1]), bool))
    return np.matmul(softmax(np.where(allowed, scores, -np.inf)), v)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def lstm(x: Array, h: Array, c: Array, w: Array, r: Array) -> Array:
    outputs = []
    for step in range(x.shape[0]):
        i, f, g, o = np.split(np.matmul(x[step], w) + np.matmul(h, r), 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + special.erf(x * 0.5**0.5))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def elu(x: Array) -> Array:
    return np.where(x > 0.0, x, 0.1 * np.expm1(np.minimum(x, 0.0)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def logsumexp(x: Array) -> Array:
    top = np.max(x, axis=-1)
    return top + np.log(np.sum(np.exp(x - top[..., None]), axis=-1))


def cross_entropy(x: Array) -> Array:
    target = np.arange(x.shape[0]) % x.shape[1]
    return -np.mean(np.take_along_axis(log_softmax(x), target[:, None], axis=1))


def norm2(x: Array) -> Array:
    return np.sqrt(np.sum(x * x, axis=-1))


def product(x: Array) -> Array:
    return np.prod(1.0 + x * 0.125, axis=-1)


def average_pool(x: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)
    return np.mean(windows, axis=-1)


def local_response_norm(x: Array) -> Array:
    around = np.pad(np.square(x), ((0, 0), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(around, 5, axis=1)
    return x / (2.0 + 1e-2 * np.sum(windows, axis=-1)) ** 0.75


def matrix(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Callable[[Any], NDArray[Any]]:
    return lambda rng: scale * rng.standard_normal(shape) + shift


def saturating(size: int) -> Callable[[Any], NDArray[Any]]:
    """Up to ±10, where a sigmoid saturates; exp(12) overflows in float16, and nothing is bounded then."""
    return lambda rng: np.clip(5.0 * rng.standard_normal(size), -10.0, 10.0)


Draw = Callable[[Any], NDArray[Any]]
REFERENCES: dict[str, tuple[Callable[..., Array], tuple[Draw, ...]]] = {
    "softmax": (softmax, (matrix(16, 200, scale=3.0),)),
    "softmax of large inputs": (softmax, (matrix(16, 200, scale=20.0),)),
    "log softmax": (log_softmax, (matrix(16, 200, scale=3.0),)),
    "softmax backward": (softmax_backward, (matrix(16, 100), matrix(16, 100))),
    "softmax backward, dy shifted": (
        softmax_backward,
        (matrix(16, 100), matrix(16, 100, shift=9.0)),
    ),
    "variance": (variance, (matrix(16, 200),)),
    "variance of a shifted row": (variance, (matrix(16, 200, shift=20.0),)),
    "layer norm": (layer_norm, (matrix(16, 200), matrix(200), matrix(200))),
    "layer norm, shifted": (layer_norm, (matrix(16, 200, shift=20.0), matrix(200), matrix(200))),
    "batch norm backward": (batch_norm_backward, (matrix(300, 4), matrix(300, 4), matrix(4))),
    "batch norm backward, shifted": (
        batch_norm_backward,
        (matrix(300, 4, scale=0.3, shift=3.0), matrix(300, 4, scale=0.3, shift=1.0), matrix(4)),
    ),
    "rms norm": (rms_norm, (matrix(16, 200), matrix(200))),
    "attention": (attention, (matrix(2, 24, 16), matrix(2, 24, 16), matrix(2, 24, 8))),
    "attention, v shifted": (
        attention,
        (matrix(2, 24, 16), matrix(2, 24, 16), matrix(2, 24, 8, shift=3.0)),
    ),
    "lstm": (
        lstm,
        (
            matrix(12, 4, 8),
            matrix(4, 16),
            matrix(4, 16),
            matrix(8, 64, scale=0.3),
            matrix(16, 64, scale=0.3),
        ),
    ),
    "gelu": (gelu, (matrix(2000, scale=2.0),)),
    "gelu, tanh": (gelu_tanh, (matrix(2000),)),
    "softplus": (softplus, (matrix(2000, scale=3.0),)),
    "elu": (elu, (matrix(2000, scale=2.0),)),
    "silu": (silu, (saturating(2000),)),
    "sigmoid of large inputs": (sigmoid, (saturating(2000),)),
    "mish": (mish, (matrix(2000, scale=2.0),)),
    "logsumexp": (logsumexp, (matrix(40, 100, scale=3.0),)),
    "cross entropy": (cross_entropy, (matrix(30, 20),)),
    "norm2": (norm2, (matrix(40, 100),)),
    "product": (product, (matrix(40, 30),)),
    "average pooling": (average_pool, (matrix(10, 100),)),
    "local response norm": (local_response_norm, (matrix(30, 40, scale=3.0),)),
}


def modelled(function: Callable[..., Array], arrays: list[Array], dtype: str) -> list[ErrorArray]:
    precision = Precision.of(DTYPES[dtype])
    operands = []
    for array in arrays:
        value = array.astype(np.float64)
        unit = unit_of(value, precision)
        operands.append(ErrorArray(value, precision, quantum=quantum_of(value), unit=unit))
    with np.errstate(all="ignore"):
        result = function(*operands)
    return [r.settled() for r in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", REFERENCES)
def test_errors_are_within_half_the_bound_and_use_it(name: str, dtype: str) -> None:
    function, draws = REFERENCES[name]
    largest = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        arrays = [draw(rng).astype(dtype) for draw in draws]
        models = modelled(function, arrays, dtype)
        for order in (NumPyOrder, Sequential, Blocked):
            with np.errstate(all="ignore"):
                results = function(*(array.view(order) for array in arrays))
            results = results if isinstance(results, tuple) else (results,)
            for model, result in zip(models, results, strict=True):
                error = np.abs(np.asarray(result).astype(np.float64) - model.value)
                assert np.isfinite(model.deviation()).all()
                assert not error[model.deviation() == 0.0].any()
                with np.errstate(all="ignore"):
                    ratio = np.nan_to_num(error / model.deviation())
                largest = max(largest, float(ratio.max()))
    assert 0.01 * SIGMAS < largest < 0.5 * SIGMAS


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_in_the_next_worse_precision_is_caught(name: str) -> None:
    """float16 beside the bounds of float32: some element is off by more than they allow."""
    function, draws = REFERENCES[name]
    rng = np.random.default_rng(1)
    arrays = [draw(rng).astype(np.float16) for draw in draws]
    models = modelled(function, arrays, "float32")
    with np.errstate(all="ignore"):
        results = function(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    for model, result in zip(models, results, strict=True):
        error = np.abs(np.asarray(result).astype(np.float64) - model.value)
        bound = SIGMAS * model.deviation() + 2.0**-24 * np.abs(model.value)
        assert (error > bound).any()
