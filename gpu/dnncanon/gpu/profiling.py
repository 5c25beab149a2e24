"""What a primitive moves and computes, counted by the emulator: deterministic, and the same anywhere.

DNNCANON_DEVICE=emulator-profile python
>>> profile = gpu.profile("conv_forward", x, w, padding=1)
>>> profile.bytes_over_least          # sectors moved over the bytes that must move
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
        """Bytes in the 32-byte sectors that all launches touched, without caches."""
        return sum(32 * launch.profile.global_sectors for launch in self.launches)

    @property
    def bytes_over_least(self) -> float:
        """Bytes moved over the least; below 1 only where zero-size or broadcast inputs are counted."""
        return self.bytes_moved / self.least_bytes if self.least_bytes else 0.0

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
