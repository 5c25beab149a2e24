"""A batch of matrix products as the tile engine computes it: operands, tile, splits of the depth, launches.

y[…, m, n] = activation(α·Σ_k a[…, m, k]·b[…, k, n] + β·c[…, m, n] + bias[n])
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.plan import BLOCKS
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.cuda_core import CudaCore
from dnncanon.gpu.kernels.tile.engine import BATCH_RANK, Product, tile_product
from dnncanon.gpu.kernels.tile.epilogue import Output, activations, adjacent_elements, staging_bytes
from dnncanon.gpu.kernels.tile.parts import sum_parts
from dnncanon.gpu.kernels.tile.pieces import product_of_pieces
from dnncanon.gpu.kernels.tile.shape import CHUNK, Tile
from dnncanon.gpu.kernels.tile.slices import (
    Fetch,
    Slice,
    chunks_of_matrix,
    elements_of_matrix,
)
from dnncanon.gpu.kernels.tile.stream_k import Shares, divided_product, finished_product
from dnncanon.gpu.kernels.tile.tensor_core import TensorCore
from dnncanon.gpu.runtime import (
    DeviceArray,
    Strided,
    blocks_for,
    launch,
    reinterpret,
)
from dnncanon.gpu.runtime.device_code import types

_int64 = types.int64

# --- The matrices ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices in memory: strides of its batch dims, of its rows, of its columns."""

    dtype: str
    batch: tuple[int, ...]
    rows: int
    columns: int

    @classmethod
    def of(cls, dtype: str, array: Strided) -> "Matrix":
        """The last two dims are rows and columns; batch dims of extent 1 serve all."""
        dims = zip(array.shape, array.strides, strict=True)
        *batch, rows, columns = [0 if n == 1 else stride for n, stride in dims]
        return cls(dtype, (*(0,) * (BATCH_RANK - len(batch)), *batch), rows, columns)

    @property
    def transposed(self) -> "Matrix":
        return replace(self, rows=self.columns, columns=self.rows)

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.batch, self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Matrices:
    """A batch of products: extents, and where everything is. ``word`` is what is multiplied.

    ``flipped`` says that yᵀ = bᵀ·aᵀ is computed, of which a, b and y are the operands here. The sums go over
    so many ``pieces`` of the depth, which are ``steps`` apart in a and in b.
    """

    word: str
    batch: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    a: Matrix
    b: Matrix
    y: Matrix
    flipped: bool = False
    pieces: int = 1
    steps: tuple[int, int] = (0, 0)

    def along_rows(self) -> "Matrices":
        """The same, or of transposed matrices, so that y's elements of a row are the nearer ones."""
        if min(self.rows, self.columns) == 1 or abs(self.y.columns) <= abs(self.y.rows):
            return self
        a, b, y = self.b.transposed, self.a.transposed, self.y.transposed
        return replace(
            self,
            rows=self.columns,
            columns=self.rows,
            a=a,
            b=b,
            y=y,
            flipped=not self.flipped,
            steps=self.steps[::-1],
        )

    @property
    def members(self) -> int:
        return math.prod(self.batch)


# --- Tiles ----------------------------------------------------------------------------------------

LARGE, SMALL = Tile(128, 128, 32, (2, 2), 3), Tile(64, 64, 32, (2, 2), 3)
FLAT, TALL = Tile(16, 128, 64, (1, 4), 2), Tile(128, 16, 64, (4, 1), 2)
"""Of tensor cores; depths are those of 16-bit words."""

LARGE_CUDA, SMALL_CUDA = Tile(128, 128, 8, (2, 4), 3), Tile(64, 64, 16, (2, 4), 3)

LEAST_SLICES = 8
"""Slices that each part of a split depth has at least."""


