"""A third party's backend: float32 convolution by FFT-free loops over taps, and no import of ours."""

import numpy as np

name = "thirty lines"


def describe():
    return {"device": "NumPy", "versions": {"numpy": np.__version__}}


def conv_forward(x, w, *, padding=0, stride=1, dilation=1, groups=1, mode="cross_correlation"):
    dims = x.ndim - 2
    if x.dtype != np.float32 or groups != 1 or isinstance(padding, str):
        raise NotImplementedError("float32, one group, explicit padding only")
    stride, dilation = (np.broadcast_to(value, dims) for value in (stride, dilation))
    pairs = [
        np.broadcast_to(pair, 2)
        for pair in (np.broadcast_to(padding, (dims, 2)) if np.ndim(padding) == 0 else padding)
    ]
    x = np.pad(x, [(0, 0), (0, 0), *pairs])
    if mode == "convolution":
        w = np.flip(w, tuple(range(2, w.ndim)))
    out = [
        (x.shape[2 + d] - dilation[d] * (w.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(dims)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out), np.float32)
    for tap in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, s, o in zip(tap, dilation, stride, out, strict=True)
        )
        y += np.einsum("nc...,kc->nk...", x[(..., *window)], w[(..., *tap)])
    return y
