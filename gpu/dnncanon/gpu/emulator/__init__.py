"""Run Numba-CUDA kernels on a machine without a GPU, from the LLVM IR that numba-cuda makes."""

from dnncanon.gpu.emulator.errors import (
    EmulatorError,
    KernelError,
    LaunchError,
    UnsupportedKernel,
    UnsupportedPlatform,
)
from dnncanon.gpu.emulator.launching.inspection import CheckError
from dnncanon.gpu.emulator.launching.launch import LaunchReport, launch
from dnncanon.gpu.emulator.launching.tensor_map import TensorMap

__all__ = [
    "CheckError",
    "EmulatorError",
    "KernelError",
    "LaunchError",
    "LaunchReport",
    "TensorMap",
    "UnsupportedKernel",
    "UnsupportedPlatform",
    "launch",
]
