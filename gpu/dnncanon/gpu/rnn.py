"""Recurrent networks: each layer's product with its input for all steps at once, then step by step."""

from collections.abc import Sequence

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation
from dnncanon.spec.rnn_problem import RnnProblem

# Kernels are imported by the first call: importing them imports Numba.
Implementations = Sequence[Implementation[RnnProblem]]


def _forward() -> Implementations:
    from dnncanon.gpu.kernels import rnn_forward, rnn_persist, rnn_wavefront

    return [
        Implementation(
            "persist",
            rnn_persist.forward,
            rnn_persist.workspace_bytes,
            rnn_persist.refusal,
            rnn_persist.pays,
        ),
        Implementation(
            "wavefront",
            rnn_wavefront.forward,
            rnn_wavefront.workspace_bytes,
            rnn_wavefront.refusal,
            rnn_wavefront.pays,
        ),
        Implementation("standard", rnn_forward.forward, rnn_forward.workspace_bytes),
    ]


def _backward_data() -> Implementations:
    from dnncanon.gpu.kernels import rnn_backward_data as kernels

    return [Implementation("standard", kernels.backward_data, kernels.workspace_bytes)]


def _backward_weights() -> Implementations:
    from dnncanon.gpu.kernels import rnn_backward_weights as kernels

    return [Implementation("standard", kernels.backward_weights, kernels.workspace_bytes)]


def _backward() -> Implementations:
    from dnncanon.gpu.kernels import rnn_backward as kernels

    return [Implementation("standard", kernels.backward, kernels.workspace_bytes)]


rnn_relu_forward = GpuPrimitive(spec.rnn_relu_forward, _forward)
rnn_tanh_forward = GpuPrimitive(spec.rnn_tanh_forward, _forward)
lstm_forward = GpuPrimitive(spec.lstm_forward, _forward)
gru_forward = GpuPrimitive(spec.gru_forward, _forward)

rnn_relu_backward_data = GpuPrimitive(spec.rnn_relu_backward_data, _backward_data)
rnn_tanh_backward_data = GpuPrimitive(spec.rnn_tanh_backward_data, _backward_data)
lstm_backward_data = GpuPrimitive(spec.lstm_backward_data, _backward_data)
gru_backward_data = GpuPrimitive(spec.gru_backward_data, _backward_data)

rnn_relu_backward_weights = GpuPrimitive(spec.rnn_relu_backward_weights, _backward_weights)
rnn_tanh_backward_weights = GpuPrimitive(spec.rnn_tanh_backward_weights, _backward_weights)
lstm_backward_weights = GpuPrimitive(spec.lstm_backward_weights, _backward_weights)
gru_backward_weights = GpuPrimitive(spec.gru_backward_weights, _backward_weights)

rnn_relu_backward = GpuPrimitive(spec.rnn_relu_backward, _backward)
rnn_tanh_backward = GpuPrimitive(spec.rnn_tanh_backward, _backward)
lstm_backward = GpuPrimitive(spec.lstm_backward, _backward)
gru_backward = GpuPrimitive(spec.gru_backward, _backward)
