"""Streams of any library: the handle of a CUDA stream, and the stream that an array's library is on."""

import sys
from typing import Any

from dnncanon.gpu.runtime.errors import DeviceError

# The attribute that holds the handle: PyTorch, CuPy, numba-cuda.
_HANDLES = ("cuda_stream", "ptr", "handle")


def stream_handle(stream: object) -> int:
    """The CUstream behind ``stream``: an int, or a stream of PyTorch, CuPy, numba-cuda or cuda.core.

    None and 0 are the default stream. DeviceError for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    for name in _HANDLES:
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise DeviceError(
        f"stream={stream!r} is no stream; pass a CUstream handle as an int, or a stream of PyTorch, "
        "CuPy, numba-cuda or cuda.core"
    )


def current_stream(array: object) -> object:
    """The stream that the library of ``array`` queues its work on now; None where it has none."""
    library: Any = sys.modules.get(type(array).__module__.partition(".")[0])
    match getattr(library, "__name__", ""):
        case "torch" if getattr(array, "is_cuda", False):
            return library.cuda.current_stream(array.device)  # type: ignore[attr-defined]
        case "cupy":
            return library.cuda.get_current_stream()
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else interface.get("stream")
