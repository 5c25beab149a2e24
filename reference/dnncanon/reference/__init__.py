"""The reference: one readable NumPy function for each primitive, which defines what it computes.

>>> import numpy as np
>>> import dnncanon.reference as ref
>>> ref.conv_forward(np.ones((1, 1, 3)), np.ones((1, 1, 2)), padding=1)
array([[[1., 2., 2., 1.]]])
"""

from dnncanon.reference.backend import backend, definitions
from dnncanon.reference.conv import (
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_bias_activation_forward,
    conv_forward,
)
from dnncanon.reference.definition import Definition

__all__ = [
    "Definition",
    "backend",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation_forward",
    "conv_forward",
    "definitions",
]
