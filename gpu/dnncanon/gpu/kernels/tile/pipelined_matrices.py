"""A batch of matrix products on Hopper's tensor cores: which calls its copies can fetch, tiles, launches."""

from dataclasses import dataclass

import numpy as np

from dnncanon.gpu.kernels.tile.epilogue import Output, staging_bytes
from dnncanon.gpu.kernels.tile.matrices import (
    Epilogue,
    Matrices,
    chunk_of_output,
    ends,
)
from dnncanon.gpu.kernels.tile.pipeline import Pipeline, finished_parts, pipelined_product
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.kernels.tile.slices import Direction
from dnncanon.gpu.kernels.tile.stream_k import Shares
from dnncanon.gpu.kernels.tile.warpgroup import PANEL, SWIZZLE, Warpgroup
from dnncanon.gpu.runtime import (
    DeviceArray,
    TensorLayout,
    TensorMap,
    device,
    empty,
    launch,
    reinterpret,
)
from dnncanon.gpu.runtime.tensor_map import ALIGNMENT

CAPABILITY = (9, 0)
"""Of devices that have ``wgmma``: of no others, earlier or later."""

WORKERS = 132
"""Blocks of a launch, one for each multiprocessor of an H100 or H200."""

LEAST_SLICES = 8
"""Slices that each worker has at least, for "auto" to prefer this."""

LARGE, SMALL = Tile(128, 256, PANEL, (8, 1), 4), Tile(128, 128, PANEL, (8, 1), 4)


def tile_for(m: Matrices) -> Tile:
    """Large where that makes a tile for each worker."""
    return LARGE if m.members * LARGE.count(m.rows, m.columns) >= WORKERS else SMALL


