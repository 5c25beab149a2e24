"""The backend "gpu" of the conformance suite: this module is the backend object."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnncanon.gpu import library, runtime
from dnncanon.spec import primitives

name = "gpu"

accepts_out = True
"""The functions take ``out=``, with any strides."""


def to_device(array: np.ndarray[Any, Any]) -> runtime.DeviceArray:
    """A copy of a NumPy array in the device's memory."""
    return runtime.to_device(array)


def to_host(array: runtime.DeviceArray) -> np.ndarray[Any, Any]:
    """A NumPy copy of a device array."""
    return runtime.to_host(array)


def as_strided(
    buffer: runtime.DeviceArray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> runtime.DeviceArray:
    """A view of a flat device buffer; ``strides`` and ``offset`` count elements."""
    return runtime.as_strided(buffer, shape, strides, offset)


def workspace_bytes(primitive: str, *tensors: Any, **attributes: Any) -> int:
    """The size of the workspace that the call takes with ``algorithm="auto"``, exactly."""
    return library.algorithms(primitive, *tensors, **attributes)[0].workspace_bytes


def static_figures(
    primitives: Sequence[str],
    dtypes: Sequence[str],
    architectures: Sequence[str],
    *,
    everything: bool,
    jobs: int,
) -> Any:
    """What the compiler makes of the kernels: :func:`dnncanon.gpu.static.figures.static_figures`."""
    from dnncanon.gpu.static.figures import static_figures

    return static_figures(primitives, dtypes, architectures, everything=everything, jobs=jobs)


def synchronize() -> None:
    """Wait until the device has done everything."""
    runtime.device().synchronize()


def describe() -> dict[str, Any]:
    """Device, versions, numerics class by primitive and dtype, and whose errors are raised."""
    device = runtime.device()
    offered = [p for p in primitives().values() if p.name in library.functions()]
    return {
        "device": device.name,
        "gpu": not device.is_host,
        "versions": device.versions(),
        "numerics": {p.name: {row.dtype: row.numerics[0] for row in p.dtypes} for p in offered},
        "deterministic": {p.name: True for p in offered},
        "errors": "dnncanon",
    }


def __getattr__(primitive: str) -> Callable[..., Any]:
    """The function of a primitive."""
    return library.function(__name__, primitive)
