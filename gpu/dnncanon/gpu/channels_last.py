"""A backend of the conformance suite in which every tensor with space is channels-last.

``dnncanon run --backend dnncanon.gpu.channels_last``

Kernels have fast paths for calls whose tensors are all channels-last. The suite draws the layout of each
tensor by itself, so that it hardly sees them; this backend lays out anew what it is given, and
leaves the layout of new outputs to the library, which follows the first input.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dnncanon.gpu import backend as dense
from dnncanon.gpu import library, runtime

name = "gpu channels last"

to_host = dense.to_host
synchronize = dense.synchronize
describe = dense.describe


def to_device(array: np.ndarray[Any, Any]) -> runtime.DeviceArray:
    """A copy in the device's memory, channels-last if there is a dim behind the channels."""
    if array.ndim > 2:
        array = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    return dense.to_device(array)


def __getattr__(primitive: str) -> Callable[..., Any]:
    """The function of a primitive."""
    return library.function(__name__, primitive)
