"""Philox4x32-10 in kernels: the words of a stream, each from its number alone.

A block, a 128-bit counter enciphered by a 64-bit key, is four words and takes 20 multiplications. Elements
that take their words from one block share it (``elementwise.Shared``): 5 multiplications for a word.
"""

from collections.abc import Callable
from typing import Any

from dnncanon.gpu import ptx
from dnncanon.gpu.runtime.device_code import device_function, types
from dnncanon.spec.stream import KEY_STEPS, MULTIPLIERS, ROUNDS, Stream

_uint32, _uint64 = types.uint32, types.uint64
_MULTIPLIER_0, _MULTIPLIER_1 = (_uint32(m) for m in MULTIPLIERS)
_STEP_0, _STEP_1 = (_uint32(s) for s in KEY_STEPS)
_HALF = _uint64(32)


def arguments(stream: Stream) -> tuple[int, int, int]:
    """Seed, subsequence and offset as a kernel takes them: as int64 of the same bits."""
    words = stream.seed, stream.subsequence, stream.offset
    return tuple(word - (word >> 63 << 64) for word in words)  # type: ignore[return-value]


@device_function
def block(seed: Any, subsequence: Any, number: Any) -> Any:
    """The four words of block ``number``, as uint32."""
    key_0, key_1 = _uint32(seed), _uint32(_uint64(seed) >> _HALF)
    c0, c1 = _uint32(number), _uint32(_uint64(number) >> _HALF)
    c2, c3 = _uint32(subsequence), _uint32(_uint64(subsequence) >> _HALF)
    for _ in range(ROUNDS):
        product_0 = ptx.mul_wide_u32(_MULTIPLIER_0, c0)
        product_1 = ptx.mul_wide_u32(_MULTIPLIER_1, c2)
        c0, c2 = (
            _uint32(_uint32(product_1 >> _HALF) ^ c1 ^ key_0),
            _uint32(_uint32(product_0 >> _HALF) ^ c3 ^ key_1),
        )
        c1, c3 = _uint32(product_1), _uint32(product_0)
        key_0, key_1 = _uint32(key_0 + _STEP_0), _uint32(key_1 + _STEP_1)
    return c0, c1, c2, c3


@device_function
def word(block: Any, number: Any) -> Any:
    """Word ``number`` of a stream, of the block that it is in: as an int64 in 0 … 2^32 − 1."""
    w0, w1, w2, w3 = block
    even, odd = (w2, w3) if number & 2 else (w0, w1)
    return types.int64(odd if number & 1 else even)


@device_function
def _block_behind_one(parameter: Any, seed: Any, subsequence: Any, offset: Any, number: Any) -> Any:
    return block(seed, subsequence, offset + number)


@device_function
def _block_behind_two(
    one: Any, two: Any, seed: Any, subsequence: Any, offset: Any, number: Any
) -> Any:
    return block(seed, subsequence, offset + number)


BLOCKS: dict[int, Callable[..., Any]] = {1: _block_behind_one, 2: _block_behind_two}
"""The block of a stream whose arguments come behind so many scalars of another kind."""