def shares_of(m: Matrices) -> Shares:
    """Who computes what."""
    tile = tile_for(m)
    return Shares.of(m.members * tile.count(m.rows, m.columns), -(-m.depth // tile.depth), WORKERS)


def workspace_bytes(m: Matrices) -> int:
    """The parts of tiles that are divided."""
    return shares_of(m).workspace_bytes(tile_for(m), "float32")


def pays(m: Matrices) -> bool:
    """Whether there is enough to do for each worker, and the matrices are more than half a tile wide."""
    shares, wide = shares_of(m), 2 * min(m.rows, m.columns) > SMALL.rows
    return wide and shares.tiles * shares.slices >= LEAST_SLICES * WORKERS


# --- Operands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's lines and depth: extents, their strides and the batch's, and its first element's address."""

    name: str
    lines: int
    depth: int
    line_stride: int
    depth_stride: int
    batch: tuple[int, ...]
    address: int

    @property
    def along(self) -> Direction:
        """In which direction elements lie side by side; of an extent of 1 the other one has them."""
        adjacent = self.depth_stride == 1 or (self.depth == 1 and self.line_stride != 1)
        return "depth" if adjacent else "lines"

    @property
    def strides(self) -> tuple[int, int]:
        """Of what is nearer, and of what is farther apart; 0 of an extent of 1."""
        near, far = self.depth_stride, self.line_stride
        return (near, far) if self.along == "depth" else (far, near)

    @property
    def extents(self) -> tuple[int, int]:
        return (self.depth, self.lines) if self.along == "depth" else (self.lines, self.depth)

    def refusal(self) -> str | None:
        """Why TMA cannot copy it, as the end of a sentence."""
        (near, far), (adjacent, others), chunk = self.strides, self.extents, ALIGNMENT // 2
        if near != 1 and adjacent > 1:
            return f"needs rows or columns of adjacent elements, and {self.name}'s are {near} apart; copy it"
        if self.address % ALIGNMENT:
            return (
                f"needs {self.name} at a multiple of {ALIGNMENT} bytes, and it is {self.address % ALIGNMENT} "
                "bytes behind one; copy it"
            )
        apart = [far] if others > 1 else []
        for stride in (*apart, *filter(None, self.batch)):
            if stride <= 0 or stride % chunk:
                return (
                    f"needs strides of {self.name} that are multiples of {ALIGNMENT} bytes and above 0, and "
                    f"one is of {2 * stride} bytes; pad it"
                )
        return None

    def layout(self, batch: tuple[int, ...]) -> TensorLayout:
        """The tensor map's: five dims. What an operand has for the whole batch it has once."""
        adjacent, others = self.extents
        extents = [n if stride else 1 for n, stride in zip(batch, self.batch, strict=True)]
        strides = [stride or SWIZZLE for stride in (*self.batch, self.strides[1])]
        box = (1, 1, 1, PANEL, PANEL)
        return TensorLayout(2, (*extents, others, adjacent), (*strides, 1), box, SWIZZLE)

    @property
    def moves(self) -> tuple[int, ...]:
        """Along which dims of the batch it goes."""
        return tuple(int(stride != 0) for stride in self.batch)


def operands(m: Matrices, addresses: tuple[int, int]) -> tuple[Operand, Operand]:
    """Those of ``m``; the addresses are those of the call's a and b."""
    names, (first, second) = ("b", "a") if m.flipped else ("a", "b"), addresses
    at = (second, first) if m.flipped else (first, second)
    a, b = m.a, m.b
    return (
        Operand(names[0], m.rows, m.depth, a.rows, a.columns, a.batch, at[0]),
        Operand(names[1], m.columns, m.depth, b.columns, b.rows, b.batch, at[1]),
    )


def refusal(m: Matrices, addresses: tuple[int, int]) -> str | None:
    """Why the product is not for this algorithm, as the end of a sentence."""
    capability = device().capability
    if capability != CAPABILITY:
        needed, here = (".".join(map(str, one)) for one in (CAPABILITY, capability))
        return f"needs a device of compute capability {needed}, and this one's is {here}"
    if 0 in (m.members, m.rows, m.columns, m.depth):
        return f"needs something to multiply, and a product is {m.rows}×{m.depth}×{m.columns}"
    a, b = operands(m, addresses)
    return a.refusal() or b.refusal()


# --- Running --------------------------------------------------------------------------------------


def multiply(
    m: Matrices,
    a: DeviceArray,
    b: DeviceArray,
    y: DeviceArray,
    epilogue: Epilogue,
    workspace: DeviceArray | None,
    stream: object,
) -> None:
    """Launch the kernels. ``a`` and ``b`` are the operands of ``m``: exchanged if it is flipped."""
    tile = tile_for(m)
    addresses = (b.pointer, a.pointer) if m.flipped else (a.pointer, b.pointer)
    left, right = operands(m, addresses)
    unit = Warpgroup(m.word, tile, left.along, right.along)
    pipeline = Pipeline(unit, Output(m.y.dtype, m.y.dtype, chunk_of_output(m, y)))
    c, bias, (c_at, bias_at), codes, scalars = ends(m, y, epilogue)
    single, shares = np.dtype(np.float32), shares_of(m)
    parts = empty((0,), single) if workspace is None else reinterpret(workspace, single)
    written = (y, c, bias, parts, (m.rows, m.columns, m.depth), shares.argument, m.batch)
    placed = (
        (y.origin, c_at.first, bias_at.first),
        (*m.y.batch, *c_at.batch, *bias_at.batch),
        (m.y.columns, m.y.rows),
        (c_at.columns, c_at.rows),
        (bias_at.columns, bias_at.rows),
        codes,
        scalars,
    )
    maps = TensorMap(a, left.layout(m.batch)), TensorMap(b, right.layout(m.batch))
    launch(
        pipelined_product(pipeline),
        shares.blocks,
        pipeline.threads,
        (*maps, *written, (*left.moves, *right.moves), *placed),
        shared_bytes=pipeline.shared_bytes,
        stream=stream,
    )
    if shares.divided:
        launch(
            finished_parts(pipeline),
            shares.divided,
            tile.threads,
            (*written, *placed),
            shared_bytes=staging_bytes(unit),
            stream=stream,
        )
