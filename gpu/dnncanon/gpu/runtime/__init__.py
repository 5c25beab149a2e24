"""The run time: devices, device arrays, and the one seam through which every kernel is launched."""

from dnncanon.gpu.runtime.array import (
    DeviceArray,
    Strided,
    View,
    as_strided,
    empty,
    origin,
    reinterpret,
    span,
    to_device,
    to_host,
)
from dnncanon.gpu.runtime.errors import DeviceError
from dnncanon.gpu.runtime.interop import Operands, Output, describe
from dnncanon.gpu.runtime.launching import MAX_GRID, Kernel, blocks_for, kernel, launch
from dnncanon.gpu.runtime.selection import Device, device, has_gpu
from dnncanon.gpu.runtime.tensor_map import TensorLayout, TensorMap

__all__ = [
    "MAX_GRID",
    "Device",
    "DeviceArray",
    "DeviceError",
    "Kernel",
    "Operands",
    "Output",
    "Strided",
    "TensorLayout",
    "TensorMap",
    "View",
    "as_strided",
    "blocks_for",
    "describe",
    "device",
    "empty",
    "has_gpu",
    "kernel",
    "launch",
    "origin",
    "reinterpret",
    "span",
    "to_device",
    "to_host",
]
