"""Every write outside an output, and every write to an input, is seen and named."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dnncanon.conformance.buffers import MARGIN, Guarded, view
from dnncanon.reference.rounding import rounded
from dnncanon.spec import DTYPES, FLOATS, TensorType

dtypes = pytest.mark.parametrize("dtype", FLOATS)

# A 2×3 tensor with a gap behind each row: rows at 0 and 5, elements 0 1 2 . . 5 6 7.
GAPS = TensorType("float32", (2, 3), (5, 1))

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> TensorType:
    """A tensor with any strides at all: gaps, repeats, overlaps."""
    shape = draw(shapes)
    strides = tuple(draw(st.integers(0, 9)) for _ in shape)
    return TensorType(draw(st.sampled_from([*FLOATS, "int32", "int64"])), shape, strides)


def every_index(tensor: TensorType) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, tensor.shape)))


def holding(tensor: TensorType) -> Guarded:
    return Guarded.holding("x", tensor, np.arange(float(tensor.size)).reshape(tensor.shape))


def touched(guarded: Guarded, *positions: int) -> NDArray[Any]:
    after = guarded.buffer.copy()
    after[list(positions)] = 77
    return after


# --- Poison ---------------------------------------------------------------------------------------


@dtypes
def test_poison_is_nan_in_every_dtype(dtype: str) -> None:
    guarded = Guarded.poisoned("y", TensorType(dtype, (2, 3), (5, 1)))
    assert guarded.buffer.size == 2 * MARGIN + 8
    assert np.isnan(guarded.buffer.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_has_all_bits_set(dtype: str) -> None:
    guarded = Guarded.poisoned("y", TensorType(dtype, (2, 3), (5, 1)))
    assert (guarded.buffer.view(np.uint8) == 0xFF).all()


def test_margins_and_gaps_of_a_tensor_with_data_are_poison() -> None:
    guarded = holding(GAPS)
    own = MARGIN + np.array([0, 1, 2, 5, 6, 7])
    assert np.array_equal(np.flatnonzero(~np.isnan(guarded.buffer)), own)


# --- Addresses and views --------------------------------------------------------------------------


@settings(deadline=None)
@given(tensors())
def test_addresses_are_those_of_brute_force(tensor: TensorType) -> None:
    guarded = Guarded.poisoned("x", tensor)
    addresses = guarded.addresses()
    assert addresses.shape == tensor.shape
    for index in every_index(tensor):
        steps = zip(index, tensor.element_strides, strict=True)
        assert addresses[index] == MARGIN + sum(i * stride for i, stride in steps)
    assert addresses.size == 0 or addresses.min() == MARGIN
    assert addresses.size == 0 or addresses.max() == guarded.buffer.size - MARGIN - 1


@settings(deadline=None)
@given(tensors())
def test_the_view_is_the_buffer_at_the_addresses(tensor: TensorType) -> None:
    guarded = Guarded.poisoned("x", tensor)
    guarded.buffer[:] = np.arange(guarded.buffer.size)
    assert np.array_equal(guarded.view(), guarded.buffer[guarded.addresses()])
    assert np.shares_memory(guarded.view(), guarded.buffer) or tensor.size == 0
    same = view(guarded.buffer, tensor.shape, tensor.element_strides, MARGIN)
    assert same.strides == guarded.view().strides


# --- Data -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(tensors())
def test_the_last_of_elements_that_share_an_address_stays(tensor: TensorType) -> None:
    got = holding(tensor).view()
    memory: dict[int, int] = {}
    addresses = Guarded.poisoned("x", tensor).addresses()
    for number, index in enumerate(every_index(tensor)):
        memory[int(addresses[index])] = number
    for index in every_index(tensor):
        assert got[index] == memory[int(addresses[index])]


@dtypes
def test_data_are_rounded_once_to_nearest_even(dtype: str) -> None:
    row = DTYPES[dtype]
    ulp = 2.0 * row.unit_roundoff
    above_a_tie = 1 + ulp / 2 + (ulp * 2.0**-20 if dtype != "float64" else 0.0)
    data = np.array(
        [
            1 + ulp,
            1 + ulp / 2,  # a tie, to the even 1
            above_a_tie,  # through float32 this would become the tie
            1 + 1.5 * ulp,  # a tie, to the even 1 + 2·ulp
            row.smallest_subnormal,
            3 * row.smallest_subnormal,
            -0.0,
            np.nan,
            -np.inf,
            row.max,
        ]
    )
    held = Guarded.holding("x", TensorType(dtype, data.shape), data).view()
    above = 1.0 if dtype == "float64" else 1 + ulp
    exact = [*data[4:]]
    expected = np.array([1 + ulp, 1.0, above, 1 + 2 * ulp, *exact])
    assert held.astype(np.float64).tobytes() == expected.tobytes()
    assert held.tobytes() == rounded(data, dtype).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_too_large_becomes_infinite_without_a_warning(dtype: str) -> None:
    data = np.array([1e300, -1e300, 1e-300])
    held = Guarded.holding("x", TensorType(dtype, (3,)), data).view().astype(np.float64)
    assert held.tolist() == [np.inf, -np.inf, 0.0]


# --- Damage ---------------------------------------------------------------------------------------


def test_nothing_changed_is_no_damage() -> None:
    guarded = holding(GAPS)
    assert guarded.damage(guarded.buffer.copy(), written=False) is None
    assert guarded.damage(guarded.buffer.copy(), written=True) is None


def test_an_output_may_be_written_as_a_whole_or_in_part() -> None:
    guarded = Guarded.poisoned("y", GAPS)
    assert guarded.damage(touched(guarded, MARGIN, MARGIN + 7), written=True) is None
    after = guarded.buffer.copy()
    view(after, GAPS.shape, (5, 1), MARGIN)[...] = 1
    assert guarded.damage(after, written=True) is None


LAST = MARGIN + 7

DAMAGE = {
    MARGIN - 1: "memory 1 elements before its first",
    0: f"memory {MARGIN} elements before its first",
    LAST + 1: "memory 1 elements behind its last",
    LAST + MARGIN: f"memory {MARGIN} elements behind its last",
    MARGIN + 3: "a gap between its strides, 3 elements behind its first,",
    MARGIN + 4: "a gap between its strides, 4 elements behind its first,",
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("position", DAMAGE)
def test_a_write_beside_the_elements_is_placed(position: int, written: bool) -> None:
    guarded = holding(GAPS)
    complaint = guarded.damage(touched(guarded, position), written=written)
    assert complaint == f"x: {DAMAGE[position]} was written (1 elements in all)"


def test_a_written_input_element_is_named_by_its_index() -> None:
    guarded = holding(GAPS)
    complaint = guarded.damage(touched(guarded, MARGIN + 6, MARGIN + 7), written=False)
    assert complaint == "x: input element (1, 1) was written (2 elements in all)"


def test_an_element_of_a_repeated_dim_is_named_by_its_first_index() -> None:
    guarded = holding(TensorType("float32", (4, 2), (0, 1)))
    complaint = guarded.damage(touched(guarded, MARGIN + 1), written=False)
    assert complaint == "x: input element (0, 1) was written (1 elements in all)"


@dtypes
def test_a_change_of_one_bit_is_a_change(dtype: str) -> None:
    """Also of a NaN's payload, and of the sign of a zero, which compare equal or never do."""
    guarded = Guarded.holding("x", TensorType(dtype, (2,)), np.array([0.0, np.nan]))
    for position in (0, MARGIN, MARGIN + 1, guarded.buffer.size - 1):
        after = guarded.buffer.copy()
        after.view(np.uint8)[(position + 1) * after.itemsize - 1] ^= 0x80
        assert guarded.damage(after, written=False) is not None


