"""Backends that misbehave, each in one way; the suite must name the way and go on."""

import ctypes
import os
import threading
import time
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dnncanon.reference as reference
from dnncanon.spec import ShapeError, check_output_layout

Array = NDArray[Any]


class _Correct:
    """What the others spoil: the reference, for forward convolution."""

    accepts_out = True

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        result = reference.conv_forward(x, w, **attributes)
        _refuse_misfit(out, result, x, w)
        out[...] = result
        return out


def _refuse_misfit(out: Array, result: Array, *inputs: Array) -> None:
    """An error, not the specification's, for an ``out`` that is not like the result."""
    if (out.shape, out.dtype) != (result.shape, result.dtype):
        raise ValueError("no such out")
    check_output_layout("y", out.shape, [stride // out.itemsize for stride in out.strides])
    if any(np.shares_memory(out, array) for array in inputs):
        raise ValueError("not in place")


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


class CrashingNowAndThen(_Correct):
    """In a few of the shapes there are, whatever was called before."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        if zlib.crc32(repr((x.shape, w.shape)).encode()) % 40 == 0:
            os._exit(9)
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


class KeepingOutput(_Correct):
    """Writes into the output of the call before."""

    def __init__(self) -> None:
        self.before: Array | None = None

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        if self.before is not None and self.before.size:
            self.before[...] = 7
        self.before = super().conv_forward(x, w, out=out, **attributes)
        return out


class ReusingOutput:
    """Returns the same array from every call, with the result of the last one in it."""

    def __init__(self) -> None:
        self.results: dict[tuple[int, ...], Array] = {}

    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Array:
        result = reference.conv_forward(x, w, **attributes)
        kept = self.results.setdefault(result.shape, result)
        kept[...] = result
        return kept


class WritingLate(_Correct):
    """Has a thread that writes the output a while after the call."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        super().conv_forward(x, w, out=out, **attributes)
        threading.Timer(0.3, out.__setitem__, (..., 7)).start()
        return out


class WritingInputLate(_Correct):
    """Has a thread that writes an input a while after the call."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        super().conv_forward(x, w, out=out, **attributes)
        threading.Timer(0.3, x.__setitem__, (..., 7)).start()
        return out


class Wobbling(_Correct):
    """Off by a unit in the last place in one element of every second call; claims to be deterministic."""

    claims = True

    def __init__(self) -> None:
        self.calls = 0

    def describe(self) -> dict[str, Any]:
        return {"deterministic": {"conv_forward": True}} if self.claims else {}

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        super().conv_forward(x, w, out=out, **attributes)
        self.calls += 1
        if self.calls % 2 == 0 and out.size:
            last = (-1,) * out.ndim
            out[last] = np.nextafter(out[last], np.asarray(np.inf, out.dtype))
        return out


class WobblingUnclaimed(Wobbling):
    claims = False


class RefusingDeterministically:
    """Claims that what it refuses is deterministic."""

    def describe(self) -> dict[str, Any]:
        return {"deterministic": {"conv_forward": True}}

    def conv_forward(self, x: Array, w: Array, **attributes: Any) -> Array:
        raise NotImplementedError("not today")


class UsingWorkspace:
    """Asks for an odd number of bytes, and uses them all."""

    accepts_out = True

    def workspace_bytes(self, primitive: str, x: Array, w: Array, **attributes: Any) -> Any:
        assert primitive == "conv_forward"
        return 2 * x.size + 1

    def conv_forward(
        self, x: Array, w: Array, *, out: Array, workspace: Array, **attributes: Any
    ) -> Array:
        assert workspace.dtype == np.uint8
        assert workspace.shape == (2 * x.size + 1,)
        assert workspace.ctypes.data % 16 == 0
        workspace[...] = 1
        out[...] = reference.conv_forward(x, w, **attributes)
        return out


class WritingBehindWorkspace(UsingWorkspace):
    def conv_forward(
        self, x: Array, w: Array, *, out: Array, workspace: Array, **attributes: Any
    ) -> Array:
        np.lib.stride_tricks.as_strided(workspace, (workspace.size + 1,), (1,))[-1] = 0
        return super().conv_forward(x, w, out=out, workspace=workspace, **attributes)


class ReadingWorkspace(UsingWorkspace):
    """Takes for granted that a workspace holds zeros."""

    def conv_forward(
        self, x: Array, w: Array, *, out: Array, workspace: Array, **attributes: Any
    ) -> Array:
        found = workspace[: 2 * (workspace.size // 2)].copy().view(np.float16)
        super().conv_forward(x, w, out=out, workspace=workspace, **attributes)
        out += found.astype(out.dtype).sum()
        return out


class NeedingNoWorkspace(_Correct):
    """Its function is not given a workspace of 0 bytes."""

    def workspace_bytes(self, primitive: str, *tensors: Array, **attributes: Any) -> int:
        return 0


class MisjudgingWorkspace(UsingWorkspace):
    def workspace_bytes(self, primitive: str, x: Array, w: Array, **attributes: Any) -> Any:
        return "plenty"


class _ClaimingErrors(_Correct):
    def describe(self) -> dict[str, Any]:
        return {"errors": "dnncanon"}


class LettingThrough(_ClaimingErrors):
    """Computes what is illegal, as far as its output goes."""

    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        out[...] = 0
        return out


class LettingThroughUnwritten(_ClaimingErrors):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        return out


class RaisingItsOwn(_ClaimingErrors):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        raise SystemExit("no")


class RaisingAfterWriting(_ClaimingErrors):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        out[...] = 0
        return super().conv_forward(x, w, out=out, **attributes)


class RaisingTheSpecs(_ClaimingErrors):
    pass


class NamingAnother(_ClaimingErrors):
    def conv_forward(self, x: Array, w: Array, *, out: Array, **attributes: Any) -> Array:
        raise ShapeError("not this one", "conv_forward C1")
