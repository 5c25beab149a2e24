"""What a primitive moves and computes, counted by the emulator: deterministic, and the same anywhere.

DNNCANON_DEVICE=emulator-profile python
>>> profile = gpu.profile("conv_forward", x, w, padding=1)
>>> profile.bytes_over_least          # bytes that requests touch over the bytes that must move
>>> profile.dram_over_least           # the same of those that reach DRAM
>>> profile.launches[0].profile.lines # by source line
"""

from dataclasses import dataclass
from typing import Any

import dnncanon.gpu as gpu
from dnncanon.gpu.runtime import DeviceError, device
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice
from dnncanon.spec import primitives


@dataclass(frozen=True)
class PrimitiveProfile:
    """The launches of one call of a primitive, and what the primitive itself asks for.

    ``least_bytes`` is every input read once and every output written once; ``flops`` those of the
    definition. ``launches`` are the emulator's reports, each with its ``profile``.
    """

    primitive: str
    least_bytes: int
    flops: int
    launches: tuple[Any, ...]

    @property
    def bytes_moved(self) -> int:
        """Bytes in the 32-byte sectors that the requests of all launches touch, without caches."""
        return sum(32 * launch.profile.global_sectors for launch in self.launches)

    @property
    def bytes_over_least(self) -> float:
        """Bytes moved over the least; below 1 only where zero-size or broadcast inputs are counted."""
        return self.bytes_moved / self.least_bytes if self.least_bytes else 0.0

    @property
    def dram_bytes(self) -> int:
        """Bytes that reach DRAM if caches keep all during a launch, and nothing from one to the next."""
        return sum(launch.profile.dram_bytes for launch in self.launches)

    @property
    def dram_over_least(self) -> float:
        """Bytes that reach DRAM over the least."""
        return self.dram_bytes / self.least_bytes if self.least_bytes else 0.0

    def sector_efficiency(self, operation: str) -> float:
        """The share that lanes asked for of the bytes in the sectors of all "load" or "store" requests.

        1 is perfect, and what there is to say where there are no such requests. Above 1 lanes of a request
        share bytes, as all do in a broadcast.
        """
        accesses = [
            access
            for launch in self.launches
            for access in launch.profile.accesses
            if access.space == "global" and access.operation == operation
        ]
        touched = sum(access.units for access in accesses)
        return sum(access.least for access in accesses) / touched if touched else 1.0

    @property
    def flops_executed(self) -> int:
        """Floating-point operations of the kernels, a fused multiply-add counted as two."""
        return sum(launch.profile.flops for launch in self.launches)


def profile(primitive: str, *tensors: Any, **attributes: Any) -> PrimitiveProfile:
    """Call a primitive on the emulator in profile mode and return what it did.

    ``attributes`` may hold ``algorithm`` and the like too. Raises DeviceError unless DNNCANON_DEVICE is
    emulator-profile, and the errors of the primitive.
    """
    emulated = device()
    if not isinstance(emulated, EmulatedDevice) or emulated.mode != "profile":
        raise DeviceError(
            "profile counts on the emulator only; set DNNCANON_DEVICE=emulator-profile"
        )
    declared = primitives()[primitive]
    names = {attribute.name for attribute in declared.attributes}
    call = declared.bind(*tensors, **{k: v for k, v in attributes.items() if k in names})
    with emulated.recording() as launches:
        getattr(gpu, primitive)(*tensors, **attributes)
    return PrimitiveProfile(primitive, call.least_bytes, call.flops, tuple(launches))
