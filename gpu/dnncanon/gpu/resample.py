"""Resampling: what both primitives launch. Kernels gather; none adds atomically."""

from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import launch
from dnncanon.spec.resample import ResampleProblem

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.resample_forward, "gather")
def resample_forward(run: Launch[ResampleProblem]) -> None:
    from dnncanon.gpu.kernels.resample import forward
    from dnncanon.gpu.kernels.windows import Walk

    x, y = run.inputs["x"], run.outputs["y"]
    walk = Walk.over(y, (x, y))
    args = (x, y, *walk.arguments, *_geometry(run, x, y))
    launch(forward(run.dtype, walk.lanes), walk.blocks, walk.threads, args, stream=run.stream)


@implements(spec.resample_backward, "gather")
def resample_backward(run: Launch[ResampleProblem]) -> None:
    from dnncanon.gpu.kernels.resample import backward, backward_of_teams, taking
    from dnncanon.gpu.kernels.window_teams import Teams
    from dnncanon.gpu.kernels.windows import Walk

    dy, dx = run.inputs["dy"], run.outputs["dx"]
    walk, geometry = Walk.over(dx, (dy, dx)), _geometry(run, dy, dx)
    teams = Teams.over(walk, dy, [taking(s, geometry[-1]) for s in run.problem.dims])
    made = backward_of_teams(run.dtype) if teams else backward(run.dtype, walk.lanes)
    who = teams or walk
    args = (dy, dx, *who.arguments, *geometry)
    launch(made, who.blocks, who.threads, args, stream=run.stream)


def _geometry(run: Launch[ResampleProblem], source: Any, out: Any) -> tuple[Any, ...]:
    """As kernels take it: dims, strides, and how a coordinate is made a cell."""
    from dnncanon.gpu.kernels.resample import LINEAR, MODES, dims_of
    from dnncanon.gpu.kernels.windows import strides_of

    p = run.problem
    mode = LINEAR if p.mode == "linear" else MODES[p.rounding]
    return dims_of(p.dims), strides_of(source), strides_of(out), mode
