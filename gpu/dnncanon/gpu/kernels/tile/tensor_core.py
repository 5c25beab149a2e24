"""The unit that multiplies slices on tensor cores, by ``mma.sync`` (sm_80 and later).

A warp computes its share of the tile in fragments of 16 rows and 8 columns. One step of the depth is 32 bytes
of it, two chunks of every line: 16 elements of float16, 32 of int8. ``ldmatrix`` brings them from shared memory
as the instruction wants them: from slices along the depth of any type, and of 16-bit types from slices along
the lines too. Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and the sections after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile.shape import CHUNK, WARP, Tile
from dnncanon.gpu.kernels.tile.slices import Slice, place_in
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

_INSTRUCTIONS = {
    "float16": ptx.mma_f16,
    "bfloat16": ptx.mma_bf16,
    "int8": ptx.mma_s8,
    "tf32": ptx.mma_tf32,
    "tf32x3": ptx.mma_tf32,
}

ROWS, COLUMNS = 16, 8
"""Of a fragment of the product."""

_LINES = 16
"""Lines that one ``ldmatrix`` brings: a fragment of A, two of B."""

_int32, _int64, _uint32 = types.int32, types.int64, types.uint32


@dataclass(frozen=True, slots=True)
class TensorCore:
    """Multiplies words of one type. Sums are float32, or int32 of int8.

    "tf32" and "tf32x3" are float32 in shared memory; of the latter each is a sum of two TF32 numbers, of whose
    four products the one of the rests is left out.
    """

    word: str
    tile: Tile
    a: Slice
    b: Slice

    @property
    def down(self) -> int:
        """Fragments of a warp, from top to bottom."""
        return self.tile.warp_rows // ROWS

    @property
    def across(self) -> int:
        return self.tile.warp_columns // COLUMNS

    @property
    def sum_dtype(self) -> str:
        return "int32" if self.word == "int8" else "float32"

    @property
    def sums(self) -> int:
        """Of a thread: of fragment (i, j) the four from (i · across + j) · 4 on."""
        return self.down * self.across * 4

    @property
    def steps(self) -> int:
        """Of the depth of a slice."""
        return self.a.depth * self.a.itemsize // (2 * CHUNK)

    @property
    def addresses(self) -> tuple[int, int]:
        """How many a thread keeps, for A and for B."""
        return _addresses(self.a, self.steps, self.down), _addresses(
            self.b, self.steps, self.across // 2
        )


def _addresses(layout: Slice, steps: int, groups: int) -> int:
    return steps if layout.along == "depth" else groups


@cache
def prepare(unit: TensorCore) -> Callable[..., None]:
    """prepare(places_a, places_b, thread): where in a slice a thread's rows of matrices start."""
    down = unit.tile.warps[0]
    rows, columns = unit.tile.warp_rows, unit.tile.warp_columns
    places_of_a = _places(unit.a, unit.steps, unit.down)
    places_of_b = _places(unit.b, unit.steps, unit.across // 2)

    @device_function
    def prepare_(places_a: Any, places_b: Any, thread: Any) -> None:
        lane, warp = thread % WARP, thread // WARP
        half, quarter = lane >> 4, lane >> 3 & 1
        places_of_a(places_a, lane & 7, quarter, half, warp % down * rows)
        places_of_b(places_b, lane & 7, half, quarter, warp // down * columns)

    return prepare_


@cache
def _places(layout: Slice, steps: int, groups: int) -> Callable[..., None]:
    """For lanes that point to row ``row`` of the matrix of a half of the lines and a half of the depth."""
    place = place_in(layout)

    @device_function
    def along_depth(places: Any, row: Any, line_half: Any, depth_half: Any, line: Any) -> None:
        for step in range(steps):
            chunk = _int32(step * 2) + depth_half
            places[step] = _uint32(place(line + line_half * 8 + row, chunk))

    @device_function
    def along_lines(places: Any, row: Any, line_half: Any, depth_half: Any, line: Any) -> None:
        for group in range(groups):
            chunk = line // 8 + group * 2 + line_half
            places[group] = _uint32(place(depth_half * 8 + row, chunk))

    return along_depth if layout.along == "depth" else along_lines


@cache
def multiply(unit: TensorCore) -> Callable[..., None]:
    """multiply(sums, slot_a, slot_b, places_a, places_b): add a slice of A times one of B."""
    load_a, load_b = _load(unit.a), _load(unit.b)
    down, across, pairs = unit.down, unit.across, unit.across // 2
    words_b = 4 * pairs
    part_of, add = _PARTS.get(unit.word, _as_it_is), _accumulate(unit.word)
    rest_of = _rest_of_tf32 if unit.word == "tf32x3" else part_of

    @device_function
    def step_(sums: Any, slot_a: Any, slot_b: Any, places_a: Any, places_b: Any, step: Any) -> None:
        b, b_rest = cuda.local.array(words_b, _uint32), cuda.local.array(words_b, _uint32)
        for j in range(pairs):
            words = load_b(slot_b, places_b, step, j)
            for e in range(4):
                b[4 * j + e] = part_of(words[e])
                b_rest[4 * j + e] = rest_of(words[e])
        for i in range(down):
            w = load_a(slot_a, places_a, step, i)
            a = (part_of(w[0]), part_of(w[1]), part_of(w[2]), part_of(w[3]))
            a_rest = (rest_of(w[0]), rest_of(w[1]), rest_of(w[2]), rest_of(w[3]))
            for j in range(across):
                of_b = (b[2 * j], b[2 * j + 1]), (b_rest[2 * j], b_rest[2 * j + 1])
                add(sums, (i * across + j) * 4, (a, a_rest), of_b)

    return unrolled(step_, times=unit.steps, arguments=5)


@cache
def _accumulate(word: str) -> Callable[..., None]:
    """add(sums, first, (a, rest of a), (b, rest of b)): one fragment, or three of what operands are sums of."""
    mma = _INSTRUCTIONS[word]

    @device_function
    def once(sums: Any, at: Any, a: Any, b: Any) -> None:
        d = mma(a, b, (sums[at], sums[at + 1], sums[at + 2], sums[at + 3]))
        sums[at] = d[0]
        sums[at + 1] = d[1]
        sums[at + 2] = d[2]
        sums[at + 3] = d[3]

    @device_function
    def one_product(sums: Any, at: Any, a: Any, b: Any) -> None:
        once(sums, at, a[0], b[0])

    @device_function
    def three_products(sums: Any, at: Any, a: Any, b: Any) -> None:
        once(sums, at, a[1], b[0])
        once(sums, at, a[0], b[1])
        once(sums, at, a[0], b[0])

    return three_products if word == "tf32x3" else one_product


# --- float32 as TF32 ------------------------------------------------------------------------------

_TF32 = 0xFFFFE000
"""The bits of a float32 that a TF32 number has."""


@device_function
def _as_it_is(word: Any) -> Any:
    return word


@device_function
def _rounded_to_tf32(word: Any) -> Any:
    return ptx.f32_to_tf32(ptx.f32_of_bits(_int64(word)))


@device_function
def _cut_to_tf32(word: Any) -> Any:
    """Cut, not rounded: that cannot overflow."""
    return word & _uint32(_TF32)


@device_function
def _rest_of_tf32(word: Any) -> Any:
    """What cutting leaves; of ±Inf nothing, of a NaN one."""
    cut = word & _uint32(_TF32)
    rest = ptx.f32_of_bits(_int64(word)) - ptx.f32_of_bits(_int64(cut))
    return ptx.f32_to_tf32(rest) if word != cut else _uint32(0)


_PARTS = {"tf32": _rounded_to_tf32, "tf32x3": _cut_to_tf32}


@cache
def _load(layout: Slice) -> Callable[..., Any]:
    """load(slot, places, step, group): four registers of a lane, of 16 lines and one step."""
    pitch = layout.pitch

    @device_function
    def along_depth(slot: Any, places: Any, step: Any, group: Any) -> Any:
        return ptx.ldmatrix_x4(slot + places[step] + _uint32(group * (_LINES * pitch)))

    @device_function
    def along_lines(slot: Any, places: Any, step: Any, group: Any) -> Any:
        return ptx.ldmatrix_x4_trans(slot + places[group] + _uint32(step * (_LINES * pitch)))

    return along_depth if layout.along == "depth" else along_lines


@cache
def store_strip(unit: TensorCore, strips: int, pitch: int) -> Callable[..., None]:
    """store(sums, staging, thread, strip): a thread's sums of one of so many strips of each warp's rows."""
    down, columns, across = unit.tile.warps[0], unit.tile.warp_columns, unit.across
    each = unit.down // strips

    @device_function
    def store_(sums: Any, staging: Any, thread: Any, strip: Any) -> None:
        lane, warp = thread % WARP, thread // WARP
        row, column = warp % down * each * ROWS + lane // 4, warp // down * columns + lane % 4 * 2
        first = staging + _uint32(row * pitch + column * 4)
        for i in range(each):
            for j in range(across):
                for e in range(4):
                    at = (i * ROWS + e // 2 * 8) * pitch + (j * COLUMNS + e % 2) * 4
                    total = sums[((strip * each + i) * across + j) * 4 + e]
                    ptx.store_shared_u32(first + _uint32(at), total)

    return store_


@cache
def row_of_strip(unit: TensorCore, strips: int) -> Callable[[Any, Any], Any]:
    """row_of(strip, row): the row of the tile that a row of a strip is."""
    rows = unit.tile.warp_rows
    each = rows // strips

    @device_function
    def row_of(strip: Any, row: Any) -> Any:
        return row // each * rows + strip * each + row % each

    return row_of
