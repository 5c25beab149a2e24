"""Element types in kernels: the word in memory, the type sums are kept in, and the way between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dnncanon.gpu import ptx
from dnncanon.gpu.runtime.device_code import device_function, types


@dataclass(frozen=True, slots=True)
class Element:
    """One element type of tensors.

    ``to_sum`` and ``from_sum`` are device functions between the word in memory and the type of sums;
    ``from_sum`` rounds to nearest even, to ±Inf on overflow, and keeps subnormals.
    """

    name: str
    dtype: np.dtype[Any]
    sum_dtype: np.dtype[Any]
    sum: Any
    to_sum: Callable[[Any], Any]
    from_sum: Callable[[Any], Any]


@device_function
def _as_is(value: Any) -> Any:
    return value


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)

ELEMENTS = {
    row.name: row
    for row in (
        Element("float64", _F64, _F64, types.float64, _as_is, _as_is),
        Element("float32", _F32, _F32, types.float32, _as_is, _as_is),
        Element(
            "float16",
            np.dtype(np.float16),
            _F32,
            types.float32,
            ptx.f16_to_f32,
            ptx.f32_to_f16,
        ),
        Element(
            "bfloat16",
            np.dtype(ml_dtypes.bfloat16),
            _F32,
            types.float32,
            ptx.bf16_to_f32,
            ptx.f32_to_bf16,
        ),
    )
}
