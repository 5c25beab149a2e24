"""im2col, a gather with zeros, and col2im, which adds up what belongs to a cell."""

from dataclasses import replace

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import origin
from dnncanon.spec.columns import ColumnsProblem
from dnncanon.spec.tensors import dense_strides

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.im2col, "gather")
def im2col(run: Launch[ColumnsProblem]) -> None:
    """The columns are seen as [n, c, f, o] of the windows' dims: cell o·u + f·l − pre of each dim."""
    from dnncanon.gpu.kernels.moving import Coordinate, gather

    p, x, y = run.problem, run.inputs["x"], run.outputs["y"]
    n, row, column = y.strides
    cells, outputs = (dense_strides(size) for size in (p.filter_size, p.output_size))
    seen = replace(
        y,
        shape=(p.batch, p.channels, *p.filter_size, *p.output_size),
        strides=(n, row * p.taps, *(row * s for s in cells), *(column * s for s in outputs)),
    )
    dims = len(p.windows)
    coordinates = []
    for d, w in enumerate(p.windows):
        weights = [0] * seen.ndim
        weights[2 + d], weights[2 + dims + d] = w.dilation, w.stride
        coordinates.append(Coordinate(tuple(weights), -w.pre, w.inputs, x.strides[2 + d]))
    strides = (*x.strides[:2], *(0,) * (2 * dims))
    gather(x, seen, strides, coordinates, 0, stream=run.stream)


@implements(spec.col2im, "gather")
def col2im(run: Launch[ColumnsProblem]) -> None:
    from dnncanon.gpu.kernels.columns import adding
    from dnncanon.gpu.kernels.windows import THREADS, Walk, dims_of, strides_of
    from dnncanon.gpu.runtime import launch

    p, x, y = run.problem, run.inputs["x"], run.outputs["y"]
    walk = Walk.over(y, ())
    n, row, column = x.strides
    x_at = (origin(x), n, row * p.taps, row, column)
    args = (x, y, *walk.arguments, dims_of(p.windows), x_at, strides_of(y))
    launch(adding(run.dtype), walk.blocks, THREADS, args, stream=run.stream)
