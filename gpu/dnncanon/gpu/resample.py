"""Resampling: what both primitives launch. Kernels gather; none adds atomically."""

from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.spec.resample import ResampleProblem

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.resample_forward, "gather")
def resample_forward(run: Launch[ResampleProblem]) -> None:
    from dnncanon.gpu.kernels import resample

    _launch(run, resample.forward, run.inputs["x"], run.outputs["y"])


@implements(spec.resample_backward, "gather")
def resample_backward(run: Launch[ResampleProblem]) -> None:
    from dnncanon.gpu.kernels import resample

    _launch(run, resample.backward, run.inputs["dy"], run.outputs["dx"])


def _launch(run: Launch[ResampleProblem], make: Any, source: Any, out: Any) -> None:
    from dnncanon.gpu.kernels.resample import LINEAR, MODES, dims_of
    from dnncanon.gpu.kernels.windows import THREADS, Walk, strides_of
    from dnncanon.gpu.runtime import launch

    p = run.problem
    walk = Walk.over(out, (source, out))
    mode = LINEAR if p.mode == "linear" else MODES[p.rounding]
    strides = strides_of(source), strides_of(out)
    args = (source, out, *walk.arguments, dims_of(p.dims), *strides, mode)
    launch(make(run.dtype, walk.lanes), walk.blocks, THREADS, args, stream=run.stream)
