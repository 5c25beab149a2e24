"""Rotary position embedding: one pass over what is turned, and one over what is not."""

from dataclasses import replace

from dnncanon import spec
from dnncanon.gpu.primitive import Launch, implements
from dnncanon.gpu.runtime import DeviceArray, launch
from dnncanon.spec.rope import RopeProblem

# Kernels are imported by the first call: importing them imports Numba.


@implements(spec.rope_forward, "pairs")
def rope_forward(run: Launch[RopeProblem]) -> None:
    _turn(run, run.inputs["x"], run.outputs["y"], 1.0)


@implements(spec.rope_backward, "pairs")
def rope_backward(run: Launch[RopeProblem]) -> None:
    _turn(run, run.inputs["dy"], run.outputs["dx"], -1.0)


def _turn(run: Launch[RopeProblem], x: DeviceArray, y: DeviceArray, sign: float) -> None:
    """The rotation by ±θ."""
    from dnncanon.gpu.kernels import rope
    from dnncanon.gpu.kernels.elementwise import elementwise

    p, angles = run.problem, run.inputs["angles"]
    if p.pairs:
        walk = rope.Walk.over(p, (x, y), angles)
        interleaved = p.interleaved and walk.lanes > 1
        made = rope.turn(p.dtype, walk.lanes, interleaved, walk.adjacent)
        factors = (p.output_scale, sign)
        strides = rope.strides_of(x), rope.strides_of(angles), rope.strides_of(y)
        args = (x, angles, y, *walk.arguments, p.shape[1], walk.slots, factors, *strides)
        launch(made, walk.blocks, rope.THREADS, args, stream=run.stream)
    if 2 * p.pairs < p.shape[-1]:
        kept, out = _part(x, p.others), _part(y, p.others)
        elementwise(rope.scaled, (kept,), (out,), (p.output_scale,), stream=run.stream)


def _part(array: DeviceArray, slots: slice) -> DeviceArray:
    """Some elements of each head."""
    pointer = array.pointer + slots.start * array.strides[-1] * array.dtype.itemsize
    return replace(array, pointer=pointer, shape=(*array.shape[:-1], slots.stop - slots.start))
