"""The kernel of the rotary position embedding against the formula."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.profiling import profile
from dnncanon.spec.rope import SLOTS

Array = np.ndarray[Any, Any]

each_pairing = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def random(*shape: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def turned(
    x: Array,
    angles: Array,
    interleaved: bool = False,
    rotated_slots: str = "last",
    scale: float = 1,
) -> Array:
    """In float64."""
    pairs = angles.shape[1]
    begin = x.shape[-1] - 2 * pairs if rotated_slots == "last" else 0
    at = begin + np.arange(2 * pairs)
    first, second = (at[::2], at[1::2]) if interleaved else (at[:pairs], at[pairs:])
    x, cosine, sine = (
        x.astype(np.float64),
        np.cos(angles.astype(float)),
        np.sin(angles.astype(float)),
    )
    y = x.copy()
    y[..., first] = x[..., first] * cosine - x[..., second] * sine
    y[..., second] = x[..., second] * cosine + x[..., first] * sine
    return scale * y


@each_pairing
@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize(("pairs", "size"), [(8, 16), (3, 6), (16, 40), (8, 19), (1, 2), (4, 8)])
def test_pairs_in_chunks_and_alone(interleaved: bool, slots: str, pairs: int, size: int) -> None:
    x, angles = random(2, 5, 3, size).astype(np.float32), random(3, pairs).astype(np.float32)
    options: dict[str, Any] = {"interleaved": interleaved, "rotated_slots": slots}
    y = gpu.rope_forward(x, angles, output_scale=0.25, **options)
    np.testing.assert_allclose(y, turned(x, angles, scale=0.25, **options), rtol=1e-5, atol=1e-6)
    back = gpu.rope_backward(y, angles, output_scale=4.0, **options)
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-5)


@each_pairing
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_every_dtype(interleaved: bool, dtype: str, exact: Any) -> None:
    """An angle of 0 leaves the bits, small integers, as they are."""
    x = exact((2, 3, 4, 32), dtype, 1)
    kind = np.float64 if dtype == "float64" else np.float32
    y = gpu.rope_forward(x, np.zeros((4, 16), kind), interleaved=interleaved)
    assert y.dtype == x.dtype
    assert np.array_equal(y.astype(float), x.astype(float))
    angles = random(4, 16).astype(kind)
    y = gpu.rope_forward(x, angles, interleaved=interleaved).astype(float)
    tolerance = {"float64": 1e-15, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(y, turned(x, angles, interleaved), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 8, 9])
def test_any_number_of_heads_shares_the_sines(heads: int) -> None:
    x, angles = random(2, heads, 3, 8), random(3, 4)
    np.testing.assert_allclose(gpu.rope_forward(x, angles), turned(x, angles), rtol=1e-12)


def test_large_angles_are_as_accurate_as_small_ones() -> None:
    angles = np.array([[1e5, 131_071.0, 3.0e6, 2.0**24 + 2.0, 1e20]], np.float32)
    x = np.tile(np.array([1.0, 0.0], np.float32), (1, 1, 1, 5))
    y = gpu.rope_forward(x, angles, interleaved=True)
    np.testing.assert_allclose(y, turned(x, angles, interleaved=True), rtol=1e-6)


@each_pairing
def test_any_layout(interleaved: bool) -> None:
    dense, angles = random(2, 4, 3, 16), random(3, 8)
    expected = gpu.rope_forward(dense, angles, interleaved=interleaved)
    transposed = np.ascontiguousarray(dense.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    gaps = np.zeros((2, 4, 3, 32))[..., ::2]
    gaps[...] = dense
    misaligned = np.zeros((2, 4, 3, 17))[..., 1:]
    misaligned[...] = dense
    twice = np.concatenate([angles, angles], axis=1)[:, :8]
    for x in (transposed, gaps, misaligned):
        y = gpu.rope_forward(x, twice, interleaved=interleaved)
        np.testing.assert_allclose(y, expected, rtol=1e-12)
    out = np.zeros((3, 2, 16, 4)).transpose(1, 3, 0, 2)
    gpu.rope_forward(dense, angles, interleaved=interleaved, out=out)
    np.testing.assert_allclose(out, expected, rtol=1e-12)


@each_pairing
@pytest.mark.parametrize("case", ["gaps", "misaligned", "one position"])
def test_any_layout_of_angles(interleaved: bool, case: str) -> None:
    x, angles = random(2, 3, 5, 16).astype(np.float32), random(5, 8).astype(np.float32)
    gaps, misaligned = np.zeros((5, 16), np.float32), np.zeros((5, 9), np.float32)
    gaps[:, ::2], misaligned[:, 1:] = angles, angles
    given = {"gaps": gaps[:, ::2], "misaligned": misaligned[:, 1:], "one position": angles[:1]}
    if case == "one position":
        x, angles = x[:, :, :1], angles[:1]
    y = gpu.rope_forward(x, given[case], interleaved=interleaved)
    np.testing.assert_allclose(y, turned(x, angles, interleaved=interleaved), rtol=1e-5, atol=1e-5)


@each_pairing
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_are_read_and_written_in_whole_sectors(
    interleaved: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    x, angles = random(1, 8, 32, 64).astype(dtype), random(32, 32).astype(np.float32)
    counted = profile("rope_forward", x, angles, interleaved=interleaved)
    assert counted.bytes_over_least <= 1.15
    assert counted.sector_efficiency("load") >= 0.95
    assert counted.sector_efficiency("store") >= 0.95


def test_special_values_are_multiplied() -> None:
    x = np.array([[[[np.inf, 1, 2, 3, 5, 6]]]], np.float32)
    y = gpu.rope_forward(x, np.array([[0, 1, np.inf]], np.float32))
    assert np.isnan(y[0, 0, 0]).tolist() == [False, False, True, True, False, True]


def test_no_pairs_and_nothing_at_all() -> None:
    x = random(1, 2, 3, 5)
    assert np.array_equal(gpu.rope_forward(x, np.zeros((3, 0)), output_scale=2.0), 2.0 * x)
    assert gpu.rope_forward(np.zeros((2, 0, 3, 4)), random(3, 2)).shape == (2, 0, 3, 4)


@each_pairing
def test_the_kernel_neither_races_nor_reads_what_nobody_wrote(
    interleaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x, angles = random(2, 5, 3, 20).astype(np.float32), random(3, 8).astype(np.float32)
    y = gpu.rope_forward(x, angles, interleaved=interleaved)
    gpu.rope_backward(y[..., :15], angles[:, :7], interleaved=interleaved, rotated_slots="first")