@settings(deadline=None)
@given(tensors(), st.data())
def test_any_single_write_is_damage_unless_the_output_owns_it(
    tensor: TensorType, data: st.DataObject
) -> None:
    guarded = Guarded.poisoned("x", tensor)
    position = data.draw(st.integers(0, guarded.buffer.size - 1))
    after = touched(guarded, position)
    owned = position in guarded.addresses()
    assert guarded.damage(after, written=False) is not None
    assert (guarded.damage(after, written=True) is None) == owned


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_a_tensor_without_elements_is_margins_alone(shape: tuple[int, ...]) -> None:
    guarded = holding(TensorType("float16", shape, tuple(7 for _ in shape)))
    assert guarded.buffer.size == 2 * MARGIN
    assert guarded.view().shape == shape
    assert guarded.damage(guarded.buffer.copy(), written=True) is None
    complaint = guarded.damage(touched(guarded, MARGIN), written=True)
    assert complaint == "x: memory 1 elements behind its last was written (1 elements in all)"


def test_a_scalar_is_one_element() -> None:
    guarded = holding(TensorType("float64", ()))
    assert guarded.buffer.size == 2 * MARGIN + 1
    assert guarded.view().shape == ()
    assert guarded.addresses().shape == ()
    complaint = guarded.damage(touched(guarded, MARGIN), written=False)
    assert complaint == "x: input element () was written (1 elements in all)"


@pytest.mark.parametrize("strides", [None, (10**18 - 1,) * 3])
def test_a_tensor_larger_than_any_memory_is_a_memory_error(strides: tuple[int, ...] | None) -> None:
    extent = 10**18 - 1 if strides is None else 20
    with pytest.raises(MemoryError, match="y reaches over"):
        Guarded.poisoned("y", TensorType("float32", (extent,) * 3, strides))
