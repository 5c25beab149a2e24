"""The specification: what each primitive is, and nothing about how it is computed.

Every declared primitive is an attribute of this package: ``spec.conv_forward``.
"""

from importlib import import_module
from typing import Any

from dnncanon.spec.dtypes import DTYPES, FLOATS, DType, dtype_name
from dnncanon.spec.errors import (
    AttributeValueError,
    DTypeError,
    LayoutError,
    MissingTensorError,
    ShapeError,
    SpecError,
    Unsupported,
)
from dnncanon.spec.numerics import NUMERICS, NumericsClass
from dnncanon.spec.primitive import (
    REQUIRED,
    Arguments,
    Attribute,
    Boundary,
    Call,
    Constraint,
    Draw,
    DTypeRow,
    Primitive,
    Scale,
    TensorSpec,
    primitives,
)
from dnncanon.spec.tensors import (
    TensorType,
    channels_last_strides,
    check_output_layout,
    dense_strides,
    span,
)
from dnncanon.spec.values import ANY, BOOLEAN, POSITIVE, UNIT, Values, index_below, integers_between
from dnncanon.spec.version import __version__

__all__ = [
    "ANY",
    "BOOLEAN",
    "DTYPES",
    "FLOATS",
    "NUMERICS",
    "POSITIVE",
    "REQUIRED",
    "UNIT",
    "Arguments",
    "Attribute",
    "AttributeValueError",
    "Boundary",
    "Call",
    "Constraint",
    "DType",
    "DTypeError",
    "DTypeRow",
    "Draw",
    "LayoutError",
    "MissingTensorError",
    "NumericsClass",
    "Primitive",
    "Scale",
    "ShapeError",
    "SpecError",
    "TensorSpec",
    "TensorType",
    "Unsupported",
    "Values",
    "__version__",
    "channels_last_strides",
    "check_output_layout",
    "dense_strides",
    "dtype_name",
    "index_below",
    "integers_between",
    "primitives",
    "span",
]

FAMILIES = (
    "conv",
    "pool",
    "resample",
    "activation",
    "pointwise",
    "norm",
    "reduce",
    "softmax",
    "dropout",
    "loss",
    "sampler",
    "quantize",
    "transform",
    "movement",
    "columns",
    "rope",
    "causal_conv",
    "fused",
    "matmul",
    "rnn",
    "attention",
)
"""The modules that declare primitives; reference and gpu define each family in a module of its name."""

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")


def __getattr__(name: str) -> Primitive[Any]:
    try:
        return primitives()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*globals(), *primitives()]
