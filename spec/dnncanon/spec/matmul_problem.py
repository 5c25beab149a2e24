"""What a matrix product is called with, and the problem that follows from a call.

Symbols: M rows, N columns, K terms of each sum, B batch dims. Of a grouped product: T tokens, R routed rows,
G groups of rows, E experts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from dnncanon.spec.attributes import as_integer, as_real
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.quantize_problem import FLOAT8
from dnncanon.spec.tensors import Shape, TensorType

ACTIVATIONS = ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
MODES = ("none", "gather", "scatter")
MIN_RANK, MAX_RANK = 2, 5

_HALVES = ("float16", "bfloat16")
OUTPUTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("float64", "float64"): ("float64",),
    ("float32", "float32"): ("float32",),
    **{(half, half): (half, "float32") for half in _HALVES},
    **{(half, "int8"): (half, "float32") for half in _HALVES},
    ("int8", "int8"): ("int32",),
    **{("int8", half): (half, "float32") for half in _HALVES},
    **dict.fromkeys(product(FLOAT8, FLOAT8), ("float32", *_HALVES)),
}
"""Element types of a and b, and those that their product may have, the default first."""


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """One product with its epilogue, every default resolved; ``c_shape`` is None without c."""

    dtype: str
    b_dtype: str
    output: str
    a_shape: Shape
    b_shape: Shape
    c_shape: Shape | None
    has_bias: bool
    alpha: float
    beta: float
    activation: str

    @property
    def batch(self) -> Shape:
        """The batch dims of the product."""
        return broadcast(self.a_shape[:-2], self.b_shape[:-2])

    @property
    def rows(self) -> int:
        return self.a_shape[-2]

    @property
    def columns(self) -> int:
        return self.b_shape[-1]

    @property
    def terms(self) -> int:
        return self.a_shape[-1]

    @property
    def y_shape(self) -> Shape:
        return (*self.batch, self.rows, self.columns)

    @property
    def whole(self) -> bool:
        """Whether all numbers are integers."""
        return self.output == "int32"

    @property
    def multiplications(self) -> int:
        return math.prod(self.y_shape) * self.terms


@dataclass(frozen=True, slots=True)
class GroupedMatmulProblem:
    """One product for each group of ``rows``, or the gradient of its weights.

    ``tokens`` are the rows of the tensor token, of which with mode gather ``rows`` are chosen; there are
    ``groups``, a multiple of ``experts``.
    """

    dtype: str
    tokens: int
    rows: int
    terms: int
    columns: int
    experts: int
    groups: int
    mode: str = "none"
    top_k: int = 1

    @property
    def weight_shape(self) -> Shape:
        return (self.experts, self.terms, self.columns)

    @property
    def y_shape(self) -> Shape:
        return (self.rows, self.columns)

    @property
    def multiplications(self) -> int:
        """Products in the definition if every row is in a group."""
        return self.rows * self.terms * self.columns


def broadcast(first: Shape, second: Shape) -> Shape:
    """Two shapes of one rank, in which dims of 1 are as long as the other's."""
    return tuple(n if m == 1 else m for m, n in zip(first, second, strict=True))


# --- From arguments to a problem ------------------------------------------------------------------


def operand_dtypes(a: Arguments) -> tuple[str, str]:
    return a.tensors["a"].dtype, a.tensors["b"].dtype


def output_dtype(a: Arguments) -> str:
    """The element type of y: the attribute dtype, or the first that the operands allow."""
    given: str | None = a.attributes["dtype"]
    return OUTPUTS[operand_dtypes(a)][0] if given is None else given


def output_shape(a: Arguments) -> Shape:
    """The shape of y, for operands that fit together."""
    left, right = a.tensors["a"].shape, a.tensors["b"].shape
    return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def resolve(a: Arguments) -> MatmulProblem:
    """The product that legal arguments describe."""
    dtype, b_dtype = operand_dtypes(a)
    return MatmulProblem(
        dtype=dtype,
        b_dtype=b_dtype,
        output=output_dtype(a),
        a_shape=a.tensors["a"].shape,
        b_shape=a.tensors["b"].shape,
        c_shape=a.tensors["c"].shape if "c" in a.tensors else None,
        has_bias="bias" in a.tensors,
        alpha=as_real(a.attributes["alpha"]),
        beta=as_real(a.attributes["beta"]),
        activation=a.attributes["activation"],
    )


def groups(a: Arguments) -> int:
    """G: one less than there are offsets."""
    return a.tensors["first_token_offset"].size - 1


def resolve_grouped(a: Arguments) -> GroupedMatmulProblem:
    """The grouped product that legal arguments describe."""
    token, weight, given = a.tensors["token"], a.tensors["weight"], a.attributes
    routed = a.tensors["token_index"] if given["mode"] == "gather" else token
    return GroupedMatmulProblem(
        dtype=token.dtype,
        tokens=token.shape[0],
        rows=routed.shape[0],
        terms=token.shape[1],
        columns=weight.shape[2],
        experts=weight.shape[0],
        groups=groups(a),
        mode=given["mode"],
        top_k=as_integer(given["top_k"]),
    )


def resolve_grouped_weights(a: Arguments) -> GroupedMatmulProblem:
    """The gradient that legal arguments describe."""
    dy, token, experts = a.tensors["dy"], a.tensors["token"], a.attributes["experts"]
    return GroupedMatmulProblem(
        dtype=token.dtype,
        tokens=token.shape[0],
        rows=token.shape[0],
        terms=token.shape[1],
        columns=dy.shape[1],
        experts=groups(a) if experts is None else as_integer(experts),
        groups=groups(a),
    )


def product_type(p: MatmulProblem) -> tuple[TensorType]:
    return (TensorType(p.output, p.y_shape),)
