"""The specification: what each primitive is, and nothing about how it is computed."""

from dnncanon.spec.conv import (
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_bias_activation_forward,
    conv_forward,
)
from dnncanon.spec.dtypes import DTYPES, DType, dtype_name
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
from dnncanon.spec.version import __version__

__all__ = [
    "DTYPES",
    "NUMERICS",
    "REQUIRED",
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
    "__version__",
    "channels_last_strides",
    "check_output_layout",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation_forward",
    "conv_forward",
    "dense_strides",
    "dtype_name",
    "primitives",
    "span",
]
