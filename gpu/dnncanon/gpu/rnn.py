"""Recurrent networks: each layer's product with its input for all steps at once, then step by step."""

from collections.abc import Sequence

from dnncanon import spec
from dnncanon.gpu.primitive import GpuPrimitive, Implementation
from dnncanon.spec import Primitive
from dnncanon.spec.rnn_problem import RnnProblem

# Kernels are imported by the first call: importing them imports Numba.


def _forward(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
        from dnncanon.gpu.kernels import rnn_forward

        return [Implementation("standard", rnn_forward.forward, rnn_forward.workspace_bytes)]

    return GpuPrimitive(primitive, implementations)


def _backward_data(primitive: Primitive[RnnProblem]) -> GpuPrimitive[RnnProblem]:
    def implementations() -> Sequence[Implementation[RnnProblem]]:
        from dnncanon.gpu.kernels import rnn_backward_data

        function, nbytes = rnn_backward_data.backward_data, rnn_backward_data.workspace_bytes
        return [Implementation("standard", function, nbytes)]

    return GpuPrimitive(primitive, implementations)


rnn_relu_forward = _forward(spec.rnn_relu_forward)
rnn_tanh_forward = _forward(spec.rnn_tanh_forward)
lstm_forward = _forward(spec.lstm_forward)
gru_forward = _forward(spec.gru_forward)

rnn_relu_backward_data = _backward_data(spec.rnn_relu_backward_data)
rnn_tanh_backward_data = _backward_data(spec.rnn_tanh_backward_data)
lstm_backward_data = _backward_data(spec.lstm_backward_data)
gru_backward_data = _backward_data(spec.gru_backward_data)
