"""The unit that multiplies slices on CUDA cores: fused multiply-adds in float64 or float32, or int32.

A thread computes quads of adjacent rows and columns, which are as far apart as the tile is long over the number
of quads: so the threads of a warp read different banks. Slices lie along the lines, padded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.kernels.tile import words
from dnncanon.gpu.kernels.tile.shape import Tile
from dnncanon.gpu.kernels.tile.slices import Slice
from dnncanon.gpu.kernels.unrolled import unrolled
from dnncanon.gpu.runtime.device_code import cuda, device_function, types

QUAD = 4
"""Adjacent lines that a thread reads at once."""

_uint32 = types.uint32


@dataclass(frozen=True, slots=True)
class CudaCore:
    """Multiplies words of one type, which is also the type of its sums."""

    word: str
    tile: Tile
    a: Slice
    b: Slice

    @property
    def quads(self) -> int:
        """Of a thread, in each direction."""
        elements = self.tile.rows * self.tile.columns // self.tile.threads
        return int(elements**0.5) // QUAD

    @property
    def threads_across(self) -> int:
        return self.tile.columns // (QUAD * self.quads)

    @property
    def sum_dtype(self) -> str:
        return self.word

    @property
    def sums(self) -> int:
        """Of a thread, row by row."""
        return (QUAD * self.quads) ** 2

    @property
    def addresses(self) -> tuple[int, int]:
        """How many a thread keeps, for A and for B."""
        return 1, 1


@cache
def prepare(unit: CudaCore) -> Callable[..., None]:
    """prepare(places_a, places_b, thread): where in a slice the first of a thread's lines are."""
    across, bytes_of_quad = unit.threads_across, QUAD * unit.a.itemsize

    @device_function
    def prepare_(places_a: Any, places_b: Any, thread: Any) -> None:
        places_a[0] = _uint32(thread // across * bytes_of_quad)
        places_b[0] = _uint32(thread % across * bytes_of_quad)

    return prepare_


@cache
def multiply(unit: CudaCore) -> Callable[..., None]:
    """multiply(sums, slot_a, slot_b, places_a, places_b): add a slice of A times one of B."""
    return unrolled(_step(unit), times=unit.tile.depth, arguments=5)


@cache
def _step(unit: CudaCore) -> Callable[..., None]:
    """The products of one step of the depth."""
    number, load = words.number(unit.word), _load_quad(unit.word)
    quads, width = unit.quads, QUAD * unit.quads
    pitch_a, jump_a = unit.a.pitch, unit.tile.rows // quads * unit.a.itemsize
    pitch_b, jump_b = unit.b.pitch, unit.tile.columns // quads * unit.b.itemsize
    multiply_add = _multiply_add_int32 if unit.word == "int32" else _multiply_add

    @device_function
    def step(sums: Any, slot_a: Any, slot_b: Any, places_a: Any, places_b: Any, k: Any) -> None:
        a, b = cuda.local.array(width, number), cuda.local.array(width, number)
        at_a, at_b = slot_a + places_a[0], slot_b + places_b[0]
        for q in range(quads):
            load(a, q * QUAD, at_a + _uint32(k * pitch_a + q * jump_a))
            load(b, q * QUAD, at_b + _uint32(k * pitch_b + q * jump_b))
        for i in range(width):
            for j in range(width):
                sums[i * width + j] = multiply_add(a[i], b[j], sums[i * width + j])

    return step


@cache
def store_strip(unit: CudaCore, strips: int, pitch: int) -> Callable[..., None]:
    """store(sums, staging, thread, strip): a thread's sums of one of so many strips of the tile."""
    quads, width, across = unit.quads, QUAD * unit.quads, unit.threads_across
    down_jump, jump = unit.tile.rows // quads, unit.tile.columns // quads
    each = quads // strips
    (_, store), itemsize = words.store_word(unit.word), words.itemsize(unit.word)

    @device_function
    def store_(sums: Any, staging: Any, thread: Any, strip: Any) -> None:
        row, column = thread // across * QUAD, thread % across * QUAD
        first = staging + _uint32(row * pitch + column * itemsize)
        for i in range(each * QUAD):
            for j in range(width):
                down = i // QUAD * down_jump + i % QUAD
                at = down * pitch + (j // QUAD * jump + j % QUAD) * itemsize
                store(first + _uint32(at), sums[(strip * each * QUAD + i) * width + j])

    return store_


@cache
def row_of_strip(unit: CudaCore, strips: int) -> Callable[[Any, Any], Any]:
    """row_of(strip, row): the row of the tile that a row of a strip is."""
    rows = unit.tile.rows // strips

    @device_function
    def row_of(strip: Any, row: Any) -> Any:
        return strip * rows + row

    return row_of


@device_function
def _multiply_add(a: Any, b: Any, total: Any) -> Any:
    return total + a * b


@device_function
def _multiply_add_int32(a: Any, b: Any, total: Any) -> Any:
    return types.int32(total + a * b)


@cache
def _load_quad(word: str) -> Callable[..., None]:
    """load(target, first, address): four adjacent words of shared memory."""

    @device_function
    def load_floats(target: Any, first: Any, address: Any) -> None:
        quad = ptx.load_shared_v4_f32(address)
        for e in range(QUAD):
            target[first + e] = quad[e]

    @device_function
    def load_ints(target: Any, first: Any, address: Any) -> None:
        quad = ptx.load_shared_v4(address)
        for e in range(QUAD):
            target[first + e] = types.int32(quad[e])

    @device_function
    def load_doubles(target: Any, first: Any, address: Any) -> None:
        low, high = ptx.load_shared_v2_f64(address), ptx.load_shared_v2_f64(address + _uint32(16))
        target[first] = low[0]
        target[first + 1] = low[1]
        target[first + 2] = high[0]
        target[first + 3] = high[1]

    return {"float32": load_floats, "int32": load_ints, "float64": load_doubles}[word]
