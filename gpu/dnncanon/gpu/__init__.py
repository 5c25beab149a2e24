"""The GPU library: the primitives of the specification as Numba-CUDA kernels, on CUDA or the CPU emulator.

Where kernels run is decided by DNNCANON_DEVICE = auto, cuda, emulator, emulator-check or
emulator-profile. No device is opened before the first call. The primitives are attributes of this package.
"""

from importlib.util import find_spec
from typing import Any

if find_spec("numba_cuda") is None:
    raise ImportError(
        "dnncanon.gpu needs numba-cuda: pip install 'dnncanon[cuda13]', or 'dnncanon[cuda12]' for an "
        "older driver; without a GPU too, its compiler feeds the CPU emulator"
    )

from dnncanon.gpu import (
    backend,
    compatibility,  # noqa: F401  (has to be imported before numba.cuda is)
)
from dnncanon.gpu.fused import fuse
from dnncanon.gpu.library import (
    algorithms,
    execution_plan,
    find_algorithm,
    function,
    functions,
)
from dnncanon.gpu.plans import ExecutionPlan
from dnncanon.gpu.primitive import Algorithm
from dnncanon.gpu.recurrent import GRU, LSTM, RNN
from dnncanon.gpu.runtime import DeviceArray, DeviceError, as_strided, empty, to_device, to_host
from dnncanon.gpu.tuning import Timing
from dnncanon.spec.fused_tracing import modes

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Algorithm",
    "DeviceArray",
    "DeviceError",
    "ExecutionPlan",
    "Timing",
    "algorithms",
    "as_strided",
    "backend",
    "empty",
    "execution_plan",
    "find_algorithm",
    "fuse",
    "modes",
    "to_device",
    "to_host",
]


def __getattr__(name: str) -> Any:
    return function(__name__, name)


def __dir__() -> list[str]:
    return [*globals(), *functions()]
