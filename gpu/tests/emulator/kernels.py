"""Kernels that several test modules and the benchmark run."""

from __future__ import annotations

import math

from numba import cuda, float32


def matmul(a, b, c):
    """c = a·b by 16×16 tiles in shared memory; extents are multiples of 16."""
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0.0)
    for t in range(a.shape[1] // 16):
        tile_a[ty, tx] = a[row, t * 16 + tx]
        tile_b[ty, tx] = b[t * 16 + ty, column]
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    c[row, column] = total


def convolution(x, w, y):
    """y = x ⋆ w, 3×3 with padding 1, one thread per output element."""
    i = cuda.grid(1)
    batch, filters, height, width = y.shape
    if i < batch * filters * height * width:
        ow = i % width
        oh = i // width % height
        f = i // (width * height) % filters
        n = i // (width * height * filters)
        total = float32(0.0)
        for c in range(x.shape[1]):
            for kh in range(3):
                for kw in range(3):
                    ih = oh + kh - 1
                    iw = ow + kw - 1
                    if 0 <= ih < height and 0 <= iw < width:
                        total += x[n, c, ih, iw] * w[f, c, kh, kw]
        y[n, f, oh, ow] = total


def softmax(x, y):
    """One warp per row."""
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    n = x.shape[1]
    peak = float32(-3.4e38)
    j = lane
    while j < n:
        peak = max(peak, x[row, j])
        j += 32
    distance = 16
    while distance > 0:
        peak = max(peak, cuda.shfl_xor_sync(0xFFFFFFFF, peak, distance))
        distance >>= 1
    total = float32(0.0)
    j = lane
    while j < n:
        total += math.exp(x[row, j] - peak)
        j += 32
    distance = 16
    while distance > 0:
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        distance >>= 1
    j = lane
    while j < n:
        y[row, j] = math.exp(x[row, j] - peak) / total
        j += 32
