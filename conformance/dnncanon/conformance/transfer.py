"""Guarded tensors on their way to a backend and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.backends import Backend
from dnncanon.conformance.buffers import Guarded
from dnncanon.conformance.case import Case


class Sent:
    """A guarded tensor as handed to the backend, and as it comes back."""

    def __init__(self, backend: Backend, guarded: Guarded) -> None:
        self.backend = backend
        self.guarded = guarded
        if backend.as_strided is None:
            # Without views on the device only the tensor itself travels, dense or not.
            self.buffer = None
            self.tensor = backend.to_device(guarded.view())
            return
        # A copy: what the backend does to it is told from the original.
        self.buffer = backend.to_device(guarded.buffer.copy())
        self.tensor = backend.as_strided(
            self.buffer, guarded.type.shape, guarded.type.element_strides, guarded.margin
        )

    def damage(self, *, written: bool) -> str | None:
        """What changed around the tensor, or in it if it was not to be written."""
        if self.buffer is not None:
            return self.guarded.damage(self.backend.to_host(self.buffer), written=written)
        before, after = self.guarded.view(), np.asarray(self.backend.to_host(self.tensor))
        changed = before.tobytes() != after.tobytes()
        return f"{self.guarded.name}: an input was written" if changed else None

    def shares_memory(self, result: Any) -> bool:
        """Whether a result of the backend is made of this tensor's memory."""
        ours, theirs = _device_addresses(self.tensor), _device_addresses(result)
        if ours and theirs:
            return ours[0] < theirs[1] and theirs[0] < ours[1]
        one, other = self.backend.to_host(self.tensor), self.backend.to_host(result)
        both = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return both and np.may_share_memory(one, other)

    def received(self) -> NDArray[Any]:
        """The output, on the host."""
        host = np.asarray(self.backend.to_host(self.buffer))
        return replace(self.guarded, buffer=host).view()


def outputs(backend: Backend, case: Case) -> list[Sent]:
    """Poisoned outputs for a backend that takes ``out=``; none for others."""
    if not backend.accepts_out or backend.as_strided is None:
        return []
    types = zip(case.primitive.outputs, case.call.outputs, strict=True)
    return [
        Sent(
            backend,
            Guarded.poisoned(spec.name, replace(tensor, strides=case.layouts.get(spec.name))),
        )
        for spec, tensor in types
    ]


def out_keyword(sent: Sequence[Sent]) -> dict[str, Any]:
    """The ``out=`` argument: one tensor, or a tuple of several."""
    if not sent:
        return {}
    return {"out": sent[0].tensor if len(sent) == 1 else tuple(o.tensor for o in sent)}


def workspace(
    backend: Backend, primitive: str, tensors: Sequence[Any], keywords: dict[str, Any]
) -> list[Sent]:
    """Poisoned memory of just the size that the backend asks for; none if it asks for none.

    Raises ValueError when what it asks for is not a number of bytes.
    """
    if backend.workspace_bytes is None or backend.as_strided is None:
        return []
    wanted = backend.workspace_bytes(primitive, *tensors, **keywords)
    if not isinstance(wanted, (int, np.integer)) or wanted < 0:
        raise ValueError(f"workspace_bytes() returned {wanted!r}, not a number of bytes")
    return [Sent(backend, Guarded.workspace(int(wanted)))] if wanted else []


def snapshot(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that nobody else knows of, of NumPy's own type and none derived from it."""
    return np.array(np.ndarray.view(array, np.ndarray), copy=True)


def _device_addresses(array: Any) -> tuple[int, int] | None:
    """First address and the one behind the last, for an array with the CUDA array interface."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        return None
    shape, start = interface["shape"], int(interface["data"][0])
    itemsize = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    if 0 in shape:
        return start, start
    if strides is None:
        return start, start + int(np.prod(shape, dtype=np.int64)) * itemsize
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return start, start + int(reach) + itemsize
