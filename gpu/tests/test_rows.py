"""Rows: teams of threads, the walk over rows and columns, and a softmax made of them."""

from functools import cache
from math import exp
from typing import Any

import numpy as np
import pytest

from dnncanon.gpu.kernels.element import ELEMENTS
from dnncanon.gpu.kernels.rows import (
    THREADS,
    Rows,
    add,
    larger,
    spread_strides,
    team_max,
    team_of,
    team_reduce,
    team_sum,
    tiles,
)
from dnncanon.gpu.kernels.strided import Space
from dnncanon.gpu.runtime import Kernel, View, device, empty, kernel, launch, origin, to_device
from dnncanon.gpu.runtime.device_code import cuda, device_function, types
from dnncanon.gpu.runtime.device_index import advance, digits_of, places
from dnncanon.gpu.runtime.emulated_device import EmulatedDevice

Array = np.ndarray[Any, Any]
_int64, _uint64 = types.int64, types.uint64


# --- Teams ----------------------------------------------------------------------------------------

TEAMS = [
    (w, s) for w in (1, 2, 8, 32, 64, 256) for s in (1, 2, 16, 32, 64, 256) if w * s <= THREADS
]


@cache
def team_kernel(combine: Any, count: int) -> Kernel:
    reduce = team_reduce(combine, (types.int64,) * count)
    one = count == 1

    @kernel
    def reducing(x: Any, out: Any, width: Any, spacing: Any) -> None:
        thread = cuda.threadIdx.x
        if one:
            out[thread] = reduce(x[thread], width, spacing)
        else:
            out[thread] = reduce((x[thread], _int64(1)), width, spacing)[0]

    return reducing


