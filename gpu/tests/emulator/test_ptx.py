"""Inline PTX: conversions exhaustively, matrix instructions element by element against float64,
asynchronous copies, mbarriers, bulk copies, wgmma."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, int32, int64, uint8, uint16, uint32, uint64

from dnncanon.gpu import ptx
from dnncanon.gpu.emulator import KernelError, LaunchError, TensorMap, launch
from dnncanon.gpu.emulator.launching.arguments import argument_type

rng = np.random.default_rng(3)
wait_0, wait_1 = ptx.cp_async_wait_group(0), ptx.cp_async_wait_group(1)


def apply(function, x, out):
    """out[i] = function(x[i]) in a kernel."""

    def kernel(a, b):
        i = cuda.grid(1)
        if i < a.size:
            b[i] = function(a[i])

    launch(kernel, -(-x.size // 256), 256, (x, out))
    return out


def apply_2(function, x, y, out):
    def kernel(a, b, c):
        i = cuda.grid(1)
        if i < a.size:
            c[i] = function(a[i], b[i])

    launch(kernel, -(-x.size // 256), 256, (x, y, out))
    return out


ALL_16 = np.arange(65536, dtype=np.uint16)
FLOATS = np.concatenate(
    [
        (rng.standard_normal(20000) * 10.0 ** rng.integers(-42, 38, 20000)),
        np.ldexp(1 + rng.integers(0, 2**11, 5000) / 2**11, rng.integers(-26, 17, 5000)),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 3e38],
    ]
).astype(np.float32)


def same_bits(a, b):
    return (a == b) | (np.isnan(a.view(np.float16)) & np.isnan(b.view(np.float16)))


# ---- Conversions
def test_float16_to_float32_exhaustively():
    got = apply(ptx.f16_to_f32, ALL_16, np.zeros(65536, np.float32))
    np.testing.assert_array_equal(got, ALL_16.view(np.float16).astype(np.float32))


def test_bfloat16_to_float32_exhaustively():
    got = apply(ptx.bf16_to_f32, ALL_16, np.zeros(65536, np.float32))
    np.testing.assert_array_equal(got.view(np.uint32), ALL_16.astype(np.uint32) << 16)


def test_float32_to_float16():
    got = apply(ptx.f32_to_f16, FLOATS, np.zeros(FLOATS.size, np.uint16))
    with np.errstate(over="ignore"):
        want = FLOATS.astype(np.float16).view(np.uint16)
    assert same_bits(got, want).all()


def test_float32_to_bfloat16():
    got = apply(ptx.f32_to_bf16, FLOATS, np.zeros(FLOATS.size, np.uint16))
    want = FLOATS.astype(ml_dtypes.bfloat16).view(np.uint16)
    finite = ~np.isnan(FLOATS)
    np.testing.assert_array_equal(got[finite], want[finite])
    assert (got[~finite] == 0x7FFF).all()


def test_float64_to_float16_rounds_once():
    halfway = np.float64(1 + 2.0**-11)
    x = np.array([halfway, halfway + 2.0**-40, halfway - 2.0**-40, 1 + 3 * 2.0**-11, 1e-300])
    got = apply(ptx.f64_to_f16, x, np.zeros(x.size, np.uint16)).view(np.float16)
    assert got.tolist() == [1, 1 + 2.0**-10, 1, 1 + 2.0**-9, 0]


def test_float32_to_tf32():
    x = FLOATS[np.abs(FLOATS) < 1e38]
    got = apply(ptx.f32_to_tf32, x, np.zeros(x.size, np.uint32)).view(np.float32)
    assert (np.abs(got.astype(float) - x) <= np.abs(x.astype(float)) * 2.0**-11 + 2.0**-137).all()
    assert not (got.view(np.uint32) & 0x1FFF).any()
    ties = np.array([1 + 2.0**-11, -(1 + 2.0**-11)], np.float32)
    assert apply(ptx.f32_to_tf32, ties, np.zeros(2, np.uint32)).view(np.float32).tolist() == [
        1 + 2.0**-10, -(1 + 2.0**-10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(ptx.pack_f16x2, np.float16), (ptx.pack_bf16x2, ml_dtypes.bfloat16)],
)
def test_packing_pairs(function, dtype):
    high, low = FLOATS[np.abs(FLOATS) < 6e4][:1000], FLOATS[np.abs(FLOATS) < 6e4][1000:2000]
    got = apply_2(function, high, low, np.zeros(1000, np.uint32))
    np.testing.assert_array_equal(got & 0xFFFF, low.astype(dtype).view(np.uint16))
    np.testing.assert_array_equal(got >> 16, high.astype(dtype).view(np.uint16))


@pytest.mark.parametrize(
    ("pack", "unpack", "dtype", "largest"),
    [
        (ptx.pack_e4m3x2, ptx.unpack_e4m3x2, ml_dtypes.float8_e4m3fn, 448),
        (ptx.pack_e5m2x2, ptx.unpack_e5m2x2, ml_dtypes.float8_e5m2, 57344),
    ],
)
def test_eight_bit_floats(pack, unpack, dtype, largest):
    x = np.concatenate([rng.standard_normal(3000) * 10.0 ** rng.integers(-7, 5, 3000), [0, -0.0]])
    x = x.astype(np.float32)
    got = apply_2(pack, x, x[::-1].copy(), np.zeros(x.size, np.uint16))
    want = np.clip(x, -largest, largest).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(got >> 8, want)
    np.testing.assert_array_equal(got & 0xFF, want[::-1])
    codes = np.arange(256, dtype=np.uint16)
    pairs = apply(unpack, codes | (codes[::-1] << 8), np.zeros(256, np.uint32))
    values = codes.astype(np.uint8).view(dtype).astype(np.float32)
    halves = (pairs & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(halves, values)


def test_float32_to_int8():
    x = np.array([0.5, 1.5, -0.5, -2.5, 127.4, 127.5, 1e9, -1e9, np.nan], np.float32)
    got = apply(ptx.f32_to_s8, x, np.zeros(x.size, np.uint32)).view(np.int32)
    assert got.tolist() == [0, 2, 0, -2, 127, 127, 127, -128, 0]


APPROXIMATE = {
    "ex2": (np.exp2, -20, 20), "lg2": (np.log2, 0.01, 1e4), "rcp": (lambda x: 1 / x, 0.01, 1e4),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.01, 1e4), "sqrt": (np.sqrt, 0, 1e4),
    "sin": (np.sin, -3, 3), "cos": (np.cos, -3, 3), "tanh": (np.tanh, -5, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions_are_correctly_rounded(name):
    reference, low, high = APPROXIMATE[name]
    x = rng.uniform(low, high, 1000).astype(np.float32)
    got = apply(getattr(ptx, f"{name}_approx"), x, np.zeros(1000, np.float32))
    want = reference(x.astype(float))
    assert (np.abs(got - want) <= 0.501 * np.spacing(np.abs(want).astype(np.float32))).all()


# ---- Matrix fragments
def fragment_a(a, per_word):
    """Registers of A (16 × depth codes), one row per lane."""
    bits = a.itemsize * 8
    out = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        words = []
        for i in range(a.shape[1] // (4 * per_word) * 2):
            row = g + 8 * (i % 2)
            column = i // 2 * 4 * per_word + t * per_word
            codes = a[row, column : column + per_word].astype(np.uint64)
            words.append(sum(int(c) << (bits * e) for e, c in enumerate(codes)))
        out.append(words)
    return np.array(out, np.uint32)


def fragment_b(b, per_word):
    bits = b.itemsize * 8
    out = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        words = []
        for i in range(b.shape[0] // (4 * per_word)):
            row = i * 4 * per_word + t * per_word
            codes = b[row : row + per_word, g].astype(np.uint64)
            words.append(sum(int(c) << (bits * e) for e, c in enumerate(codes)))
        out.append(words)
    return np.array(out, np.uint32)


def unfragment_c(c):
    out = np.zeros((16, 8), c.dtype)
    for lane in range(32):
        for i in range(4):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = c[lane, i]
    return out


def tf32_codes(x):
    return (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).astype(np.uint32)


MMA = {
    "mma_f16": (16, np.float16), "mma_f16_k8": (8, np.float16), "mma_bf16": (16, ml_dtypes.bfloat16),
    "mma_bf16_k8": (8, ml_dtypes.bfloat16), "mma_tf32": (8, np.float32),
    "mma_tf32_k4": (4, np.float32), "mma_e4m3": (32, ml_dtypes.float8_e4m3fn),
    "mma_e5m2": (32, ml_dtypes.float8_e5m2), "mma_s8": (32, np.int8), "mma_s8_k16": (16, np.int8),
    "mma_u8": (32, np.uint8),
}  # fmt: skip


def make_mma_kernel(function, words_a, words_b):
    load_a = {1: lambda a, i: (a[i, 0],), 2: lambda a, i: (a[i, 0], a[i, 1])}
    load_a[4] = lambda a, i: (a[i, 0], a[i, 1], a[i, 2], a[i, 3])
    first = cuda.jit(device=True)(load_a[words_a])
    second = cuda.jit(device=True)(load_a[words_b])

    def kernel(a, b, c, d):
        lane = cuda.threadIdx.x
        r = function(
            first(a, lane), second(b, lane), (c[lane, 0], c[lane, 1], c[lane, 2], c[lane, 3])
        )
        for i in range(4):
            d[lane, i] = r[i]

    return kernel


@pytest.mark.parametrize("name", MMA)
def test_mma_element_by_element(name):
    depth, dtype = MMA[name]
    integer = np.dtype(dtype).kind in "iu" and dtype in (np.int8, np.uint8)
    if integer:
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, (16, depth)).astype(dtype)
        b = rng.integers(info.min, info.max, (depth, 8)).astype(dtype)
        c = rng.integers(-1000, 1000, (32, 4)).astype(np.int32)
        exact = unfragment_c(c) + a.astype(np.int64) @ b.astype(np.int64)
    else:
        a, b = rng.standard_normal((16, depth)), rng.standard_normal((depth, 8))
        a, b = a.astype(dtype), b.astype(dtype)
        c = rng.standard_normal((32, 4)).astype(np.float32)
        if dtype is np.float32:
            a, b = tf32_codes(a).view(np.float32), tf32_codes(b).view(np.float32)
        exact = unfragment_c(c).astype(float) + a.astype(float) @ b.astype(float)
    code = f"u{np.dtype(dtype).itemsize}"
    per_word = 4 // np.dtype(dtype).itemsize
    words_a, words_b = fragment_a(a.view(code), per_word), fragment_b(b.view(code), per_word)
    kernel = make_mma_kernel(getattr(ptx, name), words_a.shape[1], words_b.shape[1])
    d = np.zeros((32, 4), np.int32 if integer else np.float32)
    c = c.view(np.uint32) if integer else c
    launch(kernel, 1, 32, (words_a, words_b, c, d.view(np.uint32) if integer else d))
    if integer:
        np.testing.assert_array_equal(unfragment_c(d), exact)
    else:
        scale = np.abs(a.astype(float)) @ np.abs(b.astype(float)) + 1
        assert (np.abs(unfragment_c(d) - exact) <= depth * 2.0**-24 * scale).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix(count, transposed):
    suffix = f"x{count}{'_trans' if transposed else ''}"
    load, store = getattr(ptx, f"ldmatrix_{suffix}"), getattr(ptx, f"stmatrix_{suffix}")
    single = count == 1
    one = cuda.jit(device=True)((lambda r: (r,)) if single else (lambda r: r))

    def kernel(out, back):
        tile = cuda.shared.array(256, uint16)
        copy = cuda.shared.array(256, uint16)
        lane = cuda.threadIdx.x
        for i in range(lane, 256, 32):
            tile[i] = i
            copy[i] = 0
        cuda.syncwarp()
        r = one(load(ptx.shared_address(tile, lane * 8)))
        for k in range(count):
            out[lane, k] = r[k]
        store(ptx.shared_address(copy, lane * 8), r)
        cuda.syncwarp()
        for i in range(lane, 256, 32):
            back[i] = copy[i]

    out, back = np.zeros((32, count), np.uint32), np.zeros(256, np.uint16)
    launch(kernel, 1, 32, (out, back))
    halves = out.view(np.uint16).reshape(32, count, 2)
    lane, k, h = np.ogrid[:32, :count, :2]
    row, column = lane // 4, 2 * (lane % 4) + h
    want = k * 64 + (column * 8 + row if transposed else row * 8 + column)
    np.testing.assert_array_equal(halves, want)
    np.testing.assert_array_equal(back[: 64 * count], np.arange(64 * count))


# ---- Asynchronous copies
def make_copy(wait):
    def kernel(x, out):
        tile = cuda.shared.array((2, 32, 4), float32)
        t = cuda.threadIdx.x
        for i in range(4):
            tile[0, t, i] = -1
            tile[1, t, i] = -1
        for stage in range(2):
            ptx.cp_async_16(
                ptx.shared_address(tile, stage * 128 + t * 4),
                ptx.global_address(x, stage * 128 + t * 4),
            )
            ptx.cp_async_commit()
        wait()
        cuda.syncthreads()
        for stage in range(2):
            for i in range(4):
                out[stage, t, i] = tile[stage, 31 - t, i]

    return kernel


nothing = cuda.jit(device=True)(lambda: None)


@pytest.mark.parametrize(("wait", "landed"), [(wait_0, 2), (wait_1, 1), (nothing, 0)])
def test_asynchronous_copies_land_at_their_wait(wait, landed):
    x, out = rng.standard_normal((2, 32, 4)).astype(np.float32), np.zeros((2, 32, 4), np.float32)
    launch(make_copy(wait), 1, 32, (x, out))
    np.testing.assert_array_equal(out[:landed], x[:landed, ::-1])
    assert (out[landed:] == -1).all()


def test_copy_with_fill_zeroes_the_tail():
    def kernel(x, out):
        tile = cuda.shared.array(8, float32)
        for i in range(8):
            tile[i] = -1
        ptx.cp_async_16_fill(ptx.shared_address(tile, 0), ptx.global_address(x, 0), 8)
        ptx.cp_async_8(ptx.shared_address(tile, 4), ptx.global_address(x, 2))
        ptx.cp_async_4(ptx.shared_address(tile, 6), ptx.global_address(x, 1))
        ptx.cp_async_wait_all()
        for i in range(8):
            out[i] = tile[i]

    out = np.zeros(8, np.float32)
    launch(kernel, 1, 1, (np.arange(1, 5, dtype=np.float32), out))
    assert out.tolist() == [1, 2, 0, 0, 3, 4, 2, -1]


def test_vector_loads_and_stores():
    def kernel(x, out):
        tile = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        v = ptx.load_global_v4(ptx.global_address(x, 4 * t))
        ptx.store_shared_v4(ptx.shared_address(tile, 4 * t), v)
        cuda.syncthreads()
        w = ptx.load_shared_v4_f32(ptx.shared_address(tile, 4 * (31 - t)))
        ptx.store_global_v4(ptx.global_address(out, 4 * t), (w[3], w[2], w[1], w[0]))

    x, out = rng.standard_normal(128).astype(np.float32), np.zeros(128, np.float32)
    launch(kernel, 1, 32, (x, out))
    np.testing.assert_array_equal(out, x[::-1])


# ---- mbarriers and bulk copies
def bulk_kernel(x, out):
    tile = cuda.shared.array(64, float32)
    bar = cuda.shared.array(1, uint64)
    t = cuda.threadIdx.x
    tile[t] = -1
    if t == 0:
        ptx.mbarrier_init(ptx.shared_address(bar, 0), 1)
    cuda.syncthreads()
    for phase in range(2):
        if t == 0:
            ptx.mbarrier_arrive_expect_tx(ptx.shared_address(bar, 0), 256)
            ptx.bulk_load(
                ptx.shared_address(tile, 0), ptx.global_address(x, 64 * phase), 256,
                ptx.shared_address(bar, 0),
            )  # fmt: skip
        ptx.mbarrier_wait(ptx.shared_address(bar, 0), phase)
        out[phase, t] = tile[63 - t]
        cuda.syncthreads()


def test_bulk_load_signals_its_mbarrier():
    x, out = rng.standard_normal((2, 64)).astype(np.float32), np.zeros((2, 64), np.float32)
    launch(bulk_kernel, 1, 64, (x.ravel(), out))
    np.testing.assert_array_equal(out, x[:, ::-1])


def tile_kernel(source, target, out, c0, c1):
    tile = cuda.shared.array(8 * 64, uint16, 128)
    bar = cuda.shared.array(1, uint64)
    t = cuda.threadIdx.x
    if t == 0:
        ptx.mbarrier_init(ptx.shared_address(bar, 0), 1)
        ptx.mbarrier_arrive_expect_tx(ptx.shared_address(bar, 0), 8 * 64 * 2)
        ptx.tensor_load_2d(
            ptx.shared_address(tile, 0), ptx.global_address(source, 0), c0, c1,
            ptx.shared_address(bar, 0),
        )  # fmt: skip
    cuda.syncthreads()
    ptx.mbarrier_wait(ptx.shared_address(bar, 0), 0)
    for i in range(t, 512, 32):
        out[i] = tile[i]
    if t == 0:
        ptx.tensor_store_2d(ptx.global_address(target, 0), c0, c1, ptx.shared_address(tile, 0))
        ptx.bulk_commit_group()
        bulk_wait_0()


bulk_wait_0 = ptx.bulk_wait_group(0)


@pytest.mark.parametrize("swizzle", [0, 128])
def test_tensor_copies_pad_clip_and_swizzle(swizzle):
    x = np.arange(20 * 72, dtype=np.uint16).reshape(20, 72)
    y = np.zeros_like(x)
    out = np.zeros(512, np.uint16)
    c0, c1 = -4, 15
    maps = (TensorMap(x, (8, 64), swizzle), TensorMap(y, (8, 64), swizzle))
    launch(tile_kernel, 1, 32, (*maps, out, c0, c1))
    padded = np.pad(x, ((0, 8), (4, 64)))
    box = padded[c1 : c1 + 8, c0 + 4 : c0 + 68]
    chunks = out.reshape(8, 8, 8)
    rows = np.stack([chunks[r, np.arange(8) ^ (r if swizzle else 0)].ravel() for r in range(8)])
    np.testing.assert_array_equal(rows, box)
    want = np.zeros_like(x)
    want[15:20, 0:60] = x[15:20, 0:60]
    np.testing.assert_array_equal(y, want)


def test_named_barriers_let_one_warp_feed_another():
    def kernel(out):
        tile = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        if t < 32:
            tile[t] = t * t
            ptx.barrier_arrive(1, 64)
        else:
            ptx.barrier_sync(1, 64)
            out[t - 32] = tile[63 - t]

    out = np.zeros(32, np.int32)
    launch(kernel, 1, 64, (out,))
    np.testing.assert_array_equal(out, np.arange(31, -1, -1) ** 2)


def test_redux_and_elect():
    def kernel(out):
        t = cuda.threadIdx.x
        out[t, 0] = int64(ptx.redux_add(t, 0xFFFFFFFF))
        out[t, 1] = int64(ptx.redux_max(int32(5 - t), 0xFFFFFFFF))
        out[t, 2] = int64(ptx.redux_min(int32(5 - t), 0xFFFFFFFF))
        out[t, 3] = int64(ptx.redux_or(1 << t, 0xFFFFFFFF))
        out[t, 4] = int64(ptx.elect())
        if t < 10:
            out[t, 5] = int64(ptx.redux_add(1, 0x3FF))

    out = np.zeros((32, 6), np.int64)
    launch(kernel, 1, 32, (out,))
    assert (out[:, 0] == 496).all()
    assert (out[:, 1] == 5).all()
    assert (out[:, 2] == 2**32 - 26).all()
    assert (out[:, 3] == 2**32 - 1).all()
    assert out[:, 4].sum() == 1
    assert out[:, 5].tolist() == [10] * 10 + [0] * 22


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(ptx.atomic_add_f16x2, np.float16), (ptx.atomic_add_bf16x2, ml_dtypes.bfloat16)],
)
def test_packed_atomics(function, dtype):
    def kernel(out, pair):
        function(ptx.global_address(out, 0), pair)

    out = np.zeros(2, dtype)
    pair = np.array([1, 2], dtype).view(np.uint32)[0]
    launch(kernel, 4, 32, (out.view(np.uint32), pair), threads=2)
    assert out.astype(float).tolist() == [128, 256]


def test_persistent_blocks_wait_for_one_another():
    def kernel(flag, out):
        b = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            while ptx.load_acquire(ptx.global_address(flag, 0)) != cuda.gridDim.x - 1 - b:
                pass
            out[b] = flag[0]
            ptx.store_release(ptx.global_address(flag, 0), cuda.gridDim.x - b)

    out = np.zeros(8, np.uint32)
    launch(kernel, 8, 32, (np.zeros(1, np.uint32), out))
    assert out.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


# ---- wgmma
def place(matrix, rows, swizzle):
    """Put a K-major operand (rows × bytes) into shared-memory order for a swizzle of 128 bytes, or
    none (8×16-byte core matrices, k-neighbours 128 bytes apart)."""
    data = matrix.view(np.uint8).reshape(rows, -1)
    out = np.zeros(data.size, np.uint8)
    for i in range(rows):
        for chunk in range(data.shape[1] // 16):
            if swizzle:
                at = i * 128 + ((chunk ^ (i % 8)) * 16)
            else:
                at = i // 8 * (data.shape[1] * 8) + chunk * 128 + i % 8 * 16
            out[at : at + 16] = data[i, chunk * 16 : chunk * 16 + 16]
    return out


def make_wgmma(columns, element, a_registers, swizzle, wait, fence, per_word):
    multiply = ptx.wgmma(columns, element, a_in_registers=a_registers)
    count = columns // 2
    wait_for = ptx.wgmma_wait_group(0, count)
    zero = ptx.zeros(count)
    leading, stride = (16, 1024) if swizzle else (128, 1024)
    mode = 1 if swizzle else 0
    steps = 4

    def kernel(a, b, fragments, out):
        memory = cuda.shared.array((64 + 64) * 128, uint8, 1024)
        t = cuda.threadIdx.x
        for i in range(t, 64 * 128, 128):
            memory[i] = a[i]
        for i in range(t, columns * 128, 128):
            memory[64 * 128 + i] = b[i]
        ptx.fence_proxy_async()
        cuda.syncthreads()
        acc = zero()
        if fence:
            ptx.wgmma_fence()
        for step in range(steps):
            step_bytes = step * (32 if swizzle else 256)
            base = ptx.shared_address(memory, step_bytes)
            right = ptx.wgmma_descriptor(base + 64 * 128, leading, stride, mode)
            if a_registers:
                left = (
                    fragments[step, t, 0], fragments[step, t, 1], fragments[step, t, 2],
                    fragments[step, t, 3],
                )  # fmt: skip
                acc = multiply(left, right, uint32(step > 0), acc)
            else:
                left = ptx.wgmma_descriptor(base, leading, stride, mode)
                acc = multiply(left, right, uint32(step > 0), acc)
        ptx.wgmma_commit_group()
        if wait:
            acc = wait_for(acc)
        for i in range(count):
            row = t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2)
            out[row, i // 4 * 8 + 2 * (t % 4) + i % 2] = acc[i]

    kernel.__name__ = f"wgmma_{element}"
    return kernel


def run_wgmma(element="f16", columns=64, a_registers=False, swizzle=True, wait=True, fence=True):
    dtype = {
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
        "e4m3": ml_dtypes.float8_e4m3fn,
    }[element]  # fmt: skip
    per_word = 4 // np.dtype(dtype).itemsize
    depth = 128 // np.dtype(dtype).itemsize
    a = rng.standard_normal((64, depth)).astype(dtype)
    b = rng.standard_normal((columns, depth)).astype(dtype)
    if element == "tf32":
        a, b = tf32_codes(a).view(np.float32), tf32_codes(b).view(np.float32)
    code = f"u{np.dtype(dtype).itemsize}"
    step_depth = depth // 4
    fragments = np.zeros((4, 128, 4), np.uint32)
    for step in range(4):
        for warp in range(4):
            part = a[warp * 16 : warp * 16 + 16, step * step_depth : (step + 1) * step_depth]
            fragments[step, warp * 32 : warp * 32 + 32] = fragment_a(
                part.copy().view(code), per_word
            )
    out = np.zeros((64, columns), np.float32)
    kernel = make_wgmma(columns, element, a_registers, swizzle, wait, fence, per_word)
    launch(kernel, 1, 128, (place(a, 64, swizzle), place(b, columns, swizzle), fragments, out))
    return out, a.astype(float) @ b.astype(float).T


@pytest.mark.parametrize("element", ["f16", "bf16", "tf32", "e4m3"])
@pytest.mark.parametrize("swizzle", [True, False])
def test_wgmma_against_float64(element, swizzle):
    got, want = run_wgmma(element, swizzle=swizzle)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_wgmma_with_a_in_registers():
    got, want = run_wgmma(a_registers=True)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_wgmma_without_its_wait_gives_nan():
    got, _ = run_wgmma(wait=False)
    assert np.isnan(got).all()


def test_wgmma_without_its_fence_is_an_error():
    with pytest.raises(KernelError, match=r"without a wgmma\.fence"):
        run_wgmma(fence=False)


# ---- Numba's own 16-bit arithmetic and cache hints
def _skip_without_bfloat16(array):
    """numba-cuda below 0.23 has no Numba type for ml_dtypes.bfloat16."""
    try:
        argument_type(array)
    except LaunchError:
        pytest.skip("this numba-cuda does not map the dtype")


def arithmetic(x, y, out):
    i = cuda.threadIdx.x
    out[i, 0] = x[i] + y[i]
    out[i, 1] = x[i] * y[i] - x[i]
    out[i, 2] = x[i] / y[i]
    out[i, 3] = -x[i] if x[i] < y[i] else y[i]
    out[i, 4] = float32(x[i]) * float32(3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_arithmetic_rounds_every_operation(dtype):
    x, y = (rng.standard_normal(64).astype(dtype) for _ in range(2))
    out = np.zeros((64, 5), dtype)
    if dtype is not np.float16:
        _skip_without_bfloat16(x)
    launch(arithmetic, 1, 64, (x, y, out))
    want = [
        x + y,
        x * y - x,
        x / y,
        np.where(x < y, -x, y),
        (x.astype(np.float32) * 3).astype(dtype),
    ]
    np.testing.assert_array_equal(out.view(np.uint16), np.stack(want, 1).view(np.uint16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.int64])
def test_cache_hints(dtype):
    def kernel(x, out):
        i = cuda.threadIdx.x
        cuda.stwt(out, i, cuda.ldcg(x, i))

    x, out = np.arange(32).astype(dtype), np.zeros(32, dtype)
    launch(kernel, 1, 32, (x, out))
    np.testing.assert_array_equal(out, x)


def test_mul_wide_u32_is_the_whole_product() -> None:
    x = rng.integers(0, 2**32, 1000, dtype=np.uint32)
    y = rng.integers(0, 2**32, 1000, dtype=np.uint32)
    x[:2], y[0] = 2**32 - 1, 2**32 - 1
    product = apply_2(ptx.mul_wide_u32, x, y, np.zeros(1000, np.uint64))
    assert np.array_equal(product, x.astype(np.uint64) * y)
