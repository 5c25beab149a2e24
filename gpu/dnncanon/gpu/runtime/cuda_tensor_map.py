"""Tensor maps on a CUDA GPU: encoded by the driver, and kept in the GPU's memory."""

from functools import lru_cache
from typing import Any

import numpy as np
from cuda.bindings import driver
from numba import cuda

from dnncanon.gpu.runtime.errors import DeviceError
from dnncanon.gpu.runtime.tensor_map import TensorLayout

_WORDS = {
    1: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    2: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16,
    4: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT32,
}
"""By itemsize: copies do not look at what the elements are."""

_SWIZZLES = {
    0: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}


@lru_cache(maxsize=1024)
def descriptor(pointer: int, layout: TensorLayout) -> Any:
    """The map as an array of 128 bytes on the GPU; the same for the same memory, so it is made once.

    Kernels have to call ``ptx.fence_tensor_map`` before they use it: it was written as ordinary memory.
    """
    return cuda.to_device(encoded(pointer, layout))


def encoded(pointer: int, layout: TensorLayout) -> np.ndarray[Any, Any]:
    """The 128 bytes. DeviceError with the driver's word for what it refuses."""
    innermost_first = slice(None, None, -1)
    strides = [stride * layout.itemsize for stride in layout.strides[innermost_first]]
    error, made = driver.cuTensorMapEncodeTiled(
        _WORDS[layout.itemsize],
        len(layout.extents),
        pointer,
        [driver.cuuint64_t(extent) for extent in layout.extents[innermost_first]],
        [driver.cuuint64_t(stride) for stride in strides[1:]],
        [driver.cuuint32_t(extent) for extent in layout.box[innermost_first]],
        [driver.cuuint32_t(1)] * len(layout.extents),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLES[layout.swizzle],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"no tensor map of address {pointer:#x} and {layout}: {error.name}")
    return np.array([int(word) for word in made.opaque], np.uint64).view(np.uint8)
