"""Gradients over windows: the tiled algorithm against two passes, in every arrangement of dims."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.spec import Unsupported

Array = np.ndarray[Any, Any]


def random(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def laid_out(array: Array, order: tuple[int, ...]) -> Array:
    """The array with its dims in memory in this order."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def agree(primitive: str, *tensors: Array, **options: Any) -> None:
    function = getattr(gpu, f"{primitive}_backward")
    results = [function(*tensors, algorithm=name, **options) for name in ("tiled", "two_pass")]
    one, other = (result if isinstance(result, tuple) else (result,) for result in results)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [1, 2, 5, 16])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_windows_of_channels_over_several_tiles(window: int, order: tuple[int, ...]) -> None:
    dy, x = (laid_out(random(seed, (2, 50, 5, 9)), order) for seed in (1, 2))
    agree("lrn", dy, x, window=window, alpha=2.0, beta=0.6, k=0.5)


@pytest.mark.parametrize("shape", [(2, 3, 100), (2, 3, 70, 41), (1, 2, 9, 20, 17)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", [2, 3])
def test_windows_over_space(shape: tuple[int, ...], channels_last: bool, window: int) -> None:
    rank = len(shape)
    order = (0, *range(2, rank), 1) if channels_last else tuple(range(rank))
    dy, x, means = (laid_out(random(seed, shape), order) for seed in (1, 2, 3))
    agree("divisive_norm", dy, x, window=window, alpha=2.0, beta=0.6, k=0.5)
    agree("divisive_norm", dy, x, means, window=window, alpha=2.0, beta=0.6, k=0.5)


def test_a_tile_that_would_hold_too_much_is_left_to_two_passes() -> None:
    x = random(1, (1, 1, 20, 20, 20))
    first, second = gpu.algorithms("divisive_norm_backward", x, x, window=16)
    assert (first.name, second.refusal) == (
        "two_pass",
        "has no room for windows of 4096 elements",
    )
    assert gpu.algorithms("divisive_norm_backward", x, x, window=3)[0].name == "tiled"
    with pytest.raises(Unsupported, match="no room for windows of 4096 elements"):
        gpu.divisive_norm_backward(x, x, window=16, algorithm="tiled")


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = np.empty(shape, np.float32)
    assert gpu.lrn_backward(x, x).shape == gpu.divisive_norm_backward(x, x).shape == shape


def test_tiles_need_no_workspace_and_two_passes_s_of_every_element() -> None:
    x = random(1, (2, 6, 7, 5))
    tiled, two_pass = gpu.algorithms("lrn_backward", x, x)
    assert (tiled.workspace_bytes, two_pass.workspace_bytes) == (0, 4 * x.size)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_tiles_neither_race_nor_read_what_nobody_wrote(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    dy, x = (laid_out(random(seed, (1, 40, 3, 5)), order) for seed in (1, 2))
    gpu.lrn_backward(dy, x, window=4, algorithm="tiled")
    gpu.divisive_norm_backward(dy, x, x, window=2, algorithm="tiled")
