"""What a causal convolution is called with, the problem that follows from a call, and the types of its results.

Symbols: B batch, D channels, T steps, K taps of a channel's filter; P taps of a projection's.
"""

from dataclasses import dataclass

from dnncanon.spec.conv_problem import MODES
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.tensors import Shape, TensorType

ACTIVATIONS = ("identity", "silu")
PROJECTIONS = 3
"""Of a gated convolution: the gate of the result, and the two factors of what is mixed."""


@dataclass(frozen=True, slots=True)
class CausalConvProblem:
    """A filter of ``taps`` for each of ``shape``'s D channels, over its T steps; ``shape`` is (B, D, T)."""

    dtype: str
    shape: Shape
    taps: int
    activation: str = "identity"
    mode: str = MODES[0]
    has_bias: bool = False

    @property
    def flips(self) -> bool:
        """Whether the last tap, not the first, meets the present step."""
        return self.mode == "cross_correlation"

    @property
    def terms(self) -> int:
        """Products of the longest sum over taps."""
        return min(self.taps, self.shape[2])


@dataclass(frozen=True, slots=True)
class GatedCausalConvProblem:
    """Three short convolutions of three sequences, and a long one of the product of two of them.

    ``projection`` is the problem of each of the three, ``mixer`` that of the long one.
    """

    projection: CausalConvProblem
    mixer: CausalConvProblem
    has_skip: bool

    @property
    def dtype(self) -> str:
        return self.mixer.dtype

    @property
    def shape(self) -> Shape:
        """(B, D, T)"""
        return self.mixer.shape

    @property
    def terms(self) -> int:
        """Projected products that an element of the longest sum is made of."""
        return self.projection.terms * self.mixer.terms


def resolve(a: Arguments) -> CausalConvProblem:
    """The convolution that legal arguments describe."""
    x, w = a.tensors["x"], a.tensors["w"]
    return CausalConvProblem(
        dtype=x.dtype,
        shape=x.shape,
        taps=w.shape[1],
        activation=a.attributes["activation"],
        mode=a.attributes["mode"],
        has_bias="bias" in a.tensors,
    )


def resolve_gated(a: Arguments) -> GatedCausalConvProblem:
    """The gated convolution that legal arguments describe."""
    x, mode = a.tensors["x"], a.attributes["mode"]
    batch, channels, _, steps = x.shape
    shape = (batch, channels, steps)
    near, far = a.tensors["projection"].shape[2], a.tensors["mixer"].shape[1]
    return GatedCausalConvProblem(
        projection=CausalConvProblem(x.dtype, shape, near, mode=mode),
        mixer=CausalConvProblem(x.dtype, shape, far, mode=mode),
        has_skip="skip" in a.tensors,
    )


def infer_backward(p: CausalConvProblem) -> tuple[TensorType | None, ...]:
    """dx, dw and, where there is a bias, dbias."""
    channels = p.shape[1]
    dbias = TensorType(p.dtype, (channels,)) if p.has_bias else None
    return TensorType(p.dtype, p.shape), TensorType(p.dtype, (channels, p.taps)), dbias


def infer_gated(p: GatedCausalConvProblem) -> tuple[TensorType, ...]:
    """y and gated."""
    return (TensorType(p.dtype, p.shape),) * 2


def infer_gated_backward(p: GatedCausalConvProblem) -> tuple[TensorType | None, ...]:
    """dx, dprojection, dmixer and, where there is a skip, dskip."""
    batch, channels, steps = p.shape
    return (
        TensorType(p.dtype, (batch, channels, PROJECTIONS, steps)),
        TensorType(p.dtype, (channels, PROJECTIONS, p.projection.taps)),
        TensorType(p.dtype, (channels, p.mixer.taps)),
        TensorType(p.dtype, (channels,)) if p.has_skip else None,
    )
