"""Guarded tensors on their way to a backend and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnncanon.conformance.backends import Backend
from dnncanon.conformance.buffers import MARGIN, Guarded
from dnncanon.conformance.case import Case
from dnncanon.spec import TensorType


class Sent:
    """A guarded tensor as handed to the backend, and as it comes back.

    It lies in ``buffer`` where that is given, which holds on the device what the guarded one does.
    """

    def __init__(self, backend: Backend, guarded: Guarded, buffer: Any = None) -> None:
        self.backend = backend
        self.guarded = guarded
        if backend.as_strided is None:
            # Without views on the device only the tensor itself travels, dense or not.
            self.buffer = None
            self.tensor = backend.to_device(guarded.view())
            return
        # A copy: what the backend does to it is told from the original.
        self.buffer = backend.to_device(guarded.buffer.copy()) if buffer is None else buffer
        self.tensor = backend.as_strided(
            self.buffer, guarded.type.shape, guarded.type.element_strides, guarded.margin
        )

    def sharing(self, name: str, tensor: TensorType, offset: int) -> "Sent":
        """Another tensor in the same memory, its first element so many behind this one's."""
        within = Guarded(name, tensor, self.guarded.buffer, self.guarded.margin + offset)
        return Sent(self.backend, within, self.buffer)

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


def takes_out(backend: Backend) -> bool:
    """Whether outputs are handed to a backend: it takes ``out=``, and views of its memory can be made."""
    return backend.accepts_out and backend.as_strided is not None


def margin(case: Case) -> int:
    """Elements on either side of each tensor: more where an ``out=`` lies over another."""
    return MARGIN + (case.wrong_out.reach if case.wrong_out else 0)


def outputs(backend: Backend, case: Case, inputs: Mapping[str, Sent]) -> list[Sent]:
    """Poisoned outputs for a backend that takes ``out=``; none for others.

    They are as the call demands, but for the one that is to be wrong.
    """
    if not takes_out(backend):
        return []
    wrong, sent = case.wrong_out, dict(inputs)
    for name, right in case.call.named_outputs.items():
        tensor = replace(right, strides=case.layouts.get(name))
        if wrong and wrong.output == name and wrong.over:
            sent[name] = sent[wrong.over].sharing(name, tensor, wrong.offset)
            continue
        given = wrong.given if wrong and wrong.output == name else tensor
        sent[name] = Sent(backend, Guarded.poisoned(name, given, margin(case)))
    return [sent[name] for name in case.call.named_outputs]


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
