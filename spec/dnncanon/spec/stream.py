"""Streams of random words: the generator Philox4x32-10, and which of its words a primitive takes.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3") enciphers
a counter of four 32-bit words with a key of two: ten rounds of

    (c0, c1, c2, c3) <- (high(M1·c2) ^ c1 ^ k0, low(M1·c2), high(M0·c0) ^ c3 ^ k1, low(M0·c0))

after each of which the key grows by (S0, S1) modulo 2^32. A :class:`Stream` is a sequence of such words:

    word n = word n mod 4 of the block whose key is seed and whose counter is
             (offset + n div 4) mod 2^64 in its lower half, subsequence in its upper one

of each 64-bit number the lower 32 bits first. So a call that takes n words ends before offset + ceil(n/4),
the offset from which the next call goes on. Subsequences have no counter in common, whatever their offsets;
another seed is another cipher. An offset that passes 2^64 goes on from 0 in the same subsequence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dnncanon.spec.attributes import Integer, as_word
from dnncanon.spec.errors import AttributeValueError
from dnncanon.spec.primitive import REQUIRED, Arguments, Attribute, Constraint, Draw

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""M0 and M1."""
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""S0 and S1: the fractions of the golden ratio and of the square root of 3."""
ROUNDS = 10
LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence of random words, from the block ``offset`` on; each number is of 64 bits, unsigned."""

    seed: int
    subsequence: int
    offset: int

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> "Stream":
        """The stream that legal attributes choose."""
        return cls(*(as_word(attributes[attribute.name]) for attribute in ATTRIBUTES))


ATTRIBUTES = (
    Attribute("seed", Integer(), "Key of the generator, 0…2^64−1.", REQUIRED),
    Attribute("subsequence", Integer(), "Upper half of the counter, 0…2^64−1.", 0),
    Attribute("offset", Integer(), "First block: lower half of the counter, 0…2^64−1.", 0),
)


def _word(name: str) -> Constraint:
    def check(a: Arguments) -> str | None:
        try:
            as_word(a.attributes[name])
        except (TypeError, ValueError) as wrong:
            return f"{name}={wrong}; pass an integer from 0 to 2^64−1"
        return None

    def violate(a: Arguments) -> Iterator[Arguments]:
        for value in (-1, LARGEST + 1, 0.5):
            yield a.with_attributes(**{name: value})

    text = f"{name} is an integer from 0 to 2^64−1."
    return Constraint(text, AttributeValueError, check, violate)


CONSTRAINTS = tuple(_word(attribute.name) for attribute in ATTRIBUTES)

_UPPER_BIT = 2**63


def drawn_stream(draw: Draw) -> dict[str, int]:
    """Seed, subsequence and offset: small ones, such as have all bits of one half, and ends."""
    return {
        "seed": draw.choice((1, 0, 2**32, LARGEST))
        ^ draw.integer(0, 2**32 - 1) << draw.choice((0, 32)),
        "subsequence": draw.choice((0, 0, 1, 2**32, _UPPER_BIT, LARGEST)),
        "offset": draw.choice((0, 0, 1, 2**32 - 2, _UPPER_BIT, LARGEST - 1)),
    }


DECISIONS = (
    "The generator is Philox4x32-10, as cuDNN's; which element takes which word, cuDNN does not say. Here "
    "it is the linear index in C order that decides, whatever the strides: a tensor has the same values in "
    "every layout.",
    "offset counts blocks of four words, and wraps modulo 2^64 without a carry into subsequence.",
    "seed, subsequence and offset are arguments: functions are pure, so that no state is seeded, saved or "
    "restored, and forward and backward agree when they are given the same numbers.",
)