@device_function
def add_first(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


def teams(values: Array, width: int, spacing: int) -> Array:
    """``values``, one for each thread, as (row, member)."""
    thread = np.arange(THREADS)
    member = thread // spacing % width
    row = thread // (spacing * width) * spacing + thread % spacing
    ordered = np.empty((THREADS // width, width), values.dtype)
    ordered[row, member] = values
    return ordered


@pytest.mark.parametrize("mode", ["emulator", "emulator-check"])
@pytest.mark.parametrize(("width", "spacing"), TEAMS)
def test_a_team_combines_its_threads_and_all_get_the_result(
    width: int, spacing: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", mode)
    values = np.random.default_rng(0).integers(-1000, 1000, THREADS)
    for combine, count, expected in ((add, 1, np.sum), (larger, 1, np.max), (add_first, 2, np.sum)):
        out = empty((THREADS,), np.int64)
        args = (to_device(values), out, width, spacing)
        launch(team_kernel(combine, count), 1, THREADS, args)
        found = teams(out.to_host(), width, spacing)
        rows = expected(teams(values, width, spacing), axis=1)
        np.testing.assert_array_equal(found, np.broadcast_to(rows[:, None], found.shape))


def test_a_team_may_reduce_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared memory is the same: nobody may still be reading it."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-check")
    total = team_sum(types.int64)

    @kernel
    def reducing_twice(x: Any, out: Any) -> None:
        value = x[cuda.threadIdx.x]
        for _ in range(2):
            value = total(value, 256, 1)
        out[cuda.threadIdx.x] = value

    out = empty((THREADS,), np.int64)
    launch(reducing_twice, 1, THREADS, (to_device(np.ones(THREADS, np.int64)), out))
    np.testing.assert_array_equal(out.to_host(), np.full(THREADS, THREADS**2))


# --- A softmax ------------------------------------------------------------------------------------


@cache
def softmax(dtype: str) -> Kernel:
    element = ELEMENTS[dtype]
    number, to_sum, from_sum = element.sum, element.to_sum, element.from_sum
    largest, summed, least = team_max(number), team_sum(number), number(-np.inf)

    @kernel
    def softmax_rows(x: Any, y: Any, rows: Any) -> None:
        counts, row_extents, row_strides, extents, strides, step, origins = rows
        row_count, columns, width, spacing = counts
        member, in_block = team_of(_int64(cuda.threadIdx.x), width, spacing)
        tile = _int64(cuda.blockIdx.x)
        while tile < tiles(row_count, width):
            row = tile * (THREADS // width) + in_block
            last = columns if row < row_count else 0
            bases = places(digits_of(row, row_extents), row_strides, origins)

            top, column, digits = least, member, digits_of(member, extents)
            while column < last:
                top = larger(top, to_sum(x[_uint64(places(digits, strides, bases)[0])]))
                digits = advance(digits, step, extents)
                column += width
            top = largest(top, width, spacing)

            total, column, digits = number(0), member, digits_of(member, extents)
            while column < last:
                total += exp(to_sum(x[_uint64(places(digits, strides, bases)[0])]) - top)
                digits = advance(digits, step, extents)
                column += width
            total = summed(total, width, spacing)

            column, digits = member, digits_of(member, extents)
            while column < last:
                at = places(digits, strides, bases)
                y[_uint64(at[1])] = from_sum(exp(to_sum(x[_uint64(at[0])]) - top) / total)
                digits = advance(digits, step, extents)
                column += width
            tile += cuda.gridDim.x

    return softmax_rows


def run_softmax(x: Array, axes: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Array:
    source, y = to_device(x), empty(x.shape, x.dtype, strides)
    rows = Rows.of(x.shape, axes, (source.strides, y.strides), (origin(source), 0))
    launch(softmax(x.dtype.name), rows.grid, THREADS, (source, y, rows.arguments))
    return y.to_host()


def expected_softmax(x: Array, axes: tuple[int, ...]) -> Array:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axes, keepdims=True))
    return np.asarray(powers / powers.sum(axes, keepdims=True))


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["emulator", "emulator-check"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 1), (1,)),
        ((5, 10), (1,)),
        ((300, 10), (1,)),
        ((3, 1000), (1,)),
        ((3, 1500), (1,)),
        ((2, 10, 7), (1,)),
        ((2, 300, 40), (1,)),
        ((300, 2), (0,)),
        ((4, 5, 6), (0, 2)),
        ((4, 5, 6), (1, 2)),
        ((4, 5, 6), (0, 1, 2)),
    ],
    ids=str,
)
def test_softmax(
    shape: tuple[int, ...], axes: tuple[int, ...], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DNNCANON_DEVICE", mode)
    x = normal(*shape)
    np.testing.assert_allclose(run_softmax(x, axes), expected_softmax(x, axes), rtol=1e-5)


def test_softmax_of_any_layout() -> None:
    x = normal(4, 6, 8)
    expected = expected_softmax(x, (1,))
    for view in (x[:, ::-1], x.transpose(2, 1, 0).copy().transpose(2, 1, 0)):
        want = expected_softmax(view, (1,))
        np.testing.assert_allclose(run_softmax(view, (1,), (1, 4, 30)), want, rtol=1e-5)
    np.testing.assert_allclose(run_softmax(x, (1,)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((64, 256), (1,)),
        ((4, 2048), (1,)),
        ((2, 64, 128), (1,)),
        ((512, 32), (0,)),
        ((1024, 32), (1,)),
    ],
    ids=str,
)
def test_softmax_is_coalesced(
    shape: tuple[int, ...], axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three reads and one write of every element."""
    monkeypatch.setenv("DNNCANON_DEVICE", "emulator-profile")
    emulated = device()
    assert isinstance(emulated, EmulatedDevice)
    with emulated.recording() as launches:
        run_softmax(normal(*shape), axes)
    (report,) = launches
    profile: Any = report.profile
    assert profile.bytes_over_least(4 * 4 * int(np.prod(shape))) <= 1.01


# --- On the host ----------------------------------------------------------------------------------


def test_dims_in_one_piece_are_joined() -> None:
    space = Space.of((2, 3, 4), ((12, 4, 1), (12, 4, 1)))
    assert (space.extents, space.strides) == ((24,), ((1,), (1,)))
    assert space.is_dense(0)


def test_dims_with_gaps_in_any_operand_are_not_joined() -> None:
    space = Space.of((2, 3, 4), ((12, 4, 1), (20, 4, 1)))
    assert (space.extents, space.strides) == ((2, 12), ((12, 1), (20, 1)))
    assert space.is_dense(0)
    assert not space.is_dense(1)


def test_dims_are_visited_in_the_order_of_the_key_operand() -> None:
    space = Space.of((2, 3), ((3, 1), (1, 2)), key=1)
    assert (space.extents, space.strides) == ((3, 2), ((1, 3), (2, 1)))


def test_a_number_in_mixed_radix() -> None:
    space = Space.of((7, 3, 5), ((100, 10, 1),))
    assert space.extents == (1, 7, 3, 5)
    assert space.digits(3 * 15 + 2 * 5 + 4) == (0, 3, 2, 4)
    assert space.digits(1000) == (9, 3, 2, 0)


def test_more_dims_than_kernels_take_are_refused() -> None:
    with pytest.raises(ValueError, match="9 dims"):
        Space.of((2,) * 9, (tuple(3**d for d in range(9)),))


def test_strides_of_what_lacks_the_axes() -> None:
    assert spread_strides(View((4, 6), (6, 1)), (4, 5, 6), (1,)) == (6, 0, 1)
    assert spread_strides(View((4, 1, 6), (6, 6, 1)), (4, 5, 6), (1,)) == (6, 0, 1)


@pytest.mark.parametrize(
    ("strides", "width", "spacing"),
    [((2000, 1), 256, 1), ((1, 100), 8, 32), ((0, 1), 256, 1)],
)
def test_neighbouring_threads_follow_what_is_adjacent(
    strides: tuple[int, int], width: int, spacing: int
) -> None:
    rows = Rows.of((100, 2000), (1,), (strides,), (0,))
    assert (rows.width, rows.spacing) == (width, spacing)
