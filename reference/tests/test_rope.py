"""Rotary position embedding by hand, by its invariants, by finite differences, and as others write it."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dnncanon.reference as ref
from dnncanon import spec
from dnncanon.spec.rope import SLOTS

Array = NDArray[Any]
NAN, INF = np.nan, np.inf
QUARTER = np.pi / 2.0

each_pairing = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
each_slots = pytest.mark.parametrize("slots", SLOTS)


def heads(*values: float) -> Array:
    """One head at one position."""
    return np.array([[[values]]], np.float64)


def random(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def positions(count: int, pairs: int) -> Array:
    """The angles of Su et al.: s·10000^(−i/P)."""
    return np.arange(count)[:, None] * 10_000.0 ** (-np.arange(pairs) / pairs)


# --- By hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "y"),
    [
        # Pairs (1, 3) and (2, 4): a quarter turn makes (a, b) to (−b, a), a half one to (−a, −b).
        ({}, [-3, -2, 1, -4]),
        ({"interleaved": True}, [-2, 1, -3, -4]),
        ({"output_scale": 0.5}, [-1.5, -1, 0.5, -2]),
    ],
)
def test_a_quarter_and_a_half_turn(attributes: dict[str, Any], y: list[float]) -> None:
    result = ref.rope_forward(heads(1, 2, 3, 4), np.array([[QUARTER, np.pi]]), **attributes)
    assert result[0, 0, 0] == pytest.approx(np.array(y))


@pytest.mark.parametrize(
    ("attributes", "y"),
    [
        ({}, [20, 40, -80, 60]),
        ({"rotated_slots": "first"}, [-40, 20, 60, 80]),
        ({"interleaved": True}, [20, 40, -80, 60]),
    ],
)
def test_the_other_slots_are_scaled(attributes: dict[str, Any], y: list[float]) -> None:
    x, angles = heads(2, 4, 6, 8), np.array([[QUARTER]])
    result = ref.rope_forward(x, angles, output_scale=10.0, **attributes)
    assert result[0, 0, 0] == pytest.approx(np.array(y))


def test_an_odd_rest_is_left_out() -> None:
    y = ref.rope_forward(heads(1, 2, 3, 4, 5), np.array([[QUARTER, QUARTER]]))
    assert y[0, 0, 0] == pytest.approx(np.array([1, -4, -5, 2, 3]))


def test_each_position_has_its_angle() -> None:
    x = np.ones((2, 3, 2, 2))
    y = ref.rope_forward(x, np.array([[0.0], [QUARTER]]))
    assert y[:, :, 0] == pytest.approx(np.ones((2, 3, 2)))
    assert y[:, :, 1] == pytest.approx(np.broadcast_to([-1.0, 1.0], (2, 3, 2)))


# --- Invariants -----------------------------------------------------------------------------------


@each_pairing
@each_slots
def test_backward_turns_back(interleaved: bool, slots: str) -> None:
    options = {"interleaved": interleaved, "rotated_slots": slots}
    x, angles = random(2, 3, 5, 11), random(5, 4) * 20.0
    y = ref.rope_forward(x, angles, **options)
    assert ref.rope_backward(y, angles, **options) == pytest.approx(x)
    assert np.sum(np.square(y)) == pytest.approx(np.sum(np.square(x)))


@each_pairing
def test_scores_depend_on_the_distance_of_positions(interleaved: bool) -> None:
    """q of position s and k of position t: their product depends on s − t alone."""
    q, k = random(1, 1, 1, 8), random(1, 1, 1, 8, seed=8)
    angles = positions(30, 4)

    def turned(x: Array, position: int) -> Array:
        return ref.rope_forward(x, angles[position : position + 1], interleaved=interleaved)

    near = np.sum(turned(q, 5) * turned(k, 2))
    assert np.sum(turned(q, 29) * turned(k, 26)) == pytest.approx(near)
    assert np.sum(turned(q, 5) * turned(k, 3)) != pytest.approx(near)


@each_pairing
def test_backward_by_finite_differences(interleaved: bool) -> None:
    options = {"interleaved": interleaved, "output_scale": 0.3}
    x, dy, angles = random(1, 2, 3, 6), random(1, 2, 3, 6, seed=9), random(3, 2) * 9.0
    dx = ref.rope_backward(dy, angles, **options)
    step = 1e-6
    for at in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[at] = step
        up = ref.rope_forward(x + moved, angles, **options)
        down = ref.rope_forward(x - moved, angles, **options)
        assert dx[at] == pytest.approx(np.sum(dy * (up - down)) / (2.0 * step), abs=1e-8)


def test_interleaved_is_a_permutation_of_halves() -> None:
    x, angles = random(2, 2, 3, 8), random(3, 4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    y = ref.rope_forward(x, angles, interleaved=True)
    assert np.array_equal(y[..., order], ref.rope_forward(x[..., order], angles))


# --- Decisions ------------------------------------------------------------------------------------


def test_large_angles_are_as_accurate_as_small_ones() -> None:
    """2^24 + 2 radians, of which a float32 knows no fraction: the sine is that of the integer."""
    angle = np.array([[2.0**24 + 2.0]], np.float32)
    y = ref.rope_forward(heads(1, 0).astype(np.float32), angle)
    exact = [np.float32(np.cos(2.0**24 + 2.0)), np.float32(np.sin(2.0**24 + 2.0))]
    assert y[0, 0, 0].tolist() == exact


def test_special_values_are_multiplied() -> None:
    y = ref.rope_forward(heads(INF, 1, 2, 3, 5, 6), np.array([[0.0, 1.0, INF]]))
    assert np.isnan(y[0, 0, 0]).tolist() == [False, False, True, True, False, True]
    assert y[0, 0, 0, 0] == INF
    y = ref.rope_forward(heads(NAN, 1, 2), np.array([[0.5]]))
    assert np.isnan(y[0, 0, 0]).tolist() == [True, False, False]


def test_angles_of_cudnn_are_a_view() -> None:
    x, angles = random(1, 2, 3, 8), random(3, 4)
    freqs = np.concatenate([angles, angles], axis=1)
    assert np.array_equal(ref.rope_forward(x, freqs[:, :4]), ref.rope_forward(x, angles))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4)])
def test_empty_problems(shape: tuple[int, ...]) -> None:
    assert ref.rope_forward(np.zeros(shape), np.zeros((shape[2], 2))).shape == shape


def test_no_pairs() -> None:
    x = random(1, 2, 3, 5)
    assert np.array_equal(ref.rope_forward(x, np.zeros((3, 0)), output_scale=2.0), 2.0 * x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_is_computed_in_float64_and_rounded_once(dtype: str) -> None:
    x = random(2, 3, 4, 8).astype(spec.DTYPES[dtype].numpy)
    angles = random(4, 4).astype(np.float32)
    y = ref.rope_forward(x, angles)
    wide = ref.rope_forward(x.astype(np.float64), angles.astype(np.float64))
    assert y.dtype == x.dtype
    assert np.array_equal(y, wide.astype(x.dtype))


@pytest.mark.parametrize(
    ("x", "angles", "attributes", "message"),
    [
        ((2, 3, 4), (3, 2), {}, "pass .B, H, S, D."),
        ((1, 2, 3, 4), (2, 2), {}, "S=3"),
        ((1, 2, 3, 4), (3, 3), {}, "2·P <= D"),
        ((1, 2, 3, 4), (3, 2), {"rotated_slots": "middle"}, "rotated_slots='middle'"),
        ((1, 2, 3, 4), (3, 2), {"output_scale": INF}, "output_scale=inf"),
        ((1, 2, 3, 4), (3, 2), {"interleaved": 1}, "interleaved=1"),
    ],
)
def test_what_is_refused(x: Any, angles: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(spec.SpecError, match=message):
        ref.rope_forward(np.zeros(x), np.zeros(angles), **attributes)


def test_angles_of_another_dtype_are_refused() -> None:
    with pytest.raises(spec.DTypeError, match="convert them to float32"):
        ref.rope_forward(np.zeros((1, 1, 1, 2), np.float16), np.zeros((1, 1), np.float16))
    with pytest.raises(spec.DTypeError, match="convert them to float64"):
        ref.rope_forward(np.zeros((1, 1, 1, 2)), np.zeros((1, 1), np.float32))


# --- Others ---------------------------------------------------------------------------------------


@each_slots
def test_as_a_product_of_complex_numbers(slots: str) -> None:
    """As Llama's own code has it: (a + ib)·e^iθ."""
    torch = pytest.importorskip("torch")
    x, angles = random(2, 3, 5, 12), positions(5, 4)
    turned = x[..., 4:] if slots == "last" else x[..., :8]
    pairs = torch.view_as_complex(torch.from_numpy(turned.copy()).unflatten(-1, (4, 2)))
    turns = torch.polar(torch.ones(5, 4, dtype=torch.float64), torch.from_numpy(angles))
    expected = torch.view_as_real(pairs * turns).flatten(-2).numpy()
    y = ref.rope_forward(x, angles, interleaved=True, rotated_slots=slots)
    result, rest = (y[..., 4:], y[..., :4]) if slots == "last" else (y[..., :8], y[..., 8:])
    assert result == pytest.approx(expected)
    assert np.array_equal(rest, x[..., :4] if slots == "last" else x[..., 8:])


def test_as_a_half_is_turned() -> None:
    """As GPT-NeoX has it: x·cos + (−second half, first half)·sin."""
    x, angles = random(2, 3, 5, 8), positions(5, 4)
    twice = np.concatenate([angles, angles], axis=1)
    half = np.concatenate([-x[..., 4:], x[..., :4]], axis=-1)
    expected = x * np.cos(twice) + half * np.sin(twice)
    assert ref.rope_forward(x, angles) == pytest.approx(expected)
