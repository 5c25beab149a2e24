"""Recurrent networks: each layer's product with its input for all steps at once, then step by step."""

from collections.abc import Sequence

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation
from dnncanon.spec import Primitive
from dnncanon.spec.rnn_problem import RnnProblem

# Kernels are imported by the first call: importing them imports Numba.


def _forward(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
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

    return GpuPrimitive(primitive, implementations)


def _backward_data(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
        from dnncanon.gpu.kernels import rnn_backward_data

        function, nbytes = rnn_backward_data.backward_data, rnn_backward_data.workspace_bytes
        return [Implementation("standard", function, nbytes)]

    return GpuPrimitive(primitive, implementations)


def _backward_weights(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
        from dnncanon.gpu.kernels import rnn_backward_weights

        function = rnn_backward_weights.backward_weights
        return [Implementation("standard", function, rnn_backward_weights.workspace_bytes)]

    return GpuPrimitive(primitive, implementations)


def _backward(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
        from dnncanon.gpu.kernels import rnn_backward

        return [Implementation("standard", rnn_backward.backward, rnn_backward.workspace_bytes)]

    return GpuPrimitive(primitive, implementations)


rnn_relu_forward = _forward(spec.rnn_relu_forward)
rnn_tanh_forward = _forward(spec.rnn_tanh_forward)
lstm_forward = _forward(spec.lstm_forward)
gru_forward = _forward(spec.gru_forward)

rnn_relu_backward_data = _backward_data(spec.rnn_relu_backward_data)
rnn_tanh_backward_data = _backward_data(spec.rnn_tanh_backward_data)
lstm_backward_data = _backward_data(spec.lstm_backward_data)
gru_backward_data = _backward_data(spec.gru_backward_data)

rnn_relu_backward_weights = _backward_weights(spec.rnn_relu_backward_weights)
rnn_tanh_backward_weights = _backward_weights(spec.rnn_tanh_backward_weights)
lstm_backward_weights = _backward_weights(spec.lstm_backward_weights)
gru_backward_weights = _backward_weights(spec.gru_backward_weights)

rnn_relu_backward = _backward(spec.rnn_relu_backward)
rnn_tanh_backward = _backward(spec.rnn_tanh_backward)
lstm_backward = _backward(spec.lstm_backward)
gru_backward = _backward(spec.gru_backward)
