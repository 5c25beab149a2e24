"""Attribute values keep their meaning on the way through a case line."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncanon.spec.attributes import (
    Choice,
    Integer,
    Padding,
    PerDim,
    Real,
    as_integer,
    as_real,
    as_word,
    padding_pairs,
    per_dim,
    shown,
)

numbers = st.integers(0, 10**6)
pairs = st.tuples(numbers, numbers)


def several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=1, max_size=3).map(tuple)


@given(value=numbers | several(numbers))
def test_per_dim_round_trip(value: int | tuple[int, ...]) -> None:
    text = PerDim().format(value)
    assert " " not in text
    dims = len(value) if isinstance(value, tuple) else 3
    assert per_dim(PerDim().parse(text), dims) == per_dim(value, dims)
    if isinstance(value, int) or len(value) > 1:
        assert PerDim().parse(text) == value


@given(value=numbers | several(numbers | pairs) | st.sampled_from(("same", "valid")))
def test_padding_round_trip(value: Any) -> None:
    text = Padding().format(value)
    assert " " not in text
    read_back = Padding().parse(text)
    if isinstance(value, str):
        assert read_back == value
    else:
        dims = len(value) if isinstance(value, tuple) else 3
        assert padding_pairs(read_back, dims) == padding_pairs(value, dims)


@given(value=several(pairs))
def test_explicit_pairs_of_several_dims_come_back_as_they_are(value: tuple[Any, ...]) -> None:
    if len(value) > 1:
        assert Padding().parse(Padding().format(value)) == value


@given(value=st.integers())
def test_integer_round_trip(value: int) -> None:
    assert Integer().parse(Integer().format(value)) == value


@given(value=st.floats(allow_nan=False))
def test_real_round_trip(value: float) -> None:
    read_back = Real().parse(Real().format(value))
    assert np.float64(read_back).tobytes() == np.float64(value).tobytes()


@given(value=st.sampled_from(("relu", "identity")))
def test_choice_round_trip(value: str) -> None:
    kind = Choice(("identity", "relu"))
    assert kind.parse(kind.format(value)) == value


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (PerDim(), 2, "2"),
        (PerDim(), (2, 1), "2,1"),
        (PerDim(), [np.int64(2), 1], "2,1"),
        (Padding(), 1, "1"),
        (Padding(), ((1, 1), (0, 2)), "1,0:2"),
        (Padding(), "same", "same"),
        (Integer(), np.int32(4), "4"),
        (Real(), 0.5, "0.5"),
        (Real(), np.float16(0.1), "0.0999755859375"),
        (Choice(("a", "b")), "a", "a"),
    ],
)
def test_text_of_values(kind: Any, value: Any, text: str) -> None:
    assert kind.format(value) == text


def test_a_single_number_holds_for_every_dim() -> None:
    assert per_dim(PerDim().parse("2"), 3) == (2, 2, 2)
    assert padding_pairs(Padding().parse("1"), 2) == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (PerDim(), ""),
        (PerDim(), "1,,2"),
        (PerDim(), "1.5"),
        (PerDim(), "one"),
        (Padding(), ""),
        (Padding(), "1:"),
        (Padding(), ":1"),
        (Padding(), "1:2:3"),
        (Padding(), "full"),
        (Integer(), "1.0"),
        (Real(), "half"),
    ],
)
def test_malformed_text_is_a_value_error(kind: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
        kind.parse(text)


@pytest.mark.parametrize("kind", [PerDim(), Padding(), Integer(), Real(), Choice(("a", "b"))])
def test_domains_are_described(kind: Any) -> None:
    assert kind.describes
    assert "\n" not in kind.describes


# --- Numbers and their display --------------------------------------------------------------------


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_as_integer_takes_what_fits_into_64_bits(value: int) -> None:
    assert as_integer(value) == value


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 10**5000], ids=["2^63", "-2^63-1", "10^5000"]
)
def test_as_integer_refuses_more_bits(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        as_integer(value)


def test_as_word_takes_64_bits_without_a_sign() -> None:
    for value in (0, 2**64 - 1, np.uint64(2**64 - 1)):
        assert as_word(value) == value
    for value in (-1, 2**64):
        with pytest.raises(ValueError, match="64 bits"):
            as_word(value)
    with pytest.raises(TypeError, match="not an integer"):
        as_word(True)


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_as_real_takes_every_finite_float(value: float) -> None:
    assert as_real(value) == value


@given(value=st.text() | st.binary() | st.lists(st.text(), max_size=50))
def test_shown_is_short(value: Any) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert text == repr(value) or text.endswith("…")


def test_shown_of_what_has_no_repr() -> None:
    assert shown(10**5000) == "<int>"
