"""Normalization: statistics in two passes, the mean and distances from it, and a pass over the elements.

"rows" is one launch, in which passes but the first find a set in a cache; "two_pass" splits long sets.
"""

from collections.abc import Sequence
from typing import Any

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation
from dnncanon.spec import Primitive
from dnncanon.spec.norm import WindowNormProblem


def _in_steps(primitive: Primitive[Any], name: str) -> GpuPrimitive[Any]:
    """The primitive whose steps are the function ``name`` of ``kernels.norm_steps``."""

    def implementations() -> Sequence[Implementation[Any]]:
        from dnncanon.gpu.kernels import norm_steps

        return norm_steps.implementations(getattr(norm_steps, name))

    return GpuPrimitive(primitive, implementations)


batch_norm_forward_training = _in_steps(spec.batch_norm_forward_training, "batch_forward")
batch_norm_inference = _in_steps(spec.batch_norm_inference, "batch_inference")
batch_norm_backward = _in_steps(spec.batch_norm_backward, "batch_backward")
batch_norm_genstats = _in_steps(spec.batch_norm_genstats, "genstats")
batch_norm_finalize = _in_steps(spec.batch_norm_finalize, "finalize")
batch_norm_backward_weights = _in_steps(spec.batch_norm_backward_weights, "backward_weights")
layer_norm_forward = _in_steps(spec.layer_norm_forward, "norm_forward")
layer_norm_backward = _in_steps(spec.layer_norm_backward, "norm_backward")
rms_norm_forward = _in_steps(spec.rms_norm_forward, "norm_forward")
rms_norm_backward = _in_steps(spec.rms_norm_backward, "norm_backward")
group_norm_forward = _in_steps(spec.group_norm_forward, "norm_forward")
group_norm_backward = _in_steps(spec.group_norm_backward, "norm_backward")
instance_norm_forward = _in_steps(spec.instance_norm_forward, "instance_forward")
instance_norm_backward = _in_steps(spec.instance_norm_backward, "instance_backward")


def _over_windows(primitive: Primitive[Any], *, forward: bool) -> GpuPrimitive[WindowNormProblem]:
    """The primitive that ``kernels.norm_window`` computes."""

    def implementations() -> Sequence[Implementation[WindowNormProblem]]:
        from dnncanon.gpu.kernels import norm_window, norm_window_tiled

        if forward:
            return [norm_window.FORWARD]
        return [norm_window_tiled.BACKWARD, norm_window.BACKWARD]

    return GpuPrimitive(primitive, implementations)


lrn_forward = _over_windows(spec.lrn_forward, forward=True)
lrn_backward = _over_windows(spec.lrn_backward, forward=False)
divisive_norm_forward = _over_windows(spec.divisive_norm_forward, forward=True)
divisive_norm_backward = _over_windows(spec.divisive_norm_backward, forward=False)
