"""Pooling: what each primitive of the family launches. Kernels gather; none adds atomically."""

from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import DeviceArray
from dnncanon.spec.pool import PoolProblem
from dnncanon.spec.windows import Windows

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.pool_max_forward, "gather")
def pool_max_forward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool, pool_teams
    from dnncanon.gpu.kernels.windows import Walk

    x, y = run.inputs["x"], run.outputs["y"]
    operands = x, y, run.outputs.get("indices", y)
    walk = Walk.over(y, operands)
    teams = _teams(run, walk, x)
    if teams:
        _launch(run, pool_teams.max_forward(run.dtype, run.problem.indices), teams, operands)
    else:
        made = pool.max_forward(run.dtype, walk.lanes, run.problem.indices)
        _launch(run, made, walk, operands)


@implements(spec.pool_max_backward, "gather")
def pool_max_backward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["dy"], run.inputs["indices"], run.outputs["dx"]
    walk = Walk.over(operands[-1], operands)
    _launch(run, pool.max_backward(run.dtype, walk.lanes), walk, operands)


@implements(spec.pool_average_forward, "gather")
def pool_average_forward(run: Launch[PoolProblem]) -> None:
    _launch_sum(run, run.problem.include_padding, 0, (1.0, 1.0), norm=False)


@implements(spec.pool_average_backward, "gather")
def pool_average_backward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["dy"], run.outputs["dx"]
    walk = Walk.over(operands[-1], operands)
    made = pool.average_backward(run.dtype, walk.lanes)
    _launch(run, made, walk, operands, run.problem.include_padding)


@implements(spec.pool_lp_forward, "gather")
def pool_lp_forward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool

    p = run.problem.p
    _launch_sum(run, False, pool.norm_mode(p), (p, 1.0 / p), norm=True)


@implements(spec.pool_lp_backward, "gather")
def pool_lp_backward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["dy"], run.inputs["x"], run.inputs["y"], run.outputs["dx"]
    walk, p = Walk.over(operands[-1], operands), run.problem.p
    made = pool.norm_backward(run.dtype, walk.lanes)
    _launch(run, made, walk, operands, pool.norm_mode(p), p - 1.0)


def _launch_sum(run: Launch[PoolProblem], *options: Any, norm: bool) -> None:
    from dnncanon.gpu.kernels import pool, pool_teams
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["x"], run.outputs["y"]
    walk = Walk.over(operands[-1], operands)
    teams = _teams(run, walk, operands[0])
    if teams:
        _launch(run, pool_teams.sum_forward(run.dtype, norm), teams, operands, *options)
    else:
        _launch(run, pool.sum_forward(run.dtype, walk.lanes, norm), walk, operands, *options)


def _teams(run: Launch[PoolProblem], walk: Any, x: DeviceArray) -> Any:
    """The teams of threads that pay for these windows, if any."""
    from dnncanon.gpu.kernels.window_teams import Taking, Teams

    def taking(w: Windows) -> Taking:
        if not w.adaptive:
            return Taking(w.inputs, w.taps, w.stride, w.dilation)
        step, rest = divmod(w.inputs, w.outputs)
        return Taking(w.inputs, step + 2 * (rest > 0), step)

    return Teams.over(walk, x, [taking(w) for w in run.problem.windows])


def _launch(
    run: Launch[PoolProblem], made: Any, walk: Any, operands: tuple[Any, ...], *options: Any
) -> None:
    """Launch a kernel, whose arguments are: operands, walk or teams, windows, strides, options."""
    from dnncanon.gpu.kernels.windows import dims_of, strides_of
    from dnncanon.gpu.runtime import launch

    strides = tuple(map(strides_of, operands))
    args = (*operands, *walk.arguments, dims_of(run.problem.windows), *strides, *options)
    launch(made, walk.blocks, walk.threads, args, stream=run.stream)
