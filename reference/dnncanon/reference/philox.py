"""The generator Philox4x32-10 and the numbers made of its words, as :mod:`dnncanon.spec.stream` has them."""

import numpy as np
from numpy.typing import NDArray

from dnncanon.spec import DTYPES
from dnncanon.spec.stream import KEY_STEPS, MULTIPLIERS, ROUNDS, Stream

Words = NDArray[np.uint64]
"""Of 32 bits each, in 64, so that products fit."""

_LOWER, _HALF = np.uint64(2**32 - 1), np.uint64(32)


def words(stream: Stream, count: int) -> Words:
    """The first ``count`` words of a stream."""
    number = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(stream.offset)  # modulo 2^64
    subsequence = np.full_like(number, stream.subsequence)
    key = _halves(np.full_like(number, stream.seed))
    blocks = philox4x32((*_halves(number), *_halves(subsequence)), key)
    return np.stack(blocks, axis=-1).reshape(-1)[:count]


def philox4x32(counter: tuple[Words, ...], key: tuple[Words, ...]) -> tuple[Words, ...]:
    """Ten rounds on counters of four words with keys of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    (m0, m1), (s0, s1) = map(np.uint64, MULTIPLIERS), map(np.uint64, KEY_STEPS)
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOWER
        c2, c3 = (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOWER
        k0, k1 = (k0 + s0) & _LOWER, (k1 + s1) & _LOWER
    return c0, c1, c2, c3


def fractions(stream: Stream, count: int, dtype: str) -> NDArray[np.float64]:
    """U(0), U(1), …: multiples of 2^-d in [0, 1), d being the digits of the dtype."""
    digits = DTYPES[dtype].digits
    if digits <= 32:
        whole = words(stream, count) >> np.uint64(32 - digits)
    else:
        upper, lower = words(stream, 2 * count).reshape(-1, 2).T
        whole = (upper << np.uint64(21)) | (lower >> np.uint64(11))
    return np.ldexp(whole.astype(np.float64), -digits)


def _halves(numbers: Words) -> tuple[Words, Words]:
    """The lower and the upper 32 bits."""
    return numbers & _LOWER, numbers >> _HALF
