"""PyTorch as a backend: its CPU kernels, or cuDNN's when CUDA is there.

The functions of a family are in the module of its name; where there is none, torch is not asked.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from numpy.typing import NDArray

from dnncanon.spec import DTYPES, primitives

# torch shares no memory with NumPy for these; the bits travel as integers.
_BITS = {"bfloat16": torch.uint16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}


@cache
def _families() -> dict[str, Any]:
    """The modules of this package that implement a family."""
    names = dict.fromkeys(primitive.family for primitive in primitives().values())
    modules = {name: f"{__name__}.{name}" for name in names}
    return {name: import_module(path) for name, path in modules.items() if find_spec(path)}


class TorchBackend:
    """torch behind the primitives' own signatures."""

    name = "torch"

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(1)  # the suite runs its own workers side by side
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The function of a primitive."""
        primitive = primitives().get(name)
        module = _families().get(primitive.family) if primitive else None
        found = getattr(module, name, None)
        if found is None:
            raise AttributeError(name)
        return found

    # --- Arrays ---

    def to_device(self, array: NDArray[Any]) -> torch.Tensor:
        name = array.dtype.name
        if name in _BITS:
            words = array.view(f"u{array.itemsize}")
            return torch.from_numpy(words).view(getattr(torch, name)).to(self.device)
        return torch.from_numpy(array).to(self.device)

    def to_host(self, tensor: torch.Tensor) -> NDArray[Any]:
        tensor = tensor.detach().cpu()
        name = str(tensor.dtype).removeprefix("torch.")
        if name in _BITS:
            bits: NDArray[Any] = tensor.contiguous().view(_BITS[name]).numpy()
            return bits.view(DTYPES[name].numpy)
        result: NDArray[Any] = tensor.numpy()
        return result

    def as_strided(
        self, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> torch.Tensor:
        return tensor.as_strided(shape, strides, offset)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def describe(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        device = torch.cuda.get_device_name() if cuda else "CPU"
        versions = {"torch": torch.__version__}
        if cuda:
            versions["cudnn"] = str(torch.backends.cudnn.version())
        claims = {} if cuda else _cpu_claims()
        return {"device": device, "gpu": cuda, "versions": versions, **claims}


def _cpu_claims() -> dict[str, Any]:
    """Numerics classes, and layers that are declined, of all families: what their CPU_CLAIMS say."""
    claims: dict[str, Any] = {"numerics": {}, "declines": {}}
    for module in _families().values():
        for kind, rows in getattr(module, "CPU_CLAIMS", {}).items():
            claims[kind].update(rows)
    return claims


backend = TorchBackend
