"""Matrix products, defined: one with its epilogue, and one for each group of rows.

Offsets and indices are whole numbers that elements are found by; they come as floats, like all data.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dnncanon import spec
from dnncanon.reference import activation as act
from dnncanon.reference.definition import Array, defines
from dnncanon.spec.matmul_problem import GroupedMatmulProblem, MatmulProblem

# --- One product ----------------------------------------------------------------------------------


@defines(spec.matmul_forward)
def matmul_forward(
    p: MatmulProblem, a: Array, b: Array, c: Array | None = None, bias: Array | None = None
) -> Array:
    """y = activation(α·a·b + β·c + bias)"""
    if p.whole:
        return _of_integers(a, b, c, bias)
    y = np.matmul(a, b)
    if p.alpha != 1.0:
        y = p.alpha * y
    if c is not None and p.beta != 0.0:
        y = y + (c if p.beta == 1.0 else p.beta * c)
    if bias is not None:
        y = y + bias
    return ACTIVATIONS[p.activation](y)


def _of_integers(a: Array, b: Array, c: Array | None, bias: Array | None) -> Array:
    """a·b + c + bias modulo 2^32, from −2^31 on: what sums in int32 come to, in any order."""
    y = np.matmul(a.astype(np.int64), b.astype(np.int64))
    for addend in (c, bias):
        if addend is not None:
            y = y + addend.astype(np.int64)
    return (y + 2**31) % 2**32 - 2**31


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": act.gelu,
    "gelu_tanh": act.gelu_tanh,
    "silu": act.swish,
    "sigmoid": act.sigmoid,
    "tanh": np.tanh,
}


# --- A product for each group of rows -------------------------------------------------------------


@defines(spec.grouped_matmul_forward)
def grouped_matmul_forward(
    p: GroupedMatmulProblem,
    token: Array,
    weight: Array,
    first_token_offset: Array,
    token_index: Array | None = None,
    token_ks: Array | None = None,
) -> Array:
    """The rows of each group times the weights of its expert, g mod E."""
    if p.mode == "gather":
        return _of_tokens(p, token, weight, first_token_offset, token_index)
    products = _grouped(p, token, weight, first_token_offset)
    if p.mode == "none":
        return products
    assert token_index is not None
    assert token_ks is not None
    places = token_index.astype(np.int64) * p.top_k + token_ks.astype(np.int64)
    return _scattered(p, products, first_token_offset, places)


def _grouped(p: GroupedMatmulProblem, x: Array, weight: Array, offsets: Array) -> Array:
    """x[r]·weight[g mod E] for the rows of group g, and 0 for rows of none."""
    y = np.zeros_like(x, shape=p.y_shape)
    for group, (begin, end) in enumerate(pairwise(offsets.astype(np.int64))):
        y[begin:end] = np.matmul(x[begin:end], weight[group % p.experts])
    return y


def _of_tokens(
    p: GroupedMatmulProblem, token: Array, weight: Array, offsets: Array, token_index: Array
) -> Array:
    """The grouped product of the tokens that rows ask for; NaN where there is no such token."""
    index = token_index.astype(np.int64)
    exists = (index >= 0) & (index < p.tokens)
    in_group = _in_group(p, offsets)
    if p.tokens == 0:
        return np.where(in_group[:, None], np.full_like(token, np.nan, shape=p.y_shape), 0.0)
    y = _grouped(p, token[np.where(exists, index, 0)], weight, offsets)
    return np.where((in_group & ~exists)[:, None], np.nan, y)


def _in_group(p: GroupedMatmulProblem, offsets: Array) -> Array:
    """Which rows are in a group: those between the first offset and the last."""
    row, bounds = np.arange(p.rows), offsets.astype(np.int64)
    return (row >= bounds[0]) & (row < bounds[-1])


def _scattered(p: GroupedMatmulProblem, products: Array, offsets: Array, places: Array) -> Array:
    """The rows of groups at their places, as far as these exist; 0 elsewhere."""
    rows = np.flatnonzero(_in_group(p, offsets) & (places >= 0) & (places < p.rows))
    y = np.zeros_like(products)
    y[places[rows]] = products[rows]
    return y


@defines(spec.grouped_matmul_backward_weights)
def grouped_matmul_backward_weights(
    p: GroupedMatmulProblem, dy: Array, token: Array, first_token_offset: Array
) -> Array:
    """tokenᵀ·dy over the rows of each expert's groups"""
    dweight = np.zeros_like(token, shape=p.weight_shape)
    for group, (begin, end) in enumerate(pairwise(first_token_offset.astype(np.int64))):
        share = np.matmul(np.swapaxes(token[begin:end], 0, 1), dy[begin:end])
        dweight[group % p.experts] += share
    return dweight
