"""Backends that misbehave, each in one way; the suite must name the way and go on."""

import ctypes
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dnncanon.reference as reference

Array = NDArray[Any]


class _Correct:
    """What the others spoil: the reference, for forward convolution."""

    accepts_out = True

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        out[...] = reference.conv_forward(x, w, **attributes)
        return out


def _is_target(x: Array) -> bool:
    """Some cases only, so that the ones around them can be seen to have run."""
    return bool(x.shape[1] == 3)


class Segfaulting(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        if _is_target(x):
            print("about to read address 0", flush=True)
            ctypes.string_at(0)
        return super().conv_forward(x, w, out=out, **attributes)


class Exiting(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        if _is_target(x):
            os._exit(7)
        return super().conv_forward(x, w, out=out, **attributes)


class Looping(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        while _is_target(x):
            time.sleep(0.01)
        return super().conv_forward(x, w, out=out, **attributes)


class WritingOutside(_Correct):
    """Writes one element behind the output's last."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        super().conv_forward(x, w, out=out, **attributes)
        if out.size:
            last = sum((e - 1) * s for e, s in zip(out.shape, out.strides, strict=True))
            np.lib.stride_tricks.as_strided(out, (last // out.itemsize + 2,), (out.itemsize,))[
                -1
            ] = 0
        return out


class WritingInput(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        super().conv_forward(x, w, out=out, **attributes)
        x[(0,) * x.ndim if x.size else ...] += 1
        return out


class Zeros(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        out[...] = 0
        return out


class Stale(_Correct):
    """Leaves the output as it was."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        return out


class Remembering:
    """Returns the result of the call before, where it has the right shape."""

    def __init__(self) -> None:
        self.last: Array | None = None

    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Array:
        result = reference.conv_forward(x, w, **attributes)
        stale, self.last = self.last, result
        return stale if stale is not None and stale.shape == result.shape else result


class StrideForDilation(_Correct):
    """The planted bug: stride where dilation belongs."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        wrong = dict(attributes)
        if "stride" in attributes:
            wrong["dilation"] = attributes["stride"]
        try:
            result = reference.conv_forward(x, w, **wrong)
        except ValueError:
            result = reference.conv_forward(x, w, **attributes)
        right = result.shape == out.shape
        out[...] = result if right else reference.conv_forward(x, w, **attributes)
        return out


class Raising(_Correct):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        raise RuntimeError("no such luck")


class ReturningWrongShape:
    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Array:
        return reference.conv_forward(x, w, **attributes)[..., :0]


class ReturningWrongType:
    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Any:
        return reference.conv_forward(x, w, **attributes).astype(np.int32)


class ReturningInput:
    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Any:
        return x


class CrashingOnLoad:
    def __init__(self) -> None:
        os._exit(3)


class Chatty(_Correct):
    """Prints a megabyte a call, on both streams."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        print("x" * (1 << 19), flush=True)
        os.write(2, b"y" * (1 << 19))
        return super().conv_forward(x, w, out=out, **attributes)
