"""The end of a convolution kernel: scale, residual, bias, activation, the one rounding, and the store."""

from collections.abc import Callable
from functools import cache
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.runtime.device_code import device_function, types

_uint64 = types.uint64


@cache
def make_finisher(dtype: str) -> Callable[..., Any]:
    """finish(sum, bias, bias_at, residual, residual_at, flags, alphas) -> the word of the output.

    The arguments ending in ``_at`` are positions in the arrays before them; ``flags`` and ``alphas``
    are those of ``plan.Epilogue.arguments``.
    """
    element = ELEMENTS[dtype]
    number, zero, to_sum, from_sum = element.sum, element.sum(0), element.to_sum, element.from_sum

    @device_function
    def finish(
        value: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> Any:
        has_bias, has_residual, relu = flags
        value *= number(alphas[0])
        if has_residual:
            value += number(alphas[1]) * to_sum(residual[_uint64(residual_at)])
        if has_bias:
            value += to_sum(bias[_uint64(bias_at)])
        if relu and value < zero:  # a NaN is not below zero, and stays
            value = zero
        return from_sum(value)

    return finish


@cache
def make_epilogue(dtype: str) -> Callable[..., None]:
    """The device function that finishes a sum as ``make_finisher`` does, and stores it."""
    finish = make_finisher(dtype)

    @device_function
    def finish_and_store(
        value: Any,
        out: Any,
        out_at: Any,
        bias: Any,
        bias_at: Any,
        residual: Any,
        residual_at: Any,
        flags: Any,
        alphas: Any,
    ) -> None:
        word = finish(value, bias, bias_at, residual, residual_at, flags, alphas)
        out[_uint64(out_at)] = word

    return finish_and_store
