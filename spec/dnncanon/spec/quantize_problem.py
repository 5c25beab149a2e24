"""Quantization: its formats, what a call resolves to, and the types of its results."""

import math
from dataclasses import dataclass

from dnncanon.spec.attributes import as_integer
from dnncanon.spec.primitive import Arguments
from dnncanon.spec.tensors import Shape, TensorType

WITH_ZERO_POINT = ("int8", "uint8")
"""Codes that may have a zero point."""
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
CODES = (*WITH_ZERO_POINT, *FLOAT8)
BLOCK_CODES = (*FLOAT8, "float4_e2m1fn")
BLOCK_SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
WIDE = ("float32", "float16", "bfloat16")
"""What codes are dequantized to."""

LAYOUTS = ("plain", "128x4")
TILE_ROWS, TILE_COLUMNS = 128, 4
"""Scales of a tile in the layout "128x4"; it has the shape [32, 4, 4]: row % 32, row // 32, column."""
MAX_TILED_RANK = 5

FORMATS = (
    ("float8_e4m3fn", "float8_e8m0fnu", 32),
    ("float8_e5m2", "float8_e8m0fnu", 32),
    ("float4_e2m1fn", "float8_e4m3fn", 16),
    ("float4_e2m1fn", "float8_e8m0fnu", 32),
)
"""Codes, scales and block size of MXFP8 (two of them), NVFP4 and MXFP4."""
SAMPLED_FORMATS = (*FORMATS, ("float8_e5m2", "float8_e4m3fn", 16))
"""And codes that have a NaN with scales that have a 0."""


@dataclass(frozen=True, slots=True)
class LinearProblem:
    """Linear quantization of x, or of codes x back; ``axis`` is not negative, None for one scale."""

    dtype: str
    shape: Shape
    output: str
    axis: int | None

    @property
    def scales_shape(self) -> Shape:
        """The shape in which scales and zero points broadcast to x."""
        return tuple(n if dim == self.axis else 1 for dim, n in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class BlockProblem:
    """Block scaling of x, or of codes x back; ``axis`` is not negative."""

    dtype: str
    shape: Shape
    output: str
    axis: int
    block_size: int
    scale_dtype: str
    tiled: bool

    @property
    def blocked_shape(self) -> Shape:
        """The shape with the axis divided into blocks and their elements."""
        blocks = self.shape[self.axis] // self.block_size
        return (*self.shape[: self.axis], blocks, self.block_size, *self.shape[self.axis + 1 :])

    @property
    def plain_shape(self) -> Shape:
        """One scale for each block, in place of the axis."""
        blocks = self.shape[self.axis] // self.block_size
        return (*self.shape[: self.axis], blocks, *self.shape[self.axis + 1 :])

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """Of the scales that tiles are made of: a column for each block, a row for each of their neighbours."""
        rows = self.shape[-2] if self.axis == len(self.shape) - 1 else self.shape[-1]
        return rows, self.shape[self.axis] // self.block_size

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles rows and columns take."""
        rows, columns = self.rows_and_columns
        return -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)

    @property
    def scale_shape(self) -> Shape:
        if not self.tiled:
            return self.plain_shape
        return (*self.shape[:-2], *self.tiles, 32, 4, 4)


# --- From arguments to a problem ------------------------------------------------------------------


def resolve_linear(a: Arguments) -> LinearProblem:
    x, axis = a.tensors["x"], a.attributes["axis"]
    place = None if axis is None else as_integer(axis) % x.rank
    return LinearProblem(x.dtype, x.shape, a.attributes["dtype"], place)


def resolve_block(a: Arguments) -> BlockProblem:
    x, given = a.tensors["x"], a.attributes
    scale = a.tensors.get("scale")
    return BlockProblem(
        dtype=x.dtype,
        shape=x.shape,
        output=given["dtype"],
        axis=as_integer(given["axis"]) % x.rank,
        block_size=as_integer(given["block_size"]),
        scale_dtype=given["scale_dtype"] if scale is None else scale.dtype,
        tiled=given["scale_layout"] == "128x4",
    )


def like_x(p: LinearProblem | BlockProblem) -> tuple[TensorType]:
    return (TensorType(p.output, p.shape),)


def codes_and_scales(p: BlockProblem) -> tuple[TensorType, TensorType]:
    return TensorType(p.output, p.shape), TensorType(p.scale_dtype, p.scale_shape)


def elements(p: LinearProblem | BlockProblem) -> int:
    return math.prod(p.shape)
