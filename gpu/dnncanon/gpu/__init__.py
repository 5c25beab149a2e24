"""The GPU library: the primitives of the specification as Numba-CUDA kernels, on CUDA or the CPU emulator.

Where kernels run is decided by DNNCANON_DEVICE = auto, cuda, emulator, emulator-check or
emulator-profile. No device is opened before the first call.
"""

from importlib.util import find_spec

if find_spec("numba_cuda") is None:
    raise ImportError(
        "dnncanon.gpu needs numba-cuda: pip install 'dnncanon[cuda13]', or 'dnncanon[cuda12]' for an "
        "older driver; without a GPU too, its compiler feeds the CPU emulator"
    )

from dnncanon.gpu import (
    backend,
    compatibility,  # noqa: F401  (has to be imported before numba.cuda is)
)
from dnncanon.gpu.conv import (
    Algorithm,
    algorithms,
    conv_backward_bias,
    conv_backward_data,
    conv_backward_filter,
    conv_bias_activation_forward,
    conv_forward,
)
from dnncanon.gpu.runtime import DeviceArray, DeviceError, as_strided, empty, to_device, to_host

__all__ = [
    "Algorithm",
    "DeviceArray",
    "DeviceError",
    "algorithms",
    "as_strided",
    "backend",
    "conv_backward_bias",
    "conv_backward_data",
    "conv_backward_filter",
    "conv_bias_activation_forward",
    "conv_forward",
    "empty",
    "to_device",
    "to_host",
]