def tile_for(m: Matrices, *, tensor_core: bool) -> Tile:
    """Flat for few rows, tall for few columns; large where that still makes enough blocks."""
    if not tensor_core:
        fills = m.members * LARGE_CUDA.count(m.rows, m.columns) >= BLOCKS // 2
        return LARGE_CUDA if fills and m.word == "float32" else SMALL_CUDA
    if m.rows <= FLAT.rows:
        tile = FLAT
    elif m.columns <= TALL.columns:
        tile = TALL
    else:
        fills = m.members * LARGE.count(m.rows, m.columns) >= BLOCKS // 2
        tile = LARGE if fills else SMALL
        if tile is LARGE and words.itemsize(words.stored(m.word)) > 2:
            # Fragments of 32-bit words, in two parts each for tf32x3, leave no room for 128 sums of a thread.
            tile = replace(LARGE, warps=(2, 4))
    return replace(tile, depth=tile.depth * 2 // words.itemsize(words.stored(m.word)))


def splits_for(m: Matrices, tile: Tile) -> int:
    """Into how many parts the depth is split, to fill a GPU."""
    blocks = max(1, m.members * tile.count(m.rows, m.columns))
    slices = -(-m.depth // tile.depth)
    most = m.pieces if m.pieces > 1 else slices // LEAST_SLICES
    return max(1, min(BLOCKS // blocks, most))


def shares_for(m: Matrices, tile: Tile, *, tensor_core: bool) -> Shares:
    """By stream-K, for products on tensor cores that have a tile for every second block and more."""
    tiles, slices = m.members * tile.count(m.rows, m.columns), -(-m.depth // tile.depth)
    if not tensor_core or m.pieces > 1 or splits_for(m, tile) > 1:
        return Shares(BLOCKS, tiles, slices, tiles, 0)
    return Shares.of(tiles, slices, BLOCKS)


def workspace_bytes(m: Matrices, *, tensor_core: bool) -> int:
    """The parts of a split depth, or of divided tiles."""
    tile = tile_for(m, tensor_core=tensor_core)
    splits = splits_for(m, tile)
    if splits == 1:
        shares = shares_for(m, tile, tensor_core=tensor_core)
        return shares.workspace_bytes(tile, _sum_dtype(m.word))
    return splits * m.members * m.rows * m.columns * words.itemsize(_sum_dtype(m.word))


def _sum_dtype(word: str) -> str:
    kept = {"int8": "int32", "float16": "float32", "bfloat16": "float32"}
    return kept.get(word, words.stored(word))


# --- Operands -------------------------------------------------------------------------------------

FEW = 1024
"""Operands with fewer elements are fetched one by one: chunks of so little would not be noticed, and every way
is one more kernel to compile."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's lines and depth: an array, its strides along them and along the batch."""

    array: DeviceArray
    dtype: str
    lines: int
    depth: int
    line_stride: int
    depth_stride: int
    batch: tuple[int, ...]

    def in_chunks(self, along: str) -> bool:
        """Whether it can be fetched in chunks of 16 bytes that lie along its depth, or along its lines."""
        count = CHUNK // self.array.dtype.itemsize
        near, far = self.depth_stride, self.line_stride
        extent, others = self.depth, self.lines
        if along == "lines":
            near, far, extent, others = far, near, others, extent
        many = self.lines * self.depth >= FEW
        adjacent = near == 1 or extent == 1
        strides = (far if others > 1 else 0, *self.batch)
        aligned = self.array.pointer % CHUNK == 0 and all(s % count == 0 for s in strides)
        return many and adjacent and aligned and extent % count == 0


def fetched(
    operand: Operand,
    lines: int,
    tile: Tile,
    word: str,
    *,
    tensor_core: bool,
    depth_varies: bool = False,
) -> tuple[Slice, Fetch]:
    """How slices of an operand lie in shared memory and get there: in chunks if possible, else by elements.

    For tensor cores along the depth or, of 16-bit words, along the lines; for CUDA cores along the lines. Where
    the device alone knows the depth, it cannot be in whole chunks.
    """
    word = words.stored(word)
    itemsize, same = words.itemsize(word), operand.dtype == word
    along_depth = Slice(lines, tile.depth, itemsize, "depth")
    along_lines = Slice(lines, tile.depth, itemsize, "lines", 0 if tensor_core else CHUNK)
    if tensor_core and same and not depth_varies and operand.in_chunks("depth"):
        return along_depth, chunks_of_matrix(along_depth, tile.threads)
    if same and (itemsize == 2 or not tensor_core) and operand.in_chunks("lines"):
        return along_lines, chunks_of_matrix(along_lines, tile.threads)
    layout = along_depth if tensor_core else along_lines
    return layout, elements_of_matrix(layout, tile.threads, operand.dtype, word)


# --- Running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Epilogue:
    """y = activation(alpha·product + beta·c + bias); c and bias have y's element type.

    c has the dims of y; a bias of one dim is by columns, one of more dims is broadcast to those of y.
    """

    alpha: float = 1.0
    beta: float = 1.0
    c: DeviceArray | None = None
    bias: DeviceArray | None = None
    activation: str = "identity"


def multiply(
    m: Matrices,
    a: DeviceArray,
    b: DeviceArray,
    y: DeviceArray,
    epilogue: Epilogue,
    workspace: DeviceArray | None,
    stream: object,
    *,
    tensor_core: bool,
) -> None:
    """Launch the kernels. ``a`` and ``b`` are the operands of ``m``: exchanged if it is flipped."""
    tile = tile_for(m, tensor_core=tensor_core)
    splits, shares = splits_for(m, tile), shares_for(m, tile, tensor_core=tensor_core)
    if shares.divided:
        assert workspace is not None
        _launch_shares(m, tile, shares, a, b, y, epilogue, workspace, stream)
        return
    if splits == 1:
        _launch_product(m, tile, 1, a, b, y, epilogue, stream, tensor_core=tensor_core)
        return
    assert workspace is not None
    sum_dtype = _sum_dtype(m.word)
    parts = reinterpret(workspace, ELEMENTS[sum_dtype].dtype)
    into = replace(m, y=_dense(sum_dtype, m))
    _launch_product(into, tile, splits, a, b, parts, Epilogue(), stream, tensor_core=tensor_core)
    c, bias, (c_at, bias_at), codes, scalars = ends(m, y, epilogue)
    extents = (*m.batch, m.rows, m.columns)
    origins = (y.origin, c_at.first, bias_at.first)
    strides = (*m.y.strides, *c_at.strides, *bias_at.strides)
    args = (
        parts,
        y,
        c,
        bias,
        splits,
        math.prod(extents),
        extents,
        origins,
        strides,
        codes,
        scalars,
    )
    function = sum_parts(sum_dtype, m.y.dtype)
    launch(function, blocks_for(math.prod(extents), 256), 256, args, stream=stream)


def _dense(dtype: str, m: Matrices) -> Matrix:
    size = m.rows * m.columns
    return Matrix(dtype, (m.batch[1] * m.batch[2] * size, m.batch[2] * size, size), m.columns, 1)


def _product(
    m: Matrices, tile: Tile, a: DeviceArray, b: DeviceArray, y: DeviceArray, *, tensor_core: bool
) -> Product:
    """What the kernel is compiled for."""
    far_a, far_b = (*m.a.batch, m.steps[0]), (*m.b.batch, m.steps[1])
    left = Operand(a, m.a.dtype, m.rows, m.depth, m.a.rows, m.a.columns, far_a)
    right = Operand(b, m.b.dtype, m.columns, m.depth, m.b.columns, m.b.rows, far_b)
    slice_a, fetch_a = fetched(left, tile.rows, tile, m.word, tensor_core=tensor_core)
    slice_b, fetch_b = fetched(right, tile.columns, tile, m.word, tensor_core=tensor_core)
    unit = (TensorCore if tensor_core else CudaCore)(m.word, tile, slice_a, slice_b)
    # Where both operands come element by element, wide stores would not be noticed either.
    wide = fetch_a.in_chunks or fetch_b.in_chunks
    output = Output(m.y.dtype, m.y.dtype, chunk_of_output(m, y) if wide else 1)
    return Product(unit, fetch_a, fetch_b, output)


def _launch_shares(
    m: Matrices,
    tile: Tile,
    shares: Shares,
    a: DeviceArray,
    b: DeviceArray,
    y: DeviceArray,
    epilogue: Epilogue,
    workspace: DeviceArray,
    stream: object,
) -> None:
    """By stream-K: the product, and what adds the parts of divided tiles."""
    product = _product(m, tile, a, b, y, tensor_core=True)
    parts = reinterpret(workspace, ELEMENTS[product.unit.sum_dtype].dtype)
    c, bias, (c_at, bias_at), codes, scalars = ends(m, y, epilogue)
    written = (y, c, bias, parts, (m.rows, m.columns, m.depth), shares.argument, m.batch)
    origins = (y.origin, c_at.first, bias_at.first)
    strides = (*m.y.batch, *c_at.batch, *bias_at.batch)
    near_and_far = (
        (m.y.columns, m.y.rows),
        (c_at.columns, c_at.rows),
        (bias_at.columns, bias_at.rows),
    )
    ends_of_y = (*near_and_far, codes, scalars)
    operands = ((m.a.rows, m.a.columns), (m.b.columns, m.b.rows))
    placed = ((a.origin, b.origin, *origins), (*m.a.batch, *m.b.batch, *strides), *operands)
    args = (a, b, *written, *placed, *ends_of_y)
    nbytes = product.shared_bytes
    function = divided_product(product)
    launch(function, shares.blocks, tile.threads, args, shared_bytes=nbytes, stream=stream)
    rest = (*written, origins, strides, *ends_of_y)
    function, nbytes = finished_product(product), staging_bytes(product.unit)
    launch(function, shares.divided, tile.threads, rest, shared_bytes=nbytes, stream=stream)


def _launch_product(
    m: Matrices,
    tile: Tile,
    splits: int,
    a: DeviceArray,
    b: DeviceArray,
    y: DeviceArray,
    epilogue: Epilogue,
    stream: object,
    *,
    tensor_core: bool,
) -> None:
    product = _product(m, tile, a, b, y, tensor_core=tensor_core)
    c, bias, (c_at, bias_at), codes, scalars = ends(m, y, epilogue)
    args = (
        a,
        b,
        y,
        c,
        bias,
        (m.rows, m.columns, m.depth, splits, *((m.pieces, *m.steps) if m.pieces > 1 else ())),
        m.batch,
        (a.origin, b.origin, y.origin, c_at.first, bias_at.first),
        (*m.a.batch, *m.b.batch, *m.y.batch, *c_at.batch, *bias_at.batch),
        (m.a.rows, m.a.columns),
        (m.b.columns, m.b.rows),
        (m.y.columns, m.y.rows),
        (c_at.columns, c_at.rows),
        (bias_at.columns, bias_at.rows),
        m.members * m.rows * m.columns,
        codes,
        scalars,
    )
    blocks = m.members * splits * tile.count(m.rows, m.columns)
    function = (product_of_pieces if m.pieces > 1 else tile_product)(product)
    nbytes = product.shared_bytes
    launch(function, blocks_for(blocks, 1), tile.threads, args, shared_bytes=nbytes, stream=stream)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand of the epilogue is: its first element, strides of the batch, of rows and columns."""

    first: int
    batch: tuple[int, ...]
    rows: int
    columns: int

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.batch, self.rows, self.columns)


_NOWHERE = Place(0, (0,) * BATCH_RANK, 0, 0)


def ends(m: Matrices, y: DeviceArray, epilogue: Epilogue) -> Any:
    """c and bias, or y in their place; where they are; codes and scalars for ``finisher``."""
    c, bias = epilogue.c, epilogue.bias
    c_at = bias_at = _NOWHERE
    if c is not None:
        matrix = Matrix.of(m.y.dtype, c)
        matrix = matrix.transposed if m.flipped else matrix
        c_at = Place(c.origin, matrix.batch, matrix.rows, matrix.columns)
    if bias is not None:
        rank_1 = bias.ndim == 1
        of_row = replace(bias, shape=(1, *bias.shape), strides=(0, *bias.strides))
        matrix = Matrix.of(m.y.dtype, of_row if rank_1 else bias)
        matrix = matrix.transposed if m.flipped else matrix
        bias_at = Place(bias.origin, matrix.batch, matrix.rows, matrix.columns)
    code = activations(_sum_dtype(m.word))[1][epilogue.activation]
    codes = (int(c is not None), int(bias is not None), code)
    return c or y, bias or y, (c_at, bias_at), codes, (epilogue.alpha, epilogue.beta)


def chunk_of_output(m: Matrices, y: DeviceArray) -> int:
    """How many elements of a row of y one store takes."""
    far = (*m.y.batch, m.y.rows if m.rows > 1 else 0)
    return adjacent_elements(y.pointer, y.dtype.itemsize, m.y.columns, far, m.columns)
