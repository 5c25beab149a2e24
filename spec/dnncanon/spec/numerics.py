"""Numerics classes: how a backend computes, which decides the error bound it is held to."""

from dataclasses import dataclass

from dnncanon.spec.dtypes import DTYPES, DType


@dataclass(frozen=True, slots=True)
class NumericsClass:
    """The precision of products and sums for one element type.

    ``input_digits`` is the precision to which operands are rounded before they are multiplied (None:
    they are used as they are); ``accumulators`` maps an element type to the type that sums are kept in;
    ``flushes_subnormals`` allows subnormal operands and results to be taken as zero.
    """

    name: str
    doc: str
    accumulators: dict[str, str]
    input_digits: int | None = None
    flushes_subnormals: bool = False

    def accumulator(self, dtype: str) -> DType:
        """The accumulator type for tensors of ``dtype``; KeyError where the class does not exist."""
        return DTYPES[self.accumulators[dtype]]


NUMERICS = {
    row.name: row
    for row in (
        NumericsClass(
            "ieee",
            "Operands as they are; products and sums in float32 or better, float64 for float64.",
            {
                "float64": "float64",
                "float32": "float32",
                "float16": "float32",
                "bfloat16": "float32",
            },
        ),
        NumericsClass(
            "ftz",
            "As ieee, but subnormal operands and results may be flushed to zero (AVX-512 BF16, -ftz).",
            {"float32": "float32", "float16": "float32", "bfloat16": "float32"},
            flushes_subnormals=True,
        ),
        NumericsClass(
            "tf32",
            "float32 operands rounded to 11 significant bits (TF32), sums in float32.",
            {"float32": "float32"},
            input_digits=11,
        ),
        NumericsClass(
            "fp16_accumulate",
            "float16 operands, products and sums in float16 (cuDNN's TRUE_HALF).",
            {"float16": "float16"},
        ),
    )
}
