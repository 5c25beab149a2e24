"""Rotary position embedding: a thread turns the pairs of a chunk of 16 bytes, or of two, in a few heads.

Two chunks hold pairs of halves: the first elements and the second ones. Interleaved, one chunk holds whole
pairs. The sines and cosines of a position serve several heads, for to compute them takes longer than to move
an element.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, prod, sin
from typing import Any

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.windows import lanes_of
from dnncanon.gpu.runtime import DeviceArray, Kernel, kernel, origin
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of
from dnncanon.spec import dense_strides
from dnncanon.spec.rope import RopeProblem, angle_dtype

THREADS = 128
BLOCKS = 4096
"""Blocks that fill any GPU; their threads loop."""

HEADS = 4
"""Heads for which a thread computes its sines and cosines once."""

LANE_BYTES = 16

_int64, _uint64 = types.int64, types.uint64


@dataclass(frozen=True, slots=True)
class Walk:
    """Who turns what: positions are (batch, group of heads, position, group of pairs).

    A chunk has ``lanes`` elements. ``slots`` are the first element that is turned, how far the second chunk
    of a thread is from its first one, and how far the first chunk of the next thread is. The angles of a thread
    are ``adjacent`` where one instruction reads them.
    """

    extents: tuple[int, ...]
    lanes: int
    slots: tuple[int, int, int]
    adjacent: bool

    @classmethod
    def over(cls, p: RopeProblem, operands: Sequence[DeviceArray], angles: DeviceArray) -> "Walk":
        batch, heads, positions, _ = p.shape
        chunks = 1 if p.interleaved else 2
        # Of halves there is an angle for each element of a chunk, and these fill 16 bytes at most.
        widest = max(array.dtype.itemsize for array in (operands[0], *(angles,) * (chunks - 1)))
        lanes = LANE_BYTES // widest
        fits = 2 * p.pairs % (chunks * lanes) == 0 and p.begin % lanes == 0
        if not (fits and all(_in_lanes(array, lanes) for array in operands)):
            lanes, chunks = 1, 2  # a pair, wherever its elements are
        groups = (-(-heads // HEADS), positions, 2 * p.pairs // (chunks * lanes))
        distance, pace = (1, chunks * lanes) if p.interleaved else (p.pairs, lanes)
        count = chunks * lanes // 2
        adjacent = (
            lanes > 1
            and (angles.strides[1] == 1 or angles.shape[1] == 1)
            and (angles.strides[0] % count == 0 or angles.shape[0] == 1)
            and angles.pointer % (count * angles.dtype.itemsize) == 0
            and origin(angles) == 0
        )
        return cls((batch, *groups), lanes, (p.begin, distance, pace), adjacent)

    @property
    def blocks(self) -> int:
        return max(1, min(BLOCKS, -(-prod(self.extents) // THREADS)))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Size, extents and step, as kernels take them."""
        step, number = [], self.blocks * THREADS
        for weight in dense_strides(self.extents):
            digit, number = divmod(number, weight)
            step.append(digit)
        return prod(self.extents), self.extents, tuple(step)


def _in_lanes(array: DeviceArray, lanes: int) -> bool:
    """Whether every group of so many elements of a head is in one piece, at a multiple of its size."""
    steps = [s for n, s in zip(array.shape[:3], array.strides[:3], strict=True) if n > 1]
    aligned = array.pointer % (lanes * array.dtype.itemsize) == 0 and origin(array) == 0
    return aligned and array.strides[3] == 1 and all(step % lanes == 0 for step in steps)


@device_function
def place(strides: Any, b: Any, h: Any, s: Any, d: Any) -> Any:
    """Where an element is in memory."""
    return strides[0] + b * strides[1] + h * strides[2] + s * strides[3] + d * strides[4]


def strides_of(array: DeviceArray) -> tuple[int, ...]:
    """Offset and strides, as kernels take them."""
    return (origin(array), *array.strides)


@cache
def turn(dtype: str, lanes: int, interleaved: bool, adjacent: bool) -> Kernel:
    """y from x and angles; ``numbers`` are the scale and the sign of sines. Launch with THREADS threads.

    With ``interleaved`` a thread has one chunk, of whole pairs. With one lane it has two, of an element each.
    Its angles are ``adjacent`` if one instruction is to read them.
    """
    element, words = ELEMENTS[dtype], lanes_of(dtype, lanes)
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    load, first_word, rest_words = words.load, words.first, words.rest
    blank, append, store = words.blank, words.append, words.store
    angle, heads = ELEMENTS[angle_dtype(dtype)].to_sum, HEADS
    # Pairs are neighbours, or an element of the first chunk and one of the second.
    pairs, step, apart = (lanes // 2, 2, 1) if interleaved else (lanes, 1, lanes)
    count = 2 * pairs
    several = lanes_of(angle_dtype(dtype), pairs if adjacent else 1)
    load_angles, first_angle, rest_angles = several.load, several.first, several.rest
    at_once = pairs if adjacent else 1

    @kernel
    def rope_turn(
        x: Any,
        angles: Any,
        y: Any,
        size: Any,
        extents: Any,
        stride: Any,
        head_count: Any,
        slots: Any,
        numbers: Any,
        x_at: Any,
        angles_at: Any,
        y_at: Any,
    ) -> None:
        scale, sign = number(numbers[0]), number(numbers[1])
        values = cuda.local.array(count, number)
        cosines, sines = cuda.local.array(pairs, number), cuda.local.array(pairs, number)
        first_offset, per_position, per_pair = angles_at
        begin, distance, pace = slots
        index = _int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        digits = digits_of(index, extents)
        while index < size:
            b, group, s, chunk = digits
            for start in range(0, pairs, at_once):
                at = first_offset + s * per_position + (chunk * pairs + start) * per_pair
                held = load_angles(angles, at)
                for k in range(start, start + at_once):
                    theta = angle(first_angle(angles, held))
                    cosines[k], sines[k] = cos(theta), sign * sin(theta)
                    held = rest_angles(angles, held)
            d = begin + chunk * pace
            for h in range(group * heads, min(head_count, (group + 1) * heads)):
                for start in range(0, count, lanes):
                    bundle = load(x, place(x_at, b, h, s, d + (distance if start else 0)))
                    for k in range(lanes):
                        values[start + k] = to_sum(first_word(x, bundle))
                        bundle = rest_words(x, bundle)
                for k in range(pairs):
                    one, other = values[k * step], values[k * step + apart]
                    values[k * step] = scale * (one * cosines[k] - other * sines[k])
                    values[k * step + apart] = scale * (other * cosines[k] + one * sines[k])
                for start in range(0, count, lanes):
                    out = blank()
                    for k in range(lanes):
                        out = append(y, out, from_sum(values[start + k]))
                    store(y, place(y_at, b, h, s, d + (distance if start else 0)), out)
            digits = advance(digits, stride, extents)
            index += _int64(cuda.gridDim.x) * cuda.blockDim.x

    return rope_turn


@device_function
def scaled(x: Any, scale: Any) -> Any:
    """What is not turned."""
    return scale * x
