"""Pooling: what each primitive of the family launches. Kernels gather; none adds atomically."""

from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.spec.pool import PoolProblem

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.pool_max_forward, "gather")
def pool_max_forward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    x, y = run.inputs["x"], run.outputs["y"]
    indices = run.outputs.get("indices", y)
    walk = Walk.over(y, (x, y, indices))
    made = pool.max_forward(run.dtype, walk.lanes, run.problem.indices)
    _launch(run, made, walk, (x, y, indices))


@implements(spec.pool_max_backward, "gather")
def pool_max_backward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["dy"], run.inputs["indices"], run.outputs["dx"]
    walk = Walk.over(operands[-1], operands)
    _launch(run, pool.max_backward(run.dtype, walk.lanes), walk, operands)


@implements(spec.pool_average_forward, "gather")
def pool_average_forward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["x"], run.outputs["y"]
    walk = Walk.over(operands[-1], operands)
    made = pool.sum_forward(run.dtype, walk.lanes, norm=False)
    _launch(run, made, walk, operands, run.problem.include_padding, 0, (1.0, 1.0))


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
    from dnncanon.gpu.kernels.windows import Walk

    operands, p = (run.inputs["x"], run.outputs["y"]), run.problem.p
    walk = Walk.over(operands[-1], operands)
    made = pool.sum_forward(run.dtype, walk.lanes, norm=True)
    _launch(run, made, walk, operands, False, pool.norm_mode(p), (p, 1.0 / p))


@implements(spec.pool_lp_backward, "gather")
def pool_lp_backward(run: Launch[PoolProblem]) -> None:
    from dnncanon.gpu.kernels import pool
    from dnncanon.gpu.kernels.windows import Walk

    operands = run.inputs["dy"], run.inputs["x"], run.inputs["y"], run.outputs["dx"]
    walk, p = Walk.over(operands[-1], operands), run.problem.p
    made = pool.norm_backward(run.dtype, walk.lanes)
    _launch(run, made, walk, operands, pool.norm_mode(p), p - 1.0)


def _launch(
    run: Launch[PoolProblem], made: Any, walk: Any, operands: tuple[Any, ...], *options: Any
) -> None:
    """Launch a kernel, whose arguments are: operands, walk, windows, strides, options."""
    from dnncanon.gpu.kernels.windows import THREADS, dims_of, strides_of
    from dnncanon.gpu.runtime import launch

    strides = tuple(map(strides_of, operands))
    args = (*operands, *walk.arguments, dims_of(run.problem.windows), *strides, *options)
    launch(made, walk.blocks, THREADS, args, stream=run.stream)
