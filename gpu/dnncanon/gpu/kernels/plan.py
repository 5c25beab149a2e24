"""What an algorithm is given to do, and what an algorithm is; nothing here imports Numba."""

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dnncanon.gpu.kernels.correlation import Correlation, Layout
from dnncanon.gpu.runtime import DeviceArray, Strided, origin

PlanType = TypeVar("PlanType", contravariant=True)

COLUMNS = 32
"""Channels of a block where channels are adjacent in memory, so that a warp reads them together."""

STRETCH = 4096
"""Elements of a channel that a block sums at least before the sum is split."""

BLOCKS = 256
"""Blocks that suffice to fill a GPU; more splits than that would only cost workspace."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """out = activation(alpha1·sum + alpha2·residual + bias); the default stores the sum as it is.

    ``residual_at`` is the layout of the residual, in the roles of the output's.
    """

    alpha1: float = 1.0
    alpha2: float = 0.0
    bias: DeviceArray | None = None
    residual: DeviceArray | None = None
    residual_at: Layout | None = None
    relu: bool = False

    def arguments(self, absent: DeviceArray) -> tuple[Any, ...]:
        """As kernels take it; ``absent`` stands where there is no bias or residual."""
        bias, residual = self.bias or absent, self.residual or absent
        bias_at = (origin(bias), bias.strides[0]) if self.bias else (0, 0)
        strides = self.residual_at.strides if self.residual_at else (0,) * 7
        flags = (int(self.bias is not None), int(self.residual is not None), int(self.relu))
        return bias, bias_at, residual, strides, flags, (self.alpha1, self.alpha2)


@dataclass(frozen=True, slots=True)
class Plan:
    """A convolution or one of its gradients, as correlations to be run in order.

    They write disjoint parts of the output, unless the first one writes zeros everywhere. ``residual`` is the
    layout of what is added to them, if something is; ``depthwise`` says that groups have an input channel each.
    """

    dtype: str
    correlations: tuple[Correlation, ...]
    residual: Layout | None = None
    depthwise: bool = False


@dataclass(frozen=True, slots=True)
class BiasPlan:
    """dy as channels and a collapsed rest: four extents with their strides, in elements."""

    dtype: str
    channels: int
    extents: tuple[int, ...]
    origin: int
    channel_stride: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...], dy: Strided) -> "BiasPlan":
        batch, channels, *spatial = shape
        n_stride, channel_stride, *spatial_strides = dy.strides
        dims = _collapse([(batch, n_stride), *zip(spatial, spatial_strides, strict=True)])
        extents, strides = zip(*dims, strict=True)
        return cls(dtype, channels, extents, origin(dy), channel_stride, strides)

    @property
    def length(self) -> int:
        """Elements of a channel."""
        return math.prod(self.extents)

    @property
    def columns(self) -> int:
        """Channels of a block."""
        return COLUMNS if self.channel_stride < self.strides[-1] else 1

    @property
    def splits(self) -> int:
        """Into how many stretches a channel's sum is split."""
        blocks = max(1, -(-self.channels // self.columns))
        return max(1, min(self.length // STRETCH, BLOCKS // blocks))


def _collapse(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Four (extent, stride) dims that visit the same elements; adjacent ones are joined."""
    joined: list[tuple[int, int]] = []
    for extent, stride in dims:
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = (joined[-1][0] * extent, stride)
        else:
            joined.append((extent, stride))
    return [(1, 0)] * (4 - len(joined)) + joined


@dataclass(frozen=True, slots=True)
class Tensors:
    """The arrays of a correlation, and how its sums are finished."""

    source: DeviceArray
    filter: DeviceArray
    out: DeviceArray
    epilogue: Epilogue


class Implementation(Protocol[PlanType]):
    """An algorithm. ``run`` needs ``workspace_bytes`` bytes of workspace, and none when that is 0.

    ``numerics`` is its numerics class if that is not the strictest of the primitive.
    """

    @property
    def name(self) -> str: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def numerics(self) -> str | None: ...
    def refusal(self, plan: PlanType) -> str | None:
        """Why it does not take the plan, as the end of a sentence; None when it does."""

    def pays(self, plan: PlanType) -> bool:
        """Whether it takes the plan and "auto" should prefer it to the algorithms after it."""

    def workspace_bytes(self, plan: PlanType) -> int: ...
    def run(
        self, plan: PlanType, tensors: Any, workspace: DeviceArray | None, stream: object
    ) -> None: ...
