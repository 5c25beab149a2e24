"""im2col and col2im of the GPU library, against convolutions by hand and each other."""

from typing import Any

import numpy as np
import pytest

from dnncanon import gpu
from dnncanon.gpu.runtime import empty

Array = np.ndarray[Any, Any]


def integers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(2).integers(-4, 5, shape).astype(dtype)


def columns_by_hand(
    x: Array, taps: tuple[int, int], stride: int, padding: int, dilation: int
) -> Array:
    """im2col in two dims, window by window."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    reach = [dilation * (f - 1) + 1 for f in taps]
    windows = [
        padded[:, :, i : i + reach[0] : dilation, j : j + reach[1] : dilation]
        for i in range(0, padded.shape[2] - reach[0] + 1, stride)
        for j in range(0, padded.shape[3] - reach[1] + 1, stride)
    ]
    return np.stack([w.reshape(x.shape[0], -1) for w in windows], axis=-1)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
def test_columns_in_two_dims(dtype: Any, stride: int, padding: int, dilation: int) -> None:
    x = integers(2, 3, 7, 9, dtype=dtype)
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    y = np.asarray(gpu.im2col(x, filter_size=(3, 2), **given))
    np.testing.assert_array_equal(y, columns_by_hand(x, (3, 2), stride, padding, dilation))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_col2im_is_the_adjoint(dtype: Any) -> None:
    x = integers(2, 3, 4, 5, 3, dtype=dtype)
    given: dict[str, Any] = {
        "filter_size": (2, 3, 1),
        "stride": (1, 2, 1),
        "padding": ((1, 0), (2, 1), (0, 1)),
    }
    columns = np.asarray(gpu.im2col(x, **given))
    dy = integers(*columns.shape, dtype=dtype)
    dx = np.asarray(gpu.col2im(dy, input_size=(4, 5, 3), **given))
    assert dx.dtype == x.dtype
    one, other = (np.sum(a.astype(np.float64) * b) for a, b in ((columns, dy), (x, dx)))
    assert one == other


def test_layouts_are_any() -> None:
    x = integers(2, 5, 6, 4).transpose(0, 3, 1, 2)  # channels last
    y = empty((2, 4 * 4, 12), np.float32, (400, 1, 20))
    gpu.im2col(x, filter_size=2, dilation=2, stride=(1, 1), out=y)
    np.testing.assert_array_equal(y.to_host(), columns_by_hand(x, (2, 2), 1, 0, 2))
    dx = np.asarray(gpu.col2im(y.to_host(), input_size=(5, 6), filter_size=2, dilation=2))
    count = np.asarray(
        gpu.col2im(np.ones((2, 16, 12), "f"), input_size=(5, 6), filter_size=2, dilation=2)
    )
    np.testing.assert_array_equal(dx, x * count)


def test_it_is_clean_in_check_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    x = integers(1, 2, 5, 5)
    y = np.asarray(gpu.im2col(x, filter_size=3, padding=1))
    np.testing.assert_array_equal(y, columns_by_hand(x, (3, 3), 1, 1, 1))
    count = np.asarray(gpu.col2im(np.ones_like(y), input_size=(5, 5), filter_size=3, padding=1))
    assert count[0, 0].tolist() == np.outer([2, 3, 3, 3, 2], [2, 3, 3, 3, 2]).tolist()
